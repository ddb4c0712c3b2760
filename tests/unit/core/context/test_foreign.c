/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/util/str.h"
#include "core/context/secrets.h"
#include "core/record/foreign.h"
#include "core/record/spec.h"
#include "tests/unit/tmpfix.h"

#define DIGEST "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define SPEC(members)                                                                              \
	"{\"schema\":\"dlrun/spec/v1\",\"command\":[\"true\"],\"cwd\":\".\"," members "}"

static struct json *parse(const char *text)
{
	struct json *json = NULL;

	assert_int_equal(json_parse(text, strlen(text), 1 << 20, "test", &json, NULL), 0);
	return json;
}

static struct run *take(const char *record, const char *spec, const char *layout)
{
	AUTO_JSON struct json *doc = parse(record), *about = parse(spec);
	struct run *run = run_new("r-22222", "r");

	foreign_take(run, doc, about, layout);
	return run;
}

static void test_nothing_of_this_machine(void **state)
{
	AUTO_RUN struct run *run = take(
		"{\"origin\":{\"machine\":\"x\",\"root\":\"/home/me\",\"cwd\":\"exp\"},\"name\":\"z\","
		"\"results\":{\"dir\":\"/home/me\"},\"attempts\":[{\"handle\":\"local:/etc\"}],"
		"\"target\":{\"kind\":\"local\",\"ssh_config\":\"/tmp/x\"},\"state\":\"succeeded\"}",
		SPEC("\"ssh_config\":\"/tmp/x\",\"files\":[\"/etc/passwd\"]"), NULL);
	const struct json *origin = json_get(run->doc, "origin");

	assert_true(foreign_is(run));
	assert_null(json_get_str(origin, "root"));
	assert_null(json_get_str(origin, "machine"));
	assert_string_equal(json_get_str(origin, "cwd"), "exp");
	assert_null(json_get_str(json_get(run->doc, "results"), "dir"));
	assert_int_equal(run_attempts(run), 0);
	assert_null(json_get(json_get(run->doc, "target"), "ssh_config"));
	assert_null(json_get(run->spec, "ssh_config"));
	assert_null(json_get(run->spec, "files"));
	assert_string_equal(json_get_str(run->spec, "schema"), SPEC_SCHEMA);
}

static void test_images(void **state)
{
	static const struct {
		const char *ref, *layout, *taken;
	} cases[] = {
		{"a.example/b@" DIGEST, NULL, "a.example/b@" DIGEST},
		{"a.example/b:tag", NULL, NULL},
		{"oci:/etc@" DIGEST, NULL, NULL},
		{"oci:/etc@" DIGEST, "/own", "oci:/own@" DIGEST},
		{"oci:../../x@" DIGEST, "/own", "oci:/own@" DIGEST},
		{"oci:/etc", "/own", NULL},
		{"scratch", "/own", NULL},
		{"r@sha256:../../x", "/own", NULL},
		{"", "/own", NULL},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_FREE char *record = mem_printf(
			"{\"image\":{\"ref\":\"%s\",\"base\":\"oci:/etc\"}}", cases[i].ref);
		AUTO_RUN struct run *run = take(record, SPEC("\"env\":[]"), cases[i].layout);
		const struct json *image = json_get(run->doc, "image");

		assert_true(str_eq(json_get_str(image, "ref"), cases[i].taken));
		assert_null(json_get_str(image, "base"));
	}
}

static void test_a_spec_that_starts_nothing(void **state)
{
	static const char *const specs[] = {"{}", "[]", "5", "{\"schema\":\"dlrun/spec/v2\"}",
		"{\"schema\":\"dlrun/spec/v1\",\"command\":[]}", SPEC("\"secrets\":5")};

	for (size_t i = 0; i < ARRAY_LEN(specs); i++) {
		AUTO_RUN struct run *run = take("{}", specs[i], NULL);
		assert_int_equal(json_count(run->spec), 0);
	}
}

/*
 * Secrets
 */

static void check_secrets(const struct run *run, const struct strv *names, size_t n_read,
	size_t n_missing, const char *first)
{
	AUTO_FREE char *config = fs_join(tmp, ".config/dlrun/config.yaml");
	AUTO_FREE char *project = fs_join(tmp, "tree"), *dir = fs_join(tmp, ".config/dlrun");
	const char *const env[] = {"OWN=mine", "NAMED=value", NULL};
	AUTO_STRV struct strv values = {0}, missing = {0};
	struct session session;
	const struct session_env about = {.dirs = {.home = tmp},
		.cwd = project,
		.user = "me",
		.env = env,
		.site_config = config};
	static const char text[] = "secrets: [NAMED]\n";

	assert_int_equal(fs_mkdirs(project, 0700, NULL), 0);
	assert_int_equal(fs_mkdirs(dir, 0700, NULL), 0);
	assert_int_equal(fs_replace(config, text, strlen(text), 0600, FS_SYNC_NONE, NULL), 0);
	assert_int_equal(session_init(&session, &about, NULL), 0);
	assert_int_equal(secrets_again(&session, run, names, &values, &missing, NULL), 0);
	assert_int_equal(values.n, n_read);
	assert_int_equal(missing.n, n_missing);
	if (first)
		assert_string_equal(values.v[0], first);
	session_done(&session);
}

/* A record may ask for what the user's configuration names, and for nothing else. */
static void test_secrets(void **state)
{
	AUTO_FREE char *file = fs_join(tmp, "file");
	AUTO_FREE char *members =
		mem_printf("\"secrets\":[\"X=@%s\",\"OWN\",\"NAMED\",\"Y=@~/file\","
			   "\"NAMED=@%s\",\"DLRUN_X\",\"\",\"a b\"]",
			file, file);
	AUTO_FREE char *text = mem_printf(
		"{\"schema\":\"dlrun/spec/v1\",\"command\":[\"true\"],\"cwd\":\".\",%s}", members);
	AUTO_RUN struct run *run = take("{}", text, NULL), *own = run_new("o-22222", "o");
	AUTO_SPEC struct spec spec = {0};
	AUTO_STRV struct strv forged = {0};

	assert_int_equal(fs_replace(file, "hidden", 6, 0600, FS_SYNC_NONE, NULL), 0);
	assert_int_equal(spec_from_json(run->spec, &spec, NULL), 0);
	assert_int_equal(spec.secrets.n, 2);
	assert_string_equal(spec.secrets.v[0], "OWN");
	check_secrets(run, &spec.secrets, 1, 1, "NAMED=value");
	/* The same names of a run of this machine. */
	check_secrets(own, &spec.secrets, 2, 0, "OWN=mine");
	/* What is no name is nothing, wherever it comes from. */
	strv_addf(&forged, "X=@%s", file);
	check_secrets(own, &forged, 0, 1, NULL);
	check_secrets(run, &forged, 0, 1, NULL);
}

static void test_places(void **state)
{
	AUTO_RUN struct run *run = take(
		"{\"places\":[{\"target\":\"lab\",\"state\":\"left\",\"text\":\"10 min without room\","
		"\"x\":{}},{\"target\":\"eu\",\"state\":\"chosen\"},7]}",
		SPEC("\"env\":{}"), NULL);
	AUTO_RUN struct run *one =
		take("{\"places\":[{\"target\":\"lab\"}]}", SPEC("\"env\":{}"), NULL);
	const struct json *places = json_get(run->doc, "places");

	assert_int_equal(json_count(places), 2);
	assert_string_equal(json_get_str(json_first(places), "text"), "10 min without room");
	assert_null(json_get(json_first(places), "x"));
	assert_null(json_get(one->doc, "places"));
}

#define test(name) cmocka_unit_test_setup_teardown(name, make_tmp, remove_tmp)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(test_nothing_of_this_machine),
		test(test_images),
		test(test_places),
		test(test_a_spec_that_starts_nothing),
		test(test_secrets),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
