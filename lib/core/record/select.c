/* SPDX-License-Identifier: Apache-2.0 */
#include "core/record/select.h"

#include <string.h>
#include <time.h>

#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"

bool select_is_set(const struct select_rules *rules)
{
	return rules->group || rules->since_ms || (rules->tags && rules->tags->n);
}

/* A value of a tag is a string; what another program wrote is taken as it is. */
static bool has_tag(const struct run *run, const char *wanted)
{
	const struct json *tags = json_get(run->doc, "tags");
	const char *equals = strchr(wanted, '=');

	if (!equals)
		return json_get(tags, wanted);
	AUTO_FREE char *key = mem_strndup(wanted, (size_t)(equals - wanted));
	return str_eq(json_get_str(tags, key), equals + 1);
}

bool select_matches(const struct select_rules *rules, const struct run *run)
{
	if (rules->since_ms && run_submitted_ms(run) < rules->since_ms)
		return false;
	if (rules->group && !str_eq(json_get_str(run->doc, "group"), rules->group))
		return false;
	for (size_t i = 0; rules->tags && i < rules->tags->n; i++)
		if (!has_tag(run, rules->tags->v[i]))
			return false;
	return true;
}

void select_keep(const struct select_rules *rules, struct run_list *runs)
{
	size_t kept = 0;

	for (size_t i = 0; i < runs->n; i++) {
		if (select_matches(rules, runs->v[i]))
			runs->v[kept++] = runs->v[i];
		else
			run_free(runs->v[i]);
	}
	runs->n = kept;
}

/* A date that is not in the calendar comes back from mktime as another one. */
static bool parse_local(const char *text, int64_t *ret_ms)
{
	static const char *const forms[] = {
		"%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M:%S"};

	for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
		struct tm tm = {.tm_isdst = -1};
		const char *end = strptime(text, forms[i], &tm);
		int day = tm.tm_mday;
		if (!end || *end)
			continue;
		time_t seconds = mktime(&tm);
		if (seconds == (time_t)-1 || tm.tm_mday != day)
			return false;
		*ret_ms = (int64_t)seconds * 1000;
		return true;
	}
	return false;
}

int select_parse_since(const char *text, int64_t now_ms, int64_t *ret_ms, struct err *err)
{
	int64_t ago_ms;

	if (duration_parse(text, &ago_ms, NULL) == 0) {
		*ret_ms = now_ms - ago_ms > 1 ? now_ms - ago_ms : 1;
		return 0;
	}
	if (clock_parse(text, ret_ms, NULL) == 0 || parse_local(text, ret_ms))
		return 0;
	AUTO_FREE char *shown = str_shown(text);
	err_set(err, E_USAGE, "--since: '%s' is neither a duration nor a date", shown);
	return err_hint(err, "--since 7d, or --since 2026-08-01");
}
