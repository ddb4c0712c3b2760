/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decide which hosts are one site. The Public Suffix List is not used, because every machine has
 * another version of it or none: a missing name costs a line in the user's configuration, a name
 * too many gives a login to a stranger.
 */
#include <string.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/stream/address.h"
#include "oci/auth/auth.h"

/* Below these anybody can have a name: each is a site of its own. */
static const char *const shared_domains[] = {"amazonaws.com", "app.github.dev", "appspot.com",
	"arpa", "azure-api.net", "azurecr.io", "azurefd.net", "azurewebsites.net",
	"cloudapp.azure.com", "cloudapp.net", "cloudfront.net", "cluster.local", "ddns.net",
	"deno.dev", "digitaloceanspaces.com", "duckdns.org", "dyndns.org", "fly.dev", "github.io",
	"gitlab.io", "herokuapp.com", "jfrog.io", "loca.lt", "netlify.app", "ngrok-free.app",
	"ngrok.app", "ngrok.dev", "ngrok.io", "nip.io", "no-ip.org", "ondigitalocean.app",
	"onrender.com", "pages.dev", "pkg.dev", "railway.app", "run.app", "sslip.io",
	"trycloudflare.com", "ts.net", "vercel.app", "web.app", "windows.net", "workers.dev",
	"xip.io"};

/* Second-level labels that many share below a country's two letters: co.uk, com.cn, ac.jp. */
static const char *const second_levels[] = {"ac", "co", "com", "edu", "go", "gob", "gouv", "gov",
	"ne", "net", "nom", "or", "org", "sch"};

static bool is_below(const char *host, const char *domain)
{
	size_t len = strlen(host), end = strlen(domain);

	return len > end && host[len - end - 1] == '.' && str_eq(host + len - end, domain);
}

/* The label before at, which is the start of one. */
static const char *label_before(const char *host, const char *at)
{
	if (at == host)
		return host;
	for (at--; at > host && at[-1] != '.';)
		at--;
	return at;
}

static bool is_second_level(const char *label, const char *top)
{
	size_t len = (size_t)(top - label) - 1;

	if (strlen(top) != 2)
		return false;
	for (size_t i = 0; i < ARRAY_LEN(second_levels); i++)
		if (strlen(second_levels[i]) == len && strncmp(label, second_levels[i], len) == 0)
			return true;
	return false;
}

/* The end of host that is its site: "docker.io" of auth.docker.io. */
static const char *site_of(const char *host)
{
	const char *top = label_before(host, host + strlen(host));
	const char *second = label_before(host, top);

	/* The end of host stands for a label with nothing behind it. */
	if (*top == '\0' || second == top)
		return host;
	for (size_t i = 0; i < ARRAY_LEN(shared_domains); i++)
		if (is_below(host, shared_domains[i]))
			return host;
	return is_second_level(second, top) ? label_before(host, second) : second;
}

static char *without_dot(const char *host)
{
	size_t len = strlen(host);

	return mem_strndup(host, len > 0 && host[len - 1] == '.' ? len - 1 : len);
}

bool auth_is_same_site(const char *a, const char *b)
{
	AUTO_FREE char *one = without_dot(a);
	AUTO_FREE char *other = without_dot(b);
	enum address_zone zone;

	if (str_eq(one, other))
		return true;
	if (address_zone_of_text(one, &zone) || address_zone_of_text(other, &zone))
		return false;
	return str_eq(site_of(one), site_of(other));
}
