/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why a program failed, by its output: the first byte is how it ended, the rest what it wrote.
 * Whatever that is, the answer is short, one line, printable UTF-8.
 */
#include <string.h>

#include "app/lifecycle/failure.h"
#include "base/util/auto.h"
#include "base/util/str.h"

enum { RESPONSE_MAX = 2048 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct buf *text)
{
	BUG_ON(text->len > RESPONSE_MAX || !str_is_utf8(text->data, text->len));
	for (size_t i = 0; i < text->len; i++)
		BUG_ON((unsigned char)text->data[i] < ' ' || text->data[i] == '\x7f');
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct failure_facts facts = {.run_id = "a-22222",
		.tree = "/t/attempts/1/tree",
		.workdir = "/dlrun/src",
		.exit = {.known = true, .origin = "job"}};
	AUTO_BUF struct buf reason = {0}, hint = {0};

	if (!size)
		return 0;
	facts.exit.code = *data;
	facts.is_cluster = facts.in_container = *data & 1;
	buf_init(&reason, 1 << 16);
	buf_init(&hint, 1 << 16);
	bool found = failure_find(&facts, (const char *)data + 1, size - 1, &reason, &hint);
	BUG_ON(found != (reason.len > 0) || (!found && hint.len > 0));
	if (found)
		check(&reason);
	if (hint.len)
		check(&hint);
	return 0;
}
