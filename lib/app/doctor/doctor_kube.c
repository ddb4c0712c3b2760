/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "app/doctor/doctor_checks.h"
#include "base/loop/proc.h"
#include "base/os/env.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/registry_config.h"
#include "kube/api/credential.h"
#include "targets/target_list.h"

/*
 * Clusters: the kubeconfig, and what the targets of the configuration need of each.
 */

enum { LINE_BYTES = 64 << 10, SOON_MS = 15 * 60 * 1000 };
/* Less than the timeout of a check, so that the cause is reported. */
#define ASK_MS (DOCTOR_TIMEOUT_MS - 2000)

/* First evidence that does not merely describe the request, which does not matter here. */
static const char *evidence_of(const struct err *fault)
{
	for (size_t i = 0; i < fault->n_evidence; i++)
		if (!str_starts(fault->evidence[i], "cannot read ") &&
			!str_starts(fault->evidence[i], "cannot create ") &&
			!str_ends(fault->evidence[i], " tries"))
			return fault->evidence[i];
	return NULL;
}

static void blame_fault(struct doctor_row *row, enum doctor_status status, const struct err *fault)
{
	const char *evidence = evidence_of(fault);

	doctor_blame(row, status, fault->hint, "%s%s%s", fault->message, evidence ? ": " : "",
		evidence ? evidence : "");
}

/* Where the configuration is not valid its own row says so. */
static bool find_clusters(const struct doctor *doctor, struct target_list *ret, char **ret_why)
{
	AUTO_ERR struct err fault = {0};

	if (target_list_clusters(doctor->session, ret, &fault) == 0)
		return true;
	*ret_why = mem_printf("not looked at: %s", fault.message);
	return false;
}

static bool has_clusters(const struct target_list *list)
{
	vec_foreach (const struct target_item, item, &list->items)
		if (item->is_cluster)
			return true;
	return false;
}

/*
 * kubeconfig
 */

static void add_files(const struct kubeconfig *kubeconfig, struct buf *line)
{
	AUTO_STRV struct strv files = {0};

	kubeconfig_files(kubeconfig, &files);
	for (size_t i = 0; i < files.n; i++)
		buf_addf(line, "%s%s", i ? ", " : "", files.v[i]);
	if (files.n == 0)
		buf_adds(line, "none, this is a pod");
}

int doctor_kubeconfig(const struct doctor *doctor, struct doctor_row *row, struct err *err)
{
	AUTO_TARGET_LIST struct target_list list = {0};
	AUTO_STRV struct strv contexts = {0};
	AUTO_ERR struct err fault = {0};
	AUTO_BUF struct buf line = {0};
	AUTO_FREE char *why = NULL;
	const struct kubeconfig *kubeconfig;

	(void)err;
	bool needed = find_clusters(doctor, &list, &why) && has_clusters(&list);
	if (kube_open_config(doctor->session, &kubeconfig, &fault) < 0) {
		bool none = fault.id == E_KUBE_NO_CONFIG;
		doctor_found(row, none ? "none" : "not usable");
		if (!none || needed)
			blame_fault(row, needed ? DOCTOR_PROBLEM : DOCTOR_WARNING, &fault);
		return 0;
	}
	buf_init(&line, LINE_BYTES);
	add_files(kubeconfig, &line);
	kubeconfig_contexts(kubeconfig, &contexts);
	const char *current = kubeconfig_current(kubeconfig);
	buf_addf(&line, ": %zu %s, %s%s", contexts.n, contexts.n == 1 ? "context" : "contexts",
		current ? current : "none", " is current");
	doctor_found(row, "%s", line.data);
	return 0;
}

/*
 * A single cluster
 */

struct subject {
	const struct doctor *doctor;
	const struct target_item *item;
	const struct kube_look *look;
	const struct kube_access *access; /* NULL: the context leads nowhere */
};

static void tell_server(const struct subject *about, struct doctor_row *row)
{
	const struct kube_look *look = about->look;
	const struct kube_access *access = about->access;
	char time[32];

	if (!access) {
		doctor_found(row, "%s: not usable", about->item->name);
		blame_fault(row, DOCTOR_PROBLEM, &look->fault);
		return;
	}
	AUTO_FREE char *url = url_text(&access->server);
	AUTO_FREE char *answer = look->reached
					 ? mem_printf("%s, answers in %s",
						   look->version ? look->version : "no version",
						   duration_text(look->answer_ms, time))
					 : mem_strdup("does not answer us");
	doctor_found(row, "%s: context %s, namespace %s, %s, %s", about->item->name,
		access->context, access->kube_namespace, url, answer);
	if (!look->reached)
		blame_fault(row, DOCTOR_PROBLEM, &look->fault);
	if (look->namespace_status == 404) {
		AUTO_FREE char *fix = mem_printf("kubectl --context %s create namespace %s",
			access->context, access->kube_namespace);
		doctor_blame(row, DOCTOR_PROBLEM, fix, "the cluster has no namespace %s",
			access->kube_namespace);
	}
}

static void tell_warnings(const struct subject *about, struct doctor_row *row)
{
	for (size_t i = 0; i < about->access->warnings.n; i++) {
		struct doctor_row *more = doctor_row_add(row, "cluster-safety");
		doctor_found(more, "%s: not safe", about->item->name);
		doctor_blame(more, DOCTOR_WARNING, NULL, "%s", about->access->warnings.v[i]);
	}
}

void doctor_judge_expiry(struct doctor_row *row, int64_t expiry_ms, int64_t now_ms)
{
	static const char fix[] = "log in to the cluster again, then: dlrun doctor";
	char time[32];

	if (expiry_ms > 0 && expiry_ms <= now_ms)
		doctor_blame(row, DOCTOR_PROBLEM, fix, "it has expired %s ago",
			duration_text(now_ms - expiry_ms, time));
	else if (expiry_ms > 0 && expiry_ms - now_ms < SOON_MS)
		doctor_blame(row, DOCTOR_WARNING, fix, "it expires in %s",
			duration_text(expiry_ms - now_ms, time));
}

static void tell_expiring(
	const struct subject *about, const char *what, int64_t expiry_ms, struct doctor_row *row)
{
	int64_t now_ms = clock_wall_ms();
	char time[32];

	if (expiry_ms > now_ms)
		doctor_found(row, "%s: %s, valid for %s", about->item->name, what,
			duration_text(expiry_ms - now_ms, time));
	else
		doctor_found(row, "%s: %s", about->item->name, what);
	doctor_judge_expiry(row, expiry_ms, now_ms);
}

static void tell_plugin(const struct subject *about, struct doctor_row *row)
{
	const struct kube_exec *exec = about->access->exec;
	const char *path = env_get(about->doctor->session->env.env, "PATH");
	AUTO_FREE char *found = proc_find(exec->command, path);

	doctor_found(row, "%s: %s %s", about->item->name, found ? "made by" : "no program",
		found ? found : exec->command);
	if (!found)
		doctor_blame(row, DOCTOR_PROBLEM, exec->install_hint,
			"%s, which logs in, is not installed", exec->command);
}

static void tell_login(const struct subject *about, struct doctor_row *row)
{
	const struct kube_access *access = about->access;

	if (access->token_file)
		tell_expiring(about, "a token in a file", 0, row);
	else if (access->token)
		tell_expiring(about, "a token", kube_expiry_token(access->token), row);
	else if (access->exec)
		tell_plugin(about, row);
	else if (access->cert_pem)
		tell_expiring(
			about, "a certificate", kube_expiry_certificate(access->cert_pem), row);
	else
		doctor_found(row, "%s: %s", about->item->name,
			access->username ? "a user name and password" : "none, anonymous");
}

static void list_rights(
	const struct kube_look *look, enum kube_may wanted, const char *before, struct buf *line)
{
	bool any = false;

	for (int i = 0; i < KUBE_RIGHTS; i++) {
		if (look->rights[i] != wanted)
			continue;
		buf_addf(line, "%s%s", any ? ", " : before, kube_right_text(i));
		any = true;
	}
}

/* Runs do without the others. */
static void blame_right(const struct subject *about, enum kube_right right, struct doctor_row *row)
{
	static const enum doctor_status bad[KUBE_RIGHTS] = {
		[KUBE_RIGHT_SUBMIT] = DOCTOR_PROBLEM,
		[KUBE_RIGHT_LOGS] = DOCTOR_WARNING,
		[KUBE_RIGHT_EXEC] = DOCTOR_WARNING,
		[KUBE_RIGHT_FORWARD] = DOCTOR_WARNING,
		[KUBE_RIGHT_EVENTS] = DOCTOR_WARNING,
	};
	AUTO_BUF struct buf fix = {0};

	if (about->look->rights[right] != KUBE_MAY_NOT || bad[right] == DOCTOR_OK)
		return;
	buf_init(&fix, LINE_BYTES);
	buf_addf(&fix, "dlrun init --rbac %s --target ", kube_right_tier(right));
	str_shell_quote(&fix, about->item->name);
	doctor_blame(row, bad[right], fix.data, "you may not %s in namespace %s",
		kube_right_text(right), about->access->kube_namespace);
}

static void tell_rights(const struct subject *about, struct doctor_row *row)
{
	AUTO_BUF struct buf line;

	buf_init(&line, LINE_BYTES);
	list_rights(about->look, KUBE_MAY, " may ", &line);
	list_rights(about->look, KUBE_MAY_NOT, line.len ? "; may not " : " may not ", &line);
	list_rights(
		about->look, KUBE_MAY_UNKNOWN, line.len ? "; not known: " : " not known: ", &line);
	doctor_found(row, "%s:%s", about->item->name, line.data);
	for (int i = 0; i < KUBE_RIGHTS; i++)
		blame_right(about, i, row);
}

/* The most that can be asked of a Secret whose contents nobody needs to see. */
static void judge_pull_secret(const struct subject *about, struct doctor_row *row)
{
	const struct kube_look *look = about->look;
	const char *space = about->access->kube_namespace;

	if (look->pull_secret_status == 404) {
		AUTO_FREE char *fix = mem_printf(
			"kubectl create secret docker-registry %s -n %s --docker-server=HOST "
			"--docker-username=USER --docker-password=…",
			look->pull_secret, space);
		doctor_blame(row, DOCTOR_PROBLEM, fix,
			"namespace %s has no Secret %s, with which nodes would pull images", space,
			look->pull_secret);
	} else if (look->pull_secret_type && !strstr(look->pull_secret_type, "docker")) {
		doctor_blame(row, DOCTOR_WARNING, NULL,
			"Secret %s is of type %s, nodes log in with kubernetes.io/dockerconfigjson",
			look->pull_secret, look->pull_secret_type);
	}
}

static void judge_queue(const struct subject *about, struct doctor_row *row)
{
	if (about->look->queue_status == 404)
		doctor_blame(row, DOCTOR_PROBLEM, "kubectl get localqueues",
			"namespace %s has no queue %s", about->access->kube_namespace,
			about->look->queue);
}

static const char *pull_secret_state(const struct kube_look *look)
{
	return look->pull_secret_status == 404   ? ", which is missing"
	       : look->pull_secret_status == 200 ? ""
						 : ", not looked at";
}

static void tell_pods(const struct subject *about, struct doctor_row *row)
{
	const struct kube_look *look = about->look;
	AUTO_REGISTRY_CONFIG struct registry_config registry = {0};
	AUTO_ERR struct err fault = {0};
	AUTO_BUF struct buf line;
	struct config *config;
	int r = session_config(about->doctor->session, &config, &fault);

	if (r == 0)
		r = registry_config_find(config, about->item->name, &registry, &fault);
	buf_init(&line, LINE_BYTES);
	buf_addf(&line, "%s: Pod Security %s", about->item->name,
		look->enforced ? look->enforced : "not known");
	buf_addf(&line, ", images of %s", r > 0 ? registry.pull : "no registry");
	if (look->pull_secret)
		buf_addf(&line, ", pull secret %s%s", look->pull_secret, pull_secret_state(look));
	else
		buf_adds(&line, ", no pull secret");
	if (look->queue)
		buf_addf(&line, ", queue %s", look->queue);
	doctor_found(row, "%s", line.data);
	if (r < 0)
		blame_fault(row, DOCTOR_WARNING, &fault);
	else if (r == 0)
		doctor_blame(row, DOCTOR_PROBLEM, "registry: HOST/REPO   # in dlrun.yaml",
			"runs cannot be sent: no registry is set");
	judge_pull_secret(about, row);
	judge_queue(about, row);
}

/*
 * All of them
 */

/* The first row of the check is that of the first cluster. */
static struct doctor_row *server_row(struct doctor_row *row)
{
	return row->found ? doctor_row_add(row, row->id) : row;
}

static void tell(
	const struct doctor *doctor, const struct target_item *item, struct doctor_row *row)
{
	struct subject about = {.doctor = doctor, .item = item, .look = &item->look};
	const struct kube_cluster *cluster = item->look.cluster;

	about.access = cluster ? &cluster->access : NULL;
	tell_server(&about, server_row(row));
	if (!cluster)
		return;
	tell_warnings(&about, row);
	tell_login(&about, doctor_row_add(row, "cluster-login"));
	if (!item->look.reached)
		return;
	tell_rights(&about, doctor_row_add(row, "cluster-rights"));
	tell_pods(&about, doctor_row_add(row, "cluster-pods"));
}

int doctor_clusters(const struct doctor *doctor, struct doctor_row *row, struct err *err)
{
	AUTO_TARGET_LIST struct target_list list = {0};
	AUTO_FREE char *why = NULL;
	AUTO_ERR struct err fault = {0};
	const struct kubeconfig *kubeconfig;

	if (!find_clusters(doctor, &list, &why)) {
		doctor_found(row, "%s", why);
		return 0;
	}
	if (!has_clusters(&list)) {
		doctor_found(row, "none is configured");
		return 0;
	}
	if (kube_open_config(doctor->session, &kubeconfig, &fault) < 0) {
		doctor_found(row, "not looked at (see kubeconfig)");
		return 0;
	}
	int r = target_list_ask(doctor->session, &list, true, ASK_MS, NULL, err);
	if (r < 0)
		return r;
	vec_foreach (const struct target_item, item, &list.items)
		if (item->is_cluster)
			tell(doctor, item, row);
	return 0;
}
