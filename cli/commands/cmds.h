/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All commands, sorted.
 */
#ifndef DLRUN_CLI_COMMANDS_CMDS_H
#define DLRUN_CLI_COMMANDS_CMDS_H

/* Make these the commands that cmd.h knows. */
void cmds_use(void);

#endif
