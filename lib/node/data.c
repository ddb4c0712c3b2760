/* SPDX-License-Identifier: Apache-2.0 */
/* Content-addressed data. */
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "node/fdio.h"
#include "node/node_impl.h"

/* Time to unpack the data and make it durable, after the last byte. */
enum { UNPACK_MS = 10 * 60 * 1000 };

struct data {
	struct node_call call;
	int (*open)(void *ctx, struct err *err);
	void *open_ctx;
	struct node_fd input;
	int fd; /* -1: it is not wanted, or not yet */
};

static void close_input(struct data *data)
{
	node_fd_done(&data->input);
	if (data->fd >= 0)
		close(TAKE_FD(data->fd));
}

static void data_free(struct node_call *call)
{
	close_input((struct data *)call);
}

static int data_begin(struct node_call *call, struct node_request *request, struct err *err)
{
	(void)err;
	close_input((struct data *)call);
	request->answer_ms = UNPACK_MS;
	return 0;
}

static void on_input(void *ctx)
{
	struct data *data = ctx;

	if (data->call.talk)
		node_talk_wake(data->call.talk);
}

static int data_line(struct node_call *call, enum channel_flow flow, char *line, struct err *err)
{
	struct data *data = (struct data *)call;

	(void)flow;
	if (str_starts(line, "have "))
		return 1;
	if (!str_starts(line, "want ") || data->fd >= 0)
		return 0;
	data->fd = data->open(data->open_ctx, err);
	if (data->fd < 0)
		return data->fd;
	node_fd_init(&data->input, call->node->options.loop, data->fd, POLLIN, on_input, data);
	node_talk_wake(call->talk);
	return 1;
}

static ssize_t data_payload(struct node_call *call, void *out, size_t len, struct err *err)
{
	struct data *data = (struct data *)call;

	return data->fd < 0 ? CHANNEL_AGAIN : node_fd_read(&data->input, out, len, err);
}

static const struct call_ops data_ops = {
	.begin = data_begin, .line = data_line, .payload = data_payload, .free = data_free};

struct node_call *node_data(struct node *node, const char *key,
	int (*open)(void *ctx, struct err *err), void *open_ctx, node_done_fn *done, void *ctx)
{
	struct data *data = call_new(node, sizeof(*data), &data_ops, done, ctx);
	AUTO_ERR struct err fault = {0};

	data->fd = -1;
	data->open = open;
	data->open_ctx = open_ctx;
	call_say(&data->call, "data");
	call_word(&data->call, key);
	call_line_end(&data->call);
	if (node_name_is_good(key)) {
		call_begin(&data->call);
	} else {
		err_set(&fault, E_BUG, "data without a name");
		call_finish(&data->call, &fault);
	}
	return &data->call;
}
