/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/auth/credentials.h"

#include <stdint.h>
#include <string.h>
#include <strings.h>

#include "base/data/json.h"
#include "base/loop/proc.h"
#include "base/loop/proc_run.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"

void credential_done(struct credential *credential)
{
	if (!credential)
		return;
	secret_free(credential->user);
	secret_free(credential->password);
	secret_free(credential->identity_token);
	secret_free(credential->registry_token);
	free(credential->origin);
	*credential = (struct credential){0};
}

bool credential_is_there(const struct credential *credential)
{
	return credential->user || credential->identity_token || credential->registry_token;
}

/*
 * Content of the files, read at once
 */

/* A file with something for this registry. */
struct step {
	char *shown, *helper, *key;
	struct credential login; /* without a helper, or if that has none */
};

struct credential_lookup {
	struct loop *loop;
	const struct credential_env *env;
	char *host, *repo;
	struct VEC_OF(struct step) steps;
	size_t at;
	struct strv helper_env, warnings;
	struct helper *helper;
	struct loop_timer *timer;
	struct credential login;
	struct err error;
	credential_found_fn *found;
	void *ctx;
};

static void step_done(struct step *step)
{
	free(step->shown);
	free(step->helper);
	free(step->key);
	credential_done(&step->login);
}

/* "~/.docker/config.json" */
static char *shown_path(const char *path, const char *home)
{
	AUTO_FREE char *escaped = str_escaped(path);
	size_t len = str_empty(home) ? 0 : strlen(home);

	while (len > 0 && home[len - 1] == '/')
		len--;
	if (len > 0 && strncmp(path, home, len) == 0 && path[len] == '/') {
		AUTO_FREE char *rest = str_escaped(path + len);
		return mem_printf("~%s", rest);
	}
	return TAKE(escaped);
}

/* Whether the search ends: with a login that needs no helper. A file that is not there is passed
 * over in silence unless it must be. */
static bool credentials_read_one(struct credential_lookup *lookup, const char *path, bool must_be)
{
	AUTO_SECRET_BUF struct buf text = {0};
	AUTO_ERR struct err err = {0};
	struct step step = {.shown = shown_path(path, lookup->env->home)};
	bool missing = false;

	int r = fs_read(path, CREDENTIAL_FILE_MAX, &text, &missing, &err);
	if (r == 0)
		r = credential_file_find(text.data, text.len, step.shown, lookup->host,
			lookup->repo, &step.login, &step.helper, &step.key, &err);
	if (r < 0 && (!missing || must_be))
		strv_addf(&lookup->warnings, "a login file is passed over: %s", err.message);
	if (r <= 0) {
		step_done(&step);
		return false;
	}
	*vec_push(&lookup->steps) = step;
	return !step.helper;
}

static bool read_in(struct credential_lookup *lookup, const char *dir, const char *name)
{
	if (str_empty(dir))
		return false;
	AUTO_FREE char *path = fs_join(dir, name);
	return credentials_read_one(lookup, path, false);
}

static void read_files(struct credential_lookup *lookup)
{
	const struct credential_env *env = lookup->env;
	bool has_docker = !str_empty(env->docker_config),
	     has_xdg = !str_empty(env->xdg_config_home);

	if (!str_empty(env->registry_auth_file)) {
		credentials_read_one(lookup, env->registry_auth_file, true);
		return;
	}
	const struct {
		const char *dir, *name;
	} places[] = {
		{has_docker ? env->docker_config : env->home,
			has_docker ? "config.json" : ".docker/config.json"},
		{env->xdg_runtime_dir, "containers/auth.json"},
		{has_xdg ? env->xdg_config_home : env->home,
			has_xdg ? "containers/auth.json" : ".config/containers/auth.json"},
		{env->home, ".dockercfg"},
	};
	for (size_t i = 0; i < ARRAY_LEN(places); i++)
		if (read_in(lookup, places[i].dir, places[i].name))
			return;
}

/*
 * Helpers, one after the other
 */

static int credentials_deliver(void *ctx, struct err *err)
{
	struct credential_lookup *lookup = ctx;
	bool failed = err_is_set(&lookup->error);

	lookup->timer = NULL;
	return lookup->found(lookup->ctx, failed ? NULL : &lookup->login, &lookup->warnings,
		failed ? &lookup->error : NULL, err);
}

static void credentials_finish(struct credential_lookup *lookup)
{
	lookup->timer = loop_add_timer(lookup->loop, clock_ms(), credentials_deliver, lookup);
}

static void take_login(struct credential_lookup *lookup, struct credential *login)
{
	lookup->login = *login;
	*login = (struct credential){0};
	credentials_finish(lookup);
}

static void credentials_go_on(struct credential_lookup *lookup);

static int helper_ended(
	void *ctx, int r, struct credential *login, struct err *error, struct err *err UNUSED)
{
	struct credential_lookup *lookup = ctx;

	helper_free(TAKE(lookup->helper));
	if (r < 0) {
		err_move(&lookup->error, error);
		credentials_finish(lookup);
	} else if (r > 0) {
		take_login(lookup, login);
	} else {
		struct step *step = &lookup->steps.v[lookup->at++];

		if (credential_is_there(&step->login))
			take_login(lookup, &step->login);
		else
			credentials_go_on(lookup);
	}
	return 0;
}

/* Whether a helper runs now; else the login that the file has besides counts. */
static bool credentials_start_helper(struct credential_lookup *lookup, const struct step *step)
{
	AUTO_FREE char *name = mem_printf("docker-credential-%s", step->helper);
	const char *const *env = (const char *const *)lookup->helper_env.v;
	const char *path = env_get(env, "PATH");
	AUTO_FREE char *program = proc_find(name, path ? path : "/usr/bin:/bin");

	if (!program) {
		strv_addf(&lookup->warnings, "%s, which %s names for %s, is not installed", name,
			step->shown, lookup->host);
		return false;
	}
	const struct helper_spec spec = {.program = program,
		.name = step->helper,
		.key = step->key,
		.env = env,
		.limit_ms = CREDENTIAL_HELPER_MS};
	if (helper_start(
		    lookup->loop, &spec, helper_ended, lookup, &lookup->helper, &lookup->error) < 0)
		credentials_finish(lookup);
	return true;
}

static void credentials_go_on(struct credential_lookup *lookup)
{
	for (; lookup->at < lookup->steps.n; lookup->at++) {
		struct step *step = &lookup->steps.v[lookup->at];

		if (step->helper && credentials_start_helper(lookup, step))
			return;
		if (credential_is_there(&step->login)) {
			take_login(lookup, &step->login);
			return;
		}
	}
	credentials_finish(lookup);
}

/* Less dlrun's own variables, which may hold what the helper has no business with. */
static void filter_env(struct credential_lookup *lookup)
{
	for (const char *const *pair = lookup->env->env; pair && *pair; pair++)
		if (!str_starts(*pair, "DLRUN_"))
			strv_add(&lookup->helper_env, *pair);
	if (lookup->helper_env.n == 0)
		strv_add(&lookup->helper_env, "LC_ALL=C");
}

static struct credential_lookup *new_lookup(
	const struct credential_env *env, const char *host, const char *repo)
{
	struct credential_lookup *lookup = mem_alloc(1, sizeof(*lookup));

	*lookup = (struct credential_lookup){
		.env = env, .host = mem_strdup(host), .repo = mem_strdup(repo)};
	read_files(lookup);
	return lookup;
}

struct credential_lookup *credential_start(struct loop *loop, const struct credential_env *env,
	const char *host, const char *repo, credential_found_fn *found, void *ctx)
{
	struct credential_lookup *lookup = new_lookup(env, host, repo);

	lookup->loop = loop;
	lookup->found = found;
	lookup->ctx = ctx;
	filter_env(lookup);
	credentials_go_on(lookup);
	return lookup;
}

void credential_free(struct credential_lookup *lookup)
{
	if (!lookup)
		return;
	helper_free(lookup->helper);
	loop_remove_timer(lookup->loop, lookup->timer);
	vec_foreach (struct step, step, &lookup->steps)
		step_done(step);
	vec_done(&lookup->steps);
	for (size_t i = 0; i < lookup->helper_env.n; i++)
		secret_wipe(lookup->helper_env.v[i], strlen(lookup->helper_env.v[i]));
	strv_done(&lookup->helper_env);
	strv_done(&lookup->warnings);
	credential_done(&lookup->login);
	err_done(&lookup->error);
	free(lookup->host);
	free(lookup->repo);
	free(lookup);
}

static bool is_same_login(const struct credential *a, const struct credential *b)
{
	return str_eq(a->user, b->user) && str_eq(a->password, b->password) &&
	       str_eq(a->identity_token, b->identity_token) &&
	       str_eq(a->registry_token, b->registry_token);
}

bool credential_is_shared(
	const struct credential_env *env, const char *host, const char *repo, const char *other)
{
	struct credential_lookup *a = new_lookup(env, host, repo);
	struct credential_lookup *b = new_lookup(env, host, other);
	bool same = a->steps.n == b->steps.n;

	for (size_t i = 0; same && i < a->steps.n; i++) {
		const struct step *one = &a->steps.v[i], *two = &b->steps.v[i];

		same = str_eq(one->helper, two->helper) && str_eq(one->key, two->key) &&
		       is_same_login(&one->login, &two->login);
	}
	credential_free(a);
	credential_free(b);
	return same;
}

enum { HOST_MAX = 512 };

/* "https://index.docker.io/v1/" is Docker Hub; "/v1/" and "/v2/" were written once for others. */
static char *credentials_host_of(const char *key)
{
	const char *at = strstr(key, "://");
	size_t len;

	at = at ? at + strlen("://") : key;
	len = strlen(at);
	while (len > 0 && at[len - 1] == '/')
		len--;
	if (len > 3 &&
		(strncmp(at + len - 3, "/v1", 3) == 0 || strncmp(at + len - 3, "/v2", 3) == 0))
		len -= 3;
	char *host = mem_strndup(at, len);
	if (!str_eq(host, "index.docker.io") && !str_eq(host, "registry-1.docker.io"))
		return host;
	free(host);
	return mem_strdup("docker.io");
}

static void credentials_add(const char *key, struct strv *ret)
{
	AUTO_FREE char *host = credentials_host_of(key);

	if (ret->n < CREDENTIAL_HOSTS_MAX && *host && strlen(host) < HOST_MAX &&
		str_is_plain(host) && !strpbrk(host, " @") && strv_find(ret, host) < 0)
		strv_add(ret, host);
}

static void credentials_add_keys(const struct json *map, struct strv *ret)
{
	if (map && json_kind(map) != JSON_OBJECT)
		return;
	for (const struct json *m = json_first(map); m; m = json_next(m))
		credentials_add(json_key(m), ret);
}

int credential_file_hosts(
	const char *text, size_t len, const char *what, struct strv *ret, struct err *err)
{
	AUTO_JSON struct json *json = NULL;
	int r = json_parse(text, len, CREDENTIAL_FILE_MAX, what, &json, err);

	if (r < 0)
		return r;
	credentials_add_keys(json_get(json, "auths"), ret);
	credentials_add_keys(json_get(json, "credHelpers"), ret);
	return 0;
}

static void credential_list_in(const char *dir, const char *name, struct strv *ret)
{
	AUTO_SECRET_BUF struct buf text = {0};
	AUTO_FREE char *path = str_empty(dir) ? NULL : fs_join(dir, name);

	if (path && fs_read(path, CREDENTIAL_FILE_MAX, &text, NULL, NULL) == 0)
		credential_file_hosts(text.data, text.len, path, ret, NULL);
}

void credential_hosts(const struct credential_env *env, struct strv *ret)
{
	bool has_docker = !str_empty(env->docker_config),
	     has_xdg = !str_empty(env->xdg_config_home);

	if (!str_empty(env->registry_auth_file)) {
		credential_list_in(".", env->registry_auth_file, ret);
		return;
	}
	credential_list_in(has_docker ? env->docker_config : env->home,
		has_docker ? "config.json" : ".docker/config.json", ret);
	credential_list_in(env->xdg_runtime_dir, "containers/auth.json", ret);
	credential_list_in(has_xdg ? env->xdg_config_home : env->home,
		has_xdg ? "containers/auth.json" : ".config/containers/auth.json", ret);
}

/* explicit_bzero is not everywhere. The compiler must believe that the zeros are read. */
void secret_wipe(void *data, size_t len)
{
	if (len == 0)
		return;
	memset(data, 0, len);
	__asm__ __volatile__("" : : "r"(data) : "memory");
}

void secret_free(char *secret)
{
	if (!secret)
		return;
	secret_wipe(secret, strlen(secret));
	free(secret);
}

void secret_buf_done(struct buf *buf)
{
	if (buf && buf->data)
		secret_wipe(buf->data, buf->cap);
	buf_done(buf);
}

/* The document is ours and about to go, so its strings may be written to. */
static void wipe_json(const struct json *json)
{
	const char *s = json_str(json);

	if (s)
		secret_wipe((char *)(uintptr_t)s, strlen(s));
	for (const struct json *member = json_first(json); member; member = json_next(member))
		wipe_json(member);
}

void secret_json_free(struct json *json)
{
	if (!json)
		return;
	wipe_json(json);
	json_free(json);
}

static const char hub_key[] = "https://index.docker.io/v1/";
static const char *const hub_hosts[] = {"index.docker.io", "docker.io", "registry-1.docker.io"};

/*
 * Keys: which registry, and which part of it
 */

static bool credentials_is_host(const char *text, size_t len, const char *host)
{
	return strlen(host) == len && strncasecmp(text, host, len) == 0;
}

static bool is_hub(const char *text, size_t len)
{
	for (size_t i = 0; i < ARRAY_LEN(hub_hosts); i++)
		if (credentials_is_host(text, len, hub_hosts[i]))
			return true;
	return false;
}

/* Docker Hub has several names and one login. */
static bool credentials_is_same_host(const char *text, size_t len, const char *host)
{
	return credentials_is_host(text, len, host) ||
	       (is_hub(text, len) && is_hub(host, strlen(host)));
}

static const char *skip_scheme(const char *key)
{
	if (str_starts(key, "https://"))
		return key + strlen("https://");
	return str_starts(key, "http://") ? key + strlen("http://") : key;
}

/* "/v1/" and "/v2/" behind a host are no repositories: docker wrote them once. */
static bool is_api_path(const char *path, size_t len)
{
	return len == 0 || (len == 2 && path[0] == 'v' && (path[1] == '1' || path[1] == '2'));
}

enum { RANK_NONE, RANK_HOST, RANK_EXACT, RANK_PREFIX };

/* How well a key of `auths` names host/repo: more is better, longer prefixes most of all. */
static size_t rank_key(const char *key, const char *host, const char *repo)
{
	const char *at = skip_scheme(key);
	size_t host_len = strcspn(at, "/");

	if (!credentials_is_same_host(at, host_len, host))
		return RANK_NONE;
	const char *path = at + host_len + (at[host_len] == '/');
	size_t len = strlen(path);
	while (len > 0 && path[len - 1] == '/')
		len--;
	if (is_api_path(path, len))
		return strcmp(key, host) == 0 ? RANK_EXACT : RANK_HOST;
	if (strncmp(repo, path, len) == 0 && (repo[len] == '/' || !repo[len]))
		return RANK_PREFIX + len;
	return RANK_NONE;
}

/*
 * Entries
 */

static bool credentials_has_text(const struct json *entry, const char *key)
{
	return !str_empty(json_get_str(entry, key));
}

static bool has_login(const struct json *entry)
{
	return credentials_has_text(entry, "auth") ||
	       credentials_has_text(entry, "identitytoken") ||
	       credentials_has_text(entry, "registrytoken") ||
	       credentials_has_text(entry, "username");
}

/* docker leaves an empty entry for each login that a helper keeps. */
static const struct json *credentials_find_entry(
	const struct json *auths, const char *host, const char *repo)
{
	const struct json *best = NULL;
	size_t best_rank = RANK_NONE;

	if (!auths || json_kind(auths) != JSON_OBJECT)
		return NULL;
	for (const struct json *entry = json_first(auths); entry; entry = json_next(entry)) {
		size_t rank = rank_key(json_key(entry), host, repo);

		if (rank <= best_rank || json_kind(entry) != JSON_OBJECT || !has_login(entry))
			continue;
		best = entry;
		best_rank = rank;
	}
	return best;
}

static int credentials_fail_entry(
	const char *what, const char *key, const char *why, struct err *err)
{
	AUTO_FREE char *shown = str_shown(key);

	return err_set(err, E_DATA, "%s: the login of %s %s", what, shown, why);
}

/* "user:password" in base64; a password may have colons. docker filled it up with NULs once. */
static int read_auth(const char *auth, struct credential *ret, const char **ret_why)
{
	AUTO_SECRET_BUF struct buf plain = {0};

	buf_init(&plain, CREDENTIAL_SECRET_MAX);
	AUTO_SECRET char *joined = mem_alloc(strlen(auth) + 1, 1);
	size_t len = 0;

	/* As `base64` breaks its lines, and docker reads them. */
	for (const char *at = auth; *at; at++)
		if (*at != '\n' && *at != '\r')
			joined[len++] = *at;
	if (!base64_decode(joined, len, &plain)) {
		*ret_why = "is not base64";
		return -1;
	}
	while (plain.len > 0 && plain.data[plain.len - 1] == '\0')
		buf_truncate(&plain, plain.len - 1);
	char *colon = memchr(plain.data, ':', plain.len);
	if (!colon || memchr(plain.data, '\0', plain.len)) {
		*ret_why = "is not USER:PASSWORD in base64";
		return -1;
	}
	ret->user = mem_strndup(plain.data, (size_t)(colon - plain.data));
	ret->password = mem_strdup(colon + 1);
	return 0;
}

static char *dup_field(const struct json *entry, const char *key)
{
	return credentials_has_text(entry, key) ? mem_strdup(json_get_str(entry, key)) : NULL;
}

static int check_entry(const struct json *entry, const char **ret_why)
{
	static const char *const keys[] = {
		"auth", "identitytoken", "registrytoken", "username", "password"};

	for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
		const char *text = json_get_str(entry, keys[i]);

		if (!text || strlen(text) <= CREDENTIAL_SECRET_MAX)
			continue;
		*ret_why = "is longer than dlrun accepts";
		return -1;
	}
	return 0;
}

static int credentials_read_entry(
	const struct json *entry, const char *what, struct credential *ret, struct err *err)
{
	AUTO_CREDENTIAL struct credential login = {0};
	const char *why = NULL;
	int r = check_entry(entry, &why);

	if (r == 0 && credentials_has_text(entry, "auth"))
		r = read_auth(json_get_str(entry, "auth"), &login, &why);
	else if (r == 0 && credentials_has_text(entry, "username")) {
		const char *password = json_get_str(entry, "password");
		login.user = mem_strdup(json_get_str(entry, "username"));
		login.password = mem_strdup(password ? password : "");
	}
	login.identity_token = dup_field(entry, "identitytoken");
	login.registry_token = dup_field(entry, "registrytoken");
	if (r == 0)
		r = credential_check(&login, &why);
	if (r < 0)
		return credentials_fail_entry(what, json_key(entry), why, err);
	login.origin = mem_strdup(what);
	*ret = login;
	login = (struct credential){0};
	return 1;
}

int credential_check(const struct credential *login, const char **ret_why)
{
	const char *token = login->registry_token;

	if (login->user && strchr(login->user, ':')) {
		*ret_why = "has a user name with a colon";
		return -1;
	}
	for (; token && *token; token++) {
		if (*token > ' ' && *token < 0x7f)
			continue;
		*ret_why = "has a registrytoken with characters that no token has";
		return -1;
	}
	return 0;
}

/*
 * Helpers
 */

/* The helper of this registry, else that of all; *ret_key is what the logins are called there. */
static const char *find_helper(const struct json *root, const char *host, const char **ret_key)
{
	const struct json *helpers = json_get(root, "credHelpers");

	for (const struct json *helper =
			helpers && json_kind(helpers) == JSON_OBJECT ? json_first(helpers) : NULL;
		helper; helper = json_next(helper)) {
		size_t rank = rank_key(json_key(helper), host, "");

		if (rank == RANK_NONE || rank >= RANK_PREFIX || str_empty(json_str(helper)))
			continue;
		*ret_key = json_key(helper);
		return json_str(helper);
	}
	*ret_key = is_hub(host, strlen(host)) ? hub_key : host;
	return credentials_has_text(root, "credsStore") ? json_get_str(root, "credsStore") : NULL;
}

/* ~/.dockercfg has the entries at the top. */
static const struct json *find_auths(const struct json *root)
{
	if (json_get(root, "auths") || json_get(root, "credHelpers") ||
		json_get(root, "credsStore"))
		return json_get(root, "auths");
	return root;
}

int credential_file_find(const char *text, size_t len, const char *what, const char *host,
	const char *repo, struct credential *ret, char **ret_helper, char **ret_key,
	struct err *err)
{
	AUTO_CREDENTIAL struct credential login = {0};
	AUTO_SECRET_JSON struct json *root = NULL;
	const char *key;

	int r = json_parse(text, len, CREDENTIAL_FILE_MAX, what, &root, err);
	if (r < 0)
		return r;
	if (json_kind(root) != JSON_OBJECT)
		return err_set(err, E_DATA, "%s is not a JSON object", what);
	const char *helper = find_helper(root, host, &key);
	if (helper && helper[strspn(helper, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
					    "0123456789._-")]) {
		AUTO_FREE char *shown = str_shown(helper);
		return err_set(err, E_DATA, "%s: \"%s\" is not a valid credential helper name",
			what, shown);
	}
	const struct json *entry = credentials_find_entry(find_auths(root), host, repo);
	r = entry ? credentials_read_entry(entry, what, &login, err) : 0;
	if (r < 0)
		return r;
	*ret = login;
	login = (struct credential){0};
	*ret_helper = mem_strdup(helper);
	*ret_key = helper ? mem_strdup(key) : NULL;
	return helper ? 1 : r;
}

/*
 * Output of helpers
 */

enum { WORDS_MAX = 200, WORD_MAX = 40 };

/* Short words only, and nothing that looks like a response: what a failing helper prints may be the
 * secret. */
static bool may_show(const char *text)
{
	static const char *const bad[] = {"{", "secret", "password", "bearer"};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		if (strcasestr(text, bad[i]))
			return false;
	while (*text) {
		size_t len = strcspn(text, " \t\r\n");

		if (len > WORD_MAX)
			return false;
		text += len + (text[len] != '\0');
	}
	return true;
}

/* How many bytes of whole characters fit. */
static int cut_words(const char *text)
{
	size_t len = strlen(text), at = 0, n;

	while ((n = str_utf8_len(text + at, len - at)) > 0 && at + n <= WORDS_MAX)
		at += n;
	return (int)at;
}

static void credentials_add_words(const char *text, struct err *err)
{
	AUTO_BUF struct buf shown = buf_with(4 * CREDENTIAL_HELPER_OUT_MAX);
	size_t len = strcspn(text, "\r\n");

	if (len == 0 || !may_show(text))
		return;
	str_escape(&shown, text, len);
	err_evidence(err, "it said: %.*s", cut_words(shown.data), shown.data);
}

static int fail_status(const char *text, int status, const char *name, struct err *err)
{
	AUTO_FREE char *how = proc_run_code_text(status);

	err_set(err, E_REGISTRY_HELPER, "docker-credential-%s %s", name, how);
	credentials_add_words(text, err);
	return -(int)err_info(E_REGISTRY_HELPER)->code;
}

static int credentials_fail_response(const char *name, const char *why, struct err *err)
{
	return err_set(err, E_REGISTRY_HELPER, "docker-credential-%s %s", name, why);
}

/* The user name "<token>" says what the secret is. */
static int credential_file_login(const char *user, const char *secret, const char *name,
	struct credential *ret, struct err *err)
{
	AUTO_CREDENTIAL struct credential login = {0};
	const char *why = NULL;

	if (strlen(user) > CREDENTIAL_SECRET_MAX || strlen(secret) > CREDENTIAL_SECRET_MAX)
		return credentials_fail_response(name, "printed more than dlrun accepts", err);
	if (!*user && !*secret)
		return 0;
	if (strcmp(user, "<token>") == 0) {
		login.identity_token = mem_strdup(secret);
	} else {
		login.user = mem_strdup(user);
		login.password = mem_strdup(secret);
	}
	if (credential_check(&login, &why) < 0)
		return credentials_fail_response(name, "printed a user name with a colon", err);
	login.origin = mem_printf("docker-credential-%s", name);
	*ret = login;
	login = (struct credential){0};
	return 1;
}

int credential_helper_parse(const char *text, size_t len, int exit_status, const char *helper,
	struct credential *ret, struct err *err)
{
	AUTO_SECRET char *words = mem_strndup(text, len);
	AUTO_SECRET_JSON struct json *root = NULL;

	/* Some helpers succeed with these words. */
	if (str_starts(
		    words + strspn(words, " \t\r\n"), "credentials not found in native keychain"))
		return 0;
	if (exit_status != 0)
		return fail_status(words, exit_status, helper, err);
	if (json_parse(text, len, CREDENTIAL_HELPER_OUT_MAX, "the answer", &root, NULL) < 0)
		return credentials_fail_response(
			helper, "printed something else than a login", err);
	const char *user = json_get_str(root, "Username");
	const char *secret = json_get_str(root, "Secret");
	if (!user || !secret)
		return credentials_fail_response(helper, "printed no Username and Secret", err);
	return credential_file_login(user, secret, helper, ret, err);
}

/*
 * The process
 */

struct helper {
	char *name;
	int64_t limit_ms;
	struct proc_run *run;
	helper_end_fn *end;
	void *ctx;
};

void helper_free(struct helper *helper)
{
	if (!helper)
		return;
	proc_run_free(helper->run);
	free(helper->name);
	free(helper);
}

static int credentials_end(void *ctx, const struct proc_run_result *result, struct err *err)
{
	struct helper *helper = ctx;
	AUTO_CREDENTIAL struct credential login = {0};
	AUTO_ERR struct err error = {0};
	char limit[32];
	int r;

	if (result->end == PROC_RUN_ENDED) {
		r = credential_helper_parse(result->out->data, result->out->len,
			proc_run_code(result), helper->name, &login, &error);
	} else if (result->end == PROC_RUN_LATE) {
		AUTO_FREE char *why =
			mem_printf("took longer than %s", duration_text(helper->limit_ms, limit));
		r = credentials_fail_response(helper->name, why, &error);
	} else {
		r = credentials_fail_response(
			helper->name, "printed more than dlrun accepts", &error);
	}
	return helper->end(helper->ctx, r, &login, &error, err);
}

int helper_start(struct loop *loop, const struct helper_spec *spec, helper_end_fn *end_fn,
	void *ctx, struct helper **ret, struct err *err)
{
	struct helper *helper = mem_alloc(1, sizeof(*helper));
	AUTO_FREE char *line = mem_printf("%s\n", spec->key);
	AUTO_ERR struct err error = {0};
	const struct proc_run_spec program = {
		.argv = (const char *const[]){spec->program, "get", NULL},
		.env = spec->env,
		.input = line,
		.out_max = CREDENTIAL_HELPER_OUT_MAX,
		.stderr_fd = -1,
		.timeout_ms = spec->limit_ms,
		.is_secret = true};

	*helper = (struct helper){.name = mem_strdup(spec->name),
		.limit_ms = spec->limit_ms,
		.end = end_fn,
		.ctx = ctx};
	if (proc_run_start(loop, &program, credentials_end, helper, &helper->run, &error) < 0) {
		helper_free(helper);
		return err_set(err, E_REGISTRY_HELPER, "docker-credential-%s: %s", spec->name,
			error.message);
	}
	*ret = helper;
	return 0;
}
