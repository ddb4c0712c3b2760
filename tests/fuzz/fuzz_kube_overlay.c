/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pod overlays: whatever is laid over a pod, what dlrun finds it by stays, a refused one changes
 * nothing, and the result printed as YAML is read back as the same texts.
 */
#include <stdint.h>
#include <string.h>

#include "base/data/json.h"
#include "base/data/yaml.h"
#include "base/util/err.h"
#include "base/util/str.h"
#include "kube/job/overlay.h"

enum { TEXT_MAX = 64 << 10 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char pod_text[] =
	"{\"metadata\":{\"labels\":{\"dlrun.io/run-id\":\"r\",\"a\":\"1\"}},\"spec\":{"
	"\"restartPolicy\":\"Never\",\"containers\":[{\"name\":\"program\",\"image\":\"x\",\"args\":"
	"[\"p\"],\"env\":[{\"name\":\"A\",\"value\":\"1\"}],\"volumeMounts\":[{\"name\":\"v\","
	"\"mountPath\":\"/v\"}],\"ports\":[{\"containerPort\":1}]}],\"tolerations\":[{\"key\":\"g\"}],"
	"\"volumes\":[{\"name\":\"v\",\"emptyDir\":{}}]}}";

static void check_kept(const struct json *pod)
{
	const struct json *labels = json_get(json_get(pod, "metadata"), "labels");
	const struct json *spec = json_get(pod, "spec"), *program = NULL;

	BUG_ON(!str_eq(json_get_str(labels, "dlrun.io/run-id"), "r"));
	BUG_ON(!str_eq(json_get_str(spec, "restartPolicy"), "Never"));
	for (const struct json *item = json_first(json_get(spec, "containers")); item;
		item = json_next(item))
		if (!program && str_eq(json_get_str(item, "name"), "program"))
			program = item;
	BUG_ON(!str_eq(json_get_str(program, "image"), "x"));
}

static void check_same(const struct json *json, const struct yaml *yaml)
{
	const struct yaml *below = yaml->first;

	if (json_kind(json) == JSON_OBJECT || json_kind(json) == JSON_ARRAY)
		BUG_ON(yaml->kind != (json_kind(json) == JSON_OBJECT ? YAML_MAP : YAML_LIST));
	else
		BUG_ON(yaml->kind != YAML_SCALAR);
	if (json_str(json))
		BUG_ON(!str_eq(json_str(json), yaml->text) || yaml_is_null(yaml));
	BUG_ON((json_kind(json) == JSON_NULL) != yaml_is_null(yaml));
	for (const struct json *item = json_first(json); item;
		item = json_next(item), below = below->next) {
		BUG_ON(!below || !str_eq(json_key(item), below->key));
		check_same(item, below);
	}
	BUG_ON(below);
}

static void check_yaml(const struct json *json)
{
	AUTO_BUF struct buf text;
	AUTO_YAML struct yaml *yaml = NULL;
	AUTO_ERR struct err err = {0};

	buf_init(&text, YAML_SIZE_MAX);
	yaml_print(json, &text);
	if (buf_check(&text, "the YAML", NULL) < 0)
		return;
	/* It may have more levels or members than are read. */
	if (yaml_parse(text.data, text.len, "f", &yaml, &err) == 0)
		check_same(json, yaml);
	else
		BUG_ON(!strstr(err.message, "more than") && !strstr(err.message, "deep") &&
			!strstr(err.message, "levels"));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_JSON struct json *pod = NULL, *overlay = NULL;
	AUTO_BUF struct buf after;
	AUTO_ERR struct err err = {0};

	buf_init(&after, JSON_SIZE_MAX);
	json_parse(pod_text, strlen(pod_text), JSON_SIZE_MAX, "pod", &pod, NULL);
	if (json_parse((const char *)data, size, TEXT_MAX, "overlay", &overlay, NULL) < 0)
		return 0;
	if (kube_overlay(pod, overlay, &err) < 0) {
		BUG_ON(err.id != E_KUBE_OVERLAY);
		json_print(pod, &after);
		BUG_ON(!str_eq(after.data, pod_text));
	} else {
		check_kept(pod);
	}
	check_yaml(pod);
	check_yaml(overlay);
	return 0;
}
