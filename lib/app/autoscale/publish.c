/* SPDX-License-Identifier: Apache-2.0 */
#include "app/autoscale/publish.h"

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/autoscale/growth.h"

enum { STATE_MAX = 1 << 20 };
#define STATE_NAME "dlrun-autoscale-state"

struct state_store state_store_of(struct kube_client *client)
{
	return (struct state_store){.map = {client, STATE_NAME, "state", NULL}};
}

void state_store_done(struct state_store *store)
{
	scale_state_done(&store->state);
	system_map_done(&store->map);
}

int state_store_read(struct state_store *store, struct err *err)
{
	AUTO_JSON struct json *json = NULL;

	scale_state_done(&store->state);
	ERR_TRY(system_map_read(&store->map, err));
	const char *text = system_map_text(&store->map);
	int r = text ? json_parse(text, strlen(text), STATE_MAX, "state", &json, err) : 0;
	if (r == 0)
		r = scale_state_read(json, &store->state, err);
	if (r == 0)
		return 0;
	err_prefix(err, "the ConfigMap " AUTOSCALE_NAMESPACE "/" STATE_NAME);
	return err_hint(err, "kubectl -n " AUTOSCALE_NAMESPACE " delete configmap " STATE_NAME);
}

int state_store_write(struct state_store *store, struct err *err)
{
	const char *before = system_map_text(&store->map);
	AUTO_BUF struct buf text = buf_with(STATE_MAX);
	AUTO_JSON struct json *state = scale_state_write(&store->state);

	json_print(state, &text);
	ERR_TRY(buf_check(&text, "the state of the autoscaler", err));
	if (before ? str_eq(before, text.data) : !store->state.groups.n)
		return 0;
	return system_map_write(&store->map, text.data, err);
}

struct growth_store growth_store_of(struct kube_client *client)
{
	return (struct growth_store){
		.map = {client, GROWTH_NAME, GROWTH_KEY, NULL}, .written = buf_with(GROWTH_MAX)};
}

void growth_store_done(struct growth_store *store)
{
	buf_done(&store->written);
	system_map_done(&store->map);
}

void growth_store_learn(struct growth_store *store, struct scale_model *model)
{
	AUTO_GROWTH struct growth before = {0};
	AUTO_ERR struct err error = {0};
	bool is_known = system_map_read(&store->map, &error) == 0 &&
			growth_read(store->map.object, model->now_ms, &before, NULL) == 0;

	growth_learn_boots(is_known ? &before : NULL, model);
}

/* The text without the time at which it was written. No string in it has these quotes. */
static void growth_store_print(const char *text, struct buf *out)
{
	const char *at = strstr(text, "\"updated\":\"");

	buf_add(out, text, at ? (size_t)(at - text) : 0);
	buf_adds(out, at ? at + strcspn(at, ",") : text);
}

int growth_store_write(struct growth_store *store, const struct scale_model *model,
	const struct scale_plan *plan, int64_t every_ms, struct err *err)
{
	AUTO_GROWTH struct growth before = {0};
	AUTO_BUF struct buf text = buf_with(GROWTH_MAX);
	AUTO_JSON struct json *data = NULL;

	if (!store->written_ms)
		ERR_TRY(system_map_read(&store->map, err));
	/* A text that cannot be read is replaced. */
	bool is_known = growth_read(store->map.object, model->now_ms, &before, NULL) == 0;
	data = growth_write(&(struct growth_turn){.model = model,
		.plan = plan,
		.every_ms = every_ms,
		.applies = true,
		.before = is_known ? &before : NULL});
	const char *value = json_get_str(data, GROWTH_KEY);
	growth_store_print(value, &text);
	bool is_due = !store->written_ms || clock_ms() - store->written_ms > PUBLISH_EVERY_MS;
	if (!is_due && str_eq(text.data, store->written.data))
		return 0;
	store->written_ms = 0; /* after an error it is read again */
	ERR_TRY(system_map_write(&store->map, value, err));
	store->written_ms = clock_ms();
	buf_done(&store->written);
	store->written = text;
	text = buf_with(0);
	return 0;
}
