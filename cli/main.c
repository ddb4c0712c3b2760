/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <unistd.h>

#include "cli/commands/cmds.h"
#include "cli/term/app.h"

int main(int argc, char **argv)
{
	int status;

	cmds_use();
	status = app_main(argc, argv);

#ifndef __SANITIZE_ADDRESS__ /* It looks for leaks in exit(). */
	/* Skip the cleanup of some sixty libraries, which takes a millisecond. */
	fflush(NULL);
	_exit(status);
#endif
	return status;
}
