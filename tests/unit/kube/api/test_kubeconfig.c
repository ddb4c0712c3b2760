/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>
#include <sys/stat.h>

#include "base/data/json.h"
#include "base/util/buf.h"
#include "base/util/enc.h"
#include "base/util/str.h"
#include "kube/api/kubeconfig.h"
#include "tests/unit/tmpfix.h"

#define PEM "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
#define KEY "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"

static void put(const char *name, const char *text)
{
	AUTO_FREE char *path = mem_printf("%s/%s", tmp, name);
	AUTO_FREE char *dir = mem_strndup(path, (size_t)(strrchr(path, '/') - path));

	assert_int_equal(fs_mkdirs(dir, 0700, NULL), 0);
	assert_int_equal(fs_replace(path, text, strlen(text), 0600, FS_SYNC_NONE, NULL), 0);
}

static char *base64(const char *text)
{
	AUTO_BUF struct buf out;

	buf_init(&out, 1 << 20);
	base64_encode(text, strlen(text), &out);
	return buf_take(&out);
}

/* $KUBECONFIG below tmp. */
static int load(const char *list, struct kubeconfig **ret, struct err *err)
{
	const struct kubeconfig_env env = {.kubeconfig = list, .home = tmp, .cwd = tmp};

	return kubeconfig_load(&env, ret, err);
}

/* One context "c" over these members of its cluster and user, in flow style. */
static int try(const char *cluster, const char *user, struct kube_access *ret, struct err *err)
{
	AUTO_KUBECONFIG struct kubeconfig *config = NULL;
	AUTO_FREE char *text = mem_printf("apiVersion: v1\nkind: Config\ncurrent-context: c\n"
					  "contexts: [{name: c, context: {cluster: k, user: u}}]\n"
					  "clusters: [{name: k, cluster: {%s}}]\n"
					  "users: [{name: u, user: {%s}}]\n",
		cluster, user);

	put("config", text);
	int r = load("config", &config, err);
	return r < 0 ? r : kubeconfig_access(config, NULL, NULL, ret, err);
}

static void works(const char *cluster, const char *user, struct kube_access *ret)
{
	AUTO_ERR struct err err = {0};

	if (try(cluster, user, ret, &err) < 0)
		fail_msg("%s", err.message);
}

static void fails(const char *cluster, const char *user, const char *words)
{
	AUTO_KUBE_ACCESS struct kube_access access = {0};
	AUTO_ERR struct err err = {0};

	assert_true(try(cluster, user, &access, &err) < 0);
	assert_int_equal(err.id, E_KUBE_CONFIG);
	if (!strstr(err.message, words))
		fail_msg("\"%s\" is not in \"%s\"", words, err.message);
	assert_null(access.context);
	assert_null(access.exec);
}

#define SERVER "server: 'https://k.example:6443'"

static void test_first_file_wins(void **state)
{
	AUTO_KUBECONFIG struct kubeconfig *config = NULL;
	AUTO_KUBE_ACCESS struct kube_access access = {0};
	AUTO_STRV struct strv names = {0}, files = {0};

	put("a", "current-context: ''\n"
		 "contexts: [{name: x, context: {cluster: k, user: u}}]\n"
		 "users: [{name: u, user: {token: first}}]\n");
	put("b", "current-context: x\n"
		 "contexts: [{name: x, context: {cluster: other, namespace: n2}},"
		 " {name: y, context: {cluster: k}}]\n"
		 "clusters: [{name: k, cluster: {server: 'https://b.example'}}]\n");
	put("c", "current-context: y\n"
		 "clusters: [{name: k, cluster: {server: 'https://c.example'}}]\n"
		 "users: [{name: u, user: {token: last}}]\n");
	assert_int_equal(load("a:missing::b:a:c", &config, NULL), 0);
	assert_string_equal(kubeconfig_current(config), "x");
	kubeconfig_contexts(config, &names);
	assert_int_equal(names.n, 2);
	assert_string_equal(names.v[0], "x");
	assert_string_equal(names.v[1], "y");
	kubeconfig_files(config, &files);
	assert_int_equal(files.n, 3);
	assert_true(str_ends(files.v[0], "/a"));
	assert_int_equal(kubeconfig_access(config, NULL, NULL, &access, NULL), 0);
	assert_string_equal(access.context, "x");
	assert_string_equal(access.cluster, "k");
	assert_string_equal(access.user, "u");
	assert_string_equal(access.token, "first");
	assert_string_equal(access.server.host, "b.example");
	assert_int_equal(access.server.port, 443);
	assert_string_equal(access.server.path, "");
	assert_string_equal(access.kube_namespace, "default");
	kube_access_done(&access);
	assert_int_equal(kubeconfig_access(config, "y", "mine", &access, NULL), 0);
	assert_string_equal(access.kube_namespace, "mine");
	assert_null(access.token);
}

static void test_json(void **state)
{
	AUTO_KUBECONFIG struct kubeconfig *config = NULL;
	AUTO_KUBE_ACCESS struct kube_access access = {0};

	put("j",
		" {\"kind\":\"Config\",\"current-context\":\"\\u0063\",\n"
		"\t\"contexts\":[{\"name\":\"c\",\"context\":{\"cluster\":\"k\"}}],\n"
		"\t\"clusters\":[{\"name\":\"k\",\"cluster\":{\"server\":\"https:\\/\\/h\\/p\\/\"}}],"
		"\"users\":null}");
	assert_int_equal(load("j", &config, NULL), 0);
	assert_int_equal(kubeconfig_access(config, NULL, NULL, &access, NULL), 0);
	assert_string_equal(access.server.path, "/p");
}

/* Each path is seen from its own file. */
static void test_files(void **state)
{
	AUTO_KUBECONFIG struct kubeconfig *config = NULL;
	AUTO_KUBE_ACCESS struct kube_access access = {0};
	AUTO_FREE char *path = mem_printf("%s/two/sub/token", tmp);

	put("one/config", "current-context: c\n"
			  "contexts: [{name: c, context: {cluster: k, user: u}}]\n"
			  "clusters: [{name: k, cluster: {server: 'https://h', "
			  "certificate-authority: pki/ca.crt}}]\n");
	put("one/pki/ca.crt", PEM);
	put("two/config", "users: [{name: u, user: {client-certificate: ../c.crt, "
			  "client-key: sub/c.key, tokenFile: sub/token}}]\n");
	put("c.crt", PEM);
	put("two/sub/c.key", KEY);
	assert_int_equal(load("one/config:two/config", &config, NULL), 0);
	assert_int_equal(kubeconfig_access(config, NULL, NULL, &access, NULL), 0);
	assert_string_equal(access.ca_pem, PEM);
	assert_string_equal(access.cert_pem, PEM);
	assert_string_equal(access.key_pem, KEY);
	assert_string_equal(access.token_file, path);
	assert_ptr_equal(access.tls.ca_pem, access.ca_pem);
	assert_ptr_equal(access.tls.cert_pem, access.cert_pem);
	assert_ptr_equal(access.tls.key_pem, access.key_pem);
}

static void test_data_wins(void **state)
{
	AUTO_KUBE_ACCESS struct kube_access access = {0};
	AUTO_FREE char *pem = base64(PEM), *key = base64(KEY);
	AUTO_FREE char *cluster = mem_printf(
		SERVER ", certificate-authority: nowhere, certificate-authority-data: %s", pem);
	AUTO_FREE char *user = mem_printf("client-certificate-data: \"%.8s\\n %s\\n\", "
					  "client-key: nowhere, client-key-data: %s",
		pem, pem + 8, key);

	works(cluster, user, &access);
	assert_string_equal(access.ca_pem, PEM);
	assert_string_equal(access.cert_pem, PEM);
	assert_string_equal(access.key_pem, KEY);
}

static void test_bad_pem(void **state)
{
	AUTO_FREE char *pem = base64(PEM);
	AUTO_FREE char *no_key = mem_printf("client-certificate-data: %s", pem);
	AUTO_FREE char *huge = mem_alloc(1, (1 << 20) + 2);

	fails(SERVER ", certificate-authority-data: '!!'", "", "is not valid base64");
	fails(SERVER ", certificate-authority-data: YWJj", "", "is not in PEM form");
	fails(SERVER ", certificate-authority: nowhere", "", "nowhere");
	fails(SERVER ", certificate-authority: .", "", "certificate-authority");
	fails(SERVER, no_key, "it has a client-certificate and no client-key");
	memset(huge, 'a', (1 << 20) + 1);
	put("huge", huge);
	fails(SERVER ", certificate-authority: huge", "", "certificate-authority");
}

static void test_users(void **state)
{
	AUTO_KUBE_ACCESS struct kube_access access = {0};

	works(SERVER,
		"username: u, password: p, as: boss, as-uid: '7', as-groups: [a, b], "
		"as-user-extra: {reason: [x, 'y=z']}",
		&access);
	assert_string_equal(access.username, "u");
	assert_string_equal(access.password, "p");
	assert_string_equal(access.as, "boss");
	assert_string_equal(access.as_uid, "7");
	assert_int_equal(access.as_groups.n, 2);
	assert_string_equal(access.as_groups.v[1], "b");
	assert_int_equal(access.as_extra.n, 2);
	assert_string_equal(access.as_extra.v[1], "reason=y=z");
	kube_access_done(&access);
	works(SERVER, "token: t, tokenFile: /a/b", &access);
	assert_string_equal(access.token, "t");
	assert_string_equal(access.token_file, "/a/b");
}

static void test_bad_users(void **state)
{
	fails(SERVER, "token: 12", "token must be text");
	fails(SERVER, "token: [a]", "token must be text");
	fails(SERVER, "token: \"a\\nX: b\"", "line breaks");
	fails(SERVER, "token: t, username: u", "only one can be used");
	fails(SERVER, "username: 'a:b'", "colon");
	fails(SERVER, "as-groups: [a]", "without as");
	fails(SERVER, "as: \"a\\r\\nX-A: b\"", "control characters");
	fails(SERVER, "as: a, as-groups: [\"a\\nb\"]", "list of texts");
	fails(SERVER, "as: a, as-groups: [[]]", "list of texts");
	fails(SERVER, "as: a, as-user-extra: {\"a\\n\": [b]}", "lists of texts");
}

static void test_provider(void **state)
{
	AUTO_KUBE_ACCESS struct kube_access access = {0};
	AUTO_ERR struct err err = {0};

	assert_true(try(SERVER, "auth-provider: {name: azure, config: {}}", &access, &err) < 0);
	assert_int_equal(err.id, E_KUBE_CONFIG);
	assert_non_null(strstr(err.message, "auth-provider \"azure\" is not supported"));
	assert_string_equal(err.hint, "kubelogin convert-kubeconfig");
	fails(SERVER, "auth-provider: {}", "auth-provider");
}

static void test_clusters(void **state)
{
	AUTO_KUBE_ACCESS struct kube_access access = {0};

	works("server: 'https://h/k8s/clusters/c-1/?x=y', insecure-skip-tls-verify: true, "
	      "tls-server-name: api.example, proxy-url: 'socks5://p.example:1'",
		"token: t", &access);
	assert_string_equal(access.server.path, "/k8s/clusters/c-1");
	assert_string_equal(access.tls.server_name, "api.example");
	assert_true(access.tls.insecure);
	assert_string_equal(access.proxy, "socks5h://p.example:1");
	assert_int_equal(access.warnings.n, 1);
	assert_non_null(strstr(access.warnings.v[0], "is not checked"));
	kube_access_done(&access);
	works("server: 'http://h', insecure-skip-tls-verify: false", "token: t", &access);
	assert_null(access.token);
	assert_int_equal(access.warnings.n, 1);
	assert_non_null(strstr(access.warnings.v[0], "without encryption"));
	kube_access_done(&access);
	works("server: 'http://127.0.0.1:8001', proxy-url: 'https://u:p@p.example'", "", &access);
	assert_int_equal(access.warnings.n, 0);
	assert_string_equal(access.proxy, "https://u:p@p.example:443");
}

static void test_bad_clusters(void **state)
{
	fails("", "", "it has no server");
	fails("server: 'h:6443'", "", "does not begin with https://");
	fails("server: 'ftp://h'", "", "server");
	fails("server: 'https://u:p@h'", "", "server");
	fails("server: 1", "", "must be text");
	fails(SERVER ", proxy-url: 'ftp://h'", "", "proxy-url");
	fails(SERVER ", proxy-url: 'h:80'", "", "proxy-url");
	fails(SERVER ", insecure-skip-tls-verify: 'true'", "", "true or false");
	fails(SERVER ", insecure-skip-tls-verify: true, certificate-authority-data: "
		     "LS0tLS1CRUdJTiA=",
		"", "cannot be used together");
}

#define V1 "apiVersion: client.authentication.k8s.io/v1"

static void test_exec(void **state)
{
	AUTO_KUBE_ACCESS struct kube_access access = {0};
	AUTO_BUF struct buf out;
	AUTO_FREE char *path = mem_printf("%s/./bin/login", tmp);
	AUTO_FREE char *file = mem_printf("%s/config", tmp);

	buf_init(&out, 1000);
	works(SERVER ", extensions: [{name: other, extension: 1}, "
		     "{name: client.authentication.k8s.io/exec, extension: {a: 1, b: [x]}}]",
		"exec: {" V1 ", command: ./bin/login, args: [a, 'b c'], interactiveMode: Always, "
		"env: [{name: A, value: '1'}, {name: B, value: ''}, {name: A, value: '2'}], "
		"installHint: get it, provideClusterInfo: true}",
		&access);
	const struct kube_exec *exec = access.exec;
	assert_non_null(exec);
	assert_string_equal(exec->command, path);
	assert_string_equal(exec->file, file);
	assert_int_equal(exec->args.n, 2);
	assert_string_equal(exec->args.v[1], "b c");
	assert_int_equal(exec->env.n, 2);
	assert_string_equal(exec->env.v[0], "A=2");
	assert_string_equal(exec->env.v[1], "B=");
	assert_string_equal(exec->install_hint, "get it");
	assert_true(exec->provide_cluster_info);
	assert_int_equal(exec->interactive, KUBE_EXEC_ALWAYS);
	json_print(exec->cluster_config, &out);
	assert_string_equal(out.data, "{\"a\":1,\"b\":[\"x\"]}");
	kube_access_done(&access);
	works(SERVER, "exec: {apiVersion: client.authentication.k8s.io/v1beta1, command: aws}",
		&access);
	assert_string_equal(access.exec->command, "aws");
	assert_int_equal(access.exec->interactive, KUBE_EXEC_IF_AVAILABLE);
	assert_null(access.exec->cluster_config);
}

static void test_bad_exec(void **state)
{
	fails(SERVER, "exec: []", "exec must be a map");
	fails(SERVER, "exec: {" V1 "}", "command is missing");
	fails(SERVER, "exec: {command: a}", "apiVersion is missing");
	fails(SERVER, "exec: {" V1 ", command: a}", "interactiveMode is missing");
	fails(SERVER, "exec: {" V1 ", command: a, interactiveMode: x}", "none of Never");
	fails(SERVER, "exec: {" V1 "alpha1, command: a}", "v1alpha1 is not supported");
	fails(SERVER, "exec: {" V1 ", command: a, args: [1]}", "args must be");
	fails(SERVER, "exec: {" V1 ", command: [a]}", "command must be text");
	fails(SERVER, "exec: {" V1 ", command: a, env: [{name: 'A=B', value: c}]}", "env must be");
	fails(SERVER, "exec: {" V1 ", command: a, env: [{value: c}]}", "env must be");
}

static void refused(const char *text, const char *words)
{
	AUTO_KUBECONFIG struct kubeconfig *config = NULL;
	AUTO_ERR struct err err = {0};

	put("config", text);
	assert_true(load("config", &config, &err) < 0);
	assert_int_equal(err.id, E_KUBE_CONFIG);
	if (!strstr(err.message, words))
		fail_msg("\"%s\" is not in \"%s\"", words, err.message);
	assert_null(config);
}

static void test_bad_files(void **state)
{
	AUTO_FREE char *deep = mem_alloc(1, 1001);
	AUTO_FREE char *huge = mem_alloc(1, (1 << 20) + 2);

	refused("a: [", "config:2:1: ");
	refused("\n\n\ta: b", "config:");
	refused("{\"a\": 1, \"a\": 2}", "config");
	refused("- a", "must be a map");
	refused("kind: Pod", "its kind is Pod, not Config");
	refused("apiVersion: v2", "its apiVersion is v2");
	refused("contexts: {}", "contexts must be a list");
	refused("contexts: [{context: {}}]", "has no name");
	refused("contexts: [a]", "has no name");
	refused("users: [{name: a, user: x}]", "user \"a\": it must be a map");
	refused("users: [{name: a}, {name: b}, {name: a}]", "user \"a\": it is there twice");
	refused("current-context: []", "current-context must be text");
	refused("a: &x b\nc: *x", "config:");
	memset(deep, '[', 1000);
	refused(deep, "config");
	memset(huge, '#', (1 << 20) + 1);
	refused(huge, "config");
}

static void test_contexts(void **state)
{
	AUTO_KUBECONFIG struct kubeconfig *config = NULL;
	AUTO_KUBE_ACCESS struct kube_access access = {0};
	AUTO_ERR struct err err = {0};

	put("config", "contexts: [{name: prod, context: {cluster: k, user: u}}, {name: dev},"
		      " {name: n, context: {cluster: c, namespace: Not_One}},"
		      " {name: l, context: {cluster: c, user: u}}]\n"
		      "clusters: [{name: c, cluster: {server: 'https://h'}}]");
	assert_int_equal(load("config", &config, &err), 0);
	assert_null(kubeconfig_current(config));
	assert_true(kubeconfig_access(config, NULL, NULL, &access, &err) < 0);
	assert_int_equal(err.id, E_KUBE_CONTEXT);
	assert_string_equal(err.hint, "kubectl config use-context prod");
	assert_true(kubeconfig_access(config, "prd", NULL, &access, &err) < 0);
	assert_int_equal(err.id, E_KUBE_CONTEXT);
	assert_string_equal(err.hint, "did you mean prod?");
	assert_true(kubeconfig_access(config, "zzzzzzzz", NULL, &access, &err) < 0);
	assert_string_equal(err.hint, "kubectl config get-contexts");
	assert_true(kubeconfig_access(config, "prod", NULL, &access, &err) < 0);
	assert_non_null(strstr(err.message, "it names the cluster \"k\", which no kubeconfig has"));
	assert_true(kubeconfig_access(config, "l", NULL, &access, &err) < 0);
	assert_non_null(strstr(err.message, "it names the user \"u\", which no kubeconfig has"));
	assert_true(kubeconfig_access(config, "dev", NULL, &access, &err) < 0);
	assert_non_null(strstr(err.message, "it names no cluster"));
	assert_true(kubeconfig_access(config, "n", NULL, &access, &err) < 0);
	assert_non_null(strstr(err.message, "\"Not_One\" cannot be a namespace"));
	assert_int_equal(kubeconfig_access(config, "n", "ok", &access, &err), 0);
}

static void test_home(void **state)
{
	AUTO_KUBECONFIG struct kubeconfig *config = NULL;
	AUTO_ERR struct err err = {0};
	struct kubeconfig_env env = {.home = tmp, .cwd = "/"};
	AUTO_FREE char *link = mem_printf("%s/link", tmp);
	AUTO_FREE char *file = mem_printf("%s/.kube/config", tmp);

	assert_true(kubeconfig_load(&env, &config, &err) < 0);
	assert_int_equal(err.id, E_KUBE_NO_CONFIG);
	put(".kube/config", "kind: Config");
	assert_true(kubeconfig_load(&env, &config, &err) < 0);
	assert_int_equal(err.id, E_KUBE_NO_CONFIG);
	assert_non_null(strstr(err.message, "names no context"));
	put(".kube/config", "contexts: [{name: a}]");
	assert_int_equal(kubeconfig_load(&env, &config, &err), 0);
	kubeconfig_free(TAKE(config));

	/* What comes with the code is not believed by itself, also by another name. */
	env.tree = tmp;
	assert_true(kubeconfig_load(&env, &config, &err) < 0);
	assert_int_equal(err.id, E_KUBE_NO_CONFIG);
	assert_non_null(strstr(err.hint, "export KUBECONFIG="));
	assert_int_equal(symlink(tmp, link), 0);
	env.home = link;
	assert_true(kubeconfig_load(&env, &config, &err) < 0);
	env.kubeconfig = file;
	assert_int_equal(kubeconfig_load(&env, &config, &err), 0);
	kubeconfig_free(TAKE(config));
	env.kubeconfig = "/nowhere/a:/nowhere/b";
	assert_true(kubeconfig_load(&env, &config, &err) < 0);
	assert_int_equal(err.id, E_KUBE_NO_CONFIG);
}

static void test_in_cluster(void **state)
{
	AUTO_KUBECONFIG struct kubeconfig *config = NULL;
	AUTO_KUBE_ACCESS struct kube_access access = {0};
	AUTO_FREE char *account = mem_printf("%s/account", tmp);
	AUTO_FREE char *token = mem_printf("%s/account/token", tmp);
	AUTO_STRV struct strv names = {0};
	struct kubeconfig_env env = {.home = tmp,
		.cwd = "/",
		.service_host = "fd00::1",
		.service_port = "443",
		.service_account_dir = account};

	assert_true(kubeconfig_load(&env, &config, NULL) < 0);
	put("account/token", "t\n");
	put("account/ca.crt", PEM "\n");
	put("account/namespace", "jobs\n");
	assert_int_equal(kubeconfig_load(&env, &config, NULL), 0);
	assert_string_equal(kubeconfig_current(config), "in-cluster");
	kubeconfig_contexts(config, &names);
	assert_int_equal(names.n, 1);
	assert_int_equal(kubeconfig_access(config, NULL, NULL, &access, NULL), 0);
	assert_string_equal(access.server.host, "fd00::1");
	assert_string_equal(access.server.path, "");
	assert_string_equal(access.token_file, token);
	assert_string_equal(access.kube_namespace, "jobs");
	assert_non_null(access.tls.ca_pem);
	kube_access_done(&access);
	assert_int_equal(kubeconfig_access(config, "in-cluster", "other", &access, NULL), 0);
	assert_string_equal(access.kube_namespace, "other");
	kubeconfig_free(TAKE(config));
	put(".kube/config", "contexts: [{name: a}]");
	assert_int_equal(kubeconfig_load(&env, &config, NULL), 0);
	assert_null(kubeconfig_current(config));
}

static void test_many_files(void **state)
{
	AUTO_KUBECONFIG struct kubeconfig *config = NULL;
	AUTO_BUF struct buf list;
	AUTO_ERR struct err err = {0};

	buf_init(&list, 10000);
	for (int i = 0; i < 65; i++)
		buf_addf(&list, "f%d:", i);
	assert_true(load(list.data, &config, &err) < 0);
	assert_int_equal(err.id, E_KUBE_CONFIG);
}

#define ROW(test) cmocka_unit_test_setup_teardown(test, make_tmp, remove_tmp)

int main(void)
{
	const struct CMUnitTest tests[] = {
		ROW(test_first_file_wins),
		ROW(test_json),
		ROW(test_files),
		ROW(test_data_wins),
		ROW(test_bad_pem),
		ROW(test_users),
		ROW(test_bad_users),
		ROW(test_provider),
		ROW(test_clusters),
		ROW(test_bad_clusters),
		ROW(test_exec),
		ROW(test_bad_exec),
		ROW(test_bad_files),
		ROW(test_contexts),
		ROW(test_home),
		ROW(test_in_cluster),
		ROW(test_many_files),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
