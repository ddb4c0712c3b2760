/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mirror of runs (mirror.h), and what runs have written (outputs.h), from the directory
 * and environment that dlrun would be started in:
 *
 * mirror_tool mirror DIR POLL_MS RUN...   until all of them are over; a line of JSON for each look
 * mirror_tool scalars DIR POLL_MS RUN... the same, scalars only mirror_tool list RUN [PART]
 * "SIZE PATH" lines mirror_tool read RUN PATH OFFSET MAX  the bytes
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/transfer/mirror.h"
#include "app/transfer/outputs.h"
#include "base/data/json.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/store/store.h"
#include "targets/targets.h"

extern char **environ;

struct tool {
	struct session session;
	struct mirror *mirror;
	size_t n_runs, n_over;
	int status;
	struct err error;
};

static int fail(const struct err *err)
{
	fprintf(stderr, "error: %s [%s]\n", err->message, err_info(err->id)->name);
	return 1;
}

static int open_session(struct tool *tool, struct err *err)
{
	const struct session_env env = {
		.dirs = {.home = getenv("HOME"),
			.xdg_config_home = getenv("XDG_CONFIG_HOME"),
			.xdg_state_home = getenv("XDG_STATE_HOME"),
			.xdg_cache_home = getenv("XDG_CACHE_HOME"),
			.xdg_data_home = getenv("XDG_DATA_HOME"),
			.xdg_runtime_dir = getenv("XDG_RUNTIME_DIR")},
		.cwd = getcwd(NULL, 0),
		.user = getenv("USER"),
		.env = (const char *const *)environ,
		.self = "/bin/false",
	};

	return session_init(&tool->session, &env, err);
}

static int find(struct tool *tool, const char *text, struct run **ret, struct err *err)
{
	struct store *store;

	int r = session_store(&tool->session, &store, err);
	return r < 0 ? r : store_resolve(store, text, ret, err);
}

static void on_poll(void *ctx, size_t run)
{
	struct tool *tool = ctx;
	struct mirror_state now;

	mirror_get(tool->mirror, run, &now);
	printf("{\"run\": \"%s\", \"files\": %zu, \"bytes\": %llu, \"new\": %llu, \"looks\": %llu, "
	       "\"over\": %s, \"fault\": \"%s\"}\n",
		now.run_id, now.files, (unsigned long long)now.bytes,
		(unsigned long long)now.bytes_new, (unsigned long long)now.polls,
		now.is_over ? "true" : "false", now.error ? err_info(now.error->id)->name : "");
	fflush(stdout);
	tool->n_over += now.is_over;
	if (tool->n_over == tool->n_runs)
		loop_stop(session_loop(&tool->session));
}

static int mirror(struct tool *tool, int argc, char **argv, struct err *err)
{
	const struct mirror_options options = {.dir = argv[1],
		.scalars_only = str_eq(argv[0], "scalars"),
		.poll_ms = atoi(argv[2]),
		.polled = on_poll,
		.ctx = tool};
	int r = mirror_open(&tool->session, &options, &tool->mirror, err);

	for (int i = 3; r == 0 && i < argc; i++) {
		AUTO_RUN struct run *run = NULL;
		size_t index;

		r = find(tool, argv[i], &run, err);
		if (r == 0)
			r = mirror_add(tool->mirror, run, &index, err);
		tool->n_runs += r == 0;
	}
	while (r == 0 && tool->n_over < tool->n_runs)
		r = loop_run(session_loop(&tool->session), err);
	return r;
}

static void on_done(void *ctx, int status, struct err *error)
{
	struct tool *tool = ctx;

	tool->status = status;
	if (status < 0)
		err_move(&tool->error, error);
	loop_stop(session_loop(&tool->session));
}

static int wait_for(struct tool *tool, struct err *err)
{
	int r = 0;

	tool->status = 1;
	while (r == 0 && tool->status > 0)
		r = loop_run(session_loop(&tool->session), err);
	if (r == 0 && tool->status < 0)
		r = err_move(err, &tool->error);
	return r;
}

static int on_data(void *ctx, const void *data, size_t len, struct err *err)
{
	(void)ctx;
	return fs_write_fd(STDOUT_FILENO, "stdout", data, len, err);
}

static int outputs(struct tool *tool, int argc, char **argv, struct err *err)
{
	AUTO_RUN struct run *run = NULL;
	AUTO(target_free_auto) struct target *target = NULL;
	AUTO(outputs_files_done) struct outputs_files files = {0};

	int r = find(tool, argv[1], &run, err);
	if (r == 0)
		r = target_open_run(&tool->session, run, &target, err);
	if (r < 0)
		return r;
	if (str_eq(argv[0], "read"))
		outputs_read(target, run_handle(run), argv[2], strtoull(argv[3], NULL, 10),
			strtoull(argv[4], NULL, 10), on_data, on_done, tool);
	else
		outputs_list(target, run_handle(run), argc > 2 ? argv[2] : NULL, OUTPUTS_THOROUGH,
			OUTPUTS_FILES_MAX, &files, on_done, tool);
	r = wait_for(tool, err);
	vec_foreach (struct outputs_file, file, &files)
		printf("%llu %s\n", (unsigned long long)file->size, file->path);
	return r;
}

int main(int argc, char **argv)
{
	struct tool tool = {0};
	AUTO_ERR struct err err = {0};
	bool is_read = argc == 6 && str_eq(argv[1], "read");
	bool is_list = (argc == 3 || argc == 4) && str_eq(argv[1], "list");
	int r;

	signal(SIGPIPE, SIG_IGN);
	if (!is_read && !is_list &&
		(argc < 5 || !(str_eq(argv[1], "mirror") || str_eq(argv[1], "scalars"))))
		return 2;
	r = open_session(&tool, &err);
	if (r == 0)
		r = is_read || is_list ? outputs(&tool, argc - 1, argv + 1, &err)
				       : mirror(&tool, argc - 1, argv + 1, &err);
	mirror_free(tool.mirror);
	session_done(&tool.session);
	return r < 0 ? fail(&err) : 0;
}
