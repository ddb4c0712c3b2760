/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Helpers shared by commands on runs: find them, show their facts as text, print how they ended.
 */
#ifndef DLRUN_CLI_RUNS_RUNS_H
#define DLRUN_CLI_RUNS_RUNS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/data/json.h"
#include "base/util/err.h"
#include "base/util/vec.h"
#include "core/record/columns.h"
#include "core/record/run.h"

struct app;
struct session;
struct store;

/* The run that the word names; NULL: the newest one. E_RUN_STUDY: it names several. */
int runs_get(struct app *app, const char *word, struct run **ret, struct err *err);
/* The same where only the code counts: an image oci:DIR@sha256:… too, as a run without a record. */
int runs_get_code(struct app *app, const char *word, struct run **ret, struct err *err);
/* All of them, each once, in their order, studies with their members; without words the newest
 * one. */
int runs_get_all(struct app *app, const struct strv *words, struct run_list *ret, struct err *err);
/* The same; *ret_study: the study that the first word names, or NULL; the caller frees. */
int runs_get_named(struct app *app, const struct strv *words, struct run_list *ret,
	char **ret_study, struct err *err);
/* The same of one word; NULL: the newest run. */
int runs_get_study(
	struct app *app, const char *word, struct run_list *ret, char **ret_study, struct err *err);

/* Free and drop the runs that are in none of the states, a set of 1u << RUN_…. Returns how many
 * stay. */
size_t runs_keep_states(struct run_list *runs, unsigned states);
/* Keep only those that failed or were lost; says so if there is none. Returns how many there are.
 * study: their name, or NULL. */
size_t runs_keep_failed(struct app *app, const char *study, struct run_list *runs);

/* Studies that are held (study.h) while their members are stopped or removed. */
struct runs_study {
	char id[RUN_ID_SIZE];
	int fd;
};
struct runs_held VEC_OF(struct runs_study);
/* Stop whoever makes members of the studies among words, hold these, and list the runs anew, with
 * what was made until then; runs and *ret_study are those of runs_get_named. */
int runs_hold_studies(struct app *app, const struct strv *words, struct run_list *runs,
	char **ret_study, struct runs_held *ret, struct err *err);
void runs_held_done(struct runs_held *held);

/* Runs that match, the newest first, however old. The beginning of a group is enough where it is
 * the only one. */
int runs_select(struct store *store, const struct select_rules *rules, struct run_list *ret,
	struct err *err);

/* Refresh states, then (with values) metrics of running programs elsewhere and (with files)
 * parameters and results written by those and by runs that ended since the last time; within a
 * second and a bit, what does not come by then stays as it was. */
int runs_poll(
	struct session *session, struct run_list *runs, bool values, bool files, struct err *err);

/* Why the run is in its state, and what to do (run_why_all). */
bool runs_why(struct app *app, const struct run *run, struct buf *sentence, struct buf *hint);
/* Milliseconds between TERM and KILL when it is stopped. */
int64_t runs_grace(const struct run *run);
/* From start to end, or to now while it runs; -1: not started. */
int64_t runs_duration(const struct run *run);
/* The colour of a state. */
const char *runs_state_style(enum run_state state);

/* Results of the run and the command that fetches them (results.h), in lines of at most columns (0:
 * any) where their names allow; no lines without results. */
void runs_results_lines(struct app *app, const struct run *run, size_t columns, struct strv *ret);
/* Say on stderr how the run ended; returns the exit status of one who follows it. */
int runs_print_end(struct app *app, const struct run *run);
/* Print dlrun/runs/v1 (json_done is set); returns the exit status. */
int runs_print_json(struct app *app, const struct run_list *runs);

/*
 * The user's browser.
 */

/* Opens the URL without waiting for the browser; false: there is none that the user would see (no
 * display, a login from elsewhere), or it does not start. */
bool browser_open(const char *url);

/*
 * A run's log on stdout, and how a run ended: what `logs` and `submit` have in common.
 */
struct follow_request {
	int64_t tail_lines; /* -1: all */
	int64_t since_ms;   /* wall clock; 0: all */
	int rank;           /* -1: all, or those of a role: */
	int first, count;   /* ranks; count 0: all */
	int attempt;        /* from 1; 0: the newest */
	bool follow;        /* to the end of the run */
	bool timestamps;
};

/* The run's rank that --role and --rank name: with a role the rank within it. E_USAGE. */
int runs_find_rank(const struct run *run, const char *role, int rank, int *ret, struct err *err);
/* Print the log; with --json the run's object behind it. With follow the end of the run is printed
 * on stderr too. Returns the exit status: with follow the run's own, 130 after Ctrl-C, which leaves
 * the run alone and prints how to come back. */
int follow_log(struct app *app, struct run *run, const struct follow_request *request);

/* How the ports that the run names (ports:, --port) are reached when the run is not followed. */
void reach_print(struct app *app, const struct run *run);

#endif
