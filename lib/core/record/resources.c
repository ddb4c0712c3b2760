/* SPDX-License-Identifier: Apache-2.0 */
#include "core/record/resources.h"

#include <stdlib.h>
#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"

enum { CPUS_MAX = 100000, LABEL_MAX = 63, LABEL_PREFIX_MAX = 253 };
#define LABEL_LOWER   "abcdefghijklmnopqrstuvwxyz0123456789"
#define LABEL_ALLOWED LABEL_LOWER "ABCDEFGHIJKLMNOPQRSTUVWXYZ-_."

/*
 * Processors
 */

static int bad_cpus(const char *text, const char *what, struct err *err)
{
	AUTO_FREE char *shown = str_shown(text);

	err_set(err, E_CONFIG, "%s: '%s' is not a number of CPUs", what, shown);
	return err_hint(err, what[0] == '-' ? "--cpus 4" : "resources: {cpus: 4}");
}

/* Up to three digits behind the point. */
static int64_t thousandths(const char *digits, size_t n)
{
	int64_t value = 0;

	for (size_t i = 0; i < 3; i++)
		value = value * 10 + (i < n ? digits[i] - '0' : 0);
	return value;
}

int resources_parse_cpus(const char *text, const char *what, int64_t *ret, struct err *err)
{
	static const char digits[] = "0123456789";
	size_t whole = strspn(text, digits), part = 0;
	const char *rest = text + whole;
	int64_t value = 0;

	if (whole == 0 || whole > 9)
		return bad_cpus(text, what, err);
	value = strtoll(text, NULL, 10);
	if (str_eq(rest, "m")) {
		*ret = value;
	} else {
		if (*rest == '.')
			part = strspn(rest + 1, digits);
		if (*rest && (*rest != '.' || part == 0 || part > 3 || rest[1 + part]))
			return bad_cpus(text, what, err);
		*ret = value * 1000 + thousandths(rest + 1, part);
	}
	if (*ret > 0 && *ret <= (int64_t)CPUS_MAX * 1000)
		return 0;
	return bad_cpus(text, what, err);
}

/*
 * The configuration
 */

static void resources_take_text(const struct config *config, const char *key, char **ret)
{
	const char *text = config_str(config, key);

	if (!config_is_set(config, key))
		return;
	free(*ret);
	*ret = str_empty(text) ? NULL : mem_strdup(text);
}

/* Values of labels, with commas between them (Kubernetes: at most 63 of these characters). */
static int resources_take_labels(
	const struct config *config, const char *key, char **ret, struct err *err)
{
	const char *text = config_str(config, key);

	for (const char *at = text; at && *at; at += *at == ',') {
		size_t len = strspn(at, LABEL_ALLOWED);
		if (len == 0 || len > LABEL_MAX || (at[len] && (at[len] != ',' || !at[len + 1]))) {
			AUTO_FREE char *shown = str_shown(text);
			err_set(err, E_USAGE, "%s: '%s' is no list of names with commas", key,
				shown);
			return config_blame(config, key, err);
		}
		at += len;
	}
	resources_take_text(config, key, ret);
	return 0;
}

static bool resources_is_end(char c)
{
	return c && !strchr("-_.", c);
}

/* A DNS subdomain (RFC 1123). */
static bool resources_is_domain(const char *text, size_t len)
{
	for (size_t at = 0, part; at < len; at += part + 1) {
		part = strspn(text + at, LABEL_LOWER "-");
		if (part == 0 || text[at] == '-' || text[at + part - 1] == '-' ||
			(at + part < len && (text[at + part] != '.' || at + part + 1 == len)))
			return false;
	}
	return len > 0 && len <= LABEL_PREFIX_MAX;
}

/* The key of a label (Kubernetes: a name, which may have a DNS name and a slash before it). */
static bool resources_is_key(const char *text)
{
	const char *slash = strchr(text, '/'), *name = slash ? slash + 1 : text;
	size_t len = strlen(name);

	return (!slash || resources_is_domain(text, (size_t)(slash - text))) && len > 0 &&
	       len <= LABEL_MAX && strspn(name, LABEL_ALLOWED) == len && resources_is_end(*name) &&
	       resources_is_end(name[len - 1]);
}

static void resources_take_size(const struct config *config, const char *key, uint64_t *ret)
{
	if (config_is_set(config, key))
		*ret = config_size(config, key);
}

/* The name as the user gave it: an option, or a key of a file. */
static const char *resources_name_of(const struct config *config, const char *key)
{
	if (!config_is_option(config, key))
		return key;
	if (str_eq(key, "resources.same"))
		return "--same";
	return str_eq(key, "resources.cpus") ? "--cpus" : "--nodes";
}

static int resources_take_same(const struct config *config, char **ret, struct err *err)
{
	static const char key[] = "resources.same";
	const char *text = config_str(config, key);

	if (!str_empty(text) && !resources_is_key(text)) {
		AUTO_FREE char *shown = str_shown(text);
		err_set(err, E_USAGE, "%s: '%s' is neither zone nor the key of a label",
			resources_name_of(config, key), shown);
		return config_blame(config, key, err);
	}
	resources_take_text(config, key, ret);
	return 0;
}

int resources_from_config(const struct config *config, struct resources *ret, struct err *err)
{
	const char *cpus = config_str(config, "resources.cpus");

	if (ret->nodes == 0 || config_is_set(config, "resources.nodes"))
		ret->nodes = (int)config_int(config, "resources.nodes", 1);
	if (ret->nodes < 1 || ret->nodes > RESOURCES_NODES_MAX) {
		err_set(err, E_USAGE, "%s must be from 1 to %d",
			resources_name_of(config, "resources.nodes"), RESOURCES_NODES_MAX);
		return config_blame(config, "resources.nodes", err);
	}
	resources_take_size(config, "resources.memory", &ret->memory_bytes);
	resources_take_size(config, "resources.shm", &ret->shm_bytes);
	resources_take_size(config, "resources.disk", &ret->disk_bytes);
	resources_take_text(config, "resources.gpu_type", &ret->gpu_type);
	if (config_is_set(config, "resources.spot"))
		ret->spot = str_eq(config_str(config, "resources.spot"), "true")
				    ? RESOURCES_SPOT
				    : RESOURCES_SPOT_NOT;
	int r = resources_take_labels(config, "resources.region", &ret->region, err);
	if (r == 0)
		r = resources_take_labels(
			config, "resources.instance_type", &ret->instance_type, err);
	if (r == 0)
		r = resources_take_same(config, &ret->same, err);
	if (r < 0)
		return r;
	resources_take_text(config, "queue", &ret->queue);
	resources_take_text(config, "priority", &ret->priority);
	if (!cpus)
		return 0;
	r = resources_parse_cpus(
		cpus, resources_name_of(config, "resources.cpus"), &ret->cpus_milli, err);
	return r < 0 ? config_blame(config, "resources.cpus", err) : 0;
}

/*
 * JSON
 */

static void resources_set_size(struct json *object, const char *key, uint64_t size)
{
	if (size)
		json_set_int(object, key, (int64_t)size);
}

static void resources_set_text(struct json *object, const char *key, const char *text)
{
	if (text)
		json_set_bytes(object, key, text, strlen(text));
}

void resources_to_json(const struct resources *resources, struct json *object)
{
	json_set_int(object, "nodes", resources->nodes ? resources->nodes : 1);
	resources_set_size(object, "cpus_milli", (uint64_t)resources->cpus_milli);
	resources_set_size(object, "memory_bytes", resources->memory_bytes);
	resources_set_size(object, "shm_bytes", resources->shm_bytes);
	resources_set_size(object, "disk_bytes", resources->disk_bytes);
	resources_set_text(object, "gpu_type", resources->gpu_type);
	resources_set_text(object, "region", resources->region);
	resources_set_text(object, "instance_type", resources->instance_type);
	resources_set_text(object, "same", resources->same);
	if (resources->spot != RESOURCES_SPOT_ANY)
		json_set_bool(object, "spot", resources->spot == RESOURCES_SPOT);
	resources_set_text(object, "queue", resources->queue);
	resources_set_text(object, "priority", resources->priority);
}

static uint64_t get_size(const struct json *object, const char *key)
{
	int64_t value = json_get_int(object, key, 0);

	return value < 0 ? 0 : (uint64_t)value;
}

static char *resources_get_text(const struct json *object, const char *key)
{
	const char *text = json_get_str(object, key);

	return text ? mem_strdup(text) : NULL;
}

void resources_from_json(const struct json *object, struct resources *ret)
{
	int64_t nodes = json_get_int(object, "nodes", 1);

	*ret = (struct resources){
		.nodes = nodes < 1 || nodes > RESOURCES_NODES_MAX ? 1 : (int)nodes,
		.cpus_milli = (int64_t)get_size(object, "cpus_milli"),
		.memory_bytes = get_size(object, "memory_bytes"),
		.shm_bytes = get_size(object, "shm_bytes"),
		.disk_bytes = get_size(object, "disk_bytes"),
		.gpu_type = resources_get_text(object, "gpu_type"),
		.region = resources_get_text(object, "region"),
		.instance_type = resources_get_text(object, "instance_type"),
		.same = resources_get_text(object, "same"),
		.spot = json_kind(json_get(object, "spot")) != JSON_BOOL ? RESOURCES_SPOT_ANY
			: json_get_bool(object, "spot", false)           ? RESOURCES_SPOT
									 : RESOURCES_SPOT_NOT,
		.queue = resources_get_text(object, "queue"),
		.priority = resources_get_text(object, "priority"),
	};
}

void resources_done(struct resources *resources)
{
	if (!resources)
		return;
	free(resources->gpu_type);
	free(resources->region);
	free(resources->instance_type);
	free(resources->same);
	free(resources->queue);
	free(resources->priority);
	*resources = (struct resources){0};
}
