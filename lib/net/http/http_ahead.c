/* SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <string.h>

#include "net/http/http_impl.h"

/*
 * OpenSSL reads the head of a TLS record and its body one after the other; told to read ahead
 * (SSL_set_read_ahead(3)) it takes many small records at once. libcurl does not know of it, and
 * waits for the socket though a record is here: so it is on only while everything is read.
 */

static struct {
	bool is_known;
	void (*set)(void *ssl, int yes);
	int (*has)(const void *ssl);
} openssl;

/* Those of the OpenSSL that this libcurl was linked with. */
static void find_functions(void)
{
	Dl_info info;
	void *curl = NULL, *set, *has;

	openssl.is_known = true;
	if (dladdr((void *)http_curl.easy_init, &info) && info.dli_fname)
		curl = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
	set = curl ? dlsym(curl, "SSL_set_read_ahead") : NULL;
	has = curl ? dlsym(curl, "SSL_has_pending") : NULL;
	if (!set || !has)
		return;
	/* ISO C has no conversion from an object to a function; POSIX's dlsym has. */
	memcpy(&openssl.set, &set, sizeof(set));
	memcpy(&openssl.has, &has, sizeof(has));
}

/* NULL: there is none, or it is another library's. */
static void *ssl_of(const struct http_call *call)
{
	const struct curl_tlssessioninfo *info = NULL;

	if (!call->url.tls)
		return NULL;
	if (!openssl.is_known)
		find_functions();
	if (!openssl.set ||
		curl_easy_getinfo(call->x.easy, CURLINFO_TLS_SSL_PTR, &info) != CURLE_OK || !info ||
		info->backend != CURLSSLBACKEND_OPENSSL)
		return NULL;
	return info->internals;
}

void http_read_ahead(const struct http_call *call, bool is_on)
{
	void *ssl = ssl_of(call);

	if (ssl)
		openssl.set(ssl, is_on);
}

bool http_has_ahead(const struct http_call *call)
{
	const void *ssl = ssl_of(call);

	return ssl && openssl.has(ssl);
}
