/* SPDX-License-Identifier: Apache-2.0 */
#include "core/record/runtime.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/loop/proc.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/words.h"
#include "kube/api/kinds.h"

/*
 * JSON
 */

/* The version that an address in S3 names, else all of it; NULL: it is another place. */
static char *runtime_data_address(const char *from)
{
	AUTO_JSON struct json *json = NULL;

	if (*from != '{' || json_parse(from, strlen(from), JSON_SIZE_MAX, "data", &json, NULL) < 0)
		return NULL;
	const char *address = json_get_str(json, "s3");
	const char *at = address ? strrchr(address, '@') : NULL;
	bool is_version = at && str_starts(at, "@d-") &&
			  strspn(at + 3, "0123456789abcdef") == RUNTIME_VERSION_DIGITS &&
			  !at[3 + RUNTIME_VERSION_DIGITS];
	return mem_strdup(is_version ? at + 1 : address);
}

/* The version in a place of data, a path or the JSON of a volume; NULL: none. */
static char *runtime_data_version(const char *from)
{
	static const char before[] = ".dlrun/d-";
	const char *at = strstr(from, before);

	if (!at || strspn(at + strlen(before), "0123456789abcdef") != RUNTIME_VERSION_DIGITS)
		return NULL;
	return mem_strndup(
		at + strlen(before) - strlen("d-"), strlen("d-") + RUNTIME_VERSION_DIGITS);
}

void runtime_name_data(const struct runtime *runtime, struct json *doc)
{
	vec_foreach (const struct runtime_data, data, &runtime->data) {
		AUTO_FREE char *shown = str_escaped(data->path);
		AUTO_FREE char *name =
			data->digest ? mem_strdup(data->digest) : runtime_data_version(data->from);
		if (!name)
			name = runtime_data_address(data->from);
		if (name)
			json_set_str(json_sub(doc, RUNTIME_DATA), shown, name);
	}
}

void runtime_reported_data(const char *text, struct json *doc)
{
	AUTO_FREE char *copy = mem_strdup(text);
	char *rest = copy;

	for (char *line; (line = strsep(&rest, "\n"));) {
		char *id = line + strlen(KUBE_JOB_DATA " "), *path;
		if (!str_starts(line, KUBE_JOB_DATA " d-") || !(path = strchr(id, ' ')) ||
			!path[1] || strspn(id + 2, "0123456789abcdef") != RUNTIME_VERSION_DIGITS ||
			path != id + 2 + RUNTIME_VERSION_DIGITS)
			continue;
		*path++ = '\0';
		AUTO_FREE char *shown = str_escaped(path);
		json_set_str(json_sub(doc, RUNTIME_DATA), shown, id);
	}
}

static void runtime_set_text(struct json *object, const char *key, const char *text)
{
	if (text)
		json_set_bytes(object, key, text, strlen(text));
	else
		json_set(object, key, json_null());
}

static void setup_to_json(const struct runtime_setup *setup, struct json *object)
{
	struct json *json;

	if (!setup->run)
		return;
	json = json_sub(object, "setup");
	runtime_set_text(json, "run", setup->run);
	words_set(json, "key", &setup->key);
	runtime_set_text(json, "cwd", setup->cwd);
	if (setup->baked)
		json_set_str(json, "baked", setup->baked);
}

static void collect_to_json(const struct runtime_collect *collect, struct json *object)
{
	struct json *json = json_sub(object, "collect");

	json_set_str(json, "mode", collect->mode == COLLECT_NONE ? "none" : "auto");
	words_set(json, "exclude", &collect->exclude);
	json_set_int(json, "size", (int64_t)collect->size_bytes);
}

void runtime_to_json(const struct runtime *runtime, struct json *object)
{
	struct json *list = json_array();

	for (size_t i = 0; i < runtime->data.n; i++) {
		struct json *item = json_object();
		const struct runtime_data *data = &runtime->data.v[i];
		json_set_bytes(item, "path", data->path, strlen(data->path));
		json_set_bytes(item, "from", data->from, strlen(data->from));
		if (data->digest)
			json_set_str(item, "digest", data->digest);
		json_add(list, item);
	}
	json_set(object, "data", list);
	words_set(object, "outputs", &runtime->outputs);
	words_set(object, "filled", &runtime->filled);
	setup_to_json(&runtime->setup, object);
	if (runtime->launcher.kind != LAUNCHER_NONE) {
		AUTO_FREE char *launcher = launcher_text(&runtime->launcher);
		json_set_str(object, "launcher", launcher);
	}
	runtime_set_text(object, "before", runtime->before);
	words_set(object, "python_paths", &runtime->python_paths);
	words_set(object, "python_aliases", &runtime->python_aliases);
	json_set_int(object, "gpus", runtime->gpus);
	words_set(object, "gpus_only", &runtime->gpus_only);
	json_set_int(object, "retries", runtime->retries);
	json_set_int(object, "signal", runtime->signal);
	json_set_int(object, "signal_before_ms", runtime->signal_before_ms);
	if (runtime->stop_signal)
		json_set_int(object, "stop_signal", runtime->stop_signal);
	collect_to_json(&runtime->collect, object);
	json_set_int(object, "linger_ms", runtime->linger_ms);
}

static int data_from_json(const struct json *object, struct runtime *runtime, struct err *err)
{
	const struct json *list = json_get(object, "data");

	for (const struct json *item = list ? json_first(list) : NULL; item;
		item = json_next(item)) {
		struct runtime_data *data = vec_push(&runtime->data);
		*data = (struct runtime_data){words_get_one(item, "path"),
			words_get_one(item, "from"), words_get_one(item, "digest")};
		if (!data->path || !data->from || runtime->data.n > RUNTIME_PATHS_MAX)
			return err_set(err, E_DATA, "data of the run is not complete");
	}
	return 0;
}

static int setup_from_json(const struct json *object, struct runtime_setup *setup, struct err *err)
{
	const struct json *json = json_get(object, "setup");

	if (!json || json_kind(json) == JSON_NULL)
		return 0;
	setup->run = words_get_one(json, "run");
	setup->cwd = words_get_one(json, "cwd");
	setup->baked = words_get_one(json, "baked");
	int r = words_get(json, "key", &setup->key, err);
	if (r == 0 && (!setup->run || !setup->cwd))
		r = err_set(err, E_DATA, "setup of the run is not complete");
	return r;
}

/* A record without the member is from a version that collected nothing: the next attempt of such a
 * run does collect. */
static int collect_from_json(
	const struct json *object, struct runtime_collect *collect, struct err *err)
{
	const struct json *json = json_get(object, "collect");
	int64_t size = json_get_int(json, "size", (int64_t)RUNTIME_COLLECT_BYTES);

	collect->mode = str_eq(json_get_str(json, "mode"), "none") ? COLLECT_NONE : COLLECT_AUTO;
	collect->size_bytes = size < 0 ? 0 : (uint64_t)size;
	int r = words_get(json, "exclude", &collect->exclude, err);
	if (r == 0 && collect->exclude.n > RUNTIME_PATHS_MAX)
		r = err_set(err, E_DATA, "collect of the run has too many patterns");
	return r;
}

static int launcher_from_json(const struct json *object, struct launcher *launcher, struct err *err)
{
	const char *text = json_get_str(object, "launcher");

	if (text && launcher_parse(text, launcher, NULL) < 0)
		return err_set(err, E_DATA, "the launcher of the run is not known");
	return 0;
}

static int clamp(int64_t value, int64_t min, int64_t max)
{
	return (int)(value < min ? min : value > max ? max : value);
}

int runtime_from_json(const struct json *object, struct runtime *ret, struct err *err)
{
	AUTO_RUNTIME struct runtime runtime = {0};
	int64_t before_ms = json_get_int(object, "signal_before_ms", 0);
	int64_t linger_ms = json_get_int(object, "linger_ms", RUNTIME_LINGER_MS);

	int r = data_from_json(object, &runtime, err);
	if (r == 0)
		r = words_get(object, "outputs", &runtime.outputs, err);
	if (r == 0)
		r = words_get(object, "filled", &runtime.filled, err);
	if (r == 0)
		r = setup_from_json(object, &runtime.setup, err);
	if (r == 0)
		r = words_get(object, "python_paths", &runtime.python_paths, err);
	if (r == 0)
		r = words_get(object, "python_aliases", &runtime.python_aliases, err);
	if (r == 0)
		r = words_get(object, "gpus_only", &runtime.gpus_only, err);
	if (r == 0)
		r = collect_from_json(object, &runtime.collect, err);
	if (r == 0)
		r = launcher_from_json(object, &runtime.launcher, err);
	if (r < 0)
		return r;
	runtime.before = words_get_one(object, "before");
	runtime.gpus = clamp(json_get_int(object, "gpus", 0), RUNTIME_GPUS_AUTO, 1024);
	runtime.retries = clamp(json_get_int(object, "retries", 0), 0, RUNTIME_RETRIES_MAX);
	runtime.signal = clamp(json_get_int(object, "signal", 0), 0, NSIG - 1);
	runtime.stop_signal = clamp(json_get_int(object, "stop_signal", 0), 0, NSIG - 1);
	runtime.signal_before_ms = before_ms < 0 ? 0 : before_ms;
	runtime.linger_ms = linger_ms < 0 ? 0 : linger_ms;
	*ret = runtime;
	runtime = (struct runtime){0};
	return 0;
}

void runtime_done(struct runtime *runtime)
{
	if (!runtime)
		return;
	for (size_t i = 0; i < runtime->data.n; i++) {
		free(runtime->data.v[i].path);
		free(runtime->data.v[i].from);
		free(runtime->data.v[i].digest);
	}
	vec_done(&runtime->data);
	strv_done(&runtime->outputs);
	strv_done(&runtime->filled);
	free(runtime->setup.run);
	free(runtime->setup.cwd);
	free(runtime->setup.baked);
	strv_done(&runtime->setup.key);
	free(runtime->before);
	strv_done(&runtime->python_paths);
	strv_done(&runtime->python_aliases);
	strv_done(&runtime->gpus_only);
	strv_done(&runtime->collect.exclude);
	*runtime = (struct runtime){0};
}

/*
 * Parsing of what users write
 */

static int bad_path(const char *text, const char *what, const char *why, struct err *err)
{
	AUTO_FREE char *shown = str_escaped(text);

	return err_set(err, E_CONFIG, "%s: '%s' %s", what, shown, why);
}

int runtime_path(const char *text, const char *what, char **ret, struct err *err)
{
	AUTO_BUF struct buf path = buf_with(4096);

	if (*text == '/' || *text == '~')
		return bad_path(text, what, "is not relative to the root of the working tree", err);
	for (const char *s = text; *s;) {
		size_t len = strcspn(s, "/");
		if (len == 2 && s[0] == '.' && s[1] == '.')
			return bad_path(text, what, "leads out of the working tree", err);
		if (len && !(len == 1 && *s == '.')) {
			if (path.len)
				buf_addc(&path, '/');
			buf_add(&path, s, len);
		}
		s += len + strspn(s + len, "/");
	}
	int r = buf_check(&path, what, err);
	if (r < 0)
		return r;
	if (path.len == 0)
		return bad_path(text, what, "is the whole working tree", err);
	*ret = mem_strndup(path.data, path.len);
	return 0;
}

/* 0: none that a program can handle. */
static int runtime_signal(const char *name)
{
	int sig = proc_signal_number(name);

	return sig == SIGKILL || sig == SIGSTOP ? 0 : sig;
}

int runtime_parse_signal(const char *text, int *ret_signal, int64_t *ret_before_ms, struct err *err)
{
	const char *at = strchr(text, '@');
	AUTO_FREE char *name = mem_strndup(text, strcspn(text, "@")), *shown = NULL;
	int64_t before_s = 0;
	int sig = runtime_signal(name);

	if (sig && at && str_to_int(at + 1, 1, 86400, "seconds", &before_s, NULL) == 0) {
		*ret_signal = sig;
		*ret_before_ms = before_s * 1000;
		return 0;
	}
	shown = str_escaped(text);
	return err_set(err, E_USAGE, "'%s' is not a signal and seconds like USR1@90", shown);
}

int runtime_parse_stop_signal(const char *text, int *ret, struct err *err)
{
	int sig = runtime_signal(text);

	if (!sig) {
		AUTO_FREE char *shown = str_escaped(text);
		return err_set(err, E_USAGE,
			"'%s' is not a signal that a program can handle, like INT", shown);
	}
	*ret = sig == SIGTERM ? 0 : sig;
	return 0;
}
