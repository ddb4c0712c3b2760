/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "net/ssh/ssh_agent.h"

/* An agent that answers each question with the next of these bytes, and then closes. */
struct answer {
	const char *bytes;
	size_t len;
};
#define ANSWER(text)                                                                               \
	{                                                                                          \
		text, sizeof(text) - 1                                                             \
	}

struct fake {
	char dir[32], path[64];
	pid_t pid;
};

static void read_question(int fd)
{
	uint8_t head[4], rest[4096];

	if (recv(fd, head, sizeof(head), MSG_WAITALL) != sizeof(head))
		_exit(0);
	size_t len = get_be32(head);
	if (len > sizeof(rest) || recv(fd, rest, len, MSG_WAITALL) != (ssize_t)len)
		_exit(0);
}

static void serve(int listening, const struct answer *answers, size_t n)
{
	int fd = accept(listening, NULL, NULL);

	for (size_t i = 0; i < n; i++) {
		read_question(fd);
		/* In two pieces. */
		size_t half = answers[i].len / 2;
		if (write(fd, answers[i].bytes, half) < 0 ||
			write(fd, answers[i].bytes + half, answers[i].len - half) < 0)
			_exit(0);
	}
	_exit(0);
}

static void start(struct fake *fake, const struct answer *answers, size_t n)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	strcpy(fake->dir, "/tmp/agent-XXXXXX");
	assert_non_null(mkdtemp(fake->dir));
	snprintf(fake->path, sizeof(fake->path), "%s/s", fake->dir);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s", fake->path);
	int listening = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(listening, (const struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(listening, 4), 0);
	fake->pid = fork();
	if (fake->pid == 0)
		serve(listening, answers, n);
	close(listening);
}

static void stop(struct fake *fake)
{
	kill(fake->pid, SIGKILL);
	waitpid(fake->pid, NULL, 0);
	fs_remove_tree(AT_FDCWD, fake->dir, NULL);
}

static const struct ssh_wait no_cancel = {-1, INT64_MAX};

#define ONE_KEY                                                                                    \
	"\0\0\0\x1f\x0c\0\0\0\1"                                                                   \
	"\0\0\0\x0f\0\0\0\7ssh-abc1234"                                                            \
	"\0\0\0\3a\nb"

static void test_keys_and_signatures(void **state)
{
	(void)state;
	static const struct answer answers[] = {
		ANSWER(ONE_KEY), ANSWER("\0\0\0\x0b\x0e\0\0\0\6sigsig"), ANSWER("\0\0\0\1\5")};
	AUTO_SSH_AGENT struct ssh_agent *agent = NULL;
	AUTO_BUF struct buf signature = {0};
	AUTO_ERR struct err err = {0};
	struct fake fake;

	start(&fake, answers, ARRAY_LEN(answers));
	assert_int_equal(ssh_agent_open(fake.path, &no_cancel, &agent, &err), 0);
	assert_int_equal(ssh_agent_n_keys(agent), 1);
	const struct ssh_agent_key *key = ssh_agent_key(agent, 0);
	assert_string_equal(key->type, "ssh-abc");
	assert_int_equal(key->blob.len, 15);
	assert_string_equal(key->comment, "a\nb");
	assert_int_equal(ssh_agent_sign(agent, key, "data", 4, 0, &no_cancel, &signature, &err), 0);
	assert_string_equal(signature.data, "sigsig");
	/* Then it refuses, and then it is gone. */
	assert_true(ssh_agent_sign(agent, key, "data", 4, 0, &no_cancel, &signature, &err) < 0);
	assert_non_null(strstr(err.message, "refuses"));
	assert_true(ssh_agent_sign(agent, key, "data", 4, 0, &no_cancel, &signature, &err) < 0);
	stop(&fake);
}

static void test_hostile(void **state)
{
	(void)state;
	static const struct answer answers[] = {
		ANSWER(""),
		ANSWER("\0\0"),
		ANSWER("\0\0\0\0\x0c"),
		ANSWER("\xff\xff\xff\xff\x0c"),
		ANSWER("\0\0\0\1\5"),
		ANSWER("\0\0\0\1\x0c"),
		ANSWER("\0\0\0\5\x0c\0\0\0\1"),
		ANSWER("\0\0\0\x09\x0c\0\0\0\1\xff\xff\xff\xff"),
		ANSWER("\0\0\0\x0d\x0c\0\0\0\1\0\0\0\0\0\0\0\1"),
		ANSWER("\0\0\0\x40\x0c\0\0\0\1"),
	};

	for (size_t i = 0; i < ARRAY_LEN(answers); i++) {
		AUTO_SSH_AGENT struct ssh_agent *agent = NULL;
		AUTO_ERR struct err err = {0};
		struct fake fake;
		start(&fake, &answers[i], 1);
		if (ssh_agent_open(fake.path, &no_cancel, &agent, &err) == 0)
			fail_msg("case %zu", i);
		assert_int_equal(err.id, E_IO);
		stop(&fake);
	}
}

/* Keys that are none are passed over; what it says beyond that as well. */
static void test_no_keys(void **state)
{
	(void)state;
	static const struct answer answers[] = {
		ANSWER("\0\0\0\5\x0c\0\0\0\0"),
		ANSWER("\0\0\0\x10\x0c\0\0\0\1\0\0\0\3abc\0\0\0\0"),
	};

	for (size_t i = 0; i < ARRAY_LEN(answers); i++) {
		AUTO_SSH_AGENT struct ssh_agent *agent = NULL;
		struct fake fake;
		start(&fake, &answers[i], 1);
		assert_int_equal(ssh_agent_open(fake.path, &no_cancel, &agent, NULL), 0);
		assert_int_equal(ssh_agent_n_keys(agent), 0);
		stop(&fake);
	}
}

static void test_nobody(void **state)
{
	(void)state;
	struct ssh_agent *agent = NULL;
	AUTO_ERR struct err err = {0};
	char path[200];

	assert_true(ssh_agent_open("/proc/nonexistent/agent", &no_cancel, &agent, &err) < 0);
	memset(path, 'x', sizeof(path) - 1);
	path[sizeof(path) - 1] = '\0';
	assert_true(ssh_agent_open(path, &no_cancel, &agent, &err) < 0);
	assert_null(agent);
	ssh_agent_free(NULL);
}

static void test_cancel(void **state)
{
	(void)state;
	struct ssh_agent *agent = NULL;
	AUTO_ERR struct err err = {0};
	struct fake fake;
	int ends[2];

	assert_int_equal(pipe(ends), 0);
	close(ends[1]);
	const struct ssh_wait wait = {ends[0], INT64_MAX};
	start(&fake, NULL, 0);
	/* It stands still, and nobody waits for it. */
	kill(fake.pid, SIGSTOP);
	assert_true(ssh_agent_open(fake.path, &wait, &agent, &err) < 0);
	assert_int_equal(err.id, E_CANCELED);
	close(ends[0]);
	stop(&fake);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_keys_and_signatures),
		cmocka_unit_test(test_hostile),
		cmocka_unit_test(test_no_keys),
		cmocka_unit_test(test_nobody),
		cmocka_unit_test(test_cancel),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
