/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of `dlrun init` that is about clusters: what is found, asked, checked and missing.
 */
#ifndef DLRUN_CLI_COMMANDS_INIT_CLUSTER_H
#define DLRUN_CLI_COMMANDS_INIT_CLUSTER_H

#include <stdbool.h>

#include "app/init/init.h"
#include "cli/term/app.h"

/* Ask which context to use, on the terminal. *ret_no_more: the input has ended. */
int init_ask_cluster(struct app *app, const struct init_project *project,
	struct init_cluster_list *clusters, bool *ret_no_more, struct err *err);
/* Ask the clusters and report the rights there; a cluster that does not respond is no error. */
int init_check_clusters(struct app *app, struct init_cluster_list *clusters, struct err *err);
/* A base image with the command's interpreter; asks: the registry of the one that is there. */
void init_check_base(struct app *app, struct init_project *project,
	const struct init_answers *answers, bool asks);
/* Where images go: asked if asks, else only what could be said is told. *ret stays NULL then. */
int init_choose_registry(struct app *app, const struct init_project *project, bool asks, char **ret,
	struct err *err);
/* Report what has to be filled in before a run can be submitted. */
void init_say_missing(
	struct app *app, const struct init_project *project, const struct init_answers *answers);

#endif
