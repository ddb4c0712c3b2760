/* SPDX-License-Identifier: Apache-2.0 */
#include "node/talk_say.h"

#include <string.h>

#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/random.h"
#include "base/util/str.h"
#include "base/util/term.h"
#include "node/runner.h"

enum { TEXT_MAX = 2000, SIGNALED = 128 };

/* A command that every login shell must run; a restricted one says that it may not. */
#define SHELL_HINT "ssh %s 'exec sh -c true'"

static const struct {
	const char *word;
	enum node_class class;
	enum err_id id, early_id;
} classes[] = {
	{"usage", NODE_CLASS_USAGE, E_NODE_PROTOCOL, E_NODE_PROTOCOL},
	{"busy", NODE_CLASS_BUSY, E_NODE_BUSY, E_NODE_ROOT},
	{"disk", NODE_CLASS_DISK, E_NODE_DISK, E_NODE_ROOT},
	{"missing", NODE_CLASS_MISSING, E_RUN_NOT_FOUND, E_NODE_ROOT},
	{"log", NODE_CLASS_OTHER, E_RUN_LOG, E_NODE_ROOT},
	{"corrupt", NODE_CLASS_CORRUPT, E_NODE_CORRUPT, E_NODE_CORRUPT},
	{"io", NODE_CLASS_IO, E_NODE_FAILED, E_NODE_ROOT},
	{"gone", NODE_CLASS_GONE, E_NODE_FAILED, E_NODE_ROOT},
	{"gpu", NODE_CLASS_GPU, E_GPU_TOOL, E_NODE_ROOT},
	{"tool", NODE_CLASS_TOOL, E_NODE_TOOL, E_NODE_TOOL},
	{"program", NODE_CLASS_OTHER, E_EXEC_NOT_FOUND, E_NODE_ROOT},
	{"noexec", NODE_CLASS_OTHER, E_EXEC_NOT_EXECUTABLE, E_NODE_ROOT},
};

/* The rest of a line as text for people; decoded where it stands. */
static void take_text(char *text, struct buf *out)
{
	size_t len = strlen(text);

	/* Not coded right: shown as it is. */
	AUTO_FREE char *whole = mem_strdup(text);
	if (node_word_decode(text))
		len = strlen(text);
	else
		memcpy(text, whole, len + 1);
	term_clean(text, len < TEXT_MAX ? len : TEXT_MAX, true, out);
	while (out->len && out->data[out->len - 1] == ' ')
		buf_truncate(out, out->len - 1);
}

enum node_class node_say_failure(const char *name, char *line, bool is_early, struct err *ret)
{
	AUTO_BUF struct buf text;
	size_t len = strcspn(line, " ");
	enum err_id id = is_early ? E_NODE_ROOT : E_NODE_FAILED;
	enum node_class class = NODE_CLASS_OTHER;

	buf_init(&text, 8 * (size_t)TEXT_MAX);
	take_text(line + len + (line[len] == ' '), &text);
	for (size_t i = 0; i < ARRAY_LEN(classes); i++) {
		if (strlen(classes[i].word) != len || memcmp(classes[i].word, line, len) != 0)
			continue;
		class = classes[i].class;
		id = is_early ? classes[i].early_id : classes[i].id;
	}
	err_set(ret, id, "%s: %s", name, text.len ? text.data : "it failed without a message");
	if (id == E_NODE_DISK)
		err_hint(ret, "dlrun gc --node %s", name);
	return class;
}

void node_say_unanswered(
	const char *name, const struct channel_exit *exit, bool is_opening, struct err *ret)
{
	bool was_killed = exit->known && (*exit->signal || exit->code > SIGNALED);

	if (!exit->known || (was_killed && !is_opening))
		err_set(ret, E_NODE_LOST, "the connection to %s was lost", name);
	else if (*exit->signal)
		err_set(ret, is_opening ? E_NODE_SHELL : E_NODE_PROTOCOL,
			"the login shell of %s was killed by SIG%s", name, exit->signal);
	else if (is_opening)
		err_set(ret, E_NODE_SHELL, "the login shell of %s ran no command (exit status %d)",
			name, exit->code);
	else
		err_set(ret, E_NODE_PROTOCOL, "%s ended without an answer (exit status %d)", name,
			exit->code);
	if (ret->id == E_NODE_SHELL)
		err_hint(ret, SHELL_HINT, name);
}

void node_say_silent(const char *name, int64_t limit_ms, bool is_opening, struct err *ret)
{
	char text[32];

	duration_text(limit_ms, text);
	if (!is_opening) {
		err_set(ret, E_NODE_LOST, "%s said nothing for %s", name, text);
		return;
	}
	err_set(ret, E_NODE_SHELL, "the login shell of %s has run no command within %s", name,
		text);
	err_hint(ret, SHELL_HINT, name);
}

void node_say_unexpected(const char *name, const char *line, struct err *ret)
{
	AUTO_FREE char *shown = str_shown(line);

	err_set(ret, E_NODE_PROTOCOL, "%s sent an unexpected message: %s", name, shown);
}
