/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/status/status_impl.h"

/*
 * The scheduler's sentence (kube-scheduler, framework.FitError): "0/N nodes are available: K
 * reason, K reason. preemption: …". Reasons have changed a little from version to version.
 */

enum { COUNT_MAX = 1000 * 1000 };

static const struct {
	const char *word;
	enum kube_obstacle obstacle;
} words[] = {
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

static enum kube_obstacle obstacle_of(const char *reason)
{
	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		if (strstr(reason, words[i].word))
			return words[i].obstacle;
	return KUBE_OTHER;
}

/* "{team: vision}" is team=vision, "{gpu: }" gpu. */
static void read_taint(const char *reason, char out[static 128])
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

static void read_volume(const char *reason, struct kube_verdict *ret)
{
	AUTO_FREE char *claim = kube_between(reason, "persistentvolumeclaim \"", "\"");

	if (claim && !*ret->claim)
		snprintf(ret->claim, sizeof(ret->claim), "%s", claim);
	ret->claim_missing = ret->claim_missing || (claim && strstr(reason, "not found"));
	ret->claim_unbound = ret->claim_unbound || strstr(reason, "unbound immediate");
}

static void read_reason(const char *reason, int count, struct kube_verdict *ret)
{
	enum kube_obstacle obstacle = obstacle_of(reason);
	size_t len = strlen(ret->rest);

	if (ret->counts[obstacle] < COUNT_MAX)
		ret->counts[obstacle] += count < COUNT_MAX ? count : COUNT_MAX;
	if (obstacle == KUBE_NO_GPU && !*ret->resource)
		snprintf(ret->resource, sizeof(ret->resource), "%s",
			strstr(reason, "Insufficient ") + strlen("Insufficient "));
	else if (obstacle == KUBE_NO_TOLERATION)
		read_taint(reason, ret->taint);
	else if (obstacle == KUBE_NO_VOLUME)
		read_volume(reason, ret);
	else if (obstacle == KUBE_OTHER)
		snprintf(ret->rest + len, sizeof(ret->rest) - len, "%s%d %s", len ? ", " : "",
			count, reason);
}

/* Where the reasons end: at a full stop that is followed by a blank or by nothing. */
static size_t reasons_len(const char *text)
{
	size_t len = 0;

	while (text[len] && !(text[len] == '.' && (!text[len + 1] || text[len + 1] == ' ')))
		len++;
	return len;
}

/* A comma inside of a reason is not followed by a number. */
static size_t reason_len(const char *text)
{
	const char *comma = text;

	while ((comma = strstr(comma, ", "))) {
		if (str_is_digit(comma[2]))
			return (size_t)(comma - text);
		comma += 2;
	}
	return strlen(text);
}

static void read_reasons(char *text, struct kube_verdict *ret)
{
	while (*text) {
		size_t len = reason_len(text);
		bool more = text[len];
		int count = (int)kube_number(text, ret->nodes);

		text[len] = '\0';
		while (str_is_digit(*text) || *text == ' ') {
			text++;
			len--;
		}
		if (*text)
			read_reason(text, count, ret);
		if (!more)
			return;
		text += len + 2;
	}
}

void kube_verdict_parse(const char *text, struct kube_verdict *ret)
{
	static const char available[] = " nodes are available:";
	const char *at = text ? strstr(text, available) : NULL;
	const char *slash = text ? strchr(text, '/') : NULL;

	*ret = (struct kube_verdict){0};
	if (!text)
		return;
	if (!at || !slash || slash > at) {
		read_volume(text, ret);
		ret->parsed = ret->claim_missing || ret->claim_unbound;
		ret->counts[KUBE_NO_VOLUME] = ret->parsed;
		return;
	}
	ret->nodes = (int)kube_number(slash + 1, 0);
	at += strlen(available);
	at += strspn(at, " ");
	AUTO_FREE char *reasons = mem_strndup(at, reasons_len(at));
	read_reasons(reasons, ret);
	ret->parsed = true;
}

/*
 * From both to a sentence
 */

struct search {
	const struct kube_case *c;
	const struct json *spec;
	struct kube_demand want;
	struct kube_verdict verdict;
	struct kube_room room;
	struct kube_why *why;
};

static void gpu_words(const struct search *s, int64_t n, const char *free, char out[static 160])
{
	const char *resource = *s->want.resource ? s->want.resource : s->verdict.resource;

	if (!*resource || kube_is_gpu(resource))
		snprintf(out, 160, "%d %sGPU%s", (int)n, free, n == 1 ? "" : "s");
	else
		snprintf(out, 160, "%d %s%s", (int)n, free, resource);
}

static void impossible(struct search *s)
{
	s->why->never_fits = true;
	s->why->needs_help = true;
}

/* More than any node has. A cluster that grows may get a larger one. */
static bool never_gpu(struct search *s)
{
	char want[160];

	if (!s->want.gpus || s->room.gpus_max >= s->want.gpus || s->room.tainted)
		return false;
	gpu_words(s, s->want.gpus, "", want);
	if (!s->room.with_gpu)
		kube_why_set(s->why, E_SCHED_IMPOSSIBLE, "no node of the cluster has %s",
			s->want.resource);
	else if (!s->room.gpus_max)
		kube_why_set(s->why, E_SCHED_IMPOSSIBLE,
			"no node with %s matches what else the run wants of its node",
			s->want.resource);
	else
		kube_why_set(s->why, E_SCHED_IMPOSSIBLE, "no node has %s: the largest has %d", want,
			(int)s->room.gpus_max);
	if (s->room.gpus_max)
		kube_why_hint(s->why, "dlrun submit --gpus %d …", (int)s->room.gpus_max);
	else
		kube_why_hint(s->why, "dlrun submit -g 0 …");
	return true;
}

static bool never_memory(struct search *s)
{
	char want[24], has[24];

	if (!s->want.memory || s->room.memory_max >= s->want.memory)
		return false;
	kube_why_set(s->why, E_SCHED_IMPOSSIBLE, "no node has %s of memory: the largest has %s",
		kube_bytes_text(s->want.memory, want), kube_bytes_text(s->room.memory_max, has));
	kube_why_hint(s->why, "dlrun submit --memory %s …", has);
	return true;
}

static bool never_cpu(struct search *s)
{
	if (s->room.cpu_max >= s->want.cpu_milli)
		return false;
	kube_why_set(s->why, E_SCHED_IMPOSSIBLE, "no node has %.4g CPUs: the largest has %.4g",
		(double)s->want.cpu_milli / 1000, (double)s->room.cpu_max / 1000);
	kube_why_hint(s->why, "dlrun submit --cpus %d …", (int)(s->room.cpu_max / 1000 % 100000));
	return true;
}

static bool never_disk(struct search *s)
{
	char want[24], has[24];

	if (!s->room.disk_max || s->room.disk_max >= s->want.disk)
		return false;
	kube_why_set(s->why, E_SCHED_IMPOSSIBLE,
		"no node has %s of disk for pods: the largest has %s",
		kube_bytes_text(s->want.disk, want), kube_bytes_text(s->room.disk_max, has));
	kube_why_hint(s->why, "resources: {disk: %s} in dlrun.yaml", has);
	return true;
}

static void selector_text(const struct json *spec, struct buf *out)
{
	const struct json *selector = json_get(spec, "nodeSelector");

	if (!selector || json_kind(selector) != JSON_OBJECT)
		return;
	for (const struct json *m = json_first(selector); m; m = json_next(m))
		buf_addf(out, "%s%s=%s", out->len ? ", " : "", json_key(m),
			json_str(m) ? json_str(m) : "");
}

static void never_arch(struct search *s, const char *arch)
{
	kube_why_set(s->why, E_SCHED_ARCH, "no node has CPU architecture %s: there is %s", arch,
		*s->room.arch_has ? s->room.arch_has : "another");
	kube_why_hint(s->why, "platform: linux/%.*s in the target of dlrun.yaml",
		(int)strcspn(s->room.arch_has, ","), s->room.arch_has);
}

static void never_selector(struct search *s)
{
	AUTO_BUF struct buf selector;

	buf_init(&selector, KUBE_SENTENCE_MAX);
	selector_text(s->spec, &selector);
	kube_why_set(s->why, E_SCHED_SELECTOR,
		"none of the %d nodes has the labels that it wants%s%s%s", s->room.nodes,
		selector.len ? " (" : "", selector.data, selector.len ? ")" : "");
	kube_why_hint(s->why, "kubectl get nodes --show-labels");
}

static bool never_matches(struct search *s)
{
	const char *arch = json_get_str(json_get(s->spec, "nodeSelector"), "kubernetes.io/arch");

	if (s->room.matching)
		return false;
	if (arch && !s->room.right_arch)
		never_arch(s, arch);
	else
		never_selector(s);
	return true;
}

static bool never_tolerated(struct search *s)
{
	if (s->room.fit_ever || !s->room.tainted)
		return false;
	kube_why_set(s->why, E_SCHED_TAINT,
		"%s that could run it %s kept for others by the taint %s",
		s->room.tainted == 1 ? "the only node" : "the nodes",
		s->room.tainted == 1 ? "is" : "are", s->room.taint);
	kube_why_hint(s->why,
		"tolerations: of a GPU type or the overlay in dlrun.yaml, if you may use them");
	return true;
}

/* With all nodes known: whether it could run at all. */
static bool why_never(struct search *s)
{
	if (!s->room.known || s->room.grows || s->room.fit_ever || !s->room.nodes)
		return false;
	if (!never_matches(s) && !never_tolerated(s) && !never_gpu(s) && !never_memory(s) &&
		!never_cpu(s) && !never_disk(s))
		return false;
	impossible(s);
	return true;
}

/*
 * Not now
 */

static void now_gpu(struct search *s)
{
	char want[160];

	if (s->want.gpus == 1 && kube_is_gpu(s->want.resource))
		kube_why_set(s->why, E_SCHED_GPU, "no node has a free GPU");
	else if (s->want.gpus) {
		gpu_words(s, s->want.gpus, "free ", want);
		kube_why_set(s->why, E_SCHED_GPU, "no node has %s", want);
	} else {
		kube_why_set(
			s->why, E_SCHED_GPU, "no node has enough free %s", s->verdict.resource);
	}
}

static void now_memory(struct search *s)
{
	char text[24];

	kube_why_set(s->why, E_SCHED_MEMORY, "no node has %s of free memory",
		s->want.memory ? kube_bytes_text(s->want.memory, text) : "so much");
	if (s->room.taken_known)
		kube_why_evidence(s->why, "most that is free on one: %s",
			kube_bytes_text(s->room.memory_free, text));
}

static void now_cpu(struct search *s)
{
	if (s->want.cpu_milli)
		kube_why_set(s->why, E_SCHED_CPU, "no node has %.4g free CPUs",
			(double)s->want.cpu_milli / 1000);
	else
		kube_why_set(s->why, E_SCHED_CPU, "no node has enough free CPUs");
	if (s->room.taken_known)
		kube_why_evidence(
			s->why, "most that are free on one: %.4g", (double)s->room.cpu_free / 1000);
}

static void now_disk(struct search *s)
{
	char text[24];

	kube_why_set(s->why, E_SCHED_DISK, "no node has %s of free disk for pods",
		s->want.disk ? kube_bytes_text(s->want.disk, text) : "enough");
}

static void now_slot(struct search *s)
{
	kube_why_set(s->why, E_SCHED, "no node takes one more pod: all have as many as they may");
}

static void now_taint(struct search *s)
{
	const char *taint = *s->verdict.taint ? s->verdict.taint : s->room.taint;

	if (*taint)
		kube_why_set(s->why, E_SCHED_TAINT,
			"the nodes that could run it are kept for others by the taint %s", taint);
	else
		kube_why_set(s->why, E_SCHED_TAINT,
			"the nodes that could run it have taints that it does not tolerate");
	kube_why_hint(s->why,
		"tolerations: of a GPU type or the overlay in dlrun.yaml, if you may use them");
	s->why->needs_help = true;
}

static void now_match(struct search *s)
{
	AUTO_BUF struct buf selector;

	buf_init(&selector, KUBE_SENTENCE_MAX);
	selector_text(s->spec, &selector);
	kube_why_set(s->why, E_SCHED_SELECTOR, "no node has the labels that it wants%s%s%s",
		selector.len ? " (" : "", selector.data, selector.len ? ")" : "");
	kube_why_hint(s->why, "kubectl get nodes --show-labels");
	s->why->needs_help = true;
}

/* The scheduler does not say which one. */
static void claims_text(const struct json *spec, struct buf *out)
{
	const struct json *volumes = json_get(spec, "volumes");

	for (const struct json *volume = volumes ? json_first(volumes) : NULL; volume;
		volume = json_next(volume)) {
		const char *name =
			json_get_str(json_get(volume, "persistentVolumeClaim"), "claimName");
		AUTO_FREE char *shown = str_empty(name) ? NULL : str_shown(name);
		if (shown)
			buf_addf(out, "%s\"%s\"", out->len ? " or " : "", shown);
	}
}

static void say_unbound(struct search *s)
{
	AUTO_BUF struct buf claims;

	buf_init(&claims, KUBE_SENTENCE_MAX);
	claims_text(s->spec, &claims);
	if (claims.len)
		kube_why_set(s->why, E_SCHED_VOLUME,
			"the volume claim %s is not bound to a volume yet", claims.data);
	else
		kube_why_set(s->why, E_SCHED_VOLUME,
			"a volume claim of it is not bound to a volume yet");
}

static void now_volume(struct search *s)
{
	const char *ns = s->c->facts->kube_namespace ? s->c->facts->kube_namespace : "default";

	if (s->verdict.claim_missing)
		kube_why_set(s->why, E_SCHED_VOLUME,
			"there is no volume claim \"%s\" in namespace %s", s->verdict.claim, ns);
	else if (s->verdict.claim_unbound)
		say_unbound(s);
	else
		kube_why_set(s->why, E_SCHED_VOLUME, "no node can use its volumes");
	s->why->needs_help = s->verdict.claim_missing;
	if (s->verdict.claim_missing)
		kube_why_hint(s->why, "kubectl -n %s get pvc", ns);
	else
		kube_why_hint(s->why, "kubectl -n %s describe pvc", ns);
}

static void now_off(struct search *s)
{
	kube_why_set(s->why, E_SCHED, "the nodes that could run it are out of service just now");
}

static void now_other(struct search *s)
{
	kube_why_set(s->why, E_SCHED, "no node takes it now: %s", s->verdict.rest);
}

/* The most telling reason comes first: a node without the right labels may lack GPUs, too, but a
 * node with free GPUs is what is waited for. */
static bool why_now(struct search *s)
{
	static const struct {
		enum kube_obstacle obstacle;
		void (*fn)(struct search *s);
	} rows[] = {
		{KUBE_NO_VOLUME, now_volume},
		{KUBE_NO_GPU, now_gpu},
		{KUBE_NO_MEMORY, now_memory},
		{KUBE_NO_CPU, now_cpu},
		{KUBE_NO_DISK, now_disk},
		{KUBE_NO_SLOT, now_slot},
		{KUBE_OTHER, now_other},
		{KUBE_NO_TOLERATION, now_taint},
		{KUBE_CORDONED, now_off},
		{KUBE_NOT_READY, now_off},
		{KUBE_NO_MATCH, now_match},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (s->verdict.counts[rows[i].obstacle]) {
			rows[i].fn(s);
			return true;
		}
	return false;
}

/*
 * Evidence
 */

static void add_count(struct buf *out, int count, const char *what)
{
	if (count > 0)
		buf_addf(out, "%s%d %s", out->len ? ", " : "", count, what);
}

static void count_evidence(const struct search *s)
{
	const int *counts = s->verdict.counts;
	AUTO_FREE char *gpu =
		mem_printf("without free %s", *s->verdict.resource ? s->verdict.resource : "GPUs");
	AUTO_FREE char *taint =
		mem_printf("tainted%s%s", *s->verdict.taint ? " " : "", s->verdict.taint);
	AUTO_BUF struct buf out;

	buf_init(&out, KUBE_EVIDENCE_LINE_MAX * 2);
	add_count(&out, counts[KUBE_NO_GPU], gpu);
	add_count(&out, counts[KUBE_NO_MEMORY], "without free memory");
	add_count(&out, counts[KUBE_NO_CPU], "without free CPUs");
	add_count(&out, counts[KUBE_NO_DISK], "without free disk");
	add_count(&out, counts[KUBE_NO_SLOT], "with too many pods");
	add_count(&out, counts[KUBE_NO_TOLERATION], taint);
	add_count(&out, counts[KUBE_NO_MATCH], "with other labels than it wants");
	add_count(&out, counts[KUBE_NO_VOLUME], "without its volumes");
	add_count(&out, counts[KUBE_CORDONED], "cordoned");
	add_count(&out, counts[KUBE_NOT_READY], "not ready");
	if (out.len && s->verdict.nodes)
		kube_why_evidence(s->why, "%d node%s: %s%s%s", s->verdict.nodes,
			s->verdict.nodes == 1 ? "" : "s", out.data, *s->verdict.rest ? ", " : "",
			s->verdict.rest);
}

static void room_evidence(const struct search *s)
{
	const struct kube_room *room = &s->room;
	const char *resource = kube_is_gpu(s->want.resource) ? "GPUs" : s->want.resource;

	if (!room->known || !s->want.gpus || !room->with_gpu)
		return;
	kube_why_evidence(s->why, "%d node%s: %d ha%s %s%s%s%s", room->nodes,
		room->nodes == 1 ? "" : "s", room->with_gpu, room->with_gpu == 1 ? "s" : "ve",
		resource, *room->free_text ? "; " : "",
		!*room->free_text   ? ""
		: room->taken_known ? "free per node "
				    : "per node ",
		room->free_text);
	if (room->tainted)
		kube_why_evidence(s->why, "%d more %s tainted %s", room->tainted,
			room->tainted == 1 ? "is" : "are", room->taint);
	if (room->gpus_free <= 0 || room->gpus_free >= s->want.gpus || s->why->never_fits)
		return;
	kube_why_evidence(s->why, "fits now: --gpus %d", (int)room->gpus_free);
	kube_why_hint(s->why, "dlrun submit --gpus %d …", (int)room->gpus_free);
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

void kube_why_schedule(struct kube_case *c, const char *text, struct kube_why *why)
{
	struct search s = {.c = c, .spec = kube_pod_spec(c->facts), .why = why};

	kube_demand_of(s.spec, &s.want);
	kube_verdict_parse(text, &s.verdict);
	s.room = *kube_room_of(c, s.spec);
	if (!s.verdict.claim_missing && why_never(&s)) {
		room_evidence(&s);
	} else if (why_now(&s)) {
		room_evidence(&s);
		count_evidence(&s);
	} else {
		kube_why_set(why, E_SCHED, "no node takes it now%s%s", str_empty(text) ? "" : ": ",
			str_empty(text) ? "" : text);
	}
	scale_evidence(&s);
}
