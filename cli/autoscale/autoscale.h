/* SPDX-License-Identifier: Apache-2.0 */
/* The parts that the words of `dlrun autoscale` share. */
#ifndef DLRUN_CLI_AUTOSCALE_AUTOSCALE_H
#define DLRUN_CLI_AUTOSCALE_AUTOSCALE_H

#include "app/autoscale/supply.h"
#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "cli/term/app.h"
#include "core/autoscale/settings.h"
#include "targets/kube/kube_open.h"

enum { SETTINGS_SIZE_MAX = 1 << 20, AUTOSCALE_INDENT = 4 /* of lines that a terminal breaks */ };

struct autoscale_values {
	const char *target, *settings, *groups, *snapshot, *save, *image;
	struct strv what_if;
	bool apply, once;
};

/* The cluster, and what --settings says; settings and supply are NULL without it. */
struct autoscale_place {
	const char *target;
	struct kube_cluster *cluster;
	struct scale_settings *settings;
	struct supply *supply;
};
void autoscale_place_done(struct autoscale_place *place);
#define AUTO_AUTOSCALE_PLACE AUTO(autoscale_place_done)
/* Signals are caught from then on. */
int autoscale_open(struct app *app, const struct autoscale_values *values,
	struct autoscale_place *ret, struct err *err);

/* Print the error as app_fail(): the exit status. Where a right is missing, its hint is the Role of
 * the manifest. */
int autoscale_fail(struct app *app, struct err *err);

/* `dlrun autoscale run`: the exit status. */
int autoscale_run(struct app *app, const struct autoscale_values *values);
/* `dlrun autoscale manifest`: the exit status. */
int autoscale_manifest(struct app *app, const struct autoscale_values *values);

#endif
