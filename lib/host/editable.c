/* SPDX-License-Identifier: Apache-2.0 */
#include "host/editable.h"

#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/data/json.h"
#include "base/loop/proc.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"

#define IDENTIFIER "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789"

enum { TEXT_MAX = 1 << 20, WORDS_MAX = 256, SITES_MAX = 32, SHOWN_MAX = 3, SENTENCE_MAX = 4096 };

/* A package that direct_url.json calls editable, below root. */
struct dist {
	char *name;
	char *dir; /* without links */
	bool has_path;
	bool is_hooked; /* by an import hook that comes before PYTHONPATH */
};

struct search {
	const struct editable_query *query;
	char *root;   /* without links */
	char *prefix; /* of the interpreter, without links; NULL: none */
	bool ignores_env;
	struct strv sites;
	const char *site;
	struct strv found; /* without links; as in paths of ret */
	struct VEC_OF(struct dist) dists;
	struct strv hooks; /* names of packages as their hook's file has them */
	bool is_reported, by_site;
	struct editable *ret;
};

static void search_done(struct search *search)
{
	vec_foreach (struct dist, dist, &search->dists) {
		free(dist->name);
		free(dist->dir);
	}
	vec_done(&search->dists);
	strv_done(&search->sites);
	strv_done(&search->found);
	strv_done(&search->hooks);
	free(search->root);
	free(search->prefix);
}

/*
 * The environment of the command
 */

/* Roughly, as a shell would: a piece too many does no harm. */
static void editable_add_words(const char *text, struct strv *ret)
{
	static const char between[] = " \t\r\n;&|(){}`'\"";

	while (*(text += strspn(text, between)) && ret->n < WORDS_MAX) {
		size_t len = strcspn(text, between);

		strv_add_take(ret, mem_strndup(text, len));
		text += len;
	}
}

/* "python", "python3", "python3.13t", by its last component. */
static bool editable_is_python(const char *path)
{
	const char *name = fs_basename(path);

	if (!str_starts(name, "python"))
		return false;
	name += strlen("python");
	return name[strspn(name, "0123456789.t")] == '\0';
}

/* Whether the interpreter at words[i] has -E or -I among the options in front of its script. */
static bool has_isolation(const struct strv *words, size_t i)
{
	while (++i < words->n && words->v[i][0] == '-' && words->v[i][1] != '-') {
		const char *letters = words->v[i] + 1;
		size_t len = strcspn(letters, "cmWX");

		if (strcspn(letters, "EI") < len)
			return true;
		if (letters[len] == 'c' || letters[len] == 'm')
			return false;
		if (letters[len] && !letters[len + 1])
			i++;
	}
	return false;
}

/* Relative paths, in PATH or as a word, are relative to the working directory of the program. */
static char *editable_find_program(const struct editable_query *query, const char *word)
{
	const char *path = env_get(query->env, "PATH"), *home = env_get(query->env, "HOME");
	const char *rest = str_starts(word, "~/")       ? word + 2
			   : str_starts(word, "$HOME/") ? word + 6
							: NULL;

	if (strchr(word, '/'))
		return fs_join(rest && home ? home : query->cwd, rest ? rest : word);
	AUTO_FREE char *found = proc_find(word, path ? path : "/bin:/usr/bin");
	return found ? fs_join(query->cwd, found) : NULL;
}

static bool editable_has_file(const char *dir, const char *name)
{
	AUTO_FREE char *path = fs_join(dir, name);

	return access(path, F_OK) == 0;
}

/* A virtual environment or one of conda that has the program, or that a link to it leads into. Of
 * an interpreter also any other prefix. */
static char *environment_of(const char *program)
{
	AUTO_FREE char *real = NULL, *prefix = NULL;

	if (fs_realpath(program, &real, NULL) < 0)
		return NULL;
	const char *const paths[] = {program, real};
	for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
		AUTO_FREE char *bin = fs_dirname(paths[i]);
		REPLACE(prefix, fs_dirname(bin));
		if (editable_has_file(prefix, "pyvenv.cfg") ||
			editable_has_file(prefix, "conda-meta"))
			return TAKE(prefix);
	}
	return editable_is_python(program) ? TAKE(prefix) : NULL;
}

/* Words that may lead to an environment. */
enum word { WORD_ACTIVATE /* X/bin/activate */, WORD_PYTHON, WORD_ANY };

/* The environment that the first such word leads to; NULL: none. The caller frees. */
static char *first_environment(
	const struct editable_query *query, const struct strv *words, enum word word)
{
	char *found = NULL;

	for (size_t i = 0; !found && i < words->n; i++) {
		if ((word == WORD_ACTIVATE && !str_ends(words->v[i], "/bin/activate")) ||
			(word == WORD_PYTHON && !editable_is_python(words->v[i])))
			continue;
		AUTO_FREE char *program = editable_find_program(query, words->v[i]);
		found = program ? environment_of(program) : NULL;
	}
	return found;
}

/* An interpreter says more than a program such as mpirun, which conda may have too. Of what runs
 * before the command only what it activates holds for the command. */
static void find_environment(struct search *search)
{
	const struct editable_query *query = search->query;
	const char *virtual_env = env_get(query->env, "VIRTUAL_ENV");
	AUTO_FREE char *prefix = query->prefix ? mem_strdup(query->prefix) : NULL;
	AUTO_STRV struct strv before = {0}, words = {0}, others = {0};
	size_t first = 0;

	editable_add_words(query->before ? query->before : "", &before);
	for (size_t i = 0; i < query->command->n; i++)
		editable_add_words(query->command->v[i], &words);
	if (!str_empty(virtual_env))
		strv_addf(&others, "%s/bin/python", virtual_env);
	strv_add(&others, "python");
	strv_add(&others, "python3");
	const struct {
		const struct strv *words;
		enum word word;
	} places[] = {{&before, WORD_ACTIVATE}, {&words, WORD_ACTIVATE}, {&words, WORD_PYTHON},
		{&words, WORD_ANY}, {&others, WORD_ANY}};
	for (size_t i = 0; !prefix && i < ARRAY_LEN(places); i++)
		prefix = first_environment(query, places[i].words, places[i].word);
	while (first < words.n && !editable_is_python(words.v[first]))
		first++;
	search->ignores_env = first < words.n && has_isolation(&words, first);
	if (prefix)
		fs_realpath(prefix, &search->prefix, NULL);
}

/*
 * Directories that its interpreter searches
 */

/* All versions of pyenv count: its command on PATH is a script that chooses one. */
static void add_sites(struct search *search, const char *prefix)
{
	static const char *const places[] = {"lib*/python3*/site-packages",
		"lib*/python3*/dist-packages", "local/lib/python3*/dist-packages",
		"versions/*/lib/python3*/site-packages"};
	AUTO_BUF struct buf escaped = buf_with(TEXT_MAX);

	for (; *prefix; prefix++) {
		if (strchr("*?[\\", *prefix))
			buf_addc(&escaped, '\\');
		buf_addc(&escaped, *prefix);
	}
	for (size_t i = 0; i < ARRAY_LEN(places); i++) {
		AUTO_FREE char *pattern = mem_printf("%s/%s", escaped.data, places[i]);
		glob_t found = {0};

		if (glob(pattern, 0, NULL, &found) == 0)
			for (size_t k = 0; k < found.gl_pathc && search->sites.n < SITES_MAX; k++) {
				AUTO_FREE char *real = NULL;
				/* lib64 is often a link to lib. */
				if (fs_realpath(found.gl_pathv[k], &real, NULL) == 0 &&
					strv_find(&search->sites, real) < 0)
					strv_add_take(&search->sites, TAKE(real));
			}
		globfree(&found);
	}
}

/* The value of "key = value" in pyvenv.cfg, or NULL. */
static char *cfg_value(const char *text, const char *key)
{
	size_t len = strlen(key);

	for (; *text; text += strcspn(text, "\n"), text += *text == '\n') {
		const char *at = text + len;
		if (strncasecmp(text, key, len) != 0)
			continue;
		at += strspn(at, " \t");
		if (*at++ != '=')
			continue;
		at += strspn(at, " \t");
		size_t n = strcspn(at, "\r\n");
		while (n && strchr(" \t", at[n - 1]))
			n--;
		return mem_strndup(at, n);
	}
	return NULL;
}

static void find_sites(struct search *search)
{
	const char *const *env = search->query->env;
	const char *user = env_get(env, "PYTHONUSERBASE"), *home = env_get(env, "HOME");
	AUTO_FREE char *cfg = fs_join(search->prefix, "pyvenv.cfg"), *base = NULL;
	AUTO_FREE char *local = home ? fs_join(home, ".local") : NULL;
	AUTO_BUF struct buf text = {0};

	add_sites(search, search->prefix);
	if (fs_read(cfg, TEXT_MAX, &text, NULL, NULL) == 0) {
		AUTO_FREE char *system = cfg_value(text.data, "include-system-site-packages");
		AUTO_FREE char *bin = cfg_value(text.data, "home");
		if (!bin || !system || strcasecmp(system, "true") != 0)
			return;
		base = fs_dirname(bin);
	}
	if (str_empty(user))
		user = local;
	if (user && str_empty(env_get(env, "PYTHONNOUSERSITE")))
		add_sites(search, user);
	if (base)
		add_sites(search, base);
}

/*
 * Paths in the tree
 */

/* A directory or module of the tree, without links; NULL for another one, and for one in an
 * environment that lies in the tree. The caller frees. */
static char *live_path(const struct search *search, const char *path)
{
	AUTO_FREE char *real = NULL;

	if (*path != '/' || fs_realpath(path, &real, NULL) < 0 || !fs_below(real, search->root) ||
		(search->site && fs_below(real, search->site)) ||
		(search->prefix && !str_eq(search->prefix, search->root) &&
			fs_below(real, search->prefix)))
		return NULL;
	return TAKE(real);
}

static void editable_add_path(struct search *search, const char *path)
{
	AUTO_FREE char *dir = live_path(search, path);
	const char *rest;

	if (!dir || strv_find(&search->found, dir) >= 0 || search->found.n >= EDITABLE_PATHS_MAX)
		return;
	rest = fs_below(dir, search->root);
	strv_add(&search->ret->paths, *rest ? rest : ".");
	search->by_site |= search->site != NULL;
	strv_add_take(&search->found, TAKE(dir));
}

/* A string as repr() writes it; *at is behind it then. NULL for one with unprintable characters,
 * and where the line has no other. */
static char *take_literal(const char **at)
{
	const char *s = *at + strcspn(*at, "'\"\n");
	char quote = *s;
	AUTO_BUF struct buf out = buf_with(TEXT_MAX);

	if (quote != '\'' && quote != '"')
		return NULL;
	for (s++; *s != quote; s++) {
		if (*s == '\0' || *s == '\n' || (*s == '\\' && !strchr("\\'\"", s[1])))
			return NULL;
		if (*s == '\\' && !*++s)
			return NULL;
		buf_addc(&out, *s);
	}
	*at = s + 1;
	return buf_take(&out);
}

/* A line of a .pth that is no comment and no "import". */
static void add_pth_line(const char *line, size_t len, struct strv *names, struct strv *paths)
{
	while (len && strchr(" \t\r", line[len - 1]))
		len--;
	if (!len || *line == '#' || str_starts(line, "import ") || str_starts(line, "import\t"))
		return;
	strv_add(names, "");
	strv_add_take(paths, mem_strndup(line, len));
}

/* In a line of a finder a path belongs to the name before it. */
static void add_finder_line(const char *line, struct strv *names, struct strv *paths)
{
	AUTO_FREE char *name = NULL;
	char *literal;

	if (!str_starts(line, "MAPPING") && !str_starts(line, "NAMESPACES") &&
		!str_starts(line, "F.map_module("))
		return;
	while (names->n < EDITABLE_PATHS_MAX && (literal = take_literal(&line))) {
		if (*literal == '/' && name) {
			strv_add(names, name);
			strv_add_take(paths, literal);
		} else {
			REPLACE(name, literal);
		}
	}
}

void editable_parse(
	const char *text, bool is_finder, struct strv *ret_names, struct strv *ret_paths)
{
	while (*(text += strspn(text, " \t\n")) && ret_names->n < EDITABLE_PATHS_MAX) {
		size_t len = strcspn(text, "\n");

		if (is_finder)
			add_finder_line(text, ret_names, ret_paths);
		else
			add_pth_line(text, len, ret_names, ret_paths);
		text += len;
	}
}

/* The directory that path has to be imported from as name: /p for a.b at /p/a/b, /p/a/b.py or
 * /p/a/b/__init__.py. NULL where the end of path is not name's. */
static char *module_base(const char *name, const char *path)
{
	static const char *const endings[] = {"/__init__.py", ".py", "/"};
	AUTO_FREE char *tail = mem_printf("/%s", name);
	size_t len = strlen(path), n = strlen(tail);

	for (size_t i = 0; i < ARRAY_LEN(endings); i++)
		if (str_ends(path, endings[i])) {
			len -= strlen(endings[i]);
			break;
		}
	for (char *c = tail; *c; c++)
		if (*c == '.')
			*c = '/';
	if (len <= n || memcmp(path + len - n, tail, n) != 0)
		return NULL;
	return mem_strndup(path, len - n);
}

/* Record a link that a package needs because its directory has another name. */
static bool add_alias(struct search *search, const char *name, const char *dir)
{
	const char *rest = fs_below(dir, search->root);
	struct strv *aliases = &search->ret->aliases;
	struct stat st;

	if (!*rest || strspn(name, IDENTIFIER) != strlen(name) ||
		aliases->n >= EDITABLE_PATHS_MAX || stat(dir, &st) < 0 || !S_ISDIR(st.st_mode))
		return false;
	strv_addf(aliases, "%s=%s", name, rest);
	strv_add(&search->found, dir);
	search->by_site = true;
	return true;
}

static void add_module(struct search *search, const char *name, const char *path)
{
	AUTO_FREE char *dir = live_path(search, path), *base = module_base(name, path);

	if (dir && base) {
		editable_add_path(search, base);
	} else if (dir && !add_alias(search, name, dir)) {
		strv_add(&search->ret->fixed, name);
		strv_addf(&search->ret->warnings,
			"module %s is imported from the live tree: its directory there has another "
			"name",
			name);
	}
}

static bool editable_read_at(int dir_fd, const char *name, struct buf *ret)
{
	AUTO_FD int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	struct stat st;

	return fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
	       fs_read_fd(fd, name, TEXT_MAX, ret, NULL) == 0;
}

/* The path of file:///a%20b or file://localhost/a; NULL for another kind. */
static char *path_of_url(const char *url)
{
	AUTO_BUF struct buf out = buf_with(TEXT_MAX);

	if (!url || !str_starts(url, "file://"))
		return NULL;
	for (url += strcspn(url + strlen("file://"), "/") + strlen("file://"); *url; url++) {
		uint8_t byte = (uint8_t)*url;
		if (*url == '%' && url[1] && hex_decode(url + 1, 1, &byte))
			url += 2;
		buf_addc(&out, (char)byte);
	}
	return buf_take(&out);
}

static void read_dist(struct search *search, int site_fd, const char *name)
{
	AUTO_FREE char *file = mem_printf("%s/direct_url.json", name);
	AUTO_JSON struct json *json = NULL;
	AUTO_BUF struct buf text = {0};

	if (search->dists.n >= EDITABLE_PATHS_MAX || !editable_read_at(site_fd, file, &text) ||
		json_parse(text.data, text.len, TEXT_MAX, file, &json, NULL) < 0 ||
		!json_get_bool(json_get(json, "dir_info"), "editable", false))
		return;
	AUTO_FREE char *path = path_of_url(json_get_str(json, "url"));
	char *dir = path ? live_path(search, path) : NULL;
	if (!dir)
		return;
	AUTO_FREE char *package = mem_strndup(name, strcspn(name, "-"));
	*vec_push(&search->dists) = (struct dist){.name = str_shown(package), .dir = dir};
}

enum kind { KIND_PTH, KIND_FINDER, KIND_DIST, KIND_HOOK };

/* Of scikit-build-core and meson-python, older names last, are the hooks. */
static const struct {
	enum kind kind;
	const char *start, *end;
} kinds[] = {
	{KIND_PTH, "", ".pth"},
	{KIND_FINDER, "__editable___", "_finder.py"},
	{KIND_FINDER, "_editable_impl_", ".py"},
	{KIND_DIST, "", ".dist-info"},
	{KIND_HOOK, "_editable_skbc_", ".py"},
	{KIND_HOOK, "_", "_editable.py"},
	{KIND_HOOK, "_", "_editable_loader.py"},
};

static void editable_read_entry(struct search *search, int site_fd, const char *name)
{
	AUTO_STRV struct strv names = {0}, paths = {0};
	AUTO_BUF struct buf text = {0};
	size_t i = 0, len = strlen(name);

	while (i < ARRAY_LEN(kinds) &&
		(!str_starts(name, kinds[i].start) || !str_ends(name, kinds[i].end) ||
			len <= strlen(kinds[i].start) + strlen(kinds[i].end)))
		i++;
	if (i == ARRAY_LEN(kinds))
		return;
	if (kinds[i].kind == KIND_DIST) {
		read_dist(search, site_fd, name);
	} else if (kinds[i].kind == KIND_HOOK) {
		size_t start = strlen(kinds[i].start);
		strv_add_take(&search->hooks,
			mem_strndup(name + start, len - start - strlen(kinds[i].end)));
	} else if (editable_read_at(site_fd, name, &text)) {
		editable_parse(text.data, kinds[i].kind == KIND_FINDER, &names, &paths);
		for (size_t k = 0; k < names.n; k++) {
			AUTO_FREE char *path = fs_join(search->site, paths.v[k]);
			if (*names.v[k])
				add_module(search, names.v[k], path);
			else
				editable_add_path(search, path);
		}
	}
}

static void read_site(struct search *search, const char *site)
{
	AUTO_DIR DIR *dir = opendir(site);
	AUTO_STRV struct strv names = {0};
	struct dirent *entry;

	search->site = site;
	while (dir && (entry = readdir(dir)))
		strv_add(&names, entry->d_name);
	/* Sort them like the site module. */
	strv_sort(&names);
	for (size_t i = 0; i < names.n; i++)
		editable_read_entry(search, dirfd(dir), names.v[i]);
}

/*
 * The sentence about packages
 */

/* Each path belongs to the package whose directory is nearest above it. */
static struct dist *dist_of(struct search *search, const char *path)
{
	struct dist *nearest = NULL;

	vec_foreach (struct dist, dist, &search->dists)
		if (fs_below(path, dist->dir) &&
			(!nearest || strlen(dist->dir) > strlen(nearest->dir)))
			nearest = dist;
	return nearest;
}

static void match_dists(struct search *search)
{
	vec_foreach (struct dist, dist, &search->dists)
		dist->is_hooked = strv_find(&search->hooks, dist->name) >= 0;
	for (size_t i = 0; i < search->found.n; i++) {
		struct dist *dist = dist_of(search, search->found.v[i]);
		if (dist)
			dist->has_path = true;
		search->is_reported |= !dist || !dist->is_hooked;
	}
}

static void editable_add_list(struct buf *out, const struct strv *list)
{
	for (size_t i = 0; i < list->n && i < SHOWN_MAX; i++) {
		AUTO_FREE char *shown = str_shown(list->v[i]);
		buf_addf(out, "%s%s", i ? ", " : "", shown);
	}
	if (list->n > SHOWN_MAX)
		buf_addf(out, " and %zu more", list->n - SHOWN_MAX);
}

/* Of the directories only those that have another name than the tree itself. */
static void editable_add_paths(struct buf *out, const struct strv *paths)
{
	buf_addf(out, ": the run imports its own cop%s", paths->n == 1 ? "y" : "ies");
	if (paths->n == 1 && str_eq(paths->v[0], "."))
		return;
	buf_adds(out, " (");
	editable_add_list(out, paths);
	buf_addc(out, ')');
}

static void add_subject(const struct search *search, const struct strv *names, struct buf *out)
{
	if (names->n) {
		buf_adds(out, names->n == 1 ? "package " : "packages ");
		editable_add_list(out, names);
		buf_addf(out, " %s installed from this tree (editable)",
			names->n == 1 ? "is" : "are");
	} else if (search->by_site) {
		buf_adds(out, "python imports from this tree (a .pth file names it)");
	} else {
		buf_adds(out, "PYTHONPATH names this tree");
	}
}

static void editable_report_found(struct search *search)
{
	struct editable *ret = search->ret;
	AUTO_STRV struct strv names = {0}, shown = {0};
	AUTO_BUF struct buf text = buf_with(SENTENCE_MAX);

	if (!search->is_reported)
		return;
	vec_foreach (struct dist, dist, &search->dists)
		if (dist->has_path && !dist->is_hooked && strv_find(&names, dist->name) < 0)
			strv_add(&names, dist->name);
	add_subject(search, &names, &text);
	if (search->ignores_env) {
		buf_adds(
			&text, ", and python -I or -E takes it from there: PYTHONPATH is not read");
		strv_add_take(&ret->warnings, buf_take(&text));
		strv_done(&ret->paths);
		strv_done(&ret->aliases);
		return;
	}
	strv_copy(&shown, &ret->paths);
	for (size_t i = 0; i < ret->aliases.n; i++)
		strv_add(&shown, strchr(ret->aliases.v[i], '=') + 1);
	editable_add_paths(&text, &shown);
	ret->sentence = buf_take(&text);
}

/* Backends with import hooks of their own: those come before PYTHONPATH. */
static void editable_report_hooked(struct search *search)
{
	vec_foreach (struct dist, dist, &search->dists) {
		if (dist->has_path && !dist->is_hooked)
			continue;
		strv_add(&search->ret->fixed, dist->name);
		strv_addf(&search->ret->warnings,
			"package %s is installed from this tree (editable) by an import hook: the "
			"run imports the live tree's copy; install it by setup:, without -e",
			dist->name);
	}
}

void editable_find(const struct editable_query *query, struct editable *ret)
{
	AUTO(search_done) struct search search = {.query = query, .ret = ret};
	const char *live = env_get(query->env, "PYTHONPATH");

	*ret = (struct editable){0};
	if (fs_realpath(query->root, &search.root, NULL) < 0)
		return;
	find_environment(&search);
	for (const char *at = live && !search.ignores_env ? live : ""; *at;
		at += strcspn(at, ":"), at += *at == ':') {
		AUTO_FREE char *path = mem_strndup(at, strcspn(at, ":"));
		editable_add_path(&search, path);
	}
	if (search.prefix)
		find_sites(&search);
	for (size_t i = 0; i < search.sites.n; i++)
		read_site(&search, search.sites.v[i]);
	match_dists(&search);
	editable_report_found(&search);
	editable_report_hooked(&search);
}

void editable_done(struct editable *editable)
{
	if (!editable)
		return;
	strv_done(&editable->paths);
	free(editable->sentence);
	strv_done(&editable->fixed);
	strv_done(&editable->aliases);
	strv_done(&editable->warnings);
	*editable = (struct editable){0};
}
