/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A provider of Auto Scaling groups. A group is looked at again right before it is changed: whether
 * it is still this cluster's, and which machines it has. Terminations name each machine, and lower
 * the desired size with it, so that none is replaced; the desired size alone is never set below the
 * machines that are there, as AWS would choose which of them end.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "app/autoscale/aws_report.h"
#include "app/autoscale/provider_aws_impl.h"
#include "app/autoscale/provider_impl.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"

enum {
	AWS_REGIONS_MAX = 40,
	AWS_ENDS_MAX = 1000,    /* machines of one shrink */
	AWS_TOKENS_MAX = 256,   /* of grows, that are remembered */
	AWS_TOKEN_MAX = 60,     /* bytes; AWS takes 64 */
	AWS_LAUNCH_MAX = 100,   /* machines of one LaunchInstances */
	AWS_SKEW_MS = 3 * 1000, /* a Date is cut to a second, and was on its way */
};

/*
 * Verbs
 */

static enum scale_failure aws_failure_class(enum aws_class class)
{
	static const enum scale_failure classes[] = {[AWS_OTHER] = SCALE_FAILED_OTHER,
		[AWS_CAPACITY] = SCALE_FAILED_CAPACITY,
		[AWS_QUOTA] = SCALE_FAILED_QUOTA,
		[AWS_PRICE] = SCALE_FAILED_PRICE,
		[AWS_CONFIG] = SCALE_FAILED_CONFIG,
		[AWS_THROTTLE] = SCALE_FAILED_THROTTLE};

	return classes[class];
}

static void aws_verb_free(struct aws_verb *verb)
{
	if (!verb)
		return;
	aws_cancel(verb->request);
	loop_remove_timer(verb->aws->loop, verb->timer);
	aws_parts_free(verb);
	free(verb->cluster);
	free(verb->name);
	free(verb->token);
	strv_done(&verb->ids);
	aws_groups_done(&verb->found);
	aws_failures_done(&verb->failures);
	aws_started_done(&verb->started);
	json_free(verb->ends);
	err_done(&verb->early);
	free(verb);
}

static int aws_verb_end(struct aws_verb *verb, struct json *take_response, struct err *err)
{
	struct provider_call *call = verb->call;

	call->own = NULL;
	aws_verb_free(verb);
	return provider_end(call, take_response, err);
}

static int aws_verb_fail(struct aws_verb *verb, enum aws_class class, bool is_unknown,
	struct err *error, struct err *err)
{
	struct provider_call *call = verb->call;
	AUTO_ERR struct err own = {0};

	err_move(&own, error);
	call->own = NULL;
	aws_verb_free(verb);
	return provider_end_failed(call, aws_failure_class(class), is_unknown, &own, err);
}

static int aws_verb_on_groups(struct aws_verb *verb, struct json *take_response,
	enum aws_class class, struct err *error, struct err *err)
{
	return take_response ? aws_verb_end(verb, take_response, err)
			     : aws_verb_fail(verb, class, false, error, err);
}

static int aws_verb_refuse(struct aws_verb *verb, const char *why, struct err *err)
{
	AUTO_ERR struct err error = {0};

	err_set(&error, E_SCALE_PROVIDER, "%s@%s: %s", verb->name, verb->region->name, why);
	return aws_verb_fail(verb, AWS_CONFIG, false, &error, err);
}

static void aws_verb_ask(struct aws_verb *verb, const char *action, const struct strv *params,
	bool is_once, aws_read_fn *read, void *into, aws_done_fn *done)
{
	struct aws_request request = {.service = AWS_AUTOSCALING,
		.region = verb->region->name,
		.action = action,
		.params = params,
		.is_once = is_once,
		.deadline_ms = verb->deadline_ms,
		.read = read,
		.into = into,
		.done = done,
		.ctx = verb};

	verb->request = aws_start(verb->aws->client, &request);
}

/*
 * A group, read before it is changed
 */

static int aws_verb_on_group(void *ctx, struct aws_result *result, struct err *err)
{
	struct aws_verb *verb = ctx;

	verb->request = NULL;
	/* So far nothing has been changed. */
	if (err_is_set(&result->error))
		return aws_verb_fail(verb, result->class, false, &result->error, err);
	if (verb->found.n != 1 || !str_eq(verb->found.v[0].name, verb->name))
		return aws_verb_refuse(verb, "there is no such group", err);
	const struct aws_group *group = &verb->found.v[0];
	const char *refused = aws_group_refused(group);
	if (!str_eq(aws_group_tag(group, AWS_CLUSTER_TAG), verb->cluster))
		return aws_verb_refuse(verb, "its tag dlrun/cluster is not this cluster's", err);
	return refused ? aws_verb_refuse(verb, refused, err) : verb->go(verb, err);
}

static void aws_verb_find(struct aws_verb *verb, aws_done_fn *done)
{
	AUTO_STRV struct strv params = {0};

	aws_groups_done(&verb->found);
	strv_addf(&params, "AutoScalingGroupNames.member.1=%s", verb->name);
	aws_verb_ask(verb, "DescribeAutoScalingGroups", &params, false, aws_read_groups,
		&verb->found, done);
}

static void aws_verb_resize(struct aws_verb *verb, int64_t to, aws_done_fn *done)
{
	AUTO_STRV struct strv params = {0};

	strv_addf(&params, "AutoScalingGroupName=%s", verb->name);
	strv_addf(&params, "DesiredCapacity=%" PRId64, to);
	strv_add(&params, "HonorCooldown=false");
	aws_verb_ask(verb, "SetDesiredCapacity", &params, false, aws_read_nothing, NULL, done);
}

/*
 * grow
 *
 * A group of one zone launches machines at once, or says why not (LaunchInstances). Others, and
 * those for which that is not allowed, get another size, and what fails is found by `status`.
 */

static struct json *aws_failures_json(const struct aws_failures *failures)
{
	struct json *list = json_array();

	vec_foreach (const struct aws_failure, failure, &failures->list) {
		struct json *json = json_object();

		json_set_str(json, "class", scale_failure_names[aws_failure_class(failure->class)]);
		json_set_str(json, "text", failure->text);
		json_add(list, json);
	}
	return list;
}

static int aws_grow_end(struct aws_verb *verb, int64_t accepted, struct err *err)
{
	struct json *response = json_object(), *ids = json_array();

	json_set_int(response, "accepted", accepted);
	json_add_strv(ids, &verb->started.ids);
	json_set(response, "instances", ids);
	json_set(response, "failed", aws_failures_json(&verb->started.failures));
	return aws_verb_end(verb, response, err);
}

static void aws_grow_remember(struct aws_verb *verb)
{
	struct strv *tokens = &verb->aws->tokens;

	if (tokens->n == AWS_TOKENS_MAX)
		free(strv_take_out(tokens, 0));
	if (!str_empty(verb->token))
		strv_add(tokens, verb->token);
}

static int aws_grow_on_size(void *ctx, struct aws_result *result, struct err *err)
{
	struct aws_verb *verb = ctx;

	verb->request = NULL;
	if (err_is_set(&result->error))
		return aws_verb_fail(verb, result->class, result->is_unknown, &result->error, err);
	aws_grow_remember(verb);
	return aws_grow_end(verb, verb->to, err);
}

/* All of its machines are of one zone, and of one way of buying. */
static bool aws_grow_may_launch(const struct aws_verb *verb)
{
	const struct aws_group *group = &verb->found.v[0];
	bool is_pure = !group->is_mixed || group->on_demand_percent == 100 ||
		       (group->on_demand_percent == 0 && group->on_demand_base == 0);
	AUTO_FREE char *id = aws_group_id(verb->region->name, group);

	return group->zones.n == 1 && group->template_id && is_pure &&
	       group->desired == verb->from && !str_empty(verb->token) &&
	       strlen(verb->token) <= AWS_TOKEN_MAX && strv_find(&verb->aws->later, id) < 0;
}

static void aws_grow_launch(struct aws_verb *verb);

static int aws_grow_on_launch(void *ctx, struct aws_result *result, struct err *err)
{
	struct aws_verb *verb = ctx;
	int64_t launched = (int64_t)verb->started.ids.n;
	bool is_bad = err_is_set(&result->error);

	verb->request = NULL;
	if (is_bad && result->class == AWS_CONFIG && !result->is_unknown && launched == 0) {
		/* Not allowed, or not known there: the size says the same. */
		strv_add_take(
			&verb->aws->later, aws_group_id(verb->region->name, &verb->found.v[0]));
		aws_verb_resize(verb, verb->to, aws_grow_on_size);
		return 0;
	}
	if (is_bad && (result->is_unknown || launched == 0))
		return aws_verb_fail(verb, result->class, result->is_unknown, &result->error, err);
	if (is_bad)
		*vec_push(&verb->started.failures.list) =
			(struct aws_failure){result->class, mem_strdup(result->error.message)};
	verb->n_launches++;
	if (verb->started.failures.list.n == 0 && verb->from + launched < verb->to &&
		launched == (int64_t)verb->n_launches * AWS_LAUNCH_MAX) {
		aws_grow_launch(verb);
		return 0;
	}
	aws_grow_remember(verb);
	return aws_grow_end(verb, verb->from + launched, err);
}

/* A token that comes again has no second effect; each launch has its own. */
static void aws_grow_launch(struct aws_verb *verb)
{
	AUTO_STRV struct strv params = {0};
	int64_t n = verb->to - verb->from - (int64_t)verb->started.ids.n;

	strv_addf(&params, "AutoScalingGroupName=%s", verb->name);
	strv_addf(&params, "RequestedCapacity=%" PRId64, n < AWS_LAUNCH_MAX ? n : AWS_LAUNCH_MAX);
	strv_addf(&params, "ClientToken=%s-%d", verb->token, verb->n_launches);
	strv_add(&params, "RetryStrategy=none");
	aws_verb_ask(verb, "LaunchInstances", &params, false, aws_read_started, &verb->started,
		aws_grow_on_launch);
}

static int aws_grow_go(struct aws_verb *verb, struct err *err)
{
	const struct aws_group *group = &verb->found.v[0];

	if (group->desired >= verb->to ||
		(!str_empty(verb->token) && strv_find(&verb->aws->tokens, verb->token) >= 0))
		return aws_grow_end(verb, group->desired, err);
	AUTO_FREE char *why = mem_printf("its maximum is %" PRId64, group->max);
	if (verb->to > group->max)
		return aws_verb_refuse(verb, why, err);
	if (aws_grow_may_launch(verb))
		aws_grow_launch(verb);
	else
		aws_verb_resize(verb, verb->to, aws_grow_on_size);
	return 0;
}

/*
 * status
 */

static int aws_status_on_activities(void *ctx, struct aws_result *result, struct err *err)
{
	struct aws_verb *verb = ctx;

	verb->request = NULL;
	if (err_is_set(&result->error))
		return aws_verb_fail(verb, result->class, false, &result->error, err);
	struct json *response = json_object();
	json_set(response, "failed", aws_failures_json(&verb->failures));
	return aws_verb_end(verb, response, err);
}

static void aws_status_start(struct aws_verb *verb)
{
	AUTO_STRV struct strv params = {0};

	/* The times of activities are by AWS's clock, and it is by the cluster's. */
	verb->failures.since_ms -= AWS_SKEW_MS;
	strv_addf(&params, "AutoScalingGroupName=%s", verb->name);
	strv_add(&params, "MaxRecords=100");
	aws_verb_ask(verb, "DescribeScalingActivities", &params, false, aws_read_activities,
		&verb->failures, aws_status_on_activities);
}

/*
 * shrink
 */

static void aws_shrink_tell(
	struct aws_verb *verb, const char *id, bool is_gone, const char *problem)
{
	struct json *json = json_object();

	json_set_str(json, "id", id);
	json_set_bool(json, "gone", is_gone);
	if (problem)
		json_set_str(json, "error", problem);
	json_add(verb->ends, json);
}

static int aws_shrink_end(struct aws_verb *verb, struct err *err)
{
	struct json *response = json_object();

	json_set(response, "instances", TAKE(verb->ends));
	return aws_verb_end(verb, response, err);
}

static int aws_shrink_on_size(void *ctx, struct aws_result *result, struct err *err)
{
	struct aws_verb *verb = ctx;

	verb->request = NULL;
	/* With machines that have been ended it is theirs that counts; the size comes right with
	 * a later shrink. */
	if (err_is_set(&result->error) && verb->ids.n == 0)
		return aws_verb_fail(verb, result->class, result->is_unknown, &result->error, err);
	return aws_shrink_end(verb, err);
}

static int aws_shrink_resize(struct aws_verb *verb, struct err *err);

static int aws_shrink_on_group(void *ctx, struct aws_result *result, struct err *err)
{
	struct aws_verb *verb = ctx;

	verb->request = NULL;
	verb->n_ended = 0; /* it is without them now */
	if (err_is_set(&result->error) || verb->found.n != 1 ||
		!str_eq(verb->found.v[0].name, verb->name))
		return aws_shrink_end(verb, err);
	return aws_shrink_resize(verb, err);
}

/* Machines that were asked for and did not come, or that AWS would replace, are no longer asked
 * for. */
static int aws_shrink_resize(struct aws_verb *verb, struct err *err)
{
	const struct aws_group *group = &verb->found.v[0];
	int64_t desired = group->desired - verb->n_ended;
	int64_t live = aws_group_live(group) - verb->n_ended, to = verb->to;

	if (to < live)
		to = live;
	if (to < group->min)
		to = group->min;
	if (verb->to < 0 || verb->is_vague || desired <= to)
		return aws_shrink_end(verb, err);
	/* Terminations take time, in which a machine may have come. */
	if (verb->n_ended > 0) {
		aws_verb_find(verb, aws_shrink_on_group);
		return 0;
	}
	aws_verb_resize(verb, to, aws_shrink_on_size);
	return 0;
}

static int aws_shrink_next(struct aws_verb *verb, struct err *err);

static int aws_shrink_on_end(void *ctx, struct aws_result *result, struct err *err)
{
	struct aws_verb *verb = ctx;
	bool is_bad = err_is_set(&result->error);

	verb->request = NULL;
	verb->n_ended += !is_bad;
	verb->is_vague |= is_bad && result->is_unknown;
	aws_shrink_tell(
		verb, verb->ids.v[verb->at++], false, is_bad ? result->error.message : NULL);
	return aws_shrink_next(verb, err);
}

static const struct aws_instance *aws_group_find(const struct aws_group *group, const char *id)
{
	vec_foreach (const struct aws_instance, instance, &group->instances)
		if (str_eq(instance->id, id))
			return instance;
	return NULL;
}

/* Terminations go one after the other, as each lowers the desired size. */
static int aws_shrink_next(struct aws_verb *verb, struct err *err)
{
	for (; verb->at < verb->ids.n; verb->at++) {
		const char *id = verb->ids.v[verb->at];
		const struct aws_instance *instance = aws_group_find(&verb->found.v[0], id);
		AUTO_STRV struct strv params = {0};

		/* A machine of another group is not touched. */
		if (!instance || str_starts(instance->state, "Terminat")) {
			aws_shrink_tell(verb, id, !instance, NULL);
			continue;
		}
		/* The group's size does not count it, and would be one too low. */
		if (!aws_instance_counts(instance)) {
			AUTO_FREE char *why = mem_printf("it is in state %s", instance->state);

			aws_shrink_tell(verb, id, false, why);
			continue;
		}
		if (clock_ms() >= verb->deadline_ms - AWS_END_MS) {
			aws_shrink_tell(verb, id, false, "there was no time for it");
			continue;
		}
		strv_addf(&params, "InstanceId=%s", id);
		strv_add(&params, "ShouldDecrementDesiredCapacity=true");
		/* Twice would lower the size twice. */
		aws_verb_ask(verb, "TerminateInstanceInAutoScalingGroup", &params, true,
			aws_read_nothing, NULL, aws_shrink_on_end);
		return 0;
	}
	return aws_shrink_resize(verb, err);
}

static int aws_shrink_read(const struct json *request, struct aws_verb *verb, struct err *err)
{
	const struct json *list = json_get(request, "instances");

	verb->ends = json_array();
	if (json_count(list) > AWS_ENDS_MAX)
		return err_set(err, E_SCALE_PROVIDER, "over %d machines", AWS_ENDS_MAX);
	for (const struct json *m = json_first(list); m; m = json_next(m))
		if (json_str(m) && strv_find(&verb->ids, json_str(m)) < 0)
			strv_add(&verb->ids, json_str(m));
	return 0;
}

/*
 * Requests
 */

/* Source: aws_group_id. */
static int aws_verb_read_group(struct aws_verb *verb, const struct json *request, struct err *err)
{
	const char *id = json_get_str(request, "group");
	const char *at = id ? strrchr(id, '@') : NULL;
	struct provider_aws *aws = verb->aws;

	for (size_t i = 0; at && i < aws->n_regions; i++)
		if (str_eq(aws->regions[i].name, at + 1))
			verb->region = &aws->regions[i];
	if (!verb->region) {
		AUTO_FREE char *shown = str_shown(id ? id : "");

		return err_set(err, E_SCALE_PROVIDER, "%s is no group of these regions", shown);
	}
	verb->name = mem_strndup(id, (size_t)(at - id));
	return 0;
}

static int aws_verb_read(struct aws_verb *verb, const struct json *request, struct err *err)
{
	const char *word = json_get_str(request, "verb"), *since = json_get_str(request, "since");

	verb->cluster = mem_strdup(json_get_str(request, "cluster"));
	if (str_empty(verb->cluster))
		return err_set(err, E_SCALE_PROVIDER, "no cluster is named");
	if (str_eq(word, "groups")) {
		aws_parts_start(verb, aws_verb_on_groups);
		return 0;
	}
	ERR_TRY(aws_verb_read_group(verb, request, err));
	verb->token = mem_strdup(json_get_str(request, "token"));
	verb->from = json_get_int(request, "from", -1);
	verb->to = json_get_int(request, "to", -1);
	if (str_eq(word, "grow") && verb->to >= 0) {
		verb->go = aws_grow_go;
		aws_verb_find(verb, aws_verb_on_group);
		return 0;
	}
	if (str_eq(word, "status") && since) {
		ERR_TRY(clock_parse(since, &verb->failures.since_ms, err));
		aws_status_start(verb);
		return 0;
	}
	if (str_eq(word, "shrink")) {
		ERR_TRY(aws_shrink_read(request, verb, err));
		verb->go = aws_shrink_next;
		aws_verb_find(verb, aws_verb_on_group);
		return 0;
	}
	return err_set(err, E_SCALE_PROVIDER, "it is no request of a provider");
}

static int aws_verb_on_early(void *ctx, struct err *err)
{
	struct aws_verb *verb = ctx;

	verb->timer = NULL;
	return aws_verb_fail(verb, AWS_CONFIG, false, &verb->early, err);
}

static void provider_aws_start(struct provider *provider, struct provider_call *call,
	const struct json *request, int64_t deadline_ms)
{
	struct provider_aws *aws = (struct provider_aws *)provider;
	struct aws_verb *verb = mem_alloc(1, sizeof(*verb));

	*verb = (struct aws_verb){.aws = aws, .call = call, .deadline_ms = deadline_ms};
	call->own = verb;
	if (aws_verb_read(verb, request, &verb->early) < 0)
		verb->timer = loop_add_timer(aws->loop, clock_ms(), aws_verb_on_early, verb);
}

static void provider_aws_cancel(struct provider *provider UNUSED, struct provider_call *call)
{
	aws_verb_free(call->own);
}

static void provider_aws_free(struct provider *provider)
{
	struct provider_aws *aws = (struct provider_aws *)provider;

	aws_free(aws->client);
	for (size_t i = 0; i < aws->n_regions; i++)
		aws_region_done(&aws->regions[i]);
	free(aws->regions);
	aws_facts_done(&aws->facts);
	strv_done(&aws->tokens);
	strv_done(&aws->later);
	free(aws);
}

static const struct provider_ops provider_aws_ops = {
	.start = provider_aws_start,
	.cancel = provider_aws_cancel,
	.free = provider_aws_free,
};

static int provider_aws_regions(
	struct provider_aws *aws, const char *const *regions, struct err *err)
{
	size_t n = 0;

	while (regions[n])
		n++;
	if (n == 0 || n > AWS_REGIONS_MAX)
		return err_set(err, E_SCALE_SETTINGS, "aws has 1 to %d regions", AWS_REGIONS_MAX);
	aws->regions = mem_alloc(n, sizeof(*aws->regions));
	for (size_t i = 0; i < n; i++) {
		AUTO_FREE char *shown = str_shown(regions[i]);

		if (!aws_is_region(regions[i]))
			return err_set(err, E_SCALE_SETTINGS, "%s is not an AWS region", shown);
		for (size_t k = 0; k < i; k++)
			if (str_eq(regions[k], regions[i]))
				return err_set(
					err, E_SCALE_SETTINGS, "region %s is there twice", shown);
		aws->regions[i].name = mem_strdup(regions[i]);
		aws->n_regions++;
	}
	return 0;
}

int provider_aws_new(struct loop *loop, struct http *http, const char *const *regions,
	const char *const *env, struct provider **ret, struct err *err)
{
	struct provider_aws *aws = mem_alloc(1, sizeof(*aws));

	aws->base = (struct provider){.ops = &provider_aws_ops, .name = mem_strdup("aws")};
	aws->loop = loop;
	int r = provider_aws_regions(aws, regions, err);
	if (r == 0)
		r = aws_open(loop, http, env, &aws->client, err);
	if (r < 0) {
		provider_free(&aws->base);
		return r;
	}
	*ret = &aws->base;
	return 0;
}
