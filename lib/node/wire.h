/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Output of a runner (protocol.h): engines from bytes to lines, from lines to words, and back; from
 * words to what they tell of. No I/O. The input is untrusted: everything is bounded.
 */
#ifndef DLRUN_NODE_WIRE_H
#define DLRUN_NODE_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/buf.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "node/node.h"
#include "node/protocol.h"

enum {
	NODE_MARK_LEN = 16,
	NODE_WIRE_PIECE = 128 << 10, /* the most that is added at once */
	NODE_WIRE_KEPT = 4,          /* lines that are evidence */
};

enum node_says {
	NODE_SAYS_LINE, /* not the connection's own: a fact, a part of a response */
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
	struct buf in;              /* from at on it has not been read */
	size_t at, searched;        /* searched: bytes from at on that have no LF */
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

/*
 * Facts that a runner sends about its node behind "hello" (protocol.h): an engine from lines to
 * facts.
 */

enum {
	NODE_FACT_WORDS = 11,
	NODE_FACTS_MAX = 256, /* spares, transfers; more are passed over */
};

/* The received part of a transfer. */
struct node_partial {
	char *name;
	uint64_t bytes;
};

/* Zero is one without facts. */
struct node_handshake {
	struct node_facts facts; /* its strings are of words */
	bool has_free;
	char *words[NODE_FACT_WORDS];
	struct strv old; /* words that were replaced and may be in use still */
	struct VEC_OF(struct node_partial) partials;
};
void node_handshake_done(struct node_handshake *handshake);
/* Parse and add one fact. E_NODE_PROTOCOL. */
int node_handshake_add(struct node_handshake *handshake, char *line, struct err *err);
/* All facts have come; what is not known is set. E_NODE_PROTOCOL: one without which nothing goes is
 * missing. */
int node_handshake_check(struct node_handshake *handshake, struct err *err);
/* Compare clocks: the node read its time between these two times of this machine's clock. */
void node_handshake_compare(struct node_handshake *handshake, int64_t from_ms, int64_t to_ms);
/* *to knows what *from says. Strings of to that are the same stay where they are, others live as
 * long as to; lists are replaced; the round trip is to's. */
void node_handshake_merge(struct node_handshake *to, const struct node_handshake *from);
/* The most that has come of the transfer name; 0: nothing. */
uint64_t node_handshake_partial(const struct node_handshake *handshake, const char *name);

/*
 * Attempts and GPUs as a runner writes them (protocol.h): engines from words.
 */

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

/* The words of one line of the response, added; what is of another form counts as not known.
 * E_NODE_PROTOCOL, E_DATA_LIMIT. */
int node_machine_line(
	const struct node_words *words, struct node_machine *machine, struct err *err);

/*
 * Lines about files, as a runner writes them (protocol.h): an engine.
 */

/* E_NODE_PROTOCOL: another form, or a path that could lead out of the results. */
int node_file_parse(const struct node_words *words, struct node_file *ret, struct err *err);

/*
 * When pieces of a log arrived (at a time the log had so many bytes): an engine. Of
 * more marks than NODE_MARKS_MAX ahead of the log every second one is forgotten.
 */

enum { NODE_MARKS_MAX = 64 << 10 };

struct node_log_mark {
	int64_t time_ms;
	uint64_t bytes;
};
struct node_marks {
	struct VEC_OF(struct node_log_mark) v;
	size_t at; /* of the first that counts still */
	struct node_log_mark last;
};
void node_marks_done(struct node_marks *marks);
/* Numbers that go down are raised to the one before. */
void node_marks_add(struct node_marks *marks, int64_t time_ms, uint64_t bytes);
/* How many of len bytes from offset on arrived at one time, and that; 0: not known (all of len). */
size_t node_marks_piece(
	struct node_marks *marks, uint64_t offset, size_t len, int64_t *ret_time_ms);

#endif
