#include "run/supervise.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/clock.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/log.h"
#include "base/os.h"
#include "run/attempt.h"
#include "run/reply.h"
#include "run/supervisor.h"
#include "run/tree.h"

/*
 * Two processes. The one that was started makes trees; its child is the supervisor, so that what
 * the supervisor finds below itself is the program's family and nothing else.
 */

extern char **environ; /* inherited by the program as a whole */

enum { LOCK_WAIT_MS = 2000 }; /* others only look for a moment */

/* SIGTERM too: it only says that there may be something to see, and may come before the supervisor
 * is ready to look. */
static void ignore_signals(void)
{
	static const int ignored[] = {
		SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU};

	for (size_t i = 0; i < sizeof(ignored) / sizeof(*ignored); i++)
		signal(ignored[i], SIG_IGN);
}

/* The reply has been given, or is somebody else's to give: what waits for it must see its end. */
static void close_output(void)
{
	dup2(STDERR_FILENO, STDOUT_FILENO);
}

/*
 * The worker
 */

static void make_tree(int fd)
{
	AUTO(attempt_job_done) struct attempt_job job = {0};
	struct json *result = json_object();
	AUTO_ERR struct err err = {0};
	int64_t start_ms = clock_ms();
	bool spare = false;

	int r = attempt_job_read(".", &job, &err);
	if (r == 0)
		r = tree_make(".", &job, &spare, &err);
	json_set_bool(result, "spare", spare);
	json_set_int(result, "ms", clock_ms() - start_ms);
	reply_write(fd, r, &err, result);
}

static int make_spare(struct err *err)
{
	AUTO(attempt_job_done) struct attempt_job job = {0};
	int r = attempt_job_read(".", &job, err);

	os_be_nice();
	return r < 0 ? r : spare_make(&job, err);
}

static int work(int fd, struct err *err)
{
	char order;

	close_output();
	/* The supervisor is our child; nobody asks how it ended. */
	signal(SIGCHLD, SIG_IGN);
	for (;;) {
		ssize_t n = read(fd, &order, 1);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return 0;
		if (order == WORKER_SPARE)
			return make_spare(err);
		make_tree(fd);
	}
}

/*
 * The supervisor
 */

/* What is to be done with an attempt that may have had a supervisor before. */
enum course { COURSE_NONE, COURSE_START, COURSE_ADOPT };

static enum course choose_course(struct attempt_state *state)
{
	struct target_status end;
	struct attempt_state before;

	attempt_state_init(state);
	if (attempt_end_read(".", &end)) {
		target_status_done(&end);
		return COURSE_NONE;
	}
	if (!attempt_state_read(".", &before))
		return COURSE_START;
	if (!attempt_process_alive(&before.program))
		return COURSE_NONE;
	state->state = RUN_RUNNING;
	state->program = before.program;
	state->family = before.family;
	state->started_ms = before.started_ms;
	return COURSE_ADOPT;
}

/* Everything that can fail before the attempt counts as accepted. */
static int take_attempt(
	struct supervisor_start *start, struct attempt_job *job, int *ret_log_fd, struct err *err)
{
	enum { FLAGS = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW };

	int r = attempt_job_read(".", job, err);
	if (r < 0)
		return r;
	AUTO_FD int fd = open(ATTEMPT_LOG, FLAGS, 0600);
	if (fd < 0)
		return fs_error(err, errno, "making the log of %s", job->run_id);
	r = attempt_state_write(".", &start->state, err);
	if (r < 0)
		return r;
	start->job = job;
	start->log_fd = *ret_log_fd = TAKE_FD(fd);
	return 0;
}

static void answer(int r, const struct err *err)
{
	reply_write(STDOUT_FILENO, r, err, NULL);
	close_output();
}

static int watch_over(struct supervisor_start *start, struct err *err)
{
	AUTO(attempt_job_done) struct attempt_job job = {0};
	AUTO_FD int lock_fd = -1, log_fd = -1;
	AUTO_ERR struct err held = {0};

	int r = fs_lock(ATTEMPT_LOCK, true, LOCK_WAIT_MS, &lock_fd, &held);
	if (r < 0 && held.id == E_IO_LOCK) {
		/* Another supervisor has it: that is what was asked for. */
		answer(0, NULL);
		return 0;
	}
	if (r < 0)
		return err_move(err, &held);
	enum course course = choose_course(&start->state);
	if (course != COURSE_NONE)
		r = take_attempt(start, &job, &log_fd, err);
	if (r < 0)
		return r;
	start->lock_fd = lock_fd;
	answer(0, NULL);
	return course == COURSE_NONE ? 0 : supervisor_run(start, err);
}

static int fork_both(struct err *err)
{
	int sockets[2];

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) < 0)
		return err_set_errno(err, E_RUN_START, errno, "cannot make a pair of sockets");
	AUTO_FD int ours = sockets[0], theirs = sockets[1];
	fcntl(ours, F_SETFD, FD_CLOEXEC);
	fcntl(theirs, F_SETFD, FD_CLOEXEC);
	pid_t worker = getpid(), pid = fork();
	if (pid < 0)
		return err_set_errno(err, E_RUN_START, errno, "cannot start a process");
	if (pid > 0) {
		auto_fd(&theirs);
		theirs = -1;
		return work(ours, err);
	}
	auto_fd(&ours);
	ours = -1;
	return watch_over(
		&(struct supervisor_start){
			.worker = worker, .worker_fd = theirs, .env = (const char *const *)environ},
		err);
}

int supervise(const char *dir, struct err *err)
{
	int r = 0;

	ignore_signals();
	if (chdir(dir) < 0)
		r = fs_error(err, errno, "%s", dir);
	if (r == 0)
		r = fork_both(err);
	/* Whoever had an answer already does not read this one. */
	if (r < 0)
		answer(r, err);
	return r;
}
