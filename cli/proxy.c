#include "run/proxy.h"
#include "base/auto.h"
#include "cli/app.h"
#include "cli/cmd.h"
#include "cli/ui.h"

enum { PORT_MAX = 65535 };

struct proxy_values {
	int64_t port;
};

static const struct opt opts[] = {
	{OPT_MEMBER(OPT_INT, 0, "port", struct proxy_values, port), .arg = "N", .min = 0,
		.max = PORT_MAX,
		.help = "This port, 0 for any (default: 8470 or the next one that is free)"},
	{OPT_END},
};

struct state {
	struct app *app;
	const struct proxy_values *values;
};

static void print_json(struct app *app, const char *url, uint16_t port)
{
	AUTO_FREE char *runs = mem_printf("http://{port}.{run}.localhost:%u/", port);
	struct json *json = app_json("proxy");

	json_set_str(json, "url", url);
	json_set_int(json, "port", port);
	json_set_str(json, "template", runs);
	app_print_json_line(app, json);
}

static void on_listening(void *ctx, uint16_t port)
{
	const struct state *state = ctx;
	struct app *app = state->app;
	AUTO_FREE char *url = mem_printf("http://localhost:%u/", port);

	if (app->options.json) {
		print_json(app, url, port);
		return;
	}
	ui_printf(app, UI_OUT, "%s\n", url);
	if (state->values->port == OPT_UNSET && port != PROXY_PORT_DEFAULT)
		app_note(app, "port %d is taken", PROXY_PORT_DEFAULT);
	app_note(app, "port 6006 of a run: http://6006.RUN.localhost:%u/", port);
	app_note(app,
		"for other programs: an HTTP proxy (CONNECT) at the same address; Ctrl-C ends it");
}

static void on_notice(void *ctx, const char *text)
{
	const struct state *state = ctx;

	app_note(state->app, "%s", text);
}

static int run(struct app *app, void *values_ptr, struct strv *words)
{
	const struct proxy_values *values = values_ptr;
	struct state state = {app, values};
	AUTO_ERR struct err err = {0};
	struct session *session;
	bool is_given = values->port != OPT_UNSET;
	const struct proxy_options options = {
		.port = is_given ? (uint16_t)values->port : PROXY_PORT_DEFAULT,
		.is_exact = is_given && values->port != 0,
		.listening = on_listening,
		.notice = on_notice,
		.ctx = &state,
		.interrupted = &app_interrupted};

	(void)words;
	if (app_session(app, &session, &err) < 0)
		return app_fail(app, &err);
	app_catch_signals();
	int r = run_proxy(session, &options, &err);
	if (r < 0 && app_interrupted) {
		app_note_interrupted(app, "no longer serving; runs go on");
		return 0;
	}
	return r < 0 ? app_fail(app, &err) : 0;
}

static const char *const examples[CMD_EXAMPLES] = {
	"dlrun proxy # http://6006.RUN.localhost:8470/, and all runs at http://localhost:8470/",
	"dlrun proxy --port 9000 # the same at port 9000",
	"dlrun proxy --json # its URL, and the form of those of runs, for a script",
};

const struct cmd cmd_proxy = {
	.name = "proxy",
	.summary = "Serve every port of every run at a URL",
	.synopsis = "[options]",
	.examples = examples,
	.opts = opts,
	.values_size = sizeof(struct proxy_values),
	.run = run,
};
