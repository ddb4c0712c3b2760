/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A line of JSON between the processes of a start: {"ok":true}, or the error that stopped it.
 */
#ifndef DLRUN_CORE_RECORD_REPLY_H
#define DLRUN_CORE_RECORD_REPLY_H

#include <stddef.h>

#include "base/data/json.h"
#include "base/util/err.h"

enum { REPLY_MAX = 64 << 10 };

/* r: what the work returned; result: more members, taken, or NULL. Write errors are ignored: the
 * reader has gone. */
void reply_write(int fd, int r, const struct err *err, struct json *result);
/* Returns the work's return value and error. ret_result may be NULL. Bytes that are no reply:
 * E_RUN_START with the message that what ended. */
int reply_parse(
	const char *line, size_t len, const char *what, struct json **ret_result, struct err *err);

#endif
