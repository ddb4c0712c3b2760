/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "app/proxy/proxy_impl.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"

enum {
	FILES_LISTED_MAX = 5000, /* of a run */
	FILES_WAIT_MS = 4000,    /* then the page comes without those that are not there */
	FILES_LIVE_MS = 3000,
	FILES_ENDED_MS = 30 * 1000,
};

/* Listing of the files of one run. */
struct files_item {
	struct files_reading *reading;
	struct place *place;
	struct outputs_call *call; /* NULL: not under way */
	struct outputs_files found;
};
struct files_items VEC_OF(struct files_item *);

struct files_reading {
	struct request *request;
	void (*done)(struct request *request);
	struct files_items items;
	size_t n_open;
	struct loop_timer *timer;
};

bool place_files_are_fresh(const struct place *place)
{
	bool is_live = !run_state_is_final(run_state(place_run(place)));
	int64_t ms = is_live ? FILES_LIVE_MS : FILES_ENDED_MS;

	return place->files_ms && clock_ms() - place->files_ms < ms;
}

void place_set_files(struct place *place, struct outputs_files *files)
{
	outputs_files_done(&place->files);
	place->files = *files;
	*files = (struct outputs_files){0};
	place->files_ms = clock_ms();
}

void files_stop(void *reading_ptr)
{
	struct files_reading *reading = reading_ptr;

	loop_remove_timer(reading->request->proxy->loop, reading->timer);
	vec_foreach (struct files_item *, item, &reading->items) {
		outputs_cancel((*item)->call);
		outputs_files_done(&(*item)->found);
		(*item)->place->users--;
		free(*item);
	}
	vec_done(&reading->items);
	free(reading);
}

static int files_on_end(void *ctx, struct err *err UNUSED)
{
	struct files_reading *reading = ctx;

	reading->timer = NULL;
	reading->done(reading->request);
	return 0;
}

static void files_end_at(struct files_reading *reading, int64_t at_ms)
{
	struct loop *loop = reading->request->proxy->loop;

	loop_remove_timer(loop, reading->timer);
	reading->timer = loop_add_timer(loop, at_ms, files_on_end, reading);
}

/* A list that could not be read whole is shown as far as it came. */
static void files_on_listed(void *ctx, int status UNUSED, struct err *error UNUSED)
{
	struct files_item *item = ctx;

	item->call = NULL;
	place_set_files(item->place, &item->found);
	if (--item->reading->n_open == 0)
		files_end_at(item->reading, 0);
}

static void files_begin(struct files_reading *reading, const struct run *run)
{
	struct files_item *item = mem_alloc(1, sizeof(*item));
	const char *handle = run_handle(run);

	item->reading = reading;
	if (!handle || place_get(reading->request->proxy, run_id(run), &item->place, NULL) < 0) {
		free(item);
		return;
	}
	item->place->users++;
	*vec_push(&reading->items) = item;
	if (place_is_far(item->place) || place_files_are_fresh(item->place))
		return;
	reading->n_open++;
	item->call = outputs_list(forwarder_target(item->place->forwarder), handle, NULL,
		OUTPUTS_THOROUGH, FILES_LISTED_MAX, &item->found, files_on_listed, item);
}

struct files_reading *files_read(struct request *request, const struct proxy_runs *runs,
	void (*done)(struct request *request))
{
	struct files_reading *reading = mem_alloc(1, sizeof(*reading));

	*reading = (struct files_reading){.request = request, .done = done};
	vec_foreach (struct run *, run, runs)
		files_begin(reading, *run);
	files_end_at(reading, reading->n_open ? clock_ms() + FILES_WAIT_MS : 0);
	return reading;
}

void files_known(
	const struct proxy *proxy, const struct proxy_runs *runs, struct proxy_media_list *ret)
{
	static const struct outputs_files none = {0};

	vec_foreach (struct run *, run, runs) {
		const struct place *place = place_find(proxy, run_id(*run));

		*vec_push(ret) = (struct proxy_media){*run, place ? &place->files : &none};
	}
}
