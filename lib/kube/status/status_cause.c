/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/status/status_impl.h"

/*
 * Texts of kubelets, runtimes and registries, told apart by words that have stayed the same over
 * the years. Each table is searched in its order, the first row that fits wins.
 */

/* Any of up to three words, or NULL. */
enum { WORDS_MAX = 4 };

static bool has_any(const char *text, const char *const words[WORDS_MAX])
{
	for (size_t i = 0; text && i < WORDS_MAX && words[i]; i++)
		if (strstr(text, words[i]))
			return true;
	return false;
}

/*
 * Images
 */

static const char hint_platform[] =
	"platform: linux/arm64 (or linux/amd64) in the target of dlrun.yaml";

struct pull {
	const struct kube_case *c;
	const struct kube_pod *pod;
	const char *text;
	char *image, *host;
	struct kube_why *why;
};

static const char *pull_secret(const struct pull *p)
{
	const struct json *list = kube_at(p->pod->json, "spec.imagePullSecrets");

	if (!list || json_kind(list) != JSON_ARRAY || !json_first(list))
		return NULL;
	return json_get_str(json_first(list), "name");
}

static const char *namespace_of(const struct kube_case *c)
{
	return c->facts->kube_namespace ? c->facts->kube_namespace : "default";
}

static const char *node_of(const struct kube_pod *pod)
{
	return pod->node ? pod->node : "?";
}

static void pull_arch(struct pull *p)
{
	kube_why_set(p->why, E_IMAGE_ARCH, "%s has no variant for the CPU architecture of node %s",
		p->image, node_of(p->pod));
	kube_why_hint(p->why, "%s", hint_platform);
	p->why->needs_help = true;
}

static void pull_tls(struct pull *p)
{
	kube_why_set(p->why, E_IMAGE_PULL, "node %s does not trust the certificate of registry %s",
		node_of(p->pod), p->host);
	kube_why_hint(
		p->why, "ask whoever runs the cluster to install the registry's CA on its nodes");
	p->why->needs_help = true;
}

static void pull_plain(struct pull *p)
{
	kube_why_set(p->why, E_IMAGE_PULL,
		"node %s asks registry %s by https, and it speaks plain http", node_of(p->pod),
		p->host);
	kube_why_hint(p->why, "ask whoever runs the cluster to allow plain http to %s on its nodes",
		p->host);
	p->why->needs_help = true;
}

static void pull_name(struct pull *p)
{
	kube_why_set(p->why, E_IMAGE_PULL, "node %s finds no address for registry %s",
		node_of(p->pod), p->host);
	kube_why_hint(p->why,
		"registry: {push: registry.example.com/me/dlrun, pull: registry.internal/me/dlrun}   # pull: the name that nodes know");
}

static void pull_limit(struct pull *p)
{
	kube_why_set(p->why, E_IMAGE_PULL, "registry %s lets node %s pull no more for now", p->host,
		node_of(p->pod));
}

static void pull_disk(struct pull *p)
{
	kube_why_set(p->why, E_IMAGE_PULL, "node %s has no disk space left for %s", node_of(p->pod),
		p->image);
}

static void pull_auth(struct pull *p)
{
	const char *secret = pull_secret(p), *ns = namespace_of(p->c);

	p->why->needs_help = true;
	if (secret)
		kube_why_set(p->why, E_IMAGE_PULL_AUTH,
			"node %s may not pull %s: the registry does not accept the login of Secret "
			"\"%s\"",
			node_of(p->pod), p->image, secret);
	else
		kube_why_set(p->why, E_IMAGE_PULL_AUTH,
			"node %s may not pull %s: it has no login for %s", node_of(p->pod),
			p->image, p->host);
	if (secret)
		kube_why_hint(p->why, "kubectl -n %s describe secret %s", ns, secret);
	else
		kube_why_hint(p->why,
			"docker login %s && kubectl -n %s create secret generic regcred "
			"--type=kubernetes.io/dockerconfigjson "
			"--from-file=.dockerconfigjson=$HOME/.docker/config.json   "
			"# then image_pull_secret: regcred in dlrun.yaml",
			p->host, ns);
}

static void pull_missing(struct pull *p)
{
	kube_why_set(
		p->why, E_IMAGE_PULL_NOT_FOUND, "registry %s has no image %s", p->host, p->image);
	kube_why_hint(p->why,
		"dlrun config --show-origin registry   # push: and pull: must lead to the same registry");
	p->why->needs_help = true;
}

static void pull_unreachable(struct pull *p)
{
	kube_why_set(
		p->why, E_IMAGE_PULL, "node %s cannot reach registry %s", node_of(p->pod), p->host);
}

static void pull_invalid(struct pull *p)
{
	kube_why_set(p->why, E_IMAGE_PULL, "%s is not a valid name of an image", p->image);
	p->why->needs_help = true;
}

static void pull_never(struct pull *p)
{
	kube_why_set(p->why, E_IMAGE_PULL_NOT_FOUND,
		"%s is not on node %s, and imagePullPolicy: Never forbids to pull it", p->image,
		node_of(p->pod));
	p->why->needs_help = true;
}

static void pull_other(struct pull *p)
{
	kube_why_set(p->why, E_IMAGE_PULL, "node %s cannot pull %s", node_of(p->pod), p->image);
}

struct pull_row {
	const char *words[WORDS_MAX];
	void (*fn)(struct pull *p);
};

static const struct pull_row pull_rows[] = {
	{{"no match for platform", "no matching manifest", "does not match the specified platform",
		 "no image found in image index for architecture"},
		pull_arch},
	{{"x509:", "tls: failed to verify", "certificate signed by unknown"}, pull_tls},
	{{"server gave HTTP response to HTTPS", "first record does not look like a TLS"},
		pull_plain},
	{{"no such host", "server misbehaving", "Temporary failure in name resolution",
		 "Name or service not known"},
		pull_name},
	{{"toomanyrequests", "429 Too Many", "TOOMANYREQUESTS", "QPS exceeded"}, pull_limit},
	{{"no space left on device", "disk quota exceeded"}, pull_disk},
	{{"nauthorized", "authentication required", "no basic auth credentials",
		 "authorization failed"},
		pull_auth},
	{{"403 Forbidden", "denied", "DENIED", "insufficient_scope"}, pull_auth},
	{{"not found", "manifest unknown", "NAME_UNKNOWN", "name unknown"}, pull_missing},
	{{"MANIFEST_UNKNOWN", "404 Not Found", "does not exist"}, pull_missing},
	{{"connection refused", "i/o timeout", "no route to host", "deadline exceeded"},
		pull_unreachable},
	{{"TLS handshake timeout", "connection reset", "unreachable", "EOF"}, pull_unreachable},
	{{"InvalidImageName", "invalid reference format", "couldn't parse image"}, pull_invalid},
	{{"ErrImageNeverPull", "pull policy of Never"}, pull_never},
};

/* The last clause has what the registry said; before it stand its names once more. */
static const char *last_words(const char *text)
{
	size_t len = text ? strlen(text) : 0;

	return len > KUBE_EVIDENCE_LINE_MAX - 40 ? text + len - (KUBE_EVIDENCE_LINE_MAX - 40)
						 : text;
}

static void pull_evidence(struct pull *p)
{
	const char *tail = last_words(p->text);

	if (!tail)
		return;
	while (tail != p->text && ((unsigned char)*tail & 0xc0) == 0x80)
		tail++;
	kube_why_evidence(p->why, "%s%s", tail == p->text ? "" : "…", tail);
}

static const char *pulled_image(const struct kube_case *c, const struct kube_pod *pod)
{
	const char *image = json_get_str(kube_pod_program(pod->json), "image");
	const struct json *spec = kube_named(kube_at(pod->json, "spec.containers"), KUBE_CONTAINER);

	if (json_get_str(spec, "image"))
		image = json_get_str(spec, "image");
	return str_empty(image) ? c->facts->image : image;
}

void kube_why_pull(const struct kube_case *c, const struct kube_pod *pod, const char *reason,
	const char *text, struct kube_why *why)
{
	const char *image = pulled_image(c, pod);
	struct pull p = {.c = c,
		.pod = pod,
		.text = text,
		.image = kube_image_text(image),
		.host = kube_image_host(image),
		.why = why};
	size_t i = 0;

	while (i < ARRAY_LEN(pull_rows) && !has_any(text, pull_rows[i].words))
		i++;
	for (size_t j = 0; i == ARRAY_LEN(pull_rows) && j < i; j++)
		if (has_any(reason, pull_rows[j].words))
			i = j;
	if (i < ARRAY_LEN(pull_rows))
		pull_rows[i].fn(&p);
	else
		pull_other(&p);
	pull_evidence(&p);
	free(p.image);
	free(p.host);
}

/*
 * Volumes
 */

/* "secret "x" not found" and its like; kind and name of what is missing. */
static bool missing_object(const char *text, char **ret_kind, char **ret_name)
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

static const char *volume_cause(const char *text)
{
	static const struct {
		const char *words[WORDS_MAX];
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
		if (has_any(text, rows[i].words))
			return rows[i].cause;
	return NULL;
}

void kube_why_volume(const struct kube_pod *pod, const char *text, struct kube_why *why)
{
	AUTO_FREE char *volume = kube_between(text, "for volume \"", "\"");
	AUTO_FREE char *kind = NULL, *name = NULL;
	const char *cause = volume_cause(text);

	if (missing_object(text, &kind, &name)) {
		kube_why_set(why, E_JOB_VOLUME,
			"volume \"%s\" cannot be mounted: there is no %s \"%s\"",
			volume ? volume : "?", kind, name);
		why->needs_help = true;
	} else if (volume && cause) {
		kube_why_set(why, E_JOB_VOLUME, "node %s cannot mount volume \"%s\": %s",
			node_of(pod), volume, cause);
	} else {
		kube_why_set(why, E_JOB_VOLUME, "node %s cannot mount its volumes: %s",
			node_of(pod), text ? text : "");
	}
	kube_why_evidence(why, "%s", text ? text : "");
	kube_why_hint(why, "kubectl describe pod %s", pod->name);
}

/*
 * Configuration of containers
 */

static bool config_key(const struct kube_case *c, const char *text, struct kube_why *why)
{
	AUTO_FREE char *key = kube_between(text, "find key ", " in ");
	AUTO_FREE char *kind = kube_between(text, " in ", " ");
	AUTO_FREE char *path = kube_between(text, "/", "");
	bool is_secret = str_eq(kind, "Secret");

	if (!key || !kind || !path)
		return false;
	path[strcspn(path, " ,:")] = '\0';
	kube_why_set(why, E_JOB_CONFIG, "%s \"%s\" has no key \"%s\"", kind, path, key);
	kube_why_hint(why, "kubectl -n %s describe %s %s", namespace_of(c),
		is_secret ? "secret" : "configmap", path);
	return true;
}

static bool config_missing(const struct kube_case *c, const char *text, struct kube_why *why)
{
	AUTO_FREE char *kind = NULL, *name = NULL;

	if (!missing_object(text, &kind, &name))
		return false;
	kube_why_set(why, E_JOB_CONFIG, "there is no %s \"%s\" in namespace %s", kind, name,
		namespace_of(c));
	kube_why_hint(why, "kubectl -n %s get %s", namespace_of(c),
		str_eq(kind, "ConfigMap") ? "configmaps" : "secrets");
	return true;
}

static bool config_user(const char *text, struct kube_why *why)
{
	AUTO_FREE char *user = kube_between(text, "non-numeric user (", ")");

	if (!text || !strstr(text, "runAsNonRoot"))
		return false;
	if (user)
		kube_why_set(why, E_JOB_CONFIG,
			"the image runs as user \"%s\" by name, and the cluster cannot tell "
			"whether that is root",
			user);
	else
		kube_why_set(why, E_JOB_CONFIG,
			"the image runs as root, and its pod may not (runAsNonRoot)");
	kube_why_hint(
		why, "security: restricted in the target of dlrun.yaml runs it as another user");
	return true;
}

void kube_why_config(const struct kube_case *c, const char *text, struct kube_why *why)
{
	why->needs_help = true;
	if (config_user(text, why)) {
		kube_why_evidence(why, "%s", text);
		return;
	}
	if (config_key(c, text, why) || config_missing(c, text, why))
		return;
	kube_why_set(why, E_JOB_CONFIG, "its container cannot be configured: %s",
		str_empty(text) ? "the cluster does not say why" : text);
}

/*
 * Commands
 */

enum { CODE_NOT_EXECUTABLE = 126, CODE_NOT_FOUND = 127 };

/* exec: "pythn": executable file not found in $PATH */
static char *exec_name(const char *text)
{
	char *name = kube_between(text, "exec: \"", "\"");

	if (!name)
		name = kube_between(text, "stat ", ":");
	if (!name && strstr(text, "exec format error"))
		name = kube_between(text, "exec ", ":");
	return name ? name : mem_strdup("its command");
}

static void exec_hint(enum err_id id, int code, const char *name, struct kube_why *why)
{
	if (id == E_IMAGE_ARCH)
		kube_why_hint(why, "%s", hint_platform);
	else if (code == CODE_NOT_FOUND)
		kube_why_hint(why, "dlrun submit --image docker.io/library/python:3.12 …");
	else
		kube_why_hint(why, "chmod +x %s", name);
}

bool kube_why_exec(const char *text, struct kube_exit *ret_exit, struct kube_why *why)
{
	static const struct {
		const char *words[WORDS_MAX];
		const char *says;
		int code;
		enum err_id id;
		const char *reason;
	} rows[] = {
		{{"exec format error"},
			" is a program for another CPU architecture, or a script without a #! line",
			CODE_NOT_EXECUTABLE, E_IMAGE_ARCH, "NotExecutable"},
		{{"executable file not found", "no such file or directory"},
			": command not found in the image", CODE_NOT_FOUND, E_RUN_EXEC, "NotFound"},
		{{"permission denied", "is a directory"}, " cannot be executed",
			CODE_NOT_EXECUTABLE, E_RUN_EXEC, "NotExecutable"},
	};

	if (!text || (!strstr(text, "exec: ") && !strstr(text, "exec /")))
		return false;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		if (!has_any(text, rows[i].words))
			continue;
		AUTO_FREE char *name = exec_name(text);
		AUTO_FREE char *shown = kube_text(name, 128);

		*ret_exit = (struct kube_exit){.known = true,
			.code = rows[i].code,
			.origin = "dlrun",
			.reason = rows[i].reason};
		kube_why_set(why, rows[i].id, "%s%s", shown, rows[i].says);
		kube_why_evidence(why, "%s", text);
		exec_hint(rows[i].id, rows[i].code, shown, why);
		return true;
	}
	return false;
}
