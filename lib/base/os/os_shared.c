/* SPDX-License-Identifier: Apache-2.0 */
#include "base/os/os_shared.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/util/auto.h"
#include "base/util/digest.h"
#include "base/util/enc.h"

enum { NAME_MAX_BYTES = 255 };

/* A directory on the way is only passed through, which needs no permission to list it. */
#if defined(O_PATH)
enum { PASS_FLAGS = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC };
#elif defined(O_SEARCH)
enum { PASS_FLAGS = O_SEARCH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC };
#else
enum { PASS_FLAGS = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC };
#endif

bool os_leads_out(const char *path)
{
	if (*path == '/')
		return true;
	while (*path) {
		size_t len = strcspn(path, "/");
		if (len == 2 && memcmp(path, "..", 2) == 0)
			return true;
		path += len;
		path += strspn(path, "/");
	}
	return false;
}

static bool os_shared_is_link(int dirfd, const char *name)
{
	struct stat st;

	return fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(st.st_mode);
}

/* openat that reports a symbolic link as ELOOP, whatever the system calls it (ENOTDIR, EMLINK,
 * EFTYPE) and also where O_PATH would open the link itself. */
static int open_no_link(int dirfd, const char *name, int flags, mode_t mode)
{
	int fd = openat(dirfd, name, flags | O_NOFOLLOW, mode);

	if (fd < 0) {
		int errnum = errno;
		if (errnum != ENOENT && errnum != EEXIST && os_shared_is_link(dirfd, name))
			return -ELOOP;
		return -errnum;
	}
#ifdef O_PATH
	struct stat st;
	if ((flags & O_PATH) && !(flags & O_NOFOLLOW) && fstat(fd, &st) == 0 &&
		S_ISLNK(st.st_mode)) {
		close(fd);
		return -ELOOP;
	}
#endif
	return fd;
}

int os_walk_beneath(int dirfd, const char *path, int flags, mode_t mode)
{
	char name[NAME_MAX_BYTES + 1];
	AUTO_FD int owned = -1;

	if (!*path)
		return -ENOENT;
	if (os_leads_out(path))
		return -EXDEV;
	for (;;) {
		size_t len = strcspn(path, "/");
		size_t slashes = strspn(path + len, "/");
		bool is_last = path[len + slashes] == '\0';

		if (len > NAME_MAX_BYTES)
			return -ENAMETOOLONG;
		memcpy(name, path, len);
		name[len] = '\0';
		/* Some systems would make a file of that name. */
		if (is_last && slashes > 0 && (flags & O_CREAT))
			return -EISDIR;
		if (is_last)
			return open_no_link(dirfd, name,
				flags | O_CLOEXEC | (slashes > 0 ? O_DIRECTORY : 0), mode);
		int fd = open_no_link(dirfd, name, PASS_FLAGS, 0);
		if (fd < 0)
			return fd;
		auto_fd(&owned);
		dirfd = owned = fd;
		path += len + slashes;
	}
}

void os_hash_id(const char *text, char out[static OS_ID_SIZE])
{
	static const char purpose[] = "dlrun machine 4f0d2c9a:";
	struct digest digest = {0};
	uint8_t sha256[SHA256_SIZE];

	digest_begin(&digest, DIGEST_SHA256);
	digest_add(&digest, purpose, strlen(purpose));
	digest_add(&digest, text, strlen(text));
	digest_end(&digest, sha256);
	digest_done(&digest);
	/* 128 bits are enough to tell machines apart, and fit. */
	hex_encode(sha256, 16, out);
}

bool os_hostname_id(char out[static OS_ID_SIZE])
{
	char name[256] = "host:";
	size_t prefix = strlen(name);

	if (gethostname(name + prefix, sizeof(name) - prefix - 1) < 0 || !name[prefix])
		return false;
	os_hash_id(name, out);
	return true;
}

size_t os_unsent(int fd)
{
	int n = 0;

#if defined(SO_NWRITE)
	socklen_t len = sizeof(n);
	int r = getsockopt(fd, SOL_SOCKET, SO_NWRITE, &n, &len);
#elif defined(FIONWRITE)
	int r = ioctl(fd, FIONWRITE, &n);
#else
	int r = ioctl(fd, TIOCOUTQ, &n);
#endif
	return r < 0 || n < 0 ? 0 : (size_t)n;
}
