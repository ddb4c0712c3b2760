/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/mem.h"
#include "snap/git/gitindex.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct gitindex *index)
{
	for (size_t i = 0; i < index->tracked.n; i++) {
		const char *path = index->tracked.v[i].path;
		BUG_ON(!gitindex_path_is_valid(path));
		BUG_ON(i > 0 && strcmp(index->tracked.v[i - 1].path, path) >= 0);
	}
}

static void parse(const uint8_t *data, size_t size, size_t oid_size)
{
	struct gitindex index = {0};

	if (gitindex_parse(data, size, oid_size, &index, NULL) == 0)
		check(&index);
	gitindex_done(&index);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	parse(data, size, GITINDEX_RAW_SHA1_SIZE);
	parse(data, size, GITINDEX_RAW_SHA256_SIZE);
	if (size <= GITINDEX_RAW_SHA1_SIZE)
		return 0;
	/* No checksum is as good as one that fits. */
	AUTO_FREE uint8_t *mended = mem_dup(data, size);
	memset(mended + size - GITINDEX_RAW_SHA1_SIZE, 0, GITINDEX_RAW_SHA1_SIZE);
	parse(mended, size, GITINDEX_RAW_SHA1_SIZE);
	return 0;
}
