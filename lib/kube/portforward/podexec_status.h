/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Status at the end of an exec (meta/v1 Status; the exit code is in details.causes, reason
 * ExitCode).
 */
#ifndef DLRUN_KUBE_PORTFORWARD_PODEXEC_STATUS_H
#define DLRUN_KUBE_PORTFORWARD_PODEXEC_STATUS_H

#include <stddef.h>

#include "base/util/err.h"

/* program: for messages. 0 and the exit code of the command, 0 to 255; E_EXEC_NOT_FOUND or
 * E_EXEC_NOT_EXECUTABLE for the program, E_KUBE_EXEC otherwise (also text that is no Status). */
int podexec_status(
	const char *text, size_t len, const char *program, int *ret_code, struct err *err);

#endif
