/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Columns of `ps`: those with a name of their own, and every member of dlrun/run/v1 by its dotted
 * path (params.lr, metrics.loss, attempts.0.exit.reason). A name between two dots may contain dots
 * itself: the longest existing member is used. metrics.X is the last value of X.
 */
#ifndef DLRUN_CORE_RECORD_COLUMNS_H
#define DLRUN_CORE_RECORD_COLUMNS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/data/json.h"
#include "base/util/buf.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/record/run.h"

enum { COLUMNS_MAX = 64, COLUMN_NAME_MAX = 256 };

#define COLUMNS_DEFAULT "id,state,age,target,exit,command"
#define COLUMNS_METRIC  "id,state,age,target,exit,step,metric,command" /* where there are any */
#define COLUMNS_WIDE                                                                               \
	"id,state,age,duration,target,gpus,group,tags,attempts,exit,step,metric,command"

enum column_value_kind {
	COLUMN_MISSING, /* nothing is known; shown as "-" */
	COLUMN_TEXT,
	COLUMN_NUMBER, /* number is what text says, or stands for */
	COLUMN_AGE,    /* number: milliseconds; text: NULL, as it is shown in one unit */
};
struct column_value {
	enum column_value_kind kind;
	char *text;
	double number;
};
void column_value_done(struct column_value *value);
#define AUTO_COLUMN_VALUE AUTO(column_value_done)

/* A column with a name of its own. */
struct column_kind {
	const char *name, *help;
	const char *path; /* the member that it shows, or */
	void (*make)(const struct run *run, int64_t now_ms, struct column_value *ret);
};
extern const struct column_kind column_kinds[];
extern const size_t column_kinds_n;

struct column {
	char *name;                     /* as it was asked for */
	const struct column_kind *kind; /* NULL: name is a path */
};
struct columns VEC_OF(struct column);

/* A list with commas; "wide" stands for COLUMNS_WIDE. E_USAGE with the near match for a column that
 * does not exist; paths are only checked in their first name. */
int columns_parse(const char *text, struct columns *ret, struct err *err);
void columns_done(struct columns *columns);
#define AUTO_COLUMNS AUTO(columns_done)

/* Whether a column shows something of that member of the record. */
bool columns_show(const struct columns *columns, const char *member);

/* *ret is cleared by column_value_done. now_ms: wall clock. */
void column_get(const struct column *column, const struct run *run, int64_t now_ms,
	struct column_value *ret);

/* The values of runs in columns, run by run. now_ms: wall clock. */
struct column_values VEC_OF(struct column_value);
void columns_get(const struct columns *columns, const struct run_list *runs, int64_t now_ms,
	struct column_values *ret);
void column_values_done(struct column_values *values);
#define AUTO_COLUMN_VALUES AUTO(column_values_done)
/* Whether the column at that index, of n, has numbers and nothing else: they stand at the right. */
bool column_values_are_numbers(const struct column_values *values, size_t at, size_t n);

/* The title of a column: its name, in capitals if it has one of its own. The caller frees. */
char *column_title(const struct column *column);

/* The member of the record that the column shows; NULL: none, or it is made of several. */
const struct json *column_member(const struct column *column, const struct run *run);

/* "COLUMN", or "-COLUMN" for the largest first, of a list of runs. E_USAGE unless it is one. */
int columns_parse_sort(
	const char *text, struct columns *ret, bool *ret_descending, struct err *err);
/* Sort by the values of a column: numbers before text, missing values last; equal ones keep their
 * order. */
void columns_sort(
	struct run_list *runs, const struct column *column, bool descending, int64_t now_ms);

/* A value of the record as people write it: text as it is, numbers short; NULL is null. */
void columns_add_scalar(const struct json *json, struct buf *out);
void columns_add_double(double value, struct buf *out);
/* A parameter of the run in that form; NULL: it has none of that name. The caller frees. */
char *columns_param(const struct run *run, const char *name);

/* The words of a run's command as a shell would take them; the caller frees. */
char *run_command_line(const struct run *run);

/*
 * The main metric of a run: the one to show where there is room for only one.
 */

/* Choose from "metrics" in dlrun/run/v1: "loss", else one that is called like a loss, those of
 * training before those of validation, else the first; NULL: there is none. Its name is
 * json_key. */
const struct json *metric_main(const struct json *metrics);

/* Add name and value: "loss 2.31"; a name of more than width characters loses its beginning (with
 * "…"). */
void metric_text(const struct json *metric, size_t width, struct buf *out);

/*
 * Selection of runs for a list, by what their submit recorded.
 */

struct select_rules {
	const struct strv *tags; /* "K": has that tag; "K=V": with that value; all must hold */
	const char *group;       /* NULL: any */
	int64_t since_ms;        /* submitted then or later, wall clock; 0: any */
};

/* Whether any rule is set. */
bool select_is_set(const struct select_rules *rules);
bool select_matches(const struct select_rules *rules, const struct run *run);
/* Free and drop the runs that do not match; the order stays. */
void select_keep(const struct select_rules *rules, struct run_list *runs);

/* "2h", "7d": that long before now_ms; "2026-08-01" or "2026-08-01 12:00" in local time; a time
 * as of clock_parse. E_USAGE with examples otherwise. */
int select_parse_since(const char *text, int64_t now_ms, int64_t *ret_ms, struct err *err);

#endif
