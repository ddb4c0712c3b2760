/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/term/manual.h"

#include <string.h>
#include <unistd.h>

#include "base/loop/proc.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"
#include "cli/term/embed.h"
#include "cli/term/help.h"
#include "cli/term/ui.h"
#include "core/config/config.h"
#include "core/record/columns.h"

enum { PAGE_MAX = 1 << 20, MAN_TIMEOUT_MS = 3000, MAN_PATH_MAX = 4096 };

const char *embed_text(const char *name)
{
	for (size_t i = 0; i < embeds_n; i++)
		if (str_eq(embeds[i].name, name))
			return embeds[i].text;
	return NULL;
}

/*
 * From the tables to scdoc
 */

/* Text that shall stand as it is. */
static void manual_add_escaped(const char *s, struct buf *out)
{
	for (; *s; s++) {
		if (strchr("*_\\#`~<>[]", *s))
			buf_addc(out, '\\');
		buf_addc(out, *s);
	}
}

static void manual_add_options(const struct opt *opts, struct buf *out)
{
	for (const struct opt *opt = opts; opt && opt->type != OPT_END; opt++) {
		if (opt->hidden)
			continue;
		if (opt->letter)
			buf_addf(out, "*-%c*, ", opt->letter);
		buf_addf(out, "*--%s*", opt->name);
		if (opt->arg && *opt->arg == '[')
			buf_addf(out, "[=_%.*s_]", (int)strcspn(opt->arg + 2, "]"), opt->arg + 2);
		else if (opt->arg)
			buf_addf(out, " _%s_", opt->arg);
		buf_adds(out, "\n\t");
		manual_add_escaped(opt->help, out);
		buf_adds(out, ".");
		if (opt->key)
			buf_addf(out, " Overrides *%s:* of dlrun.yaml.", opt->key);
		buf_adds(out, "\n\n");
	}
}

static void fill_name(const struct cmd *cmd, struct buf *out)
{
	AUTO_FREE char *summary = mem_strdup(cmd->summary);

	summary[0] = (char)(summary[0] - 'A' + 'a');
	buf_addf(out, "dlrun-%s - ", cmd->name);
	manual_add_escaped(summary, out);
	buf_addc(out, '\n');
}

static void fill_synopsis(const struct cmd *cmd, struct buf *out)
{
	buf_addf(out, "*dlrun %s* ", cmd->name);
	manual_add_escaped(cmd->synopsis, out);
	buf_addc(out, '\n');
}

static void fill_options(const struct cmd *cmd, struct buf *out)
{
	manual_add_options(cmd->opts, out);
	buf_adds(out, "The options of every command are described in *dlrun*(1).\n\n");
}

static void fill_common(const struct cmd *cmd UNUSED, struct buf *out)
{
	manual_add_options(app_opts, out);
}

static void fill_examples(const struct cmd *cmd, struct buf *out)
{
	for (size_t i = 0; i < CMD_EXAMPLES; i++) {
		AUTO_FREE char *line = NULL, *text = NULL;

		help_example(cmd->examples[i], &line, &text);
		manual_add_escaped(text, out);
		buf_addf(out, ":\n\n```\n%s\n```\n\n", line);
	}
}

static void fill_commands(const struct cmd *cmd UNUSED, struct buf *out)
{
	for (size_t i = 0; i < cmds_n; i++) {
		if (cmds[i]->flags & CMD_HIDDEN)
			continue;
		buf_addf(out, "*dlrun %s* ", cmds[i]->name);
		manual_add_escaped(cmds[i]->synopsis, out);
		buf_adds(out, "\n\t");
		manual_add_escaped(cmds[i]->summary, out);
		buf_adds(out, ".\n\n");
	}
}

/* Where a project's file is not enough. */
static const char *setter_text(enum config_setter by)
{
	static const char *const texts[] = {[CONFIG_BY_PROJECT] = "",
		[CONFIG_BY_TREE] = " Restricted for files outside of the tree.",
		[CONFIG_BY_CONFIRMED] = " Restricted in a project's file.",
		[CONFIG_BY_USER] = " Not in a project's file."};

	return texts[by];
}

static void add_key_facts(const struct config_key *key, struct buf *out)
{
	static const char *const types[] = {
		[CONFIG_STRING] = "string",
		[CONFIG_INT] = "a number",
		[CONFIG_SIZE] = "a size: 4096, 500Mi, 2Gi",
		[CONFIG_DURATION] = "a duration: 90s, 15m, 1h30m, 7d",
		[CONFIG_LIST] = "a list",
		[CONFIG_COMMAND] = "a list of arguments, or a string",
		[CONFIG_ENV] = "a map of names to values",
		[CONFIG_MAP] = "a map of the keys that follow",
		[CONFIG_TARGETS] = "a map of names to targets",
		[CONFIG_ENUM] = "one of: ",
		[CONFIG_SECRETS] = "a list of names, or a map of names to @FILE",
		[CONFIG_REGISTRY] = "HOST[:PORT]/REPO, or a map: push, pull, ca, insecure, forward",
		[CONFIG_AXES] = "a map of names to values, lists or maps",
		[CONFIG_ROLES] = "a map of names to maps",
		[CONFIG_NAMES] = "a name, or a list of names",
		[CONFIG_PORTS] = "a list of numbers, 1 to 65535, at most 64",
	};

	buf_addf(out, "\n\n\tType: %s%s.", types[key->type], key->choices ? key->choices : "");
	buf_adds(out, setter_text(key->by));
	if (key->fallback)
		buf_addf(out, " Default: *%s*.", key->fallback);
	if (key->env) {
		AUTO_FREE char *name = mem_printf("DLRUN_%s", key->name);

		for (char *c = name; *c; c++)
			*c = (char)(*c >= 'a' && *c <= 'z' ? *c - 'a' + 'A' : *c);
		buf_adds(out, " Variable: ");
		manual_add_escaped(name, out);
		buf_addc(out, '.');
	}
	buf_adds(out, "\n\n");
}

/* Of `ps`. */
static void fill_columns(const struct cmd *cmd UNUSED, struct buf *out)
{
	for (size_t i = 0; i < column_kinds_n; i++) {
		buf_adds(out, "*");
		manual_add_escaped(column_kinds[i].name, out);
		buf_adds(out, "*\n\t");
		manual_add_escaped(column_kinds[i].help, out);
		if (column_kinds[i].path && !str_eq(column_kinds[i].path, column_kinds[i].name)) {
			buf_adds(out, " (");
			manual_add_escaped(column_kinds[i].path, out);
			buf_addc(out, ')');
		}
		buf_adds(out, ".\n\n");
	}
}

static void fill_keys(const struct cmd *cmd UNUSED, struct buf *out)
{
	for (size_t i = 0; i < config_keys_n; i++) {
		const struct config_key *key = &config_keys[i];

		buf_addf(out, "*%s*\n\t", key->name);
		manual_add_escaped(key->help, out);
		buf_addc(out, '.');
		add_key_facts(key, out);
		if (key->example)
			buf_addf(out, "\t```\n\t%s\n\t```\n\n", key->example);
	}
}

static void fill_target_keys(const struct cmd *cmd UNUSED, struct buf *out)
{
	for (size_t i = 0; i < config_target_keys_n; i++) {
		const struct config_target_key *key = &config_target_keys[i];

		buf_addf(out, "*%s*\n\t", key->name);
		manual_add_escaped(key->help, out);
		buf_addf(out, ".%s\n\n\t```\n\t%s\n\t```\n\n", setter_text(key->by), key->example);
	}
}

/* A key that a project may not set by itself. */
static void add_setter(const char *prefix, const char *name, enum config_setter by, struct buf *out)
{
	static const char *const texts[] = {[CONFIG_BY_TREE] = "files of the tree; others",
		[CONFIG_BY_CONFIRMED] = "",
		[CONFIG_BY_USER] = "never"};

	if (by == CONFIG_BY_PROJECT)
		return;
	buf_addf(out, "*%s", prefix);
	manual_add_escaped(name, out);
	buf_addf(out, "*\n\tFrom a project's file: %s%s%s.\n\n", texts[by],
		by == CONFIG_BY_TREE ? " " : "", by == CONFIG_BY_USER ? "" : "once confirmed");
}

static void fill_setters(const struct cmd *cmd UNUSED, struct buf *out)
{
	for (size_t i = 0; i < config_keys_n; i++)
		add_setter("", config_keys[i].name, config_keys[i].by, out);
	for (size_t i = 0; i < config_target_keys_n; i++)
		add_setter(
			"targets.NAME.", config_target_keys[i].name, config_target_keys[i].by, out);
	buf_adds(out, "all others\n\tFrom every file.\n\n");
}

static void fill_errors(const struct cmd *cmd UNUSED, struct buf *out)
{
	for (enum err_id id = E_NONE + 1; id < E_COUNT; id++) {
		const struct err_info *info = err_info(id);

		buf_addf(out, "*%s*: ", info->name);
		manual_add_escaped(info->title, out);
		buf_adds(out, "\n\t");
		manual_add_escaped(info->text, out);
		if (help_exit_status(id) >= 0)
			buf_addf(out, " Exit status %d.", help_exit_status(id));
		buf_adds(out, "\n\n");
	}
}

static const struct {
	const char *line;
	void (*fill)(const struct cmd *cmd, struct buf *out);
} fills[] = {
	{"@COLUMNS@", fill_columns},
	{"@COMMANDS@", fill_commands},
	{"@COMMON@", fill_common},
	{"@ERRORS@", fill_errors},
	{"@EXAMPLES@", fill_examples},
	{"@KEYS@", fill_keys},
	{"@NAME@", fill_name},
	{"@OPTIONS@", fill_options},
	{"@SETTERS@", fill_setters},
	{"@SYNOPSIS@", fill_synopsis},
	{"@TARGET_KEYS@", fill_target_keys},
};

static void manual_add_line(const struct cmd *cmd, const char *line, size_t len, struct buf *out)
{
	for (size_t i = 0; i < ARRAY_LEN(fills); i++) {
		if (strlen(fills[i].line) != len || memcmp(fills[i].line, line, len) != 0)
			continue;
		fills[i].fill(cmd, out);
		return;
	}
	buf_add(out, line, len);
	buf_addc(out, '\n');
}

/* The command that a page "dlrun-NAME.1" is about, or NULL. */
static const struct cmd *manual_command_of(const char *page)
{
	AUTO_FREE char *name = NULL;

	if (!str_starts(page, "dlrun-") || !str_ends(page, ".1"))
		return NULL;
	name = mem_strndup(page + strlen("dlrun-"), strlen(page) - strlen("dlrun-") - strlen(".1"));
	return cmd_find(name);
}

/* The scdoc source of a page ("dlrun-submit.1") with its lines filled in. */
static int manual_source(const char *page, struct buf *out, struct err *err)
{
	AUTO_FREE char *file = mem_printf("%s.scd", page);
	const char *text = embed_text(file);
	const struct cmd *cmd = manual_command_of(page);

	if (!text)
		return err_set(err, E_USAGE, "there is no manual page %s", page);
	while (*text) {
		size_t len = strcspn(text, "\n");

		manual_add_line(cmd, text, len, out);
		text += len + (text[len] == '\n');
	}
	return buf_check(out, "the manual page", err);
}

/*
 * Showing
 */

/* "dlrun-targets.7" of "dlrun-targets(7)", which is how pages name each other. */
static char *without_brackets(const char *topic)
{
	size_t n = strlen(topic);

	if (n > 3 && topic[n - 3] == '(' && topic[n - 1] == ')')
		return mem_printf("%.*s.%c", (int)(n - 3), topic, topic[n - 2]);
	return mem_strdup(topic);
}

/* The page that topic means: a command's first; of a whole name (targets is a command) the page
 * that has no other one. */
static char *find_page(const char *name)
{
	static const char *const forms[] = {
		"dlrun-%s.1", "%s.5", "%s.7", "%s.1", "dlrun-%s.7", "dlrun.%s.5", "%s"};
	AUTO_FREE char *topic = without_brackets(name);

	for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
		AUTO_BUF struct buf page = buf_with(PAGE_MAX);
		const char *at = strstr(forms[i], "%s");

		buf_add(&page, forms[i], (size_t)(at - forms[i]));
		buf_adds(&page, topic);
		buf_adds(&page, at + 2);
		AUTO_FREE char *file = mem_printf("%s.scd", page.data);
		if (embed_text(file))
			return buf_take(&page);
	}
	return NULL;
}

/* "submit" of the file "dlrun-submit.1.scd"; "dlrun.yaml" of "dlrun.yaml.5.scd". */
static void add_topic(const char *file, struct strv *topics)
{
	const char *name = str_starts(file, "dlrun-") ? file + strlen("dlrun-") : file;
	size_t tail = strlen(".1.scd");

	if (str_ends(file, ".scd"))
		strv_addf(topics, "%.*s", (int)(strlen(name) - tail), name);
}

static bool manual_is_error(const char *word)
{
	for (enum err_id id = E_NONE + 1; id < E_COUNT; id++)
		if (str_eq(err_info(id)->name, word))
			return true;
	return false;
}

static int no_page(const char *topic, struct err *err)
{
	AUTO_FREE char *shown = str_shown(topic);
	AUTO_STRV struct strv names = {0};
	const char *near;

	for (size_t i = 0; i < embeds_n; i++)
		add_topic(embeds[i].name, &names);
	near = str_suggest(topic, (const char *const *)names.v, names.n);
	err_set(err, E_USAGE, "there is no manual page about '%s'", shown);
	if (manual_is_error(topic))
		return err_hint(err, "dlrun explain %s", topic);
	if (near)
		return err_hint(err, "dlrun help %s", near);
	return err_hint(err, "dlrun help");
}

/* Returns only if man is not there or does not have the page. */
static void try_man(const char *page)
{
	const char *dot = strrchr(page, '.');
	AUTO_FREE char *name = mem_strndup(page, (size_t)(dot - page));
	const char *argv[] = {"man", "-w", dot + 1, name, NULL};
	AUTO_BUF struct buf path = buf_with(MAN_PATH_MAX);
	int status;

	if (proc_capture(argv, NULL, MAN_TIMEOUT_MS, &path, &status, NULL) == 0 && status == 0)
		execlp("man", "man", dot + 1, name, NULL);
}

int manual_show(struct app *app, const char *topic, struct err *err)
{
	AUTO_FREE char *page = find_page(topic);
	AUTO_BUF struct buf source = buf_with(PAGE_MAX), text = buf_with(PAGE_MAX);
	int r;

	if (!page)
		return no_page(topic, err);
	if (app->out_tty)
		try_man(page);
	r = manual_source(page, &source, err);
	if (r < 0)
		return r;
	manual_render(source.data, app->columns, &text);
	ui_print(app, UI_OUT, text.data, text.len);
	return 0;
}

/*
 * dlrun __manual PAGE
 */

static int manual_run(struct app *app, void *values UNUSED, struct strv *words)
{
	AUTO_ERR struct err err = {0};
	AUTO_BUF struct buf source = buf_with(PAGE_MAX);

	if (manual_source(words->v[0], &source, &err) < 0)
		return app_fail(app, &err);
	return ui_write(app, source.data, source.len) < 0;
}

const struct cmd cmd___manual = {
	.name = "__manual",
	.summary = "Print the source of a manual page",
	.synopsis = "PAGE",
	.min_words = 1,
	.max_words = 1,
	.flags = CMD_HIDDEN,
	.run = manual_run,
};
