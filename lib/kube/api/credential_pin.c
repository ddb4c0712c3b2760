/* SPDX-License-Identifier: Apache-2.0 */
#include <grp.h>
#include <pwd.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/data/json.h"
#include "base/os/fs.h"
#include "base/util/digest.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/api/credential_impl.h"

/* {"FILE of the kubeconfig": {"USER": "SHA-256 of the program and its words"}} */

enum { PINS_SIZE_MAX = 1 << 20, PINS_FILES_MAX = 1000 };

static void hash_entry(const struct kube_exec *exec, char hex[static SHA256_HEX_SIZE])
{
	AUTO_DIGEST struct digest digest = {0};
	AUTO_JSON struct json *words = json_array();
	AUTO_BUF struct buf text;
	uint8_t sha256[SHA256_SIZE];

	json_add_str(words, exec->command);
	json_add_strv(words, &exec->args);
	json_add_str(words, "env");
	json_add_strv(words, &exec->env);
	json_add_str(words, exec->api_version);
	buf_init(&text, PINS_SIZE_MAX);
	json_print(words, &text);
	digest_begin(&digest, DIGEST_SHA256);
	digest_add(&digest, text.data, text.len);
	digest_end(&digest, sha256);
	hex_encode(sha256, sizeof(sha256), hex);
}

/* An unreadable file counts as empty: every program is new then. */
static struct json *read_pins(const char *path)
{
	AUTO_BUF struct buf text = {0};
	AUTO_JSON struct json *pins = NULL;

	if (fs_read(path, PINS_SIZE_MAX, &text, NULL, NULL) < 0 ||
		json_parse(text.data, text.len, PINS_SIZE_MAX, "", &pins, NULL) < 0 ||
		json_kind(pins) != JSON_OBJECT || json_count(pins) > PINS_FILES_MAX)
		return json_object();
	return TAKE(pins);
}

static void pin(
	const char *path, struct json *pins, const struct kube_access *access, const char *hash)
{
	AUTO_FREE char *dir = mem_strndup(path, (size_t)(strrchr(path, '/') - path));
	AUTO_BUF struct buf text;

	json_set_str(json_sub(pins, access->exec->file), access->user, hash);
	buf_init(&text, PINS_SIZE_MAX);
	json_print_pretty(pins, &text);
	if (!text.full && fs_mkdirs(dir, 0700, NULL) == 0)
		fs_replace(path, text.data, text.len, 0600, FS_SYNC_FILE, NULL);
}

/* Whether the group is the user's alone, as many systems make one for each user. */
static bool is_private_group(gid_t gid)
{
	const struct passwd *user = getpwuid(geteuid());
	const struct group *group = user && user->pw_gid == gid ? getgrgid(gid) : NULL;

	return group && str_eq(group->gr_name, user->pw_name) && !*group->gr_mem;
}

/* Whether only the user or the system can have written the file. */
static bool is_own(const char *file)
{
	struct stat st;

	if (stat(file, &st) || !fs_is_ours(st.st_uid, (uid_t)-1))
		return false;
	return !S_ISREG(st.st_mode) ||
	       !((st.st_mode & S_IWOTH) ||
		       ((st.st_mode & S_IWGRP) && !is_private_group(st.st_gid)));
}

static int refuse(const struct kube_exec *exec, struct err *err)
{
	AUTO_FREE char *shown = kube_program_shown(exec);

	err_set(err, E_KUBE_PLUGIN,
		"%s can be written by other users, so the program that it names, %s, is not run",
		exec->file, shown);
	return err_hint(err, "cp %s ~/.kube/config && chmod 600 ~/.kube/config", exec->file);
}

static void warn(const struct kube_credential_options *options)
{
	const struct kube_exec *exec = options->access->exec;
	AUTO_FREE char *shown = kube_program_shown(exec);
	AUTO_FREE char *text = mem_printf(
		"%s: the program that logs in to the cluster %s is another one than before: %s",
		exec->file, options->access->cluster, shown);

	if (options->note)
		options->note(options->note_ctx, text);
}

static int ask(const struct kube_credential_options *options, bool is_changed, struct err *err)
{
	const struct kube_exec *exec = options->access->exec;

	if (options->plugin.confirm)
		return options->plugin.confirm(options->plugin.ctx, exec, err);
	if (!is_own(exec->file))
		return refuse(exec, err);
	if (is_changed)
		warn(options);
	return 0;
}

int kube_plugin_allowed(const struct kube_credential_options *options, struct err *err)
{
	const struct kube_access *access = options->access;
	const char *path = options->plugin.pin_file;
	AUTO_JSON struct json *pins = path ? read_pins(path) : json_object();
	const char *before = json_get_str(json_get(pins, access->exec->file), access->user);
	char hash[SHA256_HEX_SIZE];

	hash_entry(access->exec, hash);
	if (str_eq(before, hash))
		return 0;
	int r = ask(options, before != NULL, err);
	if (r == 0 && path)
		pin(path, pins, access, hash);
	return r;
}
