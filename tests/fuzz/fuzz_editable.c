/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "host/editable_parse.h"

static void check_texts(const struct strv *texts, size_t max)
{
	assert(texts->n <= max);
	for (size_t i = 0; i < texts->n; i++)
		assert(strlen(texts->v[i]) <= PARSE_PATH_MAX);
}

static void check_finder(const char *text, size_t size)
{
	AUTO(module_map_done) struct module_map map = {0};

	parse_finder(text, size, &map);
	assert(map.names.n == map.paths.n);
	check_texts(&map.names, PARSE_PAIRS_MAX);
	check_texts(&map.paths, PARSE_PAIRS_MAX);
	for (size_t i = 0; i < map.names.n; i++) {
		AUTO_FREE char *base = module_base(map.names.v[i], map.paths.v[i]);
		assert(!base || strncmp(base, map.paths.v[i], strlen(base)) == 0);
	}
}

static void check_words(const char *line)
{
	AUTO_STRV struct strv words = {0};
	struct python_options options = {0};

	parse_shell_line(line, &words);
	check_texts(&words, PARSE_WORDS_MAX);
	for (size_t i = 1; i < words.n; i++)
		assert(strcmp(words.v[i], ";") != 0 || strcmp(words.v[i - 1], ";") != 0 ||
			strpbrk(line, "\"'\\"));
	parse_python_options(words.v, words.n, &options);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_FREE char *text = mem_strndup((const char *)data, size);
	AUTO_STRV struct strv lines = {0}, shebang = {0};

	parse_pth((const char *)data, size, &lines);
	check_texts(&lines, PARSE_LINES_MAX);
	parse_shebang((const char *)data, size, &shebang);
	check_texts(&shebang, PARSE_WORDS_MAX);
	check_finder((const char *)data, size);
	check_words(text);
	AUTO_FREE char *path = parse_direct_url((const char *)data, size);
	assert(!path || *path == '/');
	AUTO_FREE char *home = parse_venv_cfg((const char *)data, size, "home");
	assert(!home || *home);
	return 0;
}
