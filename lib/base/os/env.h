/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Environments of programs: lists of K=V.
 */
#ifndef DLRUN_BASE_OS_ENV_H
#define DLRUN_BASE_OS_ENV_H

#include <stdbool.h>
#include <stddef.h>

#include "base/util/vec.h"

/* Whether the first len bytes of s can name a variable: [A-Za-z_][A-Za-z0-9_]*. */
bool env_name_is_valid(const char *s, size_t len);
/* Replace or add; with keep, what is there already stays. */
void env_set(struct strv *env, const char *pair, bool keep);
void env_unset(struct strv *env, const char *name);
/* The value of name in a NULL-ended list, or NULL. */
const char *env_get(const char *const *env, const char *name);

#endif
