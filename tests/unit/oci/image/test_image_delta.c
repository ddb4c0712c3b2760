/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/imagefix.h"

/*
 * What a tar that knows no whiteouts has to be told before it unpacks a delta.
 */

static char *joined(const struct strv *list)
{
	struct buf out;

	buf_init(&out, 1 << 20);
	for (size_t i = 0; i < list->n; i++)
		buf_addf(&out, "%s%s", i ? " " : "", list->v[i]);
	return out.data;
}

static void assert_delta(const struct image *image, const char *want_gone, const char *want_dirs)
{
	AUTO_LAYOUT struct layout *layout = NULL;
	AUTO_STRV struct strv gone = {0}, dirs = {0};

	ok(layout_open(in_root("layout"), false, &layout, error));
	ok(image_delta_paths(layout, image, &gone, &dirs, error));
	AUTO_FREE char *got_gone = joined(&gone), *got_dirs = joined(&dirs);
	assert_string_equal(got_gone, want_gone);
	assert_string_equal(got_dirs, want_dirs);
}

static void test_no_delta(void **state)
{
	struct fake_tree *tree = tree_new();

	tree_put(tree, "a", 'f', 1, 10);
	struct image_request request = request_of(tree);
	AUTO_IMAGE struct image image = write_image("layout", &request);
	assert_string_equal(roles_of(&image), "full");
	assert_delta(&image, "", "");
	tree_done(tree);
}

static void test_replaced(void **state)
{
	struct fake_tree *tree = tree_new();

	tree_put(tree, "edited", 'f', 1, 10);
	tree_put(tree, "gone", 'f', 2, 10);
	tree_put(tree, "lost/a", 'f', 3, 10);
	tree_put(tree, "now dir", 'f', 4, 10);
	tree_put(tree, "now file/a", 'f', 5, 10);
	tree_put(tree, "stays", 'f', 6, 10);
	struct image_request request = request_of(tree);
	just_write("layout", &request);
	tree_put(tree, "edited", 'f', 7, 10);
	tree_remove(tree, "gone");
	tree_remove(tree, "lost");
	tree_put(tree, "new", 'l', 8, 10);
	tree_put(tree, "now dir/a", 'f', 9, 10);
	tree_put(tree, "now file", 'f', 10, 10);
	request = request_of(tree);
	AUTO_IMAGE struct image image = write_image("layout", &request);
	assert_string_equal(roles_of(&image), "full delta");
	assert_delta(&image, "gone lost edited new now dir/a now file", "now dir");
	tree_done(tree);
}

static void test_lost_layer(void **state)
{
	struct fake_tree *tree = tree_new();
	AUTO_LAYOUT struct layout *layout = NULL;
	AUTO_STRV struct strv gone = {0}, dirs = {0};
	AUTO_ERR struct err err = {0};

	tree_put(tree, "a", 'f', 1, 10);
	struct image_request request = request_of(tree);
	just_write("layout", &request);
	tree_put(tree, "a", 'f', 2, 10);
	request = request_of(tree);
	AUTO_IMAGE struct image image = write_image("layout", &request);
	const char *digest = image.layers[image.n_layers - 1].blob.digest;
	AUTO_FREE char *name = mem_printf("layout/blobs/sha256/%s", strchr(digest, ':') + 1);
	assert_int_equal(unlink(in_root(name)), 0);
	ok(layout_open(in_root("layout"), false, &layout, error));
	assert_true(image_delta_paths(layout, &image, &gone, &dirs, &err) < 0);
	assert_int_equal(err.id, E_IMAGE_BASE);
	tree_done(tree);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, make_root, remove_root)
		T(test_no_delta),
		T(test_replaced),
		T(test_lost_layer),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
