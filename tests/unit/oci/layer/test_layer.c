/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/layerfix.h"

#include <inttypes.h>
#include <locale.h>
#include <time.h>

#include "base/loop/proc.h"

/*
 * A reader of our own, so that what is written is not judged by the library that wrote it.
 */

struct member {
	char type;
	unsigned mode, uid, gid;
	uint64_t size;
	int64_t mtime;
	char *name, *link;
	const char *data;
	bool plain; /* no user, no group, no device */
};

struct members VEC_OF(struct member);

static void members_done(struct members *members)
{
	vec_foreach (struct member, m, members) {
		free(m->name);
		free(m->link);
	}
	vec_done(members);
}

static uint64_t number(const char *field, size_t len)
{
	uint64_t value = 0;

	if ((uint8_t)field[0] == 0x80 || (uint8_t)field[0] == 0xff) {
		value = (uint8_t)field[0] == 0xff ? UINT64_MAX : 0;
		for (size_t i = 1; i < len; i++)
			value = value << 8 | (uint8_t)field[i];
		return value;
	}
	for (size_t i = 0; i < len && field[i] >= '0' && field[i] <= '7'; i++)
		value = value * 8 + (uint64_t)(field[i] - '0');
	return value;
}

static char *text(const char *field, size_t max)
{
	return mem_strndup(field, max);
}

static void check_sum(const char *block)
{
	unsigned sum = 0;

	for (size_t i = 0; i < 512; i++)
		sum += i >= 148 && i < 156 ? ' ' : (uint8_t)block[i];
	assert_int_equal(number(block + 148, 8), sum);
}

static void parse_tar(const struct buf *tar, struct members *ret)
{
	static const char zeros[1024];
	char *name = NULL, *link = NULL;
	size_t at = 0;

	assert_int_equal(tar->len % 512, 0);
	while (tar->data[at]) {
		const char *block = tar->data + at;
		struct member m = {.type = block[156], .data = block + 512};
		assert_true(at + 1024 <= tar->len);
		check_sum(block);
		assert_memory_equal(block + 257, "ustar  ", 8);
		m.mode = (unsigned)number(block + 100, 8);
		m.uid = (unsigned)number(block + 108, 8);
		m.gid = (unsigned)number(block + 116, 8);
		m.size = number(block + 124, 12);
		m.mtime = (int64_t)number(block + 136, 12);
		m.plain = !block[265] && !block[297] && number(block + 329, 8) == 0 &&
			  number(block + 337, 8) == 0;
		at += 512 + (m.size + 511) / 512 * 512;
		assert_true(at < tar->len);
		if (m.type == 'L' || m.type == 'K') {
			assert_string_equal(block, "././@LongLink");
			char **to = m.type == 'L' ? &name : &link;
			*to = text(m.data, m.size);
			continue;
		}
		m.name = name ? name : text(block, 100);
		m.link = link ? link : text(block + 157, 100);
		name = link = NULL;
		*vec_push(ret) = m;
	}
	assert_int_equal(tar->len - at, 1024);
	assert_memory_equal(tar->data + at, zeros, 1024);
}

static void written(const struct layer_spec *spec, struct members *ret, struct layer_result *result)
{
	AUTO_FD int fd = layer_file(spec, result);
	AUTO_BUF struct buf tar;

	read_all(fd, &tar);
	parse_tar(&tar, ret);
	/* The members' data stays with them. */
	vec_foreach (struct member, m, ret)
		m->data = NULL;
}

static void assert_names(const struct layer_spec *spec, const char *const *names, size_t n)
{
	AUTO(members_done) struct members members = {0};
	struct layer_result result;

	written(spec, &members, &result);
	for (size_t i = 0; i < n && i < members.n; i++)
		assert_string_equal(members.v[i].name, names[i]);
	assert_int_equal(members.n, n);
}

/*
 * The fixed tree.
 */

static void small_tree(struct tree *tree)
{
	tree_file(tree, "README", "hello\n");
	tree_exec(tree, "bin/run", "#!/bin/sh\nexec python3 train.py\n");
	tree_file(tree, "bin-x", "-");
	tree_file(tree, "empty", "");
	tree_file(tree, "src/caf\xc3\xa9.py", "print('caf\xc3\xa9')\n");
	tree_link(tree, "src/data", "../../data");
}

#define SMALL_DIFF_ID "sha256:644d9bc467a3223e83f558725b14ca6ab5f05c2b049e3e89e6f3b30c5fd2751b"
static const char small_listing[] =
	"drwxrwxr-x 0/0               0 1980-01-02 00:00 dlrun/src/\n"
	"-rw-rw-r-- 0/0               0 1980-01-02 00:00 dlrun/src/.wh..wh..opq\n"
	"-rw-rw-r-- 0/0               6 1980-01-02 00:00 dlrun/src/README\n"
	"-rw-rw-r-- 0/0               1 1980-01-02 00:00 dlrun/src/bin-x\n"
	"drwxrwxr-x 0/0               0 1980-01-02 00:00 dlrun/src/bin/\n"
	"-rwxrwxr-x 0/0              32 1980-01-02 00:00 dlrun/src/bin/run\n"
	"-rw-rw-r-- 0/0               0 1980-01-02 00:00 dlrun/src/empty\n"
	"drwxrwxr-x 0/0               0 1980-01-02 00:00 dlrun/src/src/\n"
	"-rw-rw-r-- 0/0              15 1980-01-02 00:00 dlrun/src/src/caf\\303\\251.py\n"
	"lrwxrwxrwx 0/0               0 1980-01-02 00:00 dlrun/src/src/data -> ../../data\n";

static void test_golden(void **state)
{
	static const enum codec codecs[] = {CODEC_NONE, CODEC_GZIP, CODEC_ZSTD};
	AUTO_TREE struct tree tree = {0};
	const struct entry *pointers[16];

	small_tree(&tree);
	struct layer_spec spec = tree_spec(&tree, pointers);
	for (size_t i = 0; i < ARRAY_LEN(codecs); i++) {
		struct layer_result result;
		spec.codec = codecs[i];
		AUTO_FD int fd = layer_file(&spec, &result);
		AUTO_BUF struct buf blob;
		uint8_t sha256[SHA256_SIZE];
		char digest[DIGEST_TEXT_SIZE];
		read_all(fd, &blob);
		digest_sha256(blob.data, blob.len, sha256);
		digest_text(sha256, digest);
		assert_string_equal(result.diff_id, SMALL_DIFF_ID);
		assert_string_equal(result.blob.digest, digest);
		assert_int_equal(result.blob.size, blob.len);
		assert_int_equal(result.tar_size, 8192);
		assert_string_equal(result.blob.media_type, "");
	}
}

/* One in which i and I are letters of two kinds; false where there is nothing to make it from. */
static bool make_turkish(void)
{
	AUTO_FREE char *to = mem_printf("%s/tr_TR.UTF-8", root);
	const char *const argv[] = {"localedef", "-i", "tr_TR", "-f", "UTF-8", to, NULL};
	AUTO_BUF struct buf out;
	int status = -1;

	buf_init(&out, 1 << 16);
	if (proc_capture(argv, NULL, 60000, &out, &status, NULL) || status)
		return false;
	setenv("LOCPATH", root, 1);
	assert_non_null(setlocale(LC_ALL, "tr_TR.UTF-8"));
	return true;
}

/* The same bytes whatever the process was started with. */
static void test_surroundings(void **state)
{
	const char *const locales[] = {"C", "C.UTF-8", "tr_TR.UTF-8", "en_US.ISO-8859-1", "POSIX"};
	const char *const zones[] = {"UTC", "Asia/Kolkata", "America/St_Johns"};
	AUTO_TREE struct tree tree = {0};
	const struct entry *pointers[16];
	mode_t mask = umask(022);

	if (!make_turkish())
		print_message("no Turkish locale can be made here\n");
	small_tree(&tree);
	struct layer_spec spec = tree_spec(&tree, pointers);
	for (size_t i = 0; i < ARRAY_LEN(locales); i++) {
		struct layer_result result;
		setlocale(LC_ALL, locales[i]); /* one that is not installed changes nothing */
		setenv("TZ", zones[i % ARRAY_LEN(zones)], 1);
		tzset();
		umask(i % 2 ? 0777 : 022);
		close(layer_file(&spec, &result));
		assert_string_equal(result.diff_id, SMALL_DIFF_ID);
	}
	umask(mask);
	setlocale(LC_ALL, "C");
	unsetenv("LOCPATH");
	unsetenv("TZ");
}

static void run_tar(const char *const *argv, struct buf *out)
{
	AUTO_ERR struct err err = {0};
	int status;

	buf_init(out, 1 << 20);
	if (proc_capture(argv, NULL, 60000, out, &status, &err))
		fail_msg("tar: %s", err.message);
	assert_int_equal(status, 0);
}

static void test_gnu_tar_reads_it(void **state)
{
	static const enum codec codecs[] = {CODEC_NONE, CODEC_GZIP};
	AUTO_TREE struct tree tree = {0};
	const struct entry *pointers[16];
	AUTO_ERR struct err err = {0};
	AUTO_FREE char *path = mem_printf("%s/layer", root);

	small_tree(&tree);
	struct layer_spec spec = tree_spec(&tree, pointers);
	for (size_t i = 0; i < ARRAY_LEN(codecs); i++) {
		const char *argv[] = {"env", "LC_ALL=C", "tar", "--utc", "--quoting-style=escape",
			"-tvf", path, NULL};
		struct layer_result result;
		spec.codec = codecs[i];
		AUTO_FD int fd = layer_file(&spec, &result);
		AUTO_BUF struct buf blob, out;
		read_all(fd, &blob);
		assert_int_equal(
			fs_replace(path, blob.data, blob.len, 0600, FS_SYNC_NONE, &err), 0);
		run_tar(argv, &out);
		assert_string_equal(out.data, small_listing);
	}
	unlink(path);
}

/*
 * Headers and names.
 */

static void test_fields(void **state)
{
	AUTO_TREE struct tree tree = {0};
	const struct entry *pointers[16];
	AUTO(members_done) struct members members = {0};
	struct layer_result result;

	small_tree(&tree);
	struct layer_spec spec = tree_spec(&tree, pointers);
	written(&spec, &members, &result);
	assert_int_equal(members.n, 10);
	vec_foreach (struct member, m, &members) {
		assert_true(m->plain);
		assert_int_equal(m->uid, 0);
		assert_int_equal(m->gid, 0);
		assert_int_equal(m->mtime, LAYER_MTIME);
		if (m->type == '5')
			assert_int_equal(m->mode & 07777, 0775);
	}
	assert_int_equal(members.v[0].type, '5');
	assert_string_equal(members.v[0].name, "dlrun/src/");
	assert_int_equal(members.v[2].mode & 07777, 0664);
	assert_int_equal(members.v[2].type, '0');
	assert_int_equal(members.v[5].mode & 07777, 0775);
	assert_int_equal(members.v[9].type, '2');
	assert_int_equal(members.v[9].mode & 07777, 0777);
	assert_string_equal(members.v[9].link, "../../data");
	assert_int_equal(members.v[9].size, 0);
}

static void test_times(void **state)
{
	const int64_t times[] = {0, 1, 1700000000, 4291747200, LAYER_MTIME_MAX};
	const int64_t bad[] = {-1, LAYER_MTIME_MAX + 1, INT64_MIN, INT64_MAX};

	for (size_t i = 0; i < ARRAY_LEN(times); i++) {
		AUTO_TREE struct tree tree = {0};
		const struct entry *pointers[1];
		AUTO(members_done) struct members members = {0};
		struct layer_result result;
		tree_file(&tree, "a", "a");
		struct layer_spec spec = tree_spec(&tree, pointers);
		spec.mtime_s = times[i];
		written(&spec, &members, &result);
		assert_int_equal(members.v[1].mtime, times[i]);
	}
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		AUTO_TREE struct tree tree = {0};
		AUTO_ERR struct err err = {0};
		AUTO_STAGE struct blob_stage stage = {0};
		struct layer_result result;
		struct layer_spec spec = tree_spec(&tree, NULL);
		spec.mtime_s = bad[i];
		assert_int_equal(layer_write(&spec, &stage, &result, &err), -ERR_USAGE);
	}
}

static char *repeat(const char *s, size_t n)
{
	size_t len = strlen(s);
	char *all = mem_alloc(n * len + 1, 1);

	for (size_t i = 0; i < n; i++)
		memcpy(all + i * len, s, len);
	return all;
}

/* What libarchive makes of these names. */
#define NAMES_DIFF_ID "sha256:d42b85626b7512eee46478d535f1a206b70e1edc5eda73d76759b1bbce89cefa"

/* Every byte of a name and of a target comes back. */
static void test_names(void **state)
{
	AUTO_FREE char *component = repeat("n", 255), *deep = repeat("d/", 2000);
	AUTO_FREE char *path = mem_printf("%sx", deep), *target = repeat("t/", 2000);
	const char *const names[] = {" ", "a b", "new\nline", "tab\t", "quote\"'", "\xff\xfe",
		"\xf0\x9f\x98\x80", "\xc3\xa9", "e\xcc\x81", component, path, "-rf", "~", "*",
		"back\\slash", "\x01\x7f", "..a", "a.", "CON", "100%"};
	AUTO_TREE struct tree tree = {0};
	const struct entry *pointers[64];
	AUTO(members_done) struct members members = {0};
	struct layer_result result;
	size_t found = 0;

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		tree_file(&tree, names[i], names[i]);
		AUTO_FREE char *link = mem_printf("links/%zu", i);
		tree_link(&tree, link, i == 10 ? target : names[i]);
	}
	struct layer_spec spec = tree_spec(&tree, pointers);
	written(&spec, &members, &result);
	vec_foreach (struct member, m, &members) {
		const char *name = m->name + strlen("dlrun/src/");
		const struct entry *e = entry_find(&tree.list, name);
		if (!e)
			continue;
		found++;
		if (e->kind == ENTRY_LINK)
			assert_string_equal(m->link, e->target);
		else
			assert_int_equal(m->size, e->size);
	}
	assert_int_equal(found, 2 * ARRAY_LEN(names));
	/* The workdir and its mark, links/, and d/ two thousand times. */
	assert_int_equal(members.n, found + 3 + 2000);
	assert_string_equal(result.diff_id, NAMES_DIFF_ID);
}

static void test_refused_names(void **state)
{
	AUTO_FREE char *over = repeat("x/", 2048), *long_name = repeat("n", 256);
	const char *const bad[] = {".wh.x", "a/.wh..wh..opq", "a/.wh.b/c", "/abs", "a//b", "../x",
		"a/./b", "a/", "", over, long_name};

	for (size_t i = 0; i < 2 * ARRAY_LEN(bad); i++) {
		AUTO_TREE struct tree tree = {0};
		AUTO_ERR struct err err = {0};
		AUTO_STAGE struct blob_stage stage = {0};
		const struct entry *pointers[1];
		const char *whiteouts[] = {bad[i / 2]};
		struct layer_result result;
		tree_file(&tree, i % 2 ? "ok" : bad[i / 2], "");
		struct layer_spec spec = tree_spec(&tree, pointers);
		spec.whiteouts = whiteouts;
		spec.n_whiteouts = i % 2;
		assert_int_equal(blob_stage_begin(&stage, root_fd, &err), 0);
		assert_int_equal(layer_write(&spec, &stage, &result, &err), -ERR_LIMIT);
		assert_int_equal(err.id, E_SNAPSHOT_NAME);
	}
}

/*
 * Order.
 */

static void test_order(void **state)
{
	static const char *const want[] = {"dlrun/src/", "dlrun/src/.wh..wh..opq", "dlrun/src/!",
		"dlrun/src/a-b", "dlrun/src/a.b", "dlrun/src/a/", "dlrun/src/a/-", "dlrun/src/a/b/",
		"dlrun/src/a/b/c", "dlrun/src/a0", "dlrun/src/b/", "dlrun/src/b/c/",
		"dlrun/src/b/c/d/", "dlrun/src/b/c/d/e", "dlrun/src/b/c0", "dlrun/src/ba/",
		"dlrun/src/ba/c"};
	AUTO_TREE struct tree tree = {0};
	const struct entry *pointers[16];

	tree_file(&tree, "b/c/d/e", "");
	tree_file(&tree, "b/c0", "");
	tree_file(&tree, "ba/c", "");
	tree_file(&tree, "a/b/c", "");
	tree_file(&tree, "a/-", "");
	tree_file(&tree, "a-b", "");
	tree_file(&tree, "a.b", "");
	tree_file(&tree, "a0", "");
	tree_file(&tree, "!", "");
	struct layer_spec spec = tree_spec(&tree, pointers);
	assert_names(&spec, want, ARRAY_LEN(want));
	/* A delta has the directories of its entries too, so that a runtime gives them our
	 * modes. */
	static const char *const delta[] = {"dlrun/src/", "dlrun/src/b/", "dlrun/src/b/c/",
		"dlrun/src/b/c/d/", "dlrun/src/b/c/d/e"};
	spec.full = false;
	spec.entries += 6;
	spec.n_entries = 1;
	assert_names(&spec, delta, ARRAY_LEN(delta));
}

static void test_whiteout_order(void **state)
{
	static const char *const whiteouts[] = {"!", "a/b/gone", "a/b2/x/y", "a/gone", "c", "z/z"};
	static const char *const want[] = {"dlrun/src/", "dlrun/src/.wh.!", "dlrun/src/.wh.c",
		"dlrun/src/!new", "dlrun/src/a/", "dlrun/src/a/.wh.gone", "dlrun/src/a/!",
		"dlrun/src/a/b/", "dlrun/src/a/b/.wh.gone", "dlrun/src/a/b/new", "dlrun/src/a/b2/",
		"dlrun/src/a/b2/x/", "dlrun/src/a/b2/x/.wh.y", "dlrun/src/a/c", "dlrun/src/d",
		"dlrun/src/z/", "dlrun/src/z/.wh.z"};
	AUTO_TREE struct tree tree = {0};
	AUTO(members_done) struct members members = {0};
	const struct entry *pointers[16];
	struct layer_result result;

	tree_file(&tree, "!new", "");
	tree_file(&tree, "a/!", "");
	tree_file(&tree, "a/b/new", "");
	tree_file(&tree, "a/c", "");
	tree_file(&tree, "d", "");
	struct layer_spec spec = tree_spec(&tree, pointers);
	spec.full = false;
	spec.whiteouts = whiteouts;
	spec.n_whiteouts = ARRAY_LEN(whiteouts);
	assert_names(&spec, want, ARRAY_LEN(want));
	written(&spec, &members, &result);
	assert_int_equal(members.v[1].type, '0');
	assert_int_equal(members.v[1].size, 0);
	/* Only whiteouts. */
	static const char *const alone[] = {"dlrun/src/", "dlrun/src/.wh.!", "dlrun/src/.wh.c",
		"dlrun/src/a/", "dlrun/src/a/.wh.gone", "dlrun/src/a/b/", "dlrun/src/a/b/.wh.gone",
		"dlrun/src/a/b2/", "dlrun/src/a/b2/x/", "dlrun/src/a/b2/x/.wh.y", "dlrun/src/z/",
		"dlrun/src/z/.wh.z"};
	spec.n_entries = 0;
	assert_names(&spec, alone, ARRAY_LEN(alone));
}

static void test_empty_layers(void **state)
{
	static const char *const workdir[] = {"dlrun/src/", "dlrun/src/.wh..wh..opq"};
	AUTO_TREE struct tree tree = {0};
	struct layer_spec spec = tree_spec(&tree, NULL);

	assert_names(&spec, workdir, ARRAY_LEN(workdir));
	spec.full = false;
	assert_names(&spec, NULL, 0);
}

static void test_workdirs(void **state)
{
	static const char *const top[] = {".wh..wh..opq", "a/", "a/b", "c"};
	static const char *const one[] = {"w/", "w/.wh..wh..opq", "w/a/", "w/a/b", "w/c"};
	AUTO_TREE struct tree tree = {0};
	const struct entry *pointers[2];

	tree_file(&tree, "a/b", "");
	tree_file(&tree, "c", "");
	struct layer_spec spec = tree_spec(&tree, pointers);
	spec.workdir = "/";
	assert_names(&spec, top, ARRAY_LEN(top));
	spec.workdir = "/w";
	assert_names(&spec, one, ARRAY_LEN(one));
}

/*
 * Contents.
 */

static void test_sizes(void **state)
{
	const size_t sizes[] = {
		0, 1, 511, 512, 513, 262143, 262144, 262145, 3 * 262144, (3 << 20) + 7};

	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		AUTO_TREE struct tree tree = {0};
		AUTO(members_done) struct members members = {0};
		AUTO_FREE char *data = mem_alloc(sizes[i] + 1, 1);
		const struct entry *pointers[2];
		struct layer_result result;
		for (size_t k = 0; k < sizes[i]; k++)
			data[k] = (char)(k * 7 + k / 251);
		tree_add(&tree, "a", data, sizes[i]);
		tree_file(&tree, "b", "after");
		struct layer_spec spec = tree_spec(&tree, pointers);
		AUTO_FD int fd = layer_file(&spec, &result);
		AUTO_BUF struct buf tar;
		read_all(fd, &tar);
		parse_tar(&tar, &members);
		assert_int_equal(members.n, 4);
		assert_int_equal(members.v[2].size, sizes[i]);
		assert_memory_equal(members.v[2].data, data, sizes[i]);
		assert_memory_equal(members.v[3].data, "after", 5);
	}
}

/* What the file turns out to hold. */
static int open_other(void *ctx, const struct entry *entry, int *ret_fd, struct err *err)
{
	const struct buf *content = ctx;

	*ret_fd = file_of(content->data, content->len);
	return 0;
}

static void assert_changed(size_t size, size_t actual, bool other_byte)
{
	AUTO_TREE struct tree tree = {0};
	AUTO_ERR struct err err = {0};
	AUTO_STAGE struct blob_stage stage = {0};
	AUTO_BUF struct buf content;
	AUTO_FREE char *data = mem_alloc(size + 1, 1);
	const struct entry *pointers[1];
	struct layer_result result;

	buf_init(&content, TAR_MAX);
	for (size_t i = 0; i < actual; i++)
		buf_addc(&content, other_byte && i == actual - 1 ? 'x' : '\0');
	tree_add(&tree, "logs/train.log", data, size);
	struct layer_spec spec = tree_spec(&tree, pointers);
	spec.opener = (struct entry_opener){open_other, &content};
	spec.codec = CODEC_GZIP;
	assert_int_equal(blob_stage_begin(&stage, root_fd, &err), 0);
	assert_int_equal(layer_write(&spec, &stage, &result, &err), -ERR_IO);
	assert_int_equal(err.id, E_IO_CHANGED);
	assert_non_null(strstr(err.message, "logs/train.log"));
}

static void test_changed(void **state)
{
	const size_t sizes[] = {1, 1000, 262143, 262144, 1 << 20};

	assert_changed(0, 1, false);
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		assert_changed(sizes[i], sizes[i] - 1, false);
		assert_changed(sizes[i], sizes[i] + 1, false);
		assert_changed(sizes[i], sizes[i] * 2, false);
		assert_changed(sizes[i], 0, false);
		assert_changed(sizes[i], sizes[i], true);
	}
}

static int open_nothing(void *ctx, const struct entry *entry, int *ret_fd, struct err *err)
{
	return err_set(err, E_IO_READ, "cannot read %s", entry->path);
}

static int open_dir(void *ctx, const struct entry *entry, int *ret_fd, struct err *err)
{
	*ret_fd = open(root, O_RDONLY | O_CLOEXEC);
	return 0;
}

static void test_failing_opener(void **state)
{
	AUTO_TREE struct tree tree = {0};
	AUTO_ERR struct err err = {0};
	AUTO_STAGE struct blob_stage stage = {0};
	const struct entry *pointers[2];
	struct layer_result result;

	tree_file(&tree, "a", "a");
	tree_file(&tree, "b", "b");
	struct layer_spec spec = tree_spec(&tree, pointers);
	spec.opener.open = open_nothing;
	assert_int_equal(blob_stage_begin(&stage, root_fd, &err), 0);
	assert_int_equal(layer_write(&spec, &stage, &result, &err), -ERR_IO);
	assert_int_equal(err.id, E_IO_READ);
	assert_string_equal(err.message, "cannot read a");
	spec.opener.open = open_dir;
	assert_int_equal(layer_write(&spec, &stage, &result, &err), -ERR_IO);
	assert_int_equal(err.id, E_IO);
	assert_non_null(strstr(err.message, "reading a"));
}

/* The destination is full: what the stage says is what comes out. */
static void test_failing_stage(void **state)
{
	AUTO_TREE struct tree tree = {0};
	AUTO_ERR struct err err = {0};
	AUTO_STAGE struct blob_stage stage = {0};
	AUTO_FREE char *data = mem_alloc(8 << 20, 1);
	const struct entry *pointers[1];
	struct layer_result result;

	tree_add(&tree, "a", data, 8 << 20);
	struct layer_spec spec = tree_spec(&tree, pointers);
	assert_int_equal(blob_stage_begin(&stage, root_fd, &err), 0);
	close(stage.fd);
	stage.fd = open("/dev/full", O_WRONLY | O_CLOEXEC);
	assert_true(stage.fd >= 0);
	assert_int_equal(layer_write(&spec, &stage, &result, &err), -ERR_IO);
	assert_int_equal(err.id, E_IO_FULL);
}

static int open_sparse(void *ctx, const struct entry *entry, int *ret_fd, struct err *err)
{
	*ret_fd = file_of("", 0);
	assert_int_equal(ftruncate(*ret_fd, 8 << 20), 0);
	return 0;
}

/* Its header is in base 256; the file is cut, so that the test does not take a minute. */
static void test_huge_file(void **state)
{
	AUTO_TREE struct tree tree = {0};
	AUTO_ERR struct err err = {0};
	AUTO_STAGE struct blob_stage stage = {0};
	const struct entry *pointers[1];
	const uint64_t size = 9ull << 30;
	struct layer_result result;
	char block[512];

	tree_file(&tree, "huge", "");
	tree.list.v[0].size = size;
	struct layer_spec spec = tree_spec(&tree, pointers);
	spec.opener.open = open_sparse;
	assert_int_equal(blob_stage_begin(&stage, root_fd, &err), 0);
	assert_int_equal(layer_write(&spec, &stage, &result, &err), -ERR_IO);
	assert_int_equal(err.id, E_IO_CHANGED);
	/* Behind the workdir and its mark. */
	assert_int_equal(pread(stage.fd, block, sizeof(block), 1024), sizeof(block));
	check_sum(block);
	assert_string_equal(block, "dlrun/src/huge");
	assert_int_equal((uint8_t)block[124], 0x80);
	assert_int_equal(number(block + 124, 12), size);
}

/* Files that are compressed already are stored, by their names, and text between them is not. */
static void test_stored_files(void **state)
{
	AUTO_FREE char *data = repeat("text that compresses very well. ", 10000);
	const struct {
		const char *path;
		bool stored;
	} files[] = {{"a.txt", false}, {"a.png", true}, {"d.npz/a.txt", false},
		{"x.safetensors", true}, {"png", false}, {"a.pngx", false}};

	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		AUTO_TREE struct tree tree = {0};
		const struct entry *pointers[3];
		struct layer_result result;
		tree_file(&tree, "A", data);
		tree_file(&tree, files[i].path, data);
		tree_file(&tree, "zz", data);
		struct layer_spec spec = tree_spec(&tree, pointers);
		spec.codec = CODEC_GZIP;
		close(layer_file(&spec, &result));
		if (files[i].stored)
			assert_true(result.blob.size > strlen(data));
		assert_true(result.blob.size < strlen(data) + strlen(data) / 10);
		if (!files[i].stored)
			assert_true(result.blob.size < strlen(data) / 10);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_golden),
		cmocka_unit_test(test_surroundings),
		cmocka_unit_test(test_gnu_tar_reads_it),
		cmocka_unit_test(test_fields),
		cmocka_unit_test(test_times),
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_refused_names),
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_whiteout_order),
		cmocka_unit_test(test_empty_layers),
		cmocka_unit_test(test_workdirs),
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_changed),
		cmocka_unit_test(test_failing_opener),
		cmocka_unit_test(test_failing_stage),
		cmocka_unit_test(test_huge_file),
		cmocka_unit_test(test_stored_files),
	};

	return cmocka_run_group_tests(tests, make_root, remove_root);
}
