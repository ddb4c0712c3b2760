/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "app/doctor/doctor_checks.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/registry_config.h"
#include "core/image/base_program.h"
#include "core/image/pack.h"
#include "core/image/registry_open.h"
#include "oci/image/image.h"
#include "targets/targets.h"

/*
 * Registries: how they are reached, who we are there, and whether an image could be pushed.
 */

enum { LINE_BYTES = 64 << 10 };
/* Less than the timeout of a check, so that the cause is reported. */
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
	/* The hint to run `dlrun doctor` is pointless here. */
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

/* A repository that images are pushed to. */
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

/* Ignore the result: registries drop abandoned sessions, too. */
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
	AUTO_FREE char *ca = registry_ask_certificates(&probe->survey->client, host);
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
	const struct doctor *doctor;
	struct doctor_row *row;
	struct config *config;
	const char *name; /* of the base image */
	struct base_look look;
	bool has_own_login; /* one that another of this host, which is pushed to, has not */
};

static void base_check_done(struct base_check *check)
{
	base_look_done(&check->look);
}

static bool needs_image(const struct config *config, const char *name)
{
	const struct target_ops *ops = name ? target_ops_named(config, name) : NULL;

	return ops && ops->needs_image;
}

/* The chosen target, or else the first one, whose programs need an image; NULL: none does. */
static char *find_cluster(const struct config *config)
{
	const char *chosen = config_str(config, "target");
	AUTO_STRV struct strv names = {0};

	if (needs_image(config, chosen))
		return mem_strdup(chosen);
	config_target_names(config, &names);
	for (size_t i = 0; i < names.n; i++)
		if (needs_image(config, names.v[i]))
			return mem_strdup(names.v[i]);
	return NULL;
}

/* Program that `command:` starts; NULL: not known. The caller frees. */
static char *program_of(const struct config *config)
{
	static const char *const of_the_shell[] = {".", "[", "cd", "eval", "exec", "exit", "export",
		"set", "source", "test", "ulimit"};
	static const char chars[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
				    "0123456789._+-";
	bool shell;
	const struct strv *command = config_command(config, &shell);
	const char *first = command->n ? command->v[0] : "";
	size_t len = shell ? strspn(first, chars) : strlen(first);
	AUTO_FREE char *word = mem_strndup(first, len);

	if (len == 0 || strchr(word, '/') || (shell && first[len] && first[len] != ' '))
		return NULL;
	for (size_t i = 0; shell && i < ARRAY_LEN(of_the_shell); i++)
		if (str_eq(word, of_the_shell[i]))
			return NULL;
	return str_ends(word, ".py") ? mem_strdup("python3") : TAKE(word);
}

/* "; python3: cannot be known from its configuration"; line has what is known of the base. */
static void check_program(struct base_check *check, const struct image_base *base, struct buf *line)
{
	AUTO_FREE char *program = program_of(check->config), *shown = NULL, *why = NULL;
	AUTO_BASE_PROGRAM struct base_program found = {0};

	if (!program)
		return;
	base_program_find(base, program, &found);
	shown = str_shown(program);
	why = found.why ? str_shown(found.why) : NULL;
	if (found.has == BASE_UNKNOWN)
		buf_addf(line, "; whether it has %s cannot be known from %s", shown,
			base->layout == check->look.layout ? "its configuration" : "here");
	else
		buf_addf(line, "; %s %s: %s", found.has == BASE_HAS ? "has" : "lacks", shown, why);
	if (found.has != BASE_LACKS)
		return;
	AUTO_FREE char *cluster = find_cluster(check->config);
	doctor_blame(check->row, cluster ? DOCTOR_PROBLEM : DOCTOR_WARNING,
		"image: docker.io/library/python:3.12", "%s has no %s, which command: starts",
		check->name, shown);
}

/* The registry has the layers, but may we read them with the login that pushes? A mount would leave
 * something behind. A login is sent to what it is for only, so that of another one is not known. */
static void check_same_registry(struct base_check *check, const char *repository)
{
	AUTO_REGISTRY struct registry *registry = NULL;
	AUTO_REGISTRY_REPLY struct registry_reply reply = {0};
	AUTO_ERR struct err fault = {0};
	const struct image_base *base = check->look.base;

	if (base->n_layers == 0)
		return;
	AUTO_FREE char *path = mem_printf("blobs/%s", base->layers[0].digest);
	struct registry_request request = {.method = "HEAD",
		.repo = check->look.ref.repo,
		.path = path,
		.doing = "looking for a layer of the base image"};
	int r = registry_ask_open(&check->look.client, repository, true, &registry, &fault);
	if (r == 0 && !registry_shares_login(registry, check->look.ref.repo)) {
		check->has_own_login = true;
	} else if (r == 0) {
		registry_add_source(registry, check->look.ref.repo, true);
		r = registry_ask(&check->look.client, registry, &request, &reply, &fault);
	}
	if (r < 0)
		blame_fault(check->row, DOCTOR_PROBLEM, &fault);
}

static void check_mounts(struct base_check *check)
{
	const struct image_base *base = check->look.base;
	const char *host_of_base = check->look.ref.host;
	AUTO_STRV struct strv repositories = {0};
	AUTO_BUF struct buf line;

	buf_init(&line, LINE_BYTES);
	registry_config_all(check->config, &repositories);
	vec_foreach (char *, repository, &repositories) {
		AUTO_FREE char *host = host_of(*repository);
		if (strcasecmp(host, host_of_base) == 0)
			check_same_registry(check, *repository);
		else
			doctor_blame(check->row, DOCTOR_WARNING, "dlrun push --copy-base",
				"%s is not the registry of the base image, so that it cannot "
				"take the layers over from %s: copy the base there once, or "
				"name one that it has",
				host, host_of_base);
	}
	const char *mounts = check->has_own_login
				     ? ", can be mounted if the login that pushes may read it"
				     : ", can be mounted";
	buf_addf(&line, "%s: %.*s, %zu %s%s", check->name, (int)strlen("sha256:") + 12,
		check->look.digest, base->n_layers, base->n_layers == 1 ? "layer" : "layers",
		repositories.n && check->row->status == DOCTOR_OK ? mounts : "");
	check_program(check, base, &line);
	doctor_found(check->row, "%s", line.data);
}

static int check_remote_base(struct base_check *check, struct err *err)
{
	AUTO_ERR struct err fault = {0};
	const char *platform = config_str(check->config, "platform");

	int r = base_look_init(&check->look, check->doctor->session, ANSWER_MS, err);
	if (r < 0)
		return r;
	if (base_look_ask(&check->look, check->name, platform, &fault) == 0) {
		check_mounts(check);
		return 0;
	}
	doctor_found(check->row, "%s: not usable", check->name);
	blame_fault(check->row, DOCTOR_PROBLEM, &fault);
	return 0;
}

static void check_layout(struct base_check *check)
{
	AUTO_PACK struct pack pack = {0};
	AUTO_ERR struct err fault = {0};
	AUTO_BUF struct buf line;

	buf_init(&line, LINE_BYTES);
	buf_addf(&line, "%s, a layout on disk", check->name);
	if (pack_init(&pack, check->doctor->session, NULL, false, &fault) < 0)
		blame_fault(check->row, DOCTOR_PROBLEM, &fault);
	else
		check_program(check, pack.base, &line);
	doctor_found(check->row, "%s", line.data);
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
	AUTO_REF struct ref ref = {0};

	if (!check.config)
		return 0;
	check.name = config_str(check.config, "image");
	if (ref_parse(check.name, &ref, &fault) < 0) {
		AUTO_FREE char *fix = fault.hint ? mem_printf("image: %s", fault.hint) : NULL;
		doctor_found(row, "not valid");
		doctor_blame(row, DOCTOR_PROBLEM, fix, "%s", fault.message);
		return 0;
	}
	if (ref.kind == REF_REGISTRY)
		return check_remote_base(&check, err);
	if (ref.kind == REF_SCRATCH)
		check_no_base(&check);
	else
		check_layout(&check);
	return 0;
}
