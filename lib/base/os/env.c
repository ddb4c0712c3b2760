/* SPDX-License-Identifier: Apache-2.0 */
#include "base/os/env.h"

#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"

bool env_name_is_valid(const char *s, size_t len)
{
	static const char chars[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";

	return len > 0 && strspn(s, chars) >= len && (*s < '0' || *s > '9');
}

static bool env_names(const char *pair, const char *name, size_t len)
{
	return strncmp(pair, name, len) == 0 && pair[len] == '=';
}

void env_set(struct strv *env, const char *pair, bool keep)
{
	size_t len = strcspn(pair, "=");

	for (size_t i = 0; i < env->n; i++) {
		if (!env_names(env->v[i], pair, len))
			continue;
		if (!keep)
			REPLACE(env->v[i], mem_strdup(pair));
		return;
	}
	strv_add(env, pair);
}

void env_unset(struct strv *env, const char *name)
{
	size_t len = strlen(name), kept = 0;

	for (size_t i = 0; i < env->n; i++) {
		if (env_names(env->v[i], name, len))
			free(env->v[i]);
		else
			env->v[kept++] = env->v[i];
	}
	env->n = kept;
	if (env->v)
		env->v[kept] = NULL;
}

const char *env_get(const char *const *env, const char *name)
{
	size_t len = strlen(name);

	for (; env && *env; env++)
		if (env_names(*env, name, len))
			return *env + len + 1;
	return NULL;
}
