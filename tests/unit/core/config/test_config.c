/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/os/fs.h"
#include "base/util/str.h"
#include "core/config/config.h"

/* A file with this text; the caller removes it. */
static char *file_with(const char *text)
{
	char path[] = "/tmp/dlrun-config-XXXXXX";
	int fd = mkstemp(path);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
	return mem_strdup(path);
}

/* Each layer of files is blamed under its own name. */
static void test_layers_are_blamed(void **state)
{
	AUTO_FREE char *path = file_with("linger: 5m\ngrace: soon\n");
	AUTO_FREE char *message = mem_printf("%s:2:8: grace: \"soon\" is not", path);
	struct config_files files[] = {{.project = path}, {.user = path}, {.site = path}};

	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		AUTO_CONFIG struct config *config = NULL;
		AUTO_ERR struct err err = {0};

		assert_int_equal(config_load(&files[i], &config, &err), -ERR_CONFIG);
		assert_true(str_starts(err.message, message));
	}
	unlink(path);
}

static int load(const char *project, const char *user, const char *const *env, struct config **ret,
	struct err *err)
{
	AUTO_FREE char *project_path = project ? file_with(project) : NULL;
	AUTO_FREE char *user_path = user ? file_with(user) : NULL;
	struct config_files files = {
		.project = project_path,
		.user = user_path,
		.site = "/proc/nonexistent/dlrun.yaml",
		.env = env,
	};
	int r = config_load(&files, ret, err);

	if (project_path)
		unlink(project_path);
	if (user_path)
		unlink(user_path);
	return r;
}

static void test_defaults(void **state)
{
	AUTO_CONFIG struct config *config = NULL;
	AUTO_ERR struct err err = {0};
	bool shell = true;

	assert_int_equal(load(NULL, NULL, NULL, &config, &err), 0);
	assert_string_equal(config_str(config, "target"), "local");
	assert_string_equal(config_str(config, "image"), "scratch");
	assert_null(config_str(config, "name"));
	assert_int_equal(config_size(config, "limits.size"), 500ULL << 20);
	assert_int_equal(config_int(config, "limits.files", -1), 200000);
	assert_int_equal(config_duration(config, "grace", -1), 10000);
	assert_int_equal(config_duration(config, "timeout", -1), -1);
	assert_int_equal(config_command(config, &shell)->n, 0);
	assert_false(shell);
	assert_false(config_is_set(config, "target"));
}

static void test_precedence(void **state)
{
	static const char *const env[] = {
		"DLRUN_TARGET=from-env", "DLRUN_NAME=", "PATH=/bin", NULL};
	AUTO_CONFIG struct config *config = NULL;
	AUTO_ERR struct err err = {0};

	assert_int_equal(load("name: project\nenv: {A: '1', B: }\n",
				 "name: user\ntarget: user\ngroup: user\nenv: {B: '2', C: '3'}\n",
				 env, &config, &err),
		0);
	assert_string_equal(config_str(config, "name"), "project");
	assert_string_equal(config_str(config, "target"), "from-env");
	assert_string_equal(config_str(config, "group"), "user");
	assert_int_equal(config_env(config)->n, 3);
	assert_string_equal(config_env(config)->v[0], "B");
	assert_string_equal(config_env(config)->v[1], "C=3");
	assert_string_equal(config_env(config)->v[2], "A=1");
	assert_int_equal(config_origin(config, "target")->source, CONFIG_FROM_ENV);
	assert_string_equal(config_origin(config, "target")->file, "DLRUN_TARGET");
	assert_int_equal(config_origin(config, "group")->line, 3);
	assert_int_equal(config_override(config, "target", "local", &err), 0);
	assert_string_equal(config_str(config, "target"), "local");
	assert_int_equal(config_override(config, "grace", "soon", &err), -ERR_USAGE);
}

static void test_command_forms(void **state)
{
	AUTO_CONFIG struct config *words = NULL, *line = NULL;
	AUTO_ERR struct err err = {0};
	bool shell = true;

	assert_int_equal(
		load("command: [python3, train.py, --lr, 0.1]\n", NULL, NULL, &words, &err), 0);
	assert_int_equal(config_command(words, &shell)->n, 4);
	assert_string_equal(config_command(words, &shell)->v[3], "0.1");
	assert_false(shell);
	assert_int_equal(load("command: make train | tee log\n", NULL, NULL, &line, &err), 0);
	assert_int_equal(config_command(line, &shell)->n, 1);
	assert_true(shell);
}

/* A map means auto, also over a layer that says none. */
static void test_collect(void **state)
{
	static const char *const env[] = {"DLRUN_COLLECT=none", NULL};
	AUTO_CONFIG struct config *unset = NULL, *word = NULL, *map = NULL, *variable = NULL;
	AUTO_ERR struct err err = {0};

	assert_int_equal(load(NULL, NULL, NULL, &unset, &err), 0);
	assert_string_equal(config_str(unset, "collect"), "auto");
	assert_int_equal(config_size(unset, "collect.size"), 20ULL << 30);
	assert_int_equal(config_duration(unset, "linger", -1), 300000);
	assert_int_equal(load("collect: none\nlinger: 2h\n", NULL, NULL, &word, &err), 0);
	assert_string_equal(config_str(word, "collect"), "none");
	assert_int_equal(config_duration(word, "linger", -1), 7200000);
	assert_int_equal(load("collect: {exclude: ['*.tmp', a/b], size: 1Gi}\n", "collect: none\n",
				 NULL, &map, &err),
		0);
	assert_string_equal(config_str(map, "collect"), "auto");
	assert_int_equal(config_list(map, "collect.exclude")->n, 2);
	assert_int_equal(config_size(map, "collect.size"), 1ULL << 30);
	assert_int_equal(load("collect: {size: 1Gi}\n", NULL, env, &variable, &err), 0);
	assert_string_equal(config_str(variable, "collect"), "none");
}

/* Numbers stay as they are written, and the axes of a nearer file replace those of another one. */
static void test_sweep(void **state)
{
	AUTO_CONFIG struct config *unset = NULL, *config = NULL;
	AUTO_ERR struct err err = {0};
	AUTO_BUF struct buf text = {0};

	assert_int_equal(load(NULL, "sweep: {}\n", NULL, &unset, &err), 0);
	assert_null(config_axes(unset));
	assert_null(config_str(unset, "sweep.zip"));
	assert_int_equal(config_int(unset, "sweep.sample", 0), 0);
	assert_int_equal(
		load("sweep:\n"
		     "  over:\n"
		     "    lr: {log: [1e-4, 1e-1], n: 12}\n"
		     "    seed: 1..5\n"
		     "    opt: [adam, 1e-3, null, '', true, [1, a], {b: 2.50}]\n"
		     "    list: 0.10,0.3\n"
		     "  parallel: 4\n"
		     "  seed: 7\n"
		     "  zip: true\n",
			"sweep: {over: {other: [1]}, fail_fast: true}\n", NULL, &config, &err),
		0);
	buf_init(&text, 4096);
	json_print(config_axes(config), &text);
	assert_string_equal(text.data,
		"{\"lr\":{\"log\":[\"1e-4\",\"1e-1\"],\"n\":\"12\"},\"seed\":\"1..5\","
		"\"opt\":[\"adam\",\"1e-3\",\"null\",\"\",\"true\",[1,\"a\"],{\"b\":2.5}],"
		"\"list\":\"0.10,0.3\"}");
	assert_int_equal(config_int(config, "sweep.parallel", 0), 4);
	assert_int_equal(config_int(config, "sweep.seed", 0), 7);
	assert_string_equal(config_str(config, "sweep.zip"), "true");
	assert_string_equal(config_str(config, "sweep.fail_fast"), "true");
}

/* Order is the order of ranks; the roles of a nearer file replace those of another one. */
static void test_roles(void **state)
{
	AUTO_CONFIG struct config *unset = NULL, *config = NULL;
	AUTO_ERR struct err err = {0};
	AUTO_BUF struct buf text = {0};

	assert_int_equal(load(NULL, NULL, NULL, &unset, &err), 0);
	assert_null(config_roles(unset));
	assert_int_equal(load("roles:\n"
			      "  learner: {gpus: 04, command: [python, '']}\n"
			      "  actors:\n"
			      "    nodes: 12\n"
			      "    command: act {learner.0}\n"
			      "    env: {A: 1e3}\n"
			      "  idle:\n"
			      "ends_with: learner\n",
				 "roles: {other: {nodes: 2}}\n", NULL, &config, &err),
		0);
	buf_init(&text, 4096);
	json_print(config_roles(config), &text);
	assert_string_equal(text.data,
		"{\"learner\":{\"gpus\":\"04\",\"command\":[\"python\",\"\"]},"
		"\"actors\":{\"nodes\":\"12\",\"command\":\"act {learner.0}\","
		"\"env\":{\"A\":\"1e3\"}},\"idle\":\"\"}");
	assert_string_equal(config_str(config, "ends_with"), "learner");
}

/* What a file says wrongly is named with its line; %s stands for the path of the file. */
static void test_errors(void **state)
{
	static const struct {
		const char *text, *message, *hint;
	} cases[] = {
		{"name: x\nimgae: y\n", ":2:1: unknown key 'imgae'", "did you mean 'image'?"},
		{"limits: {szie: 1}\n", ":1:10: unknown key 'szie' in limits",
			"did you mean 'size'?"},
		{"limits.size: 1\n", ":1:1: unknown key 'limits.size'", NULL},
		{"gpus: 1\n", ":1:1: unknown key 'gpus'", "resources: {gpus: 1}"},
		{"data: x\n", ":1:7: data must be a list, not a single value", "data: [x]"},
		{"setup: uv sync\n", ":1:8: setup must be a map", "setup: {run: uv sync}"},
		{"setup: {key: uv.lock}\n", ":1:14: setup.key must be a list",
			"setup: {key: [uv.lock]}"},
		{"secrets: HF_TOKEN\n", ":1:10: secrets must be", "secrets: [HF_TOKEN]"},
		{"resources: {gpus: x}\n", ":1:19: resources.gpus must be", "resources: {gpus: 1}"},
		{"limits: 5\n", ":1:9: limits must be a map, not a single value", NULL},
		{"collect: sometimes\n", ":1:10: collect must be auto or none, not 'sometimes'",
			NULL},
		{"collect: [a]\n", ":1:10: collect must be a single value, not a list", NULL},
		{"collect: {exclude: a}\n",
			":1:20: collect.exclude must be a list, not a single value", NULL},
		{"collect: {size: 1, sise: 2}\n", ":1:20: unknown key 'sise' in collect",
			"did you mean 'size'?"},
		{"name: {a: b}\n", ":1:7: name must be a single value, not a map", NULL},
		{"linger: soon\n", ":1:9: linger: ", NULL},
		{"targets: {a: {kind: kubernetes, linger: soon}}\n", ":1:41: linger: ", NULL},
		{"targets: {a: {kind: local, linger: 5m}}\n",
			":1:28: unknown key 'linger' in a target of kind local",
			"targets: {NAME: {kind: kubernetes, linger: 30m}}"},
		{"targets: {a: {kind: ssh, image: x}}\n",
			":1:26: unknown key 'image' in a target of kind ssh",
			"image: is a key of its own, at the top of the file"},
		{"kind: ssh\n", ":1:1: unknown key 'kind'", "targets: {NAME: {kind: kubernetes}}"},
		{"caches: [~/.cache/uv]\n", ":1:1: unknown key 'caches'",
			"targets: {NAME: {kind: local, caches: /scratch/me/caches}}"},
		{"setup.run: make\n", ":1:1: unknown key 'setup.run'", "setup: {run: make}"},
		{"resources: {gpu_types: a}\n", ":1:13: unknown key 'gpu_types' in resources",
			"did you mean 'gpu_type'?"},
		{"resources: {hosts: [a]}\n", ":1:13: unknown key 'hosts' in resources",
			"targets: {NAME: {kind: ssh, hosts: [gpu1, me@gpu2, \"gpu[03-16]\"]}}"},
		{"limits: {size: many}\n", ":1:16: limits.size: ", NULL},
		{"include: a\n", ":1:10: include must be a list, not a single value", NULL},
		{"include: [[a]]\n", ":1:11: an item of include must be a single value, not a list",
			NULL},
		{"name: [a]\n", ":1:7: name must be a single value, not a list", NULL},
		{"name:\n", ":1:6: name has no value", NULL},
		{"command: {a: b}\n",
			":1:10: command must be a list of arguments or a string, not a map", NULL},
		{"command: ''\n", ":1:10: command is empty", NULL},
		{"env: [A]\n", ":1:6: env must be a map of names to values, not a list", NULL},
		{"env:\n  A: '1'\n  B C: '2'\n", ":3:3: 'B C' is not a valid variable name", NULL},
		{"compression: lzma\n", ":1:14: compression must be gzip or zstd, not 'lzma'",
			NULL},
		{"grace: 5 apples\n", ":1:8: grace: ", NULL},
		{"targets: {a: {}}\n", ":1:14: target a has no kind", NULL},
		{"targets: {a: {kind: moon}}\n",
			":1:21: the kind of target a must be local, kubernetes or ssh", NULL},
		{"targets: {a: {kind: local, rgistry: x}}\n",
			":1:28: unknown key 'rgistry' in a target of kind local",
			"did you mean 'registry'?"},
		{"targets: {a: {kind: local, queue: x}}\n",
			":1:28: unknown key 'queue' in a target of kind local",
			"targets: {NAME: {kind: kubernetes, queue: gpu}}"},
		{"targets: {a: {kind: kubernetes, quue: x}}\n",
			":1:33: unknown key 'quue' in a target of kind kubernetes",
			"did you mean 'queue'?"},
		{"targets:\n  a:\n    kind: kubernetes\n    results: {pvc: a, nfs: b}\n",
			":4:14: results must have exactly one of: pvc nfs claim emptyDir s3", NULL},
		{"targets: {a: {kind: kubernetes, data: {a: {cache: 1Gi, pvc: x}}}}\n",
			":1:43: data.a: cache requires s3", NULL},
		{"targets: {a: {kind: kubernetes, data: {a: {s3: \"s3://bucket/x\", sub_path: y}}}}\n",
			":1:43: data.a: sub_path and read_only cannot be used with s3", NULL},
		{"targets: {a: {kind: ssh, data: {a: {s3: \"s3://bucket/x\"}}}}\n",
			":1:36: data.a must be an absolute path on the hosts, or sync",
			"aws s3 sync s3://bucket/path /srv/path   # there; only clusters read S3"},
		{"targets: {a: {kind: kubernetes, results: {s3: \"bucket/x\"}}}\n",
			":1:47: results.s3: bucket/x is not of the form s3://BUCKET/PATH", NULL},
		{"targets: {a: {kind: kubernetes, results: {claim: much}}}\n",
			":1:50: results.claim: ", NULL},
		{"targets: {a: {kind: kubernetes, data: {d: {pcv: a}}}}\n",
			":1:44: unknown key 'pcv' in data.d", "did you mean 'pvc'?"},
		{"targets: {a: {kind: kubernetes, volumes: [{pvc: a, path: b}]}}\n",
			":1:43: volumes must have path:, an absolute path in the container", NULL},
		{"targets: {a: {kind: kubernetes, volumes: {pvc: a}}}\n",
			":1:42: volumes must be a list, not a map", NULL},
		{"targets: {a: {kind: kubernetes, security: none}}\n",
			":1:43: security must be auto, image or restricted, not 'none'", NULL},
		{"targets: {a: {kind: kubernetes, ttl: soon}}\n", ":1:38: ttl: ", NULL},
		{"targets: {a: {kind: kubernetes, host_path: 1}}\n",
			":1:44: host_path must be true or false, not '1'", NULL},
		{"targets: {a: {kind: ssh, quue: x}}\n",
			":1:26: unknown key 'quue' in a target of kind ssh", NULL},
		{"targets: {a: {kind: ssh, hosts: []}}\n", ":1:33: hosts names no host", NULL},
		{"targets: {a: {kind: ssh, hosts: {b: c}}}\n",
			":1:33: hosts must be a list of hosts, not a map", NULL},
		{"targets:\n  a:\n    kind: ssh\n    hosts: [a,\n      -oX]\n",
			":5:7: hosts \"-oX\": a name begins", NULL},
		{"targets: {a: {kind: ssh, runtime: vm}}\n",
			":1:35: runtime must be host, podman or docker, not 'vm'", NULL},
		{"targets: {a: {kind: ssh, data: {d: e}}}\n",
			":1:36: data.d must be an absolute path on the hosts, or sync", NULL},
		{"ports: 6006\n", ":1:8: ports must be a list, not a single value", NULL},
		{"ports:\n  - 6006\n  - 70000\n",
			":3:5: ports: '70000' is not a valid port; use a number from 1 to 65535",
			NULL},
		{"ports: [6006,\n  8888, 6006]\n", ":2:9: ports: port 6006 is listed twice", NULL},
		{"ports: [{a: b}]\n", ":1:9: an item of ports must be a single value, not a map",
			NULL},
		{"sweep: 5\n", ":1:8: sweep must be a map, not a single value",
			"sweep: {over: {lr: [0.1, 0.03], seed: 1..5}, parallel: 4}"},
		{"sweep: {over: lr}\n",
			":1:15: sweep.over must be a map of names to values, not a single value",
			"sweep: {over: {lr: [0.1, 0.03], seed: 1..5}, parallel: 4}"},
		{"sweep: {over: {lr: {lag: [1, 2], n: 3}}}\n",
			":1:21: unknown key 'lag' in sweep.over.lr", "did you mean 'log'?"},
		{"sweep: {over: {lr: {log: 1, n: 3}}}\n",
			":1:26: sweep.over.lr.log must be a list of two numbers, not a single value",
			NULL},
		{"sweep: {over: {lr: {log: [1, 2], n: [3]}}}\n",
			":1:37: sweep.over.lr.n must be a number, not a list", NULL},
		{"sweep:\n  over:\n    lr:\n", ":3:8: sweep.over.lr has no value", NULL},
		{"sweep:\n  over:\n    lr:\n    -\n", ":4:6: an item of sweep.over.lr has no value",
			NULL},
		{"sweep: {parallel: many}\n", ":1:19: sweep.parallel must be", NULL},
		{"sweep: {parallel: -1}\n", ":1:19: sweep.parallel must be", NULL},
		{"sweep: {sample: [1]}\n", ":1:17: sweep.sample must be a single value", NULL},
		{"sweep: {zip: maybe}\n", ":1:14: sweep.zip must be true or false, not 'maybe'",
			NULL},
		{"sweep: {fail_fats: true}\n", ":1:9: unknown key 'fail_fats' in sweep",
			"did you mean 'fail_fast'?"},
		{"roles: [a]\n", ":1:8: roles must be a map of names to roles, not a list",
			"roles: {learner: {gpus: 1}, actors: {nodes: 4, command: [python3, act.py]}}"},
		{"roles: {}\n", ":1:8: roles must be a map of names to roles, not an empty map",
			NULL},
		{"roles: {a: 4}\n", ":1:12: roles.a must be a map, not a single value", NULL},
		{"roles:\n  a:\n    node: 2\n", ":3:5: unknown key 'node' in roles.a",
			"did you mean 'nodes'?"},
		{"roles: {a: {nodes: [2]}}\n", ":1:20: roles.a.nodes must be a single value", NULL},
		{"roles: {a: {nodes: }}\n", ":1:20: roles.a.nodes is empty", NULL},
		{"roles: {a: {command: []}}\n", ":1:22: roles.a.command is empty", NULL},
		{"roles: {a: {command: {b: c}}}\n",
			":1:22: roles.a.command must be a list of arguments or a string", NULL},
		{"roles: {a: {command: [[b]]}}\n",
			":1:23: roles.a.command must be a list of arguments", NULL},
		{"roles: {a: {env: [B=c]}}\n", ":1:18: roles.a.env must be a map of names", NULL},
		{"roles: {a: {env: {B: }}}\n",
			":1:22: roles.a.env: each variable has a single value", NULL},
		{"roles: {a: {env: {1B: c}}}\n", ":1:23: '1B' is not a valid variable name", NULL},
		{"ends_with: [a]\n", ":1:12: ends_with must be a single value", NULL},
		{"seed: 1\n", ":1:1: unknown key 'seed'", "sweep: {seed: 1}"},
		{"- a\n", ":1:1: the file must be a map of keys", NULL},
		{"name: a\nname: b\n", ":2:1: ", NULL},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		AUTO_CONFIG struct config *config = NULL;
		AUTO_ERR struct err err = {0};
		const char *at;

		assert_int_equal(load(cases[i].text, NULL, NULL, &config, &err), -ERR_CONFIG);
		assert_null(config);
		at = strchr(err.message, ':');
		assert_non_null(at);
		if (!str_starts(at, cases[i].message))
			fail_msg("%s gave %s", cases[i].text, err.message);
		if (cases[i].hint)
			assert_string_equal(err.hint, cases[i].hint);
	}
}

static void test_ssh_target(void **state)
{
	static const char text[] = "ssh_config: lab.conf\n"
				   "targets:\n"
				   "  r:\n"
				   "    kind: ssh\n"
				   "    hosts: [gpu1, me@gpu2, 'n[08-10]', gpu1]\n"
				   "    dir: /scratch/me\n"
				   "    before: . ~/x\n"
				   "    data: {data/x: /srv/x, data/y: sync, data/z: ~/z}\n"
				   "    runtime: podman\n"
				   "  one: {kind: ssh, hosts: gpu3}\n"
				   "  itself: {kind: ssh}\n";
	static const char *const hosts[] = {"gpu1", "me@gpu2", "n08", "n09", "n10"};
	AUTO_CONFIG struct config *config = NULL;
	AUTO_ERR struct err err = {0};
	const struct json *target, *host;
	size_t n = 0;

	assert_int_equal(load(NULL, text, NULL, &config, &err), 0);
	target = config_target(config, "r");
	for (host = json_first(json_get(target, "hosts")); host; host = json_next(host))
		assert_string_equal(json_str(host), hosts[n++]);
	assert_int_equal(n, 5);
	assert_string_equal(json_get_str(target, "dir"), "/scratch/me");
	assert_string_equal(json_get_str(json_get(target, "data"), "data/y"), "sync");
	assert_string_equal(json_get_str(json_get(target, "data"), "data/z"), "~/z");
	host = json_first(json_get(config_target(config, "one"), "hosts"));
	assert_string_equal(json_str(host), "gpu3");
	assert_null(json_get(config_target(config, "itself"), "hosts"));
	assert_string_equal(config_str(config, "ssh_config"), "lab.conf");
}

static void test_kubernetes_target(void **state)
{
	static const char text[] =
		"targets:\n"
		"  r:\n"
		"    kind: kubernetes\n"
		"    results: {pvc: results}\n"
		"    data: {data/x: {pvc: d, sub_path: x}}\n"
		"    service_account: null\n"
		"    overlay: pod.yaml\n"
		"    gpu_types: {h: {resource: nvidia.com/gpu, node_selector: {gpu: 1},"
		" tolerations: [{key: a, tolerationSeconds: 5}]}}\n";
	AUTO_CONFIG struct config *config = NULL;
	AUTO_ERR struct err err = {0};
	const struct json *target, *type;

	assert_int_equal(load(text, NULL, NULL, &config, &err), 0);
	target = config_target(config, "r");
	assert_string_equal(json_get_str(json_get(target, "results"), "pvc"), "results");
	assert_string_equal(
		json_get_str(json_get(json_get(target, "data"), "data/x"), "sub_path"), "x");
	assert_int_equal(json_kind(json_get(target, "service_account")), JSON_NULL);
	assert_true(str_ends(json_get_str(target, "overlay"), "/pod.yaml"));
	assert_int_equal(json_get_str(target, "overlay")[0], '/');
	type = json_get(json_get(target, "gpu_types"), "h");
	assert_string_equal(json_get_str(json_get(type, "node_selector"), "gpu"), "1");
	assert_int_equal(
		json_get_int(json_first(json_get(type, "tolerations")), "tolerationSeconds", 0), 5);
}

static void test_ports(void **state)
{
	AUTO_CONFIG struct config *config = NULL;
	AUTO_JSON struct json *json = NULL;
	AUTO_BUF struct buf text = {0};

	assert_int_equal(load("ports: [6006, 8888]\n", "ports: [1]\n", NULL, &config, NULL), 0);
	assert_int_equal(config_list(config, "ports")->n, 2);
	assert_string_equal(config_list(config, "ports")->v[1], "8888");
	json = config_to_json(config);
	buf_init(&text, 1 << 20);
	json_print(json_get(json_get(json, "ports"), "value"), &text);
	assert_string_equal(text.data, "[6006,8888]");
}

static void read_contract(struct buf *ret)
{
	const char *data = getenv("UNIT_DATA");
	AUTO_FREE char *path = mem_printf("%s/contract.yaml", data ? data : "tests/unit/data");

	assert_int_equal(fs_read(path, 1 << 20, ret, NULL, NULL), 0);
}

/* The example of the contract is taken. */
static void test_the_contract(void **state)
{
	AUTO_CONFIG struct config *config = NULL;
	AUTO_ERR struct err err = {0};
	AUTO_BUF struct buf text = {0};

	read_contract(&text);
	if (load(text.data, NULL, NULL, &config, &err) < 0)
		fail_msg("%s", err.message);
	assert_string_equal(config_list(config, "ports")->v[0], "6006");
	assert_string_equal(config_list(config, "tensorboard")->v[0], "out/tb");
	assert_string_equal(config_str(config, "setup.run"), "uv sync --frozen");
	assert_int_equal(config_size(config, "resources.shm"), UINT64_C(8) << 30);
	assert_int_equal(config_int(config, "limits.files", 0), 200000);
	assert_int_equal(json_count(config_target(config, "research")), 17);
	assert_int_equal(json_count(json_get(config_target(config, "lab"), "hosts")), 16);
}

static void test_inside_a_run_variables_are_the_runs(void **state)
{
	static const char *const env[] = {"DLRUN_TARGET=other", NULL};
	AUTO_CONFIG struct config *config = NULL;
	AUTO_ERR struct err err = {0};
	struct config_files files = {.env = env, .inside_run = true};

	assert_int_equal(config_load(&files, &config, &err), 0);
	assert_string_equal(config_str(config, "target"), "local");
}

static void test_missing_project_file_is_an_error(void **state)
{
	AUTO_CONFIG struct config *config = NULL;
	AUTO_ERR struct err err = {0};
	struct config_files files = {.project = "/proc/nonexistent/dlrun.yaml"};

	assert_true(config_load(&files, &config, &err) < 0);
}

static void test_secret_names(void **state)
{
	assert_true(config_name_is_secret("HF_TOKEN"));
	assert_true(config_name_is_secret("wandb_api_key"));
	assert_true(config_name_is_secret("DB_PASSWORD_FILE"));
	assert_true(config_name_is_secret("SECRET"));
	assert_false(config_name_is_secret("KEYBOARD"));
	assert_false(config_name_is_secret("MONKEYS"));
	assert_false(config_name_is_secret("TOKENIZERS_PARALLELISM"));
	assert_false(config_name_is_secret(""));
}

static void test_json_hides_secrets(void **state)
{
	AUTO_CONFIG struct config *config = NULL;
	AUTO_ERR struct err err = {0};
	AUTO_JSON struct json *json = NULL;
	AUTO_BUF struct buf text;

	assert_int_equal(load("env: {HF_TOKEN: canary, A: shown}\n", NULL, NULL, &config, &err), 0);
	json = config_to_json(config);
	buf_init(&text, 1 << 20);
	json_print(json, &text);
	assert_null(strstr(text.data, "canary"));
	assert_non_null(strstr(text.data, "shown"));
	assert_non_null(strstr(text.data, "\"source\":\"project\""));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_defaults),
		cmocka_unit_test(test_precedence),
		cmocka_unit_test(test_command_forms),
		cmocka_unit_test(test_collect),
		cmocka_unit_test(test_sweep),
		cmocka_unit_test(test_roles),
		cmocka_unit_test(test_errors),
		cmocka_unit_test(test_kubernetes_target),
		cmocka_unit_test(test_ssh_target),
		cmocka_unit_test(test_ports),
		cmocka_unit_test(test_the_contract),
		cmocka_unit_test(test_inside_a_run_variables_are_the_runs),
		cmocka_unit_test(test_missing_project_file_is_an_error),
		cmocka_unit_test(test_layers_are_blamed),
		cmocka_unit_test(test_secret_names),
		cmocka_unit_test(test_json_hides_secrets),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
