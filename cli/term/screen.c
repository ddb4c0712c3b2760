/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/term/screen.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/util/clock.h"
#include "base/util/mem.h"
#include "cli/term/app.h"
#include "cli/term/ui.h"

enum { TEXT_MAX = 4 << 20, ROWS = 24, TICK_MS = 200 };

/* The other screen, without a cursor; and back. */
#define SCREEN_ON   "\033[?1049h\033[?25l"
#define SCREEN_OFF  "\033[?25h\033[?1049l"
#define SCREEN_HOME "\033[H"
#define LINE_END    "\033[K\r\n"
#define SCREEN_REST "\033[J"

void screen_begin(struct screen *screen, struct app *app)
{
	*screen = (struct screen){.app = app};
	screen->has_keys = isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &screen->before) == 0;
	ui_write(app, SCREEN_ON, sizeof(SCREEN_ON) - 1);
}

void screen_end(struct screen *screen)
{
	ui_write(screen->app, SCREEN_OFF, sizeof(SCREEN_OFF) - 1);
	if (screen->has_keys)
		tcsetattr(STDIN_FILENO, TCSAFLUSH, &screen->before);
}

/* A shell that had stopped us has set its own. */
static void take_keys(struct screen *screen)
{
	struct termios keys = screen->before;

	keys.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
	keys.c_cc[VMIN] = 0;
	keys.c_cc[VTIME] = 0;
	if (screen->has_keys)
		tcsetattr(STDIN_FILENO, TCSANOW, &keys);
}

void screen_measure(struct screen *screen)
{
	struct winsize size = {0};

	take_keys(screen);
	screen->rows = ROWS;
	screen->columns = screen->app->columns;
	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) < 0)
		return;
	if (size.ws_row)
		screen->rows = size.ws_row;
	if (size.ws_col && !getenv("COLUMNS"))
		screen->columns = size.ws_col;
}

void screen_draw(struct screen *screen, const char *text)
{
	AUTO_BUF struct buf out = buf_with(TEXT_MAX);
	unsigned row = 1;

	buf_adds(&out, SCREEN_HOME);
	for (size_t len; *text && row < screen->rows; text += len, row++) {
		len = strcspn(text, "\n");
		ui_text(screen->app, UI_OUT, text, len, &out);
		buf_adds(&out, LINE_END);
		len += text[len] == '\n';
	}
	buf_adds(&out, SCREEN_REST);
	ui_write(screen->app, out.data, out.len);
}

/*
 * Waiting
 */

struct waiting {
	struct screen *screen;
	struct loop *loop;
	int64_t end_ms;
	struct loop_timer *timer;
};

static short want_keys(void *ctx UNUSED)
{
	return POLLIN;
}

static int on_keys(void *ctx, short revents UNUSED, struct err *err UNUSED)
{
	struct waiting *waiting = ctx;
	char typed[64];
	ssize_t n = read(STDIN_FILENO, typed, sizeof(typed));

	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return 0;
	/* With nothing to read the terminal is gone. */
	waiting->screen->quit |=
		n <= 0 || memchr(typed, 'q', (size_t)n) || memchr(typed, 'Q', (size_t)n);
	if (waiting->screen->quit)
		loop_stop(waiting->loop);
	return 0;
}

static int screen_on_tick(void *ctx, struct err *err UNUSED)
{
	struct waiting *waiting = ctx;
	int64_t now_ms = clock_ms(), next_ms = now_ms + TICK_MS;

	waiting->timer = NULL;
	if (app_interrupted || now_ms >= waiting->end_ms) {
		loop_stop(waiting->loop);
		return 0;
	}
	waiting->timer = loop_add_timer(waiting->loop,
		next_ms < waiting->end_ms ? next_ms : waiting->end_ms, screen_on_tick, waiting);
	return 0;
}

int screen_wait(struct screen *screen, struct loop *loop, int64_t wait_ms, struct err *err)
{
	static const struct loop_fd_ops ops = {want_keys, on_keys};
	struct waiting waiting = {screen, loop, clock_deadline(wait_ms), NULL};
	struct loop_fd *keys = NULL;

	if (screen->has_keys)
		keys = loop_add_fd(loop, STDIN_FILENO, &ops, &waiting);
	screen_on_tick(&waiting, NULL);
	int r = loop_run(loop, err);
	loop_remove_timer(loop, waiting.timer);
	loop_remove_fd(loop, keys);
	return r;
}
