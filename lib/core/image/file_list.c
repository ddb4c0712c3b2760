/* SPDX-License-Identifier: Apache-2.0 */
#include "core/image/file_list.h"

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

static struct file_list *new_file_list(
	const struct session *session, const struct tree_place *place)
{
	struct file_list *file_list = mem_alloc(1, sizeof(*file_list));

	file_list->place = place;
	file_list->options = (struct repos_options){
		.root = place->root,
		.git_dir = place->git_dir,
		.home = session->dirs.home,
		.xdg_config = session->env.dirs.xdg_config_home,
	};
	repos_init(&file_list->repos, &file_list->options);
	return file_list;
}

int file_list_take(struct session *session, const struct strv *include, struct file_list **ret,
	struct err *err)
{
	AUTO_STRV struct strv all = {0};
	struct strv none = {0};
	struct paths_options options = {.include = &none, .paths = &none, .allow = &none};
	const struct tree_place *place;

	int r = session_place(session, &place, err);
	if (r < 0)
		return r;
	AUTO_FILE_LIST struct file_list *file_list = new_file_list(session, place);
	if (include) {
		strv_add(&all, ".");
		options.allow = &all;
		options.include = include;
	} else {
		r = set_config(session, &options, err);
	}
	if (r == 0) {
		const struct paths_repo *found;

		options.root = file_list->place->root;
		options.shell_dir = session->env.shell_dir;
		options.repo = repos_find;
		options.repo_ctx = &file_list->repos;
		r = repos_find(&file_list->repos, "", &found, err);
		if (r == 0)
			r = paths_list(&options, &file_list->paths, err);
		const struct repo *repo = repos_at(&file_list->repos, "");
		file_list->why = repo ? repo->why : NULL;
	}
	if (r < 0)
		return r;
	*ret = TAKE(file_list);
	return 0;
}

void file_list_free(struct file_list *file_list)
{
	if (!file_list)
		return;
	path_list_done(&file_list->paths);
	repos_done(&file_list->repos);
	free(file_list);
}

/* The first that is not in front of path. */
static size_t find_path(const struct path_list *list, const char *path)
{
	return vec_bound(list, item, strcmp(item->path, path) < 0);
}

bool file_list_holds(const struct file_list *file_list, const char *path)
{
	size_t i = find_path(&file_list->paths, path);

	return i < file_list->paths.n && str_eq(file_list->paths.v[i].path, path);
}

bool file_list_holds_below(const struct file_list *file_list, const char *path)
{
	AUTO_FREE char *below = mem_printf("%s/", path);
	const struct path_list *list = &file_list->paths;
	size_t i = find_path(list, below);

	return file_list_holds(file_list, path) ||
	       (i < list->n && str_starts(list->v[i].path, below));
}

bool file_list_tracks(const struct file_list *file_list, const char *path)
{
	AUTO_FREE char *below = mem_printf("%s/", path);
	const struct path_list *list = &file_list->paths;
	size_t i = find_path(list, path);

	if (i < list->n && str_eq(list->v[i].path, path) && list->v[i].tracked)
		return true;
	for (i = find_path(list, below); i < list->n && str_starts(list->v[i].path, below); i++)
		if (list->v[i].tracked)
			return true;
	return false;
}
