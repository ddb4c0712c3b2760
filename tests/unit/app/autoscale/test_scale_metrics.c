/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "app/autoscale/metrics.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/autoscale/snapshot.h"

enum { LIMIT_MS = 60000 };

static const char snapshot[] =
	"{\"dlrun_autoscale\": 1, \"now\": \"2026-11-27T05:00:00Z\","
	" \"shapes\": {\"s\": {\"request\": {\"cpu\": 64}}, \"t\": {\"request\": {\"cpu\": 1}}},"
	" \"pods\": [{\"name\": \"a/b\", \"shape\": \"s\", \"count\": 3},"
	"  {\"name\": \"a/c\", \"shape\": \"t\"}],"
	" \"nodes\": [{\"name\": \"n1\", \"group\": \"cpu\", \"ready\": true, \"room\": {\"cpu\": 4}},"
	"  {\"name\": \"n2\", \"group\": \"cpu\", \"ready\": false, \"room\": {\"cpu\": 4}}],"
	" \"groups\": [{\"id\": \"cpu\", \"max\": 5, \"desired\": 2, \"price\": 0.5},"
	"  {\"id\": \"odd\\\"\\\\\\n\", \"max\": 1, \"desired\": 1,"
	"   \"wait_until\": \"2026-11-27T05:10:00Z\"}]}";

static void make(const char *text, struct scale_model *model, struct scale_plan *plan)
{
	AUTO_JSON struct json *json = NULL;

	scale_model_init(model);
	assert_int_equal(json_parse(text, strlen(text), 1 << 20, "it", &json, NULL), 0);
	assert_int_equal(snapshot_read(json, model, NULL), 0);
	scale_plan_make(model, plan);
}

static const char expected[] =
	"# HELP dlrun_autoscale_info The cluster of the settings.\n"
	"# TYPE dlrun_autoscale_info gauge\n"
	"dlrun_autoscale_info{cluster=\"lab\"} 1\n"
	"# HELP dlrun_autoscale_turns_total Turns that have ended.\n"
	"# TYPE dlrun_autoscale_turns_total counter\n"
	"dlrun_autoscale_turns_total 2\n"
	"# HELP dlrun_autoscale_turns_failed_total Turns that have ended with an error.\n"
	"# TYPE dlrun_autoscale_turns_failed_total counter\n"
	"dlrun_autoscale_turns_failed_total 1\n"
	"# HELP dlrun_autoscale_turn_duration_seconds Duration of the last turn.\n"
	"# TYPE dlrun_autoscale_turn_duration_seconds gauge\n"
	"dlrun_autoscale_turn_duration_seconds 0.25\n"
	"# HELP dlrun_autoscale_last_success_timestamp_seconds When the last turn without an "
	"error ended; 0: none has.\n"
	"# TYPE dlrun_autoscale_last_success_timestamp_seconds gauge\n"
	"dlrun_autoscale_last_success_timestamp_seconds 1795755600.5\n"
	"# HELP dlrun_autoscale_notices_lost_total Notices that the program did not get.\n"
	"# TYPE dlrun_autoscale_notices_lost_total counter\n"
	"dlrun_autoscale_notices_lost_total 0\n"
	"# HELP dlrun_autoscale_pods_waiting Pods that wait for a node.\n"
	"# TYPE dlrun_autoscale_pods_waiting gauge\n"
	"dlrun_autoscale_pods_waiting 4\n"
	"# HELP dlrun_autoscale_pods_helped Pods that wait and have a place, on nodes or on "
	"machines to come.\n"
	"# TYPE dlrun_autoscale_pods_helped gauge\n"
	"dlrun_autoscale_pods_helped 1\n"
	"# HELP dlrun_autoscale_pods_not_helped Pods that wait and have no place.\n"
	"# TYPE dlrun_autoscale_pods_not_helped gauge\n"
	"dlrun_autoscale_pods_not_helped 3\n"
	"# HELP dlrun_autoscale_nodes Nodes of the cluster.\n"
	"# TYPE dlrun_autoscale_nodes gauge\n"
	"dlrun_autoscale_nodes 2\n"
	"# HELP dlrun_autoscale_price_per_hour Price for an hour of the machines of all groups "
	"whose price is known.\n"
	"# TYPE dlrun_autoscale_price_per_hour gauge\n"
	"dlrun_autoscale_price_per_hour 1\n"
	"# HELP dlrun_autoscale_group_desired Machines that a group is to have.\n"
	"# TYPE dlrun_autoscale_group_desired gauge\n"
	"dlrun_autoscale_group_desired{group=\"cpu\"} 2\n"
	"dlrun_autoscale_group_desired{group=\"odd\\\"\\\\\\n\"} 1\n"
	"# HELP dlrun_autoscale_group_max Machines that a group may have.\n"
	"# TYPE dlrun_autoscale_group_max gauge\n"
	"dlrun_autoscale_group_max{group=\"cpu\"} 5\n"
	"dlrun_autoscale_group_max{group=\"odd\\\"\\\\\\n\"} 1\n"
	"# HELP dlrun_autoscale_group_ready Nodes of a group that are ready.\n"
	"# TYPE dlrun_autoscale_group_ready gauge\n"
	"dlrun_autoscale_group_ready{group=\"cpu\"} 1\n"
	"dlrun_autoscale_group_ready{group=\"odd\\\"\\\\\\n\"} 0\n"
	"# HELP dlrun_autoscale_group_wait_until_timestamp_seconds Until when a group is not "
	"asked, after a failure; 0: it may be.\n"
	"# TYPE dlrun_autoscale_group_wait_until_timestamp_seconds gauge\n"
	"dlrun_autoscale_group_wait_until_timestamp_seconds{group=\"cpu\"} 0\n"
	"dlrun_autoscale_group_wait_until_timestamp_seconds{group=\"odd\\\"\\\\\\n\"} 1795756200\n"
	"# HELP dlrun_autoscale_machines_bought_total Machines that a group gave.\n"
	"# TYPE dlrun_autoscale_machines_bought_total counter\n"
	"dlrun_autoscale_machines_bought_total{group=\"cpu\"} 9\n"
	"dlrun_autoscale_machines_bought_total{group=\"odd\\\"\\\\\\n\"} 0\n"
	"# HELP dlrun_autoscale_machines_ended_total Machines that were given back.\n"
	"# TYPE dlrun_autoscale_machines_ended_total counter\n"
	"dlrun_autoscale_machines_ended_total{group=\"cpu\"} 3\n"
	"dlrun_autoscale_machines_ended_total{group=\"odd\\\"\\\\\\n\"} 0\n"
	"# HELP dlrun_autoscale_failures_total Failures of a group, by class.\n"
	"# TYPE dlrun_autoscale_failures_total counter\n"
	"dlrun_autoscale_failures_total{group=\"cpu\",class=\"capacity\"} 1\n"
	"dlrun_autoscale_failures_total{group=\"cpu\",class=\"other\"} 2\n";

static void test_text(void **state)
{
	static const struct turn_event events[] = {
		{.what = "grow", .group = "cpu", .machines = 9},
		{.what = "grow", .group = "cpu", .failure = SCALE_FAILED_CAPACITY},
		{.what = "remove", .group = "cpu", .machines = 2},
		{.what = "terminate", .group = "cpu", .machines = 1},
		{.what = "shrink", .group = "cpu", .failure = SCALE_FAILED_OTHER},
		{.what = "shrink", .group = "cpu", .failure = SCALE_FAILED_OTHER},
		{.what = "cordon", .node = "n1"},
	};
	AUTO_SCALE_MODEL struct scale_model model;
	AUTO_SCALE_PLAN struct scale_plan plan = {0};
	AUTO_METRICS struct metrics metrics = {0};
	AUTO_BUF struct buf out = buf_with(METRICS_MAX);

	make(snapshot, &model, &plan);
	for (size_t i = 0; i < ARRAY_LEN(events); i++)
		metrics_event(&metrics, &events[i]);
	metrics_turn(&metrics, 1000, 1795755600500, false);
	metrics_turn(&metrics, 250, 1795755700000, true);
	metrics_print(&metrics, "lab", &model, &plan, &out);
	assert_string_equal(out.data, expected);
	/* A turn that failed shows what the one before has seen. */
	buf_reset(&out);
	metrics_print(&metrics, "lab", NULL, NULL, &out);
	assert_string_equal(out.data, expected);
}

/* Names as long as they like to be: the totals stay. */
static void test_too_much(void **state)
{
	AUTO_SCALE_MODEL struct scale_model model;
	AUTO_SCALE_PLAN struct scale_plan plan = {0};
	AUTO_METRICS struct metrics metrics = {0};
	AUTO_BUF struct buf out = buf_with(METRICS_MAX);

	scale_model_init(&model);
	struct scale_group *group = vec_push(&model.groups);
	group->id = mem_alloc(METRICS_MAX, 1);
	memset(group->id, 'x', METRICS_MAX - 1);
	metrics_print(&metrics, "lab", &model, &plan, &out);
	assert_false(out.full);
	assert_true(str_ends(out.data, "dlrun_autoscale_price_per_hour 0\n"));
	assert_true(str_starts(out.data, "# HELP dlrun_autoscale_info "));
}

/*
 * The server
 */

struct client {
	struct loop *loop;
	int fd;
	struct buf got;
	bool ended;
};

static short prepare(void *ctx)
{
	return ((struct client *)ctx)->ended ? 0 : POLLIN;
}

static int dispatch(void *ctx, short revents, struct err *err)
{
	struct client *client = ctx;
	char data[4096];
	ssize_t n = recv(client->fd, data, sizeof(data), MSG_DONTWAIT);

	if (n > 0)
		buf_add(&client->got, data, (size_t)n);
	client->ended = n == 0;
	if (client->ended)
		loop_stop(client->loop);
	return 0;
}

static int too_late(void *ctx, struct err *err)
{
	fail_msg("no response");
	return 0;
}

/* The response; the caller frees. */
static char *query(struct loop *loop, int port, const char *head)
{
	static const struct loop_fd_ops ops = {.prepare = prepare, .dispatch = dispatch};
	struct sockaddr_in address = {.sin_family = AF_INET,
		.sin_port = htons((uint16_t)port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct client client = {.loop = loop,
		.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0),
		.got = buf_with(1 << 20)};

	assert_int_equal(connect(client.fd, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(send(client.fd, head, strlen(head), 0), strlen(head));
	struct loop_fd *source = loop_add_fd(loop, client.fd, &ops, &client);
	struct loop_timer *limit = loop_add_timer(loop, clock_ms() + LIMIT_MS, too_late, NULL);
	while (!client.ended)
		assert_int_equal(loop_run(loop, NULL), 0);
	loop_remove_timer(loop, limit);
	loop_remove_fd(loop, source);
	close(client.fd);
	char *got = buf_take(&client.got);
	buf_done(&client.got);
	return got;
}

#define HEAD " HTTP/1.1\r\nHost: 10.0.0.7:9090\r\nConnection: close\r\n\r\n"

static void test_server(void **state)
{
	AUTO_METRICS_SERVER struct metrics_server *server = NULL;
	struct loop *loop = loop_new();
	AUTO_BUF struct buf text = buf_with(100);

	assert_int_equal(metrics_serve(loop, 0, &server, NULL), 0);
	int port = metrics_server_port(server);
	AUTO_FREE char *empty = query(loop, port, "GET /metrics" HEAD);
	assert_true(str_starts(empty, "HTTP/1.1 200 "));
	assert_true(str_ends(empty, "\r\n\r\n"));
	buf_adds(&text, "a 1\n");
	metrics_server_set(server, &text);
	AUTO_FREE char *got = query(loop, port, "GET /metrics?name=a" HEAD);
	assert_non_null(
		strstr(got, "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
	assert_true(str_ends(got, "\r\n\r\na 1\n"));
	AUTO_FREE char *only_head = query(loop, port, "HEAD /metrics" HEAD);
	assert_true(str_ends(only_head, "\r\n\r\n"));
	assert_non_null(strstr(only_head, "\r\nContent-Length: 4\r\n"));
	AUTO_FREE char *other = query(loop, port, "GET /metricsx" HEAD);
	assert_true(str_starts(other, "HTTP/1.1 404 "));
	AUTO_FREE char *post = query(loop, port, "POST /metrics" HEAD);
	assert_true(str_starts(post, "HTTP/1.1 405 "));
	metrics_server_free(TAKE(server));
	loop_free(loop);
}

static void test_taken(void **state)
{
	AUTO_METRICS_SERVER struct metrics_server *server = NULL, *other = NULL;
	struct loop *loop = loop_new();
	AUTO_ERR struct err err = {0};

	assert_int_equal(metrics_serve(loop, 0, &server, NULL), 0);
	assert_true(metrics_serve(loop, metrics_server_port(server), &other, &err) < 0);
	assert_int_equal(err.id, E_LISTEN_TAKEN);
	metrics_server_free(TAKE(server));
	loop_free(loop);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_text),
		cmocka_unit_test(test_too_much),
		cmocka_unit_test(test_server),
		cmocka_unit_test(test_taken),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
