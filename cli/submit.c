#include <stdio.h>
#include <string.h>

#include "base/auto.h"
#include "base/clock.h"
#include "base/fs.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/str.h"
#include "cli/app.h"
#include "cli/cmd.h"
#include "cli/follow.h"
#include "cli/preview.h"
#include "cli/runs.h"
#include "cli/ui.h"
#include "run/submit.h"

struct submit_values {
	const char *target, *name, *image, *from, *group, *note, *name_file, *signal;
	int64_t timeout, grace, allow_size, gpus, retries;
	bool follow, detach, dry_run, list_files, full;
	struct strv env, secrets, include, tags, allow;
};

static const struct opt opts[] = {
	{OPT_MEMBER(OPT_STRING, 't', "target", struct submit_values, target), .arg = "TARGET",
		.help = "Where to run: local or a target of dlrun.yaml", .values = VALUE_TARGET,
		.key = "target"},
	{OPT_MEMBER(OPT_STRING, 'n', "name", struct submit_values, name), .arg = "NAME",
		.help = "First part of the run's id", .key = "name"},
	{OPT_MEMBER(OPT_FLAG, 'f', "follow", struct submit_values, follow),
		.help = "Show the output and exit as the program does (default on a terminal)"},
	{OPT_MEMBER(OPT_FLAG, 'd', "detach", struct submit_values, detach),
		.help = "Print the run's id and leave (default elsewhere)"},
	{OPT_MEMBER(OPT_LIST, 'e', "env", struct submit_values, env), .arg = "K[=V]",
		.help = "Set a variable; without a value, as in this shell"},
	{OPT_MEMBER(OPT_LIST, 0, "secret", struct submit_values, secrets), .arg = "K[=@FILE]",
		.help = "Set a variable whose value is written nowhere, from this shell or a file"},
	{OPT_MEMBER(OPT_INT, 'g', "gpus", struct submit_values, gpus), .arg = "N",
		.help = "GPUs; 0: none (default: one where there is any)", .max = 1024,
		.key = "resources.gpus"},
	{OPT_MEMBER(OPT_INT, 0, "retries", struct submit_values, retries), .arg = "N",
		.help = "Start it again up to N times when it fails", .max = 1000,
		.key = "retries"},
	{OPT_MEMBER(OPT_STRING, 0, "signal", struct submit_values, signal), .arg = "SIG@SECONDS",
		.help = "Send SIG to the program that long before its time limit", .key = "signal"},
	{OPT_MEMBER(OPT_DURATION, 0, "timeout", struct submit_values, timeout), .arg = "TIME",
		.help = "Stop the program after this time: 90s, 30m, 12h", .key = "timeout"},
	{OPT_MEMBER(OPT_DURATION, 0, "grace", struct submit_values, grace), .arg = "TIME",
		.help = "Time between TERM and KILL when it is stopped", .key = "grace"},
	{OPT_MEMBER(OPT_STRING, 0, "image", struct submit_values, image), .arg = "BASE",
		.help = "Base image: scratch or oci:DIR[:TAG]", .key = "image"},
	{OPT_MEMBER(OPT_LIST, 0, "include", struct submit_values, include), .arg = "PATH",
		.help = "Send a path that git ignores, too", .values = VALUE_FILE},
	{OPT_MEMBER(OPT_LIST, 0, "allow", struct submit_values, allow), .arg = "PATH",
		.help = "Send a file that was refused as secret or large", .values = VALUE_FILE},
	{OPT_MEMBER(OPT_SIZE, 0, "allow-size", struct submit_values, allow_size), .arg = "SIZE",
		.help = "Send a tree of up to SIZE (500Mi, 2Gi)"},
	{OPT_MEMBER(OPT_STRING, 0, "from", struct submit_values, from), .arg = "RUN",
		.help = "Run the exact code of an earlier run again", .values = VALUE_RUN},
	{OPT_MEMBER(OPT_LIST, 0, "tag", struct submit_values, tags), .arg = "K[=V]",
		.help = "A word to find the run by"},
	{OPT_MEMBER(OPT_STRING, 0, "group", struct submit_values, group), .arg = "NAME",
		.help = "A word that runs of one study share", .key = "group"},
	{OPT_MEMBER(OPT_STRING, 0, "note", struct submit_values, note), .arg = "TEXT",
		.help = "A sentence to remember it by"},
	{OPT_MEMBER(OPT_STRING, 0, "name-file", struct submit_values, name_file), .arg = "FILE",
		.help = "Write the run's id to FILE", .values = VALUE_FILE},
	{OPT_MEMBER(OPT_FLAG, 0, "full", struct submit_values, full),
		.help = "Write the whole code layer anew, not what changed"},
	{OPT_MEMBER(OPT_FLAG, 0, "dry-run", struct submit_values, dry_run),
		.help = "Say what would run, and write nothing"},
	{OPT_MEMBER(OPT_FLAG, 0, "list-files", struct submit_values, list_files),
		.help = "With --dry-run: every file that goes or is left out"},
	{OPT_END},
};

static struct submit_options options_of(
	const struct submit_values *values, const struct strv *command)
{
	return (struct submit_options){
		.command = command,
		.env = &values->env,
		.secrets = &values->secrets,
		.include = &values->include,
		.allow = &values->allow,
		.tags = &values->tags,
		.name = values->name,
		.group = values->group,
		.note = values->note,
		.from = values->from,
		.allow_bytes = values->allow_size == OPT_UNSET ? 0 : values->allow_size,
		.full = values->full,
	};
}

/*
 * What is said while it happens
 */

static void on_snapshot(void *ctx, const struct snapshot *snapshot, int64_t ms)
{
	preview_say_snapshot(ctx, snapshot, ms);
}

static void on_image(void *ctx, const struct image *image, int64_t ms)
{
	preview_say_image(ctx, image, ms);
}

/* What was not asked for is said, too: one GPU, where there are any. */
static const char *gpu_words(const struct run *run, char out[static 32])
{
	int64_t n = json_get_int(json_get(run->doc, "resources"), "gpus", -1);

	*out = '\0';
	if (n < 0)
		return " · one GPU (-g 0: none, -g N: more)";
	if (n > 0)
		snprintf(out, 32, " · %lld GPU%s", (long long)n, n == 1 ? "" : "s");
	return out;
}

static void on_target(void *ctx, const struct run *run)
{
	const char *parent = json_get_str(run->doc, "parent");
	char gpus[32];
	unsigned n = os_processors();

	if (parent)
		app_phase(ctx, "code", "that of %s", parent);
	app_phase(ctx, "target", "%s · this machine (%u %s)%s", run_target(run), n,
		n == 1 ? "processor" : "processors", gpu_words(run, gpus));
}

static void on_notice(void *ctx, const char *text)
{
	app_phase(ctx, "python", "%s", text);
}

static void on_warning(void *ctx, const char *text)
{
	app_warn(ctx, "%s", text);
}

static void say_run(struct app *app, const struct run *run, bool follow)
{
	const char *id = run_id(run);

	if (run_state_is_final(run_state(run)))
		app_phase(app, "run", "%s", id);
	else if (follow)
		app_phase(app, "run", "%s  (come back: dlrun logs -f %s · stop: dlrun cancel %s)",
			id, id, id);
	else
		app_phase(app, "run", "%s  (follow: dlrun logs -f %s · stop: dlrun cancel %s)", id,
			id, id);
}

/*
 * After the start
 */

static int write_name_file(const char *path, const struct run *run, struct err *err)
{
	AUTO_FREE char *line = mem_printf("%s\n", run_id(run));

	if (!path)
		return 0;
	return fs_replace(path, line, strlen(line), 0644, FS_SYNC_NONE, err);
}

static int leave(struct app *app, const struct run *run)
{
	if (app->options.json)
		app_print_json(app, json_clone(run->doc));
	else
		ui_printf(app, UI_OUT, "%s\n", run_id(run));
	return 0;
}

static int follow_run(struct app *app, struct run *run)
{
	const struct follow_request request = {.tail_lines = -1, .rank = -1, .follow = true};

	return follow_log(app, run, &request);
}

static bool program_missing(const struct run *run)
{
	struct run_exit exit;

	run_get_exit(run, &exit);
	return run_state_is_final(run_state(run)) &&
	       (str_eq(exit.reason, "NotFound") || str_eq(exit.reason, "NotExecutable"));
}

static int start(struct app *app, const struct submit_values *values, struct session *session,
	const struct submit_options *options, bool follow)
{
	const struct submit_events events = {.snapshot = on_snapshot,
		.image = on_image,
		.target = on_target,
		.notice = on_notice,
		.warning = on_warning,
		.ctx = app};
	AUTO_ERR struct err err = {0};
	AUTO_RUN struct run *run = NULL;
	int status;

	if (submit_run(session, options, &events, &run, &err) < 0)
		return app_fail(app, &err);
	app->accepted = true;
	if (follow)
		app_catch_signals();
	say_run(app, run, follow);
	if (write_name_file(values->name_file, run, &err) < 0)
		app_warn(app, "--name-file: %s", err.message);
	/* It has failed already; without a follow the id is printed all the same. */
	if (program_missing(run)) {
		if (!follow || app->options.json)
			leave(app, run);
		submit_finish(session, run, &events);
		return runs_say_end(app, run);
	}
	status = follow ? 0 : leave(app, run);
	submit_finish(session, run, &events);
	return follow ? follow_run(app, run) : status;
}

static int check(const struct submit_values *values, struct err *err)
{
	if (values->follow && values->detach) {
		err_set(err, E_USAGE, "--follow and --detach exclude each other");
		return err_hint(err, "leave one of them out");
	}
	if (values->list_files && !values->dry_run) {
		err_set(err, E_USAGE, "--list-files goes with --dry-run");
		return err_hint(err, "dlrun submit --dry-run --list-files");
	}
	return 0;
}

static int run(struct app *app, void *values_ptr, struct strv *words)
{
	const struct submit_values *values = values_ptr;
	const struct submit_options options = options_of(values, words);
	bool follow = values->follow || (app->out_tty && !values->detach);
	AUTO_ERR struct err err = {0};
	struct config *config;

	if (check(values, &err) < 0 || app_config(app, opts, values, &config, &err) < 0)
		return app_fail(app, &err);
	if (values->dry_run)
		return preview_print(app, &options, values->list_files);
	return start(app, values, &app->session, &options, follow);
}

static const char *const examples[CMD_EXAMPLES] = {
	"dlrun submit -- python3 train.py --lr 0.1 # run it and follow the output",
	"dlrun submit -d -n sweep --timeout 2h -- ./train.sh # name it, limit it, leave",
	"dlrun submit --from @ -- python3 train.py --lr 0.2 # newest run's code, other words",
};

const struct cmd cmd_submit = {
	.name = "submit",
	.summary = "Run a program on the code of this directory, exactly as it is now",
	.synopsis = "[options] [--] [PROGRAM [ARGUMENT...]]",
	.examples = examples,
	.opts = opts,
	.values_size = sizeof(struct submit_values),
	.max_words = CMD_WORDS_ANY,
	.words = VALUE_COMMAND,
	.flags = CMD_PROGRAM,
	.run = run,
};
