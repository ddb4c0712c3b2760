/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The response to a request for an upgrade (RFC 9112): an engine, bytes in. Stricter than browsers
 * are, because what stands behind the head is taken for another protocol's: CR LF ends each line,
 * no line goes on in the next, no blank stands before a colon, no control in a value.
 */
#ifndef DLRUN_NET_WEBSOCKET_UPGRADE_REPLY_H
#define DLRUN_NET_WEBSOCKET_UPGRADE_REPLY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/buf.h"
#include "base/util/err.h"
#include "base/util/vec.h"

/* Where in a response the next byte stands. */
enum upgrade_reply_state {
	REPLY_STATUS,
	REPLY_HEADER,
	REPLY_LENGTH,     /* body: `left` bytes */
	REPLY_CLOSE,      /* body: up to the end of the connection */
	REPLY_CHUNK_SIZE, /* a line */
	REPLY_CHUNK,      /* `left` bytes */
	REPLY_CHUNK_END,  /* an empty line */
	REPLY_OVER,
};

struct upgrade_reply {
	const char *host;    /* for messages */
	int status;          /* of the present head; responses 100 to 199 but 101 are passed over */
	struct strv headers; /* "name: value", names in lower case, in order */
	struct buf body;     /* up to HTTP_ERROR_BODY_MAX, what is behind that is not waited for */
	enum upgrade_reply_state state;
	struct buf line;   /* as far as it has come */
	size_t head_bytes; /* of all heads */
	uint64_t left;
	bool has_length, is_chunked;
};

/* host lives as long as it. */
void upgrade_reply_init(struct upgrade_reply *reply, const char *host);
void upgrade_reply_done(struct upgrade_reply *reply);

/* 1: the response is whole (a 101 with its head), *ret_used bytes of data belong to it; 0: there is
 * more to come, all were used. E_HTTP_LIMIT: more than HTTP_HEADERS_MAX of heads. E_HTTP_PROTOCOL:
 * none of HTTP/1; lengths that contradict each other; encodings but chunked. */
int upgrade_reply_feed(struct upgrade_reply *reply, const char *data, size_t len, size_t *ret_used,
	struct err *err);
/* Tell that the connection has ended; returns whether that makes the response whole. */
bool upgrade_reply_ended(struct upgrade_reply *reply);

#endif
