/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "net/http/http_impl.h"

static size_t fail(struct http_call *call, struct err *err)
{
	err_move(&call->x.fault, err);
	return CURL_READFUNC_ABORT;
}

static size_t read_file(struct http_call *call, void *out, size_t len)
{
	const struct http_body *body = &call->request.body;
	AUTO_ERR struct err err = {0};
	ssize_t n;

	do {
		n = pread(body->fd, out, len, (off_t)(body->offset + call->x.body_pos));
	} while (n < 0 && errno == EINTR);
	if (n > 0)
		return (size_t)n;
	if (n < 0)
		err_set_errno(&err, E_IO, errno, "cannot read the file that is sent");
	else
		err_set(&err, E_IO, "the file that is sent has become shorter meanwhile");
	return fail(call, &err);
}

static size_t read_caller(struct http_call *call, void *out, size_t len)
{
	AUTO_ERR struct err err = {0};
	ssize_t n = call->request.body.read(call->request.ctx, out, len, &err);

	if (n > 0)
		return (size_t)n;
	if (n < 0)
		return fail(call, &err);
	call->send_paused = true;
	return CURL_READFUNC_PAUSE;
}

/* A server may answer before it has all, and then close. Sending to a closed connection fails, and
 * libcurl would not read the answer any more; so what has come is read first. But only once when
 * nothing comes of it: the end of a connection is input for ever. */
static bool has_input(struct http_call *call)
{
	struct pollfd pollfd = {.fd = call->x.fd, .events = POLLIN};
	uint64_t n_read = call->x.header_bytes + call->x.bytes_down + 1;

	if (call->x.waited_at == n_read || pollfd.fd < 0 || poll(&pollfd, 1, 0) <= 0)
		return false;
	call->x.waited_at = n_read;
	return true;
}

static size_t read_first(struct http_call *call)
{
	http_call_wake(call);
	return CURL_READFUNC_PAUSE;
}

static size_t on_read(char *out, size_t size, size_t n, void *ctx)
{
	struct http_call *call = ctx;
	const struct http_body *body = &call->request.body;
	uint64_t left = body->size - call->x.body_pos;
	size_t len = size * n;

	if (call->canceled)
		return CURL_READFUNC_ABORT;
	if (len > left)
		len = (size_t)left;
	if (len == 0)
		return 0;
	if (body->read && has_input(call))
		return read_first(call);
	if (body->data)
		memcpy(out, (const char *)body->data + call->x.body_pos, len);
	else
		len = body->has_fd ? read_file(call, out, len) : read_caller(call, out, len);
	if (len == CURL_READFUNC_ABORT || len == CURL_READFUNC_PAUSE)
		return len;
	/* As late as can be. What a caller gave cannot be given back. */
	if (!body->read && has_input(call))
		return read_first(call);
	call->x.body_pos += len;
	return len;
}

/* A connection that was kept had died: from the start again, on another one. */
static int on_seek(void *ctx, curl_off_t offset, int origin)
{
	struct http_call *call = ctx;

	if (origin != SEEK_SET || offset < 0 || (uint64_t)offset > call->request.body.size)
		return CURL_SEEKFUNC_FAIL;
	if (call->request.body.read && (uint64_t)offset != call->x.body_pos)
		return CURL_SEEKFUNC_FAIL;
	call->x.body_pos = (uint64_t)offset;
	return CURL_SEEKFUNC_OK;
}

void http_send_options(struct http_call *call)
{
	HTTP_SET(call, CURLOPT_READFUNCTION, on_read);
	HTTP_SET(call, CURLOPT_READDATA, call);
	HTTP_SET(call, CURLOPT_SEEKFUNCTION, on_seek);
	HTTP_SET(call, CURLOPT_SEEKDATA, call);
}
