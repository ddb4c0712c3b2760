#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/auto.h"
#include "base/env.h"
#include "base/fs.h"
#include "base/mem.h"
#include "base/str.h"
#include "oci/image.h"
#include "run/doctor_checks.h"
#include "run/registry_ask.h"
#include "run/registry_config.h"

/*
 * Registries: how they are reached, who we are there, and whether an image could be pushed.
 */

enum { LINE_BYTES = 64 << 10 };
/* Less than what a check has, so that the cause is told. */
#define ANSWER_MS (DOCTOR_TIMEOUT_MS - 1000)

/* NULL: it is not valid, which the row says then. */
static struct config *load_config(const struct doctor *doctor, struct doctor_row *row)
{
	AUTO_ERR struct err fault = {0};
	struct config *config = NULL;

	if (session_config(doctor->session, &config, &fault) < 0)
		doctor_found(row, "not looked at: %s", fault.message);
	return config;
}

static void blame_fault(struct doctor_row *row, enum doctor_status status, const struct err *fault)
{
	/* Who is told to ask the doctor has done so. */
	const char *fix = str_eq(fault->hint, "dlrun doctor") ? NULL : fault->hint;
	doctor_blame(row, status, fix, "%s%s%s", fault->message, fault->n_evidence ? ": " : "",
		fault->n_evidence ? fault->evidence[0] : "");
}

static char *host_of(const char *repository)
{
	return mem_strndup(repository, strcspn(repository, "/"));
}

static void add_text(struct buf *line, const char *text)
{
	buf_addf(line, "%s%s", line->len ? "; " : "", text);
}

/*
 * proxy
 */

/* Hosts that are asked: of registries and of the base image, each once. */
static void find_hosts(const struct config *config, struct strv *ret)
{
	AUTO_STRV struct strv repositories = {0};
	AUTO_REF struct ref base = {0};

	registry_config_all(config, &repositories);
	vec_foreach (char *, repository, &repositories) {
		AUTO_FREE char *host = host_of(*repository);
		if (strv_find(ret, host) < 0)
			strv_add(ret, host);
	}
	if (ref_parse(config_str(config, "image"), &base, NULL) == 0 && base.host &&
		strv_find(ret, base.host) < 0)
		strv_add(ret, base.host);
}

/* "http://proxy:3128 (HTTPS_PROXY)", "none". */
static char *proxy_text(const struct proxy_env *env, const char *host, struct doctor_row *row)
{
	AUTO_URL struct url url = {0};
	AUTO_ERR struct err fault = {0};
	AUTO_FREE char *proxy = NULL;
	const char *variable = NULL;

	int r = url_make(true, host, "/", &url, &fault);
	if (r == 0)
		r = proxy_shown(env, &url, &proxy, &variable, &fault);
	if (r < 0) {
		blame_fault(row, DOCTOR_PROBLEM, &fault);
		return mem_strdup("not valid");
	}
	return proxy ? mem_printf("%s (%s)", proxy, variable) : mem_strdup("none");
}

int doctor_proxy(const struct doctor *doctor, struct doctor_row *row, struct err *err)
{
	struct config *config = load_config(doctor, row);
	AUTO_STRV struct strv hosts = {0};
	AUTO_BUF struct buf line = {0};
	struct proxy_env env;

	(void)err;
	buf_init(&line, LINE_BYTES);
	if (!config)
		return 0;
	proxy_env_read(doctor->session->env.env, &env);
	find_hosts(config, &hosts);
	vec_foreach (char *, host, &hosts) {
		AUTO_FREE char *text = proxy_text(&env, *host, row);
		AUTO_FREE char *item = mem_printf("%s for %s", text, *host);
		add_text(&line, item);
	}
	/* Then any host that NO_PROXY does not name shows which one it is. */
	AUTO_FREE char *any = hosts.n ? NULL : proxy_text(&env, "registry.invalid", row);
	doctor_found(row, "%s", any ? any : line.data);
	return 0;
}

/*
 * registry
 */

struct survey;

/* One repository that is pushed to. */
struct probe {
	struct survey *survey;
	const char *repository;
	struct registry *registry;
	struct err fault;
};

struct survey {
	struct registry_client client;
	struct probe *probes;
	size_t n, open;
};

static void survey_done(struct survey *survey)
{
	for (size_t i = 0; i < survey->n; i++) {
		registry_free(survey->probes[i].registry);
		err_done(&survey->probes[i].fault);
	}
	free(survey->probes);
	registry_client_done(&survey->client);
}

static int end_probe(struct probe *probe)
{
	if (--probe->survey->open == 0)
		loop_stop(probe->survey->client.options.loop);
	return 0;
}

/* Whatever came of it: registries drop sessions that are left, too. */
static int on_closed(void *ctx, struct http_answer *answer, struct err *fault, struct err *err)
{
	(void)answer;
	(void)fault;
	(void)err;
	return end_probe(ctx);
}

/* A session for an upload was opened, so that we may push; it is closed again. */
static int on_opened(void *ctx, struct http_answer *answer, struct err *fault, struct err *err)
{
	struct probe *probe = ctx;
	AUTO_URL struct url url = {0};

	(void)err;
	if (fault) {
		err_move(&probe->fault, fault);
		return end_probe(probe);
	}
	if (registry_location(probe->registry, answer, &url, &probe->fault) < 0)
		return end_probe(probe);
	registry_start(probe->registry, &(struct registry_request){
						.method = "DELETE",
						.url = &url,
						.max_body = HTTP_ERROR_BODY_MAX,
						.accept = REGISTRY_ANY,
						.once = true,
						.doing = "closing an upload",
						.done = on_closed,
						.ctx = probe,
					});
	return 0;
}

static void start_probe(struct probe *probe)
{
	struct survey *survey = probe->survey;

	if (registry_ask_open(
		    &survey->client, probe->repository, true, &probe->registry, &probe->fault) < 0)
		return;
	survey->open++;
	registry_start(probe->registry, &(struct registry_request){
						.method = "POST",
						.path = "blobs/uploads/",
						.max_body = HTTP_ERROR_BODY_MAX,
						.once = true,
						.doing = "opening an upload",
						.done = on_opened,
						.ctx = probe,
					});
}

static bool is_refusal(const struct err *fault)
{
	return fault->code == ERR_AUTH;
}

/* "localhost:5000/me: http, anonymous, may be pushed to". */
static void describe(const struct probe *probe, struct doctor_row *row, struct buf *line)
{
	AUTO_FREE char *host = host_of(probe->repository);
	AUTO_FREE char *ca = registry_ask_issuers(&probe->survey->client, host);
	AUTO_BUF struct buf text = {0};
	const char *identity;

	buf_init(&text, LINE_BYTES);
	buf_addf(&text, "%s: ", probe->repository);
	if (err_is_set(&probe->fault))
		blame_fault(row, DOCTOR_PROBLEM, &probe->fault);
	if (err_is_set(&probe->fault) && !is_refusal(&probe->fault)) {
		buf_adds(&text, "no answer that could be used");
		add_text(line, text.data);
		return;
	}
	identity = auth_identity(registry_auth(probe->registry));
	if (registry_uses_http(probe->registry))
		buf_adds(&text, "http");
	else
		buf_addf(&text, "https, %s", ca);
	buf_addf(&text, ", %s, %s", identity ? identity : "login not known",
		err_is_set(&probe->fault) ? "may not push" : "may push");
	add_text(line, text.data);
}

static int ask(struct survey *survey, const struct strv *repositories, struct err *err)
{
	survey->probes = mem_alloc(repositories->n, sizeof(*survey->probes));
	survey->n = repositories->n;
	for (size_t i = 0; i < survey->n; i++) {
		survey->probes[i] =
			(struct probe){.survey = survey, .repository = repositories->v[i]};
		start_probe(&survey->probes[i]);
	}
	return survey->open ? loop_run(survey->client.options.loop, err) : 0;
}

int doctor_registry(const struct doctor *doctor, struct doctor_row *row, struct err *err)
{
	struct config *config = load_config(doctor, row);
	AUTO(survey_done) struct survey survey = {0};
	AUTO_STRV struct strv repositories = {0};
	AUTO_BUF struct buf line = {0};

	buf_init(&line, LINE_BYTES);
	if (!config)
		return 0;
	registry_config_all(config, &repositories);
	if (repositories.n == 0) {
		doctor_found(row, "none is set (registry: in dlrun.yaml)");
		return 0;
	}
	int r = registry_ask_init(&survey.client, doctor->session, ANSWER_MS, err);
	if (r == 0)
		r = ask(&survey, &repositories, err);
	if (r < 0)
		return r;
	for (size_t i = 0; i < survey.n; i++)
		describe(&survey.probes[i], row, &line);
	doctor_found(row, "%s", line.data);
	return 0;
}

/*
 * base
 */

struct base_check {
	struct registry_client client;
	const struct doctor *doctor;
	struct doctor_row *row;
	struct config *config;
	const char *name; /* of the base image */
	struct ref ref;
	char *dir; /* for what is read of it */
	struct layout *layout;
	struct image_base *base;
	char *digest;
	struct err fault;
};

static void base_check_done(struct base_check *check)
{
	image_base_free(check->base);
	layout_free(check->layout);
	if (check->dir)
		fs_remove_tree(AT_FDCWD, check->dir, NULL);
	free(check->dir);
	free(check->digest);
	ref_done(&check->ref);
	err_done(&check->fault);
	registry_client_done(&check->client);
}

static int make_layout(struct base_check *check, struct err *err)
{
	const char *tmp = env_get(check->doctor->session->env.env, "TMPDIR");

	char *dir = mem_printf("%s/dlrun-doctor-XXXXXX", str_empty(tmp) ? "/tmp" : tmp);
	if (!mkdtemp(dir)) {
		fs_error(err, errno, "%s cannot be made", dir);
		free(dir);
		return -ERR_IO;
	}
	check->dir = dir;
	return layout_open(dir, true, &check->layout, err);
}

static int on_base(void *ctx, const char *digest, struct err *fault, struct err *err)
{
	struct base_check *check = ctx;

	(void)err;
	check->digest = mem_strdup(digest);
	if (fault)
		err_move(&check->fault, fault);
	loop_stop(check->client.options.loop);
	return 0;
}

static int fetch_base(struct base_check *check, struct err *err)
{
	AUTO_FREE char *repository = mem_printf("%s/%s", check->ref.host, check->ref.repo);
	const char *platform = config_str(check->config, "platform");
	AUTO_REGISTRY struct registry *registry = NULL;
	struct registry_base *base;

	int r = registry_ask_open(&check->client, repository, false, &registry, err);
	if (r < 0)
		return r;
	base = registry_base_start(registry, &(struct registry_base_request){.ref = &check->ref,
						     .platform = platform,
						     .cache = check->layout,
						     .found = on_base,
						     .ctx = check});
	r = loop_run(check->client.options.loop, err);
	registry_base_free(base);
	if (r < 0 || err_is_set(&check->fault))
		return r < 0 ? r : err_move(err, &check->fault);
	return image_base_load(
		check->layout, check->name, check->digest, platform, &check->base, err);
}

/* The registry has the layers, but may we read them with the login that pushes? A mount would leave
 * something behind. */
static void check_same_registry(struct base_check *check, const char *repository)
{
	AUTO_REGISTRY struct registry *registry = NULL;
	AUTO_REGISTRY_REPLY struct registry_reply reply = {0};
	AUTO_ERR struct err fault = {0};

	if (check->base->n_layers == 0)
		return;
	AUTO_FREE char *path = mem_printf("blobs/%s", check->base->layers[0].digest);
	struct registry_request request = {.method = "HEAD",
		.repo = check->ref.repo,
		.path = path,
		.doing = "looking for a layer of the base image"};
	int r = registry_ask_open(&check->client, repository, true, &registry, &fault);
	if (r == 0) {
		registry_add_source(registry, check->ref.repo);
		r = registry_ask(&check->client, registry, &request, &reply, &fault);
	}
	if (r < 0)
		blame_fault(check->row, DOCTOR_PROBLEM, &fault);
}

static void check_mounts(struct base_check *check)
{
	AUTO_STRV struct strv repositories = {0};

	registry_config_all(check->config, &repositories);
	vec_foreach (char *, repository, &repositories) {
		AUTO_FREE char *host = host_of(*repository);
		if (strcasecmp(host, check->ref.host) == 0)
			check_same_registry(check, *repository);
		else
			doctor_blame(check->row, DOCTOR_WARNING, "dlrun push --copy-base",
				"%s is not the registry of the base image, so that it cannot "
				"take the layers over from %s: copy the base there once, or "
				"name one that it has",
				host, check->ref.host);
	}
	AUTO_FREE char *shown = mem_strndup(check->digest, strlen("sha256:") + 12);
	doctor_found(check->row, "%s: %s, %zu %s%s", check->name, shown, check->base->n_layers,
		check->base->n_layers == 1 ? "layer" : "layers",
		repositories.n && check->row->status == DOCTOR_OK ? ", can be mounted" : "");
}

static int check_remote_base(struct base_check *check, struct err *err)
{
	AUTO_ERR struct err fault = {0};

	int r = registry_ask_init(&check->client, check->doctor->session, ANSWER_MS, err);
	if (r == 0)
		r = make_layout(check, err);
	if (r < 0)
		return r;
	if (fetch_base(check, &fault) == 0) {
		check_mounts(check);
		return 0;
	}
	doctor_found(check->row, "%s: not usable", check->name);
	blame_fault(check->row, DOCTOR_PROBLEM, &fault);
	return 0;
}

/* The first target whose programs run in containers; NULL: none does. */
static char *find_cluster(const struct config *config)
{
	const char *chosen = config_str(config, "target");
	AUTO_STRV struct strv names = {0};

	if (chosen && (str_eq(chosen, "kube") || str_starts(chosen, "kube:")))
		return mem_strdup(chosen);
	config_target_names(config, &names);
	for (size_t i = 0; i < names.n; i++)
		if (str_eq(json_get_str(config_target(config, names.v[i]), "kind"), "kubernetes"))
			return mem_strdup(names.v[i]);
	return NULL;
}

static void check_no_base(struct base_check *check)
{
	AUTO_FREE char *cluster = find_cluster(check->config);

	doctor_found(check->row, "none (scratch)");
	if (cluster && !config_is_set(check->config, "image"))
		doctor_blame(check->row, DOCTOR_PROBLEM, "image: docker.io/library/python:3.12",
			"target %s runs programs in containers, which need a base image", cluster);
}

int doctor_base(const struct doctor *doctor, struct doctor_row *row, struct err *err)
{
	AUTO(base_check_done)
	struct base_check check = {
		.doctor = doctor, .row = row, .config = load_config(doctor, row)};
	AUTO_ERR struct err fault = {0};

	if (!check.config)
		return 0;
	check.name = config_str(check.config, "image");
	if (ref_parse(check.name, &check.ref, &fault) < 0) {
		AUTO_FREE char *fix = fault.hint ? mem_printf("image: %s", fault.hint) : NULL;
		doctor_found(row, "not valid");
		doctor_blame(row, DOCTOR_PROBLEM, fix, "%s", fault.message);
		return 0;
	}
	if (check.ref.kind == REF_REGISTRY)
		return check_remote_base(&check, err);
	if (check.ref.kind == REF_SCRATCH)
		check_no_base(&check);
	else
		doctor_found(row, "%s, a layout on disk", check.name);
	return 0;
}
