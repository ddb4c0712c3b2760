/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where machines come from. A provider takes four verbs, each a JSON object, and responds with one:
 * the same for those that are built in and for programs (provider_exec.c: one process for a verb,
 * the request as one line on its standard input, the response on its standard output, exit status
 * 0). CLUSTER is the `cluster:` of the settings:
 *
 *	{"verb": "groups", "cluster": CLUSTER}
 *	    -> {"groups": [a group as in a snapshot (core/autoscale/snapshot.h), …],
 *	        "remarks": [TEXT, …] (left out: none)}
 *	       all groups of that cluster. One that others manage has "refused": the reason.
 *	{"verb": "grow", "cluster": CLUSTER, "group": ID, "from": N, "to": N, "token": TEXT}
 *	    -> {"accepted": N, "instances": [ID, …] (left out: not known yet),
 *	        "failed": [FAILURE, …]}
 *	       to: absolute, the group's new size; accepted: its size now, which is less than `to`
 *	       where some of the machines failed at once. A request with a token that was seen
 *	       before has no second effect.
 *	{"verb": "status", "cluster": CLUSTER, "group": ID, "token": TEXT, "since": TIME}
 *	    -> {"failed": [FAILURE, …]}
 *	       machines of the grow with that token, which began at `since`, that failed up to now
 *	{"verb": "shrink", "cluster": CLUSTER, "group": ID, "instances": [ID, …], "to": N}
 *	    -> {"instances": [{"id": ID, "gone": true|false, "error": TEXT (none)}, …]}
 *	       Ends exactly these machines, and they are not replaced; to: the group's size
 *	       then. One that is not there is gone; gone is false while it is still ending.
 *	       Without instances, machines that were asked for and are not there are no longer
 *	       asked for.
 *
 * FAILURE: {"class": "capacity"|"quota"|"price"|"config"|"throttle"|"other", "text": "…"}. Any
 * response may be {"error": FAILURE} instead: nothing of it was done.
 */
#ifndef DLRUN_APP_AUTOSCALE_PROVIDER_H
#define DLRUN_APP_AUTOSCALE_PROVIDER_H

#include <stddef.h>
#include <stdint.h>

#include "base/data/json.h"
#include "base/loop/loop.h"
#include "base/util/auto.h"
#include "base/util/err.h"
#include "core/autoscale/model.h"
#include "net/http/http.h"

enum { PROVIDER_RESPONSE_MAX = 8 << 20, PROVIDER_MS = 30 * 1000, PROVIDER_TEXT_MAX = 500 };

/* Failed: response is NULL, error is set (E_SCALE_PROVIDER, of at most PROVIDER_TEXT_MAX bytes
 * without control characters), and failure is its class. is_unknown: the request may have had its
 * effect (no response came, in time or at all). is_unsent: it had to wait for others, and certainly
 * has not begun, for which the provider is not to blame. Else the response is provider.c's until
 * the function returns; TAKE() it to keep it. */
struct provider_reply {
	struct json *response;
	enum scale_failure failure;
	bool is_unknown, is_unsent;
	struct err error;
};
typedef int provider_done_fn(void *ctx, struct provider_reply *reply, struct err *err);
/* Of a FAILURE of a response: its class, SCALE_FAILED_OTHER where it is none of these words, and
 * its text, owned, bounded as an error's. */
enum scale_failure provider_failure(const struct json *failure, char **ret_text);

/* Text of others on one line, for people, or fallback. The caller frees. */
char *provider_shown(const char *text, const char *fallback);

struct provider;
struct provider_call;

/* done is called once, from the loop, about deadline_ms (of clock_ms()) at the latest, or, if the
 * call has to wait for others, so much later. request is not needed after the call. */
struct provider_call *provider_start(struct provider *provider, const struct json *request,
	int64_t deadline_ms, provider_done_fn *done, void *ctx);
/* Of a call that has to wait for others, may_begin is called, with the ctx of done, when it is its
 * turn. A negative code: it ends with that error, as unsent. */
typedef int provider_may_begin_fn(void *ctx, struct err *err);
void provider_may_begin(struct provider_call *call, provider_may_begin_fn *may_begin);
/* Whether it still waits for others: nothing of it has begun. */
bool provider_is_waiting(const struct provider_call *call);
/* The call is given up without its done; unless it is waiting, its effect may have happened. NULL
 * is accepted. */
void provider_cancel(struct provider_call *call);
/* "aws", or the name of a program: scale_group.provider. */
const char *provider_name(const struct provider *provider);
void provider_free(struct provider *provider); /* NULL is accepted */
AUTO_POINTER(struct provider, provider_free)

/* The programs of all providers that share it: at most max run at once, the others wait in the
 * order of their calls. Freed after these providers. */
struct provider_programs;
struct provider_programs *provider_programs_new(size_t max);
void provider_programs_free(struct provider_programs *programs); /* NULL is accepted */
/* name and argv, NULL-ended: copied; env: borrowed, NULL: this process's. A program is sent SIGTERM
 * at the deadline and SIGKILL 2 s later; what it has started gets the same signals, and SIGKILL
 * when it has ended. The last line of its standard error says why it failed. */
struct provider *provider_exec_new(struct loop *loop, struct provider_programs *programs,
	const char *name, const char *const *argv, const char *const *env);
/* regions: NULL-ended, copied; env (of credentials and AWS_ENDPOINT_URL*) and http: borrowed.
 * E_SCALE_SETTINGS of regions and endpoints that are none. */
int provider_aws_new(struct loop *loop, struct http *http, const char *const *regions,
	const char *const *env, struct provider **ret, struct err *err);

#endif
