/* SPDX-License-Identifier: Apache-2.0 */
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"
#include "cli/term/embed.h"
#include "cli/term/ui.h"

static const char *const shells[] = {"bash", "zsh", "fish"};

static int unknown_shell(const char *word, struct err *err)
{
	AUTO_FREE char *shown = str_shown(word);
	const char *near = str_suggest(word, shells, ARRAY_LEN(shells));

	err_set(err, E_USAGE, "there is no completion for '%s', only for bash, zsh and fish",
		shown);
	return err_hint(err, "dlrun completion %s", near ? near : shells[0]);
}

static const char *script(const char *shell)
{
	for (size_t i = 0; i < ARRAY_LEN(shells); i++) {
		AUTO_FREE char *file = mem_printf("dlrun.%s", shells[i]);

		if (str_eq(shell, shells[i]))
			return embed_text(file);
	}
	return NULL;
}

static int completion_run(struct app *app, void *values UNUSED, struct strv *words)
{
	const char *text = script(words->v[0]);
	AUTO_ERR struct err err = {0};
	struct json *json;

	if (!text) {
		unknown_shell(words->v[0], &err);
		return app_fail(app, &err);
	}
	if (!app->options.json)
		return ui_write(app, text, strlen(text)) < 0;
	json = app_json("completion");
	json_set_str(json, "shell", words->v[0]);
	json_set_str(json, "script", text);
	return app_print_json(app, json);
}

const struct cmd cmd_completion = {
	.name = "completion",
	.summary = "Print the completion script of a shell",
	.synopsis = "bash|zsh|fish",
	.examples =
		{"dlrun completion bash >~/.local/share/bash-completion/completions/dlrun # for bash",
			"dlrun completion zsh >~/.zfunc/_dlrun # for zsh, with ~/.zfunc in fpath",
			"dlrun completion fish >~/.config/fish/completions/dlrun.fish # for fish"},
	.min_words = 1,
	.max_words = 1,
	.words = VALUE_SHELL,
	.run = completion_run,
};
