/* SPDX-License-Identifier: Apache-2.0 */
#include "app/forward/forward.h"
#include "base/util/auto.h"
#include "base/util/str.h"
#include "cli/runs/runs.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"
#include "cli/term/ui.h"

enum { RANK_MAX = 100 * 1000 };

struct forward_values {
	int64_t rank;
	const char *role;
};

static const struct opt opts[] = {
	{OPT_MEMBER(OPT_INT, 0, "rank", struct forward_values, rank), .arg = "N", .min = 0,
		.max = RANK_MAX, .help = "Ports of this rank (default: 0)"},
	{OPT_MEMBER(OPT_STRING, 0, "role", struct forward_values, role), .arg = "NAME",
		.help = "A role of the run; --rank is a rank of it"},
	{OPT_END},
};

static void cmd_forward_print_json(struct app *app, const struct forward_port *port)
{
	AUTO_FREE char *url = mem_printf("http://127.0.0.1:%u/", port->local);
	struct json *json = app_json("forward");

	json_set_str(json, "url", url);
	json_set_int(json, "local", port->local);
	json_set_int(json, "remote", port->remote);
	app_print_json_line(app, json);
}

static void cmd_forward_on_listening(void *ctx, const struct forward_port *port)
{
	struct app *app = ctx;

	if (app->options.json) {
		cmd_forward_print_json(app, port);
		return;
	}
	ui_printf(app, UI_OUT, "http://127.0.0.1:%u/\n", port->local);
	app_note(app, "port %u of the run; Ctrl-C ends the forwarding, not the run", port->remote);
}

static void cmd_forward_on_notice(void *ctx, const char *text)
{
	app_note(ctx, "%s", text);
}

static int cmd_forward_run(struct app *app, void *values_ptr, struct strv *words)
{
	const struct forward_values *values = values_ptr;
	struct forward_port ports[FORWARD_PORTS_MAX];
	AUTO_ERR struct err err = {0};
	AUTO_RUN struct run *run = NULL;
	/* The id of a run begins with a letter. */
	bool newest = str_is_digit(words->v[0][0]);
	char *const *specs = words->v + !newest;
	size_t n = words->n - !newest;

	if (n == 0) {
		err_set(&err, E_USAGE, "missing argument REMOTE: the port of the program");
		err_hint(&err, "dlrun forward %s 6006", words->v[0]);
		return app_fail(app, &err);
	}
	if (n > FORWARD_PORTS_MAX) {
		err_set(&err, E_USAGE, "%zu ports: at most %d at once", n, FORWARD_PORTS_MAX);
		return app_fail(app, &err);
	}
	for (size_t i = 0; i < n; i++)
		if (forward_port_parse(specs[i], &ports[i], &err) < 0)
			return app_fail(app, &err);
	int rank = values->rank == OPT_UNSET ? 0 : (int)values->rank;
	if (runs_get(app, newest ? NULL : words->v[0], &run, &err) < 0 ||
		runs_find_rank(run, values->role, rank, &rank, &err) < 0)
		return app_fail(app, &err);
	const struct forward_options options = {.ports = ports,
		.n_ports = n,
		.rank = rank,
		.listening = cmd_forward_on_listening,
		.notice = cmd_forward_on_notice,
		.ctx = app,
		.interrupted = &app_interrupted};
	app_catch_signals();
	int r = run_forward(&app->session, run, &options, &err);
	if (r < 0 && app_interrupted) {
		app_note_interrupted(app, "no longer forwarding; the run goes on");
		return 0;
	}
	return r < 0 ? app_fail(app, &err) : 0;
}

const struct cmd cmd_forward = {
	.name = "forward",
	.summary = "Forward ports of a run to this machine",
	.synopsis = "[options] [RUN] [LOCAL:]REMOTE...",
	.examples = {"dlrun forward 6006 # port 6006 of the newest run, at http://127.0.0.1:6006/",
		"dlrun forward resnet-3k2f9 8080:6006 8888 # two ports, one of them at another number here",
		"dlrun forward --rank 1 @ 29500 # a port of the second rank"},
	.opts = opts,
	.values_size = sizeof(struct forward_values),
	.min_words = 1,
	.max_words = CMD_WORDS_ANY,
	.words = VALUE_LIVE,
	.run = cmd_forward_run,
};
