/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strings of a TOML 1.0 text, as much of it as a line reader sees: tables, bare, dotted and quoted
 * keys, strings of one line without escapes. Other values are skipped, inline tables are not looked
 * into. What is not understood is unknown, never an error. Engines.
 */
#ifndef DLRUN_BASE_DATA_TOML_H
#define DLRUN_BASE_DATA_TOML_H

#include <stdbool.h>
#include <stddef.h>

#include "base/util/vec.h"

enum { TOML_KEYS_MAX = 64 };

/* path: "project.name". UTF-8 without NUL; NULL: not found. The caller frees. */
char *toml_find_string(const char *text, size_t len, const char *path);
/* Whether the table is there, or one below it. */
bool toml_has_table(const char *text, size_t len, const char *table);
/* The keys of a table whose values are strings, until ret has TOML_KEYS_MAX. */
void toml_table_keys(const char *text, size_t len, const char *table, struct strv *ret);

#endif
