/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>
#include <stdint.h>

#include "oci/registry/registry_memory.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Whatever parses keeps to its ceilings. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_REGISTRY_MEMORY struct registry_memory memory = {0};

	if (!registry_memory_parse((const char *)data, size, &memory))
		return 0;
	BUG_ON(memory.blobs.n > REGISTRY_MEMORY_ITEMS || memory.tags.n > REGISTRY_MEMORY_ITEMS);
	vec_foreach (const struct registry_hint, hint, &memory.blobs)
		BUG_ON(!registry_hint_find(&memory.blobs, hint->name));
	return 0;
}
