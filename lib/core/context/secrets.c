/* SPDX-License-Identifier: Apache-2.0 */
#include "core/context/secrets.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/record/foreign.h"

static int no_value(const char *name, const char *why, struct err *err)
{
	err_set(err, E_SECRET, "secret %s: %s", name, why);
	return err_hint(err, "read -rs %s && export %s   # asks for it, without echo", name, name);
}

static char *file_path(const struct secrets_source *source, const char *file)
{
	if (str_starts(file, "~/") && source->home)
		return fs_join(source->home, file + 2);
	return fs_join(source->dir, file);
}

static int check_value(const char *name, const struct buf *value, struct err *err)
{
	if (value->len == 0)
		return no_value(name, "its file is empty", err);
	if (memchr(value->data, '\0', value->len))
		return no_value(name, "its file holds a NUL byte, which no variable can", err);
	return 0;
}

static int secrets_read_file(const struct secrets_source *source, const char *name,
	const char *file, struct strv *ret, bool *ret_open, struct err *err)
{
	AUTO_FREE char *path = file_path(source, file);
	AUTO_BUF struct buf value = {0};
	struct stat st;

	int r = fs_read(path, SECRET_MAX, &value, NULL, err);
	if (r < 0)
		return err_prefix(err, "secret %s", name);
	if (value.len && value.data[value.len - 1] == '\n')
		buf_truncate(&value, value.len - 1);
	r = check_value(name, &value, err);
	if (r < 0)
		return r;
	if (ret_open && stat(path, &st) == 0)
		*ret_open = st.st_mode & 077;
	AUTO_FREE char *pair = mem_printf("%s=%s", name, value.data);
	env_set(ret, pair, false);
	memset(value.data, 0, value.len);
	return 0;
}

int secrets_read(const struct secrets_source *source, const char *item, struct strv *ret,
	bool *ret_open, struct err *err)
{
	size_t len = strcspn(item, "=");
	AUTO_FREE char *name = mem_strndup(item, len);
	const char *value;

	if (item[len]) {
		if (item[len + 1] == '@' && item[len + 2])
			return secrets_read_file(source, name, item + len + 2, ret, ret_open, err);
		/* A value would be in argv, where everybody sees it. */
		err_set(err, E_SECRET,
			"secret %s: other users can read a value on the command line", name);
		return err_hint(err, "read -rs %s && export %s   # asks for it; then: --secret %s",
			name, name, name);
	}
	value = env_get(source->env, name);
	if (!value)
		return no_value(name, "it is not set in this shell", err);
	AUTO_FREE char *pair = mem_printf("%s=%s", name, value);
	env_set(ret, pair, false);
	return 0;
}

struct secrets_source secrets_of_shell(const struct session *session)
{
	return (struct secrets_source){
		.env = session->env.env, .dir = session->env.cwd, .home = session->dirs.home};
}

struct secrets_source secrets_of_config(struct session *session, char **ret_dir)
{
	struct secrets_source source = secrets_of_shell(session);

	source.dir = *ret_dir = config_base_dir(session->config, "secrets", source.dir);
	return source;
}

/* "NAME=…" of name; NULL: there is none with more than a name. */
static const char *secrets_find_pair(const struct strv *pairs, const char *name)
{
	size_t len = strlen(name);

	for (size_t i = 0; pairs && i < pairs->n; i++)
		if (strncmp(pairs->v[i], name, len) == 0 && pairs->v[i][len] == '=')
			return pairs->v[i];
	return NULL;
}

/* Read the value as the configuration defines it now, as a secret or in `env:`; else from this
 * shell. */
static int secrets_read_again(const struct config *config, const struct secrets_source *source,
	const char *name, bool is_foreign, struct strv *ret)
{
	const char *item = secrets_find_pair(config_secrets(config), name);
	const char *pair = item ? NULL : secrets_find_pair(config_env(config), name);
	bool is_named = item || pair || strv_find(config_secrets(config), name) >= 0 ||
			strv_find(config_env(config), name) >= 0;

	/* Otherwise the author of the record would choose which values of this machine are sent to
	 * it. */
	if (strchr(name, '=') || (is_foreign && !is_named))
		return -1;
	if (!pair)
		return secrets_read(source, item ? item : name, ret, NULL, NULL);
	env_set(ret, pair, false);
	return 0;
}

int secrets_again(struct session *session, const struct run *run, const struct strv *names,
	struct strv *ret, struct strv *ret_missing, struct err *err)
{
	AUTO_FREE char *dir = NULL;
	struct config *config;

	if (names->n == 0)
		return 0;
	int r = session_config(session, &config, err);
	if (r < 0)
		return r;
	struct secrets_source source = secrets_of_config(session, &dir);
	for (size_t i = 0; i < names->n; i++)
		if (secrets_read_again(config, &source, names->v[i], foreign_is(run), ret) < 0)
			strv_add(ret_missing, names->v[i]);
	return 0;
}
