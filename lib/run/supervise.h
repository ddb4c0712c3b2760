/*
 * The supervisor: the process that `dlrun __supervise DIR` is. It belongs to one attempt on this
 * machine: unpacks the tree, starts the program in a session, group and (where there is one)
 * cgroup of its own, keeps the marks of the log, enforces time limit and cancel (TERM, grace, KILL
 * to the whole family), and writes down how the program ended. It knows no store and no terminal.
 */
#ifndef DLRUN_RUN_SUPERVISE_H
#define DLRUN_RUN_SUPERVISE_H

#include "base/err.h"

/* dir: the attempt's directory, made by target_local. Returns when everything is written down. */
int supervise(const char *dir, struct err *err);

#endif
