/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The view of several runs that a URL names (`dlrun proxy`):
 *
 *	/?sort=-metrics.acc&group=tiger-4k2x9&q=adam+lab&columns=state,metrics.loss&run=ID&run=ID
 *	/compare?run=ID&run=ID&x=params.lr&y=metrics.loss.min
 *
 * An engine. A URL is hostile: what is not text (UTF-8 without controls), too long or too much is
 * ignored, as are names that are not known. Of a name that stands there twice the first counts, but
 * for run and columns, which are lists.
 */
#ifndef DLRUN_APP_PROXY_PROXY_VIEW_H
#define DLRUN_APP_PROXY_PROXY_VIEW_H

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/vec.h"

enum {
	PROXY_VIEW_VALUE_MAX = 512, /* bytes of a value */
	PROXY_VIEW_RUNS_MAX = 64,
	PROXY_VIEW_COLUMNS_MAX = 32,
};

struct proxy_view {
	char *path;          /* of the page: "/", "/compare" */
	char *sort;          /* "COLUMN", "-COLUMN": the largest first; NULL: as they are */
	char *group, *query; /* NULL: any */
	char *x, *y;         /* columns of the scatter; NULL: chosen by the page */
	struct strv columns; /* empty: those that say something */
	struct strv runs;    /* ids or other texts, each once */
};

/* target: path and query of a request. */
void proxy_view_parse(const char *target, struct proxy_view *ret);
void proxy_view_done(struct proxy_view *view);
#define AUTO_PROXY_VIEW AUTO(proxy_view_done)

/* The one way to write it, from "/" on: of unreserved characters, "%", and those of a query. */
void proxy_view_add(const struct proxy_view *view, struct buf *out);
/* The same with another sort (NULL: none). */
void proxy_view_add_sorted(const struct proxy_view *view, const char *sort, struct buf *out);

#endif
