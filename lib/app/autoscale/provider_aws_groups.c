/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verb `groups`: all regions at the same time, and in each one after the other the groups, the
 * launch templates, types, start times and policies that are not known yet. What only describes
 * machines may fail: then there is less to be said about the groups. A region that does not
 * respond is as it was last, and is not changed, so that the others go on; one that never has makes
 * the verb fail, as limits could not be kept.
 */
#include <stdlib.h>

#include "app/autoscale/provider_aws_impl.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"

enum { AWS_FILTER_MAX = 200 }; /* values of a filter (EC2 API reference) */

struct aws_part {
	struct aws_verb *verb;
	struct aws_region *region;
	struct aws_call *request;
	int64_t more_ms; /* until then templates, types and times are asked for */
	struct aws_groups groups;
	bool has_groups, has_templates, has_types, has_ids, has_policies;
	char *key; /* of the template that is asked for */
	struct aws_template template;
	struct strv names; /* types that are asked for */
	struct aws_types types;
	struct strv ids; /* instances whose start is not known */
	size_t at;       /* so many of them have been asked for */
	struct aws_launches launches;
	struct strv policies;
	enum aws_class class;
	struct err error; /* of the groups */
	char *note;
};

void aws_region_done(struct aws_region *region)
{
	free(region->name);
	free(region->silent);
	free(region->note);
	aws_groups_done(&region->last);
	strv_done(&region->policies);
}

void aws_parts_free(struct aws_verb *verb)
{
	for (size_t i = 0; verb->parts && i < verb->aws->n_regions; i++) {
		struct aws_part *part = &verb->parts[i];

		aws_cancel(part->request);
		aws_groups_done(&part->groups);
		aws_template_done(&part->template);
		aws_types_done(&part->types);
		aws_launches_done(&part->launches);
		strv_done(&part->names);
		strv_done(&part->ids);
		strv_done(&part->policies);
		err_done(&part->error);
		free(part->key);
		free(part->note);
	}
	free(verb->parts);
}

/*
 * The end
 */

/* Regions whose present state is not known are as they were. E_SCALE_PROVIDER: one never was. */
static struct aws_part *aws_parts_take(struct aws_verb *verb)
{
	for (size_t i = 0; i < verb->aws->n_regions; i++) {
		struct aws_part *part = &verb->parts[i];
		struct aws_region *region = part->region;

		REPLACE(region->note, TAKE(part->note));
		REPLACE(region->silent, NULL);
		if (err_is_set(&part->error)) {
			char since[CLOCK_TEXT_SIZE];

			if (!region->seen_ms)
				return part;
			clock_format(region->seen_ms, since);
			region->silent = mem_printf("its state has not been known since %.19sZ: %s",
				since, part->error.message);
			continue;
		}
		aws_groups_done(&region->last);
		region->last = part->groups;
		part->groups = (struct aws_groups){0};
		vec_foreach (struct aws_group, group, &region->last)
			group->has_policy = strv_find(&region->policies, group->name) >= 0;
		region->seen_ms = clock_wall_ms();
	}
	return NULL;
}

static int aws_parts_end(struct aws_verb *verb, struct err *err)
{
	struct aws_part *failed = aws_parts_take(verb);

	if (failed)
		return verb->parts_done(verb, NULL, failed->class, &failed->error, err);
	struct json *response = json_object(), *list = json_array(), *remarks = json_array();
	for (size_t i = 0; i < verb->aws->n_regions; i++) {
		const struct aws_region *region = &verb->aws->regions[i];

		vec_foreach (const struct aws_group, group, &region->last) {
			if (!str_eq(aws_group_tag(group, AWS_CLUSTER_TAG), verb->cluster))
				continue;
			struct json *json = aws_group_json(&verb->aws->facts, region->name, group,
				region->silent, region->note);

			json_set_int(json, "weight", (int64_t)i); /* regions by preference */
			json_add(list, json);
		}
		aws_groups_remarks(verb->cluster, region->name, &region->last, remarks);
	}
	json_set(response, "groups", list);
	json_set(response, "remarks", remarks);
	return verb->parts_done(verb, response, AWS_OTHER, NULL, err);
}

/*
 * Requests
 */

static int aws_part_go(struct aws_part *part, struct err *err);

static void aws_part_ask(struct aws_part *part, enum aws_service service, const char *action,
	const struct strv *params, aws_read_fn *read, void *into, aws_done_fn *done)
{
	struct aws_request request = {.service = service,
		.region = part->region->name,
		.action = action,
		.params = params,
		.deadline_ms = part->has_groups ? part->more_ms : part->verb->deadline_ms,
		.read = read,
		.into = into,
		.done = done,
		.ctx = part};

	part->request = aws_start(part->verb->aws->client, &request);
}

/* Whether a request has failed that only describes: why is what is remembered of it. */
static bool aws_part_missed(struct aws_part *part, struct aws_result *result)
{
	part->request = NULL;
	if (!err_is_set(&result->error))
		return false;
	if (!part->note)
		part->note = mem_strdup(result->error.message);
	return true;
}

static int aws_part_on_groups(void *ctx, struct aws_result *result, struct err *err)
{
	struct aws_part *part = ctx;

	part->request = NULL;
	part->has_groups = true;
	part->class = result->class;
	if (err_is_set(&result->error)) {
		err_move(&part->error, &result->error);
		part->has_templates = part->has_types = part->has_ids = part->has_policies = true;
	}
	return aws_part_go(part, err);
}

static void aws_part_ask_groups(struct aws_part *part)
{
	AUTO_STRV struct strv params = {0};

	strv_add(&params, "Filters.member.1.Name=tag:" AWS_CLUSTER_TAG);
	strv_addf(&params, "Filters.member.1.Values.member.1=%s", part->verb->cluster);
	strv_add(&params, "MaxRecords=100");
	aws_part_ask(part, AWS_AUTOSCALING, "DescribeAutoScalingGroups", &params, aws_read_groups,
		&part->groups, aws_part_on_groups);
}

static int aws_part_on_template(void *ctx, struct aws_result *result, struct err *err)
{
	struct aws_part *part = ctx;
	struct map *templates = &part->verb->aws->facts.templates;

	/* A template that is broken is known as empty; the others are asked for. */
	bool is_broken = err_is_set(&result->error) && result->class == AWS_CONFIG;
	if (aws_part_missed(part, result) && !is_broken) {
		part->has_templates = true;
		return aws_part_go(part, err);
	}
	struct aws_template *old =
		map_put(templates, part->key, mem_dup(&part->template, sizeof(part->template)));
	part->template = (struct aws_template){0};
	if (old)
		aws_template_done(old);
	free(old);
	return aws_part_go(part, err);
}

static void aws_part_ask_template(struct aws_part *part)
{
	const struct map *templates = &part->verb->aws->facts.templates;

	REPLACE(part->key, NULL);
	vec_foreach (const struct aws_group, group, &part->groups) {
		AUTO_FREE char *key = aws_facts_key(part->region->name, group);
		AUTO_STRV struct strv params = {0};

		if (!key || map_get(templates, key))
			continue;
		part->key = TAKE(key);
		strv_addf(&params, "LaunchTemplateId=%s", group->template_id);
		strv_addf(&params, "LaunchTemplateVersion.1=%s", strrchr(part->key, '/') + 1);
		aws_part_ask(part, AWS_EC2, "DescribeLaunchTemplateVersions", &params,
			aws_read_template, &part->template, aws_part_on_template);
		return;
	}
	part->has_templates = true;
}

static void aws_filter_add(struct strv *params, const char *name, char *const *values, size_t n)
{
	strv_addf(params, "Filter.1.Name=%s", name);
	for (size_t i = 0; i < n; i++)
		strv_addf(params, "Filter.1.Value.%zu=%s", i + 1, values[i]);
}

static int aws_part_on_types(void *ctx, struct aws_result *result, struct err *err)
{
	struct aws_part *part = ctx;
	struct aws_facts *facts = &part->verb->aws->facts;

	if (aws_part_missed(part, result)) {
		part->has_types = true;
		return aws_part_go(part, err);
	}
	/* Types that AWS does not have there are remembered as such. */
	for (size_t i = 0; i < part->names.n; i++)
		vec_push(&part->types)->name = mem_strdup(part->names.v[i]);
	vec_foreach (struct aws_type, type, &part->types)
		aws_facts_add_type(facts, part->region->name, type);
	vec_done(&part->types);
	return aws_part_go(part, err);
}

static void aws_part_ask_types(struct aws_part *part)
{
	const struct aws_facts *facts = &part->verb->aws->facts;
	AUTO_STRV struct strv params = {0};

	strv_done(&part->names);
	vec_foreach (const struct aws_group, group, &part->groups) {
		AUTO_STRV struct strv types = {0};

		aws_facts_types(facts, part->region->name, group, &types);
		for (size_t i = 0; i < types.n && part->names.n < AWS_FILTER_MAX; i++)
			if (!aws_facts_type(facts, part->region->name, types.v[i]) &&
				strv_find(&part->names, types.v[i]) < 0)
				strv_add(&part->names, types.v[i]);
	}
	if (part->names.n == 0) {
		part->has_types = true;
		return;
	}
	aws_filter_add(&params, "instance-type", part->names.v, part->names.n);
	aws_part_ask(part, AWS_EC2, "DescribeInstanceTypes", &params, aws_read_types, &part->types,
		aws_part_on_types);
}

static int aws_part_on_launches(void *ctx, struct aws_result *result, struct err *err)
{
	struct aws_part *part = ctx;
	struct map *launched = &part->verb->aws->facts.launched;

	if (aws_part_missed(part, result))
		part->at = part->ids.n;
	vec_foreach (const struct aws_launch, launch, &part->launches)
		if (launch->at_ms >= 1000)
			map_put(launched, launch->id, (void *)(intptr_t)(launch->at_ms / 1000));
	aws_launches_done(&part->launches);
	return aws_part_go(part, err);
}

static void aws_part_ask_launches(struct aws_part *part)
{
	const struct map *launched = &part->verb->aws->facts.launched;
	AUTO_STRV struct strv params = {0};

	if (part->at == 0) {
		vec_foreach (const struct aws_group, group, &part->groups)
			vec_foreach (const struct aws_instance, instance, &group->instances)
				if (!map_get(launched, instance->id))
					strv_add(&part->ids, instance->id);
	}
	size_t n = part->ids.n - part->at;
	if (n == 0) {
		part->has_ids = true;
		return;
	}
	n = n < AWS_FILTER_MAX ? n : AWS_FILTER_MAX;
	aws_filter_add(&params, "instance-id", part->ids.v + part->at, n);
	part->at += n;
	aws_part_ask(part, AWS_EC2, "DescribeInstances", &params, aws_read_launches,
		&part->launches, aws_part_on_launches);
}

/* Without the right to read policies there are none. */
static int aws_part_on_policies(void *ctx, struct aws_result *result, struct err *err)
{
	struct aws_part *part = ctx;
	struct strv *policies = &part->region->policies;

	part->request = NULL;
	if (!err_is_set(&result->error)) {
		strv_done(policies);
		*policies = part->policies;
		part->policies = (struct strv){0};
	}
	return aws_part_go(part, err);
}

static void aws_part_ask_policies(struct aws_part *part)
{
	AUTO_STRV struct strv params = {0};

	part->has_policies = true;
	if (part->region->has_policies || part->groups.n == 0)
		return;
	part->region->has_policies = true;
	strv_add(&params, "MaxRecords=100");
	aws_part_ask(part, AWS_AUTOSCALING, "DescribePolicies", &params, aws_read_policies,
		&part->policies, aws_part_on_policies);
}

/* The next request of a region, or its end. */
static int aws_part_go(struct aws_part *part, struct err *err)
{
	if (!part->has_groups)
		aws_part_ask_groups(part);
	if (!part->request && !part->has_templates)
		aws_part_ask_template(part);
	if (!part->request && !part->has_types)
		aws_part_ask_types(part);
	if (!part->request && !part->has_ids)
		aws_part_ask_launches(part);
	if (!part->request && !part->has_policies)
		aws_part_ask_policies(part);
	if (part->request || --part->verb->n_open > 0)
		return 0;
	return aws_parts_end(part->verb, err);
}

/* $Latest and $Default lead elsewhere in time, and what is gone is forgotten. */
static void aws_facts_renew(struct provider_aws *aws)
{
	struct aws_facts *facts = &aws->facts;
	bool is_old = clock_ms() - aws->facts_ms > AWS_TEMPLATE_MS;

	if (is_old) {
		struct aws_facts old = {.templates = facts->templates, .types = facts->types};

		facts->templates = facts->types = (struct map){0};
		aws_facts_done(&old);
		aws->facts_ms = clock_ms();
		strv_done(&aws->later);
		for (size_t i = 0; i < aws->n_regions; i++)
			aws->regions[i].has_policies = false;
	}
	if (facts->launched.n > AWS_FACTS_MAX)
		map_done(&facts->launched);
}

void aws_parts_start(struct aws_verb *verb, aws_parts_fn *done)
{
	struct provider_aws *aws = verb->aws;
	int64_t now_ms = clock_ms();

	aws_facts_renew(aws);
	verb->parts = mem_alloc(aws->n_regions, sizeof(*verb->parts));
	verb->parts_done = done;
	verb->n_open = aws->n_regions;
	for (size_t i = 0; i < aws->n_regions; i++) {
		struct aws_part *part = &verb->parts[i];

		part->verb = verb;
		part->region = &aws->regions[i];
		part->more_ms = now_ms + (verb->deadline_ms - now_ms) / 2;
		aws_part_ask_groups(part);
	}
}
