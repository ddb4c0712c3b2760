/* SPDX-License-Identifier: Apache-2.0 */
#include "core/target/fetch_sink.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/data/entry.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "snap/ignore/wildmatch.h"

enum { QUOTED_MAX = 2 * ENTRY_PATH_MAX };

struct wanted {
	char *text;        /* as it was written */
	char *path;        /* without "./" in front and "/" at the end; empty: all */
	struct wild *wild; /* NULL: nothing in it is special */
	size_t fixed_len;  /* of path: whole directories before the first special byte */
	bool used;
};

struct wanted_list VEC_OF(struct wanted);

struct fetch_paths {
	struct wanted_list list; /* empty: everything */
};

void fetch_paths_free(struct fetch_paths *paths)
{
	if (!paths)
		return;
	vec_foreach (struct wanted, wanted, &paths->list) {
		free(wanted->text);
		free(wanted->path);
		wild_free(wanted->wild);
	}
	vec_done(&paths->list);
	free(paths);
}

static bool leads_up(const char *path)
{
	for (const char *at = path; *at; at += strspn(at, "/")) {
		size_t len = strcspn(at, "/");

		if (len == 2 && memcmp(at, "..", 2) == 0)
			return true;
		at += len;
	}
	return false;
}

/* "./a//b/." is a/b. */
static char *normal_path(const char *text)
{
	char *out = mem_alloc(strlen(text) + 2, 1);
	size_t n = 0;

	for (const char *at = text; *at; at += strspn(at, "/")) {
		size_t len = strcspn(at, "/");

		if (len && !(len == 1 && *at == '.')) {
			memcpy(out + n, at, len);
			n += len;
			out[n++] = '/';
		}
		at += len;
	}
	out[n ? n - 1 : 0] = '\0';
	return out;
}

static void set_pattern(struct wanted *wanted)
{
	size_t at = 0;

	while (wanted->path[at] && !wild_is_special(wanted->path[at]))
		at++;
	wanted->fixed_len = at;
	if (!wanted->path[at])
		return;
	while (wanted->fixed_len && wanted->path[wanted->fixed_len] != '/')
		wanted->fixed_len--;
	wanted->wild = wild_compile(wanted->path, strlen(wanted->path), true, false);
}

static int fetch_sink_add(struct fetch_paths *paths, const char *text, struct err *err)
{
	AUTO_FREE char *shown = str_shown(text);

	if (*text == '/' || leads_up(text)) {
		err_set(err, E_USAGE, "'%s' is not a path below the results of the run", shown);
		return err_hint(err, "name it as in $DLRUN_OUTPUT_DIR: checkpoints/last.pt");
	}
	if (paths->list.n == FETCH_PATHS_MAX || strlen(text) > ENTRY_PATH_MAX)
		return err_set(err, E_DATA_LIMIT,
			"at most %d paths of at most %d bytes can be named", FETCH_PATHS_MAX,
			ENTRY_PATH_MAX);
	struct wanted *wanted = vec_push(&paths->list);
	*wanted = (struct wanted){.text = mem_strdup(text), .path = normal_path(text)};
	set_pattern(wanted);
	return 0;
}

int fetch_paths_new(const struct strv *paths, struct fetch_paths **ret, struct err *err)
{
	AUTO(fetch_paths_free_auto) struct fetch_paths *new = mem_alloc(1, sizeof(*new));
	int r = 0;

	for (size_t i = 0; r == 0 && paths && i < paths->n; i++)
		r = fetch_sink_add(new, paths->v[i], err);
	if (r == 0)
		*ret = TAKE(new);
	return r;
}

/* Whether path, whole at len, is what was named or matched. */
static bool fetch_sink_matches(const struct wanted *wanted, const char *path, size_t len)
{
	if (strlen(wanted->path) == len && memcmp(wanted->path, path, len) == 0)
		return true;
	return wanted->wild && wild_match(wanted->wild, path, len);
}

/* Whether path, or a directory above it, matches. */
static bool wants(const struct wanted *wanted, const char *path)
{
	if (!*wanted->path)
		return true;
	for (size_t len = strcspn(path, "/");; len += 1 + strcspn(path + len + 1, "/")) {
		if (fetch_sink_matches(wanted, path, len))
			return true;
		if (!path[len])
			return false;
	}
}

bool fetch_paths_want(struct fetch_paths *paths, const char *path)
{
	bool any = paths->list.n == 0;

	vec_foreach (struct wanted, wanted, &paths->list) {
		if (!wants(wanted, path))
			continue;
		wanted->used = true;
		any = true;
	}
	return any;
}

static bool leads_into(const struct wanted *wanted, const char *dir)
{
	size_t len = strlen(dir), fixed = wanted->fixed_len;
	size_t common = len < fixed ? len : fixed;
	const char *longer = len < fixed ? wanted->path : dir;

	if (memcmp(wanted->path, dir, common) != 0)
		return false;
	return common == 0 || len == fixed || longer[common] == '/';
}

bool fetch_paths_lead_into(const struct fetch_paths *paths, const char *dir)
{
	vec_foreach (const struct wanted, wanted, &paths->list)
		if (leads_into(wanted, dir))
			return true;
	return paths->list.n == 0;
}

const char *fetch_paths_unused(const struct fetch_paths *paths)
{
	vec_foreach (const struct wanted, wanted, &paths->list)
		if (!wanted->used && *wanted->path)
			return wanted->text;
	return NULL;
}

int fetch_paths_check(
	const struct fetch_paths *paths, const char *run_id, bool from_tree, struct err *err)
{
	const char *unused = fetch_paths_unused(paths);

	if (!unused)
		return 0;
	AUTO_FREE char *shown = str_shown(unused);
	err_set(err, E_FETCH_PATH, "no '%s' in the %s of %s", shown, from_tree ? "tree" : "results",
		run_id);
	if (from_tree) {
		AUTO_FREE char *anywhere = mem_printf("**/%s", fs_basename(unused));
		AUTO_BUF struct buf quoted = buf_with(QUOTED_MAX);

		str_shell_quote(&quoted, anywhere);
		return err_hint(
			err, "dlrun fetch --tree %s %s   # in any directory", run_id, quoted.data);
	}
	return err_hint(err, "dlrun fetch --list %s", run_id);
}

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
