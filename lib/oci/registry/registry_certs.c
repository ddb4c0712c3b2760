/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "oci/registry/registry_impl.h"

#define CERTS_DIR "/etc/docker/certs.d"

enum { PEM_MAX = 1 << 20 };

/* HOST's directory, or NULL if host is no name for one. */
static char *certs_dir(const char *host)
{
	return strchr(host, '/') || *host == '.' ? NULL : mem_printf("%s/%s", CERTS_DIR, host);
}

char *registry_find_ca(const char *host)
{
	AUTO_FREE char *dir = certs_dir(host);
	AUTO_FREE char *path = dir ? fs_join(dir, "ca.crt") : NULL;

	return path && access(path, R_OK) == 0 ? TAKE(path) : NULL;
}

char *registry_find_cert(const char *host, char **ret_key)
{
	AUTO_FREE char *dir = certs_dir(host), *first = NULL;
	AUTO_DIR DIR *names = dir ? opendir(dir) : NULL;

	*ret_key = NULL;
	for (const struct dirent *entry; names && (entry = readdir(names));) {
		if (!str_ends(entry->d_name, ".cert"))
			continue;
		if (first && strcmp(entry->d_name, first) > 0)
			continue;
		free(first);
		first = mem_strdup(entry->d_name);
	}
	if (!first)
		return NULL;
	char *cert = fs_join(dir, first);
	*ret_key = mem_printf("%.*s.key", (int)(strlen(cert) - strlen(".cert")), cert);
	return cert;
}

static int read_pem(
	const char *path, const char *what, const char *host, struct buf *ret, struct err *err)
{
	AUTO_ERR struct err fault = {0};

	if (fs_read_regular(path, PEM_MAX, ret, NULL, NULL, &fault) < 0) {
		err_set(err, E_HTTP_CERT, "the %s for %s cannot be used", what, host);
		return err_evidence(err, "%s", fault.message);
	}
	return 0;
}

int registry_read_cert(
	struct registry *registry, const struct registry_options *options, struct err *err)
{
	AUTO_FREE char *key = NULL;
	AUTO_FREE char *cert = NULL;

	if (options->cert_file) {
		cert = mem_strdup(options->cert_file);
		key = mem_strdup(options->key_file);
	} else {
		cert = registry_find_cert(options->host, &key);
	}
	if (!cert)
		return 0;
	int r = read_pem(cert, "client certificate", options->host, &registry->cert, err);
	if (r == 0)
		r = read_pem(
			key, "key of the client certificate", options->host, &registry->key, err);
	if (r < 0)
		return r;
	registry->tls.cert_pem = registry->cert.data;
	registry->tls.key_pem = registry->key.data;
	return 0;
}
