/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The key of a setup (setup.h): the same for every kind of target.
 */
#ifndef DLRUN_CORE_RECORD_SETUP_KEY_H
#define DLRUN_CORE_RECORD_SETUP_KEY_H

#include "base/util/digest.h"
#include "base/util/err.h"
#include "core/record/run.h"
#include "core/record/runtime.h"

enum {
	SETUP_KEY_FILES_MAX = 20000,
	SETUP_KEY_BYTES_MAX = 1 << 30,
};

/* The name of what the setup makes in the tree, as it is on disk. where: the image that it is run
 * in; NULL: machines of this one's platform. Of modes only whether a file is executable: the rest
 * is the umask's. Of a directory all files below count, but for .git, .venv and what Python's
 * tools leave there (__pycache__, *.egg-info, caches). A key that is a symbolic link counts with
 * what it says and with the file that it leads to; links below a directory only with what they
 * say. holds: whether a snapshot has something at path or below; what it lacks does not count.
 * NULL: all does. */
int setup_key(const struct runtime_setup *setup, const char *where, const char *tree,
	bool (*holds)(const void *ctx, const char *path), const void *ctx,
	char out[static SHA256_HEX_SIZE], struct err *err);

/* The same of data: of all files of a directory of the tree. */
int setup_key_of_data(
	const char *path, const char *tree, char out[static SHA256_HEX_SIZE], struct err *err);

/* The line for messages: its first one, as str_shown has it. The caller frees. */
char *setup_shown(const char *run);

/* The id, as that of a run, of what makes the setup with that key at a target; and whether an id is
 * one of these. */
void setup_make_id(const char *key, char ret[static RUN_ID_SIZE]);
void setup_new_id(char ret[static RUN_ID_SIZE]); /* of no key */
bool setup_id_is_own(const char *id);

#endif
