/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/util/auto.h"
#include "base/util/mem.h"

static void test_alloc_is_zeroed(void **state)
{
	AUTO_FREE char *p = mem_alloc(100, 3);
	AUTO_FREE char *none = mem_alloc(0, 3);

	for (int i = 0; i < 300; i++)
		assert_int_equal(p[i], 0);
	assert_non_null(none);
}

static void test_grow_keeps(void **state)
{
	AUTO_FREE char *p = mem_grow(NULL, 3, 1);

	memcpy(p, "ab", 3);
	p = mem_grow(p, 100000, 2);
	assert_string_equal(p, "ab");
}

static void test_copies(void **state)
{
	AUTO_FREE char *dup = mem_dup("a\0b", 4);
	AUTO_FREE char *none = mem_dup(NULL, 0);
	AUTO_FREE char *str = mem_strdup("abc");
	AUTO_FREE char *cut = mem_strndup("abc", 2);
	AUTO_FREE char *whole = mem_strndup("abc", SIZE_MAX);
	AUTO_FREE char *empty = mem_strndup("abc", 0);
	AUTO_FREE char *text = mem_printf("%s-%d", "x", 12);
	const char unterminated[2] = {'a', 'b'};
	AUTO_FREE char *from_unterminated = mem_strndup(unterminated, 2);

	assert_memory_equal(dup, "a\0b", 4);
	assert_non_null(none);
	assert_null(mem_strdup(NULL));
	assert_string_equal(str, "abc");
	assert_string_equal(cut, "ab");
	assert_string_equal(whole, "abc");
	assert_string_equal(empty, "");
	assert_string_equal(text, "x-12");
	assert_string_equal(from_unterminated, "ab");
}

static void want_too_much(int how)
{
	if (how == 0)
		free(mem_alloc(SIZE_MAX / 2, 3));
	else if (how == 1)
		free(mem_grow(NULL, SIZE_MAX, 1));
	else if (how == 2)
		free(mem_hook_malloc((size_t)PTRDIFF_MAX + 1));
	else
		mem_out(42);
}

static void test_out_of_memory(void **state)
{
	for (int how = 0; how < 4; how++) {
		char text[256] = "";
		int fds[2], status;
		assert_int_equal(pipe(fds), 0);
		pid_t pid = fork();
		if (pid == 0) {
			dup2(fds[1], STDERR_FILENO);
			want_too_much(how);
			_exit(0);
		}
		close(fds[1]);
		assert_true(read(fds[0], text, sizeof(text) - 1) > 0);
		close(fds[0]);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_true(WIFEXITED(status));
		assert_int_equal(WEXITSTATUS(status), 125);
		assert_int_equal(strncmp(text, "dlrun: out of memory (", 22), 0);
		assert_true(strchr(text, '\n') == text + strlen(text) - 1);
	}
}

static void test_hooks(void **state)
{
	char *p = mem_hook_malloc(0);

	assert_non_null(p);
	p = mem_hook_realloc(p, 10);
	memcpy(p, "abc", 4);
	p = mem_hook_realloc(p, 0);
	assert_non_null(p);
	free(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_alloc_is_zeroed),
		cmocka_unit_test(test_grow_keeps),
		cmocka_unit_test(test_copies),
		cmocka_unit_test(test_out_of_memory),
		cmocka_unit_test(test_hooks),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
