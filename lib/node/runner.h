/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The runner: the POSIX shell script that is dlrun's side on a node (protocol.h). Its parts
 * are lib/node/runner/NN-*.sh, joined in the order of their names; comments do not travel.
 */
#ifndef DLRUN_NODE_RUNNER_H
#define DLRUN_NODE_RUNNER_H

#include <stddef.h>

/* BOOT of the protocol: has no newline, quote, ! or backslash. */
extern const char node_boot[];
extern const char node_runner[]; /* ends with NUL, which is not sent */
extern const size_t node_runner_size;
/* 32 hex digits of its SHA-256: it is kept on the node by that name. */
extern const char node_runner_hash[];

/* runner/73-store.sh alone, as an argument of `sh -c` in front of "dlrun" VERB DIR ARGS…. */
extern const char node_store_script[];

#endif
