/* SPDX-License-Identifier: Apache-2.0 */
#include "targets/local/supervisor_impl.h"

#include <poll.h>
#include <stdio.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/clock.h"
#include "base/util/mem.h"

enum {
	MARK_MS = 1000,           /* between two marks */
	RESERVE_BYTES = 64 << 10, /* behind the log, for what a program says of a full disk */
};

void sup_note(struct supervisor *sup, const char *fmt, ...)
{
	char time[CLOCK_TEXT_SIZE];
	va_list args;

	va_start(args, fmt);
	AUTO_FREE char *text = mem_vprintf(fmt, args);
	va_end(args);
	clock_format(clock_wall_ms(), time);
	AUTO_FREE char *line = mem_printf("%s %s\n", time, text);
	fs_write_fd(sup->notes_fd, ATTEMPT_NOTES, line, strlen(line), NULL);
}

void sup_mark_log(struct supervisor *sup)
{
	struct mark mark = {.time_ms = clock_wall_ms()};
	char line[MARK_SIZE];
	struct stat st;

	if (fstat(sup->log_fd, &st) < 0)
		return;
	os_reserve(sup->log_fd, st.st_size, RESERVE_BYTES);
	mark.offset = st.st_size;
	if (mark.offset == sup->last_mark.offset && sup->last_mark.time_ms)
		return;
	/* Write the mark in one call: half a line is worse than none. */
	size_t len = mark_format(&mark, line);
	if (write(sup->marks_fd, line, len) == (ssize_t)len)
		sup->last_mark = mark;
}

static int on_mark_due(void *ctx, struct err *err)
{
	struct supervisor *sup = ctx;

	(void)err;
	sup->log_quiet = false;
	return 0;
}

static short want_log(void *ctx)
{
	struct supervisor *sup = ctx;

	return sup->log_quiet ? 0 : POLLIN;
}

static int on_log(void *ctx, short revents, struct err *err)
{
	struct supervisor *sup = ctx;

	(void)revents;
	(void)err;
	os_watch_drain(sup->log_watch);
	sup_mark_log(sup);
	sup->log_quiet = true;
	loop_add_timer(sup->loop, clock_ms() + MARK_MS, on_mark_due, sup);
	return 0;
}

void sup_watch_log(struct supervisor *sup)
{
	static const struct loop_fd_ops ops = {want_log, on_log};

	sup->log_watch = os_watch_open(ATTEMPT_LOG);
	if (sup->log_watch >= 0)
		loop_add_fd(sup->loop, sup->log_watch, &ops, sup);
}

void sup_wait_as(struct supervisor *sup, enum run_state state, const char *text)
{
	struct attempt_state *now = &sup->state;
	AUTO_ERR struct err err = {0};

	if (now->state == state && strncmp(now->text, text, sizeof(now->text) - 1) == 0)
		return;
	now->state = state;
	snprintf(now->text, sizeof(now->text), "%s", text);
	if (attempt_state_write(".", now, &err) < 0)
		sup_note(sup, "%s", err.message);
}
