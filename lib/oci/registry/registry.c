/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/registry/registry.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/stream/field.h"
#include "oci/registry/registry_impl.h"

/*
 * Names
 */

static bool is_docker_hub(const char *host)
{
	return str_eq(host, "docker.io") || str_eq(host, "index.docker.io");
}

char *registry_repo_path(const struct registry *registry, const char *repo)
{
	if (is_docker_hub(registry->host) && !strchr(repo, '/'))
		return mem_printf("library/%s", repo);
	return mem_strdup(repo);
}

const char *registry_name(const struct registry *registry)
{
	return registry->name;
}

const char *registry_host(const struct registry *registry)
{
	return registry->host;
}

struct auth *registry_auth(struct registry *registry)
{
	return registry->auth;
}

bool registry_uses_http(const struct registry *registry)
{
	return !registry->origin.tls;
}

int64_t registry_deadline_ms(const struct registry *registry)
{
	return registry->deadline_ms;
}

bool registry_has_answered(const struct registry *registry)
{
	return registry->answered;
}

/*
 * The login
 */

static void make_auth(struct registry *registry)
{
	const struct auth_options options = {
		.http = registry->http,
		.loop = registry->loop,
		.env = registry->env,
		.host = registry->host,
		.repo = registry->repo,
		.registry = &registry->origin,
		.tls = &registry->tls,
		.remembered_challenge = registry->remembered_challenge,
	};

	registry->auth = auth_new(&options);
	vec_foreach (char *, scope, &registry->scopes)
		auth_add_scope(registry->auth, *scope);
	if (registry->has_other_login)
		auth_allow_fewer_scopes(registry->auth);
}

static void add_scope(struct registry *registry, const char *repo, const char *actions)
{
	AUTO_FREE char *path = registry_repo_path(registry, repo);

	strv_addf(&registry->scopes, "repository:%s:%s", path, actions);
}

bool registry_shares_login(const struct registry *registry, const char *repo)
{
	return credential_is_shared(registry->env, registry->host, registry->repo, repo);
}

void registry_add_source(struct registry *registry, const char *repo, bool shares_login)
{
	AUTO_FREE char *path = registry_repo_path(registry, repo);
	AUTO_FREE char *scope = mem_printf("repository:%s:pull", path);

	/* The first scope is for the registry's own repository and has this, too. */
	if (str_eq(repo, registry->repo) || strv_find(&registry->scopes, scope) >= 0)
		return;
	strv_add(&registry->scopes, scope);
	auth_add_scope(registry->auth, scope);
	if (!shares_login) {
		registry->has_other_login = true;
		auth_allow_fewer_scopes(registry->auth);
	}
}

/*
 * https or http
 */

static bool is_port_written(const struct registry *registry)
{
	const char *bracket = strrchr(registry->server, ']');

	return strchr(bracket ? bracket : registry->server, ':') != NULL;
}

static int set_origin(struct registry *registry, bool tls, struct err *err)
{
	struct url url = {0};
	int r = url_make(tls, registry->server, "/", &url, err);

	if (r < 0)
		return r;
	url_done(&registry->origin);
	registry->origin = url;
	return 0;
}

static int pick_scheme(
	struct registry *registry, const struct registry_options *options, struct err *err)
{
	int r = set_origin(registry, true, err);

	if (r < 0)
		return r;
	bool loopback =
		url_is_loopback(&registry->origin) && !registry->ca_file && !registry->tls.cert_pem;
	bool known = options->remembered_challenge || options->remembered_open;
	registry->may_switch = loopback || options->insecure;
	/* Remembered options were learnt by https unless remembered_http is set. TLS servers do not
	 * always say so before they close a connection without it. */
	if (!registry->may_switch || (!options->remembered_http && (known || !loopback)))
		return 0;
	return set_origin(registry, false, err);
}

void registry_switch_scheme(struct registry *registry)
{
	registry->switches++;
	registry_drop_spares(registry);
	registry_drop_waits(registry);
	auth_free(registry->auth);
	/* The host was good for the first one. */
	BUG_ON(set_origin(registry, !registry->origin.tls, NULL) < 0);
	make_auth(registry);
	registry_renew_waits(registry);
}

/* Recognize the response of a TLS web server to a request without TLS. */
static bool wants_tls(const struct http_answer *answer)
{
	return answer->status == 400 && answer->body.len > 0 &&
	       strcasestr(answer->body.data, "https") && strcasestr(answer->body.data, "http re");
}

bool registry_wants_switch(const struct registry *registry, const struct http_answer *answer)
{
	enum err_id id = answer->fault.id;

	if (!registry->may_switch || registry->switches >= REGISTRY_SWITCHES_MAX)
		return false;
	if (!registry->origin.tls)
		return id == E_HTTP_PROTOCOL || wants_tls(answer);
	/* A server that was reached by http and required https means it. */
	if (registry->switches > 0)
		return false;
	return id == E_HTTP_TLS || (id == E_HTTP_CLOSED && !answer->sent) ||
	       (id == E_HTTP_CONNECT && !is_port_written(registry));
}

bool registry_wants_probe(const struct registry *registry, const struct err *fault)
{
	return fault->id == E_HTTP_TLS && registry->origin.tls && !registry->may_switch &&
	       !registry->answered && is_port_written(registry);
}

/*
 * The registry
 */

int registry_new(const struct registry_options *options, struct registry **ret, struct err *err)
{
	AUTO_REGISTRY struct registry *registry = mem_alloc(1, sizeof(*registry));

	registry->http = options->http;
	registry->loop = options->loop;
	registry->env = options->env;
	registry->host = mem_strdup(options->host);
	registry->repo = mem_strdup(options->repo);
	registry->name = mem_printf("%s/%s", options->host, options->repo);
	registry->server =
		mem_strdup(is_docker_hub(options->host) ? "registry-1.docker.io" : options->host);
	registry->ca_file =
		options->ca_file ? mem_strdup(options->ca_file) : registry_find_ca(options->host);
	registry->remembered_challenge = mem_strdup(options->remembered_challenge);
	registry->tls =
		(struct http_tls){.ca_file = registry->ca_file, .insecure = options->insecure};
	registry->deadline_ms = options->deadline_ms;
	registry->idle_ms = options->idle_ms;
	registry->note = options->note;
	registry->note_ctx = options->note_ctx;
	int r = registry_read_cert(registry, options, err);
	if (r < 0)
		return r;
	r = pick_scheme(registry, options, err);
	if (r < 0)
		return err_prefix(err, "registry %s", options->host);
	registry->gated = (!options->remembered_challenge && !options->remembered_open) ||
			  (registry->may_switch && !options->remembered_http);
	add_scope(registry, options->repo, options->push ? "pull,push" : "pull");
	make_auth(registry);
	*ret = TAKE(registry);
	return 0;
}

void registry_free(struct registry *registry)
{
	if (!registry)
		return;
	registry->gated = false;
	while (registry->calls)
		registry_cancel(registry->calls);
	registry_drop_spares(registry);
	vec_done(&registry->spares);
	auth_free(registry->auth);
	strv_done(&registry->scopes);
	url_done(&registry->origin);
	free(registry->host);
	free(registry->repo);
	free(registry->name);
	free(registry->server);
	free(registry->ca_file);
	buf_done(&registry->cert);
	buf_done(&registry->key);
	free(registry->remembered_challenge);
	free(registry);
}

/* The registry itself, as a proxy before it names it that does not say that TLS ends there. */
static bool is_own_by_http(const struct registry *registry, const struct url *url)
{
	const struct url *origin = &registry->origin;

	return origin->tls && !url->tls && str_eq(url->host, origin->host) &&
	       (url->port == origin->port || url->port == 80);
}

int registry_location(const struct registry *registry, const struct http_answer *answer,
	struct url *ret, struct err *err)
{
	const char *location = field_find(&answer->headers, "location");
	AUTO_URL struct url url = {0};

	if (str_empty(location))
		return err_set(err, E_REGISTRY_ANSWER, "registry %s answers %d without a Location",
			registry->host, answer->status);
	int r = url_resolve(&answer->url, location, "the Location of its answer", &url, err);
	if (r < 0)
		return err_prefix(err, "registry %s", registry->host);
	if (is_own_by_http(registry, &url)) {
		url.tls = true;
		url.port = registry->origin.port;
	}
	if (registry->origin.tls && !url.tls) {
		AUTO_FREE char *shown = url_shown(&url);
		return err_set(err, E_REGISTRY_ANSWER, "registry %s leads from https to http: %s",
			registry->host, shown);
	}
	*ret = url;
	url = (struct url){0};
	return 0;
}
