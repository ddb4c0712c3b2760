/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/data/yaml.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/config_impl.h"
#include "core/config/registry_config.h"
#include "kube/job/service.h"
#include "net/s3/s3.h"
#include "node/hosts.h"
#include "oci/model/ref.h"

/*
 * The keys of a target: kept as JSON under their names.
 */

/* A value that is being read: of a target or registry, or a member of one. */
struct config_reading {
	struct config *config;
	const struct config_location *location;
	const struct yaml *node;
	const char *name; /* "data", "results.pvc" */
};

/* A member that a map may have. */
struct config_member {
	const char *name;
	config_read_fn *read;
};

static int wrong_kind(const struct config_reading *reading, const char *wanted, struct err *err)
{
	return config_wrong_kind(err, reading->location, reading->name, wanted, reading->node);
}

static bool config_target_is_text(const struct yaml *node)
{
	return node->kind == YAML_SCALAR && !yaml_is_null(node) && *node->text;
}

/*
 * Simple values
 */

/* A string, not an empty one. */
static int read_string(const struct config_reading *reading, struct json **ret, struct err *err)
{
	if (reading->node->kind != YAML_SCALAR)
		return wrong_kind(reading, "a single value", err);
	if (!config_target_is_text(reading->node))
		return config_location_errorf(
			err, reading->location, "%s has no value", reading->name);
	*ret = yaml_to_json_text(reading->node);
	return 0;
}

/* null: none, which is another thing than nothing being said. */
static int read_text_or_null(
	const struct config_reading *reading, struct json **ret, struct err *err)
{
	if (!yaml_is_null(reading->node))
		return read_string(reading, ret, err);
	*ret = json_null();
	return 0;
}

static int read_bool(const struct config_reading *reading, struct json **ret, struct err *err)
{
	AUTO_FREE char *shown = NULL;

	*ret = yaml_to_json(reading->node);
	if (json_kind(*ret) == JSON_BOOL)
		return 0;
	if (reading->node->kind != YAML_SCALAR)
		return wrong_kind(reading, "true or false", err);
	shown = str_shown(reading->node->text);
	return config_location_errorf(
		err, reading->location, "%s must be true or false, not '%s'", reading->name, shown);
}

static int read_scalar_as(const struct config_reading *reading, enum config_type type,
	const char *choices, struct json **ret, struct err *err)
{
	const struct config_key key = {.name = reading->name, .type = type, .choices = choices};
	AUTO_ERR struct err cause = {0};

	int r = read_string(reading, ret, err);
	if (r < 0 || config_check_scalar(&key, reading->node->text, &cause) == 0)
		return r;
	if (type == CONFIG_ENUM)
		return config_location_error(err, E_CONFIG, reading->location, cause.message);
	return config_location_errorf(
		err, reading->location, "%s: %s", reading->name, cause.message);
}

static int read_duration(const struct config_reading *reading, struct json **ret, struct err *err)
{
	return read_scalar_as(reading, CONFIG_DURATION, NULL, ret, err);
}

static int read_size(const struct config_reading *reading, struct json **ret, struct err *err)
{
	return read_scalar_as(reading, CONFIG_SIZE, NULL, ret, err);
}

static int read_security(const struct config_reading *reading, struct json **ret, struct err *err)
{
	return read_scalar_as(reading, CONFIG_ENUM, "auto image restricted", ret, err);
}

/* A name with ~/ or a relative one is that of a file beside the configuration. */
static int read_file_name(const struct config_reading *reading, struct json **ret, struct err *err)
{
	int r = read_string(reading, ret, err);
	if (r < 0)
		return r;
	AUTO_FREE char *path =
		config_file_named(reading->config, reading->location->file, reading->node->text);
	json_free(*ret);
	*ret = json_string(path);
	return 0;
}

/*
 * Maps and lists
 */

/* Read a map of members into *ret, which also has what was read before an error. */
static int read_members(const struct config_reading *reading, const struct config_member *members,
	size_t n, struct json **ret, struct err *err)
{
	const char *known[16];

	BUG_ON(n > ARRAY_LEN(known));
	for (size_t i = 0; i < n; i++)
		known[i] = members[i].name;
	if (reading->node->kind != YAML_MAP)
		return wrong_kind(reading, "a map", err);
	*ret = json_object();
	for (const struct yaml *item = reading->node->first; item; item = item->next) {
		AUTO_FREE char *name = mem_printf("%s.%s", reading->name, item->key);
		struct config_location here = config_location_of(reading->location, item);
		struct config_reading inner = {reading->config, &here, item, name};
		struct json *value = NULL;
		size_t i = 0;

		while (i < n && !str_eq(item->key, known[i]))
			i++;
		if (i == n)
			return config_unknown_key(err, &here, reading->name, item, known, n, NULL);
		int r = members[i].read(&inner, &value, err);
		if (value)
			json_set(*ret, item->key, value);
		if (r < 0)
			return r;
	}
	return 0;
}

/* A map of any names to values of one kind. */
static int read_named(const struct config_reading *reading, config_read_fn *read, struct json **ret,
	struct err *err)
{
	if (reading->node->kind != YAML_MAP)
		return wrong_kind(reading, "a map", err);
	*ret = json_object();
	for (const struct yaml *item = reading->node->first; item; item = item->next) {
		AUTO_FREE char *name = mem_printf("%s.%s", reading->name, item->key);
		struct config_location here = config_location_of(reading->location, item);
		struct json *value = NULL;
		int r = read(
			&(struct config_reading){reading->config, &here, item, name}, &value, err);

		if (value)
			json_set(*ret, item->key, value);
		if (r < 0)
			return r;
	}
	return 0;
}

static int read_objects(const struct config_reading *reading, struct json **ret, struct err *err)
{
	if (reading->node->kind != YAML_LIST)
		return wrong_kind(reading, "a list", err);
	/* Read parts of Kubernetes objects as they are. */
	*ret = yaml_to_json(reading->node);
	return 0;
}

static int read_text_map(const struct config_reading *reading, struct json **ret, struct err *err)
{
	return read_named(reading, read_string, ret, err);
}

/*
 * Keys with a format of their own
 */

/* Only pods fetch data from there. */
static int config_target_fail_path(
	const struct config_reading *reading, const char *form, struct err *err)
{
	config_location_errorf(err, reading->location, "%s must be %s", reading->name, form);
	return reading->node->kind != YAML_MAP
		       ? -(int)err->code
		       : err_hint(err,
				 "aws s3 sync s3://bucket/path /srv/path   # there; only clusters read S3");
}

static int read_data_path(const struct config_reading *reading, struct json **ret, struct err *err)
{
	const struct yaml *node = reading->node;

	if (node->kind != YAML_SCALAR || (node->text[0] != '/' && node->text[0] != '~'))
		return config_target_fail_path(reading, "an absolute path", err);
	*ret = yaml_to_json_text(node);
	return 0;
}

static int read_local_data(const struct config_reading *reading, struct json **ret, struct err *err)
{
	if (reading->node->kind != YAML_MAP)
		return wrong_kind(reading, "a map of tree paths to places", err);
	return read_named(reading, read_data_path, ret, err);
}

/* Check that exactly one of the members in sources is set. */
static int check_source(const struct config_reading *reading, const struct json *json,
	const char *sources, struct err *err)
{
	AUTO_FREE char *words = mem_strdup(sources);
	char *rest = words;
	int n = 0;

	for (char *word; (word = strsep(&rest, " "));)
		n += json_get(json, word) != NULL;
	if (n == 1)
		return 0;
	return config_location_errorf(
		err, reading->location, "%s must have exactly one of: %s", reading->name, sources);
}

static int read_s3(const struct config_reading *reading, struct json **ret, struct err *err)
{
	AUTO_S3_ADDRESS struct s3_address address = {0};
	AUTO_ERR struct err error = {0};
	int r = read_string(reading, ret, err);

	if (r < 0 || s3_address_parse(json_str(*ret), &address, &error) == 0)
		return r;
	config_location_errorf(err, reading->location, "%s: %s", reading->name, error.message);
	return err_hint(err, "s3: s3://bucket/path");
}

static int read_volume_source(
	const struct config_reading *reading, struct json **ret, struct err *err)
{
	static const struct config_member members[] = {{"pvc", read_string}, {"nfs", read_string},
		{"host_path", read_string}, {"s3", read_s3}, {"cache", read_size},
		{"sub_path", read_string}, {"read_only", read_bool}};
	const struct yaml *node = reading->node;

	/* Sent to the cluster in the image. */
	if (node->kind == YAML_SCALAR && str_eq(node->text, "sync")) {
		*ret = yaml_to_json_text(node);
		return 0;
	}
	if (node->kind == YAML_SCALAR)
		return config_wrong_kind(
			err, reading->location, reading->name, "a map, or sync", node);
	int r = read_members(reading, members, ARRAY_LEN(members), ret, err);
	if (r < 0)
		return r;
	bool is_s3 = json_get(*ret, "s3"), has_cache = json_get(*ret, "cache");
	if (is_s3 ? json_get(*ret, "sub_path") || json_get(*ret, "read_only") : has_cache)
		return config_location_errorf(err, reading->location,
			is_s3 ? "%s: sub_path and read_only cannot be used with s3"
			      : "%s: cache requires s3",
			reading->name);
	return check_source(reading, *ret, "pvc nfs host_path s3", err);
}

static int read_kube_data(const struct config_reading *reading, struct json **ret, struct err *err)
{
	return read_named(reading, read_volume_source, ret, err);
}

static int read_volume(const struct config_reading *reading, struct json **ret, struct err *err)
{
	static const struct config_member members[] = {{"pvc", read_string}, {"nfs", read_string},
		{"host_path", read_string}, {"sub_path", read_string}, {"read_only", read_bool},
		{"path", read_string}};
	int r = read_members(reading, members, ARRAY_LEN(members), ret, err);

	if (r < 0)
		return r;
	const char *path = json_get_str(*ret, "path");
	if (!path || *path != '/')
		return config_location_errorf(err, reading->location,
			"%s must have path:, an absolute path in the container", reading->name);
	return check_source(reading, *ret, "pvc nfs host_path", err);
}

static int read_volumes(const struct config_reading *reading, struct json **ret, struct err *err)
{
	if (reading->node->kind != YAML_LIST)
		return wrong_kind(reading, "a list", err);
	*ret = json_array();
	for (const struct yaml *item = reading->node->first; item; item = item->next) {
		struct config_location here = config_location_of(reading->location, item);
		struct config_reading inner = {reading->config, &here, item, reading->name};
		struct json *value = NULL;
		int r = read_volume(&inner, &value, err);

		if (value)
			json_add(*ret, value);
		if (r < 0)
			return r;
	}
	return 0;
}

static int read_results(const struct config_reading *reading, struct json **ret, struct err *err)
{
	static const struct config_member members[] = {{"pvc", read_string}, {"nfs", read_string},
		{"claim", read_size}, {"emptyDir", read_bool}, {"s3", read_s3},
		{"sub_path", read_string}, {"storage_class", read_string}};
	int r = read_members(reading, members, ARRAY_LEN(members), ret, err);

	return r < 0 ? r : check_source(reading, *ret, "pvc nfs claim emptyDir s3", err);
}

static int read_kube_caches(
	const struct config_reading *reading, struct json **ret, struct err *err)
{
	static const struct config_member members[] = {{"pvc", read_string}, {"nfs", read_string},
		{"host_path", read_string}, {"sub_path", read_string}};
	int r = read_members(reading, members, ARRAY_LEN(members), ret, err);

	return r < 0 ? r : check_source(reading, *ret, "pvc nfs host_path", err);
}

/* A path on the nodes: only they could resolve "~". */
static int read_node_caches(
	const struct config_reading *reading, struct json **ret, struct err *err)
{
	const struct yaml *node = reading->node;

	if (node->kind != YAML_SCALAR || node->text[0] != '/')
		return config_location_errorf(err, reading->location,
			"%s must be an absolute path on the hosts", reading->name);
	*ret = yaml_to_json_text(node);
	return 0;
}

static int read_gpu_type(const struct config_reading *reading, struct json **ret, struct err *err)
{
	static const struct config_member members[] = {{"resource", read_string},
		{"node_selector", read_text_map}, {"tolerations", read_objects}};

	return read_members(reading, members, ARRAY_LEN(members), ret, err);
}

static int read_gpu_types(const struct config_reading *reading, struct json **ret, struct err *err)
{
	return read_named(reading, read_gpu_type, ret, err);
}

static int config_target_read_registry(
	const struct config_reading *reading, struct json **ret, struct err *err)
{
	return config_read_registry(
		reading->config, reading->name, reading->node, reading->location, ret, err);
}

/* A path on the nodes, or that it is to be sent there. */
static int read_node_place(const struct config_reading *reading, struct json **ret, struct err *err)
{
	const struct yaml *node = reading->node;

	if (node->kind != YAML_SCALAR ||
		(node->text[0] != '/' && node->text[0] != '~' && !str_eq(node->text, "sync")))
		return config_target_fail_path(
			reading, "an absolute path on the hosts, or sync", err);
	*ret = yaml_to_json_text(node);
	return 0;
}

static int read_node_data(const struct config_reading *reading, struct json **ret, struct err *err)
{
	return read_named(reading, read_node_place, ret, err);
}

static int config_target_add_hosts(const struct config_reading *reading, const struct yaml *item,
	struct strv *hosts, struct err *err)
{
	struct config_location here = config_location_of(reading->location, item);
	AUTO_ERR struct err cause = {0};

	if (!config_target_is_text(item))
		return wrong_kind(reading, "a list of hosts", err);
	if (node_hosts_add(hosts, item->text, &cause) == 0)
		return 0;
	return config_location_errorf(err, &here, "%s", cause.message);
}

/* Ranges are written out: what is kept is a list of hosts. */
static int read_hosts(const struct config_reading *reading, struct json **ret, struct err *err)
{
	const struct yaml *node = reading->node;
	AUTO_STRV struct strv hosts = {0};
	int r = 0;

	if (node->kind != YAML_LIST)
		r = config_target_add_hosts(reading, node, &hosts, err);
	for (const struct yaml *item = node->kind == YAML_LIST ? node->first : NULL; item && r == 0;
		item = item->next)
		r = config_target_add_hosts(reading, item, &hosts, err);
	if (r == 0 && hosts.n == 0)
		r = config_location_errorf(
			err, reading->location, "%s names no host", reading->name);
	if (r < 0)
		return r;
	*ret = json_array();
	json_add_strv(*ret, &hosts);
	return 0;
}

static int read_runtime(const struct config_reading *reading, struct json **ret, struct err *err)
{
	return read_scalar_as(reading, CONFIG_ENUM, "host podman docker", ret, err);
}

/*
 * The table
 */

enum { LOCAL = 1, KUBERNETES = 2, SSH = 4 };

static const struct {
	const char *name;
	unsigned kind;
	const char *what;
} kinds[] = {{"local", LOCAL, "a target of kind local"},
	{"kubernetes", KUBERNETES, "a target of kind kubernetes"},
	{"ssh", SSH, "a target of kind ssh"}};

const struct config_target_key config_target_keys[] = {
	{"kind", CONFIG_BY_PROJECT, LOCAL | KUBERNETES | SSH, read_string,
		"What it is: local (this machine), kubernetes, or ssh (SSH hosts)",
		"kind: kubernetes"},
	{"annotations", CONFIG_BY_PROJECT, KUBERNETES, read_text_map,
		"Added to everything that is made in the cluster", "annotations: {team: vision}"},
	{"before", CONFIG_BY_PROJECT, LOCAL | KUBERNETES | SSH, read_string,
		"As before: at the top, for this target", "before: source /opt/env.sh"},
	{"caches", CONFIG_BY_PROJECT, LOCAL, read_data_path,
		"Where the caches of Hugging Face, uv, pip and torch are. Default: in the home directory",
		"caches: /scratch/me/caches"},
	{"caches", CONFIG_BY_PROJECT, KUBERNETES, read_kube_caches,
		"Storage that runs share for the caches of Hugging Face, uv, pip and torch",
		"caches: {pvc: caches}"},
	{"caches", CONFIG_BY_PROJECT, SSH, read_node_caches,
		"Where the caches of Hugging Face, uv, pip and torch are on the nodes. Default: in the home "
		"directory",
		"caches: /scratch/me/caches"},
	{"context", CONFIG_BY_PROJECT, KUBERNETES, read_string,
		"Context of the kubeconfig. Default: the current one", "context: research-a"},
	{"data", CONFIG_BY_PROJECT, LOCAL, read_local_data,
		"Where the paths of data: are on this machine",
		"data: {data/imagenet: /srv/imagenet}"},
	{"data", CONFIG_BY_PROJECT, KUBERNETES, read_kube_data,
		"Where the paths of data: are in the cluster; sync: sent there in layers of the image",
		"data: {data/imagenet: {pvc: datasets, sub_path: imagenet}, data/labels: sync}"},
	{"data", CONFIG_BY_PROJECT, SSH, read_node_data,
		"Where the paths of data: are on the nodes; sync: sent once, and kept there",
		"data: {data/imagenet: /srv/imagenet, data/labels: sync}"},
	{"dir", CONFIG_BY_CONFIRMED, SSH, read_string,
		"Where dlrun keeps its things on the nodes. Default: ~/.dlrun", "dir: /scratch/me"},
	{"gpu_types", CONFIG_BY_PROJECT, KUBERNETES, read_gpu_types,
		"What --gpu-type NAME stands for",
		"gpu_types: {h100: {resource: nvidia.com/gpu, node_selector: {gpu: h100}, "
		"tolerations: []}}"},
	{"host_path", CONFIG_BY_PROJECT, KUBERNETES, read_bool,
		"Whether volumes may be directories of nodes", "host_path: true"},
	{"hosts", CONFIG_BY_PROJECT, SSH, read_hosts,
		"Hosts as ssh knows them, with ranges; one that is free is taken. Default: the "
		"target's name",
		"hosts: [gpu1, me@gpu2, \"gpu[03-16]\"]"},
	{"image_pull_secret", CONFIG_BY_PROJECT, KUBERNETES, read_string,
		"Secret with the login for the registry", "image_pull_secret: regcred"},
	{"labels", CONFIG_BY_PROJECT, KUBERNETES, read_text_map,
		"Added to everything that is made in the cluster", "labels: {team: vision}"},
	{"linger", CONFIG_BY_PROJECT, KUBERNETES, read_duration,
		"As linger: at the top, for this target", "linger: 30m"},
	{"namespace", CONFIG_BY_PROJECT, KUBERNETES, read_string,
		"Namespace. Default: that of the context", "namespace: me"},
	{"overlay", CONFIG_BY_TREE, KUBERNETES, read_file_name,
		"A file with parts of a pod that are merged into every pod", "overlay: pod.yaml"},
	{"platform", CONFIG_BY_PROJECT, KUBERNETES, read_string, "Platform of the nodes",
		"platform: linux/amd64"},
	{"priority", CONFIG_BY_PROJECT, KUBERNETES, read_string,
		"PriorityClass, with a queue the WorkloadPriorityClass", "priority: low"},
	{"queue", CONFIG_BY_PROJECT, KUBERNETES, read_string, "LocalQueue of Kueue", "queue: gpu"},
	{"registry", CONFIG_BY_PROJECT, LOCAL | KUBERNETES, config_target_read_registry,
		"As registry: at the top, for this target",
		"registry: registry.example.com/me/dlrun"},
	{"results", CONFIG_BY_PROJECT, KUBERNETES, read_results, "Storage of $DLRUN_OUTPUT_DIR",
		"results: {pvc: results}"},
	{"runtime", CONFIG_BY_PROJECT, SSH, read_runtime,
		"What programs run in: host, the node's own system; podman or docker there, with "
		"image:",
		"runtime: podman"},
	{"security", CONFIG_BY_PROJECT, KUBERNETES, read_security,
		"auto: as the namespace demands; image: as the image says; restricted",
		"security: auto"},
	{"service_account", CONFIG_BY_PROJECT, KUBERNETES, read_text_or_null,
		"Of the pods, with its token mounted; null: none", "service_account: trainer"},
	{"ttl", CONFIG_BY_PROJECT, KUBERNETES, read_duration,
		"How long the cluster keeps what has ended. Default: 7d", "ttl: 7d"},
	{"volumes", CONFIG_BY_PROJECT, KUBERNETES, read_volumes, "Further volumes",
		"volumes: [{pvc: scratch, path: /scratch}]"},
};
const size_t config_target_keys_n = ARRAY_LEN(config_target_keys);

/*
 * Targets
 */

static int config_target_find_kind(
	const struct config_reading *reading, unsigned *ret, struct err *err)
{
	const struct yaml *node = yaml_get(reading->node, "kind");

	if (!node) {
		config_location_errorf(
			err, reading->location, "target %s has no kind", reading->name);
		return str_is_word_of(reading->name, "kubernetes local")
			       ? err_hint(err, "kind: %s", reading->name)
			       : err_hint(err, "kind: ssh # or kubernetes, or local");
	}
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
		if (node->kind == YAML_SCALAR && str_eq(node->text, kinds[i].name)) {
			*ret = kinds[i].kind;
			return 0;
		}
	struct config_location here = config_location_of(reading->location, node);
	config_location_errorf(err, &here, "the kind of target %s must be local, kubernetes or ssh",
		reading->name);
	return err_hint(err, "kind: ssh");
}

static const struct config_target_key *find_key(const char *name, unsigned kind)
{
	for (size_t i = 0; i < config_target_keys_n; i++)
		if (str_eq(name, config_target_keys[i].name) &&
			(config_target_keys[i].kinds & kind))
			return &config_target_keys[i];
	return NULL;
}

char *config_target_key_hint(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
		const struct config_target_key *key = find_key(name, kinds[i].kind);
		if (key && str_eq(name, "kind"))
			return mem_printf("targets: {NAME: {%s}}", key->example);
		if (key)
			return mem_printf(
				"targets: {NAME: {kind: %s, %s}}", kinds[i].name, key->example);
	}
	return NULL;
}

static int config_target_fail_unknown(const struct config_location *location,
	const struct yaml *item, unsigned kind, struct err *err)
{
	const char *known[ARRAY_LEN(config_target_keys)];
	size_t n = 0;

	for (size_t i = 0; i < config_target_keys_n; i++)
		if (config_target_keys[i].kinds & kind)
			known[n++] = config_target_keys[i].name;
	const char *what = "";
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
		if (kinds[i].kind == kind)
			what = kinds[i].what;
	AUTO_FREE char *place = config_place_hint(item->key);
	return config_unknown_key(err, location, what, item, known, n, place);
}

/* Keeps the value of a key unless it does not count before it is confirmed. */
static void keep_value(const struct config_reading *reading, const struct config_location *location,
	const struct config_target_key *key, struct json *target, struct json *value)
{
	AUTO_FREE char *full = mem_printf("targets.%s.%s", reading->name, key->name);
	bool is_default = str_eq(key->name, "dir") && str_eq(json_str(value), NODE_ROOT_DEFAULT);

	if (is_default || config_claim(reading->config, location, key->by, full, json_str(value),
				  key->by == CONFIG_BY_TREE ? json_str(value) : NULL))
		json_set(target, key->name, value);
	else
		json_free(value);
}

static int config_target_read_target(
	const struct config_reading *reading, struct json **ret, struct err *err)
{
	unsigned kind = 0;

	if (reading->node->kind != YAML_MAP)
		return wrong_kind(reading, "a map", err);
	*ret = json_object();
	int r = config_target_find_kind(reading, &kind, err);
	for (const struct yaml *item = reading->node->first; item && r == 0; item = item->next) {
		struct config_location here = config_location_of(reading->location, item);
		const struct config_target_key *key = find_key(item->key, kind);
		struct json *value = NULL;

		if (!key)
			return config_target_fail_unknown(&here, item, kind, err);
		r = key->read(&(struct config_reading){reading->config, &here, item, item->key},
			&value, err);
		if (value)
			keep_value(reading, &here, key, *ret, value);
		if (r < 0)
			err_hint(err, "%s", key->example);
	}
	return r;
}

int config_read_targets(struct config *config, size_t i, const struct yaml *node,
	const struct config_location *location, struct err *err)
{
	struct config_value *value = &config->values[i];
	int r = 0;

	if (node->kind != YAML_MAP)
		return config_wrong_kind(
			err, location, config_keys[i].name, "a map of names to targets", node);
	if (!value->json)
		value->json = json_object();
	for (const struct yaml *item = node->first; item && r == 0; item = item->next) {
		struct config_location here = config_location_of(location, item);
		struct json *target = NULL;

		r = config_target_read_target(
			&(struct config_reading){config, &here, item, item->key}, &target, err);
		if (target)
			json_set(value->json, item->key, target);
	}
	if (r == 0)
		config_value_mark(value, location);
	return r;
}

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

	int r = str_eq(text, REGISTRY_NONE) ? 0 : check_repository(what, text, err);
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

	if (config_claim(reading->config, reading->location, by, reading->name, reading->node->text,
		    file))
		return;
	json_free(*value);
	*value = NULL;
}

static int config_target_read_repository(
	const struct config_reading *reading, struct json **ret, struct err *err)
{
	int r = read_string(reading, ret, err);
	if (r < 0 || check_repository(reading->name, reading->node->text, err) == 0)
		return r;
	return config_location_prefix(err, reading->location);
}

static int config_target_read_file(
	const struct config_reading *reading, struct json **ret, struct err *err)
{
	int r = read_string(reading, ret, err);
	if (r < 0)
		return r;
	if (str_starts(reading->node->text, "~/") && str_empty(reading->config->home))
		return config_location_errorf(
			err, reading->location, "%s: HOME is not set", reading->name);
	AUTO_FREE char *path =
		config_file_named(reading->config, reading->location->file, reading->node->text);
	json_free(*ret);
	*ret = json_string(path);
	keep_if_counts(reading, path, ret);
	return 0;
}

static int read_insecure(const struct config_reading *reading, struct json **ret, struct err *err)
{
	int r = read_string(reading, ret, err);
	if (r < 0)
		return r;
	json_free(*ret);
	*ret = yaml_to_json(reading->node);
	if (json_kind(*ret) != JSON_BOOL)
		return config_location_errorf(
			err, reading->location, "%s must be true or false", reading->name);
	if (str_eq(reading->node->text, "true"))
		keep_if_counts(reading, NULL, ret);
	return 0;
}

static int read_forward(const struct config_reading *reading, struct json **ret, struct err *err)
{
	struct kube_service_port where;

	int r = read_string(reading, ret, err);
	if (r < 0)
		return r;
	r = kube_service_parse(reading->node->text, &where, err);
	if (r < 0)
		return config_location_prefix(err, reading->location);
	keep_if_counts(reading, NULL, ret);
	return 0;
}

static const struct config_member members[] = {{"push", config_target_read_repository},
	{"pull", config_target_read_repository}, {"ca", config_target_read_file},
	{"cert", config_target_read_file}, {"key", config_target_read_file},
	{"insecure", read_insecure}, {"forward", read_forward}};

int config_read_registry(struct config *config, const char *what, const struct yaml *node,
	const struct config_location *location, struct json **json, struct err *err)
{
	AUTO_JSON struct json *object = NULL;

	if (node->kind == YAML_LIST || yaml_is_null(node))
		return config_wrong_kind(err, location, what, "HOST[:PORT]/REPO or a map", node);
	if (node->kind == YAML_SCALAR) {
		int r = config_set_registry(what, node->text, json, err);
		return r < 0 ? config_location_prefix(err, location) : 0;
	}
	const struct config_reading reading = {config, location, node, what};
	int r = read_members(&reading, members, ARRAY_LEN(members), &object, err);
	if (r < 0)
		return r;
	if (!json_get(object, "push")) {
		config_location_errorf(err, location, "%s has no push", what);
		return err_hint(err, "registry: {push: registry.example.com/me/dlrun}");
	}
	if (!yaml_get(node, "cert") != !yaml_get(node, "key")) {
		config_location_errorf(err, location, "%s has only one of cert and key", what);
		return err_hint(err, "registry: {push: %s, cert: client.cert, key: client.key}",
			json_get_str(object, "push"));
	}
	json_free(*json);
	*json = TAKE(object);
	return 0;
}
