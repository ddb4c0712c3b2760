/* SPDX-License-Identifier: Apache-2.0 */
#include "app/tensorboard/tensorboard_front.h"

#include <stdlib.h>
#include <string.h>

#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/vec.h"
#include "net/httpd/front.h"

enum { PORT = 6006, FOUND = 302, NOT_FOUND = 404, NOT_ALLOWED = 405 };

struct tensorboard_front {
	struct front *front;
	struct tensorboard_link link;
	char secret[TENSORBOARD_SECRET_SIZE], once[TENSORBOARD_SECRET_SIZE];
	bool strip, was_opened;
	char *url, *open_url;
};

static void redirect(struct front_exchange *exchange, const char *secret, const char *target)
{
	AUTO_STRV struct strv headers = {0};

	strv_addf(&headers, "Location: %s%s", secret, target);
	strv_add(&headers, "Cache-Control: no-store");
	front_answer(exchange, FOUND, &headers, "", 0);
}

/* TensorBoard's pages ask for their fonts, and some plugins for more, as if there were no prefix:
 * then the page itself is below it. */
static bool is_asked_by_page(
	const struct tensorboard_front *front, const struct front_request *request)
{
	static const char name[] = "referer: http://";

	if (!str_eq(request->method, "GET") || request->target[0] != '/')
		return false;
	for (size_t i = 0; i < request->headers->n; i++) {
		const char *header = request->headers->v[i];
		const char *path =
			str_starts(header, name) ? strchr(header + sizeof(name) - 1, '/') : NULL;

		if (path && tensorboard_secret_fits(front->secret, path))
			return true;
	}
	return false;
}

static void why(void *ctx, char **ret_what, char **ret_hint)
{
	(void)ctx;
	*ret_what = mem_strdup("TensorBoard does not answer");
	*ret_hint = mem_strdup("The terminal of dlrun tensorboard says why.");
}

static void on_request(
	void *ctx, struct front_exchange *exchange, const struct front_request *request)
{
	struct tensorboard_front *front = ctx;
	const struct front_route route = {.key = "tensorboard",
		.connect = front->link.connect,
		.why = why,
		.ctx = front->link.ctx,
		.strip = front->strip ? front->secret : NULL};

	if (request->is_connect) {
		front_refuse(exchange, NOT_ALLOWED, "This is not a proxy", NULL);
	} else if (!front->was_opened && tensorboard_secret_fits(front->once, request->target)) {
		front->was_opened = true;
		redirect(exchange, front->secret, "/");
	} else if (!tensorboard_secret_fits(front->secret, request->target)) {
		if (is_asked_by_page(front, request))
			redirect(exchange, front->secret, request->target);
		else
			front_refuse(exchange, NOT_FOUND, "There is nothing at this address",
				"Open the whole address that dlrun tensorboard has printed.");
	} else if (str_eq(request->target, front->secret)) {
		/* Where TensorBoard does not know the path it would lead elsewhere. */
		redirect(exchange, front->secret, "/");
	} else {
		front_carry(exchange, &route);
	}
}

static void on_notice(void *ctx, const char *text)
{
	(void)ctx;
	log_note("%s", text);
}

int tensorboard_front_open(const struct tensorboard_front_options *options,
	struct tensorboard_front **ret, struct err *err)
{
	AUTO(tensorboard_front_free_auto)
	struct tensorboard_front *front = mem_alloc(1, sizeof(*front));
	const struct front_options listen = {.loop = options->loop,
		.port = options->port ? options->port : PORT,
		.is_exact = options->port != 0,
		.request = on_request,
		.notice = on_notice,
		.ctx = front,
		.has_secret = true};

	front->link = *options->link;
	front->strip = options->strip;
	memcpy(front->secret, options->secret, sizeof(front->secret));
	tensorboard_secret_make(front->once);
	int r = front_open(&listen, &front->front, err);
	if (r < 0)
		return r;
	front->url =
		mem_printf("http://127.0.0.1:%u%s/", tensorboard_front_port(front), front->secret);
	front->open_url =
		mem_printf("http://127.0.0.1:%u%s/", tensorboard_front_port(front), front->once);
	*ret = TAKE(front);
	return 0;
}

void tensorboard_front_free(struct tensorboard_front *front)
{
	if (!front)
		return;
	front_free(front->front);
	free(front->url);
	free(front->open_url);
	free(front);
}

const char *tensorboard_front_url(const struct tensorboard_front *front)
{
	return front->url;
}

const char *tensorboard_front_open_url(const struct tensorboard_front *front)
{
	return front->open_url;
}

uint16_t tensorboard_front_port(const struct tensorboard_front *front)
{
	return front_port(front->front);
}
