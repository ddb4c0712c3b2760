/* SPDX-License-Identifier: Apache-2.0 */
#include "core/image/survey.h"

#include <stdlib.h>
#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"

static int set_config(struct session *session, struct paths_options *options, struct err *err)
{
	struct config *config;
	int r = session_config(session, &config, err);

	if (r < 0)
		return r;
	options->include = config_list(config, "include");
	options->paths = config_list(config, "paths");
	options->allow = config_list(config, "allow");
	options->limits = (struct paths_limits){
		.total_bytes = config_size(config, "limits.size"),
		.file_bytes = config_size(config, "limits.file"),
		.files = (uint64_t)config_int(config, "limits.files", 0),
	};
	return 0;
}

static int image_survey_take(struct session *session, struct survey *survey,
	struct paths_options *options, struct err *err)
{
	const struct paths_repo *found;

	options->root = survey->place->root;
	options->shell_dir = session->env.shell_dir;
	options->repo = repos_find;
	options->repo_ctx = &survey->repos;
	int r = repos_find(&survey->repos, "", &found, err);
	if (r == 0)
		r = paths_list(options, &survey->paths, err);
	const struct repo *repo = repos_at(&survey->repos, "");
	survey->why = repo ? repo->why : NULL;
	return r;
}

static struct survey *new_survey(const struct session *session, const struct tree_place *place)
{
	struct survey *survey = mem_alloc(1, sizeof(*survey));

	survey->place = place;
	survey->options = (struct repos_options){
		.root = place->root,
		.git_dir = place->git_dir,
		.home = session->dirs.home,
		.xdg_config = session->env.dirs.xdg_config_home,
	};
	repos_init(&survey->repos, &survey->options);
	return survey;
}

int survey_take(struct session *session, bool allowed, struct survey **ret, struct err *err)
{
	AUTO_STRV struct strv all = {0};
	struct strv none = {0};
	struct paths_options options = {.include = &none, .paths = &none, .allow = &none};
	const struct tree_place *place;

	int r = session_place(session, &place, err);
	if (r < 0)
		return r;
	AUTO_SURVEY struct survey *survey = new_survey(session, place);
	if (allowed) {
		strv_add(&all, ".");
		options.allow = &all;
	} else {
		r = set_config(session, &options, err);
	}
	if (r == 0)
		r = image_survey_take(session, survey, &options, err);
	if (r < 0)
		return r;
	*ret = TAKE(survey);
	return 0;
}

void survey_free(struct survey *survey)
{
	if (!survey)
		return;
	path_list_done(&survey->paths);
	repos_done(&survey->repos);
	free(survey);
}

/* The first that is not in front of path. */
static size_t find_path(const struct path_list *list, const char *path)
{
	return vec_bound(list, item, strcmp(item->path, path) < 0);
}

bool survey_holds(const struct survey *survey, const char *path)
{
	size_t i = find_path(&survey->paths, path);

	return i < survey->paths.n && str_eq(survey->paths.v[i].path, path);
}

bool survey_tracks(const struct survey *survey, const char *path)
{
	AUTO_FREE char *below = mem_printf("%s/", path);
	const struct path_list *list = &survey->paths;
	size_t i = find_path(list, path);

	if (i < list->n && str_eq(list->v[i].path, path) && list->v[i].tracked)
		return true;
	for (i = find_path(list, below); i < list->n && str_starts(list->v[i].path, below); i++)
		if (list->v[i].tracked)
			return true;
	return false;
}
