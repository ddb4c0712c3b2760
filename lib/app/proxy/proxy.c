/* SPDX-License-Identifier: Apache-2.0 */
#include "app/proxy/proxy.h"

#include <stdlib.h>
#include <string.h>

#include "app/proxy/html.h"
#include "app/proxy/proxy_impl.h"
#include "app/proxy/proxy_page.h"
#include "app/runs/refresh.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/store/store.h"
#include "net/stream/field.h"

enum { TURN_MS = 200, LISTED_FRESH_MS = 2000, LIST_MS = 1000, URL_MAX = 512, TEXT_MAX = 16 << 10 };

#define RUN_PATH "/run/"

/*
 * Asks
 */

static void unlink_query(struct query *query)
{
	if (!query->at)
		return;
	*query->at = query->next;
	if (query->next)
		query->next->at = query->at;
	query->at = NULL;
	query->next = NULL;
}

static void link_query(struct query *query, struct query **list)
{
	unlink_query(query);
	query->next = *list;
	query->at = list;
	if (query->next)
		query->next->at = &query->next;
	*list = query;
}

void query_free(struct query *query)
{
	if (!query)
		return;
	unlink_query(query);
	if (query->work)
		query->stop(query->work);
	if (query->place)
		query->place->users--;
	free(query->target);
	free(query->range);
	free(query->if_none_match);
	free(query->if_range);
	free(query);
}

/* The exchange goes on without the ask. */
static struct httpd_exchange *proxy_leave(struct query *query)
{
	struct httpd_exchange *exchange = query->exchange;

	httpd_on_gone(exchange, NULL, NULL);
	query_free(query);
	return exchange;
}

void query_response(
	struct query *query, int status, const struct strv *headers, const void *data, size_t len)
{
	httpd_response(proxy_leave(query), status, headers, data, len);
}

void query_refuse(struct query *query, int status, const char *what, const char *hint)
{
	httpd_refuse(proxy_leave(query), status, what, hint);
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

void query_fail(struct query *query, const struct err *err)
{
	AUTO_BUF struct buf hint;

	buf_init(&hint, TEXT_MAX);
	for (size_t i = 0; i < err->n_evidence; i++)
		buf_addf(&hint, "%s%s", hint.len ? "; " : "", err->evidence[i]);
	if (err->hint)
		buf_addf(&hint, "%s%s", hint.len ? "; " : "", err->hint);
	query_refuse(query, proxy_status_of(err), err->message, hint.len ? hint.data : NULL);
}

void query_redirect(struct query *query, const char *url)
{
	AUTO_STRV struct strv headers = {0};

	strv_addf(&headers, "Location: %s", url);
	strv_add(&headers, "Cache-Control: no-store");
	query_response(query, 307, &headers, "", 0);
}

void query_work(struct query *query, void *work, void (*stop)(void *work))
{
	link_query(query, &query->proxy->working);
	query->work = work;
	query->stop = stop;
}

void leave_work(struct left *left)
{
	struct proxy *proxy = left->place->proxy;

	left->is_left = true;
	left->place->users++;
	left->next = proxy->left;
	proxy->left = left;
}

static void free_left(struct proxy *proxy)
{
	struct left *left;

	while ((left = proxy->left)) {
		proxy->left = left->next;
		left->place->users--;
		left->free(left);
	}
}

static void proxy_on_gone(void *ctx)
{
	query_free(ctx);
}

/* Wait until the place, or the list of runs, has been refreshed. */
static void wait_for_poll(struct query *query, void (*go)(struct query *query))
{
	struct proxy *proxy = query->proxy;

	query->go = go;
	link_query(query, &proxy->waiting);
	if (proxy->is_pausing)
		loop_stop(proxy->loop);
}

/*
 * The first page
 */

static void add_page_headers(struct strv *headers, const char *type, const char *files)
{
	strv_addf(headers, "Content-Type: %s", type);
	strv_add(headers, "Cache-Control: no-store");
	strv_add(headers, "X-Content-Type-Options: nosniff");
	strv_add(headers, "Referrer-Policy: origin");
	strv_add(headers, "Cross-Origin-Opener-Policy: same-origin");
	strv_addf(headers,
		"Content-Security-Policy: default-src 'none'; style-src 'self'; img-src %s; "
		"media-src %s; frame-src %s; base-uri 'none'; form-action 'none'; "
		"frame-ancestors 'none'",
		files, files, files);
}

void query_page(struct query *query, const struct buf *page, const char *files)
{
	AUTO_STRV struct strv headers = {0};
	AUTO_ERR struct err error = {0};

	if (buf_check(page, "the page", &error) < 0) {
		query_fail(query, &error);
		return;
	}
	add_page_headers(&headers, "text/html; charset=utf-8", files ? files : "'none'");
	query_response(query, 200, &headers, page->data, page->len);
}

static void response_index(struct query *query)
{
	struct proxy *proxy = query->proxy;
	AUTO_BUF struct buf page;

	buf_init(&page, PROXY_PAGE_MAX);
	proxy_page_index(&proxy->listed, proxy->listed_cut, &proxy->here, clock_wall_ms(), &page);
	query_page(query, &page, NULL);
}

static void response_json(struct query *query)
{
	AUTO_STRV struct strv headers = {0};
	AUTO_BUF struct buf text;

	buf_init(&text, 2 * PROXY_PAGE_MAX);
	proxy_page_json(&query->proxy->listed, &text);
	add_page_headers(&headers, "application/json", "'none'");
	query_response(query, text.full ? 500 : 200, &headers, text.data, text.full ? 0 : text.len);
}

static void response_style(struct query *query)
{
	AUTO_STRV struct strv headers = {0};

	strv_add(&headers, "Content-Type: text/css; charset=utf-8");
	strv_add(&headers, "Cache-Control: max-age=600");
	strv_add(&headers, "X-Content-Type-Options: nosniff");
	query_response(query, 200, &headers, html_style, strlen(html_style));
}

static void with_list(struct query *query, void (*go)(struct query *query))
{
	const struct proxy *proxy = query->proxy;

	if (proxy->listed_ms && clock_ms() - proxy->listed_ms < LISTED_FRESH_MS)
		go(query);
	else
		wait_for_poll(query, go);
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

static int proxy_list_runs(struct proxy *proxy, struct err *err)
{
	const struct store_filter filter = {.limit = PROXY_LISTED};
	AUTO(run_list_done) struct run_list list = {0};
	struct store *store;
	bool is_cut = false;

	int r = session_store(proxy->session, &store, err);
	if (r == 0)
		r = store_list(store, &filter, &list, err);
	if (r == 0 && list.n == PROXY_LISTED) {
		is_cut = true;
		r = proxy_add_unfinished(store, &list, err);
	}
	if (r == 0)
		r = runs_refresh(proxy->session, &list, LIST_MS, err);
	if (r < 0)
		return r;
	proxy_page_sort(&list);
	run_list_done(&proxy->listed);
	proxy->listed = list;
	list = (struct run_list){0};
	proxy->listed_cut = is_cut;
	proxy->listed_ms = clock_ms();
	return 0;
}

/*
 * Requests
 */

/* /run/ID: its page has a name of its own, because that of its files must be of the same site. */
static void redirect_to_run(struct query *query, const char *run)
{
	AUTO_BUF struct buf url = {0};
	struct proxy_name name = {.kind = PROXY_RUN};

	AUTO_FREE char *id = mem_strndup(run, strcspn(run, "/?"));
	if (strlen(id) >= sizeof(name.run) ||
		id[strspn(id, "abcdefghijklmnopqrstuvwxyz0123456789-")]) {
		query_refuse(query, 404, "there is no such run", "dlrun ps -a");
		return;
	}
	memcpy(name.run, id, strlen(id) + 1);
	buf_init(&url, URL_MAX);
	proxy_url_add(&name, &query->proxy->here, "/", &url);
	query_redirect(query, url.data);
}

static void response_own(struct query *query)
{
	static const struct {
		const char *path;
		void (*go)(struct query *query);
		bool needs_list;
	} paths[] = {
		{"/", response_index, true},
		{"/runs.json", response_json, true},
		{HTML_STYLE_PATH, response_style, false},
	};
	AUTO_FREE char *path = mem_strndup(query->target, strcspn(query->target, "?"));

	for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
		if (!str_eq(path, paths[i].path))
			continue;
		if (paths[i].needs_list)
			with_list(query, paths[i].go);
		else
			paths[i].go(query);
		return;
	}
	if (str_starts(query->target, RUN_PATH))
		redirect_to_run(query, query->target + strlen(RUN_PATH));
	else
		query_refuse(query, 404, "there is no such page", NULL);
}

static void response_run(struct query *query)
{
	AUTO_FREE char *path = mem_strndup(query->target, strcspn(query->target, "?"));

	if (str_eq(path, HTML_STYLE_PATH))
		response_style(query);
	else if (str_eq(path, "/"))
		show_run(query);
	else
		query_refuse(query, 404, "there is no such page", NULL);
}

static void go_to_run(struct query *query)
{
	if (query->place->is_removed) {
		AUTO_FREE char *what =
			mem_printf("there is no run '%s' any more", query->place->id);
		query_refuse(query, 404, what, "dlrun ps -a");
	} else if (query->name.kind == PROXY_PORT) {
		place_relay(query);
	} else if (query->name.kind == PROXY_FILES) {
		send_file(query);
	} else {
		response_run(query);
	}
}

/* The beginning of an id is another name, which may soon be that of several runs. */
static bool redirect_to_whole(struct query *query)
{
	struct proxy_name whole = query->name;
	AUTO_BUF struct buf url = {0};

	if (str_eq(query->name.run, query->place->id) || !query->is_read)
		return false;
	memcpy(whole.run, query->place->id, sizeof(whole.run));
	buf_init(&url, HTTPD_HEAD_MAX);
	proxy_url_add(&whole, &query->proxy->here, query->target, &url);
	query_redirect(query, url.data);
	return true;
}

static void route(struct query *query)
{
	AUTO_ERR struct err error = {0};
	bool is_ours = query->name.kind != PROXY_PORT;

	if (query->is_connect && is_ours) {
		query_refuse(query, 403, "a CONNECT leads to ports of runs only",
			"6006.RUN.localhost:80, or RUN.localhost:6006");
		return;
	}
	if (is_ours && !query->is_read) {
		query_refuse(query, 405, "these pages can only be read", NULL);
		return;
	}
	if (query->name.kind == PROXY_INDEX) {
		response_own(query);
		return;
	}
	if (place_get(query->proxy, query->name.run, &query->place, &error) < 0) {
		if (query->name.kind == PROXY_RUN && error.code == ERR_CONFIG)
			show_record(query, &error);
		else
			query_fail(query, &error);
		return;
	}
	query->place->users++;
	if (redirect_to_whole(query))
		return;
	if (place_is_fresh(query->place))
		go_to_run(query);
	else
		wait_for_poll(query, go_to_run);
}

static char *header(const struct httpd_request *request, const char *name)
{
	return mem_strdup(field_find(request->headers, name));
}

static void proxy_on_request(
	void *ctx, struct httpd_exchange *exchange, const struct httpd_request *request)
{
	struct proxy *proxy = ctx;
	struct query *query = mem_alloc(1, sizeof(*query));
	AUTO_ERR struct err error = {0};

	*query = (struct query){.proxy = proxy,
		.exchange = exchange,
		.target = mem_strdup(request->target),
		.is_connect = request->is_connect,
		.is_head = str_eq(request->method, "HEAD")};
	query->is_read = !request->is_upgrade && (query->is_head || str_eq(request->method, "GET"));
	httpd_on_gone(exchange, proxy_on_gone, query);
	if (proxy_name_parse(request->host, &query->name, &error) < 0) {
		query_fail(query, &error);
		return;
	}
	if (request->is_connect && query->name.kind == PROXY_RUN) {
		query->name.kind = PROXY_PORT;
		query->name.port = request->port;
	}
	if (query->name.kind == PROXY_FILES) {
		query->range = header(request, "range");
		query->if_none_match = header(request, "if-none-match");
		query->if_range = header(request, "if-range");
	}
	route(query);
}

static void on_refused(void *ctx, const char *text)
{
	(void)ctx;
	log_note("%s", text);
}

/*
 * The loop
 */

static bool proxy_is_ready(const struct query *query, bool of_list)
{
	if (!query->place)
		return of_list;
	return !of_list && (query->place->is_removed || place_is_fresh(query->place));
}

static struct query *find_ready(const struct proxy *proxy, bool of_list)
{
	struct query *query = proxy->waiting;

	while (query && !proxy_is_ready(query, of_list))
		query = query->next;
	return query;
}

static void response_ready(struct proxy *proxy, bool of_list)
{
	struct query *query;

	while ((query = find_ready(proxy, of_list))) {
		unlink_query(query);
		query->go(query);
	}
}

static int proxy_work(struct proxy *proxy, struct err *err)
{
	int r = places_poll(proxy, true, err);

	if (r < 0)
		return r;
	response_ready(proxy, false);
	if (!find_ready(proxy, true))
		return 0;
	r = proxy_list_runs(proxy, err);
	if (r == 0)
		response_ready(proxy, true);
	return r;
}

static int proxy_backoff_over(void *ctx, struct err *err)
{
	struct proxy *proxy = ctx;

	(void)err;
	proxy->timer = NULL;
	loop_stop(proxy->loop);
	return 0;
}

static int proxy_wait_some(struct proxy *proxy, struct err *err)
{
	proxy->timer = loop_add_timer(proxy->loop, clock_ms() + TURN_MS, proxy_backoff_over, proxy);
	proxy->is_pausing = true;
	int r = loop_run(proxy->loop, err);
	proxy->is_pausing = false;
	loop_remove_timer(proxy->loop, TAKE(proxy->timer));
	return r;
}

static int proxy_serve(struct proxy *proxy, struct err *err)
{
	int r = 0;

	while (r == 0) {
		if (*proxy->options->interrupted)
			return err_set(err, E_CANCELED, "interrupted");
		r = proxy_wait_some(proxy, err);
		if (r == 0)
			r = proxy->waiting ? proxy_work(proxy, err)
					   : places_poll(proxy, false, err);
		free_left(proxy);
		places_tidy(proxy, false);
	}
	return r;
}

static void proxy_done(struct proxy *proxy)
{
	while (proxy->waiting)
		query_free(proxy->waiting);
	while (proxy->working)
		query_free(proxy->working);
	httpd_free(proxy->httpd);
	proxy->httpd = NULL;
	free_left(proxy);
	places_tidy(proxy, true);
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
	return proxy_serve(&proxy, err);
}
