/* SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>

#include "base/util/auto.h"
#include "base/util/digest.h"
#include "base/util/enc.h"
#include "base/util/err.h"
#include "base/util/mem.h"

static const char prefix[] = "sha256:";
enum { PREFIX_LEN = sizeof(prefix) - 1 };

/* OpenSSL does not survive every failed allocation. It passes the position in its source. */
static void *hook_malloc(size_t size, const char *file UNUSED, int line UNUSED)
{
	return mem_hook_malloc(size);
}

static void *digest_hook_realloc(void *old, size_t size, const char *file UNUSED, int line UNUSED)
{
	return mem_hook_realloc(old, size);
}

static void digest_hook_free(void *p, const char *file UNUSED, int line UNUSED)
{
	free(p);
}

/* Fetched once per process, because a fetch takes locks and longer than hashing a small file. If
 * several threads fetch at once, the first result is kept for the life of the process. */
static const EVP_MD *algorithm(enum digest_kind kind)
{
	static EVP_MD *_Atomic fetched[2];
	EVP_MD *md = atomic_load_explicit(&fetched[kind], memory_order_acquire), *none = NULL;

	if (md)
		return md;
	/* Refused when another library has used OpenSSL before. */
	CRYPTO_set_mem_functions(hook_malloc, digest_hook_realloc, digest_hook_free);
	md = EVP_MD_fetch(NULL, kind == DIGEST_SHA1 ? "SHA1" : "SHA256", NULL);
	BUG_ON(!md);
	if (atomic_compare_exchange_strong(&fetched[kind], &none, md))
		return md;
	EVP_MD_free(md);
	return none;
}

void digest_begin(struct digest *digest, enum digest_kind kind)
{
	const EVP_MD *md = algorithm(kind);

	if (!digest->ctx)
		digest->ctx = EVP_MD_CTX_new();
	if (!digest->ctx)
		mem_out(0);
	BUG_ON(!EVP_DigestInit_ex2(digest->ctx, md, NULL));
	digest->kind = kind;
}

void digest_add(struct digest *digest, const void *data, size_t len)
{
	BUG_ON(!digest->ctx || !EVP_DigestUpdate(digest->ctx, data, len));
}

void digest_end(struct digest *digest, uint8_t *out)
{
	BUG_ON(!digest->ctx || !EVP_DigestFinal_ex(digest->ctx, out, NULL));
}

void digest_done(struct digest *digest)
{
	if (!digest)
		return;
	EVP_MD_CTX_free(digest->ctx);
	*digest = (struct digest){0};
}

void digest_sha256(const void *data, size_t len, uint8_t out[static SHA256_SIZE])
{
	BUG_ON(!EVP_Digest(data, len, out, NULL, algorithm(DIGEST_SHA256), NULL));
}

enum { HMAC_BLOCK = 64 };

static void hmac_half(struct digest *digest, enum digest_kind kind, const uint8_t *key, uint8_t pad,
	const void *data, size_t len, uint8_t *out)
{
	uint8_t block[HMAC_BLOCK];

	for (size_t i = 0; i < HMAC_BLOCK; i++)
		block[i] = key[i] ^ pad;
	digest_begin(digest, kind);
	digest_add(digest, block, sizeof(block));
	digest_add(digest, data, len);
	digest_end(digest, out);
	explicit_bzero(block, sizeof(block));
}

void digest_hmac(enum digest_kind kind, const void *key, size_t key_len, const void *data,
	size_t len, uint8_t *out)
{
	AUTO_DIGEST struct digest digest = {0};
	uint8_t whole_key[HMAC_BLOCK] = {0}, inner[SHA256_SIZE];
	size_t size = kind == DIGEST_SHA1 ? SHA1_SIZE : SHA256_SIZE;

	if (key_len > HMAC_BLOCK) {
		digest_begin(&digest, kind);
		digest_add(&digest, key, key_len);
		digest_end(&digest, whole_key);
	} else if (key_len > 0) {
		memcpy(whole_key, key, key_len);
	}
	hmac_half(&digest, kind, whole_key, 0x36, data, len, inner);
	hmac_half(&digest, kind, whole_key, 0x5c, inner, size, out);
	explicit_bzero(whole_key, sizeof(whole_key));
}

void digest_text(const uint8_t sha256[static SHA256_SIZE], char out[static DIGEST_TEXT_SIZE])
{
	memcpy(out, prefix, PREFIX_LEN);
	hex_encode(sha256, SHA256_SIZE, out + PREFIX_LEN);
}

bool digest_parse(const char *s, uint8_t out[static SHA256_SIZE])
{
	uint8_t parsed[SHA256_SIZE];

	if (strncmp(s, prefix, PREFIX_LEN) != 0)
		return false;
	s += PREFIX_LEN;
	size_t hex_len = strspn(s, "0123456789abcdef");
	if (hex_len != 2 * SHA256_SIZE || s[hex_len] || !hex_decode(s, SHA256_SIZE, parsed))
		return false;
	memcpy(out, parsed, sizeof(parsed));
	return true;
}
