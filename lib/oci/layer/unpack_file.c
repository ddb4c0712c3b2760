/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/layer/unpack.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/str.h"
#include "oci/layer/layer_read.h"

/* The search for one path in a layer. */
struct search {
	const char *path;
	int out_fd;
	off_t start; /* where its content begins in out_fd; -1: it cannot go back */
	int found;
};

/* Whether path is dir or lies below it; dir "" holds everything. */
static bool is_at_or_below(const char *path, const char *dir)
{
	return !*dir || fs_below(path, dir);
}

/* Discard the content written so far: a later member of the layer replaces or removes the path. */
static int take_back(struct search *search, struct err *err)
{
	if (search->found != 1)
		return 0;
	if (search->start < 0 || ftruncate(search->out_fd, search->start) ||
		lseek(search->out_fd, search->start, SEEK_SET) < 0)
		return err_set(err, E_IMAGE, "a layer has %s twice", search->path);
	return 0;
}

static int write_out(struct search *search, struct layer_reader *reader,
	const struct layer_member *member, struct err *err)
{
	const void *data;
	size_t len;
	int r = 0;

	if (member->kind == LAYER_HARDLINK)
		return err_set(err, E_IMAGE, "%s in a layer is a hard link to %s", search->path,
			member->target);
	if (member->kind == LAYER_LINK)
		return fs_write_fd(
			search->out_fd, search->path, member->target, strlen(member->target), err);
	while (r == 0 && (r = layer_reader_data(reader, &data, &len, err)) > 0)
		r = fs_write_fd(search->out_fd, search->path, data, len, err);
	return r;
}

/* A whiteout acts on lower layers only. */
static void search_whiteout(struct search *search, const struct layer_member *member)
{
	bool itself = str_eq(search->path, member->path);

	if (search->found || !is_at_or_below(search->path, member->path))
		return;
	if (member->kind == LAYER_WHITEOUT || !itself)
		search->found = -1;
}

static int search_member(struct search *search, struct layer_reader *reader,
	const struct layer_member *member, struct err *err)
{
	bool itself = str_eq(search->path, member->path), dir = member->kind == LAYER_DIR;

	if (!itself && is_at_or_below(member->path, search->path) && search->found == 0)
		search->found = -1; /* it is a directory */
	/* A directory above changes nothing, a file above leaves nothing below. */
	if (!is_at_or_below(search->path, member->path) || (dir && !itself))
		return 0;
	int r = take_back(search, err);
	if (r)
		return r;
	search->found = itself && !dir ? 1 : -1;
	return search->found == 1 ? write_out(search, reader, member, err) : 0;
}

int unpack_file(const struct unpack_spec *spec, const char *path, int out_fd, int *ret_found,
	struct err *err)
{
	AUTO_LAYER_READER struct layer_reader *reader = layer_reader_new(spec);
	struct search search = {.path = path, .out_fd = out_fd};
	struct layer_member member;
	int r;

	search.start = lseek(out_fd, 0, SEEK_CUR);
	while ((r = layer_reader_next(reader, &member, err)) > 0) {
		r = 0;
		if (member.kind == LAYER_WHITEOUT || member.kind == LAYER_OPAQUE)
			search_whiteout(&search, &member);
		else
			r = search_member(&search, reader, &member, err);
		if (r)
			return r;
	}
	if (r == 0)
		*ret_found = search.found;
	return r;
}
