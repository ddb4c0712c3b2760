/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page of one run with its output and files (`dlrun proxy`). An engine:
 * records in, HTML out. No scripts; everything that a program or its user wrote is text, and files
 * are shown from names of their own (proxy_name.h).
 */
#ifndef DLRUN_APP_PROXY_PROXY_PAGE_H
#define DLRUN_APP_PROXY_PROXY_PAGE_H

#include <stdbool.h>
#include <stddef.h>

#include "app/proxy/proxy_name.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "core/record/run.h"

enum {
	PROXY_PAGE_MAX = 16 << 20,
	PROXY_FILES_SHOWN = 500, /* in the list */
	PROXY_PREVIEWS = 24,     /* images, videos, sounds: the newest */
	PROXY_TEXT_SHOWN = 512 << 10,
	PROXY_REFRESH_S = 10, /* while something goes on */
	PROXY_WATCH_S = 5,
};

/* dlrun/runs/v1 (cli.md). */
void proxy_page_json(const struct run_list *runs, struct buf *out);

struct proxy_page_run {
	const struct run *run;
	const char *why, *why_hint; /* a sentence, and what to do or "" */
	const struct proxy_here *here;
	bool is_watched; /* the page is loaded again by itself */
	const char *log; /* the end of it, any bytes */
	size_t log_len;
	const struct err *log_error; /* why there is none; or not set */
	/* A pod is started to list or read files: none are shown by themselves. */
	bool is_far;
	const struct outputs_files *files;
	bool files_cut;                /* there are more */
	const struct err *files_error; /* why they are not known; or not set */
};
void proxy_page_run(const struct proxy_page_run *page, struct buf *out);

/* Names of the program's ports that its user gave, as URLs, or NULL: for pages that say why a port
 * is not there. The caller frees. */
char *proxy_page_ports(const struct run *run, const struct proxy_here *here);

#endif
