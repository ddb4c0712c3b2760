/* SPDX-License-Identifier: Apache-2.0 */
#include "app/autoscale/state_store.h"

#include "app/autoscale/lease.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/status/object.h"

enum { STORE_MS = 10 * 1000, STORE_MAX = 1 << 20 };
#define STORE_NAME "dlrun-autoscale-state"
#define STORE_LIST "/api/v1/namespaces/" AUTOSCALE_NAMESPACE "/configmaps"

void state_store_done(struct state_store *store)
{
	scale_state_done(&store->state);
	json_free(TAKE(store->object));
}

static int state_store_parse(struct state_store *store, struct err *err)
{
	const char *text = kube_str_at(store->object, "data.state");
	AUTO_JSON struct json *json = NULL;

	if (text)
		ERR_TRY(json_parse(text, strlen(text), STORE_MAX, "data.state", &json, err));
	return scale_state_read(json, &store->state, err);
}

int state_store_read(struct state_store *store, struct err *err)
{
	const struct kube_request request = {.method = "GET",
		.path = STORE_LIST "/" STORE_NAME,
		.deadline_ms = clock_deadline(STORE_MS)};
	AUTO_ERR struct err error = {0};

	state_store_done(store);
	int r = kube_query(store->client, &request, &store->object, &error);
	if (r < 0 && error.id != E_KUBE_NOT_FOUND)
		return err_move(err, &error);
	r = state_store_parse(store, err);
	if (r == 0)
		return 0;
	err_prefix(err, "the ConfigMap " AUTOSCALE_NAMESPACE "/" STORE_NAME);
	return err_hint(err, "kubectl -n " AUTOSCALE_NAMESPACE " delete configmap " STORE_NAME);
}

int state_store_write(struct state_store *store, struct err *err)
{
	bool is_new = !store->object;
	AUTO_BUF struct buf text = buf_with(STORE_MAX);
	AUTO_JSON struct json *state = scale_state_write(&store->state), *written = NULL;
	AUTO_JSON struct json *object = is_new ? json_object() : json_clone(store->object);

	json_print(state, &text);
	ERR_TRY(buf_check(&text, "the state of the autoscaler", err));
	if (is_new ? !store->state.groups.n : str_eq(kube_str_at(object, "data.state"), text.data))
		return 0;
	if (is_new) {
		json_set_str(object, "apiVersion", "v1");
		json_set_str(object, "kind", "ConfigMap");
		json_set_str(json_sub(object, "metadata"), "name", STORE_NAME);
	}
	json_set_str(json_sub(object, "data"), "state", text.data);
	const struct kube_request request = {.method = is_new ? "POST" : "PUT",
		.path = is_new ? STORE_LIST : STORE_LIST "/" STORE_NAME,
		.body = object,
		.deadline_ms = clock_deadline(STORE_MS)};
	AUTO_ERR struct err error = {0};
	int r = kube_query(store->client, &request, &written, &error);
	if (error.id == E_KUBE_CONFLICT || error.id == E_KUBE_EXISTS)
		return err_set(err, E_SCALE_LEASE,
			"the state of the autoscaler was changed by another one");
	if (r < 0)
		return err_move(err, &error);
	json_free(store->object);
	store->object = TAKE(written);
	return 0;
}
