/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "app/prepare/pushing.h"
#include "base/loop/task.h"
#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "core/config/registry_config.h"
#include "core/image/edited.h"
#include "core/image/registry_open.h"
#include "oci/layout/layout.h"
#include "oci/registry/registry_sink.h"

enum {
	PROGRESS_MS = 100,
	SESSIONS = 2, /* a layer and the configuration: what an edit uploads */
};

/* A push to a registry while it is under way. What the work of the task uses stands in `pushing`
 * and is left alone by the loop until the work asks or has ended; the work uses nothing else until
 * it has asked for the first time. */
struct course {
	struct pushing *pushing;
	struct loop *loop;
	struct registry_client client;
	struct registry *registry;
	struct registry *source; /* of a base with a login or a host of its own; or NULL */
	char *memory_path, *base_memory_path, *edited_path, *dir;
	int dir_fd;
	struct registry_memory memory, base_memory;
	struct uploads *uploads;
	struct sink *sink;
	struct task *task;
	struct edited edited; /* the work's */

	/* the base */
	struct layout *bases;
	struct registry_base *lookup;
	char *base_digest;
	struct image_base *base; /* until the work has it */
	struct err base_fault;
	bool base_known, base_is_asked;

	struct loop_timer *timer;
	bool interrupted;
	bool has_leave; /* to commit */
	bool is_saved;  /* what was learnt of the registry, since the last manifest */
	int result;
	struct err fault;
};

static void course_done(struct course *course)
{
	task_free(course->task);
	sink_free(course->sink);
	registry_base_free(course->lookup);
	uploads_free(course->uploads);
	registry_free(course->source);
	registry_free(course->registry);
	registry_client_done(&course->client);
	image_base_free(course->base);
	layout_free(course->bases);
	registry_memory_done(&course->memory);
	registry_memory_done(&course->base_memory);
	edited_done(&course->edited);
	auto_fd(&course->dir_fd);
	free(course->memory_path);
	free(course->base_memory_path);
	free(course->edited_path);
	free(course->dir);
	free(course->base_digest);
	err_done(&course->base_fault);
	err_done(&course->fault);
}

static const struct ref *base_ref(const struct course *course)
{
	return &course->pushing->submission->pack.base_ref;
}

/* The image that is pushed in place of a tree; or NULL. */
static const struct pack_carried *carried(const struct course *course)
{
	const struct pack_carried *carried = &course->pushing->submission->carried;

	return carried->image ? carried : NULL;
}

static bool has_tree(const struct course *course)
{
	return !carried(course) && !course->pushing->added;
}

static bool base_is_remote(const struct course *course)
{
	return base_ref(course)->kind == REF_REGISTRY;
}

static bool is_same_host(const struct course *course)
{
	return strcasecmp(base_ref(course)->host, course->pushing->to.host) == 0;
}

static bool is_same_repo(const struct course *course)
{
	return is_same_host(course) &&
	       strcmp(base_ref(course)->repo, course->pushing->to.repo) == 0;
}

static void stop_work(struct course *course)
{
	if (!course->pushing->options->dry_run)
		registry_sink_stop(course->sink);
	task_cancel(course->task);
}

/*
 * The base
 */

static void tell_base(struct course *course, struct task *task)
{
	AUTO_ERR struct err fault = {0};
	int r = 0;

	if (err_is_set(&course->base_fault))
		r = err_move(&fault, &course->base_fault);
	task_answer(task, r, &fault);
}

/* Long before the first layer of our own is there. */
static void start_mounts(void *ctx, const struct descriptor *layers, size_t n)
{
	struct course *course = ctx;

	if (course->pushing->options->dry_run)
		return;
	for (size_t i = 0; i < n; i++) {
		const struct registry_hint *hint =
			registry_hint_find(&course->memory.blobs, layers[i].digest);
		if (!hint)
			uploads_add_base(course->uploads, &layers[i]);
	}
}

static int base_found(void *ctx, const char *digest, struct err *fault, struct err *err)
{
	struct course *course = ctx;
	const struct pack *pack = &course->pushing->submission->pack;

	(void)err;
	course->base_known = true;
	if (err_is_set(fault)) {
		err_move(&course->base_fault, fault);
	} else {
		course->base_digest = mem_strdup(digest);
		pack_read_base(pack, course->bases, digest, &course->base, &course->base_fault);
	}
	bool failed = err_is_set(&course->base_fault);
	if (!failed)
		start_mounts(course, course->base->layers, course->base->n_layers);
	if (course->base_is_asked)
		tell_base(course, course->task);
	else if (failed) /* Without it there is nothing to send. */
		stop_work(course);
	return 0;
}

static struct registry_memory *memory_of_base(struct course *course)
{
	return is_same_repo(course) ? &course->memory : &course->base_memory;
}

static char *tag_key(const struct course *course)
{
	const char *tag = base_ref(course)->tag;
	const struct config *config = course->pushing->submission->config;

	return mem_printf("%s %s", tag ? tag : "latest", config_str(config, "platform"));
}

static int start_lookup(struct course *course, struct err *err)
{
	const struct ref *ref = base_ref(course);
	const char *platform = config_str(course->pushing->submission->config, "platform");
	AUTO_FREE char *dir = fs_join(course->dir, "bases"), *key = tag_key(course);
	struct registry *registry = course->source ? course->source : course->registry;

	int r = layout_open(dir, true, &course->bases, err);
	if (r < 0)
		return r;
	const struct registry_hint *tag =
		ref->digest ? NULL : registry_hint_find(&memory_of_base(course)->tags, key);
	bool fresh = registry_hint_is_fresh(tag, clock_wall_ms(), REGISTRY_TRUST_TAG_MS);
	course->lookup =
		registry_base_start(registry, &(struct registry_base_request){.ref = ref,
						      .known = fresh ? tag->value : NULL,
						      .older = tag && !fresh ? tag->value : NULL,
						      .platform = platform,
						      .cache = course->bases,
						      .layers = start_mounts,
						      .found = base_found,
						      .ctx = course});
	return 0;
}

static void remember_base(struct course *course)
{
	struct registry_memory *memory = memory_of_base(course);
	AUTO_FREE char *key = tag_key(course);
	const struct registry_hint *tag = registry_hint_find(&memory->tags, key);

	if (base_ref(course)->digest || !course->base_digest ||
		registry_hint_is_fresh(tag, clock_wall_ms(), REGISTRY_TRUST_TAG_MS))
		return;
	registry_remember(memory, &memory->tags, key, course->base_digest, clock_wall_ms());
}

/*
 * The work
 */

static void ask_base(void *ctx, struct task *task)
{
	struct course *course = ctx;

	course->base_is_asked = true;
	if (course->base_known)
		tell_base(course, task);
}

static int get_base(struct pack *pack, void *ctx, struct err *err)
{
	struct course *course = ctx;

	if (!pack->base && base_is_remote(course)) {
		int r = task_ask(course->task, ask_base, course, err);
		if (r < 0)
			return r;
		course->pushing->result.base_digest = mem_strdup(course->base_digest);
		pack_set_base(pack, TAKE(course->base));
	}
	return 0;
}

/* As late as can be: what is asked for it takes as long as the uploads. */
static int may_commit(void *ctx, struct err *err)
{
	struct course *course = ctx;
	const struct pushing *pushing = course->pushing;

	if (!pushing->may_commit || course->has_leave)
		return 0;
	int r = task_ask(course->task, pushing->may_commit, pushing->may_commit_ctx, err);
	course->has_leave = r >= 0;
	return r;
}

static void open_sessions(void *ctx)
{
	uploads_open_ahead(((struct course *)ctx)->uploads, SESSIONS);
}

/* Path of the list of edited files: one list for each tree and destination. */
static char *edited_path(const struct course *course)
{
	const struct submission *submission = course->pushing->submission;
	const struct ref *to = &course->pushing->to;
	AUTO_FREE char *dir = dirs_registries(&submission->session->dirs);
	AUTO_FREE char *key = mem_printf("%s%s", to->repo, submission->place->root);
	AUTO_FREE char *base = registry_memory_path(dir, to->host, key);

	return mem_printf("%s.edited", base);
}

/* Not before: until then nothing waits for the plan, but all that is read for the walk does. */
static void will_walk(void *ctx)
{
	struct course *course = ctx;
	struct submission *submission = course->pushing->submission;
	const struct ref *to = &course->pushing->to;
	AUTO_FREE char *name = mem_printf("%s/%s", to->host, to->repo);

	pack_prepare(&submission->pack, submission->place->root, name);
}

static void will_read(void *ctx, const struct path *const *files, size_t n)
{
	struct course *course = ctx;

	course->edited_path = edited_path(course);
	edited_load(course->edited_path, &course->edited);
	if (edited_add(&course->edited, files, n) && !course->pushing->options->dry_run)
		task_post(course->task, open_sessions, course);
}

static void say_snapshot(void *ctx, struct task *task)
{
	push_say_snapshot(((struct course *)ctx)->pushing);
	task_answer(task, 0, NULL);
}

/* Asked on the loop, which has all that is needed by then. */
static void be_ready(void *ctx, struct task *task)
{
	(void)ctx;
	task_answer(task, 0, NULL);
}

static int work_carry(struct task *task, void *ctx, struct err *err)
{
	struct course *course = ctx;
	struct pushing *pushing = course->pushing;

	int r = task_ask(task, be_ready, course, err);
	if (r < 0)
		return r;
	if (pushing->added)
		return pack_add(&pushing->submission->pack, pushing->added, course->sink,
			pushing->to.tag, &pushing->result.image, err);
	return pack_carry(&pushing->submission->pack, carried(course), course->sink,
		pushing->to.tag, &pushing->result.image, err);
}

static int work(struct task *task, void *ctx, struct err *err)
{
	struct course *course = ctx;
	struct pushing *pushing = course->pushing;
	const char *tag = pushing->to.tag;

	pushing->submission->id_later = !pushing->options->dry_run;
	int r = push_take_snapshot(pushing, err);
	if (r == 0)
		r = task_ask(task, say_snapshot, course, err);
	if (r < 0)
		return r;
	return pack_write(&pushing->submission->pack, pushing->result.snapshot, course->sink,
		registry_name(course->registry), tag, &pushing->result.image, err);
}

/*
 * End of a push
 */

static int closed(void *ctx, struct err *fault, struct err *err)
{
	struct course *course = ctx;

	(void)fault;
	(void)err;
	loop_stop(course->loop);
	return 0;
}

static int work_done(void *ctx, int r, struct err *fault, struct err *err)
{
	struct course *course = ctx;

	course->result = r;
	if (err_is_set(&course->base_fault))
		course->result = err_move(&course->fault, &course->base_fault);
	else if (r < 0)
		err_move(&course->fault, fault);
	return uploads_close(course->uploads, closed, course, err);
}

static int interrupted(void *ctx, int sig, struct err *err)
{
	struct course *course = ctx;

	(void)sig;
	(void)err;
	course->interrupted = true;
	stop_work(course);
	return 0;
}

static int show_progress(void *ctx, struct err *err)
{
	struct course *course = ctx;
	const struct push_events *events = course->pushing->events;
	struct uploads_progress progress = uploads_progress(course->uploads);

	(void)err;
	events->progress(events->ctx, &progress);
	course->timer =
		loop_add_timer(course->loop, clock_ms() + PROGRESS_MS, show_progress, course);
	return 0;
}

static int run_loop(struct course *course, struct err *err)
{
	static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
	int r = 0;

	for (size_t i = 0; r == 0 && i < ARRAY_LEN(signals); i++)
		r = loop_add_signal(course->loop, signals[i], interrupted, course, err);
	if (r < 0)
		return r;
	if (course->pushing->events->progress)
		course->timer = loop_add_timer(
			course->loop, clock_ms() + PROGRESS_MS, show_progress, course);
	r = loop_run(course->loop, err);
	loop_remove_timer(course->loop, course->timer);
	for (size_t i = 0; i < ARRAY_LEN(signals); i++)
		loop_remove_signal(course->loop, signals[i]);
	if (r < 0)
		return r;
	if (course->interrupted)
		return err_set(err, E_CANCELED, "interrupted; nothing refers to what was sent");
	return course->result < 0 ? err_move(err, &course->fault) : 0;
}

/*
 * Preparations
 */

static void note(void *ctx, const char *text)
{
	const struct push_events *events = ((struct course *)ctx)->pushing->events;

	if (events->note)
		events->note(events->ctx, text);
}

static void exchange(void *ctx, const struct http_event *event)
{
	struct course *course = ctx;
	const struct push_events *events = course->pushing->events;

	course->pushing->result.requests++;
	if (events->exchange)
		events->exchange(events->ctx, event);
}

static void open_client(struct course *course)
{
	struct pushing *pushing = course->pushing;
	const struct registry_client_options options = {
		.session = pushing->submission->session,
		.config = pushing->submission->config,
		.target = pushing->submission->target,
		.target_name = pushing->options->target,
		.loop = course->loop,
		.begun_ms = pushing->submission->begun_ms,
		.event = exchange,
		.note = note,
		.ctx = course,
		.warnings = &pushing->result.warnings,
	};

	registry_client_init(&course->client, &options);
}

static int open_registries(struct course *course, struct err *err)
{
	const struct ref *to = &course->pushing->to, *base = base_ref(course);

	course->memory_path = registry_memory_path(course->dir, to->host, to->repo);
	registry_memory_load(course->memory_path, &course->memory);
	int r = registry_client_open(
		&course->client, to, true, &course->memory, &course->registry, err);
	if (r < 0 || !base_is_remote(course) || is_same_repo(course))
		return r;
	course->base_memory_path = registry_memory_path(course->dir, base->host, base->repo);
	registry_memory_load(course->base_memory_path, &course->base_memory);
	/* Mounts are asked for with the login of the repository that they go to. */
	if (is_same_host(course)) {
		bool shares = registry_shares_login(course->registry, base->repo);
		registry_add_source(course->registry, base->repo, shares);
		if (shares)
			return 0;
	}
	return registry_client_open(
		&course->client, base, false, &course->base_memory, &course->source, err);
}

static bool mounts_base(const struct course *course)
{
	return base_is_remote(course) && is_same_host(course) && !is_same_repo(course);
}

static void open_uploads(struct course *course)
{
	const struct uploads_options options = {
		.loop = course->loop,
		.registry = course->registry,
		.memory = &course->memory,
		.mount_from = mounts_base(course) ? base_ref(course)->repo : NULL,
		.base = course->source,
		.copies = course->pushing->options->copy_base && base_is_remote(course) &&
			  !is_same_repo(course),
		.base_name = course->pushing->submission->pack.base_name,
		.trusts_nothing = course->pushing->options->full,
	};

	course->uploads = uploads_new(&options);
}

static int open_dir(struct course *course, struct err *err)
{
	course->dir = dirs_registries(&course->pushing->submission->session->dirs);
	int r = fs_private_dir(course->dir, err);
	if (r < 0)
		return r;
	course->dir_fd = open(course->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return course->dir_fd < 0 ? fs_error(err, errno, "%s", course->dir) : 0;
}

static bool is_remembered(void *ctx, const struct descriptor *blob)
{
	const struct course *course = ctx;

	return registry_hint_find(&course->memory.blobs, blob->digest) != NULL;
}

static void start_work(struct course *course)
{
	struct submission *submission = course->pushing->submission;

	if (has_tree(course)) {
		submission->will_walk = will_walk;
		submission->will_read = will_read;
		submission->will_ctx = course;
	}
	if (base_is_remote(course)) {
		submission->pack.get_base = get_base;
		submission->pack.get_base_ctx = course;
	}
	task_start(course->loop, has_tree(course) ? work : work_carry, work_done, course,
		&course->task);
}

/* By a list of its own: the work has the other. */
static bool has_changed(const struct course *course)
{
	AUTO_FREE char *path = edited_path(course);
	AUTO_EDITED struct edited edited;

	edited_load(path, &edited);
	return edited_has_changed(&edited, course->pushing->submission->place->root);
}

/* Start requests that pay off before anything is known of the tree. */
static void start_early(struct course *course)
{
	if (course->pushing->options->dry_run)
		return;
	uploads_prove_old(course->uploads);
	/* The first push to a repository mounts all layers of the base. */
	if (mounts_base(course) && course->memory.blobs.n == 0)
		registry_expect(course->registry, HTTP_CONNECTIONS_MAX);
	if (!has_tree(course) || has_changed(course))
		open_sessions(course);
}

/*
 * Persistent caches
 */

static void save(struct course *course, bool pushed)
{
	AUTO_ERR struct err err = {0};

	if (course->pushing->options->dry_run || (pushed && course->is_saved))
		return;
	course->is_saved = pushed;
	registry_client_learn(course->registry, &course->memory);
	if (base_is_remote(course))
		remember_base(course);
	if (course->source && course->base_memory_path)
		registry_client_learn(course->source, &course->base_memory);
	int r = registry_memory_save(course->memory_path, &course->memory, &err);
	if (r == 0 && course->base_memory_path)
		r = registry_memory_save(course->base_memory_path, &course->base_memory, &err);
	if (r == 0 && pushed && course->edited_path)
		r = edited_save(course->edited_path, &course->edited, &err);
	if (r < 0)
		log_note("what was learnt of the registry is not kept: %s", err.message);
}

/* The work has something to keep, too: both at the same time. */
static void committed(void *ctx)
{
	struct course *course = ctx;

	course->is_saved = false;
	save(course, true);
}

/*
 * Start
 */

static void open_sink(struct course *course)
{
	const struct registry_sink_options options = {
		.task = &course->task,
		.registry = course->registry,
		.uploads = course->uploads,
		.memory = &course->memory,
		.stage_dir_fd = course->dir_fd,
		.may_commit = may_commit,
		.committed = committed,
		.ctx = course,
	};

	course->sink = course->pushing->options->dry_run
			       ? dry_sink(registry_name(course->registry), course->dir_fd,
					 is_remembered, course)
			       : registry_sink(&options);
}

/*
 * All of it
 */

static void list_there(const struct course *course, struct push_result *result)
{
	for (size_t i = 0; i < result->image.n_layers; i++)
		if (registry_hint_find(&course->memory.blobs, result->image.layers[i].blob.digest))
			strv_add(&result->there, result->image.layers[i].blob.digest);
}

static void fill_result(struct course *course)
{
	struct pushing *pushing = course->pushing;
	struct push_result *result = &pushing->result;
	const struct strv *warnings = auth_warnings(registry_auth(course->registry));

	for (size_t i = 0; i < warnings->n; i++)
		strv_add(&result->warnings, warnings->v[i]);
	result->sent = uploads_progress(course->uploads);
	result->name = mem_strdup(pushing->pull);
	result->ref = mem_printf("%s@%s", pushing->pull, result->image.manifest.digest);
	if (pushing->options->dry_run)
		list_there(course, result);
	if (course->sink->commit_ms)
		result->push_ms = clock_ms() - course->sink->commit_ms;
}

/* Meanwhile the tree is read. */
static int open_all(struct course *course, struct err *err)
{
	open_client(course);
	int r = open_registries(course, err);
	if (r < 0)
		return r;
	open_uploads(course);
	open_sink(course);
	start_early(course);
	return base_is_remote(course) ? start_lookup(course, err) : 0;
}

static int go(struct course *course, struct err *err)
{
	start_work(course);
	int r = open_dir(course, err);
	if (r == 0)
		r = open_all(course, err);
	if (r < 0)
		return r;
	r = run_loop(course, err);
	save(course, r == 0);
	if (r == 0)
		fill_result(course);
	return r;
}

int push_to_registry(struct pushing *pushing, struct err *err)
{
	AUTO(course_done)
	struct course course = {
		.pushing = pushing,
		.loop = session_loop(pushing->submission->session),
		.dir_fd = -1,
	};

	return go(&course, err);
}
