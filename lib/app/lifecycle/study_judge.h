/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stopping members of a study that the others have left behind (stop_rule.h), by whoever looks at
 * the study on the machine that it was made on. A judgement is written to the study's directory,
 * under a lock, before the member is cancelled: none is judged twice, and one that was stopped is
 * cancelled again if whoever judged it was killed before.
 */
#ifndef DLRUN_APP_LIFECYCLE_STUDY_JUDGE_H
#define DLRUN_APP_LIFECYCLE_STUDY_JUDGE_H

#include "base/util/auto.h"
#include "base/util/err.h"
#include "core/context/session.h"
#include "core/record/run.h"
#include "core/study/study.h"

/* Of a record: why the rule has stopped the run, one sentence without its name. */
#define STUDY_STOPPED "stopped"

struct study_judge;
/* *ret is NULL for a study without a rule. */
int study_judge_open(struct session *session, const struct study *study, struct study_judge **ret,
	struct err *err);
void study_judge_free(struct study_judge *judge);
AUTO_POINTER(struct study_judge, study_judge_free)
/* Read what is new in the event files of the members that are here (mirror.h), and cancel those
 * that the rule stops, without waiting for their ends. Adds a sentence for each to ret_stopped. */
int study_judge_members(struct study_judge *judge, const struct run_list *runs,
	struct strv *ret_stopped, struct err *err);

#endif
