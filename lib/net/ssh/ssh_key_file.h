/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files with a user's key, read without decrypting the secret: OpenSSH's own format (PROTOCOL.key),
 * PEM (RFC 7468), a public key as one line. libssh2 logs in by them, but tells neither which type a
 * key has, nor that it is encrypted, nor its public half, which may be in the agent.
 */
#ifndef DLRUN_NET_SSH_SSH_KEY_FILE_H
#define DLRUN_NET_SSH_SSH_KEY_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/err.h"

enum { SSH_KEY_FILE_MAX = 64 << 10 };

/* Zero is an empty one. */
struct ssh_key_file {
	char *type;      /* "ssh-ed25519", "ssh-rsa"; NULL: it does not say */
	struct buf blob; /* the public key, RFC 4253, section 6.6; empty: it does not say */
	struct buf text; /* of the private key; empty: only the public one is there */
	bool is_encrypted;
	bool is_open; /* others may read it: the OpenSSH client does not use it */
};

/* PATH, and beside it PATH.pub for what PATH does not say. E_IO when there is none of them;
 * E_DATA_LIMIT, E_IO_PERMISSION. What is no key has neither type nor text. */
int ssh_key_file_read(const char *path, struct ssh_key_file *ret, struct err *err);
/* The secret is wiped. NULL is accepted. */
void ssh_key_file_done(struct ssh_key_file *key);
#define AUTO_SSH_KEY_FILE AUTO(ssh_key_file_done)

/* The same of texts: what a private key's says; a line of a public key. */
void ssh_key_file_parse(struct ssh_key_file *key, const char *text, size_t len);
void ssh_key_file_parse_public(struct ssh_key_file *key, const char *text, size_t len);

#endif
