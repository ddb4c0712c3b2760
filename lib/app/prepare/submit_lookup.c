/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/prepare/submission.h"
#include "base/loop/proc.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/mem.h"
#include "base/util/str.h"

/*
 * Will the program be found? Said at submit, because the run itself can only fail. On this machine
 * only: what another one has is not known here.
 */

enum { CANDIDATES_MAX = 20000 };

static const char *path_of(const struct submission *submission)
{
	const char *path = env_get((const char *const *)submission->spec.env.v, "PATH");

	if (!path)
		path = env_get(submission->session->env.env, "PATH");
	return path ? path : "/bin:/usr/bin";
}

/*
 * Words without a slash: programs
 */

/* Names that begin like word, as those that are mistyped mostly do. */
static void add_programs(const char *dir_path, const char *word, struct strv *ret)
{
	AUTO_DIR DIR *dir = opendir(dir_path);
	struct dirent *entry;

	while (dir && ret->n < CANDIDATES_MAX && (entry = readdir(dir)))
		if (entry->d_name[0] == word[0])
			strv_add(ret, entry->d_name);
}

static char *suggest(const char *path, const char *word)
{
	AUTO_STRV struct strv names = {0};

	while (*path) {
		size_t len = strcspn(path, ":");
		AUTO_FREE char *dir = mem_strndup(path, len);
		if (*dir)
			add_programs(dir, word, &names);
		path += len + (path[len] == ':');
	}
	return mem_strdup(str_suggest(word, (const char *const *)names.v, names.n));
}

/*
 * Words with a slash: files
 */

/* A link on the way leads to where only the run's tree can tell. */
static bool goes_by_link(const struct entry_list *entries, const char *path)
{
	for (const char *slash = strchr(path, '/'); slash; slash = strchr(slash + 1, '/')) {
		AUTO_FREE char *dir = mem_strndup(path, (size_t)(slash - path));
		const struct entry *entry = entry_find(entries, dir);
		if (entry && entry->kind == ENTRY_LINK)
			return true;
	}
	return false;
}

/* Whether path, which the snapshot does not have, comes with data or may be made by the setup. */
static bool is_brought(const struct world *world, const char *path)
{
	for (size_t i = 0; i < world->data.n; i++) {
		const char *data = world->data.v[i].path;
		if (str_starts(path, data) && strchr("/", path[strlen(data)]))
			return true;
	}
	return world->setup.run || world->before;
}

static void look_up_file(struct submission *submission, const char *word)
{
	AUTO_FREE char *path = submission_tree_path(submission->spec.cwd, word), *here = NULL;
	AUTO_FREE char *shown = str_escaped(word);
	const struct entry *entry;

	if (!path || !submission->snapshot || goes_by_link(&submission->snapshot->entries, path))
		return;
	entry = entry_find(&submission->snapshot->entries, path);
	if (entry ? entry->kind == ENTRY_LINK || entry->exec
		  : is_brought(&submission->spec.world, path))
		return;
	submission->missing_program = true;
	here = fs_join(submission->place->root, path);
	if (entry)
		submission_warn(submission, "%s is not executable: chmod +x %s", shown, shown);
	else if (access(here, F_OK) == 0)
		submission_warn(submission,
			"%s is not part of the snapshot: --include %s brings it", shown, path);
	else
		submission_warn(submission, "%s: no such file in the tree", shown);
}

/*
 * Lookup of the first word of a command
 */

static void look_up_program(struct submission *submission, const char *word)
{
	const char *path = path_of(submission);
	AUTO_FREE char *found = proc_find(word, path), *near = NULL;
	AUTO_FREE char *shown = str_escaped(word);

	/* A relative element of PATH is seen from the run's directory, not from here. */
	if ((found && found[0] == '/') || strstr(path, "::") || path[0] != '/' ||
		strstr(path, ":."))
		return;
	submission->missing_program = true;
	near = suggest(path, word);
	if (near)
		submission_warn(submission, "%s: command not found; did you mean %s?", shown, near);
	else
		submission_warn(submission, "%s: command not found", shown);
}

void submission_look_up(struct submission *submission)
{
	const char *word = submission->spec.command.v[0];
	struct stat st;

	if (submission->spec.shell || !submission->target->ops->is_here)
		return;
	if (!strchr(word, '/')) {
		/* Lines in front of it may change PATH. */
		if (!submission->spec.world.before)
			look_up_program(submission, word);
	} else if (word[0] != '/') {
		look_up_file(submission, word);
	} else if (access(word, X_OK) < 0 || stat(word, &st) < 0 || !S_ISREG(st.st_mode)) {
		AUTO_FREE char *shown = str_escaped(word);
		submission->missing_program = true;
		submission_warn(submission, "%s: no such program", shown);
	}
}
