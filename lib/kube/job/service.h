/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Find the pod and port behind a port of a Service as kubectl port-forward does: the first ready
 * pod of the Service's selector. An engine.
 */
#ifndef DLRUN_KUBE_JOB_SERVICE_H
#define DLRUN_KUBE_JOB_SERVICE_H

#include <stdint.h>

#include "base/data/json.h"
#include "base/util/err.h"

enum { KUBE_NAMESPACE_SIZE = 64, KUBE_SERVICE_SIZE = 64, KUBE_POD_SIZE = 254 };

/* "NAMESPACE/SERVICE:PORT" */
struct kube_service_port {
	char kube_namespace[KUBE_NAMESPACE_SIZE];
	char service[KUBE_SERVICE_SIZE];
	uint16_t port;
};
/* E_CONFIG, naming text. */
int kube_service_parse(const char *text, struct kube_service_port *ret, struct err *err);

/* A labelSelector for its pods; NULL if it has none. The caller frees. */
char *kube_service_selector(const struct json *service);

struct kube_service_pod {
	char name[KUBE_POD_SIZE];
	uint16_t port; /* of the pod */
};
/* pods: a List of those that the selector finds. E_KUBE_NOT_FOUND (no such port), E_KUBE_FORWARD
 * (no pod that is ready). */
int kube_service_find(const struct kube_service_port *where, const struct json *service,
	const struct json *pods, struct kube_service_pod *ret, struct err *err);

#endif
