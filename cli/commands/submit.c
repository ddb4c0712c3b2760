/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "app/lifecycle/restart.h"
#include "app/runs/held.h"
#include "app/submit/submit.h"
#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/runs/runs.h"
#include "cli/runs/preview.h"
#include "cli/runs/transfer.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"
#include "cli/term/ui.h"
#include "targets/targets.h"

enum { MEMORY_MIN = 1 << 20 };

struct submit_values {
	const char *target, *name, *image, *from, *group, *note, *name_file, *signal;
	const char *gpu_type, *cpus, *queue, *priority, *output;
	int64_t timeout, grace, allow_size, gpus, retries, nodes, memory;
	bool follow, detach, dry_run, list_files, full, accept_new_host, no_offline;
	struct strv env, secrets, include, tags, allow, ports;
};

static const struct opt opts[] = {
	{OPT_MEMBER(OPT_STRING, 't', "target", struct submit_values, target), .arg = "TARGET",
		.help = "Where to run: local, kube[:CONTEXT[/NAMESPACE]], ssh:HOST, one of yours",
		.values = VALUE_TARGET, .key = "target"},
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
		.help = "GPUs of each node; 0: none (default: one, in a cluster none)", .max = 1024,
		.key = "resources.gpus"},
	{OPT_MEMBER(OPT_STRING, 0, "gpu-type", struct submit_values, gpu_type), .arg = "NAME",
		.help = "GPU model (a100, A100-80GB); in a cluster one of gpu_types:",
		.key = "resources.gpu_type"},
	{OPT_MEMBER(OPT_STRING, 0, "cpus", struct submit_values, cpus), .arg = "N",
		.help = "CPUs that each node must have: 4, 0.5", .key = "resources.cpus"},
	{OPT_MEMBER(OPT_SIZE, 0, "memory", struct submit_values, memory), .arg = "SIZE",
		.help = "Memory that each node must have: 16Gi", .key = "resources.memory"},
	{OPT_MEMBER(OPT_INT, 'N', "nodes", struct submit_values, nodes), .arg = "N",
		.help = "Nodes that work together: of a cluster, or SSH hosts", .max = 10000,
		.key = "resources.nodes"},
	{OPT_MEMBER(OPT_STRING, 0, "queue", struct submit_values, queue), .arg = "NAME",
		.help = "LocalQueue of Kueue to wait in", .key = "queue"},
	{OPT_MEMBER(OPT_STRING, 0, "priority", struct submit_values, priority), .arg = "NAME",
		.help = "PriorityClass in the cluster", .key = "priority"},
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
		.help = "Base image: scratch, oci:DIR[:TAG] or HOST/REPO:TAG", .key = "image"},
	{OPT_MEMBER(OPT_LIST, 0, "include", struct submit_values, include), .arg = "PATH",
		.help = "Include a path that git ignores", .values = VALUE_FILE},
	{OPT_MEMBER(OPT_LIST, 0, "port", struct submit_values, ports), .arg = "N",
		.help = "A port of the program, to be reached here while its output follows"},
	{OPT_MEMBER(OPT_LIST, 0, "allow", struct submit_values, allow), .arg = "PATH",
		.help = "Allow a file that was refused as secret or large", .values = VALUE_FILE},
	{OPT_MEMBER(OPT_SIZE, 0, "allow-size", struct submit_values, allow_size), .arg = "SIZE",
		.help = "Allow a working tree of up to SIZE (500Mi, 2Gi)"},
	{OPT_MEMBER(OPT_STRING, 0, "from", struct submit_values, from), .arg = "RUN",
		.help = "Run the exact code of an earlier run again", .values = VALUE_RUN},
	{OPT_MEMBER(OPT_LIST, 0, "tag", struct submit_values, tags), .arg = "K[=V]",
		.help = "A tag to find the run by"},
	{OPT_MEMBER(OPT_STRING, 0, "group", struct submit_values, group), .arg = "NAME",
		.help = "A name that runs of one study share", .key = "group"},
	{OPT_MEMBER(OPT_STRING, 0, "note", struct submit_values, note), .arg = "TEXT",
		.help = "A sentence to remember it by"},
	{OPT_MEMBER(OPT_STRING, 0, "name-file", struct submit_values, name_file), .arg = "FILE",
		.help = "Write the run's id to FILE", .values = VALUE_FILE},
	{OPT_MEMBER(OPT_FLAG, 0, "full", struct submit_values, full),
		.help = "Write the full code layer, not only what changed"},
	{OPT_MEMBER(OPT_FLAG, 0, "no-offline", struct submit_values, no_offline),
		.help = "Fail where the target does not answer, instead of queueing here"},
	{OPT_MEMBER(OPT_FLAG, 0, "accept-new-host", struct submit_values, accept_new_host),
		.help = "Accept the key of a host that ssh does not know yet"},
	{OPT_MEMBER(OPT_FLAG, 0, "dry-run", struct submit_values, dry_run),
		.help = "Say what would run, and write nothing"},
	{OPT_MEMBER(OPT_STRING, 'o', "output", struct submit_values, output), .arg = "FORMAT",
		.help = "With --dry-run: print what would be made there, as yaml or json"},
	{OPT_MEMBER(OPT_FLAG, 0, "list-files", struct submit_values, list_files),
		.help = "With --dry-run: every file that is sent or excluded"},
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
		.ports = &values->ports,
		.name = values->name,
		.group = values->group,
		.note = values->note,
		.from = values->from,
		.allow_bytes = values->allow_size == OPT_UNSET ? 0 : values->allow_size,
		.full = values->full,
		.no_offline = values->no_offline,
	};
}

/*
 * Progress messages
 */

struct saying {
	struct app *app;
	struct transfer transfer;
};

static struct app *app_of(void *ctx)
{
	struct saying *saying = ctx;

	transfer_clear(&saying->transfer);
	return saying->app;
}

static void on_snapshot(void *ctx, const struct snapshot *snapshot, int64_t ms)
{
	preview_print_snapshot(app_of(ctx), snapshot, ms);
}

static void cmd_submit_on_progress(void *ctx, const struct uploads_progress *progress)
{
	transfer_show(&((struct saying *)ctx)->transfer, progress);
}

static void on_image(void *ctx, const struct image *image, int64_t ms)
{
	preview_print_image(app_of(ctx), image, ms);
}

enum { GPU_WORDS_SIZE = 32 };

/* Mention GPUs that were not requested, too: one, where there are any. */
static const char *cmd_submit_gpu_words(const struct run *run, char out[static GPU_WORDS_SIZE])
{
	int64_t n = json_get_int(json_get(run->doc, "resources"), "gpus", -1);

	*out = '\0';
	if (n < 0)
		return " · one GPU (-g 0: none, -g N: more)";
	if (n > 0)
		snprintf(out, GPU_WORDS_SIZE, " · %lld GPU%s", (long long)n, n == 1 ? "" : "s");
	return out;
}

static void cmd_submit_print_cluster(struct app *app, const struct run *run)
{
	const struct json *target = json_get(run->doc, "target");
	int64_t nodes = json_get_int(json_get(run->doc, "resources"), "nodes", 1);
	AUTO_FREE char *many = nodes > 1 ? mem_printf(" · %lld nodes", (long long)nodes) : NULL;
	char gpus[GPU_WORDS_SIZE];

	app_phase(app, "target", "%s · context %s · namespace %s%s%s", run_target(run),
		json_get_str(target, "context"), json_get_str(target, "namespace"),
		many ? many : "", cmd_submit_gpu_words(run, gpus));
	if (run_restarts_by_itself(run))
		app_phase(app, "retries", "the cluster restarts all %lld nodes together (JobSet)",
			(long long)nodes);
}

static void print_host(struct app *app, const struct run *run)
{
	const struct json *hosts = json_get(json_get(run->doc, "target"), "hosts");
	const char *host = json_str(hosts ? json_first(hosts) : NULL);
	bool is_auto = json_get_int(json_get(run->doc, "resources"), "gpus", -1) < 0;
	char gpus[GPU_WORDS_SIZE];

	app_phase(app, "target", "%s · host %s%s", run_target(run), host ? host : "?",
		is_auto ? " · one GPU if it has any (-g 0: none)"
			: cmd_submit_gpu_words(run, gpus));
}

static void print_machine(struct app *app, const struct run *run)
{
	char gpus[GPU_WORDS_SIZE];
	unsigned n = os_processors();

	app_phase(app, "target", "%s · this machine (%u %s)%s", run_target(run), n,
		n == 1 ? "CPU" : "CPUs", cmd_submit_gpu_words(run, gpus));
}

static void on_target(void *ctx, const struct run *run)
{
	const struct target_ops *ops = target_ops_recorded(run);
	const char *parent = json_get_str(run->doc, "parent");
	struct app *app = app_of(ctx);

	if (parent)
		app_phase(app, "code", "that of %s", parent);
	if (ops->needs_image)
		cmd_submit_print_cluster(app, run);
	else if (ops->has_login)
		print_host(app, run);
	else
		print_machine(app, run);
}

static void cmd_submit_on_notice(void *ctx, const char *text)
{
	app_phase(app_of(ctx), "note", "%s", text);
}

static void on_warning(void *ctx, const char *text)
{
	app_warn(app_of(ctx), "%s", text);
}

static void cmd_submit_print_run(struct app *app, const struct run *run, bool follow)
{
	const char *id = run_id(run);

	if (run_is_held(run)) {
		app_phase(
			app, "target", "%s · %s", run_target(run), json_get_str(run->doc, "text"));
		app_phase(app, "",
			"it is sent when %s answers: dlrun queue --serve, or the next "
			"dlrun (take it back: dlrun cancel %s)",
			run_target(run), id);
	}
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

static int cmd_submit_leave(struct app *app, const struct run *run)
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

static int cmd_submit_start(struct app *app, const struct submit_values *values,
	struct session *session, const struct submit_options *options, bool follow)
{
	struct saying saying = {.app = app, .transfer = {.app = app}};
	const struct submit_events events = {.snapshot = on_snapshot,
		.progress = cmd_submit_on_progress,
		.image = on_image,
		.target = on_target,
		.notice = cmd_submit_on_notice,
		.warning = on_warning,
		.ctx = &saying};
	AUTO_ERR struct err err = {0};
	AUTO_RUN struct run *run = NULL;
	int status;

	int r = submit_run(session, options, &events, &run, &err);
	transfer_clear(&saying.transfer);
	if (r < 0)
		return app_fail(app, &err);
	app->accepted = true;
	if (follow)
		app_catch_signals();
	cmd_submit_print_run(app, run, follow);
	if (write_name_file(values->name_file, run, &err) < 0)
		app_warn(app, "--name-file: %s", err.message);
	/* The run has failed already; without a follow the id is printed all the same. */
	if (program_missing(run)) {
		if (!follow || app->options.json)
			cmd_submit_leave(app, run);
		submit_finish(session, run, &events);
		return runs_print_end(app, run);
	}
	if (!follow)
		reach_print(app, run);
	status = follow ? 0 : cmd_submit_leave(app, run);
	submit_finish(session, run, &events);
	return follow ? follow_run(app, run) : status;
}

static int cmd_submit_check(const struct submit_values *values, struct err *err)
{
	if (values->follow && values->detach) {
		err_set(err, E_USAGE, "--follow and --detach cannot be used together");
		return err_hint(err, "--follow shows the output, --detach prints the run's id");
	}
	if (values->list_files && !values->dry_run) {
		err_set(err, E_USAGE, "--list-files requires --dry-run");
		return err_hint(err, "dlrun submit --dry-run --list-files …");
	}
	if (values->list_files && values->from) {
		err_set(err, E_USAGE, "--list-files and --from cannot be used together");
		return err_hint(err, "dlrun checkout %s code", values->from);
	}
	/* Slurm's --mem counts megabytes. */
	if (values->memory != OPT_UNSET && values->memory < MEMORY_MIN) {
		err_set(err, E_USAGE, "--memory: %lld bytes are less than any program needs",
			(long long)values->memory);
		return err_hint(err, "dlrun submit --memory %lldMi …", (long long)values->memory);
	}
	if (!values->output)
		return 0;
	if (!str_eq(values->output, "yaml") && !str_eq(values->output, "json")) {
		AUTO_FREE char *shown = str_shown(values->output);
		err_set(err, E_USAGE, "--output is a format of --dry-run, yaml or json, not '%s'",
			shown);
		return err_hint(err, "dlrun logs > log.txt writes a run's output to a file");
	}
	if (values->dry_run)
		return 0;
	err_set(err, E_USAGE, "--output requires --dry-run");
	return err_hint(err, "dlrun submit --dry-run -o %s -- python3 train.py", values->output);
}

static int cmd_submit_run(struct app *app, void *values_ptr, struct strv *words)
{
	const struct submit_values *values = values_ptr;
	struct submit_options options = options_of(values, words);
	bool follow = values->follow || (app->out_tty && !values->detach);
	AUTO_ERR struct err err = {0};
	struct config *config;

	if (cmd_submit_check(values, &err) < 0 || app_config(app, opts, values, &config, &err) < 0)
		return app_fail(app, &err);
	app->session.env.accept_new_host = values->accept_new_host;
	options.followed = follow;
	if (values->output)
		return preview_print_objects(app, &options, str_eq(values->output, "json"));
	if (values->dry_run)
		return preview_print(app, &options, values->list_files);
	return cmd_submit_start(app, values, &app->session, &options, follow);
}

static const char *const examples[CMD_EXAMPLES] = {
	"dlrun submit -- python3 train.py --lr 0.1 # run it and follow the output",
	"dlrun submit -d -n sweep --timeout 2h -- ./train.sh # name it, limit it, leave",
	"dlrun submit --from @ -- python3 train.py --lr 0.2 # newest run's code, different arguments",
};

const struct cmd cmd_submit = {
	.name = "submit",
	.summary = "Run a program on this directory's code, exactly as it is now",
	.synopsis = "[options] [--] [PROGRAM [ARGUMENT...]]",
	.examples = examples,
	.opts = opts,
	.values_size = sizeof(struct submit_values),
	.max_words = CMD_WORDS_ANY,
	.words = VALUE_COMMAND,
	.flags = CMD_PROGRAM | CMD_STARTS,
	.run = cmd_submit_run,
};
