/* SPDX-License-Identifier: Apache-2.0 */
/* A run's place in a cluster whose API server is a function of the test, in a state directory of
 * its own. */
#ifndef DLRUN_TESTS_UNIT_KUBETARGET_H
#define DLRUN_TESTS_UNIT_KUBETARGET_H

#include <fcntl.h>
#include <stdlib.h>

#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/record/spec.h"
#include "core/store/store.h"
#include "targets/kube/target_kube.h"
#include "tests/unit/httpfix.h"

#define JOB "a-22222"

static inline bool print_json(struct fix_conn *conn, int status, const char *body)
{
	AUTO_FREE char *text = mem_printf("HTTP/1.1 %d X\r\nContent-Type: application/json\r\n"
					  "Content-Length: %zu\r\n\r\n%s",
		status, strlen(body), body);

	return fix_print(conn, text);
}

struct place {
	struct fix_server *server;
	struct session session;
	struct target *target;
	char handle[TARGET_HANDLE_SIZE];
	char dir[64];
	char *cache, *config, *pair;
	const char *env[2];
};

/* Another dlrun that knows the same. */
static inline void place_open(struct place *place)
{
	assert_int_equal(
		target_kube_new(&place->session, "kube", NULL, NULL, NULL, &place->target, NULL),
		0);
	assert_int_equal(place->target->ops->prepare(
				 place->target, JOB, 1, &(struct spec){0}, place->handle, NULL),
		0);
}

/* As if it were killed: nothing is told or written any more. */
static inline void place_close(struct place *place)
{
	target_free(TAKE(place->target));
	kube_clusters_free(TAKE(place->session.clusters));
	vec_done(&place->session.ends);
	loop_free(TAKE(place->session.loop));
}

static inline void place_init(struct place *place, fix_response_fn *response)
{
	*place = (struct place){.server = fix_start(response), .dir = "/tmp/dlrun-kube-XXXXXX"};
	assert_non_null(mkdtemp(place->dir));
	place->cache = fs_join(place->dir, "cache");
	place->config = fs_join(place->dir, "config");
	place->pair = mem_printf("KUBECONFIG=%s", place->config);
	place->env[0] = place->pair;
	AUTO_FREE char *text = mem_printf(
		"clusters: [{name: c, cluster: {server: 'http://localhost:%u'}}]\n"
		"contexts: [{name: x, context: {cluster: c, user: u, namespace: jobs}}]\n"
		"users: [{name: u, user: {}}]\ncurrent-context: x\n",
		place->server->port);
	assert_int_equal(
		fs_replace(place->config, text, strlen(text), 0600, FS_SYNC_NONE, NULL), 0);
	place->session.env = (struct session_env){.env = place->env, .cwd = "/"};
	place->session.dirs.home = place->session.dirs.state = place->dir;
	place->session.dirs.cache = place->cache;
	place_open(place);
}

static inline void place_done(struct place *place)
{
	place_close(place);
	store_close(TAKE(place->session.store));
	fix_stop(place->server);
	fs_remove_tree(AT_FDCWD, place->dir, NULL);
	free(place->cache);
	free(place->config);
	free(place->pair);
}

#define AUTO_PLACE AUTO(place_done)

/* A call that is waited for. */
struct waited {
	struct target_call call;
	struct place *place;
	bool over;
	int status;
	struct err err;
};

static inline void on_done(struct target_call *call, int status, struct err *err)
{
	struct waited *waited = (struct waited *)call;

	waited->over = true;
	waited->status = status;
	if (status < 0)
		err_move(&waited->err, err);
	loop_stop(waited->place->session.loop);
}

static inline void waited_done(struct waited *waited)
{
	target_call_cancel(&waited->call);
	err_done(&waited->err);
}

#define WAITED(name, at)                                                                           \
	AUTO(waited_done) struct waited name = {.call = {.done = on_done}, .place = (at)}

static inline int stop(void *ctx, struct err *err)
{
	loop_stop(ctx);
	return 0;
}

static inline void run_for(struct place *place, int64_t ms)
{
	struct loop *loop = place->session.loop;
	struct loop_timer *timer = loop_add_timer(loop, clock_ms() + ms, stop, loop);

	assert_int_equal(loop_run(loop, NULL), 0);
	loop_remove_timer(loop, timer);
}

#endif
