/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The user's browser.
 */
#ifndef DLRUN_CLI_RUNS_BROWSER_H
#define DLRUN_CLI_RUNS_BROWSER_H

#include <stdbool.h>

/* Opens the URL without waiting for the browser; false: there is none that the user would see (no
 * display, a login from elsewhere), or it does not start. */
bool browser_open(const char *url);

#endif
