/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/runs/preview.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/data/yaml.h"
#include "base/loop/proc.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/runs/runs.h"
#include "cli/term/app.h"
#include "cli/term/ui.h"
#include "core/image/code.h"
#include "core/record/after.h"
#include "core/record/columns.h"
#include "core/record/places.h"
#include "core/record/roles.h"

enum { LINE_BYTES = 64 << 10, EXCLUDED_SHOWN = 4, SHORT_COMMIT = 7, SHORT_DIGEST = 19 };

/*
 * Lines of submit and push
 */

/* "main@4f2c91a +3 changed +1 untracked", "no git". */
static void add_git(const struct snapshot_git *git, struct buf *out)
{
	if (!git->present) {
		buf_adds(out, "no git repository");
		return;
	}
	if (git->branch)
		buf_adds(out, git->branch);
	if (git->commit)
		buf_addf(out, "%s%.*s", git->branch ? "@" : "", SHORT_COMMIT, git->commit);
	else if (git->library) /* else it is not known */
		buf_adds(out, " (no commit yet)");
	if (git->n_changed)
		buf_addf(out, " +%zu changed", git->n_changed);
	if (git->n_untracked)
		buf_addf(out, " +%zu untracked", git->n_untracked);
	if (git->n_deleted)
		buf_addf(out, " -%zu deleted", git->n_deleted);
	if (!git->dirty)
		buf_adds(out, " clean");
}

static const char *why_excluded(enum excluded_why why)
{
	static const char *const names[] = {
		[EXCLUDED_IGNORED] = "ignored by git",
		[EXCLUDED_DLRUNIGNORE] = ".dlrunignore",
		[EXCLUDED_SPECIAL] = "not a regular file",
		[EXCLUDED_REPOSITORY] = "another repository",
	};

	return names[why];
}

static void preview_print_excluded(struct app *app, const struct path_list *paths)
{
	AUTO_BUF struct buf line = buf_with(LINE_BYTES);
	size_t shown = 0;

	if (paths->n_excluded == 0)
		return;
	for (; shown < paths->excluded.n && shown < EXCLUDED_SHOWN; shown++) {
		const struct excluded *item = &paths->excluded.v[shown];
		AUTO_FREE char *name = str_shown(item->path);

		buf_addf(&line, "%s%s (%s)", shown ? ", " : "", name, why_excluded(item->why));
	}
	if (paths->n_excluded > shown)
		buf_addf(&line, " and %zu more", paths->n_excluded - shown);
	app_phase(app, "", "excluded: %s", line.data);
}

void preview_print_snapshot(struct app *app, const struct snapshot *snapshot, int64_t ms)
{
	AUTO_BUF struct buf git = buf_with(LINE_BYTES);
	char bytes[16], took[32];

	add_git(&snapshot->git, &git);
	app_phase(app, "snapshot", "%s · %zu %s · %s · %s", git.data, snapshot->entries.n,
		snapshot->entries.n == 1 ? "file" : "files", str_size(snapshot->bytes, bytes),
		duration_text(ms, took));
	preview_print_excluded(app, &snapshot->paths);
}

void preview_print_image(struct app *app, const struct image *image, int64_t ms)
{
	char bytes[16], took[32];
	AUTO_FREE char *written = NULL;

	if (image->layers_written)
		written = mem_printf("%zu new %s, %s", image->layers_written,
			image->layers_written == 1 ? "layer" : "layers",
			str_size(image->bytes_written, bytes));
	app_phase(app, "image", "%s · %.*s · %s", written ? written : "nothing new", SHORT_DIGEST,
		image->manifest.digest, duration_text(ms, took));
}

/*
 * submit --dry-run
 */

static struct json *files_json(const struct entry_list *entries)
{
	struct json *list = json_array();

	vec_foreach (struct entry, entry, entries) {
		struct json *item = json_object();
		char hex[DIGEST_TEXT_SIZE];

		digest_text(entry->sha256, hex);
		json_set_str(item, "path", entry->path);
		json_set_str(item, "kind", entry->kind == ENTRY_LINK ? "link" : "file");
		json_set_bool(item, "exec", entry->exec);
		json_set_int(item, "size", (int64_t)entry->size);
		json_set_str(item, "digest", hex);
		json_add(list, item);
	}
	return list;
}

static struct json *excluded_json(const struct path_list *paths)
{
	struct json *list = json_array();

	vec_foreach (struct excluded, left, &paths->excluded) {
		struct json *item = json_object();

		json_set_str(item, "path", left->path);
		json_set_str(item, "why", why_excluded(left->why));
		json_add(list, item);
	}
	return list;
}

void preview_add_files(const struct snapshot *snapshot, struct json *json)
{
	json_set(json, "files", files_json(&snapshot->entries));
	json_set(json, "left_out", excluded_json(&snapshot->paths));
}

static int preview_print_json(
	struct app *app, const struct submit_preview *preview, bool list_files)
{
	struct json *json = app_json("preview");

	json_set(json, "run", json_clone(preview->doc));
	if (list_files)
		preview_add_files(preview->snapshot, json);
	return app_print_json(app, json);
}

static void preview_list_files(const struct snapshot *snapshot, struct buf *out)
{
	vec_foreach (struct entry, entry, &snapshot->entries) {
		char bytes[16];

		AUTO_FREE char *path = str_escaped(entry->path);
		buf_addf(out, "+ %9s  %s\n", str_size(entry->size, bytes), path);
	}
	vec_foreach (struct excluded, left, &snapshot->paths.excluded) {
		AUTO_FREE char *path = str_escaped(left->path);

		buf_addf(out, "- %9s  %s  (%s)\n", "", path, why_excluded(left->why));
	}
	if (snapshot->paths.n_excluded > snapshot->paths.excluded.n)
		buf_addf(out, "- %9s  and %zu more\n", "",
			snapshot->paths.n_excluded - snapshot->paths.excluded.n);
}

void preview_print_files(struct app *app, const struct snapshot *snapshot)
{
	AUTO_BUF struct buf out = buf_with(UI_TEXT_MAX);

	preview_list_files(snapshot, &out);
	ui_print(app, UI_OUT, out.data, out.len);
}

static void preview_add_fact(const char *label, const char *value, struct buf *out)
{
	AUTO_FREE char *clean = value ? ui_clean(value) : NULL;

	if (clean)
		buf_addf(out, "%-*s%s\n", UI_LABEL, label, clean);
}

static void preview_print_facts(struct app *app, const struct submit_preview *preview)
{
	const struct json *doc = preview->doc;
	const struct run run = {.doc = preview->doc};
	AUTO_FREE char *command = run_command_line(&run);
	AUTO_FREE char *places = run_places_of(&run), *roles = roles_summary(doc);
	AUTO_FREE char *after = after_names(json_get(doc, AFTER_RECORD));
	AUTO_BUF struct buf out = buf_with(LINE_BYTES);

	preview_add_fact("command", command, &out);
	preview_add_fact("launcher", json_get_str(json_get(doc, "launcher"), "line"), &out);
	preview_add_fact("roles", roles, &out);
	preview_add_fact("ends with", json_get_str(doc, "ends_with"), &out);
	preview_add_fact("directory", json_get_str(json_get(doc, "origin"), "cwd"), &out);
	preview_add_fact("name", json_get_str(doc, "name"), &out);
	preview_add_fact("target", json_get_str(json_get(doc, "target"), "name"), &out);
	preview_add_fact("places", places, &out);
	preview_add_fact(AFTER_RECORD, after, &out);
	preview_add_fact("base", json_get_str(json_get(doc, "image"), "base"), &out);
	preview_add_fact("code", json_get_str(json_get(doc, "snapshot"), "id"), &out);
	ui_print(app, UI_OUT, out.data, out.len);
}

static void print_remarks(struct app *app, const struct submit_preview *preview)
{
	const struct json *warnings = json_get(preview->doc, "warnings");

	for (const struct json *each = json_first(warnings); each; each = json_next(each))
		app_warn(app, "%s", json_str(each));
	vec_foreach (char *, text, &preview->notices)
		app_phase(app, "note", "%s", *text);
}

int preview_print(struct app *app, const struct submit_options *options, bool list_files)
{
	AUTO_ERR struct err err = {0};
	struct submit_preview preview = {0};
	int64_t begun = clock_ms();
	int status = 0;

	if (submit_preview(&app->session, options, false, &preview, &err) < 0)
		return app_fail(app, &err);
	if (preview.snapshot)
		preview_print_snapshot(app, preview.snapshot, clock_ms() - begun);
	else
		app_phase(app, "code", "that of %s", options->from);
	print_remarks(app, &preview);
	if (app->options.json) {
		status = preview_print_json(app, &preview, list_files);
	} else if (list_files) {
		preview_print_files(app, preview.snapshot);
	} else {
		preview_print_facts(app, &preview);
	}
	app_note(app, "nothing was written and nothing runs: this was --dry-run");
	submit_preview_done(&preview);
	return status;
}

static void print_object(struct app *app, const struct json *object, bool json)
{
	AUTO_BUF struct buf out = buf_with(JSON_SIZE_MAX);

	if (json) {
		json_print(object, &out);
		buf_addc(&out, '\n');
	} else {
		buf_adds(&out, "---\n");
		yaml_print(object, &out);
	}
	ui_write(app, out.data, out.len);
}

int preview_print_objects(struct app *app, const struct submit_options *options, bool json)
{
	AUTO_ERR struct err err = {0};
	struct submit_preview preview = {0};

	if (submit_preview(&app->session, options, true, &preview, &err) < 0)
		return app_fail(app, &err);
	vec_foreach (char *, note, &preview.notes)
		app_warn(app, "%s", *note);
	for (const struct json *object = json_first(preview.objects); object;
		object = json_next(object))
		print_object(app, object, json);
	app_note(app, "nothing was written and nothing runs: this was --dry-run");
	submit_preview_done(&preview);
	return 0;
}

enum { GIT_MS = 60 * 1000, GIT_DIFFERENT = 1, COPY_BYTES = 64 << 10 };

static int copy_from_tree(const char *root, const char *path, int out_fd, struct err *err)
{
	AUTO_FD int dir_fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	AUTO_FD int fd = dir_fd < 0 ? -errno : fs_open_beneath(dir_fd, path, O_RDONLY, 0);
	AUTO_FREE char *chunk = mem_alloc(1, COPY_BYTES);
	ssize_t n;

	if (fd < 0)
		return fs_error(err, -fd, "%s/%s", root, path);
	while ((n = read(fd, chunk, COPY_BYTES)) != 0) {
		if (n < 0 && errno != EINTR)
			return fs_error(err, errno, "%s/%s", root, path);
		int r = n < 0 ? 0 : fs_write_fd(out_fd, path, chunk, (size_t)n, err);
		if (r < 0)
			return r;
	}
	return 0;
}

/* Write one file of a side (run NULL: the working tree) below dir. */
static int patch_put_file(const struct patch_request *request, const struct run *run,
	const struct entry *entry, const char *dir, struct err *err)
{
	AUTO_FREE char *path = mem_printf("%s/%s", dir, entry->path);
	AUTO_FREE char *parent = mem_strndup(path, (size_t)(strrchr(path, '/') - path));
	int r = fs_mkdirs(parent, 0700, err);

	if (r < 0)
		return r;
	if (entry->kind == ENTRY_LINK)
		return symlink(entry->target, path) < 0 ? fs_error(err, errno, "%s", path) : 0;
	AUTO_FD int fd =
		open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, entry->exec ? 0700 : 0600);
	if (fd < 0)
		return fs_error(err, errno, "%s", path);
	if (run)
		return run_read_file(request->session, run, entry->path, fd, err);
	return copy_from_tree(request->root, entry->path, fd, err);
}

static int patch_put_files(const struct patch_request *request, const char *dir_a,
	const char *dir_b, size_t *ret_skipped, struct err *err)
{
	vec_foreach (struct diff_file, file, &request->report->files) {
		const struct entry *a = entry_find(&request->report->a, file->path);
		const struct entry *b = entry_find(&request->report->b, file->path);
		int r = 0;

		if ((a && a->size > PATCH_FILE_MAX) || (b && b->size > PATCH_FILE_MAX)) {
			++*ret_skipped;
			continue;
		}
		if (a)
			r = patch_put_file(request, request->a, a, dir_a, err);
		if (r == 0 && b)
			r = patch_put_file(request, request->b, b, dir_b, err);
		if (r < 0)
			return r;
	}
	return 0;
}

static int run_git(const char *dir, bool color, struct buf *ret, struct err *err)
{
	const char *argv[] = {"git", "diff", "--no-index", "--no-prefix", "--no-ext-diff",
		"--no-textconv", "--no-renames", color ? "--color=always" : "--color=never", "--",
		"a", "b", NULL};
	int status;
	int r = proc_capture(argv, dir, GIT_MS, ret, &status, err);

	if (r == 0)
		r = buf_check(ret, "the patch", err);
	if (r < 0)
		return r;
	if (WIFEXITED(status) && WEXITSTATUS(status) <= GIT_DIFFERENT)
		return 0;
	return err_set(err, E_IO, "git diff failed on the files in %s", dir);
}

static int make_in(const struct patch_request *request, const char *dir, struct buf *ret,
	size_t *ret_skipped, struct err *err)
{
	AUTO_FREE char *dir_a = mem_printf("%s/a", dir);
	AUTO_FREE char *dir_b = mem_printf("%s/b", dir);
	int r = fs_mkdirs(dir_a, 0700, err);

	if (r == 0)
		r = fs_mkdirs(dir_b, 0700, err);
	if (r == 0)
		r = patch_put_files(request, dir_a, dir_b, ret_skipped, err);
	return r < 0 ? r : run_git(dir, request->color, ret, err);
}

int patch_make(
	const struct patch_request *request, struct buf *ret, size_t *ret_skipped, struct err *err)
{
	const char *temp = getenv("TMPDIR");
	AUTO_FREE char *dir = mem_printf("%s/dlrun-diff.XXXXXX", str_empty(temp) ? "/tmp" : temp);
	AUTO_FREE char *git = proc_find("git", NULL);
	int r;

	if (!git)
		return err_set(err, E_USAGE, "--patch requires git, which is not on PATH");
	if (!mkdtemp(dir))
		return fs_error(err, errno, "%s", dir);
	r = make_in(request, dir, ret, ret_skipped, err);
	fs_remove_tree(AT_FDCWD, dir, NULL);
	return r;
}
