/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checks of app/doctor/doctor.c, and what they have in common.
 */
#ifndef DLRUN_APP_DOCTOR_DOCTOR_CHECKS_H
#define DLRUN_APP_DOCTOR_DOCTOR_CHECKS_H

#include <stdint.h>

#include "app/doctor/doctor.h"

typedef int doctor_check_fn(const struct doctor *doctor, struct doctor_row *row, struct err *err);

doctor_check_fn doctor_home, doctor_config, doctor_access, doctor_space, doctor_network,
	doctor_locks, doctor_clock, doctor_records, doctor_leftovers, doctor_tree, doctor_git,
	doctor_proxy, doctor_registry, doctor_base, doctor_kubeconfig, doctor_clusters,
	doctor_nodes, doctor_program, doctor_gpu, doctor_logout, doctor_limits, doctor_terminal;

/* Set the finding of a row; an earlier text is replaced. 0. */
int doctor_found(struct doctor_row *row, const char *fmt, ...) ERR_PRINTF(2, 3);
/* Add a row for an id that doctor_title knows; the pointer is valid until the next call. */
struct doctor_row *doctor_row_add(struct doctor_row *row, const char *id);
/* Make the row at least as bad as status; of several causes the first of the worst stays. fix may
 * be NULL; it is not a format. 0. */
int doctor_blame(struct doctor_row *row, enum doctor_status status, const char *fix,
	const char *fmt, ...) ERR_PRINTF(4, 5);

/* Engines, for tests. */

/* Evaluate the bytes and inodes that are left in dir; inodes: UINT64_MAX where there is no such
 * limit. */
void doctor_evaluate_space(
	struct doctor_row *row, const char *dir, uint64_t bytes, uint64_t inodes);
/* wall_ms: the clock; file_ms: the time that a file made just now was given; newest_ms: when the
 * newest run was submitted, 0: there is none; drift_ms: how far the clock moved more than time. */
struct doctor_times {
	int64_t wall_ms, file_ms, newest_ms, drift_ms;
};
void doctor_evaluate_clock(struct doctor_row *row, const struct doctor_times *times);
/* Evaluate until when a login is valid; wall clock, expiry 0: the login does not say. */
void doctor_evaluate_expiry(struct doctor_row *row, int64_t expiry_ms, int64_t now_ms);
/* group: the path of our own cgroup. kill: KillUserProcesses of logind; linger: of the user. */
void doctor_evaluate_logout(struct doctor_row *row, const char *group, bool kill, bool linger);

#endif
