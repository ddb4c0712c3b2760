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
#define HOST_KEY "kubernetes.io/hostname"

void podspec_done(struct podspec *p)
{
	vec_foreach (struct podspec_mark, mark, &p->marks) {
		free(mark->text);
		free(mark->kube_namespace);
		scale_pairs_done(&mark->labels);
	}
	vec_done(&p->marks);
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

static void podspec_tolerations(const struct json *list, struct scale_tolerations *ret)
{
	for (const struct json *m = json_first(list); m; m = json_next(m)) {
		const char *key = json_get_str(m, "key"), *value = json_get_str(m, "value");
		bool exists = str_eq(json_get_str(m, "operator"), "Exists");
		int effect = -1;
		const char *word = json_get_str(m, "effect");
		if (!str_empty(word) && !scale_word(snapshot_effects, word, &effect))
			continue;
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

static char *podspec_mark_text(const char *kube_namespace, const struct scale_pairs *labels)
{
	AUTO_BUF struct buf text = buf_with(64 << 10);

	buf_adds(&text, kube_namespace);
	vec_foreach (const struct scale_pair, pair, labels)
		buf_addf(&text, "%c%s=%s", pair == labels->v ? '/' : ',', pair->key, pair->value);
	return buf_take(&text);
}

/* By host, and by labels of pods of the same namespace: such a term is a mark. */
static bool podspec_is_mark(const struct json *term)
{
	const struct json *selector = json_get(term, "labelSelector");

	return str_eq(json_get_str(term, "topologyKey"), HOST_KEY) &&
	       json_count(json_get(selector, "matchLabels")) > 0 &&
	       json_count(json_get(selector, "matchExpressions")) == 0 &&
	       json_count(json_get(term, "namespaces")) == 0 &&
	       !json_get(term, "namespaceSelector") && !json_get(term, "matchLabelKeys") &&
	       !json_get(term, "mismatchLabelKeys");
}

static void podspec_add_mark(struct podspec *p, const char *kube_namespace, const struct json *term,
	struct scale_shape *ret)
{
	struct podspec_mark mark = {0};

	podspec_pairs(json_get(json_get(term, "labelSelector"), "matchLabels"), &mark.labels);
	mark.text = podspec_mark_text(kube_namespace, &mark.labels);
	strv_add(&ret->apart, mark.text);
	vec_foreach (const struct podspec_mark, known, &p->marks)
		if (str_eq(known->text, mark.text)) {
			free(mark.text);
			scale_pairs_done(&mark.labels);
			return;
		}
	mark.kube_namespace = mem_strdup(kube_namespace);
	*vec_push(&p->marks) = mark;
}

static void podspec_apart(struct podspec *p, const char *kube_namespace, const struct json *spec,
	struct scale_shape *ret)
{
	const struct json *term = kube_first(
		spec, "affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution");

	for (; term; term = json_next(term)) {
		if (podspec_is_mark(term) && p->marks.n < MARKS_MAX)
			podspec_add_mark(p, kube_namespace, term, ret);
		else
			strv_addf(&ret->unsupported, "podAntiAffinity by %.*s", NAME_MAX_SHOWN,
				json_get_str(term, "topologyKey")
					? json_get_str(term, "topologyKey")
					: "?");
	}
	if (kube_first(spec, "affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution"))
		strv_add(&ret->unsupported, "podAffinity");
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

/* A volume that may be used from every node holds a pod nowhere. */
static bool podspec_claim_is_free(
	const struct podspec *p, const char *kube_namespace, const char *name)
{
	AUTO_FREE char *key = mem_printf("%s/%s", kube_namespace, name);
	const char *volume_name = kube_str_at(map_get(&p->claims, key), "spec.volumeName");
	AUTO_FREE char *volume_key = mem_printf("/%s", volume_name ? volume_name : "");
	const struct json *volume = map_get(&p->volumes, volume_key);

	return volume && !kube_at(volume, "spec.nodeAffinity");
}

static void podspec_volumes(const struct podspec *p, const char *kube_namespace,
	const struct json *spec, struct strv *unsupported)
{
	for (const struct json *v = kube_first(spec, "volumes"); v; v = json_next(v)) {
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
	const char *scheduler = json_get_str(spec, "schedulerName");
	const struct json *spread = kube_first(spec, "topologySpreadConstraints");

	for (; spread; spread = json_next(spread))
		if (!str_eq(json_get_str(spread, "whenUnsatisfiable"), "ScheduleAnyway")) {
			strv_add(unsupported, "topologySpreadConstraints");
			break;
		}
	if (kube_first(spec, "resourceClaims"))
		strv_add(unsupported, "resourceClaims");
	if (kube_first(spec, "schedulingGates"))
		strv_add(unsupported, "schedulingGates");
	if (podspec_has_host_port(json_get(spec, "containers")) ||
		podspec_has_host_port(json_get(spec, "initContainers")))
		strv_add(unsupported, "hostPort");
	if (!podspec_knows(scheduler))
		strv_addf(unsupported, "the scheduler %.*s", NAME_MAX_SHOWN, scheduler);
}

void podspec_shape(struct podspec *p, const struct json *metadata, const struct json *spec,
	struct scale_shape *ret)
{
	const char *kube_namespace = json_get_str(metadata, "namespace");

	kube_namespace = kube_namespace ? kube_namespace : "";
	podspec_request(p, spec, ret);
	podspec_pairs(json_get(spec, "nodeSelector"), &ret->selector);
	podspec_affinity(spec, ret);
	podspec_tolerations(json_get(spec, "tolerations"), &ret->tolerations);
	podspec_apart(p, kube_namespace, spec, ret);
	podspec_volumes(p, kube_namespace, spec, &ret->unsupported);
	podspec_others(spec, &ret->unsupported);
	strv_sort(&ret->apart);
}

static bool podspec_has(const struct json *labels, const struct scale_pairs *all)
{
	vec_foreach (const struct scale_pair, pair, all)
		if (!str_eq(json_get_str(labels, pair->key), pair->value))
			return false;
	return true;
}

void podspec_set_marks(const struct podspec *p, const struct json *metadata, struct strv *ret)
{
	const char *kube_namespace = json_get_str(metadata, "namespace");

	vec_foreach (const struct podspec_mark, mark, &p->marks)
		if (str_eq(mark->kube_namespace, kube_namespace) &&
			podspec_has(json_get(metadata, "labels"), &mark->labels))
			strv_add(ret, mark->text);
	strv_sort(ret);
}
