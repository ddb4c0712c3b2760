/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/commands/init_rbac.h"

#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/term/ui.h"
#include "kube/job/rbac.h"
#include "targets/target_list.h"

enum { LIMIT_MS = 3000, TEXT_MAX = 1 << 20 };

/* Placeholder, to be replaced with a name before the objects are applied. */
static const char nobody[] = "YOUR-USER-NAME";

static int find_tier(const char *name, enum kube_tier *ret, struct err *err)
{
	const char *names[KUBE_TIERS];
	const char *near;

	*ret = KUBE_TIERS - 1;
	if (!name)
		return 0;
	for (int i = 0; i < KUBE_TIERS; i++) {
		names[i] = kube_tier_name(i);
		*ret = i;
		if (str_eq(name, names[i]))
			return 0;
	}
	AUTO_FREE char *shown = str_shown(name);
	near = str_suggest(name, names, KUBE_TIERS);
	err_set(err, E_USAGE, "there is no role '%s': submit, logs, exec or secrets", shown);
	return err_hint(err, "dlrun init --rbac %s", near ? near : "secrets");
}

/*
 * The cluster
 */

static int first_cluster(struct session *session, struct strv *ret, struct err *err)
{
	AUTO_TARGET_LIST struct target_list list = {0};
	const char *name = NULL;
	int r = target_list_clusters(session, &list, err);

	vec_foreach (const struct target_item, item, &list.items)
		if (item->is_cluster && (!name || item->is_default))
			name = item->name;
	strv_add(ret, name ? name : "kube");
	return r;
}

/* The one item of list, queried as far as it responds. */
static int init_rbac_find_cluster(
	struct app *app, const char *target, struct target_list *list, struct err *err)
{
	AUTO_STRV struct strv wanted = {0};
	struct session *session;
	int r = app_session(app, &session, err);

	if (r == 0 && target)
		strv_add(&wanted, target);
	else if (r == 0)
		r = first_cluster(session, &wanted, err);
	if (r == 0)
		r = target_list_make(session, &wanted, list, err);
	if (r < 0)
		return r;
	if (!list->items.v[0].is_cluster) {
		AUTO_FREE char *shown = str_shown(wanted.v[0]);
		err_set(err, E_USAGE, "target %s is not a cluster, and needs no Role", shown);
		return err_hint(err, "dlrun targets");
	}
	app_catch_signals();
	list->items.v[0].poll.who = true;
	return target_list_query(session, list, true, LIMIT_MS, &app_interrupted, err);
}

/*
 * Subject of the rights
 */

/* words: of the caller's, to live as long as ret. */
static int find_subject(const char *text, const struct kube_poll *poll, char **ret_words,
	struct kube_rbac *ret, struct err *err)
{
	static const char *const kinds[] = {"User", "Group", "ServiceAccount"};

	ret->subject_kind = kinds[0];
	ret->subject = poll->user ? poll->user : nobody;
	if (!text)
		return 0;
	ret->subject = *ret_words = mem_strdup(text);
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
		size_t len = strlen(kinds[i]);
		if (strncmp(text, kinds[i], len) != 0 || text[len] != ':')
			continue;
		ret->subject_kind = kinds[i];
		ret->subject = *ret_words + len + 1;
	}
	if (*ret->subject)
		return 0;
	return err_set(err, E_USAGE, "--for needs a name: --for alice, --for Group:team");
}

/*
 * Output
 */

static int init_rbac_print_json(struct app *app, const struct kube_rbac *rbac, const char *text)
{
	struct json *json = app_json("rbac"), *lacks = json_array(), *subject;

	json_set_str(json, "role", kube_tier_name(rbac->tier));
	json_set_str(json, "tier", kube_tier_name(rbac->tier)); /* its name before */
	json_set_str(json, "namespace", rbac->kube_namespace);
	subject = json_sub(json, "subject");
	json_set_str(subject, "kind", rbac->subject_kind);
	json_set_str(subject, "name", rbac->subject);
	for (int i = (int)rbac->tier + 1; i < KUBE_TIERS; i++)
		json_add_str(lacks, kube_tier_lack(i));
	json_set(json, "lacks", lacks);
	json_set_str(json, "text", text);
	return app_print_json(app, json);
}

static void init_rbac_report(struct app *app, const struct kube_rbac *rbac)
{
	AUTO_FREE char *subject = ui_clean(rbac->subject);

	app_phase(app, "role", "%s in namespace %s, for %s %s", kube_tier_name(rbac->tier),
		rbac->kube_namespace, rbac->subject_kind, subject);
	for (int i = (int)rbac->tier + 1; i < KUBE_TIERS; i++)
		app_phase(app, i == (int)rbac->tier + 1 ? "lacks" : "", "%s (%s)",
			kube_tier_lack(i), kube_tier_name(i));
	if (!rbac->nodes)
		app_phase(app, rbac->tier + 1 == KUBE_TIERS ? "lacks" : "", "%s",
			"what fits on which node is not known before a submit (--cluster-role)");
	app_phase(app, "next", "whoever runs the cluster: kubectl apply -f ROLE.yaml");
}

static int init_rbac_print(struct app *app, const struct kube_rbac *rbac, struct err *err)
{
	AUTO_BUF struct buf text;

	buf_init(&text, TEXT_MAX);
	int r = kube_rbac_print(rbac, &text, err);
	if (r < 0)
		return r;
	if (app->options.json)
		return init_rbac_print_json(app, rbac, text.data);
	init_rbac_report(app, rbac);
	return ui_print(app, UI_OUT, text.data, text.len) < 0;
}

static int find_all(struct app *app, const struct init_rbac *wanted, struct target_list *list,
	char **words, struct kube_rbac *ret, struct err *err)
{
	struct target_item *item;
	int r = find_tier(wanted->tier, &ret->tier, err);

	if (r == 0)
		r = init_rbac_find_cluster(app, wanted->target, list, err);
	if (r < 0)
		return r;
	item = &list->items.v[0];
	ret->nodes = wanted->cluster_role;
	ret->kube_namespace = item->poll.cluster ? item->poll.cluster->access.kube_namespace
						 : item->kube_namespace;
	if (!ret->kube_namespace)
		return err_move(err, &item->poll.error);
	return find_subject(wanted->subject, &item->poll, words, ret, err);
}

int init_rbac(struct app *app, const struct init_rbac *wanted)
{
	AUTO_TARGET_LIST struct target_list list = {0};
	AUTO_ERR struct err err = {0};
	AUTO_FREE char *words = NULL;
	struct kube_rbac rbac = {0};
	int r = find_all(app, wanted, &list, &words, &rbac, &err);

	if (r == 0 && rbac.subject == nobody)
		app_warn(app, "write your user name in place of %s (or: --for NAME): %s", nobody,
			list.items.v[0].poll.error.message ? list.items.v[0].poll.error.message
							   : "the cluster does not tell it");
	if (r == 0)
		r = init_rbac_print(app, &rbac, &err);
	return r < 0 ? app_fail(app, &err) : r;
}
