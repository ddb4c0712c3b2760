/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libgit2, loaded when the first repository is read: with the libraries that it brings along that
 * takes longer than many commands of dlrun, most of which read none. Only lib/snap includes this;
 * functions have their usual names.
 */
#ifndef DLRUN_SNAP_GIT_LIBGIT2_H
#define DLRUN_SNAP_GIT_LIBGIT2_H

#include <git2.h>

#include "base/util/err.h"

#define LIBGIT2(X)                                                                                 \
	X(commit_free)                                                                             \
	X(commit_lookup)                                                                           \
	X(commit_tree_id)                                                                          \
	X(config_free)                                                                             \
	X(config_foreach_match)                                                                    \
	X(config_get_bool)                                                                         \
	X(config_get_string)                                                                       \
	X(config_open_default)                                                                     \
	X(error_last)                                                                              \
	X(libgit2_init)                                                                            \
	X(libgit2_opts)                                                                            \
	X(odb_add_backend)                                                                         \
	X(odb_backend_loose)                                                                       \
	X(odb_exists_ext)                                                                          \
	X(odb_free)                                                                                \
	X(odb_new)                                                                                 \
	X(odb_open)                                                                                \
	X(odb_write)                                                                               \
	X(oid_equal)                                                                               \
	X(oid_fromstr)                                                                             \
	X(oid_pathfmt)                                                                             \
	X(oid_tostr_s)                                                                             \
	X(packbuilder_free)                                                                        \
	X(packbuilder_insert)                                                                      \
	X(packbuilder_new)                                                                         \
	X(packbuilder_set_threads)                                                                 \
	X(packbuilder_write)                                                                       \
	X(reference_delete)                                                                        \
	X(reference_free)                                                                          \
	X(reference_lookup)                                                                        \
	X(reference_name_to_id)                                                                    \
	X(reference_symbolic_target)                                                               \
	X(reference_target)                                                                        \
	X(repository_config_snapshot)                                                              \
	X(repository_free)                                                                         \
	X(repository_open_ext)                                                                     \
	X(repository_wrap_odb)

/* Filled in by libgit2_load. */
struct libgit2 {
#define LIBGIT2_MEMBER(name) __typeof__(&git_##name) name;
	LIBGIT2(LIBGIT2_MEMBER)
#undef LIBGIT2_MEMBER
};
extern struct libgit2 libgit2;

/* Load and initialize libgit2, once; from any thread. E_IO when it is not installed. */
int libgit2_load(struct err *err);
/* The last error message of libgit2, escaped; malloc'd. */
char *libgit2_message(void);
/* For AUTO(). The library need not be there when there is nothing to free. */
void libgit2_free_repository(git_repository **repository);
void libgit2_free_reference(git_reference **reference);

#ifndef LIBGIT2_LOADER
#define git_commit_free                libgit2.commit_free
#define git_commit_lookup              libgit2.commit_lookup
#define git_commit_tree_id             libgit2.commit_tree_id
#define git_config_free                libgit2.config_free
#define git_config_foreach_match       libgit2.config_foreach_match
#define git_config_get_bool            libgit2.config_get_bool
#define git_config_get_string          libgit2.config_get_string
#define git_config_open_default        libgit2.config_open_default
#define git_error_last                 libgit2.error_last
#define git_libgit2_init               libgit2.libgit2_init
#define git_libgit2_opts               libgit2.libgit2_opts
#define git_odb_add_backend            libgit2.odb_add_backend
#define git_odb_backend_loose          libgit2.odb_backend_loose
#define git_odb_exists_ext             libgit2.odb_exists_ext
#define git_odb_free                   libgit2.odb_free
#define git_odb_new                    libgit2.odb_new
#define git_odb_open                   libgit2.odb_open
#define git_odb_write                  libgit2.odb_write
#define git_oid_equal                  libgit2.oid_equal
#define git_oid_fromstr                libgit2.oid_fromstr
#define git_oid_pathfmt                libgit2.oid_pathfmt
#define git_oid_tostr_s                libgit2.oid_tostr_s
#define git_packbuilder_free           libgit2.packbuilder_free
#define git_packbuilder_insert         libgit2.packbuilder_insert
#define git_packbuilder_new            libgit2.packbuilder_new
#define git_packbuilder_set_threads    libgit2.packbuilder_set_threads
#define git_packbuilder_write          libgit2.packbuilder_write
#define git_reference_delete           libgit2.reference_delete
#define git_reference_free             libgit2.reference_free
#define git_reference_lookup           libgit2.reference_lookup
#define git_reference_name_to_id       libgit2.reference_name_to_id
#define git_reference_symbolic_target  libgit2.reference_symbolic_target
#define git_reference_target           libgit2.reference_target
#define git_repository_config_snapshot libgit2.repository_config_snapshot
#define git_repository_free            libgit2.repository_free
#define git_repository_open_ext        libgit2.repository_open_ext
#define git_repository_wrap_odb        libgit2.repository_wrap_odb
#endif

#endif
