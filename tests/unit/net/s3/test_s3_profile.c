/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "net/s3/s3_profile.h"
#include "tests/unit/tmpfix.h"

static const char config[] = "# a comment\n"
			     "[default]\nregion = eu-west-1\n"
			     "[profile   lab ]\r\n"
			     "region=eu-central-1\n"
			     "services = mine\n"
			     "s3 =\n"
			     "  max_concurrent_requests = 20\n"
			     "credential_process = /bin/keys --for \"a b\"\n"
			     "no equals\n"
			     "[services mine]\n"
			     "s3 = \n"
			     "  endpoint_url = http://127.0.0.1:9000/base/\n"
			     "sts =\n\tendpoint_url = http://127.0.0.1:9001\n";

static void write_tmp(const char *name, const char *text)
{
	AUTO_FREE char *path = mem_printf("%s/%s", tmp, name);

	assert_int_equal(fs_replace(path, text, strlen(text), 0600, FS_SYNC_NONE, NULL), 0);
}

static void test_section(void **state)
{
	AUTO_STRV struct strv settings = {0};

	s3_section_read(config, sizeof(config) - 1, "profile lab", &settings);
	const char *const *env = (const char *const *)settings.v;
	assert_string_equal(env_get(env, "region"), "eu-central-1");
	assert_string_equal(env_get(env, "s3.max_concurrent_requests"), "20");
	assert_string_equal(env_get(env, "credential_process"), "/bin/keys --for \"a b\"");
	assert_null(env_get(env, "endpoint_url"));
	assert_int_equal(settings.n, 4);
}

static void test_read(void **state)
{
	AUTO_STRV struct strv env = {0};
	AUTO(s3_profile_done) struct s3_profile profile = {0};
	AUTO_ERR struct err err = {0};

	write_tmp("config", config);
	write_tmp("credentials", "[lab]\naws_access_key_id = A\nregion = nowhere\n");
	strv_addf(&env, "AWS_CONFIG_FILE=%s/config", tmp);
	strv_addf(&env, "AWS_SHARED_CREDENTIALS_FILE=%s/credentials", tmp);
	strv_add(&env, "AWS_PROFILE=lab");
	assert_int_equal(s3_profile_read((const char *const *)env.v, &profile, &err), 0);
	assert_string_equal(profile.endpoint, "http://127.0.0.1:9000/base/");
	assert_string_equal(profile.sts, "http://127.0.0.1:9001");
	assert_string_equal(s3_profile_get(&profile, "aws_access_key_id"), "A");
	assert_string_equal(profile.region, "nowhere");
	s3_profile_done(&profile);
	/* The environment goes first, and may say that files name no endpoint. */
	strv_add(&env, "AWS_REGION=here");
	strv_add(&env, "AWS_ENDPOINT_URL=http://e");
	assert_int_equal(s3_profile_read((const char *const *)env.v, &profile, &err), 0);
	assert_string_equal(profile.region, "here");
	assert_string_equal(profile.endpoint, "http://e");
	s3_profile_done(&profile);
	env_set(&env, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS=true", false);
	assert_int_equal(s3_profile_read((const char *const *)env.v, &profile, &err), 0);
	assert_null(profile.endpoint);
	s3_profile_done(&profile);
	env_set(&env, "AWS_PROFILE=other", false);
	assert_true(s3_profile_read((const char *const *)env.v, &profile, &err) < 0);
	assert_int_equal(err.id, E_S3_CONFIG);
}

static void test_nothing(void **state)
{
	static const char *const env[] = {NULL};
	AUTO(s3_profile_done) struct s3_profile profile = {0};
	AUTO_ERR struct err err = {0};

	assert_int_equal(s3_profile_read(env, &profile, &err), 0);
	assert_string_equal(profile.name, "default");
	assert_string_equal(profile.region, "us-east-1");
	assert_null(profile.endpoint);
	assert_null(s3_profile_get(&profile, "region"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_section),
		cmocka_unit_test(test_read),
		cmocka_unit_test(test_nothing),
	};
	return cmocka_run_group_tests(tests, make_tmp, remove_tmp);
}
