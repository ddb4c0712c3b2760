/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/prepare/prepare.h"
#include "app/runs/held.h"
#include "app/runs/refresh.h"
#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "core/config/words.h"
#include "core/image/code.h"

enum {
	ID_TRIES = 20,
	CONFLICT_TRIES = 20,
	KNOW_MS = 5000,
};

/*
 * The record of a submit.
 */

static void submit_record_set_bytes(struct json *object, const char *key, const char *value)
{
	json_set_bytes(object, key, value, strlen(value));
}

static void submit_record_copy(const struct json *from, struct json *to, const char *key)
{
	const struct json *value = json_get(from, key);

	if (value)
		json_set(to, key, json_clone(value));
}

/* A path of the run's own tree is shown as it would be typed in it. */
static char *shown_word(const struct submit *submit, const char *word)
{
	const char *at = strstr(word, WORDS_TREE), *path, *end;

	if (!at)
		return mem_strdup(word);
	path = at + strlen(WORDS_TREE) + (at[strlen(WORDS_TREE)] == '/');
	end = path + strcspn(path, ":,;=");
	AUTO_FREE char *in_tree = mem_strndup(path, (size_t)(end - path));
	AUTO_FREE char *relative = submit_relative(submit, in_tree);
	AUTO_FREE char *rest = shown_word(submit, end);
	return mem_printf("%.*s%s%s", (int)(at - word), word, relative, rest);
}

/* How it is started, beside the command as the user typed it. */
static void submit_record_set_launcher(
	const struct submit *submit, const struct strv *command, struct json *doc)
{
	const struct runtime *runtime = &submit->spec.runtime;
	struct roles_part part;

	if (runtime->launcher.kind == LAUNCHER_NONE)
		return;
	roles_command_part(&submit->spec, &part);
	bool is_none = part.gpus == RUNTIME_GPUS_AUTO && submit->target->ops->has_scheduler;
	AUTO_FREE char *name = launcher_text(&runtime->launcher);
	AUTO_FREE char *line =
		launcher_line(&runtime->launcher, command, part.nodes, is_none ? 0 : part.gpus);
	struct json *launcher = json_sub(doc, "launcher");
	json_set_str(launcher, "name", name);
	json_set_bytes(launcher, "line", line, strlen(line));
}

/* Blanks part the words of a shell's line, as far as parameters go. */
static void submit_record_set_command(const struct submit *submit, struct json *doc)
{
	static const char special[] = "\"'\\$`*?<>|&;(){}";
	const struct spec *spec = &submit->spec;
	AUTO_STRV struct strv words = {0}, command = {0};

	for (size_t i = 0; i < spec->command.n; i++)
		strv_add_take(&command, shown_word(submit, spec->command.v[i]));
	words_set(doc, "command", &command);
	json_set_bool(doc, "shell", spec->shell);
	submit_record_set_launcher(submit, &command, doc);
	if (!spec->shell) {
		json_set(doc, "params", run_params(&command, NULL));
		return;
	}
	for (const char *s = spec->command.v[0]; *s; s += strspn(s, " \t\n")) {
		size_t len = strcspn(s, " \t\n");
		AUTO_FREE char *word = mem_strndup(s, len);
		if (len > 0 && !strpbrk(word, special))
			strv_add(&words, word);
		s += len;
	}
	json_set(doc, "params", run_params(&words, NULL));
}

static void set_tags(const struct strv *tags, struct json *doc)
{
	struct json *object = json_sub(doc, "tags");

	for (size_t i = 0; tags && i < tags->n; i++)
		run_tags_add(object, tags->v[i]);
}

static void submit_record_set_origin(const struct submit *submit, struct json *doc)
{
	struct json *origin = json_sub(doc, "origin");
	char machine[OS_ID_SIZE];

	if (os_machine_id(machine))
		json_set_str(origin, "machine", machine);
	if (submit->place)
		submit_record_set_bytes(origin, "root", submit->place->root);
	else if (submit->parent)
		submit_record_copy(json_get(submit->parent->doc, "origin"), origin, "root");
	submit_record_set_bytes(origin, "cwd", submit->spec.cwd);
}

static void set_code(const struct submit *submit, struct json *doc)
{
	struct json *image = json_sub(doc, "image");

	if (!submit->from_digest) {
		json_set_str(image, "base", submit->pack.base_name);
		return;
	}
	if (!submit->parent)
		return;
	json_set_str(doc, "parent", run_id(submit->parent));
	submit_record_copy(submit->parent->doc, doc, "snapshot");
	submit_record_copy(submit->parent->doc, doc, "image");
	/* The earlier run's git record is its own. */
	json_set(json_sub(doc, "snapshot"), "ref", json_null());
	json_set(json_sub(doc, "snapshot"), "record", json_null());
	json_set_int(json_sub(doc, "image"), "layers_pushed", 0);
	json_set_int(json_sub(doc, "image"), "bytes_pushed", 0);
}

static void set_group(const struct submit *submit, struct json *doc)
{
	const char *group = submit->options->group;

	if (!group)
		group = config_str(submit->config, "group");
	if (group)
		submit_record_set_bytes(doc, "group", group);
	if (submit->options->note)
		submit_record_set_bytes(doc, "note", submit->options->note);
}

/* Set the facts that targets which run images need of them, to repeat the run. */
static void set_image_facts(const struct submit *submit, struct json *spec)
{
	const struct json *facts = submit->image_facts;

	if (submit->parent && !submit->reused.image)
		facts = json_get(submit->parent->spec, "image");
	if (facts)
		json_set(spec, "image", json_clone(facts));
}

static void submit_set_snapshot(const struct submit *submit, struct run *run)
{
	if (submit->snapshot)
		json_set(run->doc, "snapshot", pack_snapshot_json(submit->snapshot));
}

void submit_set_moves(const struct submit *submit, struct json *object)
{
	const struct config *config = submit->config;

	json_set_str(object, "platform", config_str(config, "platform"));
	json_set_str(object, "workdir", config_str(config, "workdir"));
	json_set_str(object, "remote_url",
		submit->snapshot ? submit->snapshot->git.remote_url : submit->remote_url);
	json_set_bool(object, "no_gpus",
		submit->spec.runtime.gpus == 0 && config_is_set(config, "resources.gpus"));
}

static void submit_record_set_places(const struct submit *submit, struct json *doc)
{
	bool has_hosts = json_count(json_get(json_get(doc, "target"), "pool")) > 1;

	if (submit->places.n > 1)
		json_set(doc, RUN_PLACES, run_places_to_json(&submit->places));
	else if (!has_hosts)
		return;
	submit_set_moves(submit, json_sub(doc, RUN_MOVES));
}

void submit_set_warnings(const struct submit *submit, struct run *run)
{
	struct json *warnings = json_array();

	json_add_strv(warnings, &submit->warnings);
	json_set(run->doc, "warnings", warnings);
}

struct run *submit_new_run(struct submit *submit)
{
	struct run *run = run_new(submit->id, submit->name);
	struct json *doc = run->doc, *target = json_sub(doc, "target"), *resources;

	run->spec = spec_to_json(&submit->spec);
	set_image_facts(submit, run->spec);
	submit_record_set_command(submit, doc);
	set_tags(submit->options->tags, doc);
	set_group(submit, doc);
	json_set_str(doc, "user", submit->session->env.user);
	json_set_str(target, "kind", submit->target->ops->kind);
	json_set_str(target, "name", submit->target->name);
	if (submit->target->ops->describe)
		submit->target->ops->describe(submit->target, target);
	submit_record_set_places(submit, doc);
	submit_record_set_origin(submit, doc);
	set_code(submit, doc);
	resources = json_sub(doc, "resources");
	json_set_int(resources, "nodes", submit->spec.resources.nodes);
	roles_to_record(&submit->spec.roles, doc);
	if (submit->spec.runtime.gpus != RUNTIME_GPUS_AUTO && !submit->spec.roles.list.n)
		json_set_int(resources, "gpus", submit->spec.runtime.gpus);
	if (submit->after.n)
		json_set(doc, AFTER_RECORD, after_to_json(&submit->after));
	if (submit->target->ops->has_scheduler && submit->config &&
		config_is_set(submit->config, "resources.gpus"))
		json_set_bool(resources, "gpus_named", true);
	if (submit->spec.ports.n)
		json_set(doc, "ports", ports_to_json(&submit->spec.ports));
	runtime_name_data(&submit->spec.runtime, doc);
	run_set_time(json_sub(doc, "times"), "submitted", clock_wall_ms());
	submit_set_snapshot(submit, run);
	submit_set_warnings(submit, run);
	if (submit->study)
		study_describe_member(submit->study, 0, doc);
	return run;
}

/*
 * The row
 */

/* Make or (may_exist) take the directory of submit->id; 0: it is another run's. */
static int submit_record_claim_dir(struct submit *submit, bool may_exist, struct err *err)
{
	AUTO_FREE char *dir = dirs_run(&submit->session->dirs, submit->id);

	if (mkdir(dir, 0700) < 0 && (errno != EEXIST || !may_exist))
		return errno == EEXIST ? 0 : fs_error(err, errno, "making directory %s", dir);
	AUTO_FREE char *lock = fs_join(dir, RUN_SUBMIT_LOCK);
	submit->dir = TAKE(dir);
	int r = fs_lock(lock, true, 0, &submit->lock_fd, err);
	return r < 0 ? r : 1;
}

static void submit_record_name_member(struct submit *submit, size_t index)
{
	run_member_id(submit->study->id, index, submit->id);
	snprintf(submit->name, sizeof(submit->name), "%.*s",
		(int)strlen(submit->id) - RUN_SUFFIX - 1, submit->id);
}

void submit_set_study(struct submit *submit)
{
	study_set_place(submit->study, 0, &submit->spec);
	submit_record_name_member(submit, 0);
}

int submit_begin_study(struct submit *submit, struct err *err)
{
	struct study *study = submit->study;

	spec_done(&study->spec);
	study->spec = submit->spec;
	submit->spec = (struct spec){0};
	return study_member_spec(study, 0, &submit->spec, err);
}

int submit_claim(struct submit *submit, struct err *err)
{
	AUTO_FREE char *runs = mem_printf("%s/runs", submit->session->dirs.state);

	int r = fs_mkdirs(runs, 0700, err);
	if (r == 0 && submit->study)
		r = study_claim(&submit->session->dirs, submit->name, submit->study, err);
	if (r == 0 && submit->study)
		submit_set_study(submit);
	for (int i = 0; r == 0 && i < ID_TRIES; i++) {
		if (!submit->study)
			run_make_id(submit->name, submit->id);
		r = submit_record_claim_dir(submit, false, err);
	}
	if (r == 0)
		return err_set(err, E_RUN_NAME, "the id %s is taken", submit->id);
	return r < 0 ? r : 0;
}

void submit_drop(struct submit *submit)
{
	if (submit->dir)
		fs_remove_tree(AT_FDCWD, submit->dir, NULL);
	if (submit->study && *submit->study->id)
		study_remove(&submit->session->dirs, submit->study->id, NULL);
}

static const char *base_of(const struct submit *submit)
{
	if (submit->parent && !submit->reused.image)
		return json_get_str(json_get(submit->parent->doc, "image"), "base");
	return submit->pack.base_name;
}

struct target_requirements submit_requirements(const struct submit *submit)
{
	const struct snapshot *taken = submit->snapshot;

	return (struct target_requirements){
		.run_id = submit->id,
		.spec = &submit->spec,
		.image = submit->image.layers ? &submit->image : NULL,
		.base = base_of(submit),
		.tree_bytes = taken ? taken->bytes : 0,
	};
}

int submit_learn(struct submit *submit, struct err *err)
{
	struct target *target = submit->target;
	const struct target_requirements requirements = submit_requirements(submit);
	AUTO_STRV struct strv notes = {0};

	int r = target->ops->learn ? target->ops->learn(target, &requirements, &notes, err) : 0;
	for (size_t i = 0; r == 0 && i < notes.n; i++)
		submit_warn(submit, "%s", notes.v[i]);
	return r;
}

int submit_choose_handle(struct submit *submit, struct err *err)
{
	struct target *target = submit->target;
	const char *known = submit->is_held ? run_handle(submit->run) : NULL;

	/* The run may have been sent by that name already. */
	if (known) {
		snprintf(submit->handle, sizeof(submit->handle), "%s", known);
		return 0;
	}
	/* After those that were taken back elsewhere. */
	int attempt = submit->is_held ? run_attempts(submit->run) + 1 : 1;
	return target->ops->prepare(
		target, submit->id, attempt, &submit->spec, submit->handle, err);
}

int submit_write_study(struct submit *submit, struct err *err)
{
	struct study *study = submit->study;
	struct json *target = json_sub(study->doc, "target");

	int r = submit_begin_study(submit, err);
	if (r < 0)
		return r;
	json_set_str(study->doc, "user", submit->session->env.user);
	json_set_str(target, "kind", submit->target->ops->kind);
	json_set_str(target, "name", submit->target->name);
	run_set_time(study->doc, "submitted", clock_wall_ms());
	return study_write(&submit->session->dirs, study, err);
}

int submit_insert_row(struct submit *submit, struct err *err)
{
	int r = submit->study ? submit_write_study(submit, err) : 0;

	if (r == 0)
		r = submit_choose_handle(submit, err);
	if (r < 0 || submit->is_held)
		return r;
	submit->run = submit_new_run(submit);
	run_add_attempt(submit->run, submit->handle);
	r = store_insert(submit->store, submit->run, err);
	if (r < 0)
		run_free(TAKE(submit->run));
	return r;
}

/* A member that is held waits for the same. */
static void submit_record_copy_held(const struct run *first, struct run *run)
{
	static const char *const members[] = {RUN_HELD, "text", "evidence"};

	for (size_t i = 0; run_is_held(first) && i < ARRAY_LEN(members); i++)
		submit_record_copy(first->doc, run->doc, members[i]);
}

/* A record with what members of a study have in common, which first has. */
static struct run *submit_record_new_member(
	const struct submit *submit, const struct run *first, size_t index)
{
	static const char *const common[] = {"tags", "parent", "user", "note", "target", RUN_PLACES,
		RUN_MOVES, "origin", "snapshot", "image", "resources", "ports", RUNTIME_DATA,
		AFTER_RECORD};
	struct run *run = run_new(submit->id, submit->name);

	for (size_t i = 0; i < ARRAY_LEN(common); i++)
		submit_record_copy(first->doc, run->doc, common[i]);
	json_set(json_sub(run->doc, "snapshot"), "ref", json_null());
	json_set(json_sub(run->doc, "snapshot"), "record", json_null());
	json_set_int(json_sub(run->doc, "image"), "layers_pushed", 0);
	json_set_int(json_sub(run->doc, "image"), "bytes_pushed", 0);
	run->spec = spec_to_json(&submit->spec);
	submit_record_copy(first->spec, run->spec, "image");
	/* A host of its own, of several. */
	if (submit->target->ops->describe)
		submit->target->ops->describe(submit->target, json_sub(run->doc, "target"));
	submit_record_set_command(submit, run->doc);
	study_describe_member(submit->study, index, run->doc);
	run_set_time(json_sub(run->doc, "times"), "submitted", clock_wall_ms());
	run_set_state(run, RUN_QUEUED);
	submit_record_copy_held(first, run);
	return run;
}

static void submit_record_leave_member(struct submit *submit)
{
	run_free(TAKE(submit->run));
	free(TAKE(submit->dir));
	if (submit->lock_fd > 0)
		close(submit->lock_fd);
	submit->lock_fd = 0;
	spec_done(&submit->spec);
}

bool submit_starts_together(const struct submit *submit)
{
	return submit->study && submit->target->ops->submit_study &&
	       submit->spec.resources.nodes <= 1;
}

static int submit_record_make_member(
	struct submit *submit, const struct run *first, size_t index, struct err *err)
{
	submit_record_leave_member(submit);
	submit_record_name_member(submit, index);
	int r = study_member_spec(submit->study, index, &submit->spec, err);
	if (r == 0)
		r = submit_record_claim_dir(submit, true, err);
	bool is_held = run_is_held(first);
	if (r > 0 && !is_held)
		r = submit_choose_handle(submit, err);
	if (r < 0)
		return r;
	submit->run = submit_record_new_member(submit, first, index);
	if (!is_held)
		run_add_attempt(submit->run, submit->handle);
	return 0;
}

int submit_insert_member(
	struct submit *submit, const struct run *first, size_t index, struct err *err)
{
	AUTO_ERR struct err error = {0};
	int r = submit_record_make_member(submit, first, index, &error);

	if (r == 0)
		r = store_insert(submit->store, submit->run, &error);
	/* Without a row nothing stays of it. */
	if (r < 0 && submit->dir && error.id != E_RUN_NAME)
		fs_remove_tree(AT_FDCWD, submit->dir, NULL);
	return r < 0 ? err_move(err, &error) : 0;
}

int submit_insert_members(
	struct submit *submit, const struct run *first, struct run_list *ret, struct err *err)
{
	int r = 0;

	for (size_t i = 1; r == 0 && i < submit->study->cases.n; i++) {
		r = submit_record_make_member(submit, first, i, err);
		if (r == 0)
			*vec_push(ret) = TAKE(submit->run);
	}
	return r < 0 ? r : store_insert_new(submit->store, ret, err);
}

int submit_new_members(
	const struct submit *submit, const struct run *first, struct run_list *ret, struct err *err)
{
	struct submit member = *submit;
	int r = 0;

	member.run = NULL;
	member.dir = NULL;
	member.lock_fd = 0;
	member.spec = (struct spec){0};
	for (size_t i = 1; r == 0 && i < submit->study->cases.n; i++) {
		r = submit_record_make_member(&member, first, i, err);
		if (r == 0)
			*vec_push(ret) = TAKE(member.run);
	}
	submit_record_leave_member(&member);
	return r;
}

/* Keep what other processes may have noted: that the run is to be cancelled, or when it was
 * polled. */
static int take_changes(struct submit *submit, struct err *err)
{
	AUTO_RUN struct run *now = NULL;
	int r = store_get(submit->store, submit->id, &now, err);

	if (r < 0)
		return r;
	if (run_state_is_final(run_state(now)))
		return err_set(err, E_RUN_ENDED, "%s was ended by another dlrun", submit->id);
	json_set_bool(submit->run->doc, "cancelling", run_cancelling(now));
	submit->run->revision = now->revision;
	return 0;
}

int submit_update_row(struct submit *submit, struct err *err)
{
	for (int i = 0;; i++) {
		AUTO_ERR struct err changed = {0};
		int r = store_update_known(submit->store, submit->run, &changed);
		if (r == 0)
			return 0;
		if (changed.id != E_STORE_CHANGED || i == CONFLICT_TRIES)
			return err_move(err, &changed);
		r = take_changes(submit, err);
		if (r < 0)
			return r;
	}
}

void submit_set_failed(struct run *run, const struct err *err)
{
	struct run_exit exit = {
		.known = true, .code = 125, .origin = "dlrun", .reason = "StartFailed"};

	run_set_state(run, RUN_FAILED);
	run_set_exit(run, &exit);
	run_set_attempt_exit(run, &exit, 0, clock_wall_ms());
	json_set_str(run->doc, "text", err->message);
}

int submit_fail_row(struct submit *submit, int r, const struct err *err)
{
	submit_set_failed(submit->run, err);
	submit_update_row(submit, NULL);
	return r;
}

uint64_t submit_code_bytes(const struct submit *submit)
{
	const struct image *image = &submit->image;
	uint64_t bytes = 0;

	for (size_t i = 0; i < image->n_layers; i++)
		if (image->layers[i].role != IMAGE_ROLE_BASE)
			bytes += image->layers[i].blob.size;
	return bytes;
}

struct json *submit_image_json(const struct submit *submit, const char *base)
{
	struct json *json = pack_image_json(&submit->image, submit->ref, base);

	if (!submit->base_ref)
		return json;
	json_set_str(json, RUN_BASE_REF, submit->base_ref);
	if (submit_code_bytes(submit) > submit->target->code_stored)
		json_set_bool(json, RUN_STREAMED, true);
	return json;
}

void submit_set_image(struct submit *submit)
{
	/* The record of an image that stays in place was copied unchanged from the earlier run. */
	if (!submit->image.layers) {
		json_set_str(json_sub(submit->run->doc, "image"), "ref", submit->ref);
		return;
	}
	json_set(submit->run->doc, "image", submit_image_json(submit, base_of(submit)));
	submit_set_snapshot(submit, submit->run);
	/* The repository is known by now. */
	if (submit->snapshot && json_get(submit->run->doc, RUN_MOVES))
		json_set_str(json_sub(submit->run->doc, RUN_MOVES), "remote_url",
			submit->snapshot->git.remote_url);
}

/*
 * The start
 */

static void submit_add_study(const struct spec_study *study, struct strv *env)
{
	if (!study->id)
		return;
	strv_addf(env, "DLRUN_STUDY=%s", study->id);
	strv_addf(env, "DLRUN_STUDY_INDEX=%d", study->index);
	strv_addf(env, "DLRUN_STUDY_SIZE=%d", study->size);
}

/* Where all runs of the target have their caches; NULL: nowhere in particular. The caller frees. */
static char *submit_caches_dir(const struct submit *submit)
{
	const struct target *target = submit->target;
	struct config *config;

	if (!target || session_config(submit->session, &config, NULL) < 0)
		return NULL;
	const struct json *caches = json_get(config_target(config, target->name), "caches");
	const char *text = json_str(caches), *home = submit->session->dirs.home;

	if (caches && !text)
		return mem_strdup(TARGET_CACHES_DIR);
	if (target->ops->is_here && text && *text == '~' && home)
		return fs_join(home, text[1] ? text + 2 : ".");
	return text ? mem_strdup(text) : NULL;
}

void submit_add_caches(const struct submit *submit, struct strv *defaults)
{
	static const struct {
		const char *variable, *name;
	} programs[] = {{"HF_HOME", "huggingface"}, {"PIP_CACHE_DIR", "pip"},
		{"TORCH_HOME", "torch"}, {"UV_CACHE_DIR", "uv"}};
	AUTO_FREE char *dir = submit_caches_dir(submit);

	for (size_t i = 0; dir && i < ARRAY_LEN(programs); i++)
		strv_addf(defaults, "%s=%s/%s", programs[i].variable, dir, programs[i].name);
}

void submit_make_job(struct submit *submit, const struct run *run, struct target_job *ret)
{
	const struct spec *spec = &submit->spec;
	const struct snapshot *taken = submit->snapshot;
	const char *remote_url = taken ? taken->git.remote_url : submit->remote_url;

	strv_copy(&submit->env, &spec->env);
	strv_done(&submit->defaults);
	run_code_env(run, &submit->env, &submit->defaults);
	submit_add_study(&spec->study, &submit->env);
	submit_add_caches(submit, &submit->defaults);
	if (remote_url)
		strv_addf(&submit->defaults, "WANDB_GIT_REMOTE_URL=%s", remote_url);
	/* A run that was to have none takes none by accident. */
	if (spec->runtime.gpus == 0 && submit->config &&
		config_is_set(submit->config, "resources.gpus")) {
		strv_add(&submit->defaults, "CUDA_VISIBLE_DEVICES=");
		strv_add(&submit->defaults, "ROCR_VISIBLE_DEVICES=");
	}
	*ret = run_code_job(run, spec);
	ret->followed = submit->options && submit->options->followed;
	ret->handle = submit->handle;
	ret->env = &submit->env;
	ret->default_env = &submit->defaults;
	ret->secret_env = &submit->secret_env;
	ret->carries_over = submit->carries_over;
	ret->code_apart = submit->code_apart;
}

struct target_study submit_make_study(
	const struct target_job *first, const struct study_words *words)
{
	return (struct target_study){
		.first = first,
		.n = words->n,
		.commands = words->commands,
		.env = words->env,
		.params = (const struct json *const *)words->params,
	};
}

/* Of a target without a registry: pods take the code from the layout here. */
static int submit_record_check_layers(struct submit *submit, const struct run *run, struct err *err)
{
	AUTO_IMAGE struct image image = {0};
	struct layout *layout;

	int r = session_layout(submit->session, &layout, err);
	if (r == 0)
		r = image_load(layout, run_image_digest(run), &image, err);
	for (size_t i = 0; r == 0 && i < image.n_layers; i++) {
		AUTO_FD int fd = -1;
		if (image.layers[i].role != IMAGE_ROLE_BASE)
			r = layout_open_blob(layout, &image.layers[i].blob, &fd, err);
	}
	if (r == 0)
		return 0;
	err_prefix(err, "the code of %s", run_id(run));
	return err_hint(err, "dlrun submit");
}

int submit_load_image(struct submit *submit, const struct run *run, struct err *err)
{
	const char *base_ref = run_base_ref(run);
	struct layout *layout;

	if (submit->target->ops->needs_image) {
		submit->ref = mem_strdup(json_get_str(json_get(run->doc, "image"), "ref"));
		submit->code_apart = base_ref != NULL;
		submit->base_ref = base_ref ? mem_strdup(base_ref) : NULL;
		return base_ref ? submit_record_check_layers(submit, run, err) : 0;
	}
	int r = session_layout(submit->session, &layout, err);
	return r < 0 ? r : image_load(layout, run_image_digest(run), &submit->image, err);
}

int submit_set_job_image(struct submit *submit, struct target_job *job, struct err *err)
{
	job->image_ref = submit->code_apart ? submit->base_ref : submit->ref;
	return submit->code_apart ? session_layout(submit->session, &job->layout, err) : 0;
}

int submit_make_start(struct submit *submit, struct target_job *ret, struct err *err)
{
	submit_make_job(submit, submit->run, ret);
	if (submit->target->ops->needs_image)
		return submit_set_job_image(submit, ret, err);
	ret->image = &submit->image;
	return session_layout(submit->session, &ret->layout, err);
}

int submit_create(struct submit *submit, struct err *err)
{
	int64_t start_ms = clock_ms();
	struct target_job job;
	int r = submit_make_start(submit, &job, err);

	if (r == 0)
		r = target_submit(submit->target, &job, SUBMIT_START_MS, err);
	submit->submit_ms = clock_ms() - start_ms;
	return r;
}

int submit_has_begun(struct submit *submit)
{
	struct run_list one = {.v = &submit->run, .n = 1, .cap = 1};

	auto_fd(&submit->lock_fd);
	submit->lock_fd = -1;
	if (!target_knows(submit->target, submit->handle, KNOW_MS))
		return -1;
	return runs_refresh(submit->session, &one, SUBMIT_START_MS, NULL) == 0 &&
	       !run_never_began(submit->run);
}
