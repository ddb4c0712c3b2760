/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/auth/credential_helper.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/data/json.h"
#include "base/loop/proc.h"
#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "oci/auth/credential_secret.h"

/*
 * Answers
 */

enum { WORDS_MAX = 200, WORD_MAX = 40 };

static bool has_ignoring_case(const char *text, const char *word)
{
	return strcasestr(text, word) != NULL;
}

/* Short words only, and nothing that looks like an answer: what a failing helper prints may be the
 * secret. */
static bool may_show(const char *text)
{
	static const char *const bad[] = {"{", "secret", "password", "bearer"};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		if (has_ignoring_case(text, bad[i]))
			return false;
	while (*text) {
		size_t len = strcspn(text, " \t\r\n");

		if (len > WORD_MAX)
			return false;
		text += len + (text[len] != '\0');
	}
	return true;
}

/* How many bytes of whole characters fit. */
static int cut_words(const char *text)
{
	size_t len = strlen(text), at = 0, n;

	while ((n = str_utf8_len(text + at, len - at)) > 0 && at + n <= WORDS_MAX)
		at += n;
	return (int)at;
}

static void add_words(const char *text, struct err *err)
{
	AUTO_BUF struct buf shown = {0};
	size_t len = strcspn(text, "\r\n");

	if (len == 0 || !may_show(text))
		return;
	buf_init(&shown, 4 * CREDENTIAL_HELPER_OUT_MAX);
	str_escape(&shown, text, len);
	err_evidence(err, "it said: %.*s", cut_words(shown.data), shown.data);
}

static int fail_status(const char *text, int status, const char *name, struct err *err)
{
	char signal[8];

	if (status > 128)
		err_set(err, E_REGISTRY_HELPER, "docker-credential-%s was killed by SIG%s", name,
			proc_signal_name(status - 128, signal));
	else
		err_set(err, E_REGISTRY_HELPER, "docker-credential-%s failed with exit status %d",
			name, status);
	add_words(text, err);
	return -(int)err_info(E_REGISTRY_HELPER)->code;
}

static int fail_answer(const char *name, const char *why, struct err *err)
{
	return err_set(err, E_REGISTRY_HELPER, "docker-credential-%s %s", name, why);
}

/* The user name "<token>" says what the secret is. */
static int take_login(const char *user, const char *secret, const char *name,
	struct credential *ret, struct err *err)
{
	AUTO_CREDENTIAL struct credential login = {0};
	const char *why = NULL;

	if (strlen(user) > CREDENTIAL_SECRET_MAX || strlen(secret) > CREDENTIAL_SECRET_MAX)
		return fail_answer(name, "printed more than dlrun accepts", err);
	if (!*user && !*secret)
		return 0;
	if (strcmp(user, "<token>") == 0) {
		login.identity_token = mem_strdup(secret);
	} else {
		login.user = mem_strdup(user);
		login.password = mem_strdup(secret);
	}
	if (credential_check(&login, &why) < 0)
		return fail_answer(name, "printed a user name with a colon", err);
	login.origin = mem_printf("docker-credential-%s", name);
	*ret = login;
	login = (struct credential){0};
	return 1;
}

int credential_helper_parse(const char *text, size_t len, int exit_status, const char *helper,
	struct credential *ret, struct err *err)
{
	AUTO_SECRET char *words = mem_strndup(text, len);
	AUTO_SECRET_JSON struct json *root = NULL;

	/* Some helpers succeed with these words. */
	if (str_starts(
		    words + strspn(words, " \t\r\n"), "credentials not found in native keychain"))
		return 0;
	if (exit_status != 0)
		return fail_status(words, exit_status, helper, err);
	if (json_parse(text, len, CREDENTIAL_HELPER_OUT_MAX, "the answer", &root, NULL) < 0)
		return fail_answer(helper, "printed something else than a login", err);
	const char *user = json_get_str(root, "Username");
	const char *secret = json_get_str(root, "Secret");
	if (!user || !secret)
		return fail_answer(helper, "printed no Username and Secret", err);
	return take_login(user, secret, helper, ret, err);
}

/*
 * The process
 */

/* How long to wait between two looks whether it has ended; each is twice the one before. */
enum { LOOK_FIRST_MS = 1, LOOK_MAX_MS = 100 };

struct helper {
	struct loop *loop;
	char *name;
	pid_t pid; /* 0: waited for */
	int fd;
	struct loop_fd *source;
	struct loop_timer *timer;
	int64_t limit_ms, deadline_ms, look_ms;
	struct buf out;
	helper_end_fn *end;
	void *ctx;
};

static void kill_group(struct helper *helper)
{
	if (helper->pid <= 0)
		return;
	kill(-helper->pid, SIGKILL);
	while (waitpid(helper->pid, NULL, 0) < 0 && errno == EINTR)
		;
	helper->pid = 0;
}

static void close_output(struct helper *helper)
{
	loop_remove_fd(helper->loop, TAKE(helper->source));
	if (helper->fd >= 0)
		close(take_fd(&helper->fd));
}

void helper_free(struct helper *helper)
{
	if (!helper)
		return;
	kill_group(helper);
	close_output(helper);
	loop_remove_timer(helper->loop, helper->timer);
	secret_buf_done(&helper->out);
	free(helper->name);
	free(helper);
}

static int fail(struct helper *helper, const char *why, struct err *err)
{
	AUTO_ERR struct err fault = {0};

	kill_group(helper);
	close_output(helper);
	int r = fail_answer(helper->name, why, &fault);
	return helper->end(helper->ctx, r, NULL, &fault, err);
}

static int fail_late(struct helper *helper, struct err *err)
{
	char limit[32];
	AUTO_FREE char *why =
		mem_printf("took longer than %s", duration_text(helper->limit_ms, limit));

	return fail(helper, why, err);
}

/* 1: there may be more, 0: its end, -1: too much. */
static int read_output(struct helper *helper)
{
	char chunk[4096];

	for (;;) {
		ssize_t n = read(helper->fd, chunk, sizeof(chunk));

		if (n < 0 && errno == EINTR)
			continue;
		if (n > 0)
			buf_add(&helper->out, chunk, (size_t)n);
		secret_wipe(chunk, sizeof(chunk));
		if (helper->out.full)
			return -1;
		if (n <= 0)
			return n < 0 && errno == EAGAIN;
	}
}

static int exit_status(int status)
{
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* The helper has ended. Do not wait for a child that it left and that may hold its output open. */
static int end(struct helper *helper, int status, struct err *err)
{
	AUTO_CREDENTIAL struct credential login = {0};
	AUTO_ERR struct err fault = {0};

	helper->pid = 0;
	if (helper->fd >= 0 && read_output(helper) < 0)
		return fail(helper, "printed more than dlrun accepts", err);
	close_output(helper);
	int r = credential_helper_parse(
		helper->out.data, helper->out.len, status, helper->name, &login, &fault);
	return helper->end(helper->ctx, r, &login, &fault, err);
}

static int look(void *ctx, struct err *err);

static void look_later(struct helper *helper)
{
	int64_t at_ms = clock_ms() + helper->look_ms;

	helper->look_ms *= 2;
	if (helper->look_ms > LOOK_MAX_MS)
		helper->look_ms = LOOK_MAX_MS;
	if (at_ms > helper->deadline_ms)
		at_ms = helper->deadline_ms;
	helper->timer = loop_add_timer(helper->loop, at_ms, look, helper);
}

static int look(void *ctx, struct err *err)
{
	struct helper *helper = ctx;
	int status = 0;

	helper->timer = NULL;
	pid_t r = waitpid(helper->pid, &status, WNOHANG);
	if (r == helper->pid)
		return end(helper, exit_status(status), err);
	/* With SIGCHLD ignored nobody learns how it ended; it is no success. */
	if (r < 0 && errno != EINTR)
		return end(helper, 127, err);
	if (clock_ms() >= helper->deadline_ms)
		return fail_late(helper, err);
	look_later(helper);
	return 0;
}

static short wants_output(void *ctx)
{
	const struct helper *helper = ctx;

	return helper->fd >= 0 ? POLLIN : 0;
}

static int on_output(void *ctx, short revents, struct err *err)
{
	struct helper *helper = ctx;

	(void)revents;
	int r = read_output(helper);
	if (r < 0)
		return fail(helper, "printed more than dlrun accepts", err);
	if (r > 0)
		return 0;
	/* A helper that has closed its output is about to end. */
	close_output(helper);
	helper->look_ms = LOOK_FIRST_MS;
	loop_remove_timer(helper->loop, helper->timer);
	look_later(helper);
	return 0;
}

/* A pipe that the key waits in, so that a helper that reads nothing stops nobody. */
static int make_input(const char *key, int *ret_fd, struct err *err)
{
	AUTO_FREE char *line = mem_printf("%s\n", key);
	int fds[2];
	int r = os_pipe(fds, 0);

	if (r < 0)
		return err_set_errno(err, E_REGISTRY_HELPER, -r, "cannot make a pipe");
	r = fcntl(fds[1], F_SETFL, O_NONBLOCK) < 0 ? -1 : 0;
	if (r == 0 && write(fds[1], line, strlen(line)) != (ssize_t)strlen(line))
		r = -1;
	close(fds[1]);
	if (r == 0) {
		*ret_fd = fds[0];
		return 0;
	}
	close(fds[0]);
	return err_set(err, E_REGISTRY_HELPER, "cannot pass the registry's name on to a helper");
}

static int spawn(struct helper *helper, const struct helper_spec *what, struct err *err)
{
	const char *argv[] = {what->program, "get", NULL};
	struct proc_spec spec = {
		.argv = argv, .env = what->env, .stderr_fd = -1, .new_session = true};
	AUTO_FD int input = -1;
	int fds[2];

	int r = make_input(what->key, &input, err);
	if (r < 0)
		return r;
	r = os_pipe(fds, 0);
	if (r < 0)
		return err_set_errno(err, E_REGISTRY_HELPER, -r, "cannot make a pipe");
	AUTO_FD int output = fds[1];
	helper->fd = fds[0];
	if (fcntl(helper->fd, F_SETFL, O_NONBLOCK) < 0)
		return err_set_errno(err, E_REGISTRY_HELPER, errno, "cannot prepare a pipe");
	spec.stdin_fd = input;
	spec.stdout_fd = output;
	AUTO_ERR struct err fault = {0};
	if (proc_spawn(&spec, &helper->pid, &fault) < 0)
		return err_set(err, E_REGISTRY_HELPER, "docker-credential-%s: %s", helper->name,
			fault.message);
	return 0;
}

int helper_start(struct loop *loop, const struct helper_spec *spec, helper_end_fn *end_fn,
	void *ctx, struct helper **ret, struct err *err)
{
	struct helper *helper = mem_alloc(1, sizeof(*helper));

	*helper = (struct helper){.loop = loop,
		.name = mem_strdup(spec->name),
		.fd = -1,
		.limit_ms = spec->limit_ms,
		.deadline_ms = clock_deadline(spec->limit_ms),
		.look_ms = LOOK_FIRST_MS,
		.end = end_fn,
		.ctx = ctx};
	buf_init(&helper->out, CREDENTIAL_HELPER_OUT_MAX);
	buf_room(&helper->out, CREDENTIAL_HELPER_OUT_MAX); /* never moved: wiped as a whole */
	int r = spawn(helper, spec, err);
	if (r < 0) {
		helper_free(helper);
		return r;
	}
	static const struct loop_fd_ops ops = {.prepare = wants_output, .dispatch = on_output};
	helper->source = loop_add_fd(loop, helper->fd, &ops, helper);
	look_later(helper);
	*ret = helper;
	return 0;
}
