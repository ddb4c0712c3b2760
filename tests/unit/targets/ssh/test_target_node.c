/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/record/spec.h"
#include "targets/ssh/node_job.h"
#include "targets/ssh/node_open.h"
#include "targets/ssh/target_gang.h"
#include "targets/ssh/target_node.h"
#include "targets/ssh/target_pool.h"

#define RUN_ID "resnet-3k2f9"

/*
 * Handles
 */

static void test_handles(void **state)
{
	static const struct {
		const char *text, *host;
		int attempt; /* 0: refused */
	} cases[] = {
		{"ssh:gpu1/" RUN_ID "/1", "gpu1", 1},
		{"ssh:me@gpu2/" RUN_ID "/12", "me@gpu2", 12},
		{"ssh:ssh://me@gpu2:2222/" RUN_ID "/3", "ssh://me@gpu2:2222", 3},
		{"ssh:[::1]/" RUN_ID "/1", "[::1]", 1},
		{"", NULL, 0},
		{"ssh:", NULL, 0},
		{"ssh:/" RUN_ID "/1", NULL, 0},
		{"ssh:gpu1/" RUN_ID, NULL, 0},
		{"ssh:gpu1/" RUN_ID "/0", NULL, 0},
		{"ssh:gpu1/" RUN_ID "/x", NULL, 0},
		{"ssh:gpu1/" RUN_ID "/99999999999", NULL, 0},
		{"ssh:gpu1/Resnet/1", NULL, 0},
		{"ssh:gpu1/../1", NULL, 0},
		{"kube:gpu1/" RUN_ID "/1", NULL, 0},
		{"machine:" RUN_ID "/1", NULL, 0},
		{"/1", NULL, 0},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO_ERR struct err err = {0};
		struct node_handle handle;
		int r = node_handle_parse(cases[i].text, &handle, &err);

		if (cases[i].attempt == 0) {
			assert_int_equal(r, -ERR_IO);
			assert_int_equal(err.id, E_DATA);
			assert_null(handle.host);
			continue;
		}
		assert_int_equal(r, 0);
		assert_string_equal(handle.host, cases[i].host);
		assert_string_equal(handle.run_id, RUN_ID);
		assert_int_equal(handle.attempt, cases[i].attempt);
		AUTO_FREE char *again =
			node_handle_text(handle.host, handle.run_id, handle.attempt);
		assert_string_equal(again, cases[i].text);
		node_handle_done(&handle);
	}
}

/* Of an attempt that several hosts wait for; its rank is on none of them yet. */
static void test_handles_of_a_pool(void **state)
{
	static const char text[] = "ssh:gpu1|me@gpu2:22|[::1]/" RUN_ID "/2";
	AUTO(node_handle_done) struct node_handle handle = {0};
	AUTO(target_status_done) struct target_status status = {0};
	AUTO_STRV struct strv hosts = {0};
	AUTO_ERR struct err err = {0};
	char *one;

	assert_true(node_handle_is_pool(text));
	assert_false(node_handle_is_pool("ssh:gpu1/" RUN_ID "/2"));
	assert_false(node_handle_is_gang(text));
	assert_int_equal(node_handle_parse(text, &handle, &err), 0);
	node_handle_split(handle.host, &hosts);
	assert_int_equal(hosts.n, 3);
	assert_string_equal(hosts.v[1], "me@gpu2:22");
	assert_true(node_handle_rank(text, -1, &one, &err) < 0);
	assert_int_equal(err.id, E_NODE_FAILED);
	target_pool_set_host(&handle, hosts.v[2], &status);
	assert_string_equal(status.handle, "ssh:[::1]/" RUN_ID "/2");
	assert_string_equal(json_str(json_first(json_get(status.where, "hosts"))), "[::1]");
}

/*
 * States
 */

struct expected {
	const char *state, *fields; /* "key=value key=value" */
	enum run_state run_state;
	int code, signal; /* of an end; code -1: none */
	const char *origin, *reason, *text;
};

static void fill(const struct expected *expected, struct node_attempt *ret)
{
	AUTO_FREE char *words = mem_strdup(expected->fields);
	char *rest = words;

	*ret = (struct node_attempt){.state = mem_strdup(expected->state)};
	for (char *word; (word = strsep(&rest, " "));) {
		char *value = strchr(word, '=');
		if (!value)
			continue;
		struct node_field *field = vec_push(&ret->fields);
		field->key = mem_strndup(word, (size_t)(value - word));
		field->value = mem_strdup(value + 1);
	}
}

static void done(struct node_attempt *attempt)
{
	vec_foreach (struct node_field, field, &attempt->fields) {
		free(field->key);
		free(field->value);
	}
	vec_done(&attempt->fields);
	free(attempt->state);
}

static void check_status(const struct expected *expected)
{
	AUTO(target_status_done) struct target_status status = {0};
	struct node_attempt attempt;

	fill(expected, &attempt);
	target_node_status(NULL, &attempt, &status);
	done(&attempt);
	assert_int_equal(status.state, expected->run_state);
	assert_int_equal(status.exit.known, expected->code >= 0);
	if (expected->text)
		assert_string_equal(status.text, expected->text);
	if (expected->code < 0)
		return;
	assert_int_equal(status.exit.code, expected->code);
	assert_int_equal(status.exit.signal, expected->signal);
	assert_string_equal(status.exit.origin, expected->origin);
	assert_string_equal(status.exit.reason, expected->reason);
}

static void test_states(void **state)
{
	static const struct expected cases[] = {
		{"running", "started=5", RUN_RUNNING, -1, 0, NULL, NULL, NULL},
		{"queued", "text=busy", RUN_QUEUED, -1, 0, NULL, NULL, "busy"},
		{"succeeded", "code=0 reason=Completed ended=7", RUN_SUCCEEDED, 0, 0, "job",
			"Completed", NULL},
		{"failed", "code=3 reason=Error", RUN_FAILED, 3, 0, "job", "Error",
			"the program exited with 3"},
		{"failed", "code=137 signal=KILL", RUN_FAILED, 137, 9, "job", "Signal",
			"the program was killed by SIGKILL"},
		/* a signal is never exit 0 */
		{"failed", "code=0 signal=9 reason=Signal", RUN_FAILED, 137, 9, "job", "Signal",
			NULL},
		{"failed", "code=124 reason=Timeout", RUN_FAILED, 124, 0, "dlrun", "Timeout", NULL},
		{"failed", "code=1 reason=SetupFailed text=no", RUN_FAILED, 1, 0, "setup",
			"SetupFailed", "no"},
		{"cancelled", "", RUN_CANCELLED, 143, 0, "dlrun", "Cancelled", "it was cancelled"},
		{"lost", "", RUN_LOST, 125, 0, "dlrun", "Lost", NULL},
		{"failed", "", RUN_FAILED, 1, 0, "job", "Error", NULL},
		/* words of a later version */
		{"dreaming", "code=x", RUN_UNKNOWN, -1, 0, NULL, NULL, NULL},
		{"failed", "code=2 reason=Bored", RUN_FAILED, 2, 0, "dlrun", "Error", NULL},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++)
		check_status(&cases[i]);
}

static void test_observed(void **state)
{
	static const struct expected expected = {"running",
		"cpu_s=12.5 memory_peak_bytes=1024 gpu_busy=0.5 cpu=1.5 gpus=0,2 time=1000 "
		"gpu_memory_peak_bytes=many energy_j=-1",
		RUN_RUNNING, -1, 0, NULL, NULL, NULL};
	AUTO(target_status_done) struct target_status status = {0};
	struct node_attempt attempt;

	fill(&expected, &attempt);
	target_node_status(NULL, &attempt, &status);
	done(&attempt);
	const struct json *usage = json_get(status.observed, "usage");
	assert_int_equal(json_get_int(usage, "memory_peak_bytes", 0), 1024);
	assert_null(json_get(usage, "gpu_memory_peak_bytes"));
	assert_null(json_get(usage, "energy_j"));
	assert_non_null(json_get(json_get(status.observed, "now"), "cpu"));
	assert_int_equal(json_get_int(json_get(status.observed, "resources"), "gpus", 0), 2);
}

/*
 * The job, as a shell reads it
 */

static const char reader[] = "set_command() { for a; do printf '<%s>' \"$a\"; done; }\n"
			     "default() { printf '[%s=%s]' \"$1\" \"$2\"; }\n"
			     "link_data() { printf '{%s>%s}' \"$1\" \"$2\"; }\n"
			     "link_output() { printf '{%s}' \"$1\"; }\n";

static char *read_by_shell(const char *job, const char *lines)
{
	char script[] = "/tmp/dlrun-test-job-XXXXXX";
	AUTO_FD int fd = mkstemp(script);
	struct buf out;
	char chunk[4096];
	size_t n;

	assert_true(fd >= 0);
	assert_int_equal(dprintf(fd, "%s%s%s\n", reader, job, lines),
		strlen(reader) + strlen(job) + strlen(lines) + 1);
	AUTO_FREE char *command = mem_printf("sh %s", script);
	FILE *pipe = popen(command, "r");
	buf_init(&out, 1 << 20);
	while ((n = fread(chunk, 1, sizeof(chunk), pipe)) > 0)
		buf_add(&out, chunk, n);
	assert_int_equal(pclose(pipe), 0);
	unlink(script);
	return out.data;
}

struct making {
	struct spec spec;
	struct strv env, defaults, secrets;
	struct target_job job;
	const struct node_rank *rank;
	struct buf text, secret_text;
};

static void making_init(struct making *making)
{
	*making = (struct making){0};
	making->spec.cwd = mem_strdup("exp/a");
	strv_add(&making->spec.command, "echo");
	strv_add(&making->spec.command, "it's \"$HOME\" `x` \\ * ? !\n\t\x01\xff");
	strv_add(&making->spec.command, "");
	strv_add(&making->spec.command, "-n");
}

static void make(struct making *making)
{
	making->spec.timeout_ms = 5000;
	making->spec.grace_ms = 10000;
	making->job = (struct target_job){
		.run_id = RUN_ID,
		.attempt = 2,
		.spec = &making->spec,
		.env = &making->env,
		.default_env = &making->defaults,
		.secret_env = &making->secrets,
	};
	buf_init(&making->text, 1 << 20);
	buf_init(&making->secret_text, 1 << 20);
	assert_int_equal(node_job_make(NULL, &making->job, NULL, NULL, NULL, making->rank, 2,
				 &making->text, &making->secret_text, NULL),
		0);
}

static void making_done(struct making *making)
{
	spec_done(&making->spec);
	strv_done(&making->env);
	strv_done(&making->defaults);
	strv_done(&making->secrets);
	buf_done(&making->text);
	buf_done(&making->secret_text);
}

static void test_job_words(void **state)
{
	struct making making;

	making_init(&making);
	make(&making);
	AUTO_FREE char *words = read_by_shell(making.text.data, "j_command");
	assert_string_equal(words, "<echo><it's \"$HOME\" `x` \\ * ? !\n\t\x01\xff><><-n>");
	AUTO_FREE char *head = read_by_shell(making.text.data,
		"echo \"$j_run $j_attempt $j_cwd $j_shell $j_timeout_ms $j_grace_ms $j_retries "
		"$j_gpus/$j_gpus_only $j_rank $j_ranks <$j_before$j_setup_run$j_setup_key>\"");
	assert_string_equal(head, RUN_ID " 2 exp/a 0 5000 10000 0 0/ 0 1 <>\n");
	making_done(&making);
}

static void test_job_env(void **state)
{
	struct making making;

	making_init(&making);
	strv_add(&making.env, "A=x'y\n");
	strv_add(&making.env, "B=");
	strv_add(&making.defaults, "PYTHONUNBUFFERED=1");
	strv_add(&making.secrets, "TOKEN=se'cret");
	make(&making);
	AUTO_FREE char *env = read_by_shell(
		making.text.data, "j_env; printf '%s' \"$A|$B|$DLRUN_RUN_ID|$DLRUN_NODE_ADDRS\"");
	assert_string_equal(env, "x'y\n||" RUN_ID "|127.0.0.1");
	AUTO_FREE char *defaults = read_by_shell(making.text.data, "j_defaults");
	assert_non_null(strstr(defaults, "[PYTHONUNBUFFERED=1]"));
	assert_non_null(strstr(defaults, "[NNODES=1]"));
	assert_null(strstr(making.text.data, "cret"));
	AUTO_FREE char *secret = read_by_shell(making.secret_text.data, "printf '%s' \"$TOKEN\"");
	assert_string_equal(secret, "se'cret");
	making_done(&making);
}

static void test_job_of_a_member(void **state)
{
	static const char show[] =
		"echo \"${j_study-} ${j_index-} ${j_parallel-} ${j_fail_fast-}\"";
	struct making making;

	making_init(&making);
	make(&making);
	AUTO_FREE char *none = read_by_shell(making.text.data, show);
	assert_string_equal(none, "   \n");
	buf_done(&making.text);
	buf_done(&making.secret_text);
	making.spec.study = (struct spec_study){mem_strdup("tiger-4k2x9"), 7, 15, 4, true};
	make(&making);
	AUTO_FREE char *member = read_by_shell(making.text.data, show);
	assert_string_equal(member, "tiger-4k2x9 7 2 1\n");
	making_done(&making);
}

/*
 * Members of a study, on the hosts of a pool
 */

static char *host_of(struct target *target, int index, int parallel)
{
	struct spec spec = {.study = {(char[]){"tiger-4k2x9"}, index, 100, parallel, false}};
	char text[TARGET_HANDLE_SIZE];
	struct node_handle handle;

	assert_int_equal(target->ops->prepare(target, RUN_ID, 1, &spec, text, NULL), 0);
	assert_int_equal(node_handle_parse(text, &handle, NULL), 0);
	char *host = TAKE(handle.host);
	node_handle_done(&handle);
	return host;
}

static int slots_of(struct target *target, const char *host, int parallel)
{
	return target_node_slots(target_node_of(target), host, parallel);
}

static void expect_host(struct target *target, int index, int parallel, const char *want)
{
	AUTO_FREE char *host = host_of(target, index, parallel);

	assert_string_equal(host, want);
}

static void test_hosts_of_members(void **state)
{
	static struct session session;
	AUTO_JSON struct json *recorded = json_object();
	struct target *target, *again;

	assert_int_equal(
		target_node_new(&session, "ssh:a,b,c", NULL, NULL, NULL, &target, NULL), 0);
	static const char *const want[] = {"a", "b", "c", "a", "b", "a", "b"};
	for (int i = 0; i < 7; i++)
		expect_host(target, i, 5, want[i]);
	assert_int_equal(slots_of(target, "a", 5), 2);
	assert_int_equal(slots_of(target, "c", 5), 1);
	assert_int_equal(slots_of(target, "c", 0), 0);
	/* Fewer slots than hosts: the others get nothing, also when one is of no use. */
	expect_host(target, 3, 2, "b");
	strv_add(&target_node_of(target)->passed_over, "b");
	expect_host(target, 3, 2, "a");
	expect_host(target, 1, 5, "c");
	strv_add(&target_node_of(target)->passed_over, "a");
	struct spec none = {.study = {(char[]){"tiger-4k2x9"}, 3, 100, 2, false}};
	char handle[TARGET_HANDLE_SIZE];
	AUTO_ERR struct err err = {0};
	assert_int_equal(target->ops->prepare(target, RUN_ID, 1, &none, handle, &err), -ERR_REMOTE);
	assert_int_equal(err.id, E_NODE_FAILED);
	/* A restart knows one host only, and keeps its limit. */
	expect_host(target, 2, 5, "c");
	target->ops->describe(target, recorded);
	assert_int_equal(json_get_int(recorded, "slots", 0), 1);
	assert_int_equal(
		target_node_recorded(&session, "ssh:a,b,c", NULL, recorded, &again, NULL), 0);
	expect_host(again, 2, 5, "c");
	assert_int_equal(slots_of(again, "c", 5), 1);
	target->ops->free(target);
	again->ops->free(again);
	loop_free(session.loop);
}

/* What a login has of an earlier run does not count, what the user set does. */
static void test_job_rank(void **state)
{
	struct strv addresses = {0};
	const struct node_rank rank = {
		.rank = 1, .gpus = 2, .addresses = &addresses, .hold_ms = 1000};
	struct making making;

	making_init(&making);
	strv_add(&addresses, "10.0.0.1");
	strv_add(&addresses, "gpu2");
	strv_add(&making.env, "MASTER_PORT=29500");
	making.rank = &rank;
	/* One of several hosts waits for no slot. */
	making.spec.study = (struct spec_study){mem_strdup("tiger-4k2x9"), 7, 15, 4, true};
	make(&making);
	assert_null(strstr(making.text.data, "j_study"));
	AUTO_FREE char *env = read_by_shell(making.text.data,
		"default() { eval \"[ \\\"\\${$1+1}\\\" ]\" || export \"$1=$2\"; }\n"
		"NODE_RANK=7 NNODES=9\nj_defaults\nj_env\n"
		"echo \"$MASTER_ADDR $MASTER_PORT $NNODES $NODE_RANK $DLRUN_NODE_ADDRS\"\n"
		"echo \"$PET_MASTER_ADDR $PET_MASTER_PORT $PET_NNODES $PET_NODE_RANK "
		"$PET_NPROC_PER_NODE\"\necho \"$j_rank $j_ranks $j_hold_ms $j_hosts\"");
	assert_string_equal(env, "10.0.0.1 29500 2 1 10.0.0.1,gpu2\n10.0.0.1 29500 2 1 2\n"
				 "1 2 1000 10.0.0.1\ngpu2\n");
	strv_done(&addresses);
	making_done(&making);
}

/* A role is a group of its own, and knows the addresses of the others. */
static void test_job_of_a_role(void **state)
{
	AUTO_STRV struct strv addresses = {0};
	AUTO(node_part_done) struct node_part part = {0}, shown = {0};
	struct making making, made;

	making_init(&making);
	for (int i = 0; i < 3; i++)
		strv_addf(&addresses, "10.0.0.%d", i + 1);
	making.spec.resources.nodes = 3;
	making.spec.roles.ends_with = mem_strdup("learner");
	*vec_push(&making.spec.roles.list) =
		(struct role){.name = mem_strdup("learner"), .nodes = 1, .gpus = 4};
	struct role *actors = vec_push(&making.spec.roles.list);
	*actors = (struct role){
		.name = mem_strdup("ac-tors"), .nodes = 2, .gpus = 0, .cpus_milli = 8000};
	strv_add(&actors->command, "act");
	strv_add(&actors->command, "tcp://{learner.0}:1");
	strv_add(&actors->env, "WHO={ac-tors.1}");
	strv_add(&making.spec.env, "WHO=nobody");
	strv_add(&making.env, "WHO=nobody");
	strv_add(&making.env, "DLRUN_COMMIT=abc");
	make(&making);
	assert_int_equal(node_part_make(&making.job, 2, &addresses, &part, NULL), 0);
	made = (struct making){.rank = &part.rank};
	buf_init(&made.text, 1 << 20);
	buf_init(&made.secret_text, 1 << 20);
	assert_int_equal(node_job_make(NULL, &part.job, NULL, NULL, NULL, &part.rank, 0, &made.text,
				 &made.secret_text, NULL),
		0);
	AUTO_FREE char *words = read_by_shell(made.text.data, "j_command");
	assert_string_equal(words, "<act><tcp://10.0.0.1:1>");
	AUTO_FREE char *env = read_by_shell(made.text.data,
		"default() { eval \"[ \\\"\\${$1+1}\\\" ]\" || export \"$1=$2\"; }\n"
		"j_defaults\nj_env\n"
		"echo \"$MASTER_ADDR $NNODES $NODE_RANK $DLRUN_NODE_ADDRS $PET_NODE_RANK\"\n"
		"echo \"$DLRUN_ROLE $DLRUN_ROLE_RANK $DLRUN_ROLE_NODES $DLRUN_ROLE_LEARNER\"\n"
		"echo \"$DLRUN_ROLE_AC_TORS $WHO $DLRUN_COMMIT $j_gpus $j_cpus_milli\"\n"
		"echo \"$j_number $j_ends_first $j_ends_n $j_roles\"");
	assert_string_equal(env,
		"10.0.0.2 2 1 10.0.0.2,10.0.0.3 1\nac-tors 1 2 10.0.0.1\n"
		"10.0.0.2,10.0.0.3 10.0.0.3 abc 0 8000\n"
		"2 0 1 {\"roles\":{\"learner\":1,\"ac-tors\":2},\"ends_with\":\"learner\"}\n");
	/* Before there are hosts. */
	assert_int_equal(node_part_make(&making.job, 0, NULL, &shown, NULL), 0);
	assert_int_equal(shown.spec.runtime.gpus, 4);
	assert_string_equal(shown.spec.command.v[0], "echo");
	assert_true(strv_find(&shown.env, "DLRUN_ROLE=learner") >= 0);
	assert_int_equal(shown.addresses.n, 0);
	making_done(&made);
	making_done(&making);
}

static void test_job_runtime(void **state)
{
	struct making making;

	making_init(&making);
	making.spec.runtime.gpus = RUNTIME_GPUS_AUTO;
	making.spec.runtime.before = mem_strdup("source 'x y'\n");
	making.spec.runtime.retries = 2;
	making.spec.runtime.signal = 10;
	making.spec.runtime.signal_before_ms = 90000;
	making.spec.runtime.stop_signal = 2;
	*vec_push(&making.spec.runtime.data) =
		(struct runtime_data){mem_strdup("data/a b"), mem_strdup("~/x")};
	strv_add(&making.spec.runtime.outputs, "out");
	make(&making);
	AUTO_FREE char *links = read_by_shell(making.text.data, "j_data; j_outputs");
	assert_string_equal(links, "{data/a b>~/x}{out}");
	AUTO_FREE char *head = read_by_shell(making.text.data,
		"printf '%s' \"$j_gpus $j_retries $j_signal $j_signal_before_ms $j_stop_signal $j_before\"");
	assert_string_equal(head, "auto 2 USR1 90000 INT source 'x y'\n");
	making_done(&making);
}

/* Words of people stand in no text that a shell could take for its own. */
static void test_job_random(void **state)
{
	for (unsigned seed = 1; seed <= 40; seed++) {
		struct making making;
		char word[64];
		unsigned x = seed * 2654435761u;

		for (size_t i = 0; i < sizeof(word) - 1; i++) {
			x = x * 1664525 + 1013904223;
			word[i] = (char)(1 + (x >> 24) % 255);
		}
		word[sizeof(word) - 1] = '\0';
		making_init(&making);
		strv_done(&making.spec.command);
		strv_add(&making.spec.command, word);
		make(&making);
		AUTO_FREE char *words = read_by_shell(making.text.data, "j_command");
		AUTO_FREE char *want = mem_printf("<%s>", word);
		assert_string_equal(words, want);
		making_done(&making);
	}
}

/*
 * Machines
 */

static bool is_other(const struct dirs *dirs, const char *host, const struct node_facts *facts)
{
	AUTO_FREE char *why = node_machine_other(dirs, RUN_ID, host, facts);

	return why != NULL;
}

static void test_machines(void **state)
{
	char base[] = "/tmp/test-machines-XXXXXX";
	const struct node_facts one = {.host = "one", .id = "1", .local = "/l"},
				two = {.host = "two", .id = "2", .local = "/l"};
	const struct node_facts forged = {.host = "three\nlogin 1 1 one", .id = "3", .local = "/l"};

	assert_non_null(mkdtemp(base));
	const struct dirs dirs = {.state = base};
	AUTO_FREE char *dir = dirs_run(&dirs, RUN_ID);
	assert_int_equal(fs_mkdirs(dir, 0700, NULL), 0);
	assert_false(is_other(&dirs, "login", &two));
	/* A name that ends like it is another host. */
	node_machine_note(&dirs, RUN_ID, "my-login", &one);
	node_machine_note(&dirs, RUN_ID, "login", &one);
	assert_true(is_other(&dirs, "login", &two));
	/* Each place that had the run, and the first again. */
	node_machine_note(&dirs, RUN_ID, "login", &two);
	assert_true(is_other(&dirs, "login", &one));
	node_machine_note(&dirs, RUN_ID, "login", &one);
	assert_false(is_other(&dirs, "login", &one));
	assert_true(is_other(&dirs, "login", &two));
	/* What a host calls itself is one word of its own line. */
	node_machine_note(&dirs, RUN_ID, "other", &forged);
	assert_false(is_other(&dirs, "login", &one));
	assert_int_equal(fs_remove_tree(AT_FDCWD, base, NULL), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_handles),
		cmocka_unit_test(test_handles_of_a_pool),
		cmocka_unit_test(test_states),
		cmocka_unit_test(test_observed),
		cmocka_unit_test(test_job_words),
		cmocka_unit_test(test_job_env),
		cmocka_unit_test(test_job_of_a_member),
		cmocka_unit_test(test_hosts_of_members),
		cmocka_unit_test(test_job_rank),
		cmocka_unit_test(test_job_of_a_role),
		cmocka_unit_test(test_job_runtime),
		cmocka_unit_test(test_job_random),
		cmocka_unit_test(test_machines),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
