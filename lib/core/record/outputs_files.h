/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A list of files that a run has written.
 */
#ifndef DLRUN_CORE_RECORD_OUTPUTS_FILES_H
#define DLRUN_CORE_RECORD_OUTPUTS_FILES_H

#include <stdint.h>

#include "base/util/vec.h"

struct outputs_file {
	char *path; /* below the outputs; any bytes but NUL, without "." and ".." */
	uint64_t size;
	int64_t mtime_ns;
};
struct outputs_files VEC_OF(struct outputs_file);
void outputs_files_done(struct outputs_files *files);

#endif
