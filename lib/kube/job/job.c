/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/job/job.h"

#include <string.h>

#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/api/client.h"
#include "kube/api/kinds.h"
#include "kube/job/job_impl.h"
#include "kube/job/overlay.h"

/*
 * Objects beside the Job of a run: names, labels, Secret, Service, claim.
 */

enum { LABEL_MAX = 63, SECRET_MAX = 1 << 20 };

#define JOB_REQUIRED  "requiredDuringSchedulingIgnoredDuringExecution"
#define JOB_PREFERRED "preferredDuringSchedulingIgnoredDuringExecution"

/*
 * Names
 */

char *kube_job_name(const char *run_id, int attempt)
{
	return attempt > 1 ? mem_printf("%s-%d", run_id, attempt) : mem_strdup(run_id);
}

char *kube_job_gate_name(const char *job)
{
	return mem_printf("%s-begin", job);
}

static bool job_is_alnum(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || str_is_digit(c);
}

char *kube_label_value(const char *text)
{
	char *value = mem_strndup(text, LABEL_MAX);
	char *begin = value;
	size_t len;

	for (char *c = value; *c; c++)
		if (!job_is_alnum(*c) && !strchr("-_.", *c))
			*c = '-';
	while (*begin && !job_is_alnum(*begin))
		begin++;
	len = strlen(begin);
	while (len && !job_is_alnum(begin[len - 1]))
		len--;
	memmove(value, begin, len);
	value[len] = '\0';
	return value;
}

/*
 * Metadata
 */

void kube_set_label(struct json *labels, const char *key, const char *value)
{
	AUTO_FREE char *shown = kube_label_value(value ? value : "");

	if (*shown)
		json_set_str(labels, key, shown);
}

static void job_merge(struct json *to, const struct json *from)
{
	json_foreach (item, from)
		json_set(to, json_key(item), json_clone(item));
}

static void job_add_clones(struct json *to, const struct json *from)
{
	json_foreach (item, from)
		json_add(to, json_clone(item));
}

/* Labels and annotations of all objects; metadata is an object. */
static void job_set_labels(const struct kube_run *run, struct json *metadata)
{
	struct json *labels = json_sub(metadata, "labels");
	AUTO_FREE char *attempt = mem_printf("%d", run->attempt);

	job_merge(labels, run->labels);
	json_set_str(labels, "app.kubernetes.io/name", "dlrun-run");
	kube_set_label(labels, "app.kubernetes.io/instance", run->run_id);
	json_set_str(labels, "app.kubernetes.io/managed-by", KUBE_MANAGED_BY);
	kube_set_label(labels, KUBE_LABEL_ATTEMPT, attempt);
	kube_set_label(labels, KUBE_LABEL_RUN, run->run_id);
	if (run->n_members)
		kube_set_label(labels, KUBE_LABEL_STUDY, run->run_id);
	kube_set_label(labels, KUBE_LABEL_TREE, run->tree);
	kube_set_label(labels, KUBE_LABEL_USER, run->user);
	if (run->annotations)
		job_merge(json_sub(metadata, "annotations"), run->annotations);
}

/* Of a Job or pod of a role. */
static void job_set_role(const struct job *job, struct json *metadata)
{
	AUTO_FREE char *gang = job_gang(job), *first = mem_printf("%d", job->first);

	if (!job->role)
		return;
	json_set_str(json_sub(metadata, "labels"), KUBE_LABEL_GANG, gang);
	json_set_str(json_sub(metadata, "labels"), KUBE_LABEL_ROLE, job->role->name);
	json_set_str(json_sub(metadata, "annotations"), KUBE_ANNOTATION_FIRST, first);
}

static struct json *job_metadata(const struct kube_run *run, const char *name)
{
	struct json *metadata =
		json_make("{'name': %s, 'namespace': %s}", name, run->kube_namespace);

	job_set_labels(run, metadata);
	return metadata;
}

static struct json *job_new_object(
	const struct kube_run *run, const char *version, const char *kind, const char *name)
{
	return json_make("{'apiVersion': %s, 'kind': %s, 'metadata': %p}", version, kind,
		(void *)job_metadata(run, name));
}

/*
 * Objects
 */

static int job_secret(const struct kube_run *run, struct json **ret, struct err *err)
{
	AUTO_FREE char *name = kube_job_secret_name(run->job);
	AUTO_JSON struct json *secret = job_new_object(run, "v1", "Secret", name);
	struct json *data = json_sub(secret, "data");
	size_t size = 0;

	json_set_str(secret, "type", "Opaque");
	json_set_bool(secret, "immutable", true);
	for (size_t i = 0; i < run->secret_env->n; i++) {
		const char *pair = run->secret_env->v[i];
		AUTO_FREE char *key = mem_strndup(pair, strcspn(pair, "="));
		const char *value = pair + strlen(key) + (pair[strlen(key)] == '=');
		AUTO_BUF struct buf encoded = buf_with(SECRET_MAX * 2);

		size += strlen(value);
		if (size > SECRET_MAX)
			return err_set(err, E_DATA_LIMIT,
				"the values of the run's secrets are over 1 MiB, which is all "
				"that a Secret holds");
		int r = job_check_text(value, "a value of", err);
		if (r < 0)
			return err_set(err, E_SECRET,
				"the value of %s is not UTF-8, and no variable of a pod can be",
				key);
		base64_encode(value, strlen(value), &encoded);
		json_set_str(data, key, encoded.data);
	}
	*ret = TAKE(secret);
	return 0;
}

/* Ranks look for each other before they are ready. */
static struct json *job_service(const struct kube_run *run)
{
	struct json *service = job_new_object(run, "v1", "Service", run->job);

	json_set(service, "spec",
		json_make("{'clusterIP': 'None', 'publishNotReadyAddresses': true, "
			  "'selector': {'batch.kubernetes.io/job-name': %s}}",
			run->job));
	return service;
}

static struct json *job_claim(const struct kube_run *run)
{
	AUTO_FREE char *name = kube_job_claim_name(run->run_id);
	struct json *claim = job_new_object(run, "v1", "PersistentVolumeClaim", name);
	bool is_shared = run->nodes > 1 || run->n_members > 1;
	struct json *spec = json_make("{'accessModes': [%s], 'resources': {'requests': {}}}",
		is_shared ? "ReadWriteMany" : "ReadWriteOnce");

	/* All attempts share it. */
	json_remove(json_sub(json_sub(claim, "metadata"), "labels"), KUBE_LABEL_ATTEMPT);
	job_set_bytes(json_sub(json_sub(spec, "resources"), "requests"), "storage",
		run->results.size_bytes);
	if (run->results.storage_class)
		json_set_str(spec, "storageClassName", run->results.storage_class);
	json_set(claim, "spec", spec);
	return claim;
}

/*
 * Requests
 */

size_t kube_objects_before(
	const struct kube_objects *objects, const struct json *ret[static KUBE_OBJECTS_MAX])
{
	const struct json *all[] = {
		objects->claim, objects->service, objects->config, objects->secret};
	size_t n = 0;

	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		if (all[i])
			ret[n++] = all[i];
	for (size_t i = 0; i < KUBE_CODE_OBJECTS && objects->code[i]; i++)
		ret[n++] = objects->code[i];
	return n;
}

size_t kube_objects_adopt(
	const struct kube_objects *objects, const struct json *ret[static KUBE_OBJECTS_MAX])
{
	struct kube_objects owned = *objects;

	owned.claim = NULL;
	return kube_objects_before(&owned, ret);
}

const struct json *kube_objects_pods(const struct kube_run *run, const struct kube_objects *objects,
	size_t i, int64_t *ret_nodes)
{
	const enum kube_kind kind =
		objects && objects->is_jobset ? KUBE_KIND_JOBSET : KUBE_KIND_JOB;
	const struct json *job = objects ? kube_kind_template_at(kind, objects->job, i) : NULL;
	const struct json *spec = json_get(job, "spec");

	*ret_nodes = run->n_members ? 1 : json_get_int(spec, "completions", 1);
	return json_get(json_get(spec, "template"), "spec");
}

static const struct {
	const char *kind, *resource;
} collections[] = {
	{"ConfigMap", "configmaps"},
	{"PersistentVolumeClaim", "persistentvolumeclaims"},
	{"Secret", "secrets"},
	{"Service", "services"},
};

char *kube_object_collection(const struct json *object)
{
	const char *kind = json_get_str(object, "kind");
	const char *space = json_get_str(json_get(object, "metadata"), "namespace");

	if (!space)
		space = "default";
	for (int i = 0; i < KUBE_KINDS; i++)
		if (str_eq(kube_kinds[i].name, kind))
			return kube_kind_collection((enum kube_kind)i, space);
	for (size_t i = 0; i < ARRAY_LEN(collections); i++)
		if (str_eq(collections[i].kind, kind))
			return kube_path(
				"/api/v1/namespaces/%s/%s", space, collections[i].resource);
	err_bug(__FILE__, __LINE__, "a kind of object that dlrun does not make");
}

char *kube_object_path(const struct json *object)
{
	AUTO_FREE char *collection = kube_object_collection(object);
	const char *name = json_get_str(json_get(object, "metadata"), "name");

	return mem_printf("%s/%s", collection, name ? name : "");
}

struct json *kube_job_owner(const struct json *job)
{
	const struct json *metadata = json_get(job, "metadata");
	const char *version = json_get_str(job, "apiVersion"), *kind = json_get_str(job, "kind");

	/* Items of lists do not say what they are. */
	return json_make("{'metadata': {'ownerReferences': ["
			 "{'apiVersion': %s, 'kind': %s, 'name': %s, 'uid': %s}]}}",
		version ? version : "batch/v1", kind ? kind : "Job", json_get_str(metadata, "name"),
		json_get_str(metadata, "uid"));
}

void kube_objects_done(struct kube_objects *objects)
{
	if (!objects)
		return;
	json_free(objects->claim);
	json_free(objects->service);
	json_free(objects->config);
	json_free(objects->secret);
	for (size_t i = 0; i < KUBE_CODE_OBJECTS; i++)
		json_free(objects->code[i]);
	json_free(objects->job);
	strv_done(&objects->notes);
	*objects = (struct kube_objects){0};
}

/*
 * The pods of a Job.
 */

enum {
	FORCED_UID = 1000,
	COLLECT_MS = 30 * 1000, /* behind the program's own grace */
	UPLOAD_MS = 30 * 1000,  /* the same, of what is new since it was last sent to S3 */
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

/*
 * Nodes
 */

/* Labels of nodes that may be taken back at any time, by who makes nodes: Karpenter, EKS, GKE, AKS,
 * dlrun's autoscaler. Their manuals name them; the same key and value is a taint of some. */
static const struct {
	const char *key, *value;
	bool is_taint;
} job_spots[] = {
	{"karpenter.sh/capacity-type", "spot", false},
	{"eks.amazonaws.com/capacityType", "SPOT", false},
	{"cloud.google.com/gke-spot", "true", true},
	{"kubernetes.azure.com/scalesetpriority", "spot", true},
	{KUBE_LABEL_SPOT, "true", true},
};

static void set_tolerations(const struct kube_run *run, struct json *spec)
{
	struct json *list;

	if (run->gpus <= 0 && !run->is_spot)
		return;
	list = json_array();
	json_set(spec, "tolerations", list);
	for (size_t i = 0; run->is_spot && i < ARRAY_LEN(job_spots); i++)
		if (job_spots[i].is_taint)
			json_add(list, json_make("{'key': %s, 'operator': 'Equal', 'value': %s}",
					       job_spots[i].key, job_spots[i].value));
	if (run->gpus <= 0)
		return;
	json_add(list, json_make("{'key': %s, 'operator': 'Exists'}", job_gpu_resource(run)));
	job_add_clones(list, run->tolerations);
	json_foreach (m, run->gpu_choices)
		job_add_clones(list, json_get(m, "tolerations"));
}

/* A term of a node affinity that says the same as a selector. */
static struct json *job_selector_term(const struct json *selector)
{
	struct json *matches = json_array();

	json_foreach (m, selector)
		json_add(matches, json_make("{'key': %s, 'operator': 'In', 'values': [%p]}",
					  json_key(m), (void *)json_clone(m)));
	return json_make("{'matchExpressions': %p}", (void *)matches);
}

/* Nodes of any of the types, the first one rather. A type without a selector is on any node, and a
 * term without expressions would be on none. */
static void job_set_choices(const struct kube_run *run, struct json *spec)
{
	struct json *affinity = json_sub(json_sub(spec, "affinity"), "nodeAffinity");
	AUTO_JSON struct json *terms = json_array(), *preferred = json_array();
	bool is_anywhere = false;
	int weight = 100;

	json_foreach (m, run->gpu_choices) {
		const struct json *selector = json_get(m, "node_selector");
		if (json_count(selector) == 0) {
			is_anywhere = true;
			continue;
		}
		json_add(preferred, json_make("{'weight': %d, 'preference': %p}", weight,
					    (void *)job_selector_term(selector)));
		json_add(terms, job_selector_term(selector));
		weight = weight > 1 ? weight / 2 : 1;
	}
	if (json_count(preferred))
		json_set(affinity, JOB_PREFERRED, TAKE(preferred));
	if (json_count(terms) && !is_anywhere)
		json_set(json_sub(affinity, JOB_REQUIRED), "nodeSelectorTerms", TAKE(terms));
}

/* A match of one of the values, which have commas between them. */
static void job_add_match(struct json *term, const char *key, const char *how, const char *list)
{
	struct json *values = json_array();

	for (const char *at = list; *at; at += strcspn(at, ","), at += *at == ',') {
		AUTO_FREE char *value = mem_strndup(at, strcspn(at, ","));
		json_add_str(values, value);
	}
	json_add(term,
		json_make("{'key': %s, 'operator': %s, 'values': %p}", key, how, (void *)values));
}

/* A term again, with what the place asks for; spot: of job_spots, or their number for none. */
static struct json *job_place_term(const struct kube_run *run, const struct json *base, size_t spot)
{
	const struct json *given = json_get(base, "matchExpressions");
	struct json *matches = given ? json_clone(given) : json_array();

	if (run->region)
		job_add_match(matches, "topology.kubernetes.io/region", "In", run->region);
	if (run->instance_type)
		job_add_match(
			matches, "node.kubernetes.io/instance-type", "In", run->instance_type);
	if (spot < ARRAY_LEN(job_spots))
		job_add_match(matches, job_spots[spot].key, "In", job_spots[spot].value);
	for (size_t i = 0; run->is_not_spot && i < ARRAY_LEN(job_spots); i++)
		job_add_match(matches, job_spots[i].key, "NotIn", job_spots[i].value);
	return json_make("{'matchExpressions': %p}", (void *)matches);
}

/* Terms are alternatives: one for each that there is, and for each label that says spot. */
static void job_set_place(const struct kube_run *run, struct json *spec)
{
	struct json *required, *terms;
	size_t from = run->is_spot ? 0 : ARRAY_LEN(job_spots);
	size_t to = run->is_spot ? ARRAY_LEN(job_spots) : from + 1;

	if (!run->region && !run->instance_type && !run->is_spot && !run->is_not_spot)
		return;
	terms = json_array();
	required = json_sub(json_sub(json_sub(spec, "affinity"), "nodeAffinity"), JOB_REQUIRED);
	const struct json *base = json_first(json_get(required, "nodeSelectorTerms"));
	do {
		for (size_t spot = from; spot < to; spot++)
			json_add(terms, job_place_term(run, base, spot));
		base = base ? json_next(base) : NULL;
	} while (base);
	json_set(required, "nodeSelectorTerms", terms);
}

/* A node that has the image already is no use to another pod of the Job. Names of nodes say more
 * than the other terms of the affinity, by which they were found. */
static void job_set_apart(const struct kube_run *run, struct json *spec)
{
	struct json *affinity, *terms;

	if (!run->is_warming)
		return;
	affinity = json_sub(spec, "affinity");
	json_set(json_sub(affinity, "podAntiAffinity"), JOB_REQUIRED,
		json_make("[{'labelSelector': {'matchLabels': {%s: %s}}, "
			  "'topologyKey': 'kubernetes.io/hostname'}]",
			KUBE_LABEL_RUN, run->run_id));
	if (!run->only_nodes || run->only_nodes->n == 0)
		return;
	terms = json_array();
	for (size_t i = 0; i < run->only_nodes->n; i++)
		json_add(terms,
			json_make("{'matchFields': "
				  "[{'key': 'metadata.name', 'operator': 'In', 'values': [%s]}]}",
				run->only_nodes->v[i]));
	json_set(json_sub(json_sub(affinity, "nodeAffinity"), JOB_REQUIRED), "nodeSelectorTerms",
		terms);
}

/* A role of one node is beside others. */
static void job_set_same(const struct kube_run *run, struct json *spec)
{
	AUTO_FREE char *attempt = mem_printf("%d", run->attempt);
	AUTO_FREE char *id = kube_label_value(run->run_id);

	if (!run->same || (run->nodes < 2 && run->n_roles < 2) || run->is_warming)
		return;
	json_set(json_sub(json_sub(spec, "affinity"), "podAffinity"), JOB_REQUIRED,
		json_make(
			"[{'labelSelector': {'matchLabels': {%s: %s, %s: %s}}, 'topologyKey': %s}]",
			KUBE_LABEL_ATTEMPT, attempt, KUBE_LABEL_RUN, id, run->same));
}

/* Nodes with GPUs are for those who need them. */
static void set_affinity(const struct kube_run *run, struct json *spec)
{
	if (run->gpus > 0)
		return;
	json_set(json_sub(json_sub(spec, "affinity"), "nodeAffinity"), JOB_PREFERRED,
		json_make("[{'weight': 100, 'preference': {'matchExpressions': ["
			  "{'key': 'nvidia.com/gpu.present', 'operator': 'DoesNotExist'}, "
			  "{'key': 'amd.com/gpu.vram', 'operator': 'DoesNotExist'}, "
			  "{'key': 'feature.node.kubernetes.io/pci-10de.present', "
			  "'operator': 'DoesNotExist'}, "
			  "{'key': 'cloud.google.com/gke-accelerator', "
			  "'operator': 'DoesNotExist'}]}}]"));
}

/*
 * The whole
 */

/* Each has a name, because Services and monitors of the user can only mean one that has. */
static void job_set_ports(const struct kube_run *run, struct json *container)
{
	struct json *ports;

	if (run->n_ports == 0)
		return;
	ports = json_array();
	json_set(container, "ports", ports);
	for (size_t i = 0; i < run->n_ports; i++) {
		AUTO_FREE char *name = mem_printf("port-%u", run->ports[i]);
		json_add(
			ports, json_make("{'name': %s, 'containerPort': %d}", name, run->ports[i]));
	}
}

static void job_init_role(
	const struct kube_run *of, size_t i, struct kube_run *run, struct job *job);

/* Variables of the container of all roles: those of the first. */
static int job_flat_env(const struct job *job, struct json *container, struct err *err)
{
	struct kube_run own;
	struct job first = {0};

	job_init_role(job->run, 0, &own, &first);
	return job_env(&first, container, err);
}

/* Lines of shell that set the variables of a pod's own role and append its words to "$@". The
 * caller frees. */
static int job_flat_lines(const struct job *job, char **ret, struct err *err)
{
	AUTO_JSON struct json *first = json_object();
	AUTO_BUF struct buf out = buf_with(JOB_FLAT_MAX);
	int r = job_flat_env(job, first, err);

	for (size_t i = 0; r == 0 && i < job->run->n_roles; i++) {
		struct kube_run own;
		struct job role = {0};

		job_init_role(job->run, i, &own, &role);
		r = job_flat_add_role(&role, json_get(first, "env"), &out, err);
	}
	/* The file of the volume has the names of all ranks. */
	buf_adds(&out, "fi\n(IFS=,; printf '%s\\n' $DLRUN_NODE_ADDRS) >" KUBE_ATTEMPT_DIR
		       "/hostfile\nexport DLRUN_HOSTFILE=" KUBE_ATTEMPT_DIR "/hostfile\n");
	if (r == 0)
		r = buf_check(&out, "what the roles of the run are told", err);
	if (r == 0)
		*ret = buf_take(&out);
	return r;
}

static int make_container(
	struct job *job, struct json *spec, struct json *container, struct err *err)
{
	const struct kube_run *run = job->run;
	AUTO_FREE char *cwd = str_eq(run->cwd, ".") || str_empty(run->cwd)
				      ? mem_strdup(run->workdir)
				      : mem_printf("%s/%s", run->workdir, run->cwd);

	AUTO_FREE char *flat = NULL;

	json_set_str(container, "name", KUBE_CONTAINER);
	json_set_str(container, "image", run->image_ref);
	json_set_str(container, "imagePullPolicy", "IfNotPresent");
	json_set_str(container, "workingDir", cwd);
	int r = job_check_text(cwd, "the directory", err);
	if (r == 0)
		r = job->is_flat ? job_flat_lines(job, &flat, err) : 0;
	if (r == 0)
		r = job_start(job, flat, container, err);
	if (r == 0)
		r = job->is_flat ? job_flat_env(job, container, err) : job_env(job, container, err);
	if (r < 0)
		return r;
	job_set_ports(run, container);
	job_resources(job, container, true);
	job_container_security(job, container);
	json_set_str(container, "terminationMessagePolicy", "FallbackToLogsOnError");
	return job_storage(job, spec, container, err);
}

static int64_t grace_s(const struct job *job)
{
	const struct kube_run *run = job->run;
	int64_t ms = run->grace_ms + (run->signal ? run->signal_before_ms : 0) +
		     (job->collects ? COLLECT_MS : 0) + (run->results_s3 ? UPLOAD_MS : 0);

	return ms < 1000 ? 1 : (ms + 999) / 1000;
}

static void set_references(const struct job *job, struct json *spec)
{
	const struct kube_run *run = job->run;

	json_set_bool(spec, "automountServiceAccountToken", run->service_account != NULL);
	if (run->service_account)
		json_set_str(spec, "serviceAccountName", run->service_account);
	if (run->priority_class)
		json_set_str(spec, "priorityClassName", run->priority_class);
	if (job->is_gang && !job->is_jobset)
		json_set_str(spec, "subdomain", run->job);
	if (run->pull_secret)
		json_set(spec, "imagePullSecrets", json_make("[{'name': %s}]", run->pull_secret));
}

static int job_make_spec(struct job *job, struct json *spec, struct err *err)
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
	/* Layers belong to group 0 and are as open to it as to their owner, so that any user
	 * that is in it can write the tree. fsGroup does the same for volumes whose drivers know
	 * it. */
	struct json *security = json_make("{'supplementalGroups': [0]}");
	int64_t uid = image_uid(job->run);

	json_set(spec, "securityContext", security);
	if (!job->is_root) {
		json_set_int(security, "fsGroup", 0);
		json_set_str(security, "fsGroupChangePolicy", "OnRootMismatch");
	}
	if (job->is_restricted) {
		json_set_bool(security, "runAsNonRoot", true);
		json_set_int(security, "runAsUser", uid > 0 ? uid : FORCED_UID);
		json_set_int(security, "runAsGroup", 0);
		json_set_str(json_sub(security, "seccompProfile"), "type", "RuntimeDefault");
	}
	AUTO_JSON struct json *selector =
		json_make("{'kubernetes.io/os': %s, 'kubernetes.io/arch': %s}", run->os, run->arch);

	if (run->gpus > 0)
		job_merge(selector, run->node_selector);
	if (json_count(selector))
		json_set(spec, "nodeSelector", TAKE(selector));
	set_tolerations(run, spec);
	set_affinity(run, spec);
	if (run->gpus > 0 && run->gpu_choices)
		job_set_choices(run, spec);
	job_set_place(run, spec);
	job_set_apart(run, spec);
	job_set_same(run, spec);
	json_add(containers, container);
	json_set(spec, "containers", containers);
	int r = make_container(job, spec, container, err);
	return r < 0 ? r : job_linger(job, containers, err);
}

static bool job_is_gated(const struct kube_run *run)
{
	return run->may_move && run->n_members == 0;
}

/* A node that lacks the ConfigMap begins no container that refers to it. It has no entries, so that
 * the program gets no variables. */
static void job_set_gate(const struct job *job, struct json *spec)
{
	AUTO_FREE char *name = kube_job_gate_name(job->run->job);
	struct json *all = json_array();

	json_foreach (item, json_get(spec, "containers")) {
		struct json *container = json_clone(item), *sources = json_array();
		job_add_clones(sources, json_get(container, "envFrom"));
		json_add(sources, json_make("{'configMapRef': {'name': %s}}", name));
		json_set(container, "envFrom", sources);
		json_add(all, container);
	}
	json_set(spec, "containers", all);
}

/* The script removes what a run's tree has at the path of data that the image has elsewhere, so no
 * volume may lie below it, and the link must not be made in one. */
static int job_check_sent(const struct kube_run *run, const struct json *pod, struct err *err)
{
	const struct json *container = json_first(json_get(json_get(pod, "spec"), "containers"));
	const struct json *mounts = json_get(container, "volumeMounts");

	json_foreach (item, mounts) {
		const char *mount = json_get_str(item, "mountPath");
		for (size_t i = 0; mount && run->sent && i < run->sent->n; i++) {
			AUTO_FREE char *path = mem_printf("%s/%s", run->workdir, run->sent->v[i]);
			if (!fs_below(mount, path) && !fs_below(path, mount))
				continue;
			AUTO_FREE char *shown = str_shown(run->sent->v[i]), *at = str_shown(mount);
			return err_set(err, E_KUBE_STORAGE,
				"data '%s' is sent with the image (sync), and the volume at %s "
				"lies below or above it",
				shown, at);
		}
	}
	return 0;
}

/* {metadata, spec} of pods, the overlay laid over it. */
static int job_pod(struct job *job, struct json **ret, struct err *err)
{
	AUTO_JSON struct json *pod = json_object();

	struct json *metadata = json_sub(pod, "metadata");
	struct json *notes = json_sub(metadata, "annotations");
	AUTO_BUF struct buf hosts = buf_with(128 << 10);

	job_set_labels(job->run, metadata);
	job_set_role(job, metadata);
	json_set_str(json_sub(metadata, "labels"), "sidecar.istio.io/inject", "false");
	json_set_str(notes, "sidecar.istio.io/inject", "false");
	json_set_str(notes, "cluster-autoscaler.kubernetes.io/safe-to-evict", "false");
	json_set_str(notes, "karpenter.sh/do-not-disrupt", "true");
	json_set_str(notes, "kubectl.kubernetes.io/default-container", KUBE_CONTAINER);
	if (job->lingers && !job->run->results_s3) {
		AUTO_FREE char *text =
			mem_printf("%lld", (long long)(job->run->linger_ms + 999) / 1000);
		json_set_str(notes, KUBE_ANNOTATION_LINGER, text);
	}
	for (int i = 0; i < job->run->nodes; i++) {
		AUTO_FREE char *host = job_host(job, i);
		buf_addf(&hosts, "%s\n", host);
	}
	json_set_str(notes, JOB_HOSTS_NOTE, hosts.data);
	int r = job_make_spec(job, json_sub(pod, "spec"), err);
	if (r == 0 && job->run->overlay)
		r = kube_overlay(pod, job->run->overlay, err);
	if (r == 0)
		r = job_check_sent(job->run, pod, err);
	if (r < 0)
		return r;
	if (job_is_gated(job->run))
		job_set_gate(job, json_sub(pod, "spec"));
	*ret = TAKE(pod);
	return 0;
}

/*
 * The Job
 */

enum {
	NODES_MAX = 1024,
	NOTES_MAX = 200 << 10,
	TTL_MS = 7 * 24 * 3600 * 1000,
	DNS_LABEL_MAX = 63,
	POD_SUFFIX = 6, /* "-x7k2p" */
};

bool kube_wants_jobset(int nodes, int retries, bool has_roles)
{
	return has_roles || (nodes > 1 && retries > 0);
}

/*
 * Checks
 */

/* A pod is called <job>-<rank>-<five letters>, and that is its host name. */
static int check_names(const struct job *job, struct err *err)
{
	const struct kube_run *run = job->run;
	AUTO_FREE char *longest =
		job_pod_name(job, run->n_members ? (int)run->n_members - 1 : run->nodes - 1);

	if (!kube_is_dns_label(run->job) || strlen(longest) + POD_SUFFIX > DNS_LABEL_MAX) {
		AUTO_FREE char *shown = str_shown(run->job);
		err_set(err, E_KUBE_NAME,
			"'%s' cannot be the name of a Job: its pods have %zu of "
			"%d letters",
			shown, strlen(longest) + POD_SUFFIX, DNS_LABEL_MAX);
		return err_hint(err, "dlrun submit --name %.20s …", run->job);
	}
	if (kube_is_dns_label(run->kube_namespace))
		return 0;
	AUTO_FREE char *shown = str_shown(run->kube_namespace);
	return err_set(err, E_KUBE_NAME, "'%s' cannot be the name of a namespace", shown);
}

static int job_check_size(const struct kube_run *run, struct err *err)
{
	size_t notes =
		(run->spec ? strlen(run->spec) : 0) + (run->record ? strlen(run->record) : 0);

	if (notes > NOTES_MAX)
		return err_set(err, E_DATA_LIMIT,
			"the specification of the run has %zu bytes, a Job takes %d", notes,
			NOTES_MAX);
	if (run->n_members > KUBE_MEMBERS_MAX)
		return err_set(err, E_DATA_LIMIT, "%zu members are more than %d", run->n_members,
			KUBE_MEMBERS_MAX);
	if (run->nodes > NODES_MAX)
		return err_set(
			err, E_DATA_LIMIT, "%d nodes are more than %d", run->nodes, NODES_MAX);
	return 0;
}

/*
 * Job
 */

static void set_roles(const struct kube_run *run, struct json *annotations)
{
	AUTO_BUF struct buf text = buf_with(NOTES_MAX);

	for (size_t i = 0; i < run->n_roles; i++)
		buf_addf(&text, "%s%s %d", i ? "," : "", run->roles[i].name, run->roles[i].nodes);
	json_set_str(annotations, KUBE_ANNOTATION_ROLES, text.data);
	if (run->ends_with)
		json_set_str(annotations, KUBE_ANNOTATION_ENDS, run->ends_with);
}

static void set_notes(const struct kube_run *run, struct json *metadata)
{
	const struct {
		const char *key, *value;
	} notes[] = {{KUBE_ANNOTATION_COMMIT, run->commit}, {KUBE_ANNOTATION_IMAGE, run->image_ref},
		{KUBE_ANNOTATION_RECORD, run->record}, {KUBE_ANNOTATION_SPEC, run->spec},
		{KUBE_ANNOTATION_USER, run->user}};
	struct json *annotations = json_sub(metadata, "annotations");

	for (size_t i = 0; i < ARRAY_LEN(notes); i++)
		if (notes[i].value)
			json_set_str(annotations, notes[i].key, notes[i].value);
	if (run->n_roles)
		set_roles(run, annotations);
	if (run->n_members && run->fail_fast) {
		AUTO_FREE char *cancelled = job_list_cancelled(run);
		json_set_str(annotations, KUBE_ANNOTATION_CANCELLED, cancelled);
	}
	if (!job_is_gated(run))
		return;
	AUTO_FREE char *gate = kube_job_gate_name(run->job);
	json_set_str(annotations, KUBE_ANNOTATION_GATE, gate);
}

static void set_queue(const struct kube_run *run, struct json *job_object)
{
	struct json *labels = json_sub(json_sub(job_object, "metadata"), "labels");

	if (!run->queue)
		return;
	json_set_str(labels, "kueue.x-k8s.io/queue-name", run->queue);
	if (run->queue_priority)
		json_set_str(labels, "kueue.x-k8s.io/priority-class", run->queue_priority);
	/* Kueue starts it; without Kueue it is not to start past the queue. */
	json_set_bool(json_sub(job_object, "spec"), "suspend", true);
}

static struct json *disruption_rule(const char *action)
{
	return json_make("{'action': %s, "
			 "'onPodConditions': [{'type': 'DisruptionTarget', 'status': 'True'}]}",
		action);
}

/* Do not retry failures that are not the program's own: time limit, setup, no such program. */
static struct json *status_rule(const struct job *job, const char *action)
{
	struct json *values = job->keeps_limit ? json_make("[124, 125, 126, 127, 128]")
					       : json_make("[125, 126, 127, 128]");

	return json_make("{'action': %s, 'onExitCodes': "
			 "{'containerName': '" KUBE_CONTAINER "', 'operator': 'In', 'values': %p}}",
		action, (void *)values);
}

static int64_t ttl_s(const struct kube_run *run)
{
	return (run->ttl_ms > 0 ? run->ttl_ms : TTL_MS) / 1000;
}

/* The ranks of the role with which the run ends. */
static void flat_set_success(const struct kube_run *run, struct json *spec)
{
	struct json *rules = json_array();
	int first = 0;

	for (size_t i = 0; i < run->n_roles; first += run->roles[i++].nodes) {
		int last = first + run->roles[i].nodes - 1;
		if (!str_eq(run->roles[i].name, run->ends_with))
			continue;
		/* A span of one index is refused. */
		AUTO_FREE char *indexes =
			first == last ? mem_printf("%d", first) : mem_printf("%d-%d", first, last);
		json_add(rules, json_make("{'succeededIndexes': %s}", indexes));
	}
	json_set(json_sub(spec, "successPolicy"), "rules", rules);
}

/* JobSpec; pod is taken over. */
static void set_job_spec(const struct job *job, struct json *spec, struct json *pod)
{
	const struct kube_run *run = job->run;
	int64_t completions = run->n_members ? (int64_t)run->n_members : run->nodes;
	bool is_limited = run->n_members && run->parallel > 0 && run->parallel < completions;

	json_set_str(spec, "completionMode", "Indexed");
	json_set_int(spec, "completions", completions);
	json_set_int(spec, "parallelism", is_limited ? run->parallel : completions);
	if (run->n_members && run->fail_fast)
		json_set_int(spec, "maxFailedIndexes", 0);
	struct json *rules = json_array();

	if (job->is_gang) {
		json_set_int(spec, "backoffLimit", 0);
		json_add(rules, disruption_rule("FailJob"));
		if (job->is_jobset)
			json_add(rules, status_rule(job, "FailJob"));
	} else {
		json_set_int(spec, "backoffLimitPerIndex", run->retries);
		json_add(rules, disruption_rule("Ignore"));
		if (run->retries > 0)
			json_add(rules, status_rule(job, "FailIndex"));
	}
	json_set(json_sub(spec, "podFailurePolicy"), "rules", rules);
	json_set_str(spec, "podReplacementPolicy", "Failed");
	if (job->is_flat && run->ends_with)
		flat_set_success(run, spec);
	json_set(spec, "template", pod);
}

static struct json *job_object(const struct kube_run *run, enum kube_kind kind)
{
	struct json *json =
		job_new_object(run, kube_kinds[kind].version, kube_kinds[kind].name, run->job);

	set_notes(run, json_sub(json, "metadata"));
	return json;
}

static struct json *job_make_job(const struct job *job, struct json *pod)
{
	struct json *json = job_object(job->run, KUBE_KIND_JOB), *spec = json_sub(json, "spec");

	json_set_int(spec, "ttlSecondsAfterFinished", ttl_s(job->run));
	/* Also where its image is never there. */
	if (job->run->is_warming)
		json_set_int(spec, "activeDeadlineSeconds", job->run->timeout_ms / 1000);
	set_job_spec(job, spec, pod);
	set_queue(job->run, json);
	return json;
}

/*
 * JobSet
 */

/* A Job of the JobSet; pod is taken over. */
static struct json *jobset_make_part(const struct job *job, struct json *pod)
{
	struct json *part = json_make("{'name': %s, 'replicas': 1, 'template': {'metadata': {}}}",
		job->role ? job->role->name : JOB_GANG);
	struct json *template = json_sub(part, "template");
	struct json *metadata = json_sub(template, "metadata");

	job_set_labels(job->run, metadata);
	job_set_role(job, metadata);
	/* The Job gets the annotations, too, so that one list of Jobs describes all runs. */
	set_notes(job->run, metadata);
	set_job_spec(job, json_sub(template, "spec"), pod);
	return part;
}

/* Restarts are of Jobs that their podFailurePolicy has ended. A disruption is not a failure of the
 * program: such a restart is not counted. Which of the rules has ended the Job is told by its
 * message only. */
static struct json *make_jobset(const struct kube_run *run, struct json *parts)
{
	struct json *json = job_object(run, KUBE_KIND_JOBSET);
	struct json *ends = run->ends_with ? json_make("[%s]", run->ends_with) : NULL;

	json_set(json, "spec",
		json_make("{'network': {'enableDNSHostnames': true, "
			  "'publishNotReadyAddresses': true, 'subdomain': %s}, "
			  "'successPolicy': {'operator': 'All', 'targetReplicatedJobs': %p}, "
			  "'startupPolicy': {'startupPolicyOrder': 'AnyOrder'}, "
			  "'ttlSecondsAfterFinished': %lld, "
			  "'failurePolicy': {'maxRestarts': %d, 'rules': ["
			  "{'name': 'status', 'action': 'FailJobSet', "
			  "'onJobFailureReasons': ['PodFailurePolicy'], "
			  "'onJobFailureMessagePatterns': ['failed with exit code']}, "
			  "{'name': 'disruption', 'action': 'RestartJobSetAndIgnoreMaxRestarts', "
			  "'onJobFailureReasons': ['PodFailurePolicy']}]}, "
			  "'replicatedJobs': %p}",
			run->job, (void *)ends, (long long)ttl_s(run), run->retries,
			(void *)parts));
	set_queue(run, json);
	return json;
}

/*
 * The whole
 */

static bool job_is_kept(const struct kube_place *place)
{
	return place->kind != KUBE_PLACE_NONE && place->kind != KUBE_PLACE_EMPTY;
}

/* Of all roles as one Job the deciding one, too. */
static bool job_yields(const struct job *job)
{
	const struct kube_run *run = job->run;
	bool has_shell = run->has_shell || (!run->lacks_shell && !run->has_no_shell);
	bool is_other = job->role && !str_eq(job->role->name, run->ends_with);

	return run->ends_with && has_shell && (is_other || job->is_flat);
}

static bool job_user_is_root(const char *user)
{
	return str_empty(user) || str_eq(user, "root") || str_eq(user, "0") ||
	       str_starts(user, "0:") || str_starts(user, "root:");
}

static void set_job(struct job *job)
{
	const struct kube_run *run = job->run;

	job->is_gang = run->nodes > 1 || run->n_roles;
	job->is_jobset = job->is_gang && run->jobset;
	job->is_flat = run->n_roles && !run->jobset && !job->role;
	job->is_restricted =
		run->security == KUBE_SECURITY_RESTRICTED ||
		(run->security == KUBE_SECURITY_AUTO && str_eq(run->enforced, "restricted"));
	job->is_root = !job->is_restricted && job_user_is_root(run->image_user);
	job->yields = job_yields(job);
	job->keeps_limit = run->timeout_ms > 0 && !run->has_no_shell;
	job->counts = run->retries > 0 && (!job->is_gang || job->is_jobset);
	job->keeps_results = job_is_kept(&run->results);
	job->shares_results = job->is_gang && job->keeps_results;
	job_choose_collector(job, !job->keeps_results);
}

static void job_note_waiting(const struct job *job)
{
	const struct kube_run *run = job->run;
	char time[32];

	if (!job->lingers)
		strv_add(job->notes,
			"the target has no results: storage, so results end with the pod: fetch "
			"them while it runs");
	else
		strv_addf(job->notes,
			"the target has no results: storage: if there are results, the pod%s "
			"%s for %s after the program's end until a dlrun here has taken them "
			"(submit -f, logs -f, wait, fetch)",
			run->nodes > 1 ? "s" : "", run->gpus > 0 ? "keeps its GPUs" : "waits",
			duration_text(run->linger_ms, time));
	if (job->lingers && run->parallel > 0 && (size_t)run->parallel < run->n_members)
		strv_add(job->notes, "the next member of the study begins when that is over");
	if (job->lingers && run->ends_with)
		strv_addf(job->notes,
			"the other roles run on while results of %s wait, and a failure of theirs "
			"counts only when that is over",
			run->ends_with);
	if (run->retries > 0)
		strv_add(job->notes,
			"a retry starts without the files of the attempt before: without results: "
			"storage they end with its pod");
}

static void job_note_results(const struct job *job)
{
	const struct kube_run *run = job->run;

	if (run->collects && !job->collects)
		strv_add(job->notes,
			"only what the program writes to $DLRUN_OUTPUT_DIR is a result, because "
			"the image has no shell as far as can be told");
	if (run->results_s3 && run->retries > 0)
		strv_add(job->notes,
			"a retry starts without the files of the attempt before, which are in S3");
	if (!job_is_kept(&run->results) && !run->results_s3)
		job_note_waiting(job);
}

static void job_note_limits(const struct job *job)
{
	const struct kube_run *run = job->run;

	if (kube_wants_jobset(run->nodes, run->retries, false) && !job->is_jobset)
		strv_addf(job->notes,
			"nothing in the cluster restarts all %d nodes together: a failure is "
			"repeated only while dlrun follows or waits for it, or by dlrun restart %s",
			run->nodes, run->run_id);
	if (run->timeout_ms > 0 && run->has_no_shell)
		strv_add(job->notes,
			"the time limit begins when the node takes the pod, because the image "
			"has no shell that could keep it");
	if (job->counts && run->has_no_shell)
		strv_addf(job->notes,
			"DLRUN_ATTEMPT stays %d in retries, because the image has no shell that "
			"could count",
			run->attempt);
}

/* The bytes of all layers, cut where an object is full. */
static void job_code_objects(const struct kube_run *run, struct kube_objects *objects)
{
	size_t n = 0, room = 0;

	if (!kube_code_fits(run))
		return;
	for (size_t i = 0; i < run->n_code; i++)
		for (uint64_t at = 0, part = 0; at < run->code[i].size; part++) {
			const char *data = run->code[i].data;
			AUTO_BUF struct buf encoded = buf_with(2 * KUBE_CODE_EACH);
			uint64_t left = run->code[i].size - at;
			AUTO_FREE char *key = mem_printf("%zu.%03d", i, (int)part);

			if (room == 0) {
				AUTO_FREE char *name = kube_job_code_name(run->job, n);
				objects->code[n] = job_new_object(run, "v1", "ConfigMap", name);
				json_set_bool(objects->code[n++], "immutable", true);
				room = KUBE_CODE_EACH;
			}
			size_t size = left < room ? (size_t)left : room;
			if (data)
				base64_encode(data + at, size, &encoded);
			json_set_str(json_sub(objects->code[n - 1], "binaryData"), key,
				encoded.len ? encoded.data : "");
			at += size;
			room -= size;
		}
}

static int make_before(const struct job *job, struct kube_objects *objects, struct err *err)
{
	const struct kube_run *run = job->run;

	if (job->is_gang && !job->is_jobset)
		objects->service = job_service(run);
	if (run->results.kind == KUBE_PLACE_CLAIM && !run->claim_of)
		objects->claim = job_claim(run);
	if (run->n_members) {
		objects->config = job_new_object(run, "v1", "ConfigMap", run->job);
		int r = job_members(job, json_sub(objects->config, "data"), err);
		if (r < 0)
			return r;
	}
	if (job_is_gated(run)) {
		AUTO_FREE char *gate = kube_job_gate_name(run->job);
		objects->config = job_new_object(run, "v1", "ConfigMap", gate);
	}
	if (run->code_apart)
		job_code_objects(run, objects);
	if (!run->secret_env || run->secret_env->n == 0)
		return 0;
	return job_secret(run, &objects->secret, err);
}

static void job_init_role(
	const struct kube_run *of, size_t i, struct kube_run *run, struct job *job)
{
	const struct kube_role *role = &of->roles[i];

	*run = *of;
	run->nodes = role->nodes;
	run->gpus = role->gpus;
	run->cpu_milli = role->cpu_milli;
	run->memory_bytes = role->memory_bytes;
	run->command = role->command;
	run->shell = role->shell;
	run->env = role->env;
	job->run = run;
	job->role = role;
	for (size_t k = 0; k < i; k++)
		job->first += of->roles[k].nodes;
	set_job(job);
}

/* All roles as one Job. */
static void job_init_flat(const struct kube_run *of, struct kube_run *run, struct job *job)
{
	*run = *of;
	run->command = of->roles[0].command;
	run->shell = false;
	job->run = run;
	set_job(job);
}

/* The pods of the part at i of the run, and what is said of their names. */
static int job_make_part(const struct kube_run *run, size_t i, struct kube_objects *objects,
	struct json *parts, struct err *err)
{
	AUTO_STRV struct strv said = {0};
	struct kube_run own;
	struct job job = {.run = run, .notes = i ? &said : &objects->notes};
	struct json *pod = NULL;

	if (run->n_roles && run->jobset)
		job_init_role(run, i, &own, &job);
	else if (run->n_roles)
		job_init_flat(run, &own, &job);
	else
		set_job(&job);
	int r = job.is_flat ? job_flat_check(run, err) : 0;
	if (r == 0)
		r = check_names(&job, err);
	if (r == 0)
		r = job_pod(&job, &pod, err);
	if (r < 0)
		return r;
	if (job.is_jobset)
		json_add(parts, jobset_make_part(&job, pod));
	else
		objects->job = job_make_job(&job, pod);
	return 0;
}

static int job_make_parts(const struct kube_run *run, struct kube_objects *objects, struct err *err)
{
	AUTO_JSON struct json *parts = json_array();
	size_t n = run->n_roles && run->jobset ? run->n_roles : 1;
	int r = 0;

	for (size_t i = 0; r == 0 && i < n; i++)
		r = job_make_part(run, i, objects, parts, err);
	if (r == 0 && json_count(parts))
		objects->job = make_jobset(run, TAKE(parts));
	return r;
}

int kube_job_make(const struct kube_run *run, struct kube_objects *ret, struct err *err)
{
	AUTO_KUBE_OBJECTS struct kube_objects objects = {0};
	struct job job = {.run = run, .notes = &objects.notes};

	int r = job_check_size(run, err);
	if (r == 0)
		r = job_make_parts(run, &objects, err);
	if (r < 0)
		return r;
	set_job(&job);
	objects.is_jobset = job.is_jobset;
	job_note_results(&job);
	job_note_limits(&job);
	job_flat_note(&job);
	r = make_before(&job, &objects, err);
	if (r < 0)
		return r;
	*ret = objects;
	objects = (struct kube_objects){0};
	return 0;
}
