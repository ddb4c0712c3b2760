/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/term/ask.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/select.h>
#include <termios.h>
#include <unistd.h>

#include "base/util/auto.h"
#include "base/util/mem.h"
#include "cli/term/ui.h"

/* A signal between the look at app_interrupted and read would leave it waiting: it comes through in
 * pselect only. */
static int wait_key(struct err *err)
{
	sigset_t stops, before;
	int n = 0;

	sigemptyset(&stops);
	sigaddset(&stops, SIGINT);
	sigaddset(&stops, SIGTERM);
	sigprocmask(SIG_BLOCK, &stops, &before);
	while (!app_interrupted && n == 0) {
		fd_set fds;
		FD_ZERO(&fds);
		FD_SET(STDIN_FILENO, &fds);
		n = pselect(STDIN_FILENO + 1, &fds, NULL, NULL, NULL, &before);
		n = n < 0 && errno == EINTR ? 0 : n;
	}
	sigprocmask(SIG_SETMASK, &before, NULL);
	return app_interrupted ? err_set(err, E_CANCELED, "stopped; nothing was written") : 0;
}

/* Read a line from the terminal. 1: *ret is an answer, 0: the end of the input. */
static int term_ask_read_line(struct buf *ret, struct err *err)
{
	buf_reset(ret);
	for (;;) {
		char c;
		int r = wait_key(err);
		ssize_t n = r < 0 ? 0 : read(STDIN_FILENO, &c, 1);

		if (r < 0)
			return r;
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return 0;
		if (c == '\n')
			return 1;
		buf_addc(ret, c);
	}
}

int ask_line(struct app *app, const char *question, struct buf *answer, struct err *err)
{
	AUTO_FREE char *clean = ui_clean(question);

	ui_printf(app, UI_ERR, UI_BOLD "%s" UI_OFF " ", clean);
	int r = term_ask_read_line(answer, err);
	if (r <= 0)
		ui_printf(app, UI_ERR, "\n");
	return r;
}

int ask_yes(struct app *app, const char *question, bool fallback, bool *ret, struct err *err)
{
	AUTO_FREE char *whole = mem_printf("%s %s", question, fallback ? "[Y/n]" : "[y/N]");
	AUTO_BUF struct buf answer;
	int r = 1;

	buf_init(&answer, ASK_ANSWER_MAX);
	*ret = fallback;
	for (int i = 0; i < ASK_TRIES_MAX && r > 0; i++) {
		r = ask_line(app, whole, &answer, err);
		if (r <= 0 || answer.len == 0)
			break;
		if (strchr("yYnN", answer.data[0])) {
			*ret = strchr("yY", answer.data[0]) != NULL;
			break;
		}
	}
	return r;
}

int ask_trust(struct app *app, const char *question, struct buf *answer, struct err *err)
{
	bool is_yes;
	int r = ask_yes(app, question, false, &is_yes, err);

	if (r < 0 || !is_yes)
		return r < 0 ? r : 0;
	buf_reset(answer);
	buf_adds(answer, "yes");
	return 1;
}

int ask_secret(struct app *app, const char *question, struct buf *answer, struct err *err)
{
	struct termios before = {0}, hidden;
	bool is_hidden = tcgetattr(STDIN_FILENO, &before) == 0;

	hidden = before;
	hidden.c_lflag &= ~(tcflag_t)ECHO;
	is_hidden = is_hidden && tcsetattr(STDIN_FILENO, TCSADRAIN, &hidden) == 0;
	int r = ask_line(app, question, answer, err);
	if (is_hidden) {
		tcsetattr(STDIN_FILENO, TCSADRAIN, &before);
		ui_printf(app, UI_ERR, "\n");
	}
	return r;
}
