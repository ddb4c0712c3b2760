/* SPDX-License-Identifier: Apache-2.0 */
#include "app/init/init_parse.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "base/util/str.h"

enum { WORD_MAX = 1024, LINE_MAX_BYTES = 8192, STAGES_MAX = 256 };

static const char blanks[] = " \t\r";
#define ALPHANUMERIC "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

/*
 * Lines and words
 */

struct lines {
	const char *at, *end;
};

/* The next line without its end; false: there is none. */
static bool init_parse_next_line(struct lines *lines, const char **ret, size_t *ret_len)
{
	if (lines->at == lines->end)
		return false;
	const char *stop = memchr(lines->at, '\n', (size_t)(lines->end - lines->at));
	*ret = lines->at;
	*ret_len = (size_t)((stop ? stop : lines->end) - lines->at);
	lines->at = stop ? stop + 1 : lines->end;
	while (*ret_len && (*ret)[*ret_len - 1] == '\r')
		--*ret_len;
	return true;
}

static void init_parse_trim(const char **s, size_t *len)
{
	while (*len && strchr(blanks, **s) && **s)
		++*s, --*len;
	while (*len && strchr(blanks, (*s)[*len - 1]) && (*s)[*len - 1])
		--*len;
}

/* As a string of ours; NULL when it is empty, too long, or no text. */
static char *init_parse_take_text(const char *s, size_t len)
{
	if (len == 0 || len > WORD_MAX || memchr(s, '\0', len) || !str_is_utf8(s, len))
		return NULL;
	return mem_strndup(s, len);
}

static bool init_parse_is_word(const char *s, size_t len, const char *word)
{
	return strlen(word) == len && memcmp(s, word, len) == 0;
}

static const char *init_parse_skip(const char *at, const char *end, const char *set)
{
	while (at < end && *at && strchr(set, *at))
		at++;
	return at;
}

/*
 * setup.cfg, setup.py
 */

static bool is_section(const char *line, size_t len, const char *section)
{
	return len > 2 && line[0] == '[' && line[len - 1] == ']' &&
	       init_parse_is_word(line + 1, len - 2, section);
}

/* "key = value" or "key: value". */
static char *ini_value(const char *line, size_t len, const char *key)
{
	const char *value;

	for (value = line; value < line + len && *value != '=' && *value != ':'; value++)
		;
	if (value == line + len)
		return NULL;
	size_t key_len = (size_t)(value - line), value_len = len - key_len - 1;
	value++;
	init_parse_trim(&line, &key_len);
	init_parse_trim(&value, &value_len);
	return init_parse_is_word(line, key_len, key) ? init_parse_take_text(value, value_len)
						      : NULL;
}

char *init_ini_string(const char *text, size_t len, const char *section, const char *key)
{
	struct lines lines = {text, text + len};
	const char *line;
	size_t n;
	bool inside = false;

	while (init_parse_next_line(&lines, &line, &n)) {
		/* Indented lines continue the value before. */
		if (n == 0 || strchr(" \t#;", *line))
			continue;
		init_parse_trim(&line, &n);
		if (n && *line == '[')
			inside = is_section(line, n, section);
		char *value = inside ? ini_value(line, n, key) : NULL;
		if (value)
			return value;
	}
	return NULL;
}

/* The string behind "name" and "=", or NULL when another word only ends like that. */
static char *name_value(const char *at, const char *end)
{
	if (at[-1] != '(' && at[-1] != ',' && !strchr(" \t\r\n", at[-1]))
		return NULL;
	at = init_parse_skip(at + strlen("name"), end, blanks);
	if (at == end || *at != '=')
		return NULL;
	at = init_parse_skip(at + 1, end, blanks);
	if (at == end || (*at != '"' && *at != '\''))
		return NULL;
	const char *stop = memchr(at + 1, *at, (size_t)(end - at - 1));
	if (!stop || memchr(at, '\n', (size_t)(stop - at)))
		return NULL;
	return init_parse_take_text(at + 1, (size_t)(stop - at - 1));
}

char *init_setup_name(const char *text, size_t len)
{
	static const char call[] = "setup(", word[] = "name";
	const char *end = text + len, *at = memmem(text, len, call, strlen(call));

	if (!at)
		return NULL;
	for (at += strlen(call); (at = memmem(at, (size_t)(end - at), word, strlen(word))); at++) {
		char *value = name_value(at, end);
		if (value)
			return value;
	}
	return NULL;
}

/*
 * Dockerfile (https://docs.docker.com/reference/dockerfile/)
 */

struct docker {
	struct strv args;   /* name, value, … */
	struct strv stages; /* name, image, … ; "" for what is not known */
	struct buf line;    /* continued lines in one */
	char escape;
};

static const char *init_parse_find_pair(const struct strv *pairs, const char *name, bool fold)
{
	for (size_t i = pairs->n; i >= 2; i -= 2)
		if (fold ? strcasecmp(pairs->v[i - 2], name) == 0 : str_eq(pairs->v[i - 2], name))
			return pairs->v[i - 1];
	return NULL;
}

/* $NAME, ${NAME} or ${NAME:-default} at *s, behind the dollar. false: not known. */
static bool expand_one(const struct docker *docker, const char **s, struct buf *out)
{
	bool braced = **s == '{';
	const char *name = *s + braced;
	const char *p = name + strspn(name, "_" ALPHANUMERIC);

	AUTO_FREE char *wanted = mem_strndup(name, (size_t)(p - name));
	const char *value = init_parse_find_pair(&docker->args, wanted, false);
	*s = p;
	if (braced) {
		const char *stop = strchr(p, '}');
		if (!stop)
			return false;
		if (str_empty(value) && str_starts(p, ":-")) {
			buf_add(out, p + 2, (size_t)(stop - p - 2));
			value = "";
		} else if (p != stop && !str_starts(p, ":-")) {
			return false;
		}
		*s = stop + 1;
	}
	if (!value || !*wanted)
		return false;
	buf_adds(out, value);
	return true;
}

/* NULL when something in it is not known. */
static char *init_parse_expand(const struct docker *docker, const char *s)
{
	AUTO_BUF struct buf out = buf_with(WORD_MAX);
	bool ok = true;

	while (ok && *s) {
		if (*s == '$') {
			s++;
			ok = expand_one(docker, &s, &out);
		} else if (*s == '"' || *s == '\'') {
			s++;
		} else {
			buf_addc(&out, *s++);
		}
	}
	return ok && !out.full && out.len ? buf_take(&out) : NULL;
}

static void on_arg(struct docker *docker, const struct strv *words)
{
	for (size_t i = 1; i < words->n; i++) {
		const char *equals = strchr(words->v[i], '=');
		AUTO_FREE char *value = equals ? init_parse_expand(docker, equals + 1) : NULL;

		if (!equals || !value || docker->args.n >= 2 * STAGES_MAX)
			continue;
		strv_add_take(
			&docker->args, mem_strndup(words->v[i], (size_t)(equals - words->v[i])));
		strv_add(&docker->args, value);
	}
}

/* FROM [--platform=…] IMAGE [AS NAME] */
static void on_from(struct docker *docker, const struct strv *words)
{
	size_t i = 1;

	while (i < words->n && str_starts(words->v[i], "--"))
		i++;
	if (i >= words->n || docker->stages.n >= 2 * STAGES_MAX)
		return;
	AUTO_FREE char *image = init_parse_expand(docker, words->v[i]);
	const char *stage = image ? init_parse_find_pair(&docker->stages, image, true) : NULL;
	bool named = i + 2 < words->n && strcasecmp(words->v[i + 1], "as") == 0;
	char *base = mem_strdup(stage ? stage : image ? image : "");

	strv_add(&docker->stages, named ? words->v[i + 2] : "");
	strv_add_take(&docker->stages, base);
}

static void on_instruction(struct docker *docker)
{
	AUTO_STRV struct strv words = {0};

	if (docker->line.full || !str_is_utf8(docker->line.data, docker->line.len))
		return;
	char *save = NULL;

	for (char *word = strtok_r(docker->line.data, " \t\r", &save);
		word && words.n < INIT_NAMES_MAX; word = strtok_r(NULL, " \t\r", &save))
		strv_add(&words, word);
	if (words.n == 0)
		return;
	if (strcasecmp(words.v[0], "FROM") == 0)
		on_from(docker, &words);
	else if (strcasecmp(words.v[0], "ARG") == 0 && docker->stages.n == 0)
		on_arg(docker, &words);
}

/* "# escape=`" in the first lines. */
static char escape_of(const char *text, size_t len)
{
	struct lines lines = {text, text + len};
	const char *line;
	size_t n;

	while (init_parse_next_line(&lines, &line, &n)) {
		init_parse_trim(&line, &n);
		if (n == 0 || *line != '#')
			break;
		line++, n--;
		init_parse_trim(&line, &n);
		if (n > 7 && strncasecmp(line, "escape=", 7) == 0)
			return line[7] == '`' ? '`' : '\\';
	}
	return '\\';
}

static void docker_read(struct docker *docker, const char *text, size_t len)
{
	struct lines lines = {text, text + len};
	const char *line;
	size_t n;

	while (init_parse_next_line(&lines, &line, &n)) {
		init_parse_trim(&line, &n);
		/* Comments and empty lines do not end an instruction. */
		if (n == 0 || *line == '#')
			continue;
		bool goes_on = line[n - 1] == docker->escape;
		buf_add(&docker->line, line, n - goes_on);
		buf_addc(&docker->line, ' ');
		if (goes_on)
			continue;
		on_instruction(docker);
		buf_reset(&docker->line);
	}
	on_instruction(docker);
}

char *init_docker_base(const char *text, size_t len)
{
	struct docker docker = {.escape = escape_of(text, len)};
	char *base = NULL;

	buf_init(&docker.line, LINE_MAX_BYTES);
	docker_read(&docker, text, len);
	if (docker.stages.n)
		base = init_parse_take_text(docker.stages.v[docker.stages.n - 1],
			strlen(docker.stages.v[docker.stages.n - 1]));
	strv_done(&docker.args);
	strv_done(&docker.stages);
	buf_done(&docker.line);
	return base;
}

/*
 * Makefile, .gitignore, ssh_config
 */

bool init_make_has(const char *text, size_t len, const char *target)
{
	struct lines lines = {text, text + len};
	size_t target_len = strlen(target), n;
	const char *line;

	while (init_parse_next_line(&lines, &line, &n)) {
		if (n <= target_len || memcmp(line, target, target_len) != 0)
			continue;
		line += target_len, n -= target_len;
		init_parse_trim(&line, &n);
		/* ":=" sets a variable. */
		if (n && *line == ':' && (n == 1 || line[1] != '='))
			return true;
	}
	return false;
}

bool init_ignore_names(const char *text, size_t len, const char *name, bool below)
{
	struct lines lines = {text, text + len};
	const char *line;
	size_t n;

	while (init_parse_next_line(&lines, &line, &n)) {
		init_parse_trim(&line, &n);
		if (n && *line == '/' && !below)
			line++, n--;
		if (n && line[n - 1] == '/')
			n--;
		if (n && init_parse_is_word(line, n, name))
			return true;
	}
	return false;
}

static void init_parse_add_words(
	const char *line, size_t len, const char *unwanted, struct strv *ret)
{
	while (len && ret->n < INIT_NAMES_MAX) {
		size_t n = 0;

		init_parse_trim(&line, &len);
		while (n < len && !memchr(" \t", line[n], 2))
			n++;
		char *word = init_parse_take_text(line, n);
		if (word && !strpbrk(word, unwanted) && strv_find(ret, word) < 0)
			strv_add(ret, word);
		free(word);
		line += n, len -= n;
	}
}

static void add_ssh_words(
	const char *text, size_t len, const char *key, const char *unwanted, struct strv *ret)
{
	struct lines lines = {text, text + len};
	size_t key_len = strlen(key), n;
	const char *line;

	while (init_parse_next_line(&lines, &line, &n)) {
		init_parse_trim(&line, &n);
		if (n > key_len + 1 && strncasecmp(line, key, key_len) == 0 &&
			strchr(" \t=", line[key_len]))
			init_parse_add_words(line + key_len + 1, n - key_len - 1, unwanted, ret);
	}
}

void init_ssh_hosts(const char *text, size_t len, struct strv *ret)
{
	add_ssh_words(text, len, "Host", "*?!\"#", ret);
}

void init_ssh_includes(const char *text, size_t len, struct strv *ret)
{
	add_ssh_words(text, len, "Include", "\"#%$", ret);
}

/*
 * YAML
 */

/* Characters that libyaml's reader accepts, except for those that change how the text around them
 * looks. */
static bool init_parse_is_printable(uint32_t cp)
{
	return !unicode_is_control(cp) && !unicode_is_hidden(cp) && cp != 0xfffe && cp != 0xffff;
}

/* Fewer than YAML would allow: no sign of it stands in the set, and numbers start otherwise. */
static bool init_parse_is_plain(const char *s)
{
	const char *p = str_starts(s, "./") ? s + 2 : s;
	AUTO_FREE char *lower = str_lower(s, strlen(s));

	if (!*p || str_is_digit(*p) || strchr(" .+=@-", *p))
		return false;
	for (; *p; p++)
		if (!strchr("_./+=@-" ALPHANUMERIC, *p) &&
			(*p != ' ' || p[1] == ' ' || p[1] == '\0'))
			return false;
	/* Words that YAML 1.1 takes for null or a truth value. */
	return !str_is_word_of(lower, "null true false yes no on off y n");
}

static void add_escape(struct buf *out, uint32_t cp)
{
	if (cp == '"' || cp == '\\')
		buf_addf(out, "\\%c", (char)cp);
	else if (cp == '\n')
		buf_adds(out, "\\n");
	else if (cp == '\t')
		buf_adds(out, "\\t");
	else if (cp <= 0xff)
		buf_addf(out, "\\x%02X", (unsigned)cp);
	else if (cp <= 0xffff)
		buf_addf(out, "\\u%04X", (unsigned)cp);
	else
		buf_addf(out, "\\U%08X", (unsigned)cp);
}

static void init_parse_add_quoted(struct buf *out, const char *s, size_t len)
{
	buf_addc(out, '"');
	for (size_t n; len; s += n, len -= n) {
		uint32_t cp;

		n = unicode_decode(s, len, &cp);
		if (cp != '"' && cp != '\\' && init_parse_is_printable(cp))
			buf_add(out, s, n);
		else
			add_escape(out, cp);
	}
	buf_addc(out, '"');
}

bool init_yaml_scalar(struct buf *out, const char *s)
{
	size_t len = strlen(s);

	if (!str_is_utf8(s, len))
		return false;
	if (init_parse_is_plain(s))
		buf_add(out, s, len);
	else
		init_parse_add_quoted(out, s, len);
	return true;
}

bool init_yaml_list(struct buf *out, const struct strv *words)
{
	size_t before = out->len;
	bool ok = true;

	buf_addc(out, '[');
	for (size_t i = 0; ok && i < words->n; i++) {
		buf_adds(out, i ? ", " : "");
		ok = init_yaml_scalar(out, words->v[i]);
	}
	buf_addc(out, ']');
	if (!ok)
		buf_truncate(out, before);
	return ok;
}

void init_yaml_comment(struct buf *out, const char *s, size_t max)
{
	size_t len = strlen(s), used = 0;

	while (used < len) {
		uint32_t cp;
		size_t n = unicode_decode(s + used, len - used, &cp);
		bool shown = n && init_parse_is_printable(cp);

		n += n == 0;
		if (used + n > max) {
			buf_adds(out, "...");
			return;
		}
		if (shown)
			buf_add(out, s + used, n);
		for (size_t i = 0; !shown && i < n; i++)
			buf_addf(out, "\\x%02x", (unsigned)(uint8_t)s[used + i]);
		used += n;
	}
}
