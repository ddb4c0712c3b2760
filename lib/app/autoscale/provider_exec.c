/* SPDX-License-Identifier: Apache-2.0 */
/* A provider that is a program. Each verb is a process of its own. */
#include <string.h>

#include "app/autoscale/provider_impl.h"
#include "base/loop/proc_run.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/vec.h"

enum { STDERR_KEPT = 4 << 10, GRACE_MS = 2000 };

struct exec_call {
	struct exec_call *next;
	struct provider_exec *exec;
	struct provider_call *call; /* NULL: given up; only its end is waited for */
	struct buf request;
	int64_t limit_ms;
	struct proc_run *run;     /* NULL: it waits, or was not started because of error */
	struct loop_timer *timer; /* to report error */
	struct err error;
};

struct provider_programs {
	size_t max;
	struct exec_call *calls; /* in the order in which they were made */
};

struct provider_exec {
	struct provider base;
	struct provider_programs *programs;
	struct loop *loop;
	struct strv argv;
	const char *const *env;
};

static void provider_exec_free_call(struct exec_call *call)
{
	struct exec_call **at = &call->exec->programs->calls;

	while (*at != call)
		at = &(*at)->next;
	*at = call->next;
	proc_run_free(call->run);
	loop_remove_timer(call->exec->loop, call->timer);
	buf_done(&call->request);
	err_done(&call->error);
	free(call);
}

/*
 * The end
 */

/* The last line with anything in it. */
static void provider_exec_last_line(const struct buf *text, struct buf *out)
{
	size_t end = text->len;

	while (end > 0 && strchr(" \t\r\n", text->data[end - 1]))
		end--;
	size_t start = end;
	while (start > 0 && text->data[start - 1] != '\n')
		start--;
	if (start < end)
		buf_adds(out, ": ");
	buf_add(out, text->data + start, end - start);
}

/* How it failed, or NULL with its response. The last line of stderr is added. */
static char *provider_exec_read(const struct exec_call *call, const struct proc_run_result *result,
	struct json **ret_response)
{
	AUTO_BUF struct buf text = buf_with(2 * STDERR_KEPT);
	AUTO_ERR struct err error = {0};
	AUTO_FREE char *how = NULL;
	char limit[32];

	if (result->end == PROC_RUN_LATE)
		how = mem_printf("it took longer than %s", duration_text(call->limit_ms, limit));
	else if (result->end == PROC_RUN_TOO_MUCH)
		how = mem_strdup("it printed more than 8 MiB");
	else if (result->status != 0)
		how = proc_run_text(result);
	else if (json_parse(result->out->data, result->out->len, PROVIDER_RESPONSE_MAX,
			 "the response", ret_response, &error) < 0)
		how = mem_strdup(error.message);
	if (!how)
		return NULL;
	buf_adds(&text, how);
	if (result->is_stuck)
		buf_adds(&text, ", and cannot be killed");
	provider_exec_last_line(result->errors, &text);
	return buf_take(&text);
}

static void provider_exec_next(struct provider_programs *programs);

static int provider_exec_on_end(void *ctx, const struct proc_run_result *result, struct err *err)
{
	struct exec_call *call = ctx;
	struct provider_programs *programs = call->exec->programs;
	struct provider_call *ended = TAKE(call->call);
	struct json *response = NULL;
	AUTO_FREE char *how = ended ? provider_exec_read(call, result, &response) : NULL;
	AUTO_ERR struct err error = {0};

	provider_exec_free_call(call);
	provider_exec_next(programs);
	if (!ended)
		return 0;
	if (!how)
		return provider_end(ended, response, err);
	err_set(&error, E_SCALE_PROVIDER, "%s", how);
	return provider_end_failed(ended, SCALE_FAILED_OTHER, true, &error, err);
}

static int provider_exec_on_error(void *ctx, struct err *err)
{
	struct exec_call *call = ctx;
	struct provider_call *ended = TAKE(call->call);
	enum scale_failure failure =
		call->error.id == E_RUN_EXEC ? SCALE_FAILED_CONFIG : SCALE_FAILED_OTHER;
	AUTO_ERR struct err error = {0};

	if (call->error.n_evidence > 0)
		err_set(&error, E_SCALE_PROVIDER, "%s: %s", call->error.message,
			call->error.evidence[0]);
	else
		err_move(&error, &call->error);
	provider_exec_free_call(call);
	return provider_end_failed(ended, failure, false, &error, err);
}

/*
 * The start
 */

static int provider_exec_begin(struct exec_call *call)
{
	struct provider_exec *exec = call->exec;
	struct provider_call *of = call->call;
	const struct proc_run_spec spec = {.argv = (const char *const *)exec->argv.v,
		.env = exec->env,
		.input = call->request.data,
		.out_max = PROVIDER_RESPONSE_MAX,
		.errors_max = STDERR_KEPT,
		.timeout_ms = call->limit_ms,
		.grace_ms = GRACE_MS,
		.kills_rest = true};

	if (of->may_begin)
		ERR_TRY(of->may_begin(of->ctx, &call->error));
	of->is_waiting = false;
	ERR_TRY(buf_check(&call->request, "the request", &call->error));
	return proc_run_start(
		exec->loop, &spec, provider_exec_on_end, call, &call->run, &call->error);
}

/* Starts those that wait, as many as may run. */
static void provider_exec_next(struct provider_programs *programs)
{
	size_t n = 0;

	for (struct exec_call *call = programs->calls; call; call = call->next)
		n += call->run != NULL;
	for (struct exec_call *call = programs->calls; call && n < programs->max;
		call = call->next) {
		if (call->run || call->timer)
			continue;
		if (provider_exec_begin(call) == 0)
			n++;
		else
			call->timer = loop_add_timer(
				call->exec->loop, clock_ms(), provider_exec_on_error, call);
	}
}

static void provider_exec_start(struct provider *provider, struct provider_call *of,
	const struct json *request, int64_t deadline_ms)
{
	struct provider_exec *exec = (struct provider_exec *)provider;
	struct exec_call *call = mem_alloc(1, sizeof(*call));
	struct exec_call **last = &exec->programs->calls;
	int64_t limit_ms = deadline_ms - clock_ms();

	*call = (struct exec_call){.exec = exec,
		.call = of,
		.request = buf_with(PROVIDER_RESPONSE_MAX),
		.limit_ms = limit_ms > 0 ? limit_ms : 0};
	json_print(request, &call->request);
	buf_addc(&call->request, '\n');
	of->own = call;
	of->is_waiting = true;
	while (*last)
		last = &(*last)->next;
	*last = call;
	provider_exec_next(exec->programs);
}

/* A program that runs gets time to end in order. */
static void provider_exec_cancel(struct provider *provider UNUSED, struct provider_call *of)
{
	struct exec_call *call = of->own;

	call->call = NULL;
	if (call->run)
		proc_run_stop(call->run);
	else
		provider_exec_free_call(call);
}

static void provider_exec_free(struct provider *provider)
{
	struct provider_exec *exec = (struct provider_exec *)provider;
	struct exec_call *next;

	for (struct exec_call *call = exec->programs->calls; call; call = next) {
		next = call->next;
		if (call->exec != exec)
			continue;
		free(call->call);
		provider_exec_free_call(call);
	}
	strv_done(&exec->argv);
	free(exec);
}

struct provider_programs *provider_programs_new(size_t max)
{
	struct provider_programs *programs = mem_alloc(1, sizeof(*programs));

	programs->max = max;
	return programs;
}

void provider_programs_free(struct provider_programs *programs)
{
	free(programs);
}

struct provider *provider_exec_new(struct loop *loop, struct provider_programs *programs,
	const char *name, const char *const *argv, const char *const *env)
{
	static const struct provider_ops ops = {.start = provider_exec_start,
		.cancel = provider_exec_cancel,
		.free = provider_exec_free};
	struct provider_exec *exec = mem_alloc(1, sizeof(*exec));

	*exec = (struct provider_exec){.base = {.ops = &ops, .name = mem_strdup(name)},
		.programs = programs,
		.loop = loop,
		.env = env};
	for (; *argv; argv++)
		strv_add(&exec->argv, *argv);
	return &exec->base;
}
