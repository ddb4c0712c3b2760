/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cluster as its autoscaler sees it at one moment: nodes, pods, gangs, groups of machines,
 * limits. A
 * snapshot (snapshot.h) is this as JSON. Plain data without behaviour; strings are owned by the
 * structure that they are in.
 */
#ifndef DLRUN_CORE_AUTOSCALE_MODEL_H
#define DLRUN_CORE_AUTOSCALE_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/util/vec.h"

/* Kinds of resources of all pods and nodes together. The first are always the same; what is named
 * beyond the last makes a pod unsupported. */
enum {
	SCALE_CPU,    /* thousandths */
	SCALE_MEMORY, /* bytes; as all that follow: whole units, requests rounded up */
	SCALE_PODS,
	SCALE_DISK, /* ephemeral-storage */
	SCALE_RESOURCES_FIXED,
	SCALE_RESOURCES_MAX = 16,
};
/* 0 to INT64_MAX / 2. */
struct scale_amounts {
	int64_t of[SCALE_RESOURCES_MAX];
};

struct scale_pair {
	char *key, *value;
};
/* Sorted by key, each key once. */
struct scale_pairs VEC_OF(struct scale_pair);

struct scale_taint {
	char *key, *value; /* value may be "" */
	enum { SCALE_NO_SCHEDULE, SCALE_PREFER_NO_SCHEDULE, SCALE_NO_EXECUTE } effect;
};
struct scale_taints VEC_OF(struct scale_taint);

/* As in core/v1 Toleration. */
struct scale_toleration {
	char *key;   /* NULL: each, with Exists */
	char *value; /* NULL: Exists */
	int effect;  /* of scale_taint; -1: each */
};
struct scale_tolerations VEC_OF(struct scale_toleration);

/* As in core/v1 NodeSelectorRequirement. */
struct scale_rule {
	char *key;
	enum {
		SCALE_IN,
		SCALE_NOT_IN,
		SCALE_EXISTS,
		SCALE_NOT_EXISTS,
		SCALE_GREATER,
		SCALE_LESS
	} op;
	struct strv values;
};
/* All of them hold. */
struct scale_term VEC_OF(struct scale_rule);
/* Satisfied if one term holds, or there is none. */
struct scale_terms VEC_OF(struct scale_term);

/* Requirements that decide where a pod may run. Owner, name and labels do not, so thousands of
 * pods share a
 * shape. */
struct scale_shape {
	char *name;                   /* in the snapshot */
	struct scale_amounts request; /* what the scheduler counts, SCALE_PODS is 1 */
	struct scale_pairs selector;
	struct scale_terms affinity; /* required node affinity */
	struct scale_tolerations tolerations;
	/* Anti-affinity by host: a pod that has one of the marks in apart, and one that
	 * carries this mark, are not on one node. Marks are texts that the snapshot's maker
	 * chose. */
	struct strv apart, marks;
	/* Names of constraints that the planner does not know, "topologySpreadConstraints":
	 * such pods take room where they run, and are never planned for. */
	struct strv unsupported;
};
struct scale_shapes VEC_OF(struct scale_shape);

struct scale_pod {
	char *name;    /* NAMESPACE/NAME */
	int64_t count; /* so many equal ones; over 1 for those that do not exist yet; 1 to 10^6 */
	int32_t shape; /* of shapes */
	int32_t node;  /* of nodes; -1: it waits for one */
	int32_t gang;  /* of gangs; -1: none */
	int32_t priority;
	/* of a DaemonSet, or a mirror pod: never waits for a machine to be bought */
	bool is_daemon;
};
struct scale_pods VEC_OF(struct scale_pod);

/* Pods that are of use only together. Those of its pods that wait are helped all or none. */
struct scale_gang {
	char *name; /* "NAMESPACE/NAME" of the run, JobSet, Workload or PodGroup */
	/* what said so: "dlrun", "JobSet", "Kueue", "Volcano", "PodGroup"; "podAffinity" of pods
	 * that are of use alone */
	char *owner;
	enum {
		SCALE_ANYWHERE,
		SCALE_SAME_ZONE,
		SCALE_SAME_GROUP
	} same;      /* where all of it has to be */
	int64_t min; /* so many pods of it are of use, running ones among them; 0: all */
};
struct scale_gangs VEC_OF(struct scale_gang);

struct scale_node {
	char *name;
	char *instance; /* the provider's id; NULL: not known */
	int32_t group;  /* of groups; -1: none of ours, it is looked at and left alone */
	struct scale_pairs labels;
	struct scale_taints taints; /* without those of being cordoned */
	struct scale_amounts room;  /* allocatable */
	bool is_ready;
	enum { SCALE_OPEN, SCALE_CORDONED, SCALE_CORDONED_BY_US } cordoned;
	/* Wall clock; 0: not known, or does not hold. */
	int64_t created_ms, idle_since_ms, cordoned_ms,
		silent_ms;    /* silent: last heartbeat of one not ready */
	bool has_no_instance; /* the provider says that its machine is gone */
	char *kept;    /* why it is never removed: an annotation, a pool of Karpenter; or NULL */
	char *version; /* resourceVersion when it was read; not in snapshots, as is: */
	/* Whether its marks in the cluster (objects.h) differ from this. */
	bool is_unmarked;
	bool is_taken_back; /* somebody has uncordoned it, and the mark of our cordon is there */
};
struct scale_nodes VEC_OF(struct scale_node);

struct scale_instance {
	char *id;  /* "" where the provider has none yet */
	char *was; /* the id that it had before; NULL: always this one */
	enum { SCALE_PENDING, SCALE_RUNNING, SCALE_STOPPING } state;
	int64_t since_ms; /* 0: not known */
	bool is_awaited;  /* it was bought by this autoscaler and never was a node */
};
struct scale_instances VEC_OF(struct scale_instance);

/* Why a provider gave no machine. */
enum scale_failure {
	SCALE_NO_FAILURE,
	SCALE_FAILED_CAPACITY,
	SCALE_FAILED_QUOTA,
	SCALE_FAILED_PRICE,
	SCALE_FAILED_CONFIG,
	SCALE_FAILED_THROTTLE,
	SCALE_FAILED_OTHER,
};

/* A fault of a group's template that its nodes have shown (mismatch.h). */
struct scale_mismatch {
	char *key;
	char *told;  /* the value of the label in the template; NULL: it is a taint, not in there */
	char *found; /* the value that nodes have; NULL: they lack the label */
	int effect;  /* of the taint */
	char *node;  /* that showed it */
};
struct scale_mismatches VEC_OF(struct scale_mismatch);

/* Equal machines of one provider, bought and given back one by one. */
struct scale_group {
	char *id;       /* unique in the snapshot */
	char *provider; /* name of the one that has it */
	int64_t min, max, desired;
	char *region, *zone; /* or NULL; zone: of all of its machines */
	bool is_spot;
	double price;              /* of one for an hour; negative: not known */
	int64_t weight;            /* those of the smallest are tried first; 0 by default */
	bool has_template;         /* else nothing is known of its machines, and none is bought */
	bool is_copied;            /* the template is that of its nodes: the provider says none */
	struct scale_pairs labels; /* of a new node, as are: */
	struct scale_taints taints;
	struct scale_amounts room; /* allocatable, less what daemons take */
	/* As its provider says, without daemons; and when the node was made that shows how much of
	 * each there is, 0: none does. Not in snapshots. */
	struct scale_amounts told, shown_ms;
	/* Faults of its template, which are mended in labels and taints. */
	struct scale_mismatches mismatches;
	struct scale_instances instances;
	int64_t boot_ms; /* how long one takes to become a node; 0: not known */
	/* Not asked before then, wall clock, because of the last failure; 0: it may be asked. */
	int64_t wait_until_ms;
	enum scale_failure failure;
	char *failure_text; /* the provider's; or NULL */
	/* why it is not ours to change ("it has tags of the Cluster Autoscaler"); or NULL */
	char *refused;
};
struct scale_groups VEC_OF(struct scale_group);

struct scale_limits {
	int64_t nodes;    /* of all groups together; 0: no limit, as in those that follow */
	double price;     /* of all groups together, for an hour */
	int64_t step;     /* new nodes in one plan */
	int64_t removals; /* nodes in one plan; never 0, 10 by default */
	int64_t idle_ms; /* a node goes when nothing has run there for so long; 10 min by default */
	int64_t spares;  /* idle nodes that stay, of each group; 0 by default */
	/* a machine that is no node after it is not waited for; 25 min by default */
	int64_t boot_ms;
	int64_t silent_ms; /* a node that is not ready for so long is removed; 1 h by default */
};

struct scale_model {
	char *cluster;
	int64_t now_ms;                       /* wall clock: the only time that a planner knows */
	char *resources[SCALE_RESOURCES_MAX]; /* names; NULL behind the last */
	struct scale_limits limits;
	struct scale_shapes shapes; /* few are alike but for their names */
	struct scale_pods pods;
	struct scale_gangs gangs;
	struct scale_nodes nodes;
	struct scale_groups groups;
	struct strv remarks; /* sentences about what could not be read, for people */
};
void scale_model_init(struct scale_model *model);
/* The defaults. */
void scale_limits_init(struct scale_limits *limits);
void scale_model_done(struct scale_model *model);
#define AUTO_SCALE_MODEL AUTO(scale_model_done)

void scale_pairs_add(struct scale_pairs *pairs, const char *key, const char *value);
/* By key, when all have been added. */
void scale_pairs_sort(struct scale_pairs *pairs);
void scale_taints_add(struct scale_taints *taints, const char *key, const char *value, int effect);

/* Of one element, without the element itself. */
void scale_pairs_done(struct scale_pairs *pairs);
void scale_mismatch_done(struct scale_mismatch *mismatch);
void scale_shape_done(struct scale_shape *shape);
void scale_node_done(struct scale_node *node);
void scale_mismatches_done(struct scale_mismatches *mismatches);
void scale_group_done(struct scale_group *group);

/* The index of a resource's name, which is added where there is space; -1: there is none. */
int scale_resource(struct scale_model *model, const char *name);
/* The words of JSON for enumerators; NULL-ended tables in the order of their values. */
extern const char *const
	scale_failure_names[]; /* "", "capacity", "quota", "price", "config", "throttle", "other" */
/* Whether it is in the table, and which one. */
bool scale_word(const char *const names[], const char *word, int *ret);

#endif
