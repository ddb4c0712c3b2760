/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The text that is attached to a bug report: version, system, libraries, configuration and its
 * origin, targets, findings, the last runs. It holds no environment, no login and no secret that
 * doctor_redact knows; a person reads it before it is sent.
 */
#ifndef DLRUN_APP_DOCTOR_DOCTOR_REPORT_H
#define DLRUN_APP_DOCTOR_DOCTOR_REPORT_H

#include "app/doctor/doctor.h"
#include "base/util/buf.h"

enum { DOCTOR_REPORT_MAX = 4 << 20 };

/* rows: of doctor_run_all. Asks no server. What cannot be read is named in the text. */
void doctor_report(const struct doctor *doctor, const char *version, const struct doctor_row *rows,
	struct buf *out);

/* text as one line that may be published; the caller frees. home (or NULL) becomes ~, control
 * characters are escaped, and these become "(hidden)": the values of env (K=V, …, NULL) whose names
 * say that they are secrets, values behind such names in the text itself (NAME=…, NAME: …,
 * --NAME …), user and password of URLs and in front of hosts, queries of URLs, what follows
 * "Bearer" and "Basic", and words in the forms of well-known tokens. When in doubt too much is
 * hidden. Time grows with the length of text. An engine. */
char *doctor_redact(const char *text, const char *home, const char *const *env);

#endif
