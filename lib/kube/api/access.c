/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/api/access.h"

#include <stdlib.h>
#include <string.h>

#include "base/data/json.h"

static void exec_free(struct kube_exec *exec)
{
	if (!exec)
		return;
	free(exec->command);
	strv_done(&exec->args);
	strv_done(&exec->env);
	free(exec->api_version);
	free(exec->install_hint);
	free(exec->file);
	json_free(exec->cluster_config);
	free(exec);
}

static void wipe(char *secret)
{
	if (secret)
		explicit_bzero(secret, strlen(secret));
	free(secret);
}

void kube_access_done(struct kube_access *access)
{
	if (!access)
		return;
	free(access->context);
	free(access->cluster);
	free(access->user);
	free(access->kube_namespace);
	url_done(&access->server);
	free(access->ca_pem);
	free(access->cert_pem);
	wipe(access->key_pem);
	free(access->server_name);
	wipe(access->proxy);
	wipe(access->token);
	free(access->token_file);
	free(access->username);
	wipe(access->password);
	exec_free(access->exec);
	free(access->as);
	free(access->as_uid);
	strv_done(&access->as_groups);
	strv_done(&access->as_extra);
	strv_done(&access->warnings);
	*access = (struct kube_access){0};
}
