/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "app/prepare/submission.h"
#include "app/submit/submit_impl.h"
#include "base/os/os.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/words.h"

/*
 * The record of a submit.
 */

static void set_bytes(struct json *object, const char *key, const char *value)
{
	json_set_bytes(object, key, value, strlen(value));
}

static void copy(const struct json *from, struct json *to, const char *key)
{
	const struct json *value = json_get(from, key);

	if (value)
		json_set(to, key, json_clone(value));
}

/* A path of the run's own tree is shown as it would be typed in it. */
static char *shown_word(const struct submission *submission, const char *word)
{
	const char *at = strstr(word, WORDS_TREE), *path, *end;

	if (!at)
		return mem_strdup(word);
	path = at + strlen(WORDS_TREE) + (at[strlen(WORDS_TREE)] == '/');
	end = path + strcspn(path, ":,;=");
	AUTO_FREE char *in_tree = mem_strndup(path, (size_t)(end - path));
	AUTO_FREE char *relative = submission_relative(submission, in_tree);
	AUTO_FREE char *rest = shown_word(submission, end);
	return mem_printf("%.*s%s%s", (int)(at - word), word, relative, rest);
}

/* Blanks part the words of a shell's line, as far as parameters go. */
static void set_command(const struct submission *submission, struct json *doc)
{
	static const char special[] = "\"'\\$`*?<>|&;(){}";
	const struct spec *spec = &submission->spec;
	AUTO_STRV struct strv words = {0}, command = {0};

	for (size_t i = 0; i < spec->command.n; i++)
		strv_add_take(&command, shown_word(submission, spec->command.v[i]));
	words_set(doc, "command", &command);
	json_set_bool(doc, "shell", spec->shell);
	if (!spec->shell) {
		json_set(doc, "params", run_params(&command));
		return;
	}
	for (const char *s = spec->command.v[0]; *s; s += strspn(s, " \t\n")) {
		size_t len = strcspn(s, " \t\n");
		AUTO_FREE char *word = mem_strndup(s, len);
		if (len > 0 && !strpbrk(word, special))
			strv_add(&words, word);
		s += len;
	}
	json_set(doc, "params", run_params(&words));
}

static void set_tags(const struct strv *tags, struct json *doc)
{
	struct json *object = json_sub(doc, "tags");

	for (size_t i = 0; tags && i < tags->n; i++) {
		const char *tag = tags->v[i];
		size_t len = strcspn(tag, "=");
		AUTO_FREE char *key = mem_strndup(tag, len);
		if (str_is_utf8(key, len))
			set_bytes(object, key, tag[len] ? tag + len + 1 : "");
	}
}

static void set_origin(const struct submission *submission, struct json *doc)
{
	struct json *origin = json_sub(doc, "origin");
	char machine[OS_ID_SIZE];

	if (os_machine_id(machine))
		json_set_str(origin, "machine", machine);
	if (submission->place)
		set_bytes(origin, "root", submission->place->root);
	else if (submission->parent)
		copy(json_get(submission->parent->doc, "origin"), origin, "root");
	set_bytes(origin, "cwd", submission->spec.cwd);
}

static void set_code(const struct submission *submission, struct json *doc)
{
	struct json *image = json_sub(doc, "image");

	if (!submission->from_digest) {
		json_set_str(image, "base", submission->pack.base_name);
		return;
	}
	if (!submission->parent)
		return;
	json_set_str(doc, "parent", run_id(submission->parent));
	copy(submission->parent->doc, doc, "snapshot");
	copy(submission->parent->doc, doc, "image");
	/* The earlier run's git record is its own. */
	json_set(json_sub(doc, "snapshot"), "ref", json_null());
	json_set(json_sub(doc, "snapshot"), "record", json_null());
	json_set_int(json_sub(doc, "image"), "layers_pushed", 0);
	json_set_int(json_sub(doc, "image"), "bytes_pushed", 0);
}

static void set_group(const struct submission *submission, struct json *doc)
{
	const char *group = submission->options->group;

	if (!group)
		group = config_str(submission->config, "group");
	if (group)
		set_bytes(doc, "group", group);
	if (submission->options->note)
		set_bytes(doc, "note", submission->options->note);
}

/* Set the facts that targets which run images need of them, to repeat the run. */
static void set_image_facts(const struct submission *submission, struct json *spec)
{
	const struct json *facts = submission->image_facts;

	if (submission->parent && !submission->carried.image)
		facts = json_get(submission->parent->spec, "image");
	if (facts)
		json_set(spec, "image", json_clone(facts));
	if (str_eq(config_str(submission->config, "entrypoint"), "none"))
		json_set_bool(spec, "drop_entrypoint", true);
}

struct run *submission_run(struct submission *submission, const char *id)
{
	struct run *run = run_new(id, submission->name);
	struct json *doc = run->doc, *target = json_sub(doc, "target"), *resources;

	run->spec = spec_to_json(&submission->spec);
	set_image_facts(submission, run->spec);
	set_command(submission, doc);
	set_tags(submission->options->tags, doc);
	set_group(submission, doc);
	json_set_str(doc, "user", submission->session->env.user);
	json_set_str(target, "kind", submission->target->ops->kind);
	json_set_str(target, "name", submission->target->name);
	if (submission->target->ops->describe)
		submission->target->ops->describe(submission->target, target);
	set_origin(submission, doc);
	set_code(submission, doc);
	resources = json_sub(doc, "resources");
	json_set_int(resources, "nodes", submission->spec.resources.nodes);
	if (submission->spec.world.gpus != WORLD_GPUS_AUTO)
		json_set_int(resources, "gpus", submission->spec.world.gpus);
	if (submission->spec.ports.n)
		json_set(doc, "ports", ports_to_json(&submission->spec.ports));
	run_set_time(json_sub(doc, "times"), "submitted", clock_wall_ms());
	submission_set_snapshot(submission, run);
	submission_set_warnings(submission, run);
	return run;
}

void submission_set_snapshot(const struct submission *submission, struct run *run)
{
	if (submission->snapshot)
		json_set(run->doc, "snapshot", pack_snapshot_json(submission->snapshot));
}

void submission_set_warnings(const struct submission *submission, struct run *run)
{
	struct json *warnings = json_array();

	json_add_strv(warnings, &submission->warnings);
	json_set(run->doc, "warnings", warnings);
}
