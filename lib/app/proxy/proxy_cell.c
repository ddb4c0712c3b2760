/* SPDX-License-Identifier: Apache-2.0 */
#include "app/proxy/proxy_cell.h"

#include <string.h>

#include "app/proxy/html.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/ports.h"
#include "core/record/columns.h"

enum { CELL_SHOWN = 120, CELL_MAX = 256 << 10, CELL_URL_MAX = 512 };

char *cell_column(const struct run *run, const char *column, int64_t now_ms)
{
	AUTO_COLUMNS struct columns columns = {0};
	AUTO_COLUMN_VALUE struct column_value value = {0};
	char age[32];

	if (columns_parse(column, &columns, NULL) < 0)
		return mem_strdup("");
	column_get(&columns.v[0], run, now_ms, &value);
	if (value.kind == COLUMN_AGE)
		return mem_strdup(duration_text((int64_t)value.number, age));
	return mem_strdup(value.text ? value.text : "");
}

char *cell_scalar(const struct json *json)
{
	AUTO_BUF struct buf text = buf_with(CELL_MAX);

	if (json)
		columns_add_scalar(json, &text);
	return buf_take(&text);
}

void cell_short(struct buf *out, const char *text)
{
	size_t n = 0;

	/* Between characters, so that no half of one is shown. */
	while (n < CELL_SHOWN && text[n]) {
		size_t len = str_utf8_len(text + n, strlen(text + n));
		n += len ? len : 1;
	}
	html_text(out, text, n);
	if (text[n])
		buf_adds(out, "…");
}

void cell_state(struct buf *out, const struct run *run, int64_t now_ms)
{
	AUTO_FREE char *state = cell_column(run, "state", now_ms);

	html_addf(out, "<span class=\"%s\">%s</span>", run_state_name(run_state(run)), state);
}

static void cell_name_of(
	const struct run *run, enum proxy_kind kind, uint16_t port, struct proxy_name *ret)
{
	*ret = (struct proxy_name){.kind = kind, .port = port};
	memcpy(ret->run, run_id(run), strnlen(run_id(run), sizeof(ret->run) - 1));
}

char *cell_url(const struct run *run, enum proxy_kind kind, uint16_t port, const char *target,
	const struct proxy_here *here)
{
	struct proxy_name name;
	AUTO_BUF struct buf url = buf_with(CELL_URL_MAX + strlen(target));

	cell_name_of(run, kind, port, &name);
	proxy_url_add(&name, here, target, &url);
	return buf_take(&url);
}

char *cell_origin(const struct run *run, enum proxy_kind kind, const struct proxy_here *here)
{
	struct proxy_name name;
	AUTO_BUF struct buf origin = buf_with(CELL_URL_MAX);

	cell_name_of(run, kind, 0, &name);
	proxy_origin_add(&name, here, &origin);
	return buf_take(&origin);
}

void cell_ports(struct buf *out, const struct run *run, const struct proxy_here *here)
{
	struct ports ports;

	ports_from_json(json_get(run->doc, "ports"), &ports);
	for (size_t i = 0; i < ports.n; i++) {
		AUTO_FREE char *url = cell_url(run, PROXY_PORT, ports.v[i], "/", here);

		html_addf(out, "<a href=\"%s\">", url);
		buf_addf(out, "%u</a> ", ports.v[i]);
	}
}

void cell_form(struct buf *out, const char *host, const struct proxy_here *here)
{
	html_addf(out, "<code>http://%s.localhost:", host);
	buf_addf(out, "%u/", here->port);
	proxy_query_add(here, out);
	buf_adds(out, "</code>");
}
