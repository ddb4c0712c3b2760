/* SPDX-License-Identifier: Apache-2.0 */
#include "app/tensorboard/tensorboard_child.h"

#include "app/tensorboard/tensorboard_child_text.h"
#include "base/data/json.h"
#include "base/util/mem.h"

const char tensorboard_child_loader[] =
	"import io,json;exec(json.loads(io.open(0,'rb',0,closefd=False).readline().decode()))";

void tensorboard_child_text(const struct tensorboard_child *child, struct buf *out)
{
	AUTO_JSON struct json *program = json_array(), *wanted = json_object();
	struct json *words = json_array();

	json_add_str(program, TENSORBOARD_CHILD);
	json_print(json_first(program), out);
	json_add_strv(words, child->words);
	json_set_str(wanted, "logdir", child->logdir);
	json_set_bool(wanted, "link", child->has_link);
	json_set_bool(wanted, "fast", child->is_fast);
	json_set_bool(wanted, "scratch", child->has_scratch);
	json_set(wanted, "words", words);
	buf_addc(out, '\n');
	json_print(wanted, out);
	buf_addc(out, '\n');
}

void tensorboard_child_words(const char *prefix, struct strv *out)
{
	const char *const words[] = {"--host", "127.0.0.1", "--port", "0", "--path_prefix", prefix,
		"--reload_interval", "5"};

	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		strv_add(out, words[i]);
}
