/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/ssh/target_node.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/loop/proc.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/log.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/attempt/attempt.h"
#include "core/config/words.h"
#include "core/record/spec.h"
#include "host/gpu.h"
#include "node/hosts.h"
#include "node/wire.h"
#include "targets/ssh/node_open.h"
#include "targets/ssh/role_hosts.h"
#include "targets/ssh/target_gang.h"
#include "targets/ssh/target_pool.h"

/*
 * Status of a run from the node's report of an attempt.
 */

enum { EXIT_CANCELLED = 143, EXIT_OURS = 125, EXIT_SIGNAL = 128, NUMBERS_MAX = 64 };

static void target_node_set_number(const struct node_attempt *attempt, const char *key,
	const char *member, struct json *object)
{
	const char *text = node_attempt_get(attempt, key);
	char *end;

	if (str_empty(text))
		return;
	double value = strtod(text, &end);
	if (*end == '\0' && value >= 0)
		json_set_num(object, member, value);
}

static int target_node_count_words(const char *list)
{
	int n = !str_empty(list);

	for (const char *s = list; s && *s; s++)
		n += *s == ',';
	return n;
}

/* Adds a warning that the node has reported about the attempt. */
static void add_warning(const struct node_attempt *attempt, const char *key, struct json *observed)
{
	const char *text = node_attempt_get(attempt, key);
	const struct json *before = json_get(observed, "warnings");
	struct json *warnings;

	if (str_empty(text))
		return;
	warnings = before ? json_clone(before) : json_array();
	json_add_str(warnings, text);
	json_set(observed, "warnings", warnings);
}

/* "PATH@VERSION …", each path coded as a word. */
static void target_node_add_data(const struct node_attempt *attempt, struct json *observed)
{
	const char *text = node_attempt_get(attempt, RUNTIME_DATA);
	AUTO_FREE char *copy = mem_strdup(text ? text : "");
	char *rest = copy;

	for (char *word; (word = strsep(&rest, " "));) {
		char *at = strrchr(word, '@');
		if (!at || !at[1])
			continue;
		*at = '\0';
		AUTO_FREE char *path = node_word_decode(word) ? str_escaped(word) : NULL;
		if (path)
			json_set_str(json_sub(observed, RUNTIME_DATA), path, at + 1);
	}
}

static void set_observed(const struct node_attempt *attempt, struct target_status *ret)
{
	static const char *const totals[] = {
		"cpu_s", "memory_peak_bytes", "gpu_busy", "gpu_memory_peak_bytes", "energy_j"};
	static const char *const rates[][2] = {{"cpu", "cpu"}, {"memory_bytes", "memory_bytes"},
		{"gpu_busy_now", "gpu_busy"}, {"gpu_memory_bytes", "gpu_memory_bytes"},
		{"power_w", "power_w"}};
	const char *gpus = node_attempt_get(attempt, "gpus");
	const char *model = node_attempt_get(attempt, "gpu_model");
	const char *collect = node_attempt_get(attempt, "collect");
	int64_t time_ms = node_attempt_int(attempt, "time", 0);
	struct json *observed = json_object(), *object;

	object = json_sub(observed, "usage");
	for (size_t i = 0; i < ARRAY_LEN(totals); i++)
		target_node_set_number(attempt, totals[i], totals[i], object);
	object = json_sub(observed, "now");
	for (size_t i = 0; i < ARRAY_LEN(rates) && ret->state == RUN_RUNNING; i++)
		target_node_set_number(attempt, rates[i][0], rates[i][1], object);
	run_set_time(observed, "time", time_ms);
	object = json_sub(observed, "resources");
	if (gpus)
		json_set_int(object, "gpus", target_node_count_words(gpus));
	if (!str_empty(model))
		json_set_str(object, "gpu_model", model);
	/* While it runs, what could not be collected yet may be later. */
	if (!str_empty(collect) && run_state_is_final(ret->state))
		json_set_str(observed, "warning", collect);
	add_warning(attempt, "warning", observed);
	add_warning(attempt, "limits", observed);
	target_node_add_data(attempt, observed);
	ret->observed = observed;
}

/* Where the reason alone tells who was at fault. */
static const char *origin_of(const char *reason)
{
	static const char *const programs[] = {"Completed", "Error", "Signal"};

	for (size_t i = 0; i < ARRAY_LEN(programs); i++)
		if (str_eq(reason, programs[i]))
			return "job";
	return str_eq(reason, "SetupFailed") ? "setup" : "dlrun";
}

/* A name or a number, or nothing. */
static int target_node_signal_of(const struct node_attempt *attempt)
{
	const char *text = node_attempt_get(attempt, "signal");
	int64_t number;

	if (str_empty(text) || str_eq(text, "0"))
		return 0;
	if (str_to_int(text, 1, NUMBERS_MAX, "signal", &number, NULL) == 0)
		return (int)number;
	return proc_signal_number(text);
}

static const char *default_reason(enum run_state state, int sig)
{
	if (state == RUN_SUCCEEDED)
		return "Completed";
	if (state == RUN_CANCELLED)
		return "Cancelled";
	if (state == RUN_LOST)
		return "Lost";
	return sig ? "Signal" : "Error";
}

static int default_code(enum run_state state, int sig)
{
	if (state == RUN_SUCCEEDED)
		return 0;
	if (state == RUN_CANCELLED)
		return EXIT_CANCELLED;
	return sig ? EXIT_SIGNAL + sig : state == RUN_FAILED ? 1 : EXIT_OURS;
}

static void target_node_set_exit(
	const struct node *node, const struct node_attempt *attempt, struct target_status *ret)
{
	AUTO_JSON struct json *json = json_object();
	const char *reason = node_attempt_get(attempt, "reason");
	const char *origin = node_attempt_get(attempt, "origin");
	int sig = target_node_signal_of(attempt);

	if (str_empty(reason))
		reason = default_reason(ret->state, sig);
	json_set_int(
		json, "code", node_attempt_int(attempt, "code", default_code(ret->state, sig)));
	json_set_int(json, "signal", sig);
	json_set_str(json, "origin", str_empty(origin) ? origin_of(reason) : origin);
	json_set_str(json, "reason", reason);
	run_exit_from_json(json, &ret->exit);
	/* A program killed by a signal has not succeeded. */
	if (sig && ret->exit.code == 0)
		ret->exit.code = EXIT_SIGNAL + sig;
	ret->ended_ms = node_time_here(node, node_attempt_int(attempt, "ended", 0));
}

static void target_node_set_text(const struct node_attempt *attempt, struct target_status *ret)
{
	const char *text = node_attempt_get(attempt, "text");
	char name[8];

	if (!str_empty(text)) {
		ret->text = mem_strdup(text);
	} else if (ret->state == RUN_FAILED && ret->exit.signal) {
		ret->text = mem_printf("the program was killed by SIG%s",
			proc_signal_name(ret->exit.signal, name));
	} else if (ret->state == RUN_FAILED && str_eq(ret->exit.origin, "job")) {
		ret->text = mem_printf("the program exited with %d", ret->exit.code);
	} else if (ret->state == RUN_CANCELLED) {
		ret->text = mem_strdup("it was cancelled");
	} else if (ret->state == RUN_LOST) {
		ret->text = mem_strdup("its supervisor on the node was killed");
	}
}

void target_node_status(
	const struct node *node, const struct node_attempt *attempt, struct target_status *ret)
{
	const char *cancel = node_attempt_get(attempt, "cancel");

	*ret = (struct target_status){.state = run_state_find(attempt->state)};
	ret->started_ms = node_time_here(node, node_attempt_int(attempt, "started", 0));
	ret->cancelling = cancel && !str_eq(cancel, "0");
	if (run_state_is_final(ret->state))
		target_node_set_exit(node, attempt, ret);
	target_node_set_text(attempt, ret);
	set_observed(attempt, ret);
}

/*
 * State
 */

struct querying {
	struct node_work base;
	struct strv names;
	struct node_attempts found;
	struct target_status *ret;
	bool was_accepted, is_here; /* as the record's files here say, before the node was asked */
};

static void target_node_release(struct node_work *work)
{
	struct querying *querying = (struct querying *)work;

	strv_done(&querying->names);
	node_attempts_done(&querying->found);
	free(querying);
}

/* Nothing there knows of it. */
static void evaluate_absent(const struct querying *querying, struct target_status *ret)
{
	const struct node_work *work = &querying->base;
	const struct dirs *dirs = &work->target->session->dirs;
	AUTO_FREE char *run_dir = dirs_run(dirs, work->handle.run_id);
	AUTO_FREE char *lock = fs_join(run_dir, RUN_SUBMIT_LOCK);

	*ret = (struct target_status){.state = RUN_PREPARING};
	if (fs_is_locked(lock))
		return;
	char *other = node_machine_other(
		dirs, work->handle.run_id, work->host->name, node_facts(work->host->node));
	if (other) {
		*ret = (struct target_status){.state = RUN_UNKNOWN, .text = other};
		return;
	}
	if (querying->was_accepted || !querying->is_here) {
		AUTO_FREE char *text = mem_printf("%s no longer knows of it", work->host->name);
		attempt_set_end(ret, RUN_LOST, EXIT_OURS, 0, "dlrun", "Lost", text);
	} else {
		attempt_set_end(ret, RUN_FAILED, EXIT_OURS, 0, "dlrun", "Interrupted",
			"dlrun was stopped before the run had begun");
	}
	ret->ended_ms = clock_wall_ms();
}

static int node_find_hosts(
	struct target_node *node, const struct json *definition, struct strv *ret, struct err *err);

/* A node sends nobody to hosts that the target has not. */
static bool target_node_has_host(struct target_node *node, const char *name)
{
	AUTO_STRV struct strv hosts = {0};
	AUTO_ERR struct err ignored = {0};

	return strv_find(&node->hosts, name) >= 0 ||
	       (node_find_hosts(node, node->definition, &hosts, &ignored) == 0 &&
		       strv_find(&hosts, name) >= 0);
}

static int target_node_on_found(void *ctx, int status, struct err *error, struct err *err UNUSED)
{
	struct querying *querying = ctx;
	struct node_work *work = &querying->base;
	const struct node_handle *handle = &work->handle;
	const struct node_attempt *attempt = querying->found.v;

	if (status < 0)
		return node_work_end(work, status, error);
	if (querying->found.n == 0 || str_eq(attempt->state, "absent")) {
		evaluate_absent(querying, querying->ret);
		return node_work_end(work, 0, error);
	}
	node_machine_note(&work->target->session->dirs, handle->run_id, work->host->name,
		node_facts(work->host->node));
	target_node_status(work->host->node, attempt, querying->ret);
	/* Another host that sees the same home has taken it. */
	const char *claimed = node_attempt_get(attempt, "claimed");
	if (!str_empty(claimed) && !str_eq(claimed, work->host->name) &&
		target_node_has_host(work->target, claimed))
		target_pool_set_host(handle, claimed, querying->ret);
	/* The attempt that its supervisor there began by itself. */
	int64_t next = node_attempt_int(attempt, "next", 0);
	if (querying->ret->state == RUN_FAILED && next > handle->attempt && next < INT32_MAX)
		querying->ret->next_handle =
			node_handle_text(handle->host, handle->run_id, (int)next);
	return node_work_end(work, 0, error);
}

static bool target_node_was_accepted(const struct node_work *work)
{
	const struct dirs *dirs = &work->target->session->dirs;
	AUTO_FREE char *dir = dirs_attempt(dirs, work->handle.run_id, work->handle.attempt);
	AUTO_FREE char *accepted = fs_join(dir, ATTEMPT_ACCEPTED);

	return access(accepted, F_OK) == 0;
}

static int target_node_state(struct target *target, const char *handle, struct target_status *ret,
	struct target_call *call, struct err *err)
{
	struct querying *querying;

	if (node_handle_is_gang(handle))
		return target_gang_state(target, handle, ret, call, err);
	if (node_handle_is_pool(handle))
		return target_pool_state(target, handle, ret, call, err);
	querying = mem_alloc(1, sizeof(*querying));
	*querying = (struct querying){.base = {.release = target_node_release}, .ret = ret};
	int r = node_work_begin(target, handle, &querying->base, call, err);
	if (r < 0)
		return r;
	AUTO_FREE char *run_dir =
		dirs_run(&target_node_of(target)->session->dirs, querying->base.handle.run_id);
	querying->is_here = access(run_dir, F_OK) == 0;
	querying->was_accepted = target_node_was_accepted(&querying->base);
	strv_addf(&querying->names, "%s/%d", querying->base.handle.run_id,
		querying->base.handle.attempt);
	querying->base.requested = node_state(querying->base.host->node, &querying->names,
		&querying->found, target_node_on_found, querying);
	return 0;
}

/*
 * Choice of the host that takes a run: made when the image is there, while nothing has been written
 * down yet. A login that began earlier is mostly done by then.
 */

enum { POOL_MS = 15000, SETTLE_MS = 3000, POOL_NAMES_MAX = TARGET_HANDLE_SIZE - 128 };

struct choosing {
	struct target_node *node;
	struct node_probe *probes;
	struct node_offer *offers;
	size_t n;
};

static void choosing_done(struct choosing *choosing)
{
	for (size_t i = 0; choosing->probes && i < choosing->n; i++)
		node_probe_done(&choosing->probes[i]);
	free(choosing->probes);
	free(choosing->offers);
}

/* Size of dlrun's own layers that would have to be sent. */
static uint64_t missing_bytes(const struct node_facts *facts, const struct image *image)
{
	uint64_t bytes = 0;

	for (size_t i = 0; image && i < image->n_layers; i++) {
		const struct image_layer *layer = &image->layers[i];
		const char *hex = strchr(layer->blob.digest, ':');
		if (layer->role != IMAGE_ROLE_BASE && hex && strv_find(&facts->layers, hex + 1) < 0)
			bytes += layer->blob.size;
	}
	return bytes;
}

/* A member of a study with a limit, in a pool: its index says which host it is sent to. */
static bool is_placed_member(const struct target_node *node, const struct spec *spec)
{
	return spec->study.parallel > 0 && node->hosts.n > 1;
}

static size_t hosts_with_slots(const struct target_node *node, const struct spec_study *study)
{
	size_t slots = (size_t)study->parallel;

	return node->hosts.n < slots ? node->hosts.n : slots;
}

/* The hosts to be probed. Returns how long the others are waited for once one has answered. */
static int64_t choosing_fill(struct choosing *choosing, const struct spec *spec)
{
	struct target_node *node = choosing->node;
	bool is_placed = is_placed_member(node, spec);

	choosing->n = is_placed ? hosts_with_slots(node, &spec->study) : node->hosts.n;
	bool is_pool = choosing->n > 1;
	/* A run of several has to know them all, and so has a study. */
	bool is_enough = is_pool && spec->resources.nodes <= 1 && !is_placed;
	struct roles_part part;
	roles_nth(spec, 0, &part);
	choosing->probes = mem_alloc(choosing->n + 1, sizeof(*choosing->probes));
	choosing->offers = mem_alloc(choosing->n + 1, sizeof(*choosing->offers));
	for (size_t i = 0; i < choosing->n; i++)
		choosing->probes[i] = (struct node_probe){.host = node->hosts.v[i],
			.root = node->root,
			.gpus_too = is_pool || part.gpus > 0 || spec->resources.gpu_type};
	return is_enough ? SETTLE_MS : -1;
}

/* GPUs of other models are none for this run. */
static void choosing_keep_models(struct choosing *choosing, const struct spec *spec)
{
	const char *type = spec->resources.gpu_type;

	for (size_t i = 0; type && i < choosing->n; i++) {
		struct node_gpus *gpus = &choosing->probes[i].gpus;
		size_t kept = 0;

		for (size_t k = 0; k < gpus->n; k++)
			if (gpu_model_matches(gpus->v[k].model, type))
				gpus->v[kept++] = gpus->v[k];
		gpus->n = kept;
	}
}

static int check_hosts(struct choosing *choosing, const struct spec *spec, struct err *err)
{
	struct target_node *node = choosing->node;
	int64_t settle_ms = choosing_fill(choosing, spec);

	int r = node_probe_all(node->session, choosing->probes, choosing->n,
		node->hosts.n > 1 ? POOL_MS : -1, settle_ms, NULL, err);
	if (r == 0)
		choosing_keep_models(choosing, spec);
	return r;
}

static int fail_choice(struct choosing *choosing, const struct node_requirements *requirements,
	const char *why, struct err *err)
{
	const char *name = choosing->node->target.name;
	const struct err *first = &choosing->probes[0].error;
	size_t n_answered = 0;

	for (size_t i = 0; i < choosing->n; i++)
		n_answered += choosing->probes[i].facts != NULL;
	if (n_answered == 0)
		err_set(err, first->id, "none of the %zu hosts of target %s answers", choosing->n,
			name);
	else
		err_set(err, requirements->gpus > 0 ? E_GPU_COUNT : E_NODE_FAILED, "target %s: %s",
			name, why ? why : "no host takes the run");
	for (size_t i = 0; i < choosing->n; i++)
		if (!choosing->probes[i].facts)
			err_evidence(err, "%s: %s", choosing->probes[i].host,
				choosing->probes[i].error.message);
	return err_hint(err, "dlrun targets %s", name);
}

static void target_node_take(struct choosing *choosing, size_t at, const char *why)
{
	struct target_node *node = choosing->node;

	free(node->chosen);
	free(node->why);
	node->chosen = mem_strdup(choosing->probes[at].host);
	node->why = mem_strdup(why);
	log_note("%s answered after %lld ms; programs are started by %s there", node->chosen,
		(long long)choosing->probes[at].response_ms, choosing->probes[at].facts->launch);
}

/* Whether the host of a probe could take a run that wants GPUs. */
static bool choosing_fits(
	const struct choosing *choosing, size_t i, const struct node_requirements *wanted)
{
	const struct node_probe *probe = &choosing->probes[i];
	AUTO(node_choice_done) struct node_choice choice = {0};

	if (!probe->facts || probe->gpus.n == 0)
		return false;
	for (size_t at = 0; at < probe->facts->missing.n; at++)
		if (node_tool_needed(probe->facts->missing.v[at]))
			return false;
	node_choose(&choosing->offers[i], 1, wanted, &choice);
	return choice.hosts.n == 1;
}

/* Whether two hosts may have one home, and are of the same kind. */
static bool choosing_may_share(const struct node_facts *a, const struct node_facts *b)
{
	return !str_empty(a->pool) && str_eq(a->pool, b->pool) && str_eq(a->system, b->system) &&
	       str_eq(a->machine, b->machine);
}

/* Lets a run that wants GPUs wait on all hosts that may have one home: which of them is free first
 * nobody knows. They prove that it is one when they are told of it (target_pool.h). Of others the
 * record has the names, so that the run can be moved (`pool`). */
static void target_node_add_pool(struct choosing *choosing, size_t first,
	const struct target_requirements *requirements, const struct node_requirements *wanted)
{
	struct target_node *node = choosing->node;
	AUTO_STRV struct strv names = {0};
	size_t len = strlen(node->chosen);

	strv_done(&node->pool);
	if (wanted->gpus == 0 || requirements->spec->study.parallel > 0 ||
		!choosing_fits(choosing, first, wanted))
		return;
	strv_add(&names, node->chosen);
	for (size_t i = 0; i < choosing->n; i++) {
		const struct node_probe *probe = &choosing->probes[i];
		size_t more = strlen(probe->host) + 1;

		if (!choosing_fits(choosing, i, wanted) || len + more > POOL_NAMES_MAX)
			continue;
		strv_add(&node->pool, probe->host);
		if (i == first || !choosing_may_share(probe->facts, choosing->probes[first].facts))
			continue;
		strv_add(&names, probe->host);
		len += more;
	}
	if (names.n > 1 || node->pool.n == 1)
		strv_done(&node->pool);
	REPLACE(node->chosen, strv_join(&names, NODE_POOL_BETWEEN));
}

/* Where one of several hosts is chosen for good, and where it is not. */
static void choosing_print(
	const struct choosing *choosing, size_t first, const struct node_requirements *wanted)
{
	const struct target_node *node = choosing->node;
	const struct session_env *env = &node->session->env;
	size_t needed = wanted->gpus > 0 ? (size_t)wanted->gpus : 1;

	if (choosing->n <= 1 || !env->print || node_handle_is_pool(node->chosen))
		return;
	AUTO_FREE char *text = mem_printf(
		"%s of target %s takes it: %s", node->chosen, node->target.name, node->why);
	env->print(env->print_ctx, text);
	if (node->pool.n == 0 || node_probe_free_gpus(&choosing->probes[first]) >= needed)
		return;
	AUTO_FREE char *waits = mem_printf(
		"it waits on %s: the hosts have no home in common. Whenever dlrun looks (dlrun ps), it "
		"goes to one that is free",
		node->chosen);
	env->print(env->print_ctx, waits);
}

static void take_gang(struct choosing *choosing, const struct node_choice *choice)
{
	struct target_node *node = choosing->node;
	const struct session_env *env = &node->session->env;
	AUTO_STRV struct strv names = {0};

	for (size_t i = 0; i < choice->hosts.n; i++)
		strv_add(&names, choosing->probes[choice->hosts.v[i]].host);
	free(node->chosen);
	free(node->why);
	node->chosen = strv_join(&names, ",");
	node->why = mem_strdup(choice->why);
	if (env->print) {
		AUTO_FREE char *text = mem_printf("%zu hosts of target %s take it: %s", names.n,
			node->target.name, choice->why);
		env->print(env->print_ctx, text);
	}
}

/* Of each role. Returns what the one that wants the most GPUs wants. */
static struct node_requirements choosing_wanted(const struct spec *spec, struct role_wishes *ret)
{
	struct node_requirements most = {0};

	for (size_t i = 0; i < roles_count(spec); i++) {
		struct roles_part part;
		struct role_wish *wish = vec_push(ret);

		roles_nth(spec, i, &part);
		*wish = (struct role_wish){
			part.name, {
					   .nodes = (unsigned)part.nodes,
					   .gpus = part.gpus,
					   .memory_bytes = part.memory_bytes,
					   .disk_bytes = spec->resources.disk_bytes,
					   .cpus = (double)part.cpus_milli / 1000,
				   }};
		if (i == 0 || part.gpus > most.gpus)
			most = wish->wanted;
	}
	return most;
}

/* From the probes. */
static void choosing_offer(
	struct choosing *choosing, const struct target_requirements *requirements)
{
	for (size_t i = 0; i < choosing->n; i++) {
		const struct node_probe *probe = &choosing->probes[i];
		node_probe_offer(probe, &choosing->offers[i]);
		if (probe->facts)
			choosing->offers[i].missing_bytes =
				missing_bytes(probe->facts, requirements->image);
	}
}

static int target_node_choose(struct choosing *choosing,
	const struct target_requirements *requirements, struct strv *ret_notes, struct err *err)
{
	AUTO(role_wishes_done) struct role_wishes roles = {0};
	const struct node_requirements wanted = choosing_wanted(requirements->spec, &roles);
	AUTO(node_choice_done) struct node_choice choice = {0};

	choosing_offer(choosing, requirements);
	role_hosts_choose(choosing->offers, choosing->n, &roles, &choice);
	if (choice.hosts.n == 0)
		return fail_choice(choosing, &wanted, choice.why, err);
	for (size_t i = 0; i < choosing->n; i++)
		if (!choosing->probes[i].facts)
			strv_addf(ret_notes, "%s is passed over: %s", choosing->probes[i].host,
				choosing->probes[i].error.message);
	if (choice.hosts.n > 1) {
		take_gang(choosing, &choice);
		return 0;
	}
	size_t first = choice.hosts.v[0];
	target_node_take(choosing, first, choice.why ? choice.why : "it is free");
	target_node_add_pool(choosing, first, requirements, &wanted);
	choosing_print(choosing, first, &wanted);
	return 0;
}

/* More than there are would never begin. A single host takes a run of one node. */
static int target_node_check_gpus(
	struct node_probe *probe, const struct spec *spec, struct err *err)
{
	const char *type = spec->resources.gpu_type;
	struct roles_part part;

	roles_nth(spec, 0, &part);
	int wanted = part.gpus;

	if (!probe->gpus_too)
		return 0;
	if (!probe->has_gpus)
		return err_move(err, &probe->error);
	if (wanted <= 0 || (size_t)wanted <= probe->gpus.n)
		return 0;
	AUTO_FREE char *shown = type ? str_shown(type) : mem_strdup("");
	err_set(err, E_GPU_COUNT, "requested %d %s%sGPU%s, host %s has %zu", wanted, shown,
		type ? " " : "", wanted == 1 ? "" : "s", probe->host, probe->gpus.n);
	return type || part.name ? err_hint(err, "dlrun targets")
				 : err_hint(err, "dlrun submit -g %zu …", probe->gpus.n);
}

/* A pool is chosen from by the same. */
static int target_node_check_size(
	const struct node_probe *probe, const struct resources *wanted, struct err *err)
{
	const struct node_facts *facts = probe->facts;
	char requested[16], has[16];

	if (facts->cpus && wanted->cpus_milli > (int64_t)facts->cpus * 1000) {
		err_set(err, E_TARGET_UNSUPPORTED, "--cpus %g: host %s has %u CPU%s",
			(double)wanted->cpus_milli / 1000, probe->host, facts->cpus,
			facts->cpus == 1 ? "" : "s");
		return err_hint(err, "dlrun submit --cpus %u …", facts->cpus);
	}
	if (facts->memory_bytes && wanted->memory_bytes > facts->memory_bytes) {
		err_set(err, E_TARGET_UNSUPPORTED, "--memory %s: host %s has %s",
			str_size(wanted->memory_bytes, requested), probe->host,
			str_size(facts->memory_bytes, has));
		return err_hint(err, "dlrun submit --memory %lluMi …",
			(unsigned long long)(facts->memory_bytes >> 20));
	}
	if (wanted->disk_bytes <= facts->free_bytes)
		return 0;
	return err_set(err, E_NODE_DISK, "%s: %s has %s free, resources.disk is %s", probe->host,
		facts->local, str_size(facts->free_bytes, has),
		str_size(wanted->disk_bytes, requested));
}

/* Requirements that the host would refuse, by its own facts: tools and space. */
static int check_host_facts(const struct node_probe *probe,
	const struct target_requirements *requirements, struct err *err)
{
	const struct node_facts *facts = probe->facts;
	uint64_t need = requirements->tree_bytes * NODE_TREE_FACTOR +
			missing_bytes(facts, requirements->image);
	int r = 0;

	for (size_t i = 0; r == 0 && i < facts->missing.n; i++) {
		const char *needed = node_tool_needed(facts->missing.v[i]);
		if (needed)
			r = err_set(err, E_NODE_TOOL, "host %s has no %s", probe->host, needed);
	}
	if (r == 0 && facts->free_bytes < need)
		r = err_set(err, E_NODE_DISK,
			"%s: %s has %" PRIu64 " bytes free, %" PRIu64 " are needed", probe->host,
			facts->local, facts->free_bytes, need);
	node_explain(probe->opened, err);
	return r;
}

/* Settings that a container needs, and those not supported in one. */
static int check_runtime(const struct target_node *node,
	const struct target_requirements *requirements, struct err *err)
{
	const char *name = node->target.name;

	if (!node->runtime)
		return 0;
	if (!requirements->base || str_eq(requirements->base, "scratch")) {
		err_set(err, E_CONFIG, "target %s: runtime: %s needs an image, and none is named",
			name, node->runtime);
		return err_hint(err, "image: docker.io/library/python:3.12   # in dlrun.yaml");
	}
	if (str_starts(requirements->base, "oci:")) {
		err_set(err, E_CONFIG,
			"target %s: the image of runtime: %s is pulled there, and %s is a "
			"directory here",
			name, node->runtime, requirements->base);
		return err_hint(err, "image: docker.io/library/python:3.12   # in dlrun.yaml");
	}
	if (!requirements->spec->runtime.setup.run)
		return 0;
	err_set(err, E_TARGET_UNSUPPORTED,
		"target %s: setup: is not run with runtime: %s: what it makes is a part of the "
		"image there",
		name, node->runtime);
	return err_hint(err, "before: source /opt/env.sh   # in dlrun.yaml, instead of setup:");
}

/* Whether the run can be on the host. */
static int check_host(
	struct node_probe *probe, const struct target_requirements *requirements, struct err *err)
{
	if (!probe->facts)
		return err_move(err, &probe->error);
	int r = check_host_facts(probe, requirements, err);
	if (r == 0)
		r = target_node_check_gpus(probe, requirements->spec, err);
	return r < 0 ? r : target_node_check_size(probe, &requirements->spec->resources, err);
}

/*
 * Members of a study with a limit, in a pool (node_member_host). A host that does not answer, or
 * that the run does not fit, is passed over in favour of the next one that has a slot, for as long
 * as this target is open: one look at the hosts is for all members. The slots of that host stay
 * empty: each host keeps its own limit whoever comes, so that the limit of all is never exceeded.
 */

/* The host that is its turn, or the next one that has not been passed over; NULL: there is none. */
static const char *host_of_member(const struct target_node *node, const struct spec_study *study)
{
	size_t at = node_member_host(study->index, study->parallel, node->hosts.n);
	size_t n = hosts_with_slots(node, study);

	for (size_t i = 0; i < n; i++) {
		const char *host = node->hosts.v[(at + i) % n];
		if (strv_find(&node->passed_over, host) < 0)
			return host;
	}
	return NULL;
}

int target_node_slots(const struct target_node *node, const char *host, int parallel)
{
	ptrdiff_t at = strv_find(&node->hosts, host);

	if (parallel == 0)
		return 0;
	/* Where only the host is known that it was sent to. */
	if (node->recorded_slots > 0)
		return node->recorded_slots;
	return at < 0 ? 1 : node_member_slots((size_t)at, parallel, node->hosts.n);
}

/* Each member has a host of its own, also where a target is opened once for many. */
static int prepare_member(struct target_node *node, const struct spec *spec, struct err *err)
{
	node->parallel = spec->study.parallel;
	if (!is_placed_member(node, spec))
		return 0;
	const char *host = host_of_member(node, &spec->study);
	if (!host)
		return err_set(
			err, E_NODE_FAILED, "target %s: no host takes the run", node->target.name);
	REPLACE(node->chosen, mem_strdup(host));
	return 0;
}

/* The hosts were checked. */
static int learn_member(struct choosing *choosing, const struct target_requirements *requirements,
	struct strv *ret_notes, struct err *err)
{
	struct target_node *node = choosing->node;
	AUTO_ERR struct err first = {0};

	strv_done(&node->passed_over);
	for (size_t i = 0; i < choosing->n; i++) {
		AUTO_ERR struct err error = {0};

		if (check_host(&choosing->probes[i], requirements, &error) == 0)
			continue;
		strv_add(&node->passed_over, choosing->probes[i].host);
		strv_addf(ret_notes, "%s is passed over: %s", choosing->probes[i].host,
			error.message);
		if (!err_is_set(&first))
			err_move(&first, &error);
	}
	return node->passed_over.n == choosing->n ? err_move(err, &first)
						  : prepare_member(node, requirements->spec, err);
}

static int target_node_learn(struct target *target, const struct target_requirements *requirements,
	struct strv *ret_notes, struct err *err)
{
	struct target_node *node = target_node_of(target);
	AUTO(choosing_done) struct choosing choosing = {.node = node};
	const struct spec *spec = requirements->spec;

	int r = check_runtime(node, requirements, err);
	if (r == 0 && spec->study.parallel > 0 && spec->resources.nodes > 1)
		r = err_set(err, E_TARGET_UNSUPPORTED,
			"target %s: --parallel cannot be used together with runs of several hosts: "
			"ranks that wait for slots would wait for each other",
			node->target.name);
	if (r == 0)
		r = check_hosts(&choosing, spec, err);
	if (r < 0)
		return r;
	if (is_placed_member(node, spec))
		return learn_member(&choosing, requirements, ret_notes, err);
	if (choosing.n > 1 || spec->resources.nodes > 1)
		return target_node_choose(&choosing, requirements, ret_notes, err);
	r = check_host(&choosing.probes[0], requirements, err);
	if (r == 0)
		target_node_take(&choosing, 0, NULL);
	return r;
}

/*
 * Whether there is room now (target_ops.room)
 */

struct node_room {
	struct target_work work;
	struct choosing choosing;
	struct target_requirements requirements;
	struct target_room *ret;
	struct target_call *call;
	struct node_probing *probing;
};

static void node_room_drop(struct target_work *work)
{
	struct node_room *room = (struct node_room *)work;

	node_probing_cancel(room->probing);
	choosing_done(&room->choosing);
	free(room);
}

/* "NVIDIA A100-SXM4-80GB" without the vendor, of all free GPUs; NULL: they are of several. */
static const char *node_room_model(const struct choosing *choosing)
{
	static const char vendor[] = "NVIDIA ";
	const char *model = NULL;

	for (size_t i = 0; i < choosing->n; i++)
		vec_foreach (const struct node_gpu, gpu, &choosing->probes[i].gpus) {
			if (gpu->used || *gpu->holder)
				continue;
			if (model && !str_eq(model, gpu->model))
				return NULL;
			model = gpu->model;
		}
	return model && str_starts(model, vendor) ? model + strlen(vendor) : model;
}

/* "3 × A100 free", "8 hosts, none free". The caller frees. */
static char *node_room_text(
	const struct choosing *choosing, const struct node_choice *choice, int gpus)
{
	size_t n_free = 0, n_answered = 0, n_gpus = 0;

	for (size_t i = 0; i < choosing->n; i++) {
		const struct node_offer *offer = &choosing->offers[i];
		n_answered += offer->answered;
		n_gpus += offer->gpus;
		n_free += offer->gpus_free;
	}
	AUTO_FREE char *hosts = choosing->n == 1 ? mem_strdup(choosing->probes[0].host)
						 : mem_printf("%zu hosts", n_answered);
	if (gpus == 0 || n_gpus == 0)
		return choice->is_ready
			       ? mem_printf("%s answer%s", hosts, choosing->n == 1 ? "s" : "")
			       : mem_strdup(choice->why);
	const char *model = node_room_model(choosing);
	if (choice->is_ready)
		return model ? mem_printf("%zu × %s free", n_free, model)
			     : mem_printf("%zu GPUs free", n_free);
	if (n_free > 0)
		return mem_printf("%s, %zu of %zu GPUs free", hosts, n_free, n_gpus);
	return choosing->n == 1 ? mem_printf("%s, no GPU free", hosts)
				: mem_printf("%s, none free", hosts);
}

/* None of those that answered would do; one that is silent might. */
static int node_room_fail(struct choosing *choosing, const struct node_requirements *wanted,
	const char *why, struct err *err)
{
	for (size_t i = 0; i < choosing->n; i++) {
		const struct node_probe *probe = &choosing->probes[i];
		if (!probe->facts && probe->error.code == ERR_NET)
			return err_copy(err, &probe->error);
	}
	return fail_choice(choosing, wanted, why, err);
}

static int node_room_evaluate(struct node_room *room, struct err *err)
{
	struct choosing *choosing = &room->choosing;
	const struct spec *spec = room->requirements.spec;
	AUTO(role_wishes_done) struct role_wishes roles = {0};
	const struct node_requirements wanted = choosing_wanted(spec, &roles);
	AUTO(node_choice_done) struct node_choice choice = {0};

	choosing_keep_models(choosing, spec);
	choosing_offer(choosing, &room->requirements);
	if (choosing->n == 1 && spec->resources.nodes <= 1) {
		int r = check_host(&choosing->probes[0], &room->requirements, err);
		if (r < 0)
			return r;
	}
	role_hosts_choose(choosing->offers, choosing->n, &roles, &choice);
	if (choice.hosts.n == 0)
		return node_room_fail(choosing, &wanted, choice.why, err);
	room->ret->is_now = choice.is_ready;
	for (size_t i = 0; wanted.gpus != 0 && i < choosing->n; i++)
		room->ret->n_now += choosing->offers[i].gpus_free /
				    (wanted.gpus > 0 ? (unsigned)wanted.gpus : 1);
	room->ret->text = node_room_text(choosing, &choice, wanted.gpus);
	return 0;
}

static void node_room_on_probed(void *ctx)
{
	struct node_room *room = ctx;
	AUTO_ERR struct err error = {0};

	room->probing = NULL;
	int r = node_room_evaluate(room, &error);
	target_call_end(room->call, r, &error);
}

static int target_node_room(struct target *target, const struct target_requirements *requirements,
	struct target_room *ret, struct target_call *call, struct err *err)
{
	struct target_node *node = target_node_of(target);
	struct node_room *room;
	int r = check_runtime(node, requirements, err);

	if (r < 0)
		return r;
	room = mem_alloc(1, sizeof(*room));
	*room = (struct node_room){.work = {node_room_drop},
		.choosing = {.node = node},
		.requirements = *requirements,
		.ret = ret,
		.call = call};
	int64_t settle_ms = choosing_fill(&room->choosing, requirements->spec);
	bool needs_gpus = roles_gpus(requirements->spec) != 0;
	for (size_t i = 0; needs_gpus && i < room->choosing.n; i++)
		room->choosing.probes[i].gpus_too = true;
	target_call_begin(call, &room->work);
	room->probing = node_probing_start(node->session, room->choosing.probes, room->choosing.n,
		call->deadline_ms ? call->deadline_ms - clock_ms() : -1, settle_ms,
		node_room_on_probed, room);
	return 0;
}

#define PREFIX "ssh:"

enum { ATTEMPTS_MAX = 1000000, WARM_MAX = 32 };

/*
 * Handles
 */

char *node_handle_text(const char *host, const char *run_id, int attempt)
{
	return mem_printf(PREFIX "%s/%s/%d", host, run_id, attempt);
}

void node_handle_done(struct node_handle *handle)
{
	free(TAKE(handle->host));
}

/* The last two parts are ours; a host is whatever ssh takes. */
static bool target_node_parse_handle(const char *handle, struct node_handle *ret)
{
	const char *last = strrchr(handle, '/'), *id = last;
	int64_t attempt = 0;

	while (id && id > handle && id[-1] != '/')
		id--;
	if (!str_starts(handle, PREFIX) || !id || (size_t)(id - handle) <= strlen(PREFIX) + 1 ||
		(size_t)(last - id) >= sizeof(ret->run_id) ||
		str_to_int(last + 1, 1, ATTEMPTS_MAX, "attempt", &attempt, NULL) < 0)
		return false;
	memcpy(ret->run_id, id, (size_t)(last - id));
	ret->run_id[last - id] = '\0';
	ret->attempt = (int)attempt;
	if (!run_id_is_valid(ret->run_id))
		return false;
	handle += strlen(PREFIX);
	ret->host = mem_strndup(handle, (size_t)(id - 1 - handle));
	return true;
}

int node_handle_parse(const char *handle, struct node_handle *ret, struct err *err)
{
	*ret = (struct node_handle){0};
	if (target_node_parse_handle(handle, ret))
		return 0;
	AUTO_FREE char *shown = str_shown(handle);
	return err_set(err, E_DATA, "'%s' is not a handle of a run on a host", shown);
}

/* Where it was not asked which are free: the first ones. */
static int pick_hosts(const struct target_node *node, size_t n, char **ret, struct err *err)
{
	const struct strv first = {.v = node->hosts.v, .n = n > 1 ? n : 1};

	if (first.n > node->hosts.n)
		return err_set(err, E_TARGET, "%zu hosts are wanted, and target %s has %zu", n,
			node->target.name, node->hosts.n);
	*ret = node->chosen ? mem_strdup(node->chosen) : strv_join(&first, ",");
	return 0;
}

static int target_node_prepare(struct target *target, const char *run_id, int attempt,
	const struct spec *spec, char handle[static TARGET_HANDLE_SIZE], struct err *err)
{
	struct target_node *node = target_node_of(target);
	AUTO_FREE char *hosts = NULL;
	int r = prepare_member(node, spec, err);

	if (r == 0)
		r = pick_hosts(node, (size_t)spec->resources.nodes, &hosts, err);
	if (r < 0)
		return r;
	AUTO_FREE char *text = node_handle_text(hosts, run_id, attempt);
	if (snprintf(handle, TARGET_HANDLE_SIZE, "%s", text) < TARGET_HANDLE_SIZE)
		return 0;
	return err_set(err, E_DATA_LIMIT, "the names of the hosts are too long: %s", hosts);
}

/*
 * Operations
 */

static void target_node_drop_work(struct target_work *target_work)
{
	struct node_work *work = (struct node_work *)target_work;

	loop_remove_timer(work->target->target.loop, work->timer);
	node_cancel(work->requested);
	node_handle_done(&work->handle);
	work->release(work);
}

static int node_on_deadline(void *ctx, struct err *err UNUSED)
{
	struct node_work *work = ctx;
	AUTO_ERR struct err error = {0};

	work->timer = NULL;
	int r = err_set(&error, E_TARGET_SILENT, "%s did not answer in time", work->host->name);
	target_call_end(work->call, r, &error);
	return 0;
}

void node_work_extend(struct node_work *work, int64_t ms)
{
	struct loop *loop = work->target->target.loop;

	loop_remove_timer(loop, work->timer);
	work->timer = ms < 0 ? NULL : loop_add_timer(loop, clock_ms() + ms, node_on_deadline, work);
}

int node_work_begin(struct target *target, const char *handle, struct node_work *work,
	struct target_call *call, struct err *err)
{
	work->target = target_node_of(target);
	int r = node_handle_parse(handle, &work->handle, err);
	if (r == 0)
		return node_work_begin_there(target, work, call, err);
	target_node_drop_work(&work->work);
	return r;
}

int node_work_begin_there(
	struct target *target, struct node_work *work, struct target_call *call, struct err *err)
{
	struct target_node *node = target_node_of(target);

	work->work.drop = target_node_drop_work;
	work->target = node;
	work->call = call;
	int r = node_open(node->session, work->handle.host, node->root, &work->host, err);
	if (r < 0) {
		target_node_drop_work(&work->work);
		return r;
	}
	target_call_begin(call, &work->work);
	if (call->deadline_ms)
		work->timer =
			loop_add_timer(target->loop, call->deadline_ms, node_on_deadline, work);
	return 0;
}

int node_work_end(struct node_work *work, int status, struct err *error)
{
	work->requested = NULL;
	node_explain(work->host, error);
	target_call_end(work->call, status, error);
	return 0;
}

static void release_plain(struct node_work *work)
{
	free(work);
}

int node_work_done(void *ctx, int status, struct err *error, struct err *err UNUSED)
{
	return node_work_end(ctx, status, error);
}

/* "stop", "forget" or "forget all" to all that the handle names. */
static int target_node_tell(struct target *target, const char *handle, const char *verb,
	struct target_call *call, struct err *err)
{
	struct node_work *work;

	if (node_handle_is_gang(handle))
		return target_gang_broadcast(target, handle, verb, call, err);
	if (node_handle_is_pool(handle))
		return target_pool_tell(target, handle, verb, NULL, call, err);
	work = mem_alloc(1, sizeof(*work));
	*work = (struct node_work){.release = release_plain};
	int r = node_work_begin(target, handle, work, call, err);
	if (r < 0)
		return r;
	struct node *node = work->host->node;
	const struct node_handle *of = &work->handle;
	work->requested = str_eq(verb, "stop")
				  ? node_stop(node, of->run_id, of->attempt, node_work_done, work)
				  : node_forget(node, of->run_id, of->attempt,
					    str_ends(verb, "all"), node_work_done, work);
	return 0;
}

static int target_node_cancel(
	struct target *target, const char *handle, struct target_call *call, struct err *err)
{
	return target_node_tell(target, handle, "stop", call, err);
}

struct withdrawing {
	struct node_work base;
	enum node_withdrawn found;
	bool *ret;
};

static int node_on_withdrawn(void *ctx, int status, struct err *error, struct err *err UNUSED)
{
	struct withdrawing *withdrawing = ctx;
	struct node_work *work = &withdrawing->base;

	/* The attempt may wait on the machine that had this name before. */
	AUTO_FREE char *other = node_machine_other(&work->target->session->dirs,
		work->handle.run_id, work->host->name, node_facts(work->host->node));
	if (status == 0 && other)
		status = err_set(error, E_TARGET_SILENT, "%s", other);
	/* An attempt that was accepted and is not there any more may have begun. */
	if (status == 0)
		*withdrawing->ret =
			withdrawing->found == NODE_WITHDRAWN ||
			(withdrawing->found == NODE_WAS_ABSENT && !target_node_was_accepted(work));
	return node_work_end(work, status, error);
}

static int target_node_withdraw(struct target *target, const char *handle, bool *ret_taken,
	struct target_call *call, struct err *err)
{
	struct withdrawing *withdrawing;

	if (node_handle_is_gang(handle))
		return target_gang_withdraw(target, handle, ret_taken, call, err);
	if (node_handle_is_pool(handle))
		return target_pool_tell(target, handle, "withdraw", ret_taken, call, err);
	withdrawing = mem_alloc(1, sizeof(*withdrawing));
	*withdrawing = (struct withdrawing){.base.release = release_plain, .ret = ret_taken};
	int r = node_work_begin(target, handle, &withdrawing->base, call, err);
	if (r == 0)
		withdrawing->base.requested = node_withdraw(withdrawing->base.host->node,
			withdrawing->base.handle.run_id, withdrawing->base.handle.attempt,
			&withdrawing->found, node_on_withdrawn, withdrawing);
	return r;
}

static int target_node_forget(struct target *target, const char *handle, bool all,
	struct target_call *call, struct err *err)
{
	return target_node_tell(target, handle, all ? "forget all" : "forget", call, err);
}

/* Logins proceed while the tree is read. */
static void warm(struct target *target)
{
	struct target_node *node = target_node_of(target);
	struct node_host *host;

	for (size_t i = 0; i < node->hosts.n && i < WARM_MAX; i++)
		(void)node_open(node->session, node->hosts.v[i], node->root, &host, NULL);
}

static void target_node_describe(const struct target *target, struct json *json)
{
	const struct target_node *node = (const struct target_node *)target;
	struct json *hosts = json_array();
	AUTO_STRV struct strv chosen = {0};

	if (node->chosen)
		node_handle_split(node->chosen, &chosen);
	json_add_strv(hosts, node->chosen ? &chosen : &node->hosts);
	json_set(json, "hosts", hosts);
	/* Where it may go while it waits. */
	json_remove(json, "pool");
	if (node->pool.n) {
		struct json *pool = json_array();
		json_add_strv(pool, &node->pool);
		json_set(json, "pool", pool);
	}
	if (!str_eq(node->root, NODE_ROOT_DEFAULT))
		json_set_str(json, "dir", node->root);
	if (node->runtime)
		json_set_str(json, "runtime", node->runtime);
	/* A restart finds only the host there that it was sent to. */
	if (node->parallel > 0 && node->chosen)
		json_set_int(json, "slots", target_node_slots(node, node->chosen, node->parallel));
}

static void free_node(struct target *target)
{
	struct target_node *node = target_node_of(target);

	json_free(node->definition);
	strv_done(&node->hosts);
	strv_done(&node->passed_over);
	strv_done(&node->pool);
	free(node->chosen);
	free(node->why);
	free(node->last_notice);
	free(node->root);
	free(node->runtime);
	free(node->target.name);
	free(node);
}

const struct target_ops target_node_ops = {
	.kind = "ssh",
	.has_login = true,
	.has_nodes = true,
	.describe = target_node_describe,
	.warm = warm,
	.learn = target_node_learn,
	.room = target_node_room,
	.prepare = target_node_prepare,
	.submit = target_node_submit,
	.state = target_node_state,
	.logs = target_node_logs,
	.fetch = target_node_fetch,
	.adopt = target_node_adopt,
	.preview = target_node_preview,
	.cancel = target_node_cancel,
	.withdraw = target_node_withdraw,
	.forget = target_node_forget,
	.relay = target_node_relay,
	.exec = target_node_exec,
	.store = target_node_store,
	.free = free_node,
};

/*
 * Making one
 */

bool target_node_is(const char *name)
{
	return str_starts(name, PREFIX);
}

static int node_find_hosts(
	struct target_node *node, const struct json *definition, struct strv *ret, struct err *err)
{
	const struct json *hosts = json_get(definition, "hosts");
	const char *name = node->target.name;

	if (!hosts)
		return node_hosts_parse(
			target_node_is(name) ? name + strlen(PREFIX) : name, ret, err);
	return words_get(definition, "hosts", ret, err);
}

/* The container runtime; NULL: "host" or not set. */
static char *copy_runtime(const struct json *from)
{
	const char *runtime = json_get_str(from, "runtime");

	return runtime && !str_eq(runtime, "host") ? mem_strdup(runtime) : NULL;
}

int target_node_new(struct session *session, const char *name, const struct json *definition,
	const struct strv *hosts, const char *root, struct target **ret, struct err *err)
{
	struct target_node *node = mem_alloc(1, sizeof(*node));

	if (!root)
		root = json_get_str(definition, "dir");
	*node = (struct target_node){
		.target = {&target_node_ops, mem_strdup(name), session_loop(session)},
		.session = session,
		.definition = definition ? json_clone(definition) : NULL,
		.root = mem_strdup(root ? root : NODE_ROOT_DEFAULT),
		.runtime = copy_runtime(definition),
	};
	int r = 0;
	if (hosts)
		strv_copy(&node->hosts, hosts);
	else
		r = node_find_hosts(node, definition, &node->hosts, err);
	if (r < 0) {
		free_node(&node->target);
		return r;
	}
	node->target.hosts = &node->hosts;
	*ret = &node->target;
	return 0;
}

int target_node_recorded(struct session *session, const char *name, const struct json *definition,
	const struct json *recorded, struct target **ret, struct err *err)
{
	const char *root = json_get_str(recorded, "dir");
	AUTO_STRV struct strv hosts = {0};

	int r = words_get(recorded, "hosts", &hosts, err);
	if (r == 0 && hosts.n == 0)
		r = err_set(err, E_DATA, "the record says of no host that it was sent to");
	if (r == 0)
		r = target_node_new(session, name, definition, &hosts,
			root ? root : NODE_ROOT_DEFAULT, ret, err);
	if (r < 0)
		return r;
	/* As it was begun, also where the definition says something else by now. */
	free(target_node_of(*ret)->runtime);
	target_node_of(*ret)->runtime = copy_runtime(recorded);
	target_node_of(*ret)->recorded_slots = (int)json_get_int(recorded, "slots", 0);
	return 0;
}
