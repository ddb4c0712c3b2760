/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The environment of the program in a pod.
 */
#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/api/kinds.h"
#include "kube/job/job_impl.h"

/* The last value of a name, or NULL. */
static const char *list_get(const struct strv *list, const char *name, size_t len)
{
	for (size_t i = list ? list->n : 0; i-- > 0;)
		if (strncmp(list->v[i], name, len) == 0 && list->v[i][len] == '=')
			return list->v[i] + len + 1;
	return NULL;
}

static bool list_has(const struct strv *list, const char *name, size_t len)
{
	return list_get(list, name, len) != NULL;
}

bool job_user_sets(const struct kube_run *run, const char *name, size_t len)
{
	return list_has(run->env, name, len) || list_has(run->secret_env, name, len);
}

int job_check_text(const char *text, const char *what, struct err *err)
{
	if (str_is_utf8(text, strlen(text)))
		return 0;
	AUTO_FREE char *shown = str_shown(text);
	return err_set(err, E_USAGE, "%s '%s' is not UTF-8, and nothing else can be said to a pod",
		what, shown);
}

char *kube_escaped(const char *text)
{
	AUTO_BUF struct buf out;

	buf_init(&out, 2 * strlen(text));
	for (; *text; text++) {
		buf_addc(&out, *text);
		if (*text == '$' && (text[1] == '$' || text[1] == '('))
			buf_addc(&out, '$');
	}
	return buf_take(&out);
}

struct env_list {
	const struct job *job;
	struct json *list;
};

static struct json *add(struct env_list *env, const char *name, size_t len)
{
	struct json *item = json_object();

	json_set_bytes(item, "name", name, len);
	json_add(env->list, item);
	return item;
}

static void add_value(struct env_list *env, const char *name, size_t len, const char *value)
{
	AUTO_FREE char *escaped = kube_escaped(value);

	json_set_str(add(env, name, len), "value", escaped);
}

/* Set a variable of dlrun's own, unless the user sets it. */
static void fact(struct env_list *env, const char *name, const char *value)
{
	if (!job_user_sets(env->job->run, name, strlen(name)))
		add_value(env, name, strlen(name), value);
}

static void fact_int(struct env_list *env, const char *name, int64_t value)
{
	AUTO_FREE char *text = mem_printf("%lld", (long long)value);

	fact(env, name, text);
}

static void field(struct env_list *env, const char *name, const char *annotation)
{
	AUTO_FREE char *path = mem_printf("metadata.annotations['%s']", annotation);

	if (job_user_sets(env->job->run, name, strlen(name)))
		return;
	json_set_str(json_sub(json_sub(add(env, name, strlen(name)), "valueFrom"), "fieldRef"),
		"fieldPath", path);
}

static void rank(struct env_list *env, const char *name)
{
	if (env->job->is_gang)
		field(env, name, "batch.kubernetes.io/job-completion-index");
	else
		fact(env, name, "0");
}

/*
 * Variables of every target
 */

static void add_nodes(struct env_list *env)
{
	const struct job *job = env->job;
	AUTO_FREE char *first = job_host(job, 0);
	AUTO_FREE char *default_port = mem_printf("%d", KUBE_MASTER_PORT);
	AUTO_BUF struct buf all;

	buf_init(&all, 1 << 20);
	for (int i = 0; i < job->run->nodes; i++) {
		AUTO_FREE char *host = job_host(job, i);
		buf_addf(&all, "%s%s", i ? "," : "", host);
	}
	fact(env, "DLRUN_NODE_ADDRS", all.data);
	fact(env, "DLRUN_HOSTFILE", JOB_HOSTS_DIR "/hostfile");
	fact_int(env, "DLRUN_GPUS_PER_NODE", job->run->gpus);
	fact(env, "MASTER_ADDR", first);
	fact(env, "MASTER_PORT", default_port);
	fact_int(env, "NNODES", job->run->nodes);
	rank(env, "NODE_RANK");
	if (!job->is_gang)
		return;
	const char *address = list_get(job->run->env, "MASTER_ADDR", strlen("MASTER_ADDR"));
	const char *port = list_get(job->run->env, "MASTER_PORT", strlen("MASTER_PORT"));
	fact(env, "PET_MASTER_ADDR", address ? address : first);
	fact(env, "PET_MASTER_PORT", port ? port : default_port);
	fact_int(env, "PET_NNODES", job->run->nodes);
	rank(env, "PET_NODE_RANK");
	if (job->run->gpus > 0)
		fact_int(env, "PET_NPROC_PER_NODE", job->run->gpus);
}

static void add_run(struct env_list *env)
{
	const struct job *job = env->job;

	fact(env, "DLRUN_RUN_ID", job->run->run_id);
	fact_int(env, "DLRUN_ATTEMPT", job->run->attempt);
	if (job->counts)
		field(env, JOB_RETRIES,
			job->is_jobset ? KUBE_JOBSET_RESTART
				       : "batch.kubernetes.io/job-index-failure-count");
	fact(env, "DLRUN_OUTPUT_DIR", KUBE_OUTPUT_DIR);
	fact(env, "DLRUN_ATTEMPT_DIR", KUBE_ATTEMPT_DIR);
	if (job->is_restricted)
		fact(env, "HOME", KUBE_HOME_DIR);
}

/*
 * Variables of the user
 */

static void add_defaults(struct env_list *env, const struct strv *defaults)
{
	for (size_t i = 0; defaults && i < defaults->n; i++) {
		const char *pair = defaults->v[i];
		size_t len = strcspn(pair, "=");

		if (pair[len] && !job_user_sets(env->job->run, pair, len) &&
			!list_has(&env->job->run->image_env, pair, len))
			add_value(env, pair, len, pair + len + 1);
	}
}

/* The last one of a name counts. */
static bool is_last(const struct strv *list, size_t i)
{
	size_t len = strcspn(list->v[i], "=");
	struct strv rest = {.v = list->v + i + 1, .n = list->n - i - 1};

	return !list_has(&rest, list->v[i], len);
}

static void add_secret(struct env_list *env, const char *pair, size_t len)
{
	AUTO_FREE char *secret = kube_job_secret_name(env->job->run->job);
	struct json *ref = json_sub(json_sub(add(env, pair, len), "valueFrom"), "secretKeyRef");

	json_set_bytes(ref, "key", pair, len);
	json_set_str(ref, "name", secret);
}

static int add_user(struct env_list *env, struct err *err)
{
	const struct kube_run *run = env->job->run;

	for (size_t i = 0; run->env && i < run->env->n; i++) {
		const char *pair = run->env->v[i];
		size_t len = strcspn(pair, "=");
		int r = job_check_text(pair, "the variable", err);

		if (r < 0)
			return r;
		if (pair[len] && is_last(run->env, i) && !list_has(run->secret_env, pair, len))
			add_value(env, pair, len, pair + len + 1);
	}
	for (size_t i = 0; run->secret_env && i < run->secret_env->n; i++)
		if (is_last(run->secret_env, i))
			add_secret(env, run->secret_env->v[i], strcspn(run->secret_env->v[i], "="));
	return 0;
}

int job_env(const struct job *job, struct json *container, struct err *err)
{
	struct env_list env = {job, json_array()};

	json_set(container, "env", env.list);
	add_run(&env);
	add_nodes(&env);
	add_defaults(&env, job->run->defaults);
	return add_user(&env, err);
}
