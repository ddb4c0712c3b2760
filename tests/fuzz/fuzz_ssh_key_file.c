/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>
#include <stdint.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/str.h"
#include "net/ssh/ssh_keys.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A public key that was found is one, of the type that is told. */
static void check(const struct ssh_key_file *key)
{
	if (key->blob.len == 0)
		return;
	AUTO_FREE char *type = ssh_key_type(key->blob.data, key->blob.len);
	BUG_ON(!str_eq(type, key->type));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_SSH_KEY_FILE struct ssh_key_file key = {0}, line = {0};
	/* Files are read into buffers, which end with NUL. */
	AUTO_BUF struct buf text = {0};

	buf_init(&text, SSH_KEY_FILE_MAX);
	buf_add(&text, data, size);
	ssh_key_file_parse(&key, text.data, text.len);
	check(&key);
	BUG_ON(key.is_encrypted && key.text.len == 0);
	ssh_key_file_parse_public(&key, text.data, text.len);
	check(&key);
	ssh_key_file_parse_public(&line, text.data, text.len);
	check(&line);
	return 0;
}
