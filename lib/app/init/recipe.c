/* SPDX-License-Identifier: Apache-2.0 */
#include "app/init/recipe.h"

#include <stdlib.h>
#include <string.h>

#include "app/init/init_parse.h"
#include "base/os/fs.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/target_names.h"
#include "targets/targets.h"

enum { RECIPE_KEY_MAX = 16 << 10, RECIPE_SHOWN = 80 };

#define RECIPE_LIMITS_FILE "/etc/security/limits.d/90-dlrun.conf"
#define RECIPE_NOFILE      1048576 /* the hard limit that systemd gives, as many loaders need */

/* Facts about the target. */
struct recipe {
	const char *name;
	const struct json *definition; /* NULL: a host that the configuration does not know */
	char *user;                    /* who logs in */
	struct strv keys;              /* public ones, a line each */
	struct strv packages;
	struct strv dirs;   /* that the user may write to */
	struct strv groups; /* of the user */
	/* In front of each scalar: "!unsafe " where the reader takes texts for templates. */
	const char *tag;
	struct buf *out;
	bool is_bad; /* something is not UTF-8 */
};

static void recipe_done(struct recipe *recipe)
{
	free(recipe->user);
	strv_done(&recipe->keys);
	strv_done(&recipe->packages);
	strv_done(&recipe->dirs);
	strv_done(&recipe->groups);
}

static void recipe_comment(struct recipe *recipe, const char *text)
{
	init_yaml_comment(recipe->out, text, RECIPE_SHOWN);
}

static void recipe_scalar(struct recipe *recipe, const char *text)
{
	buf_adds(recipe->out, recipe->tag);
	recipe->is_bad |= !init_yaml_scalar(recipe->out, text);
}

static void recipe_list(struct recipe *recipe, const struct strv *words)
{
	recipe->is_bad |= !init_yaml_list(recipe->out, words);
}

/*
 * Facts
 */

/* The login of the first host that names one, else that of the caller. */
static char *recipe_user(
	const struct session *session, const char *name, const struct json *definition)
{
	const struct json *hosts = json_get(definition, "hosts");
	AUTO_STRV struct strv list = {0};

	for (const struct json *host = hosts ? json_first(hosts) : NULL; host;
		host = json_next(host))
		strv_add(&list, json_str(host));
	if (list.n == 0)
		strv_add(&list, str_starts(name, "ssh:") ? name + strlen("ssh:") : name);
	for (size_t i = 0; i < list.n; i++) {
		const char *at = strchr(list.v[i], '@');
		if (at && at != list.v[i])
			return mem_strndup(list.v[i], (size_t)(at - list.v[i]));
	}
	return mem_strdup(session->env.user ? session->env.user : "root");
}

static void recipe_set(struct session *session, struct recipe *recipe)
{
	static const char *const packages[] = {"tar", "gzip", "coreutils", "util-linux", "git"};
	static const char *const dirs[] = {"dir", "caches"};
	const char *runtime = json_get_str(recipe->definition, "runtime");

	recipe->user = recipe_user(session, recipe->name, recipe->definition);
	static const char *const names[] = {
		".ssh/id_ed25519.pub", ".ssh/id_ecdsa.pub", ".ssh/id_rsa.pub"};

	for (size_t i = 0; session->dirs.home && i < ARRAY_LEN(names); i++) {
		AUTO_FREE char *path = fs_join(session->dirs.home, names[i]);
		AUTO_BUF struct buf text = {0};
		if (fs_read_regular(path, RECIPE_KEY_MAX, &text, NULL, NULL, NULL) < 0)
			continue;
		AUTO_FREE char *line = mem_strndup(text.data, strcspn(text.data, "\r\n"));
		if (*line)
			strv_add(&recipe->keys, line);
	}
	for (size_t i = 0; i < ARRAY_LEN(packages); i++)
		strv_add(&recipe->packages, packages[i]);
	strv_add(&recipe->groups, "video");
	if (str_eq(runtime, "podman")) {
		strv_add(&recipe->packages, "podman");
	} else if (str_eq(runtime, "docker")) {
		strv_add(&recipe->packages, "docker.io");
		/* Members may use the socket. */
		strv_add(&recipe->groups, "docker");
	}
	for (size_t i = 0; i < ARRAY_LEN(dirs); i++) {
		const char *dir = json_get_str(recipe->definition, dirs[i]);
		if (dir && *dir == '/')
			strv_add(&recipe->dirs, dir);
	}
}

/*
 * Hosts
 */

static void recipe_add_head(struct recipe *recipe)
{
	buf_adds(recipe->out, "# A host of target ");
	recipe_comment(recipe, recipe->name);
	buf_adds(recipe->out, " that passes `dlrun doctor`. Packages are called as in Debian and "
			      "Ubuntu;\n# a GPU driver is left to the image.\n");
}

static void recipe_add_user(struct recipe *recipe)
{
	buf_adds(recipe->out, "users:\n  - default\n  - name: ");
	recipe_scalar(recipe, recipe->user);
	buf_adds(recipe->out, "\n    shell: /bin/bash\n    groups: ");
	strv_add(&recipe->groups, "render");
	recipe_list(recipe, &recipe->groups);
	buf_addc(recipe->out, '\n');
	if (recipe->keys.n == 0) {
		buf_adds(recipe->out,
			"    # ssh_authorized_keys: there is no public key in ~/.ssh\n");
		return;
	}
	buf_adds(recipe->out, "    ssh_authorized_keys:\n");
	vec_foreach (char *const, key, &recipe->keys) {
		buf_adds(recipe->out, "      - ");
		recipe_scalar(recipe, *key);
		buf_addc(recipe->out, '\n');
	}
}

static void recipe_add_limits(struct recipe *recipe, const char *key)
{
	AUTO_FREE char *text = mem_printf("%s - nofile %d\n%s - memlock unlimited\n", recipe->user,
		RECIPE_NOFILE, recipe->user);

	buf_adds(recipe->out, key);
	recipe_scalar(recipe, text);
	buf_addc(recipe->out, '\n');
}

static void recipe_cloud_init(struct recipe *recipe)
{
	struct buf *out = recipe->out;
	bool is_root = str_eq(recipe->user, "root");

	buf_adds(out, "#cloud-config\n");
	recipe_add_head(recipe);
	buf_adds(out, "package_update: true\npackages: ");
	recipe_list(recipe, &recipe->packages);
	buf_addc(out, '\n');
	if (!is_root)
		recipe_add_user(recipe);
	buf_adds(out, "write_files:\n  - path: " RECIPE_LIMITS_FILE "\n");
	recipe_add_limits(recipe, "    content: ");
	if (is_root && recipe->dirs.n == 0)
		return;
	buf_adds(out, "runcmd:\n");
	if (!is_root) {
		buf_adds(
			out, "  # Runs go on when the login ends.\n  - [loginctl, enable-linger, ");
		recipe_scalar(recipe, recipe->user);
		buf_adds(out, "]\n");
	}
	vec_foreach (char *const, dir, &recipe->dirs) {
		buf_adds(out, "  - [install, -d, -m, \"0700\", -o, ");
		recipe_scalar(recipe, recipe->user);
		buf_adds(out, ", ");
		recipe_scalar(recipe, *dir);
		buf_adds(out, "]\n");
	}
}

static void recipe_add_task(struct recipe *recipe, const char *name, const char *module)
{
	buf_addf(recipe->out, "\n    - name: %s\n      ansible.builtin.%s:\n", name, module);
}

static void recipe_add_pair(struct recipe *recipe, const char *key, const char *value)
{
	buf_addf(recipe->out, "        %s: ", key);
	recipe_scalar(recipe, value);
	buf_addc(recipe->out, '\n');
}

static void recipe_ansible(struct recipe *recipe)
{
	struct buf *out = recipe->out;

	recipe->tag = "!unsafe ";
	recipe_add_head(recipe);
	buf_adds(out, "# ansible-playbook -i HOST, FILE\n- name: Hosts for dlrun\n  hosts: all\n"
		      "  become: true\n  tasks:");
	recipe_add_task(recipe, "Programs", "package");
	buf_adds(out, "        name: ");
	recipe_list(recipe, &recipe->packages);
	buf_adds(out, "\n        state: present\n");
	if (!str_eq(recipe->user, "root")) {
		recipe_add_task(recipe, "The user", "user");
		recipe_add_pair(recipe, "name", recipe->user);
		buf_adds(out, "        shell: /bin/bash\n        groups: ");
		recipe_list(recipe, &recipe->groups);
		buf_adds(out, "\n        append: true\n");
		AUTO_FREE char *mark = mem_printf("/var/lib/systemd/linger/%s", recipe->user);

		recipe_add_task(recipe, "Runs go on when the login ends", "command");
		buf_adds(out, "        argv: [loginctl, enable-linger, ");
		recipe_scalar(recipe, recipe->user);
		buf_adds(out, "]\n");
		recipe_add_pair(recipe, "creates", mark);
	}
	recipe_add_task(recipe, "Limits", "copy");
	buf_adds(out, "        dest: " RECIPE_LIMITS_FILE "\n        mode: \"0644\"\n");
	recipe_add_limits(recipe, "        content: ");
	vec_foreach (char *const, dir, &recipe->dirs) {
		recipe_add_task(recipe, "A directory for runs", "file");
		recipe_add_pair(recipe, "path", *dir);
		buf_adds(out, "        state: directory\n        mode: \"0700\"\n");
		recipe_add_pair(recipe, "owner", recipe->user);
	}
}

/*
 * Nodes of a cluster
 */

/* A string of HCL, in which nothing is a template. */
static void recipe_hcl(struct recipe *recipe, const char *text)
{
	struct buf *out = recipe->out;

	recipe->is_bad |= !str_is_utf8(text, strlen(text));
	buf_addc(out, '"');
	for (; *text; text++) {
		if ((unsigned char)*text < ' ')
			buf_addf(out, "\\u%04x", (unsigned char)*text);
		else if ((*text == '$' || *text == '%') && text[1] == '{')
			buf_addf(out, "%c%c", *text, *text);
		else if (*text == '"' || *text == '\\')
			buf_addf(out, "\\%c", *text);
		else
			buf_addc(out, *text);
	}
	buf_addc(out, '"');
}

static void recipe_add_tag(
	struct recipe *recipe, const char *what, const char *key, const char *value)
{
	AUTO_FREE char *name = mem_printf("k8s.io/cluster-autoscaler/%s%s", what, key);

	buf_adds(recipe->out, "      ");
	recipe_hcl(recipe, name);
	buf_adds(recipe->out, " = ");
	recipe_hcl(recipe, value);
	buf_addc(recipe->out, '\n');
}

/* The effect as AWS writes it, of one that Kubernetes has. */
static const char *recipe_effect(const char *effect)
{
	return str_eq(effect, "NoExecute")          ? "NO_EXECUTE"
	       : str_eq(effect, "PreferNoSchedule") ? "PREFER_NO_SCHEDULE"
						    : "NO_SCHEDULE";
}

static void recipe_add_taint_tags(struct recipe *recipe, const struct json *tolerations)
{
	const struct json *item = tolerations ? json_first(tolerations) : NULL;

	for (; item; item = json_next(item)) {
		const char *key = json_get_str(item, "key"), *value = json_get_str(item, "value");
		const char *effect = json_get_str(item, "effect");
		AUTO_FREE char *text = mem_printf(
			"%s:%s", value ? value : "", str_empty(effect) ? "NoSchedule" : effect);
		if (!str_empty(key))
			recipe_add_tag(recipe, "node-template/taint/", key, text);
	}
}

static void recipe_add_group(struct recipe *recipe, const char *name, const struct json *type)
{
	const struct json *labels = json_get(type, "node_selector");
	const struct json *tolerations = json_get(type, "tolerations"), *label;
	const char *resource = json_get_str(type, "resource");
	struct buf *out = recipe->out;

	buf_adds(out, "  ");
	recipe_hcl(recipe, name);
	buf_adds(out, " = {\n    labels = {\n");
	for (label = labels ? json_first(labels) : NULL; label; label = json_next(label)) {
		buf_adds(out, "      ");
		recipe_hcl(recipe, json_key(label));
		buf_adds(out, " = ");
		recipe_hcl(recipe, json_str(label));
		buf_addc(out, '\n');
	}
	buf_adds(out, "    }\n");
	const struct json *item = tolerations ? json_first(tolerations) : NULL;

	buf_adds(out, "    taints = [\n");
	for (; item; item = json_next(item)) {
		const char *key = json_get_str(item, "key"), *value = json_get_str(item, "value");
		if (str_empty(key))
			continue;
		buf_adds(out, "      { key = ");
		recipe_hcl(recipe, key);
		buf_adds(out, ", value = ");
		recipe_hcl(recipe, value ? value : "");
		buf_addf(
			out, ", effect = \"%s\" },\n", recipe_effect(json_get_str(item, "effect")));
	}
	buf_adds(out, "    ]\n");
	buf_adds(out, "    tags = {\n");
	recipe_add_tag(recipe, "enabled", "", "true");
	for (label = labels ? json_first(labels) : NULL; label; label = json_next(label))
		recipe_add_tag(recipe, "node-template/label/", json_key(label), json_str(label));
	recipe_add_taint_tags(recipe, tolerations);
	buf_adds(out, "      # From none to the first node it has to know the GPUs of each:\n"
		      "      # \"k8s.io/cluster-autoscaler/node-template/resources/");
	recipe_comment(recipe, resource ? resource : "nvidia.com/gpu");
	buf_adds(out, "\" = \"8\"\n    }\n  }\n");
}

static void recipe_terraform(struct recipe *recipe)
{
	const struct json *types = json_get(recipe->definition, "gpu_types");
	const struct json *type = types ? json_first(types) : NULL;

	buf_adds(recipe->out, "# Groups of nodes for target ");
	recipe_comment(recipe, recipe->name);
	buf_adds(recipe->out,
		", as FILE.auto.tfvars: one for each of gpu_types:. Labels and taints are "
		"those\n# of its pods, tags of the Auto Scaling group tell them to the "
		"cluster autoscaler.\nnode_groups = {\n");
	if (!type)
		recipe_add_group(recipe, recipe->name, NULL);
	for (; type; type = json_next(type))
		recipe_add_group(recipe, json_key(type), type);
	buf_adds(recipe->out, "}\n");
}

/*
 * All of them
 */

static int recipe_fail_kind(const char *name, const char *form, bool is_cluster, struct err *err)
{
	AUTO_FREE char *shown = str_shown(name);

	err_set(err, E_USAGE, "--recipe %s is for %s, and target %s is %s", form,
		str_eq(form, "terraform") ? "clusters" : "SSH hosts", shown,
		is_cluster ? "a cluster" : "not one");
	if (is_cluster)
		return err_hint(err, "dlrun targets --recipe terraform %s", shown);
	return err_hint(err, "dlrun targets");
}

int recipe_text(struct session *session, const char *name, const char *form, struct buf *out,
	struct err *err)
{
	AUTO_FREE char *first = NULL;
	AUTO(recipe_done) struct recipe recipe = {.out = out, .tag = ""};
	struct config *config;

	int r = session_config(session, &config, err);
	if (r < 0)
		return r;
	if (!name)
		name = first = target_names_first(config, config_str(config, "target"));
	name = name ? name : "local";
	const struct target_ops *ops = target_ops_named(config, name);
	bool is_cluster = ops && ops->needs_image, is_host = ops && !is_cluster && !ops->is_here;
	if (str_eq(form, "terraform") ? !is_cluster : !is_host)
		return recipe_fail_kind(name, form, is_cluster, err);
	recipe.name = name;
	recipe.definition = config_target(config, name);
	if (is_cluster) {
		recipe_terraform(&recipe);
	} else {
		recipe_set(session, &recipe);
		if (str_eq(form, "ansible"))
			recipe_ansible(&recipe);
		else
			recipe_cloud_init(&recipe);
	}
	if (recipe.is_bad)
		return err_set(err, E_CONFIG, "the recipe would hold text that is not UTF-8");
	return out->full ? err_set(err, E_DATA_LIMIT, "the recipe is too long") : 0;
}
