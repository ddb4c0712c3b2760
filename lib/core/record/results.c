/* SPDX-License-Identifier: Apache-2.0 */
#include "core/record/results.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/record/params.h"
#include "kube/job/job.h"

#define COUNT_MAX INT64_C(999999999999999)

/* An entry at the top level: a file, or a directory with all that is in it. */
struct top {
	const char *path;
	size_t len; /* with the slash of a directory */
	uint64_t files, bytes;
};
struct tops VEC_OF(struct top);

static int results_compare_path(const void *a, const void *b)
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
	return results_compare_path(a, b);
}

/* JSON keeps 15 digits, and a sparse file may claim more. */
static void set_count(struct json *json, const char *key, uint64_t n)
{
	json_set_int(json, key, n < COUNT_MAX ? (int64_t)n : COUNT_MAX);
}

/* more: names that are not among the entries. */
static struct json *sum_json(
	struct tops *entries, uint64_t files, uint64_t bytes, uint64_t more, bool is_cut)
{
	struct json *json = json_object(), *list = json_array();
	size_t n = entries->n < RESULTS_KEPT ? entries->n : RESULTS_KEPT;

	vec_sort(entries, compare_size);
	set_count(json, "files", files);
	set_count(json, "bytes", bytes);
	json_set_bool(json, "is_cut", is_cut);
	set_count(json, "more", more + entries->n - n);
	entries->n = n;
	vec_sort(entries, results_compare_path);
	vec_foreach (const struct top, entry, entries) {
		struct json *one = json_object();
		json_set_bytes(one, "path", entry->path, entry->len);
		set_count(one, "files", entry->files);
		set_count(one, "bytes", entry->bytes);
		json_add(list, one);
	}
	json_set(json, "entries", list);
	vec_done(entries);
	return json;
}

struct json *results_json(const struct outputs_files *files, bool is_cut)
{
	struct tops entries = {0};
	uint64_t bytes = 0;

	vec_foreach (const struct outputs_file, file, files) {
		/* Sorted by path, what lies in one directory stands together. */
		const char *slash = strchr(file->path, '/');
		size_t len = slash ? (size_t)(slash + 1 - file->path) : strlen(file->path);
		struct top *last = entries.n ? &entries.v[entries.n - 1] : NULL;

		if (!slash || !last || last->len != len ||
			memcmp(last->path, file->path, len) != 0) {
			last = vec_push(&entries);
			*last = (struct top){.path = file->path, .len = len};
		}
		last->files++;
		last->bytes += file->size;
		bytes += file->size;
	}
	return sum_json(&entries, files->n, bytes, 0, is_cut);
}

/*
 * Reports of pods
 */

struct pod_report {
	struct tops entries;
	uint64_t files, bytes, more;
	struct strv names;                    /* of the entries */
	struct outputs_files params;          /* path and size of each, */
	struct VEC_OF(const char *) contents; /* and what is in it */
};

static void report_done(struct pod_report *report)
{
	vec_done(&report->entries);
	strv_done(&report->names);
	outputs_files_done(&report->params);
	vec_done(&report->contents);
}

static bool results_take_number(const char **at, uint64_t *ret)
{
	char *end;

	if (!str_is_digit(**at))
		return false;
	*ret = strtoull(*at, &end, 10);
	if (*ret > COUNT_MAX || (*end != ' ' && *end != '\n'))
		return false;
	*at = end + 1;
	return true;
}

/* Up to the end of the line, which is passed; NULL: there is none. The caller frees. */
static char *results_take_name(const char **at)
{
	size_t len = strcspn(*at, "\n"), n = 0;
	char *name = (*at)[len] ? mem_strndup(*at, len) : NULL;

	for (size_t i = 0; name && i < len; i++) {
		bool is_escaped = name[i] == '\\' && i + 1 < len;
		i += is_escaped;
		name[n++] = is_escaped && name[i] == 'n' ? '\n' : name[i];
	}
	if (name)
		name[n] = '\0';
	*at += name ? len + 1 : 0;
	return name;
}

static bool take_params(const char **at, const char *prefix, struct pod_report *report)
{
	uint64_t size;

	if (!results_take_number(at, &size))
		return false;
	size_t len = strcspn(*at, "\n");
	const char *content = *at + len + 1;
	if (!(*at)[len] || strnlen(content, (size_t)size + 1) <= size)
		return false;
	*vec_push(&report->params) = (struct outputs_file){
		.path = mem_printf("%s%.*s", prefix, (int)len, *at), .size = size};
	*vec_push(&report->contents) = content;
	*at = content + size + 1;
	return true;
}

static bool results_take_line(const char **at, const char *prefix, struct pod_report *report)
{
	static const char params[] = "params ";
	struct top top = {0};

	if (str_starts(*at, params)) {
		*at += strlen(params);
		return take_params(at, prefix, report);
	}
	if (!results_take_number(at, &top.files) || !results_take_number(at, &top.bytes))
		return false;
	AUTO_FREE char *name = results_take_name(at);
	if (str_empty(name))
		return false;
	/* Files of another rank are summed up in one entry. */
	if (*prefix)
		return true;
	top.len = strlen(name);
	top.path = name;
	strv_add_take(&report->names, TAKE(name));
	*vec_push(&report->entries) = top;
	return true;
}

static bool results_take_report(const char *text, size_t rank, struct pod_report *report)
{
	AUTO_FREE char *prefix = rank ? mem_printf("rank-%zu/", rank) : mem_strdup("");
	const char *at = text ? strstr(text, KUBE_JOB_RESULTS " ") : NULL;
	uint64_t files, bytes, more;

	if (!at)
		return false;
	at += strlen(KUBE_JOB_RESULTS " ");
	if (!results_take_number(&at, &files) || !results_take_number(&at, &bytes) ||
		!results_take_number(&at, &more))
		return false;
	report->files += files;
	report->bytes += bytes;
	report->more += rank ? 0 : more;
	while (*at && results_take_line(&at, prefix, report))
		continue;
	if (rank && files) {
		*vec_push(&report->entries) = (struct top){prefix, strlen(prefix), files, bytes};
		strv_add_take(&report->names, TAKE(prefix));
	}
	return true;
}

static struct json *report_params(const struct pod_report *report)
{
	const struct outputs_file *chosen[PARAMS_FILES] = {0};
	size_t n = params_choose(&report->params, chosen);
	struct json *all = json_object();

	for (size_t i = 0; i < n; i++) {
		const char *content = report->contents.v[chosen[i] - report->params.v];
		AUTO_JSON struct json *values =
			params_read(chosen[i]->path, content, (size_t)chosen[i]->size);
		params_complete(values, all);
	}
	return all;
}

struct json *results_reported(char *const *texts, size_t n, struct json **ret_params)
{
	AUTO(report_done) struct pod_report report = {0};
	bool is_cut = false;

	if (n == 0 || !results_take_report(texts[0], 0, &report))
		return NULL;
	for (size_t i = 1; i < n; i++)
		is_cut |= !results_take_report(texts[i], i, &report);
	*ret_params = report_params(&report);
	return sum_json(&report.entries, report.files, report.bytes, report.more, is_cut);
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

static void results_add_words(const struct top *entry, struct strv *ret)
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
	vec_sort(&entries, results_compare_path);
	vec_foreach (const struct top, entry, &entries)
		results_add_words(entry, ret);
	if (json_get_bool(results, "is_cut", false)) {
		strv_add(ret, "and more");
	} else if (more > 0) {
		AUTO_FREE char *rest = mem_printf("and %lld more", (long long)more);
		strv_add(ret, rest);
	}
	vec_done(&entries);
}

/*
 * Results that were taken here
 */

char *taken_path(const struct dirs *dirs, const char *run_id, int attempt)
{
	AUTO_FREE char *dir = dirs_attempt(dirs, run_id, attempt);

	return fs_join(dir, "taken");
}

bool taken_is_done(const struct dirs *dirs, const char *run_id, int attempt)
{
	AUTO_FREE char *path = taken_path(dirs, run_id, attempt);

	return access(path, F_OK) == 0;
}

int taken_read(const struct dirs *dirs, const char *run_id, int attempt, struct buf *ret)
{
	AUTO_FREE char *path = taken_path(dirs, run_id, attempt);

	buf_init(ret, TAKEN_MAX);
	return fs_read(path, TAKEN_MAX, ret, NULL, NULL) == 0 && ret->len > 0;
}

int64_t taken_wait_ms(const struct run *run)
{
	const char *text = json_get_str(run->doc, TAKEN_UNTIL);
	int64_t until_ms = 0, now_ms = clock_wall_ms();

	if (!text || !run_state_is_final(run_state(run)) || clock_parse(text, &until_ms, NULL) < 0)
		return 0;
	return until_ms > now_ms ? until_ms - now_ms : 0;
}

char *taken_text(const struct run *run)
{
	const char *lost = json_get_str(run->doc, TAKEN_LOST);
	const char *unsent = json_get_str(run->doc, TAKEN_UNSENT);
	int64_t wait_ms = taken_wait_ms(run);
	char time[32];

	if (unsent)
		return mem_printf("%s; what its pod could not send is lost", unsent);
	if (lost)
		return mem_printf("its results are lost: %s before they were fetched", lost);
	if (!wait_ms)
		return mem_strdup("");
	return mem_printf("its results wait in the cluster for %s", duration_text(wait_ms, time));
}

void taken_add(struct buf *list, enum taken_kind kind, const char *prefix, const char *path)
{
	buf_addf(list, "%c%zu %s%s", kind, strlen(prefix), prefix, path);
	buf_addc(list, '\0');
}
