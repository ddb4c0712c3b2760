/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "app/runs/refresh.h"
#include "app/submit/submit.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/runs/attach.h"
#include "cli/runs/runs.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"
#include "core/config/target_names.h"
#include "core/config/words.h"
#include "core/record/run.h"
#include "core/store/store.h"
#include "targets/ssh/terminal.h"
#include "targets/targets.h"

enum { RANK_MAX = 100 * 1000 };

struct ssh_values {
	bool accept_new_host;
	int64_t rank;
	const char *role;
};

static const struct opt opts[] = {
	{OPT_MEMBER(OPT_INT, 0, "rank", struct ssh_values, rank), .arg = "N", .min = 0,
		.max = RANK_MAX, .help = "In the environment of this rank (default: 0)"},
	{OPT_MEMBER(OPT_STRING, 0, "role", struct ssh_values, role), .arg = "NAME",
		.help = "A role of the run; --rank is a rank of it"},
	{OPT_MEMBER(OPT_FLAG, 0, "accept-new-host", struct ssh_values, accept_new_host),
		.help = "Accept the key of a host that ssh does not know yet"},
	{OPT_END},
};

/* A bare word is a host. */
static bool is_run(const char *word)
{
	const char *colon = strchr(word, ':');

	return word[0] == '@' || run_id_is_valid(colon ? colon + 1 : word);
}

/*
 * Work on a host
 */

static void cmd_ssh_print(void *ctx, const char *text)
{
	app_note(ctx, "%s", text);
}

static void cmd_ssh_warn(void *ctx, const char *text)
{
	app_warn(ctx, "%s", text);
}

/* A target of the configuration by that name goes before a host. */
static int cmd_ssh_set_target(struct app *app, const char *word, struct err *err)
{
	struct config *config;
	struct session *session;
	int r = app_session(app, &session, err);

	if (r == 0)
		r = session_config(session, &config, err);
	if (r < 0)
		return r;
	const struct target_ops *ops =
		config_target(config, word) ? target_ops_named(config, word) : NULL;
	if (ops && !ops->has_login) {
		err_set(err, E_TARGET_UNSUPPORTED, "target %s is not a host: it is of kind %s",
			word, ops->kind);
		return err_hint(err, "dlrun ssh ssh:%s", word);
	}
	AUTO_FREE char *name =
		ops || str_starts(word, "ssh:") ? mem_strdup(word) : mem_printf("ssh:%s", word);
	return config_override(config, "target", name, err);
}

/* A terminal is in one place. */
static int set_one_host(struct app *app, struct err *err)
{
	struct config *config = app->session.config;
	int64_t nodes = config_int(config, "resources.nodes", 1);

	if (nodes == 1)
		return 0;
	app_note(app, "this is on one host: resources.nodes (%" PRId64 ") is for submit", nodes);
	return config_override(config, "resources.nodes", "1", err);
}

/* Whether run is at one of the targets that are wanted now. */
static bool cmd_ssh_is_at_target(const struct app *app, const struct run *run)
{
	const struct config *config = app->session.config;
	AUTO_STRV struct strv names = {0};

	return target_names_split(config, config_str(config, "target"), &names, NULL) == 0 &&
	       strv_find(&names, run_target(run)) >= 0;
}

/* Whether run was begun with the same words from here, and is not known to have ended. */
static bool cmd_ssh_is_same(
	const struct app *app, const struct run *run, const struct strv *command)
{
	const struct tree_place *place = app->session.place;
	AUTO_FREE char *root = words_get_one(json_get(run->doc, "origin"), "root");
	AUTO_FREE char *cwd = words_get_one(json_get(run->doc, "origin"), "cwd");
	AUTO_STRV struct strv words = {0};

	if (!run_is_terminal(run) || run_state_is_final(run_state(run)) || !place ||
		!cmd_ssh_is_at_target(app, run) || !str_eq(root, place->root) ||
		!str_eq(cwd, place->prefix) || words_get(run->spec, "command", &words, NULL) < 0 ||
		words.n != command->n)
		return false;
	for (size_t i = 0; i < words.n; i++)
		if (!str_eq(words.v[i], command->v[i]))
			return false;
	return true;
}

/* Find the run that an earlier connection of the same command has left; NULL: there is none. */
static struct run *find_left(struct app *app, const struct strv *command)
{
	const struct store_filter filter = {.unfinished_only = true};
	AUTO(run_list_done) struct run_list runs = {0};
	const struct tree_place *place;
	struct store *store;

	if (session_place(&app->session, &place, NULL) < 0 ||
		session_store(&app->session, &store, NULL) < 0 ||
		store_list(store, &filter, &runs, NULL) < 0)
		return NULL;
	for (size_t i = 0; i < runs.n; i++) {
		struct run *run;
		if (cmd_ssh_is_same(app, runs.v[i], command) &&
			runs_find(&app->session, run_id(runs.v[i]), &run, NULL) == 0) {
			if (!run_state_is_final(run_state(run)))
				return run;
			run_free(run);
		}
	}
	return NULL;
}

static int work_on_host(struct app *app, const struct ssh_values *values, const char *word,
	const struct strv *command)
{
	static const char *const shell[] = {"/bin/sh", "-c", "exec \"${SHELL:-/bin/sh}\" -l"};
	const struct submit_events events = {
		.notice = cmd_ssh_print, .warning = cmd_ssh_warn, .ctx = app};
	/* The user sits at the terminal, and waits for it now. */
	struct submit_options options = {.command = command, .terminal = true, .no_offline = true};
	AUTO_ERR struct err err = {0};
	AUTO_RUN struct run *run = NULL;
	AUTO_STRV struct strv words = {0};

	if (command->n == 0) {
		for (size_t i = 0; i < ARRAY_LEN(shell); i++)
			strv_add(&words, shell[i]);
		options.command = &words;
		options.name = "shell";
	}
	if (cmd_ssh_set_target(app, word, &err) < 0 || set_one_host(app, &err) < 0)
		return app_fail(app, &err);
	app->session.env.accept_new_host = values->accept_new_host;
	run = find_left(app, options.command);
	if (run) {
		app_note(app, "back in %s", run_id(run));
		return attach_terminal(app, run, isatty(STDIN_FILENO));
	}
	if (submit_run(&app->session, &options, &events, &run, &err) < 0)
		return app_fail(app, &err);
	app_note(app, "%s on %s  (come back: dlrun ssh %s)", run_id(run), word, run_id(run));
	submit_finish(&app->session, run, &events);
	return attach_terminal(app, run, isatty(STDIN_FILENO));
}

static int cmd_ssh_run(struct app *app, void *values_ptr, struct strv *words)
{
	const struct ssh_values *values = values_ptr;
	AUTO_STRV struct strv command = {0};
	AUTO_ERR struct err err = {0};
	AUTO_RUN struct run *run = NULL;

	for (size_t i = 1; i < words->n; i++)
		strv_add(&command, words->v[i]);
	if (!is_run(words->v[0]))
		return work_on_host(app, values, words->v[0], &command);
	if (command.n == 0) {
		if (runs_get(app, words->v[0], &run, &err) < 0)
			return app_fail(app, &err);
		if (run_is_terminal(run) && !run_state_is_final(run_state(run)))
			return attach_terminal(app, run, isatty(STDIN_FILENO));
	}
	const struct attach_request request = {.run = run ? run_id(run) : words->v[0],
		.command = &command,
		.rank = values->rank == OPT_UNSET ? 0 : (int)values->rank,
		.role = values->role,
		.input = true,
		.tty = command.n == 0 && isatty(STDIN_FILENO)};
	return attach_run(app, &request);
}

const struct cmd cmd_ssh = {
	.name = "ssh",
	.summary = "Work on a host with this working tree, or inside a run",
	.synopsis = "[options] HOST|RUN [-- CMD...]",
	.examples = {"dlrun ssh gpu1 # this working tree there, and a shell in it",
		"dlrun ssh gpu1 -- python3 -i train.py # the same with a program",
		"dlrun ssh @ # back to it, or a shell inside the newest run"},
	.opts = opts,
	.values_size = sizeof(struct ssh_values),
	.min_words = 1,
	.max_words = CMD_WORDS_ANY,
	.words = VALUE_RUN_HOST,
	.flags = CMD_STARTS,
	.run = cmd_ssh_run,
};
