/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that the build puts into the program (embed.py): the sources of the manual pages and
 * the completion scripts.
 */
#ifndef DLRUN_CLI_TERM_EMBED_H
#define DLRUN_CLI_TERM_EMBED_H

#include <stddef.h>

struct embed {
	const char *name; /* "dlrun-submit.1.scd", "dlrun.bash" */
	const char *text;
};
extern const struct embed embeds[];
extern const size_t embeds_n;

/* The text of a file, or NULL. */
const char *embed_text(const char *name);

#endif
