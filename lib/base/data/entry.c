/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/data/entry.h"
#include "base/util/enc.h"

void entry_list_done(struct entry_list *list)
{
	if (!list)
		return;
	vec_done(list);
	arena_done(&list->arena);
}

int entry_compare(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;

	return strcmp(x->path, y->path);
}

const struct entry *entry_find(const struct entry_list *list, const char *path)
{
	struct entry key = {.path = path};

	return list->n ? bsearch(&key, list->v, list->n, sizeof(*list->v), entry_compare) : NULL;
}

bool entry_same(const struct entry *a, const struct entry *b)
{
	return a->kind == b->kind && a->exec == b->exec && a->size == b->size &&
	       memcmp(a->sha256, b->sha256, SHA256_SIZE) == 0;
}

struct entry *entry_add(struct entry_list *list, const struct entry *e)
{
	struct entry copy = *e; /* e may be in the list, which moves when it grows */

	copy.path = arena_strdup(&list->arena, copy.path);
	if (copy.target)
		copy.target = arena_strdup(&list->arena, copy.target);
	struct entry *added = vec_push(list);
	*added = copy;
	return added;
}

/* Hashed in large pieces: a call for each path would take longer than its bytes. */
struct id {
	struct digest digest;
	size_t len;
	char text[16 * 1024];
};

static void id_add(struct id *id, const void *data, size_t len)
{
	if (len > sizeof(id->text) - id->len) {
		digest_add(&id->digest, id->text, id->len);
		id->len = 0;
	}
	memcpy(id->text + id->len, data, len);
	id->len += len;
}

static void id_add_entry(struct id *id, const struct entry *entry)
{
	char head[2 + 20 + SHA256_HEX_SIZE], decimal[20];
	size_t n = 0, digits = 0;
	uint64_t size = entry->size;

	head[n++] = entry->kind == ENTRY_LINK ? 'l' : 'f';
	head[n++] = entry->exec ? '1' : '0';
	do
		decimal[digits++] = (char)('0' + size % 10);
	while (size /= 10);
	while (digits)
		head[n++] = decimal[--digits];
	hex_encode(entry->sha256, SHA256_SIZE, head + n);
	id_add(id, head, n + SHA256_HEX_SIZE);
	id_add(id, entry->path, strlen(entry->path) + 1);
}

void entry_list_id(const struct entry_list *list, char out[static DIGEST_TEXT_SIZE])
{
	struct id id = {0};
	uint8_t sha256[SHA256_SIZE];

	digest_begin(&id.digest, DIGEST_SHA256);
	vec_foreach (const struct entry, e, list)
		id_add_entry(&id, e);
	digest_add(&id.digest, id.text, id.len);
	digest_end(&id.digest, sha256);
	digest_done(&id.digest);
	digest_text(sha256, out);
}

/*
 * .git
 */

/* Bytes at s of a code point that HFS+ leaves out when it compares names; or 0. */
static size_t unseen(const char *s)
{
	const unsigned char *u = (const unsigned char *)s;

	if (u[0] == 0xef)
		return u[1] == 0xbb && u[2] == 0xbf ? 3 : 0; /* U+FEFF */
	if (u[0] != 0xe2)
		return 0;
	if (u[1] == 0x80) /* U+200C to U+200F, U+202A to U+202E */
		return (u[2] >= 0x8c && u[2] <= 0x8f) || (u[2] >= 0xaa && u[2] <= 0xae) ? 3 : 0;
	return u[1] == 0x81 && u[2] >= 0xaa && u[2] <= 0xaf ? 3 : 0; /* U+206A to U+206F */
}

/* The rest of name behind prefix (lower case), matched in any case and across unseen code points;
 * NULL if it does not match. */
static const char *skip_folded(const char *name, const char *prefix)
{
	for (;;) {
		for (size_t n; (n = unseen(name)) > 0;)
			name += n;
		if (!*prefix)
			return name;
		if (((unsigned char)*name | (*prefix == '.' ? 0 : 0x20)) != (unsigned char)*prefix)
			return NULL;
		name++;
		prefix++;
	}
}

static bool is_git(const char *name)
{
	const char *rest = skip_folded(name, ".git");

	if (!rest) {
		rest = skip_folded(name, "git~");
		if (!rest || !strspn(rest, "0123456789"))
			return false;
		rest += strspn(rest, "0123456789");
	}
	rest += strspn(rest, " .");
	return !*rest || *rest == '/' || *rest == ':' || *rest == '\\';
}

bool entry_path_has_git(const char *path)
{
	/* A backslash separates names, too, on some systems that may read the tree. */
	for (; *path; path += strcspn(path, "/\\"), path += *path != '\0')
		if (is_git(path))
			return true;
	return false;
}
