/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A TensorBoard, wherever that runs: a way to its port, whether it answers there, what it writes,
 * and the reverse proxy in front of it.
 */
#ifndef DLRUN_APP_TENSORBOARD_TENSORBOARD_LINK_H
#define DLRUN_APP_TENSORBOARD_TENSORBOARD_LINK_H

#include <stdbool.h>
#include <stdint.h>

#include "app/tensorboard/tensorboard_words.h"
#include "base/loop/loop.h"
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

/*
 * A TensorBoard, on this machine (tensorboard_local.h) or beside a program
 * (tensorboard_remote.h). What it writes is noted (log.h), the line that names its port is read,
 * and the end of it is held for the error.
 */

struct tensorboard_server {
	/* Whether it answers by now: 1; 0: not yet; fails when it has ended. */
	int (*poll)(struct tensorboard_server *server, struct err *err);
	void (*free)(struct tensorboard_server *server);
	struct loop *loop;
	struct tensorboard_link link;
	const char *prefix; /* "/RANDOM"; lives as long */
	int said_fd;        /* of a pipe, its output; the owner's */

	uint16_t port;                          /* where it runs; 0: not known yet */
	char version[TENSORBOARD_VERSION_SIZE]; /* empty: not known */
	bool has_responded;
	bool was_found; /* it was there already, and so does not know the prefix */
	bool is_alone;  /* no other user of this machine can reach its port */
	bool is_plain;  /* all users may see the prefix: no interpreter was found to start it by */

	struct loop_fd *source; /* NULL: its output is not read yet, or at its end */
	struct buf said, part;  /* part: of a line that has not ended */
	struct tensorboard_probe *probe;
	int64_t probe_next_ms;
};
/* To be called again and again while the loop runs. */
int tensorboard_server_poll(struct tensorboard_server *server, struct err *err);
/* NULL is accepted. */
void tensorboard_server_free(struct tensorboard_server *server);

/*
 * For the two kinds: the members from prefix up are set.
 */

/* Reads what it writes while the loop runs. */
void tensorboard_server_read(struct tensorboard_server *server);
/* Probes it, once its port is known, until it responds; returns whether it has. */
bool tensorboard_server_probe(struct tensorboard_server *server);
/* Why it ended: tensorboard_explain; of one that had responded E_TENSORBOARD_ENDED: "TensorBoard
 * ENDED". */
int tensorboard_server_fail(struct tensorboard_server *server, const struct tensorboard_who *who,
	const char *ended, const char *hint, struct err *err);
void tensorboard_server_done(struct tensorboard_server *server);

/*
 * A reverse proxy of a TensorBoard, which checks nothing by itself: requests are served below its
 * prefix only, and under the rules of httpd.c.
 */

struct tensorboard_httpd {
	struct httpd *httpd;
	const struct tensorboard_server *server;
	char once[TENSORBOARD_SECRET_SIZE];
	bool was_opened;
	uint16_t port;
	char *url;      /* "http://127.0.0.1:6006/SECRET/" */
	char *open_url; /* leads there once: for the arguments of a browser, which all can read */
};
/* port: 0: 6006, or the next one that is free. Listens when it returns; httpd and server stay where
 * they are. E_LISTEN_TAKEN, E_LISTEN. */
int tensorboard_httpd_open(struct tensorboard_httpd *httpd, const struct tensorboard_server *server,
	uint16_t port, struct err *err);
void tensorboard_httpd_done(struct tensorboard_httpd *httpd);

#endif
