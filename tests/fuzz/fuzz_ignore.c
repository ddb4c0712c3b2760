/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ignore rules of any bytes. Input: a byte of flags, the path, LF, the rules. Properties: a rule
 * for files holds for directories too unless it is negated away; a chain of the same rules twice
 * says the same; rules from a directory that the path does not lie in say nothing.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "snap/ignore/ignore.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool holds)
{
	if (!holds)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *line_end = size ? memchr(data, '\n', size) : NULL;

	if (!line_end || line_end == data)
		return 0;
	bool ignore_case = data[0] & 1, is_dir = data[0] & 2;
	AUTO_FREE char *path = mem_strndup((const char *)data + 1, (size_t)(line_end - data - 1));
	const char *rules = (const char *)line_end + 1;
	size_t len = size - (size_t)(line_end + 1 - data);

	struct ignore *one = ignore_parse(rules, len, "", ignore_case, NULL);
	struct ignore *two = ignore_parse(rules, len, "", ignore_case, one);
	struct ignore *other = ignore_parse(rules, len, "no/such\ndirectory", ignore_case, one);
	enum ignore_decision decision = ignore_check(one, path, is_dir);
	check(ignore_check(two, path, is_dir) == decision);
	check(ignore_check(other, path, is_dir) == decision);
	if (!memchr(rules, '/', len))
		check(ignore_check(one, path, !is_dir) == decision);
	ignore_free(other);
	ignore_free(two);
	ignore_free(one);
	return 0;
}
