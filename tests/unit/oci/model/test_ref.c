/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/mem.h"
#include "oci/model/ref.h"

#define HEX "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static void assert_text(const char *got, const char *want)
{
	if (want)
		assert_string_equal(got ? got : "(null)", want);
	else
		assert_null(got);
}

static void test_forms(void **state)
{
	static const struct {
		const char *text;
		enum ref_kind kind;
		const char *dir, *host, *repo, *tag, *digest;
	} rows[] = {
		{"scratch", REF_SCRATCH, NULL, NULL, NULL, NULL, NULL},
		{"oci:out", REF_LAYOUT, "out", NULL, NULL, NULL, NULL},
		{"oci:/a/b:v1", REF_LAYOUT, "/a/b", NULL, NULL, "v1", NULL},
		{"oci:a:b", REF_LAYOUT, "a", NULL, NULL, "b", NULL},
		{"oci:a:b/", REF_LAYOUT, "a:b", NULL, NULL, NULL, NULL},
		{"oci:a:b/:c", REF_LAYOUT, "a:b", NULL, NULL, "c", NULL},
		{"oci:a:b/c", REF_LAYOUT, "a:b/c", NULL, NULL, NULL, NULL},
		{"oci:a///", REF_LAYOUT, "a", NULL, NULL, NULL, NULL},
		{"oci:/", REF_LAYOUT, "/", NULL, NULL, NULL, NULL},
		{"oci:me@home", REF_LAYOUT, "me@home", NULL, NULL, NULL, NULL},
		{"oci:d@sha256:" HEX, REF_LAYOUT, "d", NULL, NULL, NULL, "sha256:" HEX},
		{"oci:a b\xff", REF_LAYOUT, "a b\xff", NULL, NULL, NULL, NULL},
		{"localhost/a", REF_REGISTRY, NULL, "localhost", "a", NULL, NULL},
		{"localhost:5000/a:1", REF_REGISTRY, NULL, "localhost:5000", "a", "1", NULL},
		{"r.example.com/me/dlrun", REF_REGISTRY, NULL, "r.example.com", "me/dlrun", NULL,
			NULL},
		{"R.example/a_b__c--d.e:T.x-_9", REF_REGISTRY, NULL, "R.example", "a_b__c--d.e",
			"T.x-_9", NULL},
		{"r.io/a@sha256:" HEX, REF_REGISTRY, NULL, "r.io", "a", NULL, "sha256:" HEX},
		{"r.io:1/a/b:t@sha256:" HEX, REF_REGISTRY, NULL, "r.io:1", "a/b", "t",
			"sha256:" HEX},
		{"[::1]:5000/a", REF_REGISTRY, NULL, "[::1]:5000", "a", NULL, NULL},
		{"[fe80::1]/a", REF_REGISTRY, NULL, "[fe80::1]", "a", NULL, NULL},
		{"10.0.0.1:65535/a", REF_REGISTRY, NULL, "10.0.0.1:65535", "a", NULL, NULL},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		AUTO_REF struct ref ref = {0};
		AUTO_ERR struct err err = {0};
		int r = ref_parse(rows[i].text, &ref, &err);
		if (r < 0)
			fail_msg("%s: %s", rows[i].text, err.message);
		assert_int_equal(ref.kind, rows[i].kind);
		assert_text(ref.dir, rows[i].dir);
		assert_text(ref.host, rows[i].host);
		assert_text(ref.repo, rows[i].repo);
		assert_text(ref.tag, rows[i].tag);
		assert_text(ref.digest, rows[i].digest);
	}
}

static void test_refused(void **state)
{
	static const struct {
		const char *text, *says;
	} rows[] = {
		{"", "empty"},
		{"oci:", "no directory"},
		{"oci::tag", "no directory"},
		{"oci:@sha256:" HEX, "no directory"},
		{"oci:d:", "a tag has"},
		{"oci:d:-x", "a tag has"},
		{"oci:d:a b", "a tag has"},
		{"oci:d@sha256:" HEX "0", "a digest is"},
		{"oci:d@sha256:ABC", "a digest is"},
		{"oci:d:t@sha256:" HEX, "not both"},
		{"ubuntu", "names no registry"},
		{"pytorch/pytorch:2.5", "names no registry"},
		{"Scratch", "names no registry"},
		{"/a", "a layout on disk is oci:DIR"},
		{"./a:v1", "a layout on disk is oci:DIR"},
		{"../a", "a layout on disk is oci:DIR"},
		{"https://r.io/a", "without a scheme"},
		{"docker://r.io/a", "without a scheme"},
		{"r.io/", "a repository has"},
		{"r.io/A", "a repository has"},
		{"r.io/a//b", "a repository has"},
		{"r.io/a/", "a repository has"},
		{"r.io/a..b", "a repository has"},
		{"r.io/a___b", "a repository has"},
		{"r.io/-a", "a repository has"},
		{"r.io/a:b/c", "a repository has"},
		{"r.io/a:", "a tag has"},
		{"r.io/a@sha512:" HEX, "a digest is"},
		{"r.io/a@", "a digest is"},
		{"r..io/a", "not a HOST"},
		{".io/a", "not a HOST"},
		{"r.io./a", "not a HOST"},
		{"-r.io/a", "not a HOST"},
		{"r_.io/a", "not a HOST"},
		{"r.io:/a", "not a HOST"},
		{"r.io:0/a", "not a HOST"},
		{"r.io:65536/a", "not a HOST"},
		{"r.io:000080/a", "not a HOST"},
		{"[::1/a", "not a HOST"},
		{"[]:1/a", "not a HOST"},
		{"r.io:1:2/a", "not a HOST"},
		{"r.io/a\n", "a repository has"},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		AUTO_REF struct ref ref = {0};
		AUTO_ERR struct err err = {0};
		if (ref_parse(rows[i].text, &ref, &err) != -ERR_USAGE)
			fail_msg("\"%s\" was taken", rows[i].text);
		assert_int_equal(err.id, E_IMAGE_REF);
		if (!strstr(err.message, rows[i].says))
			fail_msg("\"%s\": %s", rows[i].text, err.message);
		assert_null(strchr(err.message, '\n'));
	}
}

static void test_limits(void **state)
{
	static const struct {
		const char *format;
		int max;
	} rows[] = {{"r.io/%s", REF_REPO_MAX}, {"r.io/a:%s", REF_TAG_MAX},
		{"oci:d:%s", REF_TAG_MAX}, {"%s.io/a", REF_HOST_MAX - 3}};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		for (int extra = 0; extra < 2; extra++) {
			AUTO_REF struct ref ref = {0};
			char word[512] = {0};
			char text[600];
			memset(word, 'a', (size_t)(rows[i].max + extra));
			const char *percent = strstr(rows[i].format, "%s");
			size_t before = (size_t)(percent - rows[i].format);
			memcpy(text, rows[i].format, before);
			strcpy(text + before, word);
			strcat(text, percent + 2);
			assert_int_equal(ref_parse(text, &ref, NULL), extra ? -ERR_USAGE : 0);
		}
	}
}

static void test_hints(void **state)
{
	AUTO_ERR struct err err = {0};
	struct ref ref;

	assert_true(ref_parse("ubuntu:24.04", &ref, &err) < 0);
	assert_string_equal(err.hint, "docker.io/library/ubuntu:24.04");
	err_clear(&err);
	assert_true(ref_parse("me/app", &ref, &err) < 0);
	assert_string_equal(err.hint, "docker.io/me/app");
	err_clear(&err);
	assert_true(ref_parse("me /app;rm", &ref, &err) < 0);
	assert_null(err.hint);
}

static void test_failure_leaves_result(void **state)
{
	struct ref ref = {.kind = REF_LAYOUT, .dir = (char *)"kept"};

	assert_true(ref_parse("oci:a:-", &ref, NULL) < 0);
	assert_string_equal(ref.dir, "kept");
	ref_done(NULL);
}

static void test_tags(void **state)
{
	assert_true(ref_is_tag("_a.B-9"));
	assert_false(ref_is_tag(""));
	assert_false(ref_is_tag(".a"));
	assert_false(ref_is_tag("-a"));
	assert_false(ref_is_tag("a/b"));
	assert_false(ref_is_tag("\xc3\xa4"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_forms),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_limits),
		cmocka_unit_test(test_hints),
		cmocka_unit_test(test_failure_leaves_result),
		cmocka_unit_test(test_tags),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
