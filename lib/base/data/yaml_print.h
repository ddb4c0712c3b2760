/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON as YAML for people, as kubectl prints it: blocks, lists as far in as their key, texts of
 * several lines as "|". Read as YAML 1.1 or 1.2 it is the same value again: what a reader would
 * take for another type (yes, null, 1e3, 0x1, 12:30, a date) or for syntax is in quotes.
 */
#ifndef DLRUN_BASE_DATA_YAML_PRINT_H
#define DLRUN_BASE_DATA_YAML_PRINT_H

#include "base/data/json.h"
#include "base/util/buf.h"

/* Print a document without "---", ended by a newline; members in their order. Keys of more than
 * 1,000 bytes exceed what most readers accept. */
void yaml_print(const struct json *json, struct buf *out);

#endif
