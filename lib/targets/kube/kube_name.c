/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/kube/kube_name.h"

#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "targets/kube/kube_open.h"

bool kube_name_is(const char *name)
{
	return str_eq(name, "kube") || str_starts(name, "kube:");
}

static size_t context_len(struct session *session, const char *text)
{
	const struct kubeconfig *kubeconfig;
	AUTO_STRV struct strv names = {0};
	size_t len = strcspn(text, "/"), longest = 0;

	if (text[len] && kube_open_config(session, &kubeconfig, NULL) == 0)
		kubeconfig_contexts(kubeconfig, &names);
	vec_foreach (char *, name, &names) {
		size_t n = strlen(*name);
		if (n > longest && strncmp(text, *name, n) == 0 && (!text[n] || text[n] == '/'))
			longest = n;
	}
	return longest ? longest : len;
}

void kube_name_split(
	struct session *session, const char *name, char **ret_context, char **ret_namespace)
{
	const char *rest = name + strlen("kube");

	rest += *rest == ':';
	size_t len = context_len(session, rest);
	*ret_context = len ? mem_strndup(rest, len) : NULL;
	*ret_namespace = rest[len] && rest[len + 1] ? mem_strdup(rest + len + 1) : NULL;
}
