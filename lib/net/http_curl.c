#define HTTP_CURL_LOADER
#include "net/http_curl.h"

#include "base/library.h"
#include "base/par.h"
#include "base/thread.h"
#include "base/vec.h"
#include "net/http.h"

enum { THREADS = 4 };

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
	(void)ctx;
	/* Whoever works meanwhile would have to wait for threads. */
	thread_prepare(THREADS);
	/* What fails is tried again by who needs it. */
	library_load(&library, NULL);
}

void http_prepare(void)
{
	if (!preparing)
		preparing = par_start(prepare, NULL);
}

int http_curl_load(struct err *err)
{
	par_wait(preparing);
	preparing = NULL;
	return library_load(&library, err);
}
