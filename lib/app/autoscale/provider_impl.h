/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of providers: what each kind of them does, and what provider.c does for all of
 * them. */
#ifndef DLRUN_APP_AUTOSCALE_PROVIDER_IMPL_H
#define DLRUN_APP_AUTOSCALE_PROVIDER_IMPL_H

#include "app/autoscale/provider.h"

struct provider_ops {
	/* Begins call, whose done is not called from within; by provider_end later. */
	void (*start)(struct provider *provider, struct provider_call *call,
		const struct json *request, int64_t deadline_ms);
	/* No provider_end any more. */
	void (*cancel)(struct provider *provider, struct provider_call *call);
	void (*free)(struct provider *provider);
};
/* The first member of each kind. */
struct provider {
	const struct provider_ops *ops;
	char *name; /* owned */
};
struct provider_call {
	struct provider *provider;
	provider_done_fn *done;
	void *ctx;
	provider_may_begin_fn *may_begin; /* or NULL */
	bool is_waiting;                  /* for others; set by the kind */
	void *own;                        /* of the kind, which frees it before provider_end */
};

/* Ends a call with what the provider responded, a value of any kind, which is checked for
 * "error" here. Frees the call. */
int provider_end(struct provider_call *call, struct json *take_response, struct err *err);
/* Ends it with a failure, of which error (moved from) says more; one that is waiting as unsent. */
int provider_end_failed(struct provider_call *call, enum scale_failure failure, bool is_unknown,
	struct err *error, struct err *err);

#endif
