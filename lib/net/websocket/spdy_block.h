/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Header blocks of SPDY/3: a count, then names and values with their lengths, all in one zlib
 * stream for each direction (section 2.6.10 of the draft; spdy.h).
 */
#ifndef DLRUN_NET_WEBSOCKET_SPDY_BLOCK_H
#define DLRUN_NET_WEBSOCKET_SPDY_BLOCK_H

#include <stddef.h>

#include "base/util/buf.h"
#include "base/util/err.h"
#include "net/websocket/spdy.h"

/* A packer or an unpacker is for one direction of a connection. */
struct spdy_packer;
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
