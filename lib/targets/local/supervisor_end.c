/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/data/json.h"
#include "base/loop/proc.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/collect.h"
#include "targets/local/program.h"
#include "targets/local/supervisor.h"

/*
 * The end, written down
 */

enum {
	RESERVE_BYTES = 8192,
	FULL_BYTES = 64 << 10,
	END_RETRY_MS = 1000,
	END_TRIES = 600,
	EXIT_NOT_FOUND = 127,
};

void sup_add_usage(struct supervisor *sup, const struct rusage *usage)
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

static void sup_set_usage(struct supervisor *sup)
{
	struct json *observed = json_object(), *usage = json_sub(observed, "usage");

	json_set_num(usage, "cpu_s", (double)(int64_t)(sup->cpu_s * 1000) / 1000);
	if (sup->peak_bytes)
		json_set_int(usage, "memory_peak_bytes", sup->peak_bytes);
	json_free(sup->end.observed);
	sup->end.observed = observed;
}

void sup_make_reserve(void)
{
	static const char reserve[RESERVE_BYTES] = "for " ATTEMPT_EXIT;

	fs_replace(ATTEMPT_RESERVE, reserve, sizeof(reserve), 0600, FS_SYNC_NONE, NULL);
	fs_replace(ATTEMPT_CANCEL_RESERVE, "", 0, 0600, FS_SYNC_NONE, NULL);
}

/* If that is gone too, the end waits for space: until then the run is not over. */
static bool sup_write_end(struct supervisor *sup)
{
	bool written = false;
	struct stat st;

	for (int i = 0; !written && i < END_TRIES; i++) {
		AUTO_ERR struct err err = {0};

		written = attempt_end_write(".", &sup->end, sup->next.number, &err) == 0;
		/* If the directory is gone, no reader is left for the end. */
		if (written || (stat(".", &st) == 0 && st.st_nlink == 0))
			break;
		if (unlink(ATTEMPT_RESERVE) == 0)
			continue;
		sup_note(sup, "cannot write down the end: %s", err.message);
		poll(NULL, 0, END_RETRY_MS);
	}
	unlink(ATTEMPT_RESERVE);
	unlink(ATTEMPT_CANCEL_RESERVE);
	return written;
}

/*
 * The next attempt
 */

static void sup_make_next(struct supervisor *sup)
{
	AUTO_ERR struct err err = {0};

	/* Only what the program did counts: not a limit, a cancel, a setup, a program that is not
	 * there. */
	if (sup->job->spec.runtime.retries == 0 || sup->end.state != RUN_FAILED ||
		!str_eq(sup->end.exit.origin, "job"))
		return;
	if (attempt_next_make(sup->dir, &sup->next, &err) < 0)
		sup_note(sup, "there is no further attempt: %s", err.message);
}

void sup_finish(struct supervisor *sup)
{
	AUTO_ERR struct err err = {0};
	struct stat st;

	if (sup->phase == PHASE_OVER)
		return;
	sup->phase = PHASE_OVER;
	sup_mark_log(sup);
	/* Free the reserve behind the end of the log for what follows: no process writes it now. */
	if (fstat(sup->log_fd, &st) == 0 && ftruncate(sup->log_fd, st.st_size) < 0)
		sup_note(sup, "the log keeps its reserve: %s", strerror(errno));
	/* Collect before the end is written: after it the next attempt may begin. */
	if (collect_results(".", sup->job, COLLECT_ENDED, &err) < 0)
		sup_note(sup, "some results stay in %s/tree: %s", sup->dir, err.message);
	sup_observe_end(sup);
	sup_ranks_finish(sup);
	sup->end.started_ms = sup->state.started_ms;
	if (!sup->end.ended_ms)
		sup->end.ended_ms = sup->ended_ms ? sup->ended_ms : clock_wall_ms();
	sup_make_next(sup);
	sup_study_end(sup);
	AUTO_FREE char *cancel = sup->next.dir ? fs_join(sup->next.dir, ATTEMPT_CANCEL) : NULL;
	if (!sup_write_end(sup))
		attempt_next_done(&sup->next);
	/* Pass a cancel that came after the program had failed on to the next attempt. A cancelling
	 * process writes here, then checks for a next attempt; this is the other order. */
	else if (cancel && access(ATTEMPT_CANCEL, F_OK) == 0)
		fs_replace(cancel, "", 0, 0600, FS_SYNC_NONE, NULL);
	sup_order_spare(sup);
	sup_note(sup, "%s, exit %d", run_state_name(sup->end.state), sup->end.exit.code);
	os_family_remove(&sup->state.family);
	loop_stop(sup->loop);
}

void sup_finish_as(struct supervisor *sup, enum run_state state, int code, const char *reason,
	const char *text)
{
	attempt_set_end(&sup->end, state, code, 0, "dlrun", reason, text);
	sup_finish(sup);
}

/* Whether the last that the log has is text: printed by the shell in front of the program. */
static bool log_ends_with(const char *text)
{
	AUTO_FD int fd = open(ATTEMPT_LOG, O_RDONLY | O_CLOEXEC);
	size_t len = strlen(text);
	AUTO_FREE char *last = mem_alloc(len + 1, 1);
	struct stat st;

	return fd >= 0 && fstat(fd, &st) == 0 && st.st_size >= (off_t)len &&
	       pread(fd, last, len, st.st_size - (off_t)len) == (ssize_t)len &&
	       memcmp(last, text, len) == 0;
}

static bool sup_evaluate_not_found(struct supervisor *sup)
{
	struct roles_part part;
	sup_ranks_part(sup, &part);
	AUTO_FREE char *line = program_not_found(sup->job, &part), *shown = NULL, *text = NULL;

	if (!line || !log_ends_with(line))
		return false;
	shown = str_escaped(part.command->v[0]);
	text = mem_printf("%s: command not found", shown);
	attempt_set_end(&sup->end, RUN_FAILED, EXIT_NOT_FOUND, 0, "dlrun", "NotFound", text);
	return true;
}

/* The program has ended by itself. */
static void sup_evaluate_exit(struct supervisor *sup)
{
	int sig = WIFSIGNALED(sup->wait_status) ? WTERMSIG(sup->wait_status) : 0;
	int code = sig ? 128 + sig : WEXITSTATUS(sup->wait_status);
	char name[8];

	if (sig) {
		AUTO_FREE char *text =
			mem_printf("the program was killed by SIG%s", proc_signal_name(sig, name));
		attempt_set_end(&sup->end, RUN_FAILED, code, sig, "job", "Signal", text);
	} else if (code == EXIT_NOT_FOUND && sup_evaluate_not_found(sup)) {
		return;
	} else if (code) {
		AUTO_FREE char *text = mem_printf("the program exited with %d", code);
		attempt_set_end(&sup->end, RUN_FAILED, code, 0, "job", "Error", text);
	} else {
		attempt_set_end(&sup->end, RUN_SUCCEEDED, 0, 0, "job", "Completed", NULL);
	}
}

static void sup_evaluate_stopped(struct supervisor *sup)
{
	int sig = sup->reaped && WIFSIGNALED(sup->wait_status) ? WTERMSIG(sup->wait_status) : 0;
	char time[32];

	if (sup->stop == STOP_CANCEL) {
		attempt_set_end(&sup->end, RUN_CANCELLED, 143, sig, "dlrun", "Cancelled",
			"it was cancelled");
		return;
	}
	AUTO_FREE char *text = mem_printf(
		"it reached its time limit of %s", duration_text(sup->job->spec.timeout_ms, time));
	attempt_set_end(&sup->end, RUN_FAILED, 124, sig, "dlrun", "Timeout", text);
}

/*
 * Processes that the kernel killed for lack of memory
 */

void sup_count_kills(struct supervisor *sup)
{
	bool is_shared;

	sup->oom_kills = os_family_oom_kills(&sup->state.family, &is_shared);
}

static bool is_killed(const struct run_exit *exit)
{
	return str_eq(exit->origin, "job") &&
	       (exit->signal == SIGKILL || exit->code == 128 + SIGKILL);
}

static char *kill_text(const struct supervisor *sup, bool is_shared, const char *end)
{
	bool is_limited = sup->state.family.enforced & OS_LIMIT_MEMORY;
	bool is_whole = is_killed(&sup->end.exit);
	char size[16] = "";

	if (is_shared)
		return mem_printf("%s; meanwhile the kernel killed a process for memory in the "
				  "cgroup that it shares with others",
			end);
	if (is_limited)
		str_size(sup->job->spec.resources.memory_bytes, size);
	return mem_printf("the kernel killed %s for memory (%s%s)%s%s",
		is_whole ? "it" : "one of its processes",
		is_limited ? "limit " : "no limit of its own", size, is_whole ? "" : ", then ",
		is_whole ? "" : end);
}

/* Add to the text of the end, which stays what it was: a program may go on without one of its
 * processes. In a cgroup shared with others, only kills while the program ran can be its own. */
static void sup_evaluate_memory(struct supervisor *sup)
{
	bool is_shared;
	int64_t kills = os_family_oom_kills(&sup->state.family, &is_shared);

	if (kills <= 0 || kills <= sup->oom_kills)
		return;
	if (is_shared && (sup->oom_kills < 0 || sup->end.state == RUN_SUCCEEDED))
		return;
	AUTO_FREE char *end = TAKE(sup->end.text);
	sup->end.text = kill_text(sup, is_shared, end ? end : "the program exited with 0");
	if (!is_shared && is_killed(&sup->end.exit))
		sup->end.exit.reason = "OutOfMemory";
}

static void sup_evaluate(struct supervisor *sup)
{
	uint64_t free_bytes;

	if (sup->stop != STOP_NONE)
		sup_evaluate_stopped(sup);
	else if (sup->reaped)
		sup_evaluate_exit(sup);
	else
		attempt_set_end(
			&sup->end, RUN_LOST, 125, 0, "dlrun", "Lost", "its supervisor was killed");
	sup_evaluate_memory(sup);
	/* Before the reserve is given back. */
	if (sup->end.state == RUN_FAILED && str_eq(sup->end.exit.origin, "job") &&
		fs_free_bytes(".", &free_bytes, NULL) == 0 && free_bytes <= FULL_BYTES) {
		AUTO_FREE char *end = TAKE(sup->end.text);
		sup->end.text =
			mem_printf("%s; the disk is full, its output may end too early", end);
	}
	sup_set_usage(sup);
}

enum {
	LEFTOVER_GRACE_MS = 2000,
	EMPTY_POLL_MS = 20,
	KILL_AGAIN_MS = 500,
	KILL_GIVE_UP_MS = 30000, /* processes that wait for a dead disk cannot be killed */
};

/*
 * The family
 */

/* Each session began with a program, so its group is what is known. */
static int sup_signal_groups(const struct supervisor *sup, int sig)
{
	int n = kill(-sup->child, sig) == 0;

	for (int i = 1; i < sup->state.n_ranks; i++)
		n += kill(-sup->state.ranks[i].program.pid, sig) == 0;
	return n;
}

/* How many there are (0 with sig 0: none left). */
static int sup_signal_family(struct supervisor *sup, int sig)
{
	AUTO_FREE char *mark = attempt_mark(sup->dir);
	int n;

	if (os_family_is(&sup->state.family)) {
		n = os_family_is_empty(&sup->state.family) ? 0 : 1;
		if (sig && n)
			os_family_signal(&sup->state.family, sig);
		return n;
	}
	n = sup->adopted ? -1 : os_signal_descendants(sig, mark);
	return n < 0 ? sup_signal_groups(sup, sig) : n;
}

static int sup_on_leftovers(void *ctx, struct err *err);

static void sup_check_leftovers_in(struct supervisor *sup, int64_t ms)
{
	loop_remove_timer(sup->loop, sup->poll_timer);
	sup->poll_timer = loop_add_timer(sup->loop, clock_ms() + ms, sup_on_leftovers, sup);
}

static int sup_on_kill_time(void *ctx, struct err *err UNUSED)
{
	struct supervisor *sup = ctx;

	if (!sup->kill_since_ms) {
		sup->kill_since_ms = clock_ms();
		sup_note(sup, "SIGKILL");
	}
	sup_signal_family(sup, SIGKILL);
	sup->kill_timer =
		loop_add_timer(sup->loop, clock_ms() + KILL_AGAIN_MS, sup_on_kill_time, sup);
	return 0;
}

void sup_end_family(struct supervisor *sup, int sig, int64_t grace_ms)
{
	sup_signal_family(sup, sig);
	/* A stopped process would not hear it. */
	sup_signal_family(sup, SIGCONT);
	loop_remove_timer(sup->loop, sup->kill_timer);
	sup->kill_timer = loop_add_timer(sup->loop, clock_ms() + grace_ms, sup_on_kill_time, sup);
}

/* Handle the end of the family: no process is left, or those that are cannot be killed. */
static void sup_family_gone(struct supervisor *sup)
{
	loop_remove_timer(sup->loop, sup->kill_timer);
	sup->kill_timer = NULL;
	sup->kill_since_ms = 0;
	if (sup->phase == PHASE_SETUP_LEFT)
		sup_setup_over(sup);
	else
		sup_finish(sup);
}

static int sup_on_leftovers(void *ctx, struct err *err UNUSED)
{
	struct supervisor *sup = ctx;

	sup->poll_timer = NULL;
	if (sup_signal_family(sup, 0) == 0) {
		sup_family_gone(sup);
	} else if (sup->kill_since_ms && clock_ms() - sup->kill_since_ms > KILL_GIVE_UP_MS) {
		sup_note(sup, "some processes cannot be killed");
		sup_family_gone(sup);
	} else {
		sup_check_leftovers_in(sup, EMPTY_POLL_MS);
	}
	return 0;
}

/* End leftover processes with their parent: they would hold GPUs and write where others read. */
static void sup_end_leftovers(struct supervisor *sup)
{
	if (sup_signal_family(sup, 0) == 0) {
		sup_family_gone(sup);
		return;
	}
	if (sup->stop == STOP_NONE) {
		sup_note(sup, "it has ended and left processes behind: SIGTERM");
		sup_end_family(sup, SIGTERM, LEFTOVER_GRACE_MS);
	}
	sup_check_leftovers_in(sup, EMPTY_POLL_MS);
}

void sup_setup_ended(struct supervisor *sup)
{
	if (sup->phase != PHASE_SETUP_RUNS)
		return;
	sup->phase = PHASE_SETUP_LEFT;
	sup_end_leftovers(sup);
}

void sup_program_ended(struct supervisor *sup)
{
	if (sup->phase != PHASE_RUNNING)
		return;
	sup->phase = PHASE_LEFTOVERS;
	sup->ended_ms = clock_wall_ms();
	loop_remove_timer(sup->loop, sup->limit_timer);
	loop_remove_timer(sup->loop, sup->signal_timer);
	sup_evaluate(sup);
	sup_end_leftovers(sup);
}

/*
 * Stopping
 */

void sup_end_worker(struct supervisor *sup)
{
	/* Our parent, unless it has ended already. */
	if (getppid() == sup->worker)
		kill(sup->worker, SIGKILL);
}

void sup_cancel_unbegun(struct supervisor *sup, const char *text)
{
	sup_end_worker(sup);
	sup_finish_as(sup, RUN_CANCELLED, 143, "Cancelled", text);
}

void sup_finish_unbegun(struct supervisor *sup, const char *text)
{
	if (sup->stop == STOP_WITHDRAW)
		sup_finish_as(sup, RUN_FAILED, 125, "Interrupted", ATTEMPT_WITHDRAWN);
	else
		sup_finish_as(sup, RUN_CANCELLED, 143, "Cancelled", text);
}

static const char *sup_stop_note(enum stop why)
{
	if (why == STOP_WITHDRAW)
		return "taken back";
	return why == STOP_CANCEL ? "cancelled" : "the time limit is reached";
}

static void sup_stop(struct supervisor *sup, enum stop why)
{
	const struct spec *spec = &sup->job->spec;

	/* The first rank that failed has decided how it ends. */
	if (sup->stop != STOP_NONE || sup->phase > PHASE_RUNNING || sup_ranks_is_ending(sup))
		return;
	sup->stop = why;
	sup_note(sup, "%s", sup_stop_note(why));
	if (sup->phase == PHASE_SETUP_LEFT)
		return;
	if (sup->phase == PHASE_RUNNING || sup->phase == PHASE_SETUP_RUNS) {
		bool is_program = sup->phase == PHASE_RUNNING && spec->runtime.stop_signal;
		sup_end_family(
			sup, is_program ? spec->runtime.stop_signal : SIGTERM, spec->grace_ms);
		return;
	}
	sup_end_worker(sup);
	sup_finish_unbegun(sup, "it was cancelled before it had begun");
}

void sup_check_cancel(struct supervisor *sup)
{
	if (access(ATTEMPT_CANCEL, F_OK) == 0)
		sup_stop(sup, STOP_CANCEL);
	else if (sup->phase < PHASE_RUNNING && access(ATTEMPT_WITHDRAW, F_OK) == 0)
		sup_stop(sup, STOP_WITHDRAW);
}

static int sup_on_limit(void *ctx, struct err *err UNUSED)
{
	sup_stop(ctx, STOP_TIMEOUT);
	return 0;
}

/* Signal the program's group: a program that handles the signal saves its state, any other would
 * end. */
static int sup_on_signal_due(void *ctx, struct err *err UNUSED)
{
	struct supervisor *sup = ctx;
	char name[8];

	if (sup->stop != STOP_NONE || sup->phase != PHASE_RUNNING)
		return 0;
	sup_note(sup, "the time limit is near: SIG%s",
		proc_signal_name(sup->job->spec.runtime.signal, name));
	if (sup->state.n_ranks)
		sup_ranks_signal(sup, sup->job->spec.runtime.signal);
	else
		kill(-sup->state.program.pid, sup->job->spec.runtime.signal);
	return 0;
}

void sup_set_limit(struct supervisor *sup)
{
	int64_t passed_ms = clock_wall_ms() - sup->state.started_ms, limit_ms;

	if (sup->job->spec.timeout_ms <= 0)
		return;
	/* Only the wall clock knows when an adopted program began. */
	if (!sup->adopted || passed_ms < 0)
		passed_ms = 0;
	limit_ms = clock_ms() + sup->job->spec.timeout_ms - passed_ms;
	sup->limit_timer = loop_add_timer(sup->loop, limit_ms, sup_on_limit, sup);
	limit_ms -= sup->job->spec.runtime.signal_before_ms;
	/* An earlier supervisor has sent the signal if its time has passed. */
	if (sup->job->spec.runtime.signal && (!sup->adopted || limit_ms > clock_ms()))
		sup->signal_timer = loop_add_timer(sup->loop, limit_ms, sup_on_signal_due, sup);
}
