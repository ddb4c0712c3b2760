/* SPDX-License-Identifier: Apache-2.0 */
#include "app/proxy/proxy_impl.h"

#include <stdlib.h>
#include <string.h>

#include "app/lifecycle/why.h"
#include "app/proxy/proxy_page.h"
#include "app/runs/refresh.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/record/roles.h"
#include "core/store/store.h"
#include "targets/targets.h"

enum {
	ENDED_FRESH_MS = 1000,
	LIVE_FRESH_MS = 15 * 1000,
	REFRESH_AGAIN_MS = 5000, /* at those that are in use */
	IN_USE_MS = 60 * 1000,
	URGENT_MS = 4000,
	LATER_MS = 2000,
	ENDED_GRACE_MS = 5000, /* for what a program had said when it ended */
	PORTS_KEPT = 1000,     /* of one run, which were requested */
	SENTENCE_MAX = 64 << 10,
};

const struct run *place_run(const struct place *place)
{
	return forwarder_run(place->forwarder);
}

static enum run_state proxy_place_state_of(const struct place *place)
{
	return run_state(place_run(place));
}

bool place_is_far(const struct place *place)
{
	return run_state_is_final(proxy_place_state_of(place)) &&
	       target_ops_recorded(place_run(place))->needs_image;
}

static bool may_relay_to(const struct place *place)
{
	return proxy_place_state_of(place) == RUN_RUNNING ||
	       proxy_place_state_of(place) == RUN_UNKNOWN;
}

bool place_is_fresh(const struct place *place)
{
	int64_t ms = may_relay_to(place) ? LIVE_FRESH_MS : ENDED_FRESH_MS;

	return place->refreshed_ms && clock_ms() - place->refreshed_ms < ms;
}

/*
 * Opening, letting go
 */

struct place_list VEC_OF(struct place *);

/* Runs whose targets are asked, and the open places that they belong to. */
struct place_refresh {
	struct proxy *proxy;
	struct refresh *refresh;
	struct run_list runs;
	struct place_list places;
};

static void place_refresh_free(struct place_refresh *batch)
{
	if (!batch)
		return;
	refresh_cancel(batch->refresh);
	vec_foreach (struct place *, place, &batch->places) {
		(*place)->refresh = NULL;
		(*place)->users--;
	}
	run_list_done(&batch->runs);
	vec_done(&batch->places);
	free(batch);
}

static void place_free(struct place *place)
{
	struct place_port *port;

	if (!place)
		return;
	place_refresh_free(place->refresh);
	forwarder_free(place->forwarder);
	while ((port = place->ports)) {
		place->ports = port->next;
		err_done(&port->error);
		free(port);
	}
	outputs_files_done(&place->files);
	free(place);
}
AUTO_POINTER(struct place, place_free)

static bool is_in_use(const struct place *place)
{
	return place->users || forwarder_count(place->forwarder);
}

static void remove_place(struct proxy *proxy, struct place **at)
{
	struct place *place = *at;

	*at = place->next;
	proxy->n_places--;
	place_free(place);
}

void places_tidy(struct proxy *proxy, bool all)
{
	int64_t now_ms = clock_ms();

	for (struct place **at = &proxy->places; *at;) {
		if ((*at)->ended_ms && now_ms - (*at)->ended_ms >= ENDED_GRACE_MS)
			forwarder_end((*at)->forwarder);
		if (all || (!is_in_use(*at) && now_ms - (*at)->used_ms >= PROXY_IDLE_MS))
			remove_place(proxy, at);
		else
			at = &(*at)->next;
	}
}

/* Make place for one more: that which was not used for the longest time goes. */
static int proxy_place_evict(struct proxy *proxy, struct err *err)
{
	struct place **oldest = NULL;

	if (proxy->n_places < PROXY_RUNS_MAX)
		return 0;
	for (struct place **at = &proxy->places; *at; at = &(*at)->next)
		if (!is_in_use(*at) && (!oldest || (*at)->used_ms < (*oldest)->used_ms))
			oldest = at;
	if (!oldest)
		return err_set(err, E_DATA_LIMIT,
			"%d runs are in use at the same time: no more can be", PROXY_RUNS_MAX);
	remove_place(proxy, oldest);
	return 0;
}

/* Name the run that loses or regains its connection. */
static void proxy_place_on_notice(void *ctx, const char *text)
{
	const struct place *place = ctx;
	const struct proxy_options *options = place->proxy->options;
	AUTO_FREE char *line = mem_printf("%s: %s", place->id, text);

	options->notice(options->ctx, line);
}

static int place_new(struct proxy *proxy, struct run *run, struct place **ret, struct err *err)
{
	AUTO(place_free_auto) struct place *place = mem_alloc(1, sizeof(*place));
	const struct forwarder_options options = {.session = proxy->session,
		.run = run,
		.notice = proxy_place_on_notice,
		.ctx = place};

	place->proxy = proxy;
	memcpy(place->id, run_id(run), strnlen(run_id(run), sizeof(place->id) - 1));
	int r = forwarder_open(&options, &place->forwarder, err);
	if (r < 0)
		return r;
	place->next = proxy->places;
	proxy->places = place;
	proxy->n_places++;
	*ret = TAKE(place);
	return 0;
}

struct place *place_find(const struct proxy *proxy, const char *id)
{
	for (struct place *place = proxy->places; place; place = place->next)
		if (str_eq(place->id, id) && !place->is_removed)
			return place;
	return NULL;
}

int place_get(struct proxy *proxy, const char *run, struct place **ret, struct err *err)
{
	struct place *place = place_find(proxy, run);
	AUTO_RUN struct run *found = NULL;
	struct store *store;
	int r = 0;

	if (!place) {
		r = session_store(proxy->session, &store, err);
		if (r == 0)
			r = store_resolve(store, run, &found, err);
		if (r < 0)
			return r;
		place = place_find(proxy, run_id(found));
	}
	if (!place) {
		r = proxy_place_evict(proxy, err);
		if (r == 0)
			r = place_new(proxy, found, &place, err);
		if (r < 0)
			return r;
		forwarder_take(place->forwarder, TAKE(found));
	}
	place->used_ms = clock_ms();
	*ret = place;
	return 0;
}

/*
 * States
 */

static bool is_due(const struct place *place, bool is_waited_for)
{
	int64_t now_ms = clock_ms();

	if (place->is_removed || place->refresh)
		return false;
	return is_waited_for || (!run_state_is_final(proxy_place_state_of(place)) &&
					now_ms - place->refreshed_ms >= REFRESH_AGAIN_MS &&
					(is_in_use(place) || now_ms - place->used_ms < IN_USE_MS));
}

/* The row as it is now; NULL: it is gone, or cannot be read. */
static struct run *read_row(struct store *store, struct place *place)
{
	AUTO_ERR struct err error = {0};
	struct run *run = NULL;

	if (store_get(store, place->id, &run, &error) < 0 && error.id == E_RUN_NOT_FOUND)
		place->is_removed = true;
	return run;
}

static int proxy_place_on_refreshed(void *ctx, int status, struct err *err UNUSED)
{
	struct place_refresh *batch = ctx;

	batch->refresh = NULL;
	if (status < 0)
		return status;
	for (size_t i = 0; i < batch->places.n; i++) {
		struct place *place = batch->places.v[i];
		struct run *run = TAKE(batch->runs.v[i]);

		place->refreshed_ms = clock_ms();
		forwarder_take(place->forwarder, run);
		if (!run_state_is_final(proxy_place_state_of(place)))
			place->ended_ms = 0;
		else if (!place->ended_ms)
			place->ended_ms = place->refreshed_ms;
		requests_go_on(batch->proxy, place);
	}
	place_refresh_free(batch);
	return 0;
}

static void place_refresh_begin(
	struct proxy *proxy, struct place_refresh *batch, int64_t timeout_ms)
{
	batch->proxy = proxy;
	batch->refresh = refresh_start(
		proxy->session, &batch->runs, timeout_ms, proxy_place_on_refreshed, batch);
}

/* A run that requests wait for is refreshed by itself, because other targets may be silent. */
int places_refresh(struct proxy *proxy, struct err *err)
{
	struct place_refresh *later = NULL;
	struct store *store;
	int r = session_store(proxy->session, &store, err);

	for (struct place *place = proxy->places; r == 0 && place; place = place->next) {
		bool is_waited_for = requests_wait_for(proxy, place);
		struct run *run;

		if (!is_due(place, is_waited_for))
			continue;
		run = read_row(store, place);
		if (!run) {
			place->refreshed_ms = clock_ms();
			requests_go_on(proxy, place);
			continue;
		}
		struct place_refresh *batch =
			later && !is_waited_for ? later : mem_alloc(1, sizeof(*batch));
		*vec_push(&batch->runs) = run;
		*vec_push(&batch->places) = place;
		place->users++;
		place->refresh = batch;
		if (is_waited_for)
			place_refresh_begin(proxy, batch, URGENT_MS);
		else
			later = batch;
	}
	if (later)
		place_refresh_begin(proxy, later, LATER_MS);
	return r;
}

/*
 * Ports
 */

static void proxy_place_on_relayed(void *ctx, int status, struct err *error)
{
	struct place_port *port = ctx;

	err_clear(&port->error);
	if (status < 0)
		err_move(&port->error, error);
}

static int on_connect(void *ctx, int fd, struct err *err)
{
	struct place_port *port = ctx;

	err_clear(&port->error);
	return forwarder_relay(port->place->forwarder, port->rank, port->port, fd,
		proxy_place_on_relayed, port, err);
}

static void on_why(void *ctx, char **ret_what, char **ret_hint)
{
	const struct place_port *port = ctx;
	const struct place *place = port->place;
	AUTO_FREE char *urls = proxy_page_ports(place_run(place), &place->proxy->here);

	const struct json *doc = place_run(place)->doc;
	AUTO_FREE char *part = json_get(doc, "roles") ? roles_rank_text(doc, port->rank) : NULL;

	*ret_what = mem_printf("port %u of %s%s%s: %s", port->port, place->id, part ? ", " : "",
		part ? part : "",
		err_is_set(&port->error) ? port->error.message
					 : "the program ended the connection without an answer");
	*ret_hint = urls ? mem_printf("its ports, as it was submitted: %s", urls)
			 : mem_printf("dlrun logs %s", place->id);
}

static void proxy_place_on_released(void *ctx)
{
	const struct place_port *port = ctx;

	port->place->users--;
	port->place->used_ms = clock_ms();
}

static struct place_port *proxy_place_port_of(struct place *place, int rank, uint16_t port)
{
	struct place_port *found;
	size_t n = 0;

	for (found = place->ports; found; found = found->next, n++)
		if (found->rank == rank && found->port == port)
			return found;
	if (n >= PORTS_KEPT)
		return NULL;
	found = mem_alloc(1, sizeof(*found));
	*found = (struct place_port){
		.place = place, .rank = rank, .port = port, .next = place->ports};
	place->ports = found;
	return found;
}

/* The rank that a name means: a role's is told by "-N" behind its name, else it is 0. */
static int proxy_place_rank(
	const struct run *run, const struct proxy_name *name, int *ret, struct err *err)
{
	const char *dash = strrchr(name->role, '-');
	int64_t rank = 0;
	int first, nodes;

	*ret = name->rank;
	if (!*name->role)
		return forwarder_check_rank(run, name->rank, err);
	if (roles_find(run->doc, name->role, &first, &nodes, err) == 0) {
		*ret = first;
		return 0;
	}
	AUTO_FREE char *role = dash ? mem_strndup(name->role, (size_t)(dash - name->role)) : NULL;
	if (!dash || roles_find(run->doc, role, &first, &nodes, NULL) < 0)
		return -(int)err->code;
	err_clear(err);
	if (str_to_int(dash + 1, 0, nodes - 1, "rank", &rank, NULL) < 0)
		return err_set(err, E_USAGE, "role %s of %s has the ranks 0 to %d", role,
			run_id(run), nodes - 1);
	*ret = first + (int)rank;
	return 0;
}

void place_relay(struct request *request)
{
	struct place *place = request->place;
	AUTO_ERR struct err error = {0};
	int rank = 0;

	if (!may_relay_to(place) || !run_handle(place_run(place))) {
		/* Refuse with the sentence of `dlrun why`: no program is there to respond. */
		AUTO_BUF struct buf sentence = buf_with(SENTENCE_MAX),
				    hint = buf_with(SENTENCE_MAX);

		run_why(place_run(place), &sentence, &hint);
		request_refuse(request, 503, sentence.data, hint.len ? hint.data : NULL);
		return;
	}
	int r = forwarder_check(place->forwarder, &error);
	if (r == 0)
		r = proxy_place_rank(place_run(place), &request->name, &rank, &error);
	if (r < 0) {
		request_fail(request, &error);
		return;
	}
	struct place_port *port = proxy_place_port_of(place, rank, request->name.port);
	if (!port) {
		request_refuse(request, 503, "too many ports of this run were asked for", NULL);
		return;
	}
	AUTO_FREE char *key = mem_printf(
		"%s/%d/%d/%u", place->id, run_attempts(place_run(place)), port->rank, port->port);
	AUTO_FREE char *host = mem_printf("localhost:%u", port->port);
	const struct httpd_route route = {.key = key,
		.connect = on_connect,
		.why = on_why,
		.free = proxy_place_on_released,
		.ctx = port,
		.host = host};
	struct httpd_exchange *exchange = request->exchange;
	place->users++;
	request_free(request);
	httpd_relay(exchange, &route);
}
