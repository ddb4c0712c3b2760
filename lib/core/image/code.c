/* SPDX-License-Identifier: Apache-2.0 */
#include "core/image/code.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/data/json.h"
#include "base/loop/loop.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/registry_config.h"
#include "core/config/words.h"
#include "core/image/registry_open.h"
#include "core/record/foreign.h"
#include "oci/image/image.h"
#include "oci/image/plan.h"
#include "oci/model/ref.h"

void run_code_env(const struct run *run, struct strv *env, struct strv *defaults)
{
	const struct json *snapshot = json_get(run->doc, "snapshot");
	const char *id = json_get_str(snapshot, "id"), *commit = json_get_str(snapshot, "commit");
	const char *ref = json_get_str(json_get(run->doc, "image"), "ref");

	strv_addf(env, "DLRUN_SNAPSHOT=%s", id ? id : "");
	strv_addf(env, "DLRUN_GIT_COMMIT=%s", commit ? commit : "");
	strv_addf(env, "DLRUN_GIT_DIRTY=%d", json_get_bool(snapshot, "dirty", false));
	strv_addf(env, "DLRUN_IMAGE_REF=%s", ref ? ref : "");
	strv_add(defaults, "PYTHONUNBUFFERED=1");
	/* .git is not part of the snapshot, and wandb looks for it. */
	if (commit)
		strv_addf(defaults, "WANDB_GIT_COMMIT=%s", commit);
}

struct target_job run_code_job(const struct run *run, const struct spec *spec)
{
	return (struct target_job){
		.run_id = run_id(run),
		.attempt = run_attempts(run),
		.spec = spec,
		.tree_bytes = (uint64_t)json_get_int(json_get(run->doc, "snapshot"), "bytes", 0),
		.run = run,
	};
}

enum { PULL_MS = 10 * 60 * 1000 };

struct pull {
	struct registry_client client;
	struct registry *registry;
	struct layout *layout;
	struct loop_wait wait;
	const struct ref *ref;
	/* the layer that is being fetched */
	struct blob_stage stage;
	struct err error;
};

static void pull_done(struct pull *pull)
{
	registry_free(pull->registry);
	registry_client_done(&pull->client);
	layout_free(pull->layout);
	blob_stage_done(&pull->stage);
	err_done(&pull->error);
}

/*
 * The repository to pull from
 */

static bool code_pulls_from(const struct registry_config *known, const struct ref *ref)
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
		if (registry_config_find(config, name, &known, NULL) > 0 &&
			code_pulls_from(&known, ref))
			return mem_strdup(known.push);
	}
	return mem_printf("%s/%s", ref->host, ref->repo);
}

static int open_registry(struct pull *pull, struct session *session, struct err *err)
{
	int r = registry_query_init(&pull->client, session, PULL_MS, err);

	if (r < 0)
		return r;
	AUTO_FREE char *repository = find_repository(session->config, pull->ref);
	return registry_query_open(&pull->client, repository, false, &pull->registry, err);
}

static int code_wait(struct pull *pull, struct err *err)
{
	int r = loop_wait_run(&pull->wait, err);

	pull->wait.n_open = 1;
	if (r == 0 && err_is_set(&pull->error))
		r = err_move(err, &pull->error);
	return r;
}

static int code_end_request(struct pull *pull, struct err *error)
{
	if (err_is_set(error))
		err_move(&pull->error, error);
	loop_wait_done(&pull->wait);
	return 0;
}

/*
 * Manifest and configuration
 */

static int code_on_found(
	void *ctx, const char *digest UNUSED, struct err *error, struct err *err UNUSED)
{
	return code_end_request(ctx, error);
}

static int fetch_description(struct pull *pull, const char *platform, struct err *err)
{
	struct registry_base *lookup = registry_base_start(
		pull->registry, &(struct registry_base_request){.ref = pull->ref,
					.platform = platform,
					.cache = pull->layout,
					.found = code_on_found,
					.ctx = pull});
	int r = code_wait(pull, err);

	registry_base_free(lookup);
	return r;
}

/*
 * Layers
 */

static int code_on_data(void *ctx, const void *data, size_t len, struct err *err)
{
	struct pull *pull = ctx;

	return blob_stage_write(&pull->stage, data, len, err);
}

static int on_layer(
	void *ctx, struct http_response *response UNUSED, struct err *error, struct err *err UNUSED)
{
	return code_end_request(ctx, error);
}

static int code_take_layer(
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
		.data = code_on_data,
		.doing = "fetching a layer",
		.done = on_layer,
		.ctx = pull,
	};

	int r = blob_stage_begin(&pull->stage, sink->ops->stage_dir(sink), err);
	if (r < 0)
		return r;
	pull->stage.max_size = blob->size;
	registry_start(pull->registry, &request);
	r = code_wait(pull, err);
	if (r == 0)
		r = code_take_layer(pull, sink, blob, err);
	blob_stage_done(&pull->stage);
	pull->stage = (struct blob_stage){0};
	return r;
}

static bool has_layer(struct layout *layout, const struct descriptor *blob)
{
	AUTO_FD int fd = -1;

	return layout_open_blob(layout, blob, &fd, NULL) == 0;
}

/*
 * All of it
 */

static bool code_is_complete(struct layout *layout, const char *digest)
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

static int code_fetch(struct pull *pull, struct session *session, struct err *err)
{
	AUTO_IMAGE struct image image = {0};

	int r = open_registry(pull, session, err);
	if (r == 0)
		r = fetch_description(pull, config_str(session->config, "platform"), err);
	if (r == 0)
		r = image_load(pull->layout, pull->ref->digest, &image, err);
	if (r < 0)
		return r;
	struct sink *sink = layout_sink(pull->layout);

	for (size_t i = 0; r == 0 && i < image.n_layers; i++) {
		const struct image_layer *layer = &image.layers[i];
		if (layer->role != IMAGE_ROLE_BASE && !has_layer(pull->layout, &layer->blob))
			r = fetch_layer(pull, sink, &layer->blob, err);
	}
	sink_free(sink);
	return r;
}

/* ref: HOST/REPO@sha256:…, as runs name it (the request for a `pull:` of the configuration goes to
 * its `push:`). *ret is a layout in which image_load finds it. Blocks. E_IMAGE_BASE, E_IMAGE,
 * registry.*, http.*. */
static int code_pull(
	struct session *session, const struct ref *ref, struct layout **ret, struct err *err)
{
	AUTO(pull_done)
	struct pull pull = {.ref = ref, .wait = {.loop = session_loop(session), .n_open = 1}};

	int r = registry_open_bases(session, &pull.layout, err);
	if (r == 0 && !code_is_complete(pull.layout, ref->digest))
		r = code_fetch(&pull, session, err);
	if (r == 0)
		*ret = TAKE(pull.layout);
	return r;
}

/*
 * The code of a run, read from the layers of its image.
 */

void code_done(struct code *code)
{
	if (!code)
		return;
	image_done(&code->image);
	layout_free(code->opened);
	*code = (struct code){0};
}

int code_fail_missing(const struct run *run, struct err *err)
{
	if (foreign_is(run))
		return err_set(err, E_IMAGE_BASE,
			"the code of %s is on the machine that submitted it: there was no registry",
			run_id(run));
	err_set(err, E_IMAGE_BASE, "%s ended before its image was made", run_id(run));
	return err_hint(err, "dlrun why %s", run_id(run));
}

static int code_open_layout(
	struct session *session, const struct ref *ref, struct code *code, struct err *err)
{
	AUTO_FREE char *own = dirs_layout(&session->dirs);
	AUTO_FREE char *dir = fs_join(session->env.cwd, ref->dir);

	if (str_eq(dir, own))
		return session_layout(session, &code->layout, err);
	int r = layout_open(dir, false, &code->opened, err);
	code->layout = code->opened;
	return r;
}

int code_open(struct session *session, const char *text, struct code *ret, struct err *err)
{
	AUTO_REF struct ref ref = {0};
	AUTO_FREE char *shown = str_escaped(text);
	AUTO(code_done) struct code code = {0};

	int r = ref_parse(text, &ref, err);
	if (r == 0 && (ref.kind == REF_SCRATCH || !ref.digest))
		r = err_set(err, E_IMAGE_BASE, "%s is not an image of a run", shown);
	if (r == 0)
		r = ref.kind == REF_REGISTRY ? code_pull(session, &ref, &code.opened, err)
					     : code_open_layout(session, &ref, &code, err);
	if (r == 0 && ref.kind == REF_REGISTRY)
		code.layout = code.opened;
	if (r == 0)
		r = image_load(code.layout, ref.digest, &code.image, err);
	if (r < 0)
		return r;
	*ret = code;
	code = (struct code){0};
	return 0;
}

static int open_run(
	struct session *session, const struct run *run, struct code *code, struct err *err)
{
	AUTO_FREE char *ref = words_get_one(json_get(run->doc, "image"), "ref");

	if (!ref)
		return code_fail_missing(run, err);
	int r = code_open(session, ref, code, err);
	return r < 0 ? err_prefix(err, "the code of %s", run_id(run)) : 0;
}

/* The image's full layer, if it has one. */
static const struct image_layer *full_layer(const struct image *image)
{
	for (size_t i = 0; i < image->n_layers; i++)
		if (image->layers[i].role == IMAGE_ROLE_FULL)
			return &image->layers[i];
	return NULL;
}

/* The entries of a full layer as the plan at path has them; it may be another layer's. */
static bool take_planned(const char *path, const struct image_layer *layer, struct entry_list *list)
{
	AUTO_PLAN struct plan plan = {0};
	char digest[DIGEST_TEXT_SIZE];

	plan_load(path, &plan);
	if (!plan.has_full)
		return false;
	digest_text(plan.full.digest, digest);
	if (!str_eq(digest, layer->blob.digest))
		return false;
	for (size_t i = 0; i < plan.n_entries; i++)
		entry_add(list, &plan.entries[i]);
	return true;
}

/* How many of dlrun's layers need not be read because a plan tells what is in them: 0 or 1. */
static size_t code_take_known(
	const struct session *session, const struct image *image, struct entry_list *list)
{
	const struct image_layer *layer = full_layer(image);
	AUTO_FREE char *plans = dirs_plans(&session->dirs);
	AUTO_DIR DIR *dir = layer ? opendir(plans) : NULL;
	struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		AUTO_FREE char *path = fs_join(plans, entry->d_name);
		if (!strchr(entry->d_name, '.') && take_planned(path, layer, list))
			return 1;
	}
	return 0;
}

int run_entries(
	struct session *session, const struct run *run, struct entry_list *ret, struct err *err)
{
	AUTO(code_done) struct code code = {0};
	AUTO_ENTRIES struct entry_list list = {0};

	int r = open_run(session, run, &code, err);
	if (r < 0)
		return r;
	size_t known = code_take_known(session, &code.image, &list);
	r = image_entries_above(code.layout, &code.image, known, &list, err);
	if (r < 0)
		return r;
	*ret = list;
	list = (struct entry_list){0};
	return 0;
}

int run_read_file(struct session *session, const struct run *run, const char *path, int out_fd,
	struct err *err)
{
	AUTO(code_done) struct code code = {0};

	int r = open_run(session, run, &code, err);
	return r < 0 ? r : image_read_file(code.layout, &code.image, path, out_fd, err);
}

/*
 * Checking out. The tree is made beside the first name on the way to it that is missing (or is the
 * empty directory that it replaces), and takes that name when it is whole.
 */

struct spot {
	char *name;        /* the name that appears; absolute */
	const char *below; /* from there to the tree, with its slash; "" where it is the tree */
	bool exists;
	mode_t mode; /* of the one that exists */
};

static void spot_done(struct spot *spot)
{
	free(spot->name);
}

static int fail_spot(const struct run *run, const char *dir, const char *why, struct err *err)
{
	AUTO_FREE char *shown = str_escaped(dir);
	AUTO_BUF struct buf id = buf_with(ENTRY_PATH_MAX);

	str_shell_quote(&id, run_id(run));
	err_set(err, E_CHECKOUT_DIR, "%s %s", shown, why);
	/* An image in the place of a run has its reference as id. */
	return err_hint(err, "dlrun checkout %s %s", id.data,
		run_id_is_valid(run_id(run)) ? run_id(run) : "code");
}

/* Whether dir may be empty. An unreadable directory may be: the rename fails if it is not. */
static bool may_be_empty(const char *dir)
{
	AUTO_DIR DIR *stream = opendir(dir);
	struct dirent *entry;

	while (stream && (entry = readdir(stream)))
		if (!str_eq(entry->d_name, ".") && !str_eq(entry->d_name, ".."))
			return false;
	return true;
}

static bool code_is_current_dir(const struct session *session, const struct stat *st)
{
	struct stat here;

	return stat(session->env.cwd, &here) == 0 && here.st_dev == st->st_dev &&
	       here.st_ino == st->st_ino;
}

/* The directories on the way that are missing, cut off path, which is absolute. */
static int cut_missing(char *path, struct err *err)
{
	AUTO_FREE char *parent = mem_strdup(path);
	struct stat st;

	for (;;) {
		char *slash = strrchr(parent, '/');
		slash[slash == parent] = '\0';
		if (stat(parent, &st) == 0)
			break;
		if (errno != ENOENT)
			return fs_error(err, errno, "%s", parent);
		path[strlen(parent)] = '\0';
	}
	return 0;
}

static int code_find_missing(const char *path, struct spot *ret, struct err *err)
{
	AUTO_FREE char *name = mem_strdup(path);

	int r = cut_missing(name, err);
	if (r < 0)
		return r;
	ret->below = path + strlen(name);
	AUTO_FREE char *way = mem_printf("%s/", ret->below);
	if (strstr(way, "/../"))
		return fs_error(err, ENOENT, "%s", path);
	ret->name = TAKE(name);
	return 0;
}

/* path: dir, absolute; outlives ret. */
static int find_spot(const struct session *session, const struct run *run, const char *dir,
	const char *path, struct spot *ret, struct err *err)
{
	struct stat st;

	if (stat(path, &st) < 0)
		return errno == ENOENT ? code_find_missing(path, ret, err)
				       : fs_error(err, errno, "%s", path);
	if (!S_ISDIR(st.st_mode))
		return fail_spot(run, dir, "is no directory", err);
	/* Replacing the current directory would leave the shell in a removed one. */
	if (code_is_current_dir(session, &st))
		return fail_spot(run, dir, "is the current directory", err);
	if (!may_be_empty(path))
		return fail_spot(run, dir, "is not empty", err);
	ret->below = "";
	ret->exists = true;
	ret->mode = st.st_mode & 07777;
	return fs_realpath(path, &ret->name, err);
}

static int code_fill(const struct code *code, const char *temp, const char *tree, struct err *err)
{
	/* umask applies, as to what git checks out. */
	int r = fs_mkdirs(tree, 0777, err);

	if (r < 0)
		return r;
	AUTO_FD int fd = open(tree, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return fs_error(err, errno, "%s", temp);
	return image_unpack(code->layout, &code->image, 0, fd, err);
}

static int code_put_in_place(const struct run *run, const struct spot *spot, const char *temp,
	const char *dir, struct err *err)
{
	if (spot->exists && chmod(temp, spot->mode) < 0)
		return fs_error(err, errno, "%s", temp);
	if (rename(temp, spot->name) == 0)
		return 0;
	if (errno == ENOTEMPTY || errno == EEXIST)
		return fail_spot(run, dir, "is not empty", err);
	return fs_error(err, errno, "making %s", spot->name);
}

static char *temp_beside(const char *name)
{
	char temp[FS_TEMP_NAME_SIZE];

	fs_temp_name(temp);
	return mem_printf("%.*s%s", (int)(strrchr(name, '/') + 1 - name), name, temp);
}

int run_checkout(struct session *session, const struct run *run, const char *dir, struct err *err)
{
	AUTO(spot_done) struct spot spot = {0};
	AUTO(code_done) struct code code = {0};
	AUTO_FREE char *path = fs_join(session->env.cwd, dir);

	for (size_t len = strlen(path); len > 1 && path[len - 1] == '/';)
		path[--len] = '\0';
	int r = find_spot(session, run, dir, path, &spot, err);
	if (r == 0)
		r = open_run(session, run, &code, err);
	if (r < 0)
		return r;
	AUTO_FREE char *temp = temp_beside(spot.name);
	AUTO_FREE char *tree = mem_printf("%s%s", temp, spot.below);
	r = code_fill(&code, temp, tree, err);
	if (r < 0)
		err_prefix(err, "checking out %s", run_id(run));
	else
		r = code_put_in_place(run, &spot, temp, dir, err);
	if (r < 0)
		fs_remove_tree(AT_FDCWD, temp, NULL);
	return r;
}
