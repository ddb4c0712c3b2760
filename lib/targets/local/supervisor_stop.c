/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/local/supervisor_impl.h"

#include <signal.h>
#include <unistd.h>

#include "base/loop/proc.h"
#include "base/util/auto.h"
#include "base/util/clock.h"

enum {
	LEFTOVER_GRACE_MS = 2000,
	EMPTY_LOOK_MS = 20,
	KILL_AGAIN_MS = 500,
	KILL_GIVE_UP_MS = 30000, /* processes that wait for a dead disk cannot be killed */
};

/*
 * The family
 */

/* How many there are (0 with sig 0: none left). */
static int signal_family(struct supervisor *sup, int sig)
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
	/* The session began with the program, so its group is what is known. */
	if (n < 0)
		n = kill(-sup->child, sig) == 0;
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
		sup_note(sup, "SIGKILL");
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

/* Handle the end of the family: no process is left, or those that are cannot be killed. */
static void family_gone(struct supervisor *sup)
{
	loop_remove_timer(sup->loop, sup->kill_timer);
	sup->kill_timer = NULL;
	sup->kill_since_ms = 0;
	if (sup->phase == PHASE_SETUP_LEFT)
		sup_setup_over(sup);
	else
		sup_finish(sup);
}

static int look_for_leftovers(void *ctx, struct err *err)
{
	struct supervisor *sup = ctx;

	(void)err;
	sup->look_timer = NULL;
	if (signal_family(sup, 0) == 0) {
		family_gone(sup);
	} else if (gave_up(sup)) {
		sup_note(sup, "some processes cannot be killed");
		family_gone(sup);
	} else {
		look_soon(sup, EMPTY_LOOK_MS);
	}
	return 0;
}

/* End leftover processes with their parent: they would hold GPUs and write where others read. */
static void end_leftovers(struct supervisor *sup)
{
	if (signal_family(sup, 0) == 0) {
		family_gone(sup);
		return;
	}
	if (sup->stop == STOP_NONE) {
		sup_note(sup, "it has ended and left processes behind: SIGTERM");
		end_family(sup, LEFTOVER_GRACE_MS);
	}
	look_soon(sup, EMPTY_LOOK_MS);
}

void sup_setup_ended(struct supervisor *sup)
{
	if (sup->phase != PHASE_SETUP_RUNS)
		return;
	sup->phase = PHASE_SETUP_LEFT;
	end_leftovers(sup);
}

void sup_program_ended(struct supervisor *sup)
{
	if (sup->phase != PHASE_RUNNING)
		return;
	sup->phase = PHASE_LEFTOVERS;
	sup->ended_ms = clock_wall_ms();
	loop_remove_timer(sup->loop, sup->limit_timer);
	loop_remove_timer(sup->loop, sup->signal_timer);
	sup_judge(sup);
	end_leftovers(sup);
}

/*
 * Stopping
 */

void sup_stop(struct supervisor *sup, enum stop why)
{
	if (sup->stop != STOP_NONE || sup->phase > PHASE_RUNNING)
		return;
	sup->stop = why;
	sup_note(sup, why == STOP_CANCEL ? "cancelled" : "the time limit is reached");
	if (sup->phase == PHASE_SETUP_LEFT)
		return;
	if (sup->phase == PHASE_RUNNING || sup->phase == PHASE_SETUP_RUNS) {
		end_family(sup, sup->job->grace_ms);
		return;
	}
	/* Our parent, unless it has ended already. */
	if (getppid() == sup->worker)
		kill(sup->worker, SIGKILL);
	sup_finish_as(sup, RUN_CANCELLED, 143, "Cancelled", "it was cancelled before it had begun");
}

void sup_look_for_cancel(struct supervisor *sup)
{
	if (access(ATTEMPT_CANCEL, F_OK) == 0)
		sup_stop(sup, STOP_CANCEL);
}

static int on_limit(void *ctx, struct err *err)
{
	(void)err;
	sup_stop(ctx, STOP_TIMEOUT);
	return 0;
}

/* Signal the program's group: a program that handles the signal saves its state, any other would
 * end. */
static int on_signal_due(void *ctx, struct err *err)
{
	struct supervisor *sup = ctx;
	char name[8];

	(void)err;
	if (sup->stop != STOP_NONE || sup->phase != PHASE_RUNNING)
		return 0;
	sup_note(sup, "the time limit is near: SIG%s",
		proc_signal_name(sup->job->world.signal, name));
	kill(-sup->state.program.pid, sup->job->world.signal);
	return 0;
}

/* An earlier supervisor has sent the signal if its time has passed. */
static void set_signal(struct supervisor *sup, int64_t limit_ms)
{
	int64_t at_ms = limit_ms - sup->job->world.signal_before_ms;

	if (sup->job->world.signal && (!sup->adopted || at_ms > clock_ms()))
		sup->signal_timer = loop_add_timer(sup->loop, at_ms, on_signal_due, sup);
}

void sup_set_limit(struct supervisor *sup)
{
	int64_t passed_ms = clock_wall_ms() - sup->state.started_ms, limit_ms;

	if (sup->job->timeout_ms <= 0)
		return;
	/* Only the wall clock knows when an adopted program began. */
	if (!sup->adopted || passed_ms < 0)
		passed_ms = 0;
	limit_ms = clock_ms() + sup->job->timeout_ms - passed_ms;
	sup->limit_timer = loop_add_timer(sup->loop, limit_ms, on_limit, sup);
	set_signal(sup, limit_ms);
}
