/* SPDX-License-Identifier: Apache-2.0 */
#include "core/record/setup_key.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/random.h"
#include "base/util/str.h"

enum { CHUNK = 64 << 10, DEPTH_MAX = 64, ID_HEX = 16 };
#define ID_PREFIX "env-"

struct key {
	struct digest digest;
	size_t n_files;
	uint64_t bytes;
	const char *name; /* of the key path, for messages */
	bool is_data;     /* all files of directories count */
	bool (*holds)(const void *ctx, const char *path);
	const void *ctx;
	char *chunk;
};

static void key_done(struct key *key)
{
	digest_done(&key->digest);
	free(key->chunk);
}

static void setup_key_add_text(struct key *key, const char *text)
{
	digest_add(&key->digest, text, strlen(text) + 1);
}

static int setup_key_too_much(const struct key *key, struct err *err)
{
	AUTO_FREE char *shown = str_shown(key->name);

	return err_set(err, E_DATA_LIMIT, "setup.key: '%s' has more than %d files or 1 GiB", shown,
		SETUP_KEY_FILES_MAX);
}

static int cannot_read(const struct key *key, int errnum, struct err *err)
{
	AUTO_FREE char *shown = str_shown(key->name);

	if (errnum == ENOENT || errnum == ENOTDIR)
		return err_set(err, E_RUN_SETUP, "setup.key: '%s' is not in the tree", shown);
	if (errnum == ELOOP || errnum == EXDEV)
		return err_set(err, E_RUN_SETUP,
			"setup.key: '%s' is not in the snapshot, or lies behind a symbolic link",
			shown);
	return err_set_errno(err, E_RUN_SETUP, errnum, "setup.key: '%s'", shown);
}

/*
 * Files
 */

/* Each with its length, so that no two lists of files give the same bytes. */
static int add_content(struct key *key, int fd, struct err *err)
{
	AUTO_DIGEST struct digest content = {0};
	uint8_t sha256[SHA256_SIZE];
	ssize_t n;

	digest_begin(&content, DIGEST_SHA256);
	while ((n = read(fd, key->chunk, CHUNK)) != 0) {
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return cannot_read(key, errno, err);
		key->bytes += (uint64_t)n;
		if (key->bytes > SETUP_KEY_BYTES_MAX)
			return setup_key_too_much(key, err);
		digest_add(&content, key->chunk, (size_t)n);
	}
	digest_end(&content, sha256);
	digest_add(&key->digest, sha256, sizeof(sha256));
	return 0;
}

static int setup_key_add_dir(
	struct key *key, int fd, const char *path, unsigned depth, struct err *err);

/* A file or directory that is open. */
static int add_open(struct key *key, int fd, const char *path, unsigned depth, struct err *err)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return cannot_read(key, errno, err);
	if (++key->n_files > SETUP_KEY_FILES_MAX)
		return setup_key_too_much(key, err);
	setup_key_add_text(key, path);
	if (S_ISDIR(st.st_mode)) {
		setup_key_add_text(key, "directory");
		return setup_key_add_dir(key, fd, path, depth, err);
	}
	setup_key_add_text(key, st.st_mode & S_IXUSR ? "program" : "file");
	return S_ISREG(st.st_mode) ? add_content(key, fd, err) : 0;
}

static int add_link(struct key *key, int fd, const char *name, const char *path, struct err *err)
{
	char target[PATH_MAX];
	ssize_t n = readlinkat(fd, name, target, sizeof(target) - 1);

	if (n < 0)
		return cannot_read(key, errno, err);
	target[n] = '\0';
	if (++key->n_files > SETUP_KEY_FILES_MAX)
		return setup_key_too_much(key, err);
	setup_key_add_text(key, path);
	setup_key_add_text(key, "link");
	setup_key_add_text(key, target);
	return 0;
}

static int add_child(struct key *key, int dir_fd, const char *name, const char *path,
	unsigned depth, struct err *err)
{
	enum { FLAGS = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC };
	AUTO_FREE char *child = mem_printf("%s/%s", path, name);
	if (key->holds && !key->holds(key->ctx, child))
		return 0;
	AUTO_FD int fd = openat(dir_fd, name, FLAGS);

	if (fd < 0 && (errno == ELOOP || errno == EMLINK))
		return add_link(key, dir_fd, name, child, err);
	if (fd < 0)
		return cannot_read(key, errno, err);
	return add_open(key, fd, child, depth, err);
}

/* Whether the name is of what tools leave in a directory that they work in. */
static bool setup_key_is_passing(const char *name)
{
	return str_ends(name, ".egg-info") ||
	       str_is_word_of(name, ".git .venv __pycache__ .pytest_cache .mypy_cache .ruff_cache");
}

static int setup_key_add_dir(
	struct key *key, int fd, const char *path, unsigned depth, struct err *err)
{
	AUTO_STRV struct strv names = {0};
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	AUTO_DIR DIR *dir = copy < 0 ? NULL : fdopendir(copy);
	struct dirent *entry;
	int r = 0;

	if (!dir || depth > DEPTH_MAX)
		return dir ? setup_key_too_much(key, err) : cannot_read(key, errno, err);
	while ((entry = readdir(dir))) {
		if (str_is_word_of(entry->d_name, ". ..") ||
			(!key->is_data && setup_key_is_passing(entry->d_name)))
			continue;
		if (names.n >= SETUP_KEY_FILES_MAX)
			return setup_key_too_much(key, err);
		strv_add(&names, entry->d_name);
	}
	strv_sort(&names);
	for (size_t i = 0; r == 0 && i < names.n; i++)
		r = add_child(key, fd, names.v[i], path, depth + 1, err);
	return r;
}

/*
 * Keys
 */

/* A link that is a key: the file that it leads to counts as well. */
static int add_link_key(struct key *key, int tree_fd, const char *path, struct err *err)
{
	enum { FLAGS = O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC };
	struct stat st;

	int r = add_link(key, tree_fd, path, path, err);
	if (r < 0)
		return r;
	AUTO_FD int fd = openat(tree_fd, path, FLAGS);
	if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
		return add_open(key, fd, path, 0, err);
	return 0;
}

static int setup_key_add_key(struct key *key, int tree_fd, const char *path, struct err *err)
{
	int fd = fs_open_beneath(tree_fd, path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0);
	struct stat st;

	key->name = path;
	if (fd >= 0) {
		int r = add_open(key, fd, path, 0, err);
		close(fd);
		return r;
	}
	if (fd != -ELOOP && fd != -EMLINK)
		return cannot_read(key, -fd, err);
	/* The link is the last component, or what is above it is one. */
	AUTO_FREE char *parent = fs_dirname(path);
	AUTO_FD int parent_fd = fs_open_beneath(tree_fd, parent, O_RDONLY | O_DIRECTORY, 0);
	if (parent_fd < 0 || fstatat(tree_fd, path, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
		!S_ISLNK(st.st_mode))
		return cannot_read(key, ELOOP, err);
	return add_link_key(key, tree_fd, path, err);
}

static void add_platform(struct key *key)
{
	struct utsname name = {0};

	uname(&name);
	setup_key_add_text(key, name.sysname);
	setup_key_add_text(key, name.machine);
}

static int setup_key_make(struct key *key, const struct runtime_setup *setup, const char *where,
	const char *tree, char out[static SHA256_HEX_SIZE], struct err *err)
{
	AUTO_FD int tree_fd = open(tree, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	AUTO_STRV struct strv paths = {0};
	uint8_t sha256[SHA256_SIZE];
	int r = 0;

	if (tree_fd < 0)
		return fs_error(err, errno, "%s", tree);
	key->chunk = mem_alloc(1, CHUNK);
	digest_begin(&key->digest, DIGEST_SHA256);
	setup_key_add_text(key, "dlrun/setup/v1");
	setup_key_add_text(key, setup->run);
	setup_key_add_text(key, setup->cwd ? setup->cwd : ".");
	if (where)
		setup_key_add_text(key, where);
	else
		add_platform(key);
	strv_copy(&paths, &setup->key);
	strv_sort(&paths);
	for (size_t i = 0; r == 0 && i < paths.n; i++)
		if (!key->holds || key->holds(key->ctx, paths.v[i]))
			r = setup_key_add_key(key, tree_fd, paths.v[i], err);
	if (r < 0)
		return r;
	digest_end(&key->digest, sha256);
	hex_encode(sha256, sizeof(sha256), out);
	return 0;
}

int setup_key(const struct runtime_setup *setup, const char *where, const char *tree,
	bool (*holds)(const void *ctx, const char *path), const void *ctx,
	char out[static SHA256_HEX_SIZE], struct err *err)
{
	AUTO(key_done) struct key key = {.holds = holds, .ctx = ctx};

	return setup_key_make(&key, setup, where, tree, out, err);
}

int setup_key_of_data(
	const char *path, const char *tree, char out[static SHA256_HEX_SIZE], struct err *err)
{
	char line[] = "data", cwd[] = ".";
	struct runtime_setup content = {.run = line, .cwd = cwd};

	AUTO(key_done) struct key key = {.is_data = true};

	strv_add(&content.key, path);
	int r = setup_key_make(&key, &content, NULL, tree, out, err);
	strv_done(&content.key);
	return r;
}

char *setup_shown(const char *run)
{
	AUTO_FREE char *first = mem_strndup(run, strcspn(run, "\n"));

	return str_shown(first);
}

/*
 * Ids
 */

/* The five letters at the end of an id follow from the key, too. */
void setup_make_id(const char *key, char ret[static RUN_ID_SIZE])
{
	char letters[RUN_SUFFIX + 1] = "";

	for (int i = 0; i < RUN_SUFFIX; i++)
		letters[i] = (char)('a' + key[ID_HEX + i] % 8);
	snprintf(ret, RUN_ID_SIZE, ID_PREFIX "%.*s-%s", ID_HEX, key, letters);
}

void setup_new_id(char ret[static RUN_ID_SIZE])
{
	uint8_t bytes[SHA256_SIZE];
	char key[SHA256_HEX_SIZE];

	random_bytes(bytes, sizeof(bytes));
	hex_encode(bytes, sizeof(bytes), key);
	setup_make_id(key, ret);
}

bool setup_id_is_own(const char *id)
{
	return run_id_is_valid(id) && str_starts(id, ID_PREFIX) &&
	       strspn(id + strlen(ID_PREFIX), "0123456789abcdef") == ID_HEX &&
	       strlen(id) == strlen(ID_PREFIX) + ID_HEX + 1 + RUN_SUFFIX;
}
