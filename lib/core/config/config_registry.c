/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/data/yaml_json.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/config_impl.h"
#include "kube/job/service.h"
#include "oci/model/ref.h"

/*
 * `registry:`, kept as an object with push, and with pull, ca, cert, key (absolute), insecure and
 * forward where they were given.
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

/* Drop a value that does not count before it is confirmed. file: the file that it names, or
 * NULL. */
static void keep_if_counts(
	const struct config_reading *reading, const char *file, struct json **value)
{
	AUTO_FREE char *row = mem_printf("registry.%s", reading->node->key);
	enum config_setter by = config_keys[config_key_index(row)].by;

	if (config_claim(
		    reading->config, reading->place, by, reading->name, reading->node->text, file))
		return;
	json_free(*value);
	*value = NULL;
}

static int read_repository(const struct config_reading *reading, struct json **ret, struct err *err)
{
	int r = config_read_string(reading, ret, err);
	if (r < 0 || check_repository(reading->name, reading->node->text, err) == 0)
		return r;
	return config_place_prefix(err, reading->place);
}

static int read_file(const struct config_reading *reading, struct json **ret, struct err *err)
{
	int r = config_read_string(reading, ret, err);
	if (r < 0)
		return r;
	if (str_starts(reading->node->text, "~/") && str_empty(reading->config->home))
		return config_place_errorf(
			err, reading->place, "%s: HOME is not set", reading->name);
	AUTO_FREE char *path =
		config_file_named(reading->config, reading->place->file, reading->node->text);
	json_free(*ret);
	*ret = json_string(path);
	keep_if_counts(reading, path, ret);
	return 0;
}

static int read_insecure(const struct config_reading *reading, struct json **ret, struct err *err)
{
	int r = config_read_string(reading, ret, err);
	if (r < 0)
		return r;
	json_free(*ret);
	*ret = yaml_to_json(reading->node);
	if (json_kind(*ret) != JSON_BOOL)
		return config_place_errorf(
			err, reading->place, "%s must be true or false", reading->name);
	if (str_eq(reading->node->text, "true"))
		keep_if_counts(reading, NULL, ret);
	return 0;
}

static int read_forward(const struct config_reading *reading, struct json **ret, struct err *err)
{
	struct kube_service_port where;

	int r = config_read_string(reading, ret, err);
	if (r < 0)
		return r;
	r = kube_service_parse(reading->node->text, &where, err);
	if (r < 0)
		return config_place_prefix(err, reading->place);
	keep_if_counts(reading, NULL, ret);
	return 0;
}

static const struct config_member members[] = {{"push", read_repository}, {"pull", read_repository},
	{"ca", read_file}, {"cert", read_file}, {"key", read_file}, {"insecure", read_insecure},
	{"forward", read_forward}};

int config_read_registry(struct config *config, const char *what, const struct yaml *node,
	const struct config_place *place, struct json **json, struct err *err)
{
	AUTO_JSON struct json *object = NULL;

	if (node->kind == YAML_LIST || yaml_is_null(node))
		return config_wrong_kind(err, place, what, "HOST[:PORT]/REPO or a map", node);
	if (node->kind == YAML_SCALAR) {
		int r = config_set_registry(what, node->text, json, err);
		return r < 0 ? config_place_prefix(err, place) : 0;
	}
	const struct config_reading reading = {config, place, node, what};
	int r = config_read_members(&reading, members, ARRAY_LEN(members), &object, err);
	if (r < 0)
		return r;
	if (!json_get(object, "push")) {
		config_place_errorf(err, place, "%s has no push", what);
		return err_hint(err, "registry: {push: registry.example.com/me/dlrun}");
	}
	if (!yaml_get(node, "cert") != !yaml_get(node, "key")) {
		config_place_errorf(err, place, "%s has only one of cert and key", what);
		return err_hint(err, "registry: {push: %s, cert: client.cert, key: client.key}",
			json_get_str(object, "push"));
	}
	json_free(*json);
	*json = TAKE(object);
	return 0;
}
