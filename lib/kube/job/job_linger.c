/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A second container, for results that end with the pod: it keeps them until they have been taken.
 */
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/job/job_impl.h"

enum {
	SCRIPT_MAX = 8 << 10,
	LOOKS_MAX = 1500, /* a fifth of a second each: the node starts the program first */
};
#define MEMORY     (UINT64_C(32) << 20)
#define MEMORY_MAX (UINT64_C(512) << 20) /* for tar or Python, by which they are read */
#define WANTED     KUBE_ATTEMPT_DIR "/wanted"

/*
 * The program's script holds the pipe open, and whatever ends it closes that. Behind that the exit
 * code is known to the cluster already, since it is the other container's. TERM is the removal of
 * the pod, or somebody who has taken the results. What the program leaves when the pod is being
 * removed waits for as long as the node lets it, where somebody has announced that he takes it.
 */
static const char wait_lines[] =
	"n= i=0 a=" KUBE_ATTEMPT_DIR "\n"
	"trap 'n=1' TERM INT QUIT\n"
	"until [ -e \"$a/alive\" ]; do\n"
	"\t[ $((i += 1)) -le %d ] && [ -z \"$n\" ] || exit 0\n"
	"\tsleep 0.2 2>/dev/null || sleep 1\n"
	"done\n"
	"if [ -p \"$a/alive\" ]; then\n"
	"\texec 8<>\"$a/alive\"\n"
	"\texec 7<\"$a/alive\" 8>&-\n"
	"\tcat <&7 >/dev/null &\n"
	"else\n"
	"\tread -r p <\"$a/alive\"\n"
	"\twhile kill -0 \"$p\" 2>/dev/null; do sleep 1; done &\n"
	"fi\n"
	"p=$!\n"
	"while kill -0 $p 2>/dev/null; do wait $p; done\n"
	"k=\n"
	"if [ \"$n\" ]; then\n"
	"\t[ -e " KUBE_ANNOUNCED " ] || exit 0\n"
	"\tn= k=1\n"
	"%s"
	"fi\n"
	"[ \"$k$(find " KUBE_OUTPUT_DIR " -path " KUBE_OUTPUT_DIR "/" KUBE_COLLECTED
	" -prune -o ! -type d -print 2>/dev/null | head -c 1)\" ] || exit 0\n"
	"sleep %lld &\n"
	"p=$!\n"
	"trap 'kill $p 2>/dev/null' TERM INT QUIT\n"
	"[ -z \"$n\" ] || exit 0\n"
	"echo $$ >\"$a/linger.new\" && mv \"$a/linger.new\" \"$a/linger\"\n"
	"while kill -0 $p 2>/dev/null; do wait $p; done\n"
	"exit 0\n";

/* A failed one that is tried again would only hold that up, and the others of a gang go on until
 * its pod has ended. */
static bool is_conditional(const struct job *job)
{
	return job->is_gang || job->counts;
}

void job_linger_begin(const struct job *job, struct buf *script)
{
	if (job->lingers)
		buf_adds(script, "mkfifo " KUBE_ATTEMPT_DIR "/new && exec 9<>" KUBE_ATTEMPT_DIR
				 "/new || echo $$ >" KUBE_ATTEMPT_DIR "/new\n"
				 "mv " KUBE_ATTEMPT_DIR "/new " KUBE_ATTEMPT_DIR "/alive\n");
}

void job_linger_end(const struct job *job, struct buf *script)
{
	if (!job->lingers || !is_conditional(job))
		return;
	buf_adds(script, "case $c in\n0) : >" WANTED " ;;\n");
	if (!job->is_gang)
		buf_addf(script,
			"12[45678]) : >" WANTED " ;;\n"
			"*) [ \"${" JOB_RETRIES ":-0}\" -lt %d ] || : >" WANTED " ;;\n",
			job->run->retries);
	buf_adds(script, "esac\n");
}

/* Quotas ask for what the program's container has, too. */
static void set_resources(const struct kube_run *run, struct json *container)
{
	struct json *resources;

	if (run->cpu_milli <= 0 && !run->memory_bytes)
		return;
	resources = json_sub(container, "resources");
	if (run->cpu_milli > 0)
		json_set_str(json_sub(resources, "requests"), "cpu", "10m");
	if (!run->memory_bytes)
		return;
	job_set_bytes(json_sub(resources, "requests"), "memory", MEMORY);
	job_set_bytes(json_sub(resources, "limits"), "memory", MEMORY_MAX);
}

static int set_command(const struct job *job, struct json *container, struct err *err)
{
	const struct kube_run *run = job->run;
	AUTO_STRV struct strv words = {0};
	AUTO_BUF struct buf script;

	buf_init(&script, SCRIPT_MAX);
	buf_addf(&script, wait_lines, (int)LOOKS_MAX,
		is_conditional(job) ? "elif ! [ -e " WANTED " ]; then\n\texit 0\n" : "",
		(long long)((run->linger_ms + 999) / 1000));
	job_shell_words(job, &words);
	strv_add(&words, "-c");
	strv_add_take(&words, buf_take(&script));
	return job_set_words(container, "command", &words, err);
}

/* Any container gets GPUs that requests them by this variable, as images for GPUs do. */
static void set_env(struct json *container)
{
	struct json *list = json_array(), *none = json_object();

	json_set_str(none, "name", "NVIDIA_VISIBLE_DEVICES");
	json_set_str(none, "value", "void");
	json_add(list, none);
	json_set(container, "env", list);
}

/* Mount the directories that the container keeps, and the user's own volumes: the shell may lie in
 * one of them. */
static bool is_mounted(const struct job *job, const char *path)
{
	for (size_t i = 0; i < job->run->n_volumes; i++)
		if (str_eq(job->run->volumes[i].path, path))
			return true;
	return str_eq(path, KUBE_OUTPUT_DIR) || str_eq(path, KUBE_ATTEMPT_DIR);
}

int job_linger(const struct job *job, struct json *containers, struct err *err)
{
	struct json *container, *mounts;

	if (!job->lingers)
		return 0;
	container = json_object();
	mounts = json_array();
	json_set_str(container, "name", KUBE_KEEPER);
	json_set_str(container, "image", job->run->image_ref);
	json_set_str(container, "imagePullPolicy", "IfNotPresent");
	json_set_str(container, "workingDir", "/");
	set_env(container);
	set_resources(job->run, container);
	job_container_security(job, container);
	for (const struct json *item = json_first(job->mounts); item; item = json_next(item))
		if (is_mounted(job, json_get_str(item, "mountPath")))
			json_add(mounts, json_clone(item));
	json_set(container, "volumeMounts", mounts);
	json_add(containers, container);
	return set_command(job, container, err);
}
