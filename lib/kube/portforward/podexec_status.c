/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/portforward/podexec_status.h"

#include <string.h>

#include "base/data/json.h"
#include "base/util/mem.h"
#include "base/util/str.h"

enum { STATUS_MAX = 64 << 10, CODE_MAX = 255, MESSAGE_MAX = 400 };

static const char *exit_code(const struct json *status)
{
	const struct json *causes = json_get(json_get(status, "details"), "causes");

	for (const struct json *cause = json_first(causes); cause; cause = json_next(cause))
		if (str_eq(json_get_str(cause, "reason"), "ExitCode"))
			return json_get_str(cause, "message");
	return NULL;
}

/* Messages of runtimes when exec(2) fails; E_KUBE_EXEC: anything else. */
static enum err_id exec_failure(const char *message)
{
	static const struct {
		const char *text;
		enum err_id id;
	} texts[] = {
		{"executable file not found", E_EXEC_NOT_FOUND},
		{"no such file or directory", E_EXEC_NOT_FOUND},
		{"permission denied", E_EXEC_NOT_EXECUTABLE},
		{"not a directory", E_EXEC_NOT_EXECUTABLE},
		{"exec format error", E_EXEC_NOT_EXECUTABLE},
	};

	for (size_t i = 0; strstr(message, "exec") && i < ARRAY_LEN(texts); i++)
		if (strstr(message, texts[i].text))
			return texts[i].id;
	return E_KUBE_EXEC;
}

static int fail(const char *message, const char *program, struct err *err)
{
	AUTO_FREE char *bounded = mem_strndup(message, MESSAGE_MAX);
	AUTO_FREE char *shown = str_escaped(bounded);
	AUTO_FREE char *name = str_shown(program);

	enum err_id id = exec_failure(message);
	err_set(err, id,
		id == E_KUBE_EXEC ? "%s was not run in the pod" : "%s cannot be started in the pod",
		name);
	return err_evidence(err, "%s", shown);
}

int podexec_status(
	const char *text, size_t len, const char *program, int *ret_code, struct err *err)
{
	AUTO_JSON struct json *status = NULL;
	int64_t code;

	if (json_parse(text, len, STATUS_MAX, "the status of a command", &status, NULL) < 0) {
		AUTO_FREE char *bounded = mem_strndup(text, len < MESSAGE_MAX ? len : MESSAGE_MAX);
		return fail(bounded, program, err);
	}
	if (str_eq(json_get_str(status, "status"), "Success")) {
		*ret_code = 0;
		return 0;
	}
	const char *number = exit_code(status);
	if (str_eq(json_get_str(status, "reason"), "NonZeroExitCode") && number &&
		str_to_int(number, 0, CODE_MAX, "exit code", &code, NULL) == 0) {
		*ret_code = (int)code;
		return 0;
	}
	const char *message = json_get_str(status, "message");
	return fail(message ? message : "no reason is given", program, err);
}
