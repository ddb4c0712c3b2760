/*
 * Results that did not reach the outputs: a program that begins with `rm -r out; mkdir out` has
 * removed the link that run/world_mount had put there, and has written to its own tree.
 */
#ifndef DLRUN_RUN_WORLD_COLLECT_H
#define DLRUN_RUN_WORLD_COLLECT_H

#include "base/err.h"
#include "run/attempt.h"

enum { COLLECT_DEPTH_MAX = 64 }; /* of directories that both have */

/* After the program has ended: a directory of the tree where an output's link was is moved into the
 * output, by renames alone. What an output has already gives way to a file of the same name; a file
 * and a directory of one name both stay where they are. *ret_n: how many outputs were concerned.
 * Links and files in place of the link are left alone. E_IO; the rest is tried all the same. */
int world_collect(const char *tree, const struct attempt_job *job, int *ret_n, struct err *err);

#endif
