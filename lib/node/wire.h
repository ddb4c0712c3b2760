/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Output of a runner (protocol.h): an engine from bytes to lines, from lines to words, and back. No
 * I/O. The input is untrusted: everything is bounded.
 */
#ifndef DLRUN_NODE_WIRE_H
#define DLRUN_NODE_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/buf.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "node/protocol.h"

enum {
	NODE_MARK_LEN = 16,
	NODE_WIRE_PIECE = 128 << 10, /* the most that is added at once */
	NODE_WIRE_KEPT = 4,          /* lines that are evidence */
};

enum node_says {
	NODE_SAYS_LINE, /* not the conversation's own: a fact, a part of an answer */
	NODE_SAYS_SEND,
	NODE_SAYS_STORED,
	NODE_SAYS_HELLO,
	NODE_SAYS_GO,
	NODE_SAYS_DONE,
	NODE_SAYS_FAIL, /* line: "CLASS text" */
};

/* A flow of lines: stdout begins with noise, stderr has some all along. */
struct node_wire {
	char mark[NODE_MARK_LEN + 1];
	bool is_loose;              /* stderr: a line that is too long loses its beginning */
	bool has_begun;             /* a line with MARK has come */
	struct buf in;              /* from at on it has not been looked at */
	size_t at, looked;          /* looked: bytes from at on that have no LF */
	uint64_t noise;             /* bytes before the first line with MARK */
	char *kept[NODE_WIRE_KEPT]; /* the newest at the end */
};

struct node_said {
	enum node_says what;
	char *line; /* without the mark, LF and CR; valid and the receiver's until the next call */
};

void node_wire_init(struct node_wire *wire, const char *mark, bool is_loose);
void node_wire_done(struct node_wire *wire);
/* len: at most NODE_WIRE_PIECE, and all lines have been taken out. */
void node_wire_add(struct node_wire *wire, const void *data, size_t len);
/* 1: the next line; 0: none yet. E_NODE_SHELL: too much noise before MARK. E_NODE_PROTOCOL: a line
 * that is too long or has a NUL, a word behind MARK that is none. */
int node_wire_next(struct node_wire *wire, struct node_said *ret, struct err *err);
/* Take the bytes behind the last line that was taken, in raw responses. They are the wire's until
 * the next call. */
size_t node_wire_rest(struct node_wire *wire, const char **ret);
/* The first byte behind the last line, -1: there is none. */
int node_wire_peek(const struct node_wire *wire);
/* A line that says something to people only. */
void node_wire_keep(struct node_wire *wire, const char *line);
/* The last of those to err; what stands in an unfinished line, too. */
void node_wire_evidence(struct node_wire *wire, struct err *err);

/* The words of a line, decoded where they stand; *ret is filled anew. E_NODE_PROTOCOL. */
struct node_words VEC_OF(char *);
int node_words_split(char *line, struct node_words *ret, struct err *err);
/* Decode a word (a value, or `key=value`) in place. false: invalid encoding. */
bool node_word_decode(char *word);
/* " WORD". */
void node_word_add(struct buf *out, const char *value);
/* Decimal digits only, and within uint64_t. */
bool node_word_number(const char *word, uint64_t *ret);
/* 1 to 64 of [a-z0-9-], as RUN, KEY, NAME and HEX are. */
bool node_name_is_good(const char *name);

#endif
