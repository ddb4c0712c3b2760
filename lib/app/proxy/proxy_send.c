/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "app/proxy/proxy_cells.h"
#include "app/proxy/proxy_file.h"
#include "app/proxy/proxy_impl.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"

/* A window is read at once, so it is what may wait in memory for one who reads slowly; far away a
 * pod is started for each. */
enum {
	WINDOW = 4 << 20,
	FAR_WINDOW = 64 << 20,
	LIVE_FRESH_MS = 2000,
	ENDED_FRESH_MS = 60 * 1000,
	HINT_MAX = 512
};

/* State of sending one file, while it is looked for and read. */
struct send {
	struct left left;
	struct ask *ask;
	struct place *place;
	char *handle, *path;
	struct outputs_call *call;
	struct outputs_files found;
	struct outputs_file file; /* its path is not set */
	struct proxy_range range; /* what is left of it */
	int status;
	bool is_begun, has_room;
	uint64_t got; /* of this window */
};

static void send_free(struct left *left)
{
	struct send *send = (struct send *)left;

	outputs_cancel(send->call);
	outputs_files_done(&send->found);
	free(send->handle);
	free(send->path);
	free(send);
}

static void send_stop(void *work)
{
	struct send *send = work;

	leave_work(&send->left);
}

static char *etag_of(const struct send *send)
{
	return mem_printf("\"%llx-%llx\"", (unsigned long long)send->file.size,
		(unsigned long long)send->file.mtime_ns);
}

/* Keep the content of the file inert: as a page, and for other sites. */
static void add_headers(const struct send *send, uint64_t n, struct strv *headers)
{
	const struct proxy_type *type = proxy_type_of(send->path);
	AUTO_FREE char *page =
		cell_origin(place_run(send->place), PROXY_RUN, &send->ask->proxy->here);
	AUTO_FREE char *etag = etag_of(send);

	strv_addf(headers, "Content-Type: %s", type->mime);
	strv_add(headers, "X-Content-Type-Options: nosniff");
	strv_addf(headers,
		"Content-Security-Policy: sandbox; default-src 'none'; img-src 'self'; "
		"media-src 'self'; style-src 'unsafe-inline'; frame-ancestors %s",
		page);
	strv_add(headers, "Cross-Origin-Resource-Policy: same-site");
	strv_add(headers, "Referrer-Policy: no-referrer");
	strv_add(headers, "Cache-Control: no-cache");
	strv_add(headers, "Accept-Ranges: bytes");
	strv_addf(headers, "ETag: %s", etag);
	if (type->show == PROXY_SAVED)
		strv_add(headers, "Content-Disposition: attachment");
	if (send->status == 206)
		strv_addf(headers, "Content-Range: bytes %llu-%llu/%llu",
			(unsigned long long)send->range.first,
			(unsigned long long)(send->range.first + n - 1),
			(unsigned long long)send->file.size);
}

/*
 * Reading
 */

static void read_window(struct send *send);

static void end(struct send *send, bool cut)
{
	struct front_exchange *exchange = send->ask->exchange;

	front_on_gone(exchange, NULL, NULL);
	front_on_room(exchange, NULL, NULL);
	ask_free(send->ask);
	front_end(exchange, cut);
}

static void on_room(void *ctx)
{
	struct send *send = ctx;

	send->has_room = true;
	if (!send->call)
		read_window(send);
}

static void begin(struct send *send)
{
	AUTO_STRV struct strv headers = {0};

	add_headers(send, send->range.n, &headers);
	send->is_begun = send->has_room = true;
	front_begin(send->ask->exchange, send->status, &headers, (int64_t)send->range.n);
	front_on_room(send->ask->exchange, on_room, send);
}

static int on_data(void *ctx, const void *data, size_t len, struct err *err)
{
	struct send *send = ctx;

	if (send->left.is_left)
		return err_set(err, E_CANCELED, "nobody waits for it");
	if (!send->is_begun)
		begin(send);
	if (len > send->range.n)
		len = (size_t)send->range.n;
	send->got += len;
	send->range.first += len;
	send->range.n -= len;
	if (len && !front_write(send->ask->exchange, data, len))
		send->has_room = false;
	return 0;
}

static void on_read(void *ctx, int status, struct err *fault)
{
	struct send *send = ctx;

	send->call = NULL;
	if (send->left.is_left)
		return;
	if (status < 0 && !send->is_begun)
		ask_fail(send->ask, fault);
	else if (status < 0 || send->got == 0)
		end(send, true);
	else if (send->range.n == 0)
		end(send, false);
	else if (send->has_room)
		read_window(send);
}

static void read_window(struct send *send)
{
	uint64_t max = place_is_far(send->place) ? FAR_WINDOW : WINDOW;
	uint64_t n = send->range.n < max ? send->range.n : max;

	send->got = 0;
	send->call = outputs_read(carrier_target(send->place->carrier), send->handle, send->path,
		send->range.first, n, on_data, on_read, send);
}

/*
 * Finding
 */

static bool matches(const char *tags, const char *etag)
{
	return tags && (str_eq(tags, "*") || strstr(tags, etag));
}

static void answer_empty(struct send *send, int status)
{
	AUTO_STRV struct strv headers = {0};

	send->status = status;
	add_headers(send, 0, &headers);
	if (status == 416)
		strv_addf(&headers, "Content-Range: bytes */%llu",
			(unsigned long long)send->file.size);
	ask_answer(send->ask, status, &headers, "", 0);
}

static void answer_found(struct send *send)
{
	const struct ask *ask = send->ask;
	AUTO_FREE char *etag = etag_of(send);
	bool is_same = !ask->if_range || str_eq(ask->if_range, etag);

	if (matches(ask->if_none_match, etag)) {
		answer_empty(send, 304);
		return;
	}
	send->status =
		proxy_range_parse(is_same ? ask->range : NULL, send->file.size, &send->range);
	if (send->status == 416) {
		answer_empty(send, 416);
	} else if (ask->is_head || send->range.n == 0) {
		begin(send);
		end(send, false);
	} else {
		read_window(send);
	}
}

static bool find(struct send *send, const struct outputs_files *files)
{
	vec_foreach (struct outputs_file, file, files) {
		if (!str_eq(file->path, send->path))
			continue;
		send->file = *file;
		send->file.path = NULL;
		return true;
	}
	return false;
}

static void on_list(void *ctx, int status, struct err *fault)
{
	struct send *send = ctx;

	send->call = NULL;
	if (send->left.is_left)
		return;
	if (find(send, &send->found)) {
		answer_found(send);
	} else if (status < 0) {
		ask_fail(send->ask, fault);
	} else {
		const struct proxy_name index = {.kind = PROXY_INDEX};
		AUTO_FREE char *path = mem_printf("/run/%s", send->place->id);
		AUTO_BUF struct buf hint = {0};

		buf_init(&hint, HINT_MAX);
		proxy_url_add(&index, &send->ask->proxy->here, path, &hint);
		ask_refuse(send->ask, 404, "the run has no such file", hint.data);
	}
}

static bool is_known(struct send *send)
{
	const struct place *place = send->place;
	bool is_live = !run_state_is_final(run_state(place_run(place)));
	int64_t ms = is_live ? LIVE_FRESH_MS : ENDED_FRESH_MS;

	return place->files_ms && clock_ms() - place->files_ms < ms && find(send, &place->files);
}

void send_file(struct ask *ask)
{
	const char *handle = run_handle(place_run(ask->place));
	AUTO_FREE char *path = proxy_path_decode(ask->target);
	struct send *send;

	if (!path || !handle) {
		ask_refuse(ask, 404, "the run has no such file", NULL);
		return;
	}
	send = mem_alloc(1, sizeof(*send));
	*send = (struct send){.left = {.place = ask->place, .free = send_free},
		.ask = ask,
		.place = ask->place,
		.handle = mem_strdup(handle),
		.path = TAKE(path)};
	ask_work(ask, send, send_stop);
	if (is_known(send))
		answer_found(send);
	else
		send->call = outputs_list(carrier_target(send->place->carrier), send->handle,
			send->path, OUTPUTS_THOROUGH, 1, &send->found, on_list, send);
}
