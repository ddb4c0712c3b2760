/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/codec/codec.h"

#include <stdlib.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "oci/codec/codec_zlib.h"

static const char *const names[] = {
	[CODEC_GZIP] = "gzip",
	[CODEC_ZSTD] = "zstd",
	[CODEC_NONE] = "none",
};

int codec_find(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (str_eq(name, names[i]))
			return (int)i;
	return -1;
}

const char *codec_name(enum codec codec)
{
	return names[codec];
}

static void *zlib_alloc(void *ctx, unsigned n, unsigned size)
{
	(void)ctx;
	return mem_grow(NULL, n, size);
}

static void zlib_free(void *ctx, void *p)
{
	(void)ctx;
	free(p);
}

void codec_zlib_hooks(z_stream *z)
{
	z->zalloc = zlib_alloc;
	z->zfree = zlib_free;
}
