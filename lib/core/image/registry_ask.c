/* SPDX-License-Identifier: Apache-2.0 */
#include "core/image/registry_ask.h"

#include "base/os/env.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/registry_config.h"

int registry_ask_init(
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
					     .begun_ms = clock_ms(),
					     .limit_ms = limit_ms,
				     });
	return 0;
}

int registry_ask_open(struct registry_client *client, const char *text, bool push,
	struct registry **ret, struct err *err)
{
	const struct registry_memory nothing = {0};
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

char *registry_ask_certificates(const struct registry_client *client, const char *host)
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
	struct loop *loop;
	struct registry_call *call; /* NULL: it has ended */
	struct registry_reply *reply;
	struct err fault;
};

static int on_done(void *ctx, struct http_answer *answer, struct err *fault, struct err *err)
{
	struct waiting *waiting = ctx;
	const struct registry_call *call = waiting->call;

	(void)err;
	waiting->call = NULL;
	if (!fault && (answer->status == 401 || answer->status == 403)) {
		registry_call_error(call, answer, &waiting->fault);
	} else if (fault) {
		err_move(&waiting->fault, fault);
	} else {
		waiting->reply->status = answer->status;
		strv_copy(&waiting->reply->headers, &answer->headers);
		buf_init(&waiting->reply->body, answer->body.len + 1);
		if (answer->body.len)
			buf_add(&waiting->reply->body, answer->body.data, answer->body.len);
		url_copy(&answer->url, &waiting->reply->url);
	}
	loop_stop(waiting->loop);
	return 0;
}

int registry_ask(struct registry_client *client, struct registry *registry,
	const struct registry_request *request, struct registry_reply *ret, struct err *err)
{
	struct registry_request copy = *request;
	struct waiting waiting = {.loop = client->options.loop, .reply = ret};

	*ret = (struct registry_reply){0};
	copy.done = on_done;
	copy.ctx = &waiting;
	waiting.call = registry_start(registry, &copy);
	int r = loop_run(waiting.loop, err);
	if (waiting.call)
		registry_cancel(waiting.call);
	if (r == 0 && err_is_set(&waiting.fault))
		r = err_move(err, &waiting.fault);
	err_done(&waiting.fault);
	return r;
}
