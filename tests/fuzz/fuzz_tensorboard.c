/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What TensorBoard and its script say: ports are ports, versions and interpreters plain words;
 * a line that is made of what was read gives the same again; no answer is taken without its status.
 */
#include <stdio.h>
#include <string.h>

#include "app/tensorboard/tensorboard_words.h"
#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/mem.h"
#include "base/util/str.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_version(const char *version)
{
	BUG_ON(strlen(version) >= TENSORBOARD_VERSION_SIZE || !str_is_plain(version));
}

static void check_line(const char *text, size_t len)
{
	struct tensorboard_line line, again;
	AUTO_FREE char *ended = mem_strndup(text, len);

	if (!tensorboard_line_read(ended, &line))
		return;
	BUG_ON(line.port == 0);
	check_version(line.version);
	AUTO_FREE char *made =
		mem_printf("TensorBoard %s at http://127.0.0.1:%u/ (x)", line.version, line.port);
	BUG_ON(!tensorboard_line_read(made, &again));
	BUG_ON(again.port != line.port || !str_eq(again.version, line.version));
}

static void check_python(const char *text, size_t len)
{
	AUTO_STRV struct strv words = {0};

	if (!tensorboard_python_read(text, len, &words)) {
		BUG_ON(words.n != 0);
		return;
	}
	BUG_ON(words.n == 0 || words.v[0][0] != '/' || memcmp(text, "#!", 2) != 0);
	for (size_t i = 0; i < words.n; i++)
		BUG_ON(!str_is_plain(words.v[i]) || strlen(words.v[i]) > len);
}

static void check_response(const char *text, size_t len)
{
	char version[TENSORBOARD_VERSION_SIZE];

	if (!tensorboard_response_read(text, len, version))
		return;
	BUG_ON(memcmp(text, "HTTP/1.", 7) != 0 || memcmp(text + 8, " 200", 4) != 0);
	check_version(version);
}

static void check_words(const char *text, size_t len)
{
	const struct tensorboard_who who = {.path = "/a/tensorboard", .install = "pip install"};
	AUTO_FREE char *last = tensorboard_last_line(text, len);
	AUTO_ERR struct err err = {0};

	BUG_ON(last && strchr(last, '\n'));
	BUG_ON(last && strchr(last, '\033'));
	BUG_ON(tensorboard_explain(text, len, &who, &err) >= 0 || !err.message || !err.hint);
	BUG_ON(err.n_evidence != (last ? 2 : 1));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *text = size ? (const char *)data : "";

	check_line(text, size);
	check_python(text, size);
	check_response(text, size);
	check_words(text, size);
	return 0;
}
