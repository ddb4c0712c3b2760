/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/registry/registry.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/random.h"
#include "base/util/str.h"
#include "net/stream/field.h"
#include "oci/registry/registry_error.h"

enum {
	REGISTRY_CONNECT_MS = 2000, /* for a host that has not responded yet and refuses */
	REGISTRY_PROBE_MS = 3000,
	REGISTRY_LOGINS_MAX = 4,   /* of one call, if auth.c finds each worth while */
	REGISTRY_SWITCHES_MAX = 2, /* between https and http: there and back */
};

struct registry {
	struct http *http;
	struct loop *loop;
	const struct credential_env *env;
	char *host, *repo; /* as the user wrote them */
	char *name;        /* "HOST/REPO" */
	char *server;      /* where requests go: host[:port] */
	char *ca_file;
	struct buf cert, key; /* PEM text, or empty */
	char *remembered_challenge;
	struct http_tls tls;
	struct url origin; /* path "/" */
	struct strv scopes;
	bool has_other_login; /* a source of mounts is read with a login of its own */
	struct auth *auth;
	int64_t deadline_ms, idle_ms;
	void (*note)(void *ctx, const char *text);
	void *note_ctx;
	bool may_switch; /* the other scheme is allowed, too */
	unsigned switches;
	bool answered;  /* by what speaks HTTP at the origin */
	bool succeeded; /* it has taken a request: there are connections to use again */
	enum address_zone zone;
	bool gated; /* until the first response, the others wait for the pilot */
	struct registry_call *pilot;
	struct registry_call *calls;
	unsigned n_expected; /* requests without a body */
	/* Held ones of no call yet, sent by those to come. */
	struct http_calls VEC_OF(struct http_call *) spares;
};

/* Probe whether a host with which TLS failed speaks plain http. Nothing secret is
 * sent. error is moved to done as it is, or as E_REGISTRY_INSECURE. */
struct registry_probe;
typedef int registry_probed_fn(void *ctx, struct err *error, struct err *err);

static int registry_read_cert(
	struct registry *registry, const struct registry_options *options, struct err *err);
static void registry_drop_waits(struct registry *registry);
static void registry_renew_waits(struct registry *registry);
static void registry_drop_spares(struct registry *registry);

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

struct loop *registry_loop(const struct registry *registry)
{
	return registry->loop;
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

bool registry_has_responded(const struct registry *registry)
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

static int registry_set_origin(struct registry *registry, bool tls, struct err *err)
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
	int r = registry_set_origin(registry, true, err);

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
	return registry_set_origin(registry, false, err);
}

/* The other of https and http from now on, with a new look-up of the login. */
static void registry_switch_scheme(struct registry *registry)
{
	registry->switches++;
	registry_drop_spares(registry);
	registry_drop_waits(registry);
	auth_free(registry->auth);
	/* The host was good for the first one. */
	BUG_ON(registry_set_origin(registry, !registry->origin.tls, NULL) < 0);
	make_auth(registry);
	registry_renew_waits(registry);
}

/* Recognize the response of a TLS web server to a request without TLS. */
static bool wants_tls(const struct http_response *response)
{
	return response->status == 400 && response->body.len > 0 &&
	       strcasestr(response->body.data, "https") &&
	       strcasestr(response->body.data, "http re");
}

/* Whether the error means that the origin speaks the other scheme, and that one may be tried. */
static bool registry_wants_switch(
	const struct registry *registry, const struct http_response *response)
{
	enum err_id id = response->error.id;

	if (!registry->may_switch || registry->switches >= REGISTRY_SWITCHES_MAX)
		return false;
	if (!registry->origin.tls)
		return id == E_HTTP_PROTOCOL || wants_tls(response);
	/* A server that was reached by http and required https means it. */
	if (registry->switches > 0)
		return false;
	return id == E_HTTP_TLS || (id == E_HTTP_CLOSED && !response->sent) ||
	       (id == E_HTTP_CONNECT && !is_port_written(registry));
}

/* Whether it would make sense. */
static bool registry_wants_probe(const struct registry *registry, const struct err *error)
{
	return error->id == E_HTTP_TLS && registry->origin.tls && !registry->may_switch &&
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
	AUTO_FREE char *path = registry_repo_path(registry, options->repo);
	strv_addf(
		&registry->scopes, "repository:%s:%s", path, options->push ? "pull,push" : "pull");
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

int registry_location(const struct registry *registry, const struct http_response *response,
	struct url *ret, struct err *err)
{
	const char *location = field_find(&response->headers, "location");
	AUTO_URL struct url url = {0};

	if (str_empty(location))
		return err_set(err, E_REGISTRY_RESPONSE,
			"registry %s answers %d without a Location", registry->host,
			response->status);
	int r = url_resolve(&response->url, location, "the Location of its answer", &url, err);
	if (r < 0)
		return err_prefix(err, "registry %s", registry->host);
	if (is_own_by_http(registry, &url)) {
		url.tls = true;
		url.port = registry->origin.port;
	}
	if (registry->origin.tls && !url.tls) {
		AUTO_FREE char *shown = url_shown(&url);
		return err_set(err, E_REGISTRY_RESPONSE, "registry %s leads from https to http: %s",
			registry->host, shown);
	}
	*ret = url;
	url = (struct url){0};
	return 0;
}

#define CERTS_DIR "/etc/docker/certs.d"

enum { PEM_MAX = 1 << 20 };

/* HOST's directory, or NULL if host is no name for one. */
static char *certs_dir(const char *host)
{
	return strchr(host, '/') || *host == '.' ? NULL : mem_printf("%s/%s", CERTS_DIR, host);
}

char *registry_find_ca(const char *host)
{
	AUTO_FREE char *dir = certs_dir(host);
	AUTO_FREE char *path = dir ? fs_join(dir, "ca.crt") : NULL;

	return path && access(path, R_OK) == 0 ? TAKE(path) : NULL;
}

char *registry_find_cert(const char *host, char **ret_key)
{
	AUTO_FREE char *dir = certs_dir(host), *first = NULL;
	AUTO_DIR DIR *names = dir ? opendir(dir) : NULL;

	*ret_key = NULL;
	for (const struct dirent *entry; names && (entry = readdir(names));) {
		if (!str_ends(entry->d_name, ".cert"))
			continue;
		if (first && strcmp(entry->d_name, first) > 0)
			continue;
		REPLACE(first, mem_strdup(entry->d_name));
	}
	if (!first)
		return NULL;
	char *cert = fs_join(dir, first);
	*ret_key = mem_printf("%.*s.key", (int)(strlen(cert) - strlen(".cert")), cert);
	return cert;
}

static int read_pem(
	const char *path, const char *what, const char *host, struct buf *ret, struct err *err)
{
	AUTO_ERR struct err error = {0};

	if (fs_read_regular(path, PEM_MAX, ret, NULL, NULL, &error) < 0) {
		err_set(err, E_HTTP_CERT, "the %s for %s cannot be used", what, host);
		return err_evidence(err, "%s", error.message);
	}
	return 0;
}

/* The certificate of this side, if there is one, to its tls. E_HTTP_CERT. */
static int registry_read_cert(
	struct registry *registry, const struct registry_options *options, struct err *err)
{
	AUTO_FREE char *key = NULL;
	AUTO_FREE char *cert = NULL;

	if (options->cert_file) {
		cert = mem_strdup(options->cert_file);
		key = mem_strdup(options->key_file);
	} else {
		cert = registry_find_cert(options->host, &key);
	}
	if (!cert)
		return 0;
	int r = read_pem(cert, "client certificate", options->host, &registry->cert, err);
	if (r == 0)
		r = read_pem(
			key, "key of the client certificate", options->host, &registry->key, err);
	if (r < 0)
		return r;
	registry->tls.cert_pem = registry->cert.data;
	registry->tls.key_pem = registry->key.data;
	return 0;
}

struct registry_probe {
	struct registry *registry;
	struct http_call *call;
	struct err error;
	registry_probed_fn *done;
	void *ctx;
};

/* A server with TLS answers 400 to this; a proxy on the way may say anything else. */
static bool is_registry(const struct http_response *response)
{
	return response->status == 200 || response->status == 401 ||
	       field_find(&response->headers, "docker-distribution-api-version");
}

static int registry_probe_on_response(void *ctx, struct http_response *response, struct err *err)
{
	struct registry_probe *probe = ctx;
	AUTO_ERR struct err error = {0};

	probe->call = NULL;
	err_move(&error, &probe->error);
	if (is_registry(response)) {
		err_set(&error, E_REGISTRY_INSECURE, "registry %s speaks http only, without TLS",
			probe->registry->host);
		err_hint(&error, "registry: {push: %s, insecure: true}", probe->registry->name);
	}
	return probe->done(probe->ctx, &error, err);
}

static struct registry_probe *registry_probe_start(
	struct registry *registry, struct err *error, registry_probed_fn *done, void *ctx)
{
	struct registry_probe *probe = mem_alloc(1, sizeof(*probe));
	AUTO_URL struct url url = {0};
	int64_t end_ms = clock_deadline(REGISTRY_PROBE_MS);

	probe->registry = registry;
	probe->done = done;
	probe->ctx = ctx;
	err_move(&probe->error, error);
	/* The host was good for https. */
	BUG_ON(url_make(false, registry->server, "/v2/", &url, NULL) < 0);
	const struct http_request request = {
		.method = "GET",
		.url = &url,
		.max_body = HTTP_ERROR_BODY_MAX,
		.deadline_ms = end_ms < registry->deadline_ms ? end_ms : registry->deadline_ms,
		.done = registry_probe_on_response,
		.ctx = probe,
	};
	probe->call = http_start(registry->http, &request);
	return probe;
}

static void registry_probe_free(struct registry_probe *probe)
{
	if (!probe)
		return;
	http_cancel(probe->call);
	err_done(&probe->error);
	free(probe);
}

enum { NOTE_MIN_MS = 1000, AHEAD_MAX = HTTP_CONNECTIONS_MAX - 2 };

/* A request of a caller: as many http requests as it takes. One of wait, http and probe is under
 * way (with wait a held http, too), or timer runs, or it waits for the pilot. */
struct registry_call {
	struct registry *registry;
	struct registry_call *prev, *next;
	struct registry_request request; /* its strings are owned */
	struct url url;                  /* of it, or empty */
	struct strv headers;
	char *repo;
	bool foreign;  /* url is of another origin: no login */
	bool finished; /* done was or is being called */
	bool behind_gate;

	struct auth_wait *wait;
	bool waiting;
	struct http_call *http;
	bool by_tls; /* how it was sent */
	struct registry_probe *probe;
	struct loop_timer *timer, *deadline_timer;

	unsigned generation; /* of the authorization */
	unsigned logins, tries;
	int64_t began_ms;
	bool spent;       /* the body was read, or data was given: it cannot be sent again */
	struct err cause; /* why it was tried again */
	struct err error; /* to be delivered by timer */
	struct http_response kept; /* that was accepted, in case of no better one */
};

static void registry_authorize(struct registry_call *call);

/*
 * The end
 */

static void registry_stop(struct registry_call *call)
{
	struct loop *loop = call->registry->loop;

	auth_cancel(TAKE(call->wait));
	call->waiting = call->behind_gate = false;
	http_cancel(TAKE(call->http));
	registry_probe_free(TAKE(call->probe));
	loop_remove_timer(loop, TAKE(call->timer));
	loop_remove_timer(loop, TAKE(call->deadline_timer));
}

static void registry_free_call(struct registry_call *call)
{
	free((char *)call->request.method);
	free((char *)call->request.repo);
	free((char *)call->request.path);
	free((char *)call->request.doing);
	if (call->request.body.copy)
		free((void *)call->request.body.data);
	free(call->repo);
	url_done(&call->url);
	strv_done(&call->headers);
	err_done(&call->cause);
	err_done(&call->error);
	http_response_done(&call->kept);
	free(call);
}

static void registry_unlink_call(struct registry_call *call)
{
	if (call->prev)
		call->prev->next = call->next;
	else
		call->registry->calls = call->next;
	if (call->next)
		call->next->prev = call->prev;
}

/* The pilot has shown the way, or is no more. */
static void open_gate(struct registry *registry)
{
	registry->gated = false;
	registry->pilot = NULL;
	for (struct registry_call *call = registry->calls; call; call = call->next) {
		if (!call->behind_gate)
			continue;
		call->behind_gate = false;
		registry_authorize(call);
	}
}

/* The registry may be gone when done returns. */
static int registry_finish(struct registry_call *call, struct http_response *response,
	struct err *error, struct err *err)
{
	struct registry *registry = call->registry;

	call->finished = true;
	registry_stop(call);
	registry_unlink_call(call);
	if (registry->pilot == call)
		open_gate(registry);
	int r = call->request.done(call->request.ctx, response, error, err);
	registry_free_call(call);
	return r;
}

void registry_cancel(struct registry_call *call)
{
	struct registry *registry = call ? call->registry : NULL;

	if (!call || call->finished)
		return;
	registry_stop(call);
	registry_unlink_call(call);
	if (registry->pilot == call && registry->gated)
		open_gate(registry);
	registry_free_call(call);
}

void registry_resume(struct registry_call *call)
{
	if (call->http)
		http_resume(call->http);
}

uint64_t registry_sent(const struct registry_call *call)
{
	return call->http ? http_sent(call->http) : 0;
}

static int registry_timer_due(void *ctx, struct err *err)
{
	struct registry_call *call = ctx;

	call->timer = NULL;
	if (call->kept.status)
		return registry_finish(call, &call->kept, NULL, err);
	if (err_is_set(&call->error))
		return registry_finish(call, NULL, &call->error, err);
	registry_authorize(call);
	return 0;
}

/*
 * Failures
 */

static struct registry_requested registry_requested_of(
	const struct registry_call *call, const struct url *from)
{
	return (struct registry_requested){
		.host = call->registry->host,
		.repo = call->request.repo ? call->request.repo : call->registry->repo,
		.doing = call->request.doing,
		.method = call->request.method,
		.identity = auth_identity(call->registry->auth),
		.elsewhere = from->host && !str_eq(from->host, call->registry->origin.host),
	};
}

int registry_call_error(
	const struct registry_call *call, const struct http_response *response, struct err *err)
{
	const struct registry_requested what = registry_requested_of(call, &response->url);

	return registry_refusal(&what, response, err);
}

static int registry_deadline_due(void *ctx, struct err *err)
{
	struct registry_call *call = ctx;
	AUTO_ERR struct err error = {0};

	call->deadline_timer = NULL;
	err_set(&error, E_REGISTRY_TIMEOUT, "registry %s: timed out (%s)", call->registry->host,
		call->request.doing);
	if (err_is_set(&call->cause))
		err_evidence(&error, "before that: %s", call->cause.message);
	err_hint(&error, "export DLRUN_PUSH_TIMEOUT=30m   # or push_timeout: in dlrun.yaml");
	return registry_finish(call, NULL, &error, err);
}

/* The cause of the last try, as the reason to give up. */
static int registry_give_up(struct registry_call *call, struct err *err)
{
	AUTO_ERR struct err error = {0};
	const struct err *cause = &call->cause;

	if (call->tries > 1)
		err_set(&error, E_REGISTRY_UNREACHABLE, "%s (%u tries)", cause->message,
			call->tries);
	else
		err_set(&error, E_REGISTRY_UNREACHABLE, "%s", cause->message);
	for (size_t i = 0; i < cause->n_evidence; i++)
		err_evidence(&error, "%s", cause->evidence[i]);
	err_hint(&error, "%s", cause->hint ? cause->hint : "dlrun doctor");
	return registry_finish(call, NULL, &error, err);
}

static void registry_add_hint(const struct registry_call *call, struct err *error)
{
	if (error->id == E_HTTP_TLS)
		err_hint(error, "registry: {push: %s, ca: registry-ca.pem}", call->registry->name);
	else if (error->id == E_HTTP_CERT)
		err_hint(error, "registry: {push: %s, cert: client.cert, key: client.key}",
			call->registry->name);
	else if (error->id == E_HTTP_CONNECT || error->id == E_HTTP_RESOLVE)
		err_hint(error, "dlrun doctor");
}

static int registry_on_probed(void *ctx, struct err *error, struct err *err)
{
	struct registry_call *call = ctx;

	registry_add_hint(call, error);
	return registry_finish(call, NULL, error, err);
}

/* Whether an error is of lib/net; others are of the source or the receiver of the bytes. */
static bool registry_is_net_error(const struct err *error)
{
	return error->id >= E_HTTP_CLOSED && error->id <= E_HTTP_ZONE;
}

/* Faults of lib/net begin with the host they are about, or have it somewhere. */
static void name_registry(const struct registry_call *call, struct err *error)
{
	const char *host = call->registry->host;
	size_t len = strlen(host);

	if (strncmp(error->message, host, len) != 0 || error->message[len] != ' ') {
		err_prefix(error, "registry %s", host);
		return;
	}
	AUTO_FREE char *message = error->message;
	error->message = mem_printf("registry %s", message);
}

/* An error that will not go away. */
static int registry_fail(struct registry_call *call, struct err *error, struct err *err)
{
	bool probe = !call->foreign && registry_wants_probe(call->registry, error);

	if (registry_is_net_error(error))
		name_registry(call, error);
	if (probe) {
		call->probe = registry_probe_start(call->registry, error, registry_on_probed, call);
		return 0;
	}
	registry_add_hint(call, error);
	return registry_finish(call, NULL, error, err);
}

/*
 * Trying again
 */

/* Half of it jitter, so that all tries together outlast a line that is gone for a second; what the
 * server asks for is at least waited, but not more than people would. */
static int64_t delay_ms(const struct registry_call *call, const struct http_response *response)
{
	static const uint32_t caps_ms[REGISTRY_TRIES - 1] = {200, 600, 1800, 5000};
	const char *text = response ? field_find(&response->headers, "retry-after") : NULL;
	int64_t requested_ms = text ? field_retry_after(text, clock_wall_ms()) : -1;
	uint32_t half_ms = caps_ms[call->tries - 1] / 2;
	int64_t jitter_ms = half_ms + random_below(half_ms + 1);

	if (requested_ms > REGISTRY_RETRY_AFTER_MAX_MS)
		return REGISTRY_RETRY_AFTER_MAX_MS;
	return requested_ms > jitter_ms ? requested_ms : jitter_ms;
}

static void registry_note_wait(const struct registry_call *call, int64_t wait_ms)
{
	char text[32];

	if (wait_ms < NOTE_MIN_MS || !call->registry->note)
		return;
	AUTO_FREE char *note =
		mem_printf("%s, waiting %s", call->cause.message, duration_text(wait_ms, text));
	call->registry->note(call->registry->note_ctx, note);
}

/* The cause is set. end_ms: no try begins later. */
static int registry_again(struct registry_call *call, const struct http_response *response,
	int64_t end_ms, struct err *err)
{
	int64_t now_ms = clock_ms();
	char text[32];

	if (call->tries >= REGISTRY_TRIES || now_ms >= end_ms)
		return registry_give_up(call, err);
	int64_t wait_ms = delay_ms(call, response);
	if (end_ms != INT64_MAX && now_ms + wait_ms > end_ms)
		wait_ms = end_ms - now_ms;
	if (now_ms + wait_ms >= call->registry->deadline_ms) {
		err_evidence(&call->cause, "another try, in %s, would come too late",
			duration_text(wait_ms, text));
		return registry_give_up(call, err);
	}
	registry_note_wait(call, wait_ms);
	call->timer =
		loop_add_timer(call->registry->loop, now_ms + wait_ms, registry_timer_due, call);
	return 0;
}

static bool may_send_again(const struct registry_call *call, const struct http_response *response)
{
	if (call->spent)
		return false;
	return !call->request.once ||
	       (response->status ? response->status == 429 : !response->sent);
}

static void other_scheme(struct registry_call *call)
{
	/* Another call may have been faster. */
	if (call->by_tls == call->registry->origin.tls)
		registry_switch_scheme(call->registry);
	registry_authorize(call);
}

/* Whether it is to be sent by the other scheme: now, or because that was changed meanwhile. */
static bool is_of_other_scheme(
	const struct registry_call *call, const struct http_response *response)
{
	const struct registry *registry = call->registry;

	if (call->foreign || call->spent)
		return false;
	return call->by_tls != registry->origin.tls ||
	       (!registry->answered && registry_wants_switch(registry, response));
}

static int registry_on_error(
	struct registry_call *call, struct http_response *response, struct err *err)
{
	struct err *error = &response->error;
	int64_t end_ms = INT64_MAX;

	if (!response->is_transient || error->id == E_HTTP_RESOLVE ||
		!may_send_again(call, response))
		return registry_fail(call, error, err);
	err_move(&call->cause, error);
	if (response->sent)
		name_registry(call, &call->cause);
	else
		err_prefix(&call->cause, "registry %s cannot be reached", call->registry->host);
	if (!response->sent && !call->registry->answered)
		end_ms = call->began_ms + REGISTRY_CONNECT_MS;
	return registry_again(call, NULL, end_ms, err);
}

/*
 * Responses
 */

static bool is_transient_status(int status)
{
	static const int statuses[] = {408, 429, 500, 502, 503, 504};

	for (size_t i = 0; i < ARRAY_LEN(statuses); i++)
		if (statuses[i] == status)
			return true;
	return false;
}

static bool is_accepted(unsigned accept, int status)
{
	static const int refusals[] = {400, 401, 403, 405, 409, 412, 416, 501};

	if ((status >= 200 && status < 300) || (accept & REGISTRY_ANY))
		return true;
	if (status == 404)
		return accept & REGISTRY_NOT_FOUND;
	for (size_t i = 0; i < ARRAY_LEN(refusals); i++)
		if (refusals[i] == status)
			return accept & REGISTRY_REFUSED;
	return false;
}

/* Whether the registry itself wants another login: what it has redirected us to may not. */
static bool wants_login(const struct registry_call *call, const struct http_response *response)
{
	if (call->request.accept & REGISTRY_NO_LOGIN || call->spent || call->foreign ||
		call->logins >= REGISTRY_LOGINS_MAX ||
		!url_same_origin(&response->url, &call->registry->origin))
		return false;
	if (response->status == 401)
		return true;
	AUTO_CHALLENGES struct challenge_list list = {0};
	if (response->status != 403)
		return false;
	challenges_parse(&response->headers, &list);
	const struct challenge *bearer = challenge_find(&list, "bearer");
	return bearer && str_eq(challenge_param(bearer, "error"), "insufficient_scope");
}

static void registry_keep(struct registry_call *call, const struct http_response *response)
{
	struct http_response *kept = &call->kept;

	kept->status = response->status;
	kept->zone = response->zone;
	strv_copy(&kept->headers, &response->headers);
	buf_init(&kept->body, response->body.len + 1);
	buf_add(&kept->body, response->body.data ? response->body.data : "", response->body.len);
	url_copy(&response->url, &kept->url);
}

static int registry_on_ready(void *ctx, const char *authorization, unsigned generation,
	struct err *error, struct err *err);
static void add_spares(struct registry *registry);

static int log_in(struct registry_call *call, const struct http_response *response)
{
	struct registry *registry = call->registry;

	call->logins++;
	call->tries--;
	if (is_accepted(call->request.accept, response->status))
		registry_keep(call, response);
	registry_call_error(call, response, &call->cause);
	call->waiting = true;
	struct auth_wait *wait = auth_refused(registry->auth, &response->headers, response->zone,
		call->generation, registry_on_ready, call);
	call->wait = call->waiting ? wait : NULL;
	if (registry->pilot == call)
		open_gate(registry);
	if (call->waiting)
		add_spares(registry);
	return 0;
}

static int on_status(struct registry_call *call, struct http_response *response, struct err *err)
{
	AUTO_ERR struct err error = {0};

	if (wants_login(call, response))
		return log_in(call, response);
	if (is_accepted(call->request.accept, response->status))
		return registry_finish(call, response, NULL, err);
	registry_call_error(call, response, &error);
	if (!is_transient_status(response->status) || error.id == E_REGISTRY_FULL ||
		!may_send_again(call, response))
		return registry_finish(call, NULL, &error, err);
	err_move(&call->cause, &error);
	return registry_again(call, response, INT64_MAX, err);
}

static int registry_call_on_response(void *ctx, struct http_response *response, struct err *err)
{
	struct registry_call *call = ctx;
	struct registry *registry = call->registry;

	call->http = NULL;
	registry->succeeded |= response->status >= 200 && response->status < 300;
	if (is_of_other_scheme(call, response)) {
		other_scheme(call);
		return 0;
	}
	if (!response->status)
		return registry_on_error(call, response, err);
	if (url_same_origin(&response->url, &registry->origin)) {
		registry->answered = true;
		registry->zone = response->zone;
	}
	return on_status(call, response, err);
}

/*
 * Sending
 */

static ssize_t read_body(void *ctx, void *out, size_t len, struct err *err)
{
	struct registry_call *call = ctx;

	call->spent = true;
	return call->request.body.read(call->request.ctx, out, len, err);
}

static int give_data(void *ctx, const void *data, size_t len, struct err *err)
{
	struct registry_call *call = ctx;

	call->spent = true;
	return call->request.data(call->request.ctx, data, len, err);
}

static void make_url(const struct registry_call *call, struct url *ret)
{
	const struct registry *registry = call->registry;
	const char *path = call->request.path;

	url_copy(call->url.host ? &call->url : &registry->origin, ret);
	if (call->url.host)
		return;
	free(ret->path);
	ret->path = *path == '/' ? mem_strdup(path) : mem_printf("/v2/%s/%s", call->repo, path);
}

/* Without a body. */
static struct http_request request_to(
	const struct registry *registry, const char *method, const struct url *url)
{
	return (struct http_request){
		.method = method,
		.url = url,
		/* Words beside a success that are not read are no reason to fail. */
		.max_body = HTTP_ERROR_BODY_MAX,
		.follow = true,
		.tls = &registry->tls,
		.zone = registry->answered ? registry->zone : ADDRESS_PUBLIC,
		.idle_ms = registry->idle_ms,
		.done = registry_call_on_response,
	};
}

static void registry_start_request(struct registry_call *call, bool held, const char *authorization)
{
	struct registry *registry = call->registry;
	const struct http_tls elsewhere = http_tls_elsewhere(&registry->tls);
	AUTO_URL struct url url = {0};

	make_url(call, &url);
	struct http_request request = request_to(registry, call->request.method, &url);
	request.headers = &call->headers;
	request.authorization = authorization;
	request.held = held;
	request.body = call->request.body;
	if (call->request.max_body)
		request.max_body = call->request.max_body;
	request.data = call->request.data ? give_data : NULL;
	if (call->foreign)
		request.tls = &elsewhere;
	request.has_zone = call->foreign;
	request.ctx = call;
	/* The call keeps the bytes itself, for all tries. */
	request.body.copy = false;
	if (request.body.read)
		request.body.read = read_body;
	call->by_tls = url.tls;
	call->http = http_start(registry->http, &request);
}

/* The token may come from the same server, which has connections for so many only. */
static bool registry_may_connect_ahead(const struct registry *registry)
{
	size_t n = registry->spares.n;

	for (const struct registry_call *call = registry->calls; call; call = call->next)
		n += call->waiting && call->http;
	return n < AHEAD_MAX;
}

/* Open the connection while the token is fetched. Later requests can reuse an open one. */
static void connect_ahead(struct registry_call *call)
{
	if (!call->registry->succeeded && !call->http && registry_may_connect_ahead(call->registry))
		registry_start_request(call, true, NULL);
}

/*
 * Connections for requests that are yet to come
 */

static void add_spares(struct registry *registry)
{
	AUTO_URL struct url url = {0};

	if (registry->succeeded)
		return;
	url_copy(&registry->origin, &url);
	struct http_request request = request_to(registry, "POST", &url);
	request.held = true;
	while (registry->spares.n < registry->n_expected && registry_may_connect_ahead(registry))
		*vec_push(&registry->spares) = http_start(registry->http, &request);
}

static void registry_drop_spares(struct registry *registry)
{
	vec_foreach (struct http_call *, spare, &registry->spares)
		http_cancel(*spare);
	registry->spares.n = 0;
}

void registry_expect(struct registry *registry, unsigned n)
{
	registry->n_expected = n;
	if (n == 0)
		registry_drop_spares(registry);
}

static bool fits_spare(const struct registry_call *call)
{
	const struct registry_request *request = &call->request;

	return !call->foreign && str_eq(request->method, "POST") && call->headers.n == 0 &&
	       request->body.size == 0 && request->max_body == 0 && !request->data;
}

static void registry_take_spare(struct registry_call *call)
{
	struct registry *registry = call->registry;
	AUTO_URL struct url url = {0};

	if (call->http || registry->spares.n == 0 || !fits_spare(call))
		return;
	make_url(call, &url);
	call->http = registry->spares.v[--registry->spares.n];
	call->by_tls = url.tls;
	http_retarget(call->http, &url, call);
}

static void registry_send_request(struct registry_call *call, const char *authorization)
{
	if (call->request.body.size > 0)
		registry_expect(call->registry, 0);
	registry_take_spare(call);
	if (call->tries++ == 0)
		call->began_ms = clock_ms();
	if (call->http && call->by_tls != call->registry->origin.tls)
		http_cancel(TAKE(call->http));
	if (call->http)
		http_authorize(call->http, authorization);
	else
		registry_start_request(call, false, authorization);
	add_spares(call->registry);
}

/* A login that is refused is what the registry itself has responded before. */
static void no_login(struct registry_call *call, struct err *error)
{
	const struct err *words = &call->cause;

	if (error->id != E_REGISTRY_AUTH && error->id != E_REGISTRY_DENIED)
		http_response_done(&call->kept);
	else if (words->n_evidence > 0)
		err_evidence(error, "%s", words->evidence[0]);
	err_move(&call->error, error);
	/* Not from where the caller started it: from the loop. */
	call->timer = loop_add_timer(call->registry->loop, clock_ms(), registry_timer_due, call);
}

static int registry_on_ready(void *ctx, const char *authorization, unsigned generation,
	struct err *error, struct err *err UNUSED)
{
	struct registry_call *call = ctx;

	call->wait = NULL;
	call->waiting = false;
	if (error && err_is_set(error)) {
		http_cancel(TAKE(call->http));
		no_login(call, error);
		return 0;
	}
	http_response_done(&call->kept);
	if (call->cause.id == E_REGISTRY_AUTH || call->cause.id == E_REGISTRY_DENIED)
		err_clear(&call->cause);
	call->generation = generation;
	registry_send_request(call, authorization);
	return 0;
}

static void registry_authorize(struct registry_call *call)
{
	if (call->foreign) {
		registry_send_request(call, NULL);
		return;
	}
	call->waiting = true;
	struct auth_wait *wait = auth_want(call->registry->auth, registry_on_ready, call);
	call->wait = call->waiting ? wait : NULL;
	if (call->waiting)
		connect_ahead(call);
}

/* Have the calls that wait for auth wait for the present one. */
static void registry_drop_waits(struct registry *registry)
{
	for (struct registry_call *call = registry->calls; call; call = call->next)
		auth_cancel(TAKE(call->wait));
}

/* Calls that wait are still marked so. */
static void registry_renew_waits(struct registry *registry)
{
	for (struct registry_call *call = registry->calls; call; call = call->next)
		if (call->waiting)
			registry_authorize(call);
}

/*
 * The start
 */

static void registry_copy_request(
	struct registry_call *call, const struct registry_request *request)
{
	const struct registry *registry = call->registry;
	struct registry_request *kept = &call->request;

	*kept = *request;
	kept->method = mem_strdup(request->method);
	kept->repo = mem_strdup(request->repo);
	kept->path = mem_strdup(request->path);
	kept->doing = mem_strdup(request->doing);
	kept->url = NULL;
	kept->headers = NULL;
	call->repo = registry_repo_path(registry, request->repo ? request->repo : registry->repo);
	if (request->url) {
		url_copy(request->url, &call->url);
		call->foreign = !url_same_origin(request->url, &registry->origin);
	}
	if (request->headers)
		strv_copy(&call->headers, request->headers);
	if (kept->body.data && kept->body.copy)
		kept->body.data = mem_dup(kept->body.data, kept->body.size);
}

struct registry_call *registry_start(
	struct registry *registry, const struct registry_request *request)
{
	struct registry_call *call = mem_alloc(1, sizeof(*call));

	call->registry = registry;
	registry_copy_request(call, request);
	call->next = registry->calls;
	if (call->next)
		call->next->prev = call;
	registry->calls = call;
	if (registry->deadline_ms != INT64_MAX)
		call->deadline_timer = loop_add_timer(
			registry->loop, registry->deadline_ms, registry_deadline_due, call);
	if (registry->gated && registry->pilot) {
		call->behind_gate = true;
		return call;
	}
	if (registry->gated)
		registry->pilot = call;
	registry_authorize(call);
	return call;
}
