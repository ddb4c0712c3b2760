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
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/random.h"
#include "base/util/str.h"
#include "host/gpu.h"

/* A process of a test that has failed ends by itself. */
enum { WAIT_MS = 20000, ORPHAN_S = 120 };

static char *tmp, *dir; /* of one test; dir is made by the first claim */

static const struct gpu_list two = {
	.n = 2,
	.v = {{GPU_NVIDIA, 0, "GPU-aaaa", "A", 0, false},
		{GPU_NVIDIA, 1, "GPU-bbbb", "A", 0, false}},
};
static const struct gpu_list mixed = {
	.n = 4,
	.v = {{GPU_NVIDIA, 0, "GPU-aaaa", "A", 0, false},
		{GPU_AMD, 0, "0000:c1:00.0", "M", 0, false}, {GPU_AMD, 1, "0xbeef", "M", 0, false},
		{GPU_AMD, 2, "0000:c3:00.0", "M", 0, false}},
};

static int make_tmp(void **state)
{
	const char *base = getenv("TMPDIR");

	/* ext4 searches long for an inode that was not used in the last seconds, which 13,000
	 * claims in a row would measure. */
	if (!base)
		base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
	tmp = mem_printf("%s/dlrun-claim-XXXXXX", base);
	if (!mkdtemp(tmp))
		return -1;
	dir = fs_join(tmp, "gpus");
	return 0;
}

static int remove_tmp(void **state)
{
	int r = fs_remove_tree(AT_FDCWD, tmp, NULL);
	free(tmp);
	free(dir);
	return r;
}

/* words: of only, with blanks between them, or NULL. */
static int claim_only(unsigned want, const char *words, struct gpu_claim **ret, struct err *err)
{
	AUTO_STRV struct strv only = {0};
	struct gpu_claim_spec spec = {.dir = dir, .owner = "a-12345", .want = want, .only = &only};

	for (; words && *words; words += strcspn(words, " "), words += *words == ' ')
		strv_add_take(&only, mem_strndup(words, strcspn(words, " ")));
	return gpu_claim_new(&spec, ret, err);
}

static struct gpu_claim *join_only(unsigned want, const char *words)
{
	AUTO_ERR struct err err = {0};
	struct gpu_claim *claim = NULL;

	if (claim_only(want, words, &claim, &err) < 0)
		fail_msg("%s", err.message);
	return claim;
}

static struct gpu_claim *join(unsigned want)
{
	return join_only(want, NULL);
}

static int try_list(struct gpu_claim *claim, const struct gpu_list *list)
{
	AUTO_ERR struct err err = {0};
	int r = gpu_claim_try(claim, list, &err);

	if (r < 0)
		fail_msg("%s", err.message);
	return r;
}

static int try(struct gpu_claim *claim)
{
	return try_list(claim, &two);
}

static void has(const struct gpu_claim *claim, const char *indexes)
{
	const struct gpu_list *list = gpu_claim_granted(claim);
	AUTO_BUF struct buf text;
	size_t n;

	buf_init(&text, 1000);
	for (size_t i = 0; i < list->n; i++)
		buf_addf(&text, "%s%u", i ? "," : "", list->v[i].index);
	assert_string_equal(text.data, indexes);
	const int *fds = gpu_claim_fds(claim, &n);
	assert_int_equal(n, 2 * list->n);
	for (size_t i = 0; i < n; i++)
		assert_true(fcntl(fds[i], F_GETFD) & FD_CLOEXEC);
}

/* Without the times, which are those of now. */
static char *why_of(const struct gpu_claim *claim)
{
	static const char since[] = " since ";
	char *why = mem_strdup(gpu_claim_why(claim)), *at;

	while ((at = strstr(why, since))) {
		AUTO_FREE char *time = mem_strndup(at + strlen(since), 20);
		int64_t ms;
		assert_int_equal(clock_parse(time, &ms, NULL), 0);
		assert_true(ms <= clock_wall_ms() && ms > clock_wall_ms() - 600000);
		memmove(at, at + strlen(since) + 20, strlen(at + strlen(since) + 20) + 1);
	}
	return why;
}

static void waits(struct gpu_claim *claim, const char *why)
{
	assert_int_equal(try(claim), 0);
	AUTO_FREE char *said = why_of(claim);
	assert_string_equal(said, why);
}

static bool is_woken(const struct gpu_claim *claim)
{
	struct pollfd pollfd = {.fd = gpu_claim_watch_fd(claim), .events = POLLIN};

	/* Where there are no events there is nothing to see. */
	return pollfd.fd < 0 || poll(&pollfd, 1, 0) > 0;
}

static bool is_quiet(const struct gpu_claim *claim)
{
	return gpu_claim_watch_fd(claim) < 0 || !is_woken(claim);
}

static size_t count_files(const char *prefix)
{
	AUTO_DIR DIR *stream = opendir(dir);
	struct dirent *entry;
	size_t n = 0;

	while (stream && (entry = readdir(stream)))
		n += entry->d_name[0] != '.' && str_starts(entry->d_name, prefix);
	return n;
}

/*
 * The queue, within one process: flock counts descriptors, not processes
 */

static void test_queue(void **state)
{
	AUTO_GPU_CLAIM struct gpu_claim *a = join(1);
	AUTO_GPU_CLAIM struct gpu_claim *b = join(1);
	assert_int_equal(gpu_claim_granted(a)->n, 0);
	assert_int_equal(try(a), 1);
	assert_int_equal(try(a), 1);
	has(a, "0");
	assert_int_equal(try(b), 1);
	has(b, "1");
	AUTO_GPU_CLAIM struct gpu_claim *c = join(1);
	AUTO_GPU_CLAIM struct gpu_claim *d = join(1);
	AUTO_GPU_CLAIM struct gpu_claim *e = join(1);
	waits(c, "GPUs 0,1 are in use by a-12345");
	waits(e, "GPUs 0,1 are in use by a-12345; 2 runs are before it");
	waits(d, "GPUs 0,1 are in use by a-12345; 1 run is before it");
	/* Looking wakes nobody. */
	assert_true(is_quiet(c) && is_quiet(d) && is_quiet(e));
	int fd = gpu_claim_watch_fd(d);
	gpu_claim_free(TAKE(b));
	assert_true(is_woken(c));
	assert_true(is_quiet(d) && is_quiet(e));
	/* It is free, and another one's turn. */
	waits(d, "GPU 0 is in use by a-12345; 1 run is before it");
	assert_int_equal(try(c), 1);
	has(c, "1");
	assert_true(is_woken(d));
	assert_true(is_quiet(e));
	waits(d, "GPUs 0,1 are in use by a-12345");
	assert_int_equal(gpu_claim_watch_fd(d), fd);
	waits(e, "GPUs 0,1 are in use by a-12345; 1 run is before it");
	/* Who leaves the queue lets the next one forward. */
	gpu_claim_free(TAKE(d));
	assert_true(is_woken(e));
	waits(e, "GPUs 0,1 are in use by a-12345");
}

static void test_files(void **state)
{
	struct stat st;

	mode_t mask = umask(077);
	AUTO_GPU_CLAIM struct gpu_claim *a = join(2);
	AUTO_GPU_CLAIM struct gpu_claim *b = join(1);
	assert_int_equal(try(a), 1);
	has(a, "0,1");
	umask(mask);
	assert_int_equal(stat(dir, &st), 0);
	assert_int_equal(st.st_mode & 07777, 01777);
	static const char *const names[] = {
		"queue", "gpu.GPU-aaaa", "gpu.GPU-bbbb", "ticket.000000000002"};
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		AUTO_FREE char *path = fs_join(dir, names[i]);
		assert_int_equal(lstat(path, &st), 0);
		assert_int_equal(st.st_mode & 0777, 0666);
	}
	assert_int_equal(count_files(""), ARRAY_LEN(names));
	gpu_claim_free(TAKE(b));
	assert_int_equal(count_files("ticket."), 0);
}

static void test_several(void **state)
{
	AUTO_GPU_CLAIM struct gpu_claim *a = join(1);
	AUTO_GPU_CLAIM struct gpu_claim *b = join(2);
	AUTO_GPU_CLAIM struct gpu_claim *c = join(1);
	assert_int_equal(try(a), 1);
	/* Nothing is kept while it waits, and nobody passes it. */
	waits(b, "GPU 0 is in use by a-12345");
	waits(c, "GPU 0 is in use by a-12345; 1 run is before it");
	gpu_claim_free(TAKE(a));
	waits(c, "1 run is before it");
	assert_int_equal(try(b), 1);
	has(b, "0,1");
	waits(c, "GPUs 0,1 are in use by a-12345");
}

static void test_used(void **state)
{
	struct gpu_list list = two, one = {.n = 1};
	AUTO_ERR struct err err = {0};

	list.v[0].used = true;
	one.v[0] = list.v[0];
	AUTO_GPU_CLAIM struct gpu_claim *a = join(2);
	assert_int_equal(try_list(a, &list), 0);
	assert_string_equal(gpu_claim_why(a), "GPU 0 is used by a program outside of dlrun");
	/* The list may be an old one. */
	assert_int_equal(gpu_claim_ready(a, &list, &err), 1);
	assert_int_equal(gpu_claim_granted(a)->n, 0);
	gpu_claim_free(TAKE(a));
	AUTO_GPU_CLAIM struct gpu_claim *b = join(1);
	assert_int_equal(try_list(b, &list), 1);
	has(b, "1");
	AUTO_GPU_CLAIM struct gpu_claim *c = join_only(1, "0");
	assert_int_equal(try_list(c, &one), 0);
	assert_string_equal(gpu_claim_why(c), "GPU 0 is used by a program outside of dlrun");
	assert_int_equal(gpu_claim_ready(c, &one, &err), 1);
	/* A holder's own use is no foreign one. */
	list.v[0].used = false;
	list.v[1].used = true;
	AUTO_GPU_CLAIM struct gpu_claim *d = join_only(1, "GPU-bb");
	assert_int_equal(try_list(d, &list), 0);
	assert_int_equal(gpu_claim_ready(d, &list, &err), 0);
	AUTO_FREE char *why = why_of(d);
	assert_string_equal(why, "GPU 1 is in use by a-12345; 1 run is before it");
}

static void test_only(void **state)
{
	AUTO_GPU_CLAIM struct gpu_claim *a = join_only(1, "GPU-aaaa");
	AUTO_GPU_CLAIM struct gpu_claim *b = join_only(1, "0");
	AUTO_GPU_CLAIM struct gpu_claim *c = join(1);
	AUTO_GPU_CLAIM struct gpu_claim *d = join(1);
	assert_int_equal(try(a), 1);
	has(a, "0");
	waits(b, "GPU 0 is in use by a-12345");
	waits(d, "GPU 0 is in use by a-12345; 2 runs are before it");
	/* It takes nothing that b could. */
	assert_int_equal(try(c), 1);
	has(c, "1");
	gpu_claim_free(TAKE(a));
	waits(d, "GPU 1 is in use by a-12345; 1 run is before it");
	gpu_claim_free(TAKE(c));
	assert_true(is_woken(d));
	assert_int_equal(try(d), 1);
	has(d, "1");
	assert_int_equal(try(b), 1);
	has(b, "0");
}

static void test_vendors(void **state)
{
	AUTO_GPU_CLAIM struct gpu_claim *a = join(1);
	AUTO_GPU_CLAIM struct gpu_claim *b = join(2);
	AUTO_GPU_CLAIM struct gpu_claim *c = join_only(1, "0xbeef 0");
	AUTO_STRV struct strv env = {0};
	assert_int_equal(try_list(a, &mixed), 1);
	gpu_claim_env(c, 0, 1, &env);
	assert_int_equal(env.n, 0);
	gpu_claim_env(a, 0, 1, &env);
	assert_int_equal(env.n, 2);
	assert_string_equal(env.v[0], "CUDA_DEVICE_ORDER=PCI_BUS_ID");
	assert_string_equal(env.v[1], "CUDA_VISIBLE_DEVICES=0");
	assert_int_equal(try_list(b, &mixed), 1);
	gpu_claim_env(b, 0, 2, &env);
	assert_string_equal(env.v[2], "ROCR_VISIBLE_DEVICES=0,1");
	assert_int_equal(env.n, 3);
	gpu_claim_env(b, 1, 1, &env);
	assert_string_equal(env.v[3], "ROCR_VISIBLE_DEVICES=1");
	assert_int_equal(try_list(c, &mixed), 0);
	gpu_claim_free(TAKE(b));
	assert_int_equal(try_list(c, &mixed), 1);
	has(c, "0");
	assert_int_equal(gpu_claim_granted(c)->v[0].vendor, GPU_AMD);
}

static void refused(unsigned want, const char *words, const struct gpu_list *list,
	const char *message, const char *hint)
{
	AUTO_ERR struct err err = {0};
	AUTO_GPU_CLAIM struct gpu_claim *claim = NULL;
	int r = claim_only(want, words, &claim, &err);

	if (r == 0)
		r = gpu_claim_try(claim, list, &err);
	assert_int_equal(r, -ERR_USAGE);
	assert_int_equal(err.id, E_GPU_COUNT);
	assert_string_equal(err.message, message);
	assert_true(str_eq(err.hint, hint));
}

static void test_count(void **state)
{
	static const struct gpu_list none = {.n = 0};

	refused(3, NULL, &two, "requested 3 GPUs, this machine has 2", "dlrun submit -g 2");
	refused(1, NULL, &none, "requested 1 GPU, this machine has none", "dlrun submit -g 0");
	refused(4, NULL, &mixed, "requested 4 GPUs, this machine has 3 of one vendor",
		"dlrun submit -g 3");
	refused(2, "1", &two, "requested 2 GPUs, only 1 of this machine's 2 may be used",
		"dlrun submit -g 1");
	refused(1, "7", &two, "requested 1 GPU, only 0 of this machine's 2 may be used",
		"dlrun submit -g 0");
	refused(0, NULL, &two, "requested 0 GPUs, the limit is 1 to 64", NULL);
	refused(65, NULL, &two, "requested 65 GPUs, the limit is 1 to 64", NULL);
	assert_int_equal(count_files("ticket."), 0);
}

/*
 * Processes that die
 */

struct child {
	pid_t pid;
	int ready; /* readable when it has done its part, at its end when it is dead */
};

static struct child start(void (*fn)(int ready))
{
	int fds[2];

	assert_int_equal(pipe(fds), 0);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		close(fds[0]);
		alarm(ORPHAN_S);
		fn(fds[1]);
		pause();
		_exit(0);
	}
	close(fds[1]);
	return (struct child){pid, fds[0]};
}

static void wait_ready(const struct child *child)
{
	char c;

	assert_int_equal(read(child->ready, &c, 1), 1);
}

static void kill_child(struct child *child)
{
	kill(child->pid, SIGKILL);
	while (waitpid(child->pid, NULL, 0) < 0 && errno == EINTR)
		;
}

static void print(int fd)
{
	if (write(fd, "!", 1) != 1)
		_exit(1);
}

static void child_waits(int ready)
{
	struct gpu_claim *claim = join(1);

	if (gpu_claim_try(claim, &two, NULL) == 0)
		print(ready);
}

static void child_holds(int ready)
{
	struct gpu_claim *claim = join(2);

	if (gpu_claim_try(claim, &two, NULL) == 1)
		print(ready);
}

/* The pid of the program follows. */
static void child_starts_program(int ready)
{
	struct gpu_claim *claim = join(2);

	if (gpu_claim_try(claim, &two, NULL) != 1)
		return;
	pid_t pid = fork();
	if (pid == 0) {
		alarm(ORPHAN_S);
		pause();
		_exit(0);
	}
	print(ready);
	if (write(ready, &pid, sizeof(pid)) != sizeof(pid))
		_exit(1);
}

static void get_at_last(struct gpu_claim *claim)
{
	int64_t deadline_ms = clock_deadline(WAIT_MS);

	while (try(claim) == 0) {
		assert_true(clock_ms() < deadline_ms);
		poll(NULL, 0, 1);
	}
}

static void test_waiter_dies(void **state)
{
	AUTO_GPU_CLAIM struct gpu_claim *a = join(2);
	assert_int_equal(try(a), 1);
	struct child child = start(child_waits);
	wait_ready(&child);
	AUTO_GPU_CLAIM struct gpu_claim *b = join(1);
	waits(b, "GPUs 0,1 are in use by a-12345; 1 run is before it");
	assert_true(is_quiet(b));
	kill_child(&child);
	assert_true(is_woken(b));
	waits(b, "GPUs 0,1 are in use by a-12345");
	assert_int_equal(count_files("ticket."), 1);
	close(child.ready);
}

static void test_holder_dies(void **state)
{
	struct child child = start(child_holds);
	wait_ready(&child);
	AUTO_GPU_CLAIM struct gpu_claim *a = join(2);
	waits(a, "GPUs 0,1 are in use by a-12345");
	kill_child(&child);
	get_at_last(a);
	close(child.ready);
}

static void test_program_lives(void **state)
{
	pid_t program = 0;

	struct child child = start(child_starts_program);
	wait_ready(&child);
	assert_int_equal(read(child.ready, &program, sizeof(program)), sizeof(program));
	kill_child(&child);
	AUTO_GPU_CLAIM struct gpu_claim *a = join(1);
	waits(a, "GPUs 0,1 are in use by another run");
	kill(program, SIGKILL);
	get_at_last(a);
	close(child.ready);
}

/* A copy in a child neither leaves the queue nor gives anything back. */
static void test_forked_copy(void **state)
{
	int status = 1;

	AUTO_GPU_CLAIM struct gpu_claim *a = join(1);
	AUTO_GPU_CLAIM struct gpu_claim *b = join(2);
	assert_int_equal(try(a), 1);
	waits(b, "GPU 0 is in use by a-12345");
	pid_t pid = fork();
	if (pid == 0) {
		gpu_claim_free(a);
		gpu_claim_free(b);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(count_files("ticket."), 1);
	waits(b, "GPU 0 is in use by a-12345");
}

/*
 * A directory that others write to
 */

static void put(const char *name, const char *text)
{
	AUTO_FREE char *path = fs_join(dir, name);
	AUTO_ERR struct err err = {0};

	if (fs_replace(path, text, strlen(text), 0666, FS_SYNC_NONE, &err) < 0)
		fail_msg("%s", err.message);
}

static void unusable(const char *words)
{
	AUTO_ERR struct err err = {0};
	AUTO_GPU_CLAIM struct gpu_claim *claim = NULL;
	int r = claim_only(1, NULL, &claim, &err);

	if (r == 0)
		r = gpu_claim_try(claim, &two, &err);
	assert_int_equal(r, -ERR_IO);
	assert_int_equal(err.id, E_GPU_LOCK);
	if (!strstr(err.message, words))
		fail_msg("%s", err.message);
}

/* It gets one of the two all the same, the second one none, the third one neither. */
static void alone(const char *words)
{
	AUTO_GPU_CLAIM struct gpu_claim *a = join(1);
	assert_int_equal(try(a), 1);
	assert_non_null(gpu_claim_notice(a));
	if (!strstr(gpu_claim_notice(a), words))
		fail_msg("%s", gpu_claim_notice(a));
	AUTO_GPU_CLAIM struct gpu_claim *b = join(1);
	assert_int_equal(try(b), 1);
	has(a, "0");
	has(b, "1");
	AUTO_GPU_CLAIM struct gpu_claim *c = join(1);
	assert_int_equal(try(c), 0);
	assert_non_null(strstr(gpu_claim_why(c), "GPUs 0,1 are in use by a-12345"));
	assert_non_null(strstr(gpu_claim_why(c), words));
	gpu_claim_free(TAKE(a));
	assert_int_equal(try(c), 1);
	has(c, "0");
}

static void test_bad_directory(void **state)
{
	AUTO_FREE char *missing = mem_printf("%s/no/such", tmp);
	char *real = dir;
	dir = missing;
	unusable("No such file");
	dir = real;
	assert_int_equal(symlink("/tmp", dir), 0);
	alone("cannot use the directory");
	unlink(dir);
	close(open(dir, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
	alone("Not a directory");
	unlink(dir);
	/* One of ours that is not open yet: a process was killed while it made it. */
	assert_int_equal(mkdir(dir, 0700), 0);
	AUTO_GPU_CLAIM struct gpu_claim *a = join(1);
	assert_int_equal(try(a), 1);
}

static void test_bad_files(void **state)
{
	AUTO_FREE char *target = mem_printf("%s/target", tmp);
	AUTO_FREE char *queue = mem_printf("%s/queue", dir);
	AUTO_FREE char *lock = mem_printf("%s/gpu.GPU-aaaa", dir);
	assert_int_equal(mkdir(dir, 01777), 0);
	assert_int_equal(chmod(dir, 01777), 0);
	assert_int_equal(symlink(target, queue), 0);
	alone("gpus/queue");
	assert_true(access(target, F_OK) < 0);
	unlink(queue);
	assert_int_equal(mkfifo(queue, 0666), 0);
	alone("gpus/queue");
	unlink(queue);
	assert_int_equal(symlink(target, lock), 0);
	alone("gpus/gpu.GPU-aaaa");
	unlink(lock);
	assert_int_equal(mkdir(lock, 0777), 0);
	alone("gpus/gpu.GPU-aaaa");
}

static void test_bad_tickets(void **state)
{
	AUTO_GPU_CLAIM struct gpu_claim *first = join(1);
	AUTO_FREE char *fifo = mem_printf("%s/ticket.000000000003", dir);
	AUTO_FREE char *link = mem_printf("%s/ticket.000000000004", dir);
	/* None of these lives. */
	put("ticket.", "");
	put("ticket.00000000000000001", "");
	put("ticket.-00000000001", "");
	put("ticket.000000000000", "");
	put("ticket.000000000002", "");
	put("ticket.999999999999", "");
	put("new.0123", "");
	put("wake.0123", "");
	assert_int_equal(mkfifo(fifo, 0666), 0);
	assert_int_equal(symlink("/dev/zero", link), 0);
	AUTO_GPU_CLAIM struct gpu_claim *a = join(1);
	waits(a, "1 run is before it");
	assert_int_equal(count_files("ticket.0000"), 6);
	assert_int_equal(count_files("new.") + count_files("wake."), 0);
	gpu_claim_free(TAKE(first));
	assert_int_equal(try(a), 1);
}

static int hold(const char *name, const char *text)
{
	AUTO_FREE char *path = fs_join(dir, name);

	put(name, text);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
	return fd;
}

/* What a living ticket says is data: what cannot be read may mean every GPU. */
static void test_odd_tickets(void **state)
{
	AUTO_FREE char *huge = mem_alloc(GPU_CLAIM_TEXT_MAX + 2, 1);

	memset(huge, '\n', GPU_CLAIM_TEXT_MAX + 1);
	AUTO_GPU_CLAIM struct gpu_claim *first = join(1);
	AUTO_FD int big = hold("ticket.000000000002", huge);
	AUTO_GPU_CLAIM struct gpu_claim *a = join(1);
	gpu_claim_free(TAKE(first));
	waits(a, "1 run is before it");
	close(TAKE_FD(big));
	assert_int_equal(try(a), 1);
	AUTO_FD int blank = hold("ticket.000000000005", "");
	int other = hold("ticket.000000000006", "x\n7\n\n\\\n\n");
	AUTO_GPU_CLAIM struct gpu_claim *b = join(1);
	waits(b, "GPU 0 is in use by a-12345; 2 runs are before it");
	close(TAKE_FD(blank));
	assert_int_equal(try(b), 1);
	close(other);
	gpu_claim_free(TAKE(a));
	/* Numbers that nobody has come by are no place in the queue, and use none up. */
	static const char *const odd[] = {"ticket.900000000000", "ticket.899999999999",
		"ticket.900000000001", "ticket.999999999999"};
	int fds[ARRAY_LEN(odd)];
	for (size_t i = 0; i < ARRAY_LEN(odd); i++) {
		fds[i] = hold(odd[i], "\n99\n");
		AUTO_GPU_CLAIM struct gpu_claim *c = join(1);
		assert_int_equal(try(c), 1);
		assert_null(gpu_claim_notice(c));
	}
	for (size_t i = 0; i < ARRAY_LEN(odd); i++)
		close(fds[i]);
}

/* Who made the directory, or a file in it, may remove it; who has a GPU keeps it. */
static void test_shared_locks_are_removed(void **state)
{
	AUTO_FREE char *lock = mem_printf("%s/gpu.GPU-aaaa", dir);
	AUTO_FREE char *moved = mem_printf("%s/moved", tmp);

	AUTO_GPU_CLAIM struct gpu_claim *a = join_only(1, "0");
	assert_int_equal(try(a), 1);
	AUTO_GPU_CLAIM struct gpu_claim *b = join_only(1, "0");
	assert_int_equal(unlink(lock), 0);
	waits(b, "GPU 0 is in use by a-12345");
	put("gpu.GPU-aaaa", "");
	waits(b, "GPU 0 is in use by a-12345");
	assert_int_equal(rename(dir, moved), 0);
	AUTO_GPU_CLAIM struct gpu_claim *c = join_only(1, "0");
	waits(c, "GPU 0 is in use by a-12345");
	assert_int_equal(mkdir(moved, 0700) < 0 && errno == EEXIST, 1);
	gpu_claim_free(TAKE(a));
	assert_int_equal(try(c), 1);
}

/* What another user has locked where only he can write. */
static void test_guards_of_others(void **state)
{
	static const char *const names[] = {"gpus.4711", "gpus.4711.0123456789abcdef", "gpus.x"};
	char *shared = dir;

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		AUTO_FREE char *other = fs_join(tmp, names[i]);
		assert_int_equal(mkdir(other, 0755), 0);
		dir = other;
		int fd = hold("gpu.GPU-aaaa", "");
		dir = shared;
		AUTO_GPU_CLAIM struct gpu_claim *a = join_only(1, "0");
		waits(a, "GPU 0 is in use by another run");
		close(fd);
		assert_int_equal(try(a), 1);
		AUTO_FREE char *lock = fs_join(other, "gpu.GPU-aaaa");
		assert_int_equal(unlink(lock), 0);
		assert_int_equal(mkfifo(lock, 0666), 0);
		gpu_claim_free(TAKE(a));
		AUTO_GPU_CLAIM struct gpu_claim *b = join_only(1, "0");
		assert_int_equal(try(b), 1);
	}
}

/* Our own name is taken, as by a link or, for root who can make one, by another user. */
static void test_own_name_is_taken(void **state)
{
	AUTO_FREE char *own = mem_printf("%s.%lu", dir, (unsigned long)geteuid());

	for (int i = 0; i < 3; i++) {
		if (i == 0)
			assert_int_equal(symlink("/tmp", own), 0);
		else if (i == 1)
			close(open(own, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
		else if (geteuid() != 0 || mkdir(own, 0755) < 0 || chown(own, 4711, 4711) < 0)
			break;
		AUTO_GPU_CLAIM struct gpu_claim *a = join_only(1, "0");
		assert_int_equal(try(a), 1);
		AUTO_FREE char *lock = mem_printf("%s/gpu.GPU-aaaa", dir);
		assert_int_equal(unlink(lock), 0);
		AUTO_GPU_CLAIM struct gpu_claim *b = join_only(1, "0");
		waits(b, "GPU 0 is in use by a-12345");
		unlink(own);
	}
}

static void ERR_PRINTF(1, 2) put_holder(const char *format, ...)
{
	AUTO_FREE char *path = fs_join(dir, "gpu.GPU-aaaa");
	va_list args;

	va_start(args, format);
	AUTO_FREE char *text = mem_vprintf(format, args);
	va_end(args);
	int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
}

/* What stands in a lock is said only of a process that lives and holds it. */
static void test_holders(void **state)
{
	static const char time[] = "2026-11-23T05:04:25Z",
			  unknown[] = "GPU 0 is in use by another run";
	unsigned long long start = os_process_start(getpid());
	unsigned long uid = geteuid();
	int pid = getpid();

	AUTO_GPU_CLAIM struct gpu_claim *a = join(1);
	assert_int_equal(try(a), 1);
	AUTO_GPU_CLAIM struct gpu_claim *b = join_only(1, "0");
	waits(b, "GPU 0 is in use by a-12345");
	const char *said = gpu_claim_why(b);
	AUTO_FREE char *first = mem_strdup(said);
	waits(b, "GPU 0 is in use by a-12345");
	assert_string_equal(first, gpu_claim_why(b));
	if (!start)
		return;
	put_holder("q1-hc62r %lu %d %llu %s\n", uid, pid, start, time);
	assert_int_equal(try(b), 0);
	assert_string_equal(
		gpu_claim_why(b), "GPU 0 is in use by q1-hc62r since 2026-11-23T05:04:25Z");
	put_holder("q1-hc62r %lu %d %llu %s\n", uid + 1, pid, start, time);
	assert_int_equal(try(b), 0);
	assert_string_equal(gpu_claim_why(b),
		"GPU 0 is in use by q1-hc62r of another user since 2026-11-23T05:04:25Z");
	/* Nobody, another process of this number, one that holds nothing, and none. */
	put_holder("%s", "");
	waits(b, unknown);
	put_holder("q1-hc62r %lu %d %llu %s\n", uid, pid, start + 1, time);
	waits(b, unknown);
	put_holder("q1-hc62r %lu %d %llu %s\n", uid, (int)getppid(),
		(unsigned long long)os_process_start(getppid()), time);
	waits(b, unknown);
	put_holder("q1-hc62r %lu 0 0 %s\n", uid, time);
	waits(b, unknown);
	/* What is no run, and no time. */
	static const char *const odd[] = {"\033[31mq1", "Q1", "../q1", "-", "q1;x", "q%s",
		"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};
	for (size_t i = 0; i < ARRAY_LEN(odd); i++) {
		put_holder("%s %lu %d %llu %s\n", odd[i], uid, pid, start, time);
		waits(b, unknown);
	}
	put_holder("q1-hc62r %lu %d %llu 2026-11-23T05:04:25+01:00\n", uid, pid, start);
	waits(b, unknown);
	put_holder("q1-hc62r %lu %d %llu yesterday\n", uid, pid, start);
	waits(b, unknown);
	put_holder("%0*d", 100000, 0);
	waits(b, unknown);
}

/* Each holder is named, as far as a sentence goes. */
static void test_many_holders(void **state)
{
	struct gpu_list nine = {.n = 0};
	struct gpu_claim *holders[5] = {0};

	for (unsigned i = 0; i < 9; i++) {
		nine.v[nine.n] = (struct gpu){GPU_NVIDIA, i, "", "A", 0, false};
		snprintf(nine.v[nine.n++].id, GPU_ID_SIZE, "GPU-%u", i);
	}
	for (size_t i = 0; i < ARRAY_LEN(holders); i++) {
		AUTO_ERR struct err err = {0};
		AUTO_FREE char *owner = mem_printf("%c-12345", 'a' + (char)(i / 2));
		struct gpu_claim_spec spec = {.dir = dir, .owner = owner, .want = i == 4 ? 5 : 1};
		assert_int_equal(gpu_claim_new(&spec, &holders[i], &err), 0);
		assert_int_equal(try_list(holders[i], &nine), 1);
	}
	AUTO_GPU_CLAIM struct gpu_claim *b = join(1);
	assert_int_equal(try_list(b, &nine), 0);
	AUTO_FREE char *why = why_of(b);
	assert_string_equal(why, "GPUs 0,1 are in use by a-12345; GPUs 2,3 are in use by b-12345; "
				 "GPUs 4,5,6,7,8 are in use by other runs");
	for (size_t i = 0; i < ARRAY_LEN(holders); i++)
		gpu_claim_free(holders[i]);
	AUTO_GPU_CLAIM struct gpu_claim *all = join(9);
	gpu_claim_free(TAKE(b));
	assert_int_equal(try_list(all, &nine), 1);
	AUTO_GPU_CLAIM struct gpu_claim *c = join(1);
	assert_int_equal(try_list(c, &nine), 0);
	AUTO_FREE char *most = why_of(c);
	assert_string_equal(most, "9 GPUs are in use by a-12345");
}

static void test_ticket_removed(void **state)
{
	AUTO_FREE char *path = mem_printf("%s/ticket.000000000001", dir);
	AUTO_GPU_CLAIM struct gpu_claim *a = join(2);
	AUTO_GPU_CLAIM struct gpu_claim *b = join(1);
	assert_int_equal(unlink(path), 0);
	waits(a, "1 run is before it");
	assert_int_equal(try(b), 1);
	waits(a, "GPU 0 is in use by a-12345");
}

static void test_queue_held(void **state)
{
	int64_t start_ms = clock_ms();

	AUTO_GPU_CLAIM struct gpu_claim *a = join(1);
	AUTO_FD int queue = hold("queue", "");
	assert_int_equal(try(a), 0);
	assert_string_equal(gpu_claim_why(a), "another process holds the queue for GPUs");
	assert_true(clock_ms() - start_ms < WAIT_MS);
	close(TAKE_FD(queue));
	assert_int_equal(try(a), 1);
}

static void test_only_limit(void **state)
{
	AUTO_FREE char *words = mem_alloc(GPU_CLAIM_TEXT_MAX + 1, 1);
	AUTO_ERR struct err err = {0};
	struct gpu_claim *claim = NULL;

	memset(words, 'x', GPU_CLAIM_TEXT_MAX);
	assert_int_equal(claim_only(1, words, &claim, &err), -ERR_LIMIT);
}

/*
 * Many race for two, and die at any time
 */

enum { RACERS = 64, ROUNDS = 50, ROUNDS_WITHOUT_EVENTS = 10, KILLS = 400, RACE_MS = 110000 };

/* The witness, apart from all locks: who is in the section of each GPU. A token is the racer and
 * which of its processes it is. */
struct shared {
	_Atomic uint64_t holder[2];
	_Atomic uint64_t killed[RACERS]; /* the last process that was, or is about to be */
	_Atomic unsigned done[RACERS], rounds;
	_Atomic unsigned n_wrong, n_died_inside;
};
static struct shared *shared;

static uint64_t token_of(unsigned racer, uint64_t process)
{
	return (uint64_t)racer << 32 | process;
}

static bool is_killed(uint64_t token)
{
	return atomic_load(&shared->killed[token >> 32]) >= (token & UINT32_MAX);
}

static void enter(size_t gpu, uint64_t token)
{
	uint64_t before = atomic_exchange(&shared->holder[gpu], token);

	if (before)
		atomic_fetch_add(is_killed(before) ? &shared->n_died_inside : &shared->n_wrong, 1);
}

static void leave(size_t gpu, uint64_t token)
{
	uint64_t expected = token;

	if (!atomic_compare_exchange_strong(&shared->holder[gpu], &expected, 0) &&
		!is_killed(token))
		atomic_fetch_add(&shared->n_wrong, 1);
}

static void use_gpus(const struct gpu_list *list, uint64_t token)
{
	/* Some stay long enough to be killed at it. */
	int64_t end_us = clock_us() + random_below(random_below(50) ? 200 : 4000);

	for (size_t i = 0; i < list->n; i++)
		enter(list->v[i].index, token);
	while (clock_us() < end_us)
		for (size_t i = 0; i < list->n; i++)
			if (atomic_load(&shared->holder[list->v[i].index]) != token &&
				!is_killed(token))
				atomic_fetch_add(&shared->n_wrong, 1);
	for (size_t i = 0; i < list->n; i++)
		leave(list->v[i].index, token);
}

static void wait_turn(const struct gpu_claim *claim)
{
	struct pollfd pollfd = {.fd = gpu_claim_watch_fd(claim), .events = POLLIN};

	bool is_notified = pollfd.fd >= 0 && strstr(gpu_claim_why(claim), "before it");

	/* The death of a holder makes no event, and the first one waits for it. */
	poll(&pollfd, 1, is_notified ? 100 : 2);
}

static bool race_once(uint64_t token)
{
	static const char *const words[] = {"0", "GPU-bb", NULL, NULL, NULL, NULL, NULL, NULL};
	const char *only = words[random_below(ARRAY_LEN(words))];
	AUTO_GPU_CLAIM struct gpu_claim *claim = NULL;
	AUTO_ERR struct err err = {0};
	int r = claim_only(!only && random_below(8) == 0 ? 2 : 1, only, &claim, &err);

	while (r == 0 && (r = gpu_claim_try(claim, &two, &err)) == 0)
		wait_turn(claim);
	if (r < 0) {
		fprintf(stderr, "%s\n", err.message);
		return false;
	}
	use_gpus(gpu_claim_granted(claim), token);
	return true;
}

static pid_t start_racer(unsigned racer, uint64_t process)
{
	uint64_t token = token_of(racer, process);
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid > 0)
		return pid;
	while (atomic_load(&shared->done[racer]) < atomic_load(&shared->rounds)) {
		alarm(ORPHAN_S);
		if (!race_once(token))
			_exit(1);
		atomic_fetch_add(&shared->done[racer], 1);
	}
	_exit(0);
}

struct race {
	pid_t pids[RACERS];
	uint64_t processes[RACERS];
	unsigned n_running, n_kills;
};

/* Every other time one who holds a GPU just now, if one comes soon. */
static unsigned pick_victim(void)
{
	int64_t end_us = clock_us() + 3000;
	uint64_t token = 0;

	if (random_below(2))
		while (!token && clock_us() < end_us)
			token = atomic_load(&shared->holder[random_below(2)]);
	return token ? (unsigned)(token >> 32) : random_below(RACERS);
}

static void kill_one(struct race *race)
{
	unsigned i = pick_victim();

	if (race->pids[i] == 0)
		return;
	atomic_store(&shared->killed[i], race->processes[i]);
	kill(race->pids[i], SIGKILL);
	assert_int_equal(waitpid(race->pids[i], NULL, 0), race->pids[i]);
	race->n_kills++;
	race->pids[i] = start_racer(i, ++race->processes[i]);
}

static void reap(struct race *race)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		assert_int_equal(status, 0);
		for (unsigned i = 0; i < RACERS; i++)
			if (race->pids[i] == pid)
				race->pids[i] = 0;
		race->n_running--;
	}
}

static void test_race(void **state)
{
	struct race race = {.n_running = RACERS};
	int64_t deadline_ms = clock_deadline(RACE_MS);

	shared = mmap(
		NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(shared, MAP_FAILED);
	AUTO_GPU_CLAIM struct gpu_claim *probe = join(1);
	/* tests/run --all sets it. */
	const char *which = getenv("DLRUN_TESTS");
	unsigned rounds = which && strcmp(which, "all") == 0 ? 4 * ROUNDS : ROUNDS;
	atomic_store(
		&shared->rounds, gpu_claim_watch_fd(probe) < 0 ? ROUNDS_WITHOUT_EVENTS : rounds);
	gpu_claim_free(TAKE(probe));
	for (unsigned i = 0; i < RACERS; i++)
		race.pids[i] = start_racer(i, ++race.processes[i]);
	while (race.n_running > 0) {
		/* On a loaded machine fewer rounds are enough; a racer that is stuck has its alarm. */
		if (clock_ms() > deadline_ms)
			atomic_store(&shared->rounds, 1);
		poll(NULL, 0, (int)random_below(20));
		if (race.n_kills < KILLS)
			kill_one(&race);
		reap(&race);
	}
	assert_int_equal(atomic_load(&shared->n_wrong), 0);
	for (unsigned i = 0; i < RACERS; i++)
		assert_true(atomic_load(&shared->done[i]) >= atomic_load(&shared->rounds));
	assert_true(race.n_kills > 0 && atomic_load(&shared->n_died_inside) > 0);
	AUTO_GPU_CLAIM struct gpu_claim *last = join(2);
	assert_int_equal(try(last), 1);
	assert_int_equal(count_files("ticket."), 0);
	print_message("%u killed, %u of them with a GPU\n", race.n_kills,
		atomic_load(&shared->n_died_inside));
	munmap(shared, sizeof(*shared));
}

#define IN_TMP(test) cmocka_unit_test_setup_teardown(test, make_tmp, remove_tmp)

int main(void)
{
	const struct CMUnitTest tests[] = {
		IN_TMP(test_queue),
		IN_TMP(test_files),
		IN_TMP(test_several),
		IN_TMP(test_used),
		IN_TMP(test_only),
		IN_TMP(test_vendors),
		IN_TMP(test_count),
		IN_TMP(test_waiter_dies),
		IN_TMP(test_holder_dies),
		IN_TMP(test_program_lives),
		IN_TMP(test_forked_copy),
		IN_TMP(test_bad_directory),
		IN_TMP(test_bad_files),
		IN_TMP(test_bad_tickets),
		IN_TMP(test_odd_tickets),
		IN_TMP(test_own_name_is_taken),
		IN_TMP(test_guards_of_others),
		IN_TMP(test_shared_locks_are_removed),
		IN_TMP(test_holders),
		IN_TMP(test_many_holders),
		IN_TMP(test_ticket_removed),
		IN_TMP(test_queue_held),
		IN_TMP(test_only_limit),
		IN_TMP(test_race),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
