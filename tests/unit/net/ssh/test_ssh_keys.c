/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/ssh/ssh_keys.h"

#define ED_1 "AAAAC3NzaC1lZDI1NTE5AAAAIDUy5ttzTn7bbfo1nPiQSD/qtx8AthnWI0p05UgXBA4k"
#define ED_2 "AAAAC3NzaC1lZDI1NTE5AAAAIIWQtdoVcWMrGfvJP3ii6bI6UzvNQ0QdeFbtkO3J4nR8"
#define EC_256                                                                                     \
	"AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBF26EyK8+0IUQmljfvT9HlN1fXZ1VCNozJE"  \
	"owqYumjv7Tc3p/Vyy6l21Veqx7LtRxJgeOygtxRKRBXurcBXEj8c="
#define EC_384                                                                                     \
	"AAAAE2VjZHNhLXNoYTItbmlzdHAzODQAAAAIbmlzdHAzODQAAABhBCPSHYNvZsgp4omCIHsqDUM/8+nGvg/Fafc"  \
	"+uh8C7Yum8NsRUFHEAI3pSe8rEJBXR83iSXYtxqsk1a0b5dHMDn4/MBDC+GCZEsjFZSYyLWztiq2K7WmgJ1bJw1n" \
	"6ehIlKA=="

/* What `ssh-keygen -H` made of "gpu7" and "[gpu7]:2222". */
#define HASHED_GPU7      "|1|qYrWSVq4UGJWcAByezXGxdgr9DI=|bWkrWHOXK2z+Fjk2EB3GwKzxOPI="
#define HASHED_GPU7_2222 "|1|tNJmHfSr1PicC3YiDJzRHIzgLc4=|+KozxA5dAu2dYRCe9zdizJUSU8M="

static enum ssh_known_result check_at(const char *text, const char *host, uint16_t port,
	const char *alias, const char *key64, const char *want_where)
{
	AUTO_SSH_KNOWN struct ssh_known known = {0};
	AUTO_BUF struct buf blob = {0};
	const char *where;

	buf_init(&blob, 4096);
	assert_true(base64_decode(key64, strlen(key64), &blob));
	ssh_known_init(&known, host, port, alias);
	ssh_known_add(&known, "F", text, strlen(text));
	enum ssh_known_result response = ssh_known_check(&known, blob.data, blob.len, &where);
	if (want_where)
		assert_string_equal(where, want_where);
	return response;
}

static enum ssh_known_result check(const char *text, const char *key64)
{
	return check_at(text, "gpu7", 22, NULL, key64, NULL);
}

static void test_responses(void **state)
{
	static const struct {
		const char *text, *key;
		enum ssh_known_result want;
	} cases[] = {
		{"", ED_1, SSH_KNOWN_NEW},
		{"\n\n# gpu7\n", ED_1, SSH_KNOWN_NEW},
		{"gpu7 ssh-ed25519 " ED_1, ED_1, SSH_KNOWN_OK},
		{"gpu7\tssh-ed25519\t" ED_1 " comment gpu7\r\n", ED_1, SSH_KNOWN_OK},
		{"  gpu7 ssh-ed25519 " ED_1 "\n", ED_1, SSH_KNOWN_OK},
		{"gpu7 ssh-ed25519 " ED_1 "\n", ED_2, SSH_KNOWN_CHANGED},
		{"gpu7 ssh-ed25519 " ED_1 "\ngpu7 ssh-ed25519 " ED_2, ED_2, SSH_KNOWN_OK},
		{"gpu7 ssh-ed25519 " ED_1 "\n", EC_256, SSH_KNOWN_OTHER},
		{"gpu7 ecdsa-sha2-nistp256 " EC_256 "\n", EC_384, SSH_KNOWN_CHANGED},
		{"gpu7 ecdsa-sha2-nistp384 " EC_384 "\n", EC_384, SSH_KNOWN_OK},
		{"gpu8 ssh-ed25519 " ED_1 "\n", ED_1, SSH_KNOWN_NEW},
		{"@revoked gpu7 ssh-ed25519 " ED_1 "\ngpu7 ssh-ed25519 " ED_1, ED_1,
			SSH_KNOWN_REVOKED},
		{"gpu7 ssh-ed25519 " ED_1 "\n@revoked * ssh-ed25519 " ED_1, ED_1,
			SSH_KNOWN_REVOKED},
		{"@revoked gpu8 ssh-ed25519 " ED_1 "\ngpu7 ssh-ed25519 " ED_1, ED_1, SSH_KNOWN_OK},
		{"@revoked gpu7 ssh-ed25519 " ED_1 "\n", ED_2, SSH_KNOWN_NEW},
		{"@cert-authority gpu7 ssh-ed25519 " ED_1 "\n", ED_1, SSH_KNOWN_CA_ONLY},
		{"@cert-authority *7 ssh-ed25519 " ED_1 "\n", ED_2, SSH_KNOWN_CA_ONLY},
		{"@cert-authority gpu7 ssh-ed25519 " ED_1 "\ngpu7 ssh-ed25519 " ED_2, ED_2,
			SSH_KNOWN_OK},
		{"@other gpu7 ssh-ed25519 " ED_1 "\n", ED_1, SSH_KNOWN_NEW},
		/* Lines that are not good. */
		{"gpu7 ssh-rsa " ED_1 "\n", ED_1, SSH_KNOWN_NEW},
		{"gpu7 ssh-ed25519 AAA\n", ED_1, SSH_KNOWN_NEW},
		{"gpu7 ssh-ed25519\n", ED_1, SSH_KNOWN_NEW},
		{"gpu7\n", ED_1, SSH_KNOWN_NEW},
		{"gpu7 1024 35 1234567\n", ED_1, SSH_KNOWN_NEW},
		{"|1|\n|\n|1||\n||| x y\n", ED_1, SSH_KNOWN_NEW},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		if (check(cases[i].text, cases[i].key) != cases[i].want)
			fail_msg("case %zu: %s", i, cases[i].text);
	}
}

static void test_where(void **state)
{
	assert_int_equal(check_at("\n#\ngpu7 ssh-ed25519 " ED_1, "gpu7", 22, NULL, ED_2, "F:3"),
		SSH_KNOWN_CHANGED);
}

static void test_names(void **state)
{
	static const struct {
		const char *names, *host, *alias;
		uint16_t port;
		bool want;
	} cases[] = {
		{"GPU7", "gPu7", NULL, 22, true},
		{"a,gpu7,b", "gpu7", NULL, 22, true},
		{"a,,gpu7", "gpu7", NULL, 22, true},
		{"gpu*", "gpu7", NULL, 22, true},
		{"gpu?", "gpu7", NULL, 22, true},
		{"gpu?", "gpu", NULL, 22, false},
		{"*.lab,!bad.lab", "gpu.lab", NULL, 22, true},
		{"*.lab,!bad.lab", "bad.lab", NULL, 22, false},
		{"!bad.lab,*.lab", "bad.lab", NULL, 22, false},
		{"!gpu8", "gpu7", NULL, 22, false},
		{"g*7*", "gpu7", NULL, 22, true},
		{"*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaa", NULL, 22, false},
		{"[gpu7]:2222", "gpu7", NULL, 2222, true},
		{"[gpu7]:2222", "gpu7", NULL, 2223, false},
		{"[gpu7]:2222", "gpu7", NULL, 22, false},
		{"[gpu7]:*", "gpu7", NULL, 99, true},
		/* The bare name vouches for all ports. */
		{"gpu7", "gpu7", NULL, 2222, true},
		{"alias", "gpu7", "Alias", 2222, true},
		{"gpu7", "gpu7", "alias", 22, false},
		{HASHED_GPU7, "gpu7", NULL, 22, true},
		{HASHED_GPU7, "GPU7", NULL, 22, true},
		{HASHED_GPU7, "gpu8", NULL, 22, false},
		{HASHED_GPU7, "gpu7", NULL, 2222, true},
		{HASHED_GPU7_2222, "gpu7", NULL, 2222, true},
		{HASHED_GPU7_2222, "gpu7", NULL, 22, false},
		{"[::1]:2222", "::1", NULL, 2222, true},
		{"::1", "::1", NULL, 22, true},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_FREE char *line = mem_printf("%s ssh-ed25519 %s\n", cases[i].names, ED_1);
		bool got = check_at(line, cases[i].host, cases[i].port, cases[i].alias, ED_1,
				   NULL) == SSH_KNOWN_OK;
		if (got != cases[i].want)
			fail_msg("case %zu: %s", i, cases[i].names);
	}
}

/* Another service on another port may well have another key. */
static void test_bare_name_contradicts_nothing(void **state)
{
	assert_int_equal(check_at("gpu7 ssh-ed25519 " ED_1 "\n", "gpu7", 2222, NULL, ED_2, NULL),
		SSH_KNOWN_NEW);
	assert_int_equal(
		check_at("@revoked gpu7 ssh-ed25519 " ED_1 "\n", "gpu7", 2222, NULL, ED_1, NULL),
		SSH_KNOWN_REVOKED);
}

static void test_types(void **state)
{
	AUTO_SSH_KNOWN struct ssh_known known = {0};
	static const char text[] = "gpu7 ecdsa-sha2-nistp384 " EC_384 "\n"
				   "@revoked gpu7 ssh-ed25519 " ED_1 "\n";

	ssh_known_init(&known, "gpu7", 22, NULL);
	assert_false(ssh_known_has_keys(&known));
	ssh_known_add(&known, "F", text, strlen(text));
	assert_true(ssh_known_has_keys(&known));
	assert_false(ssh_known_has_ca(&known));
	assert_true(ssh_known_has_type(&known, "ecdsa-sha2-nistp384"));
	assert_false(ssh_known_has_type(&known, "ecdsa-sha2-nistp256"));
	assert_false(ssh_known_has_type(&known, "ssh-ed25519"));
}

static void test_ceilings(void **state)
{
	AUTO_SSH_KNOWN struct ssh_known known = {0};
	AUTO_BUF struct buf text = {0};
	static char blanks[SSH_KNOWN_LINE_MAX];

	buf_init(&text, 1 << 20);
	for (int i = 0; i < SSH_KNOWN_KEYS_MAX + 10; i++)
		buf_adds(&text, "gpu7 ssh-ed25519 " ED_1 "\n");
	ssh_known_init(&known, "gpu7", 22, NULL);
	ssh_known_add(&known, "F", text.data, text.len);
	assert_int_equal(known.keys.n, SSH_KNOWN_KEYS_MAX);
	assert_true(known.is_cut);
	buf_reset(&text);
	memset(blanks, ' ', sizeof(blanks) - 1);
	buf_addf(&text, "gpu7 ssh-ed25519 %s%s\n", ED_1, blanks);
	assert_int_equal(check(text.data, ED_1), SSH_KNOWN_NEW);
	known.is_cut = false;
	ssh_known_add(&known, "F", "other ssh-ed25519 " ED_1 "\n", 35);
	assert_false(known.is_cut);
	ssh_known_add(&known, "F", text.data, text.len);
	assert_true(known.is_cut);
}

static void make_large_file(const char *path, off_t size)
{
	AUTO_FD int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, size), 0);
}

static void test_file_that_is_too_large(void **state)
{
	AUTO_SSH_KNOWN struct ssh_known known = {0};
	char path[] = "/tmp/dlrun-known-XXXXXX";

	close(mkstemp(path));
	ssh_known_init(&known, "gpu7", 22, NULL);
	ssh_known_load(&known, path);
	assert_false(known.is_cut);
	make_large_file(path, SSH_KNOWN_FILE_MAX + 1);
	ssh_known_load(&known, path);
	assert_true(known.is_cut);
	unlink(path);
}

static void test_key_text(void **state)
{
	AUTO_BUF struct buf blob = {0};
	char print[SSH_FINGERPRINT_SIZE];

	buf_init(&blob, 4096);
	assert_true(base64_decode(EC_384, strlen(EC_384), &blob));
	ssh_key_fingerprint(blob.data, blob.len, print);
	assert_string_equal(print, "SHA256:inAM/tEUwW6FZ33Iu2y1JElwYvv0QhHB3CjMq2OuYSM");
	AUTO_FREE char *type = ssh_key_type(blob.data, blob.len);
	assert_string_equal(type, "ecdsa-sha2-nistp384");
	assert_null(ssh_key_type("\0\0\0", 3));
	assert_null(ssh_key_type("\0\0\0\0", 4));
	assert_null(ssh_key_type("\xff\xff\xff\xff"
				 "abc",
		7));
	assert_null(ssh_key_type("\0\0\0\3"
				 "a\0b",
		7));
	assert_null(ssh_key_type("\0\0\0\3"
				 "a\nb",
		7));
}

static void test_rsa_bits(void **state)
{
	static const struct {
		const char *n;
		size_t len;
		unsigned bits;
	} rows[] = {{"\0\xff", 2, 8}, {"\x01\0", 2, 9}, {"\x7f", 1, 7}, {"\0\0\x80\0\0", 5, 24},
		{"\0", 1, 0}, {"", 0, 0}};
	AUTO_BUF struct buf blob = {0};

	buf_init(&blob, 4096);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		buf_reset(&blob);
		buf_add(&blob, "\0\0\0\7ssh-rsa\0\0\0\1\3\0\0\0", 19);
		buf_addc(&blob, (char)rows[i].len);
		buf_add(&blob, rows[i].n, rows[i].len);
		assert_int_equal(ssh_key_rsa_bits(blob.data, blob.len), rows[i].bits);
		for (size_t len = 0; len < blob.len; len++)
			assert_int_equal(ssh_key_rsa_bits(blob.data, len), 0);
	}
}

static void assert_file(const char *path, const char *want)
{
	AUTO_BUF struct buf text = {0};
	struct stat st;

	assert_int_equal(fs_read(path, 4096, &text, NULL, NULL), 0);
	assert_string_equal(text.data, want);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
}

static void test_save(void **state)
{
	char dir[] = "/tmp/known-XXXXXX";
	AUTO_BUF struct buf blob = {0}, text = {0};
	struct stat st;
	const char *where;

	assert_non_null(mkdtemp(dir));
	AUTO_FREE char *home = mem_printf("%s/home", dir);
	AUTO_FREE char *path = mem_printf("%s/home/known", dir);
	buf_init(&blob, 4096);
	assert_true(base64_decode(ED_1, strlen(ED_1), &blob));

	assert_int_equal(ssh_known_save(path, "gpu7", false, blob.data, blob.len, NULL), 0);
	assert_file(path, "gpu7 ssh-ed25519 " ED_1 "\n");
	assert_int_equal(stat(home, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0700);

	/* Behind a line without its end. */
	assert_int_equal(fs_replace(path, "x", 1, 0600, FS_SYNC_NONE, NULL), 0);
	assert_int_equal(ssh_known_save(path, "[a]:1", false, blob.data, blob.len, NULL), 0);
	assert_file(path, "x\n[a]:1 ssh-ed25519 " ED_1 "\n");

	assert_int_equal(ssh_known_save(path, "gpu9", true, blob.data, blob.len, NULL), 0);
	assert_int_equal(fs_read(path, 4096, &text, NULL, NULL), 0);
	assert_null(strstr(text.data, "gpu9"));
	AUTO_SSH_KNOWN struct ssh_known known = {0};
	ssh_known_init(&known, "gpu9", 22, NULL);
	ssh_known_load(&known, path);
	assert_int_equal(ssh_known_check(&known, blob.data, blob.len, &where), SSH_KNOWN_OK);

	AUTO_ERR struct err err = {0};
	assert_true(ssh_known_save(dir, "gpu7", false, blob.data, blob.len, &err) < 0);
	assert_non_null(strstr(err.message, dir));
	fs_remove_tree(AT_FDCWD, dir, NULL);
}

static void test_missing_file(void **state)
{
	AUTO_SSH_KNOWN struct ssh_known known = {0};

	ssh_known_init(&known, "gpu7", 22, NULL);
	ssh_known_load(&known, "/proc/nonexistent/known_hosts");
	ssh_known_load(&known, "/");
	assert_int_equal(known.keys.n, 0);
}

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
		cmocka_unit_test(test_responses),
		cmocka_unit_test(test_where),
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_bare_name_contradicts_nothing),
		cmocka_unit_test(test_types),
		cmocka_unit_test(test_ceilings),
		cmocka_unit_test(test_file_that_is_too_large),
		cmocka_unit_test(test_key_text),
		cmocka_unit_test(test_rsa_bits),
		cmocka_unit_test(test_save),
		cmocka_unit_test(test_missing_file),
		cmocka_unit_test(test_openssh),
		cmocka_unit_test(test_pem),
		cmocka_unit_test(test_public),
		cmocka_unit_test(test_files),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
