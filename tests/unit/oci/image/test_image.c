/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <sys/wait.h>

#include "base/data/json.h"
#include "oci/model/manifest.h"
#include "tests/unit/imagefix.h"

static int n_syncs;

int fsync(int fd)
{
	n_syncs++;
	return fdatasync(fd);
}

static void fill_small(struct fake_tree *tree)
{
	tree_put(tree, "README", 'f', 1, 100);
	tree_put(tree, "src/main.py", 'x', 2, 300);
	tree_put(tree, "src/util/a.py", 'f', 3, 200);
	tree_put(tree, "src/util/b.py", 'f', 4, 0);
	tree_put(tree, "link", 'l', 5, 10);
}

static void read_blob(const char *layout, const struct descriptor *blob, struct buf *ret)
{
	AUTO_LAYOUT struct layout *l = NULL;

	ok(layout_open(in_root(layout), false, &l, error));
	ok(layout_read_blob(l, blob, 16 << 20, ret, error));
}

static void assert_same_image(const struct image *a, const struct image *b)
{
	assert_string_equal(a->manifest.digest, b->manifest.digest);
	assert_string_equal(a->config.digest, b->config.digest);
	assert_int_equal(a->n_layers, b->n_layers);
	for (size_t i = 0; i < a->n_layers; i++) {
		assert_int_equal(a->layers[i].role, b->layers[i].role);
		assert_string_equal(a->layers[i].diff_id, b->layers[i].diff_id);
		assert_string_equal(a->layers[i].blob.digest, b->layers[i].blob.digest);
		assert_string_equal(a->layers[i].blob.media_type, b->layers[i].blob.media_type);
		assert_int_equal(a->layers[i].blob.size, b->layers[i].blob.size);
	}
}

static void test_documents(void **state)
{
	struct fake_tree *tree = tree_new();
	AUTO_STRV struct strv labels = {0};
	AUTO_BUF struct buf config = {0}, manifest = {0};

	fill_small(tree);
	struct image_request request = request_of(tree);
	strv_add(&labels, "org.opencontainers.image.revision=abc");
	request.labels = &labels;
	request.name = "run-1";
	AUTO_IMAGE struct image image = write_image("l", &request);
	assert_string_equal(roles_of(&image), "full");
	assert_string_equal(image.workdir, "/dlrun/src");
	assert_int_equal(image.layers_written, 1);
	assert_int_equal(image.bytes_written,
		image.layers[0].blob.size + image.config.size + image.manifest.size);
	assert_holds("l", &image, request.entries);

	read_blob("l", &image.config, &config);
	AUTO_FREE char *want_config = mem_printf(
		"{\"created\":\"1980-01-02T00:00:00.000Z\",\"architecture\":\"amd64\",\"os\":\"linux\","
		"\"config\":{\"WorkingDir\":\"/dlrun/src\",\"Labels\":{"
		"\"org.opencontainers.image.revision\":\"abc\","
		"\"org.opencontainers.image.created\":\"1980-01-02T00:00:00.000Z\","
		"\"dev.dlrun.snapshot\":\"%s\"}},\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[\"%s\"]},"
		"\"history\":[{\"created\":\"1980-01-02T00:00:00.000Z\","
		"\"created_by\":\"dlrun full\"}]}",
		tree_id, image.layers[0].diff_id);
	assert_string_equal(config.data, want_config);

	read_blob("l", &image.manifest, &manifest);
	AUTO_FREE char *want_manifest = mem_printf(
		"{\"schemaVersion\":2,\"mediaType\":\"application/vnd.oci.image.manifest.v1+json\","
		"\"config\":{\"mediaType\":\"application/vnd.oci.image.config.v1+json\","
		"\"digest\":\"%s\",\"size\":%d},\"layers\":[{"
		"\"mediaType\":\"application/vnd.oci.image.layer.v1.tar+gzip\",\"digest\":\"%s\","
		"\"size\":%d,\"annotations\":{\"dev.dlrun.role\":\"full\"}}],\"annotations\":{"
		"\"org.opencontainers.image.created\":\"1980-01-02T00:00:00.000Z\","
		"\"dev.dlrun.snapshot\":\"%s\"}}",
		image.config.digest, (int)image.config.size, image.layers[0].blob.digest,
		(int)image.layers[0].blob.size, tree_id);
	assert_string_equal(manifest.data, want_manifest);
	tree_done(tree);
}

static void test_load(void **state)
{
	struct fake_tree *tree = tree_new();
	AUTO_LAYOUT struct layout *layout = NULL;
	AUTO_IMAGE struct image loaded = {0};
	AUTO_ERR struct err err = {0};

	fill_small(tree);
	struct image_request request = request_of(tree);
	just_write("l", &request);
	tree_put(tree, "README", 'f', 9, 100);
	request = request_of(tree);
	AUTO_IMAGE struct image image = write_image("l", &request);
	assert_string_equal(roles_of(&image), "full delta");

	ok(layout_open(in_root("l"), false, &layout, error));
	ok(image_load(layout, image.manifest.digest, &loaded, error));
	assert_same_image(&image, &loaded);
	assert_string_equal(loaded.workdir, "/dlrun/src");
	assert_int_equal(image_load(layout, image.config.digest, &loaded, &err), -ERR_REMOTE);
	assert_same_image(&image, &loaded);
	image_done(NULL);
	tree_done(tree);
}

/* The tree as files; skip layers are there already. */
static void assert_unpacks(const char *name, const struct image *image, size_t skip,
	const char *dir, const struct fake_tree *tree)
{
	AUTO_LAYOUT struct layout *layout = NULL;
	AUTO_FD int fd = open(in_root(dir), O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	ok(layout_open(in_root(name), false, &layout, error));
	ok(image_unpack(layout, image, skip, fd, error));
	for (size_t i = 0; i < tree->n; i++) {
		const struct fake_file *file = &tree->v[i];
		AUTO_FREE char *want = mem_alloc(file->size + 1, 1);
		AUTO_FREE char *got = mem_alloc(file->size + 2, 1);
		fake_content(file->seed, file->size, want);
		ssize_t n;
		if (file->kind == 'l') {
			n = readlinkat(fd, file->path, got, file->size + 1);
		} else {
			AUTO_FD int content = openat(fd, file->path, O_RDONLY | O_CLOEXEC);
			struct stat st;
			assert_int_equal(fstat(content, &st), 0);
			assert_int_equal((st.st_mode & 0100) != 0, file->kind == 'x');
			n = read(content, got, file->size + 1);
		}
		assert_int_equal(n, file->size);
		assert_string_equal(got, want);
	}
}

static size_t count_files(const char *dir)
{
	AUTO_DIR DIR *stream = opendir(dir);
	size_t n = 0;

	assert_non_null(stream);
	for (struct dirent *e; (e = readdir(stream));) {
		AUTO_FREE char *path = fs_join(dir, e->d_name);
		struct stat st;
		if (str_eq(e->d_name, ".") || str_eq(e->d_name, ".."))
			continue;
		assert_int_equal(lstat(path, &st), 0);
		size_t below = S_ISDIR(st.st_mode) ? count_files(path) : 1;
		assert_int_not_equal(below, 0); /* a directory that should have gone */
		n += below;
	}
	return n;
}

static void test_unpack(void **state)
{
	struct fake_tree *tree = tree_new();

	fill_small(tree);
	struct image_request request = request_of(tree);
	AUTO_IMAGE struct image first = write_image("l", &request);
	mkdir(in_root("tree"), 0755);
	assert_unpacks("l", &first, 0, "tree", tree);
	assert_int_equal(count_files(in_root("tree")), tree->n);

	/* a spare tree has the full layer, the delta comes on top */
	tree_remove(tree, "src/util");
	tree_put(tree, "link/now/a/dir", 'f', 7, 10);
	tree_put(tree, "src/main.py", 'f', 2, 300);
	request = request_of(tree);
	AUTO_IMAGE struct image second = write_image("l", &request);
	assert_string_equal(roles_of(&second), "full delta");
	assert_unpacks("l", &second, 1, "tree", tree);
	assert_int_equal(count_files(in_root("tree")), tree->n);
	tree_done(tree);
}

static void test_read_file(void **state)
{
	struct fake_tree *tree = tree_new();
	AUTO_LAYOUT struct layout *layout = NULL;
	AUTO_ERR struct err err = {0};
	char want[400] = "", got[400] = "";
	FILE *out = tmpfile();

	fill_small(tree);
	struct image_request request = request_of(tree);
	just_write("l", &request);
	tree_put(tree, "README", 'f', 9, 50);
	tree_remove(tree, "src/util/a.py");
	request = request_of(tree);
	AUTO_IMAGE struct image image = write_image("l", &request);

	ok(layout_open(in_root("l"), false, &layout, error));
	ok(image_read_file(layout, &image, "README", fileno(out), error));
	ok(image_read_file(layout, &image, "src/main.py", fileno(out), error));
	fake_content(9, 50, want);
	fake_content(2, 300, want + 50);
	assert_int_equal(pread(fileno(out), got, sizeof(got) - 1, 0), 350);
	assert_string_equal(got, want);
	static const char *const missing[] = {"src/util/a.py", "none", "src"};
	for (size_t i = 0; i < ARRAY_LEN(missing); i++) {
		assert_true(image_read_file(layout, &image, missing[i], fileno(out), &err) < 0);
		assert_int_equal(err.id, E_IMAGE_BASE);
	}
	fclose(out);
	tree_done(tree);
}

/*
 * The plan
 */

static void test_unchanged(void **state)
{
	struct fake_tree *tree = tree_new();

	fill_small(tree);
	struct image_request request = request_of(tree);
	AUTO_IMAGE struct image first = write_image("l", &request);
	n_syncs = 0;
	AUTO_IMAGE struct image again = write_image("l", &request);
	assert_same_image(&first, &again);
	assert_int_equal(again.layers_written, 0);
	assert_int_equal(again.bytes_written, 0);
	assert_int_equal(n_syncs, 1);
	tree_done(tree);
}

static void test_edit_and_revert(void **state)
{
	struct fake_tree *tree = tree_new();

	fill_small(tree);
	struct image_request request = request_of(tree);
	AUTO_IMAGE struct image first = write_image("l", &request);

	tree_put(tree, "README", 'f', 7, 100);
	request = request_of(tree);
	n_syncs = 0;
	AUTO_IMAGE struct image dirty = write_image("l", &request);
	assert_string_equal(roles_of(&dirty), "full delta");
	assert_string_equal(dirty.layers[0].blob.digest, first.layers[0].blob.digest);
	assert_int_equal(dirty.layers_written, 1);
	assert_int_equal(n_syncs, 4);
	assert_holds("l", &dirty, request.entries);

	tree_put(tree, "README", 'f', 8, 100);
	request = request_of(tree);
	AUTO_IMAGE struct image other = write_image("l", &request);
	assert_holds("l", &other, request.entries);

	tree_put(tree, "README", 'f', 7, 100);
	request = request_of(tree);
	AUTO_IMAGE struct image back = write_image("l", &request);
	assert_same_image(&dirty, &back);
	assert_int_equal(back.layers_written, 0);
	assert_int_equal(back.bytes_written, 0);

	tree_put(tree, "README", 'f', 1, 100);
	request = request_of(tree);
	AUTO_IMAGE struct image start = write_image("l", &request);
	assert_same_image(&first, &start);
	assert_int_equal(start.bytes_written, 0);
	tree_done(tree);
}

/* Whatever happened before, the canonical image is that of a fresh start, and it is the new
 * plan. */
static void test_canonical(void **state)
{
	struct fake_tree *tree = tree_new();

	fill_small(tree);
	struct image_request request = request_of(tree);
	just_write("l", &request);
	tree_put(tree, "README", 'f', 7, 100);
	tree_put(tree, "more", 'f', 8, 2000);
	request = request_of(tree);
	request.big_file_bytes = 2000;
	request.full = true;
	AUTO_IMAGE struct image full = write_image("l", &request);
	assert_string_equal(roles_of(&full), "full big");
	assert_holds("l", &full, request.entries);

	struct image_request fresh = request;
	fresh.full = false;
	fresh.plan_path = in_root("other-plan");
	AUTO_IMAGE struct image elsewhere = write_image("other", &fresh);
	assert_same_image(&full, &elsewhere);
	fresh.plan_path = NULL;
	AUTO_IMAGE struct image unplanned = write_image("third", &fresh);
	assert_same_image(&full, &unplanned);

	AUTO_IMAGE struct image again = write_image("l", &request);
	assert_same_image(&full, &again);
	assert_int_equal(again.layers_written, 0);
	request.full = false;
	AUTO_IMAGE struct image later = write_image("l", &request);
	assert_same_image(&full, &later);
	assert_int_equal(later.bytes_written, 0);
	tree_done(tree);
}

/* What the bytes of layers depend on makes a plan useless when it changes. */
static void test_other_spec(void **state)
{
	struct fake_tree *tree = tree_new();

	fill_small(tree);
	struct image_request request = request_of(tree);
	AUTO_IMAGE struct image first = write_image("l", &request);
	tree_put(tree, "README", 'f', 7, 100);
	for (int i = 0; i < 3; i++) {
		request = request_of(tree);
		request.codec = i == 0 ? CODEC_ZSTD : CODEC_GZIP;
		request.workdir = i == 1 ? "/w" : "/dlrun/src";
		request.mtime_s = i == 2 ? 1000000000 : LAYER_MTIME;
		AUTO_IMAGE struct image image = write_image("l", &request);
		assert_string_equal(roles_of(&image), "full");
		assert_string_not_equal(image.layers[0].blob.digest, first.layers[0].blob.digest);
		assert_string_equal(image.workdir, request.workdir);
		assert_holds("l", &image, request.entries);
		const char *want = media_layer(MEDIA_OCI, request.codec);
		assert_string_equal(image.layers[0].blob.media_type, want);
	}
	tree_done(tree);
}

static void remove_blob(const char *layout, const struct descriptor *blob)
{
	AUTO_FREE char *path = mem_printf("%s/%s/blobs/sha256/%s", root, layout, blob->digest + 7);

	assert_int_equal(unlink(path), 0);
}

/* Layers that are gone are written again. */
static void test_lost_layers(void **state)
{
	struct fake_tree *tree = tree_new();

	fill_small(tree);
	tree_put(tree, "big", 'f', 8, 2000);
	struct image_request request = request_of(tree);
	request.big_file_bytes = 2000;
	just_write("l", &request);
	tree_put(tree, "README", 'f', 7, 100);
	request = request_of(tree);
	request.big_file_bytes = 2000;
	AUTO_IMAGE struct image dirty = write_image("l", &request);
	assert_string_equal(roles_of(&dirty), "full big delta");

	remove_blob("l", &dirty.layers[1].blob);
	remove_blob("l", &dirty.layers[2].blob);
	AUTO_IMAGE struct image mended = write_image("l", &request);
	assert_same_image(&dirty, &mended);
	assert_int_equal(mended.layers_written, 2);

	remove_blob("l", &dirty.layers[0].blob);
	AUTO_IMAGE struct image anew = write_image("l", &request);
	assert_string_equal(roles_of(&anew), "full big");
	assert_int_equal(anew.layers_written, 1);
	assert_holds("l", &anew, request.entries);
	tree_done(tree);
}

static void test_damaged_plan(void **state)
{
	struct fake_tree *tree = tree_new();

	fill_small(tree);
	struct image_request request = request_of(tree);
	just_write("l", &request);
	ok(fs_replace(in_root("plan"), "rubbish", 7, 0600, FS_SYNC_NONE, error));
	tree_put(tree, "README", 'f', 7, 100);
	request = request_of(tree);
	AUTO_IMAGE struct image image = write_image("l", &request);
	assert_string_equal(roles_of(&image), "full");
	assert_holds("l", &image, request.entries);
	/* and it is whole again */
	tree_put(tree, "README", 'f', 8, 100);
	request = request_of(tree);
	AUTO_IMAGE struct image next = write_image("l", &request);
	assert_string_equal(roles_of(&next), "full delta");
	tree_done(tree);
}

static void test_plan_cannot_be_kept(void **state)
{
	struct fake_tree *tree = tree_new();

	fill_small(tree);
	struct image_request request = request_of(tree);
	request.plan_path = in_root("no/such/dir/plan");
	AUTO_IMAGE struct image image = write_image("l", &request);
	assert_holds("l", &image, request.entries);
	tree_done(tree);
}

/*
 * Thresholds
 */

static void test_entries_limit(void **state)
{
	struct fake_tree *tree = tree_new();
	char name[40];

	for (unsigned i = 0; i < 2001; i++) {
		snprintf(name, sizeof(name), "d%u/f%u", i % 7, i);
		tree_put(tree, name, 'f', i, 10);
	}
	struct image_request request = request_of(tree);
	just_write("l", &request);
	/* 1,000 changed, 999 new, one removed */
	for (size_t i = 0; i < 1000; i++)
		tree->v[i].seed += 10000;
	for (unsigned i = 0; i < 999; i++) {
		snprintf(name, sizeof(name), "new/f%u", i);
		tree_put(tree, name, 'f', i, 10);
	}
	tree_remove(tree, "d6/f2001");
	tree_remove(tree, tree->v[1500].path);
	request = request_of(tree);
	AUTO_IMAGE struct image at = write_image("l", &request);
	assert_string_equal(roles_of(&at), "full delta");
	assert_holds("l", &at, request.entries);
	tree_put(tree, "one more", 'f', 1, 1);
	request = request_of(tree);
	AUTO_IMAGE struct image over = write_image("l", &request);
	assert_string_equal(roles_of(&over), "full");
	assert_holds("l", &over, request.entries);
	tree_done(tree);
}

static void check_size_limit(size_t full, size_t limit)
{
	/* An archive without compression: the workdir, two files' headers, the end. */
	enum { OVERHEAD = 3 * 512 + 1024, MARK = 512 };
	struct fake_tree *tree = tree_new();

	tree_put(tree, "a", 'f', 1, full - OVERHEAD - MARK);
	tree_put(tree, "b", 'f', 2, 0);
	struct image_request request = request_of(tree);
	request.codec = CODEC_NONE;
	AUTO_IMAGE struct image first = write_image("l", &request);
	assert_int_equal(first.layers[0].blob.size, full);

	tree_put(tree, "c", 'f', 3, limit - OVERHEAD);
	tree_put(tree, "d", 'f', 4, 0);
	request = request_of(tree);
	request.codec = CODEC_NONE;
	AUTO_IMAGE struct image at = write_image("l", &request);
	assert_string_equal(roles_of(&at), "full delta");
	assert_int_equal(at.layers[1].blob.size, limit);

	tree_put(tree, "d", 'f', 4, 1);
	request = request_of(tree);
	request.codec = CODEC_NONE;
	AUTO_IMAGE struct image over = write_image("l", &request);
	assert_string_equal(roles_of(&over), "full");
	assert_holds("l", &over, request.entries);
	tree_done(tree);
}

static void test_size_limit_of_small_trees(void **state)
{
	check_size_limit(512 * 20, IMAGE_DELTA_MIN);
}

static void test_size_limit_of_large_trees(void **state)
{
	check_size_limit(4 * (IMAGE_DELTA_MIN + 512), IMAGE_DELTA_MIN + 512);
}

/* A delta that is not going to be one is not written to its end. */
static void test_early_end(void **state)
{
	enum { N = 60, SIZE = 512 * 1024 };
	struct fake_tree *tree = tree_new();
	char name[40];

	fill_small(tree);
	struct image_request request = request_of(tree);
	request.codec = CODEC_NONE;
	just_write("l", &request);
	for (unsigned i = 0; i < N; i++) {
		snprintf(name, sizeof(name), "new/%u", i);
		tree_put(tree, name, 'f', i, SIZE);
	}
	request = request_of(tree);
	request.codec = CODEC_NONE;
	tree->n_opened = 0;
	AUTO_IMAGE struct image image = write_image("l", &request);
	assert_string_equal(roles_of(&image), "full");
	assert_holds("l", &image, request.entries);
	assert_in_range(tree->n_opened, N, 2 * N - 20);
	tree_done(tree);
}

/*
 * Big files
 */

static struct image write_big(struct fake_tree *tree, const char *want_roles)
{
	struct image_request request = request_of(tree);

	request.big_file_bytes = 1000;
	struct image image = write_image("l", &request);
	assert_string_equal(roles_of(&image), want_roles);
	assert_holds("l", &image, request.entries);
	return image;
}

static void just_write_big(struct fake_tree *tree, const char *want_roles)
{
	struct image image = write_big(tree, want_roles);

	image_done(&image);
}

static void test_big_files(void **state)
{
	struct fake_tree *tree = tree_new();

	fill_small(tree);
	tree_put(tree, "data/a", 'f', 10, 1000);
	tree_put(tree, "data/b", 'x', 11, 3000);
	AUTO_IMAGE struct image first = write_big(tree, "full big");

	/* small edits leave the big layer alone */
	tree_put(tree, "README", 'f', 7, 999);
	AUTO_IMAGE struct image edit = write_big(tree, "full big delta");
	assert_string_equal(edit.layers[1].blob.digest, first.layers[1].blob.digest);

	/* one big file changes: the layer is written anew, the full one is not */
	tree_put(tree, "data/a", 'f', 12, 1000);
	AUTO_IMAGE struct image big = write_big(tree, "full big delta");
	assert_string_equal(big.layers[0].blob.digest, first.layers[0].blob.digest);
	assert_string_equal(big.layers[2].blob.digest, edit.layers[2].blob.digest);
	assert_string_not_equal(big.layers[1].blob.digest, first.layers[1].blob.digest);
	assert_int_equal(big.layers_written, 1);

	/* across the limit, both ways */
	tree_put(tree, "README", 'f', 7, 1000);
	just_write_big(tree, "full big");
	tree_put(tree, "README", 'f', 1, 100);
	tree_put(tree, "data/b", 'x', 11, 999);
	just_write_big(tree, "full big delta");

	/* kinds: a small file, a link, a directory become big files, and back */
	tree_put(tree, "src", 'f', 20, 2000);
	tree_put(tree, "link", 'f', 21, 2000);
	just_write_big(tree, "full big delta");
	tree_put(tree, "README/x/y", 'f', 22, 2000);
	just_write_big(tree, "full big delta");
	tree_remove(tree, "src");
	tree_remove(tree, "README");
	tree_remove(tree, "link");
	fill_small(tree);
	tree_put(tree, "src/util", 'l', 5, 10);
	just_write_big(tree, "full big delta");

	/* no big file is left */
	tree_remove(tree, "data");
	just_write_big(tree, "full delta");
	tree_done(tree);
}

static void test_only_big(void **state)
{
	struct fake_tree *tree = tree_new();

	tree_put(tree, "a", 'f', 10, 1000);
	just_write_big(tree, "full big");
	tree_put(tree, "b", 'f', 10, 1);
	just_write_big(tree, "full big delta");
	tree_done(tree);
}

/*
 * Random edits
 */

static unsigned seed;

static unsigned below(unsigned n)
{
	seed = seed * 1103515245 + 12345;
	return (seed >> 16) % n;
}

static void random_path(char *out, size_t size)
{
	static const char *const names[] = {"a", "a-", "a.b", "b", "c c", "\xff\n"};

	out[0] = '\0';
	for (unsigned depth = 1 + below(4); depth > 0; depth--)
		snprintf(out + strlen(out), size - strlen(out), "%s%s", *out ? "/" : "",
			names[below(ARRAY_LEN(names))]);
}

static void random_edit(struct fake_tree *tree)
{
	char path[80];

	for (unsigned n = 1 + below(3); n > 0; n--) {
		random_path(path, sizeof(path));
		unsigned what = below(10);
		if (what < 3)
			tree_remove(tree, path);
		else if (what == 3)
			tree_put(tree, path, 'l', below(100), 1 + below(20));
		else if (what == 4)
			tree_put(tree, path, 'f', below(100), 1000 + below(2000));
		else
			tree_put(tree, path, below(3) ? 'f' : 'x', below(5), below(300));
	}
	if (tree->n == 0)
		tree_put(tree, "a", 'f', 1, 1);
}

static void test_random_edits(void **state)
{
	struct fake_tree *tree = tree_new();

	seed = 1;
	random_edit(tree);
	for (int i = 0; i < 300; i++) {
		random_edit(tree);
		struct image_request request = request_of(tree);
		request.big_file_bytes = 1000;
		request.full = below(50) == 0;
		request.codec = CODEC_NONE;
		AUTO_IMAGE struct image image = write_image("l", &request);
		assert_true(image.n_layers <= IMAGE_OWN_LAYERS_MAX);
		assert_holds("l", &image, request.entries);
		if (i % 20 == 0) {
			char dir[40];
			snprintf(dir, sizeof(dir), "tree-%d", i);
			mkdir(in_root(dir), 0755);
			assert_unpacks("l", &image, 0, dir, tree);
			assert_int_equal(count_files(in_root(dir)), tree->n);
		}
	}
	tree_done(tree);
}

/*
 * Failures
 */

static void test_changed_content(void **state)
{
	struct fake_tree *tree = tree_new();
	AUTO_ERR struct err err = {0};
	AUTO_IMAGE struct image image = {0};

	fill_small(tree);
	struct image_request request = request_of(tree);
	tree->lies = true;
	request.name = "a";
	assert_int_equal(write_to("l", &request, &image, &err), -ERR_IO);
	assert_int_equal(err.id, E_IO_CHANGED);
	assert_non_null(strstr(err.message, "README"));
	assert_int_equal(access(in_root("plan"), F_OK), -1);

	AUTO_LAYOUT struct layout *layout = NULL;
	struct descriptor got;
	ok(layout_open(in_root("l"), false, &layout, error));
	assert_int_equal(layout_resolve(layout, "a", &got, NULL), -ERR_NOTFOUND);
	assert_int_equal(rmdir(in_root("l/blobs/sha256")), 0); /* nothing is left behind */
	assert_int_equal(mkdir(in_root("l/blobs/sha256"), 0755), 0);
	tree->lies = false;
	AUTO_IMAGE struct image good = write_image("l", &request);
	assert_holds("l", &good, request.entries);
	tree_done(tree);
}

static void test_bad_requests(void **state)
{
	struct fake_tree *tree = tree_new();
	AUTO_ERR struct err err = {0};
	AUTO_IMAGE struct image image = {0};

	tree_put(tree, "d/.wh.x", 'f', 1, 1);
	struct image_request request = request_of(tree);
	assert_int_equal(write_to("l", &request, &image, &err), -ERR_LIMIT);
	assert_int_equal(err.id, E_SNAPSHOT_NAME);
	tree_remove(tree, "d");
	tree_put(tree, "d/x", 'f', 1, 1);
	request = request_of(tree);
	request.platform = "linux";
	assert_int_equal(write_to("l", &request, &image, &err), -ERR_CONFIG);
	tree_done(tree);
}

/* A destination whose word cannot be trusted: what it says it has is gone when it is committed. */
static const struct sink_ops *honest;
static struct sink_ops liar;
static bool forgotten;
static int n_commits;

static int liar_has(
	struct sink *sink, const struct descriptor *blobs, size_t n, bool *ret_has, struct err *err)
{
	if (forgotten)
		return honest->has(sink, blobs, n, ret_has, err);
	memset(ret_has, true, n);
	return 0;
}

static int liar_commit(struct sink *sink, const void *manifest, const struct descriptor *blob,
	const char *name, struct err *err)
{
	n_commits++;
	return honest->commit(sink, manifest, blob, name, err);
}

static void liar_forget(struct sink *sink, const struct descriptor *blob)
{
	forgotten = true;
}

static void test_wrong_hint(void **state)
{
	struct fake_tree *tree = tree_new();
	AUTO_LAYOUT struct layout *layout = NULL;

	fill_small(tree);
	struct image_request request = request_of(tree);
	AUTO_IMAGE struct image first = write_image("l", &request);
	ok(fs_remove_tree(AT_FDCWD, in_root("l"), error));

	ok(layout_open(in_root("l"), true, &layout, error));
	struct sink *sink = layout_sink(layout);
	honest = sink->ops;
	liar = *honest;
	liar.has = liar_has;
	liar.commit = liar_commit;
	liar.forget = liar_forget;
	sink->ops = &liar;
	AUTO_IMAGE struct image image = {0};
	ok(image_write(&request, sink, &image, error));
	assert_true(forgotten);
	assert_int_equal(n_commits, 2);
	assert_same_image(&first, &image);
	assert_holds("l", &image, request.entries);
	sink->ops = honest;
	sink_free(sink);
	tree_done(tree);
}

/*
 * Many at once
 */

/* How many layers all of them wrote; with edits each one has a tree of its own. */
static int run_many(int n, bool edits)
{
	pid_t *children = mem_alloc((size_t)n, sizeof(*children));
	int written = 0;

	for (int i = 0; i < n; i++) {
		children[i] = fork();
		assert_true(children[i] >= 0);
		if (children[i])
			continue;
		struct fake_tree *tree = tree_new();
		AUTO_IMAGE struct image image = {0};
		AUTO_FREE char *name = mem_printf("run-%d-%d", edits, i);
		fill_small(tree);
		if (edits)
			tree_put(tree, "edit", 'f', (unsigned)i, 100);
		struct image_request request = request_of(tree);
		request.name = name;
		if (write_to("l", &request, &image, NULL) < 0)
			_exit(100);
		_exit((int)image.layers_written);
	}
	for (int i = 0; i < n; i++) {
		int status;
		assert_int_equal(waitpid(children[i], &status, 0), children[i]);
		assert_true(WIFEXITED(status) && WEXITSTATUS(status) < 100);
		written += WEXITSTATUS(status);
	}
	free(children);
	return written;
}

static void test_many_processes(void **state)
{
	enum { N = 20 };
	struct fake_tree *tree = tree_new();

	/* all wait for the one that writes the full layer */
	assert_int_equal(run_many(N, false), 1);
	assert_int_equal(run_many(N, true), N);
	for (int i = 0; i < 2 * N; i++) {
		AUTO_LAYOUT struct layout *layout = NULL;
		AUTO_FREE char *name = mem_printf("run-%d-%d", i / N, i % N);
		AUTO_IMAGE struct image image = {0};
		struct descriptor found;
		tree->n = 0;
		fill_small(tree);
		if (i >= N)
			tree_put(tree, "edit", 'f', (unsigned)(i % N), 100);
		ok(layout_open(in_root("l"), false, &layout, error));
		ok(layout_resolve(layout, name, &found, error));
		ok(image_load(layout, found.digest, &image, error));
		assert_string_equal(roles_of(&image), i < N ? "full" : "full delta");
		assert_holds("l", &image, tree_entries(tree));
	}
	tree_done(tree);
}

/* A cold start of many different trees: still one full layer, and deltas. */
static void test_many_cold(void **state)
{
	enum { N = 20 };

	assert_int_equal(run_many(N, true), N);
}

static void assert_roles_data(const struct image *image, size_t n)
{
	assert_int_equal(image->n_layers, n);
	for (size_t i = 0; i < n; i++)
		assert_int_equal(image->layers[i].role, IMAGE_ROLE_BASE);
}

static void test_data(void **state)
{
	struct fake_tree *tree = tree_new();
	AUTO_LAYOUT struct layout *layout = NULL;
	AUTO(image_base_free_auto) struct image_base *base = NULL;
	AUTO_ENTRIES struct entry_list found = {0};

	fill_small(tree);
	struct image_request request = request_of(tree);
	request.snapshot_id = request.workdir = NULL;
	request.data_dir = "/dlrun/data/data/set";
	request.data = "k";
	request.name = "data";
	AUTO_IMAGE struct image image = write_image("l", &request);
	assert_roles_data(&image, 1);
	assert_int_equal(image.layers_written, 1);
	assert_null(image.workdir);
	AUTO_IMAGE struct image again = write_image("l", &request);
	assert_int_equal(again.layers_written, 0);
	assert_string_equal(again.manifest.digest, image.manifest.digest);

	ok(layout_open(in_root("l"), false, &layout, error));
	ok(image_base_load(layout, "oci:l", "data", "linux/amd64", &base, error));
	ok(image_base_entries(base, 1 << 20, &found, error));
	assert_int_equal(found.n, request.entries->n);
	assert_non_null(entry_find(&found, "dlrun/data/data/set/src/main.py"));
	assert_true(entry_find(&found, "dlrun/data/data/set/src/main.py")->exec);

	/* Data on data, then code: the base of the code has both. */
	request.base = base;
	request.data_dir = "/dlrun/data/other";
	AUTO_IMAGE struct image second = write_image("l", &request);
	assert_roles_data(&second, 2);
	assert_string_equal(second.layers[0].diff_id, image.layers[0].diff_id);
	tree->lies = true;
	tree_put(tree, "README", 'f', 77, 100);
	request.entries = tree_entries(tree);
	AUTO_ERR struct err err = {0};
	AUTO_IMAGE struct image lost = {0};
	assert_true(write_to("l", &request, &lost, &err) < 0);
	assert_int_equal(err.id, E_IO_CHANGED);
	tree_done(tree);
}

/* Files f000001… of 50 to 350 KiB. */
static void fill_data(struct entry_list *list, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		AUTO_FREE char *path = mem_printf("f%06zu", i);
		entry_add(list, &(struct entry){.path = path, .size = (50 + i * 7919 % 300) << 10});
	}
}

/* The names at which layers end; returns how many layers. */
static size_t cut_all(const struct entry_list *list, struct strv *ret_ends)
{
	uint64_t total = 0;
	size_t n = 0, len;

	for (size_t i = 0; i < list->n; i++)
		total += list->v[i].size;
	for (size_t i = 0; i < list->n; i += len, n++) {
		uint64_t bytes = 0;
		len = image_data_cut(&list->v[i], list->n - i, total);
		assert_true(len > 0 && len <= list->n - i);
		for (size_t j = i; j < i + len; j++)
			bytes += list->v[j].size;
		assert_true(len == 1 || bytes <= total / (IMAGE_DATA_LAYERS / 4));
		assert_true(i + len == list->n || bytes >= total / (5 * IMAGE_DATA_LAYERS));
		strv_add(ret_ends, list->v[i + len - 1].path);
	}
	return n;
}

static void test_data_cut(void **state)
{
	AUTO_ENTRIES struct entry_list list = {0};
	AUTO_STRV struct strv ends = {0}, ends_after = {0};
	size_t n_moved = 0;

	fill_data(&list, 8000);
	size_t n = cut_all(&list, &ends);
	assert_in_range(n, 15, 60);
	/* A file more in the middle, and one less. */
	entry_add(&list, &(struct entry){.path = "f004000x", .size = 5 << 20});
	vec_sort(&list, entry_compare);
	memmove(&list.v[5000], &list.v[5001], (list.n - 5001) * sizeof(*list.v));
	list.n--;
	cut_all(&list, &ends_after);
	for (size_t i = 0; i < ends.n; i++)
		n_moved += strv_find(&ends_after, ends.v[i]) < 0;
	assert_in_range(n_moved, 0, 3);

	/* However much it is, its layers are below the number that an image may have. */
	for (size_t i = 0; i < list.n; i++)
		list.v[i].size <<= 12;
	AUTO_STRV struct strv large = {0};
	assert_in_range(cut_all(&list, &large), 10, 100);
	/* A large file ends its layer. */
	struct entry two[] = {{.path = "a", .size = UINT64_C(1) << 30}, {.path = "b", .size = 1}};
	assert_int_equal(image_data_cut(two, 2, two[0].size + 1), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, make_root, remove_root)
		T(test_documents),
		T(test_load),
		T(test_unpack),
		T(test_read_file),
		T(test_unchanged),
		T(test_edit_and_revert),
		T(test_canonical),
		T(test_other_spec),
		T(test_lost_layers),
		T(test_damaged_plan),
		T(test_plan_cannot_be_kept),
		T(test_entries_limit),
		T(test_size_limit_of_small_trees),
		T(test_size_limit_of_large_trees),
		T(test_early_end),
		T(test_big_files),
		T(test_only_big),
		T(test_random_edits),
		T(test_changed_content),
		T(test_bad_requests),
		T(test_wrong_hint),
		T(test_many_processes),
		T(test_many_cold),
		T(test_data),
		T(test_data_cut),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
