/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/util/mem.h"
#include "targets/ssh/target_gang.h"

/*
 * The results of several hosts, one after the other, below rank-N.
 */

struct fetching {
	struct target_work work;
	struct target_call inner;
	struct target *target;
	struct target_call *call;
	struct fetch_sink *sink;
	char *handle;
	int rank, n;
	bool is_open;
};

static void drop_fetching(struct target_work *work)
{
	struct fetching *fetching = (struct fetching *)work;

	if (fetching->is_open)
		target_call_cancel(&fetching->inner);
	free(fetching->handle);
	free(fetching);
}

static int begin_rank(struct fetching *fetching, struct err *err);

static void on_rank(struct target_call *call, int status, struct err *err)
{
	struct fetching *fetching =
		(struct fetching *)((char *)call - offsetof(struct fetching, inner));

	fetching->is_open = false;
	if (status == 0 && ++fetching->rank < fetching->n) {
		status = begin_rank(fetching, err);
		if (status == 0)
			return;
	}
	target_call_end(fetching->call, status, err);
}

static int begin_rank(struct fetching *fetching, struct err *err)
{
	AUTO_FREE char *one = NULL, *prefix = mem_printf("rank-%d/", fetching->rank);

	fetching->inner = (struct target_call){.done = on_rank};
	int r = node_handle_rank(fetching->handle, fetching->rank, &one, err);
	if (r == 0)
		r = node_fetch_rank(
			fetching->target, one, prefix, fetching->sink, &fetching->inner, err);
	fetching->is_open = r == 0;
	return r;
}

int target_gang_fetch(struct target *target, const char *handle, struct fetch_sink *sink,
	struct target_call *call, struct err *err)
{
	struct fetching *fetching = mem_alloc(1, sizeof(*fetching));

	*fetching = (struct fetching){.work = {drop_fetching},
		.target = target,
		.call = call,
		.sink = sink,
		.handle = mem_strdup(handle),
		.n = 1};
	for (const char *s = handle; *s; s++)
		fetching->n += *s == ',';
	int r = begin_rank(fetching, err);
	if (r < 0)
		drop_fetching(&fetching->work);
	else
		target_call_begin(call, &fetching->work);
	return r;
}
