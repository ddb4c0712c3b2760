/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/auth/credentials.h"

#include <string.h>

#include "base/loop/proc.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "oci/auth/credential_helper.h"
#include "oci/auth/credential_secret.h"

void credential_done(struct credential *credential)
{
	if (!credential)
		return;
	secret_free(credential->user);
	secret_free(credential->password);
	secret_free(credential->identity_token);
	secret_free(credential->registry_token);
	free(credential->origin);
	*credential = (struct credential){0};
}

bool credential_is_there(const struct credential *credential)
{
	return credential->user || credential->identity_token || credential->registry_token;
}

/*
 * Content of the files, read at once
 */

/* A file with something for this registry. */
struct step {
	char *shown, *helper, *key;
	struct credential login; /* without a helper, or if that has none */
};

struct credential_lookup {
	struct loop *loop;
	const struct credential_env *env;
	char *host, *repo;
	struct VEC_OF(struct step) steps;
	size_t at;
	struct strv helper_env, warnings;
	struct helper *helper;
	struct loop_timer *timer;
	struct credential login;
	struct err fault;
	credential_found_fn *found;
	void *ctx;
};

static void step_done(struct step *step)
{
	free(step->shown);
	free(step->helper);
	free(step->key);
	credential_done(&step->login);
}

/* "~/.docker/config.json" */
static char *shown_path(const char *path, const char *home)
{
	AUTO_FREE char *escaped = str_escaped(path);
	size_t len = str_empty(home) ? 0 : strlen(home);

	while (len > 0 && home[len - 1] == '/')
		len--;
	if (len > 0 && strncmp(path, home, len) == 0 && path[len] == '/') {
		AUTO_FREE char *rest = str_escaped(path + len);
		return mem_printf("~%s", rest);
	}
	return TAKE(escaped);
}

/* Whether the search ends: with a login that needs no helper. A file that is not there is passed
 * over in silence unless it must be. */
static bool read_one(struct credential_lookup *lookup, const char *path, bool must_be)
{
	AUTO_SECRET_BUF struct buf text = {0};
	AUTO_ERR struct err err = {0};
	struct step step = {.shown = shown_path(path, lookup->env->home)};
	bool missing = false;

	int r = fs_read(path, CREDENTIAL_FILE_MAX, &text, &missing, &err);
	if (r == 0)
		r = credential_file_find(text.data, text.len, step.shown, lookup->host,
			lookup->repo, &step.login, &step.helper, &step.key, &err);
	if (r < 0 && (!missing || must_be))
		strv_addf(&lookup->warnings, "a login file is passed over: %s", err.message);
	if (r <= 0) {
		step_done(&step);
		return false;
	}
	*vec_push(&lookup->steps) = step;
	return !step.helper;
}

static bool read_in(struct credential_lookup *lookup, const char *dir, const char *name)
{
	if (str_empty(dir))
		return false;
	AUTO_FREE char *path = fs_join(dir, name);
	return read_one(lookup, path, false);
}

static void read_files(struct credential_lookup *lookup)
{
	const struct credential_env *env = lookup->env;
	bool has_docker = !str_empty(env->docker_config),
	     has_xdg = !str_empty(env->xdg_config_home);

	if (!str_empty(env->registry_auth_file)) {
		read_one(lookup, env->registry_auth_file, true);
		return;
	}
	const struct {
		const char *dir, *name;
	} places[] = {
		{has_docker ? env->docker_config : env->home,
			has_docker ? "config.json" : ".docker/config.json"},
		{env->xdg_runtime_dir, "containers/auth.json"},
		{has_xdg ? env->xdg_config_home : env->home,
			has_xdg ? "containers/auth.json" : ".config/containers/auth.json"},
		{env->home, ".dockercfg"},
	};
	for (size_t i = 0; i < ARRAY_LEN(places); i++)
		if (read_in(lookup, places[i].dir, places[i].name))
			return;
}

/*
 * Asking helpers, one after the other
 */

static int deliver(void *ctx, struct err *err)
{
	struct credential_lookup *lookup = ctx;
	bool failed = err_is_set(&lookup->fault);

	lookup->timer = NULL;
	return lookup->found(lookup->ctx, failed ? NULL : &lookup->login, &lookup->warnings,
		failed ? &lookup->fault : NULL, err);
}

static void finish(struct credential_lookup *lookup)
{
	lookup->timer = loop_add_timer(lookup->loop, clock_ms(), deliver, lookup);
}

static void take_login(struct credential_lookup *lookup, struct credential *login)
{
	lookup->login = *login;
	*login = (struct credential){0};
	finish(lookup);
}

static void go_on(struct credential_lookup *lookup);

static int helper_ended(
	void *ctx, int r, struct credential *login, struct err *fault, struct err *err)
{
	struct credential_lookup *lookup = ctx;

	(void)err;
	helper_free(TAKE(lookup->helper));
	if (r < 0) {
		err_move(&lookup->fault, fault);
		finish(lookup);
	} else if (r > 0) {
		take_login(lookup, login);
	} else {
		struct step *step = &lookup->steps.v[lookup->at++];

		if (credential_is_there(&step->login))
			take_login(lookup, &step->login);
		else
			go_on(lookup);
	}
	return 0;
}

/* Whether somebody is asked now; else the login that the file has besides counts. */
static bool ask_helper(struct credential_lookup *lookup, const struct step *step)
{
	AUTO_FREE char *name = mem_printf("docker-credential-%s", step->helper);
	const char *const *env = (const char *const *)lookup->helper_env.v;
	const char *path = env_get(env, "PATH");
	AUTO_FREE char *program = proc_find(name, path ? path : "/usr/bin:/bin");

	if (!program) {
		strv_addf(&lookup->warnings, "%s, which %s names for %s, is not installed", name,
			step->shown, lookup->host);
		return false;
	}
	const struct helper_spec spec = {.program = program,
		.name = step->helper,
		.key = step->key,
		.env = env,
		.limit_ms = CREDENTIAL_HELPER_MS};
	if (helper_start(
		    lookup->loop, &spec, helper_ended, lookup, &lookup->helper, &lookup->fault) < 0)
		finish(lookup);
	return true;
}

static void go_on(struct credential_lookup *lookup)
{
	for (; lookup->at < lookup->steps.n; lookup->at++) {
		struct step *step = &lookup->steps.v[lookup->at];

		if (step->helper && ask_helper(lookup, step))
			return;
		if (credential_is_there(&step->login)) {
			take_login(lookup, &step->login);
			return;
		}
	}
	finish(lookup);
}

/* Less dlrun's own variables, which may hold what the helper has no business with. */
static void filter_env(struct credential_lookup *lookup)
{
	for (const char *const *pair = lookup->env->env; pair && *pair; pair++)
		if (!str_starts(*pair, "DLRUN_"))
			strv_add(&lookup->helper_env, *pair);
	if (lookup->helper_env.n == 0)
		strv_add(&lookup->helper_env, "LC_ALL=C");
}

static struct credential_lookup *new_lookup(
	const struct credential_env *env, const char *host, const char *repo)
{
	struct credential_lookup *lookup = mem_alloc(1, sizeof(*lookup));

	*lookup = (struct credential_lookup){
		.env = env, .host = mem_strdup(host), .repo = mem_strdup(repo)};
	read_files(lookup);
	return lookup;
}

struct credential_lookup *credential_start(struct loop *loop, const struct credential_env *env,
	const char *host, const char *repo, credential_found_fn *found, void *ctx)
{
	struct credential_lookup *lookup = new_lookup(env, host, repo);

	lookup->loop = loop;
	lookup->found = found;
	lookup->ctx = ctx;
	filter_env(lookup);
	go_on(lookup);
	return lookup;
}

void credential_free(struct credential_lookup *lookup)
{
	if (!lookup)
		return;
	helper_free(lookup->helper);
	loop_remove_timer(lookup->loop, lookup->timer);
	vec_foreach (struct step, step, &lookup->steps)
		step_done(step);
	vec_done(&lookup->steps);
	for (size_t i = 0; i < lookup->helper_env.n; i++)
		secret_wipe(lookup->helper_env.v[i], strlen(lookup->helper_env.v[i]));
	strv_done(&lookup->helper_env);
	strv_done(&lookup->warnings);
	credential_done(&lookup->login);
	err_done(&lookup->fault);
	free(lookup->host);
	free(lookup->repo);
	free(lookup);
}

static bool is_same_login(const struct credential *a, const struct credential *b)
{
	return str_eq(a->user, b->user) && str_eq(a->password, b->password) &&
	       str_eq(a->identity_token, b->identity_token) &&
	       str_eq(a->registry_token, b->registry_token);
}

bool credential_is_shared(
	const struct credential_env *env, const char *host, const char *repo, const char *other)
{
	struct credential_lookup *a = new_lookup(env, host, repo);
	struct credential_lookup *b = new_lookup(env, host, other);
	bool same = a->steps.n == b->steps.n;

	for (size_t i = 0; same && i < a->steps.n; i++) {
		const struct step *one = &a->steps.v[i], *two = &b->steps.v[i];

		same = str_eq(one->helper, two->helper) && str_eq(one->key, two->key) &&
		       is_same_login(&one->login, &two->login);
	}
	credential_free(a);
	credential_free(b);
	return same;
}
