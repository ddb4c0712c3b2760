/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/api/credential.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/data/json.h"
#include "base/loop/loop.h"
#include "base/loop/proc_run.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/buf.h"
#include "base/util/digest.h"
#include "base/util/enc.h"
#include "base/util/err.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/api/response.h"

/* Credentials made by a plugin. */
struct kube_made {
	char *token, *cert_pem, *key_pem;
	int64_t expires_ms; /* clock_wall_ms(); 0: it does not say */
};
#define AUTO_KUBE_MADE AUTO(kube_made_done)

/* A single run of a plugin. */
struct kube_plugin;
/* error is set if r < 0. Called from the loop, once, as the last thing. */
typedef int kube_plugin_fn(
	void *ctx, int r, struct kube_made *made, struct err *error, struct err *err);

/*
 * Expiry of a login
 */

enum { CLAIMS_MAX = 64 << 10, CERTIFICATE_MAX = 64 << 10 };

/* The last second of the year 9999. */
#define SECONDS_MAX 253402300799

/*
 * JSON Web Tokens
 */

static void kube_made_done(struct kube_made *made);

/* base64url without padding (RFC 4648, section 5). */
static bool decode_url(const char *text, size_t len, struct buf *out)
{
	AUTO_BUF struct buf plain = buf_with(CLAIMS_MAX);

	for (size_t i = 0; i < len; i++)
		buf_addc(&plain, text[i] == '-' ? '+' : text[i] == '_' ? '/' : text[i]);
	while (plain.len % 4 && !plain.full)
		buf_addc(&plain, '=');
	return !plain.full && base64_decode(plain.data, plain.len, out);
}

int64_t kube_expiry_token(const char *token)
{
	AUTO_BUF struct buf claims = buf_with(CLAIMS_MAX);
	AUTO_JSON struct json *json = NULL;
	const char *begin = strchr(token, '.'), *end = begin ? strchr(begin + 1, '.') : NULL;

	if (!end || !decode_url(begin + 1, (size_t)(end - begin - 1), &claims) ||
		json_parse(claims.data, claims.len, CLAIMS_MAX, "a token", &json, NULL) < 0)
		return 0;
	double seconds = json_get_num(json, "exp", 0);
	return seconds > 0 && seconds < SECONDS_MAX ? (int64_t)seconds * 1000 : 0;
}

/*
 * Certificates
 */

/* The unread rest of a DER encoding (X.690). */
struct der {
	const uint8_t *at, *end;
};

/* The next element: its tag, and its contents in ret. -1: there is none. */
static int credential_next(struct der *der, struct der *ret)
{
	const uint8_t *at = der->at;
	size_t len, left = (size_t)(der->end - at);
	int tag;

	if (left < 2)
		return -1;
	tag = at[0];
	len = at[1];
	at += 2;
	if (len & 0x80) {
		size_t bytes = len & 0x7f;
		if (bytes == 0 || bytes > 3 || left < 2 + bytes)
			return -1;
		for (len = 0; bytes > 0; bytes--)
			len = len << 8 | *at++;
	}
	if (len > (size_t)(der->end - at))
		return -1;
	*ret = (struct der){at, at + len};
	der->at = at + len;
	return tag;
}

enum { DER_SEQUENCE = 0x30, DER_UTC_TIME = 0x17, DER_TIME = 0x18, DER_VERSION = 0xa0 };

/* YYMMDDHHMMSSZ of 1950 to 2049, or YYYYMMDDHHMMSSZ. */
static int64_t credential_read_time(int tag, const struct der *der)
{
	char text[16], rfc[32];
	size_t len = (size_t)(der->end - der->at), year = tag == DER_UTC_TIME ? 2 : 4;
	int64_t ms = 0;

	if ((tag != DER_UTC_TIME && tag != DER_TIME) || len != year + 11 || der->at[len - 1] != 'Z')
		return 0;
	memcpy(text, der->at, len);
	text[len] = '\0';
	const char *rest = text + year;
	snprintf(rfc, sizeof(rfc), "%s%.*s-%.2s-%.2sT%.2s:%.2s:%.2sZ",
		year == 4       ? ""
		: text[0] < '5' ? "20"
				: "19",
		(int)year, text, rest, rest + 2, rest + 4, rest + 6, rest + 8);
	return clock_parse(rfc, &ms, NULL) < 0 ? 0 : ms;
}

/* Certificate { tbsCertificate { version [0], serialNumber, signature, issuer, validity … */
static int64_t not_after(const uint8_t *data, size_t len)
{
	struct der all = {data, data + len}, certificate, tbs, item, validity;
	int tag;

	if (credential_next(&all, &certificate) != DER_SEQUENCE ||
		credential_next(&certificate, &tbs) != DER_SEQUENCE)
		return 0;
	tag = credential_next(&tbs, &item);
	if (tag == DER_VERSION)
		tag = credential_next(&tbs, &item);
	for (int i = 0; i < 2 && tag >= 0; i++)
		tag = credential_next(&tbs, &item);
	if (tag < 0 || credential_next(&tbs, &validity) != DER_SEQUENCE ||
		credential_next(&validity, &item) < 0)
		return 0;
	tag = credential_next(&validity, &item);
	return tag < 0 ? 0 : credential_read_time(tag, &item);
}

int64_t kube_expiry_certificate(const char *pem)
{
	static const char begin[] = "-----BEGIN CERTIFICATE-----", end[] = "-----END";
	const char *at = strstr(pem, begin), *stop = at ? strstr(at + 1, end) : NULL;
	AUTO_BUF struct buf text = buf_with(CERTIFICATE_MAX), data = buf_with(CERTIFICATE_MAX);

	if (!stop)
		return 0;
	for (at += strlen(begin); at < stop; at++)
		if (!strchr(" \t\r\n", *at))
			buf_addc(&text, *at);
	if (text.full || !base64_decode(text.data, text.len, &data))
		return 0;
	return not_after((const uint8_t *)data.data, data.len);
}

/*
 * Input and output of a plugin
 */

enum { INFO_MAX = 4 << 20, ERROR_LINES_MAX = 3, ERROR_LINE_MAX = 200 };

static void kube_made_done(struct kube_made *made)
{
	mem_wipe(made->token);
	free(made->cert_pem);
	mem_wipe(made->key_pem);
	*made = (struct kube_made){0};
}

/* The name of a program for people. The caller frees. */
static char *kube_program_shown(const struct kube_exec *exec)
{
	return str_shown(fs_basename(exec->command));
}

/*
 * Input of a plugin
 */

/* Everything that a plugin may know of the cluster. */
static struct json *cluster_info(const struct kube_access *access)
{
	const struct json *config = access->exec->cluster_config;
	AUTO_FREE char *server = url_text(&access->server);
	AUTO_BUF struct buf ca = buf_with(INFO_MAX);

	if (access->ca_pem)
		base64_encode(access->ca_pem, strlen(access->ca_pem), &ca);
	return json_make("{'server': %s, 'tls-server-name': %s, 'insecure-skip-tls-verify': %p, "
			 "'certificate-authority-data': %s, 'proxy-url': %s, 'config': %p}",
		server, str_empty(access->server_name) ? NULL : access->server_name,
		access->tls.insecure ? (void *)json_make("true") : NULL, ca.len ? ca.data : NULL,
		str_empty(access->proxy) ? NULL : access->proxy,
		config ? (void *)json_clone(config) : NULL);
}

/* The value of KUBERNETES_EXEC_INFO. The caller frees. */
static char *kube_plugin_info(const struct kube_access *access, bool interactive)
{
	AUTO_JSON struct json *info =
		json_make("{'kind': 'ExecCredential', 'apiVersion': %s, 'spec': "
			  "{'cluster': %p, 'interactive': %p}}",
			access->exec->api_version,
			access->exec->provide_cluster_info ? (void *)cluster_info(access) : NULL,
			(void *)json_make(interactive ? "true" : "false"));
	AUTO_BUF struct buf out = buf_with(INFO_MAX);

	json_print(info, &out);
	return buf_take(&out);
}

/*
 * Output of a plugin
 */

/* E_KUBE_PLUGIN: "NAME, which logs in to the cluster CLUSTER, WHY". */
static int kube_plugin_error(const struct kube_access *access, const char *why, struct err *err)
{
	AUTO_FREE char *shown = kube_program_shown(access->exec);

	return err_set(err, E_KUBE_PLUGIN, "%s, which logs in to the cluster %s, %s", shown,
		access->cluster, why);
}

static bool credential_is_header_text(const char *s)
{
	for (; *s; s++)
		if ((unsigned char)*s <= 0x20 || *s == 0x7f)
			return false;
	return true;
}

static int credential_take_status(const struct json *status, const struct kube_access *access,
	struct kube_made *made, struct err *err)
{
	const char *token = json_get_str(status, "token");
	const char *cert = json_get_str(status, "clientCertificateData");
	const char *key = json_get_str(status, "clientKeyData");
	const char *expires = json_get_str(status, "expirationTimestamp");

	if (str_empty(cert) != str_empty(key))
		return kube_plugin_error(
			access, "printed a certificate or a key without the other", err);
	if (str_empty(token) && str_empty(cert))
		return kube_plugin_error(access, "printed neither a token nor a certificate", err);
	if (!str_empty(token) && !credential_is_header_text(token))
		return kube_plugin_error(
			access, "printed a token with spaces or control characters", err);
	if (!str_empty(cert) && (!strstr(cert, "-----BEGIN ") || !strstr(key, "-----BEGIN ")))
		return kube_plugin_error(
			access, "printed a certificate that is not in PEM form", err);
	if (!str_empty(expires) && clock_parse(expires, &made->expires_ms, NULL) < 0)
		return kube_plugin_error(
			access, "printed an expirationTimestamp that is not a time", err);
	made->token = str_empty(token) ? NULL : mem_strdup(token);
	made->cert_pem = str_empty(cert) ? NULL : mem_strdup(cert);
	made->key_pem = str_empty(cert) ? NULL : mem_strdup(key);
	return 0;
}

/* E_KUBE_PLUGIN without a word of what was printed, which may be the secret. */
static int kube_plugin_parse(const char *text, size_t len, const struct kube_access *access,
	struct kube_made *ret, struct err *err)
{
	AUTO_JSON struct json *json = NULL;
	AUTO_KUBE_MADE struct kube_made made = {0};

	if (len == 0)
		return kube_plugin_error(access, "printed nothing", err);
	if (json_parse(text, len, KUBE_PLUGIN_OUT_MAX, "", &json, NULL) < 0 ||
		!str_eq(json_get_str(json, "kind"), "ExecCredential"))
		return kube_plugin_error(
			access, "printed something else than an ExecCredential", err);
	const char *version = json_get_str(json, "apiVersion");
	if (!str_eq(version, access->exec->api_version)) {
		AUTO_FREE char *shown = str_shown(version ? version : "nothing");
		AUTO_FREE char *why =
			mem_printf("answers with apiVersion %s, but the kubeconfig says %s", shown,
				access->exec->api_version);
		return kube_plugin_error(access, why, err);
	}
	int r = credential_take_status(json_get(json, "status"), access, &made, err);
	if (r < 0)
		return r;
	*ret = made;
	made = (struct kube_made){0};
	return 0;
}

/*
 * Logins that are kept
 */

enum { CACHE_MAX = 2 * KUBE_PLUGIN_OUT_MAX };

/*
 * The name: everything that may decide for whom a credential is
 */

/* Each with its end, so that "a", "bc" is not "ab", "c". */
static void credential_add(struct digest *digest, const char *text)
{
	digest_add(digest, text ? text : "", text ? strlen(text) + 1 : 1);
	digest_add(digest, text ? "+" : "-", 1);
}

static void credential_add_list(struct digest *digest, const struct strv *list)
{
	for (size_t i = 0; i < list->n; i++)
		credential_add(digest, list->v[i]);
	credential_add(digest, NULL);
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

char *kube_cache_path(const struct kube_access *access, const struct kube_plugin_options *plugin)
{
	const struct kube_exec *exec = access->exec;
	AUTO_JSON struct json *info = cluster_info(access);
	AUTO_BUF struct buf cluster = buf_with(INFO_MAX);
	AUTO_DIGEST struct digest digest = {0};
	uint8_t sha256[SHA256_SIZE];
	char hex[SHA256_HEX_SIZE];

	if (!plugin->cache_dir)
		return NULL;
	digest_begin(&digest, DIGEST_SHA256);
	credential_add(&digest, exec->command);
	credential_add_list(&digest, &exec->args);
	credential_add_list(&digest, &exec->env);
	credential_add(&digest, exec->api_version);
	json_print(info, &cluster);
	credential_add(&digest, cluster.data);
	credential_add(&digest, exec->provide_cluster_info ? "told" : NULL);
	/* AWS_PROFILE, CLOUDSDK_…, HOME: all of it but what passes. */
	const char *const *env = plugin->env;
	AUTO_STRV struct strv sorted = {0};

	for (; env && *env; env++)
		if (!is_passing(*env))
			strv_add(&sorted, *env);
	strv_sort(&sorted);
	credential_add_list(&digest, &sorted);
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

/* false: there is none that is still good. */
static bool kube_cache_read(const char *path, struct kube_made *ret)
{
	AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	AUTO(buf_wipe) struct buf text = {0};
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

/* Quietly nothing where it cannot be kept. */
static void kube_cache_write(const char *path, const struct kube_made *made)
{
	AUTO_FREE char *dir = mem_strndup(path, (size_t)(strrchr(path, '/') - path));
	AUTO_JSON struct json *json =
		json_make("{'token': %s, 'cert_pem': %s, 'key_pem': %s, 'expires_ms': %lld}",
			made->token, made->cert_pem, made->key_pem, (long long)made->expires_ms);
	AUTO(buf_wipe) struct buf text = {0};

	if (made->expires_ms - KUBE_PLUGIN_MARGIN_MS <= clock_wall_ms() ||
		fs_private_dir(dir, NULL) < 0)
		return;
	buf_init(&text, CACHE_MAX);
	json_print(json, &text);
	if (!text.full)
		fs_replace(path, text.data, text.len, 0600, FS_SYNC_NONE, NULL);
}

/*
 * Whether a program may be run
 */

/* {"FILE of the kubeconfig": {"USER": "SHA-256 of the program and its words"}} */

enum { PINS_SIZE_MAX = 1 << 20, PINS_FILES_MAX = 1000 };

static void credential_hash_entry(const struct kube_exec *exec, char hex[static SHA256_HEX_SIZE])
{
	AUTO_DIGEST struct digest digest = {0};
	AUTO_JSON struct json *words = json_array();
	AUTO_BUF struct buf text = buf_with(PINS_SIZE_MAX);
	uint8_t sha256[SHA256_SIZE];

	json_add_str(words, exec->command);
	json_add_strv(words, &exec->args);
	json_add_str(words, "env");
	json_add_strv(words, &exec->env);
	json_add_str(words, exec->api_version);
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

/* Whether the group is the user's alone, as many systems make one for each user. */
static bool is_private_group(gid_t gid)
{
	const struct passwd *user = getpwuid(geteuid());
	const struct group *group = user && user->pw_gid == gid ? getgrgid(gid) : NULL;

	return group && str_eq(group->gr_name, user->pw_name) && !*group->gr_mem;
}

/* Whether only the user or the system can have written the file. */
static bool credential_is_own(const char *file)
{
	struct stat st;

	if (stat(file, &st) || !fs_is_ours(st.st_uid, (uid_t)-1))
		return false;
	return !S_ISREG(st.st_mode) ||
	       !((st.st_mode & S_IWOTH) ||
		       ((st.st_mode & S_IWGRP) && !is_private_group(st.st_gid)));
}

static void credential_warn(const struct kube_credential_options *options)
{
	const struct kube_exec *exec = options->access->exec;
	AUTO_FREE char *shown = kube_program_shown(exec);
	AUTO_FREE char *text = mem_printf(
		"%s: the program that logs in to the cluster %s is another one than before: %s",
		exec->file, options->access->cluster, shown);

	if (options->note)
		options->note(options->note_ctx, text);
}

static int credential_confirm(
	const struct kube_credential_options *options, bool is_changed, struct err *err)
{
	const struct kube_exec *exec = options->access->exec;

	if (options->plugin.confirm)
		return options->plugin.confirm(options->plugin.ctx, exec, err);
	if (!credential_is_own(exec->file)) {
		AUTO_FREE char *shown = kube_program_shown(exec);

		err_set(err, E_KUBE_PLUGIN,
			"%s can be written by other users, so the program that it names, %s, is not run",
			exec->file, shown);
		return err_hint(
			err, "cp %s ~/.kube/config && chmod 600 ~/.kube/config", exec->file);
	}
	if (is_changed)
		credential_warn(options);
	return 0;
}

/* Whether the program may be run; E_KUBE_PLUGIN. */
static int kube_plugin_allowed(const struct kube_credential_options *options, struct err *err)
{
	const struct kube_access *access = options->access;
	const char *path = options->plugin.pin_file;
	AUTO_JSON struct json *pins = path ? read_pins(path) : json_object();
	const char *before = json_get_str(json_get(pins, access->exec->file), access->user);
	char hash[SHA256_HEX_SIZE];

	credential_hash_entry(access->exec, hash);
	if (str_eq(before, hash))
		return 0;
	int r = credential_confirm(options, before != NULL, err);
	if (r == 0 && path) {
		AUTO_FREE char *dir = mem_strndup(path, (size_t)(strrchr(path, '/') - path));
		AUTO_BUF struct buf text = buf_with(PINS_SIZE_MAX);

		json_set_str(json_sub(pins, access->exec->file), access->user, hash);
		json_print_pretty(pins, &text);
		if (!text.full && fs_mkdirs(dir, 0700, NULL) == 0)
			fs_replace(path, text.data, text.len, 0600, FS_SYNC_FILE, NULL);
	}
	return r;
}

/*
 * A run of a plugin
 */

enum { NOTE_MS = 3000, ERRORS_KEPT = 4096, HINT_MAX = 400 };

struct kube_plugin {
	const struct kube_credential_options *options;
	const struct kube_exec *exec;
	bool interactive;
	struct proc_run *run;
	struct loop_timer *note_timer;
	kube_plugin_fn *end;
	void *ctx;
};

/* Kills it if it still runs. NULL is accepted. */
static void kube_plugin_free(struct kube_plugin *plugin)
{
	if (!plugin)
		return;
	proc_run_free(plugin->run);
	loop_remove_timer(plugin->options->loop, plugin->note_timer);
	free(plugin);
}

/*
 * The end
 */

/* The last lines of what a plugin said become evidence. */
static void credential_add_lines(const struct buf *said, struct err *err)
{
	const char *text = said->data;
	struct {
		size_t at, len;
	} lines[ERROR_LINES_MAX];
	size_t n = 0, end = said->len;

	while (end > 0 && n < ERROR_LINES_MAX) {
		size_t at = end;
		while (at > 0 && text[at - 1] != '\n')
			at--;
		size_t stop = end;
		while (stop > at && strchr(" \t\r", text[stop - 1]) && text[stop - 1])
			stop--;
		if (stop > at) {
			lines[n].at = at;
			lines[n++].len = stop - at;
		}
		end = at > 0 ? at - 1 : 0;
	}
	while (n-- > 0) {
		AUTO_FREE char *words =
			kube_words(text + lines[n].at, lines[n].len, ERROR_LINE_MAX);
		err_evidence(err, "it said: %s", words);
	}
}

/* Why it has failed, or NULL. The caller frees. */
static char *credential_why(const struct kube_plugin *plugin, const struct proc_run_result *result)
{
	char limit[32];

	if (result->end == PROC_RUN_LATE)
		return mem_printf(
			"took longer than %s", duration_text(plugin->options->limit_ms, limit));
	if (result->end != PROC_RUN_ENDED)
		return mem_strdup("printed more than 1 MiB");
	return result->status ? proc_run_code_text(proc_run_code(result)) : NULL;
}

static int credential_on_end(void *ctx, const struct proc_run_result *result, struct err *err)
{
	struct kube_plugin *plugin = ctx;
	const struct kube_access *access = plugin->options->access;
	AUTO_KUBE_MADE struct kube_made made = {0};
	AUTO_FREE char *why = credential_why(plugin, result);
	AUTO_ERR struct err error = {0};

	int r = why ? kube_plugin_error(access, why, &error)
		    : kube_plugin_parse(result->out->data, result->out->len, access, &made, &error);
	if (r < 0)
		kube_hint_version(access->context, "does it log in?", &error);
	if (why)
		credential_add_lines(result->errors, &error);
	return plugin->end(plugin->ctx, r, &made, &error, err);
}

static int note_due(void *ctx, struct err *err UNUSED)
{
	struct kube_plugin *plugin = ctx;
	AUTO_FREE char *shown = kube_program_shown(plugin->exec);
	AUTO_FREE char *text = mem_printf("waiting for %s, which logs in to the cluster %s", shown,
		plugin->options->access->cluster);

	plugin->note_timer = NULL;
	plugin->options->note(plugin->options->note_ctx, text);
	return 0;
}

/*
 * The start
 */

static void make_words(const struct kube_plugin *plugin, struct strv *argv, struct strv *env)
{
	const struct kube_exec *exec = plugin->exec;
	AUTO_FREE char *info = kube_plugin_info(plugin->options->access, plugin->interactive);
	AUTO_FREE char *pair = mem_printf("KUBERNETES_EXEC_INFO=%s", info);

	strv_add(argv, exec->command);
	for (size_t i = 0; i < exec->args.n; i++)
		strv_add(argv, exec->args.v[i]);
	for (const char *const *at = plugin->options->plugin.env; at && *at; at++)
		strv_add(env, *at);
	for (size_t i = 0; i < exec->env.n; i++)
		env_set(env, exec->env.v[i], false);
	env_set(env, pair, false);
}

static int credential_fail_start(
	const struct kube_plugin *plugin, const struct err *error, struct err *err)
{
	const struct kube_exec *exec = plugin->exec;
	/* A file that is there may lack what it is run by. */
	bool is_missing = str_ends(error->message, strerror(ENOENT)) && error->n_evidence == 0;
	AUTO_FREE char *why = is_missing ? mem_strdup("is not installed")
					 : mem_printf("does not start: %s", error->message);
	const char *hint = exec->install_hint;
	AUTO_FREE char *words = kube_words(hint ? hint : "", hint ? strlen(hint) : 0, HINT_MAX);

	int r = kube_plugin_error(plugin->options->access, why, err);
	for (size_t i = 0; i < error->n_evidence; i++)
		err_evidence(err, "%s", error->evidence[i]);
	/* Else it is this process that has no pipe or no memory. */
	if (error->id != E_RUN_EXEC)
		return r;
	if (*words)
		return err_hint(err, "%s", words);
	return err_hint(err, "install %s, or correct exec: in %s", exec->command, exec->file);
}

/* The stdin and stderr of an interactive plugin are the terminal. It runs in our session. */
static int credential_spawn(struct kube_plugin *plugin, struct err *err)
{
	const struct kube_credential_options *options = plugin->options;
	AUTO_STRV struct strv argv = {0}, env = {0};
	AUTO_ERR struct err error = {0};
	int tty_fd = plugin->interactive ? options->plugin.tty_fd : -1;

	make_words(plugin, &argv, &env);
	const struct proc_run_spec spec = {.argv = (const char *const *)argv.v,
		.env = (const char *const *)env.v,
		.stdin_fd = tty_fd,
		.stderr_fd = tty_fd,
		.out_max = KUBE_PLUGIN_OUT_MAX,
		.errors_max = plugin->interactive ? 0 : ERRORS_KEPT,
		.timeout_ms = plugin->interactive ? -1 : options->limit_ms,
		.has_terminal = plugin->interactive,
		.is_secret = true};
	if (proc_run_start(options->loop, &spec, credential_on_end, plugin, &plugin->run, &error) <
		0)
		return credential_fail_start(plugin, &error, err);
	return 0;
}

static int check_terminal(const struct kube_plugin *plugin, struct err *err)
{
	if (plugin->exec->interactive != KUBE_EXEC_ALWAYS || plugin->interactive)
		return 0;
	kube_plugin_error(plugin->options->access,
		"asks its user (interactiveMode: Always), and there is no terminal", err);
	return err_hint(err, "run dlrun in a terminal");
}

static int kube_plugin_start(const struct kube_credential_options *options, kube_plugin_fn *end_fn,
	void *ctx, struct kube_plugin **ret, struct err *err)
{
	const struct kube_exec *exec = options->access->exec;
	struct kube_plugin *plugin = mem_alloc(1, sizeof(*plugin));

	*plugin = (struct kube_plugin){.options = options,
		.exec = exec,
		.interactive = exec->interactive != KUBE_EXEC_NEVER && options->plugin.tty_fd >= 0,
		.end = end_fn,
		.ctx = ctx};
	int r = check_terminal(plugin, err);
	if (r == 0)
		r = credential_spawn(plugin, err);
	if (r < 0) {
		kube_plugin_free(plugin);
		return r;
	}
	if (options->note)
		plugin->note_timer =
			loop_add_timer(options->loop, clock_ms() + NOTE_MS, note_due, plugin);
	*ret = plugin;
	return 0;
}

/*
 * Logins
 */

enum {
	TOKEN_MAX = 64 << 10,
	FAILED_WAIT_MS = 1000, /* a plugin that has failed is not run again before */
	STALE_WAIT_MS = 10000, /* nor while there still is a login */
};

struct kube_login_wait {
	struct kube_credential *credential;
	struct kube_login_wait *next;
	kube_login_fn *fn;
	void *ctx;
};

struct kube_credential {
	struct kube_credential_options options;
	struct kube_login login;
	bool has_login;
	int64_t read_ms; /* of the token file: when, by clock_ms() */
	/* Of a plugin: */
	bool uses_plugin;
	struct kube_plugin *plugin; /* that runs, or NULL */
	char *cache_path;
	/* Times by clock_wall_ms() from which the login is to be renewed, and from which it is
	 * invalid; 0: never. In between the old one is used. */
	int64_t stale_ms, expires_ms;
	struct err error; /* why there is no login */
	int64_t failed_ms;
	bool is_refused;               /* by the user; not asked again */
	struct kube_login_wait *waits; /* the oldest first */
	struct loop_timer *timer;      /* to deliver to them */
};

void kube_login_done(struct kube_login *login)
{
	mem_wipe(login->authorization);
	free(login->cert_pem);
	mem_wipe(login->key_pem);
	*login = (struct kube_login){0};
}

void kube_login_copy(const struct kube_login *from, struct kube_login *to)
{
	kube_login_done(to);
	to->authorization = mem_strdup(from->authorization);
	to->cert_pem = mem_strdup(from->cert_pem);
	to->key_pem = mem_strdup(from->key_pem);
	to->generation = from->generation;
}

static void set_bearer(struct kube_credential *credential, const char *token)
{
	struct kube_login *login = &credential->login;

	mem_wipe(login->authorization);
	login->authorization = token ? mem_printf("Bearer %s", token) : NULL;
	login->generation++;
	credential->has_login = true;
}

static void set_basic(struct kube_credential *credential)
{
	const struct kube_access *access = credential->options.access;
	AUTO(buf_wipe) struct buf text = {0}, value = {0};

	buf_init(&text, TOKEN_MAX);
	buf_init(&value, 2 * TOKEN_MAX);
	buf_addf(&text, "%s:%s", access->username ? access->username : "",
		access->password ? access->password : "");
	buf_adds(&value, "Basic ");
	base64_encode(text.data, text.len, &value);
	credential->login.authorization = buf_take(&value);
}

/*
 * Token files
 */

static char *credential_read_token(const char *path, struct err *err)
{
	AUTO(buf_wipe) struct buf text = {0};
	AUTO_ERR struct err error = {0};
	char *end;

	if (fs_read(path, TOKEN_MAX, &text, NULL, &error) < 0) {
		err_set(err, E_KUBE_AUTH, "the token file cannot be read: %s", error.message);
		return NULL;
	}
	char *token = text.data + strspn(text.data, " \t\r\n");
	for (end = token + strlen(token); end > token && strchr(" \t\r\n", end[-1]); end--)
		end[-1] = '\0';
	if (*token && str_is_plain(token) && !strchr(token, ' '))
		return mem_strdup(token);
	err_set(err, E_KUBE_AUTH, "the token file %s holds no token", path);
	return NULL;
}

/* If the file cannot be read, the token that was read before stays in use. */
static void credential_read_file(struct kube_credential *credential)
{
	const struct kube_access *access = credential->options.access;
	AUTO_FREE char *bearer = NULL;

	credential->read_ms = clock_ms();
	err_clear(&credential->error);
	char *token = credential_read_token(access->token_file, &credential->error);
	if (token) {
		bearer = mem_printf("Bearer %s", token);
		if (!str_eq(bearer, credential->login.authorization))
			set_bearer(credential, token);
		explicit_bzero(bearer, strlen(bearer));
	} else if (!credential->has_login && access->token) {
		set_bearer(credential, access->token);
	}
	mem_wipe(token);
}

/*
 * Delivery to those who wait
 */

static bool credential_is_ready(const struct kube_credential *credential)
{
	return credential->has_login || (!credential->plugin && err_is_set(&credential->error));
}

/* The credential may be gone then. */
static int credential_deliver(
	struct kube_credential *credential, const struct kube_login_wait *wait, struct err *err)
{
	AUTO_ERR struct err error = {0};

	if (credential->has_login)
		return wait->fn(wait->ctx, &credential->login, NULL, err);
	const struct err *from = &credential->error;
	err_set(&error, from->id, "%s", from->message);
	for (size_t i = 0; i < from->n_evidence; i++)
		err_evidence(&error, "%s", from->evidence[i]);
	if (from->hint)
		err_hint(&error, "%s", from->hint);
	return wait->fn(wait->ctx, NULL, &error, err);
}

static void credential_deliver_soon(struct kube_credential *credential);

/* Complete one wait in each turn of the loop: its callback may free the credential. */
static int credential_on_deliver(void *ctx, struct err *err)
{
	struct kube_credential *credential = ctx;
	struct kube_login_wait *wait = credential->waits;

	credential->timer = NULL;
	if (!wait || !credential_is_ready(credential))
		return 0;
	credential->waits = wait->next;
	credential_deliver_soon(credential);
	int r = credential_deliver(credential, wait, err);
	free(wait);
	return r;
}

static void credential_deliver_soon(struct kube_credential *credential)
{
	if (credential->waits && credential_is_ready(credential) && !credential->timer)
		credential->timer = loop_add_timer(
			credential->options.loop, clock_ms(), credential_on_deliver, credential);
}

/*
 * Plugins
 */

/* Made anew shortly before it expires, but not all the time if it lives shortly only. */
static int64_t stale_at(int64_t expires_ms)
{
	int64_t now_ms = clock_wall_ms(), left_ms = expires_ms - now_ms;

	if (expires_ms == 0)
		return 0;
	if (left_ms <= 0)
		return now_ms;
	return now_ms + (left_ms > 2 * KUBE_PLUGIN_MARGIN_MS ? left_ms - KUBE_PLUGIN_MARGIN_MS
							     : left_ms / 2);
}

static void take_made(struct kube_credential *credential, struct kube_made *made)
{
	struct kube_login *login = &credential->login;

	err_clear(&credential->error);
	credential->stale_ms = stale_at(made->expires_ms);
	credential->expires_ms = made->expires_ms;
	set_bearer(credential, made->token);
	free(login->cert_pem);
	mem_wipe(login->key_pem);
	login->cert_pem = TAKE(made->cert_pem);
	login->key_pem = TAKE(made->key_pem);
}

static void credential_has_failed(struct kube_credential *credential)
{
	credential->failed_ms = clock_ms();
	credential->stale_ms = clock_wall_ms() + STALE_WAIT_MS;
}

static int credential_on_made(
	void *ctx, int r, struct kube_made *made, struct err *error, struct err *err UNUSED)
{
	struct kube_credential *credential = ctx;

	if (r == 0) {
		if (credential->cache_path)
			kube_cache_write(credential->cache_path, made);
		take_made(credential, made);
	} else {
		err_move(&credential->error, error);
		credential_has_failed(credential);
	}
	kube_plugin_free(TAKE(credential->plugin));
	credential_deliver_soon(credential);
	return 0;
}

static void start_plugin(struct kube_credential *credential)
{
	struct err *error = &credential->error;

	if (credential->is_refused)
		return;
	if (err_is_set(error) && clock_ms() < credential->failed_ms + FAILED_WAIT_MS)
		return;
	err_clear(error);
	int r = kube_plugin_allowed(&credential->options, error);
	credential->is_refused = r < 0;
	if (r == 0)
		r = kube_plugin_start(&credential->options, credential_on_made, credential,
			&credential->plugin, error);
	if (r == 0)
		return;
	if (!err_is_set(error))
		err_set(error, E_KUBE_PLUGIN, "the program %s was not allowed",
			credential->options.access->exec->command);
	credential_has_failed(credential);
}

/*
 * The whole
 */

struct kube_credential *kube_credential_new(const struct kube_credential_options *options)
{
	struct kube_credential *credential = mem_alloc(1, sizeof(*credential));
	const struct kube_access *access = options->access;

	credential->options = *options;
	if (options->limit_ms <= 0)
		credential->options.limit_ms = KUBE_PLUGIN_MS;
	credential->login.generation = 1;
	if (access->token_file) {
		credential_read_file(credential);
	} else if (access->token) {
		set_bearer(credential, access->token);
	} else if (access->username || access->password) {
		set_basic(credential);
		credential->has_login = true;
	} else if (access->exec) {
		AUTO_KUBE_MADE struct kube_made made = {0};

		credential->uses_plugin = true;
		credential->cache_path =
			kube_cache_path(credential->options.access, &credential->options.plugin);
		if (credential->cache_path && kube_cache_read(credential->cache_path, &made))
			take_made(credential, &made);
		else
			start_plugin(credential);
	} else {
		credential->has_login = true;
	}
	return credential;
}

void kube_credential_free(struct kube_credential *credential)
{
	if (!credential)
		return;
	while (credential->waits) {
		struct kube_login_wait *next = credential->waits->next;
		REPLACE(credential->waits, next);
	}
	kube_plugin_free(credential->plugin);
	loop_remove_timer(credential->options.loop, credential->timer);
	kube_login_done(&credential->login);
	err_done(&credential->error);
	free(credential->cache_path);
	free(credential);
}

struct kube_login_wait *kube_credential_want(
	struct kube_credential *credential, kube_login_fn *fn, void *ctx)
{
	struct kube_login_wait *wait = mem_alloc(1, sizeof(*wait));
	struct kube_login_wait **last = &credential->waits;

	*wait = (struct kube_login_wait){.credential = credential, .fn = fn, .ctx = ctx};
	while (*last)
		last = &(*last)->next;
	*last = wait;
	const struct kube_access *access = credential->options.access;

	if (access->token_file &&
		(!credential->has_login || clock_ms() >= credential->read_ms + KUBE_TOKEN_FILE_MS))
		credential_read_file(credential);
	if (credential->uses_plugin) {
		if (credential->expires_ms && clock_wall_ms() >= credential->expires_ms)
			credential->has_login = false;
		if (!credential->plugin &&
			(!credential->has_login ||
				(credential->stale_ms && clock_wall_ms() >= credential->stale_ms)))
			start_plugin(credential);
	}
	credential_deliver_soon(credential);
	return wait;
}

void kube_credential_cancel(struct kube_login_wait *wait)
{
	if (!wait)
		return;
	struct kube_login_wait **at = &wait->credential->waits;
	while (*at != wait)
		at = &(*at)->next;
	*at = wait->next;
	free(wait);
}

bool kube_credential_refused(struct kube_credential *credential, unsigned generation)
{
	if (generation != credential->login.generation)
		return true;
	if (credential->options.access->token_file) {
		credential_read_file(credential);
		return generation != credential->login.generation;
	}
	if (!credential->uses_plugin)
		return false;
	if (credential->cache_path)
		unlink(credential->cache_path);
	credential->has_login = false;
	return true;
}
