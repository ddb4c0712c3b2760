/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/http/proxy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char password[] = "hunter2";

/* A proxy that was taken is taken again, as it is written. */
static void check_again(const struct url *url, const char *proxy, const char *shown)
{
	struct proxy_env env = {.https_proxy = proxy};
	AUTO_FREE char *again = NULL;

	BUG_ON(!strstr(proxy, "://") || !str_is_plain(proxy));
	BUG_ON(proxy_for(&env, url, &again, NULL) < 0 || !str_eq(proxy, again));
	BUG_ON(strchr(shown, '@') || strlen(shown) > strlen(proxy));
}

static void check(const struct proxy_env *env, const struct url *url)
{
	AUTO_FREE char *proxy = NULL;
	AUTO_FREE char *shown = NULL;
	const char *variable = NULL;
	AUTO_ERR struct err err = {0};

	if (proxy_for(env, url, &proxy, &err) < 0) {
		BUG_ON(err.id != E_CONFIG || !str_is_plain(err.message));
		BUG_ON(strstr(err.message, password) || strstr(err.hint, password));
		return;
	}
	BUG_ON(proxy_shown(env, url, &shown, &variable, NULL) < 0 || !proxy != !shown);
	BUG_ON(!proxy != !variable || (proxy && url_is_loopback(url)));
	if (proxy)
		check_again(url, proxy, shown);
}

/* The lines of the input: proxy, list of exceptions, host. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_FREE char *text = mem_strndup((const char *)data, size);
	char *no_proxy = text + strcspn(text, "\n");
	char *host = no_proxy;
	struct proxy_env env = {.https_proxy = text, .no_proxy = no_proxy};
	AUTO_FREE char *with_password = NULL;
	AUTO_URL struct url url = {0};

	if (*no_proxy)
		*no_proxy++ = '\0';
	host = no_proxy + strcspn(no_proxy, "\n");
	if (*host)
		*host++ = '\0';
	env.no_proxy = no_proxy;
	if (url_make(true, host, "/", &url, NULL) < 0 &&
		url_make(true, "r.example:5000", "/", &url, NULL) < 0)
		return 0;
	check(&env, &url);
	with_password = mem_printf("http://me:%s@%s", password, text);
	env.https_proxy = with_password;
	check(&env, &url);
	/* A host is excluded by its own authority. */
	AUTO_FREE char *authority = url_authority(&url);
	env.no_proxy = authority;
	AUTO_FREE char *none = NULL;
	BUG_ON(proxy_for(&env, &url, &none, NULL) < 0 || none);
	return 0;
}
