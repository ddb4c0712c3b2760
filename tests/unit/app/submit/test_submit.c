/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "app/lifecycle/follow.h"
#include "app/lifecycle/remove.h"
#include "app/prepare/prepare.h"
#include "app/prepare/push.h"
#include "app/submit/submit.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "core/config/words.h"
#include "core/context/session.h"
#include "core/record/spec.h"
#include "core/store/store.h"
#include "targets/local/supervise.h"
#include "tests/unit/supervisefix.h"

enum { TIMEOUT_MS = 20000 };

struct place {
	char base[64];
	char home[80], tree[80];
	char *cwd;
	struct session session;
	struct strv command, env, include, allow, tags, ports, warnings;
	struct submit_options options;
	size_t snapshots, images, targets;
};

static char self[4096];

static const char *const shell_env[] = {
	"PATH=/usr/local/bin:/usr/bin:/bin", "FROM_SHELL=yes", "HF_TOKEN=s3cret", NULL};

static void write_file(const struct place *place, const char *name, const char *text, mode_t mode)
{
	AUTO_FREE char *path = fs_join(place->tree, name);
	AUTO_FREE char *dir = mem_strndup(path, (size_t)(strrchr(path, '/') - path));

	assert_int_equal(fs_mkdirs(dir, 0755, NULL), 0);
	assert_int_equal(fs_replace(path, text, strlen(text), mode, FS_SYNC_NONE, NULL), 0);
}

/* As a new process would begin. */
static void open_session(struct place *place, const char *below)
{
	struct session_env env = {.dirs = {.home = place->home},
		.user = "me",
		.env = shell_env,
		.self = self,
		.site_config = "/proc/nonexistent"};

	session_done(&place->session);
	free(place->cwd);
	place->cwd = fs_join(place->tree, below);
	env.cwd = place->cwd;
	assert_int_equal(session_init(&place->session, &env, NULL), 0);
}

static int setup(void **state)
{
	struct place *place = mem_alloc(1, sizeof(*place));

	snprintf(place->base, sizeof(place->base), "/tmp/dlrun-test-submit-XXXXXX");
	if (!mkdtemp(place->base))
		return -1;
	snprintf(place->home, sizeof(place->home), "%s/home", place->base);
	snprintf(place->tree, sizeof(place->tree), "%s/tree", place->base);
	if (mkdir(place->home, 0700) < 0 || mkdir(place->tree, 0755) < 0)
		return -1;
	place->options = (struct submit_options){.command = &place->command,
		.env = &place->env,
		.include = &place->include,
		.allow = &place->allow,
		.tags = &place->tags,
		.ports = &place->ports};
	write_file(place, "train.py", "print('hello')\n", 0644);
	write_file(place, "exp/run.sh", "#!/bin/sh\ncat ../train.py\n", 0755);
	open_session(place, ".");
	*state = place;
	return 0;
}

static int teardown(void **state)
{
	struct place *place = *state;
	int r;

	session_done(&place->session);
	free(place->cwd);
	strv_done(&place->command);
	strv_done(&place->env);
	strv_done(&place->include);
	strv_done(&place->allow);
	strv_done(&place->tags);
	strv_done(&place->ports);
	strv_done(&place->warnings);
	r = fs_remove_tree(AT_FDCWD, place->base, NULL);
	free(place);
	return r;
}

static void on_snapshot(void *ctx, const struct snapshot *snapshot, int64_t ms)
{
	assert_true(snapshot->entries.n > 0 && ms >= 0);
	((struct place *)ctx)->snapshots++;
}

static void on_image(void *ctx, const struct image *image, int64_t ms)
{
	assert_true(image->n_layers > 0 && ms >= 0);
	((struct place *)ctx)->images++;
}

static void on_target(void *ctx, const struct run *run)
{
	assert_int_equal(run_state(run), RUN_QUEUED);
	((struct place *)ctx)->targets++;
}

static void on_warning(void *ctx, const char *text)
{
	strv_add(&((struct place *)ctx)->warnings, text);
}

static struct submit_events events_of(struct place *place)
{
	return (struct submit_events){.snapshot = on_snapshot,
		.image = on_image,
		.target = on_target,
		.warning = on_warning,
		.ctx = place};
}

static void set_words(struct place *place, const char *const *words)
{
	strv_done(&place->command);
	for (; *words; words++)
		strv_add(&place->command, *words);
}
#define WORDS(place, ...) set_words(place, (const char *const[]){__VA_ARGS__, NULL})

static struct run *submit(struct place *place)
{
	struct submit_events events = events_of(place);
	AUTO_ERR struct err err = {0};
	struct run *run = NULL;

	strv_done(&place->warnings);
	if (submit_run(&place->session, &place->options, &events, &run, &err) < 0)
		fail_msg("%s", err.message);
	submit_finish(&place->session, run, &events);
	return run;
}

static void wait_end(struct place *place, struct run *run)
{
	struct run_list one = {.v = &run, .n = 1, .cap = 1};
	AUTO_ERR struct err err = {0};

	if (runs_wait(&place->session, &one, TIMEOUT_MS, NULL, &err) < 0)
		fail_msg("%s", err.message);
}

static char *read_log(struct place *place, const struct run *run)
{
	AUTO_FREE char *dir = dirs_attempt(&place->session.dirs, run_id(run), 1);
	AUTO_FREE char *path = fs_join(dir, ATTEMPT_LOG);
	AUTO_BUF struct buf text = {0};

	assert_int_equal(fs_read(path, 1 << 20, &text, NULL, NULL), 0);
	return buf_take(&text);
}

/* Submit, wait, and compare its output. */
static struct run *expect_output(struct place *place, const char *want)
{
	struct run *run = submit(place);

	wait_end(place, run);
	AUTO_FREE char *log = read_log(place, run);
	assert_string_equal(log, want);
	assert_int_equal(run_state(run), RUN_SUCCEEDED);
	return run;
}

static size_t count_rows(struct place *place)
{
	AUTO(run_list_done) struct run_list runs = {0};
	struct store_filter filter = {0};
	struct store *store;

	assert_int_equal(session_store(&place->session, &store, NULL), 0);
	assert_int_equal(store_list(store, &filter, &runs, NULL), 0);
	return runs.n;
}

static int count_files(const char *dir)
{
	AUTO_FREE char *line = mem_printf("exit $(ls -A %s 2>/dev/null | wc -l)", dir);
	int status = system(line);

	return WEXITSTATUS(status);
}

/* It is refused, and leaves neither row nor directory. */
static void expect_refused(struct place *place, enum err_id id, const char *message)
{
	struct submit_events events = events_of(place);
	AUTO_FREE char *runs = mem_printf("%s/runs", place->session.dirs.state);
	AUTO_ERR struct err err = {0};
	struct run *run = NULL;
	int before = count_files(runs);

	strv_done(&place->warnings);
	assert_true(submit_run(&place->session, &place->options, &events, &run, &err) < 0);
	assert_null(run);
	if (err.id != id || !strstr(err.message, message))
		fail_msg("%s [%s]", err.message, err_info(err.id)->name);
	assert_int_equal(count_files(runs), before);
	assert_int_equal(count_rows(place), before);
}

static bool warned(const struct place *place, const char *text)
{
	for (size_t i = 0; i < place->warnings.n; i++)
		if (strstr(place->warnings.v[i], text))
			return true;
	return false;
}

static const char *get(const struct run *run, const char *object, const char *key)
{
	return json_get_str(json_get(run->doc, object), key);
}

/*
 * Runs
 */

static void test_what_you_see_is_what_runs(void **state)
{
	struct place *place = *state;

	WORDS(place, "sh", "exp/run.sh", "--lr", "0.1");
	write_file(
		place, "exp/run.sh", "#!/bin/sh\npwd; cat train.py; echo $FROM_SHELL $@\n", 0644);
	AUTO_RUN struct run *run = submit(place);
	/* What happens to the tree now is of no matter. */
	write_file(place, "train.py", "print('changed')\n", 0644);
	wait_end(place, run);
	assert_int_equal(run_state(run), RUN_SUCCEEDED);
	AUTO_FREE char *log = read_log(place, run);
	AUTO_FREE char *want = mem_printf(
		"%s/.local/state/dlrun/runs/%s/attempts/1/tree\nprint('hello')\nyes --lr 0.1\n",
		place->home, run_id(run));
	assert_string_equal(log, want);
	assert_int_equal(place->snapshots, 1);
	assert_int_equal(place->images, 1);
	assert_int_equal(place->targets, 1);
	assert_int_equal(place->warnings.n, 0);
}

static void test_the_record(void **state)
{
	struct place *place = *state;

	WORDS(place, "sh", "run.sh", "--lr", "0.1");
	strv_add(&place->tags, "paper");
	strv_add(&place->tags, "seed=7");
	place->options.note = "first try";
	place->options.group = "study";
	/* It marks where the tree begins. */
	write_file(place, "dlrun.yaml", "", 0644);
	open_session(place, "exp");
	AUTO_RUN struct run *run = expect_output(place, "print('hello')\n");
	assert_string_equal(run_name(run), "run");
	assert_string_equal(get(run, "params", "lr"), "0.1");
	assert_string_equal(get(run, "tags", "paper"), "");
	assert_string_equal(get(run, "tags", "seed"), "7");
	assert_string_equal(json_get_str(run->doc, "note"), "first try");
	assert_string_equal(json_get_str(run->doc, "group"), "study");
	assert_string_equal(json_get_str(run->doc, "user"), "me");
	assert_string_equal(get(run, "target", "kind"), "local");
	assert_string_equal(get(run, "target", "name"), "local");
	assert_string_equal(get(run, "origin", "cwd"), "exp");
	assert_string_equal(get(run, "origin", "root"), place->tree);
	assert_int_equal(strncmp(get(run, "snapshot", "id"), "sha256:", 7), 0);
	assert_int_equal(json_get_int(json_get(run->doc, "snapshot"), "files", 0), 3);
	assert_non_null(strstr(get(run, "image", "ref"), "@sha256:"));
	assert_string_equal(get(run, "image", "base"), "scratch");
	assert_true(run_submitted_ms(run) <= run_started_ms(run));
	assert_true(run_started_ms(run) <= run_ended_ms(run));
	assert_int_equal(run_exit_status(run), 0);
	assert_true(json_get_num(json_get(run->doc, "usage"), "cpu_s", -1) >= 0);
	/* What came after the start has joined the stored record. */
	AUTO_RUN struct run *stored = NULL;
	struct store *store;
	assert_int_equal(session_store(&place->session, &store, NULL), 0);
	assert_int_equal(store_get(store, run_id(run), &stored, NULL), 0);
	assert_true(json_get_int(json_get(stored->doc, "phases_ms"), "total", -1) >= 0);
	assert_string_equal(json_get_str(stored->spec, "schema"), SPEC_SCHEMA);
}

static void test_a_second_submit_builds_on_the_first(void **state)
{
	struct place *place = *state;

	WORDS(place, "cat", "train.py");
	AUTO_RUN struct run *first = expect_output(place, "print('hello')\n");
	write_file(place, "train.py", "print('again')\n", 0644);
	open_session(place, ".");
	/* With the spare tree of the first one or without. */
	AUTO_RUN struct run *second = expect_output(place, "print('again')\n");
	assert_string_not_equal(run_image_digest(first), run_image_digest(second));
	const struct json *layers = json_get(json_get(second->doc, "image"), "layers");
	assert_int_equal(json_count(layers), 2);
	assert_string_equal(json_get_str(json_first(layers), "role"), "full");
	assert_string_equal(json_get_str(json_next(json_first(layers)), "role"), "delta");
	assert_int_equal(json_get_int(json_get(second->doc, "image"), "layers_pushed", -1), 1);
}

/* Spares are made after the start, by a process that nobody waits for. */
static bool has_spare(const char *spares)
{
	AUTO_FREE char *line = mem_printf("ls %s 2>/dev/null | grep -qE '^[0-9a-f]{64}$'", spares);

	return system(line) == 0;
}

static void test_spare_trees(void **state)
{
	struct place *place = *state;
	AUTO_FREE char *spares = dirs_spares(&place->session.dirs);
	int64_t deadline_ms = clock_ms() + TIMEOUT_MS;
	uint64_t free_bytes = 0;

	WORDS(place, "cat", "train.py");
	run_free(expect_output(place, "print('hello')\n"));
	assert_int_equal(fs_free_bytes(place->base, &free_bytes, NULL), 0);
	if (free_bytes < UINT64_C(2) << 30)
		skip();
	while (!has_spare(spares) && clock_ms() < deadline_ms)
		usleep(5000);
	assert_true(has_spare(spares));
	write_file(place, "train.py", "print('again')\n", 0644);
	write_file(place, "new.txt", "new\n", 0644);
	unlink("train.pyc");
	WORDS(place, "sh", "-c", "cat train.py new.txt; find . -type f | sort");
	AUTO_RUN struct run *run =
		expect_output(place, "print('again')\nnew\n./exp/run.sh\n./new.txt\n./train.py\n");
	AUTO_FREE char *dir = dirs_attempt(&place->session.dirs, run_id(run), 1);
	AUTO_FREE char *notes = fs_join(dir, ATTEMPT_NOTES);
	AUTO_BUF struct buf text = {0};
	assert_int_equal(fs_read(notes, 1 << 20, &text, NULL, NULL), 0);
	assert_non_null(strstr(text.data, "from a spare"));
}

static void test_git(void **state)
{
	struct place *place = *state;
	AUTO_FREE char *git = mem_printf("cd %s && git init -q . && git add train.py &&"
					 " git -c user.name=n -c user.email=e commit -q -m m &&"
					 " git remote add origin https://example.com/r.git",
		place->tree);

	assert_int_equal(system(git), 0);
	open_session(place, ".");
	WORDS(place, "sh", "-c",
		"echo $DLRUN_GIT_DIRTY $PYTHONUNBUFFERED $WANDB_GIT_REMOTE_URL;"
		"test $WANDB_GIT_COMMIT = $DLRUN_GIT_COMMIT && test ${#DLRUN_GIT_COMMIT} = 40 &&"
		"case $DLRUN_SNAPSHOT-$DLRUN_IMAGE_REF in sha256:*-oci:*@sha256:*) echo ok;; esac");
	AUTO_RUN struct run *run = expect_output(place, "1 1 https://example.com/r.git\nok\n");
	assert_int_equal(strlen(get(run, "snapshot", "commit")), 40);
	AUTO_FREE char *ref = mem_printf("refs/dlrun/%s", run_id(run));
	assert_string_equal(get(run, "snapshot", "ref"), ref);
	AUTO_FREE char *check = mem_printf("cd %s && test $(git rev-parse %s) = %s &&"
					   " test \"$(git show %s:exp/run.sh | tail -1)\" ="
					   " 'cat ../train.py'",
		place->tree, ref, get(run, "snapshot", "record"), ref);
	assert_int_equal(system(check), 0);
}

/* Else `rm` in between would leave the git record. */
static void test_locked_until_finished(void **state)
{
	struct place *place = *state;
	struct submit_events events = events_of(place);
	AUTO_ERR struct err err = {0};
	AUTO_RUN struct run *run = NULL;

	WORDS(place, "true");
	assert_int_equal(submit_run(&place->session, &place->options, &events, &run, &err), 0);
	AUTO_FREE char *dir = dirs_run(&place->session.dirs, run_id(run));
	AUTO_FREE char *lock = fs_join(dir, RUN_SUBMIT_LOCK);
	assert_int_equal(fs_is_locked(lock), 1);
	submit_finish(&place->session, run, &events);
	assert_int_equal(fs_is_locked(lock), 0);
	wait_end(place, run);
}

/* How it ended nobody can tell any more, so nobody does. */
static void test_removed_while_waited_for(void **state)
{
	struct place *place = *state;
	AUTO_ERR struct err err = {0};
	AUTO_RUN struct run *run = NULL, *other = NULL;
	struct run_list one = {.v = &other, .n = 1, .cap = 1},
			ended = {.v = &run, .n = 1, .cap = 1};
	struct err removed = {0};
	struct store *store;

	WORDS(place, "true");
	run = submit(place);
	assert_int_equal(session_store(&place->session, &store, NULL), 0);
	assert_int_equal(store_get(store, run_id(run), &other, NULL), 0);
	wait_end(place, run);
	assert_int_equal(runs_remove(&place->session, &ended, &removed, NULL), 0);
	assert_false(err_is_set(&removed));
	assert_true(runs_wait(&place->session, &one, TIMEOUT_MS, NULL, &err) < 0);
	assert_int_equal(err.id, E_RUN_NOT_FOUND);
}

/* Somebody else has seen the end of the run before its submit had finished. */
static void test_finished_after_the_end(void **state)
{
	struct place *place = *state;
	struct submit_events events = events_of(place);
	AUTO_ERR struct err err = {0};
	AUTO_RUN struct run *run = NULL, *other = NULL, *stored = NULL;
	struct store *store;

	WORDS(place, "true");
	assert_int_equal(submit_run(&place->session, &place->options, &events, &run, &err), 0);
	assert_int_equal(session_store(&place->session, &store, NULL), 0);
	assert_int_equal(store_get(store, run_id(run), &other, NULL), 0);
	wait_end(place, other);
	assert_false(run_state_is_final(run_state(run)));
	submit_finish(&place->session, run, &events);
	assert_int_equal(store_get(store, run_id(run), &stored, NULL), 0);
	assert_int_equal(run_state(stored), RUN_SUCCEEDED);
	assert_true(json_get_int(json_get(stored->doc, "phases_ms"), "total", -1) >= 0);
}

static void test_shell_line(void **state)
{
	struct place *place = *state;

	write_file(place, "dlrun.yaml",
		"command: 'cat train.py | tr a-z A-Z && python3 nope.py --lr 1 k=2 \"a\"=3 || true'\n",
		0644);
	open_session(place, ".");
	AUTO_RUN struct run *run = submit(place);
	wait_end(place, run);
	AUTO_FREE char *log = read_log(place, run);
	assert_int_equal(strncmp(log, "PRINT('HELLO')\n", 15), 0);
	assert_string_equal(get(run, "params", "lr"), "1");
	assert_string_equal(get(run, "params", "k"), "2");
	assert_null(get(run, "params", "a"));
	assert_string_equal(run_name(run), "train");
}

static void test_words_behind_the_configured_command(void **state)
{
	struct place *place = *state;

	write_file(place, "dlrun.yaml", "command: [echo, a]\nname: My Study\n", 0644);
	open_session(place, ".");
	WORDS(place, "--lr", "2");
	AUTO_RUN struct run *run = expect_output(place, "a --lr 2\n");
	assert_string_equal(run_name(run), "my-study");
	assert_true(warned(place, "my-study"));
	assert_string_equal(get(run, "params", "lr"), "2");
}

static void test_env(void **state)
{
	struct place *place = *state;

	write_file(place, "dlrun.yaml", "env: {EPOCHS: \"10\", FROM_SHELL: , GONE: }\n", 0644);
	open_session(place, ".");
	strv_add(&place->env, "EPOCHS=20");
	strv_add(&place->env, "HF_TOKEN");
	strv_add(&place->env, "EMPTY=");
	WORDS(place, "sh", "-c",
		"echo \"$EPOCHS $FROM_SHELL $HF_TOKEN ${EMPTY-unset} ${GONE-unset}\"");
	AUTO_RUN struct run *run = expect_output(place, "20 yes s3cret  unset\n");
	assert_true(warned(place, "HF_TOKEN looks like a secret"));
	assert_true(warned(place, "GONE is not set"));
	AUTO_STRV struct strv env = {0};
	assert_int_equal(words_get(run->spec, "env", &env, NULL), 0);
	assert_int_equal(env.n, 3);
	AUTO_FREE char *grep = mem_printf("grep -r s3cret %s/.local %s/.cache 2>/dev/null"
					  " | grep -v '/log:'",
		place->home, place->home);
	assert_int_not_equal(system(grep), 0);
}

static void test_env_of_a_member(void **state)
{
	AUTO_RUN struct run *run = run_new("tiger-7-4k2x9", "tiger-7");
	struct submit submit = {0};
	struct target_job job;

	submit_make_job(&submit, run, &job);
	assert_null(env_get((const char *const *)job.env->v, "DLRUN_STUDY"));
	strv_done(&submit.env);
	submit.spec.study =
		(struct spec_study){.id = (char[]){"tiger-4k2x9"}, .index = 7, .size = 15};
	submit_make_job(&submit, run, &job);
	const char *const *env = (const char *const *)job.env->v;
	assert_string_equal(env_get(env, "DLRUN_STUDY"), "tiger-4k2x9");
	assert_string_equal(env_get(env, "DLRUN_STUDY_INDEX"), "7");
	assert_string_equal(env_get(env, "DLRUN_STUDY_SIZE"), "15");
	strv_done(&submit.env);
	strv_done(&submit.defaults);
}

static void test_time_limit(void **state)
{
	struct place *place = *state;

	write_file(place, "dlrun.yaml", "timeout: 100ms\ngrace: 1s\n", 0644);
	open_session(place, ".");
	WORDS(place, "sleep", "1000");
	AUTO_RUN struct run *run = submit(place);
	wait_end(place, run);
	assert_int_equal(run_state(run), RUN_FAILED);
	assert_int_equal(run_exit_status(run), 124);
}

/*
 * Again
 */

static void test_from(void **state)
{
	struct place *place = *state;

	strv_add(&place->env, "HF_TOKEN=other");
	strv_add(&place->env, "EPOCHS=3");
	WORDS(place, "sh", "-c", "cat ../train.py; echo $EPOCHS $HF_TOKEN");
	write_file(place, "dlrun.yaml", "", 0644);
	open_session(place, "exp");
	AUTO_RUN struct run *first = expect_output(place, "print('hello')\n3 other\n");
	strv_done(&place->env);
	strv_done(&place->command);
	write_file(place, "train.py", "print('changed')\n", 0644);
	/* Also from outside of any tree. */
	open_session(place, "../home");
	place->options.from = "@";
	AUTO_RUN struct run *again = expect_output(place, "print('hello')\n3 s3cret\n");
	assert_string_equal(json_get_str(again->doc, "parent"), run_id(first));
	assert_string_equal(run_image_digest(again), run_image_digest(first));
	assert_string_equal(get(again, "snapshot", "id"), get(first, "snapshot", "id"));
	assert_string_equal(get(again, "origin", "cwd"), "exp");
	assert_string_equal(get(again, "origin", "root"), place->tree);
	assert_string_equal(run_name(again), run_name(first));
	WORDS(place, "echo", "other", "words");
	place->options.from = run_id(first);
	AUTO_RUN struct run *third = expect_output(place, "other words\n");
	assert_string_equal(run_name(third), run_name(first));
	/* The image by its own name. */
	AUTO_FREE char *ref = mem_strdup(get(first, "image", "ref"));
	place->options.from = ref;
	WORDS(place, "cat", "train.py");
	run_free(expect_output(place, "print('hello')\n"));
}

static void expect_ports(const struct json *object, const char *want)
{
	AUTO_BUF struct buf text = {0};

	buf_init(&text, 1000);
	json_print(json_get(object, "ports"), &text);
	assert_string_equal(text.data, want);
}

static void test_ports(void **state)
{
	struct place *place = *state;

	write_file(place, "dlrun.yaml", "ports: [6006, 8888]\n", 0644);
	open_session(place, ".");
	WORDS(place, "true");
	strv_add(&place->ports, "7000");
	strv_add(&place->ports, "6006");
	AUTO_RUN struct run *first = expect_output(place, "");
	expect_ports(first->doc, "[6006,8888,7000]");
	expect_ports(first->spec, "[6006,8888,7000]");
	/* The same run again: its own, whatever stands in the file now. */
	write_file(place, "dlrun.yaml", "ports: [1]\n", 0644);
	open_session(place, ".");
	strv_done(&place->ports);
	strv_add(&place->ports, "9000");
	place->options.from = run_id(first);
	AUTO_RUN struct run *again = expect_output(place, "");
	expect_ports(again->doc, "[6006,8888,7000,9000]");
	strv_add(&place->ports, "9000");
	expect_refused(place, E_USAGE, "--port: port 9000 is listed twice");
	strv_done(&place->ports);
	strv_add(&place->ports, "http");
	expect_refused(place, E_USAGE, "--port: 'http' is not a valid port");
}

static void test_from_what_is_not_there(void **state)
{
	struct place *place = *state;

	WORDS(place, "true");
	place->options.from = "nope-22222";
	expect_refused(place, E_RUN_NOT_FOUND, "nope");
	place->options.from = "oci:x@sha256:"
			      "0000000000000000000000000000000000000000000000000000000000000000";
	expect_refused(place, E_IMAGE_BASE, "0000");
	place->options.from = "oci:x:tag@nope";
	expect_refused(place, E_IMAGE_REF, "");
}

/*
 * What is refused
 */

static void test_refused(void **state)
{
	struct place *place = *state;

	expect_refused(place, E_RUN_COMMAND, "nothing to run");
	WORDS(place, "--lr", "1");
	expect_refused(place, E_RUN_COMMAND, "--lr");
	WORDS(place, "");
	expect_refused(place, E_RUN_COMMAND, "nothing to run");
	WORDS(place, "true");
	place->options.name = "!!!";
	expect_refused(place, E_RUN_NAME, "!!!");
	place->options.name = NULL;
	static const char *const bad[] = {"=x", "A-B=1", "1A=2", "", "\xff=1"};
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		strv_done(&place->env);
		strv_add(&place->env, bad[i]);
		expect_refused(place, E_USAGE, "is not a valid variable name");
	}
	strv_done(&place->env);
	strv_add(&place->env, "NOT_SET_HERE");
	expect_refused(place, E_USAGE, "not set in this shell");
	strv_done(&place->env);
	strv_add(&place->env, "DLRUN_RUN_ID=x");
	expect_refused(place, E_USAGE, "are reserved");
	strv_done(&place->env);
	strv_add(&place->tags, "=x");
	expect_refused(place, E_USAGE, "--tag");
	strv_done(&place->tags);
	strv_add(&place->include, "not/there");
	expect_refused(place, E_SNAPSHOT_INCLUDE, "not/there");
	strv_done(&place->include);
	write_file(place, ".env", "AWS_SECRET_ACCESS_KEY=abcdefghijklmnop\n", 0644);
	expect_refused(place, E_SNAPSHOT_SECRET, "");
}

static void test_refused_by_configuration(void **state)
{
	static const struct {
		const char *text;
		enum err_id id;
		const char *message;
	} cases[] = {
		{"target: nowhere\n", E_TARGET, "nowhere"},
		{"image: oci:missing\n", E_IMAGE_BASE, "missing"},
		{"image: 'oci:'\n", E_IMAGE_REF, ""},
		{"unknown: 1\n", E_CONFIG_KEY, "unknown"},
		{"limits: {files: 1}\n", E_SNAPSHOT_LIMIT, ""},
	};
	struct place *place = *state;

	WORDS(place, "true");
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		write_file(place, "dlrun.yaml", cases[i].text, 0644);
		open_session(place, ".");
		expect_refused(place, cases[i].id, cases[i].message);
	}
}

/* On a host the base is not used, so that one in a registry is not even asked for. */
static void test_a_base_in_a_registry_is_not_read(void **state)
{
	struct place *place = *state;

	write_file(place, "dlrun.yaml", "image: registry.invalid/base:1\n", 0644);
	open_session(place, ".");
	WORDS(place, "echo", "hi");
	AUTO_RUN struct run *run = expect_output(place, "hi\n");
	assert_string_equal(get(run, "image", "base"), "registry.invalid/base:1");
}

static void test_too_wide_a_tree(void **state)
{
	struct place *place = *state;

	WORDS(place, "true");
	open_session(place, "../home");
	expect_refused(place, E_SNAPSHOT_ROOT, "");
}

static void test_allowed_sizes(void **state)
{
	struct place *place = *state;

	write_file(place, "dlrun.yaml", "limits: {size: 10, file: 10}\n", 0644);
	open_session(place, ".");
	WORDS(place, "cat", "train.py");
	expect_refused(place, E_SNAPSHOT_LIMIT, "");
	place->options.allow_bytes = 10000;
	run_free(expect_output(place, "print('hello')\n"));
}

/*
 * What fails
 */

static void test_missing_programs(void **state)
{
	static const struct {
		const char *word;
		int code;
		const char *warning;
	} cases[] = {
		{"pythonn3x", 127, "command not found"},
		{"./exp/nope.sh", 127, "no such file in the tree"},
		{"/proc/nonexistent/x", 127, "no such program"},
		{"./notes.txt", 126, "chmod +x"},
		{"exp", 127, "command not found"},
		{"./exp/../exp/./run.sh", 0, NULL},
	};
	struct place *place = *state;

	write_file(place, "notes.txt", "text\n", 0644);
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		WORDS(place, cases[i].word);
		AUTO_RUN struct run *run = submit(place);
		if (!cases[i].warning) {
			assert_int_equal(place->warnings.n, 0);
			wait_end(place, run);
			continue;
		}
		/* Its end is known at once. */
		assert_int_equal(run_state(run), RUN_FAILED);
		assert_int_equal(run_exit_status(run), cases[i].code);
		if (!warned(place, cases[i].warning))
			fail_msg("%s: %s", cases[i].word,
				place->warnings.n ? place->warnings.v[0] : "no warning");
		/* The stored record is whole, though nobody will refresh it again. */
		AUTO_RUN struct run *stored = NULL;
		struct store *store;
		assert_int_equal(session_store(&place->session, &store, NULL), 0);
		assert_int_equal(store_get(store, run_id(run), &stored, NULL), 0);
		assert_int_equal(run_state(stored), RUN_FAILED);
		assert_true(json_get_int(json_get(stored->doc, "phases_ms"), "total", -1) >= 0);
		assert_true(json_count(json_get(stored->doc, "warnings")) > 0);
	}
}

static void test_near_commands(void **state)
{
	struct place *place = *state;

	WORDS(place, "catt", "train.py");
	run_free(submit(place));
	assert_true(warned(place, "did you mean cat?"));
}

static void test_a_program_that_git_ignores(void **state)
{
	struct place *place = *state;
	AUTO_FREE char *git = mem_printf("cd %s && git init -q .", place->tree);

	assert_int_equal(system(git), 0);
	write_file(place, ".gitignore", "build/\n", 0644);
	write_file(place, "build/train", "#!/bin/sh\n", 0755);
	open_session(place, ".");
	WORDS(place, "build/train");
	run_free(submit(place));
	assert_true(warned(place, "--include build/train"));
}

/* After the row there is a run: its record tells how it failed. */
static void test_no_layout(void **state)
{
	struct place *place = *state;
	AUTO_FREE char *layout = dirs_layout(&place->session.dirs);
	struct submit_events events = events_of(place);
	AUTO_ERR struct err err = {0};
	AUTO_RUN struct run *run = NULL, *stored = NULL;
	struct store *store;

	assert_int_equal(fs_mkdirs(layout, 0700, NULL), 0);
	AUTO_FREE char *foreign = fs_join(layout, "something");
	assert_int_equal(fs_replace(foreign, "", 0, 0600, FS_SYNC_NONE, NULL), 0);
	WORDS(place, "true");
	assert_true(submit_run(&place->session, &place->options, &events, &run, &err) < 0);
	assert_non_null(run);
	assert_int_equal(session_store(&place->session, &store, NULL), 0);
	assert_int_equal(store_get(store, run_id(run), &stored, NULL), 0);
	assert_int_equal(run_state(stored), RUN_FAILED);
	assert_int_equal(run_exit_status(stored), 125);
	assert_string_equal(json_get_str(stored->doc, "text"), err.message);
}

static void test_no_supervisor(void **state)
{
	struct place *place = *state;
	struct submit_events events = events_of(place);
	AUTO_ERR struct err err = {0};
	AUTO_RUN struct run *run = NULL;

	place->session.env.self = "/bin/false";
	WORDS(place, "true");
	assert_true(submit_run(&place->session, &place->options, &events, &run, &err) < 0);
	assert_int_equal(err.id, E_RUN_START);
	assert_int_equal(run_state(run), RUN_FAILED);
	assert_string_equal(json_get_str(run->doc, "text"), err.message);
}

/* The run has ended before anybody heard that it had begun. */
static void test_silent_supervisor(void **state)
{
	struct place *place = *state;
	struct submit_events events = events_of(place);
	AUTO_FREE char *script = fs_join(place->home, "silent");
	AUTO_FREE char *text = mem_printf("#!/bin/sh\n'%s' \"$@\" >/dev/null\n"
					  "until test -e \"$2/" ATTEMPT_EXIT "\"; do :; done\n",
		self);
	AUTO_ERR struct err err = {0};
	AUTO_RUN struct run *run = NULL;

	assert_int_equal(fs_replace(script, text, strlen(text), 0755, FS_SYNC_NONE, NULL), 0);
	place->session.env.self = script;
	WORDS(place, "sh", "-c", "exit 3");
	assert_int_equal(submit_run(&place->session, &place->options, &events, &run, &err), 0);
	assert_int_equal(run_state(run), RUN_FAILED);
	assert_int_equal(run_exit_status(run), 3);
	AUTO_FREE char *dir = dirs_run(&place->session.dirs, run_id(run));
	AUTO_FREE char *lock = fs_join(dir, RUN_SUBMIT_LOCK);
	assert_int_equal(fs_is_locked(lock), 1);
	submit_finish(&place->session, run, &events);
}

/*
 * Names
 */

static void test_names(void **state)
{
	static const struct {
		const char *command, *name;
	} cases[] = {
		{"[python3, exp/Train_Big.py, --out, x.py]", "train-big"},
		{"[python3, -m, pkg.train, --lr, '1']", "train"},
		{"[python3.11, -c, pass]", "tree"},
		{"[torchrun, --nproc, '2', train.py]", "train"},
		{"[./exp/run.sh]", "run"},
		{"[sleep, '0']", "sleep"},
		{"[/usr/bin/env, python, x.py]", "x"},
		{"'cd exp && python train.py > log'", "train"},
		{"'make all'", "make"},
	};
	struct place *place = *state;

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct submit_preview preview = {0};
		AUTO_FREE char *text = mem_printf("command: %s\n", cases[i].command);
		AUTO_ERR struct err err = {0};
		write_file(place, "dlrun.yaml", text, 0644);
		open_session(place, ".");
		if (submit_preview(&place->session, &place->options, false, &preview, &err) < 0)
			fail_msg("%s", err.message);
		assert_string_equal(json_get_str(preview.doc, "name"), cases[i].name);
		submit_preview_done(&preview);
	}
}

/*
 * Without effect, and without a run
 */

static void test_preview_writes_nothing(void **state)
{
	struct place *place = *state;
	struct submit_preview preview = {0};

	WORDS(place, "python3", "train.py");
	assert_int_equal(
		submit_preview(&place->session, &place->options, false, &preview, NULL), 0);
	assert_int_equal(preview.snapshot->entries.n, 2);
	assert_int_equal(json_kind(json_get(preview.doc, "id")), JSON_NULL);
	assert_string_equal(json_get_str(preview.doc, "state"), "preparing");
	submit_preview_done(&preview);
	submit_preview_done(&preview);
	assert_int_equal(count_files(place->home), 0);
}

static void test_push(void **state)
{
	struct place *place = *state;
	struct push_result result = {0}, again = {0};
	struct push_options to_layout = {.to = "oci:out:v1", .tree = &place->options};
	struct push_options to_own = {.tree = &place->options};
	AUTO_ERR struct err err = {0};

	if (push_image(&place->session, &to_layout, NULL, &result, &err) < 0)
		fail_msg("%s", err.message);
	assert_int_equal(strncmp(result.ref, "oci:out@sha256:", 15), 0);
	AUTO_FREE char *index = fs_join(place->tree, "out/index.json");
	assert_int_equal(access(index, F_OK), 0);
	AUTO_JSON struct json *json = push_result_json(&result);
	assert_string_equal(json_get_str(json, "schema"), "dlrun/push/v1");
	assert_string_equal(json_get_str(json_get(json, "image"), "ref"), result.ref);
	assert_string_equal(json_get_str(json_get(json, "image"), "base"), "scratch");
	/* What it wrote is part of the tree now, as any other file; leave it out. */
	write_file(place, ".dlrunignore", "out/\n", 0644);
	assert_int_equal(push_image(&place->session, &to_own, NULL, &again, NULL), 0);
	assert_non_null(strstr(again.ref, "/oci@sha256:"));
	push_result_done(&result);
	push_result_done(&again);
	assert_int_equal(count_rows(place), 0);
}

static void test_push_refused(void **state)
{
	static const char *const bad[] = {"scratch", "registry.example.com/a:b:c", "oci:",
		"oci:x@sha256:0000000000000000000000000000000000000000000000000000000000000000"};
	struct place *place = *state;

	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		struct push_result result;
		AUTO_ERR struct err err = {0};
		struct push_options options = {.to = bad[i], .tree = &place->options};
		assert_true(push_image(&place->session, &options, NULL, &result, &err) < 0);
		assert_int_equal(err.id, E_IMAGE_REF);
	}
	assert_int_equal(count_files(place->home), 0);
}

static char *printed(const struct json *json)
{
	AUTO_BUF struct buf out = {0};

	buf_init(&out, 1 << 20);
	json_print(json, &out);
	return buf_take(&out);
}

static void test_specs(void **state)
{
	AUTO_SPEC struct spec spec = {.cwd = mem_strdup("a\xff"),
		.timeout_ms = 5,
		.grace_ms = 7,
		.drop_entrypoint = true,
		.study = {mem_strdup("tiger-4k2x9"), 7, 15, 4, true}};
	AUTO_SPEC struct spec got = {0}, copy = {0};
	AUTO_ERR struct err err = {0};

	strv_add(&spec.command, "x\xfe");
	strv_add(&spec.command, "");
	strv_add(&spec.env, "A=1");
	strv_add(&spec.secrets, "B");
	AUTO_JSON struct json *json = spec_to_json(&spec);
	assert_int_equal(spec_from_json(json, &got, NULL), 0);
	assert_string_equal(got.command.v[0], "x\xfe");
	assert_string_equal(got.command.v[1], "");
	assert_string_equal(got.cwd, "a\xff");
	assert_string_equal(got.env.v[0], "A=1");
	assert_string_equal(got.secrets.v[0], "B");
	assert_int_equal(got.timeout_ms, 5);
	assert_int_equal(got.grace_ms, 7);
	assert_true(got.drop_entrypoint);
	assert_string_equal(got.study.id, "tiger-4k2x9");
	assert_int_equal(got.study.index, 7);
	assert_int_equal(got.study.size, 15);
	assert_int_equal(got.study.parallel, 4);
	assert_true(got.study.fail_fast);
	assert_int_equal(spec_copy(&got, &copy, NULL), 0);
	AUTO_JSON struct json *again = spec_to_json(&copy);
	AUTO_FREE char *first = printed(json), *second = printed(again);
	assert_string_equal(second, first);
	json_set(json, "command", json_array());
	json_remove(json, "command_b64");
	assert_int_equal(spec_from_json(json, &got, &err), -ERR_IO);
	assert_int_equal(spec_from_json(NULL, &got, &err), -ERR_IO);
}

static void test_specs_of_half_a_study(void **state)
{
	static const struct spec_study bad[] = {{"tiger", 0, 1, 0, false},
		{"tiger-4k2x9", -1, 1, 0, false}, {"tiger-4k2x9", 1, 1, 0, false},
		{"tiger-4k2x9", 0, 1, -1, false}};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		AUTO_SPEC struct spec spec = {.cwd = mem_strdup("."), .study = bad[i]}, got = {0};
		AUTO_ERR struct err err = {0};
		spec.study.id = mem_strdup(bad[i].id);
		strv_add(&spec.command, "true");
		AUTO_JSON struct json *json = spec_to_json(&spec);
		assert_int_equal(spec_from_json(json, &got, &err), -ERR_IO);
		assert_int_equal(err.id, E_DATA);
	}
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(test_what_you_see_is_what_runs),
		TEST(test_the_record),
		TEST(test_a_second_submit_builds_on_the_first),
		TEST(test_spare_trees),
		TEST(test_git),
		TEST(test_locked_until_finished),
		TEST(test_removed_while_waited_for),
		TEST(test_finished_after_the_end),
		TEST(test_shell_line),
		TEST(test_words_behind_the_configured_command),
		TEST(test_env),
		cmocka_unit_test(test_env_of_a_member),
		TEST(test_time_limit),
		TEST(test_from),
		TEST(test_ports),
		TEST(test_from_what_is_not_there),
		TEST(test_refused),
		TEST(test_refused_by_configuration),
		TEST(test_a_base_in_a_registry_is_not_read),
		TEST(test_too_wide_a_tree),
		TEST(test_allowed_sizes),
		TEST(test_missing_programs),
		TEST(test_near_commands),
		TEST(test_a_program_that_git_ignores),
		TEST(test_no_layout),
		TEST(test_no_supervisor),
		TEST(test_silent_supervisor),
		TEST(test_names),
		TEST(test_preview_writes_nothing),
		TEST(test_push),
		TEST(test_push_refused),
		cmocka_unit_test(test_specs),
		cmocka_unit_test(test_specs_of_half_a_study),
	};

	if (argc == 3 && strcmp(argv[1], "__supervise") == 0)
		return run_supervisor(argv[2]);
	if (!os_self_path(self, sizeof(self)) && !realpath(argv[0], self))
		return 1;
	return cmocka_run_group_tests_name("submit", tests, NULL, NULL);
}
