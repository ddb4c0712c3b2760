/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log of an attempt in a cluster, kept in its directory here as it is seen, because nodes and
 * clusters remove it: ranks.tmp/ while more may come, ranks/ once there is no more. In it a
 * directory for each rank with its log and marks (attempt.h) and
 *
 *	gaps    lines "OFFSET SENTENCE": what is missing there; those of all ranks lie beside
 *	        their directories
 *	places  lines "RANK OFFSET LEFT-OUT TOKEN": where each goes on. They follow the bytes by a
 *	        second at most, and what is behind them comes again. LEFT-OUT: bytes over the
 *	        ceiling
 *
 * One writes at a time. Blocks on the disk only.
 */
#ifndef DLRUN_TARGETS_KUBE_KUBE_ARCHIVE_H
#define DLRUN_TARGETS_KUBE_KUBE_ARCHIVE_H

#include <stdint.h>

#include "base/util/err.h"
#include "base/util/vec.h"

#define KUBE_ARCHIVE_GAPS "gaps"
#define KUBE_ARCHIVE_MAX  (UINT64_C(1) << 30) /* bytes of all ranks of an attempt */
/* The logs of so many ranks are kept; those of further ones end with their pods. */
enum {
	KUBE_ARCHIVE_RANKS_MAX = 4096,
	KUBE_ARCHIVE_GAPS_MAX = 1 << 20,
	KUBE_ARCHIVE_TOKENS_MAX = KUBE_ARCHIVE_RANKS_MAX * 256,
};

struct kept_place {
	int rank;
	int64_t offset;
	uint64_t excluded;
	char *token; /* as of kube_runlog_token; NULL: from the start */
};
struct kept_places VEC_OF(struct kept_place);

struct kube_archive;
/* 1: it is whole already, or somebody else writes it. */
int kube_archive_open(
	const char *dir, uint64_t max_bytes, struct kube_archive **ret, struct err *err);
/* Writes the places a last time: what it watches still lives. NULL is accepted. */
void kube_archive_free(struct kube_archive *archive);
const struct kept_places *kube_archive_places(const struct kube_archive *archive);
/* 1: the limit was reached just now: this and what follows is not kept. */
int kube_archive_add(struct kube_archive *archive, int rank, const char *data, size_t len,
	int64_t time_ms, struct err *err);
/* rank -1: of all. */
int kube_archive_gap(struct kube_archive *archive, int rank, const char *text, struct err *err);
/* No more will come. */
int kube_archive_finish(struct kube_archive *archive, struct err *err);

#endif
