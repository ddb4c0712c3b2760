/* SPDX-License-Identifier: Apache-2.0 */
#include "app/data/place.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/data/version.h"
#include "app/prepare/prepare.h"
#include "base/os/fs.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/record/runtime.h"
#include "targets/targets.h"

enum { PLACE_SAID_MAX = 64 << 10, PLACE_TEXT_MAX = 16 << 10 };

#define PLACE_SYNC "sync"
#define PLACE_OURS ".dlrun/" /* in front of the name of a version */

/*
 * Where it is
 */

/* The part of a path of a version, or of `current`, that stands for the place: all of it for
 * another path. The caller frees. */
static char *place_of_version(const char *path)
{
	const char *name = fs_basename(path);
	size_t len = strlen(path) - strlen(name);

	if (len >= strlen(PLACE_OURS) && (str_eq(name, "current") || version_id_is(name)) &&
		strncmp(path + len - strlen(PLACE_OURS), PLACE_OURS, strlen(PLACE_OURS)) == 0 &&
		(len == strlen(PLACE_OURS) || path[len - strlen(PLACE_OURS) - 1] == '/'))
		len -= strlen(PLACE_OURS);
	else
		return mem_strdup(path);
	while (len > 1 && path[len - 1] == '/')
		len--;
	return mem_strndup(path, len);
}

/* The same of an address in S3, whose versions are beside the place. The caller frees. */
static char *place_of_address(const char *address)
{
	const char *at = strrchr(address, '@');
	size_t len = at && version_id_is(at + 1) ? (size_t)(at - address) : strlen(address);

	while (len && address[len - 1] == '/')
		len--;
	return mem_strndup(address, len);
}

/* The volume with the place in it, to be written to. */
static void place_add_volume(struct data_place *place, const struct json *data, struct strv *froms)
{
	AUTO_JSON struct json *volume = json_clone(data);
	const char *sub_path = json_get_str(data, "sub_path");
	AUTO_FREE char *base = place_of_version(sub_path ? sub_path : "");
	AUTO_BUF struct buf from = buf_with(PLACE_TEXT_MAX);

	json_remove(volume, "read_only");
	if (*base)
		json_set_str(volume, "sub_path", base);
	else
		json_remove(volume, "sub_path");
	json_print(volume, &from);
	strv_add(froms, from.data);
	bool has_version = !str_eq(base, sub_path ? sub_path : "");
	REPLACE(place->sub_path, has_version ? NULL
					     : mem_printf("%s%s" PLACE_OURS "current", base,
						       *base && !str_ends(base, "/") ? "/" : ""));
}

/* Whether it has one: what is sent for each run has none. */
static bool place_add(struct data_place *place, const char *path, const struct json *data,
	const char *workdir, struct strv *froms)
{
	const char *text = json_str(data), *address = json_get_str(data, "s3");

	if (str_eq(text, PLACE_SYNC) || (text != NULL) == place->target->ops->needs_image)
		return false;
	strv_add(&place->paths, path);
	if (address) {
		strv_add_take(&place->dirs, place_of_address(address));
		strv_add(froms, "");
		return true;
	}
	if (text) {
		strv_add_take(&place->dirs, place_of_version(text));
		return true;
	}
	place_add_volume(place, data, froms);
	strv_addf(&place->dirs, "%s/%s", workdir, path);
	return true;
}

static int place_find(struct data_place *place, struct config *config, const char *path,
	struct strv *froms, struct err *err)
{
	const struct json *definition = config_target(config, place->target->name);
	const struct json *data = json_get(definition, "data");
	const char *workdir = config_str(config, "workdir");

	if (path) {
		const struct json *one = json_get(data, path);
		if (!one || !place_add(place, path, one, workdir, froms))
			return submit_runtime_fail_no_place(config, place->target, path, err);
		return 0;
	}
	for (const struct json *item = data ? json_first(data) : NULL; item; item = json_next(item))
		place_add(place, json_key(item), item, workdir, froms);
	return 0;
}

/* Whether some are reached through a pod. */
static bool place_has_volumes(const struct data_place *place)
{
	size_t n = 0;

	for (size_t i = 0; i < place->paths.n; i++)
		n += !data_place_is_bucket(place, i);
	return n && !place->target->ops->store;
}

int data_place_open(struct session *session, const char *name, const char *path,
	void (*note)(void *ctx, const char *text), void *ctx, const volatile int *interrupted,
	struct data_place *ret, struct err *err)
{
	AUTO(data_place_done)
	struct data_place place = {.session = session, .interrupted = interrupted};
	AUTO_STRV struct strv froms = {0};
	AUTO_FREE char *normal = NULL;
	struct config *config;

	int r = session_config(session, &config, err);
	if (r == 0 && path)
		r = runtime_path(path, "data", &normal, err);
	if (r == 0)
		r = target_open(
			session, name ? name : config_str(config, "target"), &place.target, err);
	if (r == 0)
		r = place_find(&place, config, normal, &froms, err);
	if (r == 0 && place_has_volumes(&place))
		r = place_pod_open(&place, &froms, note, ctx, err);
	if (r < 0)
		return r;
	*ret = place;
	place = (struct data_place){0};
	return 0;
}

void data_place_done(struct data_place *place)
{
	if (place->pod)
		place_pod_close(place);
	if (place->bucket)
		place_bucket_close(place->bucket);
	strv_done(&place->paths);
	strv_done(&place->dirs);
	free(place->sub_path);
	target_free(place->target);
	*place = (struct data_place){0};
}

size_t data_place_hosts(const struct data_place *place)
{
	return place->target->hosts ? place->target->hosts->n : 1;
}

/*
 * Work there
 */

static int place_temp(const struct data_place *place, int *ret_fd, struct err *err)
{
	const char *dir = place->session->dirs.cache;
	char name[FS_TEMP_NAME_SIZE];

	int r = fs_mkdirs(dir, 0700, err);
	if (r < 0)
		return r;
	fs_temp_name(name);
	AUTO_FREE char *path = fs_join(dir, name);
	*ret_fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (*ret_fd < 0)
		return fs_error(err, errno, "%s", path);
	unlink(path);
	return 0;
}

static int place_read(int fd, off_t from, size_t max, struct buf *out, struct err *err)
{
	if (lseek(fd, from, SEEK_SET) < 0)
		return fs_error(err, errno, "a file of the cache");
	return fs_read_fd(fd, "a file of the cache", max, out, err);
}

/* The end of it: a tar that finds no room says so of each file. */
static int place_read_end(int fd, size_t max, struct buf *out, struct err *err)
{
	off_t size = lseek(fd, 0, SEEK_END);

	return place_read(fd, size > (off_t)max ? size - (off_t)max : 0, max, out, err);
}

int data_place_run(struct data_place *place, size_t i, const struct strv *words, int in_fd,
	struct buf *out, struct buf *said, struct err *err)
{
	AUTO_FD int out_fd = -1, said_fd = -1;
	AUTO_STRV struct strv all = {0};
	int status = -1;

	if (data_place_is_bucket(place, i))
		return place_bucket_run(place, i, words, out, err);
	strv_add(&all, words->v[0]);
	strv_add(&all, place->dirs.v[i]);
	for (size_t k = 1; k < words->n; k++)
		strv_add(&all, words->v[k]);
	int r = place_temp(place, &out_fd, err);
	if (r == 0)
		r = place_temp(place, &said_fd, err);
	if (r < 0)
		return r;
	const struct target_store_request request = {
		.words = &all, .host = place->host, .fds = {in_fd, out_fd, said_fd}};
	if (place->pod)
		r = place_pod_run(place, &all, request.fds, &status, err);
	else
		r = target_store(place->target, &request, &status, place->interrupted, err);
	if (r == 0)
		r = place_read(out_fd, 0, out->max, out, err);
	if (r == 0 && said)
		r = place_read_end(said_fd, PLACE_SAID_MAX, said, err);
	return r < 0 ? r : status;
}

/* The last line that says something: GNU's tar ends with one that does not. */
static const char *place_last_line(char *text)
{
	for (;;) {
		size_t len = strlen(text);
		while (len && (text[len - 1] == '\n' || text[len - 1] == '\r'))
			text[--len] = '\0';
		char *newline = strrchr(text, '\n');
		if (!newline || !strstr(newline, "Exiting with failure status"))
			return newline ? newline + 1 : text;
		*newline = '\0';
	}
}

int data_place_fail(
	struct data_place *place, size_t i, int status, const struct buf *said, struct err *err)
{
	AUTO_FREE char *text = mem_strdup(said && said->data ? said->data : "");
	AUTO_FREE char *line = str_escaped(place_last_line(text));
	AUTO_FREE char *dir = str_escaped(place->dirs.v[i]), *path = str_escaped(place->paths.v[i]);
	const char *name = place->target->name;

	switch (status) {
	case DATA_NO_PLACE:
		err_set(err, E_DATA_PLACE, "%s of %s cannot be written to", dir, name);
		break;
	case DATA_HAS_FILES:
		err_set(err, E_DATA_PLACE, "%s of %s has files that belong to no version: %s", dir,
			name, line);
		return err_hint(err,
			"targets: {%s: {data: {%s: /ANOTHER/DIRECTORY}}}   # versions need a directory of their own",
			name, path);
	case DATA_NO_TOOL:
		return err_set(err, E_NODE_TOOL, "%s has no %s", name, line);
	case DATA_NO_VERSION:
		err_set(err, E_DATA_VERSION, "%s has no such version of %s", name, path);
		return err_hint(err, "dlrun data ls -t %s", name);
	case DATA_CUT:
		err_set(err, E_NODE_LOST, "the connection with %s was cut in the middle", name);
		break;
	case DATA_FULL:
		err_set(err, E_DATA_PLACE, "%s of %s is full: what this push had sent is removed",
			dir, name);
		err_hint(err,
			"dlrun data ls -t %s   # data rm %s@VERSION makes room; without @VERSION all goes, unfinished pushes too",
			name, path);
		break;
	default:
		err_set(err, E_DATA_PLACE, "%s of %s could not be changed (status %d)", dir, name,
			status);
	}
	return *line ? err_evidence(err, "%s", line) : -(int)err->code;
}

int data_place_do(struct data_place *place, size_t i, const struct strv *words, struct buf *out,
	struct err *err)
{
	AUTO_BUF struct buf said = buf_with(PLACE_SAID_MAX);

	int status = data_place_run(place, i, words, -1, out, &said, err);
	return status <= 0 ? status : data_place_fail(place, i, status, &said, err);
}
