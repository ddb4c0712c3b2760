/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "app/autoscale/provider_impl.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/api/response.h"

struct provider_call *provider_start(struct provider *provider, const struct json *request,
	int64_t deadline_ms, provider_done_fn *done, void *ctx)
{
	struct provider_call *call = mem_alloc(1, sizeof(*call));

	*call = (struct provider_call){.provider = provider, .done = done, .ctx = ctx};
	provider->ops->start(provider, call, request, deadline_ms);
	return call;
}

void provider_may_begin(struct provider_call *call, provider_may_begin_fn *may_begin)
{
	call->may_begin = may_begin;
}

bool provider_is_waiting(const struct provider_call *call)
{
	return call->is_waiting;
}

void provider_cancel(struct provider_call *call)
{
	if (!call)
		return;
	call->provider->ops->cancel(call->provider, call);
	free(call);
}

const char *provider_name(const struct provider *provider)
{
	return provider->name;
}

void provider_free(struct provider *provider)
{
	if (!provider)
		return;
	free(TAKE(provider->name));
	provider->ops->free(provider);
}

char *provider_shown(const char *text, const char *fallback)
{
	const char *shown = str_empty(text) ? fallback : text;

	return kube_words(shown, strlen(shown), PROVIDER_TEXT_MAX - strlen("…"));
}

enum scale_failure provider_failure(const struct json *failure, char **ret_text)
{
	int word;

	*ret_text = provider_shown(json_get_str(failure, "text"), "no reason was given");
	/* The first word is that of no failure. */
	return scale_word(scale_failure_names + 1, json_get_str(failure, "class"), &word)
		       ? (enum scale_failure)(word + 1)
		       : SCALE_FAILED_OTHER;
}

static int provider_finish(
	struct provider_call *call, struct provider_reply *reply, struct err *err)
{
	provider_done_fn *done = call->done;
	void *ctx = call->ctx;

	free(call);
	int r = done(ctx, reply, err);
	json_free(reply->response);
	err_done(&reply->error);
	return r;
}

int provider_end(struct provider_call *call, struct json *take_response, struct err *err)
{
	struct provider_reply reply = {.response = take_response};
	const struct json *failure = json_get(take_response, "error");
	AUTO_FREE char *text = NULL;

	if (!failure && json_kind(take_response) == JSON_OBJECT)
		return provider_finish(call, &reply, err);
	/* Only a failure that can be read says that nothing was done. */
	reply.is_unknown = !failure || json_kind(failure) != JSON_OBJECT;
	reply.failure = provider_failure(failure, &text);
	err_set(&reply.error, E_SCALE_PROVIDER, "%s",
		reply.is_unknown ? "the response is not an object, or its error is not one" : text);
	json_free(TAKE(reply.response));
	return provider_finish(call, &reply, err);
}

int provider_end_failed(struct provider_call *call, enum scale_failure failure, bool is_unknown,
	struct err *error, struct err *err)
{
	struct provider_reply reply = {
		.failure = failure, .is_unknown = is_unknown, .is_unsent = call->is_waiting};
	AUTO_FREE char *text = provider_shown(error->message, "it failed");

	err_set(&reply.error, E_SCALE_PROVIDER, "%s", text);
	if (error->hint)
		err_hint(&reply.error, "%s", error->hint);
	err_clear(error);
	return provider_finish(call, &reply, err);
}
