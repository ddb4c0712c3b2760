/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/plot/plot_pick.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/map.h"
#include "base/util/mem.h"
#include "base/util/str.h"

enum { LABEL_MAX = 16 << 10 };

/*
 * Matching tags
 */

/* A tag may have brackets of its own. */
static bool is_match(const char *glob, const char *tag)
{
	return str_eq(glob, tag) || fnmatch(glob, tag, 0) == 0;
}

static bool plot_pick_is_wanted(const char *tag, const struct strv *globs)
{
	for (size_t i = 0; i < globs->n; i++)
		if (is_match(globs->v[i], tag))
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
		if (is_match(glob, curve->curve.tag))
			return true;
	return false;
}

static int plot_pick_by_text(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Each once, sorted. */
static void plot_pick_list_tags(const struct plot_curves *curves, struct strv *ret)
{
	struct map seen = {0};

	vec_foreach (struct plot_curve, curve, curves)
		if (!map_put(&seen, curve->curve.tag, curve))
			strv_add(ret, curve->curve.tag);
	map_done(&seen);
	vec_sort(ret, plot_pick_by_text);
}

static int no_match(const struct plot_curves *curves, const char *glob, struct err *err)
{
	enum { SHOWN = 12 };
	AUTO_FREE char *shown = str_shown(glob);
	AUTO_BUF struct buf names;
	AUTO_STRV struct strv tags = {0};

	buf_init(&names, LABEL_MAX);
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
	AUTO_BUF struct buf quoted;
	buf_init(&quoted, LABEL_MAX);
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

char *plot_dir_name(const struct series_curve *curve)
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
	AUTO_BUF struct buf label;

	buf_init(&label, LABEL_MAX);
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
			chart->left_out++;
		}
		free(names[i].dir);
	}
	free(names);
}

/* A chart is titled with the tags of its curves. */
static char *make_title(const struct plot_curves *curves)
{
	AUTO_STRV struct strv tags = {0};
	AUTO_BUF struct buf title;

	buf_init(&title, LABEL_MAX);
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
		if (is_glob ? is_match(name, curve->curve.tag) : str_eq(curve->curve.tag, name))
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
