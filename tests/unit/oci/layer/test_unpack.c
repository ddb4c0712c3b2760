/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/layerfix.h"

#include <locale.h>

/*
 * What a directory holds, as a list of entries.
 */

static void walk(int dir_fd, const char *dir, struct entry_list *list)
{
	int fd = openat(dir_fd, *dir ? dir : ".", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	AUTO_DIR DIR *stream = fdopendir(fd);

	assert_non_null(stream);
	for (struct dirent *e; (e = readdir(stream));) {
		char target[4096];
		struct stat st;
		if (str_eq(e->d_name, ".") || str_eq(e->d_name, ".."))
			continue;
		AUTO_FREE char *path = fs_join(dir, e->d_name);
		struct entry entry = {.path = path};
		assert_int_equal(fstatat(fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW), 0);
		if (S_ISDIR(st.st_mode)) {
			walk(dir_fd, path, list);
			continue;
		}
		if (S_ISLNK(st.st_mode)) {
			ssize_t n = readlinkat(fd, e->d_name, target, sizeof(target) - 1);
			assert_true(n > 0);
			target[n] = '\0';
			entry.kind = ENTRY_LINK;
			entry.target = target;
			entry.size = (uint64_t)n;
			digest_sha256(target, (size_t)n, entry.sha256);
		} else {
			AUTO_ERR struct err err = {0};
			AUTO_BUF struct buf content = {0};
			AUTO_FD int file = openat(fd, e->d_name, O_RDONLY | O_CLOEXEC);
			assert_true(S_ISREG(st.st_mode));
			assert_int_equal(fs_read_fd(file, path, TAR_MAX, &content, &err), 0);
			entry.exec = st.st_mode & 0100;
			entry.size = content.len;
			digest_sha256(content.data, content.len, entry.sha256);
		}
		entry_add(list, &entry);
	}
}

static void list_dir(int dir_fd, struct entry_list *list)
{
	walk(dir_fd, "", list);
	vec_sort(list, entry_compare);
}

static void print_list(const char *title, const struct entry_list *list)
{
	print_message("%s:\n", title);
	vec_foreach (const struct entry, e, list)
		print_message("  %c%d %s %s\n", e->kind == ENTRY_LINK ? 'l' : 'f', e->exec, e->path,
			e->target ? e->target : "");
}

static bool same_lists(const struct entry_list *a, const struct entry_list *b)
{
	if (a->n != b->n)
		return false;
	for (size_t i = 0; i < a->n; i++)
		if (!str_eq(a->v[i].path, b->v[i].path) || !entry_same(&a->v[i], &b->v[i]))
			return false;
	return true;
}

static void assert_same_lists(const struct entry_list *a, const struct entry_list *b)
{
	if (same_lists(a, b))
		return;
	print_list("one", a);
	print_list("other", b);
	fail();
}

static void assert_holds(int dir_fd, const struct entry_list *want)
{
	AUTO_ENTRIES struct entry_list have = {0};

	list_dir(dir_fd, &have);
	assert_same_lists(&have, want);
}

/*
 * Layers from memory.
 */

static struct unpack_spec spec_of(int fd)
{
	lseek(fd, 0, SEEK_SET);
	return (struct unpack_spec){.fd = fd, .workdir = "/dlrun/src", .max_bytes = TAR_MAX};
}

static int apply(const struct buf *tar, int dir_fd, struct err *err)
{
	AUTO_FD int fd = file_of(tar->data, tar->len);
	struct unpack_spec spec = spec_of(fd);

	return unpack_apply(&spec, dir_fd, err);
}

static int list(const struct buf *tar, struct entry_list *ret, struct err *err)
{
	AUTO_FD int fd = file_of(tar->data, tar->len);
	struct unpack_spec spec = spec_of(fd);

	return unpack_list(&spec, ret, err);
}

/* One file of the layer; its content in out. */
static int file(
	const struct buf *tar, const char *path, struct buf *out, int *ret_found, struct err *err)
{
	AUTO_FD int fd = file_of(tar->data, tar->len), out_fd = file_of("", 0);
	struct unpack_spec spec = spec_of(fd);
	int r = unpack_file(&spec, path, out_fd, ret_found, err);

	read_all(out_fd, out);
	return r;
}

/* Without contents it is the same list, but for the hashes of files. */
static void assert_names(const struct buf *tar, struct entry_list *lower, struct entry_list *whole)
{
	AUTO_FD int fd = file_of(tar->data, tar->len);
	struct unpack_spec spec = spec_of(fd);
	AUTO_ERR struct err err = {0};

	spec.names_only = true;
	if (unpack_list(&spec, lower, &err))
		fail_msg("unpack_list: %s", err.message);
	assert_int_equal(lower->n, whole->n);
	for (size_t i = 0; i < whole->n; i++)
		memcpy(lower->v[i].sha256, whole->v[i].sha256, SHA256_SIZE);
	assert_same_lists(lower, whole);
}

/* Both ways take the layer, and give the same. */
static void assert_gives(const struct buf *tar, int dir_fd, struct entry_list *lower)
{
	AUTO_ERR struct err err = {0};
	AUTO_ENTRIES struct entry_list copy = {0};

	vec_foreach (const struct entry, e, lower)
		entry_add(&copy, e);
	if (apply(tar, dir_fd, &err))
		fail_msg("unpack_apply: %s", err.message);
	if (list(tar, lower, &err))
		fail_msg("unpack_list: %s", err.message);
	assert_holds(dir_fd, lower);
	assert_names(tar, &copy, lower);
}

static void assert_refused(
	const struct buf *tar, int dir_fd, const struct entry_list *lower, enum err_id id)
{
	AUTO_ERR struct err err = {0};
	AUTO_ENTRIES struct entry_list copy = {0};

	assert_true(apply(tar, dir_fd, &err) < 0);
	if (err.id != id)
		fail_msg("unpack_apply: %s", err.message);
	err_clear(&err);
	if (lower)
		vec_foreach (const struct entry, e, lower)
			entry_add(&copy, e);
	size_t before = copy.n;
	assert_true(list(tar, &copy, &err) < 0);
	if (err.id != id)
		fail_msg("unpack_list: %s", err.message);
	assert_int_equal(copy.n, before);
}

/*
 * Trees there and back.
 */

static void sample_tree(struct tree *tree)
{
	AUTO_FREE char *large = mem_alloc(700001, 1);

	for (size_t i = 0; i < 700000; i++)
		large[i] = (char)('a' + i % 23);
	tree_file(tree, "README", "hello\n");
	tree_exec(tree, "bin/run", "#!/bin/sh\n");
	tree_file(tree, "empty", "");
	tree_file(tree, "-rf", "x");
	tree_file(tree, "a b/\xff\n", "odd");
	tree_file(tree, "caf\xc3\xa9", "nfc");
	tree_file(tree, "cafe\xcc\x81", "nfd");
	tree_file(tree, "large.bin", large);
	tree_link(tree, "data", "/srv/data");
	tree_link(tree, "src/up", "../README");
	tree_link(tree, "src/loop", "loop");
	tree_file(tree, "src/a/b/c/d/e", "deep");
}

static void test_round_trip(void **state)
{
	static const enum codec codecs[] = {CODEC_NONE, CODEC_GZIP, CODEC_ZSTD};

	for (size_t i = 0; i < ARRAY_LEN(codecs); i++) {
		AUTO_TREE struct tree tree = {0};
		AUTO_ENTRIES struct entry_list listed = {0};
		AUTO_ERR struct err err = {0};
		const struct entry *pointers[16];
		struct layer_result result;
		/* Names are bytes in every locale. */
		setlocale(LC_ALL, i % 2 ? "C.UTF-8" : "C");
		sample_tree(&tree);
		struct layer_spec layer = tree_spec(&tree, pointers);
		layer.codec = codecs[i];
		AUTO_FD int fd = layer_file(&layer, &result), dir_fd = new_dir();
		struct unpack_spec spec = spec_of(fd);
		spec.digest = result.blob.digest;
		spec.diff_id = result.diff_id;
		spec.max_bytes = result.tar_size;
		assert_int_equal(unpack_apply(&spec, dir_fd, &err), 0);
		assert_holds(dir_fd, &tree.list);
		lseek(fd, 0, SEEK_SET);
		assert_int_equal(unpack_list(&spec, &listed, &err), 0);
		assert_same_lists(&listed, &tree.list);
		spec.max_bytes--;
		lseek(fd, 0, SEEK_SET);
		assert_int_equal(unpack_list(&spec, &listed, &err), -ERR_LIMIT);
		assert_int_equal(err.id, E_DATA_LIMIT);
	}
}

static void assert_attributes(int dir_fd, const char *path, unsigned mode)
{
	struct stat st;

	assert_int_equal(fstatat(dir_fd, path, &st, AT_SYMLINK_NOFOLLOW), 0);
	assert_int_equal(st.st_mode & 07777, mode);
	if (!S_ISDIR(st.st_mode)) {
		assert_int_equal(st.st_mtime, LAYER_MTIME);
		assert_int_equal(st.st_nlink, 1);
	}
}

static void test_attributes(void **state)
{
	AUTO_TREE struct tree tree = {0};
	const struct entry *pointers[16];
	struct layer_result result;

	sample_tree(&tree);
	struct layer_spec layer = tree_spec(&tree, pointers);
	AUTO_FD int fd = layer_file(&layer, &result);
	for (int strict = 0; strict < 2; strict++) {
		AUTO_ERR struct err err = {0};
		AUTO_FD int dir_fd = new_dir();
		mode_t before = umask(strict ? 077 : 022);
		struct unpack_spec spec = spec_of(fd);
		assert_int_equal(unpack_apply(&spec, dir_fd, &err), 0);
		umask(before);
		assert_attributes(dir_fd, "README", strict ? 0600 : 0644);
		assert_attributes(dir_fd, "large.bin", strict ? 0600 : 0644);
		assert_attributes(dir_fd, "bin/run", strict ? 0700 : 0755);
		assert_attributes(dir_fd, "src/a", strict ? 0700 : 0755);
		assert_attributes(dir_fd, "data", 0777);
	}
}

/* Names and link targets as long as they can be. */
static void test_long_names(void **state)
{
	AUTO_TREE struct tree tree = {0};
	AUTO_ENTRIES struct entry_list listed = {0};
	AUTO_ERR struct err err = {0};
	const struct entry *pointers[4];
	struct layer_result result;
	char component[256] = "", path[4096] = "", target[4001] = "";

	memset(component, 'n', 255);
	memset(target, 't', 4000);
	memset(path, 'd', 4000);
	for (size_t at = 39; at < 4000; at += 40)
		path[at] = '/';
	path[4000] = 'f';
	tree_file(&tree, component, "1");
	tree_file(&tree, path, "2");
	tree_link(&tree, "link", target);
	struct layer_spec layer = tree_spec(&tree, pointers);
	AUTO_FD int fd = layer_file(&layer, &result), dir_fd = new_dir();
	struct unpack_spec spec = spec_of(fd);
	assert_int_equal(strlen(path), 4001);
	if (unpack_apply(&spec, dir_fd, &err))
		fail_msg("%s", err.message);
	lseek(fd, 0, SEEK_SET);
	assert_int_equal(unpack_list(&spec, &listed, &err), 0);
	assert_same_lists(&listed, &tree.list);
	AUTO_FD int deep = fs_open_beneath(dir_fd, path, O_RDONLY, 0);
	assert_true(deep >= 0);
}

/*
 * Damage.
 */

static void test_digests(void **state)
{
	AUTO_TREE struct tree tree = {0};
	const struct entry *pointers[16];
	struct layer_result result;
	const char other[] =
		"sha256:0000000000000000000000000000000000000000000000000000000000000000";

	sample_tree(&tree);
	struct layer_spec layer = tree_spec(&tree, pointers);
	layer.codec = CODEC_ZSTD;
	AUTO_FD int fd = layer_file(&layer, &result);
	for (int i = 0; i < 4; i++) {
		AUTO_ERR struct err err = {0};
		AUTO_ENTRIES struct entry_list listed = {0};
		AUTO_FD int dir_fd = new_dir();
		struct unpack_spec spec = spec_of(fd);
		spec.digest = i & 1 ? other : result.blob.digest;
		spec.diff_id = i & 2 ? other : result.diff_id;
		assert_int_equal(unpack_apply(&spec, dir_fd, &err), i ? -ERR_REMOTE : 0);
		lseek(fd, 0, SEEK_SET);
		assert_int_equal(unpack_list(&spec, &listed, &err), i ? -ERR_REMOTE : 0);
		if (i)
			assert_int_equal(err.id, E_IMAGE);
	}
}

/* Bytes behind the end of the archive are part of the diff_id, and of the blob. */
static void test_trailing_bytes(void **state)
{
	AUTO_ERR struct err err = {0};
	AUTO_BUF struct buf tar;
	uint8_t sha256[SHA256_SIZE];
	char diff_id[DIGEST_TEXT_SIZE];

	buf_init(&tar, TAR_MAX);
	tar_member(&tar, '0', "dlrun/src/a", "", "a");
	tar_end(&tar);
	for (size_t i = 0; i < 2000000; i++)
		buf_addc(&tar, (char)i);
	digest_sha256(tar.data, tar.len, sha256);
	digest_text(sha256, diff_id);
	for (int wrong = 0; wrong < 2; wrong++) {
		AUTO_FD int fd = file_of(tar.data, tar.len - (size_t)wrong);
		AUTO_ENTRIES struct entry_list listed = {0};
		struct unpack_spec spec = spec_of(fd);
		spec.diff_id = spec.digest = diff_id;
		assert_int_equal(unpack_list(&spec, &listed, &err), wrong ? -ERR_REMOTE : 0);
		assert_int_equal(listed.n, !wrong);
	}
}

static void blob_of(enum codec codec, struct buf *ret, struct layer_result *result)
{
	AUTO_TREE struct tree tree = {0};
	const struct entry *pointers[4];

	tree_file(&tree, "a", "some text, some text, some text");
	tree_file(&tree, "b/c", "more");
	tree_link(&tree, "b/d", "c");
	struct layer_spec layer = tree_spec(&tree, pointers);
	layer.codec = codec;
	AUTO_FD int fd = layer_file(&layer, result);
	read_all(fd, ret);
}

static int list_checked(const struct buf *blob, size_t len, const struct layer_result *result)
{
	AUTO_ERR struct err err = {0};
	AUTO_ENTRIES struct entry_list listed = {0};
	AUTO_FD int fd = file_of(blob->data, len);
	struct unpack_spec spec = spec_of(fd);

	spec.digest = result->blob.digest;
	spec.diff_id = result->diff_id;
	int r = unpack_list(&spec, &listed, &err);
	assert_int_equal(r ? err.id : E_IMAGE, E_IMAGE);
	return r;
}

static void test_cut_and_flipped(void **state)
{
	static const enum codec codecs[] = {CODEC_NONE, CODEC_GZIP, CODEC_ZSTD};

	for (size_t c = 0; c < ARRAY_LEN(codecs); c++) {
		struct layer_result result;
		AUTO_BUF struct buf blob;
		blob_of(codecs[c], &blob, &result);
		assert_int_equal(list_checked(&blob, blob.len, &result), 0);
		for (size_t len = 0; len < blob.len; len++)
			assert_true(list_checked(&blob, len, &result) < 0);
		for (size_t i = 0; i < blob.len; i++) {
			blob.data[i] = (char)(blob.data[i] ^ 1 << i % 8);
			assert_true(list_checked(&blob, blob.len, &result) < 0);
			blob.data[i] = (char)(blob.data[i] ^ 1 << i % 8);
		}
	}
}

static int to_buf(void *ctx, const void *data, size_t len, struct err *err)
{
	buf_add(ctx, data, len);
	return 0;
}

static void test_bombs(void **state)
{
	for (enum codec codec = CODEC_GZIP; codec <= CODEC_ZSTD; codec++) {
		AUTO_ERR struct err err = {0};
		AUTO_BUF struct buf head, bomb;
		AUTO_ENCODER struct encoder *encoder = encoder_new(codec, to_buf, &bomb);
		AUTO_FREE char *zeros = mem_alloc(1 << 20, 1);
		AUTO_FD int dir_fd = new_dir();
		buf_init(&bomb, TAR_MAX);
		buf_init(&head, TAR_MAX);
		tar_header(&head, '0', "dlrun/src/zeros", "", 512u << 20);
		assert_int_equal(encoder_write(encoder, head.data, head.len, &err), 0);
		for (int i = 0; i < 512; i++)
			assert_int_equal(encoder_write(encoder, zeros, 1 << 20, &err), 0);
		assert_int_equal(encoder_end(encoder, &err), 0);
		assert_true(bomb.len < 4 << 20);
		assert_refused(&bomb, dir_fd, NULL, E_DATA_LIMIT);
	}
}

static void test_no_archive(void **state)
{
	const char *const texts[] = {"", "x", "this is no tar archive", "\x1f\x8b", "PK\x03\x04"};
	AUTO_BUF struct buf tar;
	AUTO_FD int dir_fd = new_dir();

	buf_init(&tar, TAR_MAX);
	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		buf_reset(&tar);
		buf_adds(&tar, texts[i]);
		assert_refused(&tar, dir_fd, NULL, E_IMAGE);
	}
	/* An archive of nothing is one. */
	AUTO_ENTRIES struct entry_list nothing = {0};
	buf_reset(&tar);
	tar_end(&tar);
	assert_gives(&tar, dir_fd, &nothing);
	assert_int_equal(nothing.n, 0);
}

/* Far more than one buffer of the reader: whatever ends where. */
static void test_many(void **state)
{
	AUTO_TREE struct tree tree = {0};
	enum { N = 3000 };
	AUTO_FREE const struct entry **pointers = mem_alloc(N, sizeof(*pointers));
	struct layer_result result;
	AUTO_ERR struct err err = {0};

	for (size_t i = 0; i < N; i++) {
		AUTO_FREE char *path = mem_printf("d%zu/e%zu/f%zu", i % 7, i % 131, i);
		AUTO_FREE char *content = mem_alloc(i % 1500 * (i % 3) + 1, 1);
		memset(content, 'x', i % 1500 * (i % 3));
		if (i % 10 == 9)
			tree_link(&tree, path, "somewhere/else");
		else
			tree_file(&tree, path, content);
	}
	struct layer_spec layer = tree_spec(&tree, pointers);
	AUTO_FD int fd = layer_file(&layer, &result), dir_fd = new_dir();
	struct unpack_spec spec = spec_of(fd);
	assert_int_equal(unpack_apply(&spec, dir_fd, &err), 0);
	assert_holds(dir_fd, &tree.list);
}

/*
 * Layers on layers.
 */

/* A lower tree in both forms. */
static void lower_of(const char *const *paths, size_t n, int *ret_fd, struct entry_list *list_of)
{
	AUTO_BUF struct buf tar;

	buf_init(&tar, TAR_MAX);
	for (size_t i = 0; i < n; i++) {
		AUTO_FREE char *name = mem_printf("dlrun/src/%s", paths[i]);
		tar_member(&tar, '0', name, "", paths[i]);
	}
	tar_end(&tar);
	*ret_fd = new_dir();
	assert_gives(&tar, *ret_fd, list_of);
	assert_int_equal(list_of->n, n);
}

static const char *const lower_paths[] = {"a", "d/a", "d/e/a", "d/e/b", "d/f", "x"};

struct step {
	char type;
	const char *name, *link;
};

/* The paths that are left after steps on the lower tree, with blanks between. */
static void assert_left(const struct step *steps, size_t n, const char *want)
{
	AUTO_ENTRIES struct entry_list listed = {0};
	AUTO_FD int dir_fd = -1;
	AUTO_BUF struct buf tar, have;

	lower_of(lower_paths, ARRAY_LEN(lower_paths), &dir_fd, &listed);
	buf_init(&tar, TAR_MAX);
	buf_init(&have, 4096);
	for (size_t i = 0; i < n; i++) {
		bool content = steps[i].type == '0' && !strstr(steps[i].name, ".wh.");
		tar_member(&tar, steps[i].type, steps[i].name, steps[i].link ? steps[i].link : "",
			content ? "new" : "");
	}
	tar_end(&tar);
	assert_gives(&tar, dir_fd, &listed);
	vec_foreach (const struct entry, e, &listed) {
		buf_adds(&have, have.len ? " " : "");
		buf_adds(&have, e->path);
		buf_adds(&have, e->kind == ENTRY_LINK ? "@" : e->size == 3 && e->path[0] ? "" : "");
	}
	assert_string_equal(have.data, want);
}

#define ASSERT_LEFT(want, ...)                                                                     \
	do {                                                                                       \
		const struct step steps_[] = {__VA_ARGS__};                                        \
		assert_left(steps_, ARRAY_LEN(steps_), want);                                      \
	} while (0)

#define W "dlrun/src/"

static void test_whiteouts(void **state)
{
	ASSERT_LEFT("d/a d/e/a d/e/b d/f x", {'0', W ".wh.a"});
	ASSERT_LEFT("a x", {'0', W ".wh.d"});
	ASSERT_LEFT("a d/a d/f x", {'0', W "d/.wh.e"});
	ASSERT_LEFT("a d/a d/e/b d/f x", {'0', W "d/e/.wh.a"});
	/* Of nothing. */
	ASSERT_LEFT("a d/a d/e/a d/e/b d/f x", {'0', W ".wh.no"}, {'0', W "no/.wh.no"},
		{'0', W "a/.wh.no"}, {'0', W "d/.wh.x"});
	/* On lower layers only, wherever they stand. */
	ASSERT_LEFT(
		"a d/e/n x", {'0', W ".wh.d"}, {'5', W "d/"}, {'5', W "d/e/"}, {'0', W "d/e/n"});
	ASSERT_LEFT(
		"a d/e/n x", {'5', W "d/"}, {'5', W "d/e/"}, {'0', W "d/e/n"}, {'0', W ".wh.d"});
	ASSERT_LEFT("a d/a d/e/a d/e/b d/f x", {'0', W "a"}, {'0', W ".wh.a"});
	ASSERT_LEFT("a d/a d/e/a d/f x", {'0', W "d/e/a"}, {'0', W "d/.wh.e"}, {'0', W "d/a"},
		{'0', W "d/f"}, {'0', W "d/.wh.a"});
}

static void test_opaque(void **state)
{
	ASSERT_LEFT("a x", {'0', W "d/.wh..wh..opq"});
	ASSERT_LEFT("a d/n x", {'0', W "d/n"}, {'0', W "d/.wh..wh..opq"});
	ASSERT_LEFT("a d/e/n x", {'0', W "d/e/n"}, {'0', W "d/.wh..wh..opq"});
	ASSERT_LEFT("", {'0', W ".wh..wh..opq"});
	ASSERT_LEFT("n", {'0', ".wh..wh..opq"}, {'0', W "n"});
	ASSERT_LEFT("n", {'0', W "n"}, {'0', "dlrun/.wh..wh..opq"});
	ASSERT_LEFT("", {'0', ".wh.dlrun"});
	ASSERT_LEFT("", {'0', "dlrun/.wh.src"});
	ASSERT_LEFT("a d/a d/e/a d/e/b d/f x", {'0', "dlrun/.wh.srcx"}, {'0', "etc/.wh..wh..opq"},
		{'0', W "no/.wh..wh..opq"}, {'0', W "a/.wh..wh..opq"});
}

static void test_replacing(void **state)
{
	/* A file by a directory, a directory by a file. */
	ASSERT_LEFT("a/n d/a d/e/a d/e/b d/f x", {'5', W "a/"}, {'0', W "a/n"});
	ASSERT_LEFT("a d x", {'0', W "d"});
	ASSERT_LEFT("a d/a d/e d/f x", {'0', W "d/e"});
	/* By a link, and a link by a directory. */
	ASSERT_LEFT("a d@ x", {'2', W "d", "/etc"});
	ASSERT_LEFT("a d/n x", {'2', W "d", "x"}, {'5', W "d/"}, {'0', W "d/n"});
	/* A directory that is there stays. */
	ASSERT_LEFT("a d/a d/e/a d/e/b d/f x", {'5', W "d/"}, {'5', W "d/e"});
	/* The last of a name counts. */
	ASSERT_LEFT("a@ d/a d/e/a d/e/b d/f x", {'0', W "a"}, {'2', W "a", "x"});
	ASSERT_LEFT("a d/n x", {'0', W "d"}, {'5', W "d"}, {'0', W "d/n"});
	ASSERT_LEFT("a d x", {'0', W "d/e/n"}, {'0', W "d"});
}

static void test_hard_links(void **state)
{
	AUTO_ENTRIES struct entry_list listed = {0};
	AUTO_FD int dir_fd = -1;
	AUTO_BUF struct buf tar;
	struct stat one, other;

	ASSERT_LEFT("a d/a d/e/a d/e/b d/f h x", {'1', W "h", W "d/e/a"});
	ASSERT_LEFT("a d/a d/e/a d/e/b d/f h n x", {'0', W "n"}, {'1', W "h", W "n"});
	ASSERT_LEFT("a d x", {'1', W "d", W "a"});
	lower_of(lower_paths, ARRAY_LEN(lower_paths), &dir_fd, &listed);
	buf_init(&tar, TAR_MAX);
	tar_member(&tar, '1', W "h", W "a", "");
	tar_member(&tar, '0', W "a", "", "replaced");
	tar_end(&tar);
	assert_gives(&tar, dir_fd, &listed);
	/* The other name keeps what it had. */
	assert_int_equal(fstatat(dir_fd, "h", &one, 0), 0);
	assert_int_equal(fstatat(dir_fd, "a", &other, 0), 0);
	assert_int_equal(one.st_size, 1);
	assert_int_equal(other.st_size, 8);
}

/*
 * Hostile layers. Each of them is refused both ways, and nothing changes outside.
 */

static const struct {
	const char *what;
	struct step steps[4];
} hostile[] = {
	{"absolute name", {{'0', "/dlrun/src/n", NULL}}},
	{"absolute name elsewhere", {{'0', "/tmp/n", NULL}}},
	{"climbing name", {{'0', W "../../n", NULL}}},
	{"climbing name outside", {{'0', "etc/../../n", NULL}}},
	{"climbing at the end", {{'5', W "d/..", NULL}}},
	{"write through a link of the layer", {{'2', W "l", "/tmp"}, {'0', W "l/canary", NULL}}},
	{"write through a link upwards", {{'2', W "l", ".."}, {'0', W "l/canary", NULL}}},
	{"write through a link to a directory", {{'2', W "l", "d"}, {'0', W "l/n", NULL}}},
	{"write through a lower link", {{'0', W "out/canary", NULL}}},
	{"write through a lower file", {{'0', W "a/n", NULL}}},
	{"directory through a lower link", {{'5', W "out/n", NULL}}},
	{"write through a file of the layer", {{'0', W "n", NULL}, {'0', W "n/n", NULL}}},
	{"directory replaced by a link, then a file below",
		{{'5', W "d/", NULL}, {'2', W "d", "/tmp"}, {'0', W "d/canary", NULL}}},
	{"device", {{'3', W "null", NULL}}},
	{"block device", {{'4', W "sda", NULL}}},
	{"pipe", {{'6', W "pipe", NULL}}},
	{"hard link outside", {{'1', W "h", "etc/passwd"}}},
	{"hard link upwards", {{'1', W "h", "../../etc/passwd"}}},
	{"hard link to an absolute name", {{'1', W "h", "/etc/passwd"}}},
	{"hard link to nothing", {{'1', W "h", W "no"}}},
	{"hard link to a directory", {{'1', W "h", W "d"}}},
	{"hard link to itself", {{'1', W "a", W "a"}}},
	{"hard link through a link", {{'1', W "h", W "out/canary"}}},
	{"hard link to a link", {{'2', W "l", "/etc/passwd"}, {'1', W "h", W "l"}}},
	{"hard link into what it replaces", {{'1', W "d", W "d/a"}}},
	{"hard link to the workdir", {{'1', W "h", "dlrun/src"}}},
	{"hard link to a whiteout", {{'1', W "h", W ".wh.a"}}},
	{"whiteout of nothing", {{'0', W ".wh.", NULL}}},
	{"whiteout of .", {{'0', W ".wh..", NULL}}},
	{"whiteout of ..", {{'0', W ".wh...", NULL}}},
	{"whiteout of .. at the top", {{'0', ".wh...", NULL}}},
	{"whiteout that is a directory", {{'5', W ".wh.a", NULL}}},
	{"whiteout that is a link", {{'2', W ".wh.a", "x"}}},
	{"something below a whiteout", {{'0', W ".wh.d/n", NULL}}},
	{"reserved name", {{'0', W ".wh..wh.plnk", NULL}}},
	{"the root as a link", {{'2', "./", "/tmp"}}},
	{"the root as a file", {{'0', ".", NULL}}},
	{"a parent of the workdir as a link", {{'2', "dlrun", "/tmp"}}},
	{"the workdir as a link", {{'2', "dlrun/src", "/tmp"}}},
	{"the workdir as a file", {{'0', "dlrun/src", NULL}}},
	{"the workdir as a hard link", {{'1', "dlrun/src", W "a"}}},
	{"link to nothing", {{'2', W "l", ""}}},
};

static void test_hostile(void **state)
{
	AUTO_FD int outside = new_dir();
	AUTO_FREE char *proc = mem_printf("/proc/self/fd/%d", outside);
	char target[4096] = "";

	assert_true(readlink(proc, target, sizeof(target) - 1) > 0);
	close(openat(outside, "canary", O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
	for (size_t i = 0; i < ARRAY_LEN(hostile); i++) {
		AUTO_ENTRIES struct entry_list listed = {0}, out = {0};
		AUTO_FD int dir_fd = -1;
		AUTO_BUF struct buf tar;
		lower_of(lower_paths, ARRAY_LEN(lower_paths), &dir_fd, &listed);
		buf_init(&tar, TAR_MAX);
		tar_member(&tar, '2', W "out", target, "");
		tar_end(&tar);
		assert_gives(&tar, dir_fd, &listed);
		buf_reset(&tar);
		for (size_t k = 0; k < 4 && hostile[i].steps[k].name; k++) {
			const struct step *step = &hostile[i].steps[k];
			tar_member(&tar, step->type, step->name, step->link ? step->link : "", "");
		}
		tar_end(&tar);
		print_message("%s\n", hostile[i].what);
		assert_refused(&tar, dir_fd, &listed, E_IMAGE);
		list_dir(outside, &out);
		assert_int_equal(out.n, 1);
		assert_int_equal(out.v[0].size, 0);
	}
}

static void test_long_hostile_names(void **state)
{
	AUTO_FD int dir_fd = new_dir();

	for (int i = 0; i < 4; i++) {
		AUTO_BUF struct buf tar, name;
		buf_init(&tar, TAR_MAX);
		buf_init(&name, TAR_MAX);
		buf_adds(&name, i == 2 ? "etc/" : W);
		for (size_t k = 0; k < (i == 1 ? 256u : i == 3 ? 100000u : 5000u); k++)
			buf_addc(&name, i != 1 && k % 2 ? '/' : 'n');
		tar_member(&tar, i == 3 ? '2' : '0', i == 3 ? W "l" : name.data,
			i == 3 ? name.data : "", "");
		tar_end(&tar);
		assert_refused(&tar, dir_fd, NULL, E_IMAGE);
	}
}

/* Set-id bits go, other users' files become ours, everything outside the workdir is passed over. */
static void test_harmless(void **state)
{
	AUTO_ENTRIES struct entry_list listed = {0};
	AUTO_FD int dir_fd = new_dir();
	AUTO_BUF struct buf tar;
	struct stat st;

	buf_init(&tar, TAR_MAX);
	tar_member(&tar, '5', "dev/", "", "");
	tar_member(&tar, '3', "dev/null", "", "");
	tar_member(&tar, '2', "lib", "usr/lib", "");
	tar_member(&tar, '1', "bin/sh", "bin/dash", "");
	tar_member(&tar, '0', "dlrun/other", "", "other");
	tar_member(&tar, '0', "dlrun/src2/n", "", "other");
	tar_member(&tar, '5', "./dlrun/", "", "");
	tar_member(&tar, '5', "./dlrun/src/", "", "");
	size_t at = tar.len;
	tar_member(&tar, '0', "./dlrun/src/su", "", "su");
	memcpy(tar.data + at + 100, "0006777", 8);
	memset(tar.data + at + 148, ' ', 8);
	unsigned sum = 0;
	for (size_t i = 0; i < 512; i++)
		sum += (uint8_t)tar.data[at + i];
	snprintf(tar.data + at + 148, 8, "%06o", sum);
	tar_end(&tar);
	assert_gives(&tar, dir_fd, &listed);
	assert_int_equal(listed.n, 1);
	assert_true(listed.v[0].exec);
	assert_int_equal(fstatat(dir_fd, "su", &st, 0), 0);
	assert_int_equal(st.st_mode & 07000, 0);
}

static void pax(struct buf *tar, const char *key, const char *value)
{
	AUTO_FREE char *body = mem_printf(" %s=%s\n", key, value);
	size_t len = strlen(body) + 2;
	AUTO_FREE char *record = mem_printf("%zu%s", len, body);

	assert_int_equal(strlen(record), len);
	tar_member(tar, 'x', "pax", "", record);
}

/* Sparse files claim sizes that they do not have. */
static void test_sparse(void **state)
{
	AUTO_FD int dir_fd = new_dir();
	AUTO_BUF struct buf tar;

	buf_init(&tar, TAR_MAX);
	pax(&tar, "GNU.sparse.map", "0,1,8888888888,1");
	tar_member(&tar, '0', W "s", "", "xy");
	tar_end(&tar);
	assert_refused(&tar, dir_fd, NULL, E_IMAGE);
}

/*
 * At random: whatever a layer says, both ways take it and give the same, or both refuse it.
 */

static uint64_t seed;

static unsigned below(unsigned n)
{
	seed ^= seed >> 12;
	seed ^= seed << 25;
	seed ^= seed >> 27;
	return (unsigned)((seed * 0x2545f4914f6cdd1d >> 33) % n);
}

static char *random_path(void)
{
	static const char *const names[] = {"a", "b", "c"};
	const char *x = names[below(3)], *y = names[below(3)], *z = names[below(3)];

	switch (below(3)) {
	case 0:
		return mem_strdup(x);
	case 1:
		return mem_printf("%s/%s", x, y);
	default:
		return mem_printf("%s/%s/%s", x, y, z);
	}
}

static void random_member(struct buf *tar)
{
	AUTO_FREE char *path = random_path(), *other = random_path();
	AUTO_FREE char *name = mem_printf(W "%s", path), *target = mem_printf(W "%s", other);
	AUTO_FREE char *content = mem_printf("%u", below(1000));
	const char *last = strrchr(name, '/') + 1;
	AUTO_FREE char *dir = mem_strndup(name, (size_t)(last - name));
	AUTO_FREE char *whiteout = mem_printf("%s.wh.%s", dir, last);
	AUTO_FREE char *opaque = mem_printf("%s/.wh..wh..opq", name);

	switch (below(12)) {
	case 0:
	case 1:
		tar_member(tar, '5', name, "", "");
		break;
	case 2:
		tar_member(tar, '2', name, other, "");
		break;
	case 3:
		tar_member(tar, '1', name, target, "");
		break;
	case 4:
	case 5:
		tar_member(tar, '0', whiteout, "", "");
		break;
	case 6:
		tar_member(tar, '0', below(8) ? opaque : ".wh..wh..opq", "", "");
		break;
	default:
		tar_member(tar, '0', name, "", content);
	}
}

/* One path the third way. */
static void check_file(
	const struct buf *tar, const struct entry_list *before, const struct entry_list *after)
{
	AUTO_FREE char *path = random_path();
	AUTO_ERR struct err err = {0};
	AUTO_BUF struct buf out = {0};
	const struct entry *have = entry_find(before, path), *want = entry_find(after, path);
	uint8_t sha256[SHA256_SIZE];
	int found;

	if (file(tar, path, &out, &found, &err)) {
		assert_non_null(strstr(err.message, "hard link"));
		return;
	}
	digest_sha256(out.data, out.len, sha256);
	if (found == 1) {
		assert_non_null(want);
		assert_memory_equal(sha256, want->sha256, SHA256_SIZE);
		return;
	}
	assert_int_equal(out.len, 0);
	if (found == 0 && have)
		assert_true(want && entry_same(have, want));
	else
		assert_null(want);
}

static void check_random(uint64_t number)
{
	AUTO_ENTRIES struct entry_list listed = {0}, before = {0};
	AUTO_FD int dir_fd = new_dir();
	AUTO_BUF struct buf tar;

	seed = number * 0x9e3779b97f4a7c15 + 1;
	buf_init(&tar, TAR_MAX);
	for (int layer = 0; layer < 4; layer++) {
		AUTO_ERR struct err err = {0}, other = {0};
		buf_reset(&tar);
		for (unsigned n = below(10); n; n--)
			random_member(&tar);
		tar_end(&tar);
		entry_list_done(&before);
		before = (struct entry_list){0};
		vec_foreach (const struct entry, e, &listed)
			entry_add(&before, e);
		int applied = apply(&tar, dir_fd, &err);
		int r = list(&tar, &listed, &other);
		if (applied != r)
			fail_msg("%llu, layer %d: applied: %s, listed: %s",
				(unsigned long long)number, layer, applied ? err.message : "yes",
				r ? other.message : "yes");
		if (r)
			return;
		assert_holds(dir_fd, &listed);
		check_file(&tar, &before, &listed);
	}
}

static void test_random_layers(void **state)
{
	for (uint64_t i = 0; i < 150; i++)
		check_random(i);
}

/*
 * One file.
 */

static void assert_file(const struct buf *tar, const char *path, int want, const char *content)
{
	AUTO_ERR struct err err = {0};
	AUTO_BUF struct buf out = {0};
	int found;

	if (file(tar, path, &out, &found, &err))
		fail_msg("%s: %s", path, err.message);
	assert_int_equal(found, want);
	assert_string_equal(out.data, content);
}

static void test_file(void **state)
{
	AUTO_BUF struct buf tar;

	buf_init(&tar, TAR_MAX);
	tar_member(&tar, '5', W, "", "");
	tar_member(&tar, '0', W ".wh.gone", "", "");
	tar_member(&tar, '0', W "a", "", "content of a");
	tar_member(&tar, '0', W "d/.wh.x", "", "");
	tar_member(&tar, '0', W "d/x", "", "new");
	tar_member(&tar, '0', W "e/.wh..wh..opq", "", "");
	tar_member(&tar, '0', W "empty", "", "");
	tar_member(&tar, '2', W "l", "to/somewhere", "");
	tar_member(&tar, '0', W "twice", "", "the first, which is longer");
	tar_member(&tar, '0', W "twice", "", "the second");
	tar_member(&tar, '0', W "was", "", "a file");
	tar_member(&tar, '5', W "was", "", "");
	tar_end(&tar);
	assert_file(&tar, "a", 1, "content of a");
	assert_file(&tar, "a/below", -1, "");
	assert_file(&tar, "aa", 0, "");
	assert_file(&tar, "no", 0, "");
	assert_file(&tar, "gone", -1, "");
	assert_file(&tar, "gone/below", -1, "");
	assert_file(&tar, "d", -1, "");
	assert_file(&tar, "d/x", 1, "new");
	assert_file(&tar, "d/y", 0, "");
	assert_file(&tar, "e/x", -1, "");
	assert_file(&tar, "e", 0, "");
	assert_file(&tar, "empty", 1, "");
	assert_file(&tar, "l", 1, "to/somewhere");
	assert_file(&tar, "twice", 1, "the second");
	assert_file(&tar, "was", -1, "");
}

/* What cannot be taken back is refused. */
static void test_file_to_a_pipe(void **state)
{
	AUTO_ERR struct err err = {0};
	AUTO_BUF struct buf tar;
	int pipes[2], found;
	char out[64] = "";

	buf_init(&tar, TAR_MAX);
	tar_member(&tar, '0', W "once", "", "fine");
	tar_member(&tar, '0', W "twice", "", "1");
	tar_member(&tar, '0', W "twice", "", "2");
	tar_end(&tar);
	assert_int_equal(pipe(pipes), 0);
	AUTO_FD int fd = file_of(tar.data, tar.len), in = pipes[0], to = pipes[1];
	struct unpack_spec spec = spec_of(fd);
	assert_int_equal(unpack_file(&spec, "once", to, &found, &err), 0);
	assert_int_equal(read(in, out, sizeof(out)), 4);
	assert_string_equal(out, "fine");
	lseek(fd, 0, SEEK_SET);
	assert_int_equal(unpack_file(&spec, "twice", to, &found, &err), -ERR_REMOTE);
	assert_int_equal(err.id, E_IMAGE);
}

/* No room, no permission: the path and the reason are named. */
static void test_failing_disk(void **state)
{
	AUTO_ERR struct err err = {0};
	AUTO_BUF struct buf tar;
	AUTO_FD int nowhere = open("/proc/self/fdinfo", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	buf_init(&tar, TAR_MAX);
	tar_member(&tar, '0', W "a", "", "x");
	tar_end(&tar);
	assert_true(nowhere >= 0);
	assert_true(apply(&tar, nowhere, &err) < 0);
	assert_non_null(strstr(err.message, "making a"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_attributes),
		cmocka_unit_test(test_long_names),
		cmocka_unit_test(test_digests),
		cmocka_unit_test(test_trailing_bytes),
		cmocka_unit_test(test_cut_and_flipped),
		cmocka_unit_test(test_bombs),
		cmocka_unit_test(test_no_archive),
		cmocka_unit_test(test_many),
		cmocka_unit_test(test_whiteouts),
		cmocka_unit_test(test_opaque),
		cmocka_unit_test(test_replacing),
		cmocka_unit_test(test_hard_links),
		cmocka_unit_test(test_hostile),
		cmocka_unit_test(test_long_hostile_names),
		cmocka_unit_test(test_harmless),
		cmocka_unit_test(test_sparse),
		cmocka_unit_test(test_random_layers),
		cmocka_unit_test(test_file),
		cmocka_unit_test(test_file_to_a_pipe),
		cmocka_unit_test(test_failing_disk),
	};

	return cmocka_run_group_tests(tests, make_root, remove_root);
}
