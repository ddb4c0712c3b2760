#include <string.h>
#include <unistd.h>

#include "base/auto.h"
#include "base/str.h"
#include "cli/app.h"
#include "cli/beside.h"
#include "cli/cmd.h"
#include "run/run.h"

enum { RANK_MAX = 100 * 1000 };

struct ssh_values {
	int64_t rank;
};

static const struct opt opts[] = {
	{OPT_MEMBER(OPT_INT, 0, "rank", struct ssh_values, rank), .arg = "N", .min = 0,
		.max = RANK_MAX, .help = "Beside this rank (default: 0)"},
	{OPT_END},
};

/* A bare word is a host. */
static bool is_run(const char *word)
{
	const char *colon = strchr(word, ':');

	return word[0] == '@' || run_id_is_valid(colon ? colon + 1 : word);
}

static int refuse_host(struct app *app, const char *word)
{
	AUTO_ERR struct err err = {0};
	AUTO_FREE char *shown = str_shown(word);

	err_set(&err, E_TARGET_UNSUPPORTED,
		"%s is no whole id of a run, and work on a host is not there yet", shown);
	err_hint(&err, "dlrun ssh @, or an id from dlrun ps");
	return app_fail(app, &err);
}

static int run(struct app *app, void *values_ptr, struct strv *words)
{
	const struct ssh_values *values = values_ptr;
	AUTO_STRV struct strv command = {0};

	if (!is_run(words->v[0]))
		return refuse_host(app, words->v[0]);
	for (size_t i = 1; i < words->n; i++)
		strv_add(&command, words->v[i]);
	const struct beside_request request = {.run = words->v[0],
		.command = &command,
		.rank = values->rank == OPT_UNSET ? 0 : (int)values->rank,
		.input = true,
		.tty = command.n == 0 && isatty(STDIN_FILENO)};
	return beside_run(app, &request);
}

static const char *const examples[CMD_EXAMPLES] = {
	"dlrun ssh @ # a shell beside the program of the newest run",
	"dlrun ssh --rank 1 resnet-3k2f9 # beside another rank",
	"dlrun ssh @ -- df -h # one command instead of a shell",
};

const struct cmd cmd_ssh = {
	.name = "ssh",
	.summary = "Open a shell beside the program of a run",
	.synopsis = "[options] RUN [-- CMD...]",
	.examples = examples,
	.opts = opts,
	.values_size = sizeof(struct ssh_values),
	.min_words = 1,
	.max_words = CMD_WORDS_ANY,
	.words = VALUE_LIVE,
	.run = run,
};
