/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Words of any bytes in JSON: arguments, variables, paths. Text that is UTF-8 stands as it is;
 * where one word of a list is not, the list under key shows U+FFFD in its place, and key_b64 holds
 * all of them exactly (cli.md, "Rules for every command").
 */
#ifndef DLRUN_CORE_CONFIG_WORDS_H
#define DLRUN_CORE_CONFIG_WORDS_H

#include "base/data/json.h"
#include "base/util/err.h"
#include "base/util/vec.h"

void words_set(struct json *object, const char *key, const struct strv *words);
/* Adds to ret. A missing list is empty; E_DATA if it is no list of strings. */
int words_get(const struct json *object, const char *key, struct strv *ret, struct err *err);

/* Get a single string: from key_b64 if there is one, else from key; NULL if neither. The caller
 * frees. Written by json_set_bytes. */
char *words_get_one(const struct json *object, const char *key);

/* Placeholder for the tree of an attempt in the words of its command and the values of its
 * variables: only its target knows where the tree is. */
#define WORDS_TREE "${DLRUN_TREE}"
/* Returns text with tree in location of WORDS_TREE. The caller frees. */
char *words_in_tree(const char *text, const char *tree);

/* Format a reason for waiting as of now: " since 2026-11-23T05:04:25Z", which does not change while
 * it is true, becomes ", running for 6 s". The caller frees. */
char *words_reason_now(const char *text);

/* Whether the name before "=" in pair may be a variable of a program, else E_USAGE with the name of
 * the option. DLRUN_ is reserved for dlrun. */
int words_check_name(const char *pair, const char *option, struct err *err);

#endif
