/* SPDX-License-Identifier: Apache-2.0 */
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "app/init/init.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"
#include "cli/term/ui.h"
#include "kube/job/rbac.h"
#include "targets/target_list.h"

enum {
	DATA_SHOWN = 3,
	LIMIT_MS = 3000,
	NAMES_SHOWN = 6,
	TEXT_MAX = 64 << 10,
	RBAC_TEXT_MAX = 1 << 20,
};

struct init_values {
	bool force, print, yes, rbac, cluster_role;
	const char *registry, *subject;
	struct strv targets;
};

static const struct opt opts[] = {
	{OPT_MEMBER(OPT_FLAG, 0, "force", struct init_values, force),
		.help = "Replace a dlrun.yaml; the old one becomes dlrun.yaml~"},
	{OPT_MEMBER(OPT_FLAG, 0, "print", struct init_values, print),
		.help = "Print what would be written, and write nothing"},
	{OPT_MEMBER(OPT_FLAG, 'y', "yes", struct init_values, yes),
		.help = "Ask nothing (so it is without a terminal)"},
	{OPT_MEMBER(OPT_LIST, 't', "target", struct init_values, targets), .arg = "T",
		.help = "Write this cluster as a target: kube[:CONTEXT[/NAMESPACE]]",
		.values = VALUE_TARGET},
	{OPT_MEMBER(OPT_STRING, 0, "registry", struct init_values, registry), .arg = "HOST/REPO",
		.help = "Write it as the place that images of runs are pushed to"},
	{OPT_MEMBER(OPT_FLAG, 0, "rbac", struct init_values, rbac),
		.help = "Print the Kubernetes Role (submit, logs, exec or secrets), and "
			"write nothing"},
	{OPT_MEMBER(OPT_STRING, 0, "for", struct init_values, subject), .arg = "NAME",
		.help = "With --rbac: who gets it: NAME, Group:NAME, ServiceAccount:NAME"},
	{OPT_MEMBER(OPT_FLAG, 0, "cluster-role", struct init_values, cluster_role),
		.help = "With --rbac: also a ClusterRole that lets nodes be listed"},
	{OPT_END},
};

/*
 * `dlrun init --rbac`: the Role to request from the administrator of a cluster
 */

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
	AUTO_BUF struct buf text = buf_with(RBAC_TEXT_MAX);

	int r = kube_rbac_print(rbac, &text, err);
	if (r < 0)
		return r;
	if (app->options.json)
		return init_rbac_print_json(app, rbac, text.data);
	init_rbac_report(app, rbac);
	return ui_print(app, UI_OUT, text.data, text.len) < 0;
}

/* tier: NULL: the one that holds all. */
static int find_all(struct app *app, const struct init_values *values, const char *tier,
	struct target_list *list, char **words, struct kube_rbac *ret, struct err *err)
{
	struct target_item *item;
	int r = find_tier(tier, &ret->tier, err);

	if (r == 0)
		r = init_rbac_find_cluster(
			app, values->targets.n ? values->targets.v[0] : NULL, list, err);
	if (r < 0)
		return r;
	item = &list->items.v[0];
	ret->nodes = values->cluster_role;
	ret->kube_namespace = item->poll.cluster ? item->poll.cluster->access.kube_namespace
						 : item->kube_namespace;
	if (!ret->kube_namespace)
		return err_move(err, &item->poll.error);
	return find_subject(values->subject, &item->poll, words, ret, err);
}

/* Returns the exit status. */
static int init_rbac(struct app *app, const struct init_values *values, const char *tier)
{
	AUTO_TARGET_LIST struct target_list list = {0};
	AUTO_ERR struct err err = {0};
	AUTO_FREE char *words = NULL;
	struct kube_rbac rbac = {0};
	int r = find_all(app, values, tier, &list, &words, &rbac, &err);

	if (r == 0 && rbac.subject == nobody)
		app_warn(app, "write your user name in place of %s (or: --for NAME): %s", nobody,
			list.items.v[0].poll.error.message ? list.items.v[0].poll.error.message
							   : "the cluster does not tell it");
	if (r == 0)
		r = init_rbac_print(app, &rbac, &err);
	return r < 0 ? app_fail(app, &err) : r;
}

/*
 * Prompts
 */

static int cmd_init_prompt_command(
	struct app *app, const struct init_project *project, char **ret_answer, struct err *err)
{
	AUTO_BUF struct buf question = buf_with(TEXT_MAX), answer = buf_with(PROMPT_ANSWER_MAX);
	AUTO_FREE char *first = NULL;

	buf_adds(&question, "What runs?");
	for (size_t i = 0; i < project->commands.n; i++) {
		AUTO_FREE char *text = init_command_text(&project->commands.v[i]);
		buf_addf(&question, i ? " or %s" : " [%s]", text);
		if (i == 0)
			first = TAKE(text);
	}
	int r = prompt_line(app, question.data, &answer, err);
	if (r <= 0 || answer.len == 0 || str_eq(answer.data, first))
		return r;
	if (answer.full || !str_is_utf8(answer.data, answer.len))
		return err_set(err, E_USAGE, "the answer cannot be written as text");
	*ret_answer = buf_take(&answer);
	return 1;
}

static int cmd_init_prompt_data(
	struct app *app, const struct init_project *project, bool *ret_no, struct err *err)
{
	AUTO_BUF struct buf question = buf_with(TEXT_MAX);
	bool yes;

	buf_adds(&question, "Let runs use ");
	for (size_t i = 0; i < project->data.n && i < DATA_SHOWN; i++) {
		AUTO_FREE char *shown = str_shown(project->data.v[i].path);
		buf_addf(&question, "%s%s", i ? ", " : "", shown);
	}
	if (project->data.n > DATA_SHOWN)
		buf_addf(&question, " and %zu more", project->data.n - DATA_SHOWN);
	buf_adds(&question, ", which git ignores?");
	int r = prompt_yes(app, question.data, true, &yes, err);
	*ret_no = !yes;
	return r;
}

/* command: storage of answers->command. Stops asking at the end of the input. */
static int cmd_init_prompt_all(struct app *app, const struct init_project *project,
	struct init_answers *answers, char **command, struct err *err)
{
	app_catch_signals();
	int r = cmd_init_prompt_command(app, project, command, err);
	answers->command = *command;
	if (r > 0 && !str_eq(project->prefix, ".")) {
		AUTO_FREE char *shown = str_shown(project->prefix);
		AUTO_FREE char *question =
			mem_printf("Send only %s, not the whole repository?", shown);
		r = prompt_yes(app, question, false, &answers->limit_paths, err);
	}
	if (r > 0 && project->data.n)
		r = cmd_init_prompt_data(app, project, &answers->no_data, err);
	answers->no_more = r == 0;
	return r < 0 ? r : 0;
}

static void cmd_init_add_names(const struct strv *names, size_t first, struct buf *out)
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

static bool cmd_init_is_no(const char *answer)
{
	return str_is_word_of(answer, "n N no none");
}

static bool cmd_init_is_yes(const char *answer)
{
	return !*answer || str_is_word_of(answer, "y Y yes");
}

/* A context may be called "no", too. */
static const char *cmd_init_choose(const struct strv *contexts, const char *answer, bool *ret_none)
{
	ptrdiff_t at = strv_find(contexts, answer);

	*ret_none = at < 0 && cmd_init_is_no(answer);
	if (at >= 0)
		return contexts->v[at];
	return cmd_init_is_yes(answer) ? contexts->v[0] : NULL;
}

static int cmd_init_prompt_cluster(struct app *app, const struct init_project *project,
	struct init_cluster_list *clusters, bool *ret_no_more, struct err *err)
{
	AUTO_BUF struct buf question = buf_with(TEXT_MAX), answer = buf_with(PROMPT_ANSWER_MAX);
	const char *context = NULL;
	bool none = false;
	int r = 1;

	if (project->contexts.n == 0)
		return 0;
	buf_adds(&question, "Run on the cluster of context ");
	cmd_init_add_names(&(struct strv){project->contexts.v, 1, 1}, 0, &question);
	buf_adds(&question, "? [Y/n");
	if (project->contexts.n > 1)
		buf_adds(&question, " or ");
	cmd_init_add_names(&project->contexts, 1, &question);
	buf_adds(&question, "]");
	for (int i = 0; i < PROMPT_TRIES_MAX && r > 0 && !context && !none; i++) {
		r = prompt_line(app, question.data, &answer, err);
		if (r > 0)
			context = cmd_init_choose(&project->contexts, answer.data, &none);
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

static void print_rights(struct app *app, const struct kube_poll *poll)
{
	AUTO_BUF struct buf may = buf_with(TEXT_MAX), may_not = buf_with(TEXT_MAX);

	kube_poll_add_rights(poll, KUBE_MAY, "may ", &may);
	kube_poll_add_rights(poll, KUBE_MAY_NOT, "may not ", &may_not);
	if (may.len)
		app_phase(app, "", "%s", may.data);
	if (may_not.len)
		app_phase(app, "", "%s%s", may_not.data,
			poll->rights[KUBE_RIGHT_SUBMIT] == KUBE_MAY_NOT
				? ": dlrun init --rbac prints the Role to ask for"
				: "");
}

static void cmd_init_print_cluster(struct app *app, const struct init_cluster *cluster, bool first)
{
	const struct kube_poll *poll = &cluster->poll;
	AUTO_FREE char *name = ui_clean(cluster->name);
	AUTO_FREE char *error = ui_clean(poll->error.message ? poll->error.message : "");
	AUTO_FREE char *hint = poll->error.hint ? ui_clean(poll->error.hint) : NULL;
	const char *label = first ? "check" : "";

	if (!poll->reached) {
		app_phase(app, label, "%s: not checked: %s", name, error);
		if (hint)
			app_phase(app, "", "%s", hint);
		return;
	}
	AUTO_FREE char *space = ui_clean(poll->cluster->access.kube_namespace);
	app_phase(app, label, "%s: %s, namespace %s%s", name, poll->version, space,
		poll->namespace_status == 404 ? ", which is not there" : "");
	print_rights(app, poll);
	vec_foreach (char *, warning, &poll->cluster->access.warnings)
		app_warn(app, "%s", *warning);
}

static int init_check_clusters(struct app *app, struct init_cluster_list *clusters, struct err *err)
{
	app_catch_signals();
	int r = init_cluster_probe(&app->session, clusters, LIMIT_MS, &app_interrupted, err);
	for (size_t i = 0; r == 0 && i < clusters->n; i++)
		cmd_init_print_cluster(app, &clusters->v[i], i == 0);
	return r;
}

static void init_check_base(struct app *app, struct init_project *project,
	const struct init_answers *answers, bool prompts)
{
	AUTO_FREE char *said = NULL;

	init_choose_base(&app->session, project, answers, prompts ? LIMIT_MS : 0, &said);
	AUTO_FREE char *shown = said ? ui_clean(said) : NULL;
	if (shown)
		app_phase(app, "base", "%s", shown);
}

/*
 * Where images go
 */

static int cmd_init_prompt_registry(
	struct app *app, const char *proposal, char **ret, struct err *err)
{
	AUTO_FREE char *question =
		mem_printf("Push images of runs to? [%s]", proposal ? proposal : "none");
	AUTO_BUF struct buf answer = buf_with(PROMPT_ANSWER_MAX);
	AUTO_ERR struct err error = {0};

	for (int i = 0; i < PROMPT_TRIES_MAX; i++) {
		int r = prompt_line(app, question, &answer, err);
		if (r < 0)
			return r;
		if (r == 0 || cmd_init_is_yes(answer.data)) {
			*ret = mem_strdup(proposal);
			return 0;
		}
		if (cmd_init_is_no(answer.data))
			return 0;
		if (init_check_repository(answer.data, &error) == 0) {
			*ret = mem_strdup(answer.data);
			return 0;
		}
		app_note(app, "%s", error.message);
		err_clear(&error);
	}
	return 0;
}

static int init_choose_registry(struct app *app, const struct init_project *project, bool prompts,
	char **ret, struct err *err)
{
	AUTO_STRV struct strv hosts = {0};
	AUTO_FREE char *user = NULL, *proposal = NULL;
	AUTO_BUF struct buf names = buf_with(TEXT_MAX);

	init_find_logins(&app->session, &hosts);
	if (hosts.n > 0) {
		user = init_login_user(&app->session, hosts.v[0], LIMIT_MS);
		proposal = init_repository(hosts.v[0], user, project->name);
		cmd_init_add_names(&hosts, 0, &names);
		app_phase(
			app, "found", "%s for %s", hosts.n == 1 ? "a login" : "logins", names.data);
	}
	if (proposal && init_check_repository(proposal, NULL) < 0)
		free(TAKE(proposal));
	if (prompts)
		return cmd_init_prompt_registry(app, proposal, ret, err);
	if (proposal)
		app_phase(app, "", "--registry %s would write it down", proposal);
	return 0;
}

/*
 * Missing keys
 */

static void init_print_missing(
	struct app *app, const struct init_project *project, const struct init_answers *answers)
{
	if (!answers->registry)
		app_phase(app, "missing", "registry: where images of runs are pushed to");
	if (!project->image)
		app_phase(app, answers->registry ? "missing" : "",
			"image: what the program runs in (or dlrun submit --image)");
}

/*
 * Output
 */

static size_t count_lines(const char *text)
{
	size_t n = 0;

	for (; *text; text++)
		n += *text == '\n';
	return n;
}

static int cmd_init_print_json(
	struct app *app, const char *path, const char *text, bool written, bool kept)
{
	struct json *json = app_json("init");
	AUTO_FREE char *backup = kept ? mem_printf("%s~", path) : NULL;

	json_set_str(json, "path", path);
	json_set_bool(json, "written", written);
	json_set_str(json, "kept", backup);
	json_set_str(json, "text", text);
	return app_print_json(app, json);
}

static int print_written(struct app *app, const struct init_project *project,
	const struct init_answers *answers, const char *path, const char *text, bool kept)
{
	bool has_command = project->commands.n || answers->command;

	app_phase(app, "wrote", "%s (%zu lines)", path, count_lines(text));
	if (kept)
		app_phase(app, "", "the old one is kept as %s~", path);
	if (answers->clusters->n > 0)
		init_print_missing(app, project, answers);
	app_phase(app, "next", has_command ? "dlrun submit" : "dlrun submit -- PROGRAM");
	return app->options.json ? cmd_init_print_json(app, path, text, true, kept) : 0;
}

static int cmd_init_print_text(struct app *app, const char *path, const struct buf *text)
{
	if (app->options.json)
		return cmd_init_print_json(app, path, text->data, false, false);
	return ui_print(app, UI_OUT, text->data, text->len) < 0;
}

static bool cmd_init_may_prompt(const struct app *app, const struct init_values *values)
{
	return !values->yes && !values->print && !app->options.json && !app->options.quiet &&
	       app->err_tty && isatty(STDIN_FILENO);
}

static int choose_clusters(struct app *app, const struct init_values *values,
	const struct init_project *project, struct init_answers *answers,
	struct init_cluster_list *clusters, struct err *err)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < values->targets.n; i++)
		r = init_cluster_add(&app->session, values->targets.v[i], clusters, err);
	if (r == 0 && values->targets.n == 0 && cmd_init_may_prompt(app, values) &&
		!answers->no_more)
		r = cmd_init_prompt_cluster(app, project, clusters, &answers->no_more, err);
	answers->clusters = clusters;
	return r;
}

/* registry: storage of answers->registry. */
static int choose_places(struct app *app, const struct init_values *values,
	struct init_project *project, struct init_answers *answers,
	struct init_cluster_list *clusters, char **registry, struct err *err)
{
	int r = values->registry ? init_check_repository(values->registry, err) : 0;

	if (r == 0)
		r = choose_clusters(app, values, project, answers, clusters, err);
	answers->registry = values->registry;
	if (r < 0 || clusters->n == 0)
		return r;
	init_check_base(app, project, answers, !values->print);
	if (values->print)
		return 0;
	r = init_check_clusters(app, clusters, err);
	if (r < 0 || values->registry)
		return r;
	bool prompts = cmd_init_may_prompt(app, values) && !answers->no_more;
	r = init_choose_registry(app, project, prompts, registry, err);
	answers->registry = *registry;
	return r;
}

static int cmd_init_write_file(struct app *app, const struct init_values *values,
	struct init_project *project, struct err *err)
{
	AUTO_FREE char *path = fs_join(project->dir, CONFIG_FILE);
	AUTO_FREE char *command = NULL, *registry = NULL;
	AUTO_INIT_CLUSTERS struct init_cluster_list clusters = {0};
	AUTO_BUF struct buf text = buf_with(INIT_TEXT_MAX);
	struct init_answers answers = {0};
	bool kept = false;
	int r = 0;

	if (!values->print && !values->force)
		r = init_check_free(project->dir, err);
	if (r == 0 && cmd_init_may_prompt(app, values))
		r = cmd_init_prompt_all(app, project, &answers, &command, err);
	if (r == 0)
		r = choose_places(app, values, project, &answers, &clusters, &registry, err);
	if (r < 0)
		return r;
	init_text(project, &answers, &text);
	if (values->print)
		return cmd_init_print_text(app, path, &text);
	r = init_put(project->dir, text.data, values->force, &kept, err);
	return r < 0 ? r : print_written(app, project, &answers, path, text.data, kept);
}

static int cmd_init_check_words(
	const struct init_values *values, const struct strv *words, struct err *err)
{
	if (words->n > 0 && !values->rbac) {
		err_set(err, E_USAGE, "dlrun init: an argument requires --rbac");
		return err_hint(err, "dlrun init --rbac submit");
	}
	if (values->rbac && values->targets.n > 1)
		return err_set(err, E_USAGE, "--rbac takes one --target");
	if (values->rbac || (!values->subject && !values->cluster_role))
		return 0;
	return err_set(err, E_USAGE, "--for and --cluster-role require --rbac");
}

static int cmd_init_run(struct app *app, void *values_ptr, struct strv *words)
{
	const struct init_values *values = values_ptr;
	AUTO_ERR struct err err = {0};
	AUTO_INIT_PROJECT struct init_project *project = NULL;
	struct session *session;

	if (cmd_init_check_words(values, words, &err) < 0)
		return app_fail(app, &err);
	if (values->rbac)
		return init_rbac(app, values, words->n ? words->v[0] : NULL);
	if (app_session(app, &session, &err) < 0 || init_project_read(session, &project, &err) < 0)
		return app_fail(app, &err);
	vec_foreach (char *, note, &project->notes)
		app_warn(app, "%s", *note);
	int r = cmd_init_write_file(app, values, project, &err);
	return r < 0 ? app_fail(app, &err) : r;
}

const struct cmd cmd_init = {
	.name = "init",
	.summary = "Write a first dlrun.yaml from the project's files",
	.synopsis = "[options] [ROLE]",
	.examples = {"dlrun init # look at the project and write dlrun.yaml",
		"dlrun init --target kube --registry registry.example.com/me/dlrun # with a cluster",
		"dlrun init --rbac logs # the Role to ask for, to run and to read logs"},
	.opts = opts,
	.values_size = sizeof(struct init_values),
	.max_words = 1,
	.run = cmd_init_run,
};
