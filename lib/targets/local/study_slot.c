/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/local/study_slot.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/record/run.h"

#define SLOT_BELL   "bell"
#define SLOT_TICKET "wait."
#define SLOT_FAILED "failed"

enum {
	NAME_SIZE = 48,
	FAILED_MAX = 16 << 10,
	FIRST_MS = 1000, /* the first one, whom the bell calls */
	BLIND_MS = 100,  /* the first one where nothing can be watched */
	LINE_MS = 2000,  /* others, who only count */
	LINE_EACH_MS = 100,
	LINE_MOST_MS = 60000,
};

struct study_slot {
	const char *dir; /* of the job */
	const struct spec_study *study;
	int attempt;
	char ticket[NAME_SIZE];
	int ticket_fd; /* -1: not in line */
	int watch;     /* of the bell; -1: none */
	size_t before; /* at the last try */
	char *why;
	int fds[ATTEMPT_SLOT_FDS]; /* the lock, the bell; -1: no slot */
};

/*
 * The line
 */

struct ticket {
	int index, attempt;
};

static void ticket_name(const struct ticket *ticket, char out[static NAME_SIZE])
{
	snprintf(out, NAME_SIZE, SLOT_TICKET "%d.%d", ticket->index, ticket->attempt);
}

/* false: not the name of a ticket. */
static bool ticket_parse(const char *name, struct ticket *ret)
{
	char again[NAME_SIZE];

	if (sscanf(name, SLOT_TICKET "%9d.%9d", &ret->index, &ret->attempt) != 2)
		return false;
	ticket_name(ret, again);
	return str_eq(name, again);
}

static bool ticket_is_before(const struct ticket *a, const struct ticket *b)
{
	return a->index != b->index ? a->index < b->index : a->attempt < b->attempt;
}

/* Count the tickets before that of us, living or not; *ret_last is the last of them. */
static int line_count(const char *dir, const struct ticket *us, size_t *ret_n,
	struct ticket *ret_last, struct err *err)
{
	AUTO_DIR DIR *stream = opendir(dir);
	struct dirent *entry;
	struct ticket at;

	*ret_n = 0;
	if (!stream)
		return fs_error(err, errno, "%s", dir);
	while ((entry = readdir(stream))) {
		if (!ticket_parse(entry->d_name, &at) || !ticket_is_before(&at, us))
			continue;
		if ((*ret_n)++ == 0 || ticket_is_before(ret_last, &at))
			*ret_last = at;
	}
	return 0;
}

/* Open the last living ticket before that of us, and remove dead ones behind it. 1, 0: there is
 * none. */
static int line_before(const char *dir, const struct ticket *us, size_t *ret_n, char **ret_path,
	int *ret_fd, struct err *err)
{
	const int flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
	struct ticket last = {0};
	char name[NAME_SIZE];

	for (;;) {
		int r = line_count(dir, us, ret_n, &last, err);
		if (r < 0 || *ret_n == 0)
			return r;
		ticket_name(&last, name);
		AUTO_FREE char *path = fs_join(dir, name);
		AUTO_FD int fd = open(path, flags);
		if (fd < 0 && errno == ENOENT)
			continue;
		if (fd < 0)
			return fs_error(err, errno, "%s", path);
		/* Shared, so that two who check do not take each other for the owner. */
		if (flock(fd, LOCK_SH | LOCK_NB) < 0) {
			*ret_path = TAKE(path);
			*ret_fd = TAKE_FD(fd);
			return 1;
		}
		unlink(path);
	}
}

int study_line_wait(const struct attempt_job *job, struct err *err)
{
	const struct ticket us = {job->spec.study.index, job->attempt};
	size_t n;

	for (;;) {
		AUTO_FREE char *path = NULL;
		AUTO_FD int fd = -1;
		int r = line_before(job->slots, &us, &n, &path, &fd, err);

		if (r <= 0)
			return r;
		while (flock(fd, LOCK_SH) < 0)
			if (errno != EINTR)
				return fs_error(err, errno, "waiting for %s", path);
		unlink(path);
	}
}

/* A ticket is locked when it gets its name. */
static int slot_join(struct study_slot *slot, struct err *err)
{
	AUTO_FREE char *made = mem_printf("%s/new.%ld", slot->dir, (long)getpid());
	AUTO_FREE char *path = fs_join(slot->dir, slot->ticket);
	AUTO_FREE char *bell = fs_join(slot->dir, SLOT_BELL);
	AUTO_FD int fd = -1, bell_fd = -1;

	int r = fs_private_dir(slot->dir, err);
	if (r < 0)
		return r;
	/* Closing it is no ring: it is not open for writing. */
	bell_fd = open(bell, O_RDONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (bell_fd < 0)
		return fs_error(err, errno, "%s", bell);
	r = fs_lock(made, true, 0, &fd, err);
	if (r < 0)
		return r;
	if (rename(made, path) < 0)
		return fs_error(err, errno, "%s", path);
	slot->ticket_fd = TAKE_FD(fd);
	return 0;
}

static void slot_leave(struct study_slot *slot)
{
	if (slot->ticket_fd < 0)
		return;
	AUTO_FREE char *path = fs_join(slot->dir, slot->ticket);
	unlink(path);
	close(TAKE_FD(slot->ticket_fd));
}

/*
 * Slots
 */

/* Keep a descriptor of the bell with a higher number than the lock's: when a process ends, the
 * kernel closes them in their order, and the lock must be free when the bell rings. */
static int slot_ring(const struct study_slot *slot, int lock_fd, int *ret_fd, struct err *err)
{
	AUTO_FREE char *path = fs_join(slot->dir, SLOT_BELL);
	AUTO_FD int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	AUTO_FD int above = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, lock_fd + 1);

	if (above < 0)
		return fs_error(err, errno, "%s", path);
	*ret_fd = TAKE_FD(above);
	return 0;
}

/* 1, 0: all are taken. */
static int slot_take(struct study_slot *slot, struct err *err)
{
	for (int k = 0; k < slot->study->parallel; k++) {
		AUTO_FREE char *path = mem_printf("%s/slot.%d", slot->dir, k);
		AUTO_ERR struct err error = {0};
		AUTO_FD int fd = -1;

		int r = fs_lock(path, true, 0, &fd, &error);
		if (r < 0 && error.id == E_IO_LOCK)
			continue;
		if (r < 0)
			return err_move(err, &error);
		r = slot_ring(slot, fd, &slot->fds[1], err);
		if (r < 0)
			return r;
		slot->fds[0] = TAKE_FD(fd);
		return 1;
	}
	return 0;
}

static void slot_watch(struct study_slot *slot)
{
	AUTO_FREE char *path = fs_join(slot->dir, SLOT_BELL);

	if (slot->watch < 0)
		slot->watch = os_watch_open(path);
	os_watch_drain(slot->watch);
}

static void slot_explain(struct study_slot *slot)
{
	const struct spec_study *study = slot->study;
	AUTO_FREE char *before =
		slot->before ? mem_printf(", %zu before it", slot->before) : mem_strdup("");

	free(slot->why);
	slot->why = mem_printf("waits for a place in study %s: %d run%s%s", study->id,
		study->parallel, study->parallel == 1 ? "s" : "", before);
}

/* A ticket may have been removed by hand. */
static bool slot_is_in_line(const struct study_slot *slot)
{
	struct stat st;

	return slot->ticket_fd >= 0 && fstat(slot->ticket_fd, &st) == 0 && st.st_nlink > 0;
}

int study_slot_try(struct study_slot *slot, struct err *err)
{
	const struct ticket us = {slot->study->index, slot->attempt};
	AUTO_FREE char *path = NULL;
	AUTO_FD int fd = -1;
	int r = 0;

	if (slot->fds[0] >= 0)
		return 1;
	if (!slot_is_in_line(slot)) {
		auto_fd(&slot->ticket_fd);
		slot->ticket_fd = -1;
		r = slot_join(slot, err);
	}
	if (r == 0)
		r = line_before(slot->dir, &us, &slot->before, &path, &fd, err);
	if (r == 0) {
		/* Watched before it looks, so that no end is missed. */
		slot_watch(slot);
		r = slot_take(slot, err);
		if (r > 0)
			slot_leave(slot);
	} else if (r > 0) {
		r = 0;
	}
	if (r == 0)
		slot_explain(slot);
	return r;
}

int study_slot_new(const struct attempt_job *job, struct study_slot **ret, struct err *err)
{
	const struct ticket us = {job->spec.study.index, job->attempt};
	struct study_slot *slot = mem_alloc(1, sizeof(*slot));

	*slot = (struct study_slot){.dir = job->slots,
		.study = &job->spec.study,
		.attempt = job->attempt,
		.ticket_fd = -1,
		.watch = -1,
		.fds = {-1, -1}};
	ticket_name(&us, slot->ticket);
	int r = slot_join(slot, err);
	if (r < 0)
		study_slot_free(slot);
	else
		*ret = slot;
	return r;
}

struct study_slot *study_slot_keep(int fds[static ATTEMPT_SLOT_FDS])
{
	struct study_slot *slot = mem_alloc(1, sizeof(*slot));

	slot->ticket_fd = slot->watch = -1;
	for (int i = 0; i < ATTEMPT_SLOT_FDS; i++)
		slot->fds[i] = TAKE_FD(fds[i]);
	return slot;
}

bool study_slot_is_first(const struct study_slot *slot)
{
	return slot->before == 0;
}

const char *study_slot_why(const struct study_slot *slot)
{
	return slot->why;
}

int study_slot_watch_fd(const struct study_slot *slot)
{
	return slot->watch;
}

int64_t study_slot_wait_ms(const struct study_slot *slot)
{
	int64_t ms = LINE_MS + (int64_t)slot->before * LINE_EACH_MS;

	if (slot->before == 0)
		return slot->watch >= 0 ? FIRST_MS : BLIND_MS;
	return ms < LINE_MOST_MS ? ms : LINE_MOST_MS;
}

const int *study_slot_fds(const struct study_slot *slot)
{
	return slot->fds;
}

void study_slot_pass(struct study_slot *slot, int ret[static ATTEMPT_SLOT_FDS])
{
	for (int i = 0; i < ATTEMPT_SLOT_FDS; i++)
		ret[i] = TAKE_FD(slot->fds[i]);
	study_slot_free(slot);
}

void study_slot_free(struct study_slot *slot)
{
	if (!slot)
		return;
	slot_leave(slot);
	for (int i = 0; i < ATTEMPT_SLOT_FDS; i++)
		auto_fd(&slot->fds[i]);
	auto_fd(&slot->watch);
	free(slot->why);
	free(slot);
}

/*
 * The member that failed
 */

int study_fail(const struct attempt_job *job, const char *dir, struct err *err)
{
	AUTO_FREE char *path = fs_join(job->slots, SLOT_FAILED);
	AUTO_FREE char *text = mem_printf("%s\n%s", job->run_id, dir);
	int r = fs_private_dir(job->slots, err);

	return r < 0 ? r : fs_replace(path, text, strlen(text), 0600, FS_SYNC_NONE, err);
}

static bool study_is_newer(const struct stat *a, const struct stat *b)
{
	return a->st_mtim.tv_sec != b->st_mtim.tv_sec ? a->st_mtim.tv_sec > b->st_mtim.tv_sec
						      : a->st_mtim.tv_nsec > b->st_mtim.tv_nsec;
}

/* Whether the attempt in dir is no longer the last of its run, or the run was removed. */
static bool study_is_past(const char *dir)
{
	const char *slash = strrchr(dir, '/');
	int64_t number;

	if (!slash || access(dir, F_OK) < 0 ||
		str_to_int(slash + 1, 1, INT_MAX - 1, "attempt", &number, NULL) < 0)
		return true;
	AUTO_FREE char *next = attempt_sibling(dir, (int)number + 1);
	return access(next, F_OK) == 0;
}

char *study_failed(const struct attempt_job *job, const char *dir)
{
	AUTO_FREE char *failed = NULL, *ours = fs_join(dir, ATTEMPT_JOB);
	AUTO_BUF struct buf text = {0};
	struct stat mark, st;

	if (!job->slots || !job->spec.study.fail_fast)
		return NULL;
	failed = fs_join(job->slots, SLOT_FAILED);
	if (fs_read(failed, FAILED_MAX, &text, NULL, NULL) < 0 || stat(failed, &mark) < 0)
		return NULL;
	char *line = strchr(text.data, '\n');
	if (!line)
		return NULL;
	*line = '\0';
	if (!run_id_is_valid(text.data) || study_is_past(line + 1))
		return NULL;
	if (job->attempt > 1 && stat(ours, &st) == 0 && study_is_newer(&st, &mark))
		return NULL;
	return mem_strdup(text.data);
}
