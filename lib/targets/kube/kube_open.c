/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/kube/kube_open.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/data/json.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/digest.h"
#include "base/util/enc.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "targets/kube/kube_watcher.h"

#define SERVICE_ACCOUNT_DIR "/var/run/secrets/kubernetes.io/serviceaccount"

struct kube_clusters {
	struct kubeconfig *config;
	struct VEC_OF(struct kube_cluster *) list;
	char *cache_dir, *pin_file;
};

static void cluster_free(struct kube_cluster *cluster)
{
	kube_watchers_done(&cluster->watchers);
	json_free(cluster->nodes);
	kube_client_free(cluster->client);
	http_free(cluster->http);
	kube_access_done(&cluster->access);
	free(cluster);
}

void kube_clusters_free(struct kube_clusters *clusters)
{
	if (!clusters)
		return;
	vec_foreach (struct kube_cluster *, cluster, &clusters->list)
		cluster_free(*cluster);
	vec_done(&clusters->list);
	kubeconfig_free(clusters->config);
	free(clusters->cache_dir);
	free(clusters->pin_file);
	free(clusters);
}

static void end_clusters(struct session *session)
{
	kube_clusters_free(TAKE(session->clusters));
}

static struct kube_clusters *clusters_of(struct session *session)
{
	const struct dirs *dirs = &session->dirs;

	if (!session->clusters) {
		session->clusters = mem_alloc(1, sizeof(*session->clusters));
		*session->clusters = (struct kube_clusters){
			.cache_dir = fs_join(dirs->cache, "kube"),
			.pin_file = fs_join(dirs->state, "kube-plugins"),
		};
		session_at_end(session, end_clusters);
	}
	return session->clusters;
}

int kube_open_config(struct session *session, const struct kubeconfig **ret, struct err *err)
{
	struct kube_clusters *clusters = clusters_of(session);
	const char *const *env = session->env.env;
	const struct tree_place *place = NULL;
	int r = 0;

	if (!clusters->config) {
		/* Outside of any tree there is none to be wary of. */
		if (session_place(session, &place, NULL) < 0)
			place = NULL;
		const struct kubeconfig_env from = {
			.kubeconfig = env_get(env, "KUBECONFIG"),
			.home = session->dirs.home,
			.cwd = session->env.cwd,
			.tree = place ? place->root : NULL,
			.service_host = env_get(env, "KUBERNETES_SERVICE_HOST"),
			.service_port = env_get(env, "KUBERNETES_SERVICE_PORT"),
			.service_account_dir = SERVICE_ACCOUNT_DIR,
		};
		r = kubeconfig_load(&from, &clusters->config, err);
	}
	*ret = clusters->config;
	return r;
}

static struct kube_cluster *find(
	const struct kube_clusters *clusters, const struct kube_access *wanted)
{
	vec_foreach (struct kube_cluster *, item, &clusters->list) {
		const struct kube_access *access = &(*item)->access;
		if (str_eq(access->context, wanted->context) &&
			str_eq(access->kube_namespace, wanted->kube_namespace))
			return *item;
	}
	return NULL;
}

static void set_server_id(struct kube_cluster *cluster)
{
	AUTO_FREE char *url = url_text(&cluster->access.server);
	uint8_t sha256[SHA256_SIZE];
	char hex[SHA256_HEX_SIZE];

	digest_sha256(url, strlen(url), sha256);
	hex_encode(sha256, sizeof(sha256), hex);
	memcpy(cluster->server_id, hex, KUBE_SERVER_ID_SIZE - 1);
	cluster->server_id[KUBE_SERVER_ID_SIZE - 1] = '\0';
}

static void note(void *ctx, const char *text)
{
	(void)ctx;
	log_note("%s", text);
}

static int connect_to(struct session *session, struct kube_cluster *cluster, struct err *err)
{
	const struct kube_clusters *clusters = session->clusters;
	const char *const *env = session->env.env;
	struct http_options http = {
		.loop = session_loop(session),
		.user_agent = "dlrun",
		.ca_file = env_get(env, "SSL_CERT_FILE"),
	};
	struct kube_client_options options = {
		.loop = session_loop(session),
		.access = &cluster->access,
		.plugin =
			{
				.cache_dir = clusters->cache_dir,
				.pin_file = clusters->pin_file,
				.env = env,
				.tty_fd = session->env.has_terminal ? 0 : -1,
				.note = session->env.say,
				.ctx = session->env.say_ctx,
			},
		.note = note,
	};

	proxy_env_read(env, &http.proxy);
	int r = fs_private_dir(clusters->cache_dir, err);
	if (r == 0)
		r = fs_private_dir(session->dirs.state, err);
	if (r < 0)
		return r;
	cluster->http = http_new(&http);
	options.http = cluster->http;
	cluster->client = kube_client_new(&options);
	return 0;
}

/* access is taken. */
static int add_cluster(struct session *session, struct kube_access *access,
	struct kube_cluster **ret, struct err *err)
{
	struct kube_cluster *cluster = mem_alloc(1, sizeof(*cluster));

	*cluster = (struct kube_cluster){.access = *access};
	*access = (struct kube_access){0};
	int r = connect_to(session, cluster, err);
	if (r < 0) {
		cluster_free(cluster);
		return r;
	}
	set_server_id(cluster);
	*vec_push(&session->clusters->list) = cluster;
	*ret = cluster;
	return 0;
}

int kube_open(struct session *session, const char *context, const char *kube_namespace,
	struct kube_cluster **ret, struct err *err)
{
	AUTO_KUBE_ACCESS struct kube_access access = {0};
	const struct kubeconfig *config;

	int r = kube_open_config(session, &config, err);
	if (r == 0)
		r = kubeconfig_access(config, context, kube_namespace, &access, err);
	if (r < 0)
		return r;
	struct kube_cluster *cluster = find(session->clusters, &access);
	if (!cluster)
		return add_cluster(session, &access, ret, err);
	*ret = cluster;
	return 0;
}
