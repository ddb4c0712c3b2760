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

static void unlink_ask(struct ask *ask)
{
	if (!ask->at)
		return;
	*ask->at = ask->next;
	if (ask->next)
		ask->next->at = ask->at;
	ask->at = NULL;
	ask->next = NULL;
}

static void link_ask(struct ask *ask, struct ask **list)
{
	unlink_ask(ask);
	ask->next = *list;
	ask->at = list;
	if (ask->next)
		ask->next->at = &ask->next;
	*list = ask;
}

void ask_free(struct ask *ask)
{
	if (!ask)
		return;
	unlink_ask(ask);
	if (ask->work)
		ask->stop(ask->work);
	if (ask->place)
		ask->place->users--;
	free(ask->target);
	free(ask->range);
	free(ask->if_none_match);
	free(ask->if_range);
	free(ask);
}

/* The exchange goes on without the ask. */
static struct front_exchange *proxy_leave(struct ask *ask)
{
	struct front_exchange *exchange = ask->exchange;

	front_on_gone(exchange, NULL, NULL);
	ask_free(ask);
	return exchange;
}

void ask_response(
	struct ask *ask, int status, const struct strv *headers, const void *data, size_t len)
{
	front_response(proxy_leave(ask), status, headers, data, len);
}

void ask_refuse(struct ask *ask, int status, const char *what, const char *hint)
{
	front_refuse(proxy_leave(ask), status, what, hint);
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

void ask_fail(struct ask *ask, const struct err *err)
{
	AUTO_BUF struct buf hint;

	buf_init(&hint, TEXT_MAX);
	for (size_t i = 0; i < err->n_evidence; i++)
		buf_addf(&hint, "%s%s", hint.len ? "; " : "", err->evidence[i]);
	if (err->hint)
		buf_addf(&hint, "%s%s", hint.len ? "; " : "", err->hint);
	ask_refuse(ask, proxy_status_of(err), err->message, hint.len ? hint.data : NULL);
}

void ask_redirect(struct ask *ask, const char *url)
{
	AUTO_STRV struct strv headers = {0};

	strv_addf(&headers, "Location: %s", url);
	strv_add(&headers, "Cache-Control: no-store");
	ask_response(ask, 307, &headers, "", 0);
}

void ask_work(struct ask *ask, void *work, void (*stop)(void *work))
{
	link_ask(ask, &ask->proxy->working);
	ask->work = work;
	ask->stop = stop;
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
	ask_free(ctx);
}

/* Wait until the place, or the list of runs, has been refreshed. */
static void wait_for_look(struct ask *ask, void (*go)(struct ask *ask))
{
	struct proxy *proxy = ask->proxy;

	ask->go = go;
	link_ask(ask, &proxy->waiting);
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

void ask_page(struct ask *ask, const struct buf *page, const char *files)
{
	AUTO_STRV struct strv headers = {0};
	AUTO_ERR struct err error = {0};

	if (buf_check(page, "the page", &error) < 0) {
		ask_fail(ask, &error);
		return;
	}
	add_page_headers(&headers, "text/html; charset=utf-8", files ? files : "'none'");
	ask_response(ask, 200, &headers, page->data, page->len);
}

static void response_index(struct ask *ask)
{
	struct proxy *proxy = ask->proxy;
	AUTO_BUF struct buf page;

	buf_init(&page, PROXY_PAGE_MAX);
	proxy_page_index(&proxy->listed, proxy->listed_cut, &proxy->here, clock_wall_ms(), &page);
	ask_page(ask, &page, NULL);
}

static void response_json(struct ask *ask)
{
	AUTO_STRV struct strv headers = {0};
	AUTO_BUF struct buf text;

	buf_init(&text, 2 * PROXY_PAGE_MAX);
	proxy_page_json(&ask->proxy->listed, &text);
	add_page_headers(&headers, "application/json", "'none'");
	ask_response(ask, text.full ? 500 : 200, &headers, text.data, text.full ? 0 : text.len);
}

static void response_style(struct ask *ask)
{
	AUTO_STRV struct strv headers = {0};

	strv_add(&headers, "Content-Type: text/css; charset=utf-8");
	strv_add(&headers, "Cache-Control: max-age=600");
	strv_add(&headers, "X-Content-Type-Options: nosniff");
	ask_response(ask, 200, &headers, html_style, strlen(html_style));
}

static void with_list(struct ask *ask, void (*go)(struct ask *ask))
{
	const struct proxy *proxy = ask->proxy;

	if (proxy->listed_ms && clock_ms() - proxy->listed_ms < LISTED_FRESH_MS)
		go(ask);
	else
		wait_for_look(ask, go);
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
static void redirect_to_run(struct ask *ask, const char *run)
{
	AUTO_BUF struct buf url = {0};
	struct proxy_name name = {.kind = PROXY_RUN};

	AUTO_FREE char *id = mem_strndup(run, strcspn(run, "/?"));
	if (strlen(id) >= sizeof(name.run) ||
		id[strspn(id, "abcdefghijklmnopqrstuvwxyz0123456789-")]) {
		ask_refuse(ask, 404, "there is no such run", "dlrun ps -a");
		return;
	}
	memcpy(name.run, id, strlen(id) + 1);
	buf_init(&url, URL_MAX);
	proxy_url_add(&name, &ask->proxy->here, "/", &url);
	ask_redirect(ask, url.data);
}

static void response_own(struct ask *ask)
{
	static const struct {
		const char *path;
		void (*go)(struct ask *ask);
		bool needs_list;
	} paths[] = {
		{"/", response_index, true},
		{"/runs.json", response_json, true},
		{HTML_STYLE_PATH, response_style, false},
	};
	AUTO_FREE char *path = mem_strndup(ask->target, strcspn(ask->target, "?"));

	for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
		if (!str_eq(path, paths[i].path))
			continue;
		if (paths[i].needs_list)
			with_list(ask, paths[i].go);
		else
			paths[i].go(ask);
		return;
	}
	if (str_starts(ask->target, RUN_PATH))
		redirect_to_run(ask, ask->target + strlen(RUN_PATH));
	else
		ask_refuse(ask, 404, "there is no such page", NULL);
}

static void response_run(struct ask *ask)
{
	AUTO_FREE char *path = mem_strndup(ask->target, strcspn(ask->target, "?"));

	if (str_eq(path, HTML_STYLE_PATH))
		response_style(ask);
	else if (str_eq(path, "/"))
		show_run(ask);
	else
		ask_refuse(ask, 404, "there is no such page", NULL);
}

static void go_to_run(struct ask *ask)
{
	if (ask->place->is_removed) {
		AUTO_FREE char *what = mem_printf("there is no run '%s' any more", ask->place->id);
		ask_refuse(ask, 404, what, "dlrun ps -a");
	} else if (ask->name.kind == PROXY_PORT) {
		place_carry(ask);
	} else if (ask->name.kind == PROXY_FILES) {
		send_file(ask);
	} else {
		response_run(ask);
	}
}

/* The beginning of an id is another name, which may soon be that of several runs. */
static bool redirect_to_whole(struct ask *ask)
{
	struct proxy_name whole = ask->name;
	AUTO_BUF struct buf url = {0};

	if (str_eq(ask->name.run, ask->place->id) || !ask->is_read)
		return false;
	memcpy(whole.run, ask->place->id, sizeof(whole.run));
	buf_init(&url, FRONT_HEAD_MAX);
	proxy_url_add(&whole, &ask->proxy->here, ask->target, &url);
	ask_redirect(ask, url.data);
	return true;
}

static void route(struct ask *ask)
{
	AUTO_ERR struct err error = {0};
	bool is_ours = ask->name.kind != PROXY_PORT;

	if (ask->is_connect && is_ours) {
		ask_refuse(ask, 403, "a CONNECT leads to ports of runs only",
			"6006.RUN.localhost:80, or RUN.localhost:6006");
		return;
	}
	if (is_ours && !ask->is_read) {
		ask_refuse(ask, 405, "these pages can only be read", NULL);
		return;
	}
	if (ask->name.kind == PROXY_INDEX) {
		response_own(ask);
		return;
	}
	if (place_get(ask->proxy, ask->name.run, &ask->place, &error) < 0) {
		if (ask->name.kind == PROXY_RUN && error.code == ERR_CONFIG)
			show_record(ask, &error);
		else
			ask_fail(ask, &error);
		return;
	}
	ask->place->users++;
	if (redirect_to_whole(ask))
		return;
	if (place_is_fresh(ask->place))
		go_to_run(ask);
	else
		wait_for_look(ask, go_to_run);
}

static char *header(const struct front_request *request, const char *name)
{
	return mem_strdup(field_find(request->headers, name));
}

static void proxy_on_request(
	void *ctx, struct front_exchange *exchange, const struct front_request *request)
{
	struct proxy *proxy = ctx;
	struct ask *ask = mem_alloc(1, sizeof(*ask));
	AUTO_ERR struct err error = {0};

	*ask = (struct ask){.proxy = proxy,
		.exchange = exchange,
		.target = mem_strdup(request->target),
		.is_connect = request->is_connect,
		.is_head = str_eq(request->method, "HEAD")};
	ask->is_read = !request->is_upgrade && (ask->is_head || str_eq(request->method, "GET"));
	front_on_gone(exchange, proxy_on_gone, ask);
	if (proxy_name_parse(request->host, &ask->name, &error) < 0) {
		ask_fail(ask, &error);
		return;
	}
	if (request->is_connect && ask->name.kind == PROXY_RUN) {
		ask->name.kind = PROXY_PORT;
		ask->name.port = request->port;
	}
	if (ask->name.kind == PROXY_FILES) {
		ask->range = header(request, "range");
		ask->if_none_match = header(request, "if-none-match");
		ask->if_range = header(request, "if-range");
	}
	route(ask);
}

static void on_refused(void *ctx, const char *text)
{
	(void)ctx;
	log_note("%s", text);
}

/*
 * The loop
 */

static bool proxy_is_ready(const struct ask *ask, bool of_list)
{
	if (!ask->place)
		return of_list;
	return !of_list && (ask->place->is_removed || place_is_fresh(ask->place));
}

static struct ask *find_ready(const struct proxy *proxy, bool of_list)
{
	struct ask *ask = proxy->waiting;

	while (ask && !proxy_is_ready(ask, of_list))
		ask = ask->next;
	return ask;
}

static void response_ready(struct proxy *proxy, bool of_list)
{
	struct ask *ask;

	while ((ask = find_ready(proxy, of_list))) {
		unlink_ask(ask);
		ask->go(ask);
	}
}

static int proxy_work(struct proxy *proxy, struct err *err)
{
	int r = places_look(proxy, true, err);

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

static int proxy_pause_over(void *ctx, struct err *err)
{
	struct proxy *proxy = ctx;

	(void)err;
	proxy->timer = NULL;
	loop_stop(proxy->loop);
	return 0;
}

static int proxy_wait_some(struct proxy *proxy, struct err *err)
{
	proxy->timer = loop_add_timer(proxy->loop, clock_ms() + TURN_MS, proxy_pause_over, proxy);
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
					   : places_look(proxy, false, err);
		free_left(proxy);
		places_tidy(proxy, false);
	}
	return r;
}

static void proxy_done(struct proxy *proxy)
{
	while (proxy->waiting)
		ask_free(proxy->waiting);
	while (proxy->working)
		ask_free(proxy->working);
	front_free(proxy->front);
	proxy->front = NULL;
	free_left(proxy);
	places_tidy(proxy, true);
	run_list_done(&proxy->listed);
}

int run_proxy(struct session *session, const struct proxy_options *options, struct err *err)
{
	AUTO(proxy_done)
	struct proxy proxy = {
		.session = session, .options = options, .loop = session_loop(session)};
	const struct front_options front = {.loop = proxy.loop,
		.port = options->port,
		.is_exact = options->is_exact,
		.request = proxy_on_request,
		.notice = on_refused,
		.ctx = &proxy};
	struct store *store;

	int r = session_store(session, &store, err);
	if (r == 0)
		r = front_open(&front, &proxy.front, err);
	if (r < 0)
		return r;
	proxy.here = (struct proxy_here){front_port(proxy.front), front_token(proxy.front)};
	options->listening(options->ctx, &proxy.here);
	return proxy_serve(&proxy, err);
}
