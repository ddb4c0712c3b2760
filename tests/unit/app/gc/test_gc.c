/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <sys/file.h>

#include "app/gc/gc.h"
#include "base/util/clock.h"
#include "core/context/session.h"
#include "core/image/code.h"
#include "core/store/store.h"
#include "snap/tree/statcache.h"
#include "tests/unit/runfix.h"

#define RUNS "state/dlrun/runs/"

enum { DAY_MS = 24 * 60 * 60 * 1000 };

static struct gc_report collect(int64_t keep_ms)
{
	struct gc_report report;

	ok(gc_local(&session, keep_ms, false, &report, error));
	return report;
}

static struct gc_report preview(int64_t keep_ms)
{
	struct gc_report report;

	ok(gc_local(&session, keep_ms, true, &report, error));
	return report;
}

static void insert(struct run *run)
{
	ok(store_insert(open_store(), run, error));
}

static void end_at(struct run *run, int64_t ended_ms)
{
	struct run_exit exit = {.known = true, .origin = "job", .reason = "Completed"};

	run_set_attempt_exit(run, &exit, ended_ms - 1, ended_ms);
}

/* All that the directory of a run may hold. */
static void fill_run(const char *id)
{
	static const char *const names[] = {"attempts/1/tree/src/a", "attempts/1/tree.tmp/b",
		"attempts/1/log", "attempts/1/exit.json", "attempts/1/files/x",
		"attempts/1/files/.dlrun-user", "attempts/1/.dlrun-0123456789abcdef",
		"outputs/.dlrun-user", "outputs/model", ".dlrun-0123456789abcdef", "finish.json",
		"submit.lock", "attempts/1/lock"};

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		AUTO_FREE char *name = mem_printf(RUNS "%s/%s", id, names[i]);
		put(name, "content");
	}
}

static bool has(const char *id, const char *name)
{
	AUTO_FREE char *path = mem_printf(RUNS "%s/%s", id, name);

	return exists(path);
}

static void assert_kept(const char *id)
{
	static const char *const names[] = {"attempts/1/log", "attempts/1/exit.json",
		"attempts/1/files/x", "attempts/1/files/.dlrun-user", "outputs/.dlrun-user",
		"outputs/model", "finish.json"};

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		assert_true(has(id, names[i]));
}

static size_t count_in(const char *name)
{
	AUTO_DIR DIR *stream = opendir(in_root(name));
	size_t n = 0;

	for (struct dirent *e; stream && (e = readdir(stream));)
		n += !str_eq(e->d_name, ".") && !str_eq(e->d_name, "..");
	return n;
}

static size_t count_blobs(void)
{
	return count_in(OWN_LAYOUT "/blobs/sha256");
}

static void make_old(const char *name)
{
	struct timespec times[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};

	assert_int_equal(utimensat(AT_FDCWD, in_root(name), times, AT_SYMLINK_NOFOLLOW), 0);
}

/* A shared or exclusive lock on a file that is there. */
static int hold(const char *name, int how)
{
	int fd = open(in_root(name), O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(flock(fd, how), 0);
	return fd;
}

/*
 * Runs
 */

static void test_nothing(void **state)
{
	struct gc_report report = collect(0);

	assert_int_equal(report.bytes + report.trees + report.blobs + report.files, 0);
	assert_false(exists("data"));
}

static void test_trees(void **state)
{
	AUTO_RUN struct run *old = new_run("old-22222"), *young = new_run("young-22222");

	end_at(old, clock_wall_ms() - 8LL * DAY_MS);
	end_at(young, clock_wall_ms() - 6LL * DAY_MS);
	insert(old);
	insert(young);
	fill_run("old-22222");
	fill_run("young-22222");

	struct gc_report would = preview(7LL * DAY_MS);
	assert_true(has("old-22222", "attempts/1/tree/src/a"));
	assert_true(has("old-22222", ".dlrun-0123456789abcdef"));
	struct gc_report report = collect(7LL * DAY_MS);
	assert_int_equal(report.trees, 2);
	assert_int_equal(report.files, 4);
	assert_true(report.bytes > 0);
	assert_memory_equal(&would, &report, sizeof(would));
	assert_false(
		has("old-22222", "attempts/1/tree") || has("old-22222", "attempts/1/tree.tmp"));
	assert_true(has("young-22222", "attempts/1/tree/src/a"));
	assert_false(has("young-22222", ".dlrun-0123456789abcdef"));
	assert_false(has("young-22222", "attempts/1/.dlrun-0123456789abcdef"));
	assert_kept("old-22222");
	assert_kept("young-22222");

	assert_int_equal(collect(7LL * DAY_MS).trees, 0);
	assert_int_equal(collect(0).trees, 2);
	assert_false(has("young-22222", "attempts/1/tree"));
	assert_kept("young-22222");
}

/* Nothing of a run that has not ended, or whose supervisor or submit is at work. */
static void test_trees_in_use(void **state)
{
	AUTO_RUN struct run *running = new_run("run-22222"), *ending = new_run("end-22222");
	AUTO_RUN struct run *submitting = new_run("sub-22222");

	run_set_state(running, RUN_UNKNOWN);
	insert(running);
	insert(ending);
	insert(submitting);
	fill_run("run-22222");
	fill_run("end-22222");
	fill_run("sub-22222");
	const int locks[] = {hold(RUNS "run-22222/attempts/1/lock", LOCK_EX),
		hold(RUNS "end-22222/attempts/1/lock", LOCK_EX),
		hold(RUNS "sub-22222/submit.lock", LOCK_EX)};
	struct gc_report report = collect(0);
	assert_int_equal(report.trees, 0);
	assert_true(has("run-22222", "attempts/1/tree/src/a"));
	assert_true(has("run-22222", "attempts/1/.dlrun-0123456789abcdef"));
	assert_true(has("end-22222", "attempts/1/tree/src/a"));
	assert_true(has("sub-22222", "attempts/1/tree/src/a"));
	for (size_t i = 0; i < ARRAY_LEN(locks); i++)
		close(locks[i]);
}

/* The row says running, but it has ended: gc asks first. */
static void test_refreshes(void **state)
{
	AUTO_RUN struct run *run = new_run("run-22222");
	struct target_status end = {.ended_ms = 5000};

	run_set_state(run, RUN_RUNNING);
	insert(run);
	fill_run("run-22222");
	attempt_set_end(&end, RUN_FAILED, 3, 0, "job", "Error", NULL);
	ok(attempt_end_write(in_root(RUNS "run-22222/attempts/1"), &end, 0, error));
	assert_int_equal(collect(0).trees, 2);
	assert_kept("run-22222");
}

/*
 * What no row names
 */

static void test_strays(void **state)
{
	AUTO_RUN struct run *damaged = new_run("bad-22222");

	open_store();
	json_remove(damaged->doc, "schema");
	insert(damaged);
	put(RUNS "bad-22222/submit.lock", "");
	put(RUNS "gone-22222/submit.lock", "");
	put(RUNS "held-22222/submit.lock", "");
	put(RUNS "lost-22222/outputs/model", "");
	put(RUNS "lost-22222/attempts/1/log", "");
	put(RUNS "notes/x", "");
	int lock = hold(RUNS "held-22222/submit.lock", LOCK_EX);
	assert_int_equal(preview(0).files, 1);
	assert_int_equal(collect(0).files, 1);
	assert_false(exists(RUNS "gone-22222"));
	assert_true(exists(RUNS "bad-22222/submit.lock"));
	assert_true(exists(RUNS "held-22222/submit.lock"));
	assert_true(exists(RUNS "lost-22222/outputs/model"));
	assert_true(exists(RUNS "notes/x"));
	assert_int_equal(count_in(RUNS), 4);
	close(lock);
}

static void test_studies(void **state)
{
	AUTO_RUN struct run *member = new_run("tiger-0-22222");

	json_set_str(member->doc, "group", "tiger-22222");
	insert(member);
	put("state/dlrun/studies/tiger-22222/slots/slot.0", "");
	put("state/dlrun/studies/gone-22222/slots/slot.0", "");
	put("state/dlrun/studies/notes/x", "mine");
	assert_int_equal(preview(DAY_MS).files, 0);
	assert_int_equal(preview(0).files, 1);
	assert_int_equal(collect(0).files, 1);
	assert_false(exists("state/dlrun/studies/gone-22222"));
	assert_true(exists("state/dlrun/studies/tiger-22222/slots/slot.0"));
	assert_true(exists("state/dlrun/studies/notes/x"));
}

static void test_images(void **state)
{
	struct fake_tree *tree = tree_new();
	AUTO_IMAGE struct image pushed = {0};

	tree_put(tree, "a", 'f', 1, 100);
	AUTO_RUN struct run *kept = run_with("kept-22222", tree);
	tree_put(tree, "a", 'f', 2, 100);
	AUTO_RUN struct run *gone = run_with("gone-22222", tree);
	tree_put(tree, "a", 'f', 3, 100);
	AUTO_RUN struct run *preparing = run_with("prep-22222", tree);
	tree_put(tree, "a", 'f', 4, 100);
	struct image_request request = request_of(tree);
	request.name = "mine";
	pushed = write_image(OWN_LAYOUT, &request);
	run_set_state(preparing, RUN_UNKNOWN);
	insert(kept);
	insert(gone);
	insert(preparing);

	size_t before = count_blobs();
	assert_int_equal(collect(0).blobs, 0);
	ok(store_remove(open_store(), "gone-22222", error));
	/* manifest, configuration, delta */
	struct gc_report would = preview(0);
	assert_int_equal(would.blobs, 3);
	assert_int_equal(count_blobs(), before);
	assert_int_equal(collect(0).blobs, 3);
	assert_int_equal(count_blobs(), before - 3);
	AUTO_ENTRIES struct entry_list entries = {0};
	ok(run_entries(&session, kept, &entries, error));
	ok(store_remove(open_store(), "kept-22222", error));
	ok(store_remove(open_store(), "prep-22222", error));
	collect(0);
	/* a name that is no run's is its user's */
	struct descriptor found;
	struct layout *layout;
	ok(session_layout(&session, &layout, error));
	ok(layout_resolve(layout, "mine", &found, error));
	assert_string_equal(found.digest, pushed.manifest.digest);
	tree_done(tree);
}

/* The image of a run that was submitted --from another one, which is gone: only its row names
 * it. */
static void test_image_without_name(void **state)
{
	struct fake_tree *tree = tree_new();
	AUTO_RUN struct run *child = new_run("child-22222");
	AUTO_ENTRIES struct entry_list entries = {0};

	tree_put(tree, "a", 'f', 1, 100);
	AUTO_RUN struct run *parent = run_with("parent-22222", tree);
	json_set(child->doc, "image", json_clone(json_get(parent->doc, "image")));
	insert(child);
	collect(0);
	ok(run_entries(&session, child, &entries, error));
	assert_int_equal(entries.n, 1);
	ok(store_remove(open_store(), "child-22222", error));
	collect(0);
	assert_int_equal(count_blobs(), 0);
	tree_done(tree);
}

/* A submit is between its directory and its row: what no row names may be its. */
static void test_beside_a_submit(void **state)
{
	struct fake_tree *tree = tree_new();
	int submit_fd;

	tree_put(tree, "a", 'f', 1, 100);
	run_free(run_with("gone-22222", tree));
	put(RUNS "gone-22222/submit.lock", "");
	size_t before = count_blobs();
	ok(session_lock(&session, false, 0, &submit_fd, error));
	struct gc_report report = collect(0);
	assert_int_equal(report.blobs + report.files, 0);
	assert_int_equal(count_blobs(), before);
	assert_true(exists(RUNS "gone-22222"));
	close(submit_fd);
	collect(0);
	assert_int_equal(count_blobs(), 0);
	assert_false(exists(RUNS "gone-22222"));
	tree_done(tree);
}

/* A push writes into the layout: its blobs have no name yet. */
static void test_beside_a_push(void **state)
{
	struct fake_tree *tree = tree_new();
	struct layout *layout;

	tree_put(tree, "a", 'f', 1, 100);
	run_free(run_with("gone-22222", tree));
	ok(session_layout(&session, &layout, error));
	struct sink *sink = layout_sink(layout);
	assert_int_equal(collect(0).blobs, 0);
	assert_true(count_blobs() > 0);
	sink_free(sink);
	assert_int_equal(collect(0).blobs, 3);
	tree_done(tree);
}

/*
 * Spares and caches
 */

#define SPARE "d74fcb7ecafcd1e87ac6473159c4bb1b9bafd77f40454da64f7ff82a3c4dadc9"

static void test_spares(void **state)
{
	AUTO_RUN struct run *run = new_run("run-22222");

	run_set_state(run, RUN_UNKNOWN);
	insert(run);
	put("state/dlrun/spares/" SPARE "/a", "x");
	put("state/dlrun/spares/half-" SPARE "/a", "x");
	put("state/dlrun/spares/lock", "");
	put(RUNS "run-22222/attempts/1/lock", "");
	int fd = hold(RUNS "run-22222/attempts/1/lock", LOCK_EX);
	assert_int_equal(collect(1).trees + collect(0).trees, 0);
	close(fd);
	ok(store_remove(open_store(), "run-22222", error));
	assert_int_equal(collect(1).trees, 0);
	assert_int_equal(preview(0).trees, 2);
	assert_int_equal(collect(0).trees, 2);
	assert_int_equal(count_in("state/dlrun/spares"), 0);
}

static void test_plans(void **state)
{
	struct fake_tree *tree = tree_new();
	AUTO_FREE char *needed = mem_printf("cache/dlrun/plans/%064d", 1);
	AUTO_FREE char *other = mem_printf("cache/dlrun/plans/%064d", 2);
	AUTO_FREE char *recent = mem_printf("%s.recent", other);
	AUTO_FREE char *half = mem_printf("cache/dlrun/plans/%064d.recent", 3);
	AUTO_IMAGE struct image image = {0}, elsewhere = {0};

	put("cache/dlrun/plans/notes", "mine");
	put("cache/dlrun/plans/.dlrun-0123456789abcdef", "x");
	tree_put(tree, "a", 'f', 1, 100);
	AUTO_RUN struct run *run = run_with("run-22222", tree);
	insert(run);
	struct image_request request = request_of(tree);
	request.plan_path = in_root(needed);
	image = write_image(OWN_LAYOUT, &request);
	tree_put(tree, "a", 'f', 2, 200);
	request = request_of(tree);
	request.plan_path = in_root(other);
	elsewhere = write_image("other", &request);
	put(half, "x");
	make_old(needed);
	make_old(half);
	make_old(other);

	/* the temporary file, and the half plan; the other one was used just now */
	assert_int_equal(preview(DAY_MS).files, 2);
	assert_int_equal(collect(DAY_MS).files, 2);
	assert_true(exists(needed) && exists(other) && exists(recent));
	assert_false(exists(half));
	AUTO_FREE char *lock = mem_printf("%s.lock", other);
	int fd = hold(lock, LOCK_EX);
	assert_int_equal(collect(0).files, 0);
	close(fd);
	assert_int_equal(collect(0).files, 3);
	assert_true(exists(needed) && exists("cache/dlrun/plans/notes"));
	assert_false(exists(other) || exists(recent) || exists(lock));
	tree_done(tree);
}

/* The layer goes, and the plan with it, in one gc. */
static void test_plan_of_removed(void **state)
{
	struct fake_tree *tree = tree_new();
	AUTO_FREE char *plan = mem_printf("cache/dlrun/plans/%064d", 1);
	AUTO_IMAGE struct image image = {0};

	put("cache/dlrun/plans/notes", "mine");
	tree_put(tree, "a", 'f', 1, 100);
	struct image_request request = request_of(tree);
	request.plan_path = in_root(plan);
	request.name = "gone-22222";
	image = write_image(OWN_LAYOUT, &request);
	struct gc_report report = collect(0);
	assert_int_equal(report.blobs, 3);
	assert_int_equal(count_blobs(), 0);
	assert_int_equal(count_in("cache/dlrun/plans"), 1);
	tree_done(tree);
}

static void test_mirrors(void **state)
{
	AUTO_RUN struct run *run = new_run("run-22222");

	ok(store_insert(open_store(), run, error));
	put("cache/dlrun/mirror/run-22222/.dlrun-mirror/lock", "");
	put("cache/dlrun/mirror/gone-22222/.dlrun-mirror/lock", "");
	put("cache/dlrun/mirror/gone-22222/tb/x.tfevents", "x");
	put("cache/dlrun/mirror/notes", "mine");
	put("cache/dlrun/mirror-scalars/run-22222/.dlrun-mirror/lock", "");
	put("cache/dlrun/mirror-scalars/gone-22222/.dlrun-mirror/lock", "");
	assert_int_equal(collect(3600 * 1000).files, 0);
	assert_true(exists("cache/dlrun/mirror-scalars/gone-22222"));
	int fd = hold("cache/dlrun/mirror/gone-22222/.dlrun-mirror/lock", LOCK_EX);
	assert_int_equal(collect(0).files, 1);
	assert_false(exists("cache/dlrun/mirror-scalars/gone-22222"));
	close(fd);
	assert_int_equal(collect(0).files, 1);
	assert_false(exists("cache/dlrun/mirror/gone-22222"));
	assert_true(exists("cache/dlrun/mirror-scalars/run-22222"));
	assert_true(exists("cache/dlrun/mirror/run-22222") && exists("cache/dlrun/mirror/notes"));
}

static char *stat_file(const char *tree)
{
	AUTO_FREE char *path = statcache_path(session.dirs.cache, tree);

	return mem_strdup(path + strlen(root) + 1);
}

static void test_stat_caches(void **state)
{
	AUTO_RUN struct run *run = new_run("run-22222"), *moved = new_run("moved-22222");
	AUTO_FREE char *gone = mem_printf("%s/gone", root);
	AUTO_FREE char *mine = stat_file(fix_cwd), *lost = stat_file(gone), *young = stat_file("/");

	json_set_str(json_sub(moved->doc, "origin"), "root", gone);
	insert(run);
	insert(moved);
	put(mine, "x");
	put(lost, "x");
	put(young, "x");
	make_old(mine);
	make_old(lost);
	put("cache/dlrun/notes/x", "mine");
	assert_int_equal(collect(DAY_MS).files, 1);
	assert_true(exists(mine) && exists(young) && exists("cache/dlrun/notes/x"));
	assert_false(exists(lost));
	assert_int_equal(collect(0).files, 1);
	assert_true(exists(mine));
	assert_false(exists(young));
}

/* The directory that was sent with a run, behind a link; not the one that lies there. */
static void test_stat_caches_of_data(void **state)
{
	AUTO_RUN struct run *run = new_run("run-22222");
	AUTO_FREE char *set = fs_join(root, "sets/a"), *link = fs_join(root, "proj-set");
	AUTO_FREE char *sent = stat_file(set);
	AUTO_FREE char *dir = fs_dirname(link);
	const char *const rows[][2] = {{"proj-set", "sync"}, {"sets", "/data/sets"}};

	put("sets/a/x", "x");
	assert_int_equal(symlink(set, link), 0);
	json_set_str(json_sub(run->doc, "origin"), "root", dir);
	struct json *data = json_array();
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct json *item = json_object();
		json_set_str(item, "path", rows[i][0]);
		json_set_str(item, "from", rows[i][1]);
		json_add(data, item);
	}
	if (!run->spec)
		run->spec = json_object();
	json_set(run->spec, "data", data);
	insert(run);
	put(sent, "x");
	AUTO_FREE char *sets = fs_join(root, "sets"), *lies = stat_file(sets);
	put(lies, "x");
	collect(0);
	assert_true(exists(sent));
	assert_false(exists(lies));
}

static void test_lists_of_data(void **state)
{
	put("cache/dlrun/data/d-0123456789abcdef.list", "old");
	put("cache/dlrun/data/d-fedcba9876543210.list", "new");
	put("cache/dlrun/data/0123456789abcdef0123456789abcdef.stat", "old");
	put("cache/dlrun/data/0123456789abcdef.lock", "");
	put("cache/dlrun/data/0123456789abcdef.upload", "old");
	put("cache/dlrun/data/0123456789abcdef.uploads/fedcba9876543210", "old");
	put("cache/dlrun/data/fedcba9876543210.uploads/0123456789abcdef", "new");
	make_old("cache/dlrun/data/0123456789abcdef.upload");
	make_old("cache/dlrun/data/0123456789abcdef.uploads");
	make_old("cache/dlrun/data/d-0123456789abcdef.list");
	make_old("cache/dlrun/data/0123456789abcdef0123456789abcdef.stat");
	make_old("cache/dlrun/data/0123456789abcdef.lock");
	collect(DAY_MS);
	assert_int_equal(count_in("cache/dlrun/data"), 3);
	assert_true(exists("cache/dlrun/data/d-fedcba9876543210.list"));
	assert_true(exists("cache/dlrun/data/fedcba9876543210.uploads/0123456789abcdef"));
	assert_true(exists("cache/dlrun/data/0123456789abcdef.lock"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, make_session, remove_session)
		T(test_nothing),
		T(test_trees),
		T(test_trees_in_use),
		T(test_refreshes),
		T(test_strays),
		T(test_studies),
		T(test_images),
		T(test_image_without_name),
		T(test_beside_a_submit),
		T(test_beside_a_push),
		T(test_spares),
		T(test_plans),
		T(test_plan_of_removed),
		T(test_mirrors),
		T(test_stat_caches),
		T(test_stat_caches_of_data),
		T(test_lists_of_data),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
