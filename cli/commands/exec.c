/* SPDX-License-Identifier: Apache-2.0 */
#include "base/util/auto.h"
#include "base/util/str.h"
#include "cli/runs/attach.h"
#include "cli/runs/runs.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"

enum { RANK_MAX = 100 * 1000, COMMAND_MAX = 64 << 10 };

struct exec_values {
	bool input, tty;
	int64_t rank;
	const char *role;
};

static const struct opt opts[] = {
	{OPT_MEMBER(OPT_FLAG, 'i', "stdin", struct exec_values, input),
		.help = "Pass stdin on to the command"},
	{OPT_MEMBER(OPT_FLAG, 't', "tty", struct exec_values, tty),
		.help = "Give the command this terminal"},
	{OPT_MEMBER(OPT_INT, 0, "rank", struct exec_values, rank), .arg = "N", .min = 0,
		.max = RANK_MAX, .help = "In the environment of this rank (default: 0)"},
	{OPT_MEMBER(OPT_STRING, 0, "role", struct exec_values, role), .arg = "NAME",
		.help = "A role of the run; --rank is a rank of it"},
	{OPT_END},
};

/* A word without `--` behind it was meant as a command, or as a run that needs one. */
static int missing_command(struct app *app, const char *word)
{
	AUTO_ERR struct err err = {0};
	AUTO_ERR struct err cause = {0};
	AUTO_RUN struct run *run = NULL;
	AUTO_BUF struct buf shown = buf_with(COMMAND_MAX);

	if (runs_get(app, word, &run, &cause) == 0) {
		err_set(&err, E_USAGE, "missing argument CMD: what to run beside %s", run_id(run));
		err_hint(&err, "dlrun exec %s -- nvidia-smi", run_id(run));
		return app_fail(app, &err);
	}
	if (cause.id != E_RUN_NOT_FOUND)
		return app_fail(app, &cause);
	str_shell_quote(&shown, word);
	err_set(&err, cause.id, "%s", cause.message);
	err_hint(&err, "dlrun exec -- %s", shown.data);
	return app_fail(app, &err);
}

/* Options stand before and behind the RUN; those behind -- are the command's. Only there a command
 * may stand alone: else a mistyped run would be a program. */
static int cmd_exec_run(struct app *app, void *values_ptr, struct strv *words)
{
	const struct exec_values *values = values_ptr;
	AUTO_STRV struct strv command = {0};
	bool newest = app->words_ahead == 0;

	if (words->n == 1 && !newest)
		return missing_command(app, words->v[0]);
	for (size_t i = newest ? 0 : 1; i < words->n; i++)
		strv_add(&command, words->v[i]);
	const struct attach_request request = {.run = newest ? NULL : words->v[0],
		.command = &command,
		.rank = values->rank == OPT_UNSET ? 0 : (int)values->rank,
		.role = values->role,
		.input = values->input,
		.tty = values->tty};
	return attach_run(app, &request);
}

const struct cmd cmd_exec = {
	.name = "exec",
	.summary = "Run a command in the environment of a run",
	.synopsis = "[options] [RUN] -- CMD...",
	.examples = {"dlrun exec -- nvidia-smi # in the environment of the newest run",
		"dlrun exec -it resnet-3k2f9 -- python # with this terminal",
		"dlrun exec -i @ -- tar x < code.tar # send an archive to the command"},
	.opts = opts,
	.values_size = sizeof(struct exec_values),
	.min_words = 1,
	.max_words = CMD_WORDS_ANY,
	.words = VALUE_RUN,
	.run = cmd_exec_run,
};
