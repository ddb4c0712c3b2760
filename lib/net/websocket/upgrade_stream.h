/* SPDX-License-Identifier: Apache-2.0 */
/* The stream of a connection that HTTP has upgraded; only upgrade.c includes this. */
#ifndef DLRUN_NET_WEBSOCKET_UPGRADE_STREAM_H
#define DLRUN_NET_WEBSOCKET_UPGRADE_STREAM_H

#include "net/http/http_impl.h"
#include "net/stream/stream.h"

/* Takes over http with its one call, which is connected. early: what came behind the head. */
struct stream *upgrade_stream_new(
	struct http *http, struct http_call *call, int fd, const char *early, size_t n_early);

#endif
