/* SPDX-License-Identifier: Apache-2.0 */
#include "core/image/python_base.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/data/json.h"
#include "base/data/toml.h"
#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/image/base_program.h"
#include "core/image/registry_open.h"
#include "oci/model/ref.h"
#include "oci/registry/registry_cache.h"

enum { PYTHON_FILE_MAX = 1 << 20, PYTHON_LOCK_MAX = 64 << 20, PYTHON_HEAD_BYTES = 2048 };
enum { PYTHON_ASK_MS = 4000 }; /* of a registry that is asked for a public base */

void python_named_done(struct python_named *named)
{
	free(named->from);
	*named = (struct python_named){0};
}

/*
 * Versions
 */

/* The minor of the Python 3 in a part up to a comma; -1: none, or one that is excluded. */
static int python_minor(const char *part)
{
	const char *digits = part + strcspn(part, "0123456789,");
	int major = 0, minor = 0;
	bool is_one = *part != '!' && sscanf(digits, "%1d.%2d", &major, &minor) == 2;

	return is_one && major == 3 ? minor : -1;
}

int python_wanted(const char *text)
{
	int wanted = -1, most = INT_MAX;

	if (!text || str_starts(text, "pypy") || str_starts(text, "graalpy"))
		return -1;
	bool is_lower = false;
	for (const char *part = text; part; part = strchr(part, ',')) {
		part += strspn(part, ", \t");
		bool is_open = (*part == '<' || *part == '>') && part[1] != '=';
		int minor = python_minor(part);
		if (minor < 0)
			continue;
		if (*part == '<') {
			most = minor - is_open;
		} else if (wanted < 0) {
			is_lower = *part == '>';
			wanted = minor + is_open;
		}
	}
	if (most == INT_MAX)
		return is_lower && wanted < PYTHON_MINOR ? PYTHON_MINOR : wanted;
	return wanted >= 0 ? wanted : most < PYTHON_MINOR ? most : PYTHON_MINOR;
}

/* "with Python 3.11" of pip-compile, "--python-version 3.11" of uv: in the lines that say how the
 * file was made. */
static int python_of_requirements(const char *text, size_t len)
{
	static const char *const signs[] = {
		"with Python ", "--python-version ", "--python-version=", "--python ", "--python="};
	AUTO_FREE char *head = mem_strndup(text, len < PYTHON_HEAD_BYTES ? len : PYTHON_HEAD_BYTES);
	char *rest = head;

	for (char *line; (line = strsep(&rest, "\n")) && *line == '#';)
		for (size_t i = 0; i < ARRAY_LEN(signs); i++) {
			const char *at = strstr(line, signs[i]);
			if (at)
				return python_wanted(at + strlen(signs[i]));
		}
	return -1;
}

static int python_of_pipenv(const char *text, size_t len)
{
	AUTO_JSON struct json *json = NULL;

	if (json_parse(text, len, PYTHON_LOCK_MAX, "Pipfile.lock", &json, NULL) < 0)
		return -1;
	return python_wanted(
		json_get_str(json_get(json_get(json, "_meta"), "requires"), "python_version"));
}

static const struct python_lock {
	const char *name, *toml_path;
	int (*read)(const char *text, size_t len);
} python_locks[] = {
	{"uv.lock", "requires-python", NULL},
	{"pylock.toml", "requires-python", NULL},
	{"poetry.lock", "metadata.python-versions", NULL},
	{"Pipfile.lock", NULL, python_of_pipenv},
	{"requirements.txt", NULL, python_of_requirements},
};

static int python_of_file(const struct python_lock *lock, const char *text, size_t len)
{
	if (lock->read)
		return lock->read(text, len);
	AUTO_FREE char *wanted = toml_find_string(text, len, lock->toml_path);
	return python_wanted(wanted);
}

int python_of_lock(const char *name, const char *text, size_t len)
{
	for (size_t i = 0; i < ARRAY_LEN(python_locks); i++)
		if (str_eq(python_locks[i].name, name))
			return python_of_file(&python_locks[i], text, len);
	return -1;
}

/*
 * Files
 */

static bool python_read(const char *dir, const char *name, size_t max, struct buf *ret)
{
	AUTO_FREE char *path = fs_join(dir, name);
	struct stat st;

	return stat(path, &st) == 0 && S_ISREG(st.st_mode) &&
	       fs_read(path, max, ret, NULL, NULL) == 0;
}

static bool python_set(struct python_named *ret, int minor, const char *name)
{
	if (minor < 0)
		return false;
	*ret = (struct python_named){.minor = minor, .from = mem_printf("the Python of %s", name)};
	return true;
}

static bool python_find_pyproject(const char *dir, struct python_named *ret)
{
	static const char file[] = "pyproject.toml";
	static const char *const paths[] = {
		"project.requires-python", "tool.poetry.dependencies.python"};
	AUTO_BUF struct buf text = {0};

	if (!python_read(dir, file, PYTHON_FILE_MAX, &text))
		return false;
	for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
		AUTO_FREE char *wanted = toml_find_string(text.data, text.len, paths[i]);
		if (python_set(ret, python_wanted(wanted), file))
			return true;
	}
	return false;
}

static bool python_find_lock(const char *dir, struct python_named *ret)
{
	const char *nameless = NULL;

	for (size_t i = 0; i < ARRAY_LEN(python_locks); i++) {
		const struct python_lock *lock = &python_locks[i];
		AUTO_BUF struct buf text = {0};
		if (!python_read(dir, lock->name, PYTHON_LOCK_MAX, &text))
			continue;
		if (python_set(ret, python_of_file(lock, text.data, text.len), lock->name))
			return true;
		nameless = nameless ? nameless : lock->name;
	}
	if (!nameless)
		return false;
	*ret = (struct python_named){.minor = PYTHON_MINOR,
		.is_any = true,
		.from = mem_printf("%s names no version", nameless)};
	return true;
}

static const char *python_lock_there(const char *dir)
{
	static const char *const names[] = {"uv.lock", "requirements.txt"};

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		AUTO_FREE char *path = fs_join(dir, names[i]);
		struct stat st;
		if (stat(path, &st) == 0 && S_ISREG(st.st_mode))
			return names[i];
	}
	return NULL;
}

/* "3" and an empty file leave it open. The caller frees; NULL: they do. */
static char *python_unknown(const char *text)
{
	AUTO_FREE char *line = mem_strndup(text, strcspn(text, "\r\n"));

	if (str_empty(line) || str_eq(line, "3"))
		return NULL;
	AUTO_FREE char *shown = str_shown(line);
	return mem_printf("'%s' in .python-version is not a version of Python 3", shown);
}

bool python_find(const char *dir, struct python_named *ret)
{
	static const char pinned[] = ".python-version";
	AUTO_FREE char *unknown = NULL;
	AUTO_BUF struct buf text = {0};
	bool is_found = false;

	*ret = (struct python_named){0};
	if (python_read(dir, pinned, PYTHON_FILE_MAX, &text)) {
		is_found = python_set(ret, python_wanted(text.data), pinned);
		unknown = is_found ? NULL : python_unknown(text.data);
	}
	is_found = is_found || python_find_pyproject(dir, ret) || python_find_lock(dir, ret);
	if (is_found)
		ret->lock = python_lock_there(dir);
	if (unknown && is_found) {
		AUTO_FREE char *from = ret->from;
		ret->from = mem_printf("%s; %s", from, unknown);
	} else if (unknown) {
		ret->from = TAKE(unknown);
	}
	return is_found;
}

bool python_find_above(const struct tree_place *place, struct python_named *ret)
{
	AUTO_FREE char *prefix = mem_strdup(place->prefix), *unknown = NULL;

	for (;;) {
		AUTO_FREE char *dir = fs_join(place->root, prefix);
		bool is_found = python_find(dir, ret), is_root = str_eq(prefix, ".");
		AUTO_FREE char *from = is_found ? NULL : TAKE(ret->from);
		if (is_found && unknown) {
			from = ret->from;
			ret->from = mem_printf("%s; %s", from, unknown);
		} else if (from && !unknown) {
			unknown = TAKE(from);
		}
		if (is_found || is_root) {
			ret->from = is_found ? ret->from : TAKE(unknown);
			return is_found;
		}
		char *slash = strrchr(prefix, '/');
		if (!slash) {
			*prefix = '.';
			slash = prefix + 1;
		}
		*slash = '\0';
	}
}

/*
 * The image
 */

/* Docker Hub, and a copy of its official images that asks for no login. */
static const char *const python_repositories[] = {
	"docker.io/library/python", "public.ecr.aws/docker/library/python"};

char *python_base_image(const char *repository, int minor, const char *program)
{
	if (!repository && str_eq(program, "uv"))
		return mem_printf("ghcr.io/astral-sh/uv:python3.%d-bookworm", minor);
	return mem_printf("%s:3.%d-slim", repository ? repository : python_repositories[0], minor);
}

/* In the order of preference. A name in `bases:` that no registry could have is an error. */
static int python_images(const struct config *config, int minor, const char *program,
	struct strv *ret, struct err *err)
{
	const struct strv *bases = config_list(config, "bases");

	for (size_t i = 0; i < bases->n; i++) {
		AUTO_REF struct ref ref = {0};
		strv_add_take(ret, python_base_image(bases->v[i], minor, program));
		if (ref_parse(ret->v[i], &ref, err) == 0)
			continue;
		err_prefix(err, "bases");
		config_blame(config, "bases", err);
		return err_hint(err, "bases: [registry.example.com/mirror/python]");
	}
	if (ret->n == 0 && str_eq(program, "uv"))
		strv_add_take(ret, python_base_image(NULL, minor, program));
	else if (ret->n == 0)
		for (size_t i = 0; i < ARRAY_LEN(python_repositories); i++)
			strv_add_take(ret, python_base_image(python_repositories[i], minor, NULL));
	return 0;
}

/* Where a push keeps what it has seen of the image's repository. */
static char *python_cache_of(const struct session *session, const struct ref *ref)
{
	AUTO_FREE char *dir = dirs_registries(&session->dirs);

	return registry_cache_path(dir, ref->host, ref->repo);
}

static bool python_was_seen(
	const struct session *session, const struct ref *ref, const char *platform)
{
	AUTO_FREE char *path = python_cache_of(session, ref);
	AUTO_FREE char *key = registry_cache_tag(ref, platform);
	AUTO_REGISTRY_CACHE struct registry_cache cache = {0};

	registry_cache_load(path, &cache);
	return registry_cache_entry_is_fresh(registry_cache_entry_find(&cache.tags, key),
		clock_wall_ms(), REGISTRY_TRUST_BLOB_MS);
}

static void python_remember(
	const struct session *session, const struct base_lookup *lookup, const char *platform)
{
	AUTO_FREE char *dir = dirs_registries(&session->dirs);
	AUTO_FREE char *path = python_cache_of(session, &lookup->ref);
	AUTO_FREE char *key = registry_cache_tag(&lookup->ref, platform);
	AUTO_REGISTRY_CACHE struct registry_cache cache = {0};

	/* Without a cache it is asked again. */
	if (fs_private_dir(dir, NULL) < 0)
		return;
	registry_cache_load(path, &cache);
	registry_cache_put(&cache, &cache.tags, key, lookup->digest, clock_wall_ms());
	registry_cache_save(path, &cache, NULL);
}

static int python_ask(
	struct session *session, const char *image, const char *platform, struct err *err)
{
	AUTO_BASE_LOOKUP struct base_lookup lookup = {0};
	AUTO_REF struct ref ref = {0};

	int r = ref_parse(image, &ref, err);
	if (r < 0)
		return r;
	if (ref.kind != REF_REGISTRY)
		return err_set(err, E_CONFIG, "%s is not in a registry", image);
	if (python_was_seen(session, &ref, platform))
		return 0;
	r = base_lookup_init(&lookup, session, PYTHON_ASK_MS, err);
	if (r == 0)
		r = base_lookup_run(&lookup, image, platform, err);
	if (r == 0)
		python_remember(session, &lookup, platform);
	return r;
}

int python_base_choose(struct session *session, const struct python_named *named,
	const char *program, char **ret, char **ret_shown, struct err *err)
{
	AUTO_STRV struct strv images = {0};
	AUTO_FREE char *silent = NULL;
	struct config *config;
	size_t chosen = 0;

	int r = session_config(session, &config, err);
	if (r < 0)
		return r;
	const char *platform = config_str(config, "platform");
	r = python_images(config, named->minor, program, &images, err);
	if (r < 0)
		return r;
	for (; chosen < images.n; chosen++) {
		AUTO_ERR struct err error = {0};
		if (python_ask(session, images.v[chosen], platform, &error) == 0)
			break;
		if (error.code == ERR_CANCELED)
			return err_move(err, &error);
		if (!silent)
			silent = mem_strdup(error.message);
	}
	*ret = mem_strdup(images.v[chosen < images.n ? chosen : 0]);
	*ret_shown = mem_printf(
		"%s (%s)%s%s", *ret, named->from, silent ? "; " : "", silent ? silent : "");
	return 0;
}
