#include <stdio.h>
#include <unistd.h>

#include "cli/app.h"

int main(int argc, char **argv)
{
	int status = app_main(argc, argv);

#ifndef __SANITIZE_ADDRESS__ /* It looks for leaks in exit(). */
	/* What some sixty libraries would tidy up now takes a millisecond. */
	fflush(NULL);
	_exit(status);
#endif
	return status;
}
