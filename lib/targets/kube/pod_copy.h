/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies a directory of a container to a sink (fetch_sink.h): first a listing, then a tar of the
 * files that the sink wants as a whole, and the parts that it wants of others, by a script for sh
 * (files.sh). A connection that is cut is opened again; data received by then does not come again.
 */
#ifndef DLRUN_TARGETS_KUBE_POD_COPY_H
#define DLRUN_TARGETS_KUBE_POD_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/loop/loop.h"
#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/target/fetch_sink.h"
#include "kube/api/client.h"

extern const char pod_files_script[]; /* files.sh */

/* Before the listing. */
enum pod_copy_first {
	POD_COPY_LIST,     /* nothing */
	POD_COPY_COLLECT,  /* the program runs: what its tree has by now is collected */
	POD_COPY_ANNOUNCE, /* the same, and the pod is about to be removed (KUBE_ANNOUNCED) */
	POD_COPY_WAIT,     /* in KUBE_KEEPER: for the end of the program */
};

struct pod_copy_request {
	struct loop *loop;
	struct kube_client *client;
	const char *kube_namespace, *pod, *container;
	const char *dir;    /* absolute, in the container */
	const char *prefix; /* in front of its paths here: "" or "rank-0/" */
	bool may_change;    /* programs write there */
	enum pod_copy_first first;
	const char *temp_dir; /* here, for a file without a name */
	struct fetch_sink *sink;
	/* From the loop, once. E_KUBE_SHELL: sh, find, stat or tar are not there. */
	void (*done)(void *ctx, struct err *error);
	void *ctx;
};

struct pod_copy;
/* Copies what it keeps, but not what client and sink stand for. */
struct pod_copy *pod_copy_start(const struct pod_copy_request *request);
/* Give up; no done. NULL is accepted. */
void pod_copy_cancel(struct pod_copy *copy);

/*
 * Parts of files from elsewhere, one after the other, as files.sh sends them. An engine: bytes are
 * put in. Each part is one of
 *
 *	"part OFFSET LENGTH\n", LENGTH bytes, "size SIZE\n"    of the file, afterwards. What was
 *	                                                       not there any more is zeros
 *	"part OFFSET LENGTH\n", LENGTH bytes, "unread\n"       a read failed: some of the bytes
 *	                                                       are zeros for that
 *	"gone\n"                                               no file that can be read
 */

/* A negative return ends the reading with err. */
struct part_events {
	int (*begin)(void *ctx, uint64_t offset, uint64_t len, struct err *err);
	int (*data)(void *ctx, const void *data, size_t len, struct err *err);
	int (*end)(void *ctx, uint64_t size, struct err *err);
	int (*unread)(void *ctx, struct err *err); /* instead of end */
	int (*gone)(void *ctx, struct err *err);
	void *ctx;
};

struct part_stream;
struct part_stream *part_stream_new(const struct part_events *events);
void part_stream_free(struct part_stream *stream);
AUTO_POINTER(struct part_stream, part_stream_free)
/* E_DATA: something else. */
int part_stream_add(struct part_stream *stream, const char *data, size_t len, struct err *err);
/* Nothing more comes. E_DATA in the middle of a part. */
int part_stream_finish(const struct part_stream *stream, struct err *err);

/*
 * A command in a container of a pod whose output is taken as it comes, and the beginning of what it
 * says on stderr.
 */

struct pod_output_request {
	struct loop *loop;
	struct kube_client *client;
	const char *kube_namespace, *pod, *container;
	const struct strv *command;
	int stdin_fd; /* -1: none; stays the caller's, open until done */
	/* A negative return ends the command, and is its error with err. */
	int (*data)(void *ctx, const char *data, size_t len, struct err *err);
	/* From the loop, once. status: its exit code, unless there is an error (not set: none):
	 * that of data, or as those of podexec.h. said: of stderr. */
	void (*done)(void *ctx, int status, struct err *error, const char *said);
	void *ctx;
};

struct pod_output;
int pod_output_start(
	const struct pod_output_request *request, struct pod_output **ret, struct err *err);
/* Give up; no done. NULL is accepted. */
void pod_output_cancel(struct pod_output *output);

#endif
