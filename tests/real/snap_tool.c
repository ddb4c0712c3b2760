/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ignore engine and the walk of lib/snap for tests that compare them with git.
 *
 *	snap_tool check-ignore [-i] [-x FILE]... ROOT <PATHS
 *	snap_tool list [-q] [-I INCLUDE]... [-p PATH]... ROOT... >PATHS
 *
 * check-ignore: PATHS end in NUL and are relative to ROOT; for each a line on stdout: `x` ignored,
 * `!` brought back by a negation, `.` no rule. Rules are those of the .gitignore files of ROOT,
 * then of each -x FILE in order; -i: core.ignorecase.
 *
 * list: for each ROOT, the work tree of a repository or a plain directory, its paths, each with `T`
 * (tracked) or `U` before it and a NUL behind it, then one more NUL. A walk that fails gives `E`,
 * the id of its error and its message instead of paths. -q: only the number of paths, the time that
 * the walk took and the memory in use.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/err.h"
#include "base/util/map.h"
#include "base/util/vec.h"
#include "snap/git/gitdir.h"
#include "snap/git/repo.h"
#include "snap/ignore/ignore.h"
#include "snap/tree/paths.h"

enum { INPUT_MAX = 256 << 20 };

static int die(const struct err *err)
{
	fprintf(stderr, "snap_tool: %s\n", err->message);
	return 1;
}

struct checker {
	const char *root;
	bool ignore_case;
	const struct ignore *base;
	struct map chains; /* by directory */
	struct VEC_OF(struct ignore *) all;
};

static const struct ignore *add_rules(
	struct checker *c, const char *file, const char *dir, const struct ignore *next)
{
	AUTO_BUF struct buf text;
	struct stat st;

	buf_init(&text, IGNORE_TEXT_MAX);
	if (lstat(file, &st) < 0 || !S_ISREG(st.st_mode) ||
		fs_read(file, IGNORE_TEXT_MAX, &text, NULL, NULL) < 0)
		return next;
	struct ignore *ignore = ignore_parse(text.data, text.len, dir, c->ignore_case, next);
	*vec_push(&c->all) = ignore;
	return ignore;
}

static const struct ignore *chain_of(struct checker *c, const char *dir, const struct ignore *outer)
{
	const struct ignore *chain = map_get(&c->chains, dir);

	if (chain)
		return chain;
	AUTO_FREE char *name = mem_printf("%s%s.gitignore", dir, *dir ? "/" : "");
	AUTO_FREE char *file = fs_join(c->root, name);
	chain = add_rules(c, file, dir, outer);
	if (chain)
		map_put(&c->chains, dir, (void *)chain);
	return chain;
}

static bool is_dir(const struct checker *c, const char *path)
{
	AUTO_FREE char *full = fs_join(c->root, path);
	struct stat st;

	return lstat(full, &st) == 0 && S_ISDIR(st.st_mode);
}

static enum ignore_decision check_path(struct checker *c, char *path)
{
	const struct ignore *chain = chain_of(c, "", c->base);

	for (char *slash = strchr(path, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		if (ignore_check(chain, path, true) == IGNORE_MATCH)
			return IGNORE_MATCH;
		chain = chain_of(c, path, chain);
		*slash = '/';
	}
	return ignore_check(chain, path, is_dir(c, path));
}

static int check_ignore(struct checker *c)
{
	AUTO_BUF struct buf input;
	AUTO_ERR struct err err = {0};

	buf_init(&input, INPUT_MAX);
	if (fs_read_fd(STDIN_FILENO, "stdin", INPUT_MAX, &input, &err) < 0)
		return die(&err);
	for (size_t at = 0; at < input.len; at += strlen(input.data + at) + 1) {
		AUTO_FREE char *path = mem_strdup(input.data + at);
		printf("%c\n", ".x!"[check_path(c, path)]);
	}
	return 0;
}

static int check_ignore_main(int argc, char **argv)
{
	struct checker c = {0};
	AUTO_STRV struct strv files = {0};

	for (int opt; (opt = getopt(argc, argv, "ix:")) != -1;) {
		if (opt == 'i')
			c.ignore_case = true;
		else if (opt == 'x')
			strv_add(&files, optarg);
		else
			return 2;
	}
	c.root = argv[optind];
	for (size_t i = files.n; i-- > 0;)
		c.base = add_rules(&c, files.v[i], "", c.base);
	int r = check_ignore(&c);
	vec_foreach (struct ignore *, ignore, &c.all)
		ignore_free(*ignore);
	vec_done(&c.all);
	map_done(&c.chains);
	return r;
}

/* What reading the repositories took, which is no part of the walk. */
struct timed_repos {
	struct repos repos;
	int64_t us;
};

static int find_repo(
	void *ctx, const char *dir, const struct paths_repo **ret_repo, struct err *err)
{
	struct timed_repos *timed = ctx;
	int64_t start = clock_us();
	int r = repos_find(&timed->repos, dir, ret_repo, err);

	timed->us += clock_us() - start;
	return r;
}

static void print_paths(const struct path_list *list)
{
	vec_foreach (const struct path, path, list)
		printf("%c%s%c", path->tracked ? 'T' : 'U', path->path, 0);
}

static void print_stats(const struct path_list *list, int64_t walk_us)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	printf("%zu paths, %zu left out, %lld us, peak %ld KiB\n", list->n, list->n_excluded,
		(long long)walk_us, usage.ru_maxrss);
}

static void list_tree(struct paths_options *options, bool stats_only)
{
	AUTO_FREE char *git_dir = NULL;
	AUTO_ERR struct err err = {0};
	struct path_list list = {0};
	struct timed_repos timed = {0};

	gitdir_at(options->root, &git_dir);
	struct repos_options repos_options = {.root = options->root, .git_dir = git_dir};
	repos_init(&timed.repos, &repos_options);
	options->repo_ctx = &timed;
	int64_t start = clock_us();
	if (paths_list(options, &list, &err) < 0)
		printf("E%s: %s%c", err_info(err.id)->name, err.message, 0);
	if (stats_only)
		print_stats(&list, clock_us() - start - timed.us);
	else
		print_paths(&list);
	putchar(0);
	path_list_done(&list);
	repos_done(&timed.repos);
}

static int list_main(int argc, char **argv)
{
	AUTO_STRV struct strv include = {0}, paths = {0}, allow = {0};
	bool stats_only = false;
	struct paths_options options = {
		.repo = find_repo,
		.include = &include,
		.paths = &paths,
		.allow = &allow,
	};

	strv_add(&allow, ".");
	for (int opt; (opt = getopt(argc, argv, "qI:p:")) != -1;) {
		if (opt == 'q')
			stats_only = true;
		else if (opt == 'I')
			strv_add(&include, optarg);
		else if (opt == 'p')
			strv_add(&paths, optarg);
		else
			return 2;
	}
	for (; optind < argc; optind++) {
		AUTO_FREE char *root = NULL;
		AUTO_ERR struct err err = {0};
		if (fs_realpath(argv[optind], &root, &err) < 0)
			return die(&err);
		options.root = root;
		list_tree(&options, stats_only);
	}
	return 0;
}

int main(int argc, char **argv)
{
	if (argc > 2 && strcmp(argv[1], "check-ignore") == 0)
		return check_ignore_main(argc - 1, argv + 1);
	if (argc > 2 && strcmp(argv[1], "list") == 0)
		return list_main(argc - 1, argv + 1);
	fprintf(stderr, "usage: snap_tool check-ignore|list ...\n");
	return 2;
}
