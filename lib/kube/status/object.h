/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading objects of a cluster: members, conditions, labels, quantities and what a pod asks for. An
 * engine, no I/O. What is missing or of another form is NULL, 0 or false; strings live as long as
 * their object.
 */
#ifndef DLRUN_KUBE_STATUS_OBJECT_H
#define DLRUN_KUBE_STATUS_OBJECT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/data/json.h"

/* Copy the members of these names that from has. */
void kube_copy_members(
	struct json *to, const struct json *from, const char *const *names, size_t n);
/* A member by a path of keys, "status.conditions"; keys with dots cannot be reached. */
const struct json *kube_at(const struct json *object, const char *path);
const char *kube_str_at(const struct json *object, const char *path);
/* RFC 3339 at a path; 0: none. */
int64_t kube_time_at(const struct json *object, const char *path);
/* The first element at a path, for json_next; NULL: none, or no array. */
const struct json *kube_first(const struct json *object, const char *path);
/* The element of the array at a path whose name is that. */
const struct json *kube_named(const struct json *object, const char *path, const char *name);
/* status.conditions[type]; NULL: none. */
const struct json *kube_condition(const struct json *object, const char *type);
/* The same where its status is True, else NULL. */
const struct json *kube_condition_true(const struct json *object, const char *type);
bool kube_condition_is(const struct json *object, const char *type, const char *status);
/* The status of the container of the program of a pod. */
const struct json *kube_pod_program(const struct json *pod);
/* metadata.labels or annotations [key]. */
const char *kube_label(const struct json *object, const char *key);
const char *kube_annotation(const struct json *object, const char *key);
/* The completion index of a pod of a Job, as text. */
const char *kube_completion_index(const struct json *pod);
/* The rank of a pod, or of completion index 0 of a Job, in its run, 0 where it does not say; -1: it
 * says no number. */
int kube_rank_of(const struct json *pod);
/* Time at which removal was requested: deletionTimestamp lies a grace period later. 0: it was
 * not. */
int64_t kube_deleted_ms(const struct json *object);

/* The text behind before in text up to the next of end (all of it without one), or NULL. */
char *kube_between(const char *text, const char *before, const char *end);
/* The number that stands there (at most nine digits), or fallback. */
int64_t kube_number(const char *text, int64_t fallback);

/* Quantities (resource.Quantity) in thousandths: "500m" is 500, "2" 2,000, "1Ki" 1,024,000. false:
 * it is none, or over 2^63. */
bool kube_quantity(const char *text, int64_t *ret_milli);
/* As kube_quantity, of a JSON value, which may be a number. */
int64_t kube_quantity_of(const struct json *json);
/* Bytes for people: "64Gi", "1.5Gi". */
const char *kube_bytes_text(int64_t bytes, char out[static 24]);
/* "8 free GPUs" needs to know what they are called: "GPU" for nvidia.com/gpu, the resource's name
 * for others. */
bool kube_is_gpu(const char *resource);

struct kube_demand {
	int64_t cpu_milli, memory, disk; /* bytes; 0: nothing asked for */
	int64_t gpus;
	char resource[64]; /* of the GPUs; "" for none */
};
/* Resource requests of a pod: of spec, a PodSpec. */
void kube_demand_of(const struct json *spec, struct kube_demand *ret);
/* Add what so many pods ask for; the resource of GPUs is that of the first who wants any, and of no
 * other one are GPUs added. */
void kube_demand_add(struct kube_demand *sum, const struct kube_demand *one, int64_t pods);
/* a + b, at most INT64_MAX. */
int64_t kube_add(int64_t a, int64_t b);

#endif
