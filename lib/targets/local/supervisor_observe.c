/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/local/supervisor_impl.h"

#include <stdlib.h>

#include "base/data/json.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "core/attempt/collect.h"
#include "host/gpu.h"
#include "targets/local/observe.h"

/*
 * Looking at the program while it runs, for its record.
 */

/* dlrun top shows the written file: on a local disk it is written with each sample. */
enum {
	WRITE_MS = 1000,
	WRITE_NETWORK_MS = 10000,
	COLLECT_FIRST_MS = 1000, /* a program that ends sooner pays for no walk but the last */
	COLLECT_MS = 2000,
	COLLECT_REST_FOR = 100, /* a walk of 20 ms is followed by 2 s of rest */
};

static void write_observed(struct supervisor *sup, const struct json *observed)
{
	AUTO_BUF struct buf text;

	buf_init(&text, OBSERVED_MAX);
	json_print(observed, &text);
	if (buf_check(&text, OBSERVED_FILE, NULL) == 0)
		fs_replace(OBSERVED_FILE, text.data, text.len, 0600, FS_SYNC_NONE, NULL);
	sup->observed_ms = clock_ms();
}

static bool is_write_due(const struct supervisor *sup)
{
	int64_t passed_ms = clock_ms() - sup->observed_ms;

	return !sup->observed_ms ||
	       passed_ms >= (fs_is_network(sup->dir) ? WRITE_NETWORK_MS : WRITE_MS);
}

/* Curves and parameters that the program writes into its tree. A walk that takes long is rare. */
static void collect_events(struct supervisor *sup)
{
	int64_t start_ms = clock_ms();

	if (start_ms < sup->collect_ms)
		return;
	collect_results(".", sup->job, COLLECT_EVENTS, NULL);
	int64_t rest_ms = (clock_ms() - start_ms) * COLLECT_REST_FOR;
	sup->collect_ms = clock_ms() + (rest_ms > COLLECT_MS ? rest_ms : COLLECT_MS);
}

static int on_look(void *ctx, struct err *err)
{
	struct supervisor *sup = ctx;
	int64_t next_ms;

	(void)err;
	sup->observe_timer = NULL;
	if (sup->phase != PHASE_RUNNING)
		return 0;
	collect_events(sup);
	next_ms = observer_look(sup->observer);
	if (is_write_due(sup)) {
		AUTO_JSON struct json *observed = observer_json(sup->observer);
		write_observed(sup, observed);
	}
	sup->observe_timer = loop_add_timer(sup->loop, clock_ms() + next_ms, on_look, sup);
	return 0;
}

void sup_observe_begin(struct supervisor *sup)
{
	AUTO_FREE char *log = fs_join(sup->dir, ATTEMPT_LOG);
	struct gpu_list given;

	attempt_gpus(".", &given);
	struct observer_spec spec = {
		.outputs = sup->job->outputs,
		.log = log,
		.family = &sup->state.family,
		.program = sup->state.program.pid,
		.gpus = given.n ? &given : NULL,
	};

	sup->observer = observer_new(&spec);
	sup->collect_ms = clock_ms() + COLLECT_FIRST_MS;
	sup->observe_timer = loop_add_timer(sup->loop, clock_ms(), on_look, sup);
}

void sup_observe_end(struct supervisor *sup)
{
	struct json *observed;

	loop_remove_timer(sup->loop, sup->observe_timer);
	sup->observe_timer = NULL;
	if (!sup->observer)
		return;
	observer_finish(sup->observer, sup->cpu_s, sup->peak_bytes);
	observed = observer_json(sup->observer);
	write_observed(sup, observed);
	json_free(sup->end.observed);
	sup->end.observed = observed;
}
