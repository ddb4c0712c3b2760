/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/layout/layout_index.h"

#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "oci/model/manifest.h"

#define REF_NAME "org.opencontainers.image.ref.name"
#define OWN      "dev.dlrun.image"

static const char empty_index[] =
	"{\"schemaVersion\":2,\"mediaType\":\"application/vnd.oci.image.index.v1+json\","
	"\"manifests\":[]}";

int layout_index_parse(
	const char *text, size_t len, const char *what, struct layout_index *ret, struct err *err)
{
	AUTO_LAYOUT_INDEX struct layout_index index = {0};

	if (len > LAYOUT_INDEX_MAX)
		return err_set(err, E_DATA_LIMIT, "%s is larger than %d MiB", what,
			LAYOUT_INDEX_MAX >> 20);
	if (len == 0 || (text[0] == '\0' && memcmp(text, text + 1, len - 1) == 0)) {
		text = empty_index;
		len = sizeof(empty_index) - 1;
	}
	int r = json_parse(text, len, LAYOUT_INDEX_MAX, what, &index.json, err);
	if (r < 0)
		return r;
	const struct json *manifests = json_get(index.json, "manifests");
	if (!manifests)
		return err_set(err, E_DATA, "%s has no list of manifests", what);
	/* Programs in Go write null for an empty list. */
	if (json_kind(manifests) != JSON_ARRAY && json_kind(manifests) != JSON_NULL)
		return err_set(err, E_DATA, "the manifests of %s are no list", what);
	for (const struct json *m = json_first(manifests); m; m = json_next(m)) {
		const struct json *annotations = json_get(m, "annotations");
		*vec_push(&index.entries) = (struct layout_entry){
			.json = m,
			.name = json_get_str(annotations, REF_NAME),
			.is_own = json_get(annotations, OWN),
		};
	}
	*ret = index;
	index = (struct layout_index){0};
	return 0;
}

void layout_index_done(struct layout_index *index)
{
	if (!index)
		return;
	json_free(index->json);
	vec_done(&index->entries);
}

int layout_entry_blob(
	const struct layout_entry *entry, const char *what, struct descriptor *ret, struct err *err)
{
	AUTO_FREE char *name = mem_printf("an entry of %s", what);

	return descriptor_parse(entry->json, name, ret, err);
}

void layout_index_write(const struct layout_index *index, const struct descriptor *add,
	const char *name, struct buf *out)
{
	struct json *manifests = json_array();

	vec_foreach (const struct layout_entry, entry, &index->entries)
		if (!entry->drop)
			json_add(manifests, json_clone(entry->json));
	if (add) {
		struct json *made = descriptor_json(add),
			    *annotations = json_sub(made, "annotations");
		if (name)
			json_set_str(annotations, REF_NAME, name);
		json_set_str(annotations, OWN, "1");
		json_add(manifests, made);
	}
	/* Setting the members one by one would search all of them for each. */
	AUTO_JSON struct json *json = json_clone(index->json);
	json_set(json, "manifests", manifests);
	json_print(json, out);
}
