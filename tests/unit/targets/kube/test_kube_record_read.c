/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/job/job.h"
#include "targets/kube/kube_record_read.h"
#include "targets/kube/kube_storage.h"

#define SERVER "0123456789abcdef"
#define DIGEST "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static struct json *parse(const char *text)
{
	struct json *json = NULL;

	assert_int_equal(json_parse(text, strlen(text), 1 << 20, "it", &json, NULL), 0);
	return json;
}

/* A Job with these labels and a record. */
static struct json *job(const char *name, const char *id, const char *user, const char *record)
{
	struct json *job = json_object(), *metadata = json_sub(job, "metadata");
	struct json *labels = json_sub(metadata, "labels");
	struct json *notes = json_sub(metadata, "annotations");

	json_set_str(metadata, "name", name);
	json_set_str(labels, "app.kubernetes.io/managed-by", "dlrun");
	json_set_str(labels, "dlrun.io/run-id", id);
	json_set_str(notes, "dlrun.io/record", record);
	json_set_str(notes, "dlrun.io/user", user);
	return job;
}

static void read_objects(
	struct json *items, enum kube_kind kind, const char *id, struct run_list *ret)
{
	AUTO_JSON struct json *jobs = json_object(),
			      *target = parse("{\"kind\":\"kubernetes\",\"name\":\"k\"}");
	const struct kube_record_place place = {.server_id = SERVER,
		.kube_namespace = "me",
		.target = target,
		.login = "me",
		.cluster_user = "alice"};

	json_set(jobs, "items", items);
	kube_record_read(jobs, kind, id, &place, ret);
}

static void read_jobs(struct json *items, const char *id, struct run_list *ret)
{
	read_objects(items, KUBE_KIND_JOB, id, ret);
}

static void test_attempts_are_one_run(void **state)
{
	static const char record[] =
		"{\"command\":[\"a\",\"b\"],\"params\":{\"lr\":\"1\"},\"ports\":[6006,0,\"x\"],\"image\":{\"ref\":\"r.example/x@" DIGEST
		"\"},\"times\":{\"submitted\":\"2026-01-02T03:04:05.000Z\"},\"snapshot\":{\"files\":3}}";
	AUTO(run_list_done) struct run_list runs = {0};
	struct json *items = json_array();

	json_add(items, job("r-22222", "r-22222", "alice", record));
	json_add(items, job("r-22222-3", "r-22222", "alice", record));
	json_add(items, job("r-22222-2", "r-22222", "alice", record));
	json_add(items, job("s-22222", "s-22222", "bob", "{"));
	read_jobs(items, NULL, &runs);
	assert_int_equal(runs.n, 2);
	const struct run *run = str_eq(run_id(runs.v[0]), "r-22222") ? runs.v[0] : runs.v[1];
	const struct run *other = run == runs.v[0] ? runs.v[1] : runs.v[0];
	assert_int_equal(run_attempts(run), 3);
	assert_string_equal(run_handle(run), "kube:" SERVER "/me/r-22222-3");
	assert_string_equal(run_name(run), "r");
	assert_string_equal(run_image_digest(run), DIGEST);
	assert_true(run_submitted_ms(run) > 0);
	assert_int_equal(json_count(json_get(run->doc, "command")), 2);
	assert_int_equal(json_count(json_get(run->doc, "ports")), 1);
	assert_int_equal(json_int(json_first(json_get(run->doc, "ports")), 0), 6006);
	assert_true(json_get_bool(json_get(run->doc, "adopted"), "own", false));
	assert_false(json_get_bool(json_get(other->doc, "adopted"), "own", true));
	assert_string_equal(json_get_str(json_get(other->doc, "adopted"), "user"), "bob");
}

static struct json *job_of_jobset(const char *name, const char *id, const char *jobset)
{
	struct json *json = job(name, id, "alice", "{}");

	json_set_str(json_sub(json_sub(json, "metadata"), "labels"),
		"jobset.sigs.k8s.io/jobset-name", jobset);
	return json;
}

static void test_jobs_of_jobsets(void **state)
{
	AUTO(run_list_done) struct run_list runs = {0};
	struct json *items = json_array();

	json_add(items, job_of_jobset("r-22222-2-w-0", "r-22222", "r-22222-2"));
	/* What somebody else's JobSet makes, and names that do not agree. */
	json_add(items, job_of_jobset("s-22222-x-0", "s-22222", "s-22222"));
	json_add(items, job_of_jobset("t-22222-w-0", "t-22222", "u-22222"));
	json_add(items, job_of_jobset("v-22222-w-0", "v-22222", "../v"));
	read_jobs(items, NULL, &runs);
	assert_int_equal(runs.n, 1);
	assert_int_equal(run_attempts(runs.v[0]), 2);
	assert_string_equal(run_handle(runs.v[0]), "kube:" SERVER "/me/jobset/r-22222-2");
}

static void test_jobsets_without_jobs(void **state)
{
	AUTO(run_list_done) struct run_list runs = {0};
	struct json *jobs = json_array(), *jobsets = json_array();

	json_add(jobs, job_of_jobset("r-22222-w-0", "r-22222", "r-22222"));
	read_jobs(jobs, NULL, &runs);
	json_add(jobsets, job("r-22222", "r-22222", "alice", "{}"));
	json_add(jobsets, job("s-22222-2", "s-22222", "alice", "{}"));
	json_add(jobsets, job("t-22222", "u-22222", "alice", "{}"));
	json_add(jobsets, job("../v", "v-22222", "alice", "{}"));
	read_objects(jobsets, KUBE_KIND_JOBSET, NULL, &runs);
	assert_int_equal(runs.n, 2);
	assert_string_equal(run_handle(runs.v[0]), "kube:" SERVER "/me/jobset/r-22222");
	assert_string_equal(run_handle(runs.v[1]), "kube:" SERVER "/me/jobset/s-22222-2");
	assert_int_equal(run_attempts(runs.v[1]), 2);
}

static void test_nothing_hostile_is_taken(void **state)
{
	static const char record[] =
		"{\"id\":\"x-33333\",\"state\":\"succeeded\",\"handle\":\"local:/etc\",\"attempts\":[{"
		"\"handle\":\"kube:x/y/z\"}],\"origin\":{\"root\":\"/home/me\",\"cwd\":\"exp\"},"
		"\"command\":[[1]],\"tags\":{\"a\":{\"b\":1}},\"target\":{\"kind\":\"local\"},"
		"\"image\":{\"ref\":\"r@sha256:../../x\"},\"parent\":\"../../x\",\"snapshot\":"
		"{\"ref\":\"refs/heads/main\",\"id\":5},\"user\":7,\"adopted\":{\"own\":true}}";
	AUTO(run_list_done) struct run_list runs = {0};
	struct json *items = json_array();

	json_add(items, job("r-22222", "r-22222", NULL, record));
	json_add(items, job("q-22222", "r-22222", "alice", "{}")); /* name and label differ */
	json_add(items, job("../r-22222", "../r-22222", "alice", "{}"));
	json_add(items, job("R-22222", "R-22222", "alice", "{}"));
	json_add(items, parse("{}"));
	json_add(items, parse("[]"));
	read_jobs(items, NULL, &runs);
	assert_int_equal(runs.n, 1);
	const struct run *run = runs.v[0];
	assert_string_equal(run_id(run), "r-22222");
	assert_string_equal(run_handle(run), "kube:" SERVER "/me/r-22222");
	assert_int_equal(run_state(run), RUN_QUEUED);
	assert_null(json_get_str(json_get(run->doc, "origin"), "root"));
	assert_string_equal(json_get_str(json_get(run->doc, "origin"), "cwd"), "exp");
	assert_int_equal(json_count(json_get(run->doc, "command")), 0);
	assert_int_equal(json_count(json_get(run->doc, "tags")), 0);
	assert_null(run_image_digest(run));
	assert_null(json_get_str(run->doc, "parent"));
	assert_null(json_get_str(json_get(run->doc, "snapshot"), "ref"));
	assert_string_equal(json_get_str(json_get(run->doc, "target"), "kind"), "kubernetes");
	assert_false(json_get_bool(json_get(run->doc, "adopted"), "own", true));
}

static void test_only_the_one_that_is_requested_for(void **state)
{
	AUTO(run_list_done) struct run_list runs = {0};
	struct json *items = json_array();

	json_add(items, job("r-22222", "r-22222", "alice", "{}"));
	json_add(items, job("s-22222", "s-22222", "alice", "{}"));
	read_jobs(items, "s-22222", &runs);
	assert_int_equal(runs.n, 1);
	assert_string_equal(run_id(runs.v[0]), "s-22222");
}

/*
 * Storage
 */

#define POD_SPEC(volume)                                                                               \
	"{\"containers\":[{\"name\":\"program\",\"image\":\"r@" DIGEST                                 \
	"\",\"volumeMounts\":[{\"name\":\"v\",\"mountPath\":\"/dlrun/outputs\",\"subPath\":\"r\"}]}]," \
	"\"nodeSelector\":{\"gpu\":\"h100\",\"kubernetes.io/arch\":\"amd64\"},"                        \
	"\"securityContext\":{\"runAsUser\":7,\"fsGroup\":0},"                                         \
	"\"volumes\":[{\"name\":\"w\"},{\"name\":\"v\"," volume "}]}"

static void test_storage(void **state)
{
	AUTO_JSON struct json *kept =
		parse(POD_SPEC("\"persistentVolumeClaim\":{\"claimName\":\"c\"}"));
	AUTO_JSON struct json *empty = parse(POD_SPEC("\"emptyDir\":{}"));
	AUTO_JSON struct json *other = parse(POD_SPEC("\"csi\":{\"driver\":\"x\"}"));
	struct kube_storage storage;

	assert_false(kube_storage_of(NULL, &storage));
	assert_true(kube_storage_of(empty, &storage) && !storage.is_kept);
	assert_true(kube_storage_of(other, &storage) && !storage.is_kept);
	assert_true(kube_storage_of(kept, &storage) && storage.is_kept);
	const struct kube_reader reader = {.name = "r-22222-fetch-33333",
		.kube_namespace = "me",
		.run_id = "r-22222",
		.owner = "m/1/2",
		.pod_spec = kept,
		.storage = &storage};
	AUTO_JSON struct json *pod = kube_reader_make(&reader);
	const struct json *spec = json_get(pod, "spec");
	const struct json *container = json_first(json_get(spec, "containers"));
	const struct json *mount = json_first(json_get(container, "volumeMounts"));

	assert_true(kube_reader_is_one(pod));
	assert_int_equal(json_get_int(spec, "activeDeadlineSeconds", 0), KUBE_READER_LIFE_S);
	assert_int_equal(json_count(json_get(spec, "nodeSelector")), 1);
	assert_int_equal(json_count(json_get(spec, "volumes")), 1);
	assert_true(json_get_bool(mount, "readOnly", false));
	assert_string_equal(json_get_str(mount, "subPath"), "r");
	assert_int_equal(json_get_int(json_get(spec, "securityContext"), "runAsUser", 0), 7);
	assert_null(json_get(json_get(spec, "securityContext"), "fsGroup"));
	assert_string_equal(json_get_str(container, "image"), "r@" DIGEST);
}

static void test_pods_of_ranks(void **state)
{
#define POD(name, rank, attempt, more)                                                             \
	"{\"metadata\":{\"name\":\"" name "\"," more                                               \
	"\"labels\":{\"batch.kubernetes.io/job-completion-index\":\"" rank                         \
	"\",\"dlrun.io/attempt\":\"" attempt "\"}},\"status\":{\"containerStatuses\":[{\"name\":"  \
	"\"program\",\"state\":{\"running\":{}}}]}}"
	AUTO_JSON struct json *pods = parse("{\"items\":[" POD("b", "1", "1", "") "," POD(
		"a", "0", "1", "") "," POD("c", "0", "2", "") "," POD("gone", "0", "3",
		"\"deletionTimestamp\":\"x\",") ",{\"metadata\":{\"name\":\"waits\"}},"
						"{\"metadata\":{\"name\":\"d\",\"labels\":{\"batch.kubernetes.io/job-completion-index\":"
						"\"2\"}},\"status\":{\"containerStatuses\":[{\"name\":\"program\",\"state\":"
						"{\"terminated\":{}}},{\"name\":\"results\",\"state\":{\"running\":{}}}]}}]}");
	struct kube_rank_pods ranks = {0};

	kube_rank_pods_of(pods, false, &ranks);
	assert_int_equal(ranks.n, 3);
	assert_string_equal(ranks.v[0].name, "c");
	assert_string_equal(ranks.v[1].name, "b");
	assert_string_equal(ranks.v[1].container, KUBE_CONTAINER);
	assert_string_equal(ranks.v[2].container, KUBE_KEEPER);
	assert_true(ranks.v[2].lingers && !ranks.v[1].lingers);
	vec_done(&ranks);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_attempts_are_one_run),
		cmocka_unit_test(test_jobs_of_jobsets),
		cmocka_unit_test(test_jobsets_without_jobs),
		cmocka_unit_test(test_nothing_hostile_is_taken),
		cmocka_unit_test(test_only_the_one_that_is_requested_for),
		cmocka_unit_test(test_storage),
		cmocka_unit_test(test_pods_of_ranks),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
