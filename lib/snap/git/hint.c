/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/util/auto.h"
#include "base/util/str.h"
#include "snap/git/hint.h"

int hint_path(struct err *err, const char *before, const char *path, const char *after)
{
	AUTO_BUF struct buf text;

	buf_init(&text, 4 * strlen(path) + strlen(before) + strlen(after) + 2);
	buf_adds(&text, before);
	str_shell_quote(&text, path);
	buf_adds(&text, after);
	return err_hint(err, "%s", text.data);
}
