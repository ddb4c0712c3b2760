/* SPDX-License-Identifier: Apache-2.0 */
/* Attempts and GPUs as a runner writes them (protocol.h): engines from words. */
#ifndef DLRUN_NODE_ATTEMPTS_H
#define DLRUN_NODE_ATTEMPTS_H

#include "base/util/err.h"
#include "node/node.h"
#include "node/wire.h"

enum { NODE_ATTEMPTS_MAX = 100 * 1000 };

/* The words of an `attempt` line. *ret is filled anew. E_NODE_PROTOCOL. */
int node_attempt_parse(const struct node_words *words, struct node_attempt *ret, struct err *err);
void node_attempt_done(struct node_attempt *attempt);
void node_attempt_copy(const struct node_attempt *from, struct node_attempt *ret);
/* "RUN/N" in its parts; false: it is none. run: of NODE_NAME_SIZE. */
enum { NODE_NAME_SIZE = 65 };
bool node_attempt_name(const char *name, char run[static NODE_NAME_SIZE], int *ret_attempt);

/* The words of a `gpu` line. E_NODE_PROTOCOL. */
int node_gpu_parse(const struct node_words *words, struct node_gpu *ret, struct err *err);

#endif
