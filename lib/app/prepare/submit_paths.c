/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/prepare/prepare.h"
#include "base/loop/proc.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/words.h"
#include "core/image/code.h"

/*
 * Warnings, notices, and the entries of the tree
 */

void submit_warn(struct submit *submit, const char *fmt, ...)
{
	const struct submit_events *events = submit->events;
	va_list args;

	va_start(args, fmt);
	AUTO_FREE char *text = mem_vprintf(fmt, args);
	va_end(args);
	strv_add(&submit->warnings, text);
	if (events && events->warning)
		events->warning(events->ctx, text);
}

void submit_note(struct submit *submit, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	strv_add_take(&submit->notices, mem_vprintf(fmt, args));
	va_end(args);
}

static int read_entries(struct submit *submit)
{
	AUTO_ENTRIES struct entry_list list = {0};
	AUTO(code_done) struct code code = {0};

	if (submit->parent)
		return run_entries(submit->session, submit->parent, &submit->from_entries, NULL);
	int r = code_open(submit->session, submit->from_ref, &code, NULL);
	if (r == 0)
		r = image_entries_above(code.layout, &code.image, 0, &list, NULL);
	if (r < 0)
		return r;
	submit->from_entries = list;
	list = (struct entry_list){0};
	return 0;
}

const struct entry_list *submit_entries(struct submit *submit)
{
	if (submit->snapshot)
		return &submit->snapshot->entries;
	if (!submit->from_digest)
		return NULL;
	if (!submit->has_entries)
		submit->has_entries = read_entries(submit) == 0;
	return submit->has_entries ? &submit->from_entries : NULL;
}

/*
 * No path leads back into the live tree: what of the command and of the environment is a path below
 * its root becomes WORDS_TREE/PATH, which each target replaces by the place of the attempt's own
 * tree.
 */

enum { TEXT_MAX = 1 << 20, SHOWN_MAX = 5 };

struct own {
	struct submit *submit;
	const char *root;      /* real */
	char *alias;           /* the root as $PWD spells it; NULL: the same */
	char *base;            /* where the command is started, absolute */
	struct strv own_paths; /* paths in the tree that became the run's own */
	bool has_path;         /* the text at hand has a path below the root */
};

static void own_done(struct own *own)
{
	free(own->alias);
	free(own->base);
	strv_done(&own->own_paths);
}

/* The root as this shell spells it, where that goes by a link. */
static char *find_alias(const struct submit *submit)
{
	const char *root = submit->live_root, *prefix = submit->spec.cwd;
	const char *pwd = env_get(submit->session->env.env, "PWD");
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
	const char *prefix = own->submit->spec.cwd;
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
	const char *home = own->submit->session->dirs.home, *rest = NULL;
	AUTO_FREE char *path = NULL, *real = NULL;

	if (*text == '/') {
		path = fs_join_normal("", text);
	} else if (home && text[0] == '~' && strchr("/", text[1])) {
		path = fs_join_normal(home, text[1] ? text + 2 : ".");
	} else if (strstr(text, "..") && leaves_tree(own, text)) {
		path = fs_join_normal(own->base, text);
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

static bool submit_paths_is_below(const char *path, const char *dir)
{
	return !*dir || fs_below(path, dir);
}

static bool in_snapshot(const struct own *own, const char *path)
{
	const struct entry_list *entries = submit_entries(own->submit);

	if (!entries)
		return true;
	vec_foreach (const struct entry, entry, entries)
		if (submit_paths_is_below(entry->path, path) ||
			(entry->kind == ENTRY_LINK && submit_paths_is_below(path, entry->path)))
			return true;
	return false;
}

/* Links of data and outputs, with what is below and above them. */
static bool is_linked(const struct own *own, const char *path)
{
	const struct runtime *runtime = &own->submit->spec.runtime;

	for (size_t i = 0; i < runtime->data.n; i++)
		if (submit_paths_is_below(path, runtime->data.v[i].path) ||
			submit_paths_is_below(runtime->data.v[i].path, path))
			return true;
	for (size_t i = 0; i < runtime->outputs.n; i++)
		if (submit_paths_is_below(path, runtime->outputs.v[i]) ||
			submit_paths_is_below(runtime->outputs.v[i], path))
			return true;
	return false;
}

/* Whether path (in the tree) is or lies in a Python environment of the live tree. */
static bool submit_in_venv(const struct submit *submit, const char *path)
{
	AUTO_FREE char *dir = mem_strdup(path);

	for (char *slash; *dir; *slash = '\0') {
		AUTO_FREE char *mark = mem_printf("%s/%s/pyvenv.cfg", submit->live_root, dir);
		if (access(mark, F_OK) == 0)
			return true;
		slash = strrchr(dir, '/');
		if (!slash)
			return false;
	}
	return false;
}

static bool submit_paths_is_here(const struct own *own, const char *path)
{
	AUTO_FREE char *live = fs_join(own->root, path);
	struct stat st;

	return lstat(live, &st) == 0;
}

/* Warn of a path that exists here and will be missing in the run. */
static void warn_missing(const struct own *own, const char *path)
{
	struct submit *submit = own->submit;
	bool local = submit->target->ops->is_here;
	AUTO_FREE char *shown = str_escaped(path);

	submit_warn(submit,
		"%s/%s is not in the snapshot%s: name it in dlrun.yaml as `data: [%s]` (or outputs: "
		"for results, include: for code)",
		own->root, shown,
		local ? ", so the run would use your working tree" : ", so the run will miss it",
		shown);
}

/* Whether path is the run's own from now on. */
static bool submit_paths_is_own(struct own *own, const char *path)
{
	bool local = own->submit->target->ops->is_here;
	AUTO_FREE char *fixed = mem_strndup(path, strcspn(path, "*?["));

	/* A pattern counts by the directory that it begins in. */
	if (strlen(fixed) < strlen(path)) {
		char *slash = strrchr(fixed, '/');
		*(slash ? slash : fixed) = '\0';
	}
	own->has_path = true;
	/* A path that does not exist yet will be created in the run, if the run has its closest
	 * existing parent. */
	AUTO_FREE char *there = mem_strdup(fixed);
	while (*there && !submit_paths_is_here(own, there))
		*(strrchr(there, '/') ? strrchr(there, '/') : there) = '\0';
	if (is_linked(own, fixed) || !*there || in_snapshot(own, there)) {
		const char *name = *path ? path : ".";
		if (strv_find(&own->own_paths, name) < 0)
			strv_add(&own->own_paths, name);
		return true;
	}
	/* A local run uses the interpreter of a venv in place, as the shell does. */
	if (!local || !submit_in_venv(own->submit, fixed))
		warn_missing(own, fixed);
	return false;
}

/*
 * Texts that hold paths
 */

/* "@FILE", "-I/PATH", "///PATH" of a URL: where the path begins. */
static size_t path_offset(const char *text)
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

static bool submit_paths_add_piece(struct own *own, const char *text, struct buf *out)
{
	size_t offset = path_offset(text);
	AUTO_FREE char *path = below_root(own, text + offset);

	if (!path || !submit_paths_is_own(own, path))
		return false;
	buf_add(out, text, offset);
	buf_addf(out, "%s%s%s", WORDS_TREE, *path ? "/" : "", path);
	if (*path && str_ends(text, "/"))
		buf_addc(out, '/');
	return true;
}

/* Lists of paths and values of options: in pieces, unless the whole is a path that exists. */
static bool submit_paths_add_text(struct own *own, const char *text, struct buf *out)
{
	static const char separators[] = "=:,;";
	AUTO_FREE char *whole = below_root(own, text + path_offset(text));
	bool changed = false;

	if (!strpbrk(text, separators) || (whole && submit_paths_is_here(own, whole)))
		return submit_paths_add_piece(own, text, out);
	while (*text) {
		size_t len = strcspn(text, separators);
		AUTO_FREE char *piece = mem_strndup(text, len);
		if (submit_paths_add_piece(own, piece, out))
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
static bool submit_paths_names(const char *text, const char *root)
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
	if (text && (submit_paths_names(text, own->root) || submit_paths_names(text, own->alias)))
		submit_warn(own->submit,
			"%s names your working tree (%s), which the run would go back to: use "
			"relative paths",
			what, own->root);
}

/* NULL: it stays as it is. The caller frees. */
static char *rewrite(struct own *own, const char *what, const char *text)
{
	AUTO_BUF struct buf out = buf_with(TEXT_MAX);

	own->has_path = false;
	if (submit_paths_add_text(own, text, &out) && buf_check(&out, what, NULL) == 0)
		return buf_take(&out);
	if (!own->has_path)
		warn_naming(own, what, text);
	return NULL;
}

/*
 * The command and the environment
 */

char *submit_relative(const struct submit *submit, const char *path)
{
	const char *prefix = submit->spec.cwd;
	AUTO_BUF struct buf out = buf_with(TEXT_MAX);

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
	AUTO_FREE char *relative = submit_relative(own->submit, path + (*path == '/'));

	if (strchr(relative, '/'))
		return TAKE(relative);
	return mem_printf("./%s", relative);
}

/* .venv/bin/python runs here as it does in the shell, unless a setup makes another one. */
static void live_python(struct own *own, char **word)
{
	const struct submit *submit = own->submit;
	AUTO_FREE char *path = fs_join_normal(submit->spec.cwd, *word);

	if (**word == '/' || !strchr(*word, '/') || !path || submit->spec.runtime.setup.run ||
		!submit->target->ops->is_here || !submit_paths_is_here(own, path) ||
		in_snapshot(own, path) || !submit_in_venv(submit, path))
		return;
	free(*word);
	*word = fs_join(own->root, path);
}

static void own_words(struct own *own, struct strv *command, bool shell)
{
	if (shell) {
		warn_naming(own, "the command line", command->v[0]);
		return;
	}
	live_python(own, &command->v[0]);
	for (size_t i = 0; i < command->n; i++) {
		AUTO_FREE char *text = rewrite(own, "the command", command->v[i]);
		if (!text)
			continue;
		free(command->v[i]);
		command->v[i] = i == 0 && str_starts(text, WORDS_TREE) ? program_word(own, text)
								       : TAKE(text);
	}
}

static void own_env(struct own *own, struct strv *env)
{
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

static void note_own_paths(const struct own *own)
{
	AUTO_BUF struct buf list = buf_with(TEXT_MAX);

	if (own->own_paths.n == 0)
		return;
	for (size_t i = 0; i < own->own_paths.n && i < SHOWN_MAX; i++) {
		AUTO_FREE char *shown = str_escaped(own->own_paths.v[i]);
		buf_addf(&list, "%s%s", i ? ", " : "", shown);
	}
	if (own->own_paths.n > SHOWN_MAX)
		buf_addf(&list, " and %zu more", own->own_paths.n - SHOWN_MAX);
	submit_note(own->submit, "paths below %s are the run's own: %s", own->root, list.data);
}

void submit_own_paths(struct submit *submit)
{
	const struct submit_options *options = submit->options;
	struct spec *spec = &submit->spec;
	struct roles_part part;
	bool is_old = submit->from_digest && !(options->command && options->command->n) &&
		      !(options->env && options->env->n);
	AUTO(own_done) struct own own = {.submit = submit};

	if (!submit->live_root || !submit->target || is_old || submit->spec.terminal ||
		submit->spec.command.n == 0)
		return;
	own.root = submit->live_root;
	own.alias = find_alias(submit);
	own.base = fs_join(own.root, submit->spec.cwd);
	if (roles_take_command(spec))
		own_words(&own, &spec->command, spec->shell);
	own_env(&own, &spec->env);
	vec_foreach (struct role, role, &spec->roles.list) {
		if (role->command.n)
			own_words(&own, &role->command, role->shell);
		own_env(&own, &role->env);
	}
	roles_command_part(spec, &part);
	if (part.command != &spec->command)
		strv_copy(&spec->command, part.command);
	warn_naming(&own, "before:", submit->spec.runtime.before);
	warn_naming(&own, "setup:", submit->spec.runtime.setup.run);
	note_own_paths(&own);
}

/*
 * Will the program be found? Said at submit, because the run itself can only fail. On this machine
 * only: what another one has is not known here.
 */

enum { CANDIDATES_MAX = 20000 };

/* PATH as the run will have it: `env:` and --env may replace that of the shell,
 * path_of_shell(). */
static const char *path_of_run(const struct submit *submit)
{
	const char *path = env_get((const char *const *)submit->spec.env.v, "PATH");

	if (!path)
		path = env_get(submit->session->env.env, "PATH");
	return path ? path : "/bin:/usr/bin";
}

/*
 * Words without a slash: programs
 */

/* Names that begin like word, as those that are mistyped mostly do. */
static void add_programs(const char *dir_path, const char *word, struct strv *ret)
{
	AUTO_DIR DIR *dir = opendir(dir_path);
	struct dirent *entry;

	while (dir && ret->n < CANDIDATES_MAX && (entry = readdir(dir)))
		if (entry->d_name[0] == word[0])
			strv_add(ret, entry->d_name);
}

static char *suggest(const char *path, const char *word)
{
	AUTO_STRV struct strv names = {0};

	while (*path) {
		size_t len = strcspn(path, ":");
		AUTO_FREE char *dir = mem_strndup(path, len);
		if (*dir)
			add_programs(dir, word, &names);
		path += len + (path[len] == ':');
	}
	return mem_strdup(str_suggest(word, (const char *const *)names.v, names.n));
}

/*
 * Words with a slash: files
 */

/* A link on the way leads to where only the run's tree can tell. */
static bool goes_by_link(const struct entry_list *entries, const char *path)
{
	for (const char *slash = strchr(path, '/'); slash; slash = strchr(slash + 1, '/')) {
		AUTO_FREE char *dir = mem_strndup(path, (size_t)(slash - path));
		const struct entry *entry = entry_find(entries, dir);
		if (entry && entry->kind == ENTRY_LINK)
			return true;
	}
	return false;
}

/* Whether path, which the snapshot does not have, comes with data or may be made by the setup. */
static bool is_brought(const struct runtime *runtime, const char *path)
{
	for (size_t i = 0; i < runtime->data.n; i++) {
		const char *data = runtime->data.v[i].path;
		if (str_starts(path, data) && strchr("/", path[strlen(data)]))
			return true;
	}
	return runtime->setup.run || runtime->before;
}

static void lookup_file(struct submit *submit, const char *word)
{
	AUTO_FREE char *path = fs_join_normal(submit->spec.cwd, word), *here = NULL;
	AUTO_FREE char *shown = str_escaped(word);
	const struct entry *entry;

	if (!path || !submit->snapshot || goes_by_link(&submit->snapshot->entries, path))
		return;
	entry = entry_find(&submit->snapshot->entries, path);
	if (entry ? entry->kind == ENTRY_LINK || entry->exec
		  : is_brought(&submit->spec.runtime, path))
		return;
	submit->missing_program = true;
	here = fs_join(submit->place->root, path);
	if (entry)
		submit_warn(submit, "%s is not executable: chmod +x %s", shown, shown);
	else if (access(here, F_OK) == 0)
		submit_warn(submit, "%s is not part of the snapshot: --include %s brings it", shown,
			path);
	else
		submit_warn(submit, "%s: no such file in the tree", shown);
}

/*
 * Lookup of the first word of a command
 */

static void lookup_program(struct submit *submit, const char *word)
{
	const char *path = path_of_run(submit);
	AUTO_FREE char *found = proc_find(word, path), *near = NULL;
	AUTO_FREE char *shown = str_escaped(word);

	/* A relative element of PATH is seen from the run's directory, not from here. */
	if ((found && found[0] == '/') || strstr(path, "::") || path[0] != '/' ||
		strstr(path, ":.") || is_brought(&submit->spec.runtime, word))
		return;
	submit->missing_program = true;
	near = suggest(path, word);
	if (near)
		submit_warn(submit, "%s: command not found; did you mean %s?", shown, near);
	else
		submit_warn(submit, "%s: command not found", shown);
}

static void submit_paths_lookup(struct submit *submit, const struct strv *command, bool shell)
{
	const char *word = command->v[0];
	struct stat st;

	if (shell)
		return;
	/* Each member of a study has a program of its own. */
	if (submit->study && strchr(word, '{'))
		return;
	if (!strchr(word, '/')) {
		/* Lines in front of it may change PATH. */
		if (!submit->spec.runtime.before)
			lookup_program(submit, word);
	} else if (word[0] != '/') {
		lookup_file(submit, word);
	} else if (access(word, X_OK) < 0 || stat(word, &st) < 0 || !S_ISREG(st.st_mode)) {
		AUTO_FREE char *shown = str_escaped(word);
		submit->missing_program = true;
		submit_warn(submit, "%s: no such program", shown);
	}
}

void submit_lookup(struct submit *submit)
{
	const struct spec *spec = &submit->spec;

	if (!submit->target->ops->is_here)
		return;
	if (roles_take_command(spec))
		submit_paths_lookup(submit, &spec->command, spec->shell);
	vec_foreach (const struct role, role, &spec->roles.list)
		if (role->command.n)
			submit_paths_lookup(submit, &role->command, role->shell);
}
