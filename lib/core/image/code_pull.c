/* SPDX-License-Identifier: Apache-2.0 */
#include "core/image/code_pull.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/registry_config.h"
#include "core/image/registry_ask.h"
#include "oci/image/image.h"

enum { PULL_MS = 10 * 60 * 1000 };

struct pull {
	struct registry_client client;
	struct registry *registry;
	struct layout *layout;
	struct loop *loop;
	const struct ref *ref;
	/* the layer that is being fetched */
	struct blob_stage stage;
	bool is_over;
	struct err fault;
};

static void pull_done(struct pull *pull)
{
	registry_free(pull->registry);
	registry_client_done(&pull->client);
	layout_free(pull->layout);
	blob_stage_done(&pull->stage);
	err_done(&pull->fault);
}

/*
 * The repository to pull from
 */

static bool leads_to(const struct registry_config *known, const struct ref *ref)
{
	AUTO_REF struct ref pull = {0};

	return known->pull && ref_parse(known->pull, &pull, NULL) == 0 &&
	       str_eq(pull.host, ref->host) && str_eq(pull.repo, ref->repo);
}

/* "HOST/REPO" by which this machine reaches it. The caller frees. */
static char *find_repository(const struct config *config, const struct ref *ref)
{
	AUTO_STRV struct strv names = {0};

	config_target_names(config, &names);
	for (size_t i = 0; i <= names.n; i++) {
		AUTO_REGISTRY_CONFIG struct registry_config known = {0};
		const char *name = i < names.n ? names.v[i] : NULL;
		if (registry_config_find(config, name, &known, NULL) > 0 && leads_to(&known, ref))
			return mem_strdup(known.push);
	}
	return mem_printf("%s/%s", ref->host, ref->repo);
}

static int open_registry(struct pull *pull, struct session *session, struct err *err)
{
	int r = registry_ask_init(&pull->client, session, PULL_MS, err);

	if (r < 0)
		return r;
	AUTO_FREE char *repository = find_repository(session->config, pull->ref);
	return registry_ask_open(&pull->client, repository, false, &pull->registry, err);
}

static int wait_over(struct pull *pull, struct err *err)
{
	int r = 0;

	while (r == 0 && !pull->is_over)
		r = loop_run(pull->loop, err);
	pull->is_over = false;
	if (r == 0 && err_is_set(&pull->fault))
		r = err_move(err, &pull->fault);
	return r;
}

static int over(struct pull *pull, struct err *fault)
{
	if (err_is_set(fault))
		err_move(&pull->fault, fault);
	pull->is_over = true;
	loop_stop(pull->loop);
	return 0;
}

/*
 * Manifest and configuration
 */

static int on_found(void *ctx, const char *digest, struct err *fault, struct err *err)
{
	(void)digest;
	(void)err;
	return over(ctx, fault);
}

static int fetch_description(struct pull *pull, const char *platform, struct err *err)
{
	struct registry_base *lookup = registry_base_start(
		pull->registry, &(struct registry_base_request){.ref = pull->ref,
					.platform = platform,
					.cache = pull->layout,
					.found = on_found,
					.ctx = pull});
	int r = wait_over(pull, err);

	registry_base_free(lookup);
	return r;
}

/*
 * Layers
 */

static int on_data(void *ctx, const void *data, size_t len, struct err *err)
{
	struct pull *pull = ctx;

	return blob_stage_write(&pull->stage, data, len, err);
}

static int on_layer(void *ctx, struct http_answer *answer, struct err *fault, struct err *err)
{
	(void)answer;
	(void)err;
	return over(ctx, fault);
}

static int take_layer(
	struct pull *pull, struct sink *sink, const struct descriptor *blob, struct err *err)
{
	struct descriptor got = *blob;

	blob_stage_end(&pull->stage, &got);
	if (!str_eq(got.digest, blob->digest))
		return err_set(err, E_IMAGE, "%s sent other bytes than those of %s",
			registry_name(pull->registry), blob->digest);
	return sink->ops->put(sink, &pull->stage, blob, err);
}

static int fetch_layer(
	struct pull *pull, struct sink *sink, const struct descriptor *blob, struct err *err)
{
	AUTO_FREE char *path = mem_printf("blobs/%s", blob->digest);
	struct registry_request request = {
		.method = "GET",
		.path = path,
		.data = on_data,
		.doing = "fetching a layer",
		.done = on_layer,
		.ctx = pull,
	};

	int r = blob_stage_begin(&pull->stage, sink->ops->stage_dir(sink), err);
	if (r < 0)
		return r;
	pull->stage.max_size = blob->size;
	registry_start(pull->registry, &request);
	r = wait_over(pull, err);
	if (r == 0)
		r = take_layer(pull, sink, blob, err);
	blob_stage_done(&pull->stage);
	pull->stage = (struct blob_stage){0};
	return r;
}

static bool has_layer(struct layout *layout, const struct descriptor *blob)
{
	AUTO_FD int fd = -1;

	return layout_open_blob(layout, blob, &fd, NULL) == 0;
}

static int fetch_layers(struct pull *pull, const struct image *image, struct err *err)
{
	struct sink *sink = layout_sink(pull->layout);
	int r = 0;

	for (size_t i = 0; r == 0 && i < image->n_layers; i++) {
		const struct image_layer *layer = &image->layers[i];
		if (layer->role != IMAGE_ROLE_BASE && !has_layer(pull->layout, &layer->blob))
			r = fetch_layer(pull, sink, &layer->blob, err);
	}
	sink_free(sink);
	return r;
}

/*
 * All of it
 */

static bool is_complete(struct layout *layout, const char *digest)
{
	AUTO_IMAGE struct image image = {0};

	if (image_load(layout, digest, &image, NULL) < 0)
		return false;
	for (size_t i = 0; i < image.n_layers; i++)
		if (image.layers[i].role != IMAGE_ROLE_BASE &&
			!has_layer(layout, &image.layers[i].blob))
			return false;
	return true;
}

static int fetch(struct pull *pull, struct session *session, struct err *err)
{
	AUTO_IMAGE struct image image = {0};

	int r = open_registry(pull, session, err);
	if (r == 0)
		r = fetch_description(pull, config_str(session->config, "platform"), err);
	if (r == 0)
		r = image_load(pull->layout, pull->ref->digest, &image, err);
	return r < 0 ? r : fetch_layers(pull, &image, err);
}

int code_pull(struct session *session, const struct ref *ref, struct layout **ret, struct err *err)
{
	AUTO_FREE char *registries = dirs_registries(&session->dirs);
	AUTO_FREE char *dir = fs_join(registries, "bases");
	AUTO(pull_done) struct pull pull = {.ref = ref, .loop = session_loop(session)};

	int r = fs_private_dir(registries, err);
	if (r == 0)
		r = layout_open(dir, true, &pull.layout, err);
	if (r == 0 && !is_complete(pull.layout, ref->digest))
		r = fetch(&pull, session, err);
	if (r == 0)
		*ret = TAKE(pull.layout);
	return r;
}
