/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "app/lifecycle/restart.h"
#include "app/runs/held.h"
#include "app/submit/submit.h"
#include "app/submit/sweep.h"
#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/runs/runs.h"
#include "cli/commands/cmds.h"
#include "cli/runs/preview.h"
#include "cli/runs/transfer.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"
#include "cli/term/ui.h"
#include "core/record/roles.h"
#include "core/record/after.h"
#include "core/record/places.h"
#include "core/study/stop_rule.h"
#include "targets/targets.h"

enum { MEMORY_MIN = 1 << 20, LINE_BYTES = 64 << 10, REDRAW_MS = 100, PLAIN_MS = 10000 };

struct submit_values {
	const char *target, *name, *image, *from, *group, *note, *name_file, *signal;
	const char *region, *instance_type, *same;
	const char *gpu_type, *cpus, *queue, *priority, *output, *launcher;
	int64_t timeout, grace, allow_size, gpus, retries, nodes, memory;
	bool follow, detach, dry_run, list_files, full, accept_new_host, no_offline;
	bool spot, no_spot;
	struct strv env, secrets, include, tags, allow, ports, waits, after;
	/* of a sweep */
	struct strv over;
	const char *cases, *stop;
	int64_t sample, seed, parallel;
	bool zip, fail_fast;
};

/* The options of `sweep`; those from SWEEP_OPTS on are the options of `submit`, too. */
enum { SWEEP_OPTS = 8 };
static const struct opt opts[] = {
	{OPT_MEMBER(OPT_LIST, 0, "over", struct submit_values, over), .arg = "K=VALUES",
		.help = "An axis: lr=0.1,0.03  seed=1..5  lr=log:1e-4..1e-1:12; may be repeated"},
	{OPT_MEMBER(OPT_STRING, 0, "cases", struct submit_values, cases), .arg = "FILE",
		.help = "A run for each row of a CSV file, or line of JSON", .values = VALUE_FILE},
	{OPT_MEMBER(OPT_FLAG, 0, "zip", struct submit_values, zip),
		.help = "Take the axes side by side, not all combinations"},
	{OPT_MEMBER(OPT_INT, 0, "sample", struct submit_values, sample), .arg = "N",
		.help = "Only N of the combinations, chosen at random", .min = 1, .max = CASES_MAX,
		.key = "sweep.sample"},
	{OPT_MEMBER(OPT_INT, 0, "seed", struct submit_values, seed), .arg = "S",
		.help = "Of what is random (default: 0)", .max = INT64_MAX, .key = "sweep.seed"},
	{OPT_MEMBER(OPT_INT, 0, "parallel", struct submit_values, parallel), .arg = "N",
		.help = "At most N runs at a time (default: all of them)", .min = 1,
		.max = CASES_MAX, .key = "sweep.parallel"},
	{OPT_MEMBER(OPT_STRING, 0, "stop", struct submit_values, stop), .arg = "RULE",
		.help = "Stop runs left behind: metric=val_loss,goal=min,halving=3,from=100"},
	{OPT_MEMBER(OPT_FLAG, 0, "fail-fast", struct submit_values, fail_fast),
		.help = "When a run fails, begin no other"},
	{OPT_MEMBER(OPT_STRING, 't', "target", struct submit_values, target), .arg = "TARGET",
		.help = "Where to run: local, kube[:CONTEXT[/NAMESPACE]], ssh:HOST, yours; or "
			"several: a,b",
		.values = VALUE_TARGETS, .key = "target"},
	{OPT_MEMBER(OPT_LIST, 0, "wait-for", struct submit_values, waits), .arg = "TARGET=TIME",
		.help = "Of several targets: wait there first, and go on to the next after TIME"},
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
		.help = "GPUs of each node; 0: none (default: one; clusters: as before)",
		.max = 1024, .key = "resources.gpus"},
	{OPT_MEMBER(OPT_STRING, 0, "gpu-type", struct submit_values, gpu_type), .arg = "NAME",
		.help = "GPU model (a100, A100-80GB), or several: a,b; in a cluster of gpu_types:",
		.key = "resources.gpu_type"},
	{OPT_MEMBER(OPT_STRING, 0, "region", struct submit_values, region), .arg = "NAME",
		.help = "Nodes of a cluster in this region, or several: a,b",
		.key = "resources.region"},
	{OPT_MEMBER(OPT_STRING, 0, "instance-type", struct submit_values, instance_type),
		.arg = "NAME", .help = "Nodes of a cluster of this instance type, or several: a,b",
		.key = "resources.instance_type"},
	{OPT_MEMBER(OPT_STRING, 0, "same", struct submit_values, same), .arg = "KEY",
		.help = "All nodes in one zone of a cluster (zone), or one of a label's values",
		.key = "resources.same"},
	{OPT_MEMBER(OPT_FLAG, 0, "spot", struct submit_values, spot),
		.help = "Only nodes of a cluster that may be taken back at any time"},
	{OPT_MEMBER(OPT_FLAG, 0, "no-spot", struct submit_values, no_spot),
		.help = "No such nodes"},
	{OPT_MEMBER(OPT_STRING, 0, "cpus", struct submit_values, cpus), .arg = "N",
		.help = "CPUs that each node must have: 4, 0.5", .key = "resources.cpus"},
	{OPT_MEMBER(OPT_SIZE, 0, "memory", struct submit_values, memory), .arg = "SIZE",
		.help = "Memory that each node must have: 16Gi", .key = "resources.memory"},
	{OPT_MEMBER(OPT_INT, 'N', "nodes", struct submit_values, nodes), .arg = "N",
		.help = "Nodes that work together; local plays them", .min = 1, .max = 10000,
		.key = "resources.nodes"},
	{OPT_MEMBER(OPT_STRING, 0, "launcher", struct submit_values, launcher), .arg = "NAME",
		.help = "Start it on each GPU by torchrun, mpirun, accelerate or deepspeed",
		.key = "launcher", .values = VALUE_LAUNCHER},
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
	{OPT_MEMBER(OPT_LIST, 0, "after", struct submit_values, after), .arg = "RUN[:any]",
		.help = "Begin after the success of RUN or STUDY (:any: after its end)",
		.values = VALUE_RUN},
	{OPT_MEMBER(OPT_STRING, 0, "from", struct submit_values, from), .arg = "RUN",
		.help = "Run the exact code of an earlier run again", .values = VALUE_RUN},
	{OPT_MEMBER(OPT_LIST, 0, "tag", struct submit_values, tags), .arg = "K[=V]",
		.help = "A tag to find the run by"},
	{OPT_MEMBER(OPT_STRING, 0, "group", struct submit_values, group), .arg = "NAME",
		.help = "A name that runs of one study share", .key = "group",
		.values = VALUE_GROUP},
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
		.waits = &values->waits,
		.after = &values->after,
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
	/* of a sweep */
	const struct study *study;
	const char *axes;
	int64_t made_ms; /* when its members were last counted; 0: not yet */
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

/* Mention GPUs that were not requested, too: one, where there are any. if_any: in which words, or
 * NULL. Roles have their own. The caller frees. */
static char *cmd_submit_gpu_words(const struct run *run, const char *if_any)
{
	int64_t n = json_get_int(json_get(run->doc, "resources"), "gpus", -1);
	AUTO_FREE char *roles = roles_summary(run->doc);

	if (roles)
		return mem_printf(" · %s", roles);
	if (n < 0)
		return mem_strdup(if_any ? if_any : " · one GPU (-g 0: none, -g N: more)");
	return n > 0 ? mem_printf(" · %lld GPU%s", (long long)n, n == 1 ? "" : "s")
		     : mem_strdup("");
}

static void cmd_submit_print_cluster(struct app *app, const struct run *run)
{
	const struct json *target = json_get(run->doc, "target");
	int64_t nodes = json_get_int(json_get(run->doc, "resources"), "nodes", 1);
	AUTO_FREE char *many = nodes > 1 ? mem_printf(" · %lld nodes", (long long)nodes) : NULL;
	AUTO_FREE char *gpus = cmd_submit_gpu_words(run, NULL);

	app_phase(app, "target", "%s · context %s · namespace %s%s%s", run_target(run),
		json_get_str(target, "context"), json_get_str(target, "namespace"),
		many ? many : "", gpus);
	if (run_restarts_by_itself(run))
		app_phase(app, "retries", "the cluster restarts all %lld nodes together (JobSet)",
			(long long)nodes);
}

static void print_host(struct app *app, const struct run *run)
{
	const struct json *hosts = json_get(json_get(run->doc, "target"), "hosts");
	const char *host = json_str(hosts ? json_first(hosts) : NULL);
	AUTO_FREE char *gpus = cmd_submit_gpu_words(run, " · one GPU if it has any (-g 0: none)");
	char many[32] = "";

	/* Of hosts with one home the first that is free takes it. */
	if (json_count(hosts) > 1 && json_get_int(json_get(run->doc, "resources"), "nodes", 1) <= 1)
		snprintf(many, sizeof(many), " or %zu other%s", json_count(hosts) - 1,
			json_count(hosts) > 2 ? "s" : "");
	app_phase(
		app, "target", "%s · host %s%s%s", run_target(run), host ? host : "?", many, gpus);
}

static void print_machine(struct app *app, const struct run *run)
{
	int64_t nodes = json_get_int(json_get(run->doc, "resources"), "nodes", 1);
	AUTO_FREE char *many = nodes > 1 ? mem_printf(" as %lld nodes", (long long)nodes) : NULL;
	AUTO_FREE char *gpus = cmd_submit_gpu_words(run, NULL);
	unsigned n = os_processors();

	app_phase(app, "target", "%s · this machine (%u %s)%s%s", run_target(run), n,
		n == 1 ? "CPU" : "CPUs", many ? many : "", gpus);
}

static void cmd_submit_on_places(void *ctx, const char *text)
{
	app_phase(app_of(ctx), "target", "%s", text);
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

static struct submit_events cmd_submit_events(struct saying *saying)
{
	return (struct submit_events){.snapshot = on_snapshot,
		.progress = cmd_submit_on_progress,
		.image = on_image,
		.places = cmd_submit_on_places,
		.target = on_target,
		.notice = cmd_submit_on_notice,
		.warning = on_warning,
		.ctx = saying};
}

/* id: of the run, or of its study. */
static void cmd_submit_print_held(struct app *app, const struct run *run, const char *id)
{
	bool is_choice = json_get(run->doc, RUN_PLACES);

	if (!run_is_held(run))
		return;
	app_phase(app, "target", "%s · %s", run_target(run), json_get_str(run->doc, "text"));
	AUTO_FREE char *when = held_is_for_room(run) ? mem_strdup("another has room")
			       : held_is_after(run)  ? mem_strdup("that has ended")
						     : mem_strdup(is_choice ? "one of them answers"
									    : "there is an answer");
	app_phase(app, "",
		"it is sent when %s: dlrun queue --serve, or the next "
		"dlrun (take it back: dlrun cancel %s)",
		when, id);
}

static void cmd_submit_print_run(struct app *app, const struct run *run, bool follow)
{
	const char *id = run_id(run);
	AUTO_FREE char *after = after_names(json_get(run->spec, AFTER_RECORD));

	if (after && !run_is_held(run))
		app_phase(app, AFTER_RECORD, "%s", after);
	cmd_submit_print_held(app, run, id);
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

static int write_name_file(const char *path, const char *id, struct err *err)
{
	AUTO_FREE char *line = mem_printf("%s\n", id);

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
	const struct submit_events events = cmd_submit_events(&saying);
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
	if (write_name_file(values->name_file, run_id(run), &err) < 0)
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

static int submit_config(struct app *app, const struct opt *table,
	const struct submit_values *values, struct config **ret, struct err *err)
{
	const char *spot = values->spot ? "true" : values->no_spot ? "false" : NULL;
	int r = app_config(app, table, values, ret, err);

	return r == 0 && spot ? config_override(*ret, "resources.spot", spot, err) : r;
}

static int cmd_submit_check(const struct submit_values *values, struct err *err)
{
	if (values->spot && values->no_spot)
		return err_set(err, E_USAGE, "--spot and --no-spot cannot be used together");
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

/* The command's own options by name: of the table above, but for those of `sweep`. */
static const struct opt *const submit_opts = opts + SWEEP_OPTS;

static int cmd_submit_run(struct app *app, void *values_ptr, struct strv *words)
{
	const struct submit_values *values = values_ptr;
	struct submit_options options = options_of(values, words);
	bool follow = values->follow || (app->out_tty && !values->detach);
	AUTO_ERR struct err err = {0};
	struct config *config;

	if (cmd_submit_check(values, &err) < 0 ||
		submit_config(app, submit_opts, values, &config, &err) < 0)
		return app_fail(app, &err);
	app->session.env.accept_new_host = values->accept_new_host;
	options.followed = follow;
	if (values->output)
		return preview_print_objects(app, &options, str_eq(values->output, "json"));
	if (values->dry_run)
		return preview_print(app, &options, values->list_files);
	return cmd_submit_start(app, values, &app->session, &options, follow);
}

const struct cmd cmd_submit = {
	.name = "submit",
	.summary = "Run a program on this directory's code, exactly as it is now",
	.synopsis = "[options] [--] [PROGRAM [ARGUMENT...]]",
	.examples = {"dlrun submit -- python3 train.py --lr 0.1 # run it and follow the output",
		"dlrun submit -d -n sweep --timeout 2h -- ./train.sh # name it, limit it, leave",
		"dlrun submit --from @ -- python3 train.py --lr 0.2 # newest run's code, different arguments"},
	.opts = opts + SWEEP_OPTS,
	.values_size = sizeof(struct submit_values),
	.max_words = CMD_WORDS_ANY,
	.words = VALUE_COMMAND,
	.flags = CMD_PROGRAM | CMD_STARTS,
	.run = cmd_submit_run,
};

/*
 * Sweep
 */

static int sweep_read_cases(const char *path, struct cases *ret, struct err *err)
{
	AUTO_BUF struct buf text = {0};

	int r = fs_read(path, CASES_FILE_MAX, &text, NULL, err);
	return r < 0 ? r : cases_read(text.data ? text.data : "", text.len, path, ret, err);
}

static bool sweep_is_set(const struct config *config, const char *key)
{
	return str_eq(config_str(config, key), "true");
}

static int sweep_make_cases(const struct submit_values *values, const struct config *config,
	struct axes *axes, struct study *study, struct err *err)
{
	const struct cases_options options = {
		.zip = values->zip || sweep_is_set(config, "sweep.zip"),
		.sample = (size_t)config_int(config, "sweep.sample", 0),
		.seed = (uint64_t)config_int(config, "sweep.seed", 0),
	};
	int r = 0;

	if (values->cases && axes_count(axes) > 0) {
		err_set(err, E_USAGE, "--cases and --over cannot be used together");
		return err_hint(err, "--cases names every run, --over makes combinations");
	}
	if (values->cases &&
		(values->zip || values->sample != OPT_UNSET || values->seed != OPT_UNSET)) {
		err_set(err, E_USAGE,
			"--cases names every run; --zip, --sample and --seed do not fit");
		return err_hint(err, "dlrun sweep --cases %s …", values->cases);
	}
	if (values->cases) {
		json_set_str(study->doc, "file", values->cases);
		return sweep_read_cases(values->cases, &study->cases, err);
	}
	r = cases_make(axes, &options, &study->cases, err);
	json_set(study->doc, "over", axes_to_json(axes));
	json_set_bool(study->doc, "zip", options.zip);
	if (options.sample)
		json_set_int(study->doc, "sample", (int64_t)options.sample);
	json_set_int(study->doc, "seed", (int64_t)options.seed);
	return r;
}

static int sweep_check(const struct submit_values *values, struct err *err)
{
	AUTO_STOP_RULE struct stop_rule rule = {0};

	if (values->stop && stop_rule_parse(values->stop, &rule, err) < 0)
		return -(int)err->code;
	if (values->group) {
		err_set(err, E_USAGE, "a sweep cannot be in a group");
		return err_hint(err, "a study is a group by itself; --tag names several of them");
	}
	return 0;
}

/* Options take the place of all axes of the configuration. */
static int sweep_make_axes(const struct submit_values *values, const struct config *config,
	struct axes *axes, struct err *err)
{
	const struct json *over = values->over.n || values->cases ? NULL : config_axes(config);
	int r = 0;

	for (size_t i = 0; r == 0 && i < values->over.n; i++)
		r = axes_add(axes, values->over.v[i], err);
	for (const struct json *axis = over ? json_first(over) : NULL; r == 0 && axis;
		axis = json_next(axis))
		r = axes_add_json(axes, json_key(axis), axis, err);
	return r < 0 && over ? config_blame(config, "sweep.over", err) : r;
}

static int sweep_check_numbers(const struct config *config, struct err *err)
{
	static const struct {
		const char *key;
		int64_t max;
	} numbers[] = {{"sweep.parallel", CASES_MAX}, {"sweep.sample", CASES_MAX},
		{"sweep.seed", INT64_MAX}};

	for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
		int64_t value = config_int(config, numbers[i].key, 0);
		if (value >= 0 && value <= numbers[i].max)
			continue;
		err_set(err, E_CONFIG, "%s is a number from 0 to %lld, not %lld", numbers[i].key,
			(long long)numbers[i].max, (long long)value);
		return config_blame(config, numbers[i].key, err);
	}
	return 0;
}

static int sweep_make_study(const struct submit_values *values, const struct config *config,
	struct axes *axes, struct study *ret, struct err *err)
{
	int r = sweep_check_numbers(config, err);

	ret->doc = json_object();
	ret->parallel = (int)config_int(config, "sweep.parallel", 0);
	if (values->stop)
		json_set_str(ret->doc, STUDY_STOP, values->stop);
	ret->fail_fast = values->fail_fast || sweep_is_set(config, "sweep.fail_fast");
	if (r == 0)
		r = sweep_make_axes(values, config, axes, err);
	if (r == 0)
		r = sweep_make_cases(values, config, axes, ret, err);
	if (r == 0 && values->name && strchr(values->name, '{'))
		json_set_str(ret->doc, "name_template", values->name);
	return r;
}

/* "lr-{lr}-s{seed}" names the study "lr-s": what is in braces tells members apart. The caller
 * frees. */
static char *sweep_study_name(const char *wanted)
{
	AUTO_BUF struct buf out = buf_with(LINE_BYTES);

	for (const char *s = wanted; *s; s++) {
		const char *end = *s == '{' ? strchr(s, '}') : NULL;
		if (end)
			s = end;
		else if (*s != '-' || (out.len > 0 && out.data[out.len - 1] != '-'))
			buf_addc(&out, *s);
	}
	return out.len ? buf_take(&out) : NULL;
}

/* After its preview, which has made its specification. */
static int sweep_print_cases(struct app *app, const struct study *study)
{
	const struct cases *cases = &study->cases;
	const struct cases_template template = {
		.command = &study->spec.command, .shell = study->spec.shell};
	AUTO_FREE struct ui_column *columns = mem_alloc(cases->keys.n + 2, sizeof(*columns));
	AUTO_TABLE struct ui_table table = {0};

	for (size_t i = 0; i <= cases->keys.n + 1; i++)
		columns[i] = (struct ui_column){.title = i == 0               ? "INDEX"
							 : i <= cases->keys.n ? cases->keys.v[i - 1]
									      : "COMMAND",
			.right = i == 0,
			.cut = i > cases->keys.n};
	ui_table_init(&table, columns, cases->keys.n + 2);
	for (size_t i = 0; i < cases->n; i++) {
		const struct cases_member member = {i, study->id};
		AUTO_STRV struct strv command = {0};
		AUTO_BUF struct buf line = buf_with(LINE_BYTES);
		if (cases_expand_command(cases, &member, &template, &command, NULL) == 0 &&
			command.n > 0)
			str_shell_join(&line, command.v);
		ui_table_addf(&table, "", "%zu", i);
		for (size_t k = 0; k < cases->keys.n; k++)
			ui_table_add(&table, "", cases_get(cases, i, k));
		ui_table_add(&table, "", line.data ? line.data : "");
	}
	return ui_table_print(app, &table);
}

static void sweep_print_made(struct app *app, const struct study *study, const char *axes)
{
	AUTO_FREE char *limit =
		study->parallel ? mem_printf(", %d at a time", study->parallel) : mem_strdup("");
	const char *stop = json_get_str(study->doc, STUDY_STOP);
	AUTO_STOP_RULE struct stop_rule rule = {0};
	AUTO_FREE char *what = *axes ? mem_printf(" (%s)", axes) : mem_strdup("");

	app_phase(app, "study", "%s: %zu run%s%s%s  (look: dlrun sweep %s · stop: dlrun cancel %s)",
		study->id, study->cases.n, study->cases.n == 1 ? "" : "s", what, limit, study->id,
		study->id);
	if (stop && stop_rule_parse(stop, &rule, NULL) == 0) {
		AUTO_FREE char *described = stop_rule_describe(&rule);
		app_phase(app, "stop", "%s go on; decided while dlrun sweep -f %s looks", described,
			study->id);
	}
}

/* On a terminal one line that is drawn anew, elsewhere a line now and then. */
static void sweep_on_made(void *ctx, size_t made, size_t n)
{
	struct saying *saying = ctx;
	struct app *app = saying->app;
	int64_t now_ms = clock_ms();
	bool redraws = app->progress == PROGRESS_TTY;

	if (saying->made_ms == 0) {
		saying->made_ms = now_ms;
		sweep_print_made(app_of(saying), saying->study, saying->axes);
		app_catch_signals();
	}
	if (app->progress == PROGRESS_NONE || app->options.json || made == n ||
		now_ms - saying->made_ms < (redraws ? REDRAW_MS : PLAIN_MS))
		return;
	saying->made_ms = now_ms;
	if (!redraws) {
		app_phase(app, "study", "%zu of %zu runs made", made, n);
		return;
	}
	ui_erase_line(app);
	ui_printf(app, UI_ERR, UI_BOLD "%-*s" UI_OFF "%zu of %zu runs made", UI_LABEL, "study",
		made, n);
	saying->transfer.on_screen = true;
}

static int sweep_leave(struct app *app, const struct study *study)
{
	if (app->options.json)
		return app_print_json(app, json_clone(study->doc));
	ui_printf(app, UI_OUT, "%s\n", study->id);
	return 0;
}

static int sweep_start(struct app *app, const struct submit_values *values,
	const struct submit_options *options, struct study *study, const char *axes)
{
	struct saying saying = {.app = app, .transfer = {.app = app}, .study = study, .axes = axes};
	const struct submit_events events = cmd_submit_events(&saying);
	const struct sweep_events sweep_events = {
		&events, sweep_on_made, &app_interrupted, &saying};
	AUTO_ERR struct err err = {0};
	AUTO_RUN struct run *first = NULL;
	int status = 0;

	int r = sweep_run(&app->session, options, &sweep_events, &first, &err);
	transfer_clear(&saying.transfer);
	if (first)
		submit_finish(&app->session, first, &events);
	if (r < 0 && first)
		err_hint(&err, "dlrun restart --missing %s", study->id);
	if (r < 0)
		return app_fail(app, &err);
	app->accepted = true;
	cmd_submit_print_held(app, first, study->id);
	if (write_name_file(values->name_file, study->id, &err) < 0)
		app_warn(app, "--name-file: %s", err.message);
	if (!options->followed)
		status = sweep_leave(app, study);
	return options->followed ? sweep_show(app, study->id, true) : status;
}

/* "3 lr × 5 seed"; the caller frees. */
static char *sweep_describe(const struct study *study, const struct axes *axes)
{
	AUTO_FREE char *all = axes_count(axes) ? axes_describe(axes) : NULL;
	const char *file = json_get_str(study->doc, "file");

	if (file)
		return str_shown(file);
	if (json_get_bool(study->doc, "zip", false))
		return mem_printf("%s, side by side", all);
	return json_get(study->doc, "sample") ? mem_printf("of %s", all) : TAKE(all);
}

/* Without axes, or with those of the configuration only, one word is a study if there is one. */
static bool sweep_is_table(struct app *app, const struct submit_values *values,
	const struct config *config, const struct strv *words)
{
	char id[RUN_ID_SIZE];

	if (values->over.n || values->cases || words->n > 1)
		return false;
	return words->n == 0 || !config_axes(config) ||
	       study_find(&app->session.dirs, words->v[0], id, NULL) == 0;
}

/* Options of a new study are not for one that is there. NULL: none was given. */
static const char *sweep_new_option(const struct submit_values *values)
{
	for (const struct opt *opt = opts; opt->type != OPT_END; opt++)
		if (!str_eq(opt->name, "follow") && !str_eq(opt->name, "detach") &&
			opt_is_given(opt, values))
			return opt->name;
	return NULL;
}

static int sweep_print_table(
	struct app *app, const struct submit_values *values, const struct strv *words)
{
	const char *name = sweep_new_option(values);
	AUTO_ERR struct err err = {0};

	if (!name)
		return sweep_show(app, words->n ? words->v[0] : NULL, values->follow);
	err_set(&err, E_USAGE, "--%s is for a new study, and there are no axes", name);
	err_hint(&err, "dlrun sweep --over lr=0.1,0.03 -- python3 train.py --lr {lr}");
	return app_fail(app, &err);
}

static int cmd_sweep_run(struct app *app, void *values_ptr, struct strv *words)
{
	const struct submit_values *values = values_ptr;
	struct submit_options options = options_of(values, words);
	AUTO_STUDY struct study study = {0};
	AUTO_AXES struct axes *axes = axes_new();
	AUTO_FREE char *name = values->name ? sweep_study_name(values->name) : NULL;
	AUTO_ERR struct err err = {0};
	struct config *config;

	if (cmd_submit_check(values, &err) < 0 ||
		submit_config(app, opts, values, &config, &err) < 0)
		return app_fail(app, &err);
	if (sweep_is_table(app, values, config, words))
		return sweep_print_table(app, values, words);
	if (sweep_check(values, &err) < 0 ||
		sweep_make_study(values, config, axes, &study, &err) < 0)
		return app_fail(app, &err);
	app->session.env.accept_new_host = values->accept_new_host;
	options.name = name;
	options.followed = false;
	options.study = &study;
	if (values->output)
		return preview_print_objects(app, &options, str_eq(values->output, "json"));
	if (values->dry_run) {
		int status = preview_print(app, &options, values->list_files);
		return status || app->options.json ? status : sweep_print_cases(app, &study);
	}
	AUTO_FREE char *described = sweep_describe(&study, axes);
	options.followed = values->follow || (app->out_tty && !values->detach);
	return sweep_start(app, values, &options, &study, described);
}

const struct cmd cmd_sweep = {
	.name = "sweep",
	.summary = "Run a program once for each combination of values, as one study",
	.synopsis = "[options] [--] [STUDY | PROGRAM [ARGUMENT...]]",
	.examples = {"dlrun sweep --over lr=0.1,0.03 --over seed=1..5 -- ./a.sh {lr} {seed} "
		     "# ten runs",
		"dlrun sweep --over lr=log:1e-4..1:9 --parallel 4 -- python3 a.py {args} # nine, with --lr=…",
		"dlrun sweep -f tiger # the table of a study, until its end"},
	.opts = opts,
	.values_size = sizeof(struct submit_values),
	.max_words = CMD_WORDS_ANY,
	.words = VALUE_COMMAND,
	.flags = CMD_PROGRAM | CMD_STARTS,
	.run = cmd_sweep_run,
};
