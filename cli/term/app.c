/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/term/app.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include "base/loop/proc.h"
#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/trace.h"
#include "cli/term/cmd.h"
#include "cli/term/help.h"
#include "cli/term/ui.h"
#include "cli/term/embed.h"
#include "targets/registry_tunnel.h"

extern char **environ;

enum { SELF_MAX = 4096, COLUMNS_MIN = 20, ROWS_MIN = 6, LINE_MAX_BYTES = 64 << 10 };

const struct opt app_opts[] = {
	{OPT_MEMBER(OPT_STRING, 'C', "directory", struct app_options, dir), .arg = "DIR",
		.help = "Work as if started in DIR", .values = VALUE_DIR},
	{OPT_MEMBER(OPT_FLAG, 'q', "quiet", struct app_options, quiet),
		.help = "Print only errors to stderr"},
	{OPT_MEMBER(OPT_FLAG, 'v', "verbose", struct app_options, verbose),
		.help = "Print debug output to stderr"},
	{OPT_MEMBER(OPT_FLAG, 'h', "help", struct app_options, help), .help = "Show a short help"},
	{OPT_MEMBER(OPT_FLAG, 0, "version", struct app_options, version),
		.help = "Show the version"},
	{OPT_MEMBER(OPT_FLAG, 0, "json", struct app_options, json),
		.help = "Write JSON to stdout, errors too"},
	{OPT_MEMBER(OPT_CHOICE, 0, "color", struct app_options, color), .arg = "WHEN",
		.choices = "auto always never", .help = "Use colours: auto, always or never"},
	{OPT_MEMBER(OPT_CHOICE, 0, "progress", struct app_options, progress), .arg = "FORM",
		.choices = "auto tty plain none",
		.help = "Show progress: auto, tty, plain (lines with times) or none"},
	{OPT_END},
};

volatile int app_interrupted;

/*
 * Signals
 */

static void on_interrupt(int sig UNUSED)
{
	app_interrupted = 1;
}

void app_catch_signals(void)
{
	struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};

	sigemptyset(&action.sa_mask);
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
}

static void on_pipe(int sig UNUSED)
{
}

/* Not ignored, as that would go on in the programs that we start; EPIPE comes all the same. */
static void catch_pipe(void)
{
	struct sigaction action = {.sa_handler = on_pipe, .sa_flags = SA_RESTART};

	sigemptyset(&action.sa_mask);
	sigaction(SIGPIPE, &action, NULL);
}

/*
 * Streams
 */

/* A file opened later must not become our stdout. */
static void open_standard_fds(void)
{
	for (int fd = 0; fd <= 2; fd++)
		if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd)
			_exit(125);
}

static bool env_is_on(const char *name)
{
	const char *value = getenv(name);

	return !str_empty(value) && !str_eq(value, "0");
}

static bool wants_color(const struct app *app, bool tty)
{
	const char *when = app->options.color;

	if (str_eq(when, "always") || str_eq(when, "never"))
		return str_eq(when, "always");
	if (!str_empty(getenv("NO_COLOR")))
		return false;
	if (env_is_on("CLICOLOR_FORCE") || env_is_on("FORCE_COLOR"))
		return true;
	if (str_eq(getenv("CLICOLOR"), "0") || str_eq(getenv("TERM"), "dumb"))
		return false;
	return tty;
}

static bool locale_is_utf8(void)
{
	static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
	const char *locale = NULL;

	for (size_t i = 0; i < ARRAY_LEN(names) && str_empty(locale); i++)
		locale = getenv(names[i]);
	return locale && (strcasestr(locale, "utf-8") || strcasestr(locale, "utf8"));
}

/* The fonts of Linux's console have 512 characters at most: no braille, no ellipsis. */
static bool app_is_plain(const struct app *app)
{
	bool tty = app->out_tty || app->err_tty;

	return !app->utf8 || (tty && str_eq(getenv("TERM"), "linux"));
}

/* As the environment tells it, else the terminal. */
static unsigned app_size_of(const char *name, int64_t min, unsigned found, unsigned otherwise)
{
	const char *text = getenv(name);
	int64_t number;

	if (text && str_to_int(text, min, UINT16_MAX, "", &number, NULL) == 0)
		return (unsigned)number;
	return found >= min ? found : otherwise;
}

void app_measure(struct app *app)
{
	struct winsize size = {0};

	app->columns = UI_COLUMNS;
	app->rows = 0;
	if (!app->out_tty && !app->err_tty)
		return;
	if (ioctl(app->out_tty ? STDOUT_FILENO : STDERR_FILENO, TIOCGWINSZ, &size) < 0)
		size = (struct winsize){0};
	app->columns = app_size_of("COLUMNS", COLUMNS_MIN, size.ws_col, UI_COLUMNS);
	if (app->out_tty)
		app->rows = app_size_of("LINES", ROWS_MIN, size.ws_row, UI_ROWS);
}

static enum app_progress progress_of(const struct app *app)
{
	const char *form = app->options.progress;

	if (app->options.quiet || str_eq(form, "none"))
		return PROGRESS_NONE;
	if (str_eq(form, "plain"))
		return PROGRESS_PLAIN;
	return app->err_tty || str_eq(form, "tty") ? PROGRESS_TTY : PROGRESS_PLAIN;
}

static void app_log_line(void *ctx, const char *line)
{
	ui_printf(ctx, UI_ERR, UI_DIM "%s" UI_OFF "\n", line);
}

/* After each reading of options. */
static void use_options(struct app *app)
{
	app->out_color = wants_color(app, app->out_tty);
	app->err_color = wants_color(app, app->err_tty);
	app->progress = progress_of(app);
	if (app->options.verbose)
		log_set_sink(app_log_line, app);
}

static void init(struct app *app)
{
	*app = (struct app){.started_ms = clock_ms()};
	open_standard_fds();
	catch_pipe();
	app->out_tty = isatty(STDOUT_FILENO);
	app->err_tty = isatty(STDERR_FILENO);
	app->utf8 = locale_is_utf8();
	app->plain = app_is_plain(app);
	app_measure(app);
	use_options(app);
}

static void app_done(struct app *app)
{
	log_set_sink(NULL, NULL);
	if (app->session_open)
		session_done(&app->session);
	trace_stop();
	free(app->cwd);
	free(app->shell_dir);
	free(app->self);
}

/*
 * Prompts
 */

/* A signal between the check of app_interrupted and read would leave it waiting: it comes through
 * in pselect only. */
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

/* Read a line from the terminal. 1: *ret is an answer, 0: the end of the input. */
static int prompt_read_line(struct buf *ret, struct err *err)
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

int prompt_line(struct app *app, const char *question, struct buf *answer, struct err *err)
{
	AUTO_FREE char *clean = ui_clean(question);

	ui_printf(app, UI_ERR, UI_BOLD "%s" UI_OFF " ", clean);
	int r = prompt_read_line(answer, err);
	if (r <= 0)
		ui_printf(app, UI_ERR, "\n");
	return r;
}

int prompt_yes(struct app *app, const char *question, bool fallback, bool *ret, struct err *err)
{
	AUTO_FREE char *whole = mem_printf("%s %s", question, fallback ? "[Y/n]" : "[y/N]");
	AUTO_BUF struct buf answer = buf_with(PROMPT_ANSWER_MAX);
	int r = 1;

	*ret = fallback;
	for (int i = 0; i < PROMPT_TRIES_MAX && r > 0; i++) {
		r = prompt_line(app, whole, &answer, err);
		if (r <= 0 || answer.len == 0)
			break;
		if (strchr("yYnN", answer.data[0])) {
			*ret = strchr("yY", answer.data[0]) != NULL;
			break;
		}
	}
	return r;
}

/* 1: yes, answer is "yes"; 0: no, or the end of the input. */
static int prompt_trust(struct app *app, const char *question, struct buf *answer, struct err *err)
{
	bool is_yes;
	int r = prompt_yes(app, question, false, &is_yes, err);

	if (r < 0 || !is_yes)
		return r < 0 ? r : 0;
	buf_reset(answer);
	buf_adds(answer, "yes");
	return 1;
}

/* As prompt_line, without the terminal showing it. */
static int prompt_secret(struct app *app, const char *question, struct buf *answer, struct err *err)
{
	struct termios before = {0}, hidden;
	bool is_hidden = tcgetattr(STDIN_FILENO, &before) == 0;

	hidden = before;
	hidden.c_lflag &= ~(tcflag_t)ECHO;
	is_hidden = is_hidden && tcsetattr(STDIN_FILENO, TCSADRAIN, &hidden) == 0;
	int r = prompt_line(app, question, answer, err);
	if (is_hidden) {
		tcsetattr(STDIN_FILENO, TCSADRAIN, &before);
		ui_printf(app, UI_ERR, "\n");
	}
	return r;
}

/*
 * Session
 */

static const char *login_name(void)
{
	const char *name = getenv("LOGNAME");
	const struct passwd *entry;

	if (str_empty(name))
		name = getenv("USER");
	if (!str_empty(name))
		return name;
	entry = getpwuid(geteuid());
	return entry ? entry->pw_name : "unknown";
}

/* Where the system does not tell: as the shell found it. Before -C changes the directory. */
static char *find_self(const char *name)
{
	char self[SELF_MAX];
	AUTO_FREE char *found = NULL;
	char *path = NULL;

	if (os_self_path(self, sizeof(self)))
		return mem_strdup(self);
	found = proc_find(name, NULL);
	if (found && fs_realpath(found, &path, NULL) == 0)
		return path;
	return mem_strdup(name);
}

static void app_print(void *ctx, const char *text)
{
	app_note(ctx, "%s", text);
}

static int app_prompt(
	void *ctx, const char *question, bool secret, struct buf *answer, struct err *err)
{
	return secret ? prompt_secret(ctx, question, answer, err)
		      : prompt_trust(ctx, question, answer, err);
}

static int app_read_env(struct app *app, struct session_env *ret, struct err *err)
{
	app->cwd = getcwd(NULL, 0);
	if (!app->cwd)
		return fs_error(err, errno, "the current directory cannot be found");
	*ret = (struct session_env){
		.dirs = {.home = getenv("HOME"),
			.xdg_config_home = getenv("XDG_CONFIG_HOME"),
			.xdg_state_home = getenv("XDG_STATE_HOME"),
			.xdg_cache_home = getenv("XDG_CACHE_HOME"),
			.xdg_data_home = getenv("XDG_DATA_HOME"),
			.xdg_runtime_dir = getenv("XDG_RUNTIME_DIR")},
		.cwd = app->cwd,
		.shell_dir = app->shell_dir,
		.git_dir = getenv("GIT_DIR"),
		.git_work_tree = getenv("GIT_WORK_TREE"),
		.user = login_name(),
		.source_date_epoch = getenv("SOURCE_DATE_EPOCH"),
		.env = (const char *const *)environ,
		.inside_run = getenv("DLRUN_RUN_ID") != NULL,
		.must_count = app->cmd && app->cmd->flags & CMD_STARTS,
		.has_terminal = isatty(STDIN_FILENO),
		.self = app->self,
		.print = app_print,
		.print_ctx = app,
		.prompt = isatty(STDIN_FILENO) && app->err_tty ? app_prompt : NULL,
		.open_tunnel = registry_tunnel_open,
	};
	return 0;
}

int app_session(struct app *app, struct session **ret, struct err *err)
{
	struct session_env env;
	int r;

	if (!app->session_open) {
		r = app_read_env(app, &env, err);
		if (r == 0)
			r = session_init(&app->session, &env, err);
		if (r < 0)
			return r;
		app->session_open = true;
	}
	*ret = &app->session;
	return 0;
}

int app_config(struct app *app, const struct opt *opts, const void *values, struct config **ret,
	struct err *err)
{
	struct session *session;
	struct config *config;
	int r = app_session(app, &session, err);

	if (r < 0)
		return r;
	r = session_config(session, &config, err);
	if (r < 0)
		return r;
	for (const struct opt *opt = opts; opt && opt->type != OPT_END; opt++) {
		AUTO_FREE char *text = opt->key ? opt_text(opt, values) : NULL;

		r = text ? config_override(config, opt->key, text, err) : 0;
		if (r < 0)
			return r;
	}
	*ret = config;
	return 0;
}

/*
 * Commands
 */

static int app_enter_dir(struct app *app, struct err *err)
{
	const char *dir = app->options.dir;

	if (!dir)
		return 0;
	REPLACE(app->shell_dir, getcwd(NULL, 0));
	if (!app->shell_dir)
		app->shell_dir = mem_strdup("");
	if (chdir(dir) == 0)
		return 0;
	AUTO_FREE char *shown = str_shown(dir);
	return fs_error(err, errno, "the directory %s of -C cannot be entered", shown);
}

/* The n-th argument of the synopsis that is not optional. */
static void app_fail_missing(const struct cmd *cmd, size_t n, struct err *err)
{
	const char *p = cmd->synopsis, *name = p;
	size_t len = 0;

	for (; *p; p += len, p += strspn(p, " ")) {
		len = strcspn(p, " ");
		bool is_optional = *p == '[' && p[len - 1] == ']';

		if (is_optional || (len == 2 && str_starts(p, "--")))
			continue;
		name = p;
		if (n-- == 0)
			break;
	}
	len = strcspn(name, " .");
	err_set(err, E_USAGE, "dlrun %s: missing argument %.*s", cmd->name, (int)len, name);
}

static int app_check_words(const struct cmd *cmd, const struct strv *words, struct err *err)
{
	if ((int)words->n < cmd->min_words) {
		app_fail_missing(cmd, words->n, err);
	} else if (cmd->max_words != CMD_WORDS_ANY && (int)words->n > cmd->max_words) {
		AUTO_FREE char *shown = str_shown(words->v[cmd->max_words]);

		err_set(err, E_USAGE, "dlrun %s: unexpected argument '%s'", cmd->name, shown);
	} else {
		return 0;
	}
	return err_hint(err, "dlrun %s -h", cmd->name);
}

static int show_version(struct app *app)
{
	struct json *json;

	if (!app->options.json)
		return ui_printf(app, UI_OUT, "dlrun %s\n", dlrun_version) < 0;
	json = app_json("version");
	json_set_str(json, "version", dlrun_version);
	return app_print_json(app, json);
}

static int run_parsed(struct app *app, const struct cmd *cmd, void *values, struct strv *words)
{
	AUTO_ERR struct err err = {0};

	if (app->options.help)
		return help_command(app, cmd);
	if (app->options.version)
		return show_version(app);
	if (app_check_words(cmd, words, &err) < 0 || app_enter_dir(app, &err) < 0)
		return app_fail(app, &err);
	return cmd->run(app, values, words);
}

static int run_command(struct app *app, const struct cmd *cmd, char *const *argv)
{
	AUTO_ERR struct err err = {0};
	AUTO_STRV struct strv words = {0};
	AUTO_FREE void *values = mem_alloc(1, cmd->values_size ? cmd->values_size : 1);
	AUTO_FREE char *name = mem_printf("dlrun %s", cmd->name);
	struct opt_request request = {.opts = cmd->opts,
		.values = values,
		.common = app_opts,
		.common_values = &app->options,
		.stop_at_word = cmd->flags & CMD_PROGRAM,
		.command = name,
		.ret_ahead = &app->words_ahead};
	int status;

	app->cmd = cmd;
	if (cmd->flags & CMD_OWN_ARGS) {
		for (; *argv; argv++)
			strv_add(&words, *argv);
		return cmd->run(app, values, &words);
	}
	int r = opt_parse(&request, argv, &words, &err);
	use_options(app);
	status = r < 0 ? app_fail(app, &err) : run_parsed(app, cmd, values, &words);
	opt_values_done(cmd->opts, values);
	return status;
}

/* Only what stands in argv of the options of every command. */
static void read_common(struct app *app, char *const *argv)
{
	AUTO_STRV struct strv words = {0};
	struct opt_request request = {
		.common = app_opts, .common_values = &app->options, .command = "dlrun"};

	opt_parse(&request, argv, &words, NULL);
	use_options(app);
}

static bool is_plugin_name(const char *name)
{
	return *name && name[strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-")] == '\0';
}

/* dlrun-NAME on PATH; returns only if there is none. */
static void run_plugin(struct app *app, const char *name, char *const *argv, struct err *err)
{
	AUTO_FREE char *program = mem_printf("dlrun-%s", name);
	AUTO_FREE char *path = is_plugin_name(name) ? proc_find(program, NULL) : NULL;
	AUTO_STRV struct strv words = {0};

	if (!path || app_enter_dir(app, err) < 0)
		return;
	strv_add(&words, path);
	for (; *argv; argv++)
		strv_add(&words, *argv);
	execv(path, words.v);
	err_set_errno(err, E_RUN_EXEC, errno, "%s cannot be started", path);
}

/* A program, or a file of the tree: the words behind it are its arguments. */
static bool app_is_program(const char *name)
{
	AUTO_FREE char *found = proc_find(name, NULL);
	struct stat st;

	return found || (stat(name, &st) == 0 && S_ISREG(st.st_mode));
}

static int unknown_command(const char *name, char *const *rest, struct err *err)
{
	AUTO_FREE char *shown = str_shown(name);
	const char **names = mem_alloc(cmds_n, sizeof(*names));
	const char *near = cmd_of_others(name);
	AUTO_BUF struct buf line = buf_with(LINE_MAX_BYTES);
	size_t n = 0;

	for (size_t i = 0; i < cmds_n; i++)
		if (!(cmds[i]->flags & CMD_HIDDEN))
			names[n++] = cmds[i]->name;
	if (!near && !strpbrk(name, "./"))
		near = str_suggest(name, names, n);
	free(names);
	err_set(err, E_USAGE_COMMAND, "unknown command '%s'", shown);
	if (near || !app_is_program(name))
		return err_hint(err, near ? "did you mean dlrun %s?" : "dlrun help", near);
	str_shell_quote(&line, name);
	for (; *rest; rest++) {
		buf_addc(&line, ' ');
		str_shell_quote(&line, *rest);
	}
	return err_hint(err, "did you mean dlrun submit -- %s?", line.data);
}

static int app_dispatch(struct app *app, char *const *argv, size_t n)
{
	AUTO_ERR struct err err = {0};
	AUTO_STRV struct strv words = {0};
	struct opt_request request = {.common = app_opts,
		.common_values = &app->options,
		.stop_at_word = true,
		.command = "dlrun"};
	const struct cmd *cmd;
	int r = opt_parse(&request, argv, &words, &err);
	char *const *rest = argv + n - (words.n ? words.n - 1 : 0);

	use_options(app);
	app->typed = argv;
	app->n_before = (size_t)(rest - argv);
	if (r == 0 && words.n == 0)
		return app->options.version ? show_version(app) : help_overview(app);
	cmd = r == 0 ? cmd_find(words.v[0]) : NULL;
	if (cmd)
		return run_command(app, cmd, rest);
	if (r == 0)
		run_plugin(app, words.v[0], rest, &err);
	read_common(app, rest);
	if (!err_is_set(&err))
		unknown_command(words.v[0], rest, &err);
	return app_fail(app, &err);
}

/* A setting that does not work must not keep a command from working. A completion must not write
 * into the line that is being typed. */
static void start_trace(struct app *app, const char *word)
{
	AUTO_ERR struct err err = {0};

	if (!str_eq(word, "__complete") && trace_start(getenv("DLRUN_TRACE"), &err) < 0)
		app_warn(app, "%s", err.message);
}

int app_main(int argc, char **argv)
{
	struct app app;
	int status;

	init(&app);
	start_trace(&app, argc > 1 ? argv[1] : NULL);
	app.self = find_self(argc > 0 ? argv[0] : "dlrun");
	status = app_dispatch(&app, argv + (argc > 0), argc > 0 ? (size_t)argc - 1 : 0);
	app_done(&app);
	return status == 0 && app.out_lost ? 1 : status;
}
