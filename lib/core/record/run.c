/* SPDX-License-Identifier: Apache-2.0 */
#include "core/record/run.h"

#include <ctype.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/random.h"
#include "base/util/str.h"
#include "core/record/after.h"

#define BIT(state) (1u << (state))

enum { PARAMS_MAX = 1000 };

static const char id_letters[] = "23456789abcdefghjkmnpqrstuvwxyz";

static const char *const state_names[RUN_STATES] = {
	[RUN_PREPARING] = "preparing",
	[RUN_QUEUED] = "queued",
	[RUN_STARTING] = "starting",
	[RUN_RUNNING] = "running",
	[RUN_SUCCEEDED] = "succeeded",
	[RUN_FAILED] = "failed",
	[RUN_CANCELLED] = "cancelled",
	[RUN_LOST] = "lost",
	[RUN_UNKNOWN] = "unknown",
};

enum {
	FINAL = BIT(RUN_SUCCEEDED) | BIT(RUN_FAILED) | BIT(RUN_CANCELLED) | BIT(RUN_LOST),
	ENDED_OR_UNKNOWN = FINAL | BIT(RUN_UNKNOWN),
	UNFINISHED = BIT(RUN_PREPARING) | BIT(RUN_QUEUED) | BIT(RUN_STARTING) | BIT(RUN_RUNNING),
};

/* A late poll skips the states in between, so every step forward is allowed. A job that is
 * preempted is queued again by its cluster. */
static const unsigned next_states[RUN_STATES] = {
	[RUN_PREPARING] = BIT(RUN_QUEUED) | BIT(RUN_STARTING) | BIT(RUN_RUNNING) | ENDED_OR_UNKNOWN,
	[RUN_QUEUED] = BIT(RUN_STARTING) | BIT(RUN_RUNNING) | ENDED_OR_UNKNOWN,
	[RUN_STARTING] = BIT(RUN_QUEUED) | BIT(RUN_RUNNING) | ENDED_OR_UNKNOWN,
	[RUN_RUNNING] = BIT(RUN_QUEUED) | ENDED_OR_UNKNOWN,
	[RUN_SUCCEEDED] = 0,
	[RUN_FAILED] = BIT(RUN_QUEUED),
	[RUN_CANCELLED] = BIT(RUN_QUEUED),
	[RUN_LOST] = BIT(RUN_QUEUED),
	[RUN_UNKNOWN] = UNFINISHED | FINAL,
};

const char *run_state_name(enum run_state state)
{
	return state_names[state < RUN_STATES ? state : RUN_UNKNOWN];
}

enum run_state run_state_find(const char *name)
{
	for (unsigned i = 0; i < RUN_STATES; i++)
		if (str_eq(name, state_names[i]))
			return (enum run_state)i;
	return RUN_UNKNOWN;
}

bool run_state_is_final(enum run_state state)
{
	return BIT(state) & FINAL;
}

bool run_state_may_follow(enum run_state from, enum run_state to)
{
	return from < RUN_STATES && to < RUN_STATES && next_states[from] & BIT(to);
}

/*
 * Making and reading records
 */

static void set_nulls(struct json *object, const char *const *keys, size_t n)
{
	for (size_t i = 0; i < n; i++)
		json_set(object, keys[i], json_null());
}
#define SET_NULLS(object, ...)                                                                     \
	do {                                                                                       \
		static const char *const keys_[] = {__VA_ARGS__};                                  \
		set_nulls(object, keys_, sizeof(keys_) / sizeof(*keys_));                          \
	} while (0)

struct run *run_new(const char *id, const char *name)
{
	struct run *run = mem_alloc(1, sizeof(*run));
	struct json *doc = json_object();

	json_set_str(doc, "schema", RUN_SCHEMA);
	json_set_str(doc, "id", id);
	json_set_str(doc, "name", name);
	json_set_str(doc, "state", run_state_name(RUN_PREPARING));
	json_set_bool(doc, "cancelling", false);
	SET_NULLS(doc, "text");
	json_set(doc, "command", json_array());
	json_set(doc, "params", json_object());
	json_set(doc, "tags", json_object());
	SET_NULLS(doc, "group", "parent", "user");
	json_set_str(doc, "note", "");
	struct json *target = json_sub(doc, "target");

	SET_NULLS(target, "kind", "name", "context", "namespace");
	json_set(target, "hosts", json_array());
	json_set(doc, "ranks", json_array());
	SET_NULLS(json_sub(doc, "origin"), "machine", "root", "cwd");
	struct json *image;

	SET_NULLS(json_sub(doc, "snapshot"), "id", "commit", "dirty", "ref", "record", "files",
		"bytes", "left_out");
	image = json_sub(doc, "image");
	SET_NULLS(image, "ref", "base");
	json_set(image, "layers", json_array());
	SET_NULLS(image, "layers_pushed", "bytes_pushed");
	SET_NULLS(json_sub(doc, "resources"), "nodes", "gpus", "gpu_model", "cpus", "memory");
	json_set(doc, "attempts", json_array());
	SET_NULLS(doc, "exit");
	SET_NULLS(json_sub(doc, "usage"), "cpu_s", "memory_peak_bytes", "gpu_busy",
		"gpu_memory_peak_bytes", "energy_j");
	json_set(doc, "metrics", json_object());
	json_set(doc, "links", json_array());
	SET_NULLS(doc, "results");
	SET_NULLS(json_sub(doc, "times"), "submitted", "started", "ended");
	SET_NULLS(json_sub(doc, "phases_ms"), "snapshot", "pack", "push", "submit", "total");
	json_set(doc, "warnings", json_array());
	run->doc = doc;
	return run;
}

int run_from_json(struct json *doc, struct json *spec, struct run **ret, struct err *err)
{
	AUTO_RUN struct run *run = mem_alloc(1, sizeof(*run));

	run->doc = doc;
	run->spec = spec;
	if (!str_eq(json_get_str(doc, "schema"), RUN_SCHEMA))
		return err_set(err, E_DATA, "the record of a run is not of schema " RUN_SCHEMA);
	if (!run_id_is_valid(json_get_str(doc, "id")))
		return err_set(err, E_DATA, "the record of a run has no valid id");
	if (!json_get_str(doc, "state"))
		return err_set(err, E_DATA, "the record of %s has no state", run_id(run));
	*ret = TAKE(run);
	return 0;
}

struct run *run_copy(const struct run *run)
{
	struct run *copy = mem_alloc(1, sizeof(*copy));

	copy->doc = json_clone(run->doc);
	copy->spec = run->spec ? json_clone(run->spec) : NULL;
	copy->revision = run->revision;
	return copy;
}

void run_free(struct run *run)
{
	if (!run)
		return;
	json_free(run->doc);
	json_free(run->spec);
	json_free(run->seen);
	free(run);
}

void run_list_done(struct run_list *list)
{
	for (size_t i = 0; i < list->n; i++)
		run_free(list->v[i]);
	vec_done(list);
}

/*
 * Members
 */

const char *run_id(const struct run *run)
{
	return json_get_str(run->doc, "id");
}

const char *run_name(const struct run *run)
{
	const char *name = json_get_str(run->doc, "name");

	return name ? name : run_id(run);
}

enum run_state run_state(const struct run *run)
{
	return run_state_find(json_get_str(run->doc, "state"));
}

const char *run_target(const struct run *run)
{
	return json_get_str(json_get(run->doc, "target"), "name");
}

static int64_t run_time_of(const struct json *object, const char *key)
{
	const char *text = json_get_str(object, key);
	int64_t ms = 0;

	return text && clock_parse(text, &ms, NULL) == 0 ? ms : 0;
}

int64_t run_submitted_ms(const struct run *run)
{
	return run_time_of(json_get(run->doc, "times"), "submitted");
}

int64_t run_started_ms(const struct run *run)
{
	return run_time_of(json_get(run->doc, "times"), "started");
}

int64_t run_ended_ms(const struct run *run)
{
	return run_time_of(json_get(run->doc, "times"), "ended");
}

void run_set_time(struct json *object, const char *key, int64_t wall_ms)
{
	char text[CLOCK_TEXT_SIZE];

	if (wall_ms <= 0) {
		json_set(object, key, json_null());
		return;
	}
	clock_format(wall_ms, text);
	json_set_str(object, key, text);
}

void run_set_state(struct run *run, enum run_state state)
{
	json_set_str(run->doc, "state", run_state_name(state));
}

bool run_cancelling(const struct run *run)
{
	return json_get_bool(run->doc, "cancelling", false);
}

static const char *digest_of(const struct json *image)
{
	const char *ref = json_get_str(image, "ref");
	const char *at = ref ? strrchr(ref, '@') : NULL;

	return at ? at + 1 : NULL;
}

const char *run_image_digest(const struct run *run)
{
	return digest_of(json_get(run->doc, "image"));
}

const char *run_base_ref(const struct run *run)
{
	return json_get_str(json_get(run->doc, "image"), RUN_BASE_REF);
}

bool run_is_streamed(const struct run *run)
{
	return json_get_bool(json_get(run->doc, "image"), RUN_STREAMED, false);
}

/*
 * How it ended
 */

static const struct run_reason reasons[] = {
	{"Cancelled", E_RUN_FAILED, "cancelled", false},
	{"Completed", E_RUN_FAILED, NULL, false},
	{AFTER_REASON, E_RUN_AFTER, "a run that it was to follow ended otherwise", false},
	{"Deleted", E_JOB_EVICTED, "one of its pods was deleted", true},
	{"Error", E_RUN_FAILED, "the program failed", false},
	{"Evicted", E_JOB_EVICTED, "it was evicted from its node", true},
	{"Interrupted", E_RUN_FAILED, "dlrun was stopped", false},
	{"Lost", E_RUN_FAILED, "lost", false},
	{"NodeLost", E_JOB_NODE, "its node was lost", true},
	{"NotExecutable", E_RUN_EXEC, "the program cannot be executed", false},
	{"NotFound", E_RUN_EXEC, "there is no such program", false},
	{"OutOfMemory", E_JOB_OOM, "it used more memory than it may", false},
	{"PeerEnded", E_RUN_FAILED, NULL, false},
	{"Preempted", E_JOB_PREEMPTED, "it had to make room", true},
	{"RoleEnded", E_RUN_FAILED, NULL, false},
	{"SetupFailed", E_RUN_SETUP, "the setup failed", false},
	{"Signal", E_RUN_FAILED, NULL, false},
	{"StartFailed", E_RUN_START, "it could not be started", false},
	{"Timeout", E_RUN_TIMEOUT, "time limit reached", false},
};

const struct run_reason *run_reason(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(reasons); i++)
		if (str_eq(name, reasons[i].name))
			return &reasons[i];
	return NULL;
}

/* Where the words of origin and reason live once their JSON is gone: these are all of them. */
static const char *known_word(const char *word)
{
	static const char *const origins[] = {"cluster", "dlrun", "job", "setup"};
	const struct run_reason *reason = run_reason(word);

	for (size_t i = 0; i < ARRAY_LEN(origins); i++)
		if (str_eq(word, origins[i]))
			return origins[i];
	return reason ? reason->name : NULL;
}

void run_exit_from_json(const struct json *json, struct run_exit *ret)
{
	const char *origin = json_get_str(json, "origin"), *reason = json_get_str(json, "reason");

	*ret = (struct run_exit){.origin = "dlrun", .reason = "Lost"};
	if (!json || json_kind(json) != JSON_OBJECT)
		return;
	ret->known = true;
	ret->code = (int)json_get_int(json, "code", 125) & 0xff;
	ret->signal = (int)json_get_int(json, "signal", 0);
	ret->origin = known_word(origin) ? known_word(origin) : "job";
	ret->reason = known_word(reason) ? known_word(reason) : "Error";
}

struct json *run_exit_to_json(const struct run_exit *exit)
{
	struct json *json;

	if (!exit->known)
		return json_null();
	json = json_object();
	json_set_int(json, "code", exit->code);
	if (exit->signal)
		json_set_int(json, "signal", exit->signal);
	else
		json_set(json, "signal", json_null());
	json_set_str(json, "origin", exit->origin);
	json_set_str(json, "reason", exit->reason);
	return json;
}

void run_get_exit(const struct run *run, struct run_exit *ret)
{
	run_exit_from_json(json_get(run->doc, "exit"), ret);
}

void run_set_exit(struct run *run, const struct run_exit *exit)
{
	json_set(run->doc, "exit", run_exit_to_json(exit));
}

bool run_never_began(const struct run *run)
{
	struct run_exit exit;

	run_get_exit(run, &exit);
	return run_state(run) == RUN_FAILED && str_eq(exit.reason, "Interrupted");
}

int run_exit_status(const struct run *run)
{
	struct run_exit exit;

	run_get_exit(run, &exit);
	switch (run_state(run)) {
	case RUN_SUCCEEDED:
		return 0;
	case RUN_CANCELLED:
		return 143;
	case RUN_FAILED:
		/* A failure is never shown as success, whatever was written down. */
		return exit.known && exit.code ? exit.code : 125;
	default:
		return 125;
	}
}

/*
 * Attempts
 */

int run_attempts(const struct run *run)
{
	return (int)json_count(json_get(run->doc, "attempts"));
}

static const struct json *last_attempt(const struct run *run)
{
	const struct json *last = NULL, *each;

	for (each = json_first(json_get(run->doc, "attempts")); each; each = json_next(each))
		last = each;
	return last;
}

const char *run_handle(const struct run *run)
{
	return json_get_str(last_attempt(run), "handle");
}

const char *run_attempt_handle(const struct run *run, int number)
{
	const struct json *each = json_first(json_get(run->doc, "attempts"));

	for (int i = 1; each && i < number; i++)
		each = json_next(each);
	return each && number > 0 ? json_get_str(each, "handle") : NULL;
}

/* The attempts again, less the last `drop` ones. */
static struct json *copy_attempts(const struct run *run, int drop)
{
	int keep = run_attempts(run) - drop;
	struct json *copy = json_array();
	const struct json *each = json_first(json_get(run->doc, "attempts"));

	for (int i = 0; each && i < keep; i++, each = json_next(each))
		json_add(copy, json_clone(each));
	return copy;
}

void run_add_attempt(struct run *run, const char *handle)
{
	struct json *attempts = copy_attempts(run, 0), *attempt = json_object();

	json_set_int(attempt, "number", run_attempts(run) + 1);
	json_set_str(attempt, "handle", handle);
	SET_NULLS(attempt, "exit", "started", "ended");
	json_add(attempts, attempt);
	json_set(run->doc, "attempts", attempts);
	/* The end of the one before is not the run's. */
	run_set_time(json_sub(run->doc, "times"), "ended", 0);
	json_set(run->doc, "exit", json_null());
	json_set(run->doc, "results", json_null());
	json_set(run->doc, "text", json_null());
	json_remove(run->doc, "hint");
	json_remove(run->doc, "evidence");
	json_remove(run->doc, "cost");
	json_remove(run->doc, "results_until");
	json_remove(run->doc, "results_lost");
	json_remove(run->doc, "results_unsent");
	json_set_bool(run->doc, "cancelling", false);
}

void run_set_handle(struct run *run, const char *handle)
{
	struct json *attempts = copy_attempts(run, 1), *attempt = json_clone(last_attempt(run));

	json_set_str(attempt, "handle", handle);
	json_add(attempts, attempt);
	json_set(run->doc, "attempts", attempts);
}

void run_set_attempt_image(struct run *run, const char *ref)
{
	struct json *attempts = copy_attempts(run, 1), *attempt = json_clone(last_attempt(run));

	json_set_str(json_sub(attempt, "image"), "ref", ref);
	json_add(attempts, attempt);
	json_set(run->doc, "attempts", attempts);
}

const char *run_attempt_image_digest(const struct run *run)
{
	return digest_of(json_get(last_attempt(run), "image"));
}

void run_set_attempt_exit(
	struct run *run, const struct run_exit *exit, int64_t started_ms, int64_t ended_ms)
{
	struct json *times = json_sub(run->doc, "times"), *attempts, *attempt;

	if (started_ms > 0 && run_attempts(run) <= 1)
		run_set_time(times, "started", started_ms);
	run_set_time(times, "ended", ended_ms);
	if (run_attempts(run) == 0)
		return;
	attempts = copy_attempts(run, 1);
	attempt = json_clone(last_attempt(run));
	json_set(attempt, "exit", run_exit_to_json(exit));
	run_set_time(attempt, "started", started_ms);
	run_set_time(attempt, "ended", ended_ms);
	json_add(attempts, attempt);
	json_set(run->doc, "attempts", attempts);
}

void run_set_attempt_left(struct run *run, int64_t ended_ms)
{
	const struct run_exit exit = {
		.known = true, .code = 125, .origin = "dlrun", .reason = "Withdrawn"};
	struct json *attempts = copy_attempts(run, 1), *attempt = json_clone(last_attempt(run));

	json_set_str(attempt, "withdrawn", run_handle(run));
	json_set(attempt, "target", json_clone(json_get(run->doc, "target")));
	json_set_str(attempt, "handle", NULL);
	json_set(attempt, "exit", run_exit_to_json(&exit));
	run_set_time(attempt, "ended", ended_ms);
	json_add(attempts, attempt);
	json_set(run->doc, "attempts", attempts);
}

/*
 * Names and ids. ASCII only, whatever the locale.
 */

static char lower(char c)
{
	return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

/* The length of a name in the form of an id at s. */
static size_t valid_name_len(const char *s)
{
	size_t n = 0;

	if (!str_is_lower(s[0]))
		return 0;
	while (str_is_lower(s[n]) || str_is_digit(s[n]) || s[n] == '-')
		n++;
	return n;
}

/* How many bytes went to name: the words of wanted with single dashes between them. */
static size_t map_name(const char *wanted, char name[static RUN_NAME_MAX + 1])
{
	size_t n = 0;

	for (const char *s = wanted; *s && n < RUN_NAME_MAX; s++) {
		char c = lower(*s);

		/* A name starts with a letter: 3d-unet becomes r3d-unet. */
		if (n == 0 && str_is_digit(c))
			name[n++] = 'r';
		if (str_is_lower(c) || str_is_digit(c))
			name[n++] = c;
		else if (n > 0 && name[n - 1] != '-')
			name[n++] = '-';
	}
	while (n > 0 && name[n - 1] == '-')
		n--;
	return n;
}

int run_name_map(
	const char *wanted, char ret[static RUN_NAME_MAX + 1], bool *ret_mapped, struct err *err)
{
	size_t n = valid_name_len(wanted);

	if (n > 0 && n <= RUN_NAME_MAX && !wanted[n]) {
		memcpy(ret, wanted, n + 1);
		*ret_mapped = false;
		return 0;
	}
	char name[RUN_NAME_MAX + 1];
	n = map_name(wanted, name);
	if (n == 0) {
		AUTO_FREE char *shown = str_escaped(wanted);
		return err_set(err, E_RUN_NAME, "invalid run name '%s'", shown);
	}
	memcpy(ret, name, n);
	ret[n] = '\0';
	*ret_mapped = true;
	return 0;
}

void run_make_id(const char *name, char ret[static RUN_ID_SIZE])
{
	size_t n = strnlen(name, RUN_NAME_MAX);

	memcpy(ret, name, n);
	ret[n++] = '-';
	for (int i = 0; i < RUN_SUFFIX; i++)
		ret[n++] = id_letters[random_below(sizeof(id_letters) - 1)];
	ret[n] = '\0';
}

void run_member_id(const char *study, size_t index, char ret[static RUN_ID_SIZE])
{
	size_t len = strlen(study) - RUN_SUFFIX; /* with the '-' */

	snprintf(ret, RUN_ID_SIZE, "%.*s%zu-%s", (int)len, study, index, study + len);
}

bool run_id_is_valid(const char *s)
{
	size_t len = s ? strnlen(s, RUN_ID_SIZE) : 0;

	if (len < RUN_SUFFIX + 2 || len >= RUN_ID_SIZE || valid_name_len(s) != len)
		return false;
	const char *suffix = s + len - RUN_SUFFIX;
	return suffix[-1] == '-' && strspn(suffix, id_letters) == RUN_SUFFIX;
}

/*
 * Parameters
 */

/* The length of a name of a parameter at s: a letter, then letters, digits and _ . - / */
static size_t name_len(const char *s)
{
	size_t n = 0;

	if (!isascii(s[0]) || (!isalpha((unsigned char)s[0]) && s[0] != '_'))
		return 0;
	while (isascii(s[n]) && (isalnum((unsigned char)s[n]) || (s[n] && strchr("_.-/", s[n]))))
		n++;
	return n;
}

static bool run_is_number(const char *s)
{
	char *end;

	if (!*s || isspace((unsigned char)*s))
		return false;
	strtod(s, &end);
	return *end == '\0';
}

static void set_param(struct json *params, const char *name, size_t len, const char *value)
{
	AUTO_FREE char *key = mem_strndup(name, len);

	json_set_bytes(params, key, value, strlen(value));
}

/* How many of the words were taken: 2 for --k v, else 1. */
static size_t run_add_param(struct json *params, const char *word, const char *next)
{
	bool dashes = str_starts(word, "--");
	/* Hydra writes +k=v and ++k=v for keys that are new. */
	const char *name = word + (dashes ? 2 : strspn(word, "+"));
	size_t len = name_len(name);

	if (len > 0 && name[len] == '=') {
		set_param(params, name, len, name + len + 1);
		return 1;
	}
	if (!dashes || len == 0 || name[len] || !next)
		return 1;
	if (next[0] == '-' && !run_is_number(next))
		return 1;
	set_param(params, name, len, next);
	return 2;
}

struct json *run_params(const struct strv *command, struct strv *ret_others)
{
	struct json *params = json_object();

	if (ret_others && command->n)
		strv_add(ret_others, command->v[0]);
	for (size_t i = 1; i < command->n && json_count(params) < PARAMS_MAX;) {
		size_t before = json_count(params);
		const char *word = command->v[i];

		i += run_add_param(params, word, i + 1 < command->n ? command->v[i + 1] : NULL);
		if (ret_others && json_count(params) == before)
			strv_add(ret_others, word);
	}
	return params;
}

void run_tags_add(struct json *tags, const char *tag)
{
	size_t len = strcspn(tag, "=");
	const char *value = tag[len] ? tag + len + 1 : "";
	AUTO_FREE char *key = mem_strndup(tag, len);

	AUTO_FREE char *bytes = mem_printf("%s_b64", key);

	if (!str_is_utf8(key, len))
		return;
	json_remove(tags, bytes);
	json_set_bytes(tags, key, value, strlen(value));
}

int run_tag_check(const char *tag, const char *what, const char *hint, struct err *err)
{
	if (*tag && *tag != '=')
		return 0;
	err_set(err, E_USAGE, "%s must have a name", what);
	return err_hint(err, "%s", hint);
}
