/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zlib with mem.c: out of memory ends the process there.
 */
#ifndef DLRUN_OCI_CODEC_CODEC_ZLIB_H
#define DLRUN_OCI_CODEC_CODEC_ZLIB_H

#include <zlib.h>

/* Before deflateInit or inflateInit of a zeroed stream. */
void codec_zlib_hooks(z_stream *z);

#endif
