/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON: what is accepted is printed, read again and printed the same way; its parts hold together.
 */
#include <stdint.h>
#include <string.h>

#include "base/data/json.h"
#include "base/util/err.h"
#include "base/util/str.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { PRINTED_MAX = 64 << 20 };

static void check_tree(const struct json *json, int depth)
{
	size_t n = 0;

	BUG_ON(depth > JSON_DEPTH_MAX);
	BUG_ON((json_kind(json) == JSON_STRING) != (json_str(json) != NULL));
	BUG_ON(json_str(json) && !str_is_utf8(json_str(json), strlen(json_str(json))));
	for (const struct json *m = json_first(json); m; m = json_next(m), n++) {
		BUG_ON((json_kind(json) == JSON_OBJECT) != (json_key(m) != NULL));
		/* Also that no earlier member has the same key. */
		BUG_ON(json_key(m) && n < 100 && json_get(json, json_key(m)) != m);
		check_tree(m, depth + 1);
	}
	BUG_ON(n != json_count(json));
}

typedef void print_fn(const struct json *json, struct buf *out);

/* What is printed can be read, and is then printed the same way. */
static void check_round_trip(const struct json *json, print_fn *print)
{
	AUTO_JSON struct json *again = NULL;
	AUTO_ERR struct err err = {0};
	AUTO_BUF struct buf first, second;

	buf_init(&first, PRINTED_MAX);
	buf_init(&second, PRINTED_MAX);
	print(json, &first);
	BUG_ON(first.full || !str_is_utf8(first.data, first.len));
	BUG_ON(json_parse(first.data, first.len, PRINTED_MAX, "it", &again, &err) < 0);
	print(again, &second);
	BUG_ON(first.len != second.len || memcmp(first.data, second.data, first.len) != 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_JSON struct json *json = NULL;
	AUTO_ERR struct err err = {0};

	if (json_parse((const char *)data, size, JSON_SIZE_MAX, "it", &json, &err) < 0) {
		BUG_ON(json || (err.id != E_DATA && err.id != E_DATA_LIMIT));
		return 0;
	}
	AUTO_JSON struct json *clone = json_clone(json);
	check_tree(json, 0);
	check_round_trip(json, json_print);
	check_round_trip(clone, json_print_pretty);
	return 0;
}
