/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "app/autoscale/collect.h"
#include "base/os/fs.h"
#include "base/util/str.h"
#include "cli/autoscale/autoscale.h"

int autoscale_open(struct app *app, const struct autoscale_values *values,
	struct autoscale_place *ret, struct err *err)
{
	struct session *session;
	struct config *config;

	ERR_TRY(app_session(app, &session, err));
	ERR_TRY(session_config(session, &config, err));
	/* The configuration's default is this machine, which is none that anybody means here. */
	const char *target = values->target ? values->target : config_str(config, "target");
	if (!values->target && str_eq(target, "local"))
		target = "kube";
	ret->target = target;
	if (values->settings) {
		AUTO_BUF struct buf text = buf_with(SETTINGS_SIZE_MAX);
		ERR_TRY(fs_read(values->settings, SETTINGS_SIZE_MAX, &text, NULL, err));
		ERR_TRY(settings_parse(text.data, text.len, values->settings, &ret->settings, err));
		ERR_TRY(supply_open(
			session_loop(session), session->env.env, ret->settings, &ret->supply, err));
	}
	app_catch_signals();
	return collect_open(session, target, &ret->cluster, err);
}

void autoscale_place_done(struct autoscale_place *place)
{
	supply_free(place->supply);
	settings_free(place->settings);
}

int autoscale_fail(struct app *app, struct err *err)
{
	if (err->id == E_KUBE_DENIED) {
		free(TAKE(err->hint));
		err_hint(err,
			"dlrun autoscale manifest --image IMAGE   # prints the rights that it needs");
	}
	return app_fail(app, err);
}
