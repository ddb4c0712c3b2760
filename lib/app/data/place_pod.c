/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "app/data/place.h"
#include "base/util/clock.h"
#include "base/util/enc.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/random.h"
#include "base/util/str.h"
#include "core/image/python_base.h"
#include "core/record/run.h"
#include "core/record/setup_key.h"
#include "core/record/spec.h"
#include "kube/api/kinds.h"
#include "node/runner.h"
#include "oci/model/ref.h"

/*
 * A pod that has volumes mounted where a run would have them, made as a run is, and removed when
 * the place is closed. One whose client was killed ends by itself.
 */

enum {
	POD_CHECK_MS = 10000,
	POD_SUBMIT_MS = 60000,
	POD_STATE_MS = 20000,
	POD_REMOVE_MS = 20000,
	POD_TEXTS_MAX = 20,
	POD_POLL_MS = 300,
	POD_BEGIN_MS = 15 * 60 * 1000,
	POD_LIFE_MS = 24 * 60 * 60 * 1000,
	POD_GRACE_MS = 1000,
	POD_KEY_BYTES = 16,
};

/* The pod ends when nothing has been done in it for ten minutes. */
static const char pod_waits[] = "trap 'exit 0' TERM\n"
				"n=0\n"
				"while [ $((n += 1)) -le 30 ]; do\n"
				"[ ! -e \"$1\" ] || n=0\n"
				"rm -f \"$1\"\n"
				"sleep 20 &\n"
				"wait $!\n"
				"done";
/* In front of the script: the pod is at work. */
static const char pod_begins[] =
	"alive=$1\n"
	"shift\n"
	"while : >\"$alive\"; do sleep 10; done >/dev/null 2>&1 </dev/null &\n"
	"trap \"kill $! 2>/dev/null\" EXIT\n";
#define POD_ALIVE KUBE_ATTEMPT_DIR "/.dlrun-data"

struct place_pod {
	char id[RUN_ID_SIZE];
	char handle[TARGET_HANDLE_SIZE];
	struct spec spec;
	struct run *run;
	bool is_submitted;
};

static void place_pod_free(struct place_pod *pod)
{
	spec_done(&pod->spec);
	run_free(pod->run);
	free(pod);
}

static void place_pod_set_spec(const struct data_place *place, const struct strv *froms)
{
	struct spec *spec = &place->pod->spec;

	*spec = (struct spec){
		.cwd = mem_strdup("."),
		.timeout_ms = POD_LIFE_MS,
		.grace_ms = POD_GRACE_MS,
		.drop_entrypoint = true,
		.runtime = {.collect = {.mode = COLLECT_NONE}},
		.resources = {.nodes = 1},
	};
	strv_add(&spec->command, "sh");
	strv_add(&spec->command, "-c");
	strv_add(&spec->command, pod_waits);
	strv_add(&spec->command, "dlrun");
	strv_add(&spec->command, POD_ALIVE);
	for (size_t i = 0; i < place->paths.n; i++) {
		if (data_place_is_bucket(place, i))
			continue;
		*vec_push(&spec->runtime.data) = (struct runtime_data){
			mem_strdup(place->paths.v[i]), mem_strdup(froms->v[i])};
	}
}

/* The image of runs: that of image:, or where none is set the one that submit takes for a project
 * that names its Python. *ret: the caller frees it. */
static int place_pod_image(const struct data_place *place,
	void (*note)(void *ctx, const char *text), void *ctx, char **ret, struct err *err)
{
	AUTO_PYTHON_NAMED struct python_named named = {0};
	AUTO(ref_done) struct ref ref = {0};
	AUTO_FREE char *shown = NULL;
	const struct tree_place *tree;
	struct config *config;
	bool is_shell;

	int r = session_config(place->session, &config, err);
	if (r < 0)
		return r;
	const char *image = config_str(config, "image");
	if (!config_is_set(config, "image") && session_place(place->session, &tree, NULL) == 0 &&
		python_find_above(tree, &named)) {
		const struct strv *command = config_command(config, &is_shell);
		r = python_base_choose(place->session, &named, command->n ? command->v[0] : NULL,
			ret, &shown, err);
		if (r < 0 || !note)
			return r;
		AUTO_FREE char *text = mem_printf("no image: is set, so its pod has %s", shown);
		note(ctx, text);
		return 0;
	}
	if (!str_empty(image))
		r = ref_parse(image, &ref, err);
	if (r < 0)
		return r;
	if (str_empty(image) || ref.kind != REF_REGISTRY) {
		err_set(err, E_IMAGE_NONE,
			"the volumes of target %s are reached through a pod, and image: names no image of a registry for it",
			place->target->name);
		if (named.from)
			err_evidence(err, "%s", named.from);
		return err_hint(err, "image: docker.io/library/debian:stable-slim");
	}
	*ret = mem_strdup(image);
	return 0;
}

static int place_pod_submit(struct data_place *place, const char *image, struct err *err)
{
	struct place_pod *pod = place->pod;
	AUTO_STRV struct strv notes = {0};
	const struct target_job job = {
		.run_id = pod->id,
		.attempt = 1,
		.handle = pod->handle,
		.spec = &pod->spec,
		.env = &pod->spec.env,
		.run = pod->run,
		.image_ref = image,
	};
	int r = 0;

	if (place->target->ops->check)
		r = target_check_job(place->target, &job, POD_CHECK_MS, &notes, err);
	if (r < 0)
		return r;
	pod->is_submitted = true;
	return target_submit(place->target, &job, POD_SUBMIT_MS, err);
}

static int place_pod_wait(struct data_place *place, void (*note)(void *ctx, const char *text),
	void *ctx, struct err *err)
{
	int64_t end_ms = clock_ms() + POD_BEGIN_MS;
	AUTO_STRV struct strv said = {0}; /* each text once: a cluster says two in turn */

	for (;;) {
		AUTO(target_status_done) struct target_status status = {0};
		int r = target_state(place->target, place->pod->handle, POD_STATE_MS, &status, err);
		if (r < 0 || status.state == RUN_RUNNING)
			return r;
		const char *text = status.text ? status.text : "nothing says why";
		if (run_state_is_final(status.state))
			return err_set(
				err, E_DATA_PLACE, "the pod with the volumes has ended: %s", text);
		if (clock_ms() > end_ms)
			return err_set(err, E_TARGET_SILENT,
				"the pod with the volumes has not begun: %s", text);
		if (note && status.text && said.n < POD_TEXTS_MAX && strv_find(&said, text) < 0) {
			note(ctx, text);
			strv_add(&said, text);
		}
		r = loop_pause(place->target->loop, POD_POLL_MS, place->interrupted, err);
		if (r < 0)
			return r;
	}
}

int place_pod_open(struct data_place *place, const struct strv *froms,
	void (*note)(void *ctx, const char *text), void *ctx, struct err *err)
{
	struct place_pod *pod = place->pod = mem_alloc(1, sizeof(*pod));
	AUTO_FREE char *image = NULL;
	uint8_t bytes[POD_KEY_BYTES];
	char key[SHA256_HEX_SIZE] = "";

	random_bytes(bytes, sizeof(bytes));
	hex_encode(bytes, sizeof(bytes), key);
	setup_make_id(key, pod->id);
	place_pod_set_spec(place, froms);
	int r = place_pod_image(place, note, ctx, &image, err);
	if (r == 0)
		r = place->target->ops->prepare(
			place->target, pod->id, 1, &pod->spec, pod->handle, err);
	if (r < 0)
		return r;
	pod->run = run_new(pod->id, pod->id);
	pod->run->spec = spec_to_json(&pod->spec);
	json_set_str(pod->run->doc, "user", place->session->env.user);
	run_add_attempt(pod->run, pod->handle);
	r = place_pod_submit(place, image, err);
	return r < 0 ? r : place_pod_wait(place, note, ctx, err);
}

int place_pod_run(struct data_place *place, const struct strv *words, const int fds[3],
	int *ret_status, struct err *err)
{
	AUTO_STRV struct strv command = {0};

	strv_add(&command, "sh");
	strv_add(&command, "-c");
	strv_addf(&command, "%s%s", pod_begins, node_store_script);
	strv_add(&command, "dlrun");
	strv_add(&command, POD_ALIVE);
	for (size_t i = 0; i < words->n; i++)
		strv_add(&command, words->v[i]);
	const struct target_exec_request request = {
		.command = &command, .fds = {fds[0], fds[1], fds[2]}};
	return target_exec(
		place->target, place->pod->handle, &request, ret_status, place->interrupted, err);
}

void place_pod_close(struct data_place *place)
{
	struct place_pod *pod = TAKE(place->pod);
	AUTO_ERR struct err error = {0};

	if (pod->is_submitted &&
		target_forget(place->target, pod->handle, true, POD_REMOVE_MS, &error) < 0)
		log_note("data: %s", error.message);
	place_pod_free(pod);
}
