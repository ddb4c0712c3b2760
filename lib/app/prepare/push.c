/* SPDX-License-Identifier: Apache-2.0 */
#include "app/prepare/push.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "app/prepare/pushing.h"
#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/registry_config.h"
#include "core/target/target.h"
#include "oci/layout/layout.h"
#include "targets/targets.h"

/*
 * Where it goes
 */

/* A repository that the configuration knows under two names is printed under the one that runs
 * use. */
static void find_pull_name(struct pushing *pushing, const struct registry_config *known)
{
	AUTO_REF struct ref push = {0};
	bool same = known->push && ref_parse(known->push, &push, NULL) == 0 &&
		    str_eq(push.host, pushing->to.host) && str_eq(push.repo, pushing->to.repo);

	pushing->pull = same ? mem_strdup(known->pull)
			     : mem_printf("%s/%s", pushing->to.host, pushing->to.repo);
}

static int check_to(const char *to, const struct ref *ref, struct err *err)
{
	bool tag_fits = ref->kind == REF_LAYOUT || ref->kind == REF_REGISTRY;

	if (tag_fits && !ref->digest)
		return 0;
	err_set(err, E_IMAGE_REF, "--to %s: images are pushed to HOST/REPO[:TAG] or oci:DIR[:TAG]",
		to);
	return err_hint(err, "dlrun push --to oci:out");
}

/* 1, or 0: there is none; that is what who asked for a target does not want to hear. */
static int find_registry(struct pushing *pushing, struct registry_config *ret, struct err *err)
{
	struct config *config = pushing->submission->config;
	const char *target = pushing->options->target;

	int r = target ? target_check(config, target, err) : 0;
	if (r < 0)
		return r;
	r = registry_config_find(config, target ? target : config_str(config, "target"), ret, err);
	if (r != 0 || !target || str_eq(target, "local"))
		return r;
	err_set(err, E_CONFIG, "target %s has no registry", target);
	return err_hint(err, "targets: {%s: {registry: registry.example.com/me/dlrun}}", target);
}

/* The text is checked before the tree is looked at. */
static int find_dest(struct pushing *pushing, struct err *err)
{
	AUTO_REGISTRY_CONFIG struct registry_config known = {0};
	const char *to = pushing->options->to;

	int r = find_registry(pushing, &known, to ? NULL : err);
	if (!to && r <= 0)
		return r;
	r = ref_parse(to ? to : known.push, &pushing->to, err);
	if (r == 0)
		r = check_to(to ? to : known.push, &pushing->to, err);
	if (r == 0 && pushing->to.kind == REF_REGISTRY)
		find_pull_name(pushing, &known);
	return r;
}

int push_find_registry(struct pushing *pushing, const char *target, struct err *err)
{
	AUTO_REGISTRY_CONFIG struct registry_config known = {0};
	int r = registry_config_find(pushing->submission->config, target, &known, err);

	if (r <= 0)
		return r;
	r = ref_parse(known.push, &pushing->to, err);
	if (r < 0)
		return r;
	find_pull_name(pushing, &known);
	return 1;
}

/*
 * To a layout
 */

static int write_layout(
	struct pushing *pushing, struct sink *sink, const char *dir, struct err *err)
{
	struct push_result *result = &pushing->result;

	int r = pack_write(&pushing->submission->pack, result->snapshot, sink, dir, pushing->to.tag,
		&result->image, err);
	sink_free(sink);
	return r;
}

static bool layout_has_blob(void *ctx, const struct descriptor *blob)
{
	AUTO_FD int fd = -1;

	return ctx && layout_open_blob(ctx, blob, &fd, NULL) == 0;
}

/* Dry run: blobs are written to unnamed files in the cache. layout: NULL: there is none yet. */
static int measure_layout(
	struct pushing *pushing, struct layout *layout, const char *dir, struct err *err)
{
	const char *cache = pushing->submission->session->dirs.cache;
	struct push_result *result = &pushing->result;

	int r = fs_private_dir(cache, err);
	if (r < 0)
		return r;
	AUTO_FD int cache_fd = open(cache, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (cache_fd < 0)
		return fs_error(err, errno, "%s", cache);
	r = write_layout(pushing, dry_sink(dir, cache_fd, layout_has_blob, layout), dir, err);
	for (size_t i = 0; r == 0 && i < result->image.n_layers; i++)
		if (layout_has_blob(layout, &result->image.layers[i].blob))
			strv_add(&result->there, result->image.layers[i].blob.digest);
	return r;
}

/* *ret: NULL where a dry run finds none; opened: what is to be freed of it. */
static int open_layout(struct pushing *pushing, const char *dir, struct layout **opened,
	struct layout **ret, struct err *err)
{
	bool dry = pushing->options->dry_run;

	*ret = NULL;
	if (!pushing->to.dir && !dry)
		return session_layout(pushing->submission->session, ret, err);
	int r = layout_open(dir, !dry, opened, dry ? NULL : err);
	*ret = *opened;
	return dry ? 0 : r;
}

static int push_to_layout(struct pushing *pushing, struct err *err)
{
	struct session *session = pushing->submission->session;
	AUTO_LAYOUT struct layout *opened = NULL;
	AUTO_FREE char *dir = NULL;
	struct layout *layout;

	int r = pack_need_base(&pushing->submission->pack, err);
	if (r == 0)
		r = push_take_snapshot(pushing, err);
	if (r < 0)
		return r;
	push_say_snapshot(pushing);
	dir = pushing->to.dir ? fs_join(session->env.cwd, pushing->to.dir)
			      : dirs_layout(&session->dirs);
	r = open_layout(pushing, dir, &opened, &layout, err);
	if (r == 0)
		r = pushing->options->dry_run
			    ? measure_layout(pushing, layout, dir, err)
			    : write_layout(pushing, layout_sink(layout), dir, err);
	if (r < 0)
		return r;
	pushing->result.name = mem_printf("oci:%s", pushing->to.dir ? pushing->to.dir : dir);
	pushing->result.ref =
		mem_printf("%s@%s", pushing->result.name, pushing->result.image.manifest.digest);
	return 0;
}

/*
 * All of it
 */

int push_take_snapshot(struct pushing *pushing, struct err *err)
{
	struct submission *submission = pushing->submission;
	struct push_result *result = &pushing->result;

	int r = submission_take(submission, !pushing->options->dry_run, err);
	if (r < 0)
		return r;
	result->snapshot = TAKE(submission->snapshot);
	result->snapshot_ms = clock_ms() - submission->begun_ms;
	return 0;
}

void push_say_snapshot(const struct pushing *pushing)
{
	const struct push_events *events = pushing->events;

	if (events->snapshot)
		events->snapshot(
			events->ctx, pushing->result.snapshot, pushing->result.snapshot_ms);
}

static void finish(struct pushing *pushing, struct push_result *ret)
{
	struct push_result *result = &pushing->result;

	result->base = TAKE(pushing->submission->pack.base_name);
	result->total_ms = clock_ms() - pushing->submission->begun_ms;
	result->pack_ms = result->total_ms - result->snapshot_ms - result->push_ms;
	*ret = *result;
	*result = (struct push_result){0};
}

void pushing_done(struct pushing *pushing)
{
	push_result_done(&pushing->result);
	ref_done(&pushing->to);
	free(pushing->pull);
}

int push_image(struct session *session, const struct push_options *options,
	const struct push_events *events, struct push_result *ret, struct err *err)
{
	static const struct push_events no_events;
	AUTO(submission_done)
	struct submission own = {
		.session = session, .options = options->tree, .begun_ms = clock_ms()};
	struct submission *submission = &own;
	AUTO(pushing_done)
	struct pushing pushing = {
		.options = options,
		.events = events ? events : &no_events,
		.submission = submission,
	};

	int r = session_config(session, &submission->config, err);
	if (r == 0)
		r = find_dest(&pushing, err);
	if (r == 0 && pushing.to.kind == REF_REGISTRY)
		http_prepare();
	if (r == 0)
		r = pack_init(&submission->pack, session, options->base, options->full, err);
	if (r == 0)
		r = session_place(session, &submission->place, err);
	if (r < 0)
		return r;
	submission->pack.dry = options->dry_run;
	r = pushing.to.kind == REF_REGISTRY ? push_to_registry(&pushing, err)
					    : push_to_layout(&pushing, err);
	if (r == 0)
		finish(&pushing, ret);
	return r;
}

void push_result_done(struct push_result *result)
{
	if (!result)
		return;
	snapshot_free(result->snapshot);
	image_done(&result->image);
	strv_done(&result->warnings);
	strv_done(&result->there);
	free(result->ref);
	free(result->name);
	free(result->base);
	free(result->base_digest);
	*result = (struct push_result){0};
}

static struct json *sent_json(const struct uploads_progress *sent)
{
	struct json *json = json_object();

	json_set_int(json, "blobs", (int64_t)sent->blobs_done);
	json_set_int(json, "bytes", (int64_t)sent->bytes_done);
	json_set_int(json, "base_layers", (int64_t)sent->mounts_done);
	json_set_int(json, "base_bytes_copied", (int64_t)sent->copied);
	return json;
}

struct json *push_result_json(const struct push_result *result)
{
	struct json *json = json_object(), *phases = json_object(), *warnings = json_array();

	json_set_str(json, "schema", "dlrun/push/v1");
	json_set(json, "snapshot", pack_snapshot_json(result->snapshot));
	json_set(json, "image", pack_image_json(&result->image, result->ref, result->base));
	json_set_int(json, "requests", (int64_t)result->requests);
	json_set(json, "sent", sent_json(&result->sent));
	json_set_int(phases, "snapshot", result->snapshot_ms);
	json_set_int(phases, "pack", result->pack_ms);
	json_set_int(phases, "push", result->push_ms);
	json_set_int(phases, "total", result->total_ms);
	json_set(json, "phases_ms", phases);
	json_add_strv(warnings, &result->snapshot->warnings);
	json_add_strv(warnings, &result->warnings);
	json_set(json, "warnings", warnings);
	return json;
}
