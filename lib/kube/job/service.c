/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/job/service.h"

#include <stdio.h>
#include <string.h>

#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/status/object.h"

enum { SELECTOR_MAX = 16 << 10, PORT_MAX = 65535 };

/* Up to the separator, and past it. */
static bool service_take_name(const char **text, char end, char *out, size_t size)
{
	size_t len = strspn(*text, "abcdefghijklmnopqrstuvwxyz0123456789-");

	if (len == 0 || len >= size || (*text)[len] != end)
		return false;
	memcpy(out, *text, len);
	out[len] = '\0';
	*text += len + 1;
	return true;
}

int kube_service_parse(const char *text, struct kube_service_port *ret, struct err *err)
{
	const char *rest = text;
	int64_t port;

	*ret = (struct kube_service_port){0};
	if (!service_take_name(&rest, '/', ret->kube_namespace, sizeof(ret->kube_namespace)) ||
		!service_take_name(&rest, ':', ret->service, sizeof(ret->service)) ||
		str_to_int(rest, 1, PORT_MAX, "port", &port, NULL) < 0) {
		AUTO_FREE char *shown = str_shown(text);
		err_set(err, E_CONFIG, "registry.forward: '%s' is not NAMESPACE/SERVICE:PORT",
			shown);
		return err_hint(err,
			"registry: {push: registry.example.com/me/dlrun, forward: registry/registry:5000}");
	}
	ret->port = (uint16_t)port;
	return 0;
}

char *kube_service_selector(const struct json *service)
{
	const struct json *labels = kube_at(service, "spec.selector");
	AUTO_BUF struct buf text = buf_with(SELECTOR_MAX);

	if (!labels || !json_first(labels))
		return NULL;
	json_foreach (label, labels)
		buf_addf(&text, "%s%s=%s", text.len ? "," : "", json_key(label),
			json_str(label) ? json_str(label) : "");
	return mem_strndup(text.data, text.len);
}

static const struct json *service_find_port(const struct json *service, uint16_t port)
{
	const struct json *ports = kube_at(service, "spec.ports");

	json_foreach (item, ports)
		if (json_get_int(item, "port", 0) == port)
			return item;
	return NULL;
}

static int64_t named_port(const struct json *pod, const char *name)
{
	const struct json *containers = kube_at(pod, "spec.containers");

	json_foreach (c, containers)
		json_foreach (port, json_get(c, "ports"))
			if (str_eq(json_get_str(port, "name"), name))
				return json_get_int(port, "containerPort", 0);
	return 0;
}

/* A number, a name in the pod, or nothing: the Service's own. 0: the pod has none. */
static uint16_t target_port(const struct json *port, const struct json *pod)
{
	const char *name = json_get_str(port, "targetPort");
	int64_t number = json_get_int(port, "targetPort", json_get_int(port, "port", 0));

	if (name)
		number = named_port(pod, name);
	return number > 0 && number <= PORT_MAX ? (uint16_t)number : 0;
}

int kube_service_find(const struct kube_service_port *where, const struct json *service,
	const struct json *pods, struct kube_service_pod *ret, struct err *err)
{
	const struct json *port = service_find_port(service, where->port);

	if (!port) {
		err_set(err, E_KUBE_NOT_FOUND, "service %s in namespace %s has no port %u",
			where->service, where->kube_namespace, where->port);
		return err_hint(
			err, "kubectl -n %s get service %s", where->kube_namespace, where->service);
	}
	json_foreach (pod, json_get(pods, "items")) {
		const char *name = kube_str_at(pod, "metadata.name");
		uint16_t number = target_port(port, pod);

		if (!name || strlen(name) >= sizeof(ret->name) || !number ||
			!(!kube_at(pod, "metadata.deletionTimestamp") &&
				kube_condition_is(pod, "Ready", "True")))
			continue;
		snprintf(ret->name, sizeof(ret->name), "%s", name);
		ret->port = number;
		return 0;
	}
	size_t n = json_count(json_get(pods, "items"));

	if (n == 0)
		err_set(err, E_KUBE_FORWARD, "service %s in namespace %s has no pods",
			where->service, where->kube_namespace);
	else
		err_set(err, E_KUBE_FORWARD,
			"none of the %zu pods of service %s in namespace %s is ready", n,
			where->service, where->kube_namespace);
	return err_hint(
		err, "kubectl -n %s describe service %s", where->kube_namespace, where->service);
}
