/* SPDX-License-Identifier: Apache-2.0 */
#include "app/gc/gc_registry.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/runs/refresh.h"
#include "base/data/json.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/digest.h"
#include "base/util/log.h"
#include "base/util/map.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/registry_config.h"
#include "core/image/registry_open.h"
#include "core/store/store.h"
#include "net/stream/field.h"
#include "oci/image/image.h"
#include "oci/model/ref.h"

enum { ALONE_MS = 5000, REFRESH_MS = 1000, LIMIT_MS = 60 * 60 * 1000 };

#define ACCEPT                                                                                     \
	"Accept: application/vnd.oci.image.manifest.v1+json, "                                     \
	"application/vnd.docker.distribution.manifest.v2+json, "                                   \
	"application/vnd.oci.image.index.v1+json, "                                                \
	"application/vnd.docker.distribution.manifest.list.v2+json"

/*
 * Tags
 */

static bool is_tag_hex(const char *s, size_t n)
{
	return strspn(s, "0123456789abcdef") == n && s[n] == '\0';
}

static bool gc_tag_is_environment(const char *tag)
{
	return str_starts(tag, IMAGE_ENVIRONMENT_TAG) &&
	       is_tag_hex(tag + strlen(IMAGE_ENVIRONMENT_TAG), IMAGE_ENVIRONMENT_HEX);
}

bool gc_tag_is_own(const char *tag)
{
	return gc_tag_is_environment(tag) ||
	       (str_starts(tag, GC_TAG_PREFIX) &&
		       is_tag_hex(tag + strlen(GC_TAG_PREFIX), GC_TAG_HEX));
}

bool gc_tag_of(const char *digest, char ret[static GC_TAG_SIZE])
{
	uint8_t sha256[SHA256_SIZE];

	if (!digest || !digest_parse(digest, sha256))
		return false;
	memcpy(ret, GC_TAG_PREFIX, strlen(GC_TAG_PREFIX));
	memcpy(ret + strlen(GC_TAG_PREFIX), digest + strlen("sha256:"), GC_TAG_HEX);
	ret[GC_TAG_SIZE - 1] = '\0';
	return true;
}

int gc_tags_parse(const char *text, size_t len, struct strv *ret, struct err *err)
{
	AUTO_JSON struct json *json = NULL;
	AUTO_ERR struct err cause = {0};
	const struct json *tags;

	if (json_parse(text, len, JSON_SIZE_MAX, "the list of tags", &json, &cause) < 0)
		return err_set(err, E_REGISTRY_RESPONSE, "%s", cause.message);
	tags = json_get(json, "tags");
	if (json_kind(json) != JSON_OBJECT ||
		(tags && json_kind(tags) != JSON_ARRAY && json_kind(tags) != JSON_NULL))
		return err_set(err, E_REGISTRY_RESPONSE, "the list of tags has no tags");
	if (!tags)
		return 0;
	for (const struct json *tag = json_first(tags); tag; tag = json_next(tag))
		if (json_str(tag) && ref_is_tag(json_str(tag)))
			strv_add(ret, json_str(tag));
	return 0;
}

/* Of the parameters of one link, up to its comma. */
static bool is_next(const char *s, size_t len)
{
	AUTO_FREE char *params = mem_strndup(s, len);

	for (const char *at = params; (at = strcasestr(at, "rel=")); at += 4) {
		const char *value = at + 4 + (at[4] == '"');

		if (strncasecmp(value, "next", 4) == 0 && strchr("\"; \t", value[4]))
			return true;
	}
	return false;
}

static char *next_in(const char *field)
{
	for (const char *open = field; (open = strchr(open, '<'));) {
		const char *close = strchr(open, '>');
		if (!close)
			return NULL;
		size_t len = strcspn(close, ",");
		if (is_next(close, len))
			return mem_strndup(open + 1, (size_t)(close - open - 1));
		open = close + len;
	}
	return NULL;
}

char *gc_next_page(const struct strv *headers)
{
	for (size_t i = 0; i < headers->n; i++) {
		char *next = str_starts(headers->v[i], "link:") ? next_in(headers->v[i]) : NULL;
		if (next)
			return next;
	}
	return NULL;
}

/* The newest of all times counts: a tag that was pushed again is as young as that. */
enum gc_tag_fate gc_tag_evaluate(const struct gc_tag_facts *facts, int64_t now_ms, int64_t keep_ms)
{
	int64_t newest_ms =
		facts->recorded_ms > facts->modified_ms ? facts->recorded_ms : facts->modified_ms;

	if (facts->needed)
		return GC_TAG_NEEDED;
	if (!facts->is_ours || newest_ms <= 0)
		return GC_TAG_UNKNOWN;
	return newest_ms > now_ms - keep_ms ? GC_TAG_YOUNG : GC_TAG_OLD;
}

/*
 * A cleaning
 */

struct cleaning {
	struct session *session;
	const struct gc_registry_options *options;
	struct gc_registry_report *report;
	struct store *store;
	int64_t now_ms;
	struct run_list runs;
	struct map known; /* tag of a run's image -> struct known */
	struct VEC_OF(struct known *) all_known;

	/* the repository */
	struct registry_client client;
	struct registry *registry;
	struct ref ref;
	char *cache_path;
	struct registry_cache cache;
	struct strv own, others;  /* tags */
	struct strv kept_digests; /* what tags of others stand for */
	bool others_read, others_unclear;
};

/* An image that runs of this machine have. */
struct known {
	bool needed;
	int64_t newest_ms;
};

static void leave_repository(struct cleaning *cleaning)
{
	registry_free(cleaning->registry);
	cleaning->registry = NULL;
	registry_client_done(&cleaning->client);
	registry_cache_done(&cleaning->cache);
	ref_done(&cleaning->ref);
	free(TAKE(cleaning->cache_path));
	strv_done(&cleaning->own);
	strv_done(&cleaning->others);
	strv_done(&cleaning->kept_digests);
	cleaning->others_read = cleaning->others_unclear = false;
}

static void cleaning_done(struct cleaning *cleaning)
{
	leave_repository(cleaning);
	vec_foreach (struct known *, known, &cleaning->all_known)
		free(*known);
	vec_done(&cleaning->all_known);
	map_done(&cleaning->known);
	run_list_done(&cleaning->runs);
}

/*
 * Images that runs need
 */

static void gc_registry_add_tag(struct cleaning *cleaning, const struct run *run, const char *tag)
{
	int64_t newest_ms = run_submitted_ms(run);
	struct known *known = map_get(&cleaning->known, tag);
	if (!known) {
		known = mem_alloc(1, sizeof(*known));
		*vec_push(&cleaning->all_known) = known;
		map_put(&cleaning->known, tag, known);
	}
	if (run_ended_ms(run) > newest_ms)
		newest_ms = run_ended_ms(run);
	if (newest_ms > known->newest_ms)
		known->newest_ms = newest_ms;
	known->needed |= !run_state_is_final(run_state(run));
}

static void gc_registry_add_image(
	struct cleaning *cleaning, const struct run *run, const char *digest)
{
	char tag[GC_TAG_SIZE];

	if (gc_tag_of(digest, tag))
		gc_registry_add_tag(cleaning, run, tag);
}

/* The tag of the environment that its image has, or NULL. The caller frees. */
static char *gc_registry_environment(const struct run *run)
{
	const char *key = json_get_str(json_get(run->spec, "setup"), "baked");

	return key ? image_environment_tag(key) : NULL;
}

/* A row that is left out of the list may need any image. Others may come and go meanwhile. */
static int gc_registry_list_runs(struct cleaning *cleaning, struct err *err)
{
	size_t before = 0, after = 0, lost;

	int r = store_count(cleaning->store, &before, err);
	if (r == 0)
		r = store_list(cleaning->store, &(struct store_filter){0}, &cleaning->runs, err);
	if (r == 0)
		r = store_count(cleaning->store, &after, err);
	if (r < 0)
		return r;
	lost = before < after ? before : after;
	if (lost <= cleaning->runs.n)
		return 0;
	lost -= cleaning->runs.n;
	err_set(err, E_STORE,
		"%zu %s of runs cannot be read, so that nobody knows what images they need", lost,
		lost == 1 ? "record" : "records");
	return err_hint(err, "dlrun doctor");
}

static int gc_registry_load_runs(struct cleaning *cleaning, struct err *err)
{
	AUTO_ERR struct err error = {0};

	int r = session_store(cleaning->session, &cleaning->store, err);
	if (r == 0)
		r = gc_registry_list_runs(cleaning, err);
	if (r < 0)
		return r;
	/* Runs that have ended unnoticed no longer need anything. */
	if (runs_refresh(cleaning->session, &cleaning->runs, REFRESH_MS, &error) < 0)
		log_note("%s", error.message);
	vec_foreach (struct run *, run, &cleaning->runs) {
		AUTO_FREE char *environment = gc_registry_environment(*run);

		gc_registry_add_image(cleaning, *run, run_image_digest(*run));
		gc_registry_add_image(cleaning, *run, run_attempt_image_digest(*run));
		if (environment)
			gc_registry_add_tag(cleaning, *run, environment);
	}
	return 0;
}

static bool is_tag_of(const char *tag, const char *digest)
{
	char own[GC_TAG_SIZE];

	return gc_tag_of(digest, own) && str_eq(own, tag);
}

/* Whether a run came, or was begun again, since the records were read. */
static int is_needed_now(struct cleaning *cleaning, const char *tag, bool *ret, struct err *err)
{
	const struct store_filter filters[] = {
		{.unfinished_only = true}, {.since_ms = cleaning->now_ms}};

	*ret = false;
	for (size_t i = 0; i < ARRAY_LEN(filters); i++) {
		AUTO(run_list_done) struct run_list runs = {0};

		int r = store_list(cleaning->store, &filters[i], &runs, err);
		if (r < 0)
			return r;
		vec_foreach (struct run *, run, &runs) {
			AUTO_FREE char *environment = gc_registry_environment(*run);
			*ret |= is_tag_of(tag, run_image_digest(*run)) ||
				is_tag_of(tag, run_attempt_image_digest(*run)) ||
				str_eq(environment, tag);
		}
	}
	return 0;
}

/*
 * Requests
 */

static int gc_registry_request(struct cleaning *cleaning, const char *method, const char *path,
	const struct url *url, const char *doing, struct registry_reply *ret, struct err *err)
{
	char accept[] = ACCEPT;
	char *fields[] = {accept, NULL};
	const struct strv headers = {.v = fields, .n = 1};

	return registry_query(&cleaning->client, cleaning->registry,
		&(struct registry_request){
			.method = method,
			.path = path,
			.url = url,
			.headers = &headers,
			.max_body = MANIFEST_SIZE_MAX,
			.accept = REGISTRY_NOT_FOUND | REGISTRY_REFUSED,
			.doing = doing,
		},
		ret, err);
}

static int request_manifest(struct cleaning *cleaning, const char *method, const char *reference,
	const char *doing, struct registry_reply *ret, struct err *err)
{
	AUTO_FREE char *path = mem_printf("manifests/%s", reference);

	return gc_registry_request(cleaning, method, path, NULL, doing, ret, err);
}

/* The page behind this one; 0: it was the last. */
static int next_page(const struct registry_reply *reply, struct url *ret, struct err *err)
{
	AUTO_FREE char *link = gc_next_page(&reply->headers);
	AUTO_URL struct url url = {0};

	if (!link)
		return 0;
	int r = url_resolve(&reply->url, link, "the next page of the list of tags", &url, err);
	if (r < 0)
		return r;
	if (!url_same_origin(&url, &reply->url))
		return err_set(err, E_REGISTRY_RESPONSE,
			"registry %s: the list of tags goes on at another server (%s)",
			reply->url.host, url.host);
	url_done(ret);
	*ret = url;
	url = (struct url){0};
	return 1;
}

static void sort_out(struct cleaning *cleaning, const struct strv *tags)
{
	vec_foreach (char *, tag, tags) {
		if (cleaning->own.n + cleaning->others.n >= GC_TAGS_MAX) {
			cleaning->report->more = cleaning->others_unclear = true;
			return;
		}
		strv_add(gc_tag_is_own(*tag) ? &cleaning->own : &cleaning->others, *tag);
	}
}

static int list_tags(struct cleaning *cleaning, struct err *err)
{
	AUTO_URL struct url url = {0};
	int r = 1;

	for (size_t i = 0; r == 1 && !cleaning->report->more; i++) {
		AUTO_REGISTRY_REPLY struct registry_reply reply = {0};
		AUTO_STRV struct strv tags = {0};

		if (i == GC_PAGES_MAX)
			return err_set(err, E_REGISTRY_RESPONSE,
				"registry %s: the list of tags has no end", cleaning->ref.host);
		r = gc_registry_request(cleaning, "GET", i ? NULL : "tags/list?n=1000",
			i ? &url : NULL, "listing tags", &reply, err);
		if (r < 0)
			return r;
		if (reply.status == 404 && i == 0)
			return 0; /* nobody has pushed yet */
		if (reply.status != 200)
			return err_set(err, E_REGISTRY_RESPONSE,
				"registry %s: the list of tags was answered with status %d",
				cleaning->ref.host, reply.status);
		r = gc_tags_parse(reply.body.data, reply.body.len, &tags, err);
		if (r < 0)
			return err_prefix(err, "registry %s", cleaning->ref.host);
		sort_out(cleaning, &tags);
		r = next_page(&reply, &url, err);
	}
	return r < 0 ? r : 0;
}

/*
 * A single tag
 */

/* Read the digests of tags of other forms, so that none of these goes with its digest. */
static int read_others(struct cleaning *cleaning, struct err *err)
{
	for (size_t i = 0; !cleaning->others_read && i < cleaning->others.n; i++) {
		AUTO_REGISTRY_REPLY struct registry_reply reply = {0};
		const char *digest;

		if (cleaning->others_unclear)
			break;
		int r = request_manifest(cleaning, "HEAD", cleaning->others.v[i],
			"looking at other tags", &reply, err);
		if (r < 0)
			return r;
		digest = field_find(&reply.headers, "docker-content-digest");
		if (reply.status == 200 && digest)
			strv_add(&cleaning->kept_digests, digest);
		else if (reply.status != 404)
			cleaning->others_unclear = true;
	}
	cleaning->others_read = true;
	return 0;
}

static bool has_role(const struct json *manifest)
{
	const struct json *layers = json_get(manifest, "layers");

	for (const struct json *layer = json_first(layers); layer; layer = json_next(layer))
		if (json_get_str(json_get(layer, "annotations"), IMAGE_ANNOTATION_ROLE))
			return true;
	return false;
}

/* Whether the manifest is one of dlrun's, and what its tag says. */
static bool gc_registry_is_ours(
	const char *tag, const struct registry_reply *reply, char digest[static DIGEST_TEXT_SIZE])
{
	AUTO_MANIFEST struct manifest manifest = {0};
	AUTO_ERR struct err err = {0};
	uint8_t sha256[SHA256_SIZE];
	char own[GC_TAG_SIZE];

	digest_sha256(reply->body.data, reply->body.len, sha256);
	digest_text(sha256, digest);
	if (manifest_parse(reply->body.data, reply->body.len, tag, &manifest, &err) < 0)
		return false;
	if (gc_tag_is_environment(tag)) {
		const char *key = json_get_str(
			json_get(manifest.json, "annotations"), IMAGE_LABEL_ENVIRONMENT);
		return key && str_starts(key, tag + strlen(IMAGE_ENVIRONMENT_TAG));
	}
	return gc_tag_of(digest, own) && str_eq(own, tag) && has_role(manifest.json);
}

/* When this machine has last seen or pushed it. */
static int64_t recorded_ms(
	const struct cleaning *cleaning, const struct known *known, const char *digest)
{
	const struct registry_cache_entry *hint =
		registry_cache_entry_find(&cleaning->cache.manifests, digest);
	int64_t newest_ms = known ? known->newest_ms : 0;

	return hint && hint->seen_ms > newest_ms ? hint->seen_ms : newest_ms;
}

/* Evaluate a tag without a request; false: the registry must be queried. */
static bool evaluate_known(
	struct cleaning *cleaning, const struct known *known, enum gc_tag_fate *ret)
{
	const struct gc_tag_facts facts = {.needed = known && known->needed,
		.is_ours = true,
		.recorded_ms = known ? known->newest_ms : 0};

	*ret = gc_tag_evaluate(&facts, cleaning->now_ms, cleaning->options->keep_ms);
	return *ret == GC_TAG_NEEDED || *ret == GC_TAG_YOUNG;
}

/* Evaluate a tag by the registry's response; digest is that of the image then. */
static enum gc_tag_fate gc_registry_evaluate_response(struct cleaning *cleaning, const char *tag,
	const struct registry_reply *reply, char digest[static DIGEST_TEXT_SIZE],
	int64_t *ret_age_ms)
{
	const char *modified = field_find(&reply->headers, "last-modified");
	struct gc_tag_facts facts = {.modified_ms = modified ? field_date(modified) : 0};
	int64_t newest_ms;

	if (reply->status == 200 && gc_registry_is_ours(tag, reply, digest)) {
		facts.is_ours = true;
		facts.recorded_ms = recorded_ms(cleaning, map_get(&cleaning->known, tag), digest);
	}
	newest_ms = facts.recorded_ms > facts.modified_ms ? facts.recorded_ms : facts.modified_ms;
	*ret_age_ms = newest_ms > 0 ? cleaning->now_ms - newest_ms : -1;
	return gc_tag_evaluate(&facts, cleaning->now_ms, cleaning->options->keep_ms);
}

/* 0: it is gone already. */
static int gc_registry_evaluate(struct cleaning *cleaning, const char *tag,
	char digest[static DIGEST_TEXT_SIZE], struct gc_tag *ret, struct err *err)
{
	const struct known *known = map_get(&cleaning->known, tag);
	AUTO_REGISTRY_REPLY struct registry_reply reply = {0};

	ret->age_ms = known ? cleaning->now_ms - known->newest_ms : -1;
	if (evaluate_known(cleaning, known, &ret->fate))
		return 1;
	int r = request_manifest(cleaning, "GET", tag, "reading an image", &reply, err);
	if (r < 0 || reply.status == 404)
		return r;
	ret->fate = gc_registry_evaluate_response(cleaning, tag, &reply, digest, &ret->age_ms);
	if (ret->fate != GC_TAG_OLD)
		return 1;
	r = read_others(cleaning, err);
	if (strv_find(&cleaning->kept_digests, digest) >= 0)
		ret->fate = GC_TAG_SHARED;
	return r < 0 ? r : 1;
}

/*
 * Deleting
 */

static bool gc_registry_is_deleted(int status)
{
	return (status >= 200 && status < 300) || status == 404;
}

/* First the tag, for registries that know how; then the image, which takes all its tags along, so
 * that it is left alone when they are not all known. 0: it stays. */
static int delete_image(
	struct cleaning *cleaning, const char *tag, const char *digest, struct err *err)
{
	AUTO_REGISTRY_REPLY struct registry_reply by_tag = {0}, by_digest = {0};
	const char *doing = "deleting an image";

	int r = request_manifest(cleaning, "DELETE", tag, doing, &by_tag, err);
	if (r < 0)
		return r;
	if (cleaning->others_unclear)
		return gc_registry_is_deleted(by_tag.status) ? 1 : 0;
	r = request_manifest(cleaning, "DELETE", digest, doing, &by_digest, err);
	if (r < 0)
		return r;
	if (gc_registry_is_deleted(by_tag.status) || gc_registry_is_deleted(by_digest.status))
		return 1;
	err_set(err, E_REGISTRY_UNSUPPORTED, "registry %s does not let images be deleted",
		cleaning->ref.host);
	err_evidence(err, "status %d for DELETE", by_digest.status);
	return err_hint(err,
		"give the registry a rule of its own that lets tags " GC_TAG_PREFIX "* expire");
}

/* The next push must not take for granted that it is there. */
static int gc_registry_forget(struct cleaning *cleaning, const char *digest, struct err *err)
{
	registry_cache_done(&cleaning->cache);
	registry_cache_load(cleaning->cache_path, &cleaning->cache);
	registry_cache_drop(&cleaning->cache, &cleaning->cache.manifests, digest);
	for (size_t i = cleaning->cache.tags.n; i > 0; i--)
		if (str_eq(cleaning->cache.tags.v[i - 1].value, digest)) {
			AUTO_FREE char *name = mem_strdup(cleaning->cache.tags.v[i - 1].name);
			registry_cache_drop(&cleaning->cache, &cleaning->cache.tags, name);
		}
	return registry_cache_save(cleaning->cache_path, &cleaning->cache, err);
}

/* The entry goes after the image, as it tells the age; no push believes it without a request. */
static int delete_and_forget(
	struct cleaning *cleaning, const char *tag, const char *digest, struct err *err)
{
	int r = delete_image(cleaning, tag, digest, err);

	if (r > 0 && gc_registry_forget(cleaning, digest, err) < 0)
		return -(int)err->code;
	return r;
}

/* Alone, so that no submit takes the image for its own meanwhile. */
static int delete_alone(struct cleaning *cleaning, const char *tag, const char *digest,
	struct gc_tag *item, struct err *err)
{
	AUTO_FD int lock_fd = -1;
	bool needed = false;

	int r = session_lock(cleaning->session, true, ALONE_MS, &lock_fd, err);
	if (r == 0)
		r = is_needed_now(cleaning, tag, &needed, err);
	if (r < 0)
		return r;
	if (needed) {
		item->fate = GC_TAG_NEEDED;
		return 0;
	}
	r = delete_and_forget(cleaning, tag, digest, err);
	if (r == 0)
		item->fate = GC_TAG_UNKNOWN;
	return r < 0 ? r : 0;
}

static int clean_tag(struct cleaning *cleaning, const char *tag, struct err *err)
{
	struct gc_registry_report *report = cleaning->report;
	char digest[DIGEST_TEXT_SIZE] = "";
	struct gc_tag item = {0};

	int r = gc_registry_evaluate(cleaning, tag, digest, &item, err);
	if (r > 0 && item.fate == GC_TAG_OLD && !cleaning->options->dry_run)
		r = delete_alone(cleaning, tag, digest, &item, err) < 0 ? -(int)err->code : 1;
	if (r <= 0)
		return r;
	item.name = mem_printf("%s/%s:%s", cleaning->ref.host, cleaning->ref.repo, tag);
	*vec_push(&report->tags) = item;
	report->n[item.fate]++;
	return 0;
}

/*
 * All of it
 */

static int enter_repository(struct cleaning *cleaning, const char *name, struct err *err)
{
	AUTO_FREE char *dir = fs_join(cleaning->session->dirs.cache, "registry");

	int r = ref_parse(name, &cleaning->ref, err);
	if (r == 0)
		r = fs_private_dir(dir, err);
	if (r == 0)
		r = registry_query_init(&cleaning->client, cleaning->session, LIMIT_MS, err);
	if (r < 0)
		return r;
	cleaning->cache_path = registry_cache_path(dir, cleaning->ref.host, cleaning->ref.repo);
	registry_cache_load(cleaning->cache_path, &cleaning->cache);
	r = registry_query_open(
		&cleaning->client, name, !cleaning->options->dry_run, &cleaning->registry, err);
	if (r < 0 || cleaning->options->dry_run)
		return r;
	AUTO_FREE char *path = registry_repo_path(cleaning->registry, cleaning->ref.repo);
	AUTO_FREE char *scope = mem_printf("repository:%s:delete,pull,push", path);
	auth_add_scope(registry_auth(cleaning->registry), scope);
	return 0;
}

static int clean_repository(struct cleaning *cleaning, const char *name, struct err *err)
{
	strv_add(&cleaning->report->repositories, name);
	int r = enter_repository(cleaning, name, err);
	if (r == 0)
		r = list_tags(cleaning, err);
	for (size_t i = 0; r == 0 && i < cleaning->own.n; i++)
		r = clean_tag(cleaning, cleaning->own.v[i], err);
	leave_repository(cleaning);
	return r;
}

static int find_repositories(struct cleaning *cleaning, struct strv *ret, struct err *err)
{
	const char *target = cleaning->options->target;
	AUTO_REGISTRY_CONFIG struct registry_config one = {0};
	struct config *config;

	int r = session_config(cleaning->session, &config, err);
	if (r == 0 && target)
		r = registry_config_find(config, target, &one, err);
	if (r < 0)
		return r;
	if (one.push)
		strv_add(ret, one.push);
	else if (!target)
		registry_config_all(config, ret);
	if (ret->n)
		return 0;
	err_set(err, E_CONFIG, "no registry is set");
	return err_hint(err, "registry: registry.example.com/me/dlrun");
}

int gc_registry(struct session *session, const struct gc_registry_options *options,
	struct gc_registry_report *ret, struct err *err)
{
	AUTO(cleaning_done)
	struct cleaning cleaning = {
		.session = session, .options = options, .report = ret, .now_ms = clock_wall_ms()};
	AUTO_STRV struct strv repositories = {0};

	*ret = (struct gc_registry_report){0};
	int r = find_repositories(&cleaning, &repositories, err);
	if (r == 0)
		r = gc_registry_load_runs(&cleaning, err);
	for (size_t i = 0; r == 0 && i < repositories.n; i++)
		r = clean_repository(&cleaning, repositories.v[i], err);
	return r;
}

void gc_registry_report_done(struct gc_registry_report *report)
{
	if (!report)
		return;
	vec_foreach (struct gc_tag, tag, &report->tags)
		free(tag->name);
	vec_done(&report->tags);
	strv_done(&report->repositories);
	*report = (struct gc_registry_report){0};
}
