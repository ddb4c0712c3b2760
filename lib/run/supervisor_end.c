#include "run/supervisor_impl.h"

#include <errno.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/clock.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/proc.h"

enum {
	RESERVE_BYTES = 8192,
	END_RETRY_MS = 1000,
	END_TRIES = 600,
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

static void set_usage(struct supervisor *sup)
{
	struct json *usage = json_object();

	json_set_num(usage, "cpu_s", (double)(int64_t)(sup->cpu_s * 1000) / 1000);
	if (sup->peak_bytes)
		json_set_int(usage, "memory_peak_bytes", sup->peak_bytes);
	json_free(sup->end.usage);
	sup->end.usage = usage;
}

void sup_make_reserve(void)
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
		sup_note(sup, "cannot write down the end: %s", err.message);
		poll(NULL, 0, END_RETRY_MS);
	}
	unlink(ATTEMPT_RESERVE);
}

void sup_finish(struct supervisor *sup)
{
	if (sup->phase == PHASE_OVER)
		return;
	sup->phase = PHASE_OVER;
	sup_mark_log(sup);
	sup->end.started_ms = sup->state.started_ms;
	if (!sup->end.ended_ms)
		sup->end.ended_ms = sup->ended_ms ? sup->ended_ms : clock_wall_ms();
	write_end(sup);
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

void sup_judge(struct supervisor *sup)
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
