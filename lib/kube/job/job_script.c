/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/api/kinds.h"
#include "kube/job/job_impl.h"

/*
 * Names and parts that many need
 */

static void job_shell_words(const struct job *job, struct strv *ret);

static bool job_has_script(const struct job *job);

char *kube_job_claim_name(const char *run_id)
{
	return mem_printf("%s-results", run_id);
}

char *kube_job_code_name(const char *job, size_t i)
{
	return mem_printf("%s-code-%zu", job, i);
}

char *kube_job_secret_name(const char *job)
{
	return mem_printf("%s-env", job);
}

void job_set_bytes(struct json *object, const char *key, uint64_t bytes)
{
	static const char *const units[] = {"", "Ki", "Mi", "Gi", "Ti"};
	size_t unit = 0;

	while (bytes && bytes % 1024 == 0 && unit + 1 < ARRAY_LEN(units)) {
		bytes /= 1024;
		unit++;
	}
	AUTO_FREE char *text = mem_printf("%llu%s", (unsigned long long)bytes, units[unit]);
	json_set_str(object, key, text);
}

const char *job_gpu_resource(const struct kube_run *run)
{
	return run->gpu_resource ? run->gpu_resource : JOB_GPU;
}

void job_resources(const struct job *job, struct json *container, bool with_gpus)
{
	const struct kube_run *run = job->run;
	AUTO_JSON struct json *requests = json_object(), *limits = json_object();
	AUTO_FREE char *cpu = mem_printf(run->cpu_milli % 1000 ? "%lldm" : "%lld",
		(long long)(run->cpu_milli % 1000 ? run->cpu_milli : run->cpu_milli / 1000));

	if (run->cpu_milli > 0)
		json_set_str(requests, "cpu", cpu);
	if (run->memory_bytes) {
		job_set_bytes(requests, "memory", run->memory_bytes);
		job_set_bytes(limits, "memory", run->memory_bytes);
	}
	if (run->disk_bytes)
		job_set_bytes(requests, "ephemeral-storage", run->disk_bytes);
	if (with_gpus && run->gpus > 0 && !run->is_warming) {
		job_set_bytes(requests, job_gpu_resource(run), (uint64_t)run->gpus);
		job_set_bytes(limits, job_gpu_resource(run), (uint64_t)run->gpus);
	}
	if (json_count(requests) == 0)
		return;
	struct json *resources = json_sub(container, "resources");
	if (json_count(limits))
		json_set(resources, "limits", TAKE(limits));
	json_set(resources, "requests", TAKE(requests));
}

void job_container_security(const struct job *job, struct json *container)
{
	if (job->is_restricted)
		json_set(container, "securityContext",
			json_make("{'allowPrivilegeEscalation': false, "
				  "'capabilities': {'drop': ['ALL']}}"));
}

char *job_gang(const struct job *job)
{
	return kube_kind_job(job->is_jobset ? KUBE_KIND_JOBSET : KUBE_KIND_JOB, job->run->job);
}

/* Without the end that its pod has. */
char *job_pod_name(const struct job *job, int rank)
{
	bool is_part = job->role && job->is_jobset;
	AUTO_FREE char *name =
		is_part ? mem_printf("%s-%s-0", job->run->job, job->role->name) : job_gang(job);

	return mem_printf("%s-%d", name, job->is_jobset ? rank : job->first + rank);
}

char *job_host(const struct job *job, int rank)
{
	AUTO_FREE char *name = job_pod_name(job, rank);

	if (!job->is_gang)
		return mem_strdup("127.0.0.1");
	return mem_printf("%s.%s", name, job->run->job);
}

char *kube_role_host(const struct kube_run *run, size_t role, int rank)
{
	struct job job = {
		.run = run, .role = &run->roles[role], .is_gang = true, .is_jobset = run->jobset};

	for (size_t i = 0; i < role; i++)
		job.first += run->roles[i].nodes;
	return job_host(&job, rank);
}

/*
 * The environment of the program in a pod.
 */

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

/* "DLRUN_X" is set by the user, openly or as a secret. */
static bool job_user_sets(const struct kube_run *run, const char *name, size_t len)
{
	return list_has(run->env, name, len) || list_has(run->secret_env, name, len);
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

static struct json *job_script_add(struct env_list *env, const char *name, size_t len)
{
	struct json *item = json_object();

	json_set_bytes(item, "name", name, len);
	json_add(env->list, item);
	return item;
}

static void job_script_add_value(
	struct env_list *env, const char *name, size_t len, const char *value)
{
	AUTO_FREE char *escaped = kube_escaped(value);

	json_set_str(job_script_add(env, name, len), "value", escaped);
}

/* Set a variable of dlrun's own, unless the user sets it. */
static void fact(struct env_list *env, const char *name, const char *value)
{
	if (!job_user_sets(env->job->run, name, strlen(name)))
		job_script_add_value(env, name, strlen(name), value);
}

static void fact_int(struct env_list *env, const char *name, int64_t value)
{
	AUTO_FREE char *text = mem_printf("%lld", (long long)value);

	fact(env, name, text);
}

void job_add_field(struct json *list, const char *name, const char *path)
{
	json_add(list, json_make("{'name': %s, 'valueFrom': {'fieldRef': {'fieldPath': %s}}}", name,
			       path));
}

static void job_script_field(struct env_list *env, const char *name, const char *annotation)
{
	AUTO_FREE char *path = mem_printf("metadata.annotations['%s']", annotation);

	if (!job_user_sets(env->job->run, name, strlen(name)))
		job_add_field(env->list, name, path);
}

static void rank(struct env_list *env, const char *name)
{
	if (env->job->is_gang)
		job_script_field(env, name, KUBE_INDEX);
	else
		fact(env, name, "0");
}

/*
 * Variables of every target
 */

static void job_script_add_role(struct env_list *env)
{
	const struct kube_role *role = env->job->role;

	for (size_t i = 0; role && role->variables && i < role->variables->n; i++) {
		const char *pair = role->variables->v[i];
		AUTO_FREE char *name = mem_strndup(pair, strcspn(pair, "="));
		fact(env, name, pair + strlen(name) + 1);
	}
	if (role)
		rank(env, "DLRUN_ROLE_RANK");
}

static void add_nodes(struct env_list *env)
{
	const struct job *job = env->job;
	AUTO_FREE char *first = job_host(job, 0);
	AUTO_FREE char *default_port = mem_printf("%d", KUBE_MASTER_PORT);
	AUTO_BUF struct buf all = buf_with(1 << 20);

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
	job_script_add_role(env);
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

/* The index comes first: Kubernetes expands what stands before in the list. */
static void job_script_add_study(struct env_list *env)
{
	const struct kube_run *run = env->job->run;
	struct json *list = env->list;
	AUTO_FREE char *id = job_member_id(run), *size = mem_printf("%zu", run->n_members);

	job_add_field(list, JOB_INDEX, "metadata.annotations['" KUBE_INDEX "']");
	json_add(list, json_make("{'name': 'DLRUN_RUN_ID', 'value': %s}", id));
	json_add(list, json_make("{'name': 'DLRUN_STUDY', 'value': %s}", run->run_id));
	json_add(list, json_make("{'name': 'DLRUN_STUDY_INDEX', 'value': '$(" JOB_INDEX ")'}"));
	json_add(list, json_make("{'name': 'DLRUN_STUDY_SIZE', 'value': %s}", size));
}

bool job_reads_s3(const struct kube_run *run)
{
	for (size_t i = 0; i < run->n_data; i++)
		if (run->data[i].place.kind == KUBE_PLACE_S3)
			return true;
	return false;
}

static void job_script_add_run(struct env_list *env)
{
	const struct job *job = env->job;

	if (job_reads_s3(job->run))
		job_add_field(env->list, JOB_POD, "metadata.uid");
	if (job->run->n_members)
		job_script_add_study(env);
	else
		fact(env, "DLRUN_RUN_ID", job->run->run_id);
	fact_int(env, "DLRUN_ATTEMPT", job->run->attempt);
	if (job->counts)
		job_script_field(env, JOB_RETRIES,
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

/* The last one of a name counts. */
static bool is_last(const struct strv *list, size_t i)
{
	size_t len = strcspn(list->v[i], "=");
	struct strv rest = {.v = list->v + i + 1, .n = list->n - i - 1};

	return !list_has(&rest, list->v[i], len);
}

static int job_script_add_env(struct env_list *env, struct err *err)
{
	const struct kube_run *run = env->job->run;

	for (size_t i = 0; run->env && i < run->env->n; i++) {
		const char *pair = run->env->v[i];
		size_t len = strcspn(pair, "=");
		int r = job_check_text(pair, "the variable", err);

		if (r < 0)
			return r;
		if (pair[len] && is_last(run->env, i) && !list_has(run->secret_env, pair, len) &&
			!job_is_member_variable(run, pair, len))
			job_script_add_value(env, pair, len, pair + len + 1);
	}
	return 0;
}

int job_env(const struct job *job, struct json *container, struct err *err)
{
	struct env_list env = {job, json_array()};

	json_set(container, "env", env.list);
	job_script_add_run(&env);
	add_nodes(&env);
	const struct kube_run *run = job->run;
	const struct strv *defaults = run->defaults;
	for (size_t i = 0; defaults && i < defaults->n; i++) {
		const char *pair = defaults->v[i];
		size_t len = strcspn(pair, "=");

		if (pair[len] && !job_user_sets(run, pair, len) &&
			!job_is_member_variable(run, pair, len) &&
			!list_has(&run->image_env, pair, len))
			job_script_add_value(&env, pair, len, pair + len + 1);
	}
	int r = job_script_add_env(&env, err);
	if (r < 0)
		return r;
	for (size_t i = 0; run->secret_env && i < run->secret_env->n; i++)
		if (is_last(run->secret_env, i)) {
			const char *pair = run->secret_env->v[i];
			size_t len = strcspn(run->secret_env->v[i], "=");
			AUTO_FREE char *secret = kube_job_secret_name(run->job);
			struct json *ref =
				json_sub(json_sub(job_script_add(&env, pair, len), "valueFrom"),
					"secretKeyRef");

			json_set_bytes(ref, "key", pair, len);
			json_set_str(ref, "name", secret);
		}
	return 0;
}

/*
 * Collect the files that a program leaves in its tree: copy them to the results, and put them into
 * the tree of the next attempt.
 */

enum { SCRIPT_MAX = 64 << 10, YIELD_S = 10 };

#define MARKS KUBE_OUTPUT_DIR "/" KUBE_COLLECTED

/* Names that are never collected. */
static const char *const caches[] = {".git", "__pycache__", ".pytest_cache", ".mypy_cache",
	".ruff_cache", ".ipynb_checkpoints", "*.pyc", "*.pyo"};

static void add_test(struct buf *out, const char *what, const char *pattern)
{
	AUTO_FREE char *path = str_eq(what, "-path") ? mem_printf("./%s", pattern) : NULL;

	buf_addf(out, " -o %s ", what);
	job_add_quoted(out, path ? path : pattern);
}

/* A path as a pattern that means nothing else. */
static char *escaped_pattern(const char *path)
{
	AUTO_BUF struct buf out = buf_with(SCRIPT_MAX);

	for (; *path; path++) {
		if (strchr("*?[\\", *path))
			buf_adds(&out, "\\");
		buf_add(&out, path, 1);
	}
	return buf_take(&out);
}

/* Volumes are not walked into (-xdev), but one of a single file would be a file of the tree. */
static void add_skipped(const struct job *job, struct buf *out)
{
	const struct kube_run *run = job->run;
	const struct strv none = {0}, *exclude = run->exclude ? run->exclude : &none;

	buf_adds(out, "\\( -name .dlrun-never");
	for (size_t i = 0; i < ARRAY_LEN(caches); i++)
		add_test(out, "-name", caches[i]);
	for (size_t i = 0; i < exclude->n; i++)
		add_test(out, strchr(exclude->v[i], '/') ? "-path" : "-name", exclude->v[i]);
	for (size_t i = 0; i < run->n_data; i++) {
		AUTO_FREE char *path = escaped_pattern(run->data[i].path);
		add_test(out, "-path", path);
	}
	for (size_t i = 0; run->sent && i < run->sent->n; i++) {
		AUTO_FREE char *path = escaped_pattern(run->sent->v[i]);
		add_test(out, "-path", path);
	}
	buf_adds(out, " \\)");
}

/* For a script in the pod: its rank in the run. The caller frees. */
static char *job_rank(const struct job *job)
{
	return job->first ? mem_printf("$((%d + ${JOB_COMPLETION_INDEX:-0}))", job->first)
			  : mem_strdup("${JOB_COMPLETION_INDEX:-0}");
}

/* A script for the pod, which collects. The caller frees. */
static char *job_collector(const struct job *job)
{
	const struct kube_run *run = job->run;
	unsigned long long most = run->collect_bytes < INT64_MAX ? run->collect_bytes : INT64_MAX;
	AUTO_FREE char *rank = job_rank(job);
	AUTO_BUF struct buf out = buf_with(SCRIPT_MAX);

	buf_addf(&out, "i=%s", run->n_members ? "0" : rank);
	buf_adds(&out, " a=" KUBE_ATTEMPT_DIR " o=" KUBE_OUTPUT_DIR "\n"
		       "m=" MARKS "/rank-$i t=" MARKS "/new-$i\n");
	if (job->shares_results)
		buf_adds(&out, "[ \"$i\" = 0 ] || o=$o/rank-$i\n");
	buf_addf(&out, "most=%llu notes=" KUBE_COLLECTED " told='" KUBE_JOB_RESULTS "'\nr=", most);
	job_add_quoted(&out, run->workdir);
	buf_adds(&out, "\nnames() { find \"${at:-.}\" -xdev $old ");
	add_skipped(job, &out);
	buf_adds(&out, " -prune -o \"$@\"; }\n");
	buf_adds(&out, job_collect_script);
	return buf_take(&out);
}

/*
 * A second container, for results that end with the pod: it keeps them until they have been taken.
 */

enum {
	POLLS_MAX = 1500, /* a fifth of a second each: the node starts the program first */
};
#define WANTED KUBE_ATTEMPT_DIR "/wanted"

/*
 * The program's script holds the pipe open, and whatever ends it closes that. Behind that the exit
 * code is known to the cluster already, since it is the other container's. TERM is the removal of
 * the pod, or somebody who has taken the results. What the program leaves when the pod is being
 * removed waits for as long as the node lets it, where somebody has announced that he takes it.
 * The end of the sleep is KILL: TERM is lost in a new process that still has this shell's traps.
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
	"trap 'kill -s KILL $p 2>/dev/null' TERM INT QUIT\n"
	"[ -z \"$n\" ] || exit 0\n"
	"echo $$ >\"$a/linger.new\" && mv \"$a/linger.new\" \"$a/linger\"\n"
	"while kill -0 $p; do wait $p; done 2>/dev/null\n"
	"exit 0\n";

/* A failed one that is tried again would only hold that up, and the others of a gang go on until
 * its pod has ended. */
static bool is_conditional(const struct job *job)
{
	return job->is_gang || job->counts;
}

static void job_linger_end(const struct job *job, struct buf *script)
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
static void job_script_set_resources(const struct kube_run *run, struct json *container)
{
	const char *cpu = run->cpu_milli > 0 ? "10m" : NULL;

	/* tar, by which results are read, takes memory. */
	if (run->memory_bytes)
		json_set(container, "resources",
			json_make("{'requests': {'cpu': %s, 'memory': '32Mi'}, "
				  "'limits': {'memory': '512Mi'}}",
				cpu));
	else if (cpu)
		json_set(container, "resources", json_make("{'requests': {'cpu': %s}}", cpu));
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

/* Any container gets GPUs that requests them by this variable, as images for GPUs do. */
static void job_script_no_gpus(struct json *list)
{
	json_add(list, json_make("{'name': 'NVIDIA_VISIBLE_DEVICES', 'value': 'void'}"));
}

void job_s3_env(const struct json *program, struct json *list)
{
	job_script_no_gpus(list);

	json_foreach (item, json_get(program, "env")) {
		const char *name = json_get_str(item, "name");

		if (name && (str_starts(name, "AWS_") || str_ends(name, "_PROXY") ||
				    str_ends(name, "_proxy") || str_eq(name, "SSL_CERT_FILE")))
			json_add(list, json_clone(item));
	}
}

void job_python_words(
	const struct job *job, const char *lines, const char *program, struct strv *ret)
{
	if (job->python) {
		strv_add(ret, job->python);
		strv_add(ret, "-ESc");
	} else {
		strv_add(ret, "/bin/sh");
		strv_add(ret, "-c");
		strv_addf(ret, "%sexec python3 -ESc \"$0\" \"$@\"", lines);
	}
	strv_add(ret, program);
}

/* The container sends results to S3, instead of waiting for somebody who takes them. */
static int job_upload_words(const struct job *job, struct json *container, struct err *err)
{
	const struct kube_run *run = job->run;
	bool is_study = run->n_members > 0;
	AUTO_FREE char *id = is_study ? job_member_id(run) : mem_strdup(run->run_id);
	AUTO_FREE char *to = kube_escaped(run->results_s3);
	AUTO_FREE char *address = mem_printf("%s/%s", to, id);
	AUTO_FREE char *first = mem_printf("%d", is_study ? -1 : job->first);
	AUTO_FREE char *seconds = mem_printf("%lld", (long long)(run->linger_ms + 999) / 1000);
	AUTO_STRV struct strv words = {0};

	job_python_words(job, "trap '' TERM INT QUIT\n", job_upload_script, &words);
	json_set(container, "args", json_make("[%s, %s, %s]", address, first, seconds));
	return job_set_words(container, "command", &words, err);
}

int job_linger(const struct job *job, struct json *containers, struct err *err)
{
	struct json *container, *mounts;

	if (!job->lingers)
		return 0;
	container = json_make("{'name': '" KUBE_KEEPER "', 'image': %s, "
			      "'imagePullPolicy': 'IfNotPresent', 'workingDir': '/'}",
		job->run->image_ref);
	mounts = json_array();
	struct json *list = json_array();

	if (job->run->results_s3)
		job_s3_env(json_first(containers), list);
	else
		job_script_no_gpus(list);
	json_set(container, "env", list);
	job_script_set_resources(job->run, container);
	job_container_security(job, container);
	json_foreach (item, job->mounts)
		if (is_mounted(job, json_get_str(item, "mountPath")))
			json_add(mounts, json_clone(item));
	json_set(container, "volumeMounts", mounts);
	json_add(containers, container);
	if (job->run->results_s3)
		return job_upload_words(job, container, err);
	const struct kube_run *run = job->run;
	AUTO_STRV struct strv words = {0};
	AUTO_BUF struct buf script = buf_with(SCRIPT_MAX);

	buf_addf(&script, wait_lines, (int)POLLS_MAX,
		is_conditional(job) ? "elif ! [ -e " WANTED " ]; then\n\texit 0\n" : "",
		(long long)((run->linger_ms + 999) / 1000));
	job_shell_words(job, &words);
	strv_add(&words, "-c");
	strv_add_take(&words, buf_take(&script));
	return job_set_words(container, "command", &words, err);
}

/*
 * How the program of a pod is started: as it is, or from one POSIX script.
 */

/* A virtual environment, or one of conda, that was not there before is the program's. */
static const char venv_before[] =
	"d=$1 s=$2 l=" KUBE_ATTEMPT_DIR "/setup.log had=\n"
	"shift 2\n"
	"for v in .venv venv; do\n"
	"\t[ ! -f \"$d/$v/pyvenv.cfg\" ] && [ ! -d \"$d/$v/conda-meta\" ] || had=\"$had$v \"\n"
	"done\n";
static const char venv_after[] = "for v in .venv venv; do\n"
				 "\tcase \" $had\" in *\" $v \"*) continue ;; esac\n"
				 "\tif [ -d \"$d/$v/conda-meta\" ]; then\n"
				 "\t\texport CONDA_PREFIX=\"$d/$v\"\n"
				 "\t\tunset VIRTUAL_ENV\n"
				 "\telse\n"
				 "\t\t[ -f \"$d/$v/pyvenv.cfg\" ] || continue\n"
				 "\t\texport VIRTUAL_ENV=\"$d/$v\" UV_NO_SYNC=\"${UV_NO_SYNC-1}\"\n"
				 "\t\tunset CONDA_PREFIX\n"
				 "\tfi\n"
				 "\texport PATH=\"$d/$v/bin:$PATH\"\n"
				 "\tunset PYTHONHOME\n"
				 "\tbreak\n"
				 "done\n";

/* The output of the setup is shown if it fails. Its files are in the tree itself. */
static const char setup_lines[] =
	"(cd -- \"$d\" && exec /bin/sh -c \"$s\") >\"$l\" 2>&1 || {\n"
	"\tc=$?\n"
	"\techo 'dlrun: setup failed, its output:' >&2\n"
	"\tcat \"$l\" >&2\n"
	"\tprintf 'dlrun: setup failed with exit %s: %s\\n' \"$c\" \"${s%%\n*}\" >&2\n"
	"\tprintf '" KUBE_JOB_SETUP "' >/dev/termination-log\n"
	"\texit 125\n"
	"}\n";

/* $s: the tree. What it has itself stays. */
static const char baked_lines[] = "while IFS= read -r l; do\n"
				  "\tcase $l in */*) [ -d \"$s/${l%/*}\" ] || continue ;; esac\n"
				  "\t[ ! -e \"$s/$l\" ] && [ ! -h \"$s/$l\" ] || continue\n"
				  "\tln -s \"" KUBE_BAKED "/$l\" \"$s/$l\" && continue\n"
				  "\tprintf '" KUBE_JOB_SETUP "' >/dev/termination-log\n"
				  "\texit 125\n"
				  "done <" KUBE_BAKED_LINKS "\n";

/* Files that the tree has at that path itself are a part of the data. */
static const char sent_lines[] =
	"sent() {\n"
	"\t[ ! -h \"$2\" ] || return 0\n"
	"\tmkdir -p \"${2%/*}\" && rm -rf \"$2\" && ln -s \"$1\" \"$2\" && return\n"
	"\tprintf 'dlrun: data: %s cannot be linked into the tree\\n' \"$2\" >&2\n"
	"\texit 125\n"
	"}\n";

/* "$@" is a text for the shell and its arguments then. */
static const char bash_lines[] =
	"if command -v bash >/dev/null 2>&1; then b=bash; else b=/bin/sh; fi\n"
	"set -- \"$b\" -c \"$@\"\n";

/* Behind `before`, which may have made another PATH; as program.c has it. */
static const char exec_lines[] =
	"case $1 in */*) ;; *) command -v -- \"$1\" >/dev/null || {\n"
	"printf 'dlrun: %s: command not found\\n' \"$1\" >&2; exit 127; } ;; esac\n"
	"exec \"$@\"";

/*
 * Staying in front of the program. All of the container is one process group, so kill 0 reaches
 * what the program has started, as for a local run. n: a signal came, wait again. e: it came before
 * the program's number was known, which a handler's own command in the background would replace.
 * The program is told a moment later then, because commands in the background ignore INT and QUIT,
 * which only env of coreutils can undo.
 */
static const char stay_begin[] =
	"n= t= s= p= e=\n"
	"pass() { %strap '' %s; kill -s %s 0; kill -s CONT 0; trap 'n=1; term' %s%s; }\n"
	"trap 'n=1; term' %s\n"; /* one of them is the image's STOPSIGNAL */
/* A handler of TERM may be called twice. Another signal comes once, though both the limit and the
 * node may ask for it: the second KeyboardInterrupt would end what the first one began. */
static const char pass_once[] = "pass() { :; }; ";
static const char stay_term[] = "term() { if [ \"$p\" ]; then pass; else e=1; fi; }\n";
static const char stay_limit[] =
	"limit() { if [ \"$t\" ]; then kill -s KILL \"$p\"; else t=1; pass; fi; }\n"
	"trap 'n=1; limit' %s\n";
static const char stay_default[] = "if env --default-signal=INT,QUIT >/dev/null 2>&1; then\n"
				   "\tset -- env --default-signal=INT,QUIT \"$@\"\n";
/* A stop signal that would be ignored is not dropped in silence. Python itself ignores two signals,
 * which the program would inherit. */
static const char stay_hears[] =
	"elif command -v python3 >/dev/null; then\n"
	"\tset -- python3 -ESc 'import os, signal, sys\n"
	"for s in signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGXFSZ:\n"
	"    signal.signal(s, signal.SIG_DFL)\n"
	"try: os.execvp(sys.argv[1], sys.argv[1:])\n"
	"except OSError as e: sys.exit(print(sys.argv[1], e, file=sys.stderr, sep=\": \") or 127)' "
	"\"$@\"\n"
	"else\n"
	"\techo 'dlrun: stop_signal: %s needs an image with python3, or env of coreutils 8.31' >&2\n"
	"\texit 125\n";
static const char stay_start[] = "fi\n"
				 "\"$@\"%s &\n"
				 "p=$! c=0 w=\n"
				 "[ -z \"$e\" ] || { sleep 1; term; }\n";
static const char stay_wait[] = "while :; do\n"
				"\tn=\n"
				"\twait \"$p\"\n"
				"\tr=$?\n"
				"\t[ \"$r\" = 127 ] && [ \"$w\" ] || c=$r\n"
				"\tw=1\n"
				"\t[ \"$n\" ] || break\n"
				"done\n";
/* A role may fail because the one with which the run ends has just ended: the cluster knows that a
 * moment later, or once the results that wait in that one's pods were taken, and would take the
 * failure for that of the run. */
static const char stay_yield[] = "if [ \"$c\" != 0 ] && [ -z \"$y\" ]; then\n"
				 "\tsleep %lld >/dev/null 2>&1 &\n"
				 "\twait $!\n"
				 "fi\n";
static const char stay_end[] = "if [ \"$t\" ]; then\n"
			       "\tprintf '" KUBE_JOB_TIMEOUT "' >/dev/termination-log\n"
			       "\tc=124\n"
			       "fi\n";

/* The results of the previous attempt were read with one of these, too. Files already in the
 * results are this Job's: a retry on the same storage. */
static const char restore_lines[] =
	"if command -v tar >/dev/null; then\n"
	"\t(cd " KUBE_OUTPUT_DIR " && tar -xpf " KUBE_CARRIED " --strip-components=1 \"rank-%s\")\n"
	"else\n"
	"\tpython3 -c 'import sys, tarfile\n"
	"top = \"rank-\" + sys.argv[1] + \"/\"\n"
	"t = tarfile.open(\"" KUBE_CARRIED "\", errors=\"surrogateescape\")\n"
	"for m in t:\n"
	"    if m.name.startswith(top):\n"
	"        m.name = m.name[len(top):]\n"
	"        t.extract(m, \"" KUBE_OUTPUT_DIR "\")' \"%s\"\n"
	"fi || {\n"
	"\techo 'dlrun: the files of the attempt before cannot be put back' >&2\n"
	"\texit 125\n"
	"}\n";

/* The files of the attempt are those of its shell. */
static const char collect_begin[] = "printf '%s' \"$1\" >" KUBE_COLLECTOR "\n"
				    "shift\n";
static const char collect_none[] =
	"if ! command -v find >/dev/null || ! command -v xargs >/dev/null; then\n"
	"\techo '[ $1 != final ] || echo results in the tree cannot be collected: the image has "
	"no find and xargs >&2' >" KUBE_COLLECTOR "\n"
	"fi\n";
static const char collect_live[] = "(trap '' TERM INT QUIT %s\n"
				   "w=3\n"
				   "while sleep $w; do\n"
				   "\tb=$(date +%%s)\n"
				   "\t/bin/sh " KUBE_COLLECTOR " live\n"
				   "\tw=$((10 + 20 * ($(date +%%s) - b)))\n"
				   "done) >/dev/null 2>&1 &\n";
static const char collect_end[] = "trap '' TERM INT QUIT ALRM USR2\n"
				  "/bin/sh " KUBE_COLLECTOR " final 2>&1 >/dev/null | {\n"
				  "\tn=0\n"
				  "\twhile IFS= read -r l; do\n"
				  "\t\t[ $((n += 1)) -gt 20 ] || printf 'dlrun: %s\\n' \"$l\" >&2\n"
				  "\tdone\n"
				  "}\n";
static const char collect_sum[] =
	"/bin/sh " KUBE_COLLECTOR " sum >>/dev/termination-log 2>/dev/null\n";

static const char alive_lines[] = "mkfifo " KUBE_ATTEMPT_DIR "/new && exec 9<>" KUBE_ATTEMPT_DIR
				  "/new || echo $$ >" KUBE_ATTEMPT_DIR "/new\n"
				  "mv " KUBE_ATTEMPT_DIR "/new " KUBE_ATTEMPT_DIR "/alive\n";

/* The image is the same as that of the container that sends results, which would fail alone. */
static const char upload_check[] = "command -v python3 >/dev/null || {\n"
				   "\techo 'dlrun: results in S3 need an image with python3' >&2\n"
				   "\texit 125\n"
				   "}\n";

/* The lock tells other pods that the files are read, for as long as any process of the program has
 * the descriptor. */
static const char s3_lines[] =
	"[ -e " KUBE_S3_DIR "/lock ] && exec 8<>" KUBE_S3_DIR "/lock &&\n"
	"\tpython3 -ESc 'import fcntl; fcntl.flock(8, fcntl.LOCK_SH)' && : >" KUBE_S3_DIR
	"/started &&\n"
	"\t[ -e " KUBE_S3_DIR "/lock ] || {\n"
	"\techo 'dlrun: the data from S3 were removed before the program began' >&2\n"
	"\texit 125\n"
	"}\n";

static long long seconds(int64_t ms)
{
	return ms <= 0 ? 0 : (long long)((ms + 999) / 1000);
}

static bool stays(const struct job *job)
{
	const struct kube_run *run = job->run;

	return run->shell || run->signal || run->stop_signal || job->keeps_limit || job->collects ||
	       job->lingers || job->yields;
}

/* Arguments of this script: -c SCRIPT dlrun COLLECTOR PROGRAM…; without a shell only PROGRAM is
 * run. */
static const char python_lines[] = "import posix, sys\n"
				   "a = sys.argv[1:]\n"
				   "if posix.access('/bin/sh', 1):\n"
				   "    posix.execv('/bin/sh', ['sh'] + a)\n"
				   "import os\n"
				   "if len(a) > 4:\n"
				   "    os.execvp(a[4], a[4:])\n";

/* Add the words in front of "-c SCRIPT NAME …". */
static void job_shell_words(const struct job *job, struct strv *ret)
{
	if (!job->python) {
		strv_add(ret, "/bin/sh");
		return;
	}
	strv_add(ret, job->python);
	strv_add(ret, "-ESc");
	strv_add(ret, python_lines);
}

static bool job_script_is_python(const char *word)
{
	const char *slash = word ? strrchr(word, '/') : NULL, *name = slash ? slash + 1 : word;

	return name && str_starts(name, "python") && (!slash || *word == '/');
}

/* The interpreter that the program itself needs is certain to be there if the run can start at
 * all. */
void job_choose_collector(struct job *job, bool ends_with_pod)
{
	const struct kube_run *run = job->run;
	const char *first = !run->n_members && run->command->n && run->image_entrypoint.n == 0
				    ? run->command->v[0]
				    : NULL;

	if (run->has_no_shell)
		return;
	if (!run->has_shell && !job_has_script(job) &&
		(job_script_is_python(run->image_program) || job_script_is_python(first)))
		job->python = job_script_is_python(run->image_program) ? run->image_program : first;
	else if (run->lacks_shell && !run->has_shell && !job_has_script(job))
		return;
	job->collects = run->collects;
	job->lingers = ends_with_pod && (run->linger_ms > 0 || run->results_s3);
	job->carries_over = run->carries_over;
}

static bool has_sent(const struct kube_run *run)
{
	return run->sent && run->sent->n > 0;
}

static bool job_has_script(const struct job *job)
{
	const struct kube_run *run = job->run;

	return has_sent(run) || job_reads_s3(run) || run->n_members || job->is_flat ||
	       run->before || run->setup || run->has_launcher || job->carries_over || stays(job) ||
	       (job->counts && !run->has_no_shell);
}

/*
 * The script
 */

static const char *stop_signal(const struct kube_run *run)
{
	return run->stop_signal ? run->stop_signal : "TERM";
}

/* The signal by which the timer tells the shell. */
static const char *limit_signal(const struct kube_run *run)
{
	static const char *const signals[] = {"ALRM", "USR2", "INT"};
	size_t i = 0;

	while (str_eq(signals[i], run->signal) || str_eq(signals[i], run->stop_signal))
		i++;
	return signals[i];
}

static bool signals_first(const struct kube_run *run)
{
	return run->signal && !str_eq(run->signal, stop_signal(run));
}

/* Signals for the program are ignored, or handled, by all that stands beside it in its group. */
static char *with_stop_signal(const struct kube_run *run, const char *others)
{
	return run->stop_signal ? mem_printf("%s %s", others, run->stop_signal)
				: mem_strdup(others);
}

/* The run's signal comes first, TERM when its time is over. This shell ignores it as soon as the
 * program has started: bash 5.2 forgets a child that ends while a trap interrupts its wait. */
static void add_term(const struct job *job, struct buf *script)
{
	const struct kube_run *run = job->run;

	if (!signals_first(run)) {
		buf_adds(script, stay_term);
		return;
	}
	buf_addf(script, "trap : %s\n", run->signal);
	buf_addf(script,
		"term() {\n"
		"\tif [ -z \"$p\" ]; then e=1; return; fi\n"
		"\tif [ \"$s\" ]; then pass; return; fi\n"
		"\ts=1\n"
		"\tkill -s %s 0\n"
		"\t(trap '' TERM %s; sleep %lld && kill -s TERM $$) >/dev/null 2>&1 &\n"
		"}\n",
		run->signal, run->signal, seconds(run->signal_before_ms));
}

static void add_timer(const struct job *job, struct buf *script)
{
	const struct kube_run *run = job->run;
	long long limit = seconds(run->timeout_ms), before = seconds(run->signal_before_ms);
	const char *alarm = limit_signal(run);
	AUTO_FREE char *spared = with_stop_signal(run, run->signal ? run->signal : "HUP");

	if (!job->keeps_limit)
		return;
	buf_addf(script, "(trap '' TERM %s\n", spared);
	if (run->signal && before < limit) {
		buf_addf(script, "sleep %lld && kill -s %s %s &&\n", limit - before, run->signal,
			signals_first(run) ? "0" : "$$");
		limit = before;
	}
	buf_addf(script,
		"sleep %lld && kill -s %s $$ && sleep %lld && kill -s %s $$) >/dev/null 2>&1 &\n",
		limit, alarm, seconds(run->grace_ms), alarm);
}

static void add_start(const struct job *job, struct buf *script)
{
	const struct kube_run *run = job->run;

	buf_adds(script, stay_default);
	if (str_eq(run->stop_signal, "INT") || str_eq(run->stop_signal, "QUIT"))
		buf_addf(script, stay_hears, run->stop_signal);
	buf_addf(script, stay_start, job->lingers ? " 9>&-" : "");
	if (signals_first(run))
		buf_addf(script, "trap '' %s\n", run->signal);
}

static void job_collect_end(const struct job *job, struct buf *script)
{
	buf_adds(script, collect_end);
	if (job->keeps_results || job->run->results_s3)
		buf_adds(script, collect_sum);
}

static void add_stay(const struct job *job, struct buf *script)
{
	const struct kube_run *run = job->run;
	const char *stop = stop_signal(run);
	bool is_once = run->stop_signal && !str_eq(run->signal, run->stop_signal);
	AUTO_FREE char *spared = with_stop_signal(run, run->signal ? run->signal : "");
	AUTO_FREE char *ends = with_stop_signal(run, "TERM INT QUIT");

	buf_addf(script, stay_begin, is_once ? pass_once : "", stop, stop, stop,
		job->collects ? "; late" : "", ends);
	/* The node ends what is left later: what there is then is to be collected. */
	if (job->collects)
		buf_addf(script,
			"k=\nlate() {\n"
			"\t[ -z \"$k\" ] || return\n"
			"\tk=1\n"
			"\t(trap '' TERM INT QUIT %s; sleep %lld && kill -s KILL \"$p\") >/dev/null 2>&1 &\n"
			"}\n",
			spared, seconds(run->grace_ms));
	add_term(job, script);
	if (job->yields)
		buf_addf(script, "y=\ntrap 'n=1 y=1; term' %s\n", ends);
	if (job->keeps_limit)
		buf_addf(script, stay_limit, limit_signal(run));
	add_start(job, script);
	add_timer(job, script);
	if (job->collects)
		buf_addf(script, collect_live, spared);
	buf_adds(script, stay_wait);
	if (job->keeps_limit)
		buf_adds(script, stay_end);
	if (job->yields)
		buf_addf(
			script, stay_yield, YIELD_S + (job->lingers ? seconds(run->linger_ms) : 0));
	if (job->collects)
		job_collect_end(job, script);
	job_linger_end(job, script);
	buf_adds(script, "exit \"$c\"");
}

/* Files of such data are among those of the other, which has the link. */
static bool job_is_sent_inside(const struct strv *sent, const char *path)
{
	for (size_t i = 0; i < sent->n; i++)
		if (!str_eq(sent->v[i], path) && fs_below(path, sent->v[i]))
			return true;
	return false;
}

static void add_sent(const struct kube_run *run, struct buf *out)
{
	buf_adds(out, sent_lines);
	for (size_t i = 0; i < run->sent->n; i++) {
		if (job_is_sent_inside(run->sent, run->sent->v[i]))
			continue;
		AUTO_FREE char *from = mem_printf(KUBE_DATA_DIR "/%s", run->sent->v[i]);
		AUTO_FREE char *to = mem_printf("%s/%s", run->workdir, run->sent->v[i]);
		buf_adds(out, "sent ");
		job_add_quoted(out, from);
		buf_addc(out, ' ');
		job_add_quoted(out, to);
		buf_addc(out, '\n');
	}
	buf_adds(out, "unset -f sent\n");
}

/* In front of the setup, which may last for longer than the other container waits, or fail. */
static void job_add_alive(const struct job *job, struct buf *script)
{
	if (job->run->results_s3)
		buf_adds(script, upload_check);
	if (job->lingers)
		buf_adds(script, alive_lines);
}

static char *make_script(const struct job *job)
{
	const struct kube_run *run = job->run;
	AUTO_FREE char *rank = job_rank(job);
	AUTO_BUF struct buf script = buf_with(SCRIPT_MAX);

	if (run->n_members)
		job_add_member_lines(run, &script);
	if (job->is_flat)
		buf_adds(&script, "_l=$1\nshift\neval \"$_l\"\nunset _l\n");
	if (job->counts)
		buf_addf(&script, "export DLRUN_ATTEMPT=$((%d + ${" JOB_RETRIES ":-0}))\n",
			run->attempt);
	job_add_alive(job, &script);
	if (job_reads_s3(run))
		buf_adds(&script, s3_lines);
	if (job->collects)
		buf_adds(&script, collect_begin);
	if (job->carries_over)
		buf_addf(&script, restore_lines, rank, rank);
	if (has_sent(run))
		add_sent(run, &script);
	if (run->setup)
		buf_addf(&script, "%s%s%s", venv_before, run->is_baked ? baked_lines : setup_lines,
			venv_after);
	if (job->collects)
		buf_addf(&script, "%s/bin/sh " KUBE_COLLECTOR " begin%s\n", collect_none,
			run->setup ? " new" : "");
	if (run->before)
		buf_adds(&script, bash_lines);
	if (stays(job))
		add_stay(job, &script);
	else
		buf_adds(&script, run->before ? "exec \"$@\"" : exec_lines);
	return buf_take(&script);
}

/*
 * The words
 */

/* An empty trap keeps a shell in front of the line alive, and is not inherited. */
static char *before_text(const struct kube_run *run)
{
	const char *last = !job_is_own_line(run) ? exec_lines
			   : run->n_members      ? "eval \"shift; $1\""
						 : run->command->v[0];
	AUTO_FREE char *trap = run->signal ? mem_printf("trap : %s\n", run->signal) : NULL;

	return mem_printf("%s%s\n%s", trap ? trap : "", run->before, last);
}

/* "$@" of the script. flat: lines that are evaluated first, which append the words; or NULL. */
static void script_args(const struct job *job, const char *flat, struct strv *ret)
{
	const struct kube_run *run = job->run;

	if (flat)
		strv_add(ret, flat);
	if (job->collects)
		strv_add_take(ret, job_collector(job));
	if (run->setup) {
		bool at_root = str_empty(run->setup_cwd) || str_eq(run->setup_cwd, ".");
		strv_addf(ret, "%s%s%s", run->workdir, at_root ? "" : "/",
			at_root ? "" : run->setup_cwd);
		strv_add(ret, run->is_baked ? run->workdir : run->setup);
	}
	if (run->before) {
		strv_add_take(ret, before_text(run));
		strv_add(ret, "dlrun");
	}
	if (!run->before || !job_is_own_line(run)) {
		for (size_t i = 0; !run->drop_entrypoint && i < run->image_entrypoint.n; i++)
			strv_add(ret, run->image_entrypoint.v[i]);
		if (!run->n_members && !flat)
			job_add_command(run, run->command, ret);
	}
}

int job_set_words(
	struct json *container, const char *key, const struct strv *words, struct err *err)
{
	struct json *list = json_array();

	json_set(container, key, list);
	for (size_t i = 0; i < words->n; i++) {
		int r = job_check_text(words->v[i], "the word", err);
		if (r < 0)
			return r;
		AUTO_FREE char *escaped = kube_escaped(words->v[i]);
		json_add_str(list, escaped);
	}
	return 0;
}

static int check_shell(const struct job *job, struct err *err)
{
	const struct kube_run *run = job->run;
	const char *what = run->n_members      ? "a study"
			   : job->is_flat      ? "a run with roles without a JobSet"
			   : has_sent(run)     ? "data: sync"
			   : job_reads_s3(run) ? "data in S3"
			   : run->setup        ? "setup"
			   : run->before       ? "before"
			   : run->has_launcher ? "--launcher"
			   : run->signal       ? "--signal"
			   : run->stop_signal  ? "stop_signal"
					       : "a command for the shell";

	if (run->results_s3 && !job->lingers) {
		err_set(err, E_KUBE_SHELL, "results in S3 need an image with a shell and python3");
		return err_hint(err, "dlrun submit --image docker.io/library/python:3.12 …");
	}
	if (!run->has_no_shell || !job_has_script(job))
		return 0;
	err_set(err, E_KUBE_SHELL, "%s needs a shell, and the image has none", what);
	return err_hint(err, "dlrun submit --image docker.io/library/python:3.12 …");
}

/* Both would begin as TERM for the shell in front of the program. */
static int check_signals(const struct kube_run *run, struct err *err)
{
	if (!run->stop_signal || !str_eq(run->signal, "TERM"))
		return 0;
	err_set(err, E_TARGET_UNSUPPORTED,
		"signal: TERM cannot come before stop_signal: %s in a cluster, where TERM is what "
		"ends a pod",
		run->stop_signal);
	return err_hint(err, "signal: USR1@%lld", seconds(run->signal_before_ms));
}

int job_start(const struct job *job, const char *flat, struct json *container, struct err *err)
{
	const struct kube_run *run = job->run;
	AUTO_STRV struct strv command = {0}, args = {0};

	int r = check_shell(job, err);
	if (r == 0)
		r = check_signals(run, err);
	if (r < 0)
		return r;
	if (job_has_script(job)) {
		job_shell_words(job, &command);
		strv_add(&command, "-c");
		strv_add_take(&command, make_script(job));
		strv_add(&command, "dlrun");
		script_args(job, flat, &args);
	} else {
		job_add_command(run, run->command, run->drop_entrypoint ? &command : &args);
	}
	if (command.n)
		r = job_set_words(container, "command", &command, err);
	if (r == 0 && args.n)
		r = job_set_words(container, "args", &args, err);
	return r;
}
