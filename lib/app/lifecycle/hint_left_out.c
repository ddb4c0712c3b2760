/* SPDX-License-Identifier: Apache-2.0 */
#include "app/lifecycle/hint_left_out.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "app/transfer/outputs.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/term.h"
#include "core/attempt/attempt.h"
#include "core/config/words.h"
#include "core/record/world.h"

/*
 * The search. Lines that complain about something missing are looked at from the last to the first;
 * each word of one, the quoted ones first, is taken for a path.
 */

enum { LINE_MAX = 4096, PATH_MAX_BYTES = 4095 };

/* In small letters: how programs say that something is not there. */
static const char *const complaints[] = {
	"can't find",
	"can't open",
	"cannot access",
	"cannot find",
	"cannot load",
	"cannot open",
	"cannot stat",
	"could not find",
	"could not load",
	"could not open",
	"couldn't find",
	"couldn't open",
	"does not exist",
	"doesn't exist",
	"enoent",
	"errno 2]",
	"failed to load",
	"failed to open",
	"filenotfound",
	"is missing",
	"no module named",
	"no rule to make target",
	"no such file",
	"nosuchfile",
	"not a directory",
	"not found",
	"notfound",
	"os error 2",
	"unable to open",
};

/* In small letters: how programs say that data is missing, or cannot be fetched instead. */
static const char *const data_complaints[] = {
	"dataset not found",
	"dataset is not found",
	"datasetnotfound",
	"data not found",
	"download=true",
	"download failed",
	"could not download",
	"error downloading",
	"failed to download",
	"failed to resolve",
	"max retries exceeded",
	"name resolution",
	"name or service not known",
	"urlopen error",
};

struct search {
	const struct left_out_paths *paths;
	const struct left_out_place *place;
};

static int by_path(const void *a, const void *b)
{
	const struct left_out *x = a, *y = b;

	return strcmp(x->path, y->path);
}

static const struct left_out *find_exact(const struct left_out_paths *paths, const char *path)
{
	const struct left_out key = {.path = path};

	return paths->n ? bsearch(&key, paths->v, paths->n, sizeof(key), by_path) : NULL;
}

/* The first that lies below dir, which ends in a slash. */
static const struct left_out *find_below(const struct left_out_paths *paths, const char *dir)
{
	size_t low = vec_bound(paths, item, strcmp(item->path, dir) < 0);

	if (low < paths->n && str_starts(paths->v[low].path, dir))
		return &paths->v[low];
	return NULL;
}

/* Find path, or a directory that contains it; with below also a path inside it. path: relative to
 * the root of the tree, normalized. */
static const struct left_out *find_path(
	const struct left_out_paths *paths, const char *path, bool below)
{
	char text[PATH_MAX_BYTES + 2];
	size_t len = strlen(path);
	const struct left_out *found;

	if (len == 0 || len > PATH_MAX_BYTES)
		return NULL;
	found = find_exact(paths, path);
	/* A directory of the list ends in a slash; a link to one does not. */
	for (size_t end = strcspn(path, "/"); !found; end += 1 + strcspn(path + end + 1, "/")) {
		memcpy(text, path, end);
		memcpy(text + end, "/", 2);
		found = find_exact(paths, text);
		text[end] = '\0';
		if (!found)
			found = find_exact(paths, text);
		if (!path[end])
			break;
	}
	if (found || !below)
		return found;
	memcpy(text, path, len);
	memcpy(text + len, "/", 2);
	return find_below(paths, text);
}

/* Appends the parts of path to out, "." and ".." resolved; false if it leads out. */
static bool add_parts(const char *path, char out[static PATH_MAX_BYTES + 1], size_t *len)
{
	for (const char *at = path; *at; at += strspn(at, "/")) {
		size_t n = strcspn(at, "/");

		if (n == 2 && memcmp(at, "..", 2) == 0) {
			if (*len == 0)
				return false;
			while (*len && out[*len - 1] != '/')
				--*len;
			*len -= *len > 0;
		} else if (n && !(n == 1 && *at == '.')) {
			if (*len + n + 1 > PATH_MAX_BYTES)
				return false;
			if (*len)
				out[(*len)++] = '/';
			memcpy(out + *len, at, n);
			*len += n;
		}
		out[*len] = '\0';
		at += n;
	}
	return true;
}

static const struct left_out *find_from(
	const struct search *search, const char *dir, const char *path, bool below)
{
	char whole[PATH_MAX_BYTES + 1] = "";
	size_t len = 0;

	if (!add_parts(dir, whole, &len) || !add_parts(path, whole, &len))
		return NULL;
	return find_path(search->paths, whole, below);
}

/* The part of path behind /RUN_ID/attempts/N/tree/, or NULL. */
static const char *below_attempt(const char *run_id, const char *path)
{
	for (const char *at = path; (at = strchr(at, '/')); at++) {
		size_t len = strlen(run_id);
		const char *rest = at + 1 + len;
		if (strncmp(at + 1, run_id, len) != 0 || !str_starts(rest, "/attempts/"))
			continue;
		rest += strlen("/attempts/");
		rest += strspn(rest, "0123456789");
		if (str_starts(rest, "/tree/"))
			return rest + strlen("/tree/");
	}
	return NULL;
}

static const struct left_out *find_absolute(const struct search *search, const char *path)
{
	const struct left_out_place *place = search->place;
	const char *rest = NULL;

	if (place->tree && str_starts(path, place->tree) && path[strlen(place->tree)] == '/')
		rest = path + strlen(place->tree) + 1;
	else if (place->run_id)
		rest = below_attempt(place->run_id, path);
	return rest ? find_from(search, "", rest, true) : NULL;
}

/* quoted: the whole of what stood between quotes. */
static const struct left_out *find_word(const struct search *search, const char *word, bool quoted)
{
	bool below = quoted || strchr(word, '/');
	const struct left_out *found;

	if (*word == '/')
		return find_absolute(search, word);
	found = find_from(search, search->place->cwd, word, below);
	return found ? found : find_from(search, "", word, below);
}

/* "No module named 'a.b'": a/b.py, or a/b/ with what is in it; below the root, src/ or the working
 * directory. */
static const struct left_out *find_module(const struct search *search, const char *module)
{
	static const char *const forms[] = {"%s.py", "%s", "src/%s.py", "src/%s"};
	AUTO_FREE char *path = mem_strdup(module);
	const struct left_out *found = NULL;

	for (char *at = path; *at; at++)
		if (*at == '.')
			*at = '/';
	for (size_t i = 0; !found && i < ARRAY_LEN(forms); i++) {
		const char *percent = strstr(forms[i], "%s");
		AUTO_FREE char *name = mem_printf(
			"%.*s%s%s", (int)(percent - forms[i]), forms[i], path, percent + 2);
		found = find_from(search, search->place->cwd, name, true);
		if (!found)
			found = find_from(search, "", name, true);
	}
	return found;
}

static const struct left_out *try_quoted(const struct search *search, const char *line, bool module)
{
	static const char quotes[] = "'\"`";

	for (const char *at = line; *(at += strcspn(at, quotes));) {
		const char *end = strchr(at + 1, *at);
		const struct left_out *found;
		if (!end) {
			at++;
			continue;
		}
		AUTO_FREE char *word = mem_strndup(at + 1, (size_t)(end - at) - 1);
		found = module ? find_module(search, word) : find_word(search, word, true);
		if (found)
			return found;
		at++;
	}
	return NULL;
}

static const struct left_out *try_words(const struct search *search, const char *line)
{
	/* Not among them: what ends a sentence or a label is cut off below. */
	static const char between[] = " \t'\"`()[]{}<>=,;|";

	for (const char *at = line; *at; at += strspn(at, between)) {
		size_t len = strcspn(at, between), cut = len;
		const struct left_out *found;
		while (cut && strchr(":.!?", at[cut - 1]))
			cut--;
		AUTO_FREE char *word = mem_strndup(at, cut);
		found = *word ? find_word(search, word, false) : NULL;
		if (found)
			return found;
		at += len;
	}
	return NULL;
}

static bool has_one_of(const char *small, const char *const *texts, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (strstr(small, texts[i]))
			return true;
	return false;
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

static const struct left_out *find_input(const struct left_out_paths *paths)
{
	for (size_t i = 0; i < paths->n; i++)
		if (is_like_input(paths->v[i].path))
			return &paths->v[i];
	return NULL;
}

/* Sorted by their bytes, what lies below it stands where it would itself. */
static bool has_file_at(const struct outputs_files *files, const char *path)
{
	size_t low = vec_bound(files, file, strcmp(file->path, path) < 0), len = strlen(path);

	return low < files->n && strncmp(files->v[low].path, path, len) == 0 &&
	       (path[len - 1] == '/' || !files->v[low].path[len]);
}

const struct left_out *left_out_made_anew(
	const struct left_out_paths *paths, const struct outputs_files *files)
{
	for (size_t i = 0; i < paths->n; i++) {
		const char *path = paths->v[i].path;
		if (*path && is_like_input(path) && has_file_at(files, path))
			return &paths->v[i];
	}
	return NULL;
}

void left_out_warn_anew(const struct left_out *left_out, struct buf *out)
{
	AUTO_FREE char *path = str_escaped(left_out->path);
	size_t len = strlen(path);

	buf_addf(out,
		"the run made %s anew, which was left out because git ignores it; `data: [%.*s]` "
		"in dlrun.yaml gives runs the one that is there",
		path, (int)(len && path[len - 1] == '/' ? len - 1 : len), path);
}

/* *ret_data: it complains about data. */
static const struct left_out *try_line(
	const struct search *search, const char *line, bool *ret_data)
{
	AUTO_FREE char *small = mem_strdup(line);
	const struct left_out *found;

	for (char *at = small; *at; at++)
		*at = (char)(*at >= 'A' && *at <= 'Z' ? *at - 'A' + 'a' : *at);
	*ret_data |= has_one_of(small, data_complaints, ARRAY_LEN(data_complaints));
	if (!has_one_of(small, complaints, ARRAY_LEN(complaints)))
		return NULL;
	if (strstr(small, "no module named"))
		return try_quoted(search, line, true);
	found = try_quoted(search, line, false);
	return found ? found : try_words(search, line);
}

const struct left_out *left_out_find(const struct left_out_paths *paths,
	const struct left_out_place *place, const char *output, size_t len)
{
	const struct search search = {paths, place};
	size_t first = len > LEFT_OUT_TAIL ? len - LEFT_OUT_TAIL : 0, end = len;
	bool wants_data = false;

	while (paths->n && end > first) {
		size_t start = end;
		while (start > first && output[start - 1] != '\n' && output[start - 1] != '\r')
			start--;
		size_t size = end - start < LINE_MAX ? end - start : LINE_MAX;
		AUTO_FREE char *line = term_plain(output + start, size);
		const struct left_out *found = try_line(&search, line, &wants_data);
		if (found)
			return found;
		end = start > first ? start - 1 : first;
	}
	return wants_data ? find_input(paths) : NULL;
}

/*
 * The sentence
 */

void left_out_hint(const struct left_out *left_out, struct buf *out)
{
	AUTO_FREE char *path = str_escaped(left_out->path);

	switch (left_out->why) {
	case LEFT_OUT_DLRUNIGNORE:
		buf_addf(out,
			"`%s` is named in .dlrunignore and was excluded; take it out of there, or "
			"add it to `data:` (data that stays where it is) in dlrun.yaml",
			path);
		break;
	case LEFT_OUT_SPECIAL:
		buf_addf(out,
			"`%s` is a socket, pipe or device and was excluded; let the program make "
			"it",
			path);
		break;
	case LEFT_OUT_REPOSITORY:
	case LEFT_OUT_IGNORED:
	default:
		buf_addf(out,
			"`%s` is ignored by git and was excluded; add it to `data:` (data that "
			"stays where it is) or `include:` (part of the code) in dlrun.yaml",
			path);
	}
}

/*
 * Lists in memory
 */

void left_out_paths_done(struct left_out_paths *paths)
{
	if (!paths)
		return;
	free(paths->v);
	arena_done(&paths->arena);
	*paths = (struct left_out_paths){0};
}

void left_out_add(struct left_out_paths *paths, const char *path, enum left_out_why why)
{
	struct left_out *left_out = vec_push(paths);

	*left_out = (struct left_out){.path = arena_strdup(&paths->arena, path), .why = why};
}

void left_out_sort(struct left_out_paths *paths)
{
	vec_sort(paths, by_path);
}

/*
 * left_out.json, dlrun/left-out/v1: a list of paths for each reason.
 */

enum { FILE_MAX = 4 * LEFT_OUT_BYTES_MAX };

static const char *const reasons[] = {
	[LEFT_OUT_IGNORED] = "ignored",
	[LEFT_OUT_DLRUNIGNORE] = "dlrunignore",
	[LEFT_OUT_SPECIAL] = "special",
	[LEFT_OUT_REPOSITORY] = "repository",
};

static char *file_of(const struct dirs *dirs, const char *run_id)
{
	AUTO_FREE char *dir = dirs_run(dirs, run_id);

	return fs_join(dir, RUN_LEFT_OUT);
}

static struct json *to_json(const struct snapshot *snapshot)
{
	struct strv lists[ARRAY_LEN(reasons)] = {0};
	struct json *json = json_object();
	size_t bytes = 0;

	vec_foreach (const struct left_out, row, &snapshot->paths.left_out) {
		bytes += strlen(row->path);
		if (bytes > LEFT_OUT_BYTES_MAX)
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

static int write_text(
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
	return write_text(dirs, run, &text, err);
}

int left_out_write(const struct dirs *dirs, const struct run *run, const struct snapshot *snapshot,
	struct err *err)
{
	AUTO_JSON struct json *json = NULL;
	AUTO_BUF struct buf text = {0};

	if (!snapshot)
		return copy_from(dirs, run, json_get_str(run->doc, "parent"), err);
	if (snapshot->paths.left_out.n == 0)
		return 0;
	json = to_json(snapshot);
	buf_init(&text, FILE_MAX);
	json_print(json, &text);
	int r = buf_check(&text, RUN_LEFT_OUT, err);
	return r < 0 ? r : write_text(dirs, run, &text, err);
}

/*
 * Reading
 */

/* Paths below data and outputs exist in the run. */
static bool is_brought_back(const struct world *world, const char *path)
{
	vec_foreach (const struct world_data, data, &world->data)
		if (fs_below(path, data->path))
			return true;
	vec_foreach (char *const, output, &world->outputs)
		if (fs_below(path, *output))
			return true;
	return false;
}

static int add_list(const struct json *json, enum left_out_why why, const struct world *world,
	struct left_out_paths *ret, struct err *err)
{
	AUTO_STRV struct strv words = {0};
	int r = words_get(json, reasons[why], &words, err);

	for (size_t i = 0; r == 0 && i < words.n && ret->n < LEFT_OUT_MAX; i++)
		if (!is_brought_back(world, words.v[i]))
			left_out_add(ret, words.v[i], why);
	return r;
}

int left_out_read(
	const struct dirs *dirs, const struct run *run, struct left_out_paths *ret, struct err *err)
{
	AUTO_FREE char *path = file_of(dirs, run_id(run));
	AUTO_BUF struct buf text = {0};
	AUTO_JSON struct json *json = NULL;
	AUTO_WORLD struct world world = {0};
	bool missing = false;

	int r = fs_read(path, FILE_MAX, &text, &missing, err);
	if (r < 0 && missing) {
		err_clear(err);
		return 0;
	}
	if (r == 0)
		r = json_parse(text.data, text.len, FILE_MAX, path, &json, err);
	if (r == 0 && run->spec)
		r = world_from_json(run->spec, &world, err);
	for (size_t i = 0; r == 0 && i < ARRAY_LEN(reasons); i++)
		r = add_list(json, (enum left_out_why)i, &world, ret, err);
	left_out_sort(ret);
	return r;
}
