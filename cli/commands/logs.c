/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/runs/runs.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"
#include "cli/term/ui.h"
#include "core/record/roles.h"

enum { RANK_MAX = 100 * 1000, EXIT_INTERRUPTED = 130 };

struct logs_values {
	bool follow, timestamps, failed;
	int64_t tail, attempt;
	const char *since, *rank, *role;
};

static const struct opt opts[] = {
	{OPT_MEMBER(OPT_FLAG, 'f', "follow", struct logs_values, follow),
		.help = "Go on to the end of the run and exit as it does"},
	{OPT_MEMBER(OPT_INT, 0, "tail", struct logs_values, tail), .arg = "N", .min = 0,
		.max = INT64_MAX, .help = "Begin with the last N lines"},
	{OPT_MEMBER(OPT_STRING, 0, "since", struct logs_values, since), .arg = "TIME",
		.help = "Begin that long ago (10m) or at that time (2026-08-01T12:00:00Z)"},
	{OPT_MEMBER(OPT_STRING, 0, "rank", struct logs_values, rank), .arg = "N|all",
		.help = "Only the output of one rank"},
	{OPT_MEMBER(OPT_STRING, 0, "role", struct logs_values, role), .arg = "NAME",
		.help = "Only the output of one role; --rank is a rank of it"},
	{OPT_MEMBER(OPT_INT, 0, "attempt", struct logs_values, attempt), .arg = "N", .min = 1,
		.max = 1000000, .help = "The output of an earlier attempt (default: the newest)"},
	{OPT_MEMBER(OPT_FLAG, 0, "timestamps", struct logs_values, timestamps),
		.help = "Put the time (UTC) in front of each line"},
	{OPT_MEMBER(OPT_FLAG, 0, "failed", struct logs_values, failed),
		.help = "Of a study: the output of each run that failed, one after the other"},
	{OPT_END},
};

static int parse_since(const char *text, int64_t *ret, struct err *err)
{
	int64_t ago;

	if (!text)
		return 0;
	if (clock_parse(text, ret, NULL) == 0)
		return 0;
	if (duration_parse(text, &ago, NULL) == 0) {
		*ret = clock_wall_ms() - ago;
		return 0;
	}
	AUTO_FREE char *shown = str_shown(text);
	err_set(err, E_USAGE, "--since: '%s' is neither a duration nor a time", shown);
	return err_hint(err, "--since 10m, or --since 2026-08-01T12:00:00Z");
}

static int logs_parse_rank(const char *text, int *ret, struct err *err)
{
	int64_t rank;
	int r;

	if (!text || str_eq(text, "all"))
		return 0;
	r = str_to_int(text, 0, RANK_MAX, "--rank", &rank, err);
	if (r == 0)
		*ret = (int)rank;
	return r;
}

/* A run of one program has no list of ranks. */
static int logs_check_rank(const struct run *run, int rank, struct err *err)
{
	size_t n = json_count(json_get(run->doc, "ranks"));

	if (rank <= 0 || (size_t)rank < n)
		return 0;
	if (n > 1)
		err_set(err, E_USAGE, "--rank %d: %s has the ranks 0 to %zu", rank, run_id(run),
			n - 1);
	else
		err_set(err, E_USAGE, "--rank %d: %s has only rank 0", rank, run_id(run));
	return err_hint(err, "dlrun logs %s", run_id(run));
}

static int logs_set_role(
	const struct run *run, const char *role, struct follow_request *request, struct err *err)
{
	if (request->rank >= 0)
		return runs_find_rank(run, role, request->rank, &request->rank, err);
	int r = role ? roles_find(run->doc, role, &request->first, &request->count, err) : 0;
	if (r < 0)
		return err_prefix(err, "%s", run_id(run));
	if (request->count == 1)
		request->rank = request->first;
	return 0;
}

/* As tail(1) has it for several files. */
static int logs_print_head(struct app *app, const struct run *run, bool is_first)
{
	AUTO_FREE char *line = mem_printf("%s==> %s <==\n", is_first ? "" : "\n", run_id(run));

	return app->options.json ? 0 : ui_write(app, line, strlen(line));
}

/* A log that cannot be read does not keep the others; the exit status is the first failure. */
static int logs_of_failed(struct app *app, const char *word, const struct follow_request *request)
{
	AUTO_ERR struct err err = {0};
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_FREE char *study = NULL;
	int first = 0;

	if (request->follow) {
		err_set(&err, E_USAGE, "--failed cannot be used together with --follow");
		return app_fail(app, &err);
	}
	if (runs_get_study(app, word, &runs, &study, &err) < 0)
		return app_fail(app, &err);
	if (runs_keep_failed(app, study, &runs) == 0)
		app->json_done |= app->options.json;
	for (size_t i = 0; i < runs.n && !app_interrupted && !app->out_lost; i++) {
		if (logs_print_head(app, runs.v[i], i == 0) < 0)
			return 1;
		int status = follow_log(app, runs.v[i], request);
		first = first ? first : status;
	}
	return app_interrupted ? EXIT_INTERRUPTED : first;
}

static int logs_run(struct app *app, void *values_ptr, struct strv *words)
{
	const struct logs_values *values = values_ptr;
	struct follow_request request = {
		.tail_lines = values->tail == OPT_UNSET ? -1 : values->tail,
		.attempt = values->attempt == OPT_UNSET ? 0 : (int)values->attempt,
		.rank = -1,
		.follow = values->follow,
		.timestamps = values->timestamps};
	AUTO_ERR struct err err = {0};
	AUTO_RUN struct run *run = NULL;

	if (parse_since(values->since, &request.since_ms, &err) < 0 ||
		logs_parse_rank(values->rank, &request.rank, &err) < 0)
		return app_fail(app, &err);
	if (values->failed && values->role) {
		err_set(&err, E_USAGE, "--failed cannot be used together with --role");
		return app_fail(app, &err);
	}
	if (values->failed)
		return logs_of_failed(app, words->n ? words->v[0] : NULL, &request);
	if (runs_get(app, words->n ? words->v[0] : NULL, &run, &err) < 0 ||
		logs_set_role(run, values->role, &request, &err) < 0 ||
		logs_check_rank(run, request.rank, &err) < 0)
		return app_fail(app, &err);
	return follow_log(app, run, &request);
}

const struct cmd cmd_logs = {
	.name = "logs",
	.summary = "Show what a run has printed",
	.synopsis = "[options] [RUN|STUDY]",
	.examples = {"dlrun logs -f # follow the newest run to its end",
		"dlrun logs --tail 20 resnet-3k2f9 # the last 20 lines of one run",
		"dlrun logs --failed --tail 20 tiger-4k2x9 # why runs of a study failed"},
	.opts = opts,
	.values_size = sizeof(struct logs_values),
	.max_words = 1,
	.words = VALUE_RUN,
	.flags = CMD_STUDIES,
	.run = logs_run,
};
