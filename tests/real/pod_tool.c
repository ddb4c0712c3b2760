/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Port-forwards and commands of one pod, without a run:
 *
 *	pod_tool forward KUBECONFIG NAMESPACE POD PORT...
 *	pod_tool exec KUBECONFIG NAMESPACE POD CONTAINER [-i] [-t] [-s FILE] -- CMD...
 *
 * forward prints "REMOTE LOCAL" for each port, notices on stderr, and runs until it is killed; POD
 * may be @FILE, which is read again each time that the pod is asked for.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/api/client.h"
#include "kube/api/kubeconfig.h"
#include "kube/portforward/podexec.h"
#include "kube/portforward/podforward.h"
#include "net/http/http.h"
#include "net/stream/listen.h"

extern char **environ;

struct tool {
	struct loop *loop;
	struct http *http;
	struct kubeconfig *config;
	struct kube_access access;
	struct kube_client *client;
	const char *kube_namespace, *pod;
	struct podforward *forward;
	struct podexec *exec;
	int status;
};

struct port {
	struct tool *tool;
	uint16_t remote;
	struct listener *listener;
};

static int fail(const struct err *err)
{
	fprintf(stderr, "error: %s\n", err->message);
	for (size_t i = 0; i < err->n_evidence; i++)
		fprintf(stderr, "  %s\n", err->evidence[i]);
	return 125;
}

static int open_cluster(struct tool *tool, const char *file, struct err *err)
{
	const struct kubeconfig_env env = {.kubeconfig = file, .cwd = "/"};

	tool->loop = loop_new();
	int r = kubeconfig_load(&env, &tool->config, err);
	if (r == 0)
		r = kubeconfig_access(tool->config, NULL, NULL, &tool->access, err);
	if (r < 0)
		return r;
	tool->http = http_new(&(struct http_options){.loop = tool->loop, .user_agent = "pod_tool"});
	tool->client = kube_client_new(&(struct kube_client_options){.loop = tool->loop,
		.http = tool->http,
		.access = &tool->access,
		.plugin = {.env = (const char *const *)environ, .tty_fd = -1}});
	return 0;
}

static void close_cluster(struct tool *tool)
{
	podforward_free(tool->forward);
	kube_client_free(tool->client);
	http_free(tool->http);
	kube_access_done(&tool->access);
	kubeconfig_free(tool->config);
	loop_free(tool->loop);
}

/*
 * forward
 */

static void resolve(void *ctx, struct podforward *forward)
{
	const struct tool *tool = ctx;
	AUTO_ERR struct err err = {0};
	AUTO_BUF struct buf name = {0};

	if (tool->pod[0] != '@') {
		podforward_pod(forward, tool->kube_namespace, tool->pod);
		return;
	}
	if (fs_read(tool->pod + 1, 256, &name, NULL, &err) < 0) {
		podforward_no_pod(forward, &err, false);
		return;
	}
	podforward_pod(forward, tool->kube_namespace, name.data);
}

static void notice(void *ctx, const char *text)
{
	(void)ctx;
	fprintf(stderr, "%s\n", text);
}

static int on_accept(void *ctx, int fd, const char *peer, struct err *err)
{
	const struct port *port = ctx;

	(void)peer;
	(void)err;
	podforward_relay(port->tool->forward, fd, port->remote, NULL, NULL);
	return 0;
}

static int stop(void *ctx, int sig, struct err *err)
{
	struct tool *tool = ctx;

	(void)sig;
	(void)err;
	loop_stop(tool->loop);
	return 0;
}

static int open_ports(struct tool *tool, char **ports, struct port *out, struct err *err)
{
	for (; *ports; ports++, out++) {
		*out = (struct port){.tool = tool, .remote = (uint16_t)atoi(*ports)};
		const struct listen_options options = {
			.loop = tool->loop, .accept = on_accept, .ctx = out};
		int r = listener_open(&options, &out->listener, err);

		if (r < 0)
			return r;
		printf("%u %u\n", out->remote, listener_port(out->listener));
	}
	fflush(stdout);
	return 0;
}

static int forward(struct tool *tool, char **ports)
{
	AUTO_ERR struct err err = {0};
	struct podforward_transport transport;
	struct podforward_kube *kube = podforward_kube_new(tool->client, &transport);
	struct port open[16] = {0};

	tool->forward = podforward_new(&(struct podforward_options){.loop = tool->loop,
		.transport = transport,
		.resolve = resolve,
		.notice = notice,
		.ctx = tool});
	int r = open_ports(tool, ports, open, &err);
	if (r == 0)
		r = loop_add_signal(tool->loop, SIGTERM, stop, tool, &err);
	if (r == 0)
		r = loop_run(tool->loop, &err);
	for (size_t i = 0; i < ARRAY_LEN(open); i++)
		listener_free(open[i].listener);
	podforward_free(TAKE(tool->forward));
	podforward_kube_free(kube);
	return r < 0 ? fail(&err) : 0;
}

/*
 * exec
 */

static int on_done(void *ctx, int status, struct err *error, struct err *err)
{
	struct tool *tool = ctx;

	(void)err;
	tool->exec = NULL;
	tool->status = err_is_set(error) ? fail(error) : status;
	loop_stop(tool->loop);
	return 0;
}

/* COLUMNS and LINES of the environment; a SIGUSR1 has them asked for again, doubled. */
static unsigned times = 1;

static void size(void *ctx, unsigned *ret_columns, unsigned *ret_rows)
{
	const char *columns = getenv("COLUMNS"), *rows = getenv("LINES");

	(void)ctx;
	*ret_columns = times * (unsigned)atoi(columns ? columns : "80");
	*ret_rows = times * (unsigned)atoi(rows ? rows : "24");
}

static int resize(void *ctx, int sig, struct err *err)
{
	struct tool *tool = ctx;

	(void)sig;
	(void)err;
	times *= 2;
	podexec_resize(tool->exec);
	return 0;
}

static int exec(struct tool *tool, char **words)
{
	AUTO_ERR struct err err = {0};
	AUTO_STRV struct strv command = {0};
	struct podexec_request request = {.loop = tool->loop,
		.client = tool->client,
		.kube_namespace = tool->kube_namespace,
		.pod = tool->pod,
		.container = *words++,
		.fds = {-1, STDOUT_FILENO, STDERR_FILENO},
		.size = size,
		.done = on_done,
		.ctx = tool};

	for (; *words && !str_eq(*words, "--"); words++) {
		if (str_eq(*words, "-i"))
			request.fds[0] = STDIN_FILENO;
		request.tty = request.tty || str_eq(*words, "-t");
	}
	for (words++; *words; words++)
		strv_add(&command, *words);
	request.command = &command;
	signal(SIGPIPE, SIG_IGN);
	if (loop_add_signal(tool->loop, SIGUSR1, resize, tool, &err) < 0)
		return fail(&err);
	tool->exec = podexec_start(&request);
	return loop_run(tool->loop, &err) < 0 ? fail(&err) : tool->status;
}

int main(int argc, char **argv)
{
	struct tool tool = {0};
	AUTO_ERR struct err err = {0};
	int status;

	if (argc < 6)
		return 2;
	tool.kube_namespace = argv[3];
	tool.pod = argv[4];
	if (open_cluster(&tool, argv[2], &err) < 0)
		status = fail(&err);
	else if (str_eq(argv[1], "exec"))
		status = exec(&tool, argv + 5);
	else
		status = forward(&tool, argv + 5);
	close_cluster(&tool);
	return status;
}
