/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/registry/registry_sink.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/trace.h"
#include "net/stream/field.h"
#include "oci/image/image.h"
#include "oci/model/manifest.h"

#define TAG_PREFIX "dlrun-"
enum { TAG_DIGITS = 16, REGISTRY_TAG_SIZE = 32 };

static const char doing[] = "putting the manifest";

/* Arguments of one call of the sink, passed to the loop. */
struct sink_request {
	struct registry_sink *own;
	const struct descriptor *blob;
	const void *data;
	const char *name;
	int fd;
};

/* Of one of many blobs. */
struct blob_request {
	const struct descriptor *blob;
	bool *ret;
	struct blobs_request *all;
};

struct blobs_request {
	struct sink_request request; /* first */
	struct blob_request *each;
	size_t n, n_open;
};

struct registry_sink {
	struct sink sink; /* first */
	struct registry_sink_options options;
	struct sink_request *request;
	struct registry_call *call;
	char tag[REF_TAG_MAX + 1]; /* of the manifest that is being put */
	bool is_doubtful;          /* it was there once, and is gone */
	size_t n_checked;          /* blobs of it that are being proved meanwhile */
	bool is_lacking;           /* one of those is gone */
	bool is_accepted;          /* but for those */
	struct err refusal;        /* of the manifest, while it is looked up */
};

static struct registry_sink *registry_sink_inside(struct sink *sink)
{
	return (struct registry_sink *)sink;
}

/* The tag that dlrun gives to an image whose user gave none, so that registries which remove what
 * has no tag leave it: "dlrun-" and the first 16 hex digits of its digest. */
static void registry_sink_tag(const char *digest, char out[static REGISTRY_TAG_SIZE])
{
	snprintf(out, REGISTRY_TAG_SIZE, TAG_PREFIX "%.*s", TAG_DIGITS, digest + strlen("sha256:"));
}

static int registry_sink_request(struct registry_sink *own, task_request_fn *fn,
	struct sink_request *request, struct err *err)
{
	request->own = own;
	own->request = request;
	return task_request(*own->options.task, fn, request, err);
}

/*
 * Blobs
 */

static void registry_sink_count_has(struct blobs_request *all)
{
	if (--all->n_open == 0)
		task_respond(*all->request.own->options.task, 0, NULL);
}

static void registry_sink_on_has(void *ctx, int has)
{
	struct blob_request *one = ctx;

	trace_note(TRACE_OCI, "blob %s: %s", one->blob->digest,
		has > 0 ? "is there and is skipped" : "is not there");
	*one->ret = has > 0;
	registry_sink_count_has(one->all);
}

static void has_blobs(void *ctx, struct task *task UNUSED)
{
	struct blobs_request *all = ctx;

	all->n_open = all->n + 1;
	for (size_t i = 0; i < all->n; i++) {
		struct blob_request *one = &all->each[i];
		uploads_has(
			all->request.own->options.uploads, one->blob, registry_sink_on_has, one);
	}
	registry_sink_count_has(all);
}

static int registry_sink_has(
	struct sink *sink, const struct descriptor *blobs, size_t n, bool *ret_has, struct err *err)
{
	AUTO_FREE struct blob_request *each = mem_alloc(n + 1, sizeof(*each));
	struct blobs_request all = {.request = {.fd = -1}, .each = each, .n = n};

	for (size_t i = 0; i < n; i++)
		each[i] = (struct blob_request){&blobs[i], &ret_has[i], &all};
	return registry_sink_request(registry_sink_inside(sink), has_blobs, &all.request, err);
}

static int sink_stage_dir(struct sink *sink)
{
	return registry_sink_inside(sink)->options.stage_dir_fd;
}

static void registry_sink_take(const struct sink_request *request)
{
	struct uploads *uploads = request->own->options.uploads;

	if (request->data)
		uploads_add_bytes(uploads, request->blob, request->data);
	else if (request->fd >= 0)
		uploads_add_file(uploads, request->blob, request->fd);
	else
		uploads_add_base(uploads, request->blob);
}

static int registry_sink_respond(struct registry_sink *own, struct err *error)
{
	int r = error && err_is_set(error) ? -(int)error->code : 0;

	task_respond(*own->options.task, r, error);
	return 0;
}

static int registry_sink_on_room(void *ctx, struct err *error, struct err *err)
{
	(void)err;
	return registry_sink_respond(ctx, error);
}

/* The work makes no more than the disk here has to hold while the registry is slow. */
static void take_lacking(void *ctx, int has)
{
	struct sink_request *request = ctx;
	struct registry_sink *own = request->own;
	bool is_file = request->fd >= 0;
	AUTO_ERR struct err err = {0};

	if (has > 0) {
		task_respond(*own->options.task, 1, NULL);
		return;
	}
	registry_sink_take(request);
	request->fd = -1;
	if (!is_file)
		registry_sink_respond(own, NULL);
	else if (uploads_wait(own->options.uploads, UPLOAD_QUEUE_MAX, registry_sink_on_room, own,
			 &err) < 0)
		registry_sink_respond(own, &err);
}

static void take_blob(void *ctx, struct task *task UNUSED)
{
	struct sink_request *request = ctx;

	uploads_has(request->own->options.uploads, request->blob, take_lacking, request);
}

static int send_blob(struct sink *sink, struct sink_request *request, struct err *err)
{
	bool is_sent = request->data || request->fd >= 0;
	int r = registry_sink_request(registry_sink_inside(sink), take_blob, request, err);

	if (request->fd >= 0)
		close(request->fd);
	if (r != 0)
		return r < 0 ? r : 0;
	if (is_sent) {
		sink->bytes_written += request->blob->size;
		sink->blobs_written++;
	}
	return 0;
}

static int sink_put(
	struct sink *sink, struct blob_stage *stage, const struct descriptor *blob, struct err *err)
{
	struct sink_request request = {.blob = blob, .fd = TAKE_FD(stage->fd)};

	return send_blob(sink, &request, err);
}

static int sink_put_bytes(
	struct sink *sink, const void *data, const struct descriptor *blob, struct err *err)
{
	struct sink_request request = {.blob = blob, .data = data, .fd = -1};

	return send_blob(sink, &request, err);
}

/* Send a blob of a layout on this machine; blobs that are elsewhere never get here. */
static int sink_link(struct sink *sink, int from, const struct descriptor *blob, struct err *err)
{
	struct sink_request request = {.blob = blob, .fd = -1};

	if (from >= 0) {
		request.fd = fcntl(from, F_DUPFD_CLOEXEC, 0);
		if (request.fd < 0)
			return err_set_errno(err, E_IO, errno, "reading %s", blob->digest);
	}
	return send_blob(sink, &request, err);
}

static void forget_blob(void *ctx, struct task *task)
{
	struct sink_request *request = ctx;

	uploads_forget(request->own->options.uploads, request->blob->digest);
	task_respond(task, 0, NULL);
}

static void sink_forget(struct sink *sink, const struct descriptor *blob)
{
	struct sink_request request = {.blob = blob};

	registry_sink_request(registry_sink_inside(sink), forget_blob, &request, NULL);
}

/*
 * The manifest
 */

static bool registry_sink_read_manifest(const struct sink_request *request, struct manifest *ret)
{
	return manifest_parse(request->data, request->blob->size, "the manifest", ret, NULL) == 0;
}

/* The blobs of the newest image are those to be proved before the next one. */
static void mark_newest(struct registry_sink *own)
{
	struct registry_cache *cache = own->options.cache;
	AUTO_MANIFEST struct manifest manifest = {0};

	if (!registry_sink_read_manifest(own->request, &manifest))
		return;
	vec_foreach (struct registry_cache_entry, entry, &cache->blobs) {
		entry->in_newest = strcmp(entry->name, manifest.config.digest) == 0;
		for (size_t i = 0; i < manifest.n_layers; i++)
			entry->in_newest |= strcmp(entry->name, manifest.layers[i].digest) == 0;
	}
}

static int registry_sink_lacks(struct registry_sink *own, const struct err *words)
{
	AUTO_ERR struct err error = {0};

	err_set(&error, E_IMAGE, "%s lacks layers of the image", own->sink.name);
	for (size_t i = 0; words && i < words->n_evidence; i++)
		err_evidence(&error, "%s", words->evidence[i]);
	err_hint(&error, "its garbage collection may be running; push again");
	return registry_sink_respond(own, &error);
}

static int registry_sink_accepted(struct registry_sink *own)
{
	struct registry_cache *cache = own->options.cache;
	int64_t now = clock_wall_ms();
	const char *digest = own->request->blob->digest;

	own->is_accepted = true;
	if (own->n_checked > 0)
		return 0;
	if (own->is_lacking)
		return registry_sink_lacks(own, NULL);
	registry_cache_put(cache, &cache->manifests, digest, NULL, now);
	registry_cache_put(cache, &cache->tags, own->tag, digest, now);
	mark_newest(own);
	registry_sink_respond(own, NULL);
	if (own->options.committed)
		own->options.committed(own->options.ctx);
	return 0;
}

/* Forget the blobs that the registry lacks, so that image_write makes and sends them. */
static int lacks_blobs(
	struct registry_sink *own, const struct http_response *reply, struct registry_call *call)
{
	AUTO_STRV struct strv digests = {0};
	AUTO_ERR struct err words = {0};

	registry_response_has(reply, "MANIFEST_BLOB_UNKNOWN", &digests);
	for (size_t i = 0; i < digests.n; i++)
		uploads_forget(own->options.uploads, digests.v[i]);
	registry_call_error(call, reply, &words);
	return registry_sink_lacks(own, &words);
}

static int wrong_digest(struct registry_sink *own, const char *digest)
{
	AUTO_FREE char *shown = str_shown(digest);
	AUTO_ERR struct err error = {0};

	err_set(&error, E_REGISTRY_RESPONSE, "%s stored the manifest under another digest",
		own->sink.name);
	err_evidence(&error, "sent %s", own->request->blob->digest);
	err_evidence(&error, "stored %s", shown);
	return registry_sink_respond(own, &error);
}

static bool is_conflict(int status)
{
	return status == 400 || status == 403 || status == 405 || status == 409 || status == 412;
}

static bool has_digest(const struct http_response *reply, const char *digest)
{
	return reply->status == 200 &&
	       str_eq(field_find(&reply->headers, "docker-content-digest"), digest);
}

/* A tag that may not be moved is as good when it stands for this image already. */
static int registry_sink_on_lookup(
	void *ctx, struct http_response *reply, struct err *error, struct err *err UNUSED)
{
	struct registry_sink *own = ctx;

	own->call = NULL;
	if (!err_is_set(error) && has_digest(reply, own->request->blob->digest)) {
		err_clear(&own->refusal);
		return registry_sink_accepted(own);
	}
	return registry_sink_respond(own, &own->refusal);
}

static const char manifest_types[] = "Accept: application/vnd.oci.image.manifest.v1+json, "
				     "application/vnd.docker.distribution.manifest.v2+json";

static void registry_sink_lookup(struct registry_sink *own, registry_done_fn *done)
{
	static const char *const accept[] = {manifest_types};
	static const struct strv headers = {(char **)accept, 1, 1};
	AUTO_FREE char *path = mem_printf("manifests/%s", own->tag);
	const struct registry_request request = {
		.method = "HEAD",
		.path = path,
		.headers = &headers,
		.accept = REGISTRY_ANY,
		.doing = "looking for the image",
		.done = done,
		.ctx = own,
	};

	own->call = registry_start(own->options.registry, &request);
}

static int verified(void *ctx, struct http_response *reply, struct err *error, struct err *err);

/* Only 201 is the specification's. What else does not name the digest may be of something between
 * here and the registry. */
static int put_succeeded(
	struct registry_sink *own, const struct http_response *reply, struct registry_call *call)
{
	const char *digest = field_find(&reply->headers, "docker-content-digest");

	if (digest && strcmp(digest, own->request->blob->digest) != 0)
		return wrong_digest(own, digest);
	if (own->is_doubtful) {
		registry_sink_lookup(own, verified);
		return 0;
	}
	if (digest || reply->status == 201)
		return registry_sink_accepted(own);
	registry_call_error(call, reply, &own->refusal);
	registry_sink_lookup(own, registry_sink_on_lookup);
	return 0;
}

static int put_done(
	void *ctx, struct http_response *reply, struct err *error, struct err *err UNUSED)
{
	struct registry_sink *own = ctx;
	struct registry_call *call = TAKE(own->call);

	trace_note(TRACE_OCI, "manifest %s: status %d", own->request->blob->digest,
		reply ? reply->status : 0);
	if (err_is_set(error))
		return registry_sink_respond(own, error);
	if (reply->status / 100 == 2)
		return put_succeeded(own, reply, call);
	if (registry_response_has(reply, "MANIFEST_BLOB_UNKNOWN", NULL) ||
		registry_response_has(reply, "BLOB_UNKNOWN", NULL))
		return lacks_blobs(own, reply, call);
	registry_call_error(call, reply, &own->refusal);
	if (!is_conflict(reply->status))
		return registry_sink_respond(own, &own->refusal);
	registry_sink_lookup(own, registry_sink_on_lookup);
	return 0;
}

static int put_manifest(struct registry_sink *own)
{
	AUTO_FREE char *path = mem_printf("manifests/%s", own->tag);
	AUTO_STRV struct strv headers = {0};
	const struct registry_request request = {
		.method = "PUT",
		.path = path,
		.headers = &headers,
		.body = {.size = own->request->blob->size, .data = own->request->data},
		.accept = REGISTRY_NOT_FOUND | REGISTRY_REFUSED,
		.doing = doing,
		.done = put_done,
		.ctx = own,
	};

	trace_note(TRACE_OCI, "manifest %s: sent as %s", own->request->blob->digest, own->tag);
	strv_addf(&headers, "Content-Type: %s", own->request->blob->media_type);
	own->call = registry_start(own->options.registry, &request);
	return 0;
}

/* The registry took it and does not give it: it remembers what it has not got any more. */
static int verified(
	void *ctx, struct http_response *reply, struct err *error, struct err *err UNUSED)
{
	struct registry_sink *own = ctx;
	AUTO_ERR struct err lost = {0};

	own->call = NULL;
	if (err_is_set(error))
		return registry_sink_respond(own, error);
	if (reply->status != 404)
		return registry_sink_accepted(own);
	err_set(&lost, E_REGISTRY_RESPONSE, "%s took the image and does not have it",
		own->sink.name);
	err_evidence(&lost, "it was there before, and was removed: the registry remembers that it "
			    "had it");
	err_hint(&lost, "restart the registry, or run its garbage collection while it is stopped");
	return registry_sink_respond(own, &lost);
}

/* The response for a manifest that was there at the last push. */
static int registry_sink_on_old(
	void *ctx, struct http_response *reply, struct err *error, struct err *err UNUSED)
{
	struct registry_sink *own = ctx;

	own->call = NULL;
	if (!err_is_set(error) && has_digest(reply, own->request->blob->digest))
		return registry_sink_accepted(own);
	if (err_is_set(error))
		return registry_sink_respond(own, error);
	/* Some do not know HEAD, or do not name the digest: that says nothing. */
	own->is_doubtful = reply->status == 404;
	return put_manifest(own);
}

static void registry_sink_checked(void *ctx, int has)
{
	struct registry_sink *own = ctx;

	own->is_lacking |= has == 0;
	if (--own->n_checked == 0 && own->is_accepted)
		registry_sink_accepted(own);
}

/* Ensure that a printed image can be pulled. A registry that knows the manifest, or accepts one,
 * may still have lost blobs of it: prove each that this push has not seen, in parallel with the
 * manifest. The base's may be many and take longer than that: prove only those that were not seen
 * for long, and none after an upload. */
static void check_blobs(struct registry_sink *own)
{
	struct uploads *uploads = own->options.uploads;
	AUTO_MANIFEST struct manifest manifest = {0};

	own->is_lacking = own->is_accepted = false;
	if (!registry_sink_read_manifest(own->request, &manifest))
		return;
	bool is_sent = uploads_progress(uploads).blobs_done > 0;
	size_t n_base = image_base_layers(&manifest);
	own->n_checked = 1 + manifest.n_layers;
	for (size_t i = 0; i < manifest.n_layers; i++) {
		const struct descriptor *layer = &manifest.layers[i];
		if (i < n_base && (is_sent || uploads_trusts(uploads, layer->digest)))
			registry_sink_checked(own, 1);
		else
			uploads_prove(uploads, layer, registry_sink_checked, own);
	}
	uploads_prove(uploads, &manifest.config, registry_sink_checked, own);
}

static int uploaded(void *ctx, struct err *error, struct err *err)
{
	struct registry_sink *own = ctx;
	struct registry_cache *cache = own->options.cache;
	const char *digest = own->request->blob->digest;

	if (err_is_set(error))
		return registry_sink_respond(own, error);
	int r = uploads_close(own->options.uploads, NULL, NULL, err);
	if (r < 0)
		return r;
	check_blobs(own);
	const struct registry_cache_entry *tag = registry_cache_entry_find(&cache->tags, own->tag);
	const struct registry_cache_entry *known =
		registry_cache_entry_find(&cache->manifests, digest);
	bool same = known && tag && str_eq(tag->value, digest);
	if (!same || uploads_progress(own->options.uploads).blobs_done > 0)
		return put_manifest(own);
	registry_sink_lookup(own, registry_sink_on_old);
	return 0;
}

static void commit_manifest(void *ctx, struct task *task UNUSED)
{
	struct sink_request *request = ctx;
	struct registry_sink *own = request->own;
	AUTO_ERR struct err err = {0};

	if (request->name)
		snprintf(own->tag, sizeof(own->tag), "%s", request->name);
	else
		registry_sink_tag(request->blob->digest, own->tag);
	if (uploads_wait(own->options.uploads, 0, uploaded, own, &err) < 0)
		registry_sink_respond(own, &err);
}

static int sink_commit(struct sink *sink, const void *manifest, const struct descriptor *blob,
	const char *name, struct err *err)
{
	struct sink_request request = {.blob = blob, .data = manifest, .name = name, .fd = -1};
	const struct registry_sink_options *options = &registry_sink_inside(sink)->options;
	int r = options->may_commit ? options->may_commit(options->ctx, err) : 0;

	sink->commit_ms = clock_ms();
	return r < 0 ? r
		     : registry_sink_request(
			       registry_sink_inside(sink), commit_manifest, &request, err);
}

void registry_sink_stop(struct sink *sink)
{
	struct registry_sink *own = registry_sink_inside(sink);

	registry_cancel(TAKE(own->call));
	uploads_leave(own->options.uploads);
}

/* On the loop, when the task has ended. */
static void sink_close(struct sink *sink)
{
	registry_cancel(registry_sink_inside(sink)->call);
	err_done(&registry_sink_inside(sink)->refusal);
	free(sink);
}

static const struct sink_ops registry_sink_ops = {
	.has = registry_sink_has,
	.stage_dir = sink_stage_dir,
	.put = sink_put,
	.put_bytes = sink_put_bytes,
	.link = sink_link,
	.commit = sink_commit,
	.forget = sink_forget,
	.free = sink_close,
};

struct sink *registry_sink(const struct registry_sink_options *options)
{
	struct registry_sink *own = mem_alloc(1, sizeof(*own));

	own->sink.ops = &registry_sink_ops;
	own->sink.name = registry_name(options->registry);
	own->options = *options;
	return &own->sink;
}
