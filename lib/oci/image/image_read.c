/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "oci/image/config.h"
#include "oci/image/image_impl.h"
#include "oci/layer/layer_read.h"
#include "oci/layer/unpack.h"

static int fill(struct image *image, const struct manifest *manifest, const struct json *config,
	const char *const *diff_ids, const char *what, struct err *err)
{
	enum image_role roles[MANIFEST_LAYERS_MAX];
	const char *workdir = oci_config_workdir(config);
	size_t n_own;

	int r = image_roles(manifest, what, roles, &n_own, err);
	if (r < 0)
		return r;
	if (n_own == 0 || !workdir || *workdir != '/')
		return err_set(err, E_IMAGE, "%s was not made by dlrun", what);
	image->config = manifest->config;
	image->workdir = mem_strdup(workdir);
	image->n_layers = manifest->n_layers;
	image->layers = mem_alloc(image->n_layers, sizeof(*image->layers));
	for (size_t i = 0; i < image->n_layers; i++) {
		image->layers[i].role = roles[i];
		image->layers[i].blob = manifest->layers[i];
		memcpy(image->layers[i].diff_id, diff_ids[i], strlen(diff_ids[i]));
	}
	return 0;
}

int image_load(struct layout *layout, const char *digest, struct image *ret, struct err *err)
{
	AUTO_BUF struct buf text = {0};
	AUTO_MANIFEST struct manifest manifest = {0};
	AUTO_JSON struct json *config = NULL;
	AUTO_FREE const char **diff_ids = NULL;
	AUTO_IMAGE struct image image = {0};

	int r = layout_resolve(layout, digest, &image.manifest, err);
	if (r == 0)
		r = layout_read_blob(layout, &image.manifest, IMAGE_MANIFEST_MAX, &text, err);
	if (r == 0)
		r = manifest_parse(text.data, text.len, digest, &manifest, err);
	if (r == 0)
		r = image_read_config(layout, &manifest, digest, &config, &diff_ids, err);
	if (r == 0)
		r = fill(&image, &manifest, config, diff_ids, digest, err);
	if (r < 0)
		return r;
	*ret = image;
	image = (struct image){0};
	return 0;
}

static size_t first_own(const struct image *image)
{
	size_t i = 0;

	while (i < image->n_layers && image->layers[i].role == IMAGE_ROLE_BASE)
		i++;
	return i;
}

/* The spec of a layer; *ret_fd is its open blob. */
static int open_layer(struct layout *layout, const struct image *image, size_t i, int *ret_fd,
	struct unpack_spec *ret, struct err *err)
{
	const struct image_layer *layer = &image->layers[i];

	int r = layout_open_blob(layout, &layer->blob, ret_fd, err);
	if (r < 0)
		return r;
	*ret = (struct unpack_spec){
		.fd = *ret_fd,
		.digest = layer->blob.digest,
		.diff_id = layer->diff_id,
		.workdir = image->workdir,
		.max_bytes = IMAGE_LAYER_MAX,
	};
	return 0;
}

/* A layer that cannot be read is named, and what is wrong with it if its bytes are others. */
static int explain(
	struct layout *layout, const struct image_layer *layer, struct err *fault, struct err *err)
{
	AUTO_ERR struct err damage = {0};

	if (fault->id != E_IMAGE && fault->id != E_DATA_LIMIT)
		return err_move(err, fault);
	if (layout_check_blob(layout, &layer->blob, &damage) < 0 && damage.id == E_IMAGE)
		return err_move(err, &damage);
	err_move(err, fault);
	return err_prefix(err, "%s", layer->blob.digest);
}

size_t image_remove_damaged(struct layout *layout, const struct image *image)
{
	size_t n = 0;

	for (size_t i = first_own(image); i < image->n_layers; i++)
		n += layout_remove_damaged(layout, &image->layers[i].blob, NULL) == 1;
	return n;
}

int image_entries_above(struct layout *layout, const struct image *image, size_t skip,
	struct entry_list *list, struct err *err)
{
	struct unpack_spec spec;

	for (size_t i = first_own(image) + skip; i < image->n_layers; i++) {
		AUTO_FD int fd = -1;
		AUTO_ERR struct err fault = {0};
		int r = open_layer(layout, image, i, &fd, &spec, &fault);
		if (r == 0)
			r = unpack_list(&spec, list, &fault);
		if (r < 0)
			return explain(layout, &image->layers[i], &fault, err);
	}
	return 0;
}

int image_base_entries(
	const struct image_base *base, uint64_t max_bytes, struct entry_list *list, struct err *err)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < base->n_layers; i++)
		bytes += base->layers[i].size < max_bytes ? base->layers[i].size : max_bytes + 1;
	if (bytes > max_bytes)
		return err_set(err, E_DATA_LIMIT, "the layers of %s are large", base->name);
	for (size_t i = 0; i < base->n_layers; i++) {
		AUTO_FD int fd = -1;
		int r = layout_open_blob(base->layout, &base->layers[i], &fd, err);
		if (r < 0)
			return r;
		const struct unpack_spec spec = {.fd = fd,
			.digest = base->layers[i].digest,
			.diff_id = base->diff_ids[i],
			.workdir = "/",
			.max_bytes = IMAGE_BASE_UNPACKED_MAX,
			.names_only = true};
		r = unpack_list(&spec, list, err);
		if (r < 0)
			return r;
	}
	return 0;
}

int image_unpack(
	struct layout *layout, const struct image *image, size_t skip, int dir_fd, struct err *err)
{
	struct unpack_spec spec;

	for (size_t i = first_own(image) + skip; i < image->n_layers; i++) {
		AUTO_FD int fd = -1;
		AUTO_ERR struct err fault = {0};
		int r = open_layer(layout, image, i, &fd, &spec, &fault);
		if (r == 0)
			r = unpack_apply(&spec, dir_fd, &fault);
		if (r < 0)
			return explain(layout, &image->layers[i], &fault, err);
	}
	return 0;
}

static int add_paths(const struct unpack_spec *spec, struct strv *ret_gone, struct strv *ret_dirs,
	struct err *err)
{
	AUTO_LAYER_READER struct layer_reader *reader = layer_reader_new(spec);
	struct layer_member member;
	int r;

	while ((r = layer_reader_next(reader, &member, err)) > 0) {
		if (member.kind == LAYER_OPAQUE || !*member.path)
			continue;
		strv_add(member.kind == LAYER_DIR ? ret_dirs : ret_gone, member.path);
	}
	return r;
}

int image_delta_paths(struct layout *layout, const struct image *image, struct strv *ret_gone,
	struct strv *ret_dirs, struct err *err)
{
	size_t last = image->n_layers - 1;
	AUTO_ERR struct err fault = {0};
	struct unpack_spec spec;
	AUTO_FD int fd = -1;

	if (image->n_layers == 0 || image->layers[last].role != IMAGE_ROLE_DELTA)
		return 0;
	int r = open_layer(layout, image, last, &fd, &spec, &fault);
	if (r == 0)
		r = add_paths(&spec, ret_gone, ret_dirs, &fault);
	return r < 0 ? explain(layout, &image->layers[last], &fault, err) : 0;
}

int image_read_file(struct layout *layout, const struct image *image, const char *path, int out_fd,
	struct err *err)
{
	struct unpack_spec spec;
	int found = 0;

	for (size_t i = image->n_layers; i-- > first_own(image) && found == 0;) {
		AUTO_FD int fd = -1;
		AUTO_ERR struct err fault = {0};
		int r = open_layer(layout, image, i, &fd, &spec, &fault);
		if (r == 0)
			r = unpack_file(&spec, path, out_fd, &found, &fault);
		if (r < 0)
			return explain(layout, &image->layers[i], &fault, err);
	}
	if (found == 1)
		return 0;
	AUTO_FREE char *shown = str_shown(path);
	return err_set(err, E_IMAGE_BASE, "the image has no file %s", shown);
}
