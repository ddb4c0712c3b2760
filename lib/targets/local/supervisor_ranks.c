/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "targets/local/program.h"
#include "targets/local/supervisor.h"

enum { RANK_MARK_MS = 1000 };

struct supervisor_rank {
	int log_fd, marks_fd; /* of rank 0: the attempt's own, closed by it */
	struct mark last_mark;
	struct program program; /* until it is released */
};

struct supervisor_ranks {
	struct supervisor_rank v[ATTEMPT_RANKS_MAX];
	int first;       /* the first that failed by itself; -1: none */
	int failed;      /* its status of wait4 */
	bool is_decided; /* those that decide have ended well: the others are ended */
	struct loop_timer *timer;
};

int sup_nodes(const struct supervisor *sup)
{
	int nodes = sup->job->spec.resources.nodes;

	return nodes > ATTEMPT_RANKS_MAX ? ATTEMPT_RANKS_MAX : nodes > 1 ? nodes : 1;
}

void sup_ranks_free(struct supervisor *sup)
{
	struct supervisor_ranks *ranks = sup->ranks;

	if (!ranks)
		return;
	loop_remove_timer(sup->loop, ranks->timer);
	for (int i = 1; i < ATTEMPT_RANKS_MAX; i++) {
		auto_fd(&ranks->v[i].log_fd);
		auto_fd(&ranks->v[i].marks_fd);
	}
	free(ranks);
	sup->ranks = NULL;
}

/*
 * Logs of the ranks behind the first one. They are looked at once a second: the kernel has few
 * watches for all supervisors.
 */

void sup_ranks_mark(struct supervisor *sup)
{
	for (int i = 1; sup->ranks && i < sup->state.n_ranks; i++) {
		struct supervisor_rank *rank = &sup->ranks->v[i];
		struct stat st;

		if (rank->marks_fd >= 0 && fstat(rank->log_fd, &st) == 0)
			sup_mark(rank->marks_fd, st.st_size, &rank->last_mark);
	}
}

static int sup_ranks_on_timer(void *ctx, struct err *err UNUSED)
{
	struct supervisor *sup = ctx;

	sup->ranks->timer = NULL;
	sup_ranks_mark(sup);
	if (sup->phase != PHASE_OVER)
		sup->ranks->timer = loop_add_timer(
			sup->loop, clock_ms() + RANK_MARK_MS, sup_ranks_on_timer, sup);
	return 0;
}

static int sup_ranks_open(int number, struct supervisor_rank *rank, struct err *err)
{
	enum { FLAGS = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW };
	AUTO_FREE char *log = mem_printf(ATTEMPT_RANKS "/%d/" ATTEMPT_LOG, number);
	AUTO_FREE char *marks = mem_printf(ATTEMPT_RANKS "/%d/" ATTEMPT_MARKS, number);

	rank->log_fd = open(log, FLAGS, 0600);
	rank->marks_fd = open(marks, FLAGS, 0600);
	if (rank->log_fd < 0 || rank->marks_fd < 0)
		return fs_error(err, errno, "making the log of rank %d", number);
	return 0;
}

static int sup_ranks_new(struct supervisor *sup, struct err *err)
{
	struct supervisor_ranks *ranks = mem_alloc(1, sizeof(*ranks));
	int r = 0;

	sup->ranks = ranks;
	ranks->first = -1;
	for (int i = 0; i < ATTEMPT_RANKS_MAX; i++)
		ranks->v[i] = (struct supervisor_rank){
			.log_fd = -1, .marks_fd = -1, .program = {.gate_fd = -1, .report_fd = -1}};
	for (int i = 1; r == 0 && i < sup_nodes(sup); i++)
		r = sup_ranks_open(i, &ranks->v[i], err);
	return r;
}

/* After another supervisor: what it has opened is opened again. */
void sup_ranks_adopt(struct supervisor *sup)
{
	AUTO_ERR struct err err = {0};

	if (sup->state.n_ranks == 0)
		return;
	if (sup_ranks_new(sup, &err) < 0)
		sup_note(sup, "%s", err.message);
	sup_ranks_on_timer(sup, NULL);
}

/*
 * The start
 */

static int sup_ranks_fork(struct supervisor *sup, struct err *err)
{
	struct attempt_state *state = &sup->state;
	int r = sup_ranks_new(sup, err);

	for (int i = 0; r == 0 && i < sup_nodes(sup); i++) {
		struct supervisor_rank *rank = &sup->ranks->v[i];
		int log_fd = i ? rank->log_fd : sup->log_fd;

		r = sup_fork_rank(sup, i, log_fd, &rank->program, err);
		if (r < 0)
			break;
		pid_t pid = rank->program.pid;
		state->ranks[state->n_ranks++] = (struct attempt_rank){
			.program = {.pid = pid, .start = os_process_start(pid)},
			.state = RUN_RUNNING,
		};
	}
	return r;
}

/* Ranks from number on wait at their gates, and end when these close; each has those of the ranks
 * before it, too. */
static void sup_ranks_drop(struct supervisor *sup, int number)
{
	for (int i = number; i < sup->state.n_ranks; i++) {
		struct program *program = &sup->ranks->v[i].program;

		auto_fd(&program->gate_fd);
		auto_fd(&program->report_fd);
		program->gate_fd = program->report_fd = -1;
	}
	for (int i = number; i < sup->state.n_ranks; i++)
		waitpid(sup->ranks->v[i].program.pid, NULL, 0);
}

int sup_ranks_start(struct supervisor *sup, pid_t *ret_first, struct err *err)
{
	int r = sup_ranks_fork(sup, err);

	if (r < 0) {
		sup_ranks_drop(sup, 0);
		sup->state.n_ranks = 0;
		return r;
	}
	*ret_first = sup->state.ranks[0].program.pid;
	return 0;
}

int sup_ranks_release(struct supervisor *sup)
{
	for (int i = 0; i < sup->state.n_ranks; i++) {
		int errnum = program_release(&sup->ranks->v[i].program);

		if (errnum == 0) {
			sup_note(sup, "rank %d: pid %ld", i, (long)sup->state.ranks[i].program.pid);
			continue;
		}
		sup->ranks->first = i;
		/* The others were let go a moment ago, or are not. */
		sup_ranks_drop(sup, i + 1);
		for (int k = 0; k < i; k++) {
			kill(-sup->state.ranks[k].program.pid, SIGKILL);
			waitpid(sup->state.ranks[k].program.pid, NULL, 0);
		}
		sup->state.program = sup->state.ranks[i].program;
		sup->state.n_ranks = 0;
		return errnum;
	}
	sup_ranks_on_timer(sup, NULL);
	return 0;
}

/*
 * The end
 */

/* Ranks other than the first one that failed were ended with it, and those that do not decide with
 * those that do. */
static void sup_rank_set_end(struct supervisor *sup, int number, int status)
{
	struct attempt_rank *rank = &sup->state.ranks[number];
	int sig = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
	int code = sig ? 128 + sig : WEXITSTATUS(status);
	bool is_peer =
		sup->ranks->is_decided || (sup->ranks->first >= 0 && sup->ranks->first != number);
	bool is_stopped = sup->stop != STOP_NONE || is_peer;

	rank->exit = (struct run_exit){.known = true,
		.code = code,
		.signal = sig,
		.origin = "job",
		.reason = sig    ? "Signal"
			  : code ? "Error"
				 : "Completed"};
	rank->state = code ? RUN_FAILED : RUN_SUCCEEDED;
	if (!is_stopped)
		return;
	rank->state = RUN_CANCELLED;
	rank->exit.origin = "dlrun";
	rank->exit.reason = sup->ranks->is_decided      ? "RoleEnded"
			    : is_peer                   ? "PeerEnded"
			    : sup->stop == STOP_TIMEOUT ? "Timeout"
							: "Cancelled";
}

static bool sup_ranks_are_over(const struct supervisor *sup)
{
	for (int i = 0; i < sup->state.n_ranks; i++)
		if (sup->state.ranks[i].state == RUN_RUNNING)
			return false;
	return true;
}

static bool sup_rank_decides(const struct supervisor *sup, int number)
{
	struct roles_part part;

	roles_of_rank(&sup->job->spec, number, &part);
	return part.is_deciding;
}

/* Whether a rank has ended well, even if its end was not reaped yet: others fail by it a moment
 * later, and the kernel may report them first. */
static bool sup_rank_has_succeeded(const struct supervisor *sup, int number)
{
	const struct attempt_rank *rank = &sup->state.ranks[number];
	siginfo_t info = {0};

	if (rank->state != RUN_RUNNING)
		return rank->state == RUN_SUCCEEDED;
	return waitid(P_PID, (id_t)rank->program.pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
	       info.si_pid && info.si_code == CLD_EXITED && info.si_status == 0;
}

/* Whether all ranks of the role that ends the run have ended well, and others have not. */
static bool sup_ranks_have_decided(const struct supervisor *sup)
{
	if (!sup->job->spec.roles.ends_with)
		return false;
	for (int i = 0; i < sup->state.n_ranks; i++)
		if (sup_rank_decides(sup, i) && !sup_rank_has_succeeded(sup, i))
			return false;
	return true;
}

static char *sup_rank_text(const struct supervisor *sup, int number)
{
	struct roles_part part;

	roles_of_rank(&sup->job->spec, number, &part);
	return roles_part_text(&part);
}

static int sup_rank_of(const struct supervisor *sup, pid_t pid)
{
	for (int i = 0; sup->ranks && i < sup->state.n_ranks; i++)
		if (sup->state.ranks[i].program.pid == pid &&
			sup->state.ranks[i].state == RUN_RUNNING)
			return i;
	return -1;
}

/* The end of a rank: whether the run ends with it, well or not, unless it is ending already. */
static void sup_rank_decide(struct supervisor *sup, int number, int status)
{
	struct supervisor_ranks *ranks = sup->ranks;
	bool is_open = !sup_ranks_is_ending(sup) && sup->stop == STOP_NONE;

	if (is_open && status && !sup_ranks_have_decided(sup)) {
		ranks->first = number;
		ranks->failed = status;
	}
	if (is_open && status)
		ranks->is_decided = ranks->first < 0;
	sup_rank_set_end(sup, number, status);
	if (is_open && !status)
		ranks->is_decided = sup_ranks_have_decided(sup);
	if (!is_open || !sup_ranks_is_ending(sup) || sup_ranks_are_over(sup))
		return;
	AUTO_FREE char *name = sup_rank_text(sup, number);
	AUTO_FREE char *why = ranks->is_decided
				      ? mem_printf("%s has ended", sup->job->spec.roles.ends_with)
				      : mem_printf("%s has failed", name);
	const int stop_signal = sup->job->spec.runtime.stop_signal;
	sup_note(sup, "%s: the others are ended", why);
	sup_end_family(sup, stop_signal ? stop_signal : SIGTERM, sup->job->spec.grace_ms);
}

int sup_ranks_ended(struct supervisor *sup, pid_t pid, int status)
{
	AUTO_ERR struct err err = {0};
	int number = sup_rank_of(sup, pid);

	if (number < 0)
		return 0;
	sup_rank_decide(sup, number, status);
	if (attempt_state_write(".", &sup->state, &err) < 0)
		sup_note(sup, "%s", err.message);
	if (!sup_ranks_are_over(sup))
		return 0;
	sup->wait_status = sup->ranks->first >= 0   ? sup->ranks->failed
			   : sup->ranks->is_decided ? 0
						    : status;
	return 1;
}

bool sup_ranks_is_ending(const struct supervisor *sup)
{
	return sup->ranks && (sup->ranks->first >= 0 || sup->ranks->is_decided);
}

void sup_ranks_part(const struct supervisor *sup, struct roles_part *ret)
{
	bool has_failed = sup->ranks && sup->ranks->first >= 0;

	roles_of_rank(&sup->job->spec, has_failed ? sup->ranks->first : 0, ret);
}

void sup_ranks_signal(const struct supervisor *sup, int sig)
{
	for (int i = 0; i < sup->state.n_ranks; i++)
		if (sup->state.ranks[i].state == RUN_RUNNING)
			kill(-sup->state.ranks[i].program.pid, sig);
}

void sup_ranks_finish(struct supervisor *sup)
{
	const char *text = sup->end.text;

	sup_ranks_mark(sup);
	for (int i = 0; i < sup->state.n_ranks; i++)
		if (sup->state.ranks[i].state == RUN_RUNNING) {
			sup->state.ranks[i].state = sup->end.state;
			sup->state.ranks[i].exit = sup->end.exit;
		}
	json_free(sup->end.ranks);
	sup->end.ranks = attempt_ranks_json(&sup->state, sup->job->attempt);
	if (!sup->ranks || sup->ranks->first < 0 || !sup->state.n_ranks || !text)
		return;
	AUTO_FREE char *name = sup_rank_text(sup, sup->ranks->first);
	sup->end.text = mem_printf("%s: %s", name, text);
	free((char *)text);
}
