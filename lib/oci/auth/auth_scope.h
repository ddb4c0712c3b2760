/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scopes of tokens (distribution's token specification, scope.md): "TYPE:NAME:ACTION,ACTION".
 * An engine.
 */
#ifndef DLRUN_OCI_AUTH_AUTH_SCOPE_H
#define DLRUN_OCI_AUTH_AUTH_SCOPE_H

#include <stdbool.h>

#include "base/util/vec.h"

enum { AUTH_SCOPES_MAX = 16, AUTH_SCOPE_LEN_MAX = 1024 };

/* Whether one of scopes has the type and name of wanted and all of its actions. */
bool auth_scope_covers(const struct strv *scopes, const char *wanted);
/* Add what the blank-separated scopes of text have over those that are there already, up to max of
 * them (AUTH_SCOPES_MAX at most); true if there was anything. What is longer than the limits, or
 * not plain, is left out. */
bool auth_scope_merge(struct strv *scopes, size_t max, const char *text);

#endif
