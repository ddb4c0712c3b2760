/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys of hosts and of users, as files have them: engines, with thin loaders below them.
 *
 * Known keys of hosts: sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT", with plain and hashed names,
 * "[host]:port", patterns, markers, several keys of a host. libssh2's own reader ignores @revoked
 * and patterns, ends at a line that it does not understand, reports no line numbers, and would
 * write the file anew to add a key.
 *
 * Keys of users, read without decrypting the secret: OpenSSH's own format (PROTOCOL.key), PEM (RFC
 * 7468), a public key as one line. libssh2 logs in by them, but reports neither which type a key
 * has, nor that it is encrypted, nor its public half, which may be in the agent.
 */
#ifndef DLRUN_NET_SSH_SSH_KEYS_H
#define DLRUN_NET_SSH_SSH_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "base/util/vec.h"

enum {
	SSH_KNOWN_FILE_MAX = 16 << 20,
	SSH_KNOWN_LINE_MAX = 16 << 10, /* longer ones are passed over: is_cut */
	SSH_KNOWN_KEYS_MAX = 256,      /* of one host; more are passed over: is_cut */
	SSH_PORT = 22,
	SSH_FINGERPRINT_SIZE = 64,
};

/* `*` and `?` in a pattern of that length: ssh_config(5), "PATTERNS". */
bool ssh_pattern_matches(const char *pattern, size_t len, const char *name);

/* A line about the host. */
struct ssh_known_key {
	enum ssh_known_mark { SSH_KNOWN_PLAIN, SSH_KNOWN_REVOKE, SSH_KNOWN_CA } mark;
	bool without_port; /* found under the bare name, while another port is asked for */
	struct buf blob;   /* RFC 4253, section 6.6 */
	char *type;        /* "ssh-ed25519" */
	char *where;       /* "/home/u/.ssh/known_hosts:12" */
};

/* The known keys of a host. */
struct ssh_known {
	char *name; /* as lines have it: "host", "[host]:2222" */
	char *bare; /* "host"; NULL where it is the name */
	struct VEC_OF(struct ssh_known_key) keys;
	/* Something was passed over for its size that may be about the host, a key that has been
	 * revoked for one: what is known must not decide. */
	bool is_cut;
};

/* alias: HostKeyAlias, which stands for host and port, or NULL. Letters are made small. */
void ssh_known_init(struct ssh_known *known, const char *host, uint16_t port, const char *alias);
void ssh_known_done(struct ssh_known *known);
#define AUTO_SSH_KNOWN AUTO(ssh_known_done)

/* The lines of text that are about the host. Others, and what cannot be understood, is passed over
 * as OpenSSH does. file: for `where`. */
void ssh_known_add(struct ssh_known *known, const char *file, const char *text, size_t len);
/* The same of a file. A missing one is empty, one that cannot be read as well (with a note), as for
 * OpenSSH; one that is too large is cut. */
void ssh_known_load(struct ssh_known *known, const char *file);

enum ssh_known_result {
	SSH_KNOWN_OK,
	SSH_KNOWN_CHANGED, /* known by another key of this type */
	SSH_KNOWN_REVOKED,
	SSH_KNOWN_OTHER,   /* known, but by keys of other types only */
	SSH_KNOWN_CA_ONLY, /* known by what a certificate authority signs, and not otherwise */
	SSH_KNOWN_NEW,
};
/* *ret_where: the line that decided, or NULL; of known. */
enum ssh_known_result ssh_known_check(
	const struct ssh_known *known, const void *blob, size_t len, const char **ret_where);

/* Whether there is a key of that type that would be OK. */
bool ssh_known_has_type(const struct ssh_known *known, const char *type);
/* Whether there is any such key; whether there is a line of a certificate authority. */
bool ssh_known_has_keys(const struct ssh_known *known);
bool ssh_known_has_ca(const struct ssh_known *known);

/* The type that a key begins with, for the caller to free; NULL if blob is none. */
char *ssh_key_type(const void *blob, size_t len);
/* Of an RSA key; 0 if it is unreadable. */
unsigned ssh_key_rsa_bits(const void *blob, size_t len);
/* "SHA256:…" as ssh-keygen -l prints it. */
void ssh_key_fingerprint(const void *blob, size_t len, char out[static SSH_FINGERPRINT_SIZE]);

/* Format a line with its line break, as OpenSSH adds it. */
void ssh_known_line(struct buf *out, const char *name, bool hash, const void *blob, size_t len);
/* Append it to file; the file (0600) and its directory (0700) are made where they are missing. */
int ssh_known_save(const char *file, const char *name, bool hash, const void *blob, size_t len,
	struct err *err);

/*
 * Keys of users
 */

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
