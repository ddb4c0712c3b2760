/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/util/str.h"
#include "net/httpd/front_head.h"
#include "net/stream/field.h"

enum { HTTP_PORT = 80, PORT_DIGITS_MAX = 5 };

/*
 * Names
 */

static bool parse_port(const char *text, uint16_t *ret)
{
	uint64_t port;

	if (strlen(text) > PORT_DIGITS_MAX || !field_number(text, &port) || port == 0 ||
		port > UINT16_MAX)
		return false;
	*ret = (uint16_t)port;
	return true;
}

static bool is_name(const char *name)
{
	return *name && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") == strlen(name) &&
	       !strstr(name, "..") && name[0] != '.';
}

static bool is_of_this_machine(const char *name)
{
	return str_eq(name, "127.0.0.1") || str_eq(name, "localhost") ||
	       (is_name(name) && str_ends(name, ".localhost"));
}

bool front_host_split(const char *value, char ret[static FRONT_HOST_MAX], uint16_t *ret_port)
{
	bool is_ip6 = str_starts(value, "[::1]");
	size_t len = is_ip6 ? strlen("[::1]") : strcspn(value, ":");
	const char *rest = value + len;
	uint16_t port = HTTP_PORT;

	if (len >= FRONT_HOST_MAX || (*rest && (*rest != ':' || !parse_port(rest + 1, &port))))
		return false;
	AUTO_FREE char *name = is_ip6 ? mem_strdup("::1") : str_lower(value, len);
	if (!is_ip6 && !is_of_this_machine(name))
		return false;
	memcpy(ret, name, strlen(name) + 1);
	*ret_port = port;
	return true;
}

bool front_host_is_here(const char *value, uint16_t port, char ret[static FRONT_HOST_MAX])
{
	char name[FRONT_HOST_MAX];
	uint16_t named;

	if (!front_host_split(value, name, &named) || named != port)
		return false;
	memcpy(ret, name, sizeof(name));
	return true;
}

/*
 * Pages
 */

/* Scheme, name and port of a URL are those of host; only_port: the name may be another one of this
 * machine. */
static bool is_of(const char *url, const char *host, bool only_port)
{
	static const char scheme[] = "http://";
	char name[FRONT_HOST_MAX], own_name[FRONT_HOST_MAX];
	uint16_t port, own_port;

	if (!str_starts(url, scheme))
		return false;
	const char *authority = url + strlen(scheme);
	AUTO_FREE char *from = mem_strndup(authority, strcspn(authority, "/?#"));
	if (!front_host_split(from, name, &port) || !front_host_split(host, own_name, &own_port))
		return false;
	return port == own_port && (only_port || str_eq(name, own_name));
}

static bool is_reading(const struct front_head *head)
{
	return !head->is_upgrade && (str_eq(head->method, "GET") || str_eq(head->method, "HEAD"));
}

/* A link from one name of this machine to another one: to browsers these are different sites. No
 * frame: what is in it could be covered. */
static bool is_link_from_here(const struct front_head *head, const char *host)
{
	const char *referer = field_find(&head->headers, "referer");

	return is_reading(head) && referer && is_of(referer, host, true) &&
	       str_eq(field_find(&head->headers, "sec-fetch-mode"), "navigate") &&
	       str_eq(field_find(&head->headers, "sec-fetch-dest"), "document");
}

static bool is_from_elsewhere(const struct front_head *head, const char *host)
{
	vec_foreach (char *, header, &head->headers)
		if (str_eq(*header, "sec-fetch-site: cross-site"))
			return !is_link_from_here(head, host);
	return false;
}

bool front_origin_is_right(const struct front_head *head, bool any_origin)
{
	const char *host = field_find(&head->headers, "host");
	bool may_be_any = any_origin && is_reading(head);
	static const char name[] = "origin: ";

	if (is_from_elsewhere(head, host ? host : ""))
		return false;
	vec_foreach (char *, header, &head->headers) {
		if (str_starts(*header, name) && !may_be_any &&
			!is_of(*header + strlen(name), host ? host : "", false))
			return false;
	}
	return true;
}
