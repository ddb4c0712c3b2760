/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/os/os.h"
#include "net/httpd/front_impl.h"

/*
 * Whether the system tells the owner: tested on connections of this process to itself
 */

enum answer { TELLS, TELLS_NOT, HAS_NO_FAMILY };

/* At any port of this machine's own address. */
static int listen_here(int family, struct sockaddr_storage *ret, socklen_t *ret_len)
{
	const struct sockaddr_in ip4 = {
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	const struct sockaddr_in6 ip6 = {
		.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	AUTO_FD int fd = socket(family, SOCK_STREAM, 0);

	*ret_len = family == AF_INET ? sizeof(ip4) : sizeof(ip6);
	memcpy(ret, family == AF_INET ? (const void *)&ip4 : (const void *)&ip6, *ret_len);
	if (fd < 0 || bind(fd, (struct sockaddr *)ret, *ret_len) < 0 || listen(fd, 1) < 0 ||
		getsockname(fd, (struct sockaddr *)ret, ret_len) < 0)
		return -errno;
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	return TAKE_FD(fd);
}

static enum answer ask_family(int family)
{
	struct sockaddr_storage address = {0};
	socklen_t len;
	uid_t uid;
	AUTO_FD int listening = listen_here(family, &address, &len);
	AUTO_FD int client = socket(family, SOCK_STREAM, 0);

	if (listening == -EAFNOSUPPORT || listening == -EPROTONOSUPPORT ||
		listening == -EADDRNOTAVAIL)
		return HAS_NO_FAMILY;
	if (listening < 0 || client < 0 || connect(client, (struct sockaddr *)&address, len) < 0)
		return TELLS_NOT;
	AUTO_FD int fd = accept(listening, NULL, NULL);
	return fd >= 0 && os_peer_uid(fd, &uid) > 0 && uid == geteuid() ? TELLS : TELLS_NOT;
}

bool front_peers_are_known(void)
{
	enum answer ip4 = ask_family(AF_INET), ip6 = ask_family(AF_INET6);

	return ip4 != TELLS_NOT && ip6 != TELLS_NOT && (ip4 == TELLS || ip6 == TELLS);
}

/*
 * Check of a connection
 */

/* A client that has gone already has no owner that could be checked, and needs no response. */
bool front_peer_is_welcome(const struct front *front, int fd, const char *peer)
{
	uid_t uid;

	int r = os_peer_uid(fd, &uid);
	if ((r < 0 && !front->knows_peers) || (r > 0 && (uid == geteuid() || uid == 0)))
		return true;
	if (r > 0)
		front_notice(front, "a connection of another user of this machine (%u) is refused",
			(unsigned)uid);
	else if (r < 0)
		front_notice(front,
			"a connection from %s is refused: the system does not tell whose it is",
			peer);
	else
		front_notice(front, "a connection from %s is refused: it belongs to nobody", peer);
	return false;
}
