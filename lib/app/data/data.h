/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Versions of data at a target: sent from a directory here, listed, removed. A version is whole or
 * is not there; what a push that was cut has sent does not come again, and of what an earlier
 * version has only what differs is sent. All block.
 */
#ifndef DLRUN_APP_DATA_DATA_H
#define DLRUN_APP_DATA_DATA_H

#include <stdbool.h>
#include <stdint.h>

#include "app/data/version.h"
#include "base/data/json.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/context/session.h"

struct data_options {
	const char *target; /* NULL: that of the configuration */
	const char *path;   /* of data:; NULL: all of them (data_list) */
	const char *from;   /* the directory here; NULL: path in the working tree */
	void (*note)(void *ctx, const char *text);
	void (*progress)(void *ctx, uint64_t done, uint64_t total);
	void *ctx;
	const volatile int *interrupted;
};

struct data_pushed {
	char *target, *path;
	char *sub_path; /* that data: of the target needs, so that runs see it; or NULL */
	char id[VERSION_ID_SIZE];
	bool was_there;                   /* on all hosts: nothing was sent */
	size_t n_hosts;                   /* that it was sent to */
	size_t n_files, n_sent, n_passed; /* passed: devices and the like */
	uint64_t bytes, bytes_sent;
	/* Versions there with paths that are not what was pushed, each with their number; they were
	 * not built upon. */
	struct strv changed;
};
void data_pushed_done(struct data_pushed *pushed);
int data_push(struct session *session, const struct data_options *options, struct data_pushed *ret,
	struct err *err);
struct json *data_pushed_json(const struct data_pushed *pushed);

struct data_version {
	char *path, *host; /* host: of several; or NULL */
	char id[VERSION_ID_SIZE];
	bool is_current;
	struct version_summary summary;
};
struct data_versions {
	char *target;
	bool has_rest; /* data_remove: files of another user remain */
	struct VEC_OF(struct data_version) list;
};
void data_versions_done(struct data_versions *versions);
/* Of each path and host the newest first. */
int data_list(struct session *session, const struct data_options *options,
	struct data_versions *ret, struct err *err);
struct json *data_versions_json(const struct data_versions *versions);

/* id: "d-" and the beginning of a version's name; NULL: all versions of the path, and what is left
 * of transfers. *ret: those that were removed; what is pushed meanwhile stays. */
int data_remove(struct session *session, const struct data_options *options, const char *id,
	struct data_versions *ret, struct err *err);

#endif
