/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `dlrun init` makes of a project's files. A string that is written as YAML is read back as it
 * was, wherever it stands; a comment stays a comment; what the readers of other formats find is
 * text that YAML can hold.
 */
#include <stdlib.h>
#include <string.h>

#include "app/init/init_parse.h"
#include "base/data/toml.h"
#include "base/data/yaml.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/image/lock_inputs.h"
#include "core/image/python_base.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SIZE_MAX_BYTES = 64 << 10 };

static void check_scalar(const char *s)
{
	AUTO_BUF struct buf scalar, text;
	AUTO_YAML struct yaml *yaml = NULL;

	buf_init(&scalar, (size_t)10 * SIZE_MAX_BYTES);
	buf_init(&text, (size_t)64 * SIZE_MAX_BYTES);
	bool ok = init_yaml_scalar(&scalar, s);
	BUG_ON(ok != str_is_utf8(s, strlen(s)) || scalar.full || (!ok && scalar.len));
	if (!ok || 3 * scalar.len + 100 > YAML_SIZE_MAX)
		return;
	buf_addf(&text, "a: %s  # c\nb: [%s, x]\nc: {k: %s}\n", scalar.data, scalar.data,
		scalar.data);
	BUG_ON(yaml_parse(text.data, text.len, "fuzz", &yaml, NULL) < 0);
	const struct yaml *list = yaml_get(yaml, "b");
	BUG_ON(!str_eq(yaml_get(yaml, "a")->text, s) || yaml_is_null(yaml_get(yaml, "a")));
	BUG_ON(!str_eq(list->first->text, s) || !str_eq(list->first->next->text, "x"));
	BUG_ON(!str_eq(yaml_get(yaml_get(yaml, "c"), "k")->text, s));
}

static void check_comment(const char *s)
{
	AUTO_BUF struct buf text;
	AUTO_YAML struct yaml *yaml = NULL;

	buf_init(&text, (size_t)16 * SIZE_MAX_BYTES);
	buf_adds(&text, "# ");
	init_yaml_comment(&text, s, 1000);
	buf_adds(&text, "\nk: v # ");
	init_yaml_comment(&text, s, strlen(s));
	buf_adds(&text, "\n");
	BUG_ON(text.full);
	BUG_ON(yaml_parse(text.data, text.len, "fuzz", &yaml, NULL) < 0);
	BUG_ON(!str_eq(yaml->first->key, "k") || !str_eq(yaml->first->text, "v"));
	BUG_ON(yaml->first->next);
}

static void check_found(char *found)
{
	if (!found)
		return;
	BUG_ON(!str_is_utf8(found, strlen(found)));
	check_scalar(found);
	free(found);
}

static void check_files(const char *text, size_t len)
{
	static const char *const locks[] = {
		"uv.lock", "pylock.toml", "poetry.lock", "Pipfile.lock", "requirements.txt"};
	AUTO_STRV struct strv names = {0};

	check_found(toml_find_string(text, len, "project.name"));
	check_found(toml_find_string(text, len, "a"));
	check_found(init_ini_string(text, len, "metadata", "name"));
	check_found(init_setup_name(text, len));
	check_found(init_docker_base(text, len));
	toml_has_table(text, len, "tool.uv");
	init_make_has(text, len, "train");
	for (size_t i = 0; i < ARRAY_LEN(locks); i++) {
		int minor = python_of_lock(locks[i], text, len);
		BUG_ON(minor < -1 || minor > 99);
	}
	init_ignore_names(text, len, "data", len & 1);
	toml_table_keys(text, len, "project.scripts", &names);
	BUG_ON(names.n > TOML_KEYS_MAX);
	init_ssh_hosts(text, len, &names);
	BUG_ON(names.n > (size_t)TOML_KEYS_MAX + INIT_NAMES_MAX);
	vec_foreach (char *, name, &names)
		BUG_ON(!str_is_utf8(*name, strlen(*name)));
}

static void check_mentions(const char *text, size_t len)
{
	AUTO_LOCK_MENTIONS struct lock_mentions mentions = {0};

	lock_mentions_of_requirements(text, len, &mentions);
	lock_mentions_of_conda(text, len, &mentions);
	lock_mentions_of_uv(text, len, &mentions);
	BUG_ON(mentions.lines.n != mentions.copied.n);
	vec_foreach (char *, mention, &mentions.copied) {
		AUTO_FREE char *path = lock_path("a/b", *mention);
		BUG_ON(str_empty(*mention) || (path && **mention == '/'));
		BUG_ON(path && (*path == '/' || strstr(path, "//") || strstr(path, "/../")));
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size > SIZE_MAX_BYTES)
		return 0;
	AUTO_FREE char *s = mem_strndup((const char *)data, size);
	AUTO_FREE char *text = mem_dup(size ? data : (const uint8_t *)"", size ? size : 1);

	check_scalar(s);
	check_comment(s);
	check_files(text, size);
	check_mentions(text, size);
	return 0;
}
