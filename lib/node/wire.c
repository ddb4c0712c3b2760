/* SPDX-License-Identifier: Apache-2.0 */
#include "node/wire.h"

#include <limits.h>
#include <stdio.h>
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
	AUTO_BUF struct buf clean = buf_with(4 * (size_t)EVIDENCE_MAX);
	size_t len = strlen(line);

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
		wire->searched = 0;
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
static enum node_says wire_find_mark(const struct node_wire *wire, char *line, char **ret_rest)
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
static int check_partial(struct node_wire *wire, struct err *err)
{
	size_t len = wire->in.len - wire->at, drop;

	wire->searched = len;
	if (len <= NODE_LINE_MAX)
		return 0;
	if (wire->has_begun && !wire->is_loose)
		return err_set(err, E_NODE_PROTOCOL, "a line of the node is longer than %d bytes",
			NODE_LINE_MAX);
	drop = len - TAIL;
	wire->at += drop;
	wire->searched = TAIL;
	return wire->is_loose ? 0 : add_noise(wire, drop, err);
}

static char *wire_take_line(struct node_wire *wire, char *end, size_t *ret_len)
{
	char *line = wire->in.data + wire->at;
	size_t len = (size_t)(end - line);

	wire->at += len + 1;
	wire->searched = 0;
	*end = '\0';
	/* A terminal there makes CR LF of LF. */
	while (len && line[len - 1] == '\r')
		line[--len] = '\0';
	*ret_len = len;
	return line;
}

static int wire_check_line(const struct node_wire *wire, const char *line, size_t len,
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
	const char *from = wire->in.data + wire->at + wire->searched;

	return memchr(from, '\n', wire->in.len - wire->at - wire->searched);
}

int node_wire_next(struct node_wire *wire, struct node_said *ret, struct err *err)
{
	char *end;

	while ((end = find_end(wire))) {
		size_t len;
		char *line = wire_take_line(wire, end, &len);
		struct node_said said = {.line = line};

		said.what = wire_find_mark(wire, line, &said.line);
		int r = wire_check_line(wire, line, len, &said, err);

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
	return check_partial(wire, err);
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
	wire->searched = 0;
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

static bool wire_is_plain(char c)
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

		while (wire_is_plain(*value))
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

/* The strings of struct node_facts, in the order of words. */
static const struct {
	const char *key;
	size_t offset;
} strings[] = {
	{"boot", offsetof(struct node_facts, boot)},
	{"home", offsetof(struct node_facts, home)},
	{"host", offsetof(struct node_facts, host)},
	{"id", offsetof(struct node_facts, id)},
	{"launch", offsetof(struct node_facts, launch)},
	{"local", offsetof(struct node_facts, local)},
	{"machine", offsetof(struct node_facts, machine)},
	{"pool", offsetof(struct node_facts, pool)},
	{"root", offsetof(struct node_facts, root)},
	{"shell", offsetof(struct node_facts, shell)},
	{"system", offsetof(struct node_facts, system)},
};
_Static_assert(ARRAY_LEN(strings) == NODE_FACT_WORDS, "as many words as strings");

void node_handshake_done(struct node_handshake *handshake)
{
	if (!handshake)
		return;
	for (size_t i = 0; i < NODE_FACT_WORDS; i++)
		free(handshake->words[i]);
	strv_done(&handshake->old);
	strv_done(&handshake->facts.missing);
	strv_done(&handshake->facts.layers);
	strv_done(&handshake->facts.spares);
	vec_foreach (struct node_partial, partial, &handshake->partials)
		free(partial->name);
	vec_done(&handshake->partials);
	*handshake = (struct node_handshake){0};
}

static void set_word(struct node_handshake *handshake, size_t i, const char *value)
{
	if (handshake->words[i] && str_eq(handshake->words[i], value))
		return;
	if (handshake->words[i])
		strv_add_take(&handshake->old, handshake->words[i]);
	handshake->words[i] = mem_strdup(value);
	*(const char **)((char *)&handshake->facts + strings[i].offset) = handshake->words[i];
}

static void wire_add_name(struct strv *list, const char *name, size_t max)
{
	if (list->n < max && node_name_is_good(name))
		strv_add(list, name);
}

static int wire_set_number(
	struct node_handshake *handshake, const char *key, const char *value, struct err *err)
{
	struct node_facts *facts = &handshake->facts;
	uint64_t number = 0;
	bool is_good = node_word_number(value, &number);

	handshake->has_free |= str_eq(key, "free");
	if (str_eq(key, "time"))
		facts->time_ms = number <= INT64_MAX ? (int64_t)number : 0;
	else if (str_eq(key, "free"))
		facts->free_bytes = number;
	else if (str_eq(key, "memory"))
		facts->memory_bytes = number;
	else if (str_eq(key, "uid"))
		facts->uid = (unsigned)number;
	else if (str_eq(key, "cpus"))
		facts->cpus = number <= INT_MAX ? (unsigned)number : 0;
	else
		return 0;
	if (!is_good)
		return err_set(err, E_NODE_PROTOCOL, "the host sent no number for \"%s\"", key);
	return 0;
}

static int wire_add_fact(struct node_handshake *handshake, char **v, size_t n, struct err *err)
{
	struct node_facts *facts = &handshake->facts;
	const char *key = v[0], *value = v[1];
	uint64_t bytes;

	for (size_t i = 0; i < ARRAY_LEN(strings); i++) {
		if (!str_eq(key, strings[i].key))
			continue;
		set_word(handshake, i, value);
		return 0;
	}
	if (str_eq(key, "missing") && facts->missing.n < NODE_FACTS_MAX)
		strv_add(&facts->missing, value);
	else if (str_eq(key, "layer"))
		wire_add_name(&facts->layers, value, NODE_LAYERS_MAX);
	else if (str_eq(key, "spare"))
		wire_add_name(&facts->spares, value, NODE_FACTS_MAX);
	else if (str_eq(key, "partial") && n >= 3 && node_word_number(v[2], &bytes) &&
		 handshake->partials.n < NODE_FACTS_MAX)
		*vec_push(&handshake->partials) = (struct node_partial){mem_strdup(value), bytes};
	else
		return wire_set_number(handshake, key, value, err);
	return 0;
}

int node_handshake_add(struct node_handshake *handshake, char *line, struct err *err)
{
	struct node_words words = {0};
	int r = node_words_split(line, &words, err);

	if (r == 0 && words.n >= 2)
		r = wire_add_fact(handshake, words.v, words.n, err);
	vec_done(&words);
	return r;
}

int node_handshake_check(struct node_handshake *handshake, struct err *err)
{
	static const char *const needed[] = {"boot", "host", "local", "root"};

	for (size_t i = 0; i < ARRAY_LEN(strings); i++)
		for (size_t j = 0; j < ARRAY_LEN(needed); j++)
			if (str_eq(strings[i].key, needed[j]) && str_empty(handshake->words[i]))
				return err_set(err, E_NODE_PROTOCOL,
					"the host did not send its \"%s\"", needed[j]);
	if (!handshake->has_free)
		handshake->facts.free_bytes = NODE_FREE_UNKNOWN;
	return 0;
}

const char *node_tool_needed(const char *tool)
{
	static const char *const needed[] = {"tar", "gzip", "sha256sum"};

	if (str_eq(tool, "flock"))
		return "flock, perl or python3";
	for (size_t i = 0; i < ARRAY_LEN(needed); i++)
		if (str_eq(tool, needed[i]))
			return needed[i];
	return NULL;
}

void node_handshake_compare(struct node_handshake *handshake, int64_t from_ms, int64_t to_ms)
{
	int64_t time_ms = handshake->facts.time_ms, ahead_ms = 0;

	if (time_ms > to_ms)
		ahead_ms = time_ms - to_ms;
	else if (time_ms && time_ms < from_ms)
		ahead_ms = time_ms - from_ms;
	/* Not every date tells milliseconds. */
	handshake->facts.ahead_ms = llabs(ahead_ms) < 1000 ? 0 : ahead_ms;
}

void node_handshake_merge(struct node_handshake *to, const struct node_handshake *from)
{
	const struct node_facts *news = &from->facts;
	struct node_facts *facts = &to->facts;

	for (size_t i = 0; i < NODE_FACT_WORDS; i++)
		set_word(to, i, from->words[i] ? from->words[i] : "");
	strv_copy(&facts->missing, &news->missing);
	strv_copy(&facts->layers, &news->layers);
	strv_copy(&facts->spares, &news->spares);
	facts->time_ms = news->time_ms;
	facts->ahead_ms = news->ahead_ms;
	facts->free_bytes = news->free_bytes;
	facts->memory_bytes = news->memory_bytes;
	facts->uid = news->uid;
	facts->cpus = news->cpus;
}

/* Whether name is that of the transfer, with or without who took it (".ID"). */
static bool wire_is_of(const char *name, const char *transfer)
{
	size_t len = strlen(transfer);

	return strncmp(name, transfer, len) == 0 && (!name[len] || name[len] == '.');
}

uint64_t node_handshake_partial(const struct node_handshake *handshake, const char *name)
{
	uint64_t most = 0;

	for (size_t i = 0; i < handshake->partials.n; i++)
		if (wire_is_of(handshake->partials.v[i].name, name) &&
			handshake->partials.v[i].bytes > most)
			most = handshake->partials.v[i].bytes;
	return most;
}

bool node_attempt_name(const char *name, char run[static NODE_NAME_SIZE], int *ret_attempt)
{
	const char *slash = strchr(name, '/');
	uint64_t number;

	if (!slash || slash - name >= NODE_NAME_SIZE)
		return false;
	snprintf(run, NODE_NAME_SIZE, "%.*s", (int)(slash - name), name);
	if (!node_name_is_good(run) || !node_word_number(slash + 1, &number) || number < 1 ||
		number > INT_MAX)
		return false;
	*ret_attempt = (int)number;
	return true;
}

static void wire_add_field(struct node_attempt *attempt, const char *word)
{
	const char *equals = strchr(word, '=');

	if (!equals || equals == word)
		return;
	struct node_field *field = vec_push(&attempt->fields);

	field->key = mem_strndup(word, (size_t)(equals - word));
	field->value = mem_strdup(equals + 1);
}

int node_attempt_parse(const struct node_words *words, struct node_attempt *ret, struct err *err)
{
	char run[NODE_NAME_SIZE];
	int attempt;

	if (words->n < 3 || !node_attempt_name(words->v[1], run, &attempt))
		return err_set(err, E_NODE_PROTOCOL, "the host sent an invalid attempt");
	*ret = (struct node_attempt){
		.run = mem_strdup(run), .attempt = attempt, .state = mem_strdup(words->v[2])};
	for (size_t i = 3; i < words->n; i++)
		wire_add_field(ret, words->v[i]);
	return 0;
}

void node_fields_done(struct node_fields *fields)
{
	if (!fields)
		return;
	vec_foreach (struct node_field, field, fields) {
		free(field->key);
		free(field->value);
	}
	vec_done(fields);
}

void node_attempt_done(struct node_attempt *attempt)
{
	free(attempt->run);
	free(attempt->user);
	free(attempt->record);
	free(attempt->state);
	node_fields_done(&attempt->fields);
	*attempt = (struct node_attempt){0};
}

void node_attempt_copy(const struct node_attempt *from, struct node_attempt *ret)
{
	*ret = (struct node_attempt){.run = mem_strdup(from->run),
		.user = mem_strdup(from->user),
		.record = mem_strdup(from->record),
		.attempt = from->attempt,
		.state = mem_strdup(from->state)};
	for (size_t i = 0; i < from->fields.n; i++)
		*vec_push(&ret->fields) = (struct node_field){
			mem_strdup(from->fields.v[i].key), mem_strdup(from->fields.v[i].value)};
}

void node_attempts_done(struct node_attempts *attempts)
{
	if (!attempts)
		return;
	vec_foreach (struct node_attempt, attempt, attempts)
		node_attempt_done(attempt);
	vec_done(attempts);
}

const char *node_attempt_get(const struct node_attempt *attempt, const char *key)
{
	/* The last one: `exit` is said behind `state`. */
	for (size_t i = attempt->fields.n; i-- > 0;)
		if (str_eq(attempt->fields.v[i].key, key))
			return attempt->fields.v[i].value;
	return NULL;
}

int64_t node_attempt_int(const struct node_attempt *attempt, const char *key, int64_t missing)
{
	const char *value = node_attempt_get(attempt, key);
	int64_t number;

	if (!value || str_to_int(value, INT64_MIN, INT64_MAX, key, &number, NULL) < 0)
		return missing;
	return number;
}

int node_gpu_parse(const struct node_words *words, struct node_gpu *ret, struct err *err)
{
	char *const *v = words->v;
	uint64_t index, memory;

	if (words->n < 8 || !node_word_number(v[2], &index) || index > INT_MAX ||
		!node_word_number(v[4], &memory))
		return err_set(err, E_NODE_PROTOCOL, "the host sent an invalid GPU");
	*ret = (struct node_gpu){
		.index = (unsigned)index, .memory_bytes = memory, .used = !str_eq(v[5], "0")};
	snprintf(ret->vendor, sizeof(ret->vendor), "%s", v[1]);
	snprintf(ret->id, sizeof(ret->id), "%s", v[3]);
	snprintf(ret->holder, sizeof(ret->holder), "%s", str_eq(v[6], "-") ? "" : v[6]);
	snprintf(ret->model, sizeof(ret->model), "%s", v[7]);
	return 0;
}

void node_marks_done(struct node_marks *marks)
{
	vec_done(&marks->v);
	marks->at = 0;
}

static void drop_old(struct node_marks *marks)
{
	if (marks->at < NODE_MARKS_MAX / 2 && marks->at * 2 < marks->v.n)
		return;
	marks->v.n -= marks->at;
	memmove(marks->v.v, marks->v.v + marks->at, marks->v.n * sizeof(*marks->v.v));
	marks->at = 0;
}

static void thin_out(struct node_marks *marks)
{
	size_t n = 0;

	/* The later one of two stays: what it stands for had arrived by then. */
	for (size_t i = 1; i < marks->v.n; i += 2)
		marks->v.v[n++] = marks->v.v[i];
	if (marks->v.n % 2)
		marks->v.v[n++] = marks->v.v[marks->v.n - 1];
	marks->v.n = n;
}

void node_marks_add(struct node_marks *marks, int64_t time_ms, uint64_t bytes)
{
	if (marks->at)
		drop_old(marks);
	if (marks->v.n - marks->at >= NODE_MARKS_MAX && marks->at == 0)
		thin_out(marks);
	if (time_ms < marks->last.time_ms)
		time_ms = marks->last.time_ms;
	if (bytes < marks->last.bytes)
		bytes = marks->last.bytes;
	marks->last = (struct node_log_mark){time_ms, bytes};
	*vec_push(&marks->v) = marks->last;
}

size_t node_marks_piece(struct node_marks *marks, uint64_t offset, size_t len, int64_t *ret_time_ms)
{
	while (marks->at < marks->v.n && marks->v.v[marks->at].bytes <= offset)
		marks->at++;
	*ret_time_ms = 0;
	if (marks->at == marks->v.n)
		return len;
	const struct node_log_mark *mark = &marks->v.v[marks->at];

	*ret_time_ms = mark->time_ms;
	return mark->bytes - offset < len ? (size_t)(mark->bytes - offset) : len;
}
