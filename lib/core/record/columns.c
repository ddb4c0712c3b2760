/* SPDX-License-Identifier: Apache-2.0 */
#include "core/record/after.h"
#include "core/record/columns.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/words.h"
#include "core/record/runtime.h"

static const char *const training[] = {"train", NULL};
static const char *const held_out[] = {"val", "eval", "test", "dev", NULL};

static bool has_one(const char *name, const char *const *words)
{
	for (; *words; words++)
		if (strstr(name, *words))
			return true;
	return false;
}

/* The smallest is shown. */
static int rank_of(const char *name)
{
	enum { LOSS, TRAINING_LOSS, SOME_LOSS, HELD_OUT_LOSS, OTHER };
	AUTO_FREE char *low = mem_strdup(name);

	for (char *c = low; *c; c++)
		*c = (char)tolower((unsigned char)*c);
	if (str_eq(low, "loss"))
		return LOSS;
	if (!strstr(low, "loss"))
		return OTHER;
	if (has_one(low, training))
		return TRAINING_LOSS;
	return has_one(low, held_out) ? HELD_OUT_LOSS : SOME_LOSS;
}

const struct json *metric_main(const struct json *metrics)
{
	const struct json *best = NULL;
	int best_rank = 0;

	if (!metrics || json_kind(metrics) != JSON_OBJECT)
		return NULL;
	for (const struct json *item = json_first(metrics); item; item = json_next(item)) {
		int rank = rank_of(json_key(item));

		if (json_kind(item) != JSON_OBJECT || (best && rank >= best_rank))
			continue;
		best = item;
		best_rank = rank;
	}
	return best;
}

void metric_text(const struct json *metric, size_t width, struct buf *out)
{
	const char *name = json_key(metric);
	size_t columns = str_columns(name);

	if (columns > width) {
		/* Whole characters: no byte but the first of one is 10xxxxxx. */
		for (; *name && columns >= width; columns--)
			for (name++; (*name & 0xc0) == 0x80;)
				name++;
		buf_adds(out, "…");
	}
	buf_addf(out, "%s ", name);
	/* Add the value with at most 4 digits: "2.31", "nan". */
	const char *not_finite = json_get_str(metric, "not_finite");
	const struct json *value = json_get(metric, "value");

	if (not_finite)
		buf_adds(out, not_finite);
	else if (value && json_kind(value) == JSON_NUMBER)
		buf_addf(out, "%.4g", json_get_num(metric, "value", 0));
	else
		buf_adds(out, "null");
}

bool select_is_set(const struct select_rules *rules)
{
	return rules->group || rules->since_ms || (rules->tags && rules->tags->n);
}

/* A value of a tag is a string; what another program wrote is taken as it is. */
static bool has_tag(const struct run *run, const char *wanted)
{
	const struct json *tags = json_get(run->doc, "tags");
	const char *equals = strchr(wanted, '=');

	if (!equals)
		return json_get(tags, wanted);
	AUTO_FREE char *key = mem_strndup(wanted, (size_t)(equals - wanted));
	return str_eq(json_get_str(tags, key), equals + 1);
}

bool select_matches(const struct select_rules *rules, const struct run *run)
{
	if (rules->since_ms && run_submitted_ms(run) < rules->since_ms)
		return false;
	if (rules->group && !str_eq(json_get_str(run->doc, "group"), rules->group))
		return false;
	for (size_t i = 0; rules->tags && i < rules->tags->n; i++)
		if (!has_tag(run, rules->tags->v[i]))
			return false;
	return true;
}

void select_keep(const struct select_rules *rules, struct run_list *runs)
{
	size_t kept = 0;

	for (size_t i = 0; i < runs->n; i++) {
		if (select_matches(rules, runs->v[i]))
			runs->v[kept++] = runs->v[i];
		else
			run_free(runs->v[i]);
	}
	runs->n = kept;
}

/* A date that is not in the calendar comes back from mktime as another one. */
static bool parse_local(const char *text, int64_t *ret_ms)
{
	static const char *const forms[] = {
		"%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M:%S"};

	for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
		struct tm tm = {.tm_isdst = -1};
		const char *end = strptime(text, forms[i], &tm);
		int day = tm.tm_mday;
		if (!end || *end)
			continue;
		time_t seconds = mktime(&tm);
		if (seconds == (time_t)-1 || tm.tm_mday != day)
			return false;
		*ret_ms = (int64_t)seconds * 1000;
		return true;
	}
	return false;
}

int select_parse_since(const char *text, int64_t now_ms, int64_t *ret_ms, struct err *err)
{
	int64_t ago_ms;

	if (duration_parse(text, &ago_ms, NULL) == 0) {
		*ret_ms = now_ms - ago_ms > 1 ? now_ms - ago_ms : 1;
		return 0;
	}
	if (clock_parse(text, ret_ms, NULL) == 0 || parse_local(text, ret_ms))
		return 0;
	AUTO_FREE char *shown = str_shown(text);
	err_set(err, E_USAGE, "--since: '%s' is neither a duration nor a date", shown);
	return err_hint(err, "--since 7d, or --since 2026-08-01");
}

enum {
	CELL_MAX = 64 << 10,
	PARAM_MAX = 1 << 20,
	LINE_MAX = 1 << 20,
	SHORT_COMMIT = 12,
	NUMBER_SIZE = 64,
	METRIC_WIDTH = 10, /* of its name */
};

#define EXACT_MAX 1e15 /* doubles hold all whole numbers up to there */
#define PLAIN_MIN 1e5  /* from there on fractions say nothing */

void column_value_done(struct column_value *value)
{
	if (!value)
		return;
	free(value->text);
	*value = (struct column_value){0};
}

static void columns_set_text(struct column_value *value, char *take)
{
	*value = (struct column_value){COLUMN_TEXT, take, 0};
}

static void columns_set_number(struct column_value *value, char *take, double number)
{
	*value = (struct column_value){COLUMN_NUMBER, take, number};
}

/*
 * JSON as text
 */

/* The whole of text as a finite number. */
static bool columns_parse_number(const char *text, double *ret)
{
	char *end;

	/* Not what strtod takes beside numbers: blanks, inf, nan, hex. */
	if (!*text || text[strspn(text, "+-.0123456789eE")])
		return false;
	*ret = strtod(text, &end);
	return !*end && isfinite(*ret);
}

static void columns_add_number(const struct json *json, struct buf *out)
{
	char text[NUMBER_SIZE];
	AUTO_BUF struct buf exact = buf_with(NUMBER_SIZE);
	double number;

	json_print(json, &exact);
	if (!columns_parse_number(exact.data, &number) || !strpbrk(exact.data, ".eE")) {
		buf_adds(out, exact.data);
		return;
	}
	bool plain = fabs(number) >= PLAIN_MIN && fabs(number) < EXACT_MAX;
	snprintf(text, sizeof(text), plain ? "%.0f" : "%.5g", number);
	buf_adds(out, text);
}

void columns_add_scalar(const struct json *json, struct buf *out)
{
	switch (json_kind(json)) {
	case JSON_STRING:
		buf_adds(out, json_str(json));
		break;
	case JSON_NUMBER:
		columns_add_number(json, out);
		break;
	case JSON_NULL:
		buf_adds(out, "null");
		break;
	default:
		json_print(json, out);
	}
}

void columns_add_double(double value, struct buf *out)
{
	AUTO_JSON struct json *object = json_object();

	json_set_num(object, "value", value);
	columns_add_scalar(json_get(object, "value"), out);
}

char *columns_param(const struct run *run, const char *name)
{
	const struct json *value = json_get(json_get(run->doc, "params"), name);
	AUTO_BUF struct buf text = buf_with(PARAM_MAX);

	if (!value)
		return NULL;
	columns_add_scalar(value, &text);
	return buf_take(&text);
}

/* Use the value of an object of metrics. */
static const struct json *plain_value(const struct json *json)
{
	const struct json *value = json_get(json, "value");

	return value ? value : json;
}

/* "a=1 b": a member that is an empty string is a flag. */
static void columns_add_members(const struct json *json, struct buf *out)
{
	for (const struct json *item = json_first(json); item; item = json_next(item)) {
		const char *key = json_key(item), *text = json_str(item);

		if (out->len)
			buf_addc(out, ' ');
		if (key)
			buf_addf(out, text && !*text ? "%s" : "%s=", key);
		columns_add_scalar(plain_value(item), out);
	}
}

static void set_json(const struct json *json, bool is_tag, struct column_value *ret)
{
	AUTO_BUF struct buf text = buf_with(CELL_MAX);
	double number;

	if (json_kind(json) == JSON_OBJECT || json_kind(json) == JSON_ARRAY)
		columns_add_members(json, &text);
	else if (json_kind(json) != JSON_NULL)
		columns_add_scalar(json, &text);
	if (is_tag && json_kind(json) == JSON_STRING && !text.len)
		buf_adds(&text, "yes");
	if (!text.len)
		return;
	if (columns_parse_number(text.data, &number))
		columns_set_number(ret, buf_take(&text), number);
	else
		columns_set_text(ret, buf_take(&text));
}

/*
 * Paths
 */

static const struct json *item_at(const struct json *array, const char *index)
{
	int64_t at;
	const struct json *item = json_first(array);

	if (str_to_int(index, 0, INT32_MAX, "index", &at, NULL) < 0)
		return NULL;
	while (item && at-- > 0)
		item = json_next(item);
	return item;
}

static const struct json *member(const struct json *json, const char *name)
{
	return json_kind(json) == JSON_ARRAY ? item_at(json, name) : json_get(json, name);
}

/* Names may hold dots, so each dot of path may be the end of one; the last is tried first. */
static const struct json *columns_find(const struct json *json, const char *path)
{
	AUTO_FREE char *name = mem_strdup(path);
	const struct json *found = json ? member(json, path) : NULL;
	char *dot;

	while (json && !found && (dot = strrchr(name, '.'))) {
		*dot = '\0';
		found = columns_find(member(json, name), path + (dot - name) + 1);
	}
	return found;
}

/*
 * Columns with a name
 */

char *run_command_line(const struct run *run)
{
	AUTO_STRV struct strv words = {0};
	AUTO_BUF struct buf out = buf_with(LINE_MAX);

	if (words_get(run->doc, "command", &words, NULL) == 0 && words.n)
		str_shell_join(&out, words.v);
	return buf_take(&out);
}

static void make_command(const struct run *run, int64_t now_ms UNUSED, struct column_value *ret)
{
	AUTO_FREE char *line = run_command_line(run);

	if (*line)
		columns_set_text(ret, TAKE(line));
}

/* "running?" if the target is not reachable now, "queued after lion-4k2x9". */
static void make_state(const struct run *run, int64_t now_ms UNUSED, struct column_value *ret)
{
	enum run_state state = run_state(run);
	const char *last = json_get_str(run->doc, "last_state");
	const char *text = json_get_str(run->doc, "text");

	if (state == RUN_UNKNOWN && last)
		columns_set_text(ret, mem_printf("%s?", last));
	else if (run_cancelling(run) && !run_state_is_final(state))
		columns_set_text(ret, mem_strdup("cancelling"));
	else if (state == RUN_QUEUED && json_get(run->doc, AFTER_RECORD) && text &&
		 str_starts(text, "after "))
		columns_set_text(ret, mem_printf("queued %.*s", (int)strcspn(text, ":"), text));
	else
		columns_set_text(ret, mem_strdup(run_state_name(state)));
}

static void make_age(const struct run *run, int64_t now_ms, struct column_value *ret)
{
	if (run_submitted_ms(run))
		*ret = (struct column_value){
			COLUMN_AGE, NULL, (double)(now_ms - run_submitted_ms(run))};
}

static void make_duration(const struct run *run, int64_t now_ms, struct column_value *ret)
{
	int64_t started = run_started_ms(run), ended = run_ended_ms(run);
	int64_t ms = (ended ? ended : now_ms) - started;
	char text[32];

	if (started)
		columns_set_number(ret, mem_strdup(duration_text(ms, text)), (double)ms);
}

static void make_attempts(const struct run *run, int64_t now_ms UNUSED, struct column_value *ret)
{
	if (run_attempts(run))
		columns_set_number(ret, mem_printf("%d", run_attempts(run)), run_attempts(run));
}

static void make_commit(const struct run *run, int64_t now_ms UNUSED, struct column_value *ret)
{
	const char *commit = json_get_str(json_get(run->doc, "snapshot"), "commit");

	if (commit)
		columns_set_text(ret, mem_strndup(commit, SHORT_COMMIT));
}

static void make_code(const struct run *run, int64_t now_ms UNUSED, struct column_value *ret)
{
	static const char algorithm[] = "sha256:";
	const char *id = json_get_str(json_get(run->doc, "snapshot"), "id");

	if (id)
		columns_set_text(
			ret, mem_strndup(id + (str_starts(id, algorithm) ? strlen(algorithm) : 0),
				     SHORT_COMMIT));
}

static void make_step(const struct run *run, int64_t now_ms UNUSED, struct column_value *ret)
{
	const struct json *metric = metric_main(json_get(run->doc, "metrics"));
	int64_t step = json_get_int(metric, "step", -1);

	if (step >= 0)
		columns_set_number(ret, mem_printf("%lld", (long long)step), (double)step);
}

/* Sorted by its value, whatever it is called. */
static void make_metric(const struct run *run, int64_t now_ms UNUSED, struct column_value *ret)
{
	const struct json *metric = metric_main(json_get(run->doc, "metrics"));
	const struct json *value = json_get(metric, "value");
	AUTO_BUF struct buf text = buf_with(CELL_MAX);

	if (!metric)
		return;
	metric_text(metric, METRIC_WIDTH, &text);
	if (value && json_kind(value) == JSON_NUMBER)
		columns_set_number(ret, buf_take(&text), json_get_num(metric, "value", 0));
	else
		columns_set_text(ret, buf_take(&text));
}

static double usage(const struct run *run, const char *key)
{
	return json_get_num(json_get(run->doc, "usage"), key, -1);
}

static void make_cpu(const struct run *run, int64_t now_ms UNUSED, struct column_value *ret)
{
	double seconds = usage(run, "cpu_s");
	char text[32];

	if (seconds >= 0 && seconds < EXACT_MAX / 1000)
		columns_set_number(
			ret, mem_strdup(duration_text((int64_t)(seconds * 1000), text)), seconds);
}

static void columns_set_size(double bytes, struct column_value *ret)
{
	char text[16];

	if (bytes >= 0 && bytes < EXACT_MAX * 1000)
		columns_set_number(ret, mem_strdup(str_size((uint64_t)bytes, text)), bytes);
}

static void make_memory(const struct run *run, int64_t now_ms UNUSED, struct column_value *ret)
{
	columns_set_size(usage(run, "memory_peak_bytes"), ret);
}

static void make_gpu_memory(const struct run *run, int64_t now_ms UNUSED, struct column_value *ret)
{
	columns_set_size(usage(run, "gpu_memory_peak_bytes"), ret);
}

static void make_gpu(const struct run *run, int64_t now_ms UNUSED, struct column_value *ret)
{
	double busy = usage(run, "gpu_busy");

	if (busy >= 0)
		columns_set_number(ret, mem_printf("%.0f %%", busy * 100), busy);
}

static void make_energy(const struct run *run, int64_t now_ms UNUSED, struct column_value *ret)
{
	enum { JOULES_PER_WH = 3600 };
	double joules = usage(run, "energy_j");

	if (joules >= 0)
		columns_set_number(ret, mem_printf("%.3g Wh", joules / JOULES_PER_WH), joules);
}

const struct column_kind column_kinds[] = {
	{"id", "Its id", "id", NULL},
	{"name", "Its name", "name", NULL},
	{"state", "Its state", NULL, make_state},
	{"age", "How long ago it was submitted", NULL, make_age},
	{"duration", "How long it has run", NULL, make_duration},
	{"target", "Where it runs", "target.name", NULL},
	{"command", "Its command", NULL, make_command},
	{"exit", "The exit status of its program", "exit.code", NULL},
	{"reason", "One word for how it ended", "exit.reason", NULL},
	{"group", "Its group", "group", NULL},
	{"tags", "All of its tags", "tags", NULL},
	{"note", "Its note", "note", NULL},
	{"user", "Who submitted it", "user", NULL},
	{"parent", "The run whose code it took", "parent", NULL},
	{"params", "All parameters of its command", "params", NULL},
	{"metrics", "The last value of each metric", "metrics", NULL},
	{"metric", "One metric: a loss, if there is one", NULL, make_metric},
	{"step", "The step of that metric", NULL, make_step},
	{"links", "Pages of experiment trackers", "links", NULL},
	{"attempts", "How many attempts it has had", NULL, make_attempts},
	{"gpus", "GPUs that it asked for", "resources.gpus", NULL},
	{"cpu", "CPU time that it used", NULL, make_cpu},
	{"memory", "The most memory that it used", NULL, make_memory},
	{"gpu", "How busy its GPUs were", NULL, make_gpu},
	{"gpu-memory", "The most GPU memory that it used", NULL, make_gpu_memory},
	{"energy", "Energy that it used", NULL, make_energy},
	{"commit", "The commit that its code builds on", NULL, make_commit},
	{"code", "The snapshot of its code", NULL, make_code},
	{"submitted", "When it was submitted", "times.submitted", NULL},
	{"started", "When its program started", "times.started", NULL},
	{"ended", "When its program ended", "times.ended", NULL},
};
const size_t column_kinds_n = ARRAY_LEN(column_kinds);

/* The members of dlrun/run/v1 that paths begin with. */
static const char *const roots[] = {AFTER_RECORD, "attempts", "cancelling", "cost", RUNTIME_DATA,
	"exit", "image", "metrics", "note", "origin", "params", "phases_ms", "ranks", "resources",
	"results", "schema", "snapshot", "tags", "target", "text", "times", "usage", "warnings",
	"links", "command", "shell", "launcher"};

static const struct column_kind *columns_find_kind(const char *name)
{
	for (size_t i = 0; i < column_kinds_n; i++)
		if (str_eq(column_kinds[i].name, name))
			return &column_kinds[i];
	return NULL;
}

static bool is_root(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(roots); i++)
		if (str_eq(roots[i], name))
			return true;
	return false;
}

/*
 * Lists of columns
 */

void columns_done(struct columns *columns)
{
	vec_foreach (struct column, column, columns)
		free(column->name);
	vec_done(columns);
}

static int columns_fail_unknown(const char *name, const char *first, struct err *err)
{
	const char *candidates[ARRAY_LEN(column_kinds) + ARRAY_LEN(roots)], *near;
	const char *rest = name + strlen(first);
	AUTO_FREE char *shown = str_shown(name);
	size_t n = 0;

	/* Suggest columns only without a dot: the name in front of a dot is a member. */
	for (size_t i = 0; !*rest && i < column_kinds_n; i++)
		candidates[n++] = column_kinds[i].name;
	for (size_t i = 0; i < ARRAY_LEN(roots); i++)
		candidates[n++] = roots[i];
	near = str_suggest(first, candidates, n);
	err_set(err, E_USAGE, "there is no column '%s'", shown);
	if (!near)
		return err_hint(err, "dlrun help ps");
	AUTO_FREE char *meant = mem_printf("%s%s", near, rest);
	AUTO_FREE char *clean = str_shown(meant);
	return err_hint(err, "did you mean %s?", clean);
}

static int add_column(const char *name, struct columns *ret, struct err *err)
{
	const struct column_kind *kind = columns_find_kind(name);
	AUTO_FREE char *first = mem_strndup(name, strcspn(name, "."));

	if (str_eq(name, "wide"))
		return columns_parse(COLUMNS_WIDE, ret, err);
	if (ret->n == COLUMNS_MAX || strlen(name) > COLUMN_NAME_MAX)
		return err_set(err, E_DATA_LIMIT,
			"at most %d columns with names of at most %d bytes can be shown",
			COLUMNS_MAX, COLUMN_NAME_MAX);
	if (!*name) {
		err_set(err, E_USAGE, "the name of a column is empty");
		return err_hint(err, "-o " COLUMNS_DEFAULT);
	}
	if (!kind && !is_root(first))
		return columns_fail_unknown(name, first, err);
	*vec_push(ret) = (struct column){mem_strdup(name), kind};
	return 0;
}

int columns_parse(const char *text, struct columns *ret, struct err *err)
{
	int r = 0;

	for (const char *at = text; at && r == 0;) {
		size_t len = strcspn(at, ","), blanks = strspn(at, " ");
		size_t begin = blanks < len ? blanks : len, end = len;

		while (end > begin && at[end - 1] == ' ')
			end--;
		AUTO_FREE char *name = mem_strndup(at + begin, end - begin);
		r = add_column(name, ret, err);
		at = at[len] ? at + len + 1 : NULL;
	}
	return r;
}

int columns_parse_sort(const char *text, struct columns *ret, bool *ret_descending, struct err *err)
{
	*ret_descending = *text == '-';
	int r = columns_parse(text + *ret_descending, ret, err);

	if (r == 0 && ret->n != 1) {
		err_set(err, E_USAGE, "--sort takes one column");
		return err_hint(err, "--sort metrics.loss");
	}
	return r;
}

const struct json *column_member(const struct column *column, const struct run *run)
{
	const char *path = column->kind ? column->kind->path : column->name;
	const struct json *json = path ? columns_find(run->doc, path) : NULL;

	return json && str_starts(path, "metrics.") ? plain_value(json) : json;
}

void column_get(const struct column *column, const struct run *run, int64_t now_ms,
	struct column_value *ret)
{
	const struct json *json = column_member(column, run);

	*ret = (struct column_value){0};
	if (column->kind && column->kind->make)
		column->kind->make(run, now_ms, ret);
	else if (json)
		set_json(json, str_starts(column->name, "tags."), ret);
}

void columns_get(const struct columns *columns, const struct run_list *runs, int64_t now_ms,
	struct column_values *ret)
{
	vec_foreach (struct run *, run, runs)
		vec_foreach (const struct column, column, columns)
			column_get(column, *run, now_ms, vec_push(ret));
}

void column_values_done(struct column_values *values)
{
	vec_foreach (struct column_value, value, values)
		column_value_done(value);
	vec_done(values);
}

bool column_values_are_numbers(const struct column_values *values, size_t at, size_t n)
{
	bool any = false;

	for (; at < values->n; at += n) {
		if (values->v[at].kind == COLUMN_TEXT)
			return false;
		any |= values->v[at].kind != COLUMN_MISSING;
	}
	return any;
}

char *column_title(const struct column *column)
{
	char *title = mem_strdup(column->name);

	for (char *c = title; column->kind && *c; c++)
		*c = (char)toupper((unsigned char)*c);
	return title;
}

static bool columns_is_of(const struct column *column, const char *member)
{
	const struct column_kind *kind = column->kind;
	const char *path = kind ? kind->path : column->name;
	size_t len = strlen(member);

	if (kind && (kind->make == make_metric || kind->make == make_step))
		path = "metrics";
	return path && strncmp(path, member, len) == 0 && (path[len] == '.' || !path[len]);
}

bool columns_show(const struct columns *columns, const char *member)
{
	vec_foreach (const struct column, column, columns)
		if (columns_is_of(column, member))
			return true;
	return false;
}

/*
 * Sorting
 */

struct keyed {
	struct run *run;
	struct column_value value;
	size_t at;
	bool descending;
};

static bool columns_is_number(const struct column_value *value)
{
	return value->kind == COLUMN_NUMBER || value->kind == COLUMN_AGE;
}

static int compare_values(const struct column_value *a, const struct column_value *b)
{
	if (columns_is_number(a) != columns_is_number(b))
		return columns_is_number(a) ? -1 : 1;
	if (columns_is_number(a))
		return a->number < b->number ? -1 : a->number > b->number;
	return strcmp(a->text, b->text);
}

static int columns_compare(const void *a_ptr, const void *b_ptr)
{
	const struct keyed *a = a_ptr, *b = b_ptr;
	bool a_missing = a->value.kind == COLUMN_MISSING;
	bool b_missing = b->value.kind == COLUMN_MISSING;
	int order = 0;

	if (a_missing != b_missing)
		return a_missing ? 1 : -1;
	if (!a_missing)
		order = compare_values(&a->value, &b->value);
	if (order)
		return a->descending ? -order : order;
	return a->at < b->at ? -1 : 1;
}

void columns_sort(
	struct run_list *runs, const struct column *column, bool descending, int64_t now_ms)
{
	struct VEC_OF(struct keyed) rows = {0};

	for (size_t i = 0; i < runs->n; i++) {
		struct keyed *row = vec_push(&rows);
		*row = (struct keyed){.run = runs->v[i], .at = i, .descending = descending};
		column_get(column, row->run, now_ms, &row->value);
	}
	vec_sort(&rows, columns_compare);
	for (size_t i = 0; i < rows.n; i++) {
		runs->v[i] = rows.v[i].run;
		column_value_done(&rows.v[i].value);
	}
	vec_done(&rows);
}
