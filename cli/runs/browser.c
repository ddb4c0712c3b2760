/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/runs/browser.h"

#include <stdlib.h>

#include "base/loop/proc.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"

/* $BROWSER is a list with ":"; the first word of it that is a program. */
static char *browser_find_named(void)
{
	const char *list = getenv("BROWSER");

	while (!str_empty(list)) {
		size_t len = strcspn(list, ":");
		AUTO_FREE char *name = mem_strndup(list, len);
		char *found = proc_find(name, NULL);

		if (found)
			return found;
		list += len + (list[len] == ':');
	}
	return NULL;
}

static bool has_display(void)
{
#ifdef __APPLE__
	return !getenv("SSH_CONNECTION");
#else
	return !str_empty(getenv("DISPLAY")) || !str_empty(getenv("WAYLAND_DISPLAY"));
#endif
}

static char *find_browser(void)
{
#ifdef __APPLE__
	static const char *const names[] = {"open"};
#else
	static const char *const names[] = {"wslview", "xdg-open"};
#endif
	char *found = browser_find_named();

	/* Windows below Linux has its own display. */
	bool seen = has_display() || getenv("WSL_DISTRO_NAME");
	for (size_t i = 0; !found && seen && i < ARRAY_LEN(names); i++)
		found = proc_find(names[i], NULL);
	return found;
}

bool browser_open(const char *url)
{
	AUTO_FREE char *browser = find_browser();
	pid_t pid;

	if (!browser)
		return false;
	/* The shell leaves the browser behind, so that it need not be waited for. */
	const char *const argv[] = {
		"/bin/sh", "-c", "\"$@\" >/dev/null 2>&1 &", "sh", browser, url, NULL};
	const struct proc_spec spec = {.argv = argv,
		.stdin_fd = -1,
		.stdout_fd = -1,
		.stderr_fd = -1,
		.new_session = true};
	return proc_spawn(&spec, &pid, NULL) == 0;
}
