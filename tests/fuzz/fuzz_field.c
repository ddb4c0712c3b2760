/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/stream/field.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void write_quoted(struct buf *out, const char *text)
{
	buf_addc(out, '"');
	for (; *text; text++) {
		if (*text == '"' || *text == '\\')
			buf_addc(out, '\\');
		buf_addc(out, *text);
	}
	buf_addc(out, '"');
}

static void rewrite(struct buf *out, const struct challenge_list *list)
{
	buf_adds(out, "www-authenticate: ");
	vec_foreach (struct challenge, challenge, list) {
		buf_addf(out, "%s ", challenge->scheme);
		for (size_t i = 0; i < challenge->keys.n; i++) {
			buf_addf(out, "%s=", challenge->keys.v[i]);
			write_quoted(out, challenge->values.v[i]);
			buf_addc(out, ',');
		}
		buf_addc(out, ',');
	}
}

static void check_limits(const struct challenge_list *list)
{
	BUG_ON(list->n > CHALLENGES_MAX);
	vec_foreach (struct challenge, challenge, list) {
		BUG_ON(!*challenge->scheme || strpbrk(challenge->scheme, " \t,=\"ABCXYZ"));
		BUG_ON(challenge->keys.n != challenge->values.n);
		BUG_ON(challenge->keys.n > CHALLENGE_PARAMS_MAX);
		for (size_t i = 0; i < challenge->keys.n; i++)
			BUG_ON(!*challenge->keys.v[i] || !challenge->values.v[i]);
	}
}

/* What was understood is understood again when it is written properly. */
static void check_challenges(const char *text)
{
	AUTO_STRV struct strv headers = {0};
	AUTO_STRV struct strv again = {0};
	AUTO_CHALLENGES struct challenge_list list = {0};
	AUTO_CHALLENGES struct challenge_list other = {0};
	AUTO_BUF struct buf out;
	AUTO_BUF struct buf twice;

	buf_init(&out, SIZE_MAX / 2);
	buf_init(&twice, SIZE_MAX / 2);
	strv_addf(&headers, "www-authenticate: %s", text);
	challenges_parse(&headers, &list);
	check_limits(&list);
	rewrite(&out, &list);
	strv_add(&again, out.data);
	challenges_parse(&again, &other);
	rewrite(&twice, &other);
	BUG_ON(!str_eq(out.data, twice.data));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_FREE char *text = mem_strndup((const char *)data, size);
	int64_t now_ms = 784111776500;
	int64_t date_ms = field_date(text);
	int64_t wait_ms = field_retry_after(text, now_ms);
	uint64_t n;

	check_challenges(text);
	BUG_ON(wait_ms < -1 || wait_ms > RETRY_AFTER_MAX_MS);
	BUG_ON(date_ms < -1 || (date_ms >= 0 && wait_ms < 0));
	BUG_ON(date_ms > now_ms && wait_ms != RETRY_AFTER_MAX_MS && wait_ms != date_ms - now_ms);
	if (field_number(text, &n)) {
		AUTO_FREE char *range = mem_printf("bytes=0-%s", text);
		uint64_t bytes;

		BUG_ON(wait_ms < 0 || !field_upload_range(range, &bytes));
		BUG_ON(bytes != (n ? n + 1 : 0));
	}
	return 0;
}
