/* SPDX-License-Identifier: Apache-2.0 */
#include "app/tensorboard/tensorboard_words.h"

#include <stdio.h>
#include <string.h>

#include "app/tensorboard/tensorboard_child_text.h"
#include "base/data/json.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/random.h"
#include "base/util/str.h"
#include "base/util/term.h"

enum { WORDS_MAX = 8, WORD_MAX = 4096, SHOWN_MAX = 200, PORT_MAX = 65535 };

/*
 * The line that names the port
 */

/* Whether text up to end begins with word; *text is behind it then. */
static bool tensorboard_words_skip(const char **text, const char *end, const char *word)
{
	size_t len = strlen(word);

	if ((size_t)(end - *text) < len || memcmp(*text, word, len) != 0)
		return false;
	*text += len;
	return true;
}

/* Copies the version at text, as far as it fits; returns its length. */
static size_t read_version(const char *text, char ret[static TENSORBOARD_VERSION_SIZE])
{
	size_t n =
		strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.+-");

	n = n < TENSORBOARD_VERSION_SIZE ? n : TENSORBOARD_VERSION_SIZE - 1;
	memcpy(ret, text, n);
	ret[n] = '\0';
	return n;
}

bool tensorboard_line_read(const char *line, struct tensorboard_line *ret)
{
	static const char name[] = "TensorBoard ", between[] = " at http://";
	struct tensorboard_line found = {0};
	int64_t port;

	if (!str_starts(line, name))
		return false;
	const char *at = line + strlen(name);
	at += read_version(at, found.version);
	if (!*found.version || !str_starts(at, between))
		return false;
	/* Ignore the host: it depends on how TensorBoard was started. */
	at += strlen(between);
	at += *at == '[' ? strcspn(at, "]") : 0;
	at += strcspn(at, ":/ ");
	if (*at != ':')
		return false;
	AUTO_FREE char *digits = mem_strndup(at + 1, strcspn(at + 1, "/ "));
	if (strspn(digits, "0123456789") != strlen(digits) ||
		str_to_int(digits, 1, PORT_MAX, "port", &port, NULL) < 0)
		return false;
	found.port = (uint16_t)port;
	*ret = found;
	return true;
}

/*
 * The interpreter of a script
 */

static bool tensorboard_words_is_blank(char c)
{
	return c == ' ' || c == '\t';
}

/* Read the next word of a line, in quotes or not; NULL at the end of the line, and for a word that
 * a shell would expand. */
static char *tensorboard_words_next_word(const char **text, const char *end)
{
	const char *at = *text;
	char quote;

	while (at < end && tensorboard_words_is_blank(*at))
		at++;
	if (at == end)
		return NULL;
	quote = *at == '"' || *at == '\'' ? *at++ : '\0';
	const char *start = at;
	while (at < end && (quote ? *at != quote : !tensorboard_words_is_blank(*at)))
		at++;
	if ((quote && at == end) || at - start > WORD_MAX ||
		memchr(start, '$', (size_t)(at - start)))
		return NULL;
	*text = quote ? at + 1 : at;
	return mem_strndup(start, (size_t)(at - start));
}

static bool tensorboard_words_is_python(const char *path)
{
	const char *name = fs_basename(path);

	return str_starts(name, "python") || str_starts(name, "pypy");
}

static void tensorboard_words_read_words(const char *at, const char *end, struct strv *ret)
{
	char *word;

	while (ret->n < WORDS_MAX && (word = tensorboard_words_next_word(&at, end)))
		strv_add_take(ret, word);
}

static bool is_env(const struct strv *words)
{
	return words->n > 1 && str_ends(words->v[0], "/env");
}

/* "#!/bin/sh" and "'''exec' "/a b/python" "$0" "$@"": no interpreter path of a first line may be
 * long or have blanks. */
static bool read_second_line(const char *at, const char *end, struct strv *ret)
{
	if (!tensorboard_words_skip(&at, end, "'''exec' "))
		return false;
	tensorboard_words_read_words(at, end, ret);
	return ret->n > 0;
}

static bool tensorboard_words_is_usable(const struct strv *words)
{
	bool named = false;

	if (words->n == 0 || words->v[0][0] != '/')
		return false;
	for (size_t i = 0; i < words->n; i++) {
		if (!str_is_plain(words->v[i]))
			return false;
		named |= tensorboard_words_is_python(words->v[i]);
	}
	return is_env(words) ? named : tensorboard_words_is_python(words->v[0]);
}

bool tensorboard_python_read(const char *head, size_t len, struct strv *ret)
{
	AUTO_STRV struct strv words = {0};
	const char *at = head, *end;

	if (memchr(head, '\0', len) || !tensorboard_words_skip(&at, head + len, "#!"))
		return false;
	end = memchr(at, '\n', (size_t)(head + len - at));
	if (!end)
		return false;
	tensorboard_words_read_words(at, end, &words);
	if (words.n == 1 && str_eq(words.v[0], "/bin/sh")) {
		const char *second = end + 1, *rest = head + len;

		end = memchr(second, '\n', (size_t)(rest - second));
		strv_done(&words);
		if (!read_second_line(second, end ? end : rest, &words))
			return false;
	}
	if (!tensorboard_words_is_usable(&words))
		return false;
	strv_copy(ret, &words);
	return true;
}

/*
 * Responses of TensorBoard
 */

bool tensorboard_response_read(
	const char *response, size_t len, char ret_version[static TENSORBOARD_VERSION_SIZE])
{
	const char *end = response + len, *at = response;
	AUTO_JSON struct json *json = NULL;

	if (!tensorboard_words_skip(&at, end, "HTTP/1.") || end - at < 5 ||
		memcmp(at + 1, " 200", 4) != 0)
		return false;
	const char *body = memmem(at, (size_t)(end - at), "\r\n\r\n", 4);
	if (!body)
		return false;
	body += 4;
	if (json_parse(body, (size_t)(end - body), TENSORBOARD_RESPONSE_MAX, "the answer", &json,
		    NULL) < 0 ||
		!json_get_str(json, "data_location"))
		return false;
	const char *version = json_get_str(json, "version");
	read_version(version ? version : "", ret_version);
	return true;
}

/*
 * Why it failed
 */

static const struct trap {
	const char *words;
	enum err_id id;
	const char *why;
	const char *packages; /* to install */
} traps[] = {
	{"No module named 'pkg_resources'", E_TENSORBOARD_PKG_RESOURCES,
		"setuptools 82 removed pkg_resources", "'tensorboard>=2.21'"},
	{"No module named 'tensorboard'", E_TENSORBOARD_MISSING,
		"the package tensorboard is not in its Python", "tensorboard"},
	{"No module named tensorboard", E_TENSORBOARD_MISSING,
		"the package tensorboard is not in its Python", "tensorboard"},
	{"No module named 'imghdr'", E_TENSORBOARD_START, "Python 3.13 removed imghdr",
		"-U tensorboard"},
	{"No module named 'distutils'", E_TENSORBOARD_START, "Python 3.12 removed distutils",
		"-U tensorboard"},
	{"numpy.core.multiarray failed to import", E_TENSORBOARD_START,
		"it does not go with the NumPy beside it", "-U tensorboard numpy"},
	{"_ARRAY_API not found", E_TENSORBOARD_START, "it does not go with the NumPy beside it",
		"-U tensorboard numpy"},
	{"numpy.dtype size changed", E_TENSORBOARD_START, "it does not go with the NumPy beside it",
		"-U tensorboard numpy"},
	{"module 'numpy' has no attribute", E_TENSORBOARD_START,
		"it does not go with the NumPy beside it", "-U tensorboard numpy"},
	{"Descriptors cannot be created directly", E_TENSORBOARD_START,
		"it does not go with the protobuf beside it", "-U tensorboard protobuf"},
	{"from 'google.protobuf'", E_TENSORBOARD_START,
		"it does not go with the protobuf beside it", "-U tensorboard protobuf"},
	{"including_default_value_fields", E_TENSORBOARD_START,
		"it does not go with the protobuf beside it", "-U tensorboard protobuf"},
	{"'MessageFactory' object has no attribute", E_TENSORBOARD_START,
		"it does not go with the protobuf beside it", "-U tensorboard protobuf"},
	{"No module named '", E_TENSORBOARD_START, "a package that it needs is missing",
		"--force-reinstall tensorboard"},
};

static const struct trap *find_trap(const char *said, size_t len)
{
	for (size_t i = 0; i < ARRAY_LEN(traps); i++)
		if (memmem(said, len, traps[i].words, strlen(traps[i].words)))
			return &traps[i];
	return NULL;
}

char *tensorboard_last_line(const char *said, size_t len)
{
	AUTO_BUF struct buf shown = buf_with(4 * SHOWN_MAX);
	const char *start = said;

	while (len && (said[len - 1] == '\n' || said[len - 1] == '\r' ||
			      tensorboard_words_is_blank(said[len - 1])))
		len--;
	if (len == 0)
		return NULL;
	for (size_t i = 0; i < len; i++)
		if (said[i] == '\n')
			start = said + i + 1;
	len -= (size_t)(start - said);
	term_clean(start, len < SHOWN_MAX ? len : SHOWN_MAX, true, &shown);
	return buf_take(&shown);
}

int tensorboard_explain(
	const char *said, size_t len, const struct tensorboard_who *who, struct err *err)
{
	const struct trap *trap = find_trap(said, len);
	AUTO_FREE char *last = tensorboard_last_line(said, len);
	bool is_known = !str_empty(who->version);

	err_set(err, trap ? trap->id : E_TENSORBOARD_START, "TensorBoard%s%s here cannot start: %s",
		is_known ? " " : "", is_known ? who->version : "",
		trap ? trap->why : "it ended before it answered");
	err_evidence(err, "from %s", who->path);
	if (last)
		err_evidence(err, "%s", last);
	return err_hint(err, "%s %s   # or read the curves now: dlrun plot %s", who->install,
		trap ? trap->packages : "-U tensorboard", who->plot ? who->plot : "@");
}

/*
 * The secret path
 */

void tensorboard_secret_make(char ret[static TENSORBOARD_SECRET_SIZE])
{
	static const char letters[] = "23456789abcdefghjkmnpqrstuvwxyz";

	ret[0] = '/';
	for (size_t i = 1; i < TENSORBOARD_SECRET_SIZE - 1; i++)
		ret[i] = letters[random_below(sizeof(letters) - 1)];
	ret[TENSORBOARD_SECRET_SIZE - 1] = '\0';
}

bool tensorboard_secret_fits(const char *secret, const char *target)
{
	size_t len = TENSORBOARD_SECRET_SIZE - 1;

	return strlen(target) >= len && str_is_secret(target, secret, len) &&
	       (!target[len] || target[len] == '/' || target[len] == '?');
}

const char tensorboard_child_loader[] =
	"import io,json;exec(json.loads(io.open(0,'rb',0,closefd=False).readline().decode()))";

void tensorboard_child_text(const struct tensorboard_child *child, struct buf *out)
{
	AUTO_JSON struct json *program = json_array(), *wanted = json_object();
	struct json *words = json_array();

	json_add_str(program, TENSORBOARD_CHILD);
	json_print(json_first(program), out);
	json_add_strv(words, child->words);
	json_set_str(wanted, "logdir", child->logdir);
	json_set_bool(wanted, "link", child->has_link);
	json_set_bool(wanted, "fast", child->is_fast);
	json_set_bool(wanted, "scratch", child->has_scratch);
	json_set(wanted, "words", words);
	buf_addc(out, '\n');
	json_print(wanted, out);
	buf_addc(out, '\n');
}

void tensorboard_child_argv(const char *prefix, struct strv *out)
{
	const char *const words[] = {"--host", "127.0.0.1", "--port", "0", "--path_prefix", prefix,
		"--reload_interval", "5"};

	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		strv_add(out, words[i]);
}
