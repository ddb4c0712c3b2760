/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/prepare/prepare.h"
#include "base/loop/proc.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/words.h"
#include "core/image/base_program.h"
#include "core/image/code.h"
#include "core/image/image_facts.h"
#include "core/image/python_base.h"
#include "core/record/foreign.h"
#include "core/store/store.h"
#include "oci/image/image.h"
#include "oci/model/ref.h"
#include "targets/targets.h"

/*
 * --from: the exact code of an earlier run, or of an image. Where the target cannot take that image
 * from where it is, dlrun's own layers of it are reused: into a registry, or to this
 * machine.
 */

/* The tree that the run was submitted from, if that was here. */
static char *submit_check_root_of(const struct run *run)
{
	const struct json *origin = json_get(run->doc, "origin");
	char machine[OS_ID_SIZE];

	if (!os_machine_id(machine) || !str_eq(json_get_str(origin, "machine"), machine))
		return NULL;
	return words_get_one(origin, "root");
}

static int take_parent(struct submit *submit, struct err *err)
{
	struct store *store;
	const char *digest;

	int r = session_store(submit->session, &store, err);
	if (r == 0)
		r = store_resolve(store, submit->options->from, &submit->parent, err);
	if (r == 0)
		r = spec_from_json(submit->parent->spec, &submit->spec, err);
	if (r < 0)
		return r;
	submit->live_root = submit_check_root_of(submit->parent);
	digest = run_image_digest(submit->parent);
	submit->from_ref = words_get_one(json_get(submit->parent->doc, "image"), "ref");
	if (!digest && foreign_is(submit->parent))
		return code_fail_missing(submit->parent, err);
	if (!digest || !submit->from_ref)
		return err_set(err, E_IMAGE_BASE, "%s never had an image", run_id(submit->parent));
	submit->from_digest = mem_strdup(digest);
	return 0;
}

/* REPO@sha256:… */
static int submit_check_take_image(struct submit *submit, struct err *err)
{
	const struct tree_place *place;
	AUTO_REF struct ref ref = {0};

	int r = ref_parse(submit->options->from, &ref, err);
	if (r < 0)
		return r;
	if (!ref.digest)
		return err_set(err, E_IMAGE_REF, "--from takes a run, or an image with its digest");
	submit->from_digest = mem_strdup(ref.digest);
	submit->from_ref = mem_strdup(submit->options->from);
	submit->spec.cwd = mem_strdup(".");
	if (session_place(submit->session, &place, NULL) == 0)
		submit->live_root = mem_strdup(place->root);
	return 0;
}

static int submit_take_from(struct submit *submit, struct err *err)
{
	const char *from = submit->options->from;

	if (!from)
		return 0;
	return strchr(from, '@') && from[0] != '@' ? submit_check_take_image(submit, err)
						   : take_parent(submit, err);
}

/*
 * Where it is
 */

static int submit_check_read_config(struct submit *submit, struct err *err)
{
	const struct code *code = &submit->from;
	AUTO_BUF struct buf text = buf_with(IMAGE_CONFIG_MAX);

	int r = layout_read_blob(code->layout, &code->image.config, IMAGE_CONFIG_MAX, &text, err);
	if (r < 0)
		return r;
	return json_parse(text.data, text.len, IMAGE_CONFIG_MAX, code->image.config.digest,
		&submit->from_config, err);
}

static int open_code(struct submit *submit, struct err *err)
{
	int r = code_open(submit->session, submit->from_ref, &submit->from, err);

	if (r == 0)
		r = submit_check_read_config(submit, err);
	if (r == 0)
		return 0;
	if (submit->parent)
		return err_prefix(err, "the code of %s", run_id(submit->parent));
	AUTO_FREE char *shown = str_escaped(submit->from_ref);
	return err_prefix(err, "--from %s", shown);
}

static int submit_check_set_reused(struct submit *submit, struct err *err)
{
	const struct json *labels;

	int r = open_code(submit, err);
	if (r == 0)
		r = pack_init(&submit->pack, submit->session, NULL, false, err);
	if (r < 0)
		return r;
	labels = json_get(json_get(submit->from_config, "config"), "Labels");
	submit->reused = (struct pack_reused){
		.image = &submit->from.image,
		.layout = submit->from.layout,
		.snapshot_id = json_get_str(labels, LABEL_SNAPSHOT),
		.commit = json_get_str(labels, PACK_LABEL_REVISION),
	};
	if (submit->reused.snapshot_id)
		return 0;
	return err_set(err, E_IMAGE, "%s has no label %s", submit->from.image.config.digest,
		LABEL_SNAPSHOT);
}

/* Take from the image the facts that the earlier run's specification would give. */
static int find_facts(struct submit *submit, struct err *err)
{
	AUTO_IMAGE_FACTS struct image_facts facts = {0};
	const struct image *image = &submit->from.image;

	int r = open_code(submit, err);
	if (r < 0)
		return r;
	bool has_base = image->n_layers > 0 && image->layers[0].role == IMAGE_ROLE_BASE;
	image_facts_of_config(has_base ? submit->from_config : NULL,
		config_str(submit->config, "platform"), image->workdir, &facts);
	submit->image_facts = image_facts_to_json(&facts);
	return 0;
}

/* 1: this machine's own layout has it. */
static int submit_check_is_here(struct submit *submit, const struct ref *ref, struct err *err)
{
	AUTO_FREE char *own = dirs_layout(&submit->session->dirs);
	AUTO_FREE char *dir = NULL;
	AUTO_IMAGE struct image image = {0};
	AUTO_ERR struct err error = {0};
	struct layout *layout;

	int r = session_layout(submit->session, &layout, err);
	if (r < 0)
		return r;
	if (image_load(layout, submit->from_digest, &image, &error) == 0)
		return 1;
	if (ref->kind == REF_REGISTRY)
		return 0;
	dir = fs_join(submit->session->env.cwd, ref->dir);
	return str_eq(dir, own) ? err_move(err, &error) : 0;
}

static int submit_find_from(struct submit *submit, struct err *err)
{
	AUTO_REF struct ref ref = {0};

	if (!submit->from_digest)
		return 0;
	int r = ref_parse(submit->from_ref, &ref, err);
	if (r < 0)
		return r;
	if (!submit->target->ops->needs_image) {
		r = submit_check_is_here(submit, &ref, err);
		return r < 0 ? r : r > 0 ? 0 : submit_check_set_reused(submit, err);
	}
	if (ref.kind != REF_REGISTRY)
		return submit_check_set_reused(submit, err);
	return submit->parent ? 0 : find_facts(submit, err);
}

/*
 * Commands as people type them. A command runs without a shell: what only a shell understands is
 * refused before anything starts, with the line to paste; what has one meaning is done, and said.
 */

enum { LINE_MAX_BYTES = 64 << 10, HEAD_BYTES = 256, TYPED_MAX = 64 };

/* PATH of the shell that the command was typed in, which says how its words were meant, whatever
 * PATH the run will have (path_of_run()). NULL: none is set. */
static const char *path_of_shell(const struct submit *submit)
{
	return env_get(submit->session->env.env, "PATH");
}

/* word seen from where the command is typed. The caller frees. */
static char *submit_check_path_of(const struct submit *submit, const char *word)
{
	AUTO_FREE char *dir = submit->live_root ? fs_join(submit->live_root, submit->spec.cwd)
						: mem_strdup(submit->session->env.cwd);

	return fs_join(dir, word);
}

static bool submit_check_is_file(const struct submit *submit, const char *word)
{
	AUTO_FREE char *path = submit_check_path_of(submit, word);
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

static int take_assignments(struct submit *submit, struct err *err)
{
	struct strv *words = &submit->spec.command;
	AUTO_STRV struct strv rest = {0};
	AUTO_BUF struct buf names = buf_with(LINE_MAX_BYTES);
	size_t n = 0;

	while (n < words->n && is_assignment(words->v[n]) &&
		!submit_check_is_file(submit, words->v[n]))
		n++;
	/* A whole line in quotes is told as such. */
	if (n == 0 || (n == words->n && strpbrk(words->v[n - 1], " \t\n")))
		return 0;
	if (n == words->n) {
		err_set(err, E_RUN_COMMAND, "there is no command after %s", words->v[0]);
		return err_hint(err, "dlrun submit -- %s python3 train.py", words->v[0]);
	}
	for (size_t i = 0; i < n; i++) {
		const char *word = words->v[i];
		strv_add(&submit->typed_env, word);
		buf_addf(&names, "%s%.*s", i ? ", " : "", (int)strcspn(word, "="), word);
	}
	for (size_t i = n; i < words->n; i++)
		strv_add(&rest, words->v[i]);
	strv_copy(words, &rest);
	submit_note(submit, "%s: set for the program, as a shell does", names.data);
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

static bool submit_check_is_program(const struct submit *submit, const char *word)
{
	AUTO_FREE char *found = proc_find(word, path_of_shell(submit));

	return found || IN_TABLE(shell_settings, word) ||
	       (strchr(word, '/') && submit_check_is_file(submit, word));
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

static bool is_operator(const struct submit *submit, const struct strv *words, size_t i)
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
	return redirects ? i > 1 || !submit_check_is_file(submit, words->v[i + 1])
			 : submit_check_is_program(submit, words->v[i + 1]);
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
	AUTO_BUF struct buf quoted = buf_with(LINE_MAX_BYTES);

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
static int hint_words(const struct submit *submit, const char *then, struct err *err)
{
	const struct strv *words = &submit->spec.command;
	AUTO_BUF struct buf line = buf_with(LINE_MAX_BYTES);

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
static int refuse_line(const struct submit *submit, struct err *err)
{
	const struct strv *words = &submit->spec.command;
	const char *line = words->v[0] + strspn(words->v[0], " \t\n");
	AUTO_FREE char *first = mem_strndup(line, strcspn(line, " \t\n"));
	AUTO_FREE char *shown = str_shown(words->v[0]);
	AUTO_BUF struct buf all = buf_with(LINE_MAX_BYTES);
	bool plain = !strpbrk(line, "\"'\\$`*?[]<>|&;(){}~#!\n");

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

static int refuse_setting(const struct submit *submit, struct err *err)
{
	const char *word = submit->spec.command.v[0];

	err_set(err, E_USAGE, "'%s' is a command of the shell, and a run has none in front of it",
		word);
	return hint_words(
		submit, IN_TABLE(shell_settings, word) ? " && python3 train.py" : "", err);
}

static bool is_activation(const struct strv *words)
{
	static const char *const tools[] = {"conda", "mamba", "micromamba"};

	return words->n > 1 && IN_TABLE(tools, words->v[0]) && str_eq(words->v[1], "activate");
}

static int refuse_operator(const struct submit *submit, const char *word, struct err *err)
{
	err_set(err, E_USAGE, "'%s' is for a shell, and the command runs without one", word);
	return hint_words(submit, "", err);
}

static int refuse_activation(const struct strv *words, struct err *err)
{
	err_set(err, E_USAGE, "%s activate works in a shell only", words->v[0]);
	return err_hint(err, "dlrun submit -- %s run -n %s python3 train.py", words->v[0],
		words->n > 2 ? words->v[2] : "base");
}

/* Some systems have cd as a program, which changes nothing. */
static bool is_of_shell(const struct submit *submit, const char *word)
{
	AUTO_FREE char *found = proc_find(word, path_of_shell(submit));

	if (submit_check_is_file(submit, word))
		return false;
	return IN_TABLE(shell_settings, word) || (!found && IN_TABLE(shell_words, word));
}

static int submit_check_words(const struct submit *submit, struct err *err)
{
	const struct strv *words = &submit->spec.command;

	if (strpbrk(words->v[0], " \t\n") && !submit_check_is_file(submit, words->v[0]))
		return refuse_line(submit, err);
	for (size_t i = 0; is_typed(words) && i < words->n && !(i && str_eq(words->v[i - 1], "-c"));
		i++)
		if (is_operator(submit, words, i))
			return refuse_operator(submit, words->v[i], err);
	if (is_activation(words))
		return refuse_activation(words, err);
	return is_of_shell(submit, words->v[0]) ? refuse_setting(submit, err) : 0;
}

/* The command of the run that --from names. */
static bool is_old(const struct submit *submit)
{
	const struct strv *typed = submit->options->command;

	return submit->parent && !(typed && typed->n > 0 && *typed->v[0] != '-');
}

static int submit_check_typed_one(struct submit *submit, struct err *err)
{
	const struct spec *spec = &submit->spec;

	if (spec->shell || spec->terminal || is_old(submit))
		return 0;
	int r = take_assignments(submit, err);
	return r < 0 ? r : submit_check_words(submit, err);
}

static int submit_check_typed(struct submit *submit, struct err *err)
{
	return submit_each_command(submit, submit_check_typed_one, err);
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
static char *python_of_tree(const struct submit *submit)
{
	static const char *const names[] = {".venv", "venv"};
	AUTO_FREE char *dir = mem_strdup(submit->spec.cwd);

	for (;;) {
		for (size_t i = 0; i < ARRAY_LEN(names); i++) {
			AUTO_FREE char *path =
				mem_printf("%s/%s/%s/bin/python", submit->live_root, dir, names[i]);
			if (access(path, X_OK) == 0)
				return fs_join_normal("", path);
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
static char *choose_python(const struct submit *submit)
{
	const char *const *env = submit->session->env.env;
	const char *active = env_get(env, "VIRTUAL_ENV");
	const char *setup = config_str(submit->config, "setup.run");
	AUTO_FREE char *of_tree = NULL, *active_python = NULL;

	/* A setup makes its own in the tree of the run. */
	if (config_is_set(submit->config, "environment.lock"))
		return submit_relative(submit, ".venv/bin/python");
	if (setup && (strstr(setup, "uv sync") || strstr(setup, ".venv")))
		return submit_relative(submit, ".venv/bin/python");
	if (!submit->target->ops->is_here)
		return mem_strdup("python3");
	active_python = str_empty(active) ? NULL : fs_join(active, "bin/python");
	if (active_python && access(active_python, X_OK) == 0)
		return TAKE(active_python);
	of_tree = python_of_tree(submit);
	if (of_tree)
		return mem_printf("/%s", of_tree);
	AUTO_FREE char *found = proc_find("python3", path_of_shell(submit));
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
	const struct submit *submit, const char *word, const char *path, struct strv *ret)
{
	if (str_ends(word, ".py")) {
		strv_add_take(ret, choose_python(submit));
		return;
	}
	if (read_interpreter(path, ret))
		return;
	for (size_t i = 0; i < ARRAY_LEN(interpreters); i++)
		if (str_ends(word, interpreters[i].ending))
			strv_add(ret, interpreters[i].program);
}

/* front, word and what follows it become the command. */
static void prepend_words(struct submit *submit, struct strv *front, const char *word)
{
	struct strv *words = &submit->spec.command;
	AUTO_BUF struct buf shown = buf_with(LINE_MAX_BYTES);

	strv_add(front, word);
	str_shell_join(&shown, front->v);
	submit_note(
		submit, "%s is a file of the working tree: it runs as %s", words->v[0], shown.data);
	for (size_t i = 1; i < words->n; i++)
		strv_add(front, words->v[i]);
	strv_copy(words, front);
}

/* Of the tree, or of nobody's: other files run as they are. */
static bool is_of_tree(const struct submit *submit, const char *path)
{
	AUTO_FREE char *real = NULL;
	size_t len = strlen(submit->live_root);

	return fs_realpath(path, &real, NULL) == 0 && strncmp(real, submit->live_root, len) == 0 &&
	       real[len] == '/';
}

/* Of the file that word is in the tree of an earlier run; 0: it has none. */
static mode_t mode_before(
	const struct submit *submit, const struct entry_list *entries, const char *word)
{
	size_t len = strlen(submit->live_root);
	bool is_below = strncmp(word, submit->live_root, len) == 0 && word[len] == '/';
	AUTO_FREE char *path = is_below       ? fs_join_normal("", word + len)
			       : *word == '/' ? NULL
					      : fs_join_normal(submit->spec.cwd, word);
	const struct entry *entry = path ? entry_find(entries, path) : NULL;

	return entry && entry->kind == ENTRY_FILE ? (entry->exec ? 0755 : 0644) : 0;
}

/* The permissions of the file that word is in the run's tree; 0: it is none. */
static mode_t mode_in_tree(struct submit *submit, const char *word, const char *path)
{
	const struct entry_list *entries = submit->from_digest ? submit_entries(submit) : NULL;
	struct stat st;

	if (entries)
		return mode_before(submit, entries, word);
	return stat(path, &st) == 0 && S_ISREG(st.st_mode) && is_of_tree(submit, path)
		       ? st.st_mode & 0777
		       : 0;
}

static int submit_start_one_file(struct submit *submit, struct err *err UNUSED)
{
	const struct spec *spec = &submit->spec;
	const char *word = spec->command.v[0];
	AUTO_STRV struct strv front = {0}, first = {0};

	if (spec->shell || spec->terminal || !submit->live_root || is_old(submit))
		return 0;
	AUTO_FREE char *path = submit_check_path_of(submit, word);
	AUTO_FREE char *found = strchr(word, '/') ? NULL : proc_find(word, path_of_shell(submit));
	mode_t mode = found ? 0 : mode_in_tree(submit, word, path);
	if (mode == 0)
		return 0;
	bool runs = (mode & 0111) && (!str_ends(word, ".py") || read_interpreter(path, &first));
	AUTO_FREE char *with_slash =
		strchr(word, '/') ? mem_strdup(word) : mem_printf("./%s", word);
	if (runs) {
		if (!strchr(word, '/'))
			prepend_words(submit, &front, with_slash);
		return 0;
	}
	find_interpreter(submit, word, path, &front);
	if (front.n > 0)
		prepend_words(submit, &front, word);
	return 0;
}

static int submit_start_file(struct submit *submit, struct err *err)
{
	return submit_each_command(submit, submit_start_one_file, err);
}

/*
 * The submit, assembled from options, configuration and the earlier run; an invalid one is
 * refused before anything is done.
 */

void submit_done(struct submit *submit)
{
	if (!submit)
		return;
	run_free(submit->parent);
	free(submit->from_digest);
	free(submit->from_ref);
	code_done(&submit->from);
	json_free(submit->from_config);
	entry_list_done(&submit->from_entries);
	free(submit->live_root);
	free(submit->refused);
	spec_done(&submit->spec);
	after_done(&submit->after);
	strv_done(&submit->secret_env);
	strv_done(&submit->typed_env);
	lock_inputs_done(&submit->lock_inputs);
	run_places_done(&submit->places);
	target_free(submit->target);
	strv_done(&submit->warnings);
	strv_done(&submit->notices);
	snapshot_free(submit->snapshot);
	pack_done(&submit->pack);
	json_free(submit->image_facts);
	image_done(&submit->image);
	free(submit->ref);
	free(submit->base_ref);
	ref_done(&submit->to);
	free(submit->pull);
	free(submit->base_digest);
	strv_done(&submit->push_warnings);
	strv_done(&submit->there);
	run_free(submit->run);
	free(submit->dir);
	if (submit->gc_fd > 0)
		close(submit->gc_fd);
	if (submit->lock_fd > 0)
		close(submit->lock_fd);
	strv_done(&submit->env);
	strv_done(&submit->defaults);
	*submit = (struct submit){0};
}

/*
 * The command
 */

static int append_words(struct submit *submit, const struct strv *words, struct err *err)
{
	struct spec *spec = &submit->spec;

	if (spec->command.n == 0) {
		AUTO_FREE char *shown = str_escaped(words->v[0]);
		err_set(err, E_RUN_COMMAND, "%s is an argument without a command", shown);
		return err_hint(err, "dlrun submit -- python3 train.py %s", shown);
	}
	if (spec->shell)
		return err_set(err, E_USAGE,
			"arguments cannot be appended to a command that is a shell line");
	for (size_t i = 0; i < words->n; i++)
		strv_add(&spec->command, words->v[i]);
	return 0;
}

/* Words that begin with an option are for the command that is set already. */
static int submit_check_set_command(struct submit *submit, struct err *err)
{
	const struct strv *words = submit->options->command;
	struct spec *spec = &submit->spec;
	bool has_words = words && words->n > 0, shell;

	if (!submit->parent && (!has_words || words->v[0][0] == '-')) {
		strv_copy(&spec->command, config_command(submit->config, &shell));
		spec->shell = shell;
	}
	int r = has_words && words->v[0][0] == '-' ? append_words(submit, words, err) : 0;
	if (has_words && words->v[0][0] != '-') {
		strv_copy(&spec->command, words);
		spec->shell = false;
	}
	spec->terminal = submit->options->terminal;
	if (r == 0)
		r = submit_set_roles(submit, err);
	if (r < 0 || (spec->command.n > 0 && *spec->command.v[0]))
		return r;
	err_set(err, E_RUN_COMMAND, "there is nothing to run");
	return err_hint(err, "dlrun submit -- python3 train.py");
}

/*
 * The environment
 */

/* is_typed: it counts in each role, too, whatever that has. */
static void keep_pair(struct submit *submit, const char *pair, bool is_typed)
{
	AUTO_FREE char *name = mem_strndup(pair, strcspn(pair, "="));
	struct spec *spec = &submit->spec;

	vec_foreach (struct role, role, &spec->roles.list)
		if (is_typed)
			env_unset(&role->env, name);
	if (!config_name_is_secret(name)) {
		env_set(&spec->env, pair, false);
		return;
	}
	env_set(&submit->secret_env, pair, false);
	if (strv_find(&spec->secrets, name) >= 0)
		return;
	strv_add(&spec->secrets, name);
	submit_warn(submit, "%s looks like a secret: its value is not written down", name);
}

/* required: a name that is not set in this shell is an error. */
static int submit_check_add_pairs(
	struct submit *submit, const struct strv *pairs, bool required, struct err *err)
{
	for (size_t i = 0; pairs && i < pairs->n; i++) {
		const char *pair = pairs->v[i];
		size_t len = strcspn(pair, "=");
		const char *value = env_get(submit->session->env.env, pair);

		int r = words_check_name(pair, "--env", err);
		if (r < 0)
			return r;
		if (pair[len] == '=') {
			keep_pair(submit, pair, required);
		} else if (value) {
			AUTO_FREE char *whole = mem_printf("%s=%s", pair, value);
			keep_pair(submit, whole, required);
		} else if (required) {
			err_set(err, E_USAGE, "--env %s: the variable is not set in this shell",
				pair);
			return err_hint(
				err, "export %s=1   # or give the value: --env %s=1", pair, pair);
		} else {
			submit_warn(submit, "env: %s is not set in this shell", pair);
		}
	}
	return 0;
}

static int submit_check_set_env(struct submit *submit, struct err *err)
{
	int r = 0;

	if (!submit->parent)
		r = submit_check_add_pairs(submit, config_env(submit->config), false, err);
	if (r == 0)
		r = submit_check_add_pairs(submit, submit->options->env, true, err);
	return r < 0 ? r : submit_check_add_pairs(submit, &submit->typed_env, true, err);
}

static int check_tags(const struct strv *tags, struct err *err)
{
	int r = 0;

	for (size_t i = 0; r == 0 && tags && i < tags->n; i++)
		r = run_tag_check(tags->v[i], "--tag", "--tag baseline", err);
	return r;
}

/*
 * The name
 */

/* "train" of exp/train.py; NULL if the word names no script. */
static char *script_name(const char *word)
{
	static const char *const endings[] = {
		".py", ".sh", ".ipynb", ".jl", ".R", ".r", ".js", ".lua", ".pl", ".rb", ".m"};
	const char *base = fs_basename(word);

	for (size_t i = 0; i < ARRAY_LEN(endings); i++)
		if (str_ends(base, endings[i]) && strlen(base) > strlen(endings[i]))
			return mem_strndup(base, strlen(base) - strlen(endings[i]));
	return NULL;
}

/* "train" of -m pkg.train */
static char *module_name(const struct strv *words)
{
	for (size_t i = 1; i + 1 < words->n; i++) {
		const char *dot;
		if (!str_eq(words->v[i], "-m"))
			continue;
		dot = strrchr(words->v[i + 1], '.');
		return mem_strdup(dot ? dot + 1 : words->v[i + 1]);
	}
	return NULL;
}

static bool is_interpreter(const char *word)
{
	static const char *const names[] = {
		"bash", "env", "julia", "node", "perl", "python", "ruby", "sh", "uv", "Rscript"};
	const char *base = fs_basename(word);
	size_t len = strcspn(base, "0123456789.");

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (strlen(names[i]) == len && strncmp(base, names[i], len) == 0)
			return true;
	return false;
}

/* The words of a line for the shell, as far as blanks tell. */
static void submit_check_split_line(const char *line, struct strv *ret)
{
	static const char blanks[] = " \t\n;&|()";

	for (const char *s = line + strspn(line, blanks); *s; s += strspn(s, blanks)) {
		size_t len = strcspn(s, blanks);
		strv_add_take(ret, mem_strndup(s, len));
		s += len;
	}
}

static char *program_name(const struct spec *spec)
{
	AUTO_STRV struct strv words = {0};
	char *name = NULL;

	if (spec->shell)
		submit_check_split_line(spec->command.v[0], &words);
	else
		strv_copy(&words, &spec->command);
	for (size_t i = 0; !name && i < words.n; i++)
		name = script_name(words.v[i]);
	if (!name)
		name = module_name(&words);
	if (!name && words.n > 0 && !is_interpreter(words.v[0]))
		name = mem_strdup(fs_basename(words.v[0]));
	return name;
}

/* Of what nobody chose: the first that gives a name at all. */
static int derive_name(struct submit *submit)
{
	const struct tree_place *place = submit->place;
	AUTO_FREE char *program = program_name(&submit->spec);
	const char *const candidates[] = {
		submit->parent ? run_name(submit->parent) : NULL,
		program,
		place && !str_eq(place->prefix, ".") ? fs_basename(place->prefix) : NULL,
		place ? fs_basename(place->root) : NULL,
		"run",
	};
	bool mapped;

	for (size_t i = 0; i < ARRAY_LEN(candidates); i++)
		if (!str_empty(candidates[i]) &&
			run_name_map(candidates[i], submit->name, &mapped, NULL) == 0)
			return 0;
	return 0;
}

static int submit_check_set_name(struct submit *submit, struct err *err)
{
	const char *wanted = submit->options->name;
	bool mapped;

	if (!wanted)
		wanted = config_str(submit->config, "name");
	if (str_empty(wanted))
		return derive_name(submit);
	int r = run_name_map(wanted, submit->name, &mapped, err);
	if (r == 0 && mapped)
		submit_warn(
			submit, "the run is called %s: names are of a-z, 0-9 and -", submit->name);
	return r;
}

/*
 * All of it
 */

static void submit_check_set_limits(struct submit *submit)
{
	struct spec *spec = &submit->spec;
	const struct config *config = submit->config;

	if (!submit->parent || config_is_set(config, "timeout"))
		spec->timeout_ms = config_duration(config, "timeout", 0);
	if (!submit->parent || config_is_set(config, "grace"))
		spec->grace_ms = config_duration(config, "grace", 10000);
	spec->drop_entrypoint = str_eq(config_str(config, "entrypoint"), "none");
}

static int submit_check_open_target(struct submit *submit, struct err *err)
{
	const char *configured = config_str(submit->config, "target");
	const char *name = submit->place_name ? submit->place_name : configured;

	int r = target_open(submit->session, name ? name : "local", &submit->target, err);
	if (r == 0 && submit->target->ops->warm)
		submit->target->ops->warm(submit->target);
	return r < 0 && err->id == E_TARGET ? config_blame(submit->config, "target", err) : r;
}

static int fail_no_image(const struct submit *submit, struct err *err)
{
	AUTO_FREE char *name = str_escaped(submit->target->name);

	err_set(err, E_IMAGE_NONE,
		"target %s runs programs in containers, and no base image is set", name);
	err_evidence(err, "--image HOST/REPO:TAG   a base for this run");
	err_evidence(err, "image: HOST/REPO:TAG    in dlrun.yaml: a base for all runs");
	if (!submit->from_digest)
		err_evidence(err,
			".python-version         or a lock file: a public one with that Python");
	err_evidence(err, "dlrun init              proposes one that fits the project");
	return err_hint(err, "dlrun submit --image docker.io/library/python:3.12 …");
}

/* Whether something may bring a program that is not in the layers of the base. */
static bool may_come(const struct submit *submit)
{
	const struct spec *spec = &submit->spec;
	const struct config *config = submit->config;
	const struct json *target = config_target(config, submit->target->name);
	const struct image_base *base = submit->pack.base;
	const struct json *entrypoint =
		json_get(json_get(base ? base->config_json : NULL, "config"), "Entrypoint");

	return env_get((const char *const *)spec->env.v, "PATH") || spec->runtime.before ||
	       spec->runtime.setup.run || json_get(target, "volumes") ||
	       json_get(target, "overlay") ||
	       (entrypoint && json_first(entrypoint) && !spec->drop_entrypoint);
}

/* Nothing of this machine is in the container of a cluster. */
static bool needs_base(const struct submit *submit)
{
	return submit->target->ops->needs_image && (!submit->from_digest || submit->reused.image);
}

static int submit_check_program_of(
	const struct submit *submit, const struct roles_part *part, struct err *err)
{
	const struct pack *pack = &submit->pack;
	const char *program = part->shell ? "sh" : part->command->v[0];
	AUTO_BASE_PROGRAM struct base_program found = {0};

	if (!needs_base(submit) || strchr(program, '/') || may_come(submit))
		return 0;
	if (pack->base_ref.kind == REF_SCRATCH)
		found = (struct base_program){.has = BASE_LACKS, .why = mem_strdup("it is empty")};
	else if (pack->base)
		base_program_find(pack->base, program, &found);
	if (found.has != BASE_LACKS)
		return 0;
	AUTO_FREE char *shown = str_shown(program), *base = str_shown(pack->base_name);
	err_set(err, E_IMAGE_NONE, "the image has no program '%s': its base is %s, and %s", shown,
		base, found.why);
	return err_hint(err, "dlrun submit --image docker.io/library/python:3.12 …");
}

int submit_check_program(const struct submit *submit, struct err *err)
{
	struct roles_part part;
	int r = 0;

	for (size_t i = 0; r == 0 && i < roles_count(&submit->spec); i++) {
		roles_nth(&submit->spec, i, &part);
		r = submit_check_program_of(submit, &part, err);
	}
	return r;
}

static int submit_check_find_place(struct submit *submit, struct err *err)
{
	int r;

	if (submit->from_digest)
		return 0;
	r = session_place(submit->session, &submit->place, err);
	if (r < 0)
		return r;
	submit->spec.cwd = mem_strdup(submit->place->prefix);
	submit->live_root = mem_strdup(submit->place->root);
	return 0;
}

static int submit_check_cases(struct submit *submit, struct err *err)
{
	const struct spec *spec = &submit->spec;
	struct study *study = submit->options->study;
	AUTO_STRV struct strv unknown = {0};

	submit->study = study;
	if (!study)
		return 0;
	const struct cases_template template = {
		.command = &spec->command,
		.shell = spec->shell,
		.env = &spec->env,
		.name = json_get_str(study->doc, "name_template"),
	};
	cases_unknown(&study->cases, &template, &unknown);
	for (size_t i = 0; i < unknown.n; i++)
		submit_note(
			submit, "{%s} stays as it is: there is no axis of that name", unknown.v[i]);
	return cases_check(&study->cases, &template, err);
}

/* For a project that names its Python, a public image with that; *ret: its name, which the caller
 * frees. */
static int submit_check_propose(struct submit *submit, char **ret, struct err *err)
{
	const struct strv *command = &submit->spec.command;
	AUTO_PYTHON_NAMED struct python_named named = {0};
	AUTO_FREE char *shown = NULL;

	if (submit->from_digest || !python_find_above(submit->place, &named)) {
		int failed = fail_no_image(submit, err);
		if (named.from)
			err_evidence(err, "%s", named.from);
		return failed;
	}
	const char *program = command->n ? command->v[0] : NULL;
	int r = python_base_choose(submit->session, &named, program, ret, &shown, err);
	if (r < 0)
		return r;
	submit_note(submit, "no image: is set, so the base is %s", shown);
	if (named.lock && !str_eq(program, "uv") && !config_is_set(submit->config, "setup.run") &&
		!config_is_set(submit->config, "environment.lock"))
		submit_note(submit, "the packages of %s are not in it: environment: {lock: %s}",
			named.lock, named.lock);
	return 0;
}

int submit_check(struct submit *submit, struct err *err)
{
	AUTO_FREE char *base = NULL;
	static int (*const steps[])(struct submit *, struct err *) = {submit_take_from,
		submit_check_find_place, submit_check_set_command, submit_check_typed,
		submit_check_set_env, submit_check_cases, submit_set_secrets, submit_check_set_name,
		submit_check_open_target, submit_set_after, submit_start_file, submit_find_from};

	int r = session_config(submit->session, &submit->config, err);
	for (size_t i = 0; r == 0 && i < ARRAY_LEN(steps); i++)
		r = steps[i](submit, err);
	if (r == 0)
		r = check_tags(submit->options->tags, err);
	if (r == 0 && needs_base(submit) && !config_is_set(submit->config, "image"))
		r = submit_check_propose(submit, &base, err);
	if (r == 0 && !submit->from_digest)
		r = pack_init(&submit->pack, submit->session, base, submit->options->full, err);
	if (r < 0)
		return r;
	submit_check_set_limits(submit);
	r = submit_set_runtime(submit, err);
	if (r == 0)
		r = submit_check_program(submit, err);
	if (r == 0 && submit->from_digest)
		submit_own_paths(submit);
	return r;
}

/*
 * The snapshot
 */

static void submit_check_join(struct strv *ret, const struct strv *a, const struct strv *b)
{
	strv_copy(ret, a);
	for (size_t i = 0; b && i < b->n; i++)
		strv_add(ret, b->v[i]);
}

void submit_get_include(const struct submit *submit, struct strv *ret)
{
	submit_check_join(ret, config_list(submit->config, "include"), submit->options->include);
}

static void get_limits(const struct submit *submit, struct paths_limits *ret)
{
	const struct config *config = submit->config;
	uint64_t allowed = (uint64_t)submit->options->allow_bytes;

	*ret = (struct paths_limits){
		.total_bytes = config_size(config, "limits.size"),
		.file_bytes = config_size(config, "limits.file"),
		.files = (uint64_t)config_int(config, "limits.files", 0),
	};
	/* 0 is no limit at all. */
	if (ret->total_bytes && allowed > ret->total_bytes)
		ret->total_bytes = allowed;
	if (ret->file_bytes && allowed > ret->file_bytes)
		ret->file_bytes = allowed;
}

int submit_take_snapshot(struct submit *submit, struct err *err)
{
	const struct dirs *dirs = &submit->session->dirs;
	AUTO_STRV struct strv include = {0}, allow = {0};
	struct snapshot_options options = {
		.place = submit->place,
		.include = &include,
		.paths = config_list(submit->config, "paths"),
		.allow = &allow,
		.cache_dir = submit->dry_run ? NULL : dirs->cache,
		.home = dirs->home,
		.xdg_config = submit->session->env.dirs.xdg_config_home,
		.shell_dir = submit->session->env.shell_dir,
		.will_walk = submit->will_walk,
		.will_read = submit->will_read,
		.will_ctx = submit->will_ctx,
		.id_later = submit->id_later,
	};

	if (submit->from_digest) {
		submit->snapshot_ms = clock_ms() - submit->begun_ms;
		return 0;
	}
	submit_get_include(submit, &include);
	submit_check_join(&allow, config_list(submit->config, "allow"), submit->options->allow);
	get_limits(submit, &options.limits);
	int r = snapshot_take(&options, &submit->snapshot, err);
	if (r < 0)
		return r;
	for (size_t i = 0; i < submit->snapshot->warnings.n; i++)
		submit_warn(submit, "%s", submit->snapshot->warnings.v[i]);
	r = submit_check_runtime(submit, err);
	submit->snapshot_ms = clock_ms() - submit->begun_ms;
	return r;
}

void submit_report_snapshot(const struct submit *submit)
{
	const struct submit_events *events = submit->events;

	if (events && events->snapshot && submit->snapshot)
		events->snapshot(events->ctx, submit->snapshot, submit->snapshot_ms);
}
