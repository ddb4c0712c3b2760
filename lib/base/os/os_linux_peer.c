/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/mem.h"

enum { LINES_MAX = 1 << 16, LINE_SIZE = 512, REPLY_SIZE = 2048, NAME_SIZE = 48 };

/* An end of a connection. */
struct side {
	int family;
	uint32_t words[4]; /* of the address, in network order */
	uint16_t port;     /* too */
};

static bool read_side(const struct sockaddr_storage *address, struct side *ret)
{
	const struct sockaddr_in *ip4 = (const struct sockaddr_in *)address;
	const struct sockaddr_in6 *ip6 = (const struct sockaddr_in6 *)address;

	*ret = (struct side){.family = address->ss_family};
	if (address->ss_family == AF_INET) {
		ret->words[0] = ip4->sin_addr.s_addr;
		ret->port = ip4->sin_port;
	} else if (address->ss_family == AF_INET6) {
		memcpy(ret->words, &ip6->sin6_addr, sizeof(ret->words));
		ret->port = ip6->sin6_port;
	}
	return ret->port != 0;
}

/*
 * sock_diag(7): request one socket by its addresses
 */

static int send_request(int fd, const struct side *local, const struct side *remote)
{
	struct {
		struct nlmsghdr header;
		struct inet_diag_req_v2 request;
	} message = {
		.header = {.nlmsg_len = sizeof(message),
			.nlmsg_type = SOCK_DIAG_BY_FAMILY,
			.nlmsg_flags = NLM_F_REQUEST},
		.request = {.sdiag_family = (uint8_t)local->family,
			.sdiag_protocol = IPPROTO_TCP,
			.idiag_states = UINT32_MAX,
			.id = {.idiag_sport = local->port,
				.idiag_dport = remote->port,
				.idiag_cookie = {INET_DIAG_NOCOOKIE, INET_DIAG_NOCOOKIE}}},
	};

	memcpy(message.request.id.idiag_src, local->words, sizeof(local->words));
	memcpy(message.request.id.idiag_dst, remote->words, sizeof(remote->words));
	return send(fd, &message, sizeof(message), 0) == sizeof(message) ? 0 : -errno;
}

/* The kernel finds a listener where the connection no longer exists. */
static int read_reply(const struct nlmsghdr *header, const struct side *remote, uid_t *ret)
{
	const struct inet_diag_msg *found = NLMSG_DATA(header);

	if (header->nlmsg_type != SOCK_DIAG_BY_FAMILY ||
		header->nlmsg_len < NLMSG_LENGTH(sizeof(*found)))
		return -ENOTSUP;
	if (found->id.idiag_dport != remote->port || found->idiag_inode == 0)
		return 0;
	*ret = found->idiag_uid;
	return 1;
}

static int ask_kernel(const struct side *local, const struct side *remote, uid_t *ret)
{
	_Alignas(struct nlmsghdr) char reply[REPLY_SIZE];
	AUTO_FD int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);

	if (fd < 0 || send_request(fd, local, remote) < 0)
		return -ENOTSUP;
	/* The reply is available as soon as the request has been sent. */
	ssize_t n = recv(fd, reply, sizeof(reply), MSG_DONTWAIT);
	const struct nlmsghdr *header = (const struct nlmsghdr *)reply;
	if (n < (ssize_t)sizeof(*header) || header->nlmsg_len > (size_t)n)
		return -ENOTSUP;
	return read_reply(header, remote, ret);
}

/*
 * /proc/net/tcp, tcp6 (proc(5)): all sockets. A mapped address is that of an IPv6 socket which
 * speaks IPv4.
 */

static void print_side(const struct side *side, bool is_mapped, char out[static NAME_SIZE])
{
	uint32_t ip = side->words[0];

	if (side->family == AF_INET6)
		snprintf(out, NAME_SIZE, "%08X%08X%08X%08X:%04X", side->words[0], side->words[1],
			side->words[2], side->words[3], ntohs(side->port));
	else if (is_mapped)
		snprintf(out, NAME_SIZE, "%016X%08X%08X:%04X", 0, htonl(0xffff), ip,
			ntohs(side->port));
	else
		snprintf(out, NAME_SIZE, "%08X:%04X", ip, ntohs(side->port));
}

/* The uid in the line if it is for that connection and belongs to a process. */
static bool read_line(const char *line, const char *local, const char *remote, uid_t *ret)
{
	char names[2][NAME_SIZE];
	unsigned uid;
	unsigned long inode;

	if (sscanf(line, " %*d: %47s %47s %*x %*s %*s %*s %u %*d %lu", names[0], names[1], &uid,
		    &inode) != 4 ||
		strcmp(names[0], local) != 0 || strcmp(names[1], remote) != 0 || inode == 0)
		return false;
	*ret = uid;
	return true;
}

static int search(const char *path, bool is_mapped, const struct side *local,
	const struct side *remote, uid_t *ret)
{
	char names[2][NAME_SIZE], line[LINE_SIZE];
	bool is_found = false;
	FILE *file = fopen(path, "re");

	if (!file)
		return -ENOTSUP;
	print_side(local, is_mapped, names[0]);
	print_side(remote, is_mapped, names[1]);
	for (int i = 0; i < LINES_MAX && !is_found && fgets(line, sizeof(line), file); i++)
		is_found = read_line(line, names[0], names[1], ret);
	fclose(file);
	return is_found;
}

static int search_all(const struct side *local, const struct side *remote, uid_t *ret)
{
	int r = -ENOTSUP;

	if (local->family == AF_INET)
		r = search("/proc/net/tcp", false, local, remote, ret);
	if (r > 0)
		return r;
	int r6 = search("/proc/net/tcp6", true, local, remote, ret);
	return r6 >= 0 ? r6 : r;
}

/* The peer's socket has our addresses swapped. The kernel reports a missing module like a missing
 * socket, so the list is read in both cases. */
int os_peer_uid(int fd, uid_t *ret)
{
	struct sockaddr_storage own = {0}, peer = {0};
	socklen_t own_len = sizeof(own), peer_len = sizeof(peer);
	struct side local, remote;

	if (getsockname(fd, (struct sockaddr *)&own, &own_len) < 0 ||
		getpeername(fd, (struct sockaddr *)&peer, &peer_len) < 0)
		return errno == ENOTCONN ? 0 : -errno;
	if (!read_side(&peer, &local) || !read_side(&own, &remote))
		return -ENOTSUP;
	int r = ask_kernel(&local, &remote, ret);
	return r == -ENOTSUP ? search_all(&local, &remote, ret) : r;
}
