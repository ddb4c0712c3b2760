/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/buf.h"
#include "base/util/vec.h"
#include "events/event_files.h"

static void test_which(void **state)
{
	static const char *const ones[] = {"projector_config.pbtxt", "a/projector_config.pbtxt",
		"plugins/profile/2026_01_01/host.xplane.pb",
		"tb/train/plugins/profile/r/h/deep.json.gz",
		"log/host_1.1619499959628.pt.trace.json", "x.pt.trace.json.gz",
		"d/tfdbg_events.17.host.metadata"};
	static const char *const others[] = {"projector_config.pbtxt.bak", "a/plugins/profiles/x",
		"myplugins/profile/x", "trace.json", "pt.trace.json", "tensors.tsv", "checkpoint",
		"plugins/profile", "projector_config.pbtxt/x", "a.pt.trace.json/x"};

	for (size_t i = 0; i < ARRAY_LEN(ones); i++)
		assert_true(plugin_files_is_one(ones[i]));
	for (size_t i = 0; i < ARRAY_LEN(others); i++)
		assert_false(plugin_files_is_one(others[i]));
	assert_true(plugin_files_is_appended("d/tfdbg_events.17.host.metadata"));
	assert_false(plugin_files_is_appended("a/projector_config.pbtxt"));
	assert_true(plugin_files_names_others("a/projector_config.pbtxt"));
	assert_true(plugin_files_names_others("checkpoint"));
	assert_false(plugin_files_names_others("a/checkpoint-1"));
}

static void names_are(const char *path, const char *text, const char *want)
{
	AUTO_STRV struct strv named = {0};
	AUTO_BUF struct buf all;

	buf_init(&all, 1 << 16);
	plugin_files_named(path, text, strlen(text), &named);
	for (size_t i = 0; i < named.n; i++)
		buf_addf(&all, "%s;", named.v[i]);
	assert_string_equal(all.data, want);
}

#define CONFIG "tb/projector_config.pbtxt"

static void test_named(void **state)
{
	names_are(CONFIG,
		"embeddings {\n  tensor_name: \"default:00000\"\n"
		"  tensor_path: \"00000/default/tensors.tsv\"\n"
		"  metadata_path: \"00000/default/metadata.tsv\"\n"
		"  sprite {\n    image_path: \"00000/default/sprite.png\"\n"
		"    single_image_dim: 8\n  }\n  bookmarks_path: 'b.json'\n}\n",
		"./tb/00000/default/tensors.tsv;./tb/00000/default/metadata.tsv;"
		"./tb/00000/default/sprite.png;./tb/b.json;");
	/* One line, comments, escapes, what has a meaning in a pattern. */
	names_are("projector_config.pbtxt",
		"# tensor_path: \"no\"\nembeddings{tensor_path:\"a\\142 \\\"*[1]\\\\.tsv\"}",
		"./ab \"??1]?.tsv;");
	names_are("a/b/projector_config.pbtxt", "tensor_path: \"../x//./y.tsv\"", "./a/x/y.tsv;");
	/* Elsewhere, or nothing at all. */
	names_are(CONFIG,
		"tensor_path: \"/etc/passwd\" tensor_path: \"../../x\" tensor_path: \"\" "
		"tensor_path: \"..\" tensor_path: \"a/../..\" other_path: \"y\" tensor_path { \"z\" }",
		"");
	names_are(CONFIG, "tensor_path: \"cut", "./tb/cut;");
	names_are(CONFIG, "tensor_path: \"cut\\", "./tb/cut?;");
}

/* The variables of a checkpoint: TensorFlow looks for the newest one. */
static void test_checkpoints(void **state)
{
	names_are(CONFIG,
		"embeddings { tensor_name: \"embedding/.ATTRIBUTES/VARIABLE_VALUE\" "
		"metadata_path: \"metadata.tsv\" }",
		"./tb/metadata.tsv;./tb/checkpoint;");
	names_are("tb/checkpoint",
		"model_checkpoint_path: \"embedding.ckpt-1\"\n"
		"all_model_checkpoint_paths: \"embedding.ckpt-0\"\n",
		"./tb/embedding.ckpt-1.index;./tb/embedding.ckpt-1.data-*;");
	names_are(CONFIG, "model_checkpoint_path: \"m.ckpt\" tensor_path: \"t\"",
		"./tb/m.ckpt.index;./tb/m.ckpt.data-*;./tb/t;");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_which),
		cmocka_unit_test(test_named),
		cmocka_unit_test(test_checkpoints),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
