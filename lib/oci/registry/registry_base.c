/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/util/clock.h"
#include "base/util/digest.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/stream/field.h"
#include "oci/image/image.h"
#include "oci/model/manifest.h"
#include "oci/registry/registry_error.h"
#include "oci/registry/registry.h"

#define MANIFEST_TYPES                                                                             \
	"application/vnd.oci.image.index.v1+json, "                                                \
	"application/vnd.docker.distribution.manifest.list.v2+json, "                              \
	"application/vnd.oci.image.manifest.v1+json, "                                             \
	"application/vnd.docker.distribution.manifest.v2+json"

enum { INDEXES_MAX = 2, REQUESTS_MAX = 8 };

/* A look-up goes down from the root (what the reference stands for) through indexes to a manifest
 * and its configuration. What the cache lacks of them is fetched, and then read again. */
struct registry_base {
	struct registry *registry;
	struct loop *loop;
	struct layout *cache;
	char *repo, *tag, *name, *platform;
	char root[DIGEST_TEXT_SIZE];  /* empty: only the registry knows */
	char older[DIGEST_TEXT_SIZE]; /* empty: none that would do */
	struct descriptor wanted;     /* what is being fetched; size 0: not known */
	bool guessed;                 /* root may be out of date */
	unsigned requests;
	struct registry_call *call;
	struct loop_timer *timer;
	registry_layers_fn *layers; /* NULL: they are not wanted any more */
	registry_base_fn *found;
	void *ctx;
};

static int registry_base_advance(struct registry_base *base, struct err *err);

/*
 * The end
 */

static int registry_base_end(struct registry_base *base, struct err *error, struct err *err)
{
	return base->found(base->ctx, NULL, error, err);
}

static int end_not_there(struct registry_base *base, const struct err *why, struct err *err)
{
	AUTO_ERR struct err error = {0};

	err_set(&error, E_IMAGE_BASE, "there is no base image %s", base->name);
	for (size_t i = 0; why && i < why->n_evidence; i++)
		err_evidence(&error, "%s", why->evidence[i]);
	err_hint(&error, "docker login %s   # if the repository is private; else check the name",
		registry_host(base->registry));
	return registry_base_end(base, &error, err);
}

/*
 * The cache
 */

static int registry_base_put(struct registry_base *base, const struct http_response *response,
	const struct descriptor *blob, struct err *err)
{
	struct sink *sink = layout_sink(base->cache);
	int r = sink->ops->put_bytes(sink, response->body.data, blob, err);

	sink_free(sink);
	return r;
}

static int registry_base_too_large(const struct registry_base *base, size_t max, struct err *err)
{
	char size[16];

	return err_set(err, E_DATA_LIMIT, "a part of %s is larger than %s", base->name,
		str_size(max, size));
}

/* A blob that could not be read: 0 when it is not there, or is removed as damaged. */
static int not_cached(struct registry_base *base, const struct descriptor *blob, struct err *error,
	struct err *err)
{
	if (error->id == E_IMAGE_BASE)
		return 0;
	if (error->id != E_IMAGE && error->id != E_DATA && error->id != E_DATA_LIMIT)
		return err_move(err, error);
	int r = layout_remove_damaged(base->cache, blob, err);
	return r < 0 ? r : 0;
}

/* 1: read, 0: not there any more. */
static int read_cached(struct registry_base *base, const struct descriptor *blob, size_t max,
	struct buf *text, struct err *err)
{
	AUTO_ERR struct err error = {0};

	if (blob->size > max)
		return registry_base_too_large(base, max, err);
	if (layout_read_blob(base->cache, blob, max, text, &error) == 0)
		return 1;
	return not_cached(base, blob, &error, err);
}

/* As read_cached, of a manifest or index whose size and type may not be known. */
static int registry_base_read_manifest(
	struct registry_base *base, struct descriptor *blob, struct buf *text, struct err *err)
{
	AUTO_ERR struct err error = {0};
	struct descriptor there = {0};

	if (blob->size > MANIFEST_SIZE_MAX)
		return registry_base_too_large(base, MANIFEST_SIZE_MAX, err);
	if (layout_resolve(base->cache, blob->digest, &there, &error) < 0)
		return not_cached(base, blob, &error, err);
	if (blob->size && blob->size != there.size)
		return err_set(err, E_IMAGE, "%s: %s has %llu bytes, not %llu", base->name,
			blob->digest, (unsigned long long)there.size,
			(unsigned long long)blob->size);
	*blob = there;
	return read_cached(base, blob, MANIFEST_SIZE_MAX, text, err);
}

/* Find the first part below digest that is missing: 0 with *ret_missing, a configuration if there
 * is a manifest then; 1 when all parts are there. */
static int registry_base_walk(struct registry_base *base, const char *digest,
	struct descriptor *ret_missing, struct manifest *ret_manifest, struct err *err)
{
	AUTO_BUF struct buf text = {0};
	struct descriptor at = {0};

	memcpy(at.digest, digest, strlen(digest) + 1);
	for (int i = 0;; i++) {
		*ret_missing = at;
		int r = registry_base_read_manifest(base, &at, &text, err);
		if (r <= 0)
			return r;
		if (!media_is_index(at.media_type))
			break;
		if (i == INDEXES_MAX)
			return err_set(
				err, E_IMAGE, "%s is an index in an index in an index", base->name);
		r = index_pick(text.data, text.len, base->name, base->platform, &at, err);
		if (r < 0)
			return r;
	}
	int r = manifest_parse(text.data, text.len, base->name, ret_manifest, err);
	if (r < 0)
		return r;
	*ret_missing = ret_manifest->config;
	return read_cached(base, &ret_manifest->config, IMAGE_CONFIG_MAX, &text, err);
}

static bool registry_base_is_complete(struct registry_base *base, const char *digest)
{
	AUTO_ERR struct err ignored = {0};
	AUTO_MANIFEST struct manifest manifest = {0};
	struct descriptor missing;

	return registry_base_walk(base, digest, &missing, &manifest, &ignored) == 1;
}

/*
 * Responses
 */

static struct registry_part part_of(const struct registry_base *base)
{
	return (struct registry_part){
		.host = registry_host(base->registry),
		.name = base->name,
		.digest = *base->wanted.digest ? base->wanted.digest : NULL,
		.size = base->wanted.size,
	};
}

static int registry_base_on_error(struct registry_base *base, struct err *error, struct err *err)
{
	bool is_root = str_eq(base->wanted.digest, base->root);

	if (error->id != E_REGISTRY_NOT_FOUND)
		return registry_base_end(base, error, err);
	if (!base->guessed || !is_root)
		return end_not_there(base, error, err);
	/* The tag has moved, and what it stood for is gone. */
	base->guessed = false;
	*base->root = '\0';
	return registry_base_advance(base, err);
}

typedef int check_fn(const struct registry_part *part, const struct http_response *response,
	struct descriptor *got, struct err *err);

static int registry_base_take(struct registry_base *base, check_fn *check,
	struct http_response *response, struct err *error, struct err *err)
{
	AUTO_ERR struct err own = {0};
	struct descriptor got = {0};
	const struct registry_part part = part_of(base);

	base->call = NULL;
	if (!response)
		return registry_base_on_error(base, error, err);
	int r = check(&part, response, &got, &own);
	if (r == 0)
		r = registry_base_put(base, response, &got, &own);
	if (r < 0)
		return registry_base_end(base, &own, err);
	if (!*base->root)
		memcpy(base->root, got.digest, sizeof(base->root));
	return registry_base_advance(base, err);
}

static int on_manifest(
	void *ctx, struct http_response *response, struct err *error, struct err *err)
{
	return registry_base_take(ctx, registry_check_manifest, response, error, err);
}

static int on_config(void *ctx, struct http_response *response, struct err *error, struct err *err)
{
	return registry_base_take(ctx, registry_check_bytes, response, error, err);
}

/* The tag is still where it was, or a GET tells where it is. */
static int on_head(void *ctx, struct http_response *response, struct err *error, struct err *err)
{
	struct registry_base *base = ctx;

	base->call = NULL;
	if (!response)
		return registry_base_end(base, error, err);
	const char *said = response->status < 300
				   ? field_find(&response->headers, "docker-content-digest")
				   : NULL;
	if (str_eq(said, base->older))
		memcpy(base->root, base->older, sizeof(base->root));
	*base->older = '\0';
	return registry_base_advance(base, err);
}

/*
 * Requests
 */

static void registry_base_send(struct registry_base *base, const char *method, const char *path,
	size_t max_body, registry_done_fn *done)
{
	AUTO_STRV struct strv headers = {0};
	struct registry_request request = {
		.method = method,
		.repo = base->repo,
		.path = path,
		.max_body = max_body,
		.doing = "looking for the base image",
		.done = done,
		.ctx = base,
	};

	if (done != on_config) {
		strv_add(&headers, "Accept: " MANIFEST_TYPES);
		request.headers = &headers;
	}
	if (done == on_head)
		request.accept = REGISTRY_NOT_FOUND | REGISTRY_REFUSED;
	base->requests++;
	base->call = registry_start(base->registry, &request);
}

static void registry_base_fetch_tag(struct registry_base *base)
{
	AUTO_FREE char *path = mem_printf("manifests/%s", base->tag);
	bool head = *base->older;

	base->wanted = (struct descriptor){0};
	registry_base_send(
		base, head ? "HEAD" : "GET", path, MANIFEST_SIZE_MAX, head ? on_head : on_manifest);
}

/* Ask for what is missing, or find that nothing is. */
static int registry_base_advance(struct registry_base *base, struct err *err)
{
	AUTO_ERR struct err error = {0};
	AUTO_MANIFEST struct manifest manifest = {0};

	if (!*base->root) {
		registry_base_fetch_tag(base);
		return 0;
	}
	int r = registry_base_walk(base, base->root, &base->wanted, &manifest, &error);
	/* Another process may empty the cache while it is filled. */
	if (r == 0 && base->requests >= REQUESTS_MAX)
		r = err_set(&error, E_IO, "the cache does not keep %s", base->name);
	if (r < 0)
		return registry_base_end(base, &error, err);
	if (r > 0) {
		/* The look-up may be freed in there. */
		char cached[DIGEST_TEXT_SIZE];
		memcpy(cached, base->root, sizeof(cached));
		return base->found(base->ctx, cached, NULL, err);
	}
	bool config = manifest.json != NULL;
	AUTO_FREE char *path =
		mem_printf("%s/%s", config ? "blobs" : "manifests", base->wanted.digest);
	registry_base_send(base, "GET", path, config ? IMAGE_CONFIG_MAX : MANIFEST_SIZE_MAX,
		config ? on_config : on_manifest);
	registry_layers_fn *layers = config ? TAKE(base->layers) : NULL;
	if (layers)
		layers(base->ctx, manifest.layers, image_base_layers(&manifest));
	return 0;
}

static int registry_base_start_due(void *ctx, struct err *err)
{
	struct registry_base *base = ctx;

	base->timer = NULL;
	return registry_base_advance(base, err);
}

static void copy_digest(char to[static DIGEST_TEXT_SIZE], const char *digest)
{
	uint8_t sha256[SHA256_SIZE];

	if (digest && digest_parse(digest, sha256))
		memcpy(to, digest, DIGEST_TEXT_SIZE);
}

struct registry_base *registry_base_start(
	struct registry *registry, const struct registry_base_request *request)
{
	struct registry_base *base = mem_alloc(1, sizeof(*base));
	const struct ref *ref = request->ref;

	base->registry = registry;
	base->loop = registry_loop(registry);
	base->cache = request->cache;
	base->repo = mem_strdup(ref->repo);
	base->tag = mem_strdup(ref->tag ? ref->tag : "latest");
	base->name = ref->digest ? mem_printf("%s/%s@%s", ref->host, ref->repo, ref->digest)
				 : mem_printf("%s/%s:%s", ref->host, ref->repo, base->tag);
	base->platform = mem_strdup(request->platform);
	base->layers = request->layers;
	base->found = request->found;
	base->ctx = request->ctx;
	registry_add_source(registry, ref->repo, true);
	copy_digest(base->root, ref->digest ? ref->digest : request->known);
	base->guessed = *base->root && !ref->digest;
	copy_digest(base->older, request->older);
	if (*base->root || (*base->older && !registry_base_is_complete(base, base->older)))
		*base->older = '\0';
	base->timer = loop_add_timer(base->loop, clock_ms(), registry_base_start_due, base);
	return base;
}

void registry_base_free(struct registry_base *base)
{
	if (!base)
		return;
	registry_cancel(base->call);
	loop_remove_timer(base->loop, base->timer);
	free(base->repo);
	free(base->tag);
	free(base->name);
	free(base->platform);
	free(base);
}
