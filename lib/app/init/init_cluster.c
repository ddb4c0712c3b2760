/* SPDX-License-Identifier: Apache-2.0 */
#include "app/init/init.h"

#include <stdlib.h>
#include <string.h>

#include "base/loop/loop.h"
#include "base/os/env.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "oci/auth/credentials.h"
#include "oci/model/ref.h"
#include "targets/kube/kube_open.h"

void init_cluster_list_done(struct init_cluster_list *list)
{
	vec_foreach (struct init_cluster, cluster, list) {
		free(cluster->name);
		free(cluster->context);
		free(cluster->kube_namespace);
		kube_poll_done(&cluster->poll);
	}
	vec_done(list);
}

/*
 * Names
 */

/* "arn:aws:eks:eu-1:123:cluster/prod" is prod. */
char *init_target_name(const char *context)
{
	const char *last = strrchr(context, '/');
	char name[RUN_NAME_MAX + 1];
	bool mapped;

	last = last && last[1] ? last + 1 : context;
	if (run_name_map(last, name, &mapped, NULL) < 0 || str_eq(name, "local") ||
		str_eq(name, "kube"))
		return mem_strdup("cluster");
	return mem_strdup(name);
}

static bool is_taken(const struct init_cluster_list *list, const char *name)
{
	vec_foreach (const struct init_cluster, cluster, list)
		if (str_eq(cluster->name, name))
			return true;
	return false;
}

static int fail_context(const struct strv *names, const char *context, struct err *err)
{
	AUTO_FREE char *shown = str_shown(context);
	const char *near = str_suggest(context, (const char *const *)names->v, names->n);

	err_set(err, E_KUBE_CONTEXT, "there is no context '%s' in the kubeconfig", shown);
	if (near)
		return err_hint(err, "dlrun init --target kube:%s", near);
	return err_hint(err, "kubectl config get-contexts");
}

/* context is replaced by the current one where it is NULL. */
static int check_context(struct session *session, char **context, struct err *err)
{
	const struct kubeconfig *kubeconfig;
	AUTO_STRV struct strv names = {0};

	int r = kube_open_config(session, &kubeconfig, *context ? NULL : err);
	if (r < 0)
		return *context ? 0 : r;
	kubeconfig_contexts(kubeconfig, &names);
	if (!*context)
		*context = mem_strdup(kubeconfig_current(kubeconfig));
	if (!*context) {
		err_set(err, E_KUBE_CONTEXT, "the kubeconfig has no current context");
		return names.n ? err_hint(err, "dlrun init --target kube:%s", names.v[0])
			       : err_hint(err, "kubectl config get-contexts");
	}
	return strv_find(&names, *context) < 0 ? fail_context(&names, *context, err) : 0;
}

int init_cluster_add(
	struct session *session, const char *text, struct init_cluster_list *list, struct err *err)
{
	AUTO_FREE char *context = NULL, *kube_namespace = NULL;
	struct init_cluster *cluster;

	if (!kube_name_is(text)) {
		AUTO_FREE char *shown = str_shown(text);

		err_set(err, E_USAGE,
			"--target %s: init writes clusters, kube[:CONTEXT[/NAMESPACE]]", shown);
		return err_hint(err, "dlrun init --target kube");
	}
	kube_name_split(session, text, &context, &kube_namespace);
	int r = check_context(session, &context, err);
	if (r < 0)
		return r;
	AUTO_FREE char *wanted = init_target_name(context ? context : "cluster");
	char *name = mem_strdup(wanted);

	for (int i = 2; is_taken(list, name); i++)
		REPLACE(name, mem_printf("%.30s-%d", wanted, i));
	cluster = vec_push(list);
	cluster->name = name;
	cluster->context = TAKE(context);
	cluster->kube_namespace = TAKE(kube_namespace);
	return 0;
}

int init_cluster_probe(struct session *session, struct init_cluster_list *list, int64_t limit_ms,
	const volatile int *interrupted, struct err *err)
{
	AUTO_FREE struct kube_poll *polls = mem_alloc(list->n + 1, sizeof(*polls));

	for (size_t i = 0; i < list->n; i++) {
		polls[i] = (struct kube_poll){0};
		polls[i].context = list->v[i].context;
		polls[i].kube_namespace = list->v[i].kube_namespace;
		polls[i].claims = true;
	}
	int r = kube_poll_all(session, polls, list->n, limit_ms, interrupted, err);
	for (size_t i = 0; i < list->n; i++)
		list->v[i].poll = polls[i];
	return r;
}

/*
 * Registries
 */

static struct credential_env credential_env_of(const struct session *session)
{
	const char *const *env = session->env.env;

	return (struct credential_env){
		.home = session->dirs.home,
		.registry_auth_file = env_get(env, "REGISTRY_AUTH_FILE"),
		.docker_config = env_get(env, "DOCKER_CONFIG"),
		.xdg_runtime_dir = env_get(env, "XDG_RUNTIME_DIR"),
		.xdg_config_home = env_get(env, "XDG_CONFIG_HOME"),
		.env = env,
	};
}

void init_find_logins(struct session *session, struct strv *ret)
{
	struct credential_env env = credential_env_of(session);

	credential_hosts(&env, ret);
}

struct lookup {
	struct loop_wait wait;
	char *user;
};

static int init_cluster_on_found(void *ctx, struct credential *found,
	const struct strv *warnings UNUSED, struct err *error UNUSED, struct err *err UNUSED)
{
	struct lookup *lookup = ctx;

	if (found && found->user && str_is_plain(found->user))
		lookup->user = mem_strdup(found->user);
	loop_wait_done(&lookup->wait);
	return 0;
}

char *init_login_user(struct session *session, const char *host, int64_t limit_ms)
{
	struct credential_env env = credential_env_of(session);
	struct lookup lookup = {.wait = {.loop = session_loop(session),
					.n_open = 1,
					.deadline_ms = clock_deadline(limit_ms)}};
	size_t len = strcspn(host, "/");
	AUTO_FREE char *name = mem_strndup(host, len);
	const char *repo = host[len] ? host + len + 1 : "dlrun";
	struct credential_lookup *call = credential_start(
		lookup.wait.loop, &env, name, repo, init_cluster_on_found, &lookup);

	loop_wait_run(&lookup.wait, NULL);
	credential_free(call);
	return lookup.user;
}

/* Users of some registries are no people: <token>, AWS, _json_key, oauth2accesstoken. */
static bool init_cluster_is_namespace(const char *user)
{
	static const char others[] = "aws oauth2accesstoken token nologin "
				     "00000000-0000-0000-0000-000000000000";
	static const char chars[] = "abcdefghijklmnopqrstuvwxyz0123456789-";

	return !str_is_word_of(user, others) && strspn(user, chars) == strlen(user) &&
	       *user != '-' && !str_ends(user, "-") && !strstr(user, "--");
}

char *init_repository(const char *host, const char *user, const char *name)
{
	AUTO_FREE char *lower = user ? str_lower(user, strlen(user)) : NULL;
	const char *last = str_empty(name) ? "dlrun" : name;

	if (!strchr(host, '/') && !str_empty(lower) && init_cluster_is_namespace(lower))
		return mem_printf("%s/%s/%s", host, lower, last);
	return mem_printf("%s/%s", host, last);
}

int init_check_repository(const char *text, struct err *err)
{
	AUTO_REF struct ref ref = {0};
	AUTO_FREE char *shown = str_shown(text);

	if (ref_parse(text, &ref, NULL) == 0 && ref.kind == REF_REGISTRY && !ref.tag && !ref.digest)
		return 0;
	err_set(err, E_USAGE, "'%s' is not a repository in the form HOST[:PORT]/REPO", shown);
	return err_hint(err, "dlrun init --registry registry.example.com/me/dlrun");
}
