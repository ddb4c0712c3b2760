/* SPDX-License-Identifier: Apache-2.0 */
#include "app/environment/tagged.h"

#include <stdlib.h>

#include "app/prepare/push.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "core/image/registry_open.h"

/*
 * Looking up
 */

struct tagged {
	struct loop_wait wait;
	char *digest;
	struct err error;
};

static int tagged_found(void *ctx, const char *digest, struct err *error, struct err *err UNUSED)
{
	struct tagged *tagged = ctx;

	if (digest)
		tagged->digest = mem_strdup(digest);
	else
		err_move(&tagged->error, error);
	loop_wait_done(&tagged->wait);
	return 0;
}

static void tagged_done(struct tagged *tagged)
{
	free(tagged->digest);
	err_done(&tagged->error);
}

static char *tagged_tag_key(const struct submit *submit, const struct ref *ref)
{
	return registry_cache_tag(ref, config_str(submit->config, "platform"));
}

static char *tagged_cache_path(const struct submit *submit, const struct ref *ref)
{
	AUTO_FREE char *dir = dirs_registries(&submit->session->dirs);

	return registry_cache_path(dir, ref->host, ref->repo);
}

void tagged_note(void *ctx, const char *text)
{
	const struct submit_events *events = ((struct submit *)ctx)->events;

	if (events && events->note)
		events->note(events->ctx, text);
}

int tagged_find_registry(
	struct config *config, const char *target, struct ref *ret, struct err *err)
{
	AUTO(submit_done) struct submit own = {.config = config};
	int r = push_find_registry(&own, target, err);

	if (r > 0) {
		*ret = own.to;
		own.to = (struct ref){0};
	}
	return r;
}

static int tagged_query(struct submit *submit, const struct ref *ref, struct registry_cache *cache,
	struct tagged *tagged, struct err *err)
{
	AUTO(registry_client_done) struct registry_client client = {0};
	AUTO_FREE char *key = tagged_tag_key(submit, ref);
	const struct registry_cache_entry *tag = registry_cache_entry_find(&cache->tags, key);
	AUTO_LAYOUT struct layout *bases = NULL;
	struct registry *registry = NULL;

	registry_client_init(&client, &(struct registry_client_options){
					      .session = submit->session,
					      .config = submit->config,
					      .target = submit->target,
					      .loop = submit->target->loop,
					      .note = tagged_note,
					      .ctx = submit,
				      });
	int r = registry_open_bases(submit->session, &bases, err);
	if (r == 0)
		r = registry_client_open(&client, ref, false, cache, &registry, err);
	if (r < 0)
		return r;
	tagged->wait = (struct loop_wait){.loop = submit->target->loop, .n_open = 1};
	struct registry_base *base = registry_base_start(
		registry, &(struct registry_base_request){.ref = ref,
				  .older = tag ? tag->value : NULL,
				  .platform = config_str(submit->config, "platform"),
				  .cache = bases,
				  .found = tagged_found,
				  .ctx = tagged});
	r = loop_wait_run(&tagged->wait, err);
	registry_base_free(base);
	registry_client_learn(registry, cache);
	registry_free(registry);
	return r;
}

int tagged_lookup(
	struct submit *submit, const struct ref *ref, int64_t trust_ms, char **ret, struct err *err)
{
	AUTO_FREE char *path = tagged_cache_path(submit, ref);
	AUTO_FREE char *key = tagged_tag_key(submit, ref);
	AUTO_REGISTRY_CACHE struct registry_cache cache = {0};
	AUTO(tagged_done) struct tagged tagged = {0};

	if (ref->digest) {
		*ret = mem_strdup(ref->digest);
		return 0;
	}
	registry_cache_load(path, &cache);
	const struct registry_cache_entry *tag = registry_cache_entry_find(&cache.tags, key);
	if (registry_cache_entry_is_fresh(tag, clock_wall_ms(), trust_ms)) {
		*ret = mem_strdup(tag->value);
		return 0;
	}
	int r = tagged_query(submit, ref, &cache, &tagged, err);
	if (r < 0)
		return r;
	if (tagged.digest)
		registry_cache_put(&cache, &cache.tags, key, tagged.digest, clock_wall_ms());
	registry_cache_save(path, &cache, NULL);
	*ret = TAKE(tagged.digest);
	if (!*ret && tagged.error.id != E_IMAGE_BASE)
		return err_move(err, &tagged.error);
	return 0;
}

void tagged_forget(const struct submit *submit, const struct ref *ref)
{
	AUTO_FREE char *path = tagged_cache_path(submit, ref);
	AUTO_FREE char *key = tagged_tag_key(submit, ref);
	AUTO_REGISTRY_CACHE struct registry_cache cache = {0};

	registry_cache_load(path, &cache);
	registry_cache_drop(&cache, &cache.tags, key);
	registry_cache_save(path, &cache, NULL);
}

/*
 * Bases
 */

char *tagged_name_base(const struct submit *submit, const char *digest)
{
	const struct ref *ref = &submit->pack.base_ref;

	return digest ? mem_printf("%s/%s@%s", ref->host, ref->repo, digest) : NULL;
}

int tagged_push(const struct submit *of, struct submit *layers, const char *base, const char *tag,
	char **ret_digest, struct err *err)
{
	layers->session = of->session;
	layers->events = of->events;
	layers->begun_ms = clock_ms();
	int r = session_config(layers->session, &layers->config, err);
	if (r == 0)
		r = push_find_registry(layers, of->target->name, err);
	if (r < 0)
		return r;
	layers->to.tag = mem_strdup(tag);
	r = pack_init(&layers->pack, layers->session, base, layers->environment != NULL, err);
	layers->target = of->target;
	if (r == 0)
		r = push_to_registry(layers, err);
	layers->target = NULL; /* the caller's */
	if (r == 0)
		*ret_digest = mem_strdup(layers->image.manifest.digest);
	return r;
}

int tagged_set_base(
	struct submit *submit, const struct ref *to, const char *digest, struct err *err)
{
	struct pack *pack = &submit->pack;
	AUTO_FREE char *text = mem_printf("%s/%s@%s", to->host, to->repo, digest);

	ref_done(&pack->base_ref);
	pack_set_base(pack, NULL);
	return ref_parse(text, &pack->base_ref, err);
}
