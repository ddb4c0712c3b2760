/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/plot/plot_data.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "app/runs/refresh.h"
#include "app/transfer/mirror.h"
#include "base/data/json.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/map.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/runs/runs.h"
#include "cli/term/app.h"
#include "cli/term/ui.h"

const char *plot_number(double value, char out[static PLOT_NUMBER])
{
	enum { DIGITS_MIN = 15, DIGITS_MAX = 17 };

	if (isnan(value))
		return "NaN";
	if (isinf(value))
		return value < 0 ? "-Infinity" : "Infinity";
	for (int digits = DIGITS_MIN; digits <= DIGITS_MAX; digits++) {
		snprintf(out, PLOT_NUMBER, "%.*g", digits, value);
		if (strtod(out, NULL) == value)
			break;
	}
	return out;
}

bool plot_data_flush(struct app *app, struct buf *out, size_t more_than)
{
	if (out->len > more_than) {
		ui_write(app, out->data, out->len);
		buf_reset(out);
	}
	return !app->out_lost && !app_interrupted;
}

/*
 * CSV
 */

static void add_csv_head(const struct plot_curve *curve, struct buf *out)
{
	str_csv_quote(out, curve->source->name);
	buf_addc(out, ',');
	str_csv_quote(out, curve->curve.dir);
	buf_addc(out, ',');
	str_csv_quote(out, curve->curve.tag);
}

int plot_csv(struct app *app, const struct plot_curves *curves)
{
	AUTO_BUF struct buf out = buf_with(PLOT_PIECE_MAX), head = buf_with(PLOT_PIECE_MAX);
	char time[PLOT_NUMBER], value[PLOT_NUMBER];

	buf_adds(&out, "run,dir,tag,step,wall_time,value\n");
	vec_foreach (struct plot_curve, curve, curves) {
		buf_reset(&head);
		add_csv_head(curve, &head);
		for (size_t i = 0; i < curve->curve.n; i++) {
			const struct series_point *point = &curve->curve.points[i];

			buf_add(&out, head.data, head.len);
			buf_addf(&out, ",%lld,%s,%s\n", (long long)point->step,
				plot_number(point->wall_time_s, time),
				plot_number(point->value, value));
			if (!plot_data_flush(app, &out, PLOT_PIECE))
				return 1;
		}
	}
	return !plot_data_flush(app, &out, 0);
}

/*
 * JSON
 */

static void add_json_number(double value, struct buf *out)
{
	char number[PLOT_NUMBER];

	buf_addf(out, isfinite(value) ? "%s" : "\"%s\"", plot_number(value, number));
}

enum member { MEMBER_STEP, MEMBER_TIME, MEMBER_VALUE };

static bool add_json_points(
	struct app *app, const struct series_curve *curve, enum member member, struct buf *out)
{
	static const char *const names[] = {"step", "wall_time", "value"};

	buf_addf(out, ",\"%s\":[", names[member]);
	for (size_t i = 0; i < curve->n; i++) {
		const struct series_point *point = &curve->points[i];

		if (i > 0)
			buf_addc(out, ',');
		if (member == MEMBER_STEP)
			buf_addf(out, "%lld", (long long)point->step);
		else
			add_json_number(
				member == MEMBER_TIME ? point->wall_time_s : point->value, out);
		if (!plot_data_flush(app, out, PLOT_PIECE))
			return false;
	}
	buf_addc(out, ']');
	return true;
}

/* The members of one text or number each; the object is not closed. */
static void add_json_head(const struct plot_curve *curve, struct buf *out)
{
	const struct plot_source *source = curve->source;
	AUTO_JSON struct json *head = json_object(), *restarts = json_array();

	json_set_str(head, "run", source->run ? source->name : NULL);
	json_set_bytes(head, "path", source->dir, strlen(source->dir));
	json_set_bytes(head, "dir", curve->curve.dir, strlen(curve->curve.dir));
	json_set_str(head, "tag", curve->curve.tag);
	for (size_t i = 0; i < curve->curve.n_seams; i++)
		json_add_int(restarts, curve->curve.seams[i]);
	json_set(head, "restarts", TAKE(restarts));
	json_print(head, out);
	buf_truncate(out, out->len - 1);
}

int plot_json(struct app *app, const struct plot_curves *curves)
{
	AUTO_BUF struct buf out = buf_with(PLOT_PIECE_MAX);
	const char *between = "";

	app->json_done = true;
	buf_adds(&out, "{\"schema\":\"dlrun/plot/v1\",\"curves\":[");
	vec_foreach (struct plot_curve, curve, curves) {
		buf_adds(&out, between);
		between = ",";
		add_json_head(curve, &out);
		for (enum member member = MEMBER_STEP; member <= MEMBER_VALUE; member++)
			if (!add_json_points(app, &curve->curve, member, &out))
				return 1;
		buf_addc(&out, '}');
	}
	buf_adds(&out, "]}\n");
	return !plot_data_flush(app, &out, 0);
}

enum { REFRESH_MS = 500, FIRST_MS = 120 * 1000 };

/*
 * Words
 */

static bool plot_sources_is_dir(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* Words that cannot be runs: those of a target are TARGET:ID, and targets may have slashes. */
static bool must_be_dir(const char *word)
{
	return str_eq(word, ".") || str_eq(word, "..") ||
	       (strchr(word, '/') && (!strchr(word, ':') || plot_sources_is_dir(word)));
}

static int plot_sources_add_dir(struct plot_sources *sources, const char *word, struct err *err)
{
	AUTO_FREE char *path = NULL, *shown = str_shown(word);

	if (!plot_sources_is_dir(word)) {
		err_set(err, E_EVENTS_DIR, "no such directory: %s", shown);
		return err_hint(err, "dlrun plot @   # the newest run");
	}
	int r = fs_realpath(word, &path, err);
	if (r < 0)
		return r;
	struct plot_source *source = vec_push(sources);
	*source = (struct plot_source){.name = mem_strdup(word)};
	source->dir = TAKE(path);
	size_t len = strlen(source->name);
	while (len > 1 && source->name[len - 1] == '/')
		source->name[--len] = '\0';
	return 0;
}

static bool plot_sources_has_run(const struct plot_sources *sources, const struct run *run)
{
	vec_foreach (struct plot_source, source, sources)
		if (source->run && str_eq(source->name, run_id(run)))
			return true;
	return false;
}

/* Takes run. */
static int plot_sources_add_run(
	struct plot_sources *sources, struct app *app, struct run *run, struct err *err)
{
	static const struct mirror_options options = {.scalars_only = true};
	AUTO_RUN struct run *held = run;
	size_t mirrored;
	int r = 0;

	if (plot_sources_has_run(sources, run))
		return 0;
	if (!sources->mirror)
		r = mirror_open(&app->session, &options, &sources->mirror, err);
	if (r == 0)
		r = mirror_add(sources->mirror, run, &mirrored, err);
	if (r < 0)
		return r;
	*vec_push(sources) = (struct plot_source){
		.name = mem_strdup(run_id(run)), .mirrored = mirrored, .run = TAKE(held)};
	return 0;
}

static int plot_sources_add_word(
	struct plot_sources *sources, struct app *app, const char *word, struct err *err)
{
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_FREE char *study = NULL;

	if (word && must_be_dir(word))
		return plot_sources_add_dir(sources, word, err);
	int r = runs_get_study(app, word, &runs, &study, err);
	if (r == -ERR_NOTFOUND && word && plot_sources_is_dir(word)) {
		err_clear(err);
		return plot_sources_add_dir(sources, word, err);
	}
	for (size_t i = 0; r == 0 && i < runs.n; i++)
		r = plot_sources_add_run(sources, app, TAKE(runs.v[i]), err);
	return r;
}

/* The beginning, by whole names, that all directories have but for their last names. */
static size_t common_dirs(const struct plot_sources *sources)
{
	const char *first = NULL;
	size_t common = 0;

	vec_foreach (struct plot_source, source, sources) {
		size_t i = 0, slash = 0;

		if (source->run)
			continue;
		if (!first) {
			const char *last = strrchr(source->name, '/');
			common = last ? (size_t)(last + 1 - source->name) : 0;
			first = source->name;
		}
		for (; i < common && source->name[i] == first[i]; i++)
			slash = first[i] == '/' ? i + 1 : slash;
		common = slash;
	}
	return common;
}

/* Each run was polled once: those that could not be. What was brought before can be drawn. */
static int check_mirror(const struct plot_sources *sources, struct app *app, struct err *err)
{
	size_t n_failed = 0;

	vec_foreach (struct plot_source, source, sources) {
		struct mirror_state state;

		if (!source->run)
			continue;
		mirror_get(sources->mirror, source->mirrored, &state);
		if (!err_is_set(state.error) || state.polls > 0)
			continue;
		n_failed += state.files == 0;
		if (sources->n > 1 || state.files > 0)
			app_warn(app, "%s: %s", source->name, state.error->message);
		else
			err_copy(err, state.error);
	}
	if (n_failed < sources->n || n_failed == 0)
		return 0;
	if (err_is_set(err))
		return err_prefix(err, "%s", sources->v[0].name);
	return err_set(err, E_TARGET_SILENT, "none of the %zu runs could be asked", sources->n);
}

const struct err *plot_sources_error(const struct plot_sources *sources, const char **ret_name)
{
	vec_foreach (struct plot_source, source, sources) {
		struct mirror_state state;

		if (!source->run)
			continue;
		mirror_get(sources->mirror, source->mirrored, &state);
		*ret_name = source->name;
		if (err_is_set(state.error))
			return state.error;
	}
	return NULL;
}

int plot_sources_open(struct plot_sources *sources, struct app *app, const struct strv *words,
	bool patient, struct err *err)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < words->n; i++)
		r = plot_sources_add_word(sources, app, words->v[i], err);
	if (r == 0 && words->n == 0)
		r = plot_sources_add_word(sources, app, NULL, err);
	if (r == 0 && sources->mirror)
		r = mirror_first(sources->mirror, FIRST_MS, &app_interrupted, err);
	if (r == 0 && !patient)
		r = check_mirror(sources, app, err);
	if (r < 0)
		return r;
	/* Where the event files of runs are. */
	vec_foreach (struct plot_source, source, sources) {
		struct mirror_state state;

		if (!source->run)
			continue;
		mirror_get(sources->mirror, source->mirrored, &state);
		source->dir = mem_strdup(state.source);
	}
	size_t common = common_dirs(sources);

	vec_foreach (struct plot_source, source, sources) {
		const char *label = source->name + (source->run ? 0 : common);
		source->label = mem_strdup(*label ? label : source->name);
	}
	vec_foreach (struct plot_source, source, sources)
		source->series = series_new(source->dir);
	return 0;
}

/*
 * Polling
 */

int plot_sources_poll(struct plot_sources *sources, bool *ret_new, struct err *err)
{
	*ret_new = false;
	vec_foreach (struct plot_source, source, sources) {
		bool is_new;
		int r = series_poll(source->series, &is_new, err);

		if (r < 0)
			return r;
		*ret_new |= is_new;
	}
	return 0;
}

void plot_sources_refresh(struct plot_sources *sources, struct app *app)
{
	AUTO(run_list_done) struct run_list runs = {0};

	if (!plot_sources_go_on(sources))
		return;
	vec_foreach (struct plot_source, source, sources)
		if (source->run)
			*vec_push(&runs) = TAKE(source->run);
	runs_refresh(&app->session, &runs, REFRESH_MS, NULL);
	size_t at = 0;
	vec_foreach (struct plot_source, source, sources)
		if (at < runs.n && str_eq(source->name, run_id(runs.v[at])))
			source->run = TAKE(runs.v[at]), at++;
	runs.n = 0;
}

bool plot_sources_go_on(const struct plot_sources *sources)
{
	vec_foreach (struct plot_source, source, sources)
		if (source->run && !run_state_is_final(run_state(source->run)))
			return true;
	return false;
}

int plot_sources_check(const struct plot_sources *sources, struct err *err)
{
	const struct plot_source *first = &sources->v[0];

	vec_foreach (struct plot_source, source, sources)
		if (series_count(source->series) > 0)
			return 0;
	if (!first->run) {
		AUTO_FREE char *shown = str_shown(first->name);
		err_set(err, E_EVENTS_NONE, "there is no event file with scalars in %s", shown);
		return err_hint(err, "name the directory that the program writes them to "
				     "(SummaryWriter's log_dir)");
	}
	if (plot_sources_go_on(sources)) {
		err_set(err, E_EVENTS_NONE, "%s has written no event files yet", first->name);
		return err_hint(err, "dlrun plot --watch %s", first->name);
	}
	err_set(err, E_EVENTS_NONE, "%s has written no event files", first->name);
	return err_hint(err, "dlrun fetch --list %s   # what it has written", first->name);
}

void plot_sources_done(struct plot_sources *sources)
{
	vec_foreach (struct plot_source, source, sources) {
		free(source->name);
		free(source->label);
		free(source->dir);
		run_free(source->run);
		series_free(source->series);
	}
	vec_done(sources);
	mirror_free(sources->mirror);
}

enum { LABEL_MAX = 16 << 10 };

/*
 * Matching tags
 */

bool plot_is_match(const char *glob, const char *tag)
{
	return str_eq(glob, tag) || fnmatch(glob, tag, 0) == 0;
}

static bool plot_pick_is_wanted(const char *tag, const struct strv *globs)
{
	for (size_t i = 0; i < globs->n; i++)
		if (plot_is_match(globs->v[i], tag))
			return true;
	return globs->n == 0;
}

static void list_all(const struct plot_sources *sources, struct plot_curves *ret)
{
	vec_foreach (struct plot_source, source, sources)
		for (size_t i = 0; i < series_count(source->series); i++) {
			struct plot_curve *curve = vec_push(ret);

			curve->source = source;
			series_get(source->series, i, &curve->curve);
		}
}

static bool plot_pick_has_match(const struct plot_curves *curves, const char *glob)
{
	vec_foreach (struct plot_curve, curve, curves)
		if (plot_is_match(glob, curve->curve.tag))
			return true;
	return false;
}

/* Each once, sorted. */
static void plot_pick_list_tags(const struct plot_curves *curves, struct strv *ret)
{
	struct map seen = {0};

	vec_foreach (struct plot_curve, curve, curves)
		if (!map_put(&seen, curve->curve.tag, curve))
			strv_add(ret, curve->curve.tag);
	map_done(&seen);
	strv_sort(ret);
}

static int no_match(const struct plot_curves *curves, const char *glob, struct err *err)
{
	enum { SHOWN = 12 };
	AUTO_FREE char *shown = str_shown(glob);
	AUTO_BUF struct buf names = buf_with(LABEL_MAX);
	AUTO_STRV struct strv tags = {0};

	plot_pick_list_tags(curves, &tags);
	for (size_t i = 0; i < tags.n && i < SHOWN; i++) {
		AUTO_FREE char *name = str_shown(tags.v[i]);
		buf_addf(&names, "%s%s", i ? ", " : "", name);
	}
	if (tags.n > SHOWN)
		buf_addf(&names, " and %zu more", tags.n - SHOWN);
	const char *near = str_suggest(glob, (const char *const *)tags.v, tags.n);
	err_set(err, E_EVENTS_TAG, "no scalar named %s", shown);
	err_evidence(err, "there are: %s", names.data);
	AUTO_BUF struct buf quoted = buf_with(LABEL_MAX);
	str_shell_quote(&quoted, near ? near : tags.v[0]);
	return err_hint(err, "--tag %s", quoted.data);
}

int plot_pick(const struct plot_sources *sources, const struct strv *globs, struct plot_curves *ret,
	struct err *err)
{
	struct plot_curves all = {0};
	int r = 0;

	list_all(sources, &all);
	for (size_t i = 0; r == 0 && i < globs->n; i++)
		if (!plot_pick_has_match(&all, globs->v[i]))
			r = no_match(&all, globs->v[i], err);
	vec_foreach (struct plot_curve, curve, &all)
		if (r == 0 && plot_pick_is_wanted(curve->curve.tag, globs))
			*vec_push(ret) = *curve;
	vec_done(&all);
	return r;
}

/*
 * Names
 */

/* Where in dir the name of what add_scalars has made of tag begins: torch writes loss_train,
 * tensorboardX loss/train; slashes of the tag may have become underscores. NULL: it has not. */
static const char *sub_name(const char *nested, const char *tag)
{
	size_t i = 0;

	for (; tag[i]; i++)
		if (nested[i] != tag[i] && !(tag[i] == '/' && nested[i] == '_'))
			return NULL;
	return (nested[i] == '_' || nested[i] == '/') && nested[i + 1] ? nested + i + 1 : NULL;
}

/* The directory of a curve as people would call it; the caller frees. */
static char *plot_dir_name(const struct series_curve *curve)
{
	const char *name = curve->nested ? sub_name(curve->nested, curve->tag) : NULL;
	size_t before = curve->nested ? strlen(curve->dir) - strlen(curve->nested) : 0;

	return name ? mem_printf("%.*s%s", (int)before, curve->dir, name) : mem_strdup(curve->dir);
}

/* The part of a, by whole names, that b begins with, too. */
static size_t common_part(const char *a, size_t len, const char *b)
{
	size_t common = 0;

	for (size_t i = 0;; i++) {
		bool a_ends = i == len || a[i] == '/', b_ends = !b[i] || b[i] == '/';

		if (a_ends && b_ends)
			common = i;
		if (i == len || a[i] != b[i])
			return common;
	}
}

/* Parts of names that all curves of a chart share. */
struct common {
	bool source, tag;
};

struct name {
	char *dir;     /* as people call it */
	size_t common; /* bytes of it that all of its source have */
	bool differs;  /* not all have the same */
};

static void find_common(const struct plot_curves *curves, struct name *names, struct common *ret)
{
	*ret = (struct common){true, true};
	for (size_t i = 0; i < curves->n; i++) {
		const struct plot_curve *curve = &curves->v[i];

		ret->source &= curve->source == curves->v[0].source;
		ret->tag &= str_eq(curve->curve.tag, curves->v[0].curve.tag);
		names[i].dir = plot_dir_name(&curve->curve);
		names[i].common = strlen(names[i].dir);
		/* Curves of one source follow each other. */
		if (i == 0 || curves->v[i - 1].source != curve->source)
			continue;
		names[i].common = common_part(names[i].dir, names[i].common, names[i - 1].dir);
		if (names[i - 1].common < names[i].common)
			names[i].common = names[i - 1].common;
		names[i].differs = names[i - 1].differs || !str_eq(names[i].dir, names[i - 1].dir);
	}
	for (size_t i = curves->n - 1; i-- > 0;)
		if (curves->v[i].source == curves->v[i + 1].source) {
			names[i].common = names[i + 1].common;
			names[i].differs = names[i + 1].differs;
		}
}

/* Whether event files of its source lie in several directories. */
static bool has_siblings(const struct plot_curve *curve)
{
	for (size_t i = 0; i < series_count(curve->source->series); i++) {
		struct series_curve other;

		series_get(curve->source->series, i, &other);
		if (!str_eq(other.dir, curve->curve.dir))
			return true;
	}
	return false;
}

static void plot_pick_add_word(struct buf *label, const char *word)
{
	buf_addf(label, "%s%s", label->len ? " " : "", *word ? word : ".");
}

static char *make_label(
	const struct plot_curve *curve, const struct name *name, const struct common *common)
{
	AUTO_BUF struct buf label = buf_with(LABEL_MAX);

	if (!common->source)
		plot_pick_add_word(&label, curve->source->label);
	if (name->differs) {
		const char *rest = name->dir + name->common;
		plot_pick_add_word(&label, *rest == '/' ? rest + 1 : rest);
	} else if (*name->dir && has_siblings(curve)) {
		plot_pick_add_word(&label, name->dir);
	}
	if (!common->tag)
		plot_pick_add_word(&label, curve->curve.tag);
	if (label.len == 0)
		buf_adds(&label, curve->source->label);
	return buf_take(&label);
}

/*
 * Charts
 */

static void plot_pick_add_lines(const struct plot_curves *curves, struct plot_chart *chart)
{
	struct name *names = mem_alloc(curves->n, sizeof(*names));
	struct common common;

	find_common(curves, names, &common);
	for (size_t i = 0; i < curves->n; i++) {
		if (chart->lines.n < CHART_LINES_MAX) {
			struct chart_line *line = vec_push(&chart->lines);
			line->label = make_label(&curves->v[i], &names[i], &common);
			line->curve = curves->v[i].curve;
		} else {
			chart->excluded++;
		}
		free(names[i].dir);
	}
	free(names);
}

/* A chart is titled with the tags of its curves. */
static char *make_title(const struct plot_curves *curves)
{
	AUTO_STRV struct strv tags = {0};
	AUTO_BUF struct buf title = buf_with(LABEL_MAX);

	plot_pick_list_tags(curves, &tags);
	for (size_t i = 0; i < tags.n; i++)
		buf_addf(&title, "%s%s", i ? ", " : "", tags.v[i]);
	return buf_take(&title);
}

static void plot_pick_add_chart(
	const struct plot_curves *curves, const char *name, bool is_glob, struct plot_charts *ret)
{
	struct plot_curves own = {0};

	vec_foreach (struct plot_curve, curve, curves)
		if (is_glob ? plot_is_match(name, curve->curve.tag)
			    : str_eq(curve->curve.tag, name))
			*vec_push(&own) = *curve;
	if (own.n > 0) {
		struct plot_chart *chart = vec_push(ret);
		chart->title = make_title(&own);
		plot_pick_add_lines(&own, chart);
	}
	vec_done(&own);
}

size_t plot_charts_make(const struct plot_curves *curves, const struct strv *globs, size_t max,
	struct plot_charts *ret)
{
	AUTO_STRV struct strv tags = {0};
	const struct strv *titles = globs->n ? globs : &tags;

	if (!globs->n)
		plot_pick_list_tags(curves, &tags);
	for (size_t i = 0; i < titles->n && i < max; i++)
		plot_pick_add_chart(curves, titles->v[i], globs->n > 0, ret);
	return titles->n > max ? titles->n - max : 0;
}

void plot_charts_done(struct plot_charts *charts)
{
	vec_foreach (struct plot_chart, chart, charts) {
		vec_foreach (struct chart_line, line, &chart->lines)
			free(line->label);
		vec_done(&chart->lines);
		free(chart->title);
	}
	vec_done(charts);
}
