/* SPDX-License-Identifier: Apache-2.0 */
#include "app/transfer/fetch.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "app/transfer/fetch_dir.h"
#include "base/os/fs.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "core/record/results.h"
#include "core/store/store.h"
#include "core/target/target.h"
#include "targets/targets.h"

/*
 * Results that wait in pods
 */

static int note_over(struct session *session, struct run *run, struct err *err)
{
	struct store *store;

	if (!json_get(run->doc, TAKEN_UNTIL))
		return 0;
	json_remove(run->doc, TAKEN_UNTIL);
	int r = session_store(session, &store, err);
	return r < 0 ? r : store_update_known(store, run, err);
}

static int note_taken(
	struct session *session, struct run *run, const struct buf *list, struct err *err)
{
	bool fits = buf_check(list, "the list of results", NULL) == 0;
	AUTO_FREE char *path = taken_path(&session->dirs, run_id(run), run_attempts(run));
	AUTO_FREE char *dir = dirs_attempt(&session->dirs, run_id(run), run_attempts(run));

	int r = fs_mkdirs(dir, 0700, err);
	if (r == 0)
		r = fs_replace(path, list->data, fits ? list->len : 0, 0600, FS_SYNC_NONE, err);
	return r < 0 ? r : note_over(session, run, err);
}

void take_undo(struct session *session, const struct run *run)
{
	AUTO_FREE char *path = taken_path(&session->dirs, run_id(run), run_attempts(run));

	unlink(path);
}

int take_give_up(struct session *session, struct run *run, int64_t timeout_ms, struct err *err)
{
	AUTO(target_free_auto) struct target *target = NULL;

	if (!taken_wait_ms(run))
		return 0;
	int r = target_open_run(session, run, &target, err);
	if (r == 0)
		r = target_cancel(target, run_handle(run), timeout_ms, err);
	return r < 0 ? r : note_over(session, run, err);
}

static int transfer_fetch_take(struct session *session, struct run *run, bool ending,
	const volatile int *interrupted, struct err *err)
{
	AUTO_FREE char *outputs = dirs_outputs(&session->dirs, run_id(run)), *dir = NULL;
	const struct strv all = {0};
	AUTO_BUF struct buf list;
	const struct fetch_options options = {.paths = &all,
		.dir = outputs,
		.force = true,
		.takes = true,
		.ending = ending,
		.taken = &list,
		.interrupted = interrupted};
	struct fetch_report report;

	buf_init(&list, TAKEN_MAX);
	int r = run_fetch(session, run, &options, &dir, &report, err);
	if (r < 0)
		return r;
	return report.files + report.skipped ? note_taken(session, run, &list, err)
					     : note_over(session, run, err);
}

int take_run(
	struct session *session, struct run *run, const volatile int *interrupted, struct err *err)
{
	return transfer_fetch_take(session, run, false, interrupted, err);
}

int take_ending(
	struct session *session, struct run *run, const volatile int *interrupted, struct err *err)
{
	return transfer_fetch_take(session, run, true, interrupted, err);
}

void take_runs(struct session *session, const struct run_list *runs,
	const volatile int *interrupted, void (*notice)(void *ctx, const char *text), void *ctx)
{
	vec_foreach (struct run *, run, runs) {
		AUTO_ERR struct err error = {0};
		if (!taken_wait_ms(*run) || take_run(session, *run, interrupted, &error) == 0)
			continue;
		AUTO_FREE char *waits = taken_text(*run);
		AUTO_FREE char *text = mem_printf("the results of %s cannot be taken: %s%s%s",
			run_id(*run), error.message, *waits ? "; " : "", waits);
		if (notice)
			notice(ctx, text);
		log_note("%s", text);
	}
}

/*
 * Fetching
 */

/* A run that was submitted but never reached a target has no results. */
static int fetch_into(struct session *session, const struct run *run, struct fetch_sink *sink,
	const volatile int *interrupted, struct err *err)
{
	AUTO(target_free_auto) struct target *target = NULL;

	if (!run_handle(run))
		return 0;
	int r = target_open_run(session, run, &target, err);
	do
		r = r < 0 ? r : target_fetch(target, run_handle(run), sink, interrupted, err);
	while (r == 0 && fetch_dir_again(sink));
	return r;
}

/* The length of the part of dir's path that exists. */
static size_t length_there(const char *dir)
{
	AUTO_FREE char *path = mem_strdup(dir);

	while (*path && access(path, F_OK) < 0) {
		char *slash = strrchr(path, '/');
		*(slash ? slash : path) = '\0';
	}
	return strlen(path);
}

/* Remove what was created in vain, unless a concurrent fetch has found something. there: length of
 * the path that existed before. */
static void remove_own(const char *dir, size_t there)
{
	AUTO_FREE char *own = fs_join(dir, FETCH_OWN);
	AUTO_FREE char *hidden = fs_join(dir, ".gitignore");
	AUTO_FREE char *path = mem_strdup(dir);

	fs_remove_tree(AT_FDCWD, own, NULL);
	if (there < strlen(path))
		unlink(hidden);
	while (strlen(path) > there && strchr(path, '/') && rmdir(path) == 0)
		*strrchr(path, '/') = '\0';
}

bool run_keeps_results(struct session *session, const struct run *run)
{
	return run_has_storage(session, run) || taken_wait_ms(run) ||
	       taken_is_done(&session->dirs, run_id(run), run_attempts(run));
}

bool run_has_storage(struct session *session, const struct run *run)
{
	struct config *config;
	const struct json *results;

	if (!target_ops_recorded(run)->needs_image)
		return true;
	if (session_config(session, &config, NULL) < 0 || !run_target(run))
		return false;
	results = json_get(config_target(config, run_target(run)), "results");
	return results && !json_get_bool(results, "emptyDir", false);
}

/* missing: the part of its directory that does not exist. */
static bool fetch_hides(const struct fetch_options *options, const char *missing)
{
	return *missing && (!options->dir || options->hides);
}

int run_fetch(struct session *session, struct run *run, const struct fetch_options *options,
	char **ret_dir, struct fetch_report *ret, struct err *err)
{
	AUTO(fetch_paths_free_auto) struct fetch_paths *paths = NULL;
	AUTO(fetch_sink_free_auto) struct fetch_sink *sink = NULL;
	AUTO_FREE char *own_name =
		mem_printf("%s%s", run_id(run), options->from_tree ? "-tree" : "");
	AUTO_FREE char *dir = fs_join(session->env.cwd, options->dir ? options->dir : own_name);
	AUTO_FREE char *own = fs_join(dir, FETCH_OWN);
	struct run *only = run;
	const struct run_list one = {.v = &only, .n = 1, .cap = 1};
	size_t there = length_there(dir);
	bool hides = fetch_hides(options, dir + there), is_first = access(own, F_OK) < 0;

	*ret = (struct fetch_report){0};
	if (!options->takes && !options->from_tree)
		take_runs(session, &one, options->interrupted, NULL, NULL);
	int r = fetch_paths_new(options->paths, &paths, err);
	if (r == 0)
		r = fetch_dir_open(dir, paths, options->force, &sink, err);
	if (r < 0)
		return r;
	*ret_dir = TAKE(dir);
	sink->from_tree = options->from_tree;
	sink->takes = options->takes;
	sink->ending = options->ending;
	sink->taken = options->taken;
	fetch_dir_on_progress(sink, options->progress, options->ctx);
	if (hides)
		r = fetch_dir_hide(sink, err);
	if (r == 0)
		r = fetch_into(session, run, sink, options->interrupted, err);
	if (r == 0)
		r = fetch_dir_finish(sink, run_id(run), err);
	fetch_dir_report(sink, ret);
	if (is_first && ret->files == 0 && ret->skipped == 0 && ret->begun == 0)
		remove_own(*ret_dir, there);
	return r;
}

int run_list_files(struct session *session, const struct run *run,
	const struct fetch_options *options, struct outputs_files *ret, struct err *err)
{
	AUTO(fetch_paths_free_auto) struct fetch_paths *paths = NULL;
	AUTO(target_free_auto) struct target *target = NULL;

	int r = fetch_paths_new(options->paths, &paths, err);
	if (r < 0 || !run_handle(run))
		return r;
	r = target_open_run(session, run, &target, err);
	if (r == 0)
		r = outputs_list_now(target, run_handle(run), paths, options->from_tree,
			options->interrupted, ret, err);
	return r < 0 ? r : fetch_paths_check(paths, run_id(run), options->from_tree, err);
}
