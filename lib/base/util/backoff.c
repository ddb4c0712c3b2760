/* SPDX-License-Identifier: Apache-2.0 */
#include "base/util/backoff.h"

#include "base/util/random.h"

int64_t backoff_ms(unsigned failures, int64_t first_ms, int64_t max_ms)
{
	int64_t ms = first_ms;

	if (failures == 0)
		return 0;
	while (--failures > 0 && ms < max_ms)
		ms *= 2;
	return ms < max_ms ? ms : max_ms;
}

int64_t backoff_jitter_ms(unsigned failures, int64_t first_ms, int64_t max_ms)
{
	int64_t half_ms = backoff_ms(failures, first_ms, max_ms) / 2;

	return half_ms + random_below((uint32_t)half_ms + 1);
}
