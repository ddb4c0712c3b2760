/* SPDX-License-Identifier: Apache-2.0 */
#include "snap/git/gitdir.h"

#include <ctype.h>
#include <string.h>
#include <sys/stat.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"

enum { SMALL_FILE_MAX = 64 * 1024, CONFIG_MAX = 1 << 20, NAME_SIZE = 64 };

/* The content of a small file without the line ends behind it, or NULL. */
static char *gitdir_read_line(const char *dir, const char *name)
{
	AUTO_FREE char *path = fs_join(dir, name);
	AUTO_BUF struct buf buf = {0};

	if (fs_read(path, SMALL_FILE_MAX, &buf, NULL, NULL) < 0)
		return NULL;
	while (buf.len && (buf.data[buf.len - 1] == '\n' || buf.data[buf.len - 1] == '\r'))
		buf_truncate(&buf, buf.len - 1);
	return strlen(buf.data) == buf.len ? buf_take(&buf) : NULL;
}

static bool gitdir_is_dir(const char *dir, const char *name)
{
	AUTO_FREE char *path = fs_join(dir, name);
	struct stat st;

	return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

char *gitdir_common(const char *git_dir)
{
	AUTO_FREE char *named = gitdir_read_line(git_dir, "commondir");
	char *real = NULL;

	if (!named)
		return mem_strdup(git_dir);
	char *common = fs_join(git_dir, named);
	if (fs_realpath(common, &real, NULL) < 0)
		return common;
	free(common);
	return real;
}

/* A reference, an object id, or, as git once wrote it, a symbolic link into refs. */
static bool gitdir_is_head(const char *git_dir)
{
	AUTO_FREE char *head = gitdir_read_line(git_dir, "HEAD");
	AUTO_FREE char *path = fs_join(git_dir, "HEAD");
	struct stat st;

	if (lstat(path, &st) == 0 && S_ISLNK(st.st_mode))
		return true;
	if (!head)
		return false;
	size_t digits = strspn(head, "0123456789abcdefABCDEF");
	return str_starts(head, "ref:") || (!head[digits] && (digits == 40 || digits == 64));
}

bool gitdir_is_repository(const char *path)
{
	if (!gitdir_is_head(path))
		return false;
	AUTO_FREE char *common = gitdir_common(path);
	return gitdir_is_dir(common, "objects") && gitdir_is_dir(common, "refs");
}

static const char link_prefix[] = "gitdir: ";

/* path is a .git file. */
static enum gitdir_found gitdir_follow(const char *path, char **ret)
{
	AUTO_FREE char *text = gitdir_read_line("", path);
	AUTO_FREE char *dir = mem_strndup(path, (size_t)(strrchr(path, '/') - path));

	*ret = NULL;
	if (!text || !str_starts(text, link_prefix))
		return GITDIR_BROKEN;
	char *target = fs_join(*dir ? dir : "/", text + sizeof(link_prefix) - 1);
	if (gitdir_is_repository(target) && fs_realpath(target, ret, NULL) == 0) {
		free(target);
		return GITDIR_FOUND;
	}
	*ret = target;
	return GITDIR_BROKEN;
}

enum gitdir_found gitdir_resolve(const char *path, char **ret)
{
	struct stat st;

	if (stat(path, &st))
		return GITDIR_NONE;
	if (S_ISREG(st.st_mode))
		return gitdir_follow(path, ret);
	if (!S_ISDIR(st.st_mode) || !gitdir_is_repository(path))
		return GITDIR_NONE;
	return fs_realpath(path, ret, NULL) == 0 ? GITDIR_FOUND : GITDIR_NONE;
}

enum gitdir_found gitdir_at(const char *dir, char **ret)
{
	AUTO_FREE char *path = fs_join(dir, ".git");

	return gitdir_resolve(path, ret);
}

static int gitdir_check_file(const char *dir, const char *name, struct err *err)
{
	AUTO_FREE char *path = fs_join(dir, name);
	struct stat st;

	if (stat(path, &st) || S_ISREG(st.st_mode) || S_ISDIR(st.st_mode))
		return 0;
	AUTO_FREE char *shown = str_escaped(path);
	err_set(err, E_SNAPSHOT_REPO, "'%s' of the repository is not a regular file", shown);
	return hint_path(err, "ls -l ", path, "");
}

int gitdir_check(const char *git_dir, const char *common_dir, struct err *err)
{
	static const char *const own[] = {"index", "config.worktree", "info/sparse-checkout"};
	static const char *const common[] = {"config", "packed-refs", "shallow", "info/exclude",
		"info/attributes", "info/grafts", "objects/info/alternates"};
	AUTO_FREE char *head = gitdir_read_line(git_dir, "HEAD");
	const char *ref =
		head && str_starts(head, "ref:") ? head + 4 + strspn(head + 4, " \t") : "";
	int rc = gitdir_check_file(common_dir, ref, err);

	for (size_t i = 0; i < ARRAY_LEN(own) && rc == 0; i++)
		rc = gitdir_check_file(git_dir, own[i], err);
	for (size_t i = 0; i < ARRAY_LEN(common) && rc == 0; i++)
		rc = gitdir_check_file(common_dir, common[i], err);
	return rc;
}

/*
 * git-config(1), "Syntax". Only what is needed for settings in sections without a subsection;
 * other sections get a name that matches nothing.
 */

struct scan {
	const char *p;
	char section[NAME_SIZE];
	char key[NAME_SIZE];
	struct buf value;
};

static void gitdir_skip_blanks(struct scan *scan)
{
	while (*scan->p == ' ' || *scan->p == '\t' || *scan->p == '\r')
		scan->p++;
}

static void skip_line(struct scan *scan)
{
	scan->p += strcspn(scan->p, "\n");
}

static bool is_name_char(char c)
{
	return isalnum((unsigned char)c) || c == '-' || c == '.';
}

static void scan_name(struct scan *scan, char out[static NAME_SIZE])
{
	size_t len = 0;

	while (is_name_char(scan->p[len]))
		len++;
	size_t kept = len < NAME_SIZE ? len : 0;
	memcpy(out, scan->p, kept);
	out[kept] = '\0';
	scan->p += len;
}

/* From behind the [ to behind the ]. */
static void scan_section(struct scan *scan)
{
	gitdir_skip_blanks(scan);
	scan_name(scan, scan->section);
	if (*scan->p != ']')
		scan->section[0] = '\0';
	for (bool quoted = false; *scan->p && *scan->p != '\n'; scan->p++) {
		if (*scan->p == '\\' && scan->p[1])
			scan->p++;
		else if (*scan->p == '"')
			quoted = !quoted;
		else if (*scan->p == ']' && !quoted) {
			scan->p++;
			return;
		}
	}
}

/* From behind a backslash. */
static void gitdir_scan_escape(struct scan *scan)
{
	static const char letters[] = "ntb\"\\", bytes[] = "\n\t\b\"\\";
	const char *found = *scan->p ? strchr(letters, *scan->p) : NULL;

	if (found)
		buf_addc(&scan->value, bytes[found - letters]);
	if (*scan->p)
		scan->p++; /* an escaped line end joins two lines */
}

static void gitdir_scan_value(struct scan *scan)
{
	bool quoted = false;
	size_t keep = 0; /* blanks at the end do not count unless they are quoted */

	buf_reset(&scan->value);
	gitdir_skip_blanks(scan);
	while (*scan->p && *scan->p != '\n') {
		char c = *scan->p++;
		if (c == '\\') {
			gitdir_scan_escape(scan);
		} else if (c == '"') {
			quoted = !quoted;
		} else if (!quoted && (c == '#' || c == ';')) {
			skip_line(scan);
			break;
		} else {
			buf_addc(&scan->value, c);
		}
		if (quoted || (c != ' ' && c != '\t' && c != '\r'))
			keep = scan->value.len;
	}
	buf_truncate(&scan->value, keep);
}

/* To the next setting: sets section, key and value (a key without = is true). False at the end. */
static bool scan_next(struct scan *scan)
{
	while (*scan->p) {
		gitdir_skip_blanks(scan);
		if (*scan->p == '[') {
			scan->p++;
			scan_section(scan);
		} else if (isalpha((unsigned char)*scan->p)) {
			scan_name(scan, scan->key);
			gitdir_skip_blanks(scan);
			buf_reset(&scan->value);
			if (*scan->p == '=') {
				scan->p++;
				gitdir_scan_value(scan);
			} else {
				buf_adds(&scan->value, "true");
				skip_line(scan);
			}
			return true;
		} else {
			skip_line(scan);
			scan->p += *scan->p == '\n';
		}
	}
	return false;
}

static bool gitdir_is_setting(const struct scan *scan, const char *section, const char *key)
{
	return strcasecmp(scan->section, section) == 0 && strcasecmp(scan->key, key) == 0;
}

static bool gitdir_is_true(const char *value)
{
	return strcasecmp(value, "true") == 0 || strcasecmp(value, "yes") == 0 ||
	       strcasecmp(value, "on") == 0 || str_eq(value, "1");
}

static void gitdir_set(char **to, const char *value)
{
	free(*to);
	*to = *value ? mem_strdup(value) : NULL;
}

static void read_settings(const char *dir, const char *name, struct gitdir_config *ret)
{
	AUTO_FREE char *path = fs_join(dir, name);
	AUTO_BUF struct buf text = {0};
	struct scan scan = {0};

	if (fs_read(path, CONFIG_MAX, &text, NULL, NULL) < 0)
		return;
	scan.p = text.data;
	buf_init(&scan.value, CONFIG_MAX);
	while (scan_next(&scan)) {
		if (gitdir_is_setting(&scan, "core", "bare"))
			ret->bare = gitdir_is_true(scan.value.data);
		else if (gitdir_is_setting(&scan, "core", "worktree"))
			gitdir_set(&ret->work_tree, scan.value.data);
		else if (gitdir_is_setting(&scan, "extensions", "objectformat"))
			gitdir_set(&ret->object_format, scan.value.data);
		else if (gitdir_is_setting(&scan, "extensions", "worktreeconfig"))
			ret->per_work_tree = gitdir_is_true(scan.value.data);
	}
	buf_done(&scan.value);
}

void gitdir_config_read(const char *git_dir, struct gitdir_config *ret)
{
	AUTO_FREE char *common = gitdir_common(git_dir);

	*ret = (struct gitdir_config){0};
	read_settings(common, "config", ret);
	if (!str_eq(common, git_dir)) {
		/* In the common configuration both refer to the main working tree only. */
		ret->bare = false;
		gitdir_set(&ret->work_tree, "");
	}
	if (ret->per_work_tree)
		read_settings(git_dir, "config.worktree", ret);
}

void gitdir_config_done(struct gitdir_config *config)
{
	if (!config)
		return;
	free(config->work_tree);
	free(config->object_format);
	*config = (struct gitdir_config){0};
}

int hint_path(struct err *err, const char *before, const char *path, const char *after)
{
	AUTO_BUF struct buf text = buf_with(4 * strlen(path) + strlen(before) + strlen(after) + 2);

	buf_adds(&text, before);
	str_shell_quote(&text, path);
	buf_adds(&text, after);
	return err_hint(err, "%s", text.data);
}
