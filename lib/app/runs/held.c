/* SPDX-License-Identifier: Apache-2.0 */
#include "app/runs/held.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "app/runs/background.h"
#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "core/record/foreign.h"
#include "core/record/group.h"
#include "core/record/places.h"
#include "targets/targets.h"

enum {
	KICK_MS = 5000,
	KICK_MAX_MS = 60000,
	KICK_AFTER_MS = 15000, /* where the end of a run is waited for */
	KICKED_MAX = 16,
	MARK_MAX = 64 << 10,
};

/* A file whose time says when a sender was started last. In it: the pause until the next, in ms. */
#define KICKED "kicked"

bool run_is_held(const struct run *run)
{
	return json_get(run->doc, RUN_HELD) && !run_state_is_final(run_state(run));
}

bool run_is_unsent(const struct run *run)
{
	return run_is_held(run) && !run_handle(run);
}

bool run_is_moving(const struct run *run)
{
	return json_get(run->doc, RUN_MOVING) && !run_state_is_final(run_state(run));
}

static bool held_waits_there(const struct run *run)
{
	return !run_state_is_final(run_state(run)) && !run_is_held(run) && run_handle(run) &&
	       !run_started_ms(run);
}

/* Members of a study that its target has started together stay there. Of a run that another machine
 * has submitted, that machine moves it: two of them might send it to two places. */
static bool held_stays(const struct run *run)
{
	return foreign_is(run) ||
	       (json_get(run->doc, "study") && target_ops_recorded(run)->submit_study);
}

bool run_has_choice(const struct run *run)
{
	return json_get(run->doc, RUN_PLACES) ||
	       json_count(json_get(json_get(run->doc, "target"), TARGET_POOL)) > 1;
}

bool run_may_change_host(const struct run *run)
{
	return json_count(json_get(json_get(run->doc, "target"), TARGET_POOL)) > 1 &&
	       !json_get(run->doc, RUN_PLACES) && held_waits_there(run) && !held_stays(run);
}

bool run_may_go_on(const struct run *run)
{
	AUTO_RUN_PLACES struct run_places places = {0};

	run_places_from_json(json_get(run->doc, RUN_PLACES), &places);
	return !held_stays(run) && run_places_any_other(&places, run_target(run));
}

bool run_may_move(const struct run *run)
{
	AUTO_RUN_PLACES struct run_places places = {0};

	if (run_may_change_host(run))
		return true;
	if (!held_waits_there(run) || held_stays(run))
		return false;
	run_places_from_json(json_get(run->doc, RUN_PLACES), &places);
	vec_foreach (const struct run_place, place, &places)
		if (place->state != RUN_PLACE_LEFT && place->state != RUN_PLACE_REFUSED &&
			!str_eq(place->target, run_target(run)))
			return true;
	return false;
}

bool run_may_be_elsewhere(const struct run *run)
{
	return foreign_is(run) && json_count(json_get(run->doc, RUN_PLACES)) > 1 &&
	       !run_started_ms(run);
}

bool run_is_watched(const struct run *run)
{
	return run_is_held(run) || run_is_moving(run) || run_may_move(run);
}

int64_t held_since_ms(const struct run *run)
{
	const char *text = json_get_str(json_get(run->doc, RUN_HELD), "since");
	int64_t ms;

	return text && clock_parse(text, &ms, NULL) == 0 ? ms : 0;
}

char *held_place(const char *handle)
{
	return mem_strndup(handle, strcspn(handle, "/"));
}

/* Whether the target itself is silent, and not a registry or a proxy. */
static bool is_target_silent(const struct err *cause)
{
	const char *name = err_info(cause->id)->name;

	return cause->code == ERR_NET &&
	       (str_starts(name, "ssh.") || str_starts(name, "kube.") ||
		       str_starts(name, "node.") || str_starts(name, "target."));
}

char *held_silent_names(const struct run *run)
{
	AUTO_RUN_PLACES struct run_places places = {0};
	AUTO_STRV struct strv names = {0};

	run_places_from_json(json_get(run->doc, RUN_PLACES), &places);
	vec_foreach (const struct run_place, place, &places) {
		if (place->state == RUN_PLACE_CHOSEN)
			return mem_strdup(place->target);
		if (place->state == RUN_PLACE_SILENT)
			strv_add(&names, place->target);
	}
	return names.n ? strv_join(&names, ", ") : mem_strdup(run_target(run));
}

static struct json *held_begin(struct run *run, const char *what)
{
	struct json *held = json_sub(run->doc, RUN_HELD);

	if (!json_get_str(held, "since"))
		run_set_time(held, "since", clock_wall_ms());
	json_set_str(held, "for", what);
	run_set_state(run, RUN_QUEUED);
	return held;
}

/* The queue's own sentence for the record; the error's is its evidence. */
void held_set(struct run *run, const struct err *cause)
{
	struct json *held = held_begin(run, "answer"), *error = json_sub(held, "error");
	struct json *evidence = json_array();
	AUTO_FREE char *names = held_silent_names(run);
	AUTO_FREE char *text = is_target_silent(cause)
				       ? mem_printf("queued here: no answer from %s", names)
				       : mem_printf("queued here: %s", cause->message);

	json_set_str(error, "id", err_info(cause->id)->name);
	json_set_str(error, "message", cause->message);
	json_set_str(run->doc, "text", text);
	json_add_str(evidence, cause->message);
	json_set(run->doc, "evidence", evidence);
}

void held_set_room(struct run *run, const char *why, const char *to)
{
	AUTO_FREE char *text = mem_printf("%s, goes to %s", why, to ? to : "the next target");

	json_remove(held_begin(run, HELD_FOR_ROOM), "error");
	json_set_str(run->doc, "text", text);
	json_remove(run->doc, "hint");
	json_remove(run->doc, "evidence");
}

void held_set_after(struct run *run, const struct after_list *list)
{
	AUTO_FREE char *text = after_text(list);

	json_remove(held_begin(run, "run"), "error");
	json_remove(run->doc, "evidence");
	json_set_str(run->doc, "text", text);
}

static bool held_is_for(const struct run *run, const char *what)
{
	return run_is_held(run) && str_eq(json_get_str(json_get(run->doc, RUN_HELD), "for"), what);
}

bool held_is_for_room(const struct run *run)
{
	return held_is_for(run, HELD_FOR_ROOM);
}

bool held_is_after(const struct run *run)
{
	return held_is_for(run, "run");
}

void held_clear(struct run *run)
{
	json_remove(run->doc, RUN_HELD);
	json_remove(run->doc, "evidence");
	json_set_str(run->doc, "text", NULL);
}

void held_restart(struct run *run)
{
	AUTO_RUN_PLACES struct run_places places = {0};

	json_remove(run->doc, RUN_MOVING);
	/* An attempt of this machine is moved by nobody. */
	if (foreign_is(run))
		json_remove(run->doc, RUN_PLACES);
	if (!json_get(run->doc, RUN_PLACES))
		return;
	run_places_from_json(json_get(run->doc, RUN_PLACES), &places);
	struct run_place *place = run_places_find(&places, run_target(run));
	if (place)
		run_place_decide(place, RUN_PLACE_CHOSEN, "started again there", clock_wall_ms());
	json_set(run->doc, RUN_PLACES, run_places_to_json(&places));
}

static void held_end_as(struct run *run, const char *reason, const char *text)
{
	const struct run_exit exit = {
		.known = true, .code = 143, .origin = "dlrun", .reason = reason};

	held_clear(run);
	run_set_state(run, RUN_CANCELLED);
	run_set_exit(run, &exit);
	run_set_attempt_exit(run, &exit, 0, clock_wall_ms());
	json_set_bool(run->doc, "cancelling", false);
	json_set_str(run->doc, "text", text);
}

void held_end(struct run *run)
{
	held_end_as(run, "Cancelled", "taken back before it was sent");
}

void held_end_after(struct run *run, const char *text)
{
	held_end_as(run, AFTER_REASON, text);
}

int held_lock(const struct dirs *dirs, const struct run *run, int64_t timeout_ms, int *ret_fd,
	struct err *err)
{
	const char *study = run_study(run);
	char first[RUN_ID_SIZE];

	snprintf(first, sizeof(first), "%s", run_id(run));
	if (run_id_is_valid(study))
		run_member_id(study, 0, first);
	AUTO_FREE char *dir = dirs_run(dirs, first), *path = fs_join(dir, RUN_SUBMIT_LOCK);
	/* The first member may be removed. */
	int r = fs_mkdirs(dir, 0700, err);

	return r < 0 ? r : fs_lock(path, true, timeout_ms, ret_fd, err);
}

/*
 * Marks
 */

char *held_dir(const struct dirs *dirs)
{
	return mem_printf("%s/queue", dirs->state);
}

int held_mark_after(
	const struct dirs *dirs, const char *id, const struct after_list *list, struct err *err)
{
	AUTO_FREE char *dir = held_dir(dirs), *path = fs_join(dir, id);
	AUTO_BUF struct buf text = buf_with(MARK_MAX);
	int r = fs_mkdirs(dir, 0700, err);

	for (size_t i = 0; list && i < list->n; i++)
		buf_addf(&text, "%s\n", list->v[i].id);
	if (r == 0)
		r = fs_replace(path, text.data ? text.data : "", text.len, 0600, FS_SYNC_FULL, err);
	return r == 0 ? fs_sync_dir(dirs->state, err) : r;
}

int held_mark(const struct dirs *dirs, const char *id, struct err *err)
{
	return held_mark_after(dirs, id, NULL, err);
}

void held_unmark(const struct dirs *dirs, const char *id)
{
	AUTO_FREE char *dir = held_dir(dirs), *path = fs_join(dir, id);

	unlink(path);
}

void held_watch(const struct dirs *dirs, const struct run *run)
{
	AUTO_FREE char *dir = held_dir(dirs), *path = fs_join(dir, run_id(run));

	if (run_is_watched(run) && access(path, F_OK) < 0)
		held_mark(dirs, run_id(run), NULL);
}

bool held_any(const struct dirs *dirs, struct strv *ret_ids)
{
	AUTO_FREE char *path = held_dir(dirs);
	DIR *dir = opendir(path);
	bool any = false;

	for (const struct dirent *entry; dir && (!any || ret_ids) && (entry = readdir(dir));) {
		if (!run_id_is_valid(entry->d_name))
			continue;
		any = true;
		if (ret_ids)
			strv_add(ret_ids, entry->d_name);
	}
	if (dir)
		closedir(dir);
	return any;
}

/*
 * A sender beside this process
 */

static int64_t kick_pause_ms(const char *path)
{
	AUTO_BUF struct buf text = buf_with(KICKED_MAX);
	int64_t ms;

	if (fs_read(path, KICKED_MAX, &text, NULL, NULL) < 0 ||
		str_to_int(text.data, KICK_MS, KICK_MAX_MS, "pause", &ms, NULL) < 0)
		return KICK_MS;
	return ms;
}

void held_kick_soon(const struct dirs *dirs)
{
	AUTO_FREE char *dir = held_dir(dirs), *kicked = fs_join(dir, KICKED);

	unlink(kicked);
}

/* Whether the mark of a run names others that it waits for. */
static bool held_any_after(const struct dirs *dirs)
{
	AUTO_FREE char *dir = held_dir(dirs);
	AUTO_STRV struct strv ids = {0};
	struct stat st;

	held_any(dirs, &ids);
	for (size_t i = 0; i < ids.n; i++) {
		AUTO_FREE char *path = fs_join(dir, ids.v[i]);
		if (stat(path, &st) == 0 && st.st_size > 0)
			return true;
	}
	return false;
}

static bool held_is_too_early(const struct dirs *dirs, const char *kicked)
{
	int64_t pause_ms = kick_pause_ms(kicked);

	if (pause_ms > KICK_AFTER_MS && held_any_after(dirs))
		pause_ms = KICK_AFTER_MS;
	struct stat st;
	int64_t age_ms;

	if (stat(kicked, &st) < 0)
		return false;
	age_ms = clock_wall_ms() - (int64_t)st.st_mtime * 1000;
	return age_ms >= 0 && age_ms < pause_ms;
}

void held_kick(struct session *session)
{
	static pid_t sender; /* to be reaped */
	AUTO_FREE char *dir = held_dir(&session->dirs), *kicked = fs_join(dir, KICKED);
	AUTO_FREE char *lock = fs_join(dir, HELD_LOCK);
	const char *const argv[] = {session->env.self, "queue", "--send", "-q", NULL};
	AUTO_ERR struct err err = {0};

	if (sender > 0 && waitpid(sender, NULL, WNOHANG) != 0)
		sender = 0;
	if (sender > 0 || session->ends_runs || !session->env.self ||
		!held_any(&session->dirs, NULL) || held_is_too_early(&session->dirs, kicked) ||
		fs_is_locked(lock))
		return;
	/* The pause after this kick: twice the one before, which sent nothing. */
	bool is_first = access(kicked, F_OK) < 0;
	int64_t ms = is_first ? KICK_MS : kick_pause_ms(kicked) * 2;
	AUTO_FREE char *text = mem_printf("%lld", (long long)(ms > KICK_MAX_MS ? KICK_MAX_MS : ms));

	int r = fs_replace(kicked, text, strlen(text), 0600, FS_SYNC_NONE, &err);
	if (r == 0)
		r = background_start(session, argv, &sender, &err);
	if (r < 0)
		log_note("what waits here is not sent: %s", err.message);
}

/* Whether the mark of a held run names one of these, or the study of one. */
static bool held_waits_for(const char *path, const struct run_list *runs)
{
	AUTO_BUF struct buf text = buf_with(MARK_MAX);

	if (fs_read(path, MARK_MAX, &text, NULL, NULL) < 0 || !text.len)
		return false;
	vec_foreach (struct run *, run, runs) {
		const char *study = run_study(*run);
		if (!run_state_is_final(run_state(*run)))
			continue;
		if (strstr(text.data, run_id(*run)) || (study && strstr(text.data, study)))
			return true;
	}
	return false;
}

void held_kick_ended(struct session *session, const struct run_list *runs)
{
	AUTO_FREE char *dir = held_dir(&session->dirs);
	AUTO_STRV struct strv ids = {0};

	held_any(&session->dirs, &ids);
	for (size_t i = 0; i < ids.n; i++) {
		AUTO_FREE char *path = fs_join(dir, ids.v[i]);
		if (!held_waits_for(path, runs))
			continue;
		held_kick_soon(&session->dirs);
		held_kick(session);
		return;
	}
}
