/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/http/http_impl.h"

const char *http_ca_file(const struct http_call *call)
{
	return call->tls.ca_file ? call->tls.ca_file : call->http->ca_file;
}

struct http_tls http_tls_elsewhere(const struct http_tls *tls)
{
	return (struct http_tls){.more_ca_file = tls->ca_file ? tls->ca_file : tls->more_ca_file};
}

/* libcurl reads the text where it is, and keeps copies with the connection, which is reused for the
 * same certificates only. */
static void set_blob(struct http_call *call, CURLoption option, const char *pem)
{
	struct curl_blob blob = {.data = (void *)pem, .len = strlen(pem)};

	HTTP_SET(call, option, &blob);
}

static int check_ca(const char *file, const char *host, struct err *err)
{
	if (access(file, R_OK) == 0)
		return 0;
	AUTO_FREE char *shown = str_escaped(file);
	return err_set_errno(
		err, E_HTTP_CA, errno, "cannot read %s, the issuers to trust for %s", shown, host);
}

/* libcurl has one place for issuers: both are put there. */
static int add_issuers(struct http_call *call, struct err *err)
{
	enum { ISSUERS_MAX = 8 << 20 };
	const char *files[] = {call->http->ca_file, call->tls.more_ca_file};
	AUTO_BUF struct buf both = {0};

	/* The system has no file where it has a directory instead, which stays in use. */
	if (files[0])
		HTTP_SET(call, CURLOPT_CAPATH, NULL);
	else
		curl_easy_getinfo(call->x.easy, CURLINFO_CAINFO, &files[0]);
	buf_init(&both, 2 * (ISSUERS_MAX + 1));
	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		AUTO_BUF struct buf one = {0};
		if (!files[i] || (i == 0 && !call->http->ca_file && access(files[i], R_OK) < 0))
			continue;
		int r = check_ca(files[i], call->url.host, err);
		if (r == 0)
			r = fs_read(files[i], ISSUERS_MAX, &one, NULL, err);
		if (r < 0)
			return r;
		buf_add(&both, one.data, one.len);
		buf_addc(&both, '\n');
	}
	struct curl_blob blob = {.data = both.data, .len = both.len, .flags = CURL_BLOB_COPY};
	HTTP_SET(call, CURLOPT_CAINFO_BLOB, &blob);
	return 0;
}

/* Issuers that were named are instead of the system's, not besides them. */
static int set_issuers(struct http_call *call, struct err *err)
{
	const char *ca_file = http_ca_file(call);

	if (!call->tls.ca_file && call->tls.more_ca_file)
		return add_issuers(call, err);
	if (call->tls.insecure || (!call->tls.ca_pem && !ca_file))
		return 0;
	HTTP_SET(call, CURLOPT_CAPATH, NULL);
	if (call->tls.ca_pem) {
		HTTP_SET(call, CURLOPT_CAINFO, NULL);
		set_blob(call, CURLOPT_CAINFO_BLOB, call->tls.ca_pem);
		return 0;
	}
	HTTP_SET(call, CURLOPT_CAINFO, ca_file);
	return check_ca(ca_file, call->url.host, err);
}

static void set_certificate(struct http_call *call)
{
	if (!call->tls.cert_pem || !call->tls.key_pem)
		return;
	set_blob(call, CURLOPT_SSLCERT_BLOB, call->tls.cert_pem);
	set_blob(call, CURLOPT_SSLKEY_BLOB, call->tls.key_pem);
	/* Without one OpenSSL would ask for it on the terminal. */
	HTTP_SET(call, CURLOPT_KEYPASSWD, "");
}

/* libcurl knows one name of a server, that of the URL. So the URL has the name that the certificate
 * must have, and the connection and the Host header are led to where it really is. */
static int set_server_name(struct http_call *call, struct err *err)
{
	const char *name = call->tls.server_name, *real = call->url.host;
	bool is_ip6 = strchr(real, ':') != NULL;
	AUTO_URL struct url url = {0};

	AUTO_FREE char *host = mem_printf(
		strchr(name, ':') && *name != '[' ? "[%s]:%u" : "%s:%u", name, call->url.port);
	int r = url_make(true, host, call->url.path, &url, err);
	if (r < 0)
		return err_prefix(err, "the name in the certificate of %s", real);
	AUTO_FREE char *text = url_text(&url);
	AUTO_FREE char *to = mem_printf(is_ip6 ? "::[%s]:%u" : "::%s:%u", real, call->url.port);
	AUTO_FREE char *authority = url_authority(&call->url);
	AUTO_FREE char *header = mem_printf("Host: %s", authority);
	call->x.connect_to = curl_slist_append(NULL, to);
	call->x.headers = curl_slist_append(call->x.headers, header);
	HTTP_SET(call, CURLOPT_URL, text);
	HTTP_SET(call, CURLOPT_CONNECT_TO, call->x.connect_to);
	HTTP_SET(call, CURLOPT_HTTPHEADER, call->x.headers);
	return 0;
}

static int set_url(struct http_call *call, struct err *err)
{
	const char *name = call->tls.server_name;

	if (call->url.tls && name && !str_eq(name, call->url.host))
		return set_server_name(call, err);
	AUTO_FREE char *url = url_text(&call->url);
	HTTP_SET(call, CURLOPT_URL, url);
	return 0;
}

int http_tls_options(struct http_call *call, struct err *err)
{
	long verify = call->tls.insecure ? 0L : 1L;

	HTTP_SET(call, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
	HTTP_SET(call, CURLOPT_SSL_VERIFYPEER, verify);
	HTTP_SET(call, CURLOPT_SSL_VERIFYHOST, verify * 2);
	HTTP_SET(call, CURLOPT_PROXY_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
	if (call->http->ca_file && call->x.proxy) {
		HTTP_SET(call, CURLOPT_PROXY_CAINFO, call->http->ca_file);
		HTTP_SET(call, CURLOPT_PROXY_CAPATH, NULL);
	}
	int r = set_url(call, err);
	if (r < 0 || !call->url.tls)
		return r;
	set_certificate(call);
	return set_issuers(call, err);
}
