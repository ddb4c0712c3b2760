/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/ssh/node_open.h"

#include <stdlib.h>
#include <string.h>

#include "base/loop/loop.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/digest.h"
#include "base/util/enc.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/config.h"
#include "node/hosts.h"

struct node_hosts_open {
	struct VEC_OF(struct node_host *) hosts;
	char *ssh_config, *control_dir;
};

static void close_host(struct node_host *host)
{
	if (!host)
		return;
	node_free(host->node);
	ssh_free(host->ssh);
	free(host->name);
	free(host->root);
	free(host);
}
AUTO_POINTER(struct node_host, close_host)

static void end_hosts(struct session *session)
{
	struct node_hosts_open *hosts = TAKE(session->nodes);

	if (!hosts)
		return;
	vec_foreach (struct node_host *, host, &hosts->hosts)
		close_host(*host);
	vec_done(&hosts->hosts);
	free(hosts->ssh_config);
	free(hosts->control_dir);
	free(hosts);
}

/*
 * Settings shared by all hosts
 */

/* Seen from the file that names it, else from the caller's directory. */
static char *find_config(struct session *session, const struct config *config)
{
	const char *text = config_str(config, "ssh_config");

	if (str_empty(text))
		return NULL;
	if (text[0] == '~' && text[1] == '/' && session->dirs.home)
		return fs_join(session->dirs.home, text + 2);
	AUTO_FREE char *dir = config_base_dir(config, "ssh_config", session->env.cwd);
	return fs_join(dir, text);
}

/* Without one nothing outlives the process, which costs a login each time. */
static char *find_control_dir(struct session *session)
{
	AUTO_ERR struct err error = {0};

	if (!session->dirs.runtime)
		return NULL;
	if (fs_private_dir(session->dirs.runtime, &error) == 0)
		return mem_strdup(session->dirs.runtime);
	log_note("no connections are kept: %s", error.message);
	return NULL;
}

static int get_open(struct session *session, struct node_hosts_open **ret, struct err *err)
{
	struct config *config;
	int r = session_config(session, &config, err);

	if (r == 0 && !session->nodes) {
		session->nodes = mem_alloc(1, sizeof(*session->nodes));
		*session->nodes = (struct node_hosts_open){
			.ssh_config = find_config(session, config),
			.control_dir = find_control_dir(session),
		};
		session_at_end(session, end_hosts);
	}
	*ret = session->nodes;
	return r;
}

static void node_open_print(void *ctx, const char *text, bool is_detail)
{
	const struct session *session = ctx;

	if (is_detail)
		log_note("%s", text);
	else if (session->env.print)
		session->env.print(session->env.print_ctx, text);
}

static int node_open_prompt(
	void *ctx, const char *question, bool secret, struct buf *answer, struct err *err)
{
	const struct session *session = ctx;

	return session->env.prompt(session->env.print_ctx, question, secret, answer, err);
}

/*
 * Opening a host
 */

static int open_ssh(struct session *session, const struct node_hosts_open *all,
	struct node_host *host, const char *first, struct err *err)
{
	const struct session_env *env = &session->env;
	unsigned port;
	AUTO_FREE char *destination = node_host_destination(host->name, &port);
	const struct ssh_options options = {
		.loop = session_loop(session),
		.host = destination,
		.port = port,
		.config = all->ssh_config,
		.env = env->env,
		.home = session->dirs.home,
		.control_dir = all->control_dir,
		.has_terminal = env->has_terminal,
		.accept_new_host = env->accept_new_host,
		.first_command = first,
		.print = node_open_print,
		.prompt = env->prompt ? node_open_prompt : NULL,
		.ctx = session,
	};

	int r = ssh_open(&options, &host->ssh, err);
	if (r == 0)
		host->opener = ssh_opener(host->ssh);
	return r;
}

static int open_host(struct session *session, const struct node_hosts_open *all,
	struct node_host *host, struct err *err)
{
	const struct session_env *env = &session->env;
	AUTO_FREE char *first = NULL;

	int r = node_first_command(host->root, &first, err);
	if (r == 0 && env->open_host)
		r = env->open_host(
			env->open_host_ctx, session_loop(session), host->name, &host->opener, err);
	else if (r == 0)
		r = open_ssh(session, all, host, first, err);
	if (r < 0)
		return r;
	const struct node_options options = {
		.loop = session_loop(session),
		.name = host->name,
		.root = host->root,
		.opener = host->opener,
	};
	return node_new(&options, host->ssh ? first : NULL, &host->node, err);
}

/* A hint gets pasted: `ssh` alone would read another configuration than we did. */
static void name_config(const struct node_host *host, struct err *error)
{
	static const char ssh[] = "ssh ";
	AUTO_BUF struct buf hint = buf_with(64 << 10);

	if (!host->config || !str_starts(error->hint ? error->hint : "", ssh) ||
		str_starts(error->hint, "ssh -F "))
		return;
	buf_adds(&hint, "ssh -F ");
	str_shell_quote(&hint, host->config);
	buf_addf(&hint, " %s", error->hint + strlen(ssh));
	REPLACE(error->hint, mem_strdup(hint.data));
}

/* As ssh takes a host with a port. */
static void name_port(const struct node_host *host, struct err *error)
{
	static const char *const commands[] = {"ssh ", "ssh-copy-id "};
	unsigned port;
	AUTO_FREE char *destination = node_host_destination(host->name, &port);
	const char *hint = error->hint, *at = hint ? strstr(hint, host->name) : NULL;

	if (!hint || str_eq(destination, host->name))
		return;
	for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
		const char *command = strstr(hint, commands[i]);
		if (!command)
			continue;
		const char *words = command + strlen(commands[i]);
		const char *name = at ? at : words, *rest = at ? at + strlen(host->name) : words;
		AUTO_BUF struct buf out = buf_with(64 << 10);
		buf_add(&out, hint, (size_t)(words - hint));
		if (port)
			buf_addf(&out, "-p %u ", port);
		buf_add(&out, words, (size_t)(name - words));
		buf_addf(&out, "%s%s", at ? destination : "", rest);
		if (out.full)
			return;
		REPLACE(error->hint, mem_strdup(out.data));
		return;
	}
}

void node_explain(const struct node_host *host, struct err *error)
{
	static const struct {
		enum err_id id;
		const char *hint; /* @: the host */
	} hints[] = {
		{E_NODE_BUSY, "dlrun ps"},
		{E_NODE_CORRUPT, "dlrun gc --node @"},
		{E_NODE_DISK, "dlrun gc --node @"},
		{E_NODE_LOST, "ssh @ true"},
		{E_NODE_PROTOCOL, "ssh @ true   # says nothing by itself?"},
		{E_NODE_ROOT, "targets: {lab: {kind: ssh, hosts: [@], dir: /ANOTHER/DIRECTORY}}"},
		{E_NODE_SHELL, "ssh @ true"},
		{E_NODE_TOOL,
			"ssh @ 'command -v tar gzip sha256sum flock perl python3'   # install what it does not name; "
			"one of the last three is enough"},
		{E_SSH_CONFIG, "ssh -G @"},
		{E_SSH_HOST_KEY, "ssh @ true   # ask whoever runs it first"},
		{E_SSH_LOGIN, "ssh -v @ true"},
		{E_SSH_LOST, "ssh @ true"},
		{E_SSH_REFUSED, "ssh -v @ true"},
		{E_SSH_UNKNOWN_HOST, "ssh @ true   # shows its fingerprint, and asks"},
		{E_SSH_UNREACHABLE, "ssh -v @ true"},
	};

	if (!err_is_set(error) || !host)
		return;
	if (error->id != E_CANCELED && !strstr(error->message, host->name))
		err_prefix(error, "%s", host->name);
	for (size_t i = 0; !error->hint && i < ARRAY_LEN(hints); i++) {
		const char *at = strchr(hints[i].hint, '@');
		int before = (int)(at ? at - hints[i].hint : (long)strlen(hints[i].hint));
		if (hints[i].id == error->id)
			err_hint(error, "%.*s%s%s", before, hints[i].hint, at ? host->name : "",
				at ? at + 1 : "");
	}
	name_port(host, error);
	name_config(host, error);
}

int node_open(struct session *session, const char *name, const char *root, struct node_host **ret,
	struct err *err)
{
	AUTO(close_host_auto) struct node_host *host = NULL;
	struct node_hosts_open *all;

	int r = get_open(session, &all, err);
	if (r < 0)
		return r;
	root = root ? root : NODE_ROOT_DEFAULT;
	vec_foreach (struct node_host *, known, &all->hosts) {
		if (str_eq((*known)->name, name) && str_eq((*known)->root, root)) {
			*ret = *known;
			return 0;
		}
	}
	host = mem_alloc(1, sizeof(*host));
	*host = (struct node_host){.name = mem_strdup(name),
		.root = mem_strdup(root),
		.config = all->ssh_config,
		.begun_ms = clock_ms()};
	r = open_host(session, all, host, err);
	if (r < 0)
		return r;
	*ret = host;
	*vec_push(&all->hosts) = TAKE(host);
	return 0;
}

enum { AT_ONCE_MAX = 32 };

/*
 * Probing
 */

struct question {
	struct node_probing *probing;
	struct node_probe *probe;
	struct node_call *requested;
	const struct node_facts *facts; /* true once they have come */
};

struct node_probing {
	struct session *session;
	struct question *questions;
	size_t n, n_begun, n_open;
	struct loop_timer *timer;
	int64_t settle_ms;
	void (*done)(void *ctx);
	void *ctx;
};

static void begin_some(struct node_probing *probing);

void node_probing_cancel(struct node_probing *probing)
{
	if (!probing)
		return;
	loop_remove_timer(session_loop(probing->session), probing->timer);
	for (size_t i = 0; i < probing->n; i++) {
		struct question *question = &probing->questions[i];
		bool is_late = question->requested || i >= probing->n_begun;
		node_cancel(question->requested);
		const struct node_probe *probe = question->probe;
		bool is_known = probe->facts && (!probe->fields_too || probe->fields.n);
		if (is_late && !is_known)
			err_set(&question->probe->error, E_TARGET_SILENT,
				"%s did not answer in time", question->probe->host);
	}
	free(probing->questions);
	free(probing);
}

static void node_probing_end(struct node_probing *probing)
{
	void (*done)(void *ctx) = probing->done;
	void *ctx = probing->ctx;

	node_probing_cancel(probing);
	done(ctx);
}

static int node_probing_on_timer(void *ctx, struct err *err UNUSED)
{
	struct node_probing *probing = ctx;

	probing->timer = NULL;
	node_probing_end(probing);
	return 0;
}

/* 0: never. */
static void node_probing_set_deadline(struct node_probing *probing, int64_t deadline_ms)
{
	struct loop *loop = session_loop(probing->session);

	loop_remove_timer(loop, probing->timer);
	probing->timer = deadline_ms
				 ? loop_add_timer(loop, deadline_ms, node_probing_on_timer, probing)
				 : NULL;
}

static void node_open_end_one(struct question *question, struct err *error)
{
	struct node_probing *probing = question->probing;

	node_explain(question->probe->opened, error);
	if (err_is_set(error)) {
		err_move(&question->probe->error, error);
	} else if (probing->settle_ms >= 0) {
		/* Once a host has responded, do not wait the whole time for hosts that hang. */
		node_probing_set_deadline(probing, clock_ms() + probing->settle_ms);
		probing->settle_ms = -1;
	}
	probing->n_open--;
	begin_some(probing);
	if (probing->n_open == 0)
		node_probing_end(probing);
}

static int node_open_on_fields(
	void *ctx, int status UNUSED, struct err *error, struct err *err UNUSED)
{
	struct question *question = ctx;

	question->requested = NULL;
	node_open_end_one(question, error);
	return 0;
}

static int on_gpus(void *ctx, int status, struct err *error, struct err *err UNUSED)
{
	struct question *question = ctx;
	struct node_probe *probe = question->probe;

	question->requested = NULL;
	probe->has_gpus = status == 0;
	if (status < 0 || !probe->fields_too) {
		node_open_end_one(question, error);
		return 0;
	}
	question->requested =
		node_describe(probe->opened->node, &probe->fields, node_open_on_fields, question);
	return 0;
}

static int node_open_on_handshake(void *ctx, int status, struct err *error, struct err *err UNUSED)
{
	struct question *question = ctx;
	struct node_probe *probe = question->probe;

	question->requested = NULL;
	if (status == 0) {
		probe->facts = question->facts;
		probe->response_ms = clock_ms() - probe->opened->begun_ms;
	}
	if (status < 0 || !probe->gpus_too) {
		node_open_end_one(question, error);
		return 0;
	}
	question->requested = node_gpus(probe->opened->node, &probe->gpus, on_gpus, question);
	return 0;
}

static void begin_some(struct node_probing *probing)
{
	while (probing->n_begun < probing->n && probing->n_open < AT_ONCE_MAX) {
		struct question *question = &probing->questions[probing->n_begun++];
		struct node_probe *probe = question->probe;

		probe->response_ms = -1;
		if (node_open(probing->session, probe->host, probe->root, &probe->opened,
			    &probe->error) < 0)
			continue;
		probing->n_open++;
		question->requested = node_handshake(
			probe->opened->node, &question->facts, node_open_on_handshake, question);
	}
}

struct node_probing *node_probing_start(struct session *session, struct node_probe *probes,
	size_t n, int64_t limit_ms, int64_t settle_ms, void (*done)(void *ctx), void *ctx)
{
	struct node_probing *probing = mem_alloc(1, sizeof(*probing));

	*probing = (struct node_probing){.session = session,
		.questions = mem_alloc(n + 1, sizeof(*probing->questions)),
		.n = n,
		.settle_ms = settle_ms,
		.done = done,
		.ctx = ctx};
	for (size_t i = 0; i < n; i++)
		probing->questions[i] = (struct question){.probing = probing, .probe = &probes[i]};
	node_probing_set_deadline(probing, limit_ms < 0 ? 0 : clock_deadline(limit_ms));
	begin_some(probing);
	if (probing->n_open == 0)
		node_probing_set_deadline(probing, clock_ms());
	return probing;
}

static void node_probe_on_all(void *ctx)
{
	struct loop_wait *wait = ctx;

	loop_wait_done(wait);
}

int node_probe_all(struct session *session, struct node_probe *probes, size_t n, int64_t limit_ms,
	int64_t settle_ms, const volatile int *interrupted, struct err *err)
{
	struct loop_wait wait = {
		.loop = session_loop(session), .n_open = 1, .interrupted = interrupted};
	struct node_probing *probing = node_probing_start(
		session, probes, n, limit_ms, settle_ms, node_probe_on_all, &wait);
	int r = loop_wait_run(&wait, err);

	if (wait.n_open > 0)
		node_probing_cancel(probing);
	return r;
}

void node_probe_done(struct node_probe *probe)
{
	if (!probe)
		return;
	err_done(&probe->error);
	vec_done(&probe->gpus);
	node_fields_done(&probe->fields);
	*probe = (struct node_probe){0};
}

/*
 * Printing
 */

size_t node_probe_free_gpus(const struct node_probe *probe)
{
	size_t n = 0;

	vec_foreach (const struct node_gpu, gpu, &probe->gpus)
		n += !gpu->used && !*gpu->holder;
	return n;
}

static void node_open_add_gpus(const struct node_probe *probe, struct buf *out)
{
	if (!probe->has_gpus)
		return;
	if (probe->gpus.n == 0)
		buf_adds(out, ", no GPUs");
	else
		buf_addf(out, ", %zu of %zu GPUs free (%s)", node_probe_free_gpus(probe),
			probe->gpus.n, probe->gpus.v[0].model);
}

char *node_probe_text(const struct node_probe *probe)
{
	const struct node_facts *facts = probe->facts;
	AUTO_BUF struct buf out = buf_with(4096);
	char size[16];

	if (!facts)
		return mem_strdup(err_is_set(&probe->error) ? probe->error.message : "");
	buf_addf(&out, "%s %s", facts->system, facts->machine);
	node_open_add_gpus(probe, &out);
	if (facts->cpus)
		buf_addf(&out, ", %u CPUs", facts->cpus);
	if (facts->memory_bytes)
		buf_addf(&out, ", %s of memory", str_size(facts->memory_bytes, size));
	if (facts->free_bytes != NODE_FREE_UNKNOWN)
		buf_addf(&out, ", %s of disk free", str_size(facts->free_bytes, size));
	return buf_take(&out);
}

static struct json *gpus_json(const struct node_probe *probe)
{
	struct json *list = json_array();

	vec_foreach (const struct node_gpu, gpu, &probe->gpus) {
		struct json *json = json_object();
		json_set_int(json, "index", gpu->index);
		json_set_str(json, "vendor", gpu->vendor);
		json_set_str(json, "model", gpu->model);
		json_set_int(json, "memory_bytes", (int64_t)gpu->memory_bytes);
		json_set_bool(json, "used", gpu->used);
		json_set_str(json, "holder", *gpu->holder ? gpu->holder : NULL);
		json_add(list, json);
	}
	return list;
}

void node_probe_to_json(const struct node_probe *probe, struct json *json)
{
	const struct node_facts *facts = probe->facts;

	json_set_str(json, "host", probe->host);
	json_set_bool(json, "reachable", facts != NULL);
	if (!facts)
		return;
	json_set_str(json, "system", facts->system);
	json_set_str(json, "machine", facts->machine);
	json_set_str(json, "launch", facts->launch);
	json_set_int(json, "cpus", facts->cpus);
	json_set_int(json, "memory_bytes", (int64_t)facts->memory_bytes);
	if (facts->free_bytes == NODE_FREE_UNKNOWN)
		json_set(json, "free_bytes", json_null());
	else
		json_set_int(json, "free_bytes", (int64_t)facts->free_bytes);
	json_set_int(json, "answer_ms", probe->response_ms);
	json_set(json, "gpus", probe->has_gpus ? gpus_json(probe) : json_null());
}

void node_probe_offer(const struct node_probe *probe, struct node_offer *ret)
{
	const struct node_facts *facts = probe->facts;

	*ret = (struct node_offer){.host = probe->host, .answered = facts != NULL, .load = -1};
	if (!facts) {
		ret->why_not = probe->error.message;
		return;
	}
	ret->gpus = (unsigned)probe->gpus.n;
	ret->gpus_free = (unsigned)node_probe_free_gpus(probe);
	ret->cpus = facts->cpus;
	ret->memory_bytes = ret->memory_free_bytes = facts->memory_bytes;
	ret->disk_free_bytes = facts->free_bytes;
}

/* Of a run: lines HOST MACHINE PLACE NAME. */
#define RUN_MACHINES "machines"

enum { MACHINES_MAX = 256 << 10, IDENTITY_LEN = 32 };

struct identity {
	char machine[IDENTITY_LEN + 1], place[IDENTITY_LEN + 1];
};

static void node_open_hash_text(const char *text, char out[static IDENTITY_LEN + 1])
{
	uint8_t sha256[SHA256_SIZE];

	digest_sha256(text, strlen(text), sha256);
	hex_encode(sha256, IDENTITY_LEN / 2, out);
}

/* machine-id(5) is not to be shown to others. Machines that were installed from one image may have
 * the same, so the name counts, too. */
static void identity_of(const struct node_facts *facts, struct identity *ret)
{
	const char *id = facts->id ? facts->id : "";
	AUTO_FREE char *machine = mem_printf("dlrun machine\n%s\n%s\n", id, facts->host);
	AUTO_FREE char *place = mem_printf("dlrun place\n%u\n%s\n", facts->uid, facts->local);

	node_open_hash_text(machine, ret->machine);
	node_open_hash_text(place, ret->place);
}

static bool read_machines(const char *path, struct buf *ret)
{
	*ret = (struct buf){0};
	return fs_read(path, MACHINES_MAX, ret, NULL, NULL) == 0;
}

struct line {
	const char *machine, *place, *name;
};

/* The line of a host, whose parts are within text, cut off there. */
static bool find_line(char *text, const char *host, struct line *ret)
{
	for (char *line; (line = strsep(&text, "\n"));) {
		const char *first = strsep(&line, " ");

		ret->machine = strsep(&line, " ");
		ret->place = strsep(&line, " ");
		ret->name = line;
		if (line && str_eq(first, host))
			return true;
	}
	return false;
}

void node_machine_note(const struct dirs *dirs, const char *run_id, const char *host,
	const struct node_facts *facts)
{
	AUTO_FREE char *dir = dirs_run(dirs, run_id), *path = fs_join(dir, RUN_MACHINES);
	struct identity identity;
	struct line was;
	AUTO_BUF struct buf text = {0};
	AUTO_BUF struct buf all = buf_with(MACHINES_MAX);

	if (!facts)
		return;
	identity_of(facts, &identity);
	if (!read_machines(path, &text))
		buf_init(&text, MACHINES_MAX);
	AUTO_FREE char *lines = mem_strndup(text.len ? text.data : "", text.len);
	if (find_line(lines, host, &was) && str_eq(was.machine, identity.machine) &&
		str_eq(was.place, identity.place))
		return;
	/* The first line of a host counts. */
	AUTO_FREE char *name = str_escaped(facts->host);
	buf_addf(&all, "%s %s %s %s\n", host, identity.machine, identity.place, name);
	if (text.len)
		buf_add(&all, text.data, text.len);
	if (buf_check(&all, path, NULL) == 0)
		fs_replace(path, all.data, all.len, 0600, FS_SYNC_NONE, NULL);
}

char *node_machine_other(const struct dirs *dirs, const char *run_id, const char *host,
	const struct node_facts *facts)
{
	AUTO_FREE char *dir = dirs_run(dirs, run_id), *path = fs_join(dir, RUN_MACHINES);
	struct identity identity;
	struct line was;
	AUTO_BUF struct buf text = {0};

	if (!facts || !read_machines(path, &text) || !text.len || !find_line(text.data, host, &was))
		return NULL;
	identity_of(facts, &identity);
	AUTO_FREE char *then = str_shown(was.name), *now = str_shown(facts->host);
	if (!str_eq(was.machine, identity.machine))
		return mem_printf(
			"%s is another machine now (%s): the run is on %s", host, now, then);
	if (str_eq(was.place, identity.place))
		return NULL;
	AUTO_FREE char *local = str_shown(facts->local);
	return mem_printf("%s leads to another place now (uid %u, %s): the run is elsewhere on it",
		host, facts->uid, local);
}
