/* SPDX-License-Identifier: Apache-2.0 */
#include "core/context/session.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "core/config/config_trust.h"
#include "core/store/store.h"
#include "snap/git/repo.h"

#define SITE_CONFIG "/etc/dlrun/config.yaml"

int session_init(struct session *session, const struct session_env *env, struct err *err)
{
	*session = (struct session){.env = *env};
	int r = dirs_find(&env->dirs, &session->dirs, err);

	if (r < 0)
		return r;
	session->trust = fs_join(session->dirs.state, "trust");
	if (session->dirs.config)
		session->user_config = mem_printf("%s/dlrun/config.yaml", session->dirs.config);
	return 0;
}

void session_end_submit(struct session *session)
{
	snapshot_free(TAKE(session->submitted));
	if (session->submitted_fd > 0)
		close(session->submitted_fd);
	session->submitted_fd = 0;
}

void session_done(struct session *session)
{
	if (!session)
		return;
	session_end_submit(session);
	for (size_t i = session->ends.n; i > 0; i--)
		session->ends.v[i - 1](session);
	vec_done(&session->ends);
	layout_free(session->layout);
	store_close(session->store);
	config_free(session->config);
	if (session->place)
		tree_place_done(session->place);
	free(session->place);
	free(session->foreign);
	free(session->trust);
	free(session->user_config);
	loop_free(session->loop);
	dirs_done(&session->dirs);
	*session = (struct session){0};
}

void session_at_end(struct session *session, session_end_fn *end)
{
	*vec_push(&session->ends) = end;
}

struct loop *session_loop(struct session *session)
{
	if (!session->loop)
		session->loop = loop_new();
	return session->loop;
}

/*
 * Configuration
 */

static bool git_trusts(void *ctx, const char *dir)
{
	const struct session *session = ctx;
	const struct repos_options options = {
		.home = session->dirs.home, .xdg_config = session->env.dirs.xdg_config_home};

	return repo_is_called_safe(&options, dir);
}

/* Without the project's. */
static struct config_files other_files(struct session *session)
{
	return (struct config_files){
		.trust = session->trust,
		.git_trusts = git_trusts,
		.git_ctx = session,
		.user = session->user_config,
		.site = session->env.site_config ? session->env.site_config : SITE_CONFIG,
		.env = session->env.env,
		.inside_run = session->env.inside_run,
	};
}

static bool marker_counts(void *ctx, const char *path)
{
	struct session *session = ctx;
	struct config_files files = other_files(session);

	if (config_project_counts(&files, path))
		return true;
	if (!session->foreign)
		session->foreign = mem_strdup(path);
	return false;
}

int session_place(struct session *session, const struct tree_place **ret, struct err *err)
{
	struct tree_place_options options = {
		.start = session->env.cwd,
		.home = session->dirs.home,
		.marker = CONFIG_FILE,
		.git_dir = session->env.git_dir,
		.work_tree = session->env.git_work_tree,
		.marker_counts = marker_counts,
		.marker_ctx = session,
	};

	if (!session->place) {
		struct tree_place *place = mem_alloc(1, sizeof(*place));
		int r = tree_place_find(&options, place, err);
		if (r < 0) {
			free(place);
			return r;
		}
		session->place = place;
	}
	*ret = session->place;
	return 0;
}

/* The nearest file upwards from the start to the root of the tree; NULL: none. */
static char *find_project(const struct tree_place *place)
{
	AUTO_FREE char *dir = fs_join(place->root, place->prefix);
	size_t root_len = strlen(place->root);

	for (;;) {
		AUTO_FREE char *path = fs_join(dir, CONFIG_FILE);
		if (access(path, F_OK) == 0)
			return TAKE(path);
		char *slash = strrchr(dir, '/');
		if (!slash || strlen(dir) <= root_len)
			return NULL;
		*slash = '\0';
	}
}

static int session_load_config(
	struct session *session, bool review, struct config **ret, struct err *err)
{
	const struct tree_place *place = NULL;
	struct config_files files = other_files(session);
	AUTO_FREE char *project = NULL;
	AUTO_ERR struct err outside = {0};

	if (session_place(session, &place, &outside) == 0)
		project = find_project(place);
	else
		log_note("no dlrun.yaml of a tree: %s", outside.message);
	/* Pass another user's file, too: it is not read, but reported. */
	files.project = project ? project : session->foreign;
	files.root = project ? place->root : NULL;
	files.review = review;
	return config_load(&files, ret, err);
}

int session_config(struct session *session, struct config **ret, struct err *err)
{
	if (!session->config) {
		int r = session_load_config(session, false, &session->config, err);
		if (r == 0) {
			r = session->env.must_count ? config_check_counting(session->config, err)
						    : 0;
			AUTO_FREE char *text = r == 0 ? config_not_counting(session->config) : NULL;
			AUTO_FREE char *line =
				text ? mem_printf("%s: dlrun config trust", text) : NULL;

			if (line && session->env.print)
				session->env.print(session->env.print_ctx, line);
		}
		if (r < 0)
			return r;
	}
	*ret = session->config;
	return 0;
}

int session_review(struct session *session, struct config **ret, char **ret_dir, struct err *err)
{
	int r = session_load_config(session, true, ret, err);

	if (r == 0)
		*ret_dir = mem_strdup(session->trust);
	return r;
}

/*
 * State on disk
 */

int session_store(struct session *session, struct store **ret, struct err *err)
{
	if (!session->store) {
		int r = fs_private_dir(session->dirs.state, err);
		if (r == 0)
			r = store_open(session->dirs.state, &session->store, err);
		if (r < 0)
			return r;
		store_set_user(session->store, session->env.user);
	}
	*ret = session->store;
	return 0;
}

int session_layout(struct session *session, struct layout **ret, struct err *err)
{
	if (!session->layout) {
		AUTO_FREE char *dir = dirs_layout(&session->dirs);
		int r = fs_private_dir(session->dirs.data, err);
		if (r == 0)
			r = layout_open(dir, true, &session->layout, err);
		if (r < 0)
			return r;
	}
	*ret = session->layout;
	return 0;
}

int session_lock(
	struct session *session, bool exclusive, int64_t timeout_ms, int *ret_fd, struct err *err)
{
	AUTO_FREE char *path = mem_printf("%s/gc.lock", session->dirs.state);
	int r = fs_private_dir(session->dirs.state, err);

	return r < 0 ? r : fs_lock(path, exclusive, timeout_ms, ret_fd, err);
}
