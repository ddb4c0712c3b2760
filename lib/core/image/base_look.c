/* SPDX-License-Identifier: Apache-2.0 */
#include "core/image/base_look.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/image/registry_ask.h"

void base_look_done(struct base_look *look)
{
	if (!look)
		return;
	image_base_free(look->base);
	layout_free(look->layout);
	if (look->dir)
		fs_remove_tree(AT_FDCWD, look->dir, NULL);
	free(look->dir);
	free(look->digest);
	ref_done(&look->ref);
	err_done(&look->fault);
	registry_client_done(&look->client);
}

static int make_layout(struct base_look *look, const char *tmp, struct err *err)
{
	char *dir = mem_printf("%s/dlrun-base-XXXXXX", str_empty(tmp) ? "/tmp" : tmp);

	if (!mkdtemp(dir)) {
		fs_error(err, errno, "%s cannot be made", dir);
		free(dir);
		return -ERR_IO;
	}
	look->dir = dir;
	return layout_open(dir, true, &look->layout, err);
}

int base_look_init(
	struct base_look *look, struct session *session, int64_t limit_ms, struct err *err)
{
	int r = registry_ask_init(&look->client, session, limit_ms, err);

	return r == 0 ? make_layout(look, env_get(session->env.env, "TMPDIR"), err) : r;
}

static int on_base(void *ctx, const char *digest, struct err *fault, struct err *err)
{
	struct base_look *look = ctx;

	(void)err;
	look->digest = mem_strdup(digest);
	if (fault)
		err_move(&look->fault, fault);
	loop_stop(look->client.options.loop);
	return 0;
}

int base_look_ask(struct base_look *look, const char *name, const char *platform, struct err *err)
{
	AUTO_FREE char *repository = NULL;
	AUTO_REGISTRY struct registry *registry = NULL;
	struct registry_base *base;

	int r = ref_parse(name, &look->ref, err);
	if (r < 0)
		return r;
	repository = mem_printf("%s/%s", look->ref.host, look->ref.repo);
	r = registry_ask_open(&look->client, repository, false, &registry, err);
	if (r < 0)
		return r;
	base = registry_base_start(registry, &(struct registry_base_request){.ref = &look->ref,
						     .platform = platform,
						     .cache = look->layout,
						     .found = on_base,
						     .ctx = look});
	r = loop_run(look->client.options.loop, err);
	registry_base_free(base);
	if (r < 0 || err_is_set(&look->fault))
		return r < 0 ? r : err_move(err, &look->fault);
	return image_base_load(look->layout, name, look->digest, platform, &look->base, err);
}
