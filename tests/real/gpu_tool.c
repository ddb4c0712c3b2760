/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A claim on GPUs as a local run has it: gpu_tool DIR OWNER COUNT COMMAND... waits for its turn and
 * becomes the command, which holds the locks. Why it waits it says with each look.
 */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "host/gpu.h"

enum { QUERY_MS = 20000, POLL_MS = 1000 };

static int failed(const struct err *err)
{
	fprintf(stderr, "%s\n", err->message);
	return 1;
}

static int wait_for_turn(struct gpu_claim *claim, struct err *err)
{
	for (;;) {
		struct gpu_list gpus;
		struct pollfd watch = {.fd = gpu_claim_watch_fd(claim), .events = POLLIN};

		int r = gpu_find(getenv("PATH"), QUERY_MS, &gpus, err);
		if (r == 0)
			r = gpu_claim_try(claim, &gpus, err);
		if (r != 0)
			return r;
		fprintf(stderr, "%s\n", gpu_claim_why(claim));
		poll(&watch, 1, POLL_MS);
	}
}

int main(int argc, char **argv)
{
	AUTO_ERR struct err err = {0};
	AUTO_GPU_CLAIM struct gpu_claim *claim = NULL;
	size_t n;

	if (argc < 5)
		return 2;
	struct gpu_claim_spec spec = {
		.dir = argv[1], .owner = argv[2], .want = (unsigned)strtoul(argv[3], NULL, 10)};
	if (gpu_claim_new(&spec, &claim, &err) < 0 || wait_for_turn(claim, &err) < 0)
		return failed(&err);
	const int *fds = gpu_claim_fds(claim, &n);
	for (size_t i = 0; i < n; i++)
		fcntl(fds[i], F_SETFD, 0);
	execvp(argv[4], argv + 4);
	return 127;
}
