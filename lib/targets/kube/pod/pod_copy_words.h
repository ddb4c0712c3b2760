/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The commands of pod_copy.c.
 */
#ifndef DLRUN_TARGETS_KUBE_POD_POD_COPY_WORDS_H
#define DLRUN_TARGETS_KUBE_POD_POD_COPY_WORDS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/util/vec.h"

/* Exit codes. */
enum { POD_COPY_NO_DIR = 44, POD_COPY_NO_TOOLS = 45 };

/* A listing (core/target/listing.h) of dir, or (only, like, as of fetch_sink; or NULL) of some of
 * its files; then a path may begin with "./". with_shell: by sh, which takes find or Python; else
 * Python itself. */
enum pod_copy_first {
	POD_COPY_LIST,     /* only that */
	POD_COPY_COLLECT,  /* the program runs: what its tree has by now is collected first */
	POD_COPY_ANNOUNCE, /* the same, and the pod is about to be removed (KUBE_ANNOUNCED) */
	POD_COPY_WAIT,     /* in KUBE_KEEPER: for the end of the program */
};
void pod_copy_list_words(const char *dir, const char *only, const struct strv *like,
	enum pod_copy_first first, bool with_shell, struct strv *ret);
/* A tar of the files of dir whose paths ("./a", each with a NUL behind it) are the first n_bytes of
 * stdin. one_by_one: each an archive of its own, so that none is a hard link to another. */
void pod_copy_tar_words(
	const char *dir, size_t n_bytes, bool one_by_one, bool with_shell, struct strv *ret);

/* Parts of files of dir (part_stream.h) that the first n_bytes of stdin name: "OFFSET LENGTH
 * ./PATH" and a NUL for each. */
void pod_copy_part_words(const char *dir, size_t n_bytes, bool with_shell, struct strv *ret);

#endif
