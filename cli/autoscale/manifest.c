/* SPDX-License-Identifier: Apache-2.0 */
/* Objects that run the autoscaler in the cluster itself, for `kubectl apply`. */
#include <string.h>

#include "base/data/yaml.h"
#include "base/os/fs.h"
#include "base/util/digest.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/autoscale/autoscale.h"
#include "cli/term/ui.h"

enum { MANIFEST_MAX = 8 << 20, IMAGE_MAX = 512 };

#define SYSTEM     "  namespace: dlrun-system\n"
#define RBAC       "apiVersion: rbac.authorization.k8s.io/v1\n"
#define RBAC_GROUP "apiGroup: rbac.authorization.k8s.io"

/* In the order in which they can be created. Rights are what lib/app/autoscale asks the API server
 * for; `create` cannot be bound to names. */
static const char *const manifest_objects[] = {
	"apiVersion: v1\n"
	"kind: Namespace\n"
	"metadata:\n"
	"  name: dlrun-system\n"
	"  labels: {pod-security.kubernetes.io/enforce: restricted}\n",

	"apiVersion: v1\n"
	"kind: ServiceAccount\n"
	"metadata:\n"
	"  name: dlrun-autoscale\n" SYSTEM,

	RBAC "kind: ClusterRole\n"
	     "metadata:\n"
	     "  name: dlrun-autoscale\n"
	     "rules:\n"
	     "- apiGroups: ['']\n"
	     "  resources: [nodes]\n"
	     "  verbs: [delete, get, list, patch]\n"
	     "- apiGroups: ['']\n"
	     "  resources: [persistentvolumeclaims, persistentvolumes, pods]\n"
	     "  verbs: [list]\n"
	     "- apiGroups: [batch]\n"
	     "  resources: [jobs]\n"
	     "  verbs: [list]\n"
	     "- apiGroups: [jobset.x-k8s.io]\n"
	     "  resources: [jobsets]\n"
	     "  verbs: [list]\n"
	     "- apiGroups: [kueue.x-k8s.io]\n"
	     "  resources: [workloads]\n"
	     "  verbs: [list]\n"
	     "- apiGroups: [scheduling.volcano.sh, scheduling.x-k8s.io]\n"
	     "  resources: [podgroups]\n"
	     "  verbs: [list]\n",

	RBAC "kind: ClusterRoleBinding\n"
	     "metadata:\n"
	     "  name: dlrun-autoscale\n"
	     "roleRef: {" RBAC_GROUP ", kind: ClusterRole, name: dlrun-autoscale}\n"
	     "subjects:\n"
	     "- {kind: ServiceAccount, name: dlrun-autoscale, namespace: dlrun-system}\n",

	RBAC "kind: Role\n"
	     "metadata:\n"
	     "  name: dlrun-autoscale\n" SYSTEM "rules:\n"
	     "- apiGroups: ['']\n"
	     "  resources: [configmaps]\n"
	     "  verbs: [create]\n"
	     "- apiGroups: ['']\n"
	     "  resources: [configmaps]\n"
	     "  resourceNames: [dlrun-autoscale, dlrun-autoscale-state]\n"
	     "  verbs: [get, update]\n"
	     "- apiGroups: [coordination.k8s.io]\n"
	     "  resources: [leases]\n"
	     "  verbs: [create]\n"
	     "- apiGroups: [coordination.k8s.io]\n"
	     "  resources: [leases]\n"
	     "  resourceNames: [dlrun-autoscale]\n"
	     "  verbs: [get, update]\n",

	RBAC "kind: RoleBinding\n"
	     "metadata:\n"
	     "  name: dlrun-autoscale\n" SYSTEM "roleRef: {" RBAC_GROUP
	     ", kind: Role, name: dlrun-autoscale}\n"
	     "subjects:\n"
	     "- {kind: ServiceAccount, name: dlrun-autoscale, namespace: dlrun-system}\n",

	/* The ConfigMap that says what grows is for everybody who may log in. */
	RBAC "kind: Role\n"
	     "metadata:\n"
	     "  name: dlrun-autoscale-read\n" SYSTEM "rules:\n"
	     "- apiGroups: ['']\n"
	     "  resources: [configmaps]\n"
	     "  resourceNames: [dlrun-autoscale]\n"
	     "  verbs: [get]\n",

	RBAC "kind: RoleBinding\n"
	     "metadata:\n"
	     "  name: dlrun-autoscale-read\n" SYSTEM "roleRef: {" RBAC_GROUP
	     ", kind: Role, name: dlrun-autoscale-read}\n"
	     "subjects:\n"
	     "- {" RBAC_GROUP ", kind: Group, name: 'system:authenticated'}\n",
};

static const char manifest_settings[] = "apiVersion: v1\n"
					"kind: ConfigMap\n"
					"metadata:\n"
					"  name: dlrun-autoscale-settings\n" SYSTEM;

static const char manifest_deployment[] =
	"apiVersion: apps/v1\n"
	"kind: Deployment\n"
	"metadata:\n"
	"  name: dlrun-autoscale\n" SYSTEM "spec:\n"
	"  replicas: 1\n"
	"  strategy: {type: Recreate}\n"
	"  selector:\n"
	"    matchLabels: {app.kubernetes.io/name: dlrun-autoscale}\n"
	"  template:\n"
	"    metadata:\n"
	"      labels: {app.kubernetes.io/name: dlrun-autoscale}\n"
	"    spec:\n"
	"      serviceAccountName: dlrun-autoscale\n"
	"      enableServiceLinks: false\n"
	"      securityContext:\n"
	"        runAsNonRoot: true\n"
	"        runAsUser: 65532\n"
	"        runAsGroup: 65532\n"
	"        fsGroup: 65532\n"
	"        seccompProfile: {type: RuntimeDefault}\n"
	"      shareProcessNamespace: true\n"
	"      volumes:\n"
	"      - {name: home, emptyDir: {}}\n"
	"      - name: settings\n"
	"        configMap: {name: dlrun-autoscale-settings}\n"
	"      containers:\n"
	"      - name: autoscale\n"
	"        command: [dlrun, autoscale, run, -t, kube, --settings,\n"
	"          /etc/dlrun/autoscale.yaml, --apply]\n"
	"        env:\n"
	"        - {name: HOME, value: /home/dlrun}\n"
	"        - {name: TMPDIR, value: /home/dlrun}\n"
	"        resources:\n"
	"          requests: {cpu: 100m, memory: 128Mi}\n"
	"          limits: {memory: 1Gi}\n"
	"        securityContext:\n"
	"          allowPrivilegeEscalation: false\n"
	"          readOnlyRootFilesystem: true\n"
	"          capabilities: {drop: [ALL]}\n"
	"        volumeMounts:\n"
	"        - {name: home, mountPath: /home/dlrun}\n"
	"        - {name: settings, mountPath: /etc/dlrun, readOnly: true}\n";

static struct json *manifest_object(const char *text)
{
	AUTO_YAML struct yaml *yaml = NULL;

	BUG_ON(yaml_parse(text, strlen(text), "the manifest", &yaml, NULL) < 0);
	return yaml_to_json(yaml);
}

static void manifest_add(struct json *take, struct buf *out)
{
	AUTO_JSON struct json *json = take;

	if (out->len)
		buf_adds(out, "---\n");
	yaml_print(json, out);
}

/* The loop serves /metrics also while a turn waits for the cluster or a provider. */
static const char manifest_probe[] = "httpGet: {path: /metrics, port: metrics}\n"
				     "periodSeconds: 30\n"
				     "timeoutSeconds: 10\n"
				     "failureThreshold: 4\n";

static void manifest_metrics(int port, struct json *annotations, struct json *container)
{
	AUTO_FREE char *text = mem_printf("%d", port);
	struct json *ports = json_array(), *item = json_object();

	json_set_str(annotations, "prometheus.io/scrape", "true");
	json_set_str(annotations, "prometheus.io/port", text);
	json_set_str(item, "name", "metrics");
	json_set_int(item, "containerPort", port);
	json_add(ports, item);
	json_set(container, "ports", ports);
	json_set(container, "livenessProbe", manifest_object(manifest_probe));
}

/* settings: NULL where they come from elsewhere. With them the pod is another one when they are
 * others: they are read at its start. */
static struct json *manifest_workload(
	const char *image, const struct scale_settings *settings, const struct buf *text)
{
	struct json *json = manifest_object(manifest_deployment);
	struct json *template = json_sub(json_sub(json, "spec"), "template"),
		    *spec = json_sub(template, "spec"), *containers = json_array();
	struct json *container = json_clone(json_first(json_get(spec, "containers")));
	uint8_t sum[SHA256_SIZE];
	char digest[DIGEST_TEXT_SIZE];

	json_set_str(container, "image", image);
	if (settings) {
		struct json *annotations = json_sub(json_sub(template, "metadata"), "annotations");
		digest_sha256(text->data, text->len, sum);
		digest_text(sum, digest);
		json_set_str(annotations, "dlrun.io/settings", digest);
		if (settings_metrics_port(settings))
			manifest_metrics(settings_metrics_port(settings), annotations, container);
	}
	json_add(containers, container);
	json_set(spec, "containers", containers);
	return json;
}

static int manifest_check(const struct autoscale_values *values, struct err *err)
{
	if (!values->image) {
		err_set(err, E_USAGE, "manifest needs --image IMAGE");
		return err_hint(
			err, "dlrun autoscale manifest --image registry.example.com/dlrun:1");
	}
	if (!*values->image || strlen(values->image) > IMAGE_MAX || strchr(values->image, ' ') ||
		!str_is_plain(values->image)) {
		AUTO_FREE char *shown = str_shown(values->image);
		return err_set(err, E_USAGE, "'%s' is not a valid name of an image", shown);
	}
	return 0;
}

static int manifest_make(const struct autoscale_values *values, struct buf *out, struct err *err)
{
	AUTO_BUF struct buf text = buf_with(SETTINGS_SIZE_MAX);
	AUTO_SETTINGS struct scale_settings *settings = NULL;
	int r = manifest_check(values, err);

	if (r == 0 && values->settings)
		r = fs_read(values->settings, SETTINGS_SIZE_MAX, &text, NULL, err);
	if (r == 0 && values->settings)
		r = settings_parse(text.data, text.len, values->settings, &settings, err);
	if (r < 0)
		return r;
	for (size_t i = 0; i < ARRAY_LEN(manifest_objects); i++)
		manifest_add(manifest_object(manifest_objects[i]), out);
	if (settings) {
		struct json *map = manifest_object(manifest_settings);
		json_set_str(json_sub(map, "data"), "autoscale.yaml", text.data);
		manifest_add(map, out);
	}
	manifest_add(manifest_workload(values->image, settings, &text), out);
	return buf_check(out, "the manifest", err);
}

int autoscale_manifest(struct app *app, const struct autoscale_values *values)
{
	AUTO_BUF struct buf out = buf_with(MANIFEST_MAX);
	AUTO_ERR struct err err = {0};

	if (manifest_make(values, &out, &err) < 0)
		return app_fail(app, &err);
	if (!values->settings)
		app_note(app, "without --settings, the ConfigMap dlrun-autoscale-settings must "
			      "exist, with the key autoscale.yaml");
	return ui_print(app, UI_OUT, out.data, out.len) < 0;
}
