/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Specification of a run: what is needed to start it again, beside its image: dlrun/spec/v1, kept
 * with the record. It has the names of secrets, never their values.
 */
#ifndef DLRUN_CORE_RECORD_SPEC_H
#define DLRUN_CORE_RECORD_SPEC_H

#include <stdbool.h>
#include <stdint.h>

#include "base/data/json.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/config/ports.h"
#include "core/record/after.h"
#include "core/record/resources.h"
#include "core/record/roles.h"
#include "core/record/runtime.h"

#define SPEC_SCHEMA "dlrun/spec/v1"

/* A run that is a member of a study (core/study/study.h). */
struct spec_study {
	char *id;        /* NULL: it is a member of none */
	int index, size; /* index: from 0, below size */
	int parallel;    /* so many members run at once on the whole target; 0: no limit */
	bool fail_fast;  /* once a member has failed, those that have not begun do not */
};

struct spec {
	struct strv command;
	bool shell;          /* command is one line for sh -c */
	bool terminal;       /* command is run in a terminal of somebody (terminal.h) */
	char *cwd;           /* in the tree: "." or "exp/a" */
	struct strv env;     /* K=V that were asked for */
	struct strv secrets; /* names of those whose values are not kept */
	int64_t timeout_ms;  /* 0: none */
	int64_t grace_ms;
	struct runtime runtime;
	struct resources resources;
	struct ports ports;   /* that the program listens on */
	bool drop_entrypoint; /* of the image: the command is started without it */
	struct spec_study study;
	struct roles roles;      /* their nodes are those of resources */
	struct after_list after; /* that have not ended when it was submitted */
};

struct json *spec_to_json(const struct spec *spec);
/* The members without the schema, for a document that has more than the specification (job.json of
 * attempt.h). Reading: E_DATA as for spec_from_json. */
void spec_add_members(const struct spec *spec, struct json *object);
int spec_from_members(const struct json *object, struct spec *ret, struct err *err);
/* E_DATA unless json is a specification with a command. */
int spec_from_json(const struct json *json, struct spec *ret, struct err *err);
/* E_DATA as for spec_from_json. */
int spec_copy(const struct spec *spec, struct spec *ret, struct err *err);
/* The specification of one role, as of a run that has no other: its command, env, resources and
 * number of nodes. addresses: of all ranks of the run, in their order, for {ROLE.N}; NULL: those
 * stay as they are. DLRUN_ROLE and so on (roles_add_env) are not in it. E_DATA as for spec_copy. */
int spec_of_role(const struct spec *spec, size_t index, const struct strv *addresses,
	struct spec *ret, struct err *err);
void spec_done(struct spec *spec);
#define AUTO_SPEC AUTO(spec_done)

#endif
