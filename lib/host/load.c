/* SPDX-License-Identifier: Apache-2.0 */
#include "host/load.h"

#include <string.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"

enum { FILE_MAX = 64 << 10 };

#define NUMBER_MAX (INT64_MAX / 2)
#define WHOLE_MAX  (1LL << 50)

static size_t skip_blanks(const char *text, size_t len)
{
	size_t at = 0;

	while (at < len && (text[at] == ' ' || text[at] == '\t'))
		at++;
	return at;
}

int64_t host_number(const char *text, size_t len)
{
	size_t at = skip_blanks(text, len);
	int64_t value = 0;

	if (at == len || !str_is_digit(text[at]))
		return -1;
	for (; at < len && str_is_digit(text[at]); at++) {
		if (value > (NUMBER_MAX - 9) / 10)
			return -1;
		value = value * 10 + (text[at] - '0');
	}
	return value;
}

int64_t host_line_number(const char *text, size_t len, const char *key)
{
	size_t key_len = strlen(key);

	for (size_t n; len > 0; text += n, len -= n) {
		const char *end = memchr(text, '\n', len);

		n = end ? (size_t)(end - text) + 1 : len;
		if (n > key_len && memcmp(text, key, key_len) == 0 &&
			(text[key_len] == ' ' || text[key_len] == '\t'))
			return host_number(text + key_len, n - key_len);
	}
	return -1;
}

double host_load_parse(const char *text, size_t len)
{
	int64_t whole = host_number(text, len);
	double value = (double)whole, unit = 0.1;
	size_t at = skip_blanks(text, len);

	if (whole < 0 || whole > WHOLE_MAX)
		return -1;
	while (at < len && str_is_digit(text[at]))
		at++;
	if (at == len || text[at] != '.')
		return value;
	for (at++; at < len && str_is_digit(text[at]); at++, unit /= 10)
		value += (text[at] - '0') * unit;
	return value;
}

static int64_t kib(const char *text, size_t len, const char *key)
{
	int64_t value = host_line_number(text, len, key);

	return value < 0 || value > NUMBER_MAX / 1024 ? -1 : value * 1024;
}

void host_memory_parse(const char *text, size_t len, struct host_load *ret)
{
	ret->memory_bytes = kib(text, len, "MemTotal:");
	ret->memory_free_bytes = kib(text, len, "MemAvailable:");
}

static void read_file(const char *dir, const char *name, struct buf *ret)
{
	AUTO_FREE char *path = fs_join(dir, name);

	if (fs_read(path, FILE_MAX, ret, NULL, NULL) < 0)
		buf_done(ret);
}

void host_load_read(const char *proc, struct host_load *ret)
{
	const char *dir = proc ? proc : "/proc";
	AUTO_BUF struct buf load = {0}, memory = {0};

	*ret = (struct host_load){-1, -1, -1};
	read_file(dir, "loadavg", &load);
	read_file(dir, "meminfo", &memory);
	if (load.len)
		ret->load = host_load_parse(load.data, load.len);
	if (memory.len)
		host_memory_parse(memory.data, memory.len, ret);
}
