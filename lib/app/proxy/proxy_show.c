/* SPDX-License-Identifier: Apache-2.0 */
#include "app/proxy/proxy_impl.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "app/lifecycle/hint_excluded.h"
#include "app/lifecycle/why.h"
#include "app/proxy/proxy_cell.h"
#include "app/proxy/proxy_page.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/store/store.h"

enum {
	TAIL_LINES = 200,
	TAIL_MAX = 256 << 10,
	TIMEOUT_MS = 15 * 1000, /* then the page comes with what is there */
	FAR_TIMEOUT_MS = 120 * 1000,
	LISTED_MAX = 5000,
	SENTENCE_MAX = 64 << 10,
};

/* The page of one run, while its output and its files are requested. */
struct show {
	struct target_call log;
	struct target_log_request log_request;
	struct request *request;
	struct place *place;
	char *handle;
	bool has_log, has_files; /* requested, no response yet */
	char token[TARGET_TOKEN_SIZE];
	struct buf text;
	struct err log_error, files_error;
	bool files_cut;
	struct outputs_call *list;
	struct outputs_files files;
	struct loop_timer *timer;
};

static void show_stop(void *work)
{
	struct show *show = work;

	if (show->has_log)
		target_call_cancel(&show->log);
	loop_remove_timer(show->request->proxy->loop, show->timer);
	outputs_cancel(show->list);
	outputs_files_done(&show->files);
	buf_done(&show->text);
	err_done(&show->log_error);
	err_done(&show->files_error);
	free(show->handle);
	free(show);
}

/* The end of the text, from the beginning of a line. */
static void cut_text(struct show *show)
{
	const char *end;

	if (show->text.len <= TAIL_MAX)
		return;
	buf_consume(&show->text, show->text.len - TAIL_MAX);
	end = memchr(show->text.data, '\n', show->text.len);
	if (end)
		buf_consume(&show->text, (size_t)(end + 1 - show->text.data));
}

/* page: all but why. */
static void respond_page(struct request *request, struct proxy_page_run *page)
{
	AUTO_FREE char *files = cell_origin(page->run, PROXY_FILES, &request->proxy->here);
	AUTO_BUF struct buf html = buf_with(PROXY_PAGE_MAX), why = buf_with(SENTENCE_MAX),
			    hint = buf_with(SENTENCE_MAX);

	run_why_said(
		&request->proxy->session->dirs, page->run, page->log, page->log_len, &why, &hint);
	page->why = why.data;
	page->why_hint = hint.data;
	page->here = &request->proxy->here;
	proxy_page_run(page, &html);
	request_page(request, &html, files, false);
}

static void respond_show(struct show *show)
{
	struct request *request = show->request;

	cut_text(show);
	struct proxy_page_run page = {.run = place_run(show->place),
		.is_watched = strstr(request->target, "?watch") != NULL,
		.log = show->text.data,
		.log_len = show->text.len,
		.log_error = &show->log_error,
		.files = &show->place->files,
		.files_cut = show->files_cut,
		.is_far = place_is_far(show->place),
		.files_error = &show->files_error};
	respond_page(request, &page);
}

void show_record(struct request *request, const struct err *error)
{
	const struct outputs_files none = {0};
	AUTO_RUN struct run *run = NULL;
	AUTO_ERR struct err failure = {0};
	struct store *store;
	int r = session_store(request->proxy->session, &store, &failure);

	if (r == 0)
		r = store_resolve(store, request->name.run, &run, &failure);
	if (r < 0) {
		request_fail(request, &failure);
		return;
	}
	struct proxy_page_run page = {
		.run = run, .log = "", .log_error = error, .files = &none, .files_error = error};
	respond_page(request, &page);
}

static void respond_if_whole(struct show *show)
{
	if (!show->has_log && !show->has_files)
		respond_show(show);
}

static int proxy_show_on_late(void *ctx, struct err *err UNUSED)
{
	struct show *show = ctx;
	struct err *const errors[] = {&show->log_error, &show->files_error};
	const bool waits[] = {show->has_log, show->has_files};

	show->timer = NULL;
	for (size_t i = 0; i < ARRAY_LEN(errors); i++)
		if (waits[i])
			err_set(errors[i], E_TARGET_SILENT, "target %s did not answer in time",
				run_target(place_run(show->place)));
	respond_show(show);
	return 0;
}

/*
 * Output of the run
 */

static int proxy_show_on_log(void *ctx, int rank UNUSED, const char *data, size_t len,
	int64_t time_ms UNUSED, struct err *err UNUSED)
{
	struct show *show = ctx;

	if (len > TAIL_MAX) {
		data += len - TAIL_MAX;
		len = TAIL_MAX;
	}
	if (show->text.len + len > 2 * TAIL_MAX)
		cut_text(show);
	buf_add(&show->text, data, len);
	return 0;
}

static void on_log_end(struct target_call *call, int status, struct err *err)
{
	struct show *show = CONTAINER_OF(call, struct show, log);

	show->has_log = false;
	if (status < 0)
		err_move(&show->log_error, err);
	respond_if_whole(show);
}

static void start_log(struct show *show)
{
	struct target *target = forwarder_target(show->place->forwarder);

	if (!target->ops->logs)
		return;
	show->log_request = (struct target_log_request){.tail_lines = TAIL_LINES,
		.rank = -1,
		.events = {.data = proxy_show_on_log, .ctx = show}};
	show->log =
		(struct target_call){.deadline_ms = clock_ms() + TIMEOUT_MS, .done = on_log_end};
	show->has_log = target->ops->logs(target, show->handle, &show->log_request, show->token,
				&show->log, &show->log_error) == 0;
}

/*
 * Files of the run
 */

static void on_files(void *ctx, int status, struct err *error)
{
	struct show *show = ctx;
	struct place *place = show->place;

	show->list = NULL;
	show->has_files = false;
	show->files_cut = status == -ERR_LIMIT;
	if (status < 0 && !show->files_cut)
		err_move(&show->files_error, error);
	place_set_files(place, &show->files);
	respond_if_whole(show);
}

static void start_files(struct show *show)
{
	/* A pod that reads them is not started by itself. */
	if (place_is_far(show->place) && !strstr(show->request->target, "?files"))
		return;
	if (place_files_are_fresh(show->place)) {
		show->files_cut = show->place->files.n >= LISTED_MAX;
		return;
	}
	show->has_files = true;
	show->list = outputs_list(forwarder_target(show->place->forwarder), show->handle, NULL,
		OUTPUTS_THOROUGH, LISTED_MAX, &show->files, on_files, show);
}

void show_run(struct request *request)
{
	const char *handle = run_handle(place_run(request->place));
	struct show *show = mem_alloc(1, sizeof(*show));
	struct loop *loop = request->proxy->loop;

	*show = (struct show){
		.request = request, .place = request->place, .handle = mem_strdup(handle)};
	buf_init(&show->text, 2 * TAIL_MAX);
	request_work(request, show, show_stop);
	show->timer = loop_add_timer(loop,
		clock_ms() + (place_is_far(request->place) ? FAR_TIMEOUT_MS : TIMEOUT_MS),
		proxy_show_on_late, show);
	if (handle) {
		start_log(show);
		start_files(show);
	}
	respond_if_whole(show);
}

/* A window is read at once, so it is what may wait in memory for one who reads slowly; far away a
 * pod is started for each. */
enum {
	WINDOW = 4 << 20,
	FAR_WINDOW = 64 << 20,
	LIVE_FRESH_MS = 2000,
	ENDED_FRESH_MS = 60 * 1000,
	HINT_MAX = 512
};

/* State of sending one file, while it is searched for and read. */
struct send {
	struct request *request;
	struct place *place;
	char *handle, *path;
	struct outputs_call *call;
	struct outputs_files found;
	struct outputs_file file; /* its path is not set */
	struct proxy_range range; /* what is left of it */
	int status;
	bool is_begun, is_writable;
	uint64_t got; /* of this window */
};

static void send_stop(void *work)
{
	struct send *send = work;

	outputs_cancel(send->call);
	outputs_files_done(&send->found);
	free(send->handle);
	free(send->path);
	free(send);
}

static char *etag_of(const struct send *send)
{
	AUTO_FREE char *version = proxy_media_version(&send->file);

	return mem_printf("\"%s\"", version);
}

/* Whether the URL names the file as it is now: then it stays what it is. */
static bool send_is_versioned(const struct send *send)
{
	AUTO_FREE char *version = proxy_media_version(&send->file);
	AUTO_FREE char *query = mem_printf("?v=%s", version);
	const char *file = send->request->file;

	return file && str_eq(file + strcspn(file, "?"), query);
}

/* Keep the content of the file inert: as a page, and for other sites. */
static void add_headers(const struct send *send, uint64_t n, struct strv *headers)
{
	const struct proxy_type *type = proxy_type_of(send->path);
	AUTO_FREE char *page =
		cell_origin(place_run(send->place), PROXY_RUN, &send->request->proxy->here);
	AUTO_FREE char *etag = etag_of(send);

	strv_addf(headers, "Content-Type: %s", type->mime);
	strv_add(headers, "X-Content-Type-Options: nosniff");
	strv_addf(headers,
		"Content-Security-Policy: sandbox; default-src 'none'; img-src 'self'; "
		"media-src 'self'; style-src 'unsafe-inline'; frame-ancestors %s",
		send->request->file ? "'none'" : page);
	strv_addf(headers, "Cross-Origin-Resource-Policy: %s",
		send->request->file ? "same-origin" : "same-site");
	strv_add(headers, "Referrer-Policy: no-referrer");
	strv_addf(headers, "Cache-Control: %s",
		send_is_versioned(send) ? "private, max-age=86400, immutable" : "no-cache");
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

static void proxy_show_end(struct send *send, bool cut)
{
	struct httpd_exchange *exchange = send->request->exchange;

	httpd_on_gone(exchange, NULL, NULL);
	httpd_on_writable(exchange, NULL, NULL);
	request_free(send->request);
	httpd_end(exchange, cut);
}

static void on_writable(void *ctx)
{
	struct send *send = ctx;

	send->is_writable = true;
	if (!send->call)
		read_window(send);
}

static void proxy_show_begin(struct send *send)
{
	AUTO_STRV struct strv headers = {0};

	add_headers(send, send->range.n, &headers);
	send->is_begun = send->is_writable = true;
	httpd_begin(send->request->exchange, send->status, &headers, (int64_t)send->range.n);
	httpd_on_writable(send->request->exchange, on_writable, send);
}

static int proxy_show_on_data(void *ctx, const void *data, size_t len, struct err *err UNUSED)
{
	struct send *send = ctx;

	if (!send->is_begun)
		proxy_show_begin(send);
	if (len > send->range.n)
		len = (size_t)send->range.n;
	send->got += len;
	send->range.first += len;
	send->range.n -= len;
	if (len && !httpd_write(send->request->exchange, data, len))
		send->is_writable = false;
	return 0;
}

static void proxy_show_on_read(void *ctx, int status, struct err *error)
{
	struct send *send = ctx;

	send->call = NULL;
	if (status < 0 && !send->is_begun)
		request_fail(send->request, error);
	else if (status < 0 || send->got == 0)
		proxy_show_end(send, true);
	else if (send->range.n == 0)
		proxy_show_end(send, false);
	else if (send->is_writable)
		read_window(send);
}

static void read_window(struct send *send)
{
	uint64_t max = place_is_far(send->place) ? FAR_WINDOW : WINDOW;
	uint64_t n = send->range.n < max ? send->range.n : max;

	send->got = 0;
	send->call = outputs_read(forwarder_target(send->place->forwarder), send->handle,
		send->path, send->range.first, n, proxy_show_on_data, proxy_show_on_read, send);
}

/*
 * Finding
 */

static void respond_empty(struct send *send, int status)
{
	AUTO_STRV struct strv headers = {0};

	send->status = status;
	add_headers(send, 0, &headers);
	if (status == 416)
		strv_addf(&headers, "Content-Range: bytes */%llu",
			(unsigned long long)send->file.size);
	request_respond(send->request, status, &headers, "", 0);
}

static void respond_found(struct send *send)
{
	const struct request *request = send->request;
	AUTO_FREE char *etag = etag_of(send);
	bool is_same = !request->if_range || str_eq(request->if_range, etag);
	const char *tags = request->if_none_match;

	if (tags && (str_eq(tags, "*") || strstr(tags, etag))) {
		respond_empty(send, 304);
		return;
	}
	send->status =
		proxy_range_parse(is_same ? request->range : NULL, send->file.size, &send->range);
	if (send->status == 416) {
		respond_empty(send, 416);
	} else if (request->is_head || send->range.n == 0) {
		proxy_show_begin(send);
		proxy_show_end(send, false);
	} else {
		read_window(send);
	}
}

static bool proxy_show_find(struct send *send, const struct outputs_files *files)
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

static void proxy_show_on_list(void *ctx, int status, struct err *error)
{
	struct send *send = ctx;

	send->call = NULL;
	if (proxy_show_find(send, &send->found)) {
		respond_found(send);
	} else if (status < 0) {
		request_fail(send->request, error);
	} else {
		const struct proxy_name index = {.kind = PROXY_INDEX};
		AUTO_FREE char *path = mem_printf("/run/%s", send->place->id);
		AUTO_BUF struct buf hint = buf_with(HINT_MAX);

		proxy_url_add(&index, &send->request->proxy->here, path, &hint);
		request_refuse(send->request, 404, "the run has no such file", hint.data);
	}
}

static bool proxy_show_is_known(struct send *send)
{
	const struct place *place = send->place;
	bool is_live = !run_state_is_final(run_state(place_run(place)));
	int64_t ms = is_live ? LIVE_FRESH_MS : ENDED_FRESH_MS;

	return place->files_ms && clock_ms() - place->files_ms < ms &&
	       proxy_show_find(send, &place->files);
}

void send_file(struct request *request)
{
	const char *handle = run_handle(place_run(request->place));
	AUTO_FREE char *path = proxy_path_decode(request->file ? request->file : request->target);
	struct send *send;

	if (!path || !handle) {
		request_refuse(request, 404, "the run has no such file", NULL);
		return;
	}
	send = mem_alloc(1, sizeof(*send));
	*send = (struct send){.request = request,
		.place = request->place,
		.handle = mem_strdup(handle),
		.path = TAKE(path)};
	request_work(request, send, send_stop);
	if (proxy_show_is_known(send))
		respond_found(send);
	else
		send->call = outputs_list(forwarder_target(send->place->forwarder), send->handle,
			send->path, OUTPUTS_THOROUGH, 1, &send->found, proxy_show_on_list, send);
}
