/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"

/* Each test has a directory of its own, open as root_fd. */
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

/* Valid until the fourth call from now. */
static const char *in_root(const char *name)
{
	static char paths[4][512];
	static int next;
	char *path = paths[next++ % 4];

	snprintf(path, sizeof(paths[0]), "%s/%s", root, name);
	return path;
}

static void put(const char *name, const char *content)
{
	assert_int_equal(
		fs_replace(in_root(name), content, strlen(content), 0644, FS_SYNC_NONE, NULL), 0);
}

static bool exists(const char *name)
{
	struct stat st;

	return lstat(in_root(name), &st) == 0;
}

static mode_t mode_of(const char *name)
{
	struct stat st;

	assert_int_equal(lstat(in_root(name), &st), 0);
	return st.st_mode & 07777;
}

static int count_entries(const char *path)
{
	AUTO_DIR DIR *dir = opendir(path);
	int n = 0;

	assert_non_null(dir);
	while (readdir(dir))
		n++;
	return n - 2;
}

static void test_error_ids(void **state)
{
	static const struct {
		int errnum, code;
		enum err_id id;
	} rows[] = {
		{ENOSPC, -ERR_IO, E_IO_FULL},
		{EDQUOT, -ERR_IO, E_IO_FULL},
		{EACCES, -ERR_AUTH, E_IO_PERMISSION},
		{EPERM, -ERR_AUTH, E_IO_PERMISSION},
		{ENOENT, -ERR_IO, E_IO},
		{EIO, -ERR_IO, E_IO},
	};
	AUTO_ERR struct err err = {0};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		assert_int_equal(fs_error(&err, rows[i].errnum, "%s%%", "x"), rows[i].code);
		assert_int_equal(err.id, rows[i].id);
	}
	assert_string_equal(err.message, "x%: Input/output error");
}

static void test_join(void **state)
{
	static const struct {
		const char *dir, *name, *want;
	} rows[] = {
		{"/a", "b", "/a/b"},
		{"/a/", "b", "/a/b"},
		{"/", "b", "/b"},
		{"/a", "/b", "/b"},
		{"/a", "", "/a"},
		{"/a", ".", "/a"},
		{"/a", "./b/./c", "/a/b/./c"},
		{"/a", ".//b", "/a/b"},
		{"/a", "../b", "/a/../b"},
		{"/a", ".b", "/a/.b"},
		{"/a", "././", "/a"},
		{"", "b", "b"},
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_FREE char *got = fs_join(rows[i].dir, rows[i].name);
		assert_string_equal(got, rows[i].want);
	}
}

static void parts_of_paths(void **state)
{
	static const struct {
		const char *path, *base, *dir;
	} rows[] = {{"a", "a", "."}, {"a/b", "b", "a"}, {"/a", "a", "/"}, {"/a/b/c", "c", "/a/b"},
		{"a/", "", "a"}, {"/", "", "/"}, {"", "", "."}};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_FREE char *dir = fs_dirname(rows[i].path);
		assert_string_equal(fs_basename(rows[i].path), rows[i].base);
		assert_string_equal(dir, rows[i].dir);
	}
	assert_string_equal(fs_below("a/b/c", "a/b"), "c");
	assert_string_equal(fs_below("a/b", "a/b"), "");
	assert_null(fs_below("a/bc", "a/b"));
	assert_null(fs_below("a", "a/b"));
}

static void test_realpath(void **state)
{
	AUTO_ERR struct err err = {0};
	AUTO_FREE char *real = NULL;
	char *untouched = NULL;

	put("file", "x");
	assert_int_equal(symlink("file", in_root("link")), 0);
	assert_int_equal(fs_realpath(in_root("./link"), &real, &err), 0);
	assert_true(str_ends(real, "/file"));
	assert_null(strstr(real, "/./"));
	assert_int_equal(fs_realpath(in_root("none"), &untouched, &err), -ERR_IO);
	assert_null(untouched);
	assert_non_null(strstr(err.message, "/none: No such file"));
}

static void test_read(void **state)
{
	AUTO_ERR struct err err = {0};
	AUTO_BUF struct buf buf = {0};
	bool missing = true;

	put("file", "content");
	assert_int_equal(fs_read(in_root("file"), 100, &buf, &missing, &err), 0);
	assert_string_equal(buf.data, "content");
	assert_int_equal(buf.max, 100);
	assert_false(missing);
	put("empty", "");
	assert_int_equal(fs_read(in_root("empty"), 0, &buf, NULL, &err), 0);
	assert_int_equal(buf.len, 0);
	assert_int_equal(fs_read("/dev/null", 0, &buf, NULL, &err), 0);
	assert_int_equal(buf.len, 0);
}

static void test_read_fails(void **state)
{
	AUTO_ERR struct err err = {0};
	AUTO_BUF struct buf buf;
	bool missing = false;

	buf_init(&buf, 10);
	buf_adds(&buf, "kept");
	assert_int_equal(fs_read(in_root("none"), 100, &buf, &missing, &err), -ERR_IO);
	assert_true(missing);
	assert_int_equal(fs_read(root, 100, &buf, &missing, &err), -ERR_IO);
	assert_non_null(strstr(err.message, "Is a directory"));
	assert_false(missing);
	put("file", "content");
	assert_int_equal(fs_read(in_root("file/x"), 100, &buf, &missing, &err), -ERR_IO);
	assert_false(missing);
	assert_int_equal(symlink("loop", in_root("loop")), 0);
	assert_int_equal(fs_read(in_root("loop"), 100, &buf, &missing, &err), -ERR_IO);
	assert_false(missing);
	assert_string_equal(buf.data, "kept");
	assert_int_equal(fs_read(in_root("none"), 100, &buf, NULL, NULL), -ERR_IO);
}

static void test_read_limit(void **state)
{
	AUTO_ERR struct err err = {0};
	AUTO_BUF struct buf buf = {0};

	put("file", "1234567");
	assert_int_equal(fs_read(in_root("file"), 7, &buf, NULL, &err), 0);
	assert_string_equal(buf.data, "1234567");
	assert_int_equal(fs_read(in_root("file"), 6, &buf, NULL, &err), -ERR_LIMIT);
	assert_int_equal(err.id, E_DATA_LIMIT);
	assert_true(str_ends(err.message, "/file is larger than 6 B"));
	assert_string_equal(buf.data, "1234567");
	assert_int_equal(fs_read("/dev/zero", 1 << 20, &buf, NULL, &err), -ERR_LIMIT);
	assert_int_equal(fs_read(in_root("file"), SIZE_MAX, &buf, NULL, &err), 0);
	assert_string_equal(buf.data, "1234567");
}

/* A pipe that nobody writes to must not hold us up. */
static void test_read_pipe(void **state)
{
	AUTO_BUF struct buf buf = {0};

	assert_int_equal(mkfifo(in_root("pipe"), 0600), 0);
	assert_int_equal(fs_read(in_root("pipe"), 100, &buf, NULL, NULL), 0);
	assert_int_equal(buf.len, 0);
}

static void write_slowly(int fd, size_t len)
{
	for (size_t i = 0; i < len; i += 1000) {
		char piece[1000];
		memset(piece, 'a' + (int)(i / 1000 % 26), sizeof(piece));
		if (fs_write_fd(fd, "pipe", piece, sizeof(piece), NULL))
			_exit(1);
	}
	_exit(0);
}

/* Both ends may be non-blocking without our doing: short and refused transfers are waited for. */
static void test_pipe_both_ways(void **state)
{
	enum { LEN = 500000 };
	AUTO_BUF struct buf buf = {0};
	int fds[2], status;

	assert_int_equal(pipe2(fds, O_CLOEXEC | O_NONBLOCK), 0);
	pid_t pid = fork();
	if (pid == 0) {
		close(fds[0]);
		write_slowly(fds[1], LEN);
	}
	close(fds[1]);
	assert_int_equal(fs_read_fd(fds[0], "pipe", LEN, &buf, NULL), 0);
	close(fds[0]);
	assert_int_equal(buf.len, LEN);
	for (size_t i = 0; i < LEN; i++)
		if (buf.data[i] != 'a' + (char)(i / 1000 % 26))
			fail_msg("byte %zu is %d", i, buf.data[i]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void test_write_fails(void **state)
{
	AUTO_ERR struct err err = {0};
	AUTO_FD int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);

	if (fd < 0)
		skip();
	assert_int_equal(fs_write_fd(fd, "the log", "x", 1, &err), -ERR_IO);
	assert_int_equal(err.id, E_IO_FULL);
	assert_string_equal(err.message, "writing the log: No space left on device");
	assert_int_equal(fs_write_fd(fd, "the log", NULL, 0, &err), 0);
}

static void test_temp_name(void **state)
{
	char one[FS_TEMP_NAME_SIZE], two[FS_TEMP_NAME_SIZE];

	fs_temp_name(one);
	fs_temp_name(two);
	assert_string_not_equal(one, two);
	assert_int_equal(strlen(one), strlen(FS_TEMP_PREFIX) + 16);
	assert_memory_equal(one, FS_TEMP_PREFIX, strlen(FS_TEMP_PREFIX));
	assert_int_equal(strspn(one + strlen(FS_TEMP_PREFIX), "0123456789abcdef"), 16);
}

static void test_replace(void **state)
{
	AUTO_BUF struct buf buf = {0};
	mode_t old = umask(077);

	for (int sync = FS_SYNC_NONE; sync <= FS_SYNC_FULL; sync++) {
		char content[2] = {(char)('0' + sync), '\0'};
		assert_int_equal(
			fs_replace(in_root("file"), content, 1, 0666, (enum fs_sync)sync, NULL), 0);
		assert_int_equal(fs_read(in_root("file"), 10, &buf, NULL, NULL), 0);
		assert_string_equal(buf.data, content);
		/* The mode is what was asked for, whatever the umask. */
		assert_int_equal(mode_of("file"), 0666);
	}
	umask(old);
	assert_int_equal(fs_replace(in_root("file"), NULL, 0, 0400, FS_SYNC_NONE, NULL), 0);
	assert_int_equal(mode_of("file"), 0400);
	assert_int_equal(count_entries(root), 1);
}

static void test_replace_leaves_link_target(void **state)
{
	AUTO_BUF struct buf buf = {0};

	put("target", "old");
	assert_int_equal(symlink("target", in_root("link")), 0);
	put("link", "new");
	assert_int_equal(fs_read(in_root("target"), 10, &buf, NULL, NULL), 0);
	assert_string_equal(buf.data, "old");
	assert_int_equal(fs_read(in_root("link"), 10, &buf, NULL, NULL), 0);
	assert_string_equal(buf.data, "new");
}

static void test_replace_fails_clean(void **state)
{
	AUTO_ERR struct err err = {0};

	assert_int_equal(mkdir(in_root("dir"), 0755), 0);
	put("dir/x", "x");
	int n = count_entries(root);
	assert_int_equal(fs_replace(in_root("dir"), "x", 1, 0644, FS_SYNC_FULL, &err), -ERR_IO);
	assert_non_null(strstr(err.message, "/dir: Is a directory"));
	assert_int_equal(count_entries(root), n);
	assert_int_equal(fs_replace(in_root("none/x"), "x", 1, 0644, FS_SYNC_NONE, &err), -ERR_IO);
	assert_non_null(strstr(err.message, "/none: No such file"));
	assert_int_equal(fs_replace(in_root("dir/x/y"), "x", 1, 0644, FS_SYNC_NONE, &err), -ERR_IO);
	/* A file that is too large for the process: the old one stays, the new one is gone. */
	pid_t pid = fork();
	if (pid == 0) {
		const struct rlimit limit = {1000, 1000};
		char large[5000] = "";
		signal(SIGXFSZ, SIG_IGN);
		setrlimit(RLIMIT_FSIZE, &limit);
		_exit(fs_replace(in_root("dir/x"), large, sizeof(large), 0644, FS_SYNC_NONE,
			      NULL) == -ERR_IO
				? 0
				: 1);
	}
	int status;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(count_entries(in_root("dir")), 1);
	AUTO_BUF struct buf buf = {0};
	assert_int_equal(fs_read(in_root("dir/x"), 10, &buf, NULL, NULL), 0);
	assert_string_equal(buf.data, "x");
}

/* Relative paths, and a name of the greatest length. */
static void test_replace_names(void **state)
{
	char name[256];
	pid_t pid = fork();

	if (pid == 0) {
		memset(name, 'n', 255);
		name[255] = '\0';
		bool ok = chdir(root) == 0 &&
			  fs_replace("plain", "x", 1, 0644, FS_SYNC_FULL, NULL) == 0 &&
			  fs_replace(name, "x", 1, 0644, FS_SYNC_FULL, NULL) == 0 &&
			  fs_replace("", "x", 1, 0644, FS_SYNC_FULL, NULL) == -ERR_IO &&
			  fs_replace("plain/", "x", 1, 0644, FS_SYNC_FULL, NULL) == -ERR_IO;
		_exit(ok ? 0 : 1);
	}
	int status;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_true(exists("plain"));
	assert_int_equal(count_entries(root), 2);
}

static void test_sync_dir(void **state)
{
	AUTO_ERR struct err err = {0};

	put("file", "x");
	assert_int_equal(fs_sync_dir(root, &err), 0);
	assert_int_equal(fs_sync_dir(in_root("none"), &err), -ERR_IO);
	assert_int_equal(fs_sync_dir(in_root("file"), &err), -ERR_IO);
	assert_int_equal(fs_sync_fd(root_fd, root, &err), 0);
	assert_int_equal(fs_sync_fd(-1, "the layer", &err), -ERR_IO);
	assert_string_equal(err.message, "the layer: Bad file descriptor");
}

static void test_mkdirs(void **state)
{
	AUTO_ERR struct err err = {0};

	assert_int_equal(fs_mkdirs(in_root("a/b//c/./d"), 0700, &err), 0);
	assert_true(exists("a/b/c/d"));
	assert_int_equal(mode_of("a"), 0700);
	assert_int_equal(fs_mkdirs(in_root("a/b/c/d"), 0755, &err), 0);
	assert_int_equal(mode_of("a"), 0700);
	assert_int_equal(fs_mkdirs(in_root("e/f///"), 0700, &err), 0);
	assert_true(exists("e/f"));
	assert_int_equal(fs_mkdirs("/", 0700, &err), 0);
	assert_int_equal(fs_mkdirs("///", 0700, &err), 0);
	assert_int_equal(fs_mkdirs(".", 0700, &err), 0);
	assert_int_equal(symlink("e", in_root("link")), 0);
	assert_int_equal(fs_mkdirs(in_root("link/g/h"), 0700, &err), 0);
	assert_true(exists("e/g/h"));
}

static void test_mkdirs_fails(void **state)
{
	AUTO_ERR struct err err = {0};

	put("file", "x");
	assert_int_equal(fs_mkdirs("", 0700, &err), -ERR_IO);
	assert_int_equal(fs_mkdirs(in_root("file"), 0700, &err), -ERR_IO);
	assert_true(str_ends(err.message, "/file: Not a directory"));
	assert_int_equal(fs_mkdirs(in_root("file/x/y"), 0700, &err), -ERR_IO);
	assert_int_equal(symlink("nowhere", in_root("dangling")), 0);
	assert_int_equal(fs_mkdirs(in_root("dangling/x"), 0700, &err), -ERR_IO);
	AUTO_FREE char *longer = mem_alloc(10000, 1);
	memset(longer, 'x', 9999);
	assert_int_equal(fs_mkdirs(longer, 0700, &err), -ERR_IO);
}

static void test_private_dir(void **state)
{
	AUTO_ERR struct err err = {0};

	assert_int_equal(fs_private_dir(in_root("new/sub"), &err), 0);
	assert_int_equal(mode_of("new"), 0700);
	assert_int_equal(mode_of("new/sub"), 0700);
	assert_int_equal(fs_private_dir(in_root("new/sub"), &err), 0);
	assert_int_equal(chmod(in_root("new/sub"), 0755), 0);
	assert_int_equal(fs_private_dir(in_root("new/sub"), &err), 0);
	assert_int_equal(chmod(in_root("new/sub"), 0775), 0);
	assert_int_equal(fs_private_dir(in_root("new/sub"), &err), -ERR_AUTH);
	assert_int_equal(err.id, E_IO_PERMISSION);
	AUTO_FREE char *hint = mem_printf("chmod go-w %s", in_root("new/sub"));
	assert_string_equal(err.hint, hint);
	assert_int_equal(chmod(in_root("new/sub"), 0702), 0);
	assert_int_equal(fs_private_dir(in_root("new/sub"), &err), -ERR_AUTH);
	put("file", "x");
	assert_int_equal(fs_private_dir(in_root("file"), &err), -ERR_IO);
	assert_int_equal(symlink("new", in_root("link")), 0);
	assert_int_equal(fs_private_dir(in_root("link"), &err), 0);
	if (geteuid() != 0) {
		assert_int_equal(fs_private_dir("/", &err), -ERR_AUTH);
		assert_string_equal(err.message, "/ belongs to another user (uid 0)");
	} else {
		assert_int_equal(lchown(in_root("link"), 4711, 4711), 0);
		assert_int_equal(fs_private_dir(in_root("link"), &err), -ERR_AUTH);
		assert_non_null(strstr(err.message, "is a link of another user (uid 4711)"));
	}
}

static void test_open_beneath(void **state)
{
	assert_int_equal(mkdir(in_root("dir"), 0755), 0);
	put("dir/file", "x");
	assert_int_equal(symlink("file", in_root("dir/link")), 0);
	assert_int_equal(symlink("dir", in_root("dirlink")), 0);
	AUTO_FD int fd = fs_open_beneath(root_fd, "dir/file", O_RDONLY, 0);
	assert_true(fd >= 0);
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	assert_int_equal(fs_open_beneath(root_fd, "dir/none", O_RDONLY, 0), -ENOENT);
	assert_true(fs_open_beneath(root_fd, "dir/link", O_RDONLY, 0) < 0);
	assert_true(fs_open_beneath(root_fd, "dirlink/file", O_RDONLY, 0) < 0);
	assert_true(fs_open_beneath(root_fd, "../x", O_RDONLY, 0) < 0);
	assert_true(fs_open_beneath(root_fd, "/etc/passwd", O_RDONLY, 0) < 0);
}

static void test_remove_tree(void **state)
{
	AUTO_ERR struct err err = {0};

	put("outside", "x");
	assert_int_equal(fs_mkdirs(in_root("outdir"), 0755, NULL), 0);
	put("outdir/x", "x");
	assert_int_equal(fs_mkdirs(in_root("t/a/b/c"), 0755, NULL), 0);
	assert_int_equal(fs_mkdirs(in_root("t/empty"), 0755, NULL), 0);
	put("t/file", "x");
	put("t/a/b/c/.hidden", "x");
	put("t/a/b/c/sp ace\n", "x");
	assert_int_equal(symlink("../outdir", in_root("t/dirlink")), 0);
	assert_int_equal(symlink(in_root("outside"), in_root("t/a/link")), 0);
	assert_int_equal(mkfifo(in_root("t/a/pipe"), 0), 0);
	assert_int_equal(fs_remove_tree(root_fd, "t", &err), 0);
	assert_false(exists("t"));
	assert_true(exists("outside"));
	assert_true(exists("outdir/x"));
	assert_int_equal(fs_remove_tree(root_fd, "t", &err), 0);
	assert_int_equal(fs_remove_tree(root_fd, "outside", &err), 0);
	assert_false(exists("outside"));
	assert_int_equal(symlink("outdir", in_root("link")), 0);
	assert_int_equal(fs_remove_tree(root_fd, "link", &err), 0);
	assert_false(exists("link"));
	assert_int_equal(fs_remove_tree(AT_FDCWD, in_root("outdir"), &err), 0);
	assert_int_equal(count_entries(root), 0);
}

static void test_remove_tree_opens_closed_dirs(void **state)
{
	AUTO_ERR struct err err = {0};

	assert_int_equal(fs_mkdirs(in_root("t/a/b"), 0755, NULL), 0);
	put("t/a/b/x", "x");
	put("t/a/x", "x");
	assert_int_equal(chmod(in_root("t/a/b"), 0), 0);
	assert_int_equal(chmod(in_root("t/a"), 0500), 0);
	assert_int_equal(chmod(in_root("t"), 0), 0);
	assert_int_equal(fs_remove_tree(root_fd, "t", &err), 0);
	assert_false(exists("t"));
}

/* Deeper than a path may be long, and than descriptors may be many. */
static void test_remove_tree_deep(void **state)
{
	enum { DEPTH = 2500 };
	AUTO_ERR struct err err = {0};
	int fd = dup(root_fd);

	for (int i = 0; i < DEPTH; i++) {
		assert_int_equal(mkdirat(fd, "d", 0755), 0);
		assert_true(i % 50 || symlinkat("x", fd, "f") == 0);
		assert_true(i % 100 || mkdirat(fd, "e", 0755) == 0);
		int next = openat(fd, "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		close(fd);
		fd = next;
		assert_true(fd >= 0);
	}
	close(fd);
	pid_t pid = fork();
	if (pid == 0) {
		const struct rlimit limit = {(rlim_t)root_fd + 8, (rlim_t)root_fd + 8};
		setrlimit(RLIMIT_NOFILE, &limit);
		_exit(fs_remove_tree(root_fd, "d", NULL) == 0 ? 0 : 1);
	}
	int status;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_false(exists("d"));
	assert_int_equal(fs_remove_tree(root_fd, "d", &err), 0);
}

static void test_remove_tree_wide(void **state)
{
	for (int i = 0; i < 1500; i++) {
		char name[64];
		snprintf(name, sizeof(name), "t/%d/%d", i % 50, i);
		if (i < 50) {
			snprintf(name, sizeof(name), "t/%d", i);
			assert_int_equal(fs_mkdirs(in_root(name), 0755, NULL), 0);
		} else if (i % 2) {
			assert_int_equal(mkdir(in_root(name), 0755), 0);
		} else {
			assert_int_equal(symlink("x", in_root(name)), 0);
		}
	}
	assert_int_equal(fs_remove_tree(root_fd, "t", NULL), 0);
	assert_false(exists("t"));
}

static void test_remove_tree_refuses(void **state)
{
	static const char *const bad[] = {"", ".", "..", "t/", "t/.", "t/..", "/"};
	AUTO_ERR struct err err = {0};

	assert_int_equal(mkdir(in_root("t"), 0755), 0);
	put("t/x", "x");
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_int_equal(fs_remove_tree(root_fd, bad[i], &err), -ERR_IO);
	assert_true(exists("t/x"));
	assert_int_equal(fs_remove_tree(root_fd, "t/x/y", &err), -ERR_IO);
	assert_int_equal(fs_remove_tree(root_fd, "none/y", &err), 0);
}

/* Somebody goes on writing into the tree for a while. */
static void test_remove_tree_while_it_grows(void **state)
{
	int status;

	assert_int_equal(fs_mkdirs(in_root("t/a"), 0755, NULL), 0);
	pid_t pid = fork();
	if (pid == 0) {
		for (int i = 0; i < 200; i++) {
			char name[32];
			snprintf(name, sizeof(name), "t/a/%d", i);
			int fd = openat(root_fd, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
			if (fd >= 0)
				close(fd);
		}
		_exit(0);
	}
	int rc = fs_remove_tree(root_fd, "t", NULL);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	/* The writer may have been quicker 64 times, but then nothing else went wrong. */
	if (rc)
		assert_int_equal(fs_remove_tree(root_fd, "t", NULL), 0);
	assert_false(exists("t"));
}

/* A process that holds the lock until its pipe is closed. */
struct holder {
	pid_t pid;
	int pipe;
};

static struct holder start_holder(const char *path, bool exclusive)
{
	int ready[2], stop[2];
	char c;

	assert_int_equal(pipe(ready), 0);
	assert_int_equal(pipe(stop), 0);
	pid_t pid = fork();
	if (pid == 0) {
		int fd;
		close(stop[1]);
		if (fs_lock(path, exclusive, 0, &fd, NULL) || write(ready[1], "x", 1) != 1)
			_exit(1);
		_exit(read(stop[0], &c, 1) == 0 ? 0 : 1);
	}
	close(ready[1]);
	close(stop[0]);
	assert_int_equal(read(ready[0], &c, 1), 1);
	close(ready[0]);
	return (struct holder){pid, stop[1]};
}

static void stop_holder(struct holder holder)
{
	int status;

	close(holder.pipe);
	assert_int_equal(waitpid(holder.pid, &status, 0), holder.pid);
	assert_int_equal(status, 0);
}

static void test_lock_excludes(void **state)
{
	AUTO_ERR struct err err = {0};
	const char *path = in_root("lock");
	int fd = -1;

	assert_int_equal(fs_is_locked(path), 0);
	struct holder holder = start_holder(path, true);
	assert_int_equal(mode_of("lock"), 0600);
	assert_int_equal(fs_is_locked(path), 1);
	assert_int_equal(fs_lock(path, true, 0, &fd, &err), -ERR_CONFLICT);
	assert_int_equal(err.id, E_IO_LOCK);
	assert_int_equal(fs_lock(path, false, 0, &fd, &err), -ERR_CONFLICT);
	int64_t start = clock_ms();
	assert_int_equal(fs_lock(path, true, 60, &fd, &err), -ERR_CONFLICT);
	assert_true(clock_ms() - start >= 60);
	assert_int_equal(fd, -1);
	stop_holder(holder);
	/* It is free when its holder is gone, however that ended. */
	assert_int_equal(fs_is_locked(path), 0);
	assert_int_equal(fs_lock(path, true, 0, &fd, &err), 0);
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	assert_int_equal(fs_is_locked(path), 1);
	close(fd);
	assert_int_equal(fs_is_locked(path), 0);
}

static void test_lock_shared(void **state)
{
	const char *path = in_root("lock");
	int fd = -1;
	struct holder holder = start_holder(path, false);

	assert_int_equal(fs_is_locked(path), 1);
	assert_int_equal(fs_lock(path, true, 0, &fd, NULL), -ERR_CONFLICT);
	assert_int_equal(fs_lock(path, false, 0, &fd, NULL), 0);
	stop_holder(holder);
	assert_int_equal(fs_is_locked(path), 1);
	close(fd);
	assert_int_equal(fs_is_locked(path), 0);
}

/* Whether a second process gets the lock once the first lets go. */
static void check_waiting(int64_t timeout_ms)
{
	const char *path = in_root("lock");
	int ready[2], fd, status;
	char c;

	assert_int_equal(pipe(ready), 0);
	assert_int_equal(fs_lock(path, true, 0, &fd, NULL), 0);
	pid_t pid = fork();
	if (pid == 0) {
		int own;
		/* The lock belongs to all copies of the descriptor. */
		close(fd);
		if (write(ready[1], "x", 1) != 1)
			_exit(2);
		_exit(fs_lock(path, true, timeout_ms, &own, NULL) ? 1 : 0);
	}
	assert_int_equal(read(ready[0], &c, 1), 1);
	close(ready[0]);
	close(ready[1]);
	poll(NULL, 0, 20);
	assert_int_equal(waitpid(pid, &status, WNOHANG), 0);
	close(fd);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void test_lock_waits(void **state)
{
	check_waiting(-1);
	check_waiting(60000);
}

/* Who waits for a lock on a file that its holder removes must not end with a lock on nothing. */
static void test_lock_of_a_removed_file(void **state)
{
	const char *path = in_root("lock");
	int fd, status;

	assert_int_equal(fs_lock(path, true, 0, &fd, NULL), 0);
	pid_t pid = fork();
	if (pid == 0) {
		int own;
		struct stat st;
		close(fd);
		_exit(fs_lock(path, true, 60000, &own, NULL) || fstat(own, &st) ||
			st.st_nlink != 1);
	}
	/* Time to come to the lock; if it did not suffice, the test is only weaker. */
	poll(NULL, 0, 20);
	assert_int_equal(unlink(path), 0);
	close(fd);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_true(exists("lock"));
}

/* In place of the system's: stat fails, or flock is particular as on NFS (flock(2)). */
static int stat_errnum;
static bool is_nfs;

int stat(const char *path, struct stat *st)
{
	if (!stat_errnum)
		return fstatat(AT_FDCWD, path, st, 0);
	errno = stat_errnum;
	return -1;
}

int flock(int fd, int how)
{
	int (*next)(int, int) = (int (*)(int, int))(uintptr_t)dlsym(RTLD_NEXT, "flock");
	int mode = fcntl(fd, F_GETFL) & O_ACCMODE;

	if (!is_nfs || mode == O_RDWR || (how & LOCK_UN) ||
		mode == ((how & LOCK_EX) ? O_WRONLY : O_RDONLY))
		return next(fd, how);
	errno = EBADF;
	return -1;
}

static void test_lock_on_nfs(void **state)
{
	const char *path = in_root("lock");
	int fd;

	is_nfs = true;
	assert_int_equal(fs_lock(path, true, 0, &fd, NULL), 0);
	assert_int_equal(fs_is_locked(path), 1);
	close(fd);
	assert_int_equal(fs_is_locked(path), 0);
	assert_int_equal(fs_lock(path, false, 0, &fd, NULL), 0);
	assert_int_equal(fs_is_locked(path), 1);
	close(fd);
	is_nfs = false;
}

/* Waits for ever if it takes "not known" for "another file". */
static void test_lock_that_cannot_be_checked(void **state)
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		int fd = -1;
		alarm(20);
		stat_errnum = EACCES;
		int rc = fs_lock(in_root("lock"), true, 100, &fd, NULL);
		_exit(rc == -ERR_AUTH && fd == -1 ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

/* Hand the lock on to a new file again and again, so that who waits never sees it free. */
static void hand_on(int fd, int n)
{
	while (n--) {
		int next = open(in_root("next"), O_RDWR | O_CREAT | O_EXCL, 0600);
		if (next < 0 || flock(next, LOCK_EX | LOCK_NB) ||
			rename(in_root("next"), in_root("lock")))
			_exit(1);
		close(fd);
		fd = next;
		poll(NULL, 0, 20);
	}
	_exit(0);
}

/* The time is the caller's, not that of each file that bears the name meanwhile. */
static void test_lock_of_changing_files(void **state)
{
	const char *path = in_root("lock");
	int fd, own = -1, status;

	assert_int_equal(fs_lock(path, true, 0, &fd, NULL), 0);
	pid_t pid = fork();
	if (pid == 0)
		hand_on(fd, 150);
	close(fd);
	assert_int_equal(fs_lock(path, true, 150, &own, NULL), -ERR_CONFLICT);
	assert_int_equal(own, -1);
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, &status, 0), pid);
}

static void test_lock_fails(void **state)
{
	AUTO_ERR struct err err = {0};
	int fd = -1;

	assert_int_equal(fs_lock(in_root("none/lock"), true, 0, &fd, &err), -ERR_IO);
	assert_int_equal(err.id, E_IO);
	assert_int_equal(symlink("elsewhere", in_root("link")), 0);
	assert_int_equal(fs_lock(in_root("link"), true, 0, &fd, &err), -ERR_IO);
	assert_false(exists("elsewhere"));
	assert_int_equal(fd, -1);
	assert_int_equal(fs_is_locked(in_root("none")), 0);
	assert_int_equal(fs_is_locked(in_root("none/lock")), 0);
}

static void test_free_bytes(void **state)
{
	AUTO_ERR struct err err = {0};
	uint64_t bytes = 0;

	assert_int_equal(fs_free_bytes(root, &bytes, &err), 0);
	assert_true(bytes > 0 && bytes < 1ull << 60);
	assert_int_equal(fs_free_bytes(in_root("none"), &bytes, &err), -ERR_IO);
	assert_false(fs_is_network("/proc"));
	assert_false(fs_is_network(in_root("none")));
}

#define IN_ROOT(test) cmocka_unit_test_setup_teardown(test, make_root, remove_root)

static void test_join_normal(void **state)
{
	static const char *const cases[][3] = {
		{".", "a", "a"},
		{"a/b", "../c//./d/", "a/c/d"},
		{"a", "..", ""},
		{"a", "../..", NULL},
		{"", "..", NULL},
		{"/a", "b", "a/b"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_FREE char *path = fs_join_normal(cases[i][0], cases[i][1]);
		assert_true(str_eq(path, cases[i][2]));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_join_normal),
		cmocka_unit_test(parts_of_paths),
		cmocka_unit_test(test_error_ids),
		cmocka_unit_test(test_join),
		IN_ROOT(test_realpath),
		IN_ROOT(test_read),
		IN_ROOT(test_read_fails),
		IN_ROOT(test_read_limit),
		IN_ROOT(test_read_pipe),
		IN_ROOT(test_pipe_both_ways),
		IN_ROOT(test_write_fails),
		IN_ROOT(test_temp_name),
		IN_ROOT(test_replace),
		IN_ROOT(test_replace_leaves_link_target),
		IN_ROOT(test_replace_fails_clean),
		IN_ROOT(test_replace_names),
		IN_ROOT(test_sync_dir),
		IN_ROOT(test_mkdirs),
		IN_ROOT(test_mkdirs_fails),
		IN_ROOT(test_private_dir),
		IN_ROOT(test_open_beneath),
		IN_ROOT(test_remove_tree),
		IN_ROOT(test_remove_tree_opens_closed_dirs),
		IN_ROOT(test_remove_tree_deep),
		IN_ROOT(test_remove_tree_wide),
		IN_ROOT(test_remove_tree_refuses),
		IN_ROOT(test_remove_tree_while_it_grows),
		IN_ROOT(test_lock_excludes),
		IN_ROOT(test_lock_shared),
		IN_ROOT(test_lock_waits),
		IN_ROOT(test_lock_of_a_removed_file),
		IN_ROOT(test_lock_on_nfs),
		IN_ROOT(test_lock_that_cannot_be_checked),
		IN_ROOT(test_lock_of_changing_files),
		IN_ROOT(test_lock_fails),
		IN_ROOT(test_free_bytes),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
