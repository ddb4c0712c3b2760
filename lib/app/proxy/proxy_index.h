/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pages of several runs (`dlrun proxy`): a table that is sorted, filtered and grouped by its
 * URL (proxy_view.h), with curves of the chosen runs and drawings of a study on top. An engine:
 * records in, HTML out. Everything that a program or its user wrote is text. Forms and links do all
 * that the script (live.js) does.
 */
#ifndef DLRUN_APP_PROXY_PROXY_INDEX_H
#define DLRUN_APP_PROXY_PROXY_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "app/proxy/proxy_media.h"
#include "app/proxy/proxy_name.h"
#include "app/proxy/proxy_view.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/plot/trace.h"
#include "core/record/run.h"

enum {
	PROXY_COLUMNS_MAX = 12, /* of parameters, and of metrics */
	PROXY_CHARTS_MAX = 6,
	PROXY_GROUP_LINES = 10, /* of a group, unless runs are chosen */
	PROXY_AXES_MAX = 9,     /* of parallel coordinates */
};
/* The page of the chosen runs alone. */
#define PROXY_COMPARE_PATH "/compare"

/* Runs that go on first, else in the order that they have. */
void proxy_page_sort(struct run_list *runs);

/* Runs of a longer list, which lives longer: vec_done. */
struct proxy_runs VEC_OF(struct run *);
/* The runs that the page shows, in its order; *err: why a part of the view was ignored, or not
 * set. */
void proxy_index_select(const struct run_list *runs, const struct proxy_view *view, int64_t now_ms,
	struct proxy_runs *ret, struct err *err);
/* The runs whose curves are drawn: those that the view names, else the first of its group; at
 * most CHART_LINES_MAX. */
void proxy_index_choose(const struct run_list *runs, const struct proxy_runs *shown,
	const struct proxy_view *view, struct proxy_runs *ret);
/* Names of the metrics that are drawn: those of the view's columns, else the main ones. */
void proxy_index_metrics(
	const struct proxy_runs *chosen, const struct proxy_view *view, struct strv *ret);

struct proxy_page_index {
	const struct run_list *runs;
	bool is_cut; /* there are older ones */
	const struct proxy_here *here;
	const struct proxy_view *view;
	int64_t now_ms;
	const struct chart *charts; /* of the chosen runs */
	size_t n_charts;
	const struct strv *notes;             /* sentences on the charts */
	const struct proxy_media_list *media; /* of the chosen runs; or NULL */
};
void proxy_page_index(const struct proxy_page_index *page, struct buf *out);

#endif
