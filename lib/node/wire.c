/* SPDX-License-Identifier: Apache-2.0 */
#include "node/wire.h"

#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/term.h"

enum {
	EVIDENCE_MAX = 240,
	/* More than what stands in a line with MARK before hello: it may follow noise. */
	TAIL = 256,
	NAME_MAX_LEN = 64,
};

void node_wire_init(struct node_wire *wire, const char *mark, bool is_loose)
{
	*wire = (struct node_wire){.is_loose = is_loose, .has_begun = is_loose};
	memcpy(wire->mark, mark, NODE_MARK_LEN);
	buf_init(&wire->in, NODE_LINE_MAX + NODE_WIRE_PIECE);
}

void node_wire_done(struct node_wire *wire)
{
	if (!wire)
		return;
	buf_done(&wire->in);
	for (size_t i = 0; i < NODE_WIRE_KEPT; i++)
		free(TAKE(wire->kept[i]));
}

void node_wire_add(struct node_wire *wire, const void *data, size_t len)
{
	buf_consume(&wire->in, wire->at);
	wire->at = 0;
	buf_add(&wire->in, data, len);
}

void node_wire_keep(struct node_wire *wire, const char *line)
{
	AUTO_BUF struct buf clean;
	size_t len = strlen(line);

	buf_init(&clean, 4 * (size_t)EVIDENCE_MAX);
	term_clean(line, len < EVIDENCE_MAX ? len : EVIDENCE_MAX, true, &clean);
	if (clean.len == strspn(clean.data, " "))
		return;
	free(wire->kept[0]);
	memmove(wire->kept, wire->kept + 1, sizeof(wire->kept) - sizeof(*wire->kept));
	wire->kept[NODE_WIRE_KEPT - 1] = buf_take(&clean);
}

void node_wire_evidence(struct node_wire *wire, struct err *err)
{
	if (!wire->in.data)
		return;
	/* A prompt, or the last words before the end. */
	if (wire->in.len > wire->at && (!wire->has_begun || wire->is_loose)) {
		node_wire_keep(wire, wire->in.data + wire->at);
		wire->at = wire->in.len;
		wire->looked = 0;
	}
	for (size_t i = 0; i < NODE_WIRE_KEPT; i++)
		if (wire->kept[i])
			err_evidence(err, "%s", wire->kept[i]);
}

/*
 * Lines
 */

static const char *const mark_words[] = {
	[NODE_SAYS_SEND] = "send",
	[NODE_SAYS_STORED] = "stored",
	[NODE_SAYS_HELLO] = "hello",
	[NODE_SAYS_GO] = "go",
	[NODE_SAYS_DONE] = "done",
	[NODE_SAYS_FAIL] = "fail",
};

/* Parse the word behind "MARK ": 0 if it is unknown. */
static enum node_says mark_word(const char *text, char **ret_rest)
{
	size_t len = strcspn(text, " ");

	for (size_t i = 1; i < ARRAY_LEN(mark_words); i++) {
		if (strlen(mark_words[i]) != len || memcmp(mark_words[i], text, len) != 0)
			continue;
		*ret_rest = (char *)text + len + (text[len] == ' ');
		return (enum node_says)i;
	}
	return NODE_SAYS_LINE;
}

/* The mark in line where it may stand: at its beginning, or behind noise that had no LF. The
 * command itself may be shown there, where no word follows. */
static enum node_says find_mark(const struct node_wire *wire, char *line, char **ret_rest)
{
	for (char *at = strstr(line, wire->mark); at; at = strstr(at + 1, wire->mark)) {
		if (wire->has_begun && at != line)
			break;
		if (at[NODE_MARK_LEN] != ' ')
			continue;
		enum node_says what = mark_word(at + NODE_MARK_LEN + 1, ret_rest);

		if (what != NODE_SAYS_LINE)
			return what;
	}
	return NODE_SAYS_LINE;
}

static int add_noise(struct node_wire *wire, size_t len, struct err *err)
{
	wire->noise += len;
	if (wire->noise > NODE_NOISE_MAX)
		return err_set(err, E_NODE_SHELL,
			"the login shell says too much before it runs a command");
	return 0;
}

/* No LF yet. */
static int look_at_partial(struct node_wire *wire, struct err *err)
{
	size_t len = wire->in.len - wire->at, drop;

	wire->looked = len;
	if (len <= NODE_LINE_MAX)
		return 0;
	if (wire->has_begun && !wire->is_loose)
		return err_set(err, E_NODE_PROTOCOL, "a line of the node is longer than %d bytes",
			NODE_LINE_MAX);
	drop = len - TAIL;
	wire->at += drop;
	wire->looked = TAIL;
	return wire->is_loose ? 0 : add_noise(wire, drop, err);
}

static char *take_line(struct node_wire *wire, char *end, size_t *ret_len)
{
	char *line = wire->in.data + wire->at;
	size_t len = (size_t)(end - line);

	wire->at += len + 1;
	wire->looked = 0;
	*end = '\0';
	/* A terminal there makes CR LF of LF. */
	while (len && line[len - 1] == '\r')
		line[--len] = '\0';
	*ret_len = len;
	return line;
}

static int check_line(const struct node_wire *wire, const char *line, size_t len,
	const struct node_said *said, struct err *err)
{
	if (!wire->has_begun || wire->is_loose)
		return 0;
	if (len > NODE_LINE_MAX)
		return err_set(err, E_NODE_PROTOCOL, "a line of the node is longer than %d bytes",
			NODE_LINE_MAX);
	if (strnlen(line, len) < len)
		return err_set(err, E_NODE_PROTOCOL, "a line of the node has a NUL");
	if (said->what == NODE_SAYS_LINE && strncmp(line, wire->mark, NODE_MARK_LEN) == 0) {
		AUTO_FREE char *shown = str_shown(line + NODE_MARK_LEN);

		return err_set(err, E_NODE_PROTOCOL, "the host sent an unknown message:%s", shown);
	}
	return 0;
}

static char *find_end(struct node_wire *wire)
{
	const char *from = wire->in.data + wire->at + wire->looked;

	return memchr(from, '\n', wire->in.len - wire->at - wire->looked);
}

int node_wire_next(struct node_wire *wire, struct node_said *ret, struct err *err)
{
	char *end;

	while ((end = find_end(wire))) {
		size_t len;
		char *line = take_line(wire, end, &len);
		struct node_said said = {.line = line};

		said.what = find_mark(wire, line, &said.line);
		int r = check_line(wire, line, len, &said, err);

		if (r < 0)
			return r;
		if (wire->has_begun || said.what != NODE_SAYS_LINE) {
			wire->has_begun = true;
			*ret = said;
			return 1;
		}
		node_wire_keep(wire, line);
		r = add_noise(wire, len + 1, err);
		if (r < 0)
			return r;
	}
	return look_at_partial(wire, err);
}

int node_wire_peek(const struct node_wire *wire)
{
	return wire->in.len > wire->at ? (unsigned char)wire->in.data[wire->at] : -1;
}

size_t node_wire_rest(struct node_wire *wire, const char **ret)
{
	size_t len = wire->in.len - wire->at;

	*ret = wire->in.data + wire->at;
	wire->at = wire->in.len;
	wire->looked = 0;
	return len;
}

/*
 * Words
 */

static int octal(const char *digits)
{
	int value = 0;

	for (int i = 0; i < 3; i++) {
		if (digits[i] < '0' || digits[i] > '7')
			return -1;
		value = 8 * value + (digits[i] - '0');
	}
	return value < 256 ? value : -1;
}

bool node_word_decode(char *word)
{
	char *out = word;

	for (const char *p = word; *p; p++) {
		if (*p != '\\') {
			*out++ = *p;
			continue;
		}
		if (*++p != '0')
			return false;
		if (!p[1])
			break;
		int value = octal(p + 1);

		if (value <= 0)
			return false;
		*out++ = (char)value;
		p += 3;
	}
	*out = '\0';
	return true;
}

int node_words_split(char *line, struct node_words *ret, struct err *err)
{
	ret->n = 0;
	for (char *p = line + strspn(line, " "); *p;) {
		size_t len = strcspn(p, " ");
		bool is_last = !p[len];

		p[len] = '\0';
		*vec_push(ret) = p;
		if (!node_word_decode(p))
			return err_set(err, E_NODE_PROTOCOL, "the host sent an invalid encoding");
		if (is_last)
			break;
		p += len + 1;
		p += strspn(p, " ");
	}
	return 0;
}

static bool is_plain(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || str_is_digit(c) ||
	       (c && strchr("._/:=,@%+~-", c));
}

void node_word_add(struct buf *out, const char *value)
{
	buf_addc(out, ' ');
	if (!*value)
		buf_adds(out, "\\0");
	while (*value) {
		const char *start = value;

		while (is_plain(*value))
			value++;
		buf_add(out, start, (size_t)(value - start));
		if (*value)
			buf_addf(out, "\\0%03o", (unsigned)(unsigned char)*value++);
	}
}

bool node_word_number(const char *word, uint64_t *ret)
{
	uint64_t value = 0;

	if (!*word)
		return false;
	for (; *word; word++) {
		if (!str_is_digit(*word))
			return false;
		uint64_t digit = (uint64_t)(*word - '0');

		if (value > (UINT64_MAX - digit) / 10)
			return false;
		value = 10 * value + digit;
	}
	*ret = value;
	return true;
}

bool node_name_is_good(const char *name)
{
	size_t len = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-");

	return len > 0 && len <= NAME_MAX_LEN && !name[len];
}
