/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/ssh/ssh_openssh_impl.h"

enum {
	HELD_MAX = 16 << 10, /* of stderr before the login; more is dropped */
	LOOK_MIN_MS = 1,
	LOOK_MAX_MS = 32,
	EXIT_OWN = 255, /* the client's own failure, or the command's status */
};

/* How the client ended: known when it has. */
enum verdict { RUNS, ENDED, FAILED };

struct openssh_channel {
	struct channel channel;
	struct ssh_openssh *ssh;
	struct channel *child;
	pid_t pid;
	char *log;
	/* Until it has logged in, what comes by stderr is a proxy's, not the command's. */
	bool is_open;
	struct buf held;
	size_t held_at;
	bool child_ended[2], flow_ended[2];
	struct loop_timer *timer;
	int64_t pause_ms;
	enum verdict verdict;
	struct channel_exit end;
	struct err fault;
};

static struct openssh_channel *self_of(struct channel *channel)
{
	return (struct openssh_channel *)channel;
}

static int tell(void *ctx, struct err *err)
{
	struct openssh_channel *self = ctx;

	/* The channel may be freed in there. */
	return self->channel.events.ready(self->channel.events.ctx, err);
}

static int look_again(void *ctx, struct err *err)
{
	struct openssh_channel *self = ctx;

	self->timer = NULL;
	return tell(self, err);
}

static void look_later(struct openssh_channel *self)
{
	if (self->timer)
		return;
	self->timer = loop_add_timer(
		self->ssh->options.loop, clock_ms() + self->pause_ms, look_again, self);
	if (self->pause_ms < LOOK_MAX_MS)
		self->pause_ms *= 2;
}

/*
 * The verdict
 */

static void set_exit(struct openssh_channel *self, int code, const char *signal_name)
{
	self->verdict = ENDED;
	self->end.known = true;
	self->end.code = code;
	snprintf(self->end.signal, sizeof(self->end.signal), "%s", signal_name);
}

static ssize_t read_child(struct openssh_channel *self, enum channel_flow flow, void *out,
	size_t len, struct err *err)
{
	if (self->child_ended[flow])
		return 0;
	ssize_t n = self->child->ops->read(self->child, flow, out, len, err);
	self->child_ended[flow] = n == 0;
	return n;
}

/* Messages of a proxy may not have been read yet. */
static void hold_rest(struct openssh_channel *self)
{
	char chunk[1024];
	ssize_t n;

	while ((n = read_child(self, CHANNEL_ERR, chunk, sizeof(chunk), NULL)) > 0)
		buf_add(&self->held, chunk, (size_t)n);
}

static void set_fault(struct openssh_channel *self, const char *text)
{
	self->verdict = FAILED;
	if (!self->is_open) {
		AUTO_FREE char *proxy = ssh_openssh_proxy_log(self->log);
		hold_rest(self);
		ssh_openssh_read_log(proxy, &self->held);
	}
	ssh_openssh_fault(self->ssh, text, self->is_open ? NULL : self->held.data, &self->fault);
}

static void read_words(struct openssh_channel *self, struct buf *text, struct ssh_words *ret)
{
	buf_init(text, SSH_WORDS_MAX);
	ssh_openssh_read_log(self->log, text);
	ssh_words_read(text->data, text->len, ret);
	self->is_open |= ret->has_open;
}

/* 255 is the command's own status where the client, or its master, has been told one. A command
 * that a signal ended has none, and a connection that was lost has none. */
static void judge_255(struct openssh_channel *self)
{
	const struct ssh_openssh *ssh = self->ssh;
	AUTO_BUF struct buf text = {0};
	struct ssh_words words;

	read_words(self, &text, &words);
	if (words.has_exit_status)
		set_exit(self, EXIT_OWN, "");
	else if (words.has_exit_signal)
		set_exit(self, 0, "?");
	else if (words.master_is_gone && ssh_openssh_master_answers(ssh))
		set_exit(self, 0, "?");
	else
		set_fault(self, text.data);
}

/* An old client tells nothing of exits: only its complaints, if there are any. */
static void judge_255_blind(struct openssh_channel *self)
{
	AUTO_BUF struct buf text = {0};
	struct ssh_words words;

	read_words(self, &text, &words);
	set_fault(self, text.data);
	bool is_silent = self->fault.n_evidence == 0 && self->is_open;
	if (!is_silent)
		return;
	err_clear(&self->fault);
	set_exit(self, EXIT_OWN, "");
}

/* The channel of the child waits for it once both of its flows have ended. */
static bool has_ended(struct openssh_channel *self, int *ret_code, bool *ret_signalled)
{
	struct channel_exit end = {0};

	if (!self->child_ended[CHANNEL_OUT] || !self->child_ended[CHANNEL_ERR])
		return ssh_openssh_has_ended(self->pid, ret_code, ret_signalled);
	if (self->child->ops->wait(self->child, &end, NULL) == 0)
		return false;
	*ret_signalled = !end.known || *end.signal;
	*ret_code = end.code;
	return true;
}

static bool judge(struct openssh_channel *self)
{
	int code = 0;
	bool signalled = false;

	if (self->verdict != RUNS)
		return true;
	if (!has_ended(self, &code, &signalled))
		return false;
	if (signalled) {
		self->verdict = FAILED;
		err_set(&self->fault, E_SSH_LOST, "the ssh client for %s was killed",
			self->ssh->host);
	} else if (code != EXIT_OWN) {
		set_exit(self, code, "");
	} else if (self->ssh->options.resolved->has_log_verbose) {
		judge_255(self);
	} else {
		judge_255_blind(self);
	}
	return true;
}

/*
 * Reading
 */

static bool look_for_login(struct openssh_channel *self)
{
	AUTO_BUF struct buf text = {0};
	struct ssh_words words;

	if (self->is_open)
		return true;
	buf_init(&text, SSH_WORDS_MAX);
	ssh_openssh_read_log(self->log, &text);
	ssh_words_read(text.data, text.len, &words);
	self->is_open = words.has_open;
	/* The held output is a proxy's: drop it. */
	if (self->is_open)
		self->held_at = self->held.len;
	return self->is_open;
}

/* The end of a flow, but of a client that has failed, which it is told in a moment: then that. */
static ssize_t end_of_flow(struct openssh_channel *self, enum channel_flow flow, struct err *err)
{
	if (!judge(self) && self->pause_ms < LOOK_MAX_MS) {
		look_later(self);
		return CHANNEL_AGAIN;
	}
	if (self->verdict == FAILED)
		return err_copy(err, &self->fault);
	self->flow_ended[flow] = true;
	return 0;
}

/* Whether nothing more comes now: hold what there is. */
static ssize_t hold_errors(struct openssh_channel *self, void *out, size_t len, struct err *err)
{
	ssize_t n;

	while ((n = read_child(self, CHANNEL_ERR, out, len, err)) > 0) {
		if (look_for_login(self))
			return n;
		buf_add(&self->held, out, (size_t)n);
	}
	return n;
}

/* Of a client that ended well without a word about its login what was held is the command's. */
static size_t give_held(struct openssh_channel *self, void *out, size_t len)
{
	if (self->held_at == 0)
		look_for_login(self);
	size_t n = self->held.len - self->held_at;
	if (n > len)
		n = len;
	memcpy(out, self->held.data + self->held_at, n);
	self->held_at += n;
	return n;
}

static ssize_t read_errors(struct openssh_channel *self, void *out, size_t len, struct err *err)
{
	ssize_t n = self->is_open ? read_child(self, CHANNEL_ERR, out, len, err)
				  : hold_errors(self, out, len, err);

	if (n != 0)
		return n;
	n = end_of_flow(self, CHANNEL_ERR, err);
	if (n != 0)
		return n;
	size_t given = self->verdict == ENDED ? give_held(self, out, len) : 0;
	self->flow_ended[CHANNEL_ERR] = given == 0;
	return (ssize_t)given;
}

static ssize_t openssh_read(
	struct channel *channel, enum channel_flow flow, void *out, size_t len, struct err *err)
{
	struct openssh_channel *self = self_of(channel);

	if (self->verdict == FAILED)
		return err_copy(err, &self->fault);
	if (self->flow_ended[flow])
		return 0;
	if (flow == CHANNEL_ERR)
		return read_errors(self, out, len, err);
	ssize_t n = read_child(self, flow, out, len, err);
	return n != 0 ? n : end_of_flow(self, flow, err);
}

/*
 * The rest
 */

static ssize_t openssh_write(struct channel *channel, const void *data, size_t len, struct err *err)
{
	struct openssh_channel *self = self_of(channel);

	if (self->verdict == FAILED)
		return err_copy(err, &self->fault);
	return self->child->ops->write(self->child, data, len, err);
}

static int openssh_send_eof(struct channel *channel, struct err *err)
{
	struct openssh_channel *self = self_of(channel);

	if (self->verdict == FAILED)
		return err_copy(err, &self->fault);
	return self->child->ops->send_eof(self->child, err);
}

static int openssh_wait(struct channel *channel, struct channel_exit *ret, struct err *err)
{
	struct openssh_channel *self = self_of(channel);

	if (self->verdict == FAILED)
		return err_copy(err, &self->fault);
	if (!self->flow_ended[CHANNEL_OUT] || !self->flow_ended[CHANNEL_ERR])
		return 0;
	if (!judge(self)) {
		look_later(self);
		return 0;
	}
	if (self->verdict == FAILED)
		return err_copy(err, &self->fault);
	*ret = self->end;
	return 1;
}

static void openssh_resize(struct channel *channel, unsigned columns, unsigned rows)
{
	struct openssh_channel *self = self_of(channel);

	self->child->ops->resize(self->child, columns, rows);
}

static void openssh_free(struct channel *channel)
{
	struct openssh_channel *self = self_of(channel);

	if (!ssh_openssh_forget_login(self->ssh, self))
		channel_child_alone(self->child);
	loop_remove_timer(self->ssh->options.loop, self->timer);
	channel_free(self->child);
	ssh_openssh_forget_log(&self->log);
	buf_done(&self->held);
	err_done(&self->fault);
	free(self);
}

static const struct channel_ops openssh_ops = {
	.read = openssh_read,
	.write = openssh_write,
	.send_eof = openssh_send_eof,
	.wait = openssh_wait,
	.resize = openssh_resize,
	.free = openssh_free,
};

void ssh_openssh_fail(struct openssh_channel *channel, const struct err *fault)
{
	if (channel->verdict != RUNS)
		return;
	channel->verdict = FAILED;
	err_copy(&channel->fault, fault);
	look_later(channel);
}

struct channel *ssh_openssh_channel(struct ssh_openssh *ssh, struct openssh_client *client,
	const struct ssh_openssh_request *request)
{
	struct openssh_channel *self = mem_alloc(1, sizeof(*self));

	self->channel = (struct channel){.ops = &openssh_ops, .events = *request->events};
	self->ssh = ssh;
	self->pid = client->child.pid;
	self->log = TAKE(client->log);
	self->is_open = !client->logs_in;
	self->pause_ms = LOOK_MIN_MS;
	buf_init(&self->held, HELD_MAX);
	self->child = channel_of_child(
		ssh->options.loop, &client->child, &(struct channel_events){tell, self});
	return &self->channel;
}
