/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/plot/plot_sources.h"

#include <sys/stat.h>

#include "app/runs/refresh.h"
#include "app/transfer/mirror.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/runs/runs.h"
#include "cli/term/app.h"

enum { REFRESH_MS = 500, FIRST_MS = 120 * 1000 };

/*
 * Words
 */

static bool plot_sources_is_dir(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* Words that cannot be runs: those of a target are TARGET:ID, and targets may have slashes. */
static bool must_be_dir(const char *word)
{
	return str_eq(word, ".") || str_eq(word, "..") ||
	       (strchr(word, '/') && (!strchr(word, ':') || plot_sources_is_dir(word)));
}

static int plot_sources_add_dir(struct plot_sources *sources, const char *word, struct err *err)
{
	AUTO_FREE char *path = NULL, *shown = str_shown(word);

	if (!plot_sources_is_dir(word)) {
		err_set(err, E_EVENTS_DIR, "no such directory: %s", shown);
		return err_hint(err, "dlrun plot @   # the newest run");
	}
	int r = fs_realpath(word, &path, err);
	if (r < 0)
		return r;
	struct plot_source *source = vec_push(sources);
	*source = (struct plot_source){.name = mem_strdup(word)};
	source->dir = TAKE(path);
	size_t len = strlen(source->name);
	while (len > 1 && source->name[len - 1] == '/')
		source->name[--len] = '\0';
	return 0;
}

static bool plot_sources_has_run(const struct plot_sources *sources, const struct run *run)
{
	vec_foreach (struct plot_source, source, sources)
		if (source->run && str_eq(source->name, run_id(run)))
			return true;
	return false;
}

/* Takes run. */
static int plot_sources_add_run(
	struct plot_sources *sources, struct app *app, struct run *run, struct err *err)
{
	static const struct mirror_options options = {.scalars_only = true};
	AUTO_RUN struct run *held = run;
	size_t mirrored;
	int r = 0;

	if (plot_sources_has_run(sources, run))
		return 0;
	if (!sources->mirror)
		r = mirror_open(&app->session, &options, &sources->mirror, err);
	if (r == 0)
		r = mirror_add(sources->mirror, run, &mirrored, err);
	if (r < 0)
		return r;
	*vec_push(sources) = (struct plot_source){
		.name = mem_strdup(run_id(run)), .mirrored = mirrored, .run = TAKE(held)};
	return 0;
}

static int plot_sources_add_word(
	struct plot_sources *sources, struct app *app, const char *word, struct err *err)
{
	struct run *run;

	if (word && must_be_dir(word))
		return plot_sources_add_dir(sources, word, err);
	int r = runs_get(app, word, &run, err);
	if (r == -ERR_NOTFOUND && word && plot_sources_is_dir(word)) {
		err_clear(err);
		return plot_sources_add_dir(sources, word, err);
	}
	return r < 0 ? r : plot_sources_add_run(sources, app, run, err);
}

/* The beginning, by whole names, that all directories have but for their last names. */
static size_t common_dirs(const struct plot_sources *sources)
{
	const char *first = NULL;
	size_t common = 0;

	vec_foreach (struct plot_source, source, sources) {
		size_t i = 0, slash = 0;

		if (source->run)
			continue;
		if (!first) {
			const char *last = strrchr(source->name, '/');
			common = last ? (size_t)(last + 1 - source->name) : 0;
			first = source->name;
		}
		for (; i < common && source->name[i] == first[i]; i++)
			slash = first[i] == '/' ? i + 1 : slash;
		common = slash;
	}
	return common;
}

static void make_labels(struct plot_sources *sources)
{
	size_t common = common_dirs(sources);

	vec_foreach (struct plot_source, source, sources) {
		const char *label = source->name + (source->run ? 0 : common);
		source->label = mem_strdup(*label ? label : source->name);
	}
}

/* Where the event files of runs are. */
static void plot_sources_find_dirs(struct plot_sources *sources)
{
	vec_foreach (struct plot_source, source, sources) {
		struct mirror_state state;

		if (!source->run)
			continue;
		mirror_get(sources->mirror, source->mirrored, &state);
		source->dir = mem_strdup(state.source);
	}
}

/* Each run was asked once: those that could not be. What was brought before can be drawn. */
static int check_mirror(const struct plot_sources *sources, struct app *app, struct err *err)
{
	size_t n_failed = 0;

	vec_foreach (struct plot_source, source, sources) {
		struct mirror_state state;

		if (!source->run)
			continue;
		mirror_get(sources->mirror, source->mirrored, &state);
		if (!err_is_set(state.fault) || state.looks > 0)
			continue;
		n_failed += state.files == 0;
		if (sources->n > 1 || state.files > 0)
			app_warn(app, "%s: %s", source->name, state.fault->message);
		else
			err_copy(err, state.fault);
	}
	if (n_failed < sources->n || n_failed == 0)
		return 0;
	if (err_is_set(err))
		return err_prefix(err, "%s", sources->v[0].name);
	return err_set(err, E_TARGET_SILENT, "none of the %zu runs could be asked", sources->n);
}

const struct err *plot_sources_fault(const struct plot_sources *sources, const char **ret_name)
{
	vec_foreach (struct plot_source, source, sources) {
		struct mirror_state state;

		if (!source->run)
			continue;
		mirror_get(sources->mirror, source->mirrored, &state);
		*ret_name = source->name;
		if (err_is_set(state.fault))
			return state.fault;
	}
	return NULL;
}

int plot_sources_open(struct plot_sources *sources, struct app *app, const struct strv *words,
	bool patient, struct err *err)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < words->n; i++)
		r = plot_sources_add_word(sources, app, words->v[i], err);
	if (r == 0 && words->n == 0)
		r = plot_sources_add_word(sources, app, NULL, err);
	if (r == 0 && sources->mirror)
		r = mirror_first(sources->mirror, FIRST_MS, &app_interrupted, err);
	if (r == 0 && !patient)
		r = check_mirror(sources, app, err);
	if (r < 0)
		return r;
	plot_sources_find_dirs(sources);
	make_labels(sources);
	vec_foreach (struct plot_source, source, sources)
		source->series = series_new(source->dir);
	return 0;
}

/*
 * Looking
 */

int plot_sources_look(struct plot_sources *sources, bool *ret_new, struct err *err)
{
	*ret_new = false;
	vec_foreach (struct plot_source, source, sources) {
		bool is_new;
		int r = series_look(source->series, &is_new, err);

		if (r < 0)
			return r;
		*ret_new |= is_new;
	}
	return 0;
}

void plot_sources_refresh(struct plot_sources *sources, struct app *app)
{
	AUTO(run_list_done) struct run_list runs = {0};

	if (!plot_sources_go_on(sources))
		return;
	vec_foreach (struct plot_source, source, sources)
		if (source->run)
			*vec_push(&runs) = TAKE(source->run);
	runs_refresh(&app->session, &runs, REFRESH_MS, NULL);
	size_t at = 0;
	vec_foreach (struct plot_source, source, sources)
		if (at < runs.n && str_eq(source->name, run_id(runs.v[at])))
			source->run = TAKE(runs.v[at]), at++;
	runs.n = 0;
}

bool plot_sources_go_on(const struct plot_sources *sources)
{
	vec_foreach (struct plot_source, source, sources)
		if (source->run && !run_state_is_final(run_state(source->run)))
			return true;
	return false;
}

int plot_sources_check(const struct plot_sources *sources, struct err *err)
{
	const struct plot_source *first = &sources->v[0];

	vec_foreach (struct plot_source, source, sources)
		if (series_count(source->series) > 0)
			return 0;
	if (!first->run) {
		AUTO_FREE char *shown = str_shown(first->name);
		err_set(err, E_EVENTS_NONE, "there is no event file with scalars in %s", shown);
		return err_hint(err, "name the directory that the program writes them to "
				     "(SummaryWriter's log_dir)");
	}
	if (plot_sources_go_on(sources)) {
		err_set(err, E_EVENTS_NONE, "%s has written no event files yet", first->name);
		return err_hint(err, "dlrun plot --watch %s", first->name);
	}
	err_set(err, E_EVENTS_NONE, "%s has written no event files", first->name);
	return err_hint(err, "dlrun fetch --list %s   # what it has written", first->name);
}

void plot_sources_done(struct plot_sources *sources)
{
	vec_foreach (struct plot_source, source, sources) {
		free(source->name);
		free(source->label);
		free(source->dir);
		run_free(source->run);
		series_free(source->series);
	}
	vec_done(sources);
	mirror_free(sources->mirror);
}
