/* SPDX-License-Identifier: Apache-2.0 */
#include "core/target/fetch_sink.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "base/data/entry.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/target/fetch_paths.h"

void fetch_sink_free(struct fetch_sink *sink)
{
	if (sink)
		sink->ops->free(sink);
}

bool fetch_path_is_proper(const char *path)
{
	if (strlen(path) > ENTRY_PATH_MAX)
		return false;
	for (const char *at = path;; at++) {
		size_t len = strcspn(at, "/");
		bool dots = (len == 1 && at[0] == '.') || (len == 2 && memcmp(at, "..", 2) == 0);
		if (len == 0 || len > ENTRY_NAME_MAX || dots)
			return false;
		at += len;
		if (!*at)
			return true;
	}
}

bool fetch_sink_is_like(const struct fetch_sink *sink, const char *dir, const char *name)
{
	char path[ENTRY_PATH_MAX + ENTRY_NAME_MAX] = "";

	if (!sink->like)
		return true;
	snprintf(path, sizeof(path), "./%s%s%s", dir, *dir ? "/" : "", name);
	vec_foreach (char *, pattern, sink->like)
		if (fnmatch(*pattern, strchr(*pattern, '/') ? path : name, 0) == 0)
			return true;
	return false;
}

bool fetch_sink_names(const struct fetch_sink *sink, const char *path)
{
	const char *slash = strrchr(path, '/');
	AUTO_FREE char *dir =
		sink->like ? mem_strndup(path, slash ? (size_t)(slash - path) : 0) : NULL;

	if (sink->only && !str_eq(sink->only, path))
		return false;
	if (!fetch_sink_is_like(sink, dir, slash ? slash + 1 : path))
		return false;
	return !sink->paths || fetch_paths_want(sink->paths, path);
}

bool fetch_sink_leads_into(const struct fetch_sink *sink, const char *dir)
{
	size_t len = strlen(dir);

	if (sink->only && (strncmp(sink->only, dir, len) != 0 || sink->only[len] != '/'))
		return false;
	return !sink->paths || fetch_paths_lead_into(sink->paths, dir);
}

bool fetch_sink_is_in(const struct fetch_sink *sink, const struct stat *dir)
{
	return sink->ops->is_in && sink->ops->is_in(sink, dir);
}

int fetch_sink_dir(struct fetch_sink *sink, const char *path, mode_t mode, struct err *err)
{
	return sink->ops->dir ? sink->ops->dir(sink, path, mode, err) : 0;
}

int fetch_sink_link(struct fetch_sink *sink, const struct fetch_item *item, struct err *err)
{
	return sink->ops->link ? sink->ops->link(sink, item, err) : 0;
}

int fetch_sink_wants(struct fetch_sink *sink, const struct fetch_item *item,
	struct fetch_range *ret, struct err *err)
{
	return sink->ops->wants(sink, item, ret, err);
}

int fetch_sink_begin(struct fetch_sink *sink, const struct fetch_item *item,
	const struct fetch_range *range, struct err *err)
{
	return sink->ops->begin(sink, item, range, err);
}

int fetch_sink_write(struct fetch_sink *sink, const void *data, size_t len, struct err *err)
{
	return sink->ops->write(sink, data, len, err);
}

int fetch_sink_end(struct fetch_sink *sink, const struct fetch_item *item, struct err *err)
{
	return sink->ops->end(sink, item, err);
}

void fetch_sink_unread(struct fetch_sink *sink, const char *path, int errnum)
{
	sink->ops->unread(sink, path, errnum);
}
