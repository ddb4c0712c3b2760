/* SPDX-License-Identifier: Apache-2.0 */
#include "net/stream/url.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/stream/address.h"

enum { PORT_HTTP = 80, PORT_HTTPS = 443, PORT_DIGITS_MAX = 5 };

static const char unreserved[] =
	"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";

static uint16_t default_port(bool tls)
{
	return tls ? PORT_HTTPS : PORT_HTTP;
}

static int url_refuse(const char *what, const char *why, struct err *err)
{
	return err_set(err, E_HTTP_URL, "%s is not a valid URL: %s", what, why);
}

/* Backslashes are slashes to some readers of URLs, which would see another host. */
static int check_text(const char *text, const char *what, struct err *err)
{
	size_t len = strnlen(text, URL_MAX + 1);

	if (len > URL_MAX)
		return err_set(err, E_HTTP_URL, "%s is longer than %d bytes", what, URL_MAX);
	for (size_t i = 0; i < len; i++) {
		if (text[i] <= ' ' || text[i] > '~' || text[i] == '\\')
			return err_set(err, E_HTTP_URL,
				"%s is not a valid URL: it has byte 0x%02x at offset %zu", what,
				(unsigned char)text[i], i);
	}
	return 0;
}

static int url_parse_port(
	const char *text, size_t len, const char *what, struct url *url, struct err *err)
{
	uint32_t port = 0;

	if (len == 0)
		return 0;
	for (size_t i = 0; i < len; i++) {
		if (!str_is_digit(text[i]) || len > PORT_DIGITS_MAX)
			return url_refuse(what, "its port is not a number from 1 to 65535", err);
		port = port * 10 + (uint32_t)(text[i] - '0');
	}
	if (port < 1 || port > UINT16_MAX)
		return url_refuse(what, "its port is not a number from 1 to 65535", err);
	url->port = (uint16_t)port;
	return 0;
}

/* Of a name such an end says that it is meant as an address: "10.0.0.1." or "1.2.3.256" might be
 * one to somebody else. */
static bool ends_in_number(const char *host)
{
	size_t len = strlen(host);
	size_t start;

	if (len > 0 && host[len - 1] == '.')
		len--;
	start = len;
	while (start > 0 && host[start - 1] != '.')
		start--;
	if (strncmp(host + start, "0x", 2) == 0)
		return strspn(host + start + 2, "0123456789abcdef") >= len - start - 2;
	return start < len && strspn(host + start, "0123456789") >= len - start;
}

static bool url_is_name(const char *host)
{
	size_t len = strlen(host);
	enum address_zone zone;

	if (ends_in_number(host) && !address_zone_of_text(host, &zone))
		return false;

	return len > 0 && len <= URL_HOST_MAX && host[0] != '.' && host[0] != '-' &&
	       !strstr(host, "..") &&
	       strspn(host, "abcdefghijklmnopqrstuvwxyz0123456789-._") == len;
}

/* The address in brackets at text; *ret_len: with them. */
static int parse_ip6(const char *text, size_t len, const char *what, struct url *url,
	size_t *ret_len, struct err *err)
{
	const char *end = memchr(text, ']', len);
	struct in6_addr ip;

	if (!end)
		return url_refuse(what, "its host has [ without ]", err);
	url->host = str_lower(text + 1, (size_t)(end - text) - 1);
	if (inet_pton(AF_INET6, url->host, &ip) != 1)
		return url_refuse(what, "its host in brackets is not an IPv6 address", err);
	*ret_len = (size_t)(end + 1 - text);
	return 0;
}

static int parse_authority(
	const char *text, size_t len, const char *what, struct url *url, struct err *err)
{
	const char *colon = memchr(text, ':', len);
	size_t host_len = colon ? (size_t)(colon - text) : len;
	int r = 0;

	url->port = default_port(url->tls);
	if (memchr(text, '@', len))
		return url_refuse(what, "it holds a user name", err);
	if (len > 0 && text[0] == '[')
		r = parse_ip6(text, len, what, url, &host_len, err);
	else
		url->host = str_lower(text, host_len);
	if (r < 0)
		return r;
	if (!*url->host)
		return url_refuse(what, "it has no host", err);
	if (text[0] != '[' && !url_is_name(url->host))
		return url_refuse(what, "its host is not a valid name or address", err);
	if (host_len == len)
		return 0;
	if (text[host_len] != ':')
		return url_refuse(what, "behind its host stands something else than a port", err);
	return url_parse_port(text + host_len + 1, len - host_len - 1, what, url, err);
}

static int url_take(struct url *url, const char *what, struct url *ret, struct err *err)
{
	AUTO_FREE char *text = url_text(url);

	if (strlen(text) > URL_MAX)
		return err_set(err, E_HTTP_URL, "%s is longer than %d bytes", what, URL_MAX);
	*ret = *url;
	*url = (struct url){0};
	return 0;
}

static size_t scheme_len(const char *text)
{
	static const char rest[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-.";
	size_t len = strspn(text, rest);

	return len > 0 && text[len] == ':' && !strchr("0123456789+-.", text[0]) ? len : 0;
}

static int parse_scheme(
	const char *text, const char *what, bool *ret_tls, size_t *ret_len, struct err *err)
{
	size_t len = scheme_len(text);

	*ret_tls = len == 5;
	*ret_len = len + strlen("://");
	if (len == 0)
		return url_refuse(what, "it does not begin with http:// or https://", err);
	if (strncasecmp(text, *ret_tls ? "https" : "http", len < 4 ? 4 : len) != 0)
		return url_refuse(what, "its scheme is neither http nor https", err);
	if (strncmp(text + len, "://", 3) != 0)
		return url_refuse(what, "it has no host", err);
	return 0;
}

/* From the host on. */
static int parse_rest(
	bool tls, const char *text, const char *what, struct url *ret, struct err *err)
{
	AUTO_URL struct url url = {.tls = tls};
	size_t len = strcspn(text, "/?#");
	size_t path_len = strcspn(text + len, "#");
	int r = parse_authority(text, len, what, &url, err);

	if (r < 0)
		return r;
	url.path = mem_printf("%s%.*s", text[len] == '/' ? "" : "/", (int)path_len, text + len);
	return url_take(&url, what, ret, err);
}

int url_parse(const char *text, const char *what, struct url *ret, struct err *err)
{
	bool tls = false;
	size_t len = 0;
	int r = check_text(text, what, err);

	if (r == 0)
		r = parse_scheme(text, what, &tls, &len, err);
	return r < 0 ? r : parse_rest(tls, text + len, what, ret, err);
}

int url_make(bool tls, const char *host, const char *path, struct url *ret, struct err *err)
{
	AUTO_URL struct url url = {.tls = tls};
	int r = check_text(host, "the host", err);

	if (r == 0)
		r = check_text(path, "the path", err);
	if (r == 0)
		r = parse_authority(host, strlen(host), "the host", &url, err);
	if (r < 0)
		return r;
	if (*path != '/' || strchr(path, '#'))
		return url_refuse("the path", "it does not begin with / or holds #", err);
	url.path = mem_strdup(path);
	return url_take(&url, "the path", ret, err);
}

/* RFC 3986, section 5.2.4, of a path that begins with a slash and has no query. */
static void remove_dots(const char *path, size_t len, struct buf *out)
{
	const char *end = path + len;

	while (path < end) {
		const char *slash = memchr(path + 1, '/', (size_t)(end - path) - 1);
		const char *next = slash ? slash : end;
		size_t n = (size_t)(next - path);
		bool up = n == 3 && memcmp(path, "/..", 3) == 0;

		while (up && out->len > 0 && out->data[out->len - 1] != '/')
			buf_truncate(out, out->len - 1);
		if (up && out->len > 0)
			buf_truncate(out, out->len - 1);
		if (!up && !(n == 2 && path[1] == '.'))
			buf_add(out, path, n);
		else if (next == end)
			buf_addc(out, '/');
		path = next;
	}
}

static int resolve_path(const struct url *base, const char *path, const char *what, struct url *ret,
	struct err *err)
{
	AUTO_URL struct url url = {.tls = base->tls, .port = base->port};
	AUTO_BUF struct buf out;

	BUG_ON(!path);
	size_t len = strcspn(path, "?");
	buf_init(&out, strlen(path) + 1);
	remove_dots(path, len, &out);
	buf_adds(&out, path + len);
	url.host = mem_strdup(base->host);
	url.path = buf_take(&out);
	return url_take(&url, what, ret, err);
}

/* Merge paths (section 5.2.3), including the parts of base for a text without path (5.2.2). */
static char *url_merge(const char *base, const char *text)
{
	size_t base_path = strcspn(base, "?");

	if (*text == '/')
		return mem_strdup(text);
	if (!*text)
		return mem_strdup(base);
	if (*text != '?') {
		while (base[base_path - 1] != '/')
			base_path--;
	}
	return mem_printf("%.*s%s", (int)base_path, base, text);
}

int url_resolve(const struct url *base, const char *text, const char *what, struct url *ret,
	struct err *err)
{
	AUTO_URL struct url absolute = {0};
	AUTO_FREE char *reference = NULL;
	AUTO_FREE char *path = NULL;
	int r = check_text(text, what, err);

	if (r < 0)
		return r;
	reference = mem_strndup(text, strcspn(text, "#"));
	if (scheme_len(reference) > 0)
		r = url_parse(reference, what, &absolute, err);
	else if (str_starts(reference, "//"))
		r = parse_rest(base->tls, reference + 2, what, &absolute, err);
	else
		path = url_merge(base->path, reference);
	if (r < 0)
		return r;
	return path ? resolve_path(base, path, what, ret, err)
		    : resolve_path(&absolute, absolute.path, what, ret, err);
}

void url_done(struct url *url)
{
	if (!url)
		return;
	free(url->host);
	free(url->path);
	*url = (struct url){0};
}

void url_copy(const struct url *from, struct url *ret)
{
	*ret = (struct url){
		.tls = from->tls,
		.host = mem_strdup(from->host),
		.port = from->port,
		.path = mem_strdup(from->path),
	};
}

bool url_same_origin(const struct url *a, const struct url *b)
{
	return a->tls == b->tls && a->port == b->port && str_eq(a->host, b->host);
}

bool url_is_loopback(const struct url *url)
{
	enum address_zone zone;

	if (address_zone_of_text(url->host, &zone))
		return zone == ADDRESS_LOOPBACK;
	return str_eq(url->host, "localhost") || str_ends(url->host, ".localhost");
}

char *url_authority(const struct url *url)
{
	bool ip6 = strchr(url->host, ':') != NULL;
	const char *open = ip6 ? "[" : "";
	const char *close = ip6 ? "]" : "";

	if (url->port == default_port(url->tls))
		return mem_printf("%s%s%s", open, url->host, close);
	return mem_printf("%s%s%s:%u", open, url->host, close, url->port);
}

char *url_text(const struct url *url)
{
	AUTO_FREE char *authority = url_authority(url);

	return mem_printf("%s://%s%s", url->tls ? "https" : "http", authority, url->path);
}

void url_add_escaped(struct buf *out, const char *text, size_t len, const char *more)
{
	for (size_t i = 0; i < len; i++) {
		if (strchr(unreserved, text[i]) || strchr(more, text[i]))
			buf_addc(out, text[i]);
		else
			buf_addf(out, "%%%02X", (unsigned char)text[i]);
	}
}

char *url_shown(const struct url *url)
{
	AUTO_FREE char *authority = url_authority(url);
	size_t len = strcspn(url->path, "?");
	AUTO_BUF struct buf out = buf_with(SIZE_MAX / 2);

	buf_addf(&out, "%s://%s", url->tls ? "https" : "http", authority);
	url_add_escaped(&out, url->path, len, "/!$&'()*+,;=:@%");
	buf_adds(&out, url->path[len] ? "?…" : "");
	return buf_take(&out);
}

char *url_add_param(const char *path, const char *key, const char *value)
{
	AUTO_BUF struct buf out = buf_with(SIZE_MAX / 2);
	size_t len = strlen(path);
	const char *join = !strchr(path, '?') ? "?" : strchr("?&", path[len - 1]) ? "" : "&";

	buf_addf(&out, "%s%s%s=", path, join, key);
	url_add_escaped(&out, value, strlen(value), "");
	return buf_take(&out);
}
