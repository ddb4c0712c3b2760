/* SPDX-License-Identifier: Apache-2.0 */
#include "app/transfer/mirror.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/transfer/mirror_files.h"
#include "base/loop/loop.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/store/store.h"
#include "core/target/target.h"
#include "events/metrics.h"
#include "targets/targets.h"

/*
 * The mirror
 */

enum {
	LOCK_MS = 100,          /* between two tries where another process polls */
	BACKOFF_MAX_MS = 60000, /* between two polls of what cannot be reached */
	STATE_MS = 30000,       /* for a response whether the run goes on */
	IDLE_POLLS = 6,         /* with nothing new, before the next ones come later */
};

enum doing { WAITING, QUEUED, POLLING, QUERYING, OVER };

struct mirrored {
	struct mirror *mirror;
	size_t index;
	enum doing doing;
	struct run *run;
	struct target *target;
	char *handle; /* of the attempt that is polled; NULL: there is none yet */
	bool is_final;
	char *dir, *source;
	struct mirror_files *files;
	struct target_call call;
	struct target_status status;
	struct loop_timer *timer;
	uint64_t polls;
	bool was_polled;
	int64_t grown_ms;
	unsigned n_failed; /* polls, since the last that ended well */
	unsigned n_idle;   /* polls that found nothing new, since the last that did */
	uint64_t turn;     /* since when it waits to be polled, by number; 0: it does not */
	struct err error;
};

struct mirror {
	struct session *session;
	struct loop *loop;
	struct mirror_options options;
	char *dir;
	struct VEC_OF(struct mirrored *) runs;
	size_t n_polling;
	uint64_t n_turns;
	struct loop_wait wait; /* for the first poll of each run */
};

/*
 * Opening
 */

int mirror_open(struct session *session, const struct mirror_options *options, struct mirror **ret,
	struct err *err)
{
	struct mirror *mirror = mem_alloc(1, sizeof(*mirror));

	*mirror = (struct mirror){
		.session = session,
		.loop = session_loop(session),
		.options = *options,
		.dir = options->dir ? fs_join(session->env.cwd, options->dir)
				    : dirs_mirror(&session->dirs, options->scalars_only),
	};
	if (!mirror->options.poll_ms)
		mirror->options.poll_ms = MIRROR_POLL_MS;
	int r = fs_mkdirs(mirror->dir, 0700, err);
	if (r < 0)
		mirror_free(mirror);
	else
		*ret = mirror;
	return r;
}

/* Wall clock of the last poll of a run that ended well, into its copy in the cache directory; 0:
 * none. */
static int64_t mirror_polled_ms(
	const struct session *session, const char *run_id, bool scalars_only)
{
	AUTO_FREE char *mirrors = dirs_mirror(&session->dirs, scalars_only);
	AUTO_FREE char *path = mem_printf("%s/%s/" MIRROR_POLLED, mirrors, run_id);
	struct stat st;

	return stat(path, &st) < 0
		       ? 0
		       : (int64_t)st.st_mtim.tv_sec * 1000 + st.st_mtim.tv_nsec / (1000 * 1000);
}

static void free_mirrored(struct mirrored *mirrored)
{
	target_call_cancel(&mirrored->call);
	loop_remove_timer(mirrored->mirror->loop, mirrored->timer);
	mirror_files_free(mirrored->files);
	target_status_done(&mirrored->status);
	target_free(mirrored->target);
	run_free(mirrored->run);
	err_done(&mirrored->error);
	free(mirrored->handle);
	free(mirrored->source);
	free(mirrored->dir);
	free(mirrored);
}

void mirror_free(struct mirror *mirror)
{
	if (!mirror)
		return;
	vec_foreach (struct mirrored *, mirrored, &mirror->runs)
		free_mirrored(*mirrored);
	vec_done(&mirror->runs);
	free(mirror->dir);
	free(mirror);
}

void mirror_get(const struct mirror *mirror, size_t run, struct mirror_state *ret)
{
	const struct mirrored *mirrored = mirror->runs.v[run];
	struct mirror_counts counts;

	mirror_files_count(mirrored->files, &counts);
	*ret = (struct mirror_state){
		.run_id = run_id(mirrored->run),
		.dir = mirrored->dir,
		.source = mirrored->source,
		.files = counts.files,
		.bytes = counts.bytes,
		.bytes_new = counts.bytes_new,
		.plugin_files = counts.plugin_files,
		.plugin_bytes = counts.plugin_bytes,
		.n_excluded = counts.excluded,
		.excluded = mirror_files_excluded(mirrored->files),
		.polls = mirrored->polls,
		.grown_ms = mirrored->grown_ms,
		.is_over = mirrored->doing == OVER,
		.error = err_is_set(&mirrored->error) ? &mirrored->error : NULL,
	};
}

/*
 * Polls
 */

static int mirror_on_turn(void *ctx, struct err *err);

static void mirror_poll_in(struct mirrored *mirrored, int64_t ms)
{
	struct loop *loop = mirrored->mirror->loop;

	mirrored->doing = WAITING;
	loop_remove_timer(loop, mirrored->timer);
	mirrored->timer = loop_add_timer(loop, clock_ms() + ms, mirror_on_turn, mirrored);
}

/* A poll of a run elsewhere costs connections and processes there. */
static int64_t mirror_delay_ms(const struct mirrored *mirrored)
{
	unsigned times = 1 + mirrored->n_idle / IDLE_POLLS;

	if (mirrored->target->ops->is_here)
		times = 1;
	return mirrored->mirror->options.poll_ms * (times < MIRROR_IDLE ? times : MIRROR_IDLE);
}

bool mirror_is_polled(const struct mirror *mirror)
{
	vec_foreach (struct mirrored *, mirrored, &mirror->runs)
		if (!(*mirrored)->was_polled)
			return false;
	return true;
}

static void mirror_report_poll(struct mirrored *mirrored)
{
	struct mirror *mirror = mirrored->mirror;

	mirrored->was_polled = true;
	if (mirror->options.polled)
		mirror->options.polled(mirror->options.ctx, mirrored->index);
	if (mirror->wait.n_open && mirror_is_polled(mirror))
		loop_wait_done(&mirror->wait);
}

static void end_run(struct mirrored *mirrored)
{
	mirrored->doing = OVER;
	mirror_report_poll(mirrored);
}

/* Whether another poll cannot find more. */
static bool is_hopeless(const struct mirrored *mirrored, const struct err *error)
{
	switch (error->code) {
	case ERR_USAGE:
	case ERR_CONFIG:
	case ERR_NOTFOUND:
	case ERR_REMOTE:
		return mirrored->is_final;
	default:
		return false;
	}
}

static void poll_failed(struct mirrored *mirrored, struct err *error)
{
	int64_t poll_ms = mirrored->mirror->options.poll_ms;

	mirrored->n_failed++;
	err_move(&mirrored->error, error);
	if (is_hopeless(mirrored, &mirrored->error)) {
		end_run(mirrored);
		return;
	}
	mirror_poll_in(mirrored, backoff_ms(mirrored->n_failed, poll_ms, BACKOFF_MAX_MS));
	mirror_report_poll(mirrored);
}

/* Behind those that wait already. */
static void enqueue(struct mirrored *mirrored)
{
	if (!mirrored->turn)
		mirrored->turn = ++mirrored->mirror->n_turns;
	mirrored->doing = QUEUED;
}

static struct mirrored *first_queued(const struct mirror *mirror)
{
	struct mirrored *first = NULL;

	vec_foreach (struct mirrored *, mirrored, &mirror->runs)
		if ((*mirrored)->doing == QUEUED && (!first || (*mirrored)->turn < first->turn))
			first = *mirrored;
	return first;
}

/* As many as can be polled now, those first that have waited longest. */
static void start_queued(struct mirror *mirror)
{
	struct mirrored *next;

	for (size_t n = mirror->n_polling; n < MIRROR_POLLS && (next = first_queued(mirror)); n++)
		mirror_poll_in(next, 0);
}

static void set_handle(struct mirrored *mirrored, const char *handle)
{
	if (str_eq(mirrored->handle, handle))
		return;
	REPLACE(mirrored->handle, mem_strdup(handle));
}

/* The row may have a new attempt, or say that the run has ended. */
static void reread(struct mirrored *mirrored)
{
	struct store *store;
	struct run *now = NULL;

	if (session_store(mirrored->mirror->session, &store, NULL) < 0 ||
		store_get(store, run_id(mirrored->run), &now, NULL) < 0)
		return;
	if (!str_eq(run_handle(mirrored->run), run_handle(now))) {
		set_handle(mirrored, run_handle(now));
		mirrored->is_final = false;
	}
	mirrored->is_final |= run_state_is_final(run_state(now));
	run_free(mirrored->run);
	mirrored->run = now;
}

static void on_state(struct target_call *call, int status, struct err *err UNUSED)
{
	struct mirrored *mirrored = CONTAINER_OF(call, struct mirrored, call);
	const struct target_status *said = &mirrored->status;
	bool is_new = false;

	if (status == 0 && said->handle)
		set_handle(mirrored, said->handle);
	if (status == 0 && run_state_is_final(said->state)) {
		is_new = true;
		if (said->next_handle)
			set_handle(mirrored, said->next_handle);
		else
			mirrored->is_final = true;
	}
	target_status_done(&mirrored->status);
	mirror_poll_in(mirrored, is_new ? 0 : mirror_delay_ms(mirrored));
}

/* Nothing was new: perhaps the run has ended. */
static void query_state(struct mirrored *mirrored)
{
	const struct target_ops *ops = mirrored->target->ops;

	mirrored->doing = QUERYING;
	mirrored->call =
		(struct target_call){.deadline_ms = clock_ms() + STATE_MS, .done = on_state};
	if (ops->state(mirrored->target, mirrored->handle, &mirrored->status, &mirrored->call,
		    NULL) < 0)
		mirror_poll_in(mirrored, mirror_delay_ms(mirrored));
}

static void poll_ended(struct mirrored *mirrored)
{
	struct mirror_counts counts;

	mirror_files_count(mirrored->files, &counts);
	mirrored->polls++;
	mirrored->n_failed = 0;
	err_clear(&mirrored->error);
	mirrored->n_idle++;
	if (counts.is_new) {
		mirrored->grown_ms = clock_wall_ms();
		mirrored->n_idle = 0;
	}
	if (counts.wants_more || (counts.is_behind && mirrored->is_final)) {
		enqueue(mirrored);
		return;
	}
	if (mirrored->is_final || mirrored->mirror->options.once) {
		end_run(mirrored);
		return;
	}
	if (counts.is_new || !mirrored->handle)
		mirror_poll_in(mirrored, mirrored->mirror->options.poll_ms);
	else
		query_state(mirrored);
	mirror_report_poll(mirrored);
}

static void note_poll(const struct mirrored *mirrored)
{
	AUTO_FREE char *path = fs_join(mirrored->dir, MIRROR_POLLED);
	AUTO_FD int fd = open(path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);

	if (fd < 0 || futimens(fd, NULL) < 0)
		log_note("%s: %s", path, strerror(errno));
}

static void on_fetched(struct target_call *call, int status, struct err *err)
{
	struct mirrored *mirrored = CONTAINER_OF(call, struct mirrored, call);
	struct mirror *mirror = mirrored->mirror;
	bool is_whole = status == 0 && mirrored->is_final;
	AUTO_ERR struct err error = {0};

	mirror->n_polling--;
	int r = mirror_files_end(mirrored->files, is_whole ? mirrored->handle : NULL, &error);
	if (status < 0) {
		poll_failed(mirrored, err);
	} else if (r < 0) {
		poll_failed(mirrored, &error);
	} else {
		note_poll(mirrored);
		poll_ended(mirrored);
	}
	start_queued(mirror);
}

static int start_fetch(struct mirrored *mirrored, struct err *err)
{
	struct target *target = mirrored->target;

	if (!target->ops->fetch)
		return err_set(err, E_TARGET_UNSUPPORTED, "targets of kind %s have no results",
			target->ops->kind);
	mirrored->call = (struct target_call){.done = on_fetched};
	int r = target->ops->fetch(
		target, mirrored->handle, mirror_files_sink(mirrored->files), &mirrored->call, err);
	if (r < 0)
		return r;
	mirrored->doing = POLLING;
	mirrored->mirror->n_polling++;
	return 0;
}

static void mirror_poll(struct mirrored *mirrored)
{
	AUTO_ERR struct err error = {0};

	int r = mirror_files_begin(mirrored->files, &error);
	if (r < 0 && error.id == E_IO_LOCK) {
		mirror_poll_in(mirrored, LOCK_MS);
		return;
	}
	if (r == 0 && mirrored->is_final &&
		mirror_files_is_whole(mirrored->files, mirrored->handle)) {
		mirror_files_end(mirrored->files, NULL, NULL);
		mirrored->polls++;
		end_run(mirrored);
		return;
	}
	if (r == 0)
		r = start_fetch(mirrored, &error);
	if (r < 0) {
		mirror_files_drop(mirrored->files);
		poll_failed(mirrored, &error);
	}
}

static int mirror_on_turn(void *ctx, struct err *err UNUSED)
{
	struct mirrored *mirrored = ctx;

	mirrored->timer = NULL;
	if (mirrored->mirror->n_polling >= MIRROR_POLLS) {
		enqueue(mirrored);
		return 0;
	}
	mirrored->turn = 0;
	reread(mirrored);
	/* Without a handle the run has not reached its target yet, or never will. */
	if (mirrored->handle)
		mirror_poll(mirrored);
	else
		poll_ended(mirrored);
	/* Start the next one if this turn is over already. */
	if (mirrored->doing != POLLING)
		start_queued(mirrored->mirror);
	return 0;
}

/*
 * Runs
 */

int mirror_add(struct mirror *mirror, const struct run *run, size_t *ret_index, struct err *err)
{
	struct mirrored *mirrored;
	struct target *target = NULL;

	if (mirror->runs.n == MIRROR_RUNS_MAX)
		return err_set(err, E_USAGE, "at most %d runs can be looked into", MIRROR_RUNS_MAX);
	int r = target_open_run(mirror->session, run, &target, err);
	if (r < 0)
		return r;
	mirrored = mem_alloc(1, sizeof(*mirrored));
	*mirrored = (struct mirrored){
		.mirror = mirror,
		.index = mirror->runs.n,
		.target = target,
		.dir = fs_join(mirror->dir, run_id(run)),
		.is_final = run_state_is_final(run_state(run)),
		.run = run_copy(run),
	};
	if (target->ops->is_here)
		mirrored->source = dirs_outputs(&mirror->session->dirs, run_id(run));
	mirrored->files =
		mirror_files_new(mirrored->dir, mirrored->source, mirror->options.scalars_only);
	if (!mirrored->source)
		mirrored->source = mem_strdup(mirrored->dir);
	set_handle(mirrored, run_handle(run));
	*vec_push(&mirror->runs) = mirrored;
	mirror_poll_in(mirrored, 0);
	*ret_index = mirrored->index;
	return 0;
}

int mirror_first(
	struct mirror *mirror, int64_t timeout_ms, const volatile int *interrupted, struct err *err)
{
	mirror->wait = (struct loop_wait){
		.loop = mirror->loop,
		.n_open = !mirror_is_polled(mirror),
		.deadline_ms = clock_deadline(timeout_ms),
		.interrupted = interrupted,
	};
	int r = loop_wait_run(&mirror->wait, err);
	mirror->wait.n_open = 0;
	return r;
}

/*
 * Metrics from copies
 */

enum { KEPT_MAX = 256 << 10, STAMP_SIZE = 96 };

#define NS_PER_S INT64_C(1000000000)

static bool mirror_is_local(const struct run *run)
{
	return target_ops_recorded(run)->is_here;
}

/* When something new came to the copy last; -1: there is none. */
static int64_t copied_ns(const char *dir)
{
	AUTO_FREE char *notes = fs_join(dir, MIRROR_OWN);
	struct stat st;

	if (stat(dir, &st) < 0 || !S_ISDIR(st.st_mode))
		return -1;
	return stat(notes, &st) < 0 ? 0
				    : (int64_t)st.st_mtim.tv_sec * NS_PER_S + st.st_mtim.tv_nsec;
}

static char *newest_copy(const struct session *session, const struct run *run)
{
	char *newest = NULL;
	int64_t newest_ns = -1;

	for (int i = 0; i < 2; i++) {
		AUTO_FREE char *mirrors = dirs_mirror(&session->dirs, i);
		AUTO_FREE char *dir = fs_join(mirrors, run_id(run));
		int64_t ns = copied_ns(dir);

		if (ns > newest_ns) {
			REPLACE(newest, TAKE(dir));
			newest_ns = ns;
		}
	}
	return newest;
}

char *metrics_here_dir(const struct session *session, const struct run *run)
{
	AUTO_FREE char *dir = NULL;
	struct stat st;

	if (!mirror_is_local(run))
		return newest_copy(session, run);
	dir = dirs_outputs(&session->dirs, run_id(run));
	return stat(dir, &st) == 0 && S_ISDIR(st.st_mode) ? TAKE(dir) : NULL;
}

/* Changes when metrics_json tells more of a value. */
#define METRICS_FORM "2 "

/* The stamp that identifies this version of the copy; false: there is none. */
static bool stamp_of(const char *dir, char out[static STAMP_SIZE])
{
	AUTO_FREE char *notes = fs_join(dir, MIRROR_OWN);
	struct stat st;

	if (stat(notes, &st) < 0)
		return false;
	snprintf(out, STAMP_SIZE, METRICS_FORM "%llu %lld.%09ld %lld",
		(unsigned long long)st.st_ino, (long long)st.st_mtim.tv_sec,
		(long)st.st_mtim.tv_nsec, (long long)st.st_size);
	return true;
}

/* NULL: none that is still true. */
static struct json *mirror_read_kept(const char *path, const char *stamp)
{
	AUTO_BUF struct buf text = {0};
	AUTO_JSON struct json *json = NULL;
	const struct json *metrics;

	if (fs_read(path, KEPT_MAX, &text, NULL, NULL) < 0 ||
		json_parse(text.data, text.len, KEPT_MAX, path, &json, NULL) < 0)
		return NULL;
	metrics = json_get(json, "metrics");
	return metrics && str_eq(json_get_str(json, "stamp"), stamp) ? json_clone(metrics) : NULL;
}

/* NULL: not all could be read in time. */
static struct json *read_events(const char *dir, int64_t end_ms)
{
	AUTO(metrics_free_auto) struct metrics *metrics = metrics_new(dir);

	while (metrics_poll(metrics))
		if (clock_ms() >= end_ms)
			return NULL;
	return metrics_json(metrics);
}

static struct json *metrics_of(const char *dir, int64_t end_ms)
{
	AUTO_FREE char *path = fs_join(dir, METRICS_HERE_FILE);
	char stamp[STAMP_SIZE];
	struct json *metrics;

	if (!stamp_of(dir, stamp))
		return NULL;
	metrics = mirror_read_kept(path, stamp);
	if (metrics || clock_ms() >= end_ms)
		return metrics;
	metrics = read_events(dir, end_ms);
	if (metrics) {
		AUTO_JSON struct json *json = json_object();
		AUTO_BUF struct buf text = buf_with(KEPT_MAX);

		json_set_str(json, "stamp", stamp);
		json_set(json, "metrics", json_clone(metrics));
		json_print(json, &text);
		if (buf_check(&text, path, NULL) == 0)
			fs_replace(path, text.data, text.len, 0600, FS_SYNC_NONE, NULL);
	}
	return metrics;
}

/* Of a run that goes on what was asked for a moment ago, by any command, is new enough. */
static bool mirror_is_fresh(const struct session *session, const struct run *run)
{
	int64_t now_ms = clock_wall_ms();

	for (int i = 0; i < 2 && !run_state_is_final(run_state(run)); i++) {
		int64_t polled_ms = mirror_polled_ms(session, run_id(run), i);

		if (polled_ms <= now_ms && now_ms - polled_ms < MIRROR_POLL_MS)
			return true;
	}
	return false;
}

void metrics_bring(struct session *session, const struct run_list *runs, int64_t timeout_ms)
{
	static const struct mirror_options options = {.scalars_only = true, .once = true};
	AUTO(mirror_free_auto) struct mirror *mirror = NULL;
	AUTO_ERR struct err error = {0};
	size_t n = 0, index;
	int r = 0;

	for (size_t i = 0; i < runs->n && n < METRICS_BRING_MAX && r == 0; i++) {
		if (mirror_is_local(runs->v[i]) || !run_handle(runs->v[i]) ||
			mirror_is_fresh(session, runs->v[i]))
			continue;
		if (!mirror)
			r = mirror_open(session, &options, &mirror, &error);
		if (r == 0 && mirror_add(mirror, runs->v[i], &index, NULL) == 0)
			n++;
	}
	if (r == 0 && n)
		r = mirror_first(mirror, timeout_ms, NULL, &error);
	if (r < 0)
		log_note("event files are not brought: %s", error.message);
}

void metrics_here(const struct session *session, const struct run_list *runs, int64_t limit_ms)
{
	int64_t end_ms = clock_deadline(limit_ms);

	vec_foreach (struct run *, run, runs) {
		AUTO_FREE char *dir =
			mirror_is_local(*run) ? NULL : metrics_here_dir(session, *run);
		struct json *metrics = dir ? metrics_of(dir, end_ms) : NULL;

		if (json_count(metrics))
			json_set((*run)->doc, "metrics", metrics);
		else
			json_free(metrics);
	}
}
