/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/model/manifest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os/os.h"
#include "base/util/digest.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "oci/model/blob.h"

/* Where files without names are not offered (network file systems, other systems). */
static int open_named(struct blob_stage *stage)
{
	fs_temp_name(stage->name);
	int fd = openat(stage->dir_fd, stage->name,
		O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		stage->name[0] = '\0';
	return fd;
}

int blob_stage_begin(struct blob_stage *stage, int dir_fd, struct err *err)
{
	*stage = (struct blob_stage){.dir_fd = dir_fd, .fd = os_open_nameless(dir_fd, 0600)};
	if (stage->fd < 0)
		stage->fd = open_named(stage);
	if (stage->fd < 0)
		return fs_error(err, errno, "making a file for a layer");
	digest_begin(&stage->digest, DIGEST_SHA256);
	return 0;
}

int blob_stage_write(struct blob_stage *stage, const void *data, size_t len, struct err *err)
{
	if (stage->max_size && len > stage->max_size - stage->size) {
		stage->full = true;
		return err_set(err, E_DATA_LIMIT, "a layer is larger than it may be");
	}
	int r = fs_write_fd(stage->fd, "a layer", data, len, err);

	if (r)
		return r;
	digest_add(&stage->digest, data, len);
	stage->size += len;
	return 0;
}

void blob_stage_end(struct blob_stage *stage, struct descriptor *ret)
{
	uint8_t sha256[SHA256_SIZE];

	digest_end(&stage->digest, sha256);
	*ret = (struct descriptor){.size = stage->size};
	digest_text(sha256, ret->digest);
}

void blob_stage_done(struct blob_stage *stage)
{
	if (!stage)
		return;
	/* A zero stage has descriptor 0, which is not its own. */
	if (stage->digest.ctx && stage->fd >= 0)
		close(stage->fd);
	if (stage->name[0])
		unlinkat(stage->dir_fd, stage->name, 0);
	digest_done(&stage->digest);
	stage->fd = -1;
	stage->name[0] = '\0';
}

int sink_has(struct sink *sink, const struct descriptor *blob, struct err *err)
{
	bool has = false;
	int r = sink->ops->has(sink, blob, 1, &has, err);

	return r < 0 ? r : has;
}

void sink_free(struct sink *sink)
{
	if (sink)
		sink->ops->free(sink);
}

static const char oci_index[] = "application/vnd.oci.image.index.v1+json";
static const char docker_index[] = "application/vnd.docker.distribution.manifest.list.v2+json";

static const struct {
	const char *manifest, *config;
	const char *layers[3]; /* by enum codec */
} media[] = {
	[MEDIA_OCI] = {"application/vnd.oci.image.manifest.v1+json",
		"application/vnd.oci.image.config.v1+json",
		{"application/vnd.oci.image.layer.v1.tar+gzip",
			"application/vnd.oci.image.layer.v1.tar+zstd",
			"application/vnd.oci.image.layer.v1.tar"}},
	[MEDIA_DOCKER] = {"application/vnd.docker.distribution.manifest.v2+json",
		"application/vnd.docker.container.image.v1+json",
		{"application/vnd.docker.image.rootfs.diff.tar.gzip", NULL,
			"application/vnd.docker.image.rootfs.diff.tar"}},
};

static const char docker_foreign[] = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip";
static const char oci_foreign[] = "application/vnd.oci.image.layer.nondistributable.v1.tar";
static const char oci_foreign_gzip[] =
	"application/vnd.oci.image.layer.nondistributable.v1.tar+gzip";

bool media_is_index(const char *media_type)
{
	return str_eq(media_type, oci_index) || str_eq(media_type, docker_index);
}

bool media_is_manifest(const char *media_type)
{
	return str_eq(media_type, media[MEDIA_OCI].manifest) ||
	       str_eq(media_type, media[MEDIA_DOCKER].manifest);
}

bool media_is_foreign(const char *media_type)
{
	return str_starts(media_type, oci_foreign) || str_eq(media_type, docker_foreign);
}

const char *media_manifest(enum media_family family)
{
	return media[family].manifest;
}

const char *media_config(enum media_family family)
{
	return media[family].config;
}

const char *media_layer(enum media_family family, enum codec codec)
{
	return media[family].layers[codec];
}

const char *media_layer_to_oci(const char *media_type)
{
	for (size_t i = 0; i < 3; i++)
		if (str_eq(media_type, media[MEDIA_DOCKER].layers[i]))
			return media[MEDIA_OCI].layers[i];
	return str_eq(media_type, docker_foreign) ? oci_foreign_gzip : media_type;
}

static bool is_media_type(const char *s)
{
	size_t len = s ? strlen(s) : 0;

	for (size_t i = 0; i < len; i++)
		if (s[i] <= ' ' || s[i] > '~')
			return false;
	return len > 0 && len < MEDIA_TYPE_SIZE;
}

int descriptor_parse(
	const struct json *json, const char *what, struct descriptor *ret, struct err *err)
{
	const char *media_type = json_get_str(json, "mediaType");
	const char *digest = json_get_str(json, "digest");
	int64_t size = json_get_int(json, "size", -1);
	uint8_t sha256[SHA256_SIZE];

	if (!is_media_type(media_type))
		return err_set(err, E_IMAGE, "%s has no valid media type", what);
	if (!digest || !digest_parse(digest, sha256))
		return err_set(err, E_IMAGE, "%s has no valid sha256 digest", what);
	if (size < 0)
		return err_set(err, E_IMAGE, "%s has no valid size", what);
	*ret = (struct descriptor){.size = (uint64_t)size};
	memcpy(ret->media_type, media_type, strlen(media_type));
	memcpy(ret->digest, digest, strlen(digest));
	return 0;
}

struct json *descriptor_json(const struct descriptor *descriptor)
{
	struct json *json = json_object();

	json_set_str(json, "mediaType", descriptor->media_type);
	json_set_str(json, "digest", descriptor->digest);
	json_set_int(json, "size", (int64_t)descriptor->size);
	return json;
}

void descriptor_of(const void *data, size_t len, const char *media_type, struct descriptor *ret)
{
	uint8_t sha256[SHA256_SIZE];

	BUG_ON(!is_media_type(media_type));
	*ret = (struct descriptor){.size = len};
	memcpy(ret->media_type, media_type, strlen(media_type));
	digest_sha256(data, len, sha256);
	digest_text(sha256, ret->digest);
}

/*
 * Manifests
 */

static int manifest_check_version(const struct json *json, const char *what, struct err *err)
{
	int64_t version =
		json_kind(json) == JSON_OBJECT ? json_get_int(json, "schemaVersion", 0) : 0;

	if (version == 1)
		return err_set(
			err, E_IMAGE_KIND, "%s is of schema version 1, which is too old", what);
	if (version != 2)
		return err_set(err, E_IMAGE, "%s is not of schema version 2", what);
	return 0;
}

static int manifest_read_config(struct manifest *manifest, const char *what, struct err *err)
{
	AUTO_FREE char *name = mem_printf("the configuration in %s", what);
	const char *media_type = json_get_str(manifest->json, "mediaType");

	int r = descriptor_parse(json_get(manifest->json, "config"), name, &manifest->config, err);
	if (r < 0)
		return r;
	bool docker = str_eq(manifest->config.media_type, media[MEDIA_DOCKER].config);
	if (!docker && !str_eq(manifest->config.media_type, media[MEDIA_OCI].config))
		return err_set(err, E_IMAGE_KIND,
			"%s is not a container image: its configuration is %s", what,
			manifest->config.media_type);
	if (media_type)
		docker = str_eq(media_type, media[MEDIA_DOCKER].manifest);
	manifest->family = docker ? MEDIA_DOCKER : MEDIA_OCI;
	return 0;
}

static int read_layers(struct manifest *manifest, const char *what, struct err *err)
{
	const struct json *layers = json_get(manifest->json, "layers");
	size_t n = json_count(layers);

	if (json_kind(layers) != JSON_ARRAY)
		return err_set(err, E_IMAGE, "%s has no list of layers", what);
	if (n > MANIFEST_LAYERS_MAX)
		return err_set(err, E_IMAGE_DEPTH, "%s has more than %d layers", what,
			MANIFEST_LAYERS_MAX);
	manifest->layers = mem_alloc(n, sizeof(*manifest->layers));
	for (const struct json *layer = json_first(layers); layer; layer = json_next(layer)) {
		AUTO_FREE char *name = mem_printf("layer %zu in %s", manifest->n_layers + 1, what);
		int r = descriptor_parse(layer, name, &manifest->layers[manifest->n_layers], err);
		if (r < 0)
			return r;
		manifest->n_layers++;
	}
	return 0;
}

int manifest_parse(
	const char *text, size_t len, const char *what, struct manifest *ret, struct err *err)
{
	AUTO_MANIFEST struct manifest manifest = {0};
	int r = json_parse(text, len, MANIFEST_SIZE_MAX, what, &manifest.json, err);

	if (r == 0)
		r = manifest_check_version(manifest.json, what, err);
	if (r < 0)
		return r;
	const struct json *media_type = json_get(manifest.json, "mediaType");
	if (media_type && !media_is_manifest(json_str(media_type)))
		return err_set(err, E_IMAGE_KIND, "%s is not the manifest of an image", what);
	r = manifest_read_config(&manifest, what, err);
	if (r == 0)
		r = read_layers(&manifest, what, err);
	if (r < 0)
		return r;
	*ret = manifest;
	manifest = (struct manifest){0};
	return 0;
}

void manifest_done(struct manifest *manifest)
{
	if (!manifest)
		return;
	json_free(manifest->json);
	free(manifest->layers);
	*manifest = (struct manifest){0};
}

const char *manifest_media_type(const struct json *json)
{
	const char *media_type = json_get_str(json, "mediaType");

	if (media_is_index(media_type) || media_is_manifest(media_type))
		return media_type;
	if (json_get(json, "mediaType"))
		return NULL;
	if (json_kind(json_get(json, "manifests")) == JSON_ARRAY)
		return oci_index;
	return json_kind(json_get(json, "layers")) == JSON_ARRAY ? media[MEDIA_OCI].manifest : NULL;
}

/*
 * Platforms and indexes
 */

/* The next part of *text up to a slash; false if it is empty or too long. */
static bool manifest_take_part(const char **text, char out[static 32])
{
	size_t len = strcspn(*text, "/");

	if (len == 0 || len >= 32)
		return false;
	memcpy(out, *text, len);
	out[len] = '\0';
	*text += len;
	if (**text == '/')
		(*text)++;
	return true;
}

int platform_parse(const char *text, struct platform *ret, struct err *err)
{
	struct platform platform = {0};
	const char *rest = text;

	bool ok = manifest_take_part(&rest, platform.os) &&
		  manifest_take_part(&rest, platform.architecture) &&
		  (!*rest || manifest_take_part(&rest, platform.variant)) && !*rest &&
		  !str_ends(text, "/") && str_is_utf8(text, strlen(text));
	if (!ok) {
		AUTO_FREE char *shown = str_shown(text);
		return err_set(err, E_CONFIG, "\"%s\" is not a valid platform, such as linux/amd64",
			shown);
	}
	*ret = platform;
	return 0;
}

static const char *variant_of(const char *architecture, const char *variant)
{
	if (str_empty(variant) && str_eq(architecture, "arm64"))
		return "v8";
	return variant ? variant : "";
}

/* 0: another platform, 1: near enough, 2: equal. */
static int match(const struct platform *platform, const struct json *json)
{
	const char *architecture = json_get_str(json, "architecture");

	if (!str_eq(json_get_str(json, "os"), platform->os) ||
		!str_eq(architecture, platform->architecture))
		return 0;
	const char *want = variant_of(platform->architecture, platform->variant);
	const char *have = variant_of(architecture, json_get_str(json, "variant"));
	if (str_eq(want, have))
		return 2;
	return !*want || !*have ? 1 : 0;
}

bool platform_matches(const struct platform *platform, const struct json *json)
{
	return match(platform, json) > 0;
}

static const struct json *manifest_pick(
	const struct json *manifests, const struct platform *platform)
{
	const struct json *best = NULL;
	int best_rank = 0;

	for (const struct json *m = json_first(manifests); m; m = json_next(m)) {
		int rank = match(platform, json_get(m, "platform"));
		if (rank > best_rank) {
			best_rank = rank;
			best = m;
		}
	}
	const struct json *first = json_first(manifests);
	if (!best && first && !json_next(first) && !json_get(first, "platform"))
		return first;
	return best;
}

static int no_platform(
	const struct json *manifests, const char *what, const char *platform, struct err *err)
{
	AUTO_BUF struct buf list = buf_with(200);

	for (const struct json *m = json_first(manifests); m; m = json_next(m)) {
		const struct json *p = json_get(m, "platform");
		const char *os = json_get_str(p, "os"), *variant = json_get_str(p, "variant");
		const char *architecture = json_get_str(p, "architecture");
		if (os && architecture && !str_eq(os, "unknown"))
			buf_addf(&list, "%s%s/%s%s%s", list.len ? ", " : "", os, architecture,
				variant ? "/" : "", variant ? variant : "");
	}
	int r = err_set(err, E_IMAGE_PLATFORM, "%s has no image for %s", what, platform);
	AUTO_FREE char *shown = str_escaped(list.data);
	if (list.len > 0)
		err_evidence(err, "it has %s", shown);
	return r;
}

int index_pick(const char *text, size_t len, const char *what, const char *platform,
	struct descriptor *ret, struct err *err)
{
	AUTO_JSON struct json *json = NULL;
	struct platform wanted;

	int r = platform_parse(platform, &wanted, err);
	if (r == 0)
		r = json_parse(text, len, MANIFEST_SIZE_MAX, what, &json, err);
	if (r == 0)
		r = manifest_check_version(json, what, err);
	if (r < 0)
		return r;
	const struct json *manifests = json_get(json, "manifests");
	if (json_kind(manifests) != JSON_ARRAY)
		return err_set(err, E_IMAGE, "%s is not an index of images", what);
	if (json_count(manifests) > MANIFEST_NESTED_MAX)
		return err_set(err, E_DATA_LIMIT, "%s has more than %d manifests", what,
			MANIFEST_NESTED_MAX);
	const struct json *found = manifest_pick(manifests, &wanted);
	if (!found)
		return no_platform(manifests, what, platform, err);
	AUTO_FREE char *name = mem_printf("the manifest for %s in %s", platform, what);
	return descriptor_parse(found, name, ret, err);
}
