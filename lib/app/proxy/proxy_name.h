/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names below localhost for what a run has (`dlrun proxy`), as they stand in a URL or a CONNECT. An
 * engine:
 *
 *	6006.RUN.localhost      port 6006 of the program (of its rank 0)
 *	6006.r1.RUN.localhost   the same of rank 1
 *	6006.actors.RUN.localhost, 6006.actors-3.RUN.localhost   of a role: its rank 0, its rank 3
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
#include "core/record/roles.h"
#include "core/record/run.h"

enum { PROXY_RANK_MAX = 100 * 1000, PROXY_ROLE_SIZE = ROLES_NAME_MAX + 8 };

enum proxy_kind { PROXY_INDEX, PROXY_RUN, PROXY_PORT, PROXY_FILES };
struct proxy_name {
	enum proxy_kind kind;
	char run[RUN_ID_SIZE]; /* empty for PROXY_INDEX */
	char role
		[PROXY_ROLE_SIZE]; /* "actors", "actors-3", which only the run's record tells apart;
				     * empty: none */
	int rank;                  /* of the run, where there is no role */
	uint16_t port;             /* of PROXY_PORT; else 0 */
};

/* host: without port and brackets, in lower case. E_USAGE with the form as hint. */
int proxy_name_parse(const char *host, struct proxy_name *ret, struct err *err);
/* The one way to write it: rank 0 is left out, PROXY_INDEX is "localhost". */
void proxy_name_add(const struct proxy_name *name, struct buf *out);

/* The proxy itself: its port, and the token that URLs need (httpd_token), or NULL. */
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

/*
 * How a file that a program has written is served to a browser. Such a file is hostile: its kind is
 * told by its name only, from a fixed list that has nothing with scripts (SVG and HTML are text);
 * everything else is for saving.
 */

enum proxy_show { PROXY_SAVED, PROXY_TEXT, PROXY_IMAGE, PROXY_VIDEO, PROXY_AUDIO };
struct proxy_type {
	enum proxy_show show;
	const char *mime; /* a whole Content-Type */
};
/* By what follows the last dot, upper or lower case; never NULL. */
const struct proxy_type *proxy_type_of(const char *path);

/* The path below the outputs that the target of a request names ("/a%20b?c" is "a b"); the caller
 * frees. NULL: it is none: not proper (fetch_path_is_proper), NUL, a wrong escape. */
char *proxy_path_decode(const char *target);

struct proxy_range {
	uint64_t first, n; /* bytes of the file */
};
/* value: of Range, or NULL. Returns the status: 200 (all of it; also for what is not understood,
 * and several ranges), 206, 416 (RFC 9110, 14.1.2 and 14.2). */
int proxy_range_parse(const char *value, uint64_t size, struct proxy_range *ret);

#endif
