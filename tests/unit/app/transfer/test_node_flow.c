/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "app/transfer/fetch_dir.h"
#include "base/data/json.h"
#include "base/util/clock.h"
#include "core/record/spec.h"
#include "targets/ssh/target_node.h"
#include "tests/unit/childfix.h"
#include "tests/unit/imagefix.h"
#include "tests/unit/until.h"

/*
 * Runs on a node that is a directory of this machine: its channels are children.
 */

#define RUN_ID "a-22222"

struct place {
	struct session session;
	struct target *target;
	struct layout *layout;
	struct image image;
	struct fake_tree *tree;
	struct strv env, secrets, defaults;
	struct spec spec;
	struct run *run;
	char handle[TARGET_HANDLE_SIZE];
	char *home;
	char *env_home, *env_path;
	const char *child_env[3];
	bool is_down;
};

static struct channel *open_child(void *ctx, const char *command, const struct channel_pty *pty,
	const struct channel_events *events)
{
	struct place *place = ctx;
	const char *const argv[] = {"sh", "-c", place->is_down ? "exit 255" : command, NULL};

	return child_channel_open(session_loop(&place->session), argv, place->child_env, events);
}

static int open_host(
	void *ctx, struct loop *loop, const char *host, struct channel_opener *ret, struct err *err)
{
	assert_string_equal(host, "box");
	*ret = (struct channel_opener){.command = open_child, .ctx = ctx};
	return 0;
}

static void open_target(struct place *place)
{
	AUTO_STRV struct strv hosts = {0};

	strv_add(&hosts, "box");
	ok(target_node_new(
		&place->session, "lab", NULL, &hosts, "~/.dlrun", &place->target, error));
	ok(place->target->ops->prepare(
		place->target, RUN_ID, 1, &(struct spec){0}, place->handle, error));
}

static int setup(void **state)
{
	struct place *place = mem_alloc(1, sizeof(*place));

	if (make_root(NULL) < 0)
		return -1;
	place->home = mem_strdup(in_root("home"));
	place->env_home = mem_printf("HOME=%s", place->home);
	place->env_path = mem_printf("PATH=%s", getenv("PATH"));
	place->child_env[0] = place->env_home;
	place->child_env[1] = place->env_path;
	struct session_env env = {.cwd = "/",
		.user = "me",
		.env = place->child_env,
		.open_host = open_host,
		.open_host_ctx = place};
	env.dirs.home = place->home;
	ok(fs_mkdirs(place->home, 0700, error));
	ok(session_init(&place->session, &env, error));
	place->tree = tree_new();
	tree_put(place->tree, "a", 'f', 1, 10);
	tree_put(place->tree, "exp/b", 'f', 2, 20);
	struct image_request request = request_of(place->tree);
	place->image = write_image("layout", &request);
	ok(layout_open(in_root("layout"), false, &place->layout, error));
	open_target(place);
	*state = place;
	return 0;
}

static int teardown(void **state)
{
	struct place *place = *state;

	target_free(place->target);
	image_done(&place->image);
	layout_free(place->layout);
	tree_done(place->tree);
	strv_done(&place->env);
	strv_done(&place->secrets);
	strv_done(&place->defaults);
	spec_done(&place->spec);
	run_free(place->run);
	session_done(&place->session);
	free(place->home);
	free(place->env_home);
	free(place->env_path);
	free(place);
	return remove_root(NULL);
}

static int try_submit(struct place *place, const char *line, struct err *err)
{
	spec_done(&place->spec);
	place->spec = (struct spec){.shell = true, .cwd = mem_strdup("exp"), .grace_ms = 2000};
	strv_add(&place->spec.command, line);
	run_free(place->run);
	place->run = run_new(RUN_ID, "a");
	place->run->spec = spec_to_json(&place->spec);
	const struct target_job job = {
		.run_id = RUN_ID,
		.attempt = 1,
		.handle = place->handle,
		.spec = &place->spec,
		.env = &place->env,
		.default_env = &place->defaults,
		.secret_env = &place->secrets,
		.layout = place->layout,
		.image = &place->image,
		.tree_bytes = 30,
		.run = place->run,
	};
	return target_submit(place->target, &job, TIMEOUT_MS, err);
}

static void submit(struct place *place, const char *line)
{
	ok(try_submit(place, line, error));
}

static void get_state(struct place *place, struct target_status *ret)
{
	ok(target_state(place->target, place->handle, TIMEOUT_MS, ret, error));
}

static void wait_for(struct place *place, bool final, struct target_status *ret)
{
	int64_t end_ms = clock_ms() + TIMEOUT_MS;

	for (;;) {
		get_state(place, ret);
		if (final ? run_state_is_final(ret->state) : ret->state == RUN_RUNNING)
			return;
		target_status_done(ret);
		assert_true(clock_ms() < end_ms);
	}
}

static int on_data(
	void *ctx, int rank, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	buf_add(ctx, data, len);
	return 0;
}

static char *read_log(struct place *place, const char *from, char token[static TARGET_TOKEN_SIZE])
{
	struct buf out;

	buf_init(&out, 1 << 20);
	const struct target_log_request request = {.token = from,
		.tail_lines = -1,
		.rank = -1,
		.follow = true,
		.events = {.data = on_data, .ctx = &out}};
	ok(target_logs(place->target, place->handle, &request, token, NULL, error));
	return out.data;
}

/*
 * From the start to the end
 */

static void test_run(void **state)
{
	AUTO(target_status_done) struct target_status status = {0};
	struct place *place = *state;
	char token[TARGET_TOKEN_SIZE] = "", again[TARGET_TOKEN_SIZE] = "";

	strv_add(&place->env, "MINE=it's");
	strv_add(&place->secrets, "TOKEN=deep");
	strv_add(&place->defaults, "PYTHONUNBUFFERED=1");
	submit(place,
		"echo $MINE $TOKEN $DLRUN_RUN_ID $NNODES; cat ../a; ls; echo x >$DLRUN_OUTPUT_DIR/r; "
		"exit 3");
	wait_for(place, true, &status);
	assert_int_equal(status.state, RUN_FAILED);
	assert_int_equal(status.exit.code, 3);
	assert_string_equal(status.exit.origin, "job");
	assert_true(status.ended_ms >= status.started_ms && status.started_ms > 0);
	AUTO_FREE char *log = read_log(place, NULL, token);
	AUTO_FREE char *content = mem_alloc(11, 1);
	fake_content(1, 10, content);
	AUTO_FREE char *want = mem_printf("it's deep " RUN_ID " 1\n%sb\n", content);
	assert_string_equal(log, want);
	AUTO_FREE char *end = mem_printf("%zu", strlen(want));
	assert_string_equal(token, end);
	AUTO_FREE char *rest = read_log(place, "5", again);
	assert_string_equal(rest, want + 5);
	AUTO_FREE char *nothing = read_log(place, token, again);
	assert_string_equal(nothing, "");
}

/* The second of two is the first one. */
static void test_twice(void **state)
{
	AUTO(target_status_done) struct target_status status = {0};
	struct place *place = *state;
	char token[TARGET_TOKEN_SIZE] = "";

	submit(place, "echo once");
	submit(place, "echo once");
	wait_for(place, true, &status);
	assert_int_equal(status.state, RUN_SUCCEEDED);
	AUTO_FREE char *log = read_log(place, NULL, token);
	assert_string_equal(log, "once\n");
}

/* An edit of each kind, as the node's own tar makes it. */
static void test_delta(void **state)
{
	AUTO(target_status_done) struct target_status status = {0};
	struct place *place = *state;
	char token[TARGET_TOKEN_SIZE] = "";

	tree_put(place->tree, "dir/x", 'f', 3, 10);
	tree_put(place->tree, "gone 'x'/y", 'f', 4, 10);
	tree_put(place->tree, "file", 'f', 4, 10);
	struct image_request request = request_of(place->tree);
	request.full = true;
	just_write("layout", &request);
	tree_put(place->tree, "dir", 'f', 5, 3);
	tree_remove(place->tree, "gone 'x'");
	tree_put(place->tree, "file/z", 'f', 6, 4);
	request = request_of(place->tree);
	image_done(&place->image);
	place->image = write_image("layout", &request);
	assert_string_equal(roles_of(&place->image), "full delta");
	submit(place, "cd ..; find . ! -name . ! -type d | sort; wc -c <dir");
	wait_for(place, true, &status);
	AUTO_FREE char *log = read_log(place, NULL, token);
	assert_string_equal(log, "./a\n./dir\n./exp/b\n./file/z\n3\n");
	assert_int_equal(status.state, RUN_SUCCEEDED);
}

static void test_cancel(void **state)
{
	AUTO(target_status_done) struct target_status running = {0}, status = {0};
	struct place *place = *state;

	submit(place, "sleep 600");
	wait_for(place, false, &running);
	ok(target_cancel(place->target, place->handle, TIMEOUT_MS, error));
	ok(target_cancel(place->target, place->handle, TIMEOUT_MS, error));
	wait_for(place, true, &status);
	assert_int_equal(status.state, RUN_CANCELLED);
	assert_int_equal(status.exit.code, 143);
	ok(target_forget(place->target, place->handle, true, TIMEOUT_MS, error));
	target_status_done(&status);
	get_state(place, &status);
	/* it was accepted, and is not there any more */
	assert_int_equal(status.state, RUN_LOST);
}

static void test_absent(void **state)
{
	AUTO(target_status_done) struct target_status status = {0};
	struct place *place = *state;
	AUTO_FREE char *dir = dirs_run(&place->session.dirs, RUN_ID);

	get_state(place, &status);
	/* a run of another machine, of which nothing is known here */
	assert_int_equal(status.state, RUN_LOST);
	target_status_done(&status);
	ok(fs_mkdirs(dir, 0700, error));
	get_state(place, &status);
	assert_int_equal(status.state, RUN_FAILED);
	assert_string_equal(status.exit.reason, "Interrupted");
}

static void test_down(void **state)
{
	AUTO(target_status_done) struct target_status status = {0};
	struct place *place = *state;
	AUTO_ERR struct err err = {0}, other = {0};

	place->is_down = true;
	assert_true(target_state(place->target, place->handle, TIMEOUT_MS, &status, &err) < 0);
	assert_true(try_submit(place, "true", &other) < 0);
	place->is_down = false;
	submit(place, "true");
}

static void test_exec(void **state)
{
	AUTO(target_status_done) struct target_status status = {0};
	struct place *place = *state;
	AUTO_STRV struct strv command = {0};
	AUTO_FD int fd = open(in_root("out"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	char text[64] = "";
	int code = -1;

	submit(place, "sleep 600");
	wait_for(place, false, &status);
	strv_add(&command, "sh");
	strv_add(&command, "-c");
	strv_add(&command, "ls; echo $DLRUN_RUN_ID; exit 7");
	const struct target_exec_request request = {
		.command = &command, .fds = {-1, fd, STDERR_FILENO}};
	ok(target_exec(place->target, place->handle, &request, &code, NULL, error));
	assert_int_equal(code, 7);
	assert_true(pread(fd, text, sizeof(text) - 1, 0) > 0);
	assert_string_equal(text, "b\n" RUN_ID "\n");
	ok(target_cancel(place->target, place->handle, TIMEOUT_MS, error));
}

static void assert_file(const char *path, const char *want)
{
	AUTO_BUF struct buf text = {0};

	ok(fs_read(in_root(path), 100000, &text, NULL, error));
	assert_string_equal(text.data, want);
}

static void fetch(struct place *place, size_t files, size_t skipped)
{
	AUTO(fetch_paths_free_auto) struct fetch_paths *paths = NULL;
	AUTO(fetch_sink_free_auto) struct fetch_sink *sink = NULL;
	struct strv all = {0};
	struct fetch_report report;

	ok(fetch_paths_new(&all, &paths, error));
	ok(fetch_dir_open(in_root("got"), paths, false, &sink, error));
	ok(target_fetch(place->target, place->handle, sink, NULL, error));
	ok(fetch_dir_finish(sink, RUN_ID, error));
	fetch_dir_report(sink, &report);
	assert_int_equal(report.files, files);
	assert_int_equal(report.skipped, skipped);
}

static void test_fetch(void **state)
{
	AUTO(target_status_done) struct target_status status = {0};
	struct place *place = *state;

	submit(place, "cd $DLRUN_OUTPUT_DIR; mkdir -p d; echo one >'d/a b'; : >empty; ln -s d/x l; "
		      "touch -d 2020-01-01 d/* empty; chmod 755 empty");
	wait_for(place, true, &status);
	assert_int_equal(status.state, RUN_SUCCEEDED);
	fetch(place, 3, 0);
	assert_file("got/d/a b", "one\n");
	assert_file("got/empty", "");
	assert_int_equal(access(in_root("got/empty"), X_OK), 0);
	fetch(place, 0, 3);
}

static void test_adopt(void **state)
{
	AUTO(target_status_done) struct target_status status = {0};
	AUTO(run_list_done) struct run_list runs = {0}, none = {0};
	struct place *place = *state;
	AUTO_ERR struct err err = {0};

	submit(place, "true");
	wait_for(place, true, &status);
	ok(target_adopt(place->target, RUN_ID, TIMEOUT_MS, &runs, error));
	assert_int_equal(runs.n, 1);
	assert_string_equal(run_id(runs.v[0]), RUN_ID);
	assert_string_equal(run_handle(runs.v[0]), place->handle);
	assert_string_equal(json_get_str(runs.v[0]->spec, "cwd"), "exp");
	assert_null(json_get(runs.v[0]->doc, "spec"));
	const struct json *target = json_get(runs.v[0]->doc, "target");
	assert_string_equal(json_get_str(target, "kind"), "ssh");
	assert_string_equal(json_str(json_first(json_get(target, "hosts"))), "box");
	assert_true(target_adopt(place->target, "b-22222", TIMEOUT_MS, &none, &err) < 0);
	assert_int_equal(err.id, E_RUN_NOT_FOUND);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
		T(test_run),
		T(test_twice),
		T(test_delta),
		T(test_cancel),
		T(test_absent),
		T(test_down),
		T(test_exec),
		T(test_fetch),
		T(test_adopt),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
