/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The making of an environment (environment.h) in a pod: a Job whose name follows from the key, so
 * that of several who want it one makes it. Its pod runs the setup, lists what that has changed and
 * waits for somebody to take it (bake.sh); others meanwhile are told so, and may take it when the
 * first has not for a while. Killed at any time it leaves a Job that the next one who wants the
 * environment goes on with, and which ends by itself ten minutes after the setup.
 */
#ifndef DLRUN_APP_ENVIRONMENT_BAKE_H
#define DLRUN_APP_ENVIRONMENT_BAKE_H

#include "app/prepare/prepare.h"

struct bake_request {
	struct submit *submit; /* whose setup it is */
	const char *key;
	const char *image_ref;          /* of its code on the base */
	const struct json *image_facts; /* image_facts.h, of that */
	int out_fd;                     /* a file: gets a tar (bake.sh) */
	bool is_checked; /* the target has checked already whether that could be there */
	const volatile int *interrupted;
};

enum bake_result {
	BAKE_DONE,
	BAKE_BUSY,  /* another process has taken it: search for the image, else call again */
	BAKE_LOST,  /* its Job or pod is gone, maybe as another is done: search for the image,
		     * else bake_remove and call again */
	BAKE_CANNOT /* here; err says why */
};

/* Blocks. What is there stays after all but BAKE_CANNOT and a failure, until bake_remove; after
 * E_CANCELED, too, while others wait for it. */
int bake_make(const struct bake_request *request, enum bake_result *ret, struct err *err);
/* Also after a failure: nothing of it stays. */
void bake_remove(struct submit *submit, const char *key);

#endif
