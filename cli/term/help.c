/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/term/help.h"

#include <ctype.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/term/app.h"
#include "cli/term/manual.h"
#include "cli/term/ui.h"

/* Below NARROW columns what an option does stands on lines of its own. */
enum { HELP_MAX = 64 << 10, OPTION_INDENT = 25, NAME_INDENT = 17, NARROW = 64, NARROW_INDENT = 8 };

static const char intro[] =
	"dlrun runs the code of this directory, exactly as it is now, as a run that you "
	"can list, follow, compare and repeat.";

static const char *const first_steps[] = {
	"dlrun submit -- python3 train.py --lr 0.1 # run it; the output follows",
	"dlrun ps # what runs, and what ran today",
	"dlrun logs -f @ # follow the newest run",
};

/* Each command that is not hidden stands in one group, in the order of a first day. */
static const struct group {
	const char *title;
	const char *commands[12];
} groups[] = {
	{"start runs", {"submit", "sweep", "restart", "cancel", "queue", "init"}},
	{"look at runs",
		{"ps", "logs", "show", "why", "wait", "top", "diff", "compare", "tag", "note"}},
	{"results", {"fetch", "plot", "tensorboard", "proxy"}},
	{"work inside a run or on a host", {"exec", "ssh", "forward"}},
	{"code, images and data", {"checkout", "push", "bake", "warm", "data"}},
	{"targets and setup", {"targets", "autoscale", "config", "doctor", "completion"}},
	{"clean up", {"rm", "gc"}},
	{"help", {"help", "explain"}},
};

const struct help_page help_pages[] = {
	{"dlrun.yaml", "the configuration file"},
	{"dlrun-world", "environment, data, results and attempts of a run"},
	{"dlrun-targets", "this machine, SSH hosts and Kubernetes clusters"},
	{"dlrun-autoscale", "snapshots of a cluster for its autoscaler"},
	{"dlrun-errors", "every error and what to do about it"},
};
const size_t help_pages_n = ARRAY_LEN(help_pages);

/*
 * Parts
 */

/* "-t, --target T"; without is_aligned nothing stands in for a missing letter. */
static void help_option_name(const struct opt *opt, bool is_aligned, struct buf *out)
{
	if (opt->letter)
		buf_addf(out, "-%c, ", opt->letter);
	else if (is_aligned)
		buf_adds(out, "    ");
	buf_addf(out, "--%s", opt->name);
	if (opt->arg)
		buf_addf(out, "%s%s", *opt->arg == '[' ? "" : " ", opt->arg);
}

int help_exit_status(enum err_id id)
{
	static const enum err_id ends[] = {E_RUN_EXEC, E_RUN_FAILED, E_RUN_LOST, E_RUN_TIMEOUT};

	for (size_t i = 0; i < ARRAY_LEN(ends); i++)
		if (ends[i] == id)
			return -1;
	return err_exit_status(err_info(id)->code);
}

void help_example(const char *example, char **ret_line, char **ret_text)
{
	const char *hash = strstr(example, " # ");

	BUG_ON(!hash);
	*ret_line = mem_strndup(example, (size_t)(hash - example));
	*ret_text = mem_strdup(hash + 3);
}

/* "  name      text", the text broken at the right edge. */
static void help_add_row(
	const char *name, size_t indent, const char *text, size_t columns, struct buf *out)
{
	size_t wide = str_columns(name);

	if (columns < NARROW && indent > NARROW_INDENT && indent != NAME_INDENT)
		indent = NARROW_INDENT;
	buf_addf(out, "  %s", name);
	if (wide + 4 > indent)
		buf_addf(out, "\n%*s", (int)indent, "");
	else
		buf_addf(out, "%*s", (int)(indent - wide - 2), "");
	ui_wrap(text, columns - indent - 1, indent, out);
	buf_addc(out, '\n');
}

static void help_add_options(const struct opt *opts, size_t columns, struct buf *out)
{
	for (const struct opt *opt = opts; opt && opt->type != OPT_END; opt++) {
		AUTO_BUF struct buf name = buf_with(HELP_MAX);

		if (opt->hidden)
			continue;
		help_option_name(opt, true, &name);
		help_add_row(name.data, OPTION_INDENT, opt->help, columns, out);
	}
}

static void add_examples(const char *const *examples, size_t n, size_t columns, struct buf *out)
{
	buf_adds(out, "\nexamples:\n");
	for (size_t i = 0; i < n; i++) {
		AUTO_FREE char *line = NULL, *text = NULL;

		help_example(examples[i], &line, &text);
		buf_adds(out, "  ");
		ui_wrap_command(line, columns - 6, 6, out);
		buf_adds(out, "\n      ");
		ui_wrap(text, columns - 7, 6, out);
		buf_addc(out, '\n');
	}
}

static void help_add_usage(const struct cmd *cmd, size_t columns, struct buf *out)
{
	AUTO_FREE char *usage = mem_printf("usage: dlrun %s %s", cmd->name, cmd->synopsis);

	ui_wrap(usage, columns - 8, 8, out);
	buf_addc(out, '\n');
}

static void add_common_line(size_t columns, struct buf *out)
{
	AUTO_BUF struct buf line = buf_with(HELP_MAX);

	buf_adds(&line, "Options of every command (dlrun help):");
	for (const struct opt *opt = app_opts; opt->type != OPT_END; opt++) {
		if (opt->letter)
			buf_addf(&line, " -%c", opt->letter);
		else
			buf_addf(&line, " --%s", opt->name);
		if (opt->arg)
			buf_addf(&line, " %s", opt->arg);
	}
	buf_addc(out, '\n');
	ui_wrap(line.data, columns - 2, 2, out);
	buf_addc(out, '\n');
}

static void add_groups(size_t columns, struct buf *out)
{
	for (size_t i = 0; i < ARRAY_LEN(groups); i++) {
		buf_addf(out, "\n%s:\n", groups[i].title);
		for (const char *const *name = groups[i].commands; *name; name++) {
			const struct cmd *cmd = cmd_find(*name);

			BUG_ON(!cmd);
			help_add_row(cmd->name, NAME_INDENT, cmd->summary, columns, out);
		}
	}
}

/*
 * JSON
 */

static struct json *option_json(const struct opt *opt)
{
	static const char *const types[] = {[OPT_FLAG] = "flag",
		[OPT_STRING] = "string",
		[OPT_INT] = "integer",
		[OPT_SIZE] = "size",
		[OPT_DURATION] = "duration",
		[OPT_LIST] = "list",
		[OPT_CHOICE] = "choice"};
	struct json *json = json_object();
	char letter[] = {opt->letter, '\0'};

	json_set_str(json, "name", opt->name);
	json_set_str(json, "letter", opt->letter ? letter : NULL);
	json_set_str(json, "type", types[opt->type]);
	json_set_str(json, "arg", opt->arg);
	json_set_str(json, "choices", opt->choices);
	json_set_str(json, "key", opt->key);
	json_set_str(json, "help", opt->help);
	return json;
}

static struct json *options_json(const struct opt *opts)
{
	struct json *list = json_array();

	for (const struct opt *opt = opts; opt && opt->type != OPT_END; opt++)
		if (!opt->hidden)
			json_add(list, option_json(opt));
	return list;
}

static struct json *command_json(const struct cmd *cmd)
{
	struct json *json = json_object(), *examples = json_array();

	json_set_str(json, "name", cmd->name);
	json_set_str(json, "summary", cmd->summary);
	json_set_str(json, "synopsis", cmd->synopsis);
	for (size_t i = 0; i < CMD_EXAMPLES; i++)
		json_add_str(examples, cmd->examples[i]);
	json_set(json, "examples", examples);
	json_set(json, "options", options_json(cmd->opts));
	return json;
}

/* only: one command, or NULL for all. */
static int help_print_json(struct app *app, const struct cmd *only)
{
	struct json *json = app_json("help"), *list = json_array();

	for (size_t i = 0; i < cmds_n; i++)
		if (only ? cmds[i] == only : !(cmds[i]->flags & CMD_HIDDEN))
			json_add(list, command_json(cmds[i]));
	json_set(json, "commands", list);
	json_set(json, "options", options_json(app_opts));
	return app_print_json(app, json);
}

/*
 * Screens
 */

static void help_add_command(const struct cmd *cmd, size_t columns, struct buf *out)
{
	ui_wrap(cmd->summary, columns - 1, 0, out);
	buf_adds(out, "\n\n");
	help_add_usage(cmd, columns, out);
	if (cmd->opts && cmd->opts->type != OPT_END) {
		buf_adds(out, "\noptions:\n");
		help_add_options(cmd->opts, columns, out);
	}
	if (cmd->examples[0])
		add_examples(cmd->examples, CMD_EXAMPLES, columns, out);
	add_common_line(columns, out);
}

int help_command(struct app *app, const struct cmd *cmd)
{
	AUTO_BUF struct buf out = buf_with(HELP_MAX);

	if (app->options.json)
		return help_print_json(app, cmd);
	help_add_command(cmd, app->columns, &out);
	return ui_print(app, UI_OUT, out.data, out.len) < 0;
}

void help_overview_text(size_t columns, struct buf *out)
{
	ui_wrap(intro, columns - 1, 0, out);
	buf_adds(out, "\n\nusage: dlrun COMMAND [options]\n");
	add_groups(columns, out);
	buf_adds(out, "\nmanual pages (dlrun help PAGE):\n");
	for (size_t i = 0; i < help_pages_n; i++)
		help_add_row(help_pages[i].name, NAME_INDENT, help_pages[i].about, columns, out);
	buf_adds(out, "\noptions of every command:\n");
	help_add_options(app_opts, columns, out);
	add_examples(first_steps, ARRAY_LEN(first_steps), columns, out);
	buf_addc(out, '\n');
	ui_wrap("dlrun COMMAND -h shows one screen, dlrun help COMMAND the manual page.",
		columns - 1, 0, out);
	buf_addc(out, '\n');
}

int help_overview(struct app *app)
{
	AUTO_BUF struct buf out = buf_with(HELP_MAX);

	if (app->options.json)
		return help_print_json(app, NULL);
	help_overview_text(app->columns, &out);
	return ui_print(app, UI_OUT, out.data, out.len) < 0;
}

/*
 * dlrun help [TOPIC]
 */

static int help_run(struct app *app, void *values UNUSED, struct strv *words)
{
	AUTO_ERR struct err err = {0};
	const struct cmd *cmd;

	if (words->n == 0)
		return help_overview(app);
	cmd = cmd_find(words->v[0]);
	if (cmd && app->options.json)
		return help_command(app, cmd);
	if (manual_show(app, words->v[0], &err) < 0)
		return app_fail(app, &err);
	return 0;
}

const struct cmd cmd_help = {
	.name = "help",
	.summary = "Show the commands, or the manual page of one",
	.synopsis = "[COMMAND|PAGE]",
	.examples = {"dlrun help # all commands",
		"dlrun help submit # the manual page of a command",
		"dlrun help dlrun.yaml # the configuration file"},
	.max_words = 1,
	.words = VALUE_TOPIC,
	.run = help_run,
};

enum { PARAGRAPH_MAX = 64 << 10, MARGIN = 4, STEP = 4 };

#define UNDERLINE "\033[4m"

struct page {
	struct buf *out;
	size_t columns;
	struct buf paragraph; /* gathered lines, marks still in them */
	size_t indent, hang;  /* of the paragraph, and of its second line */
	bool is_literal, after_blank;
};

/* Marks become colours. An underscore within a word is none. */
static void add_inline(const char *s, struct buf *out)
{
	bool bold = false, underline = false;
	char before = ' ';

	for (; *s; before = *s++) {
		bool inside = isalnum((unsigned char)before) && isalnum((unsigned char)s[1]);

		if (*s == '\\' && s[1]) {
			buf_addc(out, *++s);
		} else if (*s == '*') {
			bold = !bold;
			buf_adds(out, bold ? UI_BOLD : UI_OFF);
		} else if (*s == '_' && !inside) {
			underline = !underline;
			buf_adds(out, underline ? UNDERLINE : UI_OFF);
		} else {
			buf_addc(out, *s);
		}
	}
}

static void render_flush(struct page *page)
{
	AUTO_BUF struct buf wrapped = buf_with(PARAGRAPH_MAX);
	size_t width = page->columns > page->indent + 20 ? page->columns : page->indent + 20;

	if (page->paragraph.len == 0)
		return;
	buf_addf(page->out, "%*s", (int)page->indent, "");
	ui_wrap(page->paragraph.data, width - page->hang, page->hang, &wrapped);
	add_inline(wrapped.data, page->out);
	buf_addc(page->out, '\n');
	buf_reset(&page->paragraph);
	page->after_blank = false;
}

static void blank(struct page *page)
{
	render_flush(page);
	if (!page->after_blank)
		buf_addc(page->out, '\n');
	page->after_blank = true;
}

static void add_heading(struct page *page, const char *text, size_t indent)
{
	blank(page);
	buf_addf(page->out, "%*s" UI_BOLD "%s" UI_OFF "\n", (int)indent, "", text);
	page->after_blank = true;
}

static void render_add_text(struct page *page, const char *text, size_t indent)
{
	bool item = str_starts(text, "- ");

	if (item || page->indent != indent)
		render_flush(page);
	page->indent = indent;
	if (page->paragraph.len == 0)
		page->hang = item ? indent + 2 : indent;
	else
		buf_addc(&page->paragraph, ' ');
	buf_adds(&page->paragraph, text);
}

static void render_add_line(struct page *page, const char *line)
{
	size_t tabs = strspn(line, "\t");
	size_t indent = MARGIN + tabs * STEP;
	const char *text = line + tabs;

	if (str_eq(text, "```")) {
		render_flush(page);
		page->is_literal = !page->is_literal;
	} else if (page->is_literal) {
		buf_addf(page->out, "%*s%s\n", (int)indent + STEP, "", text);
		page->after_blank = false;
	} else if (!*text) {
		blank(page);
	} else if (str_starts(line, "# ")) {
		add_heading(page, line + 2, 0);
	} else if (str_starts(line, "## ")) {
		add_heading(page, line + 3, MARGIN / 2);
	} else if (!str_starts(line, "; ")) {
		render_add_text(page, text, indent);
	}
}

void manual_render(const char *source, size_t columns, struct buf *out)
{
	struct page page = {.out = out, .columns = columns, .indent = MARGIN, .after_blank = true};

	/* The first line is the title: NAME(SECTION). */
	source += strcspn(source, "\n");
	source += *source == '\n';
	buf_init(&page.paragraph, PARAGRAPH_MAX);
	while (*source) {
		size_t len = strcspn(source, "\n");
		AUTO_FREE char *line = mem_strndup(source, len);

		render_add_line(&page, line);
		source += len + (source[len] == '\n');
	}
	render_flush(&page);
	buf_done(&page.paragraph);
}
