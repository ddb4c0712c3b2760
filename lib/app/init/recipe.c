/* SPDX-License-Identifier: Apache-2.0 */
#include "app/init/recipe.h"

#include <stdarg.h>
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
	char *limits;                  /* the file of them */
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
	free(recipe->limits);
	strv_done(&recipe->keys);
	strv_done(&recipe->packages);
	strv_done(&recipe->dirs);
	strv_done(&recipe->groups);
}

/* A string of HCL, in which nothing is a template. */
static void recipe_add_hcl(struct recipe *recipe, const char *text)
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

/* Add text with values in it: "%s" a scalar of YAML, "%l" a list of YAML (struct strv), "%h" a
 * string of HCL, "%c" a part of a comment; nothing else is special. */
static void recipe_add(struct recipe *recipe, const char *text, ...)
{
	va_list args;

	va_start(args, text);
	for (const char *at; (at = strchr(text, '%')); text = at + 2) {
		buf_add(recipe->out, text, (size_t)(at - text));
		if (at[1] == 'l') {
			recipe->is_bad |=
				!init_yaml_list(recipe->out, va_arg(args, const struct strv *));
			continue;
		}
		const char *value = va_arg(args, const char *);
		if (at[1] == 'h') {
			recipe_add_hcl(recipe, value);
		} else if (at[1] == 'c') {
			init_yaml_comment(recipe->out, value, RECIPE_SHOWN);
		} else {
			buf_adds(recipe->out, recipe->tag);
			recipe->is_bad |= !init_yaml_scalar(recipe->out, value);
		}
	}
	va_end(args);
	buf_adds(recipe->out, text);
}

/*
 * Facts
 */

/* The login of the first host that names one, else that of the caller. */
static char *recipe_user(
	const struct session *session, const char *name, const struct json *definition)
{
	const struct json *host = json_first(json_get(definition, "hosts"));
	const char *text = host                       ? json_str(host)
			   : str_starts(name, "ssh:") ? name + strlen("ssh:")
						      : name;

	while (text) {
		const char *at = strchr(text, '@');
		if (at && at != text)
			return mem_strndup(text, (size_t)(at - text));
		host = host ? json_next(host) : NULL;
		text = host ? json_str(host) : NULL;
	}
	return mem_strdup(session->env.user ? session->env.user : "root");
}

static void recipe_set(struct session *session, struct recipe *recipe)
{
	static const char *const packages[] = {"tar", "gzip", "coreutils", "util-linux", "git"};
	static const char *const dirs[] = {"dir", "caches"};
	const char *runtime = json_get_str(recipe->definition, "runtime");

	recipe->user = recipe_user(session, recipe->name, recipe->definition);
	recipe->limits = mem_printf("%s - nofile %d\n%s - memlock unlimited\n", recipe->user,
		RECIPE_NOFILE, recipe->user);
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

#define RECIPE_HEAD                                                                                \
	"# A host of target %c that passes `dlrun doctor`. Packages are called as in Debian and "  \
	"Ubuntu;\n# a GPU driver is left to the image.\n"

static void recipe_cloud_init(struct recipe *recipe)
{
	bool is_root = str_eq(recipe->user, "root");

	recipe_add(recipe, "#cloud-config\n" RECIPE_HEAD, recipe->name);
	recipe_add(recipe, "package_update: true\npackages: %l\n", &recipe->packages);
	if (!is_root) {
		strv_add(&recipe->groups, "render");
		recipe_add(recipe,
			"users:\n  - default\n  - name: %s\n    shell: /bin/bash\n    groups: %l\n",
			recipe->user, &recipe->groups);
		recipe_add(recipe, recipe->keys.n
					   ? "    ssh_authorized_keys:\n"
					   : "    # ssh_authorized_keys: there is no public key in "
					     "~/.ssh\n");
		vec_foreach (char *const, key, &recipe->keys)
			recipe_add(recipe, "      - %s\n", *key);
	}
	recipe_add(recipe, "write_files:\n  - path: " RECIPE_LIMITS_FILE "\n    content: %s\n",
		recipe->limits);
	if (is_root && recipe->dirs.n == 0)
		return;
	recipe_add(recipe, "runcmd:\n");
	if (!is_root)
		recipe_add(recipe,
			"  # Runs go on when the login ends.\n  - [loginctl, enable-linger, %s]\n",
			recipe->user);
	vec_foreach (char *const, dir, &recipe->dirs)
		recipe_add(recipe, "  - [install, -d, -m, \"0700\", -o, %s, %s]\n", recipe->user,
			*dir);
}

static void recipe_ansible(struct recipe *recipe)
{
	AUTO_FREE char *mark = mem_printf("/var/lib/systemd/linger/%s", recipe->user);

	recipe->tag = "!unsafe ";
	recipe_add(recipe, RECIPE_HEAD, recipe->name);
	recipe_add(recipe,
		"# ansible-playbook -i HOST, FILE\n"
		"- name: Hosts for dlrun\n"
		"  hosts: all\n"
		"  become: true\n"
		"  tasks:\n"
		"    - name: Programs\n"
		"      ansible.builtin.package:\n"
		"        name: %l\n"
		"        state: present\n",
		&recipe->packages);
	if (!str_eq(recipe->user, "root"))
		recipe_add(recipe,
			"\n    - name: The user\n"
			"      ansible.builtin.user:\n"
			"        name: %s\n"
			"        shell: /bin/bash\n"
			"        groups: %l\n"
			"        append: true\n"
			"\n    - name: Runs go on when the login ends\n"
			"      ansible.builtin.command:\n"
			"        argv: [loginctl, enable-linger, %s]\n"
			"        creates: %s\n",
			recipe->user, &recipe->groups, recipe->user, mark);
	recipe_add(recipe,
		"\n    - name: Limits\n"
		"      ansible.builtin.copy:\n"
		"        dest: " RECIPE_LIMITS_FILE "\n"
		"        mode: \"0644\"\n"
		"        content: %s\n",
		recipe->limits);
	vec_foreach (char *const, dir, &recipe->dirs)
		recipe_add(recipe,
			"\n    - name: A directory for runs\n"
			"      ansible.builtin.file:\n"
			"        path: %s\n"
			"        state: directory\n"
			"        mode: \"0700\"\n"
			"        owner: %s\n",
			*dir, recipe->user);
}

/*
 * Nodes of a cluster
 */

static void recipe_add_tag(
	struct recipe *recipe, const char *what, const char *key, const char *value)
{
	AUTO_FREE char *name = mem_printf("k8s.io/cluster-autoscaler/%s%s", what, key);

	recipe_add(recipe, "      %h = %h\n", name, value);
}

/* The effect as AWS writes it, of one that Kubernetes has. */
static const char *recipe_effect(const char *effect)
{
	return str_eq(effect, "NoExecute")          ? "NO_EXECUTE"
	       : str_eq(effect, "PreferNoSchedule") ? "PREFER_NO_SCHEDULE"
						    : "NO_SCHEDULE";
}

static void recipe_add_group(struct recipe *recipe, const char *name, const struct json *type)
{
	const struct json *labels = json_get(type, "node_selector"), *item;
	const struct json *tolerations = json_get(type, "tolerations");
	const char *resource = json_get_str(type, "resource");

	recipe_add(recipe, "  %h = {\n    labels = {\n", name);
	for (item = json_first(labels); item; item = json_next(item))
		recipe_add(recipe, "      %h = %h\n", json_key(item), json_str(item));
	recipe_add(recipe, "    }\n    taints = [\n");
	for (item = json_first(tolerations); item; item = json_next(item)) {
		const char *key = json_get_str(item, "key"), *value = json_get_str(item, "value");
		if (!str_empty(key))
			recipe_add(recipe, "      { key = %h, value = %h, effect = %h },\n", key,
				value ? value : "", recipe_effect(json_get_str(item, "effect")));
	}
	recipe_add(recipe, "    ]\n    tags = {\n");
	recipe_add_tag(recipe, "enabled", "", "true");
	for (item = json_first(labels); item; item = json_next(item))
		recipe_add_tag(recipe, "node-template/label/", json_key(item), json_str(item));
	for (item = json_first(tolerations); item; item = json_next(item)) {
		const char *key = json_get_str(item, "key"), *value = json_get_str(item, "value");
		const char *effect = json_get_str(item, "effect");
		AUTO_FREE char *text = mem_printf(
			"%s:%s", value ? value : "", str_empty(effect) ? "NoSchedule" : effect);
		if (!str_empty(key))
			recipe_add_tag(recipe, "node-template/taint/", key, text);
	}
	recipe_add(recipe,
		"      # From none to the first node it has to know the GPUs of each:\n"
		"      # \"k8s.io/cluster-autoscaler/node-template/resources/%c\" = \"8\"\n"
		"    }\n  }\n",
		resource ? resource : "nvidia.com/gpu");
}

static void recipe_terraform(struct recipe *recipe)
{
	const struct json *type = json_first(json_get(recipe->definition, "gpu_types"));

	recipe_add(recipe,
		"# Groups of nodes for target %c, as FILE.auto.tfvars: one for each of "
		"gpu_types:. Labels and taints are those\n# of its pods, tags of the Auto Scaling "
		"group tell them to the cluster autoscaler.\nnode_groups = {\n",
		recipe->name);
	if (!type)
		recipe_add_group(recipe, recipe->name, NULL);
	for (; type; type = json_next(type))
		recipe_add_group(recipe, json_key(type), type);
	recipe_add(recipe, "}\n");
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
