/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>

#include "base/loop/proc.h"
#include "base/util/auto.h"
#include "base/util/digest.h"
#include "base/util/enc.h"
#include "base/util/random.h"
#include "tests/unit/nodefix.h"

/*
 * With the runner itself, in a root of its own on this machine
 */

static char hex[SHA256_HEX_SIZE];
static struct node_layer layer = {.hex = hex, .codec = "gzip"};

static int make_runtime(void **state)
{
	int r = make_node_runtime(state);
	AUTO_FREE char *root = mem_printf("%s/root", tmp);

	begin_node(NULL, root, 0);
	return r;
}

static void sh(const char *line)
{
	AUTO_BUF struct buf out;
	int status;

	buf_init(&out, 4096);
	assert_int_equal(proc_capture((const char *const[]){"sh", "-c", line, NULL}, tmp, 30000,
				 &out, &status, NULL),
		0);
	assert_int_equal(status, 0);
}

static int open_layer(void *ctx, struct err *err)
{
	AUTO_FREE char *path = mem_printf("%s/layer.tgz", tmp);
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	return fd < 0 ? err_set_errno(err, E_IO, errno, "cannot open %s", path) : fd;
}

static void make_layer(void)
{
	AUTO_FREE char *path = mem_printf("%s/layer.tgz", tmp);
	AUTO_BUF struct buf data = {0};
	uint8_t sha256[SHA256_SIZE];

	sh("mkdir -p d/src/sub && echo 'the tree' >d/src/file && tar -C d -czf layer.tgz src");
	assert_int_equal(fs_read(path, 8 << 20, &data, NULL, NULL), 0);
	digest_sha256(data.data, data.len, sha256);
	hex_encode(sha256, sizeof(sha256), hex);
	layer.size = data.len;
	layer.open = open_layer;
}

/* A job of one shell line. */
static char *job_of(const char *run, const char *line, const char *more)
{
	return mem_printf("j_run='%s'\nj_attempt=1\nj_cwd='.'\nj_shell=1\nj_timeout_ms=0\n"
			  "j_grace_ms=2000\nj_retries=0\nj_gpus=0\nj_rank=0\nj_ranks=1\n"
			  "j_command() {\nset_command '%s'\n}\n"
			  "j_env() {\n:\n}\nj_defaults() {\n:\n}\nj_data() {\n:\n}\n"
			  "j_outputs() {\n:\n}\n%s",
		run, line, more);
}

static enum err_id submits(const char *run, const char *job, struct node_submitted *ret)
{
	const struct node_submit request = {.run = run,
		.attempt = 1,
		.job = job,
		.secrets = "export SECRET='s'\n",
		.record = "{\"a\": [1]}",
		.layers = &layer,
		.n_layers = 1,
		.strip = 1};
	struct waited waited = {0};

	node_submit(node, &request, ret, on_waited, &waited);
	return ends(&waited);
}

static int on_data(
	void *ctx, uint64_t offset, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	struct buf *out = ctx;

	assert_int_equal(offset, out->len);
	buf_add(out, data, len);
	return 0;
}

static void follows(const char *run, const char *data, size_t len)
{
	AUTO_BUF struct buf out;
	const struct node_log_request request = {.run = run,
		.attempt = 1,
		.tail_lines = -1,
		.follow = true,
		.timeout_ms = 5000,
		.events = {.data = on_data, .ctx = &out}};
	struct waited waited = {0};

	buf_init(&out, SIZE_MAX / 2);
	node_log(node, &request, on_waited, &waited);
	assert_int_equal(ends(&waited), E_NONE);
	if (out.len != len || memcmp(out.data, data, len) != 0)
		fail_msg("the log: %s", out.data);
}

static void state_is(const char *name, const char *state, const char *key, const char *value)
{
	AUTO_STRV struct strv names = {0};
	struct node_attempts responses = {0};
	struct waited waited = {0};

	strv_add(&names, name);
	node_state(node, &names, &responses, on_waited, &waited);
	assert_int_equal(ends(&waited), E_NONE);
	assert_int_equal(responses.n, 1);
	assert_string_equal(responses.v[0].state, state);
	if (key)
		assert_string_equal(node_attempt_get(&responses.v[0], key), value);
	node_attempts_done(&responses);
}

static void forgets(const char *run)
{
	struct waited waited = {0};

	node_forget(node, run, 1, true, on_waited, &waited);
	assert_int_equal(ends(&waited), E_NONE);
}

static void test_run(void **state)
{
	struct node_attempts list = {0};
	struct node_submitted got;
	struct waited waited = {0};
	AUTO_FREE char *job = job_of("a-22222", "cat file; echo $SECRET; exit 3", "");

	make_layer();
	assert_int_equal(submits("a-22222", job, &got), E_NONE);
	assert_int_equal(got.layers_sent, 1);
	follows("a-22222", "the tree\ns\n", 11);
	state_is("a-22222/1", "failed", "code", "3");
	/* Once more, as after a reply that was lost: nothing is begun, nothing sent again. */
	assert_int_equal(submits("a-22222", job, &got), E_NONE);
	assert_int_equal(got.layers_sent, 0);
	state_is("a-22222/1", "failed", "code", "3");
	state_is("a-22222/2", "absent", NULL, NULL);
	node_list(node, &list, on_waited, &waited);
	assert_int_equal(ends(&waited), E_NONE);
	assert_int_equal(list.n, 1);
	assert_string_equal(list.v[0].record, "{\"a\": [1]}");
	node_attempts_done(&list);
	forgets("a-22222");
	state_is("a-22222/1", "absent", NULL, NULL);
}

/* Until it is in that state. */
static void becomes(const char *name, const char *state)
{
	bool is_there = false;

	for (int64_t end_ms = clock_ms() + 20000; !is_there;) {
		AUTO_STRV struct strv names = {0};
		struct node_attempts responses = {0};
		struct waited waited = {0};

		strv_add(&names, name);
		node_state(node, &names, &responses, on_waited, &waited);
		assert_int_equal(ends(&waited), E_NONE);
		is_there = str_eq(responses.v[0].state, state);
		if (!is_there && clock_ms() > end_ms)
			fail_msg("%s is %s", name, responses.v[0].state);
		node_attempts_done(&responses);
	}
}

static void test_stop(void **state)
{
	struct node_submitted got;
	struct waited waited = {0};
	AUTO_FREE char *job = job_of("b-22222", "echo begun; sleep 100", "");

	make_layer();
	assert_int_equal(submits("b-22222", job, &got), E_NONE);
	becomes("b-22222/1", "running");
	node_stop(node, "b-22222", 1, on_waited, &waited);
	assert_int_equal(ends(&waited), E_NONE);
	becomes("b-22222/1", "cancelled");
	forgets("b-22222");
}

/* An attempt that waits on several hosts, of which none has so many GPUs. */
static void test_pool(void **state)
{
	static const char name[] = "me@[::1]:22 x";
	AUTO_FREE char *job = job_of("p-22222", "true", "j_gpus=4000\n");
	const struct node_submit request = {.run = "p-22222",
		.attempt = 1,
		.job = job,
		.layers = &layer,
		.n_layers = 1,
		.strip = 1,
		.pool = name};
	struct node_submitted got;
	struct node_attempts responses = {0};
	struct waited waited = {0};

	make_layer();
	for (int i = 0; i < 2; i++) {
		node_submit(node, &request, &got, on_waited, &waited);
		assert_int_equal(ends(&waited), E_NONE);
	}
	state_is("p-22222/1", "queued", "pool", "1");
	node_state_as(node, "p-22222", 1, name, &responses, on_waited, &waited);
	assert_int_equal(ends(&waited), E_NONE);
	assert_int_equal(responses.n, 1);
	assert_string_equal(responses.v[0].state, "queued");
	node_attempts_done(&responses);
	node_state_as(node, "../x", 1, name, &responses, on_waited, &waited);
	assert_int_equal(ends(&waited), E_USAGE);
	node_stop(node, "p-22222", 1, on_waited, &waited);
	assert_int_equal(ends(&waited), E_NONE);
	state_is("p-22222/1", "cancelled", "reason", "Cancelled");
	/* One that has ended begins no more. */
	node_submit(node, &request, &got, on_waited, &waited);
	assert_int_equal(ends(&waited), E_NONE);
	state_is("p-22222/1", "cancelled", "pool", "1");
	forgets("p-22222");
}

/* Any words and variables come to the program as they are. */
static void test_any_words(void **state)
{
	enum { N_WORDS = 500 };
	AUTO_BUF struct buf wanted;
	AUTO_BUF struct buf more;
	struct node_submitted got;

	make_layer();
	buf_init(&wanted, SIZE_MAX / 2);
	buf_init(&more, SIZE_MAX / 2);
	buf_adds(&more, "j_shell=0\nj_command() {\nset_command sh -c "
			"'printf \"%s\\001\" \"$@\"; printf %s \"$V\"' x");
	for (int i = 0; i <= N_WORDS; i++) {
		char word[40] = {0};

		random_bytes(word, random_below(sizeof(word)));
		for (size_t j = 0; word[j]; j++)
			word[j] = (char)(word[j] == 1 ? 2 : word[j]);
		buf_adds(&more, i < N_WORDS ? " '" : "\n}\nj_env() {\nexport V='");
		for (const char *p = word; *p; p++) {
			if (*p == '\'')
				buf_adds(&more, "'\\''");
			else
				buf_addc(&more, *p);
		}
		buf_addc(&more, '\'');
		buf_adds(&wanted, word);
		if (i < N_WORDS)
			buf_addc(&wanted, 1);
	}
	buf_adds(&more, "\n}\n");
	AUTO_FREE char *job = job_of("c-22222", "", more.data);
	assert_int_equal(submits("c-22222", job, &got), E_NONE);
	follows("c-22222", wanted.data, wanted.len);
	state_is("c-22222/1", "succeeded", NULL, NULL);
	forgets("c-22222");
}

/*
 * Commands beside the program
 */

static void execs(const char *line, const struct channel_pty *pty, const char *output, int code)
{
	AUTO_FREE char *in_path = mem_printf("%s/in", tmp);
	AUTO_FREE char *out_path = mem_printf("%s/out", tmp);
	AUTO_BUF struct buf got = {0};
	AUTO_STRV struct strv command = {0};
	struct waited waited = {0};
	struct channel_exit exit;

	assert_int_equal(fs_replace(in_path, "input\n", 6, 0600, FS_SYNC_NONE, NULL), 0);
	AUTO_FD int in = open(in_path, O_RDONLY | O_CLOEXEC);
	AUTO_FD int out = open(out_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	strv_add(&command, "sh");
	strv_add(&command, "-c");
	strv_add(&command, line);
	const struct node_exec_request request = {.run = "e-22222",
		.attempt = 1,
		.command = &command,
		.pty = pty,
		.fds = {in, out, -1}};
	node_exec(node, &request, &exit, on_waited, &waited);
	assert_int_equal(ends(&waited), E_NONE);
	assert_true(exit.known);
	assert_int_equal(exit.code, code);
	assert_int_equal(fs_read(out_path, 4096, &got, NULL, NULL), 0);
	if (!strstr(got.data, output))
		fail_msg("it said: %s", got.data);
}

static void cannot_exec(const char *word, enum err_id id)
{
	AUTO_STRV struct strv command = {0};
	struct waited waited = {0};
	struct channel_exit exit;

	strv_add(&command, word);
	const struct node_exec_request request = {
		.run = "e-22222", .attempt = 1, .command = &command, .fds = {-1, -1, -1}};
	node_exec(node, &request, &exit, on_waited, &waited);
	assert_int_equal(ends(&waited), id);
}

static void test_exec(void **state)
{
	const struct channel_pty pty = {.term = "xterm", .columns = 100, .rows = 40};
	struct node_submitted got;
	struct waited waited = {0};
	AUTO_FREE char *job = job_of("e-22222", "sleep 100", "");

	make_layer();
	assert_int_equal(submits("e-22222", job, &got), E_NONE);
	becomes("e-22222/1", "running");
	execs("cat file; cat; exit 7", NULL, "the tree\ninput\n", 7);
	execs("stty size; read -r line; echo said $line; exit 5", &pty, "40 100\r\n", 5);
	execs("read -r line; echo said $line; test -t 0", &pty, "said input\r\n", 0);
	cannot_exec("no-such-program", E_EXEC_NOT_FOUND);
	cannot_exec("./no-such-file", E_EXEC_NOT_FOUND);
	cannot_exec("./file", E_EXEC_NOT_EXECUTABLE);
	cannot_exec("/", E_EXEC_NOT_EXECUTABLE);
	node_stop(node, "e-22222", 1, on_waited, &waited);
	assert_int_equal(ends(&waited), E_NONE);
	becomes("e-22222/1", "cancelled");
	forgets("e-22222");
}

static bool waits_until_exists(const char *path, int64_t ms)
{
	for (int64_t end_ms = clock_ms() + ms; access(path, F_OK) < 0;) {
		if (clock_ms() > end_ms)
			return false;
		usleep(2000);
	}
	return true;
}

/* Nothing is read between the request and what the command shows. */
static int hold_reader(void *ctx, struct err *err)
{
	AUTO_FREE char *entered = mem_printf("%s/entered", tmp);
	AUTO_FREE char *leave = mem_printf("%s/leave", tmp);
	AUTO_FREE char *shown = mem_printf("%s/shown", tmp);
	int r;

	if (access(entered, F_OK) < 0) {
		loop_add_timer(loop, clock_ms() + 2, hold_reader, NULL);
		return 0;
	}
	r = fs_replace(leave, "", 0, 0600, FS_SYNC_NONE, err);
	assert_true(waits_until_exists(shown, 30000));
	return r;
}

/* As tmux does: the line that says "go" is lost where nobody has read it. The kernel's first
 * buffer, which is not thrown away, is full by what comes before. */
static void test_terminal_is_flushed(void **state)
{
	const struct channel_pty pty = {.term = "xterm", .columns = 100, .rows = 40};
	AUTO_FREE char *entering = mem_printf("j_env() {\n[ ! -t 0 ] || { : >'%s/entered'\n"
					      "until [ -e '%s/leave' ]; do sleep 0.01; done\n"
					      "yes '' | head -c 9000; }\n}\n",
		tmp, tmp);
	AUTO_FREE char *job = job_of("e-22222", "sleep 100", entering);
	AUTO_FREE char *line =
		mem_printf("python3 -c 'import termios; termios.tcflush(1, "
			   "termios.TCOFLUSH)'; printf '\033[Hshown\n'; : >'%s/shown'; "
			   "read -r line; echo said $line; exit 5",
			tmp);
	struct node_submitted got;
	struct waited waited = {0};

	make_layer();
	assert_int_equal(submits("e-22222", job, &got), E_NONE);
	becomes("e-22222/1", "running");
	loop_add_timer(loop, clock_ms(), hold_reader, NULL);
	execs(line, &pty, "\033[Hshown\r\nsaid input\r\n", 5);
	node_stop(node, "e-22222", 1, on_waited, &waited);
	assert_int_equal(ends(&waited), E_NONE);
	becomes("e-22222/1", "cancelled");
	forgets("e-22222");
}

/*
 * Results and data
 */

static struct buf fetched[2];

static int on_file(void *ctx, size_t i, uint64_t size, struct err *err)
{
	buf_init(&fetched[i], size);
	return 0;
}

static int on_content(void *ctx, size_t i, const void *data, size_t len, struct err *err)
{
	buf_add(&fetched[i], data, len);
	return 0;
}

static void fetches(const struct node_file *a, const struct node_file *b, uint64_t from)
{
	const struct node_want wants[] = {{a, from, a->size - from}, {b, 0, b->size}};
	const struct node_get_events events = {on_file, on_content, NULL};
	struct waited waited = {0};

	node_get(node, "g-22222", NULL, wants, 2, &events, on_waited, &waited);
	assert_int_equal(ends(&waited), E_NONE);
}

static const struct node_file *find(const struct node_files *files, const char *path)
{
	vec_foreach (struct node_file, file, files)
		if (str_eq(file->path, path))
			return file;
	fail_msg("no %s", path);
	return NULL;
}

static void test_results(void **state)
{
	struct node_submitted got;
	struct node_files files = {0};
	struct waited waited = {0};
	AUTO_FREE char *job = job_of("g-22222",
		"cd $DLRUN_OUTPUT_DIR; mkdir d; echo text >\"d/a b\"; seq 50000 >n; "
		"ln -s ../n d/l; : >empty",
		"");

	make_layer();
	assert_int_equal(submits("g-22222", job, &got), E_NONE);
	becomes("g-22222/1", "succeeded");
	node_files(node, "g-22222", NULL, &files, on_waited, &waited);
	assert_int_equal(ends(&waited), E_NONE);
	assert_int_equal(files.n, 5);
	assert_int_equal(find(&files, "d")->kind, 'd');
	assert_string_equal(find(&files, "d/l")->target, "../n");
	assert_int_equal(find(&files, "empty")->size, 0);
	assert_true(llabs(find(&files, "n")->mtime_ms - clock_wall_ms()) < 60000);
	fetches(find(&files, "n"), find(&files, "d/a b"), 10);
	assert_int_equal(fetched[0].len, find(&files, "n")->size - 10);
	assert_memory_equal(fetched[0].data, "6\n7\n", 4);
	assert_string_equal(fetched[1].data, "text\n");
	buf_done(&fetched[0]);
	buf_done(&fetched[1]);
	node_files_done(&files);
	forgets("g-22222");
}

static int n_opened_data;

static int open_data(void *ctx, struct err *err)
{
	n_opened_data++;
	return open_layer(ctx, err);
}

static void test_data_and_space(void **state)
{
	struct node_freed freed;
	struct waited waited = {0};

	sh("mkdir -p d/src && echo 1 >d/src/x && tar -C d -cf layer.tgz src");
	for (int i = 0; i < 2; i++) {
		node_data(node, "k-1", open_data, NULL, on_waited, &waited);
		assert_int_equal(ends(&waited), E_NONE);
		assert_int_equal(n_opened_data, 1);
	}
	sh("test \"$(cat root/data/k-1/src/x)\" = 1");
	node_gc(node, 0, 0, true, &freed, on_waited, &waited);
	assert_int_equal(ends(&waited), E_NONE);
	assert_true(freed.data_bytes > 0);
	sh("test -d root/data/k-1");
}

/*
 * Over connections that break
 */

/* Bytes that nothing compresses, so that the layer takes several cuts to come. */
static void make_large_layer(void)
{
	AUTO_FREE char *path = mem_printf("%s/d/src/large", tmp);
	AUTO_FREE char *data = mem_alloc(1 << 20, 1);

	sh("mkdir -p d/src");
	random_bytes(data, 1 << 20);
	assert_int_equal(fs_replace(path, data, 1 << 20, 0600, FS_SYNC_NONE, NULL), 0);
	make_layer();
}

static void test_submit_over_cuts(void **state)
{
	struct node_submitted got;
	struct waited waited = {0};
	const struct node_facts *facts;
	AUTO_FREE char *job = job_of("e-22222",
		"sha256sum <large; echo once >>$DLRUN_OUTPUT_DIR/x; "
		"wc -l <$DLRUN_OUTPUT_DIR/x",
		"");

	make_large_layer();
	node_handshake(node, &facts, on_waited, &waited);
	assert_int_equal(ends(&waited), E_NONE);
	cut_max = 300000;
	assert_int_equal(submits("e-22222", job, &got), E_NONE);
	cut_max = 0;
	AUTO_FREE char *path = mem_printf("%s/d/src/large", tmp);
	AUTO_BUF struct buf data = {0};
	AUTO_BUF struct buf wanted;
	uint8_t sha256[SHA256_SIZE];
	char text[SHA256_HEX_SIZE];

	assert_int_equal(fs_read(path, 2 << 20, &data, NULL, NULL), 0);
	digest_sha256(data.data, data.len, sha256);
	hex_encode(sha256, sizeof(sha256), text);
	buf_init(&wanted, 1000);
	buf_addf(&wanted, "%s  -\n1\n", text);
	follows("e-22222", wanted.data, wanted.len);
	print_message("        (%d conversations, %llu bytes)\n", n_opened,
		(unsigned long long)got.bytes_sent);
	forgets("e-22222");
}

static void test_log_over_cuts(void **state)
{
	AUTO_BUF struct buf wanted;
	struct node_submitted got;
	AUTO_FREE char *job = job_of("f-22222",
		"i=0; while [ $i -lt 60 ]; do seq $((i * 1000 + 1)) $((i * 1000 + 1000)); "
		"i=$((i + 1)); sleep 0.02; done",
		"");

	make_layer();
	buf_init(&wanted, SIZE_MAX / 2);
	for (int i = 1; i <= 60000; i++)
		buf_addf(&wanted, "%d\n", i);
	assert_int_equal(submits("f-22222", job, &got), E_NONE);
	cut_max = 60000;
	follows("f-22222", wanted.data, wanted.len);
	cut_max = 0;
	print_message("        (%d conversations)\n", n_opened);
	follows("f-22222", wanted.data, wanted.len);
	forgets("f-22222");
}

static void test_what_is_not_there(void **state)
{
	AUTO_BUF struct buf out;
	const struct node_log_request request = {.run = "x-22222",
		.attempt = 1,
		.tail_lines = 5,
		.events = {.data = on_data, .ctx = &out}};
	struct waited waited = {0};
	struct node_submitted got;

	buf_init(&out, 100);
	node_log(node, &request, on_waited, &waited);
	assert_int_equal(ends(&waited), E_RUN_NOT_FOUND);
	make_layer();
	memset(hex, 'a', sizeof(hex) - 1);
	assert_int_equal(submits("d-22222", "j_run=d-22222\n", &got), E_NODE_CORRUPT);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_runtime, remove_node_runtime)
	const struct CMUnitTest tests[] = {
		TEST(test_run),
		TEST(test_stop),
		TEST(test_pool),
		TEST(test_any_words),
		TEST(test_exec),
		TEST(test_terminal_is_flushed),
		TEST(test_results),
		TEST(test_data_and_space),
		TEST(test_submit_over_cuts),
		TEST(test_log_over_cuts),
		TEST(test_what_is_not_there),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
