/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What collecting results from the tree of an ended local attempt costs:
 *
 *	collect_tool DIR [N]    DIR: runs/ID/attempts/1; N times, "MS CPU_MS" each
 *
 * The attempt is as it was afterwards: collecting it once more changes nothing.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "core/attempt/collect.h"

static double since_ms(const struct timespec *begin, const struct timespec *end)
{
	return (double)(end->tv_sec - begin->tv_sec) * 1e3 +
	       (double)(end->tv_nsec - begin->tv_nsec) / 1e6;
}

int main(int argc, char **argv)
{
	struct attempt_job job = {0};
	struct err err = {0};
	int n = argc > 2 ? atoi(argv[2]) : 1;

	if (argc < 2) {
		fprintf(stderr, "usage: collect_tool DIR [N]\n");
		return 2;
	}
	int r = attempt_job_read(argv[1], &job, &err);
	for (int i = 0; i < n && r == 0; i++) {
		struct timespec wall[2], cpu[2];
		clock_gettime(CLOCK_MONOTONIC, &wall[0]);
		clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu[0]);
		r = collect_results(argv[1], &job, COLLECT_ENDED, &err);
		clock_gettime(CLOCK_MONOTONIC, &wall[1]);
		clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu[1]);
		printf("%.1f %.1f\n", since_ms(&wall[0], &wall[1]), since_ms(&cpu[0], &cpu[1]));
	}
	attempt_job_done(&job);
	if (r < 0)
		fprintf(stderr, "error: %s\n", err.message);
	return r < 0;
}
