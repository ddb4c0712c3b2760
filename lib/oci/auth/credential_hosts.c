/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/auth/credential_hosts.h"

#include <string.h>

#include "base/data/json.h"
#include "base/os/fs.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "oci/auth/credential_secret.h"

enum { HOST_MAX = 512 };

/* "https://index.docker.io/v1/" is Docker Hub; "/v1/" and "/v2/" were written once for others. */
static char *host_of(const char *key)
{
	const char *at = strstr(key, "://");
	size_t len;

	at = at ? at + strlen("://") : key;
	len = strlen(at);
	while (len > 0 && at[len - 1] == '/')
		len--;
	if (len > 3 &&
		(strncmp(at + len - 3, "/v1", 3) == 0 || strncmp(at + len - 3, "/v2", 3) == 0))
		len -= 3;
	char *host = mem_strndup(at, len);
	if (!str_eq(host, "index.docker.io") && !str_eq(host, "registry-1.docker.io"))
		return host;
	free(host);
	return mem_strdup("docker.io");
}

static void add(const char *key, struct strv *ret)
{
	AUTO_FREE char *host = host_of(key);

	if (ret->n < CREDENTIAL_HOSTS_MAX && *host && strlen(host) < HOST_MAX &&
		str_is_plain(host) && !strpbrk(host, " @") && strv_find(ret, host) < 0)
		strv_add(ret, host);
}

static void add_keys(const struct json *map, struct strv *ret)
{
	if (map && json_kind(map) != JSON_OBJECT)
		return;
	for (const struct json *m = json_first(map); m; m = json_next(m))
		add(json_key(m), ret);
}

int credential_file_hosts(
	const char *text, size_t len, const char *what, struct strv *ret, struct err *err)
{
	AUTO_JSON struct json *json = NULL;
	int r = json_parse(text, len, CREDENTIAL_FILE_MAX, what, &json, err);

	if (r < 0)
		return r;
	add_keys(json_get(json, "auths"), ret);
	add_keys(json_get(json, "credHelpers"), ret);
	return 0;
}

static void read_in(const char *dir, const char *name, struct strv *ret)
{
	AUTO_SECRET_BUF struct buf text = {0};
	AUTO_FREE char *path = str_empty(dir) ? NULL : fs_join(dir, name);

	if (path && fs_read(path, CREDENTIAL_FILE_MAX, &text, NULL, NULL) == 0)
		credential_file_hosts(text.data, text.len, path, ret, NULL);
}

void credential_hosts(const struct credential_env *env, struct strv *ret)
{
	bool has_docker = !str_empty(env->docker_config),
	     has_xdg = !str_empty(env->xdg_config_home);

	if (!str_empty(env->registry_auth_file)) {
		read_in(".", env->registry_auth_file, ret);
		return;
	}
	read_in(has_docker ? env->docker_config : env->home,
		has_docker ? "config.json" : ".docker/config.json", ret);
	read_in(env->xdg_runtime_dir, "containers/auth.json", ret);
	read_in(has_xdg ? env->xdg_config_home : env->home,
		has_xdg ? "containers/auth.json" : ".config/containers/auth.json", ret);
}
