/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/data/json.h"
#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/api/credential_impl.h"
#include "kube/api/words.h"

enum { INFO_MAX = 4 << 20, SAID_LINES_MAX = 3, SAID_MAX = 200 };

void kube_wipe(char *secret)
{
	if (secret)
		explicit_bzero(secret, strlen(secret));
	free(secret);
}

void kube_wipe_buf(struct buf *buf)
{
	if (buf->data)
		explicit_bzero(buf->data, buf->cap);
	buf_done(buf);
}

void kube_made_done(struct kube_made *made)
{
	kube_wipe(made->token);
	free(made->cert_pem);
	kube_wipe(made->key_pem);
	*made = (struct kube_made){0};
}

char *kube_program_shown(const struct kube_exec *exec)
{
	return str_shown(fs_basename(exec->command));
}

/*
 * Input of a plugin
 */

static void set_text(struct json *object, const char *key, const char *text)
{
	if (!str_empty(text))
		json_set_str(object, key, text);
}

static struct json *cluster_info(const struct kube_access *access)
{
	struct json *cluster = json_object();
	AUTO_FREE char *server = url_text(&access->server);
	AUTO_BUF struct buf ca;

	json_set_str(cluster, "server", server);
	set_text(cluster, "tls-server-name", access->server_name);
	if (access->tls.insecure)
		json_set_bool(cluster, "insecure-skip-tls-verify", true);
	buf_init(&ca, INFO_MAX);
	if (access->ca_pem)
		base64_encode(access->ca_pem, strlen(access->ca_pem), &ca);
	set_text(cluster, "certificate-authority-data", ca.data);
	set_text(cluster, "proxy-url", access->proxy);
	if (access->exec->cluster_config)
		json_set(cluster, "config", json_clone(access->exec->cluster_config));
	return cluster;
}

char *kube_plugin_cluster(const struct kube_access *access)
{
	AUTO_JSON struct json *cluster = cluster_info(access);
	AUTO_BUF struct buf out;

	buf_init(&out, INFO_MAX);
	json_print(cluster, &out);
	return buf_take(&out);
}

char *kube_plugin_info(const struct kube_access *access, bool interactive)
{
	AUTO_JSON struct json *info = json_object();
	AUTO_BUF struct buf out;

	json_set_str(info, "kind", "ExecCredential");
	json_set_str(info, "apiVersion", access->exec->api_version);
	struct json *spec = json_sub(info, "spec");
	if (access->exec->provide_cluster_info)
		json_set(spec, "cluster", cluster_info(access));
	json_set_bool(spec, "interactive", interactive);
	buf_init(&out, INFO_MAX);
	json_print(info, &out);
	return buf_take(&out);
}

/*
 * Output of a plugin
 */

int kube_plugin_fault(const struct kube_access *access, const char *why, struct err *err)
{
	AUTO_FREE char *shown = kube_program_shown(access->exec);

	return err_set(err, E_KUBE_PLUGIN, "%s, which logs in to the cluster %s, %s", shown,
		access->cluster, why);
}

static bool is_header_text(const char *s)
{
	for (; *s; s++)
		if ((unsigned char)*s <= 0x20 || *s == 0x7f)
			return false;
	return true;
}

static int take_status(const struct json *status, const struct kube_access *access,
	struct kube_made *made, struct err *err)
{
	const char *token = json_get_str(status, "token");
	const char *cert = json_get_str(status, "clientCertificateData");
	const char *key = json_get_str(status, "clientKeyData");
	const char *expires = json_get_str(status, "expirationTimestamp");

	if (str_empty(cert) != str_empty(key))
		return kube_plugin_fault(
			access, "printed a certificate or a key without the other", err);
	if (str_empty(token) && str_empty(cert))
		return kube_plugin_fault(access, "printed neither a token nor a certificate", err);
	if (!str_empty(token) && !is_header_text(token))
		return kube_plugin_fault(
			access, "printed a token with spaces or control characters", err);
	if (!str_empty(cert) && (!strstr(cert, "-----BEGIN ") || !strstr(key, "-----BEGIN ")))
		return kube_plugin_fault(
			access, "printed a certificate that is not in PEM form", err);
	if (!str_empty(expires) && clock_parse(expires, &made->expires_ms, NULL) < 0)
		return kube_plugin_fault(
			access, "printed an expirationTimestamp that is not a time", err);
	made->token = str_empty(token) ? NULL : mem_strdup(token);
	made->cert_pem = str_empty(cert) ? NULL : mem_strdup(cert);
	made->key_pem = str_empty(cert) ? NULL : mem_strdup(key);
	return 0;
}

int kube_plugin_parse(const char *text, size_t len, const struct kube_access *access,
	struct kube_made *ret, struct err *err)
{
	AUTO_JSON struct json *json = NULL;
	AUTO_KUBE_MADE struct kube_made made = {0};

	if (len == 0)
		return kube_plugin_fault(access, "printed nothing", err);
	if (json_parse(text, len, KUBE_PLUGIN_OUT_MAX, "", &json, NULL) < 0 ||
		!str_eq(json_get_str(json, "kind"), "ExecCredential"))
		return kube_plugin_fault(
			access, "printed something else than an ExecCredential", err);
	const char *version = json_get_str(json, "apiVersion");
	if (!str_eq(version, access->exec->api_version)) {
		AUTO_FREE char *shown = str_shown(version ? version : "nothing");
		AUTO_FREE char *why =
			mem_printf("answers with apiVersion %s, but the kubeconfig says %s", shown,
				access->exec->api_version);
		return kube_plugin_fault(access, why, err);
	}
	int r = take_status(json_get(json, "status"), access, &made, err);
	if (r < 0)
		return r;
	*ret = made;
	made = (struct kube_made){0};
	return 0;
}

/*
 * Messages of a plugin that fails
 */

static void say_line(const char *line, size_t len, struct err *err)
{
	AUTO_FREE char *words = kube_words(line, len, SAID_MAX);

	err_evidence(err, "it said: %s", words);
}

void kube_plugin_said(const char *text, size_t len, struct err *err)
{
	struct {
		size_t at, len;
	} lines[SAID_LINES_MAX];
	size_t n = 0, end = len;

	while (end > 0 && n < SAID_LINES_MAX) {
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
	while (n-- > 0)
		say_line(text + lines[n].at, lines[n].len, err);
}
