/* SPDX-License-Identifier: Apache-2.0 */
#include "app/lifecycle/study_judge.h"

#include <math.h>
#include <stdlib.h>

#include "app/lifecycle/cancel.h"
#include "app/lifecycle/restart.h"
#include "app/transfer/mirror.h"
#include "base/os/fs.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/record/columns.h"
#include "core/record/group.h"
#include "core/store/store.h"
#include "core/study/stop_rule.h"

#define JUDGED_SCHEMA "dlrun/judged/v1"

enum { JUDGED_BYTES_MAX = 64 << 20 };

struct judged_member {
	struct run *run;       /* in the list that is looked at now; NULL: not there */
	struct series *series; /* NULL: no event files are here yet */
	char *dir;
	int64_t rung; /* the last one in the file; -1: none */
	bool stopped;
};

struct study_judge {
	struct session *session;
	struct stop_rule rule;
	char *path, *lock; /* of the judgements */
	size_t n;
	struct judged_member *members; /* by index */
	struct stop_curve *curves;
	struct stop_judgements judgements;
};

void study_judge_free(struct study_judge *judge)
{
	if (!judge)
		return;
	for (size_t i = 0; i < judge->n; i++) {
		series_free(judge->members[i].series);
		free(judge->members[i].dir);
	}
	free(judge->members);
	free(judge->curves);
	vec_done(&judge->judgements);
	stop_rule_done(&judge->rule);
	free(judge->path);
	free(judge->lock);
	free(judge);
}

int study_judge_open(struct session *session, const struct study *study, struct study_judge **ret,
	struct err *err)
{
	const char *text = json_get_str(study->doc, STUDY_STOP);
	AUTO_FREE char *dir = dirs_study(&session->dirs, study->id);
	struct stop_rule rule;

	*ret = NULL;
	int r = text ? stop_rule_parse(text, &rule, err) : 0;
	if (r < 0 || !text)
		return r;
	struct study_judge *judge = mem_alloc(1, sizeof(*judge));
	*judge = (struct study_judge){.session = session,
		.rule = rule,
		.path = fs_join(dir, "judged.json"),
		.lock = fs_join(dir, "judged.lock"),
		.n = study->cases.n,
		.members = mem_alloc(study->cases.n, sizeof(*judge->members)),
		.curves = mem_alloc(study->cases.n, sizeof(*judge->curves))};
	*ret = judge;
	return 0;
}

/*
 * The judgements on disk
 */

static void judge_add(struct study_judge *judge, const struct json *json)
{
	int64_t member = json_get_int(json, "member", -1), rung = json_get_int(json, "rung", -1);

	if (member < 0 || (size_t)member >= judge->n || rung < 0)
		return;
	struct judged_member *known = &judge->members[member];
	if (known->stopped || rung <= known->rung)
		return;
	known->rung = rung;
	known->stopped = json_get_bool(json, "stops", false);
	*vec_push(&judge->judgements) = (struct stop_judgement){
		.member = (size_t)member,
		.rung = (size_t)rung,
		.time_s = json_get_num(json, "time_s", NAN),
		.value = json_get_num(json, "value", NAN),
		.stops = known->stopped,
	};
}

static int judge_read(struct study_judge *judge, struct err *err)
{
	AUTO_ERR struct err error = {0};
	AUTO_BUF struct buf text = {0};
	AUTO_JSON struct json *json = NULL;
	bool missing = false;

	judge->judgements.n = 0;
	for (size_t i = 0; i < judge->n; i++) {
		judge->members[i].rung = -1;
		judge->members[i].stopped = false;
	}
	int r = fs_read(judge->path, JUDGED_BYTES_MAX, &text, &missing, &error);
	if (missing)
		return 0;
	if (r == 0)
		r = json_parse(text.data, text.len, JUDGED_BYTES_MAX, judge->path, &json, &error);
	if (r < 0)
		return err_move(err, &error);
	const struct json *list = json_get(json, "judged");
	for (const struct json *each = list ? json_first(list) : NULL; each; each = json_next(each))
		judge_add(judge, each);
	return 0;
}

static int judge_write(const struct study_judge *judge, struct err *err)
{
	AUTO_JSON struct json *json = json_object();
	struct json *list = json_array();
	AUTO_BUF struct buf text = buf_with(JUDGED_BYTES_MAX);

	json_set_str(json, "schema", JUDGED_SCHEMA);
	vec_foreach (struct stop_judgement, each, &judge->judgements) {
		struct json *judged = json_object();
		json_set_int(judged, "member", (int64_t)each->member);
		json_set_int(judged, "rung", (int64_t)each->rung);
		json_set_num(judged, "time_s", each->time_s);
		json_set_num(judged, "value", each->value);
		json_set_bool(judged, "stops", each->stops);
		json_add(list, judged);
	}
	json_set(json, "judged", list);
	json_print(json, &text);
	int r = buf_check(&text, "the judgements", err);
	return r < 0 ? r : fs_replace(judge->path, text.data, text.len, 0600, FS_SYNC_FULL, err);
}

/*
 * The curves
 */

/* The copy of event files that are elsewhere may lie at another place than before. */
static int judge_poll(struct study_judge *judge, size_t index, struct err *err)
{
	struct judged_member *member = &judge->members[index];
	AUTO_FREE char *dir = metrics_here_dir(judge->session, member->run);
	bool is_new;

	if (!dir)
		return 0;
	if (!str_eq(dir, member->dir)) {
		series_free(member->series);
		REPLACE(member->dir, TAKE(dir));
		member->series = series_new(member->dir);
	}
	int r = series_poll(member->series, &is_new, err);
	judge->curves[index] = (struct stop_curve){0};
	for (size_t i = 0; i < series_count(member->series); i++) {
		struct series_curve curve;
		series_get(member->series, i, &curve);
		if (str_eq(curve.tag, judge->rule.metric) && curve.n > judge->curves[index].n)
			judge->curves[index] = (struct stop_curve){curve.points, curve.n};
	}
	return r;
}

/*
 * The ends
 */

static char *judge_sentence(const struct study_judge *judge, const struct stop_judgement *judged)
{
	const struct stop_rule *rule = &judge->rule;
	AUTO_FREE char *metric = str_escaped(rule->metric);
	AUTO_BUF struct buf number = buf_with(64);

	columns_add_double(judged->value, &number);
	AUTO_FREE char *not_of =
		rule->kind == STOP_MEDIAN
			? mem_strdup("is worse than the median")
			: mem_printf("is not among the best 1 of %lld", (long long)rule->keep);
	return mem_printf("%s %s at step %lld %s", metric, number.data,
		(long long)stop_rule_step(rule, judged->rung), not_of);
}

static int judge_mark(void *ctx, struct run *run, struct err *err UNUSED)
{
	if (run_state_is_final(run_state(run)) || json_get_str(run->doc, STUDY_STOPPED))
		return 0;
	json_set_str(run->doc, STUDY_STOPPED, ctx);
	return 1;
}

/* A member that somebody has started or made again is to go on. */
static bool judge_must_cancel(const struct run *run, const struct stop_judgement *judged)
{
	return !run_state_is_final(run_state(run)) && !run_cancelling(run) &&
	       json_get_int(run->doc, RUN_RETRIES_FROM, 0) <= 0 &&
	       !((double)run_submitted_ms(run) > judged->time_s * 1000);
}

/* Write into the records why they are stopped, and ask for their ends. */
static int judge_cancel(struct study_judge *judge, struct strv *ret_stopped, struct err *err)
{
	struct ending *endings = mem_alloc(judge->n, sizeof(*endings));
	struct store *store;
	size_t n = 0;

	int r = session_store(judge->session, &store, err);
	vec_foreach (struct stop_judgement, judged, &judge->judgements) {
		struct run *run = judged->stops ? judge->members[judged->member].run : NULL;
		if (r < 0 || !run || !judge_must_cancel(run, judged))
			continue;
		AUTO_FREE char *why = judge_sentence(judge, judged);
		r = store_change(store, run_id(run), judge_mark, why, NULL, err);
		strv_addf(ret_stopped, "%s is stopped: %s", run_id(run), why);
		endings[n++] = (struct ending){.run = run};
	}
	if (r >= 0 && n > 0)
		r = runs_cancel(judge->session, endings, n, 0, NULL, NULL, err);
	for (size_t i = 0; i < n; i++) {
		if (r >= 0 && err_is_set(&endings[i].err))
			r = err_copy(err, &endings[i].err);
		err_done(&endings[i].err);
	}
	free(endings);
	return r < 0 ? r : 0;
}

int study_judge_members(struct study_judge *judge, const struct run_list *runs,
	struct strv *ret_stopped, struct err *err)
{
	AUTO_ERR struct err busy = {0};
	int fd = -1;
	size_t before = 0;

	int r = 0;

	for (size_t i = 0; i < judge->n; i++)
		judge->members[i].run = NULL;
	for (size_t i = 0; r == 0 && i < runs->n; i++) {
		int64_t index = run_member_index(runs->v[i]);
		if (index < 0 || (size_t)index >= judge->n)
			continue;
		judge->members[index].run = runs->v[i];
		r = judge_poll(judge, (size_t)index, err);
	}
	if (r < 0)
		return r;
	if (fs_lock(judge->lock, true, 0, &fd, &busy) < 0)
		/* Another one judges now. */
		return busy.id == E_IO_LOCK ? 0 : err_move(err, &busy);
	r = judge_read(judge, err);
	before = judge->judgements.n;
	if (r == 0)
		stop_rule_judge(&judge->rule, judge->curves, judge->n, &judge->judgements);
	if (r == 0 && judge->judgements.n > before)
		r = judge_write(judge, err);
	auto_fd(&fd);
	return r < 0 ? r : judge_cancel(judge, ret_stopped, err);
}
