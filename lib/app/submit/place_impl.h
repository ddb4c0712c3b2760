/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The choice among the places of a run (places.h): all of them are asked at the same time whether
 * they have room. In the order given the first that has room now is chosen, or that the run is to
 * wait for (--wait-for); where there is none, the first in which the run would wait. Places that
 * take no such run, or do not answer, are passed over, as are those that have refused it; those
 * that the run has left before are last.
 */
#ifndef DLRUN_APP_SUBMIT_PLACE_IMPL_H
#define DLRUN_APP_SUBMIT_PLACE_IMPL_H

#include "app/prepare/prepare.h"

/* Make submit, whose place_name is set, ready for a question to its target: name, spec and target.
 * An error before it has a name is one of the run, and of no place. */
typedef int place_prepare_fn(struct submit *submit, struct err *err);

/* Decide about submit->places, and set submit->place_name (borrowed from them) to the chosen one.
 * common: what the submit of each place begins with; its run is borrowed. E_TARGET of an unknown
 * place; the error of the run itself; where nobody takes it that of a silent place, which is set;
 * else one error that names each place with its reason. silent (or NULL): names of places that did
 * not answer when another run was asked for; they count as silent, and more are added. Blocks. */
int place_choose(struct submit *submit, const struct submit *common, place_prepare_fn *prepare,
	struct strv *silent, struct err *err);

/* The message of an error of a place without the name in front: of "target lab: …", or of "gpu1: …"
 * of ssh:gpu1. Borrowed from why. */
const char *place_reason(const char *place, const struct err *why);
/* "lab refused it: …". The caller frees. */
char *place_refused_text(const char *place, const struct err *why);
/* The same of one of places, where that is noted; NULL, and nothing is noted: no other place is
 * left, or name (which may be NULL) is none of them. */
char *place_leave_refused(struct run_places *places, const char *name, const struct err *why);

/* Whether an error is an answer of the target itself that another try will not change. */
bool place_is_refusal(const struct err *why);

/* submit_check at the place of the run, which is chosen first where there are several. *ret_silent:
 * none takes it and some do not answer (err): submit is as for one of those. */
int submit_check_places(struct submit *submit, bool *ret_silent, struct err *err);

#endif
