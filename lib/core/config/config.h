/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Configuration: option > DLRUN_<KEY> > dlrun.yaml of the project > the user's > the site's >
 * default. One table of keys (config_keys) feeds the reader, its error messages, `dlrun config` and
 * dlrun.yaml(5).
 */
#ifndef DLRUN_CORE_CONFIG_CONFIG_H
#define DLRUN_CORE_CONFIG_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/data/json.h"
#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/vec.h"

#define CONFIG_FILE "dlrun.yaml"

enum config_type {
	CONFIG_STRING,
	CONFIG_INT,
	CONFIG_SIZE,     /* bytes */
	CONFIG_DURATION, /* milliseconds */
	CONFIG_LIST,     /* of strings */
	CONFIG_COMMAND,  /* a list of words, or a string for the shell */
	CONFIG_ENV,      /* a map of names to strings; no value: from this shell */
	CONFIG_MAP,      /* has keys of its own: children in the table by their dotted name */
	CONFIG_TARGETS,  /* a map of names to maps, kept as JSON */
	CONFIG_ENUM,     /* one of choices; or a map of the keys below it, where there are some */
	CONFIG_SECRETS,  /* a list of names from this shell, or a map of names to "@FILE" */
	CONFIG_REGISTRY, /* HOST[:PORT]/REPO, or a map: registry_config.h */
	CONFIG_PORTS,    /* a list of numbers: ports.h */
	CONFIG_AXES,     /* a map of names to values, lists or maps, kept as JSON */
	CONFIG_ROLES,    /* a map of names to maps, kept as JSON */
	CONFIG_NAMES,    /* a name, or a list of names: one text with commas between */
};

/* The sources that may set a key, beside options and DLRUN_<KEY>. The user's and the site's file
 * may set all keys. A project's file is not trusted: keys that name programs, files outside of its
 * tree, or where credentials go, or that weaken transport, count from it only when the user has
 * confirmed its content (config_trust.h). */
enum config_setter {
	CONFIG_BY_PROJECT = 1, /* a project's file, too */
	CONFIG_BY_TREE,        /* that one, for files of its tree; for others once confirmed */
	CONFIG_BY_CONFIRMED,   /* that one, once confirmed */
	CONFIG_BY_USER,        /* never a project's file */
};

/* A row of the table of keys. */
struct config_key {
	const char *name; /* "name", "limits.size" */
	enum config_type type;
	const char *fallback; /* the default as text, or NULL */
	const char *choices;  /* CONFIG_ENUM: "gzip zstd" */
	bool env;             /* DLRUN_<NAME> is read */
	enum config_setter by;
	const char *help;    /* one sentence for people */
	const char *example; /* as it stands in a file */
};
extern const struct config_key config_keys[];
extern const size_t config_keys_n;

/* A row of the table of target keys. Some names stand there twice, for two kinds. */
struct config_reading;
typedef int config_read_fn(
	const struct config_reading *reading, struct json **ret, struct err *err);
struct config_target_key {
	const char *name;
	enum config_setter by;
	unsigned kinds; /* of config_target.c, as what follows */
	config_read_fn *read;
	const char *help;
	const char *example;
};
extern const struct config_target_key config_target_keys[];
extern const size_t config_target_keys_n;

enum config_source {
	CONFIG_FROM_DEFAULT,
	CONFIG_FROM_SITE,
	CONFIG_FROM_USER,
	CONFIG_FROM_PROJECT,
	CONFIG_FROM_ENV,
	CONFIG_FROM_OPTION,
};

struct config_origin {
	enum config_source source;
	char *file; /* or the name of the variable */
	unsigned line, column;
};

struct config;

struct config_files {
	const char *project; /* the dlrun.yaml that counts, or NULL */
	const char *root;    /* of its tree; NULL: its directory */
	const char *trust;   /* directory of what is confirmed (config_trust.h), or NULL */
	bool review;         /* to be shown: another user's file is read, but nothing counts
				 * that needs confirming */
	/* Whether git's configuration calls a directory safe; NULL: git's configuration is not
	 * consulted. */
	bool (*git_trusts)(void *ctx, const char *dir);
	void *git_ctx;
	const char *user;       /* …/dlrun/config.yaml, may be missing */
	const char *site;       /* /etc/dlrun/config.yaml, may be missing */
	const char *const *env; /* NAME=value, NULL-ended: the whole environment */
	bool inside_run;        /* DLRUN_<KEY> are the run's own then and not read */
};

/* Errors: "FILE:LINE:COLUMN: …" with the near match or the shape of the key as hint. */
int config_load(const struct config_files *files, struct config **ret, struct err *err);
void config_free(struct config *config);
AUTO_POINTER(struct config, config_free)
#define AUTO_CONFIG AUTO(config_free_auto)

/* An option of the command line sets a key (its text is read like an environment variable's; a list
 * is replaced). */
int config_override(struct config *config, const char *key, const char *text, struct err *err);

/* Values by dotted name; the table's type must fit (else BUG). Unset: NULL, the fallback, empty. */
const char *config_str(const struct config *config, const char *key);
int64_t config_int(const struct config *config, const char *key, int64_t unset);
uint64_t config_size(const struct config *config, const char *key);
int64_t config_duration(const struct config *config, const char *key, int64_t unset);
/* Of CONFIG_PORTS, too: as text. Never NULL. */
const struct strv *config_list(const struct config *config, const char *key);
bool config_is_set(const struct config *config, const char *key); /* anywhere but the default */
/* command: the words; *ret_shell: it is one line for sh -c. */
const struct strv *config_command(const struct config *config, bool *ret_shell);
/* env: "K=V" or "K" (from this shell). */
const struct strv *config_env(const struct config *config);
/* secrets: "K" (from this shell) or "K=@FILE". */
const struct strv *config_secrets(const struct config *config);
/* The definition of a target (its keys as JSON), or NULL. */
const struct json *config_target(const struct config *config, const char *name);
/* Whether it is a cluster: by its definition, or as "kube[:CONTEXT[/NAMESPACE]]". NULL is none. */
bool config_target_is_cluster(const struct config *config, const char *name);
/* sweep.over: an object for axes_add_json() (core/study/axes.h), or NULL. Scalars are strings, as
 * they are written. */
const struct json *config_axes(const struct config *config);
/* roles: an object for roles_from_config() (core/record/roles.h), or NULL: a member for each role
 * with nodes, gpus, cpus, memory (texts), command (a text or a list), env (an object). */
const struct json *config_roles(const struct config *config);
void config_target_names(const struct config *config, struct strv *ret);

/* Whether an option of the command line has set the key. */
bool config_is_option(const struct config *config, const char *key);
/* The origin of a key's value; valid as long as config. */
const struct config_origin *config_origin(const struct config *config, const char *key);
/* The directory that a relative path in the key's value starts from: that of the file that sets it,
 * else cwd. The caller frees. */
char *config_base_dir(const struct config *config, const char *key, const char *cwd);
/* Put the location of the key's value before an error that the value has caused: "FILE:LINE:COLUMN:
 * " or the variable's name. The error of a value from the command line is not changed. Returns
 * -code. */
int config_blame(const struct config *config, const char *key, struct err *err);
/* Every set key with its value and origin, in the table's order, for `dlrun config`. */
struct json *config_to_json(const struct config *config);

/* Whether an environment variable's name says that its value is a secret (TOKEN, KEY, SECRET,
 * PASSWORD as a word of it). */
bool config_name_is_secret(const char *name);

#endif
