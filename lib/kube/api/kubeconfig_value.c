/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <string.h>

#include "base/os/fs.h"
#include "base/util/buf.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/api/kubeconfig_impl.h"

int kubeconfig_bad(const struct kubeconfig_where *where, struct err *err, const char *fmt, ...)
{
	AUTO_FREE char *shown = str_shown(where->entry->name);
	va_list args;

	va_start(args, fmt);
	AUTO_FREE char *why = mem_vprintf(fmt, args);
	va_end(args);
	return err_set(err, E_KUBE_CONFIG, "%s: %s \"%s\": %s", where->entry->file, where->kind,
		shown, why);
}

static const struct json *value_at(const struct kubeconfig_where *where, const char *key)
{
	const struct json *value = json_get(where->entry->body, key);

	return value && json_kind(value) != JSON_NULL ? value : NULL;
}

int kubeconfig_text(
	const struct kubeconfig_where *where, const char *key, char **ret, struct err *err)
{
	const struct json *value = value_at(where, key);

	if (value && !json_str(value))
		return kubeconfig_bad(where, err, "%s must be text; put it in quotes", key);
	if (value && *json_str(value))
		*ret = mem_strdup(json_str(value));
	return 0;
}

int kubeconfig_bool(
	const struct kubeconfig_where *where, const char *key, bool *ret, struct err *err)
{
	const struct json *value = value_at(where, key);

	if (value && json_kind(value) != JSON_BOOL)
		return kubeconfig_bad(where, err, "%s must be true or false", key);
	*ret = json_get_bool(where->entry->body, key, false);
	return 0;
}

char *kubeconfig_path(const char *file, const char *path)
{
	const char *slash = strrchr(file, '/');
	AUTO_FREE char *dir = mem_strndup(file, slash ? (size_t)(slash - file) + 1 : 0);

	return *path == '/' ? mem_strdup(path) : mem_printf("%s%s", dir, path);
}

/* Line breaks may stand anywhere in it. */
static bool decode(const char *text, struct buf *out)
{
	size_t len = 0;
	AUTO_FREE char *packed = mem_strdup(text);

	for (const char *at = text; *at; at++)
		if (!strchr(" \t\r\n", *at))
			packed[len++] = *at;
	return base64_decode(packed, len, out);
}

static int check_pem(const struct kubeconfig_where *where, const char *what, const struct buf *pem,
	struct err *err)
{
	if (pem->full)
		return kubeconfig_bad(
			where, err, "%s is larger than %d bytes", what, KUBECONFIG_PEM_MAX);
	if (strlen(pem->data) != pem->len || !strstr(pem->data, "-----BEGIN "))
		return kubeconfig_bad(where, err, "%s is not in PEM form", what);
	return 0;
}

static int pem_of_data(const struct kubeconfig_where *where, const char *key, const char *data,
	char **ret, struct err *err)
{
	AUTO_BUF struct buf pem;

	buf_init(&pem, KUBECONFIG_PEM_MAX);
	if (!decode(data, &pem))
		return kubeconfig_bad(where, err, "%s is not valid base64", key);
	int r = check_pem(where, key, &pem, err);
	if (r == 0)
		*ret = buf_take(&pem);
	return r;
}

static int pem_of_file(const struct kubeconfig_where *where, const char *key, const char *name,
	char **ret, struct err *err)
{
	AUTO_FREE char *path = kubeconfig_path(where->entry->file, name);
	AUTO_FREE char *what = mem_printf("%s: %s", key, path);
	AUTO_BUF struct buf pem = {0};
	AUTO_ERR struct err fault = {0};

	if (fs_read(path, KUBECONFIG_PEM_MAX, &pem, NULL, &fault) < 0)
		return kubeconfig_bad(where, err, "%s: %s", key, fault.message);
	int r = check_pem(where, what, &pem, err);
	if (r == 0)
		*ret = buf_take(&pem);
	return r;
}

int kubeconfig_pem(
	const struct kubeconfig_where *where, const char *key, char **ret, struct err *err)
{
	AUTO_FREE char *data_key = mem_printf("%s-data", key);
	AUTO_FREE char *data = NULL, *name = NULL;

	int r = kubeconfig_text(where, data_key, &data, err);
	if (r == 0)
		r = kubeconfig_text(where, key, &name, err);
	if (r < 0 || (!data && !name))
		return r;
	return data ? pem_of_data(where, data_key, data, ret, err)
		    : pem_of_file(where, key, name, ret, err);
}
