/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/data/json.h"
#include "base/os/fs.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "oci/image/image.h"
#include "targets/ssh/node_job.h"
#include "targets/ssh/node_machine.h"
#include "targets/ssh/target_gang.h"

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
	const struct node_rank *rank; /* NULL: of one host */
	bool followed;
};

static void release(struct node_work *work)
{
	struct submitting *submitting = (struct submitting *)work;

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

static int open_layer(void *ctx, struct err *err)
{
	const struct layer_source *source = ctx;
	int fd = -1;
	int r = layout_open_blob(source->layout, source->blob, &fd, err);

	return r < 0 ? r : fd;
}

static const char *codec_of(const struct descriptor *blob)
{
	if (str_ends(blob->media_type, "zstd"))
		return codec_name(CODEC_ZSTD);
	return codec_name(str_ends(blob->media_type, "gzip") ? CODEC_GZIP : CODEC_NONE);
}

static int add_layer(struct submitting *submitting, const struct target_job *job,
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
		.codec = codec_of(&layer->blob),
		.size = layer->blob.size,
		.open = open_layer,
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
		AUTO_BUF struct buf word = {0};
		buf_init(&word, TEXT_MAX);
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
			r = add_layer(submitting, job, &job->image->layers[i], err);
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

	if (!job->run)
		return 0;
	json = json_clone(job->run->doc);
	json_set(json, "spec", json_clone(job->spec));
	json_print(json, &submitting->record);
	submitting->request.record = submitting->record.data;
	return buf_check(&submitting->record, "the record", err);
}

static int set_texts(struct submitting *submitting, const struct target_job *job, struct err *err)
{
	const struct node_work *work = &submitting->base;
	const char *runtime = work->target->runtime;
	int r = node_job_make(work->target->session, job, runtime, node_facts(work->host->node),
		&submitting->syncs, submitting->rank, &submitting->job, &submitting->secrets, err);

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

static int on_submitted(void *ctx, int status, struct err *fault, struct err *err)
{
	struct submitting *submitting = ctx;

	(void)err;
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
	return node_work_end(&submitting->base, status, fault);
}

static int on_synced(void *ctx, int status, struct err *fault, struct err *err);

/* Data first, so that the run finds it; then the run. */
static void go_on(struct submitting *submitting)
{
	struct node *node = submitting->base.host->node;
	struct node_sync *sync;

	if (submitting->n_synced < submitting->syncs.n) {
		node_work_extend(&submitting->base, -1);
		sync = &submitting->syncs.v[submitting->n_synced++];
		submitting->base.asked =
			node_data(node, sync->key, node_sync_open, sync, on_synced, submitting);
		return;
	}
	node_work_extend(&submitting->base, STALL_MS);
	submitting->base.asked = node_submit(
		node, &submitting->request, &submitting->result, on_submitted, submitting);
	/* Open the conversation for the next operation in advance. */
	if (submitting->followed)
		node_ahead(node);
}

static int on_synced(void *ctx, int status, struct err *fault, struct err *err)
{
	struct submitting *submitting = ctx;

	(void)err;
	if (status < 0)
		return node_work_end(&submitting->base, status, fault);
	go_on(submitting);
	return 0;
}

/* Progress extends the timeout. */
static void on_progress(void *ctx, uint64_t sent, uint64_t total)
{
	struct submitting *submitting = ctx;

	(void)sent;
	(void)total;
	node_work_extend(&submitting->base, STALL_MS);
}

static int fill(struct submitting *submitting, const struct target_job *job, struct err *err)
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
	submitting->request.progress = on_progress;
	submitting->request.ctx = submitting;
	submitting->request.run = submitting->base.handle.run_id;
	submitting->request.attempt = submitting->base.handle.attempt;
	return r;
}

int node_submit_rank(struct target *target, const struct target_job *job,
	const struct node_rank *rank, struct target_call *call, struct err *err)
{
	struct submitting *submitting = mem_alloc(1, sizeof(*submitting));

	*submitting = (struct submitting){
		.base = {.release = release}, .rank = rank, .followed = job->followed};
	int r = node_work_begin(target, job->handle, &submitting->base, call, err);
	if (r < 0)
		return r;
	r = fill(submitting, job, err);
	if (r < 0) {
		target_call_cancel(call);
		return r;
	}
	go_on(submitting);
	return 0;
}

int target_node_submit(struct target *target, const struct target_job *job,
	struct target_call *call, struct err *err)
{
	target->sent_bytes = 0;
	target->sent_layers = 0;
	if (node_handle_is_gang(job->handle))
		return target_gang_submit(target, job, call, err);
	return node_submit_rank(target, job, NULL, call, err);
}

int target_node_preview(struct target *target, const struct target_job *job, struct json **ret,
	struct strv *ret_notes, struct err *err)
{
	struct session *session = target_node_of(target)->session;
	AUTO_BUF struct buf text = {0}, secrets = {0};
	struct json *object;

	(void)ret_notes;
	buf_init(&text, TEXT_MAX);
	buf_init(&secrets, TEXT_MAX);
	int r = node_job_make(session, job, target_node_of(target)->runtime, NULL, NULL, NULL,
		&text, &secrets, err);
	if (r < 0)
		return r;
	object = json_object();
	json_set_str(object, "kind", "ssh");
	json_set_str(object, "handle", job->handle);
	json_set_bytes(object, "job", text.data, text.len);
	*ret = json_array();
	json_add(*ret, object);
	return 0;
}
