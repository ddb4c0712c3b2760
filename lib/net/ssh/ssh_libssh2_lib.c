/* SPDX-License-Identifier: Apache-2.0 */
#define SSH_LIBSSH2_LOADER
#include "net/ssh/ssh_libssh2_lib.h"

#include "base/loop/library.h"
#include "base/util/digest.h"
#include "base/util/mem.h"

struct ssh_libssh2_lib ssh_libssh2_lib;

static const struct library_symbol symbols[] = {
#define SYMBOL(name) {offsetof(struct ssh_libssh2_lib, name), "libssh2_" #name},
	SSH_LIBSSH2_LIB(SYMBOL)
#undef SYMBOL
};

static enum library_state state;

/* Not safe in two threads at once. */
static void start(void)
{
	ssh_libssh2_lib.init(0);
}

LIBRARY_NOTE("ssh", "Speaks to SSH servers without the OpenSSH client", "recommended",
	LIBRARY_FILE("ssh2", "1"));

static const struct library library = {
	.file = LIBRARY_FILE("ssh2", "1"),
	.what = "libssh2, which speaks to ssh servers,",
	.package = "libssh2-1",
	.symbols = symbols,
	.n_symbols = ARRAY_LEN(symbols),
	.table = &ssh_libssh2_lib,
	.table_size = sizeof(ssh_libssh2_lib),
	.start = start,
	.state = &state,
};

int ssh_libssh2_load(struct err *err)
{
	uint8_t unused[SHA256_SIZE];

	/* OpenSSL takes hooks for its memory only before anybody has used it. */
	digest_sha256("", 0, unused);
	return library_load(&library, err);
}

int ssh_libssh2_has_rsa_sha2(void)
{
	return ssh_libssh2_lib.version(0x010b00) != NULL;
}
