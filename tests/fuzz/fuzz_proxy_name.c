/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <string.h>

#include "app/proxy/html.h"
#include "app/proxy/proxy_name.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What was understood is understood again as it is written. */
static void check_name(const char *text)
{
	struct proxy_name name = {0}, again = {0};
	AUTO_BUF struct buf out = {0};

	if (proxy_name_parse(text, &name, NULL) < 0)
		return;
	buf_init(&out, 1000);
	proxy_name_add(&name, &out);
	BUG_ON(proxy_name_parse(out.data, &again, NULL) < 0);
	BUG_ON(name.kind != again.kind || name.rank != again.rank || name.port != again.port);
	BUG_ON(!str_eq(name.run, again.run) || !str_eq(name.role, again.role));
	BUG_ON((name.kind == PROXY_PORT) != (name.port != 0));
	BUG_ON((name.kind == PROXY_INDEX) != !*name.run);
}

/* Nothing leads out of the outputs, and a path comes back as it was. */
static void check_path(const char *text)
{
	AUTO_FREE char *path = proxy_path_decode(text);
	AUTO_BUF struct buf url = {0};

	if (!path)
		return;
	AUTO_FREE char *framed = mem_printf("/%s/", path);
	BUG_ON(strstr(framed, "/../") || strstr(framed, "/./") || strstr(framed, "//"));
	buf_init(&url, SIZE_MAX / 2);
	buf_addc(&url, '/');
	html_path(&url, path);
	BUG_ON(url.data[strcspn(url.data, "\"'<>& ?#")]);
	AUTO_FREE char *again = proxy_path_decode(url.data);
	BUG_ON(!str_eq(path, again));
}

static void check_range(const char *text, uint64_t size)
{
	struct proxy_range range;
	int status = proxy_range_parse(text, size, &range);

	BUG_ON(status != 200 && status != 206 && status != 416);
	BUG_ON(status == 206 && (range.n == 0 || range.first >= size));
	BUG_ON(range.n > size - range.first);
	BUG_ON(status == 200 && range.n != size);
}

static void check_html(const char *text, size_t size)
{
	AUTO_BUF struct buf out = {0};

	buf_init(&out, SIZE_MAX / 2);
	html_text(&out, text, size);
	html_log(&out, text, size);
	BUG_ON(out.data[strcspn(out.data, "<>\"'")]);
	BUG_ON(!str_is_utf8(out.data, out.len));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_FREE char *text = mem_strndup((const char *)data, size);

	check_name(text);
	check_path(text);
	check_range(text, size);
	check_range(text, UINT64_MAX);
	check_html((const char *)data, size);
	return 0;
}
