/* SPDX-License-Identifier: Apache-2.0 */
#include "core/image/base_program.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/image/registry_open.h"

void base_lookup_done(struct base_lookup *lookup)
{
	if (!lookup)
		return;
	image_base_free(lookup->base);
	layout_free(lookup->layout);
	if (lookup->dir)
		fs_remove_tree(AT_FDCWD, lookup->dir, NULL);
	free(lookup->dir);
	free(lookup->digest);
	ref_done(&lookup->ref);
	err_done(&lookup->error);
	registry_client_done(&lookup->client);
}

static int make_layout(struct base_lookup *lookup, const char *tmp, struct err *err)
{
	char *dir = mem_printf("%s/dlrun-base-XXXXXX", str_empty(tmp) ? "/tmp" : tmp);

	if (!mkdtemp(dir)) {
		fs_error(err, errno, "%s cannot be made", dir);
		free(dir);
		return -ERR_IO;
	}
	lookup->dir = dir;
	return layout_open(dir, true, &lookup->layout, err);
}

int base_lookup_init(
	struct base_lookup *lookup, struct session *session, int64_t limit_ms, struct err *err)
{
	int r = registry_query_init(&lookup->client, session, limit_ms, err);

	return r == 0 ? make_layout(lookup, env_get(session->env.env, "TMPDIR"), err) : r;
}

static int on_base(void *ctx, const char *digest, struct err *error, struct err *err UNUSED)
{
	struct base_lookup *lookup = ctx;

	lookup->digest = mem_strdup(digest);
	if (error)
		err_move(&lookup->error, error);
	loop_wait_done(&lookup->wait);
	return 0;
}

int base_lookup_run(
	struct base_lookup *lookup, const char *name, const char *platform, struct err *err)
{
	AUTO_FREE char *repository = NULL;
	AUTO_REGISTRY struct registry *registry = NULL;
	struct registry_base *base;

	int r = ref_parse(name, &lookup->ref, err);
	if (r < 0)
		return r;
	repository = mem_printf("%s/%s", lookup->ref.host, lookup->ref.repo);
	r = registry_query_open(&lookup->client, repository, false, &registry, err);
	if (r < 0)
		return r;
	base = registry_base_start(registry, &(struct registry_base_request){.ref = &lookup->ref,
						     .platform = platform,
						     .cache = lookup->layout,
						     .found = on_base,
						     .ctx = lookup});
	lookup->wait = (struct loop_wait){.loop = lookup->client.options.loop, .n_open = 1};
	r = loop_wait_run(&lookup->wait, err);
	registry_base_free(base);
	if (r < 0 || err_is_set(&lookup->error))
		return r < 0 ? r : err_move(err, &lookup->error);
	return image_base_load(lookup->layout, name, lookup->digest, platform, &lookup->base, err);
}

/* Bytes of compressed layers that are read: the root file systems of distributions, not what takes
 * seconds to unpack. */
enum { LAYERS_MAX = 32 << 20 };

static const char default_path[] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

void base_program_done(struct base_program *found)
{
	if (!found)
		return;
	free(found->why);
	*found = (struct base_program){0};
}

static void base_program_set(struct base_program *ret, enum base_has has, char *why)
{
	base_program_done(ret);
	*ret = (struct base_program){.has = has, .why = why};
}

/*
 * The configuration
 */

/* Variables that images with the program set, going by the names of the official images. */
static const struct sign {
	const char *program, *env;
} signs[] = {
	{"R", "R_VERSION"},
	{"Rscript", "R_VERSION"},
	{"go", "GOLANG_VERSION"},
	{"java", "JAVA_VERSION"},
	{"julia", "JULIA_VERSION"},
	{"node", "NODE_VERSION"},
	{"npm", "NODE_VERSION"},
	{"pip", "PYTHON_VERSION"},
	{"python", "CONDA_DIR"},
	{"python", "CONDA_PREFIX"},
	{"python", "NVIDIA_PYTORCH_VERSION"},
	{"python", "NVIDIA_TENSORFLOW_VERSION"},
	{"python", "PYTHON_VERSION"},
	{"python", "PYTORCH_VERSION"},
	{"python", "VIRTUAL_ENV"},
	{"ruby", "RUBY_VERSION"},
	{"torchrun", "NVIDIA_PYTORCH_VERSION"},
	{"torchrun", "PYTORCH_VERSION"},
};

/* Directories on PATH that a Python of its own lies in. */
static const char *const python_dirs[] = {"conda", "mamba", "miniforge", "pyenv", "venv"};

/* Programs that no distribution's root file system has by itself. Debian's has perl. */
static const char *const never_bare[] = {"R", "Rscript", "accelerate", "conda", "deepspeed", "go",
	"ipython", "java", "julia", "jupyter", "node", "npm", "papermill", "pip", "pip3", "python",
	"python3", "ruby", "torchrun", "uv"};

static bool base_program_is_python(const char *program)
{
	return str_eq(program, "python") || str_eq(program, "python3");
}

/* K of "K=V" with that name, or NULL: its value. */
static const char *base_program_env_of(const struct json *config, const char *name)
{
	const struct json *env = json_get(json_get(config, "config"), "Env");
	size_t len = strlen(name);

	for (const struct json *item = env && json_kind(env) == JSON_ARRAY ? json_first(env) : NULL;
		item; item = json_next(item)) {
		const char *pair = json_str(item);
		if (pair && strncmp(pair, name, len) == 0 && pair[len] == '=')
			return pair + len + 1;
	}
	return NULL;
}

/* "python3" in "apt-get install -y python3 git", not in "python3.11" or "www.python3.org". */
static bool base_program_has_word(const char *text, const char *word)
{
	size_t len = strlen(word);

	for (const char *at = strstr(text, word); at; at = strstr(at + 1, word)) {
		unsigned char before = at > text ? (unsigned char)at[-1] : ' ',
			      after = (unsigned char)at[len];
		if (!isalnum(before) && before != '.' && !isalnum(after) && after != '.')
			return true;
	}
	return false;
}

static bool starts_with_program(const struct json *words, const char *program)
{
	const char *first =
		words && json_kind(words) == JSON_ARRAY ? json_str(json_first(words)) : NULL;

	return first && str_eq(fs_basename(first), program);
}

static bool by_env(const struct json *config, const char *program, struct base_program *ret)
{
	const char *path = base_program_env_of(config, "PATH"),
		   *family = base_program_is_python(program) ? "python" : program;

	for (size_t i = 0; i < ARRAY_LEN(signs); i++)
		if (str_eq(signs[i].program, family) && base_program_env_of(config, signs[i].env)) {
			base_program_set(ret, BASE_HAS, mem_printf("its Env has %s", signs[i].env));
			return true;
		}
	for (size_t i = 0; path && base_program_is_python(program) && i < ARRAY_LEN(python_dirs);
		i++)
		if (strstr(path, python_dirs[i])) {
			base_program_set(ret, BASE_HAS,
				mem_printf("its PATH has a directory of %s", python_dirs[i]));
			return true;
		}
	return false;
}

/* The commands that made it. */
static const struct json *history_of(const struct json *config)
{
	const struct json *list = json_get(config, "history");

	return list && json_kind(list) == JSON_ARRAY ? json_first(list) : NULL;
}

static bool by_words(const struct json *config, const char *program, struct base_program *ret)
{
	const struct json *run = json_get(config, "config");

	if (starts_with_program(json_get(run, "Cmd"), program) ||
		starts_with_program(json_get(run, "Entrypoint"), program)) {
		base_program_set(ret, BASE_HAS, mem_printf("it starts %s by itself", program));
		return true;
	}
	for (const struct json *item = history_of(config); item; item = json_next(item)) {
		const char *by = json_get_str(item, "created_by");
		if (by && base_program_has_word(by, program)) {
			base_program_set(
				ret, BASE_HAS, mem_printf("its history names %s", program));
			return true;
		}
	}
	return false;
}

/* A line of a Dockerfile that only sets something. */
static bool base_program_is_setting(const char *by)
{
	static const char *const words[] = {"ARG ", "CMD ", "ENV ", "LABEL ", "MAINTAINER "};
	static const char nop[] = "/bin/sh -c #(nop)  ";

	if (str_starts(by, nop))
		by += strlen(nop);
	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		if (str_starts(by, words[i]))
			return true;
	return false;
}

/* The command that made the only layer; NULL: not known, or the image has more. */
static const char *maker_of(const struct json *config, size_t n_layers)
{
	const char *made = NULL;

	for (const struct json *item = history_of(config); item; item = json_next(item)) {
		const char *by = json_get_str(item, "created_by");
		if (by && base_program_is_setting(by))
			continue;
		if (!by || made || n_layers != 1 || json_get_bool(item, "empty_layer", false))
			return NULL;
		made = by;
	}
	return made;
}

/* The distribution whose plain root file system this is; NULL: not a known one. */
static const char *distribution_of(const char *made)
{
	static const struct {
		const char *begin, *name;
	} known[] = {
		{"ADD alpine-minirootfs-", "Alpine"},
		{"BusyBox ", "BusyBox"},
		{"# debian.sh ", "Debian"},
	};

	for (size_t i = 0; made && i < ARRAY_LEN(known); i++)
		if (str_starts(made, known[i].begin))
			return known[i].name;
	return NULL;
}

static bool is_never_bare(const char *program)
{
	for (size_t i = 0; i < ARRAY_LEN(never_bare); i++)
		if (str_eq(never_bare[i], program))
			return true;
	return false;
}

void base_program_of_config(
	const struct json *config, size_t n_layers, const char *program, struct base_program *ret)
{
	const char *made = maker_of(config, n_layers), *distribution = distribution_of(made);

	*ret = (struct base_program){0};
	if (n_layers == 0)
		base_program_set(ret, BASE_LACKS, mem_strdup("it is empty"));
	else if (distribution && is_never_bare(program))
		base_program_set(
			ret, BASE_LACKS, mem_printf("it is %s and nothing else", distribution));
	else if (!by_env(config, program, ret) && !by_words(config, program, ret))
		ret->is_bare = distribution || (made && strstr(made, "ADD file:"));
}

/*
 * The layers
 */

/* The first name of what is left of a path, onto where it leads to. */
static void base_program_step(struct buf *at, const char *name, size_t len)
{
	const char *slash = strrchr(at->data, '/');

	if (len == 2 && memcmp(name, "..", 2) == 0)
		buf_truncate(at, slash ? (size_t)(slash - at->data) : 0);
	else if (len > 0 && !(len == 1 && *name == '.'))
		buf_addf(at, "%s%.*s", at->len ? "/" : "", (int)len, name);
}

/* From the root of the image, links followed; NULL: there is no such file, or it cannot be told. */
static const struct entry *base_program_lookup(const struct entry_list *entries, const char *path)
{
	enum { LINKS_MAX = 40 };
	AUTO_FREE char *rest = mem_strdup(path);
	AUTO_BUF struct buf at = buf_with(PATH_MAX);

	for (int links = 0; links < LINKS_MAX && !at.full && strlen(rest) < PATH_MAX;) {
		const char *name = rest + strspn(rest, "/");
		size_t len = strcspn(name, "/"), parent = at.len;
		const char *below = name + len + strspn(name + len, "/");
		base_program_step(&at, name, len);
		const struct entry *found = entry_find(entries, at.data);
		if (!*below && (!found || found->kind == ENTRY_FILE))
			return found;
		if (found && found->kind == ENTRY_FILE)
			return NULL;
		if (found) {
			links++;
			buf_truncate(&at, *found->target == '/' ? 0 : parent);
		}
		char *next = found ? mem_printf("%s%s%s", found->target, *below ? "/" : "", below)
				   : mem_strdup(below);
		REPLACE(rest, next);
	}
	return NULL;
}

static bool base_program_has_name(const struct entry_list *entries, const char *program)
{
	for (size_t i = 0; i < entries->n; i++)
		if (str_eq(fs_basename(entries->v[i].path), program))
			return true;
	return false;
}

void base_program_of_entries(const struct json *config, const struct entry_list *entries,
	const char *program, struct base_program *ret)
{
	const char *path = base_program_env_of(config, "PATH");

	*ret = (struct base_program){0};
	if (!base_program_has_name(entries, program)) {
		base_program_set(
			ret, BASE_LACKS, mem_printf("no file in its layers has that name"));
		return;
	}
	for (const char *at = path ? path : default_path; *at;) {
		size_t len = strcspn(at, ":");
		AUTO_FREE char *file = mem_printf("%.*s/%s", (int)len, at, program);
		const struct entry *found = *at == '/' ? base_program_lookup(entries, file) : NULL;
		if (found && found->exec) {
			base_program_set(ret, BASE_HAS, mem_printf("%s is there", file));
			return;
		}
		at += len + (at[len] == ':');
	}
}

void base_program_find(const struct image_base *base, const char *program, struct base_program *ret)
{
	AUTO_ENTRIES struct entry_list entries = {0};

	base_program_of_config(base->config_json, base->n_layers, program, ret);
	if (ret->has == BASE_UNKNOWN && base->layout &&
		image_base_entries(base, LAYERS_MAX, &entries, NULL) == 0)
		base_program_of_entries(base->config_json, &entries, program, ret);
}
