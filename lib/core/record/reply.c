/* SPDX-License-Identifier: Apache-2.0 */
#include "core/record/reply.h"

#include <string.h>

#include "base/os/fs.h"
#include "base/util/buf.h"

static struct json *reply_error_json(const struct err *err)
{
	struct json *json = json_object(), *evidence = json_array();

	json_set_str(json, "id", err_info(err->id)->name);
	json_set_str(json, "message", err->message ? err->message : "");
	for (size_t i = 0; i < err->n_evidence; i++)
		json_add_str(evidence, err->evidence[i]);
	json_set(json, "evidence", evidence);
	json_set_str(json, "hint", err->hint);
	return json;
}

void reply_write(int fd, int r, const struct err *err, struct json *result)
{
	AUTO_JSON struct json *json = result ? result : json_object();
	AUTO_BUF struct buf line = buf_with(REPLY_MAX);

	json_set_bool(json, "ok", r >= 0);
	if (r < 0 && err_is_set(err))
		json_set(json, "error", reply_error_json(err));
	json_print(json, &line);
	buf_addc(&line, '\n');
	fs_write_fd(fd, "a reply", line.data, line.len, NULL);
}

static int error_parse(const struct json *error, const char *what, struct err *err)
{
	const char *message = json_get_str(error, "message"), *hint = json_get_str(error, "hint");
	const char *name = json_get_str(error, "id");
	enum err_id id = name ? err_find(name) : E_NONE;
	const struct json *line = json_first(json_get(error, "evidence"));

	if (id == E_NONE || !message)
		return err_set(err, E_RUN_START, "%s failed without saying why", what);
	err_set(err, id, "%s", message);
	for (; line; line = json_next(line))
		if (json_str(line))
			err_evidence(err, "%s", json_str(line));
	if (hint)
		err_hint(err, "%s", hint);
	return -(int)err_info(id)->code;
}

int reply_parse(
	const char *line, size_t len, const char *what, struct json **ret_result, struct err *err)
{
	AUTO_JSON struct json *json = NULL;

	if (!memchr(line, '\n', len) ||
		json_parse(line, len, REPLY_MAX, "a reply", &json, NULL) < 0)
		return err_set(err, E_RUN_START, "%s ended before it had answered", what);
	if (!json_get_bool(json, "ok", false))
		return error_parse(json_get(json, "error"), what, err);
	if (ret_result)
		*ret_result = TAKE(json);
	return 0;
}
