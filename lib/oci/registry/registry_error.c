/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/registry/registry_error.h"

#include <string.h>
#include <strings.h>

#include "base/data/json.h"
#include "base/util/digest.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/stream/field.h"
#include "oci/model/manifest.h"
#include "oci/registry/registry.h"

enum { TITLE_MAX = 80, ERRORS_MAX = 64, LINES_MAX = 2, DETAIL_DEPTH_MAX = 8 };

/*
 * Words
 */

/* A line that is built from a registry's words. */
struct line {
	struct buf text;
	size_t left; /* characters */
	bool blank;  /* is due before the next one */
};

static void line_begin(struct line *line, size_t max)
{
	buf_init(&line->text, 4 * max + sizeof("…"));
	line->left = max;
	line->blank = false;
}

/* Escaped, blanks run together, cut with "…". */
static void line_add(struct line *line, const char *s, size_t len)
{
	while (len && line->left) {
		size_t n = str_utf8_len(s, len), before = line->text.len;
		n += n == 0;
		if (strchr(" \t\r\n", *s) && *s) {
			line->blank = line->text.len > 0;
		} else {
			if (line->blank)
				buf_addc(&line->text, ' ');
			line->blank = false;
			str_escape(&line->text, s, n);
			size_t width = line->text.len - before;
			width = n > 1 && width == n ? 1 : width;
			line->left -= width < line->left ? width : line->left;
			if (line->left == 0)
				buf_adds(&line->text, "…");
		}
		s += n;
		len -= n;
	}
}

static void line_adds(struct line *line, const char *s)
{
	line_add(line, s, strlen(s));
}

static const char *content_type(const struct http_response *response)
{
	const char *type = field_find(&response->headers, "content-type");

	return type ? type : "";
}

static bool type_is(const char *type, const char *name)
{
	size_t len = strcspn(type, "; \t");

	return len == strlen(name) && strncasecmp(type, name, len) == 0;
}

static bool is_json_type(const char *type)
{
	size_t len = strcspn(type, "; \t");

	return type_is(type, "application/json") ||
	       (len > 5 && strncasecmp(type + len - 5, "+json", 5) == 0);
}

/* Where the body begins behind blanks; an empty string if there is none. */
static const char *body_text(const struct http_response *response)
{
	return response->body.len ? response->body.data + strspn(response->body.data, " \t\r\n")
				  : "";
}

/* The errors in the body, or NULL. Some servers call their JSON plain text. */
static struct json *registry_error_json(const struct http_response *response)
{
	const char *type = content_type(response);
	struct json *json = NULL;

	if (response->body.len > HTTP_ERROR_BODY_MAX || *body_text(response) != '{')
		return NULL;
	if (!is_json_type(type) && !type_is(type, "text/plain") && *type)
		return NULL;
	if (json_parse(response->body.data, response->body.len, HTTP_ERROR_BODY_MAX, "the answer",
		    &json, NULL) < 0)
		return NULL;
	return json;
}

static const struct json *first_error(const struct json *json)
{
	const struct json *errors = json_get(json, "errors");

	return json_kind(errors) == JSON_ARRAY ? json_first(errors) : NULL;
}

/* A detail says something that the message does not. */
static void add_detail(struct line *line, const struct json *detail, const char *message)
{
	AUTO_BUF struct buf text = buf_with(HTTP_ERROR_BODY_MAX);

	if (!detail || json_kind(detail) == JSON_NULL)
		return;
	if (json_str(detail))
		buf_adds(&text, json_str(detail));
	else
		json_print(detail, &text);
	if (text.len == 0 || str_eq(text.data, "{}") || str_eq(text.data, "[]") ||
		strstr(message, text.data))
		return;
	line_adds(line, " (");
	line_add(line, text.data, text.len);
	line_adds(line, ")");
}

/* Evidence from a line, which is used up; false: it was empty. */
static bool line_end(struct line *line, int status, struct err *err)
{
	bool says = line->text.len > 0;

	if (says)
		err_evidence(err, "answer: %d %s", status, line->text.data);
	buf_done(&line->text);
	return says;
}

static bool error_line(const struct json *error, int status, struct err *err)
{
	const char *code = json_get_str(error, "code"), *message = json_get_str(error, "message");
	struct line line;

	line_begin(&line, REGISTRY_WORDS_MAX);
	if (!str_empty(code))
		line_adds(&line, code);
	if (!str_empty(code) && !str_empty(message))
		line_adds(&line, ": ");
	if (message)
		line_adds(&line, message);
	add_detail(&line, json_get(error, "detail"), message ? message : "");
	return line_end(&line, status, err);
}

static bool json_lines(const struct json *json, int status, struct err *err)
{
	static const char *const others[] = {"message", "error_description", "error", "detail"};
	int lines = 0;
	size_t n = 0;

	for (const struct json *e = first_error(json); e && lines < LINES_MAX && n < ERRORS_MAX;
		e = json_next(e), n++)
		lines += error_line(e, status, err);
	for (size_t i = 0; lines == 0 && i < ARRAY_LEN(others); i++) {
		const char *text = json_get_str(json, others[i]);
		struct line line;
		if (str_empty(text))
			continue;
		line_begin(&line, REGISTRY_WORDS_MAX);
		line_adds(&line, text);
		lines += line_end(&line, status, err);
	}
	return lines > 0;
}

static bool registry_error_is_html(const struct http_response *response)
{
	const char *text = body_text(response);

	return type_is(content_type(response), "text/html") ||
	       strncasecmp(text, "<!doctype html", 14) == 0 || strncasecmp(text, "<html", 5) == 0;
}

static void html_line(const struct http_response *response, struct err *err)
{
	const char *title = strcasestr(body_text(response), "<title");
	const char *from = title ? strchr(title, '>') : NULL;
	const char *to = from ? strcasestr(from, "</title") : NULL;
	struct line line;

	line_begin(&line, TITLE_MAX);
	if (to)
		line_add(&line, from + 1, (size_t)(to - from - 1));
	if (line.text.len)
		err_evidence(
			err, "answer: %d, an HTML page \"%s\"", response->status, line.text.data);
	else
		err_evidence(err, "answer: %d, an HTML page", response->status);
	buf_done(&line.text);
}

static void text_line(const struct http_response *response, struct err *err)
{
	const char *text = body_text(response), *type = content_type(response);
	size_t len =
		response->body.len - (size_t)(response->body.len ? text - response->body.data : 0);
	bool shown = !*type || strncasecmp(type, "text/", 5) == 0 || is_json_type(type);
	struct line line;

	line_begin(&line, REGISTRY_WORDS_MAX);
	if (shown && str_is_utf8(text, len))
		line_add(&line, text, len);
	if (!line_end(&line, response->status, err))
		err_evidence(err, "answer: %d, %s", response->status,
			len ? "nothing that can be shown" : "without a message");
}

/* Evidence for err: the status and up to two lines of the registry's words. */
static void registry_words(const struct http_response *response, struct err *err)
{
	AUTO_JSON struct json *json = registry_error_json(response);

	if (json && json_lines(json, response->status, err))
		return;
	if (registry_error_is_html(response))
		html_line(response, err);
	else
		text_line(response, err);
}

/*
 * Codes and digests
 */

static void add_digests(const char *text, struct strv *digests)
{
	uint8_t sha256[SHA256_SIZE];

	for (const char *at = text; (at = strstr(at, "sha256:")); at += strlen("sha256:")) {
		AUTO_FREE char *digest = mem_strndup(at, DIGEST_TEXT_SIZE - 1);
		if (digests->n < REGISTRY_DIGESTS_MAX && digest_parse(digest, sha256) &&
			strv_find(digests, digest) < 0)
			strv_add(digests, digest);
	}
}

/* All strings in a detail, which is whatever the registry likes. */
static void add_detail_digests(const struct json *detail, unsigned depth, struct strv *digests)
{
	enum json_kind kind = detail ? json_kind(detail) : JSON_NULL;

	if (kind == JSON_STRING)
		add_digests(json_str(detail), digests);
	if ((kind != JSON_ARRAY && kind != JSON_OBJECT) || depth == DETAIL_DEPTH_MAX)
		return;
	for (const struct json *m = json_first(detail); m; m = json_next(m))
		add_detail_digests(m, depth + 1, digests);
}

static bool has_code(const struct json *json, const char *code, struct strv *digests)
{
	bool found = false;
	size_t n = 0;

	for (const struct json *e = first_error(json); e && n < ERRORS_MAX; e = json_next(e), n++) {
		if (!str_eq(json_get_str(e, "code"), code))
			continue;
		found = true;
		if (!digests)
			break;
		if (json_get_str(e, "message"))
			add_digests(json_get_str(e, "message"), digests);
		add_detail_digests(json_get(e, "detail"), 0, digests);
	}
	return found;
}

bool registry_response_has(
	const struct http_response *response, const char *code, struct strv *digests)
{
	AUTO_JSON struct json *json = registry_error_json(response);

	return json && has_code(json, code, digests);
}

/*
 * Kinds
 */

/* No space, a quota, or too large; repo (or NULL) may have one of the words in its name. */
static bool registry_is_full(const struct http_response *response, const char *repo)
{
	static const char *const words[] = {"quota", "storage limit", "no space left", "disk full",
		"insufficient storage", "upper limit",
		/* distribution's file system driver: ENOSPC and EDQUOT of Linux */
		"\"Err\":28}", "\"Err\":122}"};
	static const int statuses[] = {400, 402, 403, 412, 422, 500, 503};
	bool is_telling = false;

	if (response->status == 413 || response->status == 507)
		return true;
	for (size_t i = 0; i < ARRAY_LEN(statuses); i++)
		is_telling = is_telling || response->status == statuses[i];
	if (!is_telling || registry_error_is_html(response))
		return false;
	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		if (strcasestr(body_text(response), words[i]) &&
			!(repo && strcasestr(repo, words[i])))
			return true;
	return false;
}

static bool lacks_scope(const struct http_response *response)
{
	AUTO_CHALLENGES struct challenge_list list = {0};

	challenges_parse(&response->headers, &list);
	const struct challenge *bearer = challenge_find(&list, "bearer");
	return bearer && str_eq(challenge_param(bearer, "error"), "insufficient_scope");
}

/* Descriptions of what the registry lacks, by error code. */
static const struct {
	const char *code, *what;
} lacking[] = {
	{"NAME_UNKNOWN", "no such repository"},
	{"MANIFEST_UNKNOWN", "no such image"},
	{"BLOB_UNKNOWN", "no such blob"},
	{"BLOB_UPLOAD_UNKNOWN", "no such upload any more"},
};

static const char *registry_error_lacks(const struct json *json)
{
	for (size_t i = 0; json && i < ARRAY_LEN(lacking); i++)
		if (has_code(json, lacking[i].code, NULL))
			return lacking[i].what;
	return NULL;
}

static enum err_id registry_error_kind_of(const struct registry_requested *requested,
	const struct http_response *response, const struct json *json)
{
	int status = response->status;

	if (registry_is_full(response, requested->repo))
		return E_REGISTRY_FULL;
	if (status == 403 ||
		(status == 401 && (has_code(json, "DENIED", NULL) || lacks_scope(response))))
		return E_REGISTRY_DENIED;
	if (status == 401)
		return E_REGISTRY_AUTH;
	if (status == 404 || (status >= 400 && status < 500 && registry_error_lacks(json)))
		return E_REGISTRY_NOT_FOUND;
	return E_REGISTRY_RESPONSE;
}

/*
 * Sentences
 */

static void refusal_not_found(const struct registry_requested *requested, bool reads,
	const struct json *json, struct err *err)
{
	const char *what = registry_error_lacks(json);

	err_set(err, E_REGISTRY_NOT_FOUND, "%s/%s: the registry has %s (%s)", requested->host,
		requested->repo, what ? what : "nothing there", requested->doing);
	if (!str_eq(what, lacking[0].what))
		return;
	if (strstr(requested->host, ".dkr.ecr."))
		err_hint(err, "aws ecr create-repository --repository-name %s", requested->repo);
	else if (!reads)
		err_hint(err, "create the repository %s at %s, or name another one with --to",
			requested->repo, requested->host);
}

static void refusal_sentence(const struct registry_requested *requested, enum err_id id,
	const struct http_response *response, const struct json *json, struct err *err)
{
	const char *host = requested->host, *repo = requested->repo;
	bool reads = str_eq(requested->method, "GET") || str_eq(requested->method, "HEAD");

	if (id == E_REGISTRY_AUTH)
		err_set(err, id,
			str_eq(requested->identity, "anonymous")
				? "registry %s wants a login for %s"
				: "registry %s does not accept the login for %s",
			host, repo);
	else if (id == E_REGISTRY_DENIED && !requested->method)
		err_set(err, id, "%s/%s does not allow %s", host, repo, requested->doing);
	else if (id == E_REGISTRY_DENIED)
		err_set(err, id, "may not %s %s/%s (%s)", reads ? "pull from" : "push to", host,
			repo, requested->doing);
	else if (id == E_REGISTRY_NOT_FOUND)
		refusal_not_found(requested, reads, json, err);
	else if (id == E_REGISTRY_FULL && response->status == 413)
		err_set(err, id, "registry %s refuses uploads of that size (%s)", host,
			requested->doing);
	else if (id == E_REGISTRY_FULL)
		err_set(err, id, "registry %s has no room left in %s (%s)", host, repo,
			requested->doing);
	else
		err_set(err, id, "registry %s answers %d to %s", host, response->status,
			requested->doing);
}

int registry_refusal(const struct registry_requested *requested,
	const struct http_response *response, struct err *err)
{
	AUTO_JSON struct json *json = registry_error_json(response);
	AUTO_ERR struct err error = {0};
	enum err_id id = registry_error_kind_of(requested, response, json);

	refusal_sentence(requested, id, response, json, &error);
	if (id == E_REGISTRY_AUTH || id == E_REGISTRY_DENIED)
		err_hint(&error, "docker login %s", requested->host);
	if (id == E_REGISTRY_FULL)
		err_hint(&error, response->status == 413 ? "raise the limit of the proxy before it "
							   "(nginx: client_max_body_size 0)"
							 : "dlrun gc --registry");
	registry_words(response, &error);
	if (requested->elsewhere) {
		AUTO_FREE char *shown = str_shown(response->url.host);
		err_evidence(&error, "the answer came from %s, which the registry named", shown);
	} else if (requested->identity && (id == E_REGISTRY_AUTH || id == E_REGISTRY_DENIED)) {
		err_evidence(&error, "login: %s", requested->identity);
	}
	int r = -(int)error.code;
	if (err)
		err_move(err, &error);
	return r;
}

#define SCHEMA1_TYPE "application/vnd.docker.distribution.manifest.v1+"

static int no_sense(const struct registry_part *part, struct err *err, const char *what)
{
	return err_set(err, E_REGISTRY_RESPONSE, "registry %s sends %s of %s", part->host, what,
		part->name);
}

int registry_check_bytes(const struct registry_part *part, const struct http_response *response,
	struct descriptor *got, struct err *err)
{
	const char *encoding = field_find(&response->headers, "content-encoding");
	const char *said = field_find(&response->headers, "docker-content-digest");

	if (response->body.len == 0)
		return no_sense(part, err, "nothing instead");
	if (!str_empty(encoding) && strcasecmp(encoding, "identity") != 0)
		return no_sense(part, err, "a compressed form, which was not asked for,");
	descriptor_of(response->body.data, response->body.len, "application/octet-stream", got);
	if (part->digest && !str_eq(got->digest, part->digest)) {
		no_sense(part, err, "other bytes than those");
		return err_evidence(err, "asked for %s, got %s", part->digest, got->digest);
	}
	if (part->size && part->size != got->size)
		return no_sense(part, err, "a part of a wrong size");
	if (said && str_starts(said, "sha256:") && !str_eq(said, got->digest)) {
		AUTO_FREE char *shown = str_shown(said);
		no_sense(part, err, "another digest than that");
		return err_evidence(err, "Docker-Content-Digest %s, got %s", shown, got->digest);
	}
	return 0;
}

static int old_form(const struct registry_part *part, struct err *err)
{
	err_set(err, E_IMAGE_KIND, "%s is kept in docker's old form (schema 1)", part->name);
	return err_hint(err, "docker pull %s && docker push %s", part->name, part->name);
}

/* The media type of a manifest or index in a Content-Type, without parameters; NULL if it is
 * none. */
static const char *known_type(const char *type, char out[static MEDIA_TYPE_SIZE])
{
	size_t len = strcspn(type, "; \t");

	if (len >= MEDIA_TYPE_SIZE)
		return NULL;
	memcpy(out, type, len);
	out[len] = '\0';
	return media_is_index(out) || media_is_manifest(out) ? out : NULL;
}

static int check_type(const struct registry_part *part, const struct http_response *response,
	struct descriptor *got, struct err *err)
{
	AUTO_JSON struct json *json = NULL;
	const char *type = field_find(&response->headers, "content-type");
	char out[MEDIA_TYPE_SIZE];

	type = type ? type : "";
	if (str_starts(type, SCHEMA1_TYPE))
		return old_form(part, err);
	if (json_parse(response->body.data, response->body.len, MANIFEST_SIZE_MAX, part->name,
		    &json, NULL) < 0) {
		int r = no_sense(part, err, "something else than the manifest");
		registry_words(response, err);
		return r;
	}
	if (json_get_int(json, "schemaVersion", 0) == 1)
		return old_form(part, err);
	const char *inside = manifest_media_type(json), *outside = known_type(type, out);
	if (!inside)
		return err_set(err, E_IMAGE_KIND, "%s is not an image", part->name);
	if (json_get(json, "manifests") && (json_get(json, "layers") || json_get(json, "config")))
		return err_set(err, E_IMAGE, "%s is an index and an image at once", part->name);
	bool differ = json_get(json, "mediaType")
			      ? !str_eq(inside, outside)
			      : media_is_index(inside) != media_is_index(outside);
	if (outside && differ) {
		no_sense(part, err, "another type than that");
		return err_evidence(err, "Content-Type %s, got %s", outside, inside);
	}
	memcpy(got->media_type, inside, strlen(inside) + 1);
	return 0;
}

int registry_check_manifest(const struct registry_part *part, const struct http_response *response,
	struct descriptor *got, struct err *err)
{
	int r = registry_check_bytes(part, response, got, err);

	return r < 0 ? r : check_type(part, response, got, err);
}
