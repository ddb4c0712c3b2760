/* SPDX-License-Identifier: Apache-2.0 */
/* Commands that write on a run after it was submitted: `tag` and `note`. */
#include <string.h>

#include "app/runs/refresh.h"
#include "base/util/auto.h"
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

		if (!json_get(tags, name)) {
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

/* Change the record of *run, which is read again. */
static int tag_write(
	struct app *app, struct run **run, struct annotation *annotation, struct err *err)
{
	struct store *store;
	struct run *changed = NULL;
	int r = adopt_own(&app->session, *run, err);

	if (r == 0)
		r = session_store(&app->session, &store, err);
	if (r == 0)
		r = store_change(store, run_id(*run), tag_annotate, annotation, &changed, err);
	if (r < 0)
		return r;
	run_free(*run);
	*run = changed;
	return 0;
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

static void tag_list(struct app *app, const struct run *run)
{
	const struct json *tags = json_get(run->doc, "tags");

	for (const struct json *tag = json_first(tags); tag; tag = json_next(tag)) {
		const char *name = json_key(tag), *value = json_str(tag);
		AUTO_FREE char *text =
			str_empty(value) ? mem_strdup(name) : mem_printf("%s=%s", name, value);
		AUTO_FREE char *line = ui_clean(text);

		if (!tag_is_exact(tags, name))
			ui_printf(app, UI_OUT, "%s\n", line);
	}
}

static int tag_run(struct app *app, void *values_ptr, struct strv *words)
{
	const struct tag_values *values = values_ptr;
	AUTO_STRV struct strv tags = {0};
	AUTO_ERR struct err err = {0};
	AUTO_RUN struct run *run = NULL;
	struct annotation annotation = {.tags = &tags, .removed = &values->removed};
	int r = 0;

	for (size_t i = 1; r == 0 && i < words->n; i++) {
		r = run_tag_check(words->v[i], "a tag", "dlrun tag @ baseline", &err);
		strv_add(&tags, words->v[i]);
	}
	if (r == 0)
		r = runs_get(app, words->n ? words->v[0] : NULL, &run, &err);
	if (r == 0 && (tags.n || values->removed.n))
		r = tag_write(app, &run, &annotation, &err);
	if (r < 0)
		return app_fail(app, &err);
	if (app->options.json)
		return app_print_json(app, json_clone(run->doc));
	if (tags.n == 0 && values->removed.n == 0)
		tag_list(app, run);
	return 0;
}

static int note_run(struct app *app, void *values, struct strv *words)
{
	AUTO_ERR struct err err = {0};
	AUTO_RUN struct run *run = NULL;
	AUTO_FREE char *text = NULL;
	AUTO_STRV struct strv rest = {0};
	int r = runs_get(app, words->n ? words->v[0] : NULL, &run, &err);

	(void)values;
	for (size_t i = 1; i < words->n; i++)
		strv_add(&rest, words->v[i]);
	text = strv_join(&rest, " ");
	if (r == 0 && rest.n)
		r = tag_write(app, &run, &(struct annotation){.note = text}, &err);
	if (r < 0)
		return app_fail(app, &err);
	if (app->options.json)
		return app_print_json(app, json_clone(run->doc));
	const char *note = json_get_str(run->doc, "note");
	if (rest.n == 0 && !str_empty(note)) {
		AUTO_FREE char *line = ui_clean(note);
		ui_printf(app, UI_OUT, "%s\n", line);
	}
	return 0;
}

static const char *const tag_examples[CMD_EXAMPLES] = {
	"dlrun tag @ baseline paper=iclr # tag the newest run",
	"dlrun tag resnet-3k2f9 # list its tags",
	"dlrun tag -d baseline @ # remove a tag again",
};

const struct cmd cmd_tag = {
	.name = "tag",
	.summary = "Tag a run after the fact, or list its tags",
	.synopsis = "[options] [RUN [K[=V]...]]",
	.examples = tag_examples,
	.opts = tag_opts,
	.values_size = sizeof(struct tag_values),
	.max_words = CMD_WORDS_ANY,
	.words = VALUE_RUN,
	.run = tag_run,
};

static const char *const note_examples[CMD_EXAMPLES] = {
	"dlrun note @ 'diverges after warmup' # write it on the newest run",
	"dlrun note resnet-3k2f9 # show the note of a run",
	"dlrun ps -o id,state,note # list runs with their notes",
};

const struct cmd cmd_note = {
	.name = "note",
	.summary = "Write a note on a run, or show it",
	.synopsis = "[RUN [TEXT...]]",
	.examples = note_examples,
	.max_words = CMD_WORDS_ANY,
	.words = VALUE_RUN,
	.run = note_run,
};
