/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Detection of files that look like secrets: by name (.env, id_ed25519, kubeconfig, credentials,
 * *.pem …) and, where a name alone does not tell, by the first bytes of the content. Only untracked
 * files are checked: a team has decided on what it has committed. An engine: names and bytes in, a
 * decision out.
 */
#ifndef DLRUN_SNAP_TREE_SECRET_H
#define DLRUN_SNAP_TREE_SECRET_H

#include <stdbool.h>
#include <stddef.h>

enum { SECRET_HEAD_SIZE = 4096 };

enum secret_decision {
	SECRET_NO = 0,
	SECRET_YES,
	SECRET_READ, /* a suspicious name: ask secret_by_content with the head of the file */
};

/* path: relative, only its last components count. ret_what (may be NULL): what it looks like,
 * static text ("a private key"). */
enum secret_decision secret_by_name(const char *path, const char **ret_what);
/* For a path that gave SECRET_READ; head: the first len bytes of its file, at most
 * SECRET_HEAD_SIZE are worth reading. */
bool secret_by_content(const char *path, const char *head, size_t len, const char **ret_what);

#endif
