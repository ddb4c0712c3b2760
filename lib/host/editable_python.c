/* SPDX-License-Identifier: Apache-2.0 */
#include "host/editable_python.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/loop/proc.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"

enum { HEAD_MAX = 512, CFG_MAX = 64 << 10, LINKS_MAX = 16, NESTED_MAX = 4 };

/*
 * The interpreter of a command
 */

/* Relative paths, in PATH or as a command, are relative to the working directory of the program. */
static char *find_program(
	const struct editable_query *query, const struct python *python, const char *name)
{
	const char *path = env_get(query->env, "PATH");
	AUTO_FREE char *first =
		python->activated ? mem_printf("%s/bin/%s", python->activated, name) : NULL;

	if (strchr(name, '/')) {
		AUTO_FREE char *full = fs_join(query->cwd, name);
		return access(full, X_OK) == 0 ? TAKE(full) : NULL;
	}
	if (first && access(first, X_OK) == 0)
		return TAKE(first);
	AUTO_FREE char *found = proc_find(name, path ? path : "/bin:/usr/bin");
	return found ? fs_join(query->cwd, found) : NULL;
}

static void read_head(const char *path, struct buf *ret)
{
	AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	struct stat st;
	ssize_t n = -1;

	buf_init(ret, HEAD_MAX);
	if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
		n = read(fd, buf_room(ret, HEAD_MAX), HEAD_MAX);
	if (n > 0)
		buf_added(ret, (size_t)n);
}

/*
 * pyenv: PATH leads to a script that chooses
 */

static char *first_word_of(const char *path)
{
	AUTO_BUF struct buf text = {0};
	size_t start, len;

	if (fs_read(path, CFG_MAX, &text, NULL, NULL) < 0)
		return NULL;
	start = strspn(text.data, " \t\r\n");
	len = strcspn(text.data + start, " \t\r\n:");
	return len ? mem_strndup(text.data + start, len) : NULL;
}

static char *pyenv_version(const struct editable_query *query, const char *pyenv)
{
	const char *set = env_get(query->env, "PYENV_VERSION");
	AUTO_FREE char *dir = mem_strdup(query->cwd);
	AUTO_FREE char *global = fs_join(pyenv, "version");

	if (!str_empty(set))
		return mem_strndup(set, strcspn(set, ":"));
	for (;;) {
		AUTO_FREE char *file = fs_join(dir, ".python-version");
		char *version = first_word_of(file);
		if (version)
			return version;
		if (str_eq(dir, "/") || !strchr(dir, '/'))
			break;
		char *up = fs_dirname(dir);
		free(dir);
		dir = up;
	}
	return first_word_of(global);
}

/* "3.12" means the last of 3.12.x. */
static char *pyenv_prefix(const char *pyenv, const char *version)
{
	AUTO_FREE char *versions = fs_join(pyenv, "versions"), *best = NULL;
	AUTO_FREE char *start = mem_printf("%s.", version);
	AUTO_DIR DIR *dir = opendir(versions);
	struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		const char *name = entry->d_name;
		if (str_eq(name, version))
			return fs_join(versions, name);
		if (!str_starts(name, start))
			continue;
		/* As numbers: 3.12.10 is after 3.12.9. */
		if (!best || strlen(name) > strlen(best) ||
			(strlen(name) == strlen(best) && strcmp(name, best) > 0)) {
			free(best);
			best = mem_strdup(name);
		}
	}
	return best ? fs_join(versions, best) : NULL;
}

static char *look_through_shim(const struct editable_query *query, const char *exe)
{
	const char *shims = strstr(exe, "/shims/");

	if (!shims || strchr(shims + strlen("/shims/"), '/'))
		return NULL;
	AUTO_FREE char *pyenv = mem_strndup(exe, (size_t)(shims - exe));
	AUTO_FREE char *version = pyenv_version(query, pyenv);
	AUTO_FREE char *prefix = version ? pyenv_prefix(pyenv, version) : NULL;
	AUTO_FREE char *real = prefix ? mem_printf("%s/bin/%s", prefix, fs_basename(exe)) : NULL;
	return real && access(real, X_OK) == 0 ? TAKE(real) : NULL;
}

static void take_exe(struct python *ret, char *exe, char *const *options, size_t n)
{
	free(ret->exe);
	ret->exe = exe;
	ret->options = (struct python_options){0};
	parse_python_options(options, n, &ret->options);
}

/* Take the python beside a script of uv that has $(…) in its second line. */
static bool take_sibling(const char *script, const struct strv *words, struct python *ret)
{
	AUTO_FREE char *real = NULL;
	bool relocatable = words->n && strchr(words->v[0], '$');

	if (!relocatable || fs_realpath(script, &real, NULL) < 0)
		return false;
	AUTO_FREE char *dir = fs_dirname(real);
	char *exe = fs_join(dir, "python");
	take_exe(ret, exe, NULL, 0);
	return true;
}

/* A console script, by its first lines. */
static bool take_script(const struct editable_query *query, const char *script, struct python *ret)
{
	AUTO_STRV struct strv words = {0};
	AUTO_BUF struct buf head = {0};

	read_head(script, &head);
	parse_shebang(head.data, head.len, &words);
	if (words.n && is_python_name(words.v[0])) {
		AUTO_FREE char *exe = find_program(query, ret, words.v[0]);
		char *real = exe ? look_through_shim(query, exe) : NULL;
		if (exe)
			take_exe(ret, real ? real : TAKE(exe), words.v + 1, words.n - 1);
		return ret->exe;
	}
	return take_sibling(script, &words, ret);
}

static bool take_program(const struct editable_query *query, const char *word, bool is_first,
	struct python *ret, char *const *rest, size_t n)
{
	AUTO_FREE char *path = NULL;

	if (!is_first && !is_python_name(word))
		return false;
	path = find_program(query, ret, word);
	if (!path)
		return false;
	char *real = look_through_shim(query, path);
	if (real && is_python_name(word)) {
		take_exe(ret, real, rest, n);
		return true;
	}
	if (real) {
		free(path);
		path = real;
	}
	if (!is_python_name(word))
		return take_script(query, path, ret);
	take_exe(ret, TAKE(path), rest, n);
	return true;
}

static bool is_shell(const char *word)
{
	static const char *const shells[] = {"sh", "bash", "dash", "zsh", "ksh"};

	for (size_t i = 0; i < ARRAY_LEN(shells); i++)
		if (str_eq(fs_basename(word), shells[i]))
			return true;
	return false;
}

/* X of "source X/bin/activate", the last one. */
static void note_activation(
	const struct editable_query *query, const struct strv *words, struct python *ret)
{
	static const char tail[] = "/bin/activate";
	const char *home = env_get(query->env, "HOME");

	for (size_t i = 1; i < words->n; i++) {
		const char *word = words->v[i], *before = words->v[i - 1];
		if (!str_ends(word, tail) || (!str_eq(before, "source") && !str_eq(before, ".")))
			continue;
		AUTO_FREE char *prefix = mem_strndup(word, strlen(word) - strlen(tail));
		const char *rest = str_starts(prefix, "~/")       ? prefix + 2
				   : str_starts(prefix, "$HOME/") ? prefix + 6
								  : NULL;
		free(ret->activated);
		ret->activated = fs_join(rest && home ? home : query->cwd, rest ? rest : prefix);
	}
}

static bool take_words(const struct editable_query *query, const struct strv *words, unsigned depth,
	struct python *ret);

static bool take_line(
	const struct editable_query *query, const char *line, unsigned depth, struct python *ret)
{
	AUTO_STRV struct strv words = {0};

	parse_shell_line(line, &words);
	return depth < NESTED_MAX && take_words(query, &words, depth + 1, ret);
}

/* bash -lc LINE */
static bool is_shell_option(const char *word)
{
	return word[0] == '-' && word[1] != '-' && str_ends(word, "c");
}

static bool has_project(const struct editable_query *query)
{
	AUTO_FREE char *dir = mem_strdup(query->cwd);

	for (;;) {
		AUTO_FREE char *file = fs_join(dir, "pyproject.toml");
		if (access(file, F_OK) == 0)
			return true;
		if (str_eq(dir, query->root) || str_eq(dir, "/") || !strchr(dir, '/'))
			return false;
		char *up = fs_dirname(dir);
		free(dir);
		dir = up;
	}
}

static bool take_prefix(const char *prefix, struct python *ret)
{
	AUTO_FREE char *exe = prefix ? mem_printf("%s/bin/python", prefix) : NULL;

	if (!exe || access(exe, X_OK) < 0)
		return false;
	take_exe(ret, TAKE(exe), NULL, 0);
	return true;
}

/* Within a project uv makes an environment in the run's own tree, unless told another place. */
static bool take_uv(
	const struct editable_query *query, const struct strv *words, struct python *ret)
{
	const char *place = env_get(query->env, "UV_PROJECT_ENVIRONMENT");

	if (place && *place == '/')
		return take_prefix(place, ret) || true;
	return strv_find(words, "--active") < 0 && strv_find(words, "--no-project") < 0 &&
	       has_project(query);
}

static bool is_uv_run(const struct strv *words, size_t i)
{
	return str_eq(fs_basename(words->v[i]), "uv") && i + 1 < words->n &&
	       str_eq(words->v[i + 1], "run");
}

/* Take the first command that is an interpreter or a script of one, or any word named like an
 * interpreter: the words in front of it (env, nice, mpirun -n 4) need not be known. */
static bool take_words(const struct editable_query *query, const struct strv *words, unsigned depth,
	struct python *ret)
{
	bool is_first = true, in_shell = false;

	note_activation(query, words, ret);
	for (size_t i = 0; i < words->n; i++) {
		const char *word = words->v[i];
		if (str_eq(word, ";")) {
			is_first = true;
			in_shell = false;
			continue;
		}
		if (is_first && is_assignment(word))
			continue;
		if (is_first && is_uv_run(words, i) && take_uv(query, words, ret))
			return true;
		if (take_program(query, word, is_first, ret, words->v + i + 1, words->n - i - 1))
			return true;
		if (in_shell && is_shell_option(word) && i + 1 < words->n)
			return take_line(query, words->v[i + 1], depth, ret);
		in_shell |= is_first && is_shell(word);
		is_first = false;
	}
	return false;
}

static void note_before(const struct editable_query *query, struct python *ret)
{
	AUTO_STRV struct strv words = {0};

	parse_shell_line(query->before, &words);
	note_activation(query, &words, ret);
}

void python_find(const struct editable_query *query, struct python *ret)
{
	static const char *const names[] = {"python", "python3"};
	bool found;

	*ret = (struct python){0};
	if (query->prefix) {
		take_prefix(query->prefix, ret);
		return;
	}
	if (query->before)
		note_before(query, ret);
	if (query->shell)
		found = query->command->n && take_line(query, query->command->v[0], 0, ret);
	else
		found = take_words(query, query->command, 0, ret);
	if (!found)
		found = take_prefix(ret->activated, ret);
	if (!found)
		found = take_prefix(env_get(query->env, "VIRTUAL_ENV"), ret);
	for (size_t i = 0; !found && i < ARRAY_LEN(names); i++)
		found = take_program(query, names[i], true, ret, NULL, 0);
}

void python_done(struct python *python)
{
	if (!python)
		return;
	free(python->exe);
	free(python->activated);
	*python = (struct python){0};
}

/*
 * Directories that the interpreter searches
 */

struct finder {
	struct python_sites *ret;
	char *version; /* "3.12"; NULL: any */
};

static void add_site(struct finder *finder, char *take)
{
	struct strv *dirs = &finder->ret->dirs;
	AUTO_FREE char *dir = take, *real = NULL;
	struct stat st;

	/* lib64 is often a link to lib. */
	if (dirs->n >= PYTHON_SITES_MAX || fs_realpath(dir, &real, NULL) < 0 ||
		strv_find(dirs, real) >= 0 || stat(real, &st) < 0 || !S_ISDIR(st.st_mode))
		return;
	strv_add_take(dirs, TAKE(real));
}

/* "python3.12" and "python3.13t" of lib. */
static bool is_lib_name(const struct finder *finder, const char *name)
{
	const char *version = name + strlen("python");
	size_t len;

	if (!str_starts(name, "python3.") || !str_is_digit(name[strlen("python3.")]))
		return false;
	len = strspn(version, "0123456789.");
	return !finder->version ||
	       (strlen(finder->version) == len && strncmp(finder->version, version, len) == 0);
}

static void add_lib(struct finder *finder, const char *lib)
{
	AUTO_DIR DIR *dir = opendir(lib);
	struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		if (!is_lib_name(finder, entry->d_name))
			continue;
		add_site(finder, mem_printf("%s/%s/site-packages", lib, entry->d_name));
		add_site(finder, mem_printf("%s/%s/dist-packages", lib, entry->d_name));
	}
}

static void add_prefix(struct finder *finder, const char *prefix)
{
	static const char *const libs[] = {"lib", "lib64"};

	for (size_t i = 0; i < ARRAY_LEN(libs); i++) {
		AUTO_FREE char *lib = fs_join(prefix, libs[i]);
		add_lib(finder, lib);
	}
}

/* Debian's python3 has its packages in two more places. */
static void add_base(struct finder *finder, const char *prefix)
{
	if (str_eq(prefix, "/usr"))
		add_prefix(finder, "/usr/local");
	add_prefix(finder, prefix);
	if (str_eq(prefix, "/usr"))
		add_site(finder, mem_strdup("/usr/lib/python3/dist-packages"));
}

static void add_user(struct finder *finder, const char *const *env)
{
	const char *base = env_get(env, "PYTHONUSERBASE"), *home = env_get(env, "HOME");
	AUTO_FREE char *fallback = home ? fs_join(home, ".local") : NULL;

	if (!str_empty(env_get(env, "PYTHONNOUSERSITE")))
		return;
	if (str_empty(base))
		base = fallback;
	if (base && *base == '/')
		add_prefix(finder, base);
}

/* The target of exe; NULL if it is no link. */
static char *follow_link(const char *exe)
{
	char target[PATH_MAX];
	ssize_t n = readlink(exe, target, sizeof(target) - 1);

	if (n <= 0)
		return NULL;
	target[n] = '\0';
	AUTO_FREE char *dir = fs_dirname(exe);
	return fs_join(dir, target);
}

/* pyvenv.cfg in the directory of exe or above: that directory; NULL if there is none. */
static char *venv_of(const char *exe, struct buf *ret_cfg)
{
	AUTO_FREE char *bin = fs_dirname(exe), *up = fs_dirname(bin);
	char **const dirs[] = {&bin, &up};

	for (size_t i = 0; i < ARRAY_LEN(dirs); i++) {
		AUTO_FREE char *cfg = fs_join(*dirs[i], "pyvenv.cfg");
		if (fs_read(cfg, CFG_MAX, ret_cfg, NULL, NULL) == 0)
			return TAKE(*dirs[i]);
	}
	return NULL;
}

static char *find_venv(const char *exe, struct buf *ret_cfg)
{
	AUTO_FREE char *at = mem_strdup(exe);

	for (int i = 0; at && i < LINKS_MAX; i++) {
		char *venv = venv_of(at, ret_cfg);
		if (venv)
			return venv;
		char *next = follow_link(at);
		free(at);
		at = next;
	}
	return NULL;
}

/* "3.12" of "python3.12"; NULL of "python3". */
static char *version_of(const char *exe)
{
	const char *name = fs_basename(exe);
	const char *digits = name + strcspn(name, "0123456789");
	size_t len = strspn(digits, "0123456789.");

	return memchr(digits, '.', len) ? mem_strndup(digits, len) : NULL;
}

static void add_base_python(
	struct finder *finder, const char *exe, const char *const *env, bool no_user)
{
	AUTO_FREE char *real = NULL;

	if (fs_realpath(exe, &real, NULL) < 0)
		return;
	AUTO_FREE char *bin = fs_dirname(real), *prefix = fs_dirname(bin);
	if (!finder->version)
		finder->version = version_of(real);
	if (!no_user)
		add_user(finder, env);
	add_base(finder, prefix);
	if (!finder->ret->prefix)
		finder->ret->prefix = TAKE(prefix);
}

/* Add the base of a virtual environment that sees the packages of its base. */
static void add_home(struct finder *finder, const struct buf *cfg, const struct python *python,
	const char *const *env)
{
	AUTO_FREE char *system =
		parse_venv_cfg(cfg->data, cfg->len, "include-system-site-packages");
	AUTO_FREE char *home = parse_venv_cfg(cfg->data, cfg->len, "home");

	if (!home || !system || strcasecmp(system, "true") != 0)
		return;
	AUTO_FREE char *exe = fs_join(home, fs_basename(python->exe));
	if (access(exe, F_OK) < 0) {
		free(exe);
		exe = fs_join(home, "python3");
	}
	add_base_python(finder, exe, env, python->options.no_user);
}

void python_sites_find(
	const struct python *python, const char *const *env, struct python_sites *ret)
{
	struct finder finder = {.ret = ret};
	AUTO_BUF struct buf cfg = {0};

	*ret = (struct python_sites){0};
	if (!python->exe)
		return;
	AUTO_FREE char *venv = find_venv(python->exe, &cfg);
	if (venv) {
		add_prefix(&finder, venv);
		ret->prefix = TAKE(venv);
		add_home(&finder, &cfg, python, env);
	} else {
		add_base_python(&finder, python->exe, env, python->options.no_user);
	}
	free(finder.version);
}

void python_sites_done(struct python_sites *sites)
{
	if (!sites)
		return;
	strv_done(&sites->dirs);
	free(sites->prefix);
	*sites = (struct python_sites){0};
}
