/* SPDX-License-Identifier: Apache-2.0 */
#include "core/record/params.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/data/yaml.h"
#include "base/os/fs.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/vec.h"
#include "core/record/run.h"

/*
 * The flat form
 */

static void params_add_text(struct json *to, const char *key, const struct json *value)
{
	AUTO_BUF struct buf text = buf_with(PARAMS_TEXT_MAX);

	json_print(value, &text);
	if (!text.full)
		json_set_str(to, key, text.data);
}

static void flatten(const struct json *object, const char *prefix, unsigned depth, struct json *to)
{
	for (const struct json *m = json_first(object); m; m = json_next(m)) {
		AUTO_FREE char *key = *prefix ? mem_printf("%s.%s", prefix, json_key(m))
					      : mem_strdup(json_key(m));

		if (json_count(to) >= PARAMS_MAX)
			return;
		if (strlen(key) > PARAMS_KEY_MAX || !str_is_plain(key))
			continue;
		if (json_kind(m) == JSON_OBJECT && depth < PARAMS_DEPTH_MAX)
			flatten(m, key, depth + 1, to);
		else if (json_kind(m) == JSON_OBJECT || json_kind(m) == JSON_ARRAY)
			params_add_text(to, key, m);
		else if (json_kind(m) != JSON_STRING || strlen(json_str(m)) <= PARAMS_TEXT_MAX)
			json_set(to, key, json_clone(m));
	}
}

/*
 * The files
 */

/* Half of one that is being written is none. */
static struct json *params_read_json(const char *text, size_t len)
{
	struct json *json;

	return json_parse(text, len, PARAMS_FILE_MAX, "params", &json, NULL) < 0 ? NULL : json;
}

static struct json *read_yaml(const char *text, size_t len)
{
	AUTO_YAML struct yaml *yaml = NULL;

	return yaml_parse_foreign(text, len, "params", &yaml, NULL) < 0 ? NULL : yaml_to_json(yaml);
}

/* A list of what was written on the command line: "lr=0.1", "+db.user=me". */
static struct json *read_overrides(const char *text, size_t len)
{
	AUTO_YAML struct yaml *yaml = NULL;
	AUTO_STRV struct strv words = {0};

	if (yaml_parse_foreign(text, len, "params", &yaml, NULL) < 0 || yaml->kind != YAML_LIST)
		return NULL;
	strv_add(&words, "command");
	for (const struct yaml *item = yaml->first; item && words.n <= PARAMS_MAX;
		item = item->next)
		if (item->kind == YAML_SCALAR && strlen(item->text) <= PARAMS_TEXT_MAX)
			strv_add(&words, item->text);
	return run_params(&words, NULL);
}

static const struct {
	const char *name;
	unsigned levels; /* that its name adds */
	struct json *(*read)(const char *text, size_t len);
} kinds[PARAMS_FILES] = {
	{"params.json", 0, params_read_json},
	{"args.json", 0, params_read_json},
	{"hparams.yaml", 0, read_yaml},
	{"hparams.yml", 0, read_yaml},
	{".hydra/overrides.yaml", 1, read_overrides},
	{".hydra/config.yaml", 1, read_yaml},
};

static size_t params_kind_of(const char *path)
{
	size_t len = strlen(path), kind = 0;

	for (; kind < PARAMS_FILES; kind++) {
		size_t n = strlen(kinds[kind].name);
		if (len >= n && str_eq(path + len - n, kinds[kind].name) &&
			(len == n || path[len - n - 1] == '/'))
			break;
	}
	return kind;
}

static unsigned count_slashes(const char *path)
{
	unsigned n = 0;

	for (const char *at = path; (at = strchr(at, '/')); at++)
		n++;
	return n;
}

static unsigned level_of(const char *path)
{
	return count_slashes(path) - kinds[params_kind_of(path)].levels;
}

static int compare_level(const void *a, const void *b)
{
	const struct outputs_file *x = *(const struct outputs_file *const *)a;
	const struct outputs_file *y = *(const struct outputs_file *const *)b;
	unsigned one = level_of(x->path), other = level_of(y->path);

	if (one != other)
		return one < other ? -1 : 1;
	return (int)params_kind_of(x->path) - (int)params_kind_of(y->path);
}

static bool goes_before(const struct outputs_file *file, const struct outputs_file *other)
{
	unsigned one = level_of(file->path), level = level_of(other->path);

	return one != level ? one < level : file->mtime_ns > other->mtime_ns;
}

size_t params_choose(
	const struct outputs_files *files, const struct outputs_file *ret[static PARAMS_FILES])
{
	const struct outputs_file *found[PARAMS_FILES] = {0};
	size_t n = 0;

	vec_foreach (const struct outputs_file, file, files) {
		size_t kind = params_kind_of(file->path);
		if (kind < PARAMS_FILES && file->size <= PARAMS_FILE_MAX &&
			(!found[kind] || goes_before(file, found[kind])))
			found[kind] = file;
	}
	for (size_t i = 0; i < PARAMS_FILES; i++)
		if (found[i])
			ret[n++] = found[i];
	qsort(ret, n, sizeof(ret[0]), compare_level);
	return n;
}

void params_complete(const struct json *from, struct json *to)
{
	for (const struct json *m = json_first(from); m && json_count(to) < PARAMS_MAX;
		m = json_next(m))
		if (!json_get(to, json_key(m)))
			json_set(to, json_key(m), json_clone(m));
}

struct json *params_read(const char *path, const char *text, size_t len)
{
	size_t kind = params_kind_of(path);
	AUTO_JSON struct json *json = NULL;
	struct json *flat;

	if (kind == PARAMS_FILES || len > PARAMS_FILE_MAX)
		return NULL;
	json = kinds[kind].read(text, len);
	if (!json || json_kind(json) != JSON_OBJECT)
		return NULL;
	flat = json_object();
	flatten(json, "", 0, flat);
	return flat;
}

/*
 * Below a directory
 */

struct read_file {
	char *path;
	struct stat seen;
	struct json *values; /* NULL: none yet */
};

struct params {
	char *dir;
	unsigned n_polls;
	struct read_file read[PARAMS_FILES];
	size_t n;
	struct json *values;
};

struct params *params_new(const char *outputs)
{
	struct params *params = mem_alloc(1, sizeof(*params));

	params->dir = mem_strdup(outputs);
	params->values = json_object();
	return params;
}

struct walk {
	struct outputs_files *files;
	struct strv dirs; /* to be read, relative to the top */
	size_t entries;
};

static void add_entry(struct walk *walk, int dirfd, const char *dir, const char *name)
{
	AUTO_FREE char *path = *dir ? mem_printf("%s/%s", dir, name) : mem_strdup(name);
	struct stat st;

	if (fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return;
	if (S_ISDIR(st.st_mode) && count_slashes(path) < PARAMS_LEVELS)
		strv_add(&walk->dirs, path);
	else if (S_ISREG(st.st_mode) && params_kind_of(path) < PARAMS_FILES)
		*vec_push(walk->files) =
			(struct outputs_file){mem_strdup(path), (uint64_t)st.st_size,
				(int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec};
}

static void params_read_dir(struct walk *walk, int root, const char *dir)
{
	int fd = fs_open_beneath(root, *dir ? dir : ".", O_RDONLY | O_DIRECTORY, 0);
	AUTO_DIR DIR *stream = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *entry;

	if (!stream) {
		if (fd >= 0)
			close(fd);
		return;
	}
	while (walk->entries < PARAMS_ENTRIES && (entry = readdir(stream))) {
		bool may_be_dir = entry->d_type == DT_DIR || entry->d_type == DT_UNKNOWN;

		walk->entries++;
		if (str_eq(entry->d_name, ".") || str_eq(entry->d_name, ".."))
			continue;
		if (may_be_dir || str_ends(entry->d_name, ".json") ||
			str_ends(entry->d_name, ".yaml"))
			add_entry(walk, dirfd(stream), dir, entry->d_name);
	}
}

static void forget_files(struct read_file *files, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		free(files[i].path);
		json_free(files[i].values);
	}
}

/* The file with what was read of it before. */
static struct read_file params_take_file(struct params *params, const char *path)
{
	for (size_t i = 0; i < params->n; i++) {
		struct read_file file = params->read[i];
		if (!str_eq(file.path, path))
			continue;
		params->read[i] = (struct read_file){0};
		return file;
	}
	return (struct read_file){.path = mem_strdup(path)};
}

/* Walk breadth-first, so that files near to the top are found before deep ones. */
static void params_find_files(struct params *params, int root)
{
	const struct outputs_file *chosen[PARAMS_FILES] = {0};
	struct read_file read[PARAMS_FILES] = {0};
	struct outputs_files files = {0};
	struct walk walk = {.files = &files};

	strv_add(&walk.dirs, "");
	for (size_t i = 0; i < walk.dirs.n && walk.entries < PARAMS_ENTRIES; i++) {
		AUTO_FREE char *dir = mem_strdup(walk.dirs.v[i]);
		params_read_dir(&walk, root, dir);
	}
	size_t n = params_choose(&files, chosen);
	for (size_t i = 0; i < n; i++)
		read[i] = params_take_file(params, chosen[i]->path);
	forget_files(params->read, params->n);
	memcpy(params->read, read, n * sizeof(read[0]));
	params->n = n;
	strv_done(&walk.dirs);
	outputs_files_done(&files);
}

static bool params_is_same(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
	       a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* Half of one that is being written is read again when its time has changed. */
static bool read_changed(struct read_file *file, int root)
{
	AUTO_FD int fd = fs_open_beneath(root, file->path, O_RDONLY | O_NONBLOCK, 0);
	AUTO_BUF struct buf text = {0};
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) ||
		params_is_same(&st, &file->seen))
		return false;
	file->seen = st;
	if (fs_read_fd(fd, file->path, PARAMS_FILE_MAX, &text, NULL) < 0)
		return false;
	struct json *values = params_read(file->path, text.data, text.len);
	if (!values)
		return false;
	json_free(file->values);
	file->values = values;
	return true;
}

static bool is_power_of_two(unsigned n)
{
	return (n & (n - 1)) == 0;
}

void params_poll(struct params *params, bool all)
{
	AUTO_FD int root = open(params->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	bool is_new = false;

	if (root < 0)
		return;
	if (all || is_power_of_two(++params->n_polls))
		params_find_files(params, root);
	for (size_t i = 0; i < params->n; i++)
		is_new |= read_changed(&params->read[i], root);
	if (!is_new)
		return;
	json_free(params->values);
	params->values = json_object();
	for (size_t i = 0; i < params->n; i++)
		params_complete(params->read[i].values, params->values);
}

struct json *params_json(const struct params *params)
{
	return json_clone(params->values);
}

void params_free(struct params *params)
{
	if (!params)
		return;
	forget_files(params->read, params->n);
	free(params->dir);
	json_free(params->values);
	free(params);
}

void outputs_files_done(struct outputs_files *files)
{
	vec_foreach (struct outputs_file, file, files)
		free(file->path);
	vec_done(files);
}
