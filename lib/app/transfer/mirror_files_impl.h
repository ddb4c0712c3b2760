/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internals that the sinks of a mirror share (mirror_files.h): the one that copies files, in
 * mirror_files.c, and the one that keeps of them what curves need, in mirror_scalars.c. Only for
 * these two.
 */
#ifndef DLRUN_APP_TRANSFER_MIRROR_FILES_IMPL_H
#define DLRUN_APP_TRANSFER_MIRROR_FILES_IMPL_H

#include <sys/stat.h>

#include "app/transfer/mirror_files.h"
#include "app/transfer/sink_dir.h"
#include "base/util/arena.h"
#include "base/util/map.h"
#include "events/scalars_only.h"

enum {
	MIRROR_OVERLAP = 64, /* bytes that are compared before more are appended */
	MIRROR_NEVER = -1,   /* a time that no file has */
};

/* Of scalars only. */
struct mirror_walked {
	struct scalars_place place; /* there; what is before it is here, as far as it is kept */
	uint64_t source;            /* size there, when it was seen last */
	bool is_unsure;             /* what is here was written before a power cut */
	bool is_behind;             /* there is more that can be had now */
	uint64_t goal;              /* where the present row of looks ends */
	uint64_t window; /* bytes that are asked for at one time; 0: as in the beginning */
	unsigned n_lost; /* places that turned out to be none */
};

struct mirror_kept {
	const char *path;
	uint64_t size; /* here; of a copy: that was seen there */
	int64_t mtime_ns;
	bool is_anew;  /* what is here is of another file */
	bool is_there; /* the present look has found it */
	/* Read by TensorBoard's plugins, and no event file; is_rewritten: not only at its end. */
	bool is_plugin, is_rewritten;
	uint64_t seen_size; /* of one that is rewritten: there, when it was seen last */
	int64_t seen_mtime_ns;
	struct mirror_walked walked;
};

struct mirror_files {
	struct fetch_sink sink;
	struct sink_dir dir;
	char *linked;
	struct map files; /* path → struct mirror_kept */
	struct arena arena;
	ino_t seen_ino;
	char *whole; /* or NULL */
	bool is_dirty;
	struct mirror_counts counts;
	struct strv like;  /* of the sink */
	struct strv named; /* patterns for "./" and the path: what others of them name */
	char *left_out;    /* the first; or NULL */
	size_t n_plugins;  /* of files */
	/* Of the file that comes. */
	struct mirror_kept *current;
	int fd;
	bool is_dropped; /* it is another one than was thought */
	/* Copies. */
	uint64_t at; /* where the next byte goes */
	struct sink_overlap overlap;
	/* Scalars only; NULL: copies. */
	struct scalars_only *walk;
	struct fetch_range range;
	bool was_sure; /* of the place where the range begins */
	struct buf out;
	/* Files that were not copied: the first of them, and its error. */
	char *unread;
	int unread_errnum;
	bool is_over_limit;
};

static inline struct mirror_files *mirror_files_of(struct fetch_sink *sink)
{
	return (struct mirror_files *)sink;
}

extern const struct fetch_sink_ops mirror_scalars_ops;
void mirror_scalars_init(struct mirror_files *files);

/* Whether a plugin's file is transferred at all; files over the limits are noted. */
bool mirror_plugins_admit(struct mirror_files *files, const struct fetch_item *item);
/* Whether to wait until a file that is rewritten stops changing. */
bool mirror_plugins_waits(
	struct mirror_files *files, struct mirror_kept *kept, const struct fetch_item *item);
/* Add the files that plugin files here name to the wanted ones. Returns whether there are more than
 * before. */
bool mirror_plugins_read(struct mirror_files *files);

void mirror_close_file(struct mirror_files *files);
/* The size that counts as being here. */
void mirror_set_size(struct mirror_files *files, struct mirror_kept *kept, uint64_t size);
/* NULL: it is refused, noted. */
struct mirror_kept *mirror_admit(struct mirror_files *files, const struct fetch_item *item);
/* Regular and one of ours; a descriptor or -errno, -ENOENT for anything else that is there. */
int mirror_open_here(const struct mirror_files *files, const char *path, struct stat *ret);
/* Create an empty file in place of what has the name; a descriptor or -errno. */
int mirror_open_anew(struct mirror_files *files, const char *path);
/* All that len bytes at at; 0 or -errno. */
int mirror_write_at(int fd, const char *data, size_t len, uint64_t at);
int mirror_take_linked(struct mirror_files *files, struct mirror_kept *kept,
	const struct fetch_item *item, struct err *err);
/* Take a file without content: only its name is transferred. */
int mirror_take_empty(struct mirror_files *files, struct mirror_kept *kept,
	const struct fetch_item *item, bool is_here, struct err *err);
/* The return value of a begin after opening the file returned r, 0 or -errno. */
int mirror_begun(struct mirror_files *files, int r, const char *path, struct err *err);
void mirror_unread(struct fetch_sink *sink, const char *path, int errnum);
void mirror_free_sink(struct fetch_sink *sink);

#endif
