/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __linux__
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif

#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/mem.h"

enum { OTHER_UID = 54321 };

static int listen_at(int family, struct sockaddr_storage *address, socklen_t *len)
{
	struct sockaddr_in ip4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct sockaddr_in6 ip6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	int fd = socket(family, SOCK_STREAM, 0);

	*len = family == AF_INET ? sizeof(ip4) : sizeof(ip6);
	memcpy(address, family == AF_INET ? (void *)&ip4 : (void *)&ip6, *len);
	if (bind(fd, (struct sockaddr *)address, *len) < 0) {
		close(fd);
		return -1;
	}
	assert_int_equal(listen(fd, 8), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)address, len), 0);
	return fd;
}

static bool is_known(void)
{
	struct sockaddr_storage address;
	socklen_t len;
	uid_t uid;
	AUTO_FD int listening = listen_at(AF_INET, &address, &len);
	AUTO_FD int client = socket(AF_INET, SOCK_STREAM, 0);

	assert_int_equal(connect(client, (struct sockaddr *)&address, len), 0);
	AUTO_FD int fd = accept(listening, NULL, NULL);
	return os_peer_uid(fd, &uid) != -ENOTSUP;
}

/* The client of family, which may be another one than the listener's: ::ffff:127.0.0.1. */
static void check_own(int listens, int family)
{
	struct sockaddr_storage address;
	socklen_t len;
	uid_t uid = 1;
	AUTO_FD int listening = listen_at(listens, &address, &len);
	if (listening < 0)
		return;
	int client = socket(family, SOCK_STREAM, 0);
	if (family != listens) {
		const struct sockaddr_in *ip4 = (const struct sockaddr_in *)&address;
		struct sockaddr_in6 mapped = {.sin6_family = AF_INET6, .sin6_port = ip4->sin_port};

		assert_int_equal(inet_pton(AF_INET6, "::ffff:127.0.0.1", &mapped.sin6_addr), 1);
		len = sizeof(mapped);
		memcpy(&address, &mapped, sizeof(mapped));
	}
	assert_int_equal(connect(client, (struct sockaddr *)&address, len), 0);
	AUTO_FD int fd = accept(listening, NULL, NULL);
	assert_int_equal(os_peer_uid(fd, &uid), 1);
	assert_int_equal(uid, geteuid());
	/* It has written all that it will, and is still somebody's. */
	shutdown(client, SHUT_WR);
	assert_int_equal(os_peer_uid(fd, &uid), 1);
	/* What the kernel keeps of it would look as if it were root's. */
	close(client);
	uid = 1;
	assert_int_equal(os_peer_uid(fd, &uid), 0);
	assert_int_equal(uid, 1);
}

static void check_all(void)
{
	check_own(AF_INET, AF_INET);
	check_own(AF_INET6, AF_INET6);
	check_own(AF_INET, AF_INET6);
}

static void test_own(void **state)
{
	if (!is_known())
		skip();
	check_all();
}

static void test_none(void **state)
{
	AUTO_FD int fd = socket(AF_INET, SOCK_STREAM, 0);
	uid_t uid;
	int fds[2];

	assert_true(os_peer_uid(fd, &uid) <= 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
	assert_int_equal(os_peer_uid(fds[0], &uid), -ENOTSUP);
	close(fds[0]);
	close(fds[1]);
}

static void test_other(void **state)
{
	struct sockaddr_storage address;
	socklen_t len;
	uid_t uid = 1;
	char c;
	int status;

	if (geteuid() != 0 || !is_known()) {
		print_message("not root: the connection of another user is not tried\n");
		skip();
	}
	AUTO_FD int listening = listen_at(AF_INET, &address, &len);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		int client = socket(AF_INET, SOCK_STREAM, 0);
		/* The socket's owner is who made it. */
		close(client);
		if (setuid(OTHER_UID) < 0)
			_exit(1);
		client = socket(AF_INET, SOCK_STREAM, 0);
		if (connect(client, (struct sockaddr *)&address, len) < 0)
			_exit(2);
		(void)!read(client, &c, 1);
		_exit(0);
	}
	int fd = accept(listening, NULL, NULL);
	assert_int_equal(os_peer_uid(fd, &uid), 1);
	assert_int_equal(uid, OTHER_UID);
	close(fd);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

#ifdef __linux__
/* From here on this process can ask the kernel for no sockets. */
static bool forbid_netlink(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_NETLINK, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAFNOSUPPORT),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {.len = ARRAY_LEN(code), .filter = code};

	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
	       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static void test_without_netlink(void **state)
{
	if (!is_known() || !forbid_netlink()) {
		print_message("no filter of system calls: only netlink was asked\n");
		skip();
	}
	assert_true(socket(AF_NETLINK, SOCK_RAW, 0) < 0);
	check_all();
}
#endif

/* What the other end does not read piles up at both ends, first at the reader's. */
static void test_unsent(void **state)
{
	static const char zeros[64 << 10];
	struct sockaddr_storage address;
	socklen_t len;
	AUTO_FD int listening = listen_at(AF_INET, &address, &len);
	AUTO_FD int client = socket(AF_INET, SOCK_STREAM, 0);
	static char got[64 << 10];
	size_t n_sent = 0, n_got = 0;
	ssize_t n;

	assert_int_equal(connect(client, (struct sockaddr *)&address, len), 0);
	AUTO_FD int fd = accept(listening, NULL, NULL);
	assert_int_equal(os_unsent(fd), 0);
	while ((n = send(fd, zeros, sizeof(zeros), MSG_DONTWAIT)) > 0)
		n_sent += (size_t)n;
	assert_in_range(os_unsent(fd), 1, n_sent);
	for (; n_got < n_sent; n_got += (size_t)n)
		assert_true((n = recv(client, got, sizeof(got), 0)) > 0);
	/* The confirmation of the last ones may be under way. */
	for (int i = 0; i < 2000 && os_unsent(fd) > 0; i++)
		poll(NULL, 0, 10);
	assert_int_equal(os_unsent(fd), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_own), cmocka_unit_test(test_none),
		cmocka_unit_test(test_other), cmocka_unit_test(test_unsent),
#ifdef __linux__
		cmocka_unit_test(test_without_netlink), /* the last one */
#endif
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
