/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/data/json.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "kube/job/overlay.h"

#define POD                                                                                        \
	"{\"metadata\":{\"labels\":{\"dlrun.io/run-id\":\"r\",\"a\":\"1\"},\"annotations\":{}},"   \
	"\"spec\":{\"restartPolicy\":\"Never\",\"containers\":[{\"name\":\"program\",\"image\":"   \
	"\"x\",\"args\":[\"p\"],\"env\":[{\"name\":\"A\",\"value\":\"1\"},{\"name\":\"B\","        \
	"\"value\":\"2\"}],\"volumeMounts\":[{\"name\":\"v\",\"mountPath\":\"/v\"}]}],"            \
	"\"tolerations\":[{\"key\":\"g\"}],\"volumes\":[{\"name\":\"v\",\"emptyDir\":{}}]}}"

static struct json *parse(const char *text)
{
	struct json *json = NULL;
	AUTO_ERR struct err err = {0};

	if (json_parse(text, strlen(text), JSON_SIZE_MAX, "test", &json, &err) < 0)
		fail_msg("%s: %s", text, err.message);
	return json;
}

static char *text_of(const struct json *json)
{
	AUTO_BUF struct buf out;

	buf_init(&out, JSON_SIZE_MAX);
	json_print(json, &out);
	return buf_take(&out);
}

/* What becomes of the part of POD's spec (or of metadata) under the overlay. */
static void check(const char *overlay_text, const char *top, const char *member, const char *want)
{
	AUTO_JSON struct json *pod = parse(POD), *overlay = parse(overlay_text);
	AUTO_ERR struct err err = {0};

	if (kube_overlay(pod, overlay, &err) < 0)
		fail_msg("%s: %s", overlay_text, err.message);
	const struct json *part = json_get(json_get(pod, top), member);
	AUTO_FREE char *text = part ? text_of(part) : mem_strdup("none");
	assert_string_equal(text, want);
}

static void test_maps(void **state)
{
	check("{\"metadata\":{\"labels\":{\"a\":\"2\",\"b\":\"3\"}}}", "metadata", "labels",
		"{\"dlrun.io/run-id\":\"r\",\"a\":\"2\",\"b\":\"3\"}");
	check("{\"metadata\":{\"labels\":{\"a\":null}}}", "metadata", "labels",
		"{\"dlrun.io/run-id\":\"r\"}");
	check("{\"spec\":{\"hostNetwork\":true}}", "spec", "hostNetwork", "true");
	check("{\"spec\":{\"affinity\":{\"x\":{\"y\":1}}}}", "spec", "affinity",
		"{\"x\":{\"y\":1}}");
	check("{\"spec\":{\"affinity\":{\"$patch\":\"replace\",\"x\":1}}}", "spec", "affinity",
		"{\"x\":1}");
	check("{\"spec\":{\"tolerations\":null}}", "spec", "tolerations", "none");
	check("{}", "spec", "restartPolicy", "\"Never\"");
	check("{\"apiVersion\":\"v1\",\"kind\":\"Pod\"}", "spec", "restartPolicy", "\"Never\"");
}

static void test_lists(void **state)
{
	check("{\"spec\":{\"tolerations\":[{\"key\":\"h\"}]}}", "spec", "tolerations",
		"[{\"key\":\"g\"},{\"key\":\"h\"}]");
	check("{\"spec\":{\"tolerations\":[{\"$patch\":\"replace\"},{\"key\":\"h\"}]}}", "spec",
		"tolerations", "[{\"key\":\"h\"}]");
	check("{\"spec\":{\"tolerations\":[{\"$patch\":\"delete\"}]}}", "spec", "tolerations",
		"none");
	check("{\"spec\":{\"volumes\":[{\"name\":\"w\",\"emptyDir\":{}},{\"name\":\"v\","
	      "\"nfs\":{\"path\":\"/\"}}]}}",
		"spec", "volumes",
		"[{\"name\":\"v\",\"nfs\":{\"path\":\"/\"}},{\"name\":\"w\",\"emptyDir\":{}}]");
	check("{\"spec\":{\"volumes\":[{\"name\":\"v\",\"$patch\":\"delete\"}]}}", "spec",
		"volumes", "[]");
	/* One that was not there. */
	check("{\"spec\":{\"initContainers\":[{\"name\":\"i\"}]}}", "spec", "initContainers",
		"[{\"name\":\"i\"}]");
	check("{\"spec\":{\"hostAliases\":[]}}", "spec", "hostAliases", "[]");
}

static void test_containers(void **state)
{
	/* Without a name it is the program's; mounts go by their path, env items take the place. */
	check("{\"spec\":{\"containers\":[{\"env\":[{\"name\":\"B\",\"valueFrom\":{\"f\":1}},"
	      "{\"name\":\"C\",\"value\":\"3\"}],\"volumeMounts\":[{\"name\":\"v\",\"mountPath\":"
	      "\"/w\"},{\"name\":\"u\",\"mountPath\":\"/v\"}]}]}}",
		"spec", "containers",
		"[{\"name\":\"program\",\"image\":\"x\",\"args\":[\"p\"],\"env\":[{\"name\":\"A\","
		"\"value\":\"1\"},{\"name\":\"B\",\"valueFrom\":{\"f\":1}},{\"name\":\"C\","
		"\"value\":\"3\"}],\"volumeMounts\":[{\"name\":\"u\",\"mountPath\":\"/v\"},"
		"{\"name\":\"v\",\"mountPath\":\"/w\"}]}]");
	check("{\"spec\":{\"containers\":[{\"name\":\"side\",\"image\":\"y\"}]}}", "spec",
		"containers",
		"[{\"name\":\"program\",\"image\":\"x\",\"args\":[\"p\"],\"env\":[{\"name\":\"A\","
		"\"value\":\"1\"},{\"name\":\"B\",\"value\":\"2\"}],\"volumeMounts\":[{\"name\":"
		"\"v\",\"mountPath\":\"/v\"}]},{\"name\":\"side\",\"image\":\"y\"}]");
}

static void test_refused(void **state)
{
	static const struct {
		const char *overlay, *part;
	} cases[] = {
		{"[]", "not a map"},
		{"\"x\"", "not a map"},
		{"{\"spec\":[]}", "spec of the overlay is not a map"},
		{"{\"containers\":[]}", "'containers' beside metadata"},
		{"{\"kind\":\"Job\",\"spec\":{}}", "'kind' beside metadata"},
		{"{\"spec\":{\"x\":{\"$patch\":\"merge\"}}}", "$patch: 'merge'"},
		{"{\"spec\":{\"x\":{\"$patch\":1}}}", "$patch: ''"},
		{"{\"spec\":{\"tolerations\":[{\"$patch\":\"x\"}]}}", "$patch: 'x'"},
		{"{\"spec\":{\"restartPolicy\":\"Always\"}}", "spec.restartPolicy"},
		{"{\"spec\":{\"restartPolicy\":null}}", "spec.restartPolicy"},
		{"{\"spec\":{\"$patch\":\"delete\"}}", "spec.restartPolicy"},
		{"{\"spec\":{\"$patch\":\"replace\",\"containers\":[]}}", "spec.restartPolicy"},
		{"{\"spec\":{\"hostname\":\"x\"}}", "spec.hostname"},
		{"{\"spec\":{\"subdomain\":\"x\"}}", "spec.subdomain"},
		{"{\"metadata\":{\"name\":\"x\"}}", "metadata.name"},
		{"{\"metadata\":{\"namespace\":\"x\"}}", "metadata.namespace"},
		{"{\"metadata\":{\"labels\":{\"dlrun.io/run-id\":\"x\"}}}", "dlrun.io/run-id"},
		{"{\"metadata\":{\"labels\":{\"dlrun.io/run-id\":null}}}", "dlrun.io/run-id"},
		{"{\"metadata\":{\"labels\":null}}", "dlrun.io/run-id"},
		{"{\"metadata\":{\"labels\":{\"dlrun.io/new\":\"x\"}}}", "dlrun.io/new"},
		{"{\"metadata\":{\"labels\":{\"app.kubernetes.io/name\":\"x\"}}}",
			"app.kubernetes.io/name"},
		{"{\"metadata\":{\"annotations\":{\"dlrun.io/hosts\":\"x\"}}}", "dlrun.io/hosts"},
		{"{\"spec\":{\"containers\":[{\"image\":\"y\"}]}}", "program].image"},
		{"{\"spec\":{\"containers\":[{\"args\":[\"y\"]}]}}", "program].args"},
		{"{\"spec\":{\"containers\":[{\"command\":[\"y\"]}]}}", "program].command"},
		{"{\"spec\":{\"containers\":[{\"$patch\":\"delete\",\"name\":\"program\"}]}}",
			"program].name"},
		{"{\"spec\":{\"containers\":[{\"$patch\":\"replace\"}]}}", "program].name"},
		{"{\"spec\":{\"containers\":null}}", "program].name"},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_JSON struct json *pod = parse(POD), *overlay = parse(cases[i].overlay);
		AUTO_ERR struct err err = {0};

		if (kube_overlay(pod, overlay, &err) == 0)
			fail_msg("taken: %s", cases[i].overlay);
		assert_int_equal(err.id, E_KUBE_OVERLAY);
		if (!strstr(err.message, cases[i].part))
			fail_msg("%s: %s", cases[i].overlay, err.message);
		/* As it was. */
		AUTO_FREE char *text = text_of(pod);
		assert_string_equal(text, POD);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_maps),
		cmocka_unit_test(test_lists),
		cmocka_unit_test(test_containers),
		cmocka_unit_test(test_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
