/* SPDX-License-Identifier: Apache-2.0 */
#include "app/transfer/fetch_params.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "core/target/fetch_sink.h"

enum { PARAMS_MAX = 8 << 20 };

#define NAME "params.json"

/* A copy of the text that was written last, by which the file is known again. */
static char *fetch_params_copy(const char *dir)
{
	return mem_printf("%s/%s/%s", dir, FETCH_OWN, NAME);
}

void fetch_params_clear(const char *dir)
{
	AUTO_FREE char *path = fs_join(dir, NAME), *copy = fetch_params_copy(dir);
	AUTO_BUF struct buf here = {0}, written = {0};

	if (fs_read_regular(copy, PARAMS_MAX, &written, NULL, NULL, NULL) < 0 ||
		fs_read_regular(path, PARAMS_MAX, &here, NULL, NULL, NULL) < 0)
		return;
	if (here.len == written.len && memcmp(here.data, written.data, here.len) == 0)
		unlink(path);
	unlink(copy);
}

int fetch_params_write(const char *dir, const struct run *run, struct err *err)
{
	AUTO_FREE char *path = fs_join(dir, NAME), *copy = fetch_params_copy(dir);
	AUTO_FREE char *own = fs_join(dir, FETCH_OWN);
	const struct json *params = json_get(run->doc, "params");
	AUTO_BUF struct buf text = buf_with(PARAMS_MAX);
	struct stat st;

	if (lstat(path, &st) == 0)
		return 0;
	if (params)
		json_print(params, &text);
	buf_adds(&text, params ? "\n" : "{}\n");
	int r = buf_check(&text, "the parameters", err);
	if (r == 0)
		r = fs_mkdirs(own, 0755, err);
	/* The copy goes first: a file without one would stay for ever. */
	if (r == 0)
		r = fs_replace(copy, text.data, text.len, 0644, FS_SYNC_NONE, err);
	return r < 0 ? r : fs_replace(path, text.data, text.len, 0644, FS_SYNC_NONE, err);
}
