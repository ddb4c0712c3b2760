/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/loop/proc.h"
#include "base/os/env.h"
#include "base/os/os.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/api/credential_impl.h"
#include "kube/api/words.h"

enum {
	LOOK_FIRST_MS = 1,
	LOOK_MAX_MS = 50,
	NOTE_MS = 3000,
	SAID_KEPT = 4096,
	HINT_MAX = 400,
};

/* The read end of a pipe that the plugin writes to. */
struct output {
	struct kube_plugin *plugin;
	int fd; /* -1: at its end, or none */
	struct loop_fd *source;
	struct buf text;
	bool keep_last; /* what is over is dropped at the front */
};

struct kube_plugin {
	const struct kube_credential_options *options;
	const struct kube_exec *exec;
	bool interactive;
	pid_t pid; /* 0: it has ended */
	struct output out, said;
	struct loop_timer *timer, *note_timer;
	int64_t deadline_ms; /* INT64_MAX: none */
	int64_t look_ms;
	kube_plugin_fn *end;
	void *ctx;
};

static void close_output(struct output *output)
{
	loop_remove_fd(output->plugin->options->loop, TAKE(output->source));
	if (output->fd >= 0)
		close(take_fd(&output->fd));
}

/* An interactive plugin runs in our session: kill the process itself, not a group. */
static void kill_it(struct kube_plugin *plugin)
{
	if (plugin->pid <= 0)
		return;
	if (plugin->interactive)
		kill(plugin->pid, SIGKILL);
	else
		kill(-plugin->pid, SIGKILL);
	while (waitpid(plugin->pid, NULL, 0) < 0 && errno == EINTR)
		;
	plugin->pid = 0;
}

void kube_plugin_free(struct kube_plugin *plugin)
{
	if (!plugin)
		return;
	kill_it(plugin);
	close_output(&plugin->out);
	close_output(&plugin->said);
	loop_remove_timer(plugin->options->loop, plugin->timer);
	loop_remove_timer(plugin->options->loop, plugin->note_timer);
	kube_wipe_buf(&plugin->out.text);
	kube_wipe_buf(&plugin->said.text);
	free(plugin);
}

/*
 * Failures
 */

static int fail(struct kube_plugin *plugin, const char *why, struct err *err)
{
	AUTO_ERR struct err fault = {0};

	kill_it(plugin);
	close_output(&plugin->out);
	close_output(&plugin->said);
	kube_plugin_fault(plugin->options->access, why, &fault);
	kube_hint_version(plugin->options->access->context, "does it log in?", &fault);
	kube_plugin_said(plugin->said.text.data, plugin->said.text.len, &fault);
	return plugin->end(plugin->ctx, -ERR_AUTH, NULL, &fault, err);
}

static int fail_late(struct kube_plugin *plugin, struct err *err)
{
	char limit[32];
	AUTO_FREE char *why =
		mem_printf("took longer than %s", duration_text(plugin->options->limit_ms, limit));

	return fail(plugin, why, err);
}

static void add_install_hint(const struct kube_exec *exec, struct err *err)
{
	const char *hint = exec->install_hint;
	AUTO_FREE char *words = kube_words(hint ? hint : "", hint ? strlen(hint) : 0, HINT_MAX);

	if (*words)
		err_hint(err, "%s", words);
	else
		err_hint(err, "install %s, or correct exec: in %s", exec->command, exec->file);
}

/*
 * Output of the plugin
 */

/* 1: there may be more, 0: its end, -1: too much. */
static int read_output(struct output *output)
{
	char chunk[4096];

	for (;;) {
		ssize_t n = read(output->fd, chunk, sizeof(chunk));

		if (n < 0 && errno == EINTR)
			continue;
		size_t over = n > 0 ? output->text.len + (size_t)n : 0;
		if (output->keep_last && over > output->text.max)
			buf_consume(&output->text, over - output->text.max);
		if (n > 0)
			buf_add(&output->text, chunk, (size_t)n);
		explicit_bzero(chunk, sizeof(chunk));
		if (output->text.full)
			return -1;
		if (n <= 0)
			return n < 0 && errno == EAGAIN;
	}
}

static short wants_output(void *ctx)
{
	const struct output *output = ctx;

	return output->fd >= 0 ? POLLIN : 0;
}

static int fail_much(struct kube_plugin *plugin, struct err *err)
{
	return fail(plugin, "printed more than 1 MiB", err);
}

/* Handle the exit of the plugin. A child that it left may hold its output open, which is not waited
 * for. */
static int end(struct kube_plugin *plugin, int status, struct err *err)
{
	AUTO_KUBE_MADE struct kube_made made = {0};
	AUTO_ERR struct err fault = {0};

	plugin->pid = 0;
	if (plugin->said.fd >= 0)
		read_output(&plugin->said);
	if (plugin->out.fd >= 0 && read_output(&plugin->out) < 0)
		return fail_much(plugin, err);
	if (status != 0) {
		char name[8];
		AUTO_FREE char *why = status > 128
					      ? mem_printf("was killed by SIG%s",
							proc_signal_name(status - 128, name))
					      : mem_printf("failed with exit status %d", status);
		return fail(plugin, why, err);
	}
	close_output(&plugin->out);
	close_output(&plugin->said);
	const struct kube_access *access = plugin->options->access;
	int r = kube_plugin_parse(
		plugin->out.text.data, plugin->out.text.len, access, &made, &fault);
	if (r < 0)
		kube_hint_version(access->context, "does it log in?", &fault);
	return plugin->end(plugin->ctx, r, &made, &fault, err);
}

static int exit_status(int status)
{
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int look(void *ctx, struct err *err);

static void look_later(struct kube_plugin *plugin)
{
	int64_t at_ms = clock_ms() + plugin->look_ms;

	plugin->look_ms *= 2;
	if (plugin->look_ms > LOOK_MAX_MS)
		plugin->look_ms = LOOK_MAX_MS;
	if (at_ms > plugin->deadline_ms)
		at_ms = plugin->deadline_ms;
	plugin->timer = loop_add_timer(plugin->options->loop, at_ms, look, plugin);
}

static int look(void *ctx, struct err *err)
{
	struct kube_plugin *plugin = ctx;
	int status = 0;

	plugin->timer = NULL;
	pid_t r = waitpid(plugin->pid, &status, WNOHANG);
	if (r == plugin->pid)
		return end(plugin, exit_status(status), err);
	/* With SIGCHLD ignored nobody learns how it ended; it is no success. */
	if (r < 0 && errno != EINTR)
		return end(plugin, 127, err);
	if (clock_ms() >= plugin->deadline_ms)
		return fail_late(plugin, err);
	look_later(plugin);
	return 0;
}

static int on_output(void *ctx, short revents, struct err *err)
{
	struct output *output = ctx;
	struct kube_plugin *plugin = output->plugin;

	(void)revents;
	int r = read_output(output);
	if (r < 0)
		return fail_much(plugin, err);
	if (r > 0)
		return 0;
	close_output(output);
	if (output != &plugin->out)
		return 0;
	/* A plugin that has closed its output is about to exit. */
	plugin->look_ms = LOOK_FIRST_MS;
	loop_remove_timer(plugin->options->loop, plugin->timer);
	look_later(plugin);
	return 0;
}

static int note_due(void *ctx, struct err *err)
{
	struct kube_plugin *plugin = ctx;
	AUTO_FREE char *shown = kube_program_shown(plugin->exec);
	AUTO_FREE char *text = mem_printf("waiting for %s, which logs in to the cluster %s", shown,
		plugin->options->access->cluster);

	(void)err;
	plugin->note_timer = NULL;
	plugin->options->note(plugin->options->note_ctx, text);
	return 0;
}

/*
 * The start
 */

static int open_output(
	struct kube_plugin *plugin, struct output *output, size_t max, int *ret_fd, struct err *err)
{
	int fds[2];
	int r = os_pipe(fds, 0);

	if (r < 0)
		return err_set_errno(err, E_KUBE_PLUGIN, -r, "cannot make a pipe");
	output->fd = fds[0];
	*ret_fd = fds[1];
	/* Never moved: wiped as a whole. */
	buf_init(&output->text, max);
	buf_room(&output->text, max);
	if (fcntl(output->fd, F_SETFL, O_NONBLOCK) < 0)
		return err_set_errno(err, E_KUBE_PLUGIN, errno, "cannot prepare a pipe");
	static const struct loop_fd_ops ops = {.prepare = wants_output, .dispatch = on_output};
	output->source = loop_add_fd(plugin->options->loop, output->fd, &ops, output);
	return 0;
}

static void make_words(const struct kube_plugin *plugin, struct strv *argv, struct strv *env)
{
	const struct kube_exec *exec = plugin->exec;
	AUTO_FREE char *info = kube_plugin_info(plugin->options->access, plugin->interactive);
	AUTO_FREE char *pair = mem_printf("KUBERNETES_EXEC_INFO=%s", info);

	strv_add(argv, exec->command);
	for (size_t i = 0; i < exec->args.n; i++)
		strv_add(argv, exec->args.v[i]);
	for (const char *const *at = plugin->options->plugin.env; at && *at; at++)
		strv_add(env, *at);
	for (size_t i = 0; i < exec->env.n; i++)
		env_set(env, exec->env.v[i], false);
	env_set(env, pair, false);
}

static int spawn(struct kube_plugin *plugin, struct err *err)
{
	AUTO_STRV struct strv argv = {0}, env = {0};
	AUTO_FD int out = -1, said = -1;
	int tty_fd = plugin->interactive ? plugin->options->plugin.tty_fd : -1;
	struct proc_spec spec = {.stdin_fd = tty_fd, .stderr_fd = tty_fd};

	make_words(plugin, &argv, &env);
	spec.argv = (const char *const *)argv.v;
	spec.env = (const char *const *)env.v;
	spec.new_session = !plugin->interactive;
	int r = open_output(plugin, &plugin->out, KUBE_PLUGIN_OUT_MAX, &out, err);
	/* The stderr of an interactive plugin is the terminal. */
	if (r == 0 && !plugin->interactive)
		r = open_output(plugin, &plugin->said, SAID_KEPT, &said, err);
	if (r < 0)
		return r;
	spec.stdout_fd = out;
	if (!plugin->interactive)
		spec.stderr_fd = said;
	AUTO_ERR struct err fault = {0};
	if (proc_spawn(&spec, &plugin->pid, &fault) == 0)
		return 0;
	/* A file that is there may lack what it is run by. */
	bool is_missing = str_ends(fault.message, strerror(ENOENT)) && fault.n_evidence == 0;
	AUTO_FREE char *why = is_missing ? mem_strdup("is not installed")
					 : mem_printf("does not start: %s", fault.message);
	kube_plugin_fault(plugin->options->access, why, err);
	for (size_t i = 0; i < fault.n_evidence; i++)
		err_evidence(err, "%s", fault.evidence[i]);
	add_install_hint(plugin->exec, err);
	return -ERR_AUTH;
}

static int check_terminal(const struct kube_plugin *plugin, struct err *err)
{
	if (plugin->exec->interactive != KUBE_EXEC_ALWAYS || plugin->interactive)
		return 0;
	kube_plugin_fault(plugin->options->access,
		"asks its user (interactiveMode: Always), and there is no terminal", err);
	return err_hint(err, "run dlrun in a terminal");
}

int kube_plugin_start(const struct kube_credential_options *options, kube_plugin_fn *end_fn,
	void *ctx, struct kube_plugin **ret, struct err *err)
{
	const struct kube_exec *exec = options->access->exec;
	struct kube_plugin *plugin = mem_alloc(1, sizeof(*plugin));

	*plugin = (struct kube_plugin){.options = options,
		.exec = exec,
		.interactive = exec->interactive != KUBE_EXEC_NEVER && options->plugin.tty_fd >= 0,
		.out = {.plugin = plugin, .fd = -1},
		.said = {.plugin = plugin, .fd = -1, .keep_last = true},
		.look_ms = LOOK_FIRST_MS,
		.end = end_fn,
		.ctx = ctx};
	plugin->deadline_ms = plugin->interactive ? INT64_MAX : clock_deadline(options->limit_ms);
	int r = check_terminal(plugin, err);
	if (r == 0)
		r = spawn(plugin, err);
	if (r < 0) {
		kube_plugin_free(plugin);
		return r;
	}
	if (options->note)
		plugin->note_timer =
			loop_add_timer(options->loop, clock_ms() + NOTE_MS, note_due, plugin);
	look_later(plugin);
	*ret = plugin;
	return 0;
}
