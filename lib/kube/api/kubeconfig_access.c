/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/os/fs.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/api/kubeconfig.h"
#include "kube/api/kubeconfig_impl.h"
#include "net/http/proxy.h"

enum { NAMESPACE_MAX = 63 };

/*
 * Clusters
 */

static int take_server(
	const struct kubeconfig_where *cluster, struct kube_access *access, struct err *err)
{
	AUTO_FREE char *server = NULL;
	AUTO_ERR struct err fault = {0};
	int r = kubeconfig_text(cluster, "server", &server, err);

	if (r < 0)
		return r;
	if (!server)
		return kubeconfig_bad(cluster, err, "it has no server");
	if (!strstr(server, "://")) {
		AUTO_FREE char *shown = str_shown(server);
		kubeconfig_bad(cluster, err, "server does not begin with https://");
		return err_hint(err, "write server: https://%s", shown);
	}
	if (url_parse(server, "server", &access->server, &fault) < 0)
		return kubeconfig_bad(cluster, err, "%s", fault.message);
	char *path = access->server.path;
	path[strcspn(path, "?")] = '\0';
	for (size_t len = strlen(path); len > 0 && path[len - 1] == '/'; len--)
		path[len - 1] = '\0';
	return 0;
}

/* Put into the form that http.c takes; Go looks up names at a SOCKS proxy. */
static int take_proxy(
	const struct kubeconfig_where *cluster, struct kube_access *access, struct err *err)
{
	AUTO_FREE char *text = NULL, *proxy = NULL;
	struct url anywhere = {.tls = true, .host = (char[]){"anywhere"}, .port = 443};
	int r = kubeconfig_text(cluster, "proxy-url", &text, err);

	if (r < 0 || !text)
		return r;
	const struct proxy_env env = {.https_proxy = text};
	if (!strstr(text, "://") || proxy_for(&env, &anywhere, &proxy, NULL) < 0 || !proxy)
		return kubeconfig_bad(
			cluster, err, "proxy-url is not http://, https:// or socks5://HOST:PORT");
	access->proxy = str_starts(proxy, "socks5://")
				? mem_printf("socks5h%s", proxy + strlen("socks5"))
				: TAKE(proxy);
	return 0;
}

static int take_tls(
	const struct kubeconfig_where *cluster, struct kube_access *access, struct err *err)
{
	int r = kubeconfig_pem(cluster, "certificate-authority", &access->ca_pem, err);

	if (r == 0)
		r = kubeconfig_text(cluster, "tls-server-name", &access->server_name, err);
	if (r == 0)
		r = kubeconfig_bool(
			cluster, "insecure-skip-tls-verify", &access->tls.insecure, err);
	if (r < 0)
		return r;
	if (access->tls.insecure && access->ca_pem)
		return kubeconfig_bad(cluster, err,
			"certificate-authority and insecure-skip-tls-verify cannot be used together");
	return 0;
}

static void warn(struct kube_access *access)
{
	AUTO_FREE char *shown = url_shown(&access->server);

	if (access->server.tls && access->tls.insecure)
		strv_addf(&access->warnings,
			"the certificate of %s is not checked (insecure-skip-tls-verify): whoever "
			"is in between can read and change everything",
			shown);
	if (!access->server.tls && !url_is_loopback(&access->server))
		strv_addf(&access->warnings,
			"%s is asked without encryption, so no login is sent to it", shown);
}

/* The configuration of the cluster for an exec plugin (ExecCredential, spec.cluster.config). */
static struct json *exec_config(const struct json *cluster)
{
	const struct json *list = json_get(cluster, "extensions");

	for (const struct json *item = json_first(list); item; item = json_next(item))
		if (str_eq(json_get_str(item, "name"), "client.authentication.k8s.io/exec"))
			return json_get(item, "extension") ? json_clone(json_get(item, "extension"))
							   : NULL;
	return NULL;
}

static int take_cluster(
	const struct kubeconfig_entry *entry, struct kube_access *access, struct err *err)
{
	const struct kubeconfig_where cluster = {"cluster", entry};
	int r = take_server(&cluster, access, err);

	if (r == 0)
		r = take_proxy(&cluster, access, err);
	if (r == 0)
		r = take_tls(&cluster, access, err);
	if (r == 0)
		warn(access);
	return r;
}

/*
 * Contexts
 */

static int fail_context(const struct kubeconfig *config, const char *name, struct err *err)
{
	AUTO_STRV struct strv names = {0};
	AUTO_FREE char *shown = str_shown(name);

	kubeconfig_contexts(config, &names);
	err_set(err, E_KUBE_CONTEXT, "there is no context \"%s\" in %s", shown,
		config->files.n == 1 ? config->files.v[0] : "the kubeconfigs");
	const char *meant = str_suggest(name, (const char *const *)names.v, names.n);
	if (!meant)
		return err_hint(err, "kubectl config get-contexts");
	AUTO_FREE char *near_shown = str_shown(meant);
	return err_hint(err, "did you mean %s?", near_shown);
}

static int fail_no_current(const struct kubeconfig *config, struct err *err)
{
	AUTO_FREE char *shown = str_shown(config->contexts.v[0].name);

	err_set(err, E_KUBE_CONTEXT, "%s sets no current-context", config->files.v[0]);
	return err_hint(err, "kubectl config use-context %s", shown);
}

/* The member of entries that the context names at key; NULL if it names none. */
static int follow(const struct kubeconfig_where *context, const char *key,
	const struct kubeconfig_entries *entries, const struct kubeconfig_entry **ret,
	struct err *err)
{
	AUTO_FREE char *name = NULL;
	int r = kubeconfig_text(context, key, &name, err);

	if (r < 0 || !name)
		return r;
	*ret = kubeconfig_find(entries, name);
	if (*ret)
		return 0;
	AUTO_FREE char *shown = str_shown(name);
	return kubeconfig_bad(
		context, err, "it names the %s \"%s\", which no kubeconfig has", key, shown);
}

/* A DNS label (RFC 1123). */
static bool is_namespace(const char *name)
{
	static const char inner[] = "abcdefghijklmnopqrstuvwxyz0123456789-";
	size_t len = strlen(name);

	return len > 0 && len <= NAMESPACE_MAX && strspn(name, inner) == len && *name != '-' &&
	       name[len - 1] != '-';
}

static int take_namespace(const struct kubeconfig_where *context, const char *wanted,
	struct kube_access *access, struct err *err)
{
	AUTO_FREE char *own = NULL;
	int r = context ? kubeconfig_text(context, "namespace", &own, err) : 0;

	if (r < 0)
		return r;
	const char *name = wanted ? wanted : own ? own : "default";
	if (!is_namespace(name)) {
		AUTO_FREE char *shown = str_shown(name);
		return err_set(err, E_KUBE_CONFIG,
			"\"%s\" cannot be a namespace: up to 63 of a-z, 0-9 and -", shown);
	}
	free(access->kube_namespace);
	access->kube_namespace = mem_strdup(name);
	return 0;
}

static void point(struct kube_access *access)
{
	access->tls.ca_pem = access->ca_pem;
	access->tls.cert_pem = access->cert_pem;
	access->tls.key_pem = access->key_pem;
	access->tls.server_name = access->server_name;
}

static int take_context(const struct kubeconfig *config, const struct kubeconfig_entry *entry,
	const char *kube_namespace, struct kube_access *access, struct err *err)
{
	const struct kubeconfig_where context = {"context", entry};
	const struct kubeconfig_entry *cluster = NULL, *user = NULL;
	int r = follow(&context, "cluster", &config->clusters, &cluster, err);

	if (r == 0)
		r = follow(&context, "user", &config->users, &user, err);
	if (r < 0)
		return r;
	if (!cluster)
		return kubeconfig_bad(&context, err, "it names no cluster");
	access->context = mem_strdup(entry->name);
	access->cluster = mem_strdup(cluster->name);
	access->user = mem_strdup(user ? user->name : "");
	r = take_cluster(cluster, access, err);
	if (r == 0)
		r = take_namespace(&context, kube_namespace, access, err);
	/* As client-go has it: no login goes over a connection that anybody can read. */
	if (r == 0 && user && access->server.tls)
		r = kubeconfig_take_user(user, access, err);
	if (r == 0 && access->exec)
		access->exec->cluster_config = exec_config(cluster->body);
	return r;
}

/*
 * Pods
 */

static int read_account(const char *dir, const char *name, char **ret, struct err *err)
{
	AUTO_FREE char *path = mem_printf("%s/%s", dir, name);
	AUTO_BUF struct buf text = {0};
	AUTO_ERR struct err fault = {0};

	if (fs_read(path, KUBECONFIG_PEM_MAX, &text, NULL, &fault) < 0)
		return err_set(err, E_KUBE_CONFIG, "%s", fault.message);
	while (text.len > 0 && strchr(" \t\r\n", text.data[text.len - 1]))
		buf_truncate(&text, text.len - 1);
	*ret = buf_take(&text);
	return 0;
}

int kubeconfig_in_cluster(
	const struct kubeconfig *config, struct kube_access *access, struct err *err)
{
	const char *dir = config->service_account_dir, *host = config->service_host;
	bool is_ip6 = strchr(host, ':') && *host != '[';
	AUTO_FREE char *server = mem_printf("https://%s%s%s:%s", is_ip6 ? "[" : "", host,
		is_ip6 ? "]" : "", config->service_port);
	AUTO_FREE char *own = NULL;
	AUTO_ERR struct err fault = {0};

	access->context = mem_strdup(KUBECONFIG_IN_CLUSTER);
	access->cluster = mem_strdup(KUBECONFIG_IN_CLUSTER);
	access->user = mem_strdup(KUBECONFIG_IN_CLUSTER);
	if (url_parse(server, "KUBERNETES_SERVICE_HOST", &access->server, &fault) < 0)
		return err_set(err, E_KUBE_CONFIG, "%s", fault.message);
	access->server.path[0] = '\0';
	access->token_file = mem_printf("%s/token", dir);
	int r = read_account(dir, "ca.crt", &access->ca_pem, err);
	if (r == 0 && read_account(dir, "namespace", &own, NULL) < 0)
		own = NULL;
	return r == 0 ? take_namespace(NULL, own, access, err) : r;
}

static int make_access(const struct kubeconfig *config, const char *name,
	const char *kube_namespace, struct kube_access *access, struct err *err)
{
	if (!name)
		name = kubeconfig_current(config);
	if (!name)
		return fail_no_current(config, err);
	if (config->service_host && str_eq(name, KUBECONFIG_IN_CLUSTER)) {
		int r = kubeconfig_in_cluster(config, access, err);
		if (r == 0 && kube_namespace)
			r = take_namespace(NULL, kube_namespace, access, err);
		return r;
	}
	const struct kubeconfig_entry *context = kubeconfig_find(&config->contexts, name);
	if (!context)
		return fail_context(config, name, err);
	return take_context(config, context, kube_namespace, access, err);
}

int kubeconfig_access(const struct kubeconfig *config, const char *context,
	const char *kube_namespace, struct kube_access *ret, struct err *err)
{
	AUTO_KUBE_ACCESS struct kube_access access = {0};
	int r = make_access(config, context, kube_namespace, &access, err);

	if (r < 0)
		return r;
	point(&access);
	*ret = access;
	access = (struct kube_access){0};
	return 0;
}
