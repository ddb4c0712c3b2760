/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "app/doctor/doctor_checks.h"
#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/random.h"
#include "base/util/str.h"
#include "core/store/store.h"

/*
 * The directories of dlrun and the file systems below them. Nothing is made that stays: what does
 * not exist yet is judged by the directory that it would be made in.
 */

enum { LINE_BYTES = 64 << 10, DRIFT_LOOK_MS = 100, SKEW_MS = 5000, SETBACK_MS = 60000 };
enum { INODES_MIN = 1000, INODES_FEW = 10000 };
#define SPACE_MIN (UINT64_C(64) << 20)
#define SPACE_LOW (UINT64_C(1) << 30)

struct place {
	const char *name, *variable, *path;
};

enum { PLACES = 3 };

static void list_places(const struct doctor *doctor, struct place out[static PLACES])
{
	const struct dirs *dirs = &doctor->session->dirs;

	out[0] = (struct place){"state", "XDG_STATE_HOME", dirs->state};
	out[1] = (struct place){"cache", "XDG_CACHE_HOME", dirs->cache};
	out[2] = (struct place){"data", "XDG_DATA_HOME", dirs->data};
}

/* path itself, or the nearest directory upwards that exists. */
static char *nearest(const char *path)
{
	char *dir = mem_strdup(path);
	struct stat st;

	while (stat(dir, &st) < 0 && (errno == ENOENT || errno == ENOTDIR)) {
		char *slash = strrchr(dir, '/');
		if (!slash || slash == dir)
			break;
		*slash = '\0';
	}
	return dir;
}

/* A command with a path in it; the caller frees. */
static char *command_on(const char *command, const char *path)
{
	struct buf out;

	buf_init(&out, LINE_BYTES);
	buf_adds(&out, command);
	str_shell_quote(&out, path);
	return out.data;
}

static char *move_elsewhere(const struct place *place)
{
	return mem_printf("export %s=\"/var/tmp/$(id -un)/%s\"", place->variable, place->name);
}

/*
 * home
 */

int doctor_home(const struct doctor *doctor, struct doctor_row *row, struct err *err)
{
	struct place places[PLACES];
	struct stat st;

	(void)err;
	if (doctor->fault) {
		doctor_found(row, "none");
		doctor_blame(
			row, DOCTOR_PROBLEM, doctor->fault->hint, "%s", doctor->fault->message);
		return 0;
	}
	list_places(doctor, places);
	doctor_found(row, "%s in %s, %s in %s, %s in %s", places[0].name, places[0].path,
		places[1].name, places[1].path, places[2].name, places[2].path);
	const char *home = doctor->session->dirs.home;
	if (home && (stat(home, &st) < 0 || !S_ISDIR(st.st_mode)))
		doctor_blame(row, DOCTOR_WARNING, "export HOME=/path/to/your/home",
			"HOME is not a directory: %s", home);
	return 0;
}

/*
 * access
 */

static void blame_parent(struct doctor_row *row, const struct place *place)
{
	AUTO_FREE char *parent = nearest(place->path);
	AUTO_FREE char *fix = move_elsewhere(place);

	if (access(parent, W_OK | X_OK) == 0)
		return;
	doctor_blame(row, DOCTOR_PROBLEM, fix, "%s cannot be made: %s: %s", place->path, parent,
		strerror(errno));
}

static void blame_mode(struct doctor_row *row, const struct place *place, const struct stat *st)
{
	AUTO_FREE char *close_writing = command_on("chmod go-w ", place->path);
	AUTO_FREE char *close_all = command_on("chmod 700 ", place->path);
	AUTO_FREE char *take_over = command_on("sudo chown -R \"$(id -un)\" ", place->path);
	AUTO_FREE char *elsewhere = move_elsewhere(place);

	if (st->st_uid != geteuid())
		doctor_blame(row, DOCTOR_PROBLEM, take_over, "%s belongs to another user (uid %lu)",
			place->path, (unsigned long)st->st_uid);
	if (st->st_mode & (S_IWGRP | S_IWOTH))
		doctor_blame(
			row, DOCTOR_PROBLEM, close_writing, "others may write to %s", place->path);
	if (access(place->path, R_OK | W_OK | X_OK) < 0)
		doctor_blame(row, DOCTOR_PROBLEM, errno == EROFS ? elsewhere : close_all,
			"%s cannot be written: %s", place->path, strerror(errno));
	if (st->st_mode & (S_IRWXG | S_IRWXO))
		doctor_blame(row, DOCTOR_WARNING, close_all, "others may read %s", place->path);
}

int doctor_access(const struct doctor *doctor, struct doctor_row *row, struct err *err)
{
	struct place places[PLACES];
	size_t n_made = 0;

	(void)err;
	list_places(doctor, places);
	for (size_t i = 0; i < PLACES; i++) {
		AUTO_FREE char *elsewhere = move_elsewhere(&places[i]);
		struct stat st;
		if (stat(places[i].path, &st) == 0 && S_ISDIR(st.st_mode)) {
			n_made++;
			blame_mode(row, &places[i], &st);
		} else if (stat(places[i].path, &st) == 0) {
			doctor_blame(row, DOCTOR_PROBLEM, elsewhere, "%s is not a directory",
				places[i].path);
		} else {
			blame_parent(row, &places[i]);
		}
	}
	doctor_found(row, "%zu of %d directories made%s", n_made, PLACES,
		n_made && row->status == DOCTOR_OK ? ", yours alone" : "");
	return 0;
}

/*
 * space
 */

void doctor_judge_space(struct doctor_row *row, const char *dir, uint64_t bytes, uint64_t inodes)
{
	char size[16];

	str_size(bytes, size);
	if (bytes < SPACE_MIN)
		doctor_blame(row, DOCTOR_PROBLEM, "dlrun gc", "only %s are free in %s", size, dir);
	if (inodes < INODES_MIN)
		doctor_blame(row, DOCTOR_PROBLEM, "dlrun gc",
			"only %llu more files can be made in %s", (unsigned long long)inodes, dir);
	if (bytes < SPACE_LOW)
		doctor_blame(row, DOCTOR_WARNING, "dlrun gc", "only %s are free in %s", size, dir);
	if (inodes < INODES_FEW)
		doctor_blame(row, DOCTOR_WARNING, "dlrun gc",
			"only %llu more files can be made in %s", (unsigned long long)inodes, dir);
}

/* Each file system once. */
static bool is_new_device(const struct place *places, size_t i, dev_t device)
{
	for (size_t k = 0; k < i; k++) {
		AUTO_FREE char *dir = nearest(places[k].path);
		struct stat st;
		if (stat(dir, &st) == 0 && st.st_dev == device)
			return false;
	}
	return true;
}

int doctor_space(const struct doctor *doctor, struct doctor_row *row, struct err *err)
{
	struct place places[PLACES];
	AUTO_BUF struct buf found;

	buf_init(&found, LINE_BYTES);
	list_places(doctor, places);
	for (size_t i = 0; i < PLACES; i++) {
		AUTO_FREE char *dir = nearest(places[i].path);
		struct statvfs fs;
		struct stat st;
		char size[16];

		if (stat(dir, &st) < 0 || statvfs(dir, &fs) < 0)
			return fs_error(err, errno, "%s", dir);
		if (!is_new_device(places, i, st.st_dev))
			continue;
		uint64_t bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
		doctor_judge_space(row, dir, bytes, fs.f_files ? fs.f_favail : UINT64_MAX);
		buf_addf(&found, "%s%s for %s", found.len ? ", " : "", str_size(bytes, size),
			places[i].name);
	}
	doctor_found(row, "%s", found.data);
	return 0;
}

/*
 * network
 */

int doctor_network(const struct doctor *doctor, struct doctor_row *row, struct err *err)
{
	struct place places[PLACES];
	AUTO_BUF struct buf found;

	buf_init(&found, LINE_BYTES);
	list_places(doctor, places);
	for (size_t i = 0; i < PLACES; i++) {
		AUTO_FREE char *dir = nearest(places[i].path);
		AUTO_FREE char *fix = move_elsewhere(&places[i]);
		AUTO_FD int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (fd < 0)
			return fs_error(err, errno, "%s", dir);
		const char *kind = os_network_fs(fd);
		if (!kind)
			continue;
		buf_addf(&found, "%s%s on %s", found.len ? ", " : "", places[i].name, kind);
		doctor_blame(row, DOCTOR_WARNING, fix,
			"%s lies on a file server: slow, and its locks are only as good as the "
			"server's",
			dir);
	}
	doctor_found(row, "%s", found.len ? found.data : "all on this machine");
	return 0;
}

/*
 * locks
 */

/* Of the form that `dlrun gc` takes away, should this process be killed. */
static char *temp_path(const char *dir)
{
	uint64_t number;

	random_bytes(&number, sizeof(number));
	return mem_printf("%s/.dlrun-doctor-%016llx", dir, (unsigned long long)number);
}

/* The database locks by fcntl(2), everything else by flock(2). */
static void try_fcntl(int fd, const char *dir, const char *fix, struct doctor_row *row)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

	if (fcntl(fd, F_SETLK, &lock) < 0)
		doctor_blame(row, DOCTOR_PROBLEM, fix,
			"the records of runs cannot be locked in %s: %s", dir, strerror(errno));
}

static int try_locks(const struct place *place, struct doctor_row *row, struct err *err)
{
	AUTO_FREE char *dir = nearest(place->path);
	AUTO_FREE char *path = temp_path(dir);
	AUTO_FREE char *fix = move_elsewhere(place);
	AUTO_ERR struct err fault = {0};
	AUTO_FD int first = -1;
	AUTO_FD int second = -1;

	int r = fs_lock(path, true, 0, &first, &fault);
	if (r == 0) {
		try_fcntl(first, dir, fix, row);
		r = fs_lock(path, true, 0, &second, &fault);
		if (r == 0)
			doctor_blame(row, DOCTOR_PROBLEM, fix,
				"two processes can hold the same lock in %s", dir);
	}
	unlink(path);
	if (r == 0 || fault.id == E_IO_LOCK)
		return 0;
	/* Of a file that cannot be made the other checks tell. */
	if (fault.id != E_IO)
		return err_move(err, &fault);
	doctor_blame(row, DOCTOR_PROBLEM, fix, "files cannot be locked: %s", fault.message);
	return 0;
}

int doctor_locks(const struct doctor *doctor, struct doctor_row *row, struct err *err)
{
	struct place places[PLACES];

	list_places(doctor, places);
	doctor_found(row, "not known");
	for (size_t i = 0; i < PLACES; i++) {
		int r = try_locks(&places[i], row, err);
		if (r < 0)
			return r;
	}
	doctor_found(row, row->status == DOCTOR_OK ? "they work" : "they do not work");
	return 0;
}

/*
 * clock
 */

static const char set_clock[] = "sudo timedatectl set-ntp true";

static bool is_plausible(int64_t wall_ms)
{
	static const int64_t first_ms = INT64_C(1735689600000), last_ms = INT64_C(4102444800000);

	return wall_ms >= first_ms && wall_ms < last_ms;
}

void doctor_judge_clock(struct doctor_row *row, const struct doctor_times *times)
{
	int64_t skew_ms = times->file_ms - times->wall_ms;
	int64_t back_ms = times->newest_ms - times->wall_ms;
	char now[CLOCK_TEXT_SIZE], text[32];

	clock_format(times->wall_ms, now);
	doctor_found(row, "%s", now);
	if (!is_plausible(times->wall_ms))
		doctor_blame(row, DOCTOR_PROBLEM, set_clock,
			"the clock is wrong: the order of runs and what has changed in files go by "
			"it");
	if (skew_ms > SKEW_MS || skew_ms < -SKEW_MS)
		doctor_blame(row, DOCTOR_WARNING, set_clock,
			"the file system's clock is %s %s this machine's",
			duration_text(skew_ms < 0 ? -skew_ms : skew_ms, text),
			skew_ms < 0 ? "behind" : "ahead of");
	if (back_ms > SETBACK_MS)
		doctor_blame(row, DOCTOR_WARNING, set_clock,
			"the newest run was submitted %s from now: the clock was set back",
			duration_text(back_ms, text));
	if (times->drift_ms > DRIFT_LOOK_MS || times->drift_ms < -DRIFT_LOOK_MS)
		doctor_blame(row, DOCTOR_WARNING, set_clock, "the clock jumps");
}

/* The time that the file system gives to a new file; now_ms when none can be made. */
static int64_t file_time_ms(const char *dir, int64_t now_ms)
{
	AUTO_FREE char *path = temp_path(dir);
	AUTO_FD int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	struct stat st;

	if (fd < 0)
		return now_ms;
	bool ok = write(fd, "", 1) == 1 && fstat(fd, &st) == 0;
	unlink(path);
	return ok ? (int64_t)st.st_mtim.tv_sec * 1000 + st.st_mtim.tv_nsec / 1000000 : now_ms;
}

static int64_t newest_run_ms(const struct doctor *doctor)
{
	AUTO_FREE char *path = fs_join(doctor->session->dirs.state, "runs.db");
	struct store_filter filter = {.limit = 1};
	AUTO(run_list_done) struct run_list runs = {0};
	struct store *store;

	if (access(path, F_OK) < 0 || session_store(doctor->session, &store, NULL) < 0 ||
		store_list(store, &filter, &runs, NULL) < 0 || runs.n == 0)
		return 0;
	return run_submitted_ms(runs.v[0]);
}

int doctor_clock(const struct doctor *doctor, struct doctor_row *row, struct err *err)
{
	AUTO_FREE char *dir = nearest(doctor->session->dirs.state);
	struct doctor_times times = {.wall_ms = clock_wall_ms()};
	int64_t begin_ms = clock_ms();

	(void)err;
	times.file_ms = file_time_ms(dir, times.wall_ms);
	times.newest_ms = newest_run_ms(doctor);
	poll(NULL, 0, DRIFT_LOOK_MS);
	times.drift_ms = clock_wall_ms() - times.wall_ms - (clock_ms() - begin_ms);
	doctor_judge_clock(row, &times);
	return 0;
}
