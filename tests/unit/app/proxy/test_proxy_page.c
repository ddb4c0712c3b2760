/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "app/proxy/proxy_index.h"
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

static void make_view(const struct run_list *runs, const struct proxy_here *at, const char *target,
	struct buf *out)
{
	AUTO_PROXY_VIEW struct proxy_view view;

	proxy_view_parse(target, &view);
	const struct proxy_page_index page = {
		.runs = runs, .here = at, .view = &view, .now_ms = NOW_MS};
	buf_init(out, PROXY_PAGE_MAX);
	proxy_page_index(&page, out);
}

static void make_index(const struct run_list *runs, struct buf *out)
{
	make_view(runs, &here, "/", out);
}

static void test_no_runs(void **state)
{
	struct run_list runs = {0};
	AUTO_BUF struct buf page;

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

	for (size_t i = 0; i < ARRAY_LEN(ids); i++)
		*vec_push(&runs) = make_run(ids[i], states[i]);
	proxy_page_sort(&runs);
	assert_int_equal(runs.n, ARRAY_LEN(ids));
	for (size_t i = 0; i < ARRAY_LEN(ids); i++)
		assert_string_equal(run_id(runs.v[i]), wanted[i]);
}

/* Whether the titles of the table are those, in their order. */
static void expect_titles(const char *page, const char *wanted)
{
	AUTO_BUF struct buf titles;
	const char *end = strstr(page, "</thead>");

	assert_non_null(end);
	buf_init(&titles, 1 << 20);
	for (const char *at = page; (at = strstr(at, "<th scope=\"col\"")) && at < end; at++) {
		const char *text = strstr(at, "\">") + 2;

		if (str_starts(text, "<a "))
			text = strstr(text, "\">") + 2;
		buf_addf(&titles, "%s%.*s", titles.len ? " " : "", (int)strcspn(text, "<"), text);
	}
	assert_string_equal(titles.data, wanted);
}

static void add_three(struct run_list *runs)
{
	for (int i = 0; i < 3; i++) {
		AUTO_FREE char *id = mem_printf("a-2222%d", i + 2);
		struct run *run = make_run(id, RUN_SUCCEEDED);

		set_param(run, "same", "1");
		set_param(run, "lr", i == 1 ? "0.2" : "0.1");
		if (i == 2)
			set_param(run, "seldom", "x");
		if (i == 1)
			json_set_str(run->doc, "group", "g");
		set_metric(run, "loss", 2.5 + i);
		*vec_push(runs) = run;
	}
}

static void test_only_what_differs(void **state)
{
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_BUF struct buf page, one;

	add_three(&runs);
	make_index(&runs, &page);
	/* Metrics before parameters; what is empty everywhere is folded. */
	expect_titles(page.data, "id state age loss lr seldom target group open");
	assert_non_null(strstr(page.data, "Empty and folded: tags, note, duration</p>"));
	assert_int_equal(count(page.data, "<td class=\"n\">0.1</td>"), 2);
	assert_int_equal(count(page.data, "<td class=\"n\">0.2</td>"), 1);
	assert_int_equal(count(page.data, "<td class=\"n\">3.5</td>"), 1);
	/* Of one run alone all of them. */
	struct run_list first = {.v = runs.v, .n = 1, .cap = 1};
	make_index(&first, &one);
	expect_titles(one.data, "id state age loss same lr target open");
}

static void test_many_columns(void **state)
{
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_BUF struct buf page;

	for (int r = 0; r < 2; r++) {
		struct run *run = make_run(r ? "a-22222" : "b-22222", RUN_SUCCEEDED);

		for (int i = 0; i < 40; i++) {
			AUTO_FREE char *key = mem_printf("p%d", i), *value = mem_printf("%d", r);
			set_param(run, key, value);
		}
		*vec_push(&runs) = run;
	}
	make_index(&runs, &page);
	assert_int_equal(count(page.data, "title=\"params.p"), PROXY_COLUMNS_MAX);
	assert_non_null(strstr(page.data, "28 more parameters that differ"));
	/* All of them can be chosen. */
	assert_int_equal(count(page.data, "name=\"columns\" value=\"params.p"), 40);
}

/* The ids of the table's rows, in their order. */
static void expect_rows(const struct run_list *runs, const char *target, const char *wanted)
{
	AUTO_BUF struct buf page, ids;

	buf_init(&ids, 1000);
	make_view(runs, &here, target, &page);
	for (const char *at = page.data; (at = strstr(at, "name=\"run\" value=\"")); at++) {
		at += strlen("name=\"run\" value=\"");
		buf_addf(&ids, "%s%.*s", ids.len ? " " : "", (int)strcspn(at, "\""), at);
	}
	assert_string_equal(ids.data, wanted);
}

static void test_views(void **state)
{
	AUTO(run_list_done) struct run_list runs = {0};

	add_three(&runs);
	expect_rows(&runs, "/?sort=-metrics.loss", "a-22224 a-22223 a-22222");
	expect_rows(&runs, "/?sort=params.lr", "a-22222 a-22224 a-22223");
	expect_rows(&runs, "/?group=g", "a-22223");
	expect_rows(&runs, "/?q=LR%3D0.1+seldom", "a-22224");
	expect_rows(&runs, "/?q=nothing", "");
	expect_rows(&runs, "/compare?run=a-22224&run=a-22222", "a-22222 a-22224");
	expect_rows(&runs, "/?run=a-22224", "a-22222 a-22223 a-22224");
	expect_rows(&runs, "/?sort=a,b&columns=nosuch", "a-22222 a-22223 a-22224");
}

static void test_forms(void **state)
{
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_BUF struct buf page, named;

	add_three(&runs);
	make_view(&runs, &here, "/?run=a-22223&sort=metrics.loss&q=a&columns=params.lr", &page);
	assert_int_equal(count(page.data, " checked>"), 2);
	assert_non_null(
		strstr(page.data, "value=\"a-22223\" aria-label=\"choose a-22223\" checked>"));
	assert_non_null(strstr(page.data, "name=\"q\" value=\"a\""));
	/* A link turns the order, and keeps the rest of the view. */
	expect_titles(page.data, "id lr open");
	assert_non_null(strstr(page.data,
		"href=\"/?q=a&amp;sort=params.lr&amp;columns=params.lr&amp;run=a-22223\""));
	make_view(&runs, &here, "/?sort=params.lr&columns=params.lr,nosuch", &named);
	assert_non_null(strstr(named.data, "aria-sort=\"ascending\""));
	assert_non_null(strstr(named.data, "href=\"/?sort=-params.lr&amp;"));
	assert_non_null(strstr(named.data, "role=\"alert\">"));
}

/* By their structure: one heading of the first level, cells that have titles, names of controls. */
static void test_structure(void **state)
{
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_BUF struct buf page;

	add_three(&runs);
	make_view(&runs, &here, "/compare?x=params.lr", &page);
	assert_int_equal(count(page.data, "<h1>"), 1);
	assert_int_equal(count(page.data, "<th>"), 0);
	assert_int_equal(count(page.data, "<th scope=\"row\">"), 3);
	assert_int_equal(count(page.data, "<main "), 1);
	assert_int_equal(
		count(page.data, "name=\"run\""), count(page.data, "aria-label=\"choose "));
	assert_int_equal(count(page.data, "<select "),
		count(page.data, "<select name=\"x\"") + count(page.data, "<select name=\"y\"") +
			count(page.data, "<select name=\"group\""));
	assert_int_equal(count(page.data, "<svg class=\"plot\" role=\"group\" aria-label="), 2);
	assert_int_equal(count(page.data, "<circle "), 3);
	assert_null(strstr(page.data, " style="));
	assert_null(strstr(page.data, "onclick"));
}

static void test_hostile_records(void **state)
{
	AUTO(run_list_done) struct run_list runs = {0};
	struct run *run = make_run("a-22222", RUN_FAILED);
	struct json *links = json_array();
	struct outputs_file file = {.path = mem_strdup("a\"><script>x</script>.png"), .size = 3};
	struct outputs_files files = {.v = &file, .n = 1, .cap = 1};
	AUTO_BUF struct buf all, index, page;
	AUTO_ERR struct err error = {0};

	set_param(run, "<script>k", "<script>v");
	set_metric(run, "<script>m", 1);
	json_set_str(run->doc, "group", "<script>g");
	json_set_str(json_sub(run->doc, "tags"), "<script>t", "<script>v");
	json_set_str(run->doc, "text", "<script>t");
	json_set_str(run->doc, "note", "<script>n");
	json_add_str(links, "javascript:alert(1)");
	json_add_str(links, "https://x/<script>");
	json_set(run->doc, "links", links);
	*vec_push(&runs) = run;
	struct run *other = make_run("b-22222", RUN_FAILED);
	set_param(other, "<script>k", "<script>w");
	set_metric(other, "<script>m", 2);
	*vec_push(&runs) = other;
	make_view(&runs, &here,
		"/compare?q=%3Cscript&y=%3Cscript%3E&sort=%3Cscript%3E&x=params.%3Cscript%3Ek",
		&all);
	make_view(&runs, &here, "/?group=%3Cscript%3Eg&x=params.%3Cscript%3Ek", &index);
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
	/* Its own script, from its own file, is the only one. */
	assert_int_equal(count(index.data, "<script"), 1);
	assert_int_equal(count(all.data, "<script"), 1);
	assert_non_null(strstr(all.data, "<script src=\"/live.js\" defer></script>"));
	assert_non_null(strstr(index.data, "&lt;script&gt;g"));
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

	*vec_push(&runs) = make_run("a-22222", RUN_RUNNING);
	set_ports(runs.v[0]);
	make_view(&runs, &other, "/", &index);
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
		cmocka_unit_test(test_views),
		cmocka_unit_test(test_forms),
		cmocka_unit_test(test_structure),
		cmocka_unit_test(test_hostile_records),
		cmocka_unit_test(test_files),
		cmocka_unit_test(test_ports),
		cmocka_unit_test(test_tokens),
		cmocka_unit_test(test_json),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
