/* SPDX-License-Identifier: Apache-2.0 */
#include "oci/auth/credential_secret.h"

#include <stdint.h>
#include <string.h>

/* explicit_bzero is not everywhere. The compiler must believe that somebody looks at the zeros. */
void secret_wipe(void *data, size_t len)
{
	if (len == 0)
		return;
	memset(data, 0, len);
	__asm__ __volatile__("" : : "r"(data) : "memory");
}

void secret_free(char *secret)
{
	if (!secret)
		return;
	secret_wipe(secret, strlen(secret));
	free(secret);
}

void secret_buf_done(struct buf *buf)
{
	if (buf && buf->data)
		secret_wipe(buf->data, buf->cap);
	buf_done(buf);
}

/* The document is ours and about to go, so its strings may be written to. */
static void wipe_json(const struct json *json)
{
	const char *s = json_str(json);

	if (s)
		secret_wipe((char *)(uintptr_t)s, strlen(s));
	for (const struct json *member = json_first(json); member; member = json_next(member))
		wipe_json(member);
}

void secret_json_free(struct json *json)
{
	if (!json)
		return;
	wipe_json(json);
	json_free(json);
}
