/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/util/auto.h"
#include "base/util/err.h"

static void test_set(void **state)
{
	AUTO_ERR struct err err = {0};

	assert_false(err_is_set(&err));
	assert_false(err_is_set(NULL));
	assert_int_equal(err_set(&err, E_IMAGE_REF, "bad %s %d", "thing", 7), -ERR_USAGE);
	assert_true(err_is_set(&err));
	assert_int_equal(err.id, E_IMAGE_REF);
	assert_int_equal(err.code, ERR_USAGE);
	assert_string_equal(err.message, "bad thing 7");
	assert_int_equal(err_evidence(&err, "line %d", 1), -ERR_USAGE);
	/* A second error replaces all of the first, even when it is made of it. */
	assert_int_equal(err_set(&err, E_IO, "again: %s", err.message), -ERR_IO);
	assert_string_equal(err.message, "again: bad thing 7");
	assert_int_equal(err.n_evidence, 0);
	assert_null(err.hint);
}

static void test_set_errno(void **state)
{
	AUTO_ERR struct err err = {0};

	assert_int_equal(err_set_errno(&err, E_IO_READ, ENOENT, "a%%b %s", "x"), -ERR_IO);
	assert_string_equal(err.message, "a%b x: No such file or directory");
	assert_int_equal(err_set_errno(&err, E_IO_READ, ENOENT, "%s", err.message), -ERR_IO);
	assert_string_equal(
		err.message, "a%b x: No such file or directory: No such file or directory");
}

static void test_prefix(void **state)
{
	AUTO_ERR struct err err = {0};

	err_set(&err, E_IO, "cause");
	assert_int_equal(err_prefix(&err, "reading %s", "x"), -ERR_IO);
	assert_int_equal(err_prefix(&err, "starting"), -ERR_IO);
	assert_string_equal(err.message, "starting: reading x: cause");
}

static void test_evidence_is_bounded(void **state)
{
	AUTO_ERR struct err err = {0};

	err_set(&err, E_IO, "cause");
	for (int i = 0; i < 10; i++)
		assert_int_equal(err_evidence(&err, "%d", i), -ERR_IO);
	assert_int_equal(err.n_evidence, ERR_EVIDENCE_MAX);
	assert_string_equal(err.evidence[0], "0");
	assert_string_equal(err.evidence[3], "3");
}

static void test_innermost_hint_stays(void **state)
{
	AUTO_ERR struct err err = {0};

	err_set(&err, E_IO, "cause");
	assert_int_equal(err_hint(&err, "dlrun %s", "gc"), -ERR_IO);
	assert_int_equal(err_hint(&err, "other"), -ERR_IO);
	assert_string_equal(err.hint, "dlrun gc");
}

static void test_without_a_place(void **state)
{
	struct err empty = {0};

	assert_int_equal(err_set(NULL, E_RUN_NOT_FOUND, "x"), -ERR_NOTFOUND);
	assert_int_equal(err_set_errno(NULL, E_IO, ENOENT, "x"), -ERR_IO);
	assert_int_equal(err_prefix(NULL, "x"), -ERR_BUG);
	assert_int_equal(err_evidence(NULL, "x"), -ERR_BUG);
	assert_int_equal(err_hint(NULL, "x"), -ERR_BUG);
	assert_int_equal(err_prefix(&empty, "x"), -ERR_BUG);
	assert_int_equal(err_evidence(&empty, "x"), -ERR_BUG);
	assert_int_equal(err_hint(&empty, "x"), -ERR_BUG);
	assert_null(empty.message);
	assert_null(empty.hint);
	assert_int_equal(empty.n_evidence, 0);
	err_clear(NULL);
	err_done(NULL);
	err_done(&empty);
}

static void test_move(void **state)
{
	AUTO_ERR struct err to = {0};
	AUTO_ERR struct err from = {0};

	err_set(&to, E_IO, "old");
	err_hint(&to, "old hint");
	err_set(&from, E_TARGET, "new");
	err_evidence(&from, "seen");
	assert_int_equal(err_move(&to, &from), -ERR_USAGE);
	assert_string_equal(to.message, "new");
	assert_string_equal(to.evidence[0], "seen");
	assert_null(to.hint);
	assert_false(err_is_set(&from));
	assert_null(from.message);
	assert_int_equal(err_move(&to, &to), -ERR_USAGE);
	assert_string_equal(to.message, "new");
	assert_int_equal(err_move(NULL, &to), -ERR_USAGE);
	assert_false(err_is_set(&to));
	err_clear(&to);
}

/* The table is a contract: man page, explain and scripts read it. */
static void test_table(void **state)
{
	for (int id = E_NONE + 1; id < E_COUNT; id++) {
		const struct err_info *info = err_info((enum err_id)id);
		size_t title_len = strlen(info->title), text_len = strlen(info->text);
		assert_int_equal(err_find(info->name), id);
		for (const char *p = info->name; *p; p++)
			assert_true(islower((unsigned char)*p) || *p == '.' || *p == '_');
		assert_true(title_len > 0 && info->title[title_len - 1] != '.');
		assert_null(strchr(info->title, '\n'));
		assert_true(text_len > 0 && info->text[text_len - 1] == '.');
		assert_true(info->code > ERR_NONE && info->code <= ERR_BUG);
	}
	assert_int_equal(err_find("no.such"), E_NONE);
	assert_int_equal(err_find(""), E_NONE);
}

static void test_exit_status(void **state)
{
	static const struct {
		enum err_code code;
		int status;
	} rows[] = {
		{ERR_NONE, 0},
		{ERR_USAGE, 2},
		{ERR_CONFIG, 2},
		{ERR_AUTH, 4},
		{ERR_NOTFOUND, 5},
		{ERR_CONFLICT, 1},
		{ERR_NET, 3},
		{ERR_REMOTE, 1},
		{ERR_LIMIT, 1},
		{ERR_IO, 1},
		{ERR_CANCELED, 130},
		{ERR_BUG, 1},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		assert_int_equal(err_exit_status(rows[i].code), rows[i].status);
}

static void test_bug_aborts(void **state)
{
	int fds[2];
	char text[256] = "";
	int status;

	assert_int_equal(pipe(fds), 0);
	pid_t pid = fork();
	if (pid == 0) {
		signal(SIGABRT, SIG_DFL);
		dup2(fds[1], STDERR_FILENO);
		BUG_ON(pid == 0);
		_exit(0);
	}
	close(fds[1]);
	assert_true(read(fds[0], text, sizeof(text) - 1) > 0);
	close(fds[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	assert_non_null(strstr(text, "dlrun: bug: "));
	assert_non_null(strstr(text, "pid == 0"));
}

static void test_copy(void **state)
{
	AUTO_ERR struct err from = {0}, to = {0};

	assert_int_equal(err_copy(&to, &from), err_move(&to, NULL));
	err_set(&from, E_IO, "reading");
	err_evidence(&from, "one");
	err_evidence(&from, "two");
	err_hint(&from, "do it");
	assert_int_equal(err_copy(&to, &from), -ERR_IO);
	assert_int_equal(err_copy(NULL, &from), -ERR_IO);
	assert_string_equal(to.message, "reading");
	assert_int_equal(to.n_evidence, 2);
	assert_string_equal(to.evidence[1], "two");
	assert_ptr_not_equal(to.hint, from.hint);
	assert_string_equal(to.hint, "do it");
	assert_true(err_is_set(&from));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_copy),
		cmocka_unit_test(test_set),
		cmocka_unit_test(test_set_errno),
		cmocka_unit_test(test_prefix),
		cmocka_unit_test(test_evidence_is_bounded),
		cmocka_unit_test(test_innermost_hint_stays),
		cmocka_unit_test(test_without_a_place),
		cmocka_unit_test(test_move),
		cmocka_unit_test(test_table),
		cmocka_unit_test(test_exit_status),
		cmocka_unit_test(test_bug_aborts),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
