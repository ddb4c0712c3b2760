/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/httpd/front_head.h"
#include "net/stream/field.h"

/* Fields whose value is a URL or an origin. */
static const char *const urls[] = {"origin", "referer", "location", "access-control-allow-origin"};
/* Fields that tell the program the original name. */
static const char *const forwarded[] = {"x-forwarded-host", "x-forwarded-proto"};

/* The value behind "name: ", if the field is called so. */
static const char *value_of(const char *header, const char *name)
{
	size_t len = strlen(name);

	return strncmp(header, name, len) == 0 && header[len] == ':' ? header + len + 2 : NULL;
}

/* "http://from/a" is "http://to/a" now; NULL: it is another one. */
static char *renamed_url(const char *name, const char *value, const char *from, const char *to)
{
	static const char scheme[] = "http://";
	size_t len = strlen(from);

	if (!str_starts(value, scheme))
		return NULL;
	const char *host = value + strlen(scheme), *rest = host + len;
	if (strncasecmp(host, from, len) != 0 || (*rest && !strchr("/?", *rest)))
		return NULL;
	return mem_printf("%s: %s%s%s", name, scheme, to, rest);
}

static char *renamed(const char *header, const char *from, const char *to)
{
	const char *host = value_of(header, "host");

	if (host)
		return mem_printf("host: %s", to);
	for (size_t i = 0; i < ARRAY_LEN(urls); i++) {
		const char *value = value_of(header, urls[i]);

		if (value)
			return renamed_url(urls[i], value, from, to);
	}
	return NULL;
}

static bool is_forwarded(const char *header)
{
	for (size_t i = 0; i < ARRAY_LEN(forwarded); i++)
		if (value_of(header, forwarded[i]))
			return true;
	return false;
}

void front_head_rename(struct front_head *head, const char *from, const char *to)
{
	bool is_request = head->method != NULL;
	AUTO_STRV struct strv headers = {0};

	vec_foreach (char *, header, &head->headers) {
		AUTO_FREE char *other = renamed(*header, from, to);

		if (!is_request || !is_forwarded(*header))
			strv_add(&headers, other ? other : *header);
	}
	if (is_request) {
		strv_addf(&headers, "x-forwarded-host: %s", from);
		strv_add(&headers, "x-forwarded-proto: http");
	}
	strv_done(&head->headers);
	head->headers = headers;
	headers = (struct strv){0};
}
