#include "base/str.h"
#include "run/config_impl.h"

/*
 * The keys of a target.
 */

static int read_target_text(const struct config *config, struct json *target,
	const struct yaml *node, const struct config_place *place, struct err *err)
{
	(void)config;
	if (node->kind != YAML_SCALAR || yaml_is_null(node))
		return config_wrong_kind(err, place, node->key, "a single value", node);
	json_set_str(target, node->key, node->text);
	return 0;
}

static int read_target_kind(const struct config *config, struct json *target,
	const struct yaml *node, const struct config_place *place, struct err *err)
{
	(void)config;
	if (node->kind != YAML_SCALAR || !str_eq(node->text, "local"))
		return config_place_errorf(err, place, "the only kind of target is local");
	json_set_str(target, "kind", "local");
	return 0;
}

static int read_target_data(const struct config *config, struct json *target,
	const struct yaml *node, const struct config_place *place, struct err *err)
{
	struct json *data = json_object();

	(void)config;
	json_set(target, "data", data);
	if (node->kind != YAML_MAP)
		return config_wrong_kind(err, place, "data", "a map of tree paths to places", node);
	for (const struct yaml *item = node->first; item; item = item->next) {
		struct config_place here = {place->source, place->file, item->key_line};

		if (item->kind != YAML_SCALAR || (item->text[0] != '/' && item->text[0] != '~'))
			return config_place_errorf(
				err, &here, "%s must be an absolute path", item->key);
		json_set_str(data, item->key, item->text);
	}
	return 0;
}

static int read_target_registry(const struct config *config, struct json *target,
	const struct yaml *node, const struct config_place *place, struct err *err)
{
	struct json *registry = NULL;
	int r = config_read_registry(config, node->key, node, place, &registry, err);

	if (r == 0)
		json_set(target, node->key, registry);
	return r;
}

static const struct {
	const char *name;
	int (*read)(const struct config *, struct json *, const struct yaml *,
		const struct config_place *, struct err *);
} target_keys[] = {{"before", read_target_text}, {"data", read_target_data},
	{"kind", read_target_kind}, {"registry", read_target_registry}};

static int read_target_key(const struct config *config, struct json *target,
	const struct yaml *node, const struct config_place *place, struct err *err)
{
	const char *known[ARRAY_LEN(target_keys)];

	for (size_t i = 0; i < ARRAY_LEN(target_keys); i++) {
		known[i] = target_keys[i].name;
		if (str_eq(node->key, known[i]))
			return target_keys[i].read(config, target, node, place, err);
	}
	return config_unknown_key(err, place, "a target", node->key, known, ARRAY_LEN(target_keys));
}

static int read_target(const struct config *config, struct json *targets, const struct yaml *node,
	const struct config_place *place, struct err *err)
{
	struct json *target = json_object();
	int r = 0;

	json_set(targets, node->key, target);
	if (node->kind != YAML_MAP)
		return config_wrong_kind(err, place, node->key, "a map", node);
	for (const struct yaml *item = node->first; item && r == 0; item = item->next)
		r = read_target_key(config, target, item,
			&(struct config_place){place->source, place->file, item->key_line}, err);
	if (r == 0 && !yaml_get(node, "kind"))
		r = config_place_errorf(err, place, "target %s has no kind", node->key);
	return r;
}

int config_read_targets(struct config *config, size_t i, const struct yaml *node,
	const struct config_place *place, struct err *err)
{
	struct config_value *value = &config->values[i];
	int r = 0;

	if (node->kind != YAML_MAP)
		return config_wrong_kind(
			err, place, config_keys[i].name, "a map of names to targets", node);
	if (!value->json)
		value->json = json_object();
	for (const struct yaml *item = node->first; item && r == 0; item = item->next)
		r = read_target(config, value->json, item,
			&(struct config_place){place->source, place->file, item->key_line}, err);
	if (r == 0)
		config_value_mark(value, place);
	return r;
}
