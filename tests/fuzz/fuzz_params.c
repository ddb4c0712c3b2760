/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of parameters: what is read of one is flat, within the limits, and JSON again.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/str.h"
#include "core/record/params.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const char *path, const char *text, size_t len)
{
	AUTO_JSON struct json *params = params_read(path, text, len);
	AUTO_JSON struct json *again = NULL;
	AUTO_BUF struct buf printed = {0};

	if (!params)
		return;
	BUG_ON(json_kind(params) != JSON_OBJECT || json_count(params) > PARAMS_MAX);
	for (const struct json *m = json_first(params); m; m = json_next(m)) {
		BUG_ON(json_kind(m) == JSON_OBJECT || json_kind(m) == JSON_ARRAY);
		BUG_ON(json_kind(m) == JSON_STRING && strlen(json_str(m)) > PARAMS_TEXT_MAX);
		BUG_ON(strlen(json_key(m)) > PARAMS_KEY_MAX || !str_is_plain(json_key(m)));
	}
	buf_init(&printed, JSON_SIZE_MAX);
	json_print(params, &printed);
	BUG_ON(json_parse(printed.data, printed.len, JSON_SIZE_MAX, "", &again, NULL) < 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const paths[] = {"params.json", "x/args.json", "a/b/hparams.yaml",
		".hydra/config.yaml", "1/.hydra/overrides.yaml"};

	for (size_t i = 0; i < ARRAY_LEN(paths); i++)
		check(paths[i], (const char *)data, size);
	return 0;
}
