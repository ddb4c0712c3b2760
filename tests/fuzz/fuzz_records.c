/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What dlrun wrote for itself and reads again: records, specifications, replies, marks. Whatever
 * stands there, an answer comes, and what is accepted survives another round.
 */
#include <stdint.h>
#include <string.h>

#include "base/data/json.h"
#include "base/util/err.h"
#include "base/util/str.h"
#include "core/attempt/marks.h"
#include "core/record/reply.h"
#include "core/record/run.h"
#include "core/record/spec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_run(const struct json *json)
{
	AUTO_RUN struct run *run = NULL;
	struct run_exit exit = {.known = true, .code = 3, .origin = "job", .reason = "Error"};
	struct run_exit got;

	if (run_from_json(json_clone(json), NULL, &run, NULL) < 0)
		return;
	BUG_ON(!run_id_is_valid(run_id(run)) || !run_name(run));
	int status = run_exit_status(run);
	BUG_ON(status < 0 || status > 255);
	BUG_ON(run_state(run) == RUN_FAILED && status == 0);
	run_get_exit(run, &got);
	BUG_ON(!got.origin || !got.reason || got.code < 0 || got.code > 255);
	int attempts = run_attempts(run);
	run_add_attempt(run, "handle");
	BUG_ON(run_attempts(run) < 1 || !str_eq(run_handle(run), "handle"));
	BUG_ON(attempts > 0 && run_attempts(run) != attempts + 1);
	run_set_exit(run, &exit);
	run_set_attempt_exit(run, &exit, 1000, 2000);
	BUG_ON(run_ended_ms(run) != 2000);
	run_get_exit(run, &got);
	BUG_ON(!got.known || got.code != 3);
}

static void check_same(const struct strv *a, const struct strv *b)
{
	BUG_ON(a->n != b->n);
	for (size_t i = 0; i < a->n; i++)
		BUG_ON(strcmp(a->v[i], b->v[i]) != 0);
}

static void check_spec(const struct json *json)
{
	AUTO_SPEC struct spec spec = {0}, again = {0};

	if (spec_from_json(json, &spec, NULL) < 0)
		return;
	AUTO_JSON struct json *made = spec_to_json(&spec);
	BUG_ON(spec_from_json(made, &again, NULL) < 0);
	check_same(&spec.command, &again.command);
	check_same(&spec.env, &again.env);
	check_same(&spec.secrets, &again.secrets);
	BUG_ON(!str_eq(spec.cwd, again.cwd) || spec.shell != again.shell);
	BUG_ON(spec.timeout_ms != again.timeout_ms || spec.grace_ms != again.grace_ms);
}

static void check_reply(const char *data, size_t size)
{
	AUTO_JSON struct json *result = NULL;
	AUTO_ERR struct err err = {0};
	int r = reply_parse(data, size, "it", &result, &err);

	BUG_ON(r > 0 || (r == 0) != (result != NULL) || (r < 0) != err_is_set(&err));
}

static void check_marks(const char *data, size_t size)
{
	for (size_t at = 0; at < size;) {
		struct mark mark, again;
		char line[MARK_SIZE];
		bool ok, ok_again;
		size_t n = mark_parse(data + at, size - at, &mark, &ok);
		BUG_ON(n > size - at || (n == 0 && ok));
		if (n == 0)
			return;
		if (ok) {
			size_t len = mark_format(&mark, line);
			BUG_ON(mark_parse(line, len, &again, &ok_again) != len || !ok_again);
			BUG_ON(mark.time_ms != again.time_ms || mark.offset != again.offset);
			BUG_ON(mark.time_ms < 0 || mark.offset < 0);
		}
		at += n;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *text = (const char *)data;
	AUTO_JSON struct json *json = NULL;

	check_reply(text, size);
	check_marks(text, size);
	if (json_parse(text, size, 1 << 20, "input", &json, NULL) < 0)
		return 0;
	check_run(json);
	check_spec(json);
	return 0;
}
