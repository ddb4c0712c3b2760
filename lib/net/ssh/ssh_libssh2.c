/* SPDX-License-Identifier: Apache-2.0 */
#include "net/ssh/ssh_libssh2.h"

#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/loop/library.h"
#include "base/loop/par.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/digest.h"
#include "base/util/enc.h"
#include "base/util/err.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/ssh/ssh.h"
#include "net/ssh/ssh_config.h"
#include "net/ssh/ssh_libssh2_impl.h"
#include "net/ssh/ssh_libssh2_lib.h"

struct ssh_libssh2_lib ssh_libssh2_lib;

static const struct library_symbol symbols[] = {
#define SYMBOL(name) {offsetof(struct ssh_libssh2_lib, name), "libssh2_" #name},
	SSH_LIBSSH2_LIB(SYMBOL)
#undef SYMBOL
};

static enum library_state state;

/* Not safe in two threads at once. */
static void ssh_libssh2_init_library(void)
{
	ssh_libssh2_lib.init(0);
}

LIBRARY_NOTE("ssh", "Speaks to SSH servers without the OpenSSH client", "recommended",
	LIBRARY_FILE("ssh2", "1"));

static const struct library library = {
	.file = LIBRARY_FILE("ssh2", "1"),
	.what = "libssh2, which speaks to ssh servers,",
	.package = "libssh2-1",
	.symbols = symbols,
	.n_symbols = ARRAY_LEN(symbols),
	.table = &ssh_libssh2_lib,
	.table_size = sizeof(ssh_libssh2_lib),
	.start = ssh_libssh2_init_library,
	.state = &state,
};

/* Once is enough, more does nothing; from any thread. E_IO when it is not installed. */
static int ssh_libssh2_load(struct err *err)
{
	uint8_t unused[SHA256_SIZE];

	/* OpenSSL takes hooks for its memory only before anybody has used it. */
	digest_sha256("", 0, unused);
	return library_load(&library, err);
}

int ssh_libssh2_has_rsa_sha2(void)
{
	return ssh_libssh2_lib.version(0x010b00) != NULL;
}

/*
 * Waiting: for a descriptor, until a time, and no longer than the login is wanted
 */

enum ssh_waited { SSH_WAIT_READY, SSH_WAIT_TIMEOUT, SSH_WAIT_CANCELED };

enum { FDS_MAX = 8 };

static int ms_until(int64_t at_ms)
{
	int64_t left = at_ms - clock_ms();

	if (left <= 0)
		return 0;
	return left > INT_MAX ? INT_MAX : (int)left;
}

static enum ssh_waited ssh_wait_fds(
	const struct ssh_wait *wait, struct pollfd *fds, size_t n, int64_t at_ms)
{
	struct pollfd all[FDS_MAX + 1];
	int64_t until = at_ms < wait->deadline_ms ? at_ms : wait->deadline_ms;
	int found;

	BUG_ON(n > FDS_MAX);
	if (n > 0)
		memcpy(all, fds, n * sizeof(*fds));
	all[n] = (struct pollfd){.fd = wait->cancel, .events = POLLIN};
	do {
		found = poll(all, n + 1, ms_until(until));
	} while (found < 0 && errno == EINTR);
	if (n > 0)
		memcpy(fds, all, n * sizeof(*fds));
	if (all[n].revents)
		return SSH_WAIT_CANCELED;
	return found > 0 ? SSH_WAIT_READY : SSH_WAIT_TIMEOUT;
}

static enum ssh_waited ssh_wait_fd(const struct ssh_wait *wait, int fd, short events)
{
	struct pollfd one = {.fd = fd, .events = events};

	return ssh_wait_fds(wait, &one, 1, wait->deadline_ms);
}

/*
 * The addresses of a host, looked up in a thread: getaddrinfo cannot be made to end, and is left to
 * itself when the result is not wanted any more
 */

/* Freed by the last of the thread and the caller. */
struct lookup {
	char *host;
	char service[8];
	int family;
	int code;
	struct addrinfo *list;
	int ended[2]; /* the thread closes [1] */
	atomic_int users;
	struct par_task *task; /* the caller's */
};

static void lookup_drop(struct lookup *lookup)
{
	if (atomic_fetch_sub(&lookup->users, 1) > 1)
		return;
	if (lookup->list)
		freeaddrinfo(lookup->list);
	close(lookup->ended[0]);
	free(lookup->host);
	free(lookup);
}

static void lookup_run(void *ctx)
{
	struct lookup *lookup = ctx;
	struct addrinfo hints = {
		.ai_family = lookup->family, .ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG};

	lookup->code = getaddrinfo(lookup->host, lookup->service, &hints, &lookup->list);
	/* Where there is no network but loopback, that flag hides it as well. */
	hints.ai_flags = AI_NUMERICHOST;
	if (lookup->code != 0 &&
		getaddrinfo(lookup->host, lookup->service, &hints, &lookup->list) == 0)
		lookup->code = 0;
	if (lookup->code != 0)
		lookup->list = NULL;
	close(lookup->ended[1]);
	lookup_drop(lookup);
}

/* family: AF_UNSPEC, AF_INET, AF_INET6. Copies host. */
static struct lookup *lookup_start(const char *host, uint16_t port, int family)
{
	struct lookup *lookup = mem_alloc(1, sizeof(*lookup));

	lookup->host = mem_strdup(host);
	lookup->family = family;
	snprintf(lookup->service, sizeof(lookup->service), "%u", port);
	atomic_init(&lookup->users, 2);
	BUG_ON(os_pipe(lookup->ended, 0) < 0);
	lookup->task = par_start(lookup_run, lookup);
	return lookup;
}

/* A descriptor that can be read (its end) when the result is there. Stays the lookup's. */
static int lookup_fd(const struct lookup *lookup)
{
	return lookup->ended[0];
}

/* When it is there: the addresses of streams, best first, for freeaddrinfo, or NULL and an EAI_*
 * code. Once. */
static struct addrinfo *lookup_take(struct lookup *lookup, int *ret_code)
{
	par_wait(TAKE(lookup->task));
	*ret_code = lookup->code;
	return TAKE(lookup->list);
}

/* Also gives up. NULL is accepted. */
static void lookup_free(struct lookup *lookup)
{
	if (!lookup)
		return;
	if (lookup->task)
		par_leave(TAKE(lookup->task));
	lookup_drop(lookup);
}

AUTO_POINTER(struct lookup, lookup_free)
#define AUTO_LOOKUP AUTO(lookup_free_auto)

/*
 * Connecting
 */

/* The next address is tried beside those that have not responded yet (RFC 8305, section 5). */
enum { AT_ONCE_MAX = 8, NEXT_AFTER_MS = 250 };

struct dial {
	struct pollfd fds[AT_ONCE_MAX];
	size_t n;
	const struct addrinfo *next;
	int64_t next_ms;
	int errnum; /* of the last that failed */
	int64_t dead_ms;
};

static void ssh_libssh2_free_addresses(struct addrinfo **list)
{
	if (*list)
		freeaddrinfo(*list);
}

static int explain_lookup(enum ssh_waited waited, int code, const char *host, struct err *err)
{
	if (waited == SSH_WAIT_CANCELED)
		return err_set(err, E_CANCELED, "interrupted");
	if (waited == SSH_WAIT_TIMEOUT || code == EAI_AGAIN)
		return err_set(err, E_SSH_UNREACHABLE,
			"the name %s cannot be looked up now: no name server answers", host);
	return err_set(err, E_SSH_UNREACHABLE, "could not resolve host %s", host);
}

static int ssh_libssh2_lookup(const char *host, uint16_t port, int family,
	const struct ssh_wait *wait, struct addrinfo **ret, struct err *err)
{
	AUTO_LOOKUP struct lookup *lookup = lookup_start(host, port, family);
	int code = 0;

	enum ssh_waited waited = ssh_wait_fd(wait, lookup_fd(lookup), POLLIN);
	if (waited == SSH_WAIT_READY)
		*ret = lookup_take(lookup, &code);
	return *ret ? 0 : explain_lookup(waited, code, host, err);
}

/*
 * Connections
 */

static void set_option(int fd, int level, int option, int value)
{
	/* Options that the system does not support are not needed to connect. */
	(void)setsockopt(fd, level, option, &value, sizeof(value));
}

static void tune(int fd, int64_t dead_ms)
{
	set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
	set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
#ifdef TCP_USER_TIMEOUT
	set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)dead_ms);
#else
	(void)dead_ms;
#endif
}

static int begin_one(const struct addrinfo *address, int64_t dead_ms)
{
	AUTO_FD int fd = socket(address->ai_family,
		address->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, address->ai_protocol);

	if (fd < 0)
		return -errno;
	tune(fd, dead_ms);
	if (connect(fd, address->ai_addr, address->ai_addrlen) < 0 && errno != EINPROGRESS)
		return -errno;
	return TAKE_FD(fd);
}

static void begin_next(struct dial *dial)
{
	int fd = begin_one(dial->next, dial->dead_ms);

	dial->next = dial->next->ai_next;
	dial->next_ms = clock_ms() + NEXT_AFTER_MS;
	if (fd < 0) {
		dial->errnum = -fd;
		dial->next_ms = 0;
		return;
	}
	dial->fds[dial->n++] = (struct pollfd){.fd = fd, .events = POLLOUT};
}

static void ssh_libssh2_drop(struct dial *dial, size_t i)
{
	close(dial->fds[i].fd);
	dial->fds[i] = dial->fds[--dial->n];
}

/* The first that is connected, or -1; those that failed are dropped. */
static int ssh_libssh2_pick(struct dial *dial)
{
	for (size_t i = dial->n; i-- > 0;) {
		int errnum = 0;
		socklen_t len = sizeof(errnum);
		if (!dial->fds[i].revents)
			continue;
		getsockopt(dial->fds[i].fd, SOL_SOCKET, SO_ERROR, &errnum, &len);
		if (errnum == 0) {
			int fd = dial->fds[i].fd;
			dial->fds[i] = dial->fds[--dial->n];
			return fd;
		}
		dial->errnum = errnum;
		dial->next_ms = 0;
		ssh_libssh2_drop(dial, i);
	}
	return -1;
}

static int ssh_libssh2_explain(const struct dial *dial, enum ssh_waited waited, const char *host,
	uint16_t port, struct err *err)
{
	if (waited == SSH_WAIT_CANCELED)
		return err_set(err, E_CANCELED, "interrupted");
	if (dial->n > 0 || dial->errnum == 0)
		return err_set(err, E_SSH_UNREACHABLE, "%s does not answer on port %u", host, port);
	if (dial->errnum == ECONNREFUSED)
		return err_set(err, E_SSH_UNREACHABLE,
			"%s refuses connections to port %u: no ssh server listens there", host,
			port);
	return err_set_errno(
		err, E_SSH_UNREACHABLE, dial->errnum, "connecting to %s port %u", host, port);
}

static int race(struct dial *dial, const struct ssh_wait *wait, enum ssh_waited *ret_waited)
{
	int fd = -1;

	*ret_waited = SSH_WAIT_TIMEOUT;
	while (fd < 0) {
		bool more = dial->next && dial->n < AT_ONCE_MAX;
		if (more && clock_ms() >= dial->next_ms) {
			begin_next(dial);
			continue;
		}
		if (dial->n == 0)
			return -1;
		*ret_waited = ssh_wait_fds(
			wait, dial->fds, dial->n, more ? dial->next_ms : wait->deadline_ms);
		if (*ret_waited == SSH_WAIT_CANCELED || clock_ms() >= wait->deadline_ms)
			return -1;
		if (*ret_waited == SSH_WAIT_READY)
			fd = ssh_libssh2_pick(dial);
	}
	return fd;
}

static int ssh_dial(const char *host, uint16_t port, int family, int64_t dead_ms,
	const struct ssh_wait *wait, int *ret_fd, struct err *err)
{
	AUTO(ssh_libssh2_free_addresses) struct addrinfo *list = NULL;
	enum ssh_waited waited;

	int r = ssh_libssh2_lookup(host, port, family, wait, &list, err);
	if (r < 0)
		return r;
	struct dial dial = {.next = list, .dead_ms = dead_ms};
	int fd = race(&dial, wait, &waited);
	if (fd < 0)
		r = ssh_libssh2_explain(&dial, waited, host, port, err);
	while (dial.n > 0)
		ssh_libssh2_drop(&dial, dial.n - 1);
	if (fd >= 0)
		*ret_fd = fd;
	return r;
}

/*
 * Memory. What a packet said is read when libssh2 gives it back, because it does not tell an
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

static void *hook_alloc(size_t size, void **abstract UNUSED)
{
	return block_of(size, NULL);
}

static void *ssh_libssh2_hook_realloc(void *old, size_t size, void **abstract UNUSED)
{
	return block_of(size, old);
}

/* RFC 4254, sections 5.1 and 6.10. */
enum { OPEN_CONFIRMATION = 91, CHANNEL_REQUEST = 98 };

static void ssh_libssh2_note_packet(struct ssh_libssh2 *ssh, const uint8_t *packet, size_t size)
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

static void ssh_libssh2_hook_free(void *p, void **abstract)
{
	size_t size = mem_block_size(p);

	if (p && *abstract)
		ssh_libssh2_note_packet(*abstract, p, size);
	if (p)
		explicit_bzero(p, size);
	free(p);
}

/*
 * The socket
 */

static void ssh_libssh2_set_lost(struct ssh_libssh2 *ssh, const char *why)
{
	if (ssh->is_lost)
		return;
	ssh->is_lost = true;
	REPLACE(ssh->lost_why, mem_strdup(why));
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
	ssize_t r = (ssize_t)len;
	size_t at = 0;

	while (at < len && r > 0) {
		ssize_t n = in ? recv(fd, in + at, len - at, MSG_DONTWAIT)
			       : send(fd, out + at, len - at, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n > 0)
			at += (size_t)n;
		else if (n == 0 || (errno != EAGAIN && errno != EINTR))
			r = -ECONNRESET;
		else if (ssh_wait_fd(&wait, fd, in ? POLLIN : POLLOUT) != SSH_WAIT_READY)
			r = -ETIMEDOUT;
	}
	/* The user may have confirmed a signature, or not: then other keys are tried. */
	ssh->wait.deadline_ms += clock_ms() - began_ms;
	return r;
}

/* A connection that is lost says "not now", so that what has been received can be read. */
static ssize_t hook_recv(
	libssh2_socket_t fd, void *out, size_t len, int flags UNUSED, void **abstract)
{
	struct ssh_libssh2 *ssh = *abstract;
	ssize_t n;

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
		ssh_libssh2_set_lost(ssh, n == 0 ? "closed by the other side" : strerror(errno));
	return -EAGAIN;
}

static size_t ssh_libssh2_send_some(struct ssh_libssh2 *ssh, const char *data, size_t len)
{
	size_t sent = 0;

	while (sent < len && !ssh->is_lost) {
		ssize_t n = send(ssh->fd, data + sent, len - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n >= 0)
			sent += (size_t)n;
		else if (errno == EAGAIN || errno == EWOULDBLOCK)
			break;
		else if (errno != EINTR)
			ssh_libssh2_set_lost(ssh, strerror(errno));
	}
	return sent;
}

void ssh_session_flush(struct ssh_libssh2 *ssh)
{
	if (!ssh_session_has_output(ssh))
		return;
	ssh->out_at +=
		ssh_libssh2_send_some(ssh, ssh->out.data + ssh->out_at, ssh->out.len - ssh->out_at);
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
	libssh2_socket_t fd, const void *data, size_t len, int flags UNUSED, void **abstract)
{
	struct ssh_libssh2 *ssh = *abstract;
	size_t sent = 0;

	if (fd != ssh->fd)
		return agent_transfer(ssh, fd, NULL, data, len, ssh->agent_ms);
	if (ssh->is_ended)
		return -ECONNRESET;
	if (!shows_trusted_key(ssh))
		ssh_libssh2_set_lost(ssh, "the host shows another key than at the login");
	if (!ssh_session_has_output(ssh))
		sent = ssh_libssh2_send_some(ssh, data, len);
	if (sent < len && !ssh->is_lost)
		buf_add(&ssh->out, (const char *)data + sent, len - sent);
	if (ssh->out.full)
		ssh_libssh2_set_lost(ssh, "too much waits to be sent");
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

static int ssh_libssh2_set_method(struct ssh_libssh2 *ssh, int kind, const char *list,
	const char *safe, const char *keyword, struct err *err)
{
	AUTO_BUF struct buf kept = buf_with(1024);
	const char **all = NULL;

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
	int r = ssh_libssh2_set_method(ssh, LIBSSH2_METHOD_HOSTKEY, host_key_types, host_key_types,
		"HostKeyAlgorithms", err);

	for (size_t i = 0; i < ARRAY_LEN(methods) && r == 0; i++) {
		const char *wanted = methods[i].wanted
					     ? *(const char *const *)((const char *)&ssh->login +
								      methods[i].wanted)
					     : NULL;
		r = ssh_libssh2_set_method(ssh, methods[i].kind, wanted ? wanted : methods[i].safe,
			methods[i].safe, methods[i].keyword, err);
	}
	return r;
}

/* Packets of libssh2 are sent as a whole, so that none is ever half sent while it wants to send
 * another. */
static int ssh_session_begin(struct ssh_libssh2 *ssh, const char *host_key_types, struct err *err)
{
	ssize_t (*receives)(libssh2_socket_t, void *, size_t, int, void **) = hook_recv;
	ssize_t (*sends)(libssh2_socket_t, const void *, size_t, int, void **) = hook_send;

	ssh->session = libssh2_session_init_ex(
		hook_alloc, ssh_libssh2_hook_free, ssh_libssh2_hook_realloc, ssh);
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

static void ssh_session_end(struct ssh_libssh2 *ssh)
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

/* A server with too many logins under way (MaxStartups of sshd_config(5)) closes some at once. */
enum { TRIES_MAX = 3, TRY_AGAIN_MS = 700 };
/* Timeout of the connection, and of the server's first line: no response comes any later. */
enum { FIRST_LINE_MS = 9000 };

static int64_t ssh_libssh2_timeout_ms(const struct ssh_libssh2 *ssh)
{
	return ssh->login.connect_ms > 0 ? ssh->login.connect_ms : FIRST_LINE_MS;
}

static int login_dial(struct ssh_libssh2 *ssh, struct err *err)
{
	const struct ssh_libssh2_login *login = &ssh->login;
	int64_t dead_ms = login->keepalive_ms * SSH_UNANSWERED_MAX;

	ssh->wait.deadline_ms = clock_ms() + ssh_libssh2_timeout_ms(ssh);
	int r = ssh_dial(
		login->hostname, login->port, login->family, dead_ms, &ssh->wait, &ssh->fd, err);
	if (r < 0)
		return r;
	ssh_libssh2_print(ssh, true, "connected to %s port %u", login->hostname, login->port);
	ssh->wait.deadline_ms = clock_ms() + ssh_libssh2_timeout_ms(ssh);
	return 0;
}

static int step_handshake(struct ssh_libssh2 *ssh, void *arg UNUSED)
{
	return libssh2_session_handshake(ssh->session, ssh->fd);
}

static int handshake(struct ssh_libssh2 *ssh)
{
	int64_t all_ms = clock_ms() + SSH_LOGIN_MS;
	int r = ssh_session_run(ssh, step_handshake, NULL);

	if (r != LIBSSH2_ERROR_TIMEOUT || !libssh2_session_banner_get(ssh->session))
		return r;
	ssh->wait.deadline_ms = all_ms;
	return ssh_session_run(ssh, step_handshake, NULL);
}

/* Nothing that is ssh has come: no other client would do better. */
static int fail_silent(struct ssh_libssh2 *ssh, int r, struct err *err)
{
	const struct ssh_libssh2_login *login = &ssh->login;

	if (r == LIBSSH2_ERROR_TIMEOUT)
		return err_set(err, E_SSH_UNREACHABLE,
			"%s accepts connections to port %u, but says nothing", login->hostname,
			login->port);
	if (libssh2_session_banner_get(ssh->session))
		return err_set(err, E_SSH_UNREACHABLE,
			"what listens on port %u of %s is not an SSH server", login->port,
			login->hostname);
	return err_set(err, E_SSH_UNREACHABLE,
		"%s closes connections to port %u before it says anything", login->hostname,
		login->port);
}

static int fail_handshake(struct ssh_libssh2 *ssh, int r, struct err *err)
{
	AUTO_FREE char *why = str_shown(ssh_session_error(ssh, NULL));

	if (r == SSH_STEP_CANCELED)
		return err_set(err, E_CANCELED, "interrupted");
	const char *banner = libssh2_session_banner_get(ssh->session);
	if (!banner || !str_starts(banner, "SSH-"))
		return fail_silent(ssh, r, err);
	ssh_libssh2_fall_back(ssh,
		"libssh2 %s and the server did not agree how to speak (%s): it may have an RSA "
		"key only",
		libssh2_version(0), why);
	return err_set(err, E_SSH_LOGIN, "%s and libssh2 have no algorithms in common (%s)",
		ssh->login.name, why);
}

static void note_methods(struct ssh_libssh2 *ssh)
{
	static const int kinds[] = {LIBSSH2_METHOD_KEX, LIBSSH2_METHOD_HOSTKEY,
		LIBSSH2_METHOD_CRYPT_CS, LIBSSH2_METHOD_MAC_CS};
	AUTO_BUF struct buf text = buf_with(512);

	for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
		const char *name = libssh2_session_methods(ssh->session, kinds[i]);
		buf_addf(&text, "%s%s", i > 0 ? ", " : "", name ? name : "?");
	}
	ssh_libssh2_print(ssh, true, "agreed: %s", text.data);
}

/* 1: closed before anything was said, may be tried again. */
static int ssh_libssh2_connect_once(struct ssh_libssh2 *ssh, const char *types, struct err *err)
{
	int r = login_dial(ssh, err);
	if (r < 0)
		return r;
	r = ssh_session_begin(ssh, types, err);
	if (r < 0)
		return r;
	r = handshake(ssh);
	if (r == 0) {
		note_methods(ssh);
		ssh->wait.deadline_ms = clock_ms() + SSH_LOGIN_MS;
		return 0;
	}
	bool is_silent = ssh->is_lost && !libssh2_session_banner_get(ssh->session);
	r = fail_handshake(ssh, r, err);
	return is_silent ? 1 : r;
}

static int shake_hands(struct ssh_libssh2 *ssh, const char *types, struct err *err)
{
	for (int i = 0;; i++) {
		int r = ssh_libssh2_connect_once(ssh, types, err);
		if (r <= 0)
			return r;
		ssh_session_end(ssh);
		if (i + 1 == TRIES_MAX)
			return -(int)err->code;
		ssh->wait.deadline_ms = clock_ms() + ssh_libssh2_timeout_ms(ssh);
		if (ssh_wait_fds(&ssh->wait, NULL, 0, clock_ms() + TRY_AGAIN_MS) ==
			SSH_WAIT_CANCELED)
			return err_set(err, E_CANCELED, "interrupted");
		err_clear(err);
	}
}

static int step_first(struct ssh_libssh2 *ssh, void *arg UNUSED)
{
	return ssh_channel_advance(ssh->first);
}

/* An error of the first command itself is left to the caller that takes the channel. */
static int begin_first(struct ssh_libssh2 *ssh, struct err *err)
{
	if (!ssh->login.first_command)
		return 0;
	ssh->first = ssh_channel_new(ssh);
	ssh_channel_set_command(ssh->first, ssh->login.first_command, NULL);
	int r = ssh_session_run(ssh, step_first, NULL);
	if (r == SSH_STEP_CANCELED)
		return err_set(err, E_CANCELED, "interrupted");
	if (r == LIBSSH2_ERROR_TIMEOUT || ssh->is_lost)
		return err_set(err, E_SSH_LOST, "%s has logged in, and then stopped answering",
			ssh->login.name);
	return 0;
}

/* The thread's work. 0, or the error of ssh->end. */
static int ssh_libssh2_work(struct ssh_libssh2 *ssh, struct err *err)
{
	ssh->end = SSH_LIBSSH2_FAILED;
	int r = ssh_libssh2_load(err);
	if (r < 0) {
		ssh_libssh2_fall_back(ssh, "libssh2 is not installed");
		return r;
	}
	AUTO_FREE char *types = ssh_libssh2_host_key_types(ssh);
	if (!types)
		return err_set(err, E_SSH_LOGIN, "the key of %s cannot be checked by libssh2",
			ssh->login.name);
	r = shake_hands(ssh, types, err);
	if (r == 0)
		r = ssh_libssh2_trust(ssh, err);
	if (r == 0)
		r = ssh_libssh2_auth(ssh, err);
	if (r == 0)
		r = begin_first(ssh, err);
	if (r == 0)
		ssh->end = SSH_LIBSSH2_READY;
	return r;
}

/*
 * A copy of the login
 */

static const char *const *copy_list(const char *const *list)
{
	struct strv copy = {0};

	for (size_t i = 0; list && list[i]; i++)
		strv_add(&copy, list[i]);
	return (const char *const *)copy.v;
}

static void ssh_libssh2_free_strings(const char *const *list)
{
	for (size_t i = 0; list && list[i]; i++)
		free((char *)(uintptr_t)list[i]);
	free((void *)(uintptr_t)list);
}

/* The members that are strings, and lists of them. */
#define LOGIN_AT(member) offsetof(struct ssh_libssh2_login, member)
static const size_t login_strings[] = {LOGIN_AT(name), LOGIN_AT(hostname), LOGIN_AT(user),
	LOGIN_AT(key_alias), LOGIN_AT(agent), LOGIN_AT(first_command), LOGIN_AT(kex),
	LOGIN_AT(ciphers), LOGIN_AT(macs), LOGIN_AT(host_key_types), LOGIN_AT(user_key_types)};
static const size_t login_lists[] = {LOGIN_AT(env), LOGIN_AT(user_known_hosts),
	LOGIN_AT(global_known_hosts), LOGIN_AT(identities)};

static const char **login_string(struct ssh_libssh2_login *login, size_t i)
{
	return (const char **)((char *)login + login_strings[i]);
}

static const char *const **login_list(struct ssh_libssh2_login *login, size_t i)
{
	return (const char *const **)((char *)login + login_lists[i]);
}

static void copy_login(struct ssh_libssh2_login *to, const struct ssh_libssh2_login *from)
{
	*to = *from;
	for (size_t i = 0; i < ARRAY_LEN(login_strings); i++)
		*login_string(to, i) = mem_strdup(*login_string(to, i));
	for (size_t i = 0; i < ARRAY_LEN(login_lists); i++)
		*login_list(to, i) = copy_list(*login_list(to, i));
	if (to->keepalive_ms <= 0)
		to->keepalive_ms = SSH_KEEPALIVE_MS;
}

static void ssh_libssh2_free_login(struct ssh_libssh2_login *login)
{
	for (size_t i = 0; i < ARRAY_LEN(login_strings); i++)
		free((void *)(uintptr_t)*login_string(login, i));
	for (size_t i = 0; i < ARRAY_LEN(login_lists); i++)
		ssh_libssh2_free_strings(*login_list(login, i));
}

/*
 * From the thread to the loop
 */

static struct ssh_message *take_messages(struct ssh_libssh2 *ssh)
{
	struct ssh_message *last_first = atomic_exchange(&ssh->messages, NULL), *messages = NULL;

	while (last_first) {
		struct ssh_message *message = last_first;
		last_first = message->next;
		message->next = messages;
		messages = message;
	}
	return messages;
}

static void ssh_libssh2_print_messages(void *ctx)
{
	struct ssh_libssh2 *ssh = ctx;

	for (struct ssh_message *message = take_messages(ssh), *next; message; message = next) {
		next = message->next;
		if (ssh->events.print)
			ssh->events.print(ssh->events.ctx, message->text, message->is_detail);
		free(message->text);
		free(message);
	}
}

void ssh_libssh2_print(struct ssh_libssh2 *ssh, bool is_detail, const char *fmt, ...)
{
	struct ssh_message *message = mem_alloc(1, sizeof(*message));
	va_list args;

	va_start(args, fmt);
	message->text = mem_vprintf(fmt, args);
	va_end(args);
	message->is_detail = is_detail;
	message->next = atomic_load(&ssh->messages);
	while (!atomic_compare_exchange_weak(&ssh->messages, &message->next, message))
		;
	task_post(ssh->task, ssh_libssh2_print_messages, ssh);
}

struct question {
	struct ssh_libssh2 *ssh;
	const char *text;
	bool secret;
	struct buf *answer;
	int answered;
};

static void put_question(void *ctx, struct task *task)
{
	struct question *question = ctx;
	struct ssh_libssh2_events *events = &question->ssh->events;
	AUTO_ERR struct err error = {0};

	ssh_libssh2_print_messages(question->ssh);
	int r = events->prompt(
		events->ctx, question->text, question->secret, question->answer, &error);
	question->answered = r;
	task_respond(task, r < 0 ? r : 0, r < 0 ? &error : NULL);
}

bool ssh_libssh2_may_prompt(const struct ssh_libssh2 *ssh)
{
	return ssh->events.prompt != NULL;
}

int ssh_libssh2_prompt(struct ssh_libssh2 *ssh, const char *question, bool secret,
	struct buf *answer, struct err *err)
{
	struct question own = {.ssh = ssh, .text = question, .secret = secret, .answer = answer};
	int64_t began = clock_ms();

	if (!ssh->events.prompt)
		return 0;
	int r = task_request(ssh->task, put_question, &own, err);
	ssh->wait.deadline_ms += clock_ms() - began;
	return r < 0 ? r : own.answered;
}

void ssh_libssh2_fall_back(struct ssh_libssh2 *ssh, const char *fmt, ...)
{
	va_list args;

	ssh->end = SSH_LIBSSH2_FALLBACK;
	buf_reset(&ssh->why);
	va_start(args, fmt);
	buf_addv(&ssh->why, fmt, args);
	va_end(args);
}

/*
 * The thread
 */

static int ssh_libssh2_resolve(struct ssh_libssh2 *ssh, struct err *err)
{
	struct ssh_libssh2_login login = {0};
	const char *why = "";

	if (!ssh->events.resolve)
		return 0;
	int r = ssh->events.resolve(ssh->events.ctx, ssh->cancel[0], &login, &why, err);
	if (r < 0)
		return r;
	if (r == 0) {
		ssh_libssh2_fall_back(ssh, "%s", why);
		return err_set(err, E_SSH_LOGIN, "libssh2 cannot log in there");
	}
	copy_login(&ssh->login, &login);
	return 0;
}

static int ssh_libssh2_log_in(struct task *task UNUSED, void *ctx, struct err *err)
{
	int r = ssh_libssh2_resolve(ctx, err);

	return r < 0 ? r : ssh_libssh2_work(ctx, err);
}

static int ssh_libssh2_work_done(void *ctx, int r, struct err *error, struct err *err)
{
	struct ssh_libssh2 *ssh = ctx;

	ssh_libssh2_print_messages(ssh);
	if (r == 0)
		ssh_turn_begin(ssh);
	else if (ssh->end == SSH_LIBSSH2_READY)
		ssh->end = SSH_LIBSSH2_FAILED;
	/* The error of a fallback is for where there is no client to fall back on. */
	return ssh->events.done(ssh->events.ctx, ssh->end, ssh->why.data, error, err);
}

struct ssh_libssh2 *ssh_libssh2_start(struct loop *loop, const struct ssh_libssh2_login *login,
	const struct ssh_libssh2_events *events)
{
	struct ssh_libssh2 *ssh = mem_alloc(1, sizeof(*ssh));

	ssh->loop = loop;
	ssh->events = *events;
	ssh->fd = -1;
	ssh->end = SSH_LIBSSH2_FAILED;
	if (login) {
		copy_login(&ssh->login, login);
		ssh->events.resolve = NULL;
	}
	buf_init(&ssh->why, 1024);
	buf_init(&ssh->tried, 1024);
	buf_init(&ssh->trusted, SSH_ALLOC_MAX);
	BUG_ON(os_pipe(ssh->cancel, 0) < 0);
	ssh->wait.cancel = ssh->cancel[0];
	task_start(loop, ssh_libssh2_log_in, ssh_libssh2_work_done, ssh, &ssh->task);
	return ssh;
}

void ssh_libssh2_free(struct ssh_libssh2 *ssh)
{
	if (!ssh)
		return;
	close(ssh->cancel[1]);
	task_free(ssh->task);
	close(ssh->cancel[0]);
	ssh_turn_end(ssh);
	ssh_session_end(ssh);
	ssh_known_done(&ssh->known);
	ssh->events.print = NULL;
	ssh_libssh2_print_messages(ssh);
	ssh_libssh2_free_login(&ssh->login);
	buf_done(&ssh->why);
	buf_done(&ssh->tried);
	buf_done(&ssh->trusted);
	free(ssh->lost_why);
	err_done(&ssh->error);
	free(ssh);
}

bool ssh_libssh2_is_stuck(const struct ssh_libssh2 *ssh)
{
	return ssh->is_stuck;
}

bool ssh_libssh2_is_lost(const struct ssh_libssh2 *ssh)
{
	return err_is_set(&ssh->error);
}
