/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every port of every run as a URL, and pages that show what runs are, say and write: an HTTP
 * server for programs of this user on this machine (httpd.h) whose names say what is meant
 * (proxy_name.h). Requests to a port are carried to the newest attempt of the run
 * (forwarder.h), whatever target it is on; the names stay when an attempt follows another.
 */
#ifndef DLRUN_APP_PROXY_PROXY_H
#define DLRUN_APP_PROXY_PROXY_H

#include <stdbool.h>
#include <stdint.h>

#include "app/proxy/proxy_name.h"
#include "base/util/err.h"
#include "core/context/session.h"

enum {
	PROXY_PORT_DEFAULT = 8470,
	PROXY_RUNS_MAX = 64,           /* that are held open at once */
	PROXY_IDLE_MS = 5 * 60 * 1000, /* one that nobody uses is let go then */
	PROXY_LISTED = 1000,           /* on the first page, and all that go on */
};

struct proxy_options {
	uint16_t port; /* 0: any */
	bool is_exact; /* else the next one that is free */
	/* Called once the proxy listens. */
	void (*listening)(void *ctx, const struct proxy_here *here);
	/* Called with one sentence on what becomes of a connection to a run. */
	void (*notice)(void *ctx, const char *text);
	void *ctx;
	const volatile int *interrupted; /* ends it with E_CANCELED within some seconds */
};
/* Until it is interrupted. E_LISTEN_TAKEN, E_LISTEN. */
int run_proxy(struct session *session, const struct proxy_options *options, struct err *err);

#endif
