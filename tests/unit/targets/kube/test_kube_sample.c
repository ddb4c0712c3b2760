/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "targets/local/observe.h"
#include "tests/unit/kubetarget.h"

/*
 * Looks at the pods of a run: what comes of which answers, and what is kept. Commands in pods are
 * refused here: tests/real/cluster_top.py has those.
 */

#define LIST(items) "{\"metadata\":{\"resourceVersion\":\"1\"},\"items\":[" items "]}"
#define STATUS      "{\"kind\":\"Status\",\"status\":\"Failure\",\"reason\":\"%s\",\"code\":%d}"
#define POD(name)   "{\"metadata\":{\"name\":\"" name "\"},\"status\":{\"phase\":\"Running\"}}"
#define USED(name, cpu, memory)                                                                    \
	"{\"metadata\":{\"name\":\"" name "\"},\"containers\":[{\"name\":\"program\",\"usage\":{"  \
	"\"cpu\":\"" cpu "\",\"memory\":\"" memory "\"}}]}"

static struct {
	const char *pods, *metrics;
	atomic_int n_execs, n_metrics;
} cluster;

static bool refuse(struct fix_conn *conn, int status, const char *reason)
{
	AUTO_FREE char *text = mem_printf(STATUS, reason, status);

	return print_json(conn, status, text);
}

static bool on_request(struct fix_conn *conn)
{
	free(fix_body(conn));
	if (strstr(conn->path, "/exec")) {
		atomic_fetch_add(&cluster.n_execs, 1);
		return refuse(conn, 403, "Forbidden");
	}
	if (strstr(conn->path, "/metrics.k8s.io/")) {
		atomic_fetch_add(&cluster.n_metrics, 1);
		return cluster.metrics ? print_json(conn, 200, cluster.metrics)
				       : refuse(conn, 404, "NotFound");
	}
	return cluster.pods ? print_json(conn, 200, cluster.pods) : refuse(conn, 403, "Forbidden");
}

/* What a look comes to, as text; the caller frees. */
static char *observe(struct place *place)
{
	AUTO_JSON struct json *json = NULL;
	AUTO_BUF struct buf text = {0};
	WAITED(waited, place);

	assert_int_equal(
		place->target->ops->sample(place->target, place->handle, &json, &waited.call, NULL),
		0);
	run_for(place, 20000);
	assert_true(waited.over && waited.status == 0);
	if (!json)
		return mem_strdup("nothing");
	json_remove(json, "time");
	buf_init(&text, 1 << 16);
	json_print(json, &text);
	return buf_take(&text);
}

static void expect(struct place *place, const char *want)
{
	AUTO_FREE char *got = observe(place);

	assert_string_equal(got, want);
}

static void test_what_the_metrics_api_says(void **state)
{
	AUTO_PLACE struct place place;

	atomic_store(&cluster.n_execs, 0);
	cluster.pods = LIST(POD("a") "," POD("b"));
	cluster.metrics = LIST(USED("a", "1500m", "1Mi") "," USED("b", "500m", "3Mi") ",{}");
	place_init(&place, on_request);
	expect(&place,
		"{\"schema\":\"dlrun/observed/v1\",\"usage\":{\"memory_peak_bytes\":3145728},"
		"\"now\":{\"cpu\":2,\"memory_bytes\":3145728,\"gpu_busy\":null,"
		"\"gpu_memory_bytes\":null,\"power_w\":null}}");
	assert_int_equal(atomic_load(&cluster.n_execs), 2);
	/* The peak stays; who may not run commands is not asked to again. */
	cluster.metrics = LIST(USED("a", "1", "2Mi"));
	expect(&place,
		"{\"schema\":\"dlrun/observed/v1\",\"usage\":{\"memory_peak_bytes\":3145728},"
		"\"now\":{\"cpu\":1,\"memory_bytes\":2097152,\"gpu_busy\":null,"
		"\"gpu_memory_bytes\":null,\"power_w\":null}}");
	assert_int_equal(atomic_load(&cluster.n_execs), 2);
}

static void test_nothing_is_known(void **state)
{
	AUTO_PLACE struct place place;

	atomic_store(&cluster.n_metrics, 0);
	cluster.pods = LIST(POD("a"));
	cluster.metrics = NULL;
	place_init(&place, on_request);
	expect(&place, "nothing");
	expect(&place, "nothing");
	assert_int_equal(atomic_load(&cluster.n_metrics), 1);
	cluster.pods = NULL;
	expect(&place, "nothing");
	cluster.pods = LIST("");
	expect(&place, "nothing");
}

/* What was kept before is told all the same. */
static void test_nonsense(void **state)
{
	AUTO_PLACE struct place place;

	cluster.pods = LIST(POD("a") ",3,{},{\"metadata\":[],\"status\":{\"phase\":\"Running\"}}");
	cluster.metrics = LIST(USED("a", "x", "-1") ",7,{\"metadata\":{\"name\":\"a\"}}");
	place_init(&place, on_request);
	AUTO_FREE char *dir = dirs_attempt(&place.session.dirs, JOB, 1);
	AUTO_FREE char *path = fs_join(dir, OBSERVED_FILE);
	assert_int_equal(fs_mkdirs(dir, 0700, NULL), 0);
	assert_int_equal(fs_replace(path, "{\"usage\":[]}", 12, 0600, FS_SYNC_NONE, NULL), 0);
	AUTO_FREE char *got = observe(&place);
	assert_non_null(strstr(got, "\"usage\":{"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_the_metrics_api_says),
		cmocka_unit_test(test_nothing_is_known),
		cmocka_unit_test(test_nonsense),
	};

	return cmocka_run_group_tests_name("kube_sample", tests, NULL, NULL);
}
