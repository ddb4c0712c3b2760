/* SPDX-License-Identifier: Apache-2.0 */
/* Base64 and hex: what is encoded decodes to itself, and what decodes has only that one form. */
#include <string.h>

#include "base/util/auto.h"
#include "base/util/enc.h"
#include "base/util/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool is_lower(const char *s)
{
	return strspn(s, "0123456789abcdef") == strlen(s);
}

static void check_base64(const uint8_t *data, size_t size)
{
	AUTO_BUF struct buf there;
	AUTO_BUF struct buf back;

	buf_init(&there, size * 2 + 4);
	buf_init(&back, size * 2 + 4);
	base64_encode(data, size, &there);
	BUG_ON(!base64_decode(there.data, there.len, &back));
	BUG_ON(there.full || back.len != size || (size && memcmp(back.data, data, size) != 0));
	buf_reset(&there);
	buf_reset(&back);
	if (base64_decode((const char *)data, size, &there)) {
		base64_encode(there.data, there.len, &back);
		BUG_ON(back.len != size || (size && memcmp(back.data, data, size) != 0));
	} else {
		BUG_ON(there.len != 0);
	}
}

static void check_hex(const uint8_t *data, size_t size)
{
	AUTO_FREE char *hex = mem_alloc(size * 2 + 1, 1);
	AUTO_FREE uint8_t *back = mem_alloc(size, 1);

	hex_encode(data, size, hex);
	BUG_ON(strlen(hex) != 2 * size || !is_lower(hex) || !hex_decode(hex, size, back));
	BUG_ON(size && memcmp(back, data, size) != 0);
	if (!hex_decode((const char *)data, size / 2, back))
		return;
	AUTO_FREE char *same = mem_strndup((const char *)data, size / 2 * 2);
	hex_encode(back, size / 2, hex);
	BUG_ON(is_lower(same) && strcmp(hex, same) != 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	check_base64(data, size);
	check_hex(data, size);
	return 0;
}
