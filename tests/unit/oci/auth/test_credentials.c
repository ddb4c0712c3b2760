/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/os/fs.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/enc.h"
#include "base/util/str.h"
#include "oci/auth/credentials.h"
#include "tests/unit/tmpfix.h"
#include "tests/unit/until.h"

/*
 * One file
 */

struct found {
	struct credential login;
	char *helper, *key;
	struct err err;
};

static void found_done(struct found *found)
{
	credential_done(&found->login);
	free(found->helper);
	free(found->key);
	err_done(&found->err);
}
#define AUTO_FOUND AUTO(found_done)

static int find(const char *text, const char *host, const char *repo, struct found *found)
{
	return credential_file_find(text, strlen(text), "the file", host, repo, &found->login,
		&found->helper, &found->key, &found->err);
}

static char *encoded(const char *plain, size_t len)
{
	AUTO_BUF struct buf out = {0};

	buf_init(&out, 4096);
	base64_encode(plain, len, &out);
	return buf_take(&out);
}

#define ME "bWU6c2VjcmV0" /* me:secret */

/* The user that a key of `auths` stands for; NULL: none. */
static void check_key(const char *key, const char *host, const char *repo, bool is_found)
{
	AUTO_FREE char *text = mem_printf("{\"auths\":{\"%s\":{\"auth\":\"" ME "\"}}}", key);
	AUTO_FOUND struct found found = {0};

	int r = find(text, host, repo, &found);
	if (r != is_found)
		print_error("%s for %s/%s: %d\n", key, host, repo, r);
	assert_int_equal(r, is_found);
	assert_null(found.helper);
	if (!is_found)
		return;
	assert_string_equal(found.login.user, "me");
	assert_string_equal(found.login.password, "secret");
	assert_string_equal(found.login.origin, "the file");
}

static void keys_name_registries(void **state)
{
	check_key("reg.example", "reg.example", "a/b", true);
	check_key("REG.example", "reg.Example", "a/b", true);
	check_key("reg.example:5000", "reg.example:5000", "a/b", true);
	check_key("reg.example", "reg.example:5000", "a/b", false);
	check_key("reg.example:5000", "reg.example", "a/b", false);
	check_key("reg.example.org", "reg.example", "a/b", false);
	check_key("https://reg.example", "reg.example", "a/b", true);
	check_key("https://reg.example/", "reg.example", "a/b", true);
	check_key("https://reg.example/v1/", "reg.example", "a/b", true);
	check_key("https://reg.example/v2", "reg.example", "a/b", true);
	check_key("http://reg.example/v1/", "reg.example", "a/b", true);
	check_key("reg.example/v1/", "reg.example", "a/b", true);
	check_key("ftp://reg.example", "reg.example", "a/b", false);
	check_key("reg.example/a", "reg.example", "a/b", true);
	check_key("reg.example/a/b", "reg.example", "a/b", true);
	check_key("reg.example/a/b/", "reg.example", "a/b", true);
	check_key("reg.example/a/bc", "reg.example", "a/b", false);
	check_key("reg.example/a/b", "reg.example", "a/bc", false);
	check_key("reg.example/a/b/c", "reg.example", "a/b", false);
	check_key("[::1]:5000", "[::1]:5000", "a", true);
	check_key("", "reg.example", "a", false);
}

static void hub_has_many_names(void **state)
{
	static const char *const hosts[] = {"docker.io", "index.docker.io", "registry-1.docker.io"};

	for (size_t i = 0; i < ARRAY_LEN(hosts); i++) {
		check_key("https://index.docker.io/v1/", hosts[i], "me/app", true);
		check_key("docker.io", hosts[i], "me/app", true);
		check_key("docker.io/me", hosts[i], "me/app", true);
		check_key("docker.com", hosts[i], "me/app", false);
	}
	check_key("https://index.docker.io/v1/", "reg.example", "me/app", false);
}

static void longest_prefix_wins(void **state)
{
	static const char text[] = "{\"auths\":{\"r.example/a\":{\"username\":\"one\"},"
				   "\"r.example\":{\"username\":\"none\"},"
				   "\"r.example/a/b\":{\"username\":\"two\",\"password\":\"p\"},"
				   "\"https://r.example/v1/\":{\"username\":\"old\"},"
				   "\"r.example/a/b/c\":{}}}";
	static const struct {
		const char *repo, *user;
	} cases[] = {{"x", "none"}, {"a", "one"}, {"a/x", "one"}, {"ab", "none"}, {"a/b", "two"},
		{"a/b/c", "two"}, {"a/b/c/d", "two"}, {"", "none"}};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_FOUND struct found found = {0};

		assert_int_equal(find(text, "r.example", cases[i].repo, &found), 1);
		assert_string_equal(found.login.user, cases[i].user);
	}
}

/* user and password of base64 of len bytes; NULL: not accepted. */
static void check_auth(const char *plain, size_t len, const char *user, const char *password)
{
	AUTO_FREE char *auth = encoded(plain, len);
	AUTO_FREE char *text = mem_printf("{\"auths\":{\"r.example\":{\"auth\":\"%s\"}}}", auth);
	AUTO_FOUND struct found found = {0};

	int r = find(text, "r.example", "a", &found);
	if (!user) {
		assert_int_equal(r, -ERR_IO);
		assert_int_equal(found.err.id, E_DATA);
		assert_null(strstr(found.err.message, auth));
		assert_null(found.login.user);
		return;
	}
	assert_int_equal(r, 1);
	assert_string_equal(found.login.user, user);
	assert_string_equal(found.login.password, password);
}

static void auth_is_user_and_password(void **state)
{
	check_auth("me:pass", 7, "me", "pass");
	check_auth("me:a:b::c", 9, "me", "a:b::c");
	check_auth("me:", 3, "me", "");
	check_auth(":token", 6, "", "token");
	check_auth("m\xc3\xbcller:gr\xc3\xbc\xc3\x9f", 15, "m\xc3\xbcller", "gr\xc3\xbc\xc3\x9f");
	check_auth("me:\xff\xfe\x80", 6, "me", "\xff\xfe\x80"); /* Latin-1 and worse, as it is */
	check_auth("me:pass\0\0", 9, "me", "pass");
	check_auth("me:pa\0ss", 8, NULL, NULL);
	check_auth("nothing", 7, NULL, NULL);
}

/* "me:pass" as tools break lines; in JSON that is \\n. */
static void auth_with_line_breaks(void **state)
{
	static const char *const texts[] = {"bWU6cGFzcw==\\n",
		"bWU6\\r\\ncGFzcw==", "\\nbWU6cGFz\\ncw==\\n", "bWU6cGFzcw=\\n="};

	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		AUTO_FREE char *text =
			mem_printf("{\"auths\":{\"r.example\":{\"auth\":\"%s\"}}}", texts[i]);
		AUTO_FOUND struct found found = {0};

		assert_int_equal(find(text, "r.example", "a", &found), 1);
		assert_string_equal(found.login.user, "me");
		assert_string_equal(found.login.password, "pass");
	}
}

static void auth_must_be_base64(void **state)
{
	static const char *const bad[] = {"bWU6c2VjcmV", "bWU6c2Vj cmV0", "!!!!", "bWU=bWU6"};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		AUTO_FREE char *text =
			mem_printf("{\"auths\":{\"r.example\":{\"auth\":\"%s\"}}}", bad[i]);
		AUTO_FOUND struct found found = {0};

		assert_int_equal(find(text, "r.example", "a", &found), -ERR_IO);
		assert_string_equal(
			found.err.message, "the file: the login of r.example is not base64");
		/* Those of others may be as they like. */
		assert_int_equal(find(text, "other.example", "a", &found), 0);
	}
}

static void tokens_are_read(void **state)
{
	AUTO_FOUND struct found identity = {0}, registry = {0}, bad = {0}, colon = {0};

	assert_int_equal(find("{\"auths\":{\"r.example\":{\"auth\":\"bWU6\","
			      "\"identitytoken\":\"ident\"}}}",
				 "r.example", "a", &identity),
		1);
	assert_string_equal(identity.login.identity_token, "ident");
	assert_string_equal(identity.login.user, "me");
	assert_int_equal(find("{\"auths\":{\"r.example\":{\"registrytoken\":\"to.k-en\"}}}",
				 "r.example", "a", &registry),
		1);
	assert_string_equal(registry.login.registry_token, "to.k-en");
	assert_null(registry.login.user);
	assert_int_equal(find("{\"auths\":{\"r.example\":{\"registrytoken\":\"a b\"}}}",
				 "r.example", "a", &bad),
		-ERR_IO);
	assert_int_equal(find("{\"auths\":{\"r.example\":{\"username\":\"a:b\"}}}", "r.example",
				 "a", &colon),
		-ERR_IO);
}

static void old_file_has_entries_at_the_top(void **state)
{
	AUTO_FOUND struct found found = {0}, none = {0};

	assert_int_equal(
		find("{\"https://r.example/v1/\":{\"auth\":\"" ME "\",\"email\":\"me@x\"}}",
			"r.example", "a", &found),
		1);
	assert_string_equal(found.login.user, "me");
	/* In a new one the top is no place for them. */
	assert_int_equal(
		find("{\"auths\":{},\"r.example\":{\"auth\":\"" ME "\"}}", "r.example", "a", &none),
		0);
}

static void check_helper(const char *text, const char *host, const char *helper, const char *key)
{
	AUTO_FOUND struct found found = {0};

	assert_int_equal(find(text, host, "a/b", &found), helper ? 1 : 0);
	if (!helper) {
		assert_null(found.helper);
		return;
	}
	assert_string_equal(found.helper, helper);
	assert_string_equal(found.key, key);
}

static void helper_of_the_registry_comes_first(void **state)
{
	static const char text[] = "{\"credsStore\":\"all\",\"credHelpers\":{\"r.example\":\"one\","
				   "\"https://index.docker.io/v1/\":\"hub\",\"e.example\":\"\"}}";

	check_helper(text, "r.example", "one", "r.example");
	check_helper(text, "other.example:5000", "all", "other.example:5000");
	check_helper(text, "e.example", "all", "e.example");
	check_helper(text, "docker.io", "hub", "https://index.docker.io/v1/");
	check_helper("{\"credsStore\":\"all\"}", "docker.io", "all", "https://index.docker.io/v1/");
	check_helper("{\"credHelpers\":{\"docker.io\":\"hub\"}}", "docker.io", "hub", "docker.io");
	check_helper("{\"credsStore\":\"\",\"credHelpers\":{\"x.example\":\"one\"}}", "r.example",
		NULL, NULL);
	check_helper("{\"credsStore\":7,\"credHelpers\":[\"r.example\"]}", "r.example", NULL, NULL);
}

static void login_of_the_file_stands_by(void **state)
{
	AUTO_FOUND struct found found = {0};

	assert_int_equal(
		find("{\"credsStore\":\"all\",\"auths\":{\"r.example\":{\"auth\":\"" ME "\"}}}",
			"r.example", "a", &found),
		1);
	assert_string_equal(found.helper, "all");
	assert_string_equal(found.login.user, "me");
}

static void helper_names_are_restricted(void **state)
{
	static const char *const bad[] = {"a/b", "../x", "a b", "a;b", "a\\nb", "\\u00e4"};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		AUTO_FREE char *text = mem_printf("{\"credsStore\":\"%s\"}", bad[i]);
		AUTO_FOUND struct found found = {0};

		assert_int_equal(find(text, "r.example", "a", &found), -ERR_IO);
		assert_int_equal(found.err.id, E_DATA);
		assert_null(found.helper);
	}
	check_helper("{\"credsStore\":\"ecr-login_2.0\"}", "r", "ecr-login_2.0", "r");
}

static void other_files_are_no_files(void **state)
{
	static const char *const bad[] = {"", " ", "[]", "7", "{", "{\"auths\":{}}x", "null",
		"{\"auths\":{\"a\":{},\"a\":{}}}"};
	static const char *const empty[] = {"{}", "{\"auths\":[]}", "{\"auths\":null}",
		"{\"auths\":{\"r.example\":{}}}", "{\"auths\":{\"r.example\":7}}",
		"{\"auths\":{\"r.example\":{\"auth\":7}}}", "{\"r.example\":\"x\"}"};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		AUTO_FOUND struct found found = {0};
		assert_true(find(bad[i], "r.example", "a", &found) < 0);
		assert_int_equal(found.err.id, E_DATA);
	}
	for (size_t i = 0; i < ARRAY_LEN(empty); i++) {
		AUTO_FOUND struct found found = {0};
		assert_int_equal(find(empty[i], "r.example", "a", &found), 0);
		assert_false(credential_is_there(&found.login));
	}
}

static void secrets_have_a_limit(void **state)
{
	for (size_t over = 0; over < 2; over++) {
		AUTO_FOUND struct found found = {0};
		AUTO_FREE char *token = mem_alloc(CREDENTIAL_SECRET_MAX + 2, 1);

		(void)state;
		memset(token, 'x', CREDENTIAL_SECRET_MAX + over);
		AUTO_FREE char *text =
			mem_printf("{\"auths\":{\"r.example\":{\"registrytoken\":\"%s\"}}}", token);
		assert_int_equal(find(text, "r.example", "a", &found), over ? -ERR_IO : 1);
	}
	AUTO_FOUND struct found found = {0};
	AUTO_FREE char *big = mem_alloc(CREDENTIAL_FILE_MAX + 2, 1);
	memset(big, ' ', CREDENTIAL_FILE_MAX + 1);
	memcpy(big, "{}", 2);
	assert_int_equal(find(big, "r.example", "a", &found), -ERR_LIMIT);
}

/*
 * Answers of helpers
 */

struct response {
	struct credential login;
	struct err err;
};

static void response_done(struct response *response)
{
	credential_done(&response->login);
	err_done(&response->err);
}
#define AUTO_RESPONSE AUTO(response_done)

static int parse(const char *text, int status, struct response *response)
{
	return credential_helper_parse(
		text, strlen(text), status, "x", &response->login, &response->err);
}

static void responses_hold_logins(void **state)
{
	AUTO_RESPONSE struct response login = {0}, token = {0};

	assert_int_equal(
		parse("{\"ServerURL\":\"r\",\"Username\":\"me\",\"Secret\":\"p:\xc3\xbc\"}\n", 0,
			&login),
		1);
	assert_string_equal(login.login.user, "me");
	assert_string_equal(login.login.password, "p:\xc3\xbc");
	assert_string_equal(login.login.origin, "docker-credential-x");
	assert_int_equal(parse("{\"Username\":\"<token>\",\"Secret\":\"tok\"}", 0, &token), 1);
	assert_string_equal(token.login.identity_token, "tok");
	assert_null(token.login.user);
}

static void having_none_is_no_failure(void **state)
{
	static const char words[] = "credentials not found in native keychain\n";
	AUTO_RESPONSE struct response response = {0};

	assert_int_equal(parse(words, 1, &response), 0);
	assert_int_equal(parse(words, 0, &response), 0);
	assert_int_equal(parse("{\"Username\":\"\",\"Secret\":\"\"}", 0, &response), 0);
	assert_false(credential_is_there(&response.login));
	assert_false(err_is_set(&response.err));
}

static void check_bad_response(
	const char *text, int status, const char *message, const char *evidence)
{
	AUTO_RESPONSE struct response response = {0};

	assert_int_equal(parse(text, status, &response), -ERR_AUTH);
	assert_int_equal(response.err.id, E_REGISTRY_HELPER);
	assert_string_equal(response.err.message, message);
	assert_int_equal(response.err.n_evidence, evidence ? 1 : 0);
	if (evidence)
		assert_string_equal(response.err.evidence[0], evidence);
}

static void bad_responses_are_not_repeated(void **state)
{
	check_bad_response(
		"hunter2", 0, "docker-credential-x printed something else than a login", NULL);
	check_bad_response("", 0, "docker-credential-x printed something else than a login", NULL);
	check_bad_response("{\"Username\":\"me\"}", 0,
		"docker-credential-x printed no Username and Secret", NULL);
	check_bad_response("{\"Username\":7,\"Secret\":\"s\"}", 0,
		"docker-credential-x printed no Username and Secret", NULL);
	check_bad_response("{\"Username\":\"a:b\",\"Secret\":\"hunter2\"}", 0,
		"docker-credential-x printed a user name with a colon", NULL);
	check_bad_response("{\"Username\":\"me\",\"Secret\":\"hunter2\"}", 3,
		"docker-credential-x failed with exit status 3", NULL);
	check_bad_response(
		"password: hunter2", 1, "docker-credential-x failed with exit status 1", NULL);
	check_bad_response("got eyJhbGciOiJSUzI1NiIsInR5cCI6IkpXVCJ9eyJhbGciOi", 1,
		"docker-credential-x failed with exit status 1", NULL);
	check_bad_response("no session: \x1b[31mlog in\nmore", 1,
		"docker-credential-x failed with exit status 1",
		"it said: no session: \\x1b[31mlog in");
	check_bad_response("", 128 + SIGSEGV, "docker-credential-x was killed by SIGSEGV", NULL);
}

static void words_are_cut(void **state)
{
	AUTO_RESPONSE struct response response = {0};
	AUTO_BUF struct buf text = {0};

	buf_init(&text, 100000);
	for (int i = 0; i < 1000; i++)
		buf_adds(&text, "word ");
	assert_int_equal(parse(text.data, 1, &response), -ERR_AUTH);
	assert_int_equal(strlen(response.err.evidence[0]), strlen("it said: ") + 200);
}

/*
 * Looking up
 */

struct lookup {
	struct loop *loop;
	struct credential_lookup *lookup;
	struct credential_env env;
	struct strv variables;
	struct credential login;
	struct strv warnings;
	struct err error;
	int n_calls;
};

static int note_found(void *ctx, struct credential *found, const struct strv *warnings,
	struct err *error, struct err *err)
{
	struct lookup *lookup = ctx;

	lookup->n_calls++;
	strv_copy(&lookup->warnings, warnings);
	assert_true(!found == !!error);
	if (found) {
		lookup->login = *found;
		*found = (struct credential){0};
	} else {
		err_move(&lookup->error, error);
	}
	credential_free(TAKE(lookup->lookup));
	return 0;
}

static void lookup_init(struct lookup *lookup)
{
	*lookup = (struct lookup){.loop = loop_new()};
	strv_addf(&lookup->variables, "PATH=%s/bin:/usr/bin:/bin", tmp);
	strv_addf(&lookup->variables, "TMP=%s", tmp);
	strv_add(&lookup->variables, "DLRUN_TOKEN=mine");
	lookup->env.home = tmp;
}

static void lookup_done(struct lookup *lookup)
{
	credential_free(lookup->lookup);
	loop_free(lookup->loop);
	strv_done(&lookup->variables);
	strv_done(&lookup->warnings);
	credential_done(&lookup->login);
	err_done(&lookup->error);
}
#define AUTO_LOOKUP AUTO(lookup_done)

static void start(struct lookup *lookup, const char *host)
{
	lookup->env.env = (const char *const *)lookup->variables.v;
	lookup->lookup =
		credential_start(lookup->loop, &lookup->env, host, "a/b", note_found, lookup);
	assert_int_equal(lookup->n_calls, 0);
}

static void find_for(struct lookup *lookup, const char *host)
{
	AUTO_ERR struct err err = {0};

	start(lookup, host);
	assert_int_equal(loop_run(lookup->loop, &err), 0);
	assert_int_equal(lookup->n_calls, 1);
}

/* A file below tmp. */
static void put(const char *name, const char *text, mode_t mode)
{
	AUTO_FREE char *path = fs_join(tmp, name);
	AUTO_FREE char *dir = mem_strndup(path, (size_t)(strrchr(path, '/') - path));

	assert_int_equal(fs_mkdirs(dir, 0755, NULL), 0);
	assert_int_equal(fs_replace(path, text, strlen(text), mode, FS_SYNC_NONE, NULL), 0);
}

static void put_login(const char *name, const char *host, const char *user)
{
	AUTO_FREE char *text = mem_printf("{\"auths\":{\"%s\":{\"username\":\"%s\"}}}", host, user);

	put(name, text, 0644);
}

static void put_helper(const char *name, const char *script)
{
	AUTO_FREE char *path = mem_printf("bin/docker-credential-%s", name);
	AUTO_FREE char *text = mem_printf("#!/bin/sh\n%s\n", script);

	put(path, text, 0755);
}

static bool exists(const char *name)
{
	AUTO_FREE char *path = fs_join(tmp, name);

	return access(path, F_OK) == 0;
}

static void check_user(const struct lookup *lookup, const char *user, const char *origin)
{
	assert_false(err_is_set(&lookup->error));
	if (!user) {
		assert_false(credential_is_there(&lookup->login));
		return;
	}
	assert_non_null(lookup->login.user);
	assert_string_equal(lookup->login.user, user);
	assert_string_equal(lookup->login.origin, origin);
}

static void nothing_is_anonymous(void **state)
{
	AUTO_LOOKUP struct lookup lookup;
	AUTO_LOOKUP struct lookup homeless;

	lookup_init(&lookup);
	find_for(&lookup, "r.example");
	check_user(&lookup, NULL, NULL);
	assert_int_equal(lookup.warnings.n, 0);
	lookup_init(&homeless);
	homeless.env.home = NULL;
	find_for(&homeless, "r.example");
	check_user(&homeless, NULL, NULL);
}

/* All places, the first taken away each time. */
static void files_come_in_order(void **state)
{
	static const struct {
		const char *name, *origin;
	} places[] = {
		{".docker/config.json", "~/.docker/config.json"},
		{"run/containers/auth.json", "~/run/containers/auth.json"},
		{".config/containers/auth.json", "~/.config/containers/auth.json"},
		{".dockercfg", "~/.dockercfg"},
	};
	AUTO_FREE char *run = fs_join(tmp, "run");

	for (size_t i = 0; i < ARRAY_LEN(places); i++)
		put_login(places[i].name, "r.example", places[i].name);
	for (size_t i = 0; i <= ARRAY_LEN(places); i++) {
		AUTO_LOOKUP struct lookup lookup;
		lookup_init(&lookup);
		lookup.env.xdg_runtime_dir = run;
		find_for(&lookup, "r.example");
		if (i == ARRAY_LEN(places)) {
			check_user(&lookup, NULL, NULL);
			break;
		}
		check_user(&lookup, places[i].name, places[i].origin);
		/* A file without an entry leads on as one that is missing does. */
		put_login(places[i].name, "other.example", "nobody");
	}
}

static void variables_move_files(void **state)
{
	AUTO_FREE char *docker = fs_join(tmp, "d"), *xdg = fs_join(tmp, "x");
	AUTO_FREE char *file = fs_join(tmp, "f.json"), *missing = fs_join(tmp, "missing");

	put_login(".docker/config.json", "r.example", "home");
	put_login("d/config.json", "r.example", "moved");
	put_login("x/containers/auth.json", "x.example", "xdg");
	put_login(".config/containers/auth.json", "x.example", "not");
	put_login("f.json", "f.example", "alone");
	const struct {
		const char *docker, *xdg, *file, *host, *user, *origin;
	} cases[] = {
		{docker, NULL, NULL, "r.example", "moved", "~/d/config.json"},
		{"", NULL, "", "r.example", "home", "~/.docker/config.json"},
		{missing, NULL, NULL, "r.example", NULL, NULL},
		{docker, xdg, NULL, "x.example", "xdg", "~/x/containers/auth.json"},
		{docker, xdg, file, "f.example", "alone", "~/f.json"},
		{docker, xdg, file, "r.example", NULL, NULL},
		{docker, xdg, missing, "r.example", NULL, NULL},
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_LOOKUP struct lookup lookup;
		lookup_init(&lookup);
		lookup.env.docker_config = cases[i].docker;
		lookup.env.xdg_config_home = cases[i].xdg;
		lookup.env.registry_auth_file = cases[i].file;
		find_for(&lookup, cases[i].host);
		check_user(&lookup, cases[i].user, cases[i].origin);
		assert_int_equal(lookup.warnings.n, cases[i].file == missing ? 1 : 0);
	}
}

static void check_shared(
	const struct lookup *lookup, const char *repo, const char *other, bool is_shared)
{
	assert_int_equal(credential_is_shared(&lookup->env, "r.example", repo, other), is_shared);
	assert_int_equal(credential_is_shared(&lookup->env, "r.example", other, repo), is_shared);
}

static void repositories_share_logins(void **state)
{
	AUTO_LOOKUP struct lookup lookup;

	lookup_init(&lookup);
	check_shared(&lookup, "a/b", "c", true);
	put(".docker/config.json",
		"{\"auths\":{\"r.example/a\":{\"username\":\"one\"},"
		"\"r.example/b\":{\"username\":\"two\"},"
		"\"r.example/c\":{\"username\":\"one\"},"
		"\"r.example/d\":{\"username\":\"one\",\"password\":\"p\"},"
		"\"r.example/e\":{\"identitytoken\":\"t\"}}}",
		0644);
	check_shared(&lookup, "a/x", "a/y", true);
	check_shared(&lookup, "a/x", "b/x", false);
	check_shared(&lookup, "a/x", "c", true);
	check_shared(&lookup, "a/x", "d", false);
	check_shared(&lookup, "a/x", "e", false);
	check_shared(&lookup, "a/x", "f", false);
	check_shared(&lookup, "f", "g/h", true);
	/* The next file has one for all. */
	put_login(".config/containers/auth.json", "r.example", "one");
	check_shared(&lookup, "a/x", "f", true);
	check_shared(&lookup, "b/x", "f", false);
	/* Helpers are asked for hosts. */
	put(".docker/config.json", "{\"credHelpers\":{\"r.example\":\"x\"}}", 0644);
	check_shared(&lookup, "a/x", "b/x", true);
	put(".docker/config.json",
		"{\"credsStore\":\"x\",\"auths\":{\"r.example/a\":{\"username\":\"one\"}}}", 0644);
	check_shared(&lookup, "a/x", "b/x", false);
}

static void bad_files_are_passed_over(void **state)
{
	AUTO_LOOKUP struct lookup lookup;

	put(".docker/config.json", "{\"auths\": hunter2", 0600);
	put_login(".config/containers/auth.json", "r.example", "me");
	lookup_init(&lookup);
	find_for(&lookup, "r.example");
	check_user(&lookup, "me", "~/.config/containers/auth.json");
	assert_int_equal(lookup.warnings.n, 1);
	assert_non_null(strstr(lookup.warnings.v[0], "~/.docker/config.json is not valid JSON"));
	assert_null(strstr(lookup.warnings.v[0], "hunter2"));
}

static void helper_is_requested(void **state)
{
	AUTO_LOOKUP struct lookup lookup;
	AUTO_FREE char *said = fs_join(tmp, "said");
	AUTO_BUF struct buf text = {0};

	put(".docker/config.json",
		"{\"credHelpers\":{\"r.example\":\"one\",\"other.example\":\"two\"}}", 0600);
	put_helper("one", "{ echo \"$#:$1:$DLRUN_TOKEN\"; cat; } >$TMP/said\n"
			  "echo hunter2 >&2\n"
			  "echo '{\"Username\":\"me\",\"Secret\":\"p\"}'");
	put_helper("two", ": >$TMP/two");
	lookup_init(&lookup);
	find_for(&lookup, "r.example");
	check_user(&lookup, "me", "docker-credential-one");
	assert_string_equal(lookup.login.password, "p");
	assert_int_equal(fs_read(said, 1000, &text, NULL, NULL), 0);
	assert_string_equal(text.data, "1:get:\nr.example\n");
	assert_false(exists("two"));
}

static void helper_that_has_none_leads_on(void **state)
{
	AUTO_LOOKUP struct lookup lookup;

	put(".docker/config.json", "{\"credsStore\":\"one\"}", 0600);
	put_helper("one", "echo 'credentials not found in native keychain'; exit 1");
	put_login(".config/containers/auth.json", "r.example", "me");
	lookup_init(&lookup);
	find_for(&lookup, "r.example");
	check_user(&lookup, "me", "~/.config/containers/auth.json");
	assert_int_equal(lookup.warnings.n, 0);
}

static void missing_helper_is_a_warning(void **state)
{
	AUTO_LOOKUP struct lookup lookup;
	AUTO_LOOKUP struct lookup anonymous;

	put(".docker/config.json",
		"{\"credsStore\":\"desktop\",\"auths\":{\"r.example\":{\"auth\":\"" ME "\"}}}",
		0600);
	lookup_init(&lookup);
	find_for(&lookup, "r.example");
	check_user(&lookup, "me", "~/.docker/config.json");
	assert_int_equal(lookup.warnings.n, 1);
	assert_string_equal(lookup.warnings.v[0],
		"docker-credential-desktop, which ~/.docker/config.json names for r.example, is not "
		"installed");
	lookup_init(&anonymous);
	find_for(&anonymous, "s.example");
	check_user(&anonymous, NULL, NULL);
	assert_int_equal(anonymous.warnings.n, 1);
}

static void failing_helper_is_an_error(void **state)
{
	static const struct {
		const char *script, *message;
	} cases[] = {
		{"echo garbage", "docker-credential-one printed something else than a login"},
		{"exit 7", "docker-credential-one failed with exit status 7"},
		{"kill -9 $$", "docker-credential-one was killed by SIGKILL"},
		{"yes", "docker-credential-one printed more than dlrun accepts"},
		{"head -c 70000 /dev/zero",
			"docker-credential-one printed more than dlrun accepts"},
	};

	put(".docker/config.json", "{\"credsStore\":\"one\"}", 0600);
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_LOOKUP struct lookup lookup;
		put_helper("one", cases[i].script);
		lookup_init(&lookup);
		find_for(&lookup, "r.example");
		assert_int_equal(lookup.error.id, E_REGISTRY_HELPER);
		assert_string_equal(lookup.error.message, cases[i].message);
	}
}

static void helper_that_cannot_run_is_an_error(void **state)
{
	AUTO_LOOKUP struct lookup lookup;

	put(".docker/config.json", "{\"credsStore\":\"one\"}", 0600);
	put("bin/docker-credential-one", "#!/no/such/interpreter\n", 0755);
	lookup_init(&lookup);
	find_for(&lookup, "r.example");
	assert_int_equal(lookup.error.id, E_REGISTRY_HELPER);
}

/* What a helper leaves behind may keep its output open. */
static void children_of_helpers_are_not_waited_for(void **state)
{
	AUTO_LOOKUP struct lookup lookup;
	AUTO_FREE char *path = fs_join(tmp, "pid");
	AUTO_BUF struct buf text = {0};
	int64_t start_ms = clock_ms();

	put(".docker/config.json", "{\"credsStore\":\"one\"}", 0600);
	put_helper("one", "sleep 60 & echo $! >$TMP/pid\n"
			  "echo '{\"Username\":\"me\",\"Secret\":\"p\"}'");
	lookup_init(&lookup);
	find_for(&lookup, "r.example");
	check_user(&lookup, "me", "docker-credential-one");
	assert_true(clock_ms() - start_ms < 30000);
	assert_int_equal(fs_read(path, 100, &text, NULL, NULL), 0);
	kill((pid_t)strtol(text.data, NULL, 10), SIGKILL);
}

/* Whether the process of the file is gone, or a zombie that somebody else has to wait for. */
static bool has_ended(const char *pid)
{
	AUTO_FREE char *path = mem_printf("/proc/%ld/stat", strtol(pid, NULL, 10));
	AUTO_BUF struct buf text = {0};

	if (fs_read(path, 4096, &text, NULL, NULL) < 0)
		return true;
	const char *paren = strrchr(text.data, ')');
	return paren && paren[1] == ' ' && paren[2] == 'Z';
}

static const char hanging[] = "sleep 60 & echo $! >$TMP/pid.new; mv $TMP/pid.new $TMP/pid; wait";

static void lookup_that_is_given_up_kills(void **state)
{
	AUTO_LOOKUP struct lookup lookup;
	AUTO_FREE char *path = fs_join(tmp, "pid");
	AUTO_BUF struct buf text = {0};

	put(".docker/config.json", "{\"credsStore\":\"one\"}", 0600);
	put_helper("one", hanging);
	lookup_init(&lookup);
	start(&lookup, "r.example");
	UNTIL(exists("pid"));
	assert_int_equal(fs_read(path, 100, &text, NULL, NULL), 0);
	credential_free(TAKE(lookup.lookup));
	UNTIL(has_ended(text.data));
	assert_int_equal(loop_run(lookup.loop, NULL), 0);
	assert_int_equal(lookup.n_calls, 0);
}

struct ended {
	struct helper *helper;
	struct err error;
	int r;
};

static int note_end(void *ctx, int r, struct credential *login, struct err *error, struct err *err)
{
	struct ended *ended = ctx;

	(void)login, (void)err;
	ended->r = r;
	err_move(&ended->error, error);
	helper_free(TAKE(ended->helper));
	return 0;
}

static void slow_helper_is_killed(void **state)
{
	AUTO_FREE char *program = fs_join(tmp, "bin/docker-credential-one");
	AUTO_FREE char *variable = mem_printf("TMP=%s", tmp), *path = fs_join(tmp, "pid");
	const char *const env[] = {variable, "PATH=/usr/bin:/bin", NULL};
	const struct helper_spec spec = {
		.program = program, .name = "one", .key = "k", .env = env, .limit_ms = 2000};
	AUTO_BUF struct buf text = {0};
	struct ended ended = {0};
	struct loop *loop = loop_new();

	put_helper("one", hanging);
	assert_int_equal(helper_start(loop, &spec, note_end, &ended, &ended.helper, NULL), 0);
	assert_int_equal(loop_run(loop, NULL), 0);
	assert_int_equal(ended.r, -ERR_AUTH);
	assert_string_equal(ended.error.message, "docker-credential-one took longer than 2 s");
	assert_int_equal(fs_read(path, 100, &text, NULL, NULL), 0);
	UNTIL(has_ended(text.data));
	err_done(&ended.error);
	loop_free(loop);
}

static void wiping_reaches_all(void **state)
{
	char secret[] = "hunter2";

	secret_wipe(secret, strlen(secret));
	for (size_t i = 0; i < sizeof(secret); i++)
		assert_int_equal(secret[i], 0);
	secret_wipe(NULL, 0);
	secret_free(NULL);
	secret_json_free(NULL);
	secret_buf_done(&(struct buf){0});
	credential_done(NULL);
	credential_free(NULL);
	helper_free(NULL);
}

#define WITH_TMP(name) cmocka_unit_test_setup_teardown(name, make_tmp, remove_tmp)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(keys_name_registries),
		cmocka_unit_test(hub_has_many_names),
		cmocka_unit_test(longest_prefix_wins),
		cmocka_unit_test(auth_is_user_and_password),
		cmocka_unit_test(auth_with_line_breaks),
		cmocka_unit_test(auth_must_be_base64),
		cmocka_unit_test(tokens_are_read),
		cmocka_unit_test(old_file_has_entries_at_the_top),
		cmocka_unit_test(helper_of_the_registry_comes_first),
		cmocka_unit_test(login_of_the_file_stands_by),
		cmocka_unit_test(helper_names_are_restricted),
		cmocka_unit_test(other_files_are_no_files),
		cmocka_unit_test(secrets_have_a_limit),
		cmocka_unit_test(responses_hold_logins),
		cmocka_unit_test(having_none_is_no_failure),
		cmocka_unit_test(bad_responses_are_not_repeated),
		cmocka_unit_test(words_are_cut),
		WITH_TMP(nothing_is_anonymous),
		WITH_TMP(files_come_in_order),
		WITH_TMP(variables_move_files),
		WITH_TMP(repositories_share_logins),
		WITH_TMP(bad_files_are_passed_over),
		WITH_TMP(helper_is_requested),
		WITH_TMP(helper_that_has_none_leads_on),
		WITH_TMP(missing_helper_is_a_warning),
		WITH_TMP(failing_helper_is_an_error),
		WITH_TMP(helper_that_cannot_run_is_an_error),
		WITH_TMP(children_of_helpers_are_not_waited_for),
		WITH_TMP(lookup_that_is_given_up_kills),
		WITH_TMP(slow_helper_is_killed),
		cmocka_unit_test(wiping_reaches_all),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
