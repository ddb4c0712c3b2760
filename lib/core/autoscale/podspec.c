/* SPDX-License-Identifier: Apache-2.0 */
#include "core/autoscale/podspec.h"

#include <stdlib.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/autoscale/fit.h"
#include "core/autoscale/snapshot.h"
#include "core/autoscale/snapshot_words.h"
#include "kube/status/object.h"

enum { MARKS_MAX = 1000, NAME_MAX_SHOWN = 100 };
#define HOST_KEY      "kubernetes.io/hostname"
#define PODSPEC_APART "podAntiAffinity by %.*s"

static void podspec_mark_done(struct podspec_mark *mark)
{
	free(mark->text);
	free(mark->topology);
	strv_done(&mark->namespaces);
	scale_shape_done(&mark->selector);
}

void podspec_done(struct podspec *p)
{
	vec_foreach (struct podspec_mark, mark, &p->marks)
		podspec_mark_done(mark);
	vec_done(&p->marks);
	vec_foreach (struct podspec_mark, tie, &p->ties)
		podspec_mark_done(tie);
	vec_done(&p->ties);
	map_done(&p->known_marks);
	map_done(&p->known_ties);
	map_done(&p->claims);
	map_done(&p->volumes);
}

void podspec_pairs(const struct json *object, struct scale_pairs *ret)
{
	for (const struct json *m = json_first(object); m; m = json_next(m))
		if (json_key(m) && json_str(m))
			scale_pairs_add(ret, json_key(m), json_str(m));
	scale_pairs_sort(ret);
}

void podspec_labels(const struct podspec_pod *pod, struct scale_pairs *ret)
{
	podspec_pairs(pod->labels, ret);
	if (pod->jobset && !scale_pair(ret, JOBSET_NAME)) {
		scale_pairs_add(ret, JOBSET_NAME, pod->jobset);
		scale_pairs_sort(ret);
	}
}

/* Amounts. */

static void podspec_add(struct scale_amounts *to, const struct scale_amounts *one)
{
	for (int r = 0; r < SCALE_RESOURCES_MAX; r++)
		to->of[r] = to->of[r] > INT64_MAX / 2 - one->of[r] ? INT64_MAX / 2
								   : to->of[r] + one->of[r];
}

static void podspec_raise(struct scale_amounts *to, const struct scale_amounts *one)
{
	for (int r = 0; r < SCALE_RESOURCES_MAX; r++)
		to->of[r] = one->of[r] > to->of[r] ? one->of[r] : to->of[r];
}

/* Set those of a list of requests. What cannot be read, or has no space, is named. */
static void podspec_read(struct podspec *p, const struct json *list, struct scale_amounts *ret,
	struct strv *unsupported)
{
	for (const struct json *m = json_first(list); m; m = json_next(m)) {
		int resource = scale_resource(p->model, json_key(m));
		if (resource >= 0 && snapshot_amount(m, resource, true, &ret->of[resource]))
			continue;
		strv_addf(unsupported, "a request of %.*s", NAME_MAX_SHOWN, json_key(m));
	}
}

/* Limits are requests where there are none (as the API server sets them in pods, but not in
 * templates). */
static void podspec_resources(struct podspec *p, const struct json *owner,
	struct scale_amounts *ret, struct strv *unsupported)
{
	const struct json *resources = json_get(owner, "resources");

	podspec_read(p, json_get(resources, "limits"), ret, unsupported);
	podspec_read(p, json_get(resources, "requests"), ret, unsupported);
}

static void podspec_request(struct podspec *p, const struct json *spec, struct scale_shape *ret)
{
	struct scale_amounts sum = {0}, sidecars = {0}, most = {0}, overhead = {0}, limits = {0};
	const struct json *of_pod = json_get(spec, "resources");
	const struct json *inits = json_get(spec, "initContainers");
	const struct json *all = json_get(spec, "containers");

	for (const struct json *c = json_first(inits); c; c = json_next(c)) {
		struct scale_amounts one = {0};
		podspec_resources(p, c, &one, &ret->unsupported);
		if (str_eq(json_get_str(c, "restartPolicy"), "Always")) {
			podspec_add(&sidecars, &one);
			podspec_raise(&most, &sidecars);
		} else {
			podspec_add(&one, &sidecars);
			podspec_raise(&most, &one);
		}
	}
	sum = sidecars;
	for (const struct json *c = json_first(all); c; c = json_next(c)) {
		struct scale_amounts one = {0};
		podspec_resources(p, c, &one, &ret->unsupported);
		podspec_add(&sum, &one);
	}
	podspec_raise(&sum, &most);
	podspec_read(p, json_get(of_pod, "limits"), &limits, &ret->unsupported);
	for (int r = 0; r < SCALE_RESOURCES_MAX; r++)
		sum.of[r] = sum.of[r] ? sum.of[r] : limits.of[r];
	podspec_read(p, json_get(of_pod, "requests"), &sum, &ret->unsupported);
	podspec_read(p, json_get(spec, "overhead"), &overhead, &ret->unsupported);
	podspec_add(&sum, &overhead);
	sum.of[SCALE_PODS] = 1;
	ret->request = sum;
}

/* Constraints. */

void podspec_taints(const struct json *taints, struct scale_taints *ret)
{
	for (const struct json *m = json_first(taints); m; m = json_next(m)) {
		const char *key = json_get_str(m, "key"), *value = json_get_str(m, "value");
		int effect = SCALE_NO_SCHEDULE;
		if (!key || !scale_word(snapshot_effects, json_get_str(m, "effect"), &effect))
			continue;
		scale_taints_add(ret, key, value, effect);
	}
}

static void podspec_tolerations(
	const struct json *list, struct scale_tolerations *ret, struct strv *unsupported)
{
	for (const struct json *m = json_first(list); m; m = json_next(m)) {
		const char *key = json_get_str(m, "key"), *value = json_get_str(m, "value");
		const char *op = json_get_str(m, "operator");
		bool exists = str_eq(op, "Exists");
		int effect = -1;
		const char *word = json_get_str(m, "effect");
		if (!str_empty(word) && !scale_word(snapshot_effects, word, &effect))
			continue;
		if (!str_empty(op) && !exists && !str_eq(op, "Equal")) {
			strv_addf(unsupported, "tolerations with the operator %.*s", NAME_MAX_SHOWN,
				op);
			continue;
		}
		if (str_empty(key) && !exists)
			continue; /* the API server does not accept it */
		*vec_push(ret) = (struct scale_toleration){str_empty(key) ? NULL : mem_strdup(key),
			exists ? NULL : mem_strdup(value ? value : ""), effect};
	}
}

static void podspec_rules(const struct json *list, const char *only_key, struct scale_term *ret,
	struct strv *unsupported)
{
	for (const struct json *m = json_first(list); m; m = json_next(m)) {
		const char *key = only_key ? only_key : json_get_str(m, "key");
		int op = 0;
		if (!key || !scale_word(snapshot_ops, json_get_str(m, "operator"), &op)) {
			strv_add(unsupported, "nodeAffinity with an unknown operator");
			continue;
		}
		struct scale_rule *rule = vec_push(ret);
		rule->key = mem_strdup(key);
		rule->op = op;
		for (const struct json *v = json_first(json_get(m, "values")); v; v = json_next(v))
			strv_add(&rule->values, json_str(v) ? json_str(v) : "");
	}
}

static void podspec_affinity(const struct json *spec, struct scale_shape *ret)
{
	const struct json *terms = kube_first(spec,
		"affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution."
		"nodeSelectorTerms");

	for (; terms; terms = json_next(terms)) {
		struct scale_term *term = vec_push(&ret->affinity);
		podspec_rules(json_get(terms, "matchExpressions"), NULL, term, &ret->unsupported);
		podspec_rules(
			json_get(terms, "matchFields"), SCALE_NODE_NAME, term, &ret->unsupported);
	}
}

void podspec_needs_label(struct scale_shape *shape, const char *key)
{
	bool is_any = shape->affinity.n == 0;

	if (is_any)
		vec_push(&shape->affinity);
	vec_foreach (struct scale_term, term, &shape->affinity)
		if (is_any || term->n) /* one without rules selects nothing */
			*vec_push(term) =
				(struct scale_rule){.key = mem_strdup(key), .op = SCALE_EXISTS};
}

/* Required anti-affinity. */

static const struct json *podspec_anti_affinity(const struct json *spec)
{
	return kube_first(
		spec, "affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution");
}

static const char *podspec_topology(const struct json *term)
{
	const char *key = json_get_str(term, "topologyKey");

	return key ? key : "?";
}

bool podspec_is_pair(const struct scale_rule *rule)
{
	return rule->op == SCALE_IN && rule->values.n == 1;
}

static char *podspec_mark_text(const struct podspec_mark *mark)
{
	AUTO_BUF struct buf text = buf_with(64 << 10);

	for (size_t i = 0; i < mark->namespaces.n; i++)
		buf_addf(&text, "%s%s", i ? "+" : "", mark->namespaces.v[i]);
	buf_adds(&text, mark->namespaces.n ? "/" : "*/");
	vec_foreach (const struct scale_term, term, &mark->selector.affinity)
		vec_foreach (const struct scale_rule, rule, term) {
			buf_addf(&text, "%s%s", rule == term->v ? "" : ",", rule->key);
			if (!podspec_is_pair(rule))
				buf_addf(&text, " %s ", snapshot_ops[rule->op]);
			for (size_t i = 0; i < rule->values.n; i++)
				buf_addf(&text, "%c%s", i ? '|' : '=', rule->values.v[i]);
		}
	return buf_take(&text);
}

/* Where it is not known of which namespaces the pods are, they may be of each. */
static void podspec_mark_namespaces(
	const char *kube_namespace, const struct json *term, struct strv *ret)
{
	if (json_get(term, "namespaceSelector"))
		return;
	for (const struct json *m = kube_first(term, "namespaces"); m; m = json_next(m))
		strv_add(ret, json_str(m) ? json_str(m) : "");
	if (!ret->n)
		strv_add(ret, kube_namespace);
	strv_sort(ret);
}

static void podspec_selector(const struct json *selector, struct scale_shape *ret)
{
	AUTO_STRV struct strv unknown = {0}; /* the API server accepts none */
	AUTO(scale_pairs_done) struct scale_pairs labels = {0};
	struct scale_term all = {0};

	podspec_pairs(json_get(selector, "matchLabels"), &labels);
	vec_foreach (const struct scale_pair, pair, &labels) {
		struct scale_rule *rule = vec_push(&all);
		*rule = (struct scale_rule){.key = mem_strdup(pair->key), .op = SCALE_IN};
		strv_add(&rule->values, pair->value);
	}
	podspec_rules(json_get(selector, "matchExpressions"), NULL, &all, &unknown);
	if (all.n)
		*vec_push(&ret->affinity) = all;
}

/* The number of the one like that mark, which is taken, from 0; -1: there are too many. */
static int32_t podspec_remember(
	struct podspec_marks *marks, size_t max, struct map *known, struct podspec_mark *take)
{
	take->text = podspec_mark_text(take);
	AUTO_FREE char *key = mem_printf("%s %s", take->topology ? take->topology : "", take->text);
	intptr_t number = (intptr_t)map_get(known, key);

	if (number || marks->n >= max) {
		podspec_mark_done(take);
		return (int32_t)number - 1;
	}
	*vec_push(marks) = *take;
	map_put(known, key, (void *)(intptr_t)marks->n);
	return (int32_t)marks->n - 1;
}

static const struct podspec_mark *podspec_add_mark(struct podspec *p, const char *kube_namespace,
	const struct json *term, const char *topology)
{
	struct podspec_mark mark = {.topology = mem_strdup(topology)};

	podspec_mark_namespaces(kube_namespace, term, &mark.namespaces);
	podspec_selector(json_get(term, "labelSelector"), &mark.selector);
	int32_t number = podspec_remember(&p->marks, MARKS_MAX, &p->known_marks, &mark);
	return number < 0 ? NULL : &p->marks.v[number];
}

/* By host, and by labels: such a term is a mark. */
static bool podspec_is_mark(const struct json *term)
{
	const struct json *namespaces = json_get(term, "namespaceSelector");

	return str_eq(json_get_str(term, "topologyKey"), HOST_KEY) &&
	       json_get(term, "labelSelector") && json_count(namespaces) == 0 &&
	       !json_get(term, "matchLabelKeys") && !json_get(term, "mismatchLabelKeys");
}

static void podspec_apart(struct podspec *p, const char *kube_namespace, const struct json *spec,
	struct scale_shape *ret)
{
	for (const struct json *term = podspec_anti_affinity(spec); term; term = json_next(term)) {
		const struct podspec_mark *mark =
			podspec_is_mark(term) ? podspec_add_mark(p, kube_namespace, term, NULL)
					      : NULL;
		if (mark)
			strv_add(&ret->apart, mark->text);
		else
			strv_addf(&ret->unsupported, PODSPEC_APART, NAME_MAX_SHOWN,
				podspec_topology(term));
	}
}

/* Required affinity. A pod that its own term selects may go anywhere while there is no other that
 * it selects, and then to where those are. */

bool podspec_selects(const struct podspec_mark *mark, const char *kube_namespace,
	const struct scale_pairs *labels)
{
	const struct scale_taints no_taints = {0};
	const struct scale_machine pod = {.labels = labels, .taints = &no_taints};

	return (!mark->namespaces.n || strv_find(&mark->namespaces, kube_namespace) >= 0) &&
	       scale_affinity_holds(&mark->selector.affinity, &pod);
}

/* The API server has added these to the selector of a pod, and not to that of a template. */
static void podspec_label_keys(
	const struct json *keys, const struct scale_pairs *labels, struct scale_shape *selector)
{
	for (const struct json *m = json_first(keys); m; m = json_next(m)) {
		const char *value = json_str(m) ? scale_pair(labels, json_str(m)) : NULL;
		bool is_known = !value;
		vec_foreach (const struct scale_term, term, &selector->affinity)
			vec_foreach (const struct scale_rule, rule, term)
				is_known |= rule->op == SCALE_IN && str_eq(rule->key, json_str(m));
		if (is_known)
			continue;
		if (!selector->affinity.n)
			vec_push(&selector->affinity);
		struct scale_rule *rule = vec_push(selector->affinity.v);
		*rule = (struct scale_rule){.key = mem_strdup(json_str(m)), .op = SCALE_IN};
		strv_add(&rule->values, value);
	}
}

/* The tie of a term by zone that selects such pods as its own; PODSPEC_UNTIED: it is another. */
static int32_t podspec_tie(struct podspec *p, const char *kube_namespace, const struct json *term,
	const struct scale_pairs *labels)
{
	struct podspec_mark tie = {0};
	bool is_wide = true;

	if (!scale_is_zone(podspec_topology(term)) || !json_get(term, "labelSelector") ||
		json_get(term, "namespaceSelector") || json_get(term, "mismatchLabelKeys"))
		return PODSPEC_UNTIED;
	podspec_mark_namespaces(kube_namespace, term, &tie.namespaces);
	podspec_selector(json_get(term, "labelSelector"), &tie.selector);
	podspec_label_keys(json_get(term, "matchLabelKeys"), labels, &tie.selector);
	if (tie.namespaces.n != 1 || !podspec_selects(&tie, kube_namespace, labels)) {
		podspec_mark_done(&tie);
		return PODSPEC_UNTIED;
	}
	tie.topology = mem_strdup(podspec_topology(term));
	vec_foreach (const struct scale_term, t, &tie.selector.affinity)
		vec_foreach (const struct scale_rule, rule, t)
			is_wide &= !podspec_is_pair(rule);
	/* Each pod is compared with each of these. */
	size_t n = p->ties.n, max = is_wide && p->n_wide >= PODSPEC_WIDE_MAX ? n : PODSPEC_TIES_MAX;
	int32_t number = podspec_remember(&p->ties, max, &p->known_ties, &tie);
	p->n_wide += is_wide && p->ties.n > n;
	p->n_left_out += number == PODSPEC_UNTIED;
	return number;
}

/* Of several terms each has to be the same tie. kube-scheduler wants the label also of the node of
 * the first pod. */
static int32_t podspec_near(
	struct podspec *p, const struct podspec_pod *pod, struct scale_shape *ret)
{
	const struct json *term = kube_first(
		pod->spec, "affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution");
	AUTO(scale_pairs_done) struct scale_pairs labels = {0};
	int32_t tie = PODSPEC_UNTIED;

	if (!term)
		return PODSPEC_UNTIED;
	podspec_labels(pod, &labels);
	for (const struct json *m = term; m; m = json_next(m)) {
		int32_t one = podspec_tie(p, pod->kube_namespace, m, &labels);
		if (one == PODSPEC_UNTIED || (m != term && one != tie)) {
			strv_addf(&ret->unsupported, "podAffinity by %.*s", NAME_MAX_SHOWN,
				podspec_topology(m));
			return PODSPEC_UNTIED;
		}
		tie = one;
	}
	podspec_needs_label(ret, podspec_topology(term));
	return tie;
}

void podspec_index(const struct json *objects, struct map *ret)
{
	for (const struct json *m = json_first(objects); m; m = json_next(m)) {
		const char *kube_namespace = kube_str_at(m, "metadata.namespace");
		const char *name = kube_str_at(m, "metadata.name");
		AUTO_FREE char *key =
			mem_printf("%s/%s", kube_namespace ? kube_namespace : "", name ? name : "");
		map_put(ret, key, (void *)m);
	}
}

/* The kind of a volume that only nodes of a zone can use, or so many at most on one; or NULL. */
static const char *podspec_disk(const struct json *volume)
{
	static const char *const kinds[] = {"awsElasticBlockStore", "azureDisk", "cinder",
		"gcePersistentDisk", "photonPersistentDisk", "portworxVolume", "scaleIO",
		"vsphereVolume"};

	for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
		if (json_get(volume, kinds[i]))
			return kinds[i];
	return NULL;
}

/* A volume that may be used from every node holds a pod nowhere. */
static bool podspec_claim_is_free(
	const struct podspec *p, const char *kube_namespace, const char *name)
{
	AUTO_FREE char *key = mem_printf("%s/%s", kube_namespace, name);
	const char *volume_name = kube_str_at(map_get(&p->claims, key), "spec.volumeName");
	AUTO_FREE char *volume_key = mem_printf("/%s", volume_name ? volume_name : "");
	const struct json *volume = map_get(&p->volumes, volume_key);

	return volume && !kube_at(volume, "spec.nodeAffinity") &&
	       !podspec_disk(json_get(volume, "spec"));
}

static void podspec_volumes(const struct podspec *p, const char *kube_namespace,
	const struct json *spec, struct strv *unsupported)
{
	for (const struct json *v = kube_first(spec, "volumes"); v; v = json_next(v)) {
		const char *disk = podspec_disk(v);
		if (disk)
			strv_addf(unsupported, "a volume of %s", disk);
		const char *claim = kube_str_at(v, "persistentVolumeClaim.claimName");
		if (claim && !podspec_claim_is_free(p, kube_namespace, claim))
			strv_addf(unsupported, "the claim %.*s", NAME_MAX_SHOWN, claim);
		if (json_get(v, "ephemeral"))
			strv_add(unsupported, "an ephemeral volume claim");
	}
}

static bool podspec_has_host_port(const struct json *containers)
{
	for (const struct json *c = json_first(containers); c; c = json_next(c))
		for (const struct json *port = kube_first(c, "ports"); port; port = json_next(port))
			if (json_get_int(port, "hostPort", 0) > 0)
				return true;
	return false;
}

/* Schedulers that place pods by what is counted here. */
static bool podspec_knows(const char *scheduler)
{
	static const char *const known[] = {
		"default-scheduler", "scheduler-plugins-scheduler", "volcano"};

	for (size_t i = 0; i < ARRAY_LEN(known); i++)
		if (str_eq(scheduler, known[i]))
			return true;
	return str_empty(scheduler);
}

static void podspec_others(const struct json *spec, struct strv *unsupported)
{
	/* The last two are gangs of Kubernetes itself. */
	static const char *const unknown[] = {
		"resourceClaims", "schedulingGates", "workloadRef", "schedulingGroup"};
	const char *scheduler = json_get_str(spec, "schedulerName");
	const struct json *spread = kube_first(spec, "topologySpreadConstraints");

	for (; spread; spread = json_next(spread))
		if (!str_eq(json_get_str(spread, "whenUnsatisfiable"), "ScheduleAnyway")) {
			strv_add(unsupported, "topologySpreadConstraints");
			break;
		}
	for (size_t i = 0; i < ARRAY_LEN(unknown); i++)
		if (json_count(json_get(spec, unknown[i])))
			strv_add(unsupported, unknown[i]);
	if (podspec_has_host_port(json_get(spec, "containers")) ||
		podspec_has_host_port(json_get(spec, "initContainers")))
		strv_add(unsupported, "hostPort");
	if (!podspec_knows(scheduler))
		strv_addf(unsupported, "the scheduler %.*s", NAME_MAX_SHOWN, scheduler);
}

int32_t podspec_shape(struct podspec *p, const struct podspec_pod *pod, struct scale_shape *ret)
{
	const struct json *spec = pod->spec;

	podspec_request(p, spec, ret);
	podspec_pairs(json_get(spec, "nodeSelector"), &ret->selector);
	podspec_affinity(spec, ret);
	podspec_tolerations(json_get(spec, "tolerations"), &ret->tolerations, &ret->unsupported);
	podspec_apart(p, pod->kube_namespace, spec, ret);
	int32_t tie = podspec_near(p, pod, ret);
	podspec_volumes(p, pod->kube_namespace, spec, &ret->unsupported);
	podspec_others(spec, &ret->unsupported);
	strv_sort(&ret->apart);
	return tie;
}

bool podspec_find_marks(
	struct podspec *p, const struct podspec_pod *pod, const struct scale_pairs *node)
{
	bool all = true;

	for (const struct json *term = podspec_anti_affinity(pod->spec); term;
		term = json_next(term)) {
		const char *topology = podspec_is_mark(term) ? NULL : podspec_topology(term);
		/* A term without a selector is against no pod; nor is one of which the node is in
		 * no topology. */
		if (!json_get(term, "labelSelector") ||
			(topology && !(node && scale_pair(node, topology))))
			continue;
		all &= podspec_add_mark(p, pod->kube_namespace, term, topology) != NULL;
	}
	return all;
}

void podspec_set_marks(
	const struct podspec *p, const struct podspec_pod *pod, struct scale_shape *ret)
{
	AUTO(scale_pairs_done) struct scale_pairs labels = {0};

	if (!p->marks.n)
		return;
	podspec_labels(pod, &labels);
	vec_foreach (const struct podspec_mark, mark, &p->marks) {
		if (!podspec_selects(mark, pod->kube_namespace, &labels))
			continue;
		if (!mark->topology) {
			strv_add(&ret->marks, mark->text);
			continue;
		}
		AUTO_FREE char *name = mem_printf(PODSPEC_APART, NAME_MAX_SHOWN, mark->topology);
		if (strv_find(&ret->unsupported, name) < 0)
			strv_add(&ret->unsupported, name);
	}
	strv_sort(&ret->marks);
}
