/* SPDX-License-Identifier: Apache-2.0 */
/* The list of a run's results. */
#include <stdlib.h>
#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "node/files.h"
#include "node/node_impl.h"

struct files {
	struct node_call call;
	struct node_words words;
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

static bool is_name(const char *part, size_t len)
{
	return len > 0 && !(len == 1 && *part == '.') && !(len == 2 && memcmp(part, "..", 2) == 0);
}

bool node_file_path_is_good(const char *path)
{
	for (;;) {
		size_t len = strcspn(path, "/");

		if (!is_name(path, len))
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

static void files_free(struct node_call *call)
{
	vec_done(&((struct files *)call)->words);
}

static int files_begin(struct node_call *call, struct node_request *request, struct err *err)
{
	(void)request;
	(void)err;
	node_files_done(((struct files *)call)->ret);
	return 0;
}

static bool is_file_line(const char *line)
{
	return *line && strchr("dfl", *line) && line[1] == ' ';
}

static int files_line(struct node_call *call, enum channel_flow flow, char *line, struct err *err)
{
	struct files *files = (struct files *)call;
	struct node_file file;

	(void)flow;
	if (!is_file_line(line))
		return 0;
	if (files->ret->n >= NODE_FILES_MAX)
		return err_set(
			err, E_DATA_LIMIT, "the results are more than %d files", NODE_FILES_MAX);
	int r = node_words_split(line, &files->words, err);
	if (r == 0)
		r = node_file_parse(&files->words, &file, err);
	if (r < 0)
		return r;
	*vec_push(files->ret) = file;
	return 1;
}

static const struct call_ops files_ops = {
	.begin = files_begin, .line = files_line, .free = files_free};

void call_scope(struct node_call *call, const char *run, const struct node_files_scope *scope)
{
	AUTO_FREE char *tree =
		scope && scope->attempt ? mem_printf("%s/%d", run, scope->attempt) : NULL;

	call_word(call, tree ? tree : run);
}

struct node_call *node_files(struct node *node, const char *run,
	const struct node_files_scope *scope, struct node_files *ret, node_done_fn *done, void *ctx)
{
	AUTO_ERR struct err fault = {0};
	struct files *files = call_new(node, sizeof(*files), &files_ops, done, ctx);

	files->ret = ret;
	call_say(&files->call, "files");
	call_scope(&files->call, run, scope);
	if (scope && (scope->path || scope->like))
		call_word(&files->call, scope->path ? scope->path : ".");
	for (size_t i = 0; scope && scope->like && i < scope->like->n; i++)
		call_word(&files->call, scope->like->v[i]);
	call_line_end(&files->call);
	if (node_check_attempt(run, 1, &fault) < 0)
		call_finish(&files->call, &fault);
	else
		call_begin(&files->call);
	return &files->call;
}
