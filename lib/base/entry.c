#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/auto.h"
#include "base/enc.h"
#include "base/entry.h"

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

void entry_list_id(const struct entry_list *list, char out[static DIGEST_TEXT_SIZE])
{
	AUTO_DIGEST struct digest digest = {0};
	uint8_t sha256[SHA256_SIZE];
	char head[128];

	digest_begin(&digest, DIGEST_SHA256);
	vec_foreach (const struct entry, e, list) {
		int n = snprintf(head, sizeof(head), "%c%d%" PRIu64,
			e->kind == ENTRY_LINK ? 'l' : 'f', e->exec, e->size);
		hex_encode(e->sha256, SHA256_SIZE, head + n);
		digest_add(&digest, head, (size_t)n + SHA256_HEX_SIZE);
		digest_add(&digest, e->path, strlen(e->path) + 1);
	}
	digest_end(&digest, sha256);
	digest_text(sha256, out);
}
