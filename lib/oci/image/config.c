/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/image/config.h"

#include <string.h>

#include "base/util/clock.h"
#include "base/util/digest.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "oci/model/manifest.h"

#define CREATED  "org.opencontainers.image.created"
#define REVISION "org.opencontainers.image.revision"
#define SOURCE   "org.opencontainers.image.source"

int oci_config_diff_ids(const struct json *config, size_t n_layers, const char *what,
	const char **ret_diff_ids, struct err *err)
{
	const struct json *rootfs = json_get(config, "rootfs");
	const struct json *list = json_get(rootfs, "diff_ids");
	uint8_t sha256[SHA256_SIZE];
	size_t n = 0;

	if (!str_eq(json_get_str(rootfs, "type"), "layers"))
		return err_set(err, E_IMAGE, "%s is not the configuration of an image", what);
	if (json_count(list) != n_layers)
		return err_set(err, E_IMAGE, "%s has %zu diff_ids for %zu layers", what,
			json_count(list), n_layers);
	for (const struct json *id = json_first(list); id; id = json_next(id)) {
		const char *text = json_str(id);
		if (!text || !digest_parse(text, sha256))
			return err_set(err, E_IMAGE, "diff_id %zu of %s is not a sha256 digest",
				n + 1, what);
		ret_diff_ids[n++] = text;
	}
	return 0;
}

/* The history is optional; one that does not tell of every layer would be wrong with ours added. */
static bool history_fits(const struct json *config, size_t n_layers)
{
	size_t n = 0;

	for (const struct json *h = json_first(json_get(config, "history")); h; h = json_next(h))
		n += !json_get_bool(h, "empty_layer", false);
	return n == n_layers;
}

/* The array at key of object, made if it is missing. */
static struct json *sub_array(struct json *object, const char *key)
{
	const struct json *old = json_get(object, key);
	struct json *array = json_kind(old) == JSON_ARRAY ? json_clone(old) : json_array();

	json_set(object, key, array);
	return array;
}

static void add_layers(const struct oci_config_spec *spec, const char *created, struct json *config)
{
	bool history = history_fits(config, spec->n_base_layers);
	struct json *rootfs = json_sub(config, "rootfs");

	json_set_str(rootfs, "type", "layers");
	struct json *diff_ids = sub_array(rootfs, "diff_ids");
	for (size_t i = 0; i < spec->n_layers; i++)
		json_add_str(diff_ids, spec->layers[i].diff_id);
	if (!history) {
		json_remove(config, "history");
		return;
	}
	struct json *entries = sub_array(config, "history");
	for (size_t i = 0; i < spec->n_layers; i++) {
		AUTO_FREE char *by = mem_printf("dlrun %s", image_role_name(spec->layers[i].role));
		struct json *entry = json_object();
		json_set_str(entry, "created", created);
		json_set_str(entry, "created_by", by);
		json_add(entries, entry);
	}
}

static void set_label(struct json *labels, const char *text)
{
	const char *equals = strchr(text, '=');
	AUTO_FREE char *key = mem_strndup(text, equals ? (size_t)(equals - text) : SIZE_MAX);

	json_set_str(labels, key, equals ? equals + 1 : "");
}

static void set_labels(const struct oci_config_spec *spec, const char *created, struct json *labels)
{
	/* Drop the labels that name the source of the base: what runs is another. */
	json_remove(labels, REVISION);
	json_remove(labels, SOURCE);
	for (size_t i = 0; spec->labels && i < spec->labels->n; i++)
		set_label(labels, spec->labels->v[i]);
	json_set_str(labels, CREATED, created);
	json_set_str(labels, LABEL_SNAPSHOT, spec->snapshot_id);
}

static void set_if_missing(struct json *config, const char *key, const char *value)
{
	if (*value && str_empty(json_get_str(config, key)))
		json_set_str(config, key, value);
}

/* Set the platform if it is missing: both members are required, and some tools omit them. */
static int set_platform(struct json *config, const char *text, struct err *err)
{
	struct platform platform;
	int r = platform_parse(text, &platform, err);

	if (r < 0)
		return r;
	bool silent = str_empty(json_get_str(config, "architecture"));
	set_if_missing(config, "architecture", platform.architecture);
	set_if_missing(config, "os", platform.os);
	if (silent)
		set_if_missing(config, "variant", platform.variant);
	return 0;
}

int oci_config_make(const struct oci_config_spec *spec, struct json **ret, struct err *err)
{
	AUTO_JSON struct json *config = spec->base ? json_clone(spec->base) : json_object();
	char created[CLOCK_TEXT_SIZE];

	clock_format(spec->time_s * 1000, created);
	json_set_str(config, "created", created);
	int r = set_platform(config, spec->platform, err);
	if (r < 0)
		return r;
	struct json *runtime = json_sub(config, "config");
	json_set_str(runtime, "WorkingDir", spec->workdir);
	set_labels(spec, created, json_sub(runtime, "Labels"));
	add_layers(spec, created, config);
	*ret = TAKE(config);
	return 0;
}

/* The array at key without its last n elements. */
static void cut_array(struct json *object, const char *key, size_t n)
{
	const struct json *old = json_get(object, key);
	struct json *array = json_array();
	size_t left = json_count(old);

	for (const struct json *m = json_first(old); m && left > n; m = json_next(m), left--)
		json_add(array, json_clone(m));
	json_set(object, key, array);
}

void oci_config_strip(struct json *config, size_t n_layers, size_t n)
{
	bool history = history_fits(config, n_layers);

	cut_array(json_sub(config, "rootfs"), "diff_ids", n);
	if (history)
		cut_array(config, "history", n);
}

const char *oci_config_workdir(const struct json *config)
{
	return json_get_str(json_get(config, "config"), "WorkingDir");
}
