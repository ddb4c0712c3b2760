/* SPDX-License-Identifier: Apache-2.0 */
#include "app/autoscale/lease.h"

#include <stdio.h>

#include "app/autoscale/system_map.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/status/object.h"

enum { LEASE_REQUEST_MS = 5000, LEASE_LOOK_MS = 100, LEASE_TRY_MS = 10 * 1000 };
#define LEASE_LIST "/apis/coordination.k8s.io/v1/namespaces/" AUTOSCALE_NAMESPACE "/leases"
#define LEASE_PATH LEASE_LIST "/dlrun-autoscale"
#define LEASE_NAME AUTOSCALE_NAMESPACE "/dlrun-autoscale"

struct lease {
	struct kube_client *client;
	struct loop_timer *timer;
	struct kube_call *call;
	char *holder;
	struct json *object; /* as it was seen last; NULL: there is none */
	int64_t changed_ms;  /* clock_ms() when it was first seen like that */
	int64_t changes;     /* that were seen */
	int64_t term;
	bool is_anew;    /* the term began with a Lease that was not there */
	int64_t sent_ms; /* clock_ms() of the newest write */
	int64_t held_until_ms;
	struct err error; /* of the newest request */
};

static int lease_ask(void *ctx, struct err *err);

static void lease_again(struct lease *lease, int64_t in_ms)
{
	loop_remove_timer(kube_client_loop(lease->client), lease->timer);
	lease->timer = loop_add_timer(
		kube_client_loop(lease->client), clock_deadline(in_ms), lease_ask, lease);
}

static bool lease_is_of(const struct lease *lease, const char *holder)
{
	const char *found = kube_str_at(lease->object, "spec.holderIdentity");

	return str_eq(found ? found : "", holder);
}

/* resourceVersion changes with each renewal. */
static void lease_see(struct lease *lease, struct json *take_object)
{
	const char *before = kube_str_at(lease->object, "metadata.resourceVersion");

	if (!before || !str_eq(before, kube_str_at(take_object, "metadata.resourceVersion"))) {
		lease->changed_ms = clock_ms();
		lease->changes += before != NULL;
	}
	json_free(lease->object);
	lease->object = take_object;
}

static int lease_on_write(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct lease *lease = ctx;
	bool is_done = !err_is_set(&response->error);

	lease->call = NULL;
	err_clear(&lease->error);
	if (is_done) {
		lease_see(lease, TAKE(response->object));
		lease->held_until_ms = lease->sent_ms + LEASE_HELD_MS;
		lease_again(lease, LEASE_RENEW_MS);
		return 0;
	}
	/* The Lease as it is now has to be read. */
	json_free(TAKE(lease->object));
	bool is_lost = response->error.id == E_KUBE_CONFLICT || response->error.id == E_KUBE_EXISTS;
	err_move(&lease->error, &response->error);
	lease_again(lease, is_lost ? 0 : LEASE_RETRY_MS / 2);
	return 0;
}

static void lease_set_time(struct json *spec, const char *key)
{
	char text[CLOCK_TEXT_SIZE], micro[CLOCK_TEXT_SIZE + 8];

	/* MicroTime has six digits, no fewer. */
	clock_format(clock_wall_ms(), text);
	snprintf(micro, sizeof(micro), "%.23s000Z", text);
	json_set_str(spec, key, micro);
}

static void lease_write(struct lease *lease, const char *holder, kube_done_fn *done)
{
	bool is_new = !lease->object, is_taken = !is_new && !lease_is_of(lease, lease->holder);
	struct json *json = is_new ? json_object() : json_clone(lease->object);
	struct json *meta = json_sub(json, "metadata"), *spec = json_sub(json, "spec");
	int64_t changes = json_get_int(spec, "leaseTransitions", 0);

	if (is_new) {
		json_set_str(json, "apiVersion", "coordination.k8s.io/v1");
		json_set_str(json, "kind", "Lease");
		json_set_str(meta, "name", "dlrun-autoscale");
	}
	json_set_str(spec, "holderIdentity", holder);
	json_set_int(spec, "leaseDurationSeconds", LEASE_SECONDS);
	lease_set_time(spec, "renewTime");
	if (is_new || is_taken)
		lease_set_time(spec, "acquireTime");
	json_set_int(spec, "leaseTransitions", changes + is_taken);
	const struct kube_request request = {.method = is_new ? "POST" : "PUT",
		.path = is_new ? LEASE_LIST : LEASE_PATH,
		.body = json,
		.deadline_ms = clock_deadline(LEASE_REQUEST_MS),
		.done = done,
		.ctx = lease};
	lease->sent_ms = clock_ms();
	lease->term += is_new || is_taken;
	lease->is_anew = is_new || (lease->is_anew && !is_taken);
	if (done)
		lease->call = kube_start(lease->client, &request);
	else
		kube_query(lease->client, &request, NULL, NULL);
	json_free(json);
}

static int lease_on_read(void *ctx, struct kube_response *response, struct err *err UNUSED)
{
	struct lease *lease = ctx;
	bool is_none = response->error.id == E_KUBE_NOT_FOUND;

	lease->call = NULL;
	err_clear(&lease->error);
	if (err_is_set(&response->error) && !is_none) {
		err_move(&lease->error, &response->error);
		lease_again(lease, LEASE_RETRY_MS);
		return 0;
	}
	if (is_none)
		json_free(TAKE(lease->object));
	else
		lease_see(lease, TAKE(response->object));
	bool is_over = clock_ms() - lease->changed_ms > LEASE_SECONDS * 1000;
	if (is_none || lease_is_of(lease, "") || lease_is_of(lease, lease->holder) || is_over)
		lease_write(lease, lease->holder, lease_on_write);
	else
		lease_again(lease, LEASE_RETRY_MS);
	return 0;
}

static int lease_ask(void *ctx, struct err *err UNUSED)
{
	struct lease *lease = ctx;

	lease->timer = NULL;
	if (lease->object && lease_is_of(lease, lease->holder)) {
		lease_write(lease, lease->holder, lease_on_write);
		return 0;
	}
	lease->call =
		kube_start(lease->client, &(struct kube_request){.method = "GET",
						  .path = LEASE_PATH,
						  .deadline_ms = clock_deadline(LEASE_REQUEST_MS),
						  .done = lease_on_read,
						  .ctx = lease});
	return 0;
}

struct lease *lease_new(struct kube_client *client, const char *holder)
{
	struct lease *lease = mem_alloc(1, sizeof(*lease));

	lease->client = client;
	lease->holder = mem_strdup(holder);
	lease_again(lease, 0);
	return lease;
}

void lease_free(struct lease *lease)
{
	if (!lease)
		return;
	loop_remove_timer(kube_client_loop(lease->client), lease->timer);
	kube_cancel(lease->call);
	if (lease->object && lease_is_held(lease))
		lease_write(lease, "", NULL);
	json_free(lease->object);
	err_clear(&lease->error);
	free(lease->holder);
	free(lease);
}

bool lease_is_held(const struct lease *lease)
{
	return clock_ms() < lease->held_until_ms;
}

int64_t lease_term(const struct lease *lease)
{
	return lease->term;
}

int lease_renew(
	struct lease *lease, int64_t since_ms, const volatile int *interrupted, struct err *err)
{
	int64_t begun_ms = clock_ms(), term = lease->term;

	if (begun_ms - since_ms < LEASE_RENEW_MS)
		return 0;
	for (;;) {
		bool is_other = lease->object && !lease_is_of(lease, lease->holder);
		if (is_other || lease->term != term)
			return err_set(err, E_SCALE_LEASE, "%s the Lease " LEASE_NAME " meanwhile",
				is_other || !lease->is_anew ? "another autoscaler had"
							    : "somebody deleted");
		if (lease->held_until_ms >= begun_ms + LEASE_HELD_MS)
			return 0;
		if (clock_ms() - begun_ms > LEASE_TRY_MS)
			return err_set(err, E_SCALE_LEASE,
				"the Lease " LEASE_NAME " could not be renewed: %s",
				err_is_set(&lease->error) ? lease->error.message : "no response");
		if (!lease->call && !err_is_set(&lease->error))
			lease_again(lease, 0);
		ERR_TRY(loop_pause(
			kube_client_loop(lease->client), LEASE_LOOK_MS, interrupted, err));
	}
}

/* Errors that do not pass soon, or at all. */
static int lease_judge(struct lease *lease, int64_t begun_ms, struct err *err)
{
	enum err_id id = lease->error.id;
	bool is_lasting = id == E_KUBE_DENIED || id == E_KUBE_AUTH || id == E_KUBE_NOT_FOUND;

	if (!is_lasting && (!err_is_set(&lease->error) || clock_ms() - begun_ms < LEASE_TRY_MS))
		return 0;
	err_move(err, &lease->error);
	if (id == E_KUBE_NOT_FOUND)
		err_hint(err, "kubectl create namespace " AUTOSCALE_NAMESPACE);
	return err_prefix(err, "the Lease " LEASE_NAME);
}

/* Another one has it: said once, and for how long it is waited for. */
static int lease_wait_for_other(struct lease *lease, bool is_over, bool *is_told,
	void (*note)(void *ctx, const char *text), void *ctx, struct err *err)
{
	AUTO_FREE char *shown = str_shown(kube_str_at(lease->object, "spec.holderIdentity"));
	AUTO_FREE char *text = mem_printf("autoscaler %s holds the Lease " LEASE_NAME, shown);

	if (is_over) {
		err_set(err, E_SCALE_LEASE, "%s, and renews it", text);
		return err_hint(err, "stop that one, or leave its turns to it");
	}
	if (!*is_told) {
		AUTO_FREE char *waiting = mem_printf("waiting: %s", text);
		note(ctx, waiting);
	}
	*is_told = true;
	return 0;
}

int lease_wait(struct lease *lease, int64_t patience_ms, const volatile int *interrupted,
	void (*note)(void *ctx, const char *text), void *ctx, struct err *err)
{
	struct loop *loop = kube_client_loop(lease->client);
	int64_t begun_ms = clock_ms(), changes = lease->changes;
	bool is_told = false;

	while (!lease_is_held(lease)) {
		/* A holder that has ended does not renew it: the Lease is free soon. */
		bool is_over = patience_ms && clock_ms() - begun_ms >= patience_ms &&
			       lease->changes > changes;
		ERR_TRY(lease_judge(lease, begun_ms, err));
		if (lease->object && !lease_is_of(lease, "") && !lease_is_of(lease, lease->holder))
			ERR_TRY(lease_wait_for_other(lease, is_over, &is_told, note, ctx, err));
		ERR_TRY(loop_pause(loop, LEASE_LOOK_MS, interrupted, err));
	}
	return 0;
}
