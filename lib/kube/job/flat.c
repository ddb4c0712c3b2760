/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/util/auto.h"
#include "base/util/str.h"
#include "kube/job/job_impl.h"
#include "kube/job/overlay.h"

/*
 * Roles without a JobSet: one Indexed Job, whose completion index is the rank in the run. All pods
 * have the variables of the first role; lines of shell in front of the program set those of the
 * pod's own role, and append its words.
 */

static const struct json *flat_find(const struct json *env, const char *name)
{
	json_foreach (item, env)
		if (str_eq(json_get_str(item, "name"), name))
			return item;
	return NULL;
}

/* A value as Kubernetes would expand it. */
static void flat_add_value(struct buf *out, const char *value)
{
	AUTO_BUF struct buf text = buf_with(JOB_FLAT_MAX);

	for (; *value; value++) {
		buf_addc(&text, *value);
		if (value[0] == '$' && value[1] == '$')
			value++;
	}
	job_add_quoted(out, text.data);
}

/* The index stands for the rank: of a variable that is one, the rank within the role. */
static void flat_set(struct buf *out, const struct json *item, int first)
{
	const char *name = json_get_str(item, "name"), *value = json_get_str(item, "value");

	buf_addf(out, "\texport %s=", name);
	if (value)
		flat_add_value(out, value);
	else
		buf_addf(out, "$((JOB_COMPLETION_INDEX - %d))", first);
	buf_adds(out, "\n");
}

static void flat_add_env(
	struct buf *out, const struct json *base, const struct json *own, int first)
{
	json_foreach (item, base)
		if (!flat_find(own, json_get_str(item, "name")))
			buf_addf(out, "\tunset %s\n", json_get_str(item, "name"));
	json_foreach (item, own) {
		const struct json *before = flat_find(base, json_get_str(item, "name"));
		const char *field = json_get_str(
			json_get(json_get(item, "valueFrom"), "fieldRef"), "fieldPath");
		bool is_rank = first > 0 && field && strstr(field, KUBE_INDEX);

		if (is_rank || !before || !overlay_is_same(before, item))
			flat_set(out, item, first);
	}
}

int job_flat_add_role(
	const struct job *job, const struct json *base, struct buf *out, struct err *err)
{
	AUTO_JSON struct json *own = json_object();
	AUTO_STRV struct strv words = {0};
	int r = job_env(job, own, err);

	if (r < 0)
		return r;
	buf_addf(out, "%s [ \"$JOB_COMPLETION_INDEX\" -lt %d ]; then\n", job->first ? "elif" : "if",
		job->first + job->run->nodes);
	flat_add_env(out, base, json_get(own, "env"), job->first);
	job_add_command(job->run, job->run->command, &words);
	buf_adds(out, "\tset -- \"$@\"");
	for (size_t i = 0; i < words.n; i++) {
		buf_adds(out, " ");
		job_add_quoted(out, words.v[i]);
	}
	buf_adds(out, "\n");
	return 0;
}

int job_flat_check(const struct kube_run *run, struct err *err)
{
	for (size_t i = 0; i < run->n_roles; i++) {
		if (run->roles[i].gpus == run->roles[0].gpus)
			continue;
		err_set(err, E_TARGET_UNSUPPORTED,
			"roles with different GPUs need JobSet, and the cluster has none that you "
			"may use");
		return err_hint(err, "kubectl get crd jobsets.jobset.x-k8s.io");
	}
	return 0;
}

void job_flat_note(const struct job *job)
{
	const struct kube_run *run = job->run;
	bool differs = false;

	for (size_t i = 0; i < run->n_roles; i++)
		differs = differs || run->roles[i].cpu_milli != run->cpu_milli ||
			  run->roles[i].memory_bytes != run->memory_bytes;
	if (job->is_flat && differs)
		strv_add(job->notes,
			"the cluster has no JobSet: each node asks for the CPUs and memory of the "
			"role that wants most");
}
