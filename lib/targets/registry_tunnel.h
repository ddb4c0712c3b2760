/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A registry in a cluster, reached through a tunnel of our own (registry.forward): connections to
 * its name are led over a port-forward (podforward.h) to a pod of its Service that is ready.
 * The listener in between takes what comes from this client only, not what others of this machine
 * connect.
 */
#ifndef DLRUN_TARGETS_REGISTRY_TUNNEL_H
#define DLRUN_TARGETS_REGISTRY_TUNNEL_H

#include "base/util/err.h"
#include "core/image/registry_open.h"

/* session_env.open_tunnel. Begins to look for the Service; why it cannot be reached is told by the
 * requests to it: kube.* errors of their own. E_CONFIG, E_TARGET, E_LISTEN; what target_open
 * says. */
int registry_tunnel_open(const struct registry_tunnel_options *options,
	struct registry_tunnel **ret, struct err *err);

#endif
