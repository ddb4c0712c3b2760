/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of the program that the build makes: files (embed.py), which are the sources of the manual
 * pages and the completion scripts, and the version.
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

/*
 * The version of this build: "0.2.0" of a release, what git describe says of any other commit
 * ("0.2.0-5-g1a2b3c4-dirty"); packaging/version decides. Defined in a file of its own, because it
 * changes with each commit.
 */
extern const char dlrun_version[];

#endif
