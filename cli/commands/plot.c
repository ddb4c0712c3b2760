/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/plot/chart.h"
#include "cli/plot/plot_data.h"
#include "cli/plot/plot_group.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"
#include "cli/term/screen.h"
#include "cli/term/ui.h"
#include "core/plot/svg.h"

enum {
	CHARTS_MAX = 8, /* without --tag */
	SVG_CHARTS_MAX = 200,
	HEIGHT_ONE = 14,
	HEIGHT_MANY = 8,
	HEIGHT_READABLE = 4, /* several charts are not made lower to be seen together */
	TEXT_MAX = 64 << 20,
	POLL_MS = 1000,
	REFRESH_EVERY = 5, /* polls */
	FLUSH_S = 120,     /* of torch's SummaryWriter */
	EXIT_INTERRUPTED = 130,
	CHART_LINES =
		4, /* beside the plot and one for each curve: title, axis, its texts, a blank */
};

struct plot_values {
	struct strv tags;
	const char *x, *smooth, *svg, *by;
	bool log, csv, watch;
	int64_t width, height;
};

static const struct opt opts[] = {
	{OPT_MEMBER(OPT_LIST, 0, "tag", struct plot_values, tags), .arg = "GLOB",
		.help = "Only scalars of that name or pattern, in one chart; may be repeated"},
	{OPT_MEMBER(OPT_STRING, 0, "by", struct plot_values, by), .arg = "KEY",
		.help = "One curve for each value of the parameter KEY: the median of its runs, "
			"and a band to the best"},
	{OPT_MEMBER(OPT_CHOICE, 0, "x", struct plot_values, x), .arg = "AXIS",
		.help = "step (default), rel: time since the start, wall: time of day",
		.choices = "step rel wall"},
	{OPT_MEMBER(OPT_STRING, 0, "smooth", struct plot_values, smooth), .arg = "N",
		.help = "Smooth curves as TensorBoard does: 0 (not at all) to 0.999"},
	{OPT_MEMBER(OPT_FLAG, 0, "log", struct plot_values, log), .help = "Logarithmic values"},
	{OPT_MEMBER(OPT_FLAG, 0, "csv", struct plot_values, csv),
		.help = "Print every value: run,dir,tag,step,wall_time,value"},
	{OPT_MEMBER(OPT_STRING, 0, "svg", struct plot_values, svg), .arg = "FILE",
		.help = "Write the charts to an SVG file", .values = VALUE_FILE},
	{OPT_MEMBER(OPT_FLAG, 0, "watch", struct plot_values, watch),
		.help = "Draw it again when there is more, until q"},
	{OPT_MEMBER(OPT_INT, 0, "width", struct plot_values, width), .arg = "N",
		.min = CHART_WIDTH_MIN, .max = CHART_WIDTH_MAX,
		.help = "Columns of a chart (default: the terminal's, or 80)"},
	{OPT_MEMBER(OPT_INT, 0, "height", struct plot_values, height), .arg = "N",
		.min = CHART_HEIGHT_MIN, .max = CHART_HEIGHT_MAX,
		.help = "Lines of a chart, without its axis"},
	{OPT_END},
};

struct plot {
	struct app *app;
	const struct plot_values *values;
	struct trace_view view;
	struct plot_sources sources;
};

static void plot_done(struct plot *plot)
{
	plot_sources_done(&plot->sources);
}

/*
 * Options
 */

static int parse_smooth(const char *text, double *ret, struct err *err)
{
	char *end;
	double value = strtod(text, &end);

	if (end != text && !*end && value >= 0 && value < 1) {
		*ret = value;
		return 0;
	}
	AUTO_FREE char *shown = str_shown(text);
	err_set(err, E_USAGE, "--smooth takes a number from 0 to 0.999, not %s", shown);
	return err_hint(err, "--smooth 0.6");
}

static int check_values(const struct plot_values *values, bool json, struct err *err)
{
	int formats = values->csv + json + (values->svg != NULL);

	if (formats > 1)
		return err_set(err, E_USAGE, "only one of --csv, --json and --svg at a time");
	if (values->by && values->x && !str_eq(values->x, "step"))
		return err_set(
			err, E_USAGE, "--by draws over steps; it cannot go with --x %s", values->x);
	if (values->watch && (values->csv || json))
		return err_set(err, E_USAGE, "--watch draws; it cannot go with --csv or --json");
	return 0;
}

static int make_view(const struct plot_values *values, struct trace_view *ret, struct err *err)
{
	*ret = (struct trace_view){
		.x = str_eq(values->x, "wall")  ? TRACE_WALL
		     : str_eq(values->x, "rel") ? TRACE_REL
						: TRACE_STEP,
		.log = values->log,
	};
	return values->smooth ? parse_smooth(values->smooth, &ret->smooth, err) : 0;
}

/*
 * Drawing
 */

static bool draws_ascii(const struct app *app)
{
	return app->plain || str_eq(getenv("TERM"), "dumb");
}

static struct chart chart_of(const struct plot *plot, const struct plot_chart *of)
{
	return (struct chart){
		.title = of->title,
		.lines = of->lines.v,
		.n_lines = of->lines.n,
		.view = plot->view,
		.utf8 = !draws_ascii(plot->app),
		.color = plot->app->out_color,
	};
}

/* So that each chart can be seen as a whole, and all of them if that leaves them readable. rows: of
 * the terminal, 0: any; fills: all of them are used. */
static unsigned height_of(
	const struct plot *plot, const struct plot_charts *charts, unsigned rows, bool fills)
{
	size_t all = 2, one = 0; /* lines that are no plot */

	if (plot->values->height != OPT_UNSET)
		return (unsigned)plot->values->height;
	unsigned height = charts->n > 1 ? HEIGHT_MANY : HEIGHT_ONE;
	if (!rows || !charts->n)
		return height;
	vec_foreach (struct plot_chart, chart, charts) {
		size_t lines = CHART_LINES + chart->lines.n;
		all += lines;
		one = lines > one ? lines : one;
	}
	size_t least = charts->n > 1 ? HEIGHT_READABLE : CHART_HEIGHT_MIN;
	bool fit = all + charts->n * least <= rows;
	size_t available = fit ? (rows - all) / charts->n : rows > one + 1 ? rows - one - 1 : 0;
	if (available > height && !(fills && fit))
		return height;
	return (unsigned)(available > CHART_HEIGHT_MIN ? available : CHART_HEIGHT_MIN);
}

static void draw_charts(const struct plot *plot, const struct plot_charts *charts, unsigned width,
	unsigned height, struct buf *out)
{
	vec_foreach (struct plot_chart, of, charts) {
		struct chart chart = chart_of(plot, of);

		chart.width = width;
		chart.height = height;
		if (of > charts->v)
			buf_addc(out, '\n');
		chart_draw(&chart, out);
	}
}

static int write_svg(const struct plot *plot, const struct plot_charts *of, struct err *err)
{
	const struct plot_values *values = plot->values;
	struct chart *charts = mem_alloc(of->n, sizeof(*charts));
	AUTO_BUF struct buf out = buf_with(TEXT_MAX);
	int64_t width = values->width == OPT_UNSET ? SVG_WIDTH : values->width * 9;
	int64_t height = values->height == OPT_UNSET ? SVG_HEIGHT : values->height * 20;

	for (size_t i = 0; i < of->n; i++) {
		charts[i] = chart_of(plot, &of->v[i]);
		charts[i].width = (unsigned)width;
		charts[i].height = (unsigned)height;
	}
	svg_draw(charts, of->n, &out);
	free(charts);
	int r = buf_check(&out, "the drawing", err);
	if (r < 0)
		return r;
	if (str_eq(values->svg, "-"))
		return ui_write(plot->app, out.data, out.len) < 0 ? -ERR_IO : 0;
	return fs_replace(values->svg, out.data, out.len, 0644, FS_SYNC_NONE, err);
}

/* Curves to be drawn, or with --by groups of them, whose points the charts borrow. */
struct plot_drawn {
	struct plot_curves curves;
	struct plot_groups groups;
	struct plot_charts charts;
};

static void plot_drawn_done(struct plot_drawn *drawn)
{
	plot_charts_done(&drawn->charts);
	plot_groups_done(&drawn->groups);
	plot_curves_done(&drawn->curves);
}

static int plot_pick_all(const struct plot *plot, struct plot_drawn *ret, struct err *err)
{
	const struct plot_values *values = plot->values;
	int r = plot_pick(&plot->sources, &values->tags, &ret->curves, err);

	if (r == 0 && values->by)
		r = plot_groups_of(&ret->curves, values->by, &ret->groups, err);
	return r;
}

/* Returns how many charts there would be beyond max. */
static size_t plot_make_charts(const struct plot *plot, struct plot_drawn *drawn, size_t max)
{
	const struct plot_values *values = plot->values;

	if (values->by)
		return plot_groups_charts(
			&drawn->groups, values->by, &values->tags, max, &drawn->charts);
	return plot_charts_make(&drawn->curves, &values->tags, max, &drawn->charts);
}

/*
 * Notes beside the charts
 */

static void note_excluded(
	const struct plot *plot, const struct plot_charts *charts, size_t more_charts)
{
	vec_foreach (struct plot_chart, chart, charts)
		if (chart->excluded)
			app_note(plot->app, "%s: %zu more curves are not drawn; name fewer runs",
				chart->title, chart->excluded);
	if (more_charts)
		app_note(plot->app, "%zu more scalars: dlrun plot --tag NAME or 'GLOB'",
			more_charts);
}

/* "" where no more is waited for. */
static void age_text(const struct plot *plot, char out[static 96])
{
	double newest_s = (double)NAN;
	char age[32];

	*out = '\0';
	if (!plot_sources_go_on(&plot->sources))
		return;
	vec_foreach (struct plot_source, source, &plot->sources) {
		double s = series_newest_s(source->series);
		newest_s = isfinite(s) && !(s <= newest_s) ? s : newest_s;
	}
	double now_ms = (double)clock_wall_ms(), ago_ms = now_ms - newest_s * 1000;
	if (!(ago_ms < 1e15))
		return;
	snprintf(out, 96, "last event %s ago; most writers flush every %d s",
		ui_age(ago_ms > 0 ? (int64_t)ago_ms : 0, age), FLUSH_S);
}

static void note_age(const struct plot *plot)
{
	char text[96];

	age_text(plot, text);
	if (*text)
		app_note(plot->app, "%s", text);
}

/*
 * Once
 */

static int print_charts(const struct plot *plot, struct plot_drawn *drawn, struct err *err)
{
	const struct plot_charts *charts = &drawn->charts;
	const struct plot_values *values = plot->values;
	size_t max = values->svg ? SVG_CHARTS_MAX : CHARTS_MAX;
	unsigned width = plot->app->columns;
	AUTO_BUF struct buf out = buf_with(TEXT_MAX);
	int r = 0;

	if (values->tags.n > max)
		max = values->tags.n;
	size_t more = plot_make_charts(plot, drawn, max);
	if (values->svg) {
		r = write_svg(plot, charts, err);
		if (r == 0 && !str_eq(values->svg, "-"))
			app_note(plot->app, "%s: %zu %s", values->svg, charts->n,
				charts->n == 1 ? "chart" : "charts");
	} else {
		if (values->width != OPT_UNSET)
			width = (unsigned)values->width;
		draw_charts(
			plot, charts, width, height_of(plot, charts, plot->app->rows, false), &out);
		ui_print(plot->app, UI_OUT, out.data, out.len);
	}
	if (r == 0)
		note_excluded(plot, charts, more);
	return r;
}

static int plot_print_data(const struct plot *plot, const struct plot_drawn *drawn)
{
	struct app *app = plot->app;
	const char *by = plot->values->by;

	if (plot->values->csv)
		return by ? plot_groups_csv(app, &drawn->groups, by)
			  : plot_csv(app, &drawn->curves);
	return by ? plot_groups_json(app, &drawn->groups, by) : plot_json(app, &drawn->curves);
}

static int plot_show_once(struct plot *plot, struct err *err)
{
	AUTO(plot_drawn_done) struct plot_drawn drawn = {0};
	bool is_new;
	int r = plot_sources_poll(&plot->sources, &is_new, err);

	if (r == 0)
		r = plot_sources_check(&plot->sources, err);
	if (r == 0)
		r = plot_pick_all(plot, &drawn, err);
	if (r < 0)
		return r;
	if (plot->values->csv || plot->app->options.json)
		return plot_print_data(plot, &drawn);
	r = print_charts(plot, &drawn, err);
	if (r == 0)
		note_age(plot);
	return r;
}

/*
 * Again and again
 */

static void plot_add_error(const struct plot *plot, struct buf *out)
{
	const char *name;
	const struct err *error = plot_sources_error(&plot->sources, &name);

	if (!error)
		return;
	AUTO_FREE char *text = ui_clean(error->message);
	buf_addf(out, UI_YELLOW "%s: %s" UI_OFF "\n", name, text);
}

static int draw_screen(struct plot *plot, struct screen *screen, struct err *err)
{
	AUTO(plot_drawn_done) struct plot_drawn drawn = {0};
	const struct plot_charts *charts = &drawn.charts;
	AUTO_BUF struct buf out = buf_with(TEXT_MAX);
	char age[96];
	int r = plot_pick_all(plot, &drawn, NULL);

	screen_measure(screen);
	/* Ignore tags that match nothing: their curves may appear later. */
	if (r == 0)
		plot_make_charts(plot, &drawn, CHARTS_MAX);
	unsigned width =
		plot->values->width == OPT_UNSET ? screen->columns : (unsigned)plot->values->width;
	draw_charts(plot, charts, width, height_of(plot, charts, screen->rows, true), &out);
	if (charts->n == 0)
		buf_adds(&out, "no values yet\n");
	plot_add_error(plot, &out);
	age_text(plot, age);
	buf_addf(&out, "\n" UI_DIM "%s%sq: quit" UI_OFF, age, *age ? " · " : "");
	screen_draw(screen, out.data);
	return plot->values->svg && charts->n ? write_svg(plot, charts, err) : 0;
}

static int watch_screen(struct plot *plot, struct screen *screen, struct err *err)
{
	struct loop *loop = session_loop(&plot->app->session);
	bool is_new;
	int r = 0;

	for (unsigned poll = 1; r == 0 && !screen->quit && !app_interrupted; poll++) {
		r = plot_sources_poll(&plot->sources, &is_new, err);
		if (poll % REFRESH_EVERY == 0)
			plot_sources_refresh(&plot->sources, plot->app);
		if (r == 0)
			r = draw_screen(plot, screen, err);
		if (r == 0)
			r = screen_wait(screen, loop, POLL_MS, err);
		if (plot->app->out_lost)
			break;
	}
	return r;
}

static int plot_watch(struct plot *plot, struct err *err)
{
	struct screen screen;

	screen_begin(&screen, plot->app);
	int r = watch_screen(plot, &screen, err);
	screen_end(&screen);
	return r < 0 ? r : app_interrupted ? EXIT_INTERRUPTED : 0;
}

static int plot_run(struct app *app, void *values_ptr, struct strv *words)
{
	AUTO(plot_done) struct plot plot = {.app = app, .values = values_ptr};
	AUTO_ERR struct err err = {0};
	struct session *session;
	bool watches = plot.values->watch && app->out_tty;
	int r = check_values(plot.values, app->options.json, &err);

	if (r == 0)
		r = make_view(plot.values, &plot.view, &err);
	if (r == 0)
		r = app_session(app, &session, &err);
	app_catch_signals();
	if (r == 0)
		r = plot_sources_open(&plot.sources, app, words, watches, &err);
	if (r == 0 && watches)
		r = plot_watch(&plot, &err);
	else if (r == 0)
		r = plot_show_once(&plot, &err);
	return r < 0 ? app_fail(app, &err) : r;
}

const struct cmd cmd_plot = {
	.name = "plot",
	.summary = "Draw the learning curves of runs",
	.synopsis = "[options] [RUN|STUDY|DIR...]",
	.examples = {"dlrun plot # the curves of the newest run",
		"dlrun plot @ @-1 --tag loss --smooth 0.6 --watch # two runs in one chart, live",
		"dlrun plot --by lr --tag val_loss tiger-4k2x9 # of a study, one curve for each lr"},
	.opts = opts,
	.values_size = sizeof(struct plot_values),
	.max_words = CMD_WORDS_ANY,
	.words = VALUE_RUNS_DIRS,
	.flags = CMD_STUDIES,
	.run = plot_run,
};
