/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/ssh/node_job.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/data/entry.h"
#include "base/loop/proc.h"
#include "base/os/env.h"
#include "base/os/fs.h"
#include "base/os/os.h"
#include "base/util/auto.h"
#include "base/util/digest.h"
#include "base/util/enc.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "core/config/words.h"
#include "core/image/code.h"
#include "core/record/setup_key.h"
#include "targets/ssh/terminal.h"

void node_syncs_done(struct node_syncs *syncs)
{
	vec_foreach (struct node_sync, sync, syncs) {
		if (sync->pid > 0) {
			kill(sync->pid, SIGTERM);
			waitpid(sync->pid, NULL, 0);
		}
		free(sync->path);
		free(sync->dir);
		free(sync->key);
	}
	vec_done(syncs);
}

static int node_job_make_key(const char *root, struct node_sync *sync, struct err *err)
{
	AUTO_ERR struct err error = {0};
	char key[SHA256_HEX_SIZE];

	int r = setup_key_of_data(sync->path, root, key, &error);
	AUTO_FREE char *shown = str_escaped(sync->path);
	if (r < 0 && error.id == E_DATA_LIMIT) {
		err_set(err, E_DATA_LIMIT, "data: %s is too large to send: over %d files or 1 GiB",
			shown, SETUP_KEY_FILES_MAX);
		return err_hint(err,
			"data: {%s: /srv/data}   # of the target: where the hosts have it", shown);
	}
	if (r < 0)
		return err_set(
			err, E_RUN_DATA, "data: %s cannot be read: %s", shown, error.message);
	sync->key = mem_strdup(key);
	return 0;
}

static int node_job_add(const char *root, const char *path, struct node_syncs *ret, struct err *err)
{
	struct node_sync *sync = vec_push(ret);
	struct stat st;

	sync->path = mem_strdup(path);
	sync->dir = fs_join(root, path);
	if (stat(sync->dir, &st) == 0 && S_ISDIR(st.st_mode))
		return node_job_make_key(root, sync, err);
	AUTO_FREE char *shown = str_escaped(path);
	return err_set(err, E_RUN_DATA, "data: %s is not a directory on this machine", shown);
}

int node_sync_find(const struct target_job *job, struct node_syncs *ret, struct err *err)
{
	const struct runtime *runtime = &job->spec->runtime;
	AUTO_FREE char *root = NULL;
	int r = 0;

	if (job->run)
		root = words_get_one(json_get(job->run->doc, "origin"), "root");
	for (size_t i = 0; r == 0 && i < runtime->data.n; i++)
		if (str_eq(runtime->data.v[i].from, RUNTIME_SYNC))
			r = root ? node_job_add(root, runtime->data.v[i].path, ret, err)
				 : err_set(err, E_RUN_DATA, "data: the tree is not known here");
	return r;
}

/* Where the node has it, for link_data (protocol.h); NULL: path is none of them. */
static char *node_sync_place(const struct node_syncs *syncs, const char *path)
{
	for (size_t i = 0; syncs && i < syncs->n; i++)
		if (str_eq(syncs->v[i].path, path))
			return mem_printf("data/%s", syncs->v[i].key);
	return NULL;
}

int node_sync_open(void *ctx, struct err *err)
{
	struct node_sync *sync = ctx;
	const char *const argv[] = {"tar", "-C", sync->dir, "-cf", "-", ".", NULL};
	int fds[2];

	int r = os_pipe(fds, 0);
	if (r < 0)
		return err_set_errno(err, E_IO, -r, "cannot make a pipe");
	AUTO_FD int read_end = fds[0], write_end = fds[1];
	const struct proc_spec spec = {
		.argv = argv, .stdin_fd = -1, .stdout_fd = write_end, .stderr_fd = -1};
	r = proc_spawn(&spec, &sync->pid, err);
	return r < 0 ? r : TAKE_FD(read_end);
}

static const char *node_part_print_roles(const struct roles *roles, struct buf *out)
{
	AUTO_JSON struct json *json = json_object();

	if (!roles->list.n)
		return NULL;
	buf_init(out, 64 << 10);
	roles_to_record(roles, json);
	json_print(json, out);
	return out->data;
}

int node_part_make(const struct target_job *job, int number, const struct strv *addresses,
	struct node_part *ret, struct err *err)
{
	struct roles_part part;

	roles_of_rank(job->spec, number, &part);
	int r = spec_of_role(job->spec, part.index, addresses, &ret->spec, err);
	if (r < 0)
		return r;
	if (job->env)
		strv_copy(&ret->env, job->env);
	for (size_t i = 0; part.name && i < ret->spec.env.n; i++)
		env_set(&ret->env, ret->spec.env.v[i], false);
	roles_add_env(job->spec, number, addresses, &ret->env);
	for (int i = part.first; i < part.first + part.nodes; i++)
		if (addresses && (size_t)i < addresses->n)
			strv_add(&ret->addresses, addresses->v[i]);
	ret->rank = (struct node_rank){.rank = part.rank,
		.gpus = part.gpus,
		.addresses = &ret->addresses,
		.role = (unsigned)part.index,
		.roles = node_part_print_roles(&job->spec->roles, &ret->roles),
		.number = number};
	for (size_t i = 0; job->spec->roles.ends_with && i < roles_count(job->spec); i++) {
		roles_nth(job->spec, i, &part);
		if (part.is_deciding) {
			ret->rank.ends_first = part.first;
			ret->rank.ends_n = part.nodes;
		}
	}
	ret->job = *job;
	ret->job.spec = &ret->spec;
	ret->job.env = &ret->env;
	return 0;
}

void node_part_done(struct node_part *part)
{
	spec_done(&part->spec);
	strv_done(&part->env);
	strv_done(&part->addresses);
	buf_done(&part->roles);
}

enum { PORT_FIRST = 20000, PORTS = 12000 };

/*
 * Quoting: '…' keeps every byte but NUL
 */

static void node_job_quote(struct buf *out, const char *text, size_t len)
{
	buf_addc(out, '\'');
	for (size_t i = 0; i < len; i++) {
		if (text[i] == '\'')
			buf_adds(out, "'\\''");
		else
			buf_addc(out, text[i]);
	}
	buf_addc(out, '\'');
}

/* The runner sets j_tree before it reads words and values. */
static void quote_placed(struct buf *out, const char *text)
{
	for (const char *at; (at = strstr(text, WORDS_TREE)); text = at + strlen(WORDS_TREE)) {
		node_job_quote(out, text, (size_t)(at - text));
		buf_adds(out, "\"${j_tree-}\"");
	}
	node_job_quote(out, text, strlen(text));
}

static void node_job_add_word(struct buf *out, const char *text)
{
	buf_addc(out, ' ');
	node_job_quote(out, text, strlen(text));
}

static void node_job_set_text(struct buf *out, const char *name, const char *value)
{
	buf_addf(out, "%s=", name);
	node_job_quote(out, value ? value : "", strlen(value ? value : ""));
	buf_addc(out, '\n');
}

static void node_job_set_int(struct buf *out, const char *name, int64_t value)
{
	buf_addf(out, "%s=%lld\n", name, (long long)value);
}

/* "K='V'": K is a name that was checked (words_check_name). */
static void add_pair(struct buf *out, const char *pair)
{
	size_t len = strcspn(pair, "=");

	buf_add(out, pair, len);
	buf_addc(out, '=');
	quote_placed(out, pair + len + (pair[len] == '='));
	buf_addc(out, '\n');
}

/* A function needs a command in it. */
static void begin_function(struct buf *out, const char *name)
{
	buf_addf(out, "%s() {\n:\n", name);
}

static void end_function(struct buf *out)
{
	buf_adds(out, "}\n");
}

/*
 * The key of a setup: as of setup.h, from the snapshot
 */

static void node_job_add_text(struct digest *digest, const char *text)
{
	digest_add(digest, text, strlen(text) + 1);
}

static int node_job_add_key(
	struct digest *digest, const struct entry_list *entries, const char *key, struct err *err)
{
	size_t n = 0;

	vec_foreach (const struct entry, entry, entries) {
		if (!fs_below(entry->path, key))
			continue;
		node_job_add_text(digest, entry->path);
		node_job_add_text(digest, entry->kind == ENTRY_LINK ? "link"
					  : entry->exec             ? "x"
								    : "-");
		digest_add(digest, entry->sha256, sizeof(entry->sha256));
		n++;
	}
	if (n > 0)
		return 0;
	AUTO_FREE char *shown = str_escaped(key);
	return err_set(err, E_RUN_SETUP, "setup.key: '%s' is not in the tree", shown);
}

static int job_make_key(struct session *session, const struct target_job *job,
	const struct runtime_setup *setup, const struct node_facts *facts,
	char out[static SHA256_HEX_SIZE], struct err *err)
{
	AUTO_ENTRIES struct entry_list entries = {0};
	AUTO_DIGEST struct digest digest = {0};
	AUTO_STRV struct strv keys = {0};
	uint8_t sha256[SHA256_SIZE];

	int r = setup->key.n ? run_entries(session, job->run, &entries, err) : 0;
	if (r < 0)
		return r;
	digest_begin(&digest, DIGEST_SHA256);
	node_job_add_text(&digest, "dlrun/setup/v1");
	node_job_add_text(&digest, setup->run);
	node_job_add_text(&digest, setup->cwd ? setup->cwd : ".");
	node_job_add_text(&digest, facts ? facts->system : "");
	node_job_add_text(&digest, facts ? facts->machine : "");
	strv_copy(&keys, &setup->key);
	strv_sort(&keys);
	for (size_t i = 0; r == 0 && i < keys.n; i++)
		r = node_job_add_key(&digest, &entries, keys.v[i], err);
	digest_end(&digest, sha256);
	hex_encode(sha256, sizeof(sha256), out);
	return r;
}

/*
 * Parts
 */

static void node_job_add_hosts(const struct node_rank *rank, struct buf *out)
{
	AUTO_FREE char *lines = strv_join(rank->addresses, "\n");

	node_job_set_int(out, "j_hold_ms", rank->hold_ms);
	node_job_set_int(out, "j_number", rank->number);
	node_job_set_int(out, "j_ends_first", rank->ends_first);
	node_job_set_int(out, "j_ends_n", rank->ends_n);
	node_job_set_text(out, "j_hosts", lines);
	if (rank->roles)
		node_job_set_text(out, "j_roles", rank->roles);
}

static void add_head(const struct target_job *job, const struct node_rank *rank, struct buf *out)
{
	const struct spec *spec = job->spec;
	const struct runtime *runtime = &spec->runtime;
	char name[8];

	node_job_set_text(out, "j_run", job->run_id);
	node_job_set_int(out, "j_attempt", job->attempt);
	node_job_set_text(out, "j_cwd", spec->cwd);
	node_job_set_int(out, "j_shell", spec->shell && !spec->terminal);
	node_job_set_int(out, "j_timeout_ms", spec->timeout_ms);
	node_job_set_int(out, "j_grace_ms", spec->grace_ms);
	/* A rank is not retried alone: its failure ends the others, and all are started anew. */
	node_job_set_int(out, "j_retries", rank ? 0 : runtime->retries);
	node_job_set_text(
		out, "j_signal", runtime->signal ? proc_signal_name(runtime->signal, name) : "");
	node_job_set_int(out, "j_signal_before_ms", runtime->signal_before_ms);
	node_job_set_text(out, "j_stop_signal",
		runtime->stop_signal ? proc_signal_name(runtime->stop_signal, name) : "");
	node_job_set_int(out, "j_rank", rank ? rank->rank : 0);
	node_job_set_int(out, "j_ranks", rank ? (int64_t)rank->addresses->n : 1);
	if (rank)
		node_job_add_hosts(rank, out);
	node_job_set_text(out, "j_before", runtime->before);
}

static void node_job_add_gpus(const struct runtime *runtime, struct buf *out)
{
	AUTO_BUF struct buf only = buf_with(64 << 10);

	for (size_t i = 0; i < runtime->gpus_only.n; i++)
		buf_addf(&only, "%s%s", i ? "," : "", runtime->gpus_only.v[i]);
	if (runtime->gpus == RUNTIME_GPUS_AUTO)
		node_job_set_text(out, "j_gpus", "auto");
	else
		node_job_set_int(out, "j_gpus", runtime->gpus);
	node_job_set_text(out, "j_gpus_only", only.data);
}

static int add_setup(struct session *session, const struct target_job *job,
	const struct node_facts *facts, struct buf *out, struct err *err)
{
	const struct runtime_setup *setup = &job->spec->runtime.setup;
	char key[SHA256_HEX_SIZE] = "";
	int r = 0;

	/* A preview has no image yet, and what it would make is called by nothing. */
	if (setup->run && job->image)
		r = job_make_key(session, job, setup, facts, key, err);
	node_job_set_text(out, "j_setup_run", setup->run);
	node_job_set_text(out, "j_setup_key", key);
	node_job_set_text(out, "j_setup_cwd", setup->cwd ? setup->cwd : ".");
	return r;
}

static void node_job_add_command(const struct spec *spec, struct buf *out)
{
	AUTO_STRV struct strv words = {0};

	if (spec->terminal)
		terminal_holder(&words);
	else
		launcher_words(&spec->runtime.launcher, &spec->command, &words);
	buf_adds(out, "j_command() {\nset_command");
	for (size_t i = 0; i < words.n; i++) {
		buf_addc(out, ' ');
		quote_placed(out, words.v[i]);
	}
	buf_adds(out, "\n}\n");
}

/* Over what the user set, which may be the address of the first one. */
static void add_torchrun(const struct node_rank *rank, struct buf *out)
{
	buf_adds(out, "default PET_MASTER_ADDR \"$MASTER_ADDR\"\n"
		      "default PET_MASTER_PORT \"$MASTER_PORT\"\n");
	buf_addf(out, "default PET_NNODES %zu\ndefault PET_NODE_RANK %d\n", rank->addresses->n,
		rank->rank);
	if (rank->gpus > 0)
		buf_addf(out, "default PET_NPROC_PER_NODE %d\n", rank->gpus);
}

/* Values that only the node knows (its directories, ports and GPUs) are set there. */
static void node_job_add_env(
	const struct target_job *job, const struct node_rank *rank, struct buf *out)
{
	AUTO_FREE char *addresses =
		rank ? strv_join(rank->addresses, ",") : mem_strdup(ATTEMPT_ADDRESS);

	begin_function(out, "j_env");
	for (size_t i = 0; job->env && i < job->env->n; i++) {
		buf_adds(out, "export ");
		add_pair(out, job->env->v[i]);
	}
	buf_addf(out, "export DLRUN_RUN_ID='%s'\n", job->run_id);
	buf_adds(out, "export DLRUN_NODE_ADDRS=");
	node_job_quote(out, addresses, strlen(addresses));
	buf_addc(out, '\n');
	if (rank)
		add_torchrun(rank, out);
	end_function(out);
}

static unsigned node_job_port_of(const struct target_job *job, unsigned role)
{
	unsigned sum = (unsigned)job->attempt;

	for (const char *s = job->run_id; *s; s++)
		sum = sum * 31 + (unsigned char)*s;
	return PORT_FIRST + (sum + role) % PORTS;
}

static void add_default(struct buf *out, const char *pair)
{
	AUTO_FREE char *name = mem_strndup(pair, strcspn(pair, "="));
	const char *value = pair + strlen(name);

	buf_addf(out, "default %s", name);
	node_job_add_word(out, *value ? value + 1 : value);
	buf_addc(out, '\n');
}

static void add_defaults(
	const struct target_job *job, const struct node_rank *rank, struct buf *out)
{
	static const char *const of_one[] = {("MASTER_ADDR=" ATTEMPT_ADDRESS), "NNODES=1",
		"NODE_RANK=0", "DLRUN_GPUS_PER_NODE=0"};
	AUTO_FREE char *port =
		mem_printf("MASTER_PORT=%u", node_job_port_of(job, rank ? rank->role : 0));

	begin_function(out, "j_defaults");
	for (size_t i = 0; job->default_env && i < job->default_env->n; i++)
		add_default(out, job->default_env->v[i]);
	/* A login knows nothing of them: whatever it says is left from something else. */
	if (rank) {
		buf_adds(out, "export MASTER_ADDR=");
		node_job_quote(out, rank->addresses->v[0], strlen(rank->addresses->v[0]));
		buf_addf(out, " NNODES=%zu NODE_RANK=%d\n", rank->addresses->n, rank->rank);
	}
	for (size_t i = 0; i < ARRAY_LEN(of_one); i++)
		add_default(out, of_one[i]);
	add_default(out, port);
	end_function(out);
}

static void node_job_add_links(
	const struct runtime *runtime, const struct node_syncs *syncs, struct buf *out)
{
	begin_function(out, "j_data");
	for (size_t i = 0; i < runtime->data.n; i++) {
		AUTO_FREE char *sent = node_sync_place(syncs, runtime->data.v[i].path);
		buf_adds(out, "link_data");
		node_job_add_word(out, runtime->data.v[i].path);
		node_job_add_word(out, sent ? sent : runtime->data.v[i].from);
		buf_addc(out, '\n');
	}
	end_function(out);
	begin_function(out, "j_outputs");
	for (size_t i = 0; i < runtime->outputs.n; i++) {
		buf_adds(out, "link_output");
		node_job_add_word(out, runtime->outputs.v[i]);
		buf_addc(out, '\n');
	}
	end_function(out);
}

static void add_collect(const struct runtime *runtime, struct buf *out)
{
	const struct runtime_collect *collect = &runtime->collect;

	node_job_set_text(out, "j_collect", collect->mode == COLLECT_NONE ? "none" : "auto");
	node_job_set_int(out, "j_collect_bytes",
		collect->size_bytes > INT64_MAX ? INT64_MAX : (int64_t)collect->size_bytes);
	begin_function(out, "j_exclude");
	for (size_t i = 0; i < collect->exclude.n; i++) {
		buf_adds(out, "collect_exclude");
		node_job_add_word(out, collect->exclude.v[i]);
		buf_addc(out, '\n');
	}
	end_function(out);
}

/*
 * In a container
 */

static void node_job_add_names(struct buf *out, const struct strv *pairs)
{
	for (size_t i = 0; pairs && i < pairs->n; i++) {
		buf_addc(out, ' ');
		buf_add(out, pairs->v[i], strcspn(pairs->v[i], "="));
	}
}

static int add_container(struct session *session, const struct target_job *job, const char *runtime,
	struct buf *out, struct err *err)
{
	const char *base = job->run ? json_get_str(json_get(job->run->doc, "image"), "base") : NULL;
	struct config *config;

	int r = session_config(session, &config, err);
	if (r < 0)
		return r;
	node_job_set_text(out, "j_runtime", runtime);
	node_job_set_text(out, "j_image", base);
	node_job_set_text(
		out, "j_workdir", job->image ? job->image->workdir : config_str(config, "workdir"));
	node_job_set_text(out, "j_entrypoint", job->spec->drop_entrypoint ? "none" : "");
	node_job_set_text(out, "j_caches",
		job->run ? json_get_str(config_target(config, run_target(job->run)), "caches")
			 : NULL);
	node_job_set_int(out, "j_shm_bytes", (int64_t)job->spec->resources.shm_bytes);
	buf_adds(out, "j_names='DLRUN_NODE_ADDRS");
	node_job_add_names(out, job->env);
	node_job_add_names(out, job->secret_env);
	buf_adds(out, "'\nj_default_names='MASTER_ADDR MASTER_PORT NNODES NODE_RANK");
	node_job_add_names(out, job->default_env);
	buf_adds(out, "'\n");
	return 0;
}

int node_job_make(struct session *session, const struct target_job *job, const char *runtime,
	const struct node_facts *facts, const struct node_syncs *syncs,
	const struct node_rank *rank, int slots, struct buf *text, struct buf *secrets,
	struct err *err)
{
	const struct spec *spec = job->spec;
	const struct resources *resources = &spec->resources;
	char size[16] = "";
	int r = 0;

	add_head(job, rank, text);
	/* A rank waits for the others with what it has: two gangs with slots could wait for each
	 * other. */
	if (spec->study.id && !rank) {
		node_job_set_text(text, "j_study", spec->study.id);
		node_job_set_int(text, "j_index", spec->study.index);
		node_job_set_int(text, "j_parallel", slots);
		node_job_set_int(text, "j_fail_fast", spec->study.fail_fast);
	}
	node_job_add_gpus(&spec->runtime, text);
	node_job_set_text(text, "j_gpu_type", resources->gpu_type);
	node_job_set_int(text, "j_memory_bytes", (int64_t)resources->memory_bytes);
	node_job_set_int(text, "j_cpus_milli", resources->cpus_milli);
	if (resources->memory_bytes)
		str_size(resources->memory_bytes, size);
	node_job_set_text(text, "j_memory", size);
	if (runtime)
		r = add_container(session, job, runtime, text, err);
	if (r == 0)
		r = add_setup(session, job, facts, text, err);
	if (r < 0)
		return r;
	node_job_add_command(spec, text);
	node_job_add_env(job, rank, text);
	add_defaults(job, rank, text);
	node_job_add_links(&spec->runtime, syncs, text);
	add_collect(&spec->runtime, text);
	for (size_t i = 0; job->secret_env && i < job->secret_env->n; i++) {
		buf_adds(secrets, "export ");
		add_pair(secrets, job->secret_env->v[i]);
	}
	r = buf_check(text, "the specification of the run", err);
	return r < 0 ? r : buf_check(secrets, "the secrets of the run", err);
}
