/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/clock.h"
#include "base/util/map.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/status/status_impl.h"
#include "kube/status/usage.h"

/*
 * Why no node takes a pod: the scheduler's sentence, and the nodes as far as they are known.
 */

enum { COUNT_MAX = 1000 * 1000, GROWTH_REASONS_SHOWN = 2 };

/*
 * Nodes that could take a pod: its selector and required affinity against labels, tolerations
 * against taints, requests against what is allocatable and, when all pods are known, free.
 */

struct node {
	const char *name;
	int64_t cpu, memory, disk, gpus;             /* allocatable; cpu in thousandths */
	int64_t cpu_taken, memory_taken, gpus_taken; /* requests of its pods */
	bool matches, right_arch, off;               /* off: cordoned or not ready */
	char taint[128];                             /* "" if all are tolerated */
};
struct node_list VEC_OF(struct node);

/* How the nodes fit pods with that spec. */
struct kube_fit {
	struct kube_fit *next;
	const char *role;        /* NULL: of all pods */
	bool known, taken_known; /* nodes; what is taken on them */
	int nodes;
	int fit_ever;      /* could run it if they were empty */
	int matching;      /* fit its selector */
	int right_arch;    /* of its processor */
	int with_gpu;      /* of all: have that resource at all */
	int64_t gpus_max;  /* most GPUs of one usable node */
	int64_t gpus_free; /* most free ones of one; -1: not known */
	int64_t memory_max, cpu_max, memory_free, cpu_free, disk_max;
	char taint[128];    /* one that keeps it off a node with room */
	int tainted;        /* how many nodes with room are kept off by taints */
	char arch_has[64];  /* processors that there are, "amd64" */
	char free_text[96]; /* free GPUs of nodes that have any, most first: "4 4 2 1 0" */
	bool grows;         /* nodes are made on demand as far as can be seen */
};

static bool node_list_has(const struct json *values, const char *value)
{
	const struct json *m = kube_first(values, "");

	while (m && !str_eq(json_str(m), value))
		m = json_next(m);
	return m && value;
}

static bool node_compares(const struct json *values, const char *value, bool greater)
{
	int64_t is, bound;
	const char *text = json_str(kube_first(values, ""));

	if (!value || !text || str_to_int(value, INT64_MIN, INT64_MAX, "", &is, NULL) < 0 ||
		str_to_int(text, INT64_MIN, INT64_MAX, "", &bound, NULL) < 0)
		return false;
	return greater ? is > bound : is < bound;
}

/* Evaluate a member of matchExpressions; value is NULL if the node has no such label. */
static bool node_expression_holds(const struct json *expression, const char *value)
{
	const char *op = json_get_str(expression, "operator");
	const struct json *values = json_get(expression, "values");

	if (str_eq(op, "In"))
		return node_list_has(values, value);
	if (str_eq(op, "NotIn"))
		return !node_list_has(values, value);
	if (str_eq(op, "Exists"))
		return value;
	if (str_eq(op, "DoesNotExist"))
		return !value;
	return node_compares(values, value, str_eq(op, "Gt"));
}

static bool node_expressions_hold(
	const struct json *list, const struct json *labels, const char *name)
{
	for (const struct json *m = kube_first(list, ""); m; m = json_next(m)) {
		const char *key = json_get_str(m, "key");

		if (key && !node_expression_holds(m, name ? name : json_get_str(labels, key)))
			return false;
	}
	return true;
}

static bool node_affinity_holds(const struct json *spec, const struct json *node)
{
	const struct json *m = kube_first(spec,
		"affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution."
		"nodeSelectorTerms");
	const struct json *labels = kube_at(node, "metadata.labels");
	const char *name = kube_str_at(node, "metadata.name");

	if (!m)
		return true;
	for (; m; m = json_next(m))
		if (node_expressions_hold(json_get(m, "matchExpressions"), labels, NULL) &&
			node_expressions_hold(json_get(m, "matchFields"), NULL, name ? name : ""))
			return true;
	return false;
}

static bool node_selector_holds(const struct json *spec, const struct json *node)
{
	const struct json *selector = json_get(spec, "nodeSelector");
	const struct json *labels = kube_at(node, "metadata.labels");

	if (!selector || json_kind(selector) != JSON_OBJECT)
		return true;
	json_foreach (m, selector)
		if (!str_eq(json_get_str(labels, json_key(m)), json_str(m)))
			return false;
	return true;
}

/* The first term of required affinity to other pods. */
static const struct json *node_pod_affinity(const struct json *spec)
{
	return kube_first(
		spec, "affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution");
}

/* A node without that label is near no pod. */
static bool node_has_topologies(const struct json *spec, const struct json *node)
{
	for (const struct json *m = node_pod_affinity(spec); m; m = json_next(m)) {
		const char *key = json_get_str(m, "topologyKey");

		if (key && !kube_label(node, key))
			return false;
	}
	return true;
}

static bool node_tolerates(const struct json *toleration, const struct json *taint)
{
	const char *key = json_get_str(toleration, "key"),
		   *op = json_get_str(toleration, "operator");
	const char *effect = json_get_str(toleration, "effect");
	const char *value = json_get_str(toleration, "value");
	const char *tainted = json_get_str(taint, "value");

	if (!str_empty(effect) && !str_eq(effect, json_get_str(taint, "effect")))
		return false;
	if (!str_empty(key) && !str_eq(key, json_get_str(taint, "key")))
		return false;
	if (str_eq(op, "Exists"))
		return true;
	return !str_empty(key) && str_eq(value ? value : "", tainted ? tainted : "");
}

static bool node_is_tolerated(const struct json *spec, const struct json *taint)
{
	if (str_eq(json_get_str(taint, "effect"), "PreferNoSchedule"))
		return true;
	for (const struct json *m = kube_first(spec, "tolerations"); m; m = json_next(m))
		if (node_tolerates(m, taint))
			return true;
	return false;
}

/* Taints of the cluster itself come and go: not-ready, unreachable, disk-pressure,
 * unschedulable. */
static void node_read_taints(const struct json *spec, const struct json *json, struct node *node)
{
	for (const struct json *m = kube_first(json, "spec.taints"); m; m = json_next(m)) {
		const char *key = json_get_str(m, "key"), *value = json_get_str(m, "value");

		if (!key || node_is_tolerated(spec, m))
			continue;
		if (str_starts(key, "node.kubernetes.io/") ||
			str_starts(key, "node.cloudprovider.kubernetes.io/"))
			node->off = true;
		else if (!*node->taint)
			snprintf(node->taint, sizeof(node->taint), "%s%s%s", key,
				str_empty(value) ? "" : "=", str_empty(value) ? "" : value);
	}
}

static const char *node_arch(const struct json *node)
{
	const char *arch = kube_label(node, "kubernetes.io/arch");

	return arch ? arch : kube_str_at(node, "status.nodeInfo.architecture");
}

static void node_read(const struct json *json, const struct json *spec,
	const struct kube_demand *want, struct node *node)
{
	const struct json *has = kube_at(json, "status.allocatable");
	const char *arch = json_get_str(json_get(spec, "nodeSelector"), "kubernetes.io/arch");

	node->name = kube_str_at(json, "metadata.name");
	node->cpu = kube_quantity_of(json_get(has, "cpu"));
	node->memory = kube_quantity_of(json_get(has, "memory")) / 1000;
	node->disk = kube_quantity_of(json_get(has, "ephemeral-storage")) / 1000;
	if (*want->resource)
		node->gpus = kube_quantity_of(json_get(has, want->resource)) / 1000;
	node->matches = node_selector_holds(spec, json) && node_affinity_holds(spec, json) &&
			node_has_topologies(spec, json);
	node->right_arch = !arch || !node_arch(json) || str_eq(arch, node_arch(json));
	node->off = json_get_bool(json_get(json, "spec"), "unschedulable", false) ||
		    (kube_condition(json, "Ready") && !kube_condition_is(json, "Ready", "True"));
	node_read_taints(spec, json, node);
}

static void node_take(struct node *node, const struct json *pod, const char *resource)
{
	struct kube_demand demand;

	kube_demand_of(json_get(pod, "spec"), &demand);
	node->cpu_taken = kube_add(node->cpu_taken, demand.cpu_milli);
	node->memory_taken = kube_add(node->memory_taken, demand.memory);
	if (*resource && str_eq(demand.resource, resource))
		node->gpus_taken = kube_add(node->gpus_taken, demand.gpus);
}

static void nodes_take(const struct kube_items *pods, const char *resource, struct node_list *nodes)
{
	struct map by_name = {0};

	vec_foreach (struct node, node, nodes)
		if (node->name)
			map_put(&by_name, node->name, node);
	for (size_t i = 0; i < pods->n; i++) {
		const char *name = kube_str_at(pods->v[i], "spec.nodeName");
		const char *phase = kube_str_at(pods->v[i], "status.phase");
		struct node *node = name ? map_get(&by_name, name) : NULL;

		if (node && !str_eq(phase, "Succeeded") && !str_eq(phase, "Failed"))
			node_take(node, pods->v[i], resource);
	}
	map_done(&by_name);
}

static int64_t schedule_node_free(int64_t all, int64_t taken)
{
	return taken >= all ? 0 : all - taken;
}

static void fit_raise(int64_t *max, int64_t value)
{
	if (value > *max)
		*max = value;
}

static bool node_is_large(const struct node *node, const struct kube_demand *want)
{
	return node->gpus >= want->gpus && node->cpu >= want->cpu_milli &&
	       node->memory >= want->memory && (!node->disk || node->disk >= want->disk);
}

/* A node that the pod may go to, as far as labels and taints are concerned. */
static void fit_count_usable(
	const struct node *node, const struct kube_demand *want, struct kube_fit *fit)
{
	fit_raise(&fit->gpus_max, node->gpus);
	fit_raise(&fit->memory_max, node->memory);
	fit_raise(&fit->cpu_max, node->cpu);
	fit_raise(&fit->disk_max, node->disk);
	if (node_is_large(node, want))
		fit->fit_ever++;
	if (node->off || !fit->taken_known)
		return;
	fit_raise(&fit->gpus_free, schedule_node_free(node->gpus, node->gpus_taken));
	fit_raise(&fit->memory_free, schedule_node_free(node->memory, node->memory_taken));
	fit_raise(&fit->cpu_free, schedule_node_free(node->cpu, node->cpu_taken));
}

static void fit_count(const struct node *node, const struct kube_demand *want, struct kube_fit *fit)
{
	fit->nodes++;
	fit->with_gpu += node->gpus > 0;
	fit->right_arch += node->right_arch;
	if (!node->matches)
		return;
	fit->matching++;
	if (!*node->taint) {
		fit_count_usable(node, want, fit);
		return;
	}
	if (!node_is_large(node, want))
		return;
	fit->tainted++;
	if (!*fit->taint)
		memcpy(fit->taint, node->taint, sizeof(fit->taint));
}

static int nodes_by_free(const void *a, const void *b)
{
	const struct node *x = a, *y = b;
	int64_t fx = schedule_node_free(x->gpus, x->gpus_taken),
		fy = schedule_node_free(y->gpus, y->gpus_taken);

	return (fx < fy) - (fx > fy);
}

/* Free GPUs (or all, while it is not known which are free) of each usable node that has any. */
static void fit_list_gpus(struct node_list *nodes, struct kube_fit *fit)
{
	size_t len = 0;

	vec_sort(nodes, nodes_by_free);
	vec_foreach (struct node, node, nodes) {
		if (!node->gpus || !node->matches || *node->taint || node->off)
			continue;
		if (len + 16 > sizeof(fit->free_text)) {
			memcpy(fit->free_text + len, " …", sizeof(" …"));
			return;
		}
		len += (size_t)snprintf(fit->free_text + len, sizeof(fit->free_text) - len, "%s%d",
			len ? " " : "",
			(int)schedule_node_free(node->gpus, node->gpus_taken) % 100000);
	}
}

static bool node_is_of_pool(const struct json *node)
{
	static const char *const labels[] = {"karpenter.sh/nodepool",
		"karpenter.sh/provisioner-name", "eks.amazonaws.com/nodegroup",
		"cloud.google.com/gke-nodepool", "kubernetes.azure.com/agentpool", "agentpool"};

	for (size_t i = 0; i < ARRAY_LEN(labels); i++)
		if (kube_label(node, labels[i]))
			return true;
	return false;
}

static void fit_add_arch(const struct json *node, struct kube_fit *fit)
{
	const char *arch = node_arch(node);
	size_t len = strlen(fit->arch_has);

	if (str_empty(arch) || strstr(fit->arch_has, arch) ||
		len + strlen(arch) + 3 > sizeof(fit->arch_has))
		return;
	snprintf(fit->arch_has + len, sizeof(fit->arch_has) - len, "%s%s", len ? ", " : "", arch);
}

static void fit_measure(const struct kube_case *c, const struct json *spec, struct kube_fit *ret)
{
	const struct kube_items *items = &c->facts->nodes;
	struct node_list nodes = {0};
	struct kube_demand want;

	kube_demand_of(spec, &want);
	*ret = (struct kube_fit){.known = items->known,
		.taken_known = items->known && c->facts->node_pods.known,
		.grows = kube_pods_event(c, "TriggeredScaleUp") ||
			 kube_pods_event(c, "NotTriggerScaleUp") ||
			 kube_pods_event(c, "Nominated") || kube_pods_event(c, "FailedToScaleUp")};
	for (size_t i = 0; i < items->n; i++) {
		node_read(items->v[i], spec, &want, vec_push(&nodes));
		ret->grows = ret->grows || node_is_of_pool(items->v[i]);
		fit_add_arch(items->v[i], ret);
	}
	if (ret->taken_known)
		nodes_take(&c->facts->node_pods, want.resource, &nodes);
	vec_foreach (struct node, node, &nodes)
		fit_count(node, &want, ret);
	fit_list_gpus(&nodes, ret);
	if (!ret->taken_known || !*want.resource)
		ret->gpus_free = -1;
	vec_done(&nodes);
}

/* Pods of one role, or of a run without roles, are alike. */
static const struct kube_fit *fit_of(struct kube_case *c, const char *role, const struct json *spec)
{
	struct kube_fit *fit = c->fits;

	while (fit && !str_eq(fit->role, role))
		fit = fit->next;
	if (fit)
		return fit;
	fit = mem_alloc(1, sizeof(*fit));
	fit_measure(c, spec, fit);
	fit->role = role;
	fit->next = c->fits;
	c->fits = fit;
	return fit;
}

void kube_fits_free(struct kube_fit *fits)
{
	for (struct kube_fit *next; fits; fits = next) {
		next = fits->next;
		free(fits);
	}
}

/* The PodSpec of the Job, or of the first pod where there is no Job; or NULL. */
static const struct json *pod_spec_of(const struct kube_facts *facts)
{
	const struct json *job = facts->job ? facts->job : facts->last_seen;
	const struct json *spec = kube_at(job, "spec.template.spec");

	if (spec)
		return spec;
	return facts->pods.n ? json_get(facts->pods.v[0], "spec") : NULL;
}

/*
 * Resources that are free now
 */

enum { FREE_PODS_MAX = 1000 * 1000 };

/* How many pods fit into what is left of one resource. */
static int64_t free_times(int64_t all, int64_t taken, int64_t want)
{
	return want > 0 ? schedule_node_free(all, taken) / want : FREE_PODS_MAX;
}

static int64_t free_pods(const struct node *node, const struct kube_demand *want)
{
	const int64_t times[] = {
		free_times(node->gpus, node->gpus_taken, want->gpus),
		free_times(node->cpu, node->cpu_taken, want->cpu_milli),
		free_times(node->memory, node->memory_taken, want->memory),
	};
	int64_t least = FREE_PODS_MAX;

	for (size_t i = 0; i < ARRAY_LEN(times); i++)
		least = times[i] < least ? times[i] : least;
	return least;
}

/* The model of free GPUs; one that differs from what is known makes it unknown. */
static void free_take_model(const char *model, bool *has_model, struct kube_free *ret)
{
	if (!*has_model)
		snprintf(ret->model, sizeof(ret->model), "%s", model ? model : "");
	else if (!model || strncmp(ret->model, model, sizeof(ret->model) - 1) != 0)
		ret->model[0] = '\0';
	*has_model = true;
}

/* false: it is no node for such a pod. */
static bool free_count(const struct node *node, const struct kube_demand *want,
	const struct json *json, bool *has_model, struct kube_free *ret)
{
	int64_t gpus = schedule_node_free(node->gpus, node->gpus_taken);

	if (!node->matches || *node->taint || node->off || !node_is_large(node, want))
		return false;
	ret->nodes++;
	ret->gpus = kube_add(ret->gpus, gpus);
	ret->pods = kube_add(ret->pods, free_pods(node, want));
	if (gpus > 0)
		free_take_model(kube_gpu_model(json), has_model, ret);
	return true;
}

void kube_free_of(const struct kube_facts *facts, const struct json *spec, struct kube_free *ret,
	struct strv *ret_names)
{
	const struct kube_items *items = &facts->nodes;
	struct node_list nodes = {0};
	struct kube_demand want;
	bool has_model = false;

	*ret = (struct kube_free){.known = items->known && facts->node_pods.known};
	kube_demand_of(spec, &want);
	for (size_t i = 0; ret->known && i < items->n; i++)
		node_read(items->v[i], spec, &want, vec_push(&nodes));
	if (ret->known)
		nodes_take(&facts->node_pods, want.resource, &nodes);
	for (size_t i = 0; i < nodes.n; i++)
		if (free_count(&nodes.v[i], &want, items->v[i], &has_model, ret) &&
			kube_str_at(items->v[i], "metadata.name"))
			strv_add(ret_names, kube_str_at(items->v[i], "metadata.name"));
	vec_done(&nodes);
}

/*
 * The scheduler's sentence (kube-scheduler, framework.FitError): "0/N nodes are available: K
 * reason, K reason. preemption: …". Reasons have changed a little from version to version.
 */

static const struct {
	const char *word;
	enum kube_obstacle obstacle;
} decision_words[] = {
	{"Insufficient cpu", KUBE_NO_CPU},
	{"Insufficient memory", KUBE_NO_MEMORY},
	{"Insufficient ephemeral-storage", KUBE_NO_DISK},
	{"Insufficient ", KUBE_NO_GPU},
	{"Too many pods", KUBE_NO_SLOT},
	{"node.kubernetes.io/unschedulable", KUBE_CORDONED},
	{"node.kubernetes.io/not-ready", KUBE_NOT_READY},
	{"node.kubernetes.io/unreachable", KUBE_NOT_READY},
	{"taint", KUBE_NO_TOLERATION},
	{"node affinity/selector", KUBE_NO_MATCH},
	{"node selector", KUBE_NO_MATCH},
	{"PersistentVolume", KUBE_NO_VOLUME},
	{"persistent volume", KUBE_NO_VOLUME},
	{"persistentvolumeclaim", KUBE_NO_VOLUME},
	{"volume", KUBE_NO_VOLUME},
	{"were unschedulable", KUBE_CORDONED},
	{"were not ready", KUBE_NOT_READY},
};

static enum kube_obstacle decision_obstacle(const char *reason)
{
	for (size_t i = 0; i < ARRAY_LEN(decision_words); i++)
		if (strstr(reason, decision_words[i].word))
			return decision_words[i].obstacle;
	return KUBE_OTHER;
}

/* "{team: vision}" is team=vision, "{gpu: }" gpu. */
static void decision_taint(const char *reason, char out[static 128])
{
	AUTO_FREE char *inner = kube_between(reason, "{", "}");
	char *value = inner ? strstr(inner, ": ") : NULL;

	if (!inner || *out)
		return;
	if (value) {
		*value = '\0';
		value += 2;
	}
	snprintf(out, 128, "%s%s%s", inner, str_empty(value) ? "" : "=", value ? value : "");
}

static void decision_volume(const char *reason, struct kube_decision *ret)
{
	AUTO_FREE char *claim = kube_between(reason, "persistentvolumeclaim \"", "\"");

	if (claim && !*ret->claim)
		snprintf(ret->claim, sizeof(ret->claim), "%s", claim);
	ret->claim_missing = ret->claim_missing || (claim && strstr(reason, "not found"));
	ret->claim_unbound = ret->claim_unbound || strstr(reason, "unbound immediate");
}

static void decision_reason(const char *reason, int count, struct kube_decision *ret)
{
	enum kube_obstacle obstacle = decision_obstacle(reason);
	size_t len = strlen(ret->rest);

	if (ret->counts[obstacle] < COUNT_MAX)
		ret->counts[obstacle] += count < COUNT_MAX ? count : COUNT_MAX;
	if (obstacle == KUBE_NO_GPU && !*ret->resource)
		snprintf(ret->resource, sizeof(ret->resource), "%s",
			strstr(reason, "Insufficient ") + strlen("Insufficient "));
	else if (obstacle == KUBE_NO_TOLERATION)
		decision_taint(reason, ret->taint);
	else if (obstacle == KUBE_NO_VOLUME)
		decision_volume(reason, ret);
	else if (obstacle == KUBE_OTHER)
		snprintf(ret->rest + len, sizeof(ret->rest) - len, "%s%d %s", len ? ", " : "",
			count, reason);
}

/* Where the reasons end: at a full stop that is followed by a blank or by nothing. */
static size_t decision_reasons_len(const char *text)
{
	size_t len = 0;

	while (text[len] && !(text[len] == '.' && (!text[len + 1] || text[len + 1] == ' ')))
		len++;
	return len;
}

/* A comma inside of a reason is not followed by a number. */
static size_t decision_reason_len(const char *text)
{
	const char *comma = text;

	while ((comma = strstr(comma, ", "))) {
		if (str_is_digit(comma[2]))
			return (size_t)(comma - text);
		comma += 2;
	}
	return strlen(text);
}

static void decision_reasons(char *text, struct kube_decision *ret)
{
	while (*text) {
		size_t len = decision_reason_len(text);
		bool more = text[len];
		int count = (int)kube_number(text, ret->nodes);

		text[len] = '\0';
		while (str_is_digit(*text) || *text == ' ') {
			text++;
			len--;
		}
		if (*text)
			decision_reason(text, count, ret);
		if (!more)
			return;
		text += len + 2;
	}
}

void kube_decision_parse(const char *text, struct kube_decision *ret)
{
	static const char available[] = " nodes are available:";
	const char *at = text ? strstr(text, available) : NULL;
	const char *slash = text ? strchr(text, '/') : NULL;

	*ret = (struct kube_decision){0};
	if (!text)
		return;
	if (!at || !slash || slash > at) {
		decision_volume(text, ret);
		ret->parsed = ret->claim_missing || ret->claim_unbound;
		ret->counts[KUBE_NO_VOLUME] = ret->parsed;
		return;
	}
	ret->nodes = (int)kube_number(slash + 1, 0);
	at += strlen(available);
	at += strspn(at, " ");
	AUTO_FREE char *reasons = mem_strndup(at, decision_reasons_len(at));
	decision_reasons(reasons, ret);
	ret->parsed = true;
}

/*
 * From both to a sentence
 */

struct search {
	const struct kube_case *c;
	const struct json *spec;
	struct kube_demand want;
	struct kube_decision decision;
	const struct kube_fit *fit;
	struct kube_why *why;
};

static void schedule_gpu_words(const struct search *s, const char *free, char out[static 160])
{
	int n = (int)s->want.gpus;

	if (kube_is_gpu(s->want.resource))
		snprintf(out, 160, "%d %sGPU%s", n, free, n == 1 ? "" : "s");
	else
		snprintf(out, 160, "%d %s%s", n, free, s->want.resource);
}

/* " (a=b, c)", or nothing. The caller frees. */
static char *selector_text(const struct json *spec)
{
	const struct json *selector = json_get(spec, "nodeSelector");
	AUTO_BUF struct buf out = buf_with(KUBE_SENTENCE_MAX);

	if (selector && json_kind(selector) == JSON_OBJECT)
		json_foreach (m, selector)
			buf_addf(&out, "%s%s=%s", out.len ? ", " : "", json_key(m),
				json_str(m) ? json_str(m) : "");
	for (const struct json *m = node_pod_affinity(spec); m; m = json_next(m))
		if (json_get_str(m, "topologyKey"))
			buf_addf(&out, "%s%s", out.len ? ", " : "", json_get_str(m, "topologyKey"));
	return out.len ? mem_printf(" (%s)", out.data) : mem_strdup("");
}

/* More than any node has. A cluster that grows may get a larger one. */
static void never_gpu(struct search *s)
{
	char want[160];

	schedule_gpu_words(s, "", want);
	if (!s->fit->with_gpu)
		kube_why_set(s->why, E_SCHED_IMPOSSIBLE, "no node of the cluster has %s",
			s->want.resource);
	else if (!s->fit->gpus_max)
		kube_why_set(s->why, E_SCHED_IMPOSSIBLE,
			"no node with %s matches what else the run wants of its node",
			s->want.resource);
	else
		kube_why_set(s->why, E_SCHED_IMPOSSIBLE, "no node has %s: the largest has %d", want,
			(int)s->fit->gpus_max);
	if (s->fit->gpus_max)
		kube_why_hint(s->why, "dlrun submit --gpus %d …", (int)s->fit->gpus_max);
	else
		kube_why_hint(s->why, "dlrun submit -g 0 …");
}

/* More memory, CPUs or disk than any node has; false: some node has enough. */
static bool never_large(struct search *s)
{
	const struct kube_fit *fit = s->fit;
	char want[24], has[24];

	if (s->want.memory && fit->memory_max < s->want.memory) {
		kube_why_set(s->why, E_SCHED_IMPOSSIBLE,
			"no node has %s of memory: the largest has %s",
			kube_bytes_text(s->want.memory, want),
			kube_bytes_text(fit->memory_max, has));
		kube_why_hint(s->why, "dlrun submit --memory %s …", has);
	} else if (fit->cpu_max < s->want.cpu_milli) {
		kube_why_set(s->why, E_SCHED_IMPOSSIBLE,
			"no node has %.4g CPUs: the largest has %.4g",
			(double)s->want.cpu_milli / 1000, (double)fit->cpu_max / 1000);
		kube_why_hint(
			s->why, "dlrun submit --cpus %d …", (int)(fit->cpu_max / 1000 % 100000));
	} else if (fit->disk_max && fit->disk_max < s->want.disk) {
		kube_why_set(s->why, E_SCHED_IMPOSSIBLE,
			"no node has %s of disk for pods: the largest has %s",
			kube_bytes_text(s->want.disk, want), kube_bytes_text(fit->disk_max, has));
		kube_why_hint(s->why, "resources: {disk: %s} in dlrun.yaml", has);
	} else {
		return false;
	}
	return true;
}

static void never_matches(struct search *s)
{
	const char *arch = json_get_str(json_get(s->spec, "nodeSelector"), "kubernetes.io/arch");
	const char *has = s->fit->arch_has;
	AUTO_FREE char *selector = selector_text(s->spec);

	if (arch && !s->fit->right_arch) {
		kube_why_set(s->why, E_SCHED_ARCH, "no node has CPU architecture %s: there is %s",
			arch, *has ? has : "another");
		kube_why_hint(s->why, "platform: linux/%.*s in the target of dlrun.yaml",
			(int)strcspn(has, ","), has);
		return;
	}
	kube_why_set(s->why, E_SCHED_SELECTOR,
		"none of the %d nodes has the labels that it wants%s", s->fit->nodes, selector);
	kube_why_hint(s->why, "kubectl get nodes --show-labels");
}

static const char hint_taint[] =
	"tolerations: of a GPU type or the overlay in dlrun.yaml, if you may use them";

/* Where no node that is there could ever run it: whether the cluster may have one that can. */
static bool why_grows(struct search *s)
{
	const struct kube_growth *growth = s->c->facts->growth;
	bool acts = growth && growth->applies && !growth->is_silent;

	s->why->is_bought = acts && growth->group;
	return s->fit->grows || s->why->is_bought || (acts && growth->may_later);
}

/* With all nodes known: whether it could run at all. */
static bool why_never(struct search *s)
{
	const struct kube_fit *fit = s->fit;

	if (!fit->known || fit->fit_ever || !fit->nodes || why_grows(s))
		return false;
	if (!fit->matching) {
		never_matches(s);
	} else if (fit->tainted) {
		kube_why_set(s->why, E_SCHED_TAINT,
			"%s that could run it %s kept for others by the taint %s",
			fit->tainted == 1 ? "the only node" : "the nodes",
			fit->tainted == 1 ? "is" : "are", fit->taint);
		kube_why_hint(s->why, "%s", hint_taint);
	} else if (s->want.gpus && fit->gpus_max < s->want.gpus) {
		never_gpu(s);
	} else if (!never_large(s)) {
		return false;
	}
	s->why->never_fits = s->why->needs_help = true;
	return true;
}

/*
 * Not now
 */

static void now_gpu(struct search *s)
{
	char want[160];

	schedule_gpu_words(s, "free ", want);
	if (s->want.gpus == 1 && kube_is_gpu(s->want.resource))
		kube_why_set(s->why, E_SCHED_GPU, "no node has a free GPU");
	else if (s->want.gpus)
		kube_why_set(s->why, E_SCHED_GPU, "no node has %s", want);
	else
		kube_why_set(
			s->why, E_SCHED_GPU, "no node has enough free %s", s->decision.resource);
}

static void now_memory(struct search *s)
{
	char text[24];

	kube_why_set(s->why, E_SCHED_MEMORY, "no node has %s of free memory",
		s->want.memory ? kube_bytes_text(s->want.memory, text) : "so much");
	if (s->fit->taken_known)
		kube_why_evidence(s->why, "most that is free on one: %s",
			kube_bytes_text(s->fit->memory_free, text));
}

static void now_cpu(struct search *s)
{
	if (s->want.cpu_milli)
		kube_why_set(s->why, E_SCHED_CPU, "no node has %.4g free CPUs",
			(double)s->want.cpu_milli / 1000);
	else
		kube_why_set(s->why, E_SCHED_CPU, "no node has enough free CPUs");
	if (s->fit->taken_known)
		kube_why_evidence(
			s->why, "most that are free on one: %.4g", (double)s->fit->cpu_free / 1000);
}

static void now_disk(struct search *s)
{
	char text[24];

	kube_why_set(s->why, E_SCHED_DISK, "no node has %s of free disk for pods",
		s->want.disk ? kube_bytes_text(s->want.disk, text) : "enough");
}

static void now_taint(struct search *s)
{
	const char *taint = *s->decision.taint ? s->decision.taint : s->fit->taint;

	kube_why_set(s->why, E_SCHED_TAINT, "the nodes that could run it %s%s",
		*taint ? "are kept for others by the taint "
		       : "have taints that it does not tolerate",
		taint);
	kube_why_hint(s->why, "%s", hint_taint);
	s->why->needs_help = true;
}

static void now_match(struct search *s)
{
	AUTO_FREE char *selector = selector_text(s->spec);

	kube_why_set(s->why, E_SCHED_SELECTOR, "no node has the labels that it wants%s", selector);
	kube_why_hint(s->why, "kubectl get nodes --show-labels");
	s->why->needs_help = true;
}

/* The scheduler does not say which claim. */
static void now_unbound(struct search *s)
{
	AUTO_BUF struct buf claims = buf_with(KUBE_SENTENCE_MAX);

	for (const struct json *m = kube_first(s->spec, "volumes"); m; m = json_next(m)) {
		const char *name = json_get_str(json_get(m, "persistentVolumeClaim"), "claimName");
		AUTO_FREE char *shown = str_empty(name) ? NULL : str_shown(name);

		if (shown)
			buf_addf(&claims, "%s\"%s\"", claims.len ? " or " : "", shown);
	}
	kube_why_set(s->why, E_SCHED_VOLUME, "%s%s is not bound to a volume yet",
		claims.len ? "the volume claim " : "a volume claim of it", claims.data);
}

static void now_volume(struct search *s)
{
	const char *ns = kube_case_namespace(s->c);

	if (s->decision.claim_missing)
		kube_why_set(s->why, E_SCHED_VOLUME,
			"there is no volume claim \"%s\" in namespace %s", s->decision.claim, ns);
	else if (s->decision.claim_unbound)
		now_unbound(s);
	else
		kube_why_set(s->why, E_SCHED_VOLUME, "no node can use its volumes");
	s->why->needs_help = s->decision.claim_missing;
	kube_why_hint(
		s->why, "kubectl -n %s %s pvc", ns, s->decision.claim_missing ? "get" : "describe");
}

/* The most telling reason comes first: a node without the right labels may lack GPUs, too, but a
 * node with free GPUs is what is waited for. */
static bool why_now(struct search *s)
{
	static const struct {
		enum kube_obstacle obstacle;
		void (*fn)(struct search *s);
		const char *sentence; /* where there is no function */
	} rows[] = {
		{KUBE_NO_VOLUME, now_volume},
		{KUBE_NO_GPU, now_gpu},
		{KUBE_NO_MEMORY, now_memory},
		{KUBE_NO_CPU, now_cpu},
		{KUBE_NO_DISK, now_disk},
		{KUBE_NO_SLOT, NULL, "no node takes one more pod: all have as many as they may"},
		{KUBE_OTHER, NULL, "no node takes it now: "},
		{KUBE_NO_TOLERATION, now_taint},
		{KUBE_CORDONED, NULL, "the nodes that could run it are out of service just now"},
		{KUBE_NOT_READY, NULL, "the nodes that could run it are out of service just now"},
		{KUBE_NO_MATCH, now_match},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		if (!s->decision.counts[rows[i].obstacle])
			continue;
		if (rows[i].fn)
			rows[i].fn(s);
		else
			kube_why_set(s->why, E_SCHED, "%s%s", rows[i].sentence,
				rows[i].obstacle == KUBE_OTHER ? s->decision.rest : "");
		return true;
	}
	return false;
}

/*
 * Evidence
 */

static void count_evidence(const struct search *s)
{
	const struct kube_decision *v = &s->decision;
	const struct {
		enum kube_obstacle obstacle;
		const char *what, *which;
	} rows[] = {
		{KUBE_NO_GPU, "without free ", *v->resource ? v->resource : "GPUs"},
		{KUBE_NO_MEMORY, "without free memory", ""},
		{KUBE_NO_CPU, "without free CPUs", ""},
		{KUBE_NO_DISK, "without free disk", ""},
		{KUBE_NO_SLOT, "with too many pods", ""},
		{KUBE_NO_TOLERATION, *v->taint ? "tainted " : "tainted", v->taint},
		{KUBE_NO_MATCH, "with other labels than it wants", ""},
		{KUBE_NO_VOLUME, "without its volumes", ""},
		{KUBE_CORDONED, "cordoned", ""},
		{KUBE_NOT_READY, "not ready", ""},
	};
	AUTO_BUF struct buf out = buf_with(KUBE_EVIDENCE_LINE_MAX * 2);

	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (v->counts[rows[i].obstacle] > 0)
			buf_addf(&out, "%s%d %s%s", out.len ? ", " : "",
				v->counts[rows[i].obstacle], rows[i].what, rows[i].which);
	if (out.len && v->nodes)
		kube_why_evidence(s->why, "%d node%s: %s%s%s", v->nodes, v->nodes == 1 ? "" : "s",
			out.data, *v->rest ? ", " : "", v->rest);
}

static void fit_evidence(const struct search *s)
{
	const struct kube_fit *fit = s->fit;
	const char *resource = kube_is_gpu(s->want.resource) ? "GPUs" : s->want.resource;

	if (!fit->known || !s->want.gpus || !fit->with_gpu)
		return;
	kube_why_evidence(s->why, "%d node%s: %d ha%s %s%s%s%s", fit->nodes,
		fit->nodes == 1 ? "" : "s", fit->with_gpu, fit->with_gpu == 1 ? "s" : "ve",
		resource, *fit->free_text ? "; " : "",
		!*fit->free_text   ? ""
		: fit->taken_known ? "free per node "
				   : "per node ",
		fit->free_text);
	if (fit->tainted)
		kube_why_evidence(s->why, "%d more %s tainted %s", fit->tainted,
			fit->tainted == 1 ? "is" : "are", fit->taint);
	if (fit->gpus_free <= 0 || fit->gpus_free >= s->want.gpus || s->why->never_fits)
		return;
	kube_why_evidence(s->why, "fits now: --gpus %d", (int)fit->gpus_free);
	kube_why_hint(s->why, "dlrun submit --gpus %d …", (int)fit->gpus_free);
}

static void scale_evidence(struct search *s)
{
	const struct kube_event *up = kube_pods_event(s->c, "TriggeredScaleUp");
	const struct kube_event *not_up = kube_pods_event(s->c, "NotTriggerScaleUp");
	const struct kube_event *before = kube_pods_event(s->c, "Preempted");

	if (before)
		kube_why_evidence(
			s->why, "it ran before and had to make room: %s", before->message);
	if (up && (!not_up || up->last_ms >= not_up->last_ms)) {
		kube_why_evidence(s->why, "the cluster is adding a node: %s", up->message);
		s->why->needs_help = false;
	} else if (not_up) {
		kube_why_evidence(s->why, "the cluster adds no node: %s", not_up->message);
	}
}

void kube_growth_done(struct kube_growth *growth)
{
	if (!growth)
		return;
	free(growth->group);
	strv_done(&growth->reasons);
}

static void growth_expected_evidence(struct search *s, const struct kube_growth *growth)
{
	int64_t left_ms = growth->expected_ms - s->c->facts->now_ms;
	AUTO_FREE char *group = str_shown(growth->group);
	char time[CLOCK_TEXT_SIZE], left[32];

	clock_format(growth->expected_ms, time);
	if (!growth->expected_ms)
		kube_why_evidence(s->why, "a node of group %s is bought for it", group);
	else if (left_ms >= 0)
		kube_why_evidence(s->why, "a node of group %s is expected in %s, at %.5s UTC",
			group, duration_text(left_ms, left), time + strlen("2026-11-27T"));
	else
		kube_why_evidence(s->why, "a node of group %s was expected %s ago, at %.5s UTC",
			group, duration_text(-left_ms, left), time + strlen("2026-11-27T"));
}

static void growth_evidence(struct search *s, const struct kube_growth *growth)
{
	char time[CLOCK_TEXT_SIZE];

	if (growth->is_silent) {
		clock_format(growth->updated_ms, time);
		kube_why_evidence(s->why,
			"the cluster's autoscaler has been silent since %.10s %.5s UTC", time,
			time + strlen("2026-11-27T"));
		return;
	}
	if (growth->group && growth->applies) {
		growth_expected_evidence(s, growth);
		s->why->needs_help = false;
	} else if (growth->group) {
		AUTO_FREE char *group = str_shown(growth->group);
		kube_why_evidence(s->why,
			"the cluster's autoscaler would buy a node of group %s, but only plans",
			group);
	}
	for (size_t i = 0; i < growth->reasons.n && i < GROWTH_REASONS_SHOWN; i++)
		kube_why_evidence(s->why, "no node is bought of %s", growth->reasons.v[i]);
}

void kube_why_schedule(
	struct kube_case *c, const struct json *pod, const char *text, struct kube_why *why)
{
	const char *role = kube_label(pod, KUBE_LABEL_ROLE);
	struct search s = {
		.c = c, .spec = role ? json_get(pod, "spec") : pod_spec_of(c->facts), .why = why};

	kube_demand_of(s.spec, &s.want);
	kube_decision_parse(text, &s.decision);
	s.fit = fit_of(c, role, s.spec);
	if (c->facts->growth)
		growth_evidence(&s, c->facts->growth);
	if (!s.decision.claim_missing && why_never(&s)) {
		fit_evidence(&s);
	} else if (why_now(&s)) {
		fit_evidence(&s);
		count_evidence(&s);
	} else {
		kube_why_set(why, E_SCHED, "no node takes it now%s%s", str_empty(text) ? "" : ": ",
			str_empty(text) ? "" : text);
	}
	scale_evidence(&s);
}
