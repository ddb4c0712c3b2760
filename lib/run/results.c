#include "run/results.h"

#include <stdlib.h>
#include <string.h>

#include "base/auto.h"
#include "base/mem.h"
#include "base/str.h"

#define COUNT_MAX INT64_C(999999999999999)

/* One name at the top: a file, or a directory with all that is in it. */
struct top {
	const char *path;
	size_t len; /* with the slash of a directory */
	uint64_t files, bytes;
};
struct tops VEC_OF(struct top);

static int compare_path(const void *a, const void *b)
{
	const struct top *x = a, *y = b;
	int order = memcmp(x->path, y->path, x->len < y->len ? x->len : y->len);

	return order ? order : (x->len > y->len) - (x->len < y->len);
}

static int compare_size(const void *a, const void *b)
{
	const struct top *x = a, *y = b;

	if (x->bytes != y->bytes)
		return x->bytes < y->bytes ? 1 : -1;
	return compare_path(a, b);
}

/* Sorted by path, what lies in one directory stands together. */
static void add_file(struct tops *entries, const struct outputs_file *file)
{
	const char *slash = strchr(file->path, '/');
	size_t len = slash ? (size_t)(slash + 1 - file->path) : strlen(file->path);
	struct top *last = entries->n ? &entries->v[entries->n - 1] : NULL;

	if (!slash || !last || last->len != len || memcmp(last->path, file->path, len) != 0) {
		last = vec_push(entries);
		*last = (struct top){.path = file->path, .len = len};
	}
	last->files++;
	last->bytes += file->size;
}

/* JSON keeps 15 digits, and a sparse file may claim more. */
static void set_count(struct json *json, const char *key, uint64_t n)
{
	json_set_int(json, key, n < COUNT_MAX ? (int64_t)n : COUNT_MAX);
}

struct json *results_json(const struct outputs_files *files, bool is_cut)
{
	struct json *json = json_object(), *list = json_array();
	struct tops entries = {0};
	uint64_t bytes = 0;

	vec_foreach (const struct outputs_file, file, files) {
		add_file(&entries, file);
		bytes += file->size;
	}
	size_t n = entries.n < RESULTS_KEPT ? entries.n : RESULTS_KEPT;
	vec_sort(&entries, compare_size);
	set_count(json, "files", files->n);
	set_count(json, "bytes", bytes);
	json_set_bool(json, "is_cut", is_cut);
	set_count(json, "more", entries.n - n);
	entries.n = n;
	vec_sort(&entries, compare_path);
	vec_foreach (const struct top, entry, &entries) {
		struct json *one = json_object();
		json_set_bytes(one, "path", entry->path, entry->len);
		set_count(one, "files", entry->files);
		set_count(one, "bytes", entry->bytes);
		json_add(list, one);
	}
	json_set(json, "entries", list);
	vec_done(&entries);
	return json;
}

bool results_is_valid(const struct json *results)
{
	const struct json *entries = json_get(results, "entries");

	if (json_get_int(results, "files", -1) < 0 || !entries ||
		json_kind(entries) != JSON_ARRAY || json_count(entries) > RESULTS_KEPT)
		return false;
	for (const struct json *one = json_first(entries); one; one = json_next(one))
		if (!json_get_str(one, "path") || json_get_int(one, "files", -1) < 0 ||
			json_get_int(one, "bytes", -1) < 0)
			return false;
	return true;
}

static void add_words(const struct top *entry, struct strv *ret)
{
	AUTO_FREE char *path = mem_strndup(entry->path, entry->len);
	AUTO_FREE char *name = str_shown(path);
	AUTO_FREE char *text = NULL;
	char size[16];

	str_size(entry->bytes, size);
	if (entry->path[entry->len - 1] == '/')
		text = mem_printf("%s %llu %s %s", name, (unsigned long long)entry->files,
			entry->files == 1 ? "file" : "files", size);
	else
		text = mem_printf("%s %s", name, size);
	strv_add(ret, text);
}

void results_words(const struct json *results, struct strv *ret)
{
	struct tops entries = {0};

	if (!results_is_valid(results))
		return;
	for (const struct json *one = json_first(json_get(results, "entries")); one;
		one = json_next(one)) {
		const char *path = json_get_str(one, "path");
		if (*path)
			*vec_push(&entries) = (struct top){path, strlen(path),
				(uint64_t)json_get_int(one, "files", 0),
				(uint64_t)json_get_int(one, "bytes", 0)};
	}
	int64_t more = json_get_int(results, "more", 0);
	size_t n = entries.n < RESULTS_SHOWN ? entries.n : RESULTS_SHOWN;
	more += (int64_t)(entries.n - n);
	vec_sort(&entries, compare_size);
	entries.n = n;
	vec_sort(&entries, compare_path);
	vec_foreach (const struct top, entry, &entries)
		add_words(entry, ret);
	if (json_get_bool(results, "is_cut", false)) {
		strv_add(ret, "and more");
	} else if (more > 0) {
		AUTO_FREE char *rest = mem_printf("and %lld more", (long long)more);
		strv_add(ret, rest);
	}
	vec_done(&entries);
}
