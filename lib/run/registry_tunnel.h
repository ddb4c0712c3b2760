/*
 * A registry in a cluster, reached through a tunnel of our own (registry.forward): connections to
 * its name are led over a port-forward (kube/podforward.h) to a pod of its Service that is ready.
 * The listener in between takes what comes from this client only, not what others of this machine
 * connect.
 */
#ifndef DLRUN_RUN_REGISTRY_TUNNEL_H
#define DLRUN_RUN_REGISTRY_TUNNEL_H

#include <stdbool.h>

#include "base/err.h"
#include "net/http.h"
#include "run/session.h"
#include "run/target.h"

struct registry_tunnel_options {
	struct session *session;
	struct target *target;                     /* the cluster, where it is open */
	const char *target_name;                   /* else */
	const char *host;                          /* "host[:port]" of the registry */
	const char *forward;                       /* "NAMESPACE/SERVICE:PORT" */
	struct http *http;                         /* is freed before the tunnel */
	void (*note)(void *ctx, const char *text); /* or NULL */
	void *ctx;
};

/* Begins to look for the Service; why it cannot be reached is told by the requests to it: kube.*
 * errors of their own. E_CONFIG, E_TARGET, E_LISTEN; what target_open says. */
struct registry_tunnel;
int registry_tunnel_open(const struct registry_tunnel_options *options,
	struct registry_tunnel **ret, struct err *err);
bool registry_tunnel_leads_to(const struct registry_tunnel *tunnel, const char *host);
/* NULL is accepted. */
void registry_tunnel_free(struct registry_tunnel *tunnel);

#endif
