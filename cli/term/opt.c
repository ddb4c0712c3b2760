/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/term/opt.h"

#include <inttypes.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/term/opt_others.h"
#include "core/config/config.h"

enum { MESSAGE_MAX = 4096 };

struct parser {
	const struct opt_request *request;
	char *const *next; /* of argv */
};

/* An option and the struct that it is bound to. */
struct match {
	const struct opt *opt;
	void *values;
};

static bool is_end(const struct opt *opt)
{
	return !opt || opt->type == OPT_END;
}

const struct opt *opt_find(const struct opt *opts, const char *name, size_t len)
{
	for (const struct opt *opt = opts; !is_end(opt); opt++)
		if (strlen(opt->name) == len && memcmp(opt->name, name, len) == 0)
			return opt;
	return NULL;
}

const struct opt *opt_find_letter(const struct opt *opts, char letter)
{
	for (const struct opt *opt = opts; !is_end(opt); opt++)
		if (opt->letter == letter)
			return opt;
	return NULL;
}

static void *member(const struct opt *opt, void *values)
{
	return (char *)values + opt->offset;
}

void opt_values_init(const struct opt *opts, void *values)
{
	for (const struct opt *opt = opts; !is_end(opt); opt++)
		if (opt->type == OPT_INT || opt->type == OPT_SIZE || opt->type == OPT_DURATION)
			*(int64_t *)member(opt, values) = OPT_UNSET;
}

void opt_values_done(const struct opt *opts, void *values)
{
	for (const struct opt *opt = opts; !is_end(opt); opt++)
		if (opt->type == OPT_LIST)
			strv_done(member(opt, values));
}

char *opt_text(const struct opt *opt, const void *values)
{
	const void *at = (const char *)values + opt->offset;
	int64_t number;

	switch (opt->type) {
	case OPT_STRING:
	case OPT_CHOICE:
		return mem_strdup(*(const char *const *)at);
	case OPT_INT:
	case OPT_SIZE:
	case OPT_DURATION:
		number = *(const int64_t *)at;
		if (number == OPT_UNSET)
			return NULL;
		return mem_printf("%" PRId64 "%s", number, opt->type == OPT_DURATION ? "ms" : "");
	default:
		return NULL;
	}
}

/*
 * Values
 */

static int set_choice(const struct opt *opt, const char *text, const char **ret, struct err *err)
{
	AUTO_FREE char *what = mem_printf("--%s", opt->name);

	if (str_choose(text, opt->choices, what, err) < 0)
		return err_hint(
			err, "%s %.*s", what, (int)strcspn(opt->choices, " "), opt->choices);
	*ret = text;
	return 0;
}

static int set_size(const char *text, int64_t *ret, struct err *err)
{
	uint64_t size;
	int r = str_to_size(text, &size, err);

	if (r == 0)
		*ret = size > INT64_MAX ? INT64_MAX : (int64_t)size;
	return r;
}

static int set_value(const struct match *match, char *text, struct err *err)
{
	const struct opt *opt = match->opt;
	void *at = member(opt, match->values);
	AUTO_FREE char *what = mem_printf("--%s", opt->name);
	int r;

	switch (opt->type) {
	case OPT_STRING:
		*(const char **)at = text;
		return 0;
	case OPT_LIST:
		strv_add(at, text);
		return 0;
	case OPT_CHOICE:
		return set_choice(opt, text, at, err);
	case OPT_INT:
		r = str_to_int(text, opt->min || opt->max ? opt->min : INT64_MIN + 1,
			opt->min || opt->max ? opt->max : INT64_MAX, what, at, err);
		return r;
	case OPT_SIZE:
		r = set_size(text, at, err);
		break;
	default:
		r = duration_parse(text, at, err);
		break;
	}
	if (r == 0)
		return 0;
	if (opt->type == OPT_DURATION && !text[strspn(text, "0123456789")])
		err_hint(err, "%s %sm", what, *text ? text : "5");
	return err_prefix(err, "%s", what);
}

/*
 * Faults
 */

static int missing_value(const struct parser *parser, const struct opt *opt, struct err *err)
{
	err_set(err, E_USAGE, "--%s needs a value", opt->name);
	return err_hint(err, "%s --%s %s", parser->request->command, opt->name, opt->arg);
}

static void add_names(const struct opt *opts, struct strv *names)
{
	for (const struct opt *opt = opts; !is_end(opt); opt++)
		if (!opt->hidden)
			strv_addf(names, "--%s", opt->name);
}

static int unknown(const struct parser *parser, const char *word, struct err *err)
{
	const struct opt_request *request = parser->request;
	AUTO_FREE char *shown = str_shown(word);
	AUTO_STRV struct strv names = {0};
	const char *near = NULL;

	add_names(request->opts, &names);
	add_names(request->common, &names);
	/* A single letter is near to every other one. */
	if (str_starts(word, "--"))
		near = str_suggest(word, (const char *const *)names.v, names.n);
	err_set(err, E_USAGE_OPTION, "%s: unknown option %s", request->command, shown);
	if (near)
		return err_hint(err, "did you mean %s?", near);
	return err_hint(err, "%s -h", request->command);
}

static int ambiguous(const char *name, size_t len, const struct strv *found, struct err *err)
{
	AUTO_BUF struct buf list = {0};

	buf_init(&list, MESSAGE_MAX);
	for (size_t i = 0; i < found->n; i++)
		buf_addf(&list, "%s--%s",
			i == 0              ? ""
			: i + 1 == found->n ? " or "
					    : ", ",
			found->v[i]);
	err_set(err, E_USAGE_OPTION, "--%.*s could be %s", (int)len, name, list.data);
	return err_hint(err, "--%s", found->v[0]);
}

/*
 * Words that begin with '-'
 */

static void find_starting(const struct opt *opts, void *values, const char *name, size_t len,
	struct strv *found, struct match *ret)
{
	for (const struct opt *opt = opts; !is_end(opt); opt++) {
		if (opt->hidden || strncmp(opt->name, name, len) != 0)
			continue;
		strv_add(found, opt->name);
		*ret = (struct match){opt, values};
	}
}

static int find_long(const struct parser *parser, const char *word, size_t len, struct match *ret,
	struct err *err)
{
	const struct opt_request *request = parser->request;
	AUTO_STRV struct strv found = {0};
	const char *name = word + 2;

	*ret = (struct match){opt_find(request->opts, name, len), request->values};
	if (ret->opt)
		return 0;
	*ret = (struct match){opt_find(request->common, name, len), request->common_values};
	if (ret->opt)
		return 0;
	find_starting(request->opts, request->values, name, len, &found, ret);
	find_starting(request->common, request->common_values, name, len, &found, ret);
	if (found.n == 1)
		return 0;
	if (found.n && len)
		return ambiguous(name, len, &found, err);
	AUTO_FREE char *alone = mem_strndup(word, len + 2);
	return unknown(parser, alone, err);
}

static int parse_long(struct parser *parser, char *word, struct err *err)
{
	char *equals = strchr(word, '=');
	size_t len = equals ? (size_t)(equals - word) - 2 : strlen(word) - 2;
	struct match match;
	int r = find_long(parser, word, len, &match, err);

	if (r < 0)
		return r;
	if (match.opt->type == OPT_FLAG) {
		if (equals)
			return err_set(err, E_USAGE, "--%s takes no value", match.opt->name);
		*(bool *)member(match.opt, match.values) = true;
		return 0;
	}
	if (equals || *match.opt->arg == '[')
		return set_value(&match, equals ? equals + 1 : word + strlen(word), err);
	if (!*parser->next)
		return missing_value(parser, match.opt, err);
	return set_value(&match, *parser->next++, err);
}

static int parse_letters(struct parser *parser, char *word, struct err *err)
{
	const struct opt_request *request = parser->request;

	for (char *letter = word + 1; *letter; letter++) {
		struct match match = {opt_find_letter(request->opts, *letter), request->values};

		if (!match.opt)
			match = (struct match){
				opt_find_letter(request->common, *letter), request->common_values};
		if (!match.opt) {
			size_t n = strlen(letter);
			size_t len = str_utf8_len(letter, n);
			AUTO_FREE char *one = mem_printf("-%.*s", (int)(len ? len : 1), letter);

			return unknown(parser, one, err);
		}
		if (match.opt->type == OPT_FLAG) {
			*(bool *)member(match.opt, match.values) = true;
			continue;
		}
		if (letter[1])
			return set_value(&match, letter + 1, err);
		if (!*parser->next)
			return missing_value(parser, match.opt, err);
		return set_value(&match, *parser->next++, err);
	}
	return 0;
}

/* A word that begins with '-', or what is taken for one. */
static int parse_option(struct parser *parser, char *const *argv, char *const *at, struct err *err)
{
	int r = (*at)[0] != '-'   ? opt_refuse_volume(*at, err)
		: (*at)[1] == '-' ? parse_long(parser, *at, err)
				  : parse_letters(parser, *at, err);

	if (r < 0 && parser->request->stop_at_word)
		opt_hint_others(parser->request, argv, *at, err);
	return r;
}

int opt_parse(const struct opt_request *request, char *const *argv, struct strv *ret_words,
	struct err *err)
{
	struct parser parser = {.request = request, .next = argv};
	size_t unused = 0, *ahead = request->ret_ahead ? request->ret_ahead : &unused;
	AUTO_ERR struct err ignored = {0};
	bool ended = false;
	int result = 0;

	strv_done(ret_words);
	*ahead = SIZE_MAX;
	opt_values_init(request->opts, request->values);
	while (*parser.next) {
		char *const *at = parser.next++;
		char *word = *at;
		bool is_volume = request->stop_at_word && at > argv && opt_is_volume(at - 1);

		if (ended || ((word[0] != '-' || !word[1]) && !is_volume)) {
			strv_add(ret_words, word);
			ended = ended || request->stop_at_word;
		} else if (str_eq(word, "--")) {
			ended = true;
			*ahead = ret_words->n;
		} else {
			struct err *fault = result || !err ? &ignored : err;
			int r = parse_option(&parser, argv, at, fault);
			result = result ? result : r;
		}
	}
	return result;
}

/*
 * A command once more
 */

const struct opt *opt_at(
	const struct opt_request *request, char *const *argv, size_t *ret_words, size_t *ret_flags)
{
	const struct parser parser = {.request = request};
	const char *word = *argv, *at = word + strcspn(word, "=") - 1;
	struct match match = {0};

	*ret_words = 1;
	*ret_flags = 0;
	if (word[1] == '-' && find_long(&parser, word, (size_t)(at - word) - 1, &match, NULL) < 0)
		return NULL;
	for (const char *letter = word + 1; !match.opt && *letter; letter++) {
		at = letter;
		match.opt = opt_find_letter(request->opts, *at);
		if (!match.opt)
			match.opt = opt_find_letter(request->common, *at);
		if (!match.opt)
			return NULL;
		*ret_flags = (size_t)(at - word) - 1;
		if (match.opt->type == OPT_FLAG && at[1])
			match.opt = NULL;
	}
	*ret_words += match.opt && match.opt->type != OPT_FLAG && !at[1] && argv[1];
	return match.opt;
}

static bool is_replaced(
	const struct opt_request *request, const struct opt *opt, char *const *instead)
{
	size_t n = 1, n_flags;

	if (!opt || opt->type == OPT_LIST)
		return false;
	for (; *instead; instead += n) {
		n = 1;
		if (**instead == '-' && opt_at(request, instead, &n, &n_flags) == opt)
			return true;
	}
	return false;
}

/* NAME=VALUE, also as --env=NAME=VALUE and -eNAME=VALUE: what stands before any "=" may be the
 * name. */
static bool is_secret(const char *word)
{
	size_t len;

	if (word[0] == '-' && word[1] && word[1] != '-')
		word += 2;
	for (; word[len = strcspn(word, "=")]; word += len + 1) {
		AUTO_FREE char *name = mem_strndup(word, len);
		if (config_name_is_secret(name))
			return true;
	}
	return false;
}

bool opt_has_secret(char *const *argv)
{
	for (bool is_value = false; *argv; argv++) {
		const char *value = strchr(*argv, '=');

		/* --secret NAME=VALUE is refused, but it was typed. */
		if (is_secret(*argv) || (is_value && value && value[1] != '@'))
			return true;
		is_value = str_eq(*argv, "--secret");
		if (str_starts(*argv, "--secret=") && strchr(value + 1, '='))
			return true;
	}
	return false;
}

static void add_word(struct buf *out, const char *word)
{
	buf_addc(out, ' ');
	str_shell_quote(out, word);
}

bool opt_retype(
	const struct opt_request *request, char *const *argv, const char *instead, struct buf *out)
{
	AUTO_FREE char *typed = mem_strdup(instead);
	AUTO_STRV struct strv options = {0};
	char *rest = typed;
	bool ended = false;

	for (char *word; (word = strsep(&rest, " "));)
		strv_add(&options, word);
	buf_addf(out, " %s", instead);
	if (opt_has_secret(argv))
		return false;
	while (*argv) {
		size_t n = 1, n_flags = 0;
		bool is_option = !ended && argv[0][0] == '-' && argv[0][1];
		const struct opt *opt = NULL;

		if (is_option && !str_eq(*argv, "--"))
			opt = opt_at(request, argv, &n, &n_flags);
		else
			ended = ended || is_option || request->stop_at_word;
		bool is_left_out = is_replaced(request, opt, options.v);
		if (is_left_out && n_flags)
			buf_addf(out, " %.*s", (int)n_flags + 1, *argv);
		for (; n > 0; n--, argv++) {
			if (!is_left_out)
				add_word(out, *argv);
		}
	}
	return !out->full;
}
