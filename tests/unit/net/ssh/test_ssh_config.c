/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/ssh/ssh_config.h"
#include "tests/unit/tmpfix.h"

/*
 * Names
 */

static void test_hosts_that_are_taken(void **state)
{
	static const char *const hosts[] = {"gpu7", "me@gpu7.lab", "10.0.0.1", "fe80::1%eth0",
		"ssh://me@[::1]:2222", "a_b-c", "m\303\274ller", "me@corp@gpu"};

	for (size_t i = 0; i < ARRAY_LEN(hosts); i++)
		assert_int_equal(ssh_config_check_host(hosts[i], NULL), 0);
}

static void test_hosts_that_are_not(void **state)
{
	static const char *const hosts[] = {"", "-oProxyCommand=touch", "-", "me@-oX", "me@", "a b",
		"a\tb", "a\nb", "a;b", "$(x)", "`x`", "a|b", "a&b", "a'b", "a\"b", "a\\b", "a<b",
		"a\x01", "a\x7f", "\xff", "a*", "{a,b}"};
	AUTO_ERR struct err err = {0};

	for (size_t i = 0; i < ARRAY_LEN(hosts); i++) {
		assert_int_equal(ssh_config_check_host(hosts[i], &err), -ERR_USAGE);
		assert_int_equal(err.id, E_USAGE);
		assert_true(str_is_plain(err.message));
	}
	char longest[258];
	memset(longest, 'a', sizeof(longest));
	longest[256] = '\0';
	assert_int_equal(ssh_config_check_host(longest, NULL), -ERR_USAGE);
	longest[255] = '\0';
	assert_int_equal(ssh_config_check_host(longest, NULL), 0);
}

/*
 * The output of ssh -G
 */

static void parse(const char *text, struct ssh_config *config)
{
	AUTO_ERR struct err err = {0};

	assert_int_equal(ssh_config_parse(text, strlen(text), config, &err), 0);
}

#define MINIMUM "hostname 10.0.0.7\nuser me\nport 2222\n"

static void test_minimum(void **state)
{
	AUTO_SSH_CONFIG struct ssh_config config = {0};

	parse(MINIMUM, &config);
	assert_string_equal(config.hostname, "10.0.0.7");
	assert_string_equal(config.user, "me");
	assert_int_equal(config.port, 2222);
	assert_int_equal(config.family, AF_UNSPEC);
	assert_int_equal(config.strict, SSH_STRICT_ASK);
	assert_false(config.identities_only || config.has_log_verbose);
	assert_null(config.proxy_jump);
	assert_null(config.openssh_why);
	assert_int_equal(strlen(config.id), 32);
}

static void test_values(void **state)
{
	AUTO_SSH_CONFIG struct ssh_config config = {0};

	parse(MINIMUM "addressfamily inet6\r\nidentitiesonly yes\nhashknownhosts yes\n"
		      "stricthostkeychecking true\nconnecttimeout 7\nserveraliveinterval 30\n"
		      "identityfile ~/.ssh/a key\nidentityfile none\nidentityfile /k/b\n"
		      "userknownhostsfile /a /b  \"/c d\" none\nhostkeyalias gpu7\n"
		      "controlpath none\nproxycommand none\nlogverbose none\nunknown thing\n"
		      "pubkeyauthentication false\nsessiontype none\nnovalue\n\nuser second",
		&config);
	assert_int_equal(config.family, AF_INET6);
	assert_true(config.identities_only && config.hash_known_hosts && config.has_log_verbose);
	assert_int_equal(config.strict, SSH_STRICT_YES);
	assert_int_equal(config.connect_s, 7);
	assert_int_equal(config.keepalive_s, 30);
	assert_int_equal(config.identities.n, 2);
	assert_string_equal(config.identities.v[0], "~/.ssh/a key");
	assert_int_equal(config.user_known_hosts.n, 3);
	assert_string_equal(config.user_known_hosts.v[2], "/c d");
	assert_string_equal(config.key_alias, "gpu7");
	assert_null(config.control_path);
	assert_null(config.proxy_command);
	assert_string_equal(config.user, "second");
	assert_non_null(config.openssh_why);
}

static void test_strictness(void **state)
{
	static const struct {
		const char *value;
		enum ssh_strict strict;
	} rows[] = {{"ask", SSH_STRICT_ASK}, {"yes", SSH_STRICT_YES}, {"true", SSH_STRICT_YES},
		{"no", SSH_STRICT_OFF}, {"false", SSH_STRICT_OFF}, {"off", SSH_STRICT_OFF},
		{"accept-new", SSH_STRICT_ACCEPT_NEW}, {"?", SSH_STRICT_ASK}};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_SSH_CONFIG struct ssh_config config = {0};
		AUTO_FREE char *text =
			mem_printf(MINIMUM "stricthostkeychecking %s\n", rows[i].value);

		parse(text, &config);
		assert_int_equal(config.strict, rows[i].strict);
	}
}

static void test_what_libssh2_cannot(void **state)
{
	static const char *const lines[] = {"proxyjump jump", "proxycommand nc %h %p",
		"certificatefile /k-cert.pub", "hostbasedauthentication yes",
		"preferredauthentications password", "pkcs11provider /lib/p11.so",
		"knownhostscommand /bin/x", "verifyhostkeydns yes", "bindaddress 10.0.0.1",
		"bindinterface eth0", "pubkeyauthentication no", "revokedhostkeys /etc/ssh/revoked",
		"checkhostip yes", "connectionattempts 2", "gssapikeyexchange yes",
		"nohostauthenticationforlocalhost yes", "rekeylimit 1G 0",
		"pubkeyauthentication unbound", "preferredauthentications hostbased,password",
		"channeltimeout session=1d", "refuseconnection no", "versionaddendum x",
		"setenv A=%h", "setenv A=${HOME}", "setenv A=\t", "newthing yes", "newthing a,b",
		"NewThing 1", "proxycommand a\tb"};

	for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
		AUTO_SSH_CONFIG struct ssh_config config = {0};
		AUTO_FREE char *text = mem_printf(MINIMUM "%s\n", lines[i]);

		parse(text, &config);
		if (!config.openssh_why)
			fail_msg("%s", lines[i]);
	}
}

/* Defaults of OpenSSH 9 and 10, of distributions, and what is harmless. */
static void test_what_libssh2_can(void **state)
{
	static const char *const lines[] = {"pubkeyauthentication true", "rekeylimit 0 0",
		"channeltimeout none", "checkhostip no", "verifyhostkeydns false",
		"canonicalizePermittedcnames none", "obscurekeystroketiming interval:20",
		"ipqos ef none", "warnweakcrypto yes", "tag x", "gssapikeyexchange no",
		"preferredauthentications gssapi-with-mic,hostbased,publickey,password",
		"preferredauthentications publickey", "setenv A=b c", "sendenv LC_*",
		"requiredrsasize 2048", "macs hmac-sha2-256", "hostkeyalgorithms ssh-ed25519",
		"remotecommand a\tb", "newthing no", "newthing none", "newthing false",
		"newthing 0", "newthing", "logverbose none", "versionaddendum none",
		"usekeychain no"};

	for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
		AUTO_SSH_CONFIG struct ssh_config config = {0};
		AUTO_FREE char *text = mem_printf(MINIMUM "%s\n", lines[i]);

		parse(text, &config);
		if (config.openssh_why)
			fail_msg("%s: %s", lines[i], config.openssh_why);
	}
}

static void test_keywords_are_sorted(void **state)
{
	for (size_t i = 0; i < ssh_n_keywords; i++) {
		const struct ssh_keyword *row = &ssh_keywords[i];

		assert_ptr_equal(ssh_keyword_find(row->name), row);
		assert_true(!row->harmless || row->why);
	}
}

static void test_lists(void **state)
{
	assert_true(ssh_list_has("a,b,c", "a") && ssh_list_has("a,b,c", "c"));
	assert_true(ssh_list_has("a", "a"));
	assert_false(ssh_list_has("", "a") || ssh_list_has("ab,ba", "a") ||
		     ssh_list_has("ab,ba", "b") || ssh_list_has("a,b", "a,b"));
}

static void test_variables(void **state)
{
	static const char *const own[] = {
		"LANG=C", "LC_ALL=x=y", "LC_A=", "HOME=/root", "LANGUAGE=en", NULL};
	AUTO_SSH_CONFIG struct ssh_config config = {0};
	AUTO_STRV struct strv sent = {0};

	parse(MINIMUM "sendenv LANG\nsendenv LC_*\nsetenv A=b c\nsetenv LANG=de\nsetenv none\n",
		&config);
	ssh_config_env(&config, own, &sent);
	assert_int_equal(sent.n, 5);
	assert_string_equal(sent.v[0], "LANG=C");
	assert_string_equal(sent.v[1], "LC_ALL=x=y");
	assert_string_equal(sent.v[2], "LC_A=");
	assert_string_equal(sent.v[3], "A=b c");
	assert_string_equal(sent.v[4], "LANG=de");
}

static void test_what_cannot_be_read(void **state)
{
	static const char *const texts[] = {"", "\n", "hostname x\nuser y\n", "user y\nport 22\n",
		"hostname x\nport 22\n", "hostname x\nuser y\nport 0\n",
		"hostname x\nuser y\nport 65536\n", "hostname x\nuser y\033[2J\nport 22\n",
		"hostname none\nuser y\nport 22\n"};
	AUTO_SSH_CONFIG struct ssh_config config = {0};
	AUTO_ERR struct err err = {0};

	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		assert_int_equal(
			ssh_config_parse(texts[i], strlen(texts[i]), &config, &err), -ERR_CONFIG);
		assert_int_equal(err.id, E_SSH_CONFIG);
		assert_true(str_is_plain(err.message));
		assert_null(config.hostname);
	}
	assert_int_equal(
		ssh_config_parse(MINIMUM "\0", sizeof(MINIMUM), &config, NULL), -ERR_CONFIG);
	AUTO_FREE char *much = mem_alloc(SSH_CONFIG_MAX + 1, 1);
	memset(much, '\n', SSH_CONFIG_MAX + 1);
	memcpy(much, MINIMUM, strlen(MINIMUM));
	assert_int_equal(ssh_config_parse(much, SSH_CONFIG_MAX + 1, &config, NULL), -ERR_CONFIG);
	assert_int_equal(ssh_config_parse(much, SSH_CONFIG_MAX, &config, NULL), 0);
}

static void test_lists_have_an_end(void **state)
{
	AUTO_SSH_CONFIG struct ssh_config config = {0};
	AUTO_BUF struct buf text = {0};

	buf_init(&text, SSH_CONFIG_MAX);
	buf_adds(&text, MINIMUM);
	for (int i = 0; i < SSH_CONFIG_LIST_MAX + 1; i++)
		buf_addf(&text, "identityfile /k/%d\n", i);
	parse(text.data, &config);
	assert_int_equal(config.identities.n, SSH_CONFIG_LIST_MAX);
}

static void test_id_is_of_the_whole(void **state)
{
	AUTO_SSH_CONFIG struct ssh_config a = {0};
	AUTO_SSH_CONFIG struct ssh_config b = {0};
	AUTO_SSH_CONFIG struct ssh_config c = {0};

	parse(MINIMUM, &a);
	parse(MINIMUM, &b);
	parse(MINIMUM "identityfile /other\n", &c);
	assert_string_equal(a.id, b.id);
	assert_string_not_equal(a.id, c.id);
}

/*
 * Names of files
 */

static const char *const env[] = {"NAME=value", "SSH_AUTH_SOCK=/run/agent", "OWN=/run/own", NULL};
static const struct ssh_config_location place = {
	.home = "/home/me", .host = "gpu", .local_user = "ann", .env = env};

static void test_expansion(void **state)
{
	static const struct {
		const char *name, *path; /* NULL: not known */
	} rows[] = {{"~/.ssh/id", "/home/me/.ssh/id"}, {"/abs", "/abs"},
		{"rel/x", "/home/me/rel/x"}, {"%d/k", "/home/me/k"},
		{"/k/%h-%r-%u-%n-%p%%", "/k/10.0.0.7-me-ann-gpu-2222%"},
		{"/k/${NAME}.x", "/k/value.x"}, {"/k/$NAME", "/k/$NAME"}, {"/k/${NONE}", NULL},
		{"/k/${NAME", NULL}, {"/k/%C", NULL}, {"~ann/x", NULL}, {"/k/%", "/k/%"}};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_SSH_CONFIG struct ssh_config config = {0};
		AUTO_FREE char *text = mem_printf(MINIMUM "identityfile %s\n", rows[i].name);

		parse(text, &config);
		assert_int_equal(ssh_config_expand(&config, &place), rows[i].path != NULL);
		assert_string_equal(
			config.identities.v[0], rows[i].path ? rows[i].path : rows[i].name);
	}
}

static void test_agents(void **state)
{
	static const struct {
		const char *value, *path;
	} rows[] = {{"SSH_AUTH_SOCK", "/run/agent"}, {"$OWN", "/run/own"}, {"$NONE", NULL},
		{"none", NULL}, {"~/a", "/home/me/a"}, {"${OWN}/x", "/run/own/x"}};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_SSH_CONFIG struct ssh_config config = {0};
		AUTO_FREE char *text = mem_printf(MINIMUM "identityagent %s\n", rows[i].value);

		parse(text, &config);
		assert_true(ssh_config_expand(&config, &place));
		assert_true(str_eq(config.agent, rows[i].path));
	}
}

static void test_defaults(void **state)
{
	AUTO_SSH_CONFIG struct ssh_config config = {0};
	struct ssh_config_location named = place;

	ssh_config_default(&place, &config);
	assert_string_equal(config.hostname, "gpu");
	assert_string_equal(config.user, "ann");
	assert_int_equal(config.port, 22);
	assert_string_equal(config.user_known_hosts.v[0], "/home/me/.ssh/known_hosts");
	ssh_config_done(&config);
	named.host = "bob@gpu";
	ssh_config_default(&named, &config);
	assert_string_equal(config.hostname, "gpu");
	assert_string_equal(config.user, "bob");
}

/*
 * Running ssh
 */

/* An ssh of our own, the only one on PATH. */
static int read_by(
	const char *script, const char *config_file, struct ssh_config *ret, struct err *err)
{
	AUTO_FREE char *path = fs_join(tmp, "ssh");
	AUTO_FREE char *search = mem_printf("PATH=%s:/usr/bin:/bin", tmp);
	AUTO_FREE char *text = mem_printf("#!/bin/sh\n%s\n", script);
	const char *const own[] = {search, NULL};

	assert_int_equal(fs_replace(path, text, strlen(text), 0755, FS_SYNC_NONE, NULL), 0);
	return ssh_config_read(
		&(struct ssh_config_call){
			.host = "gpu", .config = config_file, .env = own, .cancel_fd = -1},
		ret, err);
}

static void test_read(void **state)
{
	AUTO_SSH_CONFIG struct ssh_config config = {0};
	AUTO_ERR struct err err = {0};

	assert_int_equal(read_by("[ \"$*\" = '-G -T -- gpu' ] || exit 1; echo noise >&2; printf "
				 "'hostname h\\nuser u\\nport 1\\n'",
				 NULL, &config, &err),
		0);
	assert_string_equal(config.hostname, "h");
	ssh_config_done(&config);
	assert_int_equal(read_by("[ \"$*\" = '-G -T -F /c -- gpu' ] || exit 1; printf 'hostname "
				 "h\\nuser u\\nport 1\\n'",
				 "/c", &config, &err),
		0);
}

static void test_read_that_fails(void **state)
{
	AUTO_SSH_CONFIG struct ssh_config config = {0};
	AUTO_ERR struct err err = {0};

	assert_int_equal(
		read_by("echo 'line 3: Bad \033[1moption' >&2; exit 255", NULL, &config, &err),
		-ERR_CONFIG);
	assert_int_equal(err.id, E_SSH_CONFIG);
	assert_string_equal(err.evidence[0], "ssh: line 3: Bad \\x1b[1moption");
	assert_int_equal(read_by("yes", NULL, &config, &err), -ERR_CONFIG);
}

static void test_no_ssh(void **state)
{
	AUTO_SSH_CONFIG struct ssh_config config = {0};
	AUTO_FREE char *search = mem_printf("PATH=%s", tmp);
	const char *const own[] = {search, NULL};
	AUTO_ERR struct err err = {0};

	assert_int_equal(
		ssh_config_read(
			&(struct ssh_config_call){.host = "gpu", .env = own, .cancel_fd = -1},
			&config, &err),
		-ERR_NOTFOUND);
	assert_int_equal(err.id, E_RUN_EXEC);
}

static void test_read_that_is_cancelled(void **state)
{
	AUTO_SSH_CONFIG struct ssh_config config = {0};
	AUTO_FREE char *search = mem_printf("PATH=%s:/usr/bin:/bin", tmp);
	AUTO_FREE char *path = fs_join(tmp, "ssh");
	const char *const own[] = {search, NULL};
	AUTO_ERR struct err err = {0};
	static const char text[] = "#!/bin/sh\nexec sleep 1000\n";
	int fds[2];

	assert_int_equal(fs_replace(path, text, sizeof(text) - 1, 0755, FS_SYNC_NONE, NULL), 0);
	assert_int_equal(os_pipe(fds, 0), 0);
	close(fds[1]);
	int64_t start_ms = clock_ms();
	assert_int_equal(
		ssh_config_read(
			&(struct ssh_config_call){.host = "gpu", .env = own, .cancel_fd = fds[0]},
			&config, &err),
		-ERR_CANCELED);
	assert_true(clock_ms() - start_ms < 15000);
	close(fds[0]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_hosts_that_are_taken),
		cmocka_unit_test(test_hosts_that_are_not),
		cmocka_unit_test(test_minimum),
		cmocka_unit_test(test_values),
		cmocka_unit_test(test_strictness),
		cmocka_unit_test(test_what_libssh2_cannot),
		cmocka_unit_test(test_what_libssh2_can),
		cmocka_unit_test(test_keywords_are_sorted),
		cmocka_unit_test(test_lists),
		cmocka_unit_test(test_variables),
		cmocka_unit_test(test_what_cannot_be_read),
		cmocka_unit_test(test_lists_have_an_end),
		cmocka_unit_test(test_id_is_of_the_whole),
		cmocka_unit_test(test_expansion),
		cmocka_unit_test(test_agents),
		cmocka_unit_test(test_defaults),
		cmocka_unit_test_setup_teardown(test_read, make_tmp, remove_tmp),
		cmocka_unit_test_setup_teardown(test_read_that_fails, make_tmp, remove_tmp),
		cmocka_unit_test_setup_teardown(test_no_ssh, make_tmp, remove_tmp),
		cmocka_unit_test_setup_teardown(test_read_that_is_cancelled, make_tmp, remove_tmp),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
