/* SPDX-License-Identifier: Apache-2.0 */
#include "app/autoscale/metrics.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/autoscale/snapshot.h"
#include "net/httpd/httpd.h"

#define METRICS_PREFIX "dlrun_autoscale_"

enum {
	TURNS_MAX = 4096,      /* bytes of what is of no model and no group */
	METRICS_MS = 5 * 1000, /* for a request to come and a response to be taken */
};

void metrics_done(struct metrics *metrics)
{
	vec_foreach (struct metrics_group, group, &metrics->groups)
		free(group->id);
	vec_done(&metrics->groups);
	free(metrics->model);
}

void metrics_turn(struct metrics *metrics, int64_t took_ms, int64_t now_ms, bool failed)
{
	metrics->turns++;
	metrics->failed += failed;
	metrics->took_ms = took_ms;
	if (!failed)
		metrics->success_ms = now_ms;
}

/* NULL: there are too many. */
static struct metrics_group *metrics_group(struct metrics *metrics, const char *id)
{
	vec_foreach (struct metrics_group, group, &metrics->groups)
		if (str_eq(group->id, id))
			return group;
	if (metrics->groups.n >= SCALE_GROUPS_LIMIT)
		return NULL;
	struct metrics_group *group = vec_push(&metrics->groups);
	group->id = mem_strdup(id);
	return group;
}

void metrics_event(struct metrics *metrics, const struct turn_event *event)
{
	struct metrics_group *group = event->group ? metrics_group(metrics, event->group) : NULL;

	if (!group)
		return;
	if (str_eq(event->what, "grow"))
		group->bought += event->machines;
	else
		group->ended += event->machines;
	if (event->failure != SCALE_NO_FAILURE)
		group->failures[event->failure]++;
}

/*
 * Text: https://prometheus.io/docs/instrumenting/exposition_formats/, "Text-based format"
 */

static void metrics_head(struct buf *out, const char *name, const char *type, const char *help)
{
	buf_addf(out, "# HELP " METRICS_PREFIX "%s %s\n# TYPE " METRICS_PREFIX "%s %s\n", name,
		help, name, type);
}

static void metrics_label(struct buf *out, const char *label, const char *value)
{
	buf_addf(out, "%s=\"", label);
	for (const char *s = value; *s; s++)
		if (*s == '\n')
			buf_adds(out, "\\n");
		else
			buf_addf(out, strchr("\"\\", *s) ? "\\%c" : "%c", *s);
	buf_addc(out, '"');
}

static void metrics_of_group(struct buf *out, const char *name, const char *id, double value)
{
	buf_addf(out, METRICS_PREFIX "%s{", name);
	metrics_label(out, "group", id);
	buf_addf(out, "} %.15g\n", value);
}

static double metrics_price(const struct scale_model *model)
{
	double sum = 0;

	vec_foreach (const struct scale_group, group, &model->groups)
		if (group->price > 0)
			sum += group->price * (double)group->desired;
	return sum;
}

struct metrics_row {
	const char *name, *type, *help;
	double value;
};

static void metrics_rows(struct buf *out, const struct metrics_row *rows, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		metrics_head(out, rows[i].name, rows[i].type, rows[i].help);
		buf_addf(out, METRICS_PREFIX "%s %.15g\n", rows[i].name, rows[i].value);
	}
}

static void metrics_turns(const struct metrics *metrics, const char *cluster, struct buf *out)
{
	const struct metrics_row rows[] = {
		{"turns_total", "counter", "Turns that have ended.", (double)metrics->turns},
		{"turns_failed_total", "counter", "Turns that have ended with an error.",
			(double)metrics->failed},
		{"turn_duration_seconds", "gauge", "Duration of the last turn.",
			(double)metrics->took_ms / 1000},
		{"last_success_timestamp_seconds", "gauge",
			"When the last turn without an error ended; 0: none has.",
			(double)metrics->success_ms / 1000},
		{"notices_lost_total", "counter", "Notices that the program did not get.",
			(double)metrics->lost_notices},
	};

	metrics_head(out, "info", "gauge", "The cluster of the settings.");
	buf_adds(out, METRICS_PREFIX "info{");
	metrics_label(out, "cluster", cluster);
	buf_adds(out, "} 1\n");
	metrics_rows(out, rows, ARRAY_LEN(rows));
}

static void metrics_totals(
	const struct scale_model *model, const struct scale_plan *plan, struct buf *out)
{
	const struct metrics_row rows[] = {
		{"pods_waiting", "gauge", "Pods that wait for a node.", (double)plan->waiting},
		{"pods_helped", "gauge",
			"Pods that wait and have a place, on nodes or on machines to come.",
			(double)plan->helped},
		{"pods_not_helped", "gauge", "Pods that wait and have no place.",
			(double)(plan->waiting - plan->helped)},
		{"nodes", "gauge", "Nodes of the cluster.", (double)model->nodes.n},
		{"price_per_hour", "gauge",
			"Price for an hour of the machines of all groups whose price is known.",
			metrics_price(model)},
	};

	metrics_rows(out, rows, ARRAY_LEN(rows));
}

/* Of each group of the model, by nodes. */
static int64_t *metrics_ready(const struct scale_model *model)
{
	int64_t *ready = mem_alloc(model->groups.n + 1, sizeof(*ready));

	vec_foreach (const struct scale_node, node, &model->nodes)
		if (node->group >= 0 && node->is_ready)
			ready[node->group]++;
	return ready;
}

static void metrics_groups(const struct scale_model *model, struct buf *out)
{
	AUTO_FREE int64_t *ready = metrics_ready(model);

	metrics_head(out, "group_desired", "gauge", "Machines that a group is to have.");
	vec_foreach (const struct scale_group, group, &model->groups)
		metrics_of_group(out, "group_desired", group->id, (double)group->desired);
	metrics_head(out, "group_max", "gauge", "Machines that a group may have.");
	vec_foreach (const struct scale_group, group, &model->groups)
		metrics_of_group(out, "group_max", group->id, (double)group->max);
	metrics_head(out, "group_ready", "gauge", "Nodes of a group that are ready.");
	for (size_t i = 0; i < model->groups.n; i++)
		metrics_of_group(out, "group_ready", model->groups.v[i].id, (double)ready[i]);
	metrics_head(out, "group_wait_until_timestamp_seconds", "gauge",
		"Until when a group is not asked, after a failure; 0: it may be.");
	vec_foreach (const struct scale_group, group, &model->groups)
		metrics_of_group(out, "group_wait_until_timestamp_seconds", group->id,
			(double)group->wait_until_ms / 1000);
}

static void metrics_counters(const struct metrics *metrics, struct buf *out)
{
	metrics_head(out, "machines_bought_total", "counter", "Machines that a group gave.");
	vec_foreach (const struct metrics_group, group, &metrics->groups)
		metrics_of_group(out, "machines_bought_total", group->id, (double)group->bought);
	metrics_head(out, "machines_ended_total", "counter", "Machines that were given back.");
	vec_foreach (const struct metrics_group, group, &metrics->groups)
		metrics_of_group(out, "machines_ended_total", group->id, (double)group->ended);
	metrics_head(out, "failures_total", "counter", "Failures of a group, by class.");
	vec_foreach (const struct metrics_group, group, &metrics->groups)
		for (int i = SCALE_NO_FAILURE + 1; i <= SCALE_FAILED_OTHER; i++) {
			if (!group->failures[i])
				continue;
			buf_adds(out, METRICS_PREFIX "failures_total{");
			metrics_label(out, "group", group->id);
			buf_addf(out, ",class=\"%s\"} %" PRId64 "\n", scale_failure_names[i],
				group->failures[i]);
		}
}

static void metrics_model(
	struct metrics *metrics, const struct scale_model *model, const struct scale_plan *plan)
{
	AUTO_BUF struct buf text = buf_with(METRICS_MAX / 2);

	vec_foreach (const struct scale_group, group, &model->groups)
		metrics_group(metrics, group->id);
	metrics_totals(model, plan, &text);
	size_t totals = text.len;
	metrics_groups(model, &text);
	REPLACE(metrics->model, mem_strndup(text.data, text.full ? totals : text.len));
}

void metrics_print(struct metrics *metrics, const char *cluster, const struct scale_model *model,
	const struct scale_plan *plan, struct buf *out)
{
	AUTO_BUF struct buf counters = buf_with(METRICS_MAX / 2 - TURNS_MAX);

	if (model)
		metrics_model(metrics, model, plan);
	metrics_counters(metrics, &counters);
	metrics_turns(metrics, cluster, out);
	if (metrics->model)
		buf_adds(out, metrics->model);
	if (!counters.full)
		buf_add(out, counters.data, counters.len);
}

/*
 * The server
 */

struct metrics_server {
	struct httpd *httpd;
	struct buf text;
};

static void metrics_request(
	void *ctx, struct httpd_exchange *exchange, const struct httpd_request *request)
{
	const struct metrics_server *server = ctx;
	AUTO_STRV struct strv headers = {0};

	if (strcspn(request->target, "?") != strlen("/metrics") ||
		!str_starts(request->target, "/metrics")) {
		httpd_refuse(exchange, 404, "metrics are at /metrics", NULL);
		return;
	}
	strv_add(&headers, "Content-Type: text/plain; version=0.0.4; charset=utf-8");
	strv_add(&headers, "Cache-Control: no-store");
	httpd_respond(exchange, 200, &headers, server->text.data, server->text.len);
}

int metrics_serve(struct loop *loop, int port, struct metrics_server **ret, struct err *err)
{
	AUTO_METRICS_SERVER struct metrics_server *server = mem_alloc(1, sizeof(*server));
	const struct httpd_options options = {.loop = loop,
		.port = (uint16_t)port,
		.is_exact = port != 0,
		.address = "*",
		.public_ms = METRICS_MS,
		.request = metrics_request,
		.ctx = server};

	server->text = buf_with(0);
	int r = httpd_open(&options, &server->httpd, err);
	if (r == 0)
		*ret = TAKE(server);
	return r;
}

void metrics_server_set(struct metrics_server *server, struct buf *take_text)
{
	buf_done(&server->text);
	server->text = *take_text;
	*take_text = buf_with(0);
}

int metrics_server_port(const struct metrics_server *server)
{
	return httpd_port(server->httpd);
}

void metrics_server_free(struct metrics_server *server)
{
	if (!server)
		return;
	httpd_free(server->httpd);
	buf_done(&server->text);
	free(server);
}
