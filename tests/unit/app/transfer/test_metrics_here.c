/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/transfer/mirror.h"
#include "base/os/fs.h"
#include "base/util/mem.h"
#include "tests/unit/tfeventsfix.h"

#define EVENTS "events.out.tfevents.1700000000.host.1.0"

struct here {
	char dir[64];
	char *mirror;
	struct session session;
	struct run *run;
	struct run_list list;
};

static void write_file(const struct here *here, const char *name, const void *data, size_t len)
{
	AUTO_FREE char *path = fs_join(here->mirror, name);

	assert_int_equal(fs_replace(path, data, len, 0600, FS_SYNC_NONE, NULL), 0);
}

static void write_loss(const struct here *here, int64_t step, float value)
{
	AUTO_BUF struct buf events;

	buf_init(&events, FIX_MAX);
	put_simple(&events, 1, step, "loss", value);
	write_file(here, EVENTS, events.data, events.len);
}

static void here_init(struct here *here)
{
	*here = (struct here){.dir = "/tmp/dlrun-here-XXXXXX", .run = run_new("a-22222", "a")};
	assert_non_null(mkdtemp(here->dir));
	here->session.dirs.cache = here->session.dirs.state = here->dir;
	here->mirror = mem_printf("%s/mirror/a-22222", here->dir);
	assert_int_equal(fs_mkdirs(here->mirror, 0700, NULL), 0);
	json_set_str(json_sub(here->run->doc, "target"), "kind", "ssh");
	*vec_push(&here->list) = here->run;
}

static void here_done(struct here *here)
{
	fs_remove_tree(AT_FDCWD, here->dir, NULL);
	free(here->mirror);
	run_list_done(&here->list);
}

static int64_t step_of(struct here *here)
{
	metrics_here(&here->session, &here->list, 10000);
	return json_get_int(json_get(json_get(here->run->doc, "metrics"), "loss"), "step", -1);
}

static void test_copies(void **state)
{
	struct here here;

	here_init(&here);
	/* Without its notes it is no copy. */
	write_loss(&here, 3, 1);
	assert_int_equal(step_of(&here), -1);
	write_file(&here, ".dlrun-mirror", "1", 1);
	assert_int_equal(step_of(&here), 3);
	/* Read again when the notes say that something came. */
	write_loss(&here, 4, 1);
	assert_int_equal(step_of(&here), 3);
	write_file(&here, ".dlrun-mirror", "22", 2);
	assert_int_equal(step_of(&here), 4);
	here_done(&here);
}

static void set_time(const struct here *here, const char *copies, time_t s)
{
	AUTO_FREE char *notes = mem_printf("%s/%s/a-22222/.dlrun-mirror", here->dir, copies);
	const struct timespec times[] = {{.tv_sec = s}, {.tv_sec = s}};

	assert_int_equal(utimensat(AT_FDCWD, notes, times, 0), 0);
}

/* Of the copy of all and that of the scalars the one counts that something came to last. */
static void test_two_copies(void **state)
{
	struct here here;

	here_init(&here);
	write_loss(&here, 3, 1);
	write_file(&here, ".dlrun-mirror", "1", 1);
	char *all = here.mirror;
	here.mirror = mem_printf("%s/mirror-scalars/a-22222", here.dir);
	assert_int_equal(fs_mkdirs(here.mirror, 0700, NULL), 0);
	write_loss(&here, 4, 1);
	/* It has no notes yet. */
	assert_int_equal(step_of(&here), 3);
	write_file(&here, ".dlrun-mirror", "1", 1);
	set_time(&here, "mirror", 1000);
	set_time(&here, "mirror-scalars", 2000);
	assert_int_equal(step_of(&here), 4);
	set_time(&here, "mirror", 3000);
	assert_int_equal(step_of(&here), 3);
	AUTO_FREE char *dir = metrics_here_dir(&here.session, here.run);
	assert_string_equal(dir, all);
	free(all);
	here_done(&here);
}

static void test_what_is_kept_is_broken(void **state)
{
	static const char *const texts[] = {"", "{", "[]", "{\"stamp\":3}", "{\"metrics\":{}}"};
	struct here here;

	here_init(&here);
	write_loss(&here, 3, 1);
	write_file(&here, ".dlrun-mirror", "1", 1);
	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		write_file(&here, METRICS_HERE_FILE, texts[i], strlen(texts[i]));
		json_set(here.run->doc, "metrics", json_object());
		assert_int_equal(step_of(&here), 3);
	}
	here_done(&here);
}

/* Those of a run here come from its supervisor; no time: all stays. */
static void test_left_alone(void **state)
{
	struct here here;

	here_init(&here);
	write_loss(&here, 3, 1);
	write_file(&here, ".dlrun-mirror", "1", 1);
	metrics_here(&here.session, &here.list, 0);
	json_set_str(json_sub(here.run->doc, "target"), "kind", "local");
	assert_int_equal(step_of(&here), -1);
	assert_null(metrics_here_dir(&here.session, here.run));
	here_done(&here);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_copies),
		cmocka_unit_test(test_two_copies),
		cmocka_unit_test(test_what_is_kept_is_broken),
		cmocka_unit_test(test_left_alone),
	};

	return cmocka_run_group_tests_name("metrics_here", tests, NULL, NULL);
}
