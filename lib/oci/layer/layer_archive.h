/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libarchive, loaded when the first layer is read: it brings along more libraries than all others
 * together. Only layer_read.c includes this; functions have their usual names.
 */
#ifndef DLRUN_OCI_LAYER_LAYER_ARCHIVE_H
#define DLRUN_OCI_LAYER_LAYER_ARCHIVE_H

#include <archive.h>
#include <archive_entry.h>

#include "base/util/err.h"

#define LAYER_ARCHIVE(X)                                                                           \
	X(entry_filetype)                                                                          \
	X(entry_free)                                                                              \
	X(entry_hardlink)                                                                          \
	X(entry_mtime)                                                                             \
	X(entry_mtime_nsec)                                                                        \
	X(entry_new)                                                                               \
	X(entry_pathname)                                                                          \
	X(entry_perm)                                                                              \
	X(entry_size)                                                                              \
	X(entry_sparse_count)                                                                      \
	X(entry_symlink)                                                                           \
	X(error_string)                                                                            \
	X(read_data_block)                                                                         \
	X(read_free)                                                                               \
	X(read_new)                                                                                \
	X(read_next_header2)                                                                       \
	X(read_open)                                                                               \
	X(read_set_format_option)                                                                  \
	X(read_support_format_tar)                                                                 \
	X(set_error)

/* Filled in by layer_archive_load. */
struct layer_archive {
#define LAYER_ARCHIVE_MEMBER(name) __typeof__(&archive_##name) name;
	LAYER_ARCHIVE(LAYER_ARCHIVE_MEMBER)
#undef LAYER_ARCHIVE_MEMBER
};
extern struct layer_archive layer_archive;

/* Once is enough, more does nothing. E_IO when it is not installed. */
int layer_archive_load(struct err *err);

#ifndef LAYER_ARCHIVE_LOADER
#define archive_entry_filetype          layer_archive.entry_filetype
#define archive_entry_free              layer_archive.entry_free
#define archive_entry_hardlink          layer_archive.entry_hardlink
#define archive_entry_mtime             layer_archive.entry_mtime
#define archive_entry_mtime_nsec        layer_archive.entry_mtime_nsec
#define archive_entry_new               layer_archive.entry_new
#define archive_entry_pathname          layer_archive.entry_pathname
#define archive_entry_perm              layer_archive.entry_perm
#define archive_entry_size              layer_archive.entry_size
#define archive_entry_sparse_count      layer_archive.entry_sparse_count
#define archive_entry_symlink           layer_archive.entry_symlink
#define archive_error_string            layer_archive.error_string
#define archive_read_data_block         layer_archive.read_data_block
#define archive_read_free               layer_archive.read_free
#define archive_read_new                layer_archive.read_new
#define archive_read_next_header2       layer_archive.read_next_header2
#define archive_read_open               layer_archive.read_open
#define archive_read_set_format_option  layer_archive.read_set_format_option
#define archive_read_support_format_tar layer_archive.read_support_format_tar
#define archive_set_error               layer_archive.set_error
#endif

#endif
