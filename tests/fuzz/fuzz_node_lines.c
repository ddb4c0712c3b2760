/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <string.h>

#include "base/util/auto.h"
#include "base/util/err.h"
#include "base/util/mem.h"
#include "base/util/str.h"
#include "node/wire.h"
#include "node/node.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_attempt(const struct node_words *words)
{
	struct node_attempt attempt, copy;

	if (node_attempt_parse(words, &attempt, NULL) < 0)
		return;
	BUG_ON(!node_name_is_good(attempt.run) || attempt.attempt < 1);
	node_attempt_copy(&attempt, &copy);
	BUG_ON(attempt.fields.n != copy.fields.n);
	for (size_t i = 0; i < copy.fields.n; i++) {
		BUG_ON(!*copy.fields.v[i].key || strchr(copy.fields.v[i].key, '='));
		BUG_ON(!node_attempt_get(&attempt, copy.fields.v[i].key));
	}
	node_attempt_int(&attempt, "code", -1);
	node_attempt_done(&attempt);
	node_attempt_done(&copy);
}

static void check_file(const struct node_words *words)
{
	struct node_files files = {0};
	struct node_file file;

	if (node_file_parse(words, &file, NULL) < 0)
		return;
	BUG_ON(!strchr("dfl", file.kind) || file.mode > 07777 || file.mtime_ms < 0);
	BUG_ON(*file.path == '/' || !*file.path || strstr(file.path, "//"));
	BUG_ON(str_eq(file.path, "..") || str_starts(file.path, "../"));
	BUG_ON(strstr(file.path, "/../") || str_ends(file.path, "/.."));
	BUG_ON((file.kind == 'l') != (file.target != NULL));
	*vec_push(&files) = file;
	node_files_done(&files);
}

static void check_gpu(const struct node_words *words)
{
	struct node_gpu gpu;

	if (node_gpu_parse(words, &gpu, NULL) == 0)
		BUG_ON(memchr(gpu.model, '\0', sizeof(gpu.model)) == NULL);
}

/* The line itself, and as what it says of a GPU that is there. */
static void check_machine(const struct node_words *words)
{
	struct node_machine machine;

	node_machine_init(&machine);
	for (int i = 0; i < 3; i++)
		node_machine_line(words, &machine, NULL);
	BUG_ON(machine.load < -1 || machine.load > 1e6 || machine.load != machine.load);
	BUG_ON(machine.memory_bytes < -1 || machine.memory_free_bytes < -1 || machine.gpus.n > 3);
	vec_foreach (const struct node_meter, meter, &machine.gpus)
		BUG_ON(meter->busy > 1 || meter->power_w < -1 || meter->memory_used_bytes < -1);
	node_machine_done(&machine);
}

static void check_line(const char *text)
{
	AUTO_FREE char *line = mem_strdup(text);
	struct node_words words = {0};

	if (node_words_split(line, &words, NULL) == 0) {
		check_attempt(&words);
		check_file(&words);
		check_gpu(&words);
		check_machine(&words);
	}
	vec_done(&words);
}

/* Whatever marks say: pieces are whole, times never go down. */
static void check_marks(const uint8_t *data, size_t size)
{
	struct node_marks marks = {0};
	uint64_t at = 0;
	int64_t last_ms = 0;

	for (size_t i = 0; i + 2 <= size; i += 2) {
		node_marks_add(&marks, data[i], data[i + 1]);
		for (size_t left = data[i] % 8; left;) {
			int64_t time_ms;
			size_t n = node_marks_piece(&marks, at, left, &time_ms);

			BUG_ON(n == 0 || n > left);
			BUG_ON(time_ms && time_ms < last_ms);
			last_ms = time_ms ? time_ms : last_ms;
			left -= n;
			at += n;
		}
	}
	node_marks_done(&marks);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO_FREE char *text = mem_strndup((const char *)data, size);
	char *line, *rest = text;

	while ((line = strsep(&rest, "\n")))
		check_line(line);
	check_marks(data, size);
	return 0;
}
