/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/ssh/ssh_openssh_words.h"

#define TAG(level, file, function) level file ":" function "():12 (pid=34): "
#define AUTHENTICATED                                                                              \
	TAG("", "sshconnect2.c", "ssh_userauth2")                                                  \
	"Authenticated to h ([127.0.0.1]:22) using \"publickey\".\n"
#define REQUEST(type)                                                                              \
	TAG("debug1: ", "clientloop.c", "client_input_channel_req")                                \
	"client_input_channel_req: channel 0 rtype " type " reply 0\n"

static struct ssh_words words_of(const char *text)
{
	struct ssh_words words;

	ssh_words_read(text, strlen(text), &words);
	return words;
}

static void test_what_a_client_saw(void **state)
{
	assert_false(words_of("").has_open);
	assert_true(words_of(AUTHENTICATED).has_open);
	assert_true(words_of("Authenticated to h ([::1]:22) using \"publickey\".\r\n").has_open);
	assert_true(words_of(AUTHENTICATED REQUEST("exit-status")).has_exit_status);
	assert_false(words_of(AUTHENTICATED REQUEST("exit-status")).has_exit_signal);
	assert_true(words_of(AUTHENTICATED REQUEST("exit-signal")).has_exit_signal);
	assert_false(words_of(REQUEST("eow@openssh.com")).has_exit_status);
}

static void test_what_a_client_of_a_master_saw(void **state)
{
	static const char taken[] =
		TAG("debug1: ", "mux.c", "mux_client_request_session") "master session id: 2\n";
	static const char status[] = TAG("debug2: ", "mux.c",
		"mux_client_request_session") "Received exit status from master 255\n";
	static const char gone[] = TAG("debug2: ", "mux.c",
		"mux_client_request_session") "Control master terminated unexpectedly\n";

	assert_true(words_of(taken).has_open);
	assert_true(words_of(status).has_exit_status);
	assert_true(words_of(gone).master_is_gone);
	assert_false(words_of(gone).has_exit_status);
}

/* Words of a server stand behind others, never at the beginning of a line. */
static void test_words_that_others_print(void **state)
{
	static const char *const texts[] = {
		"Unable to negotiate with 10.0.0.1: no. Their offer: Authenticated to h\n",
		"Received disconnect from 10.0.0.1: 2: master session id: 2\n",
		TAG("", "packet.c",
			"sshpkt_vfatal") "Connection closed: client_input_channel_req: channel 0 rtype exit-status reply 0\n",
		"debug1: x\n", "debug", "debug1: ", "():", " (): ", "a():", "\n\n",
		"Authenticated t"};

	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		struct ssh_words words = words_of(texts[i]);

		assert_false(words.has_open || words.has_exit_status || words.has_exit_signal ||
			     words.master_is_gone);
	}
}

static void test_errors(void **state)
{
	static const struct {
		const char *text, *said;
		enum err_id id;
	} rows[] = {
		{"ssh: connect to host h port 22: Connection refused\r\n", NULL, E_SSH_UNREACHABLE},
		{"ssh: Could not resolve hostname h: Name or service not known\n", NULL,
			E_SSH_UNREACHABLE},
		{"Connection timed out during banner exchange\n", NULL, E_SSH_UNREACHABLE},
		{"", NULL, E_SSH_UNREACHABLE},
		{"kex_exchange_identification: Connection closed by remote host\n",
			"me@jump: Permission denied (publickey).\n", E_SSH_LOGIN},
		{"me@h: Permission denied (publickey,password).\n", NULL, E_SSH_LOGIN},
		{"Received disconnect from h port 22:2: Too many authentication failures\n", NULL,
			E_SSH_LOGIN},
		{"Host key verification failed.\n", NULL, E_SSH_UNKNOWN_HOST},
		{"No ED25519 host key is known for h and you have requested strict checking.\n"
		 "Host key verification failed.\n",
			NULL, E_SSH_UNKNOWN_HOST},
		{"@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n"
		 "Host key verification failed.\n",
			NULL, E_SSH_HOST_KEY},
		{"@       WARNING: REVOKED HOST KEY DETECTED!               @\n", NULL,
			E_SSH_HOST_KEY},
		{"Host key ED25519 SHA256:x revoked by file /r\nHost key verification failed.\n",
			NULL, E_SSH_HOST_KEY},
		{"Error checking host key ED25519 SHA256:x in revoked keys file /r: No such file or "
		 "directory\nHost key verification failed.\n",
			NULL, E_SSH_CONFIG},
		{"Certificate invalid: expired\nHost key verification failed.\n", NULL,
			E_SSH_HOST_KEY},
		{"Bad server host key: Invalid key length\n", NULL, E_SSH_CONFIG},
		{"Bad owner or permissions on /home/me/.ssh/config\n", NULL, E_SSH_CONFIG},
		{AUTHENTICATED "stdio forwarding failed\n", NULL, E_SSH_REFUSED},
		{AUTHENTICATED "channel 0: open failed: connect failed: Connection refused\n"
			       "stdio forwarding failed\n",
			NULL, E_SSH_PORT},
		{"Connection closed by UNKNOWN port 65535\n",
			"channel 0: open failed: connect failed: Connection refused\n"
			"stdio forwarding failed\n",
			E_SSH_UNREACHABLE},
		{"Stdio forwarding request failed: Session open refused by peer\n", NULL,
			E_SSH_REFUSED},
		{AUTHENTICATED, NULL, E_SSH_LOST},
		{AUTHENTICATED "Timeout, server h not responding.\n", NULL, E_SSH_LOST},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct err err = {0};

		assert_true(ssh_words_error(rows[i].text, rows[i].said, "gpu7", &err) < 0);
		assert_int_equal(err.id, rows[i].id);
		assert_non_null(strstr(err.message, "gpu7"));
		err_done(&err);
	}
}

static void test_it_is_a_host_before_that_fails(void **state)
{
	static const char closed[] = "Connection closed by UNKNOWN port 65535\n";
	struct err err = {0};

	ssh_words_error(closed, "me@jump: Permission denied (publickey).\n", "gpu7", &err);
	assert_string_equal(err.message, "a host on the way to gpu7 does not accept the login");
	err_done(&err);
	ssh_words_error("me@gpu7: Permission denied (publickey).\n", "noise\n", "gpu7", &err);
	assert_string_equal(err.message, "gpu7 does not accept the login");
	err_done(&err);
	ssh_words_error(closed,
		"@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n"
		"  remove with:\n  ssh-keygen -f known -R jump\n",
		"gpu7", &err);
	assert_memory_equal(err.hint, "ssh-keygen -f known -R jump ", 28);
	err_done(&err);
}

static void test_evidence_is_what_matters(void **state)
{
	struct err err = {0};

	ssh_words_error(
		"debug2: ssh.c:main():1574 (pid=1): resolving \"h\"\n@@@@@@@@@@@@@@@@@@@@@@@\n"
		"@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n"
		"IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!\n"
		"Offending ED25519 key in /k:1\n  remove with:\n"
		"  ssh-keygen -f \"/k\" -R \"[h]:22\"\nHost key for h has \033[31mchanged\n",
		NULL, "h", &err);
	assert_int_equal(err.n_evidence, 2);
	assert_string_equal(err.evidence[0], "ssh: Offending ED25519 key in /k:1");
	assert_string_equal(err.evidence[1], "ssh: Host key for h has \\x1b[31mchanged");
	assert_true(str_starts(err.hint, "ssh-keygen -f \"/k\" -R \"[h]:22\" "));
	err_done(&err);
	/* A server's own words are nothing to paste. */
	ssh_words_error("Received disconnect from 10.0.0.7 port 22:2: HOST IDENTIFICATION HAS "
			"CHANGED   ssh-keygen -f x; rm y\n",
		NULL, "h", &err);
	assert_string_equal(err.hint, "ask who runs h for its key");
	err_done(&err);
	ssh_words_error(
		"@       WARNING: REVOKED HOST KEY DETECTED!               @\n", NULL, "h", &err);
	assert_string_equal(err.message, "the key of h has been revoked");
	assert_string_equal(err.hint, "ask who runs h for its key");
	err_done(&err);
	char longest[2001];
	memset(longest, 'x', 2000);
	longest[2000] = '\0';
	ssh_words_error(longest, "a proxy says\n", "h", &err);
	assert_string_equal(err.evidence[0], "ssh: a proxy says");
	assert_true(strlen(err.evidence[1]) < 600);
	err_done(&err);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_a_client_saw),
		cmocka_unit_test(test_what_a_client_of_a_master_saw),
		cmocka_unit_test(test_words_that_others_print),
		cmocka_unit_test(test_errors),
		cmocka_unit_test(test_it_is_a_host_before_that_fails),
		cmocka_unit_test(test_evidence_is_what_matters),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
