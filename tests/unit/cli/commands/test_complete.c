/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "cli/commands/cmds.h"
#include "cli/commands/complete.h"
#include "cli/term/app.h"
#include "cli/term/cmd.h"
#include "cli/term/help.h"
#include "core/record/run.h"
#include "core/store/store.h"

/* Each test has a home of its own. */
struct place {
	char *home, *state;
	char old_dir[4096];
};

static void app_done(struct app *app)
{
	if (app->session_open)
		session_done(&app->session);
	free(app->cwd);
	free(app->self);
}

/* Words apart by blanks; a blank at the end is an empty last word. The caller frees. */
static char *query(const char *line)
{
	AUTO(app_done) struct app app = {.utf8 = true, .columns = 80};
	AUTO_STRV struct strv words = {0};
	AUTO_BUF struct buf out;

	buf_init(&out, COMPLETE_MAX);
	for (const char *p = line;; p++) {
		size_t len = strcspn(p, " ");

		strv_addf(&words, "%.*s", (int)len, p);
		p += len;
		if (!*p)
			break;
	}
	complete(&app, &words, &out);
	return buf_take(&out);
}

static void check(const char *line, const char *want)
{
	AUTO_FREE char *out = query(line);

	assert_string_equal(out, want);
}

static void check_has(const char *line, const char *part)
{
	AUTO_FREE char *out = query(line);

	if (!strstr(out, part))
		fail_msg("no \"%s\" in:\n%s", part, out);
}

static void check_lacks(const char *line, const char *part)
{
	AUTO_FREE char *out = query(line);

	if (strstr(out, part))
		fail_msg("\"%s\" in:\n%s", part, out);
}

static int set_up(void **state)
{
	struct place *place = mem_alloc(1, sizeof(*place));
	const char *temp = getenv("TMPDIR");

	place->home = mem_printf("%s/test-complete.XXXXXX", str_empty(temp) ? "/tmp" : temp);
	if (!mkdtemp(place->home) || !getcwd(place->old_dir, sizeof(place->old_dir)))
		return -1;
	place->state = mem_printf("%s/dlrun", place->home);
	setenv("HOME", "/nowhere", 1);
	setenv("XDG_STATE_HOME", place->home, 1);
	setenv("XDG_CACHE_HOME", place->home, 1);
	setenv("XDG_DATA_HOME", place->home, 1);
	setenv("XDG_CONFIG_HOME", place->home, 1);
	*state = place;
	return chdir(place->home);
}

static int tear_down(void **state)
{
	struct place *place = *state;

	if (chdir(place->old_dir) < 0)
		return -1;
	fs_remove_tree(AT_FDCWD, place->home, NULL);
	free(place->home);
	free(place->state);
	free(place);
	return 0;
}

static void insert_member(
	const struct place *place, const char *id, enum run_state state, const char *group)
{
	struct run *run = run_new(id, "test");
	struct json *command = json_array();
	struct store *store;

	json_add_str(command, "python");
	json_add_str(command, "a b.py");
	json_set(run->doc, "command", command);
	run_set_state(run, state);
	json_set_str(run->doc, "group", group);
	assert_int_equal(fs_mkdirs(place->state, 0700, NULL), 0);
	assert_int_equal(store_open(place->state, &store, NULL), 0);
	assert_int_equal(store_insert(store, run, NULL), 0);
	store_close(store);
	run_free(run);
}

static void insert(const struct place *place, const char *id, enum run_state state)
{
	insert_member(place, id, state, NULL);
}

static void commands(void **state)
{
	check("su", "submit\tRun a program on this directory's code, exactly as it is now\n");
	check_has("", "\nwhy\t");
	check_lacks("", "__complete");
	check("__c", "");
	check("nosuch ", "");
	check_has("--json wh", "why\tSay in one sentence");
	check("--color al", "always\t\n");
}

static void options(void **state)
{
	check("ps --of", "--offline\tShow what is known here and ask no target\n");
	check("--color a", "auto\t\nalways\t\n");
	check("ps --color=n", "--color=never\t\n");
	check("ps --color=never --prog=", "");
	check_has("submit --", "--timeout\t");
	check_has("submit --", "--json\t");
	check("submit -- --js", ":command\n");
	check("submit -q --name-file ", ":file\n");
	check("-C ", ":dir\n");
}

static void programs(void **state)
{
	check("submit ", ":command\n");
	check("submit -n x ./tr", ":command\n");
	check("submit -- python -", ":file\n");
	check("submit python --ti", ":file\n");
}

static void words(void **state)
{
	check("explain snapshot.se", "snapshot.secret\tuntracked files look like secrets\n");
	check("completion z", "zsh\t\n");
	check("completion zsh ", "");
	check("help dlrun.", "dlrun.yaml\tthe configuration file\n");
	check_has("help dlrun-w", "dlrun-world\t");
	check("config limits.fi", "limits.files\tNumber of files\nlimits.file\tOne file\n");
}

static void columns(void **state)
{
	check("ps -o sta", "state\tIts state\nstarted\tWhen its program started\n");
	check("ps -o id,name,gro", "id,name,group\tIts group\n");
	check("ps --columns=id,gro", "--columns=id,group\tIts group\n");
	check("ps --sort gro", "group\tIts group\n");
	check("ps -o params.", "");
}

static void runs(void **state)
{
	const struct place *place = *state;

	check("logs ", "");
	assert_int_not_equal(access(place->state, F_OK), 0);
	insert(place, "alpha-22222", RUN_RUNNING);
	insert(place, "beta-33333", RUN_FAILED);
	check("logs a", "alpha-22222\trunning · python 'a b.py'\n");
	check("logs b", "beta-33333\tfailed · python 'a b.py'\n");
	check("logs -f --tail 3 b", "beta-33333\tfailed · python 'a b.py'\n");
	check("cancel ", "alpha-22222\trunning · python 'a b.py'\n");
	check("submit --from=b", "--from=beta-33333\tfailed · python 'a b.py'\n");
	check_has("logs @", "@\tthe newest run\n");
	check("logs alpha-22222 ", "");
	check("checkout alpha-22222 ", ":dir\n");
	check("fetch a", "alpha-22222\trunning · python 'a b.py'\n");
	check("fetch alpha-22222 ", "");
	check("fetch -o ", ":dir\n");
	check_has("diff alpha-22222 ", "beta-33333\t");
}

static void studies_are_offered_where_they_are_taken(void **state)
{
	const struct place *place = *state;

	insert_member(place, "tiger-0-4k2x9", RUN_FAILED, "tiger-4k2x9");
	insert_member(place, "tiger-1-4k2x9", RUN_SUCCEEDED, "tiger-4k2x9");
	insert_member(place, "alpha-22222", RUN_RUNNING, "mine");
	check("wait t", "");
	check("wait m", "mine\ta study of 1 run\n");
	check("show tiger-4", "tiger-4k2x9\ta study of 2 runs\n");
	check_has("show ", "tiger-0-4k2x9\t");
	check("fetch m", "mine\ta study of 1 run\n");
	check("ps --group=t", "--group=tiger-4k2x9\ta study of 2 runs\n");
	check("checkout tiger-4", "");
	check("diff m", "");
	check("submit --from m", "");
}

static void broken_state_is_silent(void **state)
{
	const struct place *place = *state;
	AUTO_FREE char *file = mem_printf("%s/runs.db", place->state);

	assert_int_equal(fs_mkdirs(place->state, 0700, NULL), 0);
	assert_int_equal(fs_replace(file, "no database", 11, 0600, FS_SYNC_NONE, NULL), 0);
	check("logs ", "");
	check("-C /nowhere logs ", "");
}

static void hosts_and_contexts(void **state)
{
	const struct place *place = *state;
	static const char ssh[] = "Host lab1 lab2\n  User me\nInclude more.d/* none\n";
	static const char more[] = "Host far1 far-*\nInclude ~/.ssh/config\n";
	static const char kube[] =
		"apiVersion: v1\nkind: Config\nclusters:\n- name: c\n  cluster: {server: https://h}\n"
		"users:\n- name: u\n  user: {}\ncontexts:\n- name: research\n"
		"  context: {cluster: c, user: u}\ncurrent-context: research\n";
	AUTO_FREE char *ssh_config = mem_printf("%s/.ssh/config", place->home);
	AUTO_FREE char *ssh_more = mem_printf("%s/.ssh/more.d", place->home);
	AUTO_FREE char *ssh_included = mem_printf("%s/site", ssh_more);
	AUTO_FREE char *kubeconfig = mem_printf("%s/kubeconfig", place->home);

	assert_int_equal(fs_mkdirs(ssh_more, 0700, NULL), 0);
	assert_int_equal(
		fs_replace(ssh_included, more, sizeof(more) - 1, 0600, FS_SYNC_NONE, NULL), 0);
	assert_int_equal(fs_replace(ssh_config, ssh, sizeof(ssh) - 1, 0600, FS_SYNC_NONE, NULL), 0);
	assert_int_equal(
		fs_replace(kubeconfig, kube, sizeof(kube) - 1, 0600, FS_SYNC_NONE, NULL), 0);
	setenv("HOME", place->home, 1);
	setenv("KUBECONFIG", kubeconfig, 1);
	insert(place, "alpha-22222", RUN_RUNNING);
	check("ssh la", "lab1\ta host of ~/.ssh/config\nlab2\ta host of ~/.ssh/config\n");
	check("ssh fa", "far1\ta host of ~/.ssh/config\n");
	check("submit -t ssh:lab1,fa", "ssh:lab1,far1\ta host of ~/.ssh/config\n");
	check_has("ssh ", "alpha-22222\t");
	check("top ssh:lab1", "ssh:lab1\ta host of ~/.ssh/config\n");
	check("top kube:", "kube:research\ta context of the kubeconfig\n");
	check_has("top ", "alpha-22222\t");
	check("submit -t local,ssh:lab1,fa", "local,ssh:lab1,far1\ta host of ~/.ssh/config\n");
	check("submit -t local,kube:r", "local,kube:research\ta context of the kubeconfig\n");
	check("submit --target=kube:r", "--target=kube:research\ta context of the kubeconfig\n");
	setenv("KUBECONFIG", "/nowhere", 1);
	check("submit -t kube:", "");
}

static void every_command_is_sorted_and_whole(void **state)
{
	AUTO_BUF struct buf overview = {0};

	buf_init(&overview, COMPLETE_MAX);
	help_overview_text(80, &overview);
	for (size_t i = 0; i < cmds_n; i++) {
		const struct cmd *cmd = cmds[i];

		if (i)
			assert_true(strcmp(cmds[i - 1]->name, cmd->name) < 0);
		assert_ptr_equal(cmd_find(cmd->name), cmd);
		assert_false(str_ends(cmd->summary, "."));
		AUTO_FREE char *row = mem_printf("\n  %s ", cmd->name);
		assert_true(!strstr(overview.data, row) == !!(cmd->flags & CMD_HIDDEN));
		for (const struct opt *opt = cmd->opts; opt && opt->type != OPT_END; opt++) {
			assert_non_null(opt->help);
			assert_true((opt->type == OPT_FLAG) == (opt->arg == NULL));
			assert_true((opt->type == OPT_CHOICE) == (opt->choices != NULL));
			assert_null(opt_find(app_opts, opt->name, strlen(opt->name)));
			if (opt->letter)
				assert_null(opt_find_letter(app_opts, opt->letter));
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(commands, set_up, tear_down),
		cmocka_unit_test_setup_teardown(options, set_up, tear_down),
		cmocka_unit_test_setup_teardown(programs, set_up, tear_down),
		cmocka_unit_test_setup_teardown(words, set_up, tear_down),
		cmocka_unit_test_setup_teardown(columns, set_up, tear_down),
		cmocka_unit_test_setup_teardown(runs, set_up, tear_down),
		cmocka_unit_test_setup_teardown(hosts_and_contexts, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			studies_are_offered_where_they_are_taken, set_up, tear_down),
		cmocka_unit_test_setup_teardown(broken_state_is_silent, set_up, tear_down),
		cmocka_unit_test(every_command_is_sorted_and_whole),
	};

	cmds_use();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
