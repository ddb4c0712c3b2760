/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/job/rbac.h"

#include <string.h>

#include "base/data/json.h"
#include "base/data/yaml.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"

#define RBAC "rbac.authorization.k8s.io"

/* Sorted by tier. Streams of exec and port-forward are asked for by GET (WebSocket, before 1.35 the
 * verb get) and POST (SPDY, verb create). */
const struct kube_rule kube_rules[] = {
	{KUBE_TIER_SUBMIT, false, "batch", "jobs", "create delete get list patch watch"},
	{KUBE_TIER_SUBMIT, false, "", "pods", "list watch"},
	{KUBE_TIER_SUBMIT, false, "", "events", "list"},
	{KUBE_TIER_SUBMIT, false, "", "configmaps", "create delete get list patch"},
	{KUBE_TIER_SUBMIT, false, "", "services", "create delete get patch"},
	{KUBE_TIER_SUBMIT, false, "", "persistentvolumeclaims", "create delete get"},
	{KUBE_TIER_SUBMIT, false, "", "resourcequotas", "list"},
	{KUBE_TIER_SUBMIT, false, "", "serviceaccounts", "get"},
	{KUBE_TIER_SUBMIT, false, "", "namespaces", "get"},
	{KUBE_TIER_SUBMIT, false, "jobset.x-k8s.io", "jobsets", "create delete get list watch"},
	{KUBE_TIER_SUBMIT, false, "kueue.x-k8s.io", "localqueues", "get"},
	{KUBE_TIER_SUBMIT, false, "kueue.x-k8s.io", "workloads", "list"},
	{KUBE_TIER_SUBMIT, true, "", "nodes", "list"},
	{KUBE_TIER_SUBMIT, true, "metrics.k8s.io", "nodes", "list"},
	{KUBE_TIER_SUBMIT, true, "scheduling.k8s.io", "priorityclasses", "get"},
	{KUBE_TIER_SUBMIT, true, "storage.k8s.io", "storageclasses", "list"},
	{KUBE_TIER_LOGS, false, "", "pods/log", "get"},
	{KUBE_TIER_EXEC, false, "", "pods", "create delete get"},
	{KUBE_TIER_EXEC, false, "", "pods/exec", "create get"},
	{KUBE_TIER_EXEC, false, "", "pods/portforward", "create get"},
	{KUBE_TIER_EXEC, false, "metrics.k8s.io", "pods", "list"},
	{KUBE_TIER_SECRETS, false, "", "secrets", "create delete get patch"},
};
const size_t kube_rules_n = ARRAY_LEN(kube_rules);

static const struct {
	const char *name, *lack;
} tiers[KUBE_TIERS] = {
	[KUBE_TIER_SUBMIT] = {"submit", "runs cannot be started"},
	[KUBE_TIER_LOGS] = {"logs", "logs of runs cannot be read"},
	[KUBE_TIER_EXEC] = {"exec",
		"commands and ports of runs cannot be reached, nor results fetched"},
	[KUBE_TIER_SECRETS] = {"secrets", "runs cannot be given secrets"},
};

const char *kube_tier_name(enum kube_tier tier)
{
	return tiers[tier].name;
}

const char *kube_tier_lack(enum kube_tier tier)
{
	return tiers[tier].lack;
}

static bool rbac_has_word(const char *words, const char *word)
{
	size_t len = strlen(word);

	for (const char *at = words; *at; at += strcspn(at, " "), at += *at == ' ')
		if (strcspn(at, " ") == len && strncmp(at, word, len) == 0)
			return true;
	return false;
}

bool kube_rule_allows(
	enum kube_tier tier, const char *group, const char *resource, const char *verb)
{
	for (size_t i = 0; i < kube_rules_n; i++)
		if (kube_rules[i].tier <= tier && str_eq(kube_rules[i].group, group) &&
			str_eq(kube_rules[i].resource, resource) &&
			rbac_has_word(kube_rules[i].verbs, verb))
			return true;
	return false;
}

/*
 * Documents
 */

static struct json *words_list(const char *words)
{
	struct json *list = json_array();

	while (*words) {
		size_t len = strcspn(words, " ");
		AUTO_FREE char *word = mem_strndup(words, len);
		json_add_str(list, word);
		words += len + (words[len] == ' ');
	}
	return list;
}

static struct json *rules(const struct kube_rbac *rbac, bool everywhere)
{
	struct json *list = json_array();

	for (size_t i = 0; i < kube_rules_n; i++) {
		const struct kube_rule *row = &kube_rules[i];
		if (row->tier > rbac->tier || row->everywhere != everywhere)
			continue;
		struct json *names = str_eq(row->resource, "namespaces")
					     ? json_make("[%s]", rbac->kube_namespace)
					     : NULL;
		json_add(list,
			json_make("{'apiGroups': [%s], 'resources': [%s], 'resourceNames': %p, "
				  "'verbs': %p}",
				row->group, row->resource, (void *)names,
				(void *)words_list(row->verbs)));
	}
	return list;
}

static struct json *document(const char *kind, const char *name, const char *kube_namespace)
{
	return json_make("{'apiVersion': '" RBAC "/v1', 'kind': %s, "
			 "'metadata': {'name': %s, 'namespace': %s}}",
		kind, name, kube_namespace);
}

static struct json *binding(const struct kube_rbac *rbac, const char *role, bool everywhere)
{
	AUTO_FREE char *label = NULL, *name = NULL;
	struct json *json;
	bool is_account = str_eq(rbac->subject_kind, "ServiceAccount");

	/* Names of roles and bindings are path segments: anything but / and %. */
	label = mem_strdup(rbac->subject);
	for (char *c = label; *c; c++)
		if (strchr("/% ", *c))
			*c = '-';
	name = mem_printf("%s-%s", role, label);
	json = document(everywhere ? "ClusterRoleBinding" : "RoleBinding", name,
		everywhere ? NULL : rbac->kube_namespace);
	json_set(json, "roleRef",
		json_make("{'apiGroup': '" RBAC "', 'kind': %s, 'name': %s}",
			everywhere ? "ClusterRole" : "Role", role));
	json_set(json, "subjects",
		json_make("[{'apiGroup': %s, 'kind': %s, 'name': %s, 'namespace': %s}]",
			is_account ? NULL : RBAC, rbac->subject_kind, rbac->subject,
			is_account ? rbac->kube_namespace : NULL));
	return json;
}

static void rbac_print(struct json *take, bool first, struct buf *out)
{
	AUTO_JSON struct json *json = take;

	if (!first)
		buf_adds(out, "---\n");
	yaml_print(json, out);
}

static void print_pair(const struct kube_rbac *rbac, bool everywhere, struct buf *out)
{
	AUTO_FREE char *own = mem_printf("dlrun-%s", kube_tier_name(rbac->tier));
	const char *name = everywhere ? "dlrun-nodes" : own;
	struct json *role = document(everywhere ? "ClusterRole" : "Role", name,
		everywhere ? NULL : rbac->kube_namespace);

	json_set(role, "rules", rules(rbac, everywhere));
	rbac_print(role, !everywhere, out);
	rbac_print(binding(rbac, name, everywhere), false, out);
}

int kube_rbac_print(const struct kube_rbac *rbac, struct buf *out, struct err *err)
{
	static const char name_chars[] = "abcdefghijklmnopqrstuvwxyz0123456789-";
	const char *space = rbac->kube_namespace, *subject = rbac->subject;

	if (str_empty(space) || strlen(space) > 63 || strspn(space, name_chars) != strlen(space)) {
		AUTO_FREE char *shown = str_shown(space ? space : "");
		return err_set(err, E_KUBE_NAME, "'%s' cannot be the name of a namespace", shown);
	}
	if (str_empty(subject) || strlen(subject) > 200 || !str_is_plain(subject)) {
		AUTO_FREE char *shown = str_shown(subject ? subject : "");
		return err_set(err, E_KUBE_NAME, "'%s' cannot be the name of a user", shown);
	}
	print_pair(rbac, false, out);
	if (rbac->nodes)
		print_pair(rbac, true, out);
	return buf_check(out, "the Role", err);
}
