/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/job/review.h"

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"

static struct json *review(const char *api_version, const char *kind)
{
	struct json *body = json_object();

	json_set_str(body, "apiVersion", api_version);
	json_set_str(body, "kind", kind);
	return body;
}

struct json *kube_who_ask(void)
{
	return review("authentication.k8s.io/v1", "SelfSubjectReview");
}

const char *kube_who_name(const struct json *review)
{
	return json_get_str(json_get(json_get(review, "status"), "userInfo"), "username");
}

struct json *kube_may_ask(const struct kube_deed *deed)
{
	struct json *body = review("authorization.k8s.io/v1", "SelfSubjectAccessReview");
	struct json *what = json_sub(json_sub(body, "spec"), "resourceAttributes");

	if (deed->kube_namespace)
		json_set_str(what, "namespace", deed->kube_namespace);
	json_set_str(what, "verb", deed->verb);
	json_set_str(what, "group", deed->group);
	json_set_str(what, "resource", deed->resource);
	if (deed->sub)
		json_set_str(what, "subresource", deed->sub);
	return body;
}

struct json *kube_rules_ask(const char *kube_namespace)
{
	struct json *body = review("authorization.k8s.io/v1", "SelfSubjectRulesReview");

	json_set_str(json_sub(body, "spec"), "namespace", kube_namespace);
	return body;
}

static bool has_word(const struct json *list, const char *word)
{
	for (const struct json *m = list ? json_first(list) : NULL; m; m = json_next(m))
		if (str_eq(json_str(m), word) || str_eq(json_str(m), "*"))
			return true;
	return false;
}

/* "pods", "pods/log", and for all of its kind "*" and "*" "/log". */
static bool has_resource(const struct json *list, const struct kube_deed *deed)
{
	const char *sub = deed->sub ? deed->sub : "";
	AUTO_FREE char *own = mem_printf("%s%s%s", deed->resource, *sub ? "/" : "", sub);
	AUTO_FREE char *any = mem_printf("*/%s", sub);

	return has_word(list, own) || (*sub && has_word(list, any));
}

bool kube_rules_grant(const struct json *review, const struct kube_deed *deed)
{
	const struct json *rules = json_get(json_get(review, "status"), "resourceRules");

	for (const struct json *rule = rules ? json_first(rules) : NULL; rule;
		rule = json_next(rule))
		if (json_count(json_get(rule, "resourceNames")) == 0 &&
			has_word(json_get(rule, "verbs"), deed->verb) &&
			has_word(json_get(rule, "apiGroups"), deed->group) &&
			has_resource(json_get(rule, "resources"), deed))
			return true;
	return false;
}
