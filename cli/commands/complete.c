/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/commands/complete.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/init/init.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/runs/runs.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"
#include "cli/term/help.h"
#include "cli/term/ui.h"
#include "core/record/columns.h"
#include "core/record/group.h"
#include "core/store/store.h"
#include "targets/kube/kube_open.h"

enum { DESCRIPTION_COLUMNS = 60 };

struct completion {
	struct app *app;
	struct buf *out;
	const struct cmd *cmd;    /* NULL: its name is what is being written */
	const struct opt *option; /* its value is what is being written, or NULL */
	bool ended;               /* behind -- or a program's first word */
	int n_words;              /* before the cursor */
	char *head;               /* owned: stands before each candidate: "--target=" */
	const char *current;      /* begins each candidate */
};

static void complete_add(struct completion *completion, const char *word, const char *description)
{
	AUTO_FREE char *text = description ? ui_clean(description) : NULL;

	if (!str_starts(word, completion->current) || strpbrk(word, "\t\n"))
		return;
	buf_addf(completion->out, "%s%s\t", completion->head ? completion->head : "", word);
	if (text)
		ui_cut(completion->app, text, DESCRIPTION_COLUMNS, completion->out);
	buf_addc(completion->out, '\n');
}

/* The shell knows better. */
static void leave_to_shell(struct completion *completion, const char *what)
{
	buf_addf(completion->out, ":%s\n", what);
}

/*
 * Values
 */

static void complete_add_run(struct completion *completion, const struct run *run)
{
	AUTO_FREE char *command = run_command_line(run);
	AUTO_FREE char *text = mem_printf("%s · %s", run_state_name(run_state(run)), command);

	complete_add(completion, run_id(run), text);
}

/* Groups of the newest runs. */
static void complete_add_groups(
	struct completion *completion, struct store *store, bool unfinished_only)
{
	const struct store_filter filter = {
		.unfinished_only = unfinished_only, .limit = COMPLETE_RUNS_MAX};
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_STRV struct strv groups = {0};

	if (store_list(store, &filter, &runs, NULL) < 0)
		return;
	vec_foreach (struct run *, run, &runs)
		if (run_group(*run) && strv_find(&groups, run_group(*run)) < 0)
			strv_add(&groups, run_group(*run));
	for (size_t i = 0; i < groups.n; i++) {
		AUTO_FREE char *text = NULL;
		size_t n = 0;

		vec_foreach (struct run *, run, &runs)
			n += str_eq(run_group(*run), groups.v[i]);
		text = mem_printf("a study of %zu%s %s", n,
			runs.n == COMPLETE_RUNS_MAX ? " or more" : "", n == 1 ? "run" : "runs");
		complete_add(completion, groups.v[i], text);
	}
}

/* The store, if there is one: completion makes none. */
static struct store *complete_store(struct completion *completion)
{
	AUTO_FREE char *file = NULL;
	struct session *session;
	struct store *store;

	if (app_session(completion->app, &session, NULL) < 0)
		return NULL;
	file = mem_printf("%s/runs.db", session->dirs.state);
	return access(file, F_OK) < 0 || session_store(session, &store, NULL) < 0 ? NULL : store;
}

static void add_groups(struct completion *completion)
{
	struct store *store = complete_store(completion);

	if (store)
		complete_add_groups(completion, store, false);
}

static void add_runs(struct completion *completion, bool unfinished_only)
{
	const struct store_filter filter = {.unfinished_only = unfinished_only,
		.limit = COMPLETE_RUNS_MAX,
		.id_prefix = completion->current};
	AUTO(run_list_done) struct run_list runs = {0};
	struct store *store = complete_store(completion);

	if (!store || store_list(store, &filter, &runs, NULL) < 0)
		return;
	if (*completion->current == '@') {
		complete_add(completion, "@", "the newest run");
		complete_add(completion, "@-1", "the run before");
	}
	if (!completion->option && completion->cmd && (completion->cmd->flags & CMD_STUDIES))
		complete_add_groups(completion, store, unfinished_only);
	vec_foreach (struct run *, run, &runs)
		complete_add_run(completion, *run);
}

/* Host names from ~/.ssh/config; no host is contacted. */
static void complete_add_hosts(struct completion *completion, const char *prefix)
{
	AUTO_STRV struct strv hosts = {0};
	struct session *session;

	if (app_session(completion->app, &session, NULL) < 0)
		return;
	init_find_hosts(session->dirs.home, &hosts);
	for (size_t i = 0; i < hosts.n; i++) {
		AUTO_FREE char *name = mem_printf("%s%s", prefix, hosts.v[i]);
		complete_add(completion, name, "a host of ~/.ssh/config");
	}
}

static void complete_add_contexts(struct completion *completion, struct session *session)
{
	const struct kubeconfig *kubeconfig;
	AUTO_STRV struct strv names = {0};

	if (kube_open_config(session, &kubeconfig, NULL) < 0)
		return;
	kubeconfig_contexts(kubeconfig, &names);
	vec_foreach (char *, name, &names) {
		AUTO_FREE char *target = mem_printf("kube:%s", *name);
		complete_add(completion, target, "a context of the kubeconfig");
	}
}

/* In a comma-separated list, complete the last element. */
static bool begin_behind_comma(struct completion *completion)
{
	const char *comma = strrchr(completion->current, ',');
	char *before = completion->head;

	if (!comma)
		return false;
	completion->head = mem_printf("%s%.*s", before ? before : "",
		(int)(comma + 1 - completion->current), completion->current);
	free(before);
	completion->current = comma + 1;
	return true;
}

static void add_targets(struct completion *completion)
{
	AUTO_STRV struct strv names = {0};
	struct session *session;
	struct config *config;

	if (str_starts(completion->current, "ssh:") && begin_behind_comma(completion)) {
		complete_add_hosts(completion, "");
		return;
	}
	complete_add(completion, "local", "this machine");
	if (app_session(completion->app, &session, NULL) < 0 ||
		session_config(session, &config, NULL) < 0)
		return;
	config_target_names(config, &names);
	vec_foreach (char *, name, &names)
		if (!str_eq(*name, "local"))
			complete_add(completion, *name,
				json_get_str(config_target(config, *name), "kind"));
	complete_add_hosts(completion, "ssh:");
	complete_add_contexts(completion, session);
}

static void complete_add_target_list(struct completion *completion)
{
	bool has_hosts = strstr(completion->current, ",ssh:");

	if (!str_starts(completion->current, "ssh:") && begin_behind_comma(completion) && has_hosts)
		complete_add_hosts(
			completion, str_starts(completion->current, "ssh:") ? "ssh:" : "");
	else
		add_targets(completion);
}

static void complete_add_keys(struct completion *completion)
{
	for (size_t i = 0; i < config_keys_n; i++)
		complete_add(completion, config_keys[i].name, config_keys[i].help);
}

static void add_columns(struct completion *completion)
{
	begin_behind_comma(completion);
	for (size_t i = 0; i < column_kinds_n; i++)
		complete_add(completion, column_kinds[i].name, column_kinds[i].help);
}

static void add_errors(struct completion *completion)
{
	for (enum err_id id = E_NONE + 1; id < E_COUNT; id++)
		complete_add(completion, err_info(id)->name, err_info(id)->title);
}

static void add_commands(struct completion *completion)
{
	for (size_t i = 0; i < cmds_n; i++)
		if (!(cmds[i]->flags & CMD_HIDDEN))
			complete_add(completion, cmds[i]->name, cmds[i]->summary);
}

static void add_topics(struct completion *completion)
{
	add_commands(completion);
	for (size_t i = 0; i < help_pages_n; i++)
		complete_add(completion, help_pages[i].name, help_pages[i].about);
}

static void complete_add_words(struct completion *completion, const char *words)
{
	for (const char *p = words; p && *p;) {
		size_t n = strcspn(p, " ");
		AUTO_FREE char *word = mem_strndup(p, n);

		complete_add(completion, word, NULL);
		p += n + strspn(p + n, " ");
	}
}

static void add_values(struct completion *completion, enum opt_values values)
{
	switch (values) {
	case VALUE_FILE:
	case VALUE_DATA:
		leave_to_shell(completion, "file");
		break;
	case VALUE_DIR:
		leave_to_shell(completion, "dir");
		break;
	case VALUE_RUN:
		add_runs(completion, false);
		break;
	case VALUE_LIVE:
		add_runs(completion, true);
		break;
	case VALUE_TARGET:
		add_targets(completion);
		break;
	case VALUE_TARGETS:
		complete_add_target_list(completion);
		break;
	case VALUE_RUN_TARGET:
		add_runs(completion, true);
		add_targets(completion);
		break;
	case VALUE_RUN_HOST:
		add_runs(completion, false);
		complete_add_hosts(completion, "");
		break;
	case VALUE_KEY:
		complete_add_keys(completion);
		break;
	case VALUE_ERROR:
		add_errors(completion);
		break;
	case VALUE_TOPIC:
		add_topics(completion);
		break;
	case VALUE_GROUP:
		add_groups(completion);
		break;
	case VALUE_COLUMNS:
		add_columns(completion);
		break;
	case VALUE_LAUNCHER:
		complete_add_words(completion, "torchrun mpirun accelerate deepspeed none");
		break;
	case VALUE_SHELL:
		complete_add_words(completion, "bash zsh fish");
		break;
	default:
		break;
	}
}

static void add_option_value(struct completion *completion)
{
	if (completion->option->choices)
		complete_add_words(completion, completion->option->choices);
	else
		add_values(completion, completion->option->values);
}

/* A word that is no option. */
static void complete_add_word(struct completion *completion)
{
	const struct cmd *cmd = completion->cmd;
	bool first = completion->n_words == 0;

	if (!cmd)
		add_commands(completion);
	else if (cmd->words == VALUE_COMMAND)
		leave_to_shell(completion, first ? "command" : "file");
	else if (cmd->words == VALUE_RUN_DIR)
		add_values(completion, first ? VALUE_RUN : VALUE_DIR);
	else if (cmd->words == VALUE_RUNS_DIRS)
		add_values(completion, strpbrk(completion->current, "/.~") ? VALUE_DIR : VALUE_RUN);
	else if (cmd->words == VALUE_DATA && first)
		complete_add_words(completion, "push ls rm");
	else if (cmd->words == VALUE_RUN_PATH)
		add_values(completion, first ? VALUE_RUN : VALUE_NONE);
	else if (cmd->max_words == CMD_WORDS_ANY || completion->n_words < cmd->max_words)
		add_values(completion, cmd->words);
}

static void add_options(struct completion *completion, const struct opt *opts)
{
	for (const struct opt *opt = opts; opt && opt->type != OPT_END; opt++) {
		AUTO_FREE char *name = mem_printf("--%s", opt->name);

		if (!opt->hidden)
			complete_add(completion, name, opt->help);
	}
}

/*
 * Reading the words before the cursor
 */

static const struct opt *complete_find(
	const struct completion *completion, const char *name, size_t len)
{
	const struct opt *opts = completion->cmd ? completion->cmd->opts : NULL;
	const struct opt *opt = opt_find(opts, name, len);

	return opt ? opt : opt_find(app_opts, name, len);
}

static const struct opt *find_letter(const struct completion *completion, char letter)
{
	const struct opt *opts = completion->cmd ? completion->cmd->opts : NULL;
	const struct opt *opt = opt_find_letter(opts, letter);

	return opt ? opt : opt_find_letter(app_opts, letter);
}

/* The option of the word whose value is the next word, or NULL. */
static const struct opt *wants_next(const struct completion *completion, const char *word)
{
	const struct opt *opt = NULL;

	if (str_starts(word, "--"))
		opt = strchr(word, '=') ? NULL
					: complete_find(completion, word + 2, strlen(word) - 2);
	else if (word[1] && !word[2])
		opt = find_letter(completion, word[1]);
	return opt && opt->type != OPT_FLAG && *opt->arg != '[' ? opt : NULL;
}

static void complete_read_word(struct completion *completion, const char *word)
{
	if (completion->option) {
		/* Runs and targets are those of the place where dlrun will work. */
		if (completion->option->letter == 'C' && chdir(word) < 0)
			completion->ended = true;
		completion->option = NULL;
	} else if (!completion->ended && str_eq(word, "--")) {
		completion->ended = true;
	} else if (!completion->ended && word[0] == '-' && word[1]) {
		completion->option = wants_next(completion, word);
	} else if (!completion->cmd) {
		completion->cmd = cmd_find(word);
		completion->ended = !completion->cmd;
	} else {
		completion->n_words++;
		completion->ended |= (completion->cmd->flags & CMD_PROGRAM) != 0;
	}
}

/* "--target=lo": the value is completed behind the '='. */
static void split_value(struct completion *completion, char *word)
{
	char *equals = strchr(word, '=');

	if (completion->ended || !str_starts(word, "--") || !equals)
		return;
	completion->option = complete_find(completion, word + 2, (size_t)(equals - word) - 2);
	completion->current = equals + 1;
	completion->head = mem_strndup(word, (size_t)(equals + 1 - word));
}

void complete(struct app *app, const struct strv *words, struct buf *out)
{
	struct completion completion = {.app = app, .out = out, .current = ""};
	char *last = words->n ? words->v[words->n - 1] : NULL;

	for (size_t i = 0; i + 1 < words->n; i++)
		complete_read_word(&completion, words->v[i]);
	if (last)
		completion.current = last;
	if (last && !completion.option)
		split_value(&completion, last);
	if (completion.option) {
		add_option_value(&completion);
	} else if (!completion.ended && *completion.current == '-') {
		add_options(&completion, completion.cmd ? completion.cmd->opts : NULL);
		add_options(&completion, app_opts);
	} else if (completion.cmd || !completion.ended) {
		complete_add_word(&completion);
	}
	free(completion.head);
}

/* Printed as it is: to the shell, which is no terminal. */
static int complete_run(struct app *app, void *values UNUSED, struct strv *words)
{
	AUTO_BUF struct buf out = buf_with(COMPLETE_MAX);

	complete(app, words, &out);
	ui_print(app, UI_OUT, out.data, out.len);
	return 0;
}

const struct cmd cmd___complete = {
	.name = "__complete",
	.summary = "Complete a command line",
	.synopsis = "WORD...",
	.flags = CMD_HIDDEN | CMD_OWN_ARGS,
	.run = complete_run,
};
