/* SPDX-License-Identifier: Apache-2.0 */
#include "net/http/proxy.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/os/env.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/stream/address.h"
#include "net/stream/field.h"

enum { ADDRESS_BITS = 8 * ADDRESS_SIZE };

static const char separators[] = ", \t";

static const char *value(const char *const *env, const char *name, const char *upper)
{
	const char *text = env_get(env, name);

	if (str_empty(text) && upper)
		text = env_get(env, upper);
	return str_empty(text) ? NULL : text;
}

void proxy_env_read(const char *const *env, struct proxy_env *ret)
{
	*ret = (struct proxy_env){
		.https_proxy = value(env, "https_proxy", "HTTPS_PROXY"),
		.http_proxy = value(env, "http_proxy", NULL),
		.all_proxy = value(env, "all_proxy", "ALL_PROXY"),
		.no_proxy = value(env, "no_proxy", "NO_PROXY"),
	};
}

/* A URL's host and port, with which entries of NO_PROXY are compared. */
struct target {
	char *host; /* without a dot at its end */
	uint64_t port;
	bool is_address;
	uint8_t address[ADDRESS_SIZE];
};

/* ADDRESS/BITS, slash being where it says so. */
static bool is_in_block(const char *entry, const char *slash, const struct target *target)
{
	AUTO_FREE char *text = mem_strndup(entry, (size_t)(slash - entry));
	uint8_t block[ADDRESS_SIZE];
	uint64_t bits;

	if (!target->is_address || !address_of_text(text, block) ||
		!field_number(slash + 1, &bits) || bits > ADDRESS_BITS)
		return false;
	if (!strchr(text, ':'))
		bits += 8 * ADDRESS_IP4_AT;
	return bits <= ADDRESS_BITS && address_in_block(target->address, block, (int)bits);
}

/* host is the same or below name. */
static bool http_proxy_is_below(const char *host, const char *name)
{
	size_t host_len = strlen(host), len = strlen(name);

	if (len == 0 || len > host_len || strcmp(host + host_len - len, name) != 0)
		return false;
	return len == host_len || host[host_len - len - 1] == '.';
}

static bool http_proxy_is_host(const char *name, const struct target *target)
{
	uint8_t address[ADDRESS_SIZE];
	bool is_address = address_of_text(name, address);

	if (is_address != target->is_address)
		return false;
	if (is_address)
		return memcmp(address, target->address, sizeof(address)) == 0;
	name += str_starts(name, "*.") ? 2 : *name == '.';
	return http_proxy_is_below(target->host, name);
}

static void drop_last_dot(char *name)
{
	size_t len = strlen(name);

	if (len > 0 && name[len - 1] == '.')
		name[len - 1] = '\0';
}

/* host, host:port, [address], [address]:port; address is an IPv6 one or as host. */
static bool is_host_port(char *entry, const struct target *target)
{
	uint8_t ignored[ADDRESS_SIZE];
	char *close = *entry == '[' ? strchr(entry, ']') : NULL;
	char *colon = strchr(close ? close : entry, ':');
	uint64_t port = target->port;

	if (address_of_text(entry, ignored))
		return http_proxy_is_host(entry, target);
	if (colon && !field_number(colon + 1, &port))
		return false;
	if (colon)
		*colon = '\0';
	if (close && close[1])
		return false;
	if (close)
		*close = '\0';
	drop_last_dot(entry);
	return port == target->port && http_proxy_is_host(close ? entry + 1 : entry, target);
}

static bool http_proxy_matches(char *entry, const struct target *target)
{
	const char *slash = strchr(entry, '/');

	if (str_eq(entry, "*"))
		return true;
	return slash ? is_in_block(entry, slash, target) : is_host_port(entry, target);
}

static bool is_excluded(const char *no_proxy, const struct url *url)
{
	AUTO_FREE char *host = mem_strdup(url->host);
	struct target target = {.host = host, .port = url->port};
	size_t len;

	drop_last_dot(host);
	target.is_address = address_of_text(host, target.address);
	for (const char *at = no_proxy; at && *at; at += len) {
		at += strspn(at, separators);
		len = strcspn(at, separators);
		AUTO_FREE char *entry = str_lower(at, len);
		if (http_proxy_matches(entry, &target))
			return true;
	}
	return false;
}

static const char *http_proxy_choose(
	const struct proxy_env *env, const struct url *url, const char **ret_variable)
{
	const char *of_scheme = url->tls ? env->https_proxy : env->http_proxy;

	if (url_is_loopback(url) || is_excluded(env->no_proxy, url))
		return NULL;
	if (!str_empty(of_scheme)) {
		*ret_variable = url->tls ? "HTTPS_PROXY" : "http_proxy";
		return of_scheme;
	}
	*ret_variable = "ALL_PROXY";
	return str_empty(env->all_proxy) ? NULL : env->all_proxy;
}

static const struct scheme {
	const char *name;
	uint16_t port;
} schemes[] = {
	{"http", 80},
	{"https", 443},
	{"socks4", 1080},
	{"socks4a", 1080},
	{"socks5", 1080},
	{"socks5h", 1080},
};

/* Of *text, which goes on behind it; NULL for another one. */
static const struct scheme *take_scheme(const char **text)
{
	const char *colon = strstr(*text, "://");

	if (!colon)
		return &schemes[0];
	for (size_t i = 0; i < ARRAY_LEN(schemes); i++) {
		size_t len = strlen(schemes[i].name);

		if ((size_t)(colon - *text) != len || strncasecmp(*text, schemes[i].name, len) != 0)
			continue;
		*text = colon + strlen("://");
		return &schemes[i];
	}
	return NULL;
}

/* Passwords are often written as they are; what would end the user information is escaped. */
static void add_user(struct buf *out, const char *user, size_t len)
{
	for (size_t i = 0; i < len; i++) {
		if (strchr("@?#[]<>\"\\^`{|}", user[i]))
			buf_addf(out, "%%%02X", (unsigned char)user[i]);
		else
			buf_addc(out, user[i]);
	}
	buf_addc(out, '@');
}

static bool has_port(const char *host)
{
	const char *colon = strrchr(host, ':');

	return colon && colon[1] && !strchr(colon, ']');
}

/* Of text, which begins with it: its length without the @ that ends it, or 0. */
static size_t user_len(const char *text, size_t len)
{
	while (len > 0 && text[len - 1] != '@')
		len--;
	return len > 0 ? len - 1 : 0;
}

static bool http_proxy_is_printable(const char *text)
{
	while (*text > ' ' && *text <= '~')
		text++;
	return !*text;
}

/* text with its scheme and port, and with its user information if with_user; NULL if it is none. */
static char *normalize(const char *text, bool with_user)
{
	const struct scheme *scheme = take_scheme(&text);
	size_t len = strcspn(text, "/");
	size_t user = user_len(text, len);
	size_t start = user + (text[user] == '@');
	AUTO_FREE char *host = mem_strndup(text + start, len - start);
	AUTO_URL struct url url = {0};
	AUTO_BUF struct buf out = buf_with(SIZE_MAX / 2);

	if (!scheme || (text[len] && text[len + 1]) || !http_proxy_is_printable(text) ||
		url_make(false, host, "/", &url, NULL) < 0)
		return NULL;
	buf_addf(&out, "%s://", scheme->name);
	if (with_user && user > 0)
		add_user(&out, text, user);
	buf_addf(&out, strchr(url.host, ':') ? "[%s]:%u" : "%s:%u", url.host,
		has_port(host) ? url.port : scheme->port);
	return buf_take(&out);
}

static int http_proxy_find(const struct proxy_env *env, const struct url *url, bool with_user,
	char **ret, const char **ret_variable, struct err *err)
{
	const char *variable = NULL;
	const char *text = http_proxy_choose(env, url, &variable);
	char *proxy = text ? normalize(text, with_user) : NULL;

	if (text && !proxy) {
		err_set(err, E_CONFIG, "%s is not a valid proxy URL", variable);
		err_hint(err,
			"%s=http://proxy.example.com:3128   # or https, socks4, socks4a, socks5, socks5h",
			variable);
		return -ERR_CONFIG;
	}
	*ret = proxy;
	*ret_variable = text ? variable : NULL;
	return 0;
}

int proxy_parse(const char *text, const char *what, char **ret, struct err *err)
{
	char *proxy = normalize(text, true);

	if (!proxy) {
		err_set(err, E_CONFIG, "%s is not a valid proxy URL", what);
		return err_hint(err,
			"http://proxy.example.com:3128   # or https, socks4, socks4a, socks5, socks5h");
	}
	*ret = proxy;
	return 0;
}

char *proxy_without_user(const char *proxy)
{
	return normalize(proxy, false);
}

int proxy_for(const struct proxy_env *env, const struct url *url, char **ret, struct err *err)
{
	const char *ignored;

	return http_proxy_find(env, url, true, ret, &ignored, err);
}

int proxy_shown(const struct proxy_env *env, const struct url *url, char **ret,
	const char **ret_variable, struct err *err)
{
	return http_proxy_find(env, url, false, ret, ret_variable, err);
}
