/* SPDX-License-Identifier: Apache-2.0 */
#include "net/websocket/spdy.h"

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

static voidpf spdy_block_zlib_alloc(voidpf ctx UNUSED, uInt n, uInt size)
{
	return mem_alloc(n, size);
}

static void spdy_block_zlib_free(voidpf ctx UNUSED, voidpf memory)
{
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

/*
 * Frames
 */

enum {
	VERSION = 3,
	FLAG_FIN = 1,
	OUTPUT_FULL = 64 << 10,
	ID_MAX = 0x7fffffff,
	OPEN_FIXED = 10, /* of SYN_STREAM, in front of the block */
};

enum frame_type {
	SYN_STREAM = 1,
	SYN_REPLY = 2,
	RST_STREAM = 3,
	SETTINGS = 4,
	PING = 6,
	GOAWAY = 7,
	HEADERS = 8,
	WINDOW_UPDATE = 9,
};

struct spdy {
	struct spdy_events events;
	struct spdy_packer *packer;
	struct spdy_unpacker *unpacker;
	struct buf out;
	uint32_t next_id;   /* of a stream */
	uint32_t next_ping; /* odd */
	/* The frame that is being read. */
	unsigned char head[SPDY_HEAD_SIZE];
	size_t head_len;
	struct buf control; /* as much of its payload as has come */
	uint32_t left;      /* bytes of the payload that are missing */
};

struct spdy *spdy_new(const struct spdy_events *events)
{
	struct spdy *spdy = mem_alloc(1, sizeof(*spdy));

	spdy->events = *events;
	spdy->packer = spdy_packer_new();
	spdy->unpacker = spdy_unpacker_new();
	spdy->next_id = spdy->next_ping = 1;
	/* Pending output is bounded by the streams that the caller opens, and by spdy_wants_input
	 * for what the peer can cause. */
	buf_init(&spdy->out, SIZE_MAX / 2);
	buf_init(&spdy->control, SPDY_CONTROL_MAX);
	return spdy;
}

void spdy_free(struct spdy *spdy)
{
	if (!spdy)
		return;
	spdy_packer_free(spdy->packer);
	spdy_unpacker_free(spdy->unpacker);
	buf_done(&spdy->out);
	buf_done(&spdy->control);
	free(spdy);
}

struct buf *spdy_output(struct spdy *spdy)
{
	return &spdy->out;
}

bool spdy_wants_input(const struct spdy *spdy)
{
	return spdy->out.len < OUTPUT_FULL;
}

/*
 * Sending
 */

static void put_control_head(unsigned char *out, enum frame_type type, unsigned flags, size_t len)
{
	put_be32(out, 0x80000000u | (uint32_t)VERSION << 16 | (uint32_t)type);
	put_be32(out + 4, (uint32_t)len);
	out[4] = (unsigned char)flags;
}

static void spdy_add_control(
	struct spdy *spdy, enum frame_type type, const uint32_t *words, size_t n)
{
	unsigned char frame[SPDY_HEAD_SIZE + 2 * sizeof(uint32_t)];

	put_control_head(frame, type, 0, 4 * n);
	for (size_t i = 0; i < n; i++)
		put_be32(frame + SPDY_HEAD_SIZE + 4 * i, words[i]);
	buf_add(&spdy->out, frame, SPDY_HEAD_SIZE + 4 * n);
}

uint32_t spdy_open(struct spdy *spdy, const struct spdy_field *fields, size_t n, bool is_end)
{
	uint32_t id = spdy->next_id;
	size_t at = spdy->out.len;
	unsigned char frame[SPDY_HEAD_SIZE + OPEN_FIXED] = {0};

	BUG_ON(n > SPDY_FIELDS_MAX);
	if (id > ID_MAX)
		return 0;
	spdy->next_id += 2;
	buf_add(&spdy->out, frame, sizeof(frame));
	spdy_pack(spdy->packer, fields, n, &spdy->out);
	put_control_head(
		frame, SYN_STREAM, is_end ? FLAG_FIN : 0, spdy->out.len - at - SPDY_HEAD_SIZE);
	put_be32(frame + SPDY_HEAD_SIZE, id);
	memcpy(spdy->out.data + at, frame, sizeof(frame));
	return id;
}

void spdy_reset(struct spdy *spdy, uint32_t id, uint32_t status)
{
	spdy_add_control(spdy, RST_STREAM, (const uint32_t[]){id, status}, 2);
}

void spdy_ping(struct spdy *spdy)
{
	spdy_add_control(spdy, PING, &spdy->next_ping, 1);
	spdy->next_ping = spdy->next_ping > ID_MAX ? 1 : spdy->next_ping + 2;
}

void spdy_data_head(unsigned char out[static SPDY_HEAD_SIZE], uint32_t id, size_t len, bool is_end)
{
	put_be32(out, id);
	put_be32(out + 4, (uint32_t)len);
	out[4] = is_end ? FLAG_FIN : 0;
}

/*
 * Receiving
 */

static int spdy_fail(struct err *err, const char *what)
{
	return err_set(err, E_HTTP_PROTOCOL, "the server %s", what);
}

struct frame {
	unsigned flags;
	const char *payload;
	size_t len;
};

static uint32_t payload_u32(const struct frame *frame, size_t at)
{
	return get_be32((const uint8_t *)frame->payload + at);
}

static int check_id(const struct spdy *spdy, uint32_t id, struct err *err)
{
	if (id % 2 == 1 && id < spdy->next_id)
		return 0;
	return spdy_fail(err, "names a stream of SPDY that was never opened");
}

static int spdy_take_fields(struct spdy *spdy, const struct frame *frame, struct err *err)
{
	const struct spdy_field *fields;
	uint32_t id = payload_u32(frame, 0) & ID_MAX;
	size_t n;

	int r = check_id(spdy, id, err);
	if (r == 0)
		r = spdy_unpack(
			spdy->unpacker, frame->payload + 4, frame->len - 4, &fields, &n, err);
	if (r < 0 || !spdy->events.reply)
		return r;
	return spdy->events.reply(spdy->events.ctx, id, fields, n, frame->flags & FLAG_FIN, err);
}

static int take_reset(struct spdy *spdy, const struct frame *frame, struct err *err)
{
	uint32_t id = payload_u32(frame, 0) & ID_MAX;

	int r = check_id(spdy, id, err);
	if (r < 0 || !spdy->events.reset)
		return r;
	return spdy->events.reset(spdy->events.ctx, id, payload_u32(frame, 4), err);
}

/* Odd ones are ours and come back. */
static int take_ping(struct spdy *spdy, const struct frame *frame, struct err *err UNUSED)
{
	uint32_t id = payload_u32(frame, 0);

	if (id % 2 == 0)
		spdy_add_control(spdy, PING, &id, 1);
	else if (spdy->events.pong)
		spdy->events.pong(spdy->events.ctx);
	return 0;
}

static int take_goaway(struct spdy *spdy, const struct frame *frame, struct err *err)
{
	if (!spdy->events.goaway)
		return 0;
	return spdy->events.goaway(spdy->events.ctx, payload_u32(frame, 0) & ID_MAX, err);
}

static int refuse_stream(
	struct spdy *spdy UNUSED, const struct frame *frame UNUSED, struct err *err)
{
	return spdy_fail(err, "opens a stream of SPDY, which only the client may do here");
}

/* Types that are not listed are read past. */
static const struct control {
	enum frame_type type;
	size_t min_len;
	int (*take)(struct spdy *spdy, const struct frame *frame, struct err *err);
} controls[] = {
	{SYN_STREAM, 0, refuse_stream},
	{SYN_REPLY, 4, spdy_take_fields},
	{RST_STREAM, 8, take_reset},
	{PING, 4, take_ping},
	{GOAWAY, 4, take_goaway},
	{HEADERS, 4, spdy_take_fields},
};

static int take_control(struct spdy *spdy, const char *payload, size_t len, struct err *err)
{
	unsigned type = (unsigned)spdy->head[2] << 8 | spdy->head[3];
	struct frame frame = {.flags = spdy->head[4], .payload = payload, .len = len};

	for (size_t i = 0; i < ARRAY_LEN(controls); i++) {
		if (controls[i].type != type)
			continue;
		if (len < controls[i].min_len)
			return spdy_fail(err, "sends a frame of SPDY that is too short");
		return controls[i].take(spdy, &frame, err);
	}
	return 0;
}

static bool is_control(const struct spdy *spdy)
{
	return spdy->head[0] & 0x80;
}

static int spdy_begin_frame(struct spdy *spdy, struct err *err)
{
	spdy->left = get_be32(spdy->head + 4) & SPDY_DATA_MAX;
	buf_reset(&spdy->control);
	if (!is_control(spdy))
		return check_id(spdy, get_be32(spdy->head), err);
	if ((get_be32(spdy->head) >> 16) != (0x8000u | VERSION))
		return spdy_fail(err, "does not speak SPDY/3.1");
	if (spdy->left > SPDY_CONTROL_MAX)
		return spdy_fail(err, "sends a frame of SPDY that is too large");
	return 0;
}

/* The payload, or its next piece; *used: how much of data. 1: the frame is over. */
static int spdy_take_payload(
	struct spdy *spdy, const char *data, size_t len, size_t *used, struct err *err)
{
	size_t piece = len < spdy->left ? len : spdy->left;
	bool is_whole = spdy->control.len == 0 && piece == spdy->left;
	int r = 0;

	*used = piece;
	spdy->left -= (uint32_t)piece;
	if (!is_control(spdy)) {
		bool is_end = spdy->left == 0 && (spdy->head[4] & FLAG_FIN);

		if ((piece || is_end) && spdy->events.data)
			r = spdy->events.data(
				spdy->events.ctx, get_be32(spdy->head), data, piece, is_end, err);
	} else if (is_whole) {
		r = take_control(spdy, data, piece, err);
	} else {
		buf_add(&spdy->control, data, piece);
		if (spdy->left == 0)
			r = take_control(spdy, spdy->control.data, spdy->control.len, err);
	}
	return r < 0 ? r : spdy->left == 0;
}

static size_t take_head(struct spdy *spdy, const char *data, size_t len)
{
	size_t piece = SPDY_HEAD_SIZE - spdy->head_len;

	if (piece > len)
		piece = len;
	memcpy(spdy->head + spdy->head_len, data, piece);
	spdy->head_len += piece;
	return piece;
}

int spdy_receive(struct spdy *spdy, const void *data, size_t len, struct err *err)
{
	const char *p = data, *end = p + len;
	int r = 0;

	while (p < end && r >= 0) {
		size_t used = 0;

		if (spdy->head_len < SPDY_HEAD_SIZE) {
			p += take_head(spdy, p, (size_t)(end - p));
			if (spdy->head_len < SPDY_HEAD_SIZE)
				break;
			r = spdy_begin_frame(spdy, err);
			/* A frame without payload is over with its head. */
			if (r < 0 || (spdy->left && p == end))
				break;
		}
		r = spdy_take_payload(spdy, p, (size_t)(end - p), &used, err);
		p += used;
		if (r == 1)
			spdy->head_len = 0;
	}
	return r < 0 ? r : 0;
}
