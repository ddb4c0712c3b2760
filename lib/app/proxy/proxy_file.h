/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a file that a program has written is served to a browser. An engine. Such a file is hostile:
 * its kind is told by its name only, from a fixed list that has nothing with scripts (SVG and HTML
 * are text); everything else is for saving.
 */
#ifndef DLRUN_APP_PROXY_PROXY_FILE_H
#define DLRUN_APP_PROXY_PROXY_FILE_H

#include <stdbool.h>
#include <stdint.h>

enum proxy_show { PROXY_SAVED, PROXY_TEXT, PROXY_IMAGE, PROXY_VIDEO, PROXY_AUDIO };
struct proxy_type {
	enum proxy_show show;
	const char *mime; /* a whole Content-Type */
};
/* By what follows the last dot, upper or lower case; never NULL. */
const struct proxy_type *proxy_type_of(const char *path);

/* The path below the outputs that the target of a request names ("/a%20b?c" is "a b"); the caller
 * frees. NULL: it is none: empty parts, "." and "..", NUL, a wrong escape. */
char *proxy_path_decode(const char *target);

struct proxy_range {
	uint64_t first, n; /* bytes of the file */
};
/* value: of Range, or NULL. Returns the status: 200 (all of it; also for what is not understood,
 * and several ranges), 206, 416 (RFC 9110, 14.1.2 and 14.2). */
int proxy_range_parse(const char *value, uint64_t size, struct proxy_range *ret);

#endif
