#include "oci/codec.h"

#include "base/mem.h"
#include "base/str.h"

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
