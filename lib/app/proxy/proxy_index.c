/* SPDX-License-Identifier: Apache-2.0 */
#include "app/proxy/proxy_page.h"

#include <stdlib.h>

#include "app/proxy/html.h"
#include "app/proxy/proxy_cells.h"
#include "base/util/auto.h"
#include "base/util/map.h"
#include "base/util/mem.h"
#include "base/util/str.h"

/* A parameter or a metric that at least one run has. */
struct fact {
	const char *key;
	char *first; /* the first value, as text */
	size_t n;    /* runs that have it */
	size_t at;   /* by their first appearance */
	bool differs;
};
struct facts {
	struct VEC_OF(struct fact) list;
	struct map by_key; /* to their positions, from 1 */
	const char *member;
};

static void facts_done(struct facts *facts)
{
	vec_foreach (struct fact, fact, &facts->list)
		free(fact->first);
	vec_done(&facts->list);
	map_done(&facts->by_key);
}

/* Compare metrics, which have a step, too, by value. */
static const struct json *value_of(const struct json *fact)
{
	const struct json *value = json_get(fact, "value");

	return value ? value : fact;
}

static void add_fact(struct facts *facts, const struct json *json)
{
	uintptr_t at = (uintptr_t)map_get(&facts->by_key, json_key(json));
	AUTO_FREE char *text = cell_scalar(value_of(json));

	if (!at) {
		struct fact *fact = vec_push(&facts->list);

		*fact = (struct fact){
			.key = json_key(json), .first = TAKE(text), .n = 1, .at = facts->list.n};
		map_put(&facts->by_key, fact->key, (void *)facts->list.n);
		return;
	}
	struct fact *fact = &facts->list.v[at - 1];
	fact->n++;
	fact->differs |= !str_eq(fact->first, text);
}

/* Sort facts that most runs have first. */
static int compare_facts(const void *a, const void *b)
{
	const struct fact *one = a, *other = b;

	if (one->n != other->n)
		return one->n > other->n ? -1 : 1;
	return one->at < other->at ? -1 : one->at > other->at;
}

static void drop_equal(struct facts *facts, size_t runs)
{
	size_t kept = 0;

	for (size_t i = 0; i < facts->list.n; i++) {
		struct fact *fact = &facts->list.v[i];

		if (fact->differs || fact->n < runs)
			facts->list.v[kept++] = *fact;
		else
			free(fact->first);
	}
	facts->list.n = kept;
}

static void collect(const struct run_list *runs, struct facts *facts)
{
	vec_foreach (struct run *, run, runs)
		for (const struct json *m = json_first(json_get((*run)->doc, facts->member)); m;
			m = json_next(m))
			add_fact(facts, m);
	if (runs->n > 1 && str_eq(facts->member, "params"))
		drop_equal(facts, runs->n);
	vec_sort(&facts->list, compare_facts);
}

static size_t shown(const struct facts *facts)
{
	return facts->list.n < PROXY_COLUMNS_MAX ? facts->list.n : PROXY_COLUMNS_MAX;
}

static void add_heads(struct buf *out, const struct facts *facts)
{
	for (size_t i = 0; i < shown(facts); i++) {
		buf_adds(out, "<th>");
		cell_short(out, facts->list.v[i].key);
		buf_adds(out, "</th>");
	}
}

static void add_cells(struct buf *out, const struct run *run, const struct facts *facts)
{
	const struct json *own = json_get(run->doc, facts->member);

	for (size_t i = 0; i < shown(facts); i++) {
		const struct json *fact = json_get(own, facts->list.v[i].key);
		AUTO_FREE char *text = fact ? cell_scalar(value_of(fact)) : mem_strdup("");

		cell_add(out, fact && json_kind(value_of(fact)) == JSON_NUMBER ? "n" : "", text);
	}
}

static void add_row(struct buf *out, const struct run *run, const struct facts *params,
	const struct facts *metrics, const struct proxy_here *here, int64_t now_ms)
{
	static const char *const columns[] = {"age", "duration", "target"};
	AUTO_FREE char *url = cell_url(run, PROXY_RUN, 0, "/", here);

	html_addf(out, "<tr><td><a href=\"%s\">%s</a></td><td>", url, run_id(run));
	cell_state(out, run, now_ms);
	buf_adds(out, "</td>");
	for (size_t i = 0; i < ARRAY_LEN(columns); i++) {
		AUTO_FREE char *text = cell_column(run, columns[i], now_ms);
		cell_add(out, "", text);
	}
	buf_adds(out, "<td>");
	if (!run_state_is_final(run_state(run)))
		cell_ports(out, run, here);
	html_addf(out, "<a href=\"%s#files\">files</a></td>", url);
	add_cells(out, run, params);
	add_cells(out, run, metrics);
	buf_adds(out, "</tr>\n");
}

static void add_rest(struct buf *out, const struct facts *facts, const char *what)
{
	if (facts->list.n > PROXY_COLUMNS_MAX)
		buf_addf(out, "<p class=\"note\">%zu more %s: see each run.</p>\n",
			facts->list.n - PROXY_COLUMNS_MAX, what);
}

static void add_table(
	struct buf *out, const struct run_list *runs, const struct proxy_here *here, int64_t now_ms)
{
	AUTO(facts_done)
	struct facts params = {.member = "params"}, metrics = {.member = "metrics"};

	collect(runs, &params);
	collect(runs, &metrics);
	buf_adds(out, "<div class=\"scroll\"><table>\n<thead><tr><th>run</th><th>state</th>"
		      "<th>age</th><th>duration</th><th>target</th><th>open</th>");
	add_heads(out, &params);
	add_heads(out, &metrics);
	buf_adds(out, "</tr></thead>\n<tbody>\n");
	vec_foreach (struct run *, run, runs)
		add_row(out, *run, &params, &metrics, here, now_ms);
	buf_adds(out, "</tbody></table></div>\n");
	add_rest(out, &params, "parameters that differ");
	add_rest(out, &metrics, "metrics");
}

/*
 * Pages
 */

void proxy_page_sort(struct run_list *runs)
{
	struct run_list sorted = {0};

	for (int live = 1; live >= 0; live--)
		vec_foreach (struct run *, run, runs)
			if (!run_state_is_final(run_state(*run)) == live)
				*vec_push(&sorted) = *run;
	vec_done(runs);
	*runs = sorted;
}

/* The URL of a port of any run, of which only what stands in front of the id is given. */
static void add_form(struct buf *out, const char *front, const struct proxy_here *here)
{
	html_addf(out, "<code>http://%s.RUN.localhost:", front);
	buf_addf(out, "%u/", here->port);
	proxy_query_add(here, out);
	buf_adds(out, "</code>");
}

void proxy_page_index(const struct run_list *runs, bool is_cut, const struct proxy_here *here,
	int64_t now_ms, struct buf *out)
{
	size_t live = 0;

	vec_foreach (struct run *, run, runs)
		live += !run_state_is_final(run_state(*run));
	html_begin(out, "dlrun: runs", live ? PROXY_REFRESH_S : 0);
	buf_adds(out, "<h1>Runs</h1>\n");
	if (runs->n)
		add_table(out, runs, here, now_ms);
	else
		buf_adds(out, "<p>There is no run yet: <code>dlrun submit -- PROGRAM</code></p>\n");
	if (is_cut)
		buf_addf(out,
			"<p class=\"note\">The newest %zu and all that go on; others: "
			"<code>dlrun ps -a</code></p>\n",
			runs->n);
	buf_adds(out, "<p class=\"note\">Any port of a run that goes on: ");
	add_form(out, "6006", here);
	buf_adds(out, ", of its rank 1: ");
	add_form(out, "6006.r1", here);
	buf_adds(out, " &middot; <a href=\"/runs.json\">as JSON</a></p>\n");
	html_end(out);
}

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
