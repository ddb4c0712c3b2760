/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/api/credential.h"

#include <stdlib.h>
#include <string.h>

#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/api/credential_impl.h"

enum {
	TOKEN_MAX = 64 << 10,
	FAILED_PAUSE_MS = 1000, /* a plugin that has failed is not run again before */
	STALE_PAUSE_MS = 10000, /* nor while there still is a login */
};

struct kube_login_wait {
	struct kube_credential *credential;
	struct kube_login_wait *next;
	kube_login_fn *fn;
	void *ctx;
};

struct kube_credential {
	struct kube_credential_options options;
	struct kube_login login;
	bool has_login;
	int64_t read_ms; /* of the token file: when, by clock_ms() */
	/* Of a plugin: */
	bool uses_plugin;
	struct kube_plugin *plugin; /* that runs, or NULL */
	char *cache_path;
	/* Times by clock_wall_ms() from which the login is to be renewed, and from which it is
	 * invalid; 0: never. In between the old one is used. */
	int64_t stale_ms, expires_ms;
	struct err fault; /* why there is no login */
	int64_t failed_ms;
	bool is_refused;               /* by the user; not asked again */
	struct kube_login_wait *waits; /* the oldest first */
	struct loop_timer *timer;      /* to answer them */
};

void kube_login_done(struct kube_login *login)
{
	kube_wipe(login->authorization);
	free(login->cert_pem);
	kube_wipe(login->key_pem);
	*login = (struct kube_login){0};
}

void kube_login_copy(const struct kube_login *from, struct kube_login *to)
{
	kube_login_done(to);
	to->authorization = mem_strdup(from->authorization);
	to->cert_pem = mem_strdup(from->cert_pem);
	to->key_pem = mem_strdup(from->key_pem);
	to->generation = from->generation;
}

static void set_bearer(struct kube_credential *credential, const char *token)
{
	struct kube_login *login = &credential->login;

	kube_wipe(login->authorization);
	login->authorization = token ? mem_printf("Bearer %s", token) : NULL;
	login->generation++;
	credential->has_login = true;
}

static void set_basic(struct kube_credential *credential)
{
	const struct kube_access *access = credential->options.access;
	AUTO(kube_wipe_buf) struct buf text = {0}, value = {0};

	buf_init(&text, TOKEN_MAX);
	buf_init(&value, 2 * TOKEN_MAX);
	buf_addf(&text, "%s:%s", access->username ? access->username : "",
		access->password ? access->password : "");
	buf_adds(&value, "Basic ");
	base64_encode(text.data, text.len, &value);
	credential->login.authorization = buf_take(&value);
}

/*
 * Token files
 */

static char *read_token(const char *path, struct err *err)
{
	AUTO(kube_wipe_buf) struct buf text = {0};
	AUTO_ERR struct err fault = {0};
	char *end;

	if (fs_read(path, TOKEN_MAX, &text, NULL, &fault) < 0) {
		err_set(err, E_KUBE_AUTH, "the token file cannot be read: %s", fault.message);
		return NULL;
	}
	char *token = text.data + strspn(text.data, " \t\r\n");
	for (end = token + strlen(token); end > token && strchr(" \t\r\n", end[-1]); end--)
		end[-1] = '\0';
	if (*token && str_is_plain(token) && !strchr(token, ' '))
		return mem_strdup(token);
	err_set(err, E_KUBE_AUTH, "the token file %s holds no token", path);
	return NULL;
}

/* If the file cannot be read, the token that was read before stays in use. */
static void look_at_file(struct kube_credential *credential)
{
	const struct kube_access *access = credential->options.access;
	AUTO_FREE char *bearer = NULL;

	credential->read_ms = clock_ms();
	err_clear(&credential->fault);
	char *token = read_token(access->token_file, &credential->fault);
	if (token) {
		bearer = mem_printf("Bearer %s", token);
		if (!str_eq(bearer, credential->login.authorization))
			set_bearer(credential, token);
		explicit_bzero(bearer, strlen(bearer));
	} else if (!credential->has_login && access->token) {
		set_bearer(credential, access->token);
	}
	kube_wipe(token);
}

/*
 * Answers
 */

static bool is_ready(const struct kube_credential *credential)
{
	return credential->has_login || (!credential->plugin && err_is_set(&credential->fault));
}

static void copy_fault(const struct err *from, struct err *to)
{
	err_set(to, from->id, "%s", from->message);
	for (size_t i = 0; i < from->n_evidence; i++)
		err_evidence(to, "%s", from->evidence[i]);
	if (from->hint)
		err_hint(to, "%s", from->hint);
}

/* The credential may be gone then. */
static int answer_one(
	struct kube_credential *credential, const struct kube_login_wait *wait, struct err *err)
{
	AUTO_ERR struct err fault = {0};

	if (credential->has_login)
		return wait->fn(wait->ctx, &credential->login, NULL, err);
	copy_fault(&credential->fault, &fault);
	return wait->fn(wait->ctx, NULL, &fault, err);
}

static void answer_soon(struct kube_credential *credential);

/* Complete one wait in each turn of the loop: its callback may free the credential. */
static int answer_due(void *ctx, struct err *err)
{
	struct kube_credential *credential = ctx;
	struct kube_login_wait *wait = credential->waits;

	credential->timer = NULL;
	if (!wait || !is_ready(credential))
		return 0;
	credential->waits = wait->next;
	answer_soon(credential);
	int r = answer_one(credential, wait, err);
	free(wait);
	return r;
}

static void answer_soon(struct kube_credential *credential)
{
	if (credential->waits && is_ready(credential) && !credential->timer)
		credential->timer = loop_add_timer(
			credential->options.loop, clock_ms(), answer_due, credential);
}

/*
 * Plugins
 */

/* Made anew shortly before it expires, but not all the time if it lives shortly only. */
static int64_t stale_at(int64_t expires_ms)
{
	int64_t now_ms = clock_wall_ms(), left_ms = expires_ms - now_ms;

	if (expires_ms == 0)
		return 0;
	if (left_ms <= 0)
		return now_ms;
	return now_ms + (left_ms > 2 * KUBE_PLUGIN_MARGIN_MS ? left_ms - KUBE_PLUGIN_MARGIN_MS
							     : left_ms / 2);
}

static void take_made(struct kube_credential *credential, struct kube_made *made)
{
	struct kube_login *login = &credential->login;

	err_clear(&credential->fault);
	credential->stale_ms = stale_at(made->expires_ms);
	credential->expires_ms = made->expires_ms;
	set_bearer(credential, made->token);
	free(login->cert_pem);
	kube_wipe(login->key_pem);
	login->cert_pem = TAKE(made->cert_pem);
	login->key_pem = TAKE(made->key_pem);
}

static void has_failed(struct kube_credential *credential)
{
	credential->failed_ms = clock_ms();
	credential->stale_ms = clock_wall_ms() + STALE_PAUSE_MS;
}

static int on_made(void *ctx, int r, struct kube_made *made, struct err *fault, struct err *err)
{
	struct kube_credential *credential = ctx;

	(void)err;
	if (r == 0) {
		if (credential->cache_path)
			kube_cache_write(credential->cache_path, made);
		take_made(credential, made);
	} else {
		err_move(&credential->fault, fault);
		has_failed(credential);
	}
	kube_plugin_free(TAKE(credential->plugin));
	answer_soon(credential);
	return 0;
}

static void start_plugin(struct kube_credential *credential)
{
	struct err *fault = &credential->fault;

	if (credential->is_refused)
		return;
	if (err_is_set(fault) && clock_ms() < credential->failed_ms + FAILED_PAUSE_MS)
		return;
	err_clear(fault);
	int r = kube_plugin_allowed(&credential->options, fault);
	credential->is_refused = r < 0;
	if (r == 0)
		r = kube_plugin_start(
			&credential->options, on_made, credential, &credential->plugin, fault);
	if (r == 0)
		return;
	if (!err_is_set(fault))
		err_set(fault, E_KUBE_PLUGIN, "the program %s was not allowed",
			credential->options.access->exec->command);
	has_failed(credential);
}

static bool is_stale(const struct kube_credential *credential)
{
	return credential->stale_ms && clock_wall_ms() >= credential->stale_ms;
}

static void refresh(struct kube_credential *credential)
{
	const struct kube_access *access = credential->options.access;

	if (access->token_file &&
		(!credential->has_login || clock_ms() >= credential->read_ms + KUBE_TOKEN_FILE_MS))
		look_at_file(credential);
	if (!credential->uses_plugin)
		return;
	if (credential->expires_ms && clock_wall_ms() >= credential->expires_ms)
		credential->has_login = false;
	if (!credential->plugin && (!credential->has_login || is_stale(credential)))
		start_plugin(credential);
}

/*
 * The whole
 */

static void begin_plugin(struct kube_credential *credential)
{
	AUTO_KUBE_MADE struct kube_made made = {0};

	credential->uses_plugin = true;
	credential->cache_path =
		kube_cache_path(credential->options.access, &credential->options.plugin);
	if (credential->cache_path && kube_cache_read(credential->cache_path, &made))
		take_made(credential, &made);
	else
		start_plugin(credential);
}

struct kube_credential *kube_credential_new(const struct kube_credential_options *options)
{
	struct kube_credential *credential = mem_alloc(1, sizeof(*credential));
	const struct kube_access *access = options->access;

	credential->options = *options;
	if (options->limit_ms <= 0)
		credential->options.limit_ms = KUBE_PLUGIN_MS;
	credential->login.generation = 1;
	if (access->token_file) {
		look_at_file(credential);
	} else if (access->token) {
		set_bearer(credential, access->token);
	} else if (access->username || access->password) {
		set_basic(credential);
		credential->has_login = true;
	} else if (access->exec) {
		begin_plugin(credential);
	} else {
		credential->has_login = true;
	}
	return credential;
}

void kube_credential_free(struct kube_credential *credential)
{
	if (!credential)
		return;
	while (credential->waits) {
		struct kube_login_wait *next = credential->waits->next;
		free(credential->waits);
		credential->waits = next;
	}
	kube_plugin_free(credential->plugin);
	loop_remove_timer(credential->options.loop, credential->timer);
	kube_login_done(&credential->login);
	err_done(&credential->fault);
	free(credential->cache_path);
	free(credential);
}

struct kube_login_wait *kube_credential_want(
	struct kube_credential *credential, kube_login_fn *fn, void *ctx)
{
	struct kube_login_wait *wait = mem_alloc(1, sizeof(*wait));
	struct kube_login_wait **last = &credential->waits;

	*wait = (struct kube_login_wait){.credential = credential, .fn = fn, .ctx = ctx};
	while (*last)
		last = &(*last)->next;
	*last = wait;
	refresh(credential);
	answer_soon(credential);
	return wait;
}

void kube_credential_cancel(struct kube_login_wait *wait)
{
	if (!wait)
		return;
	struct kube_login_wait **at = &wait->credential->waits;
	while (*at != wait)
		at = &(*at)->next;
	*at = wait->next;
	free(wait);
}

bool kube_credential_refused(struct kube_credential *credential, unsigned generation)
{
	if (generation != credential->login.generation)
		return true;
	if (credential->options.access->token_file) {
		look_at_file(credential);
		return generation != credential->login.generation;
	}
	if (!credential->uses_plugin)
		return false;
	if (credential->cache_path)
		unlink(credential->cache_path);
	credential->has_login = false;
	return true;
}
