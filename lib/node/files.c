/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "node/node_impl.h"
#include "node/wire.h"

/* The list of a run's results. */

struct files {
	struct node_call call;
	struct node_files *ret;
};

void node_files_done(struct node_files *files)
{
	if (!files)
		return;
	vec_foreach (struct node_file, file, files) {
		free(file->path);
		free(file->target);
	}
	vec_done(files);
}

/* Relative, no empty name, no "." or "..". */
static bool node_file_path_is_good(const char *path)
{
	for (;;) {
		size_t len = strcspn(path, "/");

		if (len == 0 || (len == 1 && *path == '.') ||
			(len == 2 && memcmp(path, "..", 2) == 0))
			return false;
		if (!path[len])
			return true;
		path += len + 1;
	}
}

static bool to_mode(const char *word, unsigned *ret)
{
	char *end;
	unsigned long mode = strtoul(word, &end, 8);

	*ret = (unsigned)mode & 07777;
	return *word && !*end && str_is_digit(*word) && mode <= 07777;
}

static bool parse_file(char *const *v, size_t n, struct node_file *file)
{
	uint64_t mtime_ms;

	if (n != 5 || !node_word_number(v[1], &file->size) || !node_word_number(v[2], &mtime_ms) ||
		mtime_ms > INT64_MAX)
		return false;
	file->mtime_ms = (int64_t)mtime_ms;
	return to_mode(v[3], &file->mode);
}

int node_file_parse(const struct node_words *words, struct node_file *ret, struct err *err)
{
	char *const *v = words->v;
	size_t n = words->n;
	struct node_file file = {.kind = n ? *v[0] : '\0'};
	bool is_good = false;

	if (file.kind == 'f')
		is_good = parse_file(v, n, &file);
	else if (file.kind == 'd')
		is_good = n == 3 && to_mode(v[1], &file.mode);
	else if (file.kind == 'l')
		is_good = n == 3 && *v[1];
	if (!is_good || !node_file_path_is_good(v[n - 1]))
		return err_set(err, E_NODE_PROTOCOL, "the host sent an invalid file");
	file.path = mem_strdup(v[n - 1]);
	if (file.kind == 'l')
		file.target = mem_strdup(v[1]);
	*ret = file;
	return 0;
}

static void files_reset(struct node_call *call)
{
	node_files_done(((struct files *)call)->ret);
}

static int files_line(struct node_call *call, struct err *err)
{
	struct files *files = (struct files *)call;
	struct node_file file;

	if (files->ret->n >= NODE_FILES_MAX)
		return err_set(
			err, E_DATA_LIMIT, "the results are more than %d files", NODE_FILES_MAX);
	int r = node_file_parse(&call->words, &file, err);
	if (r == 0)
		*vec_push(files->ret) = file;
	return r;
}

static const struct call_ops files_ops = {
	.reset = files_reset, .keys = "d f l", .keyed_line = files_line};

/* The word of a request that says where files are. */
static void call_scope(
	struct node_call *call, const char *run, const struct node_files_scope *scope)
{
	AUTO_FREE char *tree =
		scope && scope->attempt ? mem_printf("%s/%d", run, scope->attempt) : NULL;

	call_word(call, tree ? tree : run);
}

struct node_call *node_files(struct node *node, const char *run,
	const struct node_files_scope *scope, struct node_files *ret, node_done_fn *done, void *ctx)
{
	AUTO_ERR struct err error = {0};
	struct files *files = call_new(node, sizeof(*files), &files_ops, done, ctx);

	files->ret = ret;
	call_add_text(&files->call, "files");
	call_scope(&files->call, run, scope);
	if (scope && (scope->path || scope->like))
		call_word(&files->call, scope->path ? scope->path : ".");
	for (size_t i = 0; scope && scope->like && i < scope->like->n; i++)
		call_word(&files->call, scope->like->v[i]);
	call_line_end(&files->call);
	return call_begin_checked(&files->call, node_check_attempt(run, 1, &error), &error);
}

/* The contents of results: one stream, in their order, begun again where it was cut. */

/* Of one request. */
enum { WANTS_MAX = 20000 };

struct get {
	struct node_call call;
	char *run;
	struct node_files_scope scope;
	const struct node_want *wants;
	size_t n, at;                        /* at: the file whose bytes come */
	size_t requested_from, requested_to; /* the files of this request */
	struct node_get_events events;
	struct VEC_OF(uint64_t) sizes; /* that were said, from sizes_at on not begun */
	size_t sizes_at;
	bool is_begun, in_file; /* begun: the caller knows its size */
	uint64_t got, promised; /* of the file */
	uint64_t left;          /* of what comes */
	bool is_refused;
	char *cut; /* the first file that became shorter while it was read there */
};

static void get_free(struct node_call *call)
{
	struct get *get = (struct get *)call;

	vec_done(&get->sizes);
	free(get->cut);
	free(get->run);
}

static int get_begin(struct node_call *call, struct node_request *request, struct err *err UNUSED)
{
	struct get *get = (struct get *)call;
	size_t n = get->n - get->at;

	request->kind = NODE_RAW;
	get->sizes.n = get->sizes_at = 0;
	get->in_file = false;
	get->requested_from = get->at;
	get->requested_to = get->at + (n < WANTS_MAX ? n : WANTS_MAX);
	buf_reset(&call->text);
	call_add_text(call, "get");
	call_scope(call, get->run, &get->scope);
	call_line_end(call);
	for (size_t i = get->at; i < get->requested_to; i++) {
		uint64_t got = i == get->at ? get->got : 0;

		call_add_text(call, "want");
		call_number(call, get->wants[i].offset + got);
		call_number(call, get->wants[i].len - got);
		call_word(call, get->wants[i].file->path);
		call_line_end(call);
	}
	return 0;
}

/* A file goes on behind a cut. */
static int files_go_on(struct get *get, uint64_t size, struct err *err)
{
	uint64_t missing = get->promised - get->got;

	if (size < missing)
		return err_set(err, E_IO_CHANGED, "%s became shorter while it was fetched",
			get->wants[get->at].file->path);
	/* The file was not complete at first, and has grown. */
	get->left = get->promised = size;
	get->promised += get->got;
	return 0;
}

static int files_begin_file(struct get *get, uint64_t size, struct err *err)
{
	get->in_file = true;
	if (size > get->wants[get->at].len - (get->is_begun ? get->got : 0))
		return err_set(err, E_NODE_PROTOCOL, "the host sent more than was requested");
	if (get->is_begun)
		return files_go_on(get, size, err);
	get->is_begun = true;
	get->got = 0;
	get->promised = get->left = size;
	int r = get->events.begin(get->events.ctx, get->at, size, err);
	if (r < 0)
		get->is_refused = true;
	return r;
}

/* Files that are whole, and the beginning of the next one as far as its size is known. */
static int files_advance(struct get *get, struct err *err)
{
	for (;;) {
		if (get->in_file && get->left == 0) {
			get->in_file = get->is_begun = false;
			get->got = 0;
			get->at++;
		}
		if (get->in_file || get->sizes_at == get->sizes.n)
			return 0;
		if (get->at >= get->requested_to)
			return err_set(err, E_NODE_PROTOCOL, "the host sent too many files");
		int r = files_begin_file(get, get->sizes.v[get->sizes_at++], err);
		if (r < 0)
			return r;
	}
}

static int get_line(
	struct node_call *call, enum channel_flow flow UNUSED, char *line, struct err *err)
{
	struct get *get = (struct get *)call;
	uint64_t size;

	if (str_starts(line, "short ")) {
		/* Of a file that was cut short: it is padded with zeros up to its size. */
		size_t i = get->requested_from + get->sizes.n - 1;
		if (get->sizes.n && i < get->n && !get->cut)
			get->cut = mem_strdup(get->wants[i].file->path);
		return 1;
	}
	if (!str_starts(line, "size "))
		return 0;
	if (!node_word_number(line + strlen("size "), &size) || size > INT64_MAX)
		return err_set(err, E_NODE_PROTOCOL, "the host sent an invalid size");
	if (get->sizes.n >= WANTS_MAX)
		return err_set(err, E_NODE_PROTOCOL, "the host sent too many files");
	*vec_push(&get->sizes) = size;
	int r = files_advance(get, err);
	if (r < 0)
		return r;
	/* Bytes may wait for it. */
	node_conn_wake(call->conn);
	return 1;
}

/* Bytes of the present file; how many. */
static ssize_t take_some(struct get *get, const char *data, size_t len, struct err *err)
{
	size_t n = len < get->left ? len : (size_t)get->left;
	int r = get->events.data(get->events.ctx, get->at, data, n, err);
	if (r < 0) {
		get->is_refused = true;
		return r;
	}
	get->left -= n;
	get->got += n;
	return (ssize_t)n;
}

static ssize_t get_raw(struct node_call *call, enum channel_flow flow UNUSED, const char *data,
	size_t len, struct err *err)
{
	struct get *get = (struct get *)call;
	size_t at = 0;

	while (at < len && get->in_file) {
		ssize_t n = take_some(get, data + at, len - at, err);

		if (n < 0)
			return n;
		at += (size_t)n;
		int r = files_advance(get, err);
		if (r < 0)
			return r;
	}
	if (at)
		call_progressed(call);
	return (ssize_t)at;
}

static enum call_next get_ended(struct node_call *call, struct err *error)
{
	struct get *get = (struct get *)call;

	if (get->is_refused)
		return CALL_OVER;
	if (!err_is_set(error) && get->at < get->requested_to)
		err_set(error, E_NODE_LOST, "%s did not send all of %s", call->node->name,
			get->wants[get->at].file->path);
	if (!err_is_set(error) && get->at < get->n)
		return CALL_AGAIN;
	if (!err_is_set(error) && get->cut)
		err_set(error, E_IO_CHANGED, "%s became shorter while it was fetched", get->cut);
	return call_next(call, error);
}

static const struct call_ops get_ops = {
	.begin = get_begin,
	.line = get_line,
	.raw = get_raw,
	.ended = get_ended,
	.free = get_free,
};

struct node_call *node_get(struct node *node, const char *run, const struct node_files_scope *scope,
	const struct node_want *wants, size_t n, const struct node_get_events *events,
	node_done_fn *done, void *ctx)
{
	AUTO_ERR struct err error = {0};
	struct get *get = call_new(node, sizeof(*get), &get_ops, done, ctx);

	get->run = mem_strdup(run);
	get->wants = wants;
	if (scope)
		get->scope.attempt = scope->attempt;
	get->n = n;
	get->events = *events;
	int r = node_check_attempt(run, 1, &error);
	if (r < 0)
		call_finish(&get->call, &error);
	else if (n == 0)
		call_finish(&get->call, NULL);
	else
		call_begin(&get->call);
	return &get->call;
}
