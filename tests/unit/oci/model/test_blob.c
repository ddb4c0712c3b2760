/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/str.h"
#include "oci/model/blob.h"

static char root[256];
static int root_fd;

static int make_root(void **state)
{
	const char *tmp = getenv("TMPDIR");

	snprintf(root, sizeof(root), "%s/dlrun-test-XXXXXX", str_empty(tmp) ? "/tmp" : tmp);
	if (!mkdtemp(root))
		return -1;
	root_fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return root_fd < 0;
}

static int remove_root(void **state)
{
	AUTO_ERR struct err err = {0};

	close(root_fd);
	return fs_remove_tree(AT_FDCWD, root, &err);
}

static size_t names_in_root(void)
{
	AUTO_DIR DIR *dir = opendir(root);
	size_t n = 0;

	assert_non_null(dir);
	for (struct dirent *e; (e = readdir(dir));)
		n += e->d_name[0] != '.' || strlen(e->d_name) > 2;
	return n;
}

static void test_digest_and_size(void **state)
{
	AUTO_ERR struct err err = {0};
	AUTO_STAGE struct blob_stage stage = {0};
	struct descriptor blob;
	char content[16] = "";

	assert_int_equal(blob_stage_begin(&stage, root_fd, &err), 0);
	assert_int_equal(blob_stage_write(&stage, "hello ", 6, &err), 0);
	assert_int_equal(blob_stage_write(&stage, "", 0, &err), 0);
	assert_int_equal(blob_stage_write(&stage, "world", 5, &err), 0);
	blob_stage_end(&stage, &blob);
	assert_string_equal(blob.digest,
		"sha256:b94d27b9934d3e08a52e52d7da7dabfac484efe37a5380ee9088f7ace2efcde9");
	assert_int_equal(blob.size, 11);
	assert_string_equal(blob.media_type, "");
	assert_int_equal(pread(stage.fd, content, sizeof(content), 0), 11);
	assert_string_equal(content, "hello world");
}

/* Up to the ceiling and not a byte more, which leaves what was written as it is. */
static void test_limit(void **state)
{
	AUTO_STAGE struct blob_stage stage = {0};
	struct descriptor blob;

	assert_int_equal(blob_stage_begin(&stage, root_fd, NULL), 0);
	stage.max_size = 5;
	assert_int_equal(blob_stage_write(&stage, "abc", 3, NULL), 0);
	assert_int_equal(blob_stage_write(&stage, "def", 3, NULL), -ERR_LIMIT);
	assert_true(stage.full);
	assert_int_equal(blob_stage_write(&stage, "de", 2, NULL), 0);
	assert_int_equal(blob_stage_write(&stage, "f", 1, NULL), -ERR_LIMIT);
	blob_stage_end(&stage, &blob);
	assert_int_equal(blob.size, 5);
}

static void test_empty(void **state)
{
	AUTO_ERR struct err err = {0};
	AUTO_STAGE struct blob_stage stage = {0};
	struct descriptor blob;

	assert_int_equal(blob_stage_begin(&stage, root_fd, &err), 0);
	blob_stage_end(&stage, &blob);
	assert_string_equal(blob.digest,
		"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
	assert_int_equal(blob.size, 0);
}

/* Whatever the point at which it is given up, nothing stays, and no descriptor but its own
 * closes. */
static void test_nothing_left(void **state)
{
	AUTO_ERR struct err err = {0};
	struct blob_stage zero = {0}, unused = {.fd = -1}, stage;
	struct descriptor blob;

	blob_stage_done(&zero);
	blob_stage_done(&unused);
	blob_stage_done(NULL);
	assert_true(fcntl(0, F_GETFD) >= 0);
	assert_int_equal(blob_stage_begin(&stage, root_fd, &err), 0);
	assert_int_equal(blob_stage_write(&stage, "x", 1, &err), 0);
	int fd = stage.fd;
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	blob_stage_end(&stage, &blob);
	blob_stage_done(&stage);
	assert_int_equal(fcntl(fd, F_GETFD), -1);
	blob_stage_done(&stage);
	assert_int_equal(names_in_root(), 0);
}

/* What a file system without nameless files gets. */
static void test_named(void **state)
{
	AUTO_ERR struct err err = {0};
	struct blob_stage stage;
	struct stat st;

	assert_int_equal(blob_stage_begin(&stage, root_fd, &err), 0);
	assert_int_equal(fstat(stage.fd, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
	if (!stage.name[0]) {
		snprintf(stage.name, sizeof(stage.name), ".dlrun-0");
		close(openat(root_fd, stage.name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
	}
	assert_int_equal(names_in_root(), 1);
	blob_stage_done(&stage);
	assert_int_equal(names_in_root(), 0);
}

static void test_no_directory(void **state)
{
	AUTO_ERR struct err err = {0};
	AUTO_STAGE struct blob_stage stage = {0};

	assert_int_equal(blob_stage_begin(&stage, -1, &err), -ERR_IO);
	assert_int_equal(err.id, E_IO);
}

static int freed;

static void count_free(struct sink *sink)
{
	freed++;
}

static void test_sink_free(void **state)
{
	static const struct sink_ops ops = {.free = count_free};
	struct sink sink = {.ops = &ops};

	sink_free(NULL);
	assert_int_equal(freed, 0);
	sink_free(&sink);
	assert_int_equal(freed, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_digest_and_size),
		cmocka_unit_test(test_limit),
		cmocka_unit_test(test_empty),
		cmocka_unit_test(test_nothing_left),
		cmocka_unit_test(test_named),
		cmocka_unit_test(test_no_directory),
		cmocka_unit_test(test_sink_free),
	};

	return cmocka_run_group_tests(tests, make_root, remove_root);
}
