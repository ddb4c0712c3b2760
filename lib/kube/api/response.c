/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/api/response.h"

#include <stdbool.h>
#include <string.h>
#include <strings.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/api/kubeconfig.h"
#include "net/stream/field.h"

/*
 * Text for people
 */

/* A character that is escaped becomes four bytes at most for each of its own. */
enum { ESCAPED_MAX = 4, CONTEXT_MAX = 4096 };

/* How many bytes of whole characters fit. */
static size_t response_cut(const char *text, size_t len, size_t max)
{
	size_t at = 0, n;

	while (at < len && (n = str_utf8_len(text + at, len - at)) > 0 && at + n <= max)
		at += n;
	return at;
}

char *kube_words(const char *text, size_t len, size_t max)
{
	AUTO_BUF struct buf line = buf_with(max + ESCAPED_MAX);
	AUTO_BUF struct buf shown;

	bool blank = true;

	for (size_t i = 0; i < len && !line.full; i++) {
		bool is_blank = text[i] && strchr(" \t\r\n", text[i]);
		if (!is_blank || !blank)
			buf_addc(&line, is_blank ? ' ' : text[i]);
		blank = is_blank;
	}
	if (line.len > 0 && line.data[line.len - 1] == ' ')
		buf_truncate(&line, line.len - 1);
	buf_init(&shown, ESCAPED_MAX * (max + ESCAPED_MAX) + sizeof("…"));
	str_escape(&shown, line.data, line.len);
	size_t fits = response_cut(shown.data, shown.len, max);
	if (fits < shown.len || line.full) {
		buf_truncate(&shown, fits);
		buf_adds(&shown, "…");
	}
	return buf_take(&shown);
}

void kube_hint_version(const char *context, const char *question, struct err *err)
{
	AUTO_BUF struct buf quoted = buf_with(CONTEXT_MAX);

	if (!context || str_eq(context, KUBECONFIG_IN_CLUSTER))
		return;
	str_shell_quote(&quoted, context);
	err_hint(err, "kubectl --context %s version   # %s", quoted.data, question);
}

/*
 * Responses
 */

enum { CAUSES_SHOWN = 3, CAUSE_MAX = 300, WARNING_MAX = 300, SEGMENTS_MAX = 12 };

/*
 * Descriptions of requests
 */

static void show_object(const struct strv *parts, size_t at, struct buf *out)
{
	buf_adds(out, parts->v[at]);
	if (at + 1 < parts->n)
		buf_addf(out, "/%s", parts->v[at + 1]);
}

char *kube_path_shown(const char *path)
{
	AUTO_STRV struct strv parts = {0};
	AUTO_BUF struct buf out = buf_with(KUBE_WORDS_MAX);
	/* The parts of /api/v1/namespaces/NS/RESOURCE/NAME/SUB, still percent-encoded: dlrun's
	 * own names need no encoding. */
	size_t end = strcspn(path, "?");

	for (size_t at = 0; at < end && parts.n < SEGMENTS_MAX;) {
		size_t len = strcspn(path + at, "/?");
		if (len > 0)
			strv_add_take(&parts, mem_strndup(path + at, len));
		at += len + 1;
	}
	size_t n = parts.n;
	size_t at = n > 0 && str_eq(parts.v[0], "apis") ? 3 : 2;

	if (n <= at) {
		buf_adds(&out, path);
	} else if (str_eq(parts.v[at], "namespaces") && n > at + 2) {
		show_object(&parts, at + 2, &out);
		buf_addf(&out, " in namespace %s", parts.v[at + 1]);
	} else {
		show_object(&parts, at, &out);
	}
	return kube_words(out.data, out.len, KUBE_WORDS_MAX);
}

static const char *verb(const char *method)
{
	static const struct {
		const char *method, *verb;
	} verbs[] = {
		{"POST", "create"}, {"PUT", "change"}, {"PATCH", "change"}, {"DELETE", "delete"}};

	for (size_t i = 0; i < ARRAY_LEN(verbs); i++)
		if (str_eq(verbs[i].method, method))
			return verbs[i].verb;
	return "read";
}

/*
 * Status (meta/v1)
 */

static bool is_status(const struct json *object)
{
	return str_eq(json_get_str(object, "kind"), "Status");
}

static enum err_id response_kind_of(int status, const char *reason)
{
	static const struct {
		int status;
		enum err_id id;
	} kinds[] = {{400, E_KUBE_INVALID}, {401, E_KUBE_AUTH}, {403, E_KUBE_DENIED},
		{404, E_KUBE_NOT_FOUND}, {405, E_KUBE_INVALID}, {409, E_KUBE_CONFLICT},
		{410, E_KUBE_GONE}, {413, E_KUBE_INVALID}, {415, E_KUBE_INVALID},
		{422, E_KUBE_INVALID}, {429, E_KUBE_BUSY}};

	if (status == 409 && str_eq(reason, "AlreadyExists"))
		return E_KUBE_EXISTS;
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
		if (kinds[i].status == status)
			return kinds[i].id;
	return status >= 500 && status <= 599 ? E_KUBE_SERVER : E_KUBE_RESPONSE;
}

static void add_causes(const struct json *status, struct err *error)
{
	const struct json *causes = json_get(json_get(status, "details"), "causes");
	size_t n = 0, all = json_count(causes);

	for (const struct json *cause = json_first(causes); cause && n < CAUSES_SHOWN;
		cause = json_next(cause), n++) {
		const char *field = json_get_str(cause, "field");
		const char *message = json_get_str(cause, "message");
		AUTO_FREE char *line = mem_printf("%s%s%s", field ? field : "",
			str_empty(field) || str_empty(message) ? "" : ": ", message ? message : "");
		AUTO_FREE char *shown = kube_words(line, strlen(line), CAUSE_MAX);
		if (*shown)
			err_evidence(error, "%s", shown);
	}
	if (all > CAUSES_SHOWN)
		err_evidence(error, "and %zu more", all - CAUSES_SHOWN);
}

/* The server's message, or a substitute if there is none. */
static char *message_of(const struct http_response *http, const struct json *object)
{
	const char *said = is_status(object) ? json_get_str(object, "message") : NULL;
	const char *text = http->body.data ? http->body.data : "";

	if (!str_empty(said))
		return kube_words(said, strlen(said), KUBE_WORDS_MAX);
	AUTO_FREE char *shown = kube_words(text, object ? 0 : http->body.len, CAUSE_MAX);
	return *shown ? mem_printf("the server answers %d: %s", http->status, shown)
		      : mem_printf("the server answers %d without a message", http->status);
}

static void response_hint_quota(const char *path, struct err *error)
{
	static const char in[] = "/namespaces/";
	const char *at = strstr(path, in);
	size_t len = at ? strcspn(at + strlen(in), "/?") : 0;

	if (len)
		err_hint(
			error, "kubectl describe resourcequota -n %.*s", (int)len, at + strlen(in));
	else
		err_hint(error, "kubectl describe resourcequota");
}

static void response_refuse(const struct kube_requested *requested, int status,
	const struct http_response *http, struct kube_response *response)
{
	enum err_id id = response_kind_of(status, response->reason);
	AUTO_FREE char *what = kube_path_shown(requested->path);
	AUTO_FREE char *message = message_of(http, response->object);

	if (id == E_KUBE_AUTH)
		err_set(&response->error, id, "%s does not accept the login%s%s: %s",
			requested->host, requested->user ? " of " : "",
			requested->user ? requested->user : "", message);
	else
		err_set(&response->error, id, "cannot %s %s: %s", verb(requested->method), what,
			message);
	add_causes(response->object, &response->error);
	struct err *error = &response->error;
	if (id == E_KUBE_AUTH && requested->user)
		err_hint(error, "log in to the cluster again as %s, then: kubectl auth whoami",
			requested->user);
	else if (strstr(message, "exceeded quota"))
		response_hint_quota(requested->path, error);
	else if (id == E_KUBE_DENIED)
		err_hint(error, "dlrun init --rbac   # prints the Role to ask for");
}

/*
 * Responses of something else
 */

static bool response_is_html(const struct http_response *http)
{
	const char *type = field_find(&http->headers, "content-type");
	const char *text = http->body.data ? http->body.data : "";

	text += strspn(text, " \t\r\n");
	return (type && strncasecmp(type, "text/html", 9) == 0) ||
	       strncasecmp(text, "<!doctype html", 14) == 0 || strncasecmp(text, "<html", 5) == 0;
}

static int fail_foreign(const struct kube_requested *requested, const struct http_response *http,
	const char *what, struct err *error)
{
	AUTO_FREE char *path = kube_path_shown(requested->path);

	err_set(error, E_KUBE_RESPONSE, "cannot %s %s: %s answers %d with %s",
		verb(requested->method), path, requested->host, http->status, what);
	return err_hint(error, "is the server of the kubeconfig right, or is a proxy in between?");
}

/*
 * Warnings (RFC 9111 section 5.5, code 299; RFC 9110 for the quoted text)
 */

static const char *next_warning(const char *at, struct buf *text)
{
	at = strchr(at, '"');
	if (!at)
		return NULL;
	for (at++; *at && *at != '"'; at++) {
		if (*at == '\\' && at[1])
			at++;
		buf_addc(text, *at);
	}
	return *at ? at + 1 : at;
}

static void add_warnings(const char *value, struct strv *ret)
{
	for (const char *at = value; at && ret->n < KUBE_WARNINGS_MAX;) {
		AUTO_BUF struct buf text = buf_with(HTTP_HEADERS_MAX);

		at += strspn(at, " \t,");
		if (!str_starts(at, "299 "))
			return;
		at = next_warning(at, &text);
		if (text.len > 0)
			strv_add_take(ret, kube_words(text.data, text.len, WARNING_MAX));
	}
}

static void read_warnings(const struct strv *headers, struct strv *ret)
{
	static const char name[] = "warning:";

	for (size_t i = 0; i < headers->n; i++)
		if (str_starts(headers->v[i], name))
			add_warnings(headers->v[i] + strlen(name), ret);
}

/*
 * The whole
 */

void kube_unreachable(const struct kube_requested *requested, struct err *from, struct err *error)
{
	static const enum err_id ids[] = {
		E_HTTP_CLOSED, E_HTTP_CONNECT, E_HTTP_RESOLVE, E_HTTP_TIMEOUT};
	AUTO_FREE char *what = kube_path_shown(requested->path);
	bool is_ours = false;

	for (size_t i = 0; i < ARRAY_LEN(ids); i++)
		is_ours = is_ours || from->id == ids[i];
	if (!is_ours) {
		err_move(error, from);
		if (error->id == E_HTTP_TLS)
			err_hint(error, "kubectl config view --minify: is certificate-authority "
					"that of this cluster?");
		return;
	}
	err_set(error, E_KUBE_UNREACHABLE, "the cluster at %s cannot be reached: %s",
		requested->host, from->message);
	err_evidence(error, "cannot %s %s", verb(requested->method), what);
	for (size_t i = 0; i < from->n_evidence; i++)
		err_evidence(error, "%s", from->evidence[i]);
	if (from->hint)
		err_hint(error, "%s", from->hint);
	if (requested->context)
		kube_hint_version(requested->context, "is the VPN up?", error);
}

static void read_object(const struct kube_requested *requested, const struct http_response *http,
	struct kube_response *response)
{
	AUTO_ERR struct err error = {0};
	bool is_good = http->status >= 200 && http->status < 300;

	if (http->body.len == 0)
		return;
	if (response_is_html(http)) {
		if (http->status < 500)
			fail_foreign(requested, http, "an HTML page", &response->error);
		return;
	}
	int r = json_parse(http->body.data, http->body.len, http->body.len, "the answer",
		&response->object, &error);
	if (r == 0 || !is_good)
		return;
	if (r == -ERR_LIMIT)
		err_move(&response->error, &error);
	else
		fail_foreign(requested, http, "something that is not JSON", &response->error);
}

void kube_response_read(const struct kube_requested *requested, struct http_response *http,
	bool is_stream, struct kube_response *ret)
{
	struct kube_response response = {.status = http->status, .http = http, .reason = ""};
	bool is_good = http->status >= 200 && http->status < 300;
	int status = http->status;

	if (!http->status) {
		kube_unreachable(requested, &http->error, &response.error);
		*ret = response;
		return;
	}
	read_warnings(&http->headers, &response.warnings);
	if (!is_good || !is_stream)
		read_object(requested, http, &response);
	if (is_status(response.object) && json_get_str(response.object, "reason"))
		response.reason = json_get_str(response.object, "reason");
	/* A success may hold a failure. */
	if (is_good && is_status(response.object) &&
		str_eq(json_get_str(response.object, "status"), "Failure")) {
		status = (int)json_get_int(response.object, "code", 500);
		is_good = false;
	}
	if (!is_good && !err_is_set(&response.error))
		response_refuse(requested, status, http, &response);
	*ret = response;
}

void kube_response_done(struct kube_response *response)
{
	json_free(response->object);
	err_done(&response->error);
	strv_done(&response->warnings);
	*response = (struct kube_response){0};
}

bool kube_response_is_transient(const struct kube_response *response)
{
	static const int statuses[] = {429, 502, 503, 504};
	static const char *const words[] = {"leader changed", "timed out", "timeout"};
	const char *message = response->error.message;

	for (size_t i = 0; i < ARRAY_LEN(statuses); i++)
		if (response->status == statuses[i])
			return true;
	for (size_t i = 0; response->status == 500 && message && i < ARRAY_LEN(words); i++)
		if (strcasestr(message, words[i]))
			return true;
	return response->status == 500 && str_eq(response->reason, "ServerTimeout");
}

int64_t kube_response_retry_after(const struct kube_response *response)
{
	const char *text =
		response->http ? field_find(&response->http->headers, "retry-after") : NULL;
	int64_t ms = text ? field_retry_after(text, clock_wall_ms()) : -1;
	int64_t s = json_get_int(json_get(response->object, "details"), "retryAfterSeconds", -1);

	if (ms < 0 && s >= 0)
		ms = s > KUBE_RETRY_AFTER_MAX_MS ? KUBE_RETRY_AFTER_MAX_MS : s * 1000;
	return ms > KUBE_RETRY_AFTER_MAX_MS ? KUBE_RETRY_AFTER_MAX_MS : ms;
}
