/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/trace.h"

#include "tmpfix.h"

static char *path;

static int setup(void **state)
{
	int r = make_tmp(state);

	path = mem_printf("%s/trace", tmp);
	return r;
}

static int teardown(void **state)
{
	trace_stop();
	free(TAKE(path));
	return remove_tmp(state);
}

static void start(const char *names)
{
	AUTO_FREE char *setting = mem_printf("%s:%s", names, path);
	AUTO_ERR struct err err = {0};

	assert_int_equal(trace_start(setting, &err), 0);
}

/* The last line, without the time at its beginning. */
static char *last_line(void)
{
	AUTO_BUF struct buf text = {0};
	AUTO_ERR struct err err = {0};

	assert_int_equal(fs_read(path, 1 << 20, &text, NULL, &err), 0);
	assert_true(text.len > 0 && text.data[text.len - 1] == '\n');
	buf_truncate(&text, text.len - 1);
	const char *line = strrchr(text.data, '\n');
	line = line ? line + 1 : text.data;
	line += strspn(line, " ");
	assert_true(str_is_digit(*line));
	return mem_strdup(line + strspn(line, "0123456789") + 1);
}

static void assert_traced(const char *message, const char *want)
{
	AUTO_FREE char *expected = mem_printf("http  %s", want);

	trace_note(TRACE_HTTP, "%s", message);
	AUTO_FREE char *line = last_line();
	assert_string_equal(line, expected);
}

static void test_off_evaluates_nothing(void **state)
{
	int n = 0;

	assert_int_equal(trace_start(NULL, NULL), 0);
	assert_int_equal(trace_start("", NULL), 0);
	trace_note(TRACE_HTTP, "%d", ++n);
	assert_int_equal(n, 0);
}

static void test_only_chosen_categories_are_written(void **state)
{
	start("kube,store");
	trace_note(TRACE_KUBE, "one");
	trace_note(TRACE_HTTP, "two");
	AUTO_FREE char *line = last_line();
	assert_string_equal(line, "kube  one");
	trace_note(TRACE_STORE, "three");
	AUTO_FREE char *next = last_line();
	assert_string_equal(next, "store three");
	start("all");
	trace_note(TRACE_LOOP, "four");
	AUTO_FREE char *all = last_line();
	assert_string_equal(all, "loop  four");
}

static void test_unknown_category_names_those_there_are(void **state)
{
	AUTO_ERR struct err err = {0};

	assert_int_equal(trace_start("http,ku\033be", &err), -ERR_USAGE);
	assert_string_equal(err.message,
		"DLRUN_TRACE: unknown category 'ku\\x1bbe'; known: http, kube, ssh, oci, "
		"loop, store, all");
	assert_false(trace_is_on(TRACE_HTTP));
	assert_int_equal(trace_start("http,", &err), -ERR_USAGE);
}

static void test_file_is_the_owners_and_appended_to(void **state)
{
	struct stat st;
	AUTO_BUF struct buf text = {0};

	start("http");
	trace_note(TRACE_HTTP, "one");
	trace_stop();
	trace_note(TRACE_HTTP, "nothing");
	start("http");
	trace_note(TRACE_HTTP, "two");
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
	assert_int_equal(fs_read(path, 1 << 20, &text, NULL, NULL), 0);
	assert_non_null(strstr(text.data, "http  one\n"));
	assert_non_null(strstr(text.data, "http  two\n"));
	assert_null(strstr(text.data, "nothing"));
}

static void test_relative_file_stays_when_the_directory_changes(void **state)
{
	AUTO_FREE char *before = getcwd(NULL, 0);

	assert_int_equal(chdir(tmp), 0);
	assert_int_equal(trace_start("http:trace", NULL), 0);
	assert_int_equal(chdir(before), 0);
	assert_traced("one", "one");
}

static void test_file_that_cannot_be_opened_is_said(void **state)
{
	AUTO_FREE char *setting = mem_printf("http:%s/none/trace", tmp);
	AUTO_ERR struct err err = {0};

	assert_int_equal(trace_start(setting, &err), -ERR_IO);
	assert_non_null(strstr(err.message, "DLRUN_TRACE: cannot write to "));
	assert_false(trace_is_on(TRACE_HTTP));
}

static void test_secrets_are_replaced(void **state)
{
	start("http");
	assert_traced("GET https://me:pass@reg.io/v2/?token=abc&x=1: status 200",
		"GET https://…@reg.io/v2/?…: status 200");
	assert_traced("to https://reg.io?a=b, and http://[::1]:80/a@b", "to https://reg.io?…, and "
									"http://[::1]:80/a@b");
	assert_traced("https://a@b@c/", "https://…@c/");
	assert_traced("Authorization: Basic bWU6cGFzcw==", "Authorization: …");
	assert_traced("it sent authorization:Bearer abc def", "it sent authorization: …");
	assert_traced("Set-Cookie: a=b; c", "Set-Cookie: …");
	assert_traced("with Bearer abc.def, once", "with Bearer …, once");
	assert_traced("password=abc token=def rest", "password=… token=… rest");
	assert_traced("password=\"ab c\" token='de f', rest token=\"g", "password=… token=…, rest "
									"token=…");
	assert_traced("(password=a,b'c)d) Bearer a,b", "(password=…) Bearer …");
	assert_traced("to https://me:a,b'c)d@reg.io/x, 'https://reg.io/?a=b,c)d': no",
		"to https://…@reg.io/x, 'https://reg.io/?…': no");
	assert_traced("https://a.io,https://me:pass@b.io/", "https://a.io,https://…@b.io/");
	assert_traced("basic", "basic");
}

static void test_controls_are_escaped_and_lines_bounded(void **state)
{
	char large[3 * TRACE_LINE_MAX];

	start("http");
	assert_traced("a\nb\t\033[31mred\r\x9b\033]0;x\a", "a b red^M\\x9b^[]0;x^G");
	for (size_t i = 0; i + 3 < sizeof(large); i += 3)
		memcpy(large + i, "€", 4);
	trace_note(TRACE_HTTP, "%s", large);
	AUTO_FREE char *line = last_line();
	assert_true(strlen(line) <= TRACE_LINE_MAX);
	assert_true(strlen(line) > TRACE_LINE_MAX - 20);
	assert_true(str_ends(line, "€…"));
	assert_true(str_is_utf8(line, strlen(line)));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_off_evaluates_nothing, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_only_chosen_categories_are_written, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_unknown_category_names_those_there_are, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_file_is_the_owners_and_appended_to, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_relative_file_stays_when_the_directory_changes, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_file_that_cannot_be_opened_is_said, setup, teardown),
		cmocka_unit_test_setup_teardown(test_secrets_are_replaced, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_controls_are_escaped_and_lines_bounded, setup, teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
