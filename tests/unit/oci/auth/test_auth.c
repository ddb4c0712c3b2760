/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/log.h"
#include "base/util/str.h"
#include "oci/auth/auth.h"
#include "tests/unit/httpfix.h"
#include "tests/unit/tmpfix.h"

/*
 * Engines
 */

static void make_challenge(struct challenge_list *list, const char *text)
{
	AUTO_STRV struct strv headers = {0};

	strv_addf(&headers, "www-authenticate: %s", text);
	challenges_parse(&headers, list);
	assert_int_equal(list->n, 1);
}

static void check_url(const char *challenge, const char *scopes, const char *url)
{
	AUTO_CHALLENGES struct challenge_list list = {0};
	AUTO_STRV struct strv merged = {0};
	AUTO_URL struct url got = {0};
	AUTO_ERR struct err err = {0};

	make_challenge(&list, challenge);
	auth_scope_merge(&merged, AUTH_SCOPES_MAX, scopes);
	int r = auth_token_url(list.v, &merged, &got, &err);
	if (!url) {
		assert_int_equal(r, -ERR_REMOTE);
		assert_int_equal(err.id, E_REGISTRY_RESPONSE);
		return;
	}
	assert_int_equal(r, 0);
	AUTO_FREE char *text = url_text(&got);
	assert_string_equal(text, url);
}

static void urls_of_tokens(void **state)
{
	check_url("Bearer realm=\"https://a.example/token\",service=\"r.example\"",
		"repository:me/app:pull,push repository:base:pull",
		"https://a.example/token?service=r.example&scope=repository%3Ame%2Fapp%3Apull%2Cpush"
		"&scope=repository%3Abase%3Apull&client_id=dlrun");
	check_url("Bearer realm=\"https://a.example\"", "", "https://a.example/?client_id=dlrun");
	check_url("Bearer realm=\"https://a.example:8443/t?x=y\",service=\"a b&c=d\"", "",
		"https://a.example:8443/t?x=y&service=a%20b%26c%3Dd&client_id=dlrun");
	check_url("Bearer service=\"r\"", "", NULL);
	check_url("Bearer realm=\"\"", "", NULL);
	check_url("Bearer realm=\"/token\"", "", NULL);
	check_url("Bearer realm=\"ftp://a.example/\"", "", NULL);
	check_url("Bearer realm=\"https://me:pw@a.example/\"", "", NULL);
}

static void long_urls_are_refused(void **state)
{
	AUTO_FREE char *service = mem_alloc(URL_MAX, 1);

	memset(service, 's', URL_MAX - 1);
	AUTO_FREE char *text =
		mem_printf("Bearer realm=\"https://a.example/\",service=\"%s\"", service);
	check_url(text, "", NULL);
}

static void forms_of_tokens(void **state)
{
	AUTO_CHALLENGES struct challenge_list list = {0};
	AUTO_STRV struct strv scopes = {0};
	AUTO_BUF struct buf out = {0};
	char token[] = "a+b/c=\xc3\xbc&x";
	const struct credential login = {.identity_token = token};

	make_challenge(&list, "Bearer realm=\"https://a.example/\",service=\"r.example\"");
	strv_add(&scopes, "repository:a:pull,push");
	strv_add(&scopes, "repository:b:pull");
	buf_init(&out, 4096);
	auth_token_form(list.v, &scopes, &login, &out);
	assert_string_equal(out.data, "grant_type=refresh_token&service=r.example&client_id=dlrun"
				      "&scope=repository%3Aa%3Apull%2Cpush%20repository%3Ab%3Apull"
				      "&refresh_token=a%2Bb%2Fc%3D%C3%BC%26x");
}

static void check_token(const char *text, const char *token, const char *refresh, int64_t life_ms)
{
	AUTO_FREE char *got = NULL, *got_refresh = NULL;
	AUTO_ERR struct err err = {0};
	int64_t got_ms = 0;

	int r = auth_token_parse(text, strlen(text), &got, &got_refresh, &got_ms, &err);
	if (!token) {
		assert_int_equal(r, -ERR_REMOTE);
		assert_int_equal(err.id, E_REGISTRY_RESPONSE);
		assert_null(strstr(err.message, "hunter2"));
		assert_null(got);
		return;
	}
	assert_int_equal(r, 0);
	assert_string_equal(got, token);
	assert_true(str_eq(got_refresh, refresh));
	assert_int_equal(got_ms, life_ms);
}

static void responses_hold_tokens(void **state)
{
	check_token("{\"token\":\"t\"}", "t", NULL, 60000);
	check_token("{\"access_token\":\"a\",\"expires_in\":300}", "a", NULL, 300000);
	check_token("{\"token\":\"t\",\"access_token\":\"a\"}", "t", NULL, 60000);
	check_token("{\"token\":\"\",\"access_token\":\"a\"}", "a", NULL, 60000);
	check_token("{\"token\":\"t\",\"refresh_token\":\"r\"}", "t", "r", 60000);
	check_token("{\"token\":\"t\",\"refresh_token\":\"\"}", "t", NULL, 60000);
	check_token("{\"token\":\"t\",\"expires_in\":0}", "t", NULL, 60000);
	check_token("{\"token\":\"t\",\"expires_in\":-5}", "t", NULL, 60000);
	check_token("{\"token\":\"t\",\"expires_in\":\"x\"}", "t", NULL, 60000);
	check_token("{\"token\":\"t\",\"expires_in\":99999999999}", "t", NULL, 86400000);
	check_token("{\"token\":\"t\",\"expires_in\":1e300}", "t", NULL, 60000);
	check_token("", NULL, NULL, 0);
	check_token("hunter2", NULL, NULL, 0);
	check_token("{}", NULL, NULL, 0);
	check_token("[\"token\"]", NULL, NULL, 0);
	check_token("{\"token\":7}", NULL, NULL, 0);
	check_token("{\"token\":\"a\\r\\nX-Evil: 1\"}", NULL, NULL, 0);
	check_token("{\"token\":\"hunter2 \"}", NULL, NULL, 0);
	check_token("{\"token\":\"\xc3\xbc\"}", NULL, NULL, 0);
}

static void scopes_are_sets(void **state)
{
	AUTO_STRV struct strv scopes = {0};

	assert_true(auth_scope_merge(&scopes, AUTH_SCOPES_MAX, "repository:a/b:pull,push"));
	assert_true(auth_scope_covers(&scopes, "repository:a/b:push"));
	assert_true(auth_scope_covers(&scopes, "repository:a/b:push,pull"));
	assert_false(auth_scope_covers(&scopes, "repository:a/b:delete"));
	assert_false(auth_scope_covers(&scopes, "repository:a/b:pul"));
	assert_false(auth_scope_covers(&scopes, "repository:a/bc:pull"));
	assert_false(auth_scope_covers(&scopes, "repository:a:pull"));
	assert_false(auth_scope_merge(
		&scopes, AUTH_SCOPES_MAX, "repository:a/b:push,pull  repository:a/b:pull"));
	assert_true(auth_scope_merge(
		&scopes, AUTH_SCOPES_MAX, "repository:h:5000/c:pull registry:catalog:*"));
	assert_int_equal(scopes.n, 3);
	/* More of the same takes its place, and so the first stays the first. */
	assert_true(auth_scope_merge(&scopes, AUTH_SCOPES_MAX, "repository:a/b:delete,pull,push"));
	assert_int_equal(scopes.n, 3);
	assert_string_equal(scopes.v[0], "repository:a/b:delete,pull,push");
	assert_false(auth_scope_merge(&scopes, AUTH_SCOPES_MAX, "repository:\x01:pull"));
	assert_false(auth_scope_merge(&scopes, AUTH_SCOPES_MAX, ""));
	for (int i = 0; i < 100; i++) {
		AUTO_FREE char *scope = mem_printf("repository:n%d:pull", i);
		auth_scope_merge(&scopes, AUTH_SCOPES_MAX, scope);
	}
	assert_int_equal(scopes.n, AUTH_SCOPES_MAX);
	AUTO_FREE char *huge = mem_alloc(AUTH_SCOPE_LEN_MAX + 2, 1);
	memset(huge, 'x', AUTH_SCOPE_LEN_MAX + 1);
	strv_done(&scopes);
	assert_false(auth_scope_merge(&scopes, AUTH_SCOPES_MAX, huge));
}

/*
 * A token server
 */

struct reply {
	int status;
	const char *fields; /* each with its line end, or NULL */
	const char *body;
};

enum { REPLIES_MAX = 8 };

/* Set before the first request; the last one is for all that follow. */
static struct reply replies[REPLIES_MAX];
static int n_replies;
static struct strv bodies;

static bool reply_in_turn(struct fix_conn *conn)
{
	struct fix_server *server = conn->server;
	char *body = fix_body(conn);

	if (!body)
		return false;
	pthread_mutex_lock(&server->lock);
	int turn = (int)bodies.n;
	strv_add_take(&bodies, body);
	pthread_mutex_unlock(&server->lock);
	const struct reply *reply = &replies[turn < n_replies ? turn : n_replies - 1];
	if (reply->status == 0) {
		fix_wait_end(conn);
		return false;
	}
	AUTO_FREE char *text =
		mem_printf("HTTP/1.1 %d x\r\n%sContent-Length: %zu\r\n\r\n%s", reply->status,
			reply->fields ? reply->fields : "", strlen(reply->body), reply->body);
	return fix_print(conn, text);
}

static void add_reply(int status, const char *fields, const char *body)
{
	replies[n_replies++] = (struct reply){status, fields, body};
}

/* Everything that was noted, to be searched for secrets. */
static struct strv notes;

static void note_line(void *ctx, const char *line)
{
	strv_add(&notes, line);
}

struct runtime {
	struct fix_server *server;
	struct loop *loop;
	struct http *http;
	struct auth *auth;
	struct url registry;
	struct credential_env env;
	struct strv variables, realms;
	char *challenge; /* Bearer of the server */
};

static struct runtime runtime;

static void put_config(const char *text)
{
	AUTO_FREE char *dir = fs_join(tmp, ".docker");
	AUTO_FREE char *path = fs_join(dir, "config.json");

	assert_int_equal(fs_mkdirs(dir, 0700, NULL), 0);
	assert_int_equal(fs_replace(path, text, strlen(text), 0600, FS_SYNC_NONE, NULL), 0);
}

static void put_password(void)
{
	put_config("{\"auths\":{\"reg.example\":{\"username\":\"me\",\"password\":\"hunter2\"}}}");
}

static int make_runtime(void **state)
{
	make_tmp(state);
	n_replies = 0;
	runtime = (struct runtime){.server = fix_start(reply_in_turn), .loop = loop_new()};
	struct http_options options = {.loop = runtime.loop, .user_agent = "dlrun/test"};
	runtime.http = http_new(&options);
	strv_addf(&runtime.variables, "PATH=%s:/usr/bin:/bin", tmp);
	runtime.env.home = tmp;
	runtime.env.env = (const char *const *)runtime.variables.v;
	AUTO_FREE char *host = mem_printf("localhost:%u", runtime.server->port);
	url_make(false, host, "/", &runtime.registry, NULL);
	runtime.challenge =
		mem_printf("Bearer realm=\"http://%s/token\",service=\"reg.example\"", host);
	log_set_sink(note_line, NULL);
	return 0;
}

static int remove_runtime(void **state)
{
	auth_free(runtime.auth);
	http_free(runtime.http);
	loop_free(runtime.loop);
	fix_stop(runtime.server);
	log_set_sink(NULL, NULL);
	for (size_t i = 0; i < notes.n; i++)
		assert_null(strstr(notes.v[i], "hunter2"));
	strv_done(&notes);
	strv_done(&bodies);
	strv_done(&runtime.variables);
	strv_done(&runtime.realms);
	url_done(&runtime.registry);
	free(runtime.challenge);
	return remove_tmp(state);
}

static void open_auth(const char *remembered)
{
	const struct auth_options options = {.http = runtime.http,
		.loop = runtime.loop,
		.env = &runtime.env,
		.host = "reg.example",
		.repo = "me/app",
		.registry = &runtime.registry,
		.remembered_challenge = remembered};

	runtime.auth = auth_new(&options);
	auth_add_scope(runtime.auth, "repository:me/app:pull,push");
}

/* One who waits. */
struct asker {
	struct auth_wait *wait;
	int n_calls, order;
	char *authorization;
	unsigned generation;
	struct err error;
	int response; /* what ready returns */
	bool frees;
	struct asker *queries; /* who wants, too, when this one is ready */
};
static int last_order;

static int ready(void *ctx, const char *authorization, unsigned generation, struct err *error,
	struct err *err)
{
	struct asker *asker = ctx;

	assert_true(!error || (err_is_set(error) && !authorization));
	asker->n_calls++;
	asker->order = ++last_order;
	asker->wait = NULL;
	free(asker->authorization);
	asker->authorization = mem_strdup(authorization);
	asker->generation = generation;
	err_clear(&asker->error);
	if (error)
		err_move(&asker->error, error);
	if (asker->queries)
		asker->queries->wait = auth_want(runtime.auth, ready, asker->queries);
	if (asker->frees)
		auth_free(TAKE(runtime.auth));
	return asker->response < 0 ? err_set(err, E_CANCELED, "enough") : 0;
}

static void asker_done(struct asker *asker)
{
	free(asker->authorization);
	err_done(&asker->error);
}
#define AUTO_ASKER AUTO(asker_done)

static void run(void)
{
	AUTO_ERR struct err err = {0};

	assert_int_equal(loop_run(runtime.loop, &err), 0);
}

static void want(struct asker *asker)
{
	asker->wait = auth_want(runtime.auth, ready, asker);
}

static void refuse_zone(
	struct asker *asker, const char *challenge, unsigned generation, enum address_zone zone)
{
	AUTO_STRV struct strv headers = {0};

	if (challenge)
		strv_addf(&headers, "www-authenticate: %s", challenge);
	asker->wait = auth_refused(runtime.auth, &headers, zone, generation, ready, asker);
}

static void refuse(struct asker *asker, const char *challenge, unsigned generation)
{
	refuse_zone(asker, challenge, generation, ADDRESS_LOOPBACK);
}

static void check_ready(const struct asker *asker, const char *authorization, unsigned generation)
{
	if (err_is_set(&asker->error))
		print_error("%s\n", asker->error.message);
	assert_int_equal(asker->n_calls, 1);
	assert_false(err_is_set(&asker->error));
	if (!str_eq(asker->authorization, authorization))
		print_error("%s\n", asker->authorization);
	assert_true(str_eq(asker->authorization, authorization));
	assert_int_equal(asker->generation, generation);
}

static void check_error(const struct asker *asker, enum err_id id, const char *message)
{
	assert_int_equal(asker->n_calls, 1);
	if (asker->error.id != id || (message && !str_eq(asker->error.message, message)))
		print_error("%s\n", asker->error.message);
	assert_int_equal(asker->error.id, id);
	if (message)
		assert_string_equal(asker->error.message, message);
	for (size_t i = 0; i < asker->error.n_evidence; i++)
		assert_null(strstr(asker->error.evidence[i], "hunter2"));
	assert_null(strstr(asker->error.message, "hunter2"));
}

static int n_requests(void)
{
	return atomic_load(&runtime.server->n_requests);
}

static const char *head(int i)
{
	assert_true((size_t)i < runtime.server->heads.n);
	return runtime.server->heads.v[i];
}

#define TOKEN(t)    "{\"token\":\"" t "\"}"
#define BASIC_ME    "Basic bWU6aHVudGVyMg=="
#define TARGET_PATH "/token?service=reg.example&scope=repository%3Ame%2Fapp%3Apull%2Cpush"

/*
 * The usual ways
 */

static void nothing_until_it_is_requested_for(void **state)
{
	AUTO_ASKER struct asker first = {0}, second = {0};

	put_password();
	open_auth(NULL);
	assert_null(auth_identity(runtime.auth));
	want(&first);
	check_ready(&first, NULL, 0); /* at once */
	run();
	want(&second);
	check_ready(&second, NULL, 0);
	assert_string_equal(auth_identity(runtime.auth), "me (from ~/.docker/config.json)");
	assert_null(auth_challenge(runtime.auth));
	assert_int_equal(auth_warnings(runtime.auth)->n, 0);
	assert_int_equal(n_requests(), 0);
}

static void password_becomes_a_token(void **state)
{
	AUTO_ASKER struct asker first = {0}, second = {0};

	put_password();
	add_reply(200, NULL, TOKEN("T1"));
	open_auth(NULL);
	auth_add_scope(runtime.auth, "repository:base:pull");
	refuse(&first, runtime.challenge, 0);
	assert_int_equal(first.n_calls, 0);
	run();
	check_ready(&first, "Bearer T1", 1);
	want(&second);
	check_ready(&second, "Bearer T1", 1);
	assert_int_equal(n_requests(), 1);
	assert_true(str_starts(head(0), "GET " TARGET_PATH "&scope=repository%3Abase%3Apull"
					"&client_id=dlrun HTTP/1.1\r\n"));
	assert_non_null(strstr(head(0), "Authorization: " BASIC_ME "\r\n"));
	assert_string_equal(auth_challenge(runtime.auth), runtime.challenge);
}

static void nobody_becomes_a_token(void **state)
{
	AUTO_ASKER struct asker asker = {0};

	add_reply(200, NULL, "{\"access_token\":\"A\"}");
	open_auth(NULL);
	refuse(&asker, runtime.challenge, 0);
	run();
	check_ready(&asker, "Bearer A", 1);
	assert_null(strcasestr(head(0), "authorization"));
	assert_string_equal(auth_identity(runtime.auth), "anonymous");
}

static void put_identity(void)
{
	put_config("{\"auths\":{\"reg.example\":{\"identitytoken\":\"hunter2=\"}}}");
}

static void identity_token_is_posted(void **state)
{
	AUTO_ASKER struct asker first = {0}, second = {0};

	put_identity();
	add_reply(200, NULL, "{\"access_token\":\"A1\",\"refresh_token\":\"hunter2-b\"}");
	add_reply(200, NULL, "{\"access_token\":\"A2\"}");
	open_auth(NULL);
	refuse(&first, runtime.challenge, 0);
	run();
	check_ready(&first, "Bearer A1", 1);
	assert_true(str_starts(head(0), "POST /token HTTP/1.1\r\n"));
	assert_non_null(strstr(head(0), "Content-Type: application/x-www-form-urlencoded\r\n"));
	assert_null(strcasestr(head(0), "authorization"));
	assert_string_equal(bodies.v[0],
		"grant_type=refresh_token&service=reg.example&client_id=dlrun"
		"&scope=repository%3Ame%2Fapp%3Apull%2Cpush&refresh_token=hunter2%3D");
	/* A new one replaces it. */
	refuse(&second, runtime.challenge, 1);
	run();
	check_ready(&second, "Bearer A2", 2);
	assert_true(str_ends(bodies.v[1], "&refresh_token=hunter2-b"));
	assert_string_equal(auth_identity(runtime.auth), "a token (from ~/.docker/config.json)");
}

static void identity_token_falls_back(void **state)
{
	AUTO_ASKER struct asker first = {0}, second = {0};

	put_identity();
	add_reply(404, NULL, "");
	add_reply(200, NULL, TOKEN("T1"));
	add_reply(200, NULL, TOKEN("T2"));
	open_auth(NULL);
	refuse(&first, runtime.challenge, 0);
	run();
	check_ready(&first, "Bearer T1", 1);
	assert_true(str_starts(head(0), "POST "));
	assert_true(str_starts(head(1), "GET "));
	assert_non_null(strstr(head(1), "Authorization: Basic PHRva2VuPjpodW50ZXIyPQ==\r\n"));
	refuse(&second, runtime.challenge, 1);
	run();
	check_ready(&second, "Bearer T2", 2);
	assert_true(str_starts(head(2), "GET "));
}

static void basic_needs_no_server(void **state)
{
	AUTO_ASKER struct asker first = {0}, second = {0}, third = {0};

	put_password();
	open_auth(NULL);
	refuse(&first, "Basic realm=\"here\"", 0);
	run();
	check_ready(&first, BASIC_ME, 1);
	want(&second);
	check_ready(&second, BASIC_ME, 1);
	assert_string_equal(auth_challenge(runtime.auth), "Basic realm=\"here\"");
	refuse(&third, "Basic realm=\"here\"", 1);
	run();
	check_error(&third, E_REGISTRY_AUTH,
		"registry reg.example does not accept the login of me (from "
		"~/.docker/config.json)");
	assert_string_equal(third.error.hint, "docker login reg.example");
	assert_int_equal(n_requests(), 0);
}

static void bearer_is_preferred(void **state)
{
	AUTO_ASKER struct asker asker = {0};
	AUTO_FREE char *both = mem_printf("Basic realm=\"x\", %s", runtime.challenge);

	put_password();
	add_reply(200, NULL, TOKEN("T"));
	open_auth(NULL);
	refuse(&asker, both, 0);
	run();
	check_ready(&asker, "Bearer T", 1);
}

static void registry_token_is_used_as_it_is(void **state)
{
	AUTO_ASKER struct asker first = {0}, second = {0};

	put_config("{\"auths\":{\"reg.example\":{\"registrytoken\":\"hunter2\"}}}");
	open_auth(NULL);
	refuse(&first, runtime.challenge, 0);
	run();
	check_ready(&first, "Bearer hunter2", 1);
	refuse(&second, runtime.challenge, 1);
	run();
	check_error(&second, E_REGISTRY_AUTH,
		"registry reg.example does not accept the login token (from "
		"~/.docker/config.json)");
	assert_int_equal(n_requests(), 0);
}

/*
 * Many who wait
 */

static void all_share_one_token(void **state)
{
	struct asker askers[5] = {0};

	put_password();
	add_reply(200, NULL, TOKEN("T1"));
	add_reply(200, NULL, TOKEN("T2"));
	open_auth(NULL);
	for (unsigned round = 0; round < 2; round++) {
		int before = last_order;
		for (int i = 0; i < 5; i++) {
			askers[i].n_calls = 0;
			if (i == 3)
				want(&askers[i]);
			else
				refuse(&askers[i], runtime.challenge, round);
		}
		run();
		for (int i = 0; i < 5; i++) {
			check_ready(&askers[i], round ? "Bearer T2" : "Bearer T1", round + 1);
			assert_int_equal(askers[i].order, before + 1 + i);
		}
		assert_int_equal(n_requests(), round + 1);
	}
	/* The old ones are answered with what there is. */
	askers[0].n_calls = askers[1].n_calls = 0;
	refuse(&askers[0], runtime.challenge, 0);
	refuse(&askers[1], runtime.challenge, 1);
	run();
	check_ready(&askers[0], "Bearer T2", 2);
	check_ready(&askers[1], "Bearer T2", 2);
	assert_int_equal(n_requests(), 2);
	for (int i = 0; i < 5; i++)
		asker_done(&askers[i]);
}

static void cancelled_ones_hear_nothing(void **state)
{
	struct asker askers[3] = {0};

	add_reply(200, NULL, TOKEN("T"));
	open_auth(NULL);
	for (int i = 0; i < 3; i++)
		refuse(&askers[i], runtime.challenge, 0);
	auth_cancel(askers[2].wait);
	auth_cancel(askers[0].wait);
	auth_cancel(NULL);
	run();
	assert_int_equal(askers[0].n_calls + askers[2].n_calls, 0);
	check_ready(&askers[1], "Bearer T", 1);
	asker_done(&askers[1]);
}

static void scope_added_meanwhile_is_requested_for(void **state)
{
	AUTO_ASKER struct asker first = {0}, second = {0};

	add_reply(200, NULL, TOKEN("T1"));
	add_reply(200, NULL, TOKEN("T2"));
	open_auth(NULL);
	refuse(&first, runtime.challenge, 0);
	run();
	check_ready(&first, "Bearer T1", 1);
	auth_add_scope(runtime.auth, "repository:base:pull");
	auth_add_scope(runtime.auth, "repository:base:pull");
	want(&second);
	assert_int_equal(second.n_calls, 0);
	run();
	check_ready(&second, "Bearer T2", 2);
	assert_non_null(strstr(head(1), "repository%3Abase%3Apull"));
	assert_int_equal(n_requests(), 2);
}

/* Some token servers give nothing where one of the scopes is not allowed. */
static void scopes_that_are_refused_together_are_excluded(void **state)
{
	AUTO_ASKER struct asker first = {0}, second = {0}, third = {0};
	AUTO_FREE char *base =
		mem_printf("%s,scope=\"repository:base:pull\",error=\"insufficient_scope\"",
			runtime.challenge);

	put_password();
	add_reply(403, NULL, "{\"errors\":[{\"code\":\"DENIED\"}]}");
	add_reply(200, NULL, TOKEN("T1"));
	open_auth(NULL);
	auth_add_scope(runtime.auth, "repository:base:pull");
	auth_allow_fewer_scopes(runtime.auth);
	refuse(&first, runtime.challenge, 0);
	run();
	check_ready(&first, "Bearer T1", 1);
	assert_true(str_starts(head(0), "GET " TARGET_PATH "&scope=repository%3Abase%3Apull&"));
	assert_true(str_starts(head(1), "GET " TARGET_PATH "&client_id=dlrun HTTP/1.1\r\n"));
	refuse(&second, base, 1);
	run();
	check_error(&second, E_REGISTRY_DENIED,
		"registry reg.example accepts the login of me (from ~/.docker/config.json), but not "
		"for repository:base:pull");
	auth_add_scope(runtime.auth, "repository:other:pull");
	want(&third);
	check_ready(&third, "Bearer T1", 1);
	assert_int_equal(n_requests(), 2);
}

static void scopes_that_are_all_needed_are_refused_together(void **state)
{
	AUTO_ASKER struct asker asker = {0};

	put_password();
	add_reply(401, NULL, "");
	open_auth(NULL);
	auth_add_scope(runtime.auth, "repository:base:pull");
	refuse(&asker, runtime.challenge, 0);
	run();
	check_error(&asker, E_REGISTRY_AUTH, NULL);
	assert_int_equal(n_requests(), 1);
}

/* Free it while a token is on its way: in a timer, so that the call has been made. */
static int free_it(void *ctx, struct err *err)
{
	if (n_requests() == 0) {
		loop_add_timer(runtime.loop, clock_ms() + 5, free_it, ctx);
		return 0;
	}
	auth_free(TAKE(runtime.auth));
	return 0;
}

static void free_with_waits_is_safe(void **state)
{
	AUTO_ASKER struct asker first = {0}, second = {0};

	put_password();
	add_reply(0, NULL, "");
	open_auth(NULL);
	refuse(&first, runtime.challenge, 0);
	refuse(&second, runtime.challenge, 0);
	loop_add_timer(runtime.loop, clock_ms(), free_it, NULL);
	run();
	assert_int_equal(first.n_calls + second.n_calls, 0);
}

static void free_from_within_is_safe(void **state)
{
	AUTO_ASKER struct asker first = {.frees = true}, second = {0}, at_once = {.frees = true};

	add_reply(200, NULL, TOKEN("T"));
	open_auth(NULL);
	refuse(&first, runtime.challenge, 0);
	refuse(&second, runtime.challenge, 0);
	run();
	check_ready(&first, "Bearer T", 1);
	assert_int_equal(second.n_calls, 0);
	open_auth(NULL);
	want(&at_once);
	assert_null(runtime.auth);
	assert_int_equal(at_once.n_calls, 1);
	run();
}

static void free_from_deep_within_is_safe(void **state)
{
	AUTO_ASKER struct asker inner = {.frees = true}, outer = {.queries = &inner};

	add_reply(200, NULL, TOKEN("T"));
	open_auth(NULL);
	refuse(&outer, runtime.challenge, 0);
	run();
	check_ready(&outer, "Bearer T", 1);
	check_ready(&inner, "Bearer T", 1);
	assert_null(runtime.auth);
}

static void negative_responses_end_the_loop(void **state)
{
	AUTO_ASKER struct asker at_once = {.response = -1}, later = {.response = -1};
	AUTO_ERR struct err err = {0};

	add_reply(200, NULL, TOKEN("T"));
	open_auth(NULL);
	want(&at_once);
	assert_int_equal(loop_run(runtime.loop, &err), -ERR_CANCELED);
	assert_string_equal(err.message, "enough");
	refuse(&later, runtime.challenge, 0);
	assert_int_equal(loop_run(runtime.loop, &err), -ERR_CANCELED);
	assert_int_equal(later.n_calls, 1);
}

/*
 * Time
 */

static void token_is_renewed_ahead(void **state)
{
	AUTO_ASKER struct asker asker = {0};
	int64_t start_ms = clock_ms();

	add_reply(200, NULL, "{\"token\":\"T1\",\"expires_in\":1}");
	add_reply(200, NULL, TOKEN("T2"));
	open_auth(NULL);
	refuse(&asker, runtime.challenge, 0);
	run();
	check_ready(&asker, "Bearer T1", 1);
	while (asker.generation == 1) {
		want(&asker);
		run();
		poll(NULL, 0, 10);
	}
	assert_string_equal(asker.authorization, "Bearer T2");
	assert_true(clock_ms() - start_ms >= 850);
	assert_int_equal(n_requests(), 2);
}

static void remembered_challenge_needs_no_refusal(void **state)
{
	AUTO_ASKER struct asker asker = {0};

	put_password();
	add_reply(200, NULL, TOKEN("T"));
	open_auth(runtime.challenge);
	assert_string_equal(auth_challenge(runtime.auth), runtime.challenge);
	run();
	assert_int_equal(n_requests(), 1); /* nobody has asked yet */
	want(&asker);
	check_ready(&asker, "Bearer T", 1);
	assert_int_equal(n_requests(), 1);
}

static void check_forgotten(const char *remembered)
{
	AUTO_ASKER struct asker first = {0}, second = {0};

	put_password();
	open_auth(remembered);
	want(&first);
	run();
	check_ready(&first, NULL, 0);
	refuse(&second, "Basic realm=\"x\"", 0);
	run();
	check_ready(&second, BASIC_ME, 1);
	auth_free(TAKE(runtime.auth));
}

static void wrong_memories_are_forgotten(void **state)
{
	add_reply(401, NULL, "");
	check_forgotten(runtime.challenge);
	add_reply(200, NULL, "nonsense");
	check_forgotten(runtime.challenge);
	check_forgotten("Bearer realm=\"http://elsewhere.example/\"");
	check_forgotten("Bearer");
	check_forgotten("Negotiate");
	check_forgotten("\x01,,=\"");
}

/*
 * Refusals
 */

static void wrong_password_is_said(void **state)
{
	AUTO_ASKER struct asker first = {0}, second = {0}, third = {0};
	static const char message[] = "registry reg.example does not accept the login of me (from "
				      "~/.docker/config.json)";

	put_password();
	add_reply(401, NULL, "{\"details\":\"hunter2 is wrong\"}");
	open_auth(NULL);
	refuse(&first, runtime.challenge, 0);
	refuse(&second, runtime.challenge, 0);
	run();
	check_error(&first, E_REGISTRY_AUTH, message);
	check_error(&second, E_REGISTRY_AUTH, message);
	assert_string_equal(first.error.hint, "docker login reg.example");
	/* It is not tried again and again, which locks accounts. */
	want(&third);
	run();
	check_error(&third, E_REGISTRY_AUTH, message);
	assert_int_equal(n_requests(), 1);
}

static void missing_login_is_said(void **state)
{
	static const char message[] =
		"registry reg.example requires a login, and none is configured";
	AUTO_ASKER struct asker basic = {0}, token = {0}, refused = {0};

	put_config("{\"credsStore\":\"missing\"}");
	open_auth(NULL);
	refuse(&basic, "Basic realm=\"x\"", 0);
	run();
	check_error(&basic, E_REGISTRY_AUTH, message);
	assert_string_equal(basic.error.hint, "docker login reg.example");
	assert_int_equal(basic.error.n_evidence, 1);
	assert_non_null(strstr(basic.error.evidence[0], "is not installed"));
	assert_int_equal(auth_warnings(runtime.auth)->n, 1);
	add_reply(401, NULL, "");
	add_reply(200, NULL, TOKEN("T"));
	refuse(&token, runtime.challenge, 0);
	run();
	check_error(&token, E_REGISTRY_AUTH, message);
	/* An anonymous token that is too small. */
	token.n_calls = 0;
	want(&token);
	run();
	check_ready(&token, "Bearer T", 1);
	AUTO_FREE char *small = mem_printf("%s,error=\"insufficient_scope\"", runtime.challenge);
	refuse(&refused, small, 1);
	run();
	check_error(&refused, E_REGISTRY_AUTH, message);
}

static void fresh_tokens_that_are_refused_are_denied(void **state)
{
	AUTO_ASKER struct asker first = {0}, second = {0}, third = {0}, fourth = {0};

	put_password();
	add_reply(200, NULL, TOKEN("T1"));
	add_reply(200, NULL, TOKEN("T2"));
	open_auth(NULL);
	refuse(&first, runtime.challenge, 0);
	run();
	refuse(&second, runtime.challenge, 1);
	run();
	check_ready(&second, "Bearer T2", 2);
	refuse(&third, runtime.challenge, 2);
	run();
	check_error(&third, E_REGISTRY_DENIED,
		"registry reg.example accepts the login of me (from ~/.docker/config.json), but not "
		"for repository:me/app:pull,push");
	/* That was about one request; others go on. */
	want(&fourth);
	check_ready(&fourth, "Bearer T2", 2);
	assert_int_equal(n_requests(), 2);
}

static void too_small_a_scope_is_denied_or_added(void **state)
{
	AUTO_ASKER struct asker first = {0}, second = {0}, third = {0};
	AUTO_FREE char *same =
		mem_printf("%s,scope=\"repository:me/app:push\",error=\"insufficient_scope\"",
			runtime.challenge);
	AUTO_FREE char *more = mem_printf(
		"%s,scope=\"repository:me/app:delete,pull,push\",error=\"insufficient_scope\"",
		runtime.challenge);

	put_password();
	add_reply(200, NULL, TOKEN("T1"));
	add_reply(200, NULL, TOKEN("T2"));
	open_auth(NULL);
	refuse(&first, runtime.challenge, 0);
	run();
	refuse(&second, same, 1);
	run();
	check_error(&second, E_REGISTRY_DENIED,
		"registry reg.example accepts the login of me (from ~/.docker/config.json), but not "
		"for repository:me/app:push");
	refuse(&third, more, 1);
	run();
	check_ready(&third, "Bearer T2", 2);
	assert_non_null(strstr(head(1), "scope=repository%3Ame%2Fapp%3Adelete%2Cpull%2Cpush&"));
}

/* Whoever comes while it is renewed waits for the new one, whatever the old one lacked. */
static void refusals_meanwhile_wait(void **state)
{
	AUTO_ASKER struct asker first = {0}, second = {0}, third = {0};
	AUTO_FREE char *small = mem_printf("%s,error=\"insufficient_scope\"", runtime.challenge);

	put_password();
	add_reply(200, NULL, TOKEN("T1"));
	add_reply(200, NULL, TOKEN("T2"));
	open_auth(NULL);
	refuse(&first, runtime.challenge, 0);
	run();
	refuse(&second, runtime.challenge, 1);
	refuse(&third, small, 1);
	run();
	check_ready(&second, "Bearer T2", 2);
	check_ready(&third, "Bearer T2", 2);
	assert_int_equal(n_requests(), 2);
}

static void unknown_schemes_are_said(void **state)
{
	static const char *const cases[] = {NULL, "Negotiate", "Digest realm=\"x\""};

	put_password();
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_ASKER struct asker asker = {0};
		open_auth(NULL);
		refuse(&asker, cases[i], 0);
		run();
		check_error(&asker, E_REGISTRY_RESPONSE,
			"registry reg.example requires a login but offers neither Basic nor Bearer");
		auth_free(TAKE(runtime.auth));
	}
}

static void failing_helper_is_said(void **state)
{
	AUTO_FREE char *path = fs_join(tmp, "docker-credential-one");
	AUTO_ASKER struct asker first = {0}, second = {0};
	static const char script[] = "#!/bin/sh\nexit 9\n";

	assert_int_equal(fs_replace(path, script, strlen(script), 0755, FS_SYNC_NONE, NULL), 0);
	put_config("{\"credsStore\":\"one\"}");
	open_auth(NULL);
	want(&first);
	check_ready(&first, NULL, 0);
	refuse(&second, runtime.challenge, 0);
	run();
	check_error(&second, E_REGISTRY_HELPER, "docker-credential-one failed with exit status 9");
	assert_int_equal(n_requests(), 0);
}

/*
 * Token servers that fail or mislead
 */

static void check_response(
	int status, const char *fields, const char *body, enum err_id id, int n_requested)
{
	AUTO_ASKER struct asker asker = {0};
	int before = n_requests();

	put_password();
	n_replies = 0;
	add_reply(status, fields, body);
	open_auth(NULL);
	refuse(&asker, runtime.challenge, 0);
	run();
	check_error(&asker, id, NULL);
	assert_int_equal(n_requests() - before, n_requested);
	auth_free(TAKE(runtime.auth));
}

static void bad_responses_are_errors(void **state)
{
	AUTO_FREE char *big = mem_alloc(AUTH_TOKEN_BODY_MAX + 2, 1);

	memset(big, ' ', AUTH_TOKEN_BODY_MAX + 1);
	check_response(200, NULL, big, E_HTTP_LIMIT, 1);
	check_response(200, NULL, "<html>hunter2</html>", E_REGISTRY_RESPONSE, 1);
	check_response(200, NULL, TOKEN("a\\r\\nb"), E_REGISTRY_RESPONSE, 1);
	check_response(204, NULL, "", E_REGISTRY_RESPONSE, 1);
	check_response(400, NULL, "hunter2", E_REGISTRY_RESPONSE, 1);
	check_response(403, NULL, "hunter2", E_REGISTRY_DENIED, 1);
	check_response(404, NULL, "", E_REGISTRY_RESPONSE, 1);
	check_response(501, NULL, "", E_REGISTRY_RESPONSE, 1);
	check_response(429, "Retry-After: 0\r\n", "", E_REGISTRY_UNREACHABLE, 4);
	check_response(503, "Retry-After: 0\r\n", "hunter2", E_REGISTRY_UNREACHABLE, 4);
}

static void busy_server_is_requested_again(void **state)
{
	AUTO_ASKER struct asker asker = {0};

	add_reply(503, NULL, "");
	add_reply(429, "Retry-After: 0\r\n", "");
	add_reply(200, NULL, TOKEN("T"));
	open_auth(NULL);
	refuse(&asker, runtime.challenge, 0);
	run();
	check_ready(&asker, "Bearer T", 1);
	assert_int_equal(n_requests(), 3);
}

static void redirects_get_nothing(void **state)
{
	struct fix_server *other = fix_start(reply_in_turn);
	AUTO_FREE char *location = mem_printf("Location: http://localhost:%u/t\r\n", other->port);

	check_response(302, location, "", E_REGISTRY_RESPONSE, 1);
	check_response(307, location, "", E_REGISTRY_RESPONSE, 1);
	put_identity();
	AUTO_ASKER struct asker asker = {0};
	open_auth(NULL);
	refuse(&asker, runtime.challenge, 0);
	run();
	check_error(&asker, E_REGISTRY_RESPONSE, NULL);
	assert_int_equal(other->n_conns, 0);
	fix_stop(other);
}

static void check_realm(
	const char *registry, const char *realm, enum address_zone zone, enum err_id id)
{
	AUTO_ASKER struct asker asker = {0};
	AUTO_FREE char *challenge = mem_printf("Bearer realm=\"%s\"", realm);
	int before = runtime.server->n_conns;

	url_done(&runtime.registry);
	assert_int_equal(url_parse(registry, "it", &runtime.registry, NULL), 0);
	open_auth(NULL);
	refuse_zone(&asker, challenge, 0, zone);
	run();
	check_error(&asker, id, NULL);
	assert_int_equal(runtime.server->n_conns, before);
	auth_free(TAKE(runtime.auth));
}

static void realms_lead_nowhere_else(void **state)
{
	AUTO_FREE char *plain = mem_printf("http://localhost:%u/token", runtime.server->port);
	AUTO_FREE char *tls = mem_printf("https://127.0.0.1:%u/token", runtime.server->port);

	put_password();
	/* Without TLS, when the registry has it; or to another host. */
	check_realm("https://localhost/", plain, ADDRESS_LOOPBACK, E_REGISTRY_RESPONSE);
	check_realm("http://reg.example/", plain, ADDRESS_LOOPBACK, E_REGISTRY_RESPONSE);
	check_realm(
		"http://localhost/", "http://evil.example/", ADDRESS_LOOPBACK, E_REGISTRY_RESPONSE);
	/* To another site, this machine included. */
	check_realm("https://reg.example/", tls, ADDRESS_PUBLIC, E_REGISTRY_REALM);
	check_realm(
		"https://reg.example/", "https://evil.example/", ADDRESS_PUBLIC, E_REGISTRY_REALM);
	check_realm("https://reg.example/", "https://reg.example.evil/", ADDRESS_PUBLIC,
		E_REGISTRY_REALM);
	check_realm(
		"http://localhost/", "https://evil.example/", ADDRESS_LOOPBACK, E_REGISTRY_REALM);
	check_realm(
		"https://reg.example/", "file:///etc/passwd", ADDRESS_PUBLIC, E_REGISTRY_RESPONSE);
	check_realm("https://reg.example/", "", ADDRESS_PUBLIC, E_REGISTRY_RESPONSE);
}

static void allow_realm(const char *realm)
{
	strv_add(&runtime.realms, realm);
	runtime.env.realms = &runtime.realms;
}

/* Who is allowed gets the login wherever he is, but not without TLS. */
static void allowed_realms_get_the_login(void **state)
{
	static const char closed[] = "https://127.0.0.1:1/token";
	AUTO_FREE char *plain = mem_printf("http://localhost:%u/token", runtime.server->port);

	put_password();
	allow_realm("127.0.0.1:2");
	allow_realm("Localhost");
	check_realm("https://reg.example/", closed, ADDRESS_PUBLIC, E_REGISTRY_REALM);
	check_realm("https://reg.example/", plain, ADDRESS_PUBLIC, E_REGISTRY_RESPONSE);
	allow_realm("127.0.0.1:1");
	/* Nobody is there; but it was tried. */
	check_realm("https://reg.example/", closed, ADDRESS_PUBLIC, E_HTTP_CONNECT);
}

/* Without a login anybody may be asked, but nobody inwards. */
static void nobody_is_led_inwards(void **state)
{
	AUTO_FREE char *tls = mem_printf("https://127.0.0.1:%u/token", runtime.server->port);

	check_realm("https://reg.example/", tls, ADDRESS_PUBLIC, E_HTTP_ZONE);
	check_realm("https://reg.example/", tls, ADDRESS_PRIVATE, E_HTTP_ZONE);
	check_realm(
		"https://reg.example/", "https://169.254.169.254/", ADDRESS_LOOPBACK, E_HTTP_ZONE);
	check_realm("https://reg.example/", "https://10.0.0.1/", ADDRESS_PUBLIC, E_HTTP_ZONE);
	check_realm("https://reg.example/", "https://[fe80::1]/", ADDRESS_PUBLIC, E_HTTP_ZONE);
}

/* Both ways round. */
static void check_site(bool same, const char *a, const char *b)
{
	if (auth_is_same_site(a, b) != same || auth_is_same_site(b, a) != same)
		fail_msg("%s and %s are %sone site", a, b, same ? "" : "not ");
}

static void sites_are_registered_domains(void **state)
{
	/* As registries are. */
	check_site(true, "registry-1.docker.io", "auth.docker.io");
	check_site(true, "ghcr.io", "ghcr.io");
	check_site(true, "us-docker.pkg.dev", "us-docker.pkg.dev");
	check_site(true, "me.azurecr.io", "me.azurecr.io");
	check_site(true, "registry.gitlab.com", "gitlab.com");
	check_site(true, "registry.digitalocean.com", "api.digitalocean.com");
	check_site(
		true, "registry.cn-hangzhou.aliyuncs.com", "dockerauth.cn-hangzhou.aliyuncs.com");
	check_site(true, "docker.elastic.co", "docker-auth.elastic.co");
	check_site(true, "registry.lab.uni.ac.uk", "sso.uni.ac.uk");
	check_site(true, "registry.corp.com.cn", "auth.corp.com.cn");
	check_site(true, "registry.example.com.", "auth.example.com");
	check_site(true, "registry", "registry");
	check_site(true, "10.0.0.1", "10.0.0.1");
	check_site(true, "fd00::1", "fd00::1");
	check_site(true, "registry.io", "auth.registry.io");
	/* As strangers are. */
	check_site(false, "docker.io", "dockerxio");
	check_site(false, "docker.io", "evildocker.io");
	check_site(false, "docker.io", "docker.io.evil.com");
	check_site(false, "registry.docker.com", "auth.docker.io");
	check_site(false, "me.azurecr.io", "you.azurecr.io");
	check_site(false, "me.github.io", "you.github.io");
	check_site(false, "me.github.io", "github.io");
	check_site(false, "10.0.0.1.nip.io", "66.0.0.1.nip.io");
	check_site(false, "me.co.uk", "you.co.uk");
	check_site(false, "me.com.cn", "com.cn");
	check_site(false, "a.com", "b.com");
	check_site(false, "a.com", "com");
	check_site(false, "registry", "auth");
	check_site(false, "10.0.0.1", "10.0.0.2");
	check_site(false, "10.0.0.1", "20.0.0.1");
	check_site(false, "127.0.0.1", "66.7.0.1");
	check_site(false, "fd00::1", "fd00::2");
	check_site(false, "1.2.3.4", "x.3.4");
	check_site(false, "a.ns.svc.cluster.local", "b.other.svc.cluster.local");
}

/* Another name of this machine, as in a laboratory's own set-up. */
static void loopback_may_use_loopback(void **state)
{
	AUTO_ASKER struct asker asker = {0};
	AUTO_FREE char *challenge =
		mem_printf("Bearer realm=\"http://127.0.0.1:%u/t\"", runtime.server->port);

	put_password();
	add_reply(200, NULL, TOKEN("T"));
	open_auth(NULL);
	refuse(&asker, challenge, 0);
	run();
	check_ready(&asker, "Bearer T", 1);
}

static void quotes_survive_the_memory(void **state)
{
	AUTO_ASKER struct asker asker = {0};
	AUTO_CHALLENGES struct challenge_list list = {0};

	put_password();
	open_auth(NULL);
	refuse(&asker, "Basic realm=\"a \\\"b\\\" \\\\ c\", charset=\"UTF-8\"", 0);
	run();
	assert_string_equal(auth_challenge(runtime.auth), "Basic realm=\"a \\\"b\\\" \\\\ c\"");
	make_challenge(&list, auth_challenge(runtime.auth));
	assert_string_equal(challenge_param(list.v, "realm"), "a \"b\" \\ c");
}

#define IN_RUNTIME(name) cmocka_unit_test_setup_teardown(name, make_runtime, remove_runtime)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(urls_of_tokens),
		cmocka_unit_test(long_urls_are_refused),
		cmocka_unit_test(forms_of_tokens),
		cmocka_unit_test(responses_hold_tokens),
		cmocka_unit_test(scopes_are_sets),
		IN_RUNTIME(nothing_until_it_is_requested_for),
		IN_RUNTIME(password_becomes_a_token),
		IN_RUNTIME(nobody_becomes_a_token),
		IN_RUNTIME(identity_token_is_posted),
		IN_RUNTIME(identity_token_falls_back),
		IN_RUNTIME(basic_needs_no_server),
		IN_RUNTIME(bearer_is_preferred),
		IN_RUNTIME(registry_token_is_used_as_it_is),
		IN_RUNTIME(all_share_one_token),
		IN_RUNTIME(cancelled_ones_hear_nothing),
		IN_RUNTIME(scope_added_meanwhile_is_requested_for),
		IN_RUNTIME(scopes_that_are_refused_together_are_excluded),
		IN_RUNTIME(scopes_that_are_all_needed_are_refused_together),
		IN_RUNTIME(free_with_waits_is_safe),
		IN_RUNTIME(free_from_within_is_safe),
		IN_RUNTIME(free_from_deep_within_is_safe),
		IN_RUNTIME(negative_responses_end_the_loop),
		IN_RUNTIME(token_is_renewed_ahead),
		IN_RUNTIME(remembered_challenge_needs_no_refusal),
		IN_RUNTIME(wrong_memories_are_forgotten),
		IN_RUNTIME(wrong_password_is_said),
		IN_RUNTIME(missing_login_is_said),
		IN_RUNTIME(fresh_tokens_that_are_refused_are_denied),
		IN_RUNTIME(too_small_a_scope_is_denied_or_added),
		IN_RUNTIME(refusals_meanwhile_wait),
		IN_RUNTIME(unknown_schemes_are_said),
		IN_RUNTIME(failing_helper_is_said),
		IN_RUNTIME(bad_responses_are_errors),
		IN_RUNTIME(busy_server_is_requested_again),
		IN_RUNTIME(redirects_get_nothing),
		IN_RUNTIME(realms_lead_nowhere_else),
		IN_RUNTIME(allowed_realms_get_the_login),
		IN_RUNTIME(nobody_is_led_inwards),
		cmocka_unit_test(sites_are_registered_domains),
		IN_RUNTIME(loopback_may_use_loopback),
		IN_RUNTIME(quotes_survive_the_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
