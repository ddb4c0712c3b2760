/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "oci/layout/layout.h"
#include "oci/model/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The entries of the new text are those that were kept, and the new one. */
static void check_written(
	const struct layout_index *old, const struct buf *text, const struct descriptor *added)
{
	AUTO_LAYOUT_INDEX struct layout_index index = {0};
	struct descriptor blob;
	size_t n = 0;

	BUG_ON(layout_index_parse(text->data, text->len, "it", &index, NULL) < 0);
	vec_foreach (const struct layout_entry, entry, &old->entries) {
		AUTO_BUF struct buf before = {0}, after = {0};
		if (entry->drop)
			continue;
		BUG_ON(n == index.entries.n);
		buf_init(&before, SIZE_MAX);
		buf_init(&after, SIZE_MAX);
		json_print(entry->json, &before);
		json_print(index.entries.v[n++].json, &after);
		BUG_ON(strcmp(before.data, after.data) != 0);
	}
	BUG_ON(index.entries.n != n + 1 || !index.entries.v[n].is_own);
	BUG_ON(layout_entry_blob(&index.entries.v[n], "it", &blob, NULL) < 0);
	BUG_ON(strcmp(blob.digest, added->digest) != 0);
	BUG_ON(strcmp(index.entries.v[n].name, "na\"me") != 0);
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
	for (size_t i = 0; i < index.entries.n; i++)
		index.entries.v[i].drop = i % 3 == 0;
	buf_init(&out, SIZE_MAX);
	descriptor_of("x", 1, "a/b", &added);
	layout_index_write(&index, &added, "na\"me", &out);
	check_written(&index, &out, &added);
	return 0;
}
