/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/os/fs.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/status/object.h"
#include "targets/kube/target_kube.h"

/*
 * Handles of attempts in a cluster
 */

enum { ATTEMPTS_MAX = 9999 };

static const char *const kind_parts[KUBE_KINDS] = {
	[KUBE_KIND_JOB] = "", [KUBE_KIND_JOBSET] = "jobset/"};

char *kube_handle_text(
	const char *server, const char *kube_namespace, enum kube_kind kind, const char *name)
{
	return mem_printf("kube:%s/%s/%s%s", server, kube_namespace, kind_parts[kind], name);
}

char *kube_handle_member_text(
	const char *server, const char *kube_namespace, const char *study, int index)
{
	return mem_printf("kube:%s/%s/%s/%d", server, kube_namespace, study, index);
}

bool kube_member_study(const char *run_id, char ret_study[static RUN_ID_SIZE], int *ret_index)
{
	const char *suffix = run_id_is_valid(run_id) ? strrchr(run_id, '-') : NULL;
	AUTO_FREE char *name = suffix ? mem_strndup(run_id, (size_t)(suffix - run_id)) : NULL;
	char *dash = name ? strrchr(name, '-') : NULL, made[RUN_ID_SIZE];
	int64_t index;

	if (!dash || dash == name ||
		str_to_int(dash + 1, 0, KUBE_MEMBERS_MAX - 1, "index", &index, NULL) < 0)
		return false;
	*dash = '\0';
	snprintf(ret_study, RUN_ID_SIZE, "%s%s", name, suffix);
	run_member_id(ret_study, (size_t)index, made);
	*ret_index = (int)index;
	return str_eq(made, run_id) && run_id_is_valid(ret_study);
}

char *kube_handle_jobs(const struct kube_handle *handle)
{
	return mem_printf(KUBE_LABEL_RUN "=%s", handle->owner);
}

char *kube_handle_pods(const struct kube_handle *handle)
{
	return handle->is_member ? mem_printf(KUBE_LABEL_RUN "=%s," KUBE_INDEX "=%d", handle->owner,
					   handle->index)
				 : kube_handle_jobs(handle);
}

char *kube_handle_attempt_pods(const struct kube_handle *handle)
{
	AUTO_FREE char *all = kube_handle_pods(handle);

	return mem_printf("%s," KUBE_LABEL_ATTEMPT "=%d", all, handle->attempt);
}

char *kube_attempt_path(
	const struct target_kube *kube, const struct kube_handle *handle, const char *name)
{
	AUTO_FREE char *dir = dirs_attempt(&kube->session->dirs, handle->run_id, handle->attempt);

	return fs_join(dir, name);
}

const struct json *kube_item(const struct json *list, const char *name)
{
	const struct json *item = kube_first(list, "items");

	while (item && !str_eq(kube_str_at(item, "metadata.name"), name))
		item = json_next(item);
	return item;
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

static bool target_kube_take_part(const char **text, char end, char *out, size_t size)
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

/* rest: the index; the name is the study's id. */
static bool take_member(const char *rest, struct kube_handle *ret)
{
	int64_t index;

	if (ret->kind != KUBE_KIND_JOB || ret->attempt != 1 ||
		strlen(ret->run_id) > RUN_ID_SIZE - 1 - RUN_INDEX_MAX ||
		str_to_int(rest, 0, KUBE_MEMBERS_MAX - 1, "index", &index, NULL) < 0)
		return false;
	ret->is_member = true;
	ret->index = (int)index;
	run_member_id(ret->owner, (size_t)index, ret->run_id);
	return true;
}

static bool target_kube_take_name(const char *rest, struct kube_handle *ret)
{
	AUTO_FREE char *job = NULL;

	ret->kind = take_kind(&rest);
	bool has_index = strchr(rest, '/') != NULL;
	if (!target_kube_take_part(&rest, has_index ? '/' : '\0', ret->name, sizeof(ret->name)))
		return false;
	job = kube_kind_job(ret->kind, ret->name);
	if (snprintf(ret->job, sizeof(ret->job), "%s", job) >= (int)sizeof(ret->job) ||
		!split_name(ret->name, ret))
		return false;
	memcpy(ret->owner, ret->run_id, sizeof(ret->owner));
	return !has_index || take_member(rest, ret);
}

int kube_handle_parse(const struct target_kube *kube, const char *handle, struct kube_handle *ret,
	struct err *err)
{
	const char *rest = handle + strlen("kube:");

	*ret = (struct kube_handle){0};
	if (!str_starts(handle, "kube:") ||
		!target_kube_take_part(&rest, '/', ret->server, sizeof(ret->server)) ||
		!target_kube_take_part(
			&rest, '/', ret->kube_namespace, sizeof(ret->kube_namespace)) ||
		!target_kube_take_name(rest, ret)) {
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
	       target_kube_take_part(&rest, '/', place.server, sizeof(place.server)) &&
	       target_kube_take_part(
		       &rest, '/', place.kube_namespace, sizeof(place.kube_namespace)) &&
	       take_kind(&rest) == KUBE_KIND_JOBSET;
}
