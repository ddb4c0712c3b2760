/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A test program that is its own supervisor: its main calls this for `__supervise DIR`.
 */
#ifndef DLRUN_TESTS_SUPERVISEFIX_H
#define DLRUN_TESTS_SUPERVISEFIX_H

#include <stdio.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "targets/local/supervise.h"

static inline int run_supervisor(const char *dir)
{
	AUTO_ERR struct err err = {0};

	if (supervise("/proc/self/exe", dir, &err) == 0)
		return 0;
	fprintf(stderr, "supervise: %s\n", err.message);
	return 1;
}

#endif
