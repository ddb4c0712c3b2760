/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects in parts (S3 API reference: CreateMultipartUpload, UploadPart, CompleteMultipartUpload).
 * What arrived is told by the caller's notes, which name each part by its SHA-256: a list of the
 * server names them by sums that depend on its encryption.
 */
#include <stdlib.h>
#include <string.h>

#include "base/data/json.h"
#include "base/util/enc.h"
#include "base/util/clock.h"
#include "base/util/random.h"
#include "base/util/str.h"
#include "net/s3/s3_impl.h"
#include "net/stream/field.h"

enum {
	S3_PART_SIZE = 8 << 20,
	S3_PARTS_AT_ONCE = 4,
	S3_NONCE_SIZE = 33,
	S3_UPLOAD_NOTES_MAX = 4 << 20,
};

/* Of the object, by which a completion whose response was lost is recognized. */
static const char s3_nonce_header[] = "x-amz-meta-dlrun-upload";

struct s3_part {
	uint64_t at, len;
	const char *from; /* a key of the put's pieces; NULL: its bytes are sent */
	uint64_t from_offset;
	char sha256[SHA256_HEX_SIZE];
	char *etag; /* NULL: it is not there */
};

struct s3_lane {
	struct s3_exchange x;
	size_t part;
	bool is_busy;
};

struct s3_upload {
	struct s3_call *call;
	struct s3_put put;
	char *id;
	char nonce[S3_NONCE_SIZE];
	int64_t plan; /* tells notes that were made of other parts */
	struct VEC_OF(struct s3_part) parts;
	size_t next, n_open, n_there;
	struct s3_lane lanes[S3_PARTS_AT_ONCE];
	struct buf body;
	bool is_resumed;
};

static void s3_upload_free(struct s3_upload *upload)
{
	if (!upload)
		return;
	for (size_t i = 0; i < S3_PARTS_AT_ONCE; i++)
		s3_exchange_done(&upload->lanes[i].x);
	vec_foreach (struct s3_part, part, &upload->parts)
		free(part->etag);
	vec_done(&upload->parts);
	buf_done(&upload->body);
	free((char *)upload->put.resume);
	free(upload->id);
	free(upload);
}

/*
 * The plan
 */

static uint64_t s3_upload_part_size(const struct s3_put *put)
{
	uint64_t least = put->size / S3_PARTS_MAX + 1;

	return (least + S3_PART_SIZE - 1) / S3_PART_SIZE * S3_PART_SIZE;
}

static void s3_upload_plan(struct s3_upload *upload)
{
	const struct s3_put *put = &upload->put;
	uint64_t size = s3_upload_part_size(put), at = 0;

	upload->plan = (int64_t)size;
	for (size_t i = 0; i < put->n_pieces; i++) {
		const struct s3_piece *piece = &put->pieces[i];
		*vec_push(&upload->parts) = (struct s3_part){.at = at,
			.len = piece->len,
			.from = piece->from,
			.from_offset = piece->offset};
		at += piece->len;
		upload->plan = (upload->plan * 31 + (int64_t)(piece->len % 1000003) +
				       (piece->from ? (int64_t)(piece->offset % 1000003) : 7)) %
			       1000000007;
	}
	for (; at < put->size; at += size)
		*vec_push(&upload->parts) = (struct s3_part){
			.at = at, .len = put->size - at < size ? put->size - at : size};
}

/* No part has an ETag. */
static void s3_upload_plan_whole(struct s3_upload *upload)
{
	vec_done(&upload->parts);
	upload->put.n_pieces = 0;
	if (upload->put.ret_is_whole)
		*upload->put.ret_is_whole = true;
	s3_upload_plan(upload);
}

/*
 * Notes
 */

static void s3_upload_note(struct s3_upload *upload)
{
	AUTO_JSON struct json *notes = json_object();
	AUTO_BUF struct buf text = buf_with(S3_UPLOAD_NOTES_MAX);

	if (!upload->put.noted)
		return;
	json_set_str(notes, "upload", upload->id);
	json_set_str(notes, "nonce", upload->nonce);
	json_set_int(notes, "size", (int64_t)upload->put.size);
	json_set_int(notes, "plan", upload->plan);
	struct json *parts = json_sub(notes, "parts");
	for (size_t i = 0; i < upload->parts.n; i++) {
		AUTO_FREE char *number = mem_printf("%zu", i);
		const struct s3_part *part = &upload->parts.v[i];

		if (!part->etag)
			continue;
		struct json *one = json_sub(parts, number);
		json_set_str(one, "sha256", part->sha256);
		json_set_str(one, "etag", part->etag);
	}
	json_print(notes, &text);
	if (!text.full)
		upload->put.noted(upload->put.ctx, text.data);
}

/* The parts that notes name; those that do not fit are sent. */
static void s3_upload_recall(struct s3_upload *upload)
{
	AUTO_JSON struct json *notes = NULL;
	const char *text = upload->put.resume;

	if (!text || json_parse(text, strlen(text), S3_UPLOAD_NOTES_MAX, "the notes of an upload",
			     &notes, NULL) < 0)
		return;
	const char *id = json_get_str(notes, "upload"), *nonce = json_get_str(notes, "nonce");
	int64_t plan = json_get_int(notes, "plan", -1);
	if (str_empty(id) || !nonce || strlen(nonce) != S3_NONCE_SIZE - 1 ||
		json_get_int(notes, "size", -1) != (int64_t)upload->put.size)
		return;
	if (plan != upload->plan && plan == (int64_t)s3_upload_part_size(&upload->put))
		s3_upload_plan_whole(upload);
	if (plan != upload->plan)
		return;
	for (size_t i = 0; i < upload->parts.n; i++) {
		AUTO_FREE char *number = mem_printf("%zu", i);
		const struct json *one = json_get(json_get(notes, "parts"), number);
		const char *sha256 = json_get_str(one, "sha256"), *etag = json_get_str(one, "etag");

		if (!sha256 || !etag || strlen(sha256) != SHA256_HEX_SIZE - 1)
			continue;
		memcpy(upload->parts.v[i].sha256, sha256, SHA256_HEX_SIZE);
		upload->parts.v[i].etag = mem_strdup(etag);
	}
	memcpy(upload->nonce, nonce, S3_NONCE_SIZE);
	upload->id = mem_strdup(id);
	upload->is_resumed = true;
}

static void s3_upload_begin(struct s3_upload *upload);

/* As if there had been no notes; is_whole: and no pieces. */
static void s3_upload_restart(struct s3_upload *upload, bool is_whole)
{
	upload->is_resumed = false;
	free(TAKE(upload->id));
	buf_done(&upload->body);
	upload->next = upload->n_there = 0;
	for (size_t i = 0; i < S3_PARTS_AT_ONCE; i++) {
		s3_exchange_done(&upload->lanes[i].x);
		upload->lanes[i].is_busy = false;
	}
	upload->n_open = 0;
	vec_foreach (struct s3_part, part, &upload->parts)
		free(TAKE(part->etag));
	if (is_whole)
		s3_upload_plan_whole(upload);
	s3_upload_begin(upload);
}

static bool s3_upload_is_gone(const struct s3_upload *upload, const struct err *error)
{
	return upload->is_resumed && error->id == E_S3_NOT_FOUND &&
	       strstr(error->message, "NoSuchUpload");
}

/*
 * The completion
 */

static int s3_upload_headed(
	struct s3_exchange *x, struct http_response *response, struct err *error, struct err *err)
{
	struct s3_upload *upload = x->ctx;
	const char *nonce = response ? field_find(&response->headers, s3_nonce_header) : NULL;
	bool is_ours = str_eq(nonce, upload->nonce);

	if (upload->is_resumed && (response ? !is_ours : error->id == E_S3_NOT_FOUND)) {
		s3_upload_restart(upload, false);
		return 0;
	}
	if (response && !is_ours)
		err_set(error, E_S3_CHANGED, "s3://%s/%s: the parts that were sent are gone",
			x->bucket, x->key);
	return s3_call_end(upload->call, error, err);
}

static int s3_upload_completed(
	struct s3_exchange *x, struct http_response *response, struct err *error, struct err *err)
{
	struct s3_upload *upload = x->ctx;

	if (response || error->id != E_S3_NOT_FOUND || !strstr(error->message, "NoSuchUpload"))
		return s3_call_end(upload->call, error, err);
	/* A request whose response was lost may have done it. */
	strv_done(&x->params);
	x->body = (struct http_body){0};
	x->checks_body = false;
	s3_payload("", 0, x->payload);
	s3_exchange_start(x, "HEAD", s3_upload_headed, upload);
	return 0;
}

static void s3_xml_escape(struct buf *out, const char *text)
{
	for (; *text; text++) {
		if (strchr("<>&\"'", *text) || (unsigned char)*text < 0x20)
			buf_addf(out, "&#%d;", *text);
		else
			buf_addc(out, *text);
	}
}

static void s3_upload_complete(struct s3_upload *upload)
{
	struct s3_exchange *x = &upload->call->x;

	buf_init(&upload->body, S3_BODY_MAX);
	buf_adds(&upload->body, "<CompleteMultipartUpload>");
	for (size_t i = 0; i < upload->parts.n; i++) {
		buf_addf(&upload->body, "<Part><PartNumber>%zu</PartNumber><ETag>", i + 1);
		s3_xml_escape(&upload->body, upload->parts.v[i].etag);
		buf_adds(&upload->body, "</ETag></Part>");
	}
	buf_adds(&upload->body, "</CompleteMultipartUpload>");
	strv_done(&x->params);
	strv_done(&x->headers);
	strv_addf(&x->params, "uploadId=%s", upload->id);
	x->body = (struct http_body){.data = upload->body.data, .size = upload->body.len};
	s3_payload(upload->body.data, upload->body.len, x->payload);
	x->checks_body = true;
	s3_exchange_start(x, "POST", s3_upload_completed, upload);
}

/*
 * The parts
 */

static int s3_upload_go_on(struct s3_upload *upload, struct err *err);

/* NULL: the response has none. The caller frees. */
static char *s3_upload_etag(const struct s3_part *part, const struct http_response *response)
{
	if (response && part->from)
		return s3_xml_find(response->body.data, response->body.len, "*/ETag");
	return response ? mem_strdup(field_find(&response->headers, "etag")) : NULL;
}

static int s3_upload_part_ended(
	struct s3_exchange *x, struct http_response *response, struct err *error, struct err *err)
{
	struct s3_lane *lane = CONTAINER_OF(x, struct s3_lane, x);
	struct s3_upload *upload = x->ctx;
	struct s3_part *part = &upload->parts.v[lane->part];
	AUTO_FREE char *etag = s3_upload_etag(part, response);

	if (!response && s3_upload_is_gone(upload, error)) {
		s3_upload_restart(upload, false);
		return 0;
	}
	if (response && str_empty(etag))
		err_set(error, E_S3_RESPONSE, "%s gave no ETag of a part", x->s3->host);
	/* Some servers copy no parts of objects, and the object may be gone. */
	if (part->from && (error->id == E_S3_RESPONSE || error->id == E_S3_NOT_FOUND)) {
		s3_upload_restart(upload, true);
		return 0;
	}
	if (err_is_set(error))
		return s3_call_end(upload->call, error, err);
	part->etag = TAKE(etag);
	memcpy(part->sha256, x->payload, SHA256_HEX_SIZE);
	upload->n_open--;
	upload->n_there++;
	lane->is_busy = false;
	s3_upload_note(upload);
	return s3_upload_go_on(upload, err);
}

/* Sends part i, or finds that it is there: then the lane stays free. */
static int s3_upload_part(struct s3_upload *upload, struct s3_lane *lane, size_t i, struct err *err)
{
	struct s3_part *part = &upload->parts.v[i];
	struct s3_exchange *x = &lane->x;
	if (!x->s3)
		s3_exchange_init(x, upload->call->s3, upload->call->x.bucket, upload->call->x.key);
	int r = s3_exchange_set_body(x, &upload->put, part->at, part->from ? 0 : part->len, err);
	if (r < 0)
		return r;
	if (part->etag && str_eq(part->sha256, x->payload)) {
		upload->n_there++;
		return 0;
	}
	free(TAKE(part->etag));
	lane->part = i;
	lane->is_busy = true;
	upload->n_open++;
	strv_done(&x->headers);
	x->checks_body = part->from != NULL;
	if (part->from) {
		s3_add_source(&x->headers, x->bucket, part->from);
		strv_addf(&x->headers, "x-amz-copy-source-range: bytes=%llu-%llu",
			(unsigned long long)part->from_offset,
			(unsigned long long)(part->from_offset + part->len - 1));
	}
	strv_done(&x->params);
	strv_addf(&x->params, "partNumber=%zu", i + 1);
	strv_addf(&x->params, "uploadId=%s", upload->id);
	s3_exchange_start(x, "PUT", s3_upload_part_ended, upload);
	return 0;
}

static int s3_upload_again(void *ctx, struct err *err)
{
	struct s3_upload *upload = ctx;

	upload->call->x.timer = NULL;
	return s3_upload_go_on(upload, err);
}

/* Hashing takes time: one part in each turn of the loop. */
static int s3_upload_go_on(struct s3_upload *upload, struct err *err)
{
	AUTO_ERR struct err error = {0};
	struct s3_exchange *x = &upload->call->x;

	if (upload->n_there == upload->parts.n) {
		if (upload->put.check && upload->put.check(upload->put.ctx, NULL, &error) < 0)
			return s3_call_end(upload->call, &error, err);
		s3_upload_complete(upload);
		return 0;
	}
	for (size_t i = 0; i < S3_PARTS_AT_ONCE && upload->next < upload->parts.n; i++) {
		if (upload->lanes[i].is_busy)
			continue;
		if (s3_upload_part(upload, &upload->lanes[i], upload->next++, &error) < 0)
			return s3_call_end(upload->call, &error, err);
		if (!x->timer)
			x->timer = loop_add_timer(x->s3->loop, clock_ms(), s3_upload_again, upload);
		break;
	}
	return 0;
}

/*
 * The start
 */

static int s3_upload_begun(
	struct s3_exchange *x, struct http_response *response, struct err *error, struct err *err)
{
	struct s3_upload *upload = x->ctx;

	if (response)
		upload->id = s3_xml_find(response->body.data, response->body.len, "*/UploadId");
	if (response && str_empty(upload->id))
		err_set(error, E_S3_RESPONSE, "%s gave no id of an upload", x->s3->host);
	if (err_is_set(error))
		return s3_call_end(upload->call, error, err);
	s3_upload_note(upload);
	return s3_upload_go_on(upload, err);
}

static void s3_upload_begin(struct s3_upload *upload)
{
	struct s3_exchange *x = &upload->call->x;
	uint8_t random[(S3_NONCE_SIZE - 1) / 2];

	random_bytes(random, sizeof(random));
	hex_encode(random, sizeof(random), upload->nonce);
	strv_done(&x->params);
	strv_done(&x->headers);
	strv_add(&x->params, "uploads");
	strv_addf(&x->headers, "%s: %s", s3_nonce_header, upload->nonce);
	s3_exchange_start(x, "POST", s3_upload_begun, upload);
}

struct s3_call *s3_upload_start(struct s3 *s3, const struct s3_put *put)
{
	struct s3_upload *upload = mem_alloc(1, sizeof(*upload));
	struct s3_call *call = s3_call_new(s3, put->bucket, put->key, put->done, put->ctx);

	call->upload = upload;
	call->free_upload = s3_upload_free;
	upload->call = call;
	upload->put = *put;
	upload->put.resume = mem_strdup(put->resume);
	s3_upload_plan(upload);
	s3_upload_recall(upload);
	if (upload->is_resumed)
		call->x.timer = loop_add_timer(s3->loop, clock_ms(), s3_upload_again, upload);
	else
		s3_upload_begin(upload);
	return call;
}
