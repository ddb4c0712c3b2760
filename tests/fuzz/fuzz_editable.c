/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "host/editable.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_FREE char *text = mem_strndup((const char *)data, size);

	for (int is_finder = 0; is_finder < 2; is_finder++) {
		AUTO_STRV struct strv names = {0}, paths = {0};

		editable_parse(text, is_finder, &names, &paths);
		assert(names.n == paths.n && names.n <= EDITABLE_PATHS_MAX);
		for (size_t i = 0; i < names.n; i++) {
			assert(*paths.v[i] && !strpbrk(paths.v[i], "\n"));
			assert(is_finder ? *paths.v[i] == '/' : !*names.v[i]);
		}
	}
	return 0;
}
