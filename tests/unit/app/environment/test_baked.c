/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "app/environment/baked.h"
#include "base/util/auto.h"
#include "base/util/str.h"
#include "core/record/setup_key.h"
#include "tmpfix.h"

struct member {
	const char *name, *content, *target;
	char type;          /* '0' where nothing is said */
	unsigned mode, uid; /* 0: 0755 */
};

static void add_member(struct buf *tar, const struct member *member)
{
	char block[512] = {0};
	size_t size = member->content ? strlen(member->content) : 0;
	unsigned sum = 0;

	snprintf(block, 100, "%s", member->name);
	snprintf(block + 100, 8, "%07o", (member->mode ? member->mode : 0755) & 07777);
	snprintf(block + 108, 8, "%07o", member->uid & 07777);
	snprintf(block + 124, 12, "%011o", (unsigned)size & 07777777777);
	snprintf(block + 136, 12, "00000000001");
	block[156] = member->type ? member->type : '0';
	snprintf(block + 157, 100, "%s", member->target ? member->target : "");
	memcpy(block + 257,
		"ustar\0"
		"00",
		8);
	memset(block + 148, ' ', 8);
	for (size_t i = 0; i < sizeof(block); i++)
		sum += (unsigned char)block[i];
	snprintf(block + 148, 8, "%06o", sum & 0777777);
	buf_add(tar, block, sizeof(block));
	buf_add(tar, member->content ? member->content : "", size);
	memset(block, 0, sizeof(block));
	buf_add(tar, block, -size % sizeof(block));
}

/* A tar of the members in a file. */
static int make_tar(const struct member *members, size_t n)
{
	AUTO_FREE char *path = mem_printf("%s/tar", tmp);
	static const char zeros[1024];
	AUTO_BUF struct buf tar = {0};
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	buf_init(&tar, 8 << 20);
	for (size_t i = 0; i < n; i++)
		add_member(&tar, &members[i]);
	buf_add(&tar, zeros, sizeof(zeros));
	assert_int_equal(fs_write_fd(fd, "tar", tar.data, tar.len, NULL), 0);
	return fd;
}

static int read_all(struct baked *baked, const struct member *members, size_t n, struct err *err)
{
	baked->tree = "dlrun/src";
	baked->fd = make_tar(members, n);
	return baked_read(baked, err);
}

static void expect(const struct baked *baked, size_t i, const char *path, const char *content)
{
	const struct entry *entry = &baked->entries.v[i];
	char text[64] = "";
	int fd;

	assert_string_equal(entry->path, path);
	if (entry->kind == ENTRY_LINK) {
		assert_string_equal(entry->target, content);
		return;
	}
	assert_int_equal(baked_open((void *)baked, entry, &fd, NULL), 0);
	assert_int_equal(read(fd, text, (size_t)entry->size), entry->size);
	assert_string_equal(text, content);
	close(fd);
}

static void test_entries(void **state)
{
	static const struct member members[] = {
		{"tops", "/dlrun/src/.venv\n/dlrun/src/web/made\n"},
		{"gone", "/usr/old\n/usr/again\n"},
		{"./dlrun/src/.venv/bin/b", "two"},
		{"./dlrun/src/.venv/bin/a", "one"},
		{"./dlrun/src/web/made", NULL, "../x", '2'},
		{"./usr/again/x", "new"},
		{"./usr/same", NULL, "./dlrun/src/.venv/bin/a", '1'},
		{"./usr", NULL, NULL, '5'},
	};
	AUTO(baked_done) struct baked baked = {0};
	AUTO_ERR struct err err = {0};

	assert_int_equal(read_all(&baked, members, ARRAY_LEN(members), &err), 0);
	assert_int_equal(baked.entries.n, 6);
	expect(&baked, 0, "dlrun/env/links", ".venv\nweb/made\n");
	expect(&baked, 1, "dlrun/env/tree/.venv/bin/a", "one");
	expect(&baked, 2, "dlrun/env/tree/.venv/bin/b", "two");
	expect(&baked, 3, "dlrun/env/tree/web/made", "/dlrun/src/x");
	expect(&baked, 4, "usr/again/x", "new");
	expect(&baked, 5, "usr/same", "one");
	assert_int_equal(baked.removed.n, 1);
	assert_string_equal(baked.removed.v[0], "usr/old");
	assert_memory_equal(baked.entries.v[5].sha256, baked.entries.v[1].sha256, SHA256_SIZE);
	assert_true(baked.entries.v[1].exec);
	close(baked.fd);
}

/* A file of root's outside of the tree stays as it is, but for set-id. */
static void test_modes(void **state)
{
	static const struct member members[] = {
		{"./dlrun/src/.venv/exec", "a", .mode = 0700},
		{"./dlrun/src/.venv/own", "a", .mode = 0600},
		{"./etc/secret", "a", .mode = 0440},
		{"./etc/set", "a", .mode = 04755},
		{"./etc/shadow", "a", .mode = 010000}, /* 0000 in the tar */
		{"./opt/group", "a", .mode = 0664},
		{"./opt/of_user", "a", .mode = 0600, .uid = 1000},
	};
	static const unsigned expected[] = {0644, 0755, 0644, 0440, 0755, 0400, 0664, 0644};
	AUTO(baked_done) struct baked baked = {0};
	AUTO_ERR struct err err = {0};

	assert_int_equal(read_all(&baked, members, ARRAY_LEN(members), &err), 0);
	assert_int_equal(baked.entries.n, ARRAY_LEN(expected));
	for (size_t i = 0; i < baked.entries.n; i++)
		assert_int_equal(baked.entries.v[i].mode, expected[i]);
	close(baked.fd);
}

/* Links lead from the environment to where they led from the tree. */
static void test_links(void **state)
{
	static const struct {
		const char *path, *target, *expected;
	} links[] = {
		{"./dlrun/src/a/b/in", "c/d", "c/d"},
		{"./dlrun/src/a/b/up", "../c", "/dlrun/src/a/c"},
		{"./dlrun/src/a/b/tree", "./../.././c/", "/dlrun/src/c"},
		{"./dlrun/src/a/out", "../../../usr/lib", "/usr/lib"},
		{"./dlrun/src/a/root", "../../../../..", "/"},
		{"./dlrun/src/a/dots", "x..y", "/dlrun/src/a/x..y"},
		{"./dlrun/src/a/whole", "/usr/../lib", "/usr/../lib"},
		{"./usr/bin/x", "../lib/x", "../lib/x"},
		{"./dlrun/srcs/x", "../x", "../x"},
	};

	for (size_t i = 0; i < ARRAY_LEN(links); i++) {
		const struct member member = {links[i].path, NULL, links[i].target, '2'};
		AUTO(baked_done) struct baked baked = {0};
		AUTO_ERR struct err err = {0};
		assert_int_equal(read_all(&baked, &member, 1, &err), 0);
		for (size_t j = 0; j < baked.entries.n; j++)
			if (baked.entries.v[j].target)
				assert_string_equal(baked.entries.v[j].target, links[i].expected);
		assert_int_equal(baked.entries.n, 2);
		close(baked.fd);
	}
}

static void refuse(const struct member *members, size_t n, const struct strv *secrets,
	enum err_id id, const char *says)
{
	AUTO(baked_done) struct baked baked = {.secrets = secrets};
	AUTO_ERR struct err err = {0};

	assert_true(read_all(&baked, members, n, &err) < 0);
	assert_int_equal(err.id, id);
	assert_non_null(strstr(err.message, says));
	close(baked.fd);
}

static void test_refused(void **state)
{
	static const struct member twice[] = {{"./a", "x"}, {"./a", "y"}};
	static const struct member below[] = {{"./a", "x"}, {"./a/b", "y"}};

	refuse(twice, ARRAY_LEN(twice), NULL, E_DATA, "twice");
	refuse(below, ARRAY_LEN(below), NULL, E_DATA, "twice");
}

/* Wherever the value lies: the content is read in pieces. */
static void test_secrets(void **state)
{
	enum { SIZE = 3 << 20, PIECE = 1 << 20 };
	static const char value[] = "canary-4711";
	AUTO_STRV struct strv secrets = {0};
	AUTO_FREE char *content = mem_alloc(1, SIZE + 1);

	strv_addf(&secrets, "TOKEN=%s", value);
	strv_add(&secrets, "SHORT=xxxx");
	for (size_t at = PIECE - 2048; at < PIECE; at += 5) {
		const struct member members[] = {{"./etc/pip.conf", content}};
		AUTO(baked_done) struct baked baked = {.secrets = &secrets};

		memset(content, 'x', SIZE);
		if (at % 100 == 0) {
			assert_int_equal(read_all(&baked, members, 1, NULL), 0);
			close(baked.fd);
		}
		memcpy(content + at, value, strlen(value));
		if (at % 100 == 3 || at > PIECE - 600)
			refuse(members, 1, &secrets, E_SECRET,
				"the setup writes the secret TOKEN to /etc/pip.conf");
	}
}

/* The pod knows values that are not those here; links and names count, too. */
static void test_secrets_told(void **state)
{
	static const struct member told[] = {
		{"tops", ""}, {"secrets", "TOKEN ./dlrun/src/.venv/pip.conf\nOTHER ./x\n"}};
	static const struct member none[] = {{"secrets", ""}, {"./etc/pip.conf", "x"}};
	static const struct member broken[] = {{"secrets", "TOKEN"}};
	static const struct member link[] = {{"./etc/index", NULL, "https://canary-4711@x", '2'}};
	static const struct member name[] = {{"./etc/canary-4711", ""}};
	AUTO_STRV struct strv secrets = {0};
	AUTO(baked_done) struct baked baked = {0};

	strv_add(&secrets, "TOKEN=canary-4711");
	refuse(told, ARRAY_LEN(told), NULL, E_SECRET,
		"the setup writes the secret TOKEN to /dlrun/env/tree/.venv/pip.conf");
	refuse(broken, ARRAY_LEN(broken), NULL, E_SECRET, "the secret TOKEN to /");
	refuse(link, 1, &secrets, E_SECRET, "the setup writes the secret TOKEN to /etc/index");
	refuse(name, 1, &secrets, E_SECRET, "the secret TOKEN");
	assert_int_equal(read_all(&baked, none, ARRAY_LEN(none), NULL), 0);
	close(baked.fd);
}

static void test_ids(void **state)
{
	static const char key[] =
		"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
	char id[RUN_ID_SIZE];

	setup_make_id(key, id);
	assert_true(setup_id_is_own(id));
	assert_true(run_id_is_valid(id));
	assert_false(setup_id_is_own("env-test-abcde"));
	assert_false(setup_id_is_own("kind-fox-abcde"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ids),
		cmocka_unit_test_setup_teardown(test_entries, make_tmp, remove_tmp),
		cmocka_unit_test_setup_teardown(test_links, make_tmp, remove_tmp),
		cmocka_unit_test_setup_teardown(test_modes, make_tmp, remove_tmp),
		cmocka_unit_test_setup_teardown(test_refused, make_tmp, remove_tmp),
		cmocka_unit_test_setup_teardown(test_secrets, make_tmp, remove_tmp),
		cmocka_unit_test_setup_teardown(test_secrets_told, make_tmp, remove_tmp),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
