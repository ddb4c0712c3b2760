/* SPDX-License-Identifier: Apache-2.0 */
/* The process that holds a pod's namespaces; as PID 1 of a pod whose containers share theirs, it
 * buries the dead. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

int main(void)
{
	sigset_t all;
	int signal_number;

	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, NULL);
	while (sigwait(&all, &signal_number) == 0) {
		if (signal_number == SIGTERM || signal_number == SIGINT)
			return EXIT_SUCCESS;
		while (waitpid(-1, NULL, WNOHANG) > 0)
			continue;
	}
	return EXIT_FAILURE;
}
