/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/image/image.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "oci/image/config.h"
#include "oci/image/image_layers.h"

#define BASE_DIGEST "org.opencontainers.image.base.digest"
#define BASE_NAME   "org.opencontainers.image.base.name"
#define CREATED     "org.opencontainers.image.created"

void image_done(struct image *image)
{
	if (!image)
		return;
	free(image->layers);
	free(image->workdir);
	*image = (struct image){0};
}

/* State of an image that is being made. */
struct making {
	const struct image_request *request; /* with its base, once that is known */
	struct sink *sink;
	enum media_family family;
	const struct layer_work *work;
	struct buf config, manifest; /* JSON */
	struct image image;
};

static size_t base_layers(const struct image_request *request)
{
	return request->base ? request->base->n_layers : 0;
}

static bool is_zstd(const struct descriptor *blob)
{
	return str_eq(media_layer_to_oci(blob->media_type), media_layer(MEDIA_OCI, CODEC_ZSTD));
}

/* An image that dlrun made has them all of one kind. */
static enum codec codec_of(const struct image_request *request)
{
	const struct image *own = request->own;

	if (!own)
		return request->codec;
	return own->n_layers > 0 && is_zstd(&own->layers[own->n_layers - 1].blob) ? CODEC_ZSTD
										  : CODEC_GZIP;
}

/* Docker has no media type for zstd. Its other layers and its configuration mean the same under
 * OCI's names. */
static enum media_family pick_family(const struct image_request *request)
{
	enum media_family family = request->base ? request->base->family : MEDIA_OCI;

	return media_layer(family, codec_of(request)) ? family : MEDIA_OCI;
}

/*
 * JSON
 */

static int make_config(struct making *making, struct err *err)
{
	const struct image_request *request = making->request;
	AUTO_JSON struct json *json = NULL;
	struct oci_config_spec spec = {
		.base = request->base ? request->base->config_json : NULL,
		.n_base_layers = base_layers(request),
		.platform = request->platform,
		.workdir = request->workdir,
		.snapshot_id = request->snapshot_id,
		.labels = request->labels,
		.time_s = request->mtime_s,
		.layers = making->work->layers,
		.n_layers = making->work->n_layers,
	};

	int r = oci_config_make(&spec, &json, err);
	if (r < 0)
		return r;
	json_print(json, &making->config);
	r = buf_check(&making->config, "the configuration of the image", err);
	if (r == 0)
		descriptor_of(making->config.data, making->config.len, media_config(making->family),
			&making->image.config);
	return r;
}

/* Descriptors of the base as they are, but for the names of their types. */
static void add_base_layers(const struct making *making, struct json *layers)
{
	const struct image_base *base = making->request->base;
	const struct json *layer = json_first(json_get(base->manifest_json, "layers"));

	for (size_t i = 0; i < base->n_layers; i++, layer = json_next(layer)) {
		struct json *copy = json_clone(layer);
		if (making->family != base->family)
			json_set_str(
				copy, "mediaType", media_layer_to_oci(base->layers[i].media_type));
		json_add(layers, copy);
	}
}

static void add_own_layers(const struct making *making, struct json *layers)
{
	for (size_t i = 0; i < making->work->n_layers; i++) {
		const struct image_layer *layer = &making->work->layers[i];
		struct json *json = descriptor_json(&layer->blob);
		json_set_str(json_sub(json, "annotations"), IMAGE_ANNOTATION_ROLE,
			image_role_name(layer->role));
		json_add(layers, json);
	}
}

static void add_annotations(const struct making *making, struct json *manifest)
{
	const struct image_base *base = making->request->base;
	struct json *annotations = json_sub(manifest, "annotations");
	char created[CLOCK_TEXT_SIZE];

	clock_format(making->request->mtime_s * 1000, created);
	json_set_str(annotations, CREATED, created);
	json_set_str(annotations, LABEL_SNAPSHOT, making->request->snapshot_id);
	if (base && base->parent)
		json_set_str(annotations, BASE_DIGEST, base->parent);
	/* A directory means something on one machine only. */
	if (base && !str_starts(base->name, "oci:"))
		json_set_str(annotations, BASE_NAME, base->name);
}

static int make_manifest(struct making *making, struct err *err)
{
	const char *media_type = media_manifest(making->family);
	AUTO_JSON struct json *json = json_object();
	struct json *layers = json_array();

	json_set_int(json, "schemaVersion", 2);
	json_set_str(json, "mediaType", media_type);
	json_set(json, "config", descriptor_json(&making->image.config));
	if (making->request->base)
		add_base_layers(making, layers);
	add_own_layers(making, layers);
	json_set(json, "layers", layers);
	add_annotations(making, json);
	json_print(json, &making->manifest);
	int r = buf_check(&making->manifest, "the manifest of the image", err);
	if (r == 0)
		descriptor_of(making->manifest.data, making->manifest.len, media_type,
			&making->image.manifest);
	return r;
}

/*
 * Writing
 */

static int link_layer(struct making *making, const struct descriptor *blob, struct err *err)
{
	const struct image_base *base = making->request->base;
	AUTO_FD int from = -1;
	AUTO_ERR struct err fault = {0};

	if (base->layout) {
		int r = layout_open_blob(base->layout, blob, &from, &fault);
		/* A layer that may not be passed on is fetched from elsewhere. */
		if (r < 0 && fault.id == E_IMAGE_BASE && media_is_foreign(blob->media_type))
			return 0;
		if (r < 0)
			return err_move(err, &fault);
	}
	return making->sink->ops->link(making->sink, from, blob, err);
}

static int link_base(struct making *making, struct err *err)
{
	const struct image_base *base = making->request->base;
	size_t n = base_layers(making->request);

	if (n == 0)
		return 0;
	AUTO_FREE bool *has = mem_alloc(n, sizeof(*has));
	int r = making->sink->ops->has(making->sink, base->layers, n, has, err);
	for (size_t i = 0; i < n && r == 0; i++) {
		if (!has[i])
			r = link_layer(making, &base->layers[i], err);
	}
	if (r < 0)
		err_prefix(err, "base %s", base->name);
	return r;
}

static int commit(struct making *making, struct err *err)
{
	const struct sink_ops *ops = making->sink->ops;

	int r = make_config(making, err);
	if (r == 0)
		r = make_manifest(making, err);
	if (r == 0)
		r = link_base(making, err);
	if (r == 0)
		r = ops->put_bytes(making->sink, making->config.data, &making->image.config, err);
	if (r == 0)
		r = ops->commit(making->sink, making->manifest.data, &making->image.manifest,
			making->request->name, err);
	return r;
}

static void fill_result(struct making *making)
{
	const struct image_base *base = making->request->base;
	const struct layer_work *work = making->work;
	struct image *image = &making->image;
	size_t n_base = base_layers(making->request);

	image->n_layers = n_base + work->n_layers;
	image->layers = mem_alloc(image->n_layers, sizeof(*image->layers));
	for (size_t i = 0; i < n_base; i++) {
		image->layers[i].blob = base->layers[i];
		memcpy(image->layers[i].diff_id, base->diff_ids[i], strlen(base->diff_ids[i]));
	}
	memcpy(image->layers + n_base, work->layers, work->n_layers * sizeof(*work->layers));
	image->workdir = mem_strdup(making->request->workdir);
	image->layers_written = work->n_written;
}

static void forget_all(const struct making *making)
{
	const struct sink_ops *ops = making->sink->ops;

	for (size_t i = 0; i < making->work->n_layers; i++)
		ops->forget(making->sink, &making->work->layers[i].blob);
	for (size_t i = 0; i < base_layers(making->request); i++)
		ops->forget(making->sink, &making->request->base->layers[i]);
	ops->forget(making->sink, &making->image.config);
}

/* The base may arrive while layers are written; what they are called depends on it. */
static int take_base(struct making *making, struct image_request *request, struct layer_work *work,
	struct err *err)
{
	int r = request->get_base ? request->get_base(request->get_base_ctx, &request->base, err)
				  : 0;

	if (r < 0)
		return r;
	making->request = request;
	making->family = pick_family(request);
	for (size_t i = 0; i < work->n_layers; i++)
		snprintf(work->layers[i].blob.media_type, MEDIA_TYPE_SIZE, "%s",
			media_layer(making->family, codec_of(request)));
	return 0;
}

static int take_own_layer(struct layer_work *work, const struct image_layer *layer, struct err *err)
{
	AUTO_FD int from = -1;

	if (work->n_layers == IMAGE_OWN_LAYERS_MAX)
		return err_set(err, E_IMAGE, "the image has more than %d layers of its own",
			IMAGE_OWN_LAYERS_MAX);
	int r = sink_has(work->sink, &layer->blob, err);
	if (r < 0)
		return r;
	work->layers[work->n_layers++] = *layer;
	if (r > 0)
		return 0;
	work->n_written++;
	r = layout_open_blob(work->request->own_layout, &layer->blob, &from, err);
	return r < 0 ? r : work->sink->ops->link(work->sink, from, &layer->blob, err);
}

static int take_own_layers(struct layer_work *work, struct err *err)
{
	const struct image *own = work->request->own;
	int r = 0;

	for (size_t i = 0; r == 0 && i < own->n_layers; i++)
		if (own->layers[i].role != IMAGE_ROLE_BASE)
			r = take_own_layer(work, &own->layers[i], err);
	return r;
}

static int find_layers(struct layer_work *work, const struct image_request *request,
	struct sink *sink, enum media_family family, struct err *err)
{
	if (request->own) {
		*work = (struct layer_work){.request = request, .sink = sink, .lock_fd = -1};
		return take_own_layers(work, err);
	}
	layer_work_init(work, request, sink, media_layer(family, request->codec));
	return layer_work_run(work, err);
}

/* *ret_wrong: the sink found at the end that it lacks what it said it had. */
static int write_once(const struct image_request *request, struct sink *sink, struct image *ret,
	bool *ret_wrong, struct err *err)
{
	AUTO_LAYER_WORK struct layer_work work;
	struct image_request own = *request;
	struct making making = {
		.request = request, .sink = sink, .family = pick_family(request), .work = &work};

	buf_init(&making.config, IMAGE_CONFIG_MAX);
	buf_init(&making.manifest, IMAGE_MANIFEST_MAX);
	int r = find_layers(&work, request, sink, making.family, err);
	if (r == 0)
		r = take_base(&making, &own, &work, err);
	if (r == 0) {
		r = commit(&making, err);
		*ret_wrong = r < 0 && err->id == E_IMAGE;
	}
	if (r == 0) {
		layer_work_save(&work);
		fill_result(&making);
		*ret = making.image;
	}
	if (*ret_wrong)
		forget_all(&making);
	buf_done(&making.config);
	buf_done(&making.manifest);
	return r;
}

int image_write(
	const struct image_request *request, struct sink *sink, struct image *ret, struct err *err)
{
	uint64_t bytes_before = sink->bytes_written;
	AUTO_ERR struct err fault = {0};
	bool wrong = false;

	int r = write_once(request, sink, ret, &wrong, &fault);
	if (r < 0 && wrong) {
		wrong = false;
		r = write_once(request, sink, ret, &wrong, &fault);
	}
	if (r < 0)
		return err_move(err, &fault);
	ret->bytes_written = sink->bytes_written - bytes_before;
	return 0;
}
