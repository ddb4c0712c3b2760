/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/ssh/node_sync.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/loop/proc.h"
#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/words.h"
#include "core/record/setup_key.h"
#include "core/record/spec.h"

void node_syncs_done(struct node_syncs *syncs)
{
	vec_foreach (struct node_sync, sync, syncs) {
		if (sync->pid > 0) {
			kill(sync->pid, SIGTERM);
			waitpid(sync->pid, NULL, 0);
		}
		free(sync->path);
		free(sync->dir);
		free(sync->key);
	}
	vec_done(syncs);
}

/* A setup's key is made of contents in the same way. */
static int make_key(const char *root, struct node_sync *sync, struct err *err)
{
	char line[] = "data", cwd[] = ".";
	struct world_setup content = {.run = line, .cwd = cwd};
	AUTO_ERR struct err fault = {0};
	char key[SHA256_HEX_SIZE];

	strv_add(&content.key, sync->path);
	int r = setup_key(&content, root, key, &fault);
	strv_done(&content.key);
	AUTO_FREE char *shown = str_escaped(sync->path);
	if (r < 0 && fault.id == E_DATA_LIMIT) {
		err_set(err, E_DATA_LIMIT, "data: %s is too large to send: over %d files or 1 GiB",
			shown, SETUP_KEY_FILES_MAX);
		return err_hint(err,
			"data: {%s: /srv/data}   # of the target: where the hosts have it", shown);
	}
	if (r < 0)
		return err_set(
			err, E_RUN_DATA, "data: %s cannot be read: %s", shown, fault.message);
	sync->key = mem_strdup(key);
	return 0;
}

static int add(const char *root, const char *path, struct node_syncs *ret, struct err *err)
{
	struct node_sync *sync = vec_push(ret);
	struct stat st;

	sync->path = mem_strdup(path);
	sync->dir = fs_join(root, path);
	if (stat(sync->dir, &st) == 0 && S_ISDIR(st.st_mode))
		return make_key(root, sync, err);
	AUTO_FREE char *shown = str_escaped(path);
	return err_set(
		err, E_RUN_DATA, "data: %s is not a directory here that could be sent", shown);
}

int node_sync_find(const struct target_job *job, struct node_syncs *ret, struct err *err)
{
	AUTO_FREE char *root = NULL;
	AUTO_SPEC struct spec spec = {0};

	int r = spec_from_json(job->spec, &spec, err);
	if (job->run)
		root = words_get_one(json_get(job->run->doc, "origin"), "root");
	for (size_t i = 0; r == 0 && i < spec.world.data.n; i++)
		if (str_eq(spec.world.data.v[i].from, NODE_SYNC))
			r = root ? add(root, spec.world.data.v[i].path, ret, err)
				 : err_set(err, E_RUN_DATA, "data: the tree is not known here");
	return r;
}

char *node_sync_place(const struct node_syncs *syncs, const char *path)
{
	for (size_t i = 0; syncs && i < syncs->n; i++)
		if (str_eq(syncs->v[i].path, path))
			return mem_printf("data/%s", syncs->v[i].key);
	return NULL;
}

int node_sync_open(void *ctx, struct err *err)
{
	struct node_sync *sync = ctx;
	const char *const argv[] = {"tar", "-C", sync->dir, "-cf", "-", ".", NULL};
	int fds[2];

	int r = os_pipe(fds, 0);
	if (r < 0)
		return err_set_errno(err, E_IO, -r, "cannot make a pipe");
	AUTO_FD int read_end = fds[0], write_end = fds[1];
	const struct proc_spec spec = {
		.argv = argv, .stdin_fd = -1, .stdout_fd = write_end, .stderr_fd = -1};
	r = proc_spawn(&spec, &sync->pid, err);
	return r < 0 ? r : TAKE_FD(read_end);
}
