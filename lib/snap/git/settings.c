/* SPDX-License-Identifier: Apache-2.0 */
#include "snap/git/settings.h"

#include <stdlib.h>
#include <string.h>

#include "base/os/fs.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"

/* "ignore_case 0" or "ignore_case 1", and where there is one "excludes_file PATH": lines. */
#define IGNORE_CASE   "ignore_case "
#define EXCLUDES_FILE "excludes_file "
enum { FILE_MAX = 8192 };

void settings_done(struct settings *settings)
{
	free(settings->excludes_file);
	*settings = (struct settings){0};
}

bool settings_equal(const struct settings *a, const struct settings *b)
{
	return a->ignore_case == b->ignore_case && str_eq(a->excludes_file, b->excludes_file);
}

char *settings_path(const char *statcache_path)
{
	const char *slash = strrchr(statcache_path, '/');

	return mem_printf(
		"%.*s/settings.v1", slash ? (int)(slash - statcache_path) : 0, statcache_path);
}

/* The rest of a line that begins so, which is ended there; *at goes behind it. */
static char *take_line(char **at, const char *name)
{
	char *end = strchr(*at, '\n'), *value = *at + strlen(name);

	if (!end || !str_starts(*at, name))
		return NULL;
	*end = '\0';
	*at = end + 1;
	return value;
}

bool settings_load(const char *path, struct settings *ret)
{
	AUTO_BUF struct buf text = {0};
	char *at, *value;

	*ret = (struct settings){0};
	if (fs_read(path, FILE_MAX, &text, NULL, NULL) < 0 || strlen(text.data) != text.len)
		return false;
	at = text.data;
	value = take_line(&at, IGNORE_CASE);
	if (!value || (strcmp(value, "0") != 0 && strcmp(value, "1") != 0))
		return false;
	ret->ignore_case = *value == '1';
	value = take_line(&at, EXCLUDES_FILE);
	if (value && *value)
		ret->excludes_file = mem_strdup(value);
	if (!*at && (!value || *value))
		return true;
	settings_done(ret);
	return false;
}

int settings_save(const char *path, const struct settings *settings, struct err *err)
{
	AUTO_FREE char *dir = mem_strndup(path, (size_t)(strrchr(path, '/') - path));
	AUTO_BUF struct buf text = {0};

	if (settings->excludes_file && strchr(settings->excludes_file, '\n'))
		return err_set(err, E_DATA, "a path with a line break is not kept");
	buf_init(&text, FILE_MAX);
	buf_addf(&text, IGNORE_CASE "%d\n", settings->ignore_case);
	if (settings->excludes_file)
		buf_addf(&text, EXCLUDES_FILE "%s\n", settings->excludes_file);
	int r = buf_check(&text, "settings of the repository", err);
	if (r == 0)
		r = fs_mkdirs(dir, 0700, err);
	return r < 0 ? r : fs_replace(path, text.data, text.len, 0600, FS_SYNC_NONE, err);
}
