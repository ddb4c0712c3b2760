/* SPDX-License-Identifier: Apache-2.0 */
#include "net/s3/s3_profile.h"

#include <stdlib.h>
#include <string.h>

#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/str.h"

static const char s3_blanks[] = " \t\r";

static char *s3_trim(const char *text, size_t len)
{
	while (len > 0 && strchr(s3_blanks, *text))
		text++, len--;
	while (len > 0 && strchr(s3_blanks, text[len - 1]))
		len--;
	return mem_strndup(text, len);
}

/* "[NAME]", with any blanks. */
static bool s3_is_section(const char *line, const char *name)
{
	const char *end = strchr(line, ']');

	if (!end)
		return false;
	AUTO_FREE char *inside = s3_trim(line + 1, (size_t)(end - line) - 1);
	char *to = inside;
	for (const char *at = inside; *at; at++)
		if (!strchr(s3_blanks, *at) || (to > inside && to[-1] != ' '))
			*to++ = strchr(s3_blanks, *at) ? ' ' : *at;
	*to = '\0';
	return str_eq(inside, name);
}

static void s3_setting_add(struct strv *settings, const char *pair)
{
	if (settings->n < S3_PROFILE_KEYS_MAX)
		env_set(settings, pair, true);
}

/* A line of the section; *block (owned) is the nested block that it belongs to, or NULL. */
static void s3_section_line(const char *line, bool is_indented, char **block, struct strv *settings)
{
	const char *equals = strchr(line, '=');

	if (!equals)
		return;
	AUTO_FREE char *key = s3_trim(line, (size_t)(equals - line));
	AUTO_FREE char *value = s3_trim(equals + 1, strlen(equals + 1));
	AUTO_FREE char *pair = mem_printf("%s%s%s=%s", is_indented && *block ? *block : "",
		is_indented && *block ? "." : "", key, value);
	if (!is_indented) {
		free(*block);
		*block = *value ? NULL : mem_strdup(key);
	}
	if (*key && *value)
		s3_setting_add(settings, pair);
}

void s3_section_read(const char *text, size_t len, const char *name, struct strv *settings)
{
	const char *end = text + len;
	AUTO_FREE char *block = NULL;
	bool is_inside = false;

	while (text < end) {
		const char *stop = memchr(text, '\n', (size_t)(end - text));
		size_t n = (size_t)((stop ? stop : end) - text);
		AUTO_FREE char *line = s3_trim(text, n);

		if (*line == '[')
			is_inside = s3_is_section(line, name);
		else if (is_inside && *line && *line != '#' && *line != ';')
			s3_section_line(line, strchr(s3_blanks, *text), &block, settings);
		text += n + 1;
	}
}

const char *s3_profile_get(const struct s3_profile *profile, const char *key)
{
	return profile->settings.n ? env_get((const char *const *)profile->settings.v, key) : NULL;
}

void s3_profile_done(struct s3_profile *profile)
{
	if (!profile)
		return;
	free(profile->name);
	free(profile->region);
	free(profile->endpoint);
	free(profile->sts);
	vec_foreach (char *, setting, &profile->settings)
		explicit_bzero(*setting, strlen(*setting));
	strv_done(&profile->settings);
	strv_done(&profile->files);
	*profile = (struct s3_profile){0};
}

/* The text of a file: empty where there is none. */
static int s3_file_read(const char *const *env, const char *variable, const char *name,
	struct s3_profile *profile, struct buf *ret, struct err *err)
{
	const char *home = env_get(env, "HOME"), *named = env_get(env, variable);
	bool missing = false;

	buf_init(ret, S3_FILE_MAX);
	if (str_empty(named) && str_empty(home))
		return 0;
	AUTO_FREE char *path =
		str_empty(named) ? mem_printf("%s/.aws/%s", home, name) : mem_strdup(named);
	buf_done(ret);
	int r = fs_read(path, S3_FILE_MAX, ret, &missing, err);
	if (r == 0) {
		strv_add(&profile->files, path);
		return 0;
	}
	buf_done(ret);
	buf_init(ret, S3_FILE_MAX);
	if (!missing)
		return err_set(err, E_S3_CONFIG, "%s cannot be read", path);
	err_clear(err);
	return 0;
}

static void s3_wiped(struct buf *text)
{
	if (text->data)
		explicit_bzero(text->data, text->len);
	buf_done(text);
}

/* The settings of the profile, and of the services that it names. */
static int s3_settings_read(const char *const *env, struct s3_profile *profile, struct err *err)
{
	AUTO(s3_wiped) struct buf keys = {0}, config = {0};
	bool is_default = str_eq(profile->name, "default");
	AUTO_FREE char *section = mem_printf("%s%s", is_default ? "" : "profile ", profile->name);
	int r = s3_file_read(
		env, "AWS_SHARED_CREDENTIALS_FILE", "credentials", profile, &keys, err);

	if (r == 0)
		r = s3_file_read(env, "AWS_CONFIG_FILE", "config", profile, &config, err);
	if (r < 0)
		return r;
	s3_section_read(keys.data, keys.len, profile->name, &profile->settings);
	s3_section_read(config.data, config.len, section, &profile->settings);
	const char *services = s3_profile_get(profile, "services");
	AUTO_FREE char *more = mem_printf("services %s", services ? services : "");
	if (services)
		s3_section_read(config.data, config.len, more, &profile->settings);
	return 0;
}

static const char *s3_env_first(const char *const *env, const char *one, const char *two)
{
	const char *value = env_get(env, one);

	if (str_empty(value))
		value = env_get(env, two);
	return str_empty(value) ? NULL : value;
}

char *s3_profile_endpoint(const char *const *env, const struct s3_profile *profile,
	const char *variable, const char *setting)
{
	const char *ignores = env_get(env, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS");
	const char *value = s3_env_first(env, variable, "AWS_ENDPOINT_URL");

	if (ignores && str_eq(ignores, "true"))
		return NULL;
	if (!value)
		value = s3_profile_get(profile, setting);
	if (!value)
		value = s3_profile_get(profile, "endpoint_url");
	return mem_strdup(value);
}

int s3_profile_read(const char *const *env, struct s3_profile *ret, struct err *err)
{
	const char *named = s3_env_first(env, "AWS_PROFILE", "AWS_DEFAULT_PROFILE");
	struct s3_profile profile = {.name = mem_strdup(named ? named : "default")};
	int r = s3_settings_read(env, &profile, err);

	if (r == 0 && named && profile.settings.n == 0) {
		AUTO_FREE char *shown = str_shown(named);

		r = err_set(err, E_S3_CONFIG, "AWS_PROFILE names %s, which no file has", shown);
		err_hint(err, "aws configure --profile %s", shown);
	}
	if (r < 0) {
		s3_profile_done(&profile);
		return r;
	}
	const char *region = s3_env_first(env, "AWS_REGION", "AWS_DEFAULT_REGION");
	if (!region)
		region = s3_profile_get(&profile, "region");
	profile.region = mem_strdup(region ? region : "us-east-1");
	profile.endpoint =
		s3_profile_endpoint(env, &profile, "AWS_ENDPOINT_URL_S3", "s3.endpoint_url");
	profile.sts =
		s3_profile_endpoint(env, &profile, "AWS_ENDPOINT_URL_STS", "sts.endpoint_url");
	profile.tls.ca_file = env_get(env, "AWS_CA_BUNDLE");
	if (str_empty(profile.tls.ca_file))
		profile.tls.ca_file = s3_profile_get(&profile, "ca_bundle");
	*ret = profile;
	return 0;
}
