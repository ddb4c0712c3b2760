#include "base/str.h"
#include "run/config_impl.h"

/*
 * The keys of a target.
 */

static int read_target_text(struct json *target, const struct yaml *node,
	const struct config_place *place, struct err *err)
{
	if (node->kind != YAML_SCALAR || yaml_is_null(node))
		return config_wrong_kind(err, place, node->key, "a single value", node);
	json_set_str(target, node->key, node->text);
	return 0;
}

static int read_target_kind(struct json *target, const struct yaml *node,
	const struct config_place *place, struct err *err)
{
	if (node->kind != YAML_SCALAR || !str_eq(node->text, "local"))
		return config_place_errorf(err, place, "the only kind of target is local");
	json_set_str(target, "kind", "local");
	return 0;
}

static int read_target_data(struct json *target, const struct yaml *node,
	const struct config_place *place, struct err *err)
{
	struct json *data = json_object();

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

static int read_target_key(struct json *target, const struct yaml *node,
	const struct config_place *place, struct err *err)
{
	static const struct {
		const char *key;
		int (*read)(struct json *, const struct yaml *, const struct config_place *,
			struct err *);
	} keys[] = {{"before", read_target_text}, {"data", read_target_data},
		{"kind", read_target_kind}};

	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		if (str_eq(node->key, keys[i].key))
			return keys[i].read(target, node, place, err);
	return config_place_error(
		err, E_CONFIG_KEY, place, "a target here has the keys kind, before and data");
}

static int read_target(struct json *targets, const struct yaml *node,
	const struct config_place *place, struct err *err)
{
	struct json *target = json_object();
	int r = 0;

	json_set(targets, node->key, target);
	if (node->kind != YAML_MAP)
		return config_wrong_kind(err, place, node->key, "a map", node);
	for (const struct yaml *item = node->first; item && r == 0; item = item->next)
		r = read_target_key(target, item,
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
	if (!value->targets)
		value->targets = json_object();
	for (const struct yaml *item = node->first; item && r == 0; item = item->next)
		r = read_target(value->targets, item,
			&(struct config_place){place->source, place->file, item->key_line}, err);
	if (r == 0)
		config_value_mark(value, place);
	return r;
}
