/* SPDX-License-Identifier: Apache-2.0 */
/* Lines about files, as a runner writes them (protocol.h): an engine. */
#ifndef DLRUN_NODE_FILES_H
#define DLRUN_NODE_FILES_H

#include <stdbool.h>

#include "base/util/err.h"
#include "node/node.h"
#include "node/wire.h"

/* E_NODE_PROTOCOL: another form, or a path that could lead out of the results. */
int node_file_parse(const struct node_words *words, struct node_file *ret, struct err *err);
/* Relative, no empty name, no "." or "..". */
bool node_file_path_is_good(const char *path);
/* The word of a request that says where files are. */
void call_scope(struct node_call *call, const char *run, const struct node_files_scope *scope);

#endif
