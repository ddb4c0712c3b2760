/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Libraries that are loaded when they are needed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/loop/library.h"
#include "base/loop/par.h"
#include "base/util/auto.h"
#include "base/util/vec.h"

static struct maths {
	double (*cos)(double);
	double (*sin)(double);
} maths;

static const struct library_symbol symbols[] = {
	{offsetof(struct maths, cos), "cos"}, {offsetof(struct maths, sin), "sin"}};
static const struct library_symbol missing[] = {
	{offsetof(struct maths, cos), "cos"}, {offsetof(struct maths, sin), "no_such_function"}};

#ifdef __APPLE__
#define LIBM "libm.dylib"
#else
#define LIBM "libm.so.6"
#endif

static int n_started;

static void start(void)
{
	n_started++;
}

static struct library library_of(
	const char *file, const struct library_symbol *which, enum library_state *state)
{
	return (struct library){
		.file = file,
		.what = "libm, which counts,",
		.package = "libc6",
		.symbols = which,
		.n_symbols = ARRAY_LEN(symbols),
		.table = &maths,
		.table_size = sizeof(maths),
		.start = start,
		.state = state,
	};
}

static void expect_failure(const char *file, const struct library_symbol *which)
{
	enum library_state state = LIBRARY_ABSENT;
	const struct library library = library_of(file, which, &state);
	AUTO_ERR struct err err = {0};

	maths = (struct maths){0};
	assert_true(library_load(&library, &err) < 0);
	assert_true(err.id == E_IO);
	assert_string_equal(err.message, "libm, which counts, cannot be loaded");
	assert_non_null(strstr(err.hint, "libc6"));
	assert_null(maths.cos);
	assert_int_equal(n_started, 0);
	assert_true(state == LIBRARY_ABSENT);
}

static void test_what_is_not_there(void **unused)
{
	expect_failure("libm-that-is-not-there.so", symbols);
	expect_failure(LIBM, missing);
}

static enum library_state shared;

static void load(void *ctx, size_t i, unsigned worker)
{
	const struct library library = library_of(LIBM, symbols, &shared);
	assert_int_equal(library_load(&library, NULL), 0);
	assert_true(maths.cos(0) > 0.99 && maths.sin(0) < 0.01);
}

static void test_from_many_threads(void **unused)
{
	maths = (struct maths){0};
	par_for(64, load, NULL);
	assert_true(shared == LIBRARY_LOADED);
	assert_int_equal(n_started, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_is_not_there),
		cmocka_unit_test(test_from_many_threads),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
