#include <errno.h>
#include <signal.h>
#include <sys/select.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/fs.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/app.h"
#include "cli/cmd.h"
#include "cli/ui.h"
#include "run/init.h"

enum { ANSWER_MAX = 4096, TRIES_MAX = 3, DATA_SHOWN = 3 };

struct init_values {
	bool force, print, yes;
};

static const struct opt opts[] = {
	{OPT_MEMBER(OPT_FLAG, 0, "force", struct init_values, force),
		.help = "Replace a dlrun.yaml; the old one becomes dlrun.yaml~"},
	{OPT_MEMBER(OPT_FLAG, 0, "print", struct init_values, print),
		.help = "Print what would be written, and write nothing"},
	{OPT_MEMBER(OPT_FLAG, 'y', "yes", struct init_values, yes),
		.help = "Ask nothing (so it is without a terminal)"},
	{OPT_END},
};

/*
 * Questions
 */

/* A signal between the look at app_interrupted and read would leave it waiting: it comes through in
 * pselect only. */
static int wait_key(struct err *err)
{
	sigset_t stops, before;
	int n = 0;

	sigemptyset(&stops);
	sigaddset(&stops, SIGINT);
	sigaddset(&stops, SIGTERM);
	sigprocmask(SIG_BLOCK, &stops, &before);
	while (!app_interrupted && n == 0) {
		fd_set fds;
		FD_ZERO(&fds);
		FD_SET(STDIN_FILENO, &fds);
		n = pselect(STDIN_FILENO + 1, &fds, NULL, NULL, NULL, &before);
		n = n < 0 && errno == EINTR ? 0 : n;
	}
	sigprocmask(SIG_SETMASK, &before, NULL);
	return app_interrupted ? err_set(err, E_CANCELED, "stopped; nothing was written") : 0;
}

/* One line from the terminal. 1: *ret is an answer, 0: the end of the input. */
static int read_line(struct buf *ret, struct err *err)
{
	buf_reset(ret);
	for (;;) {
		char c;
		int r = wait_key(err);
		ssize_t n = r < 0 ? 0 : read(STDIN_FILENO, &c, 1);

		if (r < 0)
			return r;
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return 0;
		if (c == '\n')
			return 1;
		buf_addc(ret, c);
	}
}

/* 1: an answer, 0: there will be none. */
static int ask(struct app *app, const char *question, struct buf *answer, struct err *err)
{
	AUTO_FREE char *clean = ui_clean(question);

	ui_printf(app, UI_ERR, UI_BOLD "%s" UI_OFF " ", clean);
	int r = read_line(answer, err);
	if (r <= 0)
		ui_printf(app, UI_ERR, "\n");
	return r;
}

static int ask_command(
	struct app *app, const struct init_project *project, char **ret_answer, struct err *err)
{
	AUTO_BUF struct buf question, answer;
	AUTO_FREE char *first = NULL;

	buf_init(&question, 64 << 10);
	buf_init(&answer, ANSWER_MAX);
	buf_adds(&question, "What runs?");
	for (size_t i = 0; i < project->commands.n; i++) {
		AUTO_FREE char *text = init_command_text(&project->commands.v[i]);
		buf_addf(&question, i ? " or %s" : " [%s]", text);
		if (i == 0)
			first = TAKE(text);
	}
	int r = ask(app, question.data, &answer, err);
	if (r <= 0 || answer.len == 0 || str_eq(answer.data, first))
		return r;
	if (answer.full || !str_is_utf8(answer.data, answer.len))
		return err_set(err, E_USAGE, "the answer is no text that can be written down");
	*ret_answer = buf_take(&answer);
	return 1;
}

static int ask_yes(struct app *app, const char *question, bool fallback, bool *ret, struct err *err)
{
	AUTO_FREE char *whole = mem_printf("%s %s", question, fallback ? "[Y/n]" : "[y/N]");
	AUTO_BUF struct buf answer;
	int r = 1;

	buf_init(&answer, ANSWER_MAX);
	*ret = fallback;
	for (int i = 0; i < TRIES_MAX && r > 0; i++) {
		r = ask(app, whole, &answer, err);
		if (r <= 0 || answer.len == 0)
			break;
		if (strchr("yYnN", answer.data[0])) {
			*ret = strchr("yY", answer.data[0]) != NULL;
			break;
		}
	}
	return r;
}

static int ask_data(
	struct app *app, const struct init_project *project, bool *ret_no, struct err *err)
{
	AUTO_BUF struct buf question;
	bool yes;

	buf_init(&question, 64 << 10);
	buf_adds(&question, "Let runs use ");
	for (size_t i = 0; i < project->data.n && i < DATA_SHOWN; i++) {
		AUTO_FREE char *shown = str_shown(project->data.v[i].path);
		buf_addf(&question, "%s%s", i ? ", " : "", shown);
	}
	if (project->data.n > DATA_SHOWN)
		buf_addf(&question, " and %zu more", project->data.n - DATA_SHOWN);
	buf_adds(&question, ", which git ignores?");
	int r = ask_yes(app, question.data, true, &yes, err);
	*ret_no = !yes;
	return r;
}

/* command: what answers->command points to. Stops asking at the end of the input. */
static int ask_all(struct app *app, const struct init_project *project,
	struct init_answers *answers, char **command, struct err *err)
{
	app_catch_signals();
	int r = ask_command(app, project, command, err);
	answers->command = *command;
	if (r > 0 && !str_eq(project->prefix, ".")) {
		AUTO_FREE char *shown = str_shown(project->prefix);
		AUTO_FREE char *question =
			mem_printf("Send only %s, not the whole repository?", shown);
		r = ask_yes(app, question, false, &answers->limit_paths, err);
	}
	if (r > 0 && project->data.n)
		r = ask_data(app, project, &answers->no_data, err);
	return r < 0 ? r : 0;
}

/*
 * Telling
 */

static size_t count_lines(const char *text)
{
	size_t n = 0;

	for (; *text; text++)
		n += *text == '\n';
	return n;
}

static int print_json(struct app *app, const char *path, const char *text, bool written, bool kept)
{
	struct json *json = app_json("init");
	AUTO_FREE char *backup = kept ? mem_printf("%s~", path) : NULL;

	json_set_str(json, "path", path);
	json_set_bool(json, "written", written);
	json_set_str(json, "kept", backup);
	json_set_str(json, "text", text);
	return app_print_json(app, json);
}

static int say_written(struct app *app, const struct init_project *project,
	const struct init_answers *answers, const char *path, const char *text, bool kept)
{
	bool has_command = project->commands.n || answers->command;

	app_phase(app, "wrote", "%s (%zu lines)", path, count_lines(text));
	if (kept)
		app_phase(app, "", "the old one is kept as %s~", path);
	app_phase(app, "next", has_command ? "dlrun submit" : "dlrun submit -- PROGRAM");
	return app->options.json ? print_json(app, path, text, true, kept) : 0;
}

static int print_text(struct app *app, const char *path, const struct buf *text)
{
	if (app->options.json)
		return print_json(app, path, text->data, false, false);
	return ui_print(app, UI_OUT, text->data, text->len) < 0;
}

static bool may_ask(const struct app *app, const struct init_values *values)
{
	return !values->yes && !values->print && !app->options.json && !app->options.quiet &&
	       app->err_tty && isatty(STDIN_FILENO);
}

static int write_file(struct app *app, const struct init_values *values,
	const struct init_project *project, struct err *err)
{
	AUTO_FREE char *path = fs_join(project->dir, CONFIG_FILE);
	AUTO_FREE char *command = NULL;
	AUTO_BUF struct buf text;
	struct init_answers answers = {0};
	bool kept = false;
	int r = 0;

	buf_init(&text, INIT_TEXT_MAX);
	if (!values->print && !values->force)
		r = init_check_free(project->dir, err);
	if (r == 0 && may_ask(app, values))
		r = ask_all(app, project, &answers, &command, err);
	if (r < 0)
		return r;
	init_text(project, &answers, &text);
	if (values->print)
		return print_text(app, path, &text);
	r = init_put(project->dir, text.data, values->force, &kept, err);
	return r < 0 ? r : say_written(app, project, &answers, path, text.data, kept);
}

static int run(struct app *app, void *values_ptr, struct strv *words)
{
	const struct init_values *values = values_ptr;
	AUTO_ERR struct err err = {0};
	AUTO_INIT_PROJECT struct init_project *project = NULL;
	struct session *session;

	(void)words;
	if (app_session(app, &session, &err) < 0 || init_project_read(session, &project, &err) < 0)
		return app_fail(app, &err);
	vec_foreach (char *, note, &project->notes)
		app_warn(app, "%s", *note);
	int r = write_file(app, values, project, &err);
	return r < 0 ? app_fail(app, &err) : r;
}

static const char *const examples[CMD_EXAMPLES] = {
	"dlrun init # look at the project and write dlrun.yaml",
	"dlrun init --print # only show what would be written",
	"dlrun init --force --yes # write it anew, ask nothing",
};

const struct cmd cmd_init = {
	.name = "init",
	.summary = "Write a first dlrun.yaml from what the project says about itself",
	.synopsis = "[options]",
	.examples = examples,
	.opts = opts,
	.values_size = sizeof(struct init_values),
	.run = run,
};
