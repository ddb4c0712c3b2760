/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clean-up of an attempt in a cluster: the Job (or JobSet) and the objects that go along with it
 * are removed, or these are given to the Job, by a submit, cancel, forget or state request. All of
 * it can be repeated. Objects that go along with a Job are not removed before the removal of the
 * Job was accepted.
 *
 * The cluster has no list of what a killed submit has left to do, so the directory of the attempt
 * here tells it:
 *
 *	(the directory)  something may have been sent
 *	accepted         the cluster has the Job; "adopted" in it: its Secret and Service go with
 *	                 it
 *	refused          the cluster does not have the Job, and nothing is on its way
 *	missed           when the Job was first found to be missing
 *	gated            a ConfigMap is its gate, too
 *	code             ConfigMaps have its code
 *	withdrawn        it waited without a node, and its gate was closed: the Job is removed,
 *	                 unless it was changed meanwhile
 *
 * Of the first attempts of a study's members, which have one Job, that is in the directory of the
 * study, but for
 *
 *	stopped          of a cancelled member: no program of it begins any more
 */
#ifndef DLRUN_TARGETS_KUBE_KUBE_RECONCILE_H
#define DLRUN_TARGETS_KUBE_KUBE_RECONCILE_H

#include "targets/kube/target_kube.h"

enum {
	KUBE_RECONCILE_JOB = 1,   /* remove it */
	KUBE_RECONCILE_PARTS = 2, /* remove Secret and Service, or ConfigMap */
	KUBE_RECONCILE_CLAIM = 4, /* remove the claim of the run's results */
	KUBE_RECONCILE_ADOPT = 8, /* Secret and Service, or ConfigMap, belong to the Job */
	/* Alone: end a member of a study that is marked as cancelled. Its index gets a mark in the
	 * ConfigMap, by which no pod of it begins, and the pod that it has is removed. Members
	 * that are ended in one turn of the loop share the requests; their marks that they were
	 * cancelled are made durable together before. When nothing is left to run
	 * in the study its Job ends, so that logs of those that have ended stay. */
	KUBE_RECONCILE_MEMBER = 16,
};

struct kube_reconcile_request {
	const struct kube_handle *handle;
	unsigned what;           /* KUBE_RECONCILE_ */
	bool in_foreground;      /* the Job is there until its pods have ended */
	const struct json *made; /* with ADOPT: the Job or JobSet, as the server has it */
	int64_t deadline_ms;
	/* From the loop, once. error: what kept it from being done (moved or cleared by the
	 * caller); what is not there, and what only dlrun's tidiness asks for and may not be
	 * touched, is none. */
	void (*done)(void *ctx, struct err *error);
	void *ctx;
};

struct kube_reconcile;
/* Copies what it keeps of the request. */
struct kube_reconcile *kube_reconcile_start(
	struct target_kube *kube, const struct kube_reconcile_request *request);
/* NULL is accepted. */
void kube_reconcile_cancel(struct kube_reconcile *repair);

/* Give up members that are to be ended, for the target's end. NULL is accepted. */
void kube_stops_free(struct kube_stop *stops);
bool kube_member_is_stopped(const struct target_kube *kube, const struct kube_handle *handle);

/* To be durable enough before something is sent. */
int kube_annotation_sending(
	const struct target_kube *kube, const struct kube_handle *handle, struct err *err);
void kube_annotation_accepted(
	const struct target_kube *kube, const struct kube_handle *handle, bool adopted);
/* As above; empty. */
#define KUBE_MARK_REFUSED "refused"
#define KUBE_MARK_GATED   "gated"
#define KUBE_MARK_CODE    "code"
void kube_annotation_mark(
	const struct target_kube *kube, const struct kube_handle *handle, const char *mark);
/* An attempt that is taken back (kube_withdraw.c): gone is durable before its Job is removed. */
int kube_annotation_gone(
	const struct target_kube *kube, const struct kube_handle *handle, struct err *err);
void kube_annotation_stays(const struct target_kube *kube, const struct kube_handle *handle);
bool kube_annotation_is_gone(const struct target_kube *kube, const struct kube_handle *handle);
/* Whether the cluster is known to have had it: also of what others have submitted. */
bool kube_is_accepted(const struct target_kube *kube, const struct kube_handle *handle);
bool kube_is_adopted(const struct target_kube *kube, const struct kube_handle *handle);

/* Of an attempt whose Job the cluster does not have. */
enum kube_arrival {
	KUBE_ARRIVED,    /* it had it, or nothing here tells */
	KUBE_SUBMITTING, /* a submit is at work */
	KUBE_ARRIVING,   /* its submit was stopped; what it sent may still come */
	KUBE_NEVER_SENT, /* it will not come */
};
enum kube_arrival kube_arrival(const struct target_kube *kube, const struct kube_handle *handle);
/* Whether it was submitted by this state directory, so that it is ours to mend. */
bool kube_is_own(const struct target_kube *kube, const struct kube_handle *handle);

/* Starts a request that may be repeated; PATCH: a merge patch. */
struct kube_call *kube_reconcile_send(const struct target_kube *kube, const char *method,
	const char *path, const struct json *body, int64_t deadline_ms, kube_done_fn *done,
	void *ctx);
/* Of the ConfigMap that is its gate. The caller frees. */
char *kube_gate_path(const struct kube_handle *handle);
/* DeleteOptions; policy: propagationPolicy, or NULL. The caller frees. */
struct json *kube_reconcile_removal(const char *policy);

#endif
