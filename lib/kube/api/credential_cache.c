/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/data/json.h"
#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/digest.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/api/credential_impl.h"

enum { CACHE_MAX = 2 * KUBE_PLUGIN_OUT_MAX };

/*
 * The name: everything that may decide for whom a credential is
 */

/* Each with its end, so that "a", "bc" is not "ab", "c". */
static void add(struct digest *digest, const char *text)
{
	digest_add(digest, text ? text : "", text ? strlen(text) + 1 : 1);
	digest_add(digest, text ? "+" : "-", 1);
}

static void add_list(struct digest *digest, const struct strv *list)
{
	for (size_t i = 0; i < list->n; i++)
		add(digest, list->v[i]);
	add(digest, NULL);
}

/* Differs from shell to shell and decides nothing. */
static bool is_passing(const char *pair)
{
	static const char *const names[] = {
		"_=", "PWD=", "OLDPWD=", "SHLVL=", "COLUMNS=", "LINES=", "WINDOWID=", "TERM",
		"COLORTERM=", "TMUX", "STY=", "WINDOW=", "SSH_", "VTE_", "XDG_SESSION_",
		"LS_COLORS=", "PS1=", "DISPLAY=", "WAYLAND_DISPLAY=", "GPG_TTY=", "KONSOLE_",
		"VSCODE_", "DLRUN_", "INVOCATION_ID=", "JOURNAL_STREAM="};

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (str_starts(pair, names[i]))
			return true;
	return false;
}

static int by_text(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* AWS_PROFILE, CLOUDSDK_…, HOME: all of it but what passes. */
static void add_env(struct digest *digest, const char *const *env)
{
	AUTO_STRV struct strv sorted = {0};

	for (; env && *env; env++)
		if (!is_passing(*env))
			strv_add(&sorted, *env);
	vec_sort(&sorted, by_text);
	add_list(digest, &sorted);
}

char *kube_cache_path(const struct kube_access *access, const struct kube_plugin_options *plugin)
{
	const struct kube_exec *exec = access->exec;
	AUTO_FREE char *cluster = kube_plugin_cluster(access);
	AUTO_DIGEST struct digest digest = {0};
	uint8_t sha256[SHA256_SIZE];
	char hex[SHA256_HEX_SIZE];

	if (!plugin->cache_dir)
		return NULL;
	digest_begin(&digest, DIGEST_SHA256);
	add(&digest, exec->command);
	add_list(&digest, &exec->args);
	add_list(&digest, &exec->env);
	add(&digest, exec->api_version);
	add(&digest, cluster);
	add(&digest, exec->provide_cluster_info ? "told" : NULL);
	add_env(&digest, plugin->env);
	digest_end(&digest, sha256);
	hex_encode(sha256, sizeof(sha256), hex);
	return mem_printf("%s/%s.json", plugin->cache_dir, hex);
}

/*
 * The file
 */

/* Whether the file is ours, and nobody else can have read or written it. */
static bool is_private(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
	       (st.st_mode & 077) == 0;
}

bool kube_cache_read(const char *path, struct kube_made *ret)
{
	AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	AUTO(kube_wipe_buf) struct buf text = {0};
	AUTO_JSON struct json *json = NULL;

	if (fd < 0 || !is_private(fd) || fs_read_fd(fd, path, CACHE_MAX, &text, NULL) < 0 ||
		json_parse(text.data, text.len, CACHE_MAX, "", &json, NULL) < 0)
		return false;
	const char *token = json_get_str(json, "token");
	const char *cert = json_get_str(json, "cert_pem"), *key = json_get_str(json, "key_pem");
	int64_t expires_ms = json_get_int(json, "expires_ms", 0);
	if ((!token && !cert) || !cert != !key ||
		expires_ms - KUBE_PLUGIN_MARGIN_MS <= clock_wall_ms())
		return false;
	*ret = (struct kube_made){.token = mem_strdup(token),
		.cert_pem = mem_strdup(cert),
		.key_pem = mem_strdup(key),
		.expires_ms = expires_ms};
	return true;
}

void kube_cache_write(const char *path, const struct kube_made *made)
{
	AUTO_FREE char *dir = mem_strndup(path, (size_t)(strrchr(path, '/') - path));
	AUTO_JSON struct json *json = json_object();
	AUTO(kube_wipe_buf) struct buf text = {0};

	if (made->expires_ms - KUBE_PLUGIN_MARGIN_MS <= clock_wall_ms() ||
		fs_private_dir(dir, NULL) < 0)
		return;
	if (made->token)
		json_set_str(json, "token", made->token);
	if (made->cert_pem) {
		json_set_str(json, "cert_pem", made->cert_pem);
		json_set_str(json, "key_pem", made->key_pem);
	}
	json_set_int(json, "expires_ms", made->expires_ms);
	buf_init(&text, CACHE_MAX);
	json_print(json, &text);
	if (!text.full)
		fs_replace(path, text.data, text.len, 0600, FS_SYNC_NONE, NULL);
}
