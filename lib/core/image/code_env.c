/* SPDX-License-Identifier: Apache-2.0 */
#include "core/image/code_env.h"

#include "base/data/json.h"

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
		.command = &spec->command,
		.shell = spec->shell,
		.cwd = spec->cwd,
		.tree_bytes = (uint64_t)json_get_int(json_get(run->doc, "snapshot"), "bytes", 0),
		.timeout_ms = spec->timeout_ms,
		.grace_ms = spec->grace_ms,
		.spec = run->spec,
		.run = run,
	};
}
