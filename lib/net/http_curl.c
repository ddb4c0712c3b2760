#define HTTP_CURL_LOADER
#include "net/http_curl.h"

#include <dlfcn.h>
#include <string.h>

#include "base/auto.h"
#include "base/str.h"
#include "base/vec.h"

#ifdef __APPLE__
#define LIBRARY "libcurl.4.dylib"
#else
#define LIBRARY "libcurl.so.4"
#endif

struct http_curl http_curl;

static const struct {
	size_t offset;
	const char *name;
} symbols[] = {
#define SYMBOL(name) {offsetof(struct http_curl, name), "curl_" #name},
	HTTP_CURL(SYMBOL)
#undef SYMBOL
};

static int fail(struct err *err)
{
	AUTO_FREE char *shown = str_shown(dlerror());

	err_set(err, E_IO, "libcurl, which speaks to registries, cannot be loaded");
	err_evidence(err, "%s", shown);
	return err_hint(err, "apt-get install libcurl4");
}

int http_curl_load(struct err *err)
{
	struct http_curl loaded;

	if (http_curl.easy_init)
		return 0;
	/* It stays: threads of it may be looking up names. */
	void *library = dlopen(LIBRARY, RTLD_LAZY | RTLD_LOCAL);
	if (!library)
		return fail(err);
	for (size_t i = 0; i < ARRAY_LEN(symbols); i++) {
		void *symbol = dlsym(library, symbols[i].name);
		if (!symbol)
			return fail(err);
		/* ISO C has no conversion from an object to a function; POSIX's dlsym has. */
		memcpy((char *)&loaded + symbols[i].offset, &symbol, sizeof(symbol));
	}
	http_curl = loaded;
	return 0;
}
