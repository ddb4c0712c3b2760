#define HTTP_CURL_LOADER
#include "net/http_curl.h"

#include "base/library.h"
#include "base/vec.h"

struct http_curl http_curl;

static const struct library_symbol symbols[] = {
#define SYMBOL(name) {offsetof(struct http_curl, name), "curl_" #name},
	HTTP_CURL(SYMBOL)
#undef SYMBOL
};

static const struct library library = {
#ifdef __APPLE__
	.file = "libcurl.4.dylib",
#else
	.file = "libcurl.so.4",
#endif
	.what = "libcurl, which speaks to registries,",
	.package = "libcurl4",
	.symbols = symbols,
	.n_symbols = ARRAY_LEN(symbols),
	.table_size = sizeof(http_curl),
};

int http_curl_load(struct err *err)
{
	return http_curl.easy_init ? 0 : library_load(&library, &http_curl, err);
}
