/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/data/json.h"
#include "base/loop/proc.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "core/target/fetch_sink.h"
#include "net/stream/pump.h"
#include "net/stream/stream.h"
#include "oci/image/image.h"
#include "targets/ssh/node_job.h"
#include "targets/ssh/node_open.h"
#include "targets/ssh/target_gang.h"
#include "targets/ssh/target_pool.h"

/*
 * Starting an attempt on a node: the layers that it has not, what is to be done, and the run's
 * record, so that other machines of this user can find it there.
 */

enum { TEXT_MAX = 16 << 20, RM_WORDS = 100, STALL_MS = 120000 };

struct layer_source {
	struct layout *layout;
	const struct descriptor *blob;
};

struct submitting {
	struct node_work base;
	struct buf job, secrets, record, apply;
	struct node_layer layers[IMAGE_OWN_LAYERS_MAX];
	struct layer_source sources[IMAGE_OWN_LAYERS_MAX];
	char hexes[IMAGE_OWN_LAYERS_MAX][DIGEST_TEXT_SIZE];
	struct node_submit request;
	struct node_submitted result;
	struct node_syncs syncs;
	size_t n_synced;
	struct node_part part;
	const struct node_rank *rank; /* part's; NULL: of one host */
	bool followed;
};

static void target_node_run_release(struct node_work *work)
{
	struct submitting *submitting = (struct submitting *)work;

	node_part_done(&submitting->part);
	node_syncs_done(&submitting->syncs);
	buf_done(&submitting->secrets);
	buf_done(&submitting->job);
	buf_done(&submitting->record);
	buf_done(&submitting->apply);
	free(submitting);
}

/*
 * Layers
 */

static int target_node_run_open_layer(void *ctx, struct err *err)
{
	const struct layer_source *source = ctx;
	int fd = -1;
	int r = layout_open_blob(source->layout, source->blob, &fd, err);

	return r < 0 ? r : fd;
}

static const char *target_node_run_codec_of(const struct descriptor *blob)
{
	if (str_ends(blob->media_type, "zstd"))
		return codec_name(CODEC_ZSTD);
	return codec_name(str_ends(blob->media_type, "gzip") ? CODEC_GZIP : CODEC_NONE);
}

static int target_node_run_add_layer(struct submitting *submitting, const struct target_job *job,
	const struct image_layer *layer, struct err *err)
{
	size_t i = submitting->request.n_layers;
	const char *hex = strchr(layer->blob.digest, ':');

	if (i == IMAGE_OWN_LAYERS_MAX || !hex)
		return err_set(err, E_IMAGE, "the image has more layers than dlrun makes");
	submitting->sources[i] = (struct layer_source){job->layout, &layer->blob};
	memcpy(submitting->hexes[i], hex + 1, strlen(hex));
	submitting->layers[i] = (struct node_layer){
		.hex = submitting->hexes[i],
		.codec = target_node_run_codec_of(&layer->blob),
		.size = layer->blob.size,
		.open = target_node_run_open_layer,
		.ctx = &submitting->sources[i],
	};
	submitting->request.n_layers++;
	submitting->request.n_spare += layer->role != IMAGE_ROLE_DELTA;
	return 0;
}

static unsigned count_names(const char *path)
{
	unsigned n = 0;

	for (const char *s = path + strspn(path, "/"); *s; s += strspn(s, "/")) {
		n++;
		s += strcspn(s, "/");
	}
	return n;
}

/* A directory that is one already stays, with what lies below it. Directories go first: below a
 * file nothing can be removed. */
static void add_dirs(const struct strv *dirs, struct buf *out)
{
	for (size_t i = 0; i < dirs->n; i++) {
		AUTO_BUF struct buf word = buf_with(TEXT_MAX);
		buf_adds(&word, "./");
		str_shell_quote(&word, dirs->v[i]);
		buf_addf(out, "[ -d %s ] && [ ! -h %s ] || rm -rf -- %s\n", word.data, word.data,
			word.data);
	}
}

static void add_removals(const struct strv *gone, struct buf *out)
{
	for (size_t i = 0; i < gone->n; i++) {
		if (i % RM_WORDS == 0)
			buf_adds(out, i ? "\nrm -rf --" : "rm -rf --");
		buf_adds(out, " ./");
		str_shell_quote(out, gone->v[i]);
	}
	buf_adds(out, gone->n ? "\n" : "");
}

static int set_apply(struct submitting *submitting, const struct target_job *job, struct err *err)
{
	AUTO_STRV struct strv gone = {0}, dirs = {0};

	int r = image_delta_paths(job->layout, job->image, &gone, &dirs, err);
	if (r < 0 || gone.n + dirs.n == 0)
		return r;
	add_dirs(&dirs, &submitting->apply);
	add_removals(&gone, &submitting->apply);
	submitting->request.apply = submitting->apply.data;
	return buf_check(&submitting->apply, "the list of what a delta replaces", err);
}

static int set_layers(struct submitting *submitting, const struct target_job *job, struct err *err)
{
	int r = 0;

	for (size_t i = 0; i < job->image->n_layers && r == 0; i++)
		if (job->image->layers[i].role != IMAGE_ROLE_BASE)
			r = target_node_run_add_layer(submitting, job, &job->image->layers[i], err);
	if (r < 0)
		return r;
	submitting->request.layers = submitting->layers;
	submitting->request.strip = count_names(job->image->workdir);
	submitting->request.need_bytes = job->tree_bytes * NODE_TREE_FACTOR;
	return set_apply(submitting, job, err);
}

/*
 * Texts
 */

/* No value of a secret is in a record or a specification. */
static int set_record(struct submitting *submitting, const struct target_job *job, struct err *err)
{
	AUTO_JSON struct json *json = NULL;

	if (!job->run || job->is_warming)
		return 0;
	json = json_clone(job->run->doc);
	json_set(json, "spec", json_clone(job->run->spec));
	json_print(json, &submitting->record);
	submitting->request.record = submitting->record.data;
	return buf_check(&submitting->record, "the record", err);
}

static int set_texts(struct submitting *submitting, const struct target_job *job, struct err *err)
{
	const struct node_work *work = &submitting->base;
	const char *runtime = work->target->runtime;
	int r = node_job_make(work->target->session, job, runtime, node_facts(work->host->node),
		&submitting->syncs, submitting->rank,
		target_node_slots(work->target, work->host->name, job->spec->study.parallel),
		&submitting->job, &submitting->secrets, err);

	if (r < 0)
		return r;
	submitting->request.job = submitting->job.data;
	submitting->request.tool = runtime;
	if (submitting->secrets.len)
		submitting->request.secrets = submitting->secrets.data;
	return set_record(submitting, job, err);
}

/*
 * The operation
 */

void node_note_accepted(const struct target_node *target, const struct node_handle *handle)
{
	const struct dirs *dirs = &target->session->dirs;
	AUTO_FREE char *dir = dirs_attempt(dirs, handle->run_id, handle->attempt);
	AUTO_FREE char *path = fs_join(dir, ATTEMPT_ACCEPTED);

	if (fs_mkdirs(dir, 0700, NULL) == 0)
		fs_replace(path, "", 0, 0600, FS_SYNC_NONE, NULL);
}

static int on_submitted(void *ctx, int status, struct err *error, struct err *err UNUSED)
{
	struct submitting *submitting = ctx;

	if (status == 0) {
		struct target *target = &submitting->base.target->target;
		target->sent_bytes += submitting->result.bytes_sent;
		target->sent_layers += submitting->result.layers_sent;
		node_machine_note(&submitting->base.target->session->dirs,
			submitting->base.handle.run_id, submitting->base.host->name,
			node_facts(submitting->base.host->node));
		if (!submitting->rank)
			node_note_accepted(submitting->base.target, &submitting->base.handle);
	}
	return node_work_end(&submitting->base, status, error);
}

static int target_node_run_on_synced(void *ctx, int status, struct err *error, struct err *err);

/* Data first, so that the run finds it; then the run. */
static void target_node_run_go_on(struct submitting *submitting)
{
	struct node *node = submitting->base.host->node;
	struct node_sync *sync;

	if (submitting->n_synced < submitting->syncs.n) {
		node_work_extend(&submitting->base, -1);
		sync = &submitting->syncs.v[submitting->n_synced++];
		submitting->base.requested = node_data(node, sync->key, node_sync_open, sync,
			target_node_run_on_synced, submitting);
		return;
	}
	node_work_extend(&submitting->base, STALL_MS);
	submitting->base.requested = node_submit(
		node, &submitting->request, &submitting->result, on_submitted, submitting);
	/* Open the connection for the next operation in advance. */
	if (submitting->followed)
		node_ahead(node);
}

static int target_node_run_on_synced(
	void *ctx, int status, struct err *error, struct err *err UNUSED)
{
	struct submitting *submitting = ctx;

	if (status < 0)
		return node_work_end(&submitting->base, status, error);
	target_node_run_go_on(submitting);
	return 0;
}

/* Progress extends the timeout. */
static void target_node_run_on_progress(void *ctx, uint64_t sent UNUSED, uint64_t total UNUSED)
{
	struct submitting *submitting = ctx;

	node_work_extend(&submitting->base, STALL_MS);
}

static int target_node_run_fill(
	struct submitting *submitting, const struct target_job *job, struct err *err)
{
	buf_init(&submitting->job, TEXT_MAX);
	buf_init(&submitting->secrets, TEXT_MAX);
	buf_init(&submitting->record, TEXT_MAX);
	buf_init(&submitting->apply, TEXT_MAX);
	int r = set_layers(submitting, job, err);
	if (r == 0)
		r = node_sync_find(job, &submitting->syncs, err);
	if (r == 0)
		r = set_texts(submitting, job, err);
	submitting->request.progress = target_node_run_on_progress;
	submitting->request.ctx = submitting;
	submitting->request.run = submitting->base.handle.run_id;
	submitting->request.attempt = submitting->base.handle.attempt;
	return r;
}

static int target_node_run_set_part(struct submitting *submitting, const struct target_job *job,
	const struct node_rank *rank, struct err *err)
{
	AUTO_STRV struct strv here = {0};

	strv_add(&here, ATTEMPT_ADDRESS);
	int r = node_part_make(
		job, rank ? rank->rank : 0, rank ? rank->addresses : &here, &submitting->part, err);
	if (rank) {
		submitting->part.rank.hold_ms = rank->hold_ms;
		submitting->rank = &submitting->part.rank;
	}
	return r;
}

int node_submit_rank(struct target *target, const struct target_job *job,
	const struct node_rank *rank, bool is_pooled, struct target_call *call, struct err *err)
{
	struct submitting *submitting = mem_alloc(1, sizeof(*submitting));

	*submitting = (struct submitting){
		.base = {.release = target_node_run_release}, .followed = job->followed};
	int r = node_work_begin(target, job->handle, &submitting->base, call, err);
	if (r < 0)
		return r;
	r = target_node_run_set_part(submitting, job, rank, err);
	if (r == 0)
		r = target_node_run_fill(submitting, &submitting->part.job, err);
	if (is_pooled)
		submitting->request.pool = submitting->base.host->name;
	if (r < 0) {
		target_call_cancel(call);
		return r;
	}
	target_node_run_go_on(submitting);
	return 0;
}

int target_node_submit(struct target *target, const struct target_job *job,
	struct target_call *call, struct err *err)
{
	target->sent_bytes = 0;
	target->sent_layers = 0;
	if (node_handle_is_gang(job->handle))
		return target_gang_submit(target, job, call, err);
	if (node_handle_is_pool(job->handle))
		return target_pool_submit(target, job, call, err);
	return node_submit_rank(target, job, NULL, false, call, err);
}

static int target_node_run_preview(struct session *session, const struct target_job *job,
	const char *runtime, size_t role, struct json *ret, struct err *err)
{
	AUTO(node_part_done) struct node_part part = {0};
	AUTO_BUF struct buf text = buf_with(TEXT_MAX), secrets = buf_with(TEXT_MAX);
	struct roles_part found;
	struct json *object;

	roles_nth(job->spec, role, &found);
	int r = node_part_make(job, found.first, NULL, &part, err);
	if (r == 0)
		r = node_job_make(session, &part.job, runtime, NULL, NULL, NULL,
			job->spec->study.parallel, &text, &secrets, err);
	if (r < 0)
		return r;
	object = json_object();
	json_set_str(object, "kind", "ssh");
	json_set_str(object, "handle", job->handle);
	if (found.name)
		json_set_str(object, "role", found.name);
	json_set_bytes(object, "job", text.data, text.len);
	json_add(ret, object);
	return 0;
}

int target_node_preview(struct target *target, const struct target_job *job, struct json **ret,
	struct strv *ret_notes UNUSED, struct err *err)
{
	const struct target_node *node = target_node_of(target);
	AUTO_JSON struct json *list = json_array();
	int r = 0;

	for (size_t i = 0; r == 0 && i < roles_count(job->spec); i++)
		r = target_node_run_preview(node->session, job, node->runtime, i, list, err);
	if (r == 0)
		*ret = TAKE(list);
	return r;
}

/*
 * The output of an attempt, from the node. A place in it is its offset in bytes.
 */

enum {
	FOLLOW_TIMEOUT_MS = 24 * 60 * 60 * 1000, /* somebody who follows waits for a node */
	TIMEOUT_MS = 20000,                      /* else a response is wanted now */
	POLL_MS = 1500,
};

struct reading {
	struct node_work base;
	struct target_log_request request;
	char *token; /* the caller's */
	/* Why it has not begun yet, for who follows. */
	struct node_call *poll;
	struct loop_timer *timer;
	struct strv names;
	struct node_attempts found;
	char *reported;
	bool has_begun;
};

static void stop_polling(struct reading *reading)
{
	node_cancel(reading->poll);
	reading->poll = NULL;
	loop_remove_timer(reading->base.target->target.loop, reading->timer);
	reading->timer = NULL;
}

static void log_release(struct node_work *work)
{
	struct reading *reading = (struct reading *)work;

	stop_polling(reading);
	node_attempts_done(&reading->found);
	strv_done(&reading->names);
	free(reading->reported);
	free(reading);
}

static void target_node_run_on_notice(void *ctx, const char *text)
{
	const struct reading *reading = ctx;
	const struct target_log_events *events = &reading->request.events;

	if (events->notice)
		events->notice(events->ctx, text);
}

/*
 * Reasons for waiting, each reported once
 */

static void target_node_run_poll_later(struct reading *reading);

static void target_node_run_report_waiting(struct reading *reading)
{
	AUTO(target_status_done) struct target_status status = {0};

	if (reading->found.n == 0)
		return;
	target_node_status(reading->base.host->node, &reading->found.v[0], &status);
	reading->has_begun = status.state == RUN_RUNNING || run_state_is_final(status.state);
	if (!reading->has_begun)
		target_log_waits(&reading->request.events, status.text, &reading->reported);
}

/* An unreachable node is reported by the log itself. */
static int target_node_run_on_polled(
	void *ctx, int status, struct err *error UNUSED, struct err *err UNUSED)
{
	struct reading *reading = ctx;

	reading->poll = NULL;
	if (status == 0)
		target_node_run_report_waiting(reading);
	node_attempts_done(&reading->found);
	if (!reading->has_begun)
		target_node_run_poll_later(reading);
	return 0;
}

static int target_node_run_on_time(void *ctx, struct err *err UNUSED)
{
	struct reading *reading = ctx;

	reading->timer = NULL;
	reading->poll = node_state(reading->base.host->node, &reading->names, &reading->found,
		target_node_run_on_polled, reading);
	return 0;
}

static void target_node_run_poll_later(struct reading *reading)
{
	reading->timer = loop_add_timer(reading->base.target->target.loop, clock_ms() + POLL_MS,
		target_node_run_on_time, reading);
}

/*
 * The log
 */

static int target_node_run_on_data(
	void *ctx, uint64_t offset, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	struct reading *reading = ctx;
	const struct target_log_events *events = &reading->request.events;
	int r = 0;

	if (!reading->has_begun)
		stop_polling(reading);
	reading->has_begun = true;
	if (events->data && time_ms >= reading->request.since_ms)
		r = events->data(events->ctx, 0, data, len, time_ms, err);
	if (r == 0)
		snprintf(reading->token, TARGET_TOKEN_SIZE, "%llu",
			(unsigned long long)(offset + len));
	return r;
}

static void target_node_run_read_log(struct reading *reading, uint64_t offset)
{
	const struct target_log_request *request = &reading->request;
	const struct node_handle *handle = &reading->base.handle;
	const struct node_log_request wanted = {
		.run = handle->run_id,
		.attempt = handle->attempt,
		.offset = offset,
		.tail_lines = request->token ? -1 : request->tail_lines,
		.follow = request->follow,
		.timeout_ms = request->follow ? FOLLOW_TIMEOUT_MS : TIMEOUT_MS,
		.events = {.data = target_node_run_on_data,
			.notice = target_node_run_on_notice,
			.ctx = reading},
	};

	reading->base.requested =
		node_log(reading->base.host->node, &wanted, node_work_done, reading);
	if (!request->follow || !request->events.notice)
		return;
	strv_addf(&reading->names, "%s/%d", handle->run_id, handle->attempt);
	target_node_run_poll_later(reading);
}

int target_node_logs(struct target *target, const char *handle,
	const struct target_log_request *request, char *token, struct target_call *call,
	struct err *err)
{
	struct reading *reading;
	int64_t offset = 0;

	if (node_handle_is_gang(handle))
		return target_gang_logs(target, handle, request, token, call, err);
	if (node_handle_is_pool(handle))
		return target_pool_logs(target, handle, request, token, call, err);
	if (request->token &&
		str_to_int(request->token, 0, INT64_MAX, "the place in the log", &offset, err) < 0)
		return -(int)err->code;
	reading = mem_alloc(1, sizeof(*reading));
	*reading = (struct reading){
		.base = {.release = log_release}, .request = *request, .token = token};
	int r = node_work_begin(target, handle, &reading->base, call, err);
	if (r == 0)
		target_node_run_read_log(reading, (uint64_t)offset);
	return r;
}

/*
 * Ports of a program on a node, and commands beside it.
 */

/* A port that is not open yet is tried again for so long. */
enum {
	HOLD_MS = 8 * 1000,
	RETRY_MS = 200,
	NOTICE_AGAIN_MS = 5000,
	SIGNAL_STATUS = 128,
	STATUS_UNKNOWN = 125,
	COLUMNS = 80,
	ROWS = 24,
};

/*
 * Ports
 */

struct relay {
	struct node_work base;
	struct channel *channel; /* until it is open, then the pump's */
	struct pump *pump;
	struct loop_timer *retry;
	int fd; /* the caller's side, until the pump has it */
	uint16_t port;
	int64_t begun_ms;
};

static void release_relay(struct node_work *work)
{
	struct relay *relay = (struct relay *)work;

	if (work->target)
		loop_remove_timer(work->target->target.loop, relay->retry);
	channel_free(relay->channel);
	pump_cancel(relay->pump);
	if (relay->fd >= 0)
		close(relay->fd);
	free(relay);
}

static int target_node_run_on_pumped(void *ctx, struct pump_end *end, struct err *err UNUSED)
{
	struct relay *relay = ctx;

	relay->pump = NULL;
	target_call_end_pumped(relay->base.call, end);
	return 0;
}

static void on_woken(void *ctx)
{
	struct relay *relay = ctx;

	if (relay->pump)
		pump_wake(relay->pump);
}

static void start_pump(struct relay *relay)
{
	struct stream *there = channel_stream(TAKE(relay->channel), on_woken, relay);
	const struct pump_options options = {.loop = relay->base.target->target.loop,
		.a = stream_from_fd(TAKE_FD(relay->fd)),
		.b = there,
		.done = target_node_run_on_pumped,
		.ctx = relay};

	relay->pump = pump_start(&options);
}

/* A browser tries again at once: the same text is repeated now and then. */
static void target_node_run_notify(struct target_node *node, const char *text)
{
	int64_t now_ms = clock_ms();

	if (!node->target.notice)
		return;
	if (!str_eq(text, node->last_notice) || now_ms - node->last_notice_ms > NOTICE_AGAIN_MS)
		node->target.notice(node->target.notice_ctx, text);
	REPLACE(node->last_notice, mem_strdup(text));
	node->last_notice_ms = now_ms;
}

static int on_retry(void *ctx, struct err *err);

/* A port that nothing listens on yet may be opened in a moment: retry. */
static void fail_connect(struct relay *relay, struct err *error)
{
	channel_free(TAKE(relay->channel));
	if (error->id == E_SSH_PORT && clock_ms() - relay->begun_ms < HOLD_MS) {
		relay->retry = loop_add_timer(
			relay->base.target->target.loop, clock_ms() + RETRY_MS, on_retry, relay);
		return;
	}
	target_node_run_notify(relay->base.target, error->message);
	target_call_end(relay->base.call, -(int)error->code, error);
}

/* The channel is open, or has failed to open. */
static int target_node_run_on_ready(void *ctx, struct err *err UNUSED)
{
	struct relay *relay = ctx;
	struct channel_exit end = {0};
	AUTO_ERR struct err error = {0};

	if (relay->channel->ops->wait(relay->channel, &end, &error) < 0)
		fail_connect(relay, &error);
	else
		start_pump(relay);
	return 0;
}

static void connect_there(struct relay *relay)
{
	const struct channel_opener *opener = &relay->base.host->opener;
	const struct channel_events events = {target_node_run_on_ready, relay};

	relay->channel = opener->connect(opener->ctx, "127.0.0.1", relay->port, &events);
}

static int on_retry(void *ctx, struct err *err UNUSED)
{
	struct relay *relay = ctx;

	relay->retry = NULL;
	connect_there(relay);
	return 0;
}

int target_node_relay(struct target *target, const char *handle, int rank, uint16_t port, int fd,
	struct target_call *call, struct err *err)
{
	struct relay *relay = mem_alloc(1, sizeof(*relay));
	AUTO_FREE char *one = NULL;

	*relay = (struct relay){
		.base = {.release = release_relay}, .fd = fd, .port = port, .begun_ms = clock_ms()};
	int r = node_handle_rank(handle, rank, &one, err);
	if (r < 0) {
		release_relay(&relay->base);
		return r;
	}
	r = node_work_begin(target, one, &relay->base, call, err);
	if (r < 0)
		return r;
	if (relay->base.host->opener.connect) {
		connect_there(relay);
		return 0;
	}
	r = err_set(
		err, E_TARGET_UNSUPPORTED, "ports of %s cannot be reached", relay->base.host->name);
	target_call_cancel(call);
	return r;
}

/*
 * Commands
 */

struct exec {
	struct node_work base;
	struct target_exec_request request;
	struct strv command;
	struct channel_pty pty;
	struct channel_exit end;
	bool has_signal;
	int *ret_status;
};

static void release_exec(struct node_work *work)
{
	struct exec *exec = (struct exec *)work;

	if (exec->has_signal)
		loop_remove_signal(work->target->target.loop, SIGWINCH);
	strv_done(&exec->command);
	free(exec);
}

static int target_node_run_status_of(const struct channel_exit *end)
{
	int sig = *end->signal ? proc_signal_number(end->signal) : 0;

	if (sig)
		return SIGNAL_STATUS + sig;
	return end->known && !*end->signal ? end->code : STATUS_UNKNOWN;
}

static int target_node_run_on_executed(
	void *ctx, int status, struct err *error, struct err *err UNUSED)
{
	struct exec *exec = ctx;

	if (status == 0)
		*exec->ret_status = target_node_run_status_of(&exec->end);
	return node_work_end(&exec->base, status, error);
}

static void target_node_run_read_size(struct exec *exec)
{
	exec->pty.columns = COLUMNS;
	exec->pty.rows = ROWS;
	if (exec->request.size)
		exec->request.size(exec->request.ctx, &exec->pty.columns, &exec->pty.rows);
}

static int target_node_run_on_resized(void *ctx, int sig UNUSED, struct err *err UNUSED)
{
	struct exec *exec = ctx;

	target_node_run_read_size(exec);
	node_exec_resize(exec->base.requested, exec->pty.columns, exec->pty.rows);
	return 0;
}

static int prepare_terminal(struct exec *exec, struct err *err)
{
	const char *term = env_get(exec->base.target->session->env.env, "TERM");

	if (!exec->request.tty)
		return 0;
	exec->pty.term = str_empty(term) ? "dumb" : term;
	/* Programs that keep terminals there draw on them: "dumb" will not do. */
	if (exec->request.is_shell && str_eq(exec->pty.term, "dumb"))
		exec->pty.term = "xterm";
	target_node_run_read_size(exec);
	int r = loop_add_signal(
		exec->base.target->target.loop, SIGWINCH, target_node_run_on_resized, exec, err);
	exec->has_signal = r == 0;
	if (r == 0 && exec->request.raw)
		exec->request.raw(exec->request.ctx);
	return r;
}

int target_node_exec(struct target *target, const char *handle,
	const struct target_exec_request *request, int *ret_status, struct target_call *call,
	struct err *err)
{
	AUTO_FREE char *one = NULL;
	struct exec *exec;

	int r = node_handle_rank(handle, request->rank, &one, err);
	if (r < 0)
		return r;
	exec = mem_alloc(1, sizeof(*exec));
	*exec = (struct exec){
		.base = {.release = release_exec}, .request = *request, .ret_status = ret_status};
	strv_copy(&exec->command, request->command);
	r = node_work_begin(target, one, &exec->base, call, err);
	if (r < 0)
		return r;
	r = prepare_terminal(exec, err);
	if (r < 0) {
		target_call_cancel(call);
		return r;
	}
	const struct node_exec_request wanted = {
		.run = exec->base.handle.run_id,
		.attempt = exec->base.handle.attempt,
		.command = &exec->command,
		.is_shell = request->is_shell,
		.pty = request->tty ? &exec->pty : NULL,
		.fds = {request->fds[0], request->fds[1], request->fds[2]},
	};
	exec->base.requested = node_exec(
		exec->base.host->node, &wanted, &exec->end, target_node_run_on_executed, exec);
	return 0;
}

/* Versions of data. */

int target_node_store(struct target *target, const struct target_store_request *request,
	int *ret_status, struct target_call *call, struct err *err)
{
	const struct target_node *node = target_node_of(target);
	struct exec *exec = mem_alloc(1, sizeof(*exec));

	*exec = (struct exec){.base = {.release = release_exec}, .ret_status = ret_status};
	exec->base.handle.host = mem_strdup(node->hosts.v[request->host]);
	strv_copy(&exec->command, request->words);
	int r = node_work_begin_there(target, &exec->base, call, err);
	if (r == 0)
		exec->base.requested = node_store(exec->base.host->node, &exec->command,
			request->fds, &exec->end, target_node_run_on_executed, exec);
	return r;
}

/*
 * The results of a run on a node: a list of what there is, then in one stream what the sink wants
 * of it. A stream that is cut goes on where it was.
 */

enum { TRIES_MAX = 5, TICK_MS = 2000 };

struct fetching {
	struct node_work base;
	struct fetch_sink *sink;
	char *prefix;    /* of paths here; NULL: none */
	struct buf name; /* a path with it */
	/* Asked with the list: of a run that has ended nothing changes any more. */
	struct node_call *state_call;
	struct strv names;
	struct node_attempts found;
	bool has_ended;
	struct node_files_scope scope;
	char *only; /* the sink's, without the prefix; or NULL */
	struct node_files files;
	struct VEC_OF(struct node_want) wanted;
	size_t first; /* of wanted: where the present stream began */
	size_t at;    /* of wanted: the file that comes; only with has_file */
	bool has_file;
	struct fetch_item item;
	bool is_passed;   /* the sink does not want it after all */
	uint64_t written; /* of what was asked for of the file */
	int tries;
};

static void fetch_release(struct node_work *work)
{
	struct fetching *fetching = (struct fetching *)work;

	node_cancel(fetching->state_call);
	strv_done(&fetching->names);
	node_attempts_done(&fetching->found);
	node_files_done(&fetching->files);
	vec_done(&fetching->wanted);
	free(fetching->only);
	free(fetching->prefix);
	buf_done(&fetching->name);
	free(fetching);
}

/* Valid until the next one. */
static const char *target_node_run_name_of(struct fetching *fetching, const struct node_file *file)
{
	if (!fetching->prefix)
		return file->path;
	buf_reset(&fetching->name);
	buf_addf(&fetching->name, "%s%s", fetching->prefix, file->path);
	return fetching->name.data;
}

static void target_node_run_describe(
	struct fetching *fetching, const struct node_file *file, struct fetch_item *ret)
{
	static const mode_t kinds[] = {['d'] = S_IFDIR, ['f'] = S_IFREG, ['l'] = S_IFLNK};
	mode_t kind = (size_t)file->kind < ARRAY_LEN(kinds) ? kinds[(size_t)file->kind] : 0;

	*ret = (struct fetch_item){
		.path = target_node_run_name_of(fetching, file),
		.mode = kind | (mode_t)(file->mode & 07777),
		.size = file->kind == 'l' && file->target ? strlen(file->target) : file->size,
		.mtime_ns = file->mtime_ms * 1000000,
		.changing = !fetching->has_ended && clock_wall_ms() - file->mtime_ms < TICK_MS,
		.target = file->target,
	};
}

/*
 * The stream
 */

static int end_file(struct fetching *fetching, struct err *err)
{
	if (!fetching->has_file)
		return 0;
	fetching->has_file = false;
	if (fetching->is_passed)
		return 0;
	/* A file that is shorter than was requested has been truncated since. */
	fetching->item.changing |= fetching->written < fetching->wanted.v[fetching->at].len;
	return fetch_sink_end(fetching->sink, &fetching->item, err);
}

static int target_node_run_on_begin(void *ctx, size_t i, uint64_t size UNUSED, struct err *err)
{
	struct fetching *fetching = ctx;
	size_t at = fetching->first + i;
	int r;

	/* The rest of one that was cut. */
	if (fetching->has_file && at == fetching->at)
		return 0;
	r = end_file(fetching, err);
	if (r < 0)
		return r;
	const struct node_want *want = &fetching->wanted.v[at];
	const struct fetch_range range = {want->offset, want->len};
	target_node_run_describe(fetching, want->file, &fetching->item);
	r = fetch_sink_begin(fetching->sink, &fetching->item, &range, err);
	if (r < 0)
		return r;
	fetching->is_passed = r == 0;
	fetching->at = at;
	fetching->has_file = true;
	fetching->written = 0;
	return 0;
}

static int fetch_on_data(void *ctx, size_t i UNUSED, const void *data, size_t len, struct err *err)
{
	struct fetching *fetching = ctx;

	fetching->written += len;
	return fetching->is_passed ? 0 : fetch_sink_write(fetching->sink, data, len, err);
}

static void get(struct fetching *fetching);

static int target_node_run_on_got(void *ctx, int status, struct err *error, struct err *err UNUSED)
{
	struct fetching *fetching = ctx;

	fetching->base.requested = NULL;
	if (status < 0 && error->code == ERR_NET && fetching->tries++ < TRIES_MAX) {
		err_clear(error);
		get(fetching);
		return 0;
	}
	if (status == 0)
		status = end_file(fetching, error);
	return node_work_end(&fetching->base, status, error);
}

/* From the file on that was cut, or the first one. */
static void get(struct fetching *fetching)
{
	const struct node_get_events events = {target_node_run_on_begin, fetch_on_data, fetching};

	if (fetching->has_file) {
		/* Data received of the interrupted file is not requested again. */
		struct node_want *want = &fetching->wanted.v[fetching->at];

		want->offset += fetching->written;
		want->len -= fetching->written;
		fetching->written = 0;
		fetching->first = fetching->at;
	}
	fetching->base.requested = node_get(fetching->base.host->node, fetching->base.handle.run_id,
		&fetching->scope, fetching->wanted.v + fetching->first,
		fetching->wanted.n - fetching->first, &events, target_node_run_on_got, fetching);
}

/*
 * The list
 */

static int offer(struct fetching *fetching, const struct node_file *file, struct err *err)
{
	struct fetch_range range = {0};
	struct fetch_item item;

	target_node_run_describe(fetching, file, &item);
	if (!fetch_sink_names(fetching->sink, item.path))
		return 0;
	if (file->kind == 'd')
		return fetch_sink_dir(fetching->sink, item.path, item.mode, err);
	if (file->kind == 'l')
		return fetch_sink_link(fetching->sink, &item, err);
	int r = fetch_sink_wants(fetching->sink, &item, &range, err);
	if (r > 0)
		*vec_push(&fetching->wanted) = (struct node_want){file, range.offset, range.len};
	return r < 0 ? r : 0;
}

static int offer_all(struct fetching *fetching)
{
	AUTO_ERR struct err failure = {0};
	struct err *error = &failure;
	int status = 0;

	for (size_t i = 0; status == 0 && i < fetching->files.n; i++)
		status = offer(fetching, &fetching->files.v[i], error);
	if (status < 0 || fetching->wanted.n == 0)
		return node_work_end(&fetching->base, status, error);
	get(fetching);
	return 0;
}

static int target_node_run_on_listed(
	void *ctx, int status, struct err *error, struct err *err UNUSED)
{
	struct fetching *fetching = ctx;

	fetching->base.requested = NULL;
	if (status < 0)
		return node_work_end(&fetching->base, status, error);
	return fetching->state_call ? 0 : offer_all(fetching);
}

static int fetch_on_state(void *ctx, int status, struct err *error UNUSED, struct err *err UNUSED)
{
	struct fetching *fetching = ctx;

	fetching->state_call = NULL;
	fetching->has_ended = status == 0 && fetching->found.n &&
			      run_state_is_final(run_state_find(fetching->found.v[0].state));
	return fetching->base.requested ? 0 : offer_all(fetching);
}

/* false: what the sink wants is on another host. */
static bool set_scope(struct fetching *fetching)
{
	const char *prefix = fetching->prefix ? fetching->prefix : "";
	const struct fetch_sink *sink = fetching->sink;

	fetching->scope.like = sink->like;
	if (!sink->only)
		return true;
	if (!str_starts(sink->only, prefix))
		return false;
	fetching->only = mem_strdup(sink->only + strlen(prefix));
	fetching->scope.path = fetching->only;
	return true;
}

int node_fetch_rank(struct target *target, const char *handle, const char *prefix,
	struct fetch_sink *sink, struct target_call *call, struct err *err)
{
	struct fetching *fetching = mem_alloc(1, sizeof(*fetching));

	*fetching = (struct fetching){
		.base = {.release = fetch_release}, .sink = sink, .prefix = mem_strdup(prefix)};
	buf_init(&fetching->name, 1 << 20);
	if (!set_scope(fetching)) {
		fetch_release(&fetching->base);
		target_call_end_soon(call, target->loop);
		return 0;
	}
	int r = node_work_begin(target, handle, &fetching->base, call, err);
	if (r < 0)
		return r;
	fetching->scope.attempt = sink->from_tree ? fetching->base.handle.attempt : 0;
	strv_addf(&fetching->names, "%s/%d", fetching->base.handle.run_id,
		fetching->base.handle.attempt);
	fetching->state_call = node_state(fetching->base.host->node, &fetching->names,
		&fetching->found, fetch_on_state, fetching);
	fetching->base.requested =
		node_files(fetching->base.host->node, fetching->base.handle.run_id,
			&fetching->scope, &fetching->files, target_node_run_on_listed, fetching);
	return 0;
}

int target_node_fetch(struct target *target, const char *handle, struct fetch_sink *sink,
	struct target_call *call, struct err *err)
{
	if (node_handle_is_gang(handle))
		return target_gang_fetch(target, handle, sink, call, err);
	if (node_handle_is_pool(handle)) {
		target_call_end_soon(call, target->loop);
		return 0;
	}
	return node_fetch_rank(target, handle, NULL, sink, call, err);
}
