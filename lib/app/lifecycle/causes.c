/* SPDX-License-Identifier: Apache-2.0 */
#include "app/lifecycle/causes.h"

#include <stdlib.h>
#include <string.h>

#include "app/lifecycle/calls.h"
#include "app/lifecycle/failure.h"
#include "app/lifecycle/why.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/record/group.h"
#include "targets/targets.h"

enum {
	NAMES_SHOWN = 5,
	TEXT_MAX = 64 << 10,
	LOGS_MAX = 500, /* of failed runs; of more the exit is enough */
	LOG_MS = 15000,
};

/*
 * Counting
 */

void causes_done(struct causes *causes)
{
	vec_foreach (struct cause, cause, causes) {
		free(cause->text);
		free(cause->key);
		vec_done(&cause->runs);
	}
	vec_done(causes);
}

/* The text with each number as one '#'. */
static char *causes_key(const char *text)
{
	char *key = mem_strdup(text), *to = key;

	for (const char *at = text; *at; at++) {
		bool is_digit = str_is_digit(*at);

		if (!is_digit || at == text || !str_is_digit(at[-1]))
			*to++ = is_digit ? '#' : *at;
	}
	*to = '\0';
	return key;
}

void causes_add(struct causes *causes, struct run *run, const char *text, bool is_exact)
{
	AUTO_FREE char *key = !text ? NULL : is_exact ? mem_strdup(text) : causes_key(text);
	struct cause *found = NULL;

	vec_foreach (struct cause, cause, causes)
		if (cause->state == run_state(run) && str_eq(cause->key, key))
			found = cause;
	if (!found) {
		found = vec_push(causes);
		*found = (struct cause){.state = run_state(run), .key = TAKE(key)};
		found->text = text ? mem_strdup(text) : NULL;
	}
	*vec_push(&found->runs) = run;
}

static int causes_rank(enum run_state state)
{
	static const int ranks[RUN_STATES] = {
		[RUN_SUCCEEDED] = 0,
		[RUN_FAILED] = 1,
		[RUN_LOST] = 2,
		[RUN_CANCELLED] = 3,
		[RUN_RUNNING] = 4,
		[RUN_STARTING] = 5,
		[RUN_QUEUED] = 6,
		[RUN_PREPARING] = 7,
		[RUN_UNKNOWN] = 8,
	};

	return ranks[state];
}

static int causes_compare(const void *a, const void *b)
{
	const struct cause *one = a, *other = b;
	int by_state = causes_rank(one->state) - causes_rank(other->state);

	if (by_state)
		return by_state;
	if (one->runs.n != other->runs.n)
		return one->runs.n > other->runs.n ? -1 : 1;
	return strcmp(one->key ? one->key : "", other->key ? other->key : "");
}

void causes_sort(struct causes *causes)
{
	vec_sort(causes, causes_compare);
}

void cause_text(const struct cause *cause, struct buf *out)
{
	buf_addf(out, "%zu %s", cause->runs.n, run_state_name(cause->state));
	if (!cause->text)
		return;
	buf_addf(out, ": %s (", cause->text);
	/* "tiger-3, tiger-9 and 4 more"; members of a study by name, others by id. */
	for (size_t i = 0; i < cause->runs.n && i < NAMES_SHOWN; i++) {
		const struct run *run = cause->runs.v[i];

		buf_addf(out, "%s%s", i ? ", " : "",
			run_member_index(run) >= 0 ? run_name(run) : run_id(run));
	}
	if (cause->runs.n > NAMES_SHOWN)
		buf_addf(out, " and %zu more", cause->runs.n - NAMES_SHOWN);
	buf_addc(out, ')');
}

void causes_text(const struct causes *causes, struct buf *out)
{
	vec_foreach (struct cause, cause, causes) {
		buf_adds(out, cause > causes->v ? ", " : "");
		cause_text(cause, out);
	}
}

/*
 * Logs
 */

struct causes_log {
	const struct run *run;
	struct target *target;
	struct target_log_request request;
	char token[TARGET_TOKEN_SIZE];
	struct buf tail;
};

struct causes_logs {
	struct session *session;
	struct causes_log *logs; /* CALLS_AT_ONCE */
	struct run_list runs;    /* of all */
	char **tails;            /* for each; NULL: not read */
	size_t *lens;
};

static int causes_start(void *ctx, size_t i, struct target_call *call, struct err *err)
{
	struct causes_logs *all = ctx;
	struct causes_log *log = &all->logs[i % CALLS_AT_ONCE];
	const struct run *run = all->runs.v[i];

	*log = (struct causes_log){.run = run};
	buf_init(&log->tail, (size_t)2 * FAILURE_TAIL);
	log->request = run_why_request(&log->tail);
	int r = target_open_run(all->session, run, &log->target, err);
	if (r == 0 && !log->target->ops->logs)
		r = err_set(err, E_TARGET_UNSUPPORTED, "no logs");
	if (r == 0)
		r = log->target->ops->logs(
			log->target, run_handle(run), &log->request, log->token, call, err);
	return r;
}

static void causes_on_done(void *ctx, size_t i, int status, struct err *err UNUSED)
{
	struct causes_logs *all = ctx;
	struct causes_log *log = &all->logs[i % CALLS_AT_ONCE];

	if (status == 0) {
		all->lens[i] = log->tail.len;
		all->tails[i] = buf_take(&log->tail);
	}
	buf_done(&log->tail);
	target_free(TAKE(log->target));
}

static void causes_read(struct session *session, struct causes_logs *all)
{
	const struct calls calls = {.n = all->runs.n,
		.timeout_ms = LOG_MS,
		.start = causes_start,
		.done = causes_on_done,
		.ctx = all};

	all->session = session;
	all->logs = mem_alloc(CALLS_AT_ONCE, sizeof(*all->logs));
	all->tails = mem_alloc(all->runs.n + 1, sizeof(*all->tails));
	all->lens = mem_alloc(all->runs.n + 1, sizeof(*all->lens));
	calls_run(session_loop(session), &calls, NULL);
	/* Where the loop has failed. */
	for (size_t i = 0; i < CALLS_AT_ONCE; i++) {
		buf_done(&all->logs[i].tail);
		target_free(all->logs[i].target);
	}
	free(all->logs);
}

void runs_causes(struct session *session, const struct run_list *runs, struct causes *ret)
{
	struct causes_logs all = {0};
	size_t at = 0;

	vec_foreach (struct run *, run, runs)
		if (run_why_reads(*run) && all.runs.n < LOGS_MAX)
			*vec_push(&all.runs) = *run;
	causes_read(session, &all);
	vec_foreach (struct run *, run, runs) {
		bool is_read = at < all.runs.n && all.runs.v[at] == *run;
		const char *tail = is_read ? all.tails[at] : NULL;
		AUTO_BUF struct buf text = buf_with(TEXT_MAX);

		bool is_exact = run_cause(
			&session->dirs, *run, tail ? tail : "", tail ? all.lens[at] : 0, &text);
		causes_add(ret, *run, text.len ? text.data : NULL, is_exact);
		at += is_read;
	}
	causes_sort(ret);
	for (size_t i = 0; i < all.runs.n; i++)
		free(all.tails[i]);
	free(all.tails);
	free(all.lens);
	vec_done(&all.runs);
}
