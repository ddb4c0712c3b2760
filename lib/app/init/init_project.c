/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/init/init.h"
#include "app/init/init_parse.h"
#include "base/data/json.h"
#include "base/data/toml.h"
#include "base/loop/proc.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/image/base_program.h"
#include "core/image/file_list.h"
#include "core/image/python_base.h"
#include "targets/kube/kube_open.h"

enum { SSH_FILES_MAX = 64 };
/* Of the measuring of data: a data set may have millions of files. */
enum { SIZE_MS = 200, SIZE_PENDING_MAX = 10000 };

static const char pyproject[] = "pyproject.toml";

/*
 * Files
 */

static bool is_kind(const char *dir, const char *name, mode_t kind)
{
	AUTO_FREE char *path = fs_join(dir, name);
	struct stat st;

	return stat(path, &st) == 0 && (st.st_mode & S_IFMT) == kind;
}

static bool init_project_is_file(const char *dir, const char *name)
{
	return is_kind(dir, name, S_IFREG);
}

/* The regular file name below dir; false when there is none, or it is larger than INIT_FILE_MAX.
 * The buffer may be zero. */
static bool init_project_read_file(const char *dir, const char *name, struct buf *ret)
{
	AUTO_FREE char *path = fs_join(dir, name);

	return fs_read_regular(path, INIT_FILE_MAX, ret, NULL, NULL, NULL) == 0;
}

/* name of the project's directory as a path from the root of the tree; the caller frees. */
static char *init_project_tree_path(const struct init_project *project, const char *name)
{
	if (str_eq(project->prefix, "."))
		return mem_strdup(name);
	return mem_printf("%s/%s", project->prefix, name);
}

/*
 * Name
 */

static char *pyproject_name(const char *text, size_t len)
{
	char *name = toml_find_string(text, len, "project.name");

	return name ? name : toml_find_string(text, len, "tool.poetry.name");
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

static bool init_project_set_name(struct init_project *project, const char *name, const char *from)
{
	bool mapped;

	if (!name || run_name_map(name, project->name, &mapped, NULL) < 0)
		return false;
	project->name_from = mem_strdup(from);
	return true;
}

static void init_project_find_name(struct init_project *project)
{
	static const struct {
		const char *file;
		char *(*read)(const char *text, size_t len);
	} sources[] = {{pyproject, pyproject_name}, {"setup.cfg", setup_cfg_name},
		{"setup.py", init_setup_name}, {"package.json", package_name}};
	const char *slash = strrchr(project->dir, '/');

	for (size_t i = 0; i < ARRAY_LEN(sources); i++) {
		AUTO_BUF struct buf text = {0};
		if (!init_project_read_file(project->dir, sources[i].file, &text))
			continue;
		AUTO_FREE char *name = sources[i].read(text.data, text.len);
		if (init_project_set_name(project, name, sources[i].file))
			return;
	}
	init_project_set_name(project, slash ? slash + 1 : NULL, "the directory");
}

/*
 * Environment
 */

/* A file that the snapshot does not hold cannot be a key. */
static bool find_lock(
	struct init_project *project, const struct file_list *file_list, const char *name)
{
	AUTO_FREE char *path = init_project_tree_path(project, name);

	if (!init_project_is_file(project->dir, name) ||
		(file_list && !file_list_holds(file_list, path)))
		return false;
	project->lock = name;
	return true;
}

/* path: PATH. */
static void find_env(
	struct init_project *project, const struct file_list *file_list, const char *path)
{
	static const struct {
		enum init_env env;
		const char *file, *table; /* either tells: a file, a table of pyproject.toml */
		const char *tool;
	} signs[] = {
		{INIT_ENV_UV, "uv.lock", "tool.uv", "uv"},
		{INIT_ENV_POETRY, "poetry.lock", "tool.poetry", "poetry"},
		{INIT_ENV_CONDA, "environment.yml", NULL, "conda"},
		{INIT_ENV_CONDA, "environment.yaml", NULL, "conda"},
		{INIT_ENV_PIP, "requirements.txt", NULL, "python3"},
	};
	AUTO_BUF struct buf toml = {0};
	bool has_toml = init_project_read_file(project->dir, pyproject, &toml);

	for (size_t i = 0; i < ARRAY_LEN(signs) && !project->env; i++) {
		if (!find_lock(project, file_list, signs[i].file) &&
			!(signs[i].table && has_toml &&
				toml_has_table(toml.data, toml.len, signs[i].table)))
			continue;
		AUTO_FREE char *found = proc_find(signs[i].tool, path);
		project->env = signs[i].env;
		project->env_tool = found != NULL;
	}
}

/*
 * Commands
 */

/* The words in front of a program of the environment. */
static void add_launcher(const struct init_project *project, struct strv *words)
{
	bool uv = project->env == INIT_ENV_UV;

	if (!project->env_tool || project->env_active || (!uv && project->env != INIT_ENV_POETRY))
		return;
	strv_add(words, uv ? "uv" : "poetry");
	strv_add(words, "run");
	/* The environment is shared by runs: none of them may change it. */
	if (uv && project->lock)
		strv_add(words, "--no-sync");
}

/* NULL: there are enough. */
static struct strv *init_project_add_command(struct init_project *project, const char *from)
{
	struct init_command *command;

	if (project->commands.n == INIT_COMMANDS_MAX)
		return NULL;
	command = vec_push(&project->commands);
	command->from = mem_strdup(from);
	return &command->words;
}

/* Programs that the project installs: only where something puts them on PATH. */
static void add_scripts(struct init_project *project)
{
	AUTO_BUF struct buf text = {0};
	AUTO_STRV struct strv names = {0};
	struct strv *words;

	if ((project->env != INIT_ENV_UV && project->env != INIT_ENV_POETRY) ||
		!project->env_tool || !init_project_read_file(project->dir, pyproject, &text))
		return;
	toml_table_keys(text.data, text.len, "project.scripts", &names);
	toml_table_keys(text.data, text.len, "tool.poetry.scripts", &names);
	for (size_t i = 0; i < names.n && (words = init_project_add_command(project, pyproject));
		i++) {
		add_launcher(project, words);
		strv_add(words, names.v[i]);
	}
}

/* Whether the file has it: the rule of a Makefile, the script of a package.json. */
static bool has_entry(const char *file, const struct buf *text, const char *entry)
{
	AUTO_JSON struct json *json = NULL;

	if (str_eq(file, "Makefile"))
		return init_make_has(text->data, text->len, entry);
	return json_parse(text->data, text->len, INIT_FILE_MAX, file, &json, NULL) == 0 &&
	       json_get_str(json_get(json, "scripts"), entry);
}

/* The likeliest first. */
static void find_commands(struct init_project *project, const char *path)
{
	static const struct {
		const char *file, *entry;   /* entry NULL: the file is the program */
		const char *first, *second; /* words before; first NULL: as the file's name tells */
	} sources[] = {{"train.py"}, {"main.py"}, {"run.py"}, {"src/train.py"},
		{"scripts/train.py"}, {"app.py"}, {pyproject}, {"train.sh"}, {"run.sh"},
		{"Makefile", "train", "make", NULL}, {"Makefile", "run", "make", NULL},
		{"package.json", "train", "npm", "run"}, {"package.json", "start", "npm", "run"}};
	AUTO_FREE char *python = proc_find("python", path);

	for (size_t i = 0; i < ARRAY_LEN(sources); i++) {
		const char *file = sources[i].file, *entry = sources[i].entry;
		AUTO_BUF struct buf text = {0};
		struct strv *words;
		if (file == pyproject)
			add_scripts(project);
		if (file == pyproject || !init_project_is_file(project->dir, file) ||
			(entry && (!init_project_read_file(project->dir, file, &text) ||
					  !has_entry(file, &text, entry))) ||
			!(words = init_project_add_command(project, file)))
			continue;
		AUTO_FREE char *whole = fs_join(project->dir, file);
		if (entry) {
			strv_add(words, sources[i].first);
			if (sources[i].second)
				strv_add(words, sources[i].second);
			strv_add(words, entry);
		} else if (str_ends(file, ".py")) {
			add_launcher(project, words);
			strv_add(words, python ? "python" : "python3");
			strv_add(words, file);
		} else if (access(whole, X_OK) == 0) {
			strv_addf(words, "./%s", file);
		} else {
			strv_add(words, "sh");
			strv_add(words, file);
		}
	}
}

/*
 * Image
 */

static void set_python_image(struct init_project *project, int minor, const char *from)
{
	const struct init_command *first = project->commands.n ? project->commands.v : NULL;

	free(project->image);
	free(project->image_from);
	project->image = python_base_image(NULL, minor, first ? first->words.v[0] : NULL);
	project->image_from = mem_strdup(from);
}

static bool find_python_image(struct init_project *project)
{
	AUTO_PYTHON_NAMED struct python_named named = {0};

	if (!python_find(project->dir, &named) || named.is_any)
		return false;
	set_python_image(project, named.minor, named.from);
	return true;
}

static void choose_python_image(struct init_project *project)
{
	if (!find_python_image(project))
		set_python_image(project, PYTHON_MINOR, "Python without packages");
}

/*
 * Contexts and hosts
 */

static void find_contexts(struct session *session, struct init_project *project)
{
	const struct kubeconfig *kubeconfig;
	AUTO_STRV struct strv names = {0};
	AUTO_ERR struct err error = {0};

	if (kube_open_config(session, &kubeconfig, &error) < 0) {
		if (error.id != E_KUBE_NO_CONFIG)
			strv_addf(&project->notes, "no cluster is proposed: %s", error.message);
		return;
	}
	const char *current = kubeconfig_current(kubeconfig);
	kubeconfig_contexts(kubeconfig, &names);
	if (current && strv_find(&names, current) >= 0)
		strv_add(&project->contexts, current);
	for (size_t i = 0; i < names.n && project->contexts.n < INIT_NAMES_MAX; i++)
		if (!str_eq(names.v[i], current))
			strv_add(&project->contexts, names.v[i]);
}

static void init_project_add_hosts(
	const char *home, const char *file, struct strv *files, struct strv *ret);

static void add_included(const char *home, const char *word, struct strv *files, struct strv *ret)
{
	AUTO_FREE char *pattern = *word == '/'             ? mem_strdup(word)
				  : str_starts(word, "~/") ? mem_printf("%s/%s", home, word + 2)
							   : mem_printf("%s/.ssh/%s", home, word);
	glob_t found;

	if (glob(pattern, 0, NULL, &found) != 0)
		return;
	for (size_t i = 0; i < found.gl_pathc; i++)
		init_project_add_hosts(home, found.gl_pathv[i], files, ret);
	globfree(&found);
}

/* files: read already; some include each other. */
static void init_project_add_hosts(
	const char *home, const char *file, struct strv *files, struct strv *ret)
{
	AUTO_BUF struct buf text = {0};
	AUTO_STRV struct strv includes = {0};

	if (files->n == SSH_FILES_MAX || strv_find(files, file) >= 0)
		return;
	strv_add(files, file);
	if (!init_project_read_file("/", file + 1, &text))
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
		init_project_add_hosts(home, file, &files, ret);
}

/*
 * Files beside the code: data that git ignores, and what programs write.
 */

static const char *const result_names[] = {"artifacts", "checkpoints", "ckpt", "ckpts",
	"lightning_logs", "logs", "mlruns", "multirun", "out", "output", "outputs", "results",
	"runs", "saved_models", "tb_logs", "wandb"};

static bool is_one_of(const char *name, size_t len, const char *const *names, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (strlen(names[i]) == len && memcmp(name, names[i], len) == 0)
			return true;
	return false;
}

static const char *const data_names[] = {"data", "dataset", "datasets", "input", "inputs", "corpus",
	"corpora", "raw", "pretrained", "weights", "models"};

#define IS_NAMED(names, name, len) is_one_of(name, len, names, ARRAY_LEN(names))

/*
 * Sizes, as far as a moment reaches
 */

static void init_project_add_file(const char *path, struct init_data *data, struct strv *pending)
{
	struct stat st;

	if (lstat(path, &st) < 0)
		return;
	if (S_ISREG(st.st_mode) && strstr(strrchr(path, '/'), "tfevents"))
		data->has_events = true;
	if (S_ISREG(st.st_mode))
		data->bytes += (uint64_t)st.st_size;
	else if (S_ISLNK(st.st_mode))
		data->at_least = true;
	else if (S_ISDIR(st.st_mode) && pending->n < SIZE_PENDING_MAX)
		strv_add(pending, path);
	else if (S_ISDIR(st.st_mode))
		data->at_least = true;
}

static void init_project_add_dir(
	const char *path, struct init_data *data, struct strv *pending, int64_t deadline)
{
	AUTO_DIR DIR *dir = opendir(path);
	struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		if (str_eq(entry->d_name, ".") || str_eq(entry->d_name, ".."))
			continue;
		AUTO_FREE char *below = fs_join(path, entry->d_name);
		init_project_add_file(below, data, pending);
		if (clock_ms() < deadline)
			continue;
		data->at_least = true;
		return;
	}
}

static void measure(const struct init_project *project, struct init_data *data)
{
	AUTO_FREE char *path = fs_join(project->root, data->path);
	AUTO_FREE char *real = NULL;
	AUTO_STRV struct strv pending = {0};
	int64_t deadline = clock_deadline(SIZE_MS);

	/* Data often is a link to where there is room. */
	init_project_add_file(fs_realpath(path, &real, NULL) < 0 ? path : real, data, &pending);
	while (pending.n && clock_ms() < deadline) {
		AUTO_FREE char *dir = pending.v[--pending.n];
		init_project_add_dir(dir, data, &pending, deadline);
	}
	data->at_least |= pending.n > 0;
}

/*
 * Data
 */

/* A data directory itself ("data/", "exp/raw/"), or what lies in one of the tree ("data/x"); not
 * where programs write ("runs/", "data/runs/"). */
static bool is_data(const char *path)
{
	size_t len = strlen(path) - str_ends(path, "/");
	size_t last = len, first = strcspn(path, "/");

	while (last > 0 && path[last - 1] != '/')
		last--;
	bool is_result = IS_NAMED(result_names, path, first) ||
			 IS_NAMED(result_names, path + last, len - last);
	return !is_result && !str_eq(path + last, "__pycache__/") &&
	       (IS_NAMED(data_names, path, first) || IS_NAMED(data_names, path + last, len - last));
}

static void init_project_add_data(struct init_project *project, const char *path)
{
	struct init_data data = {.path = mem_strndup(path, strlen(path) - str_ends(path, "/"))};

	measure(project, &data);
	if (data.has_events)
		free(data.path);
	else
		*vec_push(&project->data) = data;
}

/* Find data of the project first, then elsewhere: a program in a part of the repository may read
 * that, too. */
static void init_project_find_data(struct init_project *project, const struct file_list *file_list)
{
	bool is_root = str_eq(project->prefix, ".");

	for (int elsewhere = 0; file_list && elsewhere < 2; elsewhere++) {
		vec_foreach (const struct excluded, left, &file_list->paths.excluded) {
			const char *below =
				is_root ? left->path : fs_below(left->path, project->prefix);

			if (left->why != EXCLUDED_IGNORED || (below == NULL) != (elsewhere == 1) ||
				!is_data(below ? below : left->path))
				continue;
			if (project->data.n == INIT_DATA_MAX) {
				strv_addf(&project->notes,
					"more paths that look like data are ignored by git: "
					"dlrun submit --dry-run --list-files");
				return;
			}
			init_project_add_data(project, left->path);
		}
	}
}

/*
 * Outputs
 */

/* Whether the .gitignore of the project or of the tree names it. */
static bool is_ignored_by_name(const struct init_project *project, const char *name)
{
	const char *const dirs[] = {project->dir, project->root};
	bool is_root = str_eq(project->prefix, ".");

	for (size_t i = 0; i < ARRAY_LEN(dirs); i++) {
		AUTO_BUF struct buf text = {0};
		if (init_project_read_file(dirs[i], ".gitignore", &text) &&
			init_ignore_names(text.data, text.len, name, i > 0 && !is_root))
			return true;
	}
	return false;
}

/* A link leads out of the tree, or the snapshot has it as a file. */
static bool init_project_is_link(const struct init_project *project, const char *name)
{
	AUTO_FREE char *path = fs_join(project->dir, name);
	struct stat st;

	return lstat(path, &st) == 0 && S_ISLNK(st.st_mode);
}

static void find_outputs(struct init_project *project, const struct file_list *file_list)
{
	for (size_t i = 0; i < ARRAY_LEN(result_names); i++) {
		AUTO_FREE char *path = init_project_tree_path(project, result_names[i]);
		bool there = is_kind(project->dir, result_names[i], S_IFDIR);
		if (!there && (init_project_is_file(project->dir, result_names[i]) ||
				      !is_ignored_by_name(project, result_names[i])))
			continue;
		if (!init_project_is_link(project, result_names[i]) &&
			(!file_list || !file_list_tracks(file_list, path)))
			strv_add(&project->outputs, path);
	}
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
		if (init_project_is_file(dir, files[i]))
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

/* A file further up counts no more where this one lies. */
static void note_shadowed(struct init_project *project)
{
	AUTO_FREE char *dir = mem_strdup(project->dir);

	while (strlen(dir) > strlen(project->root)) {
		*strrchr(dir, '/') = '\0';
		if (!init_project_is_file(*dir ? dir : "/", CONFIG_FILE))
			continue;
		AUTO_FREE char *shown = str_escaped(dir);
		strv_addf(&project->notes, "%s/" CONFIG_FILE " does not count in %s then", shown,
			project->prefix);
		return;
	}
}

int init_project_read(struct session *session, struct init_project **ret, struct err *err)
{
	const struct strv none = {0};
	AUTO_FILE_LIST struct file_list *file_list = NULL;
	AUTO_ERR struct err error = {0};
	const char *path = env_get(session->env.env, "PATH");
	const struct tree_place *place;

	int r = session_place(session, &place, err);
	if (r < 0)
		return r;
	AUTO_INIT_PROJECT struct init_project *project = new_project(place);
	if (file_list_take(session, &none, &file_list, &error) < 0) {
		/* An empty tree has nothing that could be missed. */
		if (error.id != E_SNAPSHOT_EMPTY)
			strv_addf(&project->notes, "what git ignores could not be looked at: %s",
				error.message);
	}
	note_shadowed(project);
	init_project_find_name(project);
	find_env(project, file_list, path);
	project->env_active = !str_empty(env_get(session->env.env, "VIRTUAL_ENV")) ||
			      !str_empty(env_get(session->env.env, "CONDA_PREFIX"));
	find_commands(project, path);
	static const char *const files[] = {"Dockerfile", "Containerfile"};

	for (size_t i = 0; i < ARRAY_LEN(files) && !project->image; i++) {
		AUTO_BUF struct buf text = {0};
		if (!init_project_read_file(project->dir, files[i], &text))
			continue;
		project->image = init_docker_base(text.data, text.len);
		if (project->image)
			project->image_from = mem_printf("last FROM of %s", files[i]);
	}
	if (!project->image)
		find_python_image(project);
	find_outputs(project, file_list);
	init_project_find_data(project, file_list);
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
	strv_done(&project->outputs);
	strv_done(&project->contexts);
	strv_done(&project->hosts);
	strv_done(&project->notes);
	free(project->dir);
	free(project->prefix);
	free(project->root);
	free(project->name_from);
	free(project->image);
	free(project->image_from);
	free(project);
}

/*
 * The image of a cluster
 */

/* Program that the command starts; NULL: not known. */
static char *init_project_program_of(
	const struct init_project *project, const struct init_answers *answers)
{
	const char *line = answers->command;

	if (line)
		return mem_strndup(line, strcspn(line, " \t"));
	return project->commands.n ? mem_strdup(project->commands.v[0].words.v[0]) : NULL;
}

static int init_project_find_program(struct session *session, const char *image,
	const char *program, int64_t limit_ms, struct base_program *ret, struct err *err)
{
	AUTO_BASE_LOOKUP struct base_lookup lookup = {0};
	struct config *config;

	int r = session_config(session, &config, err);
	if (r == 0)
		r = base_lookup_init(&lookup, session, limit_ms, err);
	if (r == 0)
		r = base_lookup_run(&lookup, image, config_str(config, "platform"), err);
	if (r == 0)
		base_program_find(lookup.base, program, ret);
	return r;
}

/* The file that names the image knows better, unless its image surely does not do. */
static char *describe_base(struct init_project *project, const char *image, const char *program,
	const struct base_program *found)
{
	const char *why = found->why ? found->why : "it is a root file system and nothing else";

	if (found->has == BASE_HAS) {
		char *from = mem_printf("%s, %s", project->image_from, why);
		REPLACE(project->image_from, from);
		return mem_printf("%s has %s: %s", image, program, why);
	}
	if (found->has == BASE_UNKNOWN && !found->is_bare)
		return mem_printf("%s: whether it has %s cannot be known from its configuration",
			image, program);
	choose_python_image(project);
	char *from = mem_printf("%s; %s has no %s", project->image_from, image, program);
	REPLACE(project->image_from, from);
	return mem_printf(
		"%s instead of %s, which has no %s: %s", project->image, image, program, why);
}

/* The first of the user's `bases:` stands for the usual registry. */
static void init_project_set_mirror(struct session *session, struct init_project *project)
{
	static const char usual[] = "docker.io/library/python:";
	struct config *config;

	if (!str_starts(project->image, usual) || session_config(session, &config, NULL) < 0)
		return;
	const struct strv *bases = config_list(config, "bases");
	if (bases->n == 0)
		return;
	char *image = mem_printf("%s:%s", bases->v[0], project->image + strlen(usual));
	REPLACE(project->image, image);
}

void init_choose_base(struct session *session, struct init_project *project,
	const struct init_answers *answers, int64_t limit_ms, char **ret_said)
{
	AUTO_FREE char *program = init_project_program_of(project, answers),
		       *image = init_image(project);
	AUTO_BASE_PROGRAM struct base_program found = {0};
	AUTO_ERR struct err error = {0};

	*ret_said = NULL;
	if (!program || !(str_starts(program, "python") || str_eq(program, "uv")))
		return;
	if (!project->image)
		choose_python_image(project);
	init_project_set_mirror(session, project);
	if (!image || limit_ms == 0 || str_starts(image, "docker.io/library/python:") ||
		str_starts(image, "ghcr.io/astral-sh/uv:"))
		return;
	*ret_said =
		init_project_find_program(session, image, program, limit_ms, &found, &error) == 0
			? describe_base(project, image, program, &found)
			: mem_printf("%s: not checked: %s", image, error.message);
}
