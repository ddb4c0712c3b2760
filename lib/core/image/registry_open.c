/* SPDX-License-Identifier: Apache-2.0 */
#include "core/image/registry_open.h"
#include "base/loop/loop.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/clock.h"
#include "base/util/digest.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/registry_config.h"
#include "core/target/target.h"
#include "oci/layout/layout.h"

enum { PUSH_TIMEOUT_MS = 10 * 60 * 1000, IDLE_MS = 30 * 1000 };
#define FOREVER_MS (365LL * 24 * 60 * 60 * 1000)

/* A time limit of 0 is none, as with `timeout:`. */
static int64_t timeout_ms(const struct registry_client_options *options)
{
	if (options->limit_ms)
		return options->limit_ms;
	if (options->is_large && !config_is_set(options->config, "push_timeout"))
		return FOREVER_MS;
	int64_t configured = config_duration(options->config, "push_timeout", PUSH_TIMEOUT_MS);
	return configured > 0 ? configured : FOREVER_MS;
}

void registry_client_init(
	struct registry_client *client, const struct registry_client_options *options)
{
	const char *const *env = options->session->env.env;
	const struct session_env *session = &options->session->env;
	struct http_options http = http_options_of(options->loop, env);

	*client = (struct registry_client){
		.options = *options,
		.deadline_ms = clock_deadline(timeout_ms(options)),
		.credentials =
			{
				.home = options->session->dirs.home,
				.registry_auth_file = env_get(env, "REGISTRY_AUTH_FILE"),
				.docker_config = env_get(env, "DOCKER_CONFIG"),
				.xdg_runtime_dir = session->dirs.xdg_runtime_dir,
				.xdg_config_home = session->dirs.xdg_config_home,
				.env = env,
				.realms = config_list(options->config, "registry_realms"),
			},
	};
	http.event = options->event;
	http.event_ctx = options->ctx;
	/* Passwords and tokens are about to be here. */
	os_protect_memory();
	client->http = http_new(&http);
}

void registry_client_done(struct registry_client *client)
{
	http_free(client->http);
	vec_foreach (struct registry_tunnel *, tunnel, &client->tunnels)
		(*tunnel)->free(*tunnel);
	vec_done(&client->tunnels);
	*client = (struct registry_client){0};
}

/* Find the settings of the registry for this target, else those from anywhere. */
static void find_known(
	const struct registry_client *client, const struct ref *ref, struct registry_config *ret)
{
	const struct registry_client_options *options = &client->options;
	const char *target = options->target ? options->target->name : options->target_name;
	AUTO_REGISTRY_CONFIG struct registry_config own = {0};
	size_t len = strlen(ref->host);

	registry_config_for_host(options->config, ref->host, ret);
	if (!target || registry_config_find(options->config, target, &own, NULL) <= 0 ||
		!own.forward || strncasecmp(own.push, ref->host, len) != 0 || own.push[len] != '/')
		return;
	registry_config_done(ret);
	*ret = own;
	own = (struct registry_config){0};
}

static int open_tunnel(struct registry_client *client, const char *host,
	const struct registry_config *known, struct err *err)
{
	const struct registry_tunnel_options options = {
		.session = client->options.session,
		.target = client->options.target,
		.target_name = known->target,
		.host = host,
		.forward = known->forward,
		.http = client->http,
		.note = client->options.note,
		.ctx = client->options.ctx,
	};
	struct registry_tunnel *tunnel;

	vec_foreach (struct registry_tunnel *, other, &client->tunnels)
		if (strcasecmp((*other)->host, host) == 0)
			return 0;
	int r = options.session->env.open_tunnel(&options, &tunnel, err);
	if (r == 0)
		*vec_push(&client->tunnels) = tunnel;
	return r;
}

int registry_client_open(struct registry_client *client, const struct ref *ref, bool push,
	const struct registry_cache *cache, struct registry **ret, struct err *err)
{
	AUTO_REGISTRY_CONFIG struct registry_config known = {0};
	int64_t limit = timeout_ms(&client->options);
	struct registry_options options = {
		.http = client->http,
		.loop = client->options.loop,
	};

	find_known(client, ref, &known);
	if (known.forward) {
		int r = open_tunnel(client, ref->host, &known, err);
		if (r < 0)
			return r;
	}
	if (known.insecure && client->options.warnings)
		strv_addf(client->options.warnings,
			"registry %s: its certificate is not checked (insecure: true)", ref->host);
	options.env = &client->credentials;
	options.host = ref->host;
	options.repo = ref->repo;
	options.push = push;
	options.ca_file = known.ca;
	options.cert_file = known.cert;
	options.key_file = known.key;
	options.insecure = known.insecure;
	options.deadline_ms = client->deadline_ms;
	options.idle_ms = limit < IDLE_MS ? limit : IDLE_MS;
	options.remembered_challenge = cache->challenge;
	options.remembered_open = cache->open;
	options.remembered_http = cache->http;
	options.note = client->options.note;
	options.note_ctx = client->options.ctx;
	return registry_new(&options, ret, err);
}

void registry_client_learn(const struct registry *registry, struct registry_cache *cache)
{
	const char *challenge = auth_challenge(registry_auth((struct registry *)registry));
	bool http = registry_uses_http(registry);

	if (!registry_has_responded(registry))
		return;
	if (!str_eq(challenge, cache->challenge)) {
		REPLACE(cache->challenge, mem_strdup(challenge));
		cache->changed = true;
	}
	cache->changed |= cache->http != http || cache->open != !challenge;
	cache->http = http;
	cache->open = !challenge;
}

char *registry_cache_path(const char *dir, const char *host, const char *repo)
{
	AUTO_FREE char *text = mem_printf("%s/%s", host, repo);
	uint8_t sha256[SHA256_SIZE];
	char hex[SHA256_HEX_SIZE];

	digest_sha256(text, strlen(text), sha256);
	hex_encode(sha256, sizeof(sha256), hex);
	return mem_printf("%s/%s.json", dir, hex);
}

char *registry_cache_tag(const struct ref *ref, const char *platform)
{
	return mem_printf("%s %s", ref->tag ? ref->tag : "latest", platform);
}

int registry_open_bases(const struct session *session, struct layout **ret, struct err *err)
{
	AUTO_FREE char *registries = dirs_registries(&session->dirs);
	AUTO_FREE char *dir = fs_join(registries, "bases");
	int r = fs_private_dir(registries, err);

	return r < 0 ? r : layout_open(dir, true, ret, err);
}

int registry_query_init(
	struct registry_client *client, struct session *session, int64_t limit_ms, struct err *err)
{
	struct config *config;

	*client = (struct registry_client){0};
	int r = session_config(session, &config, err);
	if (r < 0)
		return r;
	registry_client_init(client, &(struct registry_client_options){
					     .session = session,
					     .config = config,
					     .loop = session_loop(session),
					     .limit_ms = limit_ms,
				     });
	return 0;
}

int registry_query_open(struct registry_client *client, const char *text, bool push,
	struct registry **ret, struct err *err)
{
	const struct registry_cache nothing = {0};
	AUTO_REF struct ref ref = {0};

	int r = ref_parse(text, &ref, err);
	if (r < 0)
		return r;
	BUG_ON(ref.kind != REF_REGISTRY);
	return registry_client_open(client, &ref, push, &nothing, ret, err);
}

/* The sources of CA certificates, in the order of registry.h and http.h. */
static char *issuers_of(
	const struct registry_client *client, const char *host, const struct registry_config *said)
{
	const char *file = env_get(client->options.session->env.env, "SSL_CERT_FILE");
	AUTO_FREE char *docker = registry_find_ca(host);

	if (said->insecure)
		return mem_strdup("any certificate (insecure: true)");
	if (said->ca)
		return mem_printf("issuers in %s (ca:)", said->ca);
	if (docker)
		return mem_printf("issuers in %s", docker);
	if (!str_empty(file))
		return mem_printf("issuers in %s (SSL_CERT_FILE)", file);
	return mem_strdup("issuers of this system");
}

char *registry_query_certificates(const struct registry_client *client, const char *host)
{
	AUTO_REGISTRY_CONFIG struct registry_config said = {0};
	AUTO_FREE char *key = NULL;

	registry_config_for_host(client->options.config, host, &said);
	AUTO_FREE char *issuers = issuers_of(client, host, &said);
	AUTO_FREE char *docker = registry_find_cert(host, &key);
	if (said.cert)
		return mem_printf("%s, client certificate %s (cert:)", issuers, said.cert);
	if (docker)
		return mem_printf("%s, client certificate %s", issuers, docker);
	return TAKE(issuers);
}

/*
 * Waiting
 */

void registry_reply_done(struct registry_reply *reply)
{
	if (!reply)
		return;
	strv_done(&reply->headers);
	buf_done(&reply->body);
	url_done(&reply->url);
	*reply = (struct registry_reply){0};
}

struct waiting {
	struct loop_wait wait;
	struct registry_call *call; /* NULL: it has ended */
	struct registry_reply *reply;
	struct err error;
};

static int registry_open_on_done(
	void *ctx, struct http_response *response, struct err *error, struct err *err UNUSED)
{
	struct waiting *waiting = ctx;
	const struct registry_call *call = waiting->call;

	waiting->call = NULL;
	if (!error && (response->status == 401 || response->status == 403)) {
		registry_call_error(call, response, &waiting->error);
	} else if (error) {
		err_move(&waiting->error, error);
	} else {
		waiting->reply->status = response->status;
		strv_copy(&waiting->reply->headers, &response->headers);
		buf_init(&waiting->reply->body, response->body.len + 1);
		if (response->body.len)
			buf_add(&waiting->reply->body, response->body.data, response->body.len);
		url_copy(&response->url, &waiting->reply->url);
	}
	loop_wait_done(&waiting->wait);
	return 0;
}

int registry_query(struct registry_client *client, struct registry *registry,
	const struct registry_request *request, struct registry_reply *ret, struct err *err)
{
	struct registry_request copy = *request;
	struct waiting waiting = {
		.wait = {.loop = client->options.loop, .n_open = 1}, .reply = ret};

	*ret = (struct registry_reply){0};
	copy.done = registry_open_on_done;
	copy.ctx = &waiting;
	waiting.call = registry_start(registry, &copy);
	int r = loop_wait_run(&waiting.wait, err);
	if (waiting.call)
		registry_cancel(waiting.call);
	if (r == 0 && err_is_set(&waiting.error))
		r = err_move(err, &waiting.error);
	err_done(&waiting.error);
	return r;
}
