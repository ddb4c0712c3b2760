/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slots of a study on this machine: of its members (struct spec_study) at most `parallel` run at a
 * time, and nobody looks on. A directory of each study, state/studies/ID/slots:
 *
 *	slot.K       flock(2)ed as long as a member has it; K is below parallel
 *	wait.I.N     locked as long as attempt N of member I waits with its supervisor
 *	bell         open for writing wherever a slot is held, so that inotify(7) reports its end
 *	failed       with fail_fast: the run that failed last, and on the next line the directory
 *	             of its attempt
 *
 * A slot is held by the supervisor and by the program, which inherits the descriptors: it is free
 * when the last of them is gone, whatever ended them, and after a reboot.
 *
 * The lowest index is next. Each waiting member blocks in flock on the ticket before its own
 * (study_line_wait), so that the end of one wakes one process; only the first of the line looks at
 * the slots, when the bell rings and every second.
 *
 * A slot is taken before the tree, the setup and the GPUs of the attempt, and is kept by its
 * retries. Nobody waits for a slot who holds or keeps up any of these, so that no circle of waiting
 * members can arise: who has a slot waits for setups and GPUs only, who has those for nothing.
 *
 * fail_fast: members that have not begun when one has failed do not begin; those that run go on. A
 * member that was lost has not failed: how its program ended is not known. An attempt that was made
 * after the failure (restart) begins nevertheless, and so do all others once the member that failed
 * was restarted or removed.
 */
#ifndef DLRUN_TARGETS_LOCAL_STUDY_SLOT_H
#define DLRUN_TARGETS_LOCAL_STUDY_SLOT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/util/err.h"
#include "core/attempt/attempt.h"

struct study_slot;

/* Join the line of the job's study, whose directory (job->slots) is made if missing. job lives
 * longer. E_IO. */
int study_slot_new(const struct attempt_job *job, struct study_slot **ret, struct err *err);
/* The slot that these descriptors of an earlier attempt hold, which are taken over. */
struct study_slot *study_slot_keep(int fds[static ATTEMPT_SLOT_FDS]);
/* Try once: 1 granted (and stays so), 0 not yet. E_IO. */
int study_slot_try(struct study_slot *slot, struct err *err);
/* Whether no other member was before it at the last try: it waits for a slot. Otherwise
 * study_line_wait in a process of its own returns when it is worth a try. */
bool study_slot_is_first(const struct study_slot *slot);
/* Why the last try was not granted ("waits for a place in study tiger-4k2x9: 4 run, 3 before it").
 * Lives until the next try. */
const char *study_slot_why(const struct study_slot *slot);
/* After a try of the first one: readable when a slot may have become free; -1: it cannot be
 * watched. */
int study_slot_watch_fd(const struct study_slot *slot);
/* After a try: how long until the next, if nothing happens before. The more are before it the
 * longer, since that try only counts them. */
int64_t study_slot_wait_ms(const struct study_slot *slot);
/* After the grant: descriptors that hold the slot, close-on-exec: the program's child clears that.
 * There are ATTEMPT_SLOT_FDS. */
const int *study_slot_fds(const struct study_slot *slot);
/* Hand them over; frees the rest. */
void study_slot_pass(struct study_slot *slot, int ret[static ATTEMPT_SLOT_FDS]);
/* Leave the line, or give the slot back unless a program has its descriptors. */
void study_slot_free(struct study_slot *slot);

/* Block until no living member is before that of the job, which need not be in line (any more). */
int study_line_wait(const struct attempt_job *job, struct err *err);

/* The attempt in dir of the job has failed, and is not repeated. */
int study_fail(const struct attempt_job *job, const char *dir, struct err *err);
/* Whether the attempt in dir of the job is not to begin, because a member has failed: that run's
 * id. The caller frees. NULL: it may. */
char *study_failed(const struct attempt_job *job, const char *dir);

#endif
