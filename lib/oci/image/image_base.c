/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "oci/image/config.h"
#include "oci/image/image.h"
#include "oci/image/image_impl.h"

#define BASE_DIGEST "org.opencontainers.image.base.digest"

const char *image_role_name(enum image_role role)
{
	static const char *const names[] = {"base", "full", "big", "delta"};

	return names[role];
}

static enum image_role role_of(const struct json *layer)
{
	const char *name = json_get_str(json_get(layer, "annotations"), IMAGE_ANNOTATION_ROLE);

	for (int role = IMAGE_ROLE_FULL; role <= IMAGE_ROLE_DELTA; role++)
		if (str_eq(name, image_role_name((enum image_role)role)))
			return (enum image_role)role;
	return IMAGE_ROLE_BASE;
}

int image_roles(const struct manifest *manifest, const char *what, enum image_role *ret_roles,
	size_t *ret_n_own, struct err *err)
{
	enum image_role before = IMAGE_ROLE_BASE;
	size_t i = 0, n_own = 0;

	for (const struct json *layer = json_first(json_get(manifest->json, "layers")); layer;
		layer = json_next(layer)) {
		enum image_role role = role_of(layer);
		bool first = before == IMAGE_ROLE_BASE;
		if (role == IMAGE_ROLE_BASE ? !first : !first && role <= before)
			return err_set(
				err, E_IMAGE, "%s has layers of dlrun in a wrong order", what);
		if (first && role > IMAGE_ROLE_FULL)
			return err_set(err, E_IMAGE, "%s has a %s layer without a full one", what,
				image_role_name(role));
		n_own += role != IMAGE_ROLE_BASE;
		ret_roles[i++] = before = role;
	}
	*ret_n_own = n_own;
	return 0;
}

int image_read_config(struct layout *layout, const struct manifest *manifest, const char *what,
	struct json **ret_config, const char ***ret_diff_ids, struct err *err)
{
	AUTO_BUF struct buf text = {0};
	AUTO_JSON struct json *config = NULL;
	AUTO_FREE const char **diff_ids = mem_alloc(manifest->n_layers, sizeof(*diff_ids));
	AUTO_FREE char *name = mem_printf("the configuration of %s", what);

	int r = layout_read_blob(layout, &manifest->config, IMAGE_CONFIG_MAX, &text, err);
	if (r == 0)
		r = json_parse(text.data, text.len, IMAGE_CONFIG_MAX, name, &config, err);
	if (r == 0)
		r = oci_config_diff_ids(config, manifest->n_layers, name, diff_ids, err);
	if (r < 0)
		return r;
	*ret_config = TAKE(config);
	*ret_diff_ids = TAKE(diff_ids);
	return 0;
}

/*
 * Bases
 */

/* Through an index, and one index in it, to a manifest: its descriptor and bytes. */
static int find_manifest(
	struct image_base *base, const char *platform, struct buf *text, struct err *err)
{
	enum { INDEXES_MAX = 2 };

	for (int i = 0;; i++) {
		int r = layout_read_blob(
			base->layout, &base->manifest, IMAGE_MANIFEST_MAX, text, err);
		if (r < 0 || !media_is_index(base->manifest.media_type))
			return r;
		if (i == INDEXES_MAX)
			return err_set(
				err, E_IMAGE, "%s is an index in an index in an index", base->name);
		r = index_pick(text->data, text->len, base->name, platform, &base->manifest, err);
		if (r < 0)
			return r;
	}
}

static int check_platform(const struct image_base *base, const char *platform, struct err *err)
{
	const char *os = json_get_str(base->config_json, "os");
	const char *architecture = json_get_str(base->config_json, "architecture");
	struct platform wanted;

	if (str_empty(os) || str_empty(architecture))
		return 0;
	int r = platform_parse(platform, &wanted, err);
	if (r < 0 || platform_matches(&wanted, base->config_json))
		return r;
	AUTO_FREE char *shown_os = str_shown(os);
	AUTO_FREE char *shown_architecture = str_shown(architecture);
	return err_set(err, E_IMAGE_PLATFORM, "%s is for %s/%s, the target is %s", base->name,
		shown_os, shown_architecture, platform);
}

/* Strip what dlrun put on top of a base, so that the tree is not laid over an older tree. */
static void strip_own(struct image_base *base, size_t n_layers, size_t n_own)
{
	const char *parent =
		json_get_str(json_get(base->manifest_json, "annotations"), BASE_DIGEST);
	uint8_t sha256[SHA256_SIZE];

	base->n_layers = n_layers - n_own;
	if (n_own == 0) {
		base->parent = mem_strdup(base->manifest.digest);
		return;
	}
	if (parent && digest_parse(parent, sha256))
		base->parent = mem_strdup(parent);
	oci_config_strip(base->config_json, n_layers, n_own);
}

static int read_base(struct image_base *base, struct manifest *manifest, const char *platform,
	bool whole, struct err *err)
{
	enum image_role roles[MANIFEST_LAYERS_MAX];
	size_t n_own;

	int r = image_read_config(
		base->layout, manifest, base->name, &base->config_json, &base->diff_ids, err);
	if (r == 0)
		r = check_platform(base, platform, err);
	if (r == 0)
		r = image_roles(manifest, base->name, roles, &n_own, err);
	if (r < 0)
		return r;
	base->manifest_json = TAKE(manifest->json);
	base->layers = TAKE(manifest->layers);
	base->family = manifest->family;
	if (whole)
		n_own = 0;
	strip_own(base, manifest->n_layers, n_own);
	/* The strings moved with the list. */
	if (n_own > 0)
		r = oci_config_diff_ids(
			base->config_json, base->n_layers, base->name, base->diff_ids, err);
	if (r == 0 && base->n_layers > IMAGE_BASE_LAYERS_MAX)
		r = err_set(err, E_IMAGE_DEPTH, "%s has %zu layers, more than %d", base->name,
			base->n_layers, IMAGE_BASE_LAYERS_MAX);
	return r;
}

static int load(struct layout *layout, const char *name, const char *ref, const char *platform,
	bool whole, struct image_base **ret, struct err *err)
{
	AUTO(image_base_free_auto) struct image_base *base = mem_alloc(1, sizeof(*base));
	AUTO_BUF struct buf text = {0};
	AUTO_MANIFEST struct manifest manifest = {0};

	base->name = mem_strdup(name);
	base->layout = layout;
	int r = layout_resolve(layout, ref, &base->manifest, err);
	if (r == 0)
		r = find_manifest(base, platform, &text, err);
	if (r == 0)
		r = manifest_parse(text.data, text.len, name, &manifest, err);
	if (r == 0)
		r = read_base(base, &manifest, platform, whole, err);
	if (r < 0)
		return r;
	*ret = TAKE(base);
	return 0;
}

int image_base_load(struct layout *layout, const char *name, const char *ref, const char *platform,
	struct image_base **ret, struct err *err)
{
	return load(layout, name, ref, platform, false, ret, err);
}

int image_whole_load(struct layout *layout, const char *name, const char *ref, const char *platform,
	struct image_base **ret, struct err *err)
{
	return load(layout, name, ref, platform, true, ret, err);
}

size_t image_base_layers(const struct manifest *manifest)
{
	enum image_role roles[MANIFEST_LAYERS_MAX];
	size_t n_own;

	if (image_roles(manifest, "", roles, &n_own, NULL) < 0)
		return 0;
	size_t n = manifest->n_layers - n_own;
	return n <= IMAGE_BASE_LAYERS_MAX ? n : 0;
}

void image_base_free(struct image_base *base)
{
	if (!base)
		return;
	json_free(base->manifest_json);
	json_free(base->config_json);
	free(base->name);
	free(base->parent);
	free(base->layers);
	free(base->diff_ids);
	free(base);
}
