/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All commands, sorted.
 */
#ifndef DLRUN_CLI_COMMANDS_CMDS_H
#define DLRUN_CLI_COMMANDS_CMDS_H

/* They are those that cmd.h knows from now on. */
void cmds_use(void);

#endif
