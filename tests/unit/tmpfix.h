/* SPDX-License-Identifier: Apache-2.0 */
/* One temporary directory, made for each test and removed behind it. */
#ifndef DLRUN_TESTS_UNIT_TMPFIX_H
#define DLRUN_TESTS_UNIT_TMPFIX_H

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/mem.h"

static char *tmp;

static inline int make_tmp(void **state)
{
	const char *base = getenv("TMPDIR");

	tmp = mem_printf("%s/dlrun-test-XXXXXX", base ? base : "/tmp");
	return mkdtemp(tmp) ? 0 : -1;
}

static inline int remove_tmp(void **state)
{
	int r = fs_remove_tree(AT_FDCWD, tmp, NULL);
	free(tmp);
	return r;
}

#endif
