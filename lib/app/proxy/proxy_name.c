/* SPDX-License-Identifier: Apache-2.0 */
#include "app/proxy/proxy_name.h"

#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/httpd/front_token.h"
#include "net/stream/url.h"

enum { PORT_MAX = 65535, LABELS_MAX = 4, HOST_MAX = 253 };

#define RUN_LETTERS "abcdefghijklmnopqrstuvwxyz0123456789-"

/* The parts of a name, the last one ("localhost") first. */
struct labels {
	char text[HOST_MAX + 1];
	const char *v[LABELS_MAX];
	size_t n;
};

static bool split(const char *host, struct labels *ret)
{
	size_t len = strlen(host);
	char *dot;

	if (len > HOST_MAX)
		return false;
	memcpy(ret->text, host, len + 1);
	ret->n = 0;
	while ((dot = strrchr(ret->text, '.')) && ret->n < LABELS_MAX - 1) {
		ret->v[ret->n++] = dot + 1;
		*dot = '\0';
	}
	ret->v[ret->n++] = ret->text;
	return true;
}

static bool parse_number(const char *text, int64_t min, int64_t max, int64_t *ret)
{
	return str_is_digit(*text) && (text[0] != '0' || !text[1]) &&
	       str_to_int(text, min, max, "number", ret, NULL) == 0;
}

static bool parse_run(const char *label, struct proxy_name *ret)
{
	size_t len = strlen(label);

	if (len == 0 || len >= RUN_ID_SIZE || label[strspn(label, RUN_LETTERS)])
		return false;
	memcpy(ret->run, label, len + 1);
	return true;
}

static bool parse_rank(const char *label, struct proxy_name *ret)
{
	int64_t rank;

	if (label[0] != 'r' || !parse_number(label + 1, 0, PROXY_RANK_MAX, &rank))
		return false;
	ret->rank = (int)rank;
	return true;
}

static bool parse_port(const char *label, struct proxy_name *ret)
{
	int64_t port;

	if (!parse_number(label, 1, PORT_MAX, &port))
		return false;
	ret->kind = PROXY_PORT;
	ret->port = (uint16_t)port;
	return true;
}

/* Parse the labels in front of RUN.localhost: nothing, rN, PORT, PORT.rN, files. */
static bool parse_front(const struct labels *labels, struct proxy_name *ret)
{
	if (labels->n == 2)
		return true;
	if (labels->n == 4)
		return parse_rank(labels->v[2], ret) && parse_port(labels->v[3], ret);
	if (str_eq(labels->v[2], "files"))
		ret->kind = PROXY_FILES;
	return ret->kind == PROXY_FILES || parse_rank(labels->v[2], ret) ||
	       parse_port(labels->v[2], ret);
}

static bool is_index(const char *host)
{
	return str_eq(host, "localhost") || str_eq(host, "127.0.0.1") || str_eq(host, "::1");
}

int proxy_name_parse(const char *host, struct proxy_name *ret, struct err *err)
{
	struct proxy_name name = {.kind = PROXY_INDEX};
	struct labels labels;

	if (is_index(host)) {
		*ret = name;
		return 0;
	}
	name.kind = PROXY_RUN;
	if (split(host, &labels) && labels.n >= 2 && str_eq(labels.v[0], "localhost") &&
		parse_run(labels.v[1], &name) && parse_front(&labels, &name)) {
		*ret = name;
		return 0;
	}
	AUTO_FREE char *shown = str_shown(host);
	err_set(err, E_USAGE, "'%s' is not a valid address of a run's port", shown);
	return err_hint(err, "http://6006.demo-3k2f9.localhost/ is port 6006 of demo-3k2f9, "
			     "6006.r1.demo-3k2f9.localhost that of its rank 1");
}

void proxy_name_add(const struct proxy_name *name, struct buf *out)
{
	if (name->kind == PROXY_FILES)
		buf_adds(out, "files.");
	if (name->kind == PROXY_PORT)
		buf_addf(out, "%u.", name->port);
	if (name->rank)
		buf_addf(out, "r%d.", name->rank);
	if (name->kind != PROXY_INDEX)
		buf_addf(out, "%s.", name->run);
	buf_adds(out, "localhost");
}

void proxy_origin_add(const struct proxy_name *name, const struct proxy_here *here, struct buf *out)
{
	buf_adds(out, "http://");
	proxy_name_add(name, out);
	buf_addf(out, ":%u", here->port);
}

void proxy_url_add(const struct proxy_name *name, const struct proxy_here *here, const char *target,
	struct buf *out)
{
	char token[FRONT_TOKEN_SIZE];
	AUTO_BUF struct buf host = {0};

	proxy_origin_add(name, here, out);
	if (!here->token) {
		buf_adds(out, target);
		return;
	}
	buf_init(&host, HOST_MAX);
	proxy_name_add(name, &host);
	front_token_of(here->token, host.data, token);
	AUTO_FREE char *whole = url_add_param(target, FRONT_TOKEN_PARAM, token);
	buf_adds(out, whole);
}

void proxy_query_add(const struct proxy_here *here, struct buf *out)
{
	if (here->token)
		buf_addf(out, "?%s=%s", FRONT_TOKEN_PARAM, here->token);
}
