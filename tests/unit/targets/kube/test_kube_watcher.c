/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "targets/kube/kube_facts.h"
#include "tests/unit/kubetarget.h"

/*
 * What a watch of a run has told, when its stream has fallen silent: a connection that is dead does
 * not say so.
 */

static atomic_int version; /* of all there is */

static bool on_request(struct fix_conn *conn)
{
	bool is_jobs = strstr(conn->path, "/jobs?");
	AUTO_FREE char *text = NULL;

	free(fix_body(conn));
	if (strstr(conn->path, "watch=1")) {
		if (fix_print(conn, "HTTP/1.1 200 X\r\nConnection: close\r\n\r\n"))
			fix_wait_end(conn);
		return false;
	}
	text = mem_printf("{\"metadata\":{\"resourceVersion\":\"9\"},\"items\":[{\"metadata\":"
			  "{\"name\":\"%s\",\"uid\":\"%s\",\"resourceVersion\":\"%d\"}}]}",
		is_jobs ? JOB : "p", is_jobs ? "j" : "q", atomic_load(&version));
	return print_json(conn, 200, text);
}

struct watched {
	struct place place;
	struct kube_cluster *cluster;
	struct kube_handle handle;
	struct kube_watcher *watcher;
};

static void lists_done(struct json **lists)
{
	for (size_t i = 0; i < KUBE_FACTS_KINDS; i++)
		json_free(TAKE(lists[i]));
}

static bool knows(const struct watched *watched, const char *job, int64_t now_ms)
{
	struct json *lists[KUBE_FACTS_KINDS] = {0};
	struct kube_handle handle = watched->handle;
	snprintf(handle.job, sizeof(handle.job), "%s", job);
	bool r = kube_watcher_lists(watched->watcher, &handle, now_ms, lists);

	lists_done(lists);
	return r;
}

static void query(struct watched *watched)
{
	struct kube_cluster *cluster = watched->cluster;

	watched->watcher = kube_watcher_of(&cluster->watchers, cluster->client, &watched->handle);
}

static void wait_until_known(struct watched *watched)
{
	for (int i = 0; i < 2000 && !knows(watched, JOB, clock_ms()); i++)
		run_for(&watched->place, 5);
	assert_true(knows(watched, JOB, clock_ms()));
}

static void begin(struct watched *watched)
{
	struct target_kube *kube;

	atomic_store(&version, 1);
	place_init(&watched->place, on_request);
	kube = target_kube_of(watched->place.target);
	watched->cluster = kube->cluster;
	assert_int_equal(kube_handle_parse(kube, watched->place.handle, &watched->handle, NULL), 0);
	for (int i = 0; i < 3; i++)
		query(watched);
	assert_non_null(watched->watcher);
	wait_until_known(watched);
}

static struct json *list_of(const char *uid, int object_version)
{
	AUTO_FREE char *text = mem_printf(
		"{\"items\":[{\"metadata\":{\"uid\":\"%s\",\"resourceVersion\":\"%d\"}}]}", uid,
		object_version);
	struct json *json = NULL;

	assert_int_equal(json_parse(text, strlen(text), 1000, "it", &json, NULL), 0);
	return json;
}

static void compare(const struct watched *watched, int jobs, int pods)
{
	struct json *lists[KUBE_FACTS_KINDS] = {list_of("j", jobs), list_of("q", pods)};

	kube_watcher_compare(watched->watcher, lists);
	lists_done(lists);
}

static void test_silence_is_not_news(void **state)
{
	struct watched watched = {0};

	begin(&watched);
	int64_t now_ms = clock_ms();
	assert_true(knows(&watched, JOB, now_ms + 5000));
	assert_false(knows(&watched, JOB, now_ms + 10000));
	/* A list that tells the same is as good as an event. */
	while (clock_ms() <= now_ms)
		run_for(&watched.place, 1);
	compare(&watched, 1, 1);
	assert_true(knows(&watched, JOB, now_ms + 10000));
	place_done(&watched.place);
}

/* Who begins anew knows what the silent stream did not tell. */
static void test_a_watch_that_is_behind(void **state)
{
	static const struct {
		int jobs, pods;
	} cases[] = {{2, 1}, {1, 2}, {2, 2}};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct watched watched = {0};
		struct json *lists[KUBE_FACTS_KINDS] = {0};

		begin(&watched);
		atomic_store(&version, 2);
		compare(&watched, cases[i].jobs, cases[i].pods);
		assert_false(knows(&watched, JOB, clock_ms()));
		query(&watched);
		wait_until_known(&watched);
		assert_true(
			kube_watcher_lists(watched.watcher, &watched.handle, clock_ms(), lists));
		for (size_t k = 0; k < 2; k++) {
			const struct json *item = json_first(json_get(lists[k], "items"));
			bool was_behind = (k == 0 ? cases[i].jobs : cases[i].pods) == 2;
			assert_string_equal(
				json_get_str(json_get(item, "metadata"), "resourceVersion"),
				was_behind ? "2" : "1");
		}
		lists_done(lists);
		place_done(&watched.place);
	}
}

/* It may have been made a moment ago. */
static void test_a_job_that_it_does_not_know(void **state)
{
	struct watched watched = {0};

	begin(&watched);
	assert_false(knows(&watched, JOB "-2", clock_ms()));
	place_done(&watched.place);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_silence_is_not_news),
		cmocka_unit_test(test_a_watch_that_is_behind),
		cmocka_unit_test(test_a_job_that_it_does_not_know),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
