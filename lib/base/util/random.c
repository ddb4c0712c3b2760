/* SPDX-License-Identifier: Apache-2.0 */
#include <sys/random.h>
#include <unistd.h>

#include "base/util/err.h"
#include "base/util/random.h"

/* Limit of one getentropy call (POSIX.1-2024). */
enum { ONE_CALL = 256 };

void random_bytes(void *out, size_t len)
{
	char *at = out;

	while (len) {
		size_t n = len < ONE_CALL ? len : ONE_CALL;
		if (getentropy(at, n))
			err_bug(__FILE__, __LINE__, "the system gives no random numbers");
		at += n;
		len -= n;
	}
}

uint32_t random_below(uint32_t n)
{
	uint32_t x;

	BUG_ON(n == 0);
	/* The first 2^32 mod n numbers would come up once more often than the others. */
	uint32_t skip = -n % n;
	do
		random_bytes(&x, sizeof(x));
	while (x < skip);
	return x % n;
}
