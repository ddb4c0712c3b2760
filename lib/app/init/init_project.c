/* SPDX-License-Identifier: Apache-2.0 */
#include "app/init/init_project.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "app/init/init_files.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "targets/kube/kube_open.h"

/*
 * Files
 */

static bool has_kind(const char *dir, const char *name, mode_t kind)
{
	AUTO_FREE char *path = fs_join(dir, name);
	struct stat st;

	return stat(path, &st) == 0 && (st.st_mode & S_IFMT) == kind;
}

bool init_is_file(const char *dir, const char *name)
{
	return has_kind(dir, name, S_IFREG);
}

bool init_is_dir(const char *dir, const char *name)
{
	return has_kind(dir, name, S_IFDIR);
}

bool init_read(const char *dir, const char *name, struct buf *ret)
{
	AUTO_FREE char *path = fs_join(dir, name);

	return init_is_file(dir, name) && fs_read(path, INIT_FILE_MAX, ret, NULL, NULL) == 0;
}

char *init_tree_path(const struct init_project *project, const char *name)
{
	if (str_eq(project->prefix, "."))
		return mem_strdup(name);
	return mem_printf("%s/%s", project->prefix, name);
}

/*
 * Where the project is
 */

static bool is_project(const char *dir)
{
	static const char *const files[] = {CONFIG_FILE, "pyproject.toml", "setup.py", "setup.cfg",
		"requirements.txt", "environment.yml", "environment.yaml", "Dockerfile",
		"package.json", "Makefile", "train.py", "main.py"};

	for (size_t i = 0; i < ARRAY_LEN(files); i++)
		if (init_is_file(dir, files[i]))
			return true;
	return false;
}

/* Up to the root of the tree, which counts whatever is in it. */
static char *find_prefix(const struct tree_place *place)
{
	AUTO_FREE char *prefix = mem_strdup(place->prefix);

	while (!str_eq(prefix, ".")) {
		AUTO_FREE char *dir = fs_join(place->root, prefix);
		char *slash = strrchr(prefix, '/');
		if (is_project(dir))
			return TAKE(prefix);
		if (!slash)
			break;
		*slash = '\0';
	}
	return mem_strdup(".");
}

static struct init_project *new_project(const struct tree_place *place)
{
	struct init_project *project = mem_alloc(1, sizeof(*project));

	project->root = mem_strdup(place->root);
	project->prefix = find_prefix(place);
	project->dir = str_eq(project->prefix, ".") ? mem_strdup(place->root)
						    : fs_join(place->root, project->prefix);
	return project;
}

/* An empty tree has nothing that could be missed. */
static void note_failure(struct init_project *project, const struct err *err)
{
	if (err->id != E_SNAPSHOT_EMPTY)
		strv_addf(&project->notes, "what git ignores could not be looked at: %s",
			err->message);
}

static void find_contexts(struct session *session, struct init_project *project)
{
	const struct kubeconfig *kubeconfig;
	AUTO_ERR struct err fault = {0};

	if (kube_open_config(session, &kubeconfig, &fault) == 0)
		init_find_contexts(project, kubeconfig);
	else if (fault.id != E_KUBE_NO_CONFIG)
		strv_addf(&project->notes, "no cluster is proposed: %s", fault.message);
}

/* A file further up counts no more where this one lies. */
static void note_shadowed(struct init_project *project)
{
	AUTO_FREE char *dir = mem_strdup(project->dir);

	while (strlen(dir) > strlen(project->root)) {
		*strrchr(dir, '/') = '\0';
		if (!init_is_file(*dir ? dir : "/", CONFIG_FILE))
			continue;
		AUTO_FREE char *shown = str_escaped(dir);
		strv_addf(&project->notes, "%s/" CONFIG_FILE " does not count in %s then", shown,
			project->prefix);
		return;
	}
}

int init_project_read(struct session *session, struct init_project **ret, struct err *err)
{
	AUTO_SURVEY struct survey *survey = NULL;
	AUTO_ERR struct err fault = {0};
	const char *path = env_get(session->env.env, "PATH");
	const struct tree_place *place;

	int r = session_place(session, &place, err);
	if (r < 0)
		return r;
	AUTO_INIT_PROJECT struct init_project *project = new_project(place);
	if (survey_take(session, true, &survey, &fault) < 0)
		note_failure(project, &fault);
	note_shadowed(project);
	init_find_name(project);
	init_find_env(project, survey, path);
	project->env_active = !str_empty(env_get(session->env.env, "VIRTUAL_ENV")) ||
			      !str_empty(env_get(session->env.env, "CONDA_PREFIX"));
	init_find_commands(project, path);
	init_find_image(project);
	init_find_outputs(project, survey);
	init_find_data(project, survey);
	find_contexts(session, project);
	init_find_hosts(session->dirs.home, &project->hosts);
	*ret = TAKE(project);
	return 0;
}

void init_project_free(struct init_project *project)
{
	if (!project)
		return;
	vec_foreach (struct init_command, command, &project->commands) {
		strv_done(&command->words);
		free(command->from);
	}
	vec_done(&project->commands);
	vec_foreach (struct init_data, data, &project->data)
		free(data->path);
	vec_done(&project->data);
	strv_done(&project->env_files);
	strv_done(&project->outputs);
	strv_done(&project->contexts);
	strv_done(&project->hosts);
	strv_done(&project->notes);
	free(project->dir);
	free(project->prefix);
	free(project->root);
	free(project->name_from);
	free(project->conda_name);
	free(project->image);
	free(project->image_from);
	free(project);
}
