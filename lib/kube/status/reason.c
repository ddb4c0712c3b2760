/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/api/kinds.h"
#include "kube/status/status_impl.h"

/*
 * Reasons as sentences. Texts of kubelets, runtimes, registries and admission are told apart by
 * words that have stayed the same over the years.
 */

enum { DIGEST_SHOWN = 12, UNSEEN_MS = 10 * 1000 };

void kube_why_done(struct kube_why *why)
{
	free(why->sentence);
	strv_done(&why->evidence);
	free(why->hint);
	*why = (struct kube_why){0};
}

void kube_why_set(struct kube_why *why, enum err_id id, const char *fmt, ...)
{
	va_list args;
	AUTO_FREE char *text = NULL;

	va_start(args, fmt);
	text = mem_vprintf(fmt, args);
	va_end(args);
	REPLACE(why->sentence, kube_text(text, KUBE_SENTENCE_MAX));
	why->id = id;
}

void kube_why_evidence(struct kube_why *why, const char *fmt, ...)
{
	va_list args;
	AUTO_FREE char *raw = NULL, *line = NULL;

	va_start(args, fmt);
	raw = mem_vprintf(fmt, args);
	va_end(args);
	line = kube_text(raw, KUBE_EVIDENCE_LINE_MAX);
	if (*line && why->evidence.n < ERR_EVIDENCE_MAX && strv_find(&why->evidence, line) < 0)
		strv_add_take(&why->evidence, TAKE(line));
}

void kube_why_hint(struct kube_why *why, const char *fmt, ...)
{
	va_list args;
	AUTO_FREE char *text = NULL;

	va_start(args, fmt);
	text = mem_vprintf(fmt, args);
	va_end(args);
	REPLACE(why->hint, kube_text(text, KUBE_SENTENCE_MAX));
}

void kube_why_timeout(const struct json *spec, struct kube_why *why)
{
	int64_t limit_s = json_get_int(spec, "activeDeadlineSeconds", 0);
	char text[32];

	kube_why_set(why, E_RUN_TIMEOUT, "it reached its time limit");
	if (limit_s > 0 && limit_s < INT64_MAX / 1000)
		kube_why_set(why, E_RUN_TIMEOUT, "it reached its time limit of %s",
			duration_text(limit_s * 1000, text));
}

const char *kube_case_namespace(const struct kube_case *c)
{
	return c->facts->kube_namespace ? c->facts->kube_namespace : "default";
}

const struct kube_event *kube_pods_event(const struct kube_case *c, const char *reason)
{
	const char *job = c->facts->job_name;
	size_t len = job ? strlen(job) : 0;

	for (size_t i = c->events.n; len && i-- > 0;) {
		const struct kube_event *event = &c->events.v[i];

		if (str_eq(event->kind, "Pod") && str_eq(event->reason, reason) &&
			str_starts(event->name, job) && event->name[len] == '-')
			return event;
	}
	return NULL;
}

/*
 * Tables
 */

static bool reason_words_in(const char *text, const char *const words[8])
{
	for (size_t i = 0; text && i < 8 && words[i]; i++)
		if (strstr(text, words[i]))
			return true;
	return false;
}

const struct kube_reason *kube_reason_find(
	const struct kube_reason *rows, size_t n, const char *reason, const char *text)
{
	for (const struct kube_reason *row = rows; row < rows + n; row++)
		if ((!row->reasons || (reason && str_is_word_of(reason, row->reasons))) &&
			(!row->words[0] || reason_words_in(text, row->words)))
			return row;
	return NULL;
}

/* NULL: the text has no such thing. */
static char *reason_cut(const char *text, const char *const cut[2])
{
	const char *from = text && cut[0] ? strstr(text, cut[0]) : NULL;

	if (!from)
		return NULL;
	from += strlen(cut[0]);
	return mem_strndup(from, strcspn(from, cut[1]));
}

static char *reason_fill(
	const struct kube_reason *row, const struct kube_about *about, const char *form)
{
	const struct kube_facts *facts = about->c->facts;
	AUTO_FREE char *first = reason_cut(about->text, row->cut[0]);
	AUTO_FREE char *second = reason_cut(about->text, row->cut[1]);
	const char *text = !str_empty(about->text) ? about->text
			   : row->otherwise        ? row->otherwise
			   : about->reason         ? about->reason
						   : "the cluster does not say why";
	const char *node = about->pod ? about->pod->node : NULL;
	const char *const vars[][2] = {
		{"<1>", first ? first : "?"},
		{"<2>", second ? second : text},
		{"<text>", text},
		{"<node>", node ? node : "(not known)"},
		{"<ns>", kube_case_namespace(about->c)},
		{"<run>", facts->run_id ? facts->run_id : "@"},
		{"<image>", about->image},
		{"<host>", about->host},
		{"<name>", about->name},
	};
	AUTO_BUF struct buf out = buf_with(JSON_SIZE_MAX);

	while (*form) {
		size_t i = 0;

		while (i < ARRAY_LEN(vars) && !str_starts(form, vars[i][0]))
			i++;
		if (i == ARRAY_LEN(vars)) {
			buf_addc(&out, *form++);
			continue;
		}
		buf_adds(&out, vars[i][1] ? vars[i][1] : "");
		form += strlen(vars[i][0]);
	}
	return buf_take(&out);
}

void kube_why_fill(
	const struct kube_reason *row, const struct kube_about *about, struct kube_why *why)
{
	AUTO_FREE char *sentence = reason_fill(row, about, row->sentence);

	kube_why_set(why, row->id, "%s", sentence);
	why->needs_help = why->needs_help || row->flags & KUBE_HELP;
	why->never_fits = why->never_fits || row->flags & KUBE_NEVER_FITS;
	if (row->evidence && !str_empty(about->text)) {
		AUTO_FREE char *line = reason_fill(row, about, row->evidence);
		kube_why_evidence(why, "%s", line);
	}
	if (row->hint) {
		AUTO_FREE char *hint = reason_fill(row, about, row->hint);
		kube_why_hint(why, "%s", hint);
	}
}

/*
 * Images
 */

/* A reference to an image without most of its digest. */
static char *reason_image(const char *image)
{
	const char *at = image ? strstr(image, "@sha256:") : NULL;
	size_t hex = at ? strlen(at) - strlen("@sha256:") : 0;

	if (hex <= DIGEST_SHOWN)
		return kube_text(image ? image : "the image", KUBE_EVIDENCE_LINE_MAX);
	AUTO_FREE char *cut = mem_printf(
		"%.*s…", (int)((size_t)(at - image) + strlen("@sha256:") + DIGEST_SHOWN), image);
	return kube_text(cut, KUBE_EVIDENCE_LINE_MAX);
}

/* "docker.io" where it names no host. */
static char *reason_image_host(const char *image)
{
	size_t len = image ? strcspn(image, "/") : 0;

	if (!len || !image[len])
		return mem_strdup("docker.io");
	AUTO_FREE char *host = mem_strndup(image, len);
	if (!strpbrk(host, ".:") && !str_eq(host, "localhost"))
		return mem_strdup("docker.io");
	return kube_text(host, 128);
}

static const char hint_platform[] =
	"platform: linux/arm64 (or linux/amd64) in the target of dlrun.yaml";

static const struct kube_reason pull_rows[] = {
	{{"no match for platform", "no matching manifest", "does not match the specified platform",
		 "no image found in image index for architecture"},
		E_IMAGE_ARCH, KUBE_HELP,
		"<image> has no variant for the CPU architecture of node <node>", hint_platform},
	{{"x509:", "tls: failed to verify", "certificate signed by unknown"}, E_IMAGE_PULL,
		KUBE_HELP, "node <node> does not trust the certificate of registry <host>",
		"ask whoever runs the cluster to install the registry's CA on its nodes"},
	{{"server gave HTTP response to HTTPS", "first record does not look like a TLS"},
		E_IMAGE_PULL, KUBE_HELP,
		"node <node> asks registry <host> by https, and it speaks plain http",
		"ask whoever runs the cluster to allow plain http to <host> on its nodes"},
	{{"no such host", "server misbehaving", "Temporary failure in name resolution",
		 "Name or service not known"},
		E_IMAGE_PULL, 0, "node <node> finds no address for registry <host>",
		"registry: {push: registry.example.com/me/dlrun, "
		"pull: registry.internal/me/dlrun}   # pull: the name that nodes know"},
	{{"toomanyrequests", "429 Too Many", "TOOMANYREQUESTS", "QPS exceeded"}, E_IMAGE_PULL, 0,
		"registry <host> lets node <node> pull no more for now"},
	{{"no space left on device", "disk quota exceeded"}, E_IMAGE_PULL, 0,
		"node <node> has no disk space left for <image>"},
	{{"nauthorized", "authentication required", "no basic auth credentials",
		 "authorization failed", "403 Forbidden", "denied", "DENIED", "insufficient_scope"},
		E_IMAGE_PULL_AUTH, KUBE_HELP,
		"node <node> may not pull <image>: it has no login for <host>",
		"docker login <host> && kubectl -n <ns> create secret generic regcred "
		"--type=kubernetes.io/dockerconfigjson "
		"--from-file=.dockerconfigjson=$HOME/.docker/config.json   "
		"# then image_pull_secret: regcred in dlrun.yaml"},
	{{"not found", "manifest unknown", "NAME_UNKNOWN", "name unknown", "MANIFEST_UNKNOWN",
		 "404 Not Found", "does not exist"},
		E_IMAGE_PULL_NOT_FOUND, KUBE_HELP, "registry <host> has no image <image>",
		"dlrun config --show-origin registry   "
		"# push: and pull: must lead to the same registry"},
	{{"connection refused", "i/o timeout", "no route to host", "deadline exceeded",
		 "TLS handshake timeout", "connection reset", "unreachable", "EOF"},
		E_IMAGE_PULL, 0, "node <node> cannot reach registry <host>"},
	{{"InvalidImageName", "invalid reference format", "couldn't parse image"}, E_IMAGE_PULL,
		KUBE_HELP, "<image> is not a valid name of an image"},
	{{"ErrImageNeverPull", "pull policy of Never"}, E_IMAGE_PULL_NOT_FOUND, KUBE_HELP,
		"<image> is not on node <node>, and imagePullPolicy: Never forbids to pull it"},
};
static const struct kube_reason pull_other = {
	.id = E_IMAGE_PULL, .sentence = "node <node> cannot pull <image>"};
static const struct kube_reason pull_with_secret = {{NULL}, E_IMAGE_PULL_AUTH, KUBE_HELP,
	"node <node> may not pull <image>: the registry does not accept the login of "
	"Secret \"<name>\"",
	"kubectl -n <ns> describe secret <name>"};
static const struct kube_reason pull_without_secret = {{NULL}, E_IMAGE_PULL_AUTH, 0,
	"node <node> may not pull <image>: there is no Secret \"<1>\" in namespace <ns>",
	"kubectl -n <ns> get secrets", .cut = {{"pull secrets (", ")"}}};

/* The last clause has what the registry said; before it stand its names once more. */
static void pull_evidence(const char *text, struct kube_why *why)
{
	size_t max = KUBE_EVIDENCE_LINE_MAX - 40, len = text ? strlen(text) : 0;
	const char *tail = len > max ? text + len - max : text;

	while (tail != text && ((unsigned char)*tail & 0xc0) == 0x80)
		tail++;
	if (text)
		kube_why_evidence(why, "%s%s", tail == text ? "" : "…", tail);
}

/* The Secret with the login for it is not there. */
static void pull_secret_event(const struct kube_about *about, struct kube_why *why)
{
	const struct kube_event *event = kube_events_newest(
		&about->c->events, "Pod", about->pod->name, "FailedToRetrieveImagePullSecret");
	struct kube_about with_event = *about;

	if (!event)
		return;
	kube_why_evidence(why, "%s", event->message);
	with_event.text = event->message;
	if (why->id == E_IMAGE_PULL_AUTH && strstr(event->message, "pull secrets ("))
		kube_why_fill(&pull_without_secret, &with_event, why);
}

void kube_why_pull(const struct kube_case *c, const struct kube_pod *pod, const char *reason,
	const char *text, struct kube_why *why)
{
	const struct json *spec = kube_named(pod->json, "spec.containers", KUBE_CONTAINER);
	const char *running = json_get_str(kube_pod_program(pod->json), "image");
	const char *wanted = json_get_str(spec, "image");
	const char *image = wanted ? wanted : running;
	AUTO_FREE char *shown = reason_image(str_empty(image) ? c->facts->image : image);
	AUTO_FREE char *host = reason_image_host(str_empty(image) ? c->facts->image : image);
	const struct kube_reason *row =
		kube_reason_find(pull_rows, ARRAY_LEN(pull_rows), NULL, text);
	struct kube_about about = {c, pod, reason, text, shown, host,
		json_get_str(kube_first(pod->json, "spec.imagePullSecrets"), "name")};

	if (!row)
		row = kube_reason_find(pull_rows, ARRAY_LEN(pull_rows), NULL, reason);
	if (row && row->id == E_IMAGE_PULL_AUTH && about.name)
		row = &pull_with_secret;
	kube_why_fill(row ? row : &pull_other, &about, why);
	pull_evidence(text, why);
	pull_secret_event(&about, why);
}

void kube_why_pulling(const struct kube_case *c, const struct kube_pod *pod, const char *message,
	struct kube_why *why)
{
	AUTO_FREE char *quoted = kube_between(message, "\"", "\"");
	AUTO_FREE char *image = reason_image(quoted ? quoted : c->facts->image);

	kube_why_set(why, E_NONE, "node %s pulls %s", pod->node, image);
}

/*
 * Volumes and configuration
 */

/* "secret "x" not found" and its like; kind and name of what is missing. */
static bool reason_missing_object(const char *text, char **ret_kind, char **ret_name)
{
	static const char *const kinds[][2] = {
		{"secret \"", "Secret"},
		{"configmap \"", "ConfigMap"},
		{"persistentvolumeclaim \"", "volume claim"},
		{"serviceaccount \"", "service account"},
	};

	if (!text || !strstr(text, "not found"))
		return false;
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
		char *name = kube_between(text, kinds[i][0], "\"");

		if (!name)
			continue;
		*ret_kind = mem_strdup(kinds[i][1]);
		*ret_name = name;
		return true;
	}
	return false;
}

static const char *reason_volume_cause(const char *text)
{
	static const struct {
		const char *words[8];
		const char *cause;
	} rows[] = {
		{{"Multi-Attach error"}, "it is attached to another node still"},
		{{"access denied by server", "Permission denied", "Operation not permitted"},
			"its server does not allow it"},
		{{"Connection timed out", "No route to host", "Connection refused",
			 "Connection reset"},
			"its server cannot be reached"},
		{{"No such file or directory", "does not exist"}, "there is no such path"},
		{{"bad option", "unknown filesystem type", "need a /sbin/mount"},
			"the node has no program to mount it"},
		{{"Name or service not known", "Failed to resolve", "no such host"},
			"the name of its server is not known"},
		{{"timed out waiting for the condition", "context deadline exceeded"},
			"its driver does not answer"},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (reason_words_in(text, rows[i].words))
			return rows[i].cause;
	return NULL;
}

void kube_why_volume(const struct kube_pod *pod, const char *text, struct kube_why *why)
{
	AUTO_FREE char *volume = kube_between(text, "for volume \"", "\"");
	AUTO_FREE char *kind = NULL, *name = NULL;
	const char *cause = reason_volume_cause(text);

	if (reason_missing_object(text, &kind, &name)) {
		kube_why_set(why, E_JOB_VOLUME,
			"volume \"%s\" cannot be mounted: there is no %s \"%s\"",
			volume ? volume : "?", kind, name);
		why->needs_help = true;
	} else if (volume && cause) {
		kube_why_set(why, E_JOB_VOLUME, "node %s cannot mount volume \"%s\": %s", pod->node,
			volume, cause);
	} else {
		kube_why_set(
			why, E_JOB_VOLUME, "node %s cannot mount its volumes: %s", pod->node, text);
	}
	kube_why_evidence(why, "%s", text);
	kube_why_hint(why, "kubectl describe pod %s", pod->name);
}

static bool reason_config_key(const struct kube_case *c, const char *text, struct kube_why *why)
{
	AUTO_FREE char *key = kube_between(text, "find key ", " in ");
	AUTO_FREE char *kind = kube_between(text, " in ", " ");
	AUTO_FREE char *path = kube_between(text, "/", "");
	bool is_secret = str_eq(kind, "Secret");

	if (!key || !kind || !path)
		return false;
	path[strcspn(path, " ,:")] = '\0';
	kube_why_set(why, E_JOB_CONFIG, "%s \"%s\" has no key \"%s\"", kind, path, key);
	kube_why_hint(why, "kubectl -n %s describe %s %s", kube_case_namespace(c),
		is_secret ? "secret" : "configmap", path);
	return true;
}

static bool reason_config_missing(const struct kube_case *c, const char *text, struct kube_why *why)
{
	AUTO_FREE char *kind = NULL, *name = NULL;

	if (!reason_missing_object(text, &kind, &name))
		return false;
	kube_why_set(why, E_JOB_CONFIG, "there is no %s \"%s\" in namespace %s", kind, name,
		kube_case_namespace(c));
	kube_why_hint(why, "kubectl -n %s get %s", kube_case_namespace(c),
		str_eq(kind, "ConfigMap") ? "configmaps" : "secrets");
	return true;
}

void kube_why_config(const struct kube_case *c, const char *text, struct kube_why *why)
{
	static const char hint_user[] =
		"security: restricted in the target of dlrun.yaml runs it as another user";
	static const struct kube_reason rows[] = {
		{{"non-numeric user ("}, E_JOB_CONFIG, 0,
			"the image runs as user \"<1>\" by name, and the cluster cannot tell "
			"whether that is root",
			hint_user, "<text>", .cut = {{"non-numeric user (", ")"}}},
		{{"runAsNonRoot"}, E_JOB_CONFIG, 0,
			"the image runs as root, and its pod may not (runAsNonRoot)", hint_user,
			"<text>"},
		{{NULL}, E_JOB_CONFIG, 0, "its container cannot be configured: <text>"},
	};
	struct kube_about about = {.c = c, .text = text};
	const struct kube_reason *row = kube_reason_find(rows, ARRAY_LEN(rows), NULL, text);

	why->needs_help = true;
	if (row->words[0] ||
		(!reason_config_key(c, text, why) && !reason_config_missing(c, text, why)))
		kube_why_fill(row, &about, why);
}

/*
 * Commands
 */

/* exec: "pythn": executable file not found in $PATH */
static char *reason_exec_name(const char *text)
{
	char *name = kube_between(text, "exec: \"", "\"");

	if (!name)
		name = kube_between(text, "stat ", ":");
	if (!name && strstr(text, "exec format error"))
		name = kube_between(text, "exec ", ":");
	return name ? name : mem_strdup("its command");
}

bool kube_why_exec(const struct kube_about *about, struct kube_exit *ret_exit, struct kube_why *why)
{
	static const struct kube_reason rows[] = {
		{{"exec format error"}, E_IMAGE_ARCH, 0,
			"<name> is a program for another CPU architecture, or a script without a #! line",
			hint_platform, "<text>", .exit = {true, 126, 0, "dlrun", "NotExecutable"}},
		{{"executable file not found", "no such file or directory"}, E_RUN_EXEC, 0,
			"<name>: command not found in the image",
			"dlrun submit --image docker.io/library/python:3.12 …", "<text>",
			.exit = {true, 127, 0, "dlrun", "NotFound"}},
		{{"permission denied", "is a directory"}, E_RUN_EXEC, 0,
			"<name> cannot be executed", "chmod +x <name>", "<text>",
			.exit = {true, 126, 0, "dlrun", "NotExecutable"}},
	};
	const char *text = about->text;
	const struct kube_reason *row = kube_reason_find(rows, ARRAY_LEN(rows), NULL, text);

	if (!row || (!strstr(text, "exec: ") && !strstr(text, "exec /")))
		return false;
	AUTO_FREE char *name = reason_exec_name(text);
	AUTO_FREE char *shown = kube_text(name, 128);
	struct kube_about with_name = *about;

	with_name.name = shown;
	kube_why_fill(row, &with_name, why);
	*ret_exit = row->exit;
	return true;
}

/*
 * Before there are pods: Kueue's Workload (kueue.x-k8s.io), a suspended Job
 */

#define QUEUE_FEDERATED "kueue.x-k8s.io/multikueue"
/* A sentence of the admission check of MultiKueue, once a cluster has the Job. */
#define QUEUE_RESERVED "got reservation on \""

/* The object that Kueue takes into its queues. */
static const struct json *queue_object(const struct kube_case *c)
{
	return c->facts->jobset ? c->facts->jobset : c->facts->job;
}

static const char *queue_name(const struct kube_case *c)
{
	const char *queue = kube_str_at(c->facts->workload, "spec.queueName");

	return queue ? queue : kube_label(queue_object(c), "kueue.x-k8s.io/queue-name");
}

static const char *queue_message(const struct json *condition)
{
	const char *message = json_get_str(condition, "message");

	return str_empty(message) ? "it does not say why" : message;
}

static void queue_pending(const struct json *reserved, const char *queue, struct kube_why *why)
{
	/* An empty cluster queue would not admit it either. */
	static const char *const too_large[8] = {
		"maximum capacity", "exceeds the maximum", "exceeds maximum"};
	/* The queue itself is what has to be mended. */
	static const char *const misconfigured[8] = {"doesn't exist", "is inactive", "is stopped"};
	const char *message = queue_message(reserved);

	if (reason_words_in(message, too_large)) {
		kube_why_set(why, E_SCHED_IMPOSSIBLE,
			"queue \"%s\" can never admit it: more is asked for than its quota", queue);
		kube_why_evidence(why, "%s", message);
		why->never_fits = why->needs_help = true;
		return;
	}
	kube_why_set(why, E_SCHED_QUEUE, "queue \"%s\" has not admitted it: %s", queue, message);
	why->needs_help = str_eq(json_get_str(reserved, "reason"), "Inadmissible") ||
			  reason_words_in(message, misconfigured);
	if (why->needs_help)
		kube_why_hint(why, "kubectl get localqueues");
}

static void queue_evicted(const struct kube_case *c, const struct json *evicted, const char *queue,
	struct kube_why *why)
{
	const struct json *preempted = kube_condition(c->facts->workload, "Preempted");

	if (str_eq(json_get_str(evicted, "reason"), "Preempted"))
		kube_why_set(why, E_SCHED_QUEUE,
			"it was stopped to make room for another run and waits in queue \"%s\" again",
			queue);
	else
		kube_why_set(why, E_SCHED_QUEUE, "queue \"%s\" has taken it back: %s", queue,
			queue_message(evicted));
	if (preempted)
		kube_why_evidence(why, "%s", queue_message(preempted));
}

static bool queue_checks(const struct kube_case *c, struct kube_why *why)
{
	const struct json *m = kube_first(c->facts->workload, "status.admissionChecks");

	while (m &&
		(str_empty(json_get_str(m, "state")) || str_eq(json_get_str(m, "state"), "Ready")))
		m = json_next(m);
	if (!m)
		return false;
	const char *name = json_get_str(m, "name"), *state = json_get_str(m, "state");
	const char *message = json_get_str(m, "message");
	kube_why_set(why, E_SCHED_QUEUE, "it has its quota and waits for the check \"%s\" (%s)%s%s",
		name ? name : "", state, str_empty(message) ? "" : ": ",
		str_empty(message) ? "" : message);
	why->needs_help = str_eq(state, "Rejected");
	return true;
}

/* true: it waits for Kueue. */
static bool queue_of_workload(const struct kube_case *c, struct kube_why *why)
{
	const struct json *workload = c->facts->workload;
	const struct json *reserved = kube_condition(workload, "QuotaReserved");
	const struct json *evicted = kube_condition(workload, "Evicted");
	const char *queue = queue_name(c) ? queue_name(c) : "?";

	if (!workload || kube_condition_is(workload, "Admitted", "True") ||
		kube_condition_is(workload, "Finished", "True"))
		return false;
	if (!json_get_bool(json_get(workload, "spec"), "active", true)) {
		kube_why_set(
			why, E_SCHED_QUEUE, "Kueue has given it up: %s", queue_message(evicted));
		why->needs_help = true;
		return true;
	}
	if (queue_checks(c, why))
		return true;
	if (kube_condition_is(workload, "Evicted", "True") &&
		!kube_condition_is(workload, "QuotaReserved", "True")) {
		queue_evicted(c, evicted, queue, why);
	} else if (reserved) {
		queue_pending(reserved, queue, why);
	} else {
		kube_why_set(why, E_SCHED_QUEUE, "it waits in queue \"%s\"", queue);
	}
	return true;
}

/* Kueue gives the Job of a run with several targets to another cluster, which has no gate of it.
 * The queue itself may be one that the user cannot read. */
static bool queue_strands(const struct kube_case *c)
{
	const struct json *object = queue_object(c), *workload = c->facts->workload;
	const struct json *check = kube_first(workload, "status.admissionChecks");

	if (!kube_annotation(object, KUBE_ANNOTATION_GATE))
		return false;
	if (str_eq(kube_str_at(object, "spec.managedBy"), QUEUE_FEDERATED) ||
		!str_empty(kube_str_at(workload, "status.clusterName")))
		return true;
	for (; check; check = json_next(check)) {
		const char *message = json_get_str(check, "message");
		if (message && strstr(message, QUEUE_RESERVED))
			return true;
	}
	return false;
}

bool kube_why_queue(const struct kube_case *c, struct kube_why *why)
{
	const struct json *job = queue_object(c);
	const char *queue = queue_name(c);
	int64_t created = kube_time_at(job, "metadata.creationTimestamp");

	if (queue_strands(c)) {
		kube_why_set(why, E_SCHED_IMPOSSIBLE,
			"queue \"%s\" gives it to another cluster (MultiKueue), where a run with "
			"several targets does not begin",
			queue ? queue : "?");
		kube_why_hint(why, "dlrun submit --from %s -t kube", c->facts->run_id);
		why->is_stranded = why->never_fits = why->needs_help = true;
		return true;
	}
	if (queue_of_workload(c, why))
		return true;
	if (!json_get_bool(json_get(job, "spec"), "suspend", false))
		return false;
	if (c->facts->workload ||
		(queue && (c->facts->workload_hidden || c->facts->now_ms - created < UNSEEN_MS))) {
		kube_why_set(why, E_NONE, "it waits for queue \"%s\"", queue ? queue : "?");
		return true;
	}
	why->needs_help = true;
	if (queue)
		kube_why_set(why, E_SCHED_QUEUE,
			"nothing has taken it into queue \"%s\": does Kueue run here?", queue);
	else
		kube_why_set(why, E_SCHED_SUSPENDED, "its Job is suspended by somebody");
	if (!queue && c->facts->job_name)
		kube_why_hint(why, "kubectl patch %s %s -p '{\"spec\":{\"suspend\":false}}'",
			c->facts->is_jobset ? "jobset --type merge" : "job", c->facts->job_name);
	return true;
}

/*
 * Pods that the Job's controller is not allowed to make
 */

/* "a=1,b=2": the value of key, as far as the next comma. */
static char *quota_value(const char *list, const char *key)
{
	AUTO_FREE char *with_equals = mem_printf("%s=", key);
	const char *at = list;

	while (at && (at = strstr(at, with_equals))) {
		if (at == list || at[-1] == ',' || at[-1] == ' ')
			return mem_strndup(
				at + strlen(with_equals), strcspn(at + strlen(with_equals), ", "));
		at++;
	}
	return NULL;
}

/* The usual name of a resource of a quota. */
static const char *quota_resource(const char *key)
{
	static const char *const rows[][2] = {
		{"requests.nvidia.com/gpu", "GPUs"},
		{"requests.amd.com/gpu", "GPUs"},
		{"limits.nvidia.com/gpu", "GPUs"},
		{"requests.cpu", "CPUs"},
		{"cpu", "CPUs"},
		{"limits.cpu", "CPUs (limit)"},
		{"requests.memory", "memory"},
		{"memory", "memory"},
		{"limits.memory", "memory (limit)"},
		{"count/jobs.batch", "Jobs"},
		{"requests.ephemeral-storage", "disk"},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (str_eq(rows[i][0], key))
			return rows[i][1];
	return key;
}

/* Of the quota itself where it is known, as the event may be old. The caller frees. */
static char *quota_used(
	const struct kube_case *c, const char *quota, const char *key, const char *used)
{
	for (size_t i = 0; quota && i < c->facts->quotas.n; i++) {
		const struct json *json = c->facts->quotas.v[i];
		const char *now = json_get_str(kube_at(json, "status.used"), key);

		if (now && str_eq(kube_str_at(json, "metadata.name"), quota))
			return mem_strdup(now);
	}
	return quota_value(used, key);
}

/* "1500m" of CPUs is 1.5; other quantities are as people write them. */
static char *quota_amount(const char *key, const char *amount)
{
	int64_t milli;

	if (!str_ends(key, "cpu") || !kube_quantity(amount, &milli))
		return mem_strdup(amount);
	return mem_printf("%.4g", (double)milli / 1000);
}

/* exceeded quota: NAME, requested: K=V,…, used: K=V,…, limited: K=V,… */
static void create_quota(const struct kube_case *c, const char *text, struct kube_why *why)
{
	const char *ns = kube_case_namespace(c);
	AUTO_FREE char *name = kube_between(text, "exceeded quota: ", ",");
	AUTO_FREE char *all_requested = kube_between(text, "requested: ", ", used:");
	AUTO_FREE char *all_used = kube_between(text, "used: ", ", limited:");
	AUTO_FREE char *all_limits = kube_between(text, "limited: ", "");
	const char *equals = all_requested ? strchr(all_requested, '=') : NULL;
	AUTO_FREE char *key = mem_strndup(
		all_requested ? all_requested : "", equals ? (size_t)(equals - all_requested) : 0);
	AUTO_FREE char *requested = equals ? quota_value(all_requested, key) : NULL;
	AUTO_FREE char *used = equals ? quota_used(c, name, key, all_used) : NULL;
	AUTO_FREE char *limit = equals ? quota_value(all_limits, key) : NULL;
	int64_t requested_milli, limit_milli;

	kube_why_hint(why, "kubectl -n %s describe quota", ns);
	if (!name || !requested || !used || !limit) {
		kube_why_set(why, E_SCHED_QUOTA, "a quota of namespace %s does not allow it: %s",
			ns, text);
		return;
	}
	if (kube_quantity(requested, &requested_milli) && kube_quantity(limit, &limit_milli) &&
		requested_milli > limit_milli) {
		kube_why_set(why, E_SCHED_IMPOSSIBLE,
			"quota \"%s\" of namespace %s allows %s %s, this needs %s", name, ns, limit,
			quota_resource(key), requested);
		why->never_fits = why->needs_help = true;
		return;
	}
	AUTO_FREE char *used_text = quota_amount(key, used), *limit_text = quota_amount(key, limit),
		       *requested_text = quota_amount(key, requested);
	kube_why_set(why, E_SCHED_QUOTA,
		"quota \"%s\" of namespace %s is used up: %s of %s %s are taken, this needs %s",
		name, ns, used_text, limit_text, quota_resource(key), requested_text);
}

static const struct kube_reason create_rows[] = {
	{{"must specify "}, E_JOB_DENIED, KUBE_HELP,
		"a quota of the namespace wants every pod to say its <1>",
		"resources: {cpus: 4, memory: 16Gi} in dlrun.yaml", "<text>",
		.cut = {{"must specify ", " ;"}}},
	{{"violates PodSecurity"}, E_JOB_DENIED, KUBE_HELP,
		"namespace <ns> allows only <1> pods (Pod Security)",
		"security: restricted in the target of dlrun.yaml", "<2>",
		.cut = {{"violates PodSecurity \"", ":\""}, {"\": ", ""}}},
	{{"denied the request: "}, E_JOB_DENIED, KUBE_HELP,
		"the admission webhook <1> refuses its pods: <2>",
		.cut = {{"webhook \"", "\""}, {"denied the request: ", ""}}},
	{{"webhook \""}, E_JOB_DENIED, 0, "the admission webhook <1> does not answer: <text>",
		.cut = {{"webhook \"", "\""}}},
	{{"serviceaccount \""}, E_JOB_DENIED, KUBE_HELP,
		"there is no service account \"<1>\" in namespace <ns>",
		"service_account: null in the target of dlrun.yaml",
		.cut = {{"serviceaccount \"", "\""}}},
	{{"ValidatingAdmissionPolicy '"}, E_JOB_DENIED, KUBE_HELP,
		"the admission policy <1> refuses its pods: <2>",
		.cut = {{"ValidatingAdmissionPolicy '", "'"}, {"denied request: ", ""}}},
	{{"no PriorityClass with name"}, E_JOB_DENIED, KUBE_HELP,
		"the cluster has no priority class \"<1>\"", "kubectl get priorityclasses",
		.cut = {{"PriorityClass with name ", " "}}},
	{{"is being terminated"}, E_JOB_DENIED, KUBE_HELP, "namespace <ns> is being removed"},
	{{" usage per ", " limit to request ratio per "}, E_JOB_DENIED, KUBE_HELP,
		"a limit range of namespace <ns> refuses its pods: <2>",
		.cut = {{NULL}, {"forbidden: ", ""}}},
	{{NULL}, E_JOB_DENIED, KUBE_HELP, "the cluster does not make its pods: <text>"},
};

bool kube_why_create(const struct kube_case *c, struct kube_why *why)
{
	static const char prefix[] = "Error creating: ";
	const char *job = c->facts->job_name;
	const struct kube_event *bad = kube_events_newest(&c->events, "Job", job, "FailedCreate");
	const struct kube_event *good =
		kube_events_newest(&c->events, "Job", job, "SuccessfulCreate");

	if (!bad || (good && good->last_ms > bad->last_ms))
		return false;
	const char *text = bad->message + (str_starts(bad->message, prefix) ? strlen(prefix) : 0);
	struct kube_about about = {.c = c, .text = text};
	if (strstr(text, "exceeded quota"))
		create_quota(c, text, why);
	else
		kube_why_fill(kube_reason_find(create_rows, ARRAY_LEN(create_rows), NULL, text),
			&about, why);
	return true;
}
