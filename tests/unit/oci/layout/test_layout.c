/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/data/json.h"
#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "oci/layout/layout.h"
#include "oci/model/manifest.h"

static char root[256];

static int make_root(void **state)
{
	const char *tmp = getenv("TMPDIR");

	snprintf(root, sizeof(root), "%s/dlrun-test-XXXXXX", str_empty(tmp) ? "/tmp" : tmp);
	return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
	return fs_remove_tree(AT_FDCWD, root, NULL);
}

/* Valid until the eighth call from now. */
static const char *in_root(const char *format, ...) __attribute__((format(printf, 1, 2)));
static const char *in_root(const char *format, ...)
{
	static char paths[8][1000];
	static int next;
	char *path = paths[next++ % 8];
	va_list args;

	int n = snprintf(path, sizeof(paths[0]), "%s/", root);
	va_start(args, format);
	vsnprintf(path + n, sizeof(paths[0]) - (size_t)n, format, args);
	va_end(args);
	return path;
}

/* Every sync of this program comes by here. */
static int n_syncs;

int fsync(int fd)
{
	n_syncs++;
	return fdatasync(fd);
}

#define ok(call)                                                                                   \
	do {                                                                                       \
		AUTO_ERR struct err err_ = {0};                                                    \
		struct err *error = &err_;                                                         \
		if ((call) < 0)                                                                    \
			fail_msg("%s: %s", #call, err_.message);                                   \
	} while (0)

static void put_file(const char *path, const char *text)
{
	ok(fs_replace(path, text, strlen(text), 0644, FS_SYNC_NONE, error));
}

static void assert_file(const char *path, const char *want)
{
	AUTO_BUF struct buf buf = {0};

	ok(fs_read(path, 16 << 20, &buf, NULL, error));
	assert_string_equal(buf.data, want);
}

static struct layout *open_layout(const char *name, bool create)
{
	struct layout *layout = NULL;

	ok(layout_open(in_root("%s", name), create, &layout, error));
	return layout;
}

static const char *blob_path(const char *name, const struct descriptor *blob)
{
	return in_root("%s/blobs/sha256/%s", name, blob->digest + 7);
}

/* An image of n layers, each a few bytes that seed makes. */
struct sample {
	struct descriptor manifest, config, layers[3];
	char *text;
};

static void put_bytes(struct sink *sink, const char *text, const char *type, struct descriptor *ret)
{
	descriptor_of(text, strlen(text), type, ret);
	ok(sink->ops->put_bytes(sink, text, ret, error));
}

static void put_stage(struct sink *sink, const char *text, struct descriptor *ret)
{
	AUTO_STAGE struct blob_stage stage = {.fd = -1};

	ok(blob_stage_begin(&stage, sink->ops->stage_dir(sink), error));
	ok(blob_stage_write(&stage, text, strlen(text), error));
	blob_stage_end(&stage, ret);
	snprintf(ret->media_type, sizeof(ret->media_type), "%s", media_layer(MEDIA_OCI, 0));
	ok(sink->ops->put(sink, &stage, ret, error));
}

static void describe_manifest(struct sample *sample, size_t n)
{
	AUTO_JSON struct json *json = json_object();
	struct json *layers = json_array();
	AUTO_BUF struct buf out;

	json_set_int(json, "schemaVersion", 2);
	json_set_str(json, "mediaType", media_manifest(MEDIA_OCI));
	json_set(json, "config", descriptor_json(&sample->config));
	for (size_t i = 0; i < n; i++)
		json_add(layers, descriptor_json(&sample->layers[i]));
	json_set(json, "layers", layers);
	buf_init(&out, 1 << 20);
	json_print(json, &out);
	sample->text = buf_take(&out);
	descriptor_of(
		sample->text, strlen(sample->text), media_manifest(MEDIA_OCI), &sample->manifest);
}

static void put_sample(struct sink *sink, int seed, const char *name, struct sample *ret)
{
	AUTO_FREE char *config = mem_printf("{\"config %d\":1}", seed);
	AUTO_FREE char *layer = mem_printf("layer %d", seed);

	put_stage(sink, layer, &ret->layers[0]);
	put_stage(sink, "shared layer", &ret->layers[1]);
	put_bytes(sink, config, media_config(MEDIA_OCI), &ret->config);
	describe_manifest(ret, 2);
	ok(sink->ops->commit(sink, ret->text, &ret->manifest, name, error));
	free(ret->text);
}

static void add_image(const char *dir, int seed, const char *name, struct sample *ret)
{
	AUTO_LAYOUT struct layout *layout = open_layout(dir, true);
	struct sink *sink = layout_sink(layout);

	put_sample(sink, seed, name, ret);
	sink_free(sink);
}

/*
 * Opening
 */

#define EMPTY_INDEX                                                                                \
	"{\"schemaVersion\":2,\"mediaType\":\"application/vnd.oci.image.index.v1+json\","          \
	"\"manifests\":[]}"

static void test_create(void **state)
{
	struct stat st;

	layout_free(open_layout("new/deep/l", true));
	assert_file(in_root("new/deep/l/oci-layout"), "{\"imageLayoutVersion\":\"1.0.0\"}");
	assert_file(in_root("new/deep/l/index.json"), EMPTY_INDEX);
	assert_int_equal(stat(in_root("new/deep/l/blobs/sha256"), &st), 0);
	layout_free(open_layout("new/deep/l", false));
	layout_free(NULL);
}

/* Killed between any two steps, the next one goes on. */
static void test_interrupted_creation(void **state)
{
	mkdir(in_root("a"), 0755);
	layout_free(open_layout("a", true));
	unlink(in_root("a/index.json"));
	layout_free(open_layout("a", true));
	assert_file(in_root("a/index.json"), EMPTY_INDEX);
	rmdir(in_root("a/blobs/sha256"));
	layout_free(open_layout("a", true));
	assert_int_equal(access(in_root("a/blobs/sha256"), F_OK), 0);
	put_file(in_root("a/oci-layout"), "");
	layout_free(open_layout("a", true));
	assert_file(in_root("a/oci-layout"), "{\"imageLayoutVersion\":\"1.0.0\"}");
}

/* A base that stays in a registry: only what was left out may be missing. */
static void test_apart(void **state)
{
	AUTO_LAYOUT struct layout *layout = open_layout("l", true);
	struct sink *sink = layout_sink_apart(layout);
	struct sample image = {0};
	struct descriptor found;
	AUTO_ERR struct err err = {0};

	put_stage(sink, "own layer", &image.layers[1]);
	put_bytes(sink, "{}", media_config(MEDIA_OCI), &image.config);
	image.layers[0] = image.layers[1];
	memset(image.layers[0].digest + strlen("sha256:"), 'a', 64);
	describe_manifest(&image, 2);
	assert_true(sink->ops->commit(sink, image.text, &image.manifest, "r", &err) < 0);
	assert_int_equal(err.id, E_IMAGE);
	ok(sink->ops->link(sink, -1, &image.layers[0], error));
	ok(sink->ops->commit(sink, image.text, &image.manifest, "r", error));
	sink_free(sink);
	free(image.text);
	ok(layout_resolve(layout, "r", &found, error));
	assert_string_equal(found.digest, image.manifest.digest);
	uint64_t bytes;
	size_t blobs;
	ok(layout_gc(layout, NULL, NULL, &bytes, &blobs, error));
	assert_int_equal(blobs, 0);
}

static void test_kept_version(void **state)
{
	static const char text[] = "{\"imageLayoutVersion\": \"1.0.0\", \"more\": [1, 2, 3]}\n";

	layout_free(open_layout("a", true));
	put_file(in_root("a/oci-layout"), text);
	unlink(in_root("a/index.json"));
	layout_free(open_layout("a", true));
	assert_file(in_root("a/oci-layout"), text);
}

static void assert_refused(const char *name, bool create, enum err_id id, const char *says)
{
	struct layout *layout = NULL;
	AUTO_ERR struct err err = {0};

	assert_true(layout_open(in_root("%s", name), create, &layout, &err) < 0);
	assert_null(layout);
	assert_int_equal(err.id, id);
	if (!strstr(err.message, says))
		fail_msg("%s", err.message);
}

static void test_no_layout(void **state)
{
	assert_refused("none", false, E_IMAGE_BASE, "does not exist");
	assert_int_equal(access(in_root("none"), F_OK), -1);
	mkdir(in_root("dir"), 0755);
	assert_refused("dir", false, E_IMAGE_BASE, "it has no oci-layout");
	put_file(in_root("dir/x"), "mine");
	assert_refused("dir", true, E_IMAGE_BASE, "it holds other files");
	assert_file(in_root("dir/x"), "mine");
	assert_int_equal(access(in_root("dir/oci-layout"), F_OK), -1);
	assert_refused("dir/x", false, E_IO, "oci-layout");
	put_file(in_root("dir/oci-layout"), "{\"imageLayoutVersion\":\"2.0.0\"}");
	assert_refused("dir", true, E_IMAGE_BASE, "version 1.0.0");
	put_file(in_root("dir/oci-layout"), "{");
	assert_refused("dir", true, E_DATA, "oci-layout");
}

/*
 * Blobs
 */

static void test_blobs(void **state)
{
	AUTO_LAYOUT struct layout *layout = open_layout("l", true);
	struct sink *sink = layout_sink(layout);
	struct descriptor blob;
	struct stat before, after;
	AUTO_BUF struct buf buf = {0};
	AUTO_ERR struct err err = {0};
	int fd = -1;

	put_stage(sink, "hello", &blob);
	assert_string_equal(blob.digest,
		"sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824");
	assert_file(blob_path("l", &blob), "hello");
	assert_int_equal(sink->bytes_written, 5);
	assert_int_equal(sink->blobs_written, 1);
	assert_int_equal(sink_has(sink, &blob, &err), 1);

	/* again: nothing is written */
	assert_int_equal(stat(blob_path("l", &blob), &before), 0);
	put_stage(sink, "hello", &blob);
	assert_int_equal(stat(blob_path("l", &blob), &after), 0);
	assert_int_equal(before.st_ino, after.st_ino);
	assert_int_equal(sink->blobs_written, 1);

	/* one of the wrong size is no blob, and is replaced */
	put_file(blob_path("l", &blob), "hell");
	assert_int_equal(sink_has(sink, &blob, &err), 0);
	assert_int_equal(layout_open_blob(layout, &blob, &fd, &err), -ERR_REMOTE);
	assert_non_null(strstr(err.message, "has 4 bytes instead of 5"));
	put_stage(sink, "hello", &blob);
	assert_file(blob_path("l", &blob), "hello");

	/* damaged content is seen when it is read */
	ok(layout_read_blob(layout, &blob, 5, &buf, error));
	assert_string_equal(buf.data, "hello");
	put_file(blob_path("l", &blob), "hallo");
	assert_int_equal(layout_read_blob(layout, &blob, 5, &buf, &err), -ERR_REMOTE);
	assert_non_null(strstr(err.message, "is damaged"));
	assert_string_equal(buf.data, "hello");
	assert_int_equal(layout_read_blob(layout, &blob, 4, &buf, &err), -ERR_LIMIT);
	assert_int_equal(layout_check_blob(layout, &blob, &err), -ERR_REMOTE);
	assert_non_null(strstr(err.message, blob.digest));
	AUTO_FREE char *hint = mem_printf("rm %s", blob_path("l", &blob));
	assert_string_equal(err.hint, hint);

	unlink(blob_path("l", &blob));
	assert_int_equal(layout_open_blob(layout, &blob, &fd, &err), -ERR_NOTFOUND);
	assert_int_equal(err.id, E_IMAGE_BASE);
	sink_free(sink);
}

/* What is damaged goes, what is good or gone stays so. */
static void test_remove_damaged(void **state)
{
	AUTO_LAYOUT struct layout *layout = open_layout("l", true);
	AUTO_ERR struct err err = {0};
	struct descriptor blob;

	for (int i = 0; i < 2; i++) {
		struct sink *sink = layout_sink(layout);
		put_stage(sink, "hello", &blob);
		sink_free(sink);
		assert_int_equal(layout_check_blob(layout, &blob, &err), 0);
		assert_int_equal(layout_remove_damaged(layout, &blob, &err), 0);
		assert_file(blob_path("l", &blob), "hello");
		put_file(blob_path("l", &blob), i == 0 ? "hallo" : "hell");
		assert_int_equal(layout_remove_damaged(layout, &blob, &err), 1);
		assert_int_equal(access(blob_path("l", &blob), F_OK), -1);
		assert_int_equal(layout_check_blob(layout, &blob, &err), -ERR_NOTFOUND);
		assert_int_equal(layout_remove_damaged(layout, &blob, &err), 0);
	}
}

static void test_modes(void **state)
{
	struct sample sample;
	struct stat st;

	mkdir(in_root("private"), 0700);
	mkdir(in_root("private/blobs"), 0700);
	mkdir(in_root("private/blobs/sha256"), 0700);
	put_file(in_root("private/oci-layout"), "");
	add_image("private", 1, "a", &sample);
	assert_int_equal(stat(blob_path("private", &sample.manifest), &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	assert_int_equal(stat(in_root("private/index.json"), &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);

	mode_t mask = umask(022);
	add_image("public", 1, "a", &sample);
	umask(mask);
	assert_int_equal(stat(blob_path("public", &sample.layers[0]), &st), 0);
	assert_int_equal(st.st_mode & 0777, 0644);
	assert_int_equal(stat(in_root("public/index.json"), &st), 0);
	assert_int_equal(st.st_mode & 0777, 0644);
}

/* Others link blobs into a layout; what is no file must not block. */
static void test_odd_files(void **state)
{
	AUTO_LAYOUT struct layout *layout = open_layout("l", true);
	struct descriptor blob;
	AUTO_BUF struct buf buf = {0};
	AUTO_ERR struct err err = {0};

	descriptor_of("hello", 5, "a/b", &blob);
	put_file(in_root("elsewhere"), "hello");
	assert_int_equal(symlink("../../../elsewhere", blob_path("l", &blob)), 0);
	ok(layout_read_blob(layout, &blob, 5, &buf, error));
	unlink(blob_path("l", &blob));
	assert_int_equal(mkfifo(blob_path("l", &blob), 0600), 0);
	assert_int_equal(layout_read_blob(layout, &blob, 5, &buf, &err), -ERR_REMOTE);
	unlink(blob_path("l", &blob));
	assert_int_equal(mkdir(blob_path("l", &blob), 0700), 0);
	assert_int_equal(layout_read_blob(layout, &blob, 5, &buf, &err), -ERR_REMOTE);
}

/*
 * Linking
 */

static int link_from(
	struct sink *sink, const char *path, const struct descriptor *blob, struct err *err)
{
	AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);

	return sink->ops->link(sink, fd, blob, err);
}

static void test_link(void **state)
{
	AUTO_LAYOUT struct layout *layout = open_layout("to", true);
	struct sink *sink = layout_sink(layout);
	AUTO_ERR struct err err = {0};
	struct sample sample;
	struct stat from, to;

	add_image("from", 1, "a", &sample);
	ok(link_from(sink, blob_path("from", &sample.layers[0]), &sample.layers[0], error));
	assert_file(blob_path("to", &sample.layers[0]), "layer 1");
	assert_int_equal(stat(blob_path("from", &sample.layers[0]), &from), 0);
	assert_int_equal(stat(blob_path("to", &sample.layers[0]), &to), 0);
	/* where the system can name an open file, nothing is copied */
	char self[4096];
	bool linked = os_self_path(self, sizeof(self));
	assert_int_equal(from.st_ino == to.st_ino, linked);
	assert_int_equal(sink->blobs_written, linked ? 0 : 1);

	put_file(in_root("short"), "laye");
	assert_int_equal(link_from(sink, in_root("short"), &sample.layers[1], &err), -ERR_REMOTE);
	assert_int_equal(sink->ops->link(sink, -1, &sample.layers[1], &err), -ERR_NOTFOUND);
	assert_int_equal(sink->ops->link(sink, -1, &sample.layers[0], &err), 0);
	sink_free(sink);
}

/* Where no link can be made the content is copied, and checked on the way. */
static void test_copy(void **state)
{
	AUTO_LAYOUT struct layout *layout = open_layout("to", true);
	struct sink *sink = layout_sink(layout);
	AUTO_ERR struct err err = {0};
	struct descriptor blob;
	char other[] = "/dev/shm/dlrun-test-XXXXXX";
	struct stat here, there;
	int fd = mkstemp(other);

	if (fd < 0 || fstat(fd, &there) < 0 || stat(root, &here) < 0 ||
		here.st_dev == there.st_dev) {
		sink_free(sink);
		skip();
	}
	descriptor_of("hello", 5, "a/b", &blob);
	assert_int_equal(write(fd, "hallo", 5), 5);
	assert_int_equal(link_from(sink, other, &blob, &err), -ERR_REMOTE);
	assert_non_null(strstr(err.message, "is damaged"));
	assert_int_equal(access(blob_path("to", &blob), F_OK), -1);
	assert_int_equal(pwrite(fd, "hello", 5, 0), 5);
	ok(link_from(sink, other, &blob, error));
	assert_file(blob_path("to", &blob), "hello");
	assert_int_equal(sink->bytes_written, 5);
	close(fd);
	unlink(other);
	sink_free(sink);
}

/*
 * Names
 */

static void assert_resolves(const char *dir, const char *name, const struct descriptor *want)
{
	AUTO_LAYOUT struct layout *layout = open_layout(dir, false);
	struct descriptor got;

	ok(layout_resolve(layout, name, &got, error));
	assert_string_equal(got.digest, want->digest);
	assert_string_equal(got.media_type, want->media_type);
	assert_int_equal(got.size, want->size);
}

static void test_resolve(void **state)
{
	AUTO_LAYOUT struct layout *layout = open_layout("l", true);
	struct sample a, b;
	struct descriptor got;
	AUTO_ERR struct err err = {0};

	assert_int_equal(layout_resolve(layout, NULL, &got, &err), -ERR_NOTFOUND);
	add_image("l", 1, "one", &a);
	assert_resolves("l", NULL, &a.manifest);
	add_image("l", 1, "again", &a);
	assert_resolves("l", NULL, &a.manifest);
	add_image("l", 2, "t\"w\\o\n", &b);
	assert_resolves("l", "one", &a.manifest);
	assert_resolves("l", "t\"w\\o\n", &b.manifest);
	assert_resolves("l", a.manifest.digest, &a.manifest);
	assert_int_equal(layout_resolve(layout, "none", &got, &err), -ERR_NOTFOUND);
	assert_int_equal(err.id, E_IMAGE_BASE);
	assert_string_equal(err.evidence[0], "it has 3 images: one, again, t\"w\\\\o\\n");
	assert_int_equal(layout_resolve(layout, NULL, &got, &err), -ERR_NOTFOUND);
	assert_non_null(strstr(err.message, "several images"));
	assert_int_equal(layout_resolve(layout, a.config.digest, &got, &err), -ERR_REMOTE);
	assert_int_equal(layout_resolve(layout, a.layers[0].digest, &got, &err), -ERR_IO);
}

/* The index is not needed for digests: it may have been lost. */
static void test_resolve_without_index(void **state)
{
	struct sample a;

	add_image("l", 1, "one", &a);
	put_file(in_root("l/index.json"), EMPTY_INDEX);
	assert_resolves("l", a.manifest.digest, &a.manifest);
}

static size_t index_count(const char *dir)
{
	AUTO_BUF struct buf buf = {0};
	AUTO_JSON struct json *json = NULL;

	ok(fs_read(in_root("%s/index.json", dir), 16 << 20, &buf, NULL, error));
	ok(json_parse(buf.data, buf.len, 16 << 20, "index.json", &json, error));
	return json_count(json_get(json, "manifests"));
}

static void test_names_move(void **state)
{
	struct sample a, b;
	struct stat before, after;

	add_image("l", 1, "latest", &a);
	add_image("l", 2, "latest", &b);
	assert_resolves("l", "latest", &b.manifest);
	assert_int_equal(index_count("l"), 1);
	add_image("l", 1, NULL, &a);
	add_image("l", 1, NULL, &a);
	assert_int_equal(index_count("l"), 2);

	/* what is there already writes nothing */
	assert_int_equal(stat(in_root("l/index.json"), &before), 0);
	add_image("l", 2, "latest", &b);
	add_image("l", 2, NULL, &b);
	assert_int_equal(stat(in_root("l/index.json"), &after), 0);
	assert_int_equal(before.st_ino, after.st_ino);
}

static void test_missing_blob(void **state)
{
	AUTO_LAYOUT struct layout *layout = open_layout("l", true);
	struct sink *sink = layout_sink(layout);
	struct sample sample = {0};
	AUTO_ERR struct err err = {0};

	put_bytes(sink, "{}", media_config(MEDIA_OCI), &sample.config);
	descriptor_of("x", 1, media_layer(MEDIA_OCI, 0), &sample.layers[0]);
	describe_manifest(&sample, 1);
	assert_int_equal(
		sink->ops->commit(sink, sample.text, &sample.manifest, "a", &err), -ERR_REMOTE);
	assert_int_equal(err.id, E_IMAGE);
	assert_non_null(strstr(err.message, sample.layers[0].digest));
	assert_file(in_root("l/index.json"), EMPTY_INDEX);
	assert_int_equal(access(blob_path("l", &sample.manifest), F_OK), -1);
	free(sample.text);

	/* one that may not be passed on need not be there */
	snprintf(sample.layers[0].media_type, sizeof(sample.layers[0].media_type), "%s",
		"application/vnd.docker.image.rootfs.foreign.diff.tar.gzip");
	describe_manifest(&sample, 1);
	ok(sink->ops->commit(sink, sample.text, &sample.manifest, "a", error));
	free(sample.text);
	sink_free(sink);
}

/*
 * index.json
 */

#define FOREIGN                                                                                    \
	"{ \"mediaType\": \"application/vnd.oci.image.manifest.v1+json\",\n \"size\": 3.0e0,\n"    \
	"\"digest\":\"sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\","  \
	"\"x\" : [1,{\"]\":\"\\\"}\"}], \"annotations\":{\"org.opencontainers.image.ref.name\""    \
	":\"v\\u0031\"}}"

#define FOREIGN_KEPT                                                                               \
	"{\"mediaType\":\"application/vnd.oci.image.manifest.v1+json\",\"size\":3,"                \
	"\"digest\":\"sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\","  \
	"\"x\":[1,{\"]\":\"\\\"}\"}],\"annotations\":{\"org.opencontainers.image.ref.name\""       \
	":\"v1\"}}"

/* What others wrote stays, in its order, and costs a sync, since nobody could write it again. */
static void test_foreign_index(void **state)
{
	struct sample a;

	layout_free(open_layout("l", true));
	put_file(in_root("l/index.json"),
		" {\"a\" : [\"manifests\", 12345678901234567890] , \"manifests\" : [ " FOREIGN
		"\n , " FOREIGN " ],\"schemaVersion\":2 } \n");
	add_image("l", 1, "mine", &a);
	AUTO_FREE char *want = mem_printf(
		"{\"a\":[\"manifests\",12345678901234567890],\"manifests\":[" FOREIGN_KEPT
		"," FOREIGN_KEPT
		",{\"mediaType\":\"application/vnd.oci.image.manifest.v1+json\",\"digest\":\"%s\","
		"\"size\":%d,\"annotations\":{\"org.opencontainers.image.ref.name\":\"mine\","
		"\"dev.dlrun.image\":\"1\"}}],\"schemaVersion\":2}",
		a.manifest.digest, (int)a.manifest.size);
	assert_file(in_root("l/index.json"), want);
	/* a name of theirs, in whatever spelling, is found and moves */
	add_image("l", 1, "v1", &a);
	assert_resolves("l", "v1", &a.manifest);
	assert_int_equal(index_count("l"), 2);
}

static void test_empty_index(void **state)
{
	struct sample a;
	static const char nul[100];

	static const char *const texts[] = {"", "{\"schemaVersion\":2,\"manifests\":null}",
		"{\"manifests\":[ ]}", " { \"manifests\" :\tnull\n}"};
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		layout_free(open_layout("l", true));
		put_file(in_root("l/index.json"), texts[i]);
		add_image("l", 1, "a", &a);
		assert_int_equal(index_count("l"), 1);
		assert_resolves("l", "a", &a.manifest);
	}
	/* what a power cut leaves on some file systems */
	ok(fs_replace(in_root("l/index.json"), nul, sizeof(nul), 0644, FS_SYNC_NONE, error));
	add_image("l", 1, "a", &a);
	assert_int_equal(index_count("l"), 1);
	unlink(in_root("l/index.json"));
	add_image("l", 1, "a", &a);
	assert_int_equal(index_count("l"), 1);
}

static void test_bad_index(void **state)
{
	static const char *const texts[] = {"x", "[]", "{}", "{\"manifests\":{}}",
		"{\"manifests\":7}", "{\"manifests\":[}", "{\"manifests\":[]",
		"{\"manifests\":[]}}", "\"manifests\"", "{\"manifests\":[\"\xff\"]}",
		"{\"x\":{\"manifests\":[]}}", "{\"manifests\":nulll}"};

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		AUTO_LAYOUT struct layout *layout = open_layout("l", true);
		struct sink *sink = layout_sink(layout);
		struct sample sample = {0};
		AUTO_ERR struct err err = {0};

		put_file(in_root("l/index.json"), texts[i]);
		put_bytes(sink, "{}", media_config(MEDIA_OCI), &sample.config);
		describe_manifest(&sample, 0);
		assert_int_equal(
			sink->ops->commit(sink, sample.text, &sample.manifest, "a", &err), -ERR_IO);
		assert_int_equal(err.id, E_DATA);
		assert_non_null(strstr(err.message, "index.json"));
		assert_file(in_root("l/index.json"), texts[i]);
		free(sample.text);
		sink_free(sink);
	}
}

static void fill_index(const char *dir, size_t n)
{
	AUTO_BUF struct buf out;

	buf_init(&out, 64 << 20);
	buf_adds(&out, "{\"schemaVersion\":2,\"manifests\":[");
	for (size_t i = 0; i < n; i++)
		buf_addf(&out,
			"%s{\"mediaType\":\"application/vnd.oci.image.manifest.v1+json\",\"digest\":"
			"\"sha256:%064zx\",\"size\":1234,\"annotations\":{"
			"\"org.opencontainers.image.ref.name\":\"run-%zu\",\"dev.dlrun.image\":\"1\"}}",
			i ? "," : "", i, i);
	buf_adds(&out, "]}");
	put_file(in_root("%s/index.json", dir), out.data);
}

static void test_large_index(void **state)
{
	struct sample a;
	AUTO_ERR struct err err = {0};

	layout_free(open_layout("l", true));
	fill_index("l", 10000);
	add_image("l", 1, "run-5000", &a);
	assert_int_equal(index_count("l"), 10000);
	assert_resolves("l", "run-5000", &a.manifest);

	AUTO_LAYOUT struct layout *layout = open_layout("l", true);
	struct descriptor got;
	fill_index("l", 40000);
	assert_int_equal(layout_resolve(layout, "run-1", &got, &err), -ERR_LIMIT);
}

/* Another program may have written anything beside the list of manifests. */
static void test_index_of_many_members(void **state)
{
	enum { MEMBERS = 300000 };
	struct sample a;
	AUTO_BUF struct buf out;
	AUTO_BUF struct buf after = {0};

	layout_free(open_layout("l", true));
	buf_init(&out, LAYOUT_INDEX_MAX);
	buf_adds(&out, "{\"first\":1,\"manifests\":[]");
	for (size_t i = 0; i < MEMBERS; i++)
		buf_addf(&out, ",\"k%zx\":0", i);
	buf_adds(&out, ",\"last\":2}");
	put_file(in_root("l/index.json"), out.data);
	int64_t start_ms = clock_ms();
	add_image("l", 1, "a", &a);
	/* Work that grows with the square of them takes minutes. */
	assert_true(clock_ms() - start_ms < 30 * 1000);
	assert_resolves("l", "a", &a.manifest);
	assert_int_equal(fs_read(in_root("l/index.json"), LAYOUT_INDEX_MAX, &after, NULL, NULL), 0);
	assert_true(str_starts(after.data, "{\"first\":1,\"manifests\":[{"));
	assert_non_null(strstr(after.data, ",\"k0\":0,\"k1\":0,"));
	assert_string_equal(after.data + after.len - strlen(",\"last\":2}"), ",\"last\":2}");
}

/* The ceiling is met by the writer first, who says what helps. */
static void test_full_index(void **state)
{
	AUTO_LAYOUT struct layout *layout = open_layout("l", true);
	AUTO_FREE char *name = mem_alloc(1, LAYOUT_INDEX_MAX);
	AUTO_ERR struct err err = {0};
	struct sample sample = {0};
	struct sink *sink = layout_sink(layout);

	memset(name, 'n', LAYOUT_INDEX_MAX - 200);
	put_bytes(sink, "{}", media_config(MEDIA_OCI), &sample.config);
	describe_manifest(&sample, 0);
	assert_int_equal(
		sink->ops->commit(sink, sample.text, &sample.manifest, name, &err), -ERR_LIMIT);
	assert_string_equal(err.hint, "dlrun gc");
	assert_file(in_root("l/index.json"), EMPTY_INDEX);
	free(sample.text);
	sink_free(sink);
}

/*
 * Durability
 */

static void test_syncs(void **state)
{
	/* oci-layout, and three directories up to the parent */
	n_syncs = 0;
	AUTO_LAYOUT struct layout *layout = open_layout("l", true);
	assert_int_equal(n_syncs, 4);
	layout_free(open_layout("l", true));
	assert_int_equal(n_syncs, 4);
	struct sink *sink = layout_sink(layout);
	struct sample sample = {0};

	put_stage(sink, "base", &sample.layers[0]);
	put_bytes(sink, "{}", media_config(MEDIA_OCI), &sample.config);
	describe_manifest(&sample, 1);
	ok(sink->ops->commit(sink, sample.text, &sample.manifest, "first", error));
	free(sample.text);

	/* one delta, its configuration, the manifest, the directory */
	n_syncs = 0;
	put_stage(sink, "delta", &sample.layers[1]);
	assert_int_equal(n_syncs, 1);
	put_bytes(sink, "{\"n\":2}", media_config(MEDIA_OCI), &sample.config);
	describe_manifest(&sample, 2);
	ok(sink->ops->commit(sink, sample.text, &sample.manifest, "second", error));
	assert_int_equal(n_syncs, 4);

	/* nothing new: the directory, for what others may have put */
	n_syncs = 0;
	put_stage(sink, "delta", &sample.layers[1]);
	ok(sink->ops->commit(sink, sample.text, &sample.manifest, "second", error));
	assert_int_equal(n_syncs, 1);

	/* an index with entries of others */
	put_file(in_root("l/index.json"), "{\"manifests\":[" FOREIGN "]}");
	n_syncs = 0;
	ok(sink->ops->commit(sink, sample.text, &sample.manifest, "third", error));
	assert_int_equal(n_syncs, 2);
	free(sample.text);
	sink_free(sink);
}

/*
 * Many at once
 */

static void test_many_processes(void **state)
{
	enum { N = 100 };
	pid_t children[N];

	for (int i = 0; i < N; i++) {
		children[i] = fork();
		assert_true(children[i] >= 0);
		if (children[i] == 0) {
			AUTO_FREE char *name = mem_printf("run-%d", i);
			struct sample sample;
			add_image("l", i, name, &sample);
			_exit(0);
		}
	}
	for (int i = 0; i < N; i++) {
		int status;
		assert_int_equal(waitpid(children[i], &status, 0), children[i]);
		assert_int_equal(status, 0);
	}
	assert_int_equal(index_count("l"), N);
	for (int i = 0; i < N; i++) {
		AUTO_LAYOUT struct layout *layout = open_layout("l", false);
		AUTO_FREE char *name = mem_printf("run-%d", i);
		struct descriptor got;
		ok(layout_resolve(layout, name, &got, error));
	}
}

/* BuildKit removes the lock file when it is done. */
static void test_lock_removed(void **state)
{
	struct sample a;

	add_image("l", 1, "a", &a);
	unlink(in_root("l/index.json.lock"));
	add_image("l", 2, "b", &a);
	assert_int_equal(index_count("l"), 2);
}

/*
 * Garbage
 */

static size_t collect(const char *dir, const char *remove_name, const char *keep, uint64_t *bytes)
{
	AUTO_LAYOUT struct layout *layout = open_layout(dir, false);
	AUTO_STRV struct strv names = {0}, digests = {0};
	size_t blobs = 0;

	if (remove_name)
		strv_add(&names, remove_name);
	if (keep)
		strv_add(&digests, keep);
	ok(layout_gc(layout, &names, &digests, bytes, &blobs, error));
	return blobs;
}

static bool there(const char *dir, const struct descriptor *blob)
{
	return access(blob_path(dir, blob), F_OK) == 0;
}

static void test_gc(void **state)
{
	struct sample a, b, c, d;
	uint64_t bytes = 0;

	add_image("l", 1, "a", &a);
	add_image("l", 2, "b", &b);
	add_image("l", 3, "c", &c);
	add_image("l", 4, NULL, &d);
	assert_int_equal(collect("l", NULL, NULL, &bytes), 0);
	assert_int_equal(bytes, 0);

	/* manifest, configuration and one layer go, the shared layer stays */
	assert_int_equal(collect("l", "a", NULL, &bytes), 3);
	assert_int_equal(bytes, a.manifest.size + a.config.size + a.layers[0].size);
	assert_false(there("l", &a.manifest) || there("l", &a.config) || there("l", &a.layers[0]));
	assert_true(there("l", &b.manifest) && there("l", &b.config) && there("l", &b.layers[0]));
	assert_true(there("l", &b.layers[1]));
	assert_int_equal(index_count("l"), 3);

	/* one without a name, but in use */
	assert_int_equal(collect("l", "b", b.manifest.digest, &bytes), 0);
	assert_true(there("l", &b.manifest) && there("l", &b.config) && there("l", &b.layers[0]));
	assert_int_equal(collect("l", NULL, NULL, &bytes), 3);

	/* an entry whose manifest is gone */
	unlink(blob_path("l", &c.manifest));
	assert_int_equal(collect("l", NULL, "sha256:not a digest", &bytes), 2);
	assert_int_equal(index_count("l"), 1);
	assert_resolves("l", NULL, &d.manifest);
	assert_true(there("l", &d.layers[0]) && there("l", &d.layers[1]));
}

/* What would go is counted, and stays. */
static void test_gc_preview(void **state)
{
	struct sample a, b;
	AUTO_STRV struct strv names = {0}, found = {0};
	uint64_t bytes = 0, want = 0;
	size_t blobs = 0;

	add_image("l", 1, "a", &a);
	add_image("l", 2, "b", &b);
	put_file(in_root("l/.dlrun-0123456789abcdef"), "123");
	AUTO_LAYOUT struct layout *layout = open_layout("l", false);
	strv_add(&names, "a");
	ok(layout_gc_preview(layout, &names, NULL, &bytes, &blobs, error));
	assert_int_equal(blobs, 4);
	assert_int_equal(index_count("l"), 2);
	assert_true(there("l", &a.manifest) && there("l", &a.config) && there("l", &a.layers[0]));
	assert_int_equal(collect("l", "a", NULL, &want), 4);
	assert_int_equal(bytes, want);
	ok(layout_gc_preview(layout, &names, NULL, &bytes, &blobs, error));
	assert_int_equal(blobs, 0);
	ok(layout_names(layout, &found, error));
	assert_int_equal(found.n, 1);
	assert_string_equal(found.v[0], "b");
}

static void test_names(void **state)
{
	struct sample a;
	AUTO_STRV struct strv none = {0}, names = {0};

	AUTO_LAYOUT struct layout *layout = open_layout("l", true);
	ok(layout_names(layout, &none, error));
	assert_int_equal(none.n, 0);
	add_image("l", 1, "z", &a);
	add_image("l", 2, NULL, &a);
	add_image("l", 3, "a", &a);
	ok(layout_names(layout, &names, error));
	assert_int_equal(names.n, 2);
	assert_string_equal(names.v[0], "z");
	assert_string_equal(names.v[1], "a");
}

static void test_gc_files(void **state)
{
	struct sample a;
	uint64_t bytes = 0;

	add_image("l", 1, "a", &a);
	put_file(in_root("l/blobs/sha256/.dlrun-0123456789abcdef"), "12345");
	put_file(in_root("l/.dlrun-0123456789abcdef"), "123");
	put_file(in_root("l/notes"), "mine");
	put_file(in_root("l/blobs/sha256/notes"), "mine");
	put_file(in_root("l/%064d", 7), "mine");
	assert_int_equal(collect("l", NULL, NULL, &bytes), 2);
	assert_int_equal(bytes, 8);
	assert_file(in_root("l/notes"), "mine");
	assert_file(in_root("l/blobs/sha256/notes"), "mine");
	assert_file(in_root("l/%064d", 7), "mine");
}

/* Through an index to its manifests, and what members that dlrun does not know refer to. */
static void test_gc_nested(void **state)
{
	struct sample a;
	struct descriptor other, index;
	uint64_t bytes = 0;

	add_image("l", 1, "a", &a);
	AUTO_LAYOUT struct layout *layout = open_layout("l", false);
	struct sink *sink = layout_sink(layout);
	put_bytes(sink, "other", "a/b", &other);
	AUTO_FREE char *text =
		mem_printf("{\"schemaVersion\":2,\"manifests\":[{\"mediaType\":"
			   "\"%s\",\"digest\":\"%s\",\"size\":1}],\"x\":[{\"digest\":\"%s\"}]}",
			a.manifest.media_type, a.manifest.digest, other.digest);
	put_bytes(sink, text, "application/vnd.oci.image.index.v1+json", &index);
	sink_free(sink);
	assert_int_equal(collect("l", "a", index.digest, &bytes), 0);
	assert_true(there("l", &index) && there("l", &other) && there("l", &a.manifest) &&
		    there("l", &a.config) && there("l", &a.layers[0]));
	assert_int_equal(collect("l", NULL, NULL, &bytes), 6);
}

/* Blobs that no manifest names yet are safe while their sink is open. */
static void test_gc_waits(void **state)
{
	AUTO_LAYOUT struct layout *layout = open_layout("l", true);
	struct sink *sink = layout_sink(layout);
	struct descriptor blob;
	AUTO_ERR struct err err = {0};
	uint64_t bytes;
	size_t blobs;

	put_stage(sink, "not named yet", &blob);
	assert_int_equal(layout_gc(layout, NULL, NULL, &bytes, &blobs, &err), -ERR_CONFLICT);
	assert_int_equal(err.id, E_IO_LOCK);
	assert_true(there("l", &blob));
	sink_free(sink);
	ok(layout_gc(layout, NULL, NULL, &bytes, &blobs, error));
	assert_int_equal(blobs, 1);
	assert_false(there("l", &blob));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, make_root, remove_root)
		T(test_create),
		T(test_interrupted_creation),
		T(test_apart),
		T(test_kept_version),
		T(test_no_layout),
		T(test_blobs),
		T(test_remove_damaged),
		T(test_modes),
		T(test_odd_files),
		T(test_link),
		T(test_copy),
		T(test_resolve),
		T(test_resolve_without_index),
		T(test_names_move),
		T(test_missing_blob),
		T(test_foreign_index),
		T(test_empty_index),
		T(test_bad_index),
		T(test_large_index),
		T(test_index_of_many_members),
		T(test_full_index),
		T(test_syncs),
		T(test_many_processes),
		T(test_lock_removed),
		T(test_gc),
		T(test_gc_preview),
		T(test_names),
		T(test_gc_files),
		T(test_gc_nested),
		T(test_gc_waits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
