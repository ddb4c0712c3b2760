/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Facts that a runner sends about its node behind "hello" (protocol.h): an engine from lines to
 * facts.
 */
#ifndef DLRUN_NODE_FACTS_H
#define DLRUN_NODE_FACTS_H

#include "base/util/err.h"
#include "base/util/vec.h"
#include "node/node.h"
#include "node/wire.h"

enum {
	NODE_FACT_WORDS = 10,
	NODE_FACTS_MAX = 256, /* spares, transfers; more are passed over */
};

/* The received part of a transfer. */
struct node_partial {
	char *name;
	uint64_t bytes;
};

/* Zero is one without facts. */
struct node_hello {
	struct node_facts facts; /* its strings are of words */
	bool has_free;
	char *words[NODE_FACT_WORDS];
	struct strv old; /* words that were replaced and may be looked at still */
	struct VEC_OF(struct node_partial) partials;
};
void node_hello_done(struct node_hello *hello);
/* Parse and add one fact. E_NODE_PROTOCOL. */
int node_hello_add(struct node_hello *hello, char *line, struct err *err);
/* All facts have come; what is not known is set. E_NODE_PROTOCOL: one without which nothing goes is
 * missing. */
int node_hello_check(struct node_hello *hello, struct err *err);
/* Compare clocks: the node read its time between these two times of this machine's clock. */
void node_hello_compare(struct node_hello *hello, int64_t from_ms, int64_t to_ms);
/* *to knows what *from says. Strings of to that are the same stay where they are, others live as
 * long as to; lists are replaced; the round trip is to's. */
void node_hello_merge(struct node_hello *to, const struct node_hello *from);
/* The most that has come of the transfer name; 0: nothing. */
uint64_t node_hello_partial(const struct node_hello *hello, const char *name);

#endif
