/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/kube/target_kube.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/data/json.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/digest.h"
#include "base/util/enc.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/vec.h"
#include "core/attempt/attempt.h"
#include "core/record/roles.h"
#include "core/record/spec.h"
#include "core/store/store.h"
#include "kube/portforward/podexec.h"
#include "kube/portforward/podforward.h"
#include "kube/status/object.h"
#include "targets/kube/kube_facts.h"
#include "targets/kube/kube_growth.h"
#include "targets/kube/kube_reconcile.h"
#include "targets/kube/kube_study_logs.h"
#include "targets/kube/kube_open.h"

/*
 * Clusters
 */

#define SERVICE_ACCOUNT_DIR "/var/run/secrets/kubernetes.io/serviceaccount"

struct kube_clusters {
	struct kubeconfig *config;
	struct VEC_OF(struct kube_cluster *) list;
	char *cache_dir, *pin_file;
};

static int kube_relay(struct target *target, const char *handle, int rank, uint16_t port, int fd,
	struct target_call *call, struct err *err);

static void kube_portforward_free(struct kube_portforward *reach);

static void cluster_free(struct kube_cluster *cluster)
{
	kube_watchers_done(&cluster->watchers);
	json_free(cluster->nodes);
	kube_growth_free(cluster->growth);
	kube_client_free(cluster->client);
	http_free(cluster->http);
	kube_access_done(&cluster->access);
	free(cluster);
}

void kube_clusters_free(struct kube_clusters *clusters)
{
	if (!clusters)
		return;
	vec_foreach (struct kube_cluster *, cluster, &clusters->list)
		cluster_free(*cluster);
	vec_done(&clusters->list);
	kubeconfig_free(clusters->config);
	free(clusters->cache_dir);
	free(clusters->pin_file);
	free(clusters);
}

static void end_clusters(struct session *session)
{
	kube_clusters_free(TAKE(session->clusters));
}

int kube_open_config(struct session *session, const struct kubeconfig **ret, struct err *err)
{
	const struct dirs *dirs = &session->dirs;

	if (!session->clusters) {
		session->clusters = mem_alloc(1, sizeof(*session->clusters));
		*session->clusters = (struct kube_clusters){
			.cache_dir = dirs->cache ? fs_join(dirs->cache, "kube") : NULL,
			.pin_file = dirs->state ? fs_join(dirs->state, "kube-plugins") : NULL,
		};
		session_at_end(session, end_clusters);
	}
	struct kube_clusters *clusters = session->clusters;
	const char *const *env = session->env.env;
	const struct tree_place *place = NULL;
	int r = 0;

	if (!clusters->config) {
		/* Outside of any tree there is none to be wary of. */
		if (session_place(session, &place, NULL) < 0)
			place = NULL;
		const struct kubeconfig_env from = {
			.kubeconfig = env_get(env, "KUBECONFIG"),
			.home = session->dirs.home,
			.cwd = session->env.cwd,
			.tree = place ? place->root : NULL,
			.service_host = env_get(env, "KUBERNETES_SERVICE_HOST"),
			.service_port = env_get(env, "KUBERNETES_SERVICE_PORT"),
			.service_account_dir = SERVICE_ACCOUNT_DIR,
		};
		r = kubeconfig_load(&from, &clusters->config, err);
	}
	*ret = clusters->config;
	return r;
}

static struct kube_cluster *target_kube_find(
	const struct kube_clusters *clusters, const struct kube_access *wanted)
{
	vec_foreach (struct kube_cluster *, item, &clusters->list) {
		const struct kube_access *access = &(*item)->access;
		if (str_eq(access->context, wanted->context) &&
			str_eq(access->kube_namespace, wanted->kube_namespace))
			return *item;
	}
	return NULL;
}

static void target_kube_annotation(void *ctx UNUSED, const char *text)
{
	log_note("%s", text);
}

static int target_kube_connect_to(
	struct session *session, struct kube_cluster *cluster, struct err *err)
{
	const struct kube_clusters *clusters = session->clusters;
	const char *const *env = session->env.env;
	struct http_options http = http_options_of(session_loop(session), env);
	struct kube_client_options options = {
		.loop = session_loop(session),
		.access = &cluster->access,
		.plugin =
			{
				.cache_dir = clusters->cache_dir,
				.pin_file = clusters->pin_file,
				.env = env,
				.tty_fd = session->env.has_terminal ? 0 : -1,
				.note = session->env.print,
				.ctx = session->env.print_ctx,
			},
		.note = target_kube_annotation,
	};

	int r = fs_private_dir(clusters->cache_dir, err);
	if (r == 0)
		r = fs_private_dir(session->dirs.state, err);
	if (r < 0)
		return r;
	cluster->http = http_new(&http);
	options.http = cluster->http;
	cluster->client = kube_client_new(&options);
	return 0;
}

/* access is taken. */
static int target_kube_add_cluster(struct session *session, struct kube_access *access,
	struct kube_cluster **ret, struct err *err)
{
	struct kube_cluster *cluster = mem_alloc(1, sizeof(*cluster));

	*cluster = (struct kube_cluster){.access = *access};
	*access = (struct kube_access){0};
	int r = target_kube_connect_to(session, cluster, err);
	if (r < 0) {
		cluster_free(cluster);
		return r;
	}
	AUTO_FREE char *url = url_text(&cluster->access.server);
	uint8_t sha256[SHA256_SIZE];
	char hex[SHA256_HEX_SIZE];

	digest_sha256(url, strlen(url), sha256);
	hex_encode(sha256, sizeof(sha256), hex);
	memcpy(cluster->server_id, hex, KUBE_SERVER_ID_SIZE - 1);
	cluster->server_id[KUBE_SERVER_ID_SIZE - 1] = '\0';
	*vec_push(&session->clusters->list) = cluster;
	*ret = cluster;
	return 0;
}

int kube_open(struct session *session, const char *context, const char *kube_namespace,
	struct kube_cluster **ret, struct err *err)
{
	AUTO_KUBE_ACCESS struct kube_access access = {0};
	const struct kubeconfig *config;

	int r = kube_open_config(session, &config, err);
	if (r == 0)
		r = kubeconfig_access(config, context, kube_namespace, &access, err);
	if (r < 0)
		return r;
	struct kube_cluster *cluster = target_kube_find(session->clusters, &access);
	if (!cluster)
		return target_kube_add_cluster(session, &access, ret, err);
	*ret = cluster;
	return 0;
}

/*
 * Names
 */

bool kube_name_is(const char *name)
{
	return str_eq(name, "kube") || str_starts(name, "kube:");
}

static size_t context_len(struct session *session, const char *text)
{
	const struct kubeconfig *kubeconfig;
	AUTO_STRV struct strv names = {0};
	size_t len = strcspn(text, "/"), longest = 0;

	if (text[len] && kube_open_config(session, &kubeconfig, NULL) == 0)
		kubeconfig_contexts(kubeconfig, &names);
	vec_foreach (char *, name, &names) {
		size_t n = strlen(*name);
		if (n > longest && strncmp(text, *name, n) == 0 && (!text[n] || text[n] == '/'))
			longest = n;
	}
	return longest ? longest : len;
}

void kube_name_split(
	struct session *session, const char *name, char **ret_context, char **ret_namespace)
{
	const char *rest = name + strlen("kube");

	rest += *rest == ':';
	size_t len = context_len(session, rest);
	*ret_context = len ? mem_strndup(rest, len) : NULL;
	*ret_namespace = rest[len] && rest[len + 1] ? mem_strdup(rest + len + 1) : NULL;
}

void kube_name_read(struct session *session, const char *name, const struct json *definition,
	char **ret_context, char **ret_namespace)
{
	AUTO_FREE char *kube_namespace = NULL;

	*ret_context = mem_strdup(json_get_str(definition, "context"));
	*ret_namespace = mem_strdup(json_get_str(definition, "namespace"));
	if (*ret_context || !kube_name_is(name))
		return;
	kube_name_split(session, name, ret_context, &kube_namespace);
	if (!*ret_namespace)
		*ret_namespace = TAKE(kube_namespace);
}

/*
 * The target
 */

static int target_kube_prepare(struct target *target, const char *run_id, int attempt,
	const struct spec *spec, char handle[static TARGET_HANDLE_SIZE], struct err *err UNUSED)
{
	const struct target_kube *kube = target_kube_of(target);
	bool is_jobset =
		kube->takes_jobset && kube_wants_jobset(spec->resources.nodes,
					      spec->runtime.retries, spec->roles.list.n > 0);
	bool is_member = spec->study.id && attempt == 1 && spec->resources.nodes <= 1;
	AUTO_FREE char *name = kube_job_name(run_id, attempt);
	AUTO_FREE char *text =
		is_member ? kube_handle_member_text(kube->cluster->server_id, kube->kube_namespace,
				    spec->study.id, spec->study.index)
			  : kube_handle_text(kube->cluster->server_id, kube->kube_namespace,
				    is_jobset ? KUBE_KIND_JOBSET : KUBE_KIND_JOB, name);

	snprintf(handle, TARGET_HANDLE_SIZE, "%s", text);
	return 0;
}

/*
 * Cancel: the Job is removed with all that is its own. That this was asked for is noted here
 * before, because afterwards nothing in the cluster can tell it from a loss.
 */

bool kube_is_cancelled(const struct target_kube *kube, const struct kube_handle *handle)
{
	AUTO_FREE char *path = kube_attempt_path(kube, handle, ATTEMPT_CANCEL);

	return access(path, F_OK) == 0;
}

/* *ret_path: it was not there before; the caller frees. That of a member is durable before a
 * request is sent (kube_reconcile.h). */
static int target_kube_write_mark(const struct target_kube *kube, const struct kube_handle *handle,
	char **ret_path, struct err *err)
{
	AUTO_FREE char *dir = dirs_attempt(&kube->session->dirs, handle->run_id, handle->attempt);
	AUTO_FREE char *path = kube_attempt_path(kube, handle, ATTEMPT_CANCEL);

	if (access(path, F_OK) == 0)
		return 0;
	int r = fs_mkdirs(dir, 0700, err);
	if (r == 0)
		r = fs_replace(
			path, "", 0, 0600, handle->is_member ? FS_SYNC_NONE : FS_SYNC_FULL, err);
	if (r == 0)
		*ret_path = TAKE(path);
	return r;
}

/* A removal that a call has requested. */
struct removal {
	struct target_work work;
	struct target_call *call;
	struct kube_reconcile *repair;
	char *mark; /* to be taken back when it is refused; or NULL */
};

static void drop_removal(struct target_work *work)
{
	struct removal *removal = (struct removal *)work;

	kube_reconcile_cancel(removal->repair);
	free(removal->mark);
	free(removal);
}

static void target_kube_on_removed(void *ctx, struct err *error)
{
	struct removal *removal = ctx;

	removal->repair = NULL;
	/* The run goes on, and what ends it later is not its cancel. */
	if (removal->mark &&
		(error->id == E_KUBE_DENIED || error->id == E_KUBE_AUTH || error->code == ERR_IO))
		unlink(removal->mark);
	target_call_end_as(removal->call, error);
}

/* mark is taken; in the foreground: of a cancel. */
static void target_kube_remove_all(struct target_kube *kube, const struct kube_handle *handle,
	unsigned what, char *mark, bool in_foreground, struct target_call *call)
{
	struct removal *removal = mem_alloc(1, sizeof(*removal));
	struct kube_reconcile_request request = {
		.handle = handle,
		.what = what,
		.in_foreground = in_foreground,
		.deadline_ms = call->deadline_ms,
		.done = target_kube_on_removed,
		.ctx = removal,
	};

	if (!(what & KUBE_RECONCILE_MEMBER) && !kube_is_adopted(kube, handle))
		request.what |= KUBE_RECONCILE_PARTS;
	*removal = (struct removal){.work = {drop_removal}, .call = call, .mark = mark};
	target_call_begin(call, &removal->work);
	removal->repair = kube_reconcile_start(kube, &request);
}

static int target_kube_cancel(
	struct target *target, const char *handle, struct target_call *call, struct err *err)
{
	struct target_kube *kube = target_kube_of(target);
	struct kube_handle place;
	char *mark = NULL;

	int r = kube_handle_parse(kube, handle, &place, err);
	if (r == 0)
		r = target_kube_write_mark(kube, &place, &mark, err);
	if (r == 0)
		target_kube_remove_all(kube, &place,
			place.is_member ? KUBE_RECONCILE_MEMBER : KUBE_RECONCILE_JOB, mark, true,
			call);
	return r;
}

bool kube_has_left_nothing(const struct target_kube *kube, const struct kube_handle *handle)
{
	AUTO_RUN struct run *run = NULL;
	struct store *store;

	return session_store(kube->session, &store, NULL) == 0 &&
	       store_get(store, handle->run_id, &run, NULL) == 0 &&
	       run_attempts(run) == handle->attempt && run_state(run) == RUN_CANCELLED &&
	       !run_started_ms(run);
}

/* The Job of a study stays until the record of the last member is removed; what its ended pods keep
 * is only their logs. */
static bool target_kube_is_needed(const struct target_kube *kube, const struct kube_handle *handle)
{
	AUTO_RUN struct run *run = NULL;
	AUTO_SPEC struct spec spec = {0};
	struct store *store;

	if (session_store(kube->session, &store, NULL) < 0 ||
		store_get(store, handle->run_id, &run, NULL) < 0 ||
		spec_from_json(run->spec, &spec, NULL) < 0)
		return true;
	for (int i = 1; i < spec.study.size; i++) {
		AUTO_RUN struct run *other = NULL;
		char id[RUN_ID_SIZE];

		run_member_id(handle->owner, (size_t)((handle->index + i) % spec.study.size), id);
		AUTO_ERR struct err error = {0};
		if (store_get(store, id, &other, &error) == 0 || error.id != E_RUN_NOT_FOUND)
			return true;
	}
	return false;
}

static int target_kube_forget(struct target *target, const char *handle, bool all,
	struct target_call *call, struct err *err)
{
	struct target_kube *kube = target_kube_of(target);
	struct kube_handle place;

	int r = kube_handle_parse(kube, handle, &place, err);
	if (r == 0 && place.is_member && (!all || target_kube_is_needed(kube, &place)))
		target_call_end_soon(call, target->loop);
	else if (r == 0)
		target_kube_remove_all(kube, &place,
			KUBE_RECONCILE_JOB | (all ? KUBE_RECONCILE_CLAIM : 0), NULL, false, call);
	return r;
}

/*
 * The target
 */

static void target_kube_describe(const struct target *target, struct json *json)
{
	const struct target_kube *kube = (const struct target_kube *)target;

	json_set_str(json, "context", kube->cluster->access.context);
	json_set_str(json, "namespace", kube->kube_namespace);
}

static void target_kube_free(struct target *target)
{
	struct target_kube *kube = target_kube_of(target);

	kube_portforward_free(kube->reach);
	kube_stops_free(kube->stops);
	kube_study_logs_free(kube->study_logs);
	json_free(kube->definition);
	free(kube->enforced);
	free(kube->user);
	free(kube->target.name);
	free(kube);
}

const struct target_ops target_kube_ops = {
	.kind = "kubernetes",
	.needs_image = true,
	.has_scheduler = true,
	.has_nodes = true,
	.has_own_network = true,
	.describe = target_kube_describe,
	.room = kube_room,
	.prepare = target_kube_prepare,
	.check = kube_check,
	.learn = kube_learn,
	.submit = kube_submit,
	.submit_study = kube_submit_study,
	.deliver = kube_deliver,
	.sample = kube_sample,
	.state = kube_state,
	.logs = kube_logs,
	.keep = kube_keep,
	.fetch = kube_fetch,
	.adopt = kube_adopt,
	.preview = kube_preview,
	.cancel = target_kube_cancel,
	.withdraw = kube_withdraw,
	.forget = target_kube_forget,
	.relay = kube_relay,
	.exec = kube_exec,
	.free = target_kube_free,
};

int target_kube_new(struct session *session, const char *name, const struct json *definition,
	const char *context, const char *kube_namespace, struct target **ret, struct err *err)
{
	struct kube_cluster *cluster;
	struct target_kube *kube;

	if (!context)
		context = json_get_str(definition, "context");
	if (!kube_namespace)
		kube_namespace = json_get_str(definition, "namespace");
	int r = kube_open(session, context, kube_namespace, &cluster, err);
	if (r < 0)
		return r;
	kube = mem_alloc(1, sizeof(*kube));
	*kube = (struct target_kube){
		.target = {&target_kube_ops, mem_strdup(name), session_loop(session),
			.code_stored = KUBE_CODE_STORED},
		.session = session,
		.cluster = cluster,
		.kube_namespace = cluster->access.kube_namespace,
		.definition = definition ? json_clone(definition) : NULL,
	};
	*ret = &kube->target;
	return 0;
}

/*
 * Connections and commands
 */

enum { FIND_MS = 10 * 1000, PODS_MAX = 10000 };

#define CONTAINER "program"

/*
 * The pod of a rank
 */

/* The newest one that runs; its name belongs to list. */
static const char *pick_pod(const struct json *list, const struct kube_handle *handle, int rank)
{
	const char *best = NULL, *best_time = "";

	for (const struct json *pod = kube_first(list, "items"); pod; pod = json_next(pod)) {
		const char *time = kube_str_at(pod, "metadata.creationTimestamp");
		int number = kube_rank_of(pod);
		/* A member of a study has rank 0. */
		bool is_rank =
			handle->is_member ? rank == 0 && number == handle->index : number == rank;

		if (!is_rank || kube_str_at(pod, "metadata.deletionTimestamp") || !time ||
			!str_eq(kube_str_at(pod, "status.phase"), "Running"))
			continue;
		if (!best || strcmp(time, best_time) > 0) {
			best = kube_str_at(pod, "metadata.name");
			best_time = time;
		}
	}
	return best;
}

static struct kube_call *list_pods(
	struct target_kube *kube, const struct kube_handle *handle, kube_done_fn *done, void *ctx)
{
	AUTO_FREE char *path = kube_path("/api/v1/namespaces/%s/pods", handle->kube_namespace);
	AUTO_FREE char *label = kube_handle_attempt_pods(handle);
	const char *const query[] = {"labelSelector", label, NULL};

	return kube_list(
		kube->cluster->client, path, query, PODS_MAX, clock_ms() + FIND_MS, done, ctx);
}

static int fail_no_pod(
	const struct target_kube *kube, const struct kube_handle *handle, int rank, struct err *err)
{
	AUTO_ERR struct err ignored = {0};
	AUTO_RUN struct run *run = NULL;
	struct store *store;

	if (session_store(kube->session, &store, &ignored) == 0)
		(void)store_get(store, handle->run_id, &run, &ignored);
	AUTO_FREE char *shown = roles_rank_text(run ? run->doc : NULL, rank);

	return err_set(err, E_KUBE_FORWARD, "no pod of %s of %s runs now", shown, handle->run_id);
}

/*
 * Ports
 */

/* Forwarding to one rank of an attempt. */
struct reach {
	struct target_kube *kube;
	struct kube_handle handle;
	int rank;
	struct podforward *forward;
	struct kube_call *find, *poll;
	char *checked_pod; /* its name */
};

struct kube_portforward {
	struct VEC_OF(struct reach *) list;
	struct podforward_kube *dialler;
	struct podforward_transport transport;
};

static int target_kube_on_found(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct reach *reach = ctx;
	AUTO_ERR struct err error = {0};
	const char *pod;

	reach->find = NULL;
	if (err_is_set(&response->error)) {
		podforward_no_pod(
			reach->forward, &response->error, response->error.code == ERR_AUTH);
		return 0;
	}
	pod = pick_pod(response->object, &reach->handle, reach->rank);
	if (pod) {
		podforward_pod(reach->forward, reach->handle.kube_namespace, pod);
		return 0;
	}
	fail_no_pod(reach->kube, &reach->handle, reach->rank, &error);
	podforward_no_pod(reach->forward, &error, false);
	return 0;
}

static void target_kube_resolve(void *ctx, struct podforward *forward UNUSED)
{
	struct reach *reach = ctx;

	reach->find = list_pods(reach->kube, &reach->handle, target_kube_on_found, reach);
}

/* A pod that is terminating may still respond. */
static bool target_kube_has_ended(const struct kube_response *response)
{
	const char *phase = kube_str_at(response->object, "status.phase");

	if (err_is_set(&response->error))
		return response->error.id == E_KUBE_NOT_FOUND;
	return str_eq(phase, "Succeeded") || str_eq(phase, "Failed");
}

static int target_kube_on_polled(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct reach *reach = ctx;
	AUTO_FREE char *pod = TAKE(reach->checked_pod);

	reach->poll = NULL;
	podforward_polled(reach->forward, pod, target_kube_has_ended(response));
	return 0;
}

static void target_kube_poll(void *ctx, struct podforward *forward UNUSED, const char *pod)
{
	struct reach *reach = ctx;
	AUTO_FREE char *path =
		kube_path("/api/v1/namespaces/%s/pods/%s", reach->handle.kube_namespace, pod);

	reach->checked_pod = mem_strdup(pod);
	reach->poll = kube_start(
		reach->kube->cluster->client, &(struct kube_request){.method = "GET",
						      .path = path,
						      .deadline_ms = clock_deadline(FIND_MS),
						      .done = target_kube_on_polled,
						      .ctx = reach});
}

static void target_kube_notice(void *ctx, const char *text)
{
	const struct target *target = &((struct reach *)ctx)->kube->target;

	if (target->notice)
		target->notice(target->notice_ctx, text);
}

static struct reach *find_reach(
	struct target_kube *kube, const struct kube_handle *handle, int rank)
{
	if (!kube->reach) {
		kube->reach = mem_alloc(1, sizeof(*kube->reach));
		kube->reach->dialler =
			podforward_kube_new(kube->cluster->client, &kube->reach->transport);
	}
	struct kube_portforward *all = kube->reach;
	struct reach *reach;

	for (size_t i = 0; i < all->list.n; i++)
		if (all->list.v[i]->rank == rank &&
			str_eq(all->list.v[i]->handle.job, handle->job) &&
			str_eq(all->list.v[i]->handle.run_id, handle->run_id) &&
			str_eq(all->list.v[i]->handle.kube_namespace, handle->kube_namespace))
			return all->list.v[i];
	reach = mem_alloc(1, sizeof(*reach));
	*reach = (struct reach){.kube = kube, .handle = *handle, .rank = rank};
	reach->forward = podforward_new(&(struct podforward_options){.loop = kube->target.loop,
		.transport = all->transport,
		.resolve = target_kube_resolve,
		.poll = target_kube_poll,
		.notice = target_kube_notice,
		.ctx = reach});
	*vec_push(&all->list) = reach;
	return reach;
}

/* For the target's end. NULL is accepted. */
static void kube_portforward_free(struct kube_portforward *reach)
{
	if (!reach)
		return;
	for (size_t i = 0; i < reach->list.n; i++) {
		kube_cancel(reach->list.v[i]->find);
		kube_cancel(reach->list.v[i]->poll);
		free(reach->list.v[i]->checked_pod);
		podforward_free(reach->list.v[i]->forward);
		free(reach->list.v[i]);
	}
	vec_done(&reach->list);
	podforward_kube_free(reach->dialler);
	free(reach);
}

struct relay {
	struct target_work work;
	struct target_call *call;
	struct podforward_conn *conn;
};

static void drop_relay(struct target_work *work)
{
	struct relay *relay = (struct relay *)work;

	podforward_cancel(relay->conn);
	free(relay);
}

static int target_kube_on_relayed(void *ctx, struct podforward_end *end, struct err *err UNUSED)
{
	struct relay *relay = ctx;

	relay->conn = NULL;
	target_call_end_as(relay->call, &end->error);
	return 0;
}

/* target_ops.carry and exec. */
static int kube_relay(struct target *target, const char *handle, int rank, uint16_t port, int fd,
	struct target_call *call, struct err *err)
{
	struct target_kube *kube = target_kube_of(target);
	struct kube_handle parsed;
	struct relay *relay;

	int r = kube_handle_parse(kube, handle, &parsed, err);
	if (r < 0) {
		close(fd);
		return r;
	}
	relay = mem_alloc(1, sizeof(*relay));
	*relay = (struct relay){.work = {drop_relay}, .call = call};
	target_call_begin(call, &relay->work);
	relay->conn = podforward_relay(
		find_reach(kube, &parsed, rank)->forward, fd, port, target_kube_on_relayed, relay);
	return 0;
}

/*
 * Commands
 */

struct exec {
	struct target_work work;
	struct target_kube *kube;
	struct target_call *call;
	struct kube_handle handle;
	struct target_exec_request request;
	struct strv command;
	struct kube_call *find;
	struct podexec *exec;
	bool has_signal;
	int *ret_status;
};

static void drop_exec(struct target_work *work)
{
	struct exec *exec = (struct exec *)work;

	if (exec->has_signal)
		loop_remove_signal(exec->kube->target.loop, SIGWINCH);
	kube_cancel(exec->find);
	podexec_cancel(exec->exec);
	strv_done(&exec->command);
	free(exec);
}

static int target_kube_on_executed(void *ctx, int status, struct err *error, struct err *err UNUSED)
{
	struct exec *exec = ctx;

	exec->exec = NULL;
	*exec->ret_status = status;
	target_call_end_as(exec->call, error);
	return 0;
}

static int target_kube_on_resized(void *ctx, int sig UNUSED, struct err *err UNUSED)
{
	struct exec *exec = ctx;

	podexec_resize(exec->exec);
	return 0;
}

static void target_kube_on_opened(void *ctx)
{
	struct exec *exec = ctx;

	if (exec->request.tty && exec->request.raw)
		exec->request.raw(exec->request.ctx);
}

static void target_kube_query_size(void *ctx, unsigned *ret_columns, unsigned *ret_rows)
{
	const struct exec *exec = ctx;

	if (exec->request.size)
		exec->request.size(exec->request.ctx, ret_columns, ret_rows);
}

static int target_kube_on_pods(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct exec *exec = ctx;
	AUTO_ERR struct err error = {0};
	const char *pod = NULL;
	int r = 0;

	exec->find = NULL;
	if (err_is_set(&response->error))
		r = err_move(&error, &response->error);
	else if (!(pod = pick_pod(response->object, &exec->handle, exec->request.rank)))
		r = fail_no_pod(exec->kube, &exec->handle, exec->request.rank, &error);
	if (r < 0) {
		target_call_end(exec->call, r, &error);
		return 0;
	}
	const struct podexec_request request = {.loop = exec->kube->target.loop,
		.client = exec->kube->cluster->client,
		.kube_namespace = exec->handle.kube_namespace,
		.pod = pod,
		.container = CONTAINER,
		.command = &exec->command,
		.fds = {exec->request.fds[0], exec->request.fds[1], exec->request.fds[2]},
		.tty = exec->request.tty,
		.size = target_kube_query_size,
		.opened = target_kube_on_opened,
		.done = target_kube_on_executed,
		.ctx = exec};
	exec->exec = podexec_start(&request);
	return 0;
}

int kube_exec(struct target *target, const char *handle, const struct target_exec_request *request,
	int *ret_status, struct target_call *call, struct err *err)
{
	struct target_kube *kube = target_kube_of(target);
	struct kube_handle parsed;
	struct exec *exec;

	int r = kube_handle_parse(kube, handle, &parsed, err);
	if (r < 0)
		return r;
	exec = mem_alloc(1, sizeof(*exec));
	*exec = (struct exec){.work = {drop_exec},
		.kube = kube,
		.call = call,
		.handle = parsed,
		.request = *request,
		.ret_status = ret_status};
	if (request->command->n) {
		strv_copy(&exec->command, request->command);
	} else {
		/* The best shell that the image has. */
		strv_add(&exec->command, "sh");
		strv_add(&exec->command, "-c");
		strv_add(&exec->command, "command -v bash >/dev/null 2>&1 && exec bash; exec sh");
	}
	target_call_begin(call, &exec->work);
	if (request->tty)
		r = loop_add_signal(target->loop, SIGWINCH, target_kube_on_resized, exec, err);
	exec->has_signal = request->tty && r == 0;
	if (r < 0) {
		target_call_cancel(call);
		return r;
	}
	exec->find = list_pods(kube, &parsed, target_kube_on_pods, exec);
	return 0;
}
