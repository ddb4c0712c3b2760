/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "app/init/init_files.h"
#include "app/init/init_parse.h"
#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"

/*
 * Files beside the code: data that git ignores, and what programs write.
 */

enum { SIZE_MS = 200, SIZE_PENDING_MAX = 10000 };

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

static bool is_data_name(const char *name, size_t len)
{
	static const char *const names[] = {"data", "dataset", "datasets", "input", "inputs",
		"corpus", "corpora", "raw", "pretrained", "weights", "models"};

	return is_one_of(name, len, names, ARRAY_LEN(names));
}

/*
 * Sizes, as far as a moment reaches: a data set may have millions of files
 */

static void add_file(const char *path, struct init_data *data, struct strv *pending)
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

static void add_dir(
	const char *path, struct init_data *data, struct strv *pending, int64_t deadline)
{
	AUTO_DIR DIR *dir = opendir(path);
	struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		if (str_eq(entry->d_name, ".") || str_eq(entry->d_name, ".."))
			continue;
		AUTO_FREE char *below = fs_join(path, entry->d_name);
		add_file(below, data, pending);
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
	add_file(fs_realpath(path, &real, NULL) < 0 ? path : real, data, &pending);
	while (pending.n && clock_ms() < deadline) {
		AUTO_FREE char *dir = pending.v[--pending.n];
		add_dir(dir, data, &pending, deadline);
	}
	data->at_least |= pending.n > 0;
}

/*
 * Data
 */

static bool is_result_name(const char *name, size_t len)
{
	return is_one_of(name, len, result_names, ARRAY_LEN(result_names));
}

/* path as it lies below the project, or NULL. */
static const char *below_project(const struct init_project *project, const char *path)
{
	size_t len = strlen(project->prefix);

	if (str_eq(project->prefix, "."))
		return path;
	return strncmp(path, project->prefix, len) == 0 && path[len] == '/' ? path + len + 1 : NULL;
}

/* A data directory itself ("data/", "exp/raw/"), or what lies in one of the tree ("data/x"); not
 * where programs write ("runs/", "data/runs/"). */
static bool is_data(const char *path)
{
	size_t len = strlen(path) - str_ends(path, "/");
	size_t last = len, first = strcspn(path, "/");

	while (last > 0 && path[last - 1] != '/')
		last--;
	if (is_result_name(path, first) || is_result_name(path + last, len - last) ||
		str_eq(path + last, "__pycache__/"))
		return false;
	return is_data_name(path, first) || is_data_name(path + last, len - last);
}

static void add_data(struct init_project *project, const char *path)
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
void init_find_data(struct init_project *project, const struct survey *survey)
{
	for (int elsewhere = 0; survey && elsewhere < 2; elsewhere++) {
		vec_foreach (const struct left_out, left, &survey->paths.left_out) {
			const char *below = below_project(project, left->path);

			if (left->why != LEFT_OUT_IGNORED || (below == NULL) != (elsewhere == 1) ||
				!is_data(below ? below : left->path))
				continue;
			if (project->data.n == INIT_DATA_MAX) {
				strv_addf(&project->notes,
					"more paths that look like data are ignored by git: "
					"dlrun submit --dry-run --list-files");
				return;
			}
			add_data(project, left->path);
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
		if (init_read(dirs[i], ".gitignore", &text) &&
			init_ignore_names(text.data, text.len, name, i > 0 && !is_root))
			return true;
	}
	return false;
}

/* A link leads out of the tree, or the snapshot has it as a file. */
static bool is_link(const struct init_project *project, const char *name)
{
	AUTO_FREE char *path = fs_join(project->dir, name);
	struct stat st;

	return lstat(path, &st) == 0 && S_ISLNK(st.st_mode);
}

void init_find_outputs(struct init_project *project, const struct survey *survey)
{
	for (size_t i = 0; i < ARRAY_LEN(result_names); i++) {
		AUTO_FREE char *path = init_tree_path(project, result_names[i]);
		bool there = init_is_dir(project->dir, result_names[i]);
		if (!there && (init_is_file(project->dir, result_names[i]) ||
				      !is_ignored_by_name(project, result_names[i])))
			continue;
		if (!is_link(project, result_names[i]) && (!survey || !survey_tracks(survey, path)))
			strv_add(&project->outputs, path);
	}
}
