/* SPDX-License-Identifier: Apache-2.0 */
#include "app/environment/image_data.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "app/environment/tagged.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/digest.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/words.h"
#include "core/image/registry_open.h"
#include "kube/api/kinds.h"
#include "oci/image/image.h"
#include "snap/tree/snapshot.h"

enum { DATA_TRIES = 3 };

/* A directory of data of a submit. */
struct data {
	struct submit *submit;
	struct runtime_data *runtime;
	char *shown; /* its path */
	char *root;  /* absolute, without symbolic links */
	char *dir;   /* in the image */
	struct ref to;
	char *base_digest; /* NULL: the base is a layout here, or none */
	struct snapshot *snapshot;
	char key[SHA256_HEX_SIZE];
};

static void image_data_done(struct data *data)
{
	free(data->shown);
	free(data->root);
	free(data->dir);
	ref_done(&data->to);
	free(data->base_digest);
	snapshot_free(data->snapshot);
}

static bool image_data_is_sent(const struct runtime_data *runtime)
{
	return str_eq(runtime->from, RUNTIME_SYNC);
}

/*
 * The directory here
 */

/* Of the tree: of a run that is sent later, that of its submit. The caller frees; NULL: not
 * known. */
static char *image_data_tree(const struct submit *submit)
{
	const struct run *run = submit->is_held ? submit->run : submit->parent;

	if (submit->place)
		return mem_strdup(submit->place->root);
	return run ? words_get_one(json_get(run->doc, "origin"), "root") : NULL;
}

static int image_data_find(struct data *data, struct err *err)
{
	AUTO_FREE char *tree = image_data_tree(data->submit);
	AUTO_FREE char *path = tree ? fs_join(tree, data->runtime->path) : NULL;
	struct stat st;

	data->shown = str_escaped(data->runtime->path);
	data->dir = mem_printf(KUBE_DATA_DIR "/%s", data->runtime->path);
	data->root = path ? realpath(path, NULL) : NULL;
	if (data->root && stat(data->root, &st) == 0 && S_ISDIR(st.st_mode))
		return 0;
	return err_set(err, E_RUN_DATA, "data: %s is not a directory on this machine", data->shown);
}

static int image_data_take_snapshot(struct data *data, struct err *err)
{
	AUTO_STRV struct strv all = {0};
	char prefix[] = ".";
	const struct tree_place place = {.root = data->root, .prefix = prefix};
	const struct session *session = data->submit->session;
	const struct snapshot_options options = {
		.place = &place,
		.include = &all,
		.allow = &all,
		.cache_dir = session->dirs.cache,
		.shell_dir = session->env.shell_dir,
	};

	strv_add(&all, ".");
	snapshot_free(TAKE(data->snapshot));
	int r = snapshot_take(&options, &data->snapshot, err);
	return r < 0 ? err_prefix(err, "data: %s", data->shown) : 0;
}

/*
 * The image
 */

static int image_data_find_registry(struct data *data, struct err *err)
{
	struct submit *submit = data->submit;
	int r = tagged_find_registry(submit->config, submit->target->name, &data->to, err);

	if (r != 0)
		return r < 0 ? r : 0;
	err_set(err, E_CONFIG,
		"data: %s goes to the nodes by a registry (sync), and target %s has none",
		data->shown, submit->target->name);
	return err_hint(err, "targets: {%s: {registry: registry.example.com/me/dlrun}}",
		submit->target->name);
}

/* 1: there is no such base. */
static int image_data_find_base(struct data *data, struct err *err)
{
	const struct ref *ref = &data->submit->pack.base_ref;

	if (ref->kind != REF_REGISTRY)
		return 0;
	int r = tagged_lookup(data->submit, ref, REGISTRY_TRUST_TAG_MS, &data->base_digest, err);
	return r < 0 ? r : !data->base_digest;
}

static void image_data_make_key(struct data *data)
{
	const struct submit *submit = data->submit;
	const struct pack *pack = &submit->pack;
	const char *base = data->base_digest ? data->base_digest
			   : pack->base      ? pack->base->manifest.digest
					     : "scratch";
	AUTO_FREE char *text = mem_printf("dlrun/data/v1\n%s %s %s %lld\n%s %s", base,
		config_str(submit->config, "platform"), codec_name(pack->codec),
		(long long)pack->mtime_s, data->snapshot->id, data->dir);
	uint8_t sha256[SHA256_SIZE];

	digest_sha256(text, strlen(text), sha256);
	hex_encode(sha256, sizeof(sha256), data->key);
}

static const char *image_data_many(size_t n)
{
	return n == 1 ? "" : "s";
}

static void image_data_note_sent(struct data *data, const struct image *image)
{
	const struct snapshot *snapshot = data->snapshot;
	char size[16], sent[16];

	str_size(snapshot->bytes, size);
	str_size(image->bytes_written, sent);
	submit_note(data->submit, "data: %s (%zu file%s, %s): %s sent in %zu layer%s", data->shown,
		snapshot->entries.n, image_data_many(snapshot->entries.n), size, sent,
		image->layers_written, image_data_many(image->layers_written));
}

static int image_data_send(struct data *data, const char *tag, char **ret_digest, struct err *err)
{
	struct submit *for_submit = data->submit;
	const struct pack_data layers = {data->snapshot, data->dir, data->key};
	AUTO_FREE char *base = tagged_name_base(for_submit, data->base_digest);
	AUTO(submit_done) struct submit submit = {.data = &layers};

	int r = tagged_push(for_submit, &submit, base, tag, ret_digest, err);
	if (r < 0 && err->id == E_IMAGE_DEPTH) {
		AUTO_BUF struct buf quoted = buf_with(4 * strlen(data->shown) + 16);
		str_shell_quote(&quoted, data->shown);
		err_hint(err, "dlrun data push %s -t %s", quoted.data, for_submit->target->name);
	}
	if (r < 0)
		return err_prefix(err, "data: %s", data->shown);
	image_data_note_sent(data, &submit.image);
	return 0;
}

/* The digest of the image, from the registry, else it is made of the data as it is now. */
static int image_data_get_image(
	struct data *data, struct strv *tags, char **ret_digest, struct err *err)
{
	struct submit *submit = data->submit;
	const struct ref *to = &data->to;
	char size[16];

	int r = image_data_take_snapshot(data, err);
	if (r < 0)
		return r;
	image_data_make_key(data);
	AUTO_FREE char *tag = image_data_tag(data->key);
	const struct ref ref = {
		.kind = REF_REGISTRY, .host = to->host, .repo = to->repo, .tag = tag};
	r = tagged_lookup(submit, &ref, REGISTRY_TRUST_BLOB_MS, ret_digest, err);
	if (r == 0 && !*ret_digest) {
		str_size(data->snapshot->bytes, size);
		AUTO_FREE char *text = mem_printf("data: %s (%zu file%s, %s) goes to %s/%s",
			data->shown, data->snapshot->entries.n,
			image_data_many(data->snapshot->entries.n), size, to->host, to->repo);
		tagged_note(submit, text);
		r = image_data_send(data, tag, ret_digest, err);
	}
	if (r == 0)
		strv_addf(tags, "%s/%s:%s", to->host, to->repo, tag);
	return r;
}

/* The specification of a run that was accepted before is in its row. */
static void image_data_set_digest(struct data *data)
{
	struct submit *submit = data->submit;

	REPLACE(data->runtime->digest, mem_strdup(data->snapshot->id));
	if (!submit->is_held)
		return;
	AUTO_JSON struct json *spec = spec_to_json(&submit->spec);
	json_set(submit->run->spec, "data", json_clone(json_get(spec, "data")));
	runtime_name_data(&submit->spec.runtime, submit->run->doc);
}

static int image_data_push_one(
	struct submit *submit, struct runtime_data *runtime, struct strv *tags, struct err *err)
{
	AUTO(image_data_done) struct data data = {.submit = submit, .runtime = runtime};
	AUTO_FREE char *digest = NULL;
	AUTO_ERR struct err error = {0};

	int r = image_data_find(&data, err);
	if (r == 0)
		r = image_data_find_registry(&data, err);
	if (r == 0)
		r = image_data_find_base(&data, err);
	if (r != 0) /* a missing base is reported by the push */
		return r < 0 ? r : 0;
	for (int i = 1;; i++) {
		r = image_data_get_image(&data, tags, &digest, &error);
		if (r == 0 || error.id != E_IO_CHANGED || i == DATA_TRIES)
			break;
		err_clear(&error);
	}
	if (r < 0)
		return err_move(err, &error);
	image_data_set_digest(&data);
	return tagged_set_base(submit, &data.to, digest, err);
}

int image_data_push(struct submit *submit, struct strv *ret_tags, struct err *err)
{
	struct runtime *runtime = &submit->spec.runtime;
	bool is_whole = submit->from_digest && !submit->reused.image;
	int r = 0;

	for (size_t i = 0; r == 0 && i < runtime->data.n; i++) {
		struct runtime_data *data = &runtime->data.v[i];
		if (!image_data_is_sent(data) || submit->dry_run || (is_whole && data->digest))
			continue;
		if (is_whole) {
			AUTO_FREE char *shown = str_escaped(data->path);
			err_set(err, E_RUN_DATA,
				"data: %s goes with the image (sync), and the image of the earlier "
				"run has none",
				shown);
			return err_hint(err, "dlrun submit   # from the working tree");
		}
		r = image_data_push_one(submit, data, ret_tags, err);
	}
	return r;
}

void image_data_forget(struct submit *submit, const struct strv *tags)
{
	for (size_t i = 0; i < tags->n; i++) {
		AUTO_REF struct ref ref = {0};
		if (ref_parse(tags->v[i], &ref, NULL) == 0)
			tagged_forget(submit, &ref);
	}
}

/*
 * Preview
 */

static int image_data_preview_one(
	struct submit *submit, struct runtime_data *runtime, struct err *err)
{
	AUTO(image_data_done) struct data data = {.submit = submit, .runtime = runtime};
	AUTO(path_list_done) struct path_list list = {0};
	static const struct strv none;
	AUTO_STRV struct strv all = {0};
	char size[16];

	int r = image_data_find(&data, err);
	if (r == 0)
		r = image_data_find_registry(&data, err);
	if (r < 0)
		return r;
	strv_add(&all, ".");
	const struct paths_options options = {
		.root = data.root, .include = &all, .allow = &all, .paths = &none};
	r = paths_list(&options, &list, err);
	if (r < 0)
		return err_prefix(err, "data: %s", data.shown);
	str_size(list.bytes, size);
	submit_note(submit, "data: %s (%zu file%s, %s) goes to %s/%s, as far as it is not there",
		data.shown, list.n, image_data_many(list.n), size, data.to.host, data.to.repo);
	return 0;
}

int image_data_preview(struct submit *submit, struct err *err)
{
	struct runtime *runtime = &submit->spec.runtime;
	int r = 0;

	if (!submit->target->ops->needs_image)
		return 0;
	for (size_t i = 0; r == 0 && i < runtime->data.n; i++)
		if (image_data_is_sent(&runtime->data.v[i]) && !runtime->data.v[i].digest)
			r = image_data_preview_one(submit, &runtime->data.v[i], err);
	return r;
}
