/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/prepare/prepare.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "core/config/words.h"
#include "core/context/secrets.h"
#include "core/image/lock_inputs.h"
#include "host/editable.h"
#include "host/gpu.h"

/*
 * Everything around the code (runtime.h), checked before there is a run, as far as this machine can
 * know.
 */

enum { GPU_FIND_MS = 10000, NAMES_MAX = 4096 };

/*
 * Secrets
 */

static void keep_secret(struct submit *submit, const char *item)
{
	AUTO_FREE char *name = mem_strndup(item, strcspn(item, "="));

	if (strv_find(&submit->spec.secrets, name) < 0)
		strv_add(&submit->spec.secrets, name);
}

static int submit_runtime_add_secrets(struct submit *submit, const struct secrets_source *source,
	const struct strv *items, struct err *err)
{
	for (size_t i = 0; items && i < items->n; i++) {
		bool open = false;
		int r = words_check_name(items->v[i], "--secret", err);
		if (r == 0)
			r = secrets_read(source, items->v[i], &submit->secret_env, &open, err);
		if (r < 0)
			return r;
		keep_secret(submit, items->v[i]);
		if (open)
			submit_warn(submit, "%s: other users of this machine may read its file",
				submit->spec.secrets.v[submit->spec.secrets.n - 1]);
	}
	return 0;
}

/* The earlier run's names have their values from this shell again. */
static int take_again(struct submit *submit, struct err *err)
{
	AUTO_STRV struct strv missing = {0};

	int r = secrets_again(submit->session, submit->parent, &submit->spec.secrets,
		&submit->secret_env, &missing, err);
	for (size_t i = 0; r == 0 && i < missing.n; i++)
		submit_warn(submit, "%s was set for the earlier run and is not set in this shell",
			missing.v[i]);
	return r;
}

int submit_set_secrets(struct submit *submit, struct err *err)
{
	struct secrets_source shell = secrets_of_shell(submit->session);
	AUTO_FREE char *dir = NULL;
	int r;

	if (submit->parent) {
		r = take_again(submit, err);
	} else {
		struct secrets_source source = secrets_of_config(submit->session, &dir);
		r = submit_runtime_add_secrets(
			submit, &source, config_secrets(submit->config), err);
	}
	if (r == 0)
		r = submit_runtime_add_secrets(submit, &shell, submit->options->secrets, err);
	if (submit->secret_env.n > 0)
		os_protect_memory();
	return r;
}

/*
 * Data and outputs
 */

static const char *submit_runtime_root_of(struct submit *submit)
{
	const struct tree_place *place = submit->place;

	if (!place && session_place(submit->session, &place, NULL) < 0)
		return NULL;
	return place->root;
}

/* A volume of a cluster, as the target has it. */
static char *place_text(const struct json *place)
{
	AUTO_BUF struct buf text = buf_with(JSON_SIZE_MAX);

	json_print(place, &text);
	return buf_take(&text);
}

/* A place of versions (app/data/place.h) stands for the current one, which the run keeps; one
 * without any for that of the link, which is not there. */
static char *data_version(char *take)
{
	AUTO_FREE char *place = take, *ours = fs_join(place, ".dlrun");
	AUTO_FREE char *link = fs_join(ours, "current");
	char name[RUNTIME_VERSION_DIGITS + 4] = "";
	ssize_t len = readlink(link, name, sizeof(name) - 1);

	if (len == RUNTIME_VERSION_DIGITS + 2 && str_starts(name, "d-") && !strchr(name, '/'))
		return fs_join(ours, name);
	return access(ours, F_OK) == 0 ? TAKE(link) : TAKE(place);
}

/* The source of data that the target configures for path, "~/…" resolved; else path in the tree;
 * NULL: not known. */
static char *data_place(struct submit *submit, const char *path)
{
	const struct json *target = config_target(submit->config, submit->target->name);
	const struct json *data = json_get(json_get(target, "data"), path);
	const char *text = json_str(data);
	const char *home = submit->session->dirs.home, *root = submit_runtime_root_of(submit);

	if (data && !text)
		return place_text(data);
	/* Only the target can resolve "~". */
	if (!submit->target->ops->is_here)
		return text ? mem_strdup(text) : NULL;
	if (text && *text == '~' && home)
		return data_version(fs_join(home, text[1] ? text + 2 : "."));
	if (text)
		return data_version(mem_strdup(text));
	return root ? fs_join(root, path) : NULL;
}

static int fail_data(struct submit *submit, const struct runtime_data *data, struct err *err)
{
	const char *prefix = submit->place ? submit->place->prefix : ".";
	AUTO_FREE char *shown = str_escaped(data->path), *from = str_escaped(data->from);

	err_set(err, E_RUN_DATA, "data: %s does not exist: %s", shown, from);
	if (!str_eq(prefix, ".") && !str_starts(data->path, prefix))
		err_evidence(err, "paths of dlrun.yaml begin at the root of the working tree");
	return err_hint(err, "targets: {local: {kind: local, data: {%s: /srv/data}}}", shown);
}

/* Data can be checked on this machine only. */
static int check_data(struct submit *submit, struct err *err)
{
	const struct runtime *runtime = &submit->spec.runtime;
	struct stat st;

	for (size_t i = 0; i < runtime->data.n; i++)
		if (submit->target->ops->is_here && stat(runtime->data.v[i].from, &st) < 0)
			return fail_data(submit, &runtime->data.v[i], err);
	return 0;
}

int submit_runtime_fail_no_place(
	const struct config *config, const struct target *target, const char *path, struct err *err)
{
	AUTO_FREE char *shown = str_escaped(path);
	const char *name = target->name;
	/* A definition without its kind is an error where the target has none yet. */
	AUTO_FREE char *kind = config_target(config, name)
				       ? mem_strdup("")
				       : mem_printf("kind: %s, ", target->ops->kind);

	err_set(err, E_RUN_DATA, "data: target %s does not say where '%s' is", name, shown);
	return err_hint(err, "targets: {%s: {%sdata: {%s: %s}}}", name, kind, shown,
		target->ops->needs_image ? "{pvc: datasets, sub_path: sets}" : "/srv/data");
}

static int submit_runtime_find_data(
	struct submit *submit, const char *path, char **ret_from, struct err *err)
{
	*ret_from = data_place(submit, path);
	if (*ret_from)
		return 0;
	return submit_runtime_fail_no_place(submit->config, submit->target, path, err);
}

/* The earlier run's data lie elsewhere on another target. */
static int move_data(struct submit *submit, struct err *err)
{
	struct runtime *runtime = &submit->spec.runtime;
	int r = 0;

	if (!submit->parent || str_eq(run_target(submit->parent), submit->target->name))
		return 0;
	for (size_t i = 0; r == 0 && i < runtime->data.n; i++) {
		char *from = NULL;
		r = submit_runtime_find_data(submit, runtime->data.v[i].path, &from, err);
		if (r < 0)
			break;
		REPLACE(runtime->data.v[i].from, from);
		if (str_eq(from, RUNTIME_SYNC))
			continue;
		free(TAKE(runtime->data.v[i].digest));
	}
	return r;
}

static int submit_runtime_add_data(struct submit *submit, struct err *err)
{
	const struct strv *paths = config_list(submit->config, "data");
	struct runtime *runtime = &submit->spec.runtime;

	for (size_t i = 0; i < paths->n; i++) {
		AUTO_FREE char *path = NULL;
		int r = runtime_path(paths->v[i], "data", &path, err);
		if (r < 0)
			return config_blame(submit->config, "data", err);
		AUTO_FREE char *from = NULL;
		r = submit_runtime_find_data(submit, path, &from, err);
		if (r < 0)
			return r;
		*vec_push(&runtime->data) = (struct runtime_data){TAKE(path), TAKE(from), NULL};
	}
	return 0;
}

static int submit_runtime_add_paths(
	const struct config *config, const char *key, struct strv *ret, struct err *err)
{
	const struct strv *texts = config_list(config, key);

	for (size_t i = 0; i < texts->n; i++) {
		char *path;
		int r = runtime_path(texts->v[i], key, &path, err);
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
	int r = submit_runtime_add_paths(config, "tensorboard", &paths, err);

	for (size_t i = 0; r == 0 && i < paths.n; i++) {
		bool is_there = false;

		for (size_t k = 0; k < outputs->n; k++)
			is_there |= fs_below(paths.v[i], outputs->v[k]) != NULL;
		if (!is_there)
			strv_add(outputs, paths.v[i]);
	}
	return r;
}

static int check_counts(const struct runtime *runtime, struct err *err)
{
	if (runtime->data.n > RUNTIME_PATHS_MAX || runtime->outputs.n > RUNTIME_PATHS_MAX)
		return err_set(err, E_DATA_LIMIT, "data and outputs may have %d paths each",
			RUNTIME_PATHS_MAX);
	for (size_t i = 0; i < runtime->data.n; i++)
		if (strv_find(&runtime->outputs, runtime->data.v[i].path) >= 0)
			return err_set(err, E_CONFIG,
				"'%s' is in both data: and outputs:; keep it in one of them",
				runtime->data.v[i].path);
	return 0;
}

/*
 * Setup and before
 */

/* Where the file lies that has the key, in the tree. */
static char *dir_of_key(struct submit *submit, const char *key)
{
	const struct config_origin *origin = config_origin(submit->config, key);
	const char *root = submit_runtime_root_of(submit);
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

extern const char conda_sh[], conda_py[];

/* The lines that make .venv; uv that an image lacks is not a part of what they make. */
#define LOCK_UV                                                                                    \
	"command -v uv >/dev/null || { d=$(mktemp -d) && trap 'rm -rf \"$d\"' EXIT && "            \
	"python3 -m venv \"$d\" && \"$d/bin/pip\" install -q uv && PATH=$PATH:$d/bin; } && "       \
	"uv sync --frozen"
#define LOCK_PIP                                                                                   \
	"python3 -m venv --system-site-packages .venv && .venv/bin/python -m pip install -q -r %s"

static int submit_runtime_fail_lock(const struct config *config, const char *lock, struct err *err)
{
	AUTO_FREE char *shown = str_shown(lock);

	err_set(err, E_CONFIG,
		"environment.lock: '%s' is not uv.lock, a .txt, environment.yml, conda-lock.yml or "
		"pixi.lock beside dlrun.yaml",
		shown);
	config_blame(config, "environment.lock", err);
	return err_hint(err, "environment: {lock: environment.yml}");
}

/* The line that makes .venv by lock; messages show the first line of it. */
static char *submit_runtime_conda(const char *lock)
{
	AUTO_BUF struct buf line = {0};

	buf_init(&line, JSON_SIZE_MAX);
	buf_addf(&line, "lock=%s\nconda_program=", lock);
	str_shell_quote(&line, conda_py);
	buf_addf(&line, "\n%s", conda_sh);
	return buf_take(&line);
}

/* A file of the tree, seen from the directory of the setup. */
static void submit_runtime_add_key(struct runtime_setup *setup, const char *name)
{
	if (str_eq(setup->cwd, "."))
		strv_add(&setup->key, name);
	else
		strv_addf(&setup->key, "%s/%s", setup->cwd, name);
}

/* Behind the keys that the lock file brings those of setup.key, which no snapshot may lack. */
static int submit_runtime_add_named(struct submit *submit, struct err *err)
{
	struct strv *keys = &submit->spec.runtime.setup.key;
	AUTO_STRV struct strv named = {0};

	if (submit_runtime_add_paths(submit->config, "setup.key", &named, err) < 0)
		return -1;
	for (size_t i = 0; i < named.n; i++) {
		ptrdiff_t at = strv_find(keys, named.v[i]);
		if (at >= 0)
			free(strv_take_out(keys, (size_t)at));
	}
	submit->n_lock_keys = keys->n;
	for (size_t i = 0; i < named.n; i++)
		if (strv_find(keys, named.v[i]) < 0)
			strv_add(keys, named.v[i]);
	return 0;
}

static int set_lock(struct submit *submit, const char *lock, struct err *err)
{
	struct runtime_setup *setup = &submit->spec.runtime.setup;
	const char *root = submit_runtime_root_of(submit);
	bool is_uv = str_eq(lock, "uv.lock");
	bool is_conda = str_is_word_of(
		lock, "environment.yml environment.yaml conda-lock.yml conda-lock.yaml pixi.lock");
	struct lock_inputs *inputs = &submit->lock_inputs;

	if (strchr(lock, '/') || (!is_uv && !is_conda && !str_ends(lock, ".txt")))
		return submit_runtime_fail_lock(submit->config, lock, err);
	setup->cwd = dir_of_key(submit, "environment.lock");
	submit_runtime_add_key(setup, lock);
	if (root)
		lock_inputs_find(root, setup->cwd, lock, inputs);
	for (size_t i = 0; i < inputs->paths.n; i++)
		strv_add(&setup->key, inputs->paths.v[i]);
	if (inputs->copied) {
		AUTO_FREE char *shown = str_escaped(inputs->copied);
		submit_warn(submit,
			"%s installs a copy of the project: where it is imported instead of the "
			"tree, later runs have old code; write '-e .' there",
			shown);
	}
	if (is_conda) {
		setup->run = submit_runtime_conda(lock);
		return submit_runtime_add_named(submit, err);
	}
	AUTO_FREE char *dir = root ? fs_join(root, setup->cwd) : NULL;
	AUTO_FREE char *version = dir ? fs_join(dir, ".python-version") : NULL;
	if (version && access(version, F_OK) == 0) {
		submit_runtime_add_key(setup, ".python-version");
		strv_add(&inputs->optional, setup->key.v[setup->key.n - 1]);
	}
	AUTO_BUF struct buf quoted = buf_with(JSON_SIZE_MAX);
	str_shell_quote(&quoted, lock);
	setup->run = is_uv ? mem_strdup(LOCK_UV) : mem_printf(LOCK_PIP, quoted.data);
	return submit_runtime_add_named(submit, err);
}

static int set_setup(struct submit *submit, struct err *err)
{
	const struct config *config = submit->config;
	struct runtime_setup *setup = &submit->spec.runtime.setup;
	const char *run = config_str(config, "setup.run");
	const char *lock = config_str(config, "environment.lock");

	if (!str_empty(lock) && !str_empty(run)) {
		err_set(err, E_CONFIG, "setup.run and environment.lock cannot be used together");
		return config_blame(config, "environment.lock", err);
	}
	if (!str_empty(lock))
		return set_lock(submit, lock, err);
	if (str_empty(run)) {
		if (!config_is_set(config, "setup.key"))
			return 0;
		err_set(err, E_CONFIG, "setup.key is set without setup.run or environment.lock");
		err_hint(err, "setup: {run: uv sync --frozen, key: [uv.lock]}");
		return config_blame(config, "setup.key", err);
	}
	setup->run = mem_strdup(run);
	setup->cwd = dir_of_key(submit, "setup.run");
	return submit_runtime_add_paths(config, "setup.key", &setup->key, err);
}

/* A slash at the end says what a pattern means anyway, and a path begins at the tree's root. */
static int submit_runtime_add_pattern(const char *text, struct strv *ret, struct err *err)
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
static int set_collect(struct submit *submit, struct err *err)
{
	const struct config *config = submit->config;
	const struct json *target = config_target(config, submit->target->name);
	struct runtime *runtime = &submit->spec.runtime;
	const struct strv *exclude = config_list(config, "collect.exclude");
	const char *linger = json_get_str(target, "linger");
	int r = 0;

	runtime->linger_ms = config_duration(config, "linger", RUNTIME_LINGER_MS);
	if (linger)
		duration_parse(linger, &runtime->linger_ms, NULL);
	if (submit->parent)
		return 0;
	if (exclude->n > RUNTIME_PATHS_MAX)
		return err_set(err, E_DATA_LIMIT, "collect.exclude may have %d patterns",
			RUNTIME_PATHS_MAX);
	runtime->collect.mode =
		str_eq(config_str(config, "collect"), "none") ? COLLECT_NONE : COLLECT_AUTO;
	runtime->collect.size_bytes = config_size(config, "collect.size");
	for (size_t i = 0; i < exclude->n && r == 0; i++)
		r = submit_runtime_add_pattern(exclude->v[i], &runtime->collect.exclude, err);
	return r < 0 ? config_blame(config, "collect.exclude", err) : 0;
}

static void set_before(struct submit *submit)
{
	const struct json *target = config_target(submit->config, submit->target->name);
	const char *before = json_get_str(target, "before");

	if (!before)
		before = config_str(submit->config, "before");
	submit->spec.runtime.before = str_empty(before) ? NULL : mem_strdup(before);
}

/*
 * Editable installs
 */

/* On this machine only: what another one has installed is not known here. */
static void find_editable(struct submit *submit)
{
	const struct tree_place *place = submit->place;
	struct spec *spec = &submit->spec;
	AUTO_EDITABLE struct editable editable = {0};
	AUTO_STRV struct strv env = {0};

	if (!place || !submit->target->ops->is_here)
		return;
	for (const char *const *e = submit->session->env.env; e && *e; e++)
		strv_add(&env, *e);
	for (size_t i = 0; i < spec->env.n; i++)
		env_set(&env, spec->env.v[i], false);
	AUTO_FREE char *cwd = fs_join(place->root, place->prefix);
	editable_find(&(struct editable_query){.command = &spec->command,
			      .before = spec->runtime.before,
			      .env = (const char *const *)env.v,
			      .cwd = cwd,
			      .root = place->root},
		&editable);
	strv_copy(&spec->runtime.python_paths, &editable.paths);
	strv_copy(&spec->runtime.python_aliases, &editable.aliases);
	if (editable.sentence)
		strv_add(&submit->notices, editable.sentence);
	for (size_t i = 0; i < editable.warnings.n; i++)
		submit_warn(submit, "%s", editable.warnings.v[i]);
}

/*
 * Settings that a machine does not support are never dropped silently: on the command line they are
 * an error that names the fix; in a configuration file, which serves other targets, too, they are
 * reported.
 */

static bool submit_runtime_is_local(const struct submit *submit)
{
	return submit->target->ops->is_here;
}

static const char *runtime_of(const struct submit *submit)
{
	const struct json *target = config_target(submit->config, submit->target->name);
	const char *runtime = json_get_str(target, "runtime");

	return str_eq(runtime, "host") ? NULL : runtime;
}

/*
 * Settings that only clusters support
 */

static int refuse_key(struct submit *submit, const char *key, const char *what, struct err *err)
{
	const char *name = submit->target->name, *value = config_str(submit->config, key);
	AUTO_FREE char *shown = value ? str_shown(value) : NULL;

	if (!config_is_set(submit->config, key))
		return 0;
	/* Of several places it is for those that have it. */
	if (submit->place_name || !config_is_option(submit->config, key)) {
		submit_note(submit, "%s: target %s has no %s, so it does not count here", key, name,
			what);
		return 0;
	}
	const char *dot = strrchr(key, '.');
	AUTO_FREE char *option = mem_strdup(dot ? dot + 1 : key);
	for (char *c = option; *c; c++)
		*c = *c == '_' ? '-' : *c;
	err_set(err, E_TARGET_UNSUPPORTED, "--%s %s: target %s has no %s", option,
		shown ? shown : "", name, what);
	return err_hint(err, "dlrun submit -t kube …");
}

/* Programs of a machine run on it. */
static int check_image(struct submit *submit, struct err *err)
{
	const char *name = submit->target->name, *image = config_str(submit->config, "image");

	if (str_empty(image) || str_eq(image, "scratch") || runtime_of(submit) ||
		submit->place_name || !config_is_option(submit->config, "image"))
		return 0;
	AUTO_FREE char *shown = str_shown(image);
	err_set(err, E_TARGET_UNSUPPORTED,
		"--image %s: target %s runs programs on the machine itself, without an image",
		shown, name);
	if (submit_runtime_is_local(submit))
		return err_hint(err, "dlrun submit -t kube …");
	return err_hint(err, "runtime: podman   # of the target: programs run in the image there");
}

/*
 * Processors and memory
 */

static int submit_runtime_too_much(struct submit *submit, const char *key, const char *wanted,
	const char *has, const char *unit, struct err *err)
{
	const char *dot = strrchr(key, '.');

	if (!config_is_option(submit->config, key)) {
		submit_warn(submit, "%s: %s: this machine has %s%s", key, wanted, has, unit);
		return 0;
	}
	err_set(err, E_TARGET_UNSUPPORTED, "--%s %s: this machine has %s%s", dot + 1, wanted, has,
		unit);
	return err_hint(err, "dlrun submit --%s %s …", dot + 1, has);
}

static int submit_runtime_check_size(struct submit *submit, struct err *err)
{
	const struct resources *wanted = &submit->spec.resources;
	long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
	uint64_t memory = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
	unsigned cpus = os_processors();
	int r = 0;

	if (wanted->cpus_milli > (int64_t)cpus * 1000) {
		AUTO_FREE char *has = mem_printf("%u", cpus);
		AUTO_FREE char *requested = mem_printf("%g", (double)wanted->cpus_milli / 1000);
		r = submit_runtime_too_much(submit, "resources.cpus", requested, has,
			cpus == 1 ? " CPU" : " CPUs", err);
	}
	if (r == 0 && memory && wanted->memory_bytes > memory) {
		char requested[16], has[32];
		snprintf(has, sizeof(has), "%lluMi", (unsigned long long)(memory >> 20));
		r = submit_runtime_too_much(submit, "resources.memory",
			str_size(wanted->memory_bytes, requested), has, " of memory", err);
	}
	return r;
}

/*
 * The model of a GPU
 */

static void add_models(const struct gpu_list *list, struct buf *out)
{
	for (size_t i = 0; i < list->n; i++)
		if (i == 0 || !str_eq(list->v[i].model, list->v[i - 1].model))
			buf_addf(out, "%s%s", i ? ", " : "", list->v[i].model);
}

static int fail_type(
	const char *type, int wanted, size_t n, const struct gpu_list *list, struct err *err)
{
	AUTO_FREE char *shown = str_shown(type);
	AUTO_BUF struct buf models = buf_with(NAMES_MAX);

	add_models(list, &models);
	if (n > 0) {
		err_set(err, E_GPU_COUNT, "requested %d %s GPUs, this machine has %zu", wanted,
			shown, n);
		return err_hint(err, "dlrun submit -g %zu --gpu-type %s …", n, shown);
	}
	err_set(err, E_GPU_COUNT, "--gpu-type %s: this machine has %s", shown,
		list->n ? models.data : "no GPU");
	return err_hint(err, "dlrun targets");
}

/* "0" or the beginning of an id, as CUDA_VISIBLE_DEVICES has it. */
static bool is_chosen(const struct strv *only, const struct gpu *gpu)
{
	for (size_t i = 0; i < only->n; i++) {
		AUTO_FREE char *index = mem_printf("%u", gpu->index);
		if (str_eq(only->v[i], index) || str_starts(gpu->id, only->v[i]))
			return true;
	}
	return only->n == 0;
}

/* Only those of that model are taken. */
static int choose_model(struct submit *submit, const char *type, struct err *err)
{
	struct runtime *runtime = &submit->spec.runtime;
	const char *path = env_get(submit->session->env.env, "PATH");
	AUTO_STRV struct strv ids = {0};
	struct gpu_list list = {0};
	int r = gpu_may_exist(path) ? gpu_find(path, GPU_FIND_MS, &list, err) : 0;

	if (r < 0)
		return r;
	for (size_t i = 0; i < list.n; i++)
		if (gpu_model_matches(list.v[i].model, type) &&
			is_chosen(&runtime->gpus_only, &list.v[i]))
			strv_add(&ids, list.v[i].id);
	int wanted = submit->spec.roles.list.n ? roles_gpus(&submit->spec) : runtime->gpus;
	if (ids.n < (size_t)wanted)
		return fail_type(type, wanted, ids.n, &list, err);
	strv_copy(&runtime->gpus_only, &ids);
	return 0;
}

static int check_model(struct submit *submit, struct err *err)
{
	const char *type = submit->spec.resources.gpu_type;
	struct runtime *runtime = &submit->spec.runtime;

	if (!type)
		return 0;
	if (runtime->gpus == 0 && config_is_set(submit->config, "resources.gpus")) {
		err_set(err, E_USAGE, "--gpu-type %s cannot be used together with -g 0", type);
		return err_hint(err, "dlrun submit -g 1 …");
	}
	/* Each role says for itself how many. */
	if (runtime->gpus <= 0 && !submit->spec.roles.list.n)
		runtime->gpus = 1;
	return submit_runtime_is_local(submit) ? choose_model(submit, type, err) : 0;
}

static int submit_check_honour(struct submit *submit, struct err *err)
{
	int r = refuse_key(submit, "queue", "queues", err);

	if (r == 0)
		r = refuse_key(submit, "priority", "priorities", err);
	if (r == 0)
		r = refuse_key(submit, "resources.region", "choice of a region", err);
	if (r == 0)
		r = refuse_key(submit, "resources.instance_type", "choice of instance types", err);
	if (r == 0)
		r = refuse_key(submit, "resources.same", "zones", err);
	if (r == 0)
		r = refuse_key(submit, "resources.spot", "choice of spot nodes", err);
	if (r == 0 && !runtime_of(submit))
		r = refuse_key(submit, "resources.shm", "limit on shared memory", err);
	if (r == 0 && submit_runtime_is_local(submit))
		r = refuse_key(submit, "resources.disk", "limit on disk space", err);
	if (r == 0)
		r = check_image(submit, err);
	if (r == 0)
		r = check_model(submit, err);
	if (r == 0 && submit_runtime_is_local(submit))
		r = submit_runtime_check_size(submit, err);
	return r;
}

/*
 * GPUs and attempts
 */

/* The user's own choice of GPUs, of the run or of this shell; NULL: there is none. */
static const char *chosen_gpus(const struct submit *submit)
{
	static const char *const names[] = {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"};
	const struct strv *env = &submit->spec.env;

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		const char *value = env->n ? env_get((const char *const *)env->v, names[i]) : NULL;
		/* This shell's are those of this machine. */
		if (!value && submit->target->ops->is_here)
			value = env_get(submit->session->env.env, names[i]);
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
static int default_gpus(const struct submit *submit, const char *path)
{
	const char *chosen = chosen_gpus(submit);

	if (submit->session->env.inside_run || (chosen && !*chosen))
		return 0;
	return gpu_may_exist(path) ? RUNTIME_GPUS_AUTO : 0;
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
static int submit_runtime_check_gpus(int wanted, const char *path, struct err *err)
{
	struct gpu_list list = {0};

	if (wanted <= 0)
		return 0;
	if (!gpu_may_exist(path))
		return too_many_gpus(wanted, 0, err);
	if (wanted == 1)
		return 0;
	int r = gpu_find(path, GPU_FIND_MS, &list, err);
	if (r < 0)
		return r;
	return (size_t)wanted > list.n ? too_many_gpus(wanted, list.n, err) : 0;
}

/*
 * GPUs in a cluster where none are named: as many as the newest run of the same program in a
 * cluster was given by name. The same program: the same name of the run, the same tree, directory
 * and words of the command up to the first option, with the module behind -m.
 */

enum { PAST_RUNS_MAX = 20 };

/* How many of the words name the program. */
static size_t command_head(const struct strv *words)
{
	size_t n = 0;

	while (n < words->n && (n == 0 || words->v[n][0] != '-'))
		n++;
	return n + 1 < words->n && str_eq(words->v[n], "-m") ? n + 2 : n;
}

static bool is_same_program(const struct submit *submit, const struct run *run)
{
	const struct json *origin = json_get(run->doc, "origin");
	const struct strv *words = &submit->spec.command;
	AUTO_FREE char *root = words_get_one(origin, "root"), *cwd = words_get_one(origin, "cwd");
	AUTO_STRV struct strv past = {0};
	size_t n = command_head(words);

	if (!submit->place || !str_eq(root, submit->place->root) ||
		!str_eq(cwd, submit->spec.cwd) ||
		words_get(run->spec, "command", &past, NULL) < 0 || command_head(&past) != n)
		return false;
	for (size_t i = 0; i < n; i++)
		if (!str_eq(past.v[i], words->v[i]))
			return false;
	return true;
}

static int past_gpus(struct submit *submit)
{
	const struct store_filter filter = {.name = submit->name, .limit = PAST_RUNS_MAX};
	AUTO_FREE char *path = mem_printf("%s/runs.db", submit->session->dirs.state);
	AUTO(run_list_done) struct run_list runs = {0};
	struct store *store;

	if (submit->spec.shell || submit->spec.terminal || access(path, F_OK) < 0 ||
		session_store(submit->session, &store, NULL) < 0 ||
		store_list(store, &filter, &runs, NULL) < 0)
		return 0;
	vec_foreach (struct run *, run, &runs) {
		const struct json *had = json_get((*run)->doc, "resources");
		int64_t n = json_get_int(had, "gpus", 0);
		if (!json_get_bool(had, "gpus_named", false) || !is_same_program(submit, *run))
			continue;
		if (n > 0)
			submit_note(submit, "%lld GPU%s, as for %s (-g 0: none)", (long long)n,
				n == 1 ? "" : "s", run_id(*run));
		return (int)n;
	}
	return 0;
}

static int default_gpus_of(struct submit *submit, const char *path)
{
	const char *chosen = chosen_gpus(submit);

	if (submit->target->ops->has_scheduler)
		return submit->is_held ? 0 : past_gpus(submit);
	/* The node knows what it has. */
	if (!submit->target->ops->is_here)
		return chosen && !*chosen ? 0 : RUNTIME_GPUS_AUTO;
	return default_gpus(submit, path);
}

static void submit_runtime_set_gpus(struct submit *submit)
{
	const struct target_ops *ops = submit->target->ops;
	struct runtime *runtime = &submit->spec.runtime;
	const char *path = env_get(submit->session->env.env, "PATH");
	const char *chosen = chosen_gpus(submit);

	if (config_is_set(submit->config, "resources.gpus"))
		runtime->gpus = (int)config_int(submit->config, "resources.gpus", 0);
	else if (submit->spec.roles.list.n && !submit->parent)
		runtime->gpus = 0; /* of roles that name none */
	else if (!submit->parent)
		runtime->gpus = default_gpus_of(submit, path);
	if (ops->has_scheduler)
		return;
	strv_done(&runtime->gpus_only);
	if (chosen && roles_gpus(&submit->spec))
		split_commas(chosen, &runtime->gpus_only);
}

/* This machine plays all nodes: what each of them wants must be here so often. */
static int submit_runtime_check_nodes(struct submit *submit, struct err *err)
{
	const char *path = env_get(submit->session->env.env, "PATH");
	int nodes = submit->spec.resources.nodes;

	if (nodes > ATTEMPT_RANKS_MAX) {
		err_set(err, E_TARGET_UNSUPPORTED,
			"requested %d nodes, and this machine plays %d at most", nodes,
			ATTEMPT_RANKS_MAX);
		if (submit->spec.roles.list.n)
			return err_hint(err, "dlrun submit -t kube …");
		return err_hint(err, "dlrun submit -t kube -N %d …", nodes);
	}
	return submit_runtime_check_gpus(roles_gpus(&submit->spec), path, err);
}

static int submit_runtime_set_resources(struct submit *submit, struct err *err)
{
	struct resources *resources = &submit->spec.resources;
	int r = resources_from_config(submit->config, resources, err);

	const struct target_ops *ops = submit->target->ops;
	if (r == 0)
		r = submit_check_roles(submit, err);
	if (r == 0 && !ops->has_scheduler && !submit->spec.terminal)
		r = submit_check_honour(submit, err);
	if (r < 0)
		return r;
	if (ops->is_here)
		r = submit_runtime_check_nodes(submit, err);
	if (r < 0 || resources->nodes == 1 || ops->has_scheduler || !submit->spec.terminal)
		return r;
	err_set(err, E_TARGET_UNSUPPORTED, "requested %d nodes for one terminal", resources->nodes);
	return err_hint(err, "dlrun submit -N %d …", resources->nodes);
}

static int set_attempts(struct submit *submit, struct err *err)
{
	const struct config *config = submit->config;
	struct spec *spec = &submit->spec;
	const char *text = config_str(config, "signal");
	int r = 0;

	if (!submit->parent || config_is_set(config, "retries"))
		spec->runtime.retries = (int)config_int(config, "retries", 0);
	if (spec->runtime.retries > RUNTIME_RETRIES_MAX) {
		err_set(err, E_USAGE, "%s must be from 0 to %d",
			config_is_option(config, "retries") ? "--retries" : "retries",
			RUNTIME_RETRIES_MAX);
		return config_blame(config, "retries", err);
	}
	if (!submit->parent || config_is_set(config, "stop_signal"))
		r = runtime_parse_stop_signal(
			config_str(config, "stop_signal"), &spec->runtime.stop_signal, err);
	if (r < 0)
		return config_blame(config, "stop_signal", err);
	if (str_empty(text))
		return 0;
	r = runtime_parse_signal(text, &spec->runtime.signal, &spec->runtime.signal_before_ms, err);
	if (r < 0)
		return config_blame(config, "signal", err);
	if (!spec->timeout_ms) {
		submit_warn(submit, "signal: has no effect without a time limit (--timeout)");
	} else if (spec->runtime.signal_before_ms >= spec->timeout_ms) {
		err_set(err, E_USAGE,
			"signal: %s is due before the program starts: the time limit is shorter",
			text);
		return config_blame(config, "signal", err);
	}
	return 0;
}

static int submit_set_launcher(struct submit *submit, struct err *err)
{
	const struct config *config = submit->config;
	struct spec *spec = &submit->spec;
	struct launcher *launcher = &spec->runtime.launcher;
	int r = 0;

	if (spec->terminal) {
		*launcher = (struct launcher){0};
		return 0;
	}
	if (!submit->parent || config_is_set(config, "launcher"))
		r = launcher_parse(config_str(config, "launcher"), launcher, err);
	for (size_t i = 0; r == 0 && i < roles_count(spec); i++) {
		struct roles_part part;
		roles_nth(spec, i, &part);
		r = launcher_check(launcher, part.command, part.shell, part.nodes, err);
	}
	return r < 0 ? config_blame(config, "launcher", err) : 0;
}

/*
 * Ports
 */

static int submit_runtime_add_ports(const struct strv *texts, const char *what, struct ports *ret,
	enum err_id id, struct err *err)
{
	AUTO_ERR struct err cause = {0};

	for (size_t i = 0; texts && i < texts->n; i++)
		if (ports_add(ret, texts->v[i], &cause) < 0)
			return err_set(err, id, "%s: %s", what, cause.message);
	return 0;
}

/* Options add to what the configuration names. */
static int submit_runtime_set_ports(struct submit *submit, struct err *err)
{
	struct ports *ports = &submit->spec.ports, requested = {0};
	int r = 0;

	if (!submit->parent)
		r = submit_runtime_add_ports(
			config_list(submit->config, "ports"), "ports", ports, E_CONFIG, err);
	if (r == 0)
		r = submit_runtime_add_ports(
			submit->options->ports, "--port", &requested, E_USAGE, err);
	return r < 0 ? r : ports_merge(ports, &requested, err);
}

/*
 * All of it
 */

static int set_surroundings(struct submit *submit, struct err *err)
{
	struct runtime *runtime = &submit->spec.runtime;

	int r = submit_runtime_add_data(submit, err);
	if (r == 0)
		r = submit_runtime_add_paths(submit->config, "outputs", &runtime->outputs, err);
	if (r == 0)
		r = add_events(submit->config, &runtime->outputs, err);
	if (r == 0)
		r = set_setup(submit, err);
	set_before(submit);
	if (r == 0)
		find_editable(submit);
	return r;
}

int submit_set_runtime(struct submit *submit, struct err *err)
{
	int r = submit->parent ? move_data(submit, err) : set_surroundings(submit, err);

	if (r == 0)
		r = set_collect(submit, err);
	if (r == 0)
		r = check_counts(&submit->spec.runtime, err);
	if (r == 0)
		r = check_data(submit, err);
	submit_runtime_set_gpus(submit);
	if (r == 0)
		r = submit_runtime_set_resources(submit, err);
	if (r == 0)
		r = submit_runtime_set_ports(submit, err);
	if (r == 0)
		r = set_attempts(submit, err);
	return r < 0 ? r : submit_set_launcher(submit, err);
}

int submit_move_runtime(struct submit *submit, struct err *err)
{
	const struct json *held = json_get(submit->run->doc, "held");
	const struct target_ops *ops = submit->target->ops;
	struct runtime *runtime = &submit->spec.runtime;
	const char *path = env_get(submit->session->env.env, "PATH");

	/* None on a cluster is one, if it has any, elsewhere: unless none was requested. */
	if (runtime->gpus == 0 && !submit->spec.roles.list.n &&
		!json_get_bool(held, "no_gpus", false))
		runtime->gpus = default_gpus_of(submit, path);
	submit->parent = submit->run;
	int r = move_data(submit, err);
	submit->parent = NULL;
	if (r == 0)
		r = check_data(submit, err);
	if (r == 0 && ops->is_here)
		r = submit_runtime_check_gpus(roles_gpus(&submit->spec), path, err);
	if (r == 0 && !ops->has_scheduler && !submit->spec.terminal)
		r = submit_check_honour(submit, err);
	return r;
}

/* Whether the snapshot has path, or something below it. */
static bool submit_runtime_has_path(const struct entry_list *entries, const char *path)
{
	for (size_t i = 0; i < entries->n; i++)
		if (fs_below(entries->v[i].path, path))
			return true;
	return false;
}

static bool is_provided(const struct runtime *runtime, const char *path)
{
	for (size_t i = 0; i < runtime->data.n; i++)
		if (fs_below(path, runtime->data.v[i].path))
			return true;
	for (size_t i = 0; i < runtime->outputs.n; i++)
		if (fs_below(path, runtime->outputs.v[i]))
			return true;
	return false;
}

/* Paths that data or outputs provide to the program do not count as left out. */
static void drop_provided(const struct runtime *runtime, struct path_list *paths)
{
	size_t kept = 0;

	for (size_t i = 0; i < paths->excluded.n; i++)
		if (!is_provided(runtime, paths->excluded.v[i].path))
			paths->excluded.v[kept++] = paths->excluded.v[i];
	paths->n_excluded -= paths->excluded.n - kept;
	paths->excluded.n = kept;
}

/* Find data and outputs that will lie over files of the snapshot. */
static void find_filled(struct runtime *runtime, const struct entry_list *entries)
{
	strv_done(&runtime->filled);
	for (size_t i = 0; i < runtime->data.n; i++)
		if (submit_runtime_has_path(entries, runtime->data.v[i].path))
			strv_add(&runtime->filled, runtime->data.v[i].path);
	for (size_t i = 0; i < runtime->outputs.n; i++)
		if (submit_runtime_has_path(entries, runtime->outputs.v[i]))
			strv_add(&runtime->filled, runtime->outputs.v[i]);
}

/* Whether a key that lock_inputs_find has added may be left out of the snapshot. */
static bool submit_runtime_may_lack(const struct submit *submit, const char *path)
{
	const struct lock_inputs *inputs = &submit->lock_inputs;

	return strv_find(&inputs->optional, path) >= 0 ||
	       (strv_find(&inputs->paths, path) >= 0 && is_provided(&submit->spec.runtime, path));
}

int submit_check_runtime(struct submit *submit, struct err *err)
{
	struct runtime *runtime = &submit->spec.runtime;
	const struct entry_list *entries;

	if (!submit->snapshot)
		return 0;
	entries = &submit->snapshot->entries;
	drop_provided(runtime, &submit->snapshot->paths);
	find_filled(runtime, entries);
	for (size_t i = 0; i < runtime->outputs.n; i++) {
		if (!entry_find(entries, runtime->outputs.v[i]))
			continue;
		AUTO_FREE char *shown = str_escaped(runtime->outputs.v[i]);
		err_set(err, E_RUN_OUTPUTS,
			"outputs: '%s' is a file of the working tree, not a directory", shown);
		config_blame(submit->config, "outputs", err);
		return err_hint(err, "name the directory that it lies in");
	}
	for (size_t i = 0; i < runtime->setup.key.n; i++) {
		const char *path = runtime->setup.key.v[i];
		bool is_named = i >= submit->n_lock_keys;
		const char *key = is_named ? "setup.key" : "environment.lock";
		if (submit_runtime_has_path(entries, path))
			continue;
		if (!is_named && submit_runtime_may_lack(submit, path)) {
			free(strv_take_out(&runtime->setup.key, i--));
			submit->n_lock_keys--;
			continue;
		}
		AUTO_FREE char *shown = str_escaped(path);
		err_set(err, E_RUN_SETUP, "%s: '%s' is not in the snapshot", key, shown);
		config_blame(submit->config, key, err);
		return err_hint(err, "dlrun submit --dry-run --list-files");
	}
	submit_own_paths(submit);
	return 0;
}
