/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "app/prepare/submission.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/words.h"
#include "core/context/secrets.h"
#include "host/editable.h"
#include "host/gpu.h"

/*
 * Everything around the code (world.h), checked before there is a run, as far as this machine can
 * know.
 */

enum { GPU_LOOK_MS = 10000 };

/*
 * Secrets
 */

static void keep_secret(struct submission *submission, const char *item)
{
	AUTO_FREE char *name = mem_strndup(item, strcspn(item, "="));

	if (strv_find(&submission->spec.secrets, name) < 0)
		strv_add(&submission->spec.secrets, name);
}

static int add_secrets(struct submission *submission, const struct secrets_source *source,
	const struct strv *items, struct err *err)
{
	for (size_t i = 0; items && i < items->n; i++) {
		bool open = false;
		int r = words_check_name(items->v[i], "--secret", err);
		if (r == 0)
			r = secrets_read(source, items->v[i], &submission->secret_env, &open, err);
		if (r < 0)
			return r;
		keep_secret(submission, items->v[i]);
		if (open)
			submission_warn(submission,
				"%s: other users of this machine may read its file",
				submission->spec.secrets.v[submission->spec.secrets.n - 1]);
	}
	return 0;
}

/* The earlier run's names have their values from this shell again. */
static int take_again(struct submission *submission, struct err *err)
{
	AUTO_STRV struct strv missing = {0};

	int r = secrets_again(submission->session, submission->parent, &submission->spec.secrets,
		&submission->secret_env, &missing, err);
	for (size_t i = 0; r == 0 && i < missing.n; i++)
		submission_warn(submission,
			"%s was set for the earlier run and is not set in this shell",
			missing.v[i]);
	return r;
}

int submission_set_secrets(struct submission *submission, struct err *err)
{
	struct secrets_source shell = secrets_of_shell(submission->session);
	AUTO_FREE char *dir = NULL;
	int r;

	if (submission->parent) {
		r = take_again(submission, err);
	} else {
		struct secrets_source source = secrets_of_config(submission->session, &dir);
		r = add_secrets(submission, &source, config_secrets(submission->config), err);
	}
	if (r == 0)
		r = add_secrets(submission, &shell, submission->options->secrets, err);
	if (submission->secret_env.n > 0)
		os_protect_memory();
	return r;
}

/*
 * Data and outputs
 */

static const char *root_of(struct submission *submission)
{
	const struct tree_place *place = submission->place;

	if (!place && session_place(submission->session, &place, NULL) < 0)
		return NULL;
	return place->root;
}

/* A volume of a cluster, as the target has it. */
static char *place_text(const struct json *place)
{
	AUTO_BUF struct buf text;

	buf_init(&text, JSON_SIZE_MAX);
	json_print(place, &text);
	return buf_take(&text);
}

/* The source of data that the target configures for path, "~/…" resolved; else path in the tree;
 * NULL: not known. */
static char *data_place(struct submission *submission, const char *path)
{
	const struct json *target = config_target(submission->config, submission->target->name);
	const struct json *data = json_get(json_get(target, "data"), path);
	const char *text = json_str(data);
	const char *home = submission->session->dirs.home, *root = root_of(submission);

	if (submission->target->ops->takes_image_from_registry)
		return data ? place_text(data) : NULL;
	/* Only the target can resolve "~". */
	if (submission->target->ops->asks_first)
		return text ? mem_strdup(text) : NULL;
	if (text && *text == '~' && home)
		return fs_join(home, text[1] ? text + 2 : ".");
	if (text)
		return mem_strdup(text);
	return root ? fs_join(root, path) : NULL;
}

static int fail_data(struct submission *submission, const struct world_data *data, struct err *err)
{
	const char *prefix = submission->place ? submission->place->prefix : ".";
	AUTO_FREE char *shown = str_escaped(data->path), *from = str_escaped(data->from);

	err_set(err, E_RUN_DATA, "data: %s does not exist: %s", shown, from);
	if (!str_eq(prefix, ".") && !str_starts(data->path, prefix))
		err_evidence(err, "paths of dlrun.yaml begin at the root of the working tree");
	return err_hint(err, "targets: {local: {kind: local, data: {%s: /srv/data}}}", shown);
}

/* Data can be checked on this machine only. */
static int check_data(struct submission *submission, struct err *err)
{
	const struct world *world = &submission->spec.world;
	struct stat st;

	for (size_t i = 0; i < world->data.n; i++)
		if (str_eq(submission->target->ops->kind, "local") &&
			stat(world->data.v[i].from, &st) < 0)
			return fail_data(submission, &world->data.v[i], err);
	return 0;
}

static int find_data(
	struct submission *submission, const char *path, char **ret_from, struct err *err)
{
	*ret_from = data_place(submission, path);
	if (*ret_from)
		return 0;
	AUTO_FREE char *shown = str_escaped(path);
	const char *name = submission->target->name;
	err_set(err, E_RUN_DATA, "data: target %s does not say where '%s' is", name, shown);
	if (submission->target->ops->takes_image_from_registry)
		return err_hint(err, "targets: {%s: {data: {%s: {pvc: datasets}}}}", name, shown);
	return err_hint(err, "targets: {lab: {kind: ssh, data: {%s: /srv/data}}}", shown);
}

/* The earlier run's data lie elsewhere on another target. */
static int move_data(struct submission *submission, struct err *err)
{
	struct world *world = &submission->spec.world;
	int r = 0;

	if (!submission->parent || str_eq(run_target(submission->parent), submission->target->name))
		return 0;
	for (size_t i = 0; r == 0 && i < world->data.n; i++) {
		char *from = NULL;
		r = find_data(submission, world->data.v[i].path, &from, err);
		if (r < 0)
			break;
		free(world->data.v[i].from);
		world->data.v[i].from = from;
	}
	return r;
}

static int add_data(struct submission *submission, struct err *err)
{
	const struct strv *paths = config_list(submission->config, "data");
	struct world *world = &submission->spec.world;

	for (size_t i = 0; i < paths->n; i++) {
		AUTO_FREE char *path = NULL;
		int r = world_path(paths->v[i], "data", &path, err);
		if (r < 0)
			return config_blame(submission->config, "data", err);
		AUTO_FREE char *from = NULL;
		r = find_data(submission, path, &from, err);
		if (r < 0)
			return r;
		*vec_push(&world->data) = (struct world_data){TAKE(path), TAKE(from)};
	}
	return 0;
}

static int add_paths(
	const struct config *config, const char *key, struct strv *ret, struct err *err)
{
	const struct strv *texts = config_list(config, key);

	for (size_t i = 0; i < texts->n; i++) {
		char *path;
		int r = world_path(texts->v[i], key, &path, err);
		if (r < 0)
			return config_blame(config, key, err);
		strv_add_take(ret, path);
	}
	return 0;
}

/* Event files are found in all outputs, so a directory that has some is one. */
static int add_events(const struct config *config, struct strv *outputs, struct err *err)
{
	AUTO_STRV struct strv paths = {0};
	int r = add_paths(config, "tensorboard", &paths, err);

	for (size_t i = 0; r == 0 && i < paths.n; i++) {
		bool is_there = false;

		for (size_t k = 0; k < outputs->n; k++)
			is_there |= fs_below(paths.v[i], outputs->v[k]) != NULL;
		if (!is_there)
			strv_add(outputs, paths.v[i]);
	}
	return r;
}

static int check_counts(const struct world *world, struct err *err)
{
	if (world->data.n > WORLD_PATHS_MAX || world->outputs.n > WORLD_PATHS_MAX)
		return err_set(err, E_DATA_LIMIT, "data and outputs may have %d paths each",
			WORLD_PATHS_MAX);
	for (size_t i = 0; i < world->data.n; i++)
		if (strv_find(&world->outputs, world->data.v[i].path) >= 0)
			return err_set(err, E_CONFIG,
				"'%s' is in both data: and outputs:; keep it in one of them",
				world->data.v[i].path);
	return 0;
}

/*
 * Setup and before
 */

/* Where the file lies that has the key, in the tree. */
static char *dir_of_key(struct submission *submission, const char *key)
{
	const struct config_origin *origin = config_origin(submission->config, key);
	const char *root = root_of(submission);
	size_t len = root ? strlen(root) : 0;
	const char *slash;

	if (!root || origin->source != CONFIG_FROM_PROJECT ||
		strncmp(origin->file, root, len) != 0 || origin->file[len] != '/')
		return mem_strdup(".");
	slash = strrchr(origin->file, '/');
	if (slash <= origin->file + len)
		return mem_strdup(".");
	return mem_strndup(origin->file + len + 1, (size_t)(slash - origin->file) - len - 1);
}

static int set_setup(struct submission *submission, struct err *err)
{
	const struct config *config = submission->config;
	struct world_setup *setup = &submission->spec.world.setup;
	const char *run = config_str(config, "setup.run");

	if (str_empty(run)) {
		if (!config_is_set(config, "setup.key"))
			return 0;
		err_set(err, E_CONFIG, "setup.key is set without setup.run");
		err_hint(err, "setup: {run: uv sync --frozen, key: [uv.lock]}");
		return config_blame(config, "setup.key", err);
	}
	setup->run = mem_strdup(run);
	setup->cwd = dir_of_key(submission, "setup.run");
	return add_paths(config, "setup.key", &setup->key, err);
}

/* A slash at the end says what a pattern means anyway, and a path begins at the tree's root. */
static int add_pattern(const char *text, struct strv *ret, struct err *err)
{
	size_t len;

	while (text[0] == '.' && text[1] == '/')
		text += 2;
	for (len = strlen(text); len > 1 && text[len - 1] == '/';)
		len--;
	if (len && *text != '/' && *text != '~') {
		strv_add_take(ret, mem_strndup(text, len));
		return 0;
	}
	AUTO_FREE char *shown = str_escaped(text);
	err_set(err, E_CONFIG,
		"collect.exclude: '%s' is not a name or a path from the root of the working tree",
		shown);
	return err_hint(err, "collect: {exclude: ['*.tmp', 'out/*.bin']}");
}

/* Where results wait, and how long. The time is the target's, also for an earlier run's code. */
static int set_collect(struct submission *submission, struct err *err)
{
	const struct config *config = submission->config;
	const struct json *target = config_target(config, submission->target->name);
	struct world *world = &submission->spec.world;
	const struct strv *exclude = config_list(config, "collect.exclude");
	const char *linger = json_get_str(target, "linger");
	int r = 0;

	world->linger_ms = config_duration(config, "linger", WORLD_LINGER_MS);
	if (linger)
		duration_parse(linger, &world->linger_ms, NULL);
	if (submission->parent)
		return 0;
	if (exclude->n > WORLD_PATHS_MAX)
		return err_set(
			err, E_DATA_LIMIT, "collect.exclude may have %d patterns", WORLD_PATHS_MAX);
	world->collect.mode =
		str_eq(config_str(config, "collect"), "none") ? COLLECT_NONE : COLLECT_AUTO;
	world->collect.size_bytes = config_size(config, "collect.size");
	for (size_t i = 0; i < exclude->n && r == 0; i++)
		r = add_pattern(exclude->v[i], &world->collect.exclude, err);
	return r < 0 ? config_blame(config, "collect.exclude", err) : 0;
}

static void set_before(struct submission *submission)
{
	const struct json *target = config_target(submission->config, submission->target->name);
	const char *before = json_get_str(target, "before");

	if (!before)
		before = config_str(submission->config, "before");
	submission->spec.world.before = str_empty(before) ? NULL : mem_strdup(before);
}

/*
 * Editable installs
 */

/* On this machine only: what another one has installed is not known here. */
static void find_editable(struct submission *submission)
{
	const struct tree_place *place = submission->place;
	struct spec *spec = &submission->spec;
	AUTO_EDITABLE struct editable editable = {0};
	AUTO_STRV struct strv env = {0};

	if (!place || !str_eq(submission->target->ops->kind, "local"))
		return;
	for (const char *const *e = submission->session->env.env; e && *e; e++)
		strv_add(&env, *e);
	for (size_t i = 0; i < spec->env.n; i++)
		env_set(&env, spec->env.v[i], false);
	AUTO_FREE char *cwd = fs_join(place->root, place->prefix);
	editable_find(&(struct editable_query){.command = &spec->command,
			      .before = spec->world.before,
			      .env = (const char *const *)env.v,
			      .cwd = cwd,
			      .root = place->root},
		&editable);
	strv_copy(&spec->world.python_paths, &editable.paths);
	strv_copy(&spec->world.python_aliases, &editable.aliases);
	if (editable.sentence)
		strv_add(&submission->notices, editable.sentence);
	for (size_t i = 0; i < editable.warnings.n; i++)
		submission_warn(submission, "%s", editable.warnings.v[i]);
}

/*
 * GPUs and attempts
 */

/* The user's own choice of GPUs, of the run or of this shell; NULL: there is none. */
static const char *chosen_gpus(const struct submission *submission)
{
	static const char *const names[] = {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"};
	const struct strv *env = &submission->spec.env;

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		const char *value = env->n ? env_get((const char *const *)env->v, names[i]) : NULL;
		/* This shell's are those of this machine. */
		if (!value && !submission->target->ops->asks_first)
			value = env_get(submission->session->env.env, names[i]);
		if (value)
			return value;
	}
	return NULL;
}

static void split_commas(const char *text, struct strv *ret)
{
	for (; *text; text += strcspn(text, ","), text += *text == ',') {
		size_t len = strcspn(text, ",");
		if (len)
			strv_add_take(ret, mem_strndup(text, len));
	}
}

/* A run inside of a run uses the GPUs of that one: a second claim on them would wait forever. */
static int default_gpus(const struct submission *submission, const char *path)
{
	const char *chosen = chosen_gpus(submission);

	if (submission->session->env.inside_run || (chosen && !*chosen))
		return 0;
	return gpu_may_exist(path) ? WORLD_GPUS_AUTO : 0;
}

static int too_many_gpus(int wanted, size_t have, struct err *err)
{
	AUTO_FREE char *number = have ? mem_printf("%zu", have) : mem_strdup("none");

	err_set(err, E_GPU_COUNT, "requested %d GPU%s, this machine has %s", wanted,
		wanted == 1 ? "" : "s", number);
	return err_hint(err, "dlrun submit -g %zu …", have);
}

/* Do not probe for a single GPU: the run itself searches for it. A run that requests more GPUs than
 * exist would never begin. */
static int check_gpus(int wanted, const char *path, struct err *err)
{
	struct gpu_list list = {0};

	if (wanted <= 0)
		return 0;
	if (!gpu_may_exist(path))
		return too_many_gpus(wanted, 0, err);
	if (wanted == 1)
		return 0;
	int r = gpu_find(path, GPU_LOOK_MS, &list, err);
	if (r < 0)
		return r;
	return (size_t)wanted > list.n ? too_many_gpus(wanted, list.n, err) : 0;
}

static int default_gpus_of(const struct submission *submission, const char *path)
{
	const char *chosen = chosen_gpus(submission);

	if (submission->target->ops->takes_image_from_registry)
		return 0;
	/* The node knows what it has. */
	if (submission->target->ops->asks_first)
		return chosen && !*chosen ? 0 : WORLD_GPUS_AUTO;
	return default_gpus(submission, path);
}

static int set_gpus(struct submission *submission, struct err *err)
{
	const struct target_ops *ops = submission->target->ops;
	struct world *world = &submission->spec.world;
	const char *path = env_get(submission->session->env.env, "PATH");
	const char *chosen = chosen_gpus(submission);

	if (config_is_set(submission->config, "resources.gpus"))
		world->gpus = (int)config_int(submission->config, "resources.gpus", 0);
	else if (!submission->parent)
		world->gpus = default_gpus_of(submission, path);
	if (ops->takes_image_from_registry)
		return 0;
	strv_done(&world->gpus_only);
	if (chosen && world->gpus)
		split_commas(chosen, &world->gpus_only);
	return ops->asks_first ? 0 : check_gpus(world->gpus, path, err);
}

static int set_resources(struct submission *submission, struct err *err)
{
	struct resources *resources = &submission->spec.resources;
	int r = resources_from_config(submission->config, resources, err);

	if (r == 0 && !submission->target->ops->takes_image_from_registry &&
		!submission->spec.terminal)
		r = submission_check_honour(submission, err);
	if (r < 0 || resources->nodes == 1 || submission->target->ops->takes_image_from_registry)
		return r;
	if (submission->target->ops->asks_first && !submission->spec.terminal)
		return 0;
	err_set(err, E_TARGET_UNSUPPORTED, "requested %d nodes, but local is a single machine",
		resources->nodes);
	return err_hint(err, "dlrun submit -t kube -N %d …", resources->nodes);
}

static int set_attempts(struct submission *submission, struct err *err)
{
	const struct config *config = submission->config;
	struct spec *spec = &submission->spec;
	const char *text = config_str(config, "signal");

	if (!submission->parent || config_is_set(config, "retries"))
		spec->world.retries = (int)config_int(config, "retries", 0);
	if (spec->world.retries > WORLD_RETRIES_MAX) {
		err_set(err, E_USAGE, "%s must be from 0 to %d",
			config_is_option(config, "retries") ? "--retries" : "retries",
			WORLD_RETRIES_MAX);
		return config_blame(config, "retries", err);
	}
	if (str_empty(text))
		return 0;
	int r = world_parse_signal(text, &spec->world.signal, &spec->world.signal_before_ms, err);
	if (r < 0)
		return config_blame(config, "signal", err);
	if (!spec->timeout_ms) {
		submission_warn(
			submission, "signal: has no effect without a time limit (--timeout)");
	} else if (spec->world.signal_before_ms >= spec->timeout_ms) {
		err_set(err, E_USAGE,
			"signal: %s is due before the program starts: the time limit is shorter",
			text);
		return config_blame(config, "signal", err);
	}
	return 0;
}

/*
 * Ports
 */

static int add_ports(const struct strv *texts, const char *what, struct ports *ret, enum err_id id,
	struct err *err)
{
	AUTO_ERR struct err cause = {0};

	for (size_t i = 0; texts && i < texts->n; i++)
		if (ports_add(ret, texts->v[i], &cause) < 0)
			return err_set(err, id, "%s: %s", what, cause.message);
	return 0;
}

/* Options add to what the configuration names. */
static int set_ports(struct submission *submission, struct err *err)
{
	struct ports *ports = &submission->spec.ports, asked = {0};
	int r = 0;

	if (!submission->parent)
		r = add_ports(
			config_list(submission->config, "ports"), "ports", ports, E_CONFIG, err);
	if (r == 0)
		r = add_ports(submission->options->ports, "--port", &asked, E_USAGE, err);
	return r < 0 ? r : ports_merge(ports, &asked, err);
}

/*
 * All of it
 */

static int set_surroundings(struct submission *submission, struct err *err)
{
	struct world *world = &submission->spec.world;

	int r = add_data(submission, err);
	if (r == 0)
		r = add_paths(submission->config, "outputs", &world->outputs, err);
	if (r == 0)
		r = add_events(submission->config, &world->outputs, err);
	if (r == 0)
		r = set_setup(submission, err);
	set_before(submission);
	if (r == 0)
		find_editable(submission);
	return r;
}

int submission_set_world(struct submission *submission, struct err *err)
{
	int r = submission->parent ? move_data(submission, err) : set_surroundings(submission, err);

	if (r == 0)
		r = set_collect(submission, err);
	if (r == 0)
		r = check_counts(&submission->spec.world, err);
	if (r == 0)
		r = check_data(submission, err);
	if (r == 0)
		r = set_gpus(submission, err);
	if (r == 0)
		r = set_resources(submission, err);
	if (r == 0)
		r = set_ports(submission, err);
	return r < 0 ? r : set_attempts(submission, err);
}

/* Whether the snapshot has path, or something below it. */
static bool has_path(const struct entry_list *entries, const char *path)
{
	for (size_t i = 0; i < entries->n; i++)
		if (fs_below(entries->v[i].path, path))
			return true;
	return false;
}

static bool is_provided(const struct world *world, const char *path)
{
	for (size_t i = 0; i < world->data.n; i++)
		if (fs_below(path, world->data.v[i].path))
			return true;
	for (size_t i = 0; i < world->outputs.n; i++)
		if (fs_below(path, world->outputs.v[i]))
			return true;
	return false;
}

/* Paths that data or outputs provide to the program do not count as left out. */
static void drop_provided(const struct world *world, struct path_list *paths)
{
	size_t kept = 0;

	for (size_t i = 0; i < paths->left_out.n; i++)
		if (!is_provided(world, paths->left_out.v[i].path))
			paths->left_out.v[kept++] = paths->left_out.v[i];
	paths->n_left_out -= paths->left_out.n - kept;
	paths->left_out.n = kept;
}

/* Find data and outputs that will lie over files of the snapshot. */
static void find_filled(struct world *world, const struct entry_list *entries)
{
	strv_done(&world->filled);
	for (size_t i = 0; i < world->data.n; i++)
		if (has_path(entries, world->data.v[i].path))
			strv_add(&world->filled, world->data.v[i].path);
	for (size_t i = 0; i < world->outputs.n; i++)
		if (has_path(entries, world->outputs.v[i]))
			strv_add(&world->filled, world->outputs.v[i]);
}

int submission_check_world(struct submission *submission, struct err *err)
{
	struct world *world = &submission->spec.world;
	const struct entry_list *entries;

	if (!submission->snapshot)
		return 0;
	entries = &submission->snapshot->entries;
	drop_provided(world, &submission->snapshot->paths);
	find_filled(world, entries);
	for (size_t i = 0; i < world->outputs.n; i++) {
		if (!entry_find(entries, world->outputs.v[i]))
			continue;
		AUTO_FREE char *shown = str_escaped(world->outputs.v[i]);
		err_set(err, E_RUN_OUTPUTS,
			"outputs: '%s' is a file of the working tree, not a directory", shown);
		config_blame(submission->config, "outputs", err);
		return err_hint(err, "name the directory that it lies in");
	}
	for (size_t i = 0; i < world->setup.key.n; i++) {
		if (has_path(entries, world->setup.key.v[i]))
			continue;
		AUTO_FREE char *shown = str_escaped(world->setup.key.v[i]);
		err_set(err, E_RUN_SETUP, "setup.key: '%s' is not in the snapshot", shown);
		config_blame(submission->config, "setup.key", err);
		return err_hint(err, "dlrun submit --dry-run --list-files");
	}
	submission_own_paths(submission);
	return 0;
}
