/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The manual: pages are written in scdoc (man/NAME.SECTION.scd), with lines such as @OPTIONS@ that
 * are filled from the tables of the program: @NAME@ @SYNOPSIS@ @OPTIONS@ @EXAMPLES@ of the page's
 * command, @COMMON@ @COMMANDS@ @COLUMNS@ @KEYS@ @ERRORS@. The build makes man pages of them by
 * `dlrun __manual PAGE`; where there is no man, the same pages are shown as plain text.
 */
#ifndef DLRUN_CLI_TERM_MANUAL_H
#define DLRUN_CLI_TERM_MANUAL_H

#include <stddef.h>

#include "base/util/buf.h"
#include "base/util/err.h"

struct app;

/* The page of a topic: a command, dlrun.yaml, errors, dlrun-targets, dlrun; through man(1) on a
 * terminal where it has the page. ERR_USAGE with the near match. */
int manual_show(struct app *app, const char *topic, struct err *err);

/* scdoc (its man page: scdoc(5); headings, paragraphs, indentation by tabs, lists, literal blocks,
 * bold and underline) as text of at most columns, with colours. */
void manual_render(const char *source, size_t columns, struct buf *out);

#endif
