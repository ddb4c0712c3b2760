/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A way to the port of a TensorBoard, wherever that runs, whether it answers there, and what it
 * writes.
 */
#ifndef DLRUN_APP_TENSORBOARD_TENSORBOARD_LINK_H
#define DLRUN_APP_TENSORBOARD_TENSORBOARD_LINK_H

#include <stdbool.h>
#include <stdint.h>

#include "app/tensorboard/tensorboard_words.h"
#include "base/loop/loop.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/err.h"

struct tensorboard_link {
	/* A new connection: fd, a connected socket, is the callee's whatever is returned, which
	 * relays between it and TensorBoard (httpd_route.connect). */
	int (*connect)(void *ctx, int fd, struct err *err);
	void *ctx;
};

struct tensorboard_probe;
/* version: NULL where nothing answers, or not as TensorBoard. From the loop, once. */
typedef void tensorboard_probe_fn(void *ctx, const char *version);
/* Requests PREFIX/data/environment. The link is used in the call only. */
struct tensorboard_probe *tensorboard_probe_start(struct loop *loop,
	const struct tensorboard_link *link, const char *prefix, uint16_t port, int64_t timeout_ms,
	tensorboard_probe_fn *done, void *ctx);
/* Gives up, if it goes on: no done. NULL is accepted. */
void tensorboard_probe_free(struct tensorboard_probe *probe);
AUTO_POINTER(struct tensorboard_probe, tensorboard_probe_free)

/* Relays fd to that port of 127.0.0.1; s is a socket of the network that is meant, which is not
 * connected yet. Both are taken over. The pump is added to pumps. */
struct tensorboard_pumps;
struct tensorboard_pumps *tensorboard_pumps_new(struct loop *loop);
/* Connections are reset. NULL is accepted. */
void tensorboard_pumps_free(struct tensorboard_pumps *pumps);
int tensorboard_pumps_connect(
	struct tensorboard_pumps *pumps, int fd, int s, uint16_t port, struct err *err);

/*
 * Output of a TensorBoard: the end of it is held for the error, and each line is handed on.
 */

struct tensorboard_output {
	struct loop *loop;
	int fd; /* of a pipe; the caller's */
	void (*line)(void *ctx, const char *text, size_t len);
	void *ctx;
	struct loop_fd *source; /* NULL: not read yet, or at its end */
	struct buf said, part;  /* part: of a line that has not ended */
};
/* The members up to ctx are set. Reads while the loop runs. */
void tensorboard_output_start(struct tensorboard_output *output);
/* Read what is still there, without waiting. */
void tensorboard_output_drain(struct tensorboard_output *output);
/* The descriptor stays open. */
void tensorboard_output_done(struct tensorboard_output *output);

/*
 * A reverse proxy of a TensorBoard, which checks nothing by itself: requests are served below one
 * random path only, and under the rules of httpd.c.
 */

struct tensorboard_httpd_options {
	struct loop *loop;
	uint16_t port; /* 0: 6006, or the next one that is free */
	const struct tensorboard_link *link;
	const char *secret; /* copied */
	bool strip;         /* TensorBoard does not know the secret */
};

struct tensorboard_httpd;
/* Listens when it returns. E_LISTEN_TAKEN, E_LISTEN. */
int tensorboard_httpd_open(const struct tensorboard_httpd_options *options,
	struct tensorboard_httpd **ret, struct err *err);
void tensorboard_httpd_free(struct tensorboard_httpd *httpd);
AUTO_POINTER(struct tensorboard_httpd, tensorboard_httpd_free)
/* "http://127.0.0.1:6006/SECRET/". */
const char *tensorboard_httpd_url(const struct tensorboard_httpd *httpd);
/* URL that leads there once: for the arguments of a browser, which all users can read. */
const char *tensorboard_httpd_open_url(const struct tensorboard_httpd *httpd);
uint16_t tensorboard_httpd_port(const struct tensorboard_httpd *httpd);

#endif
