/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/kube/target_kube.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "core/record/spec.h"
#include "targets/kube/kube_mend.h"

enum { ATTEMPTS_MAX = 9999, ASK_MS = 20000 };

/*
 * Handles
 */

static const char *const kind_parts[KUBE_KINDS] = {
	[KUBE_KIND_JOB] = "", [KUBE_KIND_JOBSET] = "jobset/"};

char *kube_handle_text(
	const char *server, const char *kube_namespace, enum kube_kind kind, const char *name)
{
	return mem_printf("kube:%s/%s/%s%s", server, kube_namespace, kind_parts[kind], name);
}

static int prepare(struct target *target, const char *run_id, int attempt, const struct spec *spec,
	char handle[static TARGET_HANDLE_SIZE], struct err *err)
{
	const struct target_kube *kube = target_kube_of(target);
	bool is_jobset =
		kube->takes_jobset && kube_wants_jobset(spec->resources.nodes, spec->world.retries);
	AUTO_FREE char *name = kube_job_name(run_id, attempt);
	AUTO_FREE char *text = kube_handle_text(kube->cluster->server_id, kube->kube_namespace,
		is_jobset ? KUBE_KIND_JOBSET : KUBE_KIND_JOB, name);

	(void)err;
	snprintf(handle, TARGET_HANDLE_SIZE, "%s", text);
	return 0;
}

/* "<id>" or "<id>-<attempt>": an id ends in five characters behind a dash, an attempt has fewer. */
static bool split_name(const char *name, struct kube_handle *ret)
{
	const char *dash = strrchr(name, '-');
	int64_t attempt = 1;
	size_t len = strlen(name);

	if (dash && strlen(dash + 1) < RUN_SUFFIX) {
		if (str_to_int(dash + 1, 2, ATTEMPTS_MAX, "attempt", &attempt, NULL) < 0)
			return false;
		len = (size_t)(dash - name);
	}
	if (len >= sizeof(ret->run_id))
		return false;
	memcpy(ret->run_id, name, len);
	ret->run_id[len] = '\0';
	ret->attempt = (int)attempt;
	return run_id_is_valid(ret->run_id);
}

static bool take_part(const char **text, char end, char *out, size_t size)
{
	size_t len = strcspn(*text, "/");

	if ((*text)[len] != end || len == 0 || len >= size)
		return false;
	memcpy(out, *text, len);
	out[len] = '\0';
	*text += len + (end != '\0');
	return true;
}

static enum kube_kind take_kind(const char **text)
{
	for (int i = KUBE_KIND_JOB + 1; i < KUBE_KINDS; i++) {
		if (str_starts(*text, kind_parts[i])) {
			*text += strlen(kind_parts[i]);
			return (enum kube_kind)i;
		}
	}
	return KUBE_KIND_JOB;
}

static bool take_name(const char *rest, struct kube_handle *ret)
{
	AUTO_FREE char *job = NULL;

	ret->kind = take_kind(&rest);
	if (!take_part(&rest, '\0', ret->name, sizeof(ret->name)))
		return false;
	job = kube_kind_job(ret->kind, ret->name);
	return snprintf(ret->job, sizeof(ret->job), "%s", job) < (int)sizeof(ret->job) &&
	       split_name(ret->name, ret);
}

int kube_handle_parse(const struct target_kube *kube, const char *handle, struct kube_handle *ret,
	struct err *err)
{
	const char *rest = handle + strlen("kube:");

	*ret = (struct kube_handle){0};
	if (!str_starts(handle, "kube:") ||
		!take_part(&rest, '/', ret->server, sizeof(ret->server)) ||
		!take_part(&rest, '/', ret->kube_namespace, sizeof(ret->kube_namespace)) ||
		!take_name(rest, ret)) {
		AUTO_FREE char *shown = str_shown(handle);
		return err_set(err, E_DATA, "'%s' is not a handle of a run in a cluster", shown);
	}
	if (str_eq(ret->server, kube->cluster->server_id))
		return 0;
	err_set(err, E_TARGET_OTHER, "context %s leads to another cluster than %s was sent to",
		kube->cluster->access.context, ret->run_id);
	return err_hint(err, "kubectl config get-contexts");
}

bool kube_handle_is_jobset(const char *handle)
{
	const char *rest = handle + strlen("kube:");
	struct kube_handle place;

	return str_starts(handle, "kube:") &&
	       take_part(&rest, '/', place.server, sizeof(place.server)) &&
	       take_part(&rest, '/', place.kube_namespace, sizeof(place.kube_namespace)) &&
	       take_kind(&rest) == KUBE_KIND_JOBSET;
}

/*
 * Cancel: the Job is removed with all that is its own. That this was asked for is noted here
 * before, because afterwards nothing in the cluster can tell it from a loss.
 */

static char *cancel_mark(const struct target_kube *kube, const struct kube_handle *handle)
{
	AUTO_FREE char *dir = dirs_attempt(&kube->session->dirs, handle->run_id, handle->attempt);

	return fs_join(dir, ATTEMPT_CANCEL);
}

bool kube_is_cancelled(const struct target_kube *kube, const struct kube_handle *handle)
{
	AUTO_FREE char *path = cancel_mark(kube, handle);

	return access(path, F_OK) == 0;
}

/* *ret_path: it was not there before; the caller frees. */
static int write_mark(const struct target_kube *kube, const struct kube_handle *handle,
	char **ret_path, struct err *err)
{
	AUTO_FREE char *dir = dirs_attempt(&kube->session->dirs, handle->run_id, handle->attempt);
	AUTO_FREE char *path = cancel_mark(kube, handle);

	if (access(path, F_OK) == 0)
		return 0;
	int r = fs_mkdirs(dir, 0700, err);
	if (r == 0)
		r = fs_replace(path, "", 0, 0600, FS_SYNC_FULL, err);
	if (r == 0)
		*ret_path = TAKE(path);
	return r;
}

/* A removal that a call has requested. */
struct removal {
	struct target_work work;
	struct target_call *call;
	struct kube_mend *mend;
	char *mark; /* to be taken back when it is refused; or NULL */
};

static void drop_removal(struct target_work *work)
{
	struct removal *removal = (struct removal *)work;

	kube_mend_cancel(removal->mend);
	free(removal->mark);
	free(removal);
}

static void on_removed(void *ctx, struct err *fault)
{
	struct removal *removal = ctx;

	removal->mend = NULL;
	/* The run goes on, and what ends it later is not its cancel. */
	if (removal->mark && (fault->id == E_KUBE_DENIED || fault->id == E_KUBE_AUTH))
		unlink(removal->mark);
	target_call_end(removal->call, err_is_set(fault) ? -(int)fault->code : 0, fault);
}

/* mark is taken; in the foreground: of a cancel. */
static void remove_all(struct target_kube *kube, const struct kube_handle *handle, unsigned what,
	char *mark, bool in_foreground, struct target_call *call)
{
	struct removal *removal = mem_alloc(1, sizeof(*removal));
	struct kube_mend_request request = {
		.handle = handle,
		.what = what,
		.in_foreground = in_foreground,
		.deadline_ms = call->deadline_ms,
		.done = on_removed,
		.ctx = removal,
	};

	if (!kube_is_adopted(kube, handle))
		request.what |= KUBE_MEND_PARTS;
	*removal = (struct removal){.work = {drop_removal}, .call = call, .mark = mark};
	target_call_begin(call, &removal->work);
	removal->mend = kube_mend_start(kube, &request);
}

static int cancel(
	struct target *target, const char *handle, struct target_call *call, struct err *err)
{
	struct target_kube *kube = target_kube_of(target);
	struct kube_handle place;
	char *mark = NULL;

	int r = kube_handle_parse(kube, handle, &place, err);
	if (r == 0)
		r = write_mark(kube, &place, &mark, err);
	if (r == 0)
		remove_all(kube, &place, KUBE_MEND_JOB, mark, true, call);
	return r;
}

static int forget(struct target *target, const char *handle, bool all, struct target_call *call,
	struct err *err)
{
	struct target_kube *kube = target_kube_of(target);
	struct kube_handle place;

	int r = kube_handle_parse(kube, handle, &place, err);
	if (r == 0)
		remove_all(kube, &place, KUBE_MEND_JOB | (all ? KUBE_MEND_CLAIM : 0), NULL, false,
			call);
	return r;
}

/*
 * The target
 */

static void describe(const struct target *target, struct json *json)
{
	const struct target_kube *kube = (const struct target_kube *)target;

	json_set_str(json, "context", kube->cluster->access.context);
	json_set_str(json, "namespace", kube->kube_namespace);
}

static void target_kube_free(struct target *target)
{
	struct target_kube *kube = target_kube_of(target);

	kube_reach_free(kube->reach);
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
	.describe = describe,
	.prepare = prepare,
	.check = kube_check,
	.learn = kube_learn,
	.submit = kube_submit,
	.sample = kube_sample,
	.state = kube_state,
	.logs = kube_logs,
	.keep = kube_keep,
	.fetch = kube_fetch,
	.adopt = kube_adopt,
	.preview = kube_preview,
	.cancel = cancel,
	.forget = forget,
	.carry = kube_carry,
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
		.target = {&target_kube_ops, mem_strdup(name), session_loop(session)},
		.session = session,
		.cluster = cluster,
		.kube_namespace = cluster->access.kube_namespace,
		.definition = definition ? json_clone(definition) : NULL,
	};
	*ret = &kube->target;
	return 0;
}
