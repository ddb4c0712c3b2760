/* SPDX-License-Identifier: Apache-2.0 */
#include "app/gc/gc_tags.h"

#include <string.h>
#include <strings.h>

#include "base/data/json.h"
#include "base/util/auto.h"
#include "base/util/digest.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "oci/model/ref.h"

static bool is_hex(const char *s, size_t n)
{
	return strspn(s, "0123456789abcdef") == n && s[n] == '\0';
}

bool gc_tag_is_own(const char *tag)
{
	return str_starts(tag, GC_TAG_PREFIX) && is_hex(tag + strlen(GC_TAG_PREFIX), GC_TAG_HEX);
}

bool gc_tag_of(const char *digest, char ret[static GC_TAG_SIZE])
{
	uint8_t sha256[SHA256_SIZE];

	if (!digest || !digest_parse(digest, sha256))
		return false;
	memcpy(ret, GC_TAG_PREFIX, strlen(GC_TAG_PREFIX));
	memcpy(ret + strlen(GC_TAG_PREFIX), digest + strlen("sha256:"), GC_TAG_HEX);
	ret[GC_TAG_SIZE - 1] = '\0';
	return true;
}

int gc_tags_parse(const char *text, size_t len, struct strv *ret, struct err *err)
{
	AUTO_JSON struct json *json = NULL;
	AUTO_ERR struct err cause = {0};
	const struct json *tags;

	if (json_parse(text, len, JSON_SIZE_MAX, "the list of tags", &json, &cause) < 0)
		return err_set(err, E_REGISTRY_ANSWER, "%s", cause.message);
	tags = json_get(json, "tags");
	if (json_kind(json) != JSON_OBJECT ||
		(tags && json_kind(tags) != JSON_ARRAY && json_kind(tags) != JSON_NULL))
		return err_set(err, E_REGISTRY_ANSWER, "the list of tags has no tags");
	if (!tags)
		return 0;
	for (const struct json *tag = json_first(tags); tag; tag = json_next(tag))
		if (json_str(tag) && ref_is_tag(json_str(tag)))
			strv_add(ret, json_str(tag));
	return 0;
}

/* Of the parameters of one link, up to its comma. */
static bool is_next(const char *s, size_t len)
{
	AUTO_FREE char *params = mem_strndup(s, len);

	for (const char *at = params; (at = strcasestr(at, "rel=")); at += 4) {
		const char *value = at + 4 + (at[4] == '"');

		if (strncasecmp(value, "next", 4) == 0 && strchr("\"; \t", value[4]))
			return true;
	}
	return false;
}

static char *next_in(const char *field)
{
	for (const char *open = field; (open = strchr(open, '<'));) {
		const char *close = strchr(open, '>');
		if (!close)
			return NULL;
		size_t len = strcspn(close, ",");
		if (is_next(close, len))
			return mem_strndup(open + 1, (size_t)(close - open - 1));
		open = close + len;
	}
	return NULL;
}

char *gc_next_page(const struct strv *headers)
{
	for (size_t i = 0; i < headers->n; i++) {
		char *next = str_starts(headers->v[i], "link:") ? next_in(headers->v[i]) : NULL;
		if (next)
			return next;
	}
	return NULL;
}

/* The newest of all times counts: a tag that was pushed again is as young as that. */
enum gc_tag_fate gc_tag_judge(const struct gc_tag_facts *facts, int64_t now_ms, int64_t keep_ms)
{
	int64_t newest_ms =
		facts->recorded_ms > facts->modified_ms ? facts->recorded_ms : facts->modified_ms;

	if (facts->needed)
		return GC_TAG_NEEDED;
	if (!facts->is_ours || newest_ms <= 0)
		return GC_TAG_UNKNOWN;
	return newest_ms > now_ms - keep_ms ? GC_TAG_YOUNG : GC_TAG_OLD;
}
