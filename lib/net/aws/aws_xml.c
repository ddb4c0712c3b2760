/* SPDX-License-Identifier: Apache-2.0 */
#include "net/aws/aws_xml.h"

#include <stdlib.h>
#include <string.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/s3/s3_sign.h"
#include "net/s3/s3_xml.h"
#include "net/stream/field.h"

/*
 * Requests
 */

char *aws_form(enum aws_service service, const char *action, const struct strv *params)
{
	AUTO_STRV struct strv all = {0};
	AUTO_BUF struct buf form = buf_with(SIZE_MAX / 2);

	strv_copy(&all, params);
	strv_addf(&all, "Action=%s", action);
	strv_addf(&all, "Version=%s", service == AWS_EC2 ? "2016-11-15" : "2011-01-01");
	AUTO_FREE char *query = s3_query(&all);
	/* A blank of a form is "+": what is signed must be what the server makes of it again. */
	for (const char *at = query; *at; at++) {
		bool is_blank = strncmp(at, "%20", 3) == 0;

		buf_addc(&form, is_blank ? '+' : *at);
		at += is_blank ? 2 : 0;
	}
	return buf_take(&form);
}

/*
 * Failures
 */

/* The first that is found decides: RequestLimitExceeded is no quota. Sources: "Error codes" of the
 * EC2 API reference, "Troubleshooting" of the Auto Scaling user guide. */
static const struct {
	const char *text; /* in lower case */
	enum aws_class class;
} aws_words[] = {
	{"throttl", AWS_THROTTLE}, {"requestlimitexceeded", AWS_THROTTLE},
	{"request limit exceeded", AWS_THROTTLE}, {"rate exceeded", AWS_THROTTLE},
	{"toomanyrequests", AWS_THROTTLE}, {"resourcecontention", AWS_THROTTLE},
	{"idempotentcallinprogress", AWS_THROTTLE}, {"scalingactivityinprogress", AWS_THROTTLE},
	{"limitexceeded", AWS_QUOTA}, {"maxspotinstancecountexceeded", AWS_QUOTA},
	{"max spot instance count exceeded", AWS_QUOTA}, {"vcpu limit", AWS_QUOTA},
	{"instance limit", AWS_QUOTA}, {"your quota", AWS_QUOTA},
	{"you have requested more", AWS_QUOTA}, {"you have exceeded", AWS_QUOTA},
	{"volume limit", AWS_QUOTA}, {"not enough free addresses", AWS_QUOTA},
	{"insufficientfreeaddresses", AWS_QUOTA}, {"insufficientaddresscapacity", AWS_QUOTA},
	{"spotmaxpricetoolow", AWS_PRICE}, {"price-too-low", AWS_PRICE},
	{"request fulfillment price", AWS_PRICE}, {"insufficientinstancecapacity", AWS_CAPACITY},
	{"insufficientcapacity", AWS_CAPACITY}, {"insufficienthostcapacity", AWS_CAPACITY},
	{"insufficientreservedinstancecapacity", AWS_CAPACITY},
	{"reservationcapacityexceeded", AWS_CAPACITY}, {"unfulfillablecapacity", AWS_CAPACITY},
	{"insufficient capacity", AWS_CAPACITY}, {"capacity-not-available", AWS_CAPACITY},
	{"no spot capacity", AWS_CAPACITY}, {"do not have sufficient", AWS_CAPACITY},
	{"sufficient capacity", AWS_CAPACITY}, {"validationerror", AWS_CONFIG},
	{"invalid", AWS_CONFIG}, {"missingparameter", AWS_CONFIG}, {"malformed", AWS_CONFIG},
	{"unsupported", AWS_CONFIG}, {"not supported", AWS_CONFIG}, {"does not exist", AWS_CONFIG},
	{"not authorized", AWS_CONFIG}, {"unauthorized", AWS_CONFIG}, {"accessdenied", AWS_CONFIG},
	{"access denied", AWS_CONFIG}, {"authfailure", AWS_CONFIG},
	{"authentication failure", AWS_CONFIG}, {"signaturedoesnotmatch", AWS_CONFIG},
	{"unrecognizedclient", AWS_CONFIG}, {"incompletesignature", AWS_CONFIG},
	{"missingauthenticationtoken", AWS_CONFIG}, {"expiredtoken", AWS_CONFIG},
	{"requestexpired", AWS_CONFIG}, {"optinrequired", AWS_CONFIG},
	{"pendingverification", AWS_CONFIG},
	{"client.internalerror", AWS_CONFIG}, /* the key of a disk may not be used */
};

enum aws_class aws_classify(const char *text)
{
	AUTO_FREE char *lower = str_lower(text, strlen(text));

	for (size_t i = 0; i < ARRAY_LEN(aws_words); i++)
		if (strstr(lower, aws_words[i].text))
			return aws_words[i].class;
	return AWS_OTHER;
}

/* AWS_MESSAGE_MAX bytes at most, with no character cut. */
static char *aws_cut(char *text)
{
	text[str_fit(text, AWS_MESSAGE_MAX)] = '\0';
	return text;
}

static char *aws_line(char *take_text)
{
	AUTO_FREE char *text = take_text;

	if (!text)
		return NULL;
	text[strcspn(text, "\r\n")] = '\0';
	return aws_cut(str_escaped(text));
}

void aws_read_error(const char *text, size_t len, char **ret_code, char **ret_message)
{
	static const char *const paths[] = {
		"ErrorResponse/Error", "Response/Errors/Error", "ErrorResponse/Errors/Error"};

	*ret_code = *ret_message = NULL;
	for (size_t i = 0; i < ARRAY_LEN(paths) && !*ret_code; i++) {
		AUTO_FREE char *code = mem_printf("%s/Code", paths[i]);
		AUTO_FREE char *message = mem_printf("%s/Message", paths[i]);

		*ret_code = aws_line(s3_xml_find(text, len, code));
		if (*ret_code)
			*ret_message = aws_line(s3_xml_find(text, len, message));
	}
}

/*
 * Elements of a response
 */

struct aws_reader;
/* An element below the root has ended. */
typedef int aws_element_fn(
	struct aws_reader *reader, const char *path, const char *text, struct err *err);
struct aws_reader {
	const char *action; /* NULL: any */
	aws_element_fn *element;
	const char *items; /* the path of the element of a list, below the root */
	void *into;
};

static int aws_bad(const char *what, struct err *err)
{
	return err_set(err, E_SCALE_PROVIDER, "the response %s", what);
}

static int aws_count(size_t n, size_t max, struct err *err)
{
	return n < max ? 0 : aws_bad("is over a limit", err);
}

/* The path below prefix, or NULL. */
static const char *aws_below(const char *path, const char *prefix)
{
	size_t len = strlen(prefix);

	return str_starts(path, prefix) && path[len] == '/' ? path + len + 1 : NULL;
}

static bool aws_is_token(const char *path)
{
	const char *slash = strrchr(path, '/');
	bool is_deep = slash && strchr(path, '/') != slash;

	return !is_deep && (str_eq(path, "nextToken") || str_ends(path, "Result/NextToken"));
}

static int aws_walk(
	struct aws_reader *reader, const char *text, size_t len, char **ret_next, struct err *err)
{
	AUTO_FREE char *root = mem_printf("%sResponse", reader->action ? reader->action : "");
	AUTO_FREE char *next = NULL;
	AUTO_ERR struct err own = {0};
	AUTO_S3_XML struct s3_xml xml;
	bool is_whole = false;
	int r;

	s3_xml_init(&xml, text, len);
	while ((r = s3_xml_next(&xml, &own)) > 0) {
		const char *below = aws_below(xml.path.data, root);

		if (reader->action ? str_eq(xml.path.data, root)
				   : !strchr(xml.path.data, '/') && str_ends(xml.path.data, root))
			is_whole = true;
		if (!below)
			continue;
		AUTO_FREE char *shown = str_escaped(xml.text.data);
		if (aws_is_token(below) && *xml.text.data)
			REPLACE(next, mem_strdup(xml.text.data));
		r = reader->element ? reader->element(reader, below, shown, err) : 0;
		if (r < 0)
			return r;
	}
	if (r < 0 || !is_whole)
		return aws_bad("is not one of AWS to this request", err);
	*ret_next = TAKE(next);
	return 0;
}

static int64_t aws_number(const char *text)
{
	uint64_t value = 0;

	return field_number(text, &value) && value <= AWS_SIZE_MAX * UINT64_C(1000) ? (int64_t)value
										    : -1;
}

static int64_t aws_time(const char *text)
{
	AUTO_ERR struct err ignored = {0};
	int64_t wall_ms = 0;

	return clock_parse(text, &wall_ms, &ignored) == 0 && wall_ms > 0 ? wall_ms : 0;
}

/* An element whose text is a member; at is the offset of a char pointer. */
struct aws_text {
	const char *path;
	size_t at;
};
static void aws_texts(
	const struct aws_text *texts, size_t n, void *object, const char *path, const char *text)
{
	for (size_t i = 0; i < n; i++)
		if (str_eq(texts[i].path, path)) {
			char **member = (char **)(void *)((char *)object + texts[i].at);

			REPLACE(*member, mem_strdup(text));
		}
}

/* The same of numbers that are not negative. */
static void aws_numbers(
	const struct aws_text *numbers, size_t n, void *object, const char *path, const char *text)
{
	int64_t number = aws_number(text);

	for (size_t i = 0; i < n && number >= 0; i++)
		if (str_eq(numbers[i].path, path))
			memcpy((char *)object + numbers[i].at, &number, sizeof(number));
}

int aws_read_nothing(
	void *into UNUSED, const char *text, size_t len, char **ret_next, struct err *err)
{
	struct aws_reader reader = {0};

	return aws_walk(&reader, text, len, ret_next, err);
}

/*
 * Groups
 */

static void aws_group_done(struct aws_group *group)
{
	free(group->name);
	free(group->status);
	free(group->template_id);
	free(group->template_version);
	strv_done(&group->zones);
	strv_done(&group->suspended);
	strv_done(&group->types);
	vec_foreach (struct aws_tag, tag, &group->tags) {
		free(tag->key);
		free(tag->value);
	}
	vec_done(&group->tags);
	vec_foreach (struct aws_instance, instance, &group->instances) {
		free(instance->id);
		free(instance->type);
		free(instance->zone);
		free(instance->state);
	}
	vec_done(&group->instances);
}

void aws_groups_done(struct aws_groups *groups)
{
	vec_foreach (struct aws_group, group, groups)
		aws_group_done(group);
	vec_done(groups);
}

const char *aws_group_tag(const struct aws_group *group, const char *key)
{
	vec_foreach (const struct aws_tag, tag, &group->tags)
		if (str_eq(tag->key, key))
			return tag->value ? tag->value : "";
	return NULL;
}

/* A group is begun with its first element. */
struct aws_group_reader {
	struct aws_reader reader;
	struct aws_groups *groups;
	struct aws_group group;
	struct aws_instance instance;
	struct aws_tag tag;
	size_t n_instances;
};

static void aws_group_begin(struct aws_group_reader *r)
{
	r->group =
		(struct aws_group){.min = -1, .max = -1, .desired = -1, .on_demand_percent = 100};
}

static int aws_group_instance(
	struct aws_group_reader *r, const char *path, const char *text, struct err *err)
{
	static const struct aws_text texts[] = {
		{"Instances/member/InstanceId", offsetof(struct aws_instance, id)},
		{"Instances/member/InstanceType", offsetof(struct aws_instance, type)},
		{"Instances/member/AvailabilityZone", offsetof(struct aws_instance, zone)},
		{"Instances/member/LifecycleState", offsetof(struct aws_instance, state)},
	};

	aws_texts(texts, ARRAY_LEN(texts), &r->instance, path, text);
	if (!str_eq(path, "Instances/member"))
		return 0;
	*vec_push(&r->group.instances) = r->instance;
	bool is_whole = !str_empty(r->instance.id) && !str_empty(r->instance.state);
	r->instance = (struct aws_instance){0};
	if (!is_whole)
		return aws_bad("has an instance without its id or state", err);
	return aws_count(r->n_instances++, AWS_INSTANCES_MAX, err);
}

static int aws_group_tagged(
	struct aws_group_reader *r, const char *path, const char *text, struct err *err)
{
	static const struct aws_text texts[] = {
		{"Tags/member/Key", offsetof(struct aws_tag, key)},
		{"Tags/member/Value", offsetof(struct aws_tag, value)},
	};

	aws_texts(texts, ARRAY_LEN(texts), &r->tag, path, text);
	if (!str_eq(path, "Tags/member"))
		return 0;
	*vec_push(&r->group.tags) = r->tag;
	r->tag = (struct aws_tag){0};
	return aws_count(r->group.tags.n, AWS_LIST_MAX, err);
}

static void aws_group_policy(struct aws_group *group, const char *path, const char *text)
{
	static const char overrides[] = "LaunchTemplate/Overrides/member";
	const char *override = aws_below(path, overrides);

	group->is_mixed = true;
	if (!override)
		return;
	if (str_eq(override, "InstanceType"))
		strv_add(&group->types, text);
	else if (str_eq(override, "WeightedCapacity") && *text && !str_eq(text, "1"))
		group->is_weighted = true;
	else if (str_starts(override, "InstanceRequirements"))
		group->has_requirements = true;
}

/* Settings by which AWS ends machines beside the desired size. */
static void aws_group_hazard(struct aws_group *group, const char *path, const char *text)
{
	bool is_true = str_eq(text, "true");

	if (str_eq(path, "NewInstancesProtectedFromScaleIn"))
		group->is_protected = is_true;
	else if (str_eq(path, "CapacityRebalance"))
		group->is_rebalanced = is_true;
	else if (str_eq(path, "MaxInstanceLifetime"))
		group->has_lifetime = aws_number(text) > 0;
	else if (str_eq(path, "HealthCheckType"))
		group->is_watched = strstr(text, "ELB") || strstr(text, "LATTICE");
	else if (aws_below(path, "WarmPoolConfiguration"))
		group->has_warm_pool = true;
}

static void aws_group_member(struct aws_group *group, const char *path, const char *text)
{
	static const struct aws_text texts[] = {
		{"AutoScalingGroupName", offsetof(struct aws_group, name)},
		{"Status", offsetof(struct aws_group, status)},
		{"LaunchTemplate/LaunchTemplateId", offsetof(struct aws_group, template_id)},
		{"LaunchTemplate/Version", offsetof(struct aws_group, template_version)},
		{"MixedInstancesPolicy/LaunchTemplate/LaunchTemplateSpecification/LaunchTemplateId",
			offsetof(struct aws_group, template_id)},
		{"MixedInstancesPolicy/LaunchTemplate/LaunchTemplateSpecification/Version",
			offsetof(struct aws_group, template_version)},
	};
	static const struct aws_text numbers[] = {
		{"MinSize", offsetof(struct aws_group, min)},
		{"MaxSize", offsetof(struct aws_group, max)},
		{"DesiredCapacity", offsetof(struct aws_group, desired)},
		{"MixedInstancesPolicy/InstancesDistribution/OnDemandBaseCapacity",
			offsetof(struct aws_group, on_demand_base)},
		{"MixedInstancesPolicy/InstancesDistribution/OnDemandPercentageAboveBaseCapacity",
			offsetof(struct aws_group, on_demand_percent)},
	};
	const char *policy = aws_below(path, "MixedInstancesPolicy");

	aws_texts(texts, ARRAY_LEN(texts), group, path, text);
	aws_numbers(numbers, ARRAY_LEN(numbers), group, path, text);
	aws_group_hazard(group, path, text);
	if (str_eq(path, "AvailabilityZones/member"))
		strv_add(&group->zones, text);
	else if (str_eq(path, "SuspendedProcesses/member/ProcessName"))
		strv_add(&group->suspended, text);
	else if (str_eq(path, "DesiredCapacityType"))
		group->is_weighted |= *text && !str_eq(text, "units");
	else if (policy)
		aws_group_policy(group, policy, text);
}

static bool aws_is_size(int64_t size)
{
	return size >= 0 && size <= AWS_SIZE_MAX;
}

static int aws_group_element(
	struct aws_reader *reader, const char *path, const char *text, struct err *err)
{
	struct aws_group_reader *r = reader->into;
	struct aws_group *group = &r->group;
	const char *below = aws_below(path, reader->items);

	if (below) {
		int code = aws_group_instance(r, below, text, err);
		if (code == 0)
			code = aws_group_tagged(r, below, text, err);
		aws_group_member(group, below, text);
		if (code == 0 && (group->zones.n > AWS_LIST_MAX || group->types.n > AWS_LIST_MAX ||
					 group->suspended.n > AWS_LIST_MAX))
			code = aws_bad("is over a limit", err);
		return code;
	}
	if (!str_eq(path, reader->items))
		return 0;
	*vec_push(r->groups) = *group;
	aws_group_begin(r);
	group = &r->groups->v[r->groups->n - 1];
	if (str_empty(group->name) || !aws_is_size(group->min) || !aws_is_size(group->max) ||
		!aws_is_size(group->desired))
		return aws_bad("has a group without its name or sizes", err);
	return aws_count(r->groups->n, AWS_GROUPS_MAX, err);
}

int aws_read_groups(void *into, const char *text, size_t len, char **ret_next, struct err *err)
{
	struct aws_groups *groups = into;
	struct aws_group_reader r = {.groups = groups,
		.reader = {.action = "DescribeAutoScalingGroups",
			.element = aws_group_element,
			.items = "DescribeAutoScalingGroupsResult/AutoScalingGroups/member",
			.into = &r}};
	size_t before = groups->n;

	aws_group_begin(&r);
	vec_foreach (const struct aws_group, group, groups)
		r.n_instances += group->instances.n;
	int code = aws_walk(&r.reader, text, len, ret_next, err);
	/* Elements that have begun and not ended. */
	*vec_push(&r.group.instances) = r.instance;
	*vec_push(&r.group.tags) = r.tag;
	aws_group_done(&r.group);
	while (code < 0 && groups->n > before)
		aws_group_done(&groups->v[--groups->n]);
	return code;
}

/*
 * Policies
 */

struct aws_policy_reader {
	struct aws_reader reader;
	struct strv *names;
	char *name;
	bool is_off;
};

static int aws_policy_element(
	struct aws_reader *reader, const char *path, const char *text, struct err *err)
{
	struct aws_policy_reader *r = reader->into;
	const char *below = aws_below(path, reader->items);

	if (below && str_eq(below, "AutoScalingGroupName"))
		REPLACE(r->name, mem_strdup(text));
	else if (below && str_eq(below, "Enabled"))
		r->is_off = str_eq(text, "false");
	if (!str_eq(path, reader->items))
		return 0;
	if (r->name && !r->is_off)
		strv_add_take(r->names, TAKE(r->name));
	REPLACE(r->name, NULL);
	r->is_off = false;
	return aws_count(r->names->n, AWS_POLICIES_MAX, err);
}

int aws_read_policies(void *into, const char *text, size_t len, char **ret_next, struct err *err)
{
	struct aws_policy_reader r = {.names = into,
		.reader = {.action = "DescribePolicies",
			.element = aws_policy_element,
			.items = "DescribePoliciesResult/ScalingPolicies/member",
			.into = &r}};
	size_t before = r.names->n;
	int code = aws_walk(&r.reader, text, len, ret_next, err);

	free(r.name);
	if (code < 0)
		strv_cut(r.names, before);
	return code;
}

/*
 * Activities
 */

struct aws_activity {
	char *description, *start, *status, *message;
};

static void aws_activity_done(struct aws_activity *activity)
{
	free(activity->description);
	free(activity->start);
	free(activity->status);
	free(activity->message);
	*activity = (struct aws_activity){0};
}

struct aws_activity_reader {
	struct aws_reader reader;
	struct aws_failures *failures;
	struct aws_activity activity;
	bool is_older;
};

void aws_failures_done(struct aws_failures *failures)
{
	vec_foreach (struct aws_failure, failure, &failures->list)
		free(failure->text);
	vec_done(&failures->list);
}

static int aws_activity_element(
	struct aws_reader *reader, const char *path, const char *text, struct err *err UNUSED)
{
	static const struct aws_text texts[] = {
		{"Description", offsetof(struct aws_activity, description)},
		{"StartTime", offsetof(struct aws_activity, start)},
		{"StatusCode", offsetof(struct aws_activity, status)},
		{"StatusMessage", offsetof(struct aws_activity, message)},
	};
	struct aws_activity_reader *r = reader->into;
	struct aws_activity *activity = &r->activity;
	const char *below = aws_below(path, reader->items);

	if (below)
		aws_texts(texts, ARRAY_LEN(texts), activity, below, text);
	if (!str_eq(path, reader->items))
		return 0;
	int64_t start_ms = activity->start ? aws_time(activity->start) : 0;
	bool is_launch =
		activity->description && str_starts(activity->description, "Launching a new EC2");
	bool is_failed = str_eq(activity->status, "Failed") ||
			 (str_eq(activity->status, "Cancelled") && !str_empty(activity->message));
	if (start_ms && start_ms < r->failures->since_ms) {
		r->is_older = true;
	} else if (start_ms && is_launch && is_failed) {
		const char *message = str_empty(activity->message) ? "a launch failed, and no "
								     "reason was given"
								   : activity->message;

		/* The newest are first, and say what is the matter. */
		if (r->failures->list.n < AWS_FAILURES_MAX)
			*vec_push(&r->failures->list) = (struct aws_failure){
				aws_classify(message), aws_cut(mem_strdup(message))};
	}
	aws_activity_done(activity);
	return 0;
}

int aws_read_activities(void *into, const char *text, size_t len, char **ret_next, struct err *err)
{
	struct aws_activity_reader r = {.failures = into,
		.reader = {.action = "DescribeScalingActivities",
			.element = aws_activity_element,
			.items = "DescribeScalingActivitiesResult/Activities/member",
			.into = &r}};
	size_t before = r.failures->list.n;
	AUTO_FREE char *next = NULL;
	int code = aws_walk(&r.reader, text, len, &next, err);

	aws_activity_done(&r.activity);
	while (code < 0 && r.failures->list.n > before)
		free(r.failures->list.v[--r.failures->list.n].text);
	if (code == 0)
		*ret_next = r.is_older ? NULL : TAKE(next); /* newest ones come first */
	return code;
}

/*
 * Launch templates
 */

void aws_template_done(struct aws_template *template)
{
	free(template->type);
	*template = (struct aws_template){0};
}

struct aws_template_reader {
	struct aws_reader reader;
	struct aws_template *template;
	size_t n;
};

static int aws_template_element(
	struct aws_reader *reader, const char *path, const char *text, struct err *err UNUSED)
{
	struct aws_template_reader *r = reader->into;
	const char *below = aws_below(path, reader->items);

	r->n += str_eq(path, reader->items);
	if (!below || r->n > 0)
		return 0;
	if (str_eq(below, "launchTemplateData/instanceType") && *text)
		REPLACE(r->template->type, mem_strdup(text));
	else if (str_eq(below, "launchTemplateData/instanceMarketOptions/marketType"))
		r->template->is_spot = str_eq(text, "spot");
	return 0;
}

int aws_read_template(void *into, const char *text, size_t len, char **ret_next, struct err *err)
{
	struct aws_template template = {0};
	struct aws_template_reader r = {.template = &template,
		.reader = {.action = "DescribeLaunchTemplateVersions",
			.element = aws_template_element,
			.items = "launchTemplateVersionSet/item",
			.into = &r}};
	AUTO_FREE char *next = NULL;
	int code = aws_walk(&r.reader, text, len, &next, err);

	if (code == 0 && r.n == 0)
		code = aws_bad("has no version", err);
	if (code < 0) {
		aws_template_done(&template);
		return code;
	}
	aws_template_done(into);
	*(struct aws_template *)into = template;
	*ret_next = NULL;
	return 0;
}

/*
 * Types of instances
 */

void aws_type_done(struct aws_type *type)
{
	free(type->name);
	free(type->arch);
	free(type->gpu);
	*type = (struct aws_type){0};
}

void aws_types_done(struct aws_types *types)
{
	vec_foreach (struct aws_type, type, types)
		aws_type_done(type);
	vec_done(types);
}

struct aws_type_reader {
	struct aws_reader reader;
	struct aws_types *types;
	struct aws_type type;
	int64_t gpus; /* of the present element */
};

static void aws_type_member(struct aws_type_reader *r, const char *path, const char *text)
{
	static const struct aws_text texts[] = {
		{"instanceType", offsetof(struct aws_type, name)},
		{"gpuInfo/gpus/item/manufacturer", offsetof(struct aws_type, gpu)},
	};
	static const struct aws_text numbers[] = {
		{"vCpuInfo/defaultVCpus", offsetof(struct aws_type, cpus)},
		{"memoryInfo/sizeInMiB", offsetof(struct aws_type, memory_mib)},
		{"networkInfo/maximumNetworkInterfaces", offsetof(struct aws_type, interfaces)},
		{"networkInfo/ipv4AddressesPerInterface", offsetof(struct aws_type, addresses)},
	};
	static const char archs[] = "processorInfo/supportedArchitectures/item";
	int64_t number = aws_number(text);

	aws_texts(texts, ARRAY_LEN(texts), &r->type, path, text);
	aws_numbers(numbers, ARRAY_LEN(numbers), &r->type, path, text);
	/* Old types have i386 as well. */
	if (str_eq(path, archs) && (str_eq(text, "x86_64") || str_eq(text, "arm64")))
		REPLACE(r->type.arch, mem_strdup(text));
	if (str_eq(path, "gpuInfo/gpus/item/count") && number > 0 && r->type.gpus < AWS_SIZE_MAX)
		r->type.gpus += number;
}

static int aws_type_element(
	struct aws_reader *reader, const char *path, const char *text, struct err *err)
{
	struct aws_type_reader *r = reader->into;
	const char *below = aws_below(path, reader->items);

	if (below)
		aws_type_member(r, below, text);
	if (!str_eq(path, reader->items))
		return 0;
	*vec_push(r->types) = r->type;
	r->type = (struct aws_type){0};
	if (str_empty(r->types->v[r->types->n - 1].name))
		return aws_bad("has a type without its name", err);
	return aws_count(r->types->n, AWS_TYPES_MAX, err);
}

int aws_read_types(void *into, const char *text, size_t len, char **ret_next, struct err *err)
{
	struct aws_type_reader r = {.types = into,
		.reader = {.action = "DescribeInstanceTypes",
			.element = aws_type_element,
			.items = "instanceTypeSet/item",
			.into = &r}};
	size_t before = r.types->n;
	int code = aws_walk(&r.reader, text, len, ret_next, err);

	aws_type_done(&r.type);
	while (code < 0 && r.types->n > before)
		aws_type_done(&r.types->v[--r.types->n]);
	return code;
}

/*
 * Instances
 */

void aws_launches_done(struct aws_launches *launches)
{
	vec_foreach (struct aws_launch, launch, launches)
		free(launch->id);
	vec_done(launches);
}

struct aws_launch_reader {
	struct aws_reader reader;
	struct aws_launches *launches;
	struct aws_launch launch;
};

static int aws_launch_element(
	struct aws_reader *reader, const char *path, const char *text, struct err *err)
{
	struct aws_launch_reader *r = reader->into;
	const char *below = aws_below(path, reader->items);

	if (below && str_eq(below, "instanceId"))
		REPLACE(r->launch.id, mem_strdup(text));
	else if (below && str_eq(below, "launchTime"))
		r->launch.at_ms = aws_time(text);
	if (!str_eq(path, reader->items))
		return 0;
	*vec_push(r->launches) = r->launch;
	r->launch = (struct aws_launch){0};
	if (str_empty(r->launches->v[r->launches->n - 1].id))
		return aws_bad("has an instance without its id", err);
	return aws_count(r->launches->n, AWS_INSTANCES_MAX, err);
}

int aws_read_launches(void *into, const char *text, size_t len, char **ret_next, struct err *err)
{
	struct aws_launch_reader r = {.launches = into,
		.reader = {.action = "DescribeInstances",
			.element = aws_launch_element,
			.items = "reservationSet/item/instancesSet/item",
			.into = &r}};
	size_t before = r.launches->n;
	int code = aws_walk(&r.reader, text, len, ret_next, err);

	free(r.launch.id);
	while (code < 0 && r.launches->n > before)
		free(r.launches->v[--r.launches->n].id);
	return code;
}

/*
 * Launches
 */

void aws_started_done(struct aws_started *started)
{
	strv_done(&started->ids);
	aws_failures_done(&started->failures);
}

struct aws_started_reader {
	struct aws_reader reader;
	struct aws_started *started;
	char *code, *message;
};

static int aws_started_element(
	struct aws_reader *reader, const char *path, const char *text, struct err *err)
{
	struct aws_started_reader *r = reader->into;
	struct aws_started *started = r->started;
	const char *error = aws_below(path, "LaunchInstancesResult/Errors/member");

	if (str_eq(path, "LaunchInstancesResult/Instances/member/InstanceIds/member")) {
		strv_add(&started->ids, text);
		return aws_count(started->ids.n, AWS_INSTANCES_MAX, err);
	}
	if (error && str_eq(error, "ErrorCode"))
		REPLACE(r->code, mem_strdup(text));
	else if (error && str_eq(error, "ErrorMessage"))
		REPLACE(r->message, mem_strdup(text));
	if (!str_eq(path, "LaunchInstancesResult/Errors/member"))
		return 0;
	const char *code = r->code ? r->code : "no reason was given";
	char *both =
		mem_printf("%s%s%s", code, r->message ? ": " : "", r->message ? r->message : "");
	enum aws_class class = aws_classify(code);
	*vec_push(&started->failures.list) = (struct aws_failure){
		class == AWS_OTHER ? aws_classify(both) : class, aws_cut(both)};
	REPLACE(r->code, NULL);
	REPLACE(r->message, NULL);
	return aws_count(started->failures.list.n, AWS_FAILURES_MAX, err);
}

int aws_read_started(void *into, const char *text, size_t len, char **ret_next, struct err *err)
{
	struct aws_started_reader r = {.started = into,
		.reader = {
			.action = "LaunchInstances", .element = aws_started_element, .into = &r}};
	size_t n_ids = r.started->ids.n, n_failures = r.started->failures.list.n;
	int code = aws_walk(&r.reader, text, len, ret_next, err);

	free(r.code);
	free(r.message);
	if (code < 0)
		strv_cut(&r.started->ids, n_ids);
	while (code < 0 && r.started->failures.list.n > n_failures)
		free(r.started->failures.list.v[--r.started->failures.list.n].text);
	return code;
}
