/* SPDX-License-Identifier: Apache-2.0 */
/* A channel to a program that a test starts. */
#ifndef DLRUN_TESTS_UNIT_CHILDFIX_H
#define DLRUN_TESTS_UNIT_CHILDFIX_H

#include "net/stream/channel.h"

static inline struct channel *child_channel_open(struct loop *loop, const char *const *argv,
	const char *const *env, const struct channel_events *events)
{
	const struct child_spec spec = {.argv = argv, .env = env};
	struct child child = {0};

	assert_int_equal(child_start(&spec, &child, NULL), 0);
	return channel_of_child(loop, &child, events);
}

#endif
