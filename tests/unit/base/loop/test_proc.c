/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/loop/proc.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/err.h"
#include "base/util/mem.h"

enum { LONG_MS = 60000 };

static char *tmp; /* of the whole program */

static int make_tmp(void **state)
{
	const char *base = getenv("TMPDIR");
	AUTO_ERR struct err err = {0};
	AUTO_FREE char *path = mem_printf("%s/dlrun-proc-XXXXXX", base ? base : "/tmp");

	if (!mkdtemp(path) || fs_realpath(path, &tmp, &err) < 0)
		return -1;
	return 0;
}

static int remove_tmp(void **state)
{
	int r = fs_remove_tree(AT_FDCWD, tmp, NULL);
	free(tmp);
	return r;
}

static char *put(const char *name, const char *text, mode_t mode)
{
	char *path = mem_printf("%s/%s", tmp, name);
	AUTO_ERR struct err err = {0};

	if (fs_replace(path, text, strlen(text), mode, FS_SYNC_NONE, &err) < 0)
		fail_msg("%s", err.message);
	chmod(path, mode);
	return path;
}

/* What a shell line prints; it must end with status 0. */
static char *shell(const char *line)
{
	const char *argv[] = {"sh", "-c", line, NULL};
	AUTO_ERR struct err err = {0};
	AUTO_BUF struct buf out;
	int status = -1;

	buf_init(&out, 1 << 20);
	if (proc_capture(argv, NULL, LONG_MS, &out, &status, &err) < 0)
		fail_msg("%s", err.message);
	assert_int_equal(status, 0);
	return buf_take(&out);
}

static int shell_status(const char *line)
{
	const char *argv[] = {"sh", "-c", line, NULL};
	AUTO_ERR struct err err = {0};
	AUTO_BUF struct buf out;
	int status = -1;

	buf_init(&out, 1 << 20);
	if (proc_capture(argv, NULL, LONG_MS, &out, &status, &err) < 0)
		fail_msg("%s", err.message);
	return status;
}

static void check_shell(const char *line, const char *want)
{
	AUTO_FREE char *got = shell(line);

	assert_string_equal(got, want);
}

static void check_fails(
	const char *const *argv, const char *dir, enum err_id id, const char *message)
{
	AUTO_ERR struct err err = {0};
	AUTO_BUF struct buf out;
	int status = 12345;

	buf_init(&out, 1000);
	int r = proc_capture(argv, dir, LONG_MS, &out, &status, &err);
	assert_int_equal(err.id, id);
	assert_int_equal(r, -(int)err.code);
	assert_string_equal(err.message, message);
	assert_int_equal(status, 12345);
	assert_int_equal(out.len, 0);
}

static void check_command_fails(const char *word, enum err_id id)
{
	AUTO_ERR struct err err = {0};
	const struct proc_spec spec = {.argv = (const char *const[]){word, NULL},
		.stdin_fd = -1,
		.stdout_fd = -1,
		.stderr_fd = -1,
		.is_command = true};
	pid_t pid;

	assert_true(proc_spawn(&spec, &pid, &err) < 0);
	assert_int_equal(err.id, id);
}

static int lowest_free_fd(void)
{
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

	close(fd);
	return fd;
}

static void test_capture(void **state)
{
	int before = lowest_free_fd();

	check_shell("printf 'a b\\nc'", "a b\nc");
	check_shell("printf gone >&2", "");
	check_shell("cat", "");
	check_shell("exec >&-; true", "");
	AUTO_FREE char *zeros = shell("head -c 1000000 /dev/zero | tr '\\0' x");
	assert_int_equal(strlen(zeros), 1000000);
	assert_int_equal(lowest_free_fd(), before);
}

static void test_status(void **state)
{
	int status = shell_status("exit 7");
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 7);
	status = shell_status("kill -9 $$");
	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), SIGKILL);
	/* The end of the output is not the end of the program. */
	status = shell_status("exec >&-; sleep 0.05; exit 3");
	assert_int_equal(WEXITSTATUS(status), 3);
}

static void test_dir(void **state)
{
	const char *argv[] = {"pwd", "-P", NULL};
	AUTO_FREE char *want = mem_printf("%s\n", tmp);
	AUTO_BUF struct buf out;
	int status;

	buf_init(&out, 4096);
	assert_int_equal(proc_capture(argv, tmp, LONG_MS, &out, &status, NULL), 0);
	assert_string_equal(out.data, want);
}

static void test_exec_failures(void **state)
{
	AUTO_FREE char *plain = put("plain", "text", 0644);
	AUTO_FREE char *odd = put("odd", "#!/proc/nonexistent/interpreter\n", 0755);
	AUTO_FREE char *not_x = mem_printf("cannot run %s: Permission denied", plain);
	AUTO_FREE char *is_dir = mem_printf("cannot run %s: Permission denied", tmp);
	AUTO_FREE char *bad = mem_printf("cannot run %s: No such file or directory", odd);
	AUTO_FREE char *below = mem_printf("%s/x", plain);
	AUTO_FREE char *below_file = mem_printf("cannot run %s: Not a directory", below);
	AUTO_FREE char *no_dir = mem_printf("cannot start sh in %s: Not a directory", plain);

	AUTO_FREE char *path = mem_strdup(getenv("PATH"));

	/* Ours may have a directory that we may not search, which is another error. */
	setenv("PATH", "/proc/nonexistent:/bin", 1);
	check_command_fails("dlrun-no-such-program", E_EXEC_NOT_FOUND);
	check_command_fails(odd, E_EXEC_NOT_FOUND);
	check_command_fails(plain, E_EXEC_NOT_EXECUTABLE);
	check_command_fails(below, E_EXEC_NOT_EXECUTABLE);
	check_fails((const char *[]){"dlrun-no-such-program", NULL}, NULL, E_RUN_EXEC,
		"cannot run dlrun-no-such-program: No such file or directory");
	check_fails((const char *[]){"./dlrun-no-such", "x", NULL}, NULL, E_RUN_EXEC,
		"cannot run ./dlrun-no-such: No such file or directory");
	check_fails((const char *[]){"", NULL}, NULL, E_RUN_EXEC,
		"cannot run : No such file or directory");
	check_fails((const char *[]){"a\nb", NULL}, NULL, E_RUN_EXEC,
		"cannot run a\\nb: No such file or directory");
	check_fails((const char *[]){plain, NULL}, NULL, E_RUN_EXEC, not_x);
	check_fails((const char *[]){tmp, NULL}, NULL, E_RUN_EXEC, is_dir);
	check_fails((const char *[]){below, NULL}, NULL, E_RUN_EXEC, below_file);
	check_fails((const char *[]){odd, NULL}, NULL, E_RUN_EXEC, bad);
	check_fails((const char *[]){"sh", NULL}, "/proc/nonexistent/dir", E_IO,
		"cannot start sh in /proc/nonexistent/dir: No such file or directory");
	check_fails((const char *[]){"sh", NULL}, plain, E_IO, no_dir);
	setenv("PATH", path, 1);
}

static void test_missing_interpreter(void **state)
{
	AUTO_FREE char *odd = put("odd", "#!/proc/nonexistent/interpreter\n", 0755);
	AUTO_ERR struct err err = {0};
	struct proc_spec spec = {.argv = (const char *[]){odd, NULL}, .stdin_fd = -1};
	pid_t pid = 77;

	assert_int_equal(proc_spawn(&spec, &pid, &err), -ERR_NOTFOUND);
	assert_int_equal(pid, 77);
	assert_int_equal(err.n_evidence, 1);
	assert_string_equal(err.evidence[0],
		"the file is there, but the interpreter of its first line or its loader is not");
	/* No child is left behind. */
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
	assert_int_equal(errno, ECHILD);
}

/* As execvp: what the kernel does not know is a script for sh. */
static void test_script_without_interpreter(void **state)
{
	AUTO_FREE char *script = put("bare", "echo \"$# $1 $2\"\n", 0755);
	AUTO_BUF struct buf out;
	int status;

	buf_init(&out, 100);
	assert_int_equal(proc_capture((const char *[]){script, "a b", "c", NULL}, NULL, LONG_MS,
				 &out, &status, NULL),
		0);
	assert_string_equal(out.data, "2 a b c\n");
}

static char *spawn_read(struct proc_spec *spec)
{
	AUTO_ERR struct err err = {0};
	AUTO_BUF struct buf out;
	int fds[2], status;
	pid_t pid;

	assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
	spec->stdout_fd = fds[1];
	if (proc_spawn(spec, &pid, &err) < 0)
		fail_msg("%s", err.message);
	close(fds[1]);
	buf_init(&out, 1 << 20);
	assert_int_equal(fs_read_fd(fds[0], "pipe", 1 << 20, &out, NULL), 0);
	close(fds[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return buf_take(&out);
}

static void test_env(void **state)
{
	struct proc_spec spec = {
		.argv = (const char *[]){"/bin/sh", "-c", "echo \"${X-unset} ${Y-unset}\"", NULL},
		.stdin_fd = -1,
		.stderr_fd = 2,
	};

	setenv("X", "ours", 1);
	setenv("Y", "ours", 1);
	AUTO_FREE char *inherited = spawn_read(&spec);
	assert_string_equal(inherited, "ours ours\n");
	spec.env = (const char *[]){"X=given", NULL};
	AUTO_FREE char *given = spawn_read(&spec);
	assert_string_equal(given, "given unset\n");
	unsetenv("X");
	unsetenv("Y");
}

static void test_path_of_env(void **state)
{
	AUTO_FREE char *second = mem_printf("%s/second", tmp);
	AUTO_FREE char *both = mem_printf("PATH=/proc/nonexistent:%s:%s", tmp, second);
	AUTO_FREE char *script = mem_printf("#!/bin/sh\necho %s\n", "second");

	mkdir(second, 0755);
	/* One that may not be run does not hide the next. */
	AUTO_FREE char *hidden = put("tool", "#!/bin/sh\necho first\n", 0644);
	AUTO_FREE char *found = put("second/tool", script, 0755);
	struct proc_spec spec = {.argv = (const char *[]){"tool", NULL},
		.env = (const char *[]){both, NULL},
		.stdin_fd = -1,
		.stderr_fd = 2};
	AUTO_FREE char *got = spawn_read(&spec);
	assert_string_equal(got, "second\n");
	assert_int_equal(access(hidden, X_OK), -1);
	assert_int_equal(access(found, X_OK), 0);

	/* Empty elements are the directory that the child is in. */
	spec.env = (const char *[]){"PATH=/proc/nonexistent:", NULL};
	spec.dir = second;
	AUTO_FREE char *here = spawn_read(&spec);
	assert_string_equal(here, "second\n");

	AUTO_ERR struct err err = {0};
	pid_t pid;
	AUTO_FREE char *first = mem_printf("PATH=%s:/proc/nonexistent", tmp);
	spec.env = (const char *[]){first, NULL};
	assert_int_equal(proc_spawn(&spec, &pid, &err), -ERR_NOTFOUND);
	assert_string_equal(err.message, "cannot run tool: Permission denied");
}

static void test_only_named_descriptors(void **state)
{
	int extra[7];

	/* Without close-on-exec, as a library might leave them. */
	for (int i = 0; i < 7; i++)
		extra[i] = dup(0);
	check_shell("for fd in 3 4 5 6 7 8 9; do"
		    " if eval \"true <&$fd\" 2>/dev/null; then echo $fd; fi; done",
		"");
	for (int i = 0; i < 7; i++)
		close(extra[i]);
}

/* Run fn in a child, which may spoil its descriptors and signals. */
static void in_child(int (*fn)(void))
{
	int status;

	fflush(NULL);
	pid_t pid = fork();
	if (pid == 0)
		_exit(fn());
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

static int capture_without_std(void)
{
	AUTO_BUF struct buf out;
	int status = -1;

	buf_init(&out, 100);
	for (int fd = 0; fd < 3; fd++)
		close(fd);
	if (proc_capture((const char *[]){"sh", "-c", "cat; echo hi; echo no >&2", NULL}, NULL,
		    LONG_MS, &out, &status, NULL) < 0)
		return 2;
	if (fcntl(0, F_GETFD) >= 0 || fcntl(1, F_GETFD) >= 0 || fcntl(2, F_GETFD) >= 0)
		return 3;
	return status != 0 || strcmp(out.data, "hi\n") != 0;
}

/* stdin comes from 1, stdout and stderr go to 0. */
static int swap_std(void)
{
	int in[2], out[2], status;
	char data[16] = {0};
	pid_t pid;

	if (pipe2(in, O_CLOEXEC) < 0 || pipe2(out, O_CLOEXEC) < 0)
		return 2;
	dup2(in[0], 1);
	dup2(out[1], 0);
	struct proc_spec spec = {
		.argv = (const char *[]){"sh", "-c", "read x; echo $x; echo e >&2", NULL},
		.stdin_fd = 1,
		.stdout_fd = 0,
		.stderr_fd = 0,
	};
	if (proc_spawn(&spec, &pid, NULL) < 0)
		return 3;
	if (write(in[1], "text\n", 5) != 5 || waitpid(pid, &status, 0) != pid || status != 0)
		return 4;
	if (read(out[0], data, sizeof(data) - 1) != 7)
		return 5;
	return strcmp(data, "text\ne\n") != 0;
}

static int pass_signals(void)
{
	sigset_t term;

	signal(SIGPIPE, SIG_IGN);
	signal(SIGUSR1, SIG_IGN);
	sigemptyset(&term);
	sigaddset(&term, SIGTERM);
	sigprocmask(SIG_BLOCK, &term, NULL);
	static const char *const lines[] = {"kill -PIPE $$", "kill -TERM $$", "kill -USR1 $$"};
	static const int sigs[] = {SIGPIPE, SIGTERM, SIGUSR1};
	for (int i = 0; i < 3; i++) {
		int status = shell_status(lines[i]);
		if (!WIFSIGNALED(status) || WTERMSIG(status) != sigs[i])
			return i + 1;
	}
	/* Ours stay as they were. */
	sigset_t now;
	sigprocmask(SIG_SETMASK, NULL, &now);
	return !sigismember(&now, SIGTERM) || sigismember(&now, SIGINT);
}

static void test_std_descriptors(void **state)
{
	in_child(capture_without_std);
	in_child(swap_std);
}

static void test_signals_are_reset(void **state)
{
	in_child(pass_signals);
}

static void test_session(void **state)
{
	for (int new_session = 0; new_session < 2; new_session++) {
		int fds[2], status;
		pid_t pid;
		assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
		struct proc_spec spec = {.argv = (const char *[]){"cat", NULL},
			.stdin_fd = fds[0],
			.stdout_fd = -1,
			.stderr_fd = -1,
			.new_session = new_session != 0};
		assert_int_equal(proc_spawn(&spec, &pid, NULL), 0);
		assert_int_equal(getsid(pid), new_session ? pid : getsid(0));
		close(fds[0]);
		close(fds[1]);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_int_equal(status, 0);
	}
}

static void check_limit(size_t max, int want)
{
	AUTO_ERR struct err err = {0};
	AUTO_BUF struct buf out;
	int status;

	buf_init(&out, max);
	int r = proc_capture(
		(const char *[]){"printf", "0123456789", NULL}, NULL, LONG_MS, &out, &status, &err);
	assert_int_equal(r, want);
	assert_int_equal(err.id, want ? E_DATA_LIMIT : E_NONE);
}

static void test_limit(void **state)
{
	AUTO_ERR struct err err = {0};
	AUTO_BUF struct buf out;
	int64_t start_ms = clock_ms();
	int status;

	check_limit(10, 0);
	check_limit(9, -ERR_LIMIT);
	/* One that would never end is ended. */
	buf_init(&out, 100000);
	assert_int_equal(
		proc_capture((const char *[]){"yes", NULL}, NULL, LONG_MS, &out, &status, &err),
		-ERR_LIMIT);
	assert_non_null(strstr(err.message, "the output of yes"));
	assert_in_range(clock_ms() - start_ms, 0, LONG_MS / 2);
}

/* One that never ends. false: nothing had come by then. */
static bool starts_within(const char *line, int seconds, struct buf *out)
{
	AUTO_ERR struct err err = {0};
	AUTO_FREE char *message = mem_printf("sh did not end within %d s", seconds);
	int status;

	buf_init(out, 1000);
	int r = proc_capture(
		(const char *[]){"sh", "-c", line, NULL}, NULL, seconds * 1000, out, &status, &err);
	assert_int_equal(r, -ERR_IO);
	assert_int_equal(err.id, E_IO);
	assert_string_equal(err.message, message);
	return out->len > 0;
}

static void test_timeout(void **state)
{
	AUTO_ERR struct err err = {0};
	AUTO_BUF struct buf out = {0};
	AUTO_FREE char *fifo = mem_printf("%s/fifo", tmp);
	AUTO_FREE char *line =
		mem_printf("exec 3>'%s'; sleep 1000 & echo started; sleep 1000", fifo);
	int status;

	assert_int_equal(mkfifo(fifo, 0600), 0);
	AUTO_FD int fd = open(fifo, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	assert_true(fd >= 0);
	/* How soon it starts depends on how busy the machine is. */
	for (int seconds = 1; !starts_within(line, seconds, &out) && seconds < 16; seconds *= 4)
		buf_done(&out);
	assert_string_equal(out.data, "started\n");
	/* The fifo has no writer left: the grandchild is gone too. */
	struct pollfd pollfd = {.fd = fd, .events = POLLIN};
	assert_int_equal(poll(&pollfd, 1, 10000), 1);
	assert_true(pollfd.revents & POLLHUP);
	/* Also one that has closed its output. */
	int r = proc_capture((const char *[]){"sh", "-c", "exec >&-; sleep 1000", NULL}, NULL, 100,
		&out, &status, &err);
	assert_int_equal(r, -ERR_IO);
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

/* In place of the system's: of reads of at least (or less than) LARGE bytes one fails. */
enum { LARGE = 1000 };
static bool fail_large, fail_small;

ssize_t read(int fd, void *out, size_t size)
{
	if (size >= LARGE ? fail_large : fail_small) {
		errno = EIO;
		return -1;
	}
	return readv(fd, &(struct iovec){.iov_base = out, .iov_len = size}, 1);
}

/* Half of an output is no output, and nobody waits for the rest of it. */
static void test_output_that_cannot_be_read(void **state)
{
	AUTO_ERR struct err err = {0};
	AUTO_BUF struct buf out;
	int64_t start_ms = clock_ms();
	int status = -7;

	buf_init(&out, 1000);
	fail_large = true;
	int r = proc_capture((const char *[]){"sh", "-c", "echo a; exec sleep 30", NULL}, NULL, -1,
		&out, &status, &err);
	fail_large = false;
	assert_int_equal(r, -ERR_IO);
	assert_string_equal(err.message, "cannot read the output of sh: Input/output error");
	assert_int_equal(status, -7);
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
	assert_in_range(clock_ms() - start_ms, 0, 20000);
}

/* A start that is reported as failed leaves nothing that runs. */
static void test_report_that_cannot_be_read(void **state)
{
	struct proc_spec spec = {.argv = (const char *[]){"sleep", "30", NULL},
		.stdin_fd = -1,
		.stdout_fd = -1,
		.stderr_fd = -1};
	AUTO_ERR struct err err = {0};
	int64_t start_ms = clock_ms();
	pid_t pid = -7;

	fail_small = true;
	int r = proc_spawn(&spec, &pid, &err);
	fail_small = false;
	assert_int_equal(r, -ERR_IO);
	assert_int_equal(pid, -7);
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
	assert_in_range(clock_ms() - start_ms, 0, 20000);
}

/* A limit that ends after the end of time is none. */
static void test_longest_timeout(void **state)
{
	AUTO_ERR struct err err = {0};
	AUTO_BUF struct buf out;
	int status;

	buf_init(&out, 1000);
	int r = proc_capture((const char *[]){"sh", "-c", "echo a; sleep 0.05", NULL}, NULL,
		INT64_MAX, &out, &status, &err);
	assert_int_equal(r, 0);
	assert_int_equal(status, 0);
	assert_string_equal(out.data, "a\n");
}

/* stderr is a text of its own, and what does not fit into either is dropped. */
static void test_capture_with_errors(void **state)
{
	const char *const env[] = {"WORD=w", "PATH=/usr/bin:/bin", NULL};
	AUTO_BUF struct buf out = buf_with(1000), errors = buf_with(4);
	struct proc_capture_spec spec = {
		.argv = (const char *[]){"sh", "-c", "cat; echo $WORD; echo no >&2; exit 3", NULL},
		.env = env,
		.timeout_ms = LONG_MS,
		.errors = &errors,
		.cancel_fd = -1};
	AUTO_ERR struct err err = {0};
	int status = -1;

	assert_int_equal(proc_capture_with(&spec, &out, &status, &err), 0);
	assert_string_equal(out.data, "w\n");
	assert_string_equal(errors.data, "no\n");
	assert_int_equal(WEXITSTATUS(status), 3);
	buf_reset(&out);
	buf_reset(&errors);
	spec.argv = (const char *[]){
		"sh", "-c", "seq 10000; echo 12345 >&2; seq 10000 >&2; echo end", NULL};
	assert_int_equal(proc_capture_with(&spec, &out, &status, &err), -ERR_LIMIT);
	buf_reset(&out);
	buf_reset(&errors);
	spec.drops = true;
	assert_int_equal(proc_capture_with(&spec, &out, &status, NULL), 0);
	assert_int_equal(status, 0);
	assert_int_equal(out.len, 1000);
	assert_true(out.full);
	assert_string_equal(errors.data, "1234");
}

/* A word or the end on cancel_fd ends it, and what it has started, too. */
static void test_capture_is_cancelled(void **state)
{
	AUTO_BUF struct buf out = buf_with(1000);
	int fds[2];

	assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
	AUTO_FD int fd = fds[0];
	const struct proc_capture_spec spec = {
		.argv = (const char *[]){"sh", "-c", "sleep 1000 & sleep 1000", NULL},
		.timeout_ms = LONG_MS,
		.cancel_fd = fd};
	assert_int_equal(write(fds[1], "x", 1), 1);
	for (int i = 0; i < 2; i++) {
		AUTO_ERR struct err err = {0};
		int64_t start_ms = clock_ms();
		int status = -7;

		assert_int_equal(proc_capture_with(&spec, &out, &status, &err), -ERR_CANCELED);
		assert_int_equal(err.id, E_CANCELED);
		assert_string_equal(err.message, "running sh: interrupted");
		assert_int_equal(status, -7);
		assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
		assert_in_range(clock_ms() - start_ms, 0, LONG_MS / 2);
		if (i == 0) {
			assert_int_equal(readv(fd, &(struct iovec){(char[1]){0}, 1}, 1), 1);
			close(fds[1]);
		}
	}
}

static void check_find(const char *name, const char *path, const char *want)
{
	AUTO_FREE char *got = proc_find(name, path);

	if (!want)
		assert_null(got);
	else
		assert_string_equal(got, want);
}

static void test_find(void **state)
{
	AUTO_FREE char *a = mem_printf("%s/a", tmp);
	AUTO_FREE char *b = mem_printf("%s/b", tmp);
	AUTO_FREE char *path = mem_printf("/proc/nonexistent:%s:%s", a, b);
	AUTO_FREE char *dir_tool = mem_printf("%s/dir-tool", a);

	mkdir(a, 0755);
	mkdir(b, 0755);
	AUTO_FREE char *both_a = put("a/both", "", 0755);
	AUTO_FREE char *both_b = put("b/both", "", 0755);
	AUTO_FREE char *no_x = put("a/second", "", 0644);
	AUTO_FREE char *second = put("b/second", "", 0755);
	AUTO_FREE char *dir_b = put("b/dir-tool", "", 0755);
	mkdir(dir_tool, 0755);
	check_find("both", path, both_a);
	check_find("second", path, second);
	check_find("dir-tool", path, dir_b);
	check_find("missing", path, NULL);
	check_find("", path, NULL);
	check_find(both_b, path, both_b);
	check_find(no_x, path, NULL);
	check_find(a, path, NULL);
	check_find("both", "", NULL);
	AUTO_FREE char *sh = proc_find("sh", NULL);
	assert_non_null(sh);

	char here[4096];
	assert_non_null(getcwd(here, sizeof(here)));
	assert_int_equal(chdir(a), 0);
	check_find("both", "", "./both");
	check_find("both", "/proc/nonexistent:", "./both");
	check_find("both", ":/proc/nonexistent", "./both");
	check_find("both", "/proc/nonexistent::/x", "./both");
	check_find("both", ".", "./both");
	check_find("../b/second", NULL, "../b/second");
	assert_int_equal(chdir(here), 0);
}

static void test_signal_names(void **state)
{
	char out[8];

	assert_int_equal(proc_signal_number("TERM"), SIGTERM);
	assert_int_equal(proc_signal_number("SIGTERM"), SIGTERM);
	assert_int_equal(proc_signal_number("15"), 15);
	assert_int_equal(proc_signal_number("int"), SIGINT);
	assert_int_equal(proc_signal_number("sigusr1"), SIGUSR1);
	static const char *const bad[] = {"", "0", "-1", "9999", "TERMX", "SIG", "SIGSIGTERM",
		"15 ", "1x", "99999999999999999999"};
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		assert_int_equal(proc_signal_number(bad[i]), 0);
	assert_int_equal(proc_signal_number(NULL), 0);

	assert_string_equal(proc_signal_name(SIGKILL, out), "KILL");
	assert_string_equal(proc_signal_name(SIGUSR2, out), "USR2");
	assert_string_equal(proc_signal_name(0, out), "0");
	for (int sig = 1; sig < 64; sig++)
		assert_int_equal(proc_signal_number(proc_signal_name(sig, out)), sig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_capture),
		cmocka_unit_test(test_status),
		cmocka_unit_test(test_dir),
		cmocka_unit_test(test_exec_failures),
		cmocka_unit_test(test_missing_interpreter),
		cmocka_unit_test(test_script_without_interpreter),
		cmocka_unit_test(test_env),
		cmocka_unit_test(test_path_of_env),
		cmocka_unit_test(test_only_named_descriptors),
		cmocka_unit_test(test_std_descriptors),
		cmocka_unit_test(test_signals_are_reset),
		cmocka_unit_test(test_session),
		cmocka_unit_test(test_limit),
		cmocka_unit_test(test_timeout),
		cmocka_unit_test(test_output_that_cannot_be_read),
		cmocka_unit_test(test_report_that_cannot_be_read),
		cmocka_unit_test(test_longest_timeout),
		cmocka_unit_test(test_capture_with_errors),
		cmocka_unit_test(test_capture_is_cancelled),
		cmocka_unit_test(test_find),
		cmocka_unit_test(test_signal_names),
	};

	return cmocka_run_group_tests_name("proc", tests, make_tmp, remove_tmp);
}
