/* SPDX-License-Identifier: Apache-2.0 */
#include "app/prepare/push.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

#include "app/prepare/prepare.h"
#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/registry_config.h"
#include "core/config/target_names.h"
#include "core/target/target.h"
#include "oci/layout/layout.h"
#include "targets/targets.h"

/*
 * Where it goes
 */

static int check_to(const char *to, const struct ref *ref, struct err *err)
{
	bool tag_fits = ref->kind == REF_LAYOUT || ref->kind == REF_REGISTRY;

	if (tag_fits && !ref->digest)
		return 0;
	err_set(err, E_IMAGE_REF, "--to %s: images are pushed to HOST/REPO[:TAG] or oci:DIR[:TAG]",
		to);
	return err_hint(err, "dlrun push --to oci:out");
}

int push_fail_no_registry(const char *target, struct err *err)
{
	err_set(err, E_CONFIG, "target %s has no registry", target);
	return err_hint(err, "targets: {%s: {registry: registry.example.com/me/dlrun}}", target);
}

/* 1, or 0: there is none; that is what who asked for a target does not want to hear. */
static int find_registry(struct submit *submit, struct registry_config *ret, struct err *err)
{
	struct config *config = submit->config;
	const char *target = submit->target_name;

	int r = target ? target_check(config, target, err) : 0;
	if (r < 0)
		return r;
	AUTO_FREE char *first = target_names_first(config, config_str(config, "target"));
	r = registry_config_find(config, target ? target : first, ret, err);
	if (r != 0 || !target || str_eq(target, "local"))
		return r;
	return push_fail_no_registry(target, err);
}

/* The text is checked before the tree is looked at. */
static int find_dest(struct submit *submit, const char *to, struct err *err)
{
	AUTO_REGISTRY_CONFIG struct registry_config known = {0};

	int r = find_registry(submit, &known, to ? NULL : err);
	if (!to && r <= 0)
		return r;
	r = ref_parse(to ? to : known.push, &submit->to, err);
	if (r == 0)
		r = check_to(to ? to : known.push, &submit->to, err);
	if (r == 0 && submit->to.kind == REF_REGISTRY)
		push_set_pull_name(submit, &known);
	return r;
}

/*
 * To a layout
 */

static int write_layout(struct submit *submit, struct sink *sink, const char *dir, struct err *err)
{
	int r = pack_write(
		&submit->pack, submit->snapshot, sink, dir, submit->to.tag, &submit->image, err);
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
	struct submit *submit, struct layout *layout, const char *dir, struct err *err)
{
	const char *cache = submit->session->dirs.cache;

	int r = fs_private_dir(cache, err);
	if (r < 0)
		return r;
	AUTO_FD int cache_fd = open(cache, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (cache_fd < 0)
		return fs_error(err, errno, "%s", cache);
	r = write_layout(submit, dry_sink(dir, cache_fd, layout_has_blob, layout), dir, err);
	for (size_t i = 0; r == 0 && i < submit->image.n_layers; i++)
		if (layout_has_blob(layout, &submit->image.layers[i].blob))
			strv_add(&submit->there, submit->image.layers[i].blob.digest);
	return r;
}

/* *ret: NULL where a dry run finds none; opened: what is to be freed of it. */
static int push_open_layout(struct submit *submit, const char *dir, struct layout **opened,
	struct layout **ret, struct err *err)
{
	bool dry = submit->dry_run;

	*ret = NULL;
	if (!submit->to.dir && !dry)
		return session_layout(submit->session, ret, err);
	int r = layout_open(dir, !dry, opened, dry ? NULL : err);
	*ret = *opened;
	return dry ? 0 : r;
}

static int push_to_layout(struct submit *submit, char **ret_name, struct err *err)
{
	struct session *session = submit->session;
	AUTO_LAYOUT struct layout *opened = NULL;
	struct layout *layout;

	int r = pack_need_base(&submit->pack, err);
	if (r == 0)
		r = submit_take_snapshot(submit, err);
	if (r < 0)
		return r;
	submit_report_snapshot(submit);
	AUTO_FREE char *dir = submit->to.dir ? fs_join(session->env.cwd, submit->to.dir)
					     : dirs_layout(&session->dirs);
	r = push_open_layout(submit, dir, &opened, &layout, err);
	if (r == 0)
		r = submit->dry_run ? measure_layout(submit, layout, dir, err)
				    : write_layout(submit, layout_sink(layout), dir, err);
	if (r < 0)
		return r;
	*ret_name = mem_printf("oci:%s", submit->to.dir ? submit->to.dir : dir);
	submit->ref = mem_printf("%s@%s", *ret_name, submit->image.manifest.digest);
	return 0;
}

int submit_pack(struct submit *submit, struct err *err)
{
	const struct submit_events *events = submit->events;
	AUTO_FREE char *dir = dirs_layout(&submit->session->dirs);
	int64_t start_ms = clock_ms();
	struct layout *layout;

	int r = session_layout(submit->session, &layout, err);
	if (r < 0)
		return r;
	struct sink *sink = layout_sink(layout);
	if (submit->reused.image)
		r = pack_rebase(
			&submit->pack, &submit->reused, sink, submit->id, &submit->image, err);
	else if (submit->from_digest)
		r = image_load(layout, submit->from_digest, &submit->image, err);
	else
		r = pack_write(&submit->pack, submit->snapshot, sink, dir, submit->id,
			&submit->image, err);
	sink_free(sink);
	if (r < 0)
		return r;
	submit->pack_ms = clock_ms() - start_ms;
	submit->ref = mem_printf("oci:%s@%s", dir, submit->image.manifest.digest);
	if (events && events->image)
		events->image(events->ctx, &submit->image, submit->pack_ms);
	return 0;
}

/*
 * All of it
 */

static void take_result(struct submit *submit, char *name, struct push_result *ret)
{
	int64_t total_ms = clock_ms() - submit->begun_ms;

	*ret = (struct push_result){
		.image = submit->image,
		.name = name ? name : mem_strdup(submit->pull),
		.warnings = submit->push_warnings,
		.there = submit->there,
		.sent = submit->sent,
		.requests = submit->requests,
		.snapshot_ms = submit->snapshot_ms,
		.pack_ms = total_ms - submit->snapshot_ms - submit->push_ms,
		.push_ms = submit->push_ms,
		.total_ms = total_ms,
	};
	ret->snapshot = TAKE(submit->snapshot);
	ret->ref = TAKE(submit->ref);
	ret->base = TAKE(submit->pack.base_name);
	ret->base_digest = TAKE(submit->base_digest);
	submit->image = (struct image){0};
	submit->push_warnings = submit->there = (struct strv){0};
}

int push_image(struct session *session, const struct push_options *options,
	const struct submit_events *events, struct push_result *ret, struct err *err)
{
	AUTO(submit_done)
	struct submit submit = {
		.session = session,
		.options = options->tree,
		.events = events,
		.dry_run = options->dry_run,
		.copies_base = options->copy_base,
		.trusts_nothing = options->full,
		.target_name = options->target,
		.begun_ms = clock_ms(),
	};
	AUTO_FREE char *name = NULL;

	int r = session_config(session, &submit.config, err);
	if (r == 0)
		r = find_dest(&submit, options->to, err);
	if (r == 0 && submit.to.kind == REF_REGISTRY)
		http_prepare();
	if (r == 0)
		r = pack_init(&submit.pack, session, options->base, options->full, err);
	if (r == 0)
		r = session_place(session, &submit.place, err);
	if (r < 0)
		return r;
	submit.pack.dry = options->dry_run;
	r = submit.to.kind == REF_REGISTRY ? push_to_registry(&submit, err)
					   : push_to_layout(&submit, &name, err);
	if (r == 0)
		take_result(&submit, TAKE(name), ret);
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
