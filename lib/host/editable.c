/* SPDX-License-Identifier: Apache-2.0 */
#include "host/editable.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "host/editable_parse.h"
#include "host/editable_python.h"

#define IDENTIFIER "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789"

enum { TEXT_MAX = 1 << 20, SHOWN_MAX = 3, SENTENCE_MAX = 4096 };

/* A package that direct_url.json calls editable, below root. */
struct dist {
	char *name;
	char *dir; /* without links */
	bool has_path;
	bool is_hooked; /* by an import hook that comes before PYTHONPATH */
};

struct search {
	const struct editable_query *query;
	char *root; /* without links */
	const char *prefix, *site;
	struct strv found; /* without links; as in paths of ret */
	struct VEC_OF(struct dist) dists;
	struct strv hooks; /* names of packages as their hook's file has them */
	bool is_said, by_site;
	struct editable *ret;
};

static void search_done(struct search *search)
{
	for (size_t i = 0; i < search->dists.n; i++) {
		free(search->dists.v[i].name);
		free(search->dists.v[i].dir);
	}
	vec_done(&search->dists);
	strv_done(&search->found);
	strv_done(&search->hooks);
	free(search->root);
}

/* Whether path was installed into an environment, which may lie in the tree: such files are not the
 * tree's source. */
static bool is_installed(const struct search *search, const char *path)
{
	if (search->site && fs_below(path, search->site))
		return true;
	return search->prefix && strcmp(search->prefix, search->root) != 0 &&
	       fs_below(path, search->prefix);
}

/* A directory of the tree, without links; NULL for any other. The caller frees. */
static char *live_dir(const struct search *search, const char *path)
{
	AUTO_FREE char *real = NULL;

	if (fs_realpath(path, &real, NULL) < 0 || !fs_below(real, search->root) ||
		is_installed(search, real))
		return NULL;
	return TAKE(real);
}

static void add_path(struct search *search, const char *path)
{
	AUTO_FREE char *dir = *path == '/' ? live_dir(search, path) : NULL;
	const char *rest;

	if (!dir || strv_find(&search->found, dir) >= 0 || search->found.n >= EDITABLE_PATHS_MAX)
		return;
	rest = fs_below(dir, search->root);
	strv_add(&search->ret->paths, *rest ? rest : ".");
	search->by_site |= search->site != NULL;
	strv_add_take(&search->found, TAKE(dir));
}

static void add_python_path(struct search *search)
{
	const char *text = env_get(search->query->env, "PYTHONPATH");

	for (const char *at = text ? text : ""; *at; at += strcspn(at, ":"), at += *at == ':') {
		AUTO_FREE char *item = mem_strndup(at, strcspn(at, ":"));
		add_path(search, item);
	}
}

/*
 * Files of a directory of packages
 */

static bool read_at(int dir_fd, const char *name, struct buf *ret)
{
	AUTO_FD int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	struct stat st;

	return fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
	       fs_read_fd(fd, name, TEXT_MAX, ret, NULL) == 0;
}

static void read_pth(struct search *search, const struct buf *text)
{
	AUTO_STRV struct strv lines = {0};

	parse_pth(text->data, text->len, &lines);
	for (size_t i = 0; i < lines.n; i++) {
		AUTO_FREE char *path = fs_join(search->site, lines.v[i]);
		add_path(search, path);
	}
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

static void read_finder(struct search *search, const struct buf *text)
{
	AUTO(module_map_done) struct module_map map = {0};

	parse_finder(text->data, text->len, &map);
	for (size_t i = 0; i < map.names.n; i++) {
		AUTO_FREE char *dir = live_dir(search, map.paths.v[i]);
		AUTO_FREE char *base = module_base(map.names.v[i], map.paths.v[i]);
		if (!dir)
			continue;
		if (base) {
			add_path(search, base);
			continue;
		}
		if (add_alias(search, map.names.v[i], dir))
			continue;
		strv_add(&search->ret->fixed, map.names.v[i]);
		strv_addf(&search->ret->warnings,
			"module %s is imported from the live tree: its directory there has another "
			"name",
			map.names.v[i]);
	}
}

/* The lines after the first tell where setup.py is. */
static void read_egg_link(struct search *search, const struct buf *text)
{
	AUTO_FREE char *path = mem_strndup(text->data, strcspn(text->data, "\r\n"));

	add_path(search, path);
}

static void read_dist(struct search *search, int site_fd, const char *name)
{
	AUTO_FREE char *file = mem_printf("%s/direct_url.json", name);
	AUTO_BUF struct buf text = {0};

	if (search->dists.n >= EDITABLE_PATHS_MAX || !read_at(site_fd, file, &text))
		return;
	AUTO_FREE char *path = parse_direct_url(text.data, text.len);
	char *dir = path ? live_dir(search, path) : NULL;
	if (!dir)
		return;
	AUTO_FREE char *package = mem_strndup(name, strcspn(name, "-"));
	*vec_push(&search->dists) = (struct dist){.name = str_shown(package), .dir = dir};
}

static const struct {
	const char *start, *end;
	void (*read)(struct search *search, const struct buf *text);
} kinds[] = {
	{"", ".pth", read_pth},
	{"__editable___", "_finder.py", read_finder},
	{"_editable_impl_", ".py", read_finder},
	{"", ".egg-link", read_egg_link},
};

static void read_entry(struct search *search, int site_fd, const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
		AUTO_BUF struct buf text = {0};
		if (str_starts(name, kinds[i].start) && str_ends(name, kinds[i].end) &&
			read_at(site_fd, name, &text))
			kinds[i].read(search, &text);
	}
}

static bool is_wanted(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
		if (str_starts(name, kinds[i].start) && str_ends(name, kinds[i].end))
			return true;
	return false;
}

/* scikit-build-core and meson-python, older names last. */
static bool is_hook(const char *name, char **ret_package)
{
	static const struct {
		const char *start, *end;
	} names[] = {
		{"_editable_skbc_", ".py"}, {"_", "_editable.py"}, {"_", "_editable_loader.py"}};

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		size_t start = strlen(names[i].start), end = strlen(names[i].end);
		if (!str_starts(name, names[i].start) || !str_ends(name, names[i].end) ||
			strlen(name) <= start + end)
			continue;
		*ret_package = mem_strndup(name + start, strlen(name) - start - end);
		return true;
	}
	return false;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static void read_site(struct search *search, const char *site)
{
	AUTO_DIR DIR *dir = opendir(site);
	AUTO_STRV struct strv names = {0};
	struct dirent *entry;
	char *package;

	search->site = site;
	while (dir && (entry = readdir(dir))) {
		if (is_hook(entry->d_name, &package))
			strv_add_take(&search->hooks, package);
		else if (str_ends(entry->d_name, ".dist-info"))
			read_dist(search, dirfd(dir), entry->d_name);
		else if (is_wanted(entry->d_name))
			strv_add(&names, entry->d_name);
	}
	/* Sort them like the site module. */
	vec_sort(&names, by_name);
	for (size_t i = 0; i < names.n; i++)
		read_entry(search, dirfd(dir), names.v[i]);
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
		search->is_said |= !dist || !dist->is_hooked;
	}
}

static void add_list(struct buf *out, const struct strv *list)
{
	for (size_t i = 0; i < list->n && i < SHOWN_MAX; i++) {
		AUTO_FREE char *shown = str_shown(list->v[i]);
		buf_addf(out, "%s%s", i ? ", " : "", shown);
	}
	if (list->n > SHOWN_MAX)
		buf_addf(out, " and %zu more", list->n - SHOWN_MAX);
}

/* Of the directories only those that have another name than the tree itself. */
static void add_paths(struct buf *out, const struct strv *paths)
{
	buf_addf(out, ": the run imports its own cop%s", paths->n == 1 ? "y" : "ies");
	if (paths->n == 1 && str_eq(paths->v[0], "."))
		return;
	buf_adds(out, " (");
	add_list(out, paths);
	buf_addc(out, ')');
}

static void add_subject(const struct search *search, const struct strv *names, struct buf *out)
{
	if (names->n) {
		buf_adds(out, names->n == 1 ? "package " : "packages ");
		add_list(out, names);
		buf_addf(out, " %s installed from this tree (editable)",
			names->n == 1 ? "is" : "are");
	} else if (search->by_site) {
		buf_adds(out, "python imports from this tree (a .pth file names it)");
	} else {
		buf_adds(out, "PYTHONPATH names this tree");
	}
}

static void say_found(struct search *search, bool ignores_env)
{
	struct editable *ret = search->ret;
	AUTO_STRV struct strv names = {0}, shown = {0};
	AUTO_BUF struct buf text = {0};

	if (!search->is_said)
		return;
	vec_foreach (struct dist, dist, &search->dists)
		if (dist->has_path && !dist->is_hooked && strv_find(&names, dist->name) < 0)
			strv_add(&names, dist->name);
	buf_init(&text, SENTENCE_MAX);
	add_subject(search, &names, &text);
	if (ignores_env) {
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
	add_paths(&text, &shown);
	ret->sentence = buf_take(&text);
}

/* Backends with import hooks of their own: those come before PYTHONPATH. */
static void say_hooked(struct search *search)
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
	AUTO(python_done) struct python python = {0};
	AUTO(python_sites_done) struct python_sites sites = {0};

	*ret = (struct editable){0};
	if (fs_realpath(query->root, &search.root, NULL) < 0)
		return;
	python_find(query, &python);
	python_sites_find(&python, query->env, &sites);
	search.prefix = sites.prefix;
	if (!python.options.ignores_env)
		add_python_path(&search);
	for (size_t i = 0; i < sites.dirs.n; i++)
		read_site(&search, sites.dirs.v[i]);
	match_dists(&search);
	say_found(&search, python.options.ignores_env);
	say_hooked(&search);
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
