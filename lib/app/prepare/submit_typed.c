/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/prepare/submission.h"
#include "base/loop/proc.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/words.h"

/*
 * Commands as people type them. A command runs without a shell: what only a shell understands is
 * refused before anything starts, with the line to paste; what has one meaning is done, and said.
 */

enum { LINE_MAX_BYTES = 64 << 10, HEAD_BYTES = 256, TYPED_MAX = 64 };

static const char *path_variable(const struct submission *submission)
{
	return env_get(submission->session->env.env, "PATH");
}

/* word seen from where the command is typed. The caller frees. */
static char *place_of(const struct submission *submission, const char *word)
{
	AUTO_FREE char *dir = submission->live_root
				      ? fs_join(submission->live_root, submission->spec.cwd)
				      : mem_strdup(submission->session->env.cwd);

	return fs_join(dir, word);
}

static bool is_file(const struct submission *submission, const char *word)
{
	AUTO_FREE char *path = place_of(submission, word);
	struct stat st;

	return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

static bool in_table(const char *const *table, size_t n, const char *word)
{
	for (size_t i = 0; i < n; i++)
		if (str_eq(table[i], word))
			return true;
	return false;
}
#define IN_TABLE(table, word) in_table(table, ARRAY_LEN(table), word)

/*
 * K=V in front of the command
 */

static bool is_assignment(const char *word)
{
	size_t len = strcspn(word, "=");

	return word[len] && env_name_is_valid(word, len);
}

static int take_assignments(struct submission *submission, struct err *err)
{
	struct strv *words = &submission->spec.command;
	AUTO_STRV struct strv rest = {0};
	AUTO_BUF struct buf names = {0};
	size_t n = 0;

	while (n < words->n && is_assignment(words->v[n]) && !is_file(submission, words->v[n]))
		n++;
	/* A whole line in quotes is told as such. */
	if (n == 0 || (n == words->n && strpbrk(words->v[n - 1], " \t\n")))
		return 0;
	if (n == words->n) {
		err_set(err, E_RUN_COMMAND, "there is no command after %s", words->v[0]);
		return err_hint(err, "dlrun submit -- %s python3 train.py", words->v[0]);
	}
	buf_init(&names, LINE_MAX_BYTES);
	for (size_t i = 0; i < n; i++) {
		const char *word = words->v[i];
		strv_add(&submission->typed_env, word);
		buf_addf(&names, "%s%.*s", i ? ", " : "", (int)strcspn(word, "="), word);
	}
	for (size_t i = n; i < words->n; i++)
		strv_add(&rest, words->v[i]);
	strv_copy(words, &rest);
	submission_note(submission, "%s: set for the program, as a shell does", names.data);
	return 0;
}

/*
 * Shell syntax
 */

/* In dash, which is /bin/sh of many systems, they are not there. */
static const char *const bash_words[] = {"source", "pushd", "popd", "shopt", "declare", "typeset",
	"let", "select", "function", "[[", "((", "|&", "&>", "&>>", "<<<"};

/* Commands that only change the state of their shell: another command has to follow them. */
static const char *const shell_settings[] = {"cd", "source", ".", "export", "alias", "unalias",
	"unset", "set", "shopt", "ulimit", "umask", "pushd", "popd", "declare", "typeset",
	"readonly", "trap", "let", "module", "deactivate", "workon"};

static const char *const shell_words[] = {"eval", "exec", "builtin", "if", "for", "while", "until",
	"case", "select", "function", "then", "do", "{", "(", "((", "[[", "!"};

static const char *const brackets[] = {"{", "}", "(", ")", "((", "))", "[[", "]]", "!"};

static const char *const operators[] = {"&&", "||", "|", "|&", ";", "&", ">", ">>", "<", "<<",
	"<<<", "2>", "2>>", "1>", "&>", "&>>", ">&", "2>&1", "1>&2", ">&2", ">/dev/null",
	"2>/dev/null", "&>/dev/null"};

/* Operators that may be the argument of a program: the delimiter of cut, a character to search
 * for. */
static const char *const ambiguous[] = {"|", ";", "&", ">", ">>", "<", "<<"};

/* Programs that take operators as arguments. */
static const char *const takers[] = {"[", "test", "expr", "find", "xargs", "parallel"};

static bool is_program(const struct submission *submission, const char *word)
{
	AUTO_FREE char *found = proc_find(word, path_variable(submission));

	return found || IN_TABLE(shell_settings, word) ||
	       (strchr(word, '/') && is_file(submission, word));
}

/* Whether a person typed the words: another program may pass an operator as a plain argument. */
static bool is_typed(const struct strv *words)
{
	for (size_t i = 0; i < words->n; i++) {
		if (!*words->v[i])
			return false;
		for (const char *c = words->v[i]; *c; c++)
			if ((unsigned char)*c < ' ' || *c == 0x7f)
				return false;
	}
	return words->n <= TYPED_MAX;
}

static bool is_operator(const struct submission *submission, const struct strv *words, size_t i)
{
	const char *before = i ? words->v[i - 1] : "";
	bool redirects = strpbrk(words->v[i], "<>");
	bool last = i + 1 == words->n;

	if (!IN_TABLE(operators, words->v[i]))
		return false;
	if (!IN_TABLE(ambiguous, words->v[i]))
		return *before != '-' || str_starts(before, "--");
	if (i == 0 || *before == '-' || IN_TABLE(takers, words->v[0]))
		return false;
	if (last)
		return str_eq(words->v[i], "&");
	return redirects ? i > 1 || !is_file(submission, words->v[i + 1])
			 : is_program(submission, words->v[i + 1]);
}

static bool needs_bash(const struct strv *words)
{
	for (size_t i = 0; i < words->n; i++)
		if (IN_TABLE(bash_words, words->v[i]))
			return true;
	return false;
}

static int hint_shell(const char *shell, const char *line, struct err *err)
{
	AUTO_BUF struct buf quoted;

	buf_init(&quoted, LINE_MAX_BYTES);
	str_shell_quote(&quoted, line);
	return err_hint(err, "dlrun submit -- %s -c %s", shell, quoted.data);
}

static bool is_bare(const char *word)
{
	static const char bare[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";

	return *word && !word[strspn(word, bare)];
}

/* The words as the line that was meant: operators and the words of a shell stay bare. */
static int hint_words(const struct submission *submission, const char *then, struct err *err)
{
	const struct strv *words = &submission->spec.command;
	AUTO_BUF struct buf line;

	buf_init(&line, LINE_MAX_BYTES);
	for (size_t i = 0; i < words->n; i++) {
		const char *word = words->v[i];
		buf_adds(&line, i ? " " : "");
		if (is_bare(word) || IN_TABLE(operators, word) || IN_TABLE(brackets, word))
			buf_adds(&line, word);
		else
			str_shell_quote(&line, word);
	}
	buf_adds(&line, then);
	return hint_shell(needs_bash(words) ? "bash" : "sh", line.data, err);
}

/* "python train.py --lr 1" in quotes. */
static int refuse_line(const struct submission *submission, struct err *err)
{
	const struct strv *words = &submission->spec.command;
	const char *line = words->v[0] + strspn(words->v[0], " \t\n");
	AUTO_FREE char *first = mem_strndup(line, strcspn(line, " \t\n"));
	AUTO_FREE char *shown = str_shown(words->v[0]);
	AUTO_BUF struct buf all;
	bool plain = !strpbrk(line, "\"'\\$`*?[]<>|&;(){}~#!\n");

	buf_init(&all, LINE_MAX_BYTES);
	buf_adds(&all, line);
	for (size_t i = 1; i < words->n; i++) {
		buf_addc(&all, ' ');
		str_shell_quote(&all, words->v[i]);
	}
	err_set(err, E_USAGE, "'%s' is a whole line in one argument, not a program", shown);
	if (plain && !IN_TABLE(shell_settings, first) && !IN_TABLE(shell_words, first))
		return err_hint(err, "dlrun submit -- %s", all.data);
	bool bash = IN_TABLE(bash_words, first) || strstr(line, "[[") || strstr(line, "&>") ||
		    strstr(line, "source ");
	return hint_shell(bash ? "bash" : "sh", all.data, err);
}

static int refuse_setting(const struct submission *submission, struct err *err)
{
	const char *word = submission->spec.command.v[0];

	err_set(err, E_USAGE, "'%s' is a command of the shell, and a run has none in front of it",
		word);
	return hint_words(
		submission, IN_TABLE(shell_settings, word) ? " && python3 train.py" : "", err);
}

static bool is_activation(const struct strv *words)
{
	static const char *const tools[] = {"conda", "mamba", "micromamba"};

	return words->n > 1 && IN_TABLE(tools, words->v[0]) && str_eq(words->v[1], "activate");
}

static int refuse_operator(const struct submission *submission, const char *word, struct err *err)
{
	err_set(err, E_USAGE, "'%s' is for a shell, and the command runs without one", word);
	return hint_words(submission, "", err);
}

static int refuse_activation(const struct strv *words, struct err *err)
{
	err_set(err, E_USAGE, "%s activate works in a shell only", words->v[0]);
	return err_hint(err, "dlrun submit -- %s run -n %s python3 train.py", words->v[0],
		words->n > 2 ? words->v[2] : "base");
}

/* Some systems have cd as a program, which changes nothing. */
static bool is_of_shell(const struct submission *submission, const char *word)
{
	AUTO_FREE char *found = proc_find(word, path_variable(submission));

	if (is_file(submission, word))
		return false;
	return IN_TABLE(shell_settings, word) || (!found && IN_TABLE(shell_words, word));
}

static int check_words(const struct submission *submission, struct err *err)
{
	const struct strv *words = &submission->spec.command;

	if (strpbrk(words->v[0], " \t\n") && !is_file(submission, words->v[0]))
		return refuse_line(submission, err);
	for (size_t i = 0; is_typed(words) && i < words->n && !(i && str_eq(words->v[i - 1], "-c"));
		i++)
		if (is_operator(submission, words, i))
			return refuse_operator(submission, words->v[i], err);
	if (is_activation(words))
		return refuse_activation(words, err);
	return is_of_shell(submission, words->v[0]) ? refuse_setting(submission, err) : 0;
}

/* The command of the run that --from names. */
static bool is_old(const struct submission *submission)
{
	const struct strv *typed = submission->options->command;

	return submission->parent && !(typed && typed->n > 0 && *typed->v[0] != '-');
}

int submission_check_typed(struct submission *submission, struct err *err)
{
	const struct spec *spec = &submission->spec;

	if (spec->shell || spec->terminal || is_old(submission))
		return 0;
	int r = take_assignments(submission, err);
	return r < 0 ? r : check_words(submission, err);
}

/*
 * A file of the tree in place of a program
 */

/* Of scripts whose #! does not say it. */
static const struct {
	const char *ending, *program;
} interpreters[] = {
	{".sh", "sh"},
	{".bash", "bash"},
	{".zsh", "zsh"},
	{".R", "Rscript"},
	{".r", "Rscript"},
	{".jl", "julia"},
	{".pl", "perl"},
	{".rb", "ruby"},
	{".js", "node"},
	{".lua", "lua"},
};

/* The environment of the tree, nearest to the command; NULL: it has none. */
static char *python_of_tree(const struct submission *submission)
{
	static const char *const names[] = {".venv", "venv"};
	AUTO_FREE char *dir = mem_strdup(submission->spec.cwd);

	for (;;) {
		for (size_t i = 0; i < ARRAY_LEN(names); i++) {
			AUTO_FREE char *path = mem_printf(
				"%s/%s/%s/bin/python", submission->live_root, dir, names[i]);
			if (access(path, X_OK) == 0)
				return submission_tree_path("", path);
		}
		char *slash = strrchr(dir, '/');
		if (str_eq(dir, "."))
			return NULL;
		if (slash)
			*slash = '\0';
		else
			dir[0] = '.', dir[1] = '\0';
	}
}

/* The caller frees. */
static char *choose_python(const struct submission *submission)
{
	const char *const *env = submission->session->env.env;
	const char *active = env_get(env, "VIRTUAL_ENV");
	const char *setup = config_str(submission->config, "setup.run");
	AUTO_FREE char *of_tree = NULL, *active_python = NULL;

	/* A setup makes its own in the tree of the run. */
	if (setup && (strstr(setup, "uv sync") || strstr(setup, ".venv")))
		return submission_relative(submission, ".venv/bin/python");
	if (!submission->target->ops->is_here)
		return mem_strdup("python3");
	active_python = str_empty(active) ? NULL : fs_join(active, "bin/python");
	if (active_python && access(active_python, X_OK) == 0)
		return TAKE(active_python);
	of_tree = python_of_tree(submission);
	if (of_tree)
		return mem_printf("/%s", of_tree);
	AUTO_FREE char *found = proc_find("python3", path_variable(submission));
	return mem_strdup(found ? "python3" : "python");
}

/* The words behind #!, at most one argument, as the kernel has it. */
static bool read_interpreter(const char *path, struct strv *ret)
{
	char head[HEAD_BYTES + 1] = "";
	AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, head, HEAD_BYTES);

	if (n < 3 || head[0] != '#' || head[1] != '!')
		return false;
	head[strcspn(head, "\r\n")] = '\0';
	const char *program = head + 2 + strspn(head + 2, " \t");
	size_t len = strcspn(program, " \t");
	const char *argument = program + len + strspn(program + len, " \t");
	if (len == 0)
		return false;
	strv_add_take(ret, mem_strndup(program, len));
	if (*argument)
		strv_add(ret, argument);
	return true;
}

static void find_interpreter(
	const struct submission *submission, const char *word, const char *path, struct strv *ret)
{
	if (str_ends(word, ".py")) {
		strv_add_take(ret, choose_python(submission));
		return;
	}
	if (read_interpreter(path, ret))
		return;
	for (size_t i = 0; i < ARRAY_LEN(interpreters); i++)
		if (str_ends(word, interpreters[i].ending))
			strv_add(ret, interpreters[i].program);
}

/* front, word and what follows it become the command. */
static void put_front(struct submission *submission, struct strv *front, const char *word)
{
	struct strv *words = &submission->spec.command;
	AUTO_BUF struct buf shown;

	strv_add(front, word);
	buf_init(&shown, LINE_MAX_BYTES);
	str_shell_join(&shown, front->v);
	submission_note(submission, "%s is a file of the working tree: it runs as %s", words->v[0],
		shown.data);
	for (size_t i = 1; i < words->n; i++)
		strv_add(front, words->v[i]);
	strv_copy(words, front);
}

/* Of the tree, or of nobody's: other files run as they are. */
static bool is_of_tree(const struct submission *submission, const char *path)
{
	AUTO_FREE char *real = NULL;
	size_t len = strlen(submission->live_root);

	return fs_realpath(path, &real, NULL) == 0 &&
	       strncmp(real, submission->live_root, len) == 0 && real[len] == '/';
}

/* Of the file that word is in the tree of an earlier run; 0: it has none. */
static mode_t mode_before(
	const struct submission *submission, const struct entry_list *entries, const char *word)
{
	size_t len = strlen(submission->live_root);
	bool is_below = strncmp(word, submission->live_root, len) == 0 && word[len] == '/';
	AUTO_FREE char *path = is_below       ? submission_tree_path("", word + len)
			       : *word == '/' ? NULL
					      : submission_tree_path(submission->spec.cwd, word);
	const struct entry *entry = path ? entry_find(entries, path) : NULL;

	return entry && entry->kind == ENTRY_FILE ? (entry->exec ? 0755 : 0644) : 0;
}

/* The permissions of the file that word is in the run's tree; 0: it is none. */
static mode_t mode_in_tree(struct submission *submission, const char *word, const char *path)
{
	const struct entry_list *entries =
		submission->from_digest ? submission_entries(submission) : NULL;
	struct stat st;

	if (entries)
		return mode_before(submission, entries, word);
	return stat(path, &st) == 0 && S_ISREG(st.st_mode) && is_of_tree(submission, path)
		       ? st.st_mode & 0777
		       : 0;
}

int submission_start_file(struct submission *submission, struct err *err)
{
	const struct spec *spec = &submission->spec;
	const char *word = spec->command.v[0];
	AUTO_STRV struct strv front = {0}, first = {0};

	(void)err;
	if (spec->shell || spec->terminal || !submission->live_root || is_old(submission))
		return 0;
	AUTO_FREE char *path = place_of(submission, word);
	AUTO_FREE char *found =
		strchr(word, '/') ? NULL : proc_find(word, path_variable(submission));
	mode_t mode = found ? 0 : mode_in_tree(submission, word, path);
	if (mode == 0)
		return 0;
	bool runs = (mode & 0111) && (!str_ends(word, ".py") || read_interpreter(path, &first));
	AUTO_FREE char *with_slash =
		strchr(word, '/') ? mem_strdup(word) : mem_printf("./%s", word);
	if (runs) {
		if (!strchr(word, '/'))
			put_front(submission, &front, with_slash);
		return 0;
	}
	find_interpreter(submission, word, path, &front);
	if (front.n > 0)
		put_front(submission, &front, word);
	return 0;
}
