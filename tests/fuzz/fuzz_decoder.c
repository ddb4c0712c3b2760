/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util/err.h"
#include "oci/codec/codec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX = 1 << 20 };

static int input_fd(const uint8_t *data, size_t size)
{
	static int fd = -1;

	if (fd < 0) {
		char path[] = "/tmp/dlrun-fuzz-XXXXXX";
		fd = mkstemp(path);
		unlink(path);
	}
	BUG_ON(fd < 0 || ftruncate(fd, 0) != 0);
	BUG_ON(pwrite(fd, data, size, 0) != (ssize_t)size);
	BUG_ON(lseek(fd, 0, SEEK_SET) != 0);
	return fd;
}

static void count(void *ctx, const void *data, size_t len)
{
	*(size_t *)ctx += len;
}

/* What comes out, step bytes at a time; the id of the failure or E_NONE. */
static enum err_id decode(int fd, size_t size, size_t step, uint8_t *out, size_t *ret_len)
{
	struct err err = {0};
	struct decoder *decoder = decoder_new(fd, MAX);
	size_t n = 1, seen = 0;
	int r = 0;

	*ret_len = 0;
	decoder_set_tap(decoder, count, &seen);
	while (r == 0 && n) {
		size_t space = MAX + 1 - *ret_len;
		r = decoder_read(decoder, out + *ret_len, step < space ? step : space, &n, &err);
		if (r == 0)
			*ret_len += n;
		BUG_ON(*ret_len > MAX);
	}
	BUG_ON((r == 0) != (err.id == E_NONE));
	BUG_ON(r == 0 ? seen != size : seen > size);
	enum err_id id = err.id;
	err_done(&err);
	decoder_free(decoder);
	return id;
}

/* Nothing that comes in makes more come out than is allowed, and it does not matter in which pieces
 * it is asked for. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static uint8_t whole[MAX + 1], parts[MAX + 1];
	size_t whole_len, parts_len;
	int fd = input_fd(data, size);
	enum err_id id = decode(fd, size, sizeof(whole), whole, &whole_len);

	BUG_ON(lseek(fd, 0, SEEK_SET) != 0);
	BUG_ON(decode(fd, size, 4099, parts, &parts_len) != id);
	BUG_ON(id != E_NONE && id != E_IMAGE && id != E_DATA_LIMIT);
	if (id == E_NONE)
		BUG_ON(whole_len != parts_len || memcmp(whole, parts, whole_len) != 0);
	return 0;
}
