#define HTTP_CURL_LOADER
#include "net/http_curl.h"

#include "base/library.h"
#include "base/par.h"
#include "base/vec.h"
#include "net/http.h"

struct http_curl http_curl;

static const struct library_symbol symbols[] = {
#define SYMBOL(name) {offsetof(struct http_curl, name), "curl_" #name},
	HTTP_CURL(SYMBOL)
#undef SYMBOL
};

static enum library_state state;

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
	.table = &http_curl,
	.table_size = sizeof(http_curl),
	.state = &state,
};

static struct par_task *preparing;

static void prepare(void *ctx)
{
	http_first_fn *const *first = ctx;

	if (*first)
		(*first)();
	/* What fails is tried again by who needs it. */
	library_load(&library, NULL);
}

void http_prepare(http_first_fn *first)
{
	static http_first_fn *given;

	if (preparing)
		return;
	given = first;
	preparing = par_start(prepare, &given);
}

int http_curl_load(struct err *err)
{
	par_wait(preparing);
	preparing = NULL;
	return library_load(&library, err);
}
