#include "cli/opt.h"

#include <inttypes.h>
#include <string.h>

#include "base/auto.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"

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
	size_t len = strlen(text);

	for (const char *p = opt->choices; *p;) {
		size_t n = strcspn(p, " ");

		if (n == len && memcmp(p, text, n) == 0) {
			*ret = text;
			return 0;
		}
		p += n + strspn(p + n, " ");
	}
	AUTO_FREE char *shown = str_shown(text);
	err_set(err, E_USAGE, "--%s takes one of: %s; not '%s'", opt->name, opt->choices, shown);
	return err_hint(err, "--%s %.*s", opt->name, (int)strcspn(opt->choices, " "), opt->choices);
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
	/* One letter is near to every other one. */
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
	if (equals)
		return set_value(&match, equals + 1, err);
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
		struct err *fault = result || !err ? &ignored : err;
		char *word = *parser.next++;
		int r = 0;

		if (ended || word[0] != '-' || !word[1]) {
			strv_add(ret_words, word);
			ended = ended || request->stop_at_word;
		} else if (str_eq(word, "--")) {
			ended = true;
			*ahead = ret_words->n;
		} else if (word[1] == '-') {
			r = parse_long(&parser, word, fault);
		} else {
			r = parse_letters(&parser, word, fault);
		}
		if (!result)
			result = r;
	}
	return result;
}
