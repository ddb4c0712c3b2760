/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/runs/preview.h"

#include "base/data/yaml_print.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/runs/runs.h"
#include "cli/term/app.h"
#include "cli/term/ui.h"
#include "core/record/columns.h"

enum { LINE_BYTES = 64 << 10, LEFT_OUT_SHOWN = 4, SHORT_COMMIT = 7, SHORT_DIGEST = 19 };

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

static const char *why_left_out(enum left_out_why why)
{
	static const char *const names[] = {
		[LEFT_OUT_IGNORED] = "ignored by git",
		[LEFT_OUT_DLRUNIGNORE] = ".dlrunignore",
		[LEFT_OUT_SPECIAL] = "not a regular file",
		[LEFT_OUT_REPOSITORY] = "another repository",
	};

	return names[why];
}

static void preview_say_left_out(struct app *app, const struct path_list *paths)
{
	AUTO_BUF struct buf line = {0};
	size_t shown = 0;

	if (paths->n_left_out == 0)
		return;
	buf_init(&line, LINE_BYTES);
	for (; shown < paths->left_out.n && shown < LEFT_OUT_SHOWN; shown++) {
		const struct left_out *item = &paths->left_out.v[shown];
		AUTO_FREE char *name = str_shown(item->path);

		buf_addf(&line, "%s%s (%s)", shown ? ", " : "", name, why_left_out(item->why));
	}
	if (paths->n_left_out > shown)
		buf_addf(&line, " and %zu more", paths->n_left_out - shown);
	app_phase(app, "", "excluded: %s", line.data);
}

void preview_say_snapshot(struct app *app, const struct snapshot *snapshot, int64_t ms)
{
	AUTO_BUF struct buf git = {0};
	char bytes[16], took[32];

	buf_init(&git, LINE_BYTES);
	add_git(&snapshot->git, &git);
	app_phase(app, "snapshot", "%s · %zu %s · %s · %s", git.data, snapshot->entries.n,
		snapshot->entries.n == 1 ? "file" : "files", str_size(snapshot->bytes, bytes),
		duration_text(ms, took));
	preview_say_left_out(app, &snapshot->paths);
}

void preview_say_image(struct app *app, const struct image *image, int64_t ms)
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

static struct json *left_out_json(const struct path_list *paths)
{
	struct json *list = json_array();

	vec_foreach (struct left_out, left, &paths->left_out) {
		struct json *item = json_object();

		json_set_str(item, "path", left->path);
		json_set_str(item, "why", why_left_out(left->why));
		json_add(list, item);
	}
	return list;
}

void preview_add_files(const struct snapshot *snapshot, struct json *json)
{
	json_set(json, "files", files_json(&snapshot->entries));
	json_set(json, "left_out", left_out_json(&snapshot->paths));
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

static void runs_preview_add_files(const struct snapshot *snapshot, struct buf *out)
{
	vec_foreach (struct entry, entry, &snapshot->entries) {
		char bytes[16];

		AUTO_FREE char *path = str_escaped(entry->path);
		buf_addf(out, "+ %9s  %s\n", str_size(entry->size, bytes), path);
	}
	vec_foreach (struct left_out, left, &snapshot->paths.left_out) {
		AUTO_FREE char *path = str_escaped(left->path);

		buf_addf(out, "- %9s  %s  (%s)\n", "", path, why_left_out(left->why));
	}
	if (snapshot->paths.n_left_out > snapshot->paths.left_out.n)
		buf_addf(out, "- %9s  and %zu more\n", "",
			snapshot->paths.n_left_out - snapshot->paths.left_out.n);
}

void preview_print_files(struct app *app, const struct snapshot *snapshot)
{
	AUTO_BUF struct buf out = {0};

	buf_init(&out, UI_TEXT_MAX);
	runs_preview_add_files(snapshot, &out);
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
	AUTO_BUF struct buf out = {0};

	buf_init(&out, LINE_BYTES);
	preview_add_fact("command", command, &out);
	preview_add_fact("directory", json_get_str(json_get(doc, "origin"), "cwd"), &out);
	preview_add_fact("name", json_get_str(doc, "name"), &out);
	preview_add_fact("target", json_get_str(json_get(doc, "target"), "name"), &out);
	preview_add_fact("base", json_get_str(json_get(doc, "image"), "base"), &out);
	preview_add_fact("code", json_get_str(json_get(doc, "snapshot"), "id"), &out);
	ui_print(app, UI_OUT, out.data, out.len);
}

static void say_remarks(struct app *app, const struct submit_preview *preview)
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
		preview_say_snapshot(app, preview.snapshot, clock_ms() - begun);
	else
		app_phase(app, "code", "that of %s", options->from);
	say_remarks(app, &preview);
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
	AUTO_BUF struct buf out;

	buf_init(&out, JSON_SIZE_MAX);
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
