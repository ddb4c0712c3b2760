/* SPDX-License-Identifier: Apache-2.0 */
#include "core/config/config_trust.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/digest.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/config_impl.h"

#define SCHEMA "dlrun/trust/v1"

enum { ENTRY_MAX = 1 << 20, NAMED_MAX = 16 << 20 };

void config_project_done(struct config_project *project)
{
	vec_foreach (struct config_claim, claim, &project->claims) {
		free(claim->where);
		free(claim->key);
		free(claim->value);
		free(claim->file);
	}
	vec_done(&project->claims);
	free(project->path);
	free(project->hash);
	*project = (struct config_project){0};
}

const struct config_project *config_project(const struct config *config)
{
	return &config->project;
}

/*
 * Confirmations
 */

static char *config_trust_hash_text(const void *data, size_t len)
{
	uint8_t sha256[SHA256_SIZE];
	char hex[SHA256_HEX_SIZE];

	digest_sha256(data, len, sha256);
	hex_encode(sha256, sizeof(sha256), hex);
	return mem_strdup(hex);
}

/* Confirm an unreadable file as "none": it has no content that could count. */
static char *hash_file(const char *path)
{
	AUTO_BUF struct buf text = {0};

	if (fs_read_regular(path, NAMED_MAX, &text, NULL, NULL, NULL) < 0)
		return mem_strdup("none");
	return config_trust_hash_text(text.data, text.len);
}

static char *entry_path(const char *dir, const char *path)
{
	AUTO_FREE char *name = config_trust_hash_text(path, strlen(path));

	return mem_printf("%s/%s.json", dir, name);
}

/* Whether the entry is of the text with that hash, and all files in it are as they were. */
static bool is_confirmed(const char *dir, const char *path, const char *hash)
{
	AUTO_FREE char *entry = dir ? entry_path(dir, path) : NULL;
	AUTO_BUF struct buf text = {0};
	AUTO_JSON struct json *json = NULL;

	if (!entry || fs_read_regular(entry, ENTRY_MAX, &text, NULL, NULL, NULL) < 0 ||
		json_parse(text.data, text.len, ENTRY_MAX, entry, &json, NULL) < 0)
		return false;
	const struct json *files = json_get(json, "files");
	if (!str_eq(json_get_str(json, "schema"), SCHEMA) ||
		!str_eq(json_get_str(files, path), hash))
		return false;
	for (const struct json *item = json_first(files); item; item = json_next(item)) {
		AUTO_FREE char *now =
			str_eq(json_key(item), path) ? NULL : hash_file(json_key(item));
		if (now && !str_eq(json_str(item), now))
			return false;
	}
	return true;
}

int config_confirm(const struct config *config, const char *dir, struct err *err)
{
	const struct config_project *project = &config->project;
	AUTO_FREE char *entry = entry_path(dir, project->path);
	AUTO_JSON struct json *json = json_object();
	AUTO_BUF struct buf text = buf_with(ENTRY_MAX);
	struct json *files;

	json_set_str(json, "schema", SCHEMA);
	files = json_sub(json, "files");
	json_set_str(files, project->path, project->hash);
	vec_foreach (struct config_claim, claim, &project->claims) {
		AUTO_FREE char *hash = claim->file ? hash_file(claim->file) : NULL;
		if (hash && !str_eq(claim->file, project->path))
			json_set_str(files, claim->file, hash);
	}
	json_print(json, &text);
	if (text.full)
		return err_set(err, E_DATA_LIMIT, "%s names too many files", project->path);
	int r = fs_private_dir(dir, err);
	return r < 0 ? r : fs_replace(entry, text.data, text.len, 0600, FS_SYNC_FILE, err);
}

/*
 * Owners
 */

/* As in git: under sudo the files of the calling user are ours. */
static uid_t sudo_user(const struct config_files *files)
{
	const char *text = files->env ? env_get(files->env, "SUDO_UID") : NULL;
	int64_t uid;

	if (geteuid() != 0 || !text || str_to_int(text, 0, UINT32_MAX - 1, "", &uid, NULL) < 0)
		return (uid_t)-1;
	return (uid_t)uid;
}

/* A link must be ours like its target: any user can link to a file of ours. */
static bool config_trust_is_ours(
	const struct config_files *files, const char *path, const struct stat *st)
{
	uid_t also = sudo_user(files);
	struct stat link;

	return fs_is_ours(st->st_uid, also) && lstat(path, &link) == 0 &&
	       fs_is_ours(link.st_uid, also);
}

/* "DIR", "DIR" and all below with a star behind a slash, or "*". */
static bool is_listed(const struct strv *list, const char *dir)
{
	for (size_t i = 0; i < list->n; i++) {
		const char *item = list->v[i];
		size_t len = strlen(item);
		bool below = str_ends(item, "/*");

		if (str_eq(item, "*") || str_eq(item, dir) ||
			(below && strncmp(item, dir, len - 1) == 0))
			return true;
	}
	return false;
}

static bool is_called_safe(
	const struct config *config, const struct config_files *files, const char *path)
{
	AUTO_FREE char *dir = fs_dirname(path);

	if (is_listed(config_list(config, "safe_directories"), dir))
		return true;
	return files->git_trusts && files->git_trusts(files->git_ctx, dir);
}

int config_read_project(struct config *config, const struct config_files *files,
	struct buf *ret_text, struct err *err)
{
	struct config_project *project = &config->project;
	struct stat st;
	int r = fs_read_regular(files->project, YAML_SIZE_MAX, ret_text, &st, NULL, err);

	if (r < 0)
		return r;
	project->path = mem_strdup(files->project);
	project->hash = config_trust_hash_text(ret_text->data, ret_text->len);
	project->is_confirmed = is_confirmed(files->trust, project->path, project->hash);
	project->is_foreign = !config_trust_is_ours(files, files->project, &st) &&
			      !is_called_safe(config, files, files->project);
	return project->is_foreign && !project->is_confirmed && !files->review ? 0 : 1;
}

bool config_project_counts(const struct config_files *files, const char *path)
{
	struct config_files own = *files;
	AUTO_CONFIG struct config *config = NULL;
	AUTO_BUF struct buf text = {0};
	struct stat st;

	if (stat(path, &st) == 0 && config_trust_is_ours(files, path, &st))
		return true;
	own.project = NULL;
	if (config_load(&own, &config, NULL) < 0)
		return false;
	own.project = path;
	return config_read_project(config, &own, &text, NULL) > 0;
}

/*
 * Keys
 */

/* Whether file is in the tree, with links resolved. A missing file lies where its name says. */
static bool is_in_tree(const char *root, const char *file)
{
	AUTO_FREE char *real = NULL, *real_root = NULL;
	AUTO_FREE char *around = mem_printf("%s/", file);
	const char *path = file;

	if (fs_realpath(file, &real, NULL) == 0)
		path = real;
	else if (strstr(around, "/../"))
		return false;
	if (fs_realpath(root, &real_root, NULL) < 0)
		return false;
	size_t len = strlen(real_root);
	return strncmp(path, real_root, len) == 0 && path[len] == '/';
}

char *config_file_named(const struct config *config, const char *from, const char *text)
{
	AUTO_FREE char *dir = fs_dirname(from);

	if (str_starts(text, "~/") && !str_empty(config->home))
		return fs_join(config->home, text + 2);
	return fs_join(dir, text);
}

bool config_claim(struct config *config, const struct config_location *location,
	enum config_setter by, const char *key, const char *value, const char *file)
{
	if (location->source != CONFIG_FROM_PROJECT || by == CONFIG_BY_PROJECT)
		return true;
	if (by == CONFIG_BY_TREE && is_in_tree(config->root, file))
		return true;
	*vec_push(&config->project.claims) = (struct config_claim){
		mem_printf("%s:%u", location->file, location->at.line), mem_strdup(key),
		mem_strdup(value), by == CONFIG_BY_CONFIRMED ? mem_strdup(file) : NULL};
	return config->project.is_confirmed;
}

/*
 * Messages
 */

char *config_not_counting(const struct config *config)
{
	const struct config_project *project = &config->project;
	AUTO_STRV struct strv keys = {0};

	if (!project->path || project->is_confirmed)
		return NULL;
	AUTO_FREE char *shown = str_escaped(project->path);
	if (project->is_foreign)
		return mem_printf("%s belongs to another user and is not read", shown);
	if (project->claims.n == 0)
		return NULL;
	vec_foreach (struct config_claim, claim, &project->claims)
		if (strv_find(&keys, claim->key) < 0)
			strv_add(&keys, claim->key);
	AUTO_FREE char *list = strv_join(&keys, ", ");
	AUTO_FREE char *list_shown = str_escaped(list);
	return mem_printf("%s: %s %s effect only once you confirm it", shown, list_shown,
		keys.n == 1 ? "takes" : "take");
}

int config_check_counting(const struct config *config, struct err *err)
{
	AUTO_FREE char *text = config_not_counting(config);

	/* A file of another user may lie in any directory above: it must not block commands. */
	if (!text || config->project.is_foreign)
		return 0;
	err_set(err, E_CONFIG_TRUST, "%s", text);
	vec_foreach (struct config_claim, claim, &config->project.claims)
		err_evidence(err, "%s: %s: %s", claim->where, claim->key, claim->value);
	return err_hint(err, "dlrun config trust");
}
