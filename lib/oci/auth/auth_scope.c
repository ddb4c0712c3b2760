/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/auth/auth_scope.h"

#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"

/* Where the actions begin: behind the last colon, because names may have a port. */
static const char *find_actions(const char *scope)
{
	const char *colon = strrchr(scope, ':');

	return colon ? colon + 1 : scope + strlen(scope);
}

static bool has_action(const char *actions, const char *action, size_t len)
{
	while (*actions) {
		size_t n = strcspn(actions, ",");

		if (n == len && memcmp(actions, action, len) == 0)
			return true;
		actions += n + (actions[n] != '\0');
	}
	return false;
}

static bool covers(const char *scope, const char *wanted)
{
	const char *have = find_actions(scope), *want = find_actions(wanted);

	if (have - scope != want - wanted || strncmp(scope, wanted, (size_t)(want - wanted)) != 0)
		return false;
	while (*want) {
		size_t n = strcspn(want, ",");

		if (!has_action(have, want, n))
			return false;
		want += n + (want[n] != '\0');
	}
	return true;
}

bool auth_scope_covers(const struct strv *scopes, const char *wanted)
{
	for (size_t i = 0; i < scopes->n; i++)
		if (covers(scopes->v[i], wanted))
			return true;
	return false;
}

static bool is_plain(const char *scope)
{
	for (; *scope; scope++)
		if (*scope <= ' ' || *scope >= 0x7f)
			return false;
	return true;
}

/* In the place of one that it has more actions than, or at the end. */
static bool put(struct strv *scopes, size_t max, const char *scope)
{
	for (size_t i = 0; i < scopes->n; i++) {
		if (!covers(scope, scopes->v[i]))
			continue;
		free(scopes->v[i]);
		scopes->v[i] = mem_strdup(scope);
		return true;
	}
	if (scopes->n >= max)
		return false;
	strv_add(scopes, scope);
	return true;
}

bool auth_scope_merge(struct strv *scopes, size_t max, const char *text)
{
	bool added = false;

	while (*text) {
		size_t len = strcspn(text, " ");
		AUTO_FREE char *scope = mem_strndup(text, len);

		text += len + (text[len] != '\0');
		if (len == 0 || len > AUTH_SCOPE_LEN_MAX || !is_plain(scope) ||
			auth_scope_covers(scopes, scope))
			continue;
		added |= put(scopes, max, scope);
	}
	return added;
}
