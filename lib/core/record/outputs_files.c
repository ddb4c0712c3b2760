/* SPDX-License-Identifier: Apache-2.0 */
#include "core/record/outputs_files.h"

#include <stdlib.h>

void outputs_files_done(struct outputs_files *files)
{
	vec_foreach (struct outputs_file, file, files)
		free(file->path);
	vec_done(files);
}
