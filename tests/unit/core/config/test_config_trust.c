/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <sys/stat.h>

#include "base/util/str.h"
#include "core/config/config_trust.h"
#include "tests/unit/tmpfix.h"

enum { ME = 1000, OTHER = 65534, ROOT = 0 };

/*
 * Every key, and who may set it. A key without a row here fails the test: whoever adds one decides.
 */

static const struct row {
	const char *key;
	enum config_setter by;
	const char *text; /* a file that sets it */
} rows[] = {
	{"name", CONFIG_BY_PROJECT, "name: a"},
	{"target", CONFIG_BY_PROJECT, "target: lab"},
	{"target", CONFIG_BY_PROJECT, "target: [lab, eu]"},
	{"spill_after", CONFIG_BY_PROJECT, "spill_after: 10m"},
	{"command", CONFIG_BY_PROJECT, "command: [a]"},
	{"image", CONFIG_BY_PROJECT, "image: a.example/b"},
	{"bases", CONFIG_BY_PROJECT, "bases: [a.example/python]"},
	{"entrypoint", CONFIG_BY_PROJECT, "entrypoint: none"},
	{"workdir", CONFIG_BY_PROJECT, "workdir: /x"},
	{"platform", CONFIG_BY_PROJECT, "platform: linux/arm64"},
	{"compression", CONFIG_BY_PROJECT, "compression: zstd"},
	{"registry", CONFIG_BY_PROJECT, "registry: a.example/x"},
	{"registry.push", CONFIG_BY_PROJECT, "registry: {push: a.example/x, pull: b.example/x}"},
	{"registry.pull", CONFIG_BY_PROJECT, "registry: {push: a.example/x, pull: b.example/x}"},
	{"registry.ca", CONFIG_BY_CONFIRMED, "registry: {push: a.example/x, ca: ca.pem}"},
	{"registry.cert", CONFIG_BY_CONFIRMED,
		"registry: {push: a.example/x, cert: c.pem, key: k.pem}"},
	{"registry.key", CONFIG_BY_CONFIRMED,
		"registry: {push: a.example/x, cert: c.pem, key: k.pem}"},
	{"registry.insecure", CONFIG_BY_CONFIRMED, "registry: {push: a.example/x, insecure: true}"},
	{"registry.forward", CONFIG_BY_CONFIRMED,
		"registry: {push: a.example/x, forward: \"n/s:5000\"}"},
	{"registry_realms", CONFIG_BY_USER, "registry_realms: [auth.example.net]"},
	{"push_timeout", CONFIG_BY_PROJECT, "push_timeout: 1m"},
	{"env", CONFIG_BY_PROJECT, "env: {A: b}"},
	{"secrets", CONFIG_BY_PROJECT, "secrets: [TOKEN]"},
	{"secrets", CONFIG_BY_PROJECT, "secrets: {TOKEN: \"@token\"}"},
	{"secrets", CONFIG_BY_TREE, "secrets: {TOKEN: \"@/etc/passwd\"}"},
	{"secrets", CONFIG_BY_TREE, "secrets: {TOKEN: \"@../outside\"}"},
	{"secrets", CONFIG_BY_TREE, "secrets: {TOKEN: \"@link\"}"},
	{"secrets", CONFIG_BY_TREE, "secrets: {TOKEN: \"@~/x\"}"},
	{"before", CONFIG_BY_PROJECT, "before: a"},
	{"setup", CONFIG_BY_PROJECT, NULL},
	{"setup.run", CONFIG_BY_PROJECT, "setup: {run: a, key: [b]}"},
	{"setup.key", CONFIG_BY_PROJECT, "setup: {run: a, key: [b]}"},
	{"environment", CONFIG_BY_PROJECT, NULL},
	{"environment.lock", CONFIG_BY_PROJECT, "environment: {lock: uv.lock}"},
	{"data", CONFIG_BY_PROJECT, "data: [a]"},
	{"outputs", CONFIG_BY_PROJECT, "outputs: [a]"},
	{"tensorboard", CONFIG_BY_PROJECT, "tensorboard: [a]"},
	{"collect", CONFIG_BY_PROJECT, "collect: none"},
	{"collect.exclude", CONFIG_BY_PROJECT, "collect: {exclude: [a]}"},
	{"collect.size", CONFIG_BY_PROJECT, "collect: {size: 1Gi}"},
	{"linger", CONFIG_BY_PROJECT, "linger: 1m"},
	{"ports", CONFIG_BY_PROJECT, "ports: [80]"},
	{"paths", CONFIG_BY_PROJECT, "paths: [a]"},
	{"include", CONFIG_BY_PROJECT, "include: [a]"},
	{"allow", CONFIG_BY_PROJECT, "allow: [a]"},
	{"limits", CONFIG_BY_PROJECT, NULL},
	{"limits.size", CONFIG_BY_PROJECT, "limits: {size: 1Gi}"},
	{"limits.files", CONFIG_BY_PROJECT, "limits: {files: 1}"},
	{"limits.file", CONFIG_BY_PROJECT, "limits: {file: 1Gi}"},
	{"timeout", CONFIG_BY_PROJECT, "timeout: 1m"},
	{"grace", CONFIG_BY_PROJECT, "grace: 1m"},
	{"launcher", CONFIG_BY_PROJECT, "launcher: torchrun"},
	{"retries", CONFIG_BY_PROJECT, "retries: 1"},
	{"signal", CONFIG_BY_PROJECT, "signal: USR1@9"},
	{"stop_signal", CONFIG_BY_PROJECT, "stop_signal: INT"},
	{"resources", CONFIG_BY_PROJECT, NULL},
	{"resources.nodes", CONFIG_BY_PROJECT, "resources: {nodes: 2}"},
	{"resources.gpus", CONFIG_BY_PROJECT, "resources: {gpus: 2}"},
	{"resources.gpu_type", CONFIG_BY_PROJECT, "resources: {gpu_type: a}"},
	{"resources.region", CONFIG_BY_PROJECT, "resources: {region: a}"},
	{"resources.instance_type", CONFIG_BY_PROJECT, "resources: {instance_type: a}"},
	{"resources.same", CONFIG_BY_PROJECT, "resources: {same: zone}"},
	{"resources.spot", CONFIG_BY_PROJECT, "resources: {spot: true}"},
	{"resources.cpus", CONFIG_BY_PROJECT, "resources: {cpus: 2}"},
	{"resources.memory", CONFIG_BY_PROJECT, "resources: {memory: 1Gi}"},
	{"resources.shm", CONFIG_BY_PROJECT, "resources: {shm: 1Gi}"},
	{"resources.disk", CONFIG_BY_PROJECT, "resources: {disk: 1Gi}"},
	{"roles", CONFIG_BY_PROJECT, "roles: {a: {nodes: 2, command: b}}"},
	{"ends_with", CONFIG_BY_PROJECT, "ends_with: a"},
	{"queue", CONFIG_BY_PROJECT, "queue: a"},
	{"priority", CONFIG_BY_PROJECT, "priority: a"},
	{"group", CONFIG_BY_PROJECT, "group: a"},
	{"offline", CONFIG_BY_PROJECT, "offline: fail"},
	{"sweep", CONFIG_BY_PROJECT, NULL},
	{"sweep.over", CONFIG_BY_PROJECT, "sweep: {over: {lr: [0.1, 0.03]}}"},
	{"sweep.parallel", CONFIG_BY_PROJECT, "sweep: {parallel: 4}"},
	{"sweep.sample", CONFIG_BY_PROJECT, "sweep: {sample: 20}"},
	{"sweep.seed", CONFIG_BY_PROJECT, "sweep: {seed: 1}"},
	{"sweep.zip", CONFIG_BY_PROJECT, "sweep: {zip: true}"},
	{"sweep.fail_fast", CONFIG_BY_PROJECT, "sweep: {fail_fast: true}"},
	{"ssh_config", CONFIG_BY_CONFIRMED, "ssh_config: ssh.conf"},
	{"ssh_config", CONFIG_BY_CONFIRMED, "ssh_config: ~/.ssh/config"},
	{"safe_directories", CONFIG_BY_USER, "safe_directories: [/]"},
	{"targets", CONFIG_BY_PROJECT, "targets: {t: {kind: local}}"},
	{"targets.t.kind", CONFIG_BY_PROJECT, "targets: {t: {kind: local}}"},
	{"targets.t.annotations", CONFIG_BY_PROJECT,
		"targets: {t: {kind: kubernetes, annotations: {a: b}}}"},
	{"targets.t.before", CONFIG_BY_PROJECT, "targets: {t: {kind: ssh, before: a}}"},
	{"targets.t.caches", CONFIG_BY_PROJECT, "targets: {t: {kind: ssh, caches: /scratch}}"},
	{"targets.t.context", CONFIG_BY_PROJECT, "targets: {t: {kind: kubernetes, context: a}}"},
	{"targets.t.data", CONFIG_BY_PROJECT, "targets: {t: {kind: ssh, data: {a: /b}}}"},
	{"targets.t.dir", CONFIG_BY_CONFIRMED, "targets: {t: {kind: ssh, dir: ~/repo}}"},
	{"targets.t.dir", CONFIG_BY_PROJECT, "targets: {t: {kind: ssh, dir: ~/.dlrun}}"},
	{"targets.t.gpu_types", CONFIG_BY_PROJECT,
		"targets: {t: {kind: kubernetes, gpu_types: {a: {resource: b}}}}"},
	{"targets.t.host_path", CONFIG_BY_PROJECT,
		"targets: {t: {kind: kubernetes, host_path: true}}"},
	{"targets.t.hosts", CONFIG_BY_PROJECT, "targets: {t: {kind: ssh, hosts: [a]}}"},
	{"targets.t.image_pull_secret", CONFIG_BY_PROJECT,
		"targets: {t: {kind: kubernetes, image_pull_secret: a}}"},
	{"targets.t.labels", CONFIG_BY_PROJECT, "targets: {t: {kind: kubernetes, labels: {a: b}}}"},
	{"targets.t.linger", CONFIG_BY_PROJECT, "targets: {t: {kind: kubernetes, linger: 1m}}"},
	{"targets.t.namespace", CONFIG_BY_PROJECT,
		"targets: {t: {kind: kubernetes, namespace: a}}"},
	{"targets.t.overlay", CONFIG_BY_PROJECT,
		"targets: {t: {kind: kubernetes, overlay: pod.yaml}}"},
	{"targets.t.overlay", CONFIG_BY_TREE,
		"targets: {t: {kind: kubernetes, overlay: /etc/passwd}}"},
	{"targets.t.overlay", CONFIG_BY_TREE, "targets: {t: {kind: kubernetes, overlay: link}}"},
	{"targets.t.platform", CONFIG_BY_PROJECT,
		"targets: {t: {kind: kubernetes, platform: linux/arm64}}"},
	{"targets.t.priority", CONFIG_BY_PROJECT, "targets: {t: {kind: kubernetes, priority: a}}"},
	{"targets.t.queue", CONFIG_BY_PROJECT, "targets: {t: {kind: kubernetes, queue: a}}"},
	{"targets.t.registry", CONFIG_BY_PROJECT,
		"targets: {t: {kind: local, registry: a.example/x}}"},
	{"targets.t.registry.ca", CONFIG_BY_CONFIRMED,
		"targets: {t: {kind: local, registry: {push: a.example/x, ca: ca.pem}}}"},
	{"targets.t.registry.insecure", CONFIG_BY_CONFIRMED,
		"targets: {t: {kind: local, registry: {push: a.example/x, insecure: true}}}"},
	{"targets.t.registry.forward", CONFIG_BY_CONFIRMED,
		"targets: {t: {kind: kubernetes, registry: {push: a.example/x, forward: \"n/s:1\"}}}"},
	{"targets.t.results", CONFIG_BY_PROJECT,
		"targets: {t: {kind: kubernetes, results: {pvc: a}}}"},
	{"targets.t.runtime", CONFIG_BY_PROJECT, "targets: {t: {kind: ssh, runtime: podman}}"},
	{"targets.t.security", CONFIG_BY_PROJECT,
		"targets: {t: {kind: kubernetes, security: image}}"},
	{"targets.t.service_account", CONFIG_BY_PROJECT,
		"targets: {t: {kind: kubernetes, service_account: a}}"},
	{"targets.t.ttl", CONFIG_BY_PROJECT, "targets: {t: {kind: kubernetes, ttl: 1d}}"},
	{"targets.t.volumes", CONFIG_BY_PROJECT,
		"targets: {t: {kind: kubernetes, volumes: [{pvc: a, path: /b}]}}"},
};

static bool has_row(const char *key)
{
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (str_eq(rows[i].key, key))
			return true;
	return false;
}

static void test_every_key_has_a_row(void **state)
{
	for (size_t i = 0; i < config_keys_n; i++)
		if (!has_row(config_keys[i].name) || !config_keys[i].by)
			fail_msg("who may set %s?", config_keys[i].name);
	for (size_t i = 0; i < config_target_keys_n; i++) {
		AUTO_FREE char *key = mem_printf("targets.t.%s", config_target_keys[i].name);
		if (!has_row(key) || !config_target_keys[i].by)
			fail_msg("who may set %s?", key);
	}
}

/*
 * All keys, three owners, confirmed or not
 */

static char *project, *outside;

static void put(const char *path, const char *text)
{
	assert_int_equal(fs_replace(path, text, strlen(text), 0644, FS_SYNC_NONE, NULL), 0);
}

static int setup(void **state)
{
	int r = make_tmp(state);

	AUTO_FREE char *tree = fs_join(tmp, "tree");
	assert_int_equal(fs_mkdirs(tree, 0755, NULL), 0);
	chmod(tmp, 0777);
	chmod(tree, 0777);
	project = fs_join(tree, "dlrun.yaml");
	outside = fs_join(tmp, "outside");
	put(outside, "x\n");
	AUTO_FREE char *link = fs_join(tree, "link");
	assert_int_equal(symlink(outside, link), 0);
	return r;
}

static int teardown(void **state)
{
	free(project);
	free(outside);
	return remove_tmp(state);
}

static struct config_files files_of(const char *trust)
{
	static const char *const env[] = {"HOME=/home/me", NULL};

	return (struct config_files){.project = project, .trust = trust, .env = env};
}

static bool is_counted(const struct config *config, const char *key)
{
	AUTO_JSON struct json *all = config_to_json(config);
	const struct json *at = NULL;
	AUTO_FREE char *copy = mem_strdup(key);
	char *rest = copy;

	if (config_project(config)->is_foreign && !config_project(config)->is_confirmed)
		assert_false(config_is_set(config, "name"));
	if (str_eq(key, "secrets"))
		return config_secrets(config)->n > 0;
	if (!str_starts(key, "registry.") && !str_starts(key, "targets."))
		return config_is_set(config, key);
	at = json_get(json_get(all, strsep(&rest, ".")), "value");
	for (char *word; (word = strsep(&rest, "."));)
		at = json_get(at, word);
	return at != NULL;
}

static void check_row(const struct row *row, uid_t owner, bool confirmed, const char *trust)
{
	AUTO_CONFIG struct config *config = NULL, *seen = NULL;
	struct config_files files = files_of(trust);
	AUTO_ERR struct err err = {0};
	bool wanted = confirmed || (owner != OTHER && row->by == CONFIG_BY_PROJECT);

	put(project, row->text);
	if (geteuid() == 0)
		assert_int_equal(chown(project, owner, (gid_t)-1), 0);
	bool as_me = geteuid() == 0 && seteuid(ME) == 0;
	files.review = true;
	int r = config_load(&files, &seen, &err);
	if (row->by == CONFIG_BY_USER) {
		assert_true(r < 0);
	} else {
		assert_int_equal(r, 0);
		if (confirmed)
			assert_int_equal(config_confirm(seen, trust, NULL), 0);
		files.review = false;
		assert_int_equal(config_load(&files, &config, &err), 0);
		if (is_counted(config, row->key) != wanted)
			fail_msg("%s of %s, owner %u, %sconfirmed: %s", row->key, row->text,
				(unsigned)owner, confirmed ? "" : "not ",
				wanted ? "does not count" : "counts");
		AUTO_FREE char *said = config_not_counting(config);
		assert_int_equal(said == NULL, wanted);
	}
	if (as_me)
		assert_int_equal(seteuid(0), 0);
}

static void test_all_keys_and_owners(void **state)
{
	static const uid_t owners[] = {ME, OTHER, ROOT};
	size_t n = 0;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		for (size_t k = 0; rows[i].text && k < (geteuid() == 0 ? 3 : 1); k++)
			for (int confirmed = 0; confirmed < 2; confirmed++) {
				AUTO_FREE char *trust = mem_printf("%s/trust-%zu", tmp, n++);
				check_row(&rows[i], owners[k], confirmed, trust);
			}
}

/* The user's own file may say all of it. */
static void test_the_user_may_set_all(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		AUTO_CONFIG struct config *config = NULL;
		struct config_files files = files_of(NULL);

		if (!rows[i].text)
			continue;
		put(project, rows[i].text);
		files.user = files.project;
		files.project = NULL;
		assert_int_equal(config_load(&files, &config, NULL), 0);
		assert_true(is_counted(config, rows[i].key));
	}
}

/*
 * Confirmed is a content
 */

static bool counts(const char *trust, const char *key)
{
	AUTO_CONFIG struct config *config = NULL;
	struct config_files files = files_of(trust);

	assert_int_equal(config_load(&files, &config, NULL), 0);
	return config_is_set(config, key);
}

static void test_any_change_revokes(void **state)
{
	AUTO_FREE char *trust = fs_join(tmp, "trust"), *conf = fs_join(tmp, "tree/ssh.conf");
	AUTO_CONFIG struct config *config = NULL;
	struct config_files files = files_of(trust);

	put(project, "ssh_config: ssh.conf\n");
	put(conf, "Host a\n");
	assert_false(counts(trust, "ssh_config"));
	assert_int_equal(config_load(&files, &config, NULL), 0);
	assert_int_equal(config_confirm(config, trust, NULL), 0);
	assert_true(counts(trust, "ssh_config"));
	put(conf, "Host b\n");
	assert_false(counts(trust, "ssh_config"));
	put(conf, "Host a\n");
	assert_true(counts(trust, "ssh_config"));
	unlink(conf);
	assert_false(counts(trust, "ssh_config"));
	put(conf, "Host a\n");
	put(project, "ssh_config: ssh.conf \n");
	assert_false(counts(trust, "ssh_config"));
	put(project, "ssh_config: ssh.conf\n");
	assert_true(counts(trust, "ssh_config"));
	/* The same content elsewhere is another file. */
	AUTO_FREE char *other = fs_join(tmp, "dlrun.yaml");
	put(other, "ssh_config: ssh.conf\n");
	files.project = other;
	AUTO_CONFIG struct config *elsewhere = NULL;
	assert_int_equal(config_load(&files, &elsewhere, NULL), 0);
	assert_false(config_is_set(elsewhere, "ssh_config"));
}

/* An entry that is no entry confirms nothing. */
static void test_broken_entries(void **state)
{
	static const char *const texts[] = {"", "{", "[]", "{\"files\":{}}",
		"{\"schema\":\"dlrun/trust/v1\",\"files\":{}}",
		"{\"schema\":\"dlrun/trust/v2\",\"files\":[]}"};
	AUTO_FREE char *trust = fs_join(tmp, "trust");
	AUTO_CONFIG struct config *config = NULL;
	struct config_files files = files_of(trust);

	put(project, "ssh_config: x\n");
	assert_int_equal(config_load(&files, &config, NULL), 0);
	assert_int_equal(config_confirm(config, trust, NULL), 0);
	DIR *dir = opendir(trust);
	AUTO_FREE char *entry = NULL;
	for (struct dirent *item; (item = readdir(dir));)
		if (str_ends(item->d_name, ".json"))
			entry = fs_join(trust, item->d_name);
	closedir(dir);
	assert_true(counts(trust, "ssh_config"));
	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		put(entry, texts[i]);
		assert_false(counts(trust, "ssh_config"));
	}
}

/*
 * Owners
 */

static bool only(void *ctx, const char *dir)
{
	return str_eq(ctx, dir);
}

static bool is_read(const struct config_files *files)
{
	AUTO_CONFIG struct config *config = NULL;
	bool counted;

	assert_int_equal(config_load(files, &config, NULL), 0);
	counted = config_is_set(config, "name");
	assert_int_equal(config_project_counts(files, project), counted);
	return counted;
}

static void test_safe_directories(void **state)
{
	AUTO_FREE char *tree = fs_join(tmp, "tree"), *user = fs_join(tmp, "config.yaml");
	AUTO_FREE char *exact = mem_printf("safe_directories: [\"%s\"]\n", tree);
	AUTO_FREE char *below = mem_printf("safe_directories: [\"%s/*\"]\n", tmp);
	AUTO_FREE char *prefix = mem_printf("safe_directories: [\"%s/tr\"]\n", tmp);
	struct config_files files = files_of(NULL);

	if (geteuid() != 0)
		skip();
	put(project, "name: a\n");
	assert_int_equal(chown(project, OTHER, (gid_t)-1), 0);
	files.user = user;
	assert_false(is_read(&files));
	put(user, exact);
	assert_true(is_read(&files));
	put(user, below);
	assert_true(is_read(&files));
	put(user, prefix);
	assert_false(is_read(&files));
	put(user, "safe_directories: [\"*\"]\n");
	assert_true(is_read(&files));
	put(user, "");
	files.git_trusts = only;
	files.git_ctx = tree;
	assert_true(is_read(&files));
	files.git_ctx = tmp;
	assert_false(is_read(&files));
}

static void test_sudo_and_links(void **state)
{
	static const char *const sudo[] = {"SUDO_UID=65534", NULL};
	static const char *const bad[] = {"SUDO_UID=65534x", NULL};
	static const char *const less[] = {"SUDO_UID=-1", NULL};
	AUTO_FREE char *mine = fs_join(tmp, "mine");
	struct config_files files = files_of(NULL);

	if (geteuid() != 0)
		skip();
	put(project, "name: a\n");
	assert_int_equal(chown(project, OTHER, (gid_t)-1), 0);
	files.env = sudo;
	assert_true(is_read(&files));
	files.env = bad;
	assert_false(is_read(&files));
	files.env = less;
	assert_false(is_read(&files));
	/* Only who is root by sudo has two users. */
	files.env = sudo;
	assert_int_equal(seteuid(ME), 0);
	assert_false(is_read(&files));
	assert_int_equal(seteuid(0), 0);
	/* Another user's link to a file of ours. */
	put(mine, "name: a\n");
	unlink(project);
	assert_int_equal(symlink(mine, project), 0);
	files.env = bad;
	assert_true(is_read(&files));
	assert_int_equal(lchown(project, OTHER, (gid_t)-1), 0);
	assert_false(is_read(&files));
}

/* What would block or never end is refused at once. */
static void test_no_regular_file(void **state)
{
	struct config_files files = files_of(NULL);
	AUTO_CONFIG struct config *config = NULL;

	assert_int_equal(mkfifo(project, 0600), 0);
	assert_true(config_load(&files, &config, NULL) < 0);
	unlink(project);
	assert_int_equal(symlink("/dev/zero", project), 0);
	assert_true(config_load(&files, &config, NULL) < 0);
	unlink(project);
	assert_int_equal(mkdir(project, 0700), 0);
	assert_true(config_load(&files, &config, NULL) < 0);
	rmdir(project);
	assert_int_equal(mkfifo(project, 0600), 0);
	files.user = files.project;
	files.project = NULL;
	assert_true(config_load(&files, &config, NULL) < 0);
}

#define test(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(test_every_key_has_a_row),
		test(test_all_keys_and_owners),
		test(test_the_user_may_set_all),
		test(test_any_change_revokes),
		test(test_broken_entries),
		test(test_safe_directories),
		test(test_sudo_and_links),
		test(test_no_regular_file),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
