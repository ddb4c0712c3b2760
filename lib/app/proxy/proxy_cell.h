/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values of a run's record, and what leads to it, as parts of pages (`dlrun proxy`). An engine.
 */
#ifndef DLRUN_APP_PROXY_PROXY_CELL_H
#define DLRUN_APP_PROXY_PROXY_CELL_H

#include <stdint.h>

#include "app/proxy/proxy_name.h"
#include "base/data/json.h"
#include "base/util/buf.h"
#include "core/record/run.h"

/* Text of the column of that name in `ps`, "" where nothing is known; the caller frees. */
char *cell_column(const struct run *run, const char *column, int64_t now_ms);
/* A value of the record as people write it; NULL is "". The caller frees. */
char *cell_scalar(const struct json *json);
/* Adds text as HTML, cut behind 120 bytes. */
void cell_short(struct buf *out, const char *text);
/* The state in its colour. */
void cell_state(struct buf *out, const struct run *run, int64_t now_ms);

/* URL of a page, file or port of a run; target: path and query. The caller frees. */
char *cell_url(const struct run *run, enum proxy_kind kind, uint16_t port, const char *target,
	const struct proxy_here *here);
/* Origin of such a URL, as a policy names it. The caller frees. */
char *cell_origin(const struct run *run, enum proxy_kind kind, const struct proxy_here *here);
/* Links to the ports that its user gave. */
void cell_ports(struct buf *out, const struct run *run, const struct proxy_here *here);

/* The form of the URLs of a host's ports: "http://PORT.RUN.localhost:8470/". */
void cell_form(struct buf *out, const char *host, const struct proxy_here *here);

#endif
