/* SPDX-License-Identifier: Apache-2.0 */
#include "app/data/bundle.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"

enum {
	BUNDLE_OUT = 256 << 10,
	BUNDLE_TEXT_MAX = 1 << 30,
	BUNDLE_SCRIPT_MAX = 256 << 20,
	BUNDLE_PIECES_MAX = 4096, /* of one file: each is two processes there */
	BUNDLE_REST_MIN = 1 << 20,
	BUNDLE_TAR_BLOCK = 512,
	BUNDLE_TAR_RECORD = 20 * BUNDLE_TAR_BLOCK,
};

void bundle_done(struct bundle *bundle)
{
	vec_foreach (struct bundle_step, step, &bundle->steps)
		vec_done(&step->pieces);
	vec_done(&bundle->steps);
	map_done(&bundle->lost);
	buf_done(&bundle->removed);
	buf_done(&bundle->script);
	buf_done(&bundle->out);
}

/*
 * A transfer that was cut
 */

void bundle_part_done(struct bundle_part *part)
{
	map_done(&part->files);
	map_done(&part->gone);
	map_done(&part->dirs);
	map_done(&part->others);
	map_done(&part->links);
	arena_done(&part->arena);
}

struct bundle_text {
	const char *at, *end;
};

/* The next line without its LF; false: there is none. The caller frees. */
static bool bundle_line(struct bundle_text *text, char **ret)
{
	const char *end = memchr(text->at, '\n', (size_t)(text->end - text->at));

	if (!end)
		return false;
	*ret = mem_strndup(text->at, (size_t)(end - text->at));
	text->at = end + 1;
	return true;
}

static const char *bundle_normal(const char *path)
{
	return str_starts(path, "./") ? path + 2 : path;
}

/* "gone BYTES", then names. */
static bool bundle_names(struct bundle_text *text, const char *what, struct map *ret)
{
	AUTO_FREE char *line = NULL;
	size_t len = strlen(what);
	int64_t size;

	if (!bundle_line(text, &line) || !str_starts(line, what) || line[len] != ' ' ||
		str_to_int(line + len + 1, 0, text->end - text->at, what, &size, NULL) < 0)
		return false;
	const char *end = text->at + size;
	for (const char *at = text->at; at < end; at += strlen(at) + 1) {
		if (!memchr(at, 0, (size_t)(end - at)))
			break;
		map_put(ret, bundle_normal(at), ret);
	}
	text->at = end;
	return true;
}

/* The same with a target behind each. */
static bool bundle_links(struct bundle_text *text, struct bundle_part *part)
{
	static const char what[] = "links ";
	AUTO_FREE char *line = NULL;
	int64_t size;

	if ((size_t)(text->end - text->at) < strlen(what) ||
		memcmp(text->at, what, strlen(what)) != 0)
		return true;
	if (!bundle_line(text, &line) ||
		str_to_int(line + strlen(what), 0, text->end - text->at, what, &size, NULL) < 0)
		return false;
	const char *end = text->at + size;
	while (text->at < end) {
		const char *path = text->at, *target = memchr(path, 0, (size_t)(end - path));
		const char *last =
			target ? memchr(target + 1, 0, (size_t)(end - target - 1)) : NULL;
		if (!last)
			return false;
		map_put(&part->links, bundle_normal(path), arena_strdup(&part->arena, target + 1));
		text->at = last + 1;
	}
	return true;
}

/* GNU's sha256sum puts a backslash before a line whose name has one, a newline, or (from 8.25 on) a
 * carriage return. */
static char *bundle_sum_name(const char *line, const char *name)
{
	AUTO_BUF struct buf out = buf_with(BUNDLE_TEXT_MAX);

	if (*line != '\\')
		return mem_strdup(bundle_normal(name));
	for (const char *s = name; *s; s++) {
		if (*s == '\\' && s[1] == 'n')
			buf_addc(&out, '\n');
		else if (*s == '\\' && s[1] == 'r')
			buf_addc(&out, '\r');
		else
			buf_addc(&out, *s);
		s += *s == '\\' && s[1];
	}
	AUTO_FREE char *text = buf_take(&out);
	return mem_strdup(bundle_normal(text));
}

static void bundle_take_sum(struct bundle_part *part, struct bundle_file *file, const char *line)
{
	const char *hex = *line == '\\' ? line + 1 : line;

	if (strlen(hex) < SHA256_HEX_SIZE + 1 || !hex_decode(hex, SHA256_SIZE, file->sha) ||
		hex[SHA256_HEX_SIZE - 1] != ' ')
		return;
	AUTO_FREE char *name = bundle_sum_name(line, hex + SHA256_HEX_SIZE + 1);
	map_put(&part->files, name, file);
}

static bool bundle_take_size(const char *line, struct bundle_file *file)
{
	unsigned long long size;
	unsigned mode;

	if (sscanf(line, "%llu %o", &size, &mode) != 2)
		return false;
	file->size = size;
	file->mode = mode;
	return true;
}

static bool bundle_files(struct bundle_text *text, struct bundle_part *part)
{
	struct VEC_OF(struct bundle_file *) files = {0};
	AUTO_FREE char *line = NULL;
	size_t n = 0;

	while (bundle_line(text, &line) && !str_eq(line, "sums")) {
		struct bundle_file *file = arena_alloc(&part->arena, sizeof(*file));
		*file = (struct bundle_file){0};
		if (!bundle_take_size(line, file))
			break;
		*vec_push(&files) = file;
		free(TAKE(line));
	}
	free(TAKE(line));
	for (; n < files.n && bundle_line(text, &line); n++) {
		bundle_take_sum(part, files.v[n], line);
		free(TAKE(line));
	}
	/* Sizes and digests belong together only where there are as many. */
	bool is_whole = n == files.n && text->at == text->end && part->files.n == n;
	vec_done(&files);
	return is_whole;
}

bool bundle_part_parse(const char *data, size_t len, struct bundle_part *ret)
{
	struct bundle_text text = {data, data + len};
	AUTO_FREE char *line = NULL;

	if (!len)
		return true;
	if (!bundle_line(&text, &line) || !str_starts(line, "part "))
		return false;
	const char *base = line + strlen("part ");
	if (!str_eq(base, "-") && !version_id_is(base))
		return false;
	snprintf(ret->base, sizeof(ret->base), "%s", base);
	return bundle_names(&text, "gone", &ret->gone) && bundle_names(&text, "dirs", &ret->dirs) &&
	       bundle_names(&text, "other", &ret->others) && bundle_links(&text, ret) &&
	       bundle_files(&text, ret);
}

/*
 * A version that was changed
 */

static bool bundle_is_lost(
	const struct version_entry *entry, const struct bundle_part *changed, struct map *lost)
{
	const struct bundle_file *file = map_get(&changed->files, entry->path);
	const char *slash = strrchr(entry->path, '/');
	AUTO_FREE char *parent =
		slash ? mem_strndup(entry->path, (size_t)(slash - entry->path)) : mem_strdup(".");

	if (map_get(lost, parent))
		return true;
	if (file)
		return entry->kind != 'f' || file->size != entry->size ||
		       (file->mode ^ entry->mode) & 0100 ||
		       memcmp(file->sha, entry->sha, sizeof(file->sha)) != 0;
	if (!map_get(&changed->gone, parent))
		return false;
	if (entry->kind == 'l')
		return !str_eq(map_get(&changed->links, entry->path), entry->target);
	return entry->kind != 'd' || !map_get(&changed->dirs, entry->path);
}

static size_t bundle_add_strays(
	const struct version *version, const struct map *found, struct bundle_part *part)
{
	const char *path;
	size_t pos = 0, n = 0;
	void *value;

	while (map_each(found, &pos, &path, &value)) {
		if (version_find(version, path))
			continue;
		n++;
		if (part && !map_get(&part->files, path) && !map_get(&part->dirs, path))
			map_put(&part->others, path, part);
	}
	return n;
}

size_t bundle_compare(const struct version *version, const struct bundle_part *changed,
	struct map *lost, struct bundle_part *part)
{
	size_t n = 0;

	for (size_t i = 0; i < version->entries.n; i++) {
		const struct version_entry *entry = &version->entries.v[i];
		if (!bundle_is_lost(entry, changed, lost))
			continue;
		map_put(lost, entry->path, lost);
		n++;
	}
	return n + bundle_add_strays(version, &changed->files, part) +
	       bundle_add_strays(version, &changed->dirs, part) +
	       bundle_add_strays(version, &changed->others, part);
}

/*
 * The plan
 */

static const struct version_entry *bundle_before(const struct bundle *bundle, const char *path)
{
	if (!bundle->base || map_get(&bundle->part->gone, path) || map_get(&bundle->lost, path))
		return NULL;
	return version_find(bundle->base, path);
}

static bool bundle_is_same(const struct version_entry *a, const struct version_entry *b)
{
	if (a->kind != b->kind)
		return false;
	if (a->kind == 'l')
		return str_eq(a->target, b->target);
	return a->kind == 'd' ||
	       (a->has_digest && b->has_digest && a->size == b->size && a->mode == b->mode &&
		       memcmp(a->sha, b->sha, sizeof(a->sha)) == 0);
}

/* Entries of base by size, then digest: a file that only has another name travels as that. */
struct bundle_index {
	struct VEC_OF(const struct version_entry *) files;
	struct VEC_OF(struct bundle_chunk) chunks;
};
struct bundle_chunk {
	uint64_t hash, offset;
	uint32_t len;
	const struct version_entry *entry;
};

static void bundle_index_done(struct bundle_index *index)
{
	vec_done(&index->files);
	vec_done(&index->chunks);
}

static int bundle_by_content(const void *a, const void *b)
{
	const struct version_entry *const *one = a, *const *other = b;

	if ((*one)->size != (*other)->size)
		return (*one)->size < (*other)->size ? -1 : 1;
	return memcmp((*one)->sha, (*other)->sha, sizeof((*one)->sha));
}

static int bundle_by_hash(const void *a, const void *b)
{
	const struct bundle_chunk *one = a, *other = b;

	if (one->hash != other->hash)
		return one->hash < other->hash ? -1 : 1;
	return one->len < other->len ? -1 : one->len > other->len;
}

static void bundle_index_make(const struct bundle *bundle, struct bundle_index *index)
{
	const struct version *base = bundle->base;

	for (size_t i = 0; base && i < base->entries.n; i++) {
		const struct version_entry *entry = &base->entries.v[i];
		uint64_t offset = 0;
		if (entry->kind != 'f' || map_get(&bundle->lost, entry->path))
			continue;
		*vec_push(&index->files) = entry;
		for (size_t k = 0; k < entry->n_chunks; k++) {
			const struct version_chunk *chunk = &entry->chunks[k];
			*vec_push(&index->chunks) =
				(struct bundle_chunk){chunk->hash, offset, chunk->len, entry};
			offset += chunk->len;
		}
	}
	vec_sort(&index->files, bundle_by_content);
	vec_sort(&index->chunks, bundle_by_hash);
}

/* A file of base with its size, or NULL. */
static const struct version_entry *bundle_find_size(const struct bundle_index *index, uint64_t size)
{
	size_t i = vec_bound(&index->files, item, (*item)->size < size);

	return i < index->files.n && index->files.v[i]->size == size ? index->files.v[i] : NULL;
}

static const struct version_entry *bundle_find_content(
	const struct bundle_index *index, const struct version_entry *entry)
{
	size_t i = vec_bound(&index->files, item, bundle_by_content(item, &entry) < 0);

	for (; i < index->files.n; i++) {
		if (bundle_by_content(&index->files.v[i], &entry) != 0)
			break;
		if (index->files.v[i]->mode == entry->mode)
			return index->files.v[i];
	}
	return NULL;
}

int bundle_hash(struct bundle *bundle, struct err *err)
{
	AUTO(bundle_index_done) struct bundle_index index = {0};
	struct scan_wants wants = {0};

	bundle_index_make(bundle, &index);
	vec_foreach (struct version_entry, entry, &bundle->now->entries) {
		const struct version_entry *before = bundle_before(bundle, entry->path);
		if (entry->kind != 'f' || entry->has_digest)
			continue;
		if ((before && before->kind == 'f') || map_get(&bundle->part->files, entry->path) ||
			(entry->size && bundle_find_size(&index, entry->size)))
			*vec_push(&wants) = entry;
	}
	int r = scan_hash(bundle->dir, bundle->now, &wants, bundle->chunker, err);
	vec_done(&wants);
	return r;
}

bool bundle_is_known(struct bundle *bundle)
{
	vec_foreach (struct version_entry, entry, &bundle->now->entries)
		if (entry->kind == 'f' && !entry->has_digest)
			return false;
	version_id(bundle->now, bundle->id);
	return true;
}

static struct bundle_step *bundle_add(
	struct bundle *bundle, enum bundle_kind kind, struct version_entry *entry, uint64_t bytes)
{
	struct bundle_step *step = vec_push(&bundle->steps);

	*step = (struct bundle_step){.kind = kind, .entry = entry, .bytes = bytes};
	if (kind == BUNDLE_FILE || kind == BUNDLE_PIECES || kind == BUNDLE_REST) {
		bundle->n_files++;
		bundle->bytes += bytes;
	}
	bundle->n_hard += kind == BUNDLE_HARD;
	return step;
}

static void bundle_remove(struct bundle *bundle, const char *path)
{
	buf_adds(&bundle->removed, "./");
	buf_add(&bundle->removed, path, strlen(path) + 1);
}

static void bundle_add_piece(struct bundle_step *step, const struct bundle_piece *piece)
{
	struct bundle_piece *last = step->pieces.n ? &step->pieces.v[step->pieces.n - 1] : NULL;

	if (!piece->from)
		step->bytes += piece->len;
	if (last && last->from == piece->from && last->offset + last->len == piece->offset)
		last->len += piece->len;
	else
		*vec_push(&step->pieces) = *piece;
}

static const struct bundle_chunk *bundle_find_chunk(const struct bundle_index *index,
	const struct version_chunk *chunk, const struct bundle_piece *last)
{
	const struct bundle_chunk key = {.hash = chunk->hash, .len = chunk->len};
	size_t i = vec_bound(&index->chunks, item, bundle_by_hash(item, &key) < 0);
	const struct bundle_chunk *found = NULL;

	for (; i < index->chunks.n && bundle_by_hash(&index->chunks.v[i], &key) == 0; i++) {
		const struct bundle_chunk *item = &index->chunks.v[i];
		/* A chunk that goes on where the last piece ended makes no further one. */
		if (!found || (last && item->entry == last->from &&
				      item->offset == last->offset + last->len))
			found = item;
	}
	return found;
}

/* Whether it is worth it. */
static bool bundle_add_pieces(
	struct bundle *bundle, const struct bundle_index *index, struct version_entry *entry)
{
	struct bundle_step step = {.kind = BUNDLE_PIECES, .entry = entry};
	uint64_t offset = 0;

	for (size_t i = 0; i < entry->n_chunks; i++) {
		const struct version_chunk *chunk = &entry->chunks[i];
		const struct bundle_piece *last =
			step.pieces.n ? &step.pieces.v[step.pieces.n - 1] : NULL;
		const struct bundle_chunk *found = bundle_find_chunk(index, chunk, last);
		const struct bundle_piece piece = {
			found ? found->entry : NULL, found ? found->offset : offset, chunk->len};
		bundle_add_piece(&step, &piece);
		offset += chunk->len;
	}
	if (!step.pieces.n || step.pieces.n > BUNDLE_PIECES_MAX ||
		step.bytes > entry->size / 4 * 3) {
		vec_done(&step.pieces);
		return false;
	}
	*bundle_add(bundle, BUNDLE_PIECES, entry, step.bytes) = step;
	return true;
}

/* Whether what has come of it is all of it, or its beginning (have). */
static int bundle_judge(struct bundle *bundle, const struct version_entry *entry, struct err *err)
{
	struct bundle_file *file = map_get(&bundle->part->files, entry->path);
	uint8_t sha[SHA256_SIZE];

	if (!file || entry->kind != 'f' || file->size > entry->size)
		return 0;
	if (file->size == entry->size) {
		file->is_used = file->mode == entry->mode &&
				memcmp(file->sha, entry->sha, sizeof(sha)) == 0;
		file->have = file->is_used ? file->size : 0;
		return 0;
	}
	if (file->size < BUNDLE_REST_MIN)
		return 0;
	int r = scan_prefix(bundle->dir, entry, file->size, sha, err);
	if (r == 0 && memcmp(file->sha, sha, sizeof(sha)) == 0) {
		file->is_used = true;
		file->have = file->size;
	}
	return r;
}

static void bundle_plan_file(
	struct bundle *bundle, const struct bundle_index *index, struct version_entry *entry)
{
	const struct version_entry *before = bundle_before(bundle, entry->path);
	const struct bundle_file *file = map_get(&bundle->part->files, entry->path);
	const struct version_entry *same =
		entry->has_digest ? bundle_find_content(index, entry) : NULL;

	if (file && file->is_used && file->have == entry->size)
		return;
	if (file && file->is_used) {
		const struct bundle_piece rest = {NULL, file->have, entry->size - file->have};
		struct bundle_step *step = bundle_add(bundle, BUNDLE_REST, entry, rest.len);
		*vec_push(&step->pieces) = rest;
	} else if (!file && before && bundle_is_same(before, entry)) {
		return;
	} else if (same && !bundle->whole) {
		bundle_add(bundle, BUNDLE_HARD, entry, 0)->from = same;
	} else if (bundle->whole || !entry->has_digest ||
		   !bundle_add_pieces(bundle, index, entry)) {
		bundle_add(bundle, BUNDLE_FILE, entry, entry->size);
	}
}

/* Whether the transfer has brought what is wanted. */
static bool bundle_has_come(const struct bundle_part *part, const struct version_entry *wanted)
{
	const struct bundle_file *file = map_get(&part->files, wanted->path);

	return wanted->kind == 'd' ? map_get(&part->dirs, wanted->path) != NULL
				   : file && file->is_used;
}

/* A path that the transfer was about to remove when it was cut may still be there. */
static void bundle_remove_of_base(struct bundle *bundle)
{
	for (size_t i = 0; bundle->base && i < bundle->base->entries.n; i++) {
		const struct version_entry *before = &bundle->base->entries.v[i];
		const struct version_entry *wanted = version_find(bundle->now, before->path);
		bool is_gone = map_get(&bundle->part->gone, before->path) ||
			       map_get(&bundle->lost, before->path);
		if (!wanted || !(is_gone ? bundle_has_come(bundle->part, wanted)
					 : bundle_is_same(before, wanted)))
			bundle_remove(bundle, before->path);
	}
}

static void bundle_remove_of_part(struct bundle *bundle)
{
	const struct bundle_part *part = bundle->part;
	const char *path;
	size_t pos = 0;
	void *value;

	while (map_each(&part->files, &pos, &path, &value)) {
		const struct bundle_file *file = value;
		if (!file->is_used)
			bundle_remove(bundle, path);
	}
	pos = 0;
	while (map_each(&part->dirs, &pos, &path, &value)) {
		const struct version_entry *wanted = version_find(bundle->now, path);
		if (!str_eq(path, ".") && (!wanted || wanted->kind != 'd'))
			bundle_remove(bundle, path);
	}
	/* Not every tar puts a directory where a link is, and not through it elsewhere. */
	pos = 0;
	while (map_each(&part->others, &pos, &path, &value)) {
		const struct version_entry *wanted = version_find(bundle->now, path);
		const struct version_entry *before = bundle_before(bundle, path);
		if (!wanted || !before || !bundle_is_same(before, wanted))
			bundle_remove(bundle, path);
	}
}

int bundle_plan(struct bundle *bundle, struct err *err)
{
	AUTO(bundle_index_done) struct bundle_index index = {0};

	buf_init(&bundle->removed, BUNDLE_TEXT_MAX);
	buf_init(&bundle->script, BUNDLE_SCRIPT_MAX);
	bundle_index_make(bundle, &index);
	vec_foreach (struct version_entry, entry, &bundle->now->entries) {
		const struct version_entry *before = bundle_before(bundle, entry->path);
		int r = bundle_judge(bundle, entry, err);
		if (r < 0)
			return r;
		if (entry->kind == 'f')
			bundle_plan_file(bundle, &index, entry);
		else if (!before || !bundle_is_same(before, entry))
			bundle_add(bundle, entry->kind == 'd' ? BUNDLE_DIR : BUNDLE_LINK, entry, 0);
	}
	bundle_remove_of_base(bundle);
	bundle_remove_of_part(bundle);
	return buf_check(&bundle->removed, "the list of removed files", err);
}

size_t bundle_blocks(const struct bundle *bundle)
{
	return (bundle->removed.len + BUNDLE_BLOCK - 1) / BUNDLE_BLOCK;
}

/*
 * The stream
 */

static int bundle_send(struct bundle *bundle, const void *data, size_t len, struct err *err)
{
	int r = fs_write_fd(bundle->fd, "the stream", data, len, err);

	bundle->has_no_reader = r < 0;
	return r;
}

static int bundle_flush(struct bundle *bundle, struct err *err)
{
	int r = bundle_send(bundle, bundle->out.data, bundle->out.len, err);

	buf_reset(&bundle->out);
	return r;
}

static int bundle_emit(struct bundle *bundle, const void *data, size_t len, struct err *err)
{
	int r = 0;

	bundle->written += len;
	if (bundle->out.len + len > BUNDLE_OUT)
		r = bundle_flush(bundle, err);
	if (r == 0 && len > BUNDLE_OUT)
		return bundle_send(bundle, data, len, err);
	buf_add(&bundle->out, data, len);
	return r;
}

static int bundle_pad(struct bundle *bundle, uint64_t size, size_t block, struct err *err)
{
	static const char zeros[BUNDLE_TAR_BLOCK];
	size_t len = (size_t)((block - size % block) % block);
	int r = 0;

	for (; r == 0 && len; len -= len < sizeof(zeros) ? len : sizeof(zeros))
		r = bundle_emit(bundle, zeros, len < sizeof(zeros) ? len : sizeof(zeros), err);
	return r;
}

struct bundle_member {
	char type; /* '0' file, '1' hard link, '2' link, '5' directory; 'L' and 'K' of GNU */
	const char *path, *target;
	unsigned mode;
	uint64_t size;
	int64_t mtime_s;
};

/* Octal, or GNU's base-256 where that is too small. */
static void bundle_number(char *out, size_t len, uint64_t value)
{
	if (value < 1ULL << 3 * (len - 1)) {
		snprintf(out, len, "%0*llo", (int)len - 1, (unsigned long long)value);
		return;
	}
	memset(out, 0, len);
	out[0] = (char)0x80;
	for (size_t i = 0; i < 8; i++)
		out[len - 1 - i] = (char)(value >> 8 * i);
}

static void bundle_header(const struct bundle_member *member, char out[static BUNDLE_TAR_BLOCK])
{
	unsigned sum = 0;

	memset(out, 0, BUNDLE_TAR_BLOCK);
	memcpy(out, member->path, strnlen(member->path, 100));
	bundle_number(out + 100, 8, member->mode);
	bundle_number(out + 108, 8, 0);
	bundle_number(out + 116, 8, 0);
	bundle_number(out + 124, 12, member->size);
	bundle_number(out + 136, 12, member->mtime_s > 0 ? (uint64_t)member->mtime_s : 0);
	memset(out + 148, ' ', 8);
	out[156] = member->type;
	if (member->target)
		memcpy(out + 157, member->target, strnlen(member->target, 100));
	memcpy(out + 257, "ustar  ", 8);
	for (size_t i = 0; i < BUNDLE_TAR_BLOCK; i++)
		sum += (unsigned char)out[i];
	snprintf(out + 148, 7, "%06o", sum);
}

static int bundle_emit_long(struct bundle *bundle, char type, const char *text, struct err *err)
{
	char header[BUNDLE_TAR_BLOCK];
	size_t len = text ? strlen(text) : 0;
	const struct bundle_member member = {
		.type = type, .path = "././@LongLink", .size = len + 1};

	if (len <= 100)
		return 0;
	bundle_header(&member, header);
	int r = bundle_emit(bundle, header, sizeof(header), err);
	if (r == 0)
		r = bundle_emit(bundle, text, len + 1, err);
	return r < 0 ? r : bundle_pad(bundle, len + 1, BUNDLE_TAR_BLOCK, err);
}

static int bundle_emit_member(
	struct bundle *bundle, const struct bundle_member *member, struct err *err)
{
	char header[BUNDLE_TAR_BLOCK];

	int r = bundle_emit_long(bundle, 'K', member->target, err);
	if (r == 0)
		r = bundle_emit_long(bundle, 'L', member->path, err);
	bundle_header(member, header);
	return r < 0 ? r : bundle_emit(bundle, header, sizeof(header), err);
}

static int bundle_on_data(void *ctx, const void *data, size_t len, struct err *err)
{
	struct bundle *bundle = ctx;

	atomic_fetch_add_explicit(&bundle->sent, len, memory_order_relaxed);
	return bundle_emit(bundle, data, len, err);
}

static int64_t bundle_seconds(const struct version_entry *entry)
{
	return entry->mtime_ns / 1000000000;
}

static int bundle_emit_file(struct bundle *bundle, const struct bundle_step *step, struct err *err)
{
	struct version_entry *entry = step->entry;
	AUTO_FREE char *path = mem_printf("%s/%s", bundle->part_name, entry->path);
	const struct bundle_member member = {
		'0', path, NULL, entry->mode, entry->size, bundle_seconds(entry)};
	const struct scan_reading reading = {
		.chunker = bundle->chunker,
		.arena = &bundle->now->arena,
		.data = bundle_on_data,
		.ctx = bundle,
	};

	int r = bundle_emit_member(bundle, &member, err);
	if (r == 0)
		r = scan_read(bundle->dir, entry, &reading, err);
	return r < 0 ? r : bundle_pad(bundle, entry->size, BUNDLE_TAR_BLOCK, err);
}

static int bundle_copy(struct bundle *bundle, int fd, const char *full,
	const struct bundle_piece *piece, struct err *err)
{
	AUTO_FREE char *bytes = mem_grow(NULL, BUNDLE_OUT, 1);
	uint64_t done = 0;
	int r = 0;

	while (r == 0 && done < piece->len) {
		uint64_t left = piece->len - done;
		ssize_t n = pread(fd, bytes, left < BUNDLE_OUT ? (size_t)left : BUNDLE_OUT,
			(off_t)(piece->offset + done));
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return fs_error(err, errno, "%s", full);
		if (n == 0)
			return err_set(
				err, E_IO_CHANGED, "%s became shorter while it was read", full);
		r = bundle_on_data(bundle, bytes, (size_t)n, err);
		done += (uint64_t)n;
	}
	return r;
}

/* PREFIX/PATH for a shell, as a word of the script. */
static void bundle_word(struct bundle *bundle, const char *prefix, const char *path)
{
	AUTO_FREE char *word = mem_printf("%s/%s", prefix, path);

	buf_addc(&bundle->script, ' ');
	str_shell_quote(&bundle->script, word);
}

/* Lines that put the file together: number is that of its literal bytes. */
static void bundle_script_pieces(
	struct bundle *bundle, const struct bundle_step *step, size_t number, const char *in)
{
	uint64_t at = 0;

	buf_adds(&bundle->script, "{\n");
	for (size_t i = 0; i < step->pieces.n; i++) {
		const struct bundle_piece *piece = &step->pieces.v[i];
		buf_adds(&bundle->script, "store_piece");
		if (piece->from)
			bundle_word(bundle, bundle->base_id, piece->from->path);
		else
			buf_addf(&bundle->script, " %s/l-%zu", in, number);
		buf_addf(&bundle->script, " %llu %llu\n",
			(unsigned long long)(piece->from ? piece->offset : at),
			(unsigned long long)piece->len);
		at += piece->from ? 0 : piece->len;
	}
	buf_addf(&bundle->script, "} >%s/o-%zu\nstore_made %s/o-%zu", in, number, in, number);
}

static void bundle_script_file(
	struct bundle *bundle, const struct bundle_step *step, size_t number, const char *in)
{
	const struct version_entry *entry = step->entry;
	char hex[SHA256_HEX_SIZE];

	hex_encode(entry->sha, sizeof(entry->sha), hex);
	if (step->kind == BUNDLE_PIECES) {
		bundle_script_pieces(bundle, step, number, in);
		bundle_word(bundle, bundle->part_name, entry->path);
	} else {
		unsigned long long offset = entry->size - step->bytes;
		buf_adds(&bundle->script, "store_more");
		bundle_word(bundle, ".", entry->path);
		buf_addf(&bundle->script, " %llu", offset);
	}
	buf_addf(&bundle->script, " %o %s %lld\n", entry->mode, hex,
		(long long)bundle_seconds(entry));
}

static int bundle_emit_pieces(
	struct bundle *bundle, const struct bundle_step *step, size_t number, struct err *err)
{
	AUTO_FREE char *in = mem_printf("%s.in", bundle->part_name);
	unsigned long long offset = step->entry->size - step->bytes;
	AUTO_FREE char *path = step->kind == BUNDLE_REST ? mem_printf("%s/rest/%llu/%s", in, offset,
								   step->entry->path)
							 : mem_printf("%s/l-%zu", in, number);
	AUTO_FREE char *full = fs_join(bundle->dir, step->entry->path);
	const struct bundle_member member = {'0', path, NULL, 0600, step->bytes, 0};
	AUTO_FD int fd = open(full, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0)
		return fs_error(err, errno, "%s", full);
	int r = bundle_emit_member(bundle, &member, err);
	for (size_t i = 0; r == 0 && i < step->pieces.n; i++)
		if (!step->pieces.v[i].from)
			r = bundle_copy(bundle, fd, full, &step->pieces.v[i], err);
	if (r < 0)
		return r;
	bundle_script_file(bundle, step, number, in);
	return bundle_pad(bundle, step->bytes, BUNDLE_TAR_BLOCK, err);
}

static int bundle_emit_name(struct bundle *bundle, const struct bundle_step *step, struct err *err)
{
	const struct version_entry *entry = step->entry;
	bool is_dir = step->kind == BUNDLE_DIR, is_hard = step->kind == BUNDLE_HARD;
	AUTO_FREE char *path =
		mem_printf("%s/%s%s", bundle->part_name, entry->path, is_dir ? "/" : "");
	AUTO_FREE char *target = is_hard ? mem_printf("%s/%s", bundle->base_id, step->from->path)
					 : mem_strdup(entry->target);
	const struct bundle_member member = {is_dir    ? '5'
					     : is_hard ? '1'
						       : '2',
		path, target, is_dir ? entry->mode : 0777, 0, clock_wall_ms() / 1000};

	return bundle_emit_member(bundle, &member, err);
}

static int bundle_emit_step(
	struct bundle *bundle, const struct bundle_step *step, size_t number, struct err *err)
{
	switch (step->kind) {
	case BUNDLE_FILE:
		return bundle_emit_file(bundle, step, err);
	case BUNDLE_PIECES:
	case BUNDLE_REST:
		return bundle_emit_pieces(bundle, step, number, err);
	default:
		return bundle_emit_name(bundle, step, err);
	}
}

static int bundle_emit_text(
	struct bundle *bundle, const char *name, const struct buf *text, struct err *err)
{
	AUTO_FREE char *path = mem_printf("%s.in/%s", bundle->part_name, name);
	const struct bundle_member member = {'0', path, NULL, 0644, text->len, 0};

	int r = buf_check(text, "the list of the version", err);
	if (r == 0)
		r = bundle_emit_member(bundle, &member, err);
	if (r == 0)
		r = bundle_emit(bundle, text->data, text->len, err);
	return r < 0 ? r : bundle_pad(bundle, text->len, BUNDLE_TAR_BLOCK, err);
}

static int bundle_emit_end(struct bundle *bundle, struct err *err)
{
	static const char zeros[2 * BUNDLE_TAR_BLOCK];
	AUTO_BUF struct buf list = buf_with(VERSION_TEXT_MAX);

	version_print(bundle->now, clock_wall_ms(), bundle->host, false, &list);
	version_id(bundle->now, bundle->id);
	buf_addf(&bundle->script, "store_commit %s %zu%s\n", bundle->id, bundle->now->entries.n,
		bundle->may_replace ? " replace" : "");
	int r = bundle_emit_text(bundle, "list", &list, err);
	if (r == 0)
		r = bundle_emit_text(bundle, "do", &bundle->script, err);
	if (r == 0)
		r = bundle_emit(bundle, zeros, sizeof(zeros), err);
	/* tar reads whole records, which end where not every connection has an end of stdin. */
	if (r == 0)
		r = bundle_pad(bundle, bundle->written, BUNDLE_TAR_RECORD, err);
	return r < 0 ? r : bundle_flush(bundle, err);
}

int bundle_write(struct bundle *bundle, int fd, struct err *err)
{
	bundle->fd = fd;
	buf_init(&bundle->out, BUNDLE_OUT);
	int r = bundle_emit(bundle, bundle->removed.data, bundle->removed.len, err);
	if (r == 0)
		r = bundle_pad(bundle, bundle->removed.len, BUNDLE_BLOCK, err);
	bundle->written = 0;
	for (size_t i = 0; r == 0 && i < bundle->steps.n; i++)
		r = bundle_emit_step(bundle, &bundle->steps.v[i], i, err);
	return r < 0 ? r : bundle_emit_end(bundle, err);
}
