/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "app/lifecycle/hint_left_out.h"
#include "app/lifecycle/why.h"
#include "app/proxy/proxy_cells.h"
#include "app/proxy/proxy_impl.h"
#include "app/proxy/proxy_page.h"
#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/store/store.h"

enum {
	TAIL_LINES = 200,
	TAIL_MAX = 256 << 10,
	PATIENCE_MS = 15 * 1000, /* then the page comes with what is there */
	FAR_PATIENCE_MS = 120 * 1000,
	LISTED_MAX = 5000,
	SENTENCE_MAX = 64 << 10,
	LIVE_FILES_MS = 3000,
	ENDED_FILES_MS = 30 * 1000,
};

/* The page of one run, while its output and its files are asked for. */
struct show {
	struct left left;
	struct target_call log;
	struct target_log_request request;
	struct ask *ask;
	struct place *place;
	char *handle;
	bool has_log, has_files; /* asked for, not answered yet */
	char token[TARGET_TOKEN_SIZE];
	struct buf text;
	struct err log_fault, files_fault;
	bool files_cut;
	struct outputs_call *list;
	struct outputs_files files;
	struct loop_timer *timer;
};

static void show_free(struct left *left)
{
	struct show *show = (struct show *)left;

	outputs_cancel(show->list);
	outputs_files_done(&show->files);
	buf_done(&show->text);
	err_done(&show->log_fault);
	err_done(&show->files_fault);
	free(show->handle);
	free(show);
}

static void show_stop(void *work)
{
	struct show *show = work;

	if (show->has_log)
		target_call_cancel(&show->log);
	loop_remove_timer(show->ask->proxy->loop, show->timer);
	leave_work(&show->left);
}

/* The end of the text, from the beginning of a line. */
static void cut_text(struct show *show)
{
	const char *end;

	if (show->text.len <= TAIL_MAX)
		return;
	buf_consume(&show->text, show->text.len - TAIL_MAX);
	end = memchr(show->text.data, '\n', show->text.len);
	if (end)
		buf_consume(&show->text, (size_t)(end + 1 - show->text.data));
}

/* page: all but why. */
static void answer_page(struct ask *ask, struct proxy_page_run *page)
{
	AUTO_FREE char *files = cell_origin(page->run, PROXY_FILES, &ask->proxy->here);
	AUTO_BUF struct buf html, why, hint;

	buf_init(&html, PROXY_PAGE_MAX);
	buf_init(&why, SENTENCE_MAX);
	buf_init(&hint, SENTENCE_MAX);
	run_why_said(&ask->proxy->session->dirs, page->run, page->log, page->log_len, &why, &hint);
	page->why = why.data;
	page->why_hint = hint.data;
	page->here = &ask->proxy->here;
	proxy_page_run(page, &html);
	ask_page(ask, &html, files);
}

static void answer(struct show *show)
{
	struct ask *ask = show->ask;

	cut_text(show);
	struct proxy_page_run page = {.run = place_run(show->place),
		.is_watched = strstr(ask->target, "?watch") != NULL,
		.log = show->text.data,
		.log_len = show->text.len,
		.log_fault = &show->log_fault,
		.files = &show->place->files,
		.files_cut = show->files_cut,
		.is_far = place_is_far(show->place),
		.files_fault = &show->files_fault};
	answer_page(ask, &page);
}

void show_record(struct ask *ask, const struct err *fault)
{
	const struct outputs_files none = {0};
	AUTO_RUN struct run *run = NULL;
	AUTO_ERR struct err failure = {0};
	struct store *store;
	int r = session_store(ask->proxy->session, &store, &failure);

	if (r == 0)
		r = store_resolve(store, ask->name.run, &run, &failure);
	if (r < 0) {
		ask_fail(ask, &failure);
		return;
	}
	struct proxy_page_run page = {
		.run = run, .log = "", .log_fault = fault, .files = &none, .files_fault = fault};
	answer_page(ask, &page);
}

static void answer_if_whole(struct show *show)
{
	if (!show->has_log && !show->has_files)
		answer(show);
}

static int on_late(void *ctx, struct err *err)
{
	struct show *show = ctx;
	struct err *const faults[] = {&show->log_fault, &show->files_fault};
	const bool waits[] = {show->has_log, show->has_files};

	(void)err;
	show->timer = NULL;
	for (size_t i = 0; i < ARRAY_LEN(faults); i++)
		if (waits[i])
			err_set(faults[i], E_TARGET_SILENT, "target %s did not answer in time",
				run_target(place_run(show->place)));
	answer(show);
	return 0;
}

/*
 * Output of the run
 */

static int on_log(
	void *ctx, int rank, const char *data, size_t len, int64_t time_ms, struct err *err)
{
	struct show *show = ctx;

	(void)rank;
	(void)time_ms;
	(void)err;
	if (len > TAIL_MAX) {
		data += len - TAIL_MAX;
		len = TAIL_MAX;
	}
	if (show->text.len + len > 2 * TAIL_MAX)
		cut_text(show);
	buf_add(&show->text, data, len);
	return 0;
}

static void on_log_end(struct target_call *call, int status, struct err *err)
{
	struct show *show = (struct show *)((char *)call - offsetof(struct show, log));

	show->has_log = false;
	if (status < 0)
		err_move(&show->log_fault, err);
	answer_if_whole(show);
}

static void ask_log(struct show *show)
{
	struct target *target = carrier_target(show->place->carrier);

	if (!target->ops->logs)
		return;
	show->request = (struct target_log_request){
		.tail_lines = TAIL_LINES, .rank = -1, .events = {.data = on_log, .ctx = show}};
	show->log =
		(struct target_call){.deadline_ms = clock_ms() + PATIENCE_MS, .done = on_log_end};
	show->has_log = target->ops->logs(target, show->handle, &show->request, show->token,
				&show->log, &show->log_fault) == 0;
}

/*
 * Files of the run
 */

/* A pod that reads them is not started by itself. */
static bool wants_files(const struct ask *ask)
{
	return strstr(ask->target, "?files") != NULL;
}

static bool files_are_fresh(const struct place *place)
{
	bool is_live = !run_state_is_final(run_state(place_run(place)));
	int64_t ms = is_live ? LIVE_FILES_MS : ENDED_FILES_MS;

	return place->files_ms && clock_ms() - place->files_ms < ms;
}

static void on_files(void *ctx, int status, struct err *fault)
{
	struct show *show = ctx;
	struct place *place = show->place;

	show->list = NULL;
	if (show->left.is_left)
		return;
	show->has_files = false;
	show->files_cut = status == -ERR_LIMIT;
	if (status < 0 && !show->files_cut)
		err_move(&show->files_fault, fault);
	outputs_files_done(&place->files);
	place->files = show->files;
	show->files = (struct outputs_files){0};
	place->files_ms = clock_ms();
	answer_if_whole(show);
}

static void ask_files(struct show *show)
{
	if (place_is_far(show->place) && !wants_files(show->ask))
		return;
	if (files_are_fresh(show->place)) {
		show->files_cut = show->place->files.n >= LISTED_MAX;
		return;
	}
	show->has_files = true;
	show->list = outputs_list(carrier_target(show->place->carrier), show->handle, NULL,
		OUTPUTS_THOROUGH, LISTED_MAX, &show->files, on_files, show);
}

void show_run(struct ask *ask)
{
	const char *handle = run_handle(place_run(ask->place));
	struct show *show = mem_alloc(1, sizeof(*show));
	struct loop *loop = ask->proxy->loop;

	*show = (struct show){.left = {.place = ask->place, .free = show_free},
		.ask = ask,
		.place = ask->place,
		.handle = mem_strdup(handle)};
	buf_init(&show->text, 2 * TAIL_MAX);
	ask_work(ask, show, show_stop);
	show->timer = loop_add_timer(loop,
		clock_ms() + (place_is_far(ask->place) ? FAR_PATIENCE_MS : PATIENCE_MS), on_late,
		show);
	if (handle) {
		ask_log(show);
		ask_files(show);
	}
	answer_if_whole(show);
}
