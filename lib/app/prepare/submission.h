/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of app/submit/submit.c: one submit while it is prepared.
 */
#ifndef DLRUN_APP_PREPARE_SUBMISSION_H
#define DLRUN_APP_PREPARE_SUBMISSION_H

#include "app/prepare/submit_options.h"
#include "core/image/code.h"
#include "core/image/pack.h"
#include "core/record/spec.h"
#include "core/target/target.h"

struct submission {
	struct session *session;
	const struct submit_options *options;
	const struct submit_events *events; /* may be NULL */
	struct config *config;              /* the session's */
	const struct tree_place *place;     /* the session's; NULL with --from */
	char *live_root;                    /* of the live tree that words may lead to, or NULL */
	struct run *parent;                 /* --from RUN */
	char *from_digest, *from_ref;       /* --from: the image */
	struct code from;                   /* the same, where it had to be looked into */
	struct json *from_config;           /* of that */
	struct entry_list from_entries;     /* submission_entries */
	bool has_entries;
	struct pack_carried carried; /* its image is set: what goes along with the run */
	struct spec spec;
	struct strv secret_env; /* K=V */
	struct strv typed_env;  /* K=V in front of the command */
	char name[RUN_NAME_MAX + 1];
	struct target *target;
	struct pack pack;
	struct snapshot *snapshot; /* NULL with --from */
	struct json *image_facts;  /* image_facts.h; NULL: not known */
	struct strv warnings;      /* one sentence each, all of them said already */
	struct strv notices;       /* what is done for the program without being asked */
	bool missing_program;      /* it will not be found */
	int64_t begun_ms, snapshot_ms;
	/* Of snapshot_options, with this as their ctx; NULL: nobody. */
	void (*will_walk)(void *ctx);
	void (*will_read)(void *ctx, const struct path *const *files, size_t n);
	void *will_ctx;
	bool id_later; /* snapshot_options.id_later */
};

void submission_done(struct submission *submission);

/* A sentence for the record and the user interface. */
void submission_warn(struct submission *submission, const char *fmt, ...) ERR_PRINTF(2, 3);

/* The same for what is done for the program without being asked: said once there is a run. */
void submission_note(struct submission *submission, const char *fmt, ...) ERR_PRINTF(2, 3);

/* Everything that can be refused without looking at the files of the tree; nothing is written. */
int submission_check(struct submission *submission, struct err *err);
/* E_IMAGE_NONE where the base image, as far as it is here, surely lacks the command's program, and
 * nothing else can bring it. */
int submission_check_program(const struct submission *submission, struct err *err);
/* Parts of it: --from, before the target is known and afterwards; the values of secrets; what
 * surrounds the code (world.h). */
int submission_take_from(struct submission *submission, struct err *err);
int submission_find_from(struct submission *submission, struct err *err);
/* The entries of the run's tree: of the snapshot, with --from of that image, which is read at the
 * first call. NULL: not known. */
const struct entry_list *submission_entries(struct submission *submission);
int submission_set_secrets(struct submission *submission, struct err *err);
int submission_set_world(struct submission *submission, struct err *err);
/* Check the parts of the world that only the snapshot can tell. */
int submission_check_world(struct submission *submission, struct err *err);
/* The command as it was typed: E_USAGE with the line to paste for what only a shell understands;
 * variables in front of it are taken off. */
int submission_check_typed(struct submission *submission, struct err *err);
/* A file of the tree that is no program gets its interpreter; the target is known. */
int submission_start_file(struct submission *submission, struct err *err);
/* Refuse settings that the target, which is a machine, does not support (E_TARGET_UNSUPPORTED,
 * E_GPU_COUNT), or report them where a configuration file sets them. */
int submission_check_honour(struct submission *submission, struct err *err);
/* Paths of the live tree in the command and the environment become the run's own; with --from, if
 * words were given. */
void submission_own_paths(struct submission *submission);
/* word seen from dir (in the tree, or absolute), without "." and ".." and a slash in front; NULL
 * if it leads out. The caller frees. */
char *submission_tree_path(const char *dir, const char *word);
/* A path in the tree, seen from the directory of the command. The caller frees. */
char *submission_relative(const struct submission *submission, const char *path);
/* Whether path (in the tree) is or lies in a Python environment of the live tree. */
bool submission_in_venv(const struct submission *submission, const char *path);
/* The snapshot (none with --from), with its warnings. cache: the stat cache may be written. */
int submission_take(struct submission *submission, bool cache, struct err *err);
/* The same with all that follows from it for the user, and how long it took since begun_ms. */
int submission_take_all(struct submission *submission, bool cache, struct err *err);
/* Warn if the program will not be found. */
void submission_look_up(struct submission *submission);

#endif
