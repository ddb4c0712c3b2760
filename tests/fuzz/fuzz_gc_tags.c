/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <string.h>

#include "app/gc/gc_registry.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "oci/model/ref.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_list(const char *text, size_t len)
{
	AUTO_STRV struct strv tags = {0};
	AUTO_ERR struct err err = {0};

	if (gc_tags_parse(text, len, &tags, &err) < 0)
		BUG_ON(err.id != E_REGISTRY_RESPONSE || tags.n > 0);
	vec_foreach (char *, tag, &tags) {
		BUG_ON(!ref_is_tag(*tag));
		BUG_ON(gc_tag_is_own(*tag) && strlen(*tag) + 1 != GC_TAG_SIZE);
	}
}

static void check_link(const char *text)
{
	AUTO_STRV struct strv headers = {0};

	strv_addf(&headers, "link:%s", text);
	AUTO_FREE char *next = gc_next_page(&headers);
	BUG_ON(next && (strchr(next, '>') || !strstr(text, next)));
}

/* A page of tags, and the field that leads to the next one: what is taken from them is whole. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_FREE char *text = mem_strndup((const char *)data, size);
	char tag[GC_TAG_SIZE];

	check_list((const char *)data, size);
	check_link(text);
	if (gc_tag_of(text, tag))
		BUG_ON(!gc_tag_is_own(tag));
	return 0;
}
