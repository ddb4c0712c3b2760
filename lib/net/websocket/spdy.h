/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SPDY/3.1 (draft-mbelshe-httpbis-spdy-00 and its 3.1), the client's side: an engine, bytes in and
 * bytes out. It frames streams that the client opens and knows nothing of their meaning; whoever
 * uses it keeps what belongs to a stream by its id.
 *
 * There is no flow control here: WINDOW_UPDATE and SETTINGS are read past and none is sent, as the
 * container runtimes that speak SPDY/3.1 do. Back-pressure is the transport's.
 *
 * Hostile servers end it (E_HTTP_PROTOCOL): another version, streams opened by the server, ids that
 * were never opened, control frames over 64 KiB, header blocks that are over 64 KiB or 64 fields
 * unpacked or do not unpack, fields that do not fit. Pings are answered as long as less than 64 KiB
 * wait to be sent, after that no input is wanted.
 */
#ifndef DLRUN_NET_WEBSOCKET_SPDY_H
#define DLRUN_NET_WEBSOCKET_SPDY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/buf.h"
#include "base/util/err.h"

enum {
	SPDY_HEAD_SIZE = 8,
	SPDY_DATA_MAX = (1 << 24) - 1, /* of one data frame */
	SPDY_CONTROL_MAX = 64 << 10,   /* payload of a control frame, and a block unpacked */
	SPDY_FIELDS_MAX = 64,
};

/* name: lower case. */
struct spdy_field {
	const char *name, *value;
};

/* Statuses of a reset. */
enum { SPDY_PROTOCOL_ERROR = 1, SPDY_REFUSED_STREAM = 3, SPDY_CANCEL = 5 };

/* id: of a stream that was opened here; also of one that has ended. A negative return ends it. NULL
 * members are not called. */
struct spdy_events {
	/* SYN_REPLY, or HEADERS that came later. The fields are the engine's. */
	int (*reply)(void *ctx, uint32_t id, const struct spdy_field *fields, size_t n, bool is_end,
		struct err *err);
	/* A piece of a data frame, as it arrives, not copied; is_end: the stream's last (FIN); len
	 * may be 0 then. */
	int (*data)(
		void *ctx, uint32_t id, const void *data, size_t len, bool is_end, struct err *err);
	int (*reset)(void *ctx, uint32_t id, uint32_t status, struct err *err);
	/* No stream is taken any more; those up to last_id go on. */
	int (*goaway)(void *ctx, uint32_t last_id, struct err *err);
	void (*pong)(void *ctx);
	void *ctx;
};

struct spdy;
struct spdy *spdy_new(const struct spdy_events *events);
void spdy_free(struct spdy *spdy);

/* Bytes that have arrived, in pieces of any size; all are taken. */
int spdy_receive(struct spdy *spdy, const void *data, size_t len, struct err *err);
bool spdy_wants_input(const struct spdy *spdy);

/* Control frames that are to be sent, before any data that is made later. The caller consumes from
 * its front (buf_consume). */
struct buf *spdy_output(struct spdy *spdy);
/* The id of a new stream; its SYN_STREAM is in the output. is_end: nothing will be sent on it.
 * n up to SPDY_FIELDS_MAX. 0: there are no ids left. */
uint32_t spdy_open(struct spdy *spdy, const struct spdy_field *fields, size_t n, bool is_end);
void spdy_reset(struct spdy *spdy, uint32_t id, uint32_t status);
void spdy_ping(struct spdy *spdy);

/* The head in front of len bytes of data (up to SPDY_DATA_MAX), which the caller sends itself and
 * which are copied nowhere. */
void spdy_data_head(unsigned char out[static SPDY_HEAD_SIZE], uint32_t id, size_t len, bool is_end);

/*
 * Header blocks of SPDY/3: a count, then names and values with their lengths, all in one zlib
 * stream for each direction (section 2.6.10 of the draft).
 */

struct spdy_packer;
/* A packer or an unpacker is for one direction of a connection. */
struct spdy_packer *spdy_packer_new(void);
void spdy_packer_free(struct spdy_packer *packer);
/* Append the block of n fields to out. */
void spdy_pack(
	struct spdy_packer *packer, const struct spdy_field *fields, size_t n, struct buf *out);

struct spdy_unpacker;
struct spdy_unpacker *spdy_unpacker_new(void);
void spdy_unpacker_free(struct spdy_unpacker *unpacker);
/* The fields of a block, valid until the next call; a NUL in a value separates several and ends
 * what is seen of it here. E_HTTP_PROTOCOL, after which the direction cannot be used. */
int spdy_unpack(struct spdy_unpacker *unpacker, const void *block, size_t len,
	const struct spdy_field **ret, size_t *ret_n, struct err *err);

/* The dictionary of SPDY/3's zlib streams for headers, which both sides have before the first one
 * (draft-mbelshe-httpbis-spdy-00, section 2.6.10.1): 1,423 bytes. */
const void *spdy_dictionary(size_t *ret_len);

#endif
