/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engines of `dlrun init`: parsers for the files of a project, and the writer of YAML. The parsers
 * know the common forms only; what they do not understand is unknown, never an error, because each
 * result is no more than a proposal. Results are UTF-8 without NUL; NULL: not found. The caller
 * frees.
 */
#ifndef DLRUN_APP_INIT_INIT_PARSE_H
#define DLRUN_APP_INIT_INIT_PARSE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/util/buf.h"
#include "base/util/vec.h"

enum { INIT_NAMES_MAX = 64 }; /* of any list below */

/* setup.cfg (configparser): key of [section]; values of one line. */
char *init_ini_string(const char *text, size_t len, const char *section, const char *key);
/* setup.py: the string of name= behind "setup(". */
char *init_setup_name(const char *text, size_t len);

/* Dockerfile: the image that the last stage is built on, through the names of stages and the
 * defaults of ARG before the first FROM. NULL also when a variable has no default. */
char *init_docker_base(const char *text, size_t len);

/* Makefile: whether there is a rule for this target. */
bool init_make_has(const char *text, size_t len, const char *target);

/* .gitignore: whether a pattern of it is name itself ("runs", "/runs/"). below: name lies
 * further down, where patterns that begin with a slash do not count. */
bool init_ignore_names(const char *text, size_t len, const char *name, bool below);

/* ssh_config(5): the words of Host lines that are names, no patterns; the words of Include lines,
 * which may be patterns. */
void init_ssh_hosts(const char *text, size_t len, struct strv *ret);
void init_ssh_includes(const char *text, size_t len, struct strv *ret);

/*
 * Writing YAML that yaml.c reads back: scalars and comments
 */

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
