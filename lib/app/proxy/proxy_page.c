/* SPDX-License-Identifier: Apache-2.0 */
#include "app/proxy/proxy_page.h"

#include <stdio.h>
#include <stdlib.h>

#include "app/proxy/html.h"
#include "app/proxy/proxy_cell.h"
#include "app/proxy/proxy_name.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/ports.h"
#include "core/record/columns.h"
#include "core/record/results.h"
#include "core/record/roles.h"

/*
 * Pages
 */

void proxy_page_json(const struct run_list *runs, struct buf *out)
{
	AUTO_JSON struct json *json = json_object(), *list = json_array();

	json_set_str(json, "schema", "dlrun/runs/v1");
	vec_foreach (struct run *, run, runs)
		json_add(list, json_clone((*run)->doc));
	json_set(json, "runs", TAKE(list));
	json_print(json, out);
	buf_addc(out, '\n');
}

enum { URLS_MAX = 16 << 10 };

/*
 * The record
 */

static void add_params(struct buf *out, const struct run *run)
{
	const struct json *params = json_get(run->doc, "params");

	if (!json_first(params))
		return;
	buf_adds(out, "<h2>Parameters</h2>\n<div class=\"scroll\"><table>\n");
	for (const struct json *m = json_first(params); m; m = json_next(m)) {
		AUTO_FREE char *text = cell_scalar(m);
		html_addf(
			out, "<tr><th>%s</th><td class=\"wrap\">%s</td></tr>\n", json_key(m), text);
	}
	buf_adds(out, "</table></div>\n");
}

static void proxy_page_add_metrics(struct buf *out, const struct run *run)
{
	const struct json *metrics = json_get(run->doc, "metrics");

	if (!json_first(metrics))
		return;
	buf_adds(out, "<h2>Metrics</h2>\n<div class=\"scroll\"><table>\n"
		      "<tr><th></th><th>last</th><th>step</th></tr>\n");
	for (const struct json *m = json_first(metrics); m; m = json_next(m)) {
		AUTO_FREE char *value = cell_scalar(json_get(m, "value"));
		AUTO_FREE char *step = cell_scalar(json_get(m, "step"));
		html_addf(out,
			"<tr><th>%s</th><td class=\"n\">%s</td><td class=\"n\">%s</td></tr>\n",
			json_key(m), value, step);
	}
	buf_adds(out, "</table></div>\n");
}

/* "actors.0 to actors.11: 6006": the ports of each role's first rank. */
static void proxy_page_add_roles(struct buf *out, const struct proxy_page_run *page)
{
	const struct json *doc = page->run->doc, *role = json_first(json_get(doc, "roles"));
	struct ports ports;
	int first, nodes;

	ports_from_json(json_get(doc, "ports"), &ports);
	for (; role; role = json_next(role)) {
		struct proxy_name name = {.kind = PROXY_PORT};
		if (roles_find(doc, json_key(role), &first, &nodes, NULL) < 0)
			continue;
		snprintf(name.run, sizeof(name.run), "%s", run_id(page->run));
		snprintf(name.role, sizeof(name.role), "%s", json_key(role));
		html_addf(out, "<p>%s.0", name.role);
		if (nodes > 1)
			buf_addf(out, " to %s.%d", name.role, nodes - 1);
		buf_adds(out, ": ");
		for (size_t i = 0; i < ports.n; i++) {
			name.port = ports.v[i];
			buf_adds(out, "<a href=\"");
			proxy_url_add(&name, page->here, "/", out);
			buf_addf(out, "\">%u</a> ", ports.v[i]);
		}
		AUTO_FREE char *form =
			mem_printf("PORT.%s%s.%s", name.role, nodes > 1 ? "-N" : "", name.run);
		buf_adds(out, "<span class=\"note\">");
		cell_form(out, form, page->here);
		buf_adds(out, "</span></p>\n");
	}
}

static void proxy_page_add_ports(struct buf *out, const struct proxy_page_run *page)
{
	AUTO_FREE char *form = mem_printf("PORT.%s", run_id(page->run));

	if (run_state_is_final(run_state(page->run)))
		return;
	buf_adds(out, "<h2>Ports</h2>\n<p>");
	cell_ports(out, page->run, page->here);
	buf_adds(out, "<span class=\"note\">any other: ");
	cell_form(out, form, page->here);
	buf_adds(out, "</span></p>\n");
	proxy_page_add_roles(out, page);
}

char *proxy_page_ports(const struct run *run, const struct proxy_here *here)
{
	AUTO_BUF struct buf urls = buf_with(URLS_MAX);
	struct ports ports;

	ports_from_json(json_get(run->doc, "ports"), &ports);
	if (!ports.n)
		return NULL;
	for (size_t i = 0; i < ports.n; i++) {
		AUTO_FREE char *url = cell_url(run, PROXY_PORT, ports.v[i], "/", here);
		buf_addf(&urls, "%s%s", i ? "  " : "", url);
	}
	return buf_take(&urls);
}

/*
 * Output
 */

static void proxy_page_add_error(struct buf *out, const struct err *error)
{
	html_addf(out, "<p class=\"note\">%s</p>\n", error->message);
}

static void add_log(struct buf *out, const struct proxy_page_run *page)
{
	buf_adds(out, "<h2>Output</h2>\n");
	if (page->log_len) {
		buf_adds(out, "<pre>");
		html_log(out, page->log, page->log_len);
		buf_adds(out, "</pre>\n");
	}
	if (err_is_set(page->log_error))
		proxy_page_add_error(out, page->log_error);
	else if (!page->log_len)
		buf_adds(out, "<p class=\"note\">nothing yet</p>\n");
	html_addf(out, "<p class=\"note\"><code>dlrun logs -f %s</code></p>\n", run_id(page->run));
}

/*
 * Files
 */

struct shown {
	const struct outputs_file *file;
	enum proxy_show show;
};
struct shown_list VEC_OF(struct shown);

static int compare_newest(const void *a, const void *b)
{
	const struct outputs_file *one = ((const struct shown *)a)->file;
	const struct outputs_file *other = ((const struct shown *)b)->file;

	if (one->mtime_ns != other->mtime_ns)
		return one->mtime_ns > other->mtime_ns ? -1 : 1;
	return one < other ? -1 : one > other;
}

/* Choose the files that are pictures or sounds (or text), the newest first. */
static void proxy_page_choose(const struct outputs_files *files, bool text, struct shown_list *ret)
{
	vec_foreach (struct outputs_file, file, files) {
		enum proxy_show show = proxy_type_of(file->path)->show;

		if (show == PROXY_SAVED || (show == PROXY_TEXT) != text || !file->size)
			continue;
		if (!text || file->size <= PROXY_TEXT_SHOWN)
			*vec_push(ret) = (struct shown){file, show};
	}
	vec_sort(ret, compare_newest);
	if (ret->n > PROXY_PREVIEWS)
		ret->n = PROXY_PREVIEWS;
}

static char *file_url(const struct proxy_page_run *page, const struct outputs_file *file)
{
	AUTO_BUF struct buf target = buf_with(PROXY_PAGE_MAX);

	buf_addc(&target, '/');
	html_path(&target, file->path);
	return cell_url(page->run, PROXY_FILES, 0, target.data, page->here);
}

static void add_previews(struct buf *out, const struct proxy_page_run *page)
{
	struct shown_list shown = {0};

	proxy_page_choose(page->files, false, &shown);
	if (shown.n)
		buf_adds(out, "<div class=\"shown\">\n");
	vec_foreach (struct shown, one, &shown) {
		static const char *const markup[] = {
			[PROXY_IMAGE] =
				"<a href=\"%s\"><img loading=\"lazy\" alt=\"\" src=\"%s\"></a>",
			[PROXY_VIDEO] = "<video controls preload=\"metadata\" src=\"%s\"></video>",
			[PROXY_AUDIO] = "<audio controls preload=\"none\" src=\"%s\"></audio>",
		};
		AUTO_FREE char *url = file_url(page, one->file);

		buf_adds(out, "<figure>");
		html_addf(out, markup[one->show], url, url);
		html_addf(out, "<figcaption>%s</figcaption></figure>\n", one->file->path);
	}
	if (shown.n)
		buf_adds(out, "</div>\n");
	vec_done(&shown);
}

static void proxy_page_add_list(struct buf *out, const struct proxy_page_run *page)
{
	size_t n = page->files->n < PROXY_FILES_SHOWN ? page->files->n : PROXY_FILES_SHOWN;

	buf_adds(out, "<div class=\"scroll\"><table>\n");
	for (size_t i = 0; i < n; i++) {
		const struct outputs_file *file = &page->files->v[i];
		AUTO_FREE char *url = file_url(page, file);
		char size[16], time[CLOCK_TEXT_SIZE];

		clock_format(file->mtime_ns / 1000000, time);
		html_addf(out,
			"<tr><td class=\"wrap\"><a href=\"%s\">%s</a></td><td class=\"n\">%s</td>"
			"<td>%s</td></tr>\n",
			url, file->path, str_size(file->size, size), time);
	}
	buf_adds(out, "</table></div>\n");
	if (n < page->files->n || page->files_cut)
		buf_addf(out, "<p class=\"note\">%zu of %s%zu files</p>\n", n,
			page->files_cut ? "more than " : "", page->files->n);
}

static void proxy_page_add_files(struct buf *out, const struct proxy_page_run *page)
{
	buf_adds(out, "<h2 id=\"files\">Files</h2>\n");
	/* Of storage that is not looked into by itself: as it was at the end. */
	AUTO_JSON struct json *listed =
		page->files->n ? results_json(page->files, page->files_cut) : NULL;
	AUTO_STRV struct strv words = {0};

	results_words(listed ? listed : json_get(page->run->doc, RESULTS_MEMBER), &words);
	for (size_t i = 0; i < words.n; i++)
		html_addf(out, i ? " &middot; %s" : "<p>%s", words.v[i]);
	if (words.n)
		buf_adds(out, "</p>\n");
	if (page->files->n && !page->is_far) {
		add_previews(out, page);
		struct shown_list shown = {0};

		proxy_page_choose(page->files, true, &shown);
		vec_foreach (struct shown, one, &shown) {
			AUTO_FREE char *url = file_url(page, one->file);
			html_addf(out,
				"<details><summary>%s</summary><iframe sandbox=\"\" loading=\"lazy\" "
				"referrerpolicy=\"origin\" src=\"%s\"></iframe></details>\n",
				one->file->path, url);
		}
		vec_done(&shown);
	}
	if (page->files->n)
		proxy_page_add_list(out, page);
	else if (page->is_far)
		buf_adds(out,
			"<p><a href=\"/?files\">look into its storage</a> <span class=\"note\">"
			"(a pod is started there for moments)</span></p>\n");
	if (err_is_set(page->files_error))
		proxy_page_add_error(out, page->files_error);
	else if (!page->files->n && !page->is_far)
		buf_adds(out, "<p class=\"note\">none</p>\n");
	html_addf(out, "<p class=\"note\"><code>dlrun fetch %s</code></p>\n", run_id(page->run));
}

void proxy_page_run(const struct proxy_page_run *page, struct buf *out)
{
	const struct run *run = page->run;
	bool is_live = !run_state_is_final(run_state(run));
	int64_t now_ms = clock_wall_ms();

	html_begin(out, run_id(run), 0, is_live && page->is_watched ? PROXY_WATCH_S : 0);
	buf_adds(out, "<p><a href=\"");
	proxy_url_add(&(struct proxy_name){.kind = PROXY_INDEX}, page->here, "/", out);
	buf_adds(out, "\">all runs</a>");
	if (is_live)
		buf_adds(out, page->is_watched ? " &middot; <a href=\"/\">keep it as it is</a>"
					       : " &middot; <a href=\"/?watch\">watch</a>");
	html_addf(out, "</p>\n<h1>%s ", run_id(run));
	cell_state(out, run, now_ms);
	buf_adds(out, "</h1>\n");
	html_addf(out, "<p>%s</p>\n", page->why);
	if (*page->why_hint)
		html_addf(out, "<p class=\"note\"><code>%s</code></p>\n", page->why_hint);
	for (const struct json *m = json_first(json_get(run->doc, "links")); m; m = json_next(m)) {
		const char *url = json_str(m);

		if (url && (str_starts(url, "https://") || str_starts(url, "http://")))
			html_addf(out, "<p><a rel=\"noopener noreferrer\" href=\"%s\">%s</a></p>\n",
				url, url);
	}
	proxy_page_add_ports(out, page);
	proxy_page_add_metrics(out, run);
	add_params(out, run);
	add_log(out, page);
	proxy_page_add_files(out, page);
	buf_adds(out, "<h2>Record</h2>\n");
	static const char *const names[] = {"command", "target", "submitted", "started", "ended",
		"duration", "attempts", "exit", "group", "tags", "note", "parent", "commit", "cpu",
		"memory", "gpu", "gpu-memory", "energy"};

	buf_adds(out, "<div class=\"scroll\"><table>\n");
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		AUTO_FREE char *text = cell_column(run, names[i], now_ms);

		if (*text)
			html_addf(out, "<tr><th>%s</th><td class=\"wrap\">%s</td></tr>\n", names[i],
				text);
	}
	buf_adds(out, "</table></div>\n");
	html_end(out);
}
