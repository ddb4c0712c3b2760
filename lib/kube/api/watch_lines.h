/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The body of a watch (Kubernetes API concepts, "Watch"): one JSON object {"type", "object"} on
 * each line. An engine.
 */
#ifndef DLRUN_KUBE_API_WATCH_LINES_H
#define DLRUN_KUBE_API_WATCH_LINES_H

#include <stddef.h>

#include "base/data/json.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/err.h"

enum { KUBE_LINE_MAX = 4 << 20 };

struct kube_lines {
	struct buf part; /* of a line that is not complete yet */
};
void kube_lines_init(struct kube_lines *lines);
void kube_lines_done(struct kube_lines *lines);
#define AUTO_KUBE_LINES AUTO(kube_lines_done)

/* 0 to go on; anything else is returned by kube_lines_add. */
typedef int kube_line_fn(void *ctx, const char *line, size_t len, struct err *err);
/* fn for each complete line that is not empty, without its end. E_DATA_LIMIT for one of more than
 * KUBE_LINE_MAX bytes. lines may be gone when fn returns another value than 0. */
int kube_lines_add(struct kube_lines *lines, const char *data, size_t len, kube_line_fn *fn,
	void *ctx, struct err *err);

enum kube_event_kind { KUBE_EVENT_PUT, KUBE_EVENT_GONE, KUBE_EVENT_BOOKMARK, KUBE_EVENT_ERROR };
struct kube_event {
	enum kube_event_kind kind;
	struct json *root; /* owned */
	const struct json *object;
	const char *name, *uid, *version; /* of its metadata; not of an error. uid may be NULL */
};
/* E_KUBE_ANSWER for what is none. */
int kube_event_parse(const char *line, size_t len, struct kube_event *ret, struct err *err);
void kube_event_done(struct kube_event *event);
#define AUTO_KUBE_EVENT AUTO(kube_event_done)

#endif
