/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "app/doctor/doctor_checks.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "targets/target_list.h"

/*
 * Hosts of ssh targets: is there a login, and by what; can programs be run there.
 */

enum { ASK_MS = 7000, LINE_BYTES = 4096 };

static bool find_hosts(const struct doctor *doctor, struct target_list *ret, struct doctor_row *row)
{
	AUTO_ERR struct err fault = {0};

	if (target_list_clusters(doctor->session, ret, &fault) < 0) {
		doctor_found(row, "not looked at (see configuration)");
		return false;
	}
	vec_foreach (const struct target_item, item, &ret->items)
		if (item->ops->has_login)
			return true;
	doctor_found(row, "none is configured");
	return false;
}

/* The first row of the check is that of the first host. */
static struct doctor_row *host_row(struct doctor_row *row)
{
	return row->found ? doctor_row_add(row, row->id) : row;
}

static void judge_tools(const struct node_facts *facts, struct doctor_row *row)
{
	for (size_t i = 0; i < facts->missing.n; i++) {
		const char *needed = node_tool_needed(facts->missing.v[i]);
		doctor_blame(row, needed ? DOCTOR_PROBLEM : DOCTOR_WARNING, NULL,
			"%s is missing there", needed ? needed : facts->missing.v[i]);
	}
}

static void judge_launch(const struct node_facts *facts, struct doctor_row *row)
{
	if (str_eq(facts->launch, "nohup"))
		doctor_blame(row, DOCTOR_WARNING, NULL,
			"there is no setsid: programs may end with the login");
}

static void tell_host(
	const struct target_item *item, const struct node_look *look, struct doctor_row *row)
{
	AUTO_FREE char *text = node_look_text(look);
	const char *why = NULL;

	if (look->opened && look->opened->ssh)
		ssh_carrier(look->opened->ssh, &why);
	if (!look->facts) {
		doctor_found(row, "%s: %s", item->name, look->host);
		doctor_blame(row, DOCTOR_PROBLEM, look->fault.hint, "%s", text);
		return;
	}
	doctor_found(row, "%s: %s answers after %lld ms: %s; programs are started by %s%s%s",
		item->name, look->host, (long long)look->answer_ms, text, look->facts->launch,
		why ? "; " : "", why ? why : "");
	judge_tools(look->facts, row);
	judge_launch(look->facts, row);
}

int doctor_nodes(const struct doctor *doctor, struct doctor_row *row, struct err *err)
{
	AUTO_TARGET_LIST struct target_list list = {0};

	if (!find_hosts(doctor, &list, row))
		return 0;
	int r = target_list_ask_hosts(doctor->session, &list, ASK_MS, NULL, err);
	if (r < 0)
		return r;
	vec_foreach (const struct target_item, item, &list.items) {
		const struct err *fault = &item->look.fault;
		if (item->ops->has_login && err_is_set(fault)) {
			struct doctor_row *more = host_row(row);
			doctor_found(more, "%s", item->name);
			doctor_blame(more, DOCTOR_PROBLEM, fault->hint, "%s", fault->message);
		}
		for (size_t i = 0; i < item->hosts.n; i++)
			tell_host(item, &item->node_looks[i], host_row(row));
	}
	return 0;
}
