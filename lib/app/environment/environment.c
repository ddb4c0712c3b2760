/* SPDX-License-Identifier: Apache-2.0 */
#include "app/environment/environment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/environment/bake.h"
#include "app/environment/baked.h"
#include "app/environment/image_data.h"
#include "app/environment/tagged.h"
#include "app/prepare/push.h"
#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/enc.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/target_names.h"
#include "core/image/file_list.h"
#include "core/image/image_facts.h"
#include "core/image/registry_open.h"
#include "core/record/setup_key.h"
#include "oci/layer/layer.h"
#include "targets/targets.h"

enum {
	BUSY_MS = 1000,
	TRIES = 3, /* of pods that are evicted or whose node is lost */
	REFUSAL_MAX = 4096,
	REFUSAL_MS = 60 * 60 * 1000,
};

struct environment {
	struct submit *submit;
	char key[SHA256_HEX_SIZE];
	struct ref to;     /* its repository: that of the code */
	char *base_digest; /* NULL: the base is a layout here */
	bool is_checked;   /* the target said that the Job could be there */
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

	return !submit->dry_run && (submit->is_recorded || submit->is_ahead) && setup->run &&
	       submit->pack.base_ref.kind != REF_SCRATCH && submit->target->ops->needs_image &&
	       submit->target->ops->exec;
}

static void environment_warn_each_pod(struct submit *submit, const char *why)
{
	submit_warn(submit, "the setup is run in each pod: %s", why);
}

/* Of the submit's own repository; borrows its host and repository. */
static struct ref environment_ref(const struct environment *environment, char *tag)
{
	const struct ref *to = &environment->to;

	return (struct ref){.kind = REF_REGISTRY, .host = to->host, .repo = to->repo, .tag = tag};
}

static int environment_find(
	struct environment *environment, int64_t trust_ms, char **ret, struct err *err)
{
	AUTO_FREE char *tag = image_environment_tag(environment->key);
	const struct ref ref = environment_ref(environment, tag);

	return tagged_lookup(environment->submit, &ref, trust_ms, ret, err);
}

/*
 * The key
 */

/* For keys that are directories, where git may ignore what lies there: a colleague, a host and this
 * machine have the same key. *ret stays NULL where there are none. */
static int environment_list(const struct submit *submit, struct file_list **ret, struct err *err)
{
	const struct strv *keys = &submit->spec.runtime.setup.key;
	AUTO_STRV struct strv include = {0};
	bool any = false;
	struct stat st;

	for (size_t i = 0; i < keys->n && !any; i++) {
		AUTO_FREE char *path = fs_join(submit->place->root, keys->v[i]);
		any = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
	}
	if (!any)
		return 0;
	submit_get_include(submit, &include);
	return file_list_take(submit->session, &include, ret, err);
}

static bool environment_holds(const void *ctx, const char *path)
{
	return file_list_holds_below(ctx, path);
}

/* Of the tree as it is on disk now. */
static int environment_read_key(
	const struct environment *environment, char ret[static SHA256_HEX_SIZE], struct err *err)
{
	const struct submit *submit = environment->submit;
	const struct config *config = submit->config;
	AUTO_FREE char *where = mem_printf("%s %s %s",
		environment->base_digest ? environment->base_digest
					 : submit->pack.base->manifest.digest,
		config_str(config, "platform"), config_str(config, "workdir"));

	AUTO_FILE_LIST struct file_list *list = NULL;
	ERR_TRY(environment_list(submit, &list, err));
	return setup_key(&submit->spec.runtime.setup, where, submit->place->root,
		list ? environment_holds : NULL, list, ret, err);
}

/* A tree that is read after the key may be another. */
static int environment_check_key(const struct environment *environment, struct err *err)
{
	char key[SHA256_HEX_SIZE];
	int r = environment_read_key(environment, key, err);

	if (r < 0 || str_eq(key, environment->key))
		return r;
	err_set(err, E_IO_CHANGED, "files of setup.key changed while the environment was made");
	return err_hint(err, "dlrun submit");
}

static int environment_make_key(struct environment *environment, struct err *err)
{
	struct submit *submit = environment->submit;
	const struct pack *pack = &submit->pack;
	int r = 0;

	if (pack->base_ref.kind == REF_REGISTRY) {
		r = tagged_lookup(submit, &pack->base_ref, REGISTRY_TRUST_TAG_MS,
			&environment->base_digest, err);
		if (r == 0 && !environment->base_digest)
			return 1;
	}
	return r < 0 ? r : environment_read_key(environment, environment->key, err);
}

/* While another has it, a moment passes before this returns. */
static int environment_bake(const struct bake_request *request, struct environment *environment,
	enum bake_result *ret, struct err *err)
{
	struct loop *loop = environment->submit->target->loop;
	int r = loop_flag_interrupts(loop, &environment->interrupted, err);

	if (r == 0)
		r = bake_make(request, ret, err);
	if (r == 0 && *ret == BAKE_BUSY)
		r = loop_pause(loop, BUSY_MS, &environment->interrupted, err);
	loop_remove_interrupts(loop);
	return r;
}

/*
 * Making
 */

static char *environment_base(const struct environment *environment)
{
	return tagged_name_base(environment->submit, environment->base_digest);
}

static int environment_push_layer(
	struct environment *environment, struct baked *baked, char **ret_digest, struct err *err)
{
	const struct pack_environment layer = {
		.entries = &baked->entries,
		.removed = &baked->removed,
		.opener = {baked_open, baked, .is_part = true},
		.key = environment->key,
	};
	AUTO_FREE char *base = environment_base(environment);
	AUTO_FREE char *tag = image_environment_tag(environment->key);
	AUTO(submit_done) struct submit submit = {.environment = &layer};

	return tagged_push(environment->submit, &submit, base, tag, ret_digest, err);
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
		r = registry_open_bases(submit->session, &bases, err);
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
	AUTO(baked_done) struct baked baked = {0};
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
		.is_checked = environment->is_checked,
		.interrupted = &environment->interrupted,
	};
	r = environment_bake(&request, environment, ret, err);
	environment->is_checked = true;
	if (r < 0 || *ret != BAKE_DONE)
		return r;
	baked.tree = layer_prefix(config_str(submit->config, "workdir"));
	baked.secrets = &submit->secret_env;
	baked.fd = stage.fd;
	r = baked_read(&baked, err);
	if (r < 0 && err->id == E_SECRET) {
		*ret = BAKE_CANNOT;
		r = 0;
	} else if (r == 0)
		r = environment_push_layer(environment, &baked, ret_digest, err);
	bake_remove(submit, environment->key);
	return r;
}

/* Where it is remembered that the target cannot make it. The caller frees. */
static char *environment_refusal(const struct environment *environment)
{
	const struct submit *submit = environment->submit;
	AUTO_FREE char *text = mem_printf("%s %s", environment->key, submit->target->name);
	AUTO_FREE char *dir = fs_join(submit->session->dirs.cache, "environments");
	uint8_t sha256[SHA256_SIZE];
	char hex[SHA256_HEX_SIZE];

	digest_sha256(text, strlen(text), sha256);
	hex_encode(sha256, sizeof(sha256), hex);
	return fs_join(dir, hex);
}

/* Reasons that the next submit would find out again. */
static bool environment_lasts(enum err_id id)
{
	return id == E_KUBE_DENIED || id == E_KUBE_SHELL || id == E_RUN_SETUP || id == E_SECRET;
}

/* In each pod; why is remembered for an hour. */
static void environment_refuse(struct environment *environment, const struct err *why)
{
	AUTO_FREE char *path = environment_refusal(environment);
	AUTO_FREE char *dir = fs_dirname(path);

	environment_warn_each_pod(environment->submit, why->message);
	if (environment_lasts(why->id) && fs_private_dir(dir, NULL) == 0)
		fs_replace(path, why->message, strlen(why->message), 0600, FS_SYNC_NONE, NULL);
}

static bool environment_is_refused(struct environment *environment)
{
	AUTO_FREE char *path = environment_refusal(environment);
	AUTO_BUF struct buf text = buf_with(REFUSAL_MAX);
	struct stat st;

	if (fs_read_regular(path, REFUSAL_MAX, &text, &st, NULL, NULL) < 0 ||
		clock_wall_ms() - (int64_t)st.st_mtime * 1000 > REFUSAL_MS)
		return false;
	environment_warn_each_pod(environment->submit, text.data);
	return true;
}

/* The registry does not have it either. */
static int environment_lost(struct environment *environment, int *n_lost, struct err *err)
{
	bake_remove(environment->submit, environment->key);
	if (++*n_lost < TRIES)
		return 0;
	return err_set(err, E_RUN_SETUP,
		"the pod of the setup was lost %d times before it was done", TRIES);
}

/* 1: it cannot be made there; err says why. */
static int environment_make(struct environment *environment, char **ret_digest, struct err *err)
{
	struct submit *submit = environment->submit;
	AUTO(push_result_done) struct push_result code = {0};
	AUTO_ERR struct err error = {0};
	AUTO_FREE char *line = setup_shown(submit->spec.runtime.setup.run);
	AUTO_FREE char *text = mem_printf(
		"environment: made once in a pod of %s, by %s", submit->target->name, line);
	int n_lost = 0;

	tagged_note(submit, text);
	int r = environment_push_code(environment, &code, err);
	if (r == 0)
		r = environment_check_key(environment, err);
	while (r == 0 && !*ret_digest) {
		enum bake_result result = BAKE_DONE;
		r = environment_take(environment, &code, &result, ret_digest, &error);
		if (r < 0 || result == BAKE_CANNOT) {
			err_move(err, &error);
			return r < 0 ? r : 1;
		}
		if (!*ret_digest)
			r = environment_find(environment, REGISTRY_TRUST_BLOB_MS, ret_digest, err);
		if (r == 0 && !*ret_digest && result == BAKE_LOST)
			r = environment_lost(environment, &n_lost, err);
	}
	return r;
}

/* *ret_digest: NULL where it cannot be made, and the setup is run in each pod. */
static int environment_make_for_run(
	struct environment *environment, char **ret_digest, struct err *err)
{
	AUTO_FREE char *tag = image_environment_tag(environment->key);
	int64_t begun_ms = clock_ms();
	AUTO_ERR struct err error = {0};

	int r = environment_make(environment, ret_digest, &error);
	if (r < 0)
		return err_move(err, &error);
	if (r > 0)
		environment_refuse(environment, &error);
	r = environment_check_key(environment, err);
	if (r == 0 && *ret_digest)
		submit_note(environment->submit, "environment %s: made in %.0f s", tag,
			(double)(clock_ms() - begun_ms) / 1000);
	return r;
}

static int environment_use(struct environment *environment, struct err *err)
{
	struct submit *submit = environment->submit;
	AUTO_FREE char *digest = NULL;

	if (!submit->place || submit->from_digest) {
		environment_warn_each_pod(submit, "the code is that of an image, not of this tree");
		return 0;
	}
	if (submit->spec.runtime.setup.key.n == 0) {
		submit_note(submit,
			"the setup is run in each pod: setup.key names no files that it "
			"depends on");
		return 0;
	}
	int r = tagged_find_registry(submit->config, submit->target->name, &environment->to, err);
	if (r == 0)
		environment_warn_each_pod(submit, "the target has no registry");
	if (r <= 0)
		return r;
	r = environment_make_key(environment, err);
	if (r == 0)
		r = environment_find(environment, REGISTRY_TRUST_BLOB_MS, &digest, err);
	if (r == 0 && !digest && !environment_is_refused(environment))
		r = environment_make_for_run(environment, &digest, err);
	if (r == 0 && digest) {
		submit->spec.runtime.setup.baked = mem_strdup(environment->key);
		r = tagged_set_base(submit, &environment->to, digest, err);
	}
	/* A missing base is reported by the push. */
	return r < 0 ? r : 0;
}

int environment_push(struct submit *submit, struct err *err)
{
	AUTO(environment_done) struct environment environment = {.submit = submit};
	struct runtime_setup *setup = &submit->spec.runtime.setup;
	AUTO_STRV struct strv data = {0};

	/* The image of the earlier run stays, with the environment that it has. */
	if (submit->from_digest && !submit->reused.image && setup->baked)
		return submit_push(submit, err);
	free(TAKE(setup->baked)); /* the next base does not have it */
	int r = environment_is_wanted(submit) ? environment_use(&environment, err) : 0;
	if (r == 0)
		r = image_data_push(submit, &data, err);
	if (r == 0)
		r = submit_push(submit, err);
	if (r < 0)
		image_data_forget(submit, &data);
	if (r < 0 && setup->baked) {
		AUTO_FREE char *tag = image_environment_tag(environment.key);
		const struct ref ref = environment_ref(&environment, tag);
		tagged_forget(submit, &ref);
		free(TAKE(setup->baked));
	}
	return r;
}

void environment_warn_held(struct submit *submit)
{
	if (submit->spec.runtime.setup.run && submit->target->ops->needs_image)
		environment_warn_each_pod(
			submit, "the run is kept here, and sent later without this tree");
}

/*
 * Ahead
 */

static int ahead_check_target(struct config *config, const char *name, struct err *err)
{
	AUTO_STRV struct strv names = {0};

	int r = target_names_split(config, name, &names, err);
	if (r == 0 && names.n > 1) {
		err_set(err, E_USAGE,
			"'%s' is several targets, each with an environment of its own", name);
		return err_hint(err, "dlrun bake -t %s", names.v[0]);
	}
	if (r == 0)
		r = target_check(config, name, err);
	if (r < 0 || target_ops_named(config, name)->needs_image)
		return r;
	err_set(err, E_TARGET_UNSUPPORTED,
		"target %s is not a cluster: the setup is run by the first run there, and later ones "
		"use what it has made",
		name);
	return err_hint(err, "dlrun warm -t %s", name);
}

static int ahead_check_setup(const struct config *config, struct err *err)
{
	bool has_lock = config_is_set(config, "environment.lock");

	if (!has_lock && !config_is_set(config, "setup.run")) {
		err_set(err, E_CONFIG,
			"neither setup: nor environment: is set, so there is no environment to make");
		return err_hint(err, "environment: {lock: uv.lock}");
	}
	if (has_lock || config_is_set(config, "setup.key"))
		return 0;
	err_set(err, E_CONFIG,
		"setup.key names no files that the setup depends on, so it is run in each pod");
	return err_hint(err, "setup: {run: uv sync --frozen, key: [uv.lock]}");
}

/* By the configuration alone. */
static int ahead_check(struct environment *environment, struct err *err)
{
	struct submit *submit = environment->submit;
	int r = session_config(submit->session, &submit->config, err);
	if (r < 0)
		return r;
	const char *name = config_str(submit->config, "target");
	name = name ? name : "local";
	r = ahead_check_target(submit->config, name, err);
	if (r == 0)
		r = ahead_check_setup(submit->config, err);
	if (r == 0)
		r = tagged_find_registry(submit->config, name, &environment->to, err);
	return r < 0 ? r : r == 0 ? push_fail_no_registry(name, err) : 0;
}

static int ahead_prepare(struct environment *environment, struct err *err)
{
	struct submit *submit = environment->submit;
	const struct pack *pack = &submit->pack;
	int r = ahead_check(environment, err);

	if (r == 0)
		r = submit_check(submit, err);
	if (r == 0 && pack->base_ref.kind == REF_SCRATCH) {
		err_set(err, E_IMAGE_NONE,
			"the base image is empty: nothing in it could run the setup");
		return err_hint(err, "dlrun bake --image docker.io/library/python:3.12");
	}
	if (r == 0)
		r = environment_make_key(environment, err);
	return r > 0 ? err_set(err, E_IMAGE_BASE, "there is no base image %s", pack->base_name) : r;
}

static int ahead_set_result(const struct environment *environment, const char *digest,
	struct environment_ahead *ret, struct err *err)
{
	const struct submit *submit = environment->submit;
	const struct ref *to = &environment->to;
	AUTO_LAYOUT struct layout *bases = NULL;
	AUTO(image_base_free_auto) struct image_base *base = NULL;

	int r = registry_open_bases(submit->session, &bases, err);
	if (r == 0)
		r = pack_read_base(&submit->pack, bases, digest, &base, err);
	if (r < 0)
		return r;
	ret->target = mem_strdup(submit->target->name);
	ret->name = image_environment_tag(environment->key);
	ret->ref = mem_printf("%s/%s@%s", to->host, to->repo, digest);
	ret->bytes = base->layers[base->n_layers - 1].size;
	ret->total_ms = clock_ms() - submit->begun_ms;
	return 0;
}

int environment_make_ahead(struct session *session, const struct submit_options *options,
	const struct submit_events *events, struct environment_ahead *ret, struct err *err)
{
	AUTO(submit_done)
	struct submit submit = {
		.session = session, .options = options, .events = events, .begun_ms = clock_ms()};
	AUTO(environment_done) struct environment environment = {.submit = &submit};
	AUTO_FREE char *made = NULL, *digest = NULL;

	int r = ahead_prepare(&environment, err);
	if (r == 0)
		r = environment_find(&environment, 0, &digest, err);
	if (r == 0 && !digest) {
		r = environment_make(&environment, &made, err);
		if (r > 0)
			return err_prefix(err,
				"target %s cannot make it, so the setup is run in each pod",
				submit.target->name);
		if (r == 0)
			r = environment_find(&environment, 0, &digest, err);
		if (r == 0 && !digest)
			r = err_set(err, E_REGISTRY_NOT_FOUND,
				"the registry has lost what was just pushed: %s", made);
	}
	if (r < 0)
		return r;
	ret->is_made = made != NULL;
	return ahead_set_result(&environment, digest, ret, err);
}

void environment_ahead_done(struct environment_ahead *ahead)
{
	free(ahead->target);
	free(ahead->name);
	free(ahead->ref);
	*ahead = (struct environment_ahead){0};
}

struct json *environment_ahead_json(const struct environment_ahead *ahead)
{
	struct json *json = json_object();

	json_set_str(json, "schema", "dlrun/bake/v1");
	json_set_str(json, "target", ahead->target);
	json_set_str(json, "name", ahead->name);
	json_set_str(json, "ref", ahead->ref);
	json_set_bool(json, "made", ahead->is_made);
	json_set_int(json, "bytes", (int64_t)ahead->bytes);
	json_set_int(json, "total_ms", ahead->total_ms);
	return json;
}
