/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "app/prepare/submission.h"
#include "base/os/os.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/words.h"
#include "core/image/code.h"
#include "core/image/image_facts.h"
#include "core/store/store.h"
#include "oci/image/image.h"
#include "oci/model/ref.h"

/*
 * --from: the exact code of an earlier run, or of an image. Where the target cannot take that image
 * from where it is, dlrun's own layers of it are carried along: into a registry, or to this
 * machine.
 */

/* The tree that the run was submitted from, if that was here. */
static char *root_of(const struct run *run)
{
	const struct json *origin = json_get(run->doc, "origin");
	char machine[OS_ID_SIZE];

	if (!os_machine_id(machine) || !str_eq(json_get_str(origin, "machine"), machine))
		return NULL;
	return words_get_one(origin, "root");
}

static int take_parent(struct submission *submission, struct err *err)
{
	struct store *store;
	const char *digest;

	int r = session_store(submission->session, &store, err);
	if (r == 0)
		r = store_resolve(store, submission->options->from, &submission->parent, err);
	if (r == 0)
		r = spec_from_json(submission->parent->spec, &submission->spec, err);
	if (r < 0)
		return r;
	submission->live_root = root_of(submission->parent);
	digest = run_image_digest(submission->parent);
	submission->from_ref = words_get_one(json_get(submission->parent->doc, "image"), "ref");
	if (!digest || !submission->from_ref)
		return err_set(
			err, E_IMAGE_BASE, "%s never had an image", run_id(submission->parent));
	submission->from_digest = mem_strdup(digest);
	return 0;
}

/* REPO@sha256:… */
static int take_image(struct submission *submission, struct err *err)
{
	const struct tree_place *place;
	AUTO_REF struct ref ref = {0};

	int r = ref_parse(submission->options->from, &ref, err);
	if (r < 0)
		return r;
	if (!ref.digest)
		return err_set(err, E_IMAGE_REF, "--from takes a run, or an image with its digest");
	submission->from_digest = mem_strdup(ref.digest);
	submission->from_ref = mem_strdup(submission->options->from);
	submission->spec.cwd = mem_strdup(".");
	if (session_place(submission->session, &place, NULL) == 0)
		submission->live_root = mem_strdup(place->root);
	return 0;
}

int submission_take_from(struct submission *submission, struct err *err)
{
	const char *from = submission->options->from;

	if (!from)
		return 0;
	return strchr(from, '@') && from[0] != '@' ? take_image(submission, err)
						   : take_parent(submission, err);
}

/*
 * Where it is
 */

static int read_config(struct submission *submission, struct err *err)
{
	const struct code *code = &submission->from;
	AUTO_BUF struct buf text = {0};

	buf_init(&text, IMAGE_CONFIG_MAX);
	int r = layout_read_blob(code->layout, &code->image.config, IMAGE_CONFIG_MAX, &text, err);
	if (r < 0)
		return r;
	return json_parse(text.data, text.len, IMAGE_CONFIG_MAX, code->image.config.digest,
		&submission->from_config, err);
}

static int open_code(struct submission *submission, struct err *err)
{
	int r = code_open(submission->session, submission->from_ref, &submission->from, err);

	if (r == 0)
		r = read_config(submission, err);
	if (r == 0)
		return 0;
	if (submission->parent)
		return err_prefix(err, "the code of %s", run_id(submission->parent));
	AUTO_FREE char *shown = str_escaped(submission->from_ref);
	return err_prefix(err, "--from %s", shown);
}

static int read_entries(struct submission *submission)
{
	AUTO_ENTRIES struct entry_list list = {0};
	AUTO(code_done) struct code code = {0};

	if (submission->parent)
		return run_entries(
			submission->session, submission->parent, &submission->from_entries, NULL);
	int r = code_open(submission->session, submission->from_ref, &code, NULL);
	if (r == 0)
		r = image_entries_above(code.layout, &code.image, 0, &list, NULL);
	if (r < 0)
		return r;
	submission->from_entries = list;
	list = (struct entry_list){0};
	return 0;
}

const struct entry_list *submission_entries(struct submission *submission)
{
	if (submission->snapshot)
		return &submission->snapshot->entries;
	if (!submission->from_digest)
		return NULL;
	if (!submission->has_entries)
		submission->has_entries = read_entries(submission) == 0;
	return submission->has_entries ? &submission->from_entries : NULL;
}

static int carry(struct submission *submission, struct err *err)
{
	const struct json *labels;

	int r = open_code(submission, err);
	if (r == 0)
		r = pack_init(&submission->pack, submission->session, NULL, false, err);
	if (r < 0)
		return r;
	labels = json_get(json_get(submission->from_config, "config"), "Labels");
	submission->carried = (struct pack_carried){
		.image = &submission->from.image,
		.layout = submission->from.layout,
		.snapshot_id = json_get_str(labels, LABEL_SNAPSHOT),
		.commit = json_get_str(labels, PACK_LABEL_REVISION),
	};
	if (submission->carried.snapshot_id)
		return 0;
	return err_set(err, E_IMAGE, "%s has no label %s", submission->from.image.config.digest,
		LABEL_SNAPSHOT);
}

/* Take from the image the facts that the earlier run's specification would give. */
static int find_facts(struct submission *submission, struct err *err)
{
	AUTO_IMAGE_FACTS struct image_facts facts = {0};
	const struct image *image = &submission->from.image;

	int r = open_code(submission, err);
	if (r < 0)
		return r;
	bool has_base = image->n_layers > 0 && image->layers[0].role == IMAGE_ROLE_BASE;
	image_facts_of_config(has_base ? submission->from_config : NULL,
		config_str(submission->config, "platform"), image->workdir, &facts);
	submission->image_facts = image_facts_to_json(&facts);
	return 0;
}

/* 1: this machine's own layout has it. */
static int is_here(struct submission *submission, const struct ref *ref, struct err *err)
{
	AUTO_FREE char *own = dirs_layout(&submission->session->dirs);
	AUTO_FREE char *dir = NULL;
	AUTO_IMAGE struct image image = {0};
	AUTO_ERR struct err fault = {0};
	struct layout *layout;

	int r = session_layout(submission->session, &layout, err);
	if (r < 0)
		return r;
	if (image_load(layout, submission->from_digest, &image, &fault) == 0)
		return 1;
	if (ref->kind == REF_REGISTRY)
		return 0;
	dir = fs_join(submission->session->env.cwd, ref->dir);
	return str_eq(dir, own) ? err_move(err, &fault) : 0;
}

int submission_find_from(struct submission *submission, struct err *err)
{
	AUTO_REF struct ref ref = {0};

	if (!submission->from_digest)
		return 0;
	int r = ref_parse(submission->from_ref, &ref, err);
	if (r < 0)
		return r;
	if (!submission->target->ops->takes_image_from_registry) {
		r = is_here(submission, &ref, err);
		return r < 0 ? r : r > 0 ? 0 : carry(submission, err);
	}
	if (ref.kind != REF_REGISTRY)
		return carry(submission, err);
	return submission->parent ? 0 : find_facts(submission, err);
}
