/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/kube/pod/pod_output.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "kube/portforward/podexec.h"

enum { PIECE = 64 << 10, SAID_MAX = 64 << 10 };

/* Receiving end of stdout or stderr. */
struct side {
	struct pod_output *output;
	int read_fd, write_fd; /* -1: closed */
	struct loop_fd *source;
};

struct pod_output {
	struct pod_output_request request;
	struct podexec *exec; /* NULL: it has ended */
	struct side sides[2];
	struct buf said;
	int status;
	struct err fault;
	struct loop_timer *end;
	char piece[PIECE];
};

static void close_fd(int *fd)
{
	auto_fd(fd);
	*fd = -1;
}

static void close_side(struct side *side)
{
	loop_remove_fd(side->output->request.loop, TAKE(side->source));
	close_fd(&side->read_fd);
	close_fd(&side->write_fd);
}

void pod_output_cancel(struct pod_output *output)
{
	if (!output)
		return;
	podexec_cancel(output->exec);
	for (size_t i = 0; i < ARRAY_LEN(output->sides); i++)
		close_side(&output->sides[i]);
	loop_remove_timer(output->request.loop, output->end);
	buf_done(&output->said);
	err_done(&output->fault);
	free(output);
}

static int on_end(void *ctx, struct err *err)
{
	struct pod_output *output = ctx;
	struct pod_output_request request = output->request;
	AUTO_ERR struct err fault = {0};
	AUTO_FREE char *said = buf_take(&output->said);
	int status = output->status;

	(void)err;
	output->end = NULL;
	if (err_is_set(&output->fault))
		err_move(&fault, &output->fault);
	pod_output_cancel(output);
	request.done(request.ctx, status, &fault, said);
	return 0;
}

/* When nobody writes any more, and all was read. */
static void look_for_end(struct pod_output *output)
{
	for (size_t i = 0; i < ARRAY_LEN(output->sides); i++)
		if (output->sides[i].source)
			return;
	if (!output->exec && !output->end)
		output->end = loop_add_timer(output->request.loop, 0, on_end, output);
}

static void fail(struct pod_output *output)
{
	podexec_cancel(TAKE(output->exec));
	for (size_t i = 0; i < ARRAY_LEN(output->sides); i++)
		close_side(&output->sides[i]);
}

static void take(struct side *side, size_t len)
{
	struct pod_output *output = side->output;
	AUTO_ERR struct err fault = {0};

	if (side == &output->sides[1]) {
		buf_add(&output->said, output->piece, len);
		return;
	}
	if (output->request.data(output->request.ctx, output->piece, len, &fault) == 0)
		return;
	/* An error of the command itself, if there is one by now, follows from this one. */
	err_move(&output->fault, &fault);
	fail(output);
}

static short prepare(void *ctx)
{
	(void)ctx;
	return POLLIN;
}

static int dispatch(void *ctx, short revents, struct err *err)
{
	struct side *side = ctx;
	struct pod_output *output = side->output;
	ssize_t n = read(side->read_fd, output->piece, PIECE);

	(void)revents;
	(void)err;
	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return 0;
	if (n > 0)
		take(side, (size_t)n);
	else
		close_side(side);
	look_for_end(output);
	return 0;
}

static int on_done(void *ctx, int status, struct err *fault, struct err *err)
{
	struct pod_output *output = ctx;

	(void)err;
	output->exec = NULL;
	output->status = status;
	if (err_is_set(fault))
		err_move(&output->fault, fault);
	for (size_t i = 0; i < ARRAY_LEN(output->sides); i++)
		close_fd(&output->sides[i].write_fd);
	look_for_end(output);
	return 0;
}

static int open_sides(struct pod_output *output, struct err *err)
{
	static const struct loop_fd_ops ops = {prepare, dispatch};

	for (size_t i = 0; i < ARRAY_LEN(output->sides); i++) {
		struct side *side = &output->sides[i];
		int fds[2], r = os_pipe(fds, 0);

		if (r < 0)
			return fs_error(err, -r, "making a pipe");
		side->read_fd = fds[0];
		side->write_fd = fds[1];
		side->source = loop_add_fd(output->request.loop, fds[0], &ops, side);
	}
	return 0;
}

int pod_output_start(
	const struct pod_output_request *request, struct pod_output **ret, struct err *err)
{
	struct pod_output *output = mem_alloc(1, sizeof(*output));

	output->request = *request;
	buf_init(&output->said, SAID_MAX);
	for (size_t i = 0; i < ARRAY_LEN(output->sides); i++)
		output->sides[i] = (struct side){output, -1, -1, NULL};
	int r = open_sides(output, err);
	if (r < 0) {
		pod_output_cancel(output);
		return r;
	}
	const struct podexec_request exec = {
		.loop = request->loop,
		.client = request->client,
		.kube_namespace = request->kube_namespace,
		.pod = request->pod,
		.container = request->container,
		.command = request->command,
		.fds = {request->stdin_fd, output->sides[0].write_fd, output->sides[1].write_fd},
		.done = on_done,
		.ctx = output,
	};
	output->exec = podexec_start(&exec);
	*ret = output;
	return 0;
}
