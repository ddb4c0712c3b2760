/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/kube/pod_copy.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/data/entry.h"
#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/mem.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/enc.h"
#include "base/util/log.h"
#include "base/util/map.h"
#include "base/util/random.h"
#include "base/util/str.h"
#include "core/record/results.h"
#include "core/target/listing.h"
#include "kube/job/job.h"
#include "kube/portforward/podexec.h"
#include "oci/layer/tar_stream.h"

/*
 * Output of a command
 */

enum { PIECE = 64 << 10, SAID_MAX = 64 << 10 };

/* Receiving end of stdout or stderr. */
struct side {
	struct pod_output *output;
	int read_fd, write_fd; /* -1: closed */
	struct loop_fd *source;
};

struct pod_output {
	struct pod_output_request request;
	struct podexec *exec; /* NULL: it has ended */
	struct side sides[2];
	struct buf said;
	int status;
	struct err error;
	struct loop_timer *end;
	char piece[PIECE];
};

static void pod_copy_close_fd(int *fd)
{
	auto_fd(fd);
	*fd = -1;
}

static void pod_copy_close_side(struct side *side)
{
	loop_remove_fd(side->output->request.loop, TAKE(side->source));
	pod_copy_close_fd(&side->read_fd);
	pod_copy_close_fd(&side->write_fd);
}

void pod_output_cancel(struct pod_output *output)
{
	if (!output)
		return;
	podexec_cancel(output->exec);
	for (size_t i = 0; i < ARRAY_LEN(output->sides); i++)
		pod_copy_close_side(&output->sides[i]);
	loop_remove_timer(output->request.loop, output->end);
	buf_done(&output->said);
	err_done(&output->error);
	free(output);
}

static int pod_copy_on_end(void *ctx, struct err *err UNUSED)
{
	struct pod_output *output = ctx;
	struct pod_output_request request = output->request;
	AUTO_ERR struct err error = {0};
	AUTO_FREE char *said = buf_take(&output->said);
	int status = output->status;

	output->end = NULL;
	if (err_is_set(&output->error))
		err_move(&error, &output->error);
	pod_output_cancel(output);
	request.done(request.ctx, status, &error, said);
	return 0;
}

/* When nobody writes any more, and all was read. */
static void pod_copy_check_end(struct pod_output *output)
{
	for (size_t i = 0; i < ARRAY_LEN(output->sides); i++)
		if (output->sides[i].source)
			return;
	if (!output->exec && !output->end)
		output->end = loop_add_timer(output->request.loop, 0, pod_copy_on_end, output);
}

static void pod_copy_take(struct side *side, size_t len)
{
	struct pod_output *output = side->output;
	AUTO_ERR struct err error = {0};

	if (side == &output->sides[1]) {
		buf_add(&output->said, output->piece, len);
		return;
	}
	if (output->request.data(output->request.ctx, output->piece, len, &error) == 0)
		return;
	/* An error of the command itself, if there is one by now, follows from this one. */
	err_move(&output->error, &error);
	podexec_cancel(TAKE(output->exec));
	for (size_t i = 0; i < ARRAY_LEN(output->sides); i++)
		pod_copy_close_side(&output->sides[i]);
}

static short pod_copy_prepare(void *ctx UNUSED)
{
	return POLLIN;
}

static int pod_copy_dispatch(void *ctx, short revents UNUSED, struct err *err UNUSED)
{
	struct side *side = ctx;
	struct pod_output *output = side->output;
	ssize_t n = read(side->read_fd, output->piece, PIECE);

	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return 0;
	if (n > 0)
		pod_copy_take(side, (size_t)n);
	else
		pod_copy_close_side(side);
	pod_copy_check_end(output);
	return 0;
}

static int pod_copy_on_done(void *ctx, int status, struct err *error, struct err *err UNUSED)
{
	struct pod_output *output = ctx;

	output->exec = NULL;
	output->status = status;
	if (err_is_set(error))
		err_move(&output->error, error);
	for (size_t i = 0; i < ARRAY_LEN(output->sides); i++)
		pod_copy_close_fd(&output->sides[i].write_fd);
	pod_copy_check_end(output);
	return 0;
}

static int open_sides(struct pod_output *output, struct err *err)
{
	static const struct loop_fd_ops ops = {pod_copy_prepare, pod_copy_dispatch};

	for (size_t i = 0; i < ARRAY_LEN(output->sides); i++) {
		struct side *side = &output->sides[i];
		int fds[2], r = os_pipe(fds, 0);

		if (r < 0)
			return fs_error(err, -r, "making a pipe");
		side->read_fd = fds[0];
		side->write_fd = fds[1];
		side->source = loop_add_fd(output->request.loop, fds[0], &ops, side);
	}
	return 0;
}

int pod_output_start(
	const struct pod_output_request *request, struct pod_output **ret, struct err *err)
{
	struct pod_output *output = mem_alloc(1, sizeof(*output));

	output->request = *request;
	buf_init(&output->said, SAID_MAX);
	for (size_t i = 0; i < ARRAY_LEN(output->sides); i++)
		output->sides[i] = (struct side){output, -1, -1, NULL};
	int r = open_sides(output, err);
	if (r < 0) {
		pod_output_cancel(output);
		return r;
	}
	const struct podexec_request exec = {
		.loop = request->loop,
		.client = request->client,
		.kube_namespace = request->kube_namespace,
		.pod = request->pod,
		.container = request->container,
		.command = request->command,
		.fds = {request->stdin_fd, output->sides[0].write_fd, output->sides[1].write_fd},
		.done = pod_copy_on_done,
		.ctx = output,
	};
	output->exec = podexec_start(&exec);
	*ret = output;
	return 0;
}

/*
 * Parts of files
 */

enum { LINE_MAX = 64 };

enum state { AT_PART, IN_DATA, AT_SIZE };

struct part_stream {
	struct part_events events;
	enum state state;
	uint64_t left;
	char line[LINE_MAX];
	size_t n; /* of line */
};

struct part_stream *part_stream_new(const struct part_events *events)
{
	struct part_stream *stream = mem_alloc(1, sizeof(*stream));

	*stream = (struct part_stream){.events = *events};
	return stream;
}

void part_stream_free(struct part_stream *stream)
{
	free(stream);
}

static int pod_copy_refuse(const char *text, struct err *err)
{
	AUTO_FREE char *shown = str_shown(text);

	return err_set(err, E_DATA, "'%s' is not a part of a file", shown);
}

/* A decimal number up to end; its length, 0: none. */
static size_t pod_copy_take_number(const char *at, char end, uint64_t *ret)
{
	size_t len = strspn(at, "0123456789");
	AUTO_FREE char *digits = mem_strndup(at, len);
	int64_t value;

	if (at[len] != end || str_to_int(digits, 0, INT64_MAX, "size", &value, NULL) < 0)
		return 0;
	*ret = (uint64_t)value;
	return len;
}

static int pod_copy_take_part(struct part_stream *stream, struct err *err)
{
	const char *at = stream->line;
	uint64_t offset, len;
	size_t n;

	if (str_eq(at, "gone"))
		return stream->events.gone(stream->events.ctx, err);
	if (!str_starts(at, "part "))
		return pod_copy_refuse(at, err);
	at += strlen("part ");
	n = pod_copy_take_number(at, ' ', &offset);
	if (!n || !pod_copy_take_number(at + n + 1, '\0', &len))
		return pod_copy_refuse(stream->line, err);
	stream->left = len;
	stream->state = len ? IN_DATA : AT_SIZE;
	return stream->events.begin(stream->events.ctx, offset, len, err);
}

static int pod_copy_take_size(struct part_stream *stream, struct err *err)
{
	uint64_t size;

	stream->state = AT_PART;
	if (str_eq(stream->line, "unread"))
		return stream->events.unread(stream->events.ctx, err);
	if (!str_starts(stream->line, "size ") ||
		!pod_copy_take_number(stream->line + strlen("size "), '\0', &size))
		return pod_copy_refuse(stream->line, err);
	return stream->events.end(stream->events.ctx, size, err);
}

static int pod_copy_take_byte(struct part_stream *stream, char byte, struct err *err)
{
	if (byte != '\n' && byte != '\0' && stream->n < LINE_MAX - 1) {
		stream->line[stream->n++] = byte;
		return 0;
	}
	stream->line[stream->n] = '\0';
	stream->n = 0;
	if (byte != '\n')
		return pod_copy_refuse(stream->line, err);
	return stream->state == AT_PART ? pod_copy_take_part(stream, err)
					: pod_copy_take_size(stream, err);
}

int part_stream_add(struct part_stream *stream, const char *data, size_t len, struct err *err)
{
	int r = 0;

	while (r == 0 && len) {
		size_t n = 1;

		if (stream->state == IN_DATA) {
			n = len < stream->left ? len : (size_t)stream->left;
			stream->left -= n;
			if (stream->left == 0)
				stream->state = AT_SIZE;
			r = stream->events.data(stream->events.ctx, data, n, err);
		} else {
			r = pod_copy_take_byte(stream, *data, err);
		}
		data += n;
		len -= n;
	}
	return r;
}

int part_stream_finish(const struct part_stream *stream, struct err *err)
{
	if (stream->state == AT_PART && stream->n == 0)
		return 0;
	return err_set(err, E_DATA, "the parts of files end too early");
}

/*
 * Copies
 */

enum {
	TRIES_MAX = 8, /* without anything that came */
	RETRY_MS = 1000,
	NAMES_MAX = 512 << 20, /* bytes of names to be asked for */
	NAME_EXTRA = 44,       /* what stands around a name */
	MISSING_MAX = 1000,
	LIKE_MAX = 64 << 10,
	MARK_BYTES = 12,
	/* Exit codes: of files.sh, of a shell. */
	EXIT_NO_DIR = 44,
	EXIT_NO_TOOLS = 45,
	EXIT_NOT_EXECUTABLE = 126,
	EXIT_NOT_FOUND = 127,
};
#define NS_PER_S INT64_C(1000000000)

/* A file or link that the sink wants. */
struct wanted {
	const char *path; /* there: without the prefix */
	mode_t mode;
	uint64_t size;
	int64_t mtime_ns;
	bool is_link, changing;
	bool has_come;
	bool is_hard; /* it came as a link to another file */
	struct fetch_range range;
	bool is_part; /* the range is asked for, not the whole */
};
struct wanted_files VEC_OF(struct wanted *);

struct pod_copy {
	struct pod_copy_request request;
	char *kube_namespace, *pod, *container, *dir, *prefix, *temp_dir;
	struct pod_output *output;
	struct listing *listing;
	struct tar_stream *tar;
	struct part_stream *parts;
	bool is_by_parts; /* they come, not the tar */
	size_t at_part;   /* of wanted: which comes next */
	struct arena arena;
	struct wanted_files wanted; /* in the listing's order */
	struct map by_path;
	size_t names_bytes;
	int list_fd; /* names, for stdin */
	bool one_by_one;
	/* Of the file that comes. */
	struct wanted *current;
	bool is_passed; /* the sink does not want its content after all */
	char *out_path;
	uint64_t left;
	struct fetch_item item;
	int tries;
	bool has_progress;
	struct loop_timer *retry;
};

void pod_copy_cancel(struct pod_copy *copy)
{
	if (!copy)
		return;
	pod_output_cancel(copy->output);
	listing_free(copy->listing);
	tar_stream_free(copy->tar);
	part_stream_free(copy->parts);
	loop_remove_timer(copy->request.loop, copy->retry);
	auto_fd(&copy->list_fd);
	vec_done(&copy->wanted);
	map_done(&copy->by_path);
	arena_done(&copy->arena);
	free(copy->out_path);
	free(copy->kube_namespace);
	free(copy->pod);
	free(copy->container);
	free(copy->dir);
	free(copy->prefix);
	free(copy->temp_dir);
	free(copy);
}

static void pod_copy_finish(struct pod_copy *copy, struct err *error)
{
	void (*done)(void *ctx, struct err *error) = copy->request.done;
	void *ctx = copy->request.ctx;

	pod_copy_cancel(copy);
	done(ctx, error);
}

/* The path as the sink sees it. The caller frees. */
static char *path_here(const struct pod_copy *copy, const char *path)
{
	return mem_printf("%s%s", copy->prefix, path);
}

static int kube_pod_copy_start(struct pod_copy *copy, const struct strv *words, int stdin_fd,
	int (*data)(void *ctx, const char *data, size_t len, struct err *err),
	void (*done)(void *ctx, int status, struct err *error, const char *said), struct err *err)
{
	const struct pod_output_request request = {
		.loop = copy->request.loop,
		.client = copy->request.client,
		.kube_namespace = copy->kube_namespace,
		.pod = copy->pod,
		.container = copy->container,
		.command = words,
		.stdin_fd = stdin_fd,
		.data = data,
		.done = done,
		.ctx = copy,
	};

	return pod_output_start(&request, &copy->output, err);
}

/* Of files.sh. */
static void pod_copy_add_words(const struct pod_copy *copy, const char *verb, struct strv *ret)
{
	const char *const words[] = {"sh", "-c", pod_files_script, "dlrun", verb, copy->dir};

	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		strv_add(ret, words[i]);
}

static void start_content(struct pod_copy *copy);

/*
 * Failures
 */

static int fail_tools(const struct pod_copy *copy, struct err *err)
{
	err_set(err, E_KUBE_SHELL,
		"the image of pod %s has not all of sh, find, stat and tar to read %s with",
		copy->pod, copy->dir);
	return err_hint(err, "image: docker.io/library/python:3.12   # has a shell and tar");
}

static int pod_copy_on_retry(void *ctx, struct err *err UNUSED)
{
	struct pod_copy *copy = ctx;

	copy->retry = NULL;
	start_content(copy);
	return 0;
}

/* Whether it will be tried once more. */
static bool pod_copy_try_again(struct pod_copy *copy, const struct err *error)
{
	copy->tries = copy->has_progress ? 1 : copy->tries + 1;
	copy->has_progress = false;
	/* E_KUBE_DENIED is retried: the listing was allowed, but a server that has just started
	 * may not know that yet. */
	if (!(error->id == E_KUBE_EXEC || error->code == ERR_NET || error->id == E_KUBE_SERVER ||
		    error->id == E_KUBE_DENIED) ||
		copy->tries > TRIES_MAX)
		return false;
	log_note("%s: %s; again in a second", copy->pod, error->message);
	copy->retry =
		loop_add_timer(copy->request.loop, clock_ms() + RETRY_MS, pod_copy_on_retry, copy);
	return true;
}

static bool pod_copy_has_line(const char *said, const char *path, const char *what)
{
	for (const char *at = said; *at;) {
		size_t len = strcspn(at, "\n");
		AUTO_FREE char *line = mem_strndup(at, len);

		if (strstr(line, what) && (!path || strstr(line, path)))
			return true;
		at += len + (at[len] == '\n');
	}
	return false;
}

static void log_said(const struct pod_copy *copy, const char *said)
{
	AUTO_FREE char *shown = log_is_on() && *said ? str_escaped(said) : NULL;

	if (shown)
		log_note("%s: %s", copy->pod, shown);
}

/*
 * The content
 */

/* NULL: not asked for, or here already. */
static struct wanted *find_wanted(const struct pod_copy *copy, const char *path)
{
	while (path[0] == '.' && path[1] == '/')
		path += 2;
	struct wanted *wanted = map_get(&copy->by_path, path);
	return wanted && !wanted->has_come ? wanted : NULL;
}

static void set_item(struct pod_copy *copy, const struct wanted *wanted)
{
	REPLACE(copy->out_path, path_here(copy, wanted->path));
	copy->item = (struct fetch_item){
		.path = copy->out_path,
		.mode = wanted->mode,
		.size = wanted->size,
		.mtime_ns = wanted->mtime_ns,
		.changing = wanted->changing,
	};
}

static int pod_copy_begin_file(struct pod_copy *copy, struct wanted *wanted, struct err *err)
{
	copy->left = wanted->range.len;
	copy->current = wanted;
	int r = fetch_sink_begin(copy->request.sink, &copy->item, &wanted->range, err);
	copy->is_passed = r <= 0;
	return r < 0 ? r : 0;
}

static void has_come(struct pod_copy *copy, struct wanted *wanted)
{
	wanted->has_come = true;
	copy->has_progress = true;
}

/* Only what the listing has told of is taken: a file that has grown is cut off where it ended. */
static int on_member(void *ctx, const struct tar_member *member, struct err *err)
{
	struct pod_copy *copy = ctx;
	struct wanted *wanted;

	copy->current = NULL;
	if (os_leads_out(member->path)) {
		AUTO_FREE char *shown = str_shown(member->path);
		return err_set(err, E_DATA, "pod %s sent '%s', which leads out of the results",
			copy->pod, shown);
	}
	wanted = find_wanted(copy, member->path);
	if (!wanted || wanted->is_part)
		return 0;
	if (member->kind == TAR_LINK && wanted->is_link) {
		AUTO_FREE char *path = path_here(copy, wanted->path);
		const struct fetch_item item = {.path = path,
			.mode = wanted->mode,
			.size = wanted->size,
			.mtime_ns = wanted->mtime_ns,
			.target = member->target};

		has_come(copy, wanted);
		if (!*member->target || strlen(member->target) > ENTRY_PATH_MAX) {
			fetch_sink_unread(copy->request.sink, path, ENAMETOOLONG);
			return 0;
		}
		return fetch_sink_link(copy->request.sink, &item, err);
	}
	wanted->is_hard |= member->kind == TAR_HARDLINK;
	if (member->kind != TAR_FILE || wanted->is_link)
		return 0;
	set_item(copy, wanted);
	copy->item.changing |= member->mtime_ns / NS_PER_S != wanted->mtime_ns / NS_PER_S ||
			       member->size != wanted->size;
	return pod_copy_begin_file(copy, wanted, err);
}

static int on_content(void *ctx, const void *data, size_t len, struct err *err)
{
	struct pod_copy *copy = ctx;
	size_t n = len < copy->left ? len : (size_t)copy->left;

	copy->left -= n;
	if (!copy->current || copy->is_passed || n == 0)
		return 0;
	copy->has_progress = true;
	return fetch_sink_write(copy->request.sink, data, n, err);
}

static int on_content_end(void *ctx, struct err *err)
{
	struct pod_copy *copy = ctx;
	struct wanted *wanted = TAKE(copy->current);

	if (!wanted)
		return 0;
	has_come(copy, wanted);
	return copy->is_passed ? 0 : fetch_sink_end(copy->request.sink, &copy->item, err);
}

/* Files that are gone by now are not missed; the others could not be read there. */
static void note_missing(struct pod_copy *copy, const char *said)
{
	size_t n = 0;

	vec_foreach (struct wanted *, at, &copy->wanted) {
		AUTO_FREE char *path = NULL;

		if ((*at)->has_come || (*at)->is_part != copy->is_by_parts)
			continue;
		/* So many are no accident, and each is looked for in all that was said. */
		if (++n > MISSING_MAX)
			said = "";
		if (pod_copy_has_line(said, (*at)->path, "No such file"))
			continue;
		path = path_here(copy, (*at)->path);
		fetch_sink_unread(copy->request.sink, path,
			pod_copy_has_line(said, (*at)->path, "ermission denied") ? EACCES : EIO);
	}
}

/* GNU tar sends zeros for what it cannot read. As a part the file is copied, or told as unread. */
static void request_unread_as_parts(struct pod_copy *copy, const char *said)
{
	if (!pod_copy_has_line(said, NULL, "ead error"))
		return;
	vec_foreach (struct wanted *, at, &copy->wanted) {
		struct wanted *wanted = *at;

		if (!wanted->has_come || wanted->is_part || wanted->is_link || !wanted->size ||
			!pod_copy_has_line(said, wanted->path, "ead error"))
			continue;
		wanted->has_come = false;
		wanted->is_part = wanted->changing = true;
		wanted->range = (struct fetch_range){.len = wanted->size};
	}
}

static bool has_hard_ones(const struct pod_copy *copy)
{
	vec_foreach (struct wanted *, at, &copy->wanted)
		if ((*at)->is_hard && !(*at)->has_come)
			return true;
	return false;
}

/*
 * Parts
 */

/* The next that was asked for. */
static struct wanted *next_part(struct pod_copy *copy, struct err *err)
{
	while (copy->at_part < copy->wanted.n) {
		struct wanted *wanted = copy->wanted.v[copy->at_part++];

		if (wanted->is_part && !wanted->has_come)
			return wanted;
	}
	err_set(err, E_DATA, "pod %s sent more parts of files than were asked for", copy->pod);
	return NULL;
}

static int on_part(void *ctx, uint64_t offset, uint64_t len, struct err *err)
{
	struct pod_copy *copy = ctx;
	struct wanted *wanted = next_part(copy, err);

	if (!wanted)
		return -ERR_IO;
	if (offset != wanted->range.offset || len != wanted->range.len)
		return err_set(err, E_DATA, "pod %s sent another part of a file than was asked for",
			copy->pod);
	set_item(copy, wanted);
	return pod_copy_begin_file(copy, wanted, err);
}

/* Missing bytes came as zeros: mark the file as changing for the sink. */
static int on_part_end(void *ctx, uint64_t size, struct err *err)
{
	struct pod_copy *copy = ctx;
	copy->item.changing |= size != copy->item.size;
	return on_content_end(ctx, err);
}

/* Some of its bytes are zeros that are not the file's: as if it changed, the next fetch copies it
 * anew. */
static int on_part_unread(void *ctx, struct err *err)
{
	struct pod_copy *copy = ctx;

	copy->item.changing = true;
	fetch_sink_unread(copy->request.sink, copy->item.path, EIO);
	return on_content_end(ctx, err);
}

static int on_part_gone(void *ctx, struct err *err)
{
	struct pod_copy *copy = ctx;
	struct wanted *wanted = next_part(copy, err);

	if (!wanted)
		return -ERR_IO;
	has_come(copy, wanted);
	return 0;
}

static int on_stream(void *ctx, const char *data, size_t len, struct err *err)
{
	struct pod_copy *copy = ctx;

	return copy->is_by_parts ? part_stream_add(copy->parts, data, len, err)
				 : tar_stream_add(copy->tar, data, len, err);
}

/* The file that was cut: what the sink has of it does not come again. */
static int pod_copy_query_again(struct pod_copy *copy, struct err *err)
{
	struct wanted *wanted = TAKE(copy->current);

	if (!wanted || wanted->has_come || copy->is_passed)
		return 0;
	set_item(copy, wanted);
	int r = fetch_sink_wants(copy->request.sink, &copy->item, &wanted->range, err);
	if (r == 0)
		wanted->has_come = true;
	wanted->is_part |= wanted->range.offset > 0;
	return r < 0 ? r : 0;
}

/* API servers (1.34) may lose the last of what they could not send when a command ends, and tell of
 * its exit status all the same. */
static int evaluate_end(const struct pod_copy *copy, int r, struct err *error, struct err *err)
{
	if (r >= 0)
		return r;
	err_set(err, E_KUBE_EXEC, "pod %s: the end of its answer is missing", copy->pod);
	return err_evidence(err, "%s", error->message);
}

static int evaluate_content(struct pod_copy *copy, int status, struct err *error, struct err *err)
{
	if (!err_is_set(error) && status == EXIT_NO_TOOLS)
		return fail_tools(copy, err);
	if (err_is_set(error))
		return err_move(err, error);
	AUTO_ERR struct err early = {0};
	int r = copy->is_by_parts ? part_stream_finish(copy->parts, &early)
				  : tar_stream_finish(copy->tar, &early);
	return evaluate_end(copy, r, &early, err);
}

static void on_content_done(void *ctx, int status, struct err *error, const char *said)
{
	struct pod_copy *copy = ctx;
	AUTO_ERR struct err failure = {0};

	copy->output = NULL;
	log_said(copy, said);
	int r = evaluate_content(copy, status, error, &failure);
	if (r < 0 && pod_copy_try_again(copy, &failure)) {
		err_clear(&failure);
		r = pod_copy_query_again(copy, &failure);
		if (r < 0)
			pod_copy_finish(copy, &failure);
		return;
	}
	if (r == 0 && !copy->is_by_parts)
		request_unread_as_parts(copy, said);
	if (r == 0 && !copy->is_by_parts && !copy->one_by_one && has_hard_ones(copy)) {
		copy->one_by_one = true;
		start_content(copy);
		return;
	}
	if (r == 0)
		note_missing(copy, said);
	if (r == 0 && !copy->is_by_parts) {
		copy->is_by_parts = true;
		start_content(copy);
		return;
	}
	pod_copy_finish(copy, &failure);
}

/* A file without a name; a descriptor or -errno. */
static int pod_copy_open_temp(int dir_fd)
{
	enum { FLAGS = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC };
	char name[FS_TEMP_NAME_SIZE];
	int fd = os_open_nameless(dir_fd, 0600);

	if (fd >= 0)
		return fd;
	fs_temp_name(name);
	fd = openat(dir_fd, name, FLAGS, 0600);
	if (fd < 0)
		return -errno;
	unlinkat(dir_fd, name, 0);
	return fd;
}

static bool is_requested_for(const struct pod_copy *copy, const struct wanted *wanted)
{
	if (wanted->has_come || wanted->is_part != copy->is_by_parts)
		return false;
	return copy->is_by_parts || !copy->one_by_one || wanted->is_hard;
}

/* The names, for stdin of the command there. */
static int write_names(struct pod_copy *copy, size_t *ret_bytes, struct err *err)
{
	AUTO_FD int dir_fd = open(copy->temp_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	AUTO_BUF struct buf names = buf_with(2 * (ENTRY_PATH_MAX + NAME_EXTRA) + (64 << 10));
	int r = 0;

	auto_fd(&copy->list_fd);
	copy->list_fd = dir_fd < 0 ? -errno : pod_copy_open_temp(dir_fd);
	if (copy->list_fd < 0) {
		int errnum = -copy->list_fd;
		copy->list_fd = -1;
		return fs_error(err, errnum, "making a file in %s", copy->temp_dir);
	}
	*ret_bytes = 0;
	for (size_t i = 0; r == 0 && i <= copy->wanted.n; i++) {
		const struct wanted *wanted = i < copy->wanted.n ? copy->wanted.v[i] : NULL;

		if (wanted && is_requested_for(copy, wanted)) {
			if (wanted->is_part)
				buf_addf(&names, "%llu %llu ",
					(unsigned long long)wanted->range.offset,
					(unsigned long long)wanted->range.len);
			buf_addf(&names, "./%s", wanted->path);
			buf_addc(&names, '\0');
		}
		if (wanted && names.len < 64 << 10)
			continue;
		r = fs_write_fd(copy->list_fd, copy->temp_dir, names.data, names.len, err);
		*ret_bytes += names.len;
		buf_reset(&names);
	}
	if (r == 0 && lseek(copy->list_fd, 0, SEEK_SET) < 0)
		r = fs_error(err, errno, "%s", copy->temp_dir);
	return r;
}

static int start_stream(struct pod_copy *copy, size_t n_bytes, struct err *err)
{
	const struct tar_events members = {on_member, on_content, on_content_end, copy};
	const struct part_events parts = {
		on_part, on_content, on_part_end, on_part_unread, on_part_gone, copy};
	AUTO_STRV struct strv words = {0};

	tar_stream_free(copy->tar);
	copy->tar = tar_stream_new(&members);
	part_stream_free(copy->parts);
	copy->parts = part_stream_new(&parts);
	copy->at_part = 0;
	pod_copy_add_words(copy, copy->is_by_parts ? "parts" : "tar", &words);
	strv_addf(&words, "%zu", n_bytes);
	/* Each an archive of its own, so that none is a hard link to another. */
	if (!copy->is_by_parts)
		strv_add(&words, copy->one_by_one ? "1" : "1000");
	return kube_pod_copy_start(copy, &words, copy->list_fd, on_stream, on_content_done, err);
}

/* Whole files, then parts of others. */
static void start_content(struct pod_copy *copy)
{
	AUTO_ERR struct err error = {0};
	size_t n_bytes = 0;

	copy->current = NULL;
	int r = write_names(copy, &n_bytes, &error);
	if (r == 0 && !n_bytes && !copy->is_by_parts) {
		copy->is_by_parts = true;
		r = write_names(copy, &n_bytes, &error);
	}
	if (r == 0 && n_bytes)
		r = start_stream(copy, n_bytes, &error);
	if (r < 0 || n_bytes == 0)
		pod_copy_finish(copy, &error);
}

/*
 * The listing
 */

static int pod_copy_want(struct pod_copy *copy, const struct listing_entry *entry,
	const struct fetch_range *range, struct err *err)
{
	size_t len = strlen(entry->path);
	struct wanted *wanted;

	if (map_get(&copy->by_path, entry->path))
		return 0;
	copy->names_bytes += len + NAME_EXTRA;
	if (copy->names_bytes > NAMES_MAX)
		return err_set(err, E_DATA_LIMIT, "the names of the results are over %d MiB",
			NAMES_MAX >> 20);
	wanted = arena_alloc(&copy->arena, sizeof(*wanted));
	*wanted = (struct wanted){
		.path = arena_strndup(&copy->arena, entry->path, len),
		.mode = entry->mode,
		.size = entry->size,
		.mtime_ns = entry->mtime_ns,
		.is_link = !range,
		.changing = entry->changing && copy->request.may_change,
	};
	if (range) {
		wanted->range = *range;
		wanted->is_part = range->len && (range->offset || range->len < entry->size ||
							fetch_sink_is_narrow(copy->request.sink));
	}
	map_put(&copy->by_path, wanted->path, wanted);
	*vec_push(&copy->wanted) = wanted;
	return 0;
}

static int pod_copy_take_file(
	struct pod_copy *copy, const struct listing_entry *entry, const char *path, struct err *err)
{
	const struct fetch_item item = {.path = path,
		.mode = entry->mode,
		.size = entry->size,
		.mtime_ns = entry->mtime_ns,
		.changing = entry->changing && copy->request.may_change};
	struct fetch_range range = {0};
	int r = fetch_sink_wants(copy->request.sink, &item, &range, err);

	return r <= 0 ? r : pod_copy_want(copy, entry, &range, err);
}

/* Notes that the script in the pod keeps for itself. */
static bool is_note(const char *path)
{
	size_t len = strlen(KUBE_COLLECTED);

	return str_starts(path, KUBE_COLLECTED) && (!path[len] || path[len] == '/');
}

/* A link is compared when its target has come. */
static int on_entry(void *ctx, const struct listing_entry *entry, struct err *err)
{
	struct pod_copy *copy = ctx;
	struct fetch_sink *sink = copy->request.sink;

	/* For the next attempt. */
	struct buf *taken = copy->request.sink->taken;
	bool note = is_note(entry->path);

	if (taken && (entry->kind == 'f' || (entry->kind == 'l' && !note)) &&
		!str_starts(entry->path, KUBE_COLLECTED "/new-"))
		taken_add(taken,
			!note         ? TAKEN_FILE
			: entry->size ? TAKEN_NOTE_TREE
				      : TAKEN_NOTE,
			copy->prefix, entry->path);
	if (is_note(entry->path))
		return 0;
	AUTO_FREE char *path = path_here(copy, entry->path);
	if (!fetch_sink_names(sink, path))
		return 0;
	if (strlen(path) > ENTRY_PATH_MAX) {
		fetch_sink_unread(sink, path, ENAMETOOLONG);
		return 0;
	}
	if (entry->kind == 'd')
		return fetch_sink_dir(sink, path, entry->mode, err);
	if (entry->kind == 'l')
		return fetch_sink_is_narrow(sink) ? 0 : pod_copy_want(copy, entry, NULL, err);
	return entry->kind == 'f' ? pod_copy_take_file(copy, entry, path, err) : 0;
}

static int pod_copy_on_list(void *ctx, const char *data, size_t len, struct err *err)
{
	struct pod_copy *copy = ctx;

	copy->has_progress = true;
	return listing_add(copy->listing, data, len, err);
}

static int evaluate_list(struct pod_copy *copy, int status, struct err *error, struct err *err)
{
	if (err_is_set(error))
		return err_move(err, error);
	if (status == EXIT_NO_TOOLS)
		return fail_tools(copy, err);
	if (status == EXIT_NO_DIR)
		return err_set(
			err, E_KUBE_STORAGE, "pod %s has no directory %s", copy->pod, copy->dir);
	AUTO_ERR struct err early = {0};
	return evaluate_end(copy, listing_finish(copy->listing, &early), &early, err);
}

static int pod_copy_begin(void *ctx, struct err *err);

/* A container that has just started is not known to its node's runtime yet: then nothing has come,
 * and it is asked again. */
static void on_list_done(void *ctx, int status, struct err *error, const char *said)
{
	struct pod_copy *copy = ctx;
	AUTO_ERR struct err failure = {0};
	int r = 0;

	copy->output = NULL;
	log_said(copy, said);
	bool is_refused = error->id == E_KUBE_EXEC && !copy->has_progress;
	if (err_cannot_exec(error) ||
		(!err_is_set(error) && (status == EXIT_NOT_FOUND || status == EXIT_NOT_EXECUTABLE)))
		r = fail_tools(copy, &failure);
	else
		r = evaluate_list(copy, status, error, &failure);
	bool is_short = !err_is_set(error) && failure.id == E_KUBE_EXEC;
	if ((is_refused || is_short) && ++copy->tries <= TRIES_MAX) {
		copy->retry = loop_add_timer(
			copy->request.loop, clock_ms() + RETRY_MS, pod_copy_begin, copy);
		return;
	}
	copy->has_progress = false;
	copy->tries = 0;
	if (r < 0) {
		pod_copy_finish(copy, &failure);
		return;
	}
	/* A directory is closed ("find: './x': Permission denied") or too deep. */
	bool is_closed = pod_copy_has_line(said, NULL, "ermission denied");
	if (is_closed || pod_copy_has_line(said, NULL, "name too long")) {
		AUTO_FREE char *line = mem_strndup(said, strcspn(said, "\n"));
		fetch_sink_unread(copy->request.sink, line, is_closed ? EACCES : ENAMETOOLONG);
	}
	start_content(copy);
}

static int pod_copy_begin(void *ctx, struct err *err UNUSED)
{
	static const char *const firsts[] = {"", "all", "announce", "wait"};
	struct pod_copy *copy = ctx;
	const struct fetch_sink *sink = copy->request.sink;
	const char *first = firsts[copy->request.first];
	AUTO_STRV struct strv words = {0};
	AUTO_BUF struct buf patterns = buf_with(LIKE_MAX);
	AUTO_ERR struct err error = {0};
	unsigned char bytes[MARK_BYTES];
	char mark[2 * MARK_BYTES + 1];

	copy->retry = NULL;
	random_bytes(bytes, sizeof(bytes));
	hex_encode(bytes, sizeof(bytes), mark);
	listing_free(copy->listing);
	copy->listing = listing_new(mark, on_entry, copy);
	for (size_t i = 0; sink->like && i < sink->like->n; i++)
		buf_addf(&patterns, "%s%s", i ? "\n" : "", sink->like->v[i]);
	if (copy->request.first == POD_COPY_COLLECT && sink->like)
		first = "live";
	const char *const more[] = {mark, sink->only ? sink->only + strlen(copy->prefix) : "",
		patterns.len ? patterns.data : "", sink->only ? "" : first, KUBE_LINGERS,
		KUBE_ANNOUNCED, KUBE_COLLECTOR};
	pod_copy_add_words(copy, "list", &words);
	for (size_t i = 0; i < ARRAY_LEN(more); i++)
		strv_add(&words, more[i]);
	int r = kube_pod_copy_start(copy, &words, -1, pod_copy_on_list, on_list_done, &error);
	if (r < 0)
		pod_copy_finish(copy, &error);
	return 0;
}

struct pod_copy *pod_copy_start(const struct pod_copy_request *request)
{
	struct pod_copy *copy = mem_alloc(1, sizeof(*copy));

	*copy = (struct pod_copy){
		.request = *request,
		.kube_namespace = mem_strdup(request->kube_namespace),
		.pod = mem_strdup(request->pod),
		.container = mem_strdup(request->container),
		.dir = mem_strdup(request->dir),
		.prefix = mem_strdup(request->prefix),
		.temp_dir = mem_strdup(request->temp_dir),
		.list_fd = -1,
	};
	copy->retry = loop_add_timer(request->loop, 0, pod_copy_begin, copy);
	return copy;
}
