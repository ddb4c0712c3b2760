/* SPDX-License-Identifier: Apache-2.0 */
#include "net/websocket/spdy_dictionary.h"

/* A word with its length in front, as in a header block. */
#define W(len, word) "\0\0\0" len word

/* clang-format off */
static const char text[] =
	W("\007", "options") W("\004", "head") W("\004", "post") W("\003", "put")
	W("\006", "delete") W("\005", "trace") W("\006", "accept") W("\016", "accept-charset")
	W("\017", "accept-encoding") W("\017", "accept-language") W("\015", "accept-ranges")
	W("\003", "age") W("\005", "allow") W("\015", "authorization") W("\015", "cache-control")
	W("\012", "connection") W("\014", "content-base") W("\020", "content-encoding")
	W("\020", "content-language") W("\016", "content-length") W("\020", "content-location")
	W("\013", "content-md5") W("\015", "content-range") W("\014", "content-type")
	W("\004", "date") W("\004", "etag") W("\006", "expect") W("\007", "expires")
	W("\004", "from") W("\004", "host") W("\010", "if-match") W("\021", "if-modified-since")
	W("\015", "if-none-match") W("\010", "if-range") W("\023", "if-unmodified-since")
	W("\015", "last-modified") W("\010", "location") W("\014", "max-forwards")
	W("\006", "pragma") W("\022", "proxy-authenticate") W("\023", "proxy-authorization")
	W("\005", "range") W("\007", "referer") W("\013", "retry-after") W("\006", "server")
	W("\002", "te") W("\007", "trailer") W("\021", "transfer-encoding") W("\007", "upgrade")
	W("\012", "user-agent") W("\004", "vary") W("\003", "via") W("\007", "warning")
	W("\020", "www-authenticate") W("\006", "method") W("\003", "get") W("\006", "status")
	W("\006", "200 OK") W("\007", "version") W("\010", "HTTP/1.1") W("\003", "url")
	W("\006", "public") W("\012", "set-cookie") W("\012", "keep-alive") W("\006", "origin")
	"100101201202205206300302303304305306307402405406407408409410411412413414415416"
	"417502504505203 Non-Authoritative Information204 No Content301 Moved Permanent"
	"ly400 Bad Request401 Unauthorized403 Forbidden404 Not Found500 Internal Server"
	" Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Au"
	"g Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text"
	"/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text"
	"/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8char"
	"set=iso-8859-1,utf-,*,enq=0.";
/* clang-format on */

const void *spdy_dictionary(size_t *ret_len)
{
	/* Without the NUL that the text ends with here. */
	*ret_len = sizeof(text) - 1;
	return text;
}
