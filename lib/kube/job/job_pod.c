/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pods of a Job.
 */
#include <stdlib.h>
#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/job/job_impl.h"
#include "kube/job/overlay.h"

enum {
	FORCED_UID = 1000,
	COLLECT_MS = 30 * 1000, /* behind the program's own grace */
};

/*
 * Users and security
 */

/* The number in "1000:1000", or -1 where the image has a name or nothing. */
static int64_t image_uid(const struct kube_run *run)
{
	const char *user = run->image_user ? run->image_user : "";
	AUTO_FREE char *number = mem_strndup(user, strcspn(user, ":"));
	int64_t uid = -1;

	return str_to_int(number, 0, INT32_MAX, "uid", &uid, NULL) == 0 ? uid : -1;
}

void job_container_security(const struct job *job, struct json *container)
{
	struct json *security, *drop;

	if (!job->is_restricted)
		return;
	security = json_sub(container, "securityContext");
	json_set_bool(security, "allowPrivilegeEscalation", false);
	drop = json_array();
	json_add_str(drop, "ALL");
	json_set(json_sub(security, "capabilities"), "drop", drop);
}

/* Layers belong to group 0 and are as open to it as to their owner, so that any user that is in it
 * can write the tree. fsGroup does the same for volumes whose drivers know it. */
static void set_pod_security(const struct job *job, struct json *spec)
{
	struct json *security = json_sub(spec, "securityContext"), *groups = json_array();
	int64_t uid = image_uid(job->run);

	json_set(security, "supplementalGroups", groups);
	json_add_int(groups, 0);
	if (!job->is_root) {
		json_set_int(security, "fsGroup", 0);
		json_set_str(security, "fsGroupChangePolicy", "OnRootMismatch");
	}
	if (!job->is_restricted)
		return;
	json_set_bool(security, "runAsNonRoot", true);
	json_set_int(security, "runAsUser", uid > 0 ? uid : FORCED_UID);
	json_set_int(security, "runAsGroup", 0);
	json_set_str(json_sub(security, "seccompProfile"), "type", "RuntimeDefault");
}

/*
 * Resources
 */

static const char *gpu_resource(const struct kube_run *run)
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
	if (with_gpus && run->gpus > 0) {
		job_set_bytes(requests, gpu_resource(run), (uint64_t)run->gpus);
		job_set_bytes(limits, gpu_resource(run), (uint64_t)run->gpus);
	}
	if (json_count(requests) == 0)
		return;
	struct json *resources = json_sub(container, "resources");
	if (json_count(limits))
		json_set(resources, "limits", TAKE(limits));
	json_set(resources, "requests", TAKE(requests));
}

/*
 * Nodes
 */

static void set_selector(const struct kube_run *run, struct json *spec)
{
	AUTO_JSON struct json *selector = json_object();
	const struct json *item = run->node_selector ? json_first(run->node_selector) : NULL;

	if (run->os)
		json_set_str(selector, "kubernetes.io/os", run->os);
	if (run->arch)
		json_set_str(selector, "kubernetes.io/arch", run->arch);
	for (; run->gpus > 0 && item; item = json_next(item))
		json_set(selector, json_key(item), json_clone(item));
	if (json_count(selector))
		json_set(spec, "nodeSelector", TAKE(selector));
}

static void set_tolerations(const struct kube_run *run, struct json *spec)
{
	struct json *list, *own;
	const struct json *item = run->tolerations ? json_first(run->tolerations) : NULL;

	if (run->gpus <= 0)
		return;
	list = json_array();
	json_set(spec, "tolerations", list);
	own = json_object();
	json_set_str(own, "key", gpu_resource(run));
	json_set_str(own, "operator", "Exists");
	json_add(list, own);
	for (; item; item = json_next(item))
		json_add(list, json_clone(item));
}

/* Nodes with GPUs are for those who need them. */
static void set_affinity(const struct kube_run *run, struct json *spec)
{
	static const char *const labels[] = {"nvidia.com/gpu.present", "amd.com/gpu.vram",
		"feature.node.kubernetes.io/pci-10de.present", "cloud.google.com/gke-accelerator"};
	struct json *list, *term, *matches;

	if (run->gpus > 0)
		return;
	list = json_array();
	term = json_object();
	matches = json_array();
	for (size_t i = 0; i < ARRAY_LEN(labels); i++) {
		struct json *match = json_object();
		json_set_str(match, "key", labels[i]);
		json_set_str(match, "operator", "DoesNotExist");
		json_add(matches, match);
	}
	json_set_int(term, "weight", 100);
	json_set(json_sub(term, "preference"), "matchExpressions", matches);
	json_add(list, term);
	json_set(json_sub(json_sub(spec, "affinity"), "nodeAffinity"),
		"preferredDuringSchedulingIgnoredDuringExecution", list);
}

/*
 * The whole
 */

/* Each has a name, because Services and monitors of the user can only mean one that has. */
static void set_ports(const struct kube_run *run, struct json *container)
{
	struct json *ports;

	if (run->n_ports == 0)
		return;
	ports = json_array();
	json_set(container, "ports", ports);
	for (size_t i = 0; i < run->n_ports; i++) {
		AUTO_FREE char *name = mem_printf("port-%u", run->ports[i]);
		struct json *port = json_object();

		json_set_str(port, "name", name);
		json_set_int(port, "containerPort", run->ports[i]);
		json_add(ports, port);
	}
}

static int make_container(
	struct job *job, struct json *spec, struct json *container, struct err *err)
{
	const struct kube_run *run = job->run;
	AUTO_FREE char *cwd = str_eq(run->cwd, ".") || str_empty(run->cwd)
				      ? mem_strdup(run->workdir)
				      : mem_printf("%s/%s", run->workdir, run->cwd);

	json_set_str(container, "name", KUBE_CONTAINER);
	json_set_str(container, "image", run->image_ref);
	json_set_str(container, "imagePullPolicy", "IfNotPresent");
	json_set_str(container, "workingDir", cwd);
	int r = job_check_text(cwd, "the directory", err);
	if (r == 0)
		r = job_start(job, container, err);
	if (r == 0)
		r = job_env(job, container, err);
	if (r < 0)
		return r;
	set_ports(run, container);
	job_resources(job, container, true);
	job_container_security(job, container);
	json_set_str(container, "terminationMessagePolicy", "FallbackToLogsOnError");
	return job_storage(job, spec, container, err);
}

static int64_t grace_s(const struct job *job)
{
	const struct kube_run *run = job->run;
	int64_t ms = run->grace_ms + (run->signal ? run->signal_before_ms : 0) +
		     (job->collects ? COLLECT_MS : 0);

	return ms < 1000 ? 1 : (ms + 999) / 1000;
}

static void set_references(const struct job *job, struct json *spec)
{
	const struct kube_run *run = job->run;
	struct json *secrets, *secret;

	json_set_bool(spec, "automountServiceAccountToken", run->service_account != NULL);
	if (run->service_account)
		json_set_str(spec, "serviceAccountName", run->service_account);
	if (run->priority_class)
		json_set_str(spec, "priorityClassName", run->priority_class);
	if (job->is_gang && !job->is_jobset)
		json_set_str(spec, "subdomain", run->job);
	if (!run->pull_secret)
		return;
	secrets = json_array();
	secret = json_object();
	json_set_str(secret, "name", run->pull_secret);
	json_add(secrets, secret);
	json_set(spec, "imagePullSecrets", secrets);
}

static int make_spec(struct job *job, struct json *spec, struct err *err)
{
	const struct kube_run *run = job->run;
	struct json *containers = json_array(), *container = json_object();

	json_set_str(spec, "restartPolicy", "Never");
	json_set_int(spec, "terminationGracePeriodSeconds", grace_s(job));
	if (run->timeout_ms > 0 && !job->keeps_limit)
		json_set_int(spec, "activeDeadlineSeconds", (run->timeout_ms + 999) / 1000);
	json_set_bool(spec, "shareProcessNamespace", true);
	json_set_bool(spec, "enableServiceLinks", false);
	set_references(job, spec);
	set_pod_security(job, spec);
	set_selector(run, spec);
	set_tolerations(run, spec);
	set_affinity(run, spec);
	json_add(containers, container);
	json_set(spec, "containers", containers);
	int r = make_container(job, spec, container, err);
	return r < 0 ? r : job_linger(job, containers, err);
}

static void set_metadata(const struct job *job, struct json *metadata)
{
	struct json *notes = json_sub(metadata, "annotations");
	AUTO_BUF struct buf hosts;

	job_set_labels(job->run, metadata);
	json_set_str(json_sub(metadata, "labels"), "sidecar.istio.io/inject", "false");
	json_set_str(notes, "sidecar.istio.io/inject", "false");
	json_set_str(notes, "cluster-autoscaler.kubernetes.io/safe-to-evict", "false");
	json_set_str(notes, "karpenter.sh/do-not-disrupt", "true");
	json_set_str(notes, "kubectl.kubernetes.io/default-container", KUBE_CONTAINER);
	if (job->lingers) {
		AUTO_FREE char *text =
			mem_printf("%lld", (long long)(job->run->linger_ms + 999) / 1000);
		json_set_str(notes, KUBE_NOTE_LINGER, text);
	}
	buf_init(&hosts, 128 << 10);
	for (int i = 0; i < job->run->nodes; i++) {
		AUTO_FREE char *host = job_host(job, i);
		buf_addf(&hosts, "%s\n", host);
	}
	json_set_str(notes, JOB_HOSTS_NOTE, hosts.data);
}

int job_pod(struct job *job, struct json **ret, struct err *err)
{
	AUTO_JSON struct json *pod = json_object();

	set_metadata(job, json_sub(pod, "metadata"));
	int r = make_spec(job, json_sub(pod, "spec"), err);
	if (r == 0 && job->run->overlay)
		r = kube_overlay(pod, job->run->overlay, err);
	if (r < 0)
		return r;
	*ret = TAKE(pod);
	return 0;
}
