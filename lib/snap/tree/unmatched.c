/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/str.h"
#include "snap/tree/unmatched.h"

enum { CANDIDATES_MAX = 20000 };

/* The first position whose path is not before the text with the byte tail behind it. */
static size_t lower_bound(const struct path_list *list, const char *text, unsigned char tail)
{
	size_t len = strlen(text);

	return vec_bound(list, item, str_is_before(item->path, text, len, tail));
}

static bool has_match(const struct path_list *list, const char *entry)
{
	size_t at = lower_bound(list, entry, '\0'), below = lower_bound(list, entry, '/');
	size_t len = strlen(entry);

	if (at < list->n && str_eq(list->v[at].path, entry))
		return true;
	return below < list->n && strncmp(list->v[below].path, entry, len) == 0 &&
	       list->v[below].path[len] == '/';
}

/* How far an entry leads into the tree. */
struct trace {
	const char *entry;
	size_t parent_len; /* of the directory that has no such member; with it all before exists */
	size_t len;        /* of the part that is missing or leads no further */
	bool missing;
	mode_t mode; /* of the part up to len, if it is there */
};

static void follow(const struct walk *walk, const char *entry, struct trace *ret)
{
	*ret = (struct trace){.entry = entry};
	for (;;) {
		struct stat st;
		ret->len += strcspn(entry + ret->len, "/");
		AUTO_FREE char *part = mem_strndup(entry, ret->len);
		ret->missing = fstatat(walk->root_fd, part, &st, AT_SYMLINK_NOFOLLOW) < 0;
		if (ret->missing)
			return;
		ret->mode = st.st_mode;
		if (!entry[ret->len] || !S_ISDIR(st.st_mode))
			return;
		ret->parent_len = ret->len++;
	}
}

/* The member of the directory whose name is nearest to the missing one, or NULL. */
static char *near_member(const struct walk *walk, const struct trace *trace)
{
	size_t skip = trace->parent_len ? trace->parent_len + 1 : 0;
	AUTO_FREE char *dir = skip ? mem_strndup(trace->entry, trace->parent_len) : mem_strdup(".");
	AUTO_FREE char *name = mem_strndup(trace->entry + skip, trace->len - skip);
	AUTO_STRV struct strv names = {0};
	int fd = fs_open_beneath(walk->root_fd, dir, O_RDONLY | O_DIRECTORY, 0);
	AUTO_DIR DIR *stream = fd < 0 ? NULL : fdopendir(fd);

	if (!stream) {
		if (fd >= 0)
			close(fd);
		return NULL;
	}
	for (struct dirent *entry; (entry = readdir(stream)) && names.n < CANDIDATES_MAX;)
		if (entry->d_name[0] != '.' || name[0] == '.')
			strv_add(&names, entry->d_name);
	const char *near = str_suggest(name, (const char *const *)names.v, names.n);
	if (!near)
		return NULL;
	AUTO_FREE char *whole =
		mem_printf("%.*s%s%s", (int)skip, trace->entry, near, trace->entry + trace->len);
	struct stat st;
	if (fstatat(walk->root_fd, whole, &st, AT_SYMLINK_NOFOLLOW) == 0)
		return TAKE(whole);
	return mem_printf("%.*s%s", (int)skip, trace->entry, near);
}

/* The first path with the name of the entry, somewhere else in the tree. */
static const char *same_name(const struct path_list *list, const char *entry)
{
	vec_foreach (const struct path, path, list)
		if (str_eq(fs_basename(path->path), fs_basename(entry)))
			return path->path;
	vec_foreach (const struct left_out, row, &list->left_out)
		if (str_eq(fs_basename(row->path), fs_basename(entry)))
			return row->path;
	return NULL;
}

/* A path that may have been meant, or NULL. */
static char *near_match(
	const struct walk *walk, const struct path_list *list, const struct trace *trace)
{
	char *member = near_member(walk, trace);

	return member ? member : mem_strdup(same_name(list, trace->entry));
}

static void add_near_match(const struct walk *walk, const struct path_list *list,
	const struct trace *trace, const char *what, struct err *err)
{
	AUTO_FREE char *found = near_match(walk, list, trace);

	if (!found)
		return;
	AUTO_BUF struct buf quoted;
	buf_init(&quoted, 4 * strlen(found) + 16);
	str_shell_quote(&quoted, found);
	if (str_eq(what, "include"))
		err_hint(err, "--include %s", quoted.data);
	else
		err_hint(err, "%s: [%s]", what, quoted.data);
}

static bool is_dropped(const struct path_list *list, const char *entry)
{
	vec_foreach (const struct left_out, row, &list->left_out) {
		size_t len = strlen(row->path);
		if (row->why != LEFT_OUT_DLRUNIGNORE || strncmp(row->path, entry, len - 1) != 0)
			continue;
		bool is_dir = row->path[len - 1] == '/';
		bool same = is_dir ? !entry[len - 1] || entry[len - 1] == '/'
				   : str_eq(row->path, entry);
		if (same)
			return true;
	}
	return false;
}

static bool names_git(const char *entry)
{
	for (const char *at = entry; (at = strstr(at, ".git")); at += 4)
		if ((at == entry || at[-1] == '/') && (!at[4] || at[4] == '/'))
			return true;
	return false;
}

static const char *reason(
	const struct walk *walk, const struct path_list *list, const struct trace *trace)
{
	const char *rest = trace->entry + trace->len;

	if (walk->paths.paths.n && !pathset_covers(&walk->paths, trace->entry))
		return "lies outside of paths:";
	if (names_git(trace->entry))
		return "belongs to a repository itself and is never sent";
	if (is_dropped(list, trace->entry))
		return "is dropped by .dlrunignore";
	if (trace->missing)
		return "matches nothing";
	if (*rest)
		return S_ISLNK(trace->mode) ? "leads through a symbolic link"
					    : "leads through a file";
	if (S_ISDIR(trace->mode))
		return "holds no file for the snapshot";
	if (S_ISREG(trace->mode) || S_ISLNK(trace->mode))
		return "is ignored by git";
	return "is not a file or link";
}

static int refuse(const struct walk *walk, const struct path_list *list, const char *entry,
	const char *what, struct err *err)
{
	AUTO_FREE char *shown = str_shown(entry);
	struct trace trace;

	follow(walk, entry, &trace);
	const char *why = reason(walk, list, &trace);
	int r = err_set(err, E_SNAPSHOT_INCLUDE, "%s: \"%s\" %s", what, shown, why);
	if (str_eq(why, "matches nothing"))
		add_near_match(walk, list, &trace, what, err);
	return r;
}

static int check_set(const struct walk *walk, const struct path_list *list,
	const struct pathset *set, const char *what, struct err *err)
{
	for (size_t i = 0; i < set->paths.n; i++)
		if (!has_match(list, set->paths.v[i]))
			return refuse(walk, list, set->paths.v[i], what, err);
	return 0;
}

int unmatched_refuse(const struct walk *walk, const struct path_list *list, struct err *err)
{
	int r = check_set(walk, list, &walk->paths, "paths", err);

	return r < 0 ? r : check_set(walk, list, &walk->include, "include", err);
}

static void note(
	const struct walk *walk, const struct path_list *list, const char *entry, struct strv *ret)
{
	AUTO_FREE char *shown = str_shown(entry), *near = NULL, *near_shown = NULL;
	struct trace trace;

	follow(walk, entry, &trace);
	const char *why = reason(walk, list, &trace);
	if (trace.missing)
		near = near_match(walk, list, &trace);
	if (near)
		near_shown = str_shown(near);
	strv_addf(ret, "allow: \"%s\" %s%s%s%s", shown, why, near ? ", did you mean \"" : "",
		near ? near_shown : "", near ? "\"?" : "");
}

void unmatched_note(const struct walk *walk, const struct path_list *list, struct strv *ret)
{
	const struct pathset *allow = &walk->allow;

	for (size_t i = 0; i < allow->paths.n && ret->n < UNMATCHED_NOTES_MAX; i++) {
		const char *entry = allow->paths.v[i];
		bool outside = walk->paths.paths.n && !pathset_covers(&walk->paths, entry);
		if (!outside && !has_match(list, entry))
			note(walk, list, entry, ret);
	}
}
