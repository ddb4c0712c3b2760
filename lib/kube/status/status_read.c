/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/status/status_impl.h"

enum { KEY_MAX = 63, DIGITS_MAX = 9, DIGEST_SHOWN = 12 };

/*
 * Reasons
 */

void kube_why_done(struct kube_why *why)
{
	free(why->sentence);
	strv_done(&why->evidence);
	free(why->hint);
	*why = (struct kube_why){0};
}

void kube_why_set(struct kube_why *why, enum err_id id, const char *fmt, ...)
{
	va_list args;
	AUTO_FREE char *text = NULL;

	va_start(args, fmt);
	text = mem_vprintf(fmt, args);
	va_end(args);
	free(why->sentence);
	why->sentence = kube_text(text, KUBE_SENTENCE_MAX);
	why->id = id;
}

void kube_why_evidence(struct kube_why *why, const char *fmt, ...)
{
	va_list args;
	AUTO_FREE char *raw = NULL, *line = NULL;

	va_start(args, fmt);
	raw = mem_vprintf(fmt, args);
	va_end(args);
	line = kube_text(raw, KUBE_EVIDENCE_LINE_MAX);
	if (*line && why->evidence.n < ERR_EVIDENCE_MAX && strv_find(&why->evidence, line) < 0)
		strv_add_take(&why->evidence, TAKE(line));
}

void kube_why_hint(struct kube_why *why, const char *fmt, ...)
{
	va_list args;
	AUTO_FREE char *text = NULL;

	va_start(args, fmt);
	text = mem_vprintf(fmt, args);
	va_end(args);
	free(why->hint);
	why->hint = kube_text(text, KUBE_SENTENCE_MAX);
}

/*
 * Objects
 */

const struct json *kube_at(const struct json *object, const char *path)
{
	char key[KEY_MAX + 1];

	while (object && *path) {
		size_t len = strcspn(path, ".");

		if (len > KEY_MAX)
			return NULL;
		memcpy(key, path, len);
		key[len] = '\0';
		object = json_get(object, key);
		path += len + (path[len] == '.');
	}
	return object;
}

const char *kube_str_at(const struct json *object, const char *path)
{
	const struct json *value = kube_at(object, path);

	return value ? json_str(value) : NULL;
}

int64_t kube_time_at(const struct json *object, const char *path)
{
	const char *text = kube_str_at(object, path);
	int64_t ms;

	return text && clock_parse(text, &ms, NULL) == 0 && ms > 0 ? ms : 0;
}

static const struct json *with_member(const struct json *array, const char *key, const char *value)
{
	if (!array || json_kind(array) != JSON_ARRAY)
		return NULL;
	for (const struct json *m = json_first(array); m; m = json_next(m))
		if (str_eq(json_get_str(m, key), value))
			return m;
	return NULL;
}

const struct json *kube_condition(const struct json *object, const char *type)
{
	return with_member(kube_at(object, "status.conditions"), "type", type);
}

bool kube_condition_is(const struct json *object, const char *type, const char *status)
{
	const struct json *condition = kube_condition(object, type);

	return condition && str_eq(json_get_str(condition, "status"), status);
}

const struct json *kube_named(const struct json *array, const char *name)
{
	return with_member(array, "name", name);
}

const char *kube_label(const struct json *object, const char *key)
{
	return json_get_str(kube_at(object, "metadata.labels"), key);
}

const char *kube_annotation(const struct json *object, const char *key)
{
	return json_get_str(kube_at(object, "metadata.annotations"), key);
}

int64_t kube_deleted_ms(const struct json *object)
{
	const struct json *metadata = json_get(object, "metadata");
	int64_t ms = kube_time_at(metadata, "deletionTimestamp");
	int64_t grace = json_get_int(metadata, "deletionGracePeriodSeconds", 0);

	if (!ms || grace <= 0 || grace > ms / 1000)
		return ms;
	return ms - grace * 1000;
}

/*
 * Words in texts
 */

char *kube_between(const char *text, const char *before, const char *end)
{
	const char *from = text ? strstr(text, before) : NULL;
	const char *to;

	if (!from)
		return NULL;
	from += strlen(before);
	to = *end ? strstr(from, end) : NULL;
	return mem_strndup(from, to ? (size_t)(to - from) : strlen(from));
}

int64_t kube_number(const char *text, int64_t fallback)
{
	int64_t value = 0;
	size_t n = 0;

	if (!text)
		return fallback;
	for (; n < DIGITS_MAX && str_is_digit(text[n]); n++)
		value = value * 10 + (text[n] - '0');
	return n ? value : fallback;
}

char *kube_image_text(const char *image)
{
	const char *at = image ? strstr(image, "@sha256:") : NULL;
	size_t hex = at ? strlen(at) - strlen("@sha256:") : 0;

	if (hex <= DIGEST_SHOWN)
		return kube_text(image ? image : "the image", KUBE_EVIDENCE_LINE_MAX);
	AUTO_FREE char *cut = mem_printf(
		"%.*s…", (int)((size_t)(at - image) + strlen("@sha256:") + DIGEST_SHOWN), image);
	return kube_text(cut, KUBE_EVIDENCE_LINE_MAX);
}

char *kube_image_host(const char *image)
{
	size_t len = image ? strcspn(image, "/") : 0;

	if (!len || !image[len])
		return mem_strdup("docker.io");
	AUTO_FREE char *host = mem_strndup(image, len);
	if (!strpbrk(host, ".:") && !str_eq(host, "localhost"))
		return mem_strdup("docker.io");
	return kube_text(host, 128);
}
