/* SPDX-License-Identifier: Apache-2.0 */
#include "app/proxy/proxy.h"

#include <stdlib.h>
#include <string.h>

#include "app/proxy/html.h"
#include "app/proxy/proxy_impl.h"
#include "app/proxy/proxy_page.h"
#include "app/runs/refresh.h"
#include "base/loop/loop.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/store/store.h"
#include "net/stream/field.h"

enum { TURN_MS = 200, LISTED_FRESH_MS = 2000, LIST_MS = 1000, TEXT_MAX = 16 << 10 };

#define RUN_PATH "/run/"

/*
 * The life of a request
 */

static void unlink_request(struct request *request)
{
	if (!request->at)
		return;
	*request->at = request->next;
	if (request->next)
		request->next->at = request->at;
	request->at = NULL;
	request->next = NULL;
}

static void link_request(struct request *request, struct request **list)
{
	unlink_request(request);
	request->next = *list;
	request->at = list;
	if (request->next)
		request->next->at = &request->next;
	*list = request;
}

void request_free(struct request *request)
{
	if (!request)
		return;
	unlink_request(request);
	if (request->work)
		request->stop(request->work);
	if (request->place)
		request->place->users--;
	free(request->target);
	free(request->range);
	free(request->if_none_match);
	free(request->if_range);
	free(request);
}

/* The exchange goes on without the request. */
static struct httpd_exchange *request_leave(struct request *request)
{
	struct httpd_exchange *exchange = request->exchange;

	httpd_on_gone(exchange, NULL, NULL);
	request_free(request);
	return exchange;
}

void request_respond(struct request *request, int status, const struct strv *headers,
	const void *data, size_t len)
{
	httpd_respond(request_leave(request), status, headers, data, len);
}

void request_refuse(struct request *request, int status, const char *what, const char *hint)
{
	httpd_refuse(request_leave(request), status, what, hint);
}

static int proxy_status_of(const struct err *err)
{
	switch (err->code) {
	case ERR_NOTFOUND:
	case ERR_USAGE:
		return 404;
	case ERR_LIMIT:
		return 503;
	case ERR_NET:
	case ERR_AUTH:
	case ERR_REMOTE:
	case ERR_CONFIG:
		return 502;
	default:
		return 500;
	}
}

void request_fail(struct request *request, const struct err *err)
{
	AUTO_BUF struct buf hint = buf_with(TEXT_MAX);

	for (size_t i = 0; i < err->n_evidence; i++)
		buf_addf(&hint, "%s%s", hint.len ? "; " : "", err->evidence[i]);
	if (err->hint)
		buf_addf(&hint, "%s%s", hint.len ? "; " : "", err->hint);
	request_refuse(request, proxy_status_of(err), err->message, hint.len ? hint.data : NULL);
}

static void request_redirect(
	struct request *request, const struct proxy_name *name, const char *target)
{
	AUTO_STRV struct strv headers = {0};
	AUTO_BUF struct buf url = buf_with(HTTPD_HEAD_MAX);

	proxy_url_add(name, &request->proxy->here, target, &url);
	strv_addf(&headers, "Location: %s", url.data);
	strv_add(&headers, "Cache-Control: no-store");
	request_respond(request, 307, &headers, "", 0);
}

void request_work(struct request *request, void *work, void (*stop)(void *work))
{
	link_request(request, &request->proxy->working);
	request->work = work;
	request->stop = stop;
}

static void proxy_on_gone(void *ctx)
{
	request_free(ctx);
}

static int proxy_on_turn(void *ctx, struct err *err);

static void proxy_turn_at(struct proxy *proxy, int64_t at_ms)
{
	loop_remove_timer(proxy->loop, proxy->turn);
	proxy->turn = loop_add_timer(proxy->loop, at_ms, proxy_on_turn, proxy);
}

/* Wait until the place, or the list of runs, has been refreshed. */
static void wait_for_refresh(struct request *request, void (*go)(struct request *request))
{
	struct proxy *proxy = request->proxy;

	request->go = go;
	link_request(request, &proxy->waiting);
	proxy_turn_at(proxy, 0);
}

static struct request *proxy_find_waiting(const struct proxy *proxy, const struct place *place)
{
	struct request *request = proxy->waiting;

	while (request && request->place != place)
		request = request->next;
	return request;
}

bool requests_wait_for(const struct proxy *proxy, const struct place *place)
{
	return proxy_find_waiting(proxy, place) != NULL;
}

void requests_go_on(struct proxy *proxy, const struct place *place)
{
	struct request *request;

	while ((request = proxy_find_waiting(proxy, place))) {
		unlink_request(request);
		request->go(request);
	}
}

/*
 * The first page
 */

/* files: the origin of what a page may show, or NULL: nothing; live: its own script and forms. */
static void add_page_headers(
	struct strv *headers, const char *type, const char *files, bool is_live)
{
	files = files ? files : "'none'";
	strv_addf(headers, "Content-Type: %s", type);
	strv_add(headers, "Cache-Control: no-store");
	strv_add(headers, "X-Content-Type-Options: nosniff");
	strv_add(headers, "Referrer-Policy: origin");
	strv_add(headers, "Cross-Origin-Opener-Policy: same-origin");
	strv_addf(headers,
		"Content-Security-Policy: default-src 'none'; style-src 'self'; img-src %s; "
		"media-src %s; frame-src %s; base-uri 'none'; %sframe-ancestors 'none'",
		files, files, files,
		is_live ? "script-src 'self'; connect-src 'self'; form-action 'self'; "
			: "form-action 'none'; ");
}

void request_page(struct request *request, const struct buf *page, const char *files, bool is_live)
{
	AUTO_STRV struct strv headers = {0};
	AUTO_ERR struct err error = {0};

	if (buf_check(page, "the page", &error) < 0) {
		request_fail(request, &error);
		return;
	}
	add_page_headers(&headers, "text/html; charset=utf-8", files, is_live);
	request_respond(request, 200, &headers, page->data, page->len);
}

static void with_list(struct request *request, void (*go)(struct request *request));

/* Choose the runs of the list whose curves the view shows. */
static void choose_listed(
	const struct proxy *proxy, const struct proxy_view *view, struct proxy_runs *ret)
{
	struct proxy_runs shown = {0};
	AUTO_ERR struct err ignored = {0};

	if (view->group || view->runs.n)
		proxy_index_select(&proxy->listed, view, clock_wall_ms(), &shown, &ignored);
	proxy_index_choose(&proxy->listed, &shown, view, ret);
	vec_done(&shown);
}

/* The curves have been read, and files listed. */
static void respond_drawn(struct request *request, const struct proxy_view *view,
	const struct proxy_runs *chosen, bool shows_media)
{
	struct proxy *proxy = request->proxy;
	AUTO(curves_drawn_done) struct curves_drawn drawn = {0};
	AUTO_STRV struct strv metrics = {0};
	struct proxy_media_list media = {0};
	AUTO_BUF struct buf html = buf_with(PROXY_PAGE_MAX);

	proxy_index_metrics(chosen, view, &metrics);
	curves_draw(proxy, chosen, &metrics, &drawn);
	if (shows_media)
		files_known(proxy, chosen, &media);
	const struct proxy_page_index page = {.runs = &proxy->listed,
		.is_cut = proxy->listed_cut,
		.here = &proxy->here,
		.view = view,
		.now_ms = clock_wall_ms(),
		.charts = drawn.charts.v,
		.n_charts = drawn.charts.n,
		.notes = &drawn.notes,
		.media = &media};
	proxy_page_index(&page, &html);
	vec_done(&media);
	request_page(request, &html, "'self'", true);
}

static void respond_index(struct request *request);

/* Another request may have begun to list the runs anew meanwhile. */
static void go_on_with_index(struct request *request)
{
	request->stop(TAKE(request->work));
	with_list(request, respond_index);
}

/* The page comes once the curves of the chosen runs have been read, then their files listed. */
static void respond_index(struct request *request)
{
	AUTO_PROXY_VIEW struct proxy_view view;
	struct proxy_runs chosen = {0};

	proxy_view_parse(request->target, &view);
	choose_listed(request->proxy, &view, &chosen);
	bool shows_media = str_eq(view.path, PROXY_COMPARE_PATH);
	int done = request->n_done++;
	if (chosen.n && done == 0)
		request_work(request, curves_read(request, &chosen, go_on_with_index), curves_stop);
	else if (chosen.n && done == 1 && shows_media)
		request_work(request, files_read(request, &chosen, go_on_with_index), files_stop);
	else
		respond_drawn(request, &view, &chosen, shows_media);
	vec_done(&chosen);
}

static void respond_json(struct request *request)
{
	AUTO_STRV struct strv headers = {0};
	AUTO_BUF struct buf text = buf_with(2 * PROXY_PAGE_MAX);

	proxy_page_json(&request->proxy->listed, &text);
	add_page_headers(&headers, "application/json", NULL, false);
	request_respond(
		request, text.full ? 500 : 200, &headers, text.data, text.full ? 0 : text.len);
}

static void respond_constant(struct request *request, const char *type, const char *text)
{
	AUTO_STRV struct strv headers = {0};

	strv_addf(&headers, "Content-Type: %s; charset=utf-8", type);
	strv_add(&headers, "Cache-Control: max-age=600");
	strv_add(&headers, "X-Content-Type-Options: nosniff");
	request_respond(request, 200, &headers, text, strlen(text));
}

static void with_list(struct request *request, void (*go)(struct request *request))
{
	const struct proxy *proxy = request->proxy;

	if (!proxy->listing && proxy->listed_ms && clock_ms() - proxy->listed_ms < LISTED_FRESH_MS)
		go(request);
	else
		wait_for_refresh(request, go);
}

/* Add unfinished runs that are older than all listed ones. */
static int proxy_add_unfinished(struct store *store, struct run_list *list, struct err *err)
{
	const struct store_filter filter = {.unfinished_only = true, .limit = PROXY_LISTED};
	AUTO(run_list_done) struct run_list live = {0};

	int r = store_list(store, &filter, &live, err);
	for (size_t i = 0; r == 0 && i < live.n; i++) {
		bool is_there = false;

		vec_foreach (struct run *, run, list)
			is_there = is_there || str_eq(run_id(*run), run_id(live.v[i]));
		if (!is_there)
			*vec_push(list) = TAKE(live.v[i]);
	}
	return r;
}

static int proxy_on_listed(void *ctx, int status, struct err *err UNUSED)
{
	struct proxy *proxy = ctx;

	proxy->listing = NULL;
	if (status < 0)
		return status;
	proxy_page_sort(&proxy->listed);
	proxy->listed_ms = clock_ms();
	requests_go_on(proxy, NULL);
	return 0;
}

/*
 * Requests
 */

/* /run/ID: its page has a name of its own, because that of its files must be of the same site. */
static void redirect_to_run(struct request *request, const char *run)
{
	struct proxy_name name = {.kind = PROXY_RUN};

	AUTO_FREE char *id = mem_strndup(run, strcspn(run, "/?"));
	if (strlen(id) >= sizeof(name.run) ||
		id[strspn(id, "abcdefghijklmnopqrstuvwxyz0123456789-")]) {
		request_refuse(request, 404, "there is no such run", "dlrun ps -a");
		return;
	}
	memcpy(name.run, id, strlen(id) + 1);
	request_redirect(request, &name, "/");
}

/* A file that the page shows; all others have a name of their own. */
static void go_to_media(struct request *request)
{
	AUTO_FREE char *path = proxy_path_decode(request->file);
	enum proxy_show show = path ? proxy_type_of(path)->show : PROXY_SAVED;

	if (request->place->is_removed || show == PROXY_SAVED || show == PROXY_TEXT)
		request_refuse(request, 404, "there is no such picture, video or sound", NULL);
	else
		send_file(request);
}

static void respond_media(struct request *request)
{
	AUTO_ERR struct err error = {0};

	if (place_get(request->proxy, request->name.run, &request->place, &error) < 0) {
		request_fail(request, &error);
		return;
	}
	request->place->users++;
	if (place_is_fresh(request->place) || place_files_are_fresh(request->place))
		go_to_media(request);
	else
		wait_for_refresh(request, go_to_media);
}

static void respond_own(struct request *request)
{
	static const struct {
		const char *path;
		void (*go)(struct request *request); /* with the list; NULL: a constant */
		const char *type, *text;
	} paths[] = {
		{"/", respond_index, NULL, NULL},
		{PROXY_COMPARE_PATH, respond_index, NULL, NULL},
		{"/runs.json", respond_json, NULL, NULL},
		{HTML_SCRIPT_PATH, NULL, "text/javascript", html_script},
		{HTML_STYLE_PATH, NULL, "text/css", html_style},
		/* Browsers ask for one wherever pictures may be shown. */
		{"/favicon.ico", NULL, "image/x-icon", ""},
	};
	AUTO_FREE char *path = mem_strndup(request->target, strcspn(request->target, "?"));

	for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
		if (!str_eq(path, paths[i].path))
			continue;
		if (paths[i].go)
			with_list(request, paths[i].go);
		else
			respond_constant(request, paths[i].type, paths[i].text);
		return;
	}
	if (proxy_media_parse(request->target, request->name.run, &request->file))
		respond_media(request);
	else if (str_starts(request->target, RUN_PATH))
		redirect_to_run(request, request->target + strlen(RUN_PATH));
	else
		request_refuse(request, 404, "there is no such page", NULL);
}

static void go_to_run(struct request *request)
{
	if (request->place->is_removed) {
		AUTO_FREE char *what =
			mem_printf("there is no run '%s' any more", request->place->id);
		request_refuse(request, 404, what, "dlrun ps -a");
	} else if (request->name.kind == PROXY_PORT) {
		place_relay(request);
	} else if (request->name.kind == PROXY_FILES) {
		send_file(request);
	} else {
		AUTO_FREE char *path = mem_strndup(request->target, strcspn(request->target, "?"));

		if (str_eq(path, HTML_STYLE_PATH))
			respond_constant(request, "text/css", html_style);
		else if (str_eq(path, "/"))
			show_run(request);
		else
			request_refuse(request, 404, "there is no such page", NULL);
	}
}

/* The beginning of an id is another name, which may soon be that of several runs. */
static bool redirect_to_whole(struct request *request)
{
	struct proxy_name whole = request->name;

	if (str_eq(request->name.run, request->place->id) || !request->is_read)
		return false;
	memcpy(whole.run, request->place->id, sizeof(whole.run));
	request_redirect(request, &whole, request->target);
	return true;
}

static void route(struct request *request)
{
	AUTO_ERR struct err error = {0};
	bool is_ours = request->name.kind != PROXY_PORT;

	if (request->is_connect && is_ours) {
		request_refuse(request, 403, "a CONNECT leads to ports of runs only",
			"6006.RUN.localhost:80, or RUN.localhost:6006");
		return;
	}
	if (is_ours && !request->is_read) {
		request_refuse(request, 405, "these pages can only be read", NULL);
		return;
	}
	if (request->name.kind == PROXY_INDEX) {
		respond_own(request);
		return;
	}
	if (place_get(request->proxy, request->name.run, &request->place, &error) < 0) {
		if (request->name.kind == PROXY_RUN && error.code == ERR_CONFIG)
			show_record(request, &error);
		else
			request_fail(request, &error);
		return;
	}
	request->place->users++;
	if (redirect_to_whole(request))
		return;
	if (place_is_fresh(request->place))
		go_to_run(request);
	else
		wait_for_refresh(request, go_to_run);
}

static char *header(const struct httpd_request *request, const char *name)
{
	return mem_strdup(field_find(request->headers, name));
}

static void proxy_on_request(
	void *ctx, struct httpd_exchange *exchange, const struct httpd_request *head)
{
	struct proxy *proxy = ctx;
	struct request *request = mem_alloc(1, sizeof(*request));
	AUTO_ERR struct err error = {0};

	*request = (struct request){.proxy = proxy,
		.exchange = exchange,
		.target = mem_strdup(head->target),
		.is_connect = head->is_connect,
		.is_head = str_eq(head->method, "HEAD")};
	request->is_read = !head->is_upgrade && (request->is_head || str_eq(head->method, "GET"));
	httpd_on_gone(exchange, proxy_on_gone, request);
	if (proxy_name_parse(head->host, &request->name, &error) < 0) {
		request_fail(request, &error);
		return;
	}
	if (head->is_connect && request->name.kind == PROXY_RUN) {
		request->name.kind = PROXY_PORT;
		request->name.port = head->port;
	}
	if (request->name.kind == PROXY_FILES || request->name.kind == PROXY_INDEX) {
		request->range = header(head, "range");
		request->if_none_match = header(head, "if-none-match");
		request->if_range = header(head, "if-range");
	}
	route(request);
}

static void on_refused(void *ctx UNUSED, const char *text)
{
	log_note("%s", text);
}

/*
 * The loop
 */

/* Start what is due, or waited for and not under way. */
static int proxy_on_turn(void *ctx, struct err *err)
{
	struct proxy *proxy = ctx;
	int r = places_refresh(proxy, err);

	if (r == 0 && !proxy->listing && requests_wait_for(proxy, NULL)) {
		const struct store_filter filter = {.limit = PROXY_LISTED};
		struct store *store;

		run_list_done(&proxy->listed);
		r = session_store(proxy->session, &store, err);
		if (r == 0)
			r = store_list(store, &filter, &proxy->listed, err);
		proxy->listed_cut = proxy->listed.n == PROXY_LISTED;
		if (r == 0 && proxy->listed_cut)
			r = proxy_add_unfinished(store, &proxy->listed, err);
		if (r == 0)
			proxy->listing = refresh_start(
				proxy->session, &proxy->listed, LIST_MS, proxy_on_listed, proxy);
	}
	places_tidy(proxy, false);
	curves_tidy(proxy, false);
	proxy_turn_at(proxy, clock_ms() + TURN_MS);
	return r;
}

static void proxy_done(struct proxy *proxy)
{
	while (proxy->waiting)
		request_free(proxy->waiting);
	while (proxy->working)
		request_free(proxy->working);
	httpd_free(proxy->httpd);
	loop_remove_timer(proxy->loop, proxy->turn);
	refresh_cancel(proxy->listing);
	places_tidy(proxy, true);
	curves_tidy(proxy, true);
	run_list_done(&proxy->listed);
}

int run_proxy(struct session *session, const struct proxy_options *options, struct err *err)
{
	AUTO(proxy_done)
	struct proxy proxy = {
		.session = session, .options = options, .loop = session_loop(session)};
	const struct httpd_options httpd = {.loop = proxy.loop,
		.port = options->port,
		.is_exact = options->is_exact,
		.request = proxy_on_request,
		.notice = on_refused,
		.ctx = &proxy};
	struct store *store;

	int r = session_store(session, &store, err);
	if (r == 0)
		r = httpd_open(&httpd, &proxy.httpd, err);
	if (r < 0)
		return r;
	proxy.here = (struct proxy_here){httpd_port(proxy.httpd), httpd_token(proxy.httpd)};
	options->listening(options->ctx, &proxy.here);
	struct loop_wait wait = {
		.loop = proxy.loop, .n_open = 1, .interrupted = options->interrupted};
	proxy_turn_at(&proxy, 0);
	return loop_wait_run(&wait, err);
}
