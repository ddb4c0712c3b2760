#include "kube/review.h"

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
