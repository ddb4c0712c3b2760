/* SPDX-License-Identifier: Apache-2.0 */
#include "app/autoscale/system_map.h"

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/status/object.h"

enum { MAP_MS = 10 * 1000 };
#define MAP_LIST "/api/v1/namespaces/" AUTOSCALE_NAMESPACE "/configmaps"

void system_map_done(struct system_map *map)
{
	json_free(TAKE(map->object));
}

int system_map_read(struct system_map *map, struct err *err)
{
	AUTO_FREE char *path = mem_printf(MAP_LIST "/%s", map->name);
	AUTO_ERR struct err error = {0};

	json_free(TAKE(map->object));
	int r = kube_query(map->client,
		&(struct kube_request){
			.method = "GET", .path = path, .deadline_ms = clock_deadline(MAP_MS)},
		&map->object, &error);
	return r < 0 && error.id != E_KUBE_NOT_FOUND ? err_move(err, &error) : 0;
}

const char *system_map_text(const struct system_map *map)
{
	return json_get_str(json_get(map->object, "data"), map->key);
}

int system_map_write(struct system_map *map, const char *text, struct err *err)
{
	bool is_new = !map->object;
	AUTO_FREE char *path = mem_printf(MAP_LIST "/%s", map->name);
	AUTO_JSON struct json *object = is_new ? json_object() : json_clone(map->object);
	AUTO_ERR struct err error = {0};
	struct json *written = NULL;

	if (is_new) {
		json_set_str(object, "apiVersion", "v1");
		json_set_str(object, "kind", "ConfigMap");
		json_set_str(json_sub(object, "metadata"), "name", map->name);
	}
	json_set_str(json_sub(object, "data"), map->key, text);
	int r = kube_query(map->client,
		&(struct kube_request){.method = is_new ? "POST" : "PUT",
			.path = is_new ? MAP_LIST : path,
			.body = object,
			.deadline_ms = clock_deadline(MAP_MS)},
		&written, &error);
	if (error.id == E_KUBE_CONFLICT || error.id == E_KUBE_EXISTS)
		return err_set(err, E_SCALE_LEASE,
			"the ConfigMap " AUTOSCALE_NAMESPACE "/%s was changed by somebody else",
			map->name);
	if (r < 0)
		return err_move(err, &error);
	json_free(map->object);
	map->object = written;
	return 0;
}
