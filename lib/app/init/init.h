/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first dlrun.yaml of a project: facts about the project, read from its files, of which nothing
 * is run and what cannot be read or understood is unknown; proposals for clusters; the text; and
 * putting it in place.
 */
#ifndef DLRUN_APP_INIT_INIT_H
#define DLRUN_APP_INIT_INIT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/context/session.h"
#include "core/record/run.h"
#include "targets/kube/kube_poll.h"

/*
 * The project
 */

enum {
	INIT_COMMANDS_MAX = 6,
	INIT_DATA_MAX = 8,
	INIT_FILE_MAX = 1 << 20, /* bytes of a file that is read */
};

/* Tool that creates the environment of the program. */
enum init_env { INIT_ENV_NONE, INIT_ENV_UV, INIT_ENV_POETRY, INIT_ENV_CONDA, INIT_ENV_PIP };

/* Something that can be started. */
struct init_command {
	struct strv words;
	char *from; /* the file that says so */
};

/* A directory or file that git ignores. */
struct init_data {
	char *path; /* from the root of the tree */
	uint64_t bytes;
	bool at_least;   /* there is more than that */
	bool has_events; /* a program has written curves there: results, not data */
};

struct init_project {
	char *dir;    /* where dlrun.yaml goes: absolute */
	char *prefix; /* the same from the root of the tree; "." is the root */
	char *root;   /* of the tree */
	char name[RUN_NAME_MAX + 1];
	char *name_from;                             /* NULL: no name was found */
	struct VEC_OF(struct init_command) commands; /* the likeliest first */
	enum init_env env;
	const char *lock; /* the name of its file in dir; NULL: none, or no snapshot holds it */
	bool env_tool;    /* the program that makes it is on PATH */
	bool env_active;  /* this shell is in a virtual or conda environment: runs have it */
	char *image, *image_from;
	struct VEC_OF(struct init_data) data;
	struct strv outputs;  /* from the root of the tree */
	struct strv contexts; /* of the kubeconfig, the current one first */
	struct strv hosts;    /* of ~/.ssh/config */
	struct strv notes;    /* one sentence each: what could not be read */
};

/* Looks at the nearest directory from the session's upwards, within the tree, that has a file of
 * the kinds that are known here; the root of the tree if there is none. E_SNAPSHOT_ROOT and what
 * else session_place says. Blocks for a walk of the tree. */
int init_project_read(struct session *session, struct init_project **ret, struct err *err);
void init_project_free(struct init_project *project);
AUTO_POINTER(struct init_project, init_project_free)
#define AUTO_INIT_PROJECT AUTO(init_project_free_auto)

/* The names of hosts in ~/.ssh/config and the files that it includes; home: HOME or NULL. */
void init_find_hosts(const char *home, struct strv *ret);

/*
 * Clusters, and registries for their images
 */

/* A target to be written. Strings are owned. */
struct init_cluster {
	char *name;           /* of the target */
	char *context;        /* NULL: none is current */
	char *kube_namespace; /* chosen; NULL: that of the context */
	struct kube_poll poll;
};
struct init_cluster_list VEC_OF(struct init_cluster);
void init_cluster_list_done(struct init_cluster_list *list);
#define AUTO_INIT_CLUSTERS AUTO(init_cluster_list_done)

/* text: kube[:CONTEXT[/NAMESPACE]]; "kube" is the current context. E_USAGE for another form; a
 * context that is not there is E_KUBE_CONTEXT, unless there is no kubeconfig to look into. */
int init_cluster_add(
	struct session *session, const char *text, struct init_cluster_list *list, struct err *err);
/* Query all of them at the same time; what was found is in poll. E_CANCELED. */
int init_cluster_probe(struct session *session, struct init_cluster_list *list, int64_t limit_ms,
	const volatile int *interrupted, struct err *err);

/* The name of a target from that of a context: the last part of it, as a name of a run may be. The
 * caller frees. An engine. */
char *init_target_name(const char *context);

/* Registries that there are logins for: "docker.io", "host/team". */
void init_find_logins(struct session *session, struct strv *ret);
/* User of the login for host, requested from a helper for limit_ms if there is one; NULL: the login
 * does not say. The caller frees. */
char *init_login_user(struct session *session, const char *host, int64_t limit_ms);
/* Where images could go: HOST/USER/NAME. user may be NULL. The caller frees. An engine. */
char *init_repository(const char *host, const char *user, const char *name);
/* Whether it is HOST[:PORT]/REPO without tag: E_USAGE. */
int init_check_repository(const char *text, struct err *err);

/*
 * The text and the file
 */

enum { INIT_TEXT_MAX = 256 << 10 };

/* Answers of the user to the questions; zero is what is taken without them. */
struct init_answers {
	const char *command; /* a line for the shell; NULL: the first of the project's */
	bool limit_paths;    /* send the project's directory alone, not the whole tree */
	bool no_data;
	bool no_more;                             /* of questions: the input has ended */
	const struct init_cluster_list *clusters; /* targets to be written; NULL: none */
	const char *registry; /* HOST/REPO for images of runs; NULL: none is known */
};

/* Every line has a comment. The first cluster is the default target. What nobody has chosen stands
 * there as comments. */
void init_text(
	const struct init_project *project, const struct init_answers *answers, struct buf *out);

/* The project's image as a registry takes it: with a host, "python" is docker.io/library/python.
 * NULL: none that could be. The caller frees. */
char *init_image(const struct init_project *project);

/* For a cluster: the project's image gets a base with the interpreter of the command where it has
 * none, or has one that lacks it by its configuration, which is requested for limit_ms (0: not at
 * all). *ret_said, which the caller frees: what was found, one line; or NULL. */
void init_choose_base(struct session *session, struct init_project *project,
	const struct init_answers *answers, int64_t limit_ms, char **ret_said);

/* The words of a command as a user reads and types them; the caller frees. */
char *init_command_text(const struct init_command *command);

/* Write text to dlrun.yaml in dir, after it was loaded as a configuration. One that is there is
 * E_INIT_EXISTS, or with force kept as dlrun.yaml~. At every moment dlrun.yaml is the old one or
 * the new one, and never a half; of two at once without force one fails. *ret_kept: there was
 * one. */
int init_put(const char *dir, const char *text, bool force, bool *ret_kept, struct err *err);
/* Whether init_put without force would be refused: E_INIT_EXISTS then. */
int init_check_free(const char *dir, struct err *err);

#endif
