/* SPDX-License-Identifier: Apache-2.0 */
#include "app/tensorboard/tensorboard_local.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "app/transfer/mirror_files.h"
#include "base/data/json.h"
#include "base/loop/proc.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/vec.h"
#include "events/event_files.h"
#include "net/stream/pump.h"
#include "net/stream/stream.h"

enum { HEAD_MAX = 8192 };
#define NAME "tensorboard"

void tensorboard_program_done(struct tensorboard_program *program)
{
	free(program->path);
	strv_done(&program->python);
	free(program->install);
	*program = (struct tensorboard_program){0};
}

/*
 * Where it may be
 */

static void add_bin(struct strv *dirs, const char *prefix, const char *below)
{
	if (!str_empty(prefix) && prefix[0] == '/')
		strv_addf(dirs, "%s/%s", prefix, below);
}

static char *tensorboard_local_find(const struct tensorboard_search *search)
{
	AUTO_STRV struct strv dirs = {0};
	const char *path = env_get(search->env, "PATH");
	AUTO_FREE char *joined = NULL;

	add_bin(&dirs, env_get(search->env, "VIRTUAL_ENV"), "bin");
	add_bin(&dirs, search->tree, ".venv/bin");
	add_bin(&dirs, search->tree, "venv/bin");
	add_bin(&dirs, env_get(search->env, "CONDA_PREFIX"), "bin");
	if (!str_empty(path))
		strv_add(&dirs, path);
	add_bin(&dirs, search->home, ".local/bin");
	if (dirs.n == 0)
		return NULL;
	joined = strv_join(&dirs, ":");
	return proc_find(NAME, joined);
}

static bool has_program(const struct tensorboard_search *search, const char *name)
{
	AUTO_FREE char *found = proc_find(name, env_get(search->env, "PATH"));

	return found != NULL;
}

static int tensorboard_local_fail_missing(const struct tensorboard_search *search, struct err *err)
{
	const char *prefix = env_get(search->env, "VIRTUAL_ENV");
	AUTO_FREE char *own = str_empty(prefix) ? NULL : mem_printf("%s/bin/python", prefix);
	AUTO_BUF struct buf command = buf_with(HEAD_MAX);

	if (own && access(own, X_OK) == 0) {
		str_shell_quote(&command, own);
		buf_adds(&command, " -m pip install tensorboard");
	} else if (has_program(search, "uv")) {
		buf_adds(&command, "uv tool install tensorboard");
	} else if (has_program(search, "pipx")) {
		buf_adds(&command, "pipx install tensorboard");
	} else {
		buf_adds(&command, "python3 -m venv ~/.venv && ~/.venv/bin/pip install tensorboard "
				   "&& . ~/.venv/bin/activate");
	}
	err_set(err, E_TENSORBOARD_MISSING, "there is no TensorBoard here");
	err_evidence(err, "looked for in the active environment, .venv, conda, PATH and "
			  "~/.local/bin");
	return err_hint(err, "%s   # or read the curves now: dlrun plot %s", command.data,
		search->plot ? search->plot : "@");
}

/*
 * How it is run
 */

static void tensorboard_local_read_python(struct tensorboard_program *program)
{
	AUTO_FD int fd = open(program->path, O_RDONLY | O_CLOEXEC);
	char head[HEAD_MAX];
	ssize_t n = fd < 0 ? -1 : read(fd, head, sizeof(head));

	if (n > 0)
		(void)tensorboard_python_read(head, (size_t)n, &program->python);
}

/* Environments that uv makes have no pip. */
static char *install_command(
	const struct tensorboard_search *search, const struct tensorboard_program *program)
{
	AUTO_BUF struct buf command = buf_with(HEAD_MAX);
	AUTO_FREE char *pip = NULL;
	const char *python = program->python.n == 1 ? program->python.v[0] : NULL;

	if (!python)
		return mem_strdup("pip install");
	pip = mem_printf("%.*s/pip", (int)(strrchr(python, '/') - python), python);
	if (access(pip, X_OK) < 0 && has_program(search, "uv")) {
		buf_adds(&command, "uv pip install -p ");
		str_shell_quote(&command, python);
	} else {
		str_shell_quote(&command, python);
		buf_adds(&command, " -m pip install");
	}
	return buf_take(&command);
}

int tensorboard_find(
	const struct tensorboard_search *search, struct tensorboard_program *ret, struct err *err)
{
	struct tensorboard_program program = {.path = tensorboard_local_find(search)};

	if (!program.path)
		return tensorboard_local_fail_missing(search, err);
	if (program.path[0] != '/') {
		char *path = NULL;
		int r = fs_realpath(program.path, &path, err);

		free(program.path);
		if (r < 0)
			return r;
		program.path = path;
	}
	tensorboard_local_read_python(&program);
	program.install = install_command(search, &program);
	*ret = program;
	return 0;
}

enum { LOCK_MS = 2000 };
#define PREFIX "tensorboard-"
#define LOCK   ".lock"

/* Remove directories whose lock is no longer held; collect all names before removing any. */
static void tensorboard_local_sweep(const char *runtime)
{
	AUTO_DIR DIR *dir = opendir(runtime);
	AUTO_STRV struct strv names = {0};
	const struct dirent *entry;

	while (dir && (entry = readdir(dir)))
		if (str_starts(entry->d_name, PREFIX) && str_ends(entry->d_name, LOCK))
			strv_add(&names, entry->d_name);
	for (size_t i = 0; i < names.n; i++) {
		AUTO_FREE char *lock = fs_join(runtime, names.v[i]);
		AUTO_FREE char *name = mem_strndup(names.v[i], strlen(names.v[i]) - strlen(LOCK));

		if (fs_is_locked(lock) == 0 && fs_remove_tree(dirfd(dir), name, NULL) == 0)
			unlink(lock);
	}
}

static int tensorboard_local_make(const char *runtime, struct tensorboard_dir *ret, struct err *err)
{
	char name[FS_TEMP_NAME_SIZE];
	struct tensorboard_dir dir = {0};

	fs_temp_name(name);
	dir.path = mem_printf("%s/" PREFIX "%s", runtime, name + strlen(FS_TEMP_PREFIX));
	dir.lock = mem_printf("%s" LOCK, dir.path);
	dir.runs = mem_printf("%s/runs", dir.path);
	dir.scratch = mem_printf("%s/scratch", dir.path);
	int r = fs_lock(dir.lock, true, LOCK_MS, &dir.lock_fd, err);
	if (r < 0) {
		free(TAKE(dir.path));
		tensorboard_dir_done(&dir);
		return r;
	}
	r = fs_mkdirs(dir.runs, 0700, err);
	if (r == 0)
		r = fs_mkdirs(dir.scratch, 0700, err);
	if (r < 0)
		tensorboard_dir_done(&dir);
	else
		*ret = dir;
	return r;
}

int tensorboard_dir_make(const char *runtime, struct tensorboard_dir *ret, struct err *err)
{
	AUTO_FREE char *all = mem_printf("%s/tensorboard" LOCK, runtime);
	int lock_fd = -1;

	int r = fs_private_dir(runtime, err);
	if (r == 0)
		r = fs_lock(all, true, LOCK_MS, &lock_fd, err);
	if (r < 0)
		return r;
	AUTO_FD int held = lock_fd;
	tensorboard_local_sweep(runtime);
	r = tensorboard_local_make(runtime, ret, err);
	(void)held;
	return r;
}

void tensorboard_dir_done(struct tensorboard_dir *dir)
{
	if (dir->path) {
		fs_remove_tree(AT_FDCWD, dir->path, NULL);
		unlink(dir->lock);
		close(dir->lock_fd);
	}
	free(dir->path);
	free(dir->lock);
	free(dir->runs);
	free(dir->scratch);
	*dir = (struct tensorboard_dir){0};
}

/* Link the whole directory: files named by a projector configuration have to lie where the
 * configuration itself lies. The tree that is replaced holds links only. */
static int link_dir(const char *to, const char *at, struct err *err)
{
	struct stat st;

	if (lstat(at, &st) == 0 && S_ISLNK(st.st_mode))
		return 0;
	int r = fs_remove_tree(AT_FDCWD, at, err);
	if (r == 0 && symlink(to, at) < 0)
		r = fs_error(err, errno, "cannot make %s", at);
	return r;
}

/* dirs: the directories in it, for later. */
static int link_files(
	const char *from, const char *at, const char *sub, struct strv *dirs, struct err *err)
{
	AUTO_DIR DIR *stream = opendir(from);
	const struct dirent *entry;
	struct stat st;

	int r = fs_mkdirs(at, 0700, err);
	while (r == 0 && stream && (entry = readdir(stream))) {
		if (str_eq(entry->d_name, ".") || str_eq(entry->d_name, "..") ||
			str_eq(entry->d_name, MIRROR_OWN) ||
			fstatat(dirfd(stream), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
			continue;
		AUTO_FREE char *path = mem_printf("%s/%s", at, entry->d_name);
		AUTO_FREE char *file = mem_printf("%s/%s", from, entry->d_name);

		if (S_ISDIR(st.st_mode))
			strv_addf(dirs, "%s/%s", sub, entry->d_name);
		else if (symlink(file, path) < 0 && errno != EEXIST)
			r = fs_error(err, errno, "cannot make %s", path);
	}
	return r;
}

static bool has_projector(const char *dir)
{
	AUTO_FREE char *path = mem_printf("%s/" PLUGIN_FILES_PROJECTOR, dir);

	return access(path, F_OK) == 0;
}

int tensorboard_dir_link(const struct tensorboard_dir *dir, const char *name, const char *from,
	const char *source, struct err *err)
{
	AUTO_STRV struct strv subs = {0};
	int r = 0;

	strv_add(&subs, "");
	while (r == 0 && subs.n) {
		AUTO_FREE char *sub = strv_take_out(&subs, subs.n - 1);
		AUTO_FREE char *here = mem_printf("%s%s", from, sub);
		AUTO_FREE char *there = mem_printf("%s%s", source, sub);
		AUTO_FREE char *at = mem_printf("%s/%s%s", dir->runs, name, sub);
		r = has_projector(here) ? link_dir(there, at, err)
					: link_files(here, at, sub, &subs, err);
	}
	return r;
}

enum { HEADER_MAX = 4096, CONNECT_MS = 1000, STOP_MS = 2000, STOP_POLL_MS = 10 };

/* Without an interpreter: ends it when standard input does, and ends with it. */
static const char watcher[] = "exec 3<&0 </dev/null\n"
			      "\"$@\" 3<&- & t=$!\n"
			      "(cat <&3 >/dev/null; kill $t) 2>/dev/null & w=$!\n"
			      "wait $t; s=$?; kill $w 2>/dev/null; exit $s";

/* A connection. */
struct piped {
	struct pump *pump;
	struct piped *next, **at;
};

struct tensorboard_local {
	struct tensorboard_server server;
	struct tensorboard_local_options options;
	pid_t pid; /* and its group; 0: it has ended */
	int status;
	int link_fd;
	struct loop_fd *link_source;
	struct buf header;
	bool has_header;
	struct VEC_OF(int) waiting; /* connections that wait for a socket of its network */
	struct piped *piped;
};

/*
 * Connections to TensorBoard
 */

static void tensorboard_local_drop(struct piped *piped)
{
	*piped->at = piped->next;
	if (piped->next)
		piped->next->at = piped->at;
	free(piped);
}

static int tensorboard_local_on_pumped(
	void *ctx, struct pump_end *end UNUSED, struct err *err UNUSED)
{
	tensorboard_local_drop(ctx);
	return 0;
}

/* Loopback answers at once. */
static bool finish_connect(int s)
{
	struct pollfd pollfd = {.fd = s, .events = POLLOUT};
	int error = 0;
	socklen_t size = sizeof(error);

	if (poll(&pollfd, 1, CONNECT_MS) != 1 ||
		getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &size) < 0)
		return false;
	errno = error;
	return error == 0;
}

/* Relay fd to TensorBoard; s is a socket of its network, which is not connected yet. Both are taken
 * over. */
static int tensorboard_local_relay(struct tensorboard_local *local, int fd, int s, struct err *err)
{
	struct sockaddr_in address = {.sin_family = AF_INET,
		.sin_port = htons(local->server.port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct piped *piped;

	fcntl(s, F_SETFD, FD_CLOEXEC);
	fcntl(s, F_SETFL, fcntl(s, F_GETFL) | O_NONBLOCK);
	if (connect(s, (struct sockaddr *)&address, sizeof(address)) < 0 &&
		(errno != EINPROGRESS || !finish_connect(s))) {
		int saved = errno;

		close(s);
		close(fd);
		return err_set_errno(err, E_TENSORBOARD_ENDED, saved,
			"TensorBoard does not answer at its port %u", local->server.port);
	}
	piped = mem_alloc(1, sizeof(*piped));
	*piped = (struct piped){.next = local->piped, .at = &local->piped};
	if (piped->next)
		piped->next->at = &piped->next;
	local->piped = piped;
	const struct pump_options options = {.loop = local->server.loop,
		.a = stream_from_fd(fd),
		.b = stream_from_fd(s),
		.done = tensorboard_local_on_pumped,
		.ctx = piped};
	piped->pump = pump_start(&options);
	return 0;
}

static void tensorboard_local_read_header(struct tensorboard_local *local)
{
	AUTO_JSON struct json *json = NULL;
	const char *version;

	local->has_header = true;
	if (json_parse(local->header.data, local->header.len, HEADER_MAX, "the header", &json,
		    NULL) < 0)
		return;
	local->server.is_alone = json_get_bool(json, "alone", false);
	version = json_get_str(json, "version");
	if (version && str_is_plain(version) && strlen(version) < sizeof(local->server.version))
		memcpy(local->server.version, version, strlen(version) + 1);
}

/* The one that has waited longest, or -1. */
static int next_waiting(struct tensorboard_local *local)
{
	if (local->waiting.n == 0)
		return -1;
	int fd = local->waiting.v[0];
	memmove(local->waiting.v, local->waiting.v + 1, --local->waiting.n * sizeof(fd));
	return fd;
}

static void close_waiting(struct tensorboard_local *local)
{
	for (int fd = next_waiting(local); fd >= 0; fd = next_waiting(local))
		close(fd);
}

/* s: -1 where none came. */
static void take_socket(struct tensorboard_local *local, int s)
{
	int fd = next_waiting(local);

	if (fd >= 0 && s >= 0) {
		(void)tensorboard_local_relay(local, fd, s, NULL);
		return;
	}
	if (fd >= 0)
		close(fd);
	if (s >= 0)
		close(s);
}

static short want_socket(void *ctx UNUSED)
{
	return POLLIN;
}

/* Receive one byte and the descriptor that comes with it. */
static ssize_t tensorboard_local_receive(int link, char *ret_byte, int *ret_fd)
{
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct iovec iov = {.iov_base = ret_byte, .iov_len = 1};
	struct msghdr message = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control)};
	ssize_t n = recvmsg(link, &message, MSG_DONTWAIT);
	const struct cmsghdr *head = n > 0 ? CMSG_FIRSTHDR(&message) : NULL;

	*ret_fd = -1;
	if (head && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS &&
		head->cmsg_len == CMSG_LEN(sizeof(int)))
		memcpy(ret_fd, CMSG_DATA(head), sizeof(int));
	return n;
}

static int on_link(void *ctx, short revents UNUSED, struct err *err UNUSED)
{
	struct tensorboard_local *local = ctx;
	char byte;
	int fd;
	ssize_t n;

	for (size_t i = 0; (n = tensorboard_local_receive(local->link_fd, &byte, &fd)) > 0; i++) {
		if (local->has_header)
			take_socket(local, fd);
		else if (byte == '\n')
			tensorboard_local_read_header(local);
		else
			buf_addc(&local->header, byte);
		if (i == HEADER_MAX)
			return 0;
	}
	if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
		loop_remove_fd(local->server.loop, TAKE(local->link_source));
		close_waiting(local);
	}
	return 0;
}

static int tensorboard_local_connect_to(void *ctx, int fd, struct err *err)
{
	struct tensorboard_local *local = ctx;
	int s;

	if (!local->server.is_alone) {
		s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (s >= 0)
			return tensorboard_local_relay(local, fd, s, err);
		int saved = errno;

		close(fd);
		return err_set_errno(err, E_IO, saved, "cannot make a socket");
	}
	/* Request a socket from TensorBoard, which runs in a network of its own. */
	if (!local->link_source || send(local->link_fd, "?", 1, MSG_DONTWAIT | MSG_NOSIGNAL) != 1) {
		close(fd);
		return err_set(err, E_TENSORBOARD_ENDED, "TensorBoard has ended");
	}
	*vec_push(&local->waiting) = fd;
	return 0;
}

/*
 * Starting
 */

static int send_child(struct tensorboard_local *local, struct err *err)
{
	const struct tensorboard_local_options *options = &local->options;
	AUTO_STRV struct strv words = {0};
	AUTO_BUF struct buf text = buf_with(TENSORBOARD_CHILD_MAX);
	ssize_t n;

	tensorboard_child_argv(options->prefix, &words);
	const struct tensorboard_child child = {
		.logdir = options->logdir, .words = &words, .has_link = true, .has_scratch = true};
	tensorboard_child_text(&child, &text);
	n = send(local->link_fd, text.data, text.len, MSG_NOSIGNAL);
	if (n != (ssize_t)text.len)
		return err_set_errno(err, E_TENSORBOARD_START, n < 0 ? errno : EMSGSIZE,
			"TensorBoard cannot be told what to show");
	return 0;
}

static void list_argv(const struct tensorboard_local *local, struct strv *argv)
{
	const struct tensorboard_program *program = local->options.program;
	const char *const by_shell[] = {"/bin/sh", "-c", watcher, "tensorboard", program->path,
		"--load_fast=false", "--reload_multifile=true", "--logdir", local->options.logdir};

	if (local->server.is_plain) {
		for (size_t i = 0; i < ARRAY_LEN(by_shell); i++)
			strv_add(argv, by_shell[i]);
		tensorboard_child_argv(local->options.prefix, argv);
		return;
	}
	strv_copy(argv, &program->python);
	strv_add(argv, "-c");
	strv_add(argv, tensorboard_child_loader);
}

static int tensorboard_local_spawn(
	struct tensorboard_local *local, int stdin_fd, int said_fd, struct err *err)
{
	const struct tensorboard_local_options *options = &local->options;
	AUTO_STRV struct strv argv = {0}, env = {0};
	AUTO_FREE char *tmp = mem_printf("TMPDIR=%s", options->scratch);

	for (const char *const *pair = options->env; *pair; pair++)
		strv_add(&env, *pair);
	env_set(&env, tmp, false);
	env_set(&env, "PYTHONUNBUFFERED=1", false);
	list_argv(local, &argv);
	const struct proc_spec spec = {.argv = (const char *const *)argv.v,
		.env = (const char *const *)env.v,
		.dir = options->scratch,
		.stdin_fd = stdin_fd,
		.stdout_fd = said_fd,
		.stderr_fd = said_fd,
		.new_session = true};
	return proc_spawn(&spec, &local->pid, err);
}

static int tensorboard_local_do_start(struct tensorboard_local *local, struct err *err)
{
	static const struct loop_fd_ops link_ops = {want_socket, on_link};
	int link[2], said[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, link) < 0)
		return err_set_errno(err, E_IO, errno, "cannot make a pair of sockets");
	local->link_fd = link[0];
	AUTO_FD int link_end = link[1];
	int r = fs_pipe(said, 0, err);
	if (r < 0)
		return r;
	local->server.said_fd = said[0];
	AUTO_FD int said_end = said[1];
	r = tensorboard_local_spawn(local, link_end, said_end, err);
	if (r == 0 && !local->server.is_plain)
		r = send_child(local, err);
	if (r < 0)
		return r;
	tensorboard_server_read(&local->server);
	local->link_source = loop_add_fd(local->server.loop, local->link_fd, &link_ops, local);
	return 0;
}

/* The environment that it is of was moved, or its Python was removed. */
static int fail_exec(const struct tensorboard_local_options *options, struct err *err)
{
	const char *path = options->program->path, *bin = strrchr(path, '/');
	AUTO_ERR struct err cause = {0};
	AUTO_BUF struct buf dir = buf_with(TENSORBOARD_CHILD_MAX);

	err_move(&cause, err);
	while (bin > path && bin[-1] != '/')
		bin--;
	AUTO_FREE char *prefix = mem_strndup(path, (size_t)(bin - path));
	str_shell_quote(&dir, str_ends(prefix, "/") && prefix[1] ? prefix : "~/.venv/");
	err_set(err, E_TENSORBOARD_START, "TensorBoard here cannot start: %s", cause.message);
	err_evidence(err, "from %s", path);
	return err_hint(err,
		"python3 -m venv %s && %sbin/pip install tensorboard   — or read the "
		"same curves now: dlrun plot %s",
		dir.data, dir.data, options->plot ? options->plot : "@");
}

/*
 * Stopping
 */

static bool tensorboard_local_has_ended(struct tensorboard_local *local)
{
	if (local->pid && waitpid(local->pid, &local->status, WNOHANG) == local->pid)
		local->pid = 0;
	return local->pid == 0;
}

/* Signal the whole process group: the data server outlives TensorBoard for a moment. */
static void tensorboard_local_stop(struct tensorboard_local *local)
{
	const struct timespec pause = {.tv_nsec = STOP_POLL_MS * 1000000};
	int64_t end_ms = clock_ms() + STOP_MS;
	pid_t group = local->pid;

	if (group == 0)
		return;
	kill(-group, SIGTERM);
	while (!tensorboard_local_has_ended(local) && clock_ms() < end_ms)
		nanosleep(&pause, NULL);
	kill(-group, SIGKILL);
	while (local->pid && waitpid(local->pid, NULL, 0) < 0 && errno == EINTR)
		;
}

static void tensorboard_local_free(struct tensorboard_server *server)
{
	struct tensorboard_local *local = (struct tensorboard_local *)server;

	tensorboard_server_done(server);
	while (local->piped) {
		pump_cancel(local->piped->pump);
		tensorboard_local_drop(local->piped);
	}
	close_waiting(local);
	loop_remove_fd(server->loop, local->link_source);
	tensorboard_local_stop(local);
	if (server->said_fd >= 0)
		close(server->said_fd);
	if (local->link_fd >= 0)
		close(local->link_fd);
	vec_done(&local->waiting);
	buf_done(&local->header);
	free(local);
}

static int tensorboard_local_fail_ended(struct tensorboard_local *local, struct err *err)
{
	const struct tensorboard_local_options *options = &local->options;
	const struct tensorboard_who who = {.path = options->program->path,
		.version = local->server.version,
		.install = options->program->install,
		.plot = options->plot};
	char signal[8];
	AUTO_FREE char *ended =
		WIFSIGNALED(local->status)
			? mem_printf("was killed by SIG%s",
				  proc_signal_name(WTERMSIG(local->status), signal))
			: mem_printf("has exited with status %d", WEXITSTATUS(local->status));
	AUTO_FREE char *hint =
		mem_printf("dlrun tensorboard   # or read the curves now: dlrun plot %s",
			options->plot ? options->plot : "@");

	return tensorboard_server_fail(&local->server, &who, ended, hint, err);
}

static int tensorboard_local_poll(struct tensorboard_server *server, struct err *err)
{
	struct tensorboard_local *local = (struct tensorboard_local *)server;

	if (tensorboard_local_has_ended(local))
		return tensorboard_local_fail_ended(local, err);
	/* The header tells how to connect. */
	return (server->is_plain || local->has_header) && tensorboard_server_probe(server);
}

int tensorboard_local_start(const struct tensorboard_local_options *options,
	struct tensorboard_server **ret, struct err *err)
{
	struct tensorboard_local *local = mem_alloc(1, sizeof(*local));

	*local = (struct tensorboard_local){.server = {.poll = tensorboard_local_poll,
						    .free = tensorboard_local_free,
						    .loop = options->loop,
						    .link = {tensorboard_local_connect_to, local},
						    .prefix = options->prefix,
						    .said_fd = -1,
						    .is_plain = options->program->python.n == 0},
		.options = *options,
		.link_fd = -1};
	buf_init(&local->header, HEADER_MAX);
	int r = tensorboard_local_do_start(local, err);
	if (r == 0) {
		*ret = &local->server;
		return 0;
	}
	tensorboard_local_free(&local->server);
	return err && err->id == E_RUN_EXEC ? fail_exec(options, err) : r;
}
