/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/http/http_impl.h"

enum { SAID_MAX = 200 };
/* CURLE_TOO_LARGE of libcurl 8.6, which may be what runs where an older one was compiled for. */
#define TOO_LARGE ((CURLcode)100)

/* The rows are about the server; a code may have several, of which the first fits whose words stand
 * in what libcurl says. */
struct error_row {
	CURLcode code;
	const char *said; /* or NULL: anything */
	enum err_id id;
	bool is_transient;
	const char *text; /* behind the host */
};

static const struct error_row error_rows[] = {
	{CURLE_COULDNT_RESOLVE_HOST, NULL, E_HTTP_RESOLVE, false, "could not be resolved"},
	{CURLE_OPERATION_TIMEDOUT, NULL, E_HTTP_TIMEOUT, true, "cannot be reached in time"},
	{CURLE_GOT_NOTHING, NULL, E_HTTP_CLOSED, true, "closed the connection without an answer"},
	{CURLE_PARTIAL_FILE, NULL, E_HTTP_CLOSED, true,
		"closed the connection in the middle of an answer"},
	{CURLE_RECV_ERROR, "alert", E_HTTP_CERT, false, "does not accept the client certificate"},
	{CURLE_SEND_ERROR, NULL, E_HTTP_CLOSED, true,
		"closed the connection in the middle of a request"},
	{CURLE_SEND_FAIL_REWIND, NULL, E_HTTP_CLOSED, true,
		"closed the connection in the middle of a request"},
	{CURLE_RECV_ERROR, "chunk", E_HTTP_PROTOCOL, false, "sends a broken chunk of an answer"},
	{CURLE_RECV_ERROR, "Too large", E_HTTP_LIMIT, false, "sends more than 64 KiB of headers"},
	{CURLE_RECV_ERROR, NULL, E_HTTP_CLOSED, true,
		"closed the connection in the middle of an answer"},
	{TOO_LARGE, NULL, E_HTTP_LIMIT, false, "sends more than 64 KiB of headers"},
	/* Memory of our own never runs out in libcurl: the line was over a limit of its own. */
	{CURLE_OUT_OF_MEMORY, NULL, E_HTTP_LIMIT, false, "sends more than 64 KiB of headers"},
	{CURLE_SSL_CONNECT_ERROR, "SYSCALL", E_HTTP_CLOSED, true,
		"closed the connection while TLS began"},
	{CURLE_SSL_CONNECT_ERROR, "eset", E_HTTP_CLOSED, true,
		"closed the connection while TLS began"},
	{CURLE_SSL_CONNECT_ERROR, "unexpected eof", E_HTTP_CLOSED, true,
		"closed the connection while TLS began"},
	{CURLE_SSL_CERTPROBLEM, NULL, E_HTTP_CERT, false,
		"cannot be asked: the client certificate or its key is not valid"},
	{CURLE_SSL_CONNECT_ERROR, "certificate required", E_HTTP_CERT, false,
		"does not accept the client certificate"},
	{CURLE_SSL_CONNECT_ERROR, "alert bad certificate", E_HTTP_CERT, false,
		"does not accept the client certificate"},
	{CURLE_SSL_CONNECT_ERROR, "alert unknown ca", E_HTTP_CERT, false,
		"does not accept the client certificate"},
	{CURLE_SSL_CONNECT_ERROR, "wrong version number", E_HTTP_TLS, false, "does not speak TLS"},
	{CURLE_SSL_CONNECT_ERROR, "packet length too long", E_HTTP_TLS, false,
		"does not speak TLS"},
	{CURLE_SSL_CONNECT_ERROR, "http request", E_HTTP_TLS, false, "does not speak TLS"},
	{CURLE_SSL_CONNECT_ERROR, NULL, E_HTTP_TLS, false, "does not begin TLS 1.2 or newer"},
	{CURLE_WEIRD_SERVER_REPLY, NULL, E_HTTP_PROTOCOL, false, "does not answer as HTTP asks"},
	{CURLE_UNSUPPORTED_PROTOCOL, NULL, E_HTTP_PROTOCOL, false, "does not speak HTTP"},
	{CURLE_URL_MALFORMAT, NULL, E_HTTP_URL, false, "has a URL that is not valid"},
};

/* Results of OpenSSL's X509_verify_cert (X509_V_ERR_*), which are numbers of its ABI. */
static const struct {
	long result;
	const char *text;
} verify_rows[] = {
	{9, "is not valid yet"},
	{10, "has expired"},
	{18, "is signed by itself only"},
	{19, "is signed by an unknown issuer"},
	{20, "is signed by an unknown issuer"},
	{21, "is signed by an unknown issuer"},
	{2, "is signed by an unknown issuer"},
	{23, "was revoked"},
	{24, "is signed by an issuer that may not sign"},
	{26, "is not for servers"},
	{62, "names other hosts"},
	{64, "names other hosts"},
	{66, "has a key that is too weak"},
	{67, "has an issuer whose key is too weak"},
	{68, "is signed with a digest that is too weak"},
};

static int add_said(const struct http_call *call, struct err *err)
{
	if (!*call->x.errbuf)
		return err->id ? -(int)err->code : 0;
	AUTO_FREE char *cut = mem_strndup(call->x.errbuf, SAID_MAX);
	AUTO_FREE char *shown = str_escaped(cut);
	return err_evidence(err, "libcurl: %s", shown);
}

static const char *verify_text(const struct http_call *call)
{
	long result = 0;

	curl_easy_getinfo(call->x.easy, CURLINFO_SSL_VERIFYRESULT, &result);
	for (size_t i = 0; i < ARRAY_LEN(verify_rows); i++)
		if (verify_rows[i].result == result)
			return verify_rows[i].text;
	/* The name is compared by libcurl itself, once the rest is well. */
	if (strstr(call->x.errbuf, "name"))
		return "names other hosts";
	return "is not accepted";
}

static int certificate_error(const struct http_call *call, const char *host, struct err *err)
{
	const char *text = verify_text(call);

	if (str_eq(text, "names other hosts") && call->tls.server_name)
		err_set(err, E_HTTP_TLS, "the certificate of %s names other hosts than %s", host,
			call->tls.server_name);
	else
		err_set(err, E_HTTP_TLS, "the certificate of %s %s", host, text);
	/* Another issuer would not help. */
	if (!strstr(text, "sign"))
		err_hint(err,
			"openssl s_client -connect %s:%u </dev/null | openssl x509 -noout -text",
			call->url.host, call->url.port);
	return add_said(call, err);
}

static int issuers_error(const struct http_call *call, const char *host, struct err *err)
{
	const char *file = http_ca_file(call);

	if (call->tls.ca_pem)
		return err_set(err, E_HTTP_TLS,
			"what is given as the issuers to trust for %s holds none", host);
	if (!file)
		return err_set(err, E_HTTP_TLS, "this system has no issuers to trust for %s", host);
	AUTO_FREE char *shown = str_escaped(file);
	return err_set(err, E_HTTP_CA, "the file %s holds no issuers to trust for %s", shown, host);
}

static int proxy_error(const struct http_call *call, struct err *err, const char *what)
{
	AUTO_FREE char *shown = NULL;
	const char *variable = NULL;
	AUTO_ERR struct err ignored = {0};

	if (call->request.proxy) {
		AUTO_FREE char *named = proxy_without_user(call->x.proxy);
		return err_set(
			err, E_HTTP_PROXY, "the proxy %s for %s %s", named, call->url.host, what);
	}
	if (proxy_shown(&call->http->proxy, &call->url, &shown, &variable, &ignored) < 0 || !shown)
		return err_set(err, E_HTTP_PROXY, "the proxy %s", what);
	AUTO_FREE char *safe = str_escaped(shown);
	err_set(err, E_HTTP_PROXY, "the proxy %s (%s) %s", safe, variable, what);
	return err_hint(err, "put %s into NO_PROXY, or correct %s", call->url.host, variable);
}

static int connect_error(const struct http_call *call, const char *host, struct err *err)
{
	long errnum = 0;

	curl_easy_getinfo(call->x.easy, CURLINFO_OS_ERRNO, &errnum);
	if (errnum == ECONNREFUSED)
		return err_set(err, E_HTTP_CONNECT, "nothing listens at %s", host);
	if (errnum)
		return err_set_errno(err, E_HTTP_CONNECT, (int)errnum, "cannot reach %s", host);
	err_set(err, E_HTTP_CONNECT, "cannot reach %s", host);
	return add_said(call, err);
}

static int row_error(struct http_call *call, CURLcode code, const char *host, struct err *err)
{
	const struct error_row *row = error_rows, *end = row + ARRAY_LEN(error_rows);

	while (row < end &&
		(row->code != code || (row->said && !strstr(call->x.errbuf, row->said))))
		row++;
	if (row == end) {
		err_set(err, E_HTTP_PROTOCOL, "the request to %s failed: %s", host,
			curl_easy_strerror(code));
		return add_said(call, err);
	}
	call->x.is_transient = row->is_transient;
	/* Servers respond alike to none and to a bad one. */
	bool has_none = row->id == E_HTTP_CERT && !call->tls.cert_pem;
	err_set(err, row->id, "%s %s", host,
		has_none ? "asks for a client certificate" : row->text);
	return row->id == E_HTTP_TLS || row->id == E_HTTP_CERT || row->id == E_HTTP_PROTOCOL
		       ? add_said(call, err)
		       : 0;
}

/* 0 if it was not the proxy. */
static int find_proxy_error(struct http_call *call, CURLcode result, struct err *err)
{
	long tunnel = 0;
	char what[64];

	if (!call->x.proxy)
		return 0;
	curl_easy_getinfo(call->x.easy, CURLINFO_HTTP_CONNECTCODE, &tunnel);
	if (tunnel == 407 || (result == CURLE_OK && call->x.status == 407))
		return proxy_error(call, err, "asks for a user name and password");
	if (result == CURLE_OK)
		return 0;
	if (tunnel >= 300) {
		call->x.is_transient = tunnel >= 502 && tunnel <= 504;
		snprintf(what, sizeof(what), "makes no connection (status %ld)", tunnel);
		return proxy_error(call, err, what);
	}
	switch (result) {
	case CURLE_COULDNT_RESOLVE_PROXY:
		return proxy_error(call, err, "could not be resolved");
	case CURLE_COULDNT_CONNECT:
		call->x.is_transient = true;
		return proxy_error(call, err, "cannot be reached");
	case CURLE_PROXY:
		proxy_error(call, err, "makes no connection");
		return add_said(call, err);
	default:
		return 0;
	}
}

void http_error(struct http_call *call, CURLcode result)
{
	struct err *err = &call->x.error;
	AUTO_FREE char *host = url_authority(&call->url);

	/* An error that is set already is the reason why libcurl was stopped. */
	if (err_is_set(err) || call->x.cut)
		return;
	/* libcurl takes headers that end with the connection for whole ones. */
	if (result == CURLE_OK && !call->x.headers_over)
		result = CURLE_PARTIAL_FILE;
	if (find_proxy_error(call, result, err) < 0 || result == CURLE_OK)
		return;
	if (result == CURLE_COULDNT_CONNECT && err_is_set(&call->x.refused)) {
		err_move(err, &call->x.refused);
	} else if (result == CURLE_COULDNT_CONNECT) {
		call->x.is_transient = true;
		connect_error(call, host, err);
	} else if (result == CURLE_PEER_FAILED_VERIFICATION) {
		certificate_error(call, host, err);
	} else if (result == CURLE_SSL_CACERT_BADFILE) {
		issuers_error(call, host, err);
	} else {
		row_error(call, result, host, err);
	}
}
