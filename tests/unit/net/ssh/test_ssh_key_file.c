/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/ssh/ssh_key_file.h"

/* Made by ssh-keygen, with nothing in the place of the secret. */
static const char plain[] =
	"-----BEGIN OPENSSH PRIVATE KEY-----\n"
	"b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZW\n"
	"QyNTUxOQAAACA1Mubbc05+2236NZz4kEg/6rcfALYZ1iNKdOVIFwQOJAAAACAAAAAAAAAA\n"
	"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA==\n"
	"-----END OPENSSH PRIVATE KEY-----\n";
static const char encrypted[] =
	"-----BEGIN OPENSSH PRIVATE KEY-----\n"
	"b3BlbnNzaC1rZXktdjEAAAAACmFlczI1Ni1jdHIAAAAGYmNyeXB0AAAAGAAAABALKuuZGN\n"
	"NutA7uSrGCyTJPAAAAEAAAAAEAAAAzAAAAC3NzaC1lZDI1NTE5AAAAIIhlzN3R3VJ89V7K\n"
	"G/obmOoFqXwq20Ri4bp18joa9JZXAAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\n"
	"AAAAAA\n"
	"-----END OPENSSH PRIVATE KEY-----\n";
#define PLAIN_PUBLIC     "AAAAC3NzaC1lZDI1NTE5AAAAIDUy5ttzTn7bbfo1nPiQSD/qtx8AthnWI0p05UgXBA4k"
#define ENCRYPTED_PUBLIC "AAAAC3NzaC1lZDI1NTE5AAAAIIhlzN3R3VJ89V7KG/obmOoFqXwq20Ri4bp18joa9JZX"

static void assert_blob(const struct ssh_key_file *key, const char *base64)
{
	AUTO_BUF struct buf want = {0};

	buf_init(&want, 4096);
	assert_true(base64_decode(base64, strlen(base64), &want));
	assert_int_equal(key->blob.len, want.len);
	assert_memory_equal(key->blob.data, want.data, want.len);
}

static void test_openssh(void **state)
{
	(void)state;
	AUTO_SSH_KEY_FILE struct ssh_key_file key = {0}, locked = {0};

	ssh_key_file_parse(&key, plain, strlen(plain));
	assert_string_equal(key.type, "ssh-ed25519");
	assert_false(key.is_encrypted);
	assert_blob(&key, PLAIN_PUBLIC);
	assert_string_equal(key.text.data, plain);

	ssh_key_file_parse(&locked, encrypted, strlen(encrypted));
	assert_string_equal(locked.type, "ssh-ed25519");
	assert_true(locked.is_encrypted);
	assert_blob(&locked, ENCRYPTED_PUBLIC);
}

static void test_pem(void **state)
{
	(void)state;
	static const struct {
		const char *text;
		bool is_private, is_encrypted;
	} cases[] = {
		{"-----BEGIN RSA PRIVATE KEY-----\nMIIC\n", true, false},
		{"-----BEGIN RSA PRIVATE KEY-----\r\nProc-Type: 4,ENCRYPTED\r\n", true, true},
		{"text\n-----BEGIN EC PRIVATE KEY-----\nMHcC\n", true, false},
		{"-----BEGIN PRIVATE KEY-----\n", true, false},
		{"-----BEGIN ENCRYPTED PRIVATE KEY-----\n", true, true},
		{"-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END", true, false},
		{"-----BEGIN OPENSSH PRIVATE KEY-----\n%%\n-----END", true, false},
		{"-----BEGIN OPENSSH PRIVATE KEY-----\n", true, false},
		{"-----BEGIN CERTIFICATE-----\n", false, false},
		{"-----BEGIN ", false, false},
		{"-----BEGIN RSA PRIVATE KEY", false, false},
		{"", false, false},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_SSH_KEY_FILE struct ssh_key_file key = {0};
		ssh_key_file_parse(&key, cases[i].text, strlen(cases[i].text));
		if (key.type || key.is_encrypted != cases[i].is_encrypted ||
			(key.text.len > 0) != cases[i].is_private)
			fail_msg("case %zu: %s", i, cases[i].text);
	}
}

static void test_public(void **state)
{
	(void)state;
	static const char *const bad[] = {"", "ssh-ed25519", "ssh-ed25519 ",
		"ssh-rsa " PLAIN_PUBLIC, "ssh-ed25519 AAAA", "# ssh-ed25519 " PLAIN_PUBLIC};
	static const char good[] = "ssh-ed25519 " PLAIN_PUBLIC " me@here\n";

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		AUTO_SSH_KEY_FILE struct ssh_key_file key = {0};
		ssh_key_file_parse_public(&key, bad[i], strlen(bad[i]));
		assert_null(key.type);
		assert_int_equal(key.blob.len, 0);
	}
	AUTO_SSH_KEY_FILE struct ssh_key_file key = {0};
	ssh_key_file_parse_public(&key, good, strlen(good));
	assert_string_equal(key.type, "ssh-ed25519");
	assert_blob(&key, PLAIN_PUBLIC);
}

static void write_file(const char *path, const char *text, mode_t mode)
{
	assert_int_equal(fs_replace(path, text, strlen(text), mode, FS_SYNC_NONE, NULL), 0);
}

static void test_files(void **state)
{
	(void)state;
	char dir[] = "/tmp/key-XXXXXX";
	AUTO_ERR struct err err = {0};

	assert_non_null(mkdtemp(dir));
	AUTO_FREE char *path = mem_printf("%s/id", dir);
	AUTO_FREE char *pub = mem_printf("%s/id.pub", dir);
	struct ssh_key_file key = {0};

	assert_true(ssh_key_file_read(path, &key, &err) < 0);
	assert_non_null(strstr(err.message, path));
	/* Only the public half: an agent has the other one. */
	write_file(pub, "ssh-ed25519 " PLAIN_PUBLIC " x\n", 0644);
	assert_int_equal(ssh_key_file_read(path, &key, &err), 0);
	assert_int_equal(key.text.len, 0);
	assert_blob(&key, PLAIN_PUBLIC);
	ssh_key_file_done(&key);
	assert_int_equal(ssh_key_file_read(pub, &key, NULL), 0);
	assert_blob(&key, PLAIN_PUBLIC);
	ssh_key_file_done(&key);
	/* What the private half says stands. */
	write_file(path, encrypted, 0600);
	assert_int_equal(ssh_key_file_read(path, &key, NULL), 0);
	assert_blob(&key, ENCRYPTED_PUBLIC);
	assert_false(key.is_open);
	ssh_key_file_done(&key);
	assert_int_equal(chmod(path, 0640), 0);
	assert_int_equal(ssh_key_file_read(path, &key, NULL), 0);
	assert_true(key.is_open);
	ssh_key_file_done(&key);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(unlink(pub), 0);
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_true(ssh_key_file_read(path, &key, NULL) < 0);
	fs_remove_tree(AT_FDCWD, dir, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_openssh),
		cmocka_unit_test(test_pem),
		cmocka_unit_test(test_public),
		cmocka_unit_test(test_files),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
