/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notices for people: each is a line of JSON on the standard input of the program of `notify:`,
 * which runs once for each, one at a time. Nothing here blocks but for the start of the program.
 *
 *   {"time": "2026-11-27T05:00:00Z", "cluster": "lab", "kind": "grow", "group": "gpu-a",
 *    "owner": "ml/train", "text": "a sentence", "lost": 0}
 *
 * kind: of an event of a turn (turn.h), or another word of the caller's; group and owner (what the
 * notice is about: a run, a gang) are left out where there is none; lost: notices that did not get
 * to the program before this one. Equal notices are told once in NOTICE_QUIET_MS.
 */
#ifndef DLRUN_APP_AUTOSCALE_NOTICE_H
#define DLRUN_APP_AUTOSCALE_NOTICE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/loop/loop.h"
#include "base/util/auto.h"
#include "base/util/vec.h"

enum {
	NOTICE_QUIET_MS = 30 * 60 * 1000,
	NOTICE_PROGRAM_MS = 30 * 1000,
	NOTICE_QUEUE_MAX = 100,
	NOTICE_KNOWN_MAX = 1000, /* of equal ones; the oldest is forgotten */
	NOTICE_LINE_MAX = 4000,  /* bytes, so that a pipe takes it at once; longer texts are cut */
};

struct notice {
	const char *kind, *text;
	const char *group, *owner; /* or NULL */
	/* Of a state that goes on, as a reason why pods wait: it is the same with other numbers in
	 * text. */
	bool is_lasting;
};

struct notices_options {
	struct loop *loop;
	const struct strv *argv; /* copied */
	const char *cluster;     /* copied */
	int64_t program_ms;      /* the program is killed after that; 0: NOTICE_PROGRAM_MS */
	/* The program failed: a sentence, once in NOTICE_QUIET_MS; or NULL. */
	void (*problem)(void *ctx, const char *text);
	void *ctx;
};

struct notices;
struct notices *notices_new(const struct notices_options *options);
/* Notices that wait are lost; a program that runs goes on. NULL is accepted. */
void notices_free(struct notices *notices);
AUTO_POINTER(struct notices, notices_free)
#define AUTO_NOTICES AUTO(notices_free_auto)

void notices_add(struct notices *notices, const struct notice *notice);
/* How many the program did not get, since notices_new. */
int64_t notices_lost(const struct notices *notices);

#endif
