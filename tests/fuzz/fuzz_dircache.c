/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/mem.h"
#include "snap/tree/statcache.h"
#include "tests/fuzz/cachefix.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Every row is found again and lies inside of the data, and so does every name. */
static void observe(const struct dircache *cache, const uint8_t *end)
{
	struct listing listing;

	listing_init(&listing);
	for (size_t i = 0; i < cache->n; i++) {
		const struct dircache_row *row = cache->rows[i];
		const char *path = dircache_row_path(row), *text = dircache_row_text(row);

		BUG_ON(strlen(path) != row->path_len);
		BUG_ON(dircache_find(cache, path) != row);
		BUG_ON((const uint8_t *)text + row->text_len > end);
		if (!listing_take(&listing, text, row->text_len, row->n_names))
			continue;
		BUG_ON(listing.items.n != row->n_names);
		vec_foreach (const struct listing_item, item, &listing.items) {
			BUG_ON(item->len == 0 || strlen(item->name) != item->len);
			BUG_ON(item->name <= text ||
				item->name + item->len >= text + row->text_len);
			BUG_ON(strchr(item->name, '/') || strcmp(item->name, "..") == 0);
		}
	}
	listing_done(&listing);
}

static void try(const uint8_t *data, size_t size)
{
	struct dircache cache;

	if (dircache_parse(&cache, data, size))
		observe(&cache, data + size);
	else
		BUG_ON(cache.n != 0 || cache.rows != NULL);
	dircache_done(&cache);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size < CACHEFILE_HEADER_SIZE)
		return 0;
	AUTO_FREE uint8_t *copy = mem_dup(data, size);
	try(copy, size);
	cachefix_reconcile_header(copy, size);
	try(copy, size);
	return 0;
}
