#include "run/params.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "base/fs.h"
#include "base/str.h"

struct params {
	char *path;
	struct stat seen;
	struct json *values;
};

struct params *params_new(const char *outputs)
{
	struct params *params = mem_alloc(1, sizeof(*params));

	params->path = fs_join(outputs, PARAMS_FILE);
	params->values = json_object();
	return params;
}

/*
 * The flat form
 */

static void add_text(struct json *to, const char *key, const struct json *value)
{
	AUTO_BUF struct buf text;

	buf_init(&text, PARAMS_TEXT_MAX);
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
			add_text(to, key, m);
		else if (json_kind(m) != JSON_STRING || strlen(json_str(m)) <= PARAMS_TEXT_MAX)
			json_set(to, key, json_clone(m));
	}
}

struct json *params_flatten(const struct json *object)
{
	struct json *flat = json_object();

	if (json_kind(object) == JSON_OBJECT)
		flatten(object, "", 0, flat);
	return flat;
}

/*
 * The file
 */

static bool is_same(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
	       a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

void params_look(struct params *params)
{
	struct stat st;
	AUTO_BUF struct buf text = {0};
	AUTO_JSON struct json *json = NULL;

	if (lstat(params->path, &st) < 0 || is_same(&st, &params->seen))
		return;
	params->seen = st;
	AUTO_FD int fd = open(params->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) ||
		fs_read_fd(fd, PARAMS_FILE, PARAMS_FILE_MAX, &text, NULL) < 0)
		return;
	/* Half of one that is being written is read again when its time has changed. */
	if (json_parse(text.data, text.len, PARAMS_FILE_MAX, PARAMS_FILE, &json, NULL) < 0 ||
		json_kind(json) != JSON_OBJECT)
		return;
	json_free(params->values);
	params->values = params_flatten(json);
}

struct json *params_json(const struct params *params)
{
	return json_clone(params->values);
}

void params_free(struct params *params)
{
	if (!params)
		return;
	free(params->path);
	json_free(params->values);
	free(params);
}
