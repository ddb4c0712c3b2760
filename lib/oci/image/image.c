/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/image/image.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/digest.h"
#include "base/util/enc.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "oci/image/plan.h"
#include "oci/layer/layer.h"
#include "oci/layer/layer_read.h"
#include "oci/layer/unpack.h"
#include "oci/model/manifest.h"

struct layer_work {
	const struct image_request *request;
	struct sink *sink;
	const char *media_type;
	/* result */
	struct image_layer layers[IMAGE_BASE_LAYERS_MAX];
	size_t n_layers, n_written;
	/* own use */
	struct entry_refs all, small, big;
	uint8_t spec[SHA256_SIZE];
	struct plan plan;
	int lock_fd;
	bool may_write; /* full and big layers too: we hold the lock, or there is nothing to lock */
	bool new_full;
	struct plan_layer full;
	uint8_t outgrown[SHA256_SIZE]; /* key of a full layer that the delta was too large for */
};

#define AUTO_LAYER_WORK AUTO(layer_work_done)

static void layer_work_done(struct layer_work *work);

#define BASE_DIGEST "org.opencontainers.image.base.digest"
#define BASE_NAME   "org.opencontainers.image.base.name"
#define CREATED     "org.opencontainers.image.created"
#define REVISION    "org.opencontainers.image.revision"
#define SOURCE      "org.opencontainers.image.source"

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
	if (spec->workdir)
		json_set_str(runtime, "WorkingDir", spec->workdir);
	struct json *labels = json_sub(runtime, "Labels");
	/* Drop the labels that name the source of the base: what runs is another. */
	json_remove(labels, REVISION);
	json_remove(labels, SOURCE);
	for (size_t i = 0; spec->labels && i < spec->labels->n; i++) {
		const char *text = spec->labels->v[i], *equals = strchr(text, '=');
		AUTO_FREE char *key =
			mem_strndup(text, equals ? (size_t)(equals - text) : SIZE_MAX);
		json_set_str(labels, key, equals ? equals + 1 : "");
	}
	json_set_str(labels, CREATED, created);
	if (spec->snapshot_id)
		json_set_str(labels, LABEL_SNAPSHOT, spec->snapshot_id);
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

char *image_environment_tag(const char *key)
{
	return mem_printf(IMAGE_ENVIRONMENT_TAG "%.*s", IMAGE_ENVIRONMENT_HEX, key);
}

char *image_data_tag(const char *key)
{
	return mem_printf(IMAGE_DATA_TAG "%.*s", IMAGE_ENVIRONMENT_HEX, key);
}

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

/* The configuration that manifest names, and its diff_ids (free the list, its strings are the
 * configuration's). */
static int image_read_config(struct layout *layout, const struct manifest *manifest,
	const char *what, struct json **ret_config, const char ***ret_diff_ids, struct err *err)
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
	if (r < 0 || base->n_layers <= IMAGE_BASE_LAYERS_MAX)
		return r;
	err_set(err, E_IMAGE_DEPTH, "%s has %zu layers, more than %d", base->name, base->n_layers,
		IMAGE_BASE_LAYERS_MAX);
	AUTO_BUF struct buf quoted = buf_with(4 * strlen(base->name) + 16);
	str_shell_quote(&quoted, base->name);
	return err_hint(err, "echo FROM %s | podman build --squash-all -t flat -", quoted.data);
}

static int image_do_load(struct layout *layout, const char *name, const char *ref,
	const char *platform, bool whole, struct image_base **ret, struct err *err)
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
	return image_do_load(layout, name, ref, platform, false, ret, err);
}

int image_whole_load(struct layout *layout, const char *name, const char *ref, const char *platform,
	struct image_base **ret, struct err *err)
{
	return image_do_load(layout, name, ref, platform, true, ret, err);
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

static int image_fill(struct image *image, const struct manifest *manifest,
	const struct json *config, const char *const *diff_ids, const char *what, struct err *err)
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
		r = image_fill(&image, &manifest, config, diff_ids, digest, err);
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
static int image_open_layer(struct layout *layout, const struct image *image, size_t i, int *ret_fd,
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
static int image_explain(
	struct layout *layout, const struct image_layer *layer, struct err *error, struct err *err)
{
	AUTO_ERR struct err damage = {0};

	if (error->id != E_IMAGE && error->id != E_DATA_LIMIT)
		return err_move(err, error);
	if (layout_check_blob(layout, &layer->blob, &damage) < 0 && damage.id == E_IMAGE)
		return err_move(err, &damage);
	err_move(err, error);
	return err_prefix(err, "%s", layer->blob.digest);
}

size_t image_remove_damaged(struct layout *layout, const struct image *image)
{
	size_t n = 0;

	for (size_t i = first_own(image); i < image->n_layers; i++)
		n += layout_remove_damaged(layout, &image->layers[i].blob, NULL) == 1;
	return n;
}

/* Read dlrun's layers but the first skip: into list, or (NULL) below dir_fd. */
static int image_take_layers(struct layout *layout, const struct image *image, size_t skip,
	struct entry_list *list, int dir_fd, struct err *err)
{
	struct unpack_spec spec;

	for (size_t i = first_own(image) + skip; i < image->n_layers; i++) {
		AUTO_FD int fd = -1;
		AUTO_ERR struct err error = {0};
		int r = image_open_layer(layout, image, i, &fd, &spec, &error);
		if (r == 0)
			r = list ? unpack_list(&spec, list, &error)
				 : unpack_apply(&spec, dir_fd, &error);
		if (r < 0)
			return image_explain(layout, &image->layers[i], &error, err);
	}
	return 0;
}

int image_entries_above(struct layout *layout, const struct image *image, size_t skip,
	struct entry_list *list, struct err *err)
{
	return image_take_layers(layout, image, skip, list, -1, err);
}

int image_unpack(
	struct layout *layout, const struct image *image, size_t skip, int dir_fd, struct err *err)
{
	return image_take_layers(layout, image, skip, NULL, dir_fd, err);
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

static int image_add_paths(const struct unpack_spec *spec, struct strv *ret_gone,
	struct strv *ret_dirs, struct err *err)
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
	AUTO_ERR struct err error = {0};
	struct unpack_spec spec;
	AUTO_FD int fd = -1;

	if (image->n_layers == 0 || image->layers[last].role != IMAGE_ROLE_DELTA)
		return 0;
	int r = image_open_layer(layout, image, last, &fd, &spec, &error);
	if (r == 0)
		r = image_add_paths(&spec, ret_gone, ret_dirs, &error);
	return r < 0 ? image_explain(layout, &image->layers[last], &error, err) : 0;
}

int image_read_file(struct layout *layout, const struct image *image, const char *path, int out_fd,
	struct err *err)
{
	struct unpack_spec spec;
	int found = 0;

	for (size_t i = image->n_layers; i-- > first_own(image) && found == 0;) {
		AUTO_FD int fd = -1;
		AUTO_ERR struct err error = {0};
		int r = image_open_layer(layout, image, i, &fd, &spec, &error);
		if (r == 0)
			r = unpack_file(&spec, path, out_fd, &found, &error);
		if (r < 0)
			return image_explain(layout, &image->layers[i], &error, err);
	}
	if (found == 1)
		return 0;
	AUTO_FREE char *shown = str_shown(path);
	return err_set(err, E_IMAGE_BASE, "the image has no file %s", shown);
}

enum {
	FORMAT = 3, /* raised when the same entries give other bytes */
	LOCK_WAIT_MS = 10 * 60 * 1000,
};

/* Besides errors. */
enum outcome { DONE, NEED_LOCK, TOO_LARGE };

static void image_make_spec(struct layer_work *work)
{
	const struct image_request *request = work->request;
	AUTO_FREE char *text = mem_printf("dlrun layers %d\n%s\n%" PRId64 "\n%s\n", FORMAT,
		codec_name(request->codec), request->mtime_s,
		request->data_dir  ? request->data_dir
		: request->workdir ? request->workdir
				   : "/");

	digest_sha256(text, strlen(text), work->spec);
}

static void sort_by_size(struct layer_work *work)
{
	const struct image_request *request = work->request;
	uint64_t big = request->big_file_bytes ? request->big_file_bytes : IMAGE_BIG_FILE;

	vec_reserve(&work->all, request->entries->n);
	vec_reserve(&work->small, request->entries->n);
	vec_foreach (const struct entry, e, request->entries) {
		bool is_big = e->kind == ENTRY_FILE && e->size >= big;
		*vec_push(&work->all) = e;
		*(is_big ? vec_push(&work->big) : vec_push(&work->small)) = e;
	}
}

static void layer_work_init(struct layer_work *work, const struct image_request *request,
	struct sink *sink, const char *media_type)
{
	*work = (struct layer_work){.request = request, .sink = sink, .media_type = media_type};
	work->lock_fd = -1;
	work->may_write = !request->plan_path;
	image_make_spec(work);
	sort_by_size(work);
	if (request->plan && request->plan->has_full) {
		work->plan = *request->plan;
		*request->plan = (struct plan){0};
	} else if (request->plan_path) {
		plan_load(request->plan_path, &work->plan);
	}
}

static void layer_work_done(struct layer_work *work)
{
	if (!work)
		return;
	vec_done(&work->all);
	vec_done(&work->small);
	vec_done(&work->big);
	plan_done(&work->plan);
	if (work->lock_fd >= 0)
		close(work->lock_fd);
	work->lock_fd = -1;
}

/*
 * A single layer
 */

/* A layer as it should be. */
struct wanted {
	enum image_role role;
	const struct entry_refs *entries;
	const struct strv *whiteouts; /* or NULL */
	uint64_t max_size;            /* compressed; more is TOO_LARGE; 0: any */
};

static void image_hash_entry(struct digest *digest, const struct entry *e)
{
	char head[64];
	int n = snprintf(head, sizeof(head), "%c%d%" PRIu64 " ", e->kind == ENTRY_LINK ? 'l' : 'f',
		e->exec, e->size);

	digest_add(digest, head, (size_t)n);
	digest_add(digest, e->sha256, SHA256_SIZE);
	digest_add(digest, e->path, strlen(e->path) + 1);
}

/* Of all that the bytes of the layer depend on. */
static void image_make_key(
	const struct layer_work *work, const struct wanted *wanted, uint8_t out[static SHA256_SIZE])
{
	AUTO_DIGEST struct digest digest = {0};
	const char *role = image_role_name(wanted->role);

	digest_begin(&digest, DIGEST_SHA256);
	digest_add(&digest, work->spec, SHA256_SIZE);
	digest_add(&digest, role, strlen(role) + 1);
	for (size_t i = 0; i < wanted->entries->n; i++)
		image_hash_entry(&digest, wanted->entries->v[i]);
	for (size_t i = 0; wanted->whiteouts && i < wanted->whiteouts->n; i++) {
		digest_add(&digest, "w", 1);
		digest_add(&digest, wanted->whiteouts->v[i], strlen(wanted->whiteouts->v[i]) + 1);
	}
	digest_end(&digest, out);
}

static void image_describe(
	const struct layer_work *work, const struct plan_layer *layer, struct descriptor *ret)
{
	*ret = (struct descriptor){.size = layer->size};
	snprintf(ret->media_type, sizeof(ret->media_type), "%s", work->media_type);
	digest_text(layer->digest, ret->digest);
}

/* Whether the sink has a layer that was made before: 1, 0, or an error. */
static int image_is_there(struct layer_work *work, const struct plan_layer *layer, struct err *err)
{
	struct descriptor blob;

	image_describe(work, layer, &blob);
	return sink_has(work->sink, &blob, err);
}

static void add_result(
	struct layer_work *work, enum image_role role, const struct plan_layer *layer)
{
	struct image_layer *result = &work->layers[work->n_layers++];

	result->role = role;
	digest_text(layer->diff_id, result->diff_id);
	image_describe(work, layer, &result->blob);
}

static int write_layer(struct layer_work *work, const struct wanted *wanted, struct plan_layer *ret,
	struct err *err)
{
	const struct image_request *request = work->request;
	AUTO_STAGE struct blob_stage stage = {.fd = -1};
	struct layer_result made;
	struct layer_spec spec = {
		.workdir = request->data_dir                 ? request->data_dir
			   : wanted->role == IMAGE_ROLE_BASE ? "/"
							     : request->workdir,
		.entries = wanted->entries->v,
		.n_entries = wanted->entries->n,
		.full = wanted->role == IMAGE_ROLE_FULL,
		.no_dirs = wanted->role == IMAGE_ROLE_BASE,
		.opener = request->opener,
		.mtime_s = request->mtime_s,
		.codec = request->codec,
	};

	if (wanted->whiteouts) {
		spec.whiteouts = (const char *const *)wanted->whiteouts->v;
		spec.n_whiteouts = wanted->whiteouts->n;
	}
	int r = blob_stage_begin(&stage, work->sink->ops->stage_dir(work->sink), err);
	stage.max_size = wanted->max_size;
	if (r == 0)
		r = layer_write(&spec, &stage, &made, err);
	if (r < 0 && stage.full) {
		err_clear(err);
		return TOO_LARGE;
	}
	/* The stage does not know where it is. */
	if (r < 0 && err && err->id == E_IO_FULL)
		err_prefix(err, "%s", work->sink->name);
	if (r < 0)
		return r;
	ret->size = made.blob.size;
	BUG_ON(!digest_parse(made.diff_id, ret->diff_id) ||
		!digest_parse(made.blob.digest, ret->digest));
	image_describe(work, ret, &made.blob);
	r = work->sink->ops->put(work->sink, &stage, &made.blob, err);
	work->n_written += r == 0;
	return r;
}

/* The layer, from the plan if the sink still has it, else written. Outcome or error. */
static int need_layer(struct layer_work *work, const struct wanted *wanted, struct plan_layer *ret,
	struct err *err)
{
	struct plan_layer layer = {0};

	image_make_key(work, wanted, layer.key);
	const struct plan_layer *known = plan_find(&work->plan, layer.key);
	int r = known ? image_is_there(work, known, err) : 0;
	if (r < 0)
		return r;
	if (r == 1) {
		layer = *known;
		r = wanted->max_size && layer.size > wanted->max_size ? TOO_LARGE : DONE;
	} else if (wanted->role != IMAGE_ROLE_DELTA && !work->may_write) {
		r = NEED_LOCK;
	} else {
		r = write_layer(work, wanted, &layer, err);
	}
	if (r != DONE)
		return r;
	plan_remember(&work->plan, &layer);
	*ret = layer;
	return DONE;
}

/*
 * All layers
 */

static uint64_t delta_max(uint64_t full_size)
{
	return full_size / 4 > IMAGE_DELTA_MIN ? full_size / 4 : IMAGE_DELTA_MIN;
}

/* Difference of the tree from the plan's full layer with the big files on top. false: too large. */
static bool find_delta(const struct layer_work *work, struct layer_diff *ret)
{
	struct entry_refs full = {0}, below = {0};
	const struct plan *plan = &work->plan;

	vec_reserve(&full, plan->n_entries);
	for (size_t i = 0; i < plan->n_entries; i++)
		*vec_push(&full) = &plan->entries[i];
	if (work->big.n)
		entry_refs_cover(&full, &work->big, &below);
	bool ok =
		layer_diff_make(work->big.n ? &below : &full, &work->all, IMAGE_DELTA_ENTRIES, ret);
	vec_done(&full);
	vec_done(&below);
	return ok;
}

static int make_delta(struct layer_work *work, const struct layer_diff *diff, struct err *err)
{
	struct plan_layer layer;
	struct wanted wanted = {
		.role = IMAGE_ROLE_DELTA,
		.entries = &diff->entries,
		.whiteouts = &diff->whiteouts,
		.max_size = delta_max(work->plan.full.size),
	};

	if (diff->entries.n + diff->whiteouts.n == 0)
		return DONE;
	int r = need_layer(work, &wanted, &layer, err);
	if (r == DONE)
		add_result(work, IMAGE_ROLE_DELTA, &layer);
	return r;
}

/* On top of the plan's full layer, if it is still good. */
static int make_increment(struct layer_work *work, const struct plan_layer *big, struct err *err)
{
	AUTO_LAYER_DIFF struct layer_diff diff = {0};
	const struct plan *plan = &work->plan;

	if (work->request->full || !plan->has_full ||
		memcmp(plan->spec, work->spec, SHA256_SIZE) != 0 ||
		memcmp(plan->full.key, work->outgrown, SHA256_SIZE) == 0)
		return TOO_LARGE;
	int r = image_is_there(work, &plan->full, err);
	if (r < 0)
		return r;
	if (r == 0 || !find_delta(work, &diff))
		return TOO_LARGE;
	add_result(work, IMAGE_ROLE_FULL, &plan->full);
	if (big)
		add_result(work, IMAGE_ROLE_BIG, big);
	r = make_delta(work, &diff, err);
	if (r == TOO_LARGE)
		memcpy(work->outgrown, plan->full.key, SHA256_SIZE);
	return r;
}

static int make_canonical(struct layer_work *work, const struct plan_layer *big, struct err *err)
{
	struct wanted wanted = {
		.role = IMAGE_ROLE_FULL,
		.entries = &work->small,
	};

	work->n_layers = 0;
	int r = need_layer(work, &wanted, &work->full, err);
	if (r != DONE)
		return r;
	work->new_full = true;
	add_result(work, IMAGE_ROLE_FULL, &work->full);
	if (big)
		add_result(work, IMAGE_ROLE_BIG, big);
	return DONE;
}

/*
 * Data
 */

static uint64_t image_data_weight(const struct entry *entry)
{
	return entry->size + LAYER_TAR_BLOCK;
}

size_t image_data_cut(const struct entry *entries, size_t n, uint64_t total)
{
	uint64_t mean = IMAGE_DATA_LAYER, bytes = 0;

	while (total / mean > IMAGE_DATA_LAYERS)
		mean *= 2;
	for (size_t i = 0; i < n; i++) {
		uint64_t weight = image_data_weight(&entries[i]);
		uint8_t sha256[SHA256_SIZE];
		if (i > 0 && bytes + weight > 2 * mean)
			return i;
		bytes += weight;
		if (bytes < mean / 4)
			continue;
		/* The chance that a layer ends behind a file grows with the file's size. */
		digest_sha256(entries[i].path, strlen(entries[i].path), sha256);
		if (get_le64(sha256) <= UINT64_MAX / mean * (weight < mean ? weight : mean))
			return i + 1;
	}
	return n;
}

static int write_data(struct layer_work *work, struct err *err)
{
	const struct entry_list *list = work->request->entries;
	uint64_t total = 0;
	size_t len;

	work->n_layers = 0;
	for (size_t i = 0; i < list->n; i++)
		total += image_data_weight(&list->v[i]);
	for (size_t i = 0; i < list->n; i += len) {
		struct plan_layer layer;
		len = image_data_cut(&list->v[i], list->n - i, total);
		const struct entry_refs part = {.v = &work->all.v[i], .n = len};
		const struct wanted wanted = {.role = IMAGE_ROLE_BASE, .entries = &part};
		if (work->n_layers == IMAGE_BASE_LAYERS_MAX)
			return err_set(err, E_IMAGE_DEPTH, "it would be over %d layers",
				IMAGE_BASE_LAYERS_MAX);
		int r = need_layer(work, &wanted, &layer, err);
		if (r != DONE)
			return r;
		add_result(work, IMAGE_ROLE_BASE, &layer);
		/* So that a push that is killed goes on where it was. */
		if (work->request->plan_path)
			plan_save_recent(work->request->plan_path, &work->plan, NULL);
	}
	return DONE;
}

static int make_layers(struct layer_work *work, struct err *err)
{
	if (work->request->data_dir)
		return write_data(work, err);
	struct plan_layer big;
	struct wanted wanted = {
		.role = IMAGE_ROLE_BIG,
		.entries = &work->big,
	};

	work->n_layers = 0;
	int r = work->big.n ? need_layer(work, &wanted, &big, err) : DONE;
	if (r != DONE)
		return r;
	r = make_increment(work, work->big.n ? &big : NULL, err);
	if (r == TOO_LARGE)
		r = make_canonical(work, work->big.n ? &big : NULL, err);
	return r;
}

/* The plan is a cache: without its lock two processes may do the same work, no more. */
static void image_take_lock(struct layer_work *work)
{
	AUTO_FREE char *path = mem_printf("%s.lock", work->request->plan_path);
	AUTO_ERR struct err err = {0};

	if (fs_lock(path, true, LOCK_WAIT_MS, &work->lock_fd, &err) < 0)
		log_note("plan: %s", err.message);
	work->may_write = true;
	plan_done(&work->plan);
	plan_load(work->request->plan_path, &work->plan);
}

/* Fills in the result; every layer is in the sink then. Blocks while another process writes a full
 * or big layer of the same plan. */
static int layer_work_run(struct layer_work *work, struct err *err)
{
	int r = make_layers(work, err);

	if (r == NEED_LOCK) {
		image_take_lock(work);
		r = make_layers(work, err);
	}
	return r;
}

static bool is_planned(const struct layer_work *work)
{
	const struct plan *plan = &work->plan;

	return plan->has_full && memcmp(plan->spec, work->spec, SHA256_SIZE) == 0 &&
	       memcmp(&plan->full, &work->full, sizeof(plan->full)) == 0;
}

/* Keep the plan: call when the image is committed. */
static void layer_work_save(struct layer_work *work)
{
	const char *path = work->request->plan_path;
	AUTO_ERR struct err err = {0};
	int r = 0;

	if (!path || work->request->dry)
		return;
	if (work->new_full && !is_planned(work))
		r = plan_save_full(
			path, work->spec, &work->full, work->small.v, work->small.n, &err);
	if (r == 0)
		r = plan_save_recent(path, &work->plan, &err);
	if (r < 0)
		log_note("plan: %s", err.message);
}

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

static bool image_is_zstd(const struct descriptor *blob)
{
	return str_eq(media_layer_to_oci(blob->media_type), media_layer(MEDIA_OCI, CODEC_ZSTD));
}

/* An image that dlrun made has them all of one kind. */
static enum codec image_codec_of(const struct image_request *request)
{
	const struct image *own = request->own;

	if (!own)
		return request->codec;
	return own->n_layers > 0 && image_is_zstd(&own->layers[own->n_layers - 1].blob)
		       ? CODEC_ZSTD
		       : CODEC_GZIP;
}

/* Docker has no media type for zstd. Its other layers and its configuration mean the same under
 * OCI's names. */
static enum media_family pick_family(const struct image_request *request)
{
	enum media_family family = request->base ? request->base->family : MEDIA_OCI;

	return media_layer(family, image_codec_of(request)) ? family : MEDIA_OCI;
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
		if (layer->role != IMAGE_ROLE_BASE)
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
	if (making->request->removed)
		json_set_str(annotations, IMAGE_LABEL_ENVIRONMENT, making->request->environment);
	if (making->request->data_dir)
		json_set_str(annotations, IMAGE_LABEL_DATA, making->request->data);
	if (making->request->snapshot_id)
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
	AUTO_ERR struct err error = {0};

	if (base->layout) {
		int r = layout_open_blob(base->layout, blob, &from, &error);
		/* A layer that may not be passed on is fetched from elsewhere. */
		if (r < 0 && error.id == E_IMAGE_BASE && media_is_foreign(blob->media_type))
			return 0;
		if (r < 0)
			return err_move(err, &error);
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

static void image_fill_result(struct making *making)
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
	image->workdir = making->request->workdir ? mem_strdup(making->request->workdir) : NULL;
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
	if (request->data_dir && base_layers(request) + work->n_layers > IMAGE_BASE_LAYERS_MAX)
		return err_set(err, E_IMAGE_DEPTH,
			"%s has %zu layers, and its data %zu more: over %d", request->base->name,
			base_layers(request), work->n_layers, IMAGE_BASE_LAYERS_MAX);
	for (size_t i = 0; i < work->n_layers; i++)
		snprintf(work->layers[i].blob.media_type, MEDIA_TYPE_SIZE, "%s",
			media_layer(making->family, image_codec_of(request)));
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

static int write_environment(struct layer_work *work, struct err *err)
{
	const struct wanted wanted = {
		.role = IMAGE_ROLE_BASE,
		.entries = &work->all,
		.whiteouts = work->request->removed,
	};
	struct plan_layer layer = {0};
	int r = write_layer(work, &wanted, &layer, err);

	if (r == 0)
		add_result(work, IMAGE_ROLE_BASE, &layer);
	return r;
}

static int find_layers(struct layer_work *work, const struct image_request *request,
	struct sink *sink, enum media_family family, struct err *err)
{
	int r = 0;

	if (request->own) {
		*work = (struct layer_work){.request = request, .sink = sink, .lock_fd = -1};
		for (size_t i = 0; r == 0 && i < request->own->n_layers; i++)
			if (request->own->layers[i].role != IMAGE_ROLE_BASE)
				r = take_own_layer(work, &request->own->layers[i], err);
		return r;
	}
	layer_work_init(work, request, sink, media_layer(family, request->codec));
	return request->removed ? write_environment(work, err) : layer_work_run(work, err);
}

/* *ret_wrong: the sink found at the end that it lacks what it said it had. */
static int image_write_once(const struct image_request *request, struct sink *sink,
	struct image *ret, bool *ret_wrong, struct err *err)
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
		image_fill_result(&making);
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
	AUTO_ERR struct err error = {0};
	bool wrong = false;

	int r = image_write_once(request, sink, ret, &wrong, &error);
	if (r < 0 && wrong) {
		wrong = false;
		r = image_write_once(request, sink, ret, &wrong, &error);
	}
	if (r < 0)
		return err_move(err, &error);
	ret->bytes_written = sink->bytes_written - bytes_before;
	return 0;
}
