/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rights that a run needs of its user's Role, from its Job to its results, and the effect of
 * missing ones. An engine: questions as in preflight.h, and the meaning of the replies.
 */
#ifndef DLRUN_KUBE_JOB_RIGHTS_H
#define DLRUN_KUBE_JOB_RIGHTS_H

#include "kube/job/preflight.h"

/* Subjects of questions from here on are rights. */
enum { KUBE_RIGHTS_FROM = 1000, KUBE_RIGHTS_MAX = 40 };

/* Adds at most KUBE_RIGHTS_MAX reviews of one deed each: all that is needed and that rules, the
 * answer to a SelfSubjectRulesReview (NULL: none), does not grant. */
void kube_rights_ask(
	const struct kube_run *run, const struct json *rules, struct kube_questions *ret);
/* Report one problem that names all missing rights that the run cannot do without, and one note for
 * the rest. found_jobset: the cluster would accept the run as a JobSet. */
void kube_rights_judge(const struct kube_run *run, const struct kube_questions *questions,
	const struct kube_reply *replies, bool found_jobset, struct kube_findings *ret);
/* Whether a JobSet could be neither read nor removed. */
bool kube_rights_lack_jobset(
	const struct kube_questions *questions, const struct kube_reply *replies);

#endif
