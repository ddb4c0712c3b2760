/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/runs/transfer.h"

#include "base/util/auto.h"
#include "base/util/clock.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/term/app.h"
#include "cli/term/ui.h"

enum {
	QUICK_MS = 300, /* what is over by then needs no word */
	PLAIN_EVERY_MS = 5000,
	RATE_MS = 2000,
	BAR = 20,
};

void transfer_clear(struct transfer *transfer)
{
	if (!transfer->on_screen)
		return;
	ui_erase_line(transfer->app);
	transfer->on_screen = false;
}

static char *bar(const struct uploads_progress *progress)
{
	uint64_t total = progress->bytes_total ? progress->bytes_total : 1;
	uint64_t done = progress->bytes_done < total ? progress->bytes_done : total;
	int full = (int)((double)done * BAR / (double)total);

	return mem_printf("[%.*s%*s]", full, "####################", BAR - full, "");
}

/* Rate of the last seconds, not since the beginning: buffers on the way take much at once. */
static uint64_t rate_of(struct transfer *transfer, uint64_t bytes)
{
	int64_t now = clock_ms();

	if (!transfer->before_ms)
		transfer->before_ms = transfer->now_ms = transfer->begun_ms;
	if (now - transfer->now_ms >= RATE_MS) {
		transfer->before_ms = transfer->now_ms;
		transfer->before_bytes = transfer->now_bytes;
		transfer->now_ms = now;
		transfer->now_bytes = bytes;
	}
	int64_t ms = now - transfer->before_ms;
	if (ms <= 0 || bytes < transfer->before_bytes)
		return 0;
	return (bytes - transfer->before_bytes) * 1000 / (uint64_t)ms;
}

static char *runs_transfer_text_of(
	struct transfer *transfer, const struct uploads_progress *progress, bool with_bar)
{
	uint64_t rate = rate_of(transfer, progress->bytes_done);
	char done[16], total[16], each[16];
	AUTO_FREE char *drawn = with_bar ? bar(progress) : mem_strdup("");

	if (progress->bytes_total == 0)
		return mem_printf("%zu of %zu base layers mounted", progress->mounts_done,
			progress->mounts_total);
	return mem_printf("%s%s%s of %s%s · %s/s", drawn, with_bar ? " " : "",
		str_size(progress->bytes_done, done), str_size(progress->bytes_total, total),
		progress->copied ? " (base layers too)" : "", str_size(rate, each));
}

static void runs_transfer_show(
	struct transfer *transfer, const char *label, const struct uploads_progress *progress)
{
	struct app *app = transfer->app;
	int64_t now = clock_ms();

	if (app->progress == PROGRESS_NONE || app->options.json ||
		progress->bytes_total + progress->mounts_total == 0)
		return;
	if (!transfer->begun_ms)
		transfer->begun_ms = transfer->printed_ms = now;
	if (now - transfer->begun_ms < QUICK_MS)
		return;
	if (app->progress == PROGRESS_TTY) {
		AUTO_FREE char *text = runs_transfer_text_of(transfer, progress, true);
		ui_erase_line(app);
		ui_printf(app, UI_ERR, UI_BOLD "%-*s" UI_OFF "%s", UI_LABEL, label, text);
		transfer->on_screen = true;
	} else if (now - transfer->printed_ms >= PLAIN_EVERY_MS) {
		AUTO_FREE char *text = runs_transfer_text_of(transfer, progress, false);
		app_phase(app, label, "%s", text);
		transfer->printed_ms = now;
	}
}

void transfer_show(struct transfer *transfer, const struct uploads_progress *progress)
{
	runs_transfer_show(transfer, "push", progress);
}

void transfer_show_bytes(
	struct transfer *transfer, const char *label, uint64_t done, uint64_t total)
{
	const struct uploads_progress progress = {.bytes_done = done, .bytes_total = total};

	runs_transfer_show(transfer, label, &progress);
}

void transfer_on_progress(void *ctx, const struct uploads_progress *progress)
{
	transfer_show(ctx, progress);
}

void transfer_on_note(void *ctx, const char *text)
{
	struct transfer *transfer = ctx;

	transfer_clear(transfer);
	app_note(transfer->app, "%s", text);
}
