/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "core/image/base_program.h"

static struct json *parse(const char *text)
{
	AUTO_ERR struct err err = {0};
	struct json *json = NULL;

	if (json_parse(text, strlen(text), 1 << 20, "test", &json, &err) < 0)
		fail_msg("%s: %s", text, err.message);
	return json;
}

/* why: in what is said of it, "bare", or NULL. */
static void is(
	const struct base_program *found, enum base_has has, const char *why, const char *program)
{
	const char *said = found->why ? found->why : found->is_bare ? "bare" : "";

	if (found->has != has || !strstr(said, why ? why : "") || (!why && *said))
		fail_msg("%s: %d, \"%s\" instead of %d, \"%s\"", program, found->has, said, has,
			why ? why : "");
}

static void says(const char *config, size_t n_layers, const char *program, enum base_has has,
	const char *why)
{
	AUTO_JSON struct json *json = parse(config);
	AUTO_BASE_PROGRAM struct base_program found = {0};

	base_program_of_config(json, n_layers, program, &found);
	is(&found, has, why, program);
}

#define ENV(pair)      "{\"config\":{\"Env\":[\"LANG=C\",\"" pair "\"]}}"
#define HISTORY(items) "{\"history\":[" items "]}"
#define BY(command)    "{\"created_by\":\"" command "\"}"
#define EMPTY(command) "{\"created_by\":\"" command "\",\"empty_layer\":true}"

static void test_its_environment(void **state)
{
	says(ENV("PYTHON_VERSION=3.12.7"), 4, "python", BASE_HAS, "PYTHON_VERSION");
	says(ENV("PYTHON_VERSION=3.12.7"), 4, "python3", BASE_HAS, "PYTHON_VERSION");
	says(ENV("PYTHON_VERSION=3.12.7"), 4, "python3.11", BASE_UNKNOWN, NULL);
	says(ENV("PYTHON_VERSION=3.12.7"), 4, "Rscript", BASE_UNKNOWN, NULL);
	says(ENV("PYTHON_VERSION_OF=3"), 4, "python", BASE_UNKNOWN, NULL);
	says(ENV("PYTORCH_VERSION=2.5"), 4, "torchrun", BASE_HAS, "PYTORCH_VERSION");
	says(ENV("PATH=/opt/conda/bin:/usr/bin"), 4, "python", BASE_HAS, "conda");
	says(ENV("PATH=/app/.venv/bin:/usr/bin"), 4, "python3", BASE_HAS, "venv");
	says(ENV("PATH=/opt/conda/bin:/usr/bin"), 4, "julia", BASE_UNKNOWN, NULL);
	says(ENV("R_VERSION=4.4"), 4, "Rscript", BASE_HAS, "R_VERSION");
}

static void test_its_words(void **state)
{
	says("{\"config\":{\"Cmd\":[\"/usr/bin/python3\"]}}", 2, "python3", BASE_HAS, "starts");
	says("{\"config\":{\"Entrypoint\":[\"python\",\"-m\",\"x\"]}}", 2, "python", BASE_HAS,
		"starts");
	says(HISTORY(BY("RUN apt-get install -y python3 git")), 2, "python3", BASE_HAS, "history");
	says(HISTORY(BY("RUN apt-get install -y python3 git")), 2, "python", BASE_UNKNOWN, NULL);
	says(HISTORY(BY("RUN apt-get install -y python3.11")), 2, "python3", BASE_UNKNOWN, NULL);
	says(HISTORY(BY("RUN curl https://www.python.org/x")), 2, "python", BASE_UNKNOWN, NULL);
}

static void test_distributions(void **state)
{
	static const char alpine[] = HISTORY(
		BY("ADD alpine-minirootfs-3.20.3-x86_64.tar.gz / # buildkit") "," EMPTY("CMD "
											"sh"));
	static const char debian[] = HISTORY(BY("# debian.sh --arch 'amd64' out/ 'bookworm'"));
	static const char ubuntu[] = HISTORY(EMPTY("/bin/sh -c #(nop)  LABEL a=b") "," BY(
		"/bin/sh -c #(nop) ADD file:1 in / ") "," EMPTY("/bin/sh -c #(nop)  CMD [x]"));
	static const char more[] = HISTORY(BY("# debian.sh --arch 'amd64'") "," BY("COPY x /"));

	says(alpine, 1, "python", BASE_LACKS, "Alpine and nothing else");
	says(alpine, 1, "python3", BASE_LACKS, "Alpine");
	says(alpine, 1, "sh", BASE_HAS, "history");
	says(alpine, 1, "apk", BASE_UNKNOWN, "bare");
	says(alpine, 2, "python", BASE_UNKNOWN, NULL);
	says(debian, 1, "torchrun", BASE_LACKS, "Debian");
	says(debian, 1, "perl", BASE_UNKNOWN, "bare");
	says(debian, 1, "my-tool", BASE_UNKNOWN, "bare");
	says(more, 2, "python", BASE_UNKNOWN, NULL);
	says("{}", 0, "sh", BASE_LACKS, "empty");
	says("{}", 1, "python", BASE_UNKNOWN, NULL);
	says(ubuntu, 1, "python", BASE_UNKNOWN, "bare");
	says(HISTORY(BY("COPY / /")), 1, "python", BASE_UNKNOWN, NULL);
	/* Squashed: the layer has what the others made, too. */
	says(HISTORY(BY("# debian.sh --arch 'amd64'") "," EMPTY("RUN install all")), 1, "python",
		BASE_UNKNOWN, NULL);
	says(HISTORY(EMPTY("# debian.sh --arch 'amd64'")), 1, "python", BASE_UNKNOWN, NULL);
	says("{\"history\":{},\"config\":{\"Env\":{},\"Cmd\":\"x\"}}", 3, "x", BASE_UNKNOWN, NULL);
}

/* files: "PATH", "PATH*" with the execute bit, "PATH>TARGET". */
static void holds(const char *config, const char *const files[], const char *program,
	enum base_has has, const char *why)
{
	AUTO_JSON struct json *json = parse(config);
	AUTO_ENTRIES struct entry_list entries = {0};
	AUTO_BASE_PROGRAM struct base_program found = {0};

	for (size_t i = 0; files[i]; i++) {
		char text[100];
		snprintf(text, sizeof(text), "%s", files[i]);
		char *target = strchr(text, '>'), *exec = strchr(text, '*');
		if (target)
			*target++ = '\0';
		if (exec)
			*exec = '\0';
		entry_add(&entries, &(struct entry){.path = text,
					    .kind = target ? ENTRY_LINK : ENTRY_FILE,
					    .target = target,
					    .exec = exec != NULL});
	}
	vec_sort(&entries, entry_compare);
	base_program_of_entries(json, &entries, program, &found);
	is(&found, has, why, program);
}
#define FILES(...) ((const char *const[]){__VA_ARGS__, NULL})

static void test_its_files(void **state)
{
	static const char *const busybox[] = {"bin/busybox*", "bin/sh>busybox", NULL};
	static const char *const merged[] = {"bin>usr/bin", "usr/bin/python3*", NULL};

	holds("{}", busybox, "sh", BASE_HAS, "/bin/sh");
	holds("{}", busybox, "python", BASE_LACKS, "no file");
	holds("{}", merged, "python3", BASE_HAS, "/usr/bin/python3");
	holds(ENV("PATH=/bin"), merged, "python3", BASE_HAS, "/bin/python3");
	holds(ENV("PATH=/sbin"), merged, "python3", BASE_UNKNOWN, NULL);
	holds("{}", merged, "python", BASE_LACKS, "no file");
	holds("{}", FILES("opt/py/bin/python*"), "python", BASE_UNKNOWN, NULL);
	holds(ENV("PATH=/opt/py/bin"), FILES("opt/py/bin/python*"), "python", BASE_HAS, "/opt/py");
	holds("{}", FILES("usr/bin/python"), "python", BASE_UNKNOWN, NULL);
	holds("{}", FILES("usr/bin/python/x*"), "python", BASE_LACKS, "no file");
}

static void test_its_links(void **state)
{
	holds("{}", FILES("usr/bin/python>python3", "usr/bin/python3>../lib/x/py", "usr/lib/x/py*"),
		"python", BASE_HAS, "/usr/bin/python");
	holds("{}", FILES("bin>/usr/bin/", "usr/bin/python>/opt//./py", "opt/py*"), "python",
		BASE_HAS, "/usr/bin/python");
	holds("{}", FILES("bin/python>../../../opt/py", "opt/py*"), "python", BASE_HAS, "/bin/");
	holds("{}", FILES("bin/python>gone"), "python", BASE_UNKNOWN, NULL);
	holds("{}", FILES("bin/python>python"), "python", BASE_UNKNOWN, NULL);
	holds("{}", FILES("bin>usr/bin", "usr/bin>../bin", "x/python*"), "python", BASE_UNKNOWN,
		NULL);
	holds("{}", FILES("bin/python>../etc", "etc/passwd"), "python", BASE_UNKNOWN, NULL);
	holds("{}", FILES("bin/python>../etc/passwd/x", "etc/passwd"), "python", BASE_UNKNOWN,
		NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_its_environment),
		cmocka_unit_test(test_its_words),
		cmocka_unit_test(test_distributions),
		cmocka_unit_test(test_its_files),
		cmocka_unit_test(test_its_links),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
