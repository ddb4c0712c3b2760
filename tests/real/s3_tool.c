/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client of S3 (net/s3/s3.h) with the keys of the environment:
 *
 * s3_tool put FILE s3://BUCKET/KEY [NOTES]   NOTES: a file, to go on with, and with what arrived
 * s3_tool get s3://BUCKET/KEY [OFFSET MAX]   the bytes; s3_tool list s3://BUCKET/PREFIX
 * s3_tool rm s3://BUCKET/KEY                 errors: MESSAGE [ID]
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/loop/loop.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/str.h"
#include "net/s3/s3.h"

extern char **environ;

struct tool {
	struct loop *loop;
	struct s3 *s3;
	struct s3_address address;
	struct s3_objects objects;
	const char *notes;
	struct err error;
};

static int on_done(void *ctx, struct err *error, struct err *err)
{
	struct tool *tool = ctx;

	(void)err;
	err_move(&tool->error, error);
	loop_stop(tool->loop);
	return 0;
}

static int on_data(void *ctx, const void *data, size_t len, struct err *err)
{
	(void)ctx;
	return fwrite(data, 1, len, stdout) == len ? 0 : err_set(err, E_IO, "stdout");
}

static void on_noted(void *ctx, const char *resume)
{
	struct tool *tool = ctx;

	fs_replace(tool->notes, resume, strlen(resume), 0600, FS_SYNC_NONE, NULL);
	printf("noted\n");
	fflush(stdout);
}

static int put(struct tool *tool, const char *path, struct err *err)
{
	AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
	AUTO_BUF struct buf notes = {0};
	struct stat st;
	bool has_notes = tool->notes && access(tool->notes, F_OK) == 0;

	if (fd < 0 || fstat(fd, &st) < 0)
		return err_set(err, E_IO, "%s", path);
	int r = has_notes ? fs_read(tool->notes, 1 << 22, &notes, NULL, err) : 0;
	struct s3_put put = {.bucket = tool->address.bucket,
		.key = tool->address.key,
		.fd = fd,
		.size = (uint64_t)st.st_size,
		.resume = has_notes ? notes.data : NULL,
		.noted = tool->notes ? on_noted : NULL,
		.done = on_done,
		.ctx = tool};
	if (r == 0)
		s3_put(tool->s3, &put);
	return r < 0 ? r : loop_run(tool->loop, err);
}

static int start(struct tool *tool, int argc, char **argv, struct err *err)
{
	const char *bucket = tool->address.bucket, *key = tool->address.key, *what = argv[1];
	struct s3_get get = {.bucket = bucket,
		.key = key,
		.etag = getenv("S3_TOOL_ETAG"),
		.offset = argc > 3 ? strtoull(argv[3], NULL, 10) : 0,
		.max = argc > 4 ? strtoull(argv[4], NULL, 10) : 0,
		.data = on_data,
		.done = on_done,
		.ctx = tool};

	if (str_eq(what, "get"))
		s3_get(tool->s3, &get);
	else if (str_eq(what, "list"))
		s3_list(tool->s3, bucket, key, 100000, &tool->objects, on_done, tool);
	else
		s3_delete(tool->s3, bucket, key, on_done, tool);
	return loop_run(tool->loop, err);
}

static int run(struct tool *tool, int argc, char **argv, struct err *err)
{
	bool is_put = str_eq(argv[1], "put") && argc > 3;
	int r = s3_address_parse(argv[is_put ? 3 : 2], &tool->address, err);

	tool->notes = is_put && argc > 4 ? argv[4] : NULL;
	if (r == 0)
		r = is_put ? put(tool, argv[2], err) : start(tool, argc, argv, err);
	if (r == 0 && err_is_set(&tool->error))
		r = err_move(err, &tool->error);
	vec_foreach (struct s3_object, object, &tool->objects)
		printf("%llu %s\n", (unsigned long long)object->size, object->key);
	return r;
}

int main(int argc, char **argv)
{
	AUTO_ERR struct err err = {0};
	struct tool tool = {.loop = loop_new()};
	struct http_options options = {.loop = tool.loop, .user_agent = "dlrun/test"};
	struct http *http = http_new(&options);
	int r = argc < 3 ? err_set(&err, E_USAGE, "s3_tool COMMAND ADDRESS") : 0;

	if (r == 0)
		r = s3_open(tool.loop, http, (const char *const *)environ, &tool.s3, &err);
	if (r == 0)
		r = run(&tool, argc, argv, &err);
	if (r < 0)
		fprintf(stderr, "error: %s [%s]\n", err.message, err_info(err.id)->name);
	s3_free(tool.s3);
	http_free(http);
	loop_free(tool.loop);
	s3_address_done(&tool.address);
	s3_objects_done(&tool.objects);
	err_done(&tool.error);
	fflush(stdout);
	return r < 0;
}
