/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/vec.h"
#include "kube/portforward/podexec.h"
#include "kube/portforward/podforward.h"
#include "targets/kube/target_kube.h"

enum { FIND_MS = 10 * 1000, PODS_MAX = 10000 };

#define CONTAINER "program"
#define INDEX     "batch.kubernetes.io/job-completion-index"

/*
 * The pod of a rank
 */

static bool has_rank(const struct json *pod, int rank)
{
	const struct json *metadata = json_get(pod, "metadata");
	const char *index = json_get_str(json_get(metadata, "labels"), INDEX);
	int64_t number = 0;

	if (!index)
		index = json_get_str(json_get(metadata, "annotations"), INDEX);
	return (!index || str_to_int(index, 0, PODS_MAX, "index", &number, NULL) == 0) &&
	       number == rank;
}

static bool is_running(const struct json *pod)
{
	return !json_get_str(json_get(pod, "metadata"), "deletionTimestamp") &&
	       str_eq(json_get_str(json_get(pod, "status"), "phase"), "Running");
}

/* The newest one that runs; its name belongs to list. */
static const char *pick_pod(const struct json *list, int rank)
{
	const char *best = NULL, *best_time = "";

	for (const struct json *pod = json_first(json_get(list, "items")); pod;
		pod = json_next(pod)) {
		const struct json *metadata = json_get(pod, "metadata");
		const char *time = json_get_str(metadata, "creationTimestamp");

		if (!has_rank(pod, rank) || !is_running(pod) || !time)
			continue;
		if (!best || strcmp(time, best_time) > 0) {
			best = json_get_str(metadata, "name");
			best_time = time;
		}
	}
	return best;
}

static struct kube_call *list_pods(
	struct target_kube *kube, const struct kube_handle *handle, kube_done_fn *done, void *ctx)
{
	AUTO_FREE char *path = kube_path("/api/v1/namespaces/%s/pods", handle->kube_namespace);
	AUTO_FREE char *label = mem_printf("batch.kubernetes.io/job-name=%s", handle->job);
	const char *const query[] = {"labelSelector", label, NULL};

	return kube_list(
		kube->cluster->client, path, query, PODS_MAX, clock_ms() + FIND_MS, done, ctx);
}

static int fail_no_pod(const struct kube_handle *handle, int rank, struct err *err)
{
	return err_set(
		err, E_KUBE_FORWARD, "no pod of rank %d of %s runs now", rank, handle->run_id);
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
	struct kube_call *find, *look;
	char *looked_at; /* the pod */
};

struct kube_reach {
	struct VEC_OF(struct reach *) list;
	struct podforward_kube *dialler;
	struct podforward_transport transport;
};

static int on_found(void *ctx, struct kube_answer *answer, struct err *err)
{
	struct reach *reach = ctx;
	AUTO_ERR struct err fault = {0};
	const char *pod;

	(void)err;
	reach->find = NULL;
	if (err_is_set(&answer->fault)) {
		podforward_no_pod(reach->forward, &answer->fault, answer->fault.code == ERR_AUTH);
		return 0;
	}
	pod = pick_pod(answer->object, reach->rank);
	if (pod) {
		podforward_pod(reach->forward, reach->handle.kube_namespace, pod);
		return 0;
	}
	fail_no_pod(&reach->handle, reach->rank, &fault);
	podforward_no_pod(reach->forward, &fault, false);
	return 0;
}

static void resolve(void *ctx, struct podforward *forward)
{
	struct reach *reach = ctx;

	(void)forward;
	reach->find = list_pods(reach->kube, &reach->handle, on_found, reach);
}

/* A pod that is terminating may still respond. */
static bool has_ended(const struct kube_answer *answer)
{
	const char *phase = json_get_str(json_get(answer->object, "status"), "phase");

	if (err_is_set(&answer->fault))
		return answer->fault.id == E_KUBE_NOT_FOUND;
	return str_eq(phase, "Succeeded") || str_eq(phase, "Failed");
}

static int on_looked(void *ctx, struct kube_answer *answer, struct err *err)
{
	struct reach *reach = ctx;
	AUTO_FREE char *pod = TAKE(reach->looked_at);

	(void)err;
	reach->look = NULL;
	podforward_looked(reach->forward, pod, has_ended(answer));
	return 0;
}

static void look(void *ctx, struct podforward *forward, const char *pod)
{
	struct reach *reach = ctx;
	AUTO_FREE char *path =
		kube_path("/api/v1/namespaces/%s/pods/%s", reach->handle.kube_namespace, pod);

	(void)forward;
	reach->looked_at = mem_strdup(pod);
	reach->look = kube_start(
		reach->kube->cluster->client, &(struct kube_request){.method = "GET",
						      .path = path,
						      .deadline_ms = clock_deadline(FIND_MS),
						      .done = on_looked,
						      .ctx = reach});
}

static void notice(void *ctx, const char *text)
{
	const struct target *target = &((struct reach *)ctx)->kube->target;

	if (target->notice)
		target->notice(target->notice_ctx, text);
}

static struct kube_reach *reach_of(struct target_kube *kube)
{
	if (!kube->reach) {
		kube->reach = mem_alloc(1, sizeof(*kube->reach));
		kube->reach->dialler =
			podforward_kube_new(kube->cluster->client, &kube->reach->transport);
	}
	return kube->reach;
}

static struct reach *find_reach(
	struct target_kube *kube, const struct kube_handle *handle, int rank)
{
	struct kube_reach *all = reach_of(kube);
	struct reach *reach;

	for (size_t i = 0; i < all->list.n; i++)
		if (all->list.v[i]->rank == rank &&
			str_eq(all->list.v[i]->handle.job, handle->job) &&
			str_eq(all->list.v[i]->handle.kube_namespace, handle->kube_namespace))
			return all->list.v[i];
	reach = mem_alloc(1, sizeof(*reach));
	*reach = (struct reach){.kube = kube, .handle = *handle, .rank = rank};
	reach->forward = podforward_new(&(struct podforward_options){.loop = kube->target.loop,
		.transport = all->transport,
		.resolve = resolve,
		.look = look,
		.notice = notice,
		.ctx = reach});
	*vec_push(&all->list) = reach;
	return reach;
}

void kube_reach_free(struct kube_reach *reach)
{
	if (!reach)
		return;
	for (size_t i = 0; i < reach->list.n; i++) {
		kube_cancel(reach->list.v[i]->find);
		kube_cancel(reach->list.v[i]->look);
		free(reach->list.v[i]->looked_at);
		podforward_free(reach->list.v[i]->forward);
		free(reach->list.v[i]);
	}
	vec_done(&reach->list);
	podforward_kube_free(reach->dialler);
	free(reach);
}

struct carry {
	struct target_work work;
	struct target_call *call;
	struct podforward_conn *conn;
};

static void drop_carry(struct target_work *work)
{
	struct carry *carry = (struct carry *)work;

	podforward_cancel(carry->conn);
	free(carry);
}

static int on_carried(void *ctx, struct podforward_end *end, struct err *err)
{
	struct carry *carry = ctx;
	AUTO_ERR struct err fault = {0};
	int r = err_is_set(&end->fault) ? err_move(&fault, &end->fault) : 0;

	(void)err;
	carry->conn = NULL;
	target_call_end(carry->call, r, &fault);
	return 0;
}

int kube_carry(struct target *target, const char *handle, int rank, uint16_t port, int fd,
	struct target_call *call, struct err *err)
{
	struct target_kube *kube = target_kube_of(target);
	struct kube_handle parsed;
	struct carry *carry;

	int r = kube_handle_parse(kube, handle, &parsed, err);
	if (r < 0) {
		close(fd);
		return r;
	}
	carry = mem_alloc(1, sizeof(*carry));
	*carry = (struct carry){.work = {drop_carry}, .call = call};
	target_call_begin(call, &carry->work);
	carry->conn = podforward_carry(
		find_reach(kube, &parsed, rank)->forward, fd, port, on_carried, carry);
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

static int on_executed(void *ctx, int status, struct err *fault, struct err *err)
{
	struct exec *exec = ctx;

	(void)err;
	exec->exec = NULL;
	*exec->ret_status = status;
	target_call_end(exec->call, err_is_set(fault) ? -(int)fault->code : 0, fault);
	return 0;
}

static int on_resized(void *ctx, int sig, struct err *err)
{
	struct exec *exec = ctx;

	(void)sig;
	(void)err;
	podexec_resize(exec->exec);
	return 0;
}

static void on_opened(void *ctx)
{
	struct exec *exec = ctx;

	if (exec->request.tty && exec->request.raw)
		exec->request.raw(exec->request.ctx);
}

static void ask_size(void *ctx, unsigned *ret_columns, unsigned *ret_rows)
{
	const struct exec *exec = ctx;

	if (exec->request.size)
		exec->request.size(exec->request.ctx, ret_columns, ret_rows);
}

static int on_pods(void *ctx, struct kube_answer *answer, struct err *err)
{
	struct exec *exec = ctx;
	AUTO_ERR struct err fault = {0};
	const char *pod = NULL;
	int r = 0;

	(void)err;
	exec->find = NULL;
	if (err_is_set(&answer->fault))
		r = err_move(&fault, &answer->fault);
	else if (!(pod = pick_pod(answer->object, exec->request.rank)))
		r = fail_no_pod(&exec->handle, exec->request.rank, &fault);
	if (r < 0) {
		target_call_end(exec->call, r, &fault);
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
		.size = ask_size,
		.opened = on_opened,
		.done = on_executed,
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
		r = loop_add_signal(target->loop, SIGWINCH, on_resized, exec, err);
	exec->has_signal = request->tty && r == 0;
	if (r < 0) {
		target_call_cancel(call);
		return r;
	}
	exec->find = list_pods(kube, &parsed, on_pods, exec);
	return 0;
}
