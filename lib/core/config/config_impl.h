/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of core/config/config.c: values with their origins, and how they are read from a file.
 */
#ifndef DLRUN_CORE_CONFIG_CONFIG_IMPL_H
#define DLRUN_CORE_CONFIG_CONFIG_IMPL_H

#include "base/data/yaml.h"
#include "core/config/config.h"
#include "core/config/config_trust.h"

enum { CONFIG_KEYS_MAX = 80 };

struct config_value {
	bool set;
	struct config_origin origin;
	char *text;        /* scalars: as written, checked */
	struct strv list;  /* lists, commands, env */
	bool shell;        /* CONFIG_COMMAND: one line for sh -c */
	struct json *json; /* CONFIG_TARGETS, CONFIG_REGISTRY, CONFIG_AXES, CONFIG_ROLES (an
			    * object) */
};

struct config {
	struct config_value values[CONFIG_KEYS_MAX];
	char *home; /* for ~/ in files, or NULL */
	char *root; /* of the project's tree, or NULL */
	struct config_project project;
};

/* The location that a value is being read from, for messages and origins. */
struct config_location {
	enum config_source source;
	const char *file;
	struct yaml_mark at; /* a line of 0: no file of lines */
};

/* The location of a member of a map or list: its value, or its key where that stands on another
 * line. */
struct config_location config_location_of(
	const struct config_location *outer, const struct yaml *item);
/* Put "FILE:LINE:COLUMN: " before the message. */
int config_location_prefix(struct err *err, const struct config_location *location);

/* Index in config_keys; config_keys_n if there is none of that name. */
size_t config_key_index(const char *name);
/* "FILE:LINE:COLUMN: text", E_CONFIG unless said otherwise. */
int config_location_error(
	struct err *err, enum err_id id, const struct config_location *location, const char *text);
int config_location_errorf(struct err *err, const struct config_location *location, const char *fmt,
	...) ERR_PRINTF(3, 4);
/* "KEY must be WANTED, not a list" */
int config_wrong_kind(struct err *err, const struct config_location *location, const char *key,
	const char *wanted, const struct yaml *node);

/* A target with the key of that name, as it stands in a file; NULL: no kind has one. The caller
 * frees. */
char *config_target_key_hint(const char *name);
/* Where a key of that name is valid, in targets or else at the top; NULL: nowhere. The caller
 * frees. */
char *config_place_hint(const char *name);
/* "FILE:LINE:COLUMN: unknown key 'NAME' in WHERE" with a hint: right if it is set, else the near
 * match among known, else where a key of that name is valid. where may be empty. */
int config_unknown_key(struct err *err, const struct config_location *location, const char *where,
	const struct yaml *item, const char *const *known, size_t n, const char *right);

void config_value_mark(struct config_value *value, const struct config_location *location);
/* Whether text may be a value of key. */
int config_check_scalar(const struct config_key *key, const char *text, struct err *err);
int config_set_scalar(struct config *config, size_t i, const char *text,
	const struct config_location *location, struct err *err);

/* Read the user's or the site's file on top of config. A missing file counts as empty. */
int config_read_file(
	struct config *config, enum config_source source, const char *path, struct err *err);
int config_read_text(struct config *config, enum config_source source, const char *path,
	const struct buf *text, struct err *err);
/* 1: the project's file is to be read, ret_text is its content; 0: it does not count. */
int config_read_project(struct config *config, const struct config_files *files,
	struct buf *ret_text, struct err *err);
void config_project_done(struct config_project *project);
/* Whether a value at location counts, of a key that `by` may set; file: the file that it names, or
 * NULL. */
bool config_claim(struct config *config, const struct config_location *location,
	enum config_setter by, const char *key, const char *value, const char *file);
/* Resolve a path from the configuration file that names it, ~/ is the home; the caller frees. */
char *config_file_named(const struct config *config, const char *from, const char *text);

/* Read a file's settings of a registry on top of *json, the settings of lower layers (NULL: none),
 * which is replaced. */
int config_read_registry(struct config *config, const char *what, const struct yaml *node,
	const struct config_location *location, struct json **json, struct err *err);
/* The same for a plain text. A text that is not valid changes nothing. */
int config_set_registry(const char *what, const char *text, struct json **json, struct err *err);
int config_read_targets(struct config *config, size_t i, const struct yaml *node,
	const struct config_location *location, struct err *err);

#endif
