/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "app/prepare/submission.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/words.h"
#include "core/image/base_program.h"
#include "targets/targets.h"

/*
 * The submission, assembled from options, configuration and the earlier run; an invalid one is
 * refused before anything is done.
 */

void submission_done(struct submission *submission)
{
	if (!submission)
		return;
	run_free(submission->parent);
	free(submission->from_digest);
	free(submission->from_ref);
	code_done(&submission->from);
	json_free(submission->from_config);
	entry_list_done(&submission->from_entries);
	free(submission->live_root);
	spec_done(&submission->spec);
	strv_done(&submission->secret_env);
	strv_done(&submission->typed_env);
	target_free(submission->target);
	pack_done(&submission->pack);
	snapshot_free(submission->snapshot);
	json_free(submission->image_facts);
	strv_done(&submission->warnings);
	strv_done(&submission->notices);
	*submission = (struct submission){0};
}

void submission_warn(struct submission *submission, const char *fmt, ...)
{
	const struct submit_events *events = submission->events;
	va_list args;

	va_start(args, fmt);
	AUTO_FREE char *text = mem_vprintf(fmt, args);
	va_end(args);
	strv_add(&submission->warnings, text);
	if (events && events->warning)
		events->warning(events->ctx, text);
}

void submission_note(struct submission *submission, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	strv_add_take(&submission->notices, mem_vprintf(fmt, args));
	va_end(args);
}

/*
 * The command
 */

static int append_words(struct submission *submission, const struct strv *words, struct err *err)
{
	struct spec *spec = &submission->spec;

	if (spec->command.n == 0) {
		AUTO_FREE char *shown = str_escaped(words->v[0]);
		err_set(err, E_RUN_COMMAND, "%s is an argument without a command", shown);
		return err_hint(err, "dlrun submit -- python3 train.py %s", shown);
	}
	if (spec->shell)
		return err_set(err, E_USAGE,
			"arguments cannot be appended to a command that is a shell line");
	for (size_t i = 0; i < words->n; i++)
		strv_add(&spec->command, words->v[i]);
	return 0;
}

/* Words that begin with an option are for the command that is set already. */
static int set_command(struct submission *submission, struct err *err)
{
	const struct strv *words = submission->options->command;
	struct spec *spec = &submission->spec;
	bool has_words = words && words->n > 0, shell;

	if (!submission->parent && (!has_words || words->v[0][0] == '-')) {
		strv_copy(&spec->command, config_command(submission->config, &shell));
		spec->shell = shell;
	}
	if (has_words && words->v[0][0] == '-')
		return append_words(submission, words, err);
	if (has_words) {
		strv_copy(&spec->command, words);
		spec->shell = false;
	}
	spec->terminal = submission->options->terminal;
	if (spec->command.n > 0 && *spec->command.v[0])
		return 0;
	err_set(err, E_RUN_COMMAND, "there is nothing to run");
	return err_hint(err, "dlrun submit -- python3 train.py");
}

/*
 * The environment
 */

static void keep_pair(struct submission *submission, const char *pair)
{
	AUTO_FREE char *name = mem_strndup(pair, strcspn(pair, "="));
	struct spec *spec = &submission->spec;

	if (!config_name_is_secret(name)) {
		env_set(&spec->env, pair, false);
		return;
	}
	env_set(&submission->secret_env, pair, false);
	if (strv_find(&spec->secrets, name) >= 0)
		return;
	strv_add(&spec->secrets, name);
	submission_warn(submission, "%s looks like a secret: its value is not written down", name);
}

/* required: a name that is not set in this shell is an error. */
static int add_pairs(
	struct submission *submission, const struct strv *pairs, bool required, struct err *err)
{
	for (size_t i = 0; pairs && i < pairs->n; i++) {
		const char *pair = pairs->v[i];
		size_t len = strcspn(pair, "=");
		const char *value = env_get(submission->session->env.env, pair);

		int r = words_check_name(pair, "--env", err);
		if (r < 0)
			return r;
		if (pair[len] == '=') {
			keep_pair(submission, pair);
		} else if (value) {
			AUTO_FREE char *whole = mem_printf("%s=%s", pair, value);
			keep_pair(submission, whole);
		} else if (required) {
			err_set(err, E_USAGE, "--env %s: the variable is not set in this shell",
				pair);
			return err_hint(
				err, "export %s=1   # or give the value: --env %s=1", pair, pair);
		} else {
			submission_warn(submission, "env: %s is not set in this shell", pair);
		}
	}
	return 0;
}

static int set_env(struct submission *submission, struct err *err)
{
	int r = 0;

	if (!submission->parent)
		r = add_pairs(submission, config_env(submission->config), false, err);
	if (r == 0)
		r = add_pairs(submission, submission->options->env, true, err);
	return r < 0 ? r : add_pairs(submission, &submission->typed_env, true, err);
}

static int check_tags(const struct strv *tags, struct err *err)
{
	for (size_t i = 0; tags && i < tags->n; i++)
		if (!tags->v[i][0] || tags->v[i][0] == '=') {
			err_set(err, E_USAGE, "--tag must have a name");
			return err_hint(err, "--tag baseline");
		}
	return 0;
}

/*
 * The name
 */

/* "train" of exp/train.py; NULL if the word names no script. */
static char *script_name(const char *word)
{
	static const char *const endings[] = {
		".py", ".sh", ".ipynb", ".jl", ".R", ".r", ".js", ".lua", ".pl", ".rb", ".m"};
	const char *base = fs_basename(word);

	for (size_t i = 0; i < sizeof(endings) / sizeof(*endings); i++)
		if (str_ends(base, endings[i]) && strlen(base) > strlen(endings[i]))
			return mem_strndup(base, strlen(base) - strlen(endings[i]));
	return NULL;
}

/* "train" of -m pkg.train */
static char *module_name(const struct strv *words)
{
	for (size_t i = 1; i + 1 < words->n; i++) {
		const char *dot;
		if (!str_eq(words->v[i], "-m"))
			continue;
		dot = strrchr(words->v[i + 1], '.');
		return mem_strdup(dot ? dot + 1 : words->v[i + 1]);
	}
	return NULL;
}

static bool is_interpreter(const char *word)
{
	static const char *const names[] = {
		"bash", "env", "julia", "node", "perl", "python", "ruby", "sh", "uv", "Rscript"};
	const char *base = fs_basename(word);
	size_t len = strcspn(base, "0123456789.");

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		if (strlen(names[i]) == len && strncmp(base, names[i], len) == 0)
			return true;
	return false;
}

/* The words of a line for the shell, as far as blanks tell. */
static void split_line(const char *line, struct strv *ret)
{
	static const char blanks[] = " \t\n;&|()";

	for (const char *s = line + strspn(line, blanks); *s; s += strspn(s, blanks)) {
		size_t len = strcspn(s, blanks);
		strv_add_take(ret, mem_strndup(s, len));
		s += len;
	}
}

static char *program_name(const struct spec *spec)
{
	AUTO_STRV struct strv words = {0};
	char *name = NULL;

	if (spec->shell)
		split_line(spec->command.v[0], &words);
	else
		strv_copy(&words, &spec->command);
	for (size_t i = 0; !name && i < words.n; i++)
		name = script_name(words.v[i]);
	if (!name)
		name = module_name(&words);
	if (!name && words.n > 0 && !is_interpreter(words.v[0]))
		name = mem_strdup(fs_basename(words.v[0]));
	return name;
}

/* Of what nobody chose: the first that gives a name at all. */
static int derive_name(struct submission *submission)
{
	const struct tree_place *place = submission->place;
	AUTO_FREE char *program = program_name(&submission->spec);
	const char *const candidates[] = {
		submission->parent ? run_name(submission->parent) : NULL,
		program,
		place && !str_eq(place->prefix, ".") ? fs_basename(place->prefix) : NULL,
		place ? fs_basename(place->root) : NULL,
		"run",
	};
	bool mapped;

	for (size_t i = 0; i < sizeof(candidates) / sizeof(*candidates); i++)
		if (!str_empty(candidates[i]) &&
			run_name_map(candidates[i], submission->name, &mapped, NULL) == 0)
			return 0;
	return 0;
}

static int set_name(struct submission *submission, struct err *err)
{
	const char *wanted = submission->options->name;
	bool mapped;

	if (!wanted)
		wanted = config_str(submission->config, "name");
	if (str_empty(wanted))
		return derive_name(submission);
	int r = run_name_map(wanted, submission->name, &mapped, err);
	if (r == 0 && mapped)
		submission_warn(submission, "the run is called %s: names are of a-z, 0-9 and -",
			submission->name);
	return r;
}

/*
 * All of it
 */

static void set_limits(struct submission *submission)
{
	struct spec *spec = &submission->spec;
	const struct config *config = submission->config;

	if (!submission->parent || config_is_set(config, "timeout"))
		spec->timeout_ms = config_duration(config, "timeout", 0);
	if (!submission->parent || config_is_set(config, "grace"))
		spec->grace_ms = config_duration(config, "grace", 10000);
}

static int open_target(struct submission *submission, struct err *err)
{
	const char *name = config_str(submission->config, "target");

	int r = target_open(submission->session, name ? name : "local", &submission->target, err);
	if (r == 0 && submission->target->ops->warm)
		submission->target->ops->warm(submission->target);
	return r < 0 && err->id == E_TARGET ? config_blame(submission->config, "target", err) : r;
}

static int fail_no_image(const struct submission *submission, struct err *err)
{
	AUTO_FREE char *name = str_escaped(submission->target->name);

	err_set(err, E_IMAGE_NONE,
		"target %s runs programs in containers, and no base image is set", name);
	err_evidence(err, "--image HOST/REPO:TAG   a base for this run");
	err_evidence(err, "image: HOST/REPO:TAG    in dlrun.yaml: a base for all runs");
	err_evidence(err, "dlrun init              proposes one that fits the project");
	return err_hint(err, "dlrun submit --image docker.io/library/python:3.12 …");
}

/* Whether something may bring a program that is not in the layers of the base. */
static bool may_come(const struct submission *submission)
{
	const struct spec *spec = &submission->spec;
	const struct config *config = submission->config;
	const struct json *target = config_target(config, submission->target->name);
	const struct image_base *base = submission->pack.base;
	const struct json *entrypoint =
		json_get(json_get(base ? base->config_json : NULL, "config"), "Entrypoint");

	return env_get((const char *const *)spec->env.v, "PATH") || spec->world.before ||
	       spec->world.setup.run || json_get(target, "volumes") ||
	       json_get(target, "overlay") ||
	       (entrypoint && json_first(entrypoint) &&
		       !str_eq(config_str(config, "entrypoint"), "none"));
}

/* Nothing of this machine is in the container of a cluster. */
static bool needs_base(const struct submission *submission)
{
	return submission->target->ops->needs_image &&
	       (!submission->from_digest || submission->carried.image);
}

int submission_check_program(const struct submission *submission, struct err *err)
{
	const struct spec *spec = &submission->spec;
	const struct pack *pack = &submission->pack;
	const char *program = spec->shell ? "sh" : spec->command.v[0];
	AUTO_BASE_PROGRAM struct base_program found = {0};

	if (!needs_base(submission) || strchr(program, '/') || may_come(submission))
		return 0;
	if (pack->base_ref.kind == REF_SCRATCH)
		found = (struct base_program){.has = BASE_LACKS, .why = mem_strdup("it is empty")};
	else if (pack->base)
		base_program_find(pack->base, program, &found);
	if (found.has != BASE_LACKS)
		return 0;
	AUTO_FREE char *shown = str_shown(program), *base = str_shown(pack->base_name);
	err_set(err, E_IMAGE_NONE, "the image has no program '%s': its base is %s, and %s", shown,
		base, found.why);
	return err_hint(err, "dlrun submit --image docker.io/library/python:3.12 …");
}

static int find_place(struct submission *submission, struct err *err)
{
	int r;

	if (submission->from_digest)
		return 0;
	r = session_place(submission->session, &submission->place, err);
	if (r < 0)
		return r;
	submission->spec.cwd = mem_strdup(submission->place->prefix);
	submission->live_root = mem_strdup(submission->place->root);
	return 0;
}

int submission_check(struct submission *submission, struct err *err)
{
	static int (*const steps[])(struct submission *, struct err *) = {submission_take_from,
		find_place, set_command, submission_check_typed, set_env, submission_set_secrets,
		set_name, open_target, submission_start_file, submission_find_from};

	int r = session_config(submission->session, &submission->config, err);
	for (size_t i = 0; r == 0 && i < sizeof(steps) / sizeof(*steps); i++)
		r = steps[i](submission, err);
	if (r == 0)
		r = check_tags(submission->options->tags, err);
	if (r == 0 && !submission->from_digest)
		r = pack_init(&submission->pack, submission->session, NULL,
			submission->options->full, err);
	if (r == 0 && needs_base(submission) && !config_is_set(submission->config, "image"))
		r = fail_no_image(submission, err);
	if (r < 0)
		return r;
	set_limits(submission);
	r = submission_set_world(submission, err);
	if (r == 0)
		r = submission_check_program(submission, err);
	if (r == 0 && submission->from_digest)
		submission_own_paths(submission);
	return r;
}

/*
 * The snapshot
 */

static void join(struct strv *ret, const struct strv *a, const struct strv *b)
{
	strv_copy(ret, a);
	for (size_t i = 0; b && i < b->n; i++)
		strv_add(ret, b->v[i]);
}

static void get_limits(const struct submission *submission, struct paths_limits *ret)
{
	const struct config *config = submission->config;
	uint64_t allowed = (uint64_t)submission->options->allow_bytes;

	*ret = (struct paths_limits){
		.total_bytes = config_size(config, "limits.size"),
		.file_bytes = config_size(config, "limits.file"),
		.files = (uint64_t)config_int(config, "limits.files", 0),
	};
	/* 0 is no limit at all. */
	if (ret->total_bytes && allowed > ret->total_bytes)
		ret->total_bytes = allowed;
	if (ret->file_bytes && allowed > ret->file_bytes)
		ret->file_bytes = allowed;
}

int submission_take(struct submission *submission, bool cache, struct err *err)
{
	const struct dirs *dirs = &submission->session->dirs;
	AUTO_STRV struct strv include = {0}, allow = {0};
	struct snapshot_options options = {
		.place = submission->place,
		.include = &include,
		.paths = config_list(submission->config, "paths"),
		.allow = &allow,
		.cache_dir = cache ? dirs->cache : NULL,
		.home = dirs->home,
		.xdg_config = submission->session->env.dirs.xdg_config_home,
		.shell_dir = submission->session->env.shell_dir,
		.will_walk = submission->will_walk,
		.will_read = submission->will_read,
		.will_ctx = submission->will_ctx,
		.id_later = submission->id_later,
	};

	if (submission->from_digest)
		return 0;
	join(&include, config_list(submission->config, "include"), submission->options->include);
	join(&allow, config_list(submission->config, "allow"), submission->options->allow);
	get_limits(submission, &options.limits);
	int r = snapshot_take(&options, &submission->snapshot, err);
	if (r < 0)
		return r;
	for (size_t i = 0; i < submission->snapshot->warnings.n; i++)
		submission_warn(submission, "%s", submission->snapshot->warnings.v[i]);
	return submission_check_world(submission, err);
}

int submission_take_all(struct submission *submission, bool cache, struct err *err)
{
	int r = submission_take(submission, cache, err);

	submission->snapshot_ms = clock_ms() - submission->begun_ms;
	if (r == 0)
		submission_look_up(submission);
	return r;
}
