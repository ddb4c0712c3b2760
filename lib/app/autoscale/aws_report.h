/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Auto Scaling groups as a provider reports them: an engine.
 *
 * Tags of a group: dlrun/cluster has the name of the cluster that it belongs to. The tags by which
 * the Cluster Autoscaler describes machines of an empty group count here, too:
 * k8s.io/cluster-autoscaler/node-template/label/KEY = VALUE, …/taint/KEY = VALUE:EFFECT,
 * …/resources/NAME = QUANTITY (allocatable); and kube/KEY = VALUE for a label. What tags do not
 * say comes from the type of its machines.
 */
#ifndef DLRUN_APP_AUTOSCALE_AWS_REPORT_H
#define DLRUN_APP_AUTOSCALE_AWS_REPORT_H

#include "base/data/json.h"
#include "base/util/map.h"
#include "net/aws/aws_xml.h"

#define AWS_CLUSTER_TAG "dlrun/cluster"

/* Descriptions of machines, of all regions. */
struct aws_facts {
	struct map templates; /* struct aws_template by aws_facts_key; owned, as are types */
	struct map types; /* struct aws_type by region and name: not all regions have all, nor the
	                       * same; one without CPUs is not known to AWS there */
	struct map launched; /* by instance: (intptr_t) seconds since 1970 */
};
void aws_facts_done(struct aws_facts *facts);
/* Of a group's launch template; NULL: it has none. The caller frees. */
char *aws_facts_key(const char *region, const struct aws_group *group);
/* NULL: not asked for yet. */
const struct aws_type *aws_facts_type(
	const struct aws_facts *facts, const char *region, const char *name);
/* Moves what type has, unless it is there already. */
void aws_facts_add_type(struct aws_facts *facts, const char *region, struct aws_type *type);
/* The names of the types that its machines may have; none where that is not known. */
void aws_facts_types(const struct aws_facts *facts, const char *region,
	const struct aws_group *group, struct strv *ret);

/* "NAME@REGION": names are unique in a region only. The caller frees. */
char *aws_group_id(const char *region, const struct aws_group *group);
/* Why it is not ours to change, or NULL. */
const char *aws_group_refused(const struct aws_group *group);
/* A sentence for each thing of this cluster's groups that AWS or others may do to machines in use,
 * or for which a group is not changed, with the groups that have it; strings are added to list. */
void aws_groups_remarks(const char *cluster, const char *region, const struct aws_groups *groups,
	struct json *list);
/* Whether it counts for the desired size of its group, as do so many machines. */
bool aws_instance_counts(const struct aws_instance *instance);
int64_t aws_group_live(const struct aws_group *group);
/* A group as in a snapshot; silent: why its region's present state is not known, or NULL; note: why
 * something of its machines is not known, or NULL. The caller frees. */
struct json *aws_group_json(const struct aws_facts *facts, const char *region,
	const struct aws_group *group, const char *silent, const char *note);

#endif
