/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing YAML that yaml.c reads back: scalars and comments, for `dlrun init`. An engine: text
 * in, text out.
 */
#ifndef DLRUN_APP_INIT_INIT_YAML_H
#define DLRUN_APP_INIT_INIT_YAML_H

#include <stdbool.h>
#include <stddef.h>

#include "base/util/buf.h"
#include "base/util/vec.h"

/* Append s as a scalar on one line, which stands also inside of [ ] and { }; yaml_parse gives the
 * same string again. Plain where nobody can take it for something else (a number, true, null), else
 * in double quotes with escapes (YAML 1.1, section 5.6). false, and nothing appended, when s is not
 * UTF-8: YAML has no way to write it. */
bool init_yaml_scalar(struct buf *out, const char *s);
/* [a, b]; false as above. */
bool init_yaml_list(struct buf *out, const struct strv *words);

/* Append s as a part of a comment: it stays one line of printable characters; everything else is
 * shown as \xNN. At most max bytes of s, the rest becomes "...". */
void init_yaml_comment(struct buf *out, const char *s, size_t max);

#endif
