/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The environment of a run's code, described once for every kind of target: data and results that
 * lie beside the tree, the setup that is made first, GPUs, attempts. It is a part of the run's
 * specification (spec.h) and of the job that a target is given; paths in the tree are relative to
 * its root.
 */
#ifndef DLRUN_CORE_RECORD_RUNTIME_H
#define DLRUN_CORE_RECORD_RUNTIME_H

#include <stdint.h>

#include "base/data/json.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/record/launcher.h"

enum {
	RUNTIME_PATHS_MAX = 256, /* of data, of outputs */
	RUNTIME_GPUS_AUTO = -1,  /* one if the place has any */
	RUNTIME_RETRIES_MAX = 1000,
	RUNTIME_LINGER_MS = 300000, /* where nothing is said */
	RUNTIME_VERSION_DIGITS = 16,
};
#define RUNTIME_COLLECT_BYTES (20ULL << 30) /* where nothing is said */

/* A path of the tree whose content git ignores and which lies somewhere on the target. */
struct runtime_data {
	char *path; /* in the tree */
	char *from; /* on the target, absolute; or RUNTIME_SYNC */
	/* Of its content, of what has gone into the run's image: as the id of a snapshot; or
	 * NULL. */
	char *digest;
};
/* Member of a record: what data the run has, an object of names by paths in the tree. */
#define RUNTIME_DATA "data"
/* The directory here is sent to the target. */
#define RUNTIME_SYNC "sync"

/* A command that is run once for each content of its key files. */
struct runtime_setup {
	char *run;       /* a line for sh -c; NULL: there is none */
	struct strv key; /* paths in the tree */
	char *cwd;       /* in the tree: where it is run */
	char *baked;     /* key of the environment that the run's image has; NULL: none */
};

enum collect_mode { COLLECT_AUTO, COLLECT_NONE };

/* Rules for collecting files that the program creates or changes in its tree as results. */
struct runtime_collect {
	enum collect_mode mode;
	struct strv exclude; /* patterns, as in dlrun.yaml(5) */
	uint64_t size_bytes; /* of all that is collected */
};

struct runtime {
	struct VEC_OF(struct runtime_data) data;
	struct strv outputs; /* paths in the tree that lie in $DLRUN_OUTPUT_DIR */
	struct strv filled;  /* those of data and outputs that the snapshot has files below */
	struct runtime_setup setup;
	struct launcher launcher; /* of the command */
	char *before;             /* lines for bash (else sh) in front of the program; NULL: none */
	/* Directories in the tree that go in front of PYTHONPATH: the places that an editable
	 * install of the interpreter names in the live tree. */
	struct strv python_paths;
	/* NAME=PATH: packages whose directory in the tree has another name. */
	struct strv python_aliases;
	int gpus;              /* on each node, or RUNTIME_GPUS_AUTO */
	struct strv gpus_only; /* the user's own CUDA_VISIBLE_DEVICES; empty: any */
	int retries;           /* further attempts after failures of the program */
	int signal;            /* sent to the program before its end; 0: none */
	int64_t signal_before_ms;
	int stop_signal; /* asks the program to end, before KILL; 0: TERM */
	struct runtime_collect collect;
	/* How long a pod whose results lie nowhere else waits for them to be taken. */
	int64_t linger_ms;
};

/* Members of object: data, outputs, setup, before, python_paths, gpus, collect, … */
void runtime_to_json(const struct runtime *runtime, struct json *object);
/* Lenient where a member is missing; E_DATA where one is of another form. */
int runtime_from_json(const struct json *object, struct runtime *ret, struct err *err);
void runtime_done(struct runtime *runtime);
/* Set RUNTIME_DATA of a record, by digests of what goes into the image and the versions that places
 * name ("d-" and 16 digits behind ".dlrun/"; app/data/version.h): hosts tell theirs when the run
 * begins. Nothing where no data has one. */
void runtime_name_data(const struct runtime *runtime, struct json *doc);
/* The same from what a pod has reported (KUBE_JOB_DATA); other lines are passed over. */
void runtime_reported_data(const char *text, struct json *doc);
#define AUTO_RUNTIME AUTO(runtime_done)

/* A relative path without "." and ".." inside and without a slash at its end, from what people
 * write ("./data/", "data//x"). E_CONFIG naming what for any other. The caller frees *ret. */
int runtime_path(const char *text, const char *what, char **ret, struct err *err);

/* "USR1@90": a signal's name (with or without SIG) or number, and how long before the end. E_USAGE
 * with an example. */
int runtime_parse_signal(
	const char *text, int *ret_signal, int64_t *ret_before_ms, struct err *err);
/* "INT", with or without SIG, or a number; 0 for TERM. E_USAGE with an example. */
int runtime_parse_stop_signal(const char *text, int *ret, struct err *err);

#endif
