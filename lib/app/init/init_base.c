/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "app/init/init.h"
#include "app/init/init_files.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/image/base_program.h"

static const char *const official[] = {"docker.io/library/python:", "ghcr.io/astral-sh/uv:"};

/* Program that the command starts; NULL: not known. */
static char *program_of(const struct init_project *project, const struct init_answers *answers)
{
	const char *line = answers->command;

	if (line)
		return mem_strndup(line, strcspn(line, " \t"));
	return project->commands.n ? mem_strdup(project->commands.v[0].words.v[0]) : NULL;
}

static bool is_official(const char *image)
{
	for (size_t i = 0; i < ARRAY_LEN(official); i++)
		if (str_starts(image, official[i]))
			return true;
	return false;
}

static int ask(struct session *session, const char *image, const char *program, int64_t limit_ms,
	struct base_program *ret, struct err *err)
{
	AUTO_BASE_LOOK struct base_look look = {0};
	struct config *config;

	int r = session_config(session, &config, err);
	if (r == 0)
		r = base_look_init(&look, session, limit_ms, err);
	if (r == 0)
		r = base_look_ask(&look, image, config_str(config, "platform"), err);
	if (r == 0)
		base_program_find(look.base, program, ret);
	return r;
}

/* The file that names the image knows better, unless its image surely does not do. */
static char *judge(struct init_project *project, const char *image, const char *program,
	const struct base_program *found)
{
	const char *why = found->why ? found->why : "it is a root file system and nothing else";

	if (found->has == BASE_HAS) {
		char *from = mem_printf("%s, %s", project->image_from, why);
		free(project->image_from);
		project->image_from = from;
		return mem_printf("%s has %s: %s", image, program, why);
	}
	if (found->has == BASE_UNKNOWN && !found->is_bare)
		return mem_printf("%s: whether it has %s cannot be known from its configuration",
			image, program);
	init_set_python_image(project);
	char *from = mem_printf("%s; %s has no %s", project->image_from, image, program);
	free(project->image_from);
	project->image_from = from;
	return mem_printf(
		"%s instead of %s, which has no %s: %s", project->image, image, program, why);
}

void init_choose_base(struct session *session, struct init_project *project,
	const struct init_answers *answers, int64_t limit_ms, char **ret_said)
{
	AUTO_FREE char *program = program_of(project, answers), *image = init_image(project);
	AUTO_BASE_PROGRAM struct base_program found = {0};
	AUTO_ERR struct err fault = {0};

	*ret_said = NULL;
	if (!program || !(str_starts(program, "python") || str_eq(program, "uv")))
		return;
	if (!project->image)
		init_set_python_image(project);
	if (!image || is_official(image) || limit_ms == 0)
		return;
	*ret_said = ask(session, image, program, limit_ms, &found, &fault) == 0
			    ? judge(project, image, program, &found)
			    : mem_printf("%s: not checked: %s", image, fault.message);
}
