/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "kube/job/service.h"

static struct json *parse(const char *text)
{
	struct json *json = NULL;

	assert_int_equal(json_parse(text, strlen(text), JSON_SIZE_MAX, "it", &json, NULL), 0);
	return json;
}

static struct json *service(const char *ports)
{
	AUTO_FREE char *text = mem_printf("{\"spec\": {\"selector\": {\"app\": \"registry\", "
					  "\"x/y\": \"z\"}, \"ports\": [%s]}}",
		ports);
	return parse(text);
}

static char *pod(const char *name, const char *ready, const char *more)
{
	return mem_printf(
		"{\"metadata\": {\"name\": \"%s\"%s}, \"spec\": {\"containers\": [{}, {\"ports\": "
		"[{\"name\": \"web\", \"containerPort\": 5001}]}]}, \"status\": {\"conditions\": "
		"[{\"type\": \"Ready\", \"status\": \"%s\"}]}}",
		name, more, ready);
}

static struct json *pods(const char *a, const char *b)
{
	AUTO_FREE char *text = mem_printf("{\"items\": [%s%s%s]}", a, *a && *b ? "," : "", b);

	return parse(text);
}

static const struct kube_service_port where = {"tools", "registry", 5000};

static void test_names(void **state)
{
	static const char *const bad[] = {"", "registry:5000", "a/b", "a/b:", "a/b:0", "a/b:65536",
		"a/b:5000x", "a/b/c:1", "A/b:1", "a/:1", "/b:1", "a/b:-1", "a/b\n:1"};
	struct kube_service_port found;

	assert_int_equal(kube_service_parse("tools/registry:5000", &found, NULL), 0);
	assert_string_equal(found.kube_namespace, "tools");
	assert_string_equal(found.service, "registry");
	assert_int_equal(found.port, 5000);
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		AUTO_ERR struct err err = {0};
		assert_true(kube_service_parse(bad[i], &found, &err) < 0);
		assert_int_equal(err.id, E_CONFIG);
	}
	char longer[200];
	memset(longer, 'a', sizeof(longer));
	memcpy(longer + 64, "/b:1", sizeof("/b:1"));
	assert_true(kube_service_parse(longer, &found, NULL) < 0);
	memcpy(longer + 63, "/b:1", sizeof("/b:1"));
	assert_int_equal(kube_service_parse(longer, &found, NULL), 0);
}

static void test_selector(void **state)
{
	AUTO_JSON struct json *one = service(""), *none = parse("{\"spec\": {}}");
	AUTO_FREE char *text = kube_service_selector(one);

	assert_string_equal(text, "app=registry,x/y=z");
	assert_null(kube_service_selector(none));
	assert_null(kube_service_selector(NULL));
}

static void finds(const char *ports, const char *a, const char *b, const char *name, uint16_t port)
{
	AUTO_JSON struct json *svc = service(ports), *list = pods(a, b);
	AUTO_ERR struct err err = {0};
	struct kube_service_pod found;

	if (kube_service_find(&where, svc, list, &found, &err) < 0)
		print_error("%s\n", err.message);
	assert_false(err_is_set(&err));
	assert_string_equal(found.name, name);
	assert_int_equal(found.port, port);
}

static void test_ports_of_pods(void **state)
{
	AUTO_FREE char *ready = pod("a", "True", "");

	finds("{\"port\": 5000}", ready, "", "a", 5000);
	finds("{\"port\": 1, \"targetPort\": 2}, {\"port\": 5000, \"targetPort\": 80}", ready, "",
		"a", 80);
	finds("{\"port\": 5000, \"targetPort\": \"web\"}", ready, "", "a", 5001);
}

static void test_the_first_that_is_ready(void **state)
{
	AUTO_FREE char *ready = pod("b", "True", ""), *not_ready = pod("a", "False", ""),
		       *leaving = pod("c", "True", ", \"deletionTimestamp\": \"now\"");

	finds("{\"port\": 5000}", not_ready, ready, "b", 5000);
	finds("{\"port\": 5000}", leaving, ready, "b", 5000);
}

static void fails(const char *ports, const char *a, const char *b, enum err_id id, const char *says)
{
	AUTO_JSON struct json *svc = service(ports), *list = pods(a, b);
	AUTO_ERR struct err err = {0};
	struct kube_service_pod found;

	assert_true(kube_service_find(&where, svc, list, &found, &err) < 0);
	assert_int_equal(err.id, id);
	assert_string_equal(err.message, says);
	assert_non_null(err.hint);
}

static void test_nothing_there(void **state)
{
	AUTO_FREE char *not_ready = pod("a", "False", ""), *ready = pod("b", "True", "");

	fails("{\"port\": 5000}", "", "", E_KUBE_FORWARD,
		"service registry in namespace tools has no pods");
	fails("{\"port\": 5000}", not_ready, not_ready, E_KUBE_FORWARD,
		"none of the 2 pods of service registry in namespace tools is ready");
	fails("{\"port\": 5001}", ready, "", E_KUBE_NOT_FOUND,
		"service registry in namespace tools has no port 5000");
	fails("{\"port\": 5000, \"targetPort\": \"other\"}", ready, "", E_KUBE_FORWARD,
		"none of the 1 pods of service registry in namespace tools is ready");
	fails("{\"port\": 5000, \"targetPort\": 70000}", ready, "", E_KUBE_FORWARD,
		"none of the 1 pods of service registry in namespace tools is ready");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_selector),
		cmocka_unit_test(test_ports_of_pods),
		cmocka_unit_test(test_the_first_that_is_ready),
		cmocka_unit_test(test_nothing_there),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
