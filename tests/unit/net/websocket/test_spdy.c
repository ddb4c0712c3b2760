/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "tests/unit/spdyfix.h"

/* What came, as text. */
struct seen {
	struct buf text, data;
	int stop; /* returned by the data event */
};

static int on_reply(void *ctx, uint32_t id, const struct spdy_field *fields, size_t n, bool is_end,
	struct err *err)
{
	struct seen *seen = ctx;

	buf_addf(&seen->text, "reply %u%s", id, is_end ? " end" : "");
	for (size_t i = 0; i < n; i++)
		buf_addf(&seen->text, " %s=%s", fields[i].name, fields[i].value);
	buf_adds(&seen->text, "\n");
	return 0;
}

static int on_data(
	void *ctx, uint32_t id, const void *data, size_t len, bool is_end, struct err *err)
{
	struct seen *seen = ctx;

	buf_add(&seen->data, data, len);
	if (is_end)
		buf_addf(&seen->text, "end %u\n", id);
	return seen->stop ? err_set(err, E_CANCELED, "enough") : 0;
}

static int on_reset(void *ctx, uint32_t id, uint32_t status, struct err *err)
{
	struct seen *seen = ctx;

	buf_addf(&seen->text, "reset %u %u\n", id, status);
	return 0;
}

static int on_goaway(void *ctx, uint32_t last_id, struct err *err)
{
	struct seen *seen = ctx;

	buf_addf(&seen->text, "goaway %u\n", last_id);
	return 0;
}

static void on_pong(void *ctx)
{
	struct seen *seen = ctx;

	buf_adds(&seen->text, "pong\n");
}

struct fix {
	struct seen seen;
	struct spdy *spdy;
	struct spdy_packer *packer; /* of the server */
	struct buf in;              /* for the client */
};

static int setup(void **state)
{
	struct fix *fix = mem_alloc(1, sizeof(*fix));
	struct spdy_events events = {on_reply, on_data, on_reset, on_goaway, on_pong, &fix->seen};

	buf_init(&fix->seen.text, 1 << 20);
	buf_init(&fix->seen.data, 1 << 20);
	buf_init(&fix->in, 1 << 20);
	fix->spdy = spdy_new(&events);
	fix->packer = spdy_packer_new();
	*state = fix;
	return 0;
}

static int teardown(void **state)
{
	struct fix *fix = *state;

	buf_done(&fix->seen.text);
	buf_done(&fix->seen.data);
	buf_done(&fix->in);
	spdy_free(fix->spdy);
	spdy_packer_free(fix->packer);
	free(fix);
	return 0;
}

static uint32_t open_stream(struct fix *fix)
{
	static const struct spdy_field fields[] = {{"streamtype", "data"}, {"port", "80"}};

	return spdy_open(fix->spdy, fields, 2, false);
}

static int receive(struct fix *fix, struct err *err)
{
	int r = spdy_receive(fix->spdy, fix->in.data, fix->in.len, err);

	buf_reset(&fix->in);
	return r;
}

static void expect_hostile(struct fix *fix, const char *part)
{
	AUTO_ERR struct err err = {0};

	assert_int_equal(receive(fix, &err), -ERR_REMOTE);
	assert_int_equal(err.id, E_HTTP_PROTOCOL);
	assert_non_null(strstr(err.message, part));
}

static void test_dictionary(void **state)
{
	size_t len;
	const unsigned char *bytes = spdy_dictionary(&len);
	uint32_t a = 1, b = 0;

	assert_int_equal(len, 1423);
	/* Adler-32, by which zlib names a dictionary. */
	for (size_t i = 0; i < len; i++) {
		a = (a + bytes[i]) % 65521;
		b = (b + a) % 65521;
	}
	assert_int_equal(b << 16 | a, 0xe3c6a7c2);
}

static void test_open(void **state)
{
	struct fix *fix = *state;
	struct buf *out = spdy_output(fix->spdy);
	struct spdy_unpacker *unpacker = spdy_unpacker_new();
	const struct spdy_field *fields;
	struct fix_frame frame;
	size_t n;

	for (uint32_t id = 1; id <= 5; id += 2) {
		assert_int_equal(spdy_open(fix->spdy,
					 (const struct spdy_field[]){{"streamtype", "error"},
						 {"port", "8080"}, {"requestid", ""}},
					 3, id == 1),
			id);
		assert_true(fix_frame(out->data, out->len, &frame));
		assert_true(frame.control);
		assert_int_equal(frame.type, FIX_SYN);
		assert_int_equal(frame.end, id == 1);
		assert_int_equal(frame.id, id);
		assert_int_equal(frame.size, out->len);
		/* No stream that this one belongs to, no priority, no slot. */
		assert_memory_equal(frame.payload + 4, "\0\0\0\0\0\0", 6);
		assert_int_equal(spdy_unpack(unpacker, frame.payload + 10, frame.len - 10, &fields,
					 &n, NULL),
			0);
		assert_int_equal(n, 3);
		assert_string_equal(fields[0].name, "streamtype");
		assert_string_equal(fields[0].value, "error");
		assert_string_equal(fields[1].value, "8080");
		assert_string_equal(fields[2].name, "requestid");
		assert_string_equal(fields[2].value, "");
		/* The second block knows the first one's words. */
		assert_true(id == 1 || frame.len < 40);
		buf_reset(out);
	}
	spdy_unpacker_free(unpacker);
}

static void test_data_head(void **state)
{
	unsigned char head[SPDY_HEAD_SIZE];

	spdy_data_head(head, 0x01020305, 0xa0b0c0, false);
	assert_memory_equal(head, "\1\2\3\5\0\xa0\xb0\xc0", 8);
	spdy_data_head(head, 3, 0, true);
	assert_memory_equal(head, "\0\0\0\3\1\0\0\0", 8);
}

static void add_all(struct fix *fix)
{
	fix_reply(&fix->in, fix->packer, 1, NULL, 0);
	fix_words(&fix->in, FIX_SETTINGS, 1, 0, 1);
	fix_data(&fix->in, 1, "hello ", 6, false);
	fix_words(&fix->in, 9, 1, 4096, 2);
	fix_data(&fix->in, 1, "", 0, false);
	fix_data(&fix->in, 3, "world", 5, true);
	fix_reply(&fix->in, fix->packer, 3,
		(const struct spdy_field[]){{"streamtype", "x"}, {"port", "1"}}, 2);
	fix_words(&fix->in, FIX_PING, 1, 0, 1);
	fix_words(&fix->in, FIX_PING, 2, 0, 1);
	fix_control(&fix->in, 10, 0, "what is this", 12);
	fix_words(&fix->in, FIX_RST, 1, SPDY_CANCEL, 2);
	fix_data(&fix->in, 1, "", 0, true);
	fix_words(&fix->in, FIX_GOAWAY, 3, 0, 2);
}

static void test_all_frames_in_pieces(void **state)
{
	struct fix *fix = *state;
	static const size_t sizes[] = {1, 2, 3, 7, 8, 9, 13, 1000};

	open_stream(fix);
	open_stream(fix);
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		buf_reset(&fix->seen.text);
		buf_reset(&fix->seen.data);
		buf_reset(spdy_output(fix->spdy));
		buf_reset(&fix->in);
		add_all(fix);
		for (size_t at = 0; at < fix->in.len; at += sizes[i]) {
			size_t len = fix->in.len - at < sizes[i] ? fix->in.len - at : sizes[i];

			assert_int_equal(spdy_receive(fix->spdy, fix->in.data + at, len, NULL), 0);
		}
		assert_string_equal(fix->seen.text.data,
			"reply 1\nend 3\nreply 3 streamtype=x port=1\npong\nreset 1 5\nend 1\n"
			"goaway 3\n");
		assert_string_equal(fix->seen.data.data, "hello world");
		/* The even ping was the server's. */
		assert_int_equal(spdy_output(fix->spdy)->len, 12);
		assert_memory_equal(spdy_output(fix->spdy)->data, "\x80\3\0\6\0\0\0\4\0\0\0\2", 12);
	}
}

static void test_controls(void **state)
{
	struct fix *fix = *state;
	struct buf *out = spdy_output(fix->spdy);

	spdy_reset(fix->spdy, 7, SPDY_CANCEL);
	assert_int_equal(out->len, 16);
	assert_memory_equal(out->data, "\x80\3\0\3\0\0\0\x8\0\0\0\7\0\0\0\5", 16);
	buf_reset(out);
	spdy_ping(fix->spdy);
	spdy_ping(fix->spdy);
	assert_memory_equal(out->data, "\x80\3\0\6\0\0\0\4\0\0\0\1\x80\3\0\6\0\0\0\4\0\0\0\3", 24);
}

static void test_data_is_not_copied(void **state)
{
	struct fix *fix = *state;
	static char big[300000];

	memset(big, 'x', sizeof(big));
	open_stream(fix);
	fix_data(&fix->in, 1, big, sizeof(big), true);
	/* Far more than a control frame may hold, piece by piece. */
	for (size_t at = 0; at < fix->in.len; at += 9999) {
		size_t len = fix->in.len - at < 9999 ? fix->in.len - at : 9999;

		assert_int_equal(spdy_receive(fix->spdy, fix->in.data + at, len, NULL), 0);
	}
	assert_int_equal(fix->seen.data.len, sizeof(big));
	assert_string_equal(fix->seen.text.data, "end 1\n");
}

static void test_ping_flood(void **state)
{
	struct fix *fix = *state;
	int n = 0;

	while (spdy_wants_input(fix->spdy)) {
		fix_words(&fix->in, FIX_PING, 2, 0, 1);
		assert_int_equal(receive(fix, NULL), 0);
		assert_true(++n < 10000);
	}
	assert_true(spdy_output(fix->spdy)->len < (64 << 10) + 12);
	buf_reset(spdy_output(fix->spdy));
	assert_true(spdy_wants_input(fix->spdy));
}

static void test_event_stops(void **state)
{
	struct fix *fix = *state;

	open_stream(fix);
	fix->seen.stop = 1;
	fix_data(&fix->in, 1, "a", 1, false);
	fix_data(&fix->in, 1, "b", 1, false);
	assert_int_equal(receive(fix, NULL), -ERR_CANCELED);
	assert_string_equal(fix->seen.data.data, "a");
}

static void test_hostile_version(void **state)
{
	struct fix *fix = *state;

	buf_adds(&fix->in, "HTTP/1.1 400");
	expect_hostile(fix, "never opened");
	spdy_free(fix->spdy);
	fix->spdy = spdy_new(&(struct spdy_events){0});
	buf_add(&fix->in, "\x80\2\0\6\0\0\0\4\0\0\0\1", 12);
	expect_hostile(fix, "SPDY/3.1");
}

static void test_hostile_ids(void **state)
{
	static const uint32_t ids[] = {0, 2, 3, 0x7fffffff};

	for (size_t i = 0; i < ARRAY_LEN(ids); i++) {
		struct fix *fix = *state;

		open_stream(fix);
		fix_data(&fix->in, ids[i], "x", 1, false);
		expect_hostile(fix, "never opened");
		teardown(state);
		setup(state);
		fix = *state;
		open_stream(fix);
		fix_words(&fix->in, FIX_RST, ids[i], 1, 2);
		expect_hostile(fix, "never opened");
		teardown(state);
		setup(state);
		fix = *state;
		open_stream(fix);
		fix_reply(&fix->in, fix->packer, ids[i], NULL, 0);
		expect_hostile(fix, "never opened");
		teardown(state);
		setup(state);
	}
}

static void test_hostile_frames(void **state)
{
	struct fix *fix = *state;

	fix_control(&fix->in, FIX_SYN, 0, "\0\0\0\2\0\0\0\0\0\0", 10);
	expect_hostile(fix, "only the client");
	teardown(state);
	setup(state);
	fix = *state;
	fix_control(&fix->in, FIX_RST, 0, "\0\0\0\1", 4);
	expect_hostile(fix, "too short");
	teardown(state);
	setup(state);
	fix = *state;
	fix_control(&fix->in, FIX_PING, 0, "", 0);
	expect_hostile(fix, "too short");
	teardown(state);
	setup(state);
	fix = *state;
	/* Refused by its head, before a byte of it is kept. */
	buf_add(&fix->in, "\x80\3\0\2\0\1\0\1", 8);
	expect_hostile(fix, "too large");
}

/* A block given as it is unpacked. */
static int unpack_plain(const void *plain, size_t len, struct err *err)
{
	struct spdy_unpacker *unpacker = spdy_unpacker_new();
	const struct spdy_field *fields;
	struct buf block;
	size_t n;
	/* zlib without a dictionary, and stored: RFC 1950, RFC 1951 section 3.2.4. */
	uint8_t head[] = {0x78, 0x01, 0, (uint8_t)len, (uint8_t)(len >> 8), (uint8_t)~len,
		(uint8_t)(~len >> 8)};

	buf_init(&block, 1 << 20);
	buf_add(&block, head, sizeof(head));
	buf_add(&block, plain, len);
	int r = spdy_unpack(unpacker, block.data, block.len, &fields, &n, err);
	buf_done(&block);
	spdy_unpacker_free(unpacker);
	return r;
}

static void test_blocks(void **state)
{
	static const struct {
		const char *plain;
		size_t len;
		const char *message; /* NULL: fine */
	} rows[] = {
		{"\0\0\0\0", 4, NULL},
		{"\0\0\0\1\0\0\0\1a\0\0\0\2bc", 15, NULL},
		{"", 0, "too short"},
		{"\0\0\0", 3, "too short"},
		{"\0\0\0\1", 4, "does not fit"},
		{"\0\0\0\1\0\0\0\2a", 9, "does not fit"},
		{"\0\0\0\1\0\0\0\1a\xff\xff\xff\xff", 13, "does not fit"},
		{"\0\0\0\1\0\0\0\1a\0\0\0\1", 13, "does not fit"},
		{"\0\0\0\0x", 5, "goes on"},
		{"\0\0\0\x41", 4, "too many"},
		{"\xff\xff\xff\xff", 4, "too many"},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_ERR struct err err = {0};
		int r = unpack_plain(rows[i].plain, rows[i].len, &err);

		assert_int_equal(r, rows[i].message ? -ERR_REMOTE : 0);
		if (rows[i].message)
			assert_non_null(strstr(err.message, rows[i].message));
	}
}

static void test_block_damaged(void **state)
{
	struct spdy_unpacker *unpacker = spdy_unpacker_new();
	const struct spdy_field *fields;
	size_t n;

	assert_int_equal(spdy_unpack(unpacker, "garbage!", 8, &fields, &n, NULL), -ERR_REMOTE);
	spdy_unpacker_free(unpacker);
	unpacker = spdy_unpacker_new();
	assert_int_equal(spdy_unpack(unpacker, "", 0, &fields, &n, NULL), -ERR_REMOTE);
	spdy_unpacker_free(unpacker);
}

/* A small block that unpacks to much. */
static void test_block_bomb(void **state)
{
	struct spdy_packer *packer = spdy_packer_new();
	struct spdy_unpacker *unpacker = spdy_unpacker_new();
	const struct spdy_field *fields;
	char *value = mem_alloc(1, 1000 * 1000 + 1);
	AUTO_ERR struct err err = {0};
	struct buf block;
	size_t n;

	buf_init(&block, 1 << 20);
	memset(value, 'a', 60000);
	spdy_pack(packer, &(struct spdy_field){"a", value}, 1, &block);
	assert_true(block.len < 1000);
	assert_int_equal(spdy_unpack(unpacker, block.data, block.len, &fields, &n, NULL), 0);
	assert_int_equal(strlen(fields[0].value), 60000);
	buf_reset(&block);
	memset(value, 'a', 1000 * 1000);
	spdy_pack(packer, &(struct spdy_field){"a", value}, 1, &block);
	assert_true(block.len < 10000);
	assert_int_equal(
		spdy_unpack(unpacker, block.data, block.len, &fields, &n, &err), -ERR_REMOTE);
	assert_non_null(strstr(err.message, "too large"));
	buf_done(&block);
	free(value);
	spdy_packer_free(packer);
	spdy_unpacker_free(unpacker);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_dictionary),
		cmocka_unit_test_setup_teardown(test_open, setup, teardown),
		cmocka_unit_test(test_data_head),
		cmocka_unit_test_setup_teardown(test_all_frames_in_pieces, setup, teardown),
		cmocka_unit_test_setup_teardown(test_controls, setup, teardown),
		cmocka_unit_test_setup_teardown(test_data_is_not_copied, setup, teardown),
		cmocka_unit_test_setup_teardown(test_ping_flood, setup, teardown),
		cmocka_unit_test_setup_teardown(test_event_stops, setup, teardown),
		cmocka_unit_test_setup_teardown(test_hostile_version, setup, teardown),
		cmocka_unit_test_setup_teardown(test_hostile_ids, setup, teardown),
		cmocka_unit_test_setup_teardown(test_hostile_frames, setup, teardown),
		cmocka_unit_test(test_blocks),
		cmocka_unit_test(test_block_damaged),
		cmocka_unit_test(test_block_bomb),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
