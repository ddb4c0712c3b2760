/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "app/init/init.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "oci/auth/credentials.h"

static void test_target_names(void **state)
{
	static const char *const cases[][2] = {{"research-a", "research-a"},
		{"arn:aws:eks:eu-1:123:cluster/prod", "prod"}, {"gke_p_zone_c1", "gke-p-zone-c1"},
		{"Admin@Lab", "admin-lab"}, {"local", "cluster"}, {"kube", "cluster"},
		{"x/kube", "cluster"}, {"", "cluster"}, {"\xff\xfe", "cluster"}, {"ends/", "ends"}};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_FREE char *name = init_target_name(cases[i][0]);
		assert_string_equal(name, cases[i][1]);
	}
}

static void test_repositories(void **state)
{
	static const struct {
		const char *host, *user, *name, *repository;
	} cases[] = {
		{"docker.io", "Me", "net", "docker.io/me/net"},
		{"ghcr.io", NULL, "net", "ghcr.io/net"},
		{"host:5000/team", "me", "net", "host:5000/team/net"},
		{"1.dkr.ecr.amazonaws.com", "AWS", "net", "1.dkr.ecr.amazonaws.com/net"},
		{"gcr.io", "_json_key", "net", "gcr.io/net"},
		{"quay.io", "org+robot", "", "quay.io/dlrun"},
		{"a.io", "<token>", "net", "a.io/net"},
		{"a.io", "a/../b", "net", "a.io/net"},
		{"a.io", "-x", "net", "a.io/net"},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_FREE char *repository =
			init_repository(cases[i].host, cases[i].user, cases[i].name);
		assert_string_equal(repository, cases[i].repository);
		assert_int_equal(init_check_repository(repository, NULL), 0);
	}
	assert_true(init_check_repository("host", NULL) < 0);
	assert_true(init_check_repository("host.io/a:tag", NULL) < 0);
	assert_true(init_check_repository("oci:dir", NULL) < 0);
	assert_true(init_check_repository("", NULL) < 0);
}

static void test_login_files(void **state)
{
	static const char text[] =
		"{\"auths\": {\"https://index.docker.io/v1/\": {\"auth\": \"x\"}, \"reg:5000\": {},"
		" \"http://old.io/v2/\": {}, \"docker.io\": {}, \"pod.io/team\": {}, \"\": {},"
		" \"a b\": {}, \"\\u001b[31m\": {}, \"https://\": {}},"
		" \"credHelpers\": {\"gcr.io\": \"gcloud\", \"reg:5000\": \"x\"}, \"credsStore\": \"pass\"}";
	static const char *const wanted[] = {
		"docker.io", "reg:5000", "old.io", "pod.io/team", "gcr.io"};
	AUTO_STRV struct strv hosts = {0};

	assert_int_equal(credential_file_hosts(text, strlen(text), "file", &hosts, NULL), 0);
	assert_int_equal(hosts.n, ARRAY_LEN(wanted));
	for (size_t i = 0; i < hosts.n; i++)
		assert_string_equal(hosts.v[i], wanted[i]);
}

static void test_login_files_of_other_forms(void **state)
{
	static const char *const texts[] = {"{}", "[]", "null", "{\"auths\": []}",
		"{\"auths\": [1], \"credHelpers\": \"x\"}", "{\"auths\": null}"};
	AUTO_STRV struct strv hosts = {0};
	AUTO_ERR struct err err = {0};

	for (size_t i = 0; i < ARRAY_LEN(texts); i++)
		assert_int_equal(
			credential_file_hosts(texts[i], strlen(texts[i]), "file", &hosts, &err), 0);
	assert_int_equal(hosts.n, 0);
	assert_int_equal(credential_file_hosts("{", 1, "file", &hosts, &err), -ERR_IO);
	assert_int_equal(err.id, E_DATA);
}

static void test_many_logins(void **state)
{
	AUTO_STRV struct strv hosts = {0};
	AUTO_BUF struct buf text;

	buf_init(&text, 1 << 20);
	buf_adds(&text, "{\"auths\": {");
	for (int i = 0; i < 500; i++)
		buf_addf(&text, "%s\"host%d.io\": {}", i ? ", " : "", i);
	buf_adds(&text, "}}");
	assert_int_equal(credential_file_hosts(text.data, text.len, "file", &hosts, NULL), 0);
	assert_int_equal(hosts.n, CREDENTIAL_HOSTS_MAX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_target_names),
		cmocka_unit_test(test_repositories),
		cmocka_unit_test(test_login_files),
		cmocka_unit_test(test_login_files_of_other_forms),
		cmocka_unit_test(test_many_logins),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
