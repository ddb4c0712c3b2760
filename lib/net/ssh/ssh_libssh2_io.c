/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/util/auto.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/ssh/ssh_keywords.h"
#include "net/ssh/ssh_libssh2_impl.h"

/*
 * Memory. What a packet said is looked at when libssh2 gives it back, because it does not tell an
 * exit status of 0 from none. Blocks are malloc's as they are: libssh2 1.11.1 gives some of the
 * public keys it reads to free(3) itself.
 */

static void *block_of(size_t size, void *old)
{
	/* A length from the other side that is far off. */
	if (size > SSH_ALLOC_MAX)
		return NULL;
	char *block = mem_hook_realloc(old, size + 1);
	if (!old)
		*block = '\0';
	return block;
}

static void *hook_alloc(size_t size, void **abstract)
{
	(void)abstract;
	return block_of(size, NULL);
}

static void *hook_realloc(void *old, size_t size, void **abstract)
{
	(void)abstract;
	return block_of(size, old);
}

/* RFC 4254, sections 5.1 and 6.10. */
enum { OPEN_CONFIRMATION = 91, CHANNEL_REQUEST = 98 };

static void look_at(struct ssh_libssh2 *ssh, const uint8_t *packet, size_t size)
{
	static const char status[] = "\0\0\0\x0b"
				     "exit-status";
	enum { STATUS_LEN = sizeof(status) - 1, STATUS_AT = 5 };

	if (size < STATUS_AT)
		return;
	uint32_t id = get_be32(packet + 1);
	if (packet[0] == OPEN_CONFIRMATION)
		ssh->last_id = id;
	else if (packet[0] == CHANNEL_REQUEST && size >= STATUS_AT + STATUS_LEN + 5 &&
		 memcmp(packet + STATUS_AT, status, STATUS_LEN) == 0)
		ssh_channel_has_status(ssh, id);
}

static void hook_free(void *p, void **abstract)
{
	size_t size = mem_block_size(p);

	if (p && *abstract)
		look_at(*abstract, p, size);
	if (p)
		explicit_bzero(p, size);
	free(p);
}

/*
 * The socket
 */

static void set_lost(struct ssh_libssh2 *ssh, const char *why)
{
	if (ssh->is_lost)
		return;
	ssh->is_lost = true;
	free(ssh->lost_why);
	ssh->lost_why = mem_strdup(why);
}

/* Looked at before anything is sent: our own NEWKEYS is the first behind the key. */
static bool shows_trusted_key(const struct ssh_libssh2 *ssh)
{
	size_t len = 0;

	if (ssh->trusted.len == 0)
		return true;
	const char *blob = libssh2_session_hostkey(ssh->session, &len, NULL);
	return blob && len == ssh->trusted.len && memcmp(blob, ssh->trusted.data, len) == 0;
}

/* libssh2 takes the agent's socket for one that blocks: all of it, unless the agent hangs. */
static ssize_t agent_transfer(
	struct ssh_libssh2 *ssh, int fd, char *in, const char *out, size_t len, int64_t limit_ms)
{
	int64_t began_ms = clock_ms();
	const struct ssh_wait wait = {ssh->wait.cancel, began_ms + limit_ms};
	size_t at = 0;

	while (at < len) {
		ssize_t n = in ? recv(fd, in + at, len - at, MSG_DONTWAIT)
			       : send(fd, out + at, len - at, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n > 0)
			at += (size_t)n;
		else if (n == 0 || (errno != EAGAIN && errno != EINTR))
			return -ECONNRESET;
		else if (ssh_wait_fd(&wait, fd, in ? POLLIN : POLLOUT) != SSH_WAIT_READY)
			return -ETIMEDOUT;
	}
	/* A person may have confirmed a signature. */
	ssh->wait.deadline_ms += clock_ms() - began_ms;
	return (ssize_t)len;
}

/* A connection that is lost says "not now", so that what has been received can be read. */
static ssize_t hook_recv(libssh2_socket_t fd, void *out, size_t len, int flags, void **abstract)
{
	struct ssh_libssh2 *ssh = *abstract;
	ssize_t n;

	(void)flags;
	if (fd != ssh->fd)
		return agent_transfer(ssh, fd, out, NULL, len, ssh->agent_ms);
	if (ssh->is_ended)
		return -ECONNRESET;
	if (ssh->is_lost || ssh->budget == 0)
		return -EAGAIN;
	do {
		n = recv(fd, out, len, MSG_DONTWAIT);
	} while (n < 0 && errno == EINTR);
	if (n > 0) {
		size_t got = (size_t)n;
		ssh->received += got;
		ssh->budget -= got < ssh->budget ? got : ssh->budget;
		return n;
	}
	if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK))
		set_lost(ssh, n == 0 ? "closed by the other side" : strerror(errno));
	return -EAGAIN;
}

static size_t send_some(struct ssh_libssh2 *ssh, const char *data, size_t len)
{
	size_t sent = 0;

	while (sent < len && !ssh->is_lost) {
		ssize_t n = send(ssh->fd, data + sent, len - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n >= 0)
			sent += (size_t)n;
		else if (errno == EAGAIN || errno == EWOULDBLOCK)
			break;
		else if (errno != EINTR)
			set_lost(ssh, strerror(errno));
	}
	return sent;
}

void ssh_session_flush(struct ssh_libssh2 *ssh)
{
	if (!ssh_session_has_output(ssh))
		return;
	ssh->out_at += send_some(ssh, ssh->out.data + ssh->out_at, ssh->out.len - ssh->out_at);
	if (ssh->is_lost || ssh->out_at == ssh->out.len) {
		buf_reset(&ssh->out);
		ssh->out_at = 0;
	} else if (ssh->out_at > SSH_OUT_HIGH) {
		buf_consume(&ssh->out, ssh->out_at);
		ssh->out_at = 0;
	}
}

/* All of it is taken, always. */
static ssize_t hook_send(
	libssh2_socket_t fd, const void *data, size_t len, int flags, void **abstract)
{
	struct ssh_libssh2 *ssh = *abstract;
	size_t sent = 0;

	(void)flags;
	if (fd != ssh->fd)
		return agent_transfer(ssh, fd, NULL, data, len, ssh->agent_ms);
	if (ssh->is_ended)
		return -ECONNRESET;
	if (!shows_trusted_key(ssh))
		set_lost(ssh, "the host shows another key than at the login");
	if (!ssh_session_has_output(ssh))
		sent = send_some(ssh, data, len);
	if (sent < len && !ssh->is_lost)
		buf_add(&ssh->out, (const char *)data + sent, len - sent);
	if (ssh->out.full)
		set_lost(ssh, "too much waits to be sent");
	return (ssize_t)len;
}

/*
 * The session
 */

/* Algorithms that are known to be weak are not offered: RFC 9142, and no CBC, no SHA-1. In this
 * order where the configuration has none. */
#define SAFE_KEX                                                                                   \
	"curve25519-sha256,curve25519-sha256@libssh.org,ecdh-sha2-nistp256,"                       \
	"ecdh-sha2-nistp384,ecdh-sha2-nistp521,diffie-hellman-group16-sha512,"                     \
	"diffie-hellman-group18-sha512,diffie-hellman-group-exchange-sha256,"                      \
	"diffie-hellman-group14-sha256"
#define SAFE_CIPHERS "aes128-ctr,aes256-ctr,aes192-ctr"
#define SAFE_MACS                                                                                  \
	"hmac-sha2-256-etm@openssh.com,hmac-sha2-512-etm@openssh.com,hmac-sha2-256,hmac-sha2-512"

static const struct {
	int kind;
	const char *safe, *keyword;
	size_t wanted; /* in struct ssh_libssh2_login; 0: none */
} methods[] = {
	{LIBSSH2_METHOD_KEX, SAFE_KEX, "KexAlgorithms", offsetof(struct ssh_libssh2_login, kex)},
	{LIBSSH2_METHOD_CRYPT_CS, SAFE_CIPHERS, "Ciphers",
		offsetof(struct ssh_libssh2_login, ciphers)},
	{LIBSSH2_METHOD_CRYPT_SC, SAFE_CIPHERS, "Ciphers",
		offsetof(struct ssh_libssh2_login, ciphers)},
	{LIBSSH2_METHOD_MAC_CS, SAFE_MACS, "MACs", offsetof(struct ssh_libssh2_login, macs)},
	{LIBSSH2_METHOD_MAC_SC, SAFE_MACS, "MACs", offsetof(struct ssh_libssh2_login, macs)},
	{LIBSSH2_METHOD_COMP_CS, "none", "Compression", 0},
	{LIBSSH2_METHOD_COMP_SC, "none", "Compression", 0},
};

/* ISO C has no conversion from a function to an object; libssh2 wants one. */
static void set_hook(LIBSSH2_SESSION *session, int kind, const void *fn_at)
{
	void *fn;

	memcpy(&fn, fn_at, sizeof(fn));
	libssh2_session_callback_set(session, kind, fn);
}

static bool is_supported(const char *name, const char *const *all, int n)
{
	for (int i = 0; i < n; i++) {
		if (str_eq(all[i], name))
			return true;
	}
	return false;
}

/* Of list what is safe and libssh2 has. It would leave out the others by itself, but by copying
 * within one block as if they were two. */
static void keep_supported(
	const char *list, const char *safe, const char *const *all, int n, struct buf *out)
{
	for (const char *at = list, *end; *at; at = *end ? end + 1 : end) {
		end = strchrnul(at, ',');
		AUTO_FREE char *name = mem_strndup(at, (size_t)(end - at));
		if (is_supported(name, all, n) && ssh_list_has(safe, name))
			buf_addf(out, "%s%s", out->len > 0 ? "," : "", name);
	}
}

static int set_method(struct ssh_libssh2 *ssh, int kind, const char *list, const char *safe,
	const char *keyword, struct err *err)
{
	AUTO_BUF struct buf kept = {0};
	const char **all = NULL;

	buf_init(&kept, 1024);
	int n = libssh2_session_supported_algs(ssh->session, kind, &all);
	if (n > 0)
		keep_supported(list, safe, all, n, &kept);
	if (n > 0)
		libssh2_free(ssh->session, all);
	if (kept.len > 0 && libssh2_session_method_pref(ssh->session, kind, kept.data) == 0)
		return 0;
	ssh_libssh2_fall_back(ssh, "libssh2 %s has none of the %s that the configuration allows",
		libssh2_version(0), keyword);
	return err_set(err, E_SSH_LOGIN, "libssh2 has no %s that are allowed and safe", keyword);
}

static int set_methods(struct ssh_libssh2 *ssh, const char *host_key_types, struct err *err)
{
	int r = set_method(ssh, LIBSSH2_METHOD_HOSTKEY, host_key_types, host_key_types,
		"HostKeyAlgorithms", err);

	for (size_t i = 0; i < ARRAY_LEN(methods) && r == 0; i++) {
		const char *wanted = methods[i].wanted
					     ? *(const char *const *)((const char *)&ssh->login +
								      methods[i].wanted)
					     : NULL;
		r = set_method(ssh, methods[i].kind, wanted ? wanted : methods[i].safe,
			methods[i].safe, methods[i].keyword, err);
	}
	return r;
}

int ssh_session_begin(struct ssh_libssh2 *ssh, const char *host_key_types, struct err *err)
{
	ssize_t (*receives)(libssh2_socket_t, void *, size_t, int, void **) = hook_recv;
	ssize_t (*sends)(libssh2_socket_t, const void *, size_t, int, void **) = hook_send;

	ssh->session = libssh2_session_init_ex(hook_alloc, hook_free, hook_realloc, ssh);
	if (!ssh->session) {
		ssh_libssh2_fall_back(ssh, "libssh2 cannot begin");
		return err_set(err, E_IO, "libssh2 cannot make a session");
	}
	buf_init(&ssh->out, SSH_OUT_MAX);
	ssh->out_at = 0;
	ssh->budget = SIZE_MAX;
	ssh->is_lost = ssh->is_ended = false;
	libssh2_session_set_blocking(ssh->session, 0);
	set_hook(ssh->session, LIBSSH2_CALLBACK_RECV, &receives);
	set_hook(ssh->session, LIBSSH2_CALLBACK_SEND, &sends);
	return set_methods(ssh, host_key_types, err);
}

void ssh_session_end(struct ssh_libssh2 *ssh)
{
	ssh->is_ended = true;
	if (ssh->session)
		libssh2_session_free(ssh->session);
	ssh->session = NULL;
	buf_done(&ssh->out);
	if (ssh->fd >= 0)
		close(ssh->fd);
	ssh->fd = -1;
}

const char *ssh_session_error(struct ssh_libssh2 *ssh, int *ret_code)
{
	char *text = NULL;
	int code = libssh2_session_last_error(ssh->session, &text, NULL, 0);

	if (ret_code)
		*ret_code = code;
	return text && *text ? text : "no reason given";
}

int ssh_session_run(struct ssh_libssh2 *ssh, ssh_step_fn *step, void *arg)
{
	int r;

	while ((r = step(ssh, arg)) == LIBSSH2_ERROR_EAGAIN) {
		short events = ssh_session_has_output(ssh) ? POLLIN | POLLOUT : POLLIN;
		if (ssh->is_lost)
			return LIBSSH2_ERROR_SOCKET_DISCONNECT;
		enum ssh_waited waited = ssh_wait_fd(&ssh->wait, ssh->fd, events);
		if (waited == SSH_WAIT_CANCELED)
			return SSH_STEP_CANCELED;
		if (waited == SSH_WAIT_TIMEOUT)
			return LIBSSH2_ERROR_TIMEOUT;
		ssh_session_flush(ssh);
	}
	return r;
}
