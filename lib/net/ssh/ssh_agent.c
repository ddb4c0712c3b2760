/* SPDX-License-Identifier: Apache-2.0 */
#include "net/ssh/ssh_agent.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/util/clock.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "net/ssh/ssh_known_hosts.h"

/* Section 6.1 of the draft. */
enum { REQUEST_IDENTITIES = 11, IDENTITIES_ANSWER = 12, SIGN_REQUEST = 13, SIGN_RESPONSE = 14 };

struct ssh_agent {
	int fd;
	struct VEC_OF(struct ssh_agent_key) keys;
};

static int fail(enum ssh_waited waited, struct err *err)
{
	if (waited == SSH_WAIT_CANCELED)
		return err_set(err, E_CANCELED, "interrupted");
	return err_set(err, E_IO, "the ssh agent does not answer");
}

static int fail_off(struct err *err)
{
	return err_set(err, E_IO, "the ssh agent does not speak its protocol");
}

/*
 * Messages
 */

static int transfer_failed(ssize_t n, struct err *err)
{
	if (n == 0)
		return err_set(err, E_IO, "the ssh agent has closed the connection");
	return err_set_errno(err, E_IO, errno, "the ssh agent");
}

static int send_all(int fd, const struct buf *data, const struct ssh_wait *wait, struct err *err)
{
	for (size_t at = 0; at < data->len;) {
		ssize_t n = send(fd, data->data + at, data->len - at, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n > 0) {
			at += (size_t)n;
		} else if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
			enum ssh_waited waited = ssh_wait_fd(wait, fd, POLLOUT);
			if (waited != SSH_WAIT_READY)
				return fail(waited, err);
		} else {
			return transfer_failed(n, err);
		}
	}
	return 0;
}

static int receive_all(int fd, void *out, size_t len, const struct ssh_wait *wait, struct err *err)
{
	for (size_t at = 0; at < len;) {
		ssize_t n = recv(fd, (char *)out + at, len - at, MSG_DONTWAIT);
		if (n > 0) {
			at += (size_t)n;
		} else if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
			enum ssh_waited waited = ssh_wait_fd(wait, fd, POLLIN);
			if (waited != SSH_WAIT_READY)
				return fail(waited, err);
		} else {
			return transfer_failed(n, err);
		}
	}
	return 0;
}

static void add_u32(struct buf *out, size_t value)
{
	uint8_t bytes[4];

	put_be32(bytes, (uint32_t)value);
	buf_add(out, bytes, sizeof(bytes));
}

static void add_string(struct buf *out, const void *data, size_t len)
{
	add_u32(out, len);
	buf_add(out, data, len);
}

/* Exchange a request for its response, which begins with `want`; *ret is what follows that byte. */
static int ask(struct ssh_agent *agent, const struct buf *body, uint8_t want,
	const struct ssh_wait *wait, struct buf *ret, struct err *err)
{
	AUTO_BUF struct buf message = {0};
	uint8_t head[5];

	buf_init(&message, SSH_AGENT_MESSAGE_MAX);
	add_string(&message, body->data, body->len);
	int r = buf_check(&message, "a question to the ssh agent", err);
	if (r == 0)
		r = send_all(agent->fd, &message, wait, err);
	if (r == 0)
		r = receive_all(agent->fd, head, sizeof(head), wait, err);
	if (r < 0)
		return r;
	size_t len = get_be32(head);
	if (len == 0 || len > SSH_AGENT_MESSAGE_MAX)
		return fail_off(err);
	buf_done(ret);
	buf_init(ret, SSH_AGENT_MESSAGE_MAX);
	char *room = buf_room(ret, len - 1);
	r = receive_all(agent->fd, room, len - 1, wait, err);
	if (r < 0)
		return r;
	buf_added(ret, len - 1);
	return head[4] == want ? 0 : err_set(err, E_IO, "the ssh agent refuses");
}

static bool take_string(const struct buf *from, size_t *at, const char **ret, size_t *ret_len)
{
	if (from->len - *at < 4)
		return false;
	size_t len = get_be32((const uint8_t *)from->data + *at);
	if (len > from->len - *at - 4)
		return false;
	*ret = from->data + *at + 4;
	*ret_len = len;
	*at += 4 + len;
	return true;
}

/*
 * The agent
 */

static int read_keys(struct ssh_agent *agent, const struct buf *answer, struct err *err)
{
	const char *blob, *comment;
	size_t blob_len, comment_len, at = 4;

	if (answer->len < 4)
		return fail_off(err);
	uint32_t n = get_be32((const uint8_t *)answer->data);
	for (uint32_t i = 0; i < n && i < SSH_AGENT_KEYS_MAX; i++) {
		if (!take_string(answer, &at, &blob, &blob_len) ||
			!take_string(answer, &at, &comment, &comment_len))
			return fail_off(err);
		AUTO_FREE char *type = ssh_key_type(blob, blob_len);
		if (!type)
			continue;
		struct ssh_agent_key *key = vec_push(&agent->keys);
		buf_init(&key->blob, SSH_AGENT_MESSAGE_MAX);
		buf_add(&key->blob, blob, blob_len);
		key->comment = mem_strndup(comment, comment_len);
		key->type = TAKE(type);
	}
	return 0;
}

static struct ssh_wait within(const struct ssh_wait *wait, int64_t limit_ms)
{
	return (struct ssh_wait){wait->cancel, clock_ms() + limit_ms};
}

static int list_keys(struct ssh_agent *agent, const struct ssh_wait *wait, struct err *err)
{
	AUTO_BUF struct buf body = {0}, answer = {0};
	struct ssh_wait limit = within(wait, SSH_AGENT_LIST_MS);

	buf_init(&body, 1);
	buf_addc(&body, REQUEST_IDENTITIES);
	int r = ask(agent, &body, IDENTITIES_ANSWER, &limit, &answer, err);
	return r < 0 ? r : read_keys(agent, &answer, err);
}

/* Connecting to a socket of this machine does not wait, but for a full queue: EAGAIN. */
static int connect_to(const char *path, int *ret_fd, struct err *err)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	if (strlen(path) >= sizeof(address.sun_path))
		return err_set(err, E_IO, "the path of the ssh agent's socket is too long");
	memcpy(address.sun_path, path, strlen(path) + 1);
	AUTO_FD int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || connect(fd, (const struct sockaddr *)&address, sizeof(address)) < 0)
		return err_set_errno(err, E_IO, errno, "the ssh agent at %s", path);
	*ret_fd = TAKE_FD(fd);
	return 0;
}

int ssh_agent_open(
	const char *path, const struct ssh_wait *wait, struct ssh_agent **ret, struct err *err)
{
	AUTO_SSH_AGENT struct ssh_agent *agent = mem_alloc(1, sizeof(*agent));

	agent->fd = -1;
	int r = connect_to(path, &agent->fd, err);
	if (r == 0)
		r = list_keys(agent, wait, err);
	if (r < 0)
		return r;
	*ret = TAKE(agent);
	return 0;
}

void ssh_agent_free(struct ssh_agent *agent)
{
	if (!agent)
		return;
	if (agent->fd >= 0)
		close(agent->fd);
	vec_foreach (struct ssh_agent_key, key, &agent->keys) {
		free(key->type);
		free(key->comment);
		buf_done(&key->blob);
	}
	vec_done(&agent->keys);
	free(agent);
}

size_t ssh_agent_n_keys(const struct ssh_agent *agent)
{
	return agent->keys.n;
}

const struct ssh_agent_key *ssh_agent_key(const struct ssh_agent *agent, size_t i)
{
	return &agent->keys.v[i];
}

int ssh_agent_sign(struct ssh_agent *agent, const struct ssh_agent_key *key, const void *data,
	size_t len, uint32_t flags, const struct ssh_wait *wait, struct buf *ret, struct err *err)
{
	AUTO_BUF struct buf body = {0}, answer = {0};
	struct ssh_wait limit = within(wait, SSH_AGENT_SIGN_MS);
	const char *signature;
	size_t signature_len, at = 0;

	buf_init(&body, SSH_AGENT_MESSAGE_MAX);
	buf_addc(&body, SIGN_REQUEST);
	add_string(&body, key->blob.data, key->blob.len);
	add_string(&body, data, len);
	add_u32(&body, flags);
	int r = ask(agent, &body, SIGN_RESPONSE, &limit, &answer, err);
	if (r < 0)
		return r;
	if (!take_string(&answer, &at, &signature, &signature_len))
		return fail_off(err);
	buf_done(ret);
	buf_init(ret, SSH_AGENT_MESSAGE_MAX);
	buf_add(ret, signature, signature_len);
	return 0;
}
