/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The script that starts a program in a pod, run by the shells that are here.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/data/json.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/job/job.h"

enum { OUTPUT_MAX = 8192 };

static const char *const shells[][3] = {
	{"/bin/sh", NULL}, {"/bin/bash", NULL}, {"/bin/busybox", "sh", NULL}};

struct place {
	char dir[64];
	char output[OUTPUT_MAX];
	char message[4096]; /* the termination message */
	/* Of the program that was begun. */
	pid_t pid;
	int fd;
	size_t len;
};

static int setup_place(void **state)
{
	struct place *place = mem_alloc(1, sizeof(*place));

	strcpy(place->dir, "/tmp/pod-script-XXXXXX");
	*state = place;
	return mkdtemp(place->dir) ? 0 : -1;
}

static int teardown_place(void **state)
{
	struct place *place = *state;
	AUTO_FREE char *command = mem_printf("rm -rf %s", place->dir);
	int r = system(command);

	free(place);
	return r;
}

static char *replaced(const char *text, const char *from, const char *to)
{
	AUTO_BUF struct buf out;

	buf_init(&out, 1 << 20);
	for (const char *at; (at = strstr(text, from)); text = at + strlen(from)) {
		buf_add(&out, text, (size_t)(at - text));
		buf_adds(&out, to);
	}
	buf_adds(&out, text);
	return buf_take(&out);
}

/* What the pod would see, but for the paths. */
static char *as_word(const struct place *place, const char *text)
{
	AUTO_FREE char *log = mem_printf("%s/message", place->dir);
	AUTO_FREE char *expanded = replaced(text, "$$", "$");
	AUTO_FREE char *moved = replaced(expanded, "/dev/termination-log", log);

	return replaced(moved, "/dlrun", place->dir);
}

static void add_words(const struct place *place, const struct json *list, struct strv *ret)
{
	for (const struct json *item = list ? json_first(list) : NULL; item; item = json_next(item))
		strv_add_take(ret, as_word(place, json_str(item)));
}

/* The ConfigMap of a study, as the node mounts it. */
static void write_config(const struct place *place, const struct json *config)
{
	AUTO_FREE char *dir = mem_printf("%s/study", place->dir);
	const struct json *data = json_get(config, "data");

	mkdir(dir, 0700);
	for (const struct json *item = data ? json_first(data) : NULL; item;
		item = json_next(item)) {
		AUTO_FREE char *path = mem_printf("%s/%s", dir, json_key(item));
		FILE *file = fopen(path, "we");
		assert_non_null(file);
		fputs(json_str(item), file);
		fclose(file);
	}
}

/* Of the first container, the program's, or of the one behind it. */
static void make_words(const struct place *place, const struct kube_run *run,
	const char *const *shell, bool second, struct strv *ret)
{
	AUTO_KUBE_OBJECTS struct kube_objects objects = {0};
	AUTO_ERR struct err err = {0};
	AUTO_STRV struct strv words = {0};

	if (kube_job_make(run, &objects, &err) < 0)
		fail_msg("%s", err.message);
	write_config(place, objects.config);
	int64_t nodes;
	const struct json *pod = kube_objects_pods(
		run, &objects, run->n_roles && run->jobset ? run->n_roles - 1 : 0, &nodes);
	const struct json *container = json_first(json_get(pod, "containers"));
	container = second ? json_next(container) : container;
	add_words(place, json_get(container, "command"), &words);
	add_words(place, json_get(container, "args"), &words);
	assert_string_equal(words.v[0], "/bin/sh");
	for (; *shell; shell++)
		strv_add(ret, *shell);
	for (size_t i = 1; i < words.n; i++)
		strv_add(ret, words.v[i]);
}

static void begin_container(
	struct place *place, const struct kube_run *run, const char *const *shell, bool second)
{
	AUTO_STRV struct strv words = {0};
	AUTO_FREE char *message = mem_printf("%s/message", place->dir);
	AUTO_FREE char *attempt_dir = mem_printf("%s/attempt", place->dir);
	int fds[2];

	mkdir(attempt_dir, 0700);
	unlink(message);
	make_words(place, run, shell, second, &words);
	/* Others that are begun meanwhile do not hold it open. */
	assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
	place->pid = fork();
	if (place->pid == 0) {
		setsid();
		dup2(fds[1], 1);
		dup2(fds[1], 2);
		if (chdir(place->dir) < 0)
			_exit(99);
		execv(words.v[0], words.v);
		_exit(98);
	}
	close(fds[1]);
	place->fd = fds[0];
	place->len = 0;
	memset(place->output, 0, sizeof(place->output));
}

static void begin(struct place *place, const struct kube_run *run, const char *const *shell)
{
	begin_container(place, run, shell, false);
}

/* Until the program has said that, or to its end (NULL). */
static void read_until(struct place *place, const char *word)
{
	while (!word || !strstr(place->output, word)) {
		ssize_t n =
			read(place->fd, place->output + place->len, OUTPUT_MAX - 1 - place->len);
		if (n <= 0)
			break;
		place->len += (size_t)n;
	}
}

/* Returns the status as a pod shows it. */
static int finish(struct place *place)
{
	AUTO_FREE char *message = mem_printf("%s/message", place->dir);
	int status;

	read_until(place, NULL);
	close(place->fd);
	assert_int_equal(waitpid(place->pid, &status, 0), place->pid);
	/* The runtime does that when the container's first process has ended. */
	kill(-place->pid, SIGKILL);
	memset(place->message, 0, sizeof(place->message));
	FILE *file = fopen(message, "re");
	if (file) {
		size_t got = fread(place->message, 1, sizeof(place->message) - 1, file);
		assert_true(got < sizeof(place->message));
		fclose(file);
	}
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

struct test {
	struct strv command;
	struct kube_run run;
};

static void test_init(struct test *test, const char *first, const char *second, const char *third)
{
	*test = (struct test){.run = {.run_id = "a-23456",
				      .job = "a-23456",
				      .attempt = 1,
				      .kube_namespace = "me",
				      .image_ref = "x@sha256:0",
				      .workdir = "/dlrun/src",
				      .cwd = ".",
				      .nodes = 1,
				      .grace_ms = 1000}};
	strv_add(&test->command, first);
	if (second)
		strv_add(&test->command, second);
	if (third)
		strv_add(&test->command, third);
	test->run.command = &test->command;
}

static void test_done(struct test *test)
{
	strv_done(&test->command);
	strv_done(&test->run.image_entrypoint);
}
#define AUTO_TEST AUTO(test_done)

/* With every shell that is here, side by side, because the script's times are real. sig is sent
 * when the program has said "ready". message: NULL for none. Returns the line that failed, to be
 * freed, or NULL. */
static char *differs(struct place *place, const struct test *test, int sig, int status,
	const char *output, const char *message)
{
	struct place places[ARRAY_LEN(shells)];
	char *ret = NULL;
	size_t n = 0;

	for (size_t i = 0; i < ARRAY_LEN(shells); i++) {
		if (access(shells[i][0], X_OK) < 0)
			continue;
		snprintf(places[n].dir, sizeof(places[n].dir), "%.32s/%zu", place->dir, i);
		mkdir(places[n].dir, 0700);
		begin(&places[n++], &test->run, shells[i]);
	}
	for (size_t i = 0; sig && i < n; i++) {
		read_until(&places[i], "ready\n");
		kill(places[i].pid, sig);
	}
	for (size_t i = 0; i < n; i++) {
		int got = finish(&places[i]);
		if (!ret && (got != status || !strstr(places[i].output, output) ||
				    strcmp(places[i].message, message ? message : "") != 0))
			ret = mem_printf("%s: status %d, not %d, message: %s, output: %s",
				places[i].dir, got, status, places[i].message, places[i].output);
	}
	return ret;
}

static void check(struct place *place, const struct test *test, int sig, int status,
	const char *output, const char *message)
{
	AUTO_FREE char *line = differs(place, test, sig, status, output, message);

	if (line)
		fail_msg("%s", line);
}

/* Time is what asks the program to end: a busy machine, on which it had not set its traps then, gets
 * more. */
static void check_timed(
	struct place *place, struct test *test, int status, const char *output, const char *message)
{
	char *line = NULL;

	for (int64_t ms = 1000; ms <= 64000; ms *= 8) {
		test->run.timeout_ms = ms + test->run.signal_before_ms;
		free(line);
		line = differs(place, test, 0, status, output, message);
		if (!line)
			return;
	}
	fail_msg("%s", line);
}

/* A line for the shell, in the directory of the place; its output, to be freed. */
static char *said_there(const struct place *place, const char *line)
{
	AUTO_FREE char *command = mem_printf("cd %s && %s", place->dir, line);
	AUTO_BUF struct buf out;
	char part[512];
	FILE *file = popen(command, "re");

	buf_init(&out, 1 << 20);
	assert_non_null(file);
	for (size_t n; (n = fread(part, 1, sizeof(part), file)) > 0;)
		buf_add(&out, part, n);
	pclose(file);
	return buf_take(&out);
}

static void check_said(const struct place *place, const char *line, const char *expected)
{
	AUTO_FREE char *got = said_there(place, line);

	assert_string_equal(got, expected);
}

static int run_once(struct place *place, const struct test *test, const char *const *shell)
{
	begin(place, &test->run, shell);
	return finish(place);
}

static void test_attempt(void **state)
{
	AUTO_TEST struct test test;

	test_init(&test, "sh", "-c", "echo \"attempt $DLRUN_ATTEMPT $(echo $$ >/dev/null)\"");
	test.run.retries = 3;
	test.run.attempt = 2;
	setenv("DLRUN_RETRIES", "3", 1);
	check(*state, &test, 0, 0, "attempt 5 \n", NULL);
	unsetenv("DLRUN_RETRIES");
	check(*state, &test, 0, 0, "attempt 2 \n", NULL);
}

static void test_before(void **state)
{
	AUTO_TEST struct test test, line, missing;

	test_init(&test, "sh", "-c", "exit $X");
	test.run.before = "export X=5";
	strv_add(&test.run.image_entrypoint, "env");
	check(*state, &test, 0, 5, "", NULL);
	/* A line for the shell goes on in the same one. */
	test_init(&line, "f; exit 6", NULL, NULL);
	line.run.shell = true;
	line.run.before = "f() { echo function; }";
	check(*state, &line, 0, 6, "function\n", NULL);
	test_init(&missing, "no-such-program", NULL, NULL);
	missing.run.before = ":";
	check(*state, &missing, 0, 127, "dlrun: no-such-program: command not found\n", NULL);
}

static void test_line(void **state)
{
	AUTO_TEST struct test test, killed;

	test_init(&test, "echo one | cat; exit 7", NULL, NULL);
	test.run.shell = true;
	check(*state, &test, 0, 7, "one\n", NULL);
	test_init(&killed, "kill -9 $$", NULL, NULL);
	killed.run.shell = true;
	check(*state, &killed, 0, 137, "", NULL);
}

static void test_sent(void **state)
{
	struct place *place = *state;
	AUTO_FREE char *prepare = mem_printf(
		"cd %s && rm -rf src data && mkdir -p src/set/own \"data/set/it's\" data/a/b && "
		"echo one >\"data/set/it's/file\" && echo two >data/a/b/file && "
		"echo hidden >src/set/own/file",
		place->dir);
	AUTO_STRV struct strv sent = {0};
	AUTO_TEST struct test test;

	strv_add(&sent, "set");
	strv_add(&sent, "set/it's");
	strv_add(&sent, "a/b");
	test_init(&test, "sh", "-c", "cat \"src/set/it's/file\" src/a/b/file; ls src/set");
	test.run.sent = &sent;
	for (size_t i = 0; i < ARRAY_LEN(shells); i++) {
		if (access(shells[i][0], X_OK) < 0)
			continue;
		assert_int_equal(system(prepare), 0);
		/* A container that is started again in the same pod finds the links. */
		for (int j = 0; j < 2; j++) {
			begin(place, &test.run, shells[i]);
			assert_int_equal(finish(place), 0);
			assert_string_equal(place->output, "one\ntwo\nit's\n");
		}
	}
}

static void test_setup(void **state)
{
	struct place *place = *state;
	AUTO_FREE char *src = mem_printf("%s/src", place->dir);
	AUTO_TEST struct test failing, venv;

	mkdir(src, 0700);
	test_init(&failing, "echo", "never", NULL);
	failing.run.setup = "echo why; exit 3";
	failing.run.setup_cwd = ".";
	test_init(&venv, "sh", "-c", "echo \"${VIRTUAL_ENV##*/} $UV_NO_SYNC $PATH\"; tool");
	venv.run.setup =
		"mkdir -p .venv/bin && echo x >.venv/pyvenv.cfg && "
		"printf '#!/bin/sh\\necho tool' >.venv/bin/tool && chmod +x .venv/bin/tool; "
		"echo quiet";
	venv.run.setup_cwd = ".";
	AUTO_FREE char *clean = mem_printf("rm -rf %s/.venv", src);
	for (size_t i = 0; i < ARRAY_LEN(shells); i++) {
		if (access(shells[i][0], X_OK) < 0)
			continue;
		begin(place, &failing.run, shells[i]);
		assert_int_equal(finish(place), 125);
		assert_non_null(strstr(
			place->output, "why\ndlrun: setup failed with exit 3: echo why; exit 3\n"));
		assert_null(strstr(place->output, "never"));
		assert_string_equal(place->message, KUBE_JOB_SETUP);
		assert_int_equal(system(clean), 0);
		begin(place, &venv.run, shells[i]);
		assert_int_equal(finish(place), 0);
		assert_non_null(strstr(place->output, ".venv 1 "));
		assert_non_null(strstr(place->output, "\ntool"));
		assert_null(strstr(place->output, "quiet"));
	}
}

static void test_limit(void **state)
{
	AUTO_TEST struct test polite, deaf, quick;

	test_init(
		&polite, "sh", "-c", "trap 'echo term; exit 3' TERM; while :; do sleep 0.1; done");
	polite.run.grace_ms = 60000;
	check_timed(*state, &polite, 124, "term\n", KUBE_JOB_TIMEOUT);
	test_init(&deaf, "sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.1; done");
	check_timed(*state, &deaf, 124, "deaf\n", KUBE_JOB_TIMEOUT);
	test_init(&quick, "sh", "-c", "exit 4");
	quick.run.timeout_ms = 600000;
	check(*state, &quick, 0, 4, "", NULL);
}

static void test_signal(void **state)
{
	AUTO_TEST struct test saves, dies, alarm;

	test_init(
		&saves, "sh", "-c", "trap 'echo saved; exit 0' USR1; while :; do sleep 0.1; done");
	saves.run.signal = "USR1";
	saves.run.signal_before_ms = 600000;
	check_timed(*state, &saves, 0, "saved\n", NULL);
	test_init(&dies, "sh", "-c", "while :; do sleep 0.1; done");
	dies.run.signal = "TERM";
	dies.run.signal_before_ms = 600000;
	check_timed(*state, &dies, 143, "", NULL);
	test_init(
		&alarm, "sh", "-c", "trap 'echo saved; exit 5' ALRM; while :; do sleep 0.1; done");
	alarm.run.signal = "ALRM";
	alarm.run.signal_before_ms = 600000;
	check_timed(*state, &alarm, 5, "saved\n", NULL);
}

/* What the kubelet does. */
static void test_term(void **state)
{
	AUTO_TEST struct test line, program, first;

	/* All of the line, not only the shell in front of it. */
	test_init(&line,
		"sh -c 'trap \"echo inner; exit 3\" TERM; echo ready; "
		"while :; do sleep 0.1; done' | cat",
		NULL, NULL);
	line.run.shell = true;
	check(*state, &line, SIGTERM, 143, "ready\n", NULL);
	test_init(&program, "sh", "-c",
		"trap 'echo term; exit 9' TERM; echo ready; while :; do sleep 0.1; done");
	program.run.timeout_ms = 600000;
	check(*state, &program, SIGTERM, 9, "term\n", NULL);
	/* The run's signal comes before TERM. */
	test_init(&first, "sh", "-c",
		"trap 'echo usr1' USR1; trap 'echo term; exit 9' TERM; echo ready; "
		"while :; do sleep 0.1; done");
	first.run.signal = "USR1";
	first.run.signal_before_ms = 1000;
	check(*state, &first, SIGTERM, 9, "usr1\n", NULL);
}

/* A signal that comes before the program has begun reaches it, and the commands that its handler
 * begins are not taken for the program. */
static void test_term_early(void **state)
{
	struct place *place = *state;
	AUTO_FREE char *path = mem_strdup(getenv("PATH"));
	AUTO_FREE char *tools = mem_printf("%s/tools", place->dir);
	AUTO_FREE char *with = mem_printf("%s:%s", tools, path);
	AUTO_FREE char *make =
		mem_printf("mkdir %s && printf '#!/bin/sh\n[ -e early ] || { echo >early; "
			   "kill -s TERM $PPID; }\nexec /usr/bin/env \"$@\"\n' >%s/env && "
			   "chmod +x %s/env",
			tools, tools, tools);
	AUTO_TEST struct test test;

	assert_int_equal(system(make), 0);
	test_init(&test, "sh", "-c",
		"trap 'echo usr1' USR1; trap 'echo term; exit 9' TERM; while :; do sleep 0.1; done");
	test.run.signal = "USR1";
	test.run.signal_before_ms = 1000;
	setenv("PATH", with, 1);
	/* The other shell has a tool of its own. */
	for (size_t i = 0; i < 2 && access(shells[i][0], X_OK) == 0; i++) {
		check_said(place, "rm -rf early attempt", "");
		int got = run_once(place, &test, shells[i]);
		if (got != 9 || !strstr(place->output, "usr1\n"))
			fail_msg("%s: status %d, output: %s", shells[i][0], got, place->output);
	}
	setenv("PATH", path, 1);
}

/* A failed role waits for the end of the run, which may be its reason: until TERM, or for a while. */
static void test_yields(void **state)
{
	enum { LONG_MS = 600000 };
	static const struct {
		const char *line;
		int sig, status;
		int64_t least_ms, most_ms, linger_ms;
	} cases[] = {
		{"exit 3", 0, 3, 9000, INT64_MAX, 0},
		/* Results of the other role may wait in its pod for so long. */
		{"exit 3", 0, 3, 12500, INT64_MAX, 3000},
		{"exit 0", 0, 0, 0, LONG_MS, LONG_MS},
		{"trap 'exit 9' TERM; echo ready; while :; do sleep 0.1; done", SIGTERM, 9, 0,
			LONG_MS, LONG_MS},
		/* The program has ended when it comes. */
		{"(sleep 1; echo ready) & exit 3", SIGTERM, 3, 0, LONG_MS, LONG_MS},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_TEST struct test test;

		test_init(&test, "sh", "-c", cases[i].line);
		const struct kube_role roles[] = {
			{.name = "learner", .nodes = 1, .command = &test.command},
			{.name = "actors", .nodes = 1, .command = &test.command}};
		test.run.nodes = 2;
		test.run.roles = roles;
		test.run.n_roles = 2;
		test.run.ends_with = "learner";
		test.run.linger_ms = cases[i].linger_ms;
		test.run.jobset = true;
		int64_t begun_ms = clock_ms();
		check(*state, &test, cases[i].sig, cases[i].status, "", NULL);
		int64_t took_ms = clock_ms() - begun_ms;
		assert_true(took_ms >= cases[i].least_ms && took_ms < cases[i].most_ms);
	}
}

/* All roles as one Job: each pod finds its variables and words by its index. */
static void test_flat_roles(void **state)
{
	static const char *const wants[] = {
		"a 0 1 a-23456-0.a-23456 it's $HOME\na-23456-0.a-23456\nend",
		"b 0 2 a-23456-1.a-23456 none\na-23456-1.a-23456\na-23456-2.a-23456\nend",
		"b 1 2 a-23456-1.a-23456 none\na-23456-1.a-23456\na-23456-2.a-23456\nend"};
	AUTO_TEST struct test test;
	AUTO_STRV struct strv own = {0}, none = {0}, other = {0};

	test_init(&test, "sh", "-c",
		"echo a $NODE_RANK $NNODES $MASTER_ADDR \"$WHO\"; cat $DLRUN_HOSTFILE; echo end");
	strv_add(&other,
		"echo b $NODE_RANK $NNODES $MASTER_ADDR ${WHO-none}; cat $DLRUN_HOSTFILE; echo end");
	strv_add(&own, "WHO=it's $HOME");
	const struct kube_role roles[] = {
		{.name = "a", .nodes = 1, .command = &test.command, .env = &own},
		{.name = "b", .nodes = 2, .command = &other, .shell = true, .env = &none}};
	test.run.nodes = 3;
	test.run.roles = roles;
	test.run.n_roles = 2;
	for (size_t i = 0; i < ARRAY_LEN(wants); i++) {
		AUTO_FREE char *index = mem_printf("%zu", i);
		setenv("JOB_COMPLETION_INDEX", index, 1);
		/* The variables of the container, which are the first role's. */
		setenv("NODE_RANK", index, 1);
		setenv("NNODES", "1", 1);
		setenv("MASTER_ADDR", "a-23456-0.a-23456", 1);
		setenv("DLRUN_NODE_ADDRS", "a-23456-0.a-23456", 1);
		setenv("WHO", "it's $HOME", 1);
		check(*state, &test, 0, 0, wants[i], NULL);
	}
	unsetenv("JOB_COMPLETION_INDEX");
}

static const char counts_int[] =
	"trap 'n=$((n + 1))' INT; trap 'echo term' TERM; n=0; echo ready; "
	"while [ $n = 0 ]; do sleep 0.01; done; sleep 0.3; echo int $n; exit 6";

static const char counts_int_again[] =
	"trap 'n=$((n + 1)); kill -s TERM $PPID' INT; n=0; echo ready; "
	"while [ $n = 0 ]; do sleep 0.01; done; sleep 0.3; echo int $n; exit 6";

/* TERM of the kubelet becomes another signal, which comes once. */
static void test_stop_signal(void **state)
{
	AUTO_TEST struct test words, line, limit, again, own, both, later;

	test_init(&words, "bash", "-c", counts_int);
	words.run.stop_signal = "INT";
	words.run.collects = true;
	check(*state, &words, SIGTERM, 6, "ready\nint 1\n", NULL);
	test_init(&line, counts_int, NULL, NULL);
	line.run.stop_signal = "INT";
	line.run.shell = true;
	check(*state, &line, SIGTERM, 6, "ready\nint 1\n", NULL);
	test_init(&limit, "bash", "-c", counts_int);
	limit.run.stop_signal = "INT";
	limit.run.grace_ms = 60000;
	check_timed(*state, &limit, 124, "ready\nint 1\n", KUBE_JOB_TIMEOUT);
	/* The node asks again while the program ends. */
	test_init(&again, "bash", "-c", counts_int_again);
	again.run.stop_signal = "INT";
	check(*state, &again, SIGTERM, 6, "ready\nint 1\n", NULL);
	/* One that this script would use itself, or would end by. */
	test_init(&own, "sh", "-c",
		"trap 'echo alrm; exit 7' ALRM; echo ready; while :; do sleep 0.1; done");
	own.run.stop_signal = "ALRM";
	own.run.signal = "USR2";
	own.run.signal_before_ms = 1000;
	own.run.timeout_ms = 600000;
	check(*state, &own, SIGTERM, 140, "ready\n", NULL);
	test_init(&both, "sh", "-c",
		"trap 'echo usr1; exit 8' USR1; echo ready; while :; do sleep 0.1; done");
	both.run.stop_signal = both.run.signal = "USR1";
	both.run.signal_before_ms = 600000;
	check_timed(*state, &both, 8, "usr1\n", NULL);
	test_init(&later, "sh", "-c",
		"trap 'echo usr1' USR1; trap 'echo quit; exit 9' QUIT; echo ready; "
		"while :; do sleep 0.1; done");
	later.run.stop_signal = "QUIT";
	later.run.signal = "USR1";
	later.run.signal_before_ms = 1000;
	check(*state, &later, SIGTERM, 9, "quit\n", NULL);
}

/* The shell has its program ignore INT, and the image has no tool, or another one, to undo that. */
static void test_stop_signal_ignored(void **state)
{
	struct place *place = *state;
	AUTO_FREE char *path = mem_strdup(getenv("PATH"));
	AUTO_FREE char *bare = mem_printf("%s/bare", place->dir);
	AUTO_FREE char *with = mem_printf("%s:%s", bare, path);
	AUTO_FREE char *make =
		mem_printf("mkdir %s && printf '#!/bin/sh\nexit 1' >%s/env && chmod +x %s/env",
			bare, bare, bare);
	AUTO_TEST struct test test, pipe;

	assert_int_equal(system(make), 0);
	test_init(&test, "bash", "-c", counts_int);
	test.run.stop_signal = "INT";
	setenv("PATH", with, 1);
	check(place, &test, SIGTERM, 6, "ready\nint 1\n", NULL);
	/* The tool hands on no signal that it ignores itself. */
	test_init(&pipe, "bash", "-c", "yes | head -n 1; exit ${PIPESTATUS[0]}");
	pipe.run.stop_signal = "INT";
	check(place, &pipe, 0, 128 + SIGPIPE, "y\n", NULL);
	setenv("PATH", bare, 1);
	check(place, &test, 0, 125, "dlrun: stop_signal: INT needs an image with python3", NULL);
	setenv("PATH", path, 1);
}

/*
 * Files in the tree
 */

static const char tree_lines[] = "mkdir -p src/sub src/.git outputs && echo old >src/old &&"
				 "echo old >src/sub/edited && ln -s old src/link && sleep 0.05";
static const char list_line[] = "cd outputs && find . -path ./.dlrun-collected -prune -o ! -type d "
				"-print0 | sort -z | tr '\\0\\n' '\\n?'";

/* As carry_over.c makes it of the results. */
static const char relay_line[] = "mkdir -p carried && mv outputs rank-0 && mkdir outputs && "
				 "tar -cf carried/results.tar rank-0/ && rm -rf rank-0";

/* carried: the next attempt finds them in its image, not on storage. */
static void collect_with(struct place *place, const char *const *shell, bool carried)
{
	AUTO_TEST struct test first, second, third;
	AUTO_STRV struct strv exclude = {0};
	check_said(place, tree_lines, "");

	strv_add(&exclude, "*.tmp");
	strv_add(&exclude, "sub/skip*");
	test_init(&first,
		"cd src; echo new >new; echo new >sub/edited; mkdir d 'sub/skipped'; "
		"echo x >'d/a\nb'; echo x >d/.hidden; touch -d 1999-01-01 d/aged; "
		"echo x >sub/skipped/x; echo x >x.tmp; echo x >.git/x; rm link; ln -s nowhere link; "
		"mkdir __pycache__; echo x >__pycache__/x; mkfifo fifo; echo mine >../outputs/both; "
		"echo tree >both; exit 3",
		NULL, NULL);
	first.run.shell = first.run.collects = true;
	first.run.exclude = &exclude;
	first.run.collect_bytes = 1 << 20;
	assert_int_equal(run_once(place, &first, shell), 3);
	assert_non_null(strstr(place->output, "dlrun: both is in the results already"));
	check_said(place, list_line,
		"./both\n./both.tree\n./d/.hidden\n./d/a?b\n./d/aged\n./link\n./new\n"
		"./sub/edited\n");
	check_said(place, "cat outputs/both outputs/both.tree; readlink outputs/link",
		"mine\ntree\nnowhere\n");
	/* A new tree of the same code. */
	check_said(place, "rm -rf src attempt", "");
	if (carried)
		check_said(place, relay_line, "");
	check_said(place, tree_lines, "");
	test_init(&second,
		"cd src; cat new sub/edited both; readlink link; find d -type f -exec echo x ';' | wc -l; rm new; "
		"echo more >>both; rm -r d",
		NULL, NULL);
	second.run.shell = second.run.collects = true;
	second.run.carries_over = carried;
	second.run.collect_bytes = 1 << 20;
	assert_int_equal(run_once(place, &second, shell), 0);
	assert_string_equal(place->output, "new\nnew\ntree\nnowhere\n3\n");
	check_said(place, list_line, "./both\n./both.tree\n./link\n./sub/edited\n");
	check_said(place, "cat outputs/both outputs/both.tree", "mine\ntree\nmore\n");
	/* The newest fit. */
	check_said(place, "rm -rf src attempt outputs", "");
	check_said(place, tree_lines, "");
	test_init(&third, "cd src; echo 12345 >a; sleep 1.1; echo 12345 >b", NULL, NULL);
	third.run.shell = third.run.collects = true;
	third.run.collect_bytes = 8;
	assert_int_equal(run_once(place, &third, shell), 0);
	assert_non_null(strstr(place->output, "dlrun: over the size of collect: ./a (6 bytes)\n"));
	check_said(place, list_line, "./b\n");
	check_said(place, "ls -A outputs/.dlrun-collected", "rank-0\n");
}

/* Directories of the snapshot that the program renames as a whole; the files in them are as old as
 * they were. What was collected while the program ran is not copied again. */
static void move_with(struct place *place, const char *const *shell, bool unused)
{
	AUTO_TEST struct test test;

	check_said(place,
		"mkdir -p outputs src/a/deep src/b src/c src/keep src/late src/.git && cd src && "
		"for f in a/one a/deep/two b/x c/y keep/z late/old .git/x; do echo $f >$f; done && "
		"touch -d 1999-01-01 a/deep/two && mkdir 'n\nl' && echo nl >'n\nl/f' && sleep 0.05",
		"");
	test_init(&test,
		"cd src; mv a moved; mv b b2; mv c b; mv .git git; mkdir git/.git; echo >keep/w; "
		"mkdir new; echo >new/f; mv 'n\nl' line; sh ../attempt/collect all; "
		"stat -c %i ../outputs/moved/one; echo >moved/more; mv late there; "
		"sh ../attempt/collect all; stat -c %i ../outputs/moved/one; rm b/y",
		NULL, NULL);
	test.run.shell = test.run.collects = true;
	test.run.collect_bytes = 1 << 20;
	assert_int_equal(run_once(place, &test, shell), 0);
	check_said(place, list_line,
		"./b2/x\n./git/x\n./keep/w\n./line/f\n./moved/deep/two\n./moved/more\n"
		"./moved/one\n./new/f\n./there/old\n");
	check_said(place, "cat outputs/moved/deep/two outputs/there/old", "a/deep/two\nlate/old\n");
	size_t half = place->len / 2;
	assert_true(half > 1 && memcmp(place->output, place->output + half, half) == 0);
}

/* The tree is an overlay, as in a pod. Its directories cannot be renamed there, and are not listed,
 * unless they can be. */
static void layers_with(struct place *place, const char *const *shell, bool redirects)
{
	AUTO_FREE char *src = mem_printf("%s/src", place->dir);
	AUTO_FREE char *options =
		mem_printf("lowerdir=%s/disk/low,upperdir=%s/disk/up,workdir=%s/disk/"
			   "work%s",
			place->dir, place->dir, place->dir, redirects ? ",redirect_dir=on" : "");
	AUTO_TEST struct test test;

	check_said(place,
		"rm -rf src attempt outputs disk/*; mkdir -p src outputs disk/up disk/work "
		"disk/low/a/deep disk/low/b && cd disk/low && echo one >a/one && echo two >a/deep/two && "
		"echo x >b/x && touch -d 1999-01-01 a/deep/two && sleep 0.05",
		"");
	if (mount("overlay", src, "overlay", 0, options) < 0)
		fail_msg("%s: %s", options, strerror(errno));
	test_init(&test,
		"cd src; mv a moved; mkdir -p new/sub; echo new >new/sub/f; mv new newer; "
		"[ ! -e ../attempt/start.dirs ] || echo listed",
		NULL, NULL);
	test.run.shell = test.run.collects = true;
	test.run.collect_bytes = 1 << 20;
	int code = run_once(place, &test, shell);
	assert_int_equal(umount(src), 0);
	assert_int_equal(code, 0);
	assert_string_equal(place->output, redirects ? "listed\n" : "");
	check_said(place, list_line, "./moved/deep/two\n./moved/one\n./newer/sub/f\n");
	check_said(place, "cat outputs/moved/deep/two outputs/moved/one", "two\none\n");
}

static void test_layers(void **state)
{
	struct place *place = *state;
	AUTO_FREE char *disk = mem_printf("%s/disk", place->dir);

	mkdir(disk, 0700);
	/* Mounts of this process alone. */
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
		mount("tmpfs", disk, "tmpfs", 0, NULL) < 0)
		skip();
	for (size_t i = 0; i < 2 * ARRAY_LEN(shells); i++)
		if (access(shells[i / 2][0], X_OK) == 0)
			layers_with(place, shells[i / 2], i % 2);
	assert_int_equal(umount(disk), 0);
}

/* What lies on lasting storage at the end is in the termination message. */
static void sum_with(struct place *place, const char *const *shell, bool timeout)
{
	AUTO_TEST struct test test;
	int code = 0;

	check_said(place, "mkdir -p src outputs", "");
	test_init(&test,
		"cd src; mkdir -p d/e .hydra; printf 12345 >d/e/f; printf 1 >'d/a\nb'; "
		"echo 'lr: 1' >d/hparams.yaml; printf '{\"x\": 1}' >d/e/params.json; "
		"echo 'b: 2' >.hydra/config.yaml; printf x >'b\\k\nl'; printf 333 >../outputs/own; "
		"ln -s own link; mkdir 'x\n'; echo 1 >'x\n/ 1 2 y'",
		NULL, NULL);
	test.run.shell = test.run.collects = true;
	test.run.collect_bytes = 1 << 20;
	test.run.results = (struct kube_place){.kind = KUBE_PLACE_PVC, .name = "x"};
	if (timeout) {
		char *line = mem_printf("%s; echo made; sleep 600", test.command.v[0]);
		strv_done(&test.command);
		strv_add_take(&test.command, line);
		test.run.timeout_ms = 1000;
	}
	/* On a busy machine it may have no time to make them: then it gets more. */
	while ((code = run_once(place, &test, shell)) == 124 && !strstr(place->output, "made") &&
		test.run.timeout_ms < 30000) {
		test.run.timeout_ms *= 4;
		check_said(place, "rm -rf src attempt outputs && mkdir -p src outputs", "");
	}
	assert_int_equal(code, timeout ? 124 : 0);
	assert_true(timeout == str_starts(place->message, KUBE_JOB_TIMEOUT));
	assert_non_null(strstr(place->message,
		"\n" KUBE_JOB_RESULTS
		" 8 31 0\n4 20 d/\n1 5 .hydra/\n1 3 own\n1 2 x\\n/\n1 1 b\\\\k\\nl\n"));
	assert_non_null(strstr(place->message, "\nparams 6 d/hparams.yaml\nlr: 1\n\n"));
	assert_non_null(strstr(place->message, "\nparams 8 d/e/params.json\n{\"x\": 1}\n"));
	assert_non_null(strstr(place->message, "\nparams 5 .hydra/config.yaml\nb: 2\n\n"));
	/* Within the bounds of a message, whatever there is. */
	AUTO_TEST struct test many;
	check_said(place, "rm -rf src attempt outputs && mkdir -p src outputs", "");
	test_init(&many,
		"cd src; n=0; p=0123456789; p=$p$p$p$p$p; while [ $n -lt 100 ]; do "
		"echo $n >$p$p$n; n=$((n + 1)); done; head -c 5000 /dev/zero | tr '\\0' x >args.json; "
		"echo 'n: 1' >hparams.yaml",
		NULL, NULL);
	many.run.shell = many.run.collects = true;
	many.run.collect_bytes = 1 << 20;
	many.run.results = test.run.results;
	assert_int_equal(run_once(place, &many, shell), 0);
	assert_true(strlen(place->message) > 1000 && strlen(place->message) < 4000);
	assert_non_null(strstr(place->message, KUBE_JOB_RESULTS " 102 5295 "));
	assert_non_null(strstr(place->message, "\nparams 5 hparams.yaml\nn: 1\n\n"));
	assert_null(strstr(place->message, "\nparams 5000"));
}

/* With the tools that are here, and with those of busybox alone. */
static void with_all_tools(
	struct place *place, void (*fn)(struct place *place, const char *const *shell, bool other))
{
	AUTO_FREE char *tools = mem_printf("%s/tools", place->dir);
	AUTO_FREE char *path = mem_strdup(getenv("PATH"));

	check_said(place, "mkdir tools && ! [ -x /bin/busybox ] || /bin/busybox --install -s tools",
		"");
	for (size_t i = 0; i < 2 * ARRAY_LEN(shells); i++) {
		check_said(place, "rm -rf src attempt outputs", "");
		setenv("PATH", i < ARRAY_LEN(shells) ? path : tools, 1);
		if (access(shells[i % ARRAY_LEN(shells)][0], X_OK) == 0)
			fn(place, shells[i % ARRAY_LEN(shells)], i % 2);
		setenv("PATH", path, 1);
	}
}

static void test_moved(void **state)
{
	with_all_tools(*state, move_with);
}

static void test_summary(void **state)
{
	with_all_tools(*state, sum_with);
}

static void test_collect(void **state)
{
	with_all_tools(*state, collect_with);
}

/* A sleep to which TERM came before it was one: it does not hear that. */
#define DEAF_SLEEP                                                                                 \
	"mkdir -p bin && printf '#!/bin/sh\\ntrap \"\" TERM\\nexec /bin/sleep \"$@\"\\n' "         \
	">bin/sleep && chmod +x bin/sleep"

/* The second container ends with the program's, or waits until the results were taken. */
static void linger_with(struct place *place, const char *const *shell)
{
	struct place keeper = *place;
	AUTO_FREE char *release = replaced(KUBE_RELEASE, "/dlrun", place->dir);
	check_said(place, "rm -rf src attempt outputs; mkdir src outputs", "");
	AUTO_TEST struct test none, some, again;

	test_init(&none, "exit 4", NULL, NULL);
	none.run.shell = true;
	none.run.linger_ms = 3600 * 1000;
	begin(place, &none.run, shell);
	begin_container(&keeper, &none.run, shell, true);
	assert_int_equal(finish(place), 4);
	assert_int_equal(finish(&keeper), 0);
	check_said(place, "rm -rf attempt", "");
	test_init(&some, "echo ready; read x <go; echo x >outputs/file; exit 4", NULL, NULL);
	some.run.shell = true;
	some.run.linger_ms = 3600 * 1000;
	check_said(place, "mkfifo go && " DEAF_SLEEP, "");
	begin(place, &some.run, shell);
	AUTO_FREE char *path = mem_strdup(getenv("PATH"));
	AUTO_FREE char *deaf = mem_printf("%s/bin:%s", place->dir, path);
	setenv("PATH", deaf, 1);
	begin_container(&keeper, &some.run, shell, true);
	setenv("PATH", path, 1);
	read_until(place, "ready\n");
	check_said(place, "echo >go", "");
	assert_int_equal(finish(place), 4);
	/* The release itself waits for no longer than is sensible. */
	check_said(place, "until [ -e attempt/linger ]; do sleep 0.1; done", "");
	check_said(place, release, "");
	assert_int_equal(finish(&keeper), 0);
	/* It will be tried again: nobody is waited for. */
	check_said(place, "rm -rf attempt go", "");
	test_init(&again, "exit 4", NULL, NULL);
	again.run.shell = true;
	again.run.linger_ms = 3600 * 1000;
	again.run.retries = 1;
	begin(place, &again.run, shell);
	begin_container(&keeper, &again.run, shell, true);
	assert_int_equal(finish(place), 4);
	assert_int_equal(finish(&keeper), 0);
}

static void test_linger(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(shells); i++)
		if (access(shells[i][0], X_OK) == 0)
			linger_with(*state, shells[i]);
}

/*
 * Members of a study
 */

#define HARD "it's \"$HOME\" `x` \\ *\n\nlast\n"

enum { MEMBERS = 70 };

struct members {
	struct strv commands[MEMBERS], env[MEMBERS];
	struct kube_member list[MEMBERS];
};

/* All but the last do what nobody sees. */
static void members_init(
	struct members *members, struct test *test, const char *first, const char *second)
{
	*members = (struct members){0};
	test_init(test, "never", NULL, NULL);
	for (size_t i = 0; i < MEMBERS; i++) {
		bool is_last = i + 1 == MEMBERS;
		strv_add(&members->commands[i], is_last ? first : "false");
		if (is_last && second)
			strv_add(&members->commands[i], second);
		if (is_last && second)
			strv_add(&members->commands[i], HARD);
		strv_addf(&members->env[i], "DLRUN_STUDY_INDEX=wrong");
		strv_addf(&members->env[i], "LR=0.%zu", i);
		strv_addf(&members->env[i], "HARD=%zu" HARD, i);
		members->list[i] = (struct kube_member){&members->commands[i], &members->env[i]};
	}
	test->run.members = members->list;
	test->run.n_members = MEMBERS;
	setenv("JOB_COMPLETION_INDEX", "69", 1);
}

static void members_done(struct members *members)
{
	for (size_t i = 0; i < MEMBERS; i++) {
		strv_done(&members->commands[i]);
		strv_done(&members->env[i]);
	}
	unsetenv("JOB_COMPLETION_INDEX");
}
#define AUTO_MEMBERS AUTO(members_done)

static void test_members(void **state)
{
	AUTO_MEMBERS struct members words, line, before, entrypoint, quiet;
	AUTO_TEST struct test test, as_line, with_before, with_entrypoint, cancelled;

	members_init(&words, &test, "printf", "%s|");
	check(*state, &test, 0, 0, HARD "|", NULL);
	members_init(&line, &as_line, "printf '%s|' \"$LR\" \"$HARD\" $#; exit 3", NULL);
	as_line.run.shell = true;
	check(*state, &as_line, 0, 3, "0.69|69" HARD "|0|", NULL);
	members_init(&before, &with_before, "f \"$LR\" $#; exit 4", NULL);
	with_before.run.shell = true;
	with_before.run.before = "f() { echo \"in one shell: $*\"; }";
	check(*state, &with_before, 0, 4, "in one shell: 0.69 0\n", NULL);
	members_init(&entrypoint, &with_entrypoint, "printf", "<%s>");
	with_entrypoint.run.before = "export X=5";
	strv_add(&with_entrypoint.run.image_entrypoint, "env");
	strv_add(&with_entrypoint.run.image_entrypoint, "Y=6");
	check(*state, &with_entrypoint, 0, 0, "<" HARD ">", NULL);
	/* Its setup is not run for nothing. */
	members_init(&quiet, &cancelled, "echo", "never");
	cancelled.run.setup = "echo never";
	cancelled.run.setup_cwd = ".";
	for (size_t i = 0; i < ARRAY_LEN(shells); i++) {
		AUTO_FREE char *command = mem_printf("cd %s/%zu 2>/dev/null || exit 0; "
						     "touch study/cancel-69 study/cancel-6",
			((struct place *)*state)->dir, i);
		assert_int_equal(system(command), 0);
	}
	check(*state, &cancelled, 0, 125, "", KUBE_JOB_CANCELLED);
	/* Else it would end the others. */
	cancelled.run.fail_fast = true;
	check(*state, &cancelled, 0, 0, "", KUBE_JOB_CANCELLED);
	setenv("JOB_COMPLETION_INDEX", "70", 1);
	check(*state, &test, 0, 125, "the study has no member 70\n", NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_members, setup_place, teardown_place),
		cmocka_unit_test_setup_teardown(test_attempt, setup_place, teardown_place),
		cmocka_unit_test_setup_teardown(test_before, setup_place, teardown_place),
		cmocka_unit_test_setup_teardown(test_line, setup_place, teardown_place),
		cmocka_unit_test_setup_teardown(test_sent, setup_place, teardown_place),
		cmocka_unit_test_setup_teardown(test_setup, setup_place, teardown_place),
		cmocka_unit_test_setup_teardown(test_limit, setup_place, teardown_place),
		cmocka_unit_test_setup_teardown(test_signal, setup_place, teardown_place),
		cmocka_unit_test_setup_teardown(test_stop_signal, setup_place, teardown_place),
		cmocka_unit_test_setup_teardown(
			test_stop_signal_ignored, setup_place, teardown_place),
		cmocka_unit_test_setup_teardown(test_term, setup_place, teardown_place),
		cmocka_unit_test_setup_teardown(test_term_early, setup_place, teardown_place),
		cmocka_unit_test_setup_teardown(test_yields, setup_place, teardown_place),
		cmocka_unit_test_setup_teardown(test_flat_roles, setup_place, teardown_place),
		cmocka_unit_test_setup_teardown(test_collect, setup_place, teardown_place),
		cmocka_unit_test_setup_teardown(test_moved, setup_place, teardown_place),
		cmocka_unit_test_setup_teardown(test_layers, setup_place, teardown_place),
		cmocka_unit_test_setup_teardown(test_summary, setup_place, teardown_place),
		cmocka_unit_test_setup_teardown(test_linger, setup_place, teardown_place),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
