/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/ssh/terminal.h"

#include "base/data/json.h"
#include "core/record/spec.h"

#define FIFO "\"$DLRUN_ATTEMPT_DIR/.terminal\""

/* A hang-up ends the command, and then this shell tells of it. */
static const char inside[] = "h=\n"
			     "trap h=1 HUP\n"
			     "\"$@\"\n"
			     "s=$?\n"
			     "[ -z \"$h\" ] || s=129\n"
			     "[ ! -p " FIFO " ] || echo $s >" FIFO "\n"
			     "exit $s";
/* The screen is saved after the command has ended. The process that does it may have been killed:
 * do not wait for it for ever. */
static const char holder[] = "mkfifo " FIFO " || exit 125\n"
			     "read -r s <" FIFO "\n"
			     "n=0\n"
			     "while [ -e \"$DLRUN_ATTEMPT_DIR/.screen\" ]; do\n"
			     "[ $((n += 1)) -le 25 ] || break\n"
			     "sleep 0.1 || sleep 1\n"
			     "done\n"
			     "exit \"${s:-125}\"";

bool run_is_terminal(const struct run *run)
{
	return json_get_bool(run->spec, "terminal", false);
}

void terminal_holder(struct strv *ret)
{
	strv_add(ret, "/bin/sh");
	strv_add(ret, "-c");
	strv_add(ret, holder);
}

int terminal_words(const struct run *run, struct strv *ret, struct err *err)
{
	AUTO_SPEC struct spec spec = {0};

	int r = spec_from_json(run->spec, &spec, err);
	if (r < 0)
		return r;
	strv_add(ret, "/bin/sh");
	strv_add(ret, "-c");
	strv_add(ret, inside);
	strv_add(ret, "dlrun");
	if (spec.shell) {
		strv_add(ret, "/bin/sh");
		strv_add(ret, "-c");
	}
	for (size_t i = 0; i < spec.command.n; i++)
		strv_add(ret, spec.command.v[i]);
	return 0;
}
