#include <string.h>

#include "base/auto.h"
#include "base/fs.h"
#include "base/mem.h"
#include "base/str.h"
#include "kube/service.h"
#include "oci/ref.h"
#include "run/config_impl.h"

/*
 * `registry:`, kept as an object with push, and with pull, ca (absolute), insecure and forward
 * where they were given.
 */

/* A repository, not an image in it. */
static int check_repository(const char *what, const char *text, struct err *err)
{
	AUTO_REF struct ref ref = {0};
	AUTO_ERR struct err cause = {0};
	AUTO_FREE char *shown = str_shown(text);

	if (ref_parse(text, &ref, &cause) < 0 || ref.kind != REF_REGISTRY) {
		err_set(err, E_CONFIG, "%s: '%s' is not a repository in the form HOST[:PORT]/REPO",
			what, shown);
		if (cause.message)
			err_evidence(err, "%s", cause.message);
		return err_hint(err, "registry: registry.example.com/me/dlrun");
	}
	if (!ref.tag && !ref.digest)
		return 0;
	err_set(err, E_CONFIG, "%s: '%s' names an image, not only a repository", what, shown);
	return err_hint(err, "registry: %s/%s", ref.host, ref.repo);
}

/* The part before the repository. */
static bool same_host(const char *a, const char *b)
{
	size_t len = strcspn(a, "/");

	return len == strcspn(b, "/") && strncasecmp(a, b, len) == 0;
}

int config_set_registry(const char *what, const char *text, struct json **json, struct err *err)
{
	const char *before = json_get_str(*json, "push");

	int r = check_repository(what, text, err);
	if (r < 0)
		return r;
	/* Another repository of a host that is known needs its certificate all the same. */
	if (!before || !same_host(before, text)) {
		json_free(*json);
		*json = json_object();
	}
	json_remove(*json, "pull");
	json_set_str(*json, "push", text);
	return 0;
}

/*
 * The map
 */

struct reading {
	struct config *config;
	const char *what;
	struct json *json;
};

static int read_repository(const struct reading *reading, const struct yaml *node,
	const struct config_place *place, struct err *err)
{
	AUTO_FREE char *what = mem_printf("%s.%s", reading->what, node->key);
	AUTO_ERR struct err cause = {0};

	if (check_repository(what, node->text, &cause) < 0) {
		config_place_prefix(&cause, place);
		return err_move(err, &cause);
	}
	json_set_str(reading->json, node->key, node->text);
	return 0;
}

static int read_ca(const struct reading *reading, const struct yaml *node,
	const struct config_place *place, struct err *err)
{
	if (str_starts(node->text, "~/") && str_empty(reading->config->home))
		return config_place_errorf(err, place, "%s.ca: HOME is not set", reading->what);
	AUTO_FREE char *path = config_file_named(reading->config, place->file, node->text);
	json_set_str(reading->json, "ca", path);
	return 0;
}

static int read_insecure(const struct reading *reading, const struct yaml *node,
	const struct config_place *place, struct err *err)
{
	bool on = str_eq(node->text, "true");

	if (!node->plain || (!on && !str_eq(node->text, "false")))
		return config_place_errorf(
			err, place, "%s.insecure must be true or false", reading->what);
	json_set_bool(reading->json, "insecure", on);
	return 0;
}

static int read_forward(const struct reading *reading, const struct yaml *node,
	const struct config_place *place, struct err *err)
{
	AUTO_ERR struct err cause = {0};
	struct kube_service_port where;

	if (kube_service_parse(node->text, &where, &cause) < 0) {
		config_place_prefix(&cause, place);
		return err_move(err, &cause);
	}
	json_set_str(reading->json, "forward", node->text);
	return 0;
}

static const struct {
	const char *name;
	int (*read)(const struct reading *, const struct yaml *, const struct config_place *,
		struct err *);
} members[] = {{"push", read_repository}, {"pull", read_repository}, {"ca", read_ca},
	{"insecure", read_insecure}, {"forward", read_forward}};

/* What does not count before it is confirmed is not kept. */
static void check_member(
	const struct reading *reading, const struct yaml *node, const struct config_place *place)
{
	AUTO_FREE char *row = mem_printf("registry.%s", node->key);
	AUTO_FREE char *key = mem_printf("%s.%s", reading->what, node->key);
	enum config_setter by = config_keys[config_key_index(row)].by;
	bool is_harmless = str_eq(node->key, "insecure") && str_eq(node->text, "false");
	const char *file = str_eq(node->key, "ca") ? json_get_str(reading->json, node->key) : NULL;

	if (!is_harmless && !config_claim(reading->config, place, by, key, node->text, file))
		json_remove(reading->json, node->key);
}

static int read_member(const struct reading *reading, const struct yaml *node,
	const struct config_place *place, struct err *err)
{
	const char *known[ARRAY_LEN(members)];

	for (size_t i = 0; i < ARRAY_LEN(members); i++) {
		known[i] = members[i].name;
		if (!str_eq(node->key, members[i].name))
			continue;
		if (node->kind != YAML_SCALAR || yaml_is_null(node) || !*node->text) {
			AUTO_FREE char *name = mem_printf("%s.%s", reading->what, node->key);
			if (node->kind == YAML_SCALAR)
				return config_place_errorf(err, place, "%s has no value", name);
			return config_wrong_kind(err, place, name, "a single value", node);
		}
		int r = members[i].read(reading, node, place, err);
		if (r == 0)
			check_member(reading, node, place);
		return r;
	}
	return config_unknown_key(err, place, reading->what, node, known, ARRAY_LEN(members), NULL);
}

static int read_members(const struct reading *reading, const struct yaml *node,
	const struct config_place *place, struct err *err)
{
	int r = 0;

	for (const struct yaml *item = node->first; item && r == 0; item = item->next) {
		struct config_place here = config_place_of(place, item);

		r = read_member(reading, item, &here, err);
	}
	if (r < 0 || json_get(reading->json, "push"))
		return r;
	config_place_errorf(err, place, "%s has no push", reading->what);
	return err_hint(err, "registry: {push: registry.example.com/me/dlrun}");
}

int config_read_registry(struct config *config, const char *what, const struct yaml *node,
	const struct config_place *place, struct json **json, struct err *err)
{
	AUTO_JSON struct json *object = NULL;
	AUTO_ERR struct err cause = {0};

	if (node->kind == YAML_LIST || yaml_is_null(node))
		return config_wrong_kind(err, place, what, "HOST[:PORT]/REPO or a map", node);
	if (node->kind == YAML_SCALAR) {
		if (config_set_registry(what, node->text, json, &cause) == 0)
			return 0;
		config_place_prefix(&cause, place);
		return err_move(err, &cause);
	}
	object = json_object();
	int r = read_members(&(struct reading){config, what, object}, node, place, err);
	if (r < 0)
		return r;
	json_free(*json);
	*json = TAKE(object);
	return 0;
}
