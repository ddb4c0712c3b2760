/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "kube/portforward/podexec.h"

static void test_codes(void **state)
{
	static const struct {
		const char *text;
		int code;
	} rows[] = {
		{"{\"metadata\":{},\"status\":\"Success\"}", 0},
		{"{\"metadata\":{},\"status\":\"Failure\",\"message\":\"command terminated with "
		 "non-zero exit code: exit status 42\",\"reason\":\"NonZeroExitCode\","
		 "\"details\":{\"causes\":[{\"reason\":\"ExitCode\",\"message\":\"42\"}]}}",
			42},
		{"{\"status\":\"Failure\",\"reason\":\"NonZeroExitCode\",\"details\":{\"causes\":["
		 "{\"reason\":\"Other\",\"message\":\"1\"},"
		 "{\"reason\":\"ExitCode\",\"message\":\"137\"}]}}",
			137},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		int code = -1;

		assert_int_equal(
			podexec_status(rows[i].text, strlen(rows[i].text), "sh", &code, NULL), 0);
		assert_int_equal(code, rows[i].code);
	}
}

static void test_errors(void **state)
{
	static const struct {
		const char *text;
		enum err_id id;
		const char *message, *evidence;
	} rows[] = {
		{"{\"status\":\"Failure\",\"reason\":\"InternalError\",\"message\":\"exec: "
		 "\\\"nope\\\": executable file not found in $PATH\"}",
			E_EXEC_NOT_FOUND, "nope cannot be started in the pod",
			"executable file not found"},
		{"{\"status\":\"Failure\",\"message\":\"exec /bin/nope: permission denied\"}",
			E_EXEC_NOT_EXECUTABLE, "nope cannot be started in the pod", "denied"},
		{"{\"status\":\"Failure\",\"message\":\"container is \\u001b[31mgone\"}",
			E_KUBE_EXEC, "nope was not run in the pod", "container is \\x1b[31mgone"},
		{"{\"status\":\"Failure\"}", E_KUBE_EXEC, "not run", "no reason"},
		{"{}", E_KUBE_EXEC, "not run", "no reason"},
		{"plain text\n", E_KUBE_EXEC, "not run", "plain text"},
		{"", E_KUBE_EXEC, "not run", ""},
		{"{\"status\":\"Failure\",\"reason\":\"NonZeroExitCode\",\"message\":\"m\","
		 "\"details\":{\"causes\":[{\"reason\":\"ExitCode\",\"message\":\"4000\"}]}}",
			E_KUBE_EXEC, "not run", "m"},
		{"{\"status\":\"Failure\",\"reason\":\"NonZeroExitCode\",\"message\":\"m\","
		 "\"details\":{\"causes\":[{\"reason\":\"ExitCode\"}]}}",
			E_KUBE_EXEC, "not run", "m"},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_ERR struct err err = {0};
		int code = -1;

		assert_true(podexec_status(
				    rows[i].text, strlen(rows[i].text), "nope", &code, &err) < 0);
		assert_int_equal(err.id, rows[i].id);
		assert_non_null(strstr(err.message, rows[i].message));
		assert_non_null(strstr(err.evidence[0], rows[i].evidence));
		assert_int_equal(code, -1);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_codes),
		cmocka_unit_test(test_errors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
