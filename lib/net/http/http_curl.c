/* SPDX-License-Identifier: Apache-2.0 */
#define HTTP_CURL_LOADER
#include "net/http/http_curl.h"

#include <stdlib.h>

#include "base/loop/library.h"
#include "base/loop/par.h"
#include "base/util/mem.h"
#include "base/util/vec.h"
#include "net/http/http.h"

enum { THREADS = 4 };

struct http_curl http_curl;

static void *hook_calloc(size_t n, size_t size)
{
	return mem_alloc(n, size);
}

static char *hook_strdup(const char *s)
{
	return mem_strdup(s);
}

static CURLcode started;

static void http_curl_start(void)
{
	started = http_curl.global_init_mem(CURL_GLOBAL_DEFAULT, mem_hook_malloc, free,
		mem_hook_realloc, hook_strdup, hook_calloc);
}

static const struct library_symbol symbols[] = {
#define SYMBOL(name) {offsetof(struct http_curl, name), "curl_" #name},
	HTTP_CURL(SYMBOL)
#undef SYMBOL
};

static enum library_state state;

LIBRARY_NOTE(
	"http", "HTTP and TLS: registries and clusters", "required", LIBRARY_FILE("curl", "4"));

static const struct library library = {
	.file = LIBRARY_FILE("curl", "4"),
	.what = "libcurl, which speaks to registries,",
	.package = "libcurl4",
	.symbols = symbols,
	.n_symbols = ARRAY_LEN(symbols),
	.table = &http_curl,
	.table_size = sizeof(http_curl),
	.start = http_curl_start,
	.state = &state,
};

static struct par_task *preparing;

static void http_curl_prepare(void *ctx UNUSED)
{
	/* Start threads first: work begun meanwhile would have to wait for them. */
	thread_prepare(THREADS);
	/* http_curl_load retries after an error. */
	library_load(&library, NULL);
}

void http_prepare(void)
{
	if (!preparing && state != LIBRARY_LOADED)
		preparing = par_start(http_curl_prepare, NULL);
}

void http_curl_wait(void)
{
	par_wait(preparing);
	preparing = NULL;
}

int http_curl_load(struct err *err)
{
	http_curl_wait();
	int r = library_load(&library, err);
	if (r == 0 && started != CURLE_OK)
		r = err_set(
			err, E_BUG, "libcurl does not start: %s", http_curl.easy_strerror(started));
	return r;
}
