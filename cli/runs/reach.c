/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/runs/reach.h"

#include "base/util/buf.h"
#include "base/util/str.h"
#include "cli/term/app.h"
#include "core/config/ports.h"
#include "targets/targets.h"

enum { WORDS_MAX = PORTS_MAX * 8 };

struct reach {
	struct app *app;
	const struct run *run;
};

static bool get_ports(const struct run *run, struct ports *ret)
{
	ports_from_json(json_get(run->doc, "ports"), ret);
	return ret->n > 0 && !run_state_is_final(run_state(run));
}

static bool reach_is_here(const struct run *run)
{
	return target_ops_recorded(run)->is_here;
}

static void print_port(struct app *app, const struct run *run, const struct forward_port *port)
{
	app_note(
		app, "port %u of %s: http://127.0.0.1:%u/", port->remote, run_id(run), port->local);
}

static void reach_on_listening(void *ctx, const struct forward_port *port)
{
	const struct reach *reach = ctx;

	print_port(reach->app, reach->run, port);
}

static void print_command(struct app *app, const struct run *run, const struct ports *ports)
{
	AUTO_BUF struct buf words = {0};

	buf_init(&words, WORDS_MAX);
	for (size_t i = 0; i < ports->n; i++)
		buf_addf(&words, " %u", ports->v[i]);
	app_note(app, "%s: dlrun forward %s%s", ports->n == 1 ? "its port" : "its ports",
		run_id(run), words.data);
}

static void print_here(struct app *app, const struct run *run, const struct ports *ports)
{
	for (size_t i = 0; i < ports->n; i++)
		print_port(app, run, &(struct forward_port){ports->v[i], ports->v[i]});
}

struct forward *reach_open(struct app *app, const struct run *run, int rank)
{
	struct reach reach = {app, run};
	struct forward_port wanted[PORTS_MAX];
	AUTO_ERR struct err err = {0};
	struct forward *forward = NULL;
	struct ports ports;

	if (!get_ports(run, &ports))
		return NULL;
	if (reach_is_here(run)) {
		print_here(app, run, &ports);
		return NULL;
	}
	for (size_t i = 0; i < ports.n; i++)
		wanted[i] = (struct forward_port){.remote = ports.v[i]};
	/* Set no notice: messages about connections would mix with the output of the program. */
	const struct forward_options options = {.ports = wanted,
		.n_ports = ports.n,
		.rank = rank < 0 ? 0 : rank,
		.listening = reach_on_listening,
		.ctx = &reach};
	if (forward_open(&app->session, run, &options, &forward, &err) < 0) {
		app_note(app, "ports of %s cannot be reached here: %s", run_id(run), err.message);
		print_command(app, run, &ports);
	}
	return forward;
}

void reach_print(struct app *app, const struct run *run)
{
	struct ports ports;

	if (!get_ports(run, &ports))
		return;
	if (reach_is_here(run))
		print_here(app, run, &ports);
	else
		print_command(app, run, &ports);
}
