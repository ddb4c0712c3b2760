/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/mem.h"
#include "base/util/vec.h"
#include "snap/ignore/ignore.h"
#include "snap/ignore/wildmatch.h"

/* A step of a compiled pattern: a byte, one of these, or OP_CLASS + the number of a class. */
enum {
	OP_ANY = 256,  /* one byte */
	OP_NOT_SLASH,  /* one byte that is no slash */
	OP_STAR,       /* any number of bytes that are no slashes */
	OP_STARS,      /* any number of bytes */
	OP_STARS_DIRS, /* nothing, or any number of bytes up to and with a slash */
	OP_CLASS,
};

struct byte_set {
	uint64_t bits[4];
};

struct wild {
	bool never; /* malformed, or longer than any text */
	bool fold;
	size_t min_len;
	struct VEC_OF(uint16_t) ops;
	struct VEC_OF(struct byte_set) classes;
};

static void set_add(struct byte_set *set, unsigned char c)
{
	set->bits[c / 64] |= (uint64_t)1 << c % 64;
}

static bool set_has(const struct byte_set *set, unsigned char c)
{
	return set->bits[c / 64] >> c % 64 & 1;
}

static bool wildmatch_is_lower(unsigned char c)
{
	return c >= 'a' && c <= 'z';
}

static bool is_upper(unsigned char c)
{
	return c >= 'A' && c <= 'Z';
}

static bool wildmatch_is_digit(unsigned char c)
{
	return c >= '0' && c <= '9';
}

static bool is_alpha(unsigned char c)
{
	return wildmatch_is_lower(c) || is_upper(c);
}

static bool wildmatch_is_alnum(unsigned char c)
{
	return is_alpha(c) || wildmatch_is_digit(c);
}

static bool wildmatch_is_blank(unsigned char c)
{
	return c == ' ' || c == '\t';
}

static bool is_cntrl(unsigned char c)
{
	return c < ' ' || c == 0x7f;
}

/* Without vertical tab and form feed, as git has it. */
static bool wildmatch_is_space(unsigned char c)
{
	return wildmatch_is_blank(c) || c == '\n' || c == '\r';
}

static bool is_print(unsigned char c)
{
	return c >= ' ' && c < 0x7f;
}

static bool is_graph(unsigned char c)
{
	return is_print(c) && c != ' ';
}

static bool is_punct(unsigned char c)
{
	return is_graph(c) && !wildmatch_is_alnum(c);
}

static bool is_xdigit(unsigned char c)
{
	return wildmatch_is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static const struct posix_class {
	const char *name;
	bool (*has)(unsigned char c);
} posix_classes[] = {
	{"alnum", wildmatch_is_alnum},
	{"alpha", is_alpha},
	{"blank", wildmatch_is_blank},
	{"cntrl", is_cntrl},
	{"digit", wildmatch_is_digit},
	{"graph", is_graph},
	{"lower", wildmatch_is_lower},
	{"print", is_print},
	{"punct", is_punct},
	{"space", wildmatch_is_space},
	{"upper", is_upper},
	{"xdigit", is_xdigit},
};

/* A bracket expression while it is read; at is its next byte. */
struct bracket {
	const char *at, *end;
	struct byte_set set;
	unsigned char before; /* where a range may begin; 0: nowhere */
	bool fold;
};

/* The byte at `at`, or the one that a backslash there protects. */
static bool wildmatch_take_byte(struct bracket *b, unsigned char *ret)
{
	if (b->at < b->end && *b->at == '\\')
		b->at++;
	if (b->at == b->end)
		return false;
	*ret = (unsigned char)*b->at++;
	return true;
}

static void add_range(struct bracket *b, unsigned char from, unsigned char to)
{
	for (unsigned c = from; c <= to; c++) {
		set_add(&b->set, (unsigned char)c);
		/* The text has been folded to lower case. */
		if (b->fold)
			set_add(&b->set, wild_fold((unsigned char)c));
	}
}

static bool add_posix_class(struct bracket *b, const char *name, size_t len)
{
	for (size_t i = 0; i < ARRAY_LEN(posix_classes); i++) {
		const struct posix_class *class = &posix_classes[i];
		if (strlen(class->name) != len || memcmp(class->name, name, len) != 0)
			continue;
		for (unsigned c = 0; c < 256; c++) {
			if (!class->has((unsigned char)c))
				continue;
			set_add(&b->set, (unsigned char)c);
			if (b->fold && class->has == is_upper)
				set_add(&b->set, wild_fold((unsigned char)c));
		}
		return true;
	}
	return false;
}

/* At "[:". What does not end in ":]" is an ordinary bracket in the set. */
static bool take_posix_class(struct bracket *b)
{
	const char *name = b->at + 2;
	const char *close = memchr(name, ']', (size_t)(b->end - name));

	if (!close)
		return false;
	if (close == name || close[-1] != ':') {
		set_add(&b->set, '[');
		b->before = '[';
		b->at++;
		return true;
	}
	if (!add_posix_class(b, name, (size_t)(close - 1 - name)))
		return false;
	b->before = 0;
	b->at = close + 1;
	return true;
}

static bool wildmatch_take_member(struct bracket *b)
{
	size_t left = (size_t)(b->end - b->at);
	unsigned char c;

	if (left > 1 && *b->at == '-' && b->before && b->at[1] != ']') {
		b->at++;
		if (!wildmatch_take_byte(b, &c))
			return false;
		add_range(b, b->before, c);
		b->before = 0;
		return true;
	}
	if (left > 1 && b->at[0] == '[' && b->at[1] == ':')
		return take_posix_class(b);
	if (!wildmatch_take_byte(b, &c))
		return false;
	set_add(&b->set, c);
	b->before = c;
	return true;
}

/* at: behind the opening bracket. Returns what follows the closing one, NULL if malformed. */
static const char *bracket_parse(
	const char *at, const char *end, bool pathname, bool fold, struct byte_set *ret)
{
	struct bracket b = {.at = at, .end = end, .fold = fold};
	bool negated = at < end && (*at == '!' || *at == '^');

	if (negated)
		b.at++;
	do
		if (!wildmatch_take_member(&b))
			return NULL;
	while (b.at == end || *b.at != ']');
	for (size_t i = 0; negated && i < ARRAY_LEN(b.set.bits); i++)
		b.set.bits[i] = ~b.set.bits[i];
	if (pathname)
		b.set.bits['/' / 64] &= ~((uint64_t)1 << '/' % 64);
	*ret = b.set;
	return b.at + 1;
}

static void add_op(struct wild *wild, unsigned op)
{
	/* A repeated step matches nothing more; without it a pattern is never much longer than
	 * its texts. */
	if (op == OP_STARS_DIRS && wild->ops.n && wild->ops.v[wild->ops.n - 1] == op)
		return;
	*vec_push(&wild->ops) = (uint16_t)op;
	if (op != OP_STAR && op != OP_STARS && op != OP_STARS_DIRS)
		wild->min_len++;
}

/* at: the first star. Returns what follows the stars (and the slash that belongs to them). */
static const char *compile_stars(
	struct wild *wild, const char *start, const char *at, const char *end, bool pathname)
{
	const char *after = at;

	while (after < end && *after == '*')
		after++;
	if (!pathname) {
		add_op(wild, OP_STARS);
		return after;
	}
	bool begins = at == start || at[-1] == '/';
	bool slash = after < end && *after == '/';
	bool ends = after == end || slash || (end - after > 1 && memcmp(after, "\\/", 2) == 0);
	if (after - at < 2 || !begins || !ends) {
		add_op(wild, OP_STAR);
		return after;
	}
	add_op(wild, slash ? OP_STARS_DIRS : OP_STARS);
	return slash ? after + 1 : after;
}

/* Returns what follows, NULL for a pattern that matches nothing. */
static const char *compile_one(
	struct wild *wild, const char *start, const char *at, const char *end, bool pathname)
{
	switch (*at) {
	case '*':
		return compile_stars(wild, start, at, end, pathname);
	case '?':
		add_op(wild, pathname ? OP_NOT_SLASH : OP_ANY);
		return at + 1;
	case '[':
		add_op(wild, OP_CLASS + (unsigned)wild->classes.n);
		return bracket_parse(at + 1, end, pathname, wild->fold, vec_push(&wild->classes));
	case '\\':
		if (++at == end)
			return NULL;
		/* Not folded: with core.ignorecase git's `\A` matches neither A nor a. */
		add_op(wild, (unsigned char)*at);
		return at + 1;
	default:
		add_op(wild, wild->fold ? wild_fold((unsigned char)*at) : (unsigned char)*at);
		return at + 1;
	}
}

struct wild *wild_compile(const char *pattern, size_t len, bool pathname, bool ignore_case)
{
	struct wild *wild = mem_alloc(1, sizeof(*wild));
	const char *end = pattern + len;

	wild->fold = ignore_case;
	for (const char *at = pattern; at && at < end;) {
		at = compile_one(wild, pattern, at, end, pathname);
		if (at && wild->min_len <= WILD_TEXT_MAX)
			continue;
		wild->never = true;
		vec_done(&wild->ops);
		vec_done(&wild->classes);
		break;
	}
	return wild;
}

void wild_free(struct wild *wild)
{
	if (!wild)
		return;
	vec_done(&wild->ops);
	vec_done(&wild->classes);
	free(wild);
}

/* State to resume at when a match fails: the step behind a star, one byte further. */
struct resume {
	const uint16_t *op; /* NULL: nowhere */
	const char *at;
	bool dirs;
};

struct match {
	const struct wild *wild;
	const uint16_t *op, *op_end;
	const char *at, *end;
	/* Two places are enough: what an earlier star could still do, the last one can do as well,
	 * but one that stops at slashes cannot stand in for one that does not. */
	struct resume star, stars;
};

static bool one_matches(const struct wild *wild, unsigned op, char ch)
{
	unsigned char c = wild->fold ? wild_fold((unsigned char)ch) : (unsigned char)ch;

	if (op < OP_ANY)
		return op == c;
	if (op == OP_ANY)
		return true;
	if (op == OP_NOT_SLASH)
		return c != '/';
	return set_has(&wild->classes.v[op - OP_CLASS], c);
}

/* Go one step forward; false: no match here. */
static bool wildmatch_step(struct match *m)
{
	unsigned op = *m->op;

	if (op == OP_STAR) {
		m->star = (struct resume){.op = ++m->op, .at = m->at};
		return true;
	}
	if (op == OP_STARS || op == OP_STARS_DIRS) {
		m->stars = (struct resume){.op = ++m->op, .at = m->at, .dirs = op == OP_STARS_DIRS};
		m->star.op = NULL;
		return true;
	}
	if (m->at == m->end || !one_matches(m->wild, op, *m->at))
		return false;
	m->op++;
	m->at++;
	return true;
}

static void wildmatch_go_on(struct match *m, struct resume *from, const char *at)
{
	from->at = at;
	m->at = at;
	m->op = from->op;
}

/* Let the last star take more of the text; false: none can. */
static bool step_back(struct match *m)
{
	if (m->star.op && m->star.at < m->end && *m->star.at != '/') {
		wildmatch_go_on(m, &m->star, m->star.at + 1);
		return true;
	}
	if (!m->stars.op || m->stars.at == m->end)
		return false;
	const char *at = m->stars.at;
	if (m->stars.dirs)
		at = memchr(at, '/', (size_t)(m->end - at));
	if (!at)
		return false;
	m->star.op = NULL;
	wildmatch_go_on(m, &m->stars, at + 1);
	return true;
}

bool wild_match(const struct wild *wild, const char *text, size_t len)
{
	if (wild->never || len < wild->min_len)
		return false;
	if (wild->ops.n == 0)
		return len == 0;
	struct match m = {
		.wild = wild,
		.op = wild->ops.v,
		.op_end = wild->ops.v + wild->ops.n,
		.at = text,
		.end = text + len,
	};
	for (;;) {
		if (m.op == m.op_end) {
			bool rest_taken = m.stars.op == m.op_end && !m.stars.dirs;
			if (m.at == m.end || rest_taken)
				return true;
		} else if (wildmatch_step(&m)) {
			continue;
		}
		if (!step_back(&m))
			return false;
	}
}

bool wildmatch(const char *pattern, const char *text, bool pathname, bool ignore_case)
{
	struct wild *wild = wild_compile(pattern, strlen(pattern), pathname, ignore_case);
	bool matches = wild_match(wild, text, strlen(text));

	wild_free(wild);
	return matches;
}
