/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/data/json.h"
#include "oci/image/image.h"
#include "oci/model/manifest.h"
#include "tests/unit/imagefix.h"

#define OCI        "application/vnd.oci.image."
#define DOCKER     "application/vnd.docker."
#define OCI_INDEX  OCI "index.v1+json"
#define OCI_GZIP   OCI "layer.v1.tar+gzip"
#define DOCKER_TAR DOCKER "image.rootfs.diff.tar.gzip"
#define FOREIGN    DOCKER "image.rootfs.foreign.diff.tar.gzip"

/* A base image as other tools make them. */
struct base_spec {
	enum media_family family;
	size_t n_layers;
	const char *layer_type; /* NULL: of the family */
	const char *config;     /* members of the configuration besides rootfs; NULL: linux/amd64 */
	size_t diff_ids_less;
	bool no_layers; /* described, but not there */
	struct descriptor manifest, layers[130];
	char diff_ids[130][DIGEST_TEXT_SIZE];
};

static void put_text(struct sink *sink, const char *text, const char *type, struct descriptor *ret)
{
	descriptor_of(text, strlen(text), type, ret);
	ok(sink->ops->put_bytes(sink, text, ret, error));
}

/* Content is not looked at: a text does for a layer. */
static void put_layer(struct sink *sink, struct base_spec *spec, size_t i)
{
	AUTO_FREE char *text = mem_printf("layer %zu", i);
	const char *type = spec->layer_type ? spec->layer_type : media_layer(spec->family, 0);
	struct descriptor tar;

	descriptor_of(text, strlen(text), "a/b", &tar);
	snprintf(spec->diff_ids[i], DIGEST_TEXT_SIZE, "%s", tar.digest);
	if (spec->no_layers)
		descriptor_of(text, strlen(text), type, &spec->layers[i]);
	else
		put_text(sink, text, type, &spec->layers[i]);
}

static void put_base(struct sink *sink, struct base_spec *spec)
{
	AUTO_JSON struct json *manifest = json_object();
	struct json *layers = json_array();
	AUTO_BUF struct buf config, text;
	struct descriptor config_blob;

	buf_init(&config, 1 << 20);
	buf_init(&text, 1 << 20);
	buf_addf(&config, "{%s,\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[",
		spec->config ? spec->config : "\"os\":\"linux\",\"architecture\":\"amd64\"");
	for (size_t i = 0; i < spec->n_layers; i++) {
		put_layer(sink, spec, i);
		json_add(layers, descriptor_json(&spec->layers[i]));
		if (i + spec->diff_ids_less < spec->n_layers)
			buf_addf(&config, "%s\"%s\"", i ? "," : "", spec->diff_ids[i]);
	}
	buf_adds(&config, "]}}");
	put_text(sink, config.data, media_config(spec->family), &config_blob);
	json_set_int(manifest, "schemaVersion", 2);
	json_set_str(manifest, "mediaType", media_manifest(spec->family));
	json_set(manifest, "config", descriptor_json(&config_blob));
	json_set(manifest, "layers", layers);
	json_print(manifest, &text);
	put_text(sink, text.data, media_manifest(spec->family), &spec->manifest);
}

/* Into the layout root/base, under a name. */
static void make_base(struct base_spec *spec, const char *name)
{
	AUTO_LAYOUT struct layout *layout = NULL;
	AUTO_BUF struct buf text = {0};

	ok(layout_open(in_root("base"), true, &layout, error));
	struct sink *sink = layout_sink(layout);
	put_base(sink, spec);
	ok(layout_read_blob(layout, &spec->manifest, 1 << 20, &text, error));
	if (!spec->no_layers)
		ok(sink->ops->commit(sink, text.data, &spec->manifest, name, error));
	sink_free(sink);
}

static struct layout *base_layout;

static struct image_base *load_base(const char *ref)
{
	struct image_base *base = NULL;

	layout_free(base_layout);
	base_layout = NULL;
	ok(layout_open(in_root("base"), false, &base_layout, error));
	ok(image_base_load(base_layout, "oci:base", ref, "linux/amd64", &base, error));
	return base;
}

static int close_base(void **state)
{
	layout_free(base_layout);
	base_layout = NULL;
	return remove_root(state);
}

static void assert_refused(const char *ref, const char *platform, enum err_id id, const char *says)
{
	struct image_base *base = NULL;
	AUTO_ERR struct err err = {0};

	layout_free(base_layout);
	base_layout = NULL;
	ok(layout_open(in_root("base"), false, &base_layout, error));
	assert_true(image_base_load(base_layout, "oci:base", ref, platform, &base, &err) < 0);
	if (err.id != id || !strstr(err.message, says))
		fail_msg("%s: %s", err_info(err.id)->name, err.message);
}

static struct image write_over(const struct image_base *base, enum codec codec)
{
	struct fake_tree *tree = tree_new();

	tree_put(tree, "train.py", 'x', 1, 100);
	struct image_request request = request_of(tree);
	request.base = base;
	request.codec = codec;
	request.plan_path = NULL;
	struct image image = write_image("l", &request);
	assert_holds("l", &image, request.entries);
	tree_done(tree);
	return image;
}

static void read_json(const struct descriptor *blob, struct json **ret)
{
	AUTO_LAYOUT struct layout *layout = NULL;
	AUTO_BUF struct buf text = {0};

	ok(layout_open(in_root("l"), false, &layout, error));
	ok(layout_read_blob(layout, blob, 1 << 20, &text, error));
	ok(json_parse(text.data, text.len, 1 << 20, "it", ret, error));
}

static const struct json *nth(const struct json *array, size_t n)
{
	const struct json *m = json_first(array);

	while (n-- > 0)
		m = json_next(m);
	return m;
}

static void assert_layer_type(const struct image *image, size_t i, const char *want)
{
	AUTO_JSON struct json *manifest = NULL;

	read_json(&image->manifest, &manifest);
	const struct json *layer = nth(json_get(manifest, "layers"), i);
	assert_string_equal(json_get_str(layer, "mediaType"), want);
	assert_string_equal(json_get_str(layer, "digest"), image->layers[i].blob.digest);
}

static void test_layers(void **state)
{
	struct base_spec spec = {.n_layers = 30};
	AUTO_JSON struct json *config = NULL;
	AUTO_JSON struct json *manifest = NULL;

	make_base(&spec, "v1");
	AUTO(image_base_free_auto) struct image_base *base = load_base("v1");
	assert_int_equal(base->n_layers, 30);
	assert_int_equal(base->family, MEDIA_OCI);
	assert_string_equal(base->manifest.digest, spec.manifest.digest);
	AUTO_IMAGE struct image image = write_over(base, CODEC_GZIP);
	assert_int_equal(image.n_layers, 31);
	for (size_t i = 0; i < 30; i++) {
		assert_int_equal(image.layers[i].role, IMAGE_ROLE_BASE);
		assert_string_equal(image.layers[i].blob.digest, spec.layers[i].digest);
		assert_string_equal(image.layers[i].diff_id, spec.diff_ids[i]);
	}
	assert_int_equal(image.layers[30].role, IMAGE_ROLE_FULL);
	assert_int_equal(image.layers_written, 1);

	read_json(&image.config, &config);
	const struct json *diff_ids = json_get(json_get(config, "rootfs"), "diff_ids");
	assert_int_equal(json_count(diff_ids), 31);
	assert_string_equal(json_str(nth(diff_ids, 29)), spec.diff_ids[29]);
	assert_string_equal(json_str(nth(diff_ids, 30)), image.layers[30].diff_id);
	read_json(&image.manifest, &manifest);
	const struct json *annotations = json_get(manifest, "annotations");
	assert_string_equal(json_get_str(annotations, "org.opencontainers.image.base.digest"),
		spec.manifest.digest);
	assert_null(json_get(annotations, "org.opencontainers.image.base.name"));
}

static void test_no_layers(void **state)
{
	struct base_spec spec = {.n_layers = 0};

	make_base(&spec, NULL);
	AUTO(image_base_free_auto) struct image_base *base = load_base(NULL);
	AUTO_IMAGE struct image image = write_over(base, CODEC_GZIP);
	assert_string_equal(roles_of(&image), "full");
}

static void test_depth(void **state)
{
	struct base_spec most = {.n_layers = IMAGE_BASE_LAYERS_MAX};
	struct base_spec over = {.n_layers = IMAGE_BASE_LAYERS_MAX + 6};

	make_base(&most, "most");
	make_base(&over, "over");
	AUTO(image_base_free_auto) struct image_base *base = load_base("most");
	AUTO_IMAGE struct image image = write_over(base, CODEC_GZIP);
	assert_int_equal(image.n_layers, IMAGE_BASE_LAYERS_MAX + 1);
	assert_refused("over", "linux/amd64", E_IMAGE_DEPTH, "has 126 layers, more than 120");
}

/*
 * Media types
 */

static void test_docker(void **state)
{
	struct base_spec spec = {.family = MEDIA_DOCKER, .n_layers = 2};
	AUTO_JSON struct json *manifest = NULL;

	make_base(&spec, "v1");
	AUTO(image_base_free_auto) struct image_base *base = load_base("v1");
	AUTO_IMAGE struct image image = write_over(base, CODEC_GZIP);
	assert_string_equal(image.manifest.media_type, media_manifest(MEDIA_DOCKER));
	assert_string_equal(image.config.media_type, media_config(MEDIA_DOCKER));
	assert_layer_type(&image, 0, DOCKER_TAR);
	assert_layer_type(&image, 2, DOCKER_TAR);
	read_json(&image.manifest, &manifest);
	assert_string_equal(json_get_str(manifest, "mediaType"), media_manifest(MEDIA_DOCKER));
}

/* Docker has no name for zstd: the image gets OCI's names, its layers are the same. */
static void test_docker_zstd(void **state)
{
	struct base_spec spec = {.family = MEDIA_DOCKER, .n_layers = 1};

	make_base(&spec, "v1");
	AUTO(image_base_free_auto) struct image_base *base = load_base("v1");
	AUTO_IMAGE struct image image = write_over(base, CODEC_ZSTD);
	assert_string_equal(image.manifest.media_type, media_manifest(MEDIA_OCI));
	assert_string_equal(image.config.media_type, media_config(MEDIA_OCI));
	assert_layer_type(&image, 0, OCI_GZIP);
	assert_layer_type(&image, 1, OCI "layer.v1.tar+zstd");
	assert_string_equal(image.layers[0].blob.digest, spec.layers[0].digest);
}

static void test_zstd_base(void **state)
{
	struct base_spec spec = {.n_layers = 1, .layer_type = OCI "layer.v1.tar+zstd"};

	make_base(&spec, "v1");
	AUTO(image_base_free_auto) struct image_base *base = load_base("v1");
	AUTO_IMAGE struct image image = write_over(base, CODEC_GZIP);
	assert_layer_type(&image, 0, OCI "layer.v1.tar+zstd");
	assert_layer_type(&image, 1, OCI_GZIP);
}

/* Layers that may not be passed on are fetched from elsewhere: they need not be there. */
static void test_foreign_layers(void **state)
{
	struct base_spec spec = {.n_layers = 2, .layer_type = FOREIGN, .no_layers = true};

	make_base(&spec, NULL);
	AUTO(image_base_free_auto) struct image_base *base = load_base(spec.manifest.digest);
	AUTO_IMAGE struct image image = write_over(base, CODEC_GZIP);
	assert_layer_type(&image, 1, FOREIGN);
}

static void test_missing_layer(void **state)
{
	struct base_spec spec = {.n_layers = 2, .no_layers = true};
	struct fake_tree *tree = tree_new();
	AUTO_IMAGE struct image image = {0};
	AUTO_ERR struct err err = {0};

	make_base(&spec, NULL);
	AUTO(image_base_free_auto) struct image_base *base = load_base(spec.manifest.digest);
	tree_put(tree, "a", 'f', 1, 1);
	struct image_request request = request_of(tree);
	request.base = base;
	assert_int_equal(write_to("l", &request, &image, &err), -ERR_NOTFOUND);
	assert_int_equal(err.id, E_IMAGE_BASE);
	assert_non_null(strstr(err.message, "base oci:base: "));
	assert_non_null(strstr(err.message, spec.layers[0].digest));
	tree_done(tree);
}

/*
 * Configurations
 */

static void test_config(void **state)
{
	struct base_spec spec = {.n_layers = 1,
		.config =
			"\"architecture\":\"amd64\",\"os\":\"linux\",\"docker_version\":\"1\","
			"\"big\":123456789012345678901234567890,"
			"\"config\":{\"User\":\"1000\",\"Entrypoint\":[\"/e\"],\"Labels\":{\"a\":\"b\"}},"
			"\"history\":[{\"created_by\":\"x\"}]"};
	AUTO_LAYOUT struct layout *layout = NULL;
	AUTO_BUF struct buf text = {0};

	make_base(&spec, "v1");
	AUTO(image_base_free_auto) struct image_base *base = load_base("v1");
	AUTO_IMAGE struct image image = write_over(base, CODEC_GZIP);
	ok(layout_open(in_root("l"), false, &layout, error));
	ok(layout_read_blob(layout, &image.config, 1 << 20, &text, error));
	assert_non_null(strstr(text.data, "\"docker_version\":\"1\""));
	assert_non_null(strstr(text.data, "\"big\":123456789012345678901234567890"));
	assert_non_null(strstr(text.data, "\"User\":\"1000\",\"Entrypoint\":[\"/e\"]"));
	assert_non_null(strstr(text.data, "\"created_by\":\"dlrun full\""));
	assert_non_null(strstr(text.data, "\"a\":\"b\""));
}

static void test_bad_config(void **state)
{
	struct base_spec less = {.n_layers = 2, .diff_ids_less = 1};
	struct base_spec other = {
		.n_layers = 1, .config = "\"os\":\"linux\",\"architecture\":\"s390x\""};
	struct base_spec silent = {.n_layers = 1, .config = "\"author\":\"me\""};

	make_base(&less, "less");
	make_base(&other, "other");
	make_base(&silent, "silent");
	assert_refused("less", "linux/amd64", E_IMAGE, "has 1 diff_ids for 2 layers");
	assert_refused("other", "linux/amd64", E_IMAGE_PLATFORM, "is for linux/s390x");
	assert_refused("other", "linux", E_CONFIG, "not a valid platform");
	image_base_free(load_base("silent"));
	image_base_free(NULL);
}

static void damage(const struct descriptor *blob, const char *text)
{
	AUTO_FREE char *path = mem_printf("%s/base/blobs/sha256/%s", root, blob->digest + 7);

	ok(fs_replace(path, text, strlen(text), 0644, FS_SYNC_NONE, error));
}

static void test_not_there(void **state)
{
	struct base_spec spec = {.n_layers = 1};

	make_base(&spec, "v1");
	assert_refused("v2", "linux/amd64", E_IMAGE_BASE, "no image named v2");
	damage(&spec.manifest, "{}");
	assert_refused("v1", "linux/amd64", E_IMAGE, "bytes instead of");
	AUTO_FREE char *blanks = mem_alloc(spec.manifest.size + 1, 1);
	memset(blanks, ' ', spec.manifest.size);
	damage(&spec.manifest, blanks);
	assert_refused("v1", "linux/amd64", E_IMAGE, "is damaged");
}

/*
 * Indexes
 */

static void put_index(const char *text, const char *type, struct descriptor *ret)
{
	AUTO_LAYOUT struct layout *layout = NULL;

	ok(layout_open(in_root("base"), true, &layout, error));
	struct sink *sink = layout_sink(layout);
	put_text(sink, text, type, ret);
	sink_free(sink);
}

static char *index_of(const struct descriptor *a, const char *platform_a,
	const struct descriptor *b, const char *platform_b)
{
	return mem_printf("{\"schemaVersion\":2,\"mediaType\":\"" OCI_INDEX "\",\"manifests\":["
			  "{\"mediaType\":\"%s\",\"digest\":\"%s\",\"size\":%d%s},"
			  "{\"mediaType\":\"%s\",\"digest\":\"%s\",\"size\":%d%s}]}",
		a->media_type, a->digest, (int)a->size, platform_a, b->media_type, b->digest,
		(int)b->size, platform_b);
}

#define ARM   ",\"platform\":{\"os\":\"linux\",\"architecture\":\"arm64\"}"
#define AMD   ",\"platform\":{\"os\":\"linux\",\"architecture\":\"amd64\"}"
#define POWER ",\"platform\":{\"os\":\"linux\",\"architecture\":\"ppc64le\"}"

static void test_index(void **state)
{
	struct base_spec amd = {.n_layers = 1};
	struct base_spec arm = {
		.n_layers = 2, .config = "\"os\":\"linux\",\"architecture\":\"arm64\""};
	struct descriptor index, outer, too_deep;

	make_base(&amd, "amd");
	make_base(&arm, "arm");
	AUTO_FREE char *text = index_of(&arm.manifest, ARM, &amd.manifest, AMD);
	put_index(text, OCI_INDEX, &index);
	struct image_base *base = load_base(index.digest);
	assert_string_equal(base->manifest.digest, amd.manifest.digest);
	image_base_free(base);
	assert_refused(
		index.digest, "linux/ppc64le", E_IMAGE_PLATFORM, "no image for linux/ppc64le");

	AUTO_FREE char *nested = index_of(&index, AMD, &arm.manifest, ARM);
	put_index(nested, OCI_INDEX, &outer);
	base = load_base(outer.digest);
	assert_string_equal(base->manifest.digest, amd.manifest.digest);
	image_base_free(base);

	AUTO_FREE char *deeper = index_of(&outer, AMD, &arm.manifest, POWER);
	put_index(deeper, OCI_INDEX, &too_deep);
	assert_refused(too_deep.digest, "linux/amd64", E_IMAGE, "an index in an index in an index");
}

/* An index may say what it wants of what it leads to. */
static void test_lying_index(void **state)
{
	struct base_spec arm = {
		.n_layers = 2, .config = "\"os\":\"linux\",\"architecture\":\"arm64\""};
	struct descriptor index;

	make_base(&arm, "arm");
	AUTO_FREE char *text = index_of(&arm.manifest, AMD, &arm.manifest, POWER);
	put_index(text, OCI_INDEX, &index);
	assert_refused(index.digest, "linux/amd64", E_IMAGE_PLATFORM, "is for linux/arm64");
	struct descriptor small = arm.manifest;
	small.size--;
	AUTO_FREE char *wrong = index_of(&small, AMD, &arm.manifest, POWER);
	put_index(wrong, OCI_INDEX, &index);
	assert_refused(index.digest, "linux/amd64", E_IMAGE, "bytes instead of");
}

/*
 * Images of dlrun's as bases
 */

static void test_own_image(void **state)
{
	struct base_spec spec = {.n_layers = 2,
		.config = "\"os\":\"linux\",\"architecture\":\"amd64\","
			  "\"history\":[{},{\"empty_layer\":true},{}]"};
	struct image_base *second = NULL;
	AUTO_LAYOUT struct layout *layout = NULL;
	AUTO_JSON struct json *config = NULL;

	make_base(&spec, "v1");
	AUTO(image_base_free_auto) struct image_base *first = load_base("v1");
	AUTO_IMAGE struct image image = write_over(first, CODEC_GZIP);
	ok(layout_open(in_root("l"), false, &layout, error));
	ok(image_base_load(layout, "oci:l", image.manifest.digest, "linux/amd64", &second, error));
	assert_int_equal(second->n_layers, 2);
	assert_string_equal(second->parent, spec.manifest.digest);

	/* as if it had been written over the base at once */
	AUTO_IMAGE struct image again = write_over(second, CODEC_GZIP);
	assert_string_equal(again.manifest.digest, image.manifest.digest);
	image_base_free(second);
	read_json(&again.config, &config);
	assert_int_equal(json_count(json_get(config, "history")), 4);
}

static void test_roles_in_disorder(void **state)
{
	static const char *const orders[] = {"full,base", "delta", "big,full", "full,full",
		"full,delta,big", "base,big", "full,other"};

	for (size_t k = 0; k < ARRAY_LEN(orders); k++) {
		AUTO_BUF struct buf layers;
		AUTO_FREE char *copy = mem_strdup(orders[k]);
		AUTO_ERR struct err err = {0};
		AUTO_LAYOUT struct layout *layout = NULL;
		AUTO_IMAGE struct image image = {0};
		struct descriptor config, manifest;
		struct base_spec spec = {.n_layers = 3};
		char *rest = copy;
		size_t n = 0;

		buf_init(&layers, 10000);
		make_base(&spec, "v1");
		AUTO_BUF struct buf diff_ids;
		buf_init(&diff_ids, 10000);
		for (char *word; (word = strsep(&rest, ",")); n++) {
			buf_addf(&diff_ids, "%s\"%s\"", n ? "," : "", spec.diff_ids[n]);
			buf_addf(&layers,
				"%s{\"mediaType\":\"" OCI_GZIP "\",\"digest\":\"%s\",\"size\":7,"
				"\"annotations\":{\"dev.dlrun.role\":\"%s\"}}",
				n ? "," : "", spec.layers[n].digest, word);
		}
		AUTO_FREE char *config_text = mem_printf(
			"{\"config\":{\"WorkingDir\":\"/w\"},\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[%s]}}",
			diff_ids.data);
		put_index(config_text, media_config(MEDIA_OCI), &config);
		AUTO_FREE char *text = mem_printf(
			"{\"schemaVersion\":2,\"config\":{\"mediaType\":\"%s\",\"digest\":\"%s\",\"size\":%d},"
			"\"layers\":[%s]}",
			config.media_type, config.digest, (int)config.size, layers.data);
		put_index(text, media_manifest(MEDIA_OCI), &manifest);
		ok(layout_open(in_root("base"), false, &layout, error));
		if (image_load(layout, manifest.digest, &image, &err) == 0)
			fail_msg("%s was taken", orders[k]);
		assert_int_equal(err.id, E_IMAGE);
	}
}

static void test_not_ours(void **state)
{
	struct base_spec spec = {.n_layers = 1};
	AUTO_LAYOUT struct layout *layout = NULL;
	AUTO_IMAGE struct image image = {0};
	AUTO_ERR struct err err = {0};

	make_base(&spec, "v1");
	ok(layout_open(in_root("base"), false, &layout, error));
	assert_int_equal(image_load(layout, spec.manifest.digest, &image, &err), -ERR_REMOTE);
	assert_non_null(strstr(err.message, "was not made by dlrun"));
}

/*
 * Layers that are carried from one image to another
 */

/* Full and delta, over nothing, in the layout root/from. */
static struct image write_two_layers(struct fake_tree *tree, enum codec codec)
{
	struct image_request request = request_of(tree);

	request.codec = codec;
	just_write("from", &request);
	tree_put(tree, "a.py", 'f', 9, 50);
	request = request_of(tree);
	request.codec = codec;
	return write_image("from", &request);
}

static struct image_request request_relay(
	const struct image *own, struct layout *layout, const struct image_base *base)
{
	return (struct image_request){.own = own,
		.own_layout = layout,
		.snapshot_id = tree_id,
		.workdir = own->workdir,
		.base = base,
		.platform = "linux/amd64",
		.mtime_s = LAYER_MTIME};
}

static void relay_over(enum media_family family, enum codec codec, const char *layer_type)
{
	struct fake_tree *tree = tree_new();
	struct base_spec spec = {.family = family, .n_layers = 2};
	AUTO_LAYOUT struct layout *from = NULL;

	tree_put(tree, "train.py", 'x', 1, 5000);
	tree_put(tree, "a.py", 'f', 2, 50);
	AUTO_IMAGE struct image own = write_two_layers(tree, codec);
	assert_int_equal(own.n_layers, 2);
	ok(layout_open(in_root("from"), false, &from, error));
	make_base(&spec, "v1");
	AUTO(image_base_free_auto) struct image_base *base = load_base("v1");
	struct image_request request = request_relay(&own, from, base);
	AUTO_IMAGE struct image image = write_image("l", &request);
	assert_int_equal(image.n_layers, 4);
	assert_int_equal(image.layers_written, 2);
	assert_holds("l", &image, tree_entries(tree));
	for (size_t i = 0; i < 2; i++) {
		assert_string_equal(image.layers[2 + i].blob.digest, own.layers[i].blob.digest);
		assert_string_equal(image.layers[2 + i].diff_id, own.layers[i].diff_id);
		assert_int_equal(image.layers[2 + i].role, own.layers[i].role);
		assert_layer_type(&image, 2 + i, layer_type);
	}
	AUTO_IMAGE struct image again = write_image("l", &request);
	assert_string_equal(again.manifest.digest, image.manifest.digest);
	assert_int_equal(again.layers_written, 0);
	tree_done(tree);
}

static void test_carried_layers(void **state)
{
	relay_over(MEDIA_OCI, CODEC_GZIP, OCI_GZIP);
}

static void test_carried_layers_over_docker(void **state)
{
	relay_over(MEDIA_DOCKER, CODEC_GZIP, DOCKER_TAR);
}

static void test_carried_zstd_over_docker(void **state)
{
	relay_over(MEDIA_DOCKER, CODEC_ZSTD, media_layer(MEDIA_OCI, CODEC_ZSTD));
}

/* Off one base and onto none: what this machine needs of an image in a registry. */
static void test_carried_without_a_base(void **state)
{
	struct base_spec spec = {.family = MEDIA_DOCKER, .n_layers = 2};
	AUTO_LAYOUT struct layout *from = NULL;

	make_base(&spec, "v1");
	AUTO(image_base_free_auto) struct image_base *base = load_base("v1");
	AUTO_IMAGE struct image own = write_over(base, CODEC_GZIP);
	ok(layout_open(in_root("l"), false, &from, error));
	struct image_request request = request_relay(&own, from, NULL);
	AUTO_IMAGE struct image image = write_image("to", &request);
	assert_int_equal(image.n_layers, 1);
	assert_string_equal(image.layers[0].blob.digest, own.layers[2].blob.digest);
	assert_string_equal(image.manifest.media_type, media_manifest(MEDIA_OCI));
}

static void test_carried_layer_that_is_lost(void **state)
{
	struct fake_tree *tree = tree_new();
	AUTO_LAYOUT struct layout *from = NULL;
	AUTO_ERR struct err err = {0};
	struct image image;

	tree_put(tree, "a.py", 'f', 2, 50);
	AUTO_IMAGE struct image own = write_two_layers(tree, CODEC_GZIP);
	AUTO_FREE char *path = mem_printf(
		"%s/from/blobs/sha256/%s", root, own.layers[0].blob.digest + strlen("sha256:"));
	assert_int_equal(unlink(path), 0);
	ok(layout_open(in_root("from"), false, &from, error));
	struct image_request request = request_relay(&own, from, NULL);
	assert_true(write_to("to", &request, &image, &err) < 0);
	assert_int_equal(err.id, E_IMAGE_BASE);
	tree_done(tree);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, make_root, close_base)
		T(test_layers),
		T(test_no_layers),
		T(test_depth),
		T(test_docker),
		T(test_docker_zstd),
		T(test_zstd_base),
		T(test_foreign_layers),
		T(test_missing_layer),
		T(test_config),
		T(test_bad_config),
		T(test_not_there),
		T(test_index),
		T(test_lying_index),
		T(test_own_image),
		T(test_roles_in_disorder),
		T(test_not_ours),
		T(test_carried_layers),
		T(test_carried_layers_over_docker),
		T(test_carried_zstd_over_docker),
		T(test_carried_without_a_base),
		T(test_carried_layer_that_is_lost),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
