/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading layers: applied to a directory, or listed. What a layer says is not trusted: nothing is
 * written outside the directory, no link is followed, absolute names, "..", devices, hard links to
 * elsewhere and set-id bits are refused or dropped, sizes are bounded.
 */
#ifndef DLRUN_OCI_LAYER_UNPACK_H
#define DLRUN_OCI_LAYER_UNPACK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/data/entry.h"
#include "base/util/err.h"

struct unpack_spec {
	int fd;             /* the compressed blob, at its start */
	const char *digest; /* "sha256:…" of the blob: checked while reading; NULL: not checked */
	const char *diff_id; /* of the tar: checked; NULL: not checked */
	const char *workdir; /* only entries below it count; they land relative to it */
	uint64_t max_bytes;  /* of the tar */
	bool names_only;     /* unpack_list: contents are not hashed, sha256 of files is zero */
};

/* Apply the layer (whiteouts too; layer.md "Applying changesets") to the directory dir_fd, in which
 * nothing else writes. Files become 0666/0777 & ~umask, as those that git checks out, with
 * the layer's times. Contents of this process's making need no fsync. Small files are made several
 * at a time. After a failure the directory holds a part of the layer and is worthless.
 * E_IMAGE: damaged, or something that is not taken; E_DATA_LIMIT: over max_bytes, 2,000,000 members
 * or 256 MiB of names. All of these block. */
int unpack_apply(const struct unpack_spec *spec, int dir_fd, struct err *err);

/* Apply the layer to a sorted list of entries (contents are hashed, nothing is written). It takes
 * and refuses what unpack_apply does. After a failure the list is as it was. */
int unpack_list(const struct unpack_spec *spec, struct entry_list *list, struct err *err);

/* The content of one file of the layer (of a link: its target) to out_fd; *ret_found = 0 if the
 * layer says nothing of the path, 1 if written, -1 if the layer removes it or makes a directory of
 * it. What was written before a failure is worthless. E_IMAGE also for a hard link, and for a path
 * that the layer has twice if out_fd cannot go back. */
int unpack_file(const struct unpack_spec *spec, const char *path, int out_fd, int *ret_found,
	struct err *err);

#endif
