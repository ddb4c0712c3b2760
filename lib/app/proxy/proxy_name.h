/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names below localhost for what a run has (`dlrun proxy`), as they stand in a URL or a CONNECT. An
 * engine:
 *
 *	6006.RUN.localhost      port 6006 of the program (of its rank 0)
 *	6006.r1.RUN.localhost   the same of rank 1
 *	RUN.localhost           the run; r1.RUN.localhost: its rank 1, whose port CONNECT names
 *	files.RUN.localhost     what it has written
 *	localhost, 127.0.0.1, ::1   all runs
 *
 * A name of its own for each run keeps cookies and pages of one from another; files have one, too,
 * because what a program writes may be a page. RUN is an id or its beginning. Port and rank are
 * decimal without leading zeros, everything is lower case (RFC 1123, 2.1: labels of at most 63).
 */
#ifndef DLRUN_APP_PROXY_PROXY_NAME_H
#define DLRUN_APP_PROXY_PROXY_NAME_H

#include <stdint.h>

#include "base/util/buf.h"
#include "base/util/err.h"
#include "core/record/run.h"

enum { PROXY_RANK_MAX = 100 * 1000 };

enum proxy_kind { PROXY_INDEX, PROXY_RUN, PROXY_PORT, PROXY_FILES };
struct proxy_name {
	enum proxy_kind kind;
	char run[RUN_ID_SIZE]; /* empty for PROXY_INDEX */
	int rank;
	uint16_t port; /* of PROXY_PORT; else 0 */
};

/* host: without port and brackets, in lower case. E_USAGE with the form as hint. */
int proxy_name_parse(const char *host, struct proxy_name *ret, struct err *err);
/* The one way to write it: rank 0 is left out, PROXY_INDEX is "localhost". */
void proxy_name_add(const struct proxy_name *name, struct buf *out);

/* The proxy itself: its port, and the token that URLs need (front_token), or NULL. */
struct proxy_here {
	uint16_t port;
	const char *token;
};
/* "http://6006.a-22222.localhost:8470". */
void proxy_origin_add(
	const struct proxy_name *name, const struct proxy_here *here, struct buf *out);
/* The URL of a path (and query) from "/" on, with the token of that name alone. */
void proxy_url_add(const struct proxy_name *name, const struct proxy_here *here, const char *target,
	struct buf *out);
/* Query that a URL of any name needs behind its "/": "?dlrun_token=…", or nothing. */
void proxy_query_add(const struct proxy_here *here, struct buf *out);

#endif
