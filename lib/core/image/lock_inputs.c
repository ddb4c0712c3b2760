/* SPDX-License-Identifier: Apache-2.0 */
#include "core/image/lock_inputs.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"

enum { LOCK_TEXT_MAX = 64 << 20, LOCK_LINE_MAX = 4096, LOCK_MENTIONS_MAX = 10000 };

void lock_mentions_done(struct lock_mentions *mentions)
{
	strv_done(&mentions->files);
	strv_done(&mentions->finds);
	strv_done(&mentions->copied);
	strv_done(&mentions->linked);
	strv_done(&mentions->lines);
}

static void lock_add(struct strv *to, const char *s, size_t len)
{
	if (len && to->n < LOCK_MENTIONS_MAX)
		strv_add_take(to, mem_strndup(s, len));
}

static void lock_add_copied(struct lock_mentions *mentions, const char *s, size_t len, size_t line)
{
	if (len == 0 || mentions->copied.n >= LOCK_MENTIONS_MAX)
		return;
	lock_add(&mentions->copied, s, len);
	strv_addf(&mentions->lines, "%zu", line);
}

/*
 * Requirements
 */

static const char *skip_blanks(const char *s)
{
	return s + strspn(s, " \t");
}

/* "-rFILE", "-r FILE", "--requirement FILE", "--requirement=FILE": FILE; NULL for others. */
static const char *option_value(const char *line, const char *name)
{
	size_t len = strlen(name);

	if (strncmp(line, name, len) != 0)
		return NULL;
	if (name[1] != '-')
		return skip_blanks(line + len);
	if (line[len] == '=')
		return skip_blanks(line + len + 1);
	return line[len] == ' ' || line[len] == '\t' ? skip_blanks(line + len) : NULL;
}

/* Of "'./x[extra]' ; marker" what stands before extras, markers and options, without quotes. */
static const char *lock_word(const char *s, size_t *ret_len)
{
	size_t len, bare;

	if (*s == '"' || *s == '\'') {
		len = strcspn(s + 1, *s == '"' ? "\"" : "'");
		s++;
	} else {
		len = strcspn(s, " \t;");
	}
	bare = strcspn(s, "[#");
	*ret_len = bare < len ? bare : len;
	return s;
}

static bool is_archive(const char *name)
{
	return str_ends(name, ".whl") || str_ends(name, ".tar.gz") || str_ends(name, ".zip");
}

/* The path that the word is, of a file below the tree. NULL: it is a URL, or, unless is_named, the
 * name of a package. */
static const char *local_path(const char *s, bool is_named, size_t *ret_len)
{
	static const char prefix[] = "file:";
	size_t len, skipped;

	s = lock_word(s, &len);
	AUTO_FREE char *text = mem_strndup(s, len);
	skipped = str_starts(text, prefix) ? strlen(prefix) : 0;
	*ret_len = len - skipped;
	if (len == skipped || strchr("/~", s[skipped]) || strchr(text, '$') ||
		strstr(text, "://") || str_starts(text, "git+"))
		return NULL;
	if (!is_named && !skipped && *s != '.' && !strchr(text, '/') && !is_archive(text))
		return NULL;
	return s + skipped;
}

static void lock_read_requirement(const char *line, size_t number, struct lock_mentions *ret)
{
	const struct {
		const char *name;
		struct strv *ret;
	} options[] = {
		{"-r", &ret->files},
		{"--requirement", &ret->files},
		{"-c", &ret->files},
		{"--constraint", &ret->files},
		{"-f", &ret->finds},
		{"--find-links", &ret->finds},
		{"-e", &ret->linked},
		{"--editable", &ret->linked},
	};
	const char *value, *at;
	size_t len;

	/* Several options may stand in a line. */
	for (at = line; *line == '-' && at; at = *at ? at + strcspn(at, " \t") : NULL) {
		at = skip_blanks(at);
		for (size_t i = 0; i < ARRAY_LEN(options); i++)
			if ((value = option_value(at, options[i].name)) &&
				(value = local_path(value, true, &len)))
				lock_add(options[i].ret, value, len);
	}
	if (*line == '-')
		return;
	/* "name @ file:./x" */
	at = strchr(line, '@');
	if (at && strcspn(line, "/;") > (size_t)(at - line))
		line = skip_blanks(at + 1);
	if ((value = local_path(line, false, &len)))
		lock_add_copied(ret, value, len, number);
}

/* A line without its comment, which begins the line or follows a blank, and without blanks. */
static void lock_trim(struct buf *line)
{
	size_t end = line->len;

	for (size_t i = 0; i < end; i++)
		if (line->data[i] == '#' && (i == 0 || strchr(" \t", line->data[i - 1])))
			end = i;
	while (end && strchr(" \t\r", line->data[end - 1]))
		end--;
	line->data[line->len = end] = '\0';
}

/* '- -r file' and '- "-r file"' of YAML; "" for what is no item. */
static const char *lock_item(char *line)
{
	char *quote;

	if (*line != '-' || !strchr(" \t", line[1]))
		return "";
	line += 1 + strspn(line + 1, " \t");
	if (*line != '"' && *line != '\'')
		return line;
	quote = strchr(line + 1, *line);
	if (quote)
		*quote = '\0';
	return line + 1;
}

static void lock_read_line(
	struct buf *line, bool is_conda, size_t number, struct lock_mentions *ret)
{
	char *at;

	if (line->len == 0 || line->full || memchr(line->data, '\0', line->len))
		return;
	lock_trim(line);
	at = line->data + strspn(line->data, " \t");
	lock_read_requirement(is_conda ? lock_item(at) : at, number, ret);
}

/* Whether the next line belongs to this one, by a "\\" at its end; a comment ends with its line. */
static bool lock_goes_on(const char *text, size_t n, bool is_first)
{
	size_t blanks = 0;

	while (blanks < n && strchr(" \t", text[blanks]))
		blanks++;
	if (is_first && blanks < n && text[blanks] == '#')
		return false;
	return n && text[n - 1] == '\\';
}

static void lock_read_lines(const char *text, size_t len, bool is_conda, struct lock_mentions *ret)
{
	static const char mark[] = "\xef\xbb\xbf"; /* of UTF-8 */
	AUTO_BUF struct buf line = buf_with(LOCK_LINE_MAX);
	const char *end = text + len;
	size_t number = 0, first = 1;

	if (len >= strlen(mark) && memcmp(text, mark, strlen(mark)) == 0)
		text += strlen(mark);
	while (text < end) {
		const char *stop = memchr(text, '\n', (size_t)(end - text));
		size_t n = (size_t)((stop ? stop : end) - text);
		size_t bare = n && text[n - 1] == '\r' ? n - 1 : n;
		bool goes_on = !is_conda && lock_goes_on(text, bare, line.len == 0);

		buf_add(&line, text, goes_on ? bare - 1 : n);
		text = stop ? stop + 1 : end;
		number++;
		if (goes_on && text < end)
			continue;
		lock_read_line(&line, is_conda, first, ret);
		buf_reset(&line);
		first = number + 1;
	}
}

void lock_mentions_of_requirements(const char *text, size_t len, struct lock_mentions *ret)
{
	lock_read_lines(text, len, false, ret);
}

void lock_mentions_of_conda(const char *text, size_t len, struct lock_mentions *ret)
{
	lock_read_lines(text, len, true, ret);
}

/*
 * uv
 */

/* uv writes each source in a line of its own: source = { directory = "libs/x" }. */
void lock_mentions_of_uv(const char *text, size_t len, struct lock_mentions *ret)
{
	static const char begin[] = "source = { ";
	static const struct {
		const char *key;
		bool is_copied;
	} kinds[] = {{"directory = \"", true}, {"path = \"", true}, {"editable = \"", false},
		{"virtual = \"", false}};
	const char *end = text + len;
	size_t number = 0;

	for (const char *stop; text < end; text = stop + 1) {
		stop = memchr(text, '\n', (size_t)(end - text));
		stop = stop ? stop : end;
		number++;
		if ((size_t)(stop - text) > LOCK_LINE_MAX)
			continue;
		AUTO_FREE char *line = mem_strndup(text, (size_t)(stop - text));
		if (!str_starts(line, begin))
			continue;
		const char *source = line + strlen(begin);
		for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
			if (!str_starts(source, kinds[i].key))
				continue;
			const char *path = source + strlen(kinds[i].key);
			size_t n = strcspn(path, "\"\\");
			if (path[n] != '"')
				continue;
			if (kinds[i].is_copied)
				lock_add_copied(ret, path, n, number);
			else
				lock_add(&ret->linked, path, n);
		}
	}
}

/*
 * Files
 */

char *lock_path(const char *base, const char *path)
{
	return *path == '/' || *path == '~' ? NULL : fs_join_normal(base, path);
}

struct lock_search {
	int root_fd;
	const char *dir;
	struct strv *found;
	struct strv *optional; /* of found, those that a snapshot may lack */
	struct strv *included; /* of found, those to read */
};

/* A path counts when it is there, and not behind a link that a snapshot would not follow. */
static bool lock_found(const struct lock_search *search, const char *base, const char *path)
{
	AUTO_FREE char *name = lock_path(base, path);

	if (str_empty(name) || !str_is_utf8(name, strlen(name)) ||
		search->found->n >= LOCK_INPUTS_MAX || strv_find(search->found, name) >= 0)
		return false;
	AUTO_FD int fd = fs_open_beneath(
		search->root_fd, name, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0);
	if (fd >= 0)
		strv_add(search->found, name);
	return fd >= 0;
}

static bool lock_found_optional(
	const struct lock_search *search, const char *base, const char *path)
{
	if (!lock_found(search, base, path))
		return false;
	strv_add(search->optional, search->found->v[search->found->n - 1]);
	return true;
}

/* Sources that runs have of their own are no part of what was made; what it was made by is. */
static void lock_found_project(const struct lock_search *search, const char *path)
{
	static const char *const files[] = {"pyproject.toml", "setup.py", "setup.cfg"};
	AUTO_FREE char *project = lock_path(search->dir, path);

	for (size_t i = 0; project && i < ARRAY_LEN(files); i++)
		lock_found_optional(search, project, files[i]);
}

/* Of the directory of the project only the archives would count, which a run seldom has there. */
static bool lock_found_archives(
	const struct lock_search *search, const char *base, const char *path)
{
	AUTO_FREE char *own = lock_path(search->dir, "");
	AUTO_FREE char *name = lock_path(base, path);

	return name && *name && !fs_below(own, name) &&
	       (strv_find(search->found, name) >= 0 || lock_found_optional(search, base, path));
}

static void lock_found_mentions(const struct lock_search *search, const char *file,
	const struct lock_mentions *mentions, char **ret_copied)
{
	AUTO_FREE char *base = fs_dirname(file);
	AUTO_FREE char *own = lock_path(search->dir, "");

	for (size_t i = 0; i < mentions->files.n; i++)
		if (lock_found(search, base, mentions->files.v[i]))
			strv_add(search->included, search->found->v[search->found->n - 1]);
	for (size_t i = 0; i < mentions->finds.n; i++)
		if (!lock_found_archives(search, base, mentions->finds.v[i]))
			lock_found_archives(search, search->dir, mentions->finds.v[i]);
	for (size_t i = 0; i < mentions->linked.n; i++)
		lock_found_project(search, mentions->linked.v[i]);
	for (size_t i = 0; i < mentions->copied.n; i++) {
		AUTO_FREE char *name = lock_path(search->dir, mentions->copied.v[i]);
		if (name && (!*name || fs_below(own, name)) && !*ret_copied)
			*ret_copied = mem_printf("%s:%s", file, mentions->lines.v[i]);
		else
			lock_found(search, search->dir, mentions->copied.v[i]);
	}
}

static void lock_read(const struct lock_search *search, const char *root, const char *file,
	void (*parse)(const char *text, size_t len, struct lock_mentions *ret), char **ret_copied)
{
	AUTO_LOCK_MENTIONS struct lock_mentions mentions = {0};
	AUTO_FREE char *path = fs_join(root, file);
	AUTO_BUF struct buf text = {0};

	if (fs_read_regular(path, LOCK_TEXT_MAX, &text, NULL, NULL, NULL) < 0)
		return;
	parse(text.data, text.len, &mentions);
	lock_found_mentions(search, file, &mentions, ret_copied);
}

void lock_inputs_done(struct lock_inputs *inputs)
{
	strv_done(&inputs->paths);
	strv_done(&inputs->optional);
	free(inputs->copied);
}

void lock_inputs_find(const char *root, const char *dir, const char *lock, struct lock_inputs *ret)
{
	AUTO_STRV struct strv found = {0}, included = {0};
	AUTO_FD int root_fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	const struct lock_search search = {.root_fd = root_fd,
		.dir = dir,
		.found = &found,
		.optional = &ret->optional,
		.included = &included};
	AUTO_FREE char *file = lock_path(dir, lock);
	bool is_conda = str_starts(lock, "environment.y");

	if (root_fd < 0 || str_empty(file))
		return;
	if (str_eq(lock, "pixi.lock")) {
		lock_found_optional(&search, dir, "pixi.toml");
		lock_found_project(&search, ".");
	} else if (str_eq(lock, "uv.lock")) {
		lock_found_project(&search, ".");
		lock_read(&search, root, file, lock_mentions_of_uv, &ret->copied);
	} else if (is_conda || str_ends(lock, ".txt")) {
		strv_add(&found, file);
		lock_read(&search, root, file,
			is_conda ? lock_mentions_of_conda : lock_mentions_of_requirements,
			&ret->copied);
		for (size_t i = 0; i < included.n; i++)
			lock_read(&search, root, included.v[i], lock_mentions_of_requirements,
				&ret->copied);
	}
	for (size_t i = 0; i < found.n; i++)
		if (!str_eq(found.v[i], file))
			strv_add(&ret->paths, found.v[i]);
}
