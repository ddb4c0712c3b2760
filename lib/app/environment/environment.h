/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Environments: what `setup:` makes, as a layer between the base image and the code of runs on
 * targets that take images from a registry. One is made for each key (setup_key.h: the line, its
 * key files, the base's digest, platform and workdir), by whoever needs it first, in a pod of the
 * run's own image (bake.h). It is the base with one layer more, tagged env-KEY in the repository of
 * the code, where all who push there find it; runs have it as their base, and run no setup.
 *
 * The layer has what the setup has changed outside of the tree, in its place; what it has made in
 * the tree is in KUBE_BAKED (kinds.h) and linked into the trees of runs. Owners are root, times
 * one; byte code, caches and empty directories are left out.
 *
 * A setup without key files, and one where that cannot be (no right to run commands in pods, an
 * image without the tools), is run in each pod, as is said; so is that of a run whose code comes
 * from an image (--from, one that was held here, or moved), and of a target without a registry.
 */
#ifndef DLRUN_APP_ENVIRONMENT_ENVIRONMENT_H
#define DLRUN_APP_ENVIRONMENT_ENVIRONMENT_H

#include "app/prepare/prepare.h"

/* submit_push (prepare.h), with the environment of the submit as the base, which is found or made
 * before, if it has any. May take as long as the setup; E_RUN_SETUP with its last lines, E_CANCELED
 * after SIGINT, SIGTERM or SIGHUP; of a failure nothing stays in the target. */
int environment_push(struct submit *submit, struct err *err);

/* Of a run that is kept here: warn that its setup will be run in each pod, if it has one. */
void environment_warn_held(struct submit *submit);

/* Strings are owned. */
struct environment_ahead {
	char *target;
	char *name;     /* its tag */
	char *ref;      /* of its image: "HOST/REPO@sha256:…" */
	uint64_t bytes; /* of its layer, as it travels */
	bool is_made;   /* else it was there */
	int64_t total_ms;
};

/* The environment that a submit with these options would find or make, without a run. The options
 * have a command, which nobody starts. E_TARGET_UNSUPPORTED: the target is not a cluster; E_CONFIG:
 * there is no setup, none with key files, or no registry. What a submit only warns of is an error.
 * Else as environment_push. */
int environment_make_ahead(struct session *session, const struct submit_options *options,
	const struct submit_events *events, struct environment_ahead *ret, struct err *err);
void environment_ahead_done(struct environment_ahead *ahead);
struct json *environment_ahead_json(const struct environment_ahead *ahead); /* dlrun/bake/v1 */

#endif
