/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <signal.h>
#include <sys/stat.h>

#include "kube/api/credential.h"
#include "tests/unit/kubefix.h"
#include "tests/unit/tmpfix.h"
#include "tests/unit/until.h"

#define V1  "client.authentication.k8s.io/v1"
#define POD "{\"kind\":\"Pod\"}"

static const struct kube_request get_pod = {.method = "GET", .path = "/api/v1/namespaces/j/pods/a"};
static const char *env[] = {"PATH=/usr/local/bin:/usr/bin:/bin", "AWS_PROFILE=a", "TERM=x", NULL};

static char *in_tmp(const char *name)
{
	return mem_printf("%s/%s", tmp, name);
}

/* A script of sh; $T is the directory of the test. */
static char *program(const char *name, const char *text)
{
	AUTO_FREE char *all = mem_printf("#!/bin/sh\nT=%s\n%s\n", tmp, text);
	char *path = in_tmp(name);

	assert_int_equal(fs_replace(path, all, strlen(all), 0700, FS_SYNC_NONE, NULL), 0);
	return path;
}

static char *content(const char *name)
{
	AUTO_FREE char *path = in_tmp(name);
	AUTO_BUF struct buf text = {0};

	if (fs_read(path, 1 << 20, &text, NULL, NULL) < 0)
		return mem_strdup("");
	return buf_take(&text);
}

static bool exists(const char *name)
{
	AUTO_FREE char *path = in_tmp(name);

	return access(path, F_OK) == 0;
}

/* How often the plugin has run: it adds a line to this file. */
#define COUNT "echo run >>$T/runs\n"
static size_t n_runs(void)
{
	AUTO_FREE char *text = content("runs");

	return strlen(text) / strlen("run\n");
}

#define SAY(status)                                                                                \
	"printf %s '{\"kind\":\"ExecCredential\",\"apiVersion\":\"" V1 "\",\"status\":" status "}'"
#define SAY_UNTIL(token, time) SAY("{\"token\":\"" token "\",\"expirationTimestamp\":\"" time "\"}")
#define FAR                    "2999-01-01T00:00:00Z"

static struct kube_exec *exec_of(const char *command)
{
	struct kube_exec *exec = mem_alloc(1, sizeof(*exec));

	exec->command = mem_strdup(command);
	exec->api_version = mem_strdup(V1);
	exec->file = in_tmp("config");
	assert_int_equal(fs_replace(exec->file, "x", 1, 0600, FS_SYNC_NONE, NULL), 0);
	return exec;
}

static struct kube_exec *exec_script(const char *text)
{
	AUTO_FREE char *path = program("login", text);

	return exec_of(path);
}

static const struct step good[] = {{200, POD}};

static void begin(struct kube *kube, const struct step *steps, size_t n, struct kube_exec *exec)
{
	kube_init(kube, steps, n);
	kube->access.exec = exec;
}

static char *bearer(const struct kube *kube, int request)
{
	const char *from = strstr(kube->server->heads.v[request], "Authorization: Bearer ");

	assert_non_null(from);
	from += strlen("Authorization: Bearer ");
	return mem_strndup(from, strcspn(from, "\r"));
}

static void requested_with(const struct kube *kube, int request, const char *token)
{
	AUTO_FREE char *sent = bearer(kube, request);

	assert_string_equal(sent, token);
}

static void works(struct kube *kube)
{
	AUTO_ERR struct err err = {0};

	if (kube_query(kube->client, &get_pod, NULL, &err) < 0)
		fail_msg("%s", err.message);
}

/*
 * What it is told and answers
 */

static void test_notified(void **state)
{
	AUTO_KUBE struct kube kube;
	AUTO_FREE char *info = NULL, *args = NULL;
	struct kube_plugin_options plugin = {.env = env, .tty_fd = -1};

	begin(&kube, good, 1,
		exec_script("echo \"$KUBERNETES_EXEC_INFO\" >$T/info\n"
			    "echo \"$1|$2|$#|$EXTRA|$AWS_PROFILE|$UNSET\" >$T/args\n" SAY(
				    "{\"token\":\"t1\"}")));
	strv_add(&kube.access.exec->args, "a b");
	strv_add(&kube.access.exec->args, "$(c)");
	strv_add(&kube.access.exec->env, "EXTRA=e");
	strv_add(&kube.access.exec->env, "AWS_PROFILE=mine");
	kube.access.exec->provide_cluster_info = true;
	kube.access.exec->cluster_config = json_object();
	json_set_int(kube.access.exec->cluster_config, "n", 1);
	kube.access.ca_pem = mem_strdup("PEM");
	kube.access.server_name = mem_strdup("sni");
	kube.access.server.port = 1;
	kube_connect_with(&kube, &plugin);
	kube.access.server.port = kube.server->port;
	works(&kube);
	requested_with(&kube, 0, "t1");
	info = content("info");
	assert_string_equal(info,
		"{\"kind\":\"ExecCredential\",\"apiVersion\":\"" V1 "\",\"spec\":{\"cluster\":{"
		"\"server\":\"http://localhost:1/base\",\"tls-server-name\":\"sni\","
		"\"certificate-authority-data\":\"UEVN\",\"config\":{\"n\":1}},"
		"\"interactive\":false}}\n");
	args = content("args");
	assert_string_equal(args, "a b|$(c)|2|e|mine|\n");
}

/* Before anything is asked, once for all that wait. */
static void test_at_once(void **state)
{
	AUTO_KUBE struct kube kube;
	struct kube_plugin_options plugin = {.env = env, .tty_fd = -1};

	begin(&kube, good, 1,
		exec_script(COUNT
			"while ! [ -e $T/go ]; do sleep 0.01; done\n" SAY("{\"token\":\"t\"}")));
	kube_connect_with(&kube, &plugin);
	UNTIL(n_runs() == 1);
	AUTO_FREE char *go = in_tmp("go");
	assert_int_equal(fs_replace(go, "", 0, 0600, FS_SYNC_NONE, NULL), 0);
	works(&kube);
	works(&kube);
	assert_int_equal(n_runs(), 1);
}

struct result {
	struct loop *loop;
	int n;
	struct kube_login login;
	enum err_id id;
	char *message, *hint, *evidence;
};

static int take_login(void *ctx, const struct kube_login *login, struct err *error, struct err *err)
{
	struct result *result = ctx;

	result->n++;
	if (login)
		kube_login_copy(login, &result->login);
	if (error) {
		result->id = error->id;
		result->message = mem_strdup(error->message);
		result->hint = mem_strdup(error->hint);
		result->evidence = error->n_evidence ? mem_strdup(error->evidence[0]) : NULL;
	}
	loop_stop(result->loop);
	return 0;
}

static void result_done(struct result *result)
{
	kube_login_done(&result->login);
	free(result->message);
	free(result->hint);
	free(result->evidence);
}

/* One login, without a server. */
static void log_in(struct kube_exec *exec, int tty_fd, int64_t limit_ms, struct result *ret)
{
	AUTO_KUBE_ACCESS struct kube_access access = {.exec = exec,
		.cluster = mem_strdup("lab"),
		.user = mem_strdup("me"),
		.server = {.tls = true, .host = mem_strdup("h"), .port = 443}};
	struct loop *loop = loop_new();
	const struct kube_credential_options options = {.loop = loop,
		.access = &access,
		.plugin = {.env = env, .tty_fd = tty_fd},
		.limit_ms = limit_ms};
	struct kube_credential *credential = kube_credential_new(&options);

	*ret = (struct result){.loop = loop};
	kube_credential_want(credential, take_login, ret);
	assert_int_equal(loop_run(loop, NULL), 0);
	assert_int_equal(ret->n, 1);
	kube_credential_free(credential);
	loop_free(loop);
}

#define CERT "-----BEGIN CERTIFICATE-----\\nA\\n"
#define KEY  "-----BEGIN PRIVATE KEY-----\\nB\\n"

static void test_certificate(void **state)
{
	AUTO(result_done) struct result result = {0};

	log_in(exec_script("cat <<'E'\n{\"apiVersion\":\"" V1 "\",\"kind\":\"ExecCredential\","
			   "\"status\":{\"clientCertificateData\":\"" CERT "\","
			   "\"clientKeyData\":\"" KEY "\"}}\nE"),
		-1, 0, &result);
	assert_int_equal(result.id, E_NONE);
	assert_null(result.login.authorization);
	assert_string_equal(result.login.cert_pem, "-----BEGIN CERTIFICATE-----\nA\n");
	assert_string_equal(result.login.key_pem, "-----BEGIN PRIVATE KEY-----\nB\n");
}

/*
 * Failures
 */

static void fails(const char *text, int64_t limit_ms, const char *words)
{
	AUTO(result_done) struct result result = {0};

	log_in(exec_script(text), -1, limit_ms, &result);
	assert_int_equal(result.id, E_KUBE_PLUGIN);
	if (!strstr(result.message, words))
		fail_msg("\"%s\" is not in \"%s\"", words, result.message);
	if (strstr(result.message, "SECRET") ||
		(result.evidence && strstr(result.evidence, "SECRET")))
		fail_msg("told: %s", result.message);
}

static void test_failures(void **state)
{
	fails("exit 3", 0, "login, which logs in to the cluster lab, failed with exit status 3");
	fails("kill -9 $$", 0, "was killed by SIGKILL");
	fails("true", 0, "login, which logs in to the cluster lab, printed nothing");
	fails("echo SECRET", 0, "something else than an ExecCredential");
	fails("echo '{\"kind\":\"Secret\",\"token\":\"SECRET\"}'", 0, "something else");
	fails("echo '{\"kind\":\"ExecCredential\",\"status\":{\"token\":\"SECRET\"}}'", 0,
		"apiVersion nothing");
	fails("printf %s '{\"kind\":\"ExecCredential\",\"apiVersion\":\"" V1 "beta1\"}'", 0,
		"apiVersion client.authentication.k8s.io/v1beta1, but the kubeconfig says");
	fails(SAY("{}"), 0, "neither a token nor a certificate");
	fails(SAY("{\"token\":\"SECRET\\nX: y\"}"), 0, "spaces or control characters");
	fails(SAY("{\"clientKeyData\":\"SECRET\"}"), 0, "without the other");
	fails(SAY("{\"clientKeyData\":\"SECRET\",\"clientCertificateData\":\"x\"}"), 0, "PEM");
	fails(SAY_UNTIL("SECRET", "soon"), 0, "not a time");
	fails("s=SECRET; while echo $s; do s=$s$s; done", 0, "printed more than 1 MiB");
	fails("sleep 100", 200, "took longer than 0.2 s");
	fails("exec >&-; sleep 100", 200, "took longer than 0.2 s");
}

/* What it says, but neither all nor to the terminal. */
static void test_evidence(void **state)
{
	AUTO(result_done) struct result result = {0};

	log_in(exec_script("i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done >&2\n"
			   "printf 'the \\033[31m reason\\n  \\nlast' >&2; exit 1"),
		-1, 0, &result);
	assert_int_equal(result.id, E_KUBE_PLUGIN);
	assert_string_equal(result.evidence, "it said: line 1999");
}

static void test_missing(void **state)
{
	AUTO(result_done) struct result hinted = {0}, plain = {0};
	struct kube_exec *exec = exec_of("dlrun-no-such-login");

	exec->install_hint = mem_strdup("get it:\n\n   brew  install\033 it\n");
	log_in(exec, -1, 0, &hinted);
	assert_int_equal(hinted.id, E_KUBE_PLUGIN);
	assert_non_null(strstr(hinted.message, "is not installed"));
	assert_string_equal(hinted.hint, "get it: brew install\\x1b it");
	log_in(exec_of("dlrun-no-such-login"), -1, 0, &plain);
	assert_true(str_starts(plain.hint, "install dlrun-no-such-login, or correct exec: in "));
}

/* Less than what is waited before a plugin that failed is run again. */
enum { SOON_MS = 900, BEGINNINGS_MAX = 5 };

/* Two that ask one after the other. false: the second one came too late. */
static bool both_fail(struct kube *kube)
{
	AUTO_ERR struct err err = {0};
	struct kube_plugin_options plugin = {.env = env, .tty_fd = -1};
	int64_t start_ms = clock_ms();

	begin(kube, good, 1,
		exec_script(COUNT "[ -e $T/go ] || exit 1\n" SAY("{\"token\":\"t\"}")));
	kube_connect_with(kube, &plugin);
	assert_true(kube_query(kube->client, &get_pod, NULL, &err) < 0);
	assert_int_equal(err.id, E_KUBE_PLUGIN);
	assert_true(kube_query(kube->client, &get_pod, NULL, &err) < 0);
	return n_runs() == 1 || clock_ms() - start_ms <= SOON_MS;
}

/* It is told to whoever waits, and tried again for who comes later. */
static void test_fails_once(void **state)
{
	AUTO_KUBE struct kube kube;
	AUTO_FREE char *runs = in_tmp("runs");

	for (int i = 1; !both_fail(&kube) && i < BEGINNINGS_MAX; i++) {
		kube_done(&kube);
		assert_int_equal(unlink(runs), 0);
	}
	assert_int_equal(n_runs(), 1);
	AUTO_FREE char *go = in_tmp("go");
	assert_int_equal(fs_replace(go, "", 0, 0600, FS_SYNC_NONE, NULL), 0);
	UNTIL(kube_query(kube.client, &get_pod, NULL, NULL) == 0);
	assert_int_equal(n_runs(), 2);
}

/* It does not outlive who asks. */
static void test_killed(void **state)
{
	AUTO_KUBE struct kube kube;
	struct kube_plugin_options plugin = {.env = env, .tty_fd = -1};
	AUTO_FREE char *text = NULL;

	begin(&kube, good, 1, exec_script("echo $$ >$T/p; mv $T/p $T/pid; sleep 1000"));
	kube_connect_with(&kube, &plugin);
	UNTIL(exists("pid"));
	text = content("pid");
	kube_client_free(TAKE(kube.client));
	assert_int_equal(kill(atoi(text), 0), -1);
}

/*
 * Time
 */

static void test_refreshed(void **state)
{
	static const struct step steps[] = {
		{200, POD}, {401, ""}, {200, POD}, {401, ""}, {401, ""}, {200, POD}};
	AUTO_KUBE struct kube kube;
	AUTO_ERR struct err err = {0};
	struct kube_plugin_options plugin = {.env = env, .tty_fd = -1};

	begin(&kube, steps, ARRAY_LEN(steps),
		exec_script(COUNT "n=$(wc -l <$T/runs)\n"
				  "printf %s '{\"kind\":\"ExecCredential\",\"apiVersion\":\"" V1
				  "\",\"status\":{\"token\":\"t'$((n))'\"}}'"));
	kube_connect_with(&kube, &plugin);
	works(&kube);
	works(&kube);
	requested_with(&kube, 0, "t1");
	requested_with(&kube, 1, "t1");
	requested_with(&kube, 2, "t2");
	/* Once only for each request. */
	assert_true(kube_query(kube.client, &get_pod, NULL, &err) < 0);
	assert_int_equal(err.id, E_KUBE_AUTH);
	requested_with(&kube, 3, "t2");
	requested_with(&kube, 4, "t3");
	works(&kube);
	assert_int_equal(n_runs(), 3);
}

static void test_expired(void **state)
{
	AUTO_KUBE struct kube kube;
	AUTO_FREE char *cache = in_tmp("cache");
	struct kube_plugin_options plugin = {.env = env, .tty_fd = -1, .cache_dir = cache};

	begin(&kube, good, 1, exec_script(COUNT SAY_UNTIL("t", "2001-01-01T00:00:00Z")));
	kube_connect_with(&kube, &plugin);
	works(&kube);
	works(&kube);
	assert_int_equal(n_runs(), 2);
	assert_false(exists("cache"));
}

/* Made anew before it expires, without making anybody wait; the old one is used as long. */
static void test_stale(void **state)
{
	AUTO_KUBE struct kube kube;
	struct kube_plugin_options plugin = {.env = env, .tty_fd = -1};
	AUTO_FREE char *last = NULL;

	begin(&kube, good, 1,
		exec_script(COUNT "n=$(($(wc -l <$T/runs)))\n"
				  "[ $n = 2 ] && while ! [ -e $T/go ]; do sleep 0.01; done\n"
				  "t=$(date -u -d '+8 seconds' +%Y-%m-%dT%H:%M:%SZ)\n"
				  "[ $n = 2 ] && t=" FAR "\n"
				  "echo '{\"kind\":\"ExecCredential\",\"apiVersion\":\"" V1
				  "\",\"status\":{\"token\":\"t'$n'\",\"expirationTimestamp\":\"'"
				  "$t'\"}}'"));
	kube_connect_with(&kube, &plugin);
	while (n_runs() < 2) {
		works(&kube);
		requested_with(&kube, (int)kube.server->heads.n - 1, "t1");
		poll(NULL, 0, 20);
	}
	AUTO_FREE char *go = in_tmp("go");
	assert_int_equal(fs_replace(go, "", 0, 0600, FS_SYNC_NONE, NULL), 0);
	for (int64_t end_ms = clock_ms() + TIMEOUT_MS; !str_eq(last, "t2");) {
		assert_true(clock_ms() < end_ms);
		works(&kube);
		free(last);
		last = bearer(&kube, (int)kube.server->heads.n - 1);
	}
	assert_int_equal(n_runs(), 2);
}

/* Of the only file in the cache. */
static char *cached(mode_t *ret_mode)
{
	AUTO_FREE char *dir_name = in_tmp("cache");
	AUTO_DIR DIR *dir = opendir(dir_name);
	struct stat st;

	for (struct dirent *entry; dir && (entry = readdir(dir));) {
		if (*entry->d_name == '.')
			continue;
		char *path = mem_printf("%s/%s", dir_name, entry->d_name);
		assert_int_equal(stat(path, &st), 0);
		*ret_mode = st.st_mode & 07777;
		return path;
	}
	return NULL;
}

static void query_once(const char *const *vars, const char *token)
{
	AUTO_KUBE struct kube kube;
	AUTO_FREE char *cache = in_tmp("cache");
	struct kube_plugin_options plugin = {.env = vars, .tty_fd = -1, .cache_dir = cache};

	begin(&kube, good, 1, exec_script(COUNT SAY_UNTIL("t", FAR)));
	/* The same cluster each time, though the server has another port. */
	uint16_t port = kube.access.server.port;
	kube.access.server.port = 1;
	kube_connect_with(&kube, &plugin);
	kube.access.server.port = port;
	works(&kube);
	requested_with(&kube, 0, token);
}

static void test_cached(void **state)
{
	const char *const same[] = {"TERM=y", "AWS_PROFILE=a", env[0], "PWD=/", NULL};
	const char *const other[] = {"AWS_PROFILE=b", env[0], NULL};
	mode_t mode = 0;

	query_once(env, "t");
	assert_int_equal(n_runs(), 1);
	AUTO_FREE char *path = cached(&mode);
	assert_non_null(path);
	assert_int_equal(mode, 0600);
	query_once(env, "t");
	query_once(same, "t");
	assert_int_equal(n_runs(), 1);
	query_once(other, "t");
	assert_int_equal(n_runs(), 2);
	/* What others may have written, garbage, and what is about to expire is not believed. */
	assert_int_equal(chmod(path, 0644), 0);
	query_once(env, "t");
	assert_int_equal(n_runs(), 3);
	assert_int_equal(fs_replace(path, "{\"token\":1}", 11, 0600, FS_SYNC_NONE, NULL), 0);
	query_once(env, "t");
	assert_int_equal(n_runs(), 4);
	AUTO_FREE char *late = mem_printf(
		"{\"token\":\"x\",\"expires_ms\":%lld}", (long long)clock_wall_ms() + 30000);
	assert_int_equal(fs_replace(path, late, strlen(late), 0600, FS_SYNC_NONE, NULL), 0);
	query_once(env, "t");
	assert_int_equal(n_runs(), 5);
}

static void change_config(struct kube_access *access)
{
	access->exec->cluster_config = json_object();
	json_set_str(access->exec->cluster_config, "audience", "x");
}

static void change_notified(struct kube_access *access)
{
	access->exec->provide_cluster_info = true;
}

static void change_args(struct kube_access *access)
{
	strv_add(&access->exec->args, "--cluster-id=b");
}

static void change_env(struct kube_access *access)
{
	strv_add(&access->exec->env, "AWS_PROFILE=c");
}

static void change_server(struct kube_access *access)
{
	free(access->server.path);
	access->server.path = mem_strdup("/k8s/b");
}

static void change_name(struct kube_access *access)
{
	access->server_name = mem_strdup("b.example");
}

static void change_proxy(struct kube_access *access)
{
	access->proxy = mem_strdup("http://127.0.0.1:1");
}

/* What may lead to another token has a file of its own. */
static void test_cached_apart(void **state)
{
	static void (*const changes[])(struct kube_access * access) = {change_config,
		change_notified, change_args, change_env, change_server, change_name, change_proxy};
	AUTO_STRV struct strv paths = {0};
	AUTO_FREE char *command = program("login", "");

	for (size_t i = 0; i <= ARRAY_LEN(changes); i++) {
		AUTO_KUBE_ACCESS struct kube_access access = {0};
		const struct kube_plugin_options plugin = {.env = env, .cache_dir = "/cache"};

		access.server.host = mem_strdup("a.example");
		access.server.path = mem_strdup("");
		access.exec = exec_of(command);
		if (i > 0)
			changes[i - 1](&access);
		char *path = kube_cache_path(&access, &plugin);
		for (size_t k = 0; k < paths.n; k++)
			assert_string_not_equal(paths.v[k], path);
		strv_add_take(&paths, path);
	}
}

/* A cached token that the server refuses is made anew. */
static void test_cached_refused(void **state)
{
	static const struct step steps[] = {{200, POD}, {401, ""}, {200, POD}};
	AUTO_KUBE struct kube kube;
	AUTO_FREE char *cache = in_tmp("cache");
	struct kube_plugin_options plugin = {.env = env, .tty_fd = -1, .cache_dir = cache};

	begin(&kube, steps, 3, exec_script(COUNT SAY_UNTIL("t", FAR)));
	kube_connect_with(&kube, &plugin);
	works(&kube);
	kube_client_free(kube.client);
	kube_connect_with(&kube, &plugin);
	works(&kube);
	assert_int_equal(n_runs(), 2);
}

/*
 * Terminals
 */

static void test_always(void **state)
{
	AUTO(result_done) struct result result = {0};
	struct kube_exec *exec = exec_script(SAY("{\"token\":\"t\"}"));

	exec->interactive = KUBE_EXEC_ALWAYS;
	log_in(exec, -1, 0, &result);
	assert_int_equal(result.id, E_KUBE_PLUGIN);
	assert_non_null(strstr(result.message, "there is no terminal"));
	assert_string_equal(result.hint, "run dlrun in a terminal");
}

static void test_terminal(void **state)
{
	AUTO(result_done) struct result result = {0}, silent = {0};
	static const char script_text[] =
		"[ -t 0 ] && [ -t 2 ] || exit 1\n"
		"case $KUBERNETES_EXEC_INFO in *'\"interactive\":true'*) ;; *) exit 2;; esac\n"
		"sleep 0.3\n" SAY("{\"token\":\"t\"}");
	struct kube_exec *exec = exec_script(script_text);
	AUTO_FD int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);

	if (master < 0 || grantpt(master) < 0 || unlockpt(master) < 0)
		skip();
	AUTO_FD int tty = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
	assert_true(tty >= 0);
	exec->interactive = KUBE_EXEC_IF_AVAILABLE;
	/* The limit is for those that nobody waits for. */
	log_in(exec, tty, 100, &result);
	if (result.id)
		fail_msg("%s", result.message);
	assert_string_equal(result.login.authorization, "Bearer t");
	exec = exec_script(script_text);
	exec->interactive = KUBE_EXEC_NEVER;
	log_in(exec, tty, 0, &silent);
	assert_non_null(strstr(silent.message, "exit status 1"));
}

/*
 * Pins
 */

static int n_confirmed;
static int confirm_r;

static int confirm(void *ctx, const struct kube_exec *exec, struct err *err)
{
	assert_non_null(exec->command);
	n_confirmed++;
	return confirm_r < 0 ? err_set(err, E_KUBE_PLUGIN, "no") : 0;
}

/* Runs the plugin with one argument. */
static int pinned(const char *arg, bool queries, size_t *ret_notes, struct err *err)
{
	AUTO_KUBE struct kube kube;
	AUTO_FREE char *pins = in_tmp("state/pins");
	struct kube_plugin_options plugin = {
		.env = env, .tty_fd = -1, .pin_file = pins, .confirm = queries ? confirm : NULL};
	AUTO_FREE char *config = in_tmp("config");
	struct stat st;
	bool had_mode = stat(config, &st) == 0;

	begin(&kube, good, 1, exec_script(COUNT SAY("{\"token\":\"SECRET\"}")));
	if (had_mode) {
		assert_int_equal(chown(config, st.st_uid, st.st_gid), 0);
		assert_int_equal(chmod(config, st.st_mode & 0777), 0);
	}
	strv_add(&kube.access.exec->args, arg);
	kube_connect_with(&kube, &plugin);
	int r = kube_query(kube.client, &get_pod, NULL, err);
	*ret_notes = kube.notes.n;
	if (kube.notes.n)
		assert_non_null(strstr(kube.notes.v[0], "is another one than before: login"));
	return r;
}

static void test_pins(void **state)
{
	AUTO_ERR struct err err = {0};
	AUTO_FREE char *config = in_tmp("config");
	AUTO_FREE char *text = NULL;
	size_t n_notes;

	n_confirmed = confirm_r = 0;
	assert_int_equal(pinned("a", false, &n_notes, &err), 0);
	assert_int_equal(n_notes, 0);
	assert_int_equal(pinned("a", true, &n_notes, &err), 0);
	assert_int_equal(n_confirmed, 0);
	/* Another command: told, and from then on the known one. */
	assert_int_equal(pinned("b", false, &n_notes, &err), 0);
	assert_int_equal(n_notes, 1);
	assert_int_equal(pinned("b", false, &n_notes, &err), 0);
	assert_int_equal(n_notes, 0);
	confirm_r = -1;
	size_t runs = n_runs();
	assert_true(pinned("c", true, &n_notes, &err) < 0);
	assert_int_equal(err.id, E_KUBE_PLUGIN);
	assert_int_equal(n_confirmed, 1);
	assert_int_equal(n_runs(), runs);
	confirm_r = 0;
	assert_int_equal(pinned("c", true, &n_notes, &err), 0);
	assert_int_equal(n_confirmed, 2);
	text = content("state/pins");
	assert_null(strstr(text, "SECRET"));
	assert_non_null(strstr(text, "\"me\""));
	/* A kubeconfig that anybody can write to starts no programs of its own. */
	assert_int_equal(chmod(config, 0666), 0);
	assert_true(pinned("d", false, &n_notes, &err) < 0);
	assert_int_equal(err.id, E_KUBE_PLUGIN);
	assert_non_null(strstr(err.message, "can be written by other users"));
	assert_int_equal(pinned("c", false, &n_notes, &err), 0);
	/* Nor one that a group can write to, but for the user's own. */
	assert_int_equal(chmod(config, 0664), 0);
	if (geteuid() != 0)
		return;
	assert_int_equal(pinned("d", false, &n_notes, &err), 0);
	assert_int_equal(chown(config, 0, 4711), 0);
	assert_true(pinned("e", false, &n_notes, &err) < 0);
	assert_int_equal(err.id, E_KUBE_PLUGIN);
}

/*
 * Plain logins
 */

static void test_token_wins(void **state)
{
	AUTO_KUBE struct kube kube;

	begin(&kube, good, 1, exec_script(COUNT "exit 1"));
	kube.access.token = mem_strdup("t");
	kube_connect(&kube);
	works(&kube);
	requested_with(&kube, 0, "t");
	assert_int_equal(n_runs(), 0);
}

static void test_canceled(void **state)
{
	struct loop *loop = loop_new();
	struct kube_access access = {0};
	const struct kube_credential_options options = {
		.loop = loop, .access = &access, .plugin = {.tty_fd = -1}};
	struct kube_credential *credential = kube_credential_new(&options);
	AUTO(result_done) struct result result = {.loop = loop}, none = {.loop = loop};

	struct kube_login_wait *wait = kube_credential_want(credential, take_login, &none);
	kube_credential_want(credential, take_login, &result);
	kube_credential_cancel(wait);
	kube_credential_cancel(NULL);
	assert_int_equal(loop_run(loop, NULL), 0);
	assert_int_equal(result.n, 1);
	assert_int_equal(none.n, 0);
	assert_null(result.login.authorization);
	assert_false(kube_credential_refused(credential, result.login.generation));
	kube_credential_want(credential, take_login, &none);
	kube_credential_free(credential);
	loop_free(loop);
}

#define ROW(test) cmocka_unit_test_setup_teardown(test, make_tmp, remove_tmp)

int main(void)
{
	const struct CMUnitTest tests[] = {
		ROW(test_notified),
		ROW(test_at_once),
		ROW(test_certificate),
		ROW(test_failures),
		ROW(test_evidence),
		ROW(test_missing),
		ROW(test_fails_once),
		ROW(test_killed),
		ROW(test_refreshed),
		ROW(test_expired),
		ROW(test_stale),
		ROW(test_cached),
		ROW(test_cached_apart),
		ROW(test_cached_refused),
		ROW(test_always),
		ROW(test_terminal),
		ROW(test_pins),
		ROW(test_token_wins),
		ROW(test_canceled),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
