/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The provider of Auto Scaling groups (app/autoscale/provider.h) with the environment's keys and
 * endpoints:
 *
 * aws_tool SECONDS REGION…    requests, one a line, from standard input; for each a line with the
 *                             response, or {"failure": CLASS, "unknown": BOOL, "error": TEXT}
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/autoscale/provider.h"
#include "base/loop/loop.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"

extern char **environ;

struct tool {
	struct loop *loop;
	struct json *said;
};

static int on_done(void *ctx, struct provider_reply *reply, struct err *err)
{
	struct tool *tool = ctx;

	(void)err;
	if (reply->response) {
		tool->said = TAKE(reply->response);
	} else {
		tool->said = json_object();
		json_set_str(tool->said, "failure", scale_failure_names[reply->failure]);
		json_set_bool(tool->said, "unknown", reply->is_unknown);
		json_set_str(tool->said, "error", reply->error.message);
	}
	loop_stop(tool->loop);
	return 0;
}

static int verb(struct tool *tool, struct provider *provider, int64_t limit_ms, const char *line,
	struct err *err)
{
	AUTO_JSON struct json *request = NULL;
	AUTO_BUF struct buf out = buf_with(PROVIDER_RESPONSE_MAX);
	int r = json_parse(line, strlen(line), 1 << 20, "the request", &request, err);

	if (r < 0)
		return r;
	provider_start(provider, request, clock_ms() + limit_ms, on_done, tool);
	r = loop_run(tool->loop, err);
	if (r < 0)
		return r;
	json_print(tool->said, &out);
	printf("%s\n", out.data);
	fflush(stdout);
	json_free(tool->said);
	tool->said = NULL;
	return 0;
}

int main(int argc, char **argv)
{
	AUTO_ERR struct err err = {0};
	struct tool tool = {.loop = loop_new()};
	struct http_options options = {.loop = tool.loop, .user_agent = "dlrun/test"};
	struct http *http = http_new(&options);
	struct provider *provider = NULL;
	static char line[1 << 16];
	int r = argc < 3 ? err_set(&err, E_USAGE, "aws_tool SECONDS REGION") : 0;

	if (r == 0)
		r = provider_aws_new(tool.loop, http, (const char *const *)argv + 2,
			(const char *const *)environ, &provider, &err);
	while (r == 0 && fgets(line, sizeof(line), stdin))
		r = verb(&tool, provider, 1000 * strtoll(argv[1], NULL, 10), line, &err);
	if (r < 0)
		fprintf(stderr, "error: %s [%s]\n", err.message, err_info(err.id)->name);
	provider_free(provider);
	http_free(http);
	loop_free(tool.loop);
	return r < 0;
}
