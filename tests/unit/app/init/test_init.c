/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/init/init.h"
#include "base/os/fs.h"
#include "base/util/auto.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "core/config/config.h"

struct fixture {
	char *dir, *path, *backup;
};

static void setup(struct fixture *f)
{
	const char *tmp = getenv("TMPDIR");

	f->dir = mem_printf("%s/dlrun-init-XXXXXX", tmp ? tmp : "/tmp");
	assert_non_null(mkdtemp(f->dir));
	f->path = fs_join(f->dir, CONFIG_FILE);
	f->backup = mem_printf("%s~", f->path);
}

static void teardown(struct fixture *f)
{
	fs_remove_tree(AT_FDCWD, f->dir, NULL);
	free(f->dir);
	free(f->path);
	free(f->backup);
}

static void write_file(const char *path, const char *text)
{
	assert_int_equal(fs_replace(path, text, strlen(text), 0644, FS_SYNC_NONE, NULL), 0);
}

static void expect_file(const char *path, const char *want)
{
	AUTO_BUF struct buf text = {0};

	assert_int_equal(fs_read(path, INIT_TEXT_MAX, &text, NULL, NULL), 0);
	assert_string_equal(text.data, want);
}

static size_t count_names(const char *path)
{
	AUTO_DIR DIR *dir = opendir(path);
	struct dirent *entry;
	size_t n = 0;

	while ((entry = readdir(dir)))
		n += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
	return n;
}

static void test_put(void **state)
{
	AUTO_ERR struct err err = {0};
	struct fixture f;
	bool kept = true;

	setup(&f);
	assert_int_equal(init_check_free(f.dir, &err), 0);
	assert_int_equal(init_put(f.dir, "name: a\n", false, &kept, &err), 0);
	assert_false(kept);
	expect_file(f.path, "name: a\n");
	assert_int_equal(count_names(f.dir), 1);
	assert_int_equal(init_check_free(f.dir, &err), -ERR_CONFLICT);
	assert_int_equal(init_put(f.dir, "name: b\n", false, &kept, &err), -ERR_CONFLICT);
	assert_int_equal(err.id, E_INIT_EXISTS);
	expect_file(f.path, "name: a\n");
	assert_int_equal(count_names(f.dir), 1);
	teardown(&f);
}

static void test_force(void **state)
{
	struct fixture f;
	bool kept = false;

	setup(&f);
	assert_int_equal(init_put(f.dir, "name: a\n", true, &kept, NULL), 0);
	assert_false(kept);
	for (const char *const *text = (const char *const[]){"name: b\n", "name: c\n", NULL}; *text;
		text++) {
		AUTO_BUF struct buf before = {0};
		assert_int_equal(fs_read(f.path, INIT_TEXT_MAX, &before, NULL, NULL), 0);
		assert_int_equal(init_put(f.dir, *text, true, &kept, NULL), 0);
		assert_true(kept);
		expect_file(f.path, *text);
		expect_file(f.backup, before.data);
		assert_int_equal(count_names(f.dir), 2);
	}
	teardown(&f);
}

/* The link itself is what is kept; the file that it names is not touched. */
static void test_force_over_link(void **state)
{
	AUTO_ERR struct err err = {0};
	struct fixture f;
	struct stat st;
	bool kept;

	setup(&f);
	AUTO_FREE char *shared = fs_join(f.dir, "shared.yaml");
	write_file(shared, "name: shared\n");
	assert_int_equal(symlink("shared.yaml", f.path), 0);
	assert_int_equal(init_put(f.dir, "name: a\n", false, &kept, &err), -ERR_CONFLICT);
	assert_int_equal(init_put(f.dir, "name: a\n", true, &kept, NULL), 0);
	expect_file(f.path, "name: a\n");
	expect_file(shared, "name: shared\n");
	assert_int_equal(lstat(f.backup, &st), 0);
	assert_true(S_ISLNK(st.st_mode));
	teardown(&f);
}

/* Also a link that leads nowhere is a name that is taken. */
static void test_dangling_link(void **state)
{
	AUTO_ERR struct err err = {0};
	struct fixture f;
	bool kept;

	setup(&f);
	assert_int_equal(symlink("nowhere", f.path), 0);
	assert_int_equal(init_put(f.dir, "name: a\n", false, &kept, &err), -ERR_CONFLICT);
	assert_int_equal(count_names(f.dir), 1);
	teardown(&f);
}

static void test_same_file_twice(void **state)
{
	struct fixture f;
	bool kept;

	setup(&f);
	write_file(f.path, "name: a\n");
	assert_int_equal(link(f.path, f.backup), 0);
	assert_int_equal(init_put(f.dir, "name: b\n", true, &kept, NULL), 0);
	expect_file(f.path, "name: b\n");
	expect_file(f.backup, "name: a\n");
	assert_int_equal(count_names(f.dir), 2);
	teardown(&f);
}

static void test_refused(void **state)
{
	AUTO_ERR struct err err = {0};
	struct fixture f;
	bool kept;

	setup(&f);
	assert_true(init_put(f.dir, "imgae: x\n", false, &kept, &err) < 0);
	assert_int_equal(err.id, E_CONFIG_KEY);
	assert_int_equal(count_names(f.dir), 0);
	assert_int_equal(mkdir(f.path, 0700), 0);
	assert_true(init_put(f.dir, "name: a\n", true, &kept, NULL) < 0);
	assert_int_equal(count_names(f.dir), 1);
	assert_true(init_put("/no/such/dir", "name: a\n", true, &kept, NULL) < 0);
	teardown(&f);
}

/*
 * Text
 */

static struct config *load(struct fixture *f, const char *text)
{
	AUTO_ERR struct err err = {0};
	struct config_files files = {.project = f->path};
	struct config *config = NULL;

	write_file(f->path, text);
	if (config_load(&files, &config, &err) < 0)
		fail_msg("%s\n%s", err.message, text);
	return config;
}

/* Every line is there for a reason, which it says. */
static void expect_comments(const char *text)
{
	for (const char *line = text; *line; line = strchr(line, '\n') + 1) {
		AUTO_FREE char *copy = mem_strndup(line, strcspn(line, "\n"));
		if (!strstr(copy, "# "))
			fail_msg("no comment: %s", copy);
	}
}

static void fill_project(struct init_project *project, const char *word)
{
	struct init_command *command = vec_push(&project->commands);
	struct init_data *data = vec_push(&project->data);

	*project = (struct init_project){.dir = mem_strdup("/d"),
		.prefix = mem_strdup(word),
		.root = mem_strdup("/d"),
		.name = "net",
		.name_from = mem_strdup(word),
		.commands = project->commands,
		.data = project->data,
		.env = INIT_ENV_POETRY,
		.lock = "poetry.lock",
		.image = mem_strdup(word),
		.image_from = mem_strdup(word)};
	command->from = mem_strdup(word);
	strv_add(&command->words, "python");
	strv_add(&command->words, word);
	data->path = mem_strdup(word);
	data->bytes = 3 << 20;
	data->at_least = true;
	strv_add(&project->outputs, word);
	for (int i = 0; i < 20; i++) {
		strv_add(&project->contexts, word);
		strv_add(&project->hosts, word);
	}
}

static void check_cluster(struct fixture *f, const struct init_project *project, const char *word)
{
	struct init_cluster cluster = {
		.name = (char[]){"lab"}, .context = (char *)word, .kube_namespace = (char *)word};
	struct init_cluster_list clusters = {&cluster, 1, 1};
	struct init_answers answers = {.clusters = &clusters};
	AUTO_BUF struct buf text;

	buf_init(&text, INIT_TEXT_MAX);
	init_text(project, &answers, &text);
	assert_false(text.full);
	expect_comments(text.data);
	AUTO_CONFIG struct config *config = load(f, text.data);
	assert_string_equal(config_str(config, "target"), "lab");
	const struct json *target = config_target(config, "lab");
	assert_string_equal(json_get_str(target, "kind"), "kubernetes");
	if (str_is_utf8(word, strlen(word)))
		assert_string_equal(config_list(config, "outputs")->v[0], word);
	assert_int_equal(json_count(target), str_is_utf8(word, strlen(word)) ? 3 : 1);
	if (str_is_utf8(word, strlen(word)))
		assert_string_equal(json_get_str(target, "context"), word);
}

static void test_hostile_words(void **state)
{
	static const char *const words[] = {"plain", "", "#", "a: b", "- x", "x\nimage: y",
		"\xe2\x80\xa8image: y", "\xc2\x85image: y", "\"", "'", "\\", "\x1b]0;x\a",
		"{{ x }}", "&a", "*a", "!!python/object", "%TAG", "null", "1e3", "\xff\xfe", "[x",
		"gr\303\274n \360\237\230\200", "\t", "  "};
	struct init_answers answers = {0};
	struct fixture f;

	setup(&f);
	for (size_t i = 0; i < ARRAY_LEN(words); i++) {
		AUTO_INIT_PROJECT struct init_project *project = mem_alloc(1, sizeof(*project));
		AUTO_BUF struct buf text;
		fill_project(project, words[i]);
		buf_init(&text, INIT_TEXT_MAX);
		init_text(project, &answers, &text);
		assert_false(text.full);
		assert_true(str_is_utf8(text.data, text.len));
		expect_comments(text.data);
		AUTO_CONFIG struct config *config = load(&f, text.data);
		bool shell;
		const struct strv *command = config_command(config, &shell);
		if (str_is_utf8(words[i], strlen(words[i]))) {
			assert_int_equal(command->n, 2);
			assert_string_equal(command->v[1], words[i]);
			assert_string_equal(config_list(config, "data")->v[0], words[i]);
			assert_int_equal(config_list(config, "outputs")->n, 0);
		} else {
			assert_int_equal(command->n, 0);
			assert_int_equal(config_list(config, "data")->n, 0);
		}
		assert_false(config_is_set(config, "image"));
		assert_false(config_is_set(config, "before"));
		assert_false(config_is_set(config, "target"));
		assert_false(config_is_set(config, "paths"));
		if (*words[i])
			check_cluster(&f, project, words[i]);
	}
	teardown(&f);
}

static void test_answers(void **state)
{
	struct init_answers answers = {
		.command = "cd x && make # y", .limit_paths = true, .no_data = true};
	AUTO_INIT_PROJECT struct init_project *project = mem_alloc(1, sizeof(*project));
	AUTO_BUF struct buf text;
	struct fixture f;
	bool shell = false;

	setup(&f);
	fill_project(project, "exp/a");
	buf_init(&text, INIT_TEXT_MAX);
	init_text(project, &answers, &text);
	AUTO_CONFIG struct config *config = load(&f, text.data);
	const struct strv *command = config_command(config, &shell);
	assert_true(shell);
	assert_string_equal(command->v[0], "cd x && make # y");
	assert_string_equal(config_list(config, "paths")->v[0], "exp/a");
	assert_false(config_is_set(config, "data"));
	teardown(&f);
}

static void test_nothing(void **state)
{
	struct init_answers answers = {0};
	struct init_project project = {.prefix = ".", .dir = "/", .root = "/"};
	AUTO_BUF struct buf text;
	struct fixture f;

	setup(&f);
	buf_init(&text, INIT_TEXT_MAX);
	init_text(&project, &answers, &text);
	AUTO_CONFIG struct config *config = load(&f, text.data);
	assert_false(config_is_set(config, "command"));
	assert_false(config_is_set(config, "name"));
	teardown(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_put),
		cmocka_unit_test(test_force),
		cmocka_unit_test(test_force_over_link),
		cmocka_unit_test(test_dangling_link),
		cmocka_unit_test(test_same_file_twice),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_hostile_words),
		cmocka_unit_test(test_answers),
		cmocka_unit_test(test_nothing),
	};

	return cmocka_run_group_tests_name("init", tests, NULL, NULL);
}
