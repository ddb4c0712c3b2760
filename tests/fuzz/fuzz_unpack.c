/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/data/entry.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "oci/layer/layer.h"
#include "oci/layer/unpack.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX = 8 << 20, FILES_MAX = 4 };

static int temp_fd(void)
{
	char path[] = "/tmp/dlrun-fuzz-XXXXXX";
	int fd = mkstemp(path);

	BUG_ON(fd < 0);
	unlink(path);
	return fd;
}

static void add(struct entry_list *list, const char *path)
{
	struct entry entry = {.path = path};

	digest_sha256("", 0, entry.sha256);
	entry_add(list, &entry);
}

/* A list as the contract has it. */
static void check_list(const struct entry_list *list)
{
	for (size_t i = 0; i < list->n; i++) {
		const struct entry *e = &list->v[i];
		BUG_ON(!layer_path_is_valid(e->path));
		BUG_ON((e->kind == ENTRY_LINK) != (e->target != NULL));
		BUG_ON(i > 0 && strcmp(list->v[i - 1].path, e->path) >= 0);
		for (const char *slash = e->path; (slash = strchr(slash, '/')); slash++) {
			AUTO_FREE char *dir = strndup(e->path, (size_t)(slash - e->path));
			BUG_ON(entry_find(list, dir));
		}
	}
}

/* One file alone is the same as in the list. */
static void check_file(struct unpack_spec *spec, const struct entry *entry)
{
	static int out_fd = -1;
	AUTO_ERR struct err err = {0};
	AUTO_BUF struct buf content = {0};
	uint8_t sha256[SHA256_SIZE];
	int found;

	if (out_fd < 0)
		out_fd = temp_fd();
	BUG_ON(ftruncate(out_fd, 0) != 0 || lseek(out_fd, 0, SEEK_SET) != 0);
	BUG_ON(lseek(spec->fd, 0, SEEK_SET) != 0);
	if (unpack_file(spec, entry->path, out_fd, &found, &err)) {
		BUG_ON(!strstr(err.message, "hard link"));
		return;
	}
	if (found != 1)
		return;
	BUG_ON(lseek(out_fd, 0, SEEK_SET) != 0);
	BUG_ON(fs_read_fd(out_fd, "out", MAX, &content, &err) != 0);
	digest_sha256(content.data, content.len, sha256);
	BUG_ON(content.len != entry->size || memcmp(sha256, entry->sha256, SHA256_SIZE) != 0);
}

/* A tar archive as a layer over three files. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static int fd = -1;
	AUTO_ERR struct err err = {0};
	AUTO_ENTRIES struct entry_list list = {0};

	if (fd < 0)
		fd = temp_fd();
	BUG_ON(ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size);
	BUG_ON(lseek(fd, 0, SEEK_SET) != 0);
	add(&list, "a");
	add(&list, "b/a");
	add(&list, "b/c/a");
	struct unpack_spec spec = {.fd = fd, .workdir = "/w", .max_bytes = MAX};
	if (unpack_list(&spec, &list, &err)) {
		BUG_ON(err.id != E_IMAGE && err.id != E_DATA_LIMIT);
		BUG_ON(list.n != 3);
	}
	check_list(&list);
	for (size_t i = 0; i < list.n && i < FILES_MAX && !err_is_set(&err); i++)
		check_file(&spec, &list.v[i]);
	return 0;
}
