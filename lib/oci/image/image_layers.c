/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/image/image_layers.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/os/fs.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "oci/layer/layer.h"

enum {
	FORMAT = 3, /* raised when the same entries give other bytes */
	LOCK_WAIT_MS = 10 * 60 * 1000,
};

/* Besides errors. */
enum outcome { DONE, NEED_LOCK, TOO_LARGE };

static void make_spec(struct layer_work *work)
{
	const struct image_request *request = work->request;
	AUTO_FREE char *text = mem_printf("dlrun layers %d\n%s\n%" PRId64 "\n%s\n", FORMAT,
		codec_name(request->codec), request->mtime_s, request->workdir);

	digest_sha256(text, strlen(text), work->spec);
}

static void sort_by_size(struct layer_work *work)
{
	const struct image_request *request = work->request;
	uint64_t big = request->big_file_bytes ? request->big_file_bytes : IMAGE_BIG_FILE;

	vec_reserve(&work->all, request->entries->n);
	vec_reserve(&work->small, request->entries->n);
	vec_foreach (const struct entry, e, request->entries) {
		bool is_big = e->kind == ENTRY_FILE && e->size >= big;
		*vec_push(&work->all) = e;
		*(is_big ? vec_push(&work->big) : vec_push(&work->small)) = e;
	}
}

void layer_work_init(struct layer_work *work, const struct image_request *request,
	struct sink *sink, const char *media_type)
{
	*work = (struct layer_work){.request = request, .sink = sink, .media_type = media_type};
	work->lock_fd = -1;
	work->may_write = !request->plan_path;
	make_spec(work);
	sort_by_size(work);
	if (request->plan && request->plan->has_full) {
		work->plan = *request->plan;
		*request->plan = (struct plan){0};
	} else if (request->plan_path) {
		plan_load(request->plan_path, &work->plan);
	}
}

void layer_work_done(struct layer_work *work)
{
	if (!work)
		return;
	vec_done(&work->all);
	vec_done(&work->small);
	vec_done(&work->big);
	plan_done(&work->plan);
	if (work->lock_fd >= 0)
		close(work->lock_fd);
	work->lock_fd = -1;
}

/*
 * A single layer
 */

/* A layer as it should be. */
struct wanted {
	enum image_role role;
	const struct entry_refs *entries;
	const struct strv *whiteouts; /* or NULL */
	uint64_t max_size;            /* compressed; more is TOO_LARGE; 0: any */
};

static void hash_entry(struct digest *digest, const struct entry *e)
{
	char head[64];
	int n = snprintf(head, sizeof(head), "%c%d%" PRIu64 " ", e->kind == ENTRY_LINK ? 'l' : 'f',
		e->exec, e->size);

	digest_add(digest, head, (size_t)n);
	digest_add(digest, e->sha256, SHA256_SIZE);
	digest_add(digest, e->path, strlen(e->path) + 1);
}

/* Of all that the bytes of the layer depend on. */
static void make_key(
	const struct layer_work *work, const struct wanted *wanted, uint8_t out[static SHA256_SIZE])
{
	AUTO_DIGEST struct digest digest = {0};
	const char *role = image_role_name(wanted->role);

	digest_begin(&digest, DIGEST_SHA256);
	digest_add(&digest, work->spec, SHA256_SIZE);
	digest_add(&digest, role, strlen(role) + 1);
	for (size_t i = 0; i < wanted->entries->n; i++)
		hash_entry(&digest, wanted->entries->v[i]);
	for (size_t i = 0; wanted->whiteouts && i < wanted->whiteouts->n; i++) {
		digest_add(&digest, "w", 1);
		digest_add(&digest, wanted->whiteouts->v[i], strlen(wanted->whiteouts->v[i]) + 1);
	}
	digest_end(&digest, out);
}

static void describe(
	const struct layer_work *work, const struct plan_layer *layer, struct descriptor *ret)
{
	*ret = (struct descriptor){.size = layer->size};
	snprintf(ret->media_type, sizeof(ret->media_type), "%s", work->media_type);
	digest_text(layer->digest, ret->digest);
}

/* Whether the sink has a layer that was made before: 1, 0, or an error. */
static int is_there(struct layer_work *work, const struct plan_layer *layer, struct err *err)
{
	struct descriptor blob;

	describe(work, layer, &blob);
	return sink_has(work->sink, &blob, err);
}

static void add_result(
	struct layer_work *work, enum image_role role, const struct plan_layer *layer)
{
	struct image_layer *result = &work->layers[work->n_layers++];

	result->role = role;
	digest_text(layer->diff_id, result->diff_id);
	describe(work, layer, &result->blob);
}

static int write_layer(struct layer_work *work, const struct wanted *wanted, struct plan_layer *ret,
	struct err *err)
{
	const struct image_request *request = work->request;
	AUTO_STAGE struct blob_stage stage = {.fd = -1};
	struct layer_result made;
	struct layer_spec spec = {
		.workdir = request->workdir,
		.entries = wanted->entries->v,
		.n_entries = wanted->entries->n,
		.full = wanted->role == IMAGE_ROLE_FULL,
		.opener = request->opener,
		.mtime_s = request->mtime_s,
		.codec = request->codec,
	};

	if (wanted->whiteouts) {
		spec.whiteouts = (const char *const *)wanted->whiteouts->v;
		spec.n_whiteouts = wanted->whiteouts->n;
	}
	int r = blob_stage_begin(&stage, work->sink->ops->stage_dir(work->sink), err);
	stage.max_size = wanted->max_size;
	if (r == 0)
		r = layer_write(&spec, &stage, &made, err);
	if (r < 0 && stage.full) {
		err_clear(err);
		return TOO_LARGE;
	}
	/* The stage does not know where it is. */
	if (r < 0 && err && err->id == E_IO_FULL)
		err_prefix(err, "%s", work->sink->name);
	if (r < 0)
		return r;
	ret->size = made.blob.size;
	BUG_ON(!digest_parse(made.diff_id, ret->diff_id) ||
		!digest_parse(made.blob.digest, ret->digest));
	describe(work, ret, &made.blob);
	r = work->sink->ops->put(work->sink, &stage, &made.blob, err);
	work->n_written += r == 0;
	return r;
}

/* The layer, from the plan if the sink still has it, else written. Outcome or error. */
static int need_layer(struct layer_work *work, const struct wanted *wanted, struct plan_layer *ret,
	struct err *err)
{
	struct plan_layer layer = {0};

	make_key(work, wanted, layer.key);
	const struct plan_layer *known = plan_find(&work->plan, layer.key);
	int r = known ? is_there(work, known, err) : 0;
	if (r < 0)
		return r;
	if (r == 1) {
		layer = *known;
		r = wanted->max_size && layer.size > wanted->max_size ? TOO_LARGE : DONE;
	} else if (wanted->role != IMAGE_ROLE_DELTA && !work->may_write) {
		r = NEED_LOCK;
	} else {
		r = write_layer(work, wanted, &layer, err);
	}
	if (r != DONE)
		return r;
	plan_remember(&work->plan, &layer);
	*ret = layer;
	return DONE;
}

/*
 * All layers
 */

static uint64_t delta_max(uint64_t full_size)
{
	return full_size / 4 > IMAGE_DELTA_MIN ? full_size / 4 : IMAGE_DELTA_MIN;
}

/* Difference of the tree from the plan's full layer with the big files on top. false: too large. */
static bool find_delta(const struct layer_work *work, struct layer_diff *ret)
{
	struct entry_refs full = {0}, below = {0};
	const struct plan *plan = &work->plan;

	vec_reserve(&full, plan->n_entries);
	for (size_t i = 0; i < plan->n_entries; i++)
		*vec_push(&full) = &plan->entries[i];
	if (work->big.n)
		entry_refs_cover(&full, &work->big, &below);
	bool ok =
		layer_diff_make(work->big.n ? &below : &full, &work->all, IMAGE_DELTA_ENTRIES, ret);
	vec_done(&full);
	vec_done(&below);
	return ok;
}

static int make_delta(struct layer_work *work, const struct layer_diff *diff, struct err *err)
{
	struct plan_layer layer;
	struct wanted wanted = {
		.role = IMAGE_ROLE_DELTA,
		.entries = &diff->entries,
		.whiteouts = &diff->whiteouts,
		.max_size = delta_max(work->plan.full.size),
	};

	if (diff->entries.n + diff->whiteouts.n == 0)
		return DONE;
	int r = need_layer(work, &wanted, &layer, err);
	if (r == DONE)
		add_result(work, IMAGE_ROLE_DELTA, &layer);
	return r;
}

/* On top of the plan's full layer, if it is still good. */
static int make_increment(struct layer_work *work, const struct plan_layer *big, struct err *err)
{
	AUTO_LAYER_DIFF struct layer_diff diff = {0};
	const struct plan *plan = &work->plan;

	if (work->request->full || !plan->has_full ||
		memcmp(plan->spec, work->spec, SHA256_SIZE) != 0 ||
		memcmp(plan->full.key, work->outgrown, SHA256_SIZE) == 0)
		return TOO_LARGE;
	int r = is_there(work, &plan->full, err);
	if (r < 0)
		return r;
	if (r == 0 || !find_delta(work, &diff))
		return TOO_LARGE;
	add_result(work, IMAGE_ROLE_FULL, &plan->full);
	if (big)
		add_result(work, IMAGE_ROLE_BIG, big);
	r = make_delta(work, &diff, err);
	if (r == TOO_LARGE)
		memcpy(work->outgrown, plan->full.key, SHA256_SIZE);
	return r;
}

static int make_canonical(struct layer_work *work, const struct plan_layer *big, struct err *err)
{
	struct wanted wanted = {
		.role = IMAGE_ROLE_FULL,
		.entries = &work->small,
	};

	work->n_layers = 0;
	int r = need_layer(work, &wanted, &work->full, err);
	if (r != DONE)
		return r;
	work->new_full = true;
	add_result(work, IMAGE_ROLE_FULL, &work->full);
	if (big)
		add_result(work, IMAGE_ROLE_BIG, big);
	return DONE;
}

static int make_layers(struct layer_work *work, struct err *err)
{
	struct plan_layer big;
	struct wanted wanted = {
		.role = IMAGE_ROLE_BIG,
		.entries = &work->big,
	};

	work->n_layers = 0;
	int r = work->big.n ? need_layer(work, &wanted, &big, err) : DONE;
	if (r != DONE)
		return r;
	r = make_increment(work, work->big.n ? &big : NULL, err);
	if (r == TOO_LARGE)
		r = make_canonical(work, work->big.n ? &big : NULL, err);
	return r;
}

/* The plan is a cache: without its lock two processes may do the same work, no more. */
static void take_lock(struct layer_work *work)
{
	AUTO_FREE char *path = mem_printf("%s.lock", work->request->plan_path);
	AUTO_ERR struct err err = {0};

	if (fs_lock(path, true, LOCK_WAIT_MS, &work->lock_fd, &err) < 0)
		log_note("plan: %s", err.message);
	work->may_write = true;
	plan_done(&work->plan);
	plan_load(work->request->plan_path, &work->plan);
}

int layer_work_run(struct layer_work *work, struct err *err)
{
	int r = make_layers(work, err);

	if (r == NEED_LOCK) {
		take_lock(work);
		r = make_layers(work, err);
	}
	return r;
}

static bool is_planned(const struct layer_work *work)
{
	const struct plan *plan = &work->plan;

	return plan->has_full && memcmp(plan->spec, work->spec, SHA256_SIZE) == 0 &&
	       memcmp(&plan->full, &work->full, sizeof(plan->full)) == 0;
}

void layer_work_save(struct layer_work *work)
{
	const char *path = work->request->plan_path;
	AUTO_ERR struct err err = {0};
	int r = 0;

	if (!path || work->request->dry)
		return;
	if (work->new_full && !is_planned(work))
		r = plan_save_full(
			path, work->spec, &work->full, work->small.v, work->small.n, &err);
	if (r == 0)
		r = plan_save_recent(path, &work->plan, &err);
	if (r < 0)
		log_note("plan: %s", err.message);
}
