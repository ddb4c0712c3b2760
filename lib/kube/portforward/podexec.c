/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/portforward/podexec.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/data/json.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/trace.h"
#include "kube/portforward/podwire.h"
#include "net/websocket/ws.h"

enum {
	CHANNEL_STDIN,
	CHANNEL_STDOUT,
	CHANNEL_STDERR,
	CHANNEL_STATUS,
	CHANNEL_SIZE,
	CHANNEL_END = 255,
	DIAL_MS = 30 * 1000,
	/* Waits for a descriptor before the connection is not read. API servers (1.34) may lose
	 * the last of what they could not send when the command ends: they see no short stall. */
	OUTPUT_MAX = 8 << 20, /* of each stream; more waits in the connection */
	STATUS_MAX = 64 << 10,
	INPUT_PIECE = 32 << 10,
	SIZE_MAX_TEXT = 64,
	CODE_MAX = 255,
	MESSAGE_MAX = 400,
	PIPE_CLOSED_STATUS = 128 + 13,
};

static const char *const protocols[] = {"v5.channel.k8s.io", "v4.channel.k8s.io", NULL};

/* State of stdout or stderr. */
struct output {
	struct podexec *exec;
	int fd;
	bool is_file; /* takes any number of bytes at once */
	struct loop_fd *source;
	struct buf waiting; /* from waiting_at on */
	size_t waiting_at;
};

struct podexec {
	struct podexec_request request;
	char *program; /* for messages */
	char *path;
	struct strv query; /* key, value, …, NULL */
	char key[WS_KEY_SIZE];
	struct kube_call *call;
	struct podwire wire;
	bool can_end; /* v5 */
	struct loop_fd *input;
	struct output outputs[2];
	int channel; /* of the message that is being read */
	bool has_channel;
	struct buf status; /* the text of channel 3 */
	bool is_over;      /* nothing more comes: what waits is written, then done */
	bool output_gone;
	struct err error;
	struct loop_timer *turn;
	unsigned char scratch[PODWIRE_SCRATCH];
};

/*
 * The Status at the end (meta/v1 Status; the exit code is in details.causes, reason ExitCode)
 */

static const char *podexec_exit_code(const struct json *status)
{
	const struct json *causes = json_get(json_get(status, "details"), "causes");

	json_foreach (cause, causes)
		if (str_eq(json_get_str(cause, "reason"), "ExitCode"))
			return json_get_str(cause, "message");
	return NULL;
}

/* Messages of runtimes when exec(2) fails; E_KUBE_EXEC: anything else. */
static enum err_id podexec_exec_failure(const char *message)
{
	static const struct {
		const char *text;
		enum err_id id;
	} texts[] = {
		{"executable file not found", E_EXEC_NOT_FOUND},
		{"no such file or directory", E_EXEC_NOT_FOUND},
		{"permission denied", E_EXEC_NOT_EXECUTABLE},
		{"not a directory", E_EXEC_NOT_EXECUTABLE},
		{"exec format error", E_EXEC_NOT_EXECUTABLE},
	};

	for (size_t i = 0; strstr(message, "exec") && i < ARRAY_LEN(texts); i++)
		if (strstr(message, texts[i].text))
			return texts[i].id;
	return E_KUBE_EXEC;
}

static int podexec_fail(const char *message, const char *program, struct err *err)
{
	AUTO_FREE char *bounded = mem_strndup(message, MESSAGE_MAX);
	AUTO_FREE char *shown = str_escaped(bounded);
	AUTO_FREE char *name = str_shown(program);

	enum err_id id = podexec_exec_failure(message);
	err_set(err, id,
		id == E_KUBE_EXEC ? "%s was not run in the pod" : "%s cannot be started in the pod",
		name);
	return err_evidence(err, "%s", shown);
}

int podexec_status(
	const char *text, size_t len, const char *program, int *ret_code, struct err *err)
{
	AUTO_JSON struct json *status = NULL;
	int64_t code;

	if (json_parse(text, len, STATUS_MAX, "the status of a command", &status, NULL) < 0) {
		AUTO_FREE char *bounded = mem_strndup(text, len < MESSAGE_MAX ? len : MESSAGE_MAX);
		return podexec_fail(bounded, program, err);
	}
	if (str_eq(json_get_str(status, "status"), "Success")) {
		*ret_code = 0;
		return 0;
	}
	const char *number = podexec_exit_code(status);
	if (str_eq(json_get_str(status, "reason"), "NonZeroExitCode") && number &&
		str_to_int(number, 0, CODE_MAX, "exit code", &code, NULL) == 0) {
		*ret_code = (int)code;
		return 0;
	}
	const char *message = json_get_str(status, "message");
	return podexec_fail(message ? message : "no reason is given", program, err);
}

/*
 * The end
 */

static bool podexec_has_waiting(const struct podexec *exec)
{
	for (size_t i = 0; i < ARRAY_LEN(exec->outputs); i++)
		if (exec->outputs[i].fd >= 0 && exec->outputs[i].waiting.len)
			return true;
	return false;
}

static void podexec_close_all(struct podexec *exec)
{
	struct loop *loop = exec->request.loop;

	kube_cancel(TAKE(exec->call));
	podwire_done(&exec->wire);
	loop_remove_timer(loop, exec->turn);
	exec->turn = NULL;
	loop_remove_fd(loop, TAKE(exec->input));
	for (size_t i = 0; i < ARRAY_LEN(exec->outputs); i++)
		loop_remove_fd(loop, TAKE(exec->outputs[i].source));
}

void podexec_cancel(struct podexec *exec)
{
	if (!exec)
		return;
	podexec_close_all(exec);
	for (size_t i = 0; i < ARRAY_LEN(exec->outputs); i++)
		buf_done(&exec->outputs[i].waiting);
	buf_done(&exec->status);
	strv_done(&exec->query);
	err_clear(&exec->error);
	free(exec->program);
	free(exec->path);
	free(exec);
}

static int podexec_report(struct podexec *exec, struct err *err)
{
	AUTO_ERR struct err error = {0};
	int (*done)(void *ctx, int status, struct err *error, struct err *err) = exec->request.done;
	void *ctx = exec->request.ctx;
	int code = 0;

	if (exec->output_gone)
		code = PIPE_CLOSED_STATUS;
	else if (exec->status.len)
		podexec_status(exec->status.data, exec->status.len, exec->program, &code, &error);
	else if (err_is_set(&exec->error))
		err_move(&error, &exec->error);
	trace_note(TRACE_KUBE, "exec %s: ended with %d%s%s", exec->path, code,
		error.message ? ": " : "", error.message ? error.message : "");
	podexec_cancel(exec);
	return done(ctx, code, &error, err);
}

static int podexec_on_turn(void *ctx, struct err *err)
{
	struct podexec *exec = ctx;

	exec->turn = NULL;
	return !exec->is_over || podexec_has_waiting(exec) ? 0 : podexec_report(exec, err);
}

/* From anywhere: the end comes by the loop's next turn, when all has been written. */
static void podexec_check_end(struct podexec *exec)
{
	if (exec->is_over && !exec->turn && !podexec_has_waiting(exec))
		exec->turn = loop_add_timer(exec->request.loop, 0, podexec_on_turn, exec);
}

static void podexec_on_dead(void *ctx, struct err *error)
{
	struct podexec *exec = ctx;

	exec->is_over = true;
	if (exec->status.len == 0) {
		err_set(&exec->error, E_KUBE_EXEC, "the connection to %s ended before it did",
			exec->program);
		err_evidence(&exec->error, "%s", error->message ? error->message : "");
	}
	podexec_check_end(exec);
}

/*
 * Output
 */

static short podexec_output_prepare(void *ctx)
{
	const struct output *output = ctx;

	return output->waiting.len ? POLLOUT : 0;
}

static bool podexec_is_writable(int fd)
{
	struct pollfd writable = {.fd = fd, .events = POLLOUT};

	return poll(&writable, 1, 0) > 0;
}

/* 0, or -1: the reader is gone. A descriptor that others use, too, is not made non-blocking: so
 * much always fits when poll says that it is writable. */
static int podexec_write_waiting(struct output *output)
{
	const struct buf *waiting = &output->waiting;
	size_t piece = output->is_file ? waiting->len : PIPE_BUF;

	do {
		size_t left = waiting->len - output->waiting_at;
		ssize_t n = write(output->fd, waiting->data + output->waiting_at,
			left < piece ? left : piece);

		if (n < 0 && (errno == EINTR || errno == EAGAIN))
			return 0;
		if (n < 0)
			return -1;
		output->waiting_at += (size_t)n;
	} while (output->waiting_at < waiting->len && podexec_is_writable(output->fd));
	return 0;
}

/* Not at each write: what stays is moved. */
static void podexec_drop_written(struct output *output)
{
	if (output->waiting_at <= output->waiting.len / 2)
		return;
	buf_consume(&output->waiting, output->waiting_at);
	output->waiting_at = 0;
}

static int podexec_output_dispatch(void *ctx, short revents UNUSED, struct err *err UNUSED)
{
	struct output *output = ctx;

	if (podexec_write_waiting(output) < 0) {
		output->fd = -1;
		output->exec->is_over = output->exec->output_gone = true;
		output->waiting_at = 0;
		buf_reset(&output->waiting);
	}
	podexec_drop_written(output);
	podexec_check_end(output->exec);
	return 0;
}

static bool podexec_wants_input(void *ctx)
{
	const struct podexec *exec = ctx;

	for (size_t i = 0; i < ARRAY_LEN(exec->outputs); i++)
		if (exec->outputs[i].waiting.len - exec->outputs[i].waiting_at >= OUTPUT_MAX)
			return false;
	return true;
}

static void podexec_take_channel(struct podexec *exec, const char *data, size_t len)
{
	if (exec->channel == CHANNEL_STDOUT || exec->channel == CHANNEL_STDERR) {
		struct output *output = &exec->outputs[exec->channel - CHANNEL_STDOUT];

		if (output->fd >= 0)
			buf_add(&output->waiting, data, len);
	} else if (exec->channel == CHANNEL_STATUS) {
		buf_add(&exec->status, data, len);
	}
}

static int podexec_on_bytes(
	void *ctx, const void *data, size_t len, bool is_start, struct err *err UNUSED)
{
	struct podexec *exec = ctx;
	const char *p = data;

	if (is_start)
		exec->has_channel = false;
	if (len && !exec->has_channel) {
		exec->channel = (unsigned char)*p;
		exec->has_channel = true;
		p++;
		len--;
	}
	if (len)
		podexec_take_channel(exec, p, len);
	return 0;
}

/*
 * Input
 */

static void podexec_send_message(
	struct podexec *exec, unsigned char channel, const void *data, size_t len)
{
	podwire_send(
		&exec->wire, (const struct ws_part[]){{&channel, 1}, {data, len}}, len ? 2 : 1);
	podwire_flush(&exec->wire);
}

static void podexec_end_input(struct podexec *exec)
{
	const unsigned char channel = CHANNEL_STDIN;

	loop_remove_fd(exec->request.loop, TAKE(exec->input));
	if (exec->can_end)
		podexec_send_message(exec, CHANNEL_END, &channel, 1);
}

static short podexec_input_prepare(void *ctx)
{
	const struct podexec *exec = ctx;

	return !exec->is_over && podwire_is_writable(&exec->wire) ? POLLIN : 0;
}

static int podexec_input_dispatch(void *ctx, short revents UNUSED, struct err *err UNUSED)
{
	struct podexec *exec = ctx;
	ssize_t n = read(exec->request.fds[0], exec->scratch, INPUT_PIECE);

	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return 0;
	if (n > 0)
		podexec_send_message(exec, CHANNEL_STDIN, exec->scratch, (size_t)n);
	else
		podexec_end_input(exec);
	return 0;
}

void podexec_resize(struct podexec *exec)
{
	unsigned columns = 0, rows = 0;
	char text[SIZE_MAX_TEXT];

	if (!exec || !exec->wire.stream || exec->is_over || !exec->request.tty ||
		!exec->request.size)
		return;
	exec->request.size(exec->request.ctx, &columns, &rows);
	if (!columns || !rows)
		return;
	snprintf(text, sizeof(text), "{\"Width\":%u,\"Height\":%u}", columns, rows);
	podexec_send_message(exec, CHANNEL_SIZE, text, strlen(text));
}

/*
 * The beginning
 */

static void podexec_add_streams(struct podexec *exec)
{
	static const struct loop_fd_ops input_ops = {podexec_input_prepare, podexec_input_dispatch};
	static const struct loop_fd_ops output_ops = {
		podexec_output_prepare, podexec_output_dispatch};
	struct loop *loop = exec->request.loop;

	if (exec->request.fds[0] >= 0)
		exec->input = loop_add_fd(loop, exec->request.fds[0], &input_ops, exec);
	for (size_t i = 0; i < ARRAY_LEN(exec->outputs); i++) {
		struct output *output = &exec->outputs[i];
		struct stat st;

		if (output->fd < 0)
			continue;
		output->is_file = fstat(output->fd, &st) == 0 && S_ISREG(st.st_mode);
		output->source = loop_add_fd(loop, output->fd, &output_ops, output);
	}
}

static void podexec_begin(struct podexec *exec, struct stream *stream, bool is_v5)
{
	const struct podwire_events events = {
		.data = podexec_on_bytes,
		.wants_input = podexec_wants_input,
		.dead = podexec_on_dead,
		.ctx = exec,
	};

	trace_note(TRACE_KUBE, "exec %s: begins by %s", exec->path, protocols[!is_v5]);
	exec->can_end = is_v5;
	podwire_init(&exec->wire, exec->request.loop, stream, true, exec->scratch, 0, &events);
	podexec_add_streams(exec);
	if (exec->request.opened)
		exec->request.opened(exec->request.ctx);
	podexec_resize(exec);
}

static int podexec_on_response(
	void *ctx, struct stream *stream, struct kube_response *response, struct err *err)
{
	struct podexec *exec = ctx;
	const char *protocol = "";
	int r = 0;

	exec->call = NULL;
	if (!stream)
		r = err_move(&exec->error, &response->error);
	else
		r = ws_handshake_check(
			&response->http->headers, exec->key, protocols, &protocol, &exec->error);
	if (r == 0 && !*protocol)
		r = err_set(&exec->error, E_KUBE_EXEC,
			"the cluster does not speak the protocol of commands in pods");
	if (r == 0) {
		podexec_begin(exec, stream, str_eq(protocol, protocols[0]));
		return 0;
	}
	stream_free(stream);
	return podexec_report(exec, err);
}

static void podexec_add_pair(struct podexec *exec, const char *key, const char *value)
{
	strv_add(&exec->query, key);
	strv_add(&exec->query, value);
}

static void podexec_add_query(struct podexec *exec, const struct podexec_request *request)
{
	podexec_add_pair(exec, "container", request->container);
	for (size_t i = 0; i < request->command->n; i++)
		podexec_add_pair(exec, "command", request->command->v[i]);
	podexec_add_pair(exec, "stdin", request->fds[0] >= 0 ? "true" : "false");
	podexec_add_pair(exec, "stdout", "true");
	podexec_add_pair(exec, "stderr", request->tty ? "false" : "true");
	podexec_add_pair(exec, "tty", request->tty ? "true" : "false");
}

struct podexec *podexec_start(const struct podexec_request *request)
{
	struct podexec *exec = mem_alloc(1, sizeof(*exec));
	AUTO_STRV struct strv headers = {0};

	exec->request = *request;
	exec->program = mem_strdup(request->command->v[0]);
	exec->path = kube_path(
		"/api/v1/namespaces/%s/pods/%s/exec", request->kube_namespace, request->pod);
	/* Bounded by wants_input and one read. */
	for (size_t i = 0; i < ARRAY_LEN(exec->outputs); i++) {
		exec->outputs[i] = (struct output){.exec = exec, .fd = request->fds[i + 1]};
		buf_init(&exec->outputs[i].waiting, SIZE_MAX / 2);
	}
	buf_init(&exec->status, STATUS_MAX);
	podexec_add_query(exec, request);
	ws_handshake_headers(protocols, exec->key, &headers);
	const struct kube_upgrade_request upgrade = {
		.method = "GET",
		.path = exec->path,
		.query = (const char *const *)exec->query.v,
		.protocol = "websocket",
		.headers = &headers,
		.deadline_ms = clock_ms() + DIAL_MS,
		.done = podexec_on_response,
		.ctx = exec,
	};
	exec->call = kube_upgrade(request->client, &upgrade);
	return exec;
}
