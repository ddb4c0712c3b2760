/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of runs that have ended share: a session whose directories lie below root, images
 * in its layout, rows in its store.
 */
#ifndef DLRUN_TESTS_UNIT_RUNFIX_H
#define DLRUN_TESTS_UNIT_RUNFIX_H

#include "base/os/os.h"
#include "core/attempt/attempt.h"
#include "core/context/session.h"
#include "tests/unit/imagefix.h"

#define OWN_LAYOUT "data/dlrun/oci"

static struct session session;
static char fix_home[300], fix_state[300], fix_cache[300], fix_data[300], fix_cwd[300];
static const char *const fix_env[] = {"PATH=/usr/bin:/bin", NULL};

static inline int make_session(void **state)
{
	if (make_root(state))
		return -1;
	snprintf(fix_home, sizeof(fix_home), "%s/home", root);
	snprintf(fix_state, sizeof(fix_state), "%s/state", root);
	snprintf(fix_cache, sizeof(fix_cache), "%s/cache", root);
	snprintf(fix_data, sizeof(fix_data), "%s/data", root);
	snprintf(fix_cwd, sizeof(fix_cwd), "%s/tree", root);
	mkdir(fix_home, 0700);
	mkdir(fix_cwd, 0755);
	struct session_env env = {
		.dirs = {.home = fix_home,
			.xdg_state_home = fix_state,
			.xdg_cache_home = fix_cache,
			.xdg_data_home = fix_data},
		.cwd = fix_cwd,
		.user = "me",
		.env = fix_env,
		.self = "/bin/false",
		.site_config = "/proc/nonexistent",
	};
	return session_init(&session, &env, NULL);
}

static inline int remove_session(void **state)
{
	session_done(&session);
	return remove_root(state);
}

static inline struct store *open_store(void)
{
	struct store *store = NULL;

	ok(session_store(&session, &store, error));
	return store;
}

/* A run that has ended just now, with one attempt; not stored yet. */
static inline struct run *new_run(const char *id)
{
	struct run *run = run_new(id, "a");
	char machine[OS_ID_SIZE] = "";
	struct run_exit exit = {.known = true, .origin = "job", .reason = "Completed"};

	os_machine_id(machine);
	AUTO_FREE char *handle = mem_printf("%s:%s/1", machine, id);
	json_set_str(json_sub(run->doc, "target"), "kind", "local");
	json_set_str(json_sub(run->doc, "target"), "name", "local");
	json_set_str(run->doc, "user", "me");
	json_set_str(json_sub(run->doc, "origin"), "root", fix_cwd);
	run_add_attempt(run, handle);
	run_set_time(json_sub(run->doc, "times"), "submitted", 1000);
	run_set_state(run, RUN_SUCCEEDED);
	run_set_exit(run, &exit);
	run_set_attempt_exit(run, &exit, 2000, 3000);
	return run;
}

/* The image of the tree in the layout root/name becomes the run's. */
static inline void give_image(
	struct run *run, const char *name, struct fake_tree *tree, struct image *ret)
{
	struct image_request request = request_of(tree);

	request.name = run_id(run);
	*ret = write_image(name, &request);
	AUTO_FREE char *ref = mem_printf("oci:%s@%s", in_root(name), ret->manifest.digest);
	json_set_str(json_sub(run->doc, "image"), "ref", ref);
	json_set_str(json_sub(run->doc, "snapshot"), "id", tree_id);
}

static inline struct run *run_with(const char *id, struct fake_tree *tree)
{
	struct run *run = new_run(id);
	struct image image;

	give_image(run, OWN_LAYOUT, tree, &image);
	image_done(&image);
	return run;
}

static inline bool exists(const char *name)
{
	struct stat st;

	return lstat(in_root(name), &st) == 0;
}

/* A file and the directories on the way to it. */
static inline void put(const char *name, const char *text)
{
	AUTO_FREE char *path = mem_strdup(in_root(name));
	AUTO_FREE char *dir = mem_strndup(path, (size_t)(strrchr(path, '/') - path));

	ok(fs_mkdirs(dir, 0755, error));
	ok(fs_replace(path, text, strlen(text), 0644, FS_SYNC_NONE, error));
}

#endif
