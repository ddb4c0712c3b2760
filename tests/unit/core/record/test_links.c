/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/mem.h"
#include "core/record/links.h"

#define WANDB  "https://wandb.ai/me/resnet/runs/3k2f9abc"
#define MLFLOW "http://127.0.0.1:5000/#/experiments/0/runs/0123456789abcdef0123456789abcdef"

/* All that was found, a blank behind each. */
static char *joined(const struct links *links)
{
	AUTO_BUF struct buf out;

	buf_init(&out, 1 << 20);
	for (size_t i = 0; i < links->found.n; i++)
		buf_addf(&out, "%s ", links->found.v[i]);
	return buf_take(&out);
}

static void check_len(const char *text, size_t len, const char *wanted)
{
	for (size_t piece = 1; piece <= len + 1; piece += 1 + len / 7) {
		struct links links;

		links_init(&links);
		for (size_t at = 0; at < len; at += piece)
			links_add(&links, text + at, piece < len - at ? piece : len - at);
		links_end(&links);
		AUTO_FREE char *found = joined(&links);
		assert_string_equal(found, wanted);
		links_done(&links);
	}
}

static void check(const char *text, const char *wanted)
{
	check_len(text, strlen(text), wanted);
}

static void test_wandb(void **state)
{
	check("", "");
	check("wandb: \xf0\x9f\x9a\x80 View run at " WANDB "\n", WANDB " ");
	check("\033[34m\033[1mwandb\033[0m: View run \033[33mx\033[0m at: \033[34m\033[4m" WANDB
	      "\033[0m\n",
		WANDB " ");
	check("see (" WANDB ").", WANDB " ");
	check("a " WANDB "\r\nb " WANDB "\n", WANDB " ");
	check("wandb: Run page: https://app.wandb.ai/a/b/runs/c",
		"https://app.wandb.ai/a/b/runs/c ");
	/* A server of their own, where the line tells. */
	check("wandb: Syncing to https://ml.example.com:8080/a/b/runs/c",
		"https://ml.example.com:8080/a/b/runs/c ");
	check("View run x at http://localhost:8080/a/b/runs/c",
		"http://localhost:8080/a/b/runs/c ");
}

static void test_mlflow(void **state)
{
	check("\xf0\x9f\x8f\x83 View run big-fish at: " MLFLOW "\n", MLFLOW " ");
	check(MLFLOW, MLFLOW " ");
	check("https://adb-1.azuredatabricks.net/ml/experiments/12/runs/ab?o=1",
		"https://adb-1.azuredatabricks.net/ml/experiments/12/runs/ab ");
	check("https://h/base/path/#/experiments/1/runs/x, done",
		"https://h/base/path/#/experiments/1/runs/x ");
}

static void test_others(void **state)
{
	check("https://github.com/o/r/actions/runs/123", "");
	check("https://example.com/a/b/runs/c", "");
	check("https://notwandb.ai/a/b/runs/c", "");
	check("https://wandb.ai.example.com/a/b/runs/c", "");
	check("https://example.com/a/b/runs/c wandb", "");
	check("https://wandb.ai/me/resnet", "");
	check("https://wandb.ai/me/resnet/runs/", "");
	check("wandb: ftp://wandb.ai/a/b/runs/c file://wandb.ai/a/b/runs/c", "");
	check("wandb: javascript://wandb.ai/a/b/runs/c", "");
	check("wandb: ://wandb.ai/a/b/runs/c https:///a/b/runs/c https://", "");
	check("#/experiments/0/runs/abc", "");
	check("https://h/#/experiments/0/runs/a%0d%0ab", "");
}

/* What only the owner may know is not kept. */
static void test_secrets(void **state)
{
	check("wandb: https://wandb.ai/anony-1/p/runs/x?apiKey=0123456789",
		"https://wandb.ai/anony-1/p/runs/x ");
	check("View run at https://user:pass@ml.example.com/#/experiments/1/runs/x",
		"https://ml.example.com/#/experiments/1/runs/x ");
	check("wandb http://u:p#w@h/#/experiments/1/runs/x", "");
	check("wandb https://a@b@wandb.ai/a/b/runs/c", "https://wandb.ai/a/b/runs/c ");
}

/* Nothing but what a URL may have, whatever stands around it. */
static void test_controls(void **state)
{
	static const char nul[] = "wandb: https://wandb.ai/a/b/runs/c\0d\n";

	check("wandb: https://wandb.ai/a/b/runs/c\033]0;x\007", "https://wandb.ai/a/b/runs/c ");
	check("wandb: https://wandb.ai/a/b\033[31m/runs/c", "");
	check("wandb: https://wandb.ai/a/b/runs/c\xc2\x9b"
	      "31m",
		"https://wandb.ai/a/b/runs/c ");
	check("wandb: https://wandb.ai/a/b/runs/c\xe2\x80\xae", "https://wandb.ai/a/b/runs/c ");
	check("wandb: <a href=\"https://wandb.ai/a/b/runs/c\">", "https://wandb.ai/a/b/runs/c ");
	check_len(nul, sizeof(nul) - 1, "https://wandb.ai/a/b/runs/c ");
}

static void test_long_lines(void **state)
{
	AUTO_BUF struct buf text;

	for (size_t before = 0; before < 3 * LINKS_LINE_MAX; before += 97) {
		buf_init(&text, 1 << 20);
		for (size_t i = 0; i < before; i++)
			buf_addc(&text, '=');
		buf_adds(&text, " " WANDB " ");
		for (size_t i = 0; i < before; i++)
			buf_addc(&text, '=');
		check(text.data, WANDB " ");
		buf_done(&text);
	}
	/* An address that is too long is none, and not its first part either. */
	buf_init(&text, 1 << 20);
	buf_adds(&text, "wandb: " WANDB);
	for (size_t i = 0; i < LINKS_URL_MAX; i++)
		buf_addc(&text, 'x');
	check(text.data, "");
	for (size_t i = 0; i < 2 * LINKS_LINE_MAX; i++)
		buf_addc(&text, 'x');
	check(text.data, "");
}

static void test_limit(void **state)
{
	struct links links;

	links_init(&links);
	for (int i = 0; i < LINKS_MAX + 10; i++) {
		AUTO_FREE char *line = mem_printf("https://wandb.ai/a/b/runs/c%d\n", i);
		assert_int_equal(links_full(&links), i >= LINKS_MAX);
		links_add(&links, line, strlen(line));
	}
	assert_int_equal(links.found.n, LINKS_MAX);
	assert_string_equal(links.found.v[LINKS_MAX - 1], "https://wandb.ai/a/b/runs/c31");
	links_done(&links);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_wandb),
		cmocka_unit_test(test_mlflow),
		cmocka_unit_test(test_others),
		cmocka_unit_test(test_secrets),
		cmocka_unit_test(test_controls),
		cmocka_unit_test(test_long_lines),
		cmocka_unit_test(test_limit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
