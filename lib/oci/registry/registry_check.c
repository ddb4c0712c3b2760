/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/registry/registry_check.h"

#include <string.h>
#include <strings.h>

#include "base/data/json.h"
#include "base/util/digest.h"
#include "base/util/str.h"
#include "net/stream/field.h"
#include "oci/model/manifest.h"
#include "oci/registry/registry_error.h"

#define SCHEMA1_TYPE "application/vnd.docker.distribution.manifest.v1+"

static int no_sense(const struct registry_part *part, struct err *err, const char *what)
{
	return err_set(
		err, E_REGISTRY_ANSWER, "registry %s sends %s of %s", part->host, what, part->name);
}

int registry_check_bytes(const struct registry_part *part, const struct http_answer *answer,
	struct descriptor *got, struct err *err)
{
	const char *encoding = field_find(&answer->headers, "content-encoding");
	const char *said = field_find(&answer->headers, "docker-content-digest");

	if (answer->body.len == 0)
		return no_sense(part, err, "nothing instead");
	if (!str_empty(encoding) && strcasecmp(encoding, "identity") != 0)
		return no_sense(part, err, "a compressed form, which was not asked for,");
	descriptor_of(answer->body.data, answer->body.len, "application/octet-stream", got);
	if (part->digest && !str_eq(got->digest, part->digest)) {
		no_sense(part, err, "other bytes than those");
		return err_evidence(err, "asked for %s, got %s", part->digest, got->digest);
	}
	if (part->size && part->size != got->size)
		return no_sense(part, err, "a part of a wrong size");
	if (said && str_starts(said, "sha256:") && !str_eq(said, got->digest)) {
		AUTO_FREE char *shown = str_shown(said);
		no_sense(part, err, "another digest than that");
		return err_evidence(err, "Docker-Content-Digest %s, got %s", shown, got->digest);
	}
	return 0;
}

static int old_form(const struct registry_part *part, struct err *err)
{
	err_set(err, E_IMAGE_KIND, "%s is kept in docker's old form (schema 1)", part->name);
	return err_hint(err, "docker pull %s && docker push %s", part->name, part->name);
}

/* The media type of a manifest or index in a Content-Type, without parameters; NULL if it is
 * none. */
static const char *known_type(const char *type, char out[static MEDIA_TYPE_SIZE])
{
	size_t len = strcspn(type, "; \t");

	if (len >= MEDIA_TYPE_SIZE)
		return NULL;
	memcpy(out, type, len);
	out[len] = '\0';
	return media_is_index(out) || media_is_manifest(out) ? out : NULL;
}

static int check_type(const struct registry_part *part, const struct http_answer *answer,
	struct descriptor *got, struct err *err)
{
	AUTO_JSON struct json *json = NULL;
	const char *type = field_find(&answer->headers, "content-type");
	char out[MEDIA_TYPE_SIZE];

	type = type ? type : "";
	if (str_starts(type, SCHEMA1_TYPE))
		return old_form(part, err);
	if (json_parse(answer->body.data, answer->body.len, MANIFEST_SIZE_MAX, part->name, &json,
		    NULL) < 0) {
		int r = no_sense(part, err, "something else than the manifest");
		registry_words(answer, err);
		return r;
	}
	if (json_get_int(json, "schemaVersion", 0) == 1)
		return old_form(part, err);
	const char *inside = manifest_media_type(json), *outside = known_type(type, out);
	if (!inside)
		return err_set(err, E_IMAGE_KIND, "%s is not an image", part->name);
	if (json_get(json, "manifests") && (json_get(json, "layers") || json_get(json, "config")))
		return err_set(err, E_IMAGE, "%s is an index and an image at once", part->name);
	bool differ = json_get(json, "mediaType")
			      ? !str_eq(inside, outside)
			      : media_is_index(inside) != media_is_index(outside);
	if (outside && differ) {
		no_sense(part, err, "another type than that");
		return err_evidence(err, "Content-Type %s, got %s", outside, inside);
	}
	memcpy(got->media_type, inside, strlen(inside) + 1);
	return 0;
}

int registry_check_manifest(const struct registry_part *part, const struct http_answer *answer,
	struct descriptor *got, struct err *err)
{
	int r = registry_check_bytes(part, answer, got, err);

	return r < 0 ? r : check_type(part, answer, got, err);
}
