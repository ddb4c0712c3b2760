/* SPDX-License-Identifier: Apache-2.0 */
#include "net/s3/s3_login.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "base/loop/proc.h"
#include "base/loop/task.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/s3/s3_xml.h"

enum s3_source {
	S3_NO_SOURCE,
	S3_FROM_ENV,
	S3_FROM_WEB,
	S3_FROM_FILE,
	S3_FROM_PROCESS,
	S3_FROM_CONTAINER,
	S3_FROM_INSTANCE,
};

struct s3_login_wait {
	s3_login_fn *ready;
	void *ctx;
};

struct s3_login {
	struct loop *loop;
	struct http *http;
	const char *const *env;
	const struct s3_profile *profile;
	enum s3_source source;
	struct s3_keys keys;
	bool has_keys, is_busy; /* is_busy: a fetch goes on */
	unsigned generation;
	struct VEC_OF(struct s3_login_wait) waits;
	/* Of the present fetch. */
	struct http_call *call;
	struct task *task;
	char *command;
	struct buf output;
	char *metadata_token;
	char *shown;
};

static const char s3_none_hint[] = "aws configure";

/*
 * Responses of sources
 */

static bool s3_keys_are_proper(const struct s3_keys *keys)
{
	return !str_empty(keys->id) && !str_empty(keys->secret) && str_is_plain(keys->id) &&
	       (!keys->token || str_is_plain(keys->token));
}

static int s3_keys_set(struct s3_keys *ret, const char *id, const char *secret, const char *token,
	const char *expires, struct err *err)
{
	struct s3_keys keys = {.id = mem_strdup(id), .secret = mem_strdup(secret)};
	int r = 0;

	if (!str_empty(token))
		keys.token = mem_strdup(token);
	if (!str_empty(expires) && clock_parse(expires, &keys.expires_ms, err) < 0)
		r = err_set(
			err, E_S3_CREDENTIALS, "the time at which the keys expire is not a time");
	else if (!s3_keys_are_proper(&keys))
		r = err_set(err, E_S3_CREDENTIALS, "no AccessKeyId and SecretAccessKey in it");
	if (r < 0) {
		s3_keys_done(&keys);
		return r;
	}
	s3_keys_done(ret);
	*ret = keys;
	return 0;
}

int s3_login_parse_json(const char *text, size_t len, struct s3_keys *ret, struct err *err)
{
	AUTO_JSON struct json *json = NULL;
	int r = json_parse(text, len, S3_LOGIN_BODY_MAX, "the keys", &json, err);

	if (r < 0)
		return err_set(err, E_S3_CREDENTIALS, "it is not JSON");
	const char *token = json_get_str(json, "Token");
	return s3_keys_set(ret, json_get_str(json, "AccessKeyId"),
		json_get_str(json, "SecretAccessKey"),
		token ? token : json_get_str(json, "SessionToken"),
		json_get_str(json, "Expiration"), err);
}

int s3_login_parse_sts(const char *text, size_t len, struct s3_keys *ret, struct err *err)
{
	static const char *const names[] = {
		"AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration"};
	char *found[ARRAY_LEN(names)];

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		AUTO_FREE char *path = mem_printf(
			"AssumeRoleWithWebIdentityResponse/AssumeRoleWithWebIdentityResult/"
			"Credentials/%s",
			names[i]);
		found[i] = s3_xml_find(text, len, path);
	}
	int r = s3_keys_set(ret, found[0], found[1], found[2], found[3], err);
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		if (found[i])
			explicit_bzero(found[i], strlen(found[i]));
		free(found[i]);
	}
	return r;
}

/*
 * The end of a fetch
 */

static int s3_login_notify(struct s3_login *login, struct err *error, struct err *err)
{
	int r = 0;

	/* A waiter that is called may wait again, or end the others. */
	for (size_t n = login->waits.n; n > 0 && login->waits.n > 0 && r == 0; n--) {
		struct s3_login_wait wait = login->waits.v[0];
		AUTO_ERR struct err own = {0};

		login->waits.n--;
		memmove(login->waits.v, login->waits.v + 1,
			login->waits.n * sizeof(*login->waits.v));
		if (err_is_set(error))
			err_copy(&own, error);
		r = wait.ready(wait.ctx, err_is_set(error) ? NULL : &login->keys, login->generation,
			&own, err);
	}
	return r;
}

static int s3_login_end(struct s3_login *login, int r, struct err *error, struct err *err)
{
	/* Keys are renewed ahead: those that are there do until their source responds again. */
	if (r < 0 && login->has_keys && login->keys.expires_ms > clock_wall_ms()) {
		err_clear(error);
		r = 0;
	}
	login->is_busy = false;
	login->has_keys = r == 0;
	login->generation += r == 0;
	/* The instance is asked last: where it has none, there are none anywhere. */
	if (r < 0 && login->source == S3_FROM_INSTANCE)
		err_prefix(error, "keys for AWS");
	else if (r < 0)
		err_prefix(error, "keys for AWS from %s", s3_login_source(login));
	return s3_login_notify(login, error, err);
}

static int s3_login_fail_response(
	const struct http_response *response, const char *whom, struct err *err)
{
	if (response->status == 0)
		return err_set(err, E_S3_CREDENTIALS, "%s", response->error.message);
	AUTO_FREE char *code =
		s3_xml_find(response->body.data, response->body.len, "ErrorResponse/Error/Message");
	AUTO_FREE char *shown = code ? str_shown(code) : NULL;
	return err_set(err, E_S3_CREDENTIALS, "%s responds with status %d%s%s", whom,
		response->status, shown ? ": " : "", shown ? shown : "");
}

/*
 * HTTP
 */

static int s3_login_send(struct s3_login *login, const struct http_request *request,
	const char *text, int64_t limit_ms, struct err *err)
{
	AUTO_URL struct url url = {0};
	struct http_request own = *request;
	int r = url_parse(text, "the source of keys for AWS", &url, err);

	if (r < 0)
		return r;
	own.url = &url;
	own.tls = &login->profile->tls;
	own.max_body = S3_LOGIN_BODY_MAX;
	own.deadline_ms = clock_deadline(limit_ms);
	own.ctx = login;
	login->call = http_start(login->http, &own);
	return 0;
}

static int s3_login_on_keys(void *ctx, struct http_response *response, struct err *err)
{
	struct s3_login *login = ctx;
	bool is_web = login->source == S3_FROM_WEB;
	AUTO_ERR struct err error = {0};
	int r;

	login->call = NULL;
	if (response->status != 200)
		r = s3_login_fail_response(response, is_web ? "STS" : "it", &error);
	else
		r = (is_web ? s3_login_parse_sts : s3_login_parse_json)(
			response->body.data, response->body.len, &login->keys, &error);
	explicit_bzero(response->body.data, response->body.len);
	return s3_login_end(login, r, &error, err);
}

/*
 * The instance: a token, the name of its role, the role's keys
 */

static char *s3_metadata_url(const struct s3_login *login, const char *path)
{
	const char *base = env_get(login->env, "AWS_EC2_METADATA_SERVICE_ENDPOINT");

	if (str_empty(base))
		base = "http://169.254.169.254";
	size_t len = strlen(base);
	return mem_printf("%.*s%s", (int)(len - (base[len - 1] == '/')), base, path);
}

static int s3_metadata_get(
	struct s3_login *login, const char *path, http_done_fn *done, struct err *err)
{
	AUTO_STRV struct strv headers = {0};
	AUTO_FREE char *url = s3_metadata_url(login, path);
	struct http_request request = {
		.method = "GET", .headers = &headers, .proxy = "", .done = done};

	strv_addf(&headers, "X-aws-ec2-metadata-token: %s", login->metadata_token);
	return s3_login_send(login, &request, url, S3_LOGIN_METADATA_MS, err);
}

static int s3_metadata_on_role(void *ctx, struct http_response *response, struct err *err)
{
	static const char path[] = "/latest/meta-data/iam/security-credentials/";
	struct s3_login *login = ctx;
	AUTO_ERR struct err error = {0};
	int r = 0;

	login->call = NULL;
	response->body.data[strcspn(response->body.data, "\r\n")] = '\0';
	if (response->status != 200 || str_empty(response->body.data) ||
		!str_is_plain(response->body.data))
		r = err_set(&error, E_S3_CREDENTIALS, "the instance has no role");
	AUTO_FREE char *whole = mem_printf("%s%s", path, response->body.data);
	if (r == 0)
		r = s3_metadata_get(login, whole, s3_login_on_keys, &error);
	return r < 0 ? s3_login_end(login, r, &error, err) : 0;
}

static int s3_login_none(const struct s3_login *login, struct err *err)
{
	AUTO_FREE char *files = login->profile->files.n ? strv_join(&login->profile->files, ", ")
							: mem_strdup("no file of ~/.aws");

	err_set(err, E_S3_CREDENTIALS,
		"there are none, neither in the environment nor in profile %s (%s), nor by a web "
		"identity, a container or an instance",
		login->profile->name, files);
	return err_hint(err, "%s", s3_none_hint);
}

static int s3_metadata_on_token(void *ctx, struct http_response *response, struct err *err)
{
	struct s3_login *login = ctx;
	AUTO_ERR struct err error = {0};
	int r;

	login->call = NULL;
	if (response->status != 200 || !str_is_plain(response->body.data)) {
		r = s3_login_none(login, &error);
	} else {
		login->metadata_token = mem_strdup(response->body.data);
		r = s3_metadata_get(login, "/latest/meta-data/iam/security-credentials/",
			s3_metadata_on_role, &error);
	}
	return r < 0 ? s3_login_end(login, r, &error, err) : 0;
}

static int s3_login_instance(struct s3_login *login, struct err *err)
{
	const char *off = env_get(login->env, "AWS_EC2_METADATA_DISABLED");
	AUTO_STRV struct strv headers = {0};
	AUTO_FREE char *url = s3_metadata_url(login, "/latest/api/token");
	struct http_request request = {
		.method = "PUT", .headers = &headers, .proxy = "", .done = s3_metadata_on_token};

	if (off && str_eq(off, "true"))
		return s3_login_none(login, err);
	strv_add(&headers, "X-aws-ec2-metadata-token-ttl-seconds: 21600");
	return s3_login_send(login, &request, url, S3_LOGIN_METADATA_MS, err);
}

/*
 * Containers and web identities
 */

/* The token of a file or variable; 0 with NULL: there is none. The caller wipes. */
static int s3_login_token(const struct s3_login *login, const char *file_variable,
	const char *variable, char **ret, struct err *err)
{
	const char *path = env_get(login->env, file_variable);
	AUTO_BUF struct buf text = {0};

	*ret = NULL;
	if (str_empty(path)) {
		*ret = mem_strdup(variable ? env_get(login->env, variable) : NULL);
		return 0;
	}
	int r = fs_read(path, S3_LOGIN_BODY_MAX, &text, NULL, err);
	if (r < 0)
		return err_set(
			err, E_S3_CREDENTIALS, "%s of %s cannot be read", path, file_variable);
	while (text.len > 0 && strchr("\r\n \t", text.data[text.len - 1]))
		buf_truncate(&text, text.len - 1);
	*ret = buf_take(&text);
	return 0;
}

/* The token goes to this machine, to AWS's own addresses, or by TLS. */
static bool s3_container_is_safe(const char *text)
{
	static const char *const own[] = {"169.254.170.2", "169.254.170.23", "fd00:ec2::23"};
	AUTO_URL struct url url = {0};

	if (url_parse(text, "AWS_CONTAINER_CREDENTIALS_FULL_URI", &url, NULL) < 0)
		return false;
	for (size_t i = 0; i < ARRAY_LEN(own); i++)
		if (str_eq(url.host, own[i]))
			return true;
	return url.tls || url_is_loopback(&url);
}

static int s3_login_container(struct s3_login *login, struct err *err)
{
	const char *relative = env_get(login->env, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
	const char *full = env_get(login->env, "AWS_CONTAINER_CREDENTIALS_FULL_URI");
	AUTO_FREE char *url = str_empty(relative) ? mem_strdup(full)
						  : mem_printf("http://169.254.170.2%s", relative);
	AUTO_FREE char *token = NULL;
	struct http_request request = {.method = "GET", .proxy = "", .done = s3_login_on_keys};

	if (!s3_container_is_safe(url))
		return err_set(err, E_S3_CONFIG,
			"AWS_CONTAINER_CREDENTIALS_FULL_URI is neither https nor of this machine");
	int r = s3_login_token(login, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
		"AWS_CONTAINER_AUTHORIZATION_TOKEN", &token, err);
	request.authorization = token;
	if (r == 0)
		r = s3_login_send(login, &request, url, S3_LOGIN_MS, err);
	if (token)
		explicit_bzero(token, strlen(token));
	return r;
}

static void s3_form_add(struct buf *form, const char *key, const char *value)
{
	buf_addf(form, "%s%s=", form->len ? "&" : "", key);
	url_add_escaped(form, value, strlen(value), "");
}

static int s3_login_web(struct s3_login *login, struct err *err)
{
	const char *session = env_get(login->env, "AWS_ROLE_SESSION_NAME");
	const char *role = env_get(login->env, "AWS_ROLE_ARN");
	const char *region = login->profile->region;
	AUTO_FREE char *token = NULL;
	AUTO_FREE char *url = login->profile->sts
				      ? mem_strdup(login->profile->sts)
				      : mem_printf("https://sts.%s.amazonaws.com%s/", region,
						str_starts(region, "cn-") ? ".cn" : "");
	AUTO_STRV struct strv headers = {0};
	AUTO_BUF struct buf form = buf_with(4 * S3_LOGIN_BODY_MAX);

	int r = s3_login_token(login, "AWS_WEB_IDENTITY_TOKEN_FILE", NULL, &token, err);
	if (r < 0)
		return r;
	if (!role || !token)
		return err_set(err, E_S3_CREDENTIALS, "a web identity has no role or no token");
	s3_form_add(&form, "Action", "AssumeRoleWithWebIdentity");
	s3_form_add(&form, "Version", "2011-06-15");
	s3_form_add(&form, "RoleArn", role);
	s3_form_add(&form, "RoleSessionName", str_empty(session) ? "dlrun" : session);
	s3_form_add(&form, "WebIdentityToken", token);
	strv_add(&headers, "Content-Type: application/x-www-form-urlencoded");
	struct http_request request = {.method = "POST",
		.headers = &headers,
		.body = {.data = form.data, .size = form.len, .copy = true},
		.done = s3_login_on_keys};
	r = s3_login_send(login, &request, url, S3_LOGIN_MS, err);
	explicit_bzero(token, strlen(token));
	explicit_bzero(form.data, form.len);
	return r;
}

/*
 * Programs
 */

static int s3_login_work(struct task *task UNUSED, void *ctx, struct err *err)
{
	struct s3_login *login = ctx;
	const char *const argv[] = {"sh", "-c", login->command, NULL};
	int status = 0;

	int r = proc_capture(argv, NULL, S3_LOGIN_PROGRAM_MS, &login->output, &status, err);
	if (r == 0 && (!WIFEXITED(status) || WEXITSTATUS(status) != 0))
		r = err_set(err, E_S3_CREDENTIALS, "%s failed with exit status %d", login->shown,
			WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
	if (r < 0) {
		AUTO_FREE char *why = mem_strdup(err->message);

		err_set(err, E_S3_CREDENTIALS, "%s", why);
		return err_hint(err, "aws sts get-caller-identity   # says why");
	}
	return s3_login_parse_json(login->output.data, login->output.len, &login->keys, err);
}

static void s3_login_output_done(struct s3_login *login)
{
	if (login->output.data)
		explicit_bzero(login->output.data, login->output.len);
	buf_done(&login->output);
}

static int s3_login_worked(void *ctx, int r, struct err *error, struct err *err)
{
	struct s3_login *login = ctx;

	s3_login_output_done(login);
	return s3_login_end(login, r, error, err);
}

static void s3_login_process(struct s3_login *login)
{
	const char *command = s3_profile_get(login->profile, "credential_process");

	task_free(login->task);
	login->task = NULL;
	free(login->command);
	free(login->shown);
	if (command) {
		login->command = mem_strdup(command);
		login->shown = mem_strdup("credential_process");
	} else {
		AUTO_BUF struct buf words = buf_with(S3_FILE_MAX);

		buf_adds(&words,
			"exec aws configure export-credentials --format process --profile ");
		str_shell_quote(&words, login->profile->name);
		login->command = buf_take(&words);
		login->shown = mem_strdup("aws configure export-credentials");
	}
	buf_init(&login->output, S3_LOGIN_BODY_MAX);
	task_start(login->loop, s3_login_work, s3_login_worked, login, &login->task);
}

/*
 * The choice
 */

static bool s3_has_env(const struct s3_login *login, const char *name)
{
	return !str_empty(env_get(login->env, name));
}

static bool s3_has_setting(const struct s3_login *login, const char *key)
{
	return s3_profile_get(login->profile, key) != NULL;
}

static enum s3_source s3_login_choose(const struct s3_login *login)
{
	if (s3_has_env(login, "AWS_ACCESS_KEY_ID") && s3_has_env(login, "AWS_SECRET_ACCESS_KEY"))
		return S3_FROM_ENV;
	if (s3_has_env(login, "AWS_WEB_IDENTITY_TOKEN_FILE") && s3_has_env(login, "AWS_ROLE_ARN"))
		return S3_FROM_WEB;
	if (s3_has_setting(login, "role_arn") || s3_has_setting(login, "sso_session") ||
		s3_has_setting(login, "sso_start_url"))
		return S3_FROM_PROCESS;
	if (s3_has_setting(login, "aws_access_key_id"))
		return S3_FROM_FILE;
	if (s3_has_setting(login, "credential_process"))
		return S3_FROM_PROCESS;
	if (s3_has_env(login, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") ||
		s3_has_env(login, "AWS_CONTAINER_CREDENTIALS_FULL_URI"))
		return S3_FROM_CONTAINER;
	return S3_FROM_INSTANCE;
}

const char *s3_login_source(const struct s3_login *login)
{
	static const char *const names[] = {
		[S3_FROM_ENV] = "the environment",
		[S3_FROM_WEB] = "the web identity",
		[S3_FROM_FILE] = "the files of ~/.aws",
		[S3_FROM_PROCESS] = "the profile's program",
		[S3_FROM_CONTAINER] = "the container's endpoint",
		[S3_FROM_INSTANCE] = "the instance",
	};

	return names[login->source];
}

/* 1: the keys are there. */
static int s3_login_begin(struct s3_login *login, struct err *err)
{
	const struct s3_profile *profile = login->profile;
	const char *const *env = login->env;
	int r = 0;

	login->source = s3_login_choose(login);
	switch (login->source) {
	case S3_FROM_ENV:
		r = s3_keys_set(&login->keys, env_get(env, "AWS_ACCESS_KEY_ID"),
			env_get(env, "AWS_SECRET_ACCESS_KEY"), env_get(env, "AWS_SESSION_TOKEN"),
			NULL, err);
		return r < 0 ? r : 1;
	case S3_FROM_FILE:
		r = s3_keys_set(&login->keys, s3_profile_get(profile, "aws_access_key_id"),
			s3_profile_get(profile, "aws_secret_access_key"),
			s3_profile_get(profile, "aws_session_token"), NULL, err);
		return r < 0 ? r : 1;
	case S3_FROM_WEB:
		return s3_login_web(login, err);
	case S3_FROM_PROCESS:
		s3_login_process(login);
		return 0;
	case S3_FROM_CONTAINER:
		return s3_login_container(login, err);
	default:
		return s3_login_instance(login, err);
	}
}

static bool s3_login_is_fresh(const struct s3_login *login)
{
	return login->has_keys &&
	       (!login->keys.expires_ms ||
		       login->keys.expires_ms - clock_wall_ms() > S3_LOGIN_AHEAD_MS);
}

int s3_login_want(struct s3_login *login, s3_login_fn *ready, void *ctx, struct err *err)
{
	AUTO_ERR struct err error = {0};

	if (s3_login_is_fresh(login))
		return ready(ctx, &login->keys, login->generation, &error, err);
	*vec_push(&login->waits) = (struct s3_login_wait){.ready = ready, .ctx = ctx};
	if (login->is_busy)
		return 0;
	login->is_busy = true;
	free(TAKE(login->metadata_token));
	int r = s3_login_begin(login, &error);
	return r == 0 ? 0 : s3_login_end(login, r < 0 ? r : 0, &error, err);
}

void s3_login_cancel(struct s3_login *login, const void *ctx)
{
	size_t kept = 0;

	for (size_t i = 0; i < login->waits.n; i++)
		if (login->waits.v[i].ctx != ctx)
			login->waits.v[kept++] = login->waits.v[i];
	login->waits.n = kept;
	/* The next one begins anew. A program is let end: its thread cannot be given up. */
	if (kept == 0 && login->call) {
		http_cancel(TAKE(login->call));
		login->is_busy = false;
	}
}

bool s3_login_refuse(struct s3_login *login, unsigned generation)
{
	if (login->source == S3_FROM_ENV || login->source == S3_FROM_FILE)
		return false;
	if (generation == login->generation)
		login->has_keys = false;
	return true;
}

struct s3_login *s3_login_new(struct loop *loop, struct http *http, const char *const *env,
	const struct s3_profile *profile)
{
	struct s3_login *login = mem_alloc(1, sizeof(*login));

	login->loop = loop;
	login->http = http;
	login->env = env;
	login->profile = profile;
	return login;
}

void s3_login_free(struct s3_login *login)
{
	if (!login)
		return;
	http_cancel(login->call);
	task_free(login->task);
	s3_login_output_done(login);
	s3_keys_done(&login->keys);
	vec_done(&login->waits);
	free(login->command);
	free(login->shown);
	free(login->metadata_token);
	free(login);
}
