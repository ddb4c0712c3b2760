/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The configuration of registries: `registry:` at the top level and in targets.
 */
#ifndef DLRUN_CORE_CONFIG_REGISTRY_CONFIG_H
#define DLRUN_CORE_CONFIG_REGISTRY_CONFIG_H

#include <stdbool.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "core/config/config.h"

#define REGISTRY_NONE "none" /* in place of a repository: the code does without one */

/* Strings are owned. */
struct registry_config {
	char *push;       /* HOST[:PORT]/REPO */
	char *pull;       /* the same repository as runs name it; push where nothing else is said */
	char *ca;         /* absolute path, or NULL */
	char *cert, *key; /* the same; both or neither */
	char *forward;    /* "NAMESPACE/SERVICE:PORT" in the cluster of target; or NULL */
	char *target;     /* with forward */
	bool insecure;
};
void registry_config_done(struct registry_config *config);
#define AUTO_REGISTRY_CONFIG AUTO(registry_config_done)

/* The registry of a target (NULL: none in particular), else the one at the top level: 1, or 0 if
 * there is none, or none is wanted. E_CONFIG for one with `forward` where the target is no
 * cluster. */
int registry_config_find(const struct config *config, const char *target_name,
	struct registry_config *ret, struct err *err);
/* Whether none is wanted. */
bool registry_config_is_off(const struct config *config, const char *target_name);
/* Settings for the registry at host ("host[:port]", in any case), wherever the configuration has
 * them: ca, cert, key and insecure apply to base images and other repositories of it, too. All NULL
 * and false: none. */
void registry_config_for_host(
	const struct config *config, const char *host, struct registry_config *ret);
/* Every repository that can be pushed to, each once: the one at the top level, then those of
 * targets; not those with `forward` where the target is no cluster. */
void registry_config_all(const struct config *config, struct strv *ret);

#endif
