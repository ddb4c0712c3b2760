/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "oci/layout/layout_index.h"
#include "oci/model/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The entries of the new text are those that were kept, byte by byte, and the new one. */
static void check_written(
	const struct layout_index *old, const struct buf *text, const struct descriptor *added)
{
	AUTO_LAYOUT_INDEX struct layout_index index = {0};
	AUTO_LAYOUT_ROW struct layout_row row = {0};
	size_t n = 0;

	BUG_ON(layout_index_parse(text->data, text->len, "it", &index, NULL) < 0);
	vec_foreach (const struct layout_entry, entry, &old->entries) {
		if (entry->drop)
			continue;
		BUG_ON(n == index.entries.n || index.entries.v[n].len != entry->len ||
			memcmp(index.entries.v[n].text, entry->text, entry->len) != 0);
		n++;
	}
	BUG_ON(index.entries.n != n + 1 || !layout_entry_is_own(&index.entries.v[n]));
	BUG_ON(layout_entry_read(&index.entries.v[n], "it", &row, NULL) < 0);
	BUG_ON(strcmp(row.blob.digest, added->digest) != 0 || strcmp(row.name, "na\"me") != 0);
}

/* The text has no NUL behind it, so that a read past its end is seen. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_LAYOUT_INDEX struct layout_index index = {0};
	AUTO_BUF struct buf out = {0};
	AUTO_ERR struct err err = {0};
	struct descriptor added;

	if (layout_index_parse((const char *)data, size, "it", &index, &err) < 0) {
		BUG_ON(err.id != E_DATA && err.id != E_DATA_LIMIT);
		return 0;
	}
	for (size_t i = 0; i < index.entries.n; i++) {
		AUTO_LAYOUT_ROW struct layout_row row = {0};
		struct layout_entry *entry = &index.entries.v[i];
		BUG_ON(entry->len == 0);
		if (layout_entry_read(entry, "it", &row, NULL) == 0 && row.name)
			BUG_ON(!layout_entry_may_have(entry, row.name));
		entry->drop = entry->len % 3 == 0;
	}
	buf_init(&out, size + 4096);
	descriptor_of("x", 1, "a/b", &added);
	layout_index_write(&index, &added, "na\"me", &out);
	BUG_ON(out.full);
	check_written(&index, &out, &added);
	return 0;
}
