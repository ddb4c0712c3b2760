/* SPDX-License-Identifier: Apache-2.0 */
#include "core/image/pack.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/loop/par.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/digest.h"
#include "base/util/enc.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "oci/image/plan.h"
#include "oci/layer/layer.h"
#include "oci/model/ref.h"

enum { REFRESH_TRIES = 3 };

/*
 * The base
 */

int pack_need_base(const struct pack *pack, struct err *err)
{
	if (pack->base_ref.kind != REF_REGISTRY || pack->base)
		return 0;
	err_set(err, E_IMAGE_BASE, "%s is in a registry, and its layers are not here",
		pack->base_name);
	return err_hint(err, "skopeo copy docker://%s oci:base && dlrun push --image oci:base …",
		pack->base_name);
}

int pack_read_base(const struct pack *pack, struct layout *layout, const char *digest,
	struct image_base **ret, struct err *err)
{
	const char *platform = config_str(pack->session->config, "platform");

	int r = (pack->adds ? image_whole_load : image_base_load)(
		layout, pack->base_name, digest, platform, ret, err);
	/* Layers of the base are not read from this layout: they stay in the registry. */
	if (r == 0)
		(*ret)->layout = NULL;
	return r;
}

void pack_set_base(struct pack *pack, struct image_base *take)
{
	image_base_free(pack->base);
	pack->base = take;
}

/*
 * Settings
 */

/* Reproducible builds: https://reproducible-builds.org/specs/source-date-epoch/ */
static int read_epoch(const char *text, int64_t *ret, struct err *err)
{
	*ret = LAYER_MTIME;
	if (str_empty(text))
		return 0;
	if (str_to_int(text, 0, INT32_MAX, "SOURCE_DATE_EPOCH", ret, err) < 0)
		return err_set(err, E_CONFIG, "SOURCE_DATE_EPOCH is not a number of seconds");
	return 0;
}

/* The tree has workdir to itself (image.h), so it is not the root of the image. */
static int check_workdir(const struct config *config, struct err *err)
{
	const char *workdir = config_str(config, "workdir");

	if (*workdir == '/' && layer_path_is_valid(workdir + 1))
		return 0;
	AUTO_FREE char *shown = str_shown(workdir);
	err_set(err, E_CONFIG, "workdir: '%s' is not an absolute path below /, without . and ..",
		shown);
	config_blame(config, "workdir", err);
	return err_hint(err, "workdir: " IMAGE_WORKDIR);
}

int pack_init(
	struct pack *pack, struct session *session, const char *base, bool full, struct err *err)
{
	struct config *config;
	const char *codec;

	*pack = (struct pack){.session = session, .full = full};
	int r = session_config(session, &config, err);
	if (r < 0)
		return r;
	codec = config_str(config, "compression");
	pack->codec = (enum codec)codec_find(codec ? codec : "gzip");
	pack->base_name = mem_strdup(base ? base : config_str(config, "image"));
	if (!pack->base_name)
		pack->base_name = mem_strdup("scratch");
	r = read_epoch(session->env.source_date_epoch, &pack->mtime_s, err);
	if (r == 0)
		r = check_workdir(config, err);
	if (r < 0)
		return r;
	const struct ref *ref = &pack->base_ref;
	const char *platform = config_str(pack->session->config, "platform");
	const char *cwd = pack->session->env.cwd;
	AUTO_FREE char *start = NULL, *dir = NULL;

	r = ref_parse(pack->base_name, &pack->base_ref, err);
	if (r < 0 || ref->kind != REF_LAYOUT)
		return r;
	start = base ? mem_strdup(cwd) : config_base_dir(pack->session->config, "image", cwd);
	dir = fs_join(start, ref->dir);
	r = layout_open(dir, false, &pack->base_layout, err);
	if (r < 0)
		return r;
	return image_base_load(pack->base_layout, pack->base_name,
		ref->digest ? ref->digest : ref->tag, platform, &pack->base, err);
}

/*
 * Writing
 */

/* Kept per tree × destination × compression × directory in the image. NULL: the cache cannot be
 * used, which costs speed. */
static char *plan_path(
	const struct pack *pack, const char *root, const char *dest, const char *workdir)
{
	AUTO_FREE char *dir = dirs_plans(&pack->session->dirs);
	const char *const parts[] = {root, dest, codec_name(pack->codec), workdir};
	AUTO_DIGEST struct digest digest = {0};
	AUTO_ERR struct err err = {0};
	uint8_t sha256[SHA256_SIZE];
	char hex[SHA256_HEX_SIZE];

	if (fs_private_dir(dir, &err) < 0) {
		log_note("no plan is kept: %s", err.message);
		return NULL;
	}
	digest_begin(&digest, DIGEST_SHA256);
	for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
		digest_add(&digest, parts[i], strlen(parts[i]) + 1);
	digest_end(&digest, sha256);
	hex_encode(sha256, sizeof(sha256), hex);
	return mem_printf("%s/%s", dir, hex);
}

/* A plan that is read ahead. */
struct pack_plan {
	char *path;
	struct plan plan;
	struct par_task *task;
};

static void pack_read_ahead(void *ctx)
{
	struct pack_plan *ahead = ctx;

	plan_load(ahead->path, &ahead->plan);
}

void pack_prepare(struct pack *pack, const char *root, const char *dest)
{
	AUTO_FREE char *path =
		plan_path(pack, root, dest, config_str(pack->session->config, "workdir"));

	if (!path || pack->ahead)
		return;
	pack->ahead = mem_alloc(1, sizeof(*pack->ahead));
	pack->ahead->path = TAKE(path);
	pack->ahead->task = par_start(pack_read_ahead, pack->ahead);
}

static void free_ahead(struct pack_plan *ahead)
{
	if (!ahead)
		return;
	par_wait(ahead->task);
	plan_done(&ahead->plan);
	free(ahead->path);
	free(ahead);
}

void pack_done(struct pack *pack)
{
	if (!pack)
		return;
	free_ahead(pack->ahead);
	image_base_free(pack->base);
	layout_free(pack->base_layout);
	ref_done(&pack->base_ref);
	free(pack->base_name);
	*pack = (struct pack){0};
}

/* The plan that was read ahead for path, or NULL. */
static struct plan *plan_ahead(struct pack *pack, const char *path)
{
	struct pack_plan *ahead = pack->ahead;

	if (!ahead || !path || !str_eq(path, ahead->path))
		return NULL;
	par_wait(ahead->task);
	ahead->task = NULL;
	return &ahead->plan;
}

static int pack_get_base(void *ctx, const struct image_base **ret, struct err *err)
{
	struct pack *pack = ctx;
	int r = pack->get_base ? pack->get_base(pack, pack->get_base_ctx, err) : 0;

	*ret = pack->base;
	return r;
}

struct writing {
	struct pack *pack;
	const struct snapshot *snapshot;
};

/* Both are found while layers are written. */
static int get_base_and_id(void *ctx, const struct image_base **ret, struct err *err)
{
	struct writing *writing = ctx;

	snapshot_wait_id(writing->snapshot);
	return pack_get_base(writing->pack, ret, err);
}

int pack_write(struct pack *pack, struct snapshot *snapshot, struct sink *sink, const char *dest,
	const char *name, struct image *ret, struct err *err)
{
	const char *workdir = config_str(pack->session->config, "workdir");
	AUTO_FREE char *plan = plan_path(pack, snapshot->root, dest, workdir);
	AUTO_STRV struct strv labels = {0};
	struct writing writing = {pack, snapshot};
	struct image_request request = {
		.workdir = workdir,
		.base = pack->base,
		.get_base = get_base_and_id,
		.get_base_ctx = &writing,
		.platform = config_str(pack->session->config, "platform"),
		.codec = pack->codec,
		.plan_path = plan,
		.plan = plan_ahead(pack, plan),
		.full = pack->full,
		.dry = pack->dry,
		.mtime_s = pack->mtime_s,
		.labels = &labels,
		.name = name,
	};

	/* OCI image-spec, annotations.md, "Pre-Defined Annotation Keys". */
	if (snapshot->git.commit)
		strv_addf(&labels, PACK_LABEL_REVISION "=%s", snapshot->git.commit);
	if (snapshot->git.remote_url)
		strv_addf(&labels, PACK_LABEL_SOURCE "=%s", snapshot->git.remote_url);
	for (int i = 0;; i++) {
		request.entries = &snapshot->entries;
		request.opener = snapshot_opener(snapshot);
		request.snapshot_id = snapshot->id;
		int r = image_write(&request, sink, ret, err);
		if (r == 0 || !err || err->id != E_IO_CHANGED || i == REFRESH_TRIES)
			return r;
		log_note("%s: taken again", err->message);
		err_clear(err);
		r = snapshot_refresh(snapshot, err);
		if (r < 0)
			return r;
	}
}

int pack_rebase(struct pack *pack, const struct pack_reused *reused, struct sink *sink,
	const char *name, struct image *ret, struct err *err)
{
	AUTO_STRV struct strv labels = {0};
	const struct image_request request = {
		.own = reused->image,
		.own_layout = reused->layout,
		.snapshot_id = reused->snapshot_id,
		.workdir = reused->image->workdir,
		.base = pack->base,
		.get_base = pack->get_base ? pack_get_base : NULL,
		.get_base_ctx = pack,
		.platform = config_str(pack->session->config, "platform"),
		.dry = pack->dry,
		.mtime_s = pack->mtime_s,
		.labels = &labels,
		.name = name,
	};

	if (reused->commit)
		strv_addf(&labels, PACK_LABEL_REVISION "=%s", reused->commit);
	if (reused->source)
		strv_addf(&labels, PACK_LABEL_SOURCE "=%s", reused->source);
	return image_write(&request, sink, ret, err);
}

static int open_added(void *ctx, const struct entry *entry, int *ret_fd, struct err *err)
{
	const struct pack_added *added = ctx;
	AUTO_FD int fd = fcntl(added->fd, F_DUPFD_CLOEXEC, 0);

	if (fd < 0 || lseek(fd, 0, SEEK_SET) < 0)
		return fs_error(err, errno, "%s", entry->path);
	*ret_fd = TAKE_FD(fd);
	return 0;
}

int pack_add(struct pack *pack, const struct pack_added *added, struct sink *sink, const char *name,
	struct image *ret, struct err *err)
{
	const char *slash = strrchr(added->path, '/');
	AUTO_FREE char *dir = mem_strndup(added->path, (size_t)(slash - added->path));
	struct entry entry = {.path = slash + 1, .size = added->content.size};
	const struct entry_list entries = {.v = &entry, .n = 1};
	const struct strv no_labels = {0};
	const struct image_request request = {
		.entries = &entries,
		.opener = {open_added, (void *)added},
		.snapshot_id = added->snapshot_id,
		.workdir = dir,
		.get_base = pack_get_base,
		.get_base_ctx = pack,
		.platform = config_str(pack->session->config, "platform"),
		.codec = pack->codec,
		.full = true,
		.mtime_s = pack->mtime_s,
		.labels = &no_labels,
		.name = name,
	};

	BUG_ON(!digest_parse(added->content.digest, entry.sha256));
	return image_write(&request, sink, ret, err);
}

int pack_write_environment(struct pack *pack, const struct pack_environment *environment,
	struct sink *sink, const char *name, struct image *ret, struct err *err)
{
	AUTO_STRV struct strv labels = {0};
	const struct image_request request = {
		.entries = environment->entries,
		.opener = environment->opener,
		.removed = environment->removed,
		.environment = environment->key,
		.base = pack->base,
		.get_base = pack_get_base,
		.get_base_ctx = pack,
		.platform = config_str(pack->session->config, "platform"),
		.codec = pack->codec,
		.mtime_s = pack->mtime_s,
		.labels = &labels,
		.name = name,
	};

	strv_addf(&labels, IMAGE_LABEL_ENVIRONMENT "=%s", environment->key);
	return image_write(&request, sink, ret, err);
}

int pack_write_data(struct pack *pack, const struct pack_data *data, struct sink *sink,
	const char *dest, const char *name, struct image *ret, struct err *err)
{
	AUTO_FREE char *plan = plan_path(pack, data->snapshot->root, dest, data->dir);
	AUTO_STRV struct strv labels = {0};
	const struct image_request request = {
		.entries = &data->snapshot->entries,
		.opener = snapshot_opener(data->snapshot),
		.data_dir = data->dir,
		.data = data->key,
		.base = pack->base,
		.get_base = pack_get_base,
		.get_base_ctx = pack,
		.platform = config_str(pack->session->config, "platform"),
		.codec = pack->codec,
		.plan_path = plan,
		.mtime_s = pack->mtime_s,
		.labels = &labels,
		.name = name,
	};

	strv_addf(&labels, IMAGE_LABEL_DATA "=%s", data->key);
	return image_write(&request, sink, ret, err);
}

/*
 * Records
 */

struct json *pack_image_json(const struct image *image, const char *ref, const char *base)
{
	struct json *json = json_object(), *layers = json_array();

	json_set_bytes(json, "ref", ref, strlen(ref));
	json_set_str(json, "base", base);
	for (size_t i = 0; i < image->n_layers; i++) {
		const struct image_layer *layer = &image->layers[i];
		struct json *row = json_object();
		json_set_str(row, "role", image_role_name(layer->role));
		json_set_str(row, "diff_id", layer->diff_id);
		json_set_str(row, "digest", layer->blob.digest);
		json_set_int(row, "size", (int64_t)layer->blob.size);
		json_add(layers, row);
	}
	json_set(json, "layers", layers);
	json_set_int(json, "layers_pushed", (int64_t)image->layers_written);
	json_set_int(json, "bytes_pushed", (int64_t)image->bytes_written);
	return json;
}

struct json *pack_snapshot_json(const struct snapshot *snapshot)
{
	struct json *json = json_object();
	const struct snapshot_git *git = &snapshot->git;

	snapshot_wait_id(snapshot);
	json_set_str(json, "id", snapshot->id);
	json_set_str(json, "commit", git->commit);
	if (git->present)
		json_set_bool(json, "dirty", git->dirty);
	else
		json_set(json, "dirty", json_null());
	json_set(json, "ref", json_null());
	json_set(json, "record", json_null());
	json_set_int(json, "files", (int64_t)snapshot->entries.n);
	json_set_int(json, "bytes", (int64_t)snapshot->bytes);
	json_set_int(json, "left_out", (int64_t)snapshot->paths.n_excluded);
	return json;
}
