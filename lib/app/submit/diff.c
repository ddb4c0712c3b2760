/* SPDX-License-Identifier: Apache-2.0 */
#include "app/submit/diff.h"

#include <stdlib.h>
#include <string.h>

#include "app/prepare/prepare.h"
#include "base/util/auto.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/words.h"
#include "core/image/code.h"

enum { VALUE_MAX = 8 << 20, SHORT_DIGEST = 7 + 12 };

/*
 * Facts
 */

static void set_fact(struct json *facts, const char *name, struct json *a, struct json *b)
{
	struct json *fact = json_sub(facts, name);

	json_set(fact, "a", a);
	json_set(fact, "b", b);
}

/* The command as a user would write it: a line for the shell as text, else the words. */
static struct json *command_of(const struct run *run)
{
	const struct json *words = json_get(run->doc, "command");

	if (json_get_bool(run->doc, "shell", false) && json_first(words))
		return json_clone(json_first(words));
	return words ? json_clone(words) : json_array();
}

static bool same_words(const struct strv *a, const struct strv *b)
{
	if (a->n != b->n)
		return false;
	for (size_t i = 0; i < a->n; i++)
		if (!str_eq(a->v[i], b->v[i]))
			return false;
	return true;
}

static bool same_value(const struct json *a, const struct json *b)
{
	AUTO_BUF struct buf text_a = buf_with(VALUE_MAX), text_b = buf_with(VALUE_MAX);

	if (a)
		json_print(a, &text_a);
	if (b)
		json_print(b, &text_b);
	return text_a.len == text_b.len && memcmp(text_a.data, text_b.data, text_a.len) == 0;
}

/* The members of object that other has not, or with another value. */
static struct json *own_members(const struct json *object, const struct json *other)
{
	struct json *own = json_object();

	for (const struct json *m = json_first(object); m; m = json_next(m))
		if (!same_value(m, json_get(other, json_key(m))))
			json_set(own, json_key(m), json_clone(m));
	return own;
}

static void submit_diff_add_members(
	struct json *facts, const char *name, const struct json *a, const struct json *b)
{
	AUTO_JSON struct json *own_a = own_members(a, b);
	AUTO_JSON struct json *own_b = own_members(b, a);

	if (json_count(own_a) || json_count(own_b))
		set_fact(facts, name, TAKE(own_a), TAKE(own_b));
}

int run_env_add(const struct run *run, struct json *env, struct err *err)
{
	AUTO_STRV struct strv pairs = {0}, secrets = {0};

	if (!run->spec)
		return 0;
	int r = words_get(run->spec, "env", &pairs, err);
	if (r == 0)
		r = words_get(run->spec, "secrets", &secrets, err);
	for (size_t i = 0; r == 0 && i < pairs.n; i++) {
		size_t len = strcspn(pairs.v[i], "=");
		AUTO_FREE char *name = mem_strndup(pairs.v[i], len);
		const char *value = pairs.v[i] + len + (pairs.v[i][len] == '=');
		json_set_bytes(env, name, value, strlen(value));
	}
	for (size_t i = 0; r == 0 && i < secrets.n; i++)
		json_set_str(env, secrets.v[i], "(secret)");
	return r;
}

/* The tree has none, nor has an image in the place of a run. */
static bool has_command(const struct run *run)
{
	return json_count(json_get(run->doc, "command")) > 0;
}

static int add_run_facts(
	struct json *facts, const struct run *a, const struct run *b, struct err *err)
{
	AUTO_STRV struct strv words_a = {0}, words_b = {0};

	int r = words_get(a->doc, "command", &words_a, err);
	if (r == 0)
		r = words_get(b->doc, "command", &words_b, err);
	if (r < 0)
		return r;
	if (!same_words(&words_a, &words_b) ||
		json_get_bool(a->doc, "shell", false) != json_get_bool(b->doc, "shell", false))
		set_fact(facts, "command", command_of(a), command_of(b));
	submit_diff_add_members(
		facts, "params", json_get(a->doc, "params"), json_get(b->doc, "params"));
	submit_diff_add_members(facts, "tags", json_get(a->doc, "tags"), json_get(b->doc, "tags"));
	/* The tree's is known once it is submitted. */
	if (has_command(b))
		submit_diff_add_members(facts, "data", json_get(a->doc, RUNTIME_DATA),
			json_get(b->doc, RUNTIME_DATA));
	AUTO_JSON struct json *env_a = json_object();
	AUTO_JSON struct json *env_b = json_object();

	r = run_env_add(a, env_a, err);
	if (r == 0)
		r = run_env_add(b, env_b, err);
	if (r == 0)
		submit_diff_add_members(facts, "env", env_a, env_b);
	return r;
}

/*
 * The base image: its layers say which one it is, and its name where they are not known
 */

struct base {
	char *name;           /* NULL: nothing is known of it */
	bool known;           /* its layers are */
	struct strv diff_ids; /* lowest first */
};

static void base_done(struct base *base)
{
	free(base->name);
	strv_done(&base->diff_ids);
}

static void base_of_run(const struct run *run, struct base *ret)
{
	const struct json *image = json_get(run->doc, "image");
	const struct json *layers = json_get(image, "layers");
	const char *name = json_get_str(image, "base");

	ret->known = json_count(layers) > 0;
	ret->name = mem_strdup(name || !ret->known ? name : "scratch");
	for (const struct json *layer = json_first(layers); layer; layer = json_next(layer)) {
		const char *diff_id = json_get_str(layer, "diff_id");
		if (diff_id && str_eq(json_get_str(layer, "role"), "base"))
			strv_add(&ret->diff_ids, diff_id);
	}
}

/* Of the next run of this tree. One that cannot be read has its name all the same. */
static int base_of_tree(struct session *session, struct base *ret, struct err *err)
{
	AUTO_PACK struct pack pack = {0};
	AUTO_ERR struct err error = {0};

	int r = pack_init(&pack, session, NULL, false, &error);
	if (r < 0 && !pack.base_name)
		return err_move(err, &error);
	if (r < 0)
		log_note("the base image of the tree: %s", error.message);
	ret->name = mem_strdup(pack.base_name);
	ret->known = r == 0 && pack_need_base(&pack, NULL) == 0;
	for (size_t i = 0; pack.base && i < pack.base->n_layers; i++)
		strv_add(&ret->diff_ids, pack.base->diff_ids[i]);
	return 0;
}

/* with_layer: the name alone does not tell them apart. */
static struct json *base_json(const struct base *base, bool with_layer)
{
	AUTO_JSON struct json *holder = json_object();
	size_t n = base->diff_ids.n;
	AUTO_FREE char *text = with_layer && n ? mem_printf("%s (%.*s…)", base->name, SHORT_DIGEST,
							 base->diff_ids.v[n - 1])
					       : mem_strdup(base->name);

	json_set_str(holder, "name", text);
	return json_clone(json_get(holder, "name"));
}

/* Without `image:` a submit to a cluster takes one that follows from files of the tree, which are
 * compared themselves. */
static bool base_is_proposed(struct session *session, const struct base *of_run)
{
	struct config *config;

	return of_run->name && !str_eq(of_run->name, "scratch") &&
	       session_config(session, &config, NULL) == 0 && !config_is_set(config, "image");
}

static int add_base(struct session *session, struct json *facts, const struct run *a,
	const struct run *b, struct err *err)
{
	AUTO(base_done) struct base base_a = {0}, base_b = {0};
	int r = 0;

	base_of_run(a, &base_a);
	if (b)
		base_of_run(b, &base_b);
	else if (base_is_proposed(session, &base_a))
		return 0;
	else
		r = base_of_tree(session, &base_b, err);
	if (r < 0)
		return r;
	if (!base_a.name || !base_b.name)
		return 0;
	bool same_name = str_eq(base_a.name, base_b.name);
	bool same = base_a.known && base_b.known ? same_words(&base_a.diff_ids, &base_b.diff_ids)
						 : same_name;
	if (!same)
		set_fact(facts, "base", base_json(&base_a, same_name),
			base_json(&base_b, same_name));
	return 0;
}

/*
 * Files
 */

static void submit_diff_add_file(
	struct diff_report *report, enum diff_kind kind, const struct entry *entry)
{
	*vec_push(&report->files) = (struct diff_file){kind, entry->path};
}

static void compare_entries(
	struct diff_report *report, const struct entry *a, const struct entry *b)
{
	struct entry same_mode = *a;

	if (entry_same(a, b))
		return;
	same_mode.exec = b->exec;
	submit_diff_add_file(report, entry_same(&same_mode, b) ? DIFF_MODE : DIFF_CHANGED, b);
}

static void compare_files(struct diff_report *report)
{
	const struct entry_list *a = &report->a, *b = &report->b;
	size_t i = 0, k = 0;

	while (i < a->n || k < b->n) {
		int order = i == a->n ? 1 : k == b->n ? -1 : entry_compare(&a->v[i], &b->v[k]);
		if (order < 0)
			submit_diff_add_file(report, DIFF_REMOVED, &a->v[i++]);
		else if (order > 0)
			submit_diff_add_file(report, DIFF_ADDED, &b->v[k++]);
		else
			compare_entries(report, &a->v[i++], &b->v[k++]);
	}
}

static const char *snapshot_id(const struct run *run)
{
	return json_get_str(json_get(run->doc, "snapshot"), "id");
}

/* Nothing leaves the machine: secrets and large files count like all others. */
static int take_tree(struct session *session, struct submit *submit, struct err *err)
{
	AUTO_STRV struct strv all = {0};
	struct submit_options options = {.allow = &all};

	strv_add(&all, ".");
	*submit = (struct submit){.session = session, .options = &options};
	int r = session_place(session, &submit->place, err);
	if (r == 0)
		r = session_config(session, &submit->config, err);
	if (r == 0)
		r = submit_take_snapshot(submit, err);
	submit->options = NULL;
	return r;
}

static int add_tree(
	struct session *session, const struct run *a, struct diff_report *report, struct err *err)
{
	AUTO(submit_done) struct submit submit = {0};

	int r = take_tree(session, &submit, err);
	if (r < 0 || str_eq(submit.snapshot->id, snapshot_id(a)))
		return r;
	/* The strings of a snapshot end with it. */
	vec_foreach (const struct entry, entry, &submit.snapshot->entries)
		entry_add(&report->b, entry);
	return run_entries(session, a, &report->a, err);
}

static int add_entries(struct session *session, const struct run *a, const struct run *b,
	struct diff_report *report, struct err *err)
{
	if (!b)
		return add_tree(session, a, report, err);
	/* The same snapshot: the layers need not be read. */
	if (snapshot_id(a) && str_eq(snapshot_id(a), snapshot_id(b)))
		return 0;
	int r = run_entries(session, a, &report->a, err);
	return r < 0 ? r : run_entries(session, b, &report->b, err);
}

/*
 * All of it
 */

int runs_diff(struct session *session, const struct run *a, const struct run *b,
	struct diff_report *ret, struct err *err)
{
	AUTO(diff_report_done) struct diff_report report = {.facts = json_object()};

	int r = b && has_command(a) && has_command(b) ? add_run_facts(report.facts, a, b, err) : 0;

	if (r == 0)
		r = add_base(session, report.facts, a, b, err);
	if (r == 0)
		r = add_entries(session, a, b, &report, err);
	if (r == 0)
		compare_files(&report);
	if (r < 0)
		return r;
	*ret = report;
	report = (struct diff_report){0};
	return 0;
}

void diff_report_done(struct diff_report *report)
{
	if (!report)
		return;
	json_free(report->facts);
	vec_done(&report->files);
	entry_list_done(&report->a);
	entry_list_done(&report->b);
	*report = (struct diff_report){0};
}
