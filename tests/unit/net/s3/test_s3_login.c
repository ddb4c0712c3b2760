/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdatomic.h>
#include <string.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "net/s3/s3_login.h"
#include "tests/unit/net/s3/s3fix.h"
#include "tests/unit/tmpfix.h"

static void test_json(void **state)
{
	static const char text[] =
		"{\"Version\":1,\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"S\","
		"\"SessionToken\":\"T\",\"Expiration\":\"2026-08-01T12:00:00Z\"}";
	AUTO(s3_keys_done) struct s3_keys keys = {0};
	AUTO_ERR struct err err = {0};

	assert_int_equal(s3_login_parse_json(text, sizeof(text) - 1, &keys, &err), 0);
	assert_string_equal(keys.token, "T");
	assert_int_equal(keys.expires_ms, INT64_C(1785585600000));
	assert_true(s3_login_parse_json("{}", 2, &keys, &err) < 0);
	assert_true(s3_login_parse_json("x", 1, &keys, &err) < 0);
	assert_int_equal(err.id, E_S3_CREDENTIALS);
	/* What was there stays. */
	assert_string_equal(keys.id, "A");
}

static void write_tmp(const char *name, const char *text)
{
	AUTO_FREE char *path = mem_printf("%s/%s", tmp, name);

	assert_int_equal(fs_replace(path, text, strlen(text), 0600, FS_SYNC_NONE, NULL), 0);
}

/* All sources on one server; S3 takes the key GOOD alone. */
static atomic_int n_keys;

static bool respond_keys(struct fix_conn *conn)
{
	AUTO_FREE char *body = fix_body(conn);
	const char *token = fix_header(conn, "\r\nX-aws-ec2-metadata-token: ");

	if (!body)
		return false;
	if (strstr(conn->path, "/latest/api/token"))
		return s3_fix_respond(conn, "200 OK", "imds-token");
	if (strstr(conn->path, "/latest/") && (!token || strncmp(token, "imds-token", 10) != 0))
		return s3_fix_respond(conn, "401 Unauthorized", "");
	if (strstr(conn->path, "security-credentials") && conn->path[strlen(conn->path) - 1] == '/')
		return s3_fix_respond(conn, "200 OK", "role\n");
	if (strstr(body, "AssumeRoleWithWebIdentity"))
		return strstr(body, "WebIdentityToken=web%2Ftoken&") || strstr(body, "=web%2Ftoken")
			       ? s3_fix_respond(conn, "200 OK",
					 "<AssumeRoleWithWebIdentityResponse>"
					 "<AssumeRoleWithWebIdentityResult><Credentials>"
					 "<AccessKeyId>GOOD</AccessKeyId><SecretAccessKey>S"
					 "</SecretAccessKey><SessionToken>T</SessionToken>"
					 "</Credentials></AssumeRoleWithWebIdentityResult>"
					 "</AssumeRoleWithWebIdentityResponse>")
			       : s3_fix_respond(conn, "400 Bad", "");
	if (strstr(conn->path, "container") && !strstr(conn->head, "uthorization: Bearer box"))
		return s3_fix_respond(conn, "403 Forbidden", "");
	if (strstr(conn->path, "container") || strstr(conn->path, "security-credentials")) {
		bool is_first = atomic_fetch_add(&n_keys, 1) == 0;
		AUTO_FREE char *text = mem_printf(
			"{\"AccessKeyId\":\"%s\",\"SecretAccessKey\":\"S\",\"Token\":\"T\"}",
			is_first ? "OLD" : "GOOD");

		return s3_fix_respond(conn, "200 OK", text);
	}
	if (strstr(conn->head, "Credential=GOOD/"))
		return s3_fix_respond(conn, "200 OK", "");
	return s3_fix_refuse(conn, "400 Bad", "ExpiredToken");
}

static void assert_call(struct s3_fix *fix, enum err_id id)
{
	s3_fix_open(fix);
	s3_delete(fix->s3, "bucket", "k", s3_fix_done, fix);
	s3_fix_run(fix, id);
	s3_free(TAKE(fix->s3));
}

/* Keys that are refused are fetched anew, once. */
static void test_container(void **state)
{
	struct s3_fix fix;

	atomic_store(&n_keys, 0);
	s3_fix_init(&fix, respond_keys);
	strv_addf(&fix.env, "AWS_CONTAINER_CREDENTIALS_FULL_URI=http://127.0.0.1:%u/container",
		fix.server->port);
	assert_call(&fix, E_S3_CREDENTIALS);
	strv_add(&fix.env, "AWS_CONTAINER_AUTHORIZATION_TOKEN=Bearer box");
	assert_call(&fix, E_NONE);
	assert_int_equal(atomic_load(&n_keys), 2);
	s3_fix_stop(&fix);
}

static bool respond_short(struct fix_conn *conn)
{
	char until[CLOCK_TEXT_SIZE];

	if (!strstr(conn->path, "container"))
		return s3_fix_respond(conn, "200 OK", "");
	if (atomic_fetch_add(&n_keys, 1) > 0)
		return s3_fix_respond(conn, "503 Busy", "");
	clock_format(clock_wall_ms() + S3_LOGIN_AHEAD_MS - 1000, until);
	AUTO_FREE char *text = mem_printf(
		"{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"S\",\"Expiration\":\"%s\"}", until);
	return s3_fix_respond(conn, "200 OK", text);
}

/* Keys that cannot be renewed yet do as long as they are valid. */
static void test_late_renewal(void **state)
{
	struct s3_fix fix;

	atomic_store(&n_keys, 0);
	s3_fix_init(&fix, respond_short);
	strv_addf(&fix.env, "AWS_CONTAINER_CREDENTIALS_FULL_URI=http://127.0.0.1:%u/container",
		fix.server->port);
	s3_fix_open(&fix);
	for (int i = 1; i <= 2; i++) {
		s3_delete(fix.s3, "bucket", "k", s3_fix_done, &fix);
		s3_fix_run(&fix, E_NONE);
		assert_int_equal(atomic_load(&n_keys), i);
	}
	s3_fix_stop(&fix);
}

static void test_unsafe_container(void **state)
{
	struct s3_fix fix;

	s3_fix_init(&fix, respond_keys);
	strv_add(&fix.env, "AWS_CONTAINER_CREDENTIALS_FULL_URI=http://example.com/keys");
	assert_call(&fix, E_S3_CONFIG);
	s3_fix_stop(&fix);
}

static void test_instance(void **state)
{
	struct s3_fix fix;

	atomic_store(&n_keys, 0);
	s3_fix_init(&fix, respond_keys);
	strv_addf(&fix.env, "AWS_EC2_METADATA_SERVICE_ENDPOINT=http://127.0.0.1:%u/",
		fix.server->port);
	assert_call(&fix, E_NONE);
	strv_add(&fix.env, "AWS_EC2_METADATA_DISABLED=true");
	assert_call(&fix, E_S3_CREDENTIALS);
	assert_string_equal(fix.error.hint, "aws configure");
	s3_fix_stop(&fix);
}

static void test_web(void **state)
{
	struct s3_fix fix;

	write_tmp("token", "web/token\n");
	s3_fix_init(&fix, respond_keys);
	strv_addf(&fix.env, "AWS_ENDPOINT_URL_STS=http://127.0.0.1:%u", fix.server->port);
	strv_addf(&fix.env, "AWS_WEB_IDENTITY_TOKEN_FILE=%s/token", tmp);
	strv_add(&fix.env, "AWS_ROLE_ARN=arn:aws:iam::1:role/r");
	assert_call(&fix, E_NONE);
	write_tmp("token", "other\n");
	assert_call(&fix, E_S3_CREDENTIALS);
	s3_fix_stop(&fix);
}

static void test_process(void **state)
{
	struct s3_fix fix;

	write_tmp("config", "[default]\ncredential_process = printf "
			    "'{\"AccessKeyId\":\"%s\",\"SecretAccessKey\":\"S\"}' GOOD\n"
			    "[profile broken]\ncredential_process = false\n");
	s3_fix_init(&fix, respond_keys);
	strv_addf(&fix.env, "AWS_CONFIG_FILE=%s/config", tmp);
	assert_call(&fix, E_NONE);
	strv_add(&fix.env, "AWS_PROFILE=broken");
	assert_call(&fix, E_S3_CREDENTIALS);
	assert_non_null(strstr(fix.error.message, "credential_process failed with exit status 1"));
	s3_fix_stop(&fix);
}

static void test_file(void **state)
{
	struct s3_fix fix;

	write_tmp("credentials",
		"[default]\naws_access_key_id=GOOD\naws_secret_access_key=canary-s\n");
	s3_fix_init(&fix, respond_keys);
	strv_addf(&fix.env, "AWS_SHARED_CREDENTIALS_FILE=%s/credentials", tmp);
	assert_call(&fix, E_NONE);
	/* Keys go before a program, as with AWS's tools. */
	write_tmp("config", "[default]\ncredential_process = false\n");
	strv_addf(&fix.env, "AWS_CONFIG_FILE=%s/config", tmp);
	assert_call(&fix, E_NONE);
	write_tmp("credentials",
		"[default]\naws_access_key_id=OTHER\naws_secret_access_key=canary-s\n");
	assert_call(&fix, E_S3_AUTH);
	s3_fix_stop(&fix);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_json),
		cmocka_unit_test(test_container),
		cmocka_unit_test(test_late_renewal),
		cmocka_unit_test(test_unsafe_container),
		cmocka_unit_test(test_instance),
		cmocka_unit_test(test_web),
		cmocka_unit_test(test_process),
		cmocka_unit_test(test_file),
	};
	return cmocka_run_group_tests(tests, make_tmp, remove_tmp);
}
