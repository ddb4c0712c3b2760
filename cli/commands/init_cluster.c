/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/commands/init_cluster.h"

#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/term/app.h"
#include "cli/term/ui.h"

enum { LIMIT_MS = 3000, NAMES_SHOWN = 6, TEXT_MAX = 64 << 10 };

static void add_names(const struct strv *names, size_t first, struct buf *out)
{
	for (size_t i = first; i < names->n && i < first + NAMES_SHOWN; i++) {
		AUTO_FREE char *shown = str_shown(names->v[i]);
		buf_addf(out, "%s%s", i > first ? ", " : "", shown);
	}
	if (names->n > first + NAMES_SHOWN)
		buf_addf(out, " and %zu more", names->n - first - NAMES_SHOWN);
}

/*
 * Choice of a cluster
 */

static bool is_no(const char *answer)
{
	return str_eq(answer, "n") || str_eq(answer, "N") || str_eq(answer, "no") ||
	       str_eq(answer, "none");
}

static bool is_yes(const char *answer)
{
	return !*answer || str_eq(answer, "y") || str_eq(answer, "Y") || str_eq(answer, "yes");
}

/* A context may be called "no", too. */
static const char *choose(const struct strv *contexts, const char *answer, bool *ret_none)
{
	ptrdiff_t at = strv_find(contexts, answer);

	*ret_none = at < 0 && is_no(answer);
	if (at >= 0)
		return contexts->v[at];
	return is_yes(answer) ? contexts->v[0] : NULL;
}

int init_ask_cluster(struct app *app, const struct init_project *project,
	struct init_cluster_list *clusters, bool *ret_no_more, struct err *err)
{
	AUTO_BUF struct buf question, answer;
	const char *context = NULL;
	bool none = false;
	int r = 1;

	buf_init(&question, TEXT_MAX);
	buf_init(&answer, ASK_ANSWER_MAX);
	if (project->contexts.n == 0)
		return 0;
	buf_adds(&question, "Run on the cluster of context ");
	add_names(&(struct strv){project->contexts.v, 1, 1}, 0, &question);
	buf_adds(&question, "? [Y/n");
	if (project->contexts.n > 1)
		buf_adds(&question, " or ");
	add_names(&project->contexts, 1, &question);
	buf_adds(&question, "]");
	for (int i = 0; i < ASK_TRIES_MAX && r > 0 && !context && !none; i++) {
		r = ask_line(app, question.data, &answer, err);
		if (r > 0)
			context = choose(&project->contexts, answer.data, &none);
	}
	*ret_no_more = r == 0;
	if (r < 0 || !context)
		return r < 0 ? r : 0;
	AUTO_FREE char *name = mem_printf("kube:%s", context);
	return init_cluster_add(&app->session, name, clusters, err);
}

/*
 * Rights in a cluster
 */

static void add_rights(
	const struct kube_look *look, enum kube_may wanted, const char *before, struct buf *out)
{
	bool any = false;

	for (int i = 0; i < KUBE_RIGHTS; i++) {
		if (look->rights[i] != wanted)
			continue;
		buf_addf(out, "%s%s", any ? ", " : before, kube_right_text(i));
		any = true;
	}
}

static void say_rights(struct app *app, const struct kube_look *look)
{
	AUTO_BUF struct buf may, may_not;

	buf_init(&may, TEXT_MAX);
	buf_init(&may_not, TEXT_MAX);
	add_rights(look, KUBE_MAY, "may ", &may);
	add_rights(look, KUBE_MAY_NOT, "may not ", &may_not);
	if (may.len)
		app_phase(app, "", "%s", may.data);
	if (may_not.len)
		app_phase(app, "", "%s%s", may_not.data,
			look->rights[KUBE_RIGHT_SUBMIT] == KUBE_MAY_NOT
				? ": dlrun init --rbac prints the Role to ask for"
				: "");
}

static void say_cluster(struct app *app, const struct init_cluster *cluster, bool first)
{
	const struct kube_look *look = &cluster->look;
	AUTO_FREE char *name = ui_clean(cluster->name);
	AUTO_FREE char *fault = ui_clean(look->fault.message ? look->fault.message : "");
	AUTO_FREE char *hint = look->fault.hint ? ui_clean(look->fault.hint) : NULL;
	const char *label = first ? "check" : "";

	if (!look->reached) {
		app_phase(app, label, "%s: not checked: %s", name, fault);
		if (hint)
			app_phase(app, "", "%s", hint);
		return;
	}
	AUTO_FREE char *space = ui_clean(look->cluster->access.kube_namespace);
	app_phase(app, label, "%s: %s, namespace %s%s", name, look->version, space,
		look->namespace_status == 404 ? ", which is not there" : "");
	say_rights(app, look);
	vec_foreach (char *, warning, &look->cluster->access.warnings)
		app_warn(app, "%s", *warning);
}

int init_check_clusters(struct app *app, struct init_cluster_list *clusters, struct err *err)
{
	app_catch_signals();
	int r = init_cluster_look(&app->session, clusters, LIMIT_MS, &app_interrupted, err);
	for (size_t i = 0; r == 0 && i < clusters->n; i++)
		say_cluster(app, &clusters->v[i], i == 0);
	return r;
}

void init_check_base(struct app *app, struct init_project *project,
	const struct init_answers *answers, bool asks)
{
	AUTO_FREE char *said = NULL;

	init_choose_base(&app->session, project, answers, asks ? LIMIT_MS : 0, &said);
	AUTO_FREE char *shown = said ? ui_clean(said) : NULL;
	if (shown)
		app_phase(app, "base", "%s", shown);
}

/*
 * Where images go
 */

static int ask_registry(struct app *app, const char *proposal, char **ret, struct err *err)
{
	AUTO_FREE char *question =
		mem_printf("Push images of runs to? [%s]", proposal ? proposal : "none");
	AUTO_BUF struct buf answer;
	AUTO_ERR struct err fault = {0};

	buf_init(&answer, ASK_ANSWER_MAX);
	for (int i = 0; i < ASK_TRIES_MAX; i++) {
		int r = ask_line(app, question, &answer, err);
		if (r < 0)
			return r;
		if (r == 0 || is_yes(answer.data)) {
			*ret = mem_strdup(proposal);
			return 0;
		}
		if (is_no(answer.data))
			return 0;
		if (init_check_repository(answer.data, &fault) == 0) {
			*ret = mem_strdup(answer.data);
			return 0;
		}
		app_note(app, "%s", fault.message);
		err_clear(&fault);
	}
	return 0;
}

int init_choose_registry(
	struct app *app, const struct init_project *project, bool asks, char **ret, struct err *err)
{
	AUTO_STRV struct strv hosts = {0};
	AUTO_FREE char *user = NULL, *proposal = NULL;
	AUTO_BUF struct buf names;

	buf_init(&names, TEXT_MAX);
	init_find_logins(&app->session, &hosts);
	if (hosts.n > 0) {
		user = init_login_user(&app->session, hosts.v[0], LIMIT_MS);
		proposal = init_repository(hosts.v[0], user, project->name);
		add_names(&hosts, 0, &names);
		app_phase(
			app, "found", "%s for %s", hosts.n == 1 ? "a login" : "logins", names.data);
	}
	if (proposal && init_check_repository(proposal, NULL) < 0) {
		free(proposal);
		proposal = NULL;
	}
	if (asks)
		return ask_registry(app, proposal, ret, err);
	if (proposal)
		app_phase(app, "", "--registry %s would write it down", proposal);
	return 0;
}

/*
 * Missing keys
 */

void init_say_missing(
	struct app *app, const struct init_project *project, const struct init_answers *answers)
{
	if (!answers->registry)
		app_phase(app, "missing", "registry: where images of runs are pushed to");
	if (!project->image)
		app_phase(app, answers->registry ? "missing" : "",
			"image: what the program runs in (or dlrun submit --image)");
}
