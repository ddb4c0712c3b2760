/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/data/json.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "events/series.h"
#include "tests/unit/tfeventsfix.h"

#define EVENTS "events.out.tfevents.1700000000.host.1.0"

static char *tmp;
static struct series *series;

static int make_tmp(void **state)
{
	const char *base = getenv("TMPDIR");

	tmp = mem_printf("%s/dlrun-series-XXXXXX", base ? base : "/tmp");
	if (!mkdtemp(tmp))
		return -1;
	series = series_new(tmp);
	return 0;
}

static int remove_tmp(void **state)
{
	series_free(series);
	int r = fs_remove_tree(AT_FDCWD, tmp, NULL);
	free(tmp);
	return r;
}

static void add(const char *path, const void *data, size_t len, int flags)
{
	AUTO_FREE char *full = fs_join(tmp, path);
	AUTO_FREE char *dir = mem_strdup(full);

	*strrchr(dir, '/') = '\0';
	assert_int_equal(fs_mkdirs(dir, 0700, NULL), 0);
	AUTO_FD int fd = open(full, O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0600);
	assert_true(fd >= 0);
	assert_int_equal(fs_write_fd(fd, path, data, len, NULL), 0);
}

static void add_value(const char *path, int64_t step, const char *tag, float value)
{
	AUTO_BUF struct buf data;

	buf_init(&data, FIX_MAX);
	put_simple(&data, 1000 + (double)step, step, tag, value);
	add(path, data.data, data.len, O_APPEND);
}

/* SessionLog with that status. */
static void put_session(struct buf *out, int64_t step, unsigned status)
{
	AUTO_BUF struct buf event, session;

	buf_init(&event, FIX_MAX);
	buf_init(&session, FIX_MAX);
	put_number(&session, 1, status);
	put_double(&event, 1, 1000);
	put_number(&event, 2, (uint64_t)step);
	put_buf(&event, 7, &session);
	put_record(out, event.data, event.len);
}

static void add_start(const char *path, int64_t step)
{
	AUTO_BUF struct buf data;

	buf_init(&data, FIX_MAX);
	put_session(&data, step, 1);
	add(path, data.data, data.len, O_APPEND);
}

static bool observe(void)
{
	bool is_new = false;

	assert_int_equal(series_poll(series, &is_new, NULL), 0);
	return is_new;
}

/* "dir:tag step=value …|seams; " for each curve. */
static void check(const char *wanted)
{
	AUTO_BUF struct buf text;

	buf_init(&text, 1 << 20);
	observe();
	for (size_t i = 0; i < series_count(series); i++) {
		struct series_curve curve;

		series_get(series, i, &curve);
		buf_addf(&text, "%s:%s", curve.dir, curve.tag);
		for (size_t k = 0; k < curve.n; k++)
			buf_addf(&text, " %lld=%g", (long long)curve.points[k].step,
				curve.points[k].value);
		for (size_t k = 0; k < curve.n_seams; k++)
			buf_addf(&text, "|%lld", (long long)curve.seams[k]);
		buf_adds(&text, "; ");
	}
	assert_string_equal(text.data, wanted);
}

static void test_grows(void **state)
{
	check("");
	assert_true(isnan(series_newest_s(series)));
	add_value("a/" EVENTS, 1, "loss", 3);
	assert_true(observe());
	assert_false(observe());
	check("a:loss 1=3; ");
	assert_true(series_newest_s(series) == 1001);
	add_value("a/" EVENTS, 2, "loss", 2);
	add_value("a/" EVENTS, 2, "acc", 0.5f);
	add_value("b/" EVENTS, 5, "acc", 0.25f);
	assert_true(observe());
	check("a:acc 2=0.5; b:acc 5=0.25; a:loss 1=3 2=2; ");
	assert_true(series_newest_s(series) == 1005);
}

/* Wall times, sub-runs. */
static void test_members(void **state)
{
	struct series_curve curve;

	add_value("x/" EVENTS, 1, "loss", 3);
	add_value("x/loss_train/" EVENTS, 7, "loss", 4);
	observe();
	series_get(series, 0, &curve);
	assert_string_equal(curve.dir, "x");
	assert_null(curve.nested);
	assert_true(curve.points[0].wall_time_s == 1001);
	series_get(series, 1, &curve);
	assert_string_equal(curve.dir, "x/loss_train");
	assert_string_equal(curve.nested, "loss_train");
}

static void test_torn_tail(void **state)
{
	AUTO_BUF struct buf data;

	buf_init(&data, FIX_MAX);
	put_simple(&data, 1, 1, "a", 1);
	size_t first = data.len;
	put_simple(&data, 2, 2, "a", 2);
	for (size_t end = first; end < data.len; end++) {
		add(EVENTS, data.data, end, O_TRUNC);
		check(":a 1=1; ");
	}
	add(EVENTS, data.data, data.len, O_TRUNC);
	check(":a 1=1 2=2; ");
}

/* As some file systems show what is not there yet. */
static void test_zero_filled_tail(void **state)
{
	AUTO_FREE char *path = fs_join(tmp, EVENTS);
	AUTO_BUF struct buf data;

	buf_init(&data, FIX_MAX);
	add_value(EVENTS, 1, "a", 1);
	observe();
	put_simple(&data, 2, 2, "a", 2);
	AUTO_FD int fd = open(path, O_RDWR | O_CLOEXEC);
	off_t end = lseek(fd, 0, SEEK_END);
	assert_int_equal(ftruncate(fd, end + 4096), 0);
	check(":a 1=1; ");
	/* The header, then all. */
	assert_int_equal(pwrite(fd, data.data, 12, end), 12);
	check(":a 1=1; ");
	assert_int_equal(pwrite(fd, data.data, data.len, end), (ssize_t)data.len);
	check(":a 1=1 2=2; ");
}

static void test_restart_by_step(void **state)
{
	for (int step = 1; step <= 5; step++)
		add_value(EVENTS ".1", step, "a", (float)step);
	add_value(EVENTS ".1", 5, "b", 5);
	observe();
	add_value(EVENTS ".2", 3, "a", 30);
	add_value(EVENTS ".2", 4, "a", 40);
	check(":a 1=1 2=2 3=30 4=40|3; :b 5=5; ");
	/* Again from further back, and from the very beginning. */
	add_value(EVENTS ".3", 2, "a", 200);
	check(":a 1=1 2=200|2; :b 5=5; ");
	add_value(EVENTS ".3", 10, "a", 210);
	add_value(EVENTS ".4", 8, "a", 8);
	check(":a 1=1 2=200 8=8|2|8; :b 5=5; ");
	add_value(EVENTS ".5", 0, "a", 0);
	check(":a 0=0; :b 5=5; ");
}

/* The last one counts, and nobody started anything. */
static void test_same_step(void **state)
{
	add_value(EVENTS, 1, "a", 1);
	add_value(EVENTS, 1, "a", 2);
	add_value(EVENTS, 2, "a", 3);
	add_value(EVENTS, 2, "a", 4);
	check(":a 1=2 2=4; ");
}

static void test_restart_by_session(void **state)
{
	add_start(EVENTS ".1", 0);
	for (int step = 1; step <= 5; step++) {
		add_value(EVENTS ".1", step, "a", (float)step);
		add_value(EVENTS ".1", step, "b", (float)step);
	}
	add_value("other/" EVENTS, 9, "a", 9);
	check(":a 1=1 2=2 3=3 4=4 5=5; other:a 9=9; :b 1=1 2=2 3=3 4=4 5=5; ");
	/* What it does not write again is void, too. */
	add_start(EVENTS ".2", 3);
	assert_true(observe());
	check(":a 1=1 2=2|3; other:a 9=9; :b 1=1 2=2|3; ");
	add_value(EVENTS ".2", 4, "a", 40);
	check(":a 1=1 2=2 4=40|3; other:a 9=9; :b 1=1 2=2|3; ");
	/* It goes on where it was; twice, before it wrote anything; the first is the later. */
	add_start(EVENTS ".3", 5);
	add_start(EVENTS ".4", 6);
	check(":a 1=1 2=2 4=40|3|5; other:a 9=9; :b 1=1 2=2|5; ");
	add_start(EVENTS ".4", 8);
	add_start(EVENTS ".4", 2);
	add_start(EVENTS ".4", 7);
	check(":a 1=1|2; other:a 9=9; :b 1=1|2; ");
	add_start(EVENTS ".5", -1);
	check(":a; other:a 9=9; :b; ");
}

/* More of them than are kept at a time. */
static void test_many_starts(void **state)
{
	AUTO_BUF struct buf data;

	buf_init(&data, FIX_MAX);
	put_simple(&data, 1, 3000, "a", 1);
	put_simple(&data, 1, 3001, "a", 2);
	put_session(&data, 3001, 1);
	for (int i = 0; i < 2500; i++)
		put_session(&data, 4000 + i, 1);
	put_simple(&data, 1, 9000, "a", 3);
	put_session(&data, 5, 2);
	add(EVENTS, data.data, data.len, 0);
	check(":a 3000=1 9000=3|5999; ");
}

static void test_not_finite(void **state)
{
	AUTO_BUF struct buf data;

	buf_init(&data, FIX_MAX);
	put_simple(&data, 5, 1, "a", NAN);
	put_simple(&data, NAN, 2, "a", INFINITY);
	put_simple(&data, INFINITY, 3, "a", -INFINITY);
	put_simple(&data, 4, INT64_MAX, "a", 1);
	put_simple(&data, 4, INT64_MIN, "b", 2);
	put_simple(&data, 4, -1, "b", 3);
	add(EVENTS, data.data, data.len, 0);
	check(":a 1=nan 2=inf 3=-inf 9223372036854775807=1; "
	      ":b -9223372036854775808=2 -1=3; ");
	assert_true(series_newest_s(series) == 5);
}

/* Of files that are there together the name decides, not the order in the directory. */
static void test_order_of_names(void **state)
{
	for (int i = 9; i >= 1; i--) {
		AUTO_FREE char *path = mem_printf("d/%s.%d", EVENTS, i);
		add_value(path, i, "a", (float)i);
	}
	check("d:a 1=1 2=2 3=3 4=4 5=5 6=6 7=7 8=8 9=9; ");
}

static void test_written_anew(void **state)
{
	AUTO_BUF struct buf data;

	for (int step = 1; step <= 4; step++)
		add_value(EVENTS, step, "a", (float)step);
	observe();
	buf_init(&data, FIX_MAX);
	put_simple(&data, 1, 1, "a", 7);
	add(EVENTS, data.data, data.len, O_TRUNC);
	check(":a 1=7; ");
}

static void test_curves_limit(void **state)
{
	AUTO_ERR struct err err = {0};
	AUTO_BUF struct buf data;
	char tag[32];
	bool is_new;

	buf_init(&data, FIX_MAX);
	for (int i = 0; i <= SERIES_CURVES_MAX; i++) {
		snprintf(tag, sizeof(tag), "t%d", i);
		put_simple(&data, 1, 1, tag, 1);
	}
	add(EVENTS, data.data, data.len, 0);
	assert_int_equal(series_poll(series, &is_new, &err), -ERR_LIMIT);
	assert_int_equal(err.id, E_DATA_LIMIT);
	assert_int_equal(series_count(series), SERIES_CURVES_MAX);
}

static void test_points_limit(void **state)
{
	struct series_curve curve;
	AUTO_ERR struct err err = {0};
	bool is_new;

	for (int step = 1; step <= 6; step++)
		add_value(EVENTS, step, "a", (float)step);
	series_limit(series, 4);
	assert_int_equal(series_poll(series, &is_new, &err), -ERR_LIMIT);
	assert_int_equal(err.id, E_DATA_LIMIT);
	/* The first ones stay. */
	series_get(series, 0, &curve);
	assert_int_equal(curve.n, 4);
	assert_int_equal(curve.points[3].step, 4);
}

/* Event files of any size are read a part at a time. */
static void test_parts(void **state)
{
	enum { BLOB = 3 << 20 };
	AUTO_FREE char *zeros = mem_alloc(BLOB, 1);
	AUTO_BUF struct buf event, data;
	size_t parts = 1;
	bool more;

	buf_init(&event, FIX_MAX);
	buf_init(&data, FIX_MAX);
	put_data(&event, 4, zeros, BLOB); /* a graph */
	put_record(&data, event.data, event.len);
	for (size_t size = 0; size <= SERIES_PART; size += data.len)
		add(EVENTS, data.data, data.len, O_APPEND);
	add_value(EVENTS, 1, "a", 1);
	assert_int_equal(series_poll_part(series, &more, NULL), 0);
	assert_true(more);
	assert_int_equal(series_count(series), 0);
	for (; more; parts++)
		assert_int_equal(series_poll_part(series, &more, NULL), 0);
	assert_int_equal(parts, 2);
	assert_int_equal(series_count(series), 1);
	check(":a 1=1; ");
}

static void test_missing_dir(void **state)
{
	AUTO_FREE char *dir = fs_join(tmp, "later");

	series_free(series);
	series = series_new(dir);
	check("");
	add_value("later/" EVENTS, 3, "acc", 4);
	check(":acc 3=4; ");
	series_free(NULL);
}

/*
 * What TensorBoard makes of the files of real writers (tests/real/make_event_files.py)
 */

static double number_of(const struct json *json)
{
	AUTO_BUF struct buf text;

	buf_init(&text, 100);
	json_print(json, &text);
	return strtod(text.data + (*text.data == '"'), NULL);
}

static bool is_same(double a, double b)
{
	return a == b || (isnan(a) && isnan(b));
}

static void check_points(const struct json *wanted, const struct series_curve *curve)
{
	size_t i = 0;

	assert_int_equal(json_count(wanted), curve->n);
	for (const struct json *point = json_first(wanted); point; point = json_next(point), i++) {
		const struct json *step = json_first(point), *wall = json_next(step);

		assert_int_equal(json_int(step, -1), curve->points[i].step);
		assert_true(is_same(number_of(wall), curve->points[i].wall_time_s));
		assert_true(is_same(number_of(json_next(wall)), curve->points[i].value));
	}
}

static void check_golden(const char *dir, const char *name)
{
	AUTO_FREE char *file = mem_printf("%s/%s.json", dir, name);
	AUTO_FREE char *files = mem_printf("%s/%s", dir, name);
	AUTO_BUF struct buf text = {0};
	struct json *parsed;
	size_t n = 0, found = 0;
	bool is_new;

	assert_int_equal(fs_read(file, FIX_MAX, &text, NULL, NULL), 0);
	assert_int_equal(json_parse(text.data, text.len, FIX_MAX, file, &parsed, NULL), 0);
	AUTO_JSON struct json *json = parsed;
	AUTO(series_free_auto) struct series *own = series_new(files);
	assert_int_equal(series_poll(own, &is_new, NULL), 0);
	for (const struct json *wanted = json_first(json_get(json, "curves")); wanted;
		wanted = json_next(wanted), n++) {
		for (size_t i = 0; i < series_count(own); i++) {
			struct series_curve curve;

			series_get(own, i, &curve);
			if (strcmp(curve.dir, json_get_str(wanted, "dir")) != 0 ||
				strcmp(curve.tag, json_get_str(wanted, "tag")) != 0)
				continue;
			found++;
			check_points(json_get(wanted, "points"), &curve);
		}
	}
	assert_int_equal(found, n);
	assert_int_equal(series_count(own), n);
}

static void test_golden(void **state)
{
	AUTO_FREE char *dir = mem_printf("%s/events", getenv("UNIT_DATA"));
	AUTO_DIR DIR *stream = opendir(dir);
	struct dirent *entry;
	size_t n = 0;

	assert_non_null(stream);
	while ((entry = readdir(stream))) {
		size_t len = strlen(entry->d_name);

		if (len < 6 || strcmp(entry->d_name + len - 5, ".json") != 0)
			continue;
		AUTO_FREE char *name = mem_strndup(entry->d_name, len - 5);
		check_golden(dir, name);
		n++;
	}
	assert_true(n >= 8);
}

int main(void)
{
#define CASE(test) cmocka_unit_test_setup_teardown(test, make_tmp, remove_tmp)
	const struct CMUnitTest tests[] = {
		CASE(test_grows),
		CASE(test_members),
		CASE(test_torn_tail),
		CASE(test_zero_filled_tail),
		CASE(test_restart_by_step),
		CASE(test_same_step),
		CASE(test_restart_by_session),
		CASE(test_many_starts),
		CASE(test_not_finite),
		CASE(test_order_of_names),
		CASE(test_written_anew),
		CASE(test_curves_limit),
		CASE(test_points_limit),
		CASE(test_parts),
		CASE(test_missing_dir),
		CASE(test_golden),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
