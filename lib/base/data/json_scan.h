/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The strict scanner for RFC 8259 in front of cJSON: it decides what json_parse accepts, cJSON only
 * builds the tree.
 */
#ifndef DLRUN_BASE_DATA_JSON_SCAN_H
#define DLRUN_BASE_DATA_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>

#include "base/util/vec.h"

/* A number that a double would change: its text, and its place among all numbers of the text. */
struct json_exact {
	size_t ordinal;
	size_t at, len;
};

struct json_scan {
	/* in */
	const char *text;
	size_t len;
	/* out */
	struct VEC_OF(struct json_exact) exact;
	size_t pos;        /* on failure: where */
	const char *error; /* on failure: what is wrong there, a constant */
	bool over;         /* on failure: a limit was exceeded */
	/* own use */
	size_t n_values, n_numbers;
};

/* Whether text is one JSON value and nothing else, within the limits of json.h. */
bool json_scan(struct json_scan *scan);
void json_scan_done(struct json_scan *scan);

#endif
