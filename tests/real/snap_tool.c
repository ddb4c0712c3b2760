/*
 * The ignore engine and the walk of lib/snap for tests that compare them with git.
 *
 *	snap_tool check-ignore [-i] [-x FILE]... ROOT <PATHS
 *	snap_tool list [-i] [-x FILE] [OPTION]... ROOT... >PATHS
 *
 * check-ignore: PATHS end in NUL and are relative to ROOT; for each a line on stdout: `x` ignored,
 * `!` brought back by a negation, `.` no rule. Rules are those of the .gitignore files of ROOT,
 * then of each -x FILE in order.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/map.h"
#include "base/vec.h"
#include "snap/ignore.h"

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

static enum ignore_verdict check_path(struct checker *c, char *path)
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

int main(int argc, char **argv)
{
	if (argc > 2 && strcmp(argv[1], "check-ignore") == 0)
		return check_ignore_main(argc - 1, argv + 1);
	fprintf(stderr, "usage: snap_tool check-ignore|list ...\n");
	return 2;
}
