/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/aws/aws_xml.h"

static void test_form(void **state)
{
	AUTO_STRV struct strv params = {0};

	strv_add(&params, "AutoScalingGroupName=a b+c/%20");
	AUTO_FREE char *form = aws_form(AWS_AUTOSCALING, "SetDesiredCapacity", &params);
	assert_string_equal(form,
		"Action=SetDesiredCapacity&AutoScalingGroupName=a+b%2Bc%2F%2520&Version=2011-01-01");
	strv_done(&params);
	AUTO_FREE char *ec2 = aws_form(AWS_EC2, "DescribeInstances", &params);
	assert_string_equal(ec2, "Action=DescribeInstances&Version=2016-11-15");
}

static void test_classify(void **state)
{
	static const struct {
		const char *text;
		enum aws_class class;
	} cases[] = {
		{"RequestLimitExceeded", AWS_THROTTLE},
		{"Throttling: Rate exceeded", AWS_THROTTLE},
		{"ResourceContention", AWS_THROTTLE},
		{"VcpuLimitExceeded", AWS_QUOTA},
		{"You have requested more vCPU capacity than your current vCPU limit of 32 allows "
		 "for the instance bucket. Launching EC2 instance failed.",
			AWS_QUOTA},
		{"Could not launch Spot Instances. MaxSpotInstanceCountExceeded - Max spot "
		 "instance count exceeded.",
			AWS_QUOTA},
		{"There are not enough free addresses in subnet 'subnet-1' to satisfy the "
		 "requested number of instances.",
			AWS_QUOTA},
		{"SpotMaxPriceTooLow - Your Spot request price of 0.1 is lower than the minimum "
		 "required Spot request fulfillment price of 0.3.",
			AWS_PRICE},
		{"InsufficientInstanceCapacity", AWS_CAPACITY},
		{"We currently do not have sufficient p4d.24xlarge capacity in the Availability "
		 "Zone you requested (us-east-1a).",
			AWS_CAPACITY},
		{"UnfulfillableCapacity - Unable to fulfill capacity due to your request "
		 "configuration.",
			AWS_CAPACITY},
		{"There is no Spot capacity available that matches your request.", AWS_CAPACITY},
		{"ValidationError", AWS_CONFIG},
		{"The image id '[ami-1]' does not exist", AWS_CONFIG},
		{"The requested configuration is currently not supported.", AWS_CONFIG},
		{"InvalidParameterValue", AWS_CONFIG},
		{"Client.InternalError: Client error on launch", AWS_CONFIG},
		{"SignatureDoesNotMatch", AWS_CONFIG},
		{"InternalFailure", AWS_OTHER},
		{"", AWS_OTHER},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++)
		if (aws_classify(cases[i].text) != cases[i].class)
			fail_msg("%s: %d", cases[i].text, aws_classify(cases[i].text));
}

static void assert_error(const char *text, const char *want_code, const char *want_message)
{
	AUTO_FREE char *code = NULL;
	AUTO_FREE char *message = NULL;

	aws_read_error(text, strlen(text), &code, &message);
	assert_true(str_eq(code, want_code));
	assert_true(str_eq(message, want_message));
}

static void test_error(void **state)
{
	AUTO_BUF struct buf text = buf_with(1 << 20);

	assert_error("<ErrorResponse xmlns=\"http://x/\"><Error><Type>Sender</Type><Code>A</Code>"
		     "<Message>b</Message></Error></ErrorResponse>",
		"A", "b");
	assert_error("<?xml version=\"1.0\"?><Response><Errors><Error><Code>A</Code><Message>b&#10;"
		     "x-amz-security-token:canary</Message></Error></Errors></Response>",
		"A", "b");
	assert_error("<Response><Errors><Error><Code>A&#27;</Code></Error></Errors></Response>",
		"A\\x1b", NULL);
	assert_error("<html><body>502</body></html>", NULL, NULL);
	assert_error("", NULL, NULL);
	buf_adds(&text, "<ErrorResponse><Error><Code>A</Code><Message>");
	for (int i = 0; i < 400; i++)
		buf_adds(&text, "ü");
	buf_adds(&text, "</Message></Error></ErrorResponse>");
	AUTO_FREE char *code = NULL;
	AUTO_FREE char *message = NULL;
	aws_read_error(text.data, text.len, &code, &message);
	assert_int_equal(strlen(message), AWS_MESSAGE_MAX);
	assert_true(str_is_utf8(message, strlen(message)));
}

#define GROUPS_BEGIN                                                                               \
	"<DescribeAutoScalingGroupsResponse xmlns=\"http://autoscaling.amazonaws.com/doc/2011-01-" \
	"01/\"><DescribeAutoScalingGroupsResult><AutoScalingGroups>"
#define GROUPS_END                                                                                 \
	"</AutoScalingGroups></DescribeAutoScalingGroupsResult>"                                   \
	"</DescribeAutoScalingGroupsResponse>"
#define SIZES "<MinSize>0</MinSize><MaxSize>9</MaxSize><DesiredCapacity>2</DesiredCapacity>"

static int read_groups(
	const char *text, struct aws_groups *groups, char **ret_next, struct err *err)
{
	return aws_read_groups(groups, text, strlen(text), ret_next, err);
}

static void test_groups(void **state)
{
	AUTO(aws_groups_done) struct aws_groups groups = {0};
	AUTO_ERR struct err err = {0};
	AUTO_FREE char *next = NULL;

	assert_int_equal(
		read_groups(GROUPS_BEGIN
			"<member><AutoScalingGroupName>a</AutoScalingGroupName>" SIZES
			"<NewInstancesProtectedFromScaleIn>true</NewInstancesProtectedFromScaleIn>"
			"<CapacityRebalance>true</CapacityRebalance><MaxInstanceLifetime>86400"
			"</MaxInstanceLifetime><HealthCheckType>EC2,ELB</HealthCheckType>"
			"<WarmPoolConfiguration><MinSize>1</MinSize></WarmPoolConfiguration>"
			"<LaunchTemplate><LaunchTemplateId>lt-1</LaunchTemplateId>"
			"<Version>3</Version></LaunchTemplate><AvailabilityZones>"
			"<member>z1</member></AvailabilityZones><Instances><member>"
			"<InstanceId>i-1</InstanceId><InstanceType>t</InstanceType>"
			"<LifecycleState>InService</LifecycleState><LaunchTemplate>"
			"<LaunchTemplateId>lt-other</LaunchTemplateId></LaunchTemplate>"
			"</member><member><InstanceId>i-2</InstanceId>"
			"<LifecycleState>Pending</LifecycleState></member></Instances>"
			"<SuspendedProcesses><member><ProcessName>Launch</ProcessName>"
			"</member></SuspendedProcesses><Tags><member><Key>k</Key><Value>v"
			"</Value></member><member><Key>empty</Key><Value/></member></Tags>"
			"<Status>Delete in progress</Status></member>"
			"<member><AutoScalingGroupName>b</AutoScalingGroupName>" SIZES
			"<MixedInstancesPolicy><LaunchTemplate>"
			"<LaunchTemplateSpecification><LaunchTemplateId>lt-2"
			"</LaunchTemplateId></LaunchTemplateSpecification><Overrides>"
			"<member><InstanceType>t1</InstanceType></member><member>"
			"<InstanceRequirements><BaselinePerformanceFactors><Cpu><References>"
			"<member><InstanceFamily>x</InstanceFamily></member></References>"
			"</Cpu></BaselinePerformanceFactors></InstanceRequirements>"
			"<WeightedCapacity>2</WeightedCapacity></member></Overrides>"
			"</LaunchTemplate><InstancesDistribution><OnDemandBaseCapacity>0"
			"</OnDemandBaseCapacity><OnDemandPercentageAboveBaseCapacity>0"
			"</OnDemandPercentageAboveBaseCapacity></InstancesDistribution>"
			"</MixedInstancesPolicy></member></AutoScalingGroups>"
			"<NextToken>more</NextToken></DescribeAutoScalingGroupsResult>"
			"</DescribeAutoScalingGroupsResponse>",
			&groups, &next, &err),
		0);
	assert_string_equal(next, "more");
	assert_int_equal(groups.n, 2);
	const struct aws_group *a = &groups.v[0], *b = &groups.v[1];
	assert_string_equal(a->name, "a");
	assert_int_equal(a->max, 9);
	assert_int_equal(a->desired, 2);
	assert_string_equal(a->template_id, "lt-1");
	assert_string_equal(a->template_version, "3");
	assert_string_equal(a->status, "Delete in progress");
	assert_int_equal(strv_find(&a->zones, "z1"), 0);
	assert_int_equal(strv_find(&a->suspended, "Launch"), 0);
	assert_int_equal(a->instances.n, 2);
	assert_string_equal(a->instances.v[0].type, "t");
	assert_string_equal(a->instances.v[1].id, "i-2");
	assert_null(a->instances.v[1].type);
	assert_string_equal(aws_group_tag(a, "k"), "v");
	assert_string_equal(aws_group_tag(a, "empty"), "");
	assert_null(aws_group_tag(a, "none"));
	assert_false(a->is_mixed);
	assert_true(a->is_protected && a->is_rebalanced && a->has_lifetime && a->is_watched &&
		    a->has_warm_pool);
	assert_false(b->is_protected || b->is_rebalanced || b->has_lifetime || b->is_watched ||
		     b->has_warm_pool);
	assert_string_equal(b->template_id, "lt-2");
	assert_true(b->is_mixed && b->is_weighted && b->has_requirements);
	assert_int_equal(b->types.n, 1);
	assert_int_equal(b->on_demand_percent, 0);
	/* A page is added to those before. */
	REPLACE(next, NULL);
	assert_int_equal(
		read_groups(GROUPS_BEGIN "<member><AutoScalingGroupName>c"
					 "</AutoScalingGroupName>" SIZES "</member>" GROUPS_END,
			&groups, &next, &err),
		0);
	assert_null(next);
	assert_int_equal(groups.n, 3);
}

/* What is refused leaves nothing of it behind. */
static void test_bad_groups(void **state)
{
	static const char *const bad[] = {
		"",
		"<html><body>Service Unavailable</body></html>",
		"{\"AutoScalingGroups\": []}",
		"<DescribeInstancesResponse/>",
		GROUPS_BEGIN "<member><AutoScalingGroupName>a</AutoScalingGroupName>" SIZES
			     "</member>",
		GROUPS_BEGIN "<member>" SIZES "</member>" GROUPS_END,
		GROUPS_BEGIN
		"<member><AutoScalingGroupName>a</AutoScalingGroupName></member>" GROUPS_END,
		GROUPS_BEGIN "<member><AutoScalingGroupName>a</AutoScalingGroupName>"
			     "<MinSize>-1</MinSize><MaxSize>9</MaxSize><DesiredCapacity>2"
			     "</DesiredCapacity></member>" GROUPS_END,
		GROUPS_BEGIN "<member><AutoScalingGroupName>a</AutoScalingGroupName>"
			     "<MinSize>0</MinSize><MaxSize>99999999999999999999</MaxSize>"
			     "<DesiredCapacity>2</DesiredCapacity></member>" GROUPS_END,
		GROUPS_BEGIN "<member><AutoScalingGroupName>a</AutoScalingGroupName>" SIZES
			     "<Instances><member><InstanceId>i</InstanceId></member></Instances>"
			     "</member>" GROUPS_END,
		"<!DOCTYPE x [<!ENTITY a \"b\">]>" GROUPS_BEGIN GROUPS_END,
	};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		AUTO(aws_groups_done) struct aws_groups groups = {0};
		AUTO_ERR struct err err = {0};
		AUTO_FREE char *next = NULL;

		if (read_groups(bad[i], &groups, &next, &err) == 0)
			fail_msg("%s", bad[i]);
		assert_int_equal(err.id, E_SCALE_PROVIDER);
		assert_int_equal(groups.n, 0);
		assert_null(next);
	}
}

static void test_limits(void **state)
{
	AUTO(aws_groups_done) struct aws_groups groups = {0};
	AUTO_BUF struct buf text = buf_with(16 << 20);
	AUTO_ERR struct err err = {0};
	AUTO_FREE char *next = NULL;

	buf_adds(&text, GROUPS_BEGIN "<member><AutoScalingGroupName>a</AutoScalingGroupName>" SIZES
				     "<Instances>");
	for (int i = 0; i <= AWS_INSTANCES_MAX; i++)
		buf_adds(&text, "<member><InstanceId>i</InstanceId><LifecycleState>InService"
				"</LifecycleState></member>");
	buf_adds(&text, "</Instances></member>" GROUPS_END);
	assert_true(aws_read_groups(&groups, text.data, text.len, &next, &err) < 0);
	buf_reset(&text);
	buf_adds(&text, GROUPS_BEGIN "<member><AutoScalingGroupName>a</AutoScalingGroupName>" SIZES
				     "<Tags>");
	for (int i = 0; i <= AWS_LIST_MAX; i++)
		buf_adds(&text, "<member><Key>k</Key></member>");
	buf_adds(&text, "</Tags></member>" GROUPS_END);
	assert_true(aws_read_groups(&groups, text.data, text.len, &next, &err) < 0);
	assert_int_equal(groups.n, 0);
}

#define POLICIES(text)                                                                             \
	"<DescribePoliciesResponse><DescribePoliciesResult><ScalingPolicies>" text                 \
	"</ScalingPolicies></DescribePoliciesResult></DescribePoliciesResponse>"
#define POLICY(name, enabled)                                                                      \
	"<member><AutoScalingGroupName>" name "</AutoScalingGroupName><Alarms><member><AlarmName>" \
	"a</AlarmName></member></Alarms>" enabled "</member>"

static void test_policies(void **state)
{
	(void)state;
	static const char text[] = POLICIES(POLICY("a", "<Enabled>true</Enabled>")
			POLICY("b", "<Enabled>false</Enabled>") POLICY("c", ""));
	static const char bad[] = "<DescribePoliciesResponse><DescribePoliciesResult>"
				  "<ScalingPolicies>" POLICY("d", "");
	AUTO_STRV struct strv names = {0};
	AUTO_ERR struct err err = {0};
	AUTO_FREE char *next = NULL;

	assert_int_equal(aws_read_policies(&names, text, strlen(text), &next, &err), 0);
	assert_int_equal(names.n, 2);
	assert_string_equal(names.v[0], "a");
	assert_string_equal(names.v[1], "c");
	assert_true(aws_read_policies(&names, bad, strlen(bad), &next, &err) < 0);
	assert_int_equal(names.n, 2);
}

#define ACTIVITIES(text)                                                                           \
	"<DescribeScalingActivitiesResponse><DescribeScalingActivitiesResult><Activities>" text    \
	"</Activities><NextToken>n</NextToken></DescribeScalingActivitiesResult>"                  \
	"</DescribeScalingActivitiesResponse>"
#define ACTIVITY(what, time, status, message)                                                      \
	"<member><Description>" what " EC2 instance.</Description><StartTime>" time                \
	"</StartTime><StatusCode>" status "</StatusCode><StatusMessage>" message                   \
	"</StatusMessage></member>"

static void test_activities(void **state)
{
	static const char text[] = ACTIVITIES(ACTIVITY("Launching a new", "2026-11-27T09:00:05Z",
		"InProgress", "") ACTIVITY("Launching a new", "2026-11-27T09:00:04.5Z", "Failed",
		"We currently do not have sufficient x capacity in the zone&#10;second")
			ACTIVITY("Terminating", "2026-11-27T09:00:03Z", "Failed", "no") ACTIVITY(
				"Launching a new", "2026-11-27T09:00:02Z", "Cancelled", "")
				ACTIVITY("Launching a new", "2026-11-27T09:00:01Z", "Failed", ""));
	AUTO(aws_failures_done) struct aws_failures failures = {0};
	AUTO_ERR struct err err = {0};
	AUTO_FREE char *next = NULL;

	assert_int_equal(clock_parse("2026-11-27T09:00:00Z", &failures.since_ms, &err), 0);
	assert_int_equal(aws_read_activities(&failures, text, strlen(text), &next, &err), 0);
	assert_string_equal(next, "n");
	assert_int_equal(failures.list.n, 2);
	assert_int_equal(failures.list.v[0].class, AWS_CAPACITY);
	assert_string_equal(failures.list.v[0].text,
		"We currently do not have sufficient x capacity in the zone\\nsecond");
	assert_int_equal(failures.list.v[1].class, AWS_OTHER);
	/* Where older ones begin no further page is needed. */
	REPLACE(next, NULL);
	aws_failures_done(&failures);
	failures.since_ms += 1500;
	assert_int_equal(aws_read_activities(&failures, text, strlen(text), &next, &err), 0);
	assert_null(next);
	assert_int_equal(failures.list.n, 1);
}

static void test_template(void **state)
{
	static const char text[] =
		"<DescribeLaunchTemplateVersionsResponse><launchTemplateVersionSet><item>"
		"<launchTemplateData><instanceType>g5.xlarge</instanceType><instanceMarketOptions>"
		"<marketType>spot</marketType></instanceMarketOptions></launchTemplateData></item>"
		"<item><launchTemplateData><instanceType>old</instanceType></launchTemplateData>"
		"</item></launchTemplateVersionSet></DescribeLaunchTemplateVersionsResponse>";
	static const char none[] =
		"<DescribeLaunchTemplateVersionsResponse><launchTemplateVersionSet/>"
		"</DescribeLaunchTemplateVersionsResponse>";
	AUTO(aws_template_done) struct aws_template template = {0};
	AUTO_ERR struct err err = {0};
	AUTO_FREE char *next = NULL;

	assert_int_equal(aws_read_template(&template, text, strlen(text), &next, &err), 0);
	assert_string_equal(template.type, "g5.xlarge");
	assert_true(template.is_spot);
	assert_true(aws_read_template(&template, none, strlen(none), &next, &err) < 0);
	assert_string_equal(template.type, "g5.xlarge");
}

static void test_types(void **state)
{
	static const char text[] =
		"<DescribeInstanceTypesResponse><instanceTypeSet><item><instanceType>p4d.24xlarge"
		"</instanceType><processorInfo><supportedArchitectures><item>i386</item><item>"
		"x86_64</item></supportedArchitectures></processorInfo><vCpuInfo><defaultVCpus>96"
		"</defaultVCpus></vCpuInfo><memoryInfo><sizeInMiB>1179648</sizeInMiB></memoryInfo>"
		"<gpuInfo><gpus><item><manufacturer>NVIDIA</manufacturer><count>8</count>"
		"<memoryInfo><sizeInMiB>40960</sizeInMiB></memoryInfo></item></gpus></gpuInfo>"
		"<networkInfo><maximumNetworkInterfaces>60</maximumNetworkInterfaces>"
		"<ipv4AddressesPerInterface>50</ipv4AddressesPerInterface></networkInfo></item>"
		"</instanceTypeSet><nextToken>n</nextToken></DescribeInstanceTypesResponse>";
	AUTO(aws_types_done) struct aws_types types = {0};
	AUTO_ERR struct err err = {0};
	AUTO_FREE char *next = NULL;

	assert_int_equal(aws_read_types(&types, text, strlen(text), &next, &err), 0);
	assert_string_equal(next, "n");
	assert_int_equal(types.n, 1);
	assert_string_equal(types.v[0].name, "p4d.24xlarge");
	assert_string_equal(types.v[0].arch, "x86_64");
	assert_string_equal(types.v[0].gpu, "NVIDIA");
	assert_int_equal(types.v[0].cpus, 96);
	assert_int_equal(types.v[0].memory_mib, 1179648);
	assert_int_equal(types.v[0].gpus, 8);
	assert_int_equal(types.v[0].interfaces, 60);
	assert_int_equal(types.v[0].addresses, 50);
}

static void test_launches(void **state)
{
	static const char text[] =
		"<DescribeInstancesResponse><reservationSet><item><instancesSet><item><instanceId>"
		"i-1</instanceId><launchTime>2026-11-27T09:00:00.000Z</launchTime><tagSet><item>"
		"<key>instanceId</key></item></tagSet></item><item><instanceId>i-2</instanceId>"
		"<launchTime>nonsense</launchTime></item></instancesSet></item></reservationSet>"
		"</DescribeInstancesResponse>";
	AUTO(aws_launches_done) struct aws_launches launches = {0};
	AUTO_ERR struct err err = {0};
	AUTO_FREE char *next = NULL;

	assert_int_equal(aws_read_launches(&launches, text, strlen(text), &next, &err), 0);
	assert_int_equal(launches.n, 2);
	assert_string_equal(launches.v[0].id, "i-1");
	assert_true(launches.v[0].at_ms > 0);
	assert_int_equal(launches.v[1].at_ms, 0);
}

static void test_started(void **state)
{
	static const char text[] =
		"<LaunchInstancesResponse><LaunchInstancesResult><Instances><member><InstanceIds>"
		"<member>i-1</member><member>i-2</member></InstanceIds></member></Instances>"
		"<Errors><member><ErrorCode>InsufficientInstanceCapacity</ErrorCode><ErrorMessage>"
		"none</ErrorMessage></member><member/></Errors></LaunchInstancesResult>"
		"</LaunchInstancesResponse>";
	AUTO(aws_started_done) struct aws_started started = {0};
	AUTO_ERR struct err err = {0};
	AUTO_FREE char *next = NULL;

	assert_true(aws_read_started(&started, text, strlen(text) - 1, &next, &err) < 0);
	assert_int_equal(started.ids.n + started.failures.list.n, 0);
	assert_int_equal(aws_read_started(&started, text, strlen(text), &next, &err), 0);
	assert_int_equal(started.ids.n, 2);
	assert_string_equal(started.ids.v[1], "i-2");
	assert_int_equal(started.failures.list.n, 2);
	assert_int_equal(started.failures.list.v[0].class, AWS_CAPACITY);
	assert_string_equal(started.failures.list.v[0].text, "InsufficientInstanceCapacity: none");
	assert_int_equal(started.failures.list.v[1].class, AWS_OTHER);
}

static void test_nothing(void **state)
{
	static const char text[] = "<SetDesiredCapacityResponse><ResponseMetadata><RequestId>x"
				   "</RequestId></ResponseMetadata></SetDesiredCapacityResponse>";
	static const char *const bad[] = {"", "ok", "<html><b>Response</b></html>",
		"<html><SetDesiredCapacityResponse/></html>", "<SetDesiredCapacityResponse>"};
	AUTO_ERR struct err err = {0};
	AUTO_FREE char *next = NULL;

	assert_int_equal(aws_read_nothing(NULL, text, strlen(text), &next, &err), 0);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_true(aws_read_nothing(NULL, bad[i], strlen(bad[i]), &next, &err) < 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_form),
		cmocka_unit_test(test_classify),
		cmocka_unit_test(test_error),
		cmocka_unit_test(test_groups),
		cmocka_unit_test(test_bad_groups),
		cmocka_unit_test(test_limits),
		cmocka_unit_test(test_policies),
		cmocka_unit_test(test_activities),
		cmocka_unit_test(test_template),
		cmocka_unit_test(test_types),
		cmocka_unit_test(test_launches),
		cmocka_unit_test(test_started),
		cmocka_unit_test(test_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
