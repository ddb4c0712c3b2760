/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "app/doctor/doctor_checks.h"
#include "base/loop/proc.h"
#include "base/loop/loop.h"
#include "base/os/env.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/registry_config.h"
#include "core/config/target_names.h"
#include "core/image/base_program.h"
#include "core/image/pack.h"
#include "core/image/python_base.h"
#include "core/image/registry_open.h"
#include "kube/api/credential.h"
#include "oci/image/image.h"
#include "targets/target_list.h"
#include "targets/targets.h"

/*
 * Checks of clusters (the kubeconfig, and what targets need of each), of the hosts of ssh targets
 * (is there a login, and by what; can programs be run there), and of registries (how they are
 * reached, who we are there, whether an image could be pushed).
 */

enum { LINE_BYTES = 64 << 10, SOON_MS = 15 * 60 * 1000 };
/* Less than the timeout of a check, so that the cause is reported. */
enum {
	CLUSTERS_MS = DOCTOR_TIMEOUT_MS - 2000,
	HOSTS_MS = DOCTOR_TIMEOUT_MS - 1000,
	REGISTRIES_MS = DOCTOR_TIMEOUT_MS - 1000
};

/* First evidence that does not merely describe the request, which does not matter here. */
static const char *evidence_of(const struct err *error)
{
	for (size_t i = 0; i < error->n_evidence; i++)
		if (!str_starts(error->evidence[i], "cannot read ") &&
			!str_starts(error->evidence[i], "cannot create ") &&
			!str_ends(error->evidence[i], " tries"))
			return error->evidence[i];
	return NULL;
}

/* The first row of a check is that of the first cluster or host. */
static struct doctor_row *next_row(struct doctor_row *row)
{
	return row->found ? doctor_row_add(row, row->id) : row;
}

static void blame_error(struct doctor_row *row, enum doctor_status status, const struct err *error)
{
	const char *evidence = evidence_of(error);
	/* The hint to run `dlrun doctor` is pointless here. */
	const char *fix = str_eq(error->hint, "dlrun doctor") ? NULL : error->hint;

	doctor_blame(row, status, fix, "%s%s%s", error->message, evidence ? ": " : "",
		evidence ? evidence : "");
}

/* Where the configuration is not valid its own row says why. */
static bool find_clusters(
	const struct doctor *doctor, struct target_list *ret, struct doctor_row *row)
{
	AUTO_ERR struct err error = {0};

	if (target_list_clusters(doctor->session, ret, &error) == 0)
		return true;
	doctor_found(row, "not looked at: %s", error.message);
	return false;
}

static bool doctor_remote_has_clusters(const struct target_list *list)
{
	vec_foreach (const struct target_item, item, &list->items)
		if (item->is_cluster)
			return true;
	return false;
}

/*
 * kubeconfig
 */

int doctor_kubeconfig(const struct doctor *doctor, struct doctor_row *row, struct err *err UNUSED)
{
	AUTO_TARGET_LIST struct target_list list = {0};
	AUTO_STRV struct strv contexts = {0};
	AUTO_ERR struct err error = {0};
	AUTO_BUF struct buf line = buf_with(LINE_BYTES);
	const struct kubeconfig *kubeconfig;

	bool needed = find_clusters(doctor, &list, row) && doctor_remote_has_clusters(&list);
	if (kube_open_config(doctor->session, &kubeconfig, &error) < 0) {
		bool none = error.id == E_KUBE_NO_CONFIG;
		doctor_found(row, none ? "none" : "not usable");
		if (!none || needed)
			blame_error(row, needed ? DOCTOR_PROBLEM : DOCTOR_WARNING, &error);
		return 0;
	}
	AUTO_STRV struct strv files = {0};

	kubeconfig_files(kubeconfig, &files);
	for (size_t i = 0; i < files.n; i++)
		buf_addf(&line, "%s%s", i ? ", " : "", files.v[i]);
	if (files.n == 0)
		buf_adds(&line, "none, this is a pod");
	kubeconfig_contexts(kubeconfig, &contexts);
	const char *current = kubeconfig_current(kubeconfig);
	buf_addf(&line, ": %zu %s, %s%s", contexts.n, contexts.n == 1 ? "context" : "contexts",
		current ? current : "none", " is current");
	return doctor_found(row, "%s", line.data);
}

/*
 * A single cluster
 */

struct subject {
	const struct doctor *doctor;
	const struct target_item *item;
	const struct kube_poll *poll;
	const struct kube_access *access; /* NULL: the context leads nowhere */
};

static void describe_server(const struct subject *about, struct doctor_row *row)
{
	const struct kube_poll *poll = about->poll;
	const struct kube_access *access = about->access;
	char time[32];

	if (!access) {
		doctor_found(row, "%s: not usable", about->item->name);
		blame_error(row, DOCTOR_PROBLEM, &poll->error);
		return;
	}
	AUTO_FREE char *url = url_text(&access->server);
	AUTO_FREE char *response = poll->reached
					   ? mem_printf("%s, answers in %s",
						     poll->version ? poll->version : "no version",
						     duration_text(poll->response_ms, time))
					   : mem_strdup("does not answer us");
	doctor_found(row, "%s: context %s, namespace %s, %s, %s", about->item->name,
		access->context, access->kube_namespace, url, response);
	if (!poll->reached)
		blame_error(row, DOCTOR_PROBLEM, &poll->error);
	if (poll->namespace_status == 404) {
		AUTO_FREE char *fix = mem_printf("kubectl --context %s create namespace %s",
			access->context, access->kube_namespace);
		doctor_blame(row, DOCTOR_PROBLEM, fix, "the cluster has no namespace %s",
			access->kube_namespace);
	}
}

void doctor_evaluate_expiry(struct doctor_row *row, int64_t expiry_ms, int64_t now_ms)
{
	static const char fix[] = "log in to the cluster again, then: dlrun doctor";
	char time[32];

	if (expiry_ms > 0 && expiry_ms <= now_ms)
		doctor_blame(row, DOCTOR_PROBLEM, fix, "it has expired %s ago",
			duration_text(now_ms - expiry_ms, time));
	else if (expiry_ms > 0 && expiry_ms - now_ms < SOON_MS)
		doctor_blame(row, DOCTOR_WARNING, fix, "it expires in %s",
			duration_text(expiry_ms - now_ms, time));
}

static void describe_credential(
	const struct subject *about, const char *what, int64_t expiry_ms, struct doctor_row *row)
{
	int64_t now_ms = clock_wall_ms();
	char time[32];

	if (expiry_ms > now_ms)
		doctor_found(row, "%s: %s, valid for %s", about->item->name, what,
			duration_text(expiry_ms - now_ms, time));
	else
		doctor_found(row, "%s: %s", about->item->name, what);
	doctor_evaluate_expiry(row, expiry_ms, now_ms);
}

static void describe_plugin(const struct subject *about, struct doctor_row *row)
{
	const struct kube_exec *exec = about->access->exec;
	const char *path = env_get(about->doctor->session->env.env, "PATH");
	AUTO_FREE char *found = proc_find(exec->command, path);

	doctor_found(row, "%s: %s %s", about->item->name, found ? "made by" : "no program",
		found ? found : exec->command);
	if (!found)
		doctor_blame(row, DOCTOR_PROBLEM, exec->install_hint,
			"%s, which logs in, is not installed", exec->command);
}

static void describe_login(const struct subject *about, struct doctor_row *row)
{
	const struct kube_access *access = about->access;

	if (access->token_file)
		describe_credential(about, "a token in a file", 0, row);
	else if (access->token)
		describe_credential(about, "a token", kube_expiry_token(access->token), row);
	else if (access->exec)
		describe_plugin(about, row);
	else if (access->cert_pem)
		describe_credential(
			about, "a certificate", kube_expiry_certificate(access->cert_pem), row);
	else
		doctor_found(row, "%s: %s", about->item->name,
			access->username ? "a user name and password" : "none, anonymous");
}

/* Runs do without the others. */
static void blame_right(const struct subject *about, enum kube_right right, struct doctor_row *row)
{
	static const enum doctor_status bad[KUBE_RIGHTS] = {
		[KUBE_RIGHT_SUBMIT] = DOCTOR_PROBLEM,
		[KUBE_RIGHT_LOGS] = DOCTOR_WARNING,
		[KUBE_RIGHT_EXEC] = DOCTOR_WARNING,
		[KUBE_RIGHT_FORWARD] = DOCTOR_WARNING,
		[KUBE_RIGHT_EVENTS] = DOCTOR_WARNING,
	};
	AUTO_BUF struct buf fix = buf_with(LINE_BYTES);

	if (about->poll->rights[right] != KUBE_MAY_NOT || bad[right] == DOCTOR_OK)
		return;
	buf_addf(&fix, "dlrun init --rbac %s --target ", kube_right_tier(right));
	str_shell_quote(&fix, about->item->name);
	doctor_blame(row, bad[right], fix.data, "you may not %s in namespace %s",
		kube_right_text(right), about->access->kube_namespace);
}

static void describe_rights(const struct subject *about, struct doctor_row *row)
{
	AUTO_BUF struct buf line = buf_with(LINE_BYTES);

	kube_poll_add_rights(about->poll, KUBE_MAY, " may ", &line);
	kube_poll_add_rights(
		about->poll, KUBE_MAY_NOT, line.len ? "; may not " : " may not ", &line);
	kube_poll_add_rights(
		about->poll, KUBE_MAY_UNKNOWN, line.len ? "; not known: " : " not known: ", &line);
	doctor_found(row, "%s:%s", about->item->name, line.data);
	for (int i = 0; i < KUBE_RIGHTS; i++)
		blame_right(about, i, row);
}

/* The most that can be found out of a Secret whose contents nobody needs to see. */
static void blame_pull_secret(const struct subject *about, struct doctor_row *row)
{
	const struct kube_poll *poll = about->poll;
	const char *space = about->access->kube_namespace;

	if (poll->pull_secret_status == 404) {
		AUTO_FREE char *fix = mem_printf(
			"kubectl create secret docker-registry %s -n %s --docker-server=HOST "
			"--docker-username=USER --docker-password=…",
			poll->pull_secret, space);
		doctor_blame(row, DOCTOR_PROBLEM, fix,
			"namespace %s has no Secret %s, with which nodes would pull images", space,
			poll->pull_secret);
	} else if (poll->pull_secret_type && !strstr(poll->pull_secret_type, "docker")) {
		doctor_blame(row, DOCTOR_WARNING, NULL,
			"Secret %s is of type %s, nodes log in with kubernetes.io/dockerconfigjson",
			poll->pull_secret, poll->pull_secret_type);
	}
}

static const char *pull_secret_state(const struct kube_poll *poll)
{
	return poll->pull_secret_status == 404   ? ", which is missing"
	       : poll->pull_secret_status == 200 ? ""
						 : ", not looked at";
}

static void describe_pods(const struct subject *about, struct doctor_row *row)
{
	const struct kube_poll *poll = about->poll;
	AUTO_REGISTRY_CONFIG struct registry_config registry = {0};
	AUTO_ERR struct err error = {0};
	AUTO_BUF struct buf line = buf_with(LINE_BYTES);
	struct config *config;
	int r = session_config(about->doctor->session, &config, &error);

	if (r == 0)
		r = registry_config_find(config, about->item->name, &registry, &error);
	buf_addf(&line, "%s: Pod Security %s", about->item->name,
		poll->enforced ? poll->enforced : "not known");
	if (r == 0)
		buf_adds(&line, ", no registry: code goes through the API server");
	else
		buf_addf(&line, ", images of %s", r > 0 ? registry.pull : "an unknown registry");
	if (poll->pull_secret)
		buf_addf(&line, ", pull secret %s%s", poll->pull_secret, pull_secret_state(poll));
	else
		buf_adds(&line, ", no pull secret");
	if (poll->queue)
		buf_addf(&line, ", queue %s", poll->queue);
	doctor_found(row, "%s", line.data);
	if (r < 0)
		blame_error(row, DOCTOR_WARNING, &error);
	blame_pull_secret(about, row);
	if (about->poll->queue_status == 404)
		doctor_blame(row, DOCTOR_PROBLEM, "kubectl get localqueues",
			"namespace %s has no queue %s", about->access->kube_namespace,
			about->poll->queue);
}

/*
 * All of them
 */

static void describe_cluster(
	const struct doctor *doctor, const struct target_item *item, struct doctor_row *row)
{
	struct subject about = {.doctor = doctor, .item = item, .poll = &item->poll};
	const struct kube_cluster *cluster = item->poll.cluster;

	about.access = cluster ? &cluster->access : NULL;
	describe_server(&about, next_row(row));
	if (!cluster)
		return;
	for (size_t i = 0; i < about.access->warnings.n; i++) {
		struct doctor_row *more = doctor_row_add(row, "cluster-safety");
		doctor_found(more, "%s: not safe", about.item->name);
		doctor_blame(more, DOCTOR_WARNING, NULL, "%s", about.access->warnings.v[i]);
	}
	describe_login(&about, doctor_row_add(row, "cluster-login"));
	if (!item->poll.reached)
		return;
	describe_rights(&about, doctor_row_add(row, "cluster-rights"));
	describe_pods(&about, doctor_row_add(row, "cluster-pods"));
}

int doctor_clusters(const struct doctor *doctor, struct doctor_row *row, struct err *err)
{
	AUTO_TARGET_LIST struct target_list list = {0};
	AUTO_ERR struct err error = {0};
	const struct kubeconfig *kubeconfig;

	if (!find_clusters(doctor, &list, row))
		return 0;
	if (!doctor_remote_has_clusters(&list))
		return doctor_found(row, "none is configured");
	if (kube_open_config(doctor->session, &kubeconfig, &error) < 0)
		return doctor_found(row, "not looked at (see kubeconfig)");
	int r = target_list_query(doctor->session, &list, true, CLUSTERS_MS, NULL, err);
	if (r < 0)
		return r;
	vec_foreach (const struct target_item, item, &list.items)
		if (item->is_cluster)
			describe_cluster(doctor, item, row);
	return 0;
}

/*
 * node
 */

static bool doctor_remote_find_hosts(
	const struct doctor *doctor, struct target_list *ret, struct doctor_row *row)
{
	AUTO_ERR struct err error = {0};

	if (target_list_clusters(doctor->session, ret, &error) < 0) {
		doctor_found(row, "not looked at (see configuration)");
		return false;
	}
	vec_foreach (const struct target_item, item, &ret->items)
		if (item->ops->has_login)
			return true;
	doctor_found(row, "none is configured");
	return false;
}

static void describe_host(
	const struct target_item *item, const struct node_probe *probe, struct doctor_row *row)
{
	AUTO_FREE char *text = node_probe_text(probe);
	const char *why = NULL;

	if (probe->opened && probe->opened->ssh)
		ssh_transport(probe->opened->ssh, &why);
	if (!probe->facts) {
		doctor_found(row, "%s: %s", item->name, probe->host);
		doctor_blame(row, DOCTOR_PROBLEM, probe->error.hint, "%s", text);
		return;
	}
	doctor_found(row, "%s: %s answers after %lld ms: %s; programs are started by %s%s%s",
		item->name, probe->host, (long long)probe->response_ms, text, probe->facts->launch,
		why ? "; " : "", why ? why : "");
	for (size_t i = 0; i < probe->facts->missing.n; i++) {
		const char *needed = node_tool_needed(probe->facts->missing.v[i]);
		doctor_blame(row, needed ? DOCTOR_PROBLEM : DOCTOR_WARNING, NULL,
			"%s is missing there", needed ? needed : probe->facts->missing.v[i]);
	}
	if (str_eq(probe->facts->launch, "nohup"))
		doctor_blame(row, DOCTOR_WARNING, NULL,
			"there is no setsid: programs may end with the login");
}

int doctor_nodes(const struct doctor *doctor, struct doctor_row *row, struct err *err)
{
	AUTO_TARGET_LIST struct target_list list = {0};

	if (!doctor_remote_find_hosts(doctor, &list, row))
		return 0;
	int r = target_list_query_hosts(doctor->session, &list, HOSTS_MS, NULL, err);
	if (r < 0)
		return r;
	vec_foreach (const struct target_item, item, &list.items) {
		const struct err *error = &item->poll.error;
		if (item->ops->has_login && err_is_set(error)) {
			struct doctor_row *more = next_row(row);
			doctor_found(more, "%s", item->name);
			doctor_blame(more, DOCTOR_PROBLEM, error->hint, "%s", error->message);
		}
		for (size_t i = 0; i < item->hosts.n; i++)
			describe_host(item, &item->node_probes[i], next_row(row));
	}
	return 0;
}

/* NULL: it is not valid, which the row says then. */
static struct config *doctor_remote_load_config(const struct doctor *doctor, struct doctor_row *row)
{
	AUTO_ERR struct err error = {0};
	struct config *config = NULL;

	if (session_config(doctor->session, &config, &error) < 0)
		doctor_found(row, "not looked at: %s", error.message);
	return config;
}

static char *doctor_remote_host_of(const char *repository)
{
	return mem_strndup(repository, strcspn(repository, "/"));
}

/*
 * proxy
 */

/* Hosts that are queried: of registries and of the base image, each once. */
static void find_registries(const struct config *config, struct strv *ret)
{
	AUTO_STRV struct strv repositories = {0};
	AUTO_REF struct ref base = {0};

	registry_config_all(config, &repositories);
	vec_foreach (char *, repository, &repositories) {
		AUTO_FREE char *host = doctor_remote_host_of(*repository);
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
	AUTO_ERR struct err error = {0};
	AUTO_FREE char *proxy = NULL;
	const char *variable = NULL;

	int r = url_make(true, host, "/", &url, &error);
	if (r == 0)
		r = proxy_shown(env, &url, &proxy, &variable, &error);
	if (r < 0) {
		blame_error(row, DOCTOR_PROBLEM, &error);
		return mem_strdup("not valid");
	}
	return proxy ? mem_printf("%s (%s)", proxy, variable) : mem_strdup("none");
}

int doctor_proxy(const struct doctor *doctor, struct doctor_row *row, struct err *err UNUSED)
{
	struct config *config = doctor_remote_load_config(doctor, row);
	AUTO_STRV struct strv hosts = {0};
	AUTO_BUF struct buf line = buf_with(LINE_BYTES);
	struct proxy_env env;

	if (!config)
		return 0;
	proxy_env_read(doctor->session->env.env, &env);
	find_registries(config, &hosts);
	vec_foreach (char *, host, &hosts) {
		AUTO_FREE char *text = proxy_text(&env, *host, row);
		buf_addf(&line, "%s%s for %s", line.len ? "; " : "", text, *host);
	}
	/* Then any host that NO_PROXY does not name shows which one it is. */
	AUTO_FREE char *any = hosts.n ? NULL : proxy_text(&env, "registry.invalid", row);
	return doctor_found(row, "%s", any ? any : line.data);
}

/*
 * registry
 */

struct push_checks;

/* A repository that images are pushed to. */
struct probe {
	struct push_checks *checks;
	const char *repository;
	struct registry *registry;
	struct err error;
};

struct push_checks {
	struct registry_client client;
	struct probe *probes;
	size_t n;
	struct loop_wait wait;
};

static void push_checks_done(struct push_checks *checks)
{
	for (size_t i = 0; i < checks->n; i++) {
		registry_free(checks->probes[i].registry);
		err_done(&checks->probes[i].error);
	}
	free(checks->probes);
	registry_client_done(&checks->client);
}

static int doctor_remote_end_probe(struct probe *probe)
{
	loop_wait_done(&probe->checks->wait);
	return 0;
}

/* Ignore the result: registries drop abandoned sessions, too. */
static int on_closed(void *ctx, struct http_response *response UNUSED, struct err *error UNUSED,
	struct err *err UNUSED)
{
	return doctor_remote_end_probe(ctx);
}

/* A session for an upload was opened, so that we may push; it is closed again. */
static int doctor_remote_on_opened(
	void *ctx, struct http_response *response, struct err *error, struct err *err UNUSED)
{
	struct probe *probe = ctx;
	AUTO_URL struct url url = {0};

	if (error) {
		err_move(&probe->error, error);
		return doctor_remote_end_probe(probe);
	}
	if (registry_location(probe->registry, response, &url, &probe->error) < 0)
		return doctor_remote_end_probe(probe);
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
	struct push_checks *checks = probe->checks;

	if (registry_query_open(
		    &checks->client, probe->repository, true, &probe->registry, &probe->error) < 0)
		return;
	checks->wait.n_open++;
	registry_start(probe->registry, &(struct registry_request){
						.method = "POST",
						.path = "blobs/uploads/",
						.max_body = HTTP_ERROR_BODY_MAX,
						.once = true,
						.doing = "opening an upload",
						.done = doctor_remote_on_opened,
						.ctx = probe,
					});
}

/* "localhost:5000/me: http, anonymous, may be pushed to". */
static void describe_repository(const struct probe *probe, struct doctor_row *row, struct buf *line)
{
	AUTO_FREE char *host = doctor_remote_host_of(probe->repository);
	AUTO_FREE char *ca = registry_query_certificates(&probe->checks->client, host);
	bool failed = err_is_set(&probe->error);

	buf_addf(line, "%s%s: ", line->len ? "; " : "", probe->repository);
	if (failed)
		blame_error(row, DOCTOR_PROBLEM, &probe->error);
	if (failed && probe->error.code != ERR_AUTH) {
		buf_adds(line, "no answer that could be used");
		return;
	}
	const char *identity = auth_identity(registry_auth(probe->registry));
	if (registry_uses_http(probe->registry))
		buf_adds(line, "http");
	else
		buf_addf(line, "https, %s", ca);
	buf_addf(line, ", %s, %s", identity ? identity : "login not known",
		failed ? "may not push" : "may push");
}

int doctor_registry(const struct doctor *doctor, struct doctor_row *row, struct err *err)
{
	struct config *config = doctor_remote_load_config(doctor, row);
	AUTO(push_checks_done) struct push_checks checks = {0};
	AUTO_STRV struct strv repositories = {0};
	AUTO_BUF struct buf line = buf_with(LINE_BYTES);

	if (!config)
		return 0;
	registry_config_all(config, &repositories);
	if (repositories.n == 0)
		return doctor_found(row, "none is set (registry: in dlrun.yaml)");
	int r = registry_query_init(&checks.client, doctor->session, REGISTRIES_MS, err);
	if (r == 0) {
		checks.probes = mem_alloc(repositories.n, sizeof(*checks.probes));
		checks.n = repositories.n;
		checks.wait.loop = checks.client.options.loop;
		for (size_t i = 0; i < checks.n; i++) {
			checks.probes[i] =
				(struct probe){.checks = &checks, .repository = repositories.v[i]};
			start_probe(&checks.probes[i]);
		}
		r = loop_wait_run(&checks.wait, err);
	}
	if (r < 0)
		return r;
	for (size_t i = 0; i < checks.n; i++)
		describe_repository(&checks.probes[i], row, &line);
	return doctor_found(row, "%s", line.data);
}

/*
 * base
 */

struct base_check {
	const struct doctor *doctor;
	struct doctor_row *row;
	struct config *config;
	const char *name; /* of the base image */
	struct base_lookup *lookup;
	bool has_own_login; /* one that another of this host, which is pushed to, has not */
};

static bool needs_image(const struct config *config, const char *name)
{
	const struct target_ops *ops = name ? target_ops_named(config, name) : NULL;

	return ops && ops->needs_image;
}

/* The chosen target, or else the first one, whose programs need an image; NULL: none does. */
static char *doctor_remote_find_cluster(const struct config *config)
{
	AUTO_FREE char *chosen = target_names_first(config, config_str(config, "target"));
	AUTO_STRV struct strv names = {0};

	if (needs_image(config, chosen))
		return TAKE(chosen);
	config_target_names(config, &names);
	for (size_t i = 0; i < names.n; i++)
		if (needs_image(config, names.v[i]))
			return mem_strdup(names.v[i]);
	return NULL;
}

/* Program that `command:` starts; NULL: not known. The caller frees. */
static char *doctor_remote_program_of(const struct config *config)
{
	static const char chars[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
				    "0123456789._+-";
	bool shell;
	const struct strv *command = config_command(config, &shell);
	const char *first = command->n ? command->v[0] : "";
	size_t len = shell ? strspn(first, chars) : strlen(first);
	AUTO_FREE char *word = mem_strndup(first, len);

	if (len == 0 || strchr(word, '/') || (shell && first[len] && first[len] != ' '))
		return NULL;
	if (shell && str_is_word_of(word, ". [ cd eval exec exit export set source test ulimit"))
		return NULL;
	return str_ends(word, ".py") ? mem_strdup("python3") : TAKE(word);
}

/* "; python3: cannot be known from its configuration"; line has what is known of the base. */
static void check_program(struct base_check *check, const struct image_base *base, struct buf *line)
{
	AUTO_FREE char *program = doctor_remote_program_of(check->config), *shown = NULL,
		       *why = NULL;
	AUTO_BASE_PROGRAM struct base_program found = {0};

	if (!program)
		return;
	base_program_find(base, program, &found);
	shown = str_shown(program);
	why = found.why ? str_shown(found.why) : NULL;
	if (found.has == BASE_UNKNOWN)
		buf_addf(line, "; whether it has %s cannot be known from %s", shown,
			base->layout == check->lookup->layout ? "its configuration" : "here");
	else
		buf_addf(line, "; %s %s: %s", found.has == BASE_HAS ? "has" : "lacks", shown, why);
	if (found.has != BASE_LACKS)
		return;
	AUTO_FREE char *cluster = doctor_remote_find_cluster(check->config);
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
	AUTO_ERR struct err error = {0};
	const struct image_base *base = check->lookup->base;

	if (base->n_layers == 0)
		return;
	AUTO_FREE char *path = mem_printf("blobs/%s", base->layers[0].digest);
	struct registry_request request = {.method = "HEAD",
		.repo = check->lookup->ref.repo,
		.path = path,
		.doing = "looking for a layer of the base image"};
	int r = registry_query_open(&check->lookup->client, repository, true, &registry, &error);
	if (r == 0 && !registry_shares_login(registry, check->lookup->ref.repo)) {
		check->has_own_login = true;
	} else if (r == 0) {
		registry_add_source(registry, check->lookup->ref.repo, true);
		r = registry_query(&check->lookup->client, registry, &request, &reply, &error);
	}
	if (r < 0)
		blame_error(check->row, DOCTOR_PROBLEM, &error);
}

static void check_mounts(struct base_check *check)
{
	const struct image_base *base = check->lookup->base;
	const char *host_of_base = check->lookup->ref.host;
	AUTO_STRV struct strv repositories = {0};
	AUTO_BUF struct buf line = buf_with(LINE_BYTES);

	registry_config_all(check->config, &repositories);
	vec_foreach (char *, repository, &repositories) {
		AUTO_FREE char *host = doctor_remote_host_of(*repository);
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
		check->lookup->digest, base->n_layers, base->n_layers == 1 ? "layer" : "layers",
		repositories.n && check->row->status == DOCTOR_OK ? mounts : "");
	check_program(check, base, &line);
	doctor_found(check->row, "%s", line.data);
}

static int check_remote_base(struct base_check *check, struct err *err)
{
	AUTO_ERR struct err error = {0};
	const char *platform = config_str(check->config, "platform");

	int r = base_lookup_init(check->lookup, check->doctor->session, REGISTRIES_MS, err);
	if (r < 0)
		return r;
	if (base_lookup_run(check->lookup, check->name, platform, &error) == 0) {
		check_mounts(check);
		return 0;
	}
	doctor_found(check->row, "%s: not usable", check->name);
	blame_error(check->row, DOCTOR_PROBLEM, &error);
	return 0;
}

static void check_layout(struct base_check *check)
{
	AUTO_PACK struct pack pack = {0};
	AUTO_ERR struct err error = {0};
	AUTO_BUF struct buf line = buf_with(LINE_BYTES);

	buf_addf(&line, "%s, a layout on disk", check->name);
	if (pack_init(&pack, check->doctor->session, NULL, false, &error) < 0)
		blame_error(check->row, DOCTOR_PROBLEM, &error);
	else
		check_program(check, pack.base, &line);
	doctor_found(check->row, "%s", line.data);
}

static void check_no_base(struct base_check *check)
{
	AUTO_FREE char *cluster = doctor_remote_find_cluster(check->config);
	AUTO_PYTHON_NAMED struct python_named named = {0};
	const struct tree_place *place;

	if (cluster && !config_is_set(check->config, "image") &&
		session_place(check->doctor->session, &place, NULL) == 0 &&
		python_find_above(place, &named)) {
		doctor_found(check->row, "none is set: submit takes one with Python 3.%d (%s)",
			named.minor, named.from);
		return;
	}
	doctor_found(check->row, "none (scratch)");
	if (cluster && !config_is_set(check->config, "image"))
		doctor_blame(check->row, DOCTOR_PROBLEM, "image: docker.io/library/python:3.12",
			"target %s runs programs in containers, which need a base image", cluster);
}

int doctor_base(const struct doctor *doctor, struct doctor_row *row, struct err *err)
{
	AUTO_BASE_LOOKUP struct base_lookup lookup = {0};
	struct base_check check = {.doctor = doctor,
		.row = row,
		.config = doctor_remote_load_config(doctor, row),
		.lookup = &lookup};
	AUTO_ERR struct err error = {0};
	AUTO_REF struct ref ref = {0};

	if (!check.config)
		return 0;
	check.name = config_str(check.config, "image");
	if (ref_parse(check.name, &ref, &error) < 0) {
		AUTO_FREE char *fix = error.hint ? mem_printf("image: %s", error.hint) : NULL;
		doctor_found(row, "not valid");
		return doctor_blame(row, DOCTOR_PROBLEM, fix, "%s", error.message);
	}
	if (ref.kind == REF_REGISTRY)
		return check_remote_base(&check, err);
	if (ref.kind == REF_SCRATCH)
		check_no_base(&check);
	else
		check_layout(&check);
	return 0;
}
