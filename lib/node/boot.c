/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/random.h"
#include "base/util/str.h"
#include "node/node.h"
#include "node/runner.h"
#include "node/talk.h"

/* The characters of ROOT (protocol.h). */
#define ROOT_CHARS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/~+-"

enum { ROOT_MAX = 1024 };

void node_mark(char out[static NODE_MARK_LEN + 1])
{
	unsigned char bytes[NODE_MARK_LEN / 2];

	random_bytes(bytes, sizeof(bytes));
	hex_encode(bytes, sizeof(bytes), out);
}

const char *node_command_mark(const char *command)
{
	return command + strlen(command) - NODE_MARK_LEN;
}

static int check_root(const char *root, struct err *err)
{
	AUTO_FREE char *shown = str_shown(root);
	const char *tilde = strchr(root, '~');

	if (str_empty(root) || strlen(root) > ROOT_MAX || root[strspn(root, ROOT_CHARS)])
		return err_set(err, E_CONFIG,
			"the directory \"%s\" on the node has characters other than letters, "
			"digits and ._/~+-",
			shown);
	if (*root != '/' && !str_starts(root, "~/") && !str_eq(root, "~"))
		return err_set(err, E_CONFIG,
			"the directory \"%s\" on the node begins with neither / nor ~/", shown);
	if (tilde && tilde != root)
		return err_set(err, E_CONFIG,
			"the directory \"%s\" on the node has ~ elsewhere than at its beginning",
			shown);
	return 0;
}

int node_command(const char *root, const char *mark, char **ret, struct err *err)
{
	int r = check_root(root, err);

	if (r == 0)
		*ret = mem_printf("exec sh -c '%s' dlrun %s %s %zu %s", node_boot, root,
			node_runner_hash, node_runner_size, mark);
	return r;
}

int node_first_command(const char *root, char **ret, struct err *err)
{
	char mark[NODE_MARK_LEN + 1];

	node_mark(mark);
	return node_command(root, mark, ret, err);
}
