/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/util/str.h"
#include "core/config/config_trust.h"
#include "core/config/registry_config.h"
#include "tests/unit/tmpfix.h"

static void put(const char *name, const char *text)
{
	AUTO_FREE char *path = fs_join(tmp, name);

	assert_int_equal(fs_replace(path, text, strlen(text), 0600, FS_SYNC_NONE, NULL), 0);
}

static int load(const char *project, const char *user, const char *const *env, struct config **ret,
	struct err *err)
{
	AUTO_FREE char *project_path = fs_join(tmp, "dlrun.yaml");
	AUTO_FREE char *user_path = fs_join(tmp, "config.yaml");
	AUTO_FREE char *trust = fs_join(tmp, "trust");
	struct config_files files = {.project = project_path, .user = user_path, .env = env};
	AUTO_CONFIG struct config *seen = NULL;

	put("dlrun.yaml", project);
	put("config.yaml", user ? user : "");
	int r = config_load(&files, &seen, err);
	if (r < 0)
		return r;
	assert_int_equal(config_confirm(seen, trust, NULL), 0);
	files.trust = trust;
	return config_load(&files, ret, err);
}

static void expect(const struct registry_config *registry, const char *push, const char *pull,
	const char *ca, bool insecure)
{
	AUTO_FREE char *path = ca ? fs_join(tmp, ca) : NULL;

	assert_true(str_eq(registry->push, push));
	assert_true(str_eq(registry->pull, pull));
	assert_true(str_eq(registry->ca, path));
	assert_int_equal(registry->insecure, insecure);
}

static void test_forms(void **state)
{
	static const struct {
		const char *text, *push, *pull, *ca;
		bool insecure;
	} cases[] = {
		{"registry: localhost:5000/me\n", "localhost:5000/me", "localhost:5000/me", NULL,
			false},
		{"registry: {push: reg.example/a/b}\n", "reg.example/a/b", "reg.example/a/b", NULL,
			false},
		{"registry: {push: reg.example/a, pull: 'in.side:80/a', ca: x/ca.pem,\n"
		 "  insecure: true, forward: kube/registry:5000}\n",
			"reg.example/a", "in.side:80/a", "x/ca.pem", true},
		{"registry: {insecure: false, push: '[::1]:5000/a', ca: ~/ca.pem}\n",
			"[::1]:5000/a", "[::1]:5000/a", "ca.pem", false},
	};
	AUTO_FREE char *home = mem_printf("HOME=%s", tmp);
	const char *const env[] = {home, NULL};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_CONFIG struct config *config = NULL;
		AUTO_REGISTRY_CONFIG struct registry_config registry = {0};
		AUTO_FREE char *host = mem_strndup(cases[i].push, strcspn(cases[i].push, "/"));

		assert_int_equal(load(cases[i].text, NULL, env, &config, NULL), 0);
		registry_config_for_host(config, host, &registry);
		expect(&registry, cases[i].push, cases[i].pull, cases[i].ca, cases[i].insecure);
	}
}

static void test_errors(void **state)
{
	static const struct {
		const char *text, *message, *hint;
	} cases[] = {
		{"registry: {push: a.example/b, forward: registry:5000}\n",
			":1:40: registry.forward: 'registry:5000' is not NAMESPACE/SERVICE:PORT",
			"registry: {push: registry.example.com/me/dlrun, forward: registry/registry:5000}"},
		{"registry: [a]\n", ":1:11: registry must be HOST[:PORT]/REPO or a map, not a list",
			NULL},
		{"registry:\n", ":1:10: registry has no value", NULL},
		{"registry: ubuntu\n",
			":1:11: registry: 'ubuntu' is not a repository in the form HOST[:PORT]/REPO",
			"registry: registry.example.com/me/dlrun"},
		{"registry: https://reg.example/a\n",
			":1:11: registry: 'https://reg.example/a' is not a repository", NULL},
		{"registry: oci:out\n", ":1:11: registry: 'oci:out' is not a repository", NULL},
		{"registry: scratch\n", ":1:11: registry: 'scratch' is not a repository", NULL},
		{"registry: reg.example/a:v1\n",
			":1:11: registry: 'reg.example/a:v1' names an image",
			"registry: reg.example/a"},
		{"\nregistry:\n  push: reg.example/a\n  pul: b\n",
			":4:3: unknown key 'pul' in registry", "did you mean 'pull'?"},
		{"registry: {push: reg.example/a, pull: reg}\n",
			":1:39: registry.pull: 'reg' is no", NULL},
		{"registry: {ca: a}\n", ":1:11: registry has no push",
			"registry: {push: registry.example.com/me/dlrun}"},
		{"registry: {}\n", ":1:11: registry has no push", NULL},
		{"registry: {push: [a]}\n",
			":1:18: registry.push must be a single value, not a list", NULL},
		{"registry: {push: }\n", ":1:18: registry.push has no value", NULL},
		{"registry: {push: r.e/a, insecure: yes}\n",
			":1:35: registry.insecure must be true or false", NULL},
		{"registry: {push: r.e/a, insecure: 'true'}\n",
			":1:35: registry.insecure must be true or false", NULL},
		{"registry: {push: r.e/a, ca: ~/x}\n", ":1:29: registry.ca: HOME is not set", NULL},
		{"registry: {push: r.e/a, cert: c.pem}\n",
			":1:11: registry has only one of cert and key",
			"registry: {push: r.e/a, cert: client.cert, key: client.key}"},
		{"registry: {push: r.e/a, key: k.pem}\n", ":1:11: registry has only one of cert",
			NULL},
		{"push_timeout: long\n", ":1:15: push_timeout: ", NULL},
		{"targets:\n  a:\n    kind: local\n    registry: {psuh: b}\n",
			":4:16: unknown key 'psuh' in registry", "did you mean 'push'?"},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_CONFIG struct config *config = NULL;
		AUTO_ERR struct err err = {0};

		assert_int_equal(load(cases[i].text, NULL, NULL, &config, &err), -ERR_CONFIG);
		if (!str_starts(strchr(err.message, ':'), cases[i].message))
			fail_msg("%s gave %s", cases[i].text, err.message);
		if (cases[i].hint)
			assert_string_equal(err.hint, cases[i].hint);
	}
}

static void test_find_prefers_the_target(void **state)
{
	AUTO_CONFIG struct config *config = NULL, *none = NULL;
	AUTO_REGISTRY_CONFIG struct registry_config top = {0}, own = {0}, other = {0}, led = {0};
	AUTO_ERR struct err err = {0};

	assert_int_equal(
		load("registry: top.example/a\n"
		     "targets:\n"
		     "  lab: {kind: local, registry: {push: lab.example/b, ca: ca.pem}}\n"
		     "  here: {kind: local}\n"
		     "  apart: {kind: kubernetes, registry: none}\n"
		     "  far: {kind: local, registry: {push: far.example/b, forward: a/b:1}}\n"
		     "  kube: {kind: kubernetes, registry: {push: k.example/b, forward: a/b:1}}\n",
			NULL, NULL, &config, NULL),
		0);
	assert_int_equal(registry_config_find(config, NULL, &top, &err), 1);
	expect(&top, "top.example/a", "top.example/a", NULL, false);
	assert_int_equal(registry_config_find(config, "lab", &own, &err), 1);
	expect(&own, "lab.example/b", "lab.example/b", "ca.pem", false);
	assert_int_equal(registry_config_find(config, "here", &other, &err), 1);
	expect(&other, "top.example/a", "top.example/a", NULL, false);
	assert_int_equal(registry_config_find(config, "far", &other, &err), -ERR_CONFIG);
	assert_string_equal(err.message, "registry of far: forward is for Kubernetes targets");
	assert_int_equal(registry_config_find(config, "kube", &led, NULL), 1);
	assert_string_equal(led.forward, "a/b:1");
	assert_string_equal(led.target, "kube");
	assert_int_equal(registry_config_find(config, "apart", &other, NULL), 0);
	assert_int_equal(load("name: a\n", NULL, NULL, &none, NULL), 0);
	assert_int_equal(registry_config_find(none, NULL, &other, NULL), 0);
}

static void test_for_host_polls_everywhere(void **state)
{
	AUTO_CONFIG struct config *config = NULL;
	AUTO_REGISTRY_CONFIG struct registry_config a = {0}, b = {0}, c = {0}, d = {0}, e = {0},
						    none = {0};

	assert_int_equal(load("registry: a.example/x\n"
			      "targets:\n"
			      "  one: {kind: local, registry: {push: a.example/y, ca: a.pem}}\n"
			      "  two: {kind: local}\n"
			      "  three: {kind: local, registry: {push: 'b.example:5000/y',\n"
			      "    pull: c.example/y, insecure: true}}\n"
			      "  four: {kind: kubernetes, registry: {push: d.example/y,\n"
			      "    pull: e.example/y, forward: a/b:1}}\n",
				 NULL, NULL, &config, NULL),
		0);
	registry_config_for_host(config, "A.example", &a);
	expect(&a, "a.example/x", "a.example/x", "a.pem", false);
	registry_config_for_host(config, "b.example:5000", &b);
	expect(&b, "b.example:5000/y", "c.example/y", NULL, true);
	registry_config_for_host(config, "c.example", &c);
	assert_true(c.insecure);
	registry_config_for_host(config, "d.example", &d);
	assert_string_equal(d.forward, "a/b:1");
	assert_string_equal(d.target, "four");
	registry_config_for_host(config, "e.example", &e);
	assert_string_equal(e.push, "d.example/y");
	assert_null(e.forward);
	registry_config_for_host(config, "b.example", &none);
	expect(&none, NULL, NULL, NULL, false);
}

static void test_all(void **state)
{
	AUTO_CONFIG struct config *config = NULL, *none = NULL;
	AUTO_STRV struct strv list = {0}, empty = {0};

	assert_int_equal(
		load("targets:\n"
		     "  one: {kind: local, registry: a.example/y}\n"
		     "  two: {kind: local, registry: {push: c.example/z, forward: a/b:1}}\n"
		     "  three: {kind: local, registry: a.example/x}\n"
		     "  four: {kind: kubernetes, registry: {push: d.example/z, forward: a/b:1}}\n"
		     "registry: a.example/x\n",
			NULL, NULL, &config, NULL),
		0);
	registry_config_all(config, &list);
	assert_int_equal(list.n, 3);
	assert_string_equal(list.v[0], "a.example/x");
	assert_string_equal(list.v[1], "a.example/y");
	assert_string_equal(list.v[2], "d.example/z");
	assert_int_equal(load("", NULL, NULL, &none, NULL), 0);
	registry_config_all(none, &empty);
	assert_int_equal(empty.n, 0);
}

/* A map replaces what lower files say; a text for the same host keeps what is true of the host. */
static void test_layers(void **state)
{
	static const struct {
		const char *project, *user, *env, *push, *pull, *ca;
	} cases[] = {
		{"registry: a.example/me\n",
			"registry: {push: a.example/x, pull: b.example/x, "
			"ca: ca.pem}\n",
			NULL, "a.example/me", "a.example/me", "ca.pem"},
		{"registry: b.example/me\n", "registry: {push: a.example/x, ca: ca.pem}\n", NULL,
			"b.example/me", "b.example/me", NULL},
		{"registry: {push: a.example/me}\n", "registry: {push: a.example/x, ca: ca.pem}\n",
			NULL, "a.example/me", "a.example/me", NULL},
		{"registry: {push: a.example/x, ca: ca.pem}\n", "registry: b.example/x\n",
			"DLRUN_REGISTRY=A.example/y", "A.example/y", "A.example/y", "ca.pem"},
		{"name: a\n", NULL, "DLRUN_REGISTRY=c.example/y", "c.example/y", "c.example/y",
			NULL},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		const char *const env[] = {cases[i].env, NULL};
		AUTO_CONFIG struct config *config = NULL;
		AUTO_REGISTRY_CONFIG struct registry_config registry = {0};

		assert_int_equal(load(cases[i].project, cases[i].user, env, &config, NULL), 0);
		assert_int_equal(registry_config_find(config, NULL, &registry, NULL), 1);
		expect(&registry, cases[i].push, cases[i].pull, cases[i].ca, false);
	}
}

static void test_environment(void **state)
{
	static const char *const bad[] = {"DLRUN_REGISTRY=moon", NULL};
	static const char *const good[] = {"DLRUN_PUSH_TIMEOUT=90s", NULL};
	AUTO_CONFIG struct config *config = NULL, *unset = NULL;
	AUTO_ERR struct err err = {0};

	assert_int_equal(load("name: a\n", NULL, bad, &config, &err), -ERR_CONFIG);
	assert_string_equal(err.message,
		"DLRUN_REGISTRY: registry: 'moon' is not a repository in the form HOST[:PORT]/REPO");
	assert_int_equal(load("name: a\n", NULL, good, &config, NULL), 0);
	assert_int_equal(config_duration(config, "push_timeout", 0), 90 * 1000);
	assert_int_equal(load("name: a\n", NULL, NULL, &unset, NULL), 0);
	assert_int_equal(config_duration(unset, "push_timeout", 0), 600 * 1000);
}

static void test_json_has_the_shorter_form(void **state)
{
	AUTO_CONFIG struct config *text = NULL, *map = NULL;
	AUTO_JSON struct json *short_json = NULL, *long_json = NULL;
	const struct json *item;

	assert_int_equal(load("registry: {push: a.example/x}\n", NULL, NULL, &text, NULL), 0);
	short_json = config_to_json(text);
	item = json_get(short_json, "registry");
	assert_string_equal(json_get_str(item, "value"), "a.example/x");
	assert_int_equal(json_get_int(item, "line", 0), 1);
	assert_int_equal(
		load("registry: {push: a.example/x, insecure: true}\n", NULL, NULL, &map, NULL), 0);
	long_json = config_to_json(map);
	item = json_get(json_get(long_json, "registry"), "value");
	assert_true(json_get_bool(item, "insecure", false));
}

#define WITH_TMP(test) cmocka_unit_test_setup_teardown(test, make_tmp, remove_tmp)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_TMP(test_forms),
		WITH_TMP(test_errors),
		WITH_TMP(test_find_prefers_the_target),
		WITH_TMP(test_for_host_polls_everywhere),
		WITH_TMP(test_all),
		WITH_TMP(test_layers),
		WITH_TMP(test_environment),
		WITH_TMP(test_json_has_the_shorter_form),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
