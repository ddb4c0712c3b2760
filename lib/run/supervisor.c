#include "run/supervisor.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/clock.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/loop.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/proc.h"
#include "base/str.h"
#include "run/marks.h"
#include "run/program.h"
#include "run/reply.h"
#include "run/words.h"

enum {
	MARK_MS = 1000,       /* between two marks */
	SLOW_TICK_MS = 10000, /* looks at what is watched anyway */
	FAST_TICK_MS = 500,   /* where nothing can be watched, or the program is no child */
	LEFTOVER_GRACE_MS = 2000,
	EMPTY_LOOK_MS = 20,
	KILL_AGAIN_MS = 500,
	KILL_GIVE_UP_MS = 30000, /* processes that wait for a dead disk cannot be killed */
	RESERVE_BYTES = 8192,
	END_RETRY_MS = 1000,
	END_TRIES = 600,
	DEFAULT_PORT = 29500, /* torchrun's */
};

enum phase {
	PHASE_TREE,      /* the worker unpacks */
	PHASE_RUNNING,   /* the program runs */
	PHASE_LEFTOVERS, /* it has ended, its family has not */
	PHASE_OVER,
};

enum stop { STOP_NONE, STOP_CANCEL, STOP_TIMEOUT };

struct supervisor {
	const struct attempt_job *job;
	const char *const *inherited;
	struct attempt_state state;
	struct target_status end;
	struct loop *loop;
	enum phase phase;
	enum stop stop;
	bool adopted; /* the program is not our child */
	bool reaped;
	int wait_status;
	int64_t ended_ms;
	double cpu_s;
	int64_t peak_bytes;
	pid_t worker;
	int worker_fd;
	struct loop_fd *worker_source;
	char reply[REPLY_MAX];
	size_t reply_len;
	int log_fd, lock_fd, marks_fd, notes_fd;
	int dir_watch, log_watch;
	bool log_quiet; /* a mark was made less than MARK_MS ago */
	struct mark last_mark;
	struct loop_timer *kill_timer, *look_timer, *limit_timer;
	int64_t kill_since_ms; /* clock_ms() of the first SIGKILL; 0: none yet */
};

static void note(struct supervisor *sup, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
static void note(struct supervisor *sup, const char *fmt, ...)
{
	char time[CLOCK_TEXT_SIZE];
	va_list args;

	va_start(args, fmt);
	AUTO_FREE char *text = mem_vprintf(fmt, args);
	va_end(args);
	clock_format(clock_wall_ms(), time);
	AUTO_FREE char *line = mem_printf("%s %s\n", time, text);
	fs_write_fd(sup->notes_fd, ATTEMPT_NOTES, line, strlen(line), NULL);
}

/*
 * Marks
 */

static void mark_log(struct supervisor *sup)
{
	struct mark mark = {.time_ms = clock_wall_ms()};
	char line[MARK_SIZE];
	struct stat st;

	if (fstat(sup->log_fd, &st) < 0)
		return;
	mark.offset = st.st_size;
	if (mark.offset == sup->last_mark.offset && sup->last_mark.time_ms)
		return;
	/* What another time would be written at once: half a line is worse than none. */
	size_t len = mark_format(&mark, line);
	if (write(sup->marks_fd, line, len) == (ssize_t)len)
		sup->last_mark = mark;
}

static int on_mark_due(void *ctx, struct err *err)
{
	struct supervisor *sup = ctx;

	(void)err;
	sup->log_quiet = false;
	return 0;
}

static short want_log(void *ctx)
{
	struct supervisor *sup = ctx;

	return sup->log_quiet ? 0 : POLLIN;
}

static int on_log(void *ctx, short revents, struct err *err)
{
	struct supervisor *sup = ctx;

	(void)revents;
	(void)err;
	os_watch_drain(sup->log_watch);
	mark_log(sup);
	sup->log_quiet = true;
	loop_add_timer(sup->loop, clock_ms() + MARK_MS, on_mark_due, sup);
	return 0;
}

/*
 * The end
 */

static void set_usage(struct supervisor *sup)
{
	struct json *usage = json_object();

	json_set_num(usage, "cpu_s", (double)(int64_t)(sup->cpu_s * 1000) / 1000);
	if (sup->peak_bytes)
		json_set_int(usage, "memory_peak_bytes", sup->peak_bytes);
	json_free(sup->end.usage);
	sup->end.usage = usage;
}

/* Room for the end on a disk that may be full by then. */
static void make_reserve(void)
{
	static const char room[RESERVE_BYTES] = "for " ATTEMPT_EXIT;

	fs_replace(ATTEMPT_RESERVE, room, sizeof(room), 0600, FS_SYNC_NONE, NULL);
}

/* Then nobody will ask for the end. */
static bool is_dir_removed(void)
{
	struct stat st;

	return stat(".", &st) == 0 && st.st_nlink == 0;
}

/* If that is gone too, the end waits for space: until then the run is not over. */
static void write_end(struct supervisor *sup)
{
	for (int i = 0; i < END_TRIES; i++) {
		AUTO_ERR struct err err = {0};

		if (attempt_end_write(".", &sup->end, &err) == 0 || is_dir_removed())
			break;
		if (unlink(ATTEMPT_RESERVE) == 0)
			continue;
		note(sup, "cannot write down the end: %s", err.message);
		poll(NULL, 0, END_RETRY_MS);
	}
	unlink(ATTEMPT_RESERVE);
}

static void finish(struct supervisor *sup)
{
	if (sup->phase == PHASE_OVER)
		return;
	sup->phase = PHASE_OVER;
	mark_log(sup);
	sup->end.started_ms = sup->state.started_ms;
	if (!sup->end.ended_ms)
		sup->end.ended_ms = sup->ended_ms ? sup->ended_ms : clock_wall_ms();
	write_end(sup);
	note(sup, "%s, exit %d", run_state_name(sup->end.state), sup->end.exit.code);
	os_family_remove(&sup->state.family);
	loop_stop(sup->loop);
}

static void finish_as(struct supervisor *sup, enum run_state state, int code, const char *reason,
	const char *text)
{
	attempt_set_end(&sup->end, state, code, 0, "dlrun", reason, text);
	finish(sup);
}

/* The program has ended by itself. */
static void judge_exit(struct supervisor *sup)
{
	int sig = WIFSIGNALED(sup->wait_status) ? WTERMSIG(sup->wait_status) : 0;
	int code = sig ? 128 + sig : WEXITSTATUS(sup->wait_status);
	char name[8];

	if (sig) {
		AUTO_FREE char *text = mem_printf("the program was ended by signal %d (%s)", sig,
			proc_signal_name(sig, name));
		attempt_set_end(&sup->end, RUN_FAILED, code, sig, "job", "Signal", text);
	} else if (code) {
		AUTO_FREE char *text = mem_printf("the program exited with %d", code);
		attempt_set_end(&sup->end, RUN_FAILED, code, 0, "job", "Error", text);
	} else {
		attempt_set_end(&sup->end, RUN_SUCCEEDED, 0, 0, "job", "Completed", NULL);
	}
}

static void judge_stopped(struct supervisor *sup)
{
	int sig = sup->reaped && WIFSIGNALED(sup->wait_status) ? WTERMSIG(sup->wait_status) : 0;
	char time[32];

	if (sup->stop == STOP_CANCEL) {
		attempt_set_end(&sup->end, RUN_CANCELLED, 143, sig, "dlrun", "Cancelled",
			"it was cancelled");
		return;
	}
	AUTO_FREE char *text = mem_printf(
		"it reached its time limit of %s", duration_text(sup->job->timeout_ms, time));
	attempt_set_end(&sup->end, RUN_FAILED, 124, sig, "dlrun", "Timeout", text);
}

static void judge(struct supervisor *sup)
{
	if (sup->stop != STOP_NONE)
		judge_stopped(sup);
	else if (sup->reaped)
		judge_exit(sup);
	else
		attempt_set_end(
			&sup->end, RUN_LOST, 125, 0, "dlrun", "Lost", "its supervisor was killed");
	set_usage(sup);
}

/*
 * The family
 */

/* How many there are (0 with sig 0: none left). */
static int signal_family(struct supervisor *sup, int sig)
{
	int n;

	if (sup->state.family.path[0]) {
		n = os_family_is_empty(&sup->state.family) ? 0 : 1;
		if (sig && n)
			os_family_signal(&sup->state.family, sig);
		return n;
	}
	n = sup->adopted ? -1 : os_signal_descendants(sig);
	/* The session began with the program, so its group is what is known. */
	if (n < 0)
		n = kill(-sup->state.program.pid, sig) == 0;
	return n;
}

static int look_for_leftovers(void *ctx, struct err *err);

static void look_soon(struct supervisor *sup, int64_t ms)
{
	loop_remove_timer(sup->loop, sup->look_timer);
	sup->look_timer = loop_add_timer(sup->loop, clock_ms() + ms, look_for_leftovers, sup);
}

static int on_kill_time(void *ctx, struct err *err)
{
	struct supervisor *sup = ctx;

	(void)err;
	if (!sup->kill_since_ms) {
		sup->kill_since_ms = clock_ms();
		note(sup, "SIGKILL");
	}
	signal_family(sup, SIGKILL);
	sup->kill_timer = loop_add_timer(sup->loop, clock_ms() + KILL_AGAIN_MS, on_kill_time, sup);
	return 0;
}

static void end_family(struct supervisor *sup, int64_t grace_ms)
{
	signal_family(sup, SIGTERM);
	/* A stopped process would not hear it. */
	signal_family(sup, SIGCONT);
	loop_remove_timer(sup->loop, sup->kill_timer);
	sup->kill_timer = loop_add_timer(sup->loop, clock_ms() + grace_ms, on_kill_time, sup);
}

static bool gave_up(const struct supervisor *sup)
{
	return sup->kill_since_ms && clock_ms() - sup->kill_since_ms > KILL_GIVE_UP_MS;
}

static int look_for_leftovers(void *ctx, struct err *err)
{
	struct supervisor *sup = ctx;

	(void)err;
	sup->look_timer = NULL;
	if (sup->phase != PHASE_LEFTOVERS)
		return 0;
	if (signal_family(sup, 0) == 0) {
		finish(sup);
	} else if (gave_up(sup)) {
		note(sup, "some processes of the program cannot be killed");
		finish(sup);
	} else {
		look_soon(sup, EMPTY_LOOK_MS);
	}
	return 0;
}

/* What a program leaves behind would hold its GPUs: it ends with it. */
static void program_ended(struct supervisor *sup)
{
	if (sup->phase != PHASE_RUNNING)
		return;
	sup->phase = PHASE_LEFTOVERS;
	sup->ended_ms = clock_wall_ms();
	loop_remove_timer(sup->loop, sup->limit_timer);
	judge(sup);
	if (signal_family(sup, 0) == 0) {
		finish(sup);
		return;
	}
	if (sup->stop == STOP_NONE) {
		note(sup, "the program has ended and left processes behind: SIGTERM");
		end_family(sup, LEFTOVER_GRACE_MS);
	}
	look_soon(sup, EMPTY_LOOK_MS);
}

/*
 * Stopping
 */

static void stop(struct supervisor *sup, enum stop why)
{
	if (sup->stop != STOP_NONE || sup->phase > PHASE_RUNNING)
		return;
	sup->stop = why;
	note(sup, why == STOP_CANCEL ? "cancelled" : "the time limit is reached");
	if (sup->phase == PHASE_RUNNING) {
		end_family(sup, sup->job->grace_ms);
		return;
	}
	/* Our parent, unless it has ended already. */
	if (getppid() == sup->worker)
		kill(sup->worker, SIGKILL);
	finish_as(sup, RUN_CANCELLED, 143, "Cancelled", "it was cancelled before it had begun");
}

static void look_for_cancel(struct supervisor *sup)
{
	if (access(ATTEMPT_CANCEL, F_OK) == 0)
		stop(sup, STOP_CANCEL);
}

static int on_limit(void *ctx, struct err *err)
{
	(void)err;
	stop(ctx, STOP_TIMEOUT);
	return 0;
}

static void set_limit(struct supervisor *sup)
{
	int64_t passed_ms = clock_wall_ms() - sup->state.started_ms;

	if (sup->job->timeout_ms <= 0)
		return;
	/* Of an adopted program only the wall clock knows when it began. */
	if (!sup->adopted || passed_ms < 0)
		passed_ms = 0;
	sup->limit_timer = loop_add_timer(
		sup->loop, clock_ms() + sup->job->timeout_ms - passed_ms, on_limit, sup);
}

/*
 * The program
 */

/* One that is free now; whoever takes it meanwhile makes the program fail with a clear message. */
static int free_port(void)
{
	struct sockaddr_in address = {
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(address);
	AUTO_FD int fd = socket(AF_INET, SOCK_STREAM, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 ||
		getsockname(fd, (struct sockaddr *)&address, &len) < 0)
		return DEFAULT_PORT;
	return ntohs(address.sin_port);
}

/* Whether name is a path of a file that is there, seen from the program's directory. */
static bool is_file(const struct supervisor *sup, const char *name)
{
	AUTO_FREE char *cwd = fs_join(ATTEMPT_TREE, sup->job->cwd), *path = fs_join(cwd, name);

	return strchr(name, '/') && access(path, F_OK) == 0;
}

static void exec_failed(struct supervisor *sup, int errnum)
{
	const char *name = sup->job->shell ? "/bin/sh" : sup->job->command.v[0];
	bool missing = errnum == ENOENT || errnum == ENOTDIR;
	AUTO_FREE char *shown = str_escaped(name), *text = NULL, *line = NULL;

	if (missing && is_file(sup, name))
		text = mem_printf("%s: its interpreter or loader is missing", shown);
	else if (missing)
		text = mem_printf(
			"%s: %s", shown, strchr(name, '/') ? "no such file" : "command not found");
	else
		text = mem_printf("%s: %s", shown, strerror(errnum));
	line = mem_printf("dlrun: %s\n", text);
	fs_write_fd(sup->log_fd, ATTEMPT_LOG, line, strlen(line), NULL);
	/* Until it is gone its cgroup cannot be removed. */
	waitpid(sup->state.program.pid, NULL, 0);
	finish_as(
		sup, RUN_FAILED, missing ? 127 : 126, missing ? "NotFound" : "NotExecutable", text);
}

static void start_failed(struct supervisor *sup, const struct err *err)
{
	const char *text = err->message ? err->message : "it could not be started";
	AUTO_FREE char *line = mem_printf("dlrun: %s\n", text);

	note(sup, "not started: %s", text);
	/* Half a tree is of no use, and may be what the disk is full of. */
	fs_remove_tree(AT_FDCWD, ATTEMPT_TEMP, NULL);
	fs_write_fd(sup->log_fd, ATTEMPT_LOG, line, strlen(line), NULL);
	finish_as(sup, RUN_FAILED, 125, "StartFailed", text);
}

static void make_family(struct supervisor *sup)
{
	/* With our pid: another state directory may have a run of the same id. */
	AUTO_FREE char *name = mem_printf("dlrun-%s-%d-%ld", sup->job->run_id, sup->job->attempt,
		(long)sup->state.supervisor.pid);

	if (!sup->job->cgroup || !os_family_create(&sup->state.family, name))
		sup->state.family.path[0] = '\0';
}

/* A cgroup that it could not enter, or has left already, says nothing about its family. */
static void check_family(struct supervisor *sup)
{
	if (!sup->state.family.path[0] || !os_family_is_empty(&sup->state.family))
		return;
	os_family_remove(&sup->state.family);
	attempt_state_write(".", &sup->state, NULL);
}

static int fork_program(struct supervisor *sup, struct program *ret, struct err *err)
{
	AUTO_STRV struct strv env = {0};
	AUTO_FREE char *here = NULL, *tree = NULL, *cwd = NULL, *port = NULL;

	int r = fs_realpath(".", &here, err);
	if (r < 0)
		return r;
	tree = fs_join(here, ATTEMPT_TREE);
	cwd = fs_join(tree, sup->job->cwd);
	program_env(sup->job, sup->inherited, cwd, &env);
	port = mem_printf("MASTER_PORT=%d", free_port());
	env_set(&env, port, true);
	make_family(sup);
	struct program_spec spec = {
		.job = sup->job,
		.env = &env,
		.cwd = cwd,
		.output_fd = sup->log_fd,
		.lock_fd = sup->lock_fd,
		.family = &sup->state.family,
	};
	return program_fork(&spec, ret, err);
}

static void start_program(struct supervisor *sup)
{
	AUTO_ERR struct err err = {0};
	struct program program;

	if (fork_program(sup, &program, &err) < 0) {
		start_failed(sup, &err);
		return;
	}
	sup->phase = PHASE_RUNNING;
	sup->state.state = RUN_RUNNING;
	sup->state.program = (struct attempt_process){
		.pid = program.pid, .start = os_process_start(program.pid)};
	sup->state.started_ms = clock_wall_ms();
	if (attempt_state_write(".", &sup->state, &err) < 0)
		note(sup, "%s", err.message);
	mark_log(sup);
	int errnum = program_release(&program);
	if (errnum) {
		exec_failed(sup, errnum);
		return;
	}
	note(sup, "started, pid %ld", (long)program.pid);
	check_family(sup);
	set_limit(sup);
	if (sup->job->spares && write(sup->worker_fd, (char[]){WORKER_SPARE}, 1) < 0)
		note(sup, "no spare tree is made: %s", strerror(errno));
	look_for_cancel(sup);
}

/*
 * Events
 */

static void add_usage(struct supervisor *sup, const struct rusage *usage)
{
#ifdef __APPLE__
	int64_t peak = usage->ru_maxrss;
#else
	int64_t peak = (int64_t)usage->ru_maxrss * 1024;
#endif
	sup->cpu_s += (double)(usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) +
		      (double)(usage->ru_utime.tv_usec + usage->ru_stime.tv_usec) / 1e6;
	if (peak > sup->peak_bytes)
		sup->peak_bytes = peak;
}

static int on_child(void *ctx, int sig, struct err *err)
{
	struct supervisor *sup = ctx;
	struct rusage usage;
	int status;
	pid_t pid;

	(void)sig;
	(void)err;
	while ((pid = wait4(-1, &status, WNOHANG, &usage)) > 0) {
		add_usage(sup, &usage);
		if (pid != sup->state.program.pid)
			continue;
		sup->reaped = true;
		sup->wait_status = status;
	}
	if (sup->reaped)
		program_ended(sup);
	return 0;
}

static int on_wake(void *ctx, int sig, struct err *err)
{
	(void)sig;
	(void)err;
	look_for_cancel(ctx);
	return 0;
}

static short want_input(void *ctx)
{
	(void)ctx;
	return POLLIN;
}

static int on_dir(void *ctx, short revents, struct err *err)
{
	struct supervisor *sup = ctx;

	(void)revents;
	(void)err;
	os_watch_drain(sup->dir_watch);
	look_for_cancel(sup);
	return 0;
}

static void worker_done(struct supervisor *sup)
{
	AUTO_JSON struct json *result = NULL;
	AUTO_ERR struct err err = {0};

	loop_remove_fd(sup->loop, sup->worker_source);
	sup->worker_source = NULL;
	if (sup->phase != PHASE_TREE)
		return;
	if (reply_parse(sup->reply, sup->reply_len, "the process that makes the tree", &result,
		    &err) < 0) {
		start_failed(sup, &err);
		return;
	}
	note(sup, "the tree is made in %lld ms%s", (long long)json_get_int(result, "ms", 0),
		json_get_bool(result, "spare", false) ? " from a spare" : "");
	start_program(sup);
}

static int on_worker(void *ctx, short revents, struct err *err)
{
	struct supervisor *sup = ctx;
	ssize_t n = read(
		sup->worker_fd, sup->reply + sup->reply_len, sizeof(sup->reply) - sup->reply_len);

	(void)revents;
	(void)err;
	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return 0;
	if (n > 0)
		sup->reply_len += (size_t)n;
	if (n <= 0 || sup->reply_len == sizeof(sup->reply) ||
		memchr(sup->reply, '\n', sup->reply_len))
		worker_done(sup);
	return 0;
}

static int on_tick(void *ctx, struct err *err)
{
	struct supervisor *sup = ctx;
	bool watched = sup->dir_watch >= 0 && sup->log_watch >= 0 && !sup->adopted;

	(void)err;
	look_for_cancel(sup);
	mark_log(sup);
	if (sup->adopted && !attempt_process_alive(&sup->state.program))
		program_ended(sup);
	if (sup->phase != PHASE_OVER)
		loop_add_timer(sup->loop, clock_ms() + (watched ? SLOW_TICK_MS : FAST_TICK_MS),
			on_tick, sup);
	return 0;
}

/*
 * The whole course
 */

static int add_sources(struct supervisor *sup, struct err *err)
{
	static const struct loop_fd_ops dir_ops = {want_input, on_dir};
	static const struct loop_fd_ops log_ops = {want_log, on_log};
	static const struct loop_fd_ops worker_ops = {want_input, on_worker};

	int r = loop_add_signal(sup->loop, SIGCHLD, on_child, sup, err);
	if (r == 0)
		r = loop_add_signal(sup->loop, SIGTERM, on_wake, sup, err);
	if (r < 0)
		return r;
	sup->dir_watch = os_watch_open(".");
	sup->log_watch = os_watch_open(ATTEMPT_LOG);
	if (sup->dir_watch >= 0)
		loop_add_fd(sup->loop, sup->dir_watch, &dir_ops, sup);
	if (sup->log_watch >= 0)
		loop_add_fd(sup->loop, sup->log_watch, &log_ops, sup);
	if (!sup->adopted)
		sup->worker_source = loop_add_fd(sup->loop, sup->worker_fd, &worker_ops, sup);
	return on_tick(sup, err);
}

static int open_files(struct supervisor *sup, struct err *err)
{
	enum { FLAGS = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW };

	sup->marks_fd = open(ATTEMPT_MARKS, FLAGS, 0600);
	sup->notes_fd = open(ATTEMPT_NOTES, FLAGS, 0600);
	make_reserve();
	if (sup->marks_fd < 0 || sup->notes_fd < 0)
		return fs_error(err, errno, "making the files of %s", sup->job->run_id);
	return 0;
}

static void begin(struct supervisor *sup)
{
	if (sup->phase == PHASE_OVER)
		return;
	if (sup->adopted) {
		note(sup, "watching over pid %ld again", (long)sup->state.program.pid);
		set_limit(sup);
		return;
	}
	if (write(sup->worker_fd, (char[]){WORKER_TREE}, 1) == 1)
		return;
	AUTO_ERR struct err err = {0};
	err_set_errno(&err, E_RUN_START, errno, "the process that makes the tree is gone");
	start_failed(sup, &err);
}

static void supervisor_done(struct supervisor *sup)
{
	loop_free(sup->loop);
	auto_fd(&sup->marks_fd);
	auto_fd(&sup->notes_fd);
	auto_fd(&sup->dir_watch);
	auto_fd(&sup->log_watch);
	target_status_done(&sup->end);
}

int supervisor_run(const struct supervisor_start *start, struct err *err)
{
	AUTO(supervisor_done)
	struct supervisor sup = {
		.job = start->job,
		.inherited = start->env,
		.state = start->state,
		.loop = loop_new(),
		.adopted = start->state.program.pid > 0,
		.worker = start->worker,
		.worker_fd = start->worker_fd,
		.log_fd = start->log_fd,
		.lock_fd = start->lock_fd,
		.marks_fd = -1,
		.notes_fd = -1,
		.dir_watch = -1,
		.log_watch = -1,
	};

	sup.phase = sup.adopted ? PHASE_RUNNING : PHASE_TREE;
	os_become_subreaper();
	int r = open_files(&sup, err);
	if (r == 0)
		r = add_sources(&sup, err);
	/* It counts as accepted, so its record must tell. Of an adopted one somebody else may. */
	if (r < 0 && !sup.adopted)
		start_failed(&sup, err);
	if (r < 0)
		return r;
	begin(&sup);
	return sup.phase == PHASE_OVER ? 0 : loop_run(sup.loop, err);
}
