/* SPDX-License-Identifier: Apache-2.0 */
/* Commands that write on a run after it was submitted: `tag` and `note`. */
#include <string.h>

#include "app/runs/refresh.h"
#include "base/util/auto.h"
#include "base/util/map.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/runs/runs.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"
#include "cli/term/ui.h"
#include "core/store/store.h"

#define EXACT "_b64" /* of the member with the bytes of text that is not UTF-8 */

struct tag_values {
	struct strv removed;
};

static const struct opt tag_opts[] = {
	{OPT_MEMBER(OPT_LIST, 'd', "delete", struct tag_values, removed), .arg = "K",
		.help = "Remove the tag; may be repeated"},
	{OPT_END},
};

struct annotation {
	const struct strv *tags, *removed;
	const char *note; /* NULL: it stays */
	bool is_study;    /* of several runs not all need have a tag that is removed */
	bool *was_there;  /* for each of removed: a run had it */
};

static int tag_annotate(void *ctx, struct run *run, struct err *err)
{
	const struct annotation *annotation = ctx;
	const struct json *before = json_get(run->doc, "tags");
	AUTO_JSON struct json *tags = before ? json_clone(before) : json_object();

	if (annotation->note) {
		json_remove(run->doc, "note" EXACT);
		json_set_bytes(run->doc, "note", annotation->note, strlen(annotation->note));
		return 1;
	}
	for (size_t i = 0; i < annotation->removed->n; i++) {
		const char *name = annotation->removed->v[i];
		AUTO_FREE char *bytes = mem_printf("%s" EXACT, name);

		annotation->was_there[i] |= json_get(tags, name) != NULL;
		if (!json_get(tags, name) && !annotation->is_study) {
			AUTO_FREE char *shown = str_shown(name);
			return err_set(err, E_USAGE, "%s has no tag '%s'", run_id(run), shown);
		}
		json_remove(tags, name);
		json_remove(tags, bytes);
	}
	for (size_t i = 0; i < annotation->tags->n; i++)
		run_tags_add(tags, annotation->tags->v[i]);
	json_set(run->doc, "tags", TAKE(tags));
	return 1;
}

/* Change the records of runs, which are read again. study: what they are, or NULL. */
static int tag_write(struct app *app, struct run_list *runs, const char *study,
	struct annotation *annotation, struct err *err)
{
	const struct strv none = {0}, *removed = annotation->removed ? annotation->removed : &none;
	AUTO_FREE bool *was_there = mem_alloc(removed->n + 1, sizeof(*was_there));
	struct store *store;
	int r = session_store(&app->session, &store, err);

	annotation->is_study = study != NULL;
	annotation->was_there = was_there;
	for (size_t i = 0; r == 0 && i < runs->n; i++)
		r = adopt_own(&app->session, runs->v[i], err);
	if (r == 0)
		r = store_change_all(store, runs, tag_annotate, annotation, err);
	for (size_t i = 0; r == 0 && study && i < removed->n; i++) {
		AUTO_FREE char *shown = str_shown(removed->v[i]);
		if (!was_there[i])
			r = err_set(err, E_USAGE, "no run of %s has a tag '%s'", study, shown);
	}
	return r;
}

/* Whether the tag only holds the exact bytes of another one. */
static bool tag_is_exact(const struct json *tags, const char *name)
{
	AUTO_FREE char *base = mem_strdup(name);

	if (!str_ends(name, EXACT))
		return false;
	base[strlen(name) - strlen(EXACT)] = '\0';
	return json_get(tags, base);
}

/* Tags that several runs have are listed once. */
static void tag_list(struct app *app, const struct run_list *runs)
{
	struct map seen = {0};

	vec_foreach (struct run *, run, runs) {
		const struct json *tags = json_get((*run)->doc, "tags");

		for (const struct json *tag = json_first(tags); tag; tag = json_next(tag)) {
			const char *name = json_key(tag), *value = json_str(tag);
			AUTO_FREE char *text = str_empty(value) ? mem_strdup(name)
								: mem_printf("%s=%s", name, value);
			AUTO_FREE char *line = ui_clean(text);

			if (!tag_is_exact(tags, name) && !map_put(&seen, text, *run))
				ui_printf(app, UI_OUT, "%s\n", line);
		}
	}
	map_done(&seen);
}

static int tag_run(struct app *app, void *values_ptr, struct strv *words)
{
	const struct tag_values *values = values_ptr;
	AUTO_STRV struct strv tags = {0};
	AUTO_ERR struct err err = {0};
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_FREE char *study = NULL;
	struct annotation annotation = {.tags = &tags, .removed = &values->removed};
	int r = 0;

	for (size_t i = 1; r == 0 && i < words->n; i++) {
		r = run_tag_check(words->v[i], "a tag", "dlrun tag @ baseline", &err);
		strv_add(&tags, words->v[i]);
	}
	if (r == 0)
		r = runs_get_study(app, words->n ? words->v[0] : NULL, &runs, &study, &err);
	if (r == 0 && (tags.n || values->removed.n))
		r = tag_write(app, &runs, study, &annotation, &err);
	if (r < 0)
		return app_fail(app, &err);
	if (app->options.json)
		return study ? runs_print_json(app, &runs)
			     : app_print_json(app, json_clone(runs.v[0]->doc));
	if (tags.n == 0 && values->removed.n == 0)
		tag_list(app, &runs);
	return 0;
}

static int note_run(struct app *app, void *values UNUSED, struct strv *words)
{
	AUTO_ERR struct err err = {0};
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_FREE char *text = NULL;
	AUTO_STRV struct strv rest = {0};
	struct run *run = NULL;
	int r = runs_get(app, words->n ? words->v[0] : NULL, &run, &err);

	if (r == 0)
		*vec_push(&runs) = run;
	for (size_t i = 1; i < words->n; i++)
		strv_add(&rest, words->v[i]);
	text = strv_join(&rest, " ");
	if (r == 0 && rest.n)
		r = tag_write(app, &runs, NULL, &(struct annotation){.note = text}, &err);
	if (r < 0)
		return app_fail(app, &err);
	run = runs.v[0];
	if (app->options.json)
		return app_print_json(app, json_clone(run->doc));
	const char *note = json_get_str(run->doc, "note");
	if (rest.n == 0 && !str_empty(note)) {
		AUTO_FREE char *line = ui_clean(note);
		ui_printf(app, UI_OUT, "%s\n", line);
	}
	return 0;
}

const struct cmd cmd_tag = {
	.name = "tag",
	.summary = "Tag a run after the fact, or list its tags",
	.synopsis = "[options] [RUN|STUDY [K[=V]...]]",
	.examples =
		{"dlrun tag @ baseline paper=iclr # tag the newest run; without tags: list its own",
			"dlrun tag tiger-4k2x9 paper=iclr # tag all runs of a study",
			"dlrun tag -d baseline @ # remove a tag again"},
	.opts = tag_opts,
	.values_size = sizeof(struct tag_values),
	.max_words = CMD_WORDS_ANY,
	.words = VALUE_RUN,
	.flags = CMD_STUDIES,
	.run = tag_run,
};

const struct cmd cmd_note = {
	.name = "note",
	.summary = "Write a note on a run, or show it",
	.synopsis = "[RUN [TEXT...]]",
	.examples = {"dlrun note @ 'diverges after warmup' # write it on the newest run",
		"dlrun note resnet-3k2f9 # show the note of a run",
		"dlrun ps -o id,state,note # list runs with their notes"},
	.max_words = CMD_WORDS_ANY,
	.words = VALUE_RUN,
	.run = note_run,
};
