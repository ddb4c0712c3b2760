/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/random.h"
#include "base/util/str.h"
#include "node/wire.h"

#define MARK "00112233445566ff"

static struct node_wire wire;

static int begin(void **state)
{
	node_wire_init(&wire, MARK, false);
	return 0;
}

static int end(void **state)
{
	node_wire_done(&wire);
	return 0;
}

static void add(const char *text)
{
	node_wire_add(&wire, text, strlen(text));
}

static void says(enum node_says what, const char *line)
{
	struct node_said said;

	assert_int_equal(node_wire_next(&wire, &said, NULL), 1);
	assert_int_equal(said.what, what);
	assert_string_equal(said.line, line);
}

static void says_nothing(void)
{
	struct node_said said;

	assert_int_equal(node_wire_next(&wire, &said, NULL), 0);
}

static void fails(enum err_id id)
{
	AUTO_ERR struct err err = {0};
	struct node_said said;

	assert_true(node_wire_next(&wire, &said, &err) < 0);
	assert_int_equal(err.id, id);
}

static void evidence_is(const char *first, size_t n)
{
	AUTO_ERR struct err err = {0};

	err_set(&err, E_NODE_SHELL, "x");
	node_wire_evidence(&wire, &err);
	assert_int_equal(err.n_evidence, n);
	if (n)
		assert_string_equal(err.evidence[0], first);
}

static void test_conversation(void **state)
{
	add(MARK " hello 1\nhost a\n.\nattempt x/1 running\n" MARK " done\n");
	says(NODE_SAYS_HELLO, "1");
	says(NODE_SAYS_LINE, "host a");
	says(NODE_SAYS_LINE, ".");
	says(NODE_SAYS_LINE, "attempt x/1 running");
	says(NODE_SAYS_DONE, "");
	says_nothing();
}

static void test_noise_goes_before_mark(void **state)
{
	add("Welcome\r\n\n$ exec sh -c 'x' dlrun r h 1 " MARK "\n" MARK "\nno newline> ");
	says_nothing();
	add(MARK " send\r\n");
	says(NODE_SAYS_SEND, "");
	evidence_is("Welcome", 3);
}

static void test_every_cut(void **state)
{
	static const char text[] =
		"noise\n> " MARK " hello 1\nhost a\n.\n" MARK " fail io a\\0040b\n";

	for (size_t cut = 1; cut < sizeof(text) - 1; cut++) {
		struct node_said said;
		int n = 0;

		node_wire_done(&wire);
		node_wire_init(&wire, MARK, false);
		for (size_t at = 0; at < sizeof(text) - 1; at += cut) {
			size_t left = sizeof(text) - 1 - at;

			node_wire_add(&wire, text + at, left < cut ? left : cut);
			while (node_wire_next(&wire, &said, NULL) == 1)
				n++;
		}
		assert_int_equal(n, 4);
		assert_int_equal(said.what, NODE_SAYS_FAIL);
	}
}

static void test_raw_bytes_behind_a_line(void **state)
{
	const char *rest;

	add(MARK " go\nraw\nbytes");
	says(NODE_SAYS_GO, "");
	assert_int_equal(node_wire_rest(&wire, &rest), 9);
	assert_memory_equal(rest, "raw\nbytes", 9);
	assert_int_equal(node_wire_rest(&wire, &rest), 0);
}

static void test_too_much_noise(void **state)
{
	for (size_t i = 0; i <= NODE_NOISE_MAX / 8; i++) {
		struct node_said said;

		add("1234567\n");
		if (node_wire_next(&wire, &said, NULL) < 0)
			return;
		assert_true(wire.noise <= NODE_NOISE_MAX);
	}
	fail();
}

static void test_endless_line(void **state)
{
	AUTO_FREE char *much = mem_alloc(NODE_WIRE_PIECE, 1);

	memset(much, 'a', NODE_WIRE_PIECE);
	node_wire_add(&wire, much, NODE_WIRE_PIECE);
	says_nothing();
	node_wire_add(&wire, much, NODE_WIRE_PIECE);
	says_nothing();
	add(MARK " hello 1\n");
	says(NODE_SAYS_HELLO, "1");
	for (size_t i = 0; i < NODE_LINE_MAX / NODE_WIRE_PIECE; i++) {
		node_wire_add(&wire, much, NODE_WIRE_PIECE);
		says_nothing();
	}
	add("a");
	fails(E_NODE_PROTOCOL);
}

static void test_longest_line(void **state)
{
	AUTO_FREE char *much = mem_alloc(NODE_WIRE_PIECE, 1);

	memset(much, 'a', NODE_WIRE_PIECE);
	add(MARK " go\n");
	says(NODE_SAYS_GO, "");
	for (size_t i = 0; i < NODE_LINE_MAX / NODE_WIRE_PIECE; i++) {
		node_wire_add(&wire, much, NODE_WIRE_PIECE);
		says_nothing();
	}
	add("\nx\n");
	struct node_said said;
	assert_int_equal(node_wire_next(&wire, &said, NULL), 1);
	assert_int_equal(strlen(said.line), NODE_LINE_MAX);
	says(NODE_SAYS_LINE, "x");
}

static void test_stderr_has_no_limits(void **state)
{
	AUTO_FREE char *much = mem_alloc(NODE_WIRE_PIECE, 1);

	node_wire_done(&wire);
	node_wire_init(&wire, MARK, true);
	memset(much, 'a', NODE_WIRE_PIECE);
	for (int i = 0; i < 64; i++) {
		node_wire_add(&wire, much, NODE_WIRE_PIECE);
		says_nothing();
	}
	add("\nm 12 34\n" MARK " unknown\n" MARK " done\nlast");
	struct node_said said;
	assert_int_equal(node_wire_next(&wire, &said, NULL), 1);
	says(NODE_SAYS_LINE, "m 12 34");
	says(NODE_SAYS_LINE, MARK " unknown");
	says(NODE_SAYS_DONE, "");
	says_nothing();
	evidence_is("last", 1);
}

static void test_hostile_lines(void **state)
{
	add(MARK " hello 1\n");
	says(NODE_SAYS_HELLO, "1");
	node_wire_add(&wire, "a\0b\n", 4);
	fails(E_NODE_PROTOCOL);
	add(MARK " dance\n");
	fails(E_NODE_PROTOCOL);
	add("x" MARK " done\n");
	says(NODE_SAYS_LINE, "x" MARK " done");
}

static void test_words(void **state)
{
	struct node_words words = {0};
	char line[] = "  a  k=b\\0040c \\0 k=\\0 \\0377 ";
	static const char *const bad[] = {
		"\\x", "\\012", "\\0999", "\\", "\\0000", "\\0400", "a\\01", NULL};

	assert_int_equal(node_words_split(line, &words, NULL), 0);
	assert_int_equal(words.n, 5);
	assert_string_equal(words.v[0], "a");
	assert_string_equal(words.v[1], "k=b c");
	assert_string_equal(words.v[2], "");
	assert_string_equal(words.v[3], "k=");
	assert_string_equal(words.v[4], "\377");
	for (size_t i = 0; bad[i]; i++) {
		AUTO_FREE char *copy = mem_strdup(bad[i]);

		assert_true(node_words_split(copy, &words, NULL) < 0);
	}
	vec_done(&words);
}

static void test_words_come_back(void **state)
{
	for (int round = 0; round < 10000; round++) {
		AUTO_BUF struct buf line;
		struct node_words words = {0};
		char value[65] = {0};
		size_t len = random_below(65);

		random_bytes(value, len);
		buf_init(&line, 4096);
		node_word_add(&line, value);
		assert_int_equal(
			strspn(line.data, " \\._/:=,@%+~-0123456789abcdefghijklmnopqrstuvwxyz"
					  "ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
			line.len);
		assert_int_equal(node_words_split(line.data, &words, NULL), 0);
		assert_int_equal(words.n, 1);
		assert_string_equal(words.v[0], value);
		vec_done(&words);
	}
}

static void test_numbers_and_names(void **state)
{
	uint64_t n;

	assert_true(node_word_number("18446744073709551615", &n) && n == UINT64_MAX);
	assert_false(node_word_number("18446744073709551616", &n));
	assert_false(node_word_number("", &n));
	assert_false(node_word_number("-1", &n));
	assert_false(node_word_number("1 ", &n));
	assert_true(node_name_is_good("resnet-3k2f9"));
	assert_false(node_name_is_good(""));
	assert_false(node_name_is_good("../x"));
	assert_false(node_name_is_good("a/b"));
	assert_false(node_name_is_good("Aa"));
	assert_true(node_name_is_good(
		"0123456789012345678901234567890123456789012345678901234567890123"));
	assert_false(node_name_is_good(
		"01234567890123456789012345678901234567890123456789012345678901234"));
}

static void fact(struct node_handshake *handshake, const char *text)
{
	AUTO_FREE char *line = mem_strdup(text);

	assert_int_equal(node_handshake_add(handshake, line, NULL), 0);
}

static void test_facts(void **state)
{
	struct node_handshake handshake = {0}, kept = {0};
	AUTO_ERR struct err err = {0};
	char bad[] = "free lots";

	fact(&handshake, "host gpu1");
	fact(&handshake, "boot 1-2");
	fact(&handshake, "local /var/tmp/a\\0040b");
	assert_true(node_handshake_check(&handshake, &err) < 0);
	assert_int_equal(err.id, E_NODE_PROTOCOL);
	fact(&handshake, "root /r");
	assert_int_equal(node_handshake_check(&handshake, NULL), 0);
	fact(&handshake, "free 18446744073709551615");
	fact(&handshake, "time 1700000000000");
	node_handshake_compare(&handshake, 1699999990000, 1700000010000);
	assert_int_equal(handshake.facts.ahead_ms, 0);
	node_handshake_compare(&handshake, 1700000000999, 1700000002000);
	assert_int_equal(handshake.facts.ahead_ms, 0);
	node_handshake_compare(&handshake, 1699996390000, 1699996400000);
	assert_int_equal(handshake.facts.ahead_ms, 3600000);
	node_handshake_compare(&handshake, 1700003600000, 1700003610000);
	assert_int_equal(handshake.facts.ahead_ms, -3600000);
	fact(&handshake, "novelty of a later version");
	fact(&handshake, "lonely");
	fact(&handshake, "layer ab0");
	fact(&handshake, "layer ../evil");
	fact(&handshake, "partial t-1 77");
	fact(&handshake, "partial t-1.4711 78");
	fact(&handshake, "partial t-1.4712 5");
	fact(&handshake, "partial t-11 900");
	assert_true(node_handshake_add(&handshake, bad, NULL) < 0);
	node_handshake_merge(&kept, &handshake);
	assert_int_equal(kept.facts.ahead_ms, -3600000);
	const char *host = kept.facts.host, *local = kept.facts.local;
	assert_string_equal(local, "/var/tmp/a b");
	assert_int_equal(kept.facts.layers.n, 1);
	assert_int_equal(node_handshake_partial(&handshake, "t-1"), 78);
	assert_int_equal(node_handshake_partial(&handshake, "t-2"), 0);
	fact(&handshake, "local /other");
	fact(&handshake, "layer ab1");
	node_handshake_merge(&kept, &handshake);
	assert_ptr_equal(kept.facts.host, host);
	assert_string_equal(kept.facts.local, "/other");
	assert_string_equal(local, "/var/tmp/a b");
	assert_int_equal(kept.facts.layers.n, 2);
	node_handshake_done(&handshake);
	node_handshake_done(&kept);
}

static void test_facts_have_ceilings(void **state)
{
	struct node_handshake handshake = {0};

	for (int i = 0; i < 1000; i++) {
		fact(&handshake, "layer ab");
		fact(&handshake, "spare ab");
		fact(&handshake, "partial ab 1");
		fact(&handshake, "missing tar");
	}
	assert_int_equal(handshake.facts.layers.n, NODE_LAYERS_MAX);
	assert_int_equal(handshake.facts.spares.n, NODE_FACTS_MAX);
	assert_int_equal(handshake.facts.missing.n, NODE_FACTS_MAX);
	assert_int_equal(handshake.partials.n, NODE_FACTS_MAX);
	node_handshake_done(&handshake);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
	const struct CMUnitTest tests[] = {
		TEST(test_conversation),
		TEST(test_noise_goes_before_mark),
		TEST(test_every_cut),
		TEST(test_raw_bytes_behind_a_line),
		TEST(test_too_much_noise),
		TEST(test_endless_line),
		TEST(test_longest_line),
		TEST(test_stderr_has_no_limits),
		TEST(test_hostile_lines),
		TEST(test_words),
		TEST(test_words_come_back),
		TEST(test_numbers_and_names),
		TEST(test_facts),
		TEST(test_facts_have_ceilings),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
