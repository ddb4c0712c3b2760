/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>

#include "base/util/auto.h"
#include "base/util/random.h"
#include "base/util/str.h"
#include "node/wire.h"
#include "node/node_impl.h"
#include "tests/unit/tmpfix.h"

/*
 * Marks
 */

static void piece_is(
	struct node_marks *marks, uint64_t offset, size_t len, size_t wanted, int64_t wanted_ms)
{
	int64_t time_ms;

	assert_int_equal(node_marks_piece(marks, offset, len, &time_ms), wanted);
	assert_int_equal(time_ms, wanted_ms);
}

static void test_marks(void **state)
{
	struct node_marks marks = {0};

	piece_is(&marks, 0, 10, 10, 0);
	node_marks_add(&marks, 1000, 0);
	node_marks_add(&marks, 2000, 5);
	node_marks_add(&marks, 3000, 5);
	node_marks_add(&marks, 4000, 9);
	piece_is(&marks, 0, 3, 3, 2000);
	piece_is(&marks, 3, 10, 2, 2000);
	piece_is(&marks, 5, 10, 4, 4000);
	piece_is(&marks, 9, 1, 1, 0);
	/* Numbers that go down. */
	node_marks_add(&marks, 500, 3);
	piece_is(&marks, 9, 4, 4, 0);
	node_marks_add(&marks, 600, 12);
	piece_is(&marks, 9, 4, 3, 4000);
	node_marks_done(&marks);
}

static void test_marks_have_a_limit(void **state)
{
	struct node_marks marks = {0};
	int64_t last_ms = 0;

	for (uint64_t i = 1; i <= 5 * NODE_MARKS_MAX; i++)
		node_marks_add(&marks, (int64_t)i, i);
	assert_true(marks.v.n <= NODE_MARKS_MAX);
	for (uint64_t at = 0; at < 5 * NODE_MARKS_MAX;) {
		int64_t time_ms;
		size_t n = node_marks_piece(&marks, at, 1000, &time_ms);

		/* Never earlier than it was. */
		assert_true(n > 0 && time_ms >= (int64_t)(at + n) && time_ms >= last_ms);
		last_ms = time_ms;
		at += n;
	}
	/* As it is read along, room comes back. */
	for (uint64_t i = 5 * NODE_MARKS_MAX; i < 20 * NODE_MARKS_MAX; i++) {
		node_marks_add(&marks, (int64_t)i + 1, i + 1);
		piece_is(&marks, i, 1, 1, (int64_t)i + 1);
	}
	assert_true(marks.v.cap <= 2 * NODE_MARKS_MAX);
	node_marks_done(&marks);
}

/*
 * Transfers
 */

static int n_open;

static int open_layer(void *ctx, struct err *err)
{
	AUTO_FREE char *path = mem_printf("%s/%s", tmp, (const char *)ctx);
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	n_open++;
	return fd < 0 ? err_set_errno(err, E_IO, errno, "cannot open %s", path) : fd;
}

static struct node_layer layers[] = {
	{"aa", "gzip", 1000, open_layer, "a"},
	{"bb", "zstd", 0, open_layer, "b"},
	{"cc", "none", 7, open_layer, "c"},
};

static struct node_submit wanted = {
	.run = "a-1", .attempt = 1, .job = "job", .record = "", .layers = layers, .n_layers = 3};

static void put(const char *name, const char *data, size_t len)
{
	AUTO_FREE char *path = mem_printf("%s/%s", tmp, name);

	assert_int_equal(fs_replace(path, data, len, 0600, FS_SYNC_NONE, NULL), 0);
}

static void read_all(struct node_transfer *transfer, size_t piece, struct buf *out)
{
	char data[64];
	ssize_t n;

	while ((n = node_transfer_read(transfer, data, piece, NULL)) > 0)
		buf_add(out, data, (size_t)n);
	assert_int_equal(n, 0);
}

static void test_transfer_from_anywhere(void **state)
{
	struct node_transfer transfer = {0};
	AUTO_BUF struct buf whole;
	char data[1000];

	random_bytes(data, sizeof(data));
	put("a", data, sizeof(data));
	put("c", "1234567", 7);
	buf_init(&whole, 4096);
	buf_adds(&whole, "job");
	buf_add(&whole, data, sizeof(data));
	buf_adds(&whole, "1234567");
	node_transfer_init(&transfer, &wanted, NULL);
	assert_int_equal(transfer.total, whole.len);
	assert_int_equal(transfer.n_layers, 3);
	for (uint64_t from = 0; from <= whole.len; from++) {
		AUTO_BUF struct buf got;

		buf_init(&got, 4096);
		node_transfer_seek(&transfer, from);
		read_all(&transfer, 1 + random_below(64), &got);
		assert_int_equal(got.len, whole.len - from);
		assert_memory_equal(got.data, whole.data + from, got.len);
		assert_int_equal(transfer.fd, -1);
	}
	node_transfer_done(&transfer);
}

static void test_transfer_lines(void **state)
{
	struct node_transfer transfer = {0};
	AUTO_STRV struct strv kept = {0};
	AUTO_BUF struct buf lines;
	char first[NODE_KEY_SIZE];

	node_transfer_init(&transfer, &wanted, NULL);
	memcpy(first, transfer.name, sizeof(first));
	assert_true(node_name_is_good(first));
	strv_add(&kept, "aa");
	strv_add(&kept, "bb");
	node_transfer_init(&transfer, &wanted, &kept);
	/* Other bytes, another name. */
	assert_string_not_equal(first, transfer.name);
	buf_init(&lines, 4096);
	node_transfer_lines(&transfer, 4, &lines);
	AUTO_FREE char *text = mem_printf("transfer %s 10 4\npart job 3\npart record 0\n"
					  "part layer 7 cc\n",
		transfer.name);
	assert_string_equal(lines.data, text);
	node_transfer_init(&transfer, &wanted, NULL);
	assert_string_equal(first, transfer.name);
	wanted.secrets = "x";
	node_transfer_init(&transfer, &wanted, NULL);
	assert_string_not_equal(first, transfer.name);
	wanted.secrets = NULL;
	node_transfer_done(&transfer);
	node_transfer_done(&transfer);
}

static void test_transfer_of_bad_layers(void **state)
{
	struct node_transfer transfer = {0};
	AUTO_ERR struct err err = {0};
	char data[64];

	put("a", "short", 5);
	node_transfer_init(&transfer, &wanted, NULL);
	node_transfer_seek(&transfer, 3);
	assert_int_equal(node_transfer_read(&transfer, data, sizeof(data), &err), 5);
	assert_int_equal(node_transfer_read(&transfer, data, sizeof(data), &err), -ERR_IO);
	assert_int_equal(err.id, E_IO_CHANGED);
	node_transfer_seek(&transfer, 1003);
	assert_int_equal(node_transfer_read(&transfer, data, sizeof(data), &err), -ERR_IO);
	assert_int_equal(err.id, E_IO);
	node_transfer_done(&transfer);
}

static void test_spare_key(void **state)
{
	struct node_submit other = wanted;
	char a[NODE_KEY_SIZE], b[NODE_KEY_SIZE];

	node_spare_key(&wanted, a);
	assert_string_equal(a, "");
	other.n_spare = 2;
	node_spare_key(&other, a);
	assert_true(node_name_is_good(a));
	other.run = "b-1";
	other.job = "another";
	node_spare_key(&other, b);
	assert_string_equal(a, b);
	other.strip = 3;
	node_spare_key(&other, b);
	assert_string_not_equal(a, b);
	other.strip = wanted.strip;
	other.n_spare = 1;
	node_spare_key(&other, b);
	assert_string_not_equal(a, b);
}

/*
 * Names of attempts
 */

static void test_names(void **state)
{
	static const char *const bad[] = {"", "/", "a", "a/", "a/0", "a/-1", "/1", "A/1", "a/1/2",
		"a/99999999999", "a b/1", "../1",
		"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa/1"};
	char run[NODE_NAME_SIZE];
	int attempt;

	assert_true(node_attempt_name("resnet-3k2f9/12", run, &attempt));
	assert_string_equal(run, "resnet-3k2f9");
	assert_int_equal(attempt, 12);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_false(node_attempt_name(bad[i], run, &attempt));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_tmp, remove_tmp)
	const struct CMUnitTest tests[] = {
		TEST(test_marks),
		TEST(test_marks_have_a_limit),
		TEST(test_transfer_from_anywhere),
		TEST(test_transfer_lines),
		TEST(test_transfer_of_bad_layers),
		TEST(test_spare_key),
		TEST(test_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
