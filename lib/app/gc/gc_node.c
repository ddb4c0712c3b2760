/* SPDX-License-Identifier: Apache-2.0 */
#include "app/gc/gc_node.h"

#include <stdlib.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/config.h"
#include "targets/ssh/target_node.h"
#include "targets/targets.h"

struct cleaning {
	struct loop *loop;
	bool over;
	int status;
	struct err err;
};

static int on_cleaned(void *ctx, int status, struct err *fault, struct err *err)
{
	struct cleaning *cleaning = ctx;

	(void)err;
	cleaning->over = true;
	cleaning->status = status;
	if (status < 0)
		err_move(&cleaning->err, fault);
	loop_stop(cleaning->loop);
	return 0;
}

static int clean_host(struct session *session, struct node_host *host, int64_t keep_ms,
	bool dry_run, struct node_freed *ret, struct err *err)
{
	struct cleaning cleaning = {.loop = session_loop(session)};
	struct node_call *call = node_gc(
		host->node, keep_ms / 1000, GC_NODE_BYTES, dry_run, ret, on_cleaned, &cleaning);
	int r = 0;

	while (r == 0 && !cleaning.over)
		r = loop_run(cleaning.loop, err);
	if (!cleaning.over)
		node_cancel(call);
	else if (cleaning.status < 0)
		r = err_move(err, &cleaning.err);
	err_done(&cleaning.err);
	return r;
}

static int open_target(
	struct session *session, const char *name, struct target **ret, struct err *err)
{
	struct config *config;
	int r = session_config(session, &config, err);

	if (r < 0)
		return r;
	const struct json *definition = config_target(config, name);
	const struct target_ops *ops = target_ops_named(config, name);
	if (definition && !(ops && ops->has_login)) {
		AUTO_FREE char *shown = str_shown(name);
		err_set(err, E_USAGE, "target %s is not an SSH host", shown);
		return err_hint(err, "dlrun targets");
	}
	AUTO_FREE char *whole =
		definition || target_node_is(name) ? mem_strdup(name) : mem_printf("ssh:%s", name);
	return target_open(session, whole, ret, err);
}

int gc_node(struct session *session, const char *name, int64_t keep_ms, bool dry_run,
	struct node_freed *ret, struct err *err)
{
	AUTO(target_free_auto) struct target *target = NULL;

	*ret = (struct node_freed){0};
	int r = open_target(session, name, &target, err);
	if (r < 0)
		return r;
	const struct target_node *node = target_node_of(target);
	for (size_t i = 0; i < node->hosts.n && r == 0; i++) {
		struct node_freed freed = {0};
		struct node_host *host;
		r = node_open(session, node->hosts.v[i], node->root, &host, err);
		if (r == 0)
			r = clean_host(session, host, keep_ms, dry_run, &freed, err);
		ret->layers_bytes += freed.layers_bytes;
		ret->trees_bytes += freed.trees_bytes;
		ret->data_bytes += freed.data_bytes;
		ret->count += freed.count;
	}
	return r;
}
