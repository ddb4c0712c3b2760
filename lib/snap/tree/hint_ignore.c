/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <sys/stat.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/str.h"
#include "snap/ignore/wildmatch.h"
#include "snap/tree/hint_ignore.h"

enum { HINT_MAX = 16 * 1024 };

/* The rule that matches path and nothing else; false if a line cannot hold it. */
static bool add_rule(struct buf *out, const char *path)
{
	size_t len = strlen(path);
	const char *slash = strchr(path, '/');

	if (strchr(path, '\n') || path[len - 1] == '\r')
		return false;
	/* Without a slash inside, a rule would match at any depth. */
	if (!slash || !slash[1])
		buf_addc(out, '/');
	for (const char *at = path; *at; at++) {
		bool first = at == path && slash && slash[1] && (*at == '!' || *at == '#');
		bool last_blank = *at == ' ' && !at[1];
		if (wild_is_special(*at) || first || last_blank)
			buf_addc(out, '\\');
		buf_addc(out, *at);
	}
	return true;
}

static void add_file_name(struct buf *out, const char *root, const char *shell_dir)
{
	struct stat here, there;
	bool is_here = stat(shell_dir ? shell_dir : ".", &here) == 0 && stat(root, &there) == 0 &&
		       here.st_dev == there.st_dev && here.st_ino == there.st_ino;
	AUTO_FREE char *file = fs_join(is_here ? "" : root, ".dlrunignore");

	str_shell_quote(out, file);
}

void hint_ignore(struct err *err, const char *root, const char *shell_dir, const char *const *paths,
	size_t n)
{
	AUTO_BUF struct buf rules, rule, line;
	bool plain = n == 1;

	buf_init(&rules, HINT_MAX);
	buf_init(&rule, HINT_MAX);
	buf_init(&line, HINT_MAX);
	for (size_t i = 0; i < n; i++) {
		buf_reset(&rule);
		if (!add_rule(&rule, paths[i]))
			return;
		/* echo may take a backslash for an escape. */
		plain &= !strchr(rule.data, '\\');
		buf_addc(&rules, ' ');
		str_shell_quote(&rules, rule.data);
	}
	buf_adds(&line, plain ? "echo" : "printf '%s\\n'");
	buf_adds(&line, rules.data);
	buf_adds(&line, " >> ");
	add_file_name(&line, root, shell_dir);
	if (!rules.full && !rule.full && !line.full)
		err_hint(err, "%s", line.data);
}
