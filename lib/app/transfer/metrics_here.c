/* SPDX-License-Identifier: Apache-2.0 */
#include "app/transfer/metrics_here.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "app/transfer/mirror.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "events/metrics.h"
#include "targets/targets.h"

enum { KEPT_MAX = 256 << 10, STAMP_SIZE = 96 };

#define NS_PER_S INT64_C(1000000000)
#define NOTES    ".dlrun-mirror" /* of mirror.c: replaced when something new has come */

static bool is_local(const struct run *run)
{
	return target_ops_recorded(run)->is_here;
}

/* When something new came to the copy last; -1: there is none. */
static int64_t copied_ns(const char *dir)
{
	AUTO_FREE char *notes = fs_join(dir, NOTES);
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
			free(newest);
			newest = TAKE(dir);
			newest_ns = ns;
		}
	}
	return newest;
}

char *metrics_here_dir(const struct session *session, const struct run *run)
{
	AUTO_FREE char *dir = NULL;
	struct stat st;

	if (!is_local(run))
		return newest_copy(session, run);
	dir = dirs_outputs(&session->dirs, run_id(run));
	return stat(dir, &st) == 0 && S_ISDIR(st.st_mode) ? TAKE(dir) : NULL;
}

/* The stamp that identifies this version of the copy; false: there is none. */
static bool stamp_of(const char *dir, char out[static STAMP_SIZE])
{
	AUTO_FREE char *notes = fs_join(dir, NOTES);
	struct stat st;

	if (stat(notes, &st) < 0)
		return false;
	snprintf(out, STAMP_SIZE, "%llu %lld.%09ld %lld", (unsigned long long)st.st_ino,
		(long long)st.st_mtim.tv_sec, (long)st.st_mtim.tv_nsec, (long long)st.st_size);
	return true;
}

/* NULL: none that is still true. */
static struct json *read_kept(const char *path, const char *stamp)
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

static void write_kept(const char *path, const char *stamp, const struct json *metrics)
{
	AUTO_JSON struct json *json = json_object();
	AUTO_BUF struct buf text;

	json_set_str(json, "stamp", stamp);
	json_set(json, "metrics", json_clone(metrics));
	buf_init(&text, KEPT_MAX);
	json_print(json, &text);
	if (buf_check(&text, path, NULL) == 0)
		fs_replace(path, text.data, text.len, 0600, FS_SYNC_NONE, NULL);
}

/* NULL: not all could be read in time. */
static struct json *read_events(const char *dir, int64_t end_ms)
{
	AUTO(metrics_free_auto) struct metrics *metrics = metrics_new(dir);

	while (metrics_look(metrics))
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
	metrics = read_kept(path, stamp);
	if (metrics || clock_ms() >= end_ms)
		return metrics;
	metrics = read_events(dir, end_ms);
	if (metrics)
		write_kept(path, stamp, metrics);
	return metrics;
}

/* Of a run that goes on what was asked for a moment ago, by any command, is new enough. */
static bool is_fresh(const struct session *session, const struct run *run)
{
	int64_t now_ms = clock_wall_ms();

	for (int i = 0; i < 2 && !run_state_is_final(run_state(run)); i++) {
		int64_t looked_ms = mirror_looked_ms(session, run_id(run), i);

		if (looked_ms <= now_ms && now_ms - looked_ms < MIRROR_LOOK_MS)
			return true;
	}
	return false;
}

void metrics_bring(struct session *session, const struct run_list *runs, int64_t timeout_ms)
{
	static const struct mirror_options options = {.scalars_only = true, .once = true};
	AUTO(mirror_free_auto) struct mirror *mirror = NULL;
	AUTO_ERR struct err fault = {0};
	size_t n = 0, index;
	int r = 0;

	for (size_t i = 0; i < runs->n && n < METRICS_BRING_MAX && r == 0; i++) {
		if (is_local(runs->v[i]) || !run_handle(runs->v[i]) ||
			is_fresh(session, runs->v[i]))
			continue;
		if (!mirror)
			r = mirror_open(session, &options, &mirror, &fault);
		if (r == 0 && mirror_add(mirror, runs->v[i], &index, NULL) == 0)
			n++;
	}
	if (r == 0 && n)
		r = mirror_first(mirror, timeout_ms, NULL, &fault);
	if (r < 0)
		log_note("event files are not brought: %s", fault.message);
}

void metrics_here(const struct session *session, const struct run_list *runs, int64_t limit_ms)
{
	int64_t end_ms = clock_deadline(limit_ms);

	vec_foreach (struct run *, run, runs) {
		AUTO_FREE char *dir = is_local(*run) ? NULL : metrics_here_dir(session, *run);
		struct json *metrics = dir ? metrics_of(dir, end_ms) : NULL;

		if (json_count(metrics))
			json_set((*run)->doc, "metrics", metrics);
		else
			json_free(metrics);
	}
}
