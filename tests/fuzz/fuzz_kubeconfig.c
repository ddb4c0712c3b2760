/* SPDX-License-Identifier: Apache-2.0 */
/* Any text is read as one kubeconfig, and each of its contexts is made use of. */
#include <stdlib.h>
#include <string.h>

#include "base/util/str.h"
#include "kube/api/kubeconfig.h"

static void check_access(const struct kubeconfig *config, const char *name)
{
	AUTO_KUBE_ACCESS struct kube_access access = {0};
	AUTO_ERR struct err err = {0};

	if (kubeconfig_access(config, name, NULL, &access, &err) < 0) {
		if (!err.message || !*err.message || !str_is_utf8(err.message, strlen(err.message)))
			abort();
		return;
	}
	if (!access.server.host || !access.kube_namespace || str_ends(access.server.path, "/"))
		abort();
	if (access.token && strpbrk(access.token, "\r\n"))
		abort();
	if ((access.tls.cert_pem != NULL) != (access.tls.key_pem != NULL))
		abort();
	if (!access.server.tls && (access.token || access.token_file || access.exec))
		abort();
	if (access.exec && (str_empty(access.exec->command) || !access.exec->api_version))
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_KUBECONFIG struct kubeconfig *config = kubeconfig_new();
	AUTO_ERR struct err err = {0};
	AUTO_STRV struct strv names = {0};

	/* In a directory that is not there: files are named and never found. */
	static const char file[] = "/nowhere/there/config";
	int r = kubeconfig_add(config, (const char *)data, size, file, &err);
	if (r < 0 && err.id != E_KUBE_CONFIG)
		abort();
	if (r == 0)
		r = kubeconfig_add(config, (const char *)data, size, file, &err);
	if (r < 0)
		return 0;
	kubeconfig_contexts(config, &names);
	for (size_t i = 0; i < names.n; i++) {
		for (size_t j = 0; j < i; j++)
			if (str_eq(names.v[i], names.v[j]))
				abort();
		check_access(config, names.v[i]);
	}
	return 0;
}
