/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/stream/address.h"
#include "net/stream/url.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_parts(const struct url *url)
{
	BUG_ON(!url->host || !*url->host || strlen(url->host) > URL_HOST_MAX);
	BUG_ON(strspn(url->host, "abcdefghijklmnopqrstuvwxyz0123456789-._:") != strlen(url->host));
	BUG_ON(url->port == 0 || !url->path || *url->path != '/' || strchr(url->path, '#'));
	for (const char *c = url->path; *c; c++)
		BUG_ON(*c <= ' ' || *c > '~' || *c == '\\');
}

/* What is written is read again as the same URL. */
static void check_text(const struct url *url)
{
	AUTO_FREE char *text = url_text(url);
	AUTO_FREE char *shown = url_shown(url);
	AUTO_URL struct url again = {0};

	BUG_ON(strlen(text) > URL_MAX || url_parse(text, "it", &again, NULL) < 0);
	BUG_ON(!url_same_origin(url, &again) || !str_eq(url->path, again.path));
	BUG_ON(!str_is_plain(shown));
}

/* After dot segments are removed there are none. */
static void check_dots(const struct url *url)
{
	AUTO_FREE char *path = mem_strndup(url->path, strcspn(url->path, "?"));

	BUG_ON(strstr(path, "/./") || strstr(path, "/../"));
	BUG_ON(str_ends(path, "/.") || str_ends(path, "/.."));
}

static void check_resolved(const char *base_text, const char *text)
{
	AUTO_URL struct url base = {0};
	AUTO_URL struct url url = {0};
	AUTO_ERR struct err err = {0};

	BUG_ON(url_parse(base_text, "it", &base, NULL) < 0);
	if (url_resolve(&base, text, "it", &url, &err) < 0) {
		BUG_ON(err.id != E_HTTP_URL || !err.message || !str_is_plain(err.message));
		return;
	}
	check_parts(&url);
	check_text(&url);
	check_dots(&url);
	/* Only a reference with an authority leads elsewhere. */
	BUG_ON(!url_same_origin(&base, &url) && !strstr(text, "//"));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_FREE char *text = mem_strndup((const char *)data, size);
	AUTO_URL struct url url = {0};
	AUTO_ERR struct err err = {0};
	enum address_zone zone;

	if (address_zone_of_text(text, &zone))
		BUG_ON(zone > ADDRESS_FORBIDDEN);
	check_resolved("https://r.example:5000/v2/a/b?c=d", text);
	check_resolved("http://[::1]/", text);
	if (url_parse(text, "it", &url, &err) < 0) {
		BUG_ON(err.id != E_HTTP_URL || !str_is_plain(err.message));
		return 0;
	}
	check_parts(&url);
	check_text(&url);
	(void)url_is_loopback(&url);
	return 0;
}
