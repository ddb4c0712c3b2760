/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/str.h"
#include "net/ssh/ssh_keys.h"

/* Any text: keys that were found are keys, and each is what a check says of it. A line of ours is
 * found again whatever stands before it. */
static void check_keys(const struct ssh_known *known)
{
	const char *where;

	BUG_ON(known->keys.n > SSH_KNOWN_KEYS_MAX);
	vec_foreach (const struct ssh_known_key, key, &known->keys) {
		AUTO_FREE char *type = ssh_key_type(key->blob.data, key->blob.len);
		BUG_ON(!str_eq(type, key->type));
		enum ssh_known_result response =
			ssh_known_check(known, key->blob.data, key->blob.len, &where);
		BUG_ON(key->mark == SSH_KNOWN_REVOKE && response != SSH_KNOWN_REVOKED);
		BUG_ON(key->mark == SSH_KNOWN_PLAIN && response != SSH_KNOWN_OK &&
			response != SSH_KNOWN_REVOKED);
	}
}

static void check_round(const uint8_t *data, size_t size)
{
	static const char blob[] = "\0\0\0\x0bssh-ed25519\0\0\0\x04mine";
	AUTO_SSH_KNOWN struct ssh_known known = {0};
	AUTO_BUF struct buf text = {0};
	const char *where;

	buf_init(&text, 1 << 20);
	buf_add(&text, data, size);
	buf_addc(&text, '\n');
	ssh_known_line(&text, "[host]:99", size % 2 == 1, blob, sizeof(blob) - 1);
	ssh_known_init(&known, "HOST", 99, NULL);
	ssh_known_add(&known, "file", text.data, text.len);
	if (known.keys.n == SSH_KNOWN_KEYS_MAX || text.full)
		return;
	enum ssh_known_result response = ssh_known_check(&known, blob, sizeof(blob) - 1, &where);
	BUG_ON(response != SSH_KNOWN_OK && response != SSH_KNOWN_REVOKED);
	BUG_ON(!where);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_SSH_KNOWN struct ssh_known known = {0};

	ssh_known_init(&known, "gpu7", 22, NULL);
	ssh_known_add(&known, "file", (const char *)data, size);
	check_keys(&known);
	check_round(data, size);
	return 0;
}
