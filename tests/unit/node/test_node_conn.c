/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>

#include "base/util/auto.h"
#include "base/util/random.h"
#include "node/runner.h"
#include "node/node_impl.h"
#include "tests/unit/nodefix.h"

/*
 * The client's side, against runners that are scripts of a few lines. m: MARK; t: a directory; n:
 * the number of this conversation.
 */

#define RUNNER                                                                                       \
	"m=$1 t=$2 n=1; while ! mkdir $t/c$n 2>/dev/null; do n=$((n+1)); done\n"                     \
	"facts() { printf '%s hello 1\\n' $m; printf 'host h\\nboot b\\nroot /r\\nlocal /l\\n'; }\n" \
	"hear() { while read -r line; do [ \"$line\" = . ] && break; "                               \
	"printf '%s\\n' \"$line\"; done >$t/request$n; }\n"                                          \
	"hello() { facts; echo .; hear; }\n"                                                         \
	"say() { printf '%s\\n' \"$*\"; }\n"                                                         \
	"done_() { echo $m done; exit 0; }\n"                                                        \
	"cut() { kill -9 $$; }\n"

static void text_is(const char *name, const char *text)
{
	AUTO_FREE char *path = mem_printf("%s/%s", tmp, name);
	AUTO_BUF struct buf got = {0};

	assert_int_equal(fs_read(path, 64 << 20, &got, NULL, NULL), 0);
	assert_string_equal(got.data, text);
}

static bool exists(const char *name)
{
	AUTO_FREE char *path = mem_printf("%s/%s", tmp, name);

	return access(path, F_OK) == 0;
}

static void put(const char *name, const void *data, size_t len)
{
	AUTO_FREE char *path = mem_printf("%s/%s", tmp, name);

	assert_int_equal(fs_replace(path, data, len, 0600, FS_SYNC_NONE, NULL), 0);
}

/*
 * The beginning
 */

static void test_handshake(void **state)
{
	const struct node_facts *facts;
	struct waited waited = {0};

	begin_node("echo Welcome; printf 'no newline'\n" RUNNER
		   "facts; echo layer aa; echo cpus 8; echo .; hear",
		"~/.dlrun", 0);
	assert_null(node_facts(node));
	node_handshake(node, &facts, on_waited, &waited);
	assert_int_equal(ends(&waited), E_NONE);
	assert_string_equal(facts->host, "h");
	assert_string_equal(facts->local, "/l");
	assert_int_equal(facts->cpus, 8);
	assert_string_equal(facts->layers.v[0], "aa");
	assert_ptr_equal(node_facts(node), facts);
	/* Known: at once. */
	node_handshake(node, &facts, on_waited, &waited);
	assert_false(waited.is_done);
	assert_int_equal(ends(&waited), E_NONE);
	assert_false(exists("c2"));
}

static void test_runner_is_sent(void **state)
{
	const struct node_facts *facts;
	struct waited waited = {0};

	begin_node(RUNNER "[ -e $t/runner ] || { echo $m send; cat >$t/runner; echo $m stored; "
			  "exit; }; hello",
		"/r", 0);
	node_handshake(node, &facts, on_waited, &waited);
	assert_int_equal(ends(&waited), E_NONE);
	text_is("runner", node_runner);
}

static void test_runner_is_not_sent_for_ever(void **state)
{
	const struct node_facts *facts;
	struct waited waited = {0};

	begin_node(RUNNER "echo $m send; cat >$t/runner; echo $m stored", "/r", 0);
	node_handshake(node, &facts, on_waited, &waited);
	assert_int_equal(ends(&waited), E_NODE_PROTOCOL);
}

enum { NO_SILENCE_MS = 20000 };

static void handshake(const char *script, int64_t response_ms, struct waited *waited)
{
	const struct node_facts *facts;

	begin_node(script, "/r", response_ms);
	node_handshake(node, &facts, on_waited, waited);
	wait_for(waited);
	node_free(TAKE(node));
}

static void is_error(struct waited *waited, enum err_id id, const char *evidence)
{
	assert_int_equal(waited->error.id, id);
	if (evidence && !waited->error.n_evidence)
		fail_msg("no evidence: %s", waited->error.message);
	if (evidence)
		assert_string_equal(waited->error.evidence[0], evidence);
	err_clear(&waited->error);
}

static void fails_at_handshake(const char *script, enum err_id id, const char *evidence)
{
	int64_t start_ms = clock_ms();
	struct waited waited = {0};

	handshake(script, NO_SILENCE_MS, &waited);
	assert_true(clock_ms() - start_ms < NO_SILENCE_MS);
	is_error(&waited, id, evidence);
}

/* It says something, and then nothing more, or no end of it. On a busy machine even that may come
 * late: then again, with more patience. */
static void falls_silent(const char *script, enum err_id id, const char *evidence)
{
	for (int64_t response_ms = 300;; response_ms *= 4) {
		struct waited waited = {0};
		handshake(script, response_ms, &waited);
		bool is_it = waited.error.id == id && (!evidence || waited.error.n_evidence);
		if (is_it || response_ms >= 4800) {
			is_error(&waited, id, evidence);
			return;
		}
		err_clear(&waited.error);
	}
}

static void test_no_conversation(void **state)
{
	fails_at_handshake(
		"echo This account is locked; exit 1", E_NODE_SHELL, "This account is locked");
	fails_at_handshake("echo no >&2; exit 127", E_NODE_SHELL, "no");
	fails_at_handshake("", E_NODE_SHELL, NULL);
	falls_silent("yes", E_NODE_SHELL, "y");
	falls_silent("echo hm; sleep 60", E_NODE_SHELL, "hm");
	falls_silent("echo $1 hello 1; sleep 60", E_NODE_LOST, NULL);
	fails_at_handshake("echo why >&2; printf '%s\\n' \"$1 fail disk it\\\\0040is full\"",
		E_NODE_ROOT, "why");
	fails_at_handshake("echo $1 'fail tool tar'", E_NODE_TOOL, NULL);
	fails_at_handshake("echo $1 hello 2", E_NODE_PROTOCOL, NULL);
	fails_at_handshake("echo $1 hello 1; echo .", E_NODE_PROTOCOL, NULL);
	fails_at_handshake("echo $1 done", E_NODE_PROTOCOL, NULL);
	fails_at_handshake("echo $1 hello 1; exit 0", E_NODE_PROTOCOL, NULL);
	fails_at_handshake("echo $1 hello 1; kill -9 $$", E_NODE_LOST, NULL);
}

/* What was cut before anything was heard is tried again, not for ever. */
static void test_cuts_before_handshake(void **state)
{
	struct node_attempts list = {0};
	const struct node_facts *facts;
	struct waited waited = {0}, other = {0};

	cut_max = 1;
	cut_first = 2;
	begin_node(RUNNER "hello", "/r", 0);
	node_handshake(node, &facts, on_waited, &waited);
	assert_int_equal(ends(&waited), E_NONE);
	assert_int_equal(n_opened, 3);
	node_free(TAKE(node));
	n_opened = 0;
	begin_node(RUNNER "hello; echo attempt a-1/1 running; done_", "/r", 0);
	node_handshake(node, &facts, on_waited, &other);
	node_list(node, &list, on_waited, &waited);
	assert_int_equal(ends(&waited), E_NONE);
	assert_int_equal(ends(&other), E_NONE);
	assert_int_equal(list.n, 1);
	node_attempts_done(&list);
	node_free(TAKE(node));
	cut_first = n_opened = 0;
	begin_node(RUNNER "hello", "/r", 0);
	node_handshake(node, &facts, on_waited, &waited);
	assert_int_equal(ends(&waited), E_SSH_LOST);
	assert_int_equal(n_opened, 4);
}

static void test_root_is_checked(void **state)
{
	static const char *const bad[] = {"", "~/a b", "/a'b", "$HOME", "-x", "~me/x", "/a~", "a"};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		AUTO_ERR struct err err = {0};
		AUTO_FREE char *command = NULL;

		assert_true(node_first_command(bad[i], &command, &err) < 0);
		assert_int_equal(err.id, E_CONFIG);
	}
}

static void test_first_command_is_taken(void **state)
{
	AUTO_FREE char *command = NULL;
	const struct node_options options = {
		.loop = loop, .name = "gpu1", .root = "/r", .opener = {.command = open_fake}};
	const struct node_facts *facts;
	struct waited waited = {0};

	fake_script = "echo $1 >$2/mark\n" RUNNER "hello";
	assert_int_equal(node_first_command("/r", &command, NULL), 0);
	assert_int_equal(node_new(&options, command, &node, NULL), 0);
	node_handshake(node, &facts, on_waited, &waited);
	assert_int_equal(ends(&waited), E_NONE);
	AUTO_FREE char *mark = mem_printf("%s\n", command + strlen(command) - 16);
	text_is("mark", mark);
}

/*
 * Questions
 */

static void test_gpus(void **state)
{
	struct node_gpus gpus = {0};
	struct waited waited = {0};

	begin_node(RUNNER "hello\n"
			  "say 'gpu nvidia 1 GPU-b 85899345920 1 run-1 A100\\0040SXM'\n"
			  "say 'gpu nvidia 0 GPU-a 85899345920 0 - A100\\0040SXM'\n"
			  "echo 'a line of a later version'; done_",
		"/r", 0);
	node_gpus(node, &gpus, on_waited, &waited);
	assert_int_equal(ends(&waited), E_NONE);
	text_is("request1", "gpus\n");
	assert_int_equal(gpus.n, 2);
	assert_int_equal(gpus.v[0].index, 0);
	assert_string_equal(gpus.v[0].holder, "");
	assert_string_equal(gpus.v[1].holder, "run-1");
	assert_string_equal(gpus.v[1].model, "A100 SXM");
	assert_true(gpus.v[1].used && !gpus.v[0].used);
	vec_done(&gpus);
}

static void query_state(const char *a, const char *b, struct node_attempts *ret,
	struct waited *waited, struct node_call **ret_call)
{
	AUTO_STRV struct strv names = {0};

	strv_add(&names, a);
	if (b)
		strv_add(&names, b);
	struct node_call *call = node_state(node, &names, ret, on_waited, waited);
	if (ret_call)
		*ret_call = call;
}

static void test_questions_of_a_turn_go_together(void **state)
{
	struct node_attempts one = {0}, two = {0}, three = {0};
	struct waited waits[3] = {0};
	struct node_call *forgotten;

	begin_node(RUNNER "hello\n"
			  "say 'attempt a-1/1 running started=5 text=a\\0040b gpus=\\0'\n"
			  "say 'attempt b-1/2 failed code=1 ended=9 state=failed'\n"
			  "say 'attempt c-1/1 absent'; done_",
		"/r", 0);
	query_state("a-1/1", "b-1/2", &one, &waits[0], NULL);
	query_state("x-1/1", NULL, &three, &waits[2], &forgotten);
	query_state("c-1/1", "a-1/1", &two, &waits[1], NULL);
	node_cancel(forgotten);
	assert_int_equal(ends(&waits[0]), E_NONE);
	assert_int_equal(ends(&waits[1]), E_NONE);
	text_is("request1", "state a-1/1 b-1/2 x-1/1 c-1/1 a-1/1\n");
	assert_false(exists("c2"));
	assert_int_equal(one.n, 2);
	assert_string_equal(node_attempt_get(&one.v[0], "text"), "a b");
	assert_string_equal(node_attempt_get(&one.v[0], "gpus"), "");
	assert_null(node_attempt_get(&one.v[0], "code"));
	assert_int_equal(node_attempt_int(&one.v[1], "code", -1), 1);
	assert_int_equal(node_attempt_int(&one.v[1], "state", -7), -7);
	assert_int_equal(two.n, 2);
	assert_string_equal(two.v[1].state, "absent");
	assert_int_equal(three.n, 0);
	node_attempts_done(&one);
	node_attempts_done(&two);
}

static void test_many_questions(void **state)
{
	AUTO_STRV struct strv names = {0};
	struct node_attempts responses = {0};
	struct waited waited = {0};

	begin_node(RUNNER "hello; set -- $(cat $t/request$n); shift\n"
			  "for a do echo attempt $a running; done; done_",
		"/r", 0);
	for (int i = 0; i < 1000; i++)
		strv_addf(&names, "run-%d/1", i);
	node_state(node, &names, &responses, on_waited, &waited);
	assert_int_equal(ends(&waited), E_NONE);
	assert_int_equal(responses.n, 1000);
	node_attempts_done(&responses);
	assert_true(exists("c3"));
	assert_false(exists("c4"));
}

static void test_list(void **state)
{
	struct node_attempts list = {0};
	struct waited waited = {0};

	begin_node(RUNNER "hello; say 'run a-1 me {\\0042x\\0042:1}'; "
			  "say 'attempt a-1/3 running'; say 'run b-1 me \\0'; "
			  "say 'attempt b-1/1 lost'; done_",
		"/r", 0);
	node_list(node, &list, on_waited, &waited);
	assert_int_equal(ends(&waited), E_NONE);
	assert_int_equal(list.n, 2);
	assert_string_equal(list.v[0].record, "{\"x\":1}");
	assert_string_equal(list.v[0].user, "me");
	assert_int_equal(list.v[0].attempt, 3);
	assert_null(list.v[1].record);
	node_attempts_done(&list);
}

static void test_stop_forget_gc(void **state)
{
	struct node_freed freed;
	struct waited waited = {0};

	begin_node(RUNNER "hello; case $n in 3) echo freed 100 2 layers; echo freed 7 1 trees;; "
			  "4) say $m 'fail missing no\\0040such\\0040run'; exit;; esac; done_",
		"/r", 0);
	node_stop(node, "a-1", 2, on_waited, &waited);
	assert_int_equal(ends(&waited), E_NONE);
	text_is("request1", "cancel a-1 2\n");
	node_forget(node, "a-1", 2, true, on_waited, &waited);
	assert_int_equal(ends(&waited), E_NONE);
	text_is("request2", "forget a-1 2 all\n");
	node_gc(node, 3600, 1 << 20, true, &freed, on_waited, &waited);
	assert_int_equal(ends(&waited), E_NONE);
	text_is("request3", "gc 3600 1048576 dry\n");
	assert_int_equal(freed.layers_bytes, 100);
	assert_int_equal(freed.trees_bytes, 7);
	assert_int_equal(freed.count, 3);
	node_stop(node, "a-1", 2, on_waited, &waited);
	assert_int_equal(ends(&waited), E_RUN_NOT_FOUND);
	node_stop(node, "../x", 2, on_waited, &waited);
	assert_int_equal(ends(&waited), E_USAGE);
}

static void test_hostile_responses(void **state)
{
	static const char *const responses[] = {
		"say 'attempt ../x/1 running'",
		"say 'attempt a-1/0 running'",
		"say 'attempt a-1/1'",
		"say 'attempt a-1/1 running k=\\0999'",
		"echo $m dance",
		"echo $m hello 1",
		"echo",
	};
	struct node_attempts list = {0};
	struct waited waited = {0};

	for (size_t i = 0; i < ARRAY_LEN(responses); i++) {
		AUTO_FREE char *script = mem_printf("%s hello; %s", RUNNER, responses[i]);

		begin_node(script, "/r", 0);
		node_list(node, &list, on_waited, &waited);
		assert_int_equal(ends(&waited), E_NODE_PROTOCOL);
		node_attempts_done(&list);
		node_free(TAKE(node));
	}
}

static void test_cut_is_tried_again(void **state)
{
	struct node_attempts list = {0};
	struct waited waited = {0};

	begin_node(RUNNER "[ $n = 2 ] && cut; hello; echo attempt a-$n/1 running\n"
			  "[ $n = 1 ] && cut; done_",
		"/r", 0);
	node_list(node, &list, on_waited, &waited);
	assert_int_equal(ends(&waited), E_NODE_SHELL);
	node_attempts_done(&list);
}

static void test_cut_response_is_requested_again(void **state)
{
	struct node_attempts list = {0};
	struct waited waited = {0};

	begin_node(
		RUNNER "hello; echo attempt a-$n/1 running; [ $n -lt 3 ] && cut; done_", "/r", 0);
	node_list(node, &list, on_waited, &waited);
	assert_int_equal(ends(&waited), E_NONE);
	assert_int_equal(list.n, 1);
	assert_string_equal(list.v[0].run, "a-3");
	node_attempts_done(&list);
}

/* That one that was opened ahead came to nothing is not held against what is asked next. */
static void test_ahead_in_vain(void **state)
{
	struct node_attempts list = {0};
	struct waited waited = {0};

	begin_node(RUNNER "case $n in 2|3) exit 1;; esac; hello\n"
			  "echo attempt a-$n/1 running; done_",
		"/r", 0);
	node_list(node, &list, on_waited, &waited);
	assert_int_equal(ends(&waited), E_NONE);
	node_ahead(node);
	node_list(node, &list, on_waited, &waited);
	assert_int_equal(ends(&waited), E_NODE_SHELL);
	node_ahead(node);
	node_list(node, &list, on_waited, &waited);
	assert_int_equal(ends(&waited), E_NONE);
	assert_string_equal(list.v[0].run, "a-4");
	node_attempts_done(&list);
}

static void test_silence(void **state)
{
	struct waited waited = {0};

	begin_node(RUNNER "hello; [ $n = 1 ] && sleep 60; done_", "/r", 3000);
	node_stop(node, "a-1", 1, on_waited, &waited);
	assert_int_equal(ends(&waited), E_NONE);
	text_is("request2", "cancel a-1 1\n");
}

static void test_forgotten(void **state)
{
	const struct node_facts *facts;
	struct node_attempts list = {0};
	struct node_gpus gpus = {0};
	struct waited waited = {0};

	begin_node(RUNNER "hello; sleep 60", "/r", 0);
	node_cancel(node_list(node, &list, on_waited, &waited));
	node_cancel(node_handshake(node, &facts, on_waited, &waited));
	node_gpus(node, &gpus, on_waited, &waited);
	query_state("a-1/1", NULL, &list, &waited, NULL);
	node_free(TAKE(node));
	assert_false(waited.is_done);
}

/* Its conversation was to answer somebody else, too. */
static void test_forgotten_before_handshake(void **state)
{
	const struct node_facts *facts;
	struct node_attempts list = {0};
	struct waited waited = {0}, forgotten = {0};

	begin_node(RUNNER "hello", "/r", 0);
	node_handshake(node, &facts, on_waited, &waited);
	node_cancel(node_list(node, &list, on_waited, &forgotten));
	assert_int_equal(ends(&waited), E_NONE);
	assert_string_equal(facts->host, "h");
}

/*
 * Submit
 */

enum { LAYER_SIZE = 700 * 1000 };

static int open_layer(void *ctx, struct err *err)
{
	AUTO_FREE char *path = mem_printf("%s/%s", tmp, (const char *)ctx);
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	return fd < 0 ? err_set_errno(err, E_IO, errno, "cannot open %s", path) : fd;
}

static struct node_layer layers[] = {
	{"aa", "gzip", LAYER_SIZE, open_layer, "layer-a"},
	{"bb", "none", 5, open_layer, "layer-b"},
};
static const struct node_submit wanted = {.run = "a-1",
	.attempt = 1,
	.job = "j_run='a-1'\n",
	.secrets = "export A='b'\n",
	.record = "{}",
	.apply = "rm -rf -- 'x'\n",
	.layers = layers,
	.n_layers = 2,
	.n_spare = 1,
	.strip = 2,
	.need_bytes = 1000};

static void put_layers(struct buf *whole)
{
	char *data = mem_alloc(LAYER_SIZE, 1);

	random_bytes(data, LAYER_SIZE);
	put("layer-a", data, LAYER_SIZE);
	put("layer-b", "12345", 5);
	buf_init(whole, SIZE_MAX / 2);
	buf_adds(whole, wanted.job);
	buf_adds(whole, wanted.record);
	buf_adds(whole, wanted.apply);
	buf_add(whole, data, LAYER_SIZE);
	buf_adds(whole, "12345");
	buf_adds(whole, wanted.secrets);
	free(data);
}

static void payload_is(const char *name, const char *data, size_t len)
{
	AUTO_FREE char *path = mem_printf("%s/%s", tmp, name);
	AUTO_BUF struct buf got = {0};

	assert_int_equal(fs_read(path, 64 << 20, &got, NULL, NULL), 0);
	assert_int_equal(got.len, len);
	assert_memory_equal(got.data, data, len);
}

static enum err_id submits(const char *script, struct node_submitted *ret)
{
	struct waited waited = {0};

	begin_node(script, "/r", 0);
	node_submit(node, &wanted, ret, on_waited, &waited);
	return ends(&waited);
}

static void test_submit(void **state)
{
	AUTO_BUF struct buf whole;
	struct node_submitted got;
	char spare[NODE_KEY_SIZE];
	struct node_transfer transfer = {0};

	put_layers(&whole);
	assert_int_equal(
		submits(RUNNER "hello; cat >$t/payload; echo accepted 1 2; done_", &got), E_NONE);
	payload_is("payload", whole.data, whole.len);
	node_spare_key(&wanted, spare);
	node_transfer_init(&transfer, &wanted, NULL);
	AUTO_FREE char *text = mem_printf("submit a-1 1\ntransfer %s %zu 0\npart job 12\n"
					  "part record 2\npart apply 14\n"
					  "part layer %d aa\npart layer 5 bb\npart secrets 13\n"
					  "tree aa gzip\ntree bb none\nstrip 2\nspare %s 1\n"
					  "need 1000\n",
		transfer.name, whole.len, LAYER_SIZE, spare);
	text_is("request1", text);
	assert_int_equal(got.layers_sent, 2);
	assert_false(got.spare);
	assert_int_equal(got.bytes_sent, whole.len + strlen(text) + 2);
	node_transfer_done(&transfer);
}

static void test_only_what_is_missing(void **state)
{
	AUTO_BUF struct buf whole;
	struct node_submitted got;
	char spare[NODE_KEY_SIZE];

	put_layers(&whole);
	node_spare_key(&wanted, spare);
	AUTO_FREE char *script = mem_printf("%s facts; echo layer aa; echo spare %s; echo .; hear\n"
					    "cat >$t/payload; done_",
		RUNNER, spare);
	assert_int_equal(submits(script, &got), E_NONE);
	assert_int_equal(got.layers_sent, 1);
	assert_true(got.spare);
	AUTO_FREE char *text = mem_printf(
		"%s%s%s12345%s", wanted.job, wanted.record, wanted.apply, wanted.secrets);
	text_is("payload", text);
}

/* What came before each cut is kept, and the next one goes on there. */
static void test_cut_transfer_goes_on(void **state)
{
	AUTO_BUF struct buf whole;
	struct node_submitted got;

	put_layers(&whole);
	assert_int_equal(
		submits(RUNNER "p=$t/payload; : >>$p; facts\n"
			       "[ $n = 1 ] || echo partial $(sed -n 's/^transfer \\([0-9a-f]*\\) "
			       ".*/\\1/p' $t/request1) $(wc -c <$p); echo .; hear\n"
			       "[ $n -lt 4 ] && { head -c 100001 >>$p; cut; }; cat >>$p; done_",
			&got),
		E_NONE);
	payload_is("payload", whole.data, whole.len);
	assert_true(exists("c4"));
}

static void test_responses_that_heal(void **state)
{
	static const char *const responses[] = {"gone x", "missing aa", "corrupt aa"};
	AUTO_BUF struct buf whole;
	struct node_submitted got;

	put_layers(&whole);
	for (size_t i = 0; i < ARRAY_LEN(responses); i++) {
		AUTO_FREE char *script = mem_printf(
			"%s facts; [ %zu = 1 ] && echo layer aa; echo .; hear; cat >$t/payload%zu\n"
			"mkdir $t/heal%zu 2>/dev/null && { echo $m fail %s; exit; }; done_",
			RUNNER, i, i, i, responses[i]);
		AUTO_FREE char *name = mem_printf("payload%zu", i);

		assert_int_equal(submits(script, &got), E_NONE);
		payload_is(name, whole.data, whole.len);
		node_free(TAKE(node));
	}
	assert_int_equal(submits(RUNNER "hello; cat >/dev/null; echo $m fail corrupt aa", &got),
		E_NODE_CORRUPT);
}

static void test_refused_in_mid_payload(void **state)
{
	AUTO_BUF struct buf whole;
	struct node_submitted got;

	put_layers(&whole);
	assert_int_equal(submits(RUNNER "hello; head -c 10 >/dev/null; "
					"echo $m fail disk full; exec sleep 60",
				 &got),
		E_NODE_DISK);
	node_free(TAKE(node));
	/* It does not read any more: what it said counts. */
	assert_int_equal(
		submits(RUNNER "hello; echo $m fail disk full; exit 1", &got), E_NODE_DISK);
}

static void test_short_layer(void **state)
{
	AUTO_BUF struct buf whole;
	struct node_submitted got;

	put_layers(&whole);
	put("layer-a", "short", 5);
	assert_int_equal(submits(RUNNER "hello; cat >/dev/null; done_", &got), E_IO_CHANGED);
}

/*
 * Logs
 */

struct heard {
	struct buf text;
	uint64_t at;
	char times[256];
	int n_notices;
	size_t refuse_at;
};

static int on_log(
	void *ctx, uint64_t offset, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	struct heard *heard = ctx;
	char piece[64];

	if (heard->refuse_at && offset + len > heard->refuse_at)
		return err_set(err, E_CANCELED, "enough");
	if (heard->text.len == 0)
		heard->at = offset;
	assert_int_equal(offset, heard->at + heard->text.len);
	buf_add(&heard->text, data, len);
	snprintf(piece, sizeof(piece), "%" PRIu64 "@%" PRId64 " ", offset, time_ms);
	strncat(heard->times, piece, sizeof(heard->times) - strlen(heard->times) - 1);
	return 0;
}

static void on_notice(void *ctx, const char *text)
{
	((struct heard *)ctx)->n_notices++;
}

static enum err_id reads_log(
	const char *script, bool follow, uint64_t offset, int64_t tail, struct heard *heard)
{
	const struct node_log_request request = {.run = "a-1",
		.attempt = 1,
		.offset = offset,
		.tail_lines = tail,
		.follow = follow,
		.timeout_ms = 5000,
		.events = {.data = on_log, .notice = on_notice, .ctx = heard}};
	struct waited waited = {0};

	buf_init(&heard->text, SIZE_MAX / 2);
	begin_node(script, "/r", 0);
	node_log(node, &request, on_waited, &waited);
	return ends(&waited);
}

static void test_log(void **state)
{
	struct heard heard = {0};

	assert_int_equal(reads_log(RUNNER "hello; { echo tail: noise; echo m 1000 2; "
					  "echo m 2000 4; } >&2; sleep 0.2; printf abcdef\n"
					  "{ echo end 6 running; echo $m done; } >&2",
				 false, 0, -1, &heard),
		E_NONE);
	assert_string_equal(heard.text.data, "abcdef");
	assert_string_equal(heard.times, "0@1000 2@2000 4@0 ");
	text_is("request1", "log a-1 1 0 0\n");
	buf_done(&heard.text);
}

static void test_tail(void **state)
{
	struct heard heard = {0};

	assert_int_equal(reads_log(RUNNER "hello; [ $n = 1 ] && { echo offset 100; done_; }\n"
					  "printf xyz; { echo end 103 failed; echo $m done; } >&2",
				 true, 0, 10, &heard),
		E_NONE);
	assert_string_equal(heard.text.data, "xyz");
	assert_int_equal(heard.at, 100);
	text_is("request1", "tail a-1 1 10\n");
	text_is("request2", "log a-1 1 100 0 follow\n");
	buf_done(&heard.text);
}

/* Each conversation gives a piece of the log and is cut in its own way. */
static void test_follow_over_cuts(void **state)
{
	AUTO_BUF struct buf whole;
	struct heard heard = {0};

	buf_init(&whole, SIZE_MAX / 2);
	for (int i = 0; i < 20000; i++)
		buf_addf(&whole, "line %d\n", i);
	put("log", whole.data, whole.len);
	assert_int_equal(
		reads_log(RUNNER "hello; set -- $(cat $t/request$n)\n"
				 "echo m $((n * 1000)) $((n * 20000)) >&2\n"
				 "case $n in [1-4]) tail -c +$(($4 + 1)) $t/log | head -c 30011;; "
				 "*) tail -c +$(($4 + 1)) $t/log;; esac\n"
				 "case $n in 1) cut;; 2) exit 0;; 3) echo end 200000 running >&2; "
				 "echo $m done >&2;; 4) echo end $(wc -c <$t/log) succeeded >&2; "
				 "echo $m done >&2;; *) "
				 "echo end $(wc -c <$t/log) succeeded >&2; echo $m done >&2;; esac",
			true, 0, -1, &heard),
		E_NODE_PROTOCOL);
	buf_done(&heard.text);
	node_free(TAKE(node));
	heard = (struct heard){0};
	AUTO_FREE char *base = mem_printf("%s/again", tmp);
	assert_int_equal(mkdir(base, 0700), 0);
	assert_int_equal(
		reads_log("set -- $1 $2/again\n" RUNNER
			  "hello; set -- $(cat $t/request$n); l=$t/../log\n"
			  "echo m $((n * 1000)) $((n * 20000)) >&2\n"
			  "case $n in [1-4]) tail -c +$(($4 + 1)) $l | head -c 30011;; "
			  "*) tail -c +$(($4 + 1)) $l;; esac\n"
			  "case $n in 1|2) cut;; 3) echo end 200000 running >&2;; "
			  "*) echo end $(wc -c <$l) succeeded >&2;; esac; echo $m done >&2",
			true, 0, -1, &heard),
		E_NONE);
	assert_int_equal(heard.text.len, whole.len);
	assert_string_equal(heard.text.data, whole.data);
	assert_true(heard.n_notices >= 2);
	text_is("again/request3", "log a-1 1 60022 22 follow\n");
	buf_done(&heard.text);
}

/* How it stands is known then. */
static void test_end_of_a_log_is_final(void **state)
{
	struct node_attempts responses = {0};
	struct heard heard = {0};
	struct waited waited = {0};

	assert_int_equal(reads_log(RUNNER "hello; { echo attempt a-1/1 failed code=3; "
					  "echo attempt b-1/1 failed code=4; echo end 0 failed; "
					  "echo $m done; } >&2",
				 true, 0, -1, &heard),
		E_NONE);
	query_state("a-1/1", NULL, &responses, &waited, NULL);
	assert_int_equal(ends(&waited), E_NONE);
	assert_false(exists("c2"));
	assert_int_equal(responses.n, 1);
	assert_int_equal(node_attempt_int(&responses.v[0], "code", -1), 3);
	query_state("b-1/1", NULL, &responses, &waited, NULL);
	assert_int_not_equal(ends(&waited), E_NONE);
	assert_true(exists("c2"));
	node_attempts_done(&responses);
	buf_done(&heard.text);
}

static void test_reader_has_enough(void **state)
{
	struct heard heard = {.refuse_at = 3};

	assert_int_equal(reads_log(RUNNER "hello; printf abcdef; sleep 60", true, 0, -1, &heard),
		E_CANCELED);
	assert_false(exists("c2"));
	buf_done(&heard.text);
}

static void test_log_of_nothing(void **state)
{
	struct heard heard = {0};

	assert_int_equal(reads_log(RUNNER "hello; echo end 5 succeeded >&2; echo $m done >&2", true,
				 9, -1, &heard),
		E_NONE);
	buf_done(&heard.text);
	node_free(TAKE(node));
	assert_int_equal(
		reads_log(RUNNER "hello; echo $m fail missing no >&2", true, 0, -1, &heard),
		E_RUN_NOT_FOUND);
	buf_done(&heard.text);
}

/*
 * Commands
 */

static enum err_id runs(
	const char *script, const struct strv *command, const int fds[3], struct channel_exit *ret)
{
	const struct node_exec_request request = {
		.run = "a-1", .attempt = 1, .command = command, .fds = {fds[0], fds[1], fds[2]}};
	struct waited waited = {0};

	begin_node(script, "/r", 0);
	node_exec(node, &request, ret, on_waited, &waited);
	return ends(&waited);
}

static int temp_file(const char *name, int flags)
{
	AUTO_FREE char *path = mem_printf("%s/%s", tmp, name);
	int fd = open(path, flags | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	return fd;
}

static void test_exec(void **state)
{
	AUTO_STRV struct strv command = {0};
	struct channel_exit exit;

	put("in", "input\n", 6);
	AUTO_FD int in = temp_file("in", O_RDONLY);
	AUTO_FD int out = temp_file("out", O_RDWR | O_CREAT);
	AUTO_FD int err = temp_file("err", O_RDWR | O_CREAT);
	strv_add(&command, "a b");
	strv_add(&command, "");
	assert_int_equal(runs("echo noise >&2\n" RUNNER "hello; echo more noise; echo $m go\n"
			      "echo wrong >&2; cat; exit 3",
				 &command, (const int[]){in, out, err}, &exit),
		E_NONE);
	text_is("request1", "exec a-1 1\nword a\\0040b\nword \\0\n");
	text_is("out", "input\n");
	assert_true(exit.known);
	assert_int_equal(exit.code, 3);
	AUTO_FREE char *path = mem_printf("%s/err", tmp);
	AUTO_BUF struct buf got = {0};
	assert_int_equal(fs_read(path, 1000, &got, NULL, NULL), 0);
	assert_true(str_ends(got.data, "wrong\n"));
}

static void test_exec_ends(void **state)
{
	static const struct strv none = {0};
	struct channel_exit exit;
	const int fds[] = {-1, -1, -1};

	assert_int_equal(
		runs(RUNNER "hello; echo $m go; echo x; kill -TERM $$", &none, fds, &exit), E_NONE);
	assert_string_equal(exit.signal, "TERM");
	text_is("request1", "exec a-1 1\nalone\n");
	node_free(TAKE(node));
	/* Without a stdin its end is our end. */
	assert_int_equal(
		runs(RUNNER "hello; echo $m go; timeout 0.3 cat; exit $?", &none, fds, &exit),
		E_NONE);
	assert_int_equal(exit.code, 124);
	node_free(TAKE(node));
	assert_int_equal(runs(RUNNER "hello; echo $m fail missing no >&2", &none, fds, &exit),
		E_RUN_NOT_FOUND);
	node_free(TAKE(node));
	assert_int_equal(
		runs(RUNNER "hello; echo $m fail missing no", &none, fds, &exit), E_RUN_NOT_FOUND);
	node_free(TAKE(node));
	/* It may have run: once is enough. */
	assert_int_equal(runs(RUNNER "hello; cut", &none, fds, &exit), E_NODE_LOST);
	assert_false(exists("c6"));
}

static void test_exec_whose_reader_goes(void **state)
{
	static const struct strv none = {0};
	struct channel_exit exit;
	int out[2];

	assert_int_equal(pipe(out), 0);
	close(out[0]);
	assert_int_equal(
		runs(RUNNER "hello; echo $m go; yes", &none, (const int[]){-1, out[1], -1}, &exit),
		E_NONE);
	assert_int_equal(exit.code, 141);
	close(out[1]);
}

struct slow {
	int fd;
	size_t n;
	struct loop_timer *timer;
};

static int read_slowly(void *ctx, struct err *err)
{
	struct slow *slow = ctx;
	static char data[100000];
	ssize_t n;

	while ((n = read(slow->fd, data, sizeof(data))) > 0)
		slow->n += (size_t)n;
	slow->timer = loop_add_timer(loop, clock_ms() + 5, read_slowly, slow);
	return 0;
}

static void test_exec_whose_reader_is_slow(void **state)
{
	static const struct strv none = {0};
	struct channel_exit exit;
	int out[2];

	assert_int_equal(pipe(out), 0);
	fcntl(out[0], F_SETFL, O_NONBLOCK);
	struct slow slow = {.fd = out[0]};
	slow.timer = loop_add_timer(loop, clock_ms() + 50, read_slowly, &slow);
	assert_int_equal(runs(RUNNER "hello; echo $m go; head -c 3000000 /dev/zero", &none,
				 (const int[]){-1, out[1], -1}, &exit),
		E_NONE);
	close(out[1]);
	loop_remove_timer(loop, slow.timer);
	slow.timer = NULL;
	read_slowly(&slow, NULL);
	loop_remove_timer(loop, slow.timer);
	assert_int_equal(slow.n, 3000000);
	close(out[0]);
}

/*
 * Results and data
 */

static void test_files(void **state)
{
	struct node_files files = {0};
	struct waited waited = {0};

	begin_node(RUNNER "hello; say 'd 755 a'; say 'f 12 1700000000123 644 a/b\\0040c'; "
			  "say 'l ../x a/l'; done_",
		"/r", 0);
	node_files(node, "a-1", NULL, &files, on_waited, &waited);
	assert_int_equal(ends(&waited), E_NONE);
	assert_int_equal(files.n, 3);
	assert_int_equal(files.v[0].mode, 0755);
	assert_string_equal(files.v[1].path, "a/b c");
	assert_int_equal(files.v[1].mtime_ms, 1700000000123);
	assert_string_equal(files.v[2].target, "../x");
	node_files_done(&files);
}

static void test_hostile_files(void **state)
{
	static const char *const lines[] = {"f 1 1 644 /etc/passwd", "f 1 1 644 a/../../b",
		"f 1 1 644 a//b", "f 1 1 644 \\0", "f 1 1 999 a", "f x 1 644 a", "d 755 .",
		"d 755 a/", "l x", "f 1 1 644 a\\0040b c"};
	struct node_files files = {0};
	struct waited waited = {0};

	for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
		AUTO_FREE char *script = mem_printf("%s hello; say '%s'; done_", RUNNER, lines[i]);

		begin_node(script, "/r", 0);
		node_files(node, "a-1", NULL, &files, on_waited, &waited);
		assert_int_equal(ends(&waited), E_NODE_PROTOCOL);
		node_files_done(&files);
		node_free(TAKE(node));
	}
}

enum { N_FETCHED = 300 };
static struct fetched {
	struct buf text[N_FETCHED];
	uint64_t sizes[N_FETCHED];
	size_t n_begun;
} fetched;

static int on_file(void *ctx, size_t i, uint64_t size, struct err *err)
{
	struct fetched *all = ctx;

	assert_int_equal(i, all->n_begun++);
	all->sizes[i] = size;
	return 0;
}

static int on_content(void *ctx, size_t i, const void *data, size_t len, struct err *err)
{
	struct fetched *all = ctx;

	assert_int_equal(i + 1, all->n_begun);
	buf_add(&all->text[i], data, len);
	return 0;
}

/* File i has i * 37 bytes of its number's last digit; sizes may come behind the bytes. */
static void test_get_over_cuts(void **state)
{
	static struct node_file files[N_FETCHED];
	static struct node_want wants[N_FETCHED];
	const struct node_get_events events = {on_file, on_content, &fetched};
	struct waited waited = {0};

	for (size_t i = 0; i < N_FETCHED; i++) {
		files[i] = (struct node_file){.kind = 'f', .path = mem_printf("f%zu", i)};
		wants[i] = (struct node_want){&files[i], i % 3, i * 37 + 3 - i % 3};
		buf_init(&fetched.text[i], SIZE_MAX / 2);
	}
	begin_node(RUNNER
		"hello; case $n in 1) limit=50000;; 2) limit=200000;; *) limit=-0;; esac\n"
		"{ while read -r w off len path; do i=${path#f}; [ $w = want ] || continue\n"
		"s=$((i * 37 + 3 - off)); echo size $s >&2\n"
		"[ $s -gt 0 ] && printf \"%${s}s\" '' | tr ' ' ${i#${i%?}}\n"
		"done <$t/request$n; } | if [ $n -lt 3 ]; then head -c $limit; else cat; fi\n"
		"[ $n -lt 3 ] && cut; echo $m done >&2",
		"/r", 0);
	node_get(node, "a-1", NULL, wants, N_FETCHED, &events, on_waited, &waited);
	assert_int_equal(ends(&waited), E_NONE);
	assert_int_equal(fetched.n_begun, N_FETCHED);
	for (size_t i = 0; i < N_FETCHED; i++) {
		struct buf *text = &fetched.text[i];
		size_t size = i * 37 + 3 - i % 3;

		assert_int_equal(fetched.sizes[i], size);
		assert_int_equal(text->len, size);
		for (size_t j = 0; j < size; j++)
			assert_int_equal(text->data[j], '0' + (int)(i % 10));
		buf_done(text);
		free(files[i].path);
	}
}

static int on_any_file(void *ctx, size_t i, uint64_t size, struct err *err)
{
	assert_int_equal(size, i == 1 ? 0 : 4);
	return 0;
}

static int on_any_content(void *ctx, size_t i, const void *data, size_t len, struct err *err)
{
	return 0;
}

static void test_get_of_a_file_that_is_cut(void **state)
{
	const struct node_file files[] = {{.path = "a"}, {.path = "b"}, {.path = "c"}};
	const struct node_want wants[] = {{&files[0], 0, 4}, {&files[1], 0, 4}, {&files[2], 0, 4}};
	const struct node_get_events events = {on_any_file, on_any_content, NULL};
	struct waited waited = {0};

	begin_node(RUNNER "hello; { echo size 4; echo size 0; echo size 4; echo short 1; } >&2\n"
			  "printf abcdz000; echo $m done >&2",
		"/r", 0);
	node_get(node, "a-1", NULL, wants, 3, &events, on_waited, &waited);
	assert_int_equal(wait_for(&waited), E_IO_CHANGED);
	assert_string_equal(waited.error.message, "c became shorter while it was fetched");
	err_clear(&waited.error);
	node_free(TAKE(node));
	/* More than was said. */
	waited = (struct waited){0};
	begin_node(RUNNER "hello; { echo size 4; echo size 0; echo size 4; } >&2\n"
			  "printf abcdz0001; echo $m done >&2",
		"/r", 0);
	node_get(node, "a-1", NULL, wants, 3, &events, on_waited, &waited);
	assert_int_equal(ends(&waited), E_NODE_PROTOCOL);
}

static int open_input(void *ctx, struct err *err)
{
	return temp_file("in", O_RDONLY);
}

static void test_data(void **state)
{
	struct waited waited = {0};

	put("in", "a tar stream", 12);
	begin_node(RUNNER "hello; [ $n = 1 ] && { echo have k-1; done_; }; echo want k-1\n"
			  "[ $n = 2 ] && { head -c 3 >/dev/null; cut; }; cat >$t/got; done_",
		"/r", 0);
	node_data(node, "k-1", open_input, NULL, on_waited, &waited);
	assert_int_equal(ends(&waited), E_NONE);
	assert_false(exists("got"));
	node_data(node, "k-1", open_input, NULL, on_waited, &waited);
	assert_int_equal(ends(&waited), E_NONE);
	text_is("got", "a tar stream");
	node_data(node, "../k", open_input, NULL, on_waited, &waited);
	assert_int_equal(ends(&waited), E_BUG);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_node_runtime, remove_node_runtime)
	const struct CMUnitTest tests[] = {
		TEST(test_handshake),
		TEST(test_runner_is_sent),
		TEST(test_runner_is_not_sent_for_ever),
		TEST(test_no_conversation),
		TEST(test_cuts_before_handshake),
		TEST(test_root_is_checked),
		TEST(test_first_command_is_taken),
		TEST(test_gpus),
		TEST(test_questions_of_a_turn_go_together),
		TEST(test_many_questions),
		TEST(test_list),
		TEST(test_stop_forget_gc),
		TEST(test_hostile_responses),
		TEST(test_cut_is_tried_again),
		TEST(test_cut_response_is_requested_again),
		TEST(test_ahead_in_vain),
		TEST(test_silence),
		TEST(test_forgotten),
		TEST(test_forgotten_before_handshake),
		TEST(test_submit),
		TEST(test_only_what_is_missing),
		TEST(test_cut_transfer_goes_on),
		TEST(test_responses_that_heal),
		TEST(test_refused_in_mid_payload),
		TEST(test_short_layer),
		TEST(test_log),
		TEST(test_tail),
		TEST(test_follow_over_cuts),
		TEST(test_end_of_a_log_is_final),
		TEST(test_reader_has_enough),
		TEST(test_log_of_nothing),
		TEST(test_exec),
		TEST(test_exec_ends),
		TEST(test_exec_whose_reader_goes),
		TEST(test_exec_whose_reader_is_slow),
		TEST(test_files),
		TEST(test_hostile_files),
		TEST(test_get_over_cuts),
		TEST(test_get_of_a_file_that_is_cut),
		TEST(test_data),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
