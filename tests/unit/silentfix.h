/* SPDX-License-Identifier: Apache-2.0 */
/* A run on a host that takes a connection and never responds, in the session of runfix.h. */
#ifndef DLRUN_TESTS_UNIT_SILENTFIX_H
#define DLRUN_TESTS_UNIT_SILENTFIX_H

#include "targets/ssh/target_node.h"
#include "tests/unit/childfix.h"
#include "tests/unit/runfix.h"

static inline struct channel *silent_open(void *ctx, const char *command,
	const struct channel_pty *pty, const struct channel_events *events)
{
	const char *const argv[] = {"sleep", "600", NULL};

	return child_channel_open(session_loop(&session), argv, NULL, events);
}

static inline int silent_open_host(
	void *ctx, struct loop *loop, const char *host, struct channel_opener *ret, struct err *err)
{
	*ret = (struct channel_opener){.command = silent_open};
	return 0;
}

static inline int make_silent_session(void **state)
{
	if (make_session(state))
		return -1;
	session.env.open_host = silent_open_host;
	return 0;
}

static inline struct run *silent_run(const char *id)
{
	AUTO_FREE char *handle = node_handle_text("box", id, 1);
	struct run *run = run_new(id, "a");
	struct json *hosts = json_array();

	json_add_str(hosts, "box");
	json_set(json_sub(run->doc, "target"), "hosts", hosts);
	json_set_str(json_sub(run->doc, "target"), "kind", "ssh");
	json_set_str(json_sub(run->doc, "target"), "name", "ssh:box");
	run_add_attempt(run, handle);
	return run;
}

#endif
