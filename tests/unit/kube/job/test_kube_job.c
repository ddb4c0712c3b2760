/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/data/json.h"
#include "base/data/yaml.h"
#include "base/util/auto.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/job/job.h"
#include "kube/status/object.h"

#define DIGEST "sha256:6c3c624b58dbbcd3c0dd82b4c53f04194d1247c6eebdaab7c610cf7d66709b3b"
#define TREE   "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

/* A run, and what its pointers point to. */
struct sample {
	struct kube_run run;
	struct strv command, env, defaults, secret_env;
	struct strv learn, act, none, variables;
	struct kube_role roles[2];
};

static void sample_done(struct sample *sample)
{
	strv_done(&sample->command);
	strv_done(&sample->env);
	strv_done(&sample->defaults);
	strv_done(&sample->secret_env);
	strv_done(&sample->learn);
	strv_done(&sample->act);
	strv_done(&sample->none);
	strv_done(&sample->variables);
	strv_done(&sample->run.image_entrypoint);
	strv_done(&sample->run.image_env);
	json_free((struct json *)sample->run.overlay);
	json_free((struct json *)sample->run.labels);
	json_free((struct json *)sample->run.annotations);
	json_free((struct json *)sample->run.node_selector);
	json_free((struct json *)sample->run.gpu_choices);
	json_free((struct json *)sample->run.tolerations);
	for (size_t i = 0; i < sample->run.n_members; i++) {
		strv_done((struct strv *)sample->run.members[i].command);
		strv_done((struct strv *)sample->run.members[i].env);
	}
}
#define AUTO_SAMPLE AUTO(sample_done)

static struct json *json(const char *text)
{
	struct json *json = NULL;

	assert_int_equal(json_parse(text, strlen(text), JSON_SIZE_MAX, "test", &json, NULL), 0);
	return json;
}

static void sample_init(struct sample *sample)
{
	*sample = (struct sample){.run = {.run_id = "resnet-3k2f9",
					  .job = "resnet-3k2f9",
					  .attempt = 1,
					  .kube_namespace = "me",
					  .user = "me@example.com",
					  .tree = TREE,
					  .commit = "4f2c91a",
					  .spec = "{\"schema\":\"dlrun/spec/v1\"}",
					  .record = "{\"schema\":\"dlrun/run/v1\"}",
					  .image_ref = "registry.example.com/me/dlrun@" DIGEST,
					  .workdir = "/dlrun/src",
					  .cwd = ".",
					  .nodes = 1,
					  .grace_ms = 10000,
					  .os = "linux",
					  .arch = "amd64"}};
	strv_add(&sample->command, "python");
	strv_add(&sample->command, "train.py");
	strv_add(&sample->env, "DLRUN_SNAPSHOT=sha256:" TREE);
	strv_add(&sample->env, "EPOCHS=10");
	strv_add(&sample->defaults, "PYTHONUNBUFFERED=1");
	sample->run.command = &sample->command;
	sample->run.env = &sample->env;
	sample->run.defaults = &sample->defaults;
	sample->run.secret_env = &sample->secret_env;
}

/*
 * Whole objects
 */

static void set_plain(struct sample *sample)
{
	strv_add(&sample->run.image_entrypoint, "/entrypoint.sh");
	strv_add(&sample->env, "PRICE=$(HOME) $$ $");
	sample->run.cwd = "exp/a";
	sample->run.labels = json("{\"team\":\"vision\",\"dlrun.io/run-id\":\"not-mine\"}");
	sample->run.annotations = json("{\"cost\":\"7\"}");
}

static void set_gpus(struct sample *sample)
{
	sample->run.gpus = 2;
	sample->run.gpu_resource = "nvidia.com/mig-1g.10gb";
	sample->run.node_selector = json("{\"gpu\":\"h100\"}");
	sample->run.tolerations =
		json("[{\"key\":\"team\",\"operator\":\"Equal\",\"value\":\"v\"}]");
	sample->run.cpu_milli = 1500;
	sample->run.memory_bytes = 16ULL << 30;
	sample->run.disk_bytes = 50ULL << 30;
	sample->run.shm_bytes = 8ULL << 30;
	sample->run.retries = 3;
	sample->run.attempt = 2;
	sample->run.job = "resnet-3k2f9-2";
	sample->run.queue = "gpu";
	sample->run.queue_priority = "high";
	sample->run.priority_class = "batch";
	sample->run.pull_secret = "regcred";
	sample->run.service_account = "trainer";
	sample->run.ttl_ms = 3600 * 1000;
}

static void set_spot(struct sample *sample)
{
	sample->run.region = "us-east-1,eu-west-1";
	sample->run.instance_type = "p5.48xlarge";
	sample->run.is_spot = true;
}

static void set_no_spot(struct sample *sample)
{
	sample->run.region = "us-east-1";
	sample->run.is_not_spot = true;
	sample->run.gpus = 1;
	sample->run.gpu_choices = json("[{\"node_selector\":{\"gpu\":\"h100\"}},"
				       "{\"node_selector\":{\"gpu\":\"a100\"}}]");
}

static void set_nodes(struct sample *sample)
{
	static const uint16_t ports[] = {6006, 29500};

	sample->run.nodes = 2;
	sample->run.gpus = 8;
	sample->run.retries = 1;
	sample->run.ports = ports;
	sample->run.n_ports = 2;
	strv_add(&sample->env, "MASTER_PORT=12345");
}

static void set_jobset(struct sample *sample)
{
	set_nodes(sample);
	sample->run.same = KUBE_LABEL_ZONE;
	sample->run.jobset = true;
	sample->run.queue = "gpu";
}

static void set_roles(struct sample *sample)
{
	strv_add(&sample->learn, "learn.py");
	strv_add(&sample->act, "act.py");
	strv_add(&sample->act, "resnet-3k2f9-learner-0-0.resnet-3k2f9");
	strv_add(&sample->variables, "DLRUN_ROLE=actors");
	sample->roles[0] = (struct kube_role){.name = "learner",
		.nodes = 1,
		.gpus = 4,
		.command = &sample->learn,
		.env = &sample->env};
	sample->roles[1] = (struct kube_role){.name = "actors",
		.nodes = 2,
		.cpu_milli = 8000,
		.memory_bytes = 4ULL << 30,
		.command = &sample->act,
		.env = &sample->none,
		.variables = &sample->variables};
	sample->run.nodes = 3;
	sample->run.gpus = 4;
	sample->run.cpu_milli = 8000;
	sample->run.roles = sample->roles;
	sample->run.n_roles = 2;
	sample->run.ends_with = "learner";
	sample->run.same = KUBE_LABEL_ZONE;
	sample->run.jobset = true;
}

/* One Job of all. */
static void set_flat(struct sample *sample)
{
	set_roles(sample);
	sample->roles[0].gpus = sample->run.gpus = 0;
	sample->run.jobset = false;
	strv_add(&sample->none, "PRICE=$(HOME) it's $$");
}

static void set_secrets(struct sample *sample)
{
	strv_add(&sample->env, "HF_TOKEN=public");
	strv_add(&sample->secret_env, "HF_TOKEN=hf_$(x)=secret");
	strv_add(&sample->secret_env, "EMPTY=");
}

static void set_storage(struct sample *sample)
{
	static const struct kube_output outputs[] = {{"out", true}, {"exp/runs", false}};
	static const struct kube_mount data[] = {{.path = "data/imagenet",
							 .place = {.kind = KUBE_PLACE_PVC,
								 .name = "datasets",
								 .sub_path = "imagenet"},
							 .has_files = true},
		{.path = "data/coco",
			.place = {.kind = KUBE_PLACE_PVC, .name = "datasets", .sub_path = "coco"}},
		{.path = "data/nfs",
			.place = {.kind = KUBE_PLACE_NFS,
				.name = "nas.example.com",
				.path = "/export",
				.read_only = true}}};
	static const struct kube_mount volumes[] = {
		{.path = "/scratch", .place = {.kind = KUBE_PLACE_PVC, .name = "scratch"}},
		{.path = "/tmp/fast", .place = {.kind = KUBE_PLACE_EMPTY, .size_bytes = 1 << 30}}};

	sample->run.results = (struct kube_place){
		.kind = KUBE_PLACE_PVC, .name = "results", .sub_path = "teams/me"};
	sample->run.outputs = outputs;
	sample->run.n_outputs = 2;
	sample->run.data = data;
	sample->run.n_data = 3;
	sample->run.volumes = volumes;
	sample->run.n_volumes = 2;
}

static void set_restricted(struct sample *sample)
{
	sample->run.enforced = "restricted";
	sample->run.image_user = "jovyan";
	sample->run.results = (struct kube_place){
		.kind = KUBE_PLACE_CLAIM, .size_bytes = 20ULL << 30, .storage_class = "fast"};
}

static void set_overlay(struct sample *sample)
{
	sample->run.overlay = json(
		"{\"metadata\":{\"labels\":{\"mine\":\"1\"}},\"spec\":{\"hostNetwork\":true,"
		"\"containers\":[{\"env\":[{\"name\":\"EPOCHS\",\"value\":\"20\"}],"
		"\"volumeMounts\":[{\"name\":\"x\",\"mountPath\":\"/x\"}]},"
		"{\"name\":\"side\",\"image\":\"busybox\"}],"
		"\"volumes\":[{\"name\":\"x\",\"emptyDir\":{}}],"
		"\"tolerations\":[{\"operator\":\"Exists\"}],\"affinity\":{\"$patch\":\"delete\"}}}");
}

static void set_scratch(struct sample *sample)
{
	sample->run.has_no_shell = true;
	sample->run.timeout_ms = 90 * 1000 + 1;
	sample->run.retries = 1;
	sample->run.drop_entrypoint = true;
}

static void set_script(struct sample *sample)
{
	strv_add(&sample->run.image_entrypoint, "/entrypoint.sh");
	sample->run.before = "source ~/venv/bin/activate";
	sample->run.setup = "uv sync --frozen";
	sample->run.setup_cwd = "exp";
	sample->run.timeout_ms = 3600 * 1000;
	sample->run.signal = "USR1";
	sample->run.signal_before_ms = 90 * 1000;
	sample->run.retries = 2;
}

static void set_study(struct sample *sample)
{
	static struct strv commands[3], env[3];
	static struct kube_member members[3];
	static const struct kube_output outputs[] = {{"out$(x)", true}};

	for (size_t i = 0; i < 3; i++) {
		commands[i] = env[i] = (struct strv){0};
		strv_add(&commands[i], "python");
		strv_addf(&commands[i], "--lr=0.%zu", i);
		strv_addf(&env[i], "EPOCHS=%zu", i);
		members[i] = (struct kube_member){&commands[i], &env[i]};
	}
	strv_add(&sample->env, "DLRUN_STUDY_INDEX=0");
	sample->run.members = members;
	sample->run.n_members = 3;
	sample->run.parallel = 2;
	sample->run.fail_fast = true;
	sample->run.retries = 1;
	sample->run.results = (struct kube_place){
		.kind = KUBE_PLACE_CLAIM, .sub_path = "a$(b)", .size_bytes = 20ULL << 30};
	sample->run.outputs = outputs;
	sample->run.n_outputs = 1;
}

static const struct {
	const char *name;
	void (*set)(struct sample *sample);
} samples[] = {{"plain", set_plain}, {"gpus", set_gpus}, {"spot", set_spot},
	{"no-spot", set_no_spot}, {"nodes", set_nodes}, {"jobset", set_jobset},
	{"roles", set_roles}, {"flat", set_flat}, {"secrets", set_secrets},
	{"storage", set_storage}, {"restricted", set_restricted}, {"overlay", set_overlay},
	{"scratch", set_scratch}, {"script", set_script}, {"study", set_study}};

static void make(const struct kube_run *run, struct kube_objects *ret)
{
	AUTO_ERR struct err err = {0};

	if (kube_job_make(run, ret, &err) < 0)
		fail_msg("%s", err.message);
}

static char *print_all(const struct kube_objects *objects)
{
	const struct json *before[KUBE_OBJECTS_MAX];
	AUTO_BUF struct buf text;

	buf_init(&text, JSON_SIZE_MAX);
	for (size_t i = 0, n = kube_objects_before(objects, before); i < n; i++) {
		yaml_print(before[i], &text);
		buf_adds(&text, "---\n");
	}
	yaml_print(objects->job, &text);
	for (size_t i = 0; i < objects->notes.n; i++)
		buf_addf(&text, "# %s\n", objects->notes.v[i]);
	return buf_take(&text);
}

static char *read_file(const char *name)
{
	FILE *file = fopen(name, "re");
	char *text = mem_alloc(1 << 20, 1);

	if (file) {
		size_t n = fread(text, 1, (1 << 20) - 1, file);
		assert_true(n < (1 << 20) - 1);
		fclose(file);
	}
	return text;
}

/* UNIT_UPDATE=1 writes them anew. */
static void check_golden(const char *name, const char *text)
{
	const char *data = getenv("UNIT_DATA");
	AUTO_FREE char *path = mem_printf("%s/kube/%s.yaml", data ? data : "tests/unit/data", name);

	if (getenv("UNIT_UPDATE")) {
		FILE *file = fopen(path, "we");
		assert_non_null(file);
		fputs(text, file);
		fclose(file);
	}
	AUTO_FREE char *want = read_file(path);
	assert_string_equal(text, want);
}

/* Files of results are named by the rank in the run. */
static void test_roles_collect(void **state)
{
	static const char *const begins[] = {
		"i=${JOB_COMPLETION_INDEX:-0} ", "i=$$((1 + ${JOB_COMPLETION_INDEX:-0})) "};
	AUTO_SAMPLE struct sample sample;
	AUTO_KUBE_OBJECTS struct kube_objects objects = {0};
	int64_t nodes;

	sample_init(&sample);
	set_roles(&sample);
	sample.run.collects = true;
	make(&sample.run, &objects);
	for (size_t i = 0; i < ARRAY_LEN(begins); i++) {
		const struct json *spec = kube_objects_pods(&sample.run, &objects, i, &nodes);
		const struct json *program = json_first(json_get(spec, "containers"));
		const char *script = json_str(json_first(json_get(program, "args")));

		assert_int_equal(nodes, i + 1);
		assert_true(str_starts(script, begins[i]));
	}
	assert_null(kube_objects_pods(&sample.run, &objects, 2, &nodes));
}

static void test_different_gpus_need_jobset(void **state)
{
	AUTO_SAMPLE struct sample sample;
	AUTO_KUBE_OBJECTS struct kube_objects objects = {0};
	AUTO_ERR struct err err = {0};

	sample_init(&sample);
	set_roles(&sample);
	sample.run.jobset = false;
	assert_true(kube_job_make(&sample.run, &objects, &err) < 0);
	assert_int_equal(err.id, E_TARGET_UNSUPPORTED);
}

static void test_objects(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(samples); i++) {
		AUTO_SAMPLE struct sample sample;
		AUTO_KUBE_OBJECTS struct kube_objects objects = {0};

		sample_init(&sample);
		samples[i].set(&sample);
		make(&sample.run, &objects);
		AUTO_FREE char *text = print_all(&objects);
		check_golden(samples[i].name, text);
	}
}

/* The values are in the Secret, and nowhere else. */
static void test_secret_values(void **state)
{
	AUTO_SAMPLE struct sample sample;
	AUTO_KUBE_OBJECTS struct kube_objects objects = {0};

	sample_init(&sample);
	set_secrets(&sample);
	make(&sample.run, &objects);
	AUTO_FREE char *text = print_all(&objects);
	assert_null(strstr(text, "secret\n"));
	assert_null(strstr(text, "hf_"));
	assert_null(strstr(text, "public"));
}

/* The bytes of a layer, out of the entries of all objects. */
static void get_code(const struct kube_objects *objects, size_t layer, struct buf *ret)
{
	for (int part = 0;; part++) {
		AUTO_FREE char *key = mem_printf("%zu.%03d", layer, part);
		const char *found = NULL;
		for (size_t i = 0; !found && i < KUBE_CODE_OBJECTS; i++)
			found = json_get_str(json_get(objects->code[i], "binaryData"), key);
		if (!found)
			return;
		assert_true(base64_decode(found, strlen(found), ret));
	}
}

static void test_code_apart(void **state)
{
	enum { FIRST = KUBE_CODE_EACH - 7, SECOND = 2 * KUBE_CODE_EACH + 9 };
	AUTO_SAMPLE struct sample sample;
	AUTO_KUBE_OBJECTS struct kube_objects objects = {0};
	const struct json *list[KUBE_OBJECTS_MAX];
	AUTO_FREE char *data = mem_alloc(1, SECOND);
	AUTO_BUF struct buf first, second;

	for (int i = 0; i < SECOND; i++)
		data[i] = (char)(i * 31 + i / 1000);
	const struct kube_code code[] = {{DIGEST, FIRST, data}, {"sha256:" TREE, SECOND, data}};
	buf_init(&first, 4 << 20);
	buf_init(&second, 4 << 20);
	sample_init(&sample);
	sample.run.code_apart = true;
	sample.run.code = code;
	sample.run.n_code = 2;
	make(&sample.run, &objects);
	assert_int_equal(kube_objects_before(&objects, list), 4);
	assert_int_equal(kube_objects_adopt(&objects, list), 4);
	AUTO_FREE char *path = kube_object_path(list[3]);
	assert_string_equal(path, "/api/v1/namespaces/me/configmaps/resnet-3k2f9-code-3");
	get_code(&objects, 0, &first);
	get_code(&objects, 1, &second);
	assert_int_equal(first.len, FIRST);
	assert_memory_equal(first.data, data, FIRST);
	assert_int_equal(second.len, SECOND);
	assert_memory_equal(second.data, data, SECOND);
	AUTO_FREE char *all = print_all(&objects);
	assert_non_null(strstr(all, "initContainers"));
	kube_objects_done(&objects);

	sample.run.has_no_shell = true;
	AUTO_ERR struct err err = {0};
	assert_true(kube_job_make(&sample.run, &objects, &err) < 0);
	assert_int_equal(err.id, E_KUBE_SHELL);
}

static void test_requests(void **state)
{
	AUTO_SAMPLE struct sample sample;
	AUTO_KUBE_OBJECTS struct kube_objects objects = {0};
	const struct json *list[KUBE_OBJECTS_MAX];

	sample_init(&sample);
	set_nodes(&sample);
	set_secrets(&sample);
	sample.run.results = (struct kube_place){.kind = KUBE_PLACE_CLAIM, .size_bytes = 1};
	make(&sample.run, &objects);
	assert_int_equal(kube_objects_before(&objects, list), 3);
	AUTO_FREE char *path = kube_object_path(list[0]);
	assert_string_equal(
		path, "/api/v1/namespaces/me/persistentvolumeclaims/resnet-3k2f9-results");
	assert_int_equal(kube_objects_adopt(&objects, list), 2);
	AUTO_FREE char *service = kube_object_path(list[0]);
	assert_string_equal(service, "/api/v1/namespaces/me/services/resnet-3k2f9");
	AUTO_FREE char *secret = kube_object_collection(list[1]);
	assert_string_equal(secret, "/api/v1/namespaces/me/secrets");
	json_set_str(json_sub(objects.job, "metadata"), "uid", "u-1");
	AUTO_JSON struct json *owner = kube_job_owner(objects.job);
	AUTO_BUF struct buf text;
	buf_init(&text, 4096);
	json_print(owner, &text);
	assert_string_equal(text.data,
		"{\"metadata\":{\"ownerReferences\":[{\"apiVersion\":\"batch/v1\",\"kind\":"
		"\"Job\",\"name\":\"resnet-3k2f9\",\"uid\":\"u-1\"}]}}");
}

/*
 * What is refused
 */

static void refuse(const struct sample *sample, enum err_id id, const char *part)
{
	AUTO_KUBE_OBJECTS struct kube_objects objects = {0};
	AUTO_ERR struct err err = {0};

	assert_true(kube_job_make(&sample->run, &objects, &err) < 0);
	assert_int_equal(err.id, id);
	if (!strstr(err.message, part))
		fail_msg("'%s' is not in: %s", part, err.message);
	assert_null(objects.job);
}

static void test_names(void **state)
{
	static const char *const names[] = {"", "-a", "a-", "A", "a.b", "a_b",
		"a123456789a123456789a123456789a123456789a123456789a12345"};

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		AUTO_SAMPLE struct sample sample;
		sample_init(&sample);
		sample.run.job = names[i];
		refuse(&sample, E_KUBE_NAME, "cannot be the name of a Job");
	}
	AUTO_SAMPLE struct sample sample;
	AUTO_KUBE_OBJECTS struct kube_objects objects = {0};
	sample_init(&sample);
	/* The longest: name, dash, suffix, attempt; the pod has 62. */
	sample.run.job = "a123456789a123456789a123456789a12345678-x7k2p-1000";
	sample.run.nodes = 1000;
	make(&sample.run, &objects);
	sample.run.kube_namespace = "../x";
	refuse(&sample, E_KUBE_NAME, "namespace");
}

static void test_labels(void **state)
{
	static const struct {
		const char *text, *label;
	} cases[] = {
		{"me", "me"},
		{"me@example.com", "me-example.com"},
		{"-.me_", "me"},
		{"system:serviceaccount:a:b", "system-serviceaccount-a-b"},
		{"\xc3\xa9", ""},
		{"@@", ""},
		{TREE, "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a0"},
		{"a12345678901234567890123456789012345678901234567890123456789-----b",
			"a12345678901234567890123456789012345678901234567890123456789"},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_FREE char *label = kube_label_value(cases[i].text);
		assert_string_equal(label, cases[i].label);
	}
}

/* On nodes with such GPUs, none of which is requested; each pod on a node of its own. */
static void test_warming(void **state)
{
	AUTO_SAMPLE struct sample sample;
	AUTO_KUBE_OBJECTS struct kube_objects objects = {0};
	AUTO_BUF struct buf text = {0};

	sample_init(&sample);
	set_gpus(&sample);
	sample.run.queue = NULL;
	sample.run.nodes = 3;
	sample.run.retries = 0;
	sample.run.timeout_ms = 3600 * 1000;
	sample.run.is_warming = true;
	make(&sample.run, &objects);
	buf_init(&text, 1 << 20);
	json_print(objects.job, &text);
	assert_non_null(strstr(text.data, "\"topologyKey\":\"kubernetes.io/hostname\""));
	assert_non_null(strstr(text.data, "\"activeDeadlineSeconds\":3600"));
	assert_non_null(strstr(text.data, "\"gpu\":\"h100\""));
	assert_non_null(strstr(text.data, "\"key\":\"nvidia.com/mig-1g.10gb\""));
	assert_null(strstr(text.data, "\"nvidia.com/mig-1g.10gb\":"));
	assert_null(strstr(text.data, "metadata.name"));
}

/* GPUs that no label tells of: the nodes that have them are named. */
static void test_warming_of_named_nodes(void **state)
{
	static const char *const names[] = {"gpu-1", "gpu-2"};
	const struct strv nodes = {.v = (char **)names, .n = 2};
	AUTO_SAMPLE struct sample sample;
	AUTO_KUBE_OBJECTS struct kube_objects objects = {0};

	sample_init(&sample);
	sample.run.queue = NULL;
	sample.run.gpus = 0;
	sample.run.nodes = 2;
	sample.run.retries = 0;
	sample.run.is_warming = true;
	sample.run.only_nodes = &nodes;
	make(&sample.run, &objects);
	const struct json *pod = json_get(json_get(objects.job, "spec"), "template");
	const struct json *affinity =
		json_get(json_get(json_get(pod, "spec"), "affinity"), "nodeAffinity");
	AUTO_BUF struct buf text = {0};
	buf_init(&text, 1 << 20);
	json_print(json_get(affinity, "requiredDuringSchedulingIgnoredDuringExecution"), &text);
	assert_string_equal(text.data,
		"{\"nodeSelectorTerms\":["
		"{\"matchFields\":[{\"key\":\"metadata.name\",\"operator\":\"In\",\"values\":[\"gpu-1\"]}]},"
		"{\"matchFields\":[{\"key\":\"metadata.name\",\"operator\":\"In\",\"values\":[\"gpu-2\"]}]}]}");
}

static void test_no_shell(void **state)
{
	static const struct kube_output output = {"out", true};
	AUTO_SAMPLE struct sample sample;
	AUTO_STRV struct strv sent = {0};

	strv_add(&sent, "data");
	sample_init(&sample);
	set_study(&sample);
	sample.run.has_no_shell = true;
	refuse(&sample, E_KUBE_SHELL, "a study");
	sample_done(&sample);
	sample_init(&sample);
	sample.run.has_no_shell = true;
	sample.run.sent = &sent;
	refuse(&sample, E_KUBE_SHELL, "data: sync");
	sample.run.sent = NULL;
	sample.run.shell = true;
	refuse(&sample, E_KUBE_SHELL, "a command for the shell");
	sample.run.before = "x";
	refuse(&sample, E_KUBE_SHELL, "before");
	sample.run.setup = "x";
	refuse(&sample, E_KUBE_SHELL, "setup");
	sample.run.setup = sample.run.before = NULL;
	sample.run.signal = "USR1";
	refuse(&sample, E_KUBE_SHELL, "--signal");
	sample.run.signal = NULL;
	sample.run.stop_signal = "INT";
	sample.run.shell = false;
	refuse(&sample, E_KUBE_SHELL, "stop_signal");
	sample.run.has_no_shell = false;
	sample.run.signal = "TERM";
	refuse(&sample, E_TARGET_UNSUPPORTED, "stop_signal: INT");
	sample.run.has_no_shell = true;
	sample.run.signal = sample.run.stop_signal = NULL;
	sample.run.shell = false;
	sample.run.outputs = &output;
	sample.run.n_outputs = 1;
	refuse(&sample, E_KUBE_SHELL, "below an output");
}

/* A pod tells which version of data it has mounted, where that is not in the plan. */
static void test_versions_of_data(void **state)
{
	struct kube_mount data[] = {
		{.path = "a",
			.place = {KUBE_PLACE_PVC, .name = "sets", .sub_path = "x/.dlrun/current"}},
		{.path = "b", .place = {KUBE_PLACE_PVC, .name = "sets", .sub_path = "y"}}};

	for (size_t i = 0; i < 3; i++) {
		AUTO_KUBE_OBJECTS struct kube_objects objects = {0};
		AUTO_SAMPLE struct sample sample;
		sample_init(&sample);
		sample.run.data = data;
		sample.run.n_data = 2;
		sample.run.lacks_shell = i == 1;
		data[0].place.sub_path =
			i == 2 ? "x/.dlrun/d-0123456789abcdef" : "x/.dlrun/current";
		make(&sample.run, &objects);
		AUTO_BUF struct buf text = {0};
		buf_init(&text, 1 << 20);
		json_print(objects.job, &text);
		bool has =
			strstr(text.data,
				"\"mountPath\":\"/dlrun/versions/0\",\"subPath\":\"x/.dlrun/current\",\"readOnly\":true") !=
			NULL;
		assert_int_equal(has, i == 0);
		assert_null(strstr(text.data, "/dlrun/versions/1"));
	}
}

/* The first word of the program's container, or NULL; whether another one waits beside it. */
static char *start_of(const struct kube_run *run, bool *ret_lingers)
{
	AUTO_KUBE_OBJECTS struct kube_objects objects = {0};

	make(run, &objects);
	const struct json *pod = json_get(json_get(objects.job, "spec"), "template");
	const struct json *list = json_get(json_get(pod, "spec"), "containers");
	const struct json *words = json_get(json_first(list), "command");
	const struct json *second = json_next(json_first(list));

	*ret_lingers = second && str_eq(json_get_str(second, "name"), KUBE_KEEPER);
	return words ? mem_strdup(json_str(json_first(words))) : NULL;
}

/* What collects needs a shell: it is known to be there, or Python, which is, looks for it. */
static void test_collector(void **state)
{
	static const struct {
		const char *program;
		bool has_shell, lacks_shell, has_no_shell, is_kept, none;
		const char *start;
		bool lingers;
	} rows[] = {
		{NULL, true, .start = "/bin/sh", .lingers = true},
		{NULL, true, .is_kept = true, .start = "/bin/sh"},
		{NULL, true, .is_kept = true, .none = true},
		{NULL, true, .none = true, .start = "/bin/sh", .lingers = true},
		{"python3", .start = "python3", .lingers = true},
		{"/usr/bin/python3.12", .lacks_shell = true, .start = "/usr/bin/python3.12",
			.lingers = true},
		{"venv/bin/python", .lacks_shell = true},
		{NULL, .lacks_shell = true},
		{NULL, .has_no_shell = true},
		{NULL, .start = "/bin/sh", .lingers = true},
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_SAMPLE struct sample sample;
		AUTO_STRV struct strv command = {0};
		bool lingers;

		sample_init(&sample);
		strv_add(&command, "./train");
		sample.run.command = &command;
		sample.run.collects = !rows[i].none;
		sample.run.linger_ms = 1000;
		sample.run.image_program = rows[i].program;
		sample.run.has_shell = rows[i].has_shell;
		sample.run.lacks_shell = rows[i].lacks_shell;
		sample.run.has_no_shell = rows[i].has_no_shell;
		sample.run.results.kind = rows[i].is_kept ? KUBE_PLACE_PVC : KUBE_PLACE_EMPTY;
		sample.run.results.name = "x";
		AUTO_FREE char *start = start_of(&sample.run, &lingers);
		if (!str_eq(start, rows[i].start) || lingers != rows[i].lingers)
			fail_msg("row %zu: %s, %d", i, start ? start : "none", lingers);
	}
}

/* Results in S3: the second container has the address, what keys come by, and nothing else of the
 * program's; no Job without a shell. */
static void test_results_s3(void **state)
{
	static const char *const names[] = {"AWS_REGION=eu", "OTHER=x"};
	AUTO_SAMPLE struct sample sample;
	AUTO_KUBE_OBJECTS struct kube_objects objects = {0};
	AUTO_STRV struct strv env = {0}, secrets = {0};
	AUTO_ERR struct err err = {0};
	AUTO_BUF struct buf text;

	sample_init(&sample);
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		strv_add(&env, names[i]);
	strv_add(&secrets, "AWS_SECRET_ACCESS_KEY=canary");
	sample.run.env = &env;
	sample.run.secret_env = &secrets;
	sample.run.has_shell = true;
	sample.run.results.kind = KUBE_PLACE_EMPTY;
	sample.run.results_s3 = "s3://bucket/$(x)";
	make(&sample.run, &objects);
	const struct json *template = json_get(json_get(objects.job, "spec"), "template");
	const struct json *notes = json_get(json_get(template, "metadata"), "annotations");
	const struct json *list = json_get(json_get(template, "spec"), "containers");
	const struct json *keeper = json_next(json_first(list));
	assert_null(json_get(notes, KUBE_ANNOTATION_LINGER));
	AUTO_FREE char *want = mem_printf("s3://bucket/$$(x)/%s", sample.run.run_id);
	assert_string_equal(json_str(json_first(json_get(keeper, "args"))), want);
	buf_init(&text, 1 << 20);
	json_print(json_get(keeper, "env"), &text);
	assert_non_null(strstr(text.data, "AWS_REGION"));
	assert_non_null(strstr(text.data, "\"secretKeyRef\":{\"key\":\"AWS_SECRET_ACCESS_KEY\""));
	assert_null(strstr(text.data, "OTHER"));
	json_print(objects.job, &text);
	assert_null(strstr(text.data, "canary"));
	/* It learns of the program before the setup, which may last or fail; so does what waits for
	 * somebody who takes the results. */
	sample.run.setup = "sleep 600";
	sample.run.linger_ms = 60000;
	for (size_t i = 0; i < 2; i++) {
		AUTO_KUBE_OBJECTS struct kube_objects slow = {0};
		sample.run.results_s3 = i == 0 ? "s3://bucket/a" : NULL;
		make(&sample.run, &slow);
		buf_reset(&text);
		json_print(slow.job, &text);
		const char *alive = strstr(text.data, "/alive"),
			   *setup = strstr(text.data, "/setup.log");
		assert_true(alive && setup && alive < setup);
	}
	sample.run.results_s3 = "s3://bucket/a";
	sample.run.setup = NULL;
	sample.run.has_shell = false;
	sample.run.has_no_shell = true;
	AUTO_KUBE_OBJECTS struct kube_objects none = {0};
	assert_true(kube_job_make(&sample.run, &none, &err) < 0);
	assert_int_equal(err.id, E_KUBE_SHELL);
}

/* Data in S3: an init container has what keys come by; the program finds files to be read, and
 * tells by a lock that it is there. */
static void test_data_in_s3(void **state)
{
	static const struct kube_mount data[] = {
		{"data/a", .place = {.kind = KUBE_PLACE_S3,
				   .path = "s3://b/$(x)",
				   .size_bytes = 1 << 30}},
		{"data/claim", .place = {.kind = KUBE_PLACE_PVC, .name = "sets"}},
		{"data/b", .place = {.kind = KUBE_PLACE_S3, .path = "s3://b/y", .size_bytes = 1}},
	};
	AUTO_STRV struct strv secrets = {0};
	AUTO_ERR struct err err = {0};
	AUTO_SAMPLE struct sample sample;

	sample_init(&sample);
	strv_add(&secrets, "AWS_SECRET_ACCESS_KEY=canary");
	sample.run.secret_env = &secrets;
	sample.run.data = data;
	sample.run.n_data = ARRAY_LEN(data);
	for (size_t i = 0; i < 2; i++) {
		AUTO_KUBE_OBJECTS struct kube_objects objects = {0};
		AUTO_BUF struct buf text;
		sample.run.s3_cache =
			(struct kube_place){.kind = i ? KUBE_PLACE_PVC : KUBE_PLACE_NONE,
				.name = i ? "caches" : NULL,
				.sub_path = i ? "me" : NULL};
		make(&sample.run, &objects);
		buf_init(&text, 1 << 20);
		json_print(objects.job, &text);
		assert_null(strstr(text.data, "canary"));
		assert_non_null(strstr(text.data,
			i ? "\"args\":[\"shared\",\"$(DLRUN_POD)\",\"data/a\",\"s3://b/$$(x)\",\"1073741824\",\"data/b\",\"s3://b/y\",\"1\"]"
			  : "\"args\":[\"own\",\"$(DLRUN_POD)\",\"data/a\",\"s3://b/$$(x)\",\"1073741824\",\"data/b\",\"s3://b/y\",\"1\"]"));
		assert_non_null(
			strstr(text.data, i ? "\"subPathExpr\":\"me/s3/runs/$(DLRUN_POD)/1\""
					    : "\"subPathExpr\":\"s3/runs/$(DLRUN_POD)/1\""));
		assert_true((strstr(text.data, "\"sizeLimit\":\"1280Mi\"") != NULL) == !i);
		const struct json *pod =
			json_get(json_get(json_get(objects.job, "spec"), "template"), "spec");
		const struct json *init = json_first(json_get(pod, "initContainers"));
		buf_reset(&text);
		json_print(json_get(init, "env"), &text);
		assert_non_null(
			strstr(text.data, "\"secretKeyRef\":{\"key\":\"AWS_SECRET_ACCESS_KEY\""));
	}
	sample.run.has_no_shell = true;
	refuse(&sample, E_KUBE_SHELL, "data in S3");
	AUTO_KUBE_OBJECTS struct kube_objects none = {0};
	assert_true(kube_job_make(&sample.run, &none, &err) < 0);
}

/* Its shell may come from a volume of the user's own. */
static void test_keeper_mounts(void **state)
{
	static const struct kube_mount volumes[] = {
		{.path = "/usr", .place = {.kind = KUBE_PLACE_PVC, .name = "programs"}},
	};
	AUTO_SAMPLE struct sample sample;
	AUTO_KUBE_OBJECTS struct kube_objects objects = {0};
	AUTO_BUF struct buf paths;

	sample_init(&sample);
	sample.run.collects = true;
	sample.run.linger_ms = 1000;
	sample.run.has_shell = true;
	sample.run.volumes = volumes;
	sample.run.n_volumes = 1;
	make(&sample.run, &objects);
	const struct json *pod = json_get(json_get(objects.job, "spec"), "template");
	const struct json *list = json_get(json_get(pod, "spec"), "containers");
	const struct json *mounts = json_get(json_next(json_first(list)), "volumeMounts");
	buf_init(&paths, 1000);
	for (const struct json *item = json_first(mounts); item; item = json_next(item))
		buf_addf(&paths, "%s ", json_get_str(item, "mountPath"));
	assert_string_equal(paths.data, KUBE_ATTEMPT_DIR " " KUBE_OUTPUT_DIR " /usr ");
}

static void test_places(void **state)
{
	struct kube_mount data = {
		.path = "data", .place = {.kind = KUBE_PLACE_HOST, .path = "/srv"}};
	AUTO_SAMPLE struct sample sample;
	AUTO_KUBE_OBJECTS struct kube_objects objects = {0};

	sample_init(&sample);
	sample.run.data = &data;
	sample.run.n_data = 1;
	refuse(&sample, E_KUBE_HOST_PATH, "/srv");
	sample.run.allow_host_path = true;
	make(&sample.run, &objects);
	sample.run.enforced = "baseline";
	refuse(&sample, E_KUBE_STORAGE, "a directory of the node");
	data.place = (struct kube_place){.kind = KUBE_PLACE_NFS, .name = "nas", .path = "/x"};
	kube_objects_done(&objects);
	make(&sample.run, &objects);
	sample.run.enforced = "restricted";
	refuse(&sample, E_KUBE_STORAGE, "NFS");
	data.place = (struct kube_place){.kind = KUBE_PLACE_PVC, .name = "p", .sub_path = "a/../b"};
	refuse(&sample, E_KUBE_STORAGE, "is not a valid path in a volume");
	data.place.sub_path = "/a";
	refuse(&sample, E_KUBE_STORAGE, "is not a valid path in a volume");
	data.place.sub_path = NULL;
	data.path = "a:b";
	refuse(&sample, E_KUBE_STORAGE, "':'");
}

static void test_two_places(void **state)
{
	static const struct kube_mount volumes[] = {
		{.path = "/x", .place = {.kind = KUBE_PLACE_EMPTY}},
		{.path = "/x", .place = {.kind = KUBE_PLACE_PVC, .name = "p"}}};
	AUTO_SAMPLE struct sample sample;

	sample_init(&sample);
	sample.run.volumes = volumes;
	sample.run.n_volumes = 2;
	refuse(&sample, E_KUBE_STORAGE, "two volumes");
}

/* What the tree has at its path is removed. */
static void test_sent_beside_volumes(void **state)
{
	static const char *const paths[] = {"data/set"};
	static const char *const bad[] = {"data", "data/set", "data/set/x"};
	static const struct kube_output output = {"data/set/out", false};
	const struct strv sent = {.v = (char **)paths, .n = 1};
	struct kube_mount data = {.place = {.kind = KUBE_PLACE_PVC, .name = "p"}};
	AUTO_SAMPLE struct sample sample;
	AUTO_KUBE_OBJECTS struct kube_objects objects = {0};

	sample_init(&sample);
	sample.run.sent = &sent;
	sample.run.data = &data;
	sample.run.n_data = 1;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		data.path = bad[i];
		refuse(&sample, E_KUBE_STORAGE, "data 'data/set' is sent with the image");
	}
	data.path = "data/set2";
	make(&sample.run, &objects);
	sample.run.outputs = &output;
	sample.run.n_outputs = 1;
	refuse(&sample, E_KUBE_STORAGE, "data 'data/set' is sent with the image");
}

static void test_study_limits(void **state)
{
	AUTO_SAMPLE struct sample sample;
	AUTO_FREE char *word = mem_alloc((450 << 10) + 2, 1);
	struct kube_member members[3];
	AUTO_STRV struct strv large = {0}, env = {0};

	sample_init(&sample);
	memset(word, 'x', 450 << 10);
	strv_add(&large, word);
	for (size_t i = 0; i < 3; i++)
		members[i] = (struct kube_member){&large, NULL};
	sample.run.members = members;
	sample.run.n_members = 2;
	refuse(&sample, E_DATA_LIMIT, "the commands of the 2 members are over 900 KiB");
	strv_add(&env, "A.B=1");
	members[0] = members[1] = (struct kube_member){&sample.command, &env};
	refuse(&sample, E_TARGET_UNSUPPORTED, "'A.B'");
	sample.run.n_members = 100 * 1000 + 1;
	refuse(&sample, E_DATA_LIMIT, "100001 members");
	sample.run.n_members = 0;
}

static void test_member_paths(void **state)
{
	AUTO_FREE char *path = kube_member_path("a$$(b)/x-$(JOB_COMPLETION_INDEX)-y/$$$z", 17);

	assert_string_equal(path, "a$(b)/x-17-y/$$z");
	/* Collected files of a member are as those of a run. */
	AUTO_SAMPLE struct sample sample;
	AUTO_KUBE_OBJECTS struct kube_objects objects = {0};
	sample_init(&sample);
	set_study(&sample);
	sample.run.collects = true;
	make(&sample.run, &objects);
	AUTO_FREE char *text = print_all(&objects);
	assert_non_null(strstr(text, "i=0 a=" KUBE_ATTEMPT_DIR));
}

#define HARD "it's\n\n'\"$_nl\"' ; export X='y'\n"

/* What was written for a member is read again, by whatever shell it would be. */
static void test_members_are_read(void **state)
{
	AUTO_SAMPLE struct sample sample;
	AUTO_KUBE_OBJECTS struct kube_objects objects = {0};
	AUTO_JSON struct json *params = json("{\"lr\":\"a\\nb\"}");
	AUTO_STRV struct strv last = {0}, env = {0};
	struct kube_member members[70];

	sample_init(&sample);
	for (size_t i = 0; i < ARRAY_LEN(members); i++)
		members[i] = (struct kube_member){&sample.command, NULL, NULL};
	strv_add(&last, "");
	strv_add(&last, HARD);
	strv_add(&env, "A=" HARD);
	strv_add(&env, "B=");
	members[0].params = members[69].params = params;
	members[69].command = &last;
	members[69].env = &env;
	sample.run.members = members;
	sample.run.n_members = ARRAY_LEN(members);
	make(&sample.run, &objects);
	sample.run.n_members = 0;
	AUTO_STRV struct strv words = {0}, variables = {0}, first = {0}, none = {0};
	assert_int_equal(kube_member_read(objects.config, 69, &words, &variables, NULL), 0);
	assert_int_equal(words.n, 2);
	assert_string_equal(words.v[0], "");
	assert_string_equal(words.v[1], HARD);
	assert_int_equal(variables.n, 2);
	assert_string_equal(variables.v[0], "A=" HARD);
	assert_string_equal(variables.v[1], "B=");
	assert_int_equal(kube_member_read(objects.config, 68, &first, &none, NULL), 0);
	assert_string_equal(first.v[1], "train.py");
	AUTO_JSON struct json *got = kube_member_params(objects.config, 69);
	assert_string_equal(json_get_str(got, "lr"), "a\nb");
	assert_null(kube_member_params(objects.config, 1));
	assert_null(kube_member_params(objects.config, 70));
	assert_true(kube_member_read(objects.config, 70, &first, &none, NULL) < 0);
	assert_true(kube_member_read(objects.config, -1, &first, &none, NULL) < 0);
	assert_true(kube_member_read(NULL, 0, &first, &none, NULL) < 0);
}

static void test_members_that_do_not_begin(void **state)
{
	AUTO_SAMPLE struct sample sample;
	AUTO_KUBE_OBJECTS struct kube_objects all = {0}, some = {0};
	const char *first = KUBE_STUDY_CANCEL "0", *last = KUBE_STUDY_CANCEL "2";

	sample_init(&sample);
	set_study(&sample);
	make(&sample.run, &all);
	assert_null(json_get(json_get(all.config, "data"), last));
	assert_int_equal(json_get_int(json_get(all.job, "spec"), "maxFailedIndexes", -1), 0);
	((struct kube_member *)sample.run.members)[2].is_cancelled = true;
	make(&sample.run, &some);
	const struct json *data = json_get(some.config, "data");
	assert_string_equal(json_get_str(data, last), "");
	assert_null(json_get(data, first));
	assert_non_null(json_get(data, "members-0"));
	assert_int_equal(json_get_int(json_get(some.job, "spec"), "completions", 0), 3);
	assert_int_equal(json_get_int(json_get(some.job, "spec"), "maxFailedIndexes", -1), 0);
	assert_string_equal(kube_annotation(some.job, KUBE_ANNOTATION_CANCELLED), "2");
}

static void test_bad_members(void **state)
{
	static const char *const lines[] = {"", "set", "set -- \"$@\"", "set -- \"$@\" x",
		"set -- \"$@\" 'x", "set -- \"$@\" 'x'; rm", "set -- \"$@\" 'x' ; export A='b'",
		"set -- \"$@\" 'x'; export A", "set -- \"$@\" 'x'; export A='b",
		"echo; set -- 'x'"};

	for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
		AUTO_JSON struct json *config = json_object();
		AUTO_STRV struct strv words = {0}, env = {0};
		AUTO_ERR struct err err = {0};

		json_set_str(json_sub(config, "data"), "members-0", lines[i]);
		json_set_str(json_sub(config, "data"), "params-0", "[1]\n{\n");
		if (kube_member_read(config, 0, &words, &env, &err) == 0)
			fail_msg("%s", lines[i]);
		assert_int_equal(err.id, E_DATA);
		assert_null(kube_member_params(config, (int)(i % 3)));
	}
}

/* A later attempt of a member has the claim that its study has made. */
static void test_claim_of_a_study(void **state)
{
	AUTO_SAMPLE struct sample sample;
	AUTO_KUBE_OBJECTS struct kube_objects objects = {0};

	sample_init(&sample);
	sample.run.results = (struct kube_place){.kind = KUBE_PLACE_CLAIM, .size_bytes = 1};
	sample.run.claim_of = "tiger-4k2x9";
	make(&sample.run, &objects);
	assert_null(objects.claim);
	AUTO_FREE char *text = print_all(&objects);
	assert_non_null(strstr(text, "claimName: tiger-4k2x9-results\n"));
	assert_non_null(strstr(text, "subPath: resnet-3k2f9\n"));
}

static void test_limits(void **state)
{
	AUTO_SAMPLE struct sample sample;
	AUTO_FREE char *spec = mem_alloc((200 << 10) + 2, 1);
	AUTO_FREE char *value = mem_alloc((1 << 20) + 4, 1);

	sample_init(&sample);
	memset(spec, 'x', (200 << 10) + 1);
	sample.run.spec = spec;
	refuse(&sample, E_DATA_LIMIT, "specification");
	sample.run.spec = NULL;
	sample.run.nodes = 1025;
	refuse(&sample, E_DATA_LIMIT, "nodes");
	sample.run.nodes = 1;
	memset(value, 'x', (1 << 20) + 3);
	value[1] = '=';
	strv_add(&sample.secret_env, value);
	refuse(&sample, E_DATA_LIMIT, "secrets");
}

static void test_bytes(void **state)
{
	AUTO_SAMPLE struct sample sample;

	sample_init(&sample);
	strv_add(&sample.command, "\xff");
	refuse(&sample, E_USAGE, "the word '\\xff' is not UTF-8");
	free(sample.command.v[--sample.command.n]);
	strv_add(&sample.env, "A=\xff");
	refuse(&sample, E_USAGE, "the variable");
	free(sample.env.v[--sample.env.n]);
	strv_add(&sample.secret_env, "A=hidden\xff");
	refuse(&sample, E_SECRET, "the value of A");
}

/* What Kubernetes makes of the text (third_party/forked/golang/expansion). */
static char *expand(const char *text)
{
	AUTO_BUF struct buf out;

	buf_init(&out, 4096);
	for (; *text; text++) {
		if (*text != '$' || !text[1]) {
			buf_addc(&out, *text);
		} else if (text[1] == '$') {
			buf_addc(&out, '$');
			text++;
		} else if (text[1] == '(' && strchr(text, ')')) {
			buf_adds(&out, "EXPANDED");
			text = strchr(text, ')');
		} else {
			buf_addc(&out, '$');
		}
	}
	return buf_take(&out);
}

static void test_escape(void **state)
{
	static const char *const cases[] = {"", "$", "$$", "$$$", "$(A)", "$$(A)", "$$$(A)", "$A$",
		"a$(b$(c))", "$((1 + 2))", "$(", "$ (A)", "x$"};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_FREE char *escaped = kube_escaped(cases[i]);
		AUTO_FREE char *back = expand(escaped);
		assert_string_equal(back, cases[i]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_objects),
		cmocka_unit_test(test_roles_collect),
		cmocka_unit_test(test_different_gpus_need_jobset),
		cmocka_unit_test(test_secret_values),
		cmocka_unit_test(test_requests),
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_labels),
		cmocka_unit_test(test_warming),
		cmocka_unit_test(test_warming_of_named_nodes),
		cmocka_unit_test(test_versions_of_data),
		cmocka_unit_test(test_no_shell),
		cmocka_unit_test(test_collector),
		cmocka_unit_test(test_keeper_mounts),
		cmocka_unit_test(test_results_s3),
		cmocka_unit_test(test_data_in_s3),
		cmocka_unit_test(test_places),
		cmocka_unit_test(test_two_places),
		cmocka_unit_test(test_sent_beside_volumes),
		cmocka_unit_test(test_limits),
		cmocka_unit_test(test_study_limits),
		cmocka_unit_test(test_member_paths),
		cmocka_unit_test(test_claim_of_a_study),
		cmocka_unit_test(test_code_apart),
		cmocka_unit_test(test_members_are_read),
		cmocka_unit_test(test_members_that_do_not_begin),
		cmocka_unit_test(test_bad_members),
		cmocka_unit_test(test_bytes),
		cmocka_unit_test(test_escape),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
