/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/vec.h"
#include "events/tfevents.h"
#include "tests/unit/tfeventsfix.h"

enum { RECORD_MAX = 4096, TAGS_MAX = 4 };

/* What a reader told, as text: "loss 1=0.5; restart 3; plugin hparams:abc; " */
struct seen {
	struct buf text;
	struct tfevents *reader;
	enum tfrecord_state state;
};

static void on_scalar(void *ctx, const struct tfevents_scalar *scalar)
{
	buf_addf(ctx, "%s %lld=%g; ", scalar->tag, (long long)scalar->step, scalar->value);
}

static void on_restart(void *ctx, int64_t step)
{
	buf_addf(ctx, "restart %lld; ", (long long)step);
}

static void on_plugin(
	void *ctx, const char *tag, const char *plugin, const void *content, size_t len)
{
	buf_addf(ctx, "%s is %s(%.*s); ", tag, plugin, (int)len, (const char *)content);
}

static void seen_init(struct seen *seen)
{
	static const struct tfevents_ops ops = {on_scalar, on_restart, on_plugin};
	const struct tfevents_spec spec = {&ops, &seen->text, RECORD_MAX, TAGS_MAX};

	buf_init(&seen->text, 1 << 20);
	seen->reader = tfevents_new(&spec);
	seen->state = TFRECORD_OK;
}

static void seen_done(struct seen *seen)
{
	buf_done(&seen->text);
	tfevents_free(seen->reader);
}

/* Feeds file from where the reader is. */
static void feed(struct seen *seen, const struct buf *file, size_t end)
{
	uint64_t at = tfevents_next(seen->reader);

	assert_true(at <= end || end < file->len);
	if (at < end)
		seen->state = tfevents_feed(seen->reader, file->data + at, end - (size_t)at);
}

static void check_file(const struct buf *file, const char *wanted)
{
	AUTO(seen_done) struct seen whole, bytes;

	seen_init(&whole);
	feed(&whole, file, file->len);
	assert_string_equal(whole.text.data, wanted);
	/* Byte for byte the same. */
	seen_init(&bytes);
	for (size_t i = 1; i <= file->len; i++)
		feed(&bytes, file, i);
	assert_string_equal(bytes.text.data, wanted);
	assert_int_equal(tfevents_next(bytes.reader), file->len);
}

#define NEW_BUF(name)                                                                              \
	AUTO_BUF struct buf name;                                                                  \
	buf_init(&name, FIX_MAX)

static void put_version(struct buf *out)
{
	NEW_BUF(event);

	put_double(&event, 1, 1e9);
	put_string(&event, 3, "brain.Event:2");
	put_record(out, event.data, event.len);
}

/*
 * Sums
 */

static void test_crc32c(void **state)
{
	uint8_t zeros[32] = {0}, ones[32], up[32];

	crc32c_init();
	memset(ones, 0xff, sizeof(ones));
	for (uint8_t i = 0; i < 32; i++)
		up[i] = i;
	/* RFC 3720, B.4 */
	assert_int_equal(crc32c(zeros, 32), 0x8a9136aa);
	assert_int_equal(crc32c(ones, 32), 0x62a8ab43);
	assert_int_equal(crc32c(up, 32), 0x46dd794e);
	assert_int_equal(crc32c("123456789", 9), 0xe3069283);
	assert_int_equal(crc32c("", 0), 0);
	/* The header of an unfilled block, as TensorBoard reports it. */
	assert_int_equal(crc32c_masked(zeros, 8), 0x07980329);
}

/*
 * Values
 */

static void test_simple(void **state)
{
	NEW_BUF(file);

	put_version(&file);
	put_simple(&file, 1e9, 1, "loss", 2.5f);
	put_simple(&file, 1e9, 2, "loss", -0.125f);
	put_simple(&file, 1e9, -3, "a/b c", 0);
	put_simple(&file, 1e9, 4, "nan", NAN);
	put_simple(&file, 1e9, 5, "inf", -INFINITY);
	check_file(&file, "loss 1=2.5; loss 2=-0.125; a/b c -3=0; nan 4=nan; inf 5=-inf; ");
}

static void test_several_values(void **state)
{
	NEW_BUF(file);
	NEW_BUF(event);
	NEW_BUF(summary);
	NEW_BUF(value);

	put_string(&value, 1, "a");
	put_float(&value, 2, 1);
	put_buf(&summary, 1, &value);
	buf_reset(&value);
	/* Fields in another order, and one of a later version. */
	put_float(&value, 2, 2);
	put_string(&value, 77, "what");
	put_string(&value, 1, "b");
	put_buf(&summary, 1, &value);
	put_buf(&event, 5, &summary);
	put_number(&event, 2, 9);
	put_double(&event, 1, 1e9);
	put_record(&file, event.data, event.len);
	check_file(&file, "a 9=1; b 9=2; ");
}

/* A tensor of one kind in the form that writers use. */
struct tensor {
	unsigned dtype, field;
	enum { AS_FLOAT, AS_DOUBLE, AS_NUMBER, AS_PACKED, AS_CONTENT } form;
	double value; /* of numbers: their bits */
	const char *content;
	size_t len;
};

static void put_tensor(struct buf *out, const struct tensor *tensor)
{
	put_number(out, 1, tensor->dtype);
	put_data(out, 2, "", 0);
	switch (tensor->form) {
	case AS_FLOAT:
		put_float(out, tensor->field, (float)tensor->value);
		break;
	case AS_DOUBLE:
		put_double(out, tensor->field, tensor->value);
		break;
	case AS_NUMBER:
		put_number(out, tensor->field, (uint64_t)(int64_t)tensor->value);
		break;
	case AS_PACKED:
		put_data(out, tensor->field, tensor->content, tensor->len);
		break;
	case AS_CONTENT:
		put_data(out, 4, tensor->content, tensor->len);
		break;
	}
}

static void put_metadata(struct buf *value, const char *plugin, const char *content, int data_class)
{
	NEW_BUF(metadata);
	NEW_BUF(data);

	if (plugin) {
		put_string(&data, 1, plugin);
		if (content)
			put_string(&data, 2, content);
		put_buf(&metadata, 1, &data);
	}
	if (data_class)
		put_number(&metadata, 4, (uint64_t)data_class);
	put_buf(value, 9, &metadata);
}

static void put_tensor_value(struct buf *out, int64_t step, const char *tag, const char *plugin,
	int data_class, const struct tensor *tensor)
{
	NEW_BUF(value);
	NEW_BUF(bytes);

	put_string(&value, 1, tag);
	if (plugin || data_class)
		put_metadata(&value, plugin, NULL, data_class);
	put_tensor(&bytes, tensor);
	put_buf(&value, 8, &bytes);
	put_value(out, 1e9, step, &value);
}

static void test_tensor_forms(void **state)
{
	static const struct {
		struct tensor tensor;
		const char *wanted;
	} cases[] = {
		{{1, 5, AS_FLOAT, 1.5, NULL, 0}, "1.5"},
		{{1, 5, AS_PACKED, 0, "\0\0\0\x40", 4}, "2"},
		{{1, 5, AS_CONTENT, 0, "\0\0\xc0\x3f", 4}, "1.5"},
		{{2, 6, AS_DOUBLE, 0.1, NULL, 0}, "0.1"},
		{{2, 6, AS_CONTENT, 0, "\0\0\0\0\0\0\xf8\xbf", 8}, "-1.5"},
		{{3, 7, AS_NUMBER, -7, NULL, 0}, "-7"},
		{{3, 7, AS_CONTENT, 0, "\xfe\xff\xff\xff", 4}, "-2"},
		{{4, 7, AS_CONTENT, 0, "\xff", 1}, "255"},
		{{6, 7, AS_CONTENT, 0, "\xff", 1}, "-1"},
		{{9, 10, AS_PACKED, 0, "\x80\x01", 2}, "128"},
		{{9, 10, AS_CONTENT, 0, "\0\0\0\0\1\0\0\0", 8}, "4.29497e+09"},
		{{10, 11, AS_NUMBER, 1, NULL, 0}, "1"},
		{{14, 13, AS_NUMBER, 0x3fc0, NULL, 0}, "1.5"},
		{{14, 13, AS_CONTENT, 0, "\x40\xc0", 2}, "-3"},
		{{19, 13, AS_NUMBER, 0x3e00, NULL, 0}, "1.5"},
		{{19, 13, AS_CONTENT, 0, "\x00\xc0", 2}, "-2"},
		{{19, 13, AS_NUMBER, 0x0001, NULL, 0}, "5.96046e-08"},
		{{19, 13, AS_NUMBER, 0x7bff, NULL, 0}, "65504"},
		{{19, 13, AS_NUMBER, 0xfc00, NULL, 0}, "-inf"},
		{{23, 17, AS_NUMBER, 12, NULL, 0}, "12"},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		NEW_BUF(file);
		AUTO_FREE char *wanted = mem_printf("x is scalars(); x 1=%s; ", cases[i].wanted);

		put_tensor_value(&file, 1, "x", "scalars", 0, &cases[i].tensor);
		check_file(&file, wanted);
	}
}

static void test_no_scalars(void **state)
{
	static const struct tensor bad[] = {
		{7, 8, AS_PACKED, 0, "text", 4},    /* strings */
		{1, 5, AS_CONTENT, 0, "\0\0\0", 3}, /* too short */
		{1, 5, AS_PACKED, 0, "\0\0", 2},
		{1, 6, AS_DOUBLE, 1, NULL, 0}, /* not where its kind stands */
		{99, 5, AS_FLOAT, 1, NULL, 0},
	};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		NEW_BUF(file);
		put_tensor_value(&file, 1, "x", "scalars", 0, &bad[i]);
		check_file(&file, "x is scalars(); ");
	}
}

static void test_shapes(void **state)
{
	static const struct {
		uint64_t sizes[2];
		size_t n;
		bool is_scalar;
	} cases[] = {{{0}, 0, true}, {{1}, 1, true}, {{1, 1}, 2, true}, {{2}, 1, false},
		{{1, 3}, 2, false}, {{0}, 1, false}};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		NEW_BUF(file);
		NEW_BUF(shape);
		NEW_BUF(tensor);
		NEW_BUF(value);

		for (size_t k = 0; k < cases[i].n; k++) {
			NEW_BUF(dim);
			put_number(&dim, 1, cases[i].sizes[k]);
			put_buf(&shape, 2, &dim);
		}
		put_number(&tensor, 1, 1);
		put_buf(&tensor, 2, &shape);
		put_float(&tensor, 5, 4);
		put_string(&value, 1, "x");
		put_metadata(&value, NULL, NULL, 1);
		put_buf(&value, 8, &tensor);
		put_value(&file, 1e9, 1, &value);
		check_file(&file, cases[i].is_scalar ? "x 1=4; " : "");
	}
}

/* Only the first value of a tag tells what it is. */
static void test_metadata(void **state)
{
	const struct tensor one = {1, 5, AS_FLOAT, 1, NULL, 0};
	NEW_BUF(file);

	put_tensor_value(&file, 1, "early", NULL, 0, &one);
	put_tensor_value(&file, 1, "s", "scalars", 0, &one);
	put_tensor_value(&file, 2, "s", NULL, 0, &one);
	put_tensor_value(&file, 3, "s", "images", 0, &one);
	put_tensor_value(&file, 1, "h", "histograms", 0, &one);
	put_tensor_value(&file, 2, "h", "scalars", 0, &one);
	put_tensor_value(&file, 1, "c", NULL, 1, &one);
	put_tensor_value(&file, 1, "t", NULL, 2, &one);
	/* More tags than are kept. */
	put_tensor_value(&file, 1, "late", "scalars", 0, &one);
	put_simple(&file, 1, 2, "late", 3);
	check_file(&file, "s is scalars(); s 1=1; s 2=1; s is images(); s 3=1; h is histograms(); "
			  "h is scalars(); c 1=1; late is scalars(); late 2=3; ");
}

static void test_hparams(void **state)
{
	NEW_BUF(file);
	NEW_BUF(value);

	put_string(&value, 1, "_hparams_/session_start_info");
	put_metadata(&value, "hparams", "content", 0);
	put_value(&file, 1e9, 0, &value);
	check_file(&file, "_hparams_/session_start_info is hparams(content); ");
}

static void put_session(struct buf *out, uint64_t status, uint64_t step)
{
	NEW_BUF(log);
	NEW_BUF(event);

	put_number(&log, 1, status);
	put_double(&event, 1, 1e9);
	put_buf(&event, 7, &log);
	put_number(&event, 2, step);
	put_record(out, event.data, event.len);
}

static void test_restart(void **state)
{
	NEW_BUF(file);

	put_simple(&file, 1, 10, "a", 1);
	put_session(&file, 1, 5);
	put_session(&file, 2, 6);
	put_simple(&file, 1, 5, "a", 2);
	check_file(&file, "a 10=1; restart 5; a 5=2; ");
}

static void test_tags(void **state)
{
	static const char *const bad[] = {"", "\xff\xfe", "a\xc3"};
	char longest[TFEVENT_TAG_MAX + 2];
	NEW_BUF(file);
	NEW_BUF(value);

	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		put_simple(&file, 1, 1, bad[i], 1);
	put_data(&value, 1, "a\0b", 3);
	put_float(&value, 2, 1);
	put_value(&file, 1, 1, &value);
	memset(longest, 'x', sizeof(longest));
	longest[TFEVENT_TAG_MAX + 1] = '\0';
	put_simple(&file, 1, 1, longest, 1);
	longest[TFEVENT_TAG_MAX] = '\0';
	put_simple(&file, 1, 1, longest, 1);
	AUTO_FREE char *wanted = mem_printf("%s 1=1; ", longest);
	check_file(&file, wanted);
}

/*
 * Files
 */

static void test_growing(void **state)
{
	AUTO(seen_done) struct seen seen;
	NEW_BUF(file);

	seen_init(&seen);
	put_simple(&file, 1, 1, "a", 1);
	size_t first = file.len;
	put_simple(&file, 1, 2, "a", 2);
	/* Torn within the second record. */
	feed(&seen, &file, first + 20);
	assert_int_equal(seen.state, TFRECORD_OK);
	assert_string_equal(seen.text.data, "a 1=1; ");
	assert_int_equal(tfevents_next(seen.reader), first + 20);
	feed(&seen, &file, file.len);
	assert_string_equal(seen.text.data, "a 1=1; a 2=2; ");
	assert_int_equal(tfevents_next(seen.reader), file.len);
}

/* A block that is not filled yet, at any place of a record: nothing of it is lost. */
static void test_unfilled(void **state)
{
	NEW_BUF(file);

	put_simple(&file, 1, 1, "a", 1);
	size_t first = file.len;
	put_simple(&file, 1, 2, "a", 2);
	put_simple(&file, 1, 3, "a", 3);
	for (size_t hole = first; hole < file.len; hole++) {
		AUTO(seen_done) struct seen seen;
		AUTO_FREE char *old = mem_dup(file.data, file.len);
		struct buf view = {.data = old, .len = file.len};

		/* Parts of the sums may look like damage until the bytes are there. */
		memset(old + hole, 0, file.len - hole);
		seen_init(&seen);
		feed(&seen, &view, file.len);
		feed(&seen, &view, file.len);
		feed(&seen, &file, file.len);
		feed(&seen, &file, file.len);
		if (hole < file.len - 3 && (hole - first < 9 || hole - first > 11))
			assert_true(strstr(seen.text.data, "a 3=3; ") != NULL);
		assert_true(strncmp(seen.text.data, "a 1=1; ", 7) == 0);
	}
	AUTO(seen_done) struct seen seen;
	char zeros[100] = {0};
	seen_init(&seen);
	assert_int_equal(tfevents_feed(seen.reader, zeros, sizeof(zeros)), TFRECORD_UNFILLED);
	assert_int_equal(tfevents_next(seen.reader), 0);
}

static void test_damaged_data(void **state)
{
	AUTO(seen_done) struct seen seen;
	struct tfevents_counts counts;
	NEW_BUF(file);

	put_simple(&file, 1, 1, "a", 1);
	size_t first = file.len;
	put_simple(&file, 1, 2, "a", 2);
	put_simple(&file, 1, 3, "a", 3);
	file.data[first + 14] ^= 1;
	seen_init(&seen);
	feed(&seen, &file, file.len);
	assert_string_equal(seen.text.data, "a 1=1; a 3=3; ");
	tfevents_get_counts(seen.reader, &counts);
	assert_int_equal(counts.records, 2);
	assert_int_equal(counts.skipped, 1);
	/* In pieces it is read once more before it is given up. */
	AUTO(seen_done) struct seen pieces;
	seen_init(&pieces);
	feed(&pieces, &file, first + 15);
	feed(&pieces, &file, file.len);
	assert_int_equal(pieces.state, TFRECORD_UNFILLED);
	assert_int_equal(tfevents_next(pieces.reader), first);
	feed(&pieces, &file, file.len);
	assert_string_equal(pieces.text.data, "a 1=1; a 3=3; ");
}

static void test_damaged_length(void **state)
{
	AUTO(seen_done) struct seen seen;
	NEW_BUF(file);

	put_simple(&file, 1, 1, "a", 1);
	size_t first = file.len;
	put_simple(&file, 1, 2, "a", 2);
	file.data[first] ^= 1;
	seen_init(&seen);
	for (int i = 0; i < 3; i++) {
		feed(&seen, &file, file.len);
		assert_int_equal(seen.state, TFRECORD_BAD);
		assert_int_equal(tfevents_next(seen.reader), first);
		assert_string_equal(seen.text.data, "a 1=1; ");
	}
	/* A length that no file has, with a right sum. */
	uint8_t header[12];
	memset(header, 0xff, 8);
	put_le32(header + 8, crc32c_masked(header, 8));
	AUTO(seen_done) struct seen huge;
	seen_init(&huge);
	assert_int_equal(tfevents_feed(huge.reader, header, 12), TFRECORD_BAD);
}

static void test_large_record(void **state)
{
	struct tfevents_counts counts;
	AUTO(seen_done) struct seen seen;
	AUTO_FREE char *data = mem_alloc(RECORD_MAX + 1, 1);
	NEW_BUF(file);

	put_simple(&file, 1, 1, "a", 1);
	put_record(&file, data, RECORD_MAX + 1);
	put_simple(&file, 1, 2, "a", 2);
	check_file(&file, "a 1=1; a 2=2; ");
	seen_init(&seen);
	feed(&seen, &file, file.len);
	tfevents_get_counts(seen.reader, &counts);
	assert_int_equal(counts.skipped, 1);
	/* One of the largest size is read: zeros are no event. */
	buf_reset(&file);
	put_record(&file, data, RECORD_MAX);
	put_simple(&file, 1, 2, "a", 2);
	check_file(&file, "a 2=2; ");
}

static void test_malformed(void **state)
{
	static const char *const events[] = {
		"\x00",     /* field 0 */
		"\x09\x01", /* a double cut off */
		"\x2a\x7f", /* a summary longer than the event */
		"\x2b",     /* a group */
		"\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", /* a varint without an end */
		"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x01",
	};
	struct tfevents_counts counts;

	for (size_t i = 0; i < ARRAY_LEN(events); i++) {
		AUTO(seen_done) struct seen seen;
		NEW_BUF(file);

		put_record(&file, events[i], i == 0 ? 1 : strlen(events[i]));
		put_simple(&file, 1, 2, "a", 2);
		check_file(&file, "a 2=2; ");
		seen_init(&seen);
		feed(&seen, &file, file.len);
		tfevents_get_counts(seen.reader, &counts);
		assert_int_equal(counts.malformed, 1);
	}
}

static void test_empty(void **state)
{
	AUTO(seen_done) struct seen seen;
	seen_init(&seen);
	assert_int_equal(tfevents_feed(seen.reader, "", 0), TFRECORD_OK);
	assert_int_equal(tfevents_next(seen.reader), 0);
	NEW_BUF(file);
	put_record(&file, "", 0);
	check_file(&file, "");
	tfevents_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_crc32c),
		cmocka_unit_test(test_simple),
		cmocka_unit_test(test_several_values),
		cmocka_unit_test(test_tensor_forms),
		cmocka_unit_test(test_no_scalars),
		cmocka_unit_test(test_shapes),
		cmocka_unit_test(test_metadata),
		cmocka_unit_test(test_hparams),
		cmocka_unit_test(test_restart),
		cmocka_unit_test(test_tags),
		cmocka_unit_test(test_growing),
		cmocka_unit_test(test_unfilled),
		cmocka_unit_test(test_damaged_data),
		cmocka_unit_test(test_damaged_length),
		cmocka_unit_test(test_large_record),
		cmocka_unit_test(test_malformed),
		cmocka_unit_test(test_empty),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
