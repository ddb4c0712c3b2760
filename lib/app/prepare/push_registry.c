/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "app/prepare/prepare.h"
#include "base/loop/task.h"
#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/registry_config.h"
#include "core/image/dirty.h"
#include "core/image/image_facts.h"
#include "core/image/registry_open.h"
#include "core/target/target.h"
#include "oci/layout/layout.h"
#include "oci/registry/registry_sink.h"

enum {
	CHECK_MS = 10000,
	PROGRESS_MS = 100,
	SESSIONS = 2, /* a layer and the configuration: what an edit uploads */
};

/* The base image, looked up in a registry. */
struct push_base {
	struct registry *source; /* of a login or a host of its own; or NULL */
	struct registry_cache cache;
	char *cache_path;
	struct layout *layout; /* of manifests that were read */
	struct registry_base *lookup;
	char *digest;
	struct image_base *image; /* until the work has it */
	struct err error;
	bool is_known, is_requested;
};

/* The target's check of a run. */
struct push_check {
	struct target_call call;
	struct target_job job;
	struct run *draft; /* what the check is about */
	struct spec spec;  /* of it: the work changes the submit's meanwhile */
	int64_t requested_ms;
	struct strv notes;
	struct err refused;
	struct task *waiting; /* the work, when it waits for the check */
	bool is_done;
};

/* A push to a registry while it is under way. The members of the submit that the work of the task
 * sets are left alone by the loop until the work asks or has ended; the work uses no other object
 * until it has asked for the first time. */
struct push {
	struct submit *submit;
	struct loop *loop;
	struct registry_client client;
	struct registry *registry; /* NULL: code_apart */
	struct layout *layout;     /* with code_apart: where the image goes */
	char *cache_path, *dirty_path, *dir;
	int dir_fd;
	struct registry_cache cache;
	struct uploads *uploads; /* NULL: code_apart */
	struct sink *sink;
	struct task *task;
	struct dirty dirty; /* the work's */
	struct push_base base;
	struct push_check check;
	struct loop_timer *timer;
	bool interrupted;
	bool has_leave; /* to commit */
	bool is_saved;  /* what was learnt of the registry, since the last manifest */
	int result;
	struct err error;
};

/*
 * The registry
 */

/* A repository that the configuration knows under two names is printed under the one that runs
 * use. */
void push_set_pull_name(struct submit *submit, const struct registry_config *known)
{
	AUTO_REF struct ref push = {0};
	bool same = known->push && ref_parse(known->push, &push, NULL) == 0 &&
		    str_eq(push.host, submit->to.host) && str_eq(push.repo, submit->to.repo);

	submit->pull = same ? mem_strdup(known->pull)
			    : mem_printf("%s/%s", submit->to.host, submit->to.repo);
}

int push_find_registry(struct submit *submit, const char *target, struct err *err)
{
	AUTO_REGISTRY_CONFIG struct registry_config known = {0};
	int r = registry_config_find(submit->config, target, &known, err);

	if (r <= 0)
		return r;
	r = ref_parse(known.push, &submit->to, err);
	if (r < 0)
		return r;
	push_set_pull_name(submit, &known);
	return 1;
}

static void push_done(struct push *push)
{
	task_free(push->task);
	target_call_cancel(&push->check.call);
	run_free(push->check.draft);
	spec_done(&push->check.spec);
	strv_done(&push->check.notes);
	err_done(&push->check.refused);
	sink_free(push->sink);
	registry_base_free(push->base.lookup);
	uploads_free(push->uploads);
	registry_free(push->base.source);
	registry_free(push->registry);
	registry_client_done(&push->client);
	image_base_free(push->base.image);
	layout_free(push->layout);
	layout_free(push->base.layout);
	registry_cache_done(&push->cache);
	registry_cache_done(&push->base.cache);
	dirty_done(&push->dirty);
	auto_fd(&push->dir_fd);
	free(push->cache_path);
	free(push->base.cache_path);
	free(push->dirty_path);
	free(push->dir);
	free(push->base.digest);
	err_done(&push->base.error);
	err_done(&push->error);
}

static const struct ref *base_ref(const struct push *push)
{
	return &push->submit->pack.base_ref;
}

/* Whether the image is that of a tree, not one that is there already. */
static bool has_tree(const struct push *push)
{
	const struct submit *submit = push->submit;

	return !submit->reused.image && !submit->added && !submit->environment && !submit->data;
}

static bool base_is_remote(const struct push *push)
{
	return base_ref(push)->kind == REF_REGISTRY;
}

static bool push_registry_is_same_host(const struct push *push)
{
	return push->registry && strcasecmp(base_ref(push)->host, push->submit->to.host) == 0;
}

static bool is_same_repo(const struct push *push)
{
	return push_registry_is_same_host(push) &&
	       strcmp(base_ref(push)->repo, push->submit->to.repo) == 0;
}

static void stop_work(struct push *push)
{
	if (!push->submit->dry_run && push->registry)
		registry_sink_stop(push->sink);
	task_cancel(push->task);
}

/*
 * May the image be committed?
 */

/* Facts of the base's configuration, for the target and the run's specification. */
static void set_facts(struct submit *submit)
{
	const struct image_base *base = submit->pack.base;
	const struct image *reused = submit->reused.image;
	AUTO_IMAGE_FACTS struct image_facts facts = {0};

	image_facts_of_config(base ? base->config_json : NULL,
		config_str(submit->config, "platform"),
		reused ? reused->workdir : config_str(submit->config, "workdir"), &facts);
	json_free(submit->image_facts);
	submit->image_facts = image_facts_to_json(&facts);
}

/* The code is packed by then, where it does not go to a registry. */
static int check_code_size(const struct push *push, struct err *err)
{
	const struct submit *submit = push->submit;
	uint64_t size = submit_code_bytes(submit), most = submit->target->code_max;
	char shown[16], shown_most[16];

	if (!submit->code_apart || !most || size <= most)
		return 0;
	str_size(size, shown);
	str_size(most, shown_most);
	err_set(err, E_KUBE_DENIED,
		"the code has %s, compressed, and may have %s where there is no registry and you may "
		"not list pods and run commands in them (pods/exec) in target %s",
		shown, shown_most, submit->target->name);
	err_evidence(err, "registry: registry.example.com/me/dlrun   images are pushed there");
	return err_hint(err, "dlrun submit --dry-run   # lists the largest files");
}

static void respond_check(struct push *push)
{
	struct submit *submit = push->submit;
	struct push_check *check = &push->check;
	AUTO_ERR struct err err = {0};
	int r = 0;

	if (err_is_set(&check->refused))
		r = err_copy(&err, &check->refused);
	if (r == 0)
		r = check_code_size(push, &err);
	for (size_t i = 0; r == 0 && i < check->notes.n; i++)
		submit_warn(submit, "%s", check->notes.v[i]);
	if (r == 0) {
		set_facts(submit);
		r = submit_check_program(submit, &err);
	}
	/* The check may have told of a better handle. */
	if (r == 0)
		r = submit_insert_row(submit, &err);
	task_respond(TAKE(check->waiting), r, &err);
}

static void on_check_requested(void *ctx, struct task *task)
{
	struct push *push = ctx;

	push->check.waiting = task;
	if (push->check.is_done)
		respond_check(push);
}

static int start_check(struct push *push, struct err *err);

static void on_checked(struct target_call *call, int status, struct err *err)
{
	struct push *push = CONTAINER_OF(call, struct push, check.call);
	struct push_check *check = &push->check;

	if (status < 0 && target_slept(push->submit->target, check->requested_ms, err)) {
		err_clear(err);
		status = start_check(push, err);
		if (status == 0)
			return;
	}
	if (status < 0)
		err_move(&check->refused, err);
	check->is_done = true;
	if (check->waiting)
		respond_check(push);
}

static int start_check(struct push *push, struct err *err)
{
	struct push_check *check = &push->check;
	struct target *target = push->submit->target;

	check->requested_ms = clock_ms();
	check->call = (struct target_call){
		.deadline_ms = check->requested_ms + CHECK_MS, .done = on_checked};
	strv_done(&check->notes);
	return target->ops->check(target, &check->job, &check->notes, &check->call, err);
}

/* Ask the target by what is known before the tree is read. */
static int preflight(struct push *push, struct err *err)
{
	struct submit *submit = push->submit;
	struct push_check *check = &push->check;
	int r = submit_choose_handle(submit, err);

	check->is_done = !submit->target->ops->check;
	if (r < 0 || check->is_done)
		return r;
	check->draft = submit->is_held ? run_copy(submit->run) : submit_new_run(submit);
	submit_make_job(submit, check->draft, &check->job);
	check->job.attempt = 1;
	check->job.spec = &check->spec;
	r = spec_copy(&submit->spec, &check->spec, err);
	return r < 0 ? r : start_check(push, err);
}

/*
 * The base
 */

static void respond_base(struct push *push, struct task *task)
{
	AUTO_ERR struct err error = {0};
	int r = 0;

	if (err_is_set(&push->base.error))
		r = err_move(&error, &push->base.error);
	task_respond(task, r, &error);
}

/* Long before the first layer of our own is there. */
static void start_mounts(void *ctx, const struct descriptor *layers, size_t n)
{
	struct push *push = ctx;

	if (push->submit->dry_run || !push->uploads)
		return;
	for (size_t i = 0; i < n; i++) {
		const struct registry_cache_entry *entry =
			registry_cache_entry_find(&push->cache.blobs, layers[i].digest);
		if (!entry)
			uploads_add_base(push->uploads, &layers[i]);
	}
}

static int base_found(void *ctx, const char *digest, struct err *error, struct err *err UNUSED)
{
	struct push *push = ctx;
	const struct pack *pack = &push->submit->pack;

	push->base.is_known = true;
	if (err_is_set(error)) {
		err_move(&push->base.error, error);
	} else {
		push->base.digest = mem_strdup(digest);
		pack_read_base(
			pack, push->base.layout, digest, &push->base.image, &push->base.error);
	}
	bool failed = err_is_set(&push->base.error);
	if (!failed)
		start_mounts(push, push->base.image->layers, push->base.image->n_layers);
	if (push->base.is_requested)
		respond_base(push, push->task);
	else if (failed) /* Without it there is nothing to send. */
		stop_work(push);
	return 0;
}

static struct registry_cache *cache_of_base(struct push *push)
{
	return is_same_repo(push) ? &push->cache : &push->base.cache;
}

static char *tag_key(const struct push *push)
{
	return registry_cache_tag(base_ref(push), config_str(push->submit->config, "platform"));
}

static int start_lookup(struct push *push, struct err *err)
{
	const struct ref *ref = base_ref(push);
	const char *platform = config_str(push->submit->config, "platform");
	AUTO_FREE char *key = tag_key(push);
	struct registry *registry = push->base.source ? push->base.source : push->registry;

	int r = registry_open_bases(push->submit->session, &push->base.layout, err);
	if (r < 0)
		return r;
	const struct registry_cache_entry *tag =
		ref->digest ? NULL : registry_cache_entry_find(&cache_of_base(push)->tags, key);
	bool fresh = registry_cache_entry_is_fresh(tag, clock_wall_ms(), REGISTRY_TRUST_TAG_MS);
	push->base.lookup =
		registry_base_start(registry, &(struct registry_base_request){.ref = ref,
						      .known = fresh ? tag->value : NULL,
						      .older = tag && !fresh ? tag->value : NULL,
						      .platform = platform,
						      .cache = push->base.layout,
						      .layers = start_mounts,
						      .found = base_found,
						      .ctx = push});
	return 0;
}

static void remember_base(struct push *push)
{
	struct registry_cache *cache = cache_of_base(push);
	AUTO_FREE char *key = tag_key(push);
	const struct registry_cache_entry *tag = registry_cache_entry_find(&cache->tags, key);

	if (base_ref(push)->digest || !push->base.digest ||
		registry_cache_entry_is_fresh(tag, clock_wall_ms(), REGISTRY_TRUST_TAG_MS))
		return;
	registry_cache_put(cache, &cache->tags, key, push->base.digest, clock_wall_ms());
}

/*
 * The work
 */

static void on_base_requested(void *ctx, struct task *task)
{
	struct push *push = ctx;

	push->base.is_requested = true;
	if (push->base.is_known)
		respond_base(push, task);
}

static int push_registry_get_base(struct pack *pack, void *ctx, struct err *err)
{
	struct push *push = ctx;

	if (!pack->base && base_is_remote(push)) {
		int r = task_request(push->task, on_base_requested, push, err);
		if (r < 0)
			return r;
		push->submit->base_digest = mem_strdup(push->base.digest);
		pack_set_base(pack, TAKE(push->base.image));
	}
	return 0;
}

/* As late as can be: the check takes as long as the uploads. */
static int may_commit(void *ctx, struct err *err)
{
	struct push *push = ctx;

	if (!push->submit->is_recorded || push->has_leave)
		return 0;
	int r = task_request(push->task, on_check_requested, push, err);
	push->has_leave = r >= 0;
	return r;
}

static void open_sessions(void *ctx)
{
	if (((struct push *)ctx)->uploads)
		uploads_open_ahead(((struct push *)ctx)->uploads, SESSIONS);
}

/* Path of the list of edited files: one list for each tree and destination. */
static char *dirty_path(const struct push *push)
{
	const struct submit *submit = push->submit;
	const struct ref *to = &push->submit->to;
	AUTO_FREE char *dir = dirs_registries(&submit->session->dirs);
	AUTO_FREE char *key = mem_printf("%s%s", to->repo, submit->place->root);
	AUTO_FREE char *base = registry_cache_path(dir, to->host, key);

	return mem_printf("%s.edited", base);
}

/* The destination that plans are kept for. The caller frees. */
static char *dest_name(const struct push *push)
{
	const struct submit *submit = push->submit;

	return submit->code_apart ? dirs_layout(&submit->session->dirs)
				  : mem_printf("%s/%s", submit->to.host, submit->to.repo);
}

/* Not before: until then nothing waits for the plan, but all that is read for the walk does. */
static void will_walk(void *ctx)
{
	struct push *push = ctx;
	struct submit *submit = push->submit;
	AUTO_FREE char *name = dest_name(push);

	pack_prepare(&submit->pack, submit->place->root, name);
}

static void will_read(void *ctx, const struct path *const *files, size_t n)
{
	struct push *push = ctx;

	if (push->submit->code_apart)
		return;
	push->dirty_path = dirty_path(push);
	dirty_load(push->dirty_path, &push->dirty);
	if (dirty_add(&push->dirty, files, n) && !push->submit->dry_run)
		task_post(push->task, open_sessions, push);
}

static void report_snapshot(void *ctx, struct task *task)
{
	submit_report_snapshot(((struct push *)ctx)->submit);
	task_respond(task, 0, NULL);
}

/* Asked on the loop, which has all that is needed by then. */
static void be_ready(void *ctx UNUSED, struct task *task)
{
	task_respond(task, 0, NULL);
}

static int push_registry_write(struct push *push, struct err *err)
{
	struct submit *submit = push->submit;
	const char *name = submit->code_apart ? submit->id : submit->to.tag;
	AUTO_FREE char *dest = dest_name(push);

	if (submit->added)
		return pack_add(
			&submit->pack, submit->added, push->sink, name, &submit->image, err);
	if (submit->environment)
		return pack_write_environment(
			&submit->pack, submit->environment, push->sink, name, &submit->image, err);
	if (submit->data)
		return pack_write_data(
			&submit->pack, submit->data, push->sink, dest, name, &submit->image, err);
	if (!has_tree(push))
		return pack_rebase(
			&submit->pack, &submit->reused, push->sink, name, &submit->image, err);
	return pack_write(
		&submit->pack, submit->snapshot, push->sink, dest, name, &submit->image, err);
}

static int push_registry_work(struct task *task, void *ctx, struct err *err)
{
	struct push *push = ctx;
	struct submit *submit = push->submit;
	bool has_own_tree = has_tree(push);
	int r = 0;

	if (has_own_tree) {
		submit->id_later = !submit->dry_run;
		r = submit_take_snapshot(submit, err);
	}
	if (r == 0)
		r = task_request(task, has_own_tree ? report_snapshot : be_ready, push, err);
	if (r < 0)
		return r;
	r = push_registry_write(push, err);
	/* Nothing else waits for it there. */
	return r == 0 && submit->code_apart ? may_commit(push, err) : r;
}

/*
 * End of a push
 */

static int closed(void *ctx, struct err *error UNUSED, struct err *err UNUSED)
{
	struct push *push = ctx;

	loop_stop(push->loop);
	return 0;
}

static int push_registry_work_done(void *ctx, int r, struct err *error, struct err *err)
{
	struct push *push = ctx;

	push->result = r;
	if (err_is_set(&push->base.error))
		push->result = err_move(&push->error, &push->base.error);
	else if (r < 0)
		err_move(&push->error, error);
	if (!push->uploads) {
		loop_stop(push->loop);
		return 0;
	}
	return uploads_close(push->uploads, closed, push, err);
}

static int interrupted(void *ctx, int sig UNUSED, struct err *err UNUSED)
{
	struct push *push = ctx;

	push->interrupted = true;
	stop_work(push);
	return 0;
}

static int push_registry_show_progress(void *ctx, struct err *err UNUSED)
{
	struct push *push = ctx;
	const struct submit_events *events = push->submit->events;
	struct uploads_progress progress = uploads_progress(push->uploads);

	events->progress(events->ctx, &progress);
	push->timer = loop_add_timer(
		push->loop, clock_ms() + PROGRESS_MS, push_registry_show_progress, push);
	return 0;
}

static int run_loop(struct push *push, struct err *err)
{
	int r = loop_add_interrupts(push->loop, interrupted, push, err);

	if (r < 0)
		return r;
	if (push->uploads && push->submit->events && push->submit->events->progress)
		push->timer = loop_add_timer(
			push->loop, clock_ms() + PROGRESS_MS, push_registry_show_progress, push);
	r = loop_run(push->loop, err);
	loop_remove_timer(push->loop, push->timer);
	loop_remove_interrupts(push->loop);
	if (r < 0)
		return r;
	if (push->interrupted)
		return err_set(err, E_CANCELED, "interrupted; nothing refers to what was sent");
	return push->result < 0 ? err_move(err, &push->error) : 0;
}

/*
 * Preparations
 */

static void push_registry_note(void *ctx, const char *text)
{
	const struct submit_events *events = ((struct push *)ctx)->submit->events;

	if (events && events->note)
		events->note(events->ctx, text);
}

static void exchange(void *ctx, const struct http_event *event)
{
	struct push *push = ctx;
	const struct submit_events *events = push->submit->events;

	push->submit->requests++;
	if (events && events->exchange)
		events->exchange(events->ctx, event);
}

static void open_client(struct push *push)
{
	struct submit *submit = push->submit;
	const struct registry_client_options options = {
		.session = submit->session,
		.config = submit->config,
		.target = submit->target,
		.target_name = submit->target_name,
		.loop = push->loop,
		.is_large = submit->environment || submit->data,
		.event = exchange,
		.note = push_registry_note,
		.ctx = push,
		.warnings = &submit->push_warnings,
	};

	registry_client_init(&push->client, &options);
}

static int open_destination(struct push *push, struct err *err)
{
	const struct ref *to = &push->submit->to;

	if (push->submit->code_apart) {
		AUTO_FREE char *dir = dirs_layout(&push->submit->session->dirs);
		return layout_open(dir, true, &push->layout, err);
	}
	push->cache_path = registry_cache_path(push->dir, to->host, to->repo);
	registry_cache_load(push->cache_path, &push->cache);
	return registry_client_open(&push->client, to, true, &push->cache, &push->registry, err);
}

static int open_registries(struct push *push, struct err *err)
{
	const struct ref *base = base_ref(push);

	int r = open_destination(push, err);
	if (r < 0 || !base_is_remote(push) || is_same_repo(push))
		return r;
	push->base.cache_path = registry_cache_path(push->dir, base->host, base->repo);
	registry_cache_load(push->base.cache_path, &push->base.cache);
	/* Mounts are asked for with the login of the repository that they go to. */
	if (push_registry_is_same_host(push)) {
		bool shares = registry_shares_login(push->registry, base->repo);
		registry_add_source(push->registry, base->repo, shares);
		if (shares)
			return 0;
	}
	return registry_client_open(
		&push->client, base, false, &push->base.cache, &push->base.source, err);
}

static bool mounts_base(const struct push *push)
{
	return base_is_remote(push) && push_registry_is_same_host(push) && !is_same_repo(push);
}

static void open_uploads(struct push *push)
{
	const struct uploads_options options = {
		.loop = push->loop,
		.registry = push->registry,
		.cache = &push->cache,
		.mount_from = mounts_base(push) ? base_ref(push)->repo : NULL,
		.base = push->base.source,
		.copies = push->submit->copies_base && base_is_remote(push) && !is_same_repo(push),
		.base_name = push->submit->pack.base_name,
		.trusts_nothing = push->submit->trusts_nothing,
	};

	if (!push->registry)
		return;
	push->uploads = uploads_new(&options);
}

static int push_registry_open_dir(struct push *push, struct err *err)
{
	push->dir = dirs_registries(&push->submit->session->dirs);
	int r = fs_private_dir(push->dir, err);
	if (r < 0)
		return r;
	push->dir_fd = open(push->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return push->dir_fd < 0 ? fs_error(err, errno, "%s", push->dir) : 0;
}

static bool is_remembered(void *ctx, const struct descriptor *blob)
{
	const struct push *push = ctx;

	return registry_cache_entry_find(&push->cache.blobs, blob->digest) != NULL;
}

static void start_work(struct push *push)
{
	struct submit *submit = push->submit;

	if (has_tree(push)) {
		submit->will_walk = will_walk;
		submit->will_read = will_read;
		submit->will_ctx = push;
	}
	if (base_is_remote(push)) {
		submit->pack.get_base = push_registry_get_base;
		submit->pack.get_base_ctx = push;
	}
	task_start(push->loop, push_registry_work, push_registry_work_done, push, &push->task);
}

/* By a list of its own: the work has the other. */
static bool has_changed(const struct push *push)
{
	AUTO_FREE char *path = dirty_path(push);
	AUTO_DIRTY struct dirty dirty;

	dirty_load(path, &dirty);
	return dirty_has_changed(&dirty, push->submit->place->root);
}

/* Start requests that pay off before anything is known of the tree. */
static void start_early(struct push *push)
{
	if (push->submit->dry_run || !push->uploads)
		return;
	uploads_prove_old(push->uploads);
	/* The first push to a repository mounts all layers of the base. */
	if (mounts_base(push) && push->cache.blobs.n == 0)
		registry_expect(push->registry, HTTP_CONNECTIONS_MAX);
	if (!has_tree(push) || has_changed(push))
		open_sessions(push);
}

/*
 * Persistent caches
 */

static void push_registry_save(struct push *push, bool pushed)
{
	AUTO_ERR struct err err = {0};

	if (push->submit->dry_run || (pushed && push->is_saved))
		return;
	push->is_saved = pushed;
	if (push->registry)
		registry_client_learn(push->registry, &push->cache);
	if (base_is_remote(push))
		remember_base(push);
	if (push->base.source && push->base.cache_path)
		registry_client_learn(push->base.source, &push->base.cache);
	int r = push->cache_path ? registry_cache_save(push->cache_path, &push->cache, &err) : 0;
	if (r == 0 && push->base.cache_path)
		r = registry_cache_save(push->base.cache_path, &push->base.cache, &err);
	if (r == 0 && pushed && push->dirty_path)
		r = dirty_save(push->dirty_path, &push->dirty, &err);
	if (r < 0)
		log_note("what was learnt of the registry is not kept: %s", err.message);
}

/* The work has something to keep, too: both at the same time. */
static void committed(void *ctx)
{
	struct push *push = ctx;

	push->is_saved = false;
	push_registry_save(push, true);
}

/*
 * Start
 */

/* Of a dry run. */
static struct sink *open_dry(struct push *push)
{
	const char *name = push->registry ? registry_name(push->registry) : "the API server";

	return dry_sink(name, push->dir_fd, is_remembered, push);
}

static void open_sink(struct push *push)
{
	const struct registry_sink_options options = {
		.task = &push->task,
		.registry = push->registry,
		.uploads = push->uploads,
		.cache = &push->cache,
		.stage_dir_fd = push->dir_fd,
		.may_commit = may_commit,
		.committed = committed,
		.ctx = push,
	};

	if (push->submit->dry_run)
		push->sink = open_dry(push);
	else
		push->sink =
			push->layout ? layout_sink_apart(push->layout) : registry_sink(&options);
}

/*
 * All of it
 */

static void note_apart(struct submit *submit)
{
	uint64_t bytes = submit_code_bytes(submit);
	char size[16];

	str_size(bytes, size);
	if (bytes > submit->target->code_stored)
		submit_note(submit,
			"the code (%s) is sent to each pod from this machine: a pod that is replaced "
			"waits until a dlrun here looks at the run",
			size);
	else if (!registry_config_is_off(submit->config, submit->target->name))
		submit_note(submit,
			"no registry is set: the code (%s) goes through the API server "
			"(registry: none says so for good)",
			size);
}

static void push_registry_fill_result(struct push *push)
{
	struct submit *submit = push->submit;
	const struct image *image = &submit->image;
	struct registry *asked = push->registry ? push->registry : push->base.source;
	const struct strv *warnings = auth_warnings(registry_auth(asked));

	for (size_t i = 0; i < warnings->n; i++)
		strv_add(&submit->push_warnings, warnings->v[i]);
	if (submit->code_apart) {
		AUTO_FREE char *dir = dirs_layout(&submit->session->dirs);
		const struct ref *base = base_ref(push);
		submit->ref = mem_printf("oci:%s@%s", dir, image->manifest.digest);
		submit->base_ref = mem_printf(
			"%s/%s@%s", base->host, base->repo, submit->pack.base->manifest.digest);
		note_apart(submit);
		return;
	}
	submit->sent = uploads_progress(push->uploads);
	/* A layer that another machine had sent is nothing new; an image that was written once more
	 * counts as its last time. */
	if (submit->image.layers_written >= submit->sent.files_there &&
		submit->image.bytes_written >= submit->sent.bytes_there) {
		submit->image.layers_written -= submit->sent.files_there;
		submit->image.bytes_written -= submit->sent.bytes_there;
	}
	submit->ref = mem_printf("%s@%s", submit->pull, image->manifest.digest);
	for (size_t i = 0; submit->dry_run && i < image->n_layers; i++)
		if (registry_cache_entry_find(&push->cache.blobs, image->layers[i].blob.digest))
			strv_add(&submit->there, image->layers[i].blob.digest);
	if (push->sink->commit_ms)
		submit->push_ms = clock_ms() - push->sink->commit_ms;
}

/* Meanwhile the tree is read. */
static int push_registry_open_all(struct push *push, struct err *err)
{
	int r = push_registry_open_dir(push, err);
	if (r < 0)
		return r;
	open_client(push);
	r = open_registries(push, err);
	if (r < 0)
		return r;
	open_uploads(push);
	open_sink(push);
	start_early(push);
	return base_is_remote(push) ? start_lookup(push, err) : 0;
}

int push_to_registry(struct submit *submit, struct err *err)
{
	AUTO(push_done)
	struct push push = {
		.submit = submit,
		.loop = session_loop(submit->session),
		.dir_fd = -1,
	};

	int r = submit->is_recorded ? preflight(&push, err) : 0;
	if (r < 0)
		return r;
	start_work(&push);
	r = push_registry_open_all(&push, err);
	if (r < 0)
		return r;
	r = run_loop(&push, err);
	push_registry_save(&push, r == 0);
	if (r == 0)
		push_registry_fill_result(&push);
	return r;
}

/* --from: the image is where the earlier run's was. */
static int reuse(struct submit *submit, struct err *err)
{
	submit->ref = mem_strdup(submit->from_ref);
	int r = submit_learn(submit, err);
	return r < 0 ? r : submit_insert_row(submit, err);
}

/* Without a registry pods take the base as it is, and the code reaches them by the cluster. */
static int set_apart(struct submit *submit, struct err *err)
{
	const char *target = submit->target->name;
	const struct image *reused = submit->reused.image;
	AUTO_FREE char *base = str_shown(submit->pack.base_name);

	submit->code_apart = true;
	submit->pack.codec = CODEC_GZIP; /* few images have a program for another */
	for (size_t i = 0; reused && i < reused->n_layers; i++)
		if (reused->layers[i].role != IMAGE_ROLE_BASE &&
			strstr(reused->layers[i].blob.media_type, "zstd"))
			return err_set(err, E_TARGET_UNSUPPORTED,
				"the layers of %s are compressed with zstd, which pods cannot "
				"unpack without a registry",
				reused->manifest.digest);
	if (submit->pack.base_ref.kind == REF_REGISTRY)
		return 0;
	err_set(err, E_CONFIG,
		"target %s has no registry, and its nodes can pull no base image that is not in one: "
		"%s",
		target, base);
	err_evidence(err, "image: HOST/REPO:TAG                      a base that nodes can pull");
	err_evidence(err, "registry: registry.example.com/me/dlrun   images are pushed there");
	return err_hint(err, "dlrun submit --image docker.io/library/python:3.12 …");
}

int submit_push(struct submit *submit, struct err *err)
{
	const struct submit_events *events = submit->events;
	const char *target = submit->target->name;

	if (submit->from_digest && !submit->reused.image)
		return reuse(submit, err);
	int r = push_find_registry(submit, target, err);
	if (r == 0)
		r = set_apart(submit, err);
	if (r >= 0)
		r = push_to_registry(submit, err);
	if (r < 0)
		return r;
	if (!submit->is_recorded) {
		set_facts(submit);
		return 0;
	}
	submit->pack_ms = clock_ms() - submit->begun_ms - submit->snapshot_ms - submit->push_ms;
	for (size_t i = 0; i < submit->push_warnings.n; i++)
		submit_warn(submit, "%s", submit->push_warnings.v[i]);
	if (events && events->image)
		events->image(events->ctx, &submit->image, submit->pack_ms + submit->push_ms);
	return 0;
}
