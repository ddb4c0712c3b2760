/* SPDX-License-Identifier: Apache-2.0 */
#include "app/environment/bake.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/environment/tagged.h"
#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/digest.h"
#include "base/util/enc.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/random.h"
#include "base/util/str.h"
#include "core/record/setup_key.h"
#include "kube/api/kinds.h"
#include "oci/layer/layer.h"

extern const char bake_script[]; /* bake.sh */

enum {
	CHECK_MS = 10000,
	SUBMIT_MS = 60000,
	STATE_MS = 20000,
	REMOVE_MS = 20000,
	POLL_MS = 300,
	BEGIN_MS = 15 * 60 * 1000, /* until its pod has to run */
	SETUP_MS = 4 * 60 * 60 * 1000,
	GRACE_MS = 1000,
	SILENT_MS = 2 * 60 * 1000, /* of the API server */
	CUTS_MAX = 100,            /* in a row without a byte */
	SEEN_MS = 1000,            /* several times POLL_MS */
	TAKES = 3,                 /* that end with an error of the pod */
	WANTED_MS = 5000,
	TAIL_LINES = 12,
	TAIL_BYTES = 16 << 10,
	/* of bake.sh */
	TAR_RECORD = 20, /* blocks */
	EXIT_BUSY = 3,
	EXIT_OTHER = 4,
	TOKEN_BYTES = 8,
	EXIT_TOOLS = 45,
	EXIT_HOME = 46,
};

struct bake {
	const struct bake_request *request;
	struct submit *submit;
	struct target *target;
	char id[RUN_ID_SIZE];
	char handle[TARGET_HANDLE_SIZE];
	struct spec spec;
	struct strv defaults;
	struct run *run;
	char *why;                       /* it has not begun: as it was reported last */
	int64_t heard_ms;                /* from the API server */
	int n_cuts;                      /* connections to its pod that were, since the last byte */
	int n_failed;                    /* takes */
	char token[2 * TOKEN_BYTES + 1]; /* of this process */
	off_t at;                        /* what has come of the tar before a cut */
};

static void bake_done(struct bake *bake)
{
	spec_done(&bake->spec);
	strv_done(&bake->defaults);
	run_free(bake->run);
	free(bake->why);
}

/*
 * The Job
 */

static void bake_add_words(const struct bake *bake, const char *verb, struct strv *ret)
{
	strv_add(ret, "sh");
	strv_add(ret, "-c");
	strv_add(ret, bake_script);
	strv_add(ret, "dlrun");
	strv_add(ret, verb);
	strv_add(ret, KUBE_ATTEMPT_DIR);
	strv_add(ret, config_str(bake->submit->config, "workdir"));
}

/* The setup alone, with the resources that the cluster gives by default, so that it need not wait
 * for GPUs. */
static void bake_set_spec(struct bake *bake)
{
	const struct spec *of = &bake->submit->spec;
	const struct runtime_setup *setup = &of->runtime.setup;
	const char *workdir = config_str(bake->submit->config, "workdir");
	const struct strv *secrets = &bake->submit->secret_env;
	struct spec *spec = &bake->spec;

	*spec = (struct spec){
		.cwd = mem_strdup("."),
		.timeout_ms = SETUP_MS,
		.grace_ms = GRACE_MS,
		.drop_entrypoint = true,
		.runtime = {.collect = {.mode = COLLECT_NONE}},
		.resources = {.nodes = 1},
	};
	bake_add_words(bake, "make", &spec->command);
	strv_addf(&spec->command, "%s/%s", workdir, setup->cwd);
	strv_add(&spec->command, setup->run);
	for (size_t i = 0; i < secrets->n; i++)
		strv_add_take(
			&spec->command, mem_strndup(secrets->v[i], strcspn(secrets->v[i], "=")));
	strv_copy(&spec->env, &of->env);
	strv_copy(&spec->secrets, &of->secrets);
}

static int bake_init(struct bake *bake, const struct bake_request *request, struct err *err)
{
	struct submit *submit = request->submit;
	struct target *target = submit->target;

	*bake = (struct bake){.request = request, .submit = submit, .target = target};
	uint8_t token[TOKEN_BYTES];

	random_bytes(token, sizeof(token));
	hex_encode(token, sizeof(token), bake->token);
	setup_make_id(request->key, bake->id);
	bake_set_spec(bake);
	submit_add_caches(submit, &bake->defaults);
	int r = target->ops->prepare(target, bake->id, 1, &bake->spec, bake->handle, err);
	if (r < 0)
		return r;
	bake->run = run_new(bake->id, bake->id);
	bake->run->spec = spec_to_json(&bake->spec);
	json_set_str(bake->run->doc, "user", submit->session->env.user);
	run_add_attempt(bake->run, bake->handle);
	json_set(bake->run->spec, "image", json_clone(request->image_facts));
	return 0;
}

static struct target_job bake_job(const struct bake *bake)
{
	return (struct target_job){
		.run_id = bake->id,
		.attempt = 1,
		.handle = bake->handle,
		.spec = &bake->spec,
		.env = &bake->spec.env,
		.default_env = &bake->defaults,
		.secret_env = &bake->submit->secret_env,
		.run = bake->run,
		.image_ref = bake->request->image_ref,
	};
}

/*
 * Waiting
 */

static int bake_pause(const struct bake *bake, int64_t ms, struct err *err)
{
	return loop_pause(bake->target->loop, ms, bake->request->interrupted, err);
}

static void bake_report(struct bake *bake, const char *why)
{
	if (str_empty(why) || str_eq(why, bake->why))
		return;
	REPLACE(bake->why, mem_strdup(why));
	AUTO_FREE char *text = mem_printf("environment: %s", why);
	tagged_note(bake->submit, text);
}

/* Whether the state is known; false after a failure that may pass. The setup goes on without us. */
static int bake_query(
	struct bake *bake, struct target_status *ret, bool *ret_known, struct err *err)
{
	AUTO_ERR struct err error = {0};

	target_status_done(ret);
	*ret = (struct target_status){0};
	int r = target_state(bake->target, bake->handle, STATE_MS, ret, &error);
	*ret_known = r == 0;
	if (r == 0)
		bake->heard_ms = clock_ms();
	else if (error.code != ERR_NET || clock_ms() - bake->heard_ms > SILENT_MS)
		return err_move(err, &error);
	return 0;
}

/* Poll until it runs (1), or has ended or is gone (0). E_TARGET_SILENT: it does not begin. */
static int bake_wait(struct bake *bake, struct target_status *ret, struct err *err)
{
	int64_t end_ms = clock_ms() + BEGIN_MS;
	bool is_known;

	for (;;) {
		int r = bake_query(bake, ret, &is_known, err);
		if (r < 0)
			return r;
		if (is_known && ret->state == RUN_RUNNING)
			return 1;
		if (is_known && run_state_is_final(ret->state))
			return 0;
		bake_report(bake, ret->text);
		if (clock_ms() > end_ms)
			return err_set(err, E_TARGET_SILENT, "its pod has not begun: %s",
				ret->text ? ret->text : "nothing says why");
		r = bake_pause(bake, POLL_MS, err);
		if (r < 0)
			return r;
	}
}

/*
 * The end of its pod
 */

static int bake_add_log(void *ctx, int rank UNUSED, const char *data, size_t len,
	int64_t time_ms UNUSED, struct err *err UNUSED)
{
	struct buf *text = ctx;

	if (text->len + len < TAIL_BYTES)
		buf_add(text, data, len);
	return 0;
}

/* The last lines that the setup has printed. */
static void bake_add_tail(const struct bake *bake, struct err *err)
{
	AUTO_BUF struct buf text = {0};
	char token[TARGET_TOKEN_SIZE] = "";
	const struct target_log_request request = {
		.tail_lines = TAIL_LINES,
		.rank = -1,
		.events = {.data = bake_add_log, .ctx = &text},
	};

	buf_init(&text, TAIL_BYTES);
	if (target_logs(bake->target, bake->handle, &request, token, bake->request->interrupted,
		    NULL) < 0)
		return;
	for (const char *at = text.data; *at; at += strspn(at, "\r\n")) {
		size_t len = strcspn(at, "\r\n");
		AUTO_FREE char *line = mem_strndup(at, len);
		AUTO_FREE char *shown = str_escaped(line);
		if (len && !str_starts(line, "dlrun: setup failed"))
			err_evidence(err, "%s", shown);
		at += len;
	}
}

/* 0: once more; negative: the setup has failed, or cannot be made here. */
static int bake_evaluate(const struct bake *bake, const struct target_status *status,
	bool *ret_cannot, struct err *err)
{
	AUTO_FREE char *line = setup_shown(bake->submit->spec.runtime.setup.run);

	*ret_cannot = false;
	if (status->state == RUN_FAILED && str_eq(status->exit.origin, "setup")) {
		err_set(err, E_RUN_SETUP, "the setup failed: %s", line);
		bake_add_tail(bake, err);
		return err_hint(err, "dlrun explain run.setup");
	}
	if (status->state != RUN_FAILED || !status->exit.known)
		return 0;
	*ret_cannot = status->exit.code == EXIT_TOOLS || status->exit.code == EXIT_HOME;
	if (status->exit.code == EXIT_TOOLS)
		return err_set(err, E_KUBE_SHELL,
			"the image lacks one of find, sed, sort, uniq, grep, tar, tail, xargs and tr");
	if (status->exit.code == EXIT_HOME)
		return err_set(err, E_RUN_SETUP,
			"the setup writes to the home directory, which is no part of the image here");
	return 0;
}

/*
 * Taking
 */

/* A file cannot be read there, or changes all the time. Also how a pod ends that is removed. */
static int bake_take_failed(struct bake *bake, int status, struct err *err)
{
	if (++bake->n_failed < TAKES)
		return 0;
	return err_set(err, E_KUBE_SHELL,
		"what the setup has made cannot be read (tar ended with %d)", status);
}

/* API servers may lose the end of what a command has printed. */
static bool bake_is_whole(int fd)
{
	static const char last[] = "whole/"; /* bake.sh: the last member, before zeros */
	char block[LAYER_TAR_BLOCK];
	off_t at = lseek(fd, 0, SEEK_END) - LAYER_TAR_BLOCK;

	for (int i = 0; i < TAR_RECORD && at >= 0; i++, at -= LAYER_TAR_BLOCK) {
		if (pread(fd, block, sizeof(block), at) != LAYER_TAR_BLOCK)
			return false;
		if (block[0])
			return memcmp(block, last, sizeof(last)) == 0;
	}
	return false;
}

/* Go on behind what has come. */
static int bake_cut(struct bake *bake, off_t from, struct err *error, struct err *err)
{
	if (error->id == E_CANCELED || error->id == E_KUBE_DENIED || bake->n_cuts++ == CUTS_MAX)
		return err_move(err, error);
	bake->at = lseek(bake->request->out_fd, 0, SEEK_END);
	/* The API server has told the state before. A setup may have run for hours since. */
	bake->heard_ms = clock_ms();
	if (bake->at > from)
		bake->n_cuts = 0;
	log_note("environment: cut after %lld bytes: %s", (long long)bake->at, error->message);
	return bake->at < 0 ? fs_error(err, errno, "a file for the environment") : 0;
}

/* 1: by this process; 0: it has ended, or the connection was cut. */
static int bake_take(struct bake *bake, enum bake_result *ret, struct err *err)
{
	AUTO_STRV struct strv command = {0};
	int fd = bake->request->out_fd, status = -1;
	const struct target_exec_request request = {.command = &command, .fds = {-1, fd, -1}};
	AUTO_ERR struct err error = {0};
	const off_t from = bake->at;

	if (ftruncate(fd, from) < 0 || lseek(fd, from, SEEK_SET) < 0)
		return fs_error(err, errno, "a file for the environment");
	bake_add_words(bake, "take", &command);
	strv_addf(&command, "%lld", (long long)from);
	strv_add(&command, bake->token);
	bake->at = 0;
	int r = target_exec(
		bake->target, bake->handle, &request, &status, bake->request->interrupted, &error);
	if (r == 0 && status == 0 && !bake_is_whole(fd))
		r = err_set(&error, E_HTTP_CLOSED, "the end of what the pod has sent was lost");
	if (r < 0)
		return bake_cut(bake, from, &error, err);
	if (status == EXIT_OTHER)
		return 0;
	*ret = status == EXIT_BUSY ? BAKE_BUSY : BAKE_DONE;
	return status == 0 || status == EXIT_BUSY ? 1 : bake_take_failed(bake, status, err);
}

static int bake_on_limit(void *ctx, struct err *err UNUSED)
{
	*(volatile int *)ctx = 1;
	return 0;
}

/* Whether another waits in its pod. What was killed counts, too, until the setup is over. */
static bool bake_is_wanted(const struct bake *bake)
{
	AUTO_STRV struct strv command = {0};
	const struct target_exec_request request = {.command = &command, .fds = {-1, -1, -1}};
	struct loop *loop = bake->target->loop;
	volatile int is_over = 0;
	int status = -1;

	bake_add_words(bake, "wanted", &command);
	strv_add(&command, bake->token);
	struct loop_timer *timer = loop_add_timer(
		loop, clock_ms() + WANTED_MS, bake_on_limit, (void *)(uintptr_t)&is_over);
	target_exec(bake->target, bake->handle, &request, &status, &is_over, NULL);
	if (!is_over)
		loop_remove_timer(loop, timer);
	return status == 0;
}

static bool bake_is_cannot(enum err_id id)
{
	return id == E_KUBE_DENIED || id == E_KUBE_SHELL || id == E_TARGET_SILENT;
}

static int bake_run(struct bake *bake, enum bake_result *ret, struct err *err)
{
	AUTO(target_status_done) struct target_status status = {0};
	const struct target_job job = bake_job(bake);
	bool cannot = false;

	int r = target_submit(bake->target, &job, SUBMIT_MS, err);
	bake->heard_ms = clock_ms();
	/* The Job was there, and was removed before it could be read: another process is done. */
	if (r < 0 && err->id == E_KUBE_NOT_FOUND) {
		err_clear(err);
		*ret = BAKE_LOST;
		return 0;
	}
	while (r >= 0 && (r = bake_wait(bake, &status, err)) == 1) {
		r = bake_take(bake, ret, err);
		if (r != 0)
			break;
		r = bake_pause(bake, POLL_MS, err);
	}
	if (r == 0) {
		*ret = BAKE_LOST;
		r = bake_evaluate(bake, &status, &cannot, err);
		/* So that others who wait see that it has failed, and do not make it again. */
		if (r < 0)
			bake_pause(bake, SEEN_MS, NULL);
	}
	if (r >= 0)
		return 0;
	if (err->id == E_CANCELED && bake_is_wanted(bake))
		return r;
	bake_remove(bake->submit, bake->request->key);
	if (!cannot && !bake_is_cannot(err->id))
		return r;
	*ret = BAKE_CANNOT;
	return 0;
}

/* The check, as that of a run, also finds out what pods have to be like. 1: it is refused. */
static int bake_check(const struct bake *bake, struct err *err)
{
	const struct target_job job = bake_job(bake);
	AUTO_STRV struct strv notes = {0};
	int r = 0;

	if (bake->target->ops->check && !bake->request->is_checked)
		r = target_check_job(bake->target, &job, CHECK_MS, &notes, err);
	return r < 0 && err->code != ERR_NET && err->id != E_CANCELED ? 1 : r;
}

int bake_make(const struct bake_request *request, enum bake_result *ret, struct err *err)
{
	AUTO(bake_done) struct bake bake = {0};

	int r = bake_init(&bake, request, err);
	if (r == 0)
		r = bake_check(&bake, err);
	if (r > 0) {
		*ret = BAKE_CANNOT;
		return 0;
	}
	return r < 0 ? r : bake_run(&bake, ret, err);
}

void bake_remove(struct submit *submit, const char *key)
{
	struct target *target = submit->target;
	const struct spec spec = {.resources = {.nodes = 1}};
	char id[RUN_ID_SIZE], handle[TARGET_HANDLE_SIZE];
	AUTO_ERR struct err error = {0};

	setup_make_id(key, id);
	AUTO_FREE char *dir = dirs_run(&submit->session->dirs, id);
	int r = target->ops->prepare(target, id, 1, &spec, handle, &error);
	if (r == 0)
		r = target_forget(target, handle, true, REMOVE_MS, &error);
	if (r == 0)
		r = fs_remove_tree(AT_FDCWD, dir, &error);
	if (r < 0)
		log_note("environment: %s", error.message);
}
