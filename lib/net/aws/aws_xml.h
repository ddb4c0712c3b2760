/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Query protocol of Amazon EC2 Auto Scaling (API version 2011-01-01) and Amazon EC2
 * (2016-11-15): forms as requests, XML as responses. An engine, for what dlrun uses of it, with
 * limits. Texts of responses come with controls escaped.
 *
 * Each aws_read_* is an aws_read_fn: it adds a page to `into`, which stays as it was on errors, and
 * sets *ret_next to the token of the next page, or NULL (the caller frees). E_SCALE_PROVIDER: it is
 * no such response, or it is over a limit.
 */
#ifndef DLRUN_NET_AWS_AWS_XML_H
#define DLRUN_NET_AWS_AWS_XML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/vec.h"

enum {
	AWS_GROUPS_MAX = 2000,
	AWS_INSTANCES_MAX = 20 * 1000, /* of all groups of a response, and of DescribeInstances */
	AWS_LIST_MAX = 200,            /* tags, zones, types of a group */
	AWS_FAILURES_MAX = 1000,
	AWS_TYPES_MAX = 2000,
	AWS_POLICIES_MAX = 20 * 1000,
	AWS_SIZE_MAX = 1000 * 1000, /* of a group */
	AWS_MESSAGE_MAX = 300,
};

typedef int aws_read_fn(void *into, const char *text, size_t len, char **ret_next, struct err *err);

enum aws_service { AWS_AUTOSCALING, AWS_EC2 };
/* params: "NAME=VALUE", not encoded. The caller frees. */
char *aws_form(enum aws_service service, const char *action, const struct strv *params);

/* Why something failed, by the code and message of an error, or by the StatusMessage of a scaling
 * activity. */
enum aws_class {
	AWS_OTHER,
	AWS_CAPACITY,
	AWS_QUOTA,
	AWS_PRICE,
	AWS_CONFIG,
	AWS_THROTTLE,
};
enum aws_class aws_classify(const char *text);

/* Code and message of an error response of both services. The message is its first line, of
 * AWS_MESSAGE_MAX bytes at most: further ones of refused signatures repeat headers, a session's
 * token among them. NULL: there is none. The caller frees. */
void aws_read_error(const char *text, size_t len, char **ret_code, char **ret_message);

struct aws_tag {
	char *key, *value;
};
struct aws_instance {
	char *id, *type, *zone, *state; /* state: "InService", … (LifecycleState) */
};
/* An Auto Scaling group. Strings are owned; NULL: not there. */
struct aws_group {
	char *name;
	int64_t min, max, desired;
	char *status; /* while it is deleted */
	char *template_id, *template_version;
	struct strv zones, suspended; /* suspended: processes */
	struct strv types;            /* overrides of a policy of mixed instances */
	bool is_mixed, is_weighted;   /* is_weighted: its size is not a number of machines */
	bool has_requirements;        /* its types are chosen by attributes */
	bool is_protected;            /* new machines, from scale-in */
	bool is_rebalanced;           /* spot machines are replaced before they are lost */
	bool is_watched;              /* machines end by the health checks of load balancers */
	bool has_lifetime;            /* machines end after some days */
	bool has_warm_pool;
	bool has_policy; /* that changes its size; set by who reads aws_read_policies */
	int64_t on_demand_base, on_demand_percent; /* is_mixed */
	struct VEC_OF(struct aws_tag) tags;
	struct VEC_OF(struct aws_instance) instances;
};
struct aws_groups VEC_OF(struct aws_group);
void aws_groups_done(struct aws_groups *groups);
aws_read_fn aws_read_groups; /* into: struct aws_groups; DescribeAutoScalingGroups */

/* into: struct strv; names of groups with policies that are enabled, each once for each of them. */
aws_read_fn aws_read_policies;

/* The value of a tag, or NULL. */
const char *aws_group_tag(const struct aws_group *group, const char *key);

/* Launches of one group that failed since a time, of DescribeScalingActivities. */
struct aws_failure {
	enum aws_class class;
	char *text;
};
struct aws_failures {
	int64_t since_ms;
	struct VEC_OF(struct aws_failure) list;
};
void aws_failures_done(struct aws_failures *failures);
aws_read_fn aws_read_activities; /* into: struct aws_failures; ends where older ones begin */

/* Of the first version in DescribeLaunchTemplateVersions. */
struct aws_template {
	char *type; /* NULL: none is named */
	bool is_spot;
};
void aws_template_done(struct aws_template *template);
aws_read_fn aws_read_template;

/* Of DescribeInstanceTypes; 0: not known. */
struct aws_type {
	char *name;
	char *arch;                                            /* "x86_64", "arm64"; or NULL */
	char *gpu;                                             /* the manufacturer; or NULL */
	int64_t cpus, memory_mib, gpus, interfaces, addresses; /* addresses: of an interface */
};
struct aws_types VEC_OF(struct aws_type);
void aws_type_done(struct aws_type *type);
void aws_types_done(struct aws_types *types);
aws_read_fn aws_read_types;

/* Of DescribeInstances. */
struct aws_launch {
	char *id;
	int64_t at_ms; /* wall clock; 0: not known */
};
struct aws_launches VEC_OF(struct aws_launch);
void aws_launches_done(struct aws_launches *launches);
aws_read_fn aws_read_launches;

/* Of LaunchInstances: machines, and why others are none. */
struct aws_started {
	struct strv ids;
	struct aws_failures failures;
};
void aws_started_done(struct aws_started *started);
aws_read_fn aws_read_started;

/* A response of which nothing is needed; into is not used. */
aws_read_fn aws_read_nothing;

#endif
