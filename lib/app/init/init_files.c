/* SPDX-License-Identifier: Apache-2.0 */
#include "app/init/init_files.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/init/init_parse.h"
#include "base/data/json.h"
#include "base/data/yaml.h"
#include "base/loop/proc.h"
#include "base/os/fs.h"
#include "base/util/mem.h"
#include "base/util/str.h"

enum { PYTHON_MINOR = 12 };

static const char pyproject[] = "pyproject.toml";

/*
 * Name
 */

static char *pyproject_name(const char *text, size_t len)
{
	char *name = init_toml_string(text, len, "project.name");

	return name ? name : init_toml_string(text, len, "tool.poetry.name");
}

static char *package_name(const char *text, size_t len)
{
	AUTO_JSON struct json *json = NULL;

	if (json_parse(text, len, INIT_FILE_MAX, "package.json", &json, NULL) < 0)
		return NULL;
	return mem_strdup(json_get_str(json, "name"));
}

static char *setup_cfg_name(const char *text, size_t len)
{
	return init_ini_string(text, len, "metadata", "name");
}

static bool set_name(struct init_project *project, const char *name, const char *from)
{
	bool mapped;

	if (!name || run_name_map(name, project->name, &mapped, NULL) < 0)
		return false;
	project->name_from = mem_strdup(from);
	return true;
}

void init_find_name(struct init_project *project)
{
	static const struct {
		const char *file;
		char *(*read)(const char *text, size_t len);
	} sources[] = {{pyproject, pyproject_name}, {"setup.cfg", setup_cfg_name},
		{"setup.py", init_setup_name}, {"package.json", package_name}};
	const char *slash = strrchr(project->dir, '/');

	for (size_t i = 0; i < ARRAY_LEN(sources); i++) {
		AUTO_BUF struct buf text = {0};
		if (!init_read(project->dir, sources[i].file, &text))
			continue;
		AUTO_FREE char *name = sources[i].read(text.data, text.len);
		if (set_name(project, name, sources[i].file))
			return;
	}
	set_name(project, slash ? slash + 1 : NULL, "the directory");
}

/*
 * Environment
 */

static bool pyproject_has(const struct init_project *project, const char *table)
{
	AUTO_BUF struct buf text = {0};

	return init_read(project->dir, pyproject, &text) &&
	       init_toml_has_table(text.data, text.len, table);
}

/* The text at key of a YAML file of the project, or NULL. */
static char *yaml_string(const char *dir, const char *file, const char *key)
{
	AUTO_BUF struct buf text = {0};
	AUTO_YAML struct yaml *yaml = NULL;

	if (!init_read(dir, file, &text) || yaml_parse(text.data, text.len, file, &yaml, NULL) < 0)
		return NULL;
	const struct yaml *value = yaml_get(yaml, key);
	return value && value->kind == YAML_SCALAR && *value->text ? mem_strdup(value->text) : NULL;
}

/* A file that the snapshot does not hold cannot be a key. */
static bool add_env_file(
	struct init_project *project, const struct survey *survey, const char *name)
{
	AUTO_FREE char *path = init_tree_path(project, name);

	if (!init_is_file(project->dir, name) || (survey && !survey_holds(survey, path)))
		return false;
	strv_add(&project->env_files, path);
	return true;
}

static void set_env(
	struct init_project *project, enum init_env env, const char *tool, const char *path)
{
	AUTO_FREE char *found = proc_find(tool, path);

	project->env = env;
	project->env_tool = found != NULL;
}

static bool find_conda(struct init_project *project, const struct survey *survey, const char *path)
{
	static const char *const files[] = {"environment.yml", "environment.yaml"};

	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		if (!add_env_file(project, survey, files[i]))
			continue;
		set_env(project, INIT_ENV_CONDA, "conda", path);
		project->conda_name = yaml_string(project->dir, files[i], "name");
		return true;
	}
	return false;
}

void init_find_env(struct init_project *project, const struct survey *survey, const char *path)
{
	if (add_env_file(project, survey, "uv.lock") || pyproject_has(project, "tool.uv")) {
		set_env(project, INIT_ENV_UV, "uv", path);
		/* The programs that the project itself installs, and the interpreter. */
		add_env_file(project, survey, pyproject);
		add_env_file(project, survey, ".python-version");
	} else if (add_env_file(project, survey, "poetry.lock") ||
		   pyproject_has(project, "tool.poetry")) {
		set_env(project, INIT_ENV_POETRY, "poetry", path);
	} else if (!find_conda(project, survey, path) &&
		   add_env_file(project, survey, "requirements.txt")) {
		set_env(project, INIT_ENV_PIP, "python3", path);
	}
}

/*
 * Commands
 */

static struct init_command *add_command(struct init_project *project, const char *from)
{
	struct init_command *command;

	if (project->commands.n == INIT_COMMANDS_MAX)
		return NULL;
	command = vec_push(&project->commands);
	command->from = mem_strdup(from);
	return command;
}

static void add_words(struct strv *words, const char *a, const char *b)
{
	strv_add(words, a);
	if (b)
		strv_add(words, b);
}

/* Add the words in front of a program of the environment. */
static void add_launcher(const struct init_project *project, struct strv *words)
{
	if (!project->env_tool || project->env_active)
		return;
	if (project->env == INIT_ENV_UV) {
		add_words(words, "uv", "run");
		/* The environment of `setup` is shared by runs: none of them may change it. */
		if (project->env_files.n)
			strv_add(words, "--no-sync");
	} else if (project->env == INIT_ENV_POETRY) {
		add_words(words, "poetry", "run");
	}
}

static const char *python_of(const char *path)
{
	AUTO_FREE char *python = proc_find("python", path);

	return python ? "python" : "python3";
}

static void add_python_files(struct init_project *project, const char *path)
{
	static const char *const files[] = {
		"train.py", "main.py", "run.py", "src/train.py", "scripts/train.py", "app.py"};

	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		struct init_command *command = NULL;
		if (init_is_file(project->dir, files[i]))
			command = add_command(project, files[i]);
		if (!command)
			continue;
		add_launcher(project, &command->words);
		add_words(&command->words, python_of(path), files[i]);
	}
}

/* Only where something puts them on PATH. */
static void add_scripts(struct init_project *project)
{
	AUTO_BUF struct buf text = {0};
	AUTO_STRV struct strv names = {0};

	if ((project->env != INIT_ENV_UV && project->env != INIT_ENV_POETRY) ||
		!project->env_tool || !init_read(project->dir, pyproject, &text))
		return;
	init_toml_keys(text.data, text.len, "project.scripts", &names);
	init_toml_keys(text.data, text.len, "tool.poetry.scripts", &names);
	for (size_t i = 0; i < names.n; i++) {
		struct init_command *command = add_command(project, pyproject);
		if (!command)
			return;
		add_launcher(project, &command->words);
		strv_add(&command->words, names.v[i]);
	}
}

static void add_shell_files(struct init_project *project)
{
	static const char *const files[] = {"train.sh", "run.sh"};

	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		AUTO_FREE char *file = fs_join(project->dir, files[i]);
		AUTO_FREE char *word = mem_printf("./%s", files[i]);
		struct init_command *command = NULL;
		if (init_is_file(project->dir, files[i]))
			command = add_command(project, files[i]);
		if (command && access(file, X_OK) == 0)
			strv_add(&command->words, word);
		else if (command)
			add_words(&command->words, "sh", files[i]);
	}
}

static void add_make(struct init_project *project)
{
	static const char *const targets[] = {"train", "run"};
	AUTO_BUF struct buf text = {0};

	if (!init_read(project->dir, "Makefile", &text))
		return;
	for (size_t i = 0; i < ARRAY_LEN(targets); i++) {
		struct init_command *command = NULL;
		if (init_make_has(text.data, text.len, targets[i]))
			command = add_command(project, "Makefile");
		if (command)
			add_words(&command->words, "make", targets[i]);
	}
}

static void add_package(struct init_project *project)
{
	static const char *const names[] = {"train", "start"};
	AUTO_BUF struct buf text = {0};
	AUTO_JSON struct json *json = NULL;

	if (!init_read(project->dir, "package.json", &text) ||
		json_parse(text.data, text.len, INIT_FILE_MAX, "package.json", &json, NULL) < 0)
		return;
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		struct init_command *command = NULL;
		if (json_get_str(json_get(json, "scripts"), names[i]))
			command = add_command(project, "package.json");
		if (!command)
			continue;
		add_words(&command->words, "npm", "run");
		strv_add(&command->words, names[i]);
	}
}

void init_find_commands(struct init_project *project, const char *path)
{
	add_python_files(project, path);
	add_scripts(project);
	add_shell_files(project);
	add_make(project);
	add_package(project);
}

/*
 * Image, clusters, nodes
 */

/* "3.11" of ">=3.11,<4", "3.12.4", "cpython-3.12"; major, minor. */
static bool read_python(const char *text, int *ret_major, int *ret_minor)
{
	const char *digits = text ? text + strcspn(text, "0123456789") : "";

	return sscanf(digits, "%1d.%2d", ret_major, ret_minor) == 2 && *ret_major == 3;
}

static void set_python_image(struct init_project *project, int minor, const char *from)
{
	const struct init_command *first = project->commands.n ? project->commands.v : NULL;
	bool uv = first && str_eq(first->words.v[0], "uv");

	free(project->image);
	free(project->image_from);
	project->image = mem_printf(
		uv ? "ghcr.io/astral-sh/uv:python3.%d-bookworm" : "docker.io/library/python:3.%d",
		minor);
	project->image_from = mem_strdup(from);
}

/* Where the project names its Python: the official image that has it. A lower bound alone is met by
 * what is usual now. */
static bool find_python_image(struct init_project *project)
{
	static const char pinned[] = ".python-version";
	AUTO_BUF struct buf text = {0}, toml = {0};
	AUTO_FREE char *wanted = NULL;
	const char *from = pinned;
	int major = 0, minor = 0;

	if (!init_read(project->dir, pinned, &text) || !read_python(text.data, &major, &minor)) {
		from = pyproject;
		if (init_read(project->dir, pyproject, &toml))
			wanted = init_toml_string(toml.data, toml.len, "project.requires-python");
		if (!wanted || !read_python(wanted, &major, &minor))
			return false;
		if (str_starts(wanted, ">=") && !strchr(wanted, ',') && minor < PYTHON_MINOR)
			minor = PYTHON_MINOR;
	}
	AUTO_FREE char *why = mem_printf("the Python of %s", from);
	set_python_image(project, minor, why);
	return true;
}

void init_set_python_image(struct init_project *project)
{
	if (!find_python_image(project))
		set_python_image(project, PYTHON_MINOR, "Python without packages");
}

void init_find_image(struct init_project *project)
{
	static const char *const files[] = {"Dockerfile", "Containerfile"};

	for (size_t i = 0; i < ARRAY_LEN(files) && !project->image; i++) {
		AUTO_BUF struct buf text = {0};
		if (!init_read(project->dir, files[i], &text))
			continue;
		project->image = init_docker_base(text.data, text.len);
		if (project->image)
			project->image_from = mem_printf("last FROM of %s", files[i]);
	}
	if (!project->image)
		find_python_image(project);
}

void init_find_contexts(struct init_project *project, const struct kubeconfig *kubeconfig)
{
	AUTO_STRV struct strv names = {0};
	const char *current = kubeconfig_current(kubeconfig);

	kubeconfig_contexts(kubeconfig, &names);
	if (current && strv_find(&names, current) >= 0)
		strv_add(&project->contexts, current);
	for (size_t i = 0; i < names.n && project->contexts.n < INIT_NAMES_MAX; i++)
		if (!str_eq(names.v[i], current))
			strv_add(&project->contexts, names.v[i]);
}

enum { SSH_FILES_MAX = 64 };

static void add_hosts(const char *home, const char *file, struct strv *files, struct strv *ret);

static void add_included(const char *home, const char *word, struct strv *files, struct strv *ret)
{
	AUTO_FREE char *pattern = *word == '/'             ? mem_strdup(word)
				  : str_starts(word, "~/") ? mem_printf("%s/%s", home, word + 2)
							   : mem_printf("%s/.ssh/%s", home, word);
	glob_t found;

	if (glob(pattern, 0, NULL, &found) != 0)
		return;
	for (size_t i = 0; i < found.gl_pathc; i++)
		add_hosts(home, found.gl_pathv[i], files, ret);
	globfree(&found);
}

/* files: read already; some include each other. */
static void add_hosts(const char *home, const char *file, struct strv *files, struct strv *ret)
{
	AUTO_BUF struct buf text = {0};
	AUTO_STRV struct strv includes = {0};

	if (files->n == SSH_FILES_MAX || strv_find(files, file) >= 0)
		return;
	strv_add(files, file);
	if (!init_read("/", file + 1, &text))
		return;
	init_ssh_hosts(text.data, text.len, ret);
	init_ssh_includes(text.data, text.len, &includes);
	vec_foreach (char *, word, &includes)
		if (ret->n < INIT_NAMES_MAX)
			add_included(home, *word, files, ret);
}

void init_find_hosts(const char *home, struct strv *ret)
{
	AUTO_FREE char *file = home ? mem_printf("%s/.ssh/config", home) : NULL;
	AUTO_STRV struct strv files = {0};

	if (file && *file == '/')
		add_hosts(home, file, &files, ret);
}
