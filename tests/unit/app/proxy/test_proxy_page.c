/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "app/proxy/proxy_page.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"

enum { NOW_MS = 100 * 1000 };

static const struct proxy_here here = {.port = 8470};

static struct run *make_run(const char *id, enum run_state state)
{
	struct run *run = run_new(id, "a");

	run_set_time(json_sub(run->doc, "times"), "submitted", 1000);
	json_set_str(json_sub(run->doc, "target"), "name", "lab");
	run_set_state(run, state);
	return run;
}

static void set_param(struct run *run, const char *key, const char *value)
{
	json_set_str(json_sub(run->doc, "params"), key, value);
}

static void set_metric(struct run *run, const char *key, double value)
{
	struct json *metric = json_object();

	json_set_num(metric, "value", value);
	json_set_int(metric, "step", 7);
	json_set(json_sub(run->doc, "metrics"), key, metric);
}

static size_t count(const char *text, const char *part)
{
	size_t n = 0;

	for (const char *at = text; (at = strstr(at, part)); at += strlen(part))
		n++;
	return n;
}

static void make_index(const struct run_list *runs, struct buf *out)
{
	buf_init(out, PROXY_PAGE_MAX);
	proxy_page_index(runs, false, &here, NOW_MS, out);
}

static void test_no_runs(void **state)
{
	struct run_list runs = {0};
	AUTO_BUF struct buf page;

	(void)state;
	make_index(&runs, &page);
	assert_non_null(strstr(page.data, "There is no run yet"));
	assert_null(strstr(page.data, "<table"));
	assert_null(strstr(page.data, "refresh"));
}

static void test_live_runs_come_first(void **state)
{
	static const enum run_state states[] = {RUN_SUCCEEDED, RUN_RUNNING, RUN_FAILED, RUN_QUEUED};
	static const char *const ids[] = {"a-22222", "b-22222", "c-22222", "d-22222"};
	static const char *const wanted[] = {"b-22222", "d-22222", "a-22222", "c-22222"};
	AUTO(run_list_done) struct run_list runs = {0};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(ids); i++)
		*vec_push(&runs) = make_run(ids[i], states[i]);
	proxy_page_sort(&runs);
	assert_int_equal(runs.n, ARRAY_LEN(ids));
	for (size_t i = 0; i < ARRAY_LEN(ids); i++)
		assert_string_equal(run_id(runs.v[i]), wanted[i]);
}

static void test_only_what_differs(void **state)
{
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_BUF struct buf page, one;

	(void)state;
	for (int i = 0; i < 3; i++) {
		AUTO_FREE char *id = mem_printf("a-2222%d", i + 2);
		struct run *run = make_run(id, RUN_SUCCEEDED);

		set_param(run, "same", "1");
		set_param(run, "lr", i == 1 ? "0.2" : "0.1");
		if (i == 2)
			set_param(run, "seldom", "x");
		set_metric(run, "loss", 2.5 + i);
		*vec_push(&runs) = run;
	}
	make_index(&runs, &page);
	assert_null(strstr(page.data, "<th>same</th>"));
	assert_non_null(strstr(page.data, "<th>lr</th><th>seldom</th><th>loss</th>"));
	assert_int_equal(count(page.data, "<td>0.1</td>"), 2);
	assert_int_equal(count(page.data, "<td>0.2</td>"), 1);
	assert_int_equal(count(page.data, "<td class=\"n\">3.5</td>"), 1);
	/* Of one run alone all of them. */
	struct run_list first = {.v = runs.v, .n = 1, .cap = 1};
	make_index(&first, &one);
	assert_non_null(strstr(one.data, "<th>same</th><th>lr</th><th>loss</th>"));
}

static void test_many_columns(void **state)
{
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_BUF struct buf page;

	(void)state;
	for (int r = 0; r < 2; r++) {
		struct run *run = make_run(r ? "a-22222" : "b-22222", RUN_SUCCEEDED);

		for (int i = 0; i < 40; i++) {
			AUTO_FREE char *key = mem_printf("p%d", i), *value = mem_printf("%d", r);
			set_param(run, key, value);
		}
		*vec_push(&runs) = run;
	}
	make_index(&runs, &page);
	assert_int_equal(count(page.data, "<th>p"), PROXY_COLUMNS_MAX);
	assert_non_null(strstr(page.data, "28 more parameters that differ"));
}

static void test_hostile_records(void **state)
{
	AUTO(run_list_done) struct run_list runs = {0};
	struct run *run = make_run("a-22222", RUN_FAILED);
	struct json *links = json_array();
	struct outputs_file file = {.path = mem_strdup("a\"><script>x</script>.png"), .size = 3};
	struct outputs_files files = {.v = &file, .n = 1, .cap = 1};
	AUTO_BUF struct buf index, page;
	AUTO_ERR struct err error = {0};

	(void)state;
	set_param(run, "<script>k", "<script>v");
	set_metric(run, "<script>m", 1);
	json_set_str(run->doc, "text", "<script>t");
	json_set_str(run->doc, "note", "<script>n");
	json_add_str(links, "javascript:alert(1)");
	json_add_str(links, "https://x/<script>");
	json_set(run->doc, "links", links);
	*vec_push(&runs) = run;
	make_index(&runs, &index);
	err_set(&error, E_BUG, "<script>f");
	const struct proxy_page_run request = {.run = run,
		.why = "<script>w",
		.why_hint = "<script>h",
		.here = &here,
		.log = "<script>\033]0;x",
		.log_len = 13,
		.log_error = &error,
		.files = &files,
		.files_error = &error};
	buf_init(&page, PROXY_PAGE_MAX);
	proxy_page_run(&request, &page);
	assert_null(strstr(index.data, "<script"));
	assert_null(strstr(page.data, "<script"));
	assert_null(strstr(page.data, "javascript:"));
	assert_non_null(strstr(page.data, "src=\"http://files.a-22222.localhost:8470/"
					  "a%22%3E%3Cscript%3Ex%3C/script%3E.png\""));
	assert_null(strstr(index.data, "style="));
	assert_null(strstr(page.data, "style="));
	free(file.path);
}

static void test_files(void **state)
{
	AUTO_RUN struct run *run = make_run("a-22222", RUN_RUNNING);
	AUTO(outputs_files_done) struct outputs_files files = {0};
	const struct err none = {0};
	AUTO_BUF struct buf page;

	(void)state;
	for (int i = 0; i < PROXY_FILES_SHOWN + 10; i++) {
		struct outputs_file *file = vec_push(&files);

		file->path = mem_printf(i % 2 ? "i%d.png" : "t%d.txt", i);
		file->size = (uint64_t)i;
		file->mtime_ns = i;
	}
	const struct proxy_page_run request = {.run = run,
		.why = "",
		.why_hint = "",
		.here = &here,
		.log_error = &none,
		.files = &files,
		.files_cut = true,
		.files_error = &none};
	buf_init(&page, PROXY_PAGE_MAX);
	proxy_page_run(&request, &page);
	assert_int_equal(count(page.data, "<img "), PROXY_PREVIEWS);
	assert_int_equal(count(page.data, "<iframe sandbox=\"\""), PROXY_PREVIEWS);
	/* The newest. */
	assert_non_null(strstr(page.data, "<figcaption>i509.png"));
	assert_null(strstr(page.data, "<figcaption>i1.png"));
	assert_non_null(strstr(page.data, "500 of more than 510 files"));
	assert_non_null(strstr(page.data, "i507.png 507 B &middot; i509.png 509 B"));
	assert_non_null(strstr(page.data, "&middot; and more</p>"));
	assert_null(strstr(page.data, "refresh"));
}

static void set_ports(struct run *run)
{
	struct json *ports = json_array();

	json_add_int(ports, 6006);
	json_add_int(ports, 8888);
	json_set(run->doc, "ports", ports);
}

static void test_ports(void **state)
{
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_BUF struct buf page;

	(void)state;
	*vec_push(&runs) = make_run("a-22222", RUN_RUNNING);
	*vec_push(&runs) = make_run("b-22222", RUN_SUCCEEDED);
	assert_null(proxy_page_ports(runs.v[0], &here));
	set_ports(runs.v[0]);
	set_ports(runs.v[1]);
	AUTO_FREE char *urls = proxy_page_ports(runs.v[0], &here);
	assert_string_equal(
		urls, "http://6006.a-22222.localhost:8470/  http://8888.a-22222.localhost:8470/");
	make_index(&runs, &page);
	assert_non_null(
		strstr(page.data, "<a href=\"http://6006.a-22222.localhost:8470/\">6006</a>"));
	assert_null(strstr(page.data, "http://6006.b-22222"));
}

/* Each URL of the proxy has a token; the number of them. */
static size_t count_tokens(const char *page)
{
	static const char port[] = ".localhost:8470/";
	size_t n = 0;

	for (const char *at = page; (at = strstr(at, port)); n++) {
		const char *end = at + strcspn(at, "\"<");
		const char *token = strstr(at, "?dlrun_token=");

		if (!token || token > end)
			fail_msg("no token: %.*s", (int)(end - at), at);
		at = end;
	}
	return n;
}

static void test_tokens(void **state)
{
	const struct proxy_here other = {8470, "0123456789abcdef0123456789abcdef"};
	AUTO(run_list_done) struct run_list runs = {0};
	struct outputs_file listed[] = {{.path = mem_strdup("a.png"), .size = 3},
		{.path = mem_strdup("b.txt"), .size = 3}, {.path = mem_strdup("c.mp4"), .size = 3}};
	struct outputs_files files = {.v = listed, .n = 3, .cap = 3};
	const struct err none = {0};
	AUTO_BUF struct buf index, page;

	(void)state;
	*vec_push(&runs) = make_run("a-22222", RUN_RUNNING);
	set_ports(runs.v[0]);
	buf_init(&index, PROXY_PAGE_MAX);
	proxy_page_index(&runs, false, &other, NOW_MS, &index);
	const struct proxy_page_run request = {.run = runs.v[0],
		.why = "",
		.why_hint = "",
		.here = &other,
		.log_error = &none,
		.files = &files,
		.files_error = &none};
	buf_init(&page, PROXY_PAGE_MAX);
	proxy_page_run(&request, &page);
	/* The run, two ports, its files, two forms; two ports, a form, three files twice and the
	 * picture once more. */
	assert_int_equal(count_tokens(index.data), 6);
	assert_int_equal(count_tokens(page.data), 10);
	assert_int_equal(count(page.data, "<a href=\"http://localhost:8470/?dlrun_token="), 1);
	/* The one of all names is in forms only. */
	assert_int_equal(count(index.data, other.token), 2);
	assert_int_equal(count(page.data, other.token), 1);
	for (size_t i = 0; i < files.n; i++)
		free(listed[i].path);
}

static void test_json(void **state)
{
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_JSON struct json *json = NULL;
	AUTO_BUF struct buf text;

	(void)state;
	*vec_push(&runs) = make_run("a-22222", RUN_RUNNING);
	buf_init(&text, PROXY_PAGE_MAX);
	proxy_page_json(&runs, &text);
	assert_int_equal(json_parse(text.data, text.len, text.len, "runs", &json, NULL), 0);
	assert_string_equal(json_get_str(json, "schema"), "dlrun/runs/v1");
	assert_string_equal(json_get_str(json_first(json_get(json, "runs")), "id"), "a-22222");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_no_runs),
		cmocka_unit_test(test_live_runs_come_first),
		cmocka_unit_test(test_only_what_differs),
		cmocka_unit_test(test_many_columns),
		cmocka_unit_test(test_hostile_records),
		cmocka_unit_test(test_files),
		cmocka_unit_test(test_ports),
		cmocka_unit_test(test_tokens),
		cmocka_unit_test(test_json),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
