/* SPDX-License-Identifier: Apache-2.0 */
#include "app/proxy/proxy.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"
#include "cli/term/ui.h"

enum { PORT_MAX = 65535, URL_MAX = 256 };

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

/* The URL of that host. */
static char *url_of(const char *host, const struct proxy_here *here)
{
	AUTO_BUF struct buf url = buf_with(URL_MAX);

	buf_addf(&url, "http://%s:%u/", host, here->port);
	proxy_query_add(here, &url);
	return buf_take(&url);
}

/* URL of the HTTP proxy, for other programs. */
static char *proxy_of(const struct proxy_here *here)
{
	return here->token ? mem_printf("http://dlrun:%s@127.0.0.1:%u", here->token, here->port)
			   : mem_printf("http://127.0.0.1:%u", here->port);
}

static void cmd_proxy_print_json(struct app *app, const struct proxy_here *here)
{
	AUTO_FREE char *url = url_of("localhost", here);
	AUTO_FREE char *runs = url_of("{port}.{run}.localhost", here);
	AUTO_FREE char *proxy = proxy_of(here);
	struct json *json = app_json("proxy");

	json_set_str(json, "url", url);
	json_set_int(json, "port", here->port);
	json_set_str(json, "template", runs);
	json_set_str(json, "proxy", proxy);
	app_print_json_line(app, json);
}

/* is_moved: to another port than usual. */
static void cmd_proxy_print_text(struct app *app, const struct proxy_here *here, bool is_moved)
{
	AUTO_FREE char *url = url_of("localhost", here);
	AUTO_FREE char *runs = url_of("6006.RUN.localhost", here);
	AUTO_FREE char *proxy = here->token ? proxy_of(here) : mem_strdup("the same address");

	ui_printf(app, UI_OUT, "%s\n", url);
	if (is_moved)
		app_note(app, "port %d is taken", PROXY_PORT_DEFAULT);
	app_note(app, "port 6006 of a run: %s", runs);
	app_note(app, "for other programs: an HTTP proxy (CONNECT) at %s; Ctrl-C ends it", proxy);
	if (here->token)
		app_note(app, "this system does not tell whose a connection is: the token in these "
			      "addresses lets in whoever has it");
}

static void cmd_proxy_on_listening(void *ctx, const struct proxy_here *here)
{
	const struct state *state = ctx;
	struct app *app = state->app;

	if (app->options.json)
		cmd_proxy_print_json(app, here);
	else
		cmd_proxy_print_text(app, here,
			state->values->port == OPT_UNSET && here->port != PROXY_PORT_DEFAULT);
}

static void cmd_proxy_on_notice(void *ctx, const char *text)
{
	const struct state *state = ctx;

	app_note(state->app, "%s", text);
}

static int cmd_proxy_run(struct app *app, void *values_ptr, struct strv *words UNUSED)
{
	const struct proxy_values *values = values_ptr;
	struct state state = {app, values};
	AUTO_ERR struct err err = {0};
	struct session *session;
	bool is_given = values->port != OPT_UNSET;
	const struct proxy_options options = {
		.port = is_given ? (uint16_t)values->port : PROXY_PORT_DEFAULT,
		.is_exact = is_given && values->port != 0,
		.listening = cmd_proxy_on_listening,
		.notice = cmd_proxy_on_notice,
		.ctx = &state,
		.interrupted = &app_interrupted};

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

const struct cmd cmd_proxy = {
	.name = "proxy",
	.summary = "Serve every port of every run at a URL",
	.synopsis = "[options]",
	.examples =
		{"dlrun proxy # http://6006.RUN.localhost:8470/, and all runs at http://localhost:8470/",
			"dlrun proxy --port 9000 # the same at port 9000",
			"dlrun proxy --json # its URL, and the form of those of runs, for a script"},
	.opts = opts,
	.values_size = sizeof(struct proxy_values),
	.run = cmd_proxy_run,
};
