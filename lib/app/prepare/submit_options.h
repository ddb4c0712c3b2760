/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options of a submit, and the events that it reports while it is under way.
 */
#ifndef DLRUN_APP_PREPARE_SUBMIT_OPTIONS_H
#define DLRUN_APP_PREPARE_SUBMIT_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/util/vec.h"
#include "core/record/run.h"
#include "net/http/http.h"
#include "oci/image/image.h"
#include "oci/registry/uploads.h"
#include "snap/tree/snapshot.h"

struct study;

/* Options of the command line, in addition to the configuration (options that are keys are set by
 * config_override before). */
struct submit_options {
	const struct strv *command; /* words behind --; empty: from the configuration */
	const struct strv *env;     /* --env: "K=V" or "K" */
	const struct strv *secrets; /* --secret: "K" or "K=@FILE" */
	const struct strv *include, *allow, *tags; /* tags: "K" or "K=V" */
	const struct strv *ports;                  /* --port */
	const struct strv *waits;                  /* --wait-for: "PLACE=TIME"; or NULL */
	const struct strv *after;                  /* --after: "RUN", "RUN:ok" or "RUN:any" */
	const char *name, *group, *note;
	struct study *study; /* that the run is the first member of, not claimed yet; or NULL */
	const char *from;    /* --from RUN: that exact code and command again */
	int64_t allow_bytes; /* --allow-size; 0: not given */
	bool full;
	bool no_offline; /* fail where nobody answers, instead of keeping the run here */
	bool terminal;   /* the command is for a terminal: terminal.h */
	bool followed;   /* its log is read as soon as it has begun */
};

/* The events of a submit or a push, for a user interface; on the caller's thread, but for warnings
 * of a snapshot that is pushed. Any may be NULL. */
struct submit_events {
	void (*snapshot)(void *ctx, const struct snapshot *snapshot, int64_t ms);
	void (*exchange)(void *ctx, const struct http_event *event);
	void (*note)(void *ctx, const char *text); /* what is waited for, one sentence */
	/* Ten times a second while something is uploaded. */
	void (*progress)(void *ctx, const struct uploads_progress *progress);
	void (*image)(void *ctx, const struct image *image, int64_t ms);
	/* The choice among several places: a line. */
	void (*places)(void *ctx, const char *text);
	void (*target)(void *ctx, const struct run *run);
	/* Report something done for the program that was not requested: one sentence. */
	void (*notice)(void *ctx, const char *text);
	void (*warning)(void *ctx, const char *text);
	void *ctx;
};

#endif
