/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Roles: the parts of one run that differ in nodes, resources or commands, as a learner and its
 * actors. In the specification:
 *
 *	"roles": [{"name": "learner", "nodes": 1, "gpus": 4, "cpus_milli": …, "memory_bytes": …,
 *		"command": […], "shell": true, "env": ["K=V"]}, …], "ends_with": "learner"
 *
 * A role is an interval of the run's ranks, in the order of the list; resources.nodes is the sum.
 * Members that are missing are the run's. The record (`show --json`) has the numbers of nodes:
 *
 *	"roles": {"learner": 1, "actors": 12}, "ends_with": "learner"
 *
 * Each role is a group of its own: its programs are told their rank and number within the role
 * (NODE_RANK, NNODES) and the address of the role's first one (MASTER_ADDR). `{learner.0}` in words
 * and values of variables is the address of that rank of that role, which only the place knows.
 *
 * A run without roles is one role without a name, so that callers need no second path. Nothing here
 * blocks.
 */
#ifndef DLRUN_CORE_RECORD_ROLES_H
#define DLRUN_CORE_RECORD_ROLES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/data/json.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/config/config.h"

enum {
	ROLES_MAX = 16,
	ROLES_NAME_MAX = 20,    /* bytes: a part of names of hosts */
	ROLES_NODES_MAX = 1000, /* of a run with roles: a variable names all of them */
	ROLES_GPUS_UNSET = -1,
};

struct spec;

struct role {
	char *name;
	int nodes;
	int gpus;           /* of each node, as what follows; ROLES_GPUS_UNSET: the run's */
	int64_t cpus_milli; /* 0: the run's */
	uint64_t memory_bytes;
	struct strv command; /* empty: the run's */
	bool shell;          /* command is one line for sh -c */
	struct strv env;     /* K=V, in place of those of the run */
};

struct roles {
	struct VEC_OF(struct role) list; /* empty: the run has none */
	char *ends_with; /* once all ranks of this role have ended, the run has; NULL: all roles */
};

/*
 * Configuration, checks and JSON
 */

/* Read the configuration's roles and ends_with; none: ret stays empty. E_CONFIG or E_USAGE, which
 * names the key and its place in a file. */
int roles_from_config(const struct config *config, struct roles *ret, struct err *err);
/* E_CONFIG unless names, numbers and ends_with may be and every {ROLE.N} of the commands and
 * variables of spec names a rank. resources.nodes has to be the sum already. */
int roles_check(const struct spec *spec, struct err *err);
int roles_sum(const struct roles *roles);

/* Members roles and ends_with of object; nothing without roles. Reading: E_DATA. */
void roles_to_json(const struct roles *roles, struct json *object);
int roles_from_json(const struct json *object, struct roles *ret, struct err *err);
/* The same members of a record: numbers of nodes by name. */
void roles_to_record(const struct roles *roles, struct json *doc);
void roles_done(struct roles *roles);

/*
 * Of a run
 */

/* A role of a run and one of its ranks, where what the role leaves open is filled in. Valid as long
 * as the specification. */
struct roles_part {
	const char *name; /* NULL: the run has no roles */
	size_t index;     /* of the role, from 0 */
	int first, nodes; /* the ranks first … first + nodes - 1 of the run are the role's */
	int rank;         /* within the role, from 0 */
	int gpus;         /* as runtime.gpus */
	int64_t cpus_milli;
	uint64_t memory_bytes;
	const struct strv *command;
	bool shell;
	bool is_deciding; /* the run has ended once all deciding ranks have */
};

/* All GPUs that a run asks for; RUNTIME_GPUS_AUTO where it leaves that open. */
int roles_gpus(const struct spec *spec);
/* How many roles a run has; 1 where it has none. */
size_t roles_count(const struct spec *spec);
/* The part of rank, a rank of the run; of one that the run does not have, that of its last role. */
void roles_of_rank(const struct spec *spec, int rank, struct roles_part *ret);
/* The role of that index, at its rank 0. */
void roles_nth(const struct spec *spec, size_t index, struct roles_part *ret);
/* The role that names a run with roles: the one that ends it, else the first. */
const struct role *roles_main(const struct spec *spec);
/* Whether a program takes the run's own command: true without roles. */
bool roles_take_command(const struct spec *spec);
/* The part that the run's own command is started in: of the first role without a command; where
 * all have one, of roles_main's. */
void roles_command_part(const struct spec *spec, struct roles_part *ret);

/* "actors.3", or "rank 3" of a run without roles; the caller frees. */
char *roles_part_text(const struct roles_part *part);
/* Add the variables of a rank that tell of roles: DLRUN_ROLE, DLRUN_ROLE_RANK, DLRUN_ROLE_NODES
 * and, with addresses, DLRUN_ROLE_<NAME> for each role: its addresses, separated by commas. Nothing
 * without roles. */
void roles_add_env(
	const struct spec *spec, int rank, const struct strv *addresses, struct strv *ret);
/* text with addresses in place of {ROLE.N}; the caller frees. */
char *roles_fill(const struct spec *spec, const struct strv *addresses, const char *text);

/*
 * Of a record, which may be somebody else's: a role whose name cannot be one has no ranks
 */

/* The role of rank, which becomes the rank within it; NULL: a run without roles. */
const char *roles_of_record(const struct json *doc, int *rank);
/* "learner 1, actors 12", or NULL; the caller frees. */
char *roles_summary(const struct json *doc);
/* "actors.3", or "rank 3" of a run without roles, in sentences; the caller frees. */
char *roles_rank_text(const struct json *doc, int rank);
/* The interval of a role of that name. E_USAGE with the roles that there are. */
int roles_find(
	const struct json *doc, const char *name, int *ret_first, int *ret_nodes, struct err *err);

#endif
