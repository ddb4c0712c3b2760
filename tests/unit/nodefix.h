/* SPDX-License-Identifier: Apache-2.0 */
/* A node for tests: whatever the opener runs here, with calls that are waited for. */
#ifndef DLRUN_TESTS_UNIT_NODEFIX_H
#define DLRUN_TESTS_UNIT_NODEFIX_H

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/util/clock.h"
#include "base/util/random.h"
#include "base/util/str.h"
#include "net/stream/channel.h"
#include "node/node.h"
#include "tests/unit/childfix.h"
#include "tests/unit/cutfix.h"
#include "tests/unit/tmpfix.h"

static struct loop *loop;
static struct node *node;
static const char *fake_script; /* for sh -c, with MARK and tmp; NULL: the command itself */

/* Connections are cut behind up to so many bytes; 0: never. Only the first ones; 0: all. */
static uint32_t cut_max;
static int cut_first, n_opened;

struct waited {
	bool is_done;
	int status;
	struct err error;
};

static inline int on_waited(void *ctx, int status, struct err *error, struct err *err)
{
	struct waited *waited = ctx;

	waited->is_done = true;
	waited->status = status;
	err_move(&waited->error, error);
	loop_stop(loop);
	return 0;
}

static inline int on_too_late(void *ctx, struct err *err)
{
	return err_set(err, E_IO, "too late");
}

/* 0, or the id of what it failed with. */
static inline enum err_id wait_for(struct waited *waited)
{
	AUTO_ERR struct err err = {0};
	struct loop_timer *limit = loop_add_timer(loop, clock_ms() + 60000, on_too_late, NULL);

	while (!waited->is_done)
		if (loop_run(loop, &err) < 0)
			fail_msg("%s", err.message);
	loop_remove_timer(loop, limit);
	enum err_id id = waited->error.id;
	assert_int_equal(waited->status != 0, id != E_NONE);
	return id;
}

/* The id alone. */
static inline enum err_id ends(struct waited *waited)
{
	enum err_id id = wait_for(waited);

	if (id != E_NONE)
		print_message("        (%s)\n", waited->error.message);
	err_clear(&waited->error);
	*waited = (struct waited){0};
	return id;
}

static inline struct channel *open_fake(void *ctx, const char *command,
	const struct channel_pty *pty, const struct channel_events *events)
{
	const char *mark = command + strlen(command) - 16;
	const char *const script[] = {"sh", "-c", fake_script, "fake", mark, tmp, NULL};
	const char *const shell[] = {"sh", "-c", command, NULL};

	const char *const *argv = fake_script ? script : shell;

	n_opened++;
	if (pty) {
		struct child child = {0};

		assert_int_equal(
			child_start(&(struct child_spec){.argv = argv, .pty = pty}, &child, NULL),
			0);
		return channel_of_child(loop, &child, events);
	}
	if (!cut_max || (cut_first && n_opened > cut_first))
		return child_channel_open(loop, argv, NULL, events);
	struct cut_channel *cut = cut_new(1 + random_below(cut_max), events);
	const struct channel_events inner = cut_events(cut);

	cut->inner = child_channel_open(loop, argv, NULL, &inner);
	return &cut->channel;
}

static inline void begin_node(const char *script, const char *root, int64_t response_ms)
{
	const struct node_options options = {.loop = loop,
		.name = "gpu1",
		.root = root,
		.opener = {.command = open_fake},
		.response_ms = response_ms};

	fake_script = script;
	assert_int_equal(node_new(&options, NULL, &node, NULL), 0);
}

static inline int make_node_runtime(void **state)
{
	signal(SIGPIPE, SIG_IGN);
	cut_max = 0;
	cut_first = n_opened = 0;
	loop = loop_new();
	return make_tmp(state);
}

static inline int remove_node_runtime(void **state)
{
	node_free(node);
	node = NULL;
	loop_free(loop);
	return remove_tmp(state);
}

#endif
