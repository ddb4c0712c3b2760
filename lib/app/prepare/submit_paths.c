/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/prepare/submission.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/words.h"

/*
 * No path leads back into the live tree: what of the command and of the environment is a path below
 * its root becomes WORDS_TREE/PATH, which each target replaces by the place of the attempt's own
 * tree.
 */

enum { TEXT_MAX = 1 << 20, SHOWN_MAX = 5 };

struct own {
	struct submission *submission;
	const char *root; /* real */
	char *alias;      /* the root as $PWD spells it; NULL: the same */
	char *base;       /* where the command is started, absolute */
	struct strv told; /* paths in the tree that became the run's own */
	bool judged;      /* of the text at hand: something in it is a path below the root */
};

static void own_done(struct own *own)
{
	free(own->alias);
	free(own->base);
	strv_done(&own->told);
}

char *submission_tree_path(const char *dir, const char *word)
{
	AUTO_FREE char *joined = fs_join(dir, word);
	char *out = mem_alloc(strlen(joined) + 2, 1);
	size_t n = 0;

	for (const char *s = joined; *s; s += strspn(s, "/")) {
		size_t len = strcspn(s, "/");
		bool up = len == 2 && s[0] == '.' && s[1] == '.';
		if (up && n == 0) {
			free(out);
			return NULL;
		}
		if (up) {
			while (n > 0 && out[--n] != '/')
				;
		} else if (len && (len != 1 || s[0] != '.')) {
			if (n > 0)
				out[n++] = '/';
			memcpy(out + n, s, len);
			n += len;
		}
		s += len;
	}
	out[n] = '\0';
	return out;
}

/* The root as this shell spells it, where that goes by a link. */
static char *find_alias(const struct submission *submission)
{
	const char *root = submission->live_root, *prefix = submission->spec.cwd;
	const char *pwd = env_get(submission->session->env.env, "PWD");
	AUTO_FREE char *real = NULL;
	size_t len, below = str_eq(prefix, ".") ? 0 : strlen(prefix) + 1;

	if (str_empty(pwd) || *pwd != '/' || fs_realpath(pwd, &real, NULL) < 0)
		return NULL;
	AUTO_FREE char *here = fs_join(root, prefix);
	len = strlen(pwd);
	if (!str_eq(real, here) || len <= below || (below && !str_ends(pwd, prefix)))
		return NULL;
	AUTO_FREE char *alias = mem_strndup(pwd, len - below);
	return str_eq(alias, root) ? NULL : TAKE(alias);
}

/* Through links, as far as the path is there. */
static char *real_path(const char *path)
{
	AUTO_FREE char *head = mem_strdup(path);

	for (;;) {
		AUTO_FREE char *real = NULL;
		if (fs_realpath(*head ? head : "/", &real, NULL) == 0)
			return mem_printf(
				"%s%s", str_eq(real, "/") ? "" : real, path + strlen(head));
		char *slash = strrchr(head, '/');
		if (!slash)
			return NULL;
		*slash = '\0';
	}
}

/* Whether a relative path leaves the tree on its way. */
static bool leaves_tree(const struct own *own, const char *text)
{
	const char *prefix = own->submission->spec.cwd;
	int depth = str_eq(prefix, ".") ? 0 : 1;

	for (const char *s = prefix; depth && *s; s++)
		depth += *s == '/';
	for (const char *s = text; *s; s += strspn(s, "/")) {
		size_t len = strcspn(s, "/");
		if (len == 2 && s[0] == '.' && s[1] == '.') {
			if (--depth < 0)
				return true;
		} else if (len != 1 || *s != '.') {
			depth++;
		}
		s += len;
	}
	return false;
}

/* text in the tree ("" is its root); NULL: it is no path below the root. The caller frees. */
static char *below_root(const struct own *own, const char *text)
{
	const char *home = own->submission->session->dirs.home, *rest = NULL;
	AUTO_FREE char *path = NULL, *real = NULL;

	if (*text == '/') {
		path = submission_tree_path("", text);
	} else if (home && text[0] == '~' && strchr("/", text[1])) {
		path = submission_tree_path(home, text[1] ? text + 2 : ".");
	} else if (strstr(text, "..") && leaves_tree(own, text)) {
		path = submission_tree_path(own->base, text);
	}
	if (!path)
		return NULL;
	rest = fs_below(path, own->root + 1);
	if (!rest && own->alias)
		rest = fs_below(path, own->alias + 1);
	if (!rest) {
		AUTO_FREE char *absolute = mem_printf("/%s", path);
		real = real_path(absolute);
		/* The real path of the root of the file system is empty. */
		rest = real ? fs_below(real + (*real == '/'), own->root + 1) : NULL;
	}
	return mem_strdup(rest);
}

/*
 * Paths that the run has
 */

static bool is_below(const char *path, const char *dir)
{
	return !*dir || fs_below(path, dir);
}

static bool in_snapshot(const struct own *own, const char *path)
{
	const struct entry_list *entries = submission_entries(own->submission);

	if (!entries)
		return true;
	for (size_t i = 0; i < entries->n; i++) {
		const struct entry *entry = &entries->v[i];
		if (is_below(entry->path, path) ||
			(entry->kind == ENTRY_LINK && is_below(path, entry->path)))
			return true;
	}
	return false;
}

/* Links of data and outputs, with what is below and above them. */
static bool is_linked(const struct own *own, const char *path)
{
	const struct world *world = &own->submission->spec.world;

	for (size_t i = 0; i < world->data.n; i++)
		if (is_below(path, world->data.v[i].path) || is_below(world->data.v[i].path, path))
			return true;
	for (size_t i = 0; i < world->outputs.n; i++)
		if (is_below(path, world->outputs.v[i]) || is_below(world->outputs.v[i], path))
			return true;
	return false;
}

bool submission_in_venv(const struct submission *submission, const char *path)
{
	AUTO_FREE char *dir = mem_strdup(path);

	for (char *slash; *dir; *slash = '\0') {
		AUTO_FREE char *mark = mem_printf("%s/%s/pyvenv.cfg", submission->live_root, dir);
		if (access(mark, F_OK) == 0)
			return true;
		slash = strrchr(dir, '/');
		if (!slash)
			return false;
	}
	return false;
}

static bool is_here(const struct own *own, const char *path)
{
	AUTO_FREE char *live = fs_join(own->root, path);
	struct stat st;

	return lstat(live, &st) == 0;
}

/* Warn of a path that exists here and will be missing in the run. */
static void warn_missing(const struct own *own, const char *path)
{
	struct submission *submission = own->submission;
	bool local = submission->target->ops->is_here;
	AUTO_FREE char *shown = str_escaped(path);

	submission_warn(submission,
		"%s/%s is not in the snapshot%s: name it in dlrun.yaml as `data: [%s]` (or outputs: "
		"for results, include: for code)",
		own->root, shown,
		local ? ", so the run would use your working tree" : ", so the run will miss it",
		shown);
}

/* Whether path is the run's own from now on. */
static bool is_own(struct own *own, const char *path)
{
	bool local = own->submission->target->ops->is_here;
	AUTO_FREE char *fixed = mem_strndup(path, strcspn(path, "*?["));

	/* A pattern counts by the directory that it begins in. */
	if (strlen(fixed) < strlen(path)) {
		char *slash = strrchr(fixed, '/');
		*(slash ? slash : fixed) = '\0';
	}
	own->judged = true;
	/* A path that does not exist yet will be created in the run, if the run has its closest
	 * existing parent. */
	AUTO_FREE char *there = mem_strdup(fixed);
	while (*there && !is_here(own, there))
		*(strrchr(there, '/') ? strrchr(there, '/') : there) = '\0';
	if (is_linked(own, fixed) || !*there || in_snapshot(own, there)) {
		const char *name = *path ? path : ".";
		if (strv_find(&own->told, name) < 0)
			strv_add(&own->told, name);
		return true;
	}
	/* A local run uses the interpreter of a venv in place, as the shell does. */
	if (!local || !submission_in_venv(own->submission, fixed))
		warn_missing(own, fixed);
	return false;
}

/*
 * Texts that hold paths
 */

/* "@FILE", "-I/PATH", "///PATH" of a URL: what stands in front of the path. */
static size_t skip_front(const char *text)
{
	size_t n = 0;

	if (text[0] == '-' && isalpha((unsigned char)text[1]) && text[2] == '/')
		n = 2;
	if (text[0] == '@')
		n = 1;
	while (text[n] == '/' && text[n + 1] == '/')
		n++;
	return n;
}

static bool add_piece(struct own *own, const char *text, struct buf *out)
{
	size_t front = skip_front(text);
	AUTO_FREE char *path = below_root(own, text + front);

	if (!path || !is_own(own, path))
		return false;
	buf_add(out, text, front);
	buf_addf(out, "%s%s%s", WORDS_TREE, *path ? "/" : "", path);
	if (*path && str_ends(text, "/"))
		buf_addc(out, '/');
	return true;
}

/* Lists of paths and values of options: in pieces, unless the whole is a path that exists. */
static bool add_text(struct own *own, const char *text, struct buf *out)
{
	static const char separators[] = "=:,;";
	AUTO_FREE char *whole = below_root(own, text + skip_front(text));
	bool changed = false;

	if (!strpbrk(text, separators) || (whole && is_here(own, whole)))
		return add_piece(own, text, out);
	while (*text) {
		size_t len = strcspn(text, separators);
		AUTO_FREE char *piece = mem_strndup(text, len);
		if (add_piece(own, piece, out))
			changed = true;
		else
			buf_adds(out, piece);
		text += len;
		if (*text)
			buf_addc(out, *text++);
	}
	return changed;
}

/* Whether root stands in text as a path of its own. */
static bool names(const char *text, const char *root)
{
	static const char of_names[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
	size_t len = root ? strlen(root) : 0;

	for (const char *at = root ? strstr(text, root) : NULL; at; at = strstr(at + 1, root)) {
		char before = at > text ? at[-1] : ' ';
		if (!(at[len] && strchr(of_names, at[len])) && before != '/' &&
			!strchr(of_names, before))
			return true;
	}
	return false;
}

/* Text that holds the root somewhere in its middle is not rewritten, only warned of. */
static void warn_naming(const struct own *own, const char *what, const char *text)
{
	if (text && (names(text, own->root) || names(text, own->alias)))
		submission_warn(own->submission,
			"%s names your working tree (%s), which the run would go back to: use "
			"relative paths",
			what, own->root);
}

/* NULL: it stays as it is. The caller frees. */
static char *rewrite(struct own *own, const char *what, const char *text)
{
	AUTO_BUF struct buf out = {0};

	buf_init(&out, TEXT_MAX);
	own->judged = false;
	if (add_text(own, text, &out) && buf_check(&out, what, NULL) == 0)
		return buf_take(&out);
	if (!own->judged)
		warn_naming(own, what, text);
	return NULL;
}

/*
 * The command and the environment
 */

char *submission_relative(const struct submission *submission, const char *path)
{
	const char *prefix = submission->spec.cwd;
	AUTO_BUF struct buf out = {0};

	buf_init(&out, TEXT_MAX);
	if (!str_eq(prefix, ".") && fs_below(path, prefix) && *fs_below(path, prefix))
		return mem_strdup(fs_below(path, prefix));
	for (const char *s = str_eq(prefix, ".") ? NULL : prefix; s;
		s = strchr(s, '/') ? strchr(s, '/') + 1 : NULL)
		buf_adds(&out, "../");
	buf_adds(&out, *path ? path : ".");
	return buf_take(&out);
}

/* The program itself stays a word that is looked up from its directory. */
static char *program_word(const struct own *own, const char *word)
{
	const char *path = word + strlen(WORDS_TREE);
	AUTO_FREE char *relative = submission_relative(own->submission, path + (*path == '/'));

	if (strchr(relative, '/'))
		return TAKE(relative);
	return mem_printf("./%s", relative);
}

/* .venv/bin/python runs here as it does in the shell, unless a setup makes another one. */
static void live_python(struct own *own, char **word)
{
	const struct submission *submission = own->submission;
	AUTO_FREE char *path = submission_tree_path(submission->spec.cwd, *word);

	if (**word == '/' || !strchr(*word, '/') || !path || submission->spec.world.setup.run ||
		!submission->target->ops->is_here || !is_here(own, path) ||
		in_snapshot(own, path) || !submission_in_venv(submission, path))
		return;
	free(*word);
	*word = fs_join(own->root, path);
}

static void own_words(struct own *own)
{
	struct spec *spec = &own->submission->spec;

	if (spec->shell) {
		warn_naming(own, "the command line", spec->command.v[0]);
		return;
	}
	live_python(own, &spec->command.v[0]);
	for (size_t i = 0; i < spec->command.n; i++) {
		AUTO_FREE char *text = rewrite(own, "the command", spec->command.v[i]);
		if (!text)
			continue;
		free(spec->command.v[i]);
		spec->command.v[i] = i == 0 && str_starts(text, WORDS_TREE)
					     ? program_word(own, text)
					     : TAKE(text);
	}
}

static void own_env(struct own *own)
{
	struct strv *env = &own->submission->spec.env;

	for (size_t i = 0; i < env->n; i++) {
		size_t len = strcspn(env->v[i], "=");
		AUTO_FREE char *name = mem_strndup(env->v[i], len);
		AUTO_FREE char *text =
			env->v[i][len] ? rewrite(own, name, env->v[i] + len + 1) : NULL;
		if (!text)
			continue;
		free(env->v[i]);
		env->v[i] = mem_printf("%s=%s", name, text);
	}
}

static void tell(const struct own *own)
{
	AUTO_BUF struct buf list = {0};

	if (own->told.n == 0)
		return;
	buf_init(&list, TEXT_MAX);
	for (size_t i = 0; i < own->told.n && i < SHOWN_MAX; i++) {
		AUTO_FREE char *shown = str_escaped(own->told.v[i]);
		buf_addf(&list, "%s%s", i ? ", " : "", shown);
	}
	if (own->told.n > SHOWN_MAX)
		buf_addf(&list, " and %zu more", own->told.n - SHOWN_MAX);
	submission_note(
		own->submission, "paths below %s are the run's own: %s", own->root, list.data);
}

void submission_own_paths(struct submission *submission)
{
	const struct submit_options *options = submission->options;
	bool is_old = submission->from_digest && !(options->command && options->command->n) &&
		      !(options->env && options->env->n);
	AUTO(own_done) struct own own = {.submission = submission};

	if (!submission->live_root || !submission->target || is_old || submission->spec.terminal ||
		submission->spec.command.n == 0)
		return;
	own.root = submission->live_root;
	own.alias = find_alias(submission);
	own.base = fs_join(own.root, submission->spec.cwd);
	own_words(&own);
	own_env(&own);
	warn_naming(&own, "before:", submission->spec.world.before);
	warn_naming(&own, "setup:", submission->spec.world.setup.run);
	tell(&own);
}
