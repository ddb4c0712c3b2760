/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A directory that a sink (fetch_sink.h) writes a program's files into. Programs are not trusted:
 * nothing gets out of it, nor through a link of it. The directory `own` in it has the sink's notes,
 * a lock, and files before they get their names. Only one sink at a time has it open.
 */
#ifndef DLRUN_APP_TRANSFER_SINK_DIR_H
#define DLRUN_APP_TRANSFER_SINK_DIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/os/os.h"
#include "base/util/err.h"

struct sink_dir {
	char *path;
	const char *own;         /* its name */
	mode_t mode;             /* of directories that are made */
	int fd, own_fd, lock_fd; /* -1: not open */
	char boot[OS_ID_SIZE];   /* empty: not known */
	/* Whether a file may be removed where a directory is to be; NULL: none. */
	bool (*may_replace)(void *ctx, const char *path, const struct stat *st);
	void *ctx;
};
void sink_dir_init(struct sink_dir *dir, const char *path, const char *own, mode_t mode);
void sink_dir_done(struct sink_dir *dir);
/* Makes it, and locks it: E_IO_LOCK when another has had it for wait_ms. */
int sink_dir_open(struct sink_dir *dir, int wait_ms, struct err *err);
void sink_dir_close(struct sink_dir *dir);
/* "writing DIR/PATH: …" */
int sink_dir_fail(const struct sink_dir *dir, int errnum, const char *path, struct err *err);

/* Whether path is proper (fetch_path_is_proper), and nothing of the sink's own. */
bool sink_dir_admits(const struct sink_dir *dir, const char *path);
/* A directory, made if it is missing: name below fd (path: the same from the top), path from the
 * top ("": itself), and the one that path is in. A descriptor, -errno, or -EEXIST when a file is
 * in the way that must stay. */
int sink_dir_step(const struct sink_dir *dir, int fd, const char *name, const char *path);
int sink_dir_enter(const struct sink_dir *dir, const char *path);
int sink_dir_parent(const struct sink_dir *dir, const char *path, const char **ret_name);
/* A new file, or link, in `own`; a descriptor (0: the link is there) or -errno. */
int sink_dir_new(const struct sink_dir *dir, const char *name);
int sink_dir_new_link(const struct sink_dir *dir, const char *name, const char *target);

/* A file whose content has to begin with what is here already. */
struct sink_overlap {
	int fd;           /* of what is here */
	uint64_t at, end; /* of it: what is compared next, and how far */
	bool differs;
};
/* How many of the bytes were compared. */
size_t sink_overlap_check(struct sink_overlap *overlap, const void *data, size_t len);

#endif
