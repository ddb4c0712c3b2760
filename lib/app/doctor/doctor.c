/* SPDX-License-Identifier: Apache-2.0 */
#include "app/doctor/doctor.h"

#include <stdlib.h>
#include <string.h>

#include "app/doctor/doctor_checks.h"
#include "base/loop/proc_run.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"

/* Checks in the order of display: those that others build on come first. */
const struct doctor_check doctor_checks[] = {
	{"home", "directories", false, doctor_home},
	{"config", "configuration", false, doctor_config},
	{"access", "permissions", true, doctor_access},
	{"space", "free space", true, doctor_space},
	{"network", "file systems", true, doctor_network},
	{"locks", "locks", true, doctor_locks},
	{"clock", "clock", true, doctor_clock},
	{"records", "records of runs", true, doctor_records},
	{"leftovers", "leftovers", true, doctor_leftovers},
	{"tree", "this tree", false, doctor_tree},
	{"proxy", "proxy", false, doctor_proxy},
	{"registry", "registry", false, doctor_registry},
	{"base", "base image", false, doctor_base},
	{"kubeconfig", "kubeconfig", false, doctor_kubeconfig},
	{"cluster", "clusters", true, doctor_clusters},
	{"node", "hosts", true, doctor_nodes},
	{"git", "git", false, doctor_git},
	{"program", "program", false, doctor_program},
	{"gpu", "GPUs", false, doctor_gpu},
	{"logout", "logging out", false, doctor_logout},
	{"limits", "limits", false, doctor_limits},
	{"terminal", "terminal", false, doctor_terminal},
};
const size_t doctor_checks_n = ARRAY_LEN(doctor_checks);

/* Rows that a check adds. */
static const struct doctor_check further[] = {
	{"cluster-safety", "cluster safety", false, NULL},
	{"cluster-login", "cluster login", false, NULL},
	{"cluster-rights", "cluster rights", false, NULL},
	{"cluster-pods", "cluster pods", false, NULL},
};

static const char *const status_names[] = {"ok", "warning", "problem"};

const char *doctor_status_name(enum doctor_status status)
{
	return status_names[status];
}

static const struct doctor_check *find_row(
	const struct doctor_check *rows, size_t n, const char *id)
{
	for (size_t i = 0; i < n; i++)
		if (str_eq(rows[i].id, id))
			return &rows[i];
	return NULL;
}

const struct doctor_check *doctor_find(const char *id)
{
	return find_row(doctor_checks, doctor_checks_n, id);
}

/* Also one that a check adds. */
static const struct doctor_check *find_any(const char *id)
{
	const struct doctor_check *check = doctor_find(id);

	return check ? check : find_row(further, ARRAY_LEN(further), id);
}

const char *doctor_title(const char *id)
{
	const struct doctor_check *row = find_any(id);

	return row ? row->title : id;
}

/*
 * Rows
 */

void doctor_row_done(struct doctor_row *row)
{
	free(row->found);
	free(row->cause);
	free(row->fix);
	vec_foreach (struct doctor_row, more, &row->more)
		doctor_row_done(more);
	vec_done(&row->more);
	*row = (struct doctor_row){0};
}

struct doctor_row *doctor_row_add(struct doctor_row *row, const char *id)
{
	struct doctor_row *more = vec_push(&row->more);
	const struct doctor_check *known = find_any(id);

	BUG_ON(!known);
	more->id = known->id;
	return more;
}

int doctor_found(struct doctor_row *row, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	char *text = mem_vprintf(fmt, args);
	va_end(args);
	REPLACE(row->found, text);
	return 0;
}

int doctor_blame(
	struct doctor_row *row, enum doctor_status status, const char *fix, const char *fmt, ...)
{
	va_list args;

	if (status <= row->status)
		return 0;
	va_start(args, fmt);
	char *text = mem_vprintf(fmt, args);
	va_end(args);
	free(row->cause);
	free(row->fix);
	row->status = status;
	row->cause = text;
	row->fix = mem_strdup(fix);
	return 0;
}

static void blame_failure(struct doctor_row *row, const struct err *err)
{
	if (!row->found)
		doctor_found(row, "not known");
	doctor_blame(row, DOCTOR_WARNING, err->hint, "it could not be checked: %s",
		err->message ? err->message : "nobody says why");
}

void doctor_run_check(
	const struct doctor *doctor, const struct doctor_check *check, struct doctor_row *row)
{
	AUTO_ERR struct err err = {0};

	*row = (struct doctor_row){.id = check->id};
	if (check->needs_dirs && doctor->error) {
		doctor_found(row, "not looked at");
		doctor_blame(row, DOCTOR_WARNING, NULL, "dlrun has no directories (see home)");
		return;
	}
	if (check->run(doctor, row, &err) < 0)
		blame_failure(row, &err);
	if (!row->found)
		doctor_found(row, "nothing");
}

struct json *doctor_row_to_json(const struct doctor_row *row)
{
	struct json *json = json_object();

	json_set_str(json, "id", row->id);
	json_set_str(json, "status", doctor_status_name(row->status));
	json_set_str(json, "found", row->found);
	json_set_str(json, "cause", row->cause);
	json_set_str(json, "fix", row->fix);
	if (row->more.n == 0)
		return json;
	struct json *list = json_array();
	vec_foreach (const struct doctor_row, more, &row->more)
		json_add(list, doctor_row_to_json(more));
	json_set(json, "more", list);
	return json;
}

/* row is empty but for its id. */
static bool row_from_json(const struct json *json, struct doctor_row *row)
{
	const char *status = json_get_str(json, "status"), *found = json_get_str(json, "found");

	if (!found || !str_eq(json_get_str(json, "id"), row->id))
		return false;
	for (size_t i = 0; i < ARRAY_LEN(status_names); i++) {
		if (!str_eq(status, status_names[i]))
			continue;
		row->status = (enum doctor_status)i;
		row->found = mem_strdup(found);
		row->cause = mem_strdup(json_get_str(json, "cause"));
		row->fix = mem_strdup(json_get_str(json, "fix"));
		return true;
	}
	return false;
}

static bool rows_from_json(const struct json *json, struct doctor_row *row)
{
	const struct json *list = json_get(json, "more");

	if (!row_from_json(json, row))
		return false;
	for (const struct json *item = json_first(list); item; item = json_next(item)) {
		const struct doctor_check *known = find_any(json_get_str(item, "id"));
		struct doctor_row more = {.id = known ? known->id : NULL};
		if (known && row_from_json(item, &more))
			*vec_push(&row->more) = more;
	}
	return true;
}

/*
 * Workers: one process for each check
 */

struct worker {
	struct loop_wait *wait;
	struct proc_run *run; /* NULL: it has ended, or could not be started */
	struct buf reply;
	struct err error; /* it could not be started */
};

/* Of too much the beginning is taken. */
static int doctor_on_end(void *ctx, const struct proc_run_result *result, struct err *err UNUSED)
{
	struct worker *worker = ctx;

	buf_add(&worker->reply, result->out->data, result->out->len);
	proc_run_free(TAKE(worker->run));
	loop_wait_done(worker->wait);
	return 0;
}

static void doctor_start(struct worker *worker, const char *const *words, const char *id)
{
	size_t n = 0;

	while (words[n])
		n++;
	AUTO_FREE const char **argv = mem_alloc(n + 2, sizeof(*argv));
	memcpy(argv, words, n * sizeof(*argv));
	argv[n] = id;
	buf_init(&worker->reply, DOCTOR_REPLY_MAX);
	const struct proc_run_spec spec = {.argv = argv,
		.stdin_fd = -1,
		.out_max = DOCTOR_REPLY_MAX,
		.stderr_fd = -1,
		.timeout_ms = -1,
		.kills_rest = true};
	if (proc_run_start(worker->wait->loop, &spec, doctor_on_end, worker, &worker->run,
		    &worker->error) == 0)
		worker->wait->n_open++;
}

static void doctor_fill(const struct worker *worker, int64_t timeout_ms, struct doctor_row *row)
{
	bool is_late = worker->run != NULL;
	AUTO_JSON struct json *json = NULL;
	char time[32];

	if (err_is_set(&worker->error)) {
		blame_failure(row, &worker->error);
		return;
	}
	if (!is_late &&
		json_parse(worker->reply.data, worker->reply.len, DOCTOR_REPLY_MAX, "the check",
			&json, NULL) == 0 &&
		rows_from_json(json, row))
		return;
	doctor_found(row, "not known");
	if (is_late)
		doctor_blame(row, DOCTOR_WARNING, NULL,
			"there was no answer within %s: a file server or a driver may hang",
			duration_text(timeout_ms, time));
	else
		doctor_blame(row, DOCTOR_WARNING, NULL, "the check ended without a message");
}

/* A worker that hangs in the kernel cannot be waited for: init takes it over. */
static void doctor_done(struct worker *worker)
{
	if (worker->run) {
		proc_run_stop(worker->run);
		proc_run_leave(worker->run);
	}
	buf_done(&worker->reply);
	err_done(&worker->error);
}

int doctor_run_all(const char *const *words, int64_t timeout_ms, const volatile int *interrupted,
	struct doctor_row *rows, struct err *err)
{
	AUTO_FREE struct worker *workers = mem_alloc(doctor_checks_n, sizeof(*workers));
	struct loop_wait wait = {.loop = loop_new(),
		.deadline_ms = clock_deadline(timeout_ms),
		.interrupted = interrupted};

	for (size_t i = 0; i < doctor_checks_n; i++) {
		workers[i].wait = &wait;
		doctor_start(&workers[i], words, doctor_checks[i].id);
	}
	bool stopped = loop_wait_run(&wait, NULL) < 0 || (interrupted && *interrupted);
	for (size_t i = 0; i < doctor_checks_n; i++) {
		rows[i] = (struct doctor_row){.id = doctor_checks[i].id};
		if (!stopped)
			doctor_fill(&workers[i], timeout_ms, &rows[i]);
		doctor_done(&workers[i]);
	}
	loop_free(wait.loop);
	return stopped ? err_set(err, E_CANCELED, "stopped") : 0;
}
