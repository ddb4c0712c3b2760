/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/model/ref.h"

#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/digest.h"
#include "base/util/mem.h"
#include "base/util/str.h"

enum { HINT_MAX = 4096 };

static bool ref_is_alnum(char c)
{
	return str_is_lower(c) || str_is_digit(c) || (c >= 'A' && c <= 'Z');
}

bool ref_is_tag(const char *s)
{
	size_t len = strlen(s);

	if (len == 0 || len > REF_TAG_MAX || *s == '.' || *s == '-')
		return false;
	for (; *s; s++)
		if (!ref_is_alnum(*s) && !strchr("_.-", *s))
			return false;
	return true;
}

static bool is_label(const char *s, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (!ref_is_alnum(s[i]) && (s[i] != '-' || i == 0 || i + 1 == len))
			return false;
	return len > 0;
}

static bool is_domain(const char *s, size_t len)
{
	for (;;) {
		const char *dot = memchr(s, '.', len);
		size_t n = dot ? (size_t)(dot - s) : len;

		if (!is_label(s, n))
			return false;
		if (!dot)
			return true;
		s += n + 1;
		len -= n + 1;
	}
}

static bool is_ipv6(const char *s, size_t len)
{
	size_t colons = 0;

	if (len < 4 || s[0] != '[' || s[len - 1] != ']')
		return false;
	for (size_t i = 1; i + 1 < len; i++) {
		colons += s[i] == ':';
		if (!strchr("0123456789abcdefABCDEF:.", s[i]))
			return false;
	}
	return colons >= 2;
}

static bool is_port(const char *s)
{
	unsigned value = 0;

	for (size_t i = 0; s[i]; i++) {
		if (!str_is_digit(s[i]) || i == 5)
			return false;
		value = 10 * value + (unsigned)(s[i] - '0');
	}
	return value >= 1 && value <= 65535;
}

static bool ref_is_host(const char *host)
{
	const char *bracket = strrchr(host, ']');
	const char *colon = strchr(bracket ? bracket : host, ':');
	size_t len = colon ? (size_t)(colon - host) : strlen(host);

	if (strlen(host) > REF_HOST_MAX || (colon && !is_port(colon + 1)))
		return false;
	return is_domain(host, len) || is_ipv6(host, len);
}

/* How many characters separate two runs of letters and digits here: one dot, one or two
 * underscores, any number of hyphens. */
static size_t separator_len(const char *s)
{
	if (*s == '.')
		return 1;
	if (*s == '_')
		return s[1] == '_' ? 2 : 1;
	return strspn(s, "-");
}

static bool is_repo(const char *s)
{
	if (strlen(s) > REF_REPO_MAX)
		return false;
	for (;;) {
		if (!str_is_lower(*s) && !str_is_digit(*s))
			return false;
		while (str_is_lower(*s) || str_is_digit(*s))
			s++;
		if (!*s)
			return true;
		size_t len = *s == '/' ? 1 : separator_len(s);
		if (len == 0)
			return false;
		s += len;
	}
}

static int bad(struct err *err, const char *text, const char *why)
{
	AUTO_FREE char *shown = str_shown(text);

	return err_set(err, E_IMAGE_REF, "image \"%s\": %s", shown, why);
}

/* Cut "@sha256:…" off rest. */
static int cut_digest(const char *text, char *rest, struct ref *ref, struct err *err)
{
	char *at = strrchr(rest, '@');
	uint8_t sha256[SHA256_SIZE];

	if (!at || (ref->kind == REF_LAYOUT && !str_starts(at, "@sha256:")))
		return 0;
	if (!digest_parse(at + 1, sha256))
		return bad(err, text, "a digest is sha256: and 64 hex digits in lower case");
	ref->digest = mem_strdup(at + 1);
	*at = '\0';
	return 0;
}

/* Cut ":tag" off rest: what follows the last colon, unless that is a part of a path. */
static int cut_tag(const char *text, char *rest, struct ref *ref, struct err *err)
{
	char *colon = strrchr(rest, ':');

	if (!colon || strchr(colon, '/'))
		return 0;
	if (!ref_is_tag(colon + 1))
		return bad(err, text,
			"a tag has up to 128 letters, digits, _, . and -, and starts with no . or -");
	ref->tag = mem_strdup(colon + 1);
	*colon = '\0';
	return 0;
}

static int parse_layout(const char *text, char *rest, struct ref *ref, struct err *err)
{
	ref->kind = REF_LAYOUT;
	int r = cut_digest(text, rest, ref, err);
	if (r == 0)
		r = cut_tag(text, rest, ref, err);
	if (r < 0)
		return r;
	if (ref->tag && ref->digest)
		return bad(err, text, "a layout takes a tag or a digest, not both");
	size_t len = strlen(rest);
	if (len == 0)
		return bad(err, text, "there is no directory after \"oci:\"");
	while (len > 1 && rest[len - 1] == '/')
		len--;
	ref->dir = mem_strndup(rest, len);
	return 0;
}

static bool has_host(const char *rest, const char *slash)
{
	AUTO_FREE char *first = mem_strndup(rest, (size_t)(slash - rest));

	return str_eq(first, "localhost") || strpbrk(first, ".:");
}

/* "localhost:5000", "registry.example.com": who wrote that has forgotten the repository. */
static bool names_host(const char *text)
{
	size_t len = strcspn(text, ":");
	const char *name_end = text + len;

	return (len == strlen("localhost") && str_starts(text, "localhost")) ||
	       memchr(text, '.', (size_t)(name_end - text));
}

static int no_host(const char *text, const char *slash, struct err *err)
{
	int r = bad(err, text, "it names no registry");

	if (!slash && names_host(text))
		return err_hint(err, "%s/me/dlrun", text);
	if (strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789._-/:@") == strlen(text) && *text)
		err_hint(err, "docker.io/%s%s", slash ? "" : "library/", text);
	return r;
}

/* A path, as if the layout there needed no "oci:". */
static bool ref_is_path(const char *text)
{
	return *text == '/' || str_starts(text, "./") || str_starts(text, "../");
}

static int ref_no_layout(const char *text, struct err *err)
{
	int r = bad(err, text, "it names no registry; a layout on disk is oci:DIR");
	AUTO_FREE char *layout = mem_printf("oci:%s", text);
	AUTO_BUF struct buf hint = buf_with(HINT_MAX);

	str_shell_quote(&hint, layout);
	if (!hint.full)
		err_hint(err, "%s", hint.data);
	return r;
}

static int parse_registry(const char *text, char *rest, struct ref *ref, struct err *err)
{
	char *slash = strchr(rest, '/');

	if (strstr(text, "://"))
		return bad(err, text, "it is written without a scheme, as HOST/REPO:TAG");
	if (ref_is_path(text))
		return ref_no_layout(text, err);
	if (!slash || !has_host(rest, slash))
		return no_host(text, slash, err);
	*slash = '\0';
	if (!ref_is_host(rest))
		return bad(err, text, "the registry before the first / is not a HOST or HOST:PORT");
	ref->kind = REF_REGISTRY;
	ref->host = mem_strdup(rest);
	rest = slash + 1;
	int r = cut_digest(text, rest, ref, err);
	if (r == 0)
		r = cut_tag(text, rest, ref, err);
	if (r < 0)
		return r;
	if (!is_repo(rest))
		return bad(err, text,
			"a repository has lower-case letters, digits and single separators . _ - /");
	ref->repo = mem_strdup(rest);
	return 0;
}

int ref_parse(const char *text, struct ref *ret, struct err *err)
{
	AUTO_REF struct ref ref = {.kind = REF_SCRATCH};
	bool layout = str_starts(text, "oci:");
	AUTO_FREE char *rest = mem_strdup(layout ? text + 4 : text);
	int r = 0;

	if (!*text)
		return err_set(err, E_IMAGE_REF, "the reference to the image is empty");
	if (layout)
		r = parse_layout(text, rest, &ref, err);
	else if (!str_eq(text, "scratch"))
		r = parse_registry(text, rest, &ref, err);
	if (r < 0)
		return r;
	*ret = ref;
	ref = (struct ref){0};
	return 0;
}

void ref_done(struct ref *ref)
{
	if (!ref)
		return;
	free(ref->dir);
	free(ref->host);
	free(ref->repo);
	free(ref->tag);
	free(ref->digest);
	*ref = (struct ref){0};
}
