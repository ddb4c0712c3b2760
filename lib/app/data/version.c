/* SPDX-License-Identifier: Apache-2.0 */
#include "app/data/version.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/data/chunker.h"
#include "base/util/enc.h"
#include "base/util/str.h"

#define VERSION_FIRST "dlrun-data 1 "

enum {
	VERSION_CHUNKS_A_LINE = 64,
	VERSION_PATH_MAX = 4096,
	VERSION_WORDS = 2 * VERSION_CHUNKS_A_LINE + 1
};

void version_done(struct version *version)
{
	vec_done(&version->entries);
	arena_done(&version->arena);
}

const struct version_entry *version_find(const struct version *version, const char *path)
{
	size_t i = vec_bound(&version->entries, item, strcmp(item->path, path) < 0);

	return i < version->entries.n && str_eq(version->entries.v[i].path, path)
		       ? &version->entries.v[i]
		       : NULL;
}

uint64_t version_bytes(const struct version *version)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < version->entries.n; i++)
		bytes += version->entries.v[i].kind == 'f' ? version->entries.v[i].size : 0;
	return bytes;
}

size_t version_files(const struct version *version)
{
	size_t n = 0;

	for (size_t i = 0; i < version->entries.n; i++)
		n += version->entries.v[i].kind == 'f';
	return n;
}

/*
 * Printing
 */

static void version_add_word(struct buf *out, const char *text)
{
	static const char digits[] = "0123456789abcdef";

	for (const char *s = text; *s; s++) {
		unsigned char c = (unsigned char)*s;
		if (c > ' ' && c != '%' && c < 0x7f) {
			buf_addc(out, *s);
			continue;
		}
		buf_addc(out, '%');
		buf_addc(out, digits[c >> 4]);
		buf_addc(out, digits[c & 15]);
	}
}

void version_id(const struct version *version, char out[static VERSION_ID_SIZE])
{
	AUTO_DIGEST struct digest digest = {0};
	uint8_t sha[SHA256_SIZE];

	digest_begin(&digest, DIGEST_SHA256);
	for (size_t i = 0; i < version->entries.n; i++) {
		const struct version_entry *entry = &version->entries.v[i];
		char kind = entry->kind == 'f' && entry->mode & 0100 ? 'x' : entry->kind;
		digest_add(&digest, &kind, 1);
		digest_add(&digest, entry->path, strlen(entry->path) + 1);
		if (entry->kind == 'f')
			digest_add(&digest, entry->sha, sizeof(entry->sha));
		else if (entry->target)
			digest_add(&digest, entry->target, strlen(entry->target) + 1);
	}
	digest_end(&digest, sha);
	out[0] = 'd';
	out[1] = '-';
	hex_encode(sha, (VERSION_ID_SIZE - 3) / 2, out + 2);
}

bool version_id_is(const char *text)
{
	return strlen(text) == VERSION_ID_SIZE - 1 && str_starts(text, "d-") &&
	       strspn(text + 2, "0123456789abcdef") == VERSION_ID_SIZE - 3;
}

static void version_print_chunks(const struct version_entry *entry, struct buf *out)
{
	for (size_t i = 0; i < entry->n_chunks; i++) {
		buf_adds(out, i % VERSION_CHUNKS_A_LINE ? "" : i ? "\nc" : "c");
		buf_addf(out, " %u %016llx", (unsigned)entry->chunks[i].len,
			(unsigned long long)entry->chunks[i].hash);
	}
	if (entry->n_chunks)
		buf_addc(out, '\n');
}

static void version_print_file(const struct version_entry *entry, bool with_stat, struct buf *out)
{
	char hex[SHA256_HEX_SIZE];

	hex_encode(entry->sha, sizeof(entry->sha), hex);
	buf_addf(out, "f %o %llu %s ", entry->mode, (unsigned long long)entry->size, hex);
	version_add_word(out, entry->path);
	buf_addc(out, '\n');
	if (with_stat)
		buf_addf(out, "s %llu %lld %lld %llu\n", (unsigned long long)entry->size,
			(long long)entry->mtime_ns, (long long)entry->ctime_ns,
			(unsigned long long)entry->inode);
	version_print_chunks(entry, out);
}

void version_print(const struct version *version, int64_t time_ms, const char *host, bool with_stat,
	struct buf *out)
{
	buf_addf(out, VERSION_FIRST "%zu %llu %lld ", version_files(version),
		(unsigned long long)version_bytes(version), (long long)time_ms);
	version_add_word(out, host);
	buf_addc(out, '\n');
	for (size_t i = 0; i < version->entries.n; i++) {
		const struct version_entry *entry = &version->entries.v[i];
		if (entry->kind == 'f') {
			if (!with_stat || (entry->has_digest && entry->has_stat))
				version_print_file(entry, with_stat, out);
			continue;
		}
		if (entry->kind == 'd')
			buf_addf(out, "d %o", entry->mode);
		else
			buf_addc(out, 'l');
		if (entry->kind == 'l') {
			buf_addc(out, ' ');
			version_add_word(out, entry->target);
		}
		buf_addc(out, ' ');
		version_add_word(out, entry->path);
		buf_addc(out, '\n');
	}
	buf_adds(out, "end\n");
}

/*
 * Parsing
 */

struct version_line {
	char *words[VERSION_WORDS];
	size_t n;
};

/* Splits at blanks, in place. */
static bool version_split(char *line, struct version_line *ret)
{
	ret->n = 0;
	for (char *at = line; at; ret->n++) {
		char *blank = strchr(at, ' ');
		if (ret->n == VERSION_WORDS || !*at || blank == at)
			return false;
		if (blank)
			*blank++ = '\0';
		ret->words[ret->n] = at;
		at = blank;
	}
	return true;
}

static bool version_number(const char *text, uint64_t max, uint64_t *ret)
{
	int64_t value;

	if (str_to_int(text, 0, max > INT64_MAX ? INT64_MAX : (int64_t)max, "n", &value, NULL) < 0)
		return false;
	*ret = (uint64_t)value;
	return true;
}

/* In place. */
static bool version_decode(char *word)
{
	char *to = word;

	for (const char *s = word; *s; s++) {
		uint8_t byte = (uint8_t)*s;
		if (byte == '%') {
			if (!hex_decode(s + 1, 1, &byte) || !byte)
				return false;
			s += 2;
		}
		*to++ = (char)byte;
	}
	*to = '\0';
	return *word;
}

/* Relative, normal: it leads nowhere else. */
static bool version_path_is_good(const char *path)
{
	for (const char *s = path;;) {
		size_t len = strcspn(s, "/");
		if (!len || (len == 1 && s[0] == '.') || (len == 2 && s[0] == '.' && s[1] == '.'))
			return false;
		if (!s[len])
			return strlen(path) < VERSION_PATH_MAX;
		s += len + 1;
	}
}

static bool version_mode(const char *text, unsigned *ret)
{
	size_t len = strlen(text);

	if (!len || len > 4 || strspn(text, "01234567") != len)
		return false;
	*ret = (unsigned)strtoul(text, NULL, 8);
	return true;
}

static bool version_take_file(
	const struct version_line *line, struct version_entry *entry, uint64_t *size)
{
	if (line->n != 5 || !version_mode(line->words[1], &entry->mode) ||
		!version_number(line->words[2], INT64_MAX, size) ||
		strlen(line->words[3]) != SHA256_HEX_SIZE - 1 ||
		!hex_decode(line->words[3], SHA256_SIZE, entry->sha))
		return false;
	entry->size = *size;
	entry->has_digest = true;
	return true;
}

/* d, l, f */
static bool version_take_entry(struct version *version, struct version_line *line)
{
	struct version_entry entry = {.kind = line->words[0][0]};
	char *path = line->words[line->n - 1];
	uint64_t size;

	if (line->n < 3 || !version_decode(path) || !version_path_is_good(path))
		return false;
	if (version->entries.n &&
		strcmp(version->entries.v[version->entries.n - 1].path, path) >= 0)
		return false;
	if (entry.kind == 'f' && !version_take_file(line, &entry, &size))
		return false;
	if (entry.kind == 'd' && (line->n != 3 || !version_mode(line->words[1], &entry.mode)))
		return false;
	if (entry.kind == 'l') {
		if (line->n != 3 || !version_decode(line->words[1]))
			return false;
		entry.target = arena_strdup(&version->arena, line->words[1]);
	}
	if (version->entries.n == VERSION_ENTRIES_MAX)
		return false;
	entry.path = arena_strdup(&version->arena, path);
	*vec_push(&version->entries) = entry;
	return true;
}

static bool version_take_stat(struct version_entry *entry, const struct version_line *line)
{
	int64_t times[2];
	uint64_t size;

	if (line->n != 5 || !version_number(line->words[1], INT64_MAX, &size) ||
		size != entry->size || !version_number(line->words[4], INT64_MAX, &entry->inode))
		return false;
	for (size_t i = 0; i < 2; i++)
		if (str_to_int(line->words[2 + i], INT64_MIN, INT64_MAX, "n", &times[i], NULL) < 0)
			return false;
	entry->mtime_ns = times[0];
	entry->ctime_ns = times[1];
	entry->has_stat = true;
	return true;
}

struct version_parser {
	struct version version;
	struct VEC_OF(struct version_chunk) chunks; /* of the last file */
	uint64_t chunks_bytes;
};

static void version_parser_done(struct version_parser *parser)
{
	version_done(&parser->version);
	vec_done(&parser->chunks);
}

static struct version_entry *version_last(struct version_parser *parser)
{
	size_t n = parser->version.entries.n;

	return n ? &parser->version.entries.v[n - 1] : NULL;
}

/* Chunks that do not add up are worse than none. */
static void version_end_file(struct version_parser *parser)
{
	struct version_entry *last = version_last(parser);
	size_t size = parser->chunks.n * sizeof(*parser->chunks.v);

	if (last && parser->chunks.n && parser->chunks_bytes == last->size) {
		last->chunks = arena_alloc(&parser->version.arena, size);
		memcpy(last->chunks, parser->chunks.v, size);
		last->n_chunks = parser->chunks.n;
	}
	parser->chunks.n = 0;
	parser->chunks_bytes = 0;
}

static bool version_take_chunks(struct version_parser *parser, const struct version_line *line)
{
	if (line->n % 2 == 0)
		return false;
	for (size_t i = 1; i < line->n; i += 2) {
		const char *hash = line->words[i + 1];
		uint8_t bytes[8];
		uint64_t len;
		if (!version_number(line->words[i], CHUNK_MAX, &len) || !len ||
			strlen(hash) != 16 || !hex_decode(hash, 8, bytes))
			return false;
		*vec_push(&parser->chunks) = (struct version_chunk){
			(uint32_t)len, (uint64_t)get_be32(bytes) << 32 | get_be32(bytes + 4)};
		parser->chunks_bytes += len;
	}
	return true;
}

static bool version_take_line(struct version_parser *parser, char *text)
{
	struct version_entry *last = version_last(parser);
	struct version_line line;

	if (!version_split(text, &line) || !line.n || line.words[0][1])
		return false;
	if (strchr("dlf", line.words[0][0])) {
		version_end_file(parser);
		return version_take_entry(&parser->version, &line);
	}
	if (!last || last->kind != 'f')
		return false;
	if (line.words[0][0] == 's')
		return version_take_stat(last, &line);
	return line.words[0][0] == 'c' && version_take_chunks(parser, &line);
}

int version_parse(const char *text, size_t len, struct version *ret, struct err *err)
{
	AUTO(version_parser_done) struct version_parser parser = {0};
	AUTO_FREE char *copy = mem_strndup(text, len);
	bool has_ended = false;
	size_t number = 0;

	for (char *at = copy, *end; (end = strchr(at, '\n')) && !has_ended;
		at = end + 1, number++) {
		*end = '\0';
		has_ended = number && str_eq(at, "end");
		if (!has_ended &&
			!(number ? version_take_line(&parser, at) : str_starts(at, VERSION_FIRST)))
			return err_set(err, E_DATA, "line %zu of the list of a version is not one",
				number + 1);
	}
	if (!has_ended)
		return err_set(err, E_DATA, "the list of a version is not complete");
	version_end_file(&parser);
	*ret = parser.version;
	parser.version = (struct version){0};
	return 0;
}

int version_summary_parse(const char *text, struct version_summary *ret, struct err *err)
{
	AUTO_FREE char *copy = mem_strdup(text);
	struct version_line line;
	uint64_t time_ms;

	*ret = (struct version_summary){0};
	if (!str_starts(text, VERSION_FIRST) || !version_split(copy, &line) || line.n != 6 ||
		!version_number(line.words[2], INT64_MAX, &ret->n_files) ||
		!version_number(line.words[3], INT64_MAX, &ret->bytes) ||
		!version_number(line.words[4], INT64_MAX, &time_ms) ||
		!version_decode(line.words[5]))
		return err_set(err, E_DATA, "the list of a version does not say what it is");
	ret->time_ms = (int64_t)time_ms;
	snprintf(ret->host, sizeof(ret->host), "%s", line.words[5]);
	return 0;
}
