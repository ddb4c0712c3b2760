/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dictionary of SPDY/3's zlib streams for headers, which both sides have before the first one
 * (draft-mbelshe-httpbis-spdy-00, section 2.6.10.1): 1,423 bytes.
 */
#ifndef DLRUN_NET_WEBSOCKET_SPDY_DICTIONARY_H
#define DLRUN_NET_WEBSOCKET_SPDY_DICTIONARY_H

#include <stddef.h>

const void *spdy_dictionary(size_t *ret_len);

#endif
