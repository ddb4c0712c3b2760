/* SPDX-License-Identifier: Apache-2.0 */
/* Why a conversation with a runner failed, in words. Each sets *ret. */
#ifndef DLRUN_NODE_TALK_SAY_H
#define DLRUN_NODE_TALK_SAY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/util/err.h"
#include "net/stream/channel.h"
#include "node/talk.h"

/* "CLASS text" of the node called name, decoded where it stands. is_early: ahead of the request. */
enum node_class node_say_failure(const char *name, char *line, bool is_early, struct err *ret);
/* The channel ended without an answer. is_opening: not even the mark came. */
void node_say_unanswered(
	const char *name, const struct channel_exit *exit, bool is_opening, struct err *ret);
/* is_opening as above. */
void node_say_silent(const char *name, int64_t limit_ms, bool is_opening, struct err *ret);
void node_say_unexpected(const char *name, const char *line, struct err *ret);

#endif
