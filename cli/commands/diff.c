/* SPDX-License-Identifier: Apache-2.0 */
#include "app/submit/diff.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/runs/preview.h"
#include "cli/runs/runs.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"
#include "cli/term/ui.h"

enum { FACT_MAX = 1 << 20, NAME_MAX_BYTES = 64 };

struct diff_values {
	bool patch;
};

static const struct opt opts[] = {
	{OPT_MEMBER(OPT_FLAG, 'p', "patch", struct diff_values, patch),
		.help = "Show what changed within the files, too (needs git)"},
	{OPT_END},
};

static const struct {
	const char *letter, *word, *style;
} kinds[] = {
	[DIFF_ADDED] = {"A", "added", UI_GREEN},
	[DIFF_REMOVED] = {"D", "removed", UI_RED},
	[DIFF_CHANGED] = {"M", "changed", ""},
	[DIFF_MODE] = {"M", "mode", ""},
};

/* Sides of the comparison: a run, and a run or the working tree. */
struct sides {
	struct run *a, *b;
	const char *b_name;
};

/*
 * Facts: a row for each, of an object one for each member that differs
 */

static char *fact_text(const struct json *value)
{
	AUTO_BUF struct buf out = buf_with(FACT_MAX);

	if (!value || json_kind(value) == JSON_NULL) {
		buf_adds(&out, "-");
	} else if (json_kind(value) == JSON_STRING) {
		buf_adds(&out, json_str(value));
	} else if (json_kind(value) == JSON_ARRAY) {
		for (const struct json *item = json_first(value); item; item = json_next(item)) {
			buf_adds(&out, out.len ? " " : "");
			str_shell_quote(&out, json_str(item) ? json_str(item) : "");
		}
	} else {
		json_print(value, &out);
	}
	return buf_take(&out);
}

static void cmd_diff_add_row(struct ui_table *table, const char *fact, const char *member,
	const struct json *a, const struct json *b)
{
	AUTO_FREE char *text_a = fact_text(a);
	AUTO_FREE char *text_b = fact_text(b);

	if (member && str_eq(text_a, text_b))
		return;
	ui_table_addf(table, "", "%s%s%s", fact, member ? "." : "", member ? member : "");
	ui_table_add(table, "", text_a);
	ui_table_add(table, "", text_b);
}

static void cmd_diff_add_fact(struct ui_table *table, const struct json *fact)
{
	const struct json *a = json_get(fact, "a"), *b = json_get(fact, "b");

	if (json_kind(a) != JSON_OBJECT || json_kind(b) != JSON_OBJECT) {
		cmd_diff_add_row(table, json_key(fact), NULL, a, b);
		return;
	}
	for (const struct json *item = json_first(a); item; item = json_next(item))
		cmd_diff_add_row(
			table, json_key(fact), json_key(item), item, json_get(b, json_key(item)));
	for (const struct json *item = json_first(b); item; item = json_next(item))
		if (!json_get(a, json_key(item)))
			cmd_diff_add_row(table, json_key(fact), json_key(item), NULL, item);
}

static void print_facts(struct app *app, const struct sides *sides, const struct json *facts)
{
	const struct ui_column columns[] = {
		{"FACT"}, {run_id(sides->a), .cut = true}, {sides->b_name}};
	AUTO_TABLE struct ui_table table = {0};

	if (json_count(facts) == 0)
		return;
	ui_table_init(&table, columns, ARRAY_LEN(columns));
	for (const struct json *fact = json_first(facts); fact; fact = json_next(fact))
		cmd_diff_add_fact(&table, fact);
	ui_table_print(app, &table);
}

/*
 * Files
 */

static void print_files(struct app *app, const struct diff_report *report)
{
	AUTO_BUF struct buf out = buf_with(UI_TEXT_MAX);

	if (report->files.n && json_count(report->facts))
		buf_addc(&out, '\n');
	vec_foreach (struct diff_file, file, &report->files) {
		AUTO_FREE char *path = str_escaped(file->path);

		buf_addf(&out, "%s%s" UI_OFF " %s%s\n", kinds[file->kind].style,
			kinds[file->kind].letter, path, file->kind == DIFF_MODE ? "  (mode)" : "");
	}
	ui_print(app, UI_OUT, out.data, out.len);
}

static int make_patch(struct app *app, const struct sides *sides, const struct diff_report *report,
	struct buf *patch, struct err *err)
{
	const struct tree_place *place = NULL;
	struct patch_request request = {.session = &app->session,
		.a = sides->a,
		.b = sides->b,
		.report = report,
		.color = app->out_color && !app->options.json};
	size_t skipped = 0;
	int r = sides->b ? 0 : session_place(&app->session, &place, err);

	if (r < 0 || report->files.n == 0)
		return r;
	request.root = place ? place->root : NULL;
	r = patch_make(&request, patch, &skipped, err);
	if (skipped)
		app_warn(app, "%zu %s over 8 MiB not shown in the patch", skipped,
			skipped == 1 ? "file is" : "files are");
	return r;
}

static int print_patch(struct app *app, const struct buf *patch)
{
	if (patch->len == 0)
		return 0;
	ui_print(app, UI_OUT, "\n", 1);
	if (app->out_tty)
		return ui_print(app, UI_OUT, patch->data, patch->len) < 0;
	return ui_write(app, patch->data, patch->len) < 0;
}

static int cmd_diff_print_json(struct app *app, const struct sides *sides,
	const struct diff_report *report, const struct buf *patch)
{
	struct json *json = app_json("diff"), *files = json_array();

	json_set_str(json, "a", run_id(sides->a));
	json_set_str(json, "b", sides->b ? run_id(sides->b) : NULL);
	json_set(json, "facts", json_clone(report->facts));
	vec_foreach (struct diff_file, file, &report->files) {
		struct json *item = json_object();

		json_set_str(item, "path", file->path);
		json_set_str(item, "change", kinds[file->kind].word);
		json_add(files, item);
	}
	json_set(json, "files", files);
	if (patch)
		json_set_bytes(json, "patch", patch->data, patch->len);
	return app_print_json(app, json);
}

/* The newest run may be one of another project. */
static void warn_of_other_tree(struct app *app, const struct run *run)
{
	const char *root = json_get_str(json_get(run->doc, "origin"), "root");
	const struct tree_place *place;

	if (!root || session_place(&app->session, &place, NULL) < 0 || str_eq(root, place->root))
		return;
	AUTO_FREE char *theirs = str_shown(root);
	AUTO_FREE char *ours = str_shown(place->root);
	app_warn(app, "%s is a run of another working tree, %s: compared with %s", run_id(run),
		theirs, ours);
}

static int show(struct app *app, const struct sides *sides, bool with_patch, struct err *err)
{
	AUTO(diff_report_done) struct diff_report report = {0};
	AUTO_BUF struct buf patch = buf_with(PATCH_MAX);
	int r = runs_diff(&app->session, sides->a, sides->b, &report, err);

	if (r == 0 && !sides->b)
		warn_of_other_tree(app, sides->a);
	if (r == 0 && with_patch)
		r = make_patch(app, sides, &report, &patch, err);
	if (r < 0)
		return r;
	if (app->options.json)
		return cmd_diff_print_json(app, sides, &report, with_patch ? &patch : NULL);
	if (json_count(report.facts) == 0 && report.files.n == 0) {
		app_note(app, "no difference");
		return 0;
	}
	print_facts(app, sides, report.facts);
	print_files(app, &report);
	return print_patch(app, &patch);
}

static int cmd_diff_run(struct app *app, void *values_ptr, struct strv *words)
{
	const struct diff_values *values = values_ptr;
	AUTO_ERR struct err err = {0};
	AUTO_RUN struct run *a = NULL;
	AUTO_RUN struct run *b = NULL;
	int r = runs_get_code(app, words->n ? words->v[0] : "@", &a, &err);

	if (r == 0 && words->n > 1)
		r = runs_get_code(app, words->v[1], &b, &err);
	if (r == 0)
		r = show(app, &(struct sides){a, b, b ? run_id(b) : "this tree"}, values->patch,
			&err);
	return r < 0 ? app_fail(app, &err) : r;
}

const struct cmd cmd_diff = {
	.name = "diff",
	.summary = "Compare two runs, or a run and the working tree",
	.synopsis = "[options] [RUN [RUN]]",
	.examples = {"dlrun diff @-1 @ # what differs between the last two runs",
		"dlrun diff @ # what has changed in the working tree since the newest run",
		"dlrun diff --patch @-1 @ # with the changed lines"},
	.opts = opts,
	.values_size = sizeof(struct diff_values),
	.max_words = 2,
	.words = VALUE_RUN,
	.run = cmd_diff_run,
};
