/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/doctor/doctor_checks.h"
#include "app/doctor/doctor.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/store/store.h"

struct fixture {
	char *dir;
	struct session session;
	struct doctor doctor;
};

static void setup_at(struct fixture *f, const char *const *env)
{
	AUTO_ERR struct err err = {0};
	const char *tmp = getenv("TMPDIR");

	*f = (struct fixture){.dir = mem_printf("%s/dlrun-doctor-XXXXXX", tmp ? tmp : "/tmp")};
	assert_non_null(mkdtemp(f->dir));
	struct session_env session_env = {
		.dirs = {.home = f->dir}, .cwd = f->dir, .user = "me", .env = env};
	assert_int_equal(session_init(&f->session, &session_env, &err), 0);
	f->doctor.session = &f->session;
}

static void teardown(struct fixture *f)
{
	session_done(&f->session);
	fs_remove_tree(AT_FDCWD, f->dir, NULL);
	free(f->dir);
}

static const char *const plain_env[] = {"PATH=/usr/bin:/bin", "LANG=C.UTF-8", NULL};

static void expect_row(const struct doctor_row *row, enum doctor_status status, const char *cause)
{
	if (row->status != status)
		fail_msg("%s: %s", doctor_status_name(row->status), row->cause);
	if (!cause)
		assert_null(row->cause);
	else if (!strstr(row->cause, cause))
		fail_msg("'%s' is not in '%s'", cause, row->cause);
}

static void expect_decision(
	struct fixture *f, const char *id, enum doctor_status status, const char *cause)
{
	AUTO_DOCTOR_ROW struct doctor_row row = {0};

	doctor_run_check(&f->doctor, doctor_find(id), &row);
	assert_string_equal(row.id, id);
	assert_non_null(row.found);
	expect_row(&row, status, cause);
}

static void test_table(void **state)
{
	for (size_t i = 0; i < doctor_checks_n; i++) {
		assert_ptr_equal(doctor_find(doctor_checks[i].id), &doctor_checks[i]);
		assert_true(str_columns(doctor_checks[i].title) < 18);
	}
	assert_null(doctor_find("nonsense"));
}

static void test_expiry(void **state)
{
	static const struct {
		int64_t expiry_ms;
		enum doctor_status status;
		const char *cause;
	} cases[] = {
		{0, DOCTOR_OK, NULL},
		{2000000, DOCTOR_OK, NULL},
		{1060000, DOCTOR_WARNING, "it expires in 1 min"},
		{1000000, DOCTOR_PROBLEM, "it has expired"},
		{940000, DOCTOR_PROBLEM, "it has expired 1 min ago"},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_DOCTOR_ROW struct doctor_row row = {.id = "x"};
		doctor_evaluate_expiry(&row, cases[i].expiry_ms, 1000000);
		expect_row(&row, cases[i].status, cases[i].cause);
	}
}

/* A check may have several things to look at. */
static void test_further_rows(void **state)
{
	AUTO_DOCTOR_ROW struct doctor_row row = {.id = "cluster"};
	AUTO_JSON struct json *json = NULL;

	doctor_found(&row, "first");
	struct doctor_row *more = doctor_row_add(&row, "cluster-login");
	doctor_found(more, "second");
	doctor_blame(more, DOCTOR_PROBLEM, "fix", "cause");
	assert_int_equal(row.status, DOCTOR_OK);
	assert_string_equal(doctor_title(more->id), "cluster login");
	json = doctor_row_to_json(&row);
	const struct json *item = json_first(json_get(json, "more"));
	assert_string_equal(json_get_str(item, "id"), "cluster-login");
	assert_string_equal(json_get_str(item, "status"), "problem");
	assert_null(json_get(item, "more"));
}

static void test_blame(void **state)
{
	AUTO_DOCTOR_ROW struct doctor_row row = {.id = "x"};

	doctor_blame(&row, DOCTOR_WARNING, "fix", "first %d", 1);
	doctor_blame(&row, DOCTOR_WARNING, "other", "second");
	expect_row(&row, DOCTOR_WARNING, "first 1");
	assert_string_equal(row.fix, "fix");
	doctor_blame(&row, DOCTOR_PROBLEM, NULL, "worse");
	expect_row(&row, DOCTOR_PROBLEM, "worse");
	assert_null(row.fix);
	doctor_blame(&row, DOCTOR_WARNING, "fix", "better");
	expect_row(&row, DOCTOR_PROBLEM, "worse");
}

static void test_space(void **state)
{
	static const struct {
		uint64_t bytes, inodes;
		enum doctor_status status;
	} cases[] = {
		{UINT64_MAX, UINT64_MAX, DOCTOR_OK},
		{UINT64_C(1) << 30, UINT64_MAX, DOCTOR_OK},
		{(UINT64_C(1) << 30) - 1, UINT64_MAX, DOCTOR_WARNING},
		{UINT64_C(64) << 20, UINT64_MAX, DOCTOR_WARNING},
		{(UINT64_C(64) << 20) - 1, UINT64_MAX, DOCTOR_PROBLEM},
		{0, UINT64_MAX, DOCTOR_PROBLEM},
		{UINT64_MAX, 10000, DOCTOR_OK},
		{UINT64_MAX, 9999, DOCTOR_WARNING},
		{UINT64_MAX, 999, DOCTOR_PROBLEM},
		{UINT64_MAX, 0, DOCTOR_PROBLEM},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_DOCTOR_ROW struct doctor_row row = {0};
		doctor_evaluate_space(&row, "/d", cases[i].bytes, cases[i].inodes);
		expect_row(&row, cases[i].status, cases[i].status ? "/d" : NULL);
	}
}

static void expect_clock(
	const struct doctor_times *times, enum doctor_status status, const char *cause)
{
	AUTO_DOCTOR_ROW struct doctor_row row = {0};

	doctor_evaluate_clock(&row, times);
	assert_non_null(row.found);
	expect_row(&row, status, cause);
}

static void test_clock(void **state)
{
	int64_t now = INT64_C(1790000000000), day = INT64_C(86400000);

	expect_clock(&(struct doctor_times){now, now, 0, 0}, DOCTOR_OK, NULL);
	expect_clock(&(struct doctor_times){now, now + 5000, now + 60000, 100}, DOCTOR_OK, NULL);
	expect_clock(&(struct doctor_times){now, now + 5001, 0, 0}, DOCTOR_WARNING, "ahead of");
	expect_clock(&(struct doctor_times){now, now - day, 0, 0}, DOCTOR_WARNING, "1 d behind");
	expect_clock(&(struct doctor_times){now, now, now + day, 0}, DOCTOR_WARNING, "set back");
	expect_clock(&(struct doctor_times){now, now, 0, 101}, DOCTOR_WARNING, "jumps");
	expect_clock(&(struct doctor_times){now, now, 0, -101}, DOCTOR_WARNING, "jumps");
	expect_clock(&(struct doctor_times){0, 0, 0, 0}, DOCTOR_PROBLEM, "wrong");
	expect_clock(&(struct doctor_times){INT64_C(4102444800000), INT64_C(4102444800000), 0, 0},
		DOCTOR_PROBLEM, "wrong");
	expect_clock(&(struct doctor_times){0, now, 0, 0}, DOCTOR_PROBLEM, "wrong");
}

static void expect_logout(
	const char *group, bool kill, bool linger, enum doctor_status status, const char *found)
{
	AUTO_DOCTOR_ROW struct doctor_row row = {0};

	doctor_evaluate_logout(&row, group, kill, linger);
	assert_int_equal(row.status, status);
	assert_non_null(strstr(row.found, found));
	assert_true(status == DOCTOR_OK || row.fix);
}

static void test_logout(void **state)
{
	static const char session[] = "/user.slice/user-1000.slice/session-3.scope";
	static const char manager[] = "/user.slice/user-1000.slice/user@1000.service/app.slice/x";

	expect_logout(NULL, false, false, DOCTOR_OK, "no login session");
	expect_logout("/", true, false, DOCTOR_OK, "no login session");
	expect_logout("/system.slice/ssh.service", true, false, DOCTOR_OK, "no login session");
	expect_logout(session, false, false, DOCTOR_OK, "go on");
	expect_logout(session, true, false, DOCTOR_WARNING, "end with the session");
	/* Lingering does not help a process of a session (logind.conf(5)). */
	expect_logout(session, true, true, DOCTOR_WARNING, "end with the session");
	expect_logout(manager, false, false, DOCTOR_WARNING, "last session");
	expect_logout(manager, true, true, DOCTOR_OK, "linger");
}

static void test_home(void **state)
{
	struct fixture f;

	setup_at(&f, plain_env);
	expect_decision(&f, "home", DOCTOR_OK, NULL);
	rmdir(f.dir);
	expect_decision(&f, "home", DOCTOR_WARNING, "HOME is not a directory");
	AUTO_ERR struct err error = {0};
	err_set(&error, E_IO_HOME, "HOME is not set");
	err_hint(&error, "export HOME=x");
	f.doctor.error = &error;
	expect_decision(&f, "home", DOCTOR_PROBLEM, "HOME is not set");
	expect_decision(&f, "space", DOCTOR_WARNING, "see home");
	teardown(&f);
}

static void test_fresh(void **state)
{
	static const char *const ids[] = {
		"access", "network", "locks", "clock", "records", "leftovers", "terminal"};
	struct fixture f;
	struct stat st;

	setup_at(&f, plain_env);
	for (size_t i = 0; i < ARRAY_LEN(ids); i++)
		expect_decision(&f, ids[i], DOCTOR_OK, NULL);
	/* Nothing is made by looking. */
	AUTO_FREE char *local = fs_join(f.dir, ".local");
	assert_int_equal(stat(local, &st), -1);
	assert_int_equal(rmdir(f.dir), 0);
	teardown(&f);
}

static void test_access(void **state)
{
	struct fixture f;

	setup_at(&f, plain_env);
	const char *dir = f.session.dirs.state;
	assert_int_equal(fs_mkdirs(dir, 0700, NULL), 0);
	expect_decision(&f, "access", DOCTOR_OK, NULL);
	chmod(dir, 0750);
	expect_decision(&f, "access", DOCTOR_WARNING, "others may read");
	chmod(dir, 0770);
	expect_decision(&f, "access", DOCTOR_PROBLEM, "others may write");
	chmod(dir, 0700);
	rmdir(dir);
	assert_int_equal(fs_replace(dir, "", 0, 0600, FS_SYNC_NONE, NULL), 0);
	expect_decision(&f, "access", DOCTOR_PROBLEM, "is not a directory");
	if (geteuid() == 0) {
		unlink(dir);
		mkdir(dir, 0700);
		assert_int_equal(chown(dir, 1, 1), 0);
		expect_decision(&f, "access", DOCTOR_PROBLEM, "another user");
	}
	teardown(&f);
}

static void make_records(struct fixture *f)
{
	AUTO_STORE struct store *store = NULL;
	AUTO_RUN struct run *run = run_new("a-22222", "a");

	assert_int_equal(fs_private_dir(f->session.dirs.state, NULL), 0);
	assert_int_equal(store_open(f->session.dirs.state, &store, NULL), 0);
	assert_int_equal(store_insert(store, run, NULL), 0);
	assert_int_equal(store_check(store, NULL), 0);
}

static void test_records(void **state)
{
	struct fixture f;

	setup_at(&f, plain_env);
	make_records(&f);
	expect_decision(&f, "records", DOCTOR_OK, NULL);
	expect_decision(&f, "leftovers", DOCTOR_OK, NULL);
	teardown(&f);
}

static void test_damaged_records(void **state)
{
	AUTO_DOCTOR_ROW struct doctor_row row = {0};
	struct fixture f;
	char junk[8192];

	setup_at(&f, plain_env);
	make_records(&f);
	AUTO_FREE char *path = fs_join(f.session.dirs.state, "runs.db");
	AUTO_FD int fd = open(path, O_WRONLY | O_CLOEXEC);
	memset(junk, 0x55, sizeof(junk));
	assert_int_equal(pwrite(fd, junk, sizeof(junk), 200), (ssize_t)sizeof(junk));
	doctor_run_check(&f.doctor, doctor_find("records"), &row);
	assert_int_equal(row.status, DOCTOR_PROBLEM);
	assert_non_null(row.fix);
	assert_int_equal(strncmp(row.fix, "mv ", 3), 0);
	/* What the clock asks of the records is not its own fault. */
	expect_decision(&f, "clock", DOCTOR_OK, NULL);
	teardown(&f);
}

static void test_terminal(void **state)
{
	static const char *const ascii[] = {"LANG=C", NULL}, *const none[] = {NULL};
	static const char *const first[] = {"LC_ALL=de_DE.utf8", "LANG=C", NULL};
	struct fixture f;

	setup_at(&f, ascii);
	expect_decision(&f, "terminal", DOCTOR_WARNING, "escaped");
	f.session.env.env = none;
	expect_decision(&f, "terminal", DOCTOR_WARNING, "escaped");
	f.session.env.env = first;
	expect_decision(&f, "terminal", DOCTOR_OK, NULL);
	teardown(&f);
}

static void test_program(void **state)
{
	AUTO_FREE char *venv = NULL;
	struct fixture f;

	setup_at(&f, plain_env);
	venv = mem_printf("VIRTUAL_ENV=%s/gone", f.dir);
	const char *const env[] = {"PATH=/usr/bin:/bin", venv, NULL};
	f.session.env.env = env;
	expect_decision(&f, "program", DOCTOR_WARNING, "without a Python");
	teardown(&f);
	setup_at(&f, env);
	/* The home directory is no tree: the configuration of the user counts. */
	AUTO_FREE char *own = mem_printf("%s/.config/dlrun/config.yaml", f.dir);
	AUTO_FREE char *own_dir = mem_printf("%s/.config/dlrun", f.dir);
	fs_mkdirs(own_dir, 0700, NULL);
	assert_int_equal(
		fs_replace(own, "command: [no-such-program]\n", 27, 0600, FS_SYNC_NONE, NULL), 0);
	expect_decision(&f, "program", DOCTOR_PROBLEM, "no-such-program");
	expect_decision(&f, "tree", DOCTOR_OK, NULL);
	teardown(&f);
}

static void put_config(struct fixture *f, const char *text)
{
	AUTO_FREE char *dir = mem_printf("%s/.config/dlrun", f->dir);
	AUTO_FREE char *path = fs_join(dir, "config.yaml");

	assert_int_equal(fs_mkdirs(dir, 0700, NULL), 0);
	assert_int_equal(fs_replace(path, text, strlen(text), 0600, FS_SYNC_NONE, NULL), 0);
}

static void expect_found(struct fixture *f, const char *id, const char *found)
{
	AUTO_DOCTOR_ROW struct doctor_row row = {0};

	doctor_run_check(&f->doctor, doctor_find(id), &row);
	expect_row(&row, DOCTOR_OK, NULL);
	assert_string_equal(row.found, found);
}

static void test_proxy(void **state)
{
	static const char *const env[] = {
		"https_proxy=http://me:canary@proxy.example:3128", "NO_PROXY=inner.example", NULL};
	static const char *const bad[] = {"HTTPS_PROXY=gopher://x", NULL};
	struct fixture f;

	setup_at(&f, plain_env);
	expect_found(&f, "proxy", "none");
	teardown(&f);
	setup_at(&f, env);
	expect_found(&f, "proxy", "http://proxy.example:3128 (HTTPS_PROXY)");
	teardown(&f);
	setup_at(&f, env);
	put_config(&f, "registry: outer.example/a\nimage: inner.example/b:1\n"
		       "targets: {x: {kind: local, registry: 'localhost:5000/a'}}\n");
	expect_found(&f, "proxy",
		"http://proxy.example:3128 (HTTPS_PROXY) for outer.example; none for "
		"localhost:5000; none for inner.example");
	teardown(&f);
	setup_at(&f, bad);
	expect_decision(&f, "proxy", DOCTOR_PROBLEM, "HTTPS_PROXY");
	teardown(&f);
}

static void test_no_registry(void **state)
{
	struct fixture f;

	setup_at(&f, plain_env);
	expect_found(&f, "registry", "none is set (registry: in dlrun.yaml)");
	expect_found(&f, "base", "none (scratch)");
	teardown(&f);
	setup_at(&f, plain_env);
	put_config(&f, "image: oci:/x\n");
	expect_decision(&f, "base", DOCTOR_PROBLEM, "/x");
	teardown(&f);
	setup_at(&f, plain_env);
	put_config(&f, "image: ubuntu\n");
	expect_decision(&f, "base", DOCTOR_PROBLEM, "names no registry");
	teardown(&f);
}

/* Nothing listens at port 1. */
static void test_registry_is_down(void **state)
{
	struct fixture f;

	setup_at(&f, plain_env);
	put_config(&f, "registry: 127.0.0.1:1/a\nimage: 127.0.0.1:1/b:1\n"
		       "targets: {x: {kind: local, registry: 'localhost:1/c'}}\n");
	expect_decision(&f, "registry", DOCTOR_PROBLEM, "127.0.0.1:1");
	expect_decision(&f, "base", DOCTOR_PROBLEM, "127.0.0.1:1");
	teardown(&f);
}

static void test_config(void **state)
{
	struct fixture f;

	setup_at(&f, plain_env);
	put_config(&f, "imgae: x\n");
	expect_decision(&f, "config", DOCTOR_PROBLEM, "config.yaml:1");
	teardown(&f);
}

/*
 * All at once
 */

static struct doctor_row *run_all(const char *script, int64_t timeout_ms)
{
	const char *const words[] = {"/bin/sh", "-c", script, "check", NULL};
	struct doctor_row *rows = mem_alloc(doctor_checks_n, sizeof(*rows));

	assert_int_equal(doctor_run_all(words, timeout_ms, NULL, rows, NULL), 0);
	for (size_t i = 0; i < doctor_checks_n; i++) {
		assert_string_equal(rows[i].id, doctor_checks[i].id);
		assert_non_null(rows[i].found);
	}
	return rows;
}

static void rows_free(struct doctor_row *rows)
{
	for (size_t i = 0; i < doctor_checks_n; i++)
		doctor_row_done(&rows[i]);
	free(rows);
}

static void test_all(void **state)
{
	struct doctor_row *rows = run_all(
		"printf '{\"id\":\"%s\",\"status\":\"problem\",\"found\":\"f %s\",\"cause\":\"c\","
		"\"fix\":null}\\n' \"$1\" \"$1\"",
		20000);

	for (size_t i = 0; i < doctor_checks_n; i++) {
		expect_row(&rows[i], DOCTOR_PROBLEM, "c");
		assert_null(rows[i].fix);
		assert_string_equal(rows[i].found + 2, doctor_checks[i].id);
	}
	rows_free(rows);
}

static void expect_warnings(const char *script, int64_t timeout_ms, const char *cause)
{
	struct doctor_row *rows = run_all(script, timeout_ms);

	for (size_t i = 0; i < doctor_checks_n; i++)
		expect_row(&rows[i], DOCTOR_WARNING, cause);
	rows_free(rows);
}

static void test_bad_workers(void **state)
{
	expect_warnings("exit 1", 20000, "without a message");
	expect_warnings("kill -SEGV $$", 20000, "without a message");
	expect_warnings("echo nonsense", 20000, "without a message");
	expect_warnings("echo '{\"id\":\"other\",\"status\":\"ok\",\"found\":\"x\"}'", 20000,
		"without a message");
	expect_warnings("echo '{\"id\":\"'$1'\",\"status\":\"good\",\"found\":\"x\"}'", 20000,
		"without a message");
	expect_warnings("yes", 20000, "without a message");
}

static void test_late_workers(void **state)
{
	int64_t begin_ms = clock_ms();

	expect_warnings("trap '' TERM INT HUP; while :; do read x; done </dev/zero", 300,
		"no answer within");
	assert_true(clock_ms() - begin_ms < 10000);
}

static void test_no_worker(void **state)
{
	static const char *const words[] = {"/no/such/program", NULL};
	struct doctor_row *rows = mem_alloc(doctor_checks_n, sizeof(*rows));

	assert_int_equal(doctor_run_all(words, 1000, NULL, rows, NULL), 0);
	expect_row(&rows[0], DOCTOR_WARNING, "cannot run");
	rows_free(rows);
}

static void test_interrupted(void **state)
{
	static const char *const words[] = {"/bin/sh", "-c", "exec cat /dev/zero >/dev/null", NULL};
	struct doctor_row *rows = mem_alloc(doctor_checks_n, sizeof(*rows));
	volatile int interrupted = 1;
	int64_t begin_ms = clock_ms();

	assert_int_equal(doctor_run_all(words, 60000, &interrupted, rows, NULL), -ERR_CANCELED);
	assert_true(clock_ms() - begin_ms < 30000);
	rows_free(rows);
}

/*
 * The report
 */

static void test_redact(void **state)
{
	static const char *const env[] = {
		"WANDB_API_KEY=0123456789abcdef", "EDITOR=0xvi0xvi", "MY_TOKEN=abc", NULL};
	static const struct {
		const char *text, *want;
	} cases[] = {
		{"in /home/me/x and /home/me", "in ~/x and ~"},
		{"/home/melanie/x", "/home/melanie/x"},
		{"a 0123456789abcdef.", "a (hidden)."},
		{"sent 0xvi0xvi and abc", "sent 0xvi0xvi and abc"},
		{"https://me:pw@reg.io/v2 x@y", "https://(hidden)@reg.io/v2 x@y"},
		{"https://reg.io/v2/a@b", "https://reg.io/v2/a@b"},
		{"HF_TOKEN=abc --api-key=d,e", "HF_TOKEN=(hidden) --api-key=(hidden)"},
		{"{\"password\": \"a b\", \"x\": 1}", "{\"password\": \"(hidden)\", \"x\": 1}"},
		{"passwd: 'a b' c", "passwd: '(hidden)' c"},
		{"Authorization: Bearer a.b.c end", "Authorization: Bearer (hidden) end"},
		{"the key is here; TOKENS=1", "the key is here; TOKENS=1"},
		{"https://me:p@w'x@reg.io/v2", "https://(hidden)@reg.io/v2"},
		{"\"https://me:p/w@reg.io/v2\", x@y", "\"https://(hidden)@reg.io/v2\", x@y"},
		{"https://reg.io:5000/a@b", "https://reg.io:5000/a@b"},
		{"at https://s3/a?Sig=x&b=c: 403 why?", "at https://s3/a?(hidden) 403 why?"},
		{"'me:pw@reg.io/x' is", "'(hidden)@reg.io/x' is"},
		{"ssh:me@host, python:3.12@sha256:ab", "ssh:me@host, python:3.12@sha256:ab"},
		{"q = \"password=\\\"a b\\\" c\", d", "q = \"password=\\\\\"(hidden)\", d"},
		{"{\"password\": \"a\\\"b\", 1}", "{\"password\": \"(hidden)\", 1}"},
		{"(token: a,b's), c", "(token: (hidden)), c"},
		{"aws_secret_access_key = ab c", "aws_secret_access_key = (hidden) c"},
		{"x --token ab c --token --d", "x --token (hidden) c --token --d"},
		{"\"auth\": \"dTpw\" apiToken=ab PGPASSWORD=ab",
			"\"auth\": \"(hidden)\" apiToken=(hidden) PGPASSWORD=(hidden)"},
		{"is eyJhbGciOiJIUzI1NiJ9.e30.x5 it", "is (hidden) it"},
		{"ghp_0123456789abcdefghij", "(hidden)"},
		{"sk-learn and hf_x", "sk-learn and hf_x"},
		{"r\303\251sum\303\251 a\033[1mb\n", "r\303\251sum\303\251 a\\x1b[1mb\\n"},
		{"", ""},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_FREE char *got = doctor_redact(cases[i].text, "/home/me", env);
		assert_string_equal(got, cases[i].want);
	}
}

static void expect_in(const struct buf *text, const char *part, bool wanted)
{
	if ((strstr(text->data, part) != NULL) != wanted)
		fail_msg("'%s' is%s in:\n%s", part, wanted ? " not" : "", text->data);
}

static void test_report(void **state)
{
	AUTO_FREE struct doctor_row *rows = mem_alloc(doctor_checks_n, sizeof(*rows));
	struct fixture f;
	AUTO_BUF struct buf out;

	setup_at(&f, plain_env);
	AUTO_FREE char *home = mem_printf("HOME=%s", f.dir);
	const char *const env[] = {home, "LAB_TOKEN=tell-nobody", "COLOR=never-shown", NULL};
	f.session.env.env = env;
	AUTO_FREE char *dir = fs_join(f.dir, "w");
	static const char text[] = "name: net\ncommand: [x, --pass, s3cret-word]\nbefore: export "
				   "P=s3cret-word\nenv: {PLAIN: s3cret-word}\n"
				   "targets: {lab: {kind: local, before: s3cret-word}}\n";
	assert_int_equal(fs_mkdirs(dir, 0700, NULL), 0);
	AUTO_FREE char *file = fs_join(dir, "dlrun.yaml");
	assert_int_equal(fs_replace(file, text, strlen(text), 0600, FS_SYNC_NONE, NULL), 0);
	f.session.env.cwd = dir;
	for (size_t i = 0; i < doctor_checks_n; i++)
		rows[i] = (struct doctor_row){.id = doctor_checks[i].id};
	rows[0].found = mem_printf("state in %s/x", f.dir);
	rows[1].found = mem_strdup("sent tell-nobody");
	buf_init(&out, DOCTOR_REPORT_MAX);
	doctor_report(&f.doctor, "9.9.9", rows, &out);
	expect_in(&out, "dlrun 9.9.9\n", true);
	expect_in(&out, "command = \"(hidden)\" (~/w/dlrun.yaml:2)\n", true);
	expect_in(&out, "{\"PLAIN\":\"(hidden)\"}", true);
	expect_in(&out, "lab: local, configured", true);
	expect_in(&out, "ok home: state in ~/x\n", true);
	expect_in(&out, "sent (hidden)\n", true);
	expect_in(&out, "## Libraries\n\nlib", true);
	expect_in(&out, "## Last runs\n\nnone\n", true);
	expect_in(&out, "tell-nobody", false);
	expect_in(&out, "never-shown", false);
	expect_in(&out, "s3cret-word", false);
	expect_in(&out, f.dir, false);
	free(rows[0].found);
	free(rows[1].found);
	teardown(&f);
}

/* Neither directories nor, in one that was removed, a current one. */
static void test_report_without_dirs(void **state)
{
	static const char *const env[] = {"LAB_TOKEN=tell-nobody", NULL};
	AUTO_FREE struct doctor_row *rows = mem_alloc(doctor_checks_n, sizeof(*rows));
	AUTO_ERR struct err error = {0};
	struct session session = {.env.env = env};
	struct doctor doctor = {.session = &session, .error = &error};
	AUTO_BUF struct buf out;

	err_set(&error, E_IO, "HOME is not set");
	for (size_t i = 0; i < doctor_checks_n; i++)
		rows[i] = (struct doctor_row){.id = doctor_checks[i].id};
	buf_init(&out, DOCTOR_REPORT_MAX);
	doctor_report(&doctor, "9.9.9", rows, &out);
	expect_in(&out, "## Last runs\n\nnot known: HOME is not set (io)\n", true);
	session_done(&session);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_table),
		cmocka_unit_test(test_expiry),
		cmocka_unit_test(test_further_rows),
		cmocka_unit_test(test_blame),
		cmocka_unit_test(test_space),
		cmocka_unit_test(test_clock),
		cmocka_unit_test(test_logout),
		cmocka_unit_test(test_home),
		cmocka_unit_test(test_fresh),
		cmocka_unit_test(test_access),
		cmocka_unit_test(test_records),
		cmocka_unit_test(test_damaged_records),
		cmocka_unit_test(test_terminal),
		cmocka_unit_test(test_program),
		cmocka_unit_test(test_config),
		cmocka_unit_test(test_proxy),
		cmocka_unit_test(test_no_registry),
		cmocka_unit_test(test_registry_is_down),
		cmocka_unit_test(test_all),
		cmocka_unit_test(test_bad_workers),
		cmocka_unit_test(test_late_workers),
		cmocka_unit_test(test_no_worker),
		cmocka_unit_test(test_interrupted),
		cmocka_unit_test(test_redact),
		cmocka_unit_test(test_report),
		cmocka_unit_test(test_report_without_dirs),
	};

	return cmocka_run_group_tests_name("doctor", tests, NULL, NULL);
}
