/* SPDX-License-Identifier: Apache-2.0 */
#include "app/lifecycle/hint_excluded.h"

#include <stdlib.h>
#include <string.h>

#include "app/lifecycle/failure.h"
#include "app/transfer/outputs.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/term.h"
#include "core/attempt/attempt.h"
#include "core/config/words.h"
#include "core/record/runtime.h"
#include "core/target/target.h"
#include "targets/targets.h"

/*
 * The search. Lines that complain about something missing are looked at from the last to the first;
 * each word of one is taken for a path.
 */

enum { LINE_MAX = 4096 };

/* How programs say that something is not there. */
static const char *const excluded_complaints[] = {"can't find", "can't open", "cannot access",
	"cannot find", "cannot load", "cannot open", "cannot stat", "could not find",
	"could not load", "could not open", "couldn't find", "couldn't open", "does not exist",
	"doesn't exist", "enoent", "errno 2]", "failed to load", "failed to open", "filenotfound",
	"is missing", "no module named", "no rule to make target", "no such file", "nosuchfile",
	"not a directory", "not found", "notfound", "os error 2", "unable to open"};

/* How programs say that data is missing, or cannot be fetched instead. */
static const char *const excluded_data_complaints[] = {"dataset not found", "dataset is not found",
	"datasetnotfound", "data not found", "download=true", "download failed",
	"could not download", "error downloading", "failed to download", "failed to resolve",
	"max retries exceeded", "name resolution", "name or service not known", "urlopen error"};

static bool excluded_has_one_of(const char *line, const char *const *texts, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (strcasestr(line, texts[i]))
			return true;
	return false;
}

/* The row of exactly this path; below: the first whose path begins with it. */
static const struct excluded *excluded_row(
	const struct excluded_paths *paths, const char *path, bool below)
{
	size_t at = vec_bound(paths, item, strcmp(item->path, path) < 0);
	const struct excluded *row = at < paths->n ? &paths->v[at] : NULL;

	return row && (below ? str_starts(row->path, path) : str_eq(row->path, path)) ? row : NULL;
}

/* The row of path in dir (both relative to the root of the tree), or of the nearest directory above
 * it, or, for a word that is surely a path, of something below it. */
static const struct excluded *excluded_at(
	const struct excluded_paths *paths, const char *dir, const char *path, bool below)
{
	AUTO_FREE char *whole = fs_join_normal(dir, path), *at_dir = mem_strdup("");
	const struct excluded *found = NULL;

	for (const char *end = whole; end && *end; end += *end == '/') {
		end += strcspn(end, "/");
		AUTO_FREE char *longer = mem_strndup(whole, (size_t)(end - whole));
		const struct excluded *row = excluded_row(paths, longer, false);
		REPLACE(at_dir, mem_printf("%s/", longer));
		if (!row)
			row = excluded_row(paths, at_dir, false);
		found = row ? row : found;
	}
	return found || !below || !*at_dir ? found : excluded_row(paths, at_dir, true);
}

static const struct excluded *excluded_word(const struct excluded_paths *paths,
	const struct excluded_place *place, const char *word, bool quoted)
{
	bool below = quoted || strchr(word, '/');
	const char *rest = NULL;

	if (*word != '/') {
		const struct excluded *found = excluded_at(paths, place->cwd, word, below);
		return found ? found : excluded_at(paths, "", word, below);
	}
	if (place->tree)
		rest = fs_below(word, place->tree);
	if (!rest && place->run_id) {
		AUTO_FREE char *attempts = mem_printf("/%s/attempts/", place->run_id);
		rest = strstr(word, attempts);
		rest = rest ? rest + strlen(attempts) : "";
		rest += strspn(rest, "0123456789");
		rest = str_starts(rest, "/tree/") ? rest + strlen("/tree/") : NULL;
	}
	return rest ? excluded_at(paths, "", rest, true) : NULL;
}

/* "No module named 'a.b'": a/b.py, or a/b/ with what is in it; below the working directory, the
 * root or src/. */
static const struct excluded *excluded_module(
	const struct excluded_paths *paths, const struct excluded_place *place, const char *module)
{
	static const char *const before[] = {"", "", "src/", "src/"}, *const after[] = {".py", ""};
	AUTO_FREE char *path = mem_strdup(module);
	const struct excluded *found = NULL;

	for (char *at = path; (at = strchr(at, '.'));)
		*at = '/';
	for (size_t i = 0; !found && i < ARRAY_LEN(before); i++) {
		AUTO_FREE char *name = mem_printf("%s%s%s", before[i], path, after[i % 2]);
		found = excluded_word(paths, place, name, true);
	}
	return found;
}

/* Quotes may be apostrophes: what stands behind one is looked at both as a whole and in words. Only
 * the first word names the module that is missing. */
static const struct excluded *excluded_line(
	const struct excluded_paths *paths, const struct excluded_place *place, const char *line)
{
	static const char quotes[] = "'\"`", between[] = " \t'\"`()[]{}<>=,;|";
	const char *module = strcasestr(line, "no module named ");
	const struct excluded *found = NULL;
	bool is_over = false;

	if (module)
		line = module + strlen("no module named ");
	while (*line && !found && !is_over) {
		const char *end = strchr(quotes, *line) ? strchr(line + 1, *line) : NULL;
		size_t len = strcspn(line, between), cut = len;
		while (!end && cut && strchr(":.!?", line[cut - 1]))
			cut--;
		AUTO_FREE char *word = end ? mem_strndup(line + 1, (size_t)(end - line) - 1)
					   : mem_strndup(line, cut);
		if (*word)
			found = module ? excluded_module(paths, place, word)
				       : excluded_word(paths, place, word, end != NULL);
		is_over = module && *word;
		line += len ? len : 1;
	}
	return found;
}

/* By one of its names, not of what only looks like it. */
static bool is_like_input(const char *path)
{
	static const char *const names[] = {
		"data", ".data", "dataset", "datasets", "input", "inputs", "corpus", "corpora"};

	for (const char *at = path; *at; at += strspn(at, "/")) {
		size_t len = strcspn(at, "/");
		for (size_t i = 0; i < ARRAY_LEN(names); i++)
			if (strlen(names[i]) == len && memcmp(names[i], at, len) == 0)
				return true;
		at += len;
	}
	return false;
}

/* The first path that is called like input and was left out, or the run's data below it. */
static const struct excluded *excluded_input(const struct excluded_paths *paths)
{
	vec_foreach (const struct excluded, row, paths) {
		if (row->why == EXCLUDED_DATA || !is_like_input(row->path))
			continue;
		const struct excluded *next = row + 1;
		bool is_data = next < paths->v + paths->n && next->why == EXCLUDED_DATA &&
			       str_starts(next->path, row->path);
		return is_data ? next : row;
	}
	return NULL;
}

const struct excluded *excluded_find(const struct excluded_paths *paths,
	const struct excluded_place *place, const char *output, size_t len)
{
	size_t first = len > EXCLUDED_TAIL ? len - EXCLUDED_TAIL : 0, end = len;
	bool wants_data = false;

	while (paths->n && end > first) {
		size_t start = end;
		while (start > first && output[start - 1] != '\n' && output[start - 1] != '\r')
			start--;
		size_t size = end - start < LINE_MAX ? end - start : LINE_MAX;
		AUTO_FREE char *line = term_plain(output + start, size);
		wants_data |= excluded_has_one_of(
			line, excluded_data_complaints, ARRAY_LEN(excluded_data_complaints));
		const struct excluded *found = NULL;
		if (excluded_has_one_of(line, excluded_complaints, ARRAY_LEN(excluded_complaints)))
			found = excluded_line(paths, place, line);
		if (found)
			return found;
		end = start > first ? start - 1 : first;
	}
	return wants_data ? excluded_input(paths) : NULL;
}

/* Sorted by their bytes, what lies below it stands where it would itself. */
static bool has_file_at(const struct outputs_files *files, const char *path)
{
	size_t low = vec_bound(files, file, strcmp(file->path, path) < 0), len = strlen(path);

	return low < files->n && strncmp(files->v[low].path, path, len) == 0 &&
	       (path[len - 1] == '/' || !files->v[low].path[len]);
}

const struct excluded *excluded_made_anew(
	const struct excluded_paths *paths, const struct outputs_files *files)
{
	for (size_t i = 0; i < paths->n; i++) {
		const char *path = paths->v[i].path;
		if (*path && is_like_input(path) && has_file_at(files, path))
			return &paths->v[i];
	}
	return NULL;
}

void excluded_warn_anew(const struct excluded *excluded, struct buf *out)
{
	AUTO_FREE char *path = str_escaped(excluded->path);
	size_t len = strlen(path);

	buf_addf(out,
		"the run made %s anew, which was left out because git ignores it; `data: [%.*s]` "
		"in dlrun.yaml gives runs the one that is there",
		path, (int)(len && path[len - 1] == '/' ? len - 1 : len), path);
}

/*
 * The sentence
 */

/* A place that is empty, or has something else in it. */
static void excluded_hint_data(const char *path, const struct run *run, struct buf *out)
{
	const char *target = run_target(run), *from = NULL;
	const char *root = json_get_str(json_get(run->doc, "origin"), "root");
	const struct json *data = json_get(run->spec, "data");
	AUTO_FREE char *live = root ? fs_join(root, path) : NULL, *shown = str_escaped(path);

	for (data = data ? json_first(data) : NULL; data; data = json_next(data))
		if (str_eq(json_get_str(data, "path"), path))
			from = json_get_str(data, "from");
	bool is_sent = str_eq(from, RUNTIME_SYNC);
	bool is_here = is_sent || (target_ops_recorded(run)->is_here && str_eq(from, live));
	AUTO_FREE char *place = str_escaped(is_sent && live ? live : from ? from : path);

	buf_addf(out, "`%s` is listed in `data:`, and %s%s%s lacks what the program looked for",
		shown, place, is_here ? "" : " on ", is_here ? "" : target);
	if (!is_here)
		buf_addf(out, "; `dlrun data push -t %s %s` sends it there", target, shown);
}

void excluded_hint(const struct excluded *excluded, const struct run *run, struct buf *out)
{
	static const char ignored[] =
		"is ignored by git and was excluded; add it to `data:` (data that stays where it "
		"is) or `include:` (part of the code) in dlrun.yaml";
	static const char *const texts[] = {
		[EXCLUDED_IGNORED] = ignored,
		[EXCLUDED_REPOSITORY] = ignored,
		[EXCLUDED_DLRUNIGNORE] =
			"is named in .dlrunignore and was excluded; take it out of there, or add "
			"it to `data:` (data that stays where it is) in dlrun.yaml",
		[EXCLUDED_SPECIAL] = "is a socket, pipe or device and was excluded; let the "
				     "program make it",
	};
	AUTO_FREE char *path = str_escaped(excluded->path);

	if (excluded->why == EXCLUDED_DATA)
		excluded_hint_data(excluded->path, run, out);
	else
		buf_addf(out, "`%s` %s", path, texts[excluded->why]);
}

/*
 * Lists in memory
 */

void excluded_paths_done(struct excluded_paths *paths)
{
	if (!paths)
		return;
	free(paths->v);
	arena_done(&paths->arena);
	*paths = (struct excluded_paths){0};
}

void excluded_add(struct excluded_paths *paths, const char *path, enum excluded_why why)
{
	struct excluded *excluded = vec_push(paths);

	*excluded = (struct excluded){.path = arena_strdup(&paths->arena, path), .why = why};
}

static int hint_excluded_by_path(const void *a, const void *b)
{
	const struct excluded *x = a, *y = b;

	return strcmp(x->path, y->path);
}

void excluded_sort(struct excluded_paths *paths)
{
	vec_sort(paths, hint_excluded_by_path);
}

/*
 * excluded.json, dlrun/left-out/v1: a list of paths for each reason.
 */

enum { FILE_MAX = 4 * EXCLUDED_BYTES_MAX, TAIL_LINES = 300, REASON_MAX = 64 << 10 };

static const char *const reasons[] = {
	[EXCLUDED_IGNORED] = "ignored",
	[EXCLUDED_DLRUNIGNORE] = "dlrunignore",
	[EXCLUDED_SPECIAL] = "special",
	[EXCLUDED_REPOSITORY] = "repository",
};

static char *file_of(const struct dirs *dirs, const char *run_id)
{
	AUTO_FREE char *dir = dirs_run(dirs, run_id);

	return fs_join(dir, RUN_EXCLUDED);
}

static struct json *to_json(const struct snapshot *snapshot)
{
	struct strv lists[ARRAY_LEN(reasons)] = {0};
	struct json *json = json_object();
	size_t bytes = 0;

	vec_foreach (const struct excluded, row, &snapshot->paths.excluded) {
		bytes += strlen(row->path);
		if (bytes > EXCLUDED_BYTES_MAX)
			break;
		strv_add(&lists[row->why], row->path);
	}
	json_set_str(json, "schema", "dlrun/left-out/v1");
	for (size_t i = 0; i < ARRAY_LEN(reasons); i++) {
		if (lists[i].n)
			words_set(json, reasons[i], &lists[i]);
		strv_done(&lists[i]);
	}
	return json;
}

static int hint_excluded_write_text(
	const struct dirs *dirs, const struct run *run, const struct buf *text, struct err *err)
{
	AUTO_FREE char *path = file_of(dirs, run_id(run));

	return fs_replace(path, text->data, text->len, 0600, FS_SYNC_NONE, err);
}

/* The same code lacks the same files. */
static int copy_from(
	const struct dirs *dirs, const struct run *run, const char *parent, struct err *err)
{
	AUTO_FREE char *path = NULL;
	AUTO_BUF struct buf text = {0};

	if (!run_id_is_valid(parent))
		return 0;
	path = file_of(dirs, parent);
	if (fs_read(path, FILE_MAX, &text, NULL, NULL) < 0)
		return 0;
	return hint_excluded_write_text(dirs, run, &text, err);
}

int excluded_write(const struct dirs *dirs, const struct run *run, const struct snapshot *snapshot,
	struct err *err)
{
	AUTO_JSON struct json *json = NULL;
	AUTO_BUF struct buf text = buf_with(FILE_MAX);

	if (!snapshot)
		return copy_from(dirs, run, json_get_str(run->doc, "parent"), err);
	if (snapshot->paths.excluded.n == 0)
		return 0;
	json = to_json(snapshot);
	json_print(json, &text);
	int r = buf_check(&text, RUN_EXCLUDED, err);
	return r < 0 ? r : hint_excluded_write_text(dirs, run, &text, err);
}

/*
 * Reading
 */

/* Paths below data and outputs exist in the run. */
static bool is_brought_back(const struct runtime *runtime, const char *path)
{
	vec_foreach (const struct runtime_data, data, &runtime->data)
		if (fs_below(path, data->path))
			return true;
	vec_foreach (char *const, output, &runtime->outputs)
		if (fs_below(path, *output))
			return true;
	return false;
}

static int hint_excluded_add_list(const struct json *json, enum excluded_why why,
	const struct runtime *runtime, struct excluded_paths *ret, struct err *err)
{
	AUTO_STRV struct strv words = {0};
	int r = words_get(json, reasons[why], &words, err);

	for (size_t i = 0; r == 0 && i < words.n && ret->n < EXCLUDED_MAX; i++)
		if (!is_brought_back(runtime, words.v[i]))
			excluded_add(ret, words.v[i], why);
	return r;
}

int excluded_read(
	const struct dirs *dirs, const struct run *run, struct excluded_paths *ret, struct err *err)
{
	AUTO_FREE char *path = file_of(dirs, run_id(run));
	AUTO_BUF struct buf text = {0};
	AUTO_JSON struct json *json = NULL;
	AUTO_RUNTIME struct runtime runtime = {0};
	bool missing = false;

	int r = fs_read(path, FILE_MAX, &text, &missing, err);
	if (r < 0 && missing) {
		err_clear(err);
		return 0;
	}
	if (r == 0)
		r = json_parse(text.data, text.len, FILE_MAX, path, &json, err);
	if (r == 0 && run->spec)
		r = runtime_from_json(run->spec, &runtime, err);
	for (size_t i = 0; r == 0 && i < ARRAY_LEN(reasons); i++)
		r = hint_excluded_add_list(json, (enum excluded_why)i, &runtime, ret, err);
	excluded_sort(ret);
	return r;
}

int excluded_add_data(const struct run *run, struct excluded_paths *ret, struct err *err)
{
	AUTO_RUNTIME struct runtime runtime = {0};
	int r = run->spec ? runtime_from_json(run->spec, &runtime, err) : 0;

	vec_foreach (const struct runtime_data, data, &runtime.data)
		excluded_add(ret, data->path, EXCLUDED_DATA);
	excluded_sort(ret);
	return r;
}
