/* SPDX-License-Identifier: Apache-2.0 */
#include "net/websocket/spdy_block.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "base/util/enc.h"
#include "base/util/mem.h"

/* A word with its length in front, as in a header block. */
#define W(len, word) "\0\0\0" len word

/* clang-format off */
static const char spdy_text[] =
	W("\007", "options") W("\004", "head") W("\004", "post") W("\003", "put")
	W("\006", "delete") W("\005", "trace") W("\006", "accept") W("\016", "accept-charset")
	W("\017", "accept-encoding") W("\017", "accept-language") W("\015", "accept-ranges")
	W("\003", "age") W("\005", "allow") W("\015", "authorization") W("\015", "cache-control")
	W("\012", "connection") W("\014", "content-base") W("\020", "content-encoding")
	W("\020", "content-language") W("\016", "content-length") W("\020", "content-location")
	W("\013", "content-md5") W("\015", "content-range") W("\014", "content-type")
	W("\004", "date") W("\004", "etag") W("\006", "expect") W("\007", "expires")
	W("\004", "from") W("\004", "host") W("\010", "if-match") W("\021", "if-modified-since")
	W("\015", "if-none-match") W("\010", "if-range") W("\023", "if-unmodified-since")
	W("\015", "last-modified") W("\010", "location") W("\014", "max-forwards")
	W("\006", "pragma") W("\022", "proxy-authenticate") W("\023", "proxy-authorization")
	W("\005", "range") W("\007", "referer") W("\013", "retry-after") W("\006", "server")
	W("\002", "te") W("\007", "trailer") W("\021", "transfer-encoding") W("\007", "upgrade")
	W("\012", "user-agent") W("\004", "vary") W("\003", "via") W("\007", "warning")
	W("\020", "www-authenticate") W("\006", "method") W("\003", "get") W("\006", "status")
	W("\006", "200 OK") W("\007", "version") W("\010", "HTTP/1.1") W("\003", "url")
	W("\006", "public") W("\012", "set-cookie") W("\012", "keep-alive") W("\006", "origin")
	"100101201202205206300302303304305306307402405406407408409410411412413414415416"
	"417502504505203 Non-Authoritative Information204 No Content301 Moved Permanent"
	"ly400 Bad Request401 Unauthorized403 Forbidden404 Not Found500 Internal Server"
	" Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Au"
	"g Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text"
	"/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text"
	"/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8char"
	"set=iso-8859-1,utf-,*,enq=0.";
/* clang-format on */

const void *spdy_dictionary(size_t *ret_len)
{
	/* Without the NUL that the spdy_text ends with here. */
	*ret_len = sizeof(spdy_text) - 1;
	return spdy_text;
}

/* A window that holds the dictionary is enough for blocks of a few words. */
enum { WINDOW_BITS = 11, MEMORY_LEVEL = 4, LENGTH_SIZE = 4 };

static voidpf spdy_block_zlib_alloc(voidpf ctx, uInt n, uInt size)
{
	(void)ctx;
	return mem_alloc(n, size);
}

static void spdy_block_zlib_free(voidpf ctx, voidpf memory)
{
	(void)ctx;
	free(memory);
}

static const z_stream empty_stream = {
	.zalloc = spdy_block_zlib_alloc, .zfree = spdy_block_zlib_free};

/*
 * Packing
 */

struct spdy_packer {
	z_stream z;
	struct buf plain;
};

struct spdy_packer *spdy_packer_new(void)
{
	struct spdy_packer *packer = mem_alloc(1, sizeof(*packer));
	size_t len;
	const void *dictionary = spdy_dictionary(&len);

	packer->z = empty_stream;
	BUG_ON(deflateInit2(&packer->z, Z_DEFAULT_COMPRESSION, Z_DEFLATED, WINDOW_BITS,
		       MEMORY_LEVEL, Z_DEFAULT_STRATEGY) != Z_OK);
	BUG_ON(deflateSetDictionary(&packer->z, dictionary, (uInt)len) != Z_OK);
	buf_init(&packer->plain, SIZE_MAX / 2);
	return packer;
}

void spdy_packer_free(struct spdy_packer *packer)
{
	if (!packer)
		return;
	deflateEnd(&packer->z);
	buf_done(&packer->plain);
	free(packer);
}

static void add_u32(struct buf *out, size_t value)
{
	unsigned char bytes[LENGTH_SIZE];

	put_be32(bytes, (uint32_t)value);
	buf_add(out, bytes, sizeof(bytes));
}

static void spdy_block_add_text(struct buf *out, const char *text)
{
	add_u32(out, strlen(text));
	buf_adds(out, text);
}

void spdy_pack(
	struct spdy_packer *packer, const struct spdy_field *fields, size_t n, struct buf *out)
{
	z_stream *z = &packer->z;

	buf_reset(&packer->plain);
	add_u32(&packer->plain, n);
	for (size_t i = 0; i < n; i++) {
		spdy_block_add_text(&packer->plain, fields[i].name);
		spdy_block_add_text(&packer->plain, fields[i].value);
	}
	z->next_in = (Bytef *)packer->plain.data;
	z->avail_in = (uInt)packer->plain.len;
	do {
		unsigned char piece[512];

		z->next_out = piece;
		z->avail_out = sizeof(piece);
		deflate(z, Z_SYNC_FLUSH);
		buf_add(out, piece, sizeof(piece) - z->avail_out);
	} while (z->avail_out == 0);
}

/*
 * Unpacking
 */

struct spdy_unpacker {
	z_stream z;
	struct buf plain;
	struct spdy_field fields[SPDY_FIELDS_MAX];
};

struct spdy_unpacker *spdy_unpacker_new(void)
{
	struct spdy_unpacker *unpacker = mem_alloc(1, sizeof(*unpacker));

	unpacker->z = empty_stream;
	BUG_ON(inflateInit(&unpacker->z) != Z_OK);
	/* A byte beyond the limit tells that there was more. */
	buf_init(&unpacker->plain, SPDY_CONTROL_MAX + 1);
	return unpacker;
}

void spdy_unpacker_free(struct spdy_unpacker *unpacker)
{
	if (!unpacker)
		return;
	inflateEnd(&unpacker->z);
	buf_done(&unpacker->plain);
	free(unpacker);
}

static int spdy_block_fail(struct err *err, const char *what)
{
	return err_set(
		err, E_HTTP_PROTOCOL, "the server sends a header block of SPDY that %s", what);
}

static int inflate_step(z_stream *z)
{
	int r = inflate(z, Z_SYNC_FLUSH);

	if (r == Z_NEED_DICT) {
		size_t len;
		const void *dictionary = spdy_dictionary(&len);

		r = inflateSetDictionary(z, dictionary, (uInt)len);
		return r == Z_OK ? inflate(z, Z_SYNC_FLUSH) : r;
	}
	return r;
}

static int inflate_block(
	struct spdy_unpacker *unpacker, const void *block, size_t len, struct err *err)
{
	z_stream *z = &unpacker->z;
	int r = Z_OK;

	buf_reset(&unpacker->plain);
	z->next_in = (Bytef *)(uintptr_t)block;
	z->avail_in = (uInt)len;
	do {
		unsigned char piece[4096];

		z->next_out = piece;
		z->avail_out = sizeof(piece);
		r = inflate_step(z);
		buf_add(&unpacker->plain, piece, sizeof(piece) - z->avail_out);
	} while (r == Z_OK && z->avail_out == 0 && unpacker->plain.len <= SPDY_CONTROL_MAX);
	if (unpacker->plain.len > SPDY_CONTROL_MAX)
		return spdy_block_fail(err, "is too large");
	/* Z_BUF_ERROR: the last piece was just full, there is no more. */
	if ((r != Z_OK && r != Z_BUF_ERROR) || z->avail_in)
		return spdy_block_fail(err, "is damaged");
	return 0;
}

/* A text at *at, moved to the front of its place so that it can end with a NUL; NULL: it does not
 * fit. */
static const char *spdy_block_take_text(struct buf *plain, size_t *at)
{
	size_t left = plain->len - *at;
	char *text = plain->data + *at;
	uint32_t len;

	if (left < LENGTH_SIZE)
		return NULL;
	len = get_be32((const uint8_t *)text);
	if (len > left - LENGTH_SIZE)
		return NULL;
	memmove(text, text + LENGTH_SIZE, len);
	text[len] = '\0';
	*at += LENGTH_SIZE + len;
	return text;
}

int spdy_unpack(struct spdy_unpacker *unpacker, const void *block, size_t len,
	const struct spdy_field **ret, size_t *ret_n, struct err *err)
{
	struct buf *plain = &unpacker->plain;
	size_t at = LENGTH_SIZE;

	int r = inflate_block(unpacker, block, len, err);
	if (r < 0)
		return r;
	if (plain->len < LENGTH_SIZE)
		return spdy_block_fail(err, "is too short");
	uint32_t n = get_be32((const uint8_t *)plain->data);
	if (n > SPDY_FIELDS_MAX)
		return spdy_block_fail(err, "has too many fields");
	for (uint32_t i = 0; i < n; i++) {
		struct spdy_field field = {.name = spdy_block_take_text(plain, &at)};

		field.value = field.name ? spdy_block_take_text(plain, &at) : NULL;
		if (!field.value)
			return spdy_block_fail(err, "has a field that does not fit into it");
		unpacker->fields[i] = field;
	}
	if (at != plain->len)
		return spdy_block_fail(err, "goes on behind its fields");
	*ret = unpacker->fields;
	*ret_n = n;
	return 0;
}
