/* SPDX-License-Identifier: Apache-2.0 */
/* What a run asks of a cluster. */
#ifndef DLRUN_TESTS_UNIT_KUBEWANTED_H
#define DLRUN_TESTS_UNIT_KUBEWANTED_H

#include <string.h>

#include "base/data/json.h"
#include "base/util/mem.h"
#include "core/record/spec.h"
#include "targets/kube/target_kube.h"

struct wanted {
	struct spec spec;
	struct run *run;
	struct target_job job;
};

static inline void wanted_init(struct wanted *wanted)
{
	*wanted = (struct wanted){.run = run_new("a-22222", "a")};
	strv_add(&wanted->spec.command, "train");
	wanted->spec.cwd = mem_strdup(".");
	wanted->spec.resources.nodes = 1;
}

/* Of its first attempt; lives as long as wanted. */
static inline const struct target_job *wanted_job(struct wanted *wanted, const char *handle)
{
	static const char facts[] =
		"{\"entrypoint\":[\"/entry\"],\"env_names\":[\"PATH\"],\"user\":\"1000\","
		"\"os\":\"linux\",\"arch\":\"arm64\",\"workdir\":\"/dlrun/src\",\"is_scratch\":"
		"false}";
	struct json *image = NULL;

	assert_int_equal(json_parse(facts, strlen(facts), sizeof(facts), "it", &image, NULL), 0);
	json_free(wanted->run->spec);
	wanted->run->spec = spec_to_json(&wanted->spec);
	json_set(wanted->run->spec, "image", image);
	wanted->job = (struct target_job){.run_id = "a-22222",
		.attempt = 1,
		.handle = handle,
		.spec = &wanted->spec,
		.image_ref = "r.example/x@sha256:0",
		.run = wanted->run};
	return &wanted->job;
}

static inline void wanted_done(struct wanted *wanted)
{
	spec_done(&wanted->spec);
	run_free(wanted->run);
}

#endif
