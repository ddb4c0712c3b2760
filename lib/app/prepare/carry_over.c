/* SPDX-License-Identifier: Apache-2.0 */
#include "app/prepare/carry_over.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/prepare/prepare.h"
#include "app/transfer/fetch.h"
#include "base/data/entry.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/record/results.h"
#include "kube/job/job.h"
#include "oci/layer/layer.h"

enum { CHUNK = 256 << 10, PREFIX_MAX = 32 };
#define REPORT_BYTES (UINT64_C(64) << 20) /* takes its time */
#define NOTE_TREE    "tree\n"             /* as collect.sh writes it */
#define RANK_NONE    "rank-0/"

struct item {
	enum taken_kind kind;
	const char *path; /* here */
	size_t prefix_len;
};

struct carry_over {
	struct buf list;
	struct VEC_OF(struct item) items;
	int dir_fd; /* of the results here */
	struct blob_stage stage;
	struct descriptor content;
	size_t files;
	uint64_t bytes;
	struct buf header;
	char *chunk;
};

static void carry_over_done(struct carry_over *carry)
{
	blob_stage_done(&carry->stage);
	auto_fd(&carry->dir_fd);
	vec_done(&carry->items);
	buf_done(&carry->list);
	buf_done(&carry->header);
	free(carry->chunk);
}

/*
 * The list
 */

static int carry_over_by_path(const void *a, const void *b)
{
	const struct item *one = a, *other = b;
	int r = strcmp(one->path, other->path);

	return r ? r : (one->kind > other->kind) - (one->kind < other->kind);
}

/* "f0 logs/a", "n7 rank-3/.dlrun-collected/rank-3/logs/a" */
static bool read_item(const char *text, struct item *ret)
{
	char *end;
	unsigned long prefix_len = strtoul(*text ? text + 1 : text, &end, 10);

	if (*end != ' ' || prefix_len > PREFIX_MAX || prefix_len >= strlen(end + 1))
		return false;
	*ret = (struct item){(enum taken_kind) * text, end + 1, prefix_len};
	return *text == TAKEN_FILE || *text == TAKEN_NOTE || *text == TAKEN_NOTE_TREE;
}

/* A listing that was cut and made again has some of them twice. */
static void carry_over_read_list(struct carry_over *carry)
{
	size_t n = 0;

	for (const char *at = carry->list.data; at < carry->list.data + carry->list.len;
		at += strlen(at) + 1) {
		struct item item;
		if (read_item(at, &item))
			*vec_push(&carry->items) = item;
	}
	vec_sort(&carry->items, carry_over_by_path);
	vec_foreach (struct item, item, &carry->items)
		if (n == 0 || carry_over_by_path(&carry->items.v[n - 1], item) != 0)
			carry->items.v[n++] = *item;
	carry->items.n = n;
}

/*
 * The tar
 */

static int carry_over_put(struct carry_over *carry, const void *data, size_t len, struct err *err)
{
	return blob_stage_write(&carry->stage, data, len, err);
}

static int put_header(
	struct carry_over *carry, const struct layer_tar_member *member, struct err *err)
{
	buf_reset(&carry->header);
	layer_tar_header(member, &carry->header);
	int r = buf_check(&carry->header, "the header of a file", err);
	return r < 0 ? r : carry_over_put(carry, carry->header.data, carry->header.len, err);
}

static int carry_over_put_zeros(struct carry_over *carry, uint64_t len, struct err *err)
{
	int r = 0;

	memset(carry->chunk, 0, CHUNK);
	for (; r == 0 && len > 0;) {
		size_t n = len < CHUNK ? (size_t)len : CHUNK;
		r = carry_over_put(carry, carry->chunk, n, err);
		len -= n;
	}
	return r;
}

/* A file that has become shorter meanwhile is padded with zeros. */
static int put_content(
	struct carry_over *carry, int fd, const char *name, uint64_t size, struct err *err)
{
	uint64_t left = size;
	int r = 0;

	while (r == 0 && left > 0) {
		ssize_t n = read(fd, carry->chunk, left < CHUNK ? (size_t)left : CHUNK);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return fs_error(err, errno, "%s", name);
		if (n == 0)
			break;
		r = carry_over_put(carry, carry->chunk, (size_t)n, err);
		left -= (uint64_t)n;
	}
	return r < 0 ? r : carry_over_put_zeros(carry, left + layer_tar_padding(size), err);
}

static int64_t carry_over_mtime_of(const struct stat *st)
{
	if (st->st_mtime < 0)
		return 0;
	return st->st_mtime > LAYER_MTIME_MAX ? LAYER_MTIME_MAX : st->st_mtime;
}

static int put_link(struct carry_over *carry, struct layer_tar_member *member, int dir_fd,
	const char *name, struct err *err)
{
	char target[ENTRY_PATH_MAX + 1];
	ssize_t n = readlinkat(dir_fd, name, target, sizeof(target) - 1);

	if (n <= 0)
		return 0;
	target[n] = '\0';
	member->type = LAYER_TAR_LINK;
	member->target = target;
	carry->files++;
	return put_header(carry, member, err);
}

/* A file that the user has removed from the record since is skipped. */
static int carry_over_put_file(struct carry_over *carry, struct layer_tar_member *member,
	const char *path, struct err *err)
{
	const char *name = fs_basename(path);
	AUTO_FREE char *dir = fs_dirname(path);
	AUTO_FD int dir_fd = fs_open_beneath(carry->dir_fd, dir, O_RDONLY | O_DIRECTORY, 0);
	struct stat st;

	if (dir_fd < 0 || fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return 0;
	member->mode = st.st_mode & 0777;
	member->mtime_s = carry_over_mtime_of(&st);
	if (S_ISLNK(st.st_mode))
		return put_link(carry, member, dir_fd, name, err);
	if (!S_ISREG(st.st_mode))
		return 0;
	AUTO_FD int fd = openat(dir_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0)
		return fs_error(err, errno, "%s", path);
	member->size = (uint64_t)st.st_size;
	carry->files++;
	carry->bytes += member->size;
	int r = put_header(carry, member, err);
	return r < 0 ? r : put_content(carry, fd, path, member->size, err);
}

static int put_item(struct carry_over *carry, const struct item *item, struct err *err)
{
	AUTO_FREE char *name = mem_printf("%s%s", item->prefix_len ? "" : RANK_NONE, item->path);
	struct layer_tar_member member = {
		.type = LAYER_TAR_FILE, .name = name, .mode = 0664, .mtime_s = LAYER_MTIME};

	if (item->kind == TAKEN_FILE)
		return carry_over_put_file(carry, &member, item->path, err);
	member.size = item->kind == TAKEN_NOTE_TREE ? strlen(NOTE_TREE) : 0;
	int r = put_header(carry, &member, err);
	if (r < 0 || !member.size)
		return r;
	r = carry_over_put(carry, NOTE_TREE, member.size, err);
	return r < 0 ? r : carry_over_put_zeros(carry, layer_tar_padding(member.size), err);
}

/* In front of those of a rank: by that name tar finds them. */
static int put_rank(struct carry_over *carry, const struct item *item, struct err *err)
{
	AUTO_FREE char *name = item->prefix_len ? mem_strndup(item->path, item->prefix_len)
						: mem_strdup(RANK_NONE);
	const struct layer_tar_member member = {
		.type = LAYER_TAR_DIR, .name = name, .mode = 0775, .mtime_s = LAYER_MTIME};

	return put_header(carry, &member, err);
}

static bool is_same_rank(const struct item *a, const struct item *b)
{
	return a->prefix_len == b->prefix_len && memcmp(a->path, b->path, a->prefix_len) == 0;
}

static int make_tar(
	struct carry_over *carry, const char *cache, const char *outputs, struct err *err)
{
	const struct item *before = NULL;
	int r = fs_private_dir(cache, err);

	if (r < 0)
		return r;
	AUTO_FD int cache_fd = open(cache, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	carry->dir_fd = open(outputs, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (cache_fd < 0)
		return fs_error(err, errno, "%s", cache);
	if (carry->dir_fd < 0)
		return errno == ENOENT ? 0 : fs_error(err, errno, "%s", outputs);
	r = blob_stage_begin(&carry->stage, cache_fd, err);
	for (size_t i = 0; r == 0 && i < carry->items.n; i++) {
		const struct item *item = &carry->items.v[i];
		if (!before || !is_same_rank(before, item))
			r = put_rank(carry, item, err);
		if (r == 0)
			r = put_item(carry, item, err);
		before = item;
	}
	if (r == 0)
		r = carry_over_put_zeros(carry, LAYER_TAR_END, err);
	if (r == 0)
		blob_stage_end(&carry->stage, &carry->content);
	return r;
}

/*
 * The image
 */

static int push(struct carry_over *carry, struct session *session, struct target *target,
	const struct run *run, char **ret_ref, struct err *err)
{
	const struct pack_added added = {
		.path = KUBE_CARRIED,
		.fd = carry->stage.fd,
		.content = carry->content,
		.snapshot_id = json_get_str(json_get(run->doc, "snapshot"), "id"),
	};
	AUTO(submit_done)
	struct submit submit = {.session = session, .added = &added, .begun_ms = clock_ms()};

	int r = session_config(session, &submit.config, err);
	if (r == 0)
		r = push_find_registry(&submit, target->name, err);
	if (r <= 0)
		return r < 0 ? r
			     : err_set(err, E_CONFIG, "target %s has no registry", target->name);
	AUTO_FREE char *base =
		mem_printf("%s/%s@%s", submit.to.host, submit.to.repo, run_image_digest(run));
	http_prepare();
	r = pack_init(&submit.pack, session, base, true, err);
	submit.pack.adds = true;
	submit.target = target;
	if (r == 0)
		r = push_to_registry(&submit, err);
	submit.target = NULL; /* the caller's */
	if (r == 0)
		*ret_ref = TAKE(submit.ref);
	return r;
}

/*
 * Choice of the attempt
 */

/* The newest attempt of which a list was kept; 0: none. */
static int find_list(struct session *session, const struct run *run, int newest, struct buf *ret)
{
	for (; newest > 0; newest--) {
		buf_done(ret);
		if (taken_read(&session->dirs, run_id(run), newest, ret) > 0)
			return newest;
	}
	return 0;
}

static void carry_over_report(struct session *session, const struct carry_over *carry, int attempt)
{
	char size[16];

	if (carry->bytes < REPORT_BYTES || !session->env.print)
		return;
	str_size(carry->bytes, size);
	AUTO_FREE char *text = mem_printf(
		"sending %s of attempt %d to the registry, for the next one", size, attempt);
	session->env.print(session->env.print_ctx, text);
}

static int carry_over_attempt(struct carry_over *carry, struct session *session,
	struct target *target, struct run *run, char **ret_ref, struct strv *ret_notes,
	struct err *err)
{
	int newest = run_attempts(run) - run_never_began(run);
	int attempt = find_list(session, run, newest, &carry->list);
	AUTO_FREE char *outputs = dirs_outputs(&session->dirs, run_id(run));
	char size[16];

	if (newest > 0 && attempt < newest)
		strv_addf(ret_notes,
			"attempt %d left no files, or its pods ended before they were fetched: the "
			"program starts %s",
			newest, attempt ? "with those of an earlier one" : "without them");
	carry_over_read_list(carry);
	if (carry->items.n == 0)
		return 0;
	int r = make_tar(carry, session->dirs.cache, outputs, err);
	if (r < 0 || carry->files == 0)
		return r;
	carry_over_report(session, carry, attempt);
	r = push(carry, session, target, run, ret_ref, err);
	if (r < 0)
		return r;
	str_size(carry->bytes, size);
	strv_addf(ret_notes, "restart carries %zu file%s, %s, of attempt %d", carry->files,
		carry->files == 1 ? "" : "s", size, attempt);
	return 0;
}

int carry_over_make(struct session *session, struct target *target, struct run *run, char **ret_ref,
	struct strv *ret_notes, struct err *err)
{
	AUTO(carry_over_done) struct carry_over carry = {.dir_fd = -1, .stage = {.fd = -1}};
	int r = 0;

	*ret_ref = NULL;
	if (run_has_storage(session, run))
		return 0;
	if (taken_wait_ms(run))
		r = take_run(session, run, NULL, err);
	if (r == 0 && run_base_ref(run)) {
		strv_add(ret_notes,
			"without a registry and without storage for results, restart carries no files "
			"of the attempt before");
	} else if (r == 0) {
		buf_init(&carry.header, 4 * ENTRY_PATH_MAX);
		carry.chunk = mem_alloc(1, CHUNK);
		r = carry_over_attempt(&carry, session, target, run, ret_ref, ret_notes, err);
	}
	if (r == 0)
		return 0;
	err_prefix(err, "the files of the attempt before cannot go along");
	return err_hint(err, "dlrun submit --from %s   # without them", run_id(run));
}
