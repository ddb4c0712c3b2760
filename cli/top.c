#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>

#include "base/auto.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/app.h"
#include "cli/cmd.h"
#include "cli/runs.h"
#include "cli/ui.h"
#include "run/dirs.h"
#include "run/observe.h"

enum {
	ASK_MS = 500,
	DRAW_MS = 1000,
	DRAW_MIN_MS = 100, /* keys do not make it draw more often */
	STALE_MS = 10 * 60 * 1000,
	METRICS_SHOWN = 4,
	SCREEN_MAX = 1 << 20,
	EXIT_INTERRUPTED = 130,
};

/* The other screen, without a cursor; and back. */
#define SCREEN_ON   "\033[?1049h\033[?25l"
#define SCREEN_OFF  "\033[?25h\033[?1049l"
#define SCREEN_HOME "\033[H"
#define LINE_END    "\033[K\r\n"
#define SCREEN_REST "\033[J"

static const struct ui_column columns[] = {
	{"RUN"},
	{"STATE"},
	{"TIME", .right = true},
	{"CPU", .right = true},
	{"MEMORY", .right = true},
	{"GPU", .right = true},
	{"GPU MEM", .right = true},
	{"POWER", .right = true},
	{"METRICS"},
};

/*
 * What is shown
 */

static bool is_target(struct app *app, const char *word)
{
	struct config *config;

	return str_eq(word, "local") ||
	       (app_config(app, NULL, NULL, &config, NULL) == 0 && config_target(config, word));
}

static int list_unfinished(
	struct app *app, const char *target, struct run_list *ret, struct err *err)
{
	const struct store_filter filter = {.unfinished_only = true, .target = target};
	struct session *session;
	struct store *store;
	int r = app_session(app, &session, err);

	if (r == 0)
		r = session_store(session, &store, err);
	if (r == 0)
		r = store_list(store, &filter, ret, err);
	return r < 0 ? r : runs_refresh(session, ret, ASK_MS, err);
}

/* word: a run, a target, or NULL for every run that has not ended. */
static int list(struct app *app, const char *word, struct run_list *ret, struct err *err)
{
	struct run *run;

	if (!word || is_target(app, word))
		return list_unfinished(app, word, ret, err);
	int r = runs_get(app, word, &run, err);
	if (r == 0)
		*vec_push(ret) = run;
	return r;
}

/* What the supervisor of the newest attempt has seen, or NULL. */
static struct json *observed(struct app *app, const struct run *run)
{
	struct session *session;

	if (run_attempts(run) == 0 || app_session(app, &session, NULL) < 0)
		return NULL;
	AUTO_FREE char *dir = dirs_attempt(&session->dirs, run_id(run), run_attempts(run));
	return observed_read(dir);
}

/* What is used at this moment; NULL: not known. */
static const struct json *now_of(const struct run *run, const struct json *seen)
{
	const char *time = json_get_str(seen, "time");
	int64_t seen_ms;

	if (run_state_is_final(run_state(run)) || !time || clock_parse(time, &seen_ms, NULL) < 0 ||
		clock_wall_ms() - seen_ms > STALE_MS)
		return NULL;
	return json_get(seen, "now");
}

/*
 * The table
 */

static void add_percent(struct ui_table *table, const struct json *now, const char *key)
{
	double value = json_get_num(now, key, -1);

	if (value < 0)
		ui_table_add(table, UI_DIM, "-");
	else
		ui_table_addf(table, "", "%.0f %%", value * 100);
}

static void add_size(struct ui_table *table, const struct json *now, const char *key)
{
	int64_t bytes = json_get_int(now, key, -1);
	char text[16];

	ui_table_add(
		table, bytes < 0 ? UI_DIM : "", bytes < 0 ? "-" : str_size((uint64_t)bytes, text));
}

static void add_power(struct ui_table *table, const struct json *now)
{
	double watts = json_get_num(now, "power_w", -1);

	if (watts < 0)
		ui_table_add(table, UI_DIM, "-");
	else
		ui_table_addf(table, "", "%.0f W", watts);
}

/* "loss 2.31 @100 · acc 0.9 @100" */
static void add_metrics(struct ui_table *table, const struct json *metrics)
{
	AUTO_BUF struct buf text;
	size_t n = 0;

	buf_init(&text, SCREEN_MAX);
	for (const struct json *m = json_first(metrics); m && n < METRICS_SHOWN;
		m = json_next(m), n++) {
		const char *not_finite = json_get_str(m, "not_finite");

		buf_addf(&text, "%s%s ", n ? " · " : "", json_key(m));
		if (not_finite)
			buf_adds(&text, not_finite);
		else
			buf_addf(&text, "%.4g", json_get_num(m, "value", 0));
		buf_addf(&text, " @%lld", (long long)json_get_int(m, "step", 0));
	}
	ui_table_add(table, "", text.data);
}

static void add_row(struct app *app, struct ui_table *table, const struct run *run)
{
	AUTO_JSON struct json *seen = observed(app, run);
	const struct json *now = now_of(run, seen);
	enum run_state state = run_state(run);
	int64_t duration_ms = runs_duration(run);
	char age[32];

	ui_table_add(table, "", run_id(run));
	ui_table_add(table, runs_state_style(state), run_state_name(state));
	ui_table_add(table, "", duration_ms < 0 ? "" : ui_age(duration_ms, age));
	add_percent(table, now, "cpu");
	add_size(table, now, "memory_bytes");
	add_percent(table, now, "gpu_busy");
	add_size(table, now, "gpu_memory_bytes");
	add_power(table, now);
	add_metrics(table, json_get(seen, "metrics"));
}

static void fill(struct app *app, const struct run_list *runs, struct ui_table *table)
{
	ui_table_init(table, columns, ARRAY_LEN(columns));
	vec_foreach (struct run *, run, runs)
		add_row(app, table, *run);
}

static int print_table(struct app *app, const struct run_list *runs)
{
	AUTO_TABLE struct ui_table table;

	fill(app, runs, &table);
	if (runs->n)
		return ui_table_print(app, &table) < 0;
	app_note(app, "no run is unfinished: dlrun submit -- PROGRAM");
	return 0;
}

/*
 * JSON
 */

static struct json *run_json(struct app *app, const struct run *run)
{
	static const char *const members[] = {"usage", "metrics"};
	struct json *json = json_object();
	AUTO_JSON struct json *seen = observed(app, run);
	const struct json *now = now_of(run, seen);

	json_set_str(json, "id", run_id(run));
	json_set_str(json, "state", run_state_name(run_state(run)));
	json_set_str(json, "target", run_target(run));
	json_set_int(json, "attempt", run_attempts(run));
	json_set_str(json, "time", json_get_str(seen, "time"));
	json_set(json, "now", now ? json_clone(now) : json_null());
	for (size_t i = 0; i < ARRAY_LEN(members); i++) {
		const struct json *member = json_get(seen, members[i]);

		json_set(json, members[i], member ? json_clone(member) : json_null());
	}
	return json;
}

static int print_json(struct app *app, const struct run_list *runs)
{
	struct json *json = app_json("top"), *list = json_array();

	vec_foreach (struct run *, run, runs)
		json_add(list, run_json(app, *run));
	json_set(json, "runs", list);
	return app_print_json(app, json);
}

static int show_once(struct app *app, const char *word)
{
	AUTO_ERR struct err err = {0};
	AUTO(run_list_done) struct run_list runs = {0};

	if (list(app, word, &runs, &err) < 0)
		return app_fail(app, &err);
	return app->options.json ? print_json(app, &runs) : print_table(app, &runs);
}

/*
 * A terminal
 */

struct screen {
	struct app *app;
	struct termios before;
	bool has_keys; /* stdin is a terminal, too */
	unsigned rows, columns;
};

static void screen_size(struct screen *screen)
{
	struct winsize size = {0};

	screen->rows = 24;
	screen->columns = screen->app->columns;
	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) < 0)
		return;
	if (size.ws_row)
		screen->rows = size.ws_row;
	if (size.ws_col && !getenv("COLUMNS"))
		screen->columns = size.ws_col;
}

/* Each time again: a shell that had stopped us has set its own. */
static void take_keys(struct screen *screen)
{
	struct termios keys = screen->before;

	keys.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
	keys.c_cc[VMIN] = 0;
	keys.c_cc[VTIME] = 0;
	if (screen->has_keys)
		tcsetattr(STDIN_FILENO, TCSANOW, &keys);
}

static void screen_begin(struct screen *screen, struct app *app)
{
	*screen = (struct screen){.app = app};
	screen->has_keys = isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &screen->before) == 0;
	ui_write(app, SCREEN_ON, sizeof(SCREEN_ON) - 1);
}

static void screen_end(struct screen *screen)
{
	ui_write(screen->app, SCREEN_OFF, sizeof(SCREEN_OFF) - 1);
	if (screen->has_keys)
		tcsetattr(STDIN_FILENO, TCSAFLUSH, &screen->before);
}

/* As many lines of text as there is room for. */
static void draw(struct screen *screen, const char *text)
{
	AUTO_BUF struct buf out;
	unsigned row = 1;

	buf_init(&out, SCREEN_MAX);
	buf_adds(&out, SCREEN_HOME);
	for (size_t len; *text && row < screen->rows; text += len, row++) {
		len = strcspn(text, "\n");
		ui_text(screen->app, UI_OUT, text, len, &out);
		buf_adds(&out, LINE_END);
		len += text[len] == '\n';
	}
	buf_adds(&out, SCREEN_REST);
	ui_write(screen->app, out.data, out.len);
}

static int draw_runs(struct screen *screen, const char *word, struct err *err)
{
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_TABLE struct ui_table table = {0};
	AUTO_BUF struct buf text = {0};
	int r = list(screen->app, word, &runs, err);

	if (r < 0)
		return r;
	buf_init(&text, SCREEN_MAX);
	screen_size(screen);
	take_keys(screen);
	fill(screen->app, &runs, &table);
	ui_table_format(screen->app, &table, screen->columns, &text);
	if (!runs.n)
		buf_adds(&text, "no run is unfinished\n");
	buf_adds(&text, "\n" UI_DIM "q: end" UI_OFF);
	draw(screen, text.data);
	return 0;
}

/* Until it is time to draw again. Returns whether q was pressed. */
static bool wait_for_key(const struct screen *screen)
{
	struct pollfd keys = {.fd = screen->has_keys ? STDIN_FILENO : -1, .events = POLLIN};
	int64_t start_ms = clock_ms();
	char typed[64];

	if (poll(&keys, 1, DRAW_MS) <= 0)
		return false;
	ssize_t n = read(STDIN_FILENO, typed, sizeof(typed));
	/* The terminal is gone. */
	if (n <= 0)
		return !(n < 0 && errno == EINTR);
	if (memchr(typed, 'q', (size_t)n) || memchr(typed, 'Q', (size_t)n))
		return true;
	if (clock_ms() - start_ms < DRAW_MIN_MS)
		poll(NULL, 0, DRAW_MIN_MS);
	return false;
}

static int watch(struct app *app, const char *word)
{
	AUTO_ERR struct err err = {0};
	struct screen screen;
	int r = 0;

	app_catch_signals();
	screen_begin(&screen, app);
	while (r == 0 && !app_interrupted && !app->out_lost) {
		r = draw_runs(&screen, word, &err);
		if (r == 0 && !app_interrupted && wait_for_key(&screen))
			break;
	}
	screen_end(&screen);
	if (r < 0)
		return app_fail(app, &err);
	return app_interrupted ? EXIT_INTERRUPTED : 0;
}

static int run(struct app *app, void *values, struct strv *words)
{
	const char *word = words->n ? words->v[0] : NULL;

	(void)values;
	if (app->out_tty && !app->options.json)
		return watch(app, word);
	return show_once(app, word);
}

static const char *const examples[CMD_EXAMPLES] = {
	"dlrun top # what runs use now, until q",
	"dlrun top @ # the newest run",
	"dlrun top --json # once, for a script",
};

const struct cmd cmd_top = {
	.name = "top",
	.summary = "Show what runs use now: GPU, CPU, memory, power",
	.synopsis = "[options] [RUN|TARGET]",
	.examples = examples,
	.max_words = 1,
	.words = VALUE_LIVE,
	.run = run,
};
