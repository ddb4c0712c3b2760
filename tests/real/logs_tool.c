/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Follows logs of a cluster with lib/kube, for tests:
 *
 *	logs_tool KUBECONFIG NAMESPACE pod POD CONTAINER       until a line END, then what is left
 *	logs_tool KUBECONFIG NAMESPACE job JOB RANK [OPTION…]   RANK -1: all, with their number
 *
 * Options: nofollow, tail=N, since=WALL-MS, token=TEXT, showtoken. Bytes go to stdout, notices to
 * stderr.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/loop/loop.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/api/client.h"
#include "kube/api/kubeconfig.h"
#include "kube/logs/podlog.h"
#include "kube/logs/runlog.h"
#include "net/http/http.h"

struct tool {
	struct loop *loop;
	struct podlog *podlog;
	struct kube_runlog *runlog;
	bool numbered;
	int last_rank;
	int status;
	struct buf tail; /* the last bytes, for END */
};

static int put(const char *data, size_t len)
{
	while (len > 0) {
		ssize_t n = write(STDOUT_FILENO, data, len);
		if (n < 0)
			return -ERR_IO;
		data += n;
		len -= (size_t)n;
	}
	return 0;
}

static void show_notice(void *ctx, const char *text)
{
	(void)ctx;
	fprintf(stderr, "notice: %s\n", text);
}

static int on_end(void *ctx, struct err *error, struct err *err)
{
	struct tool *tool = ctx;

	(void)err;
	if (err_is_set(error)) {
		fprintf(stderr, "end: %s\n", error->message);
		tool->status = 1;
	}
	loop_stop(tool->loop);
	return 0;
}

static int on_pod_data(void *ctx, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	struct tool *tool = ctx;
	size_t n = len < 8 ? len : 8;

	(void)time_ms;
	(void)err;
	buf_add(&tool->tail, data + len - n, n);
	if (tool->tail.len > 8)
		buf_consume(&tool->tail, tool->tail.len - 8);
	if (str_ends(tool->tail.data, "\nEND\n"))
		podlog_finish(tool->podlog, false);
	return put(data, len);
}

static int on_rank_data(
	void *ctx, int rank, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	struct tool *tool = ctx;

	(void)time_ms;
	(void)err;
	if (tool->numbered && rank != tool->last_rank) {
		char number[32];
		int n = snprintf(number, sizeof(number), "[%d]", rank);
		put(number, (size_t)n);
		tool->last_rank = rank;
	}
	return put(data, len);
}

static void on_rank_notice(void *ctx, int rank, const char *text)
{
	(void)ctx;
	fprintf(stderr, "notice %d: %s\n", rank, text);
}

static int64_t option(char **words, const char *name, int64_t otherwise, const char **ret_text)
{
	size_t n = strlen(name);

	for (; *words; words++) {
		if (strncmp(*words, name, n) != 0 || ((*words)[n] && (*words)[n] != '='))
			continue;
		if (ret_text)
			*ret_text = *words + n + 1;
		return (*words)[n] ? strtoll(*words + n + 1, NULL, 10) : 1;
	}
	return otherwise;
}

static void start(struct tool *tool, struct kube_client *client, char **argv)
{
	const char *token = NULL;

	option(argv + 6, "token", 0, &token);
	if (str_eq(argv[3], "pod")) {
		tool->podlog = podlog_start(client, tool->loop,
			&(struct podlog_request){.kube_namespace = argv[2],
				.pod = argv[4],
				.container = argv[5],
				.id = argv[4],
				.follow = !option(argv + 6, "nofollow", 0, NULL),
				.tail_lines = option(argv + 6, "tail", -1, NULL),
				.since_ms = option(argv + 6, "since", 0, NULL),
				.token = token,
				.events = {on_pod_data, show_notice, NULL, on_end, tool}});
		return;
	}
	tool->numbered = atoi(argv[5]) < 0;
	AUTO_FREE char *pods = mem_printf("batch.kubernetes.io/job-name=%s", argv[4]);
	tool->runlog = kube_runlog_start(client, tool->loop,
		&(struct kube_runlog_request){.kube_namespace = argv[2],
			.name = argv[4],
			.pods = pods,
			.rank = atoi(argv[5]),
			.tail_lines = option(argv + 6, "tail", -1, NULL),
			.since_ms = option(argv + 6, "since", 0, NULL),
			.follow = !option(argv + 6, "nofollow", 0, NULL),
			.token = token,
			.events = {on_rank_data, on_rank_notice, NULL, on_end, tool}});
}

static int run(char **argv, struct err *err)
{
	AUTO_KUBECONFIG struct kubeconfig *config = NULL;
	AUTO_KUBE_ACCESS struct kube_access access = {0};
	AUTO_HTTP struct http *http = NULL;
	AUTO_KUBE_CLIENT struct kube_client *client = NULL;
	struct kubeconfig_env env = {.kubeconfig = argv[1], .home = "/", .cwd = "/"};
	struct tool tool = {.loop = loop_new(), .last_rank = -1};
	int r;

	buf_init(&tool.tail, 4096);
	r = kubeconfig_load(&env, &config, err);
	if (r == 0)
		r = kubeconfig_access(config, NULL, NULL, &access, err);
	if (r < 0)
		return r;
	http = http_new(&(struct http_options){.loop = tool.loop, .user_agent = "logs_tool"});
	client = kube_client_new(&(struct kube_client_options){.loop = tool.loop,
		.http = http,
		.access = &access,
		.plugin = {.tty_fd = -1},
		.note = show_notice});
	start(&tool, client, argv);
	r = loop_run(tool.loop, err);
	if (tool.runlog && option(argv + 6, "showtoken", 0, NULL)) {
		buf_reset(&tool.tail);
		kube_runlog_token(tool.runlog, &tool.tail);
		fprintf(stderr, "token: %s\n", tool.tail.data);
	}
	podlog_free(tool.podlog);
	kube_runlog_free(tool.runlog);
	kube_client_free(TAKE(client));
	http_free(TAKE(http));
	loop_free(tool.loop);
	buf_done(&tool.tail);
	return r < 0 ? r : -tool.status;
}

int main(int argc, char **argv)
{
	AUTO_ERR struct err err = {0};

	if (argc < 6)
		return 2;
	if (run(argv, &err) == 0)
		return 0;
	if (err_is_set(&err))
		fprintf(stderr, "error: %s\n", err.message);
	return 1;
}
