/* SPDX-License-Identifier: Apache-2.0 */
#include "net/ssh/ssh_key_file.h"

#include <string.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "net/ssh/ssh_known_hosts.h"

static void wipe(struct buf *buf)
{
	if (buf->data)
		explicit_bzero(buf->data, buf->cap);
	buf_done(buf);
}

void ssh_key_file_done(struct ssh_key_file *key)
{
	if (!key)
		return;
	free(key->type);
	buf_done(&key->blob);
	wipe(&key->text);
	*key = (struct ssh_key_file){0};
}

static void set_blob(struct ssh_key_file *key, const void *data, size_t len)
{
	AUTO_FREE char *type = ssh_key_type(data, len);

	if (!type || key->blob.len > 0)
		return;
	buf_done(&key->blob);
	buf_init(&key->blob, SSH_KEY_FILE_MAX);
	buf_add(&key->blob, data, len);
	free(key->type);
	key->type = TAKE(type);
}

/*
 * OpenSSH's format
 */

struct reader {
	const uint8_t *p;
	size_t left;
};

static bool read_string(struct reader *in, const uint8_t **ret, size_t *ret_len)
{
	if (in->left < 4)
		return false;
	size_t len = get_be32(in->p);
	if (len > in->left - 4)
		return false;
	*ret = in->p + 4;
	*ret_len = len;
	*in = (struct reader){in->p + 4 + len, in->left - 4 - len};
	return true;
}

/* PROTOCOL.key, section 1: the public key is not encrypted. */
static void parse_openssh(struct ssh_key_file *key, const struct buf *raw)
{
	static const char magic[] = "openssh-key-v1";
	const uint8_t *cipher, *skipped, *pub;
	size_t cipher_len, skipped_len, pub_len;

	if (raw->len < sizeof(magic) || memcmp(raw->data, magic, sizeof(magic)) != 0)
		return;
	struct reader in = {(const uint8_t *)raw->data + sizeof(magic), raw->len - sizeof(magic)};
	if (!read_string(&in, &cipher, &cipher_len) || !read_string(&in, &skipped, &skipped_len) ||
		!read_string(&in, &skipped, &skipped_len) || in.left < 4)
		return;
	in = (struct reader){in.p + 4, in.left - 4};
	if (!read_string(&in, &pub, &pub_len))
		return;
	key->is_encrypted = cipher_len != 4 || memcmp(cipher, "none", 4) != 0;
	set_blob(key, pub, pub_len);
}

/* The base64 lines between the BEGIN line and the END line. */
static bool decode_body(const char *body, const char *end, struct buf *ret)
{
	AUTO_BUF struct buf joined = {0};

	buf_init(&joined, SSH_KEY_FILE_MAX);
	for (const char *p = body; p < end; p++) {
		if (*p != '\n' && *p != '\r' && *p != ' ' && *p != '\t')
			buf_addc(&joined, *p);
	}
	bool ok = base64_decode(joined.data, joined.len, ret);
	wipe(&joined);
	return ok;
}

static void parse_openssh_text(struct ssh_key_file *key, const char *body)
{
	struct buf raw = {0};
	const char *end = strstr(body, "-----END");

	buf_init(&raw, SSH_KEY_FILE_MAX);
	if (end && decode_body(body, end, &raw))
		parse_openssh(key, &raw);
	wipe(&raw);
}

void ssh_key_file_parse(struct ssh_key_file *key, const char *text, size_t len)
{
	static const char openssh[] = "-----BEGIN OPENSSH PRIVATE KEY-----";
	const char *begin = memchr(text, '\0', len) ? NULL : strstr(text, "-----BEGIN ");

	if (!begin || !strstr(begin, "PRIVATE KEY-----"))
		return;
	wipe(&key->text);
	buf_init(&key->text, SSH_KEY_FILE_MAX);
	buf_add(&key->text, text, len);
	if (str_starts(begin, openssh))
		parse_openssh_text(key, begin + strlen(openssh));
	else
		key->is_encrypted = strstr(begin, "ENCRYPTED") != NULL;
}

/* "ssh-ed25519 AAAA… comment" */
void ssh_key_file_parse_public(struct ssh_key_file *key, const char *text, size_t len)
{
	AUTO_BUF struct buf blob = {0};
	const char *blank = memchr(text, ' ', len);

	if (!blank)
		return;
	size_t type_len = (size_t)(blank - text), at = type_len + 1, n = 0;
	while (at + n < len && !strchr(" \t\r\n", text[at + n]))
		n++;
	buf_init(&blob, SSH_KEY_FILE_MAX);
	if (!base64_decode(text + at, n, &blob))
		return;
	AUTO_FREE char *type = ssh_key_type(blob.data, blob.len);
	if (type && strlen(type) == type_len && memcmp(type, text, type_len) == 0)
		set_blob(key, blob.data, blob.len);
}

/*
 * Files
 */

static int read_one(const char *path, struct buf *ret, bool *ret_is_open, struct err *err)
{
	AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return fs_error(err, errno, "%s", path);
	if (!S_ISREG(st.st_mode))
		return err_set(err, E_IO, "%s is not a file", path);
	*ret_is_open = st.st_uid == getuid() && (st.st_mode & 077) != 0;
	return fs_read_fd(fd, path, SSH_KEY_FILE_MAX, ret, err);
}

int ssh_key_file_read(const char *path, struct ssh_key_file *ret, struct err *err)
{
	struct ssh_key_file key = {0};
	struct buf text = {0};
	AUTO_BUF struct buf line = {0};
	AUTO_FREE char *pub = mem_printf("%s.pub", path);
	bool is_open = false, any;

	int r = read_one(path, &text, &key.is_open, err);
	if (r == 0) {
		ssh_key_file_parse(&key, text.data, text.len);
		if (key.text.len == 0)
			ssh_key_file_parse_public(&key, text.data, text.len);
	}
	wipe(&text);
	any = read_one(pub, &line, &is_open, NULL) == 0;
	if (any)
		ssh_key_file_parse_public(&key, line.data, line.len);
	if (r < 0 && !any)
		return r;
	err_clear(err);
	*ret = key;
	return 0;
}
