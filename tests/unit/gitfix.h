/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests with real repositories: a directory of their own, a user's home that nothing of this
 * machine reaches into, and git commands in it.
 */
#ifndef DLRUN_TESTS_GITFIX_H
#define DLRUN_TESTS_GITFIX_H

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/loop/proc.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"

static char fix_dir[PATH_MAX]; /* real path; gone after each test */
static char fix_home[PATH_MAX];

static inline char *fix_path(const char *name)
{
	return fs_join(fix_dir, name);
}

static inline void fix_put(const char *name, const char *content)
{
	AUTO_FREE char *path = fix_path(name);
	AUTO_FREE char *dir = mem_strndup(path, (size_t)(strrchr(path, '/') - path));
	AUTO_FD int fd = -1;

	assert_int_equal(fs_mkdirs(dir, 0755, NULL), 0);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	assert_true(fd >= 0);
	assert_int_equal(fs_write_fd(fd, name, content, strlen(content), NULL), 0);
}

/* The output of a shell script in the directory; it must succeed. Malloc'd, no line end. */
static inline char *fix_out(const char *script)
{
	const char *argv[] = {"sh", "-ec", script, NULL};
	AUTO_BUF struct buf out;
	int status;

	buf_init(&out, 64 << 20);
	assert_int_equal(proc_capture(argv, fix_dir, 100000, &out, &status, NULL), 0);
	if (status)
		fail_msg("this failed: %s", script);
	while (out.len && out.data[out.len - 1] == '\n')
		buf_truncate(&out, out.len - 1);
	return buf_take(&out);
}

static inline void fix_sh(const char *script)
{
	free(fix_out(script));
}

static inline int fix_setup(void **state)
{
	static const char *const unset[] = {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE",
		"GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "XDG_CONFIG_HOME"};
	const char *tmp = getenv("TMPDIR");
	char name[PATH_MAX];

	snprintf(name, sizeof(name), "%s/dlrun-test-XXXXXX", str_empty(tmp) ? "/tmp" : tmp);
	if (!mkdtemp(name) || !realpath(name, fix_dir))
		return -1;
	snprintf(fix_home, sizeof(fix_home), "%.*s/home", PATH_MAX - 8, fix_dir);
	setenv("HOME", fix_home, 1);
	setenv("GIT_CONFIG_NOSYSTEM", "1", 1);
	for (size_t i = 0; i < sizeof(unset) / sizeof(*unset); i++)
		unsetenv(unset[i]);
	fix_put("home/.gitconfig", "[user]\n\tname = Test Person\n\temail = test@example.com\n"
				   "[init]\n\tdefaultBranch = main\n"
				   "[protocol \"file\"]\n\tallow = always\n"
				   "[advice]\n\tdetachedHead = false\n");
	return 0;
}

static inline int fix_teardown(void **state)
{
	return fs_remove_tree(AT_FDCWD, fix_dir, NULL);
}

#define fix_test(name) cmocka_unit_test_setup_teardown(name, fix_setup, fix_teardown)

/* libgit2 1.5.1 forgets what a pattern needed that did not match (extensions.* of a repository). */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
	return "leak:libpcre2\n";
}

/* Who may give files to another user, and reads what is closed to others. */
static inline bool fix_is_root(void)
{
	return geteuid() == 0;
}

#endif
