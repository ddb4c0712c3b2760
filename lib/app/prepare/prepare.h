/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A submit while it is made: one object from the options to the started attempt, whose phases work
 * on it in turn. Also a push (no run, no target), a preview (nothing is written) and the next
 * attempt of a run (no check, no snapshot), which need some of the phases only.
 *
 * Phases return 0 or a negative code. What they need of the phases before is said beside them.
 */
#ifndef DLRUN_APP_PREPARE_PREPARE_H
#define DLRUN_APP_PREPARE_PREPARE_H

#include "app/prepare/submit_options.h"
#include "core/image/code.h"
#include "core/image/lock_inputs.h"
#include "core/image/pack.h"
#include "core/record/places.h"
#include "core/record/spec.h"
#include "core/store/store.h"
#include "core/study/study.h"
#include "core/target/target.h"
#include "oci/model/ref.h"

struct submit {
	/* the request; options and events are NULL where there are none */
	struct session *session;
	const struct submit_options *options;
	const struct submit_events *events;
	bool dry_run;        /* nothing is sent or kept */
	bool is_recorded;    /* a push inserts the row before it commits the image */
	bool is_ahead;       /* all that a run needs is made, and there is none */
	bool may_hold;       /* accepted here where the target does not answer */
	bool is_held;        /* run is a row that was held (held.h), and is sent now */
	bool copies_base;    /* base layers that cannot be mounted are copied */
	bool trusts_nothing; /* of what is remembered of a registry */
	int64_t begun_ms, snapshot_ms, pack_ms, push_ms, submit_ms;

	/* check */
	struct config *config;          /* the session's */
	const struct tree_place *place; /* the session's; NULL with --from */
	char *live_root;                /* of the live tree that words may lead to, or NULL */
	struct run *parent;             /* --from RUN */
	char *from_digest, *from_ref;   /* --from: the image */
	struct code from;               /* the same, where it had to be looked into */
	struct json *from_config;       /* of that */
	struct entry_list from_entries; /* submit_entries */
	bool has_entries;
	struct spec spec;
	struct strv secret_env; /* K=V */
	struct strv typed_env;  /* K=V in front of the command */
	char name[RUN_NAME_MAX + 1];
	/* Of a run with several places all of them, as far as they are decided; else empty. */
	struct run_places places;
	const char *place_name; /* that is tried, borrowed; NULL: that of the configuration */
	struct after_list
		after; /* what it begins after; in spec while there is anything to wait for */
	char *refused; /* of the place that has refused it: why it goes to another; or NULL */
	struct target *target;
	const char *target_name;        /* of a push without a target: whose registry; or NULL */
	struct strv warnings;           /* one sentence each, all of them reported already */
	struct strv notices;            /* what is done for the program without being asked */
	bool missing_program;           /* it will not be found */
	struct lock_inputs lock_inputs; /* keys of the setup that nobody has named */
	size_t n_lock_keys; /* of the keys of the setup, the first that its lock file brings */

	/* snapshot and image */
	struct snapshot *snapshot; /* NULL with --from */
	/* Of snapshot_options, with will_ctx; NULL: nobody. */
	void (*will_walk)(void *ctx);
	void (*will_read)(void *ctx, const struct path *const *files, size_t n);
	void *will_ctx;
	bool id_later; /* snapshot_options.id_later */
	struct pack pack;
	struct pack_reused reused;      /* its image is set: dlrun's own layers of it are reused */
	const struct pack_added *added; /* instead of a tree: to the image there; or NULL */
	const struct pack_environment *environment; /* the same: below the image; or NULL */
	const struct pack_data *data;               /* the same; or NULL */
	struct json *image_facts;                   /* image_facts.h; NULL: not known */
	struct image image;
	const char *remote_url; /* of the repository, where there is no snapshot; or NULL */
	char *ref; /* of the image: "REPO@sha256:…" (as runs name it), "oci:DIR@sha256:…" */
	/* The target takes images from a registry, and there is none for this one: it stays here,
	 * pods take base_ref ("REPO@sha256:…"), and the code goes to them by the cluster. */
	bool code_apart;
	char *base_ref;

	/* push */
	struct ref to; /* where it goes */
	char *pull;    /* of a registry: the repository as runs name it */
	char *base_digest;
	struct strv push_warnings;
	struct strv there; /* digests of layers that the destination has, after a dry run */
	struct uploads_progress sent;
	size_t requests; /* to registries and token servers */

	/* record */
	struct store *store;
	/* Of a sweep, whose member this is, or NULL. Its id is known from submit_claim on; until
	 * submit_insert_row spec has {k} for the values of the axes. */
	struct study *study;
	struct run *run;
	char id[RUN_ID_SIZE];
	char handle[TARGET_HANDLE_SIZE];
	char *dir;   /* of the run */
	int gc_fd;   /* until the row names the image; 0: none, as lock_fd */
	int lock_fd; /* submit.lock, until submit_finish */

	/* create */
	struct strv env, defaults; /* of the job */
	bool carries_over;         /* the image has the results of the attempt before */
};
void submit_done(struct submit *submit);

/* Report a sentence for the record and the user interface. */
void submit_warn(struct submit *submit, const char *fmt, ...) ERR_PRINTF(2, 3);
/* The same for what is done for the program without being asked: reported once there is a run. */
void submit_note(struct submit *submit, const char *fmt, ...) ERR_PRINTF(2, 3);

/*
 * submit_paths.c: words, paths and the entries of the tree
 */

/* The entries of the run's tree: of the snapshot, with --from of that image, which is read at the
 * first call. NULL: not known. */
const struct entry_list *submit_entries(struct submit *submit);
/* Paths of the live tree in the command and the environment become the run's own; with --from, if
 * words were given. */
void submit_own_paths(struct submit *submit);
/* A path in the tree, seen from the directory of the command. The caller frees. */
char *submit_relative(const struct submit *submit, const char *path);
/* Warn if the program will not be found. */
void submit_lookup(struct submit *submit);

/*
 * submit_roles.c: parts of a run with commands and nodes of their own
 */

/* Read the roles of the configuration, unless an earlier run has brought its own. Where all of them
 * have commands, spec's command becomes that of the role that names the run. */
int submit_set_roles(struct submit *submit, struct err *err);
/* Call check for each command of the run in the place of spec's. */
int submit_each_command(struct submit *submit, int (*check)(struct submit *submit, struct err *err),
	struct err *err);
/* Set the number of nodes, once the target is known and all commands and variables are set. */
int submit_check_roles(struct submit *submit, struct err *err);

/*
 * submit_runtime.c: what surrounds the code (runtime.h)
 */

/* Read the values of secrets. */
int submit_set_secrets(struct submit *submit, struct err *err);
int submit_set_runtime(struct submit *submit, struct err *err);
/* The same where spec is that of a run with several places, which goes to submit->target now. */
int submit_move_runtime(struct submit *submit, struct err *err);
/* Check the parts of the runtime environment that only the snapshot can tell. */
int submit_check_runtime(struct submit *submit, struct err *err);
/* E_RUN_DATA: the target's `data:` does not name path. */
int submit_runtime_fail_no_place(const struct config *config, const struct target *target,
	const char *path, struct err *err);

/*
 * submit_after.c
 */

/* --after: E_RUN_AFTER where one has ended otherwise already. */
int submit_set_after(struct submit *submit, struct err *err);

/*
 * submit_check.c: the phases check and snapshot
 */

/* Everything that can be refused without looking at the files of the tree; nothing is written. */
int submit_check(struct submit *submit, struct err *err);
/* E_IMAGE_NONE where the base image, as far as it is here, surely lacks the command's program, and
 * nothing else can bring it. */
int submit_check_program(const struct submit *submit, struct err *err);
/* The snapshot (none with --from), with its warnings and the time that it took. */
int submit_take_snapshot(struct submit *submit, struct err *err);
/* Set ret, which is empty before, to the patterns of include: and of --include. */
void submit_get_include(const struct submit *submit, struct strv *ret);
void submit_report_snapshot(const struct submit *submit);

/*
 * submit_record.c: the phases record and create
 */

/* A new id, by a directory with a lock in it: nobody knows of it yet. Of a sweep: the study's id,
 * too. */
int submit_claim(struct submit *submit, struct err *err);
/* Make the submit that of the first member of its study, which has an id; the specification keeps
 * {k} until submit_begin_study, which makes it the study's. submit_claim and submit_insert_row do
 * it. */
void submit_set_study(struct submit *submit);
int submit_begin_study(struct submit *submit, struct err *err);
/* Without a row nothing stays of it. */
void submit_drop(struct submit *submit);
/* Ask the target, where its check is not made, what the choice of a handle has to know. */
int submit_learn(struct submit *submit, struct err *err);
/* The same facts for another question; borrows from submit. */
struct target_requirements submit_requirements(const struct submit *submit);
/* Set the members of "held" and "moves" (places.h) that the one who sends the run needs. */
void submit_set_moves(const struct submit *submit, struct json *object);
/* The handle of the first attempt, by what is known of the target now. */
int submit_choose_handle(struct submit *submit, struct err *err);
/* A new record, in state preparing, of the submit as it is now. */
struct run *submit_new_run(struct submit *submit);
/* The members that follow from the image, and the warnings until now. */
void submit_set_image(struct submit *submit);
void submit_set_warnings(const struct submit *submit, struct run *run);
/* The object of the study, by what is known of the submit, which becomes that of its first member:
 * the specification has no {k} any more. submit_insert_row does it. */
int submit_write_study(struct submit *submit, struct err *err);
/* The row of submit_new_run, with the first attempt; run is NULL without it. The object of a study
 * is written before. Of a held run only the handle is chosen: its row is there. */
int submit_insert_row(struct submit *submit, struct err *err);
int submit_update_row(struct submit *submit, struct err *err);
/* Make the submit, whose first member has been made, that of another member of the study: a row in
 * state queued with its first attempt, and the lock of its directory. first: the record of a member
 * that has the image; where that is held, so is this one, without an attempt. E_RUN_NAME: it is
 * there already. */
int submit_insert_member(
	struct submit *submit, const struct run *first, size_t index, struct err *err);
/* The rows of all members but the first, in one transaction: those that are not there. ret: all of
 * them. */
int submit_insert_members(
	struct submit *submit, const struct run *first, struct run_list *ret, struct err *err);
/* Records and directories of all members but first, without rows. */
int submit_new_members(const struct submit *submit, const struct run *first, struct run_list *ret,
	struct err *err);
/* Whether the target starts all members of the study together. */
bool submit_starts_together(const struct submit *submit);
/* The record of a run that could not be started. */
void submit_set_failed(struct run *run, const struct err *err);
/* After the row there is a run: how it failed is for its record. Returns r. */
int submit_fail_row(struct submit *submit, int r, const struct err *err);
/* Variables that lead programs to the caches of the target, each as K=V; none without them. */
void submit_add_caches(const struct submit *submit, struct strv *defaults);
/* Describe the newest attempt of run for the target; *ret borrows from submit and run. */
void submit_make_job(struct submit *submit, const struct run *run, struct target_job *ret);
/* Describe all members for a target that starts them together; borrows from first and words. */
struct target_study submit_make_study(
	const struct target_job *first, const struct study_words *words);
/* Of dlrun's own layers, compressed. */
uint64_t submit_code_bytes(const struct submit *submit);
/* The record's member "image". The caller frees. */
struct json *submit_image_json(const struct submit *submit, const char *base);
/* Describe the image, for a target that takes it from a registry. */
int submit_set_job_image(struct submit *submit, struct target_job *job, struct err *err);
/* The image that run, which has one, was made with, for another start of it. */
int submit_load_image(struct submit *submit, const struct run *run, struct err *err);
enum { SUBMIT_START_MS = 120000 }; /* a cluster may be away for a while */
/* The same of the newest attempt of submit->run, with its image. */
int submit_make_start(struct submit *submit, struct target_job *ret, struct err *err);
/* Start it. */
int submit_create(struct submit *submit, struct err *err);
/* After a start that failed, whether the attempt runs all the same, or has run: 1, or 0: it never
 * will; -1: the target cannot tell now, but a later refresh will. Closes lock_fd: it is asked once
 * nobody can start it any more. */
int submit_has_begun(struct submit *submit);

/*
 * push_registry.c: the phases snapshot, pack and push at once
 */

/* `pull` of what goes to `to`: a repository that the configuration knows under two names has the
 * one that runs use. */
struct registry_config;
void push_set_pull_name(struct submit *submit, const struct registry_config *known);
/* The registry of a target (NULL: none in particular) into `to` and `pull`: 1, or 0: there is
 * none. */
int push_find_registry(struct submit *submit, const char *target, struct err *err);
/* A push to `to`, with code_apart into the layout here: snapshot (or reused, or added), image and
 * ref; E_CANCELED after SIGINT, SIGTERM or SIGHUP. With is_recorded the target is asked meanwhile
 * whether the run could be there, and the row is inserted before the image is committed (with
 * code_apart before this returns): what is refused leaves none, and without a row nothing refers to
 * what was uploaded. run is NULL on a failure before that. */
int push_to_registry(struct submit *submit, struct err *err);
/* The same to the registry of the submit's target, for a run. */
int submit_push(struct submit *submit, struct err *err);

/*
 * push.c
 */

/* Write the image into the layout here, where it is called by submit->id. */
int submit_pack(struct submit *submit, struct err *err);

#endif
