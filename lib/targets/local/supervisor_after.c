/* SPDX-License-Identifier: Apache-2.0 */
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/loop/proc.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "targets/local/supervisor.h"

/*
 * The runs that it begins after: `dlrun __after DIR` waits for them, wherever they are, with the
 * submitter's environment. That process changes nothing but what is known of other runs, so that
 * it is started again whenever it dies or cannot tell.
 */

enum { AFTER_PAUSE_MS = 500, AFTER_PAUSE_MAX_MS = 60000 };

struct supervisor_after {
	pid_t pid; /* 0: it does not run */
	int fd;
	struct loop_fd *source;
	struct loop_timer *timer;
	int64_t pause_ms; /* before it is started again */
	char reply[REPLY_MAX];
	size_t len;
};

bool sup_wants_after(const struct supervisor *sup)
{
	return sup->job->spec.after.n > 0;
}

static void sup_after_end_waiter(struct supervisor *sup)
{
	struct supervisor_after *after = sup->after;

	loop_remove_fd(sup->loop, after->source);
	after->source = NULL;
	auto_fd(&after->fd);
	after->fd = -1;
	if (after->pid > 0) {
		kill(after->pid, SIGKILL);
		waitpid(after->pid, NULL, 0);
	}
	after->pid = 0;
}

void sup_after_free(struct supervisor *sup)
{
	if (!sup->after)
		return;
	loop_remove_timer(sup->loop, sup->after->timer);
	sup_after_end_waiter(sup);
	free(sup->after);
	sup->after = NULL;
}

bool sup_after_reaped(struct supervisor *sup, pid_t pid)
{
	if (!sup->after || sup->after->pid != pid)
		return false;
	sup->after->pid = 0;
	return true;
}

static void sup_after_spawn(struct supervisor *sup);

static int sup_after_on_timer(void *ctx, struct err *err)
{
	struct supervisor *sup = ctx;

	(void)err;
	sup->after->timer = NULL;
	sup_after_spawn(sup);
	return 0;
}

static void sup_after_try_again(struct supervisor *sup, const struct err *why)
{
	struct supervisor_after *after = sup->after;
	AUTO_FREE char *what = after_text(&sup->job->spec.after);
	AUTO_FREE char *text = mem_printf("%s: %s", what, why->message);

	sup_note(sup, "%s", text);
	/* A process that was killed is none of the user's business. */
	if (why->id != E_RUN_START)
		sup_wait_as(sup, RUN_QUEUED, text);
	after->pause_ms = after->pause_ms ? after->pause_ms * 2 : AFTER_PAUSE_MS;
	if (after->pause_ms > AFTER_PAUSE_MAX_MS)
		after->pause_ms = AFTER_PAUSE_MAX_MS;
	after->timer =
		loop_add_timer(sup->loop, clock_ms() + after->pause_ms, sup_after_on_timer, sup);
}

static void sup_after_never(struct supervisor *sup, const char *text)
{
	sup_end_worker(sup);
	sup_finish_as(sup, RUN_CANCELLED, 143, AFTER_REASON, text);
}

static void sup_after_replied(struct supervisor *sup)
{
	struct supervisor_after *after = sup->after;
	AUTO_JSON struct json *result = NULL;
	AUTO_ERR struct err err = {0};
	size_t len = after->len;

	sup_after_end_waiter(sup);
	after->len = 0;
	int r = reply_parse(after->reply, len, "the process that waits", &result, &err);
	const char *never = json_get_str(result, AFTER_NEVER_TEXT);
	if (r < 0)
		sup_after_try_again(sup, &err);
	else if (never)
		sup_after_never(sup, never);
	else
		sup_after_over(sup);
}

static short sup_after_prepare(void *ctx)
{
	(void)ctx;
	return POLLIN;
}

static int sup_after_on_reply(void *ctx, short revents, struct err *err)
{
	struct supervisor *sup = ctx;
	struct supervisor_after *after = sup->after;
	ssize_t n = read(after->fd, after->reply + after->len, sizeof(after->reply) - after->len);

	(void)revents;
	(void)err;
	if (n > 0)
		after->len += (size_t)n;
	if (n <= 0 || after->len == sizeof(after->reply) || memchr(after->reply, '\n', after->len))
		sup_after_replied(sup);
	return 0;
}

/* The environment as the submit had it: secrets are the program's. */
static void sup_after_env(const struct supervisor *sup, struct strv *ret)
{
	const struct strv *secrets = &sup->job->spec.secrets;

	for (const char *const *pair = sup->inherited; *pair; pair++) {
		AUTO_FREE char *name = mem_strndup(*pair, strcspn(*pair, "="));
		if (strv_find(secrets, name) < 0)
			strv_add(ret, *pair);
	}
}

static int sup_after_start(struct supervisor *sup, int output_fd, struct err *err)
{
	/* The program as it is installed now; it may have been removed. */
	const char *self = access(sup->self, X_OK) == 0 ? sup->self : "/proc/self/exe";
	const char *const argv[] = {self, "__after", sup->dir, NULL};
	AUTO_STRV struct strv env = {0};

	sup_after_env(sup, &env);
	const struct proc_spec spec = {
		.argv = argv,
		.env = (const char *const *)env.v,
		.dir = "/",
		.stdin_fd = -1,
		.stdout_fd = output_fd,
		.stderr_fd = sup->notes_fd,
	};
	return proc_spawn(&spec, &sup->after->pid, err);
}

static void sup_after_spawn(struct supervisor *sup)
{
	static const struct loop_fd_ops ops = {sup_after_prepare, sup_after_on_reply};
	AUTO_ERR struct err err = {0};
	int fds[2] = {-1, -1};
	int r = fs_pipe(fds, 0, &err);
	AUTO_FD int read_end = fds[0], write_end = fds[1];

	if (r == 0)
		r = sup_after_start(sup, write_end, &err);
	if (r < 0) {
		sup_after_try_again(sup, &err);
		return;
	}
	sup->after->fd = TAKE_FD(read_end);
	sup->after->source = loop_add_fd(sup->loop, sup->after->fd, &ops, sup);
}

void sup_after_begin(struct supervisor *sup)
{
	AUTO_FREE char *text = after_text(&sup->job->spec.after);

	sup->after = mem_alloc(1, sizeof(*sup->after));
	sup->after->fd = -1;
	sup_wait_as(sup, RUN_QUEUED, text);
	sup_after_spawn(sup);
}
