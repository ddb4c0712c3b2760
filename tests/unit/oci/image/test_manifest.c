/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/data/json.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "oci/image/image.h"
#include "oci/model/manifest.h"

#define HEX_A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define HEX_B "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
#define A     "sha256:" HEX_A
#define B     "sha256:" HEX_B
#define OCI   "application/vnd.oci.image."
#define DOCK  "application/vnd.docker."

#define DESC(type, digest, size)                                                                   \
	"{\"mediaType\":\"" type "\",\"digest\":\"" digest "\",\"size\":" size "}"
#define CONFIG DESC(OCI "config.v1+json", A, "7")
#define LAYER  DESC(OCI "layer.v1.tar+gzip", B, "9")

static int parse(const char *text, struct manifest *ret, struct err *err)
{
	return manifest_parse(text, strlen(text), "it", ret, err);
}

static void test_oci(void **state)
{
	AUTO_MANIFEST struct manifest manifest = {0};
	AUTO_ERR struct err err = {0};

	assert_int_equal(parse("{\"schemaVersion\":2,\"config\":" CONFIG ",\"layers\":[" LAYER ","
			       "{\"size\":0,\"digest\":\"" A "\",\"mediaType\":\"x/y\"}]}",
				 &manifest, &err),
		0);
	assert_int_equal(manifest.family, MEDIA_OCI);
	assert_string_equal(manifest.config.digest, A);
	assert_int_equal(manifest.config.size, 7);
	assert_int_equal(manifest.n_layers, 2);
	assert_string_equal(manifest.layers[0].media_type, OCI "layer.v1.tar+gzip");
	assert_string_equal(manifest.layers[0].digest, B);
	assert_int_equal(manifest.layers[0].size, 9);
	assert_string_equal(manifest.layers[1].media_type, "x/y");
}

static void test_docker(void **state)
{
	AUTO_MANIFEST struct manifest manifest = {0};
	AUTO_ERR struct err err = {0};

	assert_int_equal(parse("{\"schemaVersion\":2,\"mediaType\":\"" DOCK
			       "distribution.manifest.v2+json\","
			       "\"config\":" DESC(DOCK "container.image.v1+json", A,
				       "9007199254740993") ","
							   "\"layers\":[]}",
				 &manifest, &err),
		0);
	assert_int_equal(manifest.family, MEDIA_DOCKER);
	assert_int_equal(manifest.n_layers, 0);
	assert_true(manifest.config.size == UINT64_C(9007199254740993));
}

static void test_refused(void **state)
{
	static const struct {
		const char *text;
		enum err_id id;
		const char *says;
	} rows[] = {
		{"", E_DATA, "not valid JSON"},
		{"[]", E_IMAGE, "schema version"},
		{"{}", E_IMAGE, "schema version"},
		{"{\"schemaVersion\":1}", E_IMAGE_KIND, "schema version 1"},
		{"{\"schemaVersion\":\"2\"}", E_IMAGE, "schema version"},
		{"{\"schemaVersion\":2}", E_IMAGE,
			"the configuration in it has no valid media type"},
		{"{\"schemaVersion\":2,\"mediaType\":7}", E_IMAGE_KIND, "not the manifest"},
		{"{\"schemaVersion\":2,\"mediaType\":\"" OCI "index.v1+json\"}", E_IMAGE_KIND,
			"not the manifest"},
		{"{\"schemaVersion\":2,\"config\":" CONFIG "}", E_IMAGE, "no list of layers"},
		{"{\"schemaVersion\":2,\"config\":" CONFIG ",\"layers\":{}}", E_IMAGE,
			"no list of layers"},
		{"{\"schemaVersion\":2,\"config\":" CONFIG ",\"layers\":[7]}", E_IMAGE,
			"layer 1 in it has no valid media type"},
		{"{\"schemaVersion\":2,\"config\":" DESC(
			 "application/vnd.cncf.helm.config.v1+json", A, "7") ",\"layers\":[]}",
			E_IMAGE_KIND, "not a container image"},
		{"{\"schemaVersion\":2,\"config\":" DESC(
			 OCI "config.v1+json", "sha512:" HEX_A HEX_B, "7") ",\"layers\":[]}",
			E_IMAGE, "no valid sha256 digest"},
		{"{\"schemaVersion\":2,\"config\":" DESC(
			 OCI "config.v1+json", "sha256:../../../etc/passwd", "7") ",\"layers\":[]}",
			E_IMAGE, "no valid sha256 digest"},
		{"{\"schemaVersion\":2,\"config\":" DESC(OCI "config.v1+json", A, "-1") "}",
			E_IMAGE, "no valid size"},
		{"{\"schemaVersion\":2,\"config\":" DESC(OCI "config.v1+json", A, "1.5") "}",
			E_IMAGE, "no valid size"},
		{"{\"schemaVersion\":2,\"config\":" DESC(
			 OCI "config.v1+json", A, "9223372036854775808") "}",
			E_IMAGE, "no valid size"},
		{"{\"schemaVersion\":2,\"config\":" DESC("a b", A, "1") "}", E_IMAGE,
			"no valid media type"},
		{"{\"schemaVersion\":2,\"config\":" DESC(OCI OCI OCI OCI, A, "1") "}", E_IMAGE,
			"no valid media type"},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		AUTO_MANIFEST struct manifest manifest = {0};
		AUTO_ERR struct err err = {0};
		if (parse(rows[i].text, &manifest, &err) == 0)
			fail_msg("%s was taken", rows[i].text);
		if (err.id != rows[i].id || !strstr(err.message, rows[i].says))
			fail_msg("%s: %s", rows[i].text, err.message);
	}
}

static void test_too_many_layers(void **state)
{
	for (int n = MANIFEST_LAYERS_MAX; n <= MANIFEST_LAYERS_MAX + 1; n++) {
		AUTO_MANIFEST struct manifest manifest = {0};
		AUTO_ERR struct err err = {0};
		AUTO_BUF struct buf text;
		buf_init(&text, 1 << 20);
		buf_adds(&text, "{\"schemaVersion\":2,\"config\":" CONFIG ",\"layers\":[" LAYER);
		for (int i = 1; i < n; i++)
			buf_adds(&text, "," LAYER);
		buf_adds(&text, "]}");
		int r = parse(text.data, &manifest, &err);
		assert_int_equal(r, n > MANIFEST_LAYERS_MAX ? -ERR_CONFIG : 0);
	}
}

static void test_too_large(void **state)
{
	AUTO_FREE char *text = mem_alloc(1, MANIFEST_SIZE_MAX + 1);
	AUTO_MANIFEST struct manifest manifest = {0};
	AUTO_ERR struct err err = {0};

	memset(text, ' ', MANIFEST_SIZE_MAX + 1);
	assert_int_equal(
		manifest_parse(text, MANIFEST_SIZE_MAX + 1, "it", &manifest, &err), -ERR_LIMIT);
}

static void test_media_types(void **state)
{
	assert_true(media_is_index(OCI "index.v1+json"));
	assert_true(media_is_index(DOCK "distribution.manifest.list.v2+json"));
	assert_false(media_is_index(NULL));
	assert_true(media_is_manifest(media_manifest(MEDIA_OCI)));
	assert_true(media_is_manifest(media_manifest(MEDIA_DOCKER)));
	assert_true(media_is_foreign(DOCK "image.rootfs.foreign.diff.tar.gzip"));
	assert_true(media_is_foreign(OCI "layer.nondistributable.v1.tar+zstd"));
	assert_false(media_is_foreign(OCI "layer.v1.tar"));
	assert_null(media_layer(MEDIA_DOCKER, CODEC_ZSTD));
	assert_string_equal(media_layer(MEDIA_OCI, CODEC_ZSTD), OCI "layer.v1.tar+zstd");
	assert_string_equal(
		media_layer_to_oci(DOCK "image.rootfs.diff.tar.gzip"), OCI "layer.v1.tar+gzip");
	assert_string_equal(media_layer_to_oci(DOCK "image.rootfs.foreign.diff.tar.gzip"),
		OCI "layer.nondistributable.v1.tar+gzip");
	assert_string_equal(media_layer_to_oci("x/y"), "x/y");
}

static void test_descriptor(void **state)
{
	struct descriptor d;
	AUTO_BUF struct buf out;

	buf_init(&out, 1000);
	descriptor_of("", 0, "a/b", &d);
	AUTO_JSON struct json *json = descriptor_json(&d);
	json_print(json, &out);
	assert_string_equal(out.data,
		"{\"mediaType\":\"a/b\",\"digest\":\"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934c"
		"a495991b7852b855\",\"size\":0}");
}

/*
 * Indexes
 */

#define ENTRY(digest, platform)                                                                    \
	"{\"mediaType\":\"" OCI "manifest.v1+json\",\"digest\":\"sha256:" digest                   \
	"\",\"size\":5" platform "}"
#define PLATFORM(os, arch, more)                                                                   \
	",\"platform\":{\"os\":\"" os "\",\"architecture\":\"" arch "\"" more "}"
#define VARIANT(v) ",\"variant\":\"" v "\""

/* The last digit of the digest that is picked, or 0. */
static char pick(const char *manifests, const char *platform, struct err *err)
{
	AUTO_FREE char *text = mem_printf("{\"schemaVersion\":2,\"manifests\":[%s]}", manifests);
	struct descriptor d;

	if (index_pick(text, strlen(text), "it", platform, &d, err) < 0)
		return 0;
	return d.digest[strlen(d.digest) - 1];
}

#define H63 "000000000000000000000000000000000000000000000000000000000000000"

static void test_index(void **state)
{
	static const char many[] = ENTRY(H63 "0", PLATFORM("unknown", "unknown", "")) "," ENTRY(
		H63 "1", PLATFORM("linux", "arm", VARIANT("v6"))) "," ENTRY(H63 "2",
		PLATFORM("linux", "arm", VARIANT("v7"))) "," ENTRY(H63 "3",
		PLATFORM("linux", "arm64", VARIANT("v8"))) "," ENTRY(H63 "4",
		PLATFORM("linux", "amd64", VARIANT("v3"))) "," ENTRY(H63 "5",
		PLATFORM("linux", "amd64", "")) "," ENTRY(H63 "6",
		PLATFORM("windows", "amd64", ""));
	static const struct {
		const char *platform;
		char want;
	} rows[] = {
		{"linux/amd64", '5'},
		{"linux/amd64/v3", '4'},
		{"linux/arm64", '3'},
		{"linux/arm64/v8", '3'},
		{"linux/arm", '1'},
		{"linux/arm/v7", '2'},
		{"windows/amd64", '6'},
		{"linux/arm/v5", 0},
		{"linux/riscv64", 0},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		AUTO_ERR struct err err = {0};
		char got = pick(many, rows[i].platform, &err);
		if (got != rows[i].want)
			fail_msg("%s gives %c", rows[i].platform, got ? got : '-');
		if (!got)
			assert_int_equal(err.id, E_IMAGE_PLATFORM);
	}
}

static void test_index_evidence(void **state)
{
	AUTO_ERR struct err err = {0};

	assert_int_equal(pick(ENTRY(HEX_A, PLATFORM("linux", "arm", VARIANT("v7"))) "," ENTRY(
				      HEX_A, PLATFORM("linux", "\\u001b[2J", "")),
				 "linux/amd64", &err),
		0);
	assert_string_equal(err.message, "it has no image for linux/amd64");
	assert_int_equal(err.n_evidence, 1);
	assert_string_equal(err.evidence[0], "it has linux/arm/v7, linux/\\x1b[2J");
}

static void test_index_without_platforms(void **state)
{
	AUTO_ERR struct err err = {0};

	assert_int_equal(pick(ENTRY(HEX_A, ""), "linux/amd64", &err), 'a');
	assert_int_equal(pick(ENTRY(HEX_A, "") "," ENTRY(HEX_B, ""), "linux/amd64", &err), 0);
	assert_int_equal(pick("", "linux/amd64", &err), 0);
	assert_int_equal(err.n_evidence, 0);
	assert_int_equal(pick("7", "linux/amd64", &err), 0);
	assert_int_equal(pick("{}", "linux/amd64", &err), 0);
	assert_int_equal(err.id, E_IMAGE);
}

static void test_platform_words(void **state)
{
	static const char *const bad[] = {"", "linux", "linux/", "/amd64", "linux/amd64/",
		"linux//v7", "linux/arm/v7/x", "linux/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};
	struct platform platform;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(platform_parse(bad[i], &platform, NULL), -ERR_CONFIG);
	assert_int_equal(platform_parse("linux/arm/v7", &platform, NULL), 0);
	assert_string_equal(platform.os, "linux");
	assert_string_equal(platform.architecture, "arm");
	assert_string_equal(platform.variant, "v7");
}

static void test_shape(void **state)
{
	static const struct {
		const char *text, *want;
	} rows[] = {
		{"{\"manifests\":[]}", OCI "index.v1+json"},
		{"{\"layers\":[]}", OCI "manifest.v1+json"},
		{"{\"layers\":[],\"mediaType\":\"" DOCK "distribution.manifest.v2+json\"}",
			DOCK "distribution.manifest.v2+json"},
		{"{\"layers\":[],\"mediaType\":\"text/plain\"}", NULL},
		{"{}", NULL},
		{"[]", NULL},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		AUTO_JSON struct json *json = NULL;
		assert_int_equal(
			json_parse(rows[i].text, strlen(rows[i].text), 1000, "it", &json, NULL), 0);
		const char *got = manifest_media_type(json);
		assert_true(rows[i].want ? got && strcmp(got, rows[i].want) == 0 : !got);
	}
}

/*
 * Configurations
 */

static struct json *json_of(const char *text)
{
	AUTO_ERR struct err err = {0};
	struct json *json = NULL;

	if (json_parse(text, strlen(text), 1 << 20, "it", &json, &err) < 0)
		fail_msg("%s: %s", text, err.message);
	return json;
}

static void assert_config(const struct oci_config_spec *spec, const char *want)
{
	AUTO_JSON struct json *json = NULL;
	AUTO_ERR struct err err = {0};
	AUTO_BUF struct buf out;

	buf_init(&out, 1 << 20);
	assert_int_equal(oci_config_make(spec, &json, &err), 0);
	json_print(json, &out);
	assert_string_equal(out.data, want);
}

static const struct image_layer own_layers[] = {
	{.role = IMAGE_ROLE_FULL, .diff_id = A},
	{.role = IMAGE_ROLE_DELTA, .diff_id = B},
};

#define TIME "1980-01-02T00:00:00.000Z"

static void test_config_scratch(void **state)
{
	AUTO_STRV struct strv labels = {0};

	strv_add(&labels, "org.opencontainers.image.revision=abc");
	strv_add(&labels, "a=b=c");
	strv_add(&labels, "alone");
	assert_config(&(struct oci_config_spec){.platform = "linux/arm/v7",
			      .workdir = "/dlrun/src",
			      .snapshot_id = A,
			      .labels = &labels,
			      .time_s = 315619200,
			      .layers = own_layers,
			      .n_layers = 2},
		"{\"created\":\"" TIME
		"\",\"architecture\":\"arm\",\"os\":\"linux\",\"variant\":\"v7\","
		"\"config\":{\"WorkingDir\":\"/dlrun/src\",\"Labels\":{"
		"\"org.opencontainers.image.revision\":\"abc\",\"a\":\"b=c\",\"alone\":\"\","
		"\"org.opencontainers.image.created\":\"" TIME "\",\"dev.dlrun.snapshot\":\"" A
		"\"}},"
		"\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[\"" A "\",\"" B "\"]},"
		"\"history\":[{\"created\":\"" TIME "\",\"created_by\":\"dlrun full\"},"
		"{\"created\":\"" TIME "\",\"created_by\":\"dlrun delta\"}]}");
}

static void test_config_base(void **state)
{
	AUTO_JSON struct json *base = json_of(
		"{\"x.unknown\":[12345678901234567890,1e400,\"\\u00e4\",null],\"created\":\"old\","
		"\"config\":{\"User\":\"1000:7\",\"WorkingDir\":\"/w\",\"Labels\":{"
		"\"org.opencontainers.image.source\":\"base\",\"keep\":\"me\","
		"\"dev.dlrun.snapshot\":\"old\"},\"Env\":[\"PATH=/bin\"]},"
		"\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[\"" B "\"]},"
		"\"history\":[{\"created_by\":\"x\"},{\"empty_layer\":true}],\"os\":\"\"}");

	assert_config(&(struct oci_config_spec){.base = base,
			      .n_base_layers = 1,
			      .platform = "linux/arm/v7",
			      .workdir = "/src",
			      .snapshot_id = A,
			      .layers = own_layers,
			      .n_layers = 1},
		"{\"x.unknown\":[12345678901234567890,1e400,\"\xc3\xa4\",null],"
		"\"created\":\"1970-01-01T00:00:00.000Z\","
		"\"config\":{\"User\":\"1000:7\",\"WorkingDir\":\"/src\",\"Labels\":{"
		"\"keep\":\"me\",\"dev.dlrun.snapshot\":\"" A "\","
		"\"org.opencontainers.image.created\":\"1970-01-01T00:00:00.000Z\"},"
		"\"Env\":[\"PATH=/bin\"]},"
		"\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[\"" B "\",\"" A "\"]},"
		"\"history\":[{\"created_by\":\"x\"},{\"empty_layer\":true},"
		"{\"created\":\"1970-01-01T00:00:00.000Z\",\"created_by\":\"dlrun full\"}],"
		"\"os\":\"linux\",\"architecture\":\"arm\",\"variant\":\"v7\"}");
}

/* A history that does not tell of every layer would be wrong for all with ours added. */
static void test_config_odd_history(void **state)
{
	static const char *const bases[] = {
		"{\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[\"" B "\"]},\"config\":null}",
		"{\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[\"" B "\"]},\"history\":[{},{}],"
		"\"config\":{\"Labels\":null}}",
		"{\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[\"" B "\"]},\"history\":7,"
		"\"config\":{\"Labels\":[]}}",
	};

	for (size_t i = 0; i < sizeof(bases) / sizeof(bases[0]); i++) {
		AUTO_JSON struct json *base = json_of(bases[i]);
		AUTO_JSON struct json *json = NULL;
		struct oci_config_spec spec = {.base = base,
			.n_base_layers = 1,
			.platform = "linux/amd64",
			.workdir = "/src",
			.snapshot_id = A,
			.layers = own_layers,
			.n_layers = 1};
		assert_int_equal(oci_config_make(&spec, &json, NULL), 0);
		assert_null(json_get(json, "history"));
		assert_string_equal(oci_config_workdir(json), "/src");
		assert_string_equal(
			json_get_str(json_get(json_get(json, "config"), "Labels"), LABEL_SNAPSHOT),
			A);
	}
}

static void test_config_diff_ids(void **state)
{
	static const struct {
		const char *text;
		int want;
	} rows[] = {
		{"{\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[\"" A "\",\"" B "\"]}}", 0},
		{"{\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[\"" A "\"]}}", -ERR_REMOTE},
		{"{\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[\"" A "\",7]}}", -ERR_REMOTE},
		{"{\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[\"" A "\",\"sha256:\"]}}",
			-ERR_REMOTE},
		{"{\"rootfs\":{\"type\":\"other\",\"diff_ids\":[\"" A "\",\"" B "\"]}}",
			-ERR_REMOTE},
		{"{\"rootfs\":[]}", -ERR_REMOTE},
		{"7", -ERR_REMOTE},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		AUTO_JSON struct json *json = json_of(rows[i].text);
		const char *ids[2];
		assert_int_equal(oci_config_diff_ids(json, 2, "it", ids, NULL), rows[i].want);
		if (rows[i].want == 0)
			assert_string_equal(ids[1], B);
	}
}

static void test_config_strip(void **state)
{
	AUTO_JSON struct json *json = json_of(
		"{\"rootfs\":{\"diff_ids\":[\"" A "\",\"" B "\"],\"type\":\"layers\"},"
		"\"history\":[{\"empty_layer\":true},{\"created_by\":\"a\"},{\"created_by\":\"b\"}]}");
	AUTO_BUF struct buf out;

	buf_init(&out, 1000);
	oci_config_strip(json, 2, 1);
	json_print(json, &out);
	assert_string_equal(out.data,
		"{\"rootfs\":{\"diff_ids\":[\"" A "\"],\"type\":\"layers\"},"
		"\"history\":[{\"empty_layer\":true},{\"created_by\":\"a\"}]}");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_oci),
		cmocka_unit_test(test_docker),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_too_many_layers),
		cmocka_unit_test(test_too_large),
		cmocka_unit_test(test_media_types),
		cmocka_unit_test(test_descriptor),
		cmocka_unit_test(test_index),
		cmocka_unit_test(test_index_evidence),
		cmocka_unit_test(test_index_without_platforms),
		cmocka_unit_test(test_platform_words),
		cmocka_unit_test(test_shape),
		cmocka_unit_test(test_config_scratch),
		cmocka_unit_test(test_config_base),
		cmocka_unit_test(test_config_odd_history),
		cmocka_unit_test(test_config_diff_ids),
		cmocka_unit_test(test_config_strip),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
