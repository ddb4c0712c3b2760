/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of job.c: the objects beside the Job.
 */
#ifndef DLRUN_KUBE_JOB_JOB_OBJECTS_H
#define DLRUN_KUBE_JOB_JOB_OBJECTS_H

#include "kube/job/job.h"

int job_secret(const struct kube_run *run, struct json **ret, struct err *err);
struct json *job_service(const struct kube_run *run);
struct json *job_claim(const struct kube_run *run);

#endif
