/* SPDX-License-Identifier: Apache-2.0 */
#include "net/ssh/ssh_keys.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/digest.h"
#include "base/util/enc.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/random.h"
#include "base/util/str.h"

/* A field of a line. */
struct span {
	const char *s;
	size_t len;
};

static bool span_is(struct span span, const char *s)
{
	return span.len == strlen(s) && memcmp(span.s, s, span.len) == 0;
}

void ssh_known_init(struct ssh_known *known, const char *host, uint16_t port, const char *alias)
{
	*known = (struct ssh_known){0};
	if (alias) {
		known->name = str_lower(alias, strlen(alias));
		return;
	}
	AUTO_FREE char *lower = str_lower(host, strlen(host));
	if (port == SSH_PORT) {
		known->name = TAKE(lower);
		return;
	}
	known->name = mem_printf("[%s]:%u", lower, port);
	known->bare = TAKE(lower);
}

void ssh_known_done(struct ssh_known *known)
{
	vec_foreach (struct ssh_known_key, key, &known->keys) {
		buf_done(&key->blob);
		free(key->type);
		free(key->where);
	}
	vec_done(&known->keys);
	free(known->name);
	free(known->bare);
	*known = (struct ssh_known){0};
}

/*
 * Names
 */

/* Linear but for the last star. */
bool ssh_pattern_matches(const char *pattern, size_t len, const char *name)
{
	size_t p = 0, star = SIZE_MAX;
	const char *from = NULL;

	while (*name) {
		char c = p < len ? pattern[p] : '\0';
		if (c == '*') {
			star = p++;
			from = name;
		} else if (p < len && (c == '?' || c == *name)) {
			p++;
			name++;
		} else if (star != SIZE_MAX) {
			p = star + 1;
			name = ++from;
		} else {
			return false;
		}
	}
	while (p < len && pattern[p] == '*')
		p++;
	return p == len;
}

/* "a,b*,!c": one that fits, and none behind "!" that does. */
static bool is_in_list(struct span list, const char *name)
{
	AUTO_FREE char *lower = str_lower(list.s, list.len);
	bool found = false;

	for (size_t at = 0; at <= list.len;) {
		const char *comma = memchr(lower + at, ',', list.len - at);
		size_t end = comma ? (size_t)(comma - lower) : list.len;
		bool is_not = at < end && lower[at] == '!';
		size_t skip = at + (is_not ? 1 : 0);
		if (end > skip && ssh_pattern_matches(lower + skip, end - skip, name)) {
			if (is_not)
				return false;
			found = true;
		}
		at = end + 1;
	}
	return found;
}

static bool ssh_keys_decode(struct span text, size_t max, struct buf *ret)
{
	buf_init(ret, max);
	if (base64_decode(text.s, text.len, ret) && !ret->full)
		return true;
	buf_done(ret);
	return false;
}

/* "|1|salt|hash": HMAC-SHA1 of the name, with the salt as its key. */
static bool is_hash_of(struct span field, const char *name)
{
	AUTO_BUF struct buf salt = {0}, hash = {0};
	uint8_t want[SHA1_SIZE];
	const char *bar;

	if (field.len < 3 || memcmp(field.s, "|1|", 3) != 0)
		return false;
	struct span rest = {field.s + 3, field.len - 3};
	bar = memchr(rest.s, '|', rest.len);
	if (!bar)
		return false;
	struct span first = {rest.s, (size_t)(bar - rest.s)};
	struct span second = {bar + 1, rest.len - first.len - 1};
	if (!ssh_keys_decode(first, SHA1_SIZE, &salt) || !ssh_keys_decode(second, SHA1_SIZE, &hash))
		return false;
	if (salt.len != SHA1_SIZE || hash.len != SHA1_SIZE)
		return false;
	digest_hmac(DIGEST_SHA1, salt.data, salt.len, name, strlen(name), want);
	return memcmp(want, hash.data, sizeof(want)) == 0;
}

static bool ssh_keys_is_name(struct span field, const char *name)
{
	return field.s[0] == '|' ? is_hash_of(field, name) : is_in_list(field, name);
}

/*
 * Lines
 */

static struct span next_field(struct span *line)
{
	while (line->len > 0 && (*line->s == ' ' || *line->s == '\t'))
		*line = (struct span){line->s + 1, line->len - 1};
	struct span field = {line->s, 0};
	while (field.len < line->len && field.s[field.len] != ' ' && field.s[field.len] != '\t')
		field.len++;
	*line = (struct span){line->s + field.len, line->len - field.len};
	return field;
}

static bool ssh_keys_read_mark(struct span *line, enum ssh_known_mark *ret)
{
	struct span rest = *line, field = next_field(&rest);

	*ret = SSH_KNOWN_PLAIN;
	if (field.len == 0 || field.s[0] != '@')
		return true;
	*line = rest;
	if (span_is(field, "@revoked"))
		*ret = SSH_KNOWN_REVOKE;
	else if (span_is(field, "@cert-authority"))
		*ret = SSH_KNOWN_CA;
	return *ret != SSH_KNOWN_PLAIN;
}

char *ssh_key_type(const void *blob, size_t len)
{
	const uint8_t *bytes = blob;

	if (len < 4)
		return NULL;
	size_t type_len = get_be32(bytes);
	if (type_len == 0 || type_len > 64 || type_len > len - 4)
		return NULL;
	AUTO_FREE char *type = mem_strndup((const char *)bytes + 4, type_len);
	return strlen(type) == type_len && str_is_plain(type) ? TAKE(type) : NULL;
}

/* RFC 4253, section 6.6: the type, e, n. */
unsigned ssh_key_rsa_bits(const void *blob, size_t len)
{
	const uint8_t *at = blob;
	size_t left = len, part = 0;

	for (int i = 0; i < 3; i++) {
		at += part;
		left -= part;
		if (left < 4 || get_be32(at) > left - 4)
			return 0;
		part = get_be32(at);
		at += 4;
		left -= 4;
	}
	for (; part > 0 && *at == 0; at++)
		part--;
	if (part == 0 || part > 1 << 16)
		return 0;
	unsigned bits = (unsigned)part * 8;
	for (uint8_t top = *at; !(top & 0x80); top = (uint8_t)(top << 1))
		bits--;
	return bits;
}

/* "ssh-ed25519 AAAA…": both must tell the same type. */
static bool read_key(struct span line, struct ssh_known_key *ret)
{
	struct span type = next_field(&line), text = next_field(&line);

	if (!ssh_keys_decode(text, SSH_KNOWN_LINE_MAX, &ret->blob))
		return false;
	ret->type = ssh_key_type(ret->blob.data, ret->blob.len);
	if (ret->type && span_is(type, ret->type))
		return true;
	free(ret->type);
	buf_done(&ret->blob);
	return false;
}

static void ssh_keys_add_line(
	struct ssh_known *known, const char *file, size_t number, struct span line)
{
	struct ssh_known_key key = {0};

	if (line.len > SSH_KNOWN_LINE_MAX) {
		known->is_cut = true;
		return;
	}
	if (memchr(line.s, '\0', line.len))
		return;
	if (!ssh_keys_read_mark(&line, &key.mark))
		return;
	struct span names = next_field(&line);
	if (names.len == 0 || names.s[0] == '#')
		return;
	if (!ssh_keys_is_name(names, known->name)) {
		if (!known->bare || !ssh_keys_is_name(names, known->bare))
			return;
		key.without_port = true;
	}
	if (known->keys.n >= SSH_KNOWN_KEYS_MAX) {
		known->is_cut = true;
		return;
	}
	if (!read_key(line, &key))
		return;
	key.where = mem_printf("%s:%zu", file, number);
	*vec_push(&known->keys) = key;
}

void ssh_known_add(struct ssh_known *known, const char *file, const char *text, size_t len)
{
	size_t number = 0;

	while (len > 0) {
		const char *end = memchr(text, '\n', len);
		struct span line = {text, end ? (size_t)(end - text) : len};
		size_t step = line.len + (end ? 1 : 0);
		if (line.len > 0 && line.s[line.len - 1] == '\r')
			line.len--;
		ssh_keys_add_line(known, file, ++number, line);
		text += step;
		len -= step;
	}
}

void ssh_known_load(struct ssh_known *known, const char *file)
{
	AUTO_BUF struct buf text = {0};
	AUTO_ERR struct err err = {0};
	bool missing;

	if (fs_read(file, SSH_KNOWN_FILE_MAX, &text, &missing, &err) == 0)
		ssh_known_add(known, file, text.data, text.len);
	else if (!missing)
		log_note("ssh: %s", err.message);
	known->is_cut |= err.code == ERR_LIMIT;
}

/*
 * Results of a search
 */

/* All curves of ECDSA are one type of key, as for OpenSSH. */
static bool same_family(const char *a, const char *b)
{
	static const char ecdsa[] = "ecdsa-sha2-";

	return str_eq(a, b) || (str_starts(a, ecdsa) && str_starts(b, ecdsa));
}

static bool same_blob(const struct ssh_known_key *key, const void *blob, size_t len)
{
	return key->blob.len == len && memcmp(key->blob.data, blob, len) == 0;
}

static const struct ssh_known_key *find_blob(
	const struct ssh_known *known, enum ssh_known_mark mark, const void *blob, size_t len)
{
	vec_foreach (const struct ssh_known_key, key, &known->keys) {
		if (key->mark == mark && same_blob(key, blob, len))
			return key;
	}
	return NULL;
}

/* A line for the bare name vouches for a key, but contradicts none. */
static bool ssh_keys_is_own(const struct ssh_known_key *key)
{
	return key->mark == SSH_KNOWN_PLAIN && !key->without_port;
}

static const struct ssh_known_key *ssh_keys_find_own(
	const struct ssh_known *known, const char *type)
{
	vec_foreach (const struct ssh_known_key, key, &known->keys) {
		if (ssh_keys_is_own(key) && (!type || same_family(key->type, type)))
			return key;
	}
	return NULL;
}

enum ssh_known_result ssh_known_check(
	const struct ssh_known *known, const void *blob, size_t len, const char **ret_where)
{
	AUTO_FREE char *type = ssh_key_type(blob, len);
	const struct ssh_known_key *found;
	enum ssh_known_result response = SSH_KNOWN_NEW;

	if ((found = find_blob(known, SSH_KNOWN_REVOKE, blob, len)))
		response = SSH_KNOWN_REVOKED;
	else if (type && (found = find_blob(known, SSH_KNOWN_PLAIN, blob, len)))
		response = SSH_KNOWN_OK;
	else if (type && (found = ssh_keys_find_own(known, type)))
		response = SSH_KNOWN_CHANGED;
	else if ((found = ssh_keys_find_own(known, NULL)))
		response = SSH_KNOWN_OTHER;
	else if (ssh_known_has_ca(known))
		response = SSH_KNOWN_CA_ONLY;
	*ret_where = found ? found->where : NULL;
	return response;
}

bool ssh_known_has_type(const struct ssh_known *known, const char *type)
{
	vec_foreach (const struct ssh_known_key, key, &known->keys) {
		if (key->mark == SSH_KNOWN_PLAIN && str_eq(key->type, type))
			return true;
	}
	return false;
}

bool ssh_known_has_keys(const struct ssh_known *known)
{
	return ssh_keys_find_own(known, NULL) != NULL;
}

bool ssh_known_has_ca(const struct ssh_known *known)
{
	vec_foreach (const struct ssh_known_key, key, &known->keys) {
		if (key->mark == SSH_KNOWN_CA)
			return true;
	}
	return false;
}

void ssh_key_fingerprint(const void *blob, size_t len, char out[static SSH_FINGERPRINT_SIZE])
{
	AUTO_BUF struct buf text = buf_with(SSH_FINGERPRINT_SIZE - 1);
	uint8_t digest[SHA256_SIZE];

	digest_sha256(blob, len, digest);
	buf_adds(&text, "SHA256:");
	base64_encode(digest, sizeof(digest), &text);
	while (text.len > 0 && text.data[text.len - 1] == '=')
		buf_truncate(&text, text.len - 1);
	memcpy(out, text.data, text.len + 1);
}

/*
 * A new line
 */

static void add_hashed(struct buf *out, const char *name)
{
	uint8_t salt[SHA1_SIZE], hash[SHA1_SIZE];

	random_bytes(salt, sizeof(salt));
	digest_hmac(DIGEST_SHA1, salt, sizeof(salt), name, strlen(name), hash);
	buf_adds(out, "|1|");
	base64_encode(salt, sizeof(salt), out);
	buf_addc(out, '|');
	base64_encode(hash, sizeof(hash), out);
}

void ssh_known_line(struct buf *out, const char *name, bool hash, const void *blob, size_t len)
{
	AUTO_FREE char *type = ssh_key_type(blob, len);

	if (hash)
		add_hashed(out, name);
	else
		buf_adds(out, name);
	buf_addf(out, " %s ", type ? type : "");
	base64_encode(blob, len, out);
	buf_addc(out, '\n');
}

static int ssh_keys_make_parent(const char *file, struct err *err)
{
	const char *slash = strrchr(file, '/');

	if (!slash || slash == file)
		return 0;
	AUTO_FREE char *dir = mem_strndup(file, (size_t)(slash - file));
	return access(dir, F_OK) == 0 ? 0 : fs_mkdirs(dir, 0700, err);
}

/* Whether the file ends within a line that somebody has written by hand. */
static bool lacks_break(int fd)
{
	struct stat st;
	char last;

	if (fstat(fd, &st) < 0 || st.st_size <= 0)
		return false;
	return pread(fd, &last, 1, st.st_size - 1) == 1 && last != '\n';
}

int ssh_known_save(const char *file, const char *name, bool hash, const void *blob, size_t len,
	struct err *err)
{
	AUTO_BUF struct buf line = buf_with(SSH_KNOWN_LINE_MAX);
	int r = ssh_keys_make_parent(file, err);

	if (r < 0)
		return r;
	AUTO_FD int fd = open(file, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0)
		return fs_error(err, errno, "%s", file);
	if (lacks_break(fd))
		buf_addc(&line, '\n');
	ssh_known_line(&line, name, hash, blob, len);
	r = buf_check(&line, "the key of a host", err);
	/* In one write, so that others who append do not come between. */
	return r < 0 ? r : fs_write_fd(fd, file, line.data, line.len, err);
}

void ssh_key_file_done(struct ssh_key_file *key)
{
	if (!key)
		return;
	free(key->type);
	buf_done(&key->blob);
	buf_wipe(&key->text);
	*key = (struct ssh_key_file){0};
}

static void ssh_keys_set_blob(struct ssh_key_file *key, const void *data, size_t len)
{
	AUTO_FREE char *type = ssh_key_type(data, len);

	if (!type || key->blob.len > 0)
		return;
	buf_done(&key->blob);
	buf_init(&key->blob, SSH_KEY_FILE_MAX);
	buf_add(&key->blob, data, len);
	REPLACE(key->type, TAKE(type));
}

/*
 * OpenSSH's format
 */

struct reader {
	const uint8_t *p;
	size_t left;
};

static bool ssh_keys_read_string(struct reader *in, const uint8_t **ret, size_t *ret_len)
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
	if (!ssh_keys_read_string(&in, &cipher, &cipher_len) ||
		!ssh_keys_read_string(&in, &skipped, &skipped_len) ||
		!ssh_keys_read_string(&in, &skipped, &skipped_len) || in.left < 4)
		return;
	in = (struct reader){in.p + 4, in.left - 4};
	if (!ssh_keys_read_string(&in, &pub, &pub_len))
		return;
	key->is_encrypted = cipher_len != 4 || memcmp(cipher, "none", 4) != 0;
	ssh_keys_set_blob(key, pub, pub_len);
}

/* The base64 lines between the BEGIN line and the END line. */
static bool decode_body(const char *body, const char *end, struct buf *ret)
{
	AUTO_BUF struct buf joined = buf_with(SSH_KEY_FILE_MAX);

	for (const char *p = body; p < end; p++) {
		if (*p != '\n' && *p != '\r' && *p != ' ' && *p != '\t')
			buf_addc(&joined, *p);
	}
	bool ok = base64_decode(joined.data, joined.len, ret);
	buf_wipe(&joined);
	return ok;
}

static void parse_openssh_text(struct ssh_key_file *key, const char *body)
{
	struct buf raw = {0};
	const char *end = strstr(body, "-----END");

	buf_init(&raw, SSH_KEY_FILE_MAX);
	if (end && decode_body(body, end, &raw))
		parse_openssh(key, &raw);
	buf_wipe(&raw);
}

void ssh_key_file_parse(struct ssh_key_file *key, const char *text, size_t len)
{
	static const char openssh[] = "-----BEGIN OPENSSH PRIVATE KEY-----";
	const char *begin = memchr(text, '\0', len) ? NULL : strstr(text, "-----BEGIN ");

	if (!begin || !strstr(begin, "PRIVATE KEY-----"))
		return;
	buf_wipe(&key->text);
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
	AUTO_BUF struct buf blob = buf_with(SSH_KEY_FILE_MAX);
	const char *blank = memchr(text, ' ', len);

	if (!blank)
		return;
	size_t type_len = (size_t)(blank - text), at = type_len + 1, n = 0;
	while (at + n < len && !strchr(" \t\r\n", text[at + n]))
		n++;
	if (!base64_decode(text + at, n, &blob))
		return;
	AUTO_FREE char *type = ssh_key_type(blob.data, blob.len);
	if (type && strlen(type) == type_len && memcmp(type, text, type_len) == 0)
		ssh_keys_set_blob(key, blob.data, blob.len);
}

/*
 * Files
 */

static int ssh_keys_read_one(const char *path, struct buf *ret, bool *ret_is_open, struct err *err)
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

	int r = ssh_keys_read_one(path, &text, &key.is_open, err);
	if (r == 0) {
		ssh_key_file_parse(&key, text.data, text.len);
		if (key.text.len == 0)
			ssh_key_file_parse_public(&key, text.data, text.len);
	}
	buf_wipe(&text);
	any = ssh_keys_read_one(pub, &line, &is_open, NULL) == 0;
	if (any)
		ssh_key_file_parse_public(&key, line.data, line.len);
	if (r < 0 && !any)
		return r;
	err_clear(err);
	*ret = key;
	return 0;
}
