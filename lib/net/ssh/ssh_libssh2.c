/* SPDX-License-Identifier: Apache-2.0 */
#include "net/ssh/ssh_libssh2.h"

#include <string.h>
#include <unistd.h>

#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/ssh/ssh.h"
#include "net/ssh/ssh_libssh2_impl.h"

/*
 * A copy of what is asked for
 */

static const char *const *copy_list(const char *const *list)
{
	struct strv copy = {0};

	for (size_t i = 0; list && list[i]; i++)
		strv_add(&copy, list[i]);
	return (const char *const *)copy.v;
}

static void free_list(const char *const *list)
{
	for (size_t i = 0; list && list[i]; i++)
		free((char *)(uintptr_t)list[i]);
	free((void *)(uintptr_t)list);
}

static void free_string(const char *s)
{
	free((char *)(uintptr_t)s);
}

static void copy_login(struct ssh_libssh2_login *to, const struct ssh_libssh2_login *from)
{
	*to = *from;
	to->name = mem_strdup(from->name);
	to->hostname = mem_strdup(from->hostname);
	to->user = mem_strdup(from->user);
	to->key_alias = mem_strdup(from->key_alias);
	to->agent = mem_strdup(from->agent);
	to->first_command = mem_strdup(from->first_command);
	to->kex = mem_strdup(from->kex);
	to->ciphers = mem_strdup(from->ciphers);
	to->macs = mem_strdup(from->macs);
	to->host_key_types = mem_strdup(from->host_key_types);
	to->user_key_types = mem_strdup(from->user_key_types);
	to->env = copy_list(from->env);
	to->user_known_hosts = copy_list(from->user_known_hosts);
	to->global_known_hosts = copy_list(from->global_known_hosts);
	to->identities = copy_list(from->identities);
	if (to->keepalive_ms <= 0)
		to->keepalive_ms = SSH_KEEPALIVE_MS;
}

static void free_login(struct ssh_libssh2_login *login)
{
	free_string(login->name);
	free_string(login->hostname);
	free_string(login->user);
	free_string(login->key_alias);
	free_string(login->agent);
	free_string(login->first_command);
	free_string(login->kex);
	free_string(login->ciphers);
	free_string(login->macs);
	free_string(login->host_key_types);
	free_string(login->user_key_types);
	free_list(login->env);
	free_list(login->user_known_hosts);
	free_list(login->global_known_hosts);
	free_list(login->identities);
}

/*
 * From the thread to the loop
 */

static struct ssh_say *take_says(struct ssh_libssh2 *ssh)
{
	struct ssh_say *last_first = atomic_exchange(&ssh->says, NULL), *says = NULL;

	while (last_first) {
		struct ssh_say *say = last_first;
		last_first = say->next;
		say->next = says;
		says = say;
	}
	return says;
}

static void tell_says(void *ctx)
{
	struct ssh_libssh2 *ssh = ctx;

	for (struct ssh_say *say = take_says(ssh), *next; say; say = next) {
		next = say->next;
		if (ssh->events.say)
			ssh->events.say(ssh->events.ctx, say->text, say->is_detail);
		free(say->text);
		free(say);
	}
}

void ssh_libssh2_say(struct ssh_libssh2 *ssh, bool is_detail, const char *fmt, ...)
{
	struct ssh_say *say = mem_alloc(1, sizeof(*say));
	va_list args;

	va_start(args, fmt);
	say->text = mem_vprintf(fmt, args);
	va_end(args);
	say->is_detail = is_detail;
	say->next = atomic_load(&ssh->says);
	while (!atomic_compare_exchange_weak(&ssh->says, &say->next, say))
		;
	task_post(ssh->task, tell_says, ssh);
}

struct question {
	struct ssh_libssh2 *ssh;
	const char *text;
	bool secret;
	struct buf *answer;
	int answered;
};

static void put_question(void *ctx, struct task *task)
{
	struct question *question = ctx;
	struct ssh_libssh2_events *events = &question->ssh->events;
	AUTO_ERR struct err fault = {0};

	tell_says(question->ssh);
	int r = events->ask(
		events->ctx, question->text, question->secret, question->answer, &fault);
	question->answered = r;
	task_answer(task, r < 0 ? r : 0, r < 0 ? &fault : NULL);
}

bool ssh_libssh2_can_ask(const struct ssh_libssh2 *ssh)
{
	return ssh->events.ask != NULL;
}

int ssh_libssh2_ask(struct ssh_libssh2 *ssh, const char *question, bool secret, struct buf *answer,
	struct err *err)
{
	struct question asked = {.ssh = ssh, .text = question, .secret = secret, .answer = answer};
	int64_t began = clock_ms();

	if (!ssh->events.ask)
		return 0;
	int r = task_ask(ssh->task, put_question, &asked, err);
	ssh->wait.deadline_ms += clock_ms() - began;
	return r < 0 ? r : asked.answered;
}

void ssh_libssh2_fall_back(struct ssh_libssh2 *ssh, const char *fmt, ...)
{
	va_list args;

	ssh->end = SSH_LIBSSH2_FALLBACK;
	buf_reset(&ssh->why);
	va_start(args, fmt);
	buf_addv(&ssh->why, fmt, args);
	va_end(args);
}

/*
 * The thread
 */

static int resolve(struct ssh_libssh2 *ssh, struct err *err)
{
	struct ssh_libssh2_login login = {0};
	const char *why = "";

	if (!ssh->events.resolve)
		return 0;
	int r = ssh->events.resolve(ssh->events.ctx, ssh->cancel[0], &login, &why, err);
	if (r < 0)
		return r;
	if (r == 0) {
		ssh_libssh2_fall_back(ssh, "%s", why);
		return err_set(err, E_SSH_LOGIN, "libssh2 cannot log in there");
	}
	copy_login(&ssh->login, &login);
	return 0;
}

static int work(struct task *task, void *ctx, struct err *err)
{
	int r = resolve(ctx, err);

	(void)task;
	return r < 0 ? r : ssh_libssh2_work(ctx, err);
}

static int work_done(void *ctx, int r, struct err *fault, struct err *err)
{
	struct ssh_libssh2 *ssh = ctx;

	tell_says(ssh);
	if (r == 0)
		ssh_turn_begin(ssh);
	else if (ssh->end == SSH_LIBSSH2_READY)
		ssh->end = SSH_LIBSSH2_FAILED;
	/* The error of a fallback is for where there is nobody to fall back on. */
	return ssh->events.done(ssh->events.ctx, ssh->end, ssh->why.data, fault, err);
}

struct ssh_libssh2 *ssh_libssh2_start(struct loop *loop, const struct ssh_libssh2_login *login,
	const struct ssh_libssh2_events *events)
{
	struct ssh_libssh2 *ssh = mem_alloc(1, sizeof(*ssh));

	ssh->loop = loop;
	ssh->events = *events;
	ssh->fd = -1;
	ssh->end = SSH_LIBSSH2_FAILED;
	if (login) {
		copy_login(&ssh->login, login);
		ssh->events.resolve = NULL;
	}
	buf_init(&ssh->why, 1024);
	buf_init(&ssh->tried, 1024);
	buf_init(&ssh->trusted, SSH_ALLOC_MAX);
	BUG_ON(os_pipe(ssh->cancel, 0) < 0);
	ssh->wait.cancel = ssh->cancel[0];
	task_start(loop, work, work_done, ssh, &ssh->task);
	return ssh;
}

void ssh_libssh2_free(struct ssh_libssh2 *ssh)
{
	if (!ssh)
		return;
	close(ssh->cancel[1]);
	task_free(ssh->task);
	close(ssh->cancel[0]);
	ssh_turn_end(ssh);
	ssh_session_end(ssh);
	ssh_known_done(&ssh->known);
	ssh->events.say = NULL;
	tell_says(ssh);
	free_login(&ssh->login);
	buf_done(&ssh->why);
	buf_done(&ssh->tried);
	buf_done(&ssh->trusted);
	free(ssh->lost_why);
	err_done(&ssh->fault);
	free(ssh);
}

bool ssh_libssh2_is_stuck(const struct ssh_libssh2 *ssh)
{
	return ssh->is_stuck;
}

bool ssh_libssh2_is_lost(const struct ssh_libssh2 *ssh)
{
	return err_is_set(&ssh->fault);
}
