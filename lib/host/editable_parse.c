/* SPDX-License-Identifier: Apache-2.0 */
#include "host/editable_parse.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/data/json.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "base/util/unicode.h"

/* A text that is read from the front. */
struct text {
	const char *at, *end;
};

static bool is_blank(char c)
{
	return c == ' ' || c == '\t';
}

/* false at the end. *ret: the next line without what ends it and blanks around it. */
static bool next_line(struct text *text, struct text *ret)
{
	const char *end;

	if (text->at >= text->end)
		return false;
	end = memchr(text->at, '\n', (size_t)(text->end - text->at));
	*ret = (struct text){text->at, end ? end : text->end};
	text->at = end ? end + 1 : text->end;
	while (ret->at < ret->end && is_blank(*ret->at))
		ret->at++;
	while (ret->end > ret->at && (is_blank(ret->end[-1]) || ret->end[-1] == '\r'))
		ret->end--;
	return true;
}

static size_t text_len(const struct text *text)
{
	return (size_t)(text->end - text->at);
}

static bool text_starts(const struct text *text, const char *prefix)
{
	size_t len = strlen(prefix);

	return text_len(text) >= len && memcmp(text->at, prefix, len) == 0;
}

static bool is_path_text(const struct text *text)
{
	size_t len = text_len(text);

	return len > 0 && len < PARSE_PATH_MAX && !memchr(text->at, '\0', len);
}

/*
 * .pth
 */

void parse_pth(const char *text, size_t len, struct strv *ret)
{
	struct text rest = {text, text + len}, line;

	for (size_t n = 0; n < PARSE_LINES_MAX && next_line(&rest, &line); n++) {
		if (text_starts(&line, "#") || text_starts(&line, "import ") ||
			text_starts(&line, "import\t") || !is_path_text(&line))
			continue;
		strv_add_take(ret, mem_strndup(line.at, text_len(&line)));
	}
}

/*
 * Finders: literals of Python
 */

void module_map_done(struct module_map *map)
{
	if (!map)
		return;
	strv_done(&map->names);
	strv_done(&map->paths);
}

static void skip_space(struct text *text)
{
	while (text->at < text->end && (is_blank(*text->at) || strchr("\r\n", *text->at)))
		text->at++;
}

static bool take_char(struct text *text, char c)
{
	skip_space(text);
	if (text->at >= text->end || *text->at != c)
		return false;
	text->at++;
	return true;
}

/* \xNN, \uNNNN, \UNNNNNNNN: a code point, or one of the bytes of a name that is not UTF-8, which
 * Python shows as U+DC80 to U+DCFF. */
static bool take_code(struct text *text, size_t digits, struct buf *out)
{
	uint32_t cp = 0;

	if (text_len(text) < digits)
		return false;
	for (size_t i = 0; i < digits; i++) {
		int digit = hex_digit((unsigned char)*text->at++);
		if (digit < 0)
			return false;
		cp = cp << 4 | (uint32_t)digit;
	}
	if (cp >= 0xdc80 && cp <= 0xdcff)
		buf_addc(out, (char)(cp & 0xff));
	else if (cp == 0 || cp > 0x10ffff || (cp >= 0xd800 && cp <= 0xdfff))
		return false;
	else
		unicode_add(out, cp);
	return true;
}

static bool take_escape(struct text *text, struct buf *out)
{
	static const char letters[] = "nrt\\'\"", meant[] = "\n\r\t\\'\"";
	const char *letter;
	char c;

	if (text->at >= text->end)
		return false;
	c = *text->at++;
	letter = c ? strchr(letters, c) : NULL;
	if (letter) {
		buf_addc(out, meant[letter - letters]);
		return true;
	}
	if (c == 'x')
		return take_code(text, 2, out);
	if (c == 'u')
		return take_code(text, 4, out);
	return c == 'U' && take_code(text, 8, out);
}

/* A string as repr() writes it; NULL for anything else. */
static char *take_string(struct text *text)
{
	AUTO_BUF struct buf out = {0};
	char quote;

	skip_space(text);
	if (text->at >= text->end || (*text->at != '\'' && *text->at != '"'))
		return NULL;
	quote = *text->at++;
	buf_init(&out, PARSE_PATH_MAX);
	while (text->at < text->end && *text->at != quote) {
		char c = *text->at++;
		if (c == '\n' || c == '\0')
			return NULL;
		if (c != '\\')
			buf_addc(&out, c);
		else if (!take_escape(text, &out))
			return NULL;
	}
	if (text->at >= text->end || out.full)
		return NULL;
	text->at++;
	return buf_take(&out);
}

static void add_pair(struct module_map *map, const char *name, const char *path)
{
	strv_add(&map->names, name);
	strv_add(&map->paths, path);
}

static bool take_path(struct text *text, const char *name, struct module_map *ret)
{
	AUTO_FREE char *path = take_string(text);

	if (!path || ret->names.n >= PARSE_PAIRS_MAX)
		return false;
	add_pair(ret, name, path);
	return true;
}

/* A path, or a list of them. */
static bool take_value(struct text *text, const char *name, struct module_map *ret)
{
	if (!take_char(text, '['))
		return take_path(text, name, ret);
	while (!take_char(text, ']'))
		if (!take_path(text, name, ret) ||
			(!take_char(text, ',') && !(text->at < text->end && *text->at == ']')))
			return false;
	return true;
}

/* NAME: a type = {…}, from the "=" on. */
static void take_dict(struct text text, struct module_map *ret)
{
	if (!take_char(&text, '=') || !take_char(&text, '{'))
		return;
	do {
		AUTO_FREE char *name = take_string(&text);
		if (!name || !take_char(&text, ':') || !take_value(&text, name, ret))
			return;
	} while (take_char(&text, ','));
}

static void take_call(struct text text, struct module_map *ret)
{
	AUTO_FREE char *name = take_string(&text);

	if (name && take_char(&text, ','))
		take_path(&text, name, ret);
}

void parse_finder(const char *text, size_t len, struct module_map *ret)
{
	static const char call[] = "F.map_module(";
	struct text rest = {text, text + len}, line;

	while (next_line(&rest, &line)) {
		struct text from_here = {line.at, text + len};
		if (text_starts(&line, "MAPPING") || text_starts(&line, "NAMESPACES")) {
			const char *equals = memchr(line.at, '=', text_len(&line));
			from_here.at = equals ? equals : text + len;
			take_dict(from_here, ret);
		} else if (text_starts(&line, call)) {
			from_here.at += sizeof(call) - 1;
			take_call(from_here, ret);
		}
	}
}

/* Cut the last component off path's end if it is name. */
static bool cut_name(const char *path, size_t *len, const char *name, size_t name_len)
{
	if (*len <= name_len || memcmp(path + *len - name_len, name, name_len) != 0 ||
		path[*len - name_len - 1] != '/')
		return false;
	*len -= name_len + 1;
	return true;
}

char *module_base(const char *name, const char *path)
{
	static const char *const endings[] = {"/__init__.py", ".py", "/"};
	size_t len = strlen(path), end = strlen(name);

	for (size_t i = 0; i < ARRAY_LEN(endings); i++)
		if (str_ends(path, endings[i])) {
			len -= strlen(endings[i]);
			break;
		}
	while (end > 0) {
		size_t start = end;
		while (start > 0 && name[start - 1] != '.')
			start--;
		if (start == end || start == 1 || !cut_name(path, &len, name + start, end - start))
			return NULL;
		end = start ? start - 1 : 0;
	}
	return len || *path == '/' ? mem_strndup(len ? path : "/", len ? len : 1) : NULL;
}

/*
 * direct_url.json
 */

/* file:///a%20b, file://localhost/a; NULL for another kind. */
static char *path_of_url(const char *url)
{
	AUTO_BUF struct buf out = {0};

	if (!str_starts(url, "file://"))
		return NULL;
	url += strlen("file://");
	if (str_starts(url, "localhost/"))
		url += strlen("localhost");
	if (*url != '/')
		return NULL;
	buf_init(&out, PARSE_PATH_MAX);
	for (; *url && !strchr("?#", *url); url++) {
		uint8_t byte;
		if (*url != '%') {
			buf_addc(&out, *url);
		} else if (hex_digit(url[1]) >= 0 && hex_decode(url + 1, 1, &byte) && byte) {
			buf_addc(&out, (char)byte);
			url += 2;
		} else {
			return NULL;
		}
	}
	return out.full ? NULL : buf_take(&out);
}

char *parse_direct_url(const char *text, size_t len)
{
	enum { MAX = 64 << 10 };
	AUTO_JSON struct json *json = NULL;
	const char *url;

	if (json_parse(text, len, MAX, "direct_url.json", &json, NULL) < 0)
		return NULL;
	url = json_get_str(json, "url");
	return url && json_get_bool(json_get(json, "dir_info"), "editable", false)
		       ? path_of_url(url)
		       : NULL;
}

/*
 * pyvenv.cfg
 */

static char lower(char c)
{
	return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static bool has_key(const struct text *line, const char *key, struct text *ret_value)
{
	const char *at = line->at;

	for (; *key; key++, at++)
		if (at >= line->end || lower(*at) != *key)
			return false;
	while (at < line->end && is_blank(*at))
		at++;
	if (at >= line->end || *at != '=')
		return false;
	for (at++; at < line->end && is_blank(*at);)
		at++;
	*ret_value = (struct text){at, line->end};
	return true;
}

char *parse_venv_cfg(const char *text, size_t len, const char *key)
{
	struct text rest = {text, text + len}, line, value;

	while (next_line(&rest, &line))
		if (has_key(&line, key, &value))
			return is_path_text(&value) ? mem_strndup(value.at, text_len(&value))
						    : NULL;
	return NULL;
}

/*
 * Commands
 */

enum { QUOTES_NONE, QUOTES_SINGLE, QUOTES_DOUBLE };

struct splitter {
	struct buf word;
	bool in_word;
	struct strv *ret;
};

static void end_word(struct splitter *splitter)
{
	if (splitter->in_word && !splitter->word.full && splitter->ret->n < PARSE_WORDS_MAX)
		strv_add(splitter->ret, splitter->word.data);
	buf_reset(&splitter->word);
	splitter->in_word = false;
}

static void end_command(struct splitter *splitter)
{
	struct strv *words = splitter->ret;

	end_word(splitter);
	if (words->n < PARSE_WORDS_MAX && words->n && !str_eq(words->v[words->n - 1], ";"))
		strv_add(words, ";");
}

static void add_plain(struct splitter *splitter, char c)
{
	if (is_blank(c)) {
		end_word(splitter);
	} else if (strchr("\n;&|(){}`", c)) {
		end_command(splitter);
	} else {
		buf_addc(&splitter->word, c);
		splitter->in_word = true;
	}
}

void parse_shell_line(const char *line, struct strv *ret)
{
	struct splitter splitter = {.ret = ret};
	int quotes = QUOTES_NONE;

	buf_init(&splitter.word, PARSE_PATH_MAX);
	for (; *line; line++) {
		int kind = *line == '\''  ? QUOTES_SINGLE
			   : *line == '"' ? QUOTES_DOUBLE
					  : QUOTES_NONE;
		if (kind && (quotes == QUOTES_NONE || quotes == kind)) {
			quotes = quotes ? QUOTES_NONE : kind;
			splitter.in_word = true;
		} else if (*line == '\\' && line[1] && quotes != QUOTES_SINGLE) {
			if (*++line != '\n')
				buf_addc(&splitter.word, *line);
			splitter.in_word |= *line != '\n';
		} else if (quotes) {
			buf_addc(&splitter.word, *line);
		} else {
			add_plain(&splitter, *line);
		}
	}
	end_word(&splitter);
	buf_done(&splitter.word);
}

static void drop_first(struct strv *words, size_t n)
{
	for (size_t i = 0; i < n; i++)
		free(words->v[i]);
	memmove(words->v, words->v + n, (words->n - n + 1) * sizeof(*words->v));
	words->n -= n;
}

bool is_assignment(const char *word)
{
	const char *equals = strchr(word, '=');

	return equals && equals != word && !memchr(word, '/', (size_t)(equals - word));
}

void parse_shebang(const char *text, size_t len, struct strv *ret)
{
	static const char exec[] = "'''exec' ";
	struct text rest = {text, text + len}, first, second;
	size_t skip = 0;

	if (!next_line(&rest, &first) || !text_starts(&first, "#!") || first.at != text)
		return;
	first.at += 2;
	if (next_line(&rest, &second) && text_starts(&second, exec))
		first = (struct text){second.at + sizeof(exec) - 1, second.end};
	if (!is_path_text(&first))
		return;
	AUTO_FREE char *line = mem_strndup(first.at, text_len(&first));
	parse_shell_line(line, ret);
	if (ret->n && str_eq(fs_basename(ret->v[0]), "env"))
		for (skip = 1; skip < ret->n; skip++)
			if (*ret->v[skip] != '-' && !is_assignment(ret->v[skip]))
				break;
	if (skip)
		drop_first(ret, skip);
}

bool is_python_name(const char *path)
{
	static const char *const names[] = {"python", "pypy"};
	const char *name = fs_basename(path);

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (str_starts(name, names[i])) {
			name += strlen(names[i]);
			name += strspn(name, "0123456789.");
			return *name == '\0' || str_eq(name, "t") || str_eq(name, "w");
		}
	return false;
}

void parse_python_options(char *const *words, size_t n, struct python_options *ret)
{
	for (size_t i = 0; i < n && words[i][0] == '-' && words[i][1]; i++) {
		const char *letter = words[i] + 1;
		if (str_eq(words[i], "--check-hash-based-pycs"))
			i++;
		if (*letter == '-')
			continue;
		for (; *letter && !strchr("cmWX", *letter); letter++) {
			ret->ignores_env |= *letter == 'E' || *letter == 'I';
			ret->no_user |= *letter == 's' || *letter == 'I';
		}
		if (*letter == 'c' || *letter == 'm')
			return;
		if (*letter && !letter[1])
			i++;
	}
}
