/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <string.h>

#include "app/data/bundle.h"
#include "app/data/version.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/str.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A list that was understood is understood again, and means the same. */
static void check_again(const struct version *version)
{
	char id[VERSION_ID_SIZE], again_id[VERSION_ID_SIZE];
	AUTO_VERSION struct version again = {0};
	AUTO_BUF struct buf text;

	buf_init(&text, VERSION_TEXT_MAX);
	version_print(version, 1, "host", false, &text);
	BUG_ON(version_parse(text.data, text.len, &again, NULL) < 0);
	version_id(version, id);
	version_id(&again, again_id);
	BUG_ON(!str_eq(id, again_id) || again.entries.n != version->entries.n);
	for (size_t i = 0; i < version->entries.n; i++) {
		const char *path = version->entries.v[i].path;
		BUG_ON(*path == '/' || strstr(path, "/../") || str_starts(path, "../"));
		BUG_ON(version_find(version, path) != &version->entries.v[i]);
		BUG_ON(version->entries.v[i].n_chunks != again.entries.v[i].n_chunks);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_FREE char *text = mem_strndup((const char *)data, size);
	AUTO_VERSION struct version version = {0};
	AUTO(bundle_part_done) struct bundle_part part = {0};
	struct version_summary summary;

	if (version_parse(text, strlen(text), &version, NULL) == 0)
		check_again(&version);
	version_summary_parse(text, &summary, NULL);
	bundle_part_parse((const char *)data, size, &part);
	return 0;
}
