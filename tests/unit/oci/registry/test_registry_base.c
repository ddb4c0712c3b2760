/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "oci/image/image.h"
#include "oci/model/manifest.h"
#include "tests/unit/registryfix.h"

#define OCI_MANIFEST    "application/vnd.oci.image.manifest.v1+json"
#define OCI_INDEX       "application/vnd.oci.image.index.v1+json"
#define OCI_CONFIG      "application/vnd.oci.image.config.v1+json"
#define DOCKER_MANIFEST "application/vnd.docker.distribution.manifest.v2+json"
#define DOCKER_CONFIG   "application/vnd.docker.container.image.v1+json"
#define DOCKER_LIST     "application/vnd.docker.distribution.manifest.list.v2+json"
#define PLATFORM        "linux/amd64"
#define TAG_PATH        "/v2/base/y/manifests/1"

/* What the server has, by path. */
struct item {
	char path[160];
	char type[100];
	char headers[200]; /* besides */
	char *body;
	size_t len;
	char digest[DIGEST_TEXT_SIZE];
	int head_status; /* of HEAD; 0: 200 */
	int status;      /* 0: 200 */
};

static struct item items[16];
static size_t n_items;

static bool response_item(struct fix_conn *conn)
{
	const struct item *found = NULL;
	bool head = strcmp(conn->method, "HEAD") == 0;

	for (size_t i = 0; i < n_items; i++)
		if (strcmp(items[i].path, conn->path) == 0)
			found = &items[i];
	if (!found)
		return fix_print(conn, "HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n");
	int status = head && found->head_status ? found->head_status
		     : found->status            ? found->status
						: 200;
	AUTO_FREE char *top = mem_printf("HTTP/1.1 %d X\r\nContent-Length: %zu\r\n%s%s%s%s\r\n",
		status, found->len, *found->type ? "Content-Type: " : "", found->type,
		*found->type ? "\r\n" : "", found->headers);
	return fix_print(conn, top) && (head || fix_send(conn, found->body, found->len));
}

static struct item *add(const char *path, const char *type, const void *body, size_t len)
{
	struct item *item = &items[n_items++];
	struct descriptor blob;

	assert_true(n_items <= ARRAY_LEN(items));
	*item = (struct item){.len = len};
	item->body = mem_alloc(1, len + 1);
	memcpy(item->body, body, len);
	descriptor_of(body, len, "a/b", &blob);
	memcpy(item->digest, blob.digest, sizeof(blob.digest));
	snprintf(item->path, sizeof(item->path), "%s%s", path,
		str_ends(path, "/") ? item->digest : "");
	snprintf(item->type, sizeof(item->type), "%s", type);
	return item;
}

static struct item *add_text(const char *path, const char *type, const char *text)
{
	return add(path, type, text, strlen(text));
}

static void forget_items(void)
{
	for (size_t i = 0; i < n_items; i++)
		free(items[i].body);
	n_items = 0;
}

/* A configuration, and a manifest of one layer over it, by tag (NULL: only by digest). */
static struct item *add_image(const char *tag_path, bool docker, const char *architecture)
{
	AUTO_FREE char *config_text = mem_printf(
		"{\"os\":\"linux\",\"architecture\":\"%s\",\"rootfs\":{\"type\":\"layers\","
		"\"diff_ids\":[\"sha256:%064d\"]}}",
		architecture, 1);
	const struct item *config = add_text("/v2/base/y/blobs/", "", config_text);
	AUTO_FREE char *text = mem_printf(
		"{\"schemaVersion\":2,\"mediaType\":\"%s\",\"config\":{\"mediaType\":\"%s\","
		"\"digest\":\"%s\",\"size\":%zu},\"layers\":[{\"mediaType\":\"application/"
		"vnd.oci.image.layer.v1.tar+gzip\",\"digest\":\"sha256:%064d\",\"size\":9}]}",
		docker ? DOCKER_MANIFEST : OCI_MANIFEST, docker ? DOCKER_CONFIG : OCI_CONFIG,
		config->digest, config->len, 2);
	const char *type = docker ? DOCKER_MANIFEST : OCI_MANIFEST;
	struct item *manifest = add_text("/v2/base/y/manifests/", type, text);
	return tag_path ? add_text(tag_path, type, text) : manifest;
}

/* An index of one manifest or index for the platform. */
static struct item *add_index(
	const char *tag_path, const char *type, const struct item *to, const char *architecture)
{
	AUTO_FREE char *text = mem_printf(
		"{\"schemaVersion\":2,\"mediaType\":\"%s\",\"manifests\":[{\"mediaType\":\"%s\","
		"\"digest\":\"%s\",\"size\":%zu,\"platform\":{\"os\":\"linux\","
		"\"architecture\":\"%s\"}}]}",
		type, to->type, to->digest, to->len, architecture);

	if (tag_path)
		add_text(tag_path, type, text);
	return add_text("/v2/base/y/manifests/", type, text);
}

struct observe {
	struct runtime runtime;
	struct layout *cache;
	struct registry_base *base;
	int n_found, n_layers_known;
	char digest[DIGEST_TEXT_SIZE];
	struct err error;
	bool free_in_found;
};

static int found(void *ctx, const char *digest, struct err *error, struct err *err)
{
	struct observe *observe = ctx;

	assert_true(!digest == !!error);
	observe->n_found++;
	if (observe->free_in_found)
		registry_base_free(TAKE(observe->base));
	if (digest)
		memcpy(observe->digest, digest, DIGEST_TEXT_SIZE);
	else
		err_move(&observe->error, error);
	return 0;
}

static void poll_init(struct observe *observe)
{
	*observe = (struct observe){.free_in_found = true};
	AUTO_FREE char *dir = mem_printf("%s/cache", tmp);
	n_items = 0;
	runtime_init(&observe->runtime, response_item);
	assert_int_equal(layout_open(dir, true, &observe->cache, NULL), 0);
}

static void poll_done(struct observe *observe)
{
	registry_base_free(observe->base);
	layout_free(observe->cache);
	runtime_done(&observe->runtime);
	err_done(&observe->error);
	forget_items();
	AUTO_FREE char *dir = mem_printf("%s/cache", tmp);
	fs_remove_tree(AT_FDCWD, dir, NULL);
}

static void layers_known(void *ctx, const struct descriptor *layers, size_t n)
{
	struct observe *observe = ctx;

	assert_int_equal(observe->n_found, 0);
	assert_int_equal(n, 1);
	assert_int_equal(layers[0].size, 9);
	observe->n_layers_known++;
}

static struct registry_base *start(
	struct observe *observe, const struct ref *ref, const char *known, const char *older)
{
	const struct registry_base_request request = {
		.ref = ref,
		.known = known,
		.older = older,
		.platform = PLATFORM,
		.cache = observe->cache,
		.layers = layers_known,
		.found = found,
		.ctx = observe,
	};

	return registry_base_start(observe->runtime.registry, &request);
}

static void find_for(
	struct observe *observe, const char *digest, const char *known, const char *older)
{
	AUTO_REF struct ref ref = {.kind = REF_REGISTRY,
		.host = mem_strdup(observe->runtime.host),
		.repo = mem_strdup("base/y"),
		.tag = mem_strdup("1"),
		.digest = mem_strdup(digest)};

	observe->n_found = observe->n_layers_known = 0;
	err_clear(&observe->error);
	*observe->digest = '\0';
	observe->base = start(observe, &ref, known, older);
	runtime_run(&observe->runtime);
	assert_int_equal(observe->n_found, 1);
	registry_base_free(TAKE(observe->base));
}

/* It was found, and what was found can be loaded. */
static void is_found(struct observe *observe, const char *digest)
{
	struct image_base *base = NULL;
	AUTO_ERR struct err err = {0};

	if (err_is_set(&observe->error))
		fail_msg("%s", observe->error.message);
	assert_string_equal(observe->digest, digest);
	if (image_base_load(observe->cache, "x", observe->digest, PLATFORM, &base, &err) < 0)
		fail_msg("%s", err.message);
	assert_int_equal(base->n_layers, 1);
	image_base_free(base);
}

static void is_not_found(const struct observe *observe, enum err_id id, const char *message)
{
	if (observe->error.id != id || !strstr(observe->error.message, message))
		fail_msg("%s: %s", err_info(id)->name,
			observe->error.message ? observe->error.message : "found");
}

static int requests(struct observe *observe)
{
	return atomic_exchange(&observe->runtime.server->n_requests, 0);
}

static void test_tag(void **state)
{
	struct observe observe;

	for (int docker = 0; docker < 2; docker++) {
		poll_init(&observe);
		const struct item *image = add_image(TAG_PATH, docker, "amd64");
		find_for(&observe, NULL, NULL, NULL);
		is_found(&observe, image->digest);
		assert_int_equal(requests(&observe), 2);
		assert_int_equal(observe.n_layers_known, 1);
		assert_true(fix_saw(observe.runtime.server, "\r\naccept: " OCI_INDEX));
		/* What is cached is not asked for, but for what the tag stands for. */
		find_for(&observe, NULL, NULL, NULL);
		is_found(&observe, image->digest);
		assert_int_equal(requests(&observe), 1);
		find_for(&observe, image->digest, NULL, NULL);
		is_found(&observe, image->digest);
		find_for(&observe, NULL, image->digest, NULL);
		is_found(&observe, image->digest);
		assert_int_equal(requests(&observe), 0);
		assert_int_equal(observe.n_layers_known, 0);
		poll_done(&observe);
	}
}

static void test_index(void **state)
{
	static const char *const types[] = {OCI_INDEX, DOCKER_LIST};
	struct observe observe;

	for (size_t i = 0; i < ARRAY_LEN(types); i++) {
		poll_init(&observe);
		const struct item *image = add_image(NULL, i == 1, "amd64");
		const struct item *inner = add_index(NULL, types[i], image, "amd64");
		const struct item *outer = add_index(TAG_PATH, types[i], inner, "amd64");
		observe.free_in_found = false;
		find_for(&observe, NULL, NULL, NULL);
		is_found(&observe, outer->digest);
		assert_int_equal(requests(&observe), 4);
		find_for(&observe, NULL, outer->digest, NULL);
		is_found(&observe, outer->digest);
		assert_int_equal(requests(&observe), 0);
		poll_done(&observe);
	}
}

static void test_index_limits(void **state)
{
	struct observe observe;

	poll_init(&observe);
	const struct item *image = add_image(NULL, false, "amd64");
	const struct item *one = add_index(NULL, OCI_INDEX, image, "amd64");
	const struct item *two = add_index(NULL, OCI_INDEX, one, "amd64");
	add_index(TAG_PATH, OCI_INDEX, two, "amd64");
	find_for(&observe, NULL, NULL, NULL);
	is_not_found(&observe, E_IMAGE, "index in an index in an index");
	forget_items();
	image = add_image(NULL, false, "arm64");
	add_index(TAG_PATH, OCI_INDEX, image, "arm64");
	find_for(&observe, NULL, NULL, NULL);
	is_not_found(&observe, E_IMAGE_PLATFORM, "has no image for linux/amd64");
	assert_string_equal(observe.error.evidence[0], "it has linux/arm64");
	poll_done(&observe);
}

/* Whether a tag has moved is asked by HEAD, which counts as no pull. */
static void test_older(void **state)
{
	struct observe observe;

	poll_init(&observe);
	struct item *image = add_image(TAG_PATH, false, "amd64");
	snprintf(image->headers, sizeof(image->headers), "Docker-Content-Digest: %s\r\n",
		image->digest);
	AUTO_FREE char *older = mem_strdup(image->digest);
	/* Not in the cache yet. */
	find_for(&observe, NULL, NULL, older);
	is_found(&observe, older);
	assert_int_equal(fix_count(observe.runtime.server, "HEAD "), 0);
	requests(&observe);
	find_for(&observe, NULL, NULL, older);
	is_found(&observe, older);
	assert_int_equal(requests(&observe), 1);
	assert_int_equal(fix_count(observe.runtime.server, "HEAD "), 1);
	/* HEAD is not allowed there. */
	image->head_status = 405;
	find_for(&observe, NULL, NULL, older);
	is_found(&observe, older);
	assert_int_equal(requests(&observe), 2);
	/* It moved. */
	forget_items();
	image = add_image(TAG_PATH, true, "amd64");
	snprintf(image->headers, sizeof(image->headers), "Docker-Content-Digest: %s\r\n",
		image->digest);
	find_for(&observe, NULL, NULL, older);
	is_found(&observe, image->digest);
	assert_string_not_equal(observe.digest, older);
	/* The configuration is the same. */
	assert_int_equal(requests(&observe), 2);
	poll_done(&observe);
}

/* What was known lately is gone, there and here: the tag tells. */
static void test_stale(void **state)
{
	static const char gone[] =
		"sha256:0000000000000000000000000000000000000000000000000000000000000001";
	struct observe observe;

	poll_init(&observe);
	const struct item *image = add_image(TAG_PATH, false, "amd64");
	find_for(&observe, NULL, gone, gone);
	is_found(&observe, image->digest);
	find_for(&observe, gone, NULL, NULL);
	is_not_found(&observe, E_IMAGE_BASE, gone);
	find_for(&observe, NULL, "nonsense", "nonsense");
	is_found(&observe, image->digest);
	poll_done(&observe);
}

static void test_not_there(void **state)
{
	struct observe observe;

	poll_init(&observe);
	find_for(&observe, NULL, NULL, NULL);
	is_not_found(&observe, E_IMAGE_BASE, "/base/y:1");
	assert_non_null(strstr(observe.error.hint, "docker login 127.0.0.1:"));
	/* Without its configuration. */
	struct item *image = add_image(TAG_PATH, false, "amd64");
	items[0].status = 404;
	find_for(&observe, NULL, NULL, NULL);
	is_not_found(&observe, E_IMAGE_BASE, "/base/y:1");
	items[0].status = 403;
	find_for(&observe, NULL, NULL, NULL);
	is_not_found(&observe, E_REGISTRY_DENIED, "may not pull from 127.0.0.1");
	items[0].status = 0;
	image->status = 500;
	find_for(&observe, items[1].digest, NULL, NULL);
	is_found(&observe, items[1].digest);
	poll_done(&observe);
}

/* What the tag answers, and what comes of it. */
struct bad {
	const char *type, *body, *headers;
	enum err_id id;
	const char *message;
};

static const struct bad bads[] = {
	{"text/html", "<html><title>Login</title>", "", E_REGISTRY_RESPONSE,
		"sends something else than the manifest of"},
	{OCI_MANIFEST, "", "", E_REGISTRY_RESPONSE, "sends nothing instead of"},
	{OCI_MANIFEST, "{", "", E_REGISTRY_RESPONSE, "something else than the manifest"},
	{OCI_MANIFEST, "{}", "", E_IMAGE_KIND, "is not an image"},
	{OCI_MANIFEST, "[]", "", E_IMAGE_KIND, "is not an image"},
	{"application/vnd.docker.distribution.manifest.v1+prettyjws", "{\"schemaVersion\":1}", "",
		E_IMAGE_KIND, "schema 1"},
	{"application/json", "{\"schemaVersion\":1,\"fsLayers\":[]}", "", E_IMAGE_KIND, "schema 1"},
	{OCI_MANIFEST, "{\"schemaVersion\":2,\"layers\":[]}", "Content-Encoding: gzip\r\n",
		E_REGISTRY_RESPONSE, "compressed"},
	{OCI_MANIFEST, "{\"schemaVersion\":2,\"layers\":[]}",
		"Docker-Content-Digest: sha256:"
		"0000000000000000000000000000000000000000000000000000000000000000\r\n",
		E_REGISTRY_RESPONSE, "sends another digest than that of"},
	{OCI_INDEX, "{\"schemaVersion\":2,\"mediaType\":\"" OCI_MANIFEST "\",\"layers\":[]}", "",
		E_REGISTRY_RESPONSE, "sends another type than that of"},
	{OCI_INDEX, "{\"schemaVersion\":2,\"layers\":[]}", "", E_REGISTRY_RESPONSE,
		"sends another type than that of"},
	{OCI_MANIFEST, "{\"schemaVersion\":2,\"manifests\":[]}", "", E_REGISTRY_RESPONSE,
		"sends another type than that of"},
	{OCI_MANIFEST, "{\"schemaVersion\":2,\"manifests\":[],\"layers\":[]}", "", E_IMAGE,
		"an index and an image at once"},
	{OCI_MANIFEST, "{\"schemaVersion\":2,\"mediaType\":\"text/plain\"}", "", E_IMAGE_KIND,
		"is not an image"},
	{OCI_MANIFEST, "{\"schemaVersion\":2,\"layers\":[]}", "", E_IMAGE, "media type"},
	{"", "{\"schemaVersion\":1,\"fsLayers\":[]}", "", E_IMAGE_KIND, "schema 1"},
	{"", "{\"schemaVersion\":3,\"layers\":[]}", "", E_IMAGE, "schema version 2"},
};

static void test_bad(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(bads); i++) {
		struct observe observe;

		poll_init(&observe);
		struct item *item = add_text(TAG_PATH, bads[i].type, bads[i].body);
		snprintf(item->headers, sizeof(item->headers), "%s", bads[i].headers);
		find_for(&observe, NULL, NULL, NULL);
		is_not_found(&observe, bads[i].id, bads[i].message);
		assert_non_null(strstr(observe.error.message, "/base/y:1"));
		assert_int_equal(requests(&observe), 1);
		poll_done(&observe);
	}
}

/* Other bytes than those of the digest, in a manifest and in a configuration. */
static void test_wrong_bytes(void **state)
{
	struct observe observe;

	poll_init(&observe);
	const struct item *image = add_image(TAG_PATH, false, "amd64");
	items[0].body[0] = ' ';
	find_for(&observe, NULL, NULL, NULL);
	is_not_found(&observe, E_REGISTRY_RESPONSE, "sends other bytes than those of");
	assert_non_null(strstr(observe.error.evidence[0], items[0].digest));
	items[0].body[0] = '{';
	items[0].len--;
	find_for(&observe, NULL, NULL, NULL);
	is_not_found(&observe, E_REGISTRY_RESPONSE, "sends other bytes than those of");
	items[0].len++;
	items[1].body[5] ^= 1;
	find_for(&observe, items[1].digest, NULL, NULL);
	is_found(&observe, image->digest);
	poll_done(&observe);
	poll_init(&observe);
	add_image(TAG_PATH, false, "amd64");
	items[1].body[5] ^= 1;
	find_for(&observe, items[1].digest, NULL, NULL);
	is_not_found(&observe, E_REGISTRY_RESPONSE, "sends other bytes than those of");
	poll_done(&observe);
}

/* One that says in a descriptor that it is too large is not asked for. */
static void check_large(const char *type, const char *text, const char *message)
{
	struct observe observe;

	poll_init(&observe);
	add_text(TAG_PATH, type, text);
	find_for(&observe, NULL, NULL, NULL);
	is_not_found(&observe, E_DATA_LIMIT, message);
	assert_int_equal(requests(&observe), 1);
	poll_done(&observe);
}

static void test_large(void **state)
{
	AUTO_FREE char *body = mem_alloc(1, MANIFEST_SIZE_MAX + 1);
	struct observe observe;

	memset(body, ' ', MANIFEST_SIZE_MAX + 1);
	poll_init(&observe);
	add(TAG_PATH, OCI_MANIFEST, body, MANIFEST_SIZE_MAX + 1);
	find_for(&observe, NULL, NULL, NULL);
	is_not_found(&observe, E_HTTP_LIMIT, "registry 127.0.0.1");
	poll_done(&observe);
	AUTO_FREE char *manifest =
		mem_printf("{\"schemaVersion\":2,\"config\":{\"mediaType\":\"" OCI_CONFIG
			   "\",\"digest\":\"sha256:%064d\",\"size\":%d},\"layers\":[]}",
			1, IMAGE_CONFIG_MAX + 1);
	check_large(OCI_MANIFEST, manifest, "is larger than 8.0 MiB");
	AUTO_FREE char *index = mem_printf(
		"{\"schemaVersion\":2,\"manifests\":[{\"mediaType\":\"" OCI_MANIFEST
		"\",\"digest\":\"sha256:%064d\",\"size\":%d,\"platform\":{\"os\":\"linux\","
		"\"architecture\":\"amd64\"}}]}",
		1, MANIFEST_SIZE_MAX + 1);
	check_large(OCI_INDEX, index, "is larger than 4.0 MiB");
}

/* The index says another size than the manifest has: fetched, or cached already. */
static void test_wrong_size(void **state)
{
	struct observe observe;

	poll_init(&observe);
	struct item *image = add_image(NULL, false, "amd64");
	image->len++;
	const struct item *index = add_index(TAG_PATH, OCI_INDEX, image, "amd64");
	image->len--;
	find_for(&observe, NULL, NULL, NULL);
	is_not_found(&observe, E_REGISTRY_RESPONSE, "wrong size");
	find_for(&observe, image->digest, NULL, NULL);
	is_found(&observe, image->digest);
	find_for(&observe, index->digest, NULL, NULL);
	is_not_found(&observe, E_IMAGE, "bytes, not");
	poll_done(&observe);
}

/* Damaged blobs of the cache are fetched anew. */
static void test_damaged(void **state)
{
	struct observe observe;

	poll_init(&observe);
	const struct item *image = add_image(TAG_PATH, false, "amd64");
	find_for(&observe, NULL, NULL, NULL);
	is_found(&observe, image->digest);
	requests(&observe);
	for (size_t i = 0; i < 2; i++) {
		AUTO_FREE char *path = mem_printf(
			"%s/cache/blobs/sha256/%s", tmp, items[i].digest + strlen("sha256:"));
		AUTO_FREE char *bad = mem_dup(items[i].body, items[i].len);
		bad[7] ^= 1;
		assert_int_equal(fs_replace(path, bad, items[i].len, 0600, FS_SYNC_NONE, NULL), 0);
		find_for(&observe, NULL, image->digest, NULL);
		is_found(&observe, image->digest);
		assert_int_equal(requests(&observe), 1);
	}
	poll_done(&observe);
}

static void test_give_up(void **state)
{
	AUTO_REF struct ref ref = {.kind = REF_REGISTRY, .repo = mem_strdup("base/y")};
	struct observe observe;

	poll_init(&observe);
	ref.host = mem_strdup(observe.runtime.host);
	for (int i = 0; i < 2; i++) {
		struct registry_base *base = start(&observe, &ref, NULL, NULL);
		registry_base_free(base);
	}
	registry_base_free(NULL);
	runtime_run(&observe.runtime);
	assert_int_equal(observe.n_found, 0);
	poll_done(&observe);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_tag),
		cmocka_unit_test(test_index),
		cmocka_unit_test(test_index_limits),
		cmocka_unit_test(test_older),
		cmocka_unit_test(test_stale),
		cmocka_unit_test(test_not_there),
		cmocka_unit_test(test_bad),
		cmocka_unit_test(test_wrong_bytes),
		cmocka_unit_test(test_large),
		cmocka_unit_test(test_wrong_size),
		cmocka_unit_test(test_damaged),
		cmocka_unit_test(test_give_up),
	};

	return cmocka_run_group_tests(tests, make_tmp, remove_tmp);
}
