/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/study/axes.h"

enum { WORDS_MAX = 12 };

/* A row of lr=0.1 opt=adam and one of values that a shell would take apart. */
static void fixture(struct cases *cases)
{
	static const char text[] = "lr,opt,db.user\n0.1,adam,me\n1e-3,a b,\"{lr} $X 'y'\"\n";

	assert_int_equal(cases_read(text, sizeof(text) - 1, "it", cases, NULL), 0);
}

static const struct cases_member first = {0, "tiger-4k2x9"}, second = {1, "tiger-4k2x9"};

static void words_of(const char *const *words, struct strv *ret)
{
	for (size_t i = 0; i < WORDS_MAX && words[i]; i++)
		strv_add(ret, words[i]);
}

static char *expand_command(const char *const *words, bool shell, const struct strv *env,
	const struct cases_member *member)
{
	AUTO_CASES struct cases cases = {0};
	AUTO_STRV struct strv command = {0}, out = {0};
	AUTO_ERR struct err err = {0};
	const struct cases_template template = {&command, shell, env, NULL};

	fixture(&cases);
	words_of(words, &command);
	if (cases_expand_command(&cases, member, &template, &out, &err) < 0)
		return mem_printf("error: %s", err.message);
	return strv_join(&out, "|");
}

/* Command lines as people write them. */
static void test_commands(void **state)
{
	static const struct {
		const char *words[WORDS_MAX];
		const char *first;
	} commands[] = {
		{{"python", "train.py", "--lr", "{lr}", "--opt={opt}"},
			"python|train.py|--lr|0.1|--opt=adam"},
		/* W&B */
		{{"python", "train.py", "{args}"},
			"python|train.py|--lr=0.1|--opt=adam|--db.user=me"},
		{{"python", "train.py", "--rate={lr}", "{args}"},
			"python|train.py|--rate=0.1|--opt=adam|--db.user=me"},
		{{"python", "{lr}{opt}{db.user}", "{args}", "{overrides}", "x"},
			"python|0.1adamme|x"},
		/* Hydra */
		{{"python", "my_app.py", "db={db.user}", "+opt={opt}",
			 "hydra.run.dir=out/${now:%Y}/{lr}", "db=${oc.env:X}", "x={a:1,b:{}}"},
			"python|my_app.py|db=me|+opt=adam|hydra.run.dir=out/${now:%Y}/0.1|"
			"db=${oc.env:X}|x={a:1,b:{}}"},
		{{"python", "my_app.py", "{overrides}"},
			"python|my_app.py|lr=0.1|opt=adam|db.user=me"},
		{{"accelerate", "launch", "--num_processes", "2", "t.py", "{args}"},
			"accelerate|launch|--num_processes|2|t.py|--lr=0.1|--opt=adam|--db.user=me"},
		{{"torchrun", "--rdzv_id={study}", "--log_dir=logs/{index}", "t.py", "--lr={lr}"},
			"torchrun|--rdzv_id=tiger-4k2x9|--log_dir=logs/0|t.py|--lr=0.1"},
		{{"sh", "-c", "echo ${X} $lr ${lr} {lr}"}, "sh|-c|echo ${X} $lr ${lr} 0.1"},
		{{"sh", "-c", "exec python t.py {args}"},
			"sh|-c|exec python t.py --lr=0.1 --opt=adam --db.user=me"},
		{{"python", "-c", "print(f'{x}')"}, "python|-c|print(f'{x}')"},
		{{"python", "-c", "print(f'{{x}} {x:.2f} {lr}')"},
			"python|-c|print(f'{{x}} {x:.2f} 0.1')"},
		{{"awk", "{print $1}"}, "awk|{print $1}"},
		{{"find", ".", "-exec", "rm", "{}", "+"}, "find|.|-exec|rm|{}|+"},
		{{"echo", "{a,b}", "{1..3}", "{", "}", "}{", "{lr", "lr}", "{ lr }", "{{}}"},
			"echo|{a,b}|{1..3}|{|}|}{|{lr|lr}|{ lr }|{{}}"},
		{{"t", "{\"a\": 1}", "{\"opt\":{\"lr\":{lr}}}"},
			"t|{\"a\": 1}|{\"opt\":{\"lr\":0.1}}"},
		{{"t", "{{lr}}", "{{{lr}}}", "{{lr}}}", "{{lr}", "{{other}}", "${{lr}}"},
			"t|{lr}|{{lr}}|{lr}}|{0.1|{other}|${{lr}}"},
		{{"t", "--name={{epoch}}-{val:.2f}", "a {{epoch}}"},
			"t|--name={epoch}-{val:.2f}|a {{epoch}}"},
		{{"docker", "ps", "--format", "{{.Names}} {{ lr }}"},
			"docker|ps|--format|{{.Names}} {{ lr }}"},
		{{"jinja {{epoch}} {{{lr}}}"}, "jinja {{epoch}} {{lr}}"},
		{{"t", "{lr}{lr}", "x{lr}y{opt}z", ""}, "t|0.10.1|x0.1yadamz|"},
	};

	for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
		AUTO_FREE char *text = expand_command(commands[i].words, false, NULL, &first);
		assert_string_equal(text, commands[i].first);
	}
}

/* A value is one word wherever it goes, and its braces are not looked into. */
static void test_hostile_values(void **state)
{
	static const struct {
		const char *words[WORDS_MAX];
		bool shell;
		const char *text;
	} commands[] = {
		{{"t", "{opt}", "{db.user}"}, false, "t|a b|{lr} $X 'y'"},
		{{"t", "{args}"}, false, "t|--lr=1e-3|--opt=a b|--db.user={lr} $X 'y'"},
		{{"sh", "-c", "t {args}"}, false,
			"sh|-c|t --lr=1e-3 '--opt=a b' '--db.user={lr} $X '\\''y'\\'''"},
		{{"t --lr {lr} --opt {opt} {db.user}"}, true,
			"t --lr 1e-3 --opt 'a b' '{lr} $X '\\''y'\\'''"},
		{{"t {overrides}"}, true, "t 'lr=1e-3' 'opt=a b' 'db.user={lr} $X '\\''y'\\'''"},
		{{"{args}"}, true, "--lr=1e-3 '--opt=a b' '--db.user={lr} $X '\\''y'\\'''"},
	};

	for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
		AUTO_FREE char *text =
			expand_command(commands[i].words, commands[i].shell, NULL, &second);
		assert_string_equal(text, commands[i].text);
	}
}

static void test_unknown_names(void **state)
{
	static const struct {
		const char *word, *message, *hint;
	} bad[] = {
		{"--lr={lrr}", "--lr={lrr}: there is no axis lrr",
			"did you mean {lr}? braces themselves are {{lrr}}"},
		{"{seed}", "{seed}: there is no axis seed",
			"--over seed=1..5; braces themselves are {{seed}}"},
		{"{lr}-{idx}", "{lr}-{idx}: there is no axis idx",
			"--over idx=1..5; braces themselves are {{idx}}"},
		{"{inde}", "{inde}: there is no axis inde",
			"did you mean {index}? braces themselves are {{inde}}"},
	};
	AUTO_CASES struct cases cases = {0};

	fixture(&cases);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		AUTO_ERR struct err err = {0};
		char *out = NULL;

		assert_int_equal(cases_expand(&cases, &first, bad[i].word, &out, &err), -ERR_USAGE);
		assert_null(out);
		assert_string_equal(err.message, bad[i].message);
		assert_string_equal(err.hint, bad[i].hint);
	}
}

static void test_variables(void **state)
{
	AUTO_CASES struct cases cases = {0};
	AUTO_STRV struct strv env = {0}, out = {0}, command = {0};
	AUTO_FREE char *text = NULL, *rest = NULL, *name = NULL;
	AUTO_ERR struct err err = {0};
	struct cases_template template = {&command, false, &env, "{study}-{opt}"};

	fixture(&cases);
	words_of((const char *const[WORDS_MAX]){"LR={lr}", "{lr}", "{opt}=x{opt}", "E="}, &env);
	words_of((const char *const[WORDS_MAX]){"t", "{args}"}, &command);
	assert_int_equal(cases_expand_env(&cases, &second, &template, &out, &err), 0);
	text = strv_join(&out, "|");
	assert_string_equal(text, "LR=1e-3|{lr}|{opt}=xa b|E=");
	/* A variable, as the name, does not take the argument from the program. */
	rest = expand_command(
		(const char *const[WORDS_MAX]){"t", "{opt}", "{args}"}, false, &env, &first);
	assert_string_equal(rest, "t|adam|--lr=0.1|--db.user=me");
	assert_int_equal(cases_expand(&cases, &first, template.name, &name, &err), 0);
	assert_string_equal(name, "tiger-4k2x9-adam");
	strv_add(&env, "A={args}");
	strv_done(&out);
	assert_int_equal(cases_expand_env(&cases, &first, &template, &out, &err), -ERR_USAGE);
	assert_string_equal(err.message, "variable A: {args}: there is no axis args");
}

static void test_check(void **state)
{
	static const struct {
		const char *words[WORDS_MAX];
		const char *name, *env, *message;
	} checks[] = {
		{{"t", "{lr}", "{opt}", "{db.user}"}, NULL, NULL, NULL},
		{{"t", "{args}"}, NULL, NULL, NULL},
		{{"t", "{lr}", "{overrides}"}, NULL, NULL, NULL},
		{{"sh", "-c", "t {args}"}, NULL, NULL, NULL},
		{{"t", "{lr}"}, "{opt}", "U={db.user}", NULL},
		{{"t", "{lr}", "{opt}"}, NULL, NULL,
			"the axis db.user is not used: no word of the command has {db.user}"},
		{{"t", "${lr}", "{opt}", "{db.user}"}, NULL, NULL,
			"the axis lr is not used: no word of the command has {lr}"},
		{{"t", "{{args}}"}, NULL, NULL,
			"the axis lr is not used: no word of the command has {lr}"},
		{{"sh", "-c", "t {lrr}", "{args}"}, NULL, NULL, NULL},
		{{"sh", "-c", "t {lrr} {opt} {db.user}"}, NULL, NULL,
			"the axis lr is not used: no word of the command has {lr}"},
		{{"t", "{args}"}, "{nam}", NULL, "{nam}: there is no axis nam"},
		{{"t", "{args}"}, NULL, "U={usr}", "variable U: {usr}: there is no axis usr"},
	};
	AUTO_CASES struct cases cases = {0};

	fixture(&cases);
	for (size_t i = 0; i < ARRAY_LEN(checks); i++) {
		AUTO_STRV struct strv command = {0}, env = {0};
		struct cases_template template = {&command, false, &env, checks[i].name};
		AUTO_ERR struct err err = {0};
		int r;

		words_of(checks[i].words, &command);
		if (checks[i].env)
			strv_add(&env, checks[i].env);
		r = cases_check(&cases, &template, &err);
		if (!checks[i].message && r < 0)
			fail_msg("%zu: %s", i, err.message);
		if (!checks[i].message)
			continue;
		assert_int_equal(r, -ERR_USAGE);
		assert_string_equal(err.message, checks[i].message);
	}
}

static void test_unknown_in_code(void **state)
{
	AUTO_CASES struct cases cases = {0};
	AUTO_STRV struct strv command = {0}, env = {0}, unknown = {0};
	const struct cases_template template = {&command, false, &env, "n {args} {lr}"};
	AUTO_FREE char *text = NULL;

	fixture(&cases);
	words_of((const char *const[WORDS_MAX]){"sh", "-c",
			 "t {lr} {seed} {args} {{a}} ${b} {index}", "x {seed} {c}"},
		&command);
	strv_add(&env, "A={d} {study}");
	cases_unknown(&cases, &template, &unknown);
	text = strv_join(&unknown, " ");
	assert_string_equal(text, "seed c d args");
}

static void test_long_words(void **state)
{
	AUTO_CASES struct cases cases = {0};
	AUTO_ERR struct err err = {0};
	AUTO_BUF struct buf word = {0};
	char *out = NULL;

	fixture(&cases);
	buf_init(&word, 1 << 20);
	while (word.len < CASES_WORD_MAX - 4)
		buf_adds(&word, "{lr}");
	assert_int_equal(cases_expand(&cases, &first, word.data, &out, &err), 0);
	free(out);
	while (word.len <= CASES_WORD_MAX / 3 * 4)
		buf_adds(&word, "{lr}");
	assert_int_equal(cases_expand(&cases, &first, word.data, &out, &err), -ERR_LIMIT);
	assert_string_equal(err.message, "a word of the command is larger than 128 KiB");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_commands),
		cmocka_unit_test(test_hostile_values),
		cmocka_unit_test(test_unknown_names),
		cmocka_unit_test(test_variables),
		cmocka_unit_test(test_check),
		cmocka_unit_test(test_unknown_in_code),
		cmocka_unit_test(test_long_words),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
