/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>

#include "base/os/fs.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "events/scalars_only.h"
#include "events/series.h"
#include "events/tfevents.h"
#include "tests/unit/tfeventsfix.h"

enum { LARGE_MIN = 16 << 10, RECORD_MAX = 1 << 20, IMAGE = 300000 };

#define NEW_BUF(name)                                                                              \
	AUTO_BUF struct buf name;                                                                  \
	buf_init(&name, FIX_MAX)

static struct scalars_only *walk;
static struct buf file, kept, wanted;
static struct scalars_place place;

static int make_walk(void **state)
{
	const struct scalars_only_spec spec = {LARGE_MIN, RECORD_MAX};

	walk = scalars_only_new(&spec);
	buf_init(&file, FIX_MAX);
	buf_init(&kept, FIX_MAX);
	buf_init(&wanted, FIX_MAX);
	place = (struct scalars_place){0};
	return 0;
}

static int free_walk(void **state)
{
	scalars_only_free(walk);
	buf_done(&file);
	buf_done(&kept);
	buf_done(&wanted);
	return 0;
}

/* The range of the file from the place to end. */
static enum scalars_only_state walk_to(size_t end)
{
	uint64_t from = scalars_only_from(&place);
	enum scalars_only_state state;

	assert_true(from <= end && end <= file.len);
	scalars_only_begin(walk, &place);
	state = scalars_only_feed(walk, file.data + from, end - (size_t)from, &kept);
	if (state != SCALARS_ONLY_OTHER)
		scalars_only_place(walk, &place);
	return state;
}

static void is_kept(void)
{
	assert_int_equal(kept.len, wanted.len);
	assert_memory_equal(kept.data, wanted.data, wanted.len);
}

static void put_version(struct buf *out)
{
	NEW_BUF(event);

	put_double(&event, 1, 1e9);
	put_string(&event, 3, "brain.Event:2");
	put_record(out, event.data, event.len);
}

static void put_metadata(struct buf *value, const char *plugin, unsigned data_class)
{
	NEW_BUF(name);
	NEW_BUF(metadata);

	if (plugin) {
		put_string(&name, 1, plugin);
		put_buf(&metadata, 1, &name);
	}
	if (data_class)
		put_number(&metadata, 4, data_class);
	put_buf(value, 9, &metadata);
}

/* A value with len bytes in that field. */
static void put_content(struct buf *value, const char *tag, unsigned field, size_t len)
{
	AUTO_FREE char *content = mem_alloc(len + 1, 1);

	put_string(value, 1, tag);
	put_data(value, field, content, len);
}

static void put_image(struct buf *out, int64_t step, size_t len)
{
	NEW_BUF(value);

	put_content(&value, "image", 4, len);
	put_value(out, 1e9, step, &value);
}

/* The float tensor of one element. */
static void put_tensor(struct buf *value, const char *tag, float number)
{
	NEW_BUF(tensor);

	put_string(value, 1, tag);
	put_number(&tensor, 1, 1);
	put_data(&tensor, 5, &number, sizeof(number));
	put_buf(value, 8, &tensor);
}

static void put_both(int64_t step, float number)
{
	put_simple(&file, 1e9, step, "loss", number);
	put_simple(&wanted, 1e9, step, "loss", number);
}

static void put_summary(struct buf *out, const struct buf *first, const struct buf *second)
{
	NEW_BUF(event);
	NEW_BUF(summary);

	put_double(&event, 1, 1e9);
	put_number(&event, 2, 5);
	put_buf(&summary, 1, first);
	if (second)
		put_buf(&summary, 1, second);
	put_buf(&event, 5, &summary);
	put_record(out, event.data, event.len);
}

/*
 * What is kept
 */

static void test_empty(void **state)
{
	assert_int_equal(walk_to(0), SCALARS_ONLY_OK);
	assert_int_equal(place.at, 0);
	assert_int_equal(kept.len, 0);
	assert_int_equal(scalars_only_needs(walk), 0);
}

static void test_kinds(void **state)
{
	static const struct {
		const char *plugin;
		unsigned data_class;
		bool is_kept;
	} cases[] = {{"scalars", 0, true}, {NULL, 1, true}, {"hparams", 0, true},
		{"custom_scalars", 0, true}, {"text", 2, false}, {"images", 3, false},
		{"histograms", 2, false}, {"pr_curves", 0, false}, {NULL, 2, true}};

	put_version(&file);
	put_version(&wanted);
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		NEW_BUF(value);

		put_content(&value, "tag", 8, 0);
		put_metadata(&value, cases[i].plugin, cases[i].data_class);
		put_value(&file, 1e9, 1, &value);
		if (cases[i].is_kept)
			put_value(&wanted, 1e9, 1, &value);
	}
	for (unsigned field = 3; field < 9; field++) {
		NEW_BUF(value);

		put_content(&value, "tag", field, 100);
		put_value(&file, 1e9, 1, &value);
	}
	NEW_BUF(later);
	put_tensor(&later, "tag", 0.5F);
	put_value(&file, 1e9, 2, &later);
	put_value(&wanted, 1e9, 2, &later);
	put_both(3, 1);
	assert_int_equal(walk_to(file.len), SCALARS_ONLY_OK);
	assert_int_equal(place.at, file.len);
	is_kept();
}

static void test_graph_and_session(void **state)
{
	NEW_BUF(graph);
	NEW_BUF(session);
	NEW_BUF(log);

	put_double(&graph, 1, 1e9);
	put_string(&graph, 4, "nodes");
	put_record(&file, graph.data, graph.len);
	put_number(&log, 1, 1);
	put_number(&session, 2, 7);
	put_buf(&session, 7, &log);
	put_record(&file, session.data, session.len);
	put_record(&wanted, session.data, session.len);
	put_record(&file, "no event", 8);
	assert_int_equal(walk_to(file.len), SCALARS_ONLY_OK);
	is_kept();
}

/*
 * Large records
 */

static void test_passed_over(void **state)
{
	struct scalars_only_passed passed;

	put_both(1, 1);
	size_t begin = file.len;
	put_image(&file, 1, IMAGE);
	size_t end = file.len;
	put_both(2, 2);
	/* Its beginning is enough, and it need not be there as a whole. */
	assert_int_equal(walk_to(begin + 1100), SCALARS_ONLY_OK);
	assert_int_equal(place.at, end);
	assert_false(place.has_sum);
	scalars_only_passed(walk, &passed);
	assert_int_equal(passed.records, 1);
	assert_int_equal(passed.bytes, end - begin);
	assert_int_equal(scalars_only_from(&place), end - 4);
	/* The sum before the place is learned, and holds from then on. */
	assert_int_equal(walk_to(end), SCALARS_ONLY_OK);
	assert_true(place.has_sum);
	file.data[end - 1] ^= 1;
	assert_int_equal(walk_to(file.len), SCALARS_ONLY_OTHER);
	file.data[end - 1] ^= 1;
	assert_int_equal(walk_to(file.len), SCALARS_ONLY_OK);
	assert_int_equal(place.at, file.len);
	is_kept();
}

static void test_passed_over_in_the_input(void **state)
{
	for (int step = 0; step < 5; step++) {
		put_both(step, 1);
		put_image(&file, step, IMAGE);
	}
	assert_int_equal(walk_to(file.len), SCALARS_ONLY_OK);
	assert_int_equal(place.at, file.len);
	assert_true(place.has_sum);
	is_kept();
}

/* Only what can be nothing else is passed over by its beginning. */
static void test_kinds_of_large_ones(void **state)
{
	static const struct {
		unsigned field;
		size_t len;
		bool has_metadata, is_passed;
	} cases[] = {{4, LARGE_MIN, false, true}, {5, LARGE_MIN, false, true},
		{6, LARGE_MIN, false, true}, {8, LARGE_MIN, true, true},
		{9, LARGE_MIN, false, false}, {7, LARGE_MIN, false, false},
		{4, LARGE_MIN / 2, false, false}, {12, LARGE_MIN, false, false}};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		NEW_BUF(value);

		buf_reset(&file);
		put_content(&value, "tag", cases[i].field, cases[i].len);
		if (cases[i].has_metadata)
			put_metadata(&value, "images", 3);
		put_summary(&file, &value, NULL);
		place = (struct scalars_place){0};
		assert_int_equal(walk_to(3000), SCALARS_ONLY_OK);
		assert_int_equal(place.at, cases[i].is_passed ? file.len : 0);
		assert_int_equal(scalars_only_needs(walk), cases[i].is_passed ? 0 : file.len);
	}
}

/* An event may hold an image and scalars, in any order. */
static void test_mixed(void **state)
{
	for (int order = 0; order < 2; order++) {
		NEW_BUF(image);
		NEW_BUF(scalar);

		buf_reset(&file);
		buf_reset(&kept);
		buf_reset(&wanted);
		place = (struct scalars_place){0};
		put_content(&image, "image", 4, IMAGE);
		put_string(&scalar, 1, "loss");
		put_float(&scalar, 2, 1);
		put_summary(&file, order ? &image : &scalar, order ? &scalar : &image);
		buf_add(&wanted, file.data, file.len);
		assert_int_equal(walk_to(50000), SCALARS_ONLY_OK);
		assert_int_equal(place.at, 0);
		assert_int_equal(scalars_only_needs(walk), file.len);
		assert_int_equal(walk_to(file.len), SCALARS_ONLY_OK);
		is_kept();
	}
}

/* What no reader here takes is passed over whatever it is. */
static void test_too_large(void **state)
{
	AUTO_FREE char *data = mem_alloc(RECORD_MAX + 1, 1);

	put_record(&file, data, RECORD_MAX + 1);
	put_both(1, 1);
	assert_int_equal(walk_to(12), SCALARS_ONLY_OK);
	assert_int_equal(place.at, RECORD_MAX + 17);
	assert_int_equal(walk_to(file.len), SCALARS_ONLY_OK);
	is_kept();
}

/*
 * Damage
 */

static void test_wrong_sums(void **state)
{
	put_both(1, 1);
	size_t first = file.len;
	put_simple(&file, 1e9, 2, "loss", 2);
	file.data[file.len - 6] ^= 1;
	size_t second = file.len;
	put_both(3, 3);
	assert_int_equal(walk_to(file.len), SCALARS_ONLY_OK);
	is_kept();
	/* A sum that is not there yet, and then is. */
	char sum[4];
	file.data[second - 5] ^= 1;
	memcpy(sum, file.data + second - 4, 4);
	memset(file.data + second - 4, 0, 4);
	place = (struct scalars_place){0};
	buf_reset(&kept);
	assert_int_equal(walk_to(file.len), SCALARS_ONLY_UNFILLED);
	assert_int_equal(place.at, first);
	memcpy(file.data + second - 4, sum, 4);
	assert_int_equal(walk_to(file.len), SCALARS_ONLY_OK);
	assert_int_equal(place.at, file.len);
}

static void test_no_header(void **state)
{
	static const char zeros[40];

	put_both(1, 1);
	size_t good = file.len;
	buf_add(&file, zeros, sizeof(zeros));
	assert_int_equal(walk_to(file.len), SCALARS_ONLY_UNFILLED);
	assert_int_equal(place.at, good);
	buf_truncate(&file, good);
	buf_adds(&file, "this is no header");
	assert_int_equal(walk_to(file.len), SCALARS_ONLY_BAD);
	assert_int_equal(place.at, good);
	is_kept();
	/* Behind what was passed over it is perhaps another file. */
	buf_truncate(&file, good);
	put_image(&file, 1, IMAGE);
	assert_int_equal(walk_to(good + 2000), SCALARS_ONLY_OK);
	size_t at = file.len;
	buf_adds(&file, "this is no header");
	assert_int_equal(walk_to(file.len), SCALARS_ONLY_OTHER);
	assert_int_equal(place.at, at);
}

/*
 * Real files, in pieces and looks of every kind
 */

static void on_scalar(void *ctx, const struct tfevents_scalar *scalar)
{
	buf_addf(ctx, "%s %lld=%g %.17g; ", scalar->tag, (long long)scalar->step, scalar->value,
		scalar->wall_time_s);
}

static void on_restart(void *ctx, int64_t step)
{
	buf_addf(ctx, "restart %lld; ", (long long)step);
}

static void on_plugin(
	void *ctx, const char *tag, const char *plugin, const void *content, size_t len)
{
	if (str_eq(plugin, "hparams"))
		buf_addf(ctx, "%s(%.*s); ", tag, (int)len, (const char *)content);
}

static void read_events(const struct buf *events, struct buf *out)
{
	static const struct tfevents_ops ops = {on_scalar, on_restart, on_plugin};
	const struct tfevents_spec spec = {&ops, out, SERIES_RECORD_MAX, 1000};
	AUTO(tfevents_free_auto) struct tfevents *reader = tfevents_new(&spec);

	buf_init(out, FIX_MAX);
	assert_int_equal(tfevents_feed(reader, events->data, events->len), TFRECORD_OK);
}

static int n_files;

static int check_golden(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	AUTO_BUF struct buf all = {0};
	NEW_BUF(some);

	if (type != FTW_F || !strstr(path + ftw->base, "tfevents"))
		return 0;
	n_files++;
	buf_done(&file);
	assert_int_equal(fs_read(path, FIX_MAX, &file, NULL, NULL), 0);
	for (size_t step = 1; step < 5000; step = step * 3 + 1) {
		AUTO_BUF struct buf notified = {0};

		place = (struct scalars_place){0};
		buf_reset(&kept);
		for (size_t end = 0; end < file.len;) {
			end = file.len - end < step ? file.len : end + step;
			if (scalars_only_from(&place) <= end)
				assert_int_equal(walk_to(end), SCALARS_ONLY_OK);
		}
		assert_int_equal(place.at, file.len);
		read_events(&kept, &notified);
		if (step == 1) {
			read_events(&file, &all);
			buf_add(&some, kept.data, kept.len);
		}
		assert_string_equal(notified.data ? notified.data : "", all.data ? all.data : "");
		assert_int_equal(kept.len, some.len);
		assert_memory_equal(kept.data, some.data, some.len);
	}
	return 0;
}

static void test_golden(void **state)
{
	AUTO_FREE char *dir = mem_printf("%s/events", getenv("UNIT_DATA"));

	n_files = 0;
	assert_int_equal(nftw(dir, check_golden, 16, FTW_PHYS), 0);
	assert_true(n_files >= 20);
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, make_walk, free_walk)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(test_empty),
		T(test_kinds),
		T(test_graph_and_session),
		T(test_passed_over),
		T(test_passed_over_in_the_input),
		T(test_kinds_of_large_ones),
		T(test_mixed),
		T(test_too_large),
		T(test_wrong_sums),
		T(test_no_header),
		T(test_golden),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
