/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/layer/layer_tar.h"

#include <string.h>

enum {
	NAME_SIZE = 100,
	TYPE_LONG_NAME = 'L',
	TYPE_LONG_TARGET = 'K',
};

/* Numbers end in a NUL; the sum of the header has six digits, a NUL and a space. */
struct header {
	char name[NAME_SIZE];
	char mode[8], uid[8], gid[8];
	char size[12], mtime[12];
	char sum[8];
	char type;
	char target[NAME_SIZE];
	char magic[8];
	char user[32], group[32];
	char unused[183];
};
_Static_assert(sizeof(struct header) == LAYER_TAR_BLOCK, "a header is one block");

static void put_octal(char *field, size_t n_digits, uint64_t value)
{
	while (n_digits) {
		field[--n_digits] = (char)('0' + (value & 7));
		value >>= 3;
	}
}

/* A size too large for octal digits is written in binary, behind a byte that marks it. */
static void put_size(char field[static 12], uint64_t size)
{
	if (size >> 33 == 0) {
		put_octal(field, 11, size);
		return;
	}
	memset(field, 0, 12);
	field[0] = (char)0x80;
	for (int i = 11; size; i--, size >>= 8)
		field[i] = (char)(size & 0xff);
}

static void put_sum(struct header *header)
{
	const uint8_t *bytes = (const uint8_t *)header;
	unsigned sum = 0;

	memset(header->sum, ' ', sizeof(header->sum));
	for (size_t i = 0; i < sizeof(*header); i++)
		sum += bytes[i];
	put_octal(header->sum, 6, sum);
	header->sum[6] = '\0';
}

static void add_zeros(struct buf *out, size_t n)
{
	static const char zeros[LAYER_TAR_BLOCK];

	buf_add(out, zeros, n);
}

/* As much of a text as has room. */
static void put_text(char field[static NAME_SIZE], const char *text, size_t len)
{
	memcpy(field, text, len < NAME_SIZE ? len : NAME_SIZE);
}

static struct header begin(char type, const char *name, uint64_t size, const char *target)
{
	struct header header = {.type = type, .magic = "ustar  "};

	put_text(header.name, name, strlen(name));
	if (target)
		put_text(header.target, target, strlen(target));
	put_octal(header.mode, 7, 0);
	put_octal(header.uid, 7, 0);
	put_octal(header.gid, 7, 0);
	put_size(header.size, size);
	put_octal(header.mtime, 11, 0);
	return header;
}

/* A member of its own that holds what has no room in the header of the next. */
static void add_long(struct buf *out, char type, const char *text, const char *target)
{
	size_t size = strlen(text) + 1;
	struct header header = begin(type, "././@LongLink", size, target);

	/* The owner names and the target are ignored by readers; libarchive writes them, too. */
	memcpy(header.user, "root", 4);
	memcpy(header.group, "wheel", 5);
	put_sum(&header);
	buf_add(out, &header, sizeof(header));
	buf_add(out, text, size);
	add_zeros(out, layer_tar_padding(size));
}

void layer_tar_header(const struct layer_tar_member *member, struct buf *out)
{
	const char *target = member->target;
	struct header header = begin((char)member->type, member->name, member->size, target);

	if (target && strlen(target) > NAME_SIZE)
		add_long(out, TYPE_LONG_TARGET, target, target);
	if (strlen(member->name) > NAME_SIZE)
		add_long(out, TYPE_LONG_NAME, member->name, target);
	put_octal(header.mode, 7, member->mode);
	put_octal(header.mtime, 11, (uint64_t)member->mtime_s);
	put_sum(&header);
	buf_add(out, &header, sizeof(header));
}

size_t layer_tar_padding(uint64_t size)
{
	return (size_t)(-size % LAYER_TAR_BLOCK);
}
