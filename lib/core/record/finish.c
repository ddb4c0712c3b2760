/* SPDX-License-Identifier: Apache-2.0 */
#include "core/record/finish.h"

#include <stdlib.h>

#include "base/data/json.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"

enum { FINISH_MAX = 256 << 10 };

static char *finish_path(const struct dirs *dirs, const struct run *run)
{
	AUTO_FREE char *dir = dirs_run(dirs, run_id(run));

	return fs_join(dir, RUN_FINISH);
}

static void finish_copy(const struct json *from, struct json *to, const char *key)
{
	const struct json *value = json_get(from, key);

	json_set(to, key, value ? json_clone(value) : json_null());
}

int finish_write(const struct dirs *dirs, const struct run *run, struct err *err)
{
	AUTO_FREE char *path = finish_path(dirs, run);
	AUTO_JSON struct json *json = json_object();
	AUTO_BUF struct buf text = buf_with(FINISH_MAX);

	json_set_str(json, "schema", "dlrun/finish/v1");
	finish_copy(json_get(run->doc, "snapshot"), json, "ref");
	finish_copy(json_get(run->doc, "snapshot"), json, "record");
	finish_copy(json_get(run->doc, "snapshot"), json, "record_why");
	finish_copy(run->doc, json, "phases_ms");
	finish_copy(run->doc, json, "warnings");
	finish_copy(json_get(run->doc, "image"), json, "layers_pushed");
	finish_copy(json_get(run->doc, "image"), json, "bytes_pushed");
	json_print(json, &text);
	int r = buf_check(&text, path, err);
	return r < 0 ? r : fs_replace(path, text.data, text.len, 0600, FS_SYNC_NONE, err);
}

static bool is_merged(const struct run *run)
{
	return json_get_int(json_get(run->doc, "phases_ms"), "total", -1) >= 0;
}

bool finish_merge(const struct dirs *dirs, struct run *run)
{
	static const char *const pushed[] = {"layers_pushed", "bytes_pushed"};
	AUTO_FREE char *path = NULL;
	AUTO_JSON struct json *json = NULL;
	AUTO_BUF struct buf text = {0};
	struct json *snapshot;

	if (is_merged(run))
		return false;
	path = finish_path(dirs, run);
	if (fs_read(path, FINISH_MAX, &text, NULL, NULL) < 0 ||
		json_parse(text.data, text.len, FINISH_MAX, path, &json, NULL) < 0)
		return false;
	snapshot = json_sub(run->doc, "snapshot");
	finish_copy(json, snapshot, "ref");
	finish_copy(json, snapshot, "record");
	finish_copy(json, snapshot, "record_why");
	finish_copy(json, run->doc, "phases_ms");
	finish_copy(json, run->doc, "warnings");
	for (size_t i = 0; i < ARRAY_LEN(pushed); i++)
		if (json_get(json, pushed[i]))
			finish_copy(json, json_sub(run->doc, "image"), pushed[i]);
	return true;
}
