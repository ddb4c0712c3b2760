/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "app/proxy/proxy_impl.h"
#include "app/transfer/mirror.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/plot/svg.h"
#include "events/series.h"

enum {
	CURVES_RUNS_MAX = 2 * CHART_LINES_MAX, /* that stay read */
	CURVES_POINTS_MAX = 500 * 1000,        /* of all of them: 24 bytes each */
	CURVES_IDLE_MS = 60 * 1000,
	CURVES_WIDTH = 460,
	CURVES_HEIGHT = 200,
};

/* The event files of a run, as far as they have been read. */
struct curves {
	char id[RUN_ID_SIZE];
	struct series *series;
	bool is_cut;
	int64_t used_ms;
	struct curves *next;
};

/* Reads a part of one run in each turn of the loop, so that others are served between them. */
struct curves_reading {
	struct proxy *proxy;
	struct strv ids, dirs; /* an empty one: its files are not here */
	size_t at;
	struct loop_timer *timer;
	void (*done)(struct request *request);
	struct request *request;
};

static struct curves *curves_find(const struct proxy *proxy, const char *id)
{
	struct curves *curves = proxy->curves;

	while (curves && !str_eq(curves->id, id))
		curves = curves->next;
	return curves;
}

static size_t curves_points(const struct curves *curves)
{
	size_t n = 0;

	for (size_t i = 0; i < series_count(curves->series); i++) {
		struct series_curve curve;

		series_get(curves->series, i, &curve);
		n += curve.n;
	}
	return n;
}

/* The points that all others leave for these curves. */
static size_t curves_left(const struct proxy *proxy, const struct curves *own)
{
	size_t n = 0;

	for (const struct curves *each = proxy->curves; each; each = each->next)
		if (each != own)
			n += curves_points(each);
	return n < CURVES_POINTS_MAX ? CURVES_POINTS_MAX - n : 0;
}

void curves_tidy(struct proxy *proxy, bool all)
{
	int64_t now_ms = clock_ms();
	size_t n = 0;

	for (struct curves **at = &proxy->curves; *at;) {
		struct curves *curves = *at;

		if (!all && now_ms - curves->used_ms < CURVES_IDLE_MS && ++n <= CURVES_RUNS_MAX) {
			at = &curves->next;
			continue;
		}
		*at = curves->next;
		series_free(curves->series);
		free(curves);
	}
}

/* Returns whether there is more to read at once. */
static bool curves_poll(struct proxy *proxy, const char *id, const char *dir)
{
	struct curves *curves = curves_find(proxy, id);
	bool more;

	if (!*dir)
		return false;
	if (!curves) {
		curves = mem_alloc(1, sizeof(*curves));
		*curves = (struct curves){.series = series_new(dir), .next = proxy->curves};
		memcpy(curves->id, id, strnlen(id, sizeof(curves->id) - 1));
		proxy->curves = curves;
	}
	curves->used_ms = clock_ms();
	series_limit(curves->series, curves_left(proxy, curves));
	curves->is_cut = series_poll_part(curves->series, &more, NULL) == -ERR_LIMIT;
	return more;
}

void curves_stop(void *reading_ptr)
{
	struct curves_reading *reading = reading_ptr;

	loop_remove_timer(reading->proxy->loop, reading->timer);
	strv_done(&reading->ids);
	strv_done(&reading->dirs);
	free(reading);
}

static int curves_on_turn(void *ctx, struct err *err UNUSED)
{
	struct curves_reading *reading = ctx;
	struct proxy *proxy = reading->proxy;

	reading->timer = NULL;
	if (reading->at == reading->ids.n) {
		reading->done(reading->request);
		return 0;
	}
	if (!curves_poll(proxy, reading->ids.v[reading->at], reading->dirs.v[reading->at]))
		reading->at++;
	reading->timer = loop_add_timer(proxy->loop, 0, curves_on_turn, reading);
	return 0;
}

struct curves_reading *curves_read(struct request *request, const struct proxy_runs *runs,
	void (*done)(struct request *request))
{
	struct curves_reading *reading = mem_alloc(1, sizeof(*reading));
	struct proxy *proxy = request->proxy;

	*reading = (struct curves_reading){.proxy = proxy, .request = request, .done = done};
	vec_foreach (struct run *, run, runs) {
		AUTO_FREE char *dir = metrics_here_dir(proxy->session, *run);

		strv_add(&reading->ids, run_id(*run));
		strv_add(&reading->dirs, dir ? dir : "");
	}
	reading->timer = loop_add_timer(proxy->loop, 0, curves_on_turn, reading);
	return reading;
}

/*
 * Charts
 */

void curves_drawn_done(struct curves_drawn *drawn)
{
	vec_foreach (struct chart, chart, &drawn->charts) {
		struct chart_line *lines = (struct chart_line *)(uintptr_t)chart->lines;

		for (size_t i = 0; i < chart->n_lines; i++)
			free(lines[i].label);
		free(lines);
	}
	vec_done(&drawn->charts);
	strv_done(&drawn->notes);
}

static void curves_add_chart(const struct proxy *proxy, const struct proxy_runs *runs,
	const char *metric, struct curves_drawn *ret)
{
	struct chart_lines lines = {0};

	vec_foreach (struct run *, run, runs) {
		const struct curves *curves = curves_find(proxy, run_id(*run));
		struct chart_line line = {0};

		if (!curves || !spark_find(curves->series, metric, &line.curve))
			continue;
		line.label = mem_strdup(run_id(*run));
		*vec_push(&lines) = line;
	}
	if (lines.n)
		*vec_push(&ret->charts) = (struct chart){.title = metric,
			.lines = lines.v,
			.n_lines = lines.n,
			.width = CURVES_WIDTH,
			.height = CURVES_HEIGHT};
}

void curves_draw(const struct proxy *proxy, const struct proxy_runs *runs,
	const struct strv *metrics, struct curves_drawn *ret)
{
	size_t n_without = 0;
	const struct run *without = NULL;

	for (size_t i = 0; i < metrics->n; i++)
		curves_add_chart(proxy, runs, metrics->v[i], ret);
	vec_foreach (struct run *, run, runs) {
		const struct curves *curves = curves_find(proxy, run_id(*run));

		if (curves && curves->is_cut)
			strv_addf(&ret->notes,
				"%s has more points than are drawn here: dlrun plot %s",
				run_id(*run), run_id(*run));
		if (curves && series_count(curves->series))
			continue;
		n_without++;
		without = *run;
	}
	if (n_without == 1)
		strv_addf(&ret->notes, "No event files of %s are on this machine: dlrun plot %s",
			run_id(without), run_id(without));
	else if (n_without)
		strv_addf(&ret->notes,
			"No event files of %zu of these runs are on this machine: dlrun plot %s",
			n_without, run_id(without));
}
