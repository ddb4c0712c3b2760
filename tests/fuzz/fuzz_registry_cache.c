/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>
#include <stdint.h>

#include "oci/registry/registry_cache.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Whatever parses keeps to its ceilings. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_REGISTRY_CACHE struct registry_cache cache = {0};

	if (!registry_cache_parse((const char *)data, size, &cache))
		return 0;
	BUG_ON(cache.blobs.n > REGISTRY_CACHE_ITEMS || cache.tags.n > REGISTRY_CACHE_ITEMS);
	vec_foreach (const struct registry_cache_entry, entry, &cache.blobs)
		BUG_ON(!registry_cache_entry_find(&cache.blobs, entry->name));
	return 0;
}
