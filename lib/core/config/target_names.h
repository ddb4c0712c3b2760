/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The value of `target:` and -t: the name of a target, or several with commas between, in the order
 * of preference. An engine.
 */
#ifndef DLRUN_CORE_CONFIG_TARGET_NAMES_H
#define DLRUN_CORE_CONFIG_TARGET_NAMES_H

#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/config/config.h"

/* Begins the name of a target that is a list of hosts. */
#define TARGET_NAMES_SSH "ssh:"

enum { TARGET_NAMES_MAX = 16 };

/* Add the names of text; one that begins with "ssh:" takes all that follows it, which is a list of
 * hosts. A text without a comma, or that is as a whole the name of a target (config may be NULL),
 * is one name. E_USAGE: an empty name, one that is there twice, more than TARGET_NAMES_MAX. */
int target_names_split(
	const struct config *config, const char *text, struct strv *ret, struct err *err);
/* The first one, also of a text that is not valid; NULL for NULL. The caller frees. */
char *target_names_first(const struct config *config, const char *text);

#endif
