/* SPDX-License-Identifier: Apache-2.0 */
#include "core/study/study.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"

enum { ID_TRIES = 20, STUDY_BYTES_MAX = 64 << 20 };

void study_release(struct study *study)
{
	if (study->making_fd > 0)
		close(study->making_fd);
	study->making_fd = 0;
}

void study_done(struct study *study)
{
	if (!study)
		return;
	study_release(study);
	cases_done(&study->cases);
	spec_done(&study->spec);
	json_free(study->doc);
	*study = (struct study){0};
}

static char *study_path(const struct dirs *dirs, const char *id)
{
	AUTO_FREE char *dir = dirs_study(dirs, id);

	return fs_join(dir, "study.json");
}

static char *study_hold_path(const struct dirs *dirs, const char *id)
{
	AUTO_FREE char *dir = dirs_study(dirs, id);

	return fs_join(dir, "making.lock");
}

int study_hold(
	const struct dirs *dirs, const char *id, int64_t timeout_ms, int *ret_fd, struct err *err)
{
	AUTO_FREE char *path = study_hold_path(dirs, id), *dir = dirs_study(dirs, id);
	AUTO_ERR struct err error = {0};

	if (!run_id_is_valid(id) || access(dir, F_OK) < 0)
		return 0;
	if (fs_lock(path, true, timeout_ms, ret_fd, &error) == 0)
		return 0;
	if (error.id != E_IO_LOCK)
		return err_move(err, &error);
	return err_set(err, E_IO_LOCK, "another dlrun makes runs of %s now", id);
}

bool study_is_held(const struct dirs *dirs, const char *id)
{
	AUTO_FREE char *path = study_hold_path(dirs, id);

	return fs_is_locked(path);
}

/*
 * Writing
 */

int study_claim(const struct dirs *dirs, const char *name, struct study *ret, struct err *err)
{
	AUTO_FREE char *parent = mem_printf("%s/studies", dirs->state);
	int r = fs_mkdirs(parent, 0700, err);

	/* Names end in no '-', which would stand twice in front of the index. */
	snprintf(ret->name, sizeof(ret->name), "%.*s", RUN_NAME_MAX - RUN_INDEX_MAX, name);
	for (size_t len = strlen(ret->name); len > 1 && ret->name[len - 1] == '-'; len--)
		ret->name[len - 1] = '\0';
	for (int i = 0; r == 0; i++) {
		run_make_id(ret->name, ret->id);
		AUTO_FREE char *dir = dirs_study(dirs, ret->id);
		if (mkdir(dir, 0700) == 0)
			break;
		if (errno != EEXIST || i == ID_TRIES)
			r = fs_error(err, errno, "making directory %s", dir);
	}
	return r < 0 ? r : study_hold(dirs, ret->id, 0, &ret->making_fd, err);
}

int study_write(const struct dirs *dirs, struct study *study, struct err *err)
{
	AUTO_FREE char *path = study_path(dirs, study->id);
	AUTO_BUF struct buf text = buf_with(STUDY_BYTES_MAX);
	struct json *doc = study->doc;

	json_set_str(doc, "schema", STUDY_SCHEMA);
	json_set_str(doc, "id", study->id);
	json_set_str(doc, "name", study->name);
	json_set_int(doc, "parallel", study->parallel);
	json_set_bool(doc, "fail_fast", study->fail_fast);
	json_set(doc, "spec", spec_to_json(&study->spec));
	struct json *keys = json_array(), *rows = json_array();

	json_add_strv(keys, &study->cases.keys);
	json_set(doc, "keys", keys);
	for (size_t i = 0; i < study->cases.n; i++) {
		struct json *row = json_array();
		for (size_t k = 0; k < study->cases.keys.n; k++)
			json_add_str(row, cases_get(&study->cases, i, k));
		json_add(rows, row);
	}
	json_set(doc, "cases", rows);
	json_print(doc, &text);
	int r = buf_check(&text, "the study", err);
	return r < 0 ? r : fs_replace(path, text.data, text.len, 0600, FS_SYNC_FULL, err);
}

/*
 * Reading
 */

static int study_read_cases(const struct json *doc, struct cases *ret, struct err *err)
{
	const struct json *keys = json_get(doc, "keys"), *rows = json_get(doc, "cases");

	for (const struct json *key = keys ? json_first(keys) : NULL; key; key = json_next(key))
		strv_add(&ret->keys, json_str(key) ? json_str(key) : "");
	for (const struct json *row = rows ? json_first(rows) : NULL; row; row = json_next(row)) {
		if (json_kind(row) != JSON_ARRAY || json_count(row) != ret->keys.n)
			return err_set(err, E_DATA, "a row of cases has other axes");
		for (const struct json *value = json_first(row); value; value = json_next(value)) {
			if (!json_str(value))
				return err_set(err, E_DATA, "a value of cases is no text");
			strv_add(&ret->values, json_str(value));
		}
		ret->n++;
	}
	return ret->n > 0 ? 0 : err_set(err, E_DATA, "there are no cases");
}

static int study_take_json(struct json *take, const char *id, struct study *ret, struct err *err)
{
	AUTO_STUDY struct study study = {.doc = take};
	const char *name = json_get_str(take, "name");
	int r = 0;

	if (!str_eq(json_get_str(take, "schema"), STUDY_SCHEMA) ||
		!str_eq(json_get_str(take, "id"), id) || !name ||
		strlen(name) > RUN_NAME_MAX - RUN_INDEX_MAX)
		return err_set(err, E_DATA, "it is not of " STUDY_SCHEMA);
	snprintf(study.id, sizeof(study.id), "%s", id);
	snprintf(study.name, sizeof(study.name), "%s", name);
	study.parallel = (int)json_get_int(take, "parallel", 0);
	study.fail_fast = json_get_bool(take, "fail_fast", false);
	r = study_read_cases(take, &study.cases, err);
	if (r == 0)
		r = spec_from_json(json_get(take, "spec"), &study.spec, err);
	if (r < 0)
		return r;
	*ret = study;
	study = (struct study){0};
	return 0;
}

int study_read(const struct dirs *dirs, const char *id, struct study *ret, struct err *err)
{
	AUTO_FREE char *path = run_id_is_valid(id) ? study_path(dirs, id) : NULL;
	AUTO_BUF struct buf text = {0};
	AUTO_ERR struct err error = {0};
	bool missing = !path;
	struct json *doc;
	int r = path ? fs_read(path, STUDY_BYTES_MAX, &text, &missing, &error) : 0;

	if (missing)
		return err_set(err, E_RUN_NOT_FOUND, "there is no study %s here", id);
	if (r < 0)
		err_move(err, &error);
	else
		r = json_parse(text.data, text.len, STUDY_BYTES_MAX, path, &doc, err);
	if (r == 0)
		r = study_take_json(doc, id, ret, err);
	return r < 0 ? err_prefix(err, "study %s", id) : 0;
}

int study_find(
	const struct dirs *dirs, const char *text, char ret[static RUN_ID_SIZE], struct err *err)
{
	AUTO_FREE char *parent = mem_printf("%s/studies", dirs->state);
	DIR *dir = opendir(parent);
	size_t n = 0;

	for (struct dirent *entry; dir && (entry = readdir(dir));) {
		bool exact = str_eq(entry->d_name, text);
		if (!run_id_is_valid(entry->d_name) || !str_starts(entry->d_name, text))
			continue;
		memcpy(ret, entry->d_name, strlen(entry->d_name) + 1);
		n = exact ? 1 : n + 1;
		if (exact)
			break;
	}
	if (dir)
		closedir(dir);
	if (n == 1)
		return 0;
	AUTO_FREE char *shown = str_shown(text);
	if (n == 0)
		return err_set(err, E_RUN_NOT_FOUND, "there is no study '%s' here", shown);
	return err_set(err, E_USAGE, "'%s' could be one of %zu studies", shown, n);
}

int study_remove(const struct dirs *dirs, const char *id, struct err *err)
{
	AUTO_FREE char *dir = dirs_study(dirs, id);

	return run_id_is_valid(id) ? fs_remove_tree(AT_FDCWD, dir, err) : 0;
}

static char *study_cancel_path(const struct dirs *dirs, const char *id)
{
	AUTO_FREE char *dir = dirs_study(dirs, id);

	return fs_join(dir, "cancelled");
}

int study_set_cancelled(const struct dirs *dirs, const char *id, bool cancelled, struct err *err)
{
	AUTO_FREE char *path = study_cancel_path(dirs, id), *dir = dirs_study(dirs, id);

	if (!run_id_is_valid(id) || access(dir, F_OK) < 0)
		return 0;
	return cancelled ? fs_replace(path, "", 0, 0600, FS_SYNC_FULL, err)
			 : fs_remove_tree(AT_FDCWD, path, err);
}

bool study_is_cancelled(const struct dirs *dirs, const char *id)
{
	AUTO_FREE char *path = study_cancel_path(dirs, id), *object = study_path(dirs, id);

	return access(path, F_OK) == 0 || access(object, F_OK) < 0;
}

/*
 * Members
 */

static struct cases_template study_template(const struct study *study)
{
	const struct spec *spec = &study->spec;

	return (struct cases_template){
		.command = &spec->command, .shell = spec->shell, .env = &spec->env};
}

void study_set_place(const struct study *study, size_t index, struct spec *spec)
{
	free(spec->study.id);
	spec->study = (struct spec_study){
		.id = mem_strdup(study->id),
		.index = (int)index,
		.size = (int)study->cases.n,
		.parallel = study->parallel,
		.fail_fast = study->fail_fast,
	};
}

int study_member_spec(const struct study *study, size_t index, struct spec *ret, struct err *err)
{
	const struct cases_template template = study_template(study);
	const struct cases_member member = {index, study->id};
	AUTO_STRV struct strv command = {0}, env = {0};

	int r = cases_expand_command(&study->cases, &member, &template, &command, err);
	if (r == 0)
		r = cases_expand_env(&study->cases, &member, &template, &env, err);
	if (r == 0)
		r = spec_copy(&study->spec, ret, err);
	if (r < 0)
		return r;
	strv_copy(&ret->command, &command);
	strv_copy(&ret->env, &env);
	study_set_place(study, index, ret);
	return 0;
}

static void study_add_params(const struct study *study, size_t index, struct json *params)
{
	for (size_t i = 0; i < study->cases.keys.n; i++)
		json_set_str(params, study->cases.keys.v[i], cases_get(&study->cases, index, i));
}

void study_words_done(struct study_words *words)
{
	if (!words)
		return;
	for (size_t i = 0; i < words->n; i++) {
		strv_done(&words->commands[i]);
		if (words->env)
			strv_done(&words->env[i]);
		json_free(words->params[i]);
	}
	free(words->commands);
	free(words->env);
	free(words->params);
	*words = (struct study_words){0};
}

/* Whether members may differ in that variable. */
static bool study_differs(const char *variable)
{
	return strchr(variable, '{') != NULL;
}

static bool study_has_env(const struct study *study)
{
	for (size_t i = 0; i < study->spec.env.n; i++)
		if (study_differs(study->spec.env.v[i]))
			return true;
	return false;
}

static int study_member_words(
	const struct study *study, size_t index, struct study_words *ret, struct err *err)
{
	const struct cases_template template = study_template(study);
	const struct cases_member member = {index, study->id};
	AUTO_STRV struct strv env = {0};

	int r = cases_expand_command(&study->cases, &member, &template, &ret->commands[index], err);
	if (r == 0)
		r = cases_expand_env(&study->cases, &member, &template, &env, err);
	for (size_t i = 0; r == 0 && i < env.n; i++)
		if (ret->env && study_differs(study->spec.env.v[i]))
			strv_add(&ret->env[index], env.v[i]);
	ret->params[index] = json_object();
	study_add_params(study, index, ret->params[index]);
	return r;
}

int study_all_words(const struct study *study, struct study_words *ret, struct err *err)
{
	size_t n = study->cases.n;
	AUTO_STUDY_WORDS struct study_words words = {
		.n = n,
		.commands = mem_alloc(n, sizeof(*words.commands)),
		.env = study_has_env(study) ? mem_alloc(n, sizeof(*words.env)) : NULL,
		.params = mem_alloc(n, sizeof(struct json *)),
	};
	int r = 0;

	for (size_t i = 0; r == 0 && i < n; i++)
		r = study_member_words(study, i, &words, err);
	if (r < 0)
		return r;
	*ret = words;
	words = (struct study_words){0};
	return 0;
}

/* NAME-INDEX, by which some member is found already. */
static bool study_is_members_name(const struct study *study, const char *name)
{
	size_t len = strlen(study->name);

	return strncmp(name, study->name, len) == 0 && name[len] == '-' && name[len + 1] &&
	       !name[len + 1 + strspn(name + len + 1, "0123456789")];
}

void study_describe_member(const struct study *study, size_t index, struct json *run)
{
	struct json *json;

	study_add_params(study, index, json_sub(run, "params"));
	json_set_str(run, "group", study->id);
	json = json_object();
	json_set_str(json, "id", study->id);
	json_set_int(json, "index", (int64_t)index);
	json_set(run, "study", json);
	/* The name of a member that was asked for, as far as it makes one. */
	const char *template = json_get_str(study->doc, "name_template");
	const struct cases_member member = {index, study->id};
	char name[RUN_NAME_MAX + 1];
	AUTO_FREE char *wanted = NULL;
	bool mapped;

	if (template && cases_expand(&study->cases, &member, template, &wanted, NULL) == 0 &&
		run_name_map(wanted, name, &mapped, NULL) == 0 &&
		!study_is_members_name(study, name))
		json_set_str(run, "name", name);
}
