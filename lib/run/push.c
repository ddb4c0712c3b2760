#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/mem.h"
#include "base/str.h"
#include "oci/ref.h"
#include "run/submission.h"

/*
 * Only snapshot and image.
 */

/* Where it goes. */
struct dest {
	struct layout *own; /* opened here */
	struct layout *layout;
	char *dir;  /* absolute */
	char *name; /* as it is printed */
	char *tag;
};

static void dest_done(struct dest *dest)
{
	layout_free(dest->own);
	free(dest->dir);
	free(dest->name);
	free(dest->tag);
}

static int open_own_layout(struct session *session, struct dest *dest, struct err *err)
{
	dest->dir = dirs_layout(&session->dirs);
	dest->name = mem_strdup(dest->dir);
	return session_layout(session, &dest->layout, err);
}

/* The text is checked before the tree is looked at, the directory made after it. */
static int parse_dest(struct session *session, const char *to, struct dest *dest, struct err *err)
{
	AUTO_REF struct ref ref = {0};

	if (!to)
		return 0;
	int r = ref_parse(to, &ref, err);
	if (r < 0)
		return r;
	if (ref.kind != REF_LAYOUT || ref.digest) {
		err_set(err, E_IMAGE_REF, "--to %s: images are pushed to oci:DIR or oci:DIR:TAG",
			to);
		return err_hint(err, "dlrun push --to oci:out");
	}
	dest->dir = fs_join(session->env.cwd, ref.dir);
	dest->name = mem_strdup(ref.dir);
	dest->tag = mem_strdup(ref.tag);
	return 0;
}

static int open_dest(struct session *session, struct dest *dest, struct err *err)
{
	if (!dest->dir)
		return open_own_layout(session, dest, err);
	int r = layout_open(dest->dir, true, &dest->own, err);
	dest->layout = dest->own;
	return r;
}

static int take_snapshot(struct submission *submission, struct err *err)
{
	int r = session_place(submission->session, &submission->place, err);

	if (r == 0)
		r = session_config(submission->session, &submission->config, err);
	return r < 0 ? r : submission_take(submission, true, err);
}

int push_image(struct session *session, const char *base, const char *to, bool full,
	const struct submit_options *options, struct push_result *ret, struct err *err)
{
	AUTO(submission_done)
	struct submission submission = {
		.session = session, .options = options, .begun_ms = clock_ms()};
	AUTO(push_result_done) struct push_result result = {0};
	AUTO(dest_done) struct dest dest = {0};

	int r = parse_dest(session, to, &dest, err);
	if (r == 0)
		r = pack_init(&submission.pack, session, base, full, err);
	if (r == 0)
		r = take_snapshot(&submission, err);
	if (r < 0)
		return r;
	result.snapshot = TAKE(submission.snapshot);
	result.snapshot_ms = clock_ms() - submission.begun_ms;
	r = open_dest(session, &dest, err);
	if (r == 0)
		r = pack_write(&submission.pack, result.snapshot, dest.layout, dest.dir, dest.tag,
			&result.image, err);
	if (r < 0)
		return r;
	result.ref = mem_printf("oci:%s@%s", dest.name, result.image.manifest.digest);
	result.base = TAKE(submission.pack.base_name);
	result.total_ms = clock_ms() - submission.begun_ms;
	result.pack_ms = result.total_ms - result.snapshot_ms;
	*ret = result;
	result = (struct push_result){0};
	return 0;
}

void push_result_done(struct push_result *result)
{
	if (!result)
		return;
	snapshot_free(result->snapshot);
	image_done(&result->image);
	free(result->ref);
	free(result->base);
	*result = (struct push_result){0};
}

struct json *push_result_json(const struct push_result *result)
{
	struct json *json = json_object(), *phases = json_object(), *warnings = json_array();

	json_set_str(json, "schema", "dlrun/push/v1");
	json_set(json, "snapshot", pack_snapshot_json(result->snapshot));
	json_set(json, "image", pack_image_json(&result->image, result->ref, result->base));
	json_set_int(phases, "snapshot", result->snapshot_ms);
	json_set_int(phases, "pack", result->pack_ms);
	json_set_int(phases, "push", result->push_ms);
	json_set_int(phases, "total", result->total_ms);
	json_set(json, "phases_ms", phases);
	json_add_strv(warnings, &result->snapshot->warnings);
	json_set(json, "warnings", warnings);
	return json;
}
