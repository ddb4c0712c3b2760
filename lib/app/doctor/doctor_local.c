/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "app/doctor/doctor_checks.h"
#include "app/gc/gc.h"
#include "base/loop/proc.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/random.h"
#include "base/util/str.h"
#include "core/config/config_trust.h"
#include "core/image/file_list.h"
#include "core/store/store.h"
#include "host/gpu.h"

/*
 * Checks of this machine: the directories of dlrun and the file systems below them, what dlrun has
 * written or would read, the shell. Nothing is made that stays: what does not exist yet is checked
 * by the directory that it would be made in.
 */

enum { LINE_BYTES = 64 << 10, DRIFT_POLL_MS = 100, SKEW_MS = 5000, SETBACK_MS = 60000 };
enum { INODES_MIN = 1000, INODES_FEW = 10000, FILES_FEW = 1024, FILES_WANTED = 4096 };
enum { PROGRAM_MS = 3000, GPU_MS = 6000, GPUS_SHOWN = 8 };

#define SPACE_MIN (UINT64_C(64) << 20)
#define SPACE_LOW (UINT64_C(1) << 30)

struct location {
	const char *name, *path;
	char *dir;  /* path itself, or the nearest directory upwards that exists */
	char *move; /* a command that puts it elsewhere */
};

enum { LOCATIONS = 3 };

struct locations {
	struct location v[LOCATIONS];
};

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

static struct locations locations_of(const struct doctor *doctor)
{
	static const char *const variables[] = {
		"XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"};
	const struct dirs *dirs = &doctor->session->dirs;
	struct locations locations = {
		{{"state", dirs->state}, {"cache", dirs->cache}, {"data", dirs->data}}};

	for (size_t i = 0; i < LOCATIONS; i++) {
		locations.v[i].dir = nearest(locations.v[i].path);
		locations.v[i].move = mem_printf(
			"export %s=\"/var/tmp/$(id -un)/%s\"", variables[i], locations.v[i].name);
	}
	return locations;
}

static void locations_done(struct locations *locations)
{
	for (size_t i = 0; i < LOCATIONS; i++) {
		free(locations->v[i].dir);
		free(locations->v[i].move);
	}
}
#define AUTO_LOCATIONS AUTO(locations_done)

/*
 * home
 */

int doctor_home(const struct doctor *doctor, struct doctor_row *row, struct err *err UNUSED)
{
	struct stat st;

	if (doctor->error) {
		doctor_found(row, "none");
		return doctor_blame(
			row, DOCTOR_PROBLEM, doctor->error->hint, "%s", doctor->error->message);
	}
	const struct dirs *dirs = &doctor->session->dirs;
	doctor_found(
		row, "state in %s, cache in %s, data in %s", dirs->state, dirs->cache, dirs->data);
	const char *home = dirs->home;
	if (home && (stat(home, &st) < 0 || !S_ISDIR(st.st_mode)))
		doctor_blame(row, DOCTOR_WARNING, "export HOME=/path/to/your/home",
			"HOME is not a directory: %s", home);
	return 0;
}

/*
 * access
 */

static void blame_mode(
	struct doctor_row *row, const struct location *location, const struct stat *st)
{
	AUTO_FREE char *close_writing = command_on("chmod go-w ", location->path);
	AUTO_FREE char *close_all = command_on("chmod 700 ", location->path);
	AUTO_FREE char *take_over = command_on("sudo chown -R \"$(id -un)\" ", location->path);

	if (st->st_uid != geteuid())
		doctor_blame(row, DOCTOR_PROBLEM, take_over, "%s belongs to another user (uid %lu)",
			location->path, (unsigned long)st->st_uid);
	if (st->st_mode & (S_IWGRP | S_IWOTH))
		doctor_blame(row, DOCTOR_PROBLEM, close_writing, "others may write to %s",
			location->path);
	if (access(location->path, R_OK | W_OK | X_OK) < 0)
		doctor_blame(row, DOCTOR_PROBLEM, errno == EROFS ? location->move : close_all,
			"%s cannot be written: %s", location->path, strerror(errno));
	if (st->st_mode & (S_IRWXG | S_IRWXO))
		doctor_blame(row, DOCTOR_WARNING, close_all, "others may read %s", location->path);
}

int doctor_access(const struct doctor *doctor, struct doctor_row *row, struct err *err UNUSED)
{
	AUTO_LOCATIONS struct locations locations = locations_of(doctor);
	size_t n_made = 0;

	for (const struct location *location = locations.v; location < locations.v + LOCATIONS;
		location++) {
		struct stat st;
		bool there = stat(location->path, &st) == 0;
		if (there && S_ISDIR(st.st_mode)) {
			n_made++;
			blame_mode(row, location, &st);
		} else if (there) {
			doctor_blame(row, DOCTOR_PROBLEM, location->move, "%s is not a directory",
				location->path);
		} else if (access(location->dir, W_OK | X_OK) < 0) {
			doctor_blame(row, DOCTOR_PROBLEM, location->move,
				"%s cannot be made: %s: %s", location->path, location->dir,
				strerror(errno));
		}
	}
	return doctor_found(row, "%zu of %d directories made%s", n_made, LOCATIONS,
		n_made && row->status == DOCTOR_OK ? ", yours alone" : "");
}

/*
 * space
 */

void doctor_evaluate_space(struct doctor_row *row, const char *dir, uint64_t bytes, uint64_t inodes)
{
	static const struct {
		enum doctor_status status;
		uint64_t bytes, inodes;
	} limits[] = {
		{DOCTOR_PROBLEM, SPACE_MIN, INODES_MIN}, {DOCTOR_WARNING, SPACE_LOW, INODES_FEW}};
	char size[16];

	str_size(bytes, size);
	for (size_t i = 0; i < ARRAY_LEN(limits); i++) {
		if (bytes < limits[i].bytes)
			doctor_blame(row, limits[i].status, "dlrun gc", "only %s are free in %s",
				size, dir);
		if (inodes < limits[i].inodes)
			doctor_blame(row, limits[i].status, "dlrun gc",
				"only %llu more files can be made in %s",
				(unsigned long long)inodes, dir);
	}
}

int doctor_space(const struct doctor *doctor, struct doctor_row *row, struct err *err)
{
	AUTO_LOCATIONS struct locations locations = locations_of(doctor);
	dev_t devices[LOCATIONS];
	AUTO_BUF struct buf found = buf_with(LINE_BYTES);

	for (size_t i = 0; i < LOCATIONS; i++) {
		const char *dir = locations.v[i].dir;
		bool is_new = true;
		struct statvfs fs;
		struct stat st;
		char size[16];

		if (stat(dir, &st) < 0 || statvfs(dir, &fs) < 0)
			return fs_error(err, errno, "%s", dir);
		/* Each file system once. */
		devices[i] = st.st_dev;
		for (size_t k = 0; k < i; k++)
			is_new &= devices[k] != st.st_dev;
		if (!is_new)
			continue;
		uint64_t bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
		doctor_evaluate_space(row, dir, bytes, fs.f_files ? fs.f_favail : UINT64_MAX);
		buf_addf(&found, "%s%s for %s", found.len ? ", " : "", str_size(bytes, size),
			locations.v[i].name);
	}
	return doctor_found(row, "%s", found.data);
}

/*
 * network
 */

int doctor_network(const struct doctor *doctor, struct doctor_row *row, struct err *err)
{
	AUTO_LOCATIONS struct locations locations = locations_of(doctor);
	AUTO_BUF struct buf found = buf_with(LINE_BYTES);

	for (size_t i = 0; i < LOCATIONS; i++) {
		const char *dir = locations.v[i].dir;
		AUTO_FD int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (fd < 0)
			return fs_error(err, errno, "%s", dir);
		const char *kind = os_network_fs(fd);
		if (!kind)
			continue;
		buf_addf(&found, "%s%s on %s", found.len ? ", " : "", locations.v[i].name, kind);
		doctor_blame(row, DOCTOR_WARNING, locations.v[i].move,
			"%s lies on a file server: slow, and its locks are only as good as the "
			"server's",
			dir);
	}
	return doctor_found(row, "%s", found.len ? found.data : "all on this machine");
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

static int try_locks(const struct location *location, struct doctor_row *row, struct err *err)
{
	const char *dir = location->dir, *fix = location->move;
	AUTO_FREE char *path = temp_path(dir);
	AUTO_ERR struct err error = {0};
	AUTO_FD int first = -1;
	AUTO_FD int second = -1;

	int r = fs_lock(path, true, 0, &first, &error);
	if (r == 0) {
		/* The database locks by fcntl(2), everything else by flock(2). */
		struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
		if (fcntl(first, F_SETLK, &lock) < 0)
			doctor_blame(row, DOCTOR_PROBLEM, fix,
				"the records of runs cannot be locked in %s: %s", dir,
				strerror(errno));
		r = fs_lock(path, true, 0, &second, &error);
		if (r == 0)
			doctor_blame(row, DOCTOR_PROBLEM, fix,
				"two processes can hold the same lock in %s", dir);
	}
	unlink(path);
	if (r == 0 || error.id == E_IO_LOCK)
		return 0;
	/* Other checks report a file that cannot be made. */
	if (error.id != E_IO)
		return err_move(err, &error);
	return doctor_blame(row, DOCTOR_PROBLEM, fix, "files cannot be locked: %s", error.message);
}

int doctor_locks(const struct doctor *doctor, struct doctor_row *row, struct err *err)
{
	AUTO_LOCATIONS struct locations locations = locations_of(doctor);

	doctor_found(row, "not known");
	for (size_t i = 0; i < LOCATIONS; i++) {
		int r = try_locks(&locations.v[i], row, err);
		if (r < 0)
			return r;
	}
	return doctor_found(row, row->status == DOCTOR_OK ? "they work" : "they do not work");
}

/*
 * clock
 */

static const char set_clock[] = "sudo timedatectl set-ntp true";

static bool doctor_local_is_plausible(int64_t wall_ms)
{
	static const int64_t first_ms = INT64_C(1735689600000), last_ms = INT64_C(4102444800000);

	return wall_ms >= first_ms && wall_ms < last_ms;
}

void doctor_evaluate_clock(struct doctor_row *row, const struct doctor_times *times)
{
	int64_t skew_ms = times->file_ms - times->wall_ms;
	int64_t back_ms = times->newest_ms - times->wall_ms;
	char now[CLOCK_TEXT_SIZE], text[32];

	clock_format(times->wall_ms, now);
	doctor_found(row, "%s", now);
	if (!doctor_local_is_plausible(times->wall_ms))
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
	if (times->drift_ms > DRIFT_POLL_MS || times->drift_ms < -DRIFT_POLL_MS)
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

static bool has_records(const struct doctor *doctor)
{
	AUTO_FREE char *path = fs_join(doctor->session->dirs.state, "runs.db");

	return access(path, F_OK) == 0;
}

static int64_t newest_run_ms(const struct doctor *doctor)
{
	struct store_filter filter = {.limit = 1};
	AUTO(run_list_done) struct run_list runs = {0};
	struct store *store;

	if (!has_records(doctor) || session_store(doctor->session, &store, NULL) < 0 ||
		store_list(store, &filter, &runs, NULL) < 0 || runs.n == 0)
		return 0;
	return run_submitted_ms(runs.v[0]);
}

int doctor_clock(const struct doctor *doctor, struct doctor_row *row, struct err *err UNUSED)
{
	AUTO_FREE char *dir = nearest(doctor->session->dirs.state);
	struct doctor_times times = {.wall_ms = clock_wall_ms()};
	int64_t begin_ms = clock_ms();

	times.file_ms = file_time_ms(dir, times.wall_ms);
	times.newest_ms = newest_run_ms(doctor);
	poll(NULL, 0, DRIFT_POLL_MS);
	times.drift_ms = clock_wall_ms() - times.wall_ms - (clock_ms() - begin_ms);
	doctor_evaluate_clock(row, &times);
	return 0;
}

static const char *variable(const struct doctor *doctor, const char *name)
{
	const char *value = env_get(doctor->session->env.env, name);

	return str_empty(value) ? NULL : value;
}

/* The first line that a program prints, or NULL: it is not there, fails or hangs. */
static char *first_line(const char *const *argv)
{
	AUTO_BUF struct buf out = buf_with(LINE_BYTES);
	int status;

	if (proc_capture(argv, "/", PROGRAM_MS, &out, &status, NULL) < 0 || status != 0)
		return NULL;
	return mem_strndup(out.data, strcspn(out.data, "\n"));
}

/*
 * git
 */

int doctor_git(const struct doctor *doctor, struct doctor_row *row, struct err *err UNUSED)
{
	AUTO_FREE char *path = proc_find("git", variable(doctor, "PATH"));
	AUTO_FREE char *version = NULL;

	if (!path) {
		doctor_found(row, "none on PATH");
		return doctor_blame(row, DOCTOR_WARNING,
			"install git: https://git-scm.com/downloads",
			"repositories of newer formats (SHA-256, reftable) are read by git");
	}
	version = first_line((const char *const[]){path, "--version", NULL});
	doctor_found(row, "%s (%s)", version ? version : "git", path);
	if (!version)
		doctor_blame(row, DOCTOR_WARNING, "git --version", "git does not answer");
	return 0;
}

/*
 * program
 */

static void check_venv(const struct doctor *doctor, struct doctor_row *row)
{
	const char *venv = variable(doctor, "VIRTUAL_ENV");
	AUTO_FREE char *python = venv ? fs_join(venv, "bin/python") : NULL;

	if (python && access(python, X_OK) < 0)
		doctor_blame(row, DOCTOR_WARNING, "deactivate",
			"VIRTUAL_ENV names an environment without a Python: %s", venv);
}

/* The first word of `command:`, when PATH is to have it. */
static void check_command(const struct doctor *doctor, struct doctor_row *row)
{
	struct config *config;
	bool shell = false;

	if (session_config(doctor->session, &config, NULL) < 0)
		return;
	const struct strv *words = config_command(config, &shell);
	if (words->n == 0 || shell || strchr(words->v[0], '/'))
		return;
	AUTO_FREE char *found = proc_find(words->v[0], variable(doctor, "PATH"));
	if (!found)
		doctor_blame(row, DOCTOR_PROBLEM, "dlrun config --show-origin command",
			"the program of `command:` is not on PATH: %s", words->v[0]);
}

int doctor_program(const struct doctor *doctor, struct doctor_row *row, struct err *err UNUSED)
{
	static const char *const names[] = {"python", "python3"};
	const char *venv = variable(doctor, "VIRTUAL_ENV");
	AUTO_FREE char *path = NULL;

	for (size_t i = 0; i < ARRAY_LEN(names) && !path; i++)
		path = proc_find(names[i], variable(doctor, "PATH"));
	AUTO_FREE char *version =
		path ? first_line((const char *const[]){path, "--version", NULL}) : NULL;
	if (!path)
		doctor_found(row, "no Python on PATH");
	else
		doctor_found(row, "%s (%s)%s%s", version ? version : "a Python", path,
			venv ? " in " : "", venv ? venv : "");
	if (path && !version)
		doctor_blame(row, DOCTOR_WARNING, NULL, "%s does not answer", path);
	check_venv(doctor, row);
	check_command(doctor, row);
	return 0;
}

/*
 * gpu
 */

int doctor_gpu(const struct doctor *doctor, struct doctor_row *row, struct err *err UNUSED)
{
	const char *path = variable(doctor, "PATH");
	AUTO_ERR struct err error = {0};
	struct gpu_list list = {0};

	if (!gpu_may_exist(path))
		return doctor_found(row, "none");
	if (gpu_find(path, GPU_MS, &list, &error) < 0) {
		doctor_found(row, "not known");
		return doctor_blame(row, DOCTOR_PROBLEM, error.hint ? error.hint : "nvidia-smi",
			"%s%s%s", error.message, error.n_evidence ? ": " : "",
			error.n_evidence ? error.evidence[0] : "");
	}
	if (list.n) {
		AUTO_BUF struct buf found = buf_with(LINE_BYTES);

		buf_addf(&found, "%zu", list.n);
		for (size_t i = 0; i < list.n && i < GPUS_SHOWN; i++) {
			const struct gpu *gpu = &list.v[i];
			char size[16];
			buf_addf(&found, "%s %u %s %s%s", i ? "," : ":", gpu->index, gpu->model,
				gpu->memory_bytes ? str_size(gpu->memory_bytes, size) : "",
				gpu->used ? " (in use)" : "");
		}
		if (list.n > GPUS_SHOWN)
			buf_adds(&found, " and more");
		doctor_found(row, "%s", found.data);
	} else {
		doctor_found(row, "none, though there is a tool that lists them");
	}
	return 0;
}

/*
 * logout
 */

static bool is_in(const char *group, const char *prefix)
{
	return group && strstr(group, prefix) != NULL;
}

void doctor_evaluate_logout(struct doctor_row *row, const char *group, bool kill, bool linger)
{
	if (!is_in(group, "/user.slice")) {
		doctor_found(row, "no login session: runs go on");
		return;
	}
	/* Processes started by a user's service manager end with it, unless the user lingers
	 * (loginctl(1)); those started by a session end with it only where logind.conf(5) says
	 * so. */
	if (is_in(group, "/user@")) {
		doctor_found(
			row, linger ? "runs go on (linger)" : "runs end with the last session");
		if (!linger)
			doctor_blame(row, DOCTOR_WARNING, "loginctl enable-linger",
				"this shell belongs to your service manager, which is stopped when "
				"you log out");
		return;
	}
	doctor_found(row, kill ? "runs end with the session" : "runs go on");
	if (kill)
		doctor_blame(row, DOCTOR_WARNING,
			"loginctl enable-linger && systemd-run --user --scope dlrun submit …",
			"KillUserProcesses is set: systemd-logind ends what a session leaves");
}

/* The path of the hierarchy that systemd keeps (cgroups(7)), or NULL. */
static char *read_group(void)
{
	AUTO_BUF struct buf text = {0};

	if (fs_read("/proc/self/cgroup", LINE_BYTES, &text, NULL, NULL) < 0)
		return NULL;
	const char *line = strstr(text.data, "name=systemd:");
	if (!line)
		line = strstr(text.data, "0::");
	const char *path = line ? strchr(line, '/') : NULL;
	return path ? mem_strndup(path, strcspn(path, "\n")) : NULL;
}

static bool kills_processes(void)
{
	AUTO_FREE char *response = first_line((const char *const[]){"busctl", "get-property",
		"org.freedesktop.login1", "/org/freedesktop/login1",
		"org.freedesktop.login1.Manager", "KillUserProcesses", NULL});

	return str_eq(response, "b true");
}

int doctor_logout(const struct doctor *doctor, struct doctor_row *row, struct err *err UNUSED)
{
	AUTO_FREE char *group = read_group();
	AUTO_FREE char *linger =
		mem_printf("/var/lib/systemd/linger/%s", doctor->session->env.user);
	bool kill = is_in(group, "/user.slice") && kills_processes();

	doctor_evaluate_logout(row, group, kill, access(linger, F_OK) == 0);
	return 0;
}

/*
 * limits
 */

static bool doctor_local_is_limited(int resource, rlim_t *ret)
{
	struct rlimit limit;

	if (getrlimit(resource, &limit) < 0)
		return false;
	*ret = limit.rlim_cur;
	return limit.rlim_cur != RLIM_INFINITY;
}

static void check_files(struct doctor_row *row)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		return;
	rlim_t most = limit.rlim_max < FILES_WANTED ? limit.rlim_max : FILES_WANTED;
	AUTO_FREE char *fix = mem_printf("ulimit -n %llu", (unsigned long long)most);
	doctor_found(row, "%llu open files", (unsigned long long)limit.rlim_cur);
	if (limit.rlim_cur < FILES_FEW)
		doctor_blame(row, DOCTOR_WARNING, fix,
			"a program with several data loaders needs more than %llu open files",
			(unsigned long long)limit.rlim_cur);
}

int doctor_limits(
	const struct doctor *doctor UNUSED, struct doctor_row *row, struct err *err UNUSED)
{
	static const struct {
		int resource;
		const char *what, *fix;
	} others[] = {
		{RLIMIT_FSIZE, "bytes are all that a file may have", "ulimit -f unlimited"},
		{RLIMIT_CPU, "seconds of CPU time are all that a program may use",
			"ulimit -t unlimited"},
		{RLIMIT_AS, "bytes are all the address space of a program, and CUDA reserves much",
			"ulimit -v unlimited"},
	};
	rlim_t value;

	check_files(row);
	for (size_t i = 0; i < ARRAY_LEN(others); i++)
		if (doctor_local_is_limited(others[i].resource, &value))
			doctor_blame(row, DOCTOR_WARNING, others[i].fix, "%llu %s",
				(unsigned long long)value, others[i].what);
	return 0;
}

/*
 * terminal
 */

int doctor_terminal(const struct doctor *doctor, struct doctor_row *row, struct err *err UNUSED)
{
	static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
	const char *locale = NULL, *term = variable(doctor, "TERM");

	for (size_t i = 0; i < ARRAY_LEN(names) && !locale; i++)
		locale = variable(doctor, names[i]);
	doctor_found(row, "locale %s, terminal %s", locale ? locale : "not set",
		term ? term : "not known");
	if (!locale || (!strcasestr(locale, "utf-8") && !strcasestr(locale, "utf8")))
		doctor_blame(row, DOCTOR_WARNING, "export LC_ALL=C.UTF-8",
			"names beyond ASCII are shown escaped");
	return 0;
}

#define KEEP_MS       (7LL * 24 * 60 * 60 * 1000)
#define LEFTOVER_MANY (UINT64_C(1) << 30)

/*
 * config
 */

int doctor_config(const struct doctor *doctor, struct doctor_row *row, struct err *err UNUSED)
{
	AUTO_STRV struct strv files = {0};
	AUTO_BUF struct buf found = buf_with(LINE_BYTES);
	AUTO_ERR struct err error = {0};
	struct config *config;

	if (session_config(doctor->session, &config, &error) < 0) {
		doctor_found(row, "not valid");
		return doctor_blame(row, DOCTOR_PROBLEM,
			error.hint ? error.hint : "dlrun help dlrun.yaml", "%s", error.message);
	}
	for (size_t i = 0; i < config_keys_n; i++) {
		const struct config_origin *origin = config_origin(config, config_keys[i].name);
		if (origin->source == CONFIG_FROM_DEFAULT || !origin->file ||
			strv_find(&files, origin->file) >= 0)
			continue;
		buf_addf(&found, "%s%s", files.n ? ", " : "", origin->file);
		strv_add(&files, origin->file);
	}
	doctor_found(row, "%s", files.n ? found.data : "none yet (dlrun init writes one)");
	AUTO_FREE char *text = config_not_counting(config);
	if (text)
		doctor_blame(row, DOCTOR_WARNING, "dlrun config trust", "%s", text);
	return 0;
}

/*
 * records
 */

int doctor_records(const struct doctor *doctor, struct doctor_row *row, struct err *err UNUSED)
{
	AUTO_ERR struct err error = {0};
	AUTO_BUF struct buf fix = buf_with(LINE_BYTES);
	struct store *store;
	size_t n = 0;

	if (!has_records(doctor))
		return doctor_found(row, "none yet");
	if (session_store(doctor->session, &store, &error) == 0 &&
		store_check(store, &error) == 0 && store_count(store, &n, &error) == 0)
		return doctor_found(row, "%zu %s", n, n == 1 ? "run" : "runs");
	AUTO_FREE char *path = fs_join(doctor->session->dirs.state, "runs.db");
	AUTO_FREE char *aside = mem_printf("%s.damaged", path);
	buf_adds(&fix, "mv ");
	str_shell_quote(&fix, path);
	buf_addc(&fix, ' ');
	str_shell_quote(&fix, aside);
	doctor_found(row, "not readable");
	/* Only a damaged store may be put aside: other errors have other remedies. */
	return doctor_blame(row, DOCTOR_PROBLEM, error.id == E_STORE ? fix.data : error.hint, "%s",
		error.message);
}

/*
 * leftovers
 */

int doctor_leftovers(const struct doctor *doctor, struct doctor_row *row, struct err *err)
{
	struct gc_report report = {0};
	char size[16];

	if (!has_records(doctor))
		return doctor_found(row, "none");
	int r = gc_local(doctor->session, KEEP_MS, true, &report, err);
	if (r < 0)
		return r;
	str_size(report.bytes, size);
	doctor_found(row, "%s in %zu trees, %zu blobs, %zu other files", size, report.trees,
		report.blobs, report.files);
	if (report.bytes > LEFTOVER_MANY)
		doctor_blame(row, DOCTOR_WARNING, "dlrun gc", "%s belong to no run any more", size);
	return 0;
}

/*
 * tree
 */

/* A user in the home directory has no working tree in mind; another row reports on the
 * configuration. */
static bool doctor_local_is_elsewhere(const struct err *error)
{
	return error->id == E_SNAPSHOT_ROOT || error->id == E_CONFIG || error->id == E_CONFIG_KEY ||
	       error->id == E_CONFIG_SYNTAX;
}

static void blame_tree(struct doctor_row *row, const struct err *error)
{
	bool empty = error->id == E_SNAPSHOT_EMPTY;

	if (doctor_local_is_elsewhere(error)) {
		doctor_found(row, "not looked at: %s", error->message);
		return;
	}
	doctor_found(row, empty ? "nothing to send" : "it would be refused");
	doctor_blame(
		row, empty ? DOCTOR_WARNING : DOCTOR_PROBLEM, error->hint, "%s", error->message);
}

int doctor_tree(const struct doctor *doctor, struct doctor_row *row, struct err *err UNUSED)
{
	AUTO_FILE_LIST struct file_list *file_list = NULL;
	AUTO_ERR struct err error = {0};
	int64_t begin_ms = clock_ms();
	char size[16], took[32];

	/* Without a current directory the session could not begin, and its error says why. */
	if (doctor->error && !doctor->session->env.cwd) {
		blame_tree(row, doctor->error);
		return 0;
	}
	if (file_list_take(doctor->session, NULL, &file_list, &error) < 0) {
		blame_tree(row, &error);
		return 0;
	}
	return doctor_found(row, "%zu %s, %s, %zu excluded, seen in %s: %s%s%s", file_list->paths.n,
		file_list->paths.n == 1 ? "file" : "files", str_size(file_list->paths.bytes, size),
		file_list->paths.n_excluded, duration_text(clock_ms() - begin_ms, took),
		file_list->place->root, file_list->why ? "; " : "",
		file_list->why ? file_list->why : "");
}
