/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/os/fs.h"
#include "base/util/mem.h"
#include "oci/registry/registry_cache.h"
#include "tests/unit/tmpfix.h"

#define DIGEST_A "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define DIGEST_B "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
#define NOW      INT64_C(1800000000000)

static void test_what_is_saved_is_loaded(void **state)
{
	AUTO_FREE char *path = mem_printf("%s/memory", tmp);
	AUTO_REGISTRY_CACHE struct registry_cache cache = {0}, again = {0};

	registry_cache_put(&cache, &cache.blobs, DIGEST_A, NULL, NOW)->in_newest = true;
	registry_cache_put(&cache, &cache.manifests, DIGEST_B, NULL, NOW - 1);
	registry_cache_put(&cache, &cache.tags, "v1 linux/amd64", DIGEST_B, NOW - 2);
	registry_cache_set(&cache, &cache.single_post, true);
	registry_cache_set(&cache, &cache.chunks, false);
	cache.http = cache.open = true;
	cache.challenge = mem_strdup("Bearer realm=\"https://a/t\"");
	assert_int_equal(registry_cache_save(path, &cache, NULL), 0);
	assert_false(cache.changed);
	registry_cache_load(path, &again);
	const struct registry_cache_entry *blob = registry_cache_entry_find(&again.blobs, DIGEST_A);
	assert_non_null(blob);
	assert_true(blob->in_newest);
	assert_int_equal(blob->seen_ms, NOW);
	assert_int_equal(registry_cache_entry_find(&again.manifests, DIGEST_B)->seen_ms, NOW - 1);
	assert_string_equal(
		registry_cache_entry_find(&again.tags, "v1 linux/amd64")->value, DIGEST_B);
	assert_int_equal(again.single_post, ABILITY_YES);
	assert_int_equal(again.chunks, ABILITY_NO);
	assert_true(again.http && again.open);
	assert_string_equal(again.challenge, cache.challenge);
}

static void test_nothing_changed_writes_nothing(void **state)
{
	AUTO_FREE char *path = mem_printf("%s/memory", tmp);
	struct registry_cache cache = {0};

	assert_int_equal(registry_cache_save(path, &cache, NULL), 0);
	assert_int_not_equal(access(path, F_OK), 0);
}

static void test_age(void **state)
{
	const struct registry_cache_entry entry = {.seen_ms = NOW};

	assert_true(registry_cache_entry_is_fresh(&entry, NOW, 0));
	assert_true(registry_cache_entry_is_fresh(&entry, NOW + 1000, 1000));
	assert_false(registry_cache_entry_is_fresh(&entry, NOW + 1001, 1000));
	/* The clock was set back: nobody knows how old it is. */
	assert_false(registry_cache_entry_is_fresh(&entry, NOW - 1, 1000));
	assert_false(registry_cache_entry_is_fresh(NULL, NOW, 1000));
}

static void test_forget(void **state)
{
	AUTO_REGISTRY_CACHE struct registry_cache cache = {0};

	registry_cache_put(&cache, &cache.blobs, DIGEST_A, NULL, NOW);
	registry_cache_put(&cache, &cache.blobs, DIGEST_B, NULL, NOW);
	cache.changed = false;
	registry_cache_drop(&cache, &cache.blobs, "sha256:none");
	assert_false(cache.changed);
	registry_cache_drop(&cache, &cache.blobs, DIGEST_A);
	assert_true(cache.changed);
	assert_null(registry_cache_entry_find(&cache.blobs, DIGEST_A));
	assert_non_null(registry_cache_entry_find(&cache.blobs, DIGEST_B));
}

static void test_the_oldest_goes_first(void **state)
{
	AUTO_REGISTRY_CACHE struct registry_cache cache = {0};
	char name[32];

	for (int i = 0; i < REGISTRY_CACHE_ITEMS + 10; i++) {
		snprintf(name, sizeof(name), "blob %d", i);
		registry_cache_put(&cache, &cache.blobs, name, NULL, NOW + i);
	}
	assert_int_equal(cache.blobs.n, REGISTRY_CACHE_ITEMS);
	assert_null(registry_cache_entry_find(&cache.blobs, "blob 9"));
	assert_non_null(registry_cache_entry_find(&cache.blobs, "blob 10"));
}

static void test_damaged_files_are_empty_memories(void **state)
{
	static const char *const bad[] = {
		"",
		"{",
		"[]",
		"{\"format\":2}",
		"{\"format\":1,\"blobs\":[{\"seen\":1}]}",
		"{\"format\":1,\"tags\":[{\"name\":\"a\",\"digest\":\"sha256:12\"}]}",
	};
	AUTO_FREE char *path = mem_printf("%s/memory", tmp);

	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		struct registry_cache cache;
		assert_false(registry_cache_parse(bad[i], strlen(bad[i]), &cache));
		fs_replace(path, bad[i], strlen(bad[i]), 0600, FS_SYNC_NONE, NULL);
		registry_cache_load(path, &cache);
		assert_int_equal(cache.blobs.n + cache.tags.n, 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_what_is_saved_is_loaded, make_tmp, remove_tmp),
		cmocka_unit_test_setup_teardown(
			test_nothing_changed_writes_nothing, make_tmp, remove_tmp),
		cmocka_unit_test(test_age),
		cmocka_unit_test(test_forget),
		cmocka_unit_test(test_the_oldest_goes_first),
		cmocka_unit_test_setup_teardown(
			test_damaged_files_are_empty_memories, make_tmp, remove_tmp),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
