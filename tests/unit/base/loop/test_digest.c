/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/loop/par.h"
#include "base/util/auto.h"
#include "base/util/digest.h"
#include "base/util/enc.h"
#include "base/util/mem.h"

/* FIPS 180-4 examples, and the empty message. */
static const struct {
	const char *text;
	const char *sha256, *sha1;
} vectors[] = {
	{"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
		"da39a3ee5e6b4b0d3255bfef95601890afd80709"},
	{"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
		"a9993e364706816aba3e25717850c26c9cd0d89d"},
	{"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
		"248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
		"84983e441c3bd26ebaae4aa1f95129e5e54670f1"},
};

static void assert_hex(const uint8_t *got, size_t len, const char *want)
{
	char hex[SHA256_HEX_SIZE];

	hex_encode(got, len, hex);
	assert_string_equal(hex, want);
}

static void test_vectors(void **state)
{
	AUTO_DIGEST struct digest digest = {0};
	uint8_t out[SHA256_SIZE];

	/* One struct for all: kinds may change from use to use. */
	for (size_t i = 0; i < ARRAY_LEN(vectors); i++) {
		size_t len = strlen(vectors[i].text);
		digest_begin(&digest, DIGEST_SHA256);
		digest_add(&digest, vectors[i].text, len);
		digest_end(&digest, out);
		assert_hex(out, SHA256_SIZE, vectors[i].sha256);
		digest_begin(&digest, DIGEST_SHA1);
		for (size_t k = 0; k < len; k++)
			digest_add(&digest, vectors[i].text + k, 1);
		digest_end(&digest, out);
		assert_hex(out, SHA1_SIZE, vectors[i].sha1);
		digest_sha256(vectors[i].text, len, out);
		assert_hex(out, SHA256_SIZE, vectors[i].sha256);
	}
}

static void test_begun_again_forgets(void **state)
{
	AUTO_DIGEST struct digest digest = {0};
	uint8_t out[SHA256_SIZE];

	digest_begin(&digest, DIGEST_SHA256);
	digest_add(&digest, "xyz", 3);
	digest_begin(&digest, DIGEST_SHA256);
	digest_add(&digest, "abc", 3);
	digest_add(&digest, NULL, 0);
	digest_end(&digest, out);
	assert_hex(out, SHA256_SIZE, vectors[1].sha256);
	digest_done(&digest);
	digest_done(&digest);
	digest_done(NULL);
}

static void test_million(void **state)
{
	AUTO_DIGEST struct digest digest = {0};
	uint8_t out[SHA256_SIZE];
	char a[1000];

	memset(a, 'a', sizeof(a));
	digest_begin(&digest, DIGEST_SHA256);
	for (int i = 0; i < 1000; i++)
		digest_add(&digest, a, sizeof(a));
	digest_end(&digest, out);
	assert_hex(out, SHA256_SIZE,
		"cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static void test_text(void **state)
{
	uint8_t in[SHA256_SIZE], out[SHA256_SIZE];
	char text[DIGEST_TEXT_SIZE];

	digest_sha256("abc", 3, in);
	digest_text(in, text);
	assert_string_equal(
		text, "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
	assert_int_equal(strlen(text) + 1, DIGEST_TEXT_SIZE);
	assert_true(digest_parse(text, out));
	assert_memory_equal(in, out, SHA256_SIZE);
}

static void test_parse_refuses(void **state)
{
#define HEX62 "7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
	static const char *const bad[] = {"", "sha256", "sha256:", "sha256:ba" HEX62 "0",
		"sha256:a" HEX62, "sha256:BA" HEX62, "sha256:ga" HEX62, "SHA256:ba" HEX62,
		" sha256:ba" HEX62, "sha256:ba" HEX62 "\n", "sha512:ba" HEX62, "sha256-ba" HEX62,
		"ba" HEX62, "sha256::a" HEX62, "sha256:/a" HEX62};
	uint8_t out[SHA256_SIZE] = {1, 2, 3};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_false(digest_parse(bad[i], out));
	assert_int_equal(out[0] + out[1] + out[2], 6);
}

enum { WORKERS = 16, ROUNDS = 200 };
struct job {
	struct digest digests[WORKERS];
	uint8_t out[ROUNDS][SHA256_SIZE];
};

static void hash_one(void *ctx, size_t i, unsigned worker)
{
	struct job *job = ctx;
	struct digest *digest = &job->digests[worker];
	char data[4096];

	memset(data, (int)i, sizeof(data));
	digest_begin(digest, DIGEST_SHA256);
	digest_add(digest, data, i * 20);
	digest_end(digest, job->out[i]);
}

static void test_threads(void **state)
{
	struct job *job = mem_alloc(1, sizeof(*job));

	par_for(ROUNDS, hash_one, job);
	for (size_t i = 0; i < ROUNDS; i++) {
		char data[4096];
		uint8_t want[SHA256_SIZE];
		memset(data, (int)i, sizeof(data));
		digest_sha256(data, i * 20, want);
		assert_memory_equal(job->out[i], want, SHA256_SIZE);
	}
	for (size_t i = 0; i < WORKERS; i++)
		digest_done(&job->digests[i]);
	free(job);
}

/* How a child ends that has used up what the system gives, and then makes a digest or does not. */
static int end_without_memory(bool makes_digest)
{
	enum { MOST = 256 << 20 };
	size_t taken = 0;
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		struct digest digest = {0};
		/* cmocka would go on to the next test. */
		signal(SIGSEGV, SIG_DFL);
		signal(SIGABRT, SIG_DFL);
		close(STDERR_FILENO);
		setrlimit(RLIMIT_DATA, &(struct rlimit){0});
		for (size_t size = 1 << 20; size > 0; size /= 2)
			for (void *volatile p; taken < MOST && (p = malloc(size));)
				taken += size;
		if (makes_digest)
			digest_begin(&digest, DIGEST_SHA1);
		_exit(taken < MOST ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

static void test_out_of_memory(void **state)
{
	if (end_without_memory(false) != 0)
		skip(); /* no such limit, or the malloc of a sanitizer */
	int status = end_without_memory(true);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 125);
}

/* RFC 2202, section 3; RFC 4231, section 4. */
static void test_hmac(void **state)
{
	uint8_t key[64], long_key[131], out[SHA256_SIZE];

	memset(key, 0x0b, sizeof(key));
	digest_hmac(DIGEST_SHA1, key, 20, "Hi There", 8, out);
	assert_hex(out, SHA1_SIZE, "b617318655057264e28bc0b6fb378c8ef146be00");
	digest_hmac(DIGEST_SHA1, "Jefe", 4, "what do ya want for nothing?", 28, out);
	assert_hex(out, SHA1_SIZE, "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79");
	memset(key, 0xaa, sizeof(key));
	digest_hmac(DIGEST_SHA1, key, sizeof(key), "", 0, out);
	assert_hex(out, SHA1_SIZE, "5208ac0d31c0a0eb3efc690c81668f442bd0b305");
	digest_hmac(DIGEST_SHA256, "Jefe", 4, "what do ya want for nothing?", 28, out);
	assert_hex(out, SHA256_SIZE,
		"5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
	memset(long_key, 0xaa, sizeof(long_key));
	digest_hmac(DIGEST_SHA256, long_key, sizeof(long_key),
		"Test Using Larger Than Block-Size Key - Hash Key First", 54, out);
	assert_hex(out, SHA256_SIZE,
		"60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		/* First, because OpenSSL has all that it keeps afterwards. */
		cmocka_unit_test(test_hmac),
		cmocka_unit_test(test_out_of_memory),
		cmocka_unit_test(test_vectors),
		cmocka_unit_test(test_begun_again_forgets),
		cmocka_unit_test(test_million),
		cmocka_unit_test(test_text),
		cmocka_unit_test(test_parse_refuses),
		cmocka_unit_test(test_threads),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
