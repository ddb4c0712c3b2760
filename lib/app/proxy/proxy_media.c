/* SPDX-License-Identifier: Apache-2.0 */
#include "app/proxy/proxy_media.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "app/proxy/html.h"
#include "app/proxy/proxy_name.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"

#define MEDIA_PATH    "/media/"
#define MEDIA_VERSION "v="

enum { MEDIA_URL_MAX = 64 << 10 };

/*
 * URLs
 */

char *proxy_media_version(const struct outputs_file *file)
{
	return mem_printf(
		"%llx-%llx", (unsigned long long)file->size, (unsigned long long)file->mtime_ns);
}

bool proxy_media_parse(const char *target, char ret_run[static RUN_ID_SIZE], const char **ret_path)
{
	const char *run = target + strlen(MEDIA_PATH), *path;

	if (strncmp(target, MEDIA_PATH, strlen(MEDIA_PATH)) != 0)
		return false;
	path = run + strcspn(run, "/?");
	if (*path != '/' || path == run || path - run >= RUN_ID_SIZE)
		return false;
	memcpy(ret_run, run, (size_t)(path - run));
	ret_run[path - run] = '\0';
	*ret_path = path;
	return run_id_is_valid(ret_run);
}

/*
 * Rows
 */

struct media_file {
	const struct outputs_file *file;
	size_t run;
	enum proxy_show show;
	char *row; /* the path with "#" for each number */
};
struct media_files VEC_OF(struct media_file);

struct media_row {
	size_t first, n; /* files of it */
	int64_t newest_ns;
	const char *name;
};
struct media_rows VEC_OF(struct media_row);

/* The ending is part of the row's name ("a.mp4"). */
static char *media_row_name(const char *path)
{
	const char *ending = strrchr(path, '.');
	char *name = mem_strdup(path), *out = name;

	for (const char *at = path; *at; at++) {
		if (at < ending && str_is_digit(*at) && out > name && out[-1] == '#')
			continue;
		*out++ = at < ending && str_is_digit(*at) ? '#' : *at;
	}
	*out = '\0';
	return name;
}

static void media_collect(const struct proxy_media_list *list, struct media_files *ret)
{
	for (size_t i = 0; i < list->n; i++) {
		vec_foreach (struct outputs_file, file, list->v[i].files) {
			enum proxy_show show = proxy_type_of(file->path)->show;

			if (file->size && show != PROXY_SAVED && show != PROXY_TEXT)
				*vec_push(ret) = (struct media_file){
					file, i, show, media_row_name(file->path)};
		}
	}
}

static int media_compare_times(int64_t a_ns, int64_t b_ns)
{
	return a_ns > b_ns ? -1 : a_ns < b_ns;
}

/* By row and run, the newest first; of the same time the highest number. */
static int media_compare_files(const void *a_ptr, const void *b_ptr)
{
	const struct media_file *a = a_ptr, *b = b_ptr;
	int order = strcmp(a->row, b->row);

	if (order == 0 && a->run != b->run)
		order = a->run < b->run ? -1 : 1;
	if (order == 0)
		order = media_compare_times(a->file->mtime_ns, b->file->mtime_ns);
	if (order)
		return order;
	size_t a_len = strlen(a->file->path), b_len = strlen(b->file->path);
	return a_len != b_len ? (a_len > b_len ? -1 : 1) : strcmp(b->file->path, a->file->path);
}

static int media_compare_rows(const void *a_ptr, const void *b_ptr)
{
	const struct media_row *a = a_ptr, *b = b_ptr;
	int order = media_compare_times(a->newest_ns, b->newest_ns);

	return order ? order : strcmp(a->name, b->name);
}

static void media_divide(const struct media_files *files, struct media_rows *ret)
{
	for (size_t i = 0; i < files->n; i++) {
		const struct media_file *file = &files->v[i];
		struct media_row *row = ret->n ? &ret->v[ret->n - 1] : NULL;

		if (!row || strcmp(row->name, file->row) != 0) {
			row = vec_push(ret);
			*row = (struct media_row){
				.first = i, .newest_ns = file->file->mtime_ns, .name = file->row};
		}
		row->n++;
		if (file->file->mtime_ns > row->newest_ns)
			row->newest_ns = file->file->mtime_ns;
	}
	vec_sort(ret, media_compare_rows);
}

/*
 * The table
 */

static void media_add_figure(struct buf *out, const struct run *run, const struct media_file *media)
{
	static const char *const markup[] = {
		[PROXY_IMAGE] = "<img loading=\"lazy\" decoding=\"async\" src=\"%s\" "
				"alt=\"%s of %s\">",
		[PROXY_VIDEO] = "<video controls loop preload=\"metadata\" src=\"%s\" "
				"aria-label=\"%s of %s\"></video>",
		[PROXY_AUDIO] = "<audio controls preload=\"none\" src=\"%s\" "
				"aria-label=\"%s of %s\"></audio>",
	};
	const struct outputs_file *file = media->file;
	char time[CLOCK_TEXT_SIZE];
	AUTO_BUF struct buf url = buf_with(MEDIA_URL_MAX);
	AUTO_FREE char *version = proxy_media_version(file);

	/* The version changes with the file. */
	buf_addf(&url, MEDIA_PATH "%s/", run_id(run));
	html_path(&url, file->path);
	buf_addf(&url, "?" MEDIA_VERSION "%s", version);
	clock_format(file->mtime_ns / 1000000, time);
	html_addf(out, "<figure title=\"%s, %s\">", file->path, time);
	if (media->show == PROXY_IMAGE)
		html_addf(out, "<a href=\"%s\">", url.data);
	html_addf(out, markup[media->show], url.data, file->path, run_id(run));
	buf_adds(out, media->show == PROXY_IMAGE ? "</a><figcaption>" : "<figcaption>");
	/* The numbers of a path tell its step. */
	const char *ending = strrchr(file->path, '.');
	bool is_first = true;

	for (const char *at = file->path; at < ending; at++) {
		if (!str_is_digit(*at))
			continue;
		if ((at == file->path || !str_is_digit(at[-1])) && !is_first)
			buf_addc(out, ' ');
		buf_addc(out, *at);
		is_first = false;
	}
	buf_adds(out, "</figcaption></figure>\n");
}

static void media_add_row(struct buf *out, const struct proxy_media_list *list,
	const struct media_files *files, const struct media_row *row)
{
	size_t at = row->first;

	html_addf(out, "<tr><th scope=\"row\" title=\"%s\">%s</th>", row->name, row->name);
	for (size_t i = 0; i < list->n; i++) {
		/* The files of a run in the row, from at on. */
		size_t max = PROXY_MEDIA_STEPS / list->n, n = 0;

		if (max < PROXY_MEDIA_STEPS_MIN)
			max = PROXY_MEDIA_STEPS_MIN;
		buf_adds(out, "<td><div class=\"steps\">");
		for (; at < row->first + row->n && files->v[at].run == i; at++)
			if (n++ < max)
				media_add_figure(out, list->v[i].run, &files->v[at]);
		buf_adds(out, "</div>");
		if (n > max)
			buf_addf(out, "<p class=\"note\">and %zu before</p>", n - max);
		buf_adds(out, "</td>");
	}
	buf_adds(out, "</tr>\n");
}

void proxy_media_add(const struct proxy_media_list *list, struct buf *out)
{
	struct media_files files = {0};
	struct media_rows rows = {0};

	media_collect(list, &files);
	vec_sort(&files, media_compare_files);
	media_divide(&files, &rows);
	if (rows.n) {
		buf_adds(out, "<h2>Pictures, videos, sounds</h2>\n<div class=\"runs media\" "
			      "tabindex=\"0\" role=\"region\" aria-label=\"Pictures\"><table>\n"
			      "<thead><tr><th scope=\"col\">file</th>");
		vec_foreach (const struct proxy_media, each, list)
			html_addf(out, "<th scope=\"col\"><a href=\"/run/%s\">%s</a></th>",
				run_id(each->run), run_id(each->run));
		buf_adds(out, "</tr></thead>\n<tbody>\n");
		for (size_t i = 0; i < rows.n && i < PROXY_MEDIA_ROWS; i++)
			media_add_row(out, list, &files, &rows.v[i]);
		buf_adds(out, "</tbody></table></div>\n");
	}
	if (rows.n > PROXY_MEDIA_ROWS)
		buf_addf(out, "<p class=\"note\">and %zu more kinds of files</p>\n",
			rows.n - PROXY_MEDIA_ROWS);
	vec_foreach (struct media_file, file, &files)
		free(file->row);
	vec_done(&files);
	vec_done(&rows);
}
