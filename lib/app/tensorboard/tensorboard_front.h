/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Front of a TensorBoard, which checks nothing by itself: requests are served below one random path
 * only, and under the rules of front.c.
 */
#ifndef DLRUN_APP_TENSORBOARD_TENSORBOARD_FRONT_H
#define DLRUN_APP_TENSORBOARD_TENSORBOARD_FRONT_H

#include <stdbool.h>
#include <stdint.h>

#include "app/tensorboard/tensorboard_link.h"
#include "base/loop/loop.h"
#include "base/util/auto.h"
#include "base/util/err.h"

struct tensorboard_front_options {
	struct loop *loop;
	uint16_t port; /* 0: 6006, or the next one that is free */
	const struct tensorboard_link *link;
	const char *secret; /* copied */
	bool strip;         /* TensorBoard does not know the secret */
};

struct tensorboard_front;
/* Listens when it returns. E_LISTEN_TAKEN, E_LISTEN. */
int tensorboard_front_open(const struct tensorboard_front_options *options,
	struct tensorboard_front **ret, struct err *err);
void tensorboard_front_free(struct tensorboard_front *front);
AUTO_POINTER(struct tensorboard_front, tensorboard_front_free)
/* "http://127.0.0.1:6006/SECRET/". */
const char *tensorboard_front_url(const struct tensorboard_front *front);
/* URL that leads there once: for the arguments of a browser, which all users can read. */
const char *tensorboard_front_open_url(const struct tensorboard_front *front);
uint16_t tensorboard_front_port(const struct tensorboard_front *front);

#endif
