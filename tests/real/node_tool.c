/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A node over the streams of any command, without a run of dlrun's:
 *
 *	node_tool [--root DIR] OPENER... -- VERB ...
 *
 * For each conversation OPENER is started with the conversation's command as its last word: `sh
 * -c`, `ssh HOST`, `pod_tool exec KUBECONFIG NAMESPACE POD CONTAINER -i -- sh -c`. The first `--`
 * that a verb follows ends it.
 *
 *	hello                           what is known of the node, "key value" each
 * run [--layer TGZ] RUN CMD...    begins it in a tree of that layer (or an empty one), follows
 *	                                its log on stdout and exits as it does
 *	log RUN                         follows it to its end
 *	state RUN                       the state, then key=value each
 *	cancel RUN
 *	exec RUN CMD...                 with stdin, stdout and stderr; exits as it does
 *	get RUN PATH                    one of the results on stdout
 *
 * RUN is an id, its attempt is 1. Notices are on stderr. A failure is told as "error: ID: MESSAGE"
 * with evidence, and exits with 125.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/loop/proc.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/digest.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/stream/channel.h"
#include "node/node.h"

enum { TEXT_MAX = 1 << 20, LAYER_MAX = 64 << 20, TIMEOUT_MS = 60 * 1000, SIGNALED = 128 };

struct tool {
	struct loop *loop;
	struct node *node;
	char **opener;
	size_t n_opener;
};

static int fail(const struct err *err)
{
	fprintf(stderr, "error: %s: %s\n", err_info(err->id)->name, err->message);
	for (size_t i = 0; i < err->n_evidence; i++)
		fprintf(stderr, "  %s\n", err->evidence[i]);
	return 125;
}

static struct channel *open_conversation(void *ctx, const char *command,
	const struct channel_pty *pty, const struct channel_events *events)
{
	const struct tool *tool = ctx;
	AUTO_STRV struct strv argv = {0};
	AUTO_ERR struct err err = {0};
	struct child child = {0};

	(void)pty;
	for (size_t i = 0; i < tool->n_opener; i++)
		strv_add(&argv, tool->opener[i]);
	strv_add(&argv, command);
	if (child_start(&(struct child_spec){.argv = (const char *const *)argv.v}, &child, &err) <
		0)
		exit(fail(&err));
	return channel_of_child(tool->loop, &child, events);
}

/*
 * Operations, one after the other
 */

struct waited {
	struct tool *tool;
	struct err *err;
	int status;
};

static int on_done(void *ctx, int status, struct err *error, struct err *err)
{
	struct waited *waited = ctx;

	(void)err;
	waited->status = status;
	err_move(waited->err, error);
	loop_stop(waited->tool->loop);
	return 0;
}

static int wait_for(struct waited *waited)
{
	int r = loop_run(waited->tool->loop, waited->err);

	return r < 0 ? r : waited->status;
}

static int query_state(
	struct tool *tool, const char *run, struct node_attempts *ret, struct err *err)
{
	struct waited waited = {.tool = tool, .err = err};
	AUTO_STRV struct strv names = {0};

	strv_addf(&names, "%s/1", run);
	node_state(tool->node, &names, ret, on_done, &waited);
	return wait_for(&waited);
}

/*
 * hello
 */

static int handshake(struct tool *tool, char **words, struct err *err)
{
	const struct node_facts *facts;
	struct waited waited = {.tool = tool, .err = err};

	(void)words;
	node_handshake(tool->node, &facts, on_done, &waited);
	int r = wait_for(&waited);
	if (r < 0)
		return r;
	printf("host %s\nroot %s\nlocal %s\nhome %s\nsystem %s\nmachine %s\nlaunch %s\nshell %s\n",
		facts->host, facts->root, facts->local, facts->home, facts->system, facts->machine,
		facts->launch, facts->shell);
	printf("uid %u\ncpus %u\nmemory %" PRIu64 "\nfree %" PRIu64 "\n", facts->uid, facts->cpus,
		facts->memory_bytes, facts->free_bytes);
	for (size_t i = 0; i < facts->missing.n; i++)
		printf("missing %s\n", facts->missing.v[i]);
	return 0;
}

/*
 * run, log
 */

static int on_data(
	void *ctx, uint64_t offset, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	uint64_t *next = ctx;

	(void)time_ms;
	if (offset != *next)
		return err_set(err, E_BUG, "%" PRIu64 " comes behind %" PRIu64, offset, *next);
	*next += len;
	return fs_write_fd(STDOUT_FILENO, "stdout", data, len, err);
}

static void on_notice(void *ctx, const char *text)
{
	(void)ctx;
	fprintf(stderr, "%s\n", text);
}

static int follow(struct tool *tool, char **words, struct err *err)
{
	uint64_t next = 0;
	struct waited waited = {.tool = tool, .err = err};
	const struct node_log_request request = {.run = words[0],
		.attempt = 1,
		.tail_lines = -1,
		.follow = true,
		.timeout_ms = TIMEOUT_MS,
		.events = {.data = on_data, .notice = on_notice, .ctx = &next}};

	node_log(tool->node, &request, on_done, &waited);
	return wait_for(&waited);
}

static int open_layer(void *ctx, struct err *err)
{
	int fd = open(ctx, O_RDONLY | O_CLOEXEC);

	return fd < 0 ? fs_error(err, errno, "cannot open %s", (const char *)ctx) : fd;
}

static int read_layer(
	char *path, char hex[static SHA256_HEX_SIZE], struct node_layer *ret, struct err *err)
{
	AUTO_BUF struct buf data = {0};
	uint8_t sha256[SHA256_SIZE];
	int r = fs_read(path, LAYER_MAX, &data, NULL, err);

	if (r < 0)
		return r;
	digest_sha256(data.data, data.len, sha256);
	hex_encode(sha256, sizeof(sha256), hex);
	*ret = (struct node_layer){
		.hex = hex, .codec = "gzip", .size = data.len, .open = open_layer, .ctx = path};
	return 0;
}

static void write_job(const char *run, char **command, struct buf *out)
{
	buf_init(out, TEXT_MAX);
	buf_addf(out,
		"j_run=%s\nj_attempt=1\nj_cwd=.\nj_shell=0\nj_timeout_ms=0\nj_grace_ms=2000\n"
		"j_retries=0\nj_gpus=0\nj_rank=0\nj_ranks=1\nj_env() { :; }\nj_defaults() { :; }\n"
		"j_data() { :; }\nj_outputs() { :; }\nj_command() {\nset_command",
		run);
	for (; *command; command++) {
		buf_addc(out, ' ');
		str_shell_quote(out, *command);
	}
	buf_adds(out, "\n}\n");
}

static int submit(struct tool *tool, char *layer_path, char **words, struct err *err)
{
	AUTO_BUF struct buf job = {0};
	char hex[SHA256_HEX_SIZE];
	struct node_layer layer;
	struct node_submitted submitted;
	struct waited waited = {.tool = tool, .err = err};

	write_job(words[0], words + 1, &job);
	int r = layer_path ? read_layer(layer_path, hex, &layer, err) : 0;
	if (r < 0)
		return r;
	const struct node_submit request = {.run = words[0],
		.attempt = 1,
		.job = job.data,
		.layers = &layer,
		.n_layers = layer_path != NULL};
	node_submit(tool->node, &request, &submitted, on_done, &waited);
	return wait_for(&waited);
}

static int run(struct tool *tool, char **words, struct err *err)
{
	struct node_attempts attempts = {0};
	char *layer = NULL;

	if (words[1] && str_eq(words[0], "--layer")) {
		layer = words[1];
		words += 2;
	}
	if (!words[0] || !words[1])
		return err_set(err, E_USAGE, "run: a run and a command are needed");
	int r = submit(tool, layer, words, err);
	if (r == 0)
		r = follow(tool, words, err);
	if (r == 0)
		r = query_state(tool, words[0], &attempts, err);
	if (r == 0)
		r = (int)node_attempt_int(&attempts.v[0], "code", 124);
	node_attempts_done(&attempts);
	return r;
}

/*
 * state, cancel
 */

static int state(struct tool *tool, char **words, struct err *err)
{
	struct node_attempts attempts = {0};
	int r = query_state(tool, words[0], &attempts, err);

	if (r == 0) {
		printf("%s\n", attempts.v[0].state);
		vec_foreach (struct node_field, field, &attempts.v[0].fields)
			printf("%s=%s\n", field->key, field->value);
	}
	node_attempts_done(&attempts);
	return r;
}

static int cancel(struct tool *tool, char **words, struct err *err)
{
	struct waited waited = {.tool = tool, .err = err};

	node_stop(tool->node, words[0], 1, on_done, &waited);
	return wait_for(&waited);
}

/*
 * exec
 */

static int exec(struct tool *tool, char **words, struct err *err)
{
	struct waited waited = {.tool = tool, .err = err};
	AUTO_STRV struct strv command = {0};
	struct channel_exit end;
	const struct node_exec_request request = {.run = words[0],
		.attempt = 1,
		.command = &command,
		.fds = {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}};

	for (char **word = words + 1; *word; word++)
		strv_add(&command, *word);
	node_exec(tool->node, &request, &end, on_done, &waited);
	int r = wait_for(&waited);
	if (r < 0)
		return r;
	return *end.signal ? SIGNALED + proc_signal_number(end.signal) : end.code;
}

/*
 * get
 */

static int on_file(void *ctx, size_t i, uint64_t size, struct err *err)
{
	(void)ctx;
	(void)i;
	(void)size;
	(void)err;
	return 0;
}

static int on_content(void *ctx, size_t i, const void *data, size_t len, struct err *err)
{
	(void)ctx;
	(void)i;
	return fs_write_fd(STDOUT_FILENO, "stdout", data, len, err);
}

static int get_file(
	struct tool *tool, const char *run, const struct node_file *file, struct err *err)
{
	const struct node_want want = {file, 0, file->size};
	const struct node_get_events events = {.begin = on_file, .data = on_content};
	struct waited waited = {.tool = tool, .err = err};

	node_get(tool->node, run, NULL, &want, 1, &events, on_done, &waited);
	return wait_for(&waited);
}

static int get(struct tool *tool, char **words, struct err *err)
{
	struct waited waited = {.tool = tool, .err = err};
	struct node_files files = {0};
	const struct node_file *found = NULL;

	node_files(tool->node, words[0], NULL, &files, on_done, &waited);
	int r = wait_for(&waited);
	vec_foreach (const struct node_file, file, &files)
		if (str_eq(file->path, words[1]))
			found = file;
	if (r == 0)
		r = found ? get_file(tool, words[0], found, err)
			  : err_set(err, E_IO, "%s has no %s", words[0], words[1]);
	node_files_done(&files);
	return r;
}

/*
 * Words
 */

static const struct verb {
	const char *name;
	int n_words; /* at least */
	int (*run)(struct tool *tool, char **words, struct err *err);
} verbs[] = {
	{"hello", 0, handshake},
	{"run", 2, run},
	{"log", 1, follow},
	{"state", 1, state},
	{"cancel", 1, cancel},
	{"exec", 2, exec},
	{"get", 2, get},
};

static const struct verb *verb_of(const char *word)
{
	for (size_t i = 0; word && i < ARRAY_LEN(verbs); i++)
		if (str_eq(word, verbs[i].name))
			return &verbs[i];
	return NULL;
}

static int serve(struct tool *tool, const char *root, const struct verb *verb, char **words)
{
	const struct node_options options = {.loop = tool->loop,
		.name = "node",
		.root = root,
		.opener = {.command = open_conversation, .ctx = tool}};
	AUTO_ERR struct err err = {0};
	int r = node_new(&options, NULL, &tool->node, &err);

	if (r == 0)
		r = verb->run(tool, words, &err);
	return r < 0 ? fail(&err) : r;
}

int main(int argc, char **argv)
{
	struct tool tool = {0};
	const char *root = "~/.dlrun";
	const struct verb *verb = NULL;
	char **end = argv + argc;

	argv++;
	if (argv + 2 < end && str_eq(argv[0], "--root")) {
		root = argv[1];
		argv += 2;
	}
	tool.opener = argv;
	for (; argv < end && !verb; argv++)
		if (str_eq(*argv, "--"))
			verb = verb_of(argv[1]);
	if (!verb || end - argv - 1 < verb->n_words)
		return 2;
	tool.n_opener = (size_t)(argv - 1 - tool.opener);
	signal(SIGPIPE, SIG_IGN);
	tool.loop = loop_new();
	int status = serve(&tool, root, verb, argv + 1);
	node_free(tool.node);
	loop_free(tool.loop);
	return status;
}
