/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/ssh/target_gang.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/words.h"
#include "core/record/spec.h"
#include "node/hosts.h"

#define PREFIX "ssh:"

enum { ATTEMPTS_MAX = 1000000, WARM_MAX = 32 };

/*
 * Handles
 */

char *node_handle_text(const char *host, const char *run_id, int attempt)
{
	return mem_printf(PREFIX "%s/%s/%d", host, run_id, attempt);
}

void node_handle_done(struct node_handle *handle)
{
	free(handle->host);
	handle->host = NULL;
}

/* The last two parts are ours; a host is whatever ssh takes. */
static bool parse_handle(const char *handle, struct node_handle *ret)
{
	const char *last = strrchr(handle, '/'), *id = last;
	int64_t attempt = 0;

	while (id && id > handle && id[-1] != '/')
		id--;
	if (!str_starts(handle, PREFIX) || !id || (size_t)(id - handle) <= strlen(PREFIX) + 1 ||
		(size_t)(last - id) >= sizeof(ret->run_id) ||
		str_to_int(last + 1, 1, ATTEMPTS_MAX, "attempt", &attempt, NULL) < 0)
		return false;
	memcpy(ret->run_id, id, (size_t)(last - id));
	ret->run_id[last - id] = '\0';
	ret->attempt = (int)attempt;
	if (!run_id_is_valid(ret->run_id))
		return false;
	handle += strlen(PREFIX);
	ret->host = mem_strndup(handle, (size_t)(id - 1 - handle));
	return true;
}

int node_handle_parse(const char *handle, struct node_handle *ret, struct err *err)
{
	*ret = (struct node_handle){0};
	if (parse_handle(handle, ret))
		return 0;
	AUTO_FREE char *shown = str_shown(handle);
	return err_set(err, E_DATA, "'%s' is not a handle of a run on a host", shown);
}

/* Where it was not asked which are free: the first ones. */
static int pick_hosts(const struct target_node *node, size_t n, char **ret, struct err *err)
{
	const struct strv first = {.v = node->hosts.v, .n = n > 1 ? n : 1};

	if (first.n > node->hosts.n)
		return err_set(err, E_TARGET, "%zu hosts are wanted, and target %s has %zu", n,
			node->target.name, node->hosts.n);
	*ret = node->chosen ? mem_strdup(node->chosen) : strv_join(&first, ",");
	return 0;
}

static int prepare(struct target *target, const char *run_id, int attempt, const struct spec *spec,
	char handle[static TARGET_HANDLE_SIZE], struct err *err)
{
	const struct target_node *node = target_node_of(target);
	AUTO_FREE char *hosts = NULL;
	int r = pick_hosts(node, (size_t)spec->resources.nodes, &hosts, err);

	if (r < 0)
		return r;
	AUTO_FREE char *text = node_handle_text(hosts, run_id, attempt);
	if (snprintf(handle, TARGET_HANDLE_SIZE, "%s", text) < TARGET_HANDLE_SIZE)
		return 0;
	return err_set(err, E_DATA_LIMIT, "the names of the hosts are too long: %s", hosts);
}

/*
 * Operations
 */

static void drop_work(struct target_work *target_work)
{
	struct node_work *work = (struct node_work *)target_work;

	loop_remove_timer(work->target->target.loop, work->timer);
	node_cancel(work->asked);
	node_handle_done(&work->handle);
	work->release(work);
}

static int on_deadline(void *ctx, struct err *err)
{
	struct node_work *work = ctx;
	AUTO_ERR struct err fault = {0};

	(void)err;
	work->timer = NULL;
	int r = err_set(&fault, E_TARGET_SILENT, "%s did not answer in time", work->host->name);
	target_call_end(work->call, r, &fault);
	return 0;
}

void node_work_extend(struct node_work *work, int64_t ms)
{
	struct loop *loop = work->target->target.loop;

	loop_remove_timer(loop, work->timer);
	work->timer = ms < 0 ? NULL : loop_add_timer(loop, clock_ms() + ms, on_deadline, work);
}

int node_work_begin(struct target *target, const char *handle, struct node_work *work,
	struct target_call *call, struct err *err)
{
	struct target_node *node = target_node_of(target);

	work->work.drop = drop_work;
	work->target = node;
	work->call = call;
	int r = node_handle_parse(handle, &work->handle, err);
	if (r == 0)
		r = node_open(node->session, work->handle.host, node->root, &work->host, err);
	if (r < 0) {
		drop_work(&work->work);
		return r;
	}
	target_call_begin(call, &work->work);
	if (call->deadline_ms)
		work->timer = loop_add_timer(target->loop, call->deadline_ms, on_deadline, work);
	return 0;
}

int node_work_end(struct node_work *work, int status, struct err *fault)
{
	work->asked = NULL;
	node_explain(work->host, fault);
	target_call_end(work->call, status, fault);
	return 0;
}

static void release_plain(struct node_work *work)
{
	free(work);
}

static int on_plain(void *ctx, int status, struct err *fault, struct err *err)
{
	(void)err;
	return node_work_end(ctx, status, fault);
}

static int cancel(
	struct target *target, const char *handle, struct target_call *call, struct err *err)
{
	struct node_work *work;

	if (node_handle_is_gang(handle))
		return target_gang_tell(target, handle, "stop", call, err);
	work = mem_alloc(1, sizeof(*work));
	*work = (struct node_work){.release = release_plain};
	int r = node_work_begin(target, handle, work, call, err);
	if (r == 0)
		work->asked = node_stop(work->host->node, work->handle.run_id, work->handle.attempt,
			on_plain, work);
	return r;
}

static int forget(struct target *target, const char *handle, bool all, struct target_call *call,
	struct err *err)
{
	struct node_work *work;

	if (node_handle_is_gang(handle))
		return target_gang_tell(target, handle, all ? "forget all" : "forget", call, err);
	work = mem_alloc(1, sizeof(*work));
	*work = (struct node_work){.release = release_plain};
	int r = node_work_begin(target, handle, work, call, err);
	if (r == 0)
		work->asked = node_forget(work->host->node, work->handle.run_id,
			work->handle.attempt, all, on_plain, work);
	return r;
}

/* Logins proceed while the tree is read. */
static void warm(struct target *target)
{
	struct target_node *node = target_node_of(target);
	struct node_host *host;

	for (size_t i = 0; i < node->hosts.n && i < WARM_MAX; i++)
		(void)node_open(node->session, node->hosts.v[i], node->root, &host, NULL);
}

static void describe(const struct target *target, struct json *json)
{
	const struct target_node *node = (const struct target_node *)target;
	struct json *hosts = json_array();
	AUTO_STRV struct strv chosen = {0};

	if (node->chosen)
		node_handle_split(node->chosen, &chosen);
	json_add_strv(hosts, node->chosen ? &chosen : &node->hosts);
	json_set(json, "hosts", hosts);
	if (!str_eq(node->root, NODE_ROOT_DEFAULT))
		json_set_str(json, "dir", node->root);
	if (node->runtime)
		json_set_str(json, "runtime", node->runtime);
}

static void free_node(struct target *target)
{
	struct target_node *node = target_node_of(target);

	json_free(node->definition);
	strv_done(&node->hosts);
	free(node->chosen);
	free(node->why);
	free(node->said);
	free(node->root);
	free(node->runtime);
	free(node->target.name);
	free(node);
}

const struct target_ops target_node_ops = {
	.kind = "ssh",
	.has_login = true,
	.has_nodes = true,
	.describe = describe,
	.warm = warm,
	.learn = target_node_learn,
	.prepare = prepare,
	.submit = target_node_submit,
	.state = target_node_state,
	.logs = target_node_logs,
	.fetch = target_node_fetch,
	.adopt = target_node_adopt,
	.preview = target_node_preview,
	.cancel = cancel,
	.forget = forget,
	.carry = target_node_carry,
	.exec = target_node_exec,
	.free = free_node,
};

/*
 * Making one
 */

bool target_node_is(const char *name)
{
	return str_starts(name, PREFIX);
}

static int find_hosts(
	struct target_node *node, const struct json *definition, struct strv *ret, struct err *err)
{
	const struct json *hosts = json_get(definition, "hosts");
	const char *name = node->target.name;

	if (!hosts)
		return node_hosts_parse(
			target_node_is(name) ? name + strlen(PREFIX) : name, ret, err);
	return words_get(definition, "hosts", ret, err);
}

/* The container runtime; NULL: "host" or not set. */
static char *copy_runtime(const struct json *from)
{
	const char *runtime = json_get_str(from, "runtime");

	return runtime && !str_eq(runtime, "host") ? mem_strdup(runtime) : NULL;
}

int target_node_new(struct session *session, const char *name, const struct json *definition,
	const struct strv *hosts, const char *root, struct target **ret, struct err *err)
{
	struct target_node *node = mem_alloc(1, sizeof(*node));

	if (!root)
		root = json_get_str(definition, "dir");
	*node = (struct target_node){
		.target = {&target_node_ops, mem_strdup(name), session_loop(session)},
		.session = session,
		.definition = definition ? json_clone(definition) : NULL,
		.root = mem_strdup(root ? root : NODE_ROOT_DEFAULT),
		.runtime = copy_runtime(definition),
	};
	int r = 0;
	if (hosts)
		strv_copy(&node->hosts, hosts);
	else
		r = find_hosts(node, definition, &node->hosts, err);
	if (r < 0) {
		free_node(&node->target);
		return r;
	}
	*ret = &node->target;
	return 0;
}

int target_node_recorded(struct session *session, const char *name, const struct json *definition,
	const struct json *recorded, struct target **ret, struct err *err)
{
	const char *root = json_get_str(recorded, "dir");
	AUTO_STRV struct strv hosts = {0};

	int r = words_get(recorded, "hosts", &hosts, err);
	if (r == 0 && hosts.n == 0)
		r = err_set(err, E_DATA, "the record says of no host that it was sent to");
	if (r == 0)
		r = target_node_new(session, name, definition, &hosts,
			root ? root : NODE_ROOT_DEFAULT, ret, err);
	if (r < 0)
		return r;
	/* As it was begun, also where the definition says something else by now. */
	free(target_node_of(*ret)->runtime);
	target_node_of(*ret)->runtime = copy_runtime(recorded);
	return 0;
}
