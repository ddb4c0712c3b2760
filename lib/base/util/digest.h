/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SHA-256 (OCI digests, snapshot ids, S3) and SHA-1 (git object ids), FIPS 180-4, by OpenSSL's EVP.
 */
#ifndef DLRUN_BASE_UTIL_DIGEST_H
#define DLRUN_BASE_UTIL_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SHA256_SIZE = 32, SHA1_SIZE = 20, SHA256_HEX_SIZE = 65, DIGEST_TEXT_SIZE = 72 };

enum digest_kind { DIGEST_SHA256, DIGEST_SHA1 };

/* A running hash; may be used again after digest_end. Zero: not started. */
struct digest {
	void *ctx;
	enum digest_kind kind;
};

void digest_begin(struct digest *digest, enum digest_kind kind);
void digest_add(struct digest *digest, const void *data, size_t len);
/* out has room for SHA256_SIZE or SHA1_SIZE bytes. */
void digest_end(struct digest *digest, uint8_t *out);
void digest_done(struct digest *digest);
#define AUTO_DIGEST AUTO(digest_done)

void digest_sha256(const void *data, size_t len, uint8_t out[static SHA256_SIZE]);
/* HMAC (RFC 2104): hashed names in known_hosts, signatures of requests to S3. out has room for what
 * digest_end writes. */
void digest_hmac(enum digest_kind kind, const void *key, size_t key_len, const void *data,
	size_t len, uint8_t *out);

/* "sha256:" and 64 lower-case hex digits (OCI image-spec, descriptor.md, "Digests"). */
void digest_text(const uint8_t sha256[static SHA256_SIZE], char out[static DIGEST_TEXT_SIZE]);
/* false unless s is exactly of that form. */
bool digest_parse(const char *s, uint8_t out[static SHA256_SIZE]);

#endif
