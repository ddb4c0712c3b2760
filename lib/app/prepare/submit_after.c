/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "app/prepare/prepare.h"
#include "app/runs/after_check.h"
#include "app/runs/refresh.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/record/group.h"

/*
 * --after: the runs that this one begins after
 */

static bool submit_after_is_study(const struct run_list *runs, const char *group)
{
	return group && runs->n && str_eq(run_study(runs->v[0]), group);
}

/* A group is taken as it is now, since runs may join it that wait for this one. */
static int submit_after_add(
	struct submit *submit, const struct run_list *runs, bool any, struct err *err)
{
	for (size_t i = 0; i < runs->n; i++)
		after_add(&submit->after, run_id(runs->v[i]), false, any);
	if (submit->after.n <= AFTER_MAX)
		return 0;
	err_set(err, E_USAGE, "--after: %zu runs are more than %d", submit->after.n, AFTER_MAX);
	return err_hint(err, "a study counts as one");
}

static int submit_after_read(struct submit *submit, const char *word, struct err *err)
{
	const char *when = strrchr(word, ':');
	bool any = str_eq(when, ":any");
	AUTO_STRV struct strv words = {0};
	AUTO(run_list_done) struct run_list runs = {0};
	AUTO_FREE char *group = NULL;
	int r;

	if (!any && !str_eq(when, ":ok"))
		when = word + strlen(word);
	AUTO_FREE char *name = mem_strndup(word, (size_t)(when - word));
	if (!*name) {
		err_set(err, E_USAGE, "--after '%s' names no run", word);
		return err_hint(err, "--after @");
	}
	strv_add(&words, name);
	r = runs_find_all(submit->session, &words, &runs, &group, err);
	/* A run that has no record here gets one. */
	for (size_t i = 0; r == 0 && i < runs.n; i++)
		r = adopt_own(submit->session, runs.v[i], err);
	if (r < 0)
		return err_prefix(err, "--after");
	if (!submit_after_is_study(&runs, group))
		return submit_after_add(submit, &runs, any, err);
	after_add(&submit->after, group, true, any);
	return 0;
}

int submit_set_after(struct submit *submit, struct err *err)
{
	const struct strv *words = submit->options->after;
	AUTO_AFTER_CHECK struct after_check check = {0};
	int r = 0;

	for (size_t i = 0; r == 0 && words && i < words->n; i++)
		r = submit_after_read(submit, words->v[i], err);
	if (r == 0)
		r = after_check(submit->session, &submit->after, &check, err);
	if (r < 0)
		return r;
	after_done(&submit->spec.after);
	if (check.state == AFTER_NEVER) {
		err_set(err, E_RUN_AFTER, "%s", check.text);
		return err_hint(err, "--after %s:any begins after any end", check.named);
	}
	if (check.state == AFTER_MET)
		return 0;
	vec_foreach (struct after, after, &submit->after)
		after_add(&submit->spec.after, after->id, after->is_study, after->any);
	return 0;
}
