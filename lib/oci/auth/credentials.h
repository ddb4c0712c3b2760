/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Logins for registries, from where docker and podman keep them (containers-auth.json(5);
 * docker's configuration file; docker-credential-helpers). Nothing is ever written.
 *
 * Order: REGISTRY_AUTH_FILE alone if it is set; else $DOCKER_CONFIG/config.json or
 * ~/.docker/config.json, $XDG_RUNTIME_DIR/containers/auth.json,
 * $XDG_CONFIG_HOME/containers/auth.json, ~/.dockercfg. A file without an entry for the registry
 * leads to the next. Within a file: credHelpers, credsStore, auths (longest repository prefix,
 * host, and the old keys https://HOST/v1/; Docker Hub's is https://index.docker.io/v1/).
 */
#ifndef DLRUN_OCI_AUTH_CREDENTIALS_H
#define DLRUN_OCI_AUTH_CREDENTIALS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/data/json.h"
#include "base/loop/loop.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "base/util/vec.h"

enum {
	CREDENTIAL_FILE_MAX = 1 << 20,
	CREDENTIAL_SECRET_MAX = 64 << 10,
	CREDENTIAL_HELPER_MS = 10 * 1000,
};

/* The variables that say where; NULL: not set. They outlive what is made from them. */
struct credential_env {
	const char *home, *registry_auth_file, *docker_config, *xdg_runtime_dir, *xdg_config_home;
	const char *const *env; /* the whole environment, for helpers */
	/* Hosts ("host[:port]") of other sites that logins may be sent to; or NULL. */
	const struct strv *realms;
};

/* Strings are owned, and wiped when freed. All NULL: anonymous. */
struct credential {
	char *user, *password;
	char *identity_token; /* an OAuth2 refresh token */
	char *registry_token; /* a bearer token as it is */
	char *origin; /* for people: "~/.docker/config.json", "docker-credential-ecr-login" */
};
void credential_done(struct credential *credential);
#define AUTO_CREDENTIAL AUTO(credential_done)
/* Whether it holds anything to log in with. */
bool credential_is_there(const struct credential *credential);
/* 0, or -1 and why it cannot be sent ("has a user name with a colon"). */
int credential_check(const struct credential *credential, const char **ret_why);

/* Find the entry for a registry in the text of one file: an engine (for tests and fuzzing).
 * 1: found, 0: no entry, negative: malformed (E_DATA, E_DATA_LIMIT). *ret_helper (or NULL) is the
 * NAME of the docker-credential-NAME to be run, with *ret_key on its stdin; ret holds the login in
 * the file itself, which with a helper counts only if the helper is not installed or has none, and
 * may be empty then. what becomes the origin. host: "host[:port]", repo: "a/b". */
int credential_file_find(const char *text, size_t len, const char *what, const char *host,
	const char *repo, struct credential *ret, char **ret_helper, char **ret_key,
	struct err *err);
/* Parse the output of a helper (its NAME): 1, 0 (no login: anonymous), E_REGISTRY_HELPER: with at
 * most 200 bytes of its output as evidence if it failed and they cannot be a secret. exit_status:
 * 0, or its exit status (128 and the signal). */
int credential_helper_parse(const char *text, size_t len, int exit_status, const char *helper,
	struct credential *ret, struct err *err);

/* found: valid during the call, or NULL with error. warnings: one sentence each: a file that cannot
 * be read, a helper that is not installed (both are passed over). */
typedef int credential_found_fn(void *ctx, struct credential *found, const struct strv *warnings,
	struct err *error, struct err *err);
struct credential_lookup;
/* Reads the files now, starts the helper now if one is needed (in a process group of its own, in a
 * filtered environment: no variable of dlrun's secrets), and calls found from the loop, once:
 * E_REGISTRY_HELPER when the helper fails, talks nonsense or takes longer than
 * CREDENTIAL_HELPER_MS. */
struct credential_lookup *credential_start(struct loop *loop, const struct credential_env *env,
	const char *host, const char *repo, credential_found_fn *found, void *ctx);
/* Whether repo and other of one host have the same login, as far as the files tell: a helper knows
 * hosts only. Blocks for reading them. */
bool credential_is_shared(
	const struct credential_env *env, const char *host, const char *repo, const char *other);
/* Also kills the helper's group. NULL and one that has called found are accepted. */
void credential_free(struct credential_lookup *lookup);

/*
 * List the registries that have logins in the files of credentials.h. No helper is started, and no
 * secret is kept.
 */

enum { CREDENTIAL_HOSTS_MAX = 64 };

/* Add the registries named in one file to ret: "docker.io", "host:5000", "host/team" (a login for a
 * part of it), each once, up to CREDENTIAL_HOSTS_MAX. An engine. E_DATA, E_DATA_LIMIT for text that
 * is not JSON. */
int credential_file_hosts(
	const char *text, size_t len, const char *what, struct strv *ret, struct err *err);
/* Of all files, in the order in which they are read; what cannot be read is passed over. */
void credential_hosts(const struct credential_env *env, struct strv *ret);

/*
 * A single run of a credential helper on the loop (docker-credential-helpers, "get").
 */

enum { CREDENTIAL_HELPER_OUT_MAX = 64 << 10 };

struct helper;
/* r is what credential_helper_parse says of its response; login may be taken over. Called from the
 * loop, once, as the last thing. */
typedef int helper_end_fn(
	void *ctx, int r, struct credential *login, struct err *error, struct err *err);
struct helper_spec {
	const char *program;    /* its path */
	const char *name;       /* NAME of docker-credential-NAME */
	const char *key;        /* whose login: a line on its stdin */
	const char *const *env; /* NULL-ended */
	int64_t limit_ms;       /* how long it may take */
};
/* The helper's stderr is discarded, because it may hold anything. E_REGISTRY_HELPER if it cannot be
 * started. */
int helper_start(struct loop *loop, const struct helper_spec *spec, helper_end_fn *end, void *ctx,
	struct helper **ret, struct err *err);
/* Kills its process group if it still runs. NULL is accepted. */
void helper_free(struct helper *helper);

/*
 * Memory that held secrets is wiped before it is given back. What a growing buffer or a library
 * copied on its way is not reached.
 */

void secret_wipe(void *data, size_t len);
/* Wipe and free; NULL is accepted by all three. */
void secret_free(char *secret);
void secret_buf_done(struct buf *buf);
/* All strings of the document. */
void secret_json_free(struct json *json);
AUTO_POINTER(char, secret_free)
AUTO_POINTER(struct json, secret_json_free)
#define AUTO_SECRET      AUTO(secret_free_auto)
#define AUTO_SECRET_BUF  AUTO(secret_buf_done)
#define AUTO_SECRET_JSON AUTO(secret_json_free_auto)

#endif
