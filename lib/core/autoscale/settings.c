/* SPDX-License-Identifier: Apache-2.0 */
#include "core/autoscale/settings.h"

#include <fnmatch.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/data/yaml.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/autoscale/fit.h"
#include "core/autoscale/snapshot.h"

enum {
	NAME_SIZE = 4096,
	CLUSTER_MAX = 100,
	REGION_MAX = 40,
	TEXT_MAX = 256,
	WORDS_MAX = 64,
	REGIONS_MAX = 32,
	EVERY_MS = 15 * 1000,
	HOUR_MS = 3600 * 1000,
};

#define LETTERS  "abcdefghijklmnopqrstuvwxyz0123456789-"
#define LIMIT_MS (SCALE_LIMIT_MAX * INT64_C(1000))
/* A number that no key sets; a price is negative. */
#define UNSET INT64_MIN

struct settings_group {
	char *pattern, *refuse;
	int64_t weight, max;
	double price;
};
struct settings_groups VEC_OF(struct settings_group);

/* An instance type. */
struct settings_type {
	char *name;
	double price;
};
struct settings_prices VEC_OF(struct settings_type);

struct scale_settings {
	char *cluster;
	int64_t every_ms, metrics_port;
	struct scale_limits limits;
	struct settings_providers providers;
	struct settings_groups groups;
	struct settings_prices prices, spot_prices;
	struct strv notify;
};

struct settings_reader {
	const char *path;
	struct err *err;
};

/* A member of a map: how it is read, to which offset of the structure that the map is. */
struct settings_key {
	const char *name;
	int (*read)(struct settings_reader *reader, const struct yaml *node,
		const struct settings_key *key, void *to);
	size_t at;
	int64_t min, max; /* of a number, a duration in milliseconds; max: of members, of bytes */
};

/* Errors. */

static void settings_name(const struct yaml *node, struct buf *out)
{
	size_t i = 0;

	if (!node->parent)
		return;
	settings_name(node->parent, out);
	if (node->key) {
		AUTO_FREE char *shown = str_shown(node->key);
		buf_addf(out, "%s%s", out->len ? "." : "", *shown ? shown : "\"\"");
		return;
	}
	for (const struct yaml *m = node->parent->first; m != node; m = m->next)
		i++;
	buf_addf(out, "[%zu]", i);
}

/* "PATH:LINE:COLUMN: KEY text" */
static int settings_bad(
	const struct settings_reader *reader, const struct yaml *node, const char *text)
{
	AUTO_BUF struct buf name = buf_with(NAME_SIZE);
	struct yaml_mark at = yaml_place(node);

	settings_name(node, &name);
	return err_set(reader->err, E_SCALE_SETTINGS, "%s:%u:%u: %s %s", reader->path, at.line,
		at.column, name.len ? name.data : "the text", text);
}

static int settings_bad_range(const struct settings_reader *reader, const struct yaml *node,
	const char *what, const char *min, const char *max)
{
	AUTO_FREE char *shown = str_shown(node->text);
	AUTO_FREE char *text =
		mem_printf("must be %s from %s to %s, not \"%s\"", what, min, max, shown);

	return settings_bad(reader, node, text);
}

static int settings_kind(
	const struct settings_reader *reader, const struct yaml *node, enum yaml_kind kind)
{
	static const char *const wanted[] = {"a single value", "a list", "a map"};

	if (yaml_is_null(node))
		return settings_bad(reader, node, "has no value");
	if (node->kind != kind) {
		AUTO_FREE char *text =
			mem_printf("must be %s, not %s", wanted[kind], yaml_kind_name(node));
		return settings_bad(reader, node, text);
	}
	if (kind == YAML_SCALAR ? !*node->text : !node->first)
		return settings_bad(reader, node, "is empty");
	return 0;
}

/* A list or map of members. */
static int settings_members(const struct settings_reader *reader, const struct yaml *node,
	enum yaml_kind kind, int64_t max)
{
	int64_t n = 0;
	int r = settings_kind(reader, node, kind);

	for (const struct yaml *m = node->first; r == 0 && m; m = m->next)
		n++;
	if (r < 0 || n <= max)
		return r;
	AUTO_FREE char *text = mem_printf(
		"has %lld members: at most %lld are allowed", (long long)n, (long long)max);
	return settings_bad(reader, node, text);
}

static int settings_unknown(const struct settings_reader *reader, const struct yaml *item,
	const struct settings_key *keys, size_t n)
{
	AUTO_BUF struct buf where = buf_with(NAME_SIZE);
	AUTO_FREE char *shown = str_shown(item->key);
	AUTO_STRV struct strv names = {0};

	settings_name(item->parent, &where);
	for (size_t i = 0; i < n; i++)
		strv_add(&names, keys[i].name);
	const char *near = str_suggest(item->key, (const char *const *)names.v, names.n);
	err_set(reader->err, E_SCALE_SETTINGS, "%s:%u:%u: unknown key '%s'%s%s", reader->path,
		item->key_mark.line, item->key_mark.column, shown, where.len ? " in " : "",
		where.len ? where.data : "");
	if (near)
		return err_hint(reader->err, "did you mean '%s'?", near);
	return err_hint(reader->err, "dlrun help dlrun-autoscale.5");
}

/* Values. */

static int settings_whole(struct settings_reader *reader, const struct yaml *node,
	const struct settings_key *key, void *to)
{
	int r = settings_kind(reader, node, YAML_SCALAR);

	if (r < 0 || str_to_int(node->text, key->min, key->max, "", to, NULL) == 0)
		return r;
	AUTO_FREE char *min = mem_printf("%lld", (long long)key->min);
	AUTO_FREE char *max = mem_printf("%lld", (long long)key->max);
	return settings_bad_range(reader, node, "a whole number", min, max);
}

static int settings_price(struct settings_reader *reader, const struct yaml *node,
	const struct settings_key *key UNUSED, void *to)
{
	AUTO_FREE char *max = mem_printf("%d", SCALE_PRICE_MAX);
	double *ret = to, value;
	int r = settings_kind(reader, node, YAML_SCALAR);

	if (r < 0)
		return r;
	if (!str_to_decimal(node->text, &value) || value > SCALE_PRICE_MAX)
		return settings_bad_range(reader, node, "a price like 3.2,", "0", max);
	*ret = value;
	return 0;
}

/* A limit of 0 would buy nothing, and elsewhere 0 is none. */
static int settings_price_limit(struct settings_reader *reader, const struct yaml *node,
	const struct settings_key *key, void *to)
{
	const double *value = to;
	int r = settings_price(reader, node, key, to);

	return r == 0 && *value <= 0
		       ? settings_bad(reader, node, "must be above 0: nothing could be bought")
		       : r;
}

static int settings_duration(struct settings_reader *reader, const struct yaml *node,
	const struct settings_key *key, void *to)
{
	char min[32], max[32];
	AUTO_ERR struct err cause = {0};
	int64_t *ret = to, value;
	int r = settings_kind(reader, node, YAML_SCALAR);

	if (r < 0)
		return r;
	if (duration_parse(node->text, &value, &cause) < 0) {
		AUTO_FREE char *text = mem_printf("is not valid: %s", cause.message);
		return settings_bad(reader, node, text);
	}
	if (value < key->min || value > key->max)
		return settings_bad_range(reader, node, "a duration", duration_text(key->min, min),
			duration_text(key->max, max));
	*ret = value;
	return 0;
}

/* A sentence. */
static int settings_text(struct settings_reader *reader, const struct yaml *node,
	const struct settings_key *key UNUSED, void *to)
{
	char **ret = to;
	int r = settings_kind(reader, node, YAML_SCALAR);

	if (r == 0 && (strlen(node->text) > TEXT_MAX || !str_is_plain(node->text)))
		return settings_bad(
			reader, node, "is not one line of printable text, of 256 bytes at most");
	if (r == 0)
		REPLACE(*ret, mem_strdup(node->text));
	return r;
}

/* The value of tags and labels at providers. */
static int settings_cluster_name(struct settings_reader *reader, const struct yaml *node,
	const struct settings_key *key UNUSED, void *to)
{
	char **ret = to;
	int r = settings_kind(reader, node, YAML_SCALAR);

	if (r < 0)
		return r;
	if (strlen(node->text) > CLUSTER_MAX || strchr("-_.", node->text[0]) ||
		node->text[strspn(node->text, LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZ_.")])
		return settings_bad(reader, node,
			"must be letters, digits, \"-\", \"_\" and \".\", the first a letter or a "
			"digit, 100 at most");
	REPLACE(*ret, mem_strdup(node->text));
	return 0;
}

/* A program and its arguments. */
static int settings_words(struct settings_reader *reader, const struct yaml *node,
	const struct settings_key *key UNUSED, void *to)
{
	int r = settings_members(reader, node, YAML_LIST, WORDS_MAX);

	for (const struct yaml *m = node->first; r == 0 && m; m = m->next) {
		if (m->kind != YAML_SCALAR || m == node->first)
			r = settings_kind(reader, m, YAML_SCALAR);
		if (r == 0)
			strv_add(to, m->text);
	}
	return r;
}

/* A region becomes a part of a host's name. */
static int settings_regions(struct settings_reader *reader, const struct yaml *node,
	const struct settings_key *key UNUSED, void *to)
{
	int r = settings_members(reader, node, YAML_LIST, REGIONS_MAX);

	for (const struct yaml *m = node->first; r == 0 && m; m = m->next) {
		r = settings_kind(reader, m, YAML_SCALAR);
		if (r == 0 && (strlen(m->text) > REGION_MAX || m->text[strspn(m->text, LETTERS)]))
			r = settings_bad(reader, m, "is not a region like us-east-1");
		if (r == 0 && strv_find(to, m->text) >= 0)
			r = settings_bad(reader, m, "names a region that is there already");
		if (r == 0)
			strv_add(to, m->text);
	}
	return r;
}

/* Maps. */

static int settings_map(struct settings_reader *reader, const struct yaml *node,
	const struct settings_key *keys, size_t n, void *to)
{
	int r = settings_kind(reader, node, YAML_MAP);

	for (const struct yaml *m = node->first; r == 0 && m; m = m->next) {
		size_t i = 0;
		while (i < n && !str_eq(keys[i].name, m->key))
			i++;
		r = i == n ? settings_unknown(reader, m, keys, n)
			   : keys[i].read(reader, m, &keys[i], (char *)to + keys[i].at);
	}
	return r;
}

#define LIMIT(name, member, read, min, max)                                                        \
	{                                                                                          \
		name, read, offsetof(struct scale_limits, member), min, max                        \
	}
static const struct settings_key settings_limit_keys[] = {
	LIMIT("nodes", nodes, settings_whole, 1, SCALE_LIMIT_MAX),
	LIMIT("price", price, settings_price_limit, 0, 0),
	LIMIT("step", step, settings_whole, 1, SCALE_LIMIT_MAX),
	LIMIT("removals", removals, settings_whole, 1, SCALE_LIMIT_MAX),
	LIMIT("idle", idle_ms, settings_duration, 0, LIMIT_MS),
	LIMIT("spares", spares, settings_whole, 0, SCALE_LIMIT_MAX),
	LIMIT("boot", boot_ms, settings_duration, 0, LIMIT_MS),
	LIMIT("silent", silent_ms, settings_duration, 0, LIMIT_MS),
};

static int settings_read_limits(struct settings_reader *reader, const struct yaml *node,
	const struct settings_key *key UNUSED, void *to)
{
	return settings_map(reader, node, settings_limit_keys, ARRAY_LEN(settings_limit_keys), to);
}

static int settings_aws(struct settings_reader *reader, const struct yaml *node,
	const struct settings_key *key UNUSED, void *to)
{
	static const struct settings_key keys[] = {{"regions", settings_regions, 0, 0, 0}};

	return settings_map(reader, node, keys, ARRAY_LEN(keys), to);
}

/* In the order of their kinds. */
static const struct settings_key settings_provider_keys[] = {
	[SETTINGS_AWS] = {"aws", settings_aws, offsetof(struct settings_provider, words), 0, 0},
	[SETTINGS_EXEC] = {"exec", settings_words, offsetof(struct settings_provider, words), 0, 0},
};

static int settings_read_providers(struct settings_reader *reader, const struct yaml *node,
	const struct settings_key *key, void *to)
{
	const struct settings_key *keys = settings_provider_keys;
	const size_t n = ARRAY_LEN(settings_provider_keys);
	struct settings_providers *providers = to;
	bool has_aws = false;
	int r = settings_members(reader, node, YAML_LIST, key->max);

	for (const struct yaml *m = node->first; r == 0 && m; m = m->next) {
		struct settings_provider *provider = vec_push(providers);
		r = settings_map(reader, m, keys, n, provider);
		if (r == 0 && m->first->next)
			r = settings_bad(reader, m, "must have one key, aws or exec");
		if (r < 0)
			break;
		provider->kind = str_eq(m->first->key, keys[SETTINGS_AWS].name) ? SETTINGS_AWS
										: SETTINGS_EXEC;
		if (provider->kind == SETTINGS_AWS && has_aws)
			r = settings_bad(
				reader, m->first, "is there twice: one provider has all regions");
		has_aws |= provider->kind == SETTINGS_AWS;
	}
	return r;
}

#define OF_GROUP(member) offsetof(struct settings_group, member)
static const struct settings_key settings_group_keys[] = {
	{"weight", settings_whole, OF_GROUP(weight), -SCALE_WEIGHT_MAX, SCALE_WEIGHT_MAX},
	{"price", settings_price, OF_GROUP(price), 0, 0},
	{"max", settings_whole, OF_GROUP(max), 0, SCALE_GROUP_SIZE_MAX},
	{"refuse", settings_text, OF_GROUP(refuse), 0, 0},
};

static int settings_read_groups(struct settings_reader *reader, const struct yaml *node,
	const struct settings_key *key, void *to)
{
	struct settings_groups *groups = to;
	int r = settings_members(reader, node, YAML_MAP, key->max);

	for (const struct yaml *m = node->first; r == 0 && m; m = m->next) {
		if (!*m->key || strlen(m->key) > TEXT_MAX)
			return settings_bad(reader, m, "is not a pattern of 1 to 256 bytes");
		struct settings_group *group = vec_push(groups);
		*group = (struct settings_group){
			.pattern = mem_strdup(m->key), .weight = UNSET, .max = UNSET, .price = -1};
		r = settings_map(
			reader, m, settings_group_keys, ARRAY_LEN(settings_group_keys), group);
	}
	return r;
}

static int settings_read_prices(struct settings_reader *reader, const struct yaml *node,
	const struct settings_key *key, void *to)
{
	struct settings_prices *prices = to;
	int r = settings_members(reader, node, YAML_MAP, key->max);

	for (const struct yaml *m = node->first; r == 0 && m; m = m->next) {
		struct settings_type *type = vec_push(prices);
		type->name = mem_strdup(m->key);
		r = settings_price(reader, m, key, &type->price);
	}
	return r;
}

#define OF_SETTINGS(member) offsetof(struct scale_settings, member)
static const struct settings_key settings_keys[] = {
	{"cluster", settings_cluster_name, OF_SETTINGS(cluster), 0, 0},
	{"every", settings_duration, OF_SETTINGS(every_ms), 1000, HOUR_MS},
	{"limits", settings_read_limits, OF_SETTINGS(limits), 0, 0},
	{"providers", settings_read_providers, OF_SETTINGS(providers), 0, SETTINGS_PROVIDERS_MAX},
	{"groups", settings_read_groups, OF_SETTINGS(groups), 0, SETTINGS_GROUPS_MAX},
	{"prices", settings_read_prices, OF_SETTINGS(prices), 0, SETTINGS_PRICES_MAX},
	{"spot_prices", settings_read_prices, OF_SETTINGS(spot_prices), 0, SETTINGS_PRICES_MAX},
	{"metrics", settings_whole, OF_SETTINGS(metrics_port), 1, UINT16_MAX},
	{"notify", settings_words, OF_SETTINGS(notify), 0, 0},
};

int settings_parse(const char *text, size_t len, const char *path, struct scale_settings **ret,
	struct err *err)
{
	static const char *const required[] = {"cluster", "providers"};
	AUTO_SETTINGS struct scale_settings *settings = mem_alloc(1, sizeof(*settings));
	AUTO_YAML struct yaml *yaml = NULL;
	struct settings_reader reader = {path, err};

	*settings = (struct scale_settings){.every_ms = EVERY_MS};
	scale_limits_init(&settings->limits);
	int r = yaml_parse(text, len, path, &yaml, err);
	if (r == 0)
		r = settings_map(&reader, yaml, settings_keys, ARRAY_LEN(settings_keys), settings);
	for (size_t i = 0; r == 0 && i < ARRAY_LEN(required); i++)
		if (!yaml_get(yaml, required[i]))
			r = err_set(
				err, E_SCALE_SETTINGS, "%s:1:1: %s is missing", path, required[i]);
	if (r == 0)
		*ret = TAKE(settings);
	return r;
}

void settings_free(struct scale_settings *settings)
{
	if (!settings)
		return;
	free(settings->cluster);
	vec_foreach (struct settings_provider, provider, &settings->providers)
		strv_done(&provider->words);
	vec_done(&settings->providers);
	vec_foreach (struct settings_group, group, &settings->groups) {
		free(group->pattern);
		free(group->refuse);
	}
	vec_done(&settings->groups);
	vec_foreach (struct settings_type, type, &settings->prices)
		free(type->name);
	vec_done(&settings->prices);
	vec_foreach (struct settings_type, type, &settings->spot_prices)
		free(type->name);
	vec_done(&settings->spot_prices);
	strv_done(&settings->notify);
	free(settings);
}

/* Readers. */

const char *settings_cluster(const struct scale_settings *settings)
{
	return settings->cluster;
}

const struct scale_limits *settings_limits(const struct scale_settings *settings)
{
	return &settings->limits;
}

int64_t settings_every_ms(const struct scale_settings *settings)
{
	return settings->every_ms;
}

int settings_metrics_port(const struct scale_settings *settings)
{
	return (int)settings->metrics_port;
}

const struct strv *settings_notify(const struct scale_settings *settings)
{
	return settings->notify.n ? &settings->notify : NULL;
}

const struct settings_providers *settings_providers(const struct scale_settings *settings)
{
	return &settings->providers;
}

/* Never above the provider's; as many as the minimum are there in any case. */
static int64_t settings_max(int64_t said, const struct scale_group *group)
{
	if (said == UNSET || said >= group->max)
		return group->max;
	return said > group->min ? said : group->min;
}

void settings_unmatched(const struct scale_settings *settings, struct scale_model *model)
{
	vec_foreach (const struct settings_group, each, &settings->groups) {
		bool is_there = false;
		for (size_t g = 0; g < model->groups.n && !is_there; g++)
			is_there = fnmatch(each->pattern, model->groups.v[g].id, 0) == 0;
		if (!is_there)
			strv_addf(&model->remarks,
				"settings: groups has %.100s, and no group is called that",
				each->pattern);
	}
}

void settings_apply(const struct scale_settings *settings, struct scale_group *group)
{
	const struct settings_prices *prices =
		group->is_spot ? &settings->spot_prices : &settings->prices;
	const char *type = scale_pair(&group->labels, "node.kubernetes.io/instance-type");
	struct settings_group said = {.weight = UNSET, .max = UNSET, .price = -1};

	vec_foreach (const struct settings_group, each, &settings->groups) {
		if (fnmatch(each->pattern, group->id, 0) != 0)
			continue;
		said.weight = said.weight == UNSET ? each->weight : said.weight;
		said.max = said.max == UNSET ? each->max : said.max;
		said.price = said.price < 0 ? each->price : said.price;
		said.refuse = said.refuse ? said.refuse : each->refuse;
	}
	vec_foreach (const struct settings_type, each, prices)
		if (said.price < 0 && str_eq(each->name, type))
			said.price = each->price;
	if (said.weight != UNSET)
		group->weight = said.weight;
	group->max = settings_max(said.max, group);
	if (said.price >= 0)
		group->price = said.price;
	if (said.refuse && !group->refused)
		group->refused = mem_strdup(said.refuse);
}
