/* SPDX-License-Identifier: Apache-2.0 */
#include "app/environment/environment.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/environment/bake.h"
#include "app/prepare/push.h"
#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/image/image_facts.h"
#include "core/image/registry_open.h"
#include "core/record/setup_key.h"
#include "kube/api/kinds.h"
#include "oci/layer/layer.h"
#include "oci/layer/tar_stream.h"

enum {
	BUSY_MS = 1000,
	CHUNK = 1 << 20,
	FILES_MAX = 1000 * 1000,
	LIST_MAX = 16 << 20, /* bytes of a list of names */
};

struct environment {
	struct submit *submit;
	char key[SHA256_HEX_SIZE];
	struct ref to;     /* its repository: that of the code */
	char *base_digest; /* NULL: the base is a layout here */
	volatile int interrupted;
};

static void environment_done(struct environment *environment)
{
	free(environment->base_digest);
	ref_done(&environment->to);
}

static bool environment_is_wanted(const struct submit *submit)
{
	const struct runtime_setup *setup = &submit->spec.runtime.setup;

	return !submit->dry_run && submit->is_recorded && submit->place && !submit->from_digest &&
	       setup->run && submit->pack.base_ref.kind != REF_SCRATCH &&
	       submit->target->ops->needs_image && submit->target->ops->exec;
}

/*
 * Looking up
 */

struct lookup {
	struct loop_wait wait;
	char *digest;
	struct err error;
};

static int environment_found(void *ctx, const char *digest, struct err *error, struct err *err)
{
	struct lookup *lookup = ctx;

	(void)err;
	if (digest)
		lookup->digest = mem_strdup(digest);
	else
		err_move(&lookup->error, error);
	loop_wait_done(&lookup->wait);
	return 0;
}

static void lookup_done(struct lookup *lookup)
{
	free(lookup->digest);
	err_done(&lookup->error);
}

static char *environment_tag_key(const struct submit *submit, const struct ref *ref)
{
	return mem_printf(
		"%s %s", ref->tag ? ref->tag : "latest", config_str(submit->config, "platform"));
}

static char *environment_cache_path(const struct submit *submit, const struct ref *ref)
{
	AUTO_FREE char *dir = dirs_registries(&submit->session->dirs);

	return registry_cache_path(dir, ref->host, ref->repo);
}

static void environment_note(void *ctx, const char *text)
{
	const struct submit_events *events = ((struct submit *)ctx)->events;

	if (events && events->note)
		events->note(events->ctx, text);
}

static int environment_open_bases(const struct submit *submit, struct layout **ret, struct err *err)
{
	AUTO_FREE char *registries = dirs_registries(&submit->session->dirs);
	AUTO_FREE char *dir = fs_join(registries, "bases");
	int r = fs_private_dir(registries, err);

	return r < 0 ? r : layout_open(dir, true, ret, err);
}

static int environment_query(struct submit *submit, const struct ref *ref,
	struct registry_cache *cache, struct lookup *lookup, struct err *err)
{
	AUTO(registry_client_done) struct registry_client client = {0};
	AUTO_FREE char *key = environment_tag_key(submit, ref);
	const struct registry_cache_entry *tag = registry_cache_entry_find(&cache->tags, key);
	AUTO_LAYOUT struct layout *bases = NULL;
	struct registry *registry = NULL;

	registry_client_init(&client, &(struct registry_client_options){
					      .session = submit->session,
					      .config = submit->config,
					      .target = submit->target,
					      .loop = submit->target->loop,
					      .begun_ms = clock_ms(),
					      .note = environment_note,
					      .ctx = submit,
				      });
	int r = environment_open_bases(submit, &bases, err);
	if (r == 0)
		r = registry_client_open(&client, ref, false, cache, &registry, err);
	if (r < 0)
		return r;
	lookup->wait = (struct loop_wait){.loop = submit->target->loop, .n_open = 1};
	struct registry_base *base = registry_base_start(
		registry, &(struct registry_base_request){.ref = ref,
				  .older = tag ? tag->value : NULL,
				  .platform = config_str(submit->config, "platform"),
				  .cache = bases,
				  .found = environment_found,
				  .ctx = lookup});
	r = loop_wait_run(&lookup->wait, err);
	registry_base_free(base);
	registry_client_learn(registry, cache);
	registry_free(registry);
	return r;
}

/* The digest that ref stands for, by what was found out not longer ago than trust_ms; *ret is NULL
 * if the registry has none. */
static int environment_lookup(
	struct submit *submit, const struct ref *ref, int64_t trust_ms, char **ret, struct err *err)
{
	AUTO_FREE char *path = environment_cache_path(submit, ref);
	AUTO_FREE char *key = environment_tag_key(submit, ref);
	AUTO_REGISTRY_CACHE struct registry_cache cache = {0};
	AUTO(lookup_done) struct lookup lookup = {0};

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
	int r = environment_query(submit, ref, &cache, &lookup, err);
	if (r < 0)
		return r;
	if (lookup.digest)
		registry_cache_put(&cache, &cache.tags, key, lookup.digest, clock_wall_ms());
	registry_cache_save(path, &cache, NULL);
	*ret = TAKE(lookup.digest);
	if (!*ret && lookup.error.id != E_IMAGE_BASE)
		return err_move(err, &lookup.error);
	return 0;
}

/* Of the submit's own repository; borrows its host and repository. */
static struct ref environment_ref(const struct environment *environment, char *tag)
{
	const struct ref *to = &environment->to;

	return (struct ref){.kind = REF_REGISTRY, .host = to->host, .repo = to->repo, .tag = tag};
}

static char *environment_tag(const struct environment *environment)
{
	return mem_printf(IMAGE_ENVIRONMENT_TAG "%.*s", IMAGE_ENVIRONMENT_HEX, environment->key);
}

static int environment_find(struct environment *environment, char **ret, struct err *err)
{
	AUTO_FREE char *tag = environment_tag(environment);
	const struct ref ref = environment_ref(environment, tag);

	return environment_lookup(environment->submit, &ref, REGISTRY_TRUST_BLOB_MS, ret, err);
}

/* Do not take for granted any more that the registry has it. */
static void environment_forget(const struct environment *environment)
{
	AUTO_FREE char *tag = environment_tag(environment);
	const struct ref ref = environment_ref(environment, tag);
	AUTO_FREE char *path = environment_cache_path(environment->submit, &ref);
	AUTO_FREE char *key = environment_tag_key(environment->submit, &ref);
	AUTO_REGISTRY_CACHE struct registry_cache cache = {0};

	registry_cache_load(path, &cache);
	registry_cache_drop(&cache, &cache.tags, key);
	registry_cache_save(path, &cache, NULL);
}

/*
 * The key
 */

static int environment_make_key(struct environment *environment, struct err *err)
{
	struct submit *submit = environment->submit;
	const struct pack *pack = &submit->pack;
	const struct runtime_setup *setup = &submit->spec.runtime.setup;
	int r = 0;

	if (pack->base_ref.kind == REF_REGISTRY) {
		r = environment_lookup(submit, &pack->base_ref, REGISTRY_TRUST_TAG_MS,
			&environment->base_digest, err);
		if (r == 0 && !environment->base_digest)
			return 1;
	}
	if (r < 0)
		return r;
	AUTO_FREE char *where = mem_printf("%s %s %s",
		environment->base_digest ? environment->base_digest : pack->base->manifest.digest,
		config_str(submit->config, "platform"), config_str(submit->config, "workdir"));
	return setup_key(setup, where, submit->place->root, environment->key, err);
}

/*
 * Reading what a pod has sent
 */

/* A file or link of the environment. */
struct environment_file {
	struct entry entry;
	uint64_t at; /* of its content in the tar */
};

struct taken {
	const char *tree; /* in the image, without its first slash: "dlrun/src" */
	int fd;
	struct VEC_OF(struct environment_file) files;
	struct VEC_OF(struct environment_file) hardlinks; /* target: the path of another */
	struct arena arena;
	struct buf tops, gone; /* lists of names, a line for each */
	struct buf *list;      /* that the present member is; or NULL: it is a file */
	struct digest digest;
	const char *chunk;
	uint64_t chunk_at;
	bool has_content; /* of the present member some has come */
	/* result */
	struct entry_list entries;
	struct strv removed;
	uint64_t bytes;
};

static void taken_done(struct taken *taken)
{
	vec_done(&taken->files);
	vec_done(&taken->hardlinks);
	arena_done(&taken->arena);
	buf_done(&taken->tops);
	buf_done(&taken->gone);
	digest_done(&taken->digest);
	free(taken->entries.v);
	strv_done(&taken->removed);
}

/* "dlrun/src/.venv/x" is "dlrun/env/tree/.venv/x" in the layer. */
static const char *taken_path(struct taken *taken, const char *path)
{
	size_t len = strlen(taken->tree);

	path += str_starts(path, "./") ? 2 : 0;
	if (strncmp(path, taken->tree, len) != 0 || path[len] != '/')
		return arena_strdup(&taken->arena, path);
	AUTO_FREE char *moved = mem_printf("%s%s", KUBE_BAKED + 1, path + len);
	return arena_strdup(&taken->arena, moved);
}

static int environment_take_member(void *ctx, const struct tar_member *member, struct err *err)
{
	struct taken *taken = ctx;
	struct environment_file file = {.entry = {.size = member->size}};

	taken->list = str_eq(member->path, "tops")   ? &taken->tops
		      : str_eq(member->path, "gone") ? &taken->gone
						     : NULL;
	taken->has_content = false;
	digest_done(&taken->digest);
	digest_begin(&taken->digest, DIGEST_SHA256);
	if (taken->list || member->kind == TAR_DIR || member->kind == TAR_OTHER)
		return 0;
	if (taken->files.n + taken->hardlinks.n >= FILES_MAX)
		return err_set(
			err, E_DATA_LIMIT, "the setup has made more than %d files", FILES_MAX);
	file.entry.path = taken_path(taken, member->path);
	file.entry.exec = (member->mode & 0100) != 0;
	if (member->kind == TAR_HARDLINK) {
		file.entry.target = taken_path(taken, member->target);
		*vec_push(&taken->hardlinks) = file;
		return 0;
	}
	if (member->kind == TAR_LINK) {
		file.entry.kind = ENTRY_LINK;
		file.entry.exec = false;
		file.entry.target = arena_strdup(&taken->arena, member->target);
		file.entry.size = strlen(member->target);
		digest_sha256(member->target, file.entry.size, file.entry.sha256);
	}
	taken->bytes += member->size;
	*vec_push(&taken->files) = file;
	return 0;
}

static int environment_take_data(void *ctx, const void *data, size_t len, struct err *err)
{
	struct taken *taken = ctx;

	if (taken->list) {
		buf_add(taken->list, data, len);
		return buf_check(taken->list, "a list of names", err);
	}
	if (!taken->has_content)
		taken->files.v[taken->files.n - 1].at =
			taken->chunk_at + (uint64_t)((const char *)data - taken->chunk);
	taken->has_content = true;
	digest_add(&taken->digest, data, len);
	return 0;
}

static int environment_take_end(void *ctx, struct err *err)
{
	struct taken *taken = ctx;

	(void)err;
	if (!taken->list)
		digest_end(&taken->digest, taken->files.v[taken->files.n - 1].entry.sha256);
	return 0;
}

static int environment_read_tar(struct taken *taken, struct err *err)
{
	const struct tar_events events = {.member = environment_take_member,
		.data = environment_take_data,
		.end = environment_take_end,
		.ctx = taken};
	AUTO(tar_stream_free_auto) struct tar_stream *stream = tar_stream_new(&events);
	AUTO_FREE char *chunk = mem_alloc(1, CHUNK);
	int r = 0;

	taken->chunk = chunk;
	while (r == 0) {
		ssize_t n = pread(taken->fd, chunk, CHUNK, (off_t)taken->chunk_at);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return fs_error(err, errno, "reading the environment");
		if (n == 0)
			return tar_stream_finish(stream, err);
		r = tar_stream_add(stream, chunk, (size_t)n, err);
		taken->chunk_at += (uint64_t)n;
	}
	return r;
}

static int environment_by_path(const void *a, const void *b)
{
	return strcmp(((const struct environment_file *)a)->entry.path,
		((const struct environment_file *)b)->entry.path);
}

static const struct environment_file *taken_find(const struct taken *taken, const char *path)
{
	const struct environment_file wanted = {.entry = {.path = path}};

	return taken->files.n ? bsearch(&wanted, taken->files.v, taken->files.n, sizeof(wanted),
					environment_by_path)
			      : NULL;
}

/* Whether something of the environment lies at or below path. */
static bool taken_has(const struct taken *taken, const char *path)
{
	size_t from = 0, to = taken->files.n, len = strlen(path);

	while (from < to) {
		size_t middle = from + (to - from) / 2;
		if (strcmp(taken->files.v[middle].entry.path, path) < 0)
			from = middle + 1;
		else
			to = middle;
	}
	for (; from < taken->files.n; from++) {
		const char *found = taken->files.v[from].entry.path;
		if (strncmp(found, path, len) != 0)
			return false;
		if (found[len] == '\0' || found[len] == '/')
			return true;
	}
	return false;
}

/* The content of a hard link lies where that of its file does. */
static void taken_add_hardlinks(struct taken *taken)
{
	size_t n = 0;

	vec_foreach (struct environment_file, link, &taken->hardlinks) {
		const struct environment_file *same = taken_find(taken, link->entry.target);
		const char *path = link->entry.path;
		if (!same)
			continue;
		*link = *same;
		link->entry.path = path;
		taken->hardlinks.v[n++] = *link;
	}
	for (size_t i = 0; i < n; i++)
		*vec_push(&taken->files) = taken->hardlinks.v[i];
	vec_sort(&taken->files, environment_by_path);
}

/* Each line of list, without the first slash. A negative return of fn ends it. */
static int environment_each_line(struct taken *taken, const struct buf *list,
	void (*fn)(struct taken *taken, const char *path))
{
	for (const char *at = list->len ? list->data : ""; *at; at += strspn(at, "\n")) {
		size_t len = strcspn(at, "\n");
		AUTO_FREE char *line = mem_strndup(at, len);
		fn(taken, line + strspn(line, "/"));
		at += len;
	}
	return 0;
}

static void environment_add_removed(struct taken *taken, const char *path)
{
	if (*path && !taken_has(taken, path))
		strv_add(&taken->removed, path);
}

/* A path of the tree that links lead to from the trees of runs. */
static void environment_add_top(struct taken *taken, const char *path)
{
	size_t len = strlen(taken->tree);

	if (strncmp(path, taken->tree, len) == 0 && path[len] == '/') {
		buf_adds(&taken->gone, path + len + 1);
		buf_addc(&taken->gone, '\n');
	}
}

static int environment_by_text(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The list of links is a file of the environment: its content goes behind the tar. */
static int environment_add_links(struct taken *taken, struct err *err)
{
	struct environment_file file = {.entry = {.path = KUBE_BAKED_LINKS + 1}};
	off_t end = lseek(taken->fd, 0, SEEK_END);

	buf_reset(&taken->gone);
	environment_each_line(taken, &taken->tops, environment_add_top);
	int r = buf_check(&taken->gone, "a list of names", err);
	if (r == 0 && end < 0)
		r = fs_error(err, errno, "the environment");
	if (r == 0)
		r = fs_write_fd(
			taken->fd, "the environment", taken->gone.data, taken->gone.len, err);
	if (r < 0)
		return r;
	file.at = (uint64_t)end;
	file.entry.size = taken->gone.len;
	digest_sha256(taken->gone.data, taken->gone.len, file.entry.sha256);
	*vec_push(&taken->files) = file;
	return 0;
}

/* Files that are there twice, or below another, are none of tar's making. */
static int environment_check_order(const struct taken *taken, struct err *err)
{
	for (size_t i = 1; i < taken->files.n; i++) {
		const char *before = taken->files.v[i - 1].entry.path;
		const char *path = taken->files.v[i].entry.path;
		size_t len = strlen(before);
		if (strncmp(path, before, len) == 0 && (path[len] == '/' || path[len] == '\0'))
			return err_set(err, E_DATA, "the environment has a file twice: %s", path);
	}
	return 0;
}

static int environment_read(struct taken *taken, struct err *err)
{
	buf_init(&taken->tops, LIST_MAX);
	buf_init(&taken->gone, LIST_MAX);
	int r = environment_read_tar(taken, err);
	if (r < 0)
		return r;
	vec_sort(&taken->files, environment_by_path);
	taken_add_hardlinks(taken);
	environment_each_line(taken, &taken->gone, environment_add_removed);
	vec_sort(&taken->removed, environment_by_text);
	r = environment_add_links(taken, err);
	if (r < 0)
		return r;
	vec_sort(&taken->files, environment_by_path);
	vec_foreach (const struct environment_file, file, &taken->files)
		*vec_push(&taken->entries) = file->entry;
	return environment_check_order(taken, err);
}

/* Files are read one after the other. */
static int environment_open_file(void *ctx, const struct entry *entry, int *ret_fd, struct err *err)
{
	const struct taken *taken = ctx;
	AUTO_FD int fd = fcntl(taken->fd, F_DUPFD_CLOEXEC, 0);
	uint64_t at = taken->files.v[entry - taken->entries.v].at;

	if (fd < 0 || lseek(fd, (off_t)at, SEEK_SET) < 0)
		return fs_error(err, errno, "%s", entry->path);
	*ret_fd = TAKE_FD(fd);
	return 0;
}

/*
 * Signals
 */

static const int environment_signals[] = {SIGINT, SIGTERM, SIGHUP};

static int environment_on_signal(void *ctx, int sig, struct err *err)
{
	struct environment *environment = ctx;

	(void)sig;
	(void)err;
	environment->interrupted = 1;
	return 0;
}

static void environment_unwatch(struct environment *environment)
{
	for (size_t i = 0; i < ARRAY_LEN(environment_signals); i++)
		loop_remove_signal(environment->submit->target->loop, environment_signals[i]);
}

static int environment_watch(struct environment *environment, struct err *err)
{
	struct loop *loop = environment->submit->target->loop;
	int r = 0;

	for (size_t i = 0; r == 0 && i < ARRAY_LEN(environment_signals); i++)
		r = loop_add_signal(
			loop, environment_signals[i], environment_on_signal, environment, err);
	return r;
}

static int environment_bake(const struct bake_request *request, struct environment *environment,
	enum bake_result *ret, struct err *err)
{
	int r = environment_watch(environment, err);

	if (r == 0)
		r = bake_make(request, ret, err);
	environment_unwatch(environment);
	return r;
}

static int environment_pause(struct environment *environment, struct err *err)
{
	struct loop_wait wait = {
		.loop = environment->submit->target->loop,
		.n_open = 1,
		.deadline_ms = clock_ms() + BUSY_MS,
		.interrupted = &environment->interrupted,
	};
	int r = environment_watch(environment, err);

	if (r == 0)
		r = loop_wait_run(&wait, err);
	environment_unwatch(environment);
	return r;
}

/*
 * Making
 */

/* The base as it was looked up, whatever its tag stands for by now; NULL: that of the
 * configuration, which is a layout. The caller frees. */
static char *environment_base(const struct environment *environment)
{
	const struct ref *ref = &environment->submit->pack.base_ref;

	return environment->base_digest
		       ? mem_printf("%s/%s@%s", ref->host, ref->repo, environment->base_digest)
		       : NULL;
}

static int environment_push_layer(
	struct environment *environment, struct taken *taken, char **ret_digest, struct err *err)
{
	const struct submit *for_submit = environment->submit;
	const struct pack_environment layer = {
		.entries = &taken->entries,
		.removed = &taken->removed,
		.opener = {environment_open_file, taken, .is_part = true},
		.key = environment->key,
	};
	AUTO_FREE char *base = environment_base(environment);
	AUTO(submit_done)
	struct submit submit = {.session = for_submit->session,
		.events = for_submit->events,
		.environment = &layer,
		.begun_ms = clock_ms()};

	int r = session_config(submit.session, &submit.config, err);
	if (r == 0)
		r = push_find_registry(&submit, for_submit->target->name, err);
	if (r < 0)
		return r;
	submit.to.tag = environment_tag(environment);
	r = pack_init(&submit.pack, submit.session, base, true, err);
	submit.target = for_submit->target;
	if (r == 0)
		r = push_to_registry(&submit, err);
	submit.target = NULL; /* the caller's */
	if (r == 0)
		*ret_digest = mem_strdup(submit.image.manifest.digest);
	return r;
}

static int environment_push_code(
	struct environment *environment, struct push_result *ret, struct err *err)
{
	const struct submit *submit = environment->submit;
	AUTO_FREE char *base = environment_base(environment);
	const struct push_options options = {
		.target = submit->target->name, .base = base, .tree = submit->options};

	return push_image(submit->session, &options, NULL, ret, err);
}

/* Of the base. */
static int environment_facts(
	const struct environment *environment, struct json **ret, struct err *err)
{
	const struct submit *submit = environment->submit;
	AUTO_IMAGE_FACTS struct image_facts facts = {0};
	AUTO_LAYOUT struct layout *bases = NULL;
	AUTO(image_base_free_auto) struct image_base *base = NULL;
	int r = 0;

	if (environment->base_digest) {
		r = environment_open_bases(submit, &bases, err);
		if (r == 0)
			r = pack_read_base(
				&submit->pack, bases, environment->base_digest, &base, err);
	}
	if (r < 0)
		return r;
	image_facts_of_config((base ? base : submit->pack.base)->config_json,
		config_str(submit->config, "platform"), config_str(submit->config, "workdir"),
		&facts);
	*ret = image_facts_to_json(&facts);
	return 0;
}

/* *ret_digest: NULL where another has taken what was made, and is about to push it. */
static int environment_take(struct environment *environment, const struct push_result *code,
	enum bake_result *ret, char **ret_digest, struct err *err)
{
	struct submit *submit = environment->submit;
	AUTO_STAGE struct blob_stage stage = {.fd = -1};
	AUTO(taken_done) struct taken taken = {0};
	AUTO_JSON struct json *facts = NULL;
	const char *cache = submit->session->dirs.cache;

	int r = fs_private_dir(cache, err);
	AUTO_FD int cache_fd = open(cache, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (r == 0 && cache_fd < 0)
		r = fs_error(err, errno, "%s", cache);
	if (r == 0)
		r = blob_stage_begin(&stage, cache_fd, err);
	if (r == 0)
		r = environment_facts(environment, &facts, err);
	if (r < 0)
		return r;
	const struct bake_request request = {
		.submit = submit,
		.key = environment->key,
		.image_ref = code->ref,
		.image_facts = facts,
		.out_fd = stage.fd,
		.interrupted = &environment->interrupted,
	};
	r = environment_bake(&request, environment, ret, err);
	if (r < 0 || *ret != BAKE_DONE)
		return r;
	taken.tree = layer_prefix(config_str(submit->config, "workdir"));
	taken.fd = stage.fd;
	r = environment_read(&taken, err);
	if (r == 0)
		r = environment_push_layer(environment, &taken, ret_digest, err);
	bake_remove(submit, environment->key);
	return r;
}

/* *ret_digest: NULL where it cannot be made, and the setup is run in each pod. */
static int environment_make(struct environment *environment, char **ret_digest, struct err *err)
{
	struct submit *submit = environment->submit;
	AUTO(push_result_done) struct push_result code = {0};
	AUTO_ERR struct err error = {0};
	AUTO_FREE char *text = mem_printf("environment: made once in a pod of %s, by %s",
		submit->target->name, submit->spec.runtime.setup.run);

	environment_note(submit, text);
	int r = environment_push_code(environment, &code, err);
	while (r == 0 && !*ret_digest) {
		enum bake_result result = BAKE_DONE;
		r = environment_take(environment, &code, &result, ret_digest, &error);
		if (r < 0)
			return err_move(err, &error);
		if (result == BAKE_CANNOT) {
			submit_warn(submit, "the setup is run in each pod: %s", error.message);
			return 0;
		}
		if (result == BAKE_BUSY)
			r = environment_pause(environment, err);
		if (r == 0 && !*ret_digest)
			r = environment_find(environment, ret_digest, err);
	}
	return r;
}

/* The environment takes the place of the base, under the base's name. */
static int environment_set_base(
	struct environment *environment, const char *digest, struct err *err)
{
	struct submit *submit = environment->submit;
	struct pack *pack = &submit->pack;
	AUTO_FREE char *text =
		mem_printf("%s/%s@%s", environment->to.host, environment->to.repo, digest);

	ref_done(&pack->base_ref);
	pack_set_base(pack, NULL);
	submit->spec.runtime.setup.baked = mem_strdup(environment->key);
	return ref_parse(text, &pack->base_ref, err);
}

/* Nothing where the target has no registry: submit_push says so. */
static int environment_find_registry(struct environment *environment, struct err *err)
{
	AUTO(submit_done) struct submit own = {.config = environment->submit->config};
	int r = push_find_registry(&own, environment->submit->target->name, err);

	if (r > 0) {
		environment->to = own.to;
		own.to = (struct ref){0};
	}
	return r;
}

static int environment_use(struct environment *environment, struct err *err)
{
	struct submit *submit = environment->submit;
	AUTO_FREE char *digest = NULL;
	int64_t begun_ms = clock_ms();

	if (submit->spec.runtime.setup.key.n == 0) {
		submit_note(submit,
			"the setup is run in each pod: setup.key names no files that it "
			"depends on");
		return 0;
	}
	int r = environment_find_registry(environment, err);
	if (r <= 0)
		return r;
	r = environment_make_key(environment, err);
	if (r == 0)
		r = environment_find(environment, &digest, err);
	if (r == 0 && !digest) {
		r = environment_make(environment, &digest, err);
		if (r == 0 && digest)
			submit_note(submit,
				"environment " IMAGE_ENVIRONMENT_TAG "%.*s: made in %.0f s",
				IMAGE_ENVIRONMENT_HEX, environment->key,
				(double)(clock_ms() - begun_ms) / 1000);
	}
	if (r == 0 && digest)
		r = environment_set_base(environment, digest, err);
	/* A base that is not there is the push's to report. */
	return r < 0 ? r : 0;
}

/* Whatever base the run gets next has it not. */
static void environment_leave(struct runtime_setup *setup)
{
	free(setup->baked);
	setup->baked = NULL;
}

int environment_push(struct submit *submit, struct err *err)
{
	AUTO(environment_done) struct environment environment = {.submit = submit};
	struct runtime_setup *setup = &submit->spec.runtime.setup;

	environment_leave(setup);
	int r = environment_is_wanted(submit) ? environment_use(&environment, err) : 0;
	if (r == 0)
		r = submit_push(submit, err);
	if (r < 0 && setup->baked) {
		environment_forget(&environment);
		environment_leave(setup);
	}
	return r;
}
