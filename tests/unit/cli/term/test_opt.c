/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/str.h"
#include "cli/term/opt.h"

struct values {
	bool all, brief;
	const char *name, *when, *report;
	int64_t tail, size, timeout;
	struct strv tags;
};

struct common {
	bool json, quiet;
	const char *dir;
};

static const struct opt opts[] = {
	{OPT_MEMBER(OPT_FLAG, 'a', "all", struct values, all), .help = "all"},
	{OPT_MEMBER(OPT_FLAG, 'b', "brief", struct values, brief), .help = "brief"},
	{OPT_MEMBER(OPT_STRING, 'n', "name", struct values, name), .arg = "NAME", .help = "name"},
	{OPT_MEMBER(OPT_CHOICE, 0, "when", struct values, when), .arg = "WHEN",
		.choices = "auto always never", .help = "when"},
	{OPT_MEMBER(OPT_INT, 0, "tail", struct values, tail), .arg = "N", .min = 0, .max = 9,
		.help = "tail"},
	{OPT_MEMBER(OPT_SIZE, 0, "size", struct values, size), .arg = "SIZE", .help = "size"},
	{OPT_MEMBER(OPT_DURATION, 0, "timeout", struct values, timeout), .arg = "TIME",
		.help = "timeout"},
	{OPT_MEMBER(OPT_LIST, 't', "tag", struct values, tags), .arg = "TAG", .help = "tag"},
	{OPT_MEMBER(OPT_FLAG, 0, "secret-flag", struct values, brief), .help = "-", .hidden = true},
	{OPT_MEMBER(OPT_STRING, 0, "report", struct values, report), .arg = "[=FILE]",
		.help = "report"},
	{OPT_END},
};

static const struct opt common_opts[] = {
	{OPT_MEMBER(OPT_FLAG, 0, "json", struct common, json), .help = "json"},
	{OPT_MEMBER(OPT_FLAG, 'q', "quiet", struct common, quiet), .help = "quiet"},
	{OPT_MEMBER(OPT_STRING, 'C', "directory", struct common, dir), .arg = "DIR", .help = "dir"},
	{OPT_END},
};

struct parsed {
	struct values values;
	struct common common;
	struct strv words;
	struct err err;
	int code;
	char *argv[16];
};

/* Words apart by '|'; "" is one empty word. */
static void parse_form(struct parsed *parsed, bool stop_at_word, char *line)
{
	const struct opt_request request = {.opts = opts,
		.common = common_opts,
		.values = &parsed->values,
		.common_values = &parsed->common,
		.stop_at_word = stop_at_word,
		.command = "dlrun test"};
	size_t n = 0;

	for (char *word = line; word; n++) {
		char *bar = strchr(word, '|');

		parsed->argv[n] = word;
		if (bar)
			*bar = '\0';
		word = bar ? bar + 1 : NULL;
	}
	parsed->code = opt_parse(&request, parsed->argv, &parsed->words, &parsed->err);
}

static void done(struct parsed *parsed)
{
	opt_values_done(opts, &parsed->values);
	strv_done(&parsed->words);
	err_done(&parsed->err);
	*parsed = (struct parsed){0};
}

#define PARSE(parsed, text)                                                                        \
	char line[] = text;                                                                        \
	struct parsed parsed = {0};                                                                \
	parse_form(&parsed, false, line)

static void refuse(const char *text, enum err_id id, const char *message, const char *hint)
{
	AUTO_FREE char *line = mem_strdup(text);
	struct parsed parsed = {0};

	parse_form(&parsed, false, line);
	if (parsed.code == 0)
		fail_msg("accepted: %s", text);
	assert_int_equal(parsed.err.id, id);
	assert_string_equal(parsed.err.message, message);
	if (hint)
		assert_string_equal(parsed.err.hint, hint);
	done(&parsed);
}

static void forms(void **state)
{
	PARSE(parsed, "-ab|-nx|one|--tag=a|-t|b|--tag|c|--when|never|--size=1Ki|--timeout|2m|two");
	assert_int_equal(parsed.code, 0);
	assert_true(parsed.values.all && parsed.values.brief);
	assert_string_equal(parsed.values.name, "x");
	assert_string_equal(parsed.values.when, "never");
	assert_int_equal(parsed.values.size, 1024);
	assert_int_equal(parsed.values.timeout, 120000);
	assert_int_equal(parsed.values.tail, OPT_UNSET);
	assert_int_equal(parsed.values.tags.n, 3);
	assert_string_equal(parsed.values.tags.v[2], "c");
	assert_int_equal(parsed.words.n, 2);
	assert_string_equal(parsed.words.v[1], "two");
	done(&parsed);
}

static void values_may_be_excluded(void **state)
{
	PARSE(parsed, "--report|x");
	assert_int_equal(parsed.code, 0);
	assert_string_equal(parsed.values.report, "");
	assert_string_equal(parsed.words.v[0], "x");
	done(&parsed);
	char other_line[] = "--report=f";
	parse_form(&parsed, false, other_line);
	assert_string_equal(parsed.values.report, "f");
	done(&parsed);
	char third_line[] = "x";
	parse_form(&parsed, false, third_line);
	assert_null(parsed.values.report);
	done(&parsed);
}

static void clusters_end_with_a_value(void **state)
{
	PARSE(parsed, "-abn|value|-qC/tmp");
	assert_int_equal(parsed.code, 0);
	assert_string_equal(parsed.values.name, "value");
	assert_true(parsed.common.quiet);
	assert_string_equal(parsed.common.dir, "/tmp");
	done(&parsed);
}

static void values_may_poll_like_options(void **state)
{
	PARSE(parsed, "--name|--all|--tag=|-t|");
	assert_int_equal(parsed.code, 0);
	assert_string_equal(parsed.values.name, "--all");
	assert_false(parsed.values.all);
	assert_string_equal(parsed.values.tags.v[0], "");
	assert_string_equal(parsed.values.tags.v[1], "");
	done(&parsed);
}

static void short_forms(void **state)
{
	PARSE(parsed, "--al|--js|--dir=x|--ta|3");
	assert_int_not_equal(parsed.code, 0);
	assert_string_equal(parsed.err.message, "--ta could be --tail or --tag");
	assert_true(parsed.values.all);
	assert_true(parsed.common.json);
	assert_string_equal(parsed.common.dir, "x");
	done(&parsed);
}

static void hidden_options_want_their_whole_name(void **state)
{
	PARSE(parsed, "--secret-flag");
	assert_int_equal(parsed.code, 0);
	assert_true(parsed.values.brief);
	done(&parsed);
	refuse("--secret-fla", E_USAGE_OPTION, "dlrun test: unknown option --secret-fla", NULL);
}

static void dashes(void **state)
{
	PARSE(parsed, "-|--|--all|--|-q");
	assert_int_equal(parsed.code, 0);
	assert_false(parsed.values.all || parsed.common.quiet);
	assert_int_equal(parsed.words.n, 4);
	assert_string_equal(parsed.words.v[0], "-");
	assert_string_equal(parsed.words.v[1], "--all");
	assert_string_equal(parsed.words.v[2], "--");
	done(&parsed);
}

static void a_program_keeps_its_options(void **state)
{
	char line[] = "-a|python|-b|--|--json";
	struct parsed parsed = {0};

	parse_form(&parsed, true, line);
	assert_int_equal(parsed.code, 0);
	assert_true(parsed.values.all);
	assert_false(parsed.values.brief || parsed.common.json);
	assert_int_equal(parsed.words.n, 4);
	assert_string_equal(parsed.words.v[3], "--json");
	done(&parsed);
}

static void errors(void **state)
{
	refuse("--nmae|x", E_USAGE_OPTION, "dlrun test: unknown option --nmae",
		"did you mean --name?");
	refuse("--nmae=x", E_USAGE_OPTION, "dlrun test: unknown option --nmae",
		"did you mean --name?");
	refuse("-z", E_USAGE_OPTION, "dlrun test: unknown option -z", "dlrun test -h");
	refuse("-aé", E_USAGE_OPTION, "dlrun test: unknown option -é", "dlrun test -h");
	refuse("-a\xff", E_USAGE_OPTION, "dlrun test: unknown option -\\xff", "dlrun test -h");
	refuse("--=x", E_USAGE_OPTION, "dlrun test: unknown option --", "dlrun test -h");
	refuse("-n", E_USAGE, "--name needs a value", "dlrun test --name NAME");
	refuse("-an", E_USAGE, "--name needs a value", "dlrun test --name NAME");
	refuse("--all=yes", E_USAGE, "--all takes no value", NULL);
	refuse("--when=later", E_USAGE, "--when must be auto, always or never, not 'later'",
		"--when auto");
	refuse("--when=alway", E_USAGE, "--when must be auto, always or never, not 'alway'",
		"--when auto");
	refuse("--when=", E_USAGE, "--when must be auto, always or never, not ''", "--when auto");
}

static void expect_retyped(char *const *argv, const char *instead, const char *line)
{
	const struct opt_request request = {
		.opts = opts, .common = common_opts, .stop_at_word = true};
	AUTO_BUF struct buf out;

	buf_init(&out, 128);
	bool is_whole = opt_retype(&request, argv, instead, &out);
	assert_true(is_whole == (line != NULL));
	if (line)
		assert_string_equal(out.data, line);
}

static void a_command_is_typed_again(void **state)
{
	char *plain[] = {"-n", "old", "-a", "train.py", "-n", "3", NULL};
	char *joined[] = {"-nold", "--tail=3", "--", "sh", "-c", "a b", NULL};
	char *unique[] = {"--na", "old", "-C", "x y", "-t", "u", "--wrong", "--", "true", NULL};
	char *ends[] = {"-a", "--name", NULL};
	char *letters[] = {"-ab", "-an", "old", "-q", "--", "true", NULL};
	char *secret[] = {"-t", "HF_TOKEN=x", "true", NULL};
	char *args[] = {"API_KEY=x", "true", NULL};
	char *many[] = {"true", "0123456789012345678901234567890123456789012345678901234567890123",
		"0123456789012345678901234567890123456789012345678901234567890123", NULL};

	expect_retyped(plain, "-n new", " -n new -a train.py -n 3");
	expect_retyped(plain, "--name new", " --name new -a train.py -n 3");
	expect_retyped(plain, "--tail 1", " --tail 1 -n old -a train.py -n 3");
	expect_retyped(joined, "-n ''", " -n '' --tail=3 -- sh -c 'a b'");
	expect_retyped(joined, "--tail 1 -b", " --tail 1 -b -nold -- sh -c 'a b'");
	expect_retyped(unique, "--name n", " --name n -C 'x y' -t u --wrong -- true");
	expect_retyped(unique, "-t v", " -t v --na old -C 'x y' -t u --wrong -- true");
	expect_retyped(ends, "--name n", " --name n -a");
	expect_retyped(letters, "-n new", " -n new -ab -a -q -- true");
	expect_retyped(letters, "-b", " -b -a -an old -q -- true");
	expect_retyped(letters, "--tail 1", " --tail 1 -ab -an old -q -- true");
	expect_retyped(secret, "-a", NULL);
	expect_retyped(args, "-a", NULL);
	expect_retyped(many, "-a", NULL);
}

static void numbers(void **state)
{
	static const char *const bad[] = {"--tail=10", "--tail=-1", "--tail=x",
		"--tail=", "--size=1x", "--timeout=1y", "--timeout="};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		AUTO_FREE char *line = mem_strdup(bad[i]);
		struct parsed parsed = {0};

		parse_form(&parsed, false, line);
		if (parsed.code != -ERR_USAGE)
			fail_msg("accepted: %s", bad[i]);
		assert_true(str_starts(parsed.err.message, "--"));
		done(&parsed);
	}
}

static void first_error_is_notified_and_the_rest_is_read(void **state)
{
	PARSE(parsed, "--bogus|--tail=x|--json|word");
	assert_int_equal(parsed.code, -ERR_USAGE);
	assert_string_equal(parsed.err.message, "dlrun test: unknown option --bogus");
	assert_true(parsed.common.json);
	assert_int_equal(parsed.words.n, 1);
	done(&parsed);
}

static void text_of_values(void **state)
{
	PARSE(parsed, "--timeout=90s|--tail=3|-nx");
	assert_int_equal(parsed.code, 0);
	AUTO_FREE char *timeout = opt_text(opt_find(opts, "timeout", 7), &parsed.values);
	AUTO_FREE char *tail = opt_text(opt_find(opts, "tail", 4), &parsed.values);
	AUTO_FREE char *name = opt_text(opt_find_letter(opts, 'n'), &parsed.values);
	assert_string_equal(timeout, "90000ms");
	assert_string_equal(tail, "3");
	assert_string_equal(name, "x");
	assert_null(opt_text(opt_find(opts, "size", 4), &parsed.values));
	assert_true(opt_is_given(opt_find(opts, "timeout", 7), &parsed.values));
	assert_true(opt_is_given(opt_find_letter(opts, 'n'), &parsed.values));
	assert_false(opt_is_given(opt_find(opts, "size", 4), &parsed.values));
	assert_false(opt_is_given(opt_find(opts, "all", 3), &parsed.values));
	assert_null(opt_text(opt_find(opts, "all", 3), &parsed.values));
	assert_null(opt_find(opts, "al", 2));
	done(&parsed);
}

static void nothing(void **state)
{
	struct parsed parsed = {0};
	const struct opt_request request = {.command = "dlrun"};

	assert_int_equal(opt_parse(&request, parsed.argv, &parsed.words, &parsed.err), 0);
	assert_int_equal(parsed.words.n, 0);
	parsed.argv[0] = (char[]){"--x"};
	assert_int_equal(opt_parse(&request, parsed.argv, &parsed.words, NULL), -ERR_USAGE);
	done(&parsed);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(forms),
		cmocka_unit_test(clusters_end_with_a_value),
		cmocka_unit_test(values_may_be_excluded),
		cmocka_unit_test(values_may_poll_like_options),
		cmocka_unit_test(short_forms),
		cmocka_unit_test(hidden_options_want_their_whole_name),
		cmocka_unit_test(dashes),
		cmocka_unit_test(a_program_keeps_its_options),
		cmocka_unit_test(errors),
		cmocka_unit_test(a_command_is_typed_again),
		cmocka_unit_test(numbers),
		cmocka_unit_test(first_error_is_notified_and_the_rest_is_read),
		cmocka_unit_test(text_of_values),
		cmocka_unit_test(nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
